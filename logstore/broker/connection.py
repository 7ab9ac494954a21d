"""One client connection: its life, its methods, and what it sends, within the limits.

`receiving` reads what the client sends, and handles it in turns. Output is collected for one turn of the event loop.
Consumers of this connection get no messages while too many bytes wait for the socket (`outbox`).

Invariant: no bytes that a peer sends cause a traceback or a hang. Every exception while a frame is
handled goes to `on_error`, which closes the channel or the connection.
"""

from __future__ import annotations

import asyncio
import collections
import logging
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from pamqp import commands

from logstore.broker import frames
from logstore.broker.batches import Batches
from logstore.broker.dispatch import State, dispatch
from logstore.broker.errors import (
    CONNECTION_FORCED,
    INTERNAL_ERROR,
    RESOURCE_ERROR,
    STORE_ENDED,
    ChannelException,
    ConnectionException,
    precondition_failed,
    short_text,
)
from logstore.broker.handshake import Handshake
from logstore.broker.heartbeats import Heartbeats
from logstore.broker.holdings import Holdings
from logstore.broker.outbox import SOCKET_BYTES, Outbox
from logstore.broker.receiving import Pause, Receiving
from logstore.broker.relay import Relay
from logstore.broker.replies import Replies
from logstore.broker.runs import Runs
from logstore.broker.users import address_of
from logstore.errors import CatalogOvertaken, OptionError, StoreError, StoreFull

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from pamqp import base

    from logstore.broker.channel import Channel
    from logstore.broker.elsewhere import Leader
    from logstore.broker.host import Host
    from logstore.broker.relay import Handover
    from logstore.broker.server import Server

logger = logging.getLogger(__name__)

T = TypeVar("T")

# Constants of the module, because looking up a member of an enumeration takes longer than comparing with it.
_OPENING: Final = State.OPENING
_OPEN: Final = State.OPEN
_CLOSED: Final = State.CLOSED
_DONE: Final = (State.RELAYED, State.CLOSED)  # nothing that was received is handled


