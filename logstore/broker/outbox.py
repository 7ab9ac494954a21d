"""The unsent output of one connection: collected for one turn of the event loop, and counted.

Counted are the bytes collected here, those in the socket's buffer beyond a few KiB (`SOCKET_BYTES`), and the pieces
of large bodies that are read for it. Consumers wait while that exceeds `unsent_bytes_high`, or as much as is free in
the broker's share for output. When there is room again, they are woken.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from logstore.broker.memory import Share, Waits
    from logstore.broker.turns import Turns

SOCKET_BYTES: Final = 32 * 1024  # in the socket's buffer; what is beyond is counted until the buffer is empty


class Outbox:
    """The frames to be sent to one socket."""

    def __init__(
        self,
        turns: Turns,
        owner: Waits,
        flush: Callable[[], None],
        unsent_bytes_high: int,
        share: Share,
    ) -> None:
        """`owner` is told when the share has bytes again; `flush` writes the output to the socket."""
        self._turns = turns
        self._owner = owner
        self._flush = flush
        self._unsent_bytes_high = unsent_bytes_high
        self._share = share
        self._parts: list[bytes | memoryview] = []
        self._flush_scheduled = False
        self._starved = False  # a consumer was refused room
        self._socket_bytes = 0  # in the socket's buffer, while it has more than `SOCKET_BYTES`
        self._read_bytes = 0  # of pieces that are read for deliveries, and not sent yet
        self.size_bytes = 0
        self.added_bytes = 0  # ever

    @property
    def held_bytes(self) -> int:
        """The bytes that are counted for this connection."""
        return self.size_bytes + self._socket_bytes + self._read_bytes

    def add(self, data: bytes) -> None:
        """Send bytes in this turn of the loop."""
        size_bytes = len(data)
        self._parts.append(data)
        self.size_bytes += size_bytes
        self.added_bytes += size_bytes
        self._share.used_bytes += size_bytes
        if not self._flush_scheduled:
            self.schedule()

    def add_all(self, parts: list[bytes | memoryview]) -> None:
        """Send several pieces that belong together."""
        self._parts += parts
        self._added(sum(map(len, parts)))

    def add_sized(self, parts: list[bytes | memoryview], size_bytes: int) -> None:
        """Send pieces with `size_bytes` bytes in total."""
        self._parts += parts
        self._added(size_bytes)

    def _added(self, size_bytes: int) -> None:
        self.size_bytes += size_bytes
        self.added_bytes += size_bytes
        self._share.used_bytes += size_bytes
        self.schedule()

    def schedule(self) -> None:
        """Schedule a flush of the connection at the end of this turn."""
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._turns.at_end(self._flush)

    def will_be_flushed(self) -> None:
        """The caller flushes the connection at its end, so what it adds schedules nothing."""
        self._flush_scheduled = True

    def take(self) -> list[bytes | memoryview]:
        """Return and clear everything collected."""
        self._flush_scheduled = False
        parts, self._parts = self._parts, []
        self._share.give_back(self.size_bytes)
        self.size_bytes = 0
        return parts

    # Room.

    def room_bytes(self) -> int:
        """The number of bytes that may be added."""
        share, held = self._share, self.size_bytes + self._socket_bytes + self._read_bytes
        room, free = self._unsent_bytes_high - held, share.bytes_max - share.used_bytes - held
        if free < room and share.used_bytes:
            room = free
        return max(0, room)

    def has_room(self) -> bool:
        """True while more may be delivered. After False, consumers are woken when there is room."""
        if self.room_bytes():
            return True
        self.starve()
        return False

    def starve(self) -> None:
        """Note that a consumer had more to send; it is woken when there is room."""
        self._starved = True
        if self.held_bytes < self._unsent_bytes_high:
            self._share.await_bytes(self._owner)

    def was_starved(self) -> bool:
        """True, once, if a consumer was refused room and there is room now."""
        if self._starved and self.room_bytes():
            self._starved = False
            return True
        return False

    # Pieces that are read from the log.

    @property
    def takes_piece(self) -> bool:
        """Whether a piece that is read may be sent: it is counted already, so only the client matters."""
        return self.size_bytes + self._socket_bytes < self._unsent_bytes_high

    def reads(self, size: int) -> None:
        """Count a piece that is being read."""
        self._read_bytes += size
        self._share.add(size)

    def has_read(self, size: int) -> None:
        """The piece is about to be added, or is not sent."""
        size = min(size, self._read_bytes)  # 0 after `close`
        self._read_bytes -= size
        self._share.give_back(size)

    # The socket.

    @property
    def socket_is_full(self) -> bool:
        """Whether the client has to read before consumers get more."""
        return self._socket_bytes > 0 and not self.room_bytes()

    @property
    def socket_bytes(self) -> int:
        """The bytes in the socket's buffer; 0 while they are few."""
        return self._socket_bytes

    def socket_has(self, size_bytes: int) -> None:
        """Count so many bytes in the socket's buffer."""
        more, self._socket_bytes = size_bytes - self._socket_bytes, size_bytes
        if more > 0:
            self._share.add(more)
        else:
            self._share.give_back(-more)

    def exceeds(self, bytes_max: int) -> bool:
        """Whether the socket's buffer has more than these bytes, or than this connection's part of the share."""
        return self._socket_bytes > bytes_max or not self._share.fits(self._socket_bytes)

    def close(self) -> None:
        """The connection has ended."""
        self.take()
        self.socket_has(0)
        self.has_read(self._read_bytes)
        self._share.forget(self._owner)
