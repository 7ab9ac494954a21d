"""Reading from one connection: what was received, its turns, and the pauses in which nothing is read.

Reading stops while any `Pause` is set, and what was received waits: bytes in the `reader`, frames in `_backlog`. So
the order on a connection is kept, and no client can make the broker hold more than the limits allow. The frames are
made and handled in turns (`turns`); reading stops, too, while the connection waits for its next turn.

Invariant: nothing that was received is handled while a pause is set, and every pause is ended by the event for which
it was set, or by the end of the connection.
"""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Final

from pamqp import commands

from logstore.broker import frames
from logstore.broker.dispatch import State
from logstore.broker.limits import FRAME_BYTES_BEFORE_TUNE
from logstore.broker.runs import PublishRun
from logstore.broker.turns import TURN_UNITS, UNIT_BYTES
from logstore.broker.wakeups import ANY_PERCENT, PUBLISH_PERCENT

if TYPE_CHECKING:
    from collections.abc import Iterable

    from logstore.broker.connection import Connection

# Constants of the module, because looking up a member of an enumeration takes longer than comparing with it.
_OPEN: Final = State.OPEN
_DONE: Final = (State.RELAYED, State.CLOSED)  # nothing that was received is handled
_COMMIT: Final = commands.Tx.Commit.index.to_bytes(4, "big")
_PUBLISHES: Final = (frames.PUBLISH_START, _COMMIT)

HELD_FRAME_BYTES: Final = 128  # memory of a held frame in addition to its payload


class Pause:
    """Why nothing is read from a connection: bits of an int, as the operators of an enumeration are calls."""

    TASK: Final = 1  # one of its methods is still in progress
    UNSENT: Final = 2  # the client does not read fast enough
    UNDURABLE: Final = 4  # the disk is slower than its publishing
    STOPPING: Final = 8  # the broker ends
    HELD: Final = 16  # too many frames wait for the end of a slow method
    REPLIES: Final = 32  # too many replies wait at the gates of its channels
    SPACE: Final = 64  # its next frame publishes, and the log has little room
    MEMORY: Final = 128  # its unfinished contents have more than its part of the memory for such


