"""The broker as a whole: it listens, admits connections, and shuts down cleanly.

A `Server` belongs to one event loop and uses one open store, which it neither opens nor closes. When
it stops, everything published is durable and confirmed, clients are notified, and unacknowledged
messages are back on their queues.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import signal
import socket
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import uvloop

from logstore.broker import descriptors
from logstore.broker.connection import Connection
from logstore.broker.control import BrokerControl
from logstore.broker.errors import (
    CONNECTION_FORCED,
    INTERNAL_ERROR,
    NOT_ALLOWED,
    BrokerError,
    ConnectionException,
)
from logstore.broker.limits import Limits
from logstore.broker.users import Users
from logstore.broker.vhost import VirtualHost
from logstore.broker.wakeups import WakeUps
from logstore.core.counts import counted
from logstore.errors import StoreError

if TYPE_CHECKING:
    from logstore import MessageStore
    from logstore.store.fullness import Fullness

logger = logging.getLogger(__name__)

DEFAULT_HOST: Final = "127.0.0.1"
DEFAULT_PORT: Final = 5672
GC_THRESHOLDS: Final = (20_000, 50, 100)
REFUSALS_LOGGED_S: Final = 10.0  # the shortest time between two log lines about refused connections
STOP_S: Final = 5.0  # for clients to answer; with the close of the store a stop takes less than ten seconds


class Server:
    """One broker on one store.

    `start` may be called once. All methods except the constructor belong to the event loop's thread.
    """

    vhost: VirtualHost
    wakeups: WakeUps
    users: Users

    def __init__(
        self,
        store: MessageStore,
        host: str = DEFAULT_HOST,
        port: int = DEFAULT_PORT,
        *,
        limits: Limits | None = None,
    ) -> None:
        self.store = store
        self.host = host
        self.port = port  # if 0, the real port after `start`
        self.limits = limits or Limits()
        self.connections: set[Connection] = set()
        self.started = datetime.now(UTC)
        self._listener: asyncio.Server | None = None
        self._control: BrokerControl | None = None
        self._stopping = False
        self._failed: asyncio.Future[Exception] | None = None
        self._admitted = 0
        self._sockets_max = 2 * self.limits.connections_max  # twice, so that excess clients get a refusal with a reason
        self._refused = 0  # since the last log line about refusals
        self._refused_logged_at = float("-inf")

    async def start(self) -> None:
        """Load the catalog and listen. Raises `BrokerError` if the address cannot be used."""
        loop = asyncio.get_running_loop()
        self._failed = loop.create_future()
        self.wakeups = WakeUps(self.store, loop, self.on_poison)
        self.users = Users(self.store.config)
        self.vhost = VirtualHost(self.store, self.wakeups, self.limits.memory_bytes_max)
        self._is_full = False
        self.store.on_fullness(self._on_fullness, loop=loop)
        self._on_fullness(self.store.fullness())
        self.store.never_wait_for_names_here()
        try:
            self._listener = await loop.create_server(lambda: Connection(self), self.host, self.port, backlog=1024)
        except OSError as error:
            self.wakeups.stop()
            raise BrokerError(_cannot_listen(self.host, self.port, error)) from error
        self.port = self._listener.sockets[0].getsockname()[1]
        self._sockets_max = descriptors.sockets_max(self._sockets_max)
        if self._sockets_max < self.limits.connections_max:
            logger.warning(
                "only %d open files are allowed, so at most %d connections are possible: raise the limit (ulimit -n)",
                descriptors.limit(),
                self._sockets_max,
            )
        self._control = BrokerControl(self)
        try:
            await self._control.start()
        except StoreError as error:  # clients can be served without the control socket
            logger.warning("commands cannot reach this broker: %s", error)
        logger.info("listening on %s", self.address)
        in_doubt = len(self.store.in_doubt())
        if in_doubt:
            logger.warning(
                "%s for an outcome, and the messages are locked: see 'logstore in-doubt %s list'",
                counted(in_doubt, "prepared transaction waits", "prepared transactions wait"),
                self.store.path,
            )

    @property
    def address(self) -> str:
        """Host and port as one text."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    async def failure(self) -> Exception:
        """Wait until the store is poisoned. The clients have then been notified."""
        assert self._failed is not None
        return await asyncio.shield(self._failed)

    async def stop(self, timeout_s: float = STOP_S) -> None:
        """Stop in at most `timeout_s` seconds: finish publishes, notify clients, release unacknowledged messages."""
        if self._stopping or self._listener is None:
            return
        self._stopping = True
        self._listener.close()
        deadline = asyncio.get_running_loop().time() + timeout_s
        if self._control is not None:
            await self._control.stop(timeout_s / 4)
        await self.vhost.changes.stop(timeout_s / 4)
        await self._finish_publishes(timeout_s / 4)
        for connection in list(self.connections):
            connection.fail(ConnectionException(CONNECTION_FORCED, "broker shut down"), 0)
        left = max(0.1, deadline - asyncio.get_running_loop().time())
        waiting = [connection.is_gone() for connection in self.connections]
        if waiting:
            await asyncio.wait(waiting, timeout=left * 0.8)
        for connection in list(self.connections):
            connection.transport.abort()
        if self.connections:
            await asyncio.wait([each.is_gone() for each in self.connections], timeout=left * 0.2)
        self.wakeups.stop()

    async def _finish_publishes(self, timeout_s: float) -> None:
        for connection in self.connections:
            connection.stop_reading()
        forced = asyncio.get_running_loop().run_in_executor(None, self.store.force)
        try:
            await asyncio.wait_for(asyncio.shield(forced), timeout_s)
        except (TimeoutError, StoreError) as error:
            logger.warning("the broker stops without the last group commit: %s", error)
        # Two turns of the loop: one for the report of the commit, one for the frames that it releases.
        await asyncio.sleep(0)
        for connection in list(self.connections):
            connection.settle_all(self.wakeups.settled_lsn)

    # Connections.

    def connection_made(self, connection: Connection) -> bool:
        """Add an accepted socket. False if there are too many even for a handshake with a refusal."""
        if self._stopping:
            return False
        if len(self.connections) >= self._sockets_max:
            self._log_refusal(connection)
            return False
        self.connections.add(connection)
        sock = connection.transport.get_extra_info("socket")
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return True

    def _log_refusal(self, connection: Connection) -> None:
        self._refused += 1
        now = asyncio.get_running_loop().time()
        if now - self._refused_logged_at >= REFUSALS_LOGGED_S:
            logger.warning(
                "%s is refused, and %d before it, with %s: the other file descriptors are reserved",
                connection,
                self._refused - 1,
                counted(len(self.connections), "connection"),
            )
            self._refused, self._refused_logged_at = 0, now

    def admit(self, connection: Connection) -> None:
        """Count a client that has logged in. Raises 530 if there are too many."""
        if self._admitted >= self.limits.connections_max:
            raise ConnectionException(NOT_ALLOWED, f"connection limit ({self.limits.connections_max}) is reached")
        self._admitted += 1
        connection.admitted = True

    def connection_lost(self, connection: Connection) -> None:
        """Remove a connection that has ended."""
        self.connections.discard(connection)
        if connection.admitted:
            connection.admitted = False
            self._admitted -= 1

    def _on_fullness(self, found: Fullness) -> None:
        """Log that the store has become full, or has room again: one line each, however many messages are refused."""
        if self._stopping or found.full == self._is_full:
            return
        self._is_full = found.full
        if found.full:
            logger.warning(
                "the store is full: %s. Messages are refused until there is room: 'logstore info %s' says what would "
                "free it",
                found.reason,
                self.store.path,
            )
        else:
            logger.info(
                "the store has room again: the log has %d bytes, %d of them live", found.log_bytes, found.live_bytes
            )

    def on_poison(self, error: Exception) -> None:
        """The store can no longer write: refuse waiting publishes, and close every connection."""
        if self._failed is None or self._failed.done():
            return
        self._failed.set_result(error)
        logger.error("the store can no longer write: %s", error)
        for connection in list(self.connections):
            for channel in connection.channels.values():
                channel.refuse_unconfirmed()
            connection.fail(ConnectionException(INTERNAL_ERROR, f"the store can no longer write: {error}"), 0)


