"""The broker as a whole: it listens, admits connections, and shuts down cleanly.

A `Server` belongs to one event loop and uses open stores, one for each virtual host, which it neither opens nor
closes. In a member of a cluster it has those hosts open that the member leads (`logstore.broker.elsewhere`).

When it stops, everything published is durable and confirmed, clients are notified, and unacknowledged messages are back
on their queues.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import signal
import socket
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import uvloop

from logstore.broker import descriptors
from logstore.broker.admission import Admission
from logstore.broker.arriving import Arriving
from logstore.broker.connection import Connection
from logstore.broker.errors import (
    CONNECTION_FORCED,
    INTERNAL_ERROR,
    NOT_ALLOWED,
    BrokerError,
    ConnectionException,
)
from logstore.broker.host import Host
from logstore.broker.hosting import Hosting
from logstore.broker.limits import Limits
from logstore.broker.listener import Listener, addresses, listening_sockets
from logstore.broker.memory import MemoryBudget
from logstore.broker.receiving import Pause
from logstore.broker.relay import NotLed
from logstore.broker.turns import Turns
from logstore.broker.users import Users
from logstore.broker.vhost import predeclare
from logstore.core.counts import counted
from logstore.core.host_directory import ROOT
from logstore.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, MutableMapping
    from typing import Any

    from logstore import MessageStore
    from logstore.broker.elsewhere import Elsewhere, Leader
    from logstore.broker.relay import Handover
    from logstore.store.control import Handler

    Found = Host | tuple[Leader, asyncio.Transport, Callable[[], object]]

logger = logging.getLogger(__name__)

DEFAULT_HOST: Final = "127.0.0.1"
DEFAULT_PORT: Final = 5672
GC_THRESHOLDS: Final = (20_000, 50, 100)
LEADER_WITHIN_S: Final = 3.0  # how long connection.open waits for a host that nobody leads
ASK_AGAIN_S: Final = 0.1  # a member that is said to lead, and does not yet
STOP_S: Final = 5.0  # for clients to answer; with the close of the store a stop takes less than ten seconds


class Server:
    """One broker. The store that it is given is that of the host `/` and has the users.

    With `host_options` it also opens the hosts that the catalog of this store names, each with these options of
    `logstore.open`, and closes their stores. Without, it has `/` and those that `open_host` adds.

    In a cluster it is given no store, but the configuration that has the `users`, and what is `elsewhere`.

    `start` may be called once. All methods except the constructor belong to the event loop's thread.
    """

    loop: asyncio.AbstractEventLoop
    turns: Turns
    arriving: Arriving
    users: Users

    def __init__(
        self,
        store: MessageStore | None,
        host: str = DEFAULT_HOST,
        port: int = DEFAULT_PORT,
        *,
        limits: Limits | None = None,
        host_options: Mapping[str, Any] | None = None,
        users: MutableMapping[str, str] | None = None,
        elsewhere: Elsewhere | None = None,
    ) -> None:
        self._root = store
        self._users = users
        self.elsewhere = elsewhere
        self._waiting: list[asyncio.Future[None]] = []  # for another state of the hosts
        self.host = host
        self.port = port  # if 0, the real port after `start`
        self.limits = limits or Limits()
        self.budget = MemoryBudget(self.limits.memory_bytes_max)
        self.admission = Admission(self.limits, is_of_cluster=elsewhere is not None)
        self.hosts: dict[str, Host] = {}
        self.down: set[str] = set()  # hosts that exist and cannot be opened
        self.hosting = None if host_options is None or store is None else Hosting(self, store, host_options)
        self.started = datetime.now(UTC)
        self._listener: Listener | None = None
        self._stopping = False
        self._failed: asyncio.Future[Exception] | None = None

    async def start(self) -> None:
        """Load the catalog and listen. Raises `BrokerError` if the address cannot be used."""
        loop = self.loop = asyncio.get_running_loop()
        self.turns = Turns(loop)
        self.budget.serve(self.turns)
        self.arriving = Arriving(self.budget.contents, loop, self.limits)
        self._failed = loop.create_future()
        if self._root is None:
            assert self._users is not None
            self.users = Users(self._users, self.limits.password_checks_max)
        else:
            self.users = Users(self._root.config, self.limits.password_checks_max)
            await self.open_host(ROOT, self._root)
        if self.hosting is not None:
            await self.hosting.open_all()
        try:
            sockets = await loop.run_in_executor(None, listening_sockets, self.host, self.port)
        except OSError as error:
            for host in self.hosts.values():
                host.stop()
            if self.hosting is not None:
                await self.hosting.close()
            raise BrokerError(_cannot_listen(self.host, self.port, error)) from error
        self.admission.reserve_descriptors(len(self.hosts))
        self._listener = Listener(loop, self.admission, lambda: Connection(self), sockets)
        self.port = self._listener.port
        connections_max = self.admission.connections_max
        if connections_max < self.limits.connections_max:
            logger.warning(
                "only %d open files are allowed, so at most %d connections are possible: raise the limit (ulimit -n)",
                descriptors.limit(),
                connections_max,
            )
        for host in self.hosts.values():
            await self._start_control(host)
        logger.info("listening on %s", self.address)
        for host in self.hosts.values():
            _warn_of_in_doubt(host.store)

    @property
    def connections(self) -> set[Connection]:
        """Those of all hosts, and those that have not opened one yet."""
        return self.admission.connections

    @property
    def address(self) -> str:
        """Host and port as one text."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    async def failure(self) -> Exception:
        """Wait until the store of `/` is poisoned, or those of all hosts. Their clients have then been notified.

        In a cluster that does not happen: each host ends by itself.
        """
        assert self._failed is not None
        return await asyncio.shield(self._failed)

    async def stop(self, timeout_s: float = STOP_S) -> None:
        """Stop in at most `timeout_s` seconds: finish publishes, notify clients, release unacknowledged messages."""
        if self._stopping or self._listener is None:
            return
        self._stopping = True
        self._listener.close()
        deadline = self.loop.time() + timeout_s
        hosts = list(self.hosts.values())
        for host in hosts:
            host.space.stop()
        await asyncio.gather(*(host.control.stop(timeout_s / 4) for host in hosts))
        await asyncio.gather(*(host.vhost.changes.stop(timeout_s / 4) for host in hosts))
        await self._finish_publishes(timeout_s / 4)
        for connection in list(self.connections):
            connection.fail(ConnectionException(CONNECTION_FORCED, "broker shut down"), 0)
        await _wait_until_gone(self.connections, max(0.1, deadline - self.loop.time()))
        self.arriving.stop()
        await asyncio.gather(*(host.vhost.end_memory_queues(timeout_s / 4) for host in hosts))
        for host in hosts:
            host.stop()
        if self.hosting is not None:
            await self.hosting.close()

    async def _finish_publishes(self, timeout_s: float) -> None:
        for connection in self.connections:
            connection.receiving.pause(Pause.STOPPING)
        await asyncio.gather(*(self._force(host, timeout_s) for host in self.hosts.values()))
        # Two turns of the loop: one for the report of the commit, one for the frames that it releases.
        await asyncio.sleep(0)
        for connection in list(self.connections):
            connection.settle_all()

    async def _force(self, host: Host, timeout_s: float) -> None:
        forced = self.loop.run_in_executor(None, host.store.force)
        try:
            await asyncio.wait_for(asyncio.shield(forced), timeout_s)
        except (TimeoutError, StoreError) as error:
            logger.warning("the broker stops without the last group commit of %s: %s", host.store_text, error)

    # Hosts.

    @property
    def commands(self) -> dict[str, Handler]:
        """The commands of the control socket of `/` that concern the whole broker."""
        return {} if self.hosting is None else self.hosting.commands

    async def open_host(self, name: str, store: MessageStore) -> None:
        """Let clients open the host of that name, which uses this store until `close_host` or `stop` has returned.

        Raises `BrokerError` if the host is open already.
        """
        if name in self.hosts:
            raise BrokerError(f"vhost {name!r} is open already")
        await self.loop.run_in_executor(None, predeclare, store)
        host = self.hosts[name] = Host(self, name, store)
        self.hosts_have_changed()
        if self._listener is not None:
            self.admission.reserve_descriptors(len(self.hosts))
            await self._start_control(host)

    async def close_host(self, name: str, error: ConnectionException, timeout_s: float = STOP_S) -> None:
        """End a host: close its connections because of `error`, in at most `timeout_s` seconds, and leave the store.

        Publishes that are not confirmed yet get neither ack nor nack, and unacknowledged messages are back on their
        queues. Raises `KeyError` if no host of that name is open.
        """
        host = self.hosts.pop(name)
        await host.control.stop(timeout_s / 4)
        for connection in list(host.connections):
            connection.fail(error, 0)
        await host.vhost.changes.stop(timeout_s / 4)
        await _wait_until_gone(host.connections, timeout_s / 2)
        await host.vhost.end_memory_queues(timeout_s / 4)
        host.stop()
        self.admission.reserve_descriptors(len(self.hosts))

    def find_host(self, name: str, user: str) -> Host | None:
        """The host that this user opens; None: it is not open here now, and `await_host` waits for it.

        Raises 530 if it is not there or forbidden, 541 if its store has failed.
        """
        host = self.hosts.get(name)
        is_of_cluster = self.elsewhere is not None and self.elsewhere.has_host(name)
        if host is None and name not in self.down and not is_of_cluster:
            raise ConnectionException(NOT_ALLOWED, f"vhost {name} not found")
        refusal = f"access to vhost '{name}' refused for user '{user}'"
        if not self.users.may_open(user, name):
            raise ConnectionException(NOT_ALLOWED, refusal)
        if host is not None and host.poison is None:
            return host
        if not is_of_cluster:
            raise ConnectionException(INTERNAL_ERROR, f"{refusal}: vhost '{name}' is down")
        return None

    async def await_host(self, connection: Connection, handover: Handover) -> Found:
        """The host of a cluster, once this member leads it; or who else leads it, with an open link for a relay.

        Raises 320 with the name of the leader if that cannot be reached, 541 with the reason if nobody leads in time.
        """
        elsewhere, name = self.elsewhere, handover.vhost
        assert elsewhere is not None
        deadline = self.loop.time() + LEADER_WITHIN_S
        self.admission.judge(connection)
        while True:
            host = self.find_host(name, handover.user)
            if host is not None:
                return host
            leader, why = elsewhere.leader(name), ""
            if leader is not None:
                try:
                    upstream, gone = await elsewhere.open_relay(leader, handover)
                except NotLed as error:
                    why = str(error)
                else:
                    if elsewhere.leader(name) == leader:
                        if not connection.has_given_up:  # else nobody would count it out again
                            self.admission.count(connection)
                        return leader, upstream, gone
                    upstream.abort()
                    gone()
                    why = "another one may lead it meanwhile"
            left_s = deadline - self.loop.time()
            if left_s <= 0:
                if leader is not None:
                    raise ConnectionException(CONNECTION_FORCED, f"{led_by(name, leader).text}, but {why}")
                why = await elsewhere.why_not(name)
                raise ConnectionException(INTERNAL_ERROR, f"vhost '{name}' has no leader: {why}")
            await self._another_state(min(left_s, ASK_AGAIN_S) if leader is not None else left_s)

    async def _another_state(self, within_s: float) -> None:
        """Waits until the hosts have changed, or so long."""
        waiter = self.loop.create_future()
        self._waiting.append(waiter)
        try:
            await asyncio.wait([waiter], timeout=within_s)
        finally:
            if waiter in self._waiting:
                self._waiting.remove(waiter)

    async def accept_relayed(self, handover: Handover, sock: socket.socket) -> None:
        """Takes a client over that another member relays through this socket, which it closes if it does not.

        Raises `NotLed` if the host is not open here, 530 if this member does not know the user, or does not let it open
        the host, or if there are too many connections.
        """
        connection = Connection(self, handover)
        try:
            host = self._led_host(handover.vhost)
            self._judge_user(handover)
            handover.check(self.limits)
            self.admission.judge(connection)
            await self.loop.create_unix_connection(lambda: connection, sock=sock)
        except BaseException:
            sock.close()
            raise
        try:  # the transport has the socket from here on
            if connection not in self.connections:  # there were too many, or it has ended already
                text = f"the leader has {counted(len(self.connections), 'connection')} open"
                raise ConnectionException(NOT_ALLOWED, text)
            if self._led_host(handover.vhost) is not host:
                raise NotLed(f"vhost '{handover.vhost}' was led there before")
            connection.handshake.take_over(handover, host)
        except BaseException:
            connection.transport.abort()
            raise

    def _led_host(self, name: str) -> Host:
        host = self.hosts.get(name)
        if host is None or host.poison is not None or self._stopping:
            raise NotLed(f"vhost '{name}' is not led there")
        return host

    def _judge_user(self, handover: Handover) -> None:
        """Raises 530 if the users of this member differ from those of the relaying one, and this one is not let in."""
        if not self.users.has(handover.user):
            refusal = f"access to vhost '{handover.vhost}' refused for user '{handover.user}'"
            raise ConnectionException(NOT_ALLOWED, f"{refusal}: the member that leads it has no such user")
        self.find_host(handover.vhost, handover.user)

    def end_relays(self, name: str, leader: Leader | None) -> None:
        """Relays of a host to others than its leader end. None: it has none, and all end."""
        for connection in list(self.connections):
            relay = connection.relay
            if relay is None or relay.name != name:
                continue
            if leader is None or relay.leader.member != leader.member:
                relay.end(led_by(name, leader))

    def hosts_have_changed(self) -> None:
        """Clients that wait for a host look again."""
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)

    async def _start_control(self, host: Host) -> None:
        try:
            await host.control.start()
        except StoreError as error:  # clients can be served without the control socket
            logger.warning("commands cannot reach this broker: %s", error)

    # Connections.

    def connection_made(self, connection: Connection) -> bool:
        """Add a connection that has a socket now. False if it may not stay."""
        return not self._stopping and self.admission.begin(connection)

    def admit(self, connection: Connection, host: Host) -> None:
        """Count a client that has logged in and opens a host. Raises 530 if there are too many."""
        self.admission.judge(connection)
        self.admission.count(connection)
        host.connections.add(connection)

    def connection_lost(self, connection: Connection) -> None:
        """Remove a connection that has ended."""
        if connection.vhost_name is not None:
            connection.host.connections.discard(connection)
        self.admission.end(connection)
        if self._listener is not None:
            self._listener.look_again()

    def on_poison(self, host: Host, error: Exception) -> None:
        """A host's store can no longer write: close its connections. What is not confirmed yet is unknown.

        The other hosts go on. The broker fails if the host is `/`, or the last one that could write.
        """
        assert self._failed is not None
        if host.poison is not None or self.hosts.get(host.name) is not host:
            return
        host.poison = error
        if self.elsewhere is not None:
            self.elsewhere.has_ended(host.name)  # it closes the host, and knows who leads then
            return
        logger.error("%s can no longer write: %s", host.store_text, error)
        without_host = [each for each in self.connections if each.vhost_name is None] if host.name == ROOT else []
        for connection in (*host.connections, *without_host):
            connection.fail(ConnectionException(INTERNAL_ERROR, f"the store can no longer write: {error}"), 0)
        if not self._failed.done() and (host.name == ROOT or all(each.poison for each in self.hosts.values())):
            self._failed.set_result(error)


