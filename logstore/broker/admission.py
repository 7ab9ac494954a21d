"""The limits of sockets, handshakes and logged-in clients, and who is refused at each.

Connections never take the descriptors that the log needs, and a newcomer always gets in: when no further handshake or
socket is allowed, the handshake goes whose client has been silent longest. Some sockets are kept for handshakes, so
that a client beyond the limit of connections is told so.
"""

from __future__ import annotations

import contextlib
import logging
import socket
from typing import TYPE_CHECKING, Final

from logstore.broker import descriptors
from logstore.broker.errors import NOT_ALLOWED, ConnectionException
from logstore.broker.handshakes import Handshakes
from logstore.core.counts import counted

if TYPE_CHECKING:
    from logstore.broker.connection import Connection
    from logstore.broker.limits import Limits

logger = logging.getLogger(__name__)

LOGGED_S: Final = 10.0  # the shortest time between two log lines about connections that were closed for newcomers
_KEPT: Final = 16  # of few sockets, one in so many is for handshakes only
_RELAYED: Final = 3  # sockets of a relayed connection at the leader


class Admission:
    """Counts the connections of one broker; belongs to its event loop."""

    def __init__(self, limits: Limits, *, is_of_cluster: bool) -> None:
        self._limits = limits
        self._is_of_cluster = is_of_cluster
        self.connections: set[Connection] = set()
        self.handshakes = Handshakes(limits.handshake_s)
        self.admitted_count = 0
        self.arriving = 0  # accepted sockets that have no connection yet
        self._sockets_wanted = (_RELAYED if is_of_cluster else 1) * limits.connections_max + limits.handshakes_max
        self.sockets_max = self._sockets_wanted
        self._closed = 0  # since the last log line
        self._logged_at = float("-inf")

    def reserve_descriptors(self, stores: int) -> None:
        """Compute anew how many sockets may be open, for so many open stores."""
        self.sockets_max = descriptors.sockets_max(self._sockets_wanted, stores, self.sockets_open)

    @property
    def connections_max(self) -> int:
        """How many clients may be logged in, if none is relayed."""
        return min(self._limits.connections_max, self._admitted_sockets_max)

    @property
    def _admitted_sockets_max(self) -> int:
        kept = min(self._limits.handshakes_max, max(1, self.sockets_max // _KEPT))
        return max(1, self.sockets_max - kept)

    @property
    def sockets_open(self) -> int:
        """Of all connections, and of those that arrive."""
        return len(self.connections) + self.arriving + self._sockets_of_relays

    @property
    def _sockets_of_relays(self) -> int:
        """A relay has two sockets. At the leader a relayed connection has three: the member's, and a pair."""
        if not self._is_of_cluster:
            return 0
        return sum((each.relay is not None) + 2 * (each.handover is not None) for each in self.connections)

    def has_room(self) -> bool:
        """Whether a further socket may be accepted."""
        return (
            len(self.handshakes) + self.arriving < self._limits.handshakes_max and self.sockets_open < self.sockets_max
        )

    def make_room(self) -> None:
        """Close the handshake that has been silent longest, for a newcomer; its descriptor is free a little later."""
        oldest = self.handshakes.next_to_go()
        if oldest is None:
            return
        self.handshakes.end(oldest)
        self._closed += 1
        now = oldest.loop.time()
        if now - self._logged_at >= LOGGED_S:
            logger.warning(
                "%s is closed in its handshake, and %d before it, because others want to log in, with %s of %d open:"
                " its client has been silent longest",
                oldest,
                self._closed - 1,
                counted(self.sockets_open, "socket"),
                self.sockets_max,
            )
            self._closed, self._logged_at = 0, now
        oldest.transport.abort()

    def begin(self, connection: Connection) -> bool:
        """Add a connection that has a socket now. False: a relayed one is too many."""
        if connection.handover is None:
            self.handshakes.begin(connection)
        elif self.sockets_open + _RELAYED > self.sockets_max:
            if len(self.handshakes) < _RELAYED:
                return False
            for _ in range(_RELAYED):
                self.make_room()
        self.connections.add(connection)
        sock = connection.transport.get_extra_info("socket")
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return True

    def judge(self, connection: Connection) -> None:
        """Raise 530 if there are too many clients for this one to be logged in."""
        if connection.admitted:
            return
        most = self.connections_max
        if self.admitted_count + self._sockets_of_relays >= self._admitted_sockets_max:
            most = min(most, self.admitted_count)
        if self.admitted_count >= most:
            raise ConnectionException(NOT_ALLOWED, f"connection limit ({most}) is reached")

    def count(self, connection: Connection) -> None:
        """The client is logged in, and no longer in its handshake."""
        self.handshakes.end(connection)
        if not connection.admitted:
            self.admitted_count += 1
            connection.admitted = True

    def end(self, connection: Connection) -> None:
        """Remove a connection that has ended."""
        self.connections.discard(connection)
        self.handshakes.end(connection)
        if connection.admitted:
            connection.admitted = False
            self.admitted_count -= 1
