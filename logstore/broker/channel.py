"""One channel, and the gate that holds back its replies until the log is durable.

The gate: each change by a channel (acknowledge, publish, delete) has an LSN, and no reply leaves the
channel before the log is durable up to that LSN. So a client that acknowledges and then gets the
answer to any synchronous call knows that its acknowledgement is on disk. Publisher confirms wait at the
same gate, in the same order. Deliveries to consumers may overtake confirms, but they stop while a reply
is held and never overtake a reply.
"""

from __future__ import annotations

import collections
import logging
from typing import TYPE_CHECKING

from pamqp import commands

from logstore.broker import frames
from logstore.broker.consumers import Consuming
from logstore.broker.memory import HELD_BYTES
from logstore.broker.publishing import Publishing

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from pamqp import base

    from logstore.broker.connection import Connection
    from logstore.broker.errors import ChannelException
    from logstore.broker.limits import Limits
    from logstore.broker.streams import Stream
    from logstore.broker.transactions import ChannelTransaction
    from logstore.broker.vhost import VirtualHost

logger = logging.getLogger(__name__)


def _size_of(item: bytes | Callable[[], int | None]) -> int:
    """The bytes that a reply takes at the gate."""
    return len(item) + HELD_BYTES if isinstance(item, bytes) else HELD_BYTES


