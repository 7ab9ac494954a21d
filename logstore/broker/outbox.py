"""The unsent output of one connection: collected for one turn of the event loop, and counted.

Consumers wait while `unsent_bytes_high` is exceeded here or in the socket's buffer. When there is room
again, they are woken.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from logstore.broker.turns import Turns


class Outbox:
    """The frames to be sent to one socket."""

    def __init__(self, turns: Turns, flush: Callable[[], None], unsent_bytes_high: int) -> None:
        self._turns = turns
        self._flush = flush
        self._unsent_bytes_high = unsent_bytes_high
        self._parts: list[bytes | memoryview] = []
        self._flush_scheduled = False
        self._starved = False  # a consumer was refused room in `_parts`
        self.size_bytes = 0
        self.added_bytes = 0  # ever
        self.socket_is_full = False

    def add(self, data: bytes) -> None:
        """Send bytes in this turn of the loop."""
        size_bytes = len(data)
        self._parts.append(data)
        self.size_bytes += size_bytes
        self.added_bytes += size_bytes
        if not self._flush_scheduled:
            self.schedule()

    def add_all(self, parts: list[bytes | memoryview]) -> None:
        """Send several pieces that belong together."""
        self._parts += parts
        self._added(sum(map(len, parts)))

    def room_bytes(self) -> int:
        """The number of bytes that may be added."""
        return 0 if self.socket_is_full else max(0, self._unsent_bytes_high - self.size_bytes)

    def starve(self) -> None:
        """Note that a consumer had more to send; it is woken when there is room."""
        self._starved = True

    def add_sized(self, parts: list[bytes | memoryview], size_bytes: int) -> None:
        """Send pieces with `size_bytes` bytes in total."""
        self._parts += parts
        self._added(size_bytes)

    def _added(self, size_bytes: int) -> None:
        self.size_bytes += size_bytes
        self.added_bytes += size_bytes
        self.schedule()

    def schedule(self) -> None:
        """Schedule a flush of the connection at the end of this turn."""
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._turns.at_end(self._flush)

    def will_be_flushed(self) -> None:
        """The caller flushes the connection at its end, so what it adds schedules nothing."""
        self._flush_scheduled = True

    def has_room(self) -> bool:
        """True while more may be delivered. After False, consumers are woken when there is room."""
        if self.size_bytes >= self._unsent_bytes_high:
            self._starved = True
            return False
        return not self.socket_is_full

    def take(self) -> list[bytes | memoryview]:
        """Return and clear everything collected."""
        self._flush_scheduled = False
        parts, self._parts = self._parts, []
        self.size_bytes = 0
        return parts

    def was_starved(self) -> bool:
        """True, once, if a consumer was refused room and there is room now."""
        if self._starved and not self.socket_is_full:
            self._starved = False
            return True
        return False
