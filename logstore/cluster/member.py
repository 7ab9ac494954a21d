"""A member of a cluster: one loop for all its groups, their engines and the connections to the other members.

The loop has a thread of its own. Groups work on their disks in threads of theirs, so that the loop answers heartbeats
at any time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from logstore.cluster import reports
from logstore.cluster.directory import takes_part
from logstore.cluster.engine import time_all
from logstore.cluster.group import Group, Standing
from logstore.cluster.transport import Hello, Identity, Me, Message, Received, Transport, new_event_loop
from logstore.core.threads import start
from logstore.errors import NoMajority, NotLeader, OptionError, StoreClosed, StoreError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
    from types import TracebackType

    from logstore.cluster.addresses import Tls
    from logstore.cluster.engine import Frame
    from logstore.cluster.frames import Carried
    from logstore.store.message_store import MessageStore

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

LEADER_WITHIN_S: Final = 3.0
"""How long a caller waits for a leader unless it says otherwise."""
SWITCH_INTERVAL_S: Final = 0.0005


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberConfig:
    """What a member must know to take part."""

    cluster: bytes
    """The cluster's UUID, 16 bytes."""
    member: int
    """This member's id, from 1 on."""
    name: str
    listen: str
    """The address for other members, ``host:port``."""
    peers: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    """Name and address of each other member, by id."""
    tls: Tls | None = None
    """Needed unless every address is of the loopback."""


class Member:
    """A running member. Its methods may be called from any thread; it closes with ``with`` or :meth:`close`.

    ``directory`` has one directory for each host, a replicated store, with ``VOTE`` and the member's copy in it.
    """

    def __init__(self, directory: str | Path, config: MemberConfig) -> None:
        """Starts it, and returns when it listens. Raises what opening a copy raises, and ``OptionError``."""
        self.directory = Path(directory)
        self.config = config
        self._running = _Running(self.directory, config)
        self._closed = False
        try:
            self._run(self._running.start())
        except BaseException:
            self._closed = True
            self._running.end()
            raise

    def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        if threading.get_ident() == self._running.thread_id:
            work.close()
            raise StoreError("a blocking call on the member's own loop would never end: make it in another thread")
        return asyncio.run_coroutine_threadsafe(work, self._running.loop).result()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Leaves: groups that this member leads are not handed over. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        try:
            self._run(self._running.stop())
        finally:
            self._running.end()

    @property
    def address(self) -> str:
        """Where it listens for other members."""
        return self._running.address

    def standings(self) -> dict[str, Standing]:
        """How each host stands on this member, by name."""

        async def ask() -> dict[str, Standing]:
            return {group.name: group.standing() for group in self._running.groups.values()}

        return self._run(ask())

    def report(self) -> dict[str, Any]:
        """The hosts, their members and the connections, as ``logstore cluster status --json`` has them."""

        async def ask() -> dict[str, Any]:
            return reports.running(self._running)

        return self._run(ask())

    def transfer(self, host: str, member: int = 0) -> None:
        """Hands the host over to this voter, or to any. ``EngineRefused``: this member does not lead it."""

        async def hand_over() -> None:
            self._running.group(host).transfer(member)

        self._run(hand_over())

    def store(self, host: str, *, within_s: float = LEADER_WITHIN_S) -> MessageStore:
        """The store of a host that this member leads; waits that long for an election to end.

        Raises ``NotLeader``, which names who leads, and ``NoMajority`` if nobody does.
        """
        return self._run(self._running.leading(host, within_s))

    @contextlib.asynccontextmanager
    async def leading(self, host: str, *, within_s: float = LEADER_WITHIN_S) -> AsyncIterator[MessageStore]:
        """The same for a program with a loop of its own. The store's calls wait; make them in threads."""
        work = self._running.leading(host, within_s)
        yield await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._running.loop))