class Channel:
    """The state of one open channel."""

    __slots__ = (
        "_answered",
        "_changed",
        "_gate_bytes",
        "_gate_lsn",
        "_replies_held",
        "_stream",
        "_waiting",
        "connection",
        "consuming",
        "flowing",
        "held",
        "is_open",
        "last_queue",
        "limits",
        "number",
        "publishing",
        "store",
        "tx",
        "vhost",
        "wakeups",
        "work",
    )

    def __init__(self, connection: Connection, number: int) -> None:
        self.connection = connection
        self.number = number
        self.vhost: VirtualHost = connection.host.vhost
        self.wakeups = connection.host.wakeups
        self.store = connection.host.store
        self.limits: Limits = connection.server.limits
        self.is_open = True
        self.flowing = True  # false after channel.flow(active=false)
        self.last_queue: str | None = None  # the meaning of an empty queue name
        self.tx: ChannelTransaction | None = None  # after tx.select
        self.publishing = Publishing(self)
        self.consuming = Consuming(self)
        self.held: collections.deque[frames.RawFrame] | None = None  # frames that wait for the end of a slow method
        self.work: asyncio.Task[None] | None = None  # the last such method; kept, as the loop does not
        self._gate_lsn = 0
        self._changed = False  # a change was made since the gate was last set
        # The items at the gate with their LSNs: encoded replies, calls that make one, and tags to confirm with the
        # number of publishes that they confirm. Made with the first one, as an empty deque takes half of a channel.
        self._waiting: collections.deque[tuple[int, bytes | int | Callable[[], int | None], int]] | None = None
        self._replies_held = 0
        self._gate_bytes = 0  # of everything that waits
        # The confirm that was left with the store, as it would wait at the gate, and counted there.
        self._answered: tuple[int, bytes | int | Callable[[], int | None], int] = (0, 0, 0)
        self._stream: Stream | None = None  # at the gate, before everything else

    # The gate.

    def changed(self) -> None:
        """Note a change that did not wait for the disk; later replies wait for it."""
        if not self._changed:
            self._changed = True
            self.connection.touch(self)

    def changed_until(self, lsn: int) -> None:
        """Note a change that is durable once `lsn` is."""
        self._gate_lsn = max(self._gate_lsn, lsn)

    @property
    def gate_lsn(self) -> int:
        """The LSN that must be durable before the next reply may leave."""
        if self._changed:
            self._changed = False
            self._gate_lsn = self.store.next_lsn
        return self._gate_lsn

    def send(self, data: bytes) -> None:
        """Send a reply, or hold it at the gate."""
        if not self.waits and self.gate_lsn <= self.wakeups.settled_lsn:
            self.connection.send(data)
        else:
            self._hold(data)

    def reply(self, method: base.Frame) -> None:
        """Send a method as a reply."""
        self.send(frames.method(self.number, method))

    def defer(self, call: Callable[[], int | None]) -> None:
        """Make a call when the gate opens, in order with the replies.

        The call returns None, or an LSN to wait for before it is repeated.
        """
        self._hold(call)
        self.connection.touch(self)

    def stream(self, stream: Stream) -> None:
        """Send a large body in pieces, before everything at the gate, which has no other one."""
        self._stream = stream
        self._gate_holds(1, HELD_BYTES)
        self.connection.touch(self)

    def repeat(self, call: Callable[[], int | None]) -> None:
        """Make a call before everything that waits at the gate."""
        self._at_gate().appendleft((0, call, 0))
        self._gate_holds(1, HELD_BYTES)

    def confirm(self, tag: int, count: int = 1) -> None:
        """Confirm `count` publishes, the last of which has this tag, when the gate opens."""
        lsn = self.gate_lsn
        self._at_gate().append((lsn, tag, count))
        self._gate_holds(0, HELD_BYTES)
        if lsn > self.wakeups.settled_lsn:
            self.wakeups.await_commit(self)
        else:
            self.connection.touch(self)

    def leave_confirm(self, socket: int) -> bool:
        """Leave the confirm of one publish with the store if nothing else waits at the gate."""
        waiting = self._waiting
        if waiting is None or len(waiting) != 1 or self._changed or self._stream is not None:
            return False
        lsn, tag, count = waiting[0]
        if count != 1 or not isinstance(tag, int):
            return False
        if not self.wakeups.answer(self, lsn, socket, frames.basic_ack(self.number, tag, multiple=False)):
            return False
        self._answered = waiting.popleft()
        return True

    def answered(self, sent_bytes: int) -> None:
        """The store has sent so many bytes of the confirm; -1: none, and the confirm waits at the gate again."""
        self.connection.answerer = None
        if sent_bytes < 0:
            self._at_gate().appendleft(self._answered)
            self.wakeups.await_commit(self)
            return
        self._gate_holds(0, -HELD_BYTES)
        _, tag, _ = self._answered
        assert isinstance(tag, int)
        answer = frames.basic_ack(self.number, tag, multiple=False)
        if sent_bytes < len(answer):
            self.connection.send_rest(answer[sent_bytes:])

    def take_lone(self, data: bytes) -> bool:
        """Take a publish whose confirm makes way for nothing: the last one was left with the store, and none waits.

        False, and nothing is done, if it must be handled in the usual way.
        """
        if not self.is_open or self.held is not None or self._waiting or self._stream is not None:
            return False
        return self.publishing.take_lone(data)

    def published_lone(self, lsn: int, tag: int) -> None:
        """The confirm of a publish was left with the store in place of the last one; not if the LSN is negative."""
        if lsn > 0:
            self._answered = (lsn, tag, 1)
            self.changed_until(lsn)
        else:
            self.wakeups.recall()
            self.changed_until(-lsn)
            self.confirm(tag)

    def _at_gate(self) -> collections.deque[tuple[int, bytes | int | Callable[[], int | None], int]]:
        if self._waiting is None:
            self._waiting = collections.deque()
        return self._waiting

    def _hold(self, item: bytes | Callable[[], int | None]) -> None:
        self._at_gate().append((self.gate_lsn, item, 0))
        self._gate_holds(1, _size_of(item))
        self.wakeups.await_commit(self)

    def _gate_holds(self, count: int, size: int) -> None:
        self._replies_held += count
        self._gate_bytes += size
        self.connection.replies.hold(count, size)

    @property
    def waits(self) -> bool:
        """Whether something waits at the gate."""
        return bool(self._waiting) or self._stream is not None

    def settle(self, durable_lsn: int) -> bool:
        """Send everything that is durable now. True while something still waits."""
        if self._changed:
            self._gate_lsn, self._changed = self.store.next_lsn, False
        waiting = self._waiting
        held_before = self._replies_held
        tag = count = confirms = 0
        while self._goes_on() and waiting and waiting[0][0] <= durable_lsn:
            if callable(waiting[0][1]) and self.is_open and not self.connection.has_room(self):
                break  # it makes a reply with a content: it waits until there is room for that
            _, item, confirmed = waiting.popleft()
            if isinstance(item, int):
                tag = item
                count += confirmed
                confirms += 1
                continue
            if count:
                self._send_ack(tag, count)
                count = 0
            self._gate_holds(-1, -_size_of(item))
            if isinstance(item, bytes):
                self.connection.send(item)
                continue
            if not self.is_open:
                continue  # the channel is closed, so there is no receiver for the result
            later_lsn = self.connection.guarded(self, commands.Basic.Get.index, item)
            if later_lsn is not None and self.is_open:
                waiting.appendleft((later_lsn, item, 0))
                self._gate_holds(1, HELD_BYTES)
                break
        if count:
            self._send_ack(tag, count)
        if confirms:
            self._gate_holds(0, -confirms * HELD_BYTES)
        if held_before and not self._replies_held and self.is_open:
            self.consuming.wake()
        return bool(waiting)

    def _goes_on(self) -> bool:
        """Whether no body is being sent; the next piece of one is sent if there is room."""
        if self._stream is None:
            return True
        if not self._stream.send_next():
            return False
        self._stream = None
        self._gate_holds(-1, -HELD_BYTES)
        return True

    def _send_ack(self, tag: int, count: int) -> None:
        self.connection.send(frames.basic_ack(self.number, tag, multiple=count > 1))

    def forget_replies(self) -> None:
        """Drop all replies: the connection ends with an exception, which must be the last method."""
        self._waiting = None
        if self._stream is not None:
            self._stream.forget()
            self._stream = None
        self._gate_holds(-self._replies_held, -self._gate_bytes)

    def can_deliver(self) -> bool:
        """True while consumers of this channel may get messages."""
        return self.is_open and self.flowing and not self._replies_held and self.connection.can_deliver()

    # Its end.

    def fail(self, error: ChannelException, index: int) -> None:
        """Close the channel because of an exception; later frames of the client on it are ignored."""
        if not self.is_open:
            return
        logger.debug("channel %d of %s: %s", self.number, self.connection, error)
        self.give_up()
        self.reply(commands.Channel.Close(error.code, error.reply_text, index >> 16 & 0xFFFF, index & 0xFFFF))

    def give_up(self) -> None:
        """Stop consuming and publishing; unacknowledged messages return to their queues, in order."""
        if self.is_open:
            self.is_open = False
            self.publishing.abandon()
            if self.tx is not None:
                self.tx.rollback()
            if self._stream is not None:
                self._stream.leave()
            self.consuming.close()