class Receiving:
    """The receiving half of a connection."""

    __slots__ = (
        "_backlog",
        "_connection",
        "_held_bytes",
        "_limits",
        "_reading",
        "_received_bytes",
        "_turns",
        "_waits_for_turn",
        "pauses",
        "reader",
    )

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._limits = connection.limits
        self._turns = connection.turns
        self.reader = frames.FrameReader(min(FRAME_BYTES_BEFORE_TUNE, self._limits.frame_bytes_max))
        self.pauses = 0  # bits of `Pause`
        self._backlog: collections.deque[frames.Received] = collections.deque()
        self._waits_for_turn = False
        self._reading = True
        self._held_bytes = 0  # of frames on channels that wait for a slow method
        self._received_bytes = 0  # at once, the last time

    def put(self, data: bytes) -> None:
        """Handle received bytes, now or in a later turn."""
        self._received_bytes = len(data)
        if self._connection.answerer is not None and self._take_lone(data):
            return
        self.reader.put(data)
        if not (self.pauses or self._waits_for_turn or self._connection.state in _DONE):
            self._turns.at_once(self)

    def _take_lone(self, data: bytes) -> bool:
        """Handle a publish of a client that waits for each confirm. False: nothing is done."""
        turns, answerer = self._turns, self._connection.answerer
        if self.pauses or self._waits_for_turn or not turns.has_units or self.reader.held_bytes:
            return False
        if answerer is None or not answerer.take_lone(data):
            return False
        self._pause_while_undurable()
        turns.took(1 + len(data) // UNIT_BYTES)
        return True

    # Turns.

    def go_on(self) -> None:
        """Handle what was received, from the next turn on, unless there is a pause."""
        if not (self.pauses or self._waits_for_turn or self._connection.state in _DONE):
            self._wait_for_turn()

    def _wait_for_turn(self) -> None:
        self._waits_for_turn = True
        self._stop_reading()
        self._turns.add(self)

    def take_turn(self) -> int:
        """Handle what was received: as much as a turn allows. Returns the units."""
        connection = self._connection
        self._waits_for_turn = False
        pauses = self.pauses
        if pauses or connection.state in _DONE:
            return 0
        if connection.answerer is not None:
            connection.recall()
        if connection.holdings.waiting_bytes:
            connection.holdings.count_waiting(0)
        received, units = self._next_received() if self._backlog else self.reader.take(TURN_UNITS)
        outbox = connection.outbox
        sent_before = outbox.added_bytes
        outbox.will_be_flushed()
        try:
            self._handle_all(received)
        finally:
            connection.flush()
        if connection.published:
            self._pause_while_undurable()
            if units == 1 and outbox.added_bytes == sent_before and not self.pauses:
                run = received[0]
                if isinstance(run, PublishRun):
                    connection.leave_confirm(connection.channels[run.channel])
        units += (outbox.added_bytes - sent_before) // UNIT_BYTES
        if not self.pauses and connection.state not in _DONE:
            if self._backlog or self.reader.has_more:
                self._wait_for_turn()
            elif not self._reading:
                self._read_on()
        elif self.pauses:
            connection.holdings.count_waiting(self._received_bytes if self._backlog else self.reader.held_bytes)
        return units

    def _next_received(self) -> tuple[list[frames.Received], int]:
        received: list[frames.Received] = []
        units = 0
        while self._backlog and units < TURN_UNITS:
            each = self._backlog.popleft()
            units += 1 + len(each[2]) // UNIT_BYTES if isinstance(each, tuple) else (each.count + 1) // 2
            received.append(each)
        if units < TURN_UNITS:
            more, more_units = self.reader.take(TURN_UNITS - units)
            return received + more if received else more, units + more_units
        return received, units

    def _handle_all(self, received: list[frames.Received]) -> None:
        connection = self._connection
        batches = connection.batches
        at = 0
        is_open = connection.state is _OPEN
        room = connection.host.store.room_percent if is_open else 100
        is_short = is_open and connection.host.space.is_short
        while at < len(received):
            if room < PUBLISH_PERCENT and self._waits_for_room(received[at], room):
                self.pause(Pause.UNDURABLE)
                connection.host.wakeups.await_commit(self)
            elif is_short and self._waits_for_space(received[at]):
                self.pause(Pause.SPACE)
            if self.pauses:
                self._backlog.extendleft(reversed(received[at:]))
                break
            if connection.is_over:
                break
            taken = batches.collect(received, at) if connection.state is _OPEN else 0
            if taken:
                at += taken
                continue
            frame = received[at]
            if not isinstance(frame, tuple):
                received[at : at + 1] = frame.raw_frames()
                continue
            batches.flush()
            if batches.keeps:
                continue
            connection.handle(*frame)
            at += 1
            if connection.outbox.size_bytes > self._limits.unsent_bytes_max:
                connection.flush()
        batches.flush()
        if self.reader.error is not None and not self._backlog and not self.pauses:
            connection.fail(self.reader.error, 0)

    def _waits_for_room(self, item: frames.Received, room: int) -> bool:
        """Whether this item is not handled while the log has so little room."""
        connection = self._connection
        if connection.state is not _OPEN:
            return False
        publishes = _publishes(item)
        if publishes:
            connection.host.blocking.watch(connection)
        return publishes or room < ANY_PERCENT

    def _waits_for_space(self, item: frames.Received) -> bool:
        """Whether this item is not handled while the store is nearly full."""
        connection = self._connection
        if connection.state is not _OPEN or not _publishes(item):
            return False
        channel = connection.channels.get(item[1] if isinstance(item, tuple) else item.channel)
        if channel is None or not channel.is_open:
            return False
        is_commit = isinstance(item, tuple) and item[0] == frames.METHOD and item[2][:4] == _COMMIT
        if is_commit and (channel.tx is None or not channel.tx.publish_count):
            return False
        waits = connection.host.space.holds(connection)
        connection.host.blocking.watch(connection)
        return waits

    # Frames that wait behind a slow method.

    def hold(self, held: collections.deque[frames.RawFrame], frame: frames.RawFrame) -> None:
        """Keep a frame for a channel with a slow method, until that ends."""
        held.append(frame)
        self._count_held(HELD_FRAME_BYTES + len(frame[2]))
        if self._held_bytes > self._limits.unsent_bytes_high:
            self.pause(Pause.HELD)

    def take_held(self, held: collections.deque[frames.RawFrame]) -> None:
        """The slow method takes the first frame that waits behind it."""
        _, _, payload = held.popleft()
        self._count_held(-HELD_FRAME_BYTES - len(payload))

    def release_held(self, held: Iterable[frames.RawFrame]) -> None:
        """A slow method has ended: go on with the frames that waited behind it, before the backlog, which is later."""
        held = tuple(held)
        self._count_held(-sum(HELD_FRAME_BYTES + len(payload) for _, _, payload in held))
        if not self._connection.has_given_up:
            self._backlog.extendleft(reversed(held))
            self.pauses &= ~Pause.HELD
            self.go_on()

    def _count_held(self, size: int) -> None:
        self._held_bytes += size
        self._connection.holdings.count_held(size)

    # Pauses.

    @property
    def is_paused(self) -> bool:
        """True while nothing is read, so that the peer's heartbeats cannot be seen."""
        return bool(self.pauses) or self._waits_for_turn

    def pause(self, why: int) -> None:
        """Read and handle nothing until `resume`."""
        self.pauses |= why
        self._stop_reading()

    def resume(self, why: int) -> None:
        """End a pause, and go on in the next turn if there is no other one."""
        if self.pauses & why:
            self.pauses &= ~why
            self.go_on()

    def pause_for_memory(self) -> None:
        """Read nothing until there is memory for more of its contents."""
        self.pause(Pause.MEMORY)
        self._connection.holdings.await_bytes()

    def look_for_memory(self) -> None:
        """Memory for contents was given back."""
        connection = self._connection
        if connection.has_given_up or connection.server.arriving.may_read(connection):
            self.resume(Pause.MEMORY)
        else:
            connection.holdings.await_bytes()

    def _pause_while_undurable(self) -> None:
        # Only connections that publish have to wait for the disk.
        connection = self._connection
        connection.published = False
        host = connection.host
        host.space.published(connection)
        host.blocking.watch(connection)
        if host.store.next_lsn - host.store.durable_lsn > self._limits.undurable_bytes_max:
            self.pause(Pause.UNDURABLE)
            host.wakeups.await_commit(self)

    def settle(self, durable_lsn: int) -> bool:
        """After a group commit: read again, if enough is durable. True while it waits."""
        if self.pauses & Pause.UNDURABLE and not self._connection.has_given_up:
            store = self._connection.host.store
            is_full = store.next_lsn - durable_lsn > self._limits.undurable_bytes_max
            if is_full or store.room_percent < PUBLISH_PERCENT:
                return True
            self.resume(Pause.UNDURABLE)
        return False

    def _stop_reading(self) -> None:
        connection = self._connection
        if self._reading and not connection.transport.is_closing():
            self._reading = False
            connection.transport.pause_reading()
            if connection.state is State.OPENING:
                connection.server.admission.handshakes.wait_for_broker(connection)

    def _read_on(self) -> None:
        connection = self._connection
        if not connection.transport.is_closing():
            connection.heartbeats.received()  # the peer was silent because the broker did not read
            self._reading = True
            connection.transport.resume_reading()
            if connection.state is State.OPENING:
                connection.server.admission.handshakes.wait_for_client(connection)

    # The end.

    def only_close(self) -> None:
        """Earlier frames no longer matter, but the client's answer to connection.close must be read."""
        self._backlog.clear()
        self.pauses = 0
        self.go_on()

    def end(self) -> None:
        """Handle nothing any more."""
        self._backlog.clear()
        self._waits_for_turn = False
        self._turns.discard(self)

    def hand_over(self) -> bytes:
        """Another one reads the socket from now on. Returns what was received before and not handled."""
        rest = b"".join(frames.raw(each) for each in self._backlog if isinstance(each, tuple)) + self.reader.rest()
        self.end()
        self._reading = True
        return rest


def _publishes(item: frames.Received) -> bool:
    """Whether this item is a publish, a part of one, or a commit."""
    if not isinstance(item, tuple):
        return isinstance(item, PublishRun)
    kind, _, payload = item
    return kind in (frames.HEADER, frames.BODY) or (kind == frames.METHOD and payload[:4] in _PUBLISHES)
