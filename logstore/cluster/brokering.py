"""The broker of a member: it has those hosts open that the member leads, and knows who leads the others.

```
 the member's loop (its own thread)                 the broker's loop (the main thread)
 a host leads, ceases, has another leader ────────▶ Brokering: opens and closes hosts, one change of each at a time
                                                    Server: connections, queues, consumers
 group's threads: what is durable ────────────────▶ a host's wake-ups: confirms
```

The broker makes calls of stores that wait for a majority, so it has a loop of its own. A store stays valid memory after
its member has ceased to lead; each call of it raises then. So whatever the broker does between that moment and the
close of the host ends in ``STORE_ENDED``, and confirms nothing.

The virtual host ``/`` is the cluster's host ``main``; every other one has the host's name. The users are the member's
own, in ``catalog.sqlite`` of its directory.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from logstore.broker import server
from logstore.broker.elsewhere import Leader
from logstore.broker.errors import BrokerError
from logstore.broker.relay import NotLed
from logstore.broker.server import led_by
from logstore.cluster.addresses import parse
from logstore.cluster.member_users import host_of, vhost_of
from logstore.cluster.relay_links import RelayLinks, take_over
from logstore.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from logstore.broker.limits import Limits
    from logstore.broker.relay import Handover
    from logstore.catalog.catalog import Catalog
    from logstore.cluster.config import MemberFile
    from logstore.cluster.group import HostNews
    from logstore.cluster.member import Member
    from logstore.store.message_store import MessageStore

_T = TypeVar("_T")

logger = logging.getLogger(__name__)

LEADER_NAMED_WITHIN_S: Final = 1.0
"""A host that ceases is closed, and relays to a lost leader end, when the next leader is known, or after this time."""
OPEN_AGAIN_S: Final = 1.0


async def _on(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, _T]) -> _T:
    """Awaits, on another loop, what is done on this one."""
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))


def check_address(file: MemberFile) -> None:
    """Raises ``StoreError`` if the broker could not listen there: before the copies are opened, and recovered."""
    address, port = parse(file.amqp)
    with _as_store_error():
        server.check_address(address, port)


@contextmanager
def _as_store_error() -> Iterator[None]:
    try:
        yield
    except BrokerError as error:
        raise StoreError(
            str(error).replace("--port", "amqp in cluster.toml").replace("--host", "amqp in cluster.toml")
        ) from error


class _State(NamedTuple):
    """How a host stands."""

    store: MessageStore | None
    leader: Leader | None


class Brokering:
    """Runs the broker of a member. Belongs to the broker's loop; ``Elsewhere`` of its server."""

    def __init__(self, member: Member, file: MemberFile, users: Catalog, limits: Limits | None = None) -> None:
        """``users``: see ``member_users.py``; the caller closes it."""
        address, port = parse(file.amqp)
        self.server = server.Server(None, address, port, limits=limits, users=users.config, elsewhere=self)
        self._member = member
        self._states: dict[str, _State] = {}  # by virtual host
        self._ended: set[MessageStore] = set()  # stores that can be used no longer, before the member says so
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._news: dict[str, asyncio.Event] = {}
        self._leaderless: dict[str, asyncio.TimerHandle] = {}  # hosts without a known leader: then their relays end
        self._is_stopping = False
        self._links: RelayLinks | None = None

    async def start(self) -> None:
        """Listens, and opens what the member leads. Raises ``StoreError`` if it cannot listen."""
        loop = asyncio.get_running_loop()
        server.collect_rarely()
        for host in self._member.standings():  # before it listens: a client finds each of them
            self._states[vhost_of(host)] = _State(None, None)
        with _as_store_error():
            await self.server.start()
        me = self._member.accept_relays(lambda *given: _on(loop, take_over(self.server, *given)))
        self._links = RelayLinks(me, self._member.config.tls)
        self._member.listen_to_hosts(lambda news: loop.call_soon_threadsafe(self._on_news, news))

    async def stop(self) -> None:
        """Clients are told, and what is durable is confirmed. The stores stay open."""
        self._member.listen_to_hosts(None)
        self._member.accept_relays(None)
        self._is_stopping = True
        await self.server.stop()
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        if self._links is not None:
            await self._links.close()

    # ---- Elsewhere ----

    def has_host(self, name: str) -> bool:
        """See ``Elsewhere``."""
        return name in self._states

    def leader(self, name: str) -> Leader | None:
        """See ``Elsewhere``."""
        return self._states[name].leader if name in self._states else None

    async def open_relay(self, leader: Leader, handover: Handover) -> tuple[asyncio.Transport, Callable[[], object]]:
        """See ``Elsewhere``."""
        if self._links is None:
            raise NotLed("the broker has not started yet")
        return await self._links.open(leader.member, handover)

    async def why_not(self, name: str) -> str:
        """See ``Elsewhere``."""
        return await asyncio.get_running_loop().run_in_executor(None, self._member.why_not_led, host_of(name))

    async def lagging(self, name: str) -> list[str]:
        """See ``Elsewhere``."""
        return await self._member.lagging(host_of(name))

    def has_ended(self, name: str) -> None:
        """See ``Elsewhere``."""
        host = self.server.hosts.get(name)
        if host is not None:
            self._ended.add(host.store)
            self._look_at(name)

    # ---- hosts ----

    def _on_news(self, news: HostNews) -> None:
        name = vhost_of(news.host)
        known = Leader(news.leader, news.leader_name) if news.leader else None
        other = None if news.leader == self._member.config.member else known
        self._states[name] = _State(news.store, other)
        if other is not None and self._links is not None and news.leader_address:
            self._links.know(other.member, other.name, news.leader_address)
        self._end_relays(name, known)
        self.server.hosts_have_changed()
        self._look_at(name)

    def _end_relays(self, name: str, leader: Leader | None) -> None:
        """Those to another member than this one. Without a leader all end, unless one is known soon."""
        if leader is not None:
            if name in self._leaderless:
                self._leaderless.pop(name).cancel()
            self.server.end_relays(name, leader)
        elif name not in self._leaderless:
            later = asyncio.get_running_loop().call_later
            self._leaderless[name] = later(LEADER_NAMED_WITHIN_S, self.server.end_relays, name, None)

    def _look_at(self, name: str) -> None:
        if self._is_stopping:
            return
        self._news.setdefault(name, asyncio.Event()).set()
        if name not in self._tasks:
            self._tasks[name] = asyncio.create_task(self._keep(name), name=f"vhost {name}")

    def _wanted(self, name: str) -> MessageStore | None:
        store = self._states[name].store
        return None if store in self._ended else store

    async def _keep(self, name: str) -> None:
        """Keeps one host open or closed as it is to be, for ever: each change is complete before the next."""
        while True:
            self._news[name].clear()
            wanted, host = self._wanted(name), self.server.hosts.get(name)
            again_s: float | None = None
            try:
                if host is not None and host.store is not wanted:
                    await self._close(name)
                elif host is None and wanted is not None:
                    await self.server.open_host(name, wanted)
                    logger.info("vhost %r: this member leads it, and serves its clients", name)
            except (StoreError, BrokerError) as error:
                if self._wanted(name) is wanted:
                    logger.error("vhost %r cannot be served: %s", name, error)
                    again_s = OPEN_AGAIN_S
            except Exception:
                logger.exception("vhost %r cannot be served", name)
                again_s = OPEN_AGAIN_S
            host = self.server.hosts.get(name)
            if again_s is None and (None if host is None else host.store) is not self._wanted(name):
                continue
            await self._wait_for_news(name, again_s)

    async def _wait_for_news(self, name: str, within_s: float | None) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._news[name].wait(), within_s)

    async def _close(self, name: str) -> None:
        """Closes a host that this member leads no longer. Its clients are told who does, if that is known soon."""
        host = self.server.hosts[name]
        host.poison = host.poison or StoreError("its member leads no longer")
        deadline = self.server.loop.time() + LEADER_NAMED_WITHIN_S
        while self._states[name].leader is None and self._states[name].store in (None, host.store):
            left_s = deadline - self.server.loop.time()
            if left_s <= 0:
                break
            await self._wait_for_news(name, left_s)
            self._news[name].clear()
        leader = self._states[name].leader
        logger.info(
            "vhost %r: this member leads it no longer; %d connections end, and %s",
            name,
            len(host.connections),
            "nobody leads it yet" if leader is None else f"member {leader.name} leads it",
        )
        await self.server.close_host(name, led_by(name, leader))
        self._ended.discard(host.store)