class _Running:
    """What lives on the loop: the groups' surroundings and the transport's handler."""

    def __init__(self, directory: Path, config: MemberConfig) -> None:
        self.directory = directory
        self.config = config
        self.member = config.member
        self.groups: dict[bytes, Group] = {}
        self.address = ""
        self.loop = new_event_loop()
        self._transport: Transport | None = None
        self._by_number: dict[int, Group] = {}
        self._numbers: dict[bytes, int] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timed = False
        self._waiting: dict[str, list[asyncio.Event]] = {}
        self._thread = start(f"logstore-member-{config.member}", self._turn)
        assert self._thread.ident is not None
        self.thread_id = self._thread.ident

    def _turn(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        self.loop.close()

    def end(self) -> None:
        """Ends the loop and its thread."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()

    async def start(self) -> None:
        """Opens all hosts, then the connections."""
        sys.setswitchinterval(SWITCH_INTERVAL_S)  # a thread waits up to 5 ms for the interpreter otherwise
        config = self.config
        try:
            me = Me(cluster=config.cluster, member=config.member, name=config.name)
            self._transport = Transport(me, self, tls=config.tls)
            for path in sorted(self.directory.iterdir()):
                if takes_part(path):
                    await self._add(path)
            self._transport.set_peers(config.peers)
            self.address = await self._transport.start(config.listen)
        except BaseException:
            await self.stop()
            raise
        self._set_timer()

    async def _add(self, path: Path) -> None:
        assert self._transport is not None
        group = Group(self, path.name, path)
        await group.open()
        number = self._transport.host(group.uuid)
        self.groups[group.uuid] = group
        self._numbers[group.uuid] = number
        self._by_number[number] = group

    async def stop(self) -> None:
        """Closes the connections, then the groups."""
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            await self._transport.close()
        for group in self.groups.values():
            await group.close()
        for events in self._waiting.values():
            for event in events:
                event.set()

    def group(self, host: str) -> Group:
        """The group of this name. ``OptionError``."""
        for group in self.groups.values():
            if group.name == host:
                return group
        names = ", ".join(sorted(group.name for group in self.groups.values())) or "none"
        raise OptionError(f"this member has no host called {host!r}: it has {names}")

    async def leading(self, host: str, within_s: float) -> MessageStore:
        """See :meth:`Member.store`."""
        group = self.group(host)
        event = asyncio.Event()
        began = time.monotonic()
        self._waiting.setdefault(host, []).append(event)
        try:
            while True:
                if group.store is not None:
                    return group.store
                self._judge(group)
                left = within_s - (time.monotonic() - began)
                if left <= 0:
                    raise NoMajority(f"host {host} has no leader since {time.monotonic() - began:.1f} s: {self._why()}")
                event.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(event.wait(), left)
        finally:
            self._waiting[host].remove(event)

    def _judge(self, group: Group) -> None:
        standing = group.standing()
        if standing.state == "failed":
            raise StoreError(f"host {group.name} has left its group on this member: {standing.problem}")
        if standing.state == "closed":
            raise StoreClosed(f"member {self.config.name} is closed")
        if standing.leader and standing.leader != self.member:
            name, address = self.config.peers.get(standing.leader, ("", ""))
            raise NotLeader(
                f"member {name or standing.leader} leads host {group.name}: ask it at {address or 'its address'}",
                standing.leader,
            )

    def _why(self) -> str:
        transport = self._transport
        reasons = [] if transport is None else [transport.why_not(peer) for peer in self.config.peers]
        return "; ".join(reason for reason in reasons if reason) or "its members elect one"

    # ---- for the groups ----

    def now_ms(self) -> int:
        """The clock of all engines."""
        return int(self.loop.time() * 1000)

    def send(self, peer: int, group: Group, frame: Frame, carried: Sequence[Carried]) -> bool:
        """Sends a frame of a group."""
        transport = self._transport
        return transport is not None and transport.send(peer, self._numbers[group.uuid], frame, carried)

    def why_not(self, peer: int) -> str:
        """Why there is no connection to a peer; empty: there is one."""
        return "this member is starting" if self._transport is None else self._transport.why_not(peer)

    def is_connected(self, peer: int) -> bool:
        """Whether frames can be sent."""
        return not self.why_not(peer)

    def changed(self, group: Group) -> None:
        """The group's leader, its state or its due time is another."""
        for event in self._waiting.get(group.name, ()):
            event.set()
        self._set_timer()

    def _set_timer(self) -> None:
        """At the end of this turn, once."""
        if not self._timed:
            self._timed = True
            self.loop.call_soon(self._time_is_set)

    def _time_is_set(self) -> None:
        self._timed = False
        dues = [group.answer.due_ms for group in self.groups.values() if group.engine is not None and group.answer]
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_at(min(dues) / 1000, self._on_time) if dues else None

    def _on_time(self) -> None:
        """One call gives the time to all engines that are due."""
        self._timer = None
        by_engine = {group.engine: group for group in self.groups.values() if group.engine is not None}
        for engine, answer in time_all(list(by_engine), self.now_ms()):
            by_engine[engine].time(answer)
        self._set_timer()

    # ---- for the transport ----

    def identity(self, peer: int) -> dict[bytes, Identity]:  # noqa: ARG002 - as the transport calls it
        """What this member has of each host."""
        return {group.uuid: group.identity(first=True) for group in self.groups.values() if group.engine is not None}

    def greeted(self, peer: int, hello: Hello) -> str | None:
        """Judges the copies of a peer."""
        for uuid, told in hello.hosts.items():
            group = self.groups.get(uuid)
            reason = None if group is None else group.judge(peer, hello.start, told)
            if reason is not None:
                return reason
        return None

    def connected(self, peer: int) -> None:
        """Frames can be sent."""

    def lost(self, peer: int, reset: bool) -> None:
        """The connection to a peer is gone."""
        for group in list(self.groups.values()):
            group.lost(peer, reset)

    def frames(self, peer: int, received: list[Received]) -> None:
        """Engine frames came."""
        for one in received:
            group = self._by_number.get(one.host)
            if group is None:
                one.consumed()
            else:
                group.receive(peer, one)

    def control(self, peer: int, message: Message) -> None:
        """There are no control messages of the member yet."""

    def room(self, peer: int) -> None:
        """Frames that waited go on."""
        for group in list(self.groups.values()):
            group.room(peer)

    def refused(self, peer: int, kind: str, reason: str) -> None:
        """A connection was refused."""
        logger.warning("member %d: connection refused (%s): %s", peer, kind, reason)

    def update(self, peer: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:  # noqa: ARG002
        """No update is sent yet."""
        writer.close()
