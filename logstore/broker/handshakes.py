"""The connections in their handshake, and the time that each of their clients has left.

A connection waits for its client or for the broker: for the check of its password, the leader of its host, or its turn.
Only the first counts against `handshake_s`. The order in which the clients fell silent is kept, so that the one that
has been silent longest can make room for a newcomer.
"""

from __future__ import annotations

import collections
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

    from logstore.broker.connection import Connection

logger = logging.getLogger(__name__)


class _Allowance:
    """The time that a client has left."""

    def __init__(self, left_s: float) -> None:
        self.left_s = left_s  # when the timer was started
        self.timer: asyncio.TimerHandle | None = None


class Handshakes:
    """All connections in their handshake; belongs to one event loop."""

    def __init__(self, handshake_s: float) -> None:
        self._handshake_s = handshake_s
        self._silent: collections.OrderedDict[Connection, None] = collections.OrderedDict()  # the longest first
        self._served: dict[Connection, None] = {}  # those that wait for the broker, the longest first
        self._allowances: dict[Connection, _Allowance] = {}

    def __len__(self) -> int:
        return len(self._allowances)

    def begin(self, connection: Connection) -> None:
        """A client has connected, and has to say something."""
        self._allowances[connection] = _Allowance(self._handshake_s)
        self.wait_for_client(connection)

    def end(self, connection: Connection) -> None:
        """The handshake is complete, or the connection has ended."""
        allowance = self._allowances.pop(connection, None)
        self._silent.pop(connection, None)
        self._served.pop(connection, None)
        if allowance is not None and allowance.timer is not None:
            allowance.timer.cancel()

    def heard(self, connection: Connection) -> None:
        """Bytes came from the client."""
        if connection in self._silent:
            self._silent.move_to_end(connection)

    def wait_for_client(self, connection: Connection) -> None:
        """The connection is read: its client's time runs."""
        allowance = self._allowances.get(connection)
        if allowance is not None:
            self._served.pop(connection, None)
            self._silent[connection] = None
            self._silent.move_to_end(connection)
            if allowance.timer is None:
                allowance.timer = connection.loop.call_later(allowance.left_s, self._expired, connection, allowance)

    def wait_for_broker(self, connection: Connection) -> None:
        """The connection is not read: its client's time stands still."""
        allowance = self._allowances.get(connection)
        if allowance is not None:
            self._silent.pop(connection, None)
            self._served[connection] = None
            if allowance.timer is not None:
                left_s = allowance.timer.when() - connection.loop.time()
                allowance.timer.cancel()
                allowance.timer = None
                allowance.left_s = left_s if left_s > 0 else self._handshake_s  # the loop was late, not the client

    def closes(self, connection: Connection) -> None:
        """Only the end of the connection is awaited, which has a limit of its own."""
        allowance = self._allowances.get(connection)
        if allowance is not None:
            self._served.pop(connection, None)
            self._silent[connection] = None
            self._silent.move_to_end(connection, last=False)
            if allowance.timer is not None:
                allowance.timer.cancel()
                allowance.timer = None

    def _expired(self, connection: Connection, allowance: _Allowance) -> None:
        # A loop that was held up runs its timers before it looks at the sockets. The second of these calls comes
        # after it has done so.
        step, loop = connection.handshake.step, connection.loop
        loop.call_soon(loop.call_soon, self._give_up, connection, allowance, step)

    def _give_up(self, connection: Connection, allowance: _Allowance, step: object) -> None:
        if self._allowances.get(connection) is not allowance or allowance.timer is None:
            return
        if connection.handshake.step is not step:  # the answer was in the socket
            allowance.timer, allowance.left_s = None, self._handshake_s
            self.wait_for_client(connection)
            return
        logger.debug("%s did not finish its handshake in %g s", connection, self._handshake_s)
        connection.transport.abort()

    def next_to_go(self) -> Connection | None:
        """The connection whose client has been silent longest; None: there is no handshake.

        If all wait for the broker, it is the newest one of the address that has most of them.
        """
        if self._silent:
            return next(iter(self._silent))
        if not self._served:
            return None
        counts = collections.Counter(each.address for each in self._served)
        address, _ = counts.most_common(1)[0]
        return next(each for each in reversed(self._served) if each.address == address)
