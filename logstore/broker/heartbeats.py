"""Heartbeats of one connection in both directions, and the detection of dead peers.

With an interval of n seconds the broker sends something at least every n/2 seconds, and closes the connection of a
peer that was silent for two intervals. A loop that was held up runs its timers before it looks at the sockets; so a
peer that seems silent is given up after the sockets were read once more. A peer that reads nothing while its buffer
is full is disconnected after `stall_s` seconds, independent of the interval: reading may be paused then, so its
heartbeats cannot be seen.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from logstore.broker import frames

if TYPE_CHECKING:
    import asyncio

    from logstore.broker.connection import Connection

logger = logging.getLogger(__name__)

MISSED_MAX = 2


class Heartbeats:
    """The timer of one connection, for both directions."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._interval_s = 0
        self._now = connection.loop.time
        self.received_at = self._now()  # when bytes last came, by the loop's clock
        self._sent = False
        self._unsent_bytes = 0
        self._stalled_since: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self, interval_s: int) -> None:
        """Start with the negotiated interval in seconds. With 0 only stalled peers are detected."""
        self._interval_s = interval_s
        self.received()
        self._schedule()

    def stop(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def received(self) -> None:
        """Note that bytes came from the peer; any bytes count as a heartbeat."""
        self.received_at = self._now()

    def sent(self) -> None:
        """Note that bytes were sent; any bytes count as a heartbeat."""
        self._sent = True

    def _schedule(self) -> None:
        stall_s = self._connection.limits.stall_s
        tick_s = min(self._interval_s, stall_s) if self._interval_s else stall_s
        self._timer = self._connection.loop.call_later(tick_s / 2, self._tick)

    def _tick(self) -> None:
        connection = self._connection
        now = connection.loop.time()
        if self._is_stalled(now):
            logger.debug("%s is closed: the client has read nothing for %g s", connection, connection.limits.stall_s)
            connection.transport.abort()
            return
        if self._interval_s:
            if self._is_silent(now):
                # The first call comes before this turn's look at the sockets, the second one after it.
                connection.loop.call_soon(connection.loop.call_soon, self._give_up)
            if not self._sent:
                connection.send(frames.HEARTBEAT_FRAME)
                connection.flush()
            self._sent = False
        self._schedule()

    def _is_silent(self, now: float) -> bool:
        return now - self.received_at > MISSED_MAX * self._interval_s and not self._connection.receiving.is_paused

    def _give_up(self) -> None:
        """The peer was silent. It is given up if nothing of it was in the socket."""
        now = self._connection.loop.time()
        if self._timer is not None and self._is_silent(now):
            logger.debug("%s missed heartbeats: silent for %.1f s", self._connection, now - self.received_at)
            self.stop()
            self._connection.transport.abort()

    def _is_stalled(self, now: float) -> bool:
        connection = self._connection
        unsent_bytes = connection.transport.get_write_buffer_size()
        # The buffer shrinks only when the peer reads: while the connection has no room, only a few replies are added.
        if not connection.outbox.socket_is_full or unsent_bytes < self._unsent_bytes:
            self._stalled_since = None
        elif self._stalled_since is None:
            self._stalled_since = now
        self._unsent_bytes = unsent_bytes
        return self._stalled_since is not None and now - self._stalled_since > connection.limits.stall_s