class Connection(asyncio.Protocol):
    """The broker's side of one connection."""

    transport: asyncio.Transport
    host: Host  # from connection.open on; `vhost_name` says whether there is one

    def __init__(self, server: Server, handover: Handover | None = None) -> None:
        """`handover`: another member relays it, and has done the handshake."""
        self.server = server
        self.handover = handover
        self.relay: Relay | None = None  # to the member that leads the host
        self.limits = server.limits
        self.loop = server.loop
        self.turns = server.turns
        self.state = State.OPENING
        self.peer: Any = None
        self.user: str | None = None
        self.vhost_name: str | None = None
        self.admitted = False  # counted by the server
        self.connected_at = self.loop.time()
        self.blocked_at: float | None = None  # since when the client has not read what waits for it
        self._counts_socket = False  # as the socket's buffer has more than a few KiB
        self.wants_cancel_notice = False
        self.wants_blocked_notice = False
        self.is_told_blocked = False
        self.has_published = False  # and maybe waits for the host
        self.prefetch_is_shared = False  # by the channel's consumers, also for basic.qos with global=false
        self.frame_bytes_max = self.limits.frame_bytes_max
        self.channels_max = self.limits.channels_max
        self.channels: dict[int, Channel] = {}
        self.heartbeats = Heartbeats(self)
        self.receiving = Receiving(self)
        self.runs = Runs()
        self.handshake = Handshake(self)
        self.published = False  # to the store, since the undurable bytes were last checked
        self.batches = Batches(self)
        self._task: asyncio.Task[None] | None = None
        self.replies = Replies(self, server.budget.output)
        self.holdings = Holdings(self)
        self.outbox = Outbox(self.turns, self, self.flush, self.limits.unsent_bytes_high, server.budget.output)
        self.answerer: Channel | None = None  # whose confirm for its client the store has
        self.has_written = False  # maybe in this turn of the loop
        self._notes_writes = False
        self.socket = -1
        self._touched: dict[Channel, None] = {}
        self._wanting_room: dict[Channel, None] = {}  # channels with a body to send, also such as are closed
        self._close_ok_lsn: int | None = None  # answer the client's connection.close when this is durable
        self._timer: asyncio.TimerHandle | None = None  # for the end
        self._gone: asyncio.Future[None] = self.loop.create_future()

    def __str__(self) -> str:
        return f"connection {self.peer_text}"

    @property
    def peer_text(self) -> str:
        """The client's address and port as one text."""
        try:
            host, port = self.peer[:2]
        except (TypeError, ValueError):
            return str(self.peer)
        return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"

    @property
    def address(self) -> str:
        """The client's address without the port."""
        return address_of(self.peer)

    # Called by the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        self.transport = cast("asyncio.Transport", transport)
        self.peer = transport.get_extra_info("peername") if self.handover is None else self.handover.peer
        self.transport.set_write_buffer_limits(high=min(SOCKET_BYTES, self.limits.unsent_bytes_high), low=0)
        made = transport.get_extra_info("socket") if self.handover is None else None
        self.socket = -1 if made is None else made.fileno()
        self.holdings.begin()
        if not self.server.connection_made(self):
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended: release everything that it held."""
        logger.debug("%s is gone: %s", self, exc)
        self.recall()
        self.state = State.CLOSED
        self._cancel_timer()
        if self._task is not None and self.handshake.checks_password:
            self._task.cancel()  # nobody waits for the check any more
        self.heartbeats.stop()
        self.receiving.end()
        self._give_up()
        self.replies.end()
        self.outbox.close()
        self.holdings.end()
        self.server.connection_lost(self)
        if not self._gone.done():
            self._gone.set_result(None)

    def data_received(self, data: bytes) -> None:
        """Bytes from the client."""
        self.heartbeats.received()
        if self.state is not _OPEN:
            if self.state is _OPENING:
                self.server.admission.handshakes.heard(self)
            if self.handshake.wants_header:
                data = self.handshake.on_header(data)
                if not data:
                    return
            if self.state is State.CLOSING and self.receiving.reader.error and data.endswith(frames.CLOSE_OK_FRAME):
                # Frames can no longer be separated, but these bytes are the answer to our close.
                self.shut()
                return
        self.receiving.put(data)

    def pause_writing(self) -> None:
        """The socket's buffer has more than a few KiB: they are counted."""
        self._counts_socket = True
        self.outbox.socket_has(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """The socket's buffer is empty."""
        self._counts_socket = False
        self.outbox.socket_has(0)
        self.blocked_at = None
        self.wake_consumers()
        self.receiving.resume(Pause.UNSENT)

    # Methods.

    def handle(self, kind: int, number: int, payload: bytes) -> None:
        """Handle a frame by itself. An exception closes the channel or the connection."""
        if self.state is State.CLOSED:
            return
        index = frames.method_index(payload) if kind == frames.METHOD and len(payload) >= 4 else 0
        channel = self.channels.get(number) if number else None
        try:
            dispatch(self, channel, kind, number, index, payload)
        except Exception as error:  # noqa: BLE001 - on_error distinguishes all kinds
            self.on_error(channel, index, error)

    def guarded(self, channel: Channel | None, index: int, call: Callable[[], T]) -> T | None:
        """Make a call for a client. An exception closes the channel or the connection."""
        try:
            return call()
        except Exception as error:  # noqa: BLE001 - on_error distinguishes all kinds
            self.on_error(channel, index, error)
            return None

    def on_error(self, channel: Channel | None, index: int, error: Exception) -> None:
        """Close the channel or the connection because of an exception, or stop the broker if the store failed."""
        self.batches.flush()  # earlier frames take effect first
        if isinstance(error, ChannelException) and channel is not None:
            channel.fail(error, index)
        elif isinstance(error, ChannelException | ConnectionException):
            self.fail(error, index)
        elif isinstance(error, STORE_ENDED) and self.vhost_name is not None:
            self.server.on_poison(self.host, error)
        elif isinstance(error, OptionError) and channel is not None:
            channel.fail(precondition_failed(str(error)), index)  # for example a name that the catalog cannot store
        elif isinstance(error, StoreError) and channel is not None:
            if isinstance(error, CatalogOvertaken):
                logger.error("%s; declarations fail until this broker is restarted", error)
            elif not isinstance(error, StoreFull):  # the server logs once that the store is full
                logger.warning("%s: %s", self, error)
            channel.fail(ChannelException(RESOURCE_ERROR, str(error)), index)
        else:
            logger.error("%s: method %#010x failed", self, index, exc_info=error)
            self.fail(ConnectionException(INTERNAL_ERROR, "the broker failed; see its log"), index)

    # Slow methods, which run in tasks.

    def suspend(self, channel: Channel | None, index: int, work: Coroutine[Any, Any, None]) -> None:
        """Run a method in a task; nothing is read and no frame is handled until it ends."""
        self.receiving.pause(Pause.TASK)
        self._task = self.loop.create_task(self._finish(channel, index, work))

    async def _finish(self, channel: Channel | None, index: int, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:  # noqa: BLE001 - the callee distinguishes all kinds
            self.on_error(channel, index, error)
        finally:
            self._task = None
            self.receiving.resume(Pause.TASK)

    def suspend_channel(self, channel: Channel, index: int, work: Coroutine[Any, Any, None]) -> None:
        """Run a method, or write a piece of a body, in a task; only later frames on its channel wait for its end."""
        channel.held = collections.deque()
        channel.work = self.loop.create_task(self._finish_on_channel(channel, index, work))
        if not channel.publishing.expects_content:  # a broker that stops does not wait for bodies
            self.host.vhost.changes.keep(channel.work)

    async def _finish_on_channel(self, channel: Channel, index: int, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:  # noqa: BLE001 - the callee distinguishes all kinds
            self.on_error(channel, index, error)
        finally:
            held, channel.held = channel.held or (), None
            self.receiving.release_held(held)

    @property
    def is_over(self) -> bool:
        """The store of its host can be used no longer, and the close of the connection, with the reason, comes soon.

        Until then nothing is handled and nothing is sent: what the store refused is unknown to the client, and an
        answer to a later method would say that it took effect.
        """
        return self.state is _OPEN and self.host.poison is not None

    @property
    def has_given_up(self) -> bool:
        """True when everything that it held has been released."""
        return self.state in (State.CLOSING, State.CLOSED)

    @property
    def waits_for(self) -> str | None:
        """The cause of a wait; None: it does not wait.

        "client" (it does not read), "space" (its publishes need room in the log), "disk" or "majority" (its publishes
        are not durable), "memory" (for its contents) or "method" (a slow one).
        """
        if self.outbox.socket_is_full:
            return "client"
        if self.state is State.OPEN and self.host.space.waits(self):
            return "space"
        pauses = self.receiving.pauses
        if pauses & Pause.UNDURABLE or self.waits_since is not None:
            return self.host.blocking.cause
        if pauses & Pause.MEMORY:
            return "memory"
        return "method" if pauses & (Pause.TASK | Pause.HELD) else None

    @property
    def waits_since(self) -> float | None:
        """Since when it waits for room, or of the oldest publish for which its host is slow; None: it does not wait."""
        if self.state is not State.OPEN or not self.has_published:
            return None
        since = self.host.space.waits_since(self)
        return self.host.blocking.since if since is None else since

    def may_wait_for_space(self) -> bool:
        """Whether a publish that the store has just refused as it is full is kept, and tried again."""
        return self.host.space.may_wait(self)

    # Sending.

    def can_deliver(self) -> bool:
        """True while consumers of this connection may get messages."""
        return self.outbox.has_room() and self.state is State.OPEN and self.host.poison is None

    def send(self, data: bytes) -> None:
        """Send bytes in this turn of the loop."""
        if not self.is_over:
            self.outbox.add(data)

    def send_all(self, parts: list[bytes | memoryview]) -> None:
        """Send several pieces that belong together."""
        if not self.is_over:
            self.outbox.add_all(parts)

    def tell_blocked(self, reason: str) -> None:
        """Send connection.blocked, once, to a client that understands it."""
        if self.wants_blocked_notice and not self.is_told_blocked and self.state is State.OPEN:
            self.is_told_blocked = True
            self.reply(commands.Connection.Blocked(short_text(reason)))

    def tell_unblocked(self) -> None:
        """Send connection.unblocked if connection.blocked was sent, and nothing else blocks the connection."""
        if not self.is_told_blocked or self.state is not State.OPEN:
            return
        if self.host.blocked_reason is None and not self.host.space.waits(self):
            self.is_told_blocked = False
            self.reply(commands.Connection.Unblocked())

    def touch(self, channel: Channel) -> None:
        """Settle the channel's gate at the end of this turn."""
        self._touched[channel] = None
        self.outbox.schedule()

    def has_room(self, channel: Channel) -> bool:
        """Whether a channel may send a body, or a part of one; if not, its gate is settled when there is room."""
        if self.outbox.has_room():
            return True
        self._wanting_room[channel] = None
        return False

    def takes_piece(self, channel: Channel) -> bool:
        """Whether a channel may send a piece that was read for it; if not, its gate is settled when there is room."""
        if self.outbox.takes_piece:
            return True
        self._wanting_room[channel] = None
        return False

    def has_bytes(self) -> None:
        """The broker's share for output has bytes again."""
        if self.outbox.was_starved():
            self.wake_consumers()
        elif not self.has_given_up:
            self.outbox.has_room()  # waits on

    def flush(self) -> None:
        """Settle the gates of changed channels, and write the collected output to the socket."""
        while self._touched:
            touched, self._touched = self._touched, {}
            wakeups = self.host.wakeups
            for channel in touched:
                if channel.settle(wakeups.settled_lsn):
                    wakeups.await_commit(channel)
        parts = self.outbox.take()
        if not parts or self.state is _CLOSED or self.transport.is_closing():
            return
        if self.answerer is not None:
            self.recall()
        self.heartbeats.sent()
        self.has_written = True
        if self._notes_writes:
            self._notes_writes = False
            self.loop.call_soon(self._have_written)
        if len(parts) == 1:
            self.transport.write(parts[0])
        else:
            self.transport.writelines(parts)
        outbox = self.outbox
        if self._counts_socket:
            outbox.socket_has(self.transport.get_write_buffer_size())
            if outbox.exceeds(self.limits.unsent_bytes_max):
                self.receiving.pause(Pause.UNSENT)
            if self.blocked_at is None and outbox.socket_is_full:
                self.blocked_at = self.loop.time()
        if outbox.was_starved():
            self.wake_consumers()

    def _have_written(self) -> None:
        """The loop has passed on what was written to the transport."""
        self.has_written = False

    def leave_confirm(self, channel: Channel) -> None:
        """Leave the confirm of a client that waits for it with the store, if there is nothing else to do for it.

        Nothing that was written before may wait in the transport.
        """
        if self.has_written:
            self._notes_writes = True
        elif self.socket >= 0 and not self._touched and not self.transport.get_write_buffer_size():
            self.answerer = channel if channel.leave_confirm(self.socket) else None

    def send_rest(self, data: bytes) -> None:
        """Send the rest of a frame of which the store has sent a part, before everything else."""
        if not self.transport.is_closing():
            self.transport.write(data)

    def wake_consumers(self) -> None:
        """There is room for deliveries: wake the queues with consumers on this connection, and go on with bodies."""
        for channel in self.channels.values():
            if channel.is_open:
                channel.consuming.wake()
        wanting, self._wanting_room = self._wanting_room, {}
        for channel in wanting:
            self.touch(channel)

    # The end.

    def opened(self, host: Host) -> None:
        """The handshake is complete: the connection belongs to this host until it ends."""
        logger.debug("%s: user %r has opened vhost %r", self, self.user, host.name)
        self.host = host
        self.vhost_name = host.name
        self.state = State.OPEN
        self.receiving.reader.runs = self.runs

    def relay_to(
        self, name: str, leader: Leader, upstream: asyncio.Transport, upstream_gone: Callable[[], object]
    ) -> None:
        """The handshake is complete, and another member leads the host: bytes are passed on from now on."""
        logger.debug("%s: user %r has opened vhost %r, which %s leads", self, self.user, name, leader.name)
        self.heartbeats.stop()  # those of the leader and of the client pass
        self.state = State.RELAYED
        pending = self.receiving.hand_over()  # to the relay
        self.relay = Relay(self, name, leader, upstream, upstream_gone)
        self.relay.start(pending)

    def fail(self, error: ChannelException | ConnectionException, index: int) -> None:
        """Close the connection because of an exception, or because the broker stops."""
        if self.relay is not None:
            self.relay.end(ConnectionException(error.code, error.text))
            return
        if self.state in (State.CLOSING, State.CLOSED):
            return
        if self.state is State.OPENING and error.code != CONNECTION_FORCED:
            logger.warning("login from %s refused: %s", self.peer_text, error)
        else:
            logger.debug("%s: %s", self, error)
        self.recall()
        self._give_up()
        for channel in self.channels.values():
            channel.forget_replies()
        self._touched.clear()
        close = commands.Connection.Close(error.code, error.reply_text, index >> 16 & 0xFFFF, index & 0xFFFF)
        self.state = State.CLOSING
        self.send(frames.method(0, close))
        self._abort_later()
        self.flush()
        self.receiving.only_close()

    def on_client_close(self) -> None:
        """End everything after the client's connection.close; the answer waits until all is durable."""
        self.recall()
        lsn = max((channel.gate_lsn for channel in self.channels.values()), default=0)
        self._give_up()
        self.state = State.CLOSING
        self._close_ok_lsn = lsn
        self._abort_later()
        if self.vhost_name is None:
            self.settle(0)
        elif self.settle(self.host.wakeups.settled_lsn):
            self.host.wakeups.await_commit(self)

    def settle(self, durable_lsn: int) -> bool:
        """After a group commit: answer the client's close when everything before it is durable."""
        if self._close_ok_lsn is None:
            return False
        if durable_lsn < self._close_ok_lsn:
            return True
        self._close_ok_lsn = None
        self.settle_all()  # the report of the commit may still be on its way
        self.send(frames.method(0, commands.Connection.CloseOk()))
        self.shut()
        return False

    def shut(self) -> None:
        """Send the remaining output, then close the socket."""
        self.flush()
        self.state = State.CLOSED
        self._abort_later()
        self.transport.close()

    def recall(self) -> None:
        """Take a confirm back from the store."""
        if self.answerer is not None:
            self.host.wakeups.recall()

    def _give_up(self) -> None:
        self.batches.flush()
        channels = list(self.channels.values())
        for channel in channels:
            self.guarded(None, 0, channel.give_up)
        if self.vhost_name is not None:
            self.host.space.forget(self)
            self.guarded(None, 0, lambda: self.host.vhost.connection_gone(self))
        if self.state is State.CLOSED:
            self.channels.clear()

    def _abort_later(self) -> None:
        """The end is awaited, for `close_s` seconds."""
        self._cancel_timer()
        self._timer = self.loop.call_later(self.limits.close_s, self.transport.abort)
        self.server.admission.handshakes.closes(self)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def settle_all(self) -> None:
        """Send every reply and confirm that is durable."""
        self.recall()
        for channel in self.channels.values():
            channel.settle(self.host.wakeups.settled_lsn)
        self.flush()

    def is_gone(self) -> asyncio.Future[None]:
        """A future that is done when the connection has ended."""
        return self._gone

    def reply(self, method: base.Frame) -> None:
        """Send a method on channel 0."""
        self.send(frames.method(0, method))