def led_by(name: str, leader: Leader | None) -> ConnectionException:
    """Why a host of a cluster is closed here."""
    if leader is None:
        return ConnectionException(CONNECTION_FORCED, f"vhost '{name}' has no leader now")
    return ConnectionException(CONNECTION_FORCED, f"vhost '{name}' is led by member {leader.name} now")


async def _wait_until_gone(connections: Iterable[Connection], timeout_s: float) -> None:
    """Wait until the connections that are closing have ended; abort those that do not end in time."""
    for patience_s in (timeout_s * 0.8, timeout_s * 0.2):
        waiting = [each.is_gone() for each in connections]
        if not waiting:
            return
        _, left = await asyncio.wait(waiting, timeout=patience_s)
        if left:
            for connection in list(connections):
                connection.transport.abort()


def _warn_of_in_doubt(store: MessageStore) -> None:
    in_doubt = len(store.in_doubt())
    if in_doubt:
        logger.warning(
            "%s for an outcome, and the messages are locked: see 'logstore in-doubt %s list'",
            counted(in_doubt, "prepared transaction waits", "prepared transactions wait"),
            store.path,
        )


def check_address(host: str, port: int) -> None:
    """Raise `BrokerError` if the broker could not listen there.

    The check comes before a store is opened and recovered for it.
    """
    try:
        for family, kind, protocol, address in addresses(host, port):
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


def collect_rarely() -> None:
    """Objects loaded so far stay for ever, and the many deliveries form no reference cycles."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def run(
    store: MessageStore,
    *,
    host: str = DEFAULT_HOST,
    port: int = DEFAULT_PORT,
    limits: Limits | None = None,
    host_options: Mapping[str, Any] | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT, then stop cleanly; the caller closes the store.

    Prints `listening on HOST:PORT` when clients can connect. Raises `BrokerError` with a text of one line
    if it cannot listen, or if the store can no longer write. `host_options` are those of `logstore.open` for the stores
    of further virtual hosts.
    """
    collect_rarely()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(Server(store, host, port, limits=limits, host_options=host_options or {})))


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