def check_address(host: str, port: int) -> None:
    """Raise `BrokerError` if the broker could not listen there: before a store is opened for it, and recovered."""
    try:
        name = host.encode() if host.isascii() else host.encode("idna")
        for family, kind, protocol, _, address in socket.getaddrinfo(
            name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
    except OSError as error:
        raise BrokerError(_cannot_listen(host, port, error)) from error
    except UnicodeError:
        raise BrokerError(f"{host[:80]!r} is not the name of a host: choose another with --host") from None


def _cannot_listen(host: str, port: int, error: OSError) -> str:
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if error.errno == errno.EADDRINUSE:
        return f"{address} is already in use: choose another with --port"
    if error.errno == errno.EACCES:
        return f"{address} needs privileges: choose a port above 1023 with --port"
    if isinstance(error, socket.gaierror):
        return f"host {host} is unknown: choose another with --host"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{host} is not an address of this machine: choose another with --host"
    return f"cannot listen on {address}: {error.strerror or error}"


def run(
    store: MessageStore,
    *,
    host: str = DEFAULT_HOST,
    port: int = DEFAULT_PORT,
    limits: Limits | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT, then stop cleanly; the caller closes the store.

    Prints `listening on HOST:PORT` when clients can connect. Raises `BrokerError` with a text of one line
    if it cannot listen, or if the store can no longer write.
    """
    # Objects loaded so far stay for ever, and the many deliveries form no reference cycles: collect garbage rarely.
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(Server(store, host, port, limits=limits)))


async def _serve(server: Server) -> None:
    loop = asyncio.get_running_loop()
    asked_to_stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked_to_stop.set)
    await server.start()
    print(f"listening on {server.address}", flush=True)
    stop = loop.create_task(asked_to_stop.wait())
    failure = loop.create_task(server.failure())
    await asyncio.wait((stop, failure), return_when=asyncio.FIRST_COMPLETED)
    failed = failure.result() if failure.done() else None
    logger.info("stopping; open connections: %d", len(server.connections))
    stop.cancel()
    failure.cancel()
    await server.stop()
    if failed is not None:
        raise BrokerError(f"the store can no longer write: {failed}") from failed
