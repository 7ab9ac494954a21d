"""The replies and confirms that wait at the gates of one connection's channels: counted, and limited.

Above the limits nothing is read from the connection (`Pause.REPLIES`), until half of them have left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from logstore.broker.dispatch import State
from logstore.broker.receiving import Pause

if TYPE_CHECKING:
    from logstore.broker.connection import Connection
    from logstore.broker.memory import Share

_CLOSED: Final = State.CLOSED

REPLIES_HELD_MAX: Final = 1024


class Replies:
    """The counts of one connection."""

    __slots__ = ("_bytes_max", "_connection", "_share", "count", "size_bytes")

    def __init__(self, connection: Connection, share: Share) -> None:
        self._connection = connection
        self._share = share
        self._bytes_max = connection.limits.unsent_bytes_max
        self.count = 0  # of replies
        self.size_bytes = 0  # of these, and of confirms

    @property
    def are_too_many(self) -> bool:
        """Whether nothing is read, acknowledgements neither, until replies have left the gates."""
        return bool(self._connection.receiving.pauses & Pause.REPLIES)

    def hold(self, count: int, size: int) -> None:
        """So many more replies, and bytes of replies and confirms, wait at the gate of a channel, or fewer."""
        connection, share = self._connection, self._share
        if connection.state is _CLOSED:
            return
        self.count += count
        held_bytes = self.size_bytes = self.size_bytes + size
        if size > 0:
            share.used_bytes += size
        else:
            share.give_back(-size)
        fits = held_bytes <= share.bytes_max - share.used_bytes or not share.used_bytes
        if fits and self.count <= REPLIES_HELD_MAX // 2 and held_bytes <= self._bytes_max // 2:
            if connection.receiving.pauses:
                connection.receiving.resume(Pause.REPLIES)
        elif self.count > REPLIES_HELD_MAX or held_bytes > self._bytes_max:
            self._pause()
        elif not fits:
            if size > 0:
                self._pause()
            elif not held_bytes:
                connection.receiving.resume(Pause.REPLIES)

    def _pause(self) -> None:
        if not self.are_too_many:
            connection = self._connection
            connection.receiving.pause(Pause.REPLIES)
            for channel in connection.channels.values():
                if channel.waits:
                    connection.touch(channel)  # one that waits for an acknowledgement must not wait any more

    def end(self) -> None:
        """The connection has ended."""
        self._share.give_back(self.size_bytes)
        self.size_bytes = 0
