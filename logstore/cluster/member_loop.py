"""The objects on a member's loop: its groups, the calls that they make, and the calls of the transport.

The loop has a thread of its own. Groups work on their disks in threads of theirs, so that the loop answers heartbeats
at any time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from logstore.cluster import engine as engines
from logstore.cluster import relaying
from logstore.cluster.adding import Adding
from logstore.cluster.addresses import named, parse_named
from logstore.cluster.directory import VOTE_NAME, read_vote, takes_part
from logstore.cluster.disk_room import HasRoom
from logstore.cluster.engine import time_all
from logstore.cluster.frames import STATES_OF_PLACES
from logstore.cluster.group import Group, HostNews
from logstore.cluster.group_update import answer_update
from logstore.cluster.joining import Join, Joined, ask, receive_join, remember, remembered, send
from logstore.cluster.membership import (
    CHANGE_WITHIN_S,
    MESSAGES,
    REFUSED,
    Change,
    Changed,
    Requests,
    Wanted,
    change_here,
)
from logstore.cluster.rebuilding import Rebuilding
from logstore.cluster.refusals import HostOffered, HostRefused, Refusals
from logstore.cluster.reopening import Reopening
from logstore.cluster.replica import create
from logstore.cluster.transport import Hello, Identity, Me, Message, Received, Transport, new_event_loop
from logstore.core.threads import start
from logstore.errors import EngineRefused, NoMajority, NotLeader, OptionError, StoreClosed, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence
    from pathlib import Path

    from logstore.cluster.engine import Frame
    from logstore.cluster.frames import Carried
    from logstore.cluster.link import Link
    from logstore.cluster.member import MemberConfig
    from logstore.cluster.relaying import Acceptor
    from logstore.store.message_store import MessageStore

logger = logging.getLogger(__name__)

SWITCH_INTERVAL_S: Final = 0.0005
HAND_OVER_S: Final = 1.0
LEAVES_AFTER_S: Final = 1.0
"""How long a removed member stays connected, so that it learns of its removal."""
KEEP_S: Final = 0.25
JOIN_AGAIN_S: Final = (0.2, 5.0)
JOIN_COPY_S: Final = 1.0
"""Between two looks whether a copy, which is on its way, has come."""


@dataclass(frozen=True, slots=True)
class Seat:
    """A member of a host's group."""

    member: int
    name: str
    address: str
    voter: bool
    """Else a standby, which has no vote and becomes a voter once it has all."""
    acknowledged: int
    """The index that it has, as the leader knows; 0 on other members."""
    problem: str
    """Why there is no connection to it; empty if there is one, or if it is this member."""


class MemberLoop:
    """The objects on the loop: the calls of the groups, and the handler of the transport."""

    def __init__(self, directory: Path, config: MemberConfig) -> None:
        self.directory = directory
        self.config = config
        self.member = config.member
        self.cluster = config.cluster
        self.groups: dict[bytes, Group] = {}
        self._unopened: list[Group] = []  # whose copies could not be opened
        self.address = ""
        self.loop = new_event_loop()
        self._transport: Transport | None = None
        self._by_number: dict[int, Group] = {}
        self._numbers: dict[bytes, int] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._keeper: asyncio.TimerHandle | None = None
        self._timed = False
        self._waiting: dict[str, list[asyncio.Event]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._joining: asyncio.Task[None] | None = None
        self._refreshes = False
        self.peers: dict[int, tuple[str, str]] = {}
        """Name and address of each other member, by id."""
        # The same: kept from an earlier run, or from a member that was asked.
        self._heard: dict[int, tuple[str, str]] = {}
        self._requests = Requests(self.tell, self.loop)
        self.rebuilding = Rebuilding(self)
        self.adding = Adding(self)
        self.relay_acceptor: Acceptor | None = None  # of the broker
        self._listener: Callable[[HostNews], object] | None = None
        self._told_of: dict[str, HostNews] = {}
        self._with_news: set[int] = set()  # peers that have hosts of which this member did not know
        self.reopening = Reopening(self)
        self._refused: dict[int, str] = {}  # why each peer was, the last time
        self.refusals = Refusals(self)
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
        sys.setswitchinterval(SWITCH_INTERVAL_S)  # otherwise a thread waits up to 5 ms for the interpreter
        config = self.config
        try:
            me = Me(cluster=config.cluster, member=config.member, name=config.name)
            messages = (*MESSAGES, HasRoom, HostRefused, HostOffered)
            self._transport = Transport(me, self, tls=config.tls, messages=messages)
            self._heard = remembered(self.directory)
            for path in sorted(self.directory.iterdir()):
                if takes_part(path):
                    await self._add(path)
            self._refresh()
            self.address = await self._transport.start(config.listen)
        except BaseException:
            await self.stop()
            raise
        self._set_timer()
        self._keep()
        self.rebuilding.go_on()
        self.join_hosts()

    async def _add(self, path: Path, before: Group | None = None) -> None:
        assert self._transport is not None
        group = Group(self, path.name, path, kept_bytes=self.config.kept_bytes, before=before)
        try:
            await group.open()
        except StoreError as error:
            vote = read_vote(path)
            group.uuid = b"" if vote is None else vote.uuid.bytes
            group.fail(error)
            await group.has_closed()
            self._unopened.append(group)
            return
        number = self._transport.host(group.uuid)
        self.groups[group.uuid] = group
        self._numbers[group.uuid] = number
        self._by_number[number] = group
        self.reopening.is_open(group)
        self._transport.renew()  # each side judges the copies that the other one has when they connect

    async def take_host(self, path: Path) -> None:
        """Opens a host that was made here, and lets the peers know."""
        await self._add(path)
        self._refresh()
        self.transport.renew()

    async def reopen(self, group: Group) -> None:
        """Opens a host's copy again, which may be another one now."""
        await group.close()
        await self._add(group.path, group)
        self._unopened = [each for each in self._unopened if each is not group]
        self.groups = {uuid: each for uuid, each in self.groups.items() if each is not group}
        self._refresh()
        for event in self._waiting.get(group.name, []):
            event.set()

    async def stop(self) -> None:
        """Hands over what it leads, closes the connections, then the groups."""
        if self._joining is not None:
            self._joining.cancel()
        await self.rebuilding.stop()
        await self.reopening.stop()
        await self._hand_over()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for timer in (self._timer, self._keeper):
            if timer is not None:
                timer.cancel()
        if self._transport is not None:
            await self._transport.close()
        for group in self.all_groups():
            await group.close()
        for events in self._waiting.values():
            for event in events:
                event.set()

    async def _hand_over(self) -> None:
        """Hands over what this member leads, so that the others need not wait for an election."""
        led = []
        for group in self.groups.values():
            others = [each for each in group.members() if each.voter and each.member != self.member]
            if group.store is not None and any(self.is_connected(each.member, group) for each in others):
                with contextlib.suppress(EngineRefused):
                    group.transfer()
                    led.append(group)
        end = self.loop.time() + HAND_OVER_S
        for group in led:
            with self.told(group.name) as event:
                while group.leader == self.member and (left := end - self.loop.time()) > 0:
                    event.clear()
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(event.wait(), left)

    @contextlib.contextmanager
    def told(self, host: str) -> Iterator[asyncio.Event]:
        """An event that is set at each change of a host."""
        event = asyncio.Event()
        waiting = self._waiting.setdefault(host, [])
        waiting.append(event)
        try:
            yield event
        finally:
            waiting.remove(event)

    def all_groups(self) -> list[Group]:
        """All hosts, including those whose copies could not be opened."""
        return [*self.groups.values(), *self._unopened]

    def unopened(self) -> list[Group]:
        """Those whose copies could not be opened."""
        return list(self._unopened)

    def group(self, host: str) -> Group:
        """The group of this name. ``OptionError``."""
        for group in self.all_groups():
            if group.name == host:
                return group
        names = ", ".join(sorted(group.name for group in self.all_groups())) or "none"
        raise OptionError(f"this member has no host called {host!r}: it has {names}")

    async def leading(self, host: str, within_s: float) -> MessageStore:
        """See :meth:`Member.store`."""
        group = self.group(host)
        began = time.monotonic()
        with self.told(host) as event:
            while True:
                if group.store is not None:
                    return group.store
                self._judge(group)
                left = within_s - (time.monotonic() - began)
                if left <= 0:
                    waited_s = time.monotonic() - began
                    raise NoMajority(f"host {host} has no leader since {waited_s:.1f} s: {self._why(group)}")
                event.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(event.wait(), left)

    def _judge(self, group: Group) -> None:
        standing = group.standing()
        if standing.state == "failed":
            raise StoreError(f"host {group.name} has left its group on this member: {standing.problem}")
        if standing.state == "closed":
            raise StoreClosed(f"member {self.config.name} is closed")
        if standing.leader and standing.leader != self.member:
            name, address = self.peers.get(standing.leader, ("", ""))
            raise NotLeader(
                f"member {name or standing.leader} leads host {group.name}: ask it at {address or 'its address'}",
                standing.leader,
            )

    def _why(self, group: Group) -> str:
        reasons = [] if self._transport is None else [self.why_not(peer, group) for peer in self.peers]
        return "; ".join(reason for reason in reasons if reason) or "its members elect one"

    # ---- members ----

    def seats(self, group: Group) -> list[Seat]:
        """The members of a group."""
        found = []
        for each in group.members():
            name, address = self._named(each)
            is_known = each.member == self.member or self._transport is None
            problem = "" if is_known else self.why_not(each.member, group)
            found.append(Seat(each.member, name, address, each.voter, each.acknowledged, problem))
        return found

    @staticmethod
    def _named(member: engines.Member) -> tuple[str, str]:
        try:
            return parse_named(member.address)
        except OptionError:
            return "", member.address

    async def change(self, host: str, wanted: Wanted, within_s: float) -> None:
        """Has a host's leader make a change of its members."""
        await self._requests.change(self.group(host), wanted, within_s)

    def tell(self, peer: int, message: Message) -> bool:
        """Sends a control message; False: not connected."""
        return self._transport is not None and self._transport.control(peer, message)

    def members_changed(self, group: Group) -> None:  # noqa: ARG002 - of any group
        """At the end of this turn, adjusts the connections to the members of all groups."""
        if not self._refreshes:
            self._refreshes = True
            self.loop.call_soon(self._refresh)

    def _refresh(self) -> None:
        self._refreshes = False
        if self._transport is None:
            return
        lists = [group.members() for group in self.groups.values()]
        found = {} if lists and all(lists) else dict(self._heard)
        found |= {each.member: self._named(each) for members in lists for each in members}
        found.pop(self.member, None)
        if found == self.peers:
            return
        leaving = {member: known for member, known in self.peers.items() if member not in found}
        try:
            self._transport.set_peers(leaving | found)
        except OptionError as error:
            logger.error("member %d keeps its connections as they are: %s", self.member, error)
            return
        if leaving:
            self.loop.call_later(LEAVES_AFTER_S, self._drop_peers)
        self.peers = found
        self._heard = found
        if found:
            self.loop.run_in_executor(None, remember, self.directory, found)

    def _drop_peers(self) -> None:
        """Closes the connections to members that left; by now the reason has been sent to them."""
        if self._transport is not None:
            self._transport.set_peers(self.peers)

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # ---- joining ----

    @property
    def transport(self) -> Transport:
        """The connections, from :meth:`start` on."""
        assert self._transport is not None
        return self._transport

    @property
    def reached_at(self) -> str:
        """The address at which the other members reach this member."""
        return self.config.advertise or self.address

    def addresses(self) -> list[str]:
        """The addresses of the other members that are known, and of those in the configuration."""
        return list(dict.fromkeys([*self.config.join, *(address for _, address in self._heard.values())]))

    def join_hosts(self) -> None:
        """Asks other members to be added to each host of which this member has no copy, until it has one."""
        if self._joining is None or self._joining.done():
            self._joining = self._begin(self._join_hosts())

    async def _join_hosts(self) -> None:
        wait_s = JOIN_AGAIN_S[0]
        while self._transport is not None:
            waiting = [group for group in self.groups.values() if group.engine is not None and not group.members()]
            news = {self.peers[peer][1]: peer for peer in self._with_news if peer in self.peers}
            if not waiting and not news and self.all_groups() and (self.groups or self._heard):
                return
            addresses = list(dict.fromkeys([*news, *self.addresses()]))
            if not addresses:
                return
            problem = ""
            for address in addresses:
                try:
                    problem = await self._join_at(address, [group.uuid for group in waiting])
                except (StoreError, OSError) as error:
                    problem = str(error)
                else:
                    self._with_news.discard(news.get(address, 0))
                if not problem:
                    break
            for group in waiting:
                group.waits_for = problem
            if problem:
                logger.warning("member %d has not joined yet: %s", self.member, problem)
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, JOIN_AGAIN_S[1])
            else:
                # The member asks to be added, or its copy is being sent.
                await asyncio.sleep(JOIN_COPY_S if waiting else 0)

    async def _join_at(self, address: str, wanted: list[bytes]) -> str:
        """Why the member was not added; empty: it was added, or it has now learned which hosts exist."""
        _, answer = await ask(self.transport, address, Join(self.reached_at, wanted))
        for member, text in answer.members:
            if member != self.member:
                self._heard = {**self._heard, member: parse_named(text)}
        for uuid, name in answer.hosts:
            if all(uuid != group.uuid and name != group.name for group in self.all_groups()):
                path = self.directory / name
                if (path / VOTE_NAME).exists():
                    logger.warning("host %s is not joined: %s has another store of this name", name, path)
                    continue
                await self.loop.run_in_executor(None, _make_host, path, self.config, uuid)
                await self._add(path)
        self._refresh()
        return answer.refused

    def join(self, hello: Hello, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A program asks to become a member."""
        self._begin(self._answer_join(hello, reader, writer))

    def relay(self, name: str, link: Link) -> None:
        """A peer relays a client to this member's broker."""
        self._begin(relaying.answer(self.relay_acceptor, name, link))

    async def _answer_join(self, hello: Hello, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            join = await asyncio.wait_for(receive_join(reader), CHANGE_WITHIN_S)
            refused, left = "", []
            voters = [(group.uuid, group.voters_with(hello.member)) for group in self.groups.values()]
            try:
                for uuid in join.leaves:
                    group = self._hosted(uuid)
                    await self._requests.change(group, Wanted(engines.REMOVE, hello.member), join.within_s)
                    term = 0 if group.answer is None else group.answer.term
                    left.append((uuid, term, group.counted_rebuild(hello.member)))
                for uuid in join.hosts:
                    group = self._hosted(uuid)
                    _refuse_voter(group, hello)
                    wanted = Wanted(
                        engines.ADD, hello.member, named(hello.name, join.address), speaks=hello.versions[1]
                    )
                    await self._requests.change(group, wanted, CHANGE_WITHIN_S)
            except StoreError as error:
                refused = str(error)
            me = (self.member, named(self.config.name, self.reached_at))
            members = [me, *((member, named(*known)) for member, known in self.peers.items())]
            hosts = [(group.uuid, group.name) for group in self.groups.values() if group.members()]
            await send(writer, Joined(members, hosts, refused, left, voters))
        except (StoreError, TimeoutError, OSError) as error:
            logger.warning("member %d (%s) has not joined: %s", hello.member, hello.name, error)
        finally:
            writer.close()

    def _hosted(self, uuid: bytes) -> Group:
        """The group of a host, if this member takes part in it and has a copy."""
        group = self.groups.get(uuid)
        if group is None or not group.members():
            raise StoreError(f"member {self.config.name} has no copy of host {uuid.hex()} that takes part")
        return group

    # ---- for the groups ----

    def now_ms(self) -> int:
        """The clock of all engines."""
        return int(self.loop.time() * 1000)

    def send(self, peer: int, group: Group, frame: Frame, carried: Sequence[Carried]) -> bool:
        """Sends a frame of a group."""
        transport = self._transport
        if self.refusals.why_not(peer, group.uuid):
            return False
        return transport is not None and transport.send(peer, self._numbers[group.uuid], frame, carried)

    async def open_update(self, peer: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Opens a connection for an update."""
        if self._transport is None:
            raise StoreClosed(f"member {self.config.name} is closed")
        return await self._transport.open_update(peer)

    def why_not(self, peer: int, group: Group | None = None) -> str:
        """Why there is no connection to a peer, or why no frames of a group can be sent; empty: there is one."""
        if self._transport is None:
            return "this member is starting"
        return self._transport.why_not(peer) or ("" if group is None else self.refusals.why_not(peer, group.uuid))

    def speaks(self, peer: int) -> int:
        """The highest version of the protocol that the peer announced, see ``Transport.speaks``."""
        return 0 if self._transport is None else self._transport.speaks(peer)

    def is_connected(self, peer: int, group: Group | None = None) -> bool:
        """Whether frames, or those of this group, can be sent to the peer."""
        return not self.why_not(peer, group)

    def changed(self, group: Group) -> None:
        """The group's leader, its state or its due time has changed."""
        for event in self._waiting.get(group.name, ()):
            event.set()
        if self._listener is not None:
            self._tell_listener(group)
        self._set_timer()

    def listen(self, listener: Callable[[HostNews], object] | None) -> None:
        """It is called on this loop with each host as it stands, and whenever its store or its leader is another."""
        self._listener = listener
        self._told_of.clear()
        for group in self.all_groups() if listener is not None else ():
            self._tell_listener(group)

    def _tell_listener(self, group: Group) -> None:
        """Once for each state."""
        known = {**self.peers, self.member: (self.config.name, self.reached_at)}
        named = known.get(group.leader, (str(group.leader), ""))
        news = HostNews(group.name, group.served, group.leader, *named)
        if self._listener is not None and self._told_of.get(group.name) != news:
            self._told_of[group.name] = news
            self._listener(news)

    async def why_not_led(self, host: str) -> str:
        """Why nobody leads it."""
        return self._why(self.group(host))

    def _set_timer(self) -> None:
        """Runs once, at the end of this turn."""
        if not self._timed:
            self._timed = True
            self.loop.call_soon(self._time_is_set)

    def _time_is_set(self) -> None:
        self._timed = False
        due_ms = self._due_ms()
        if self._timer is not None and due_ms is not None and self._timer.when() * 1000 <= due_ms:
            return  # each batch moves the due time: it is checked again when the timer ends
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if due_ms is None else self.loop.call_at(due_ms / 1000, self._on_time)

    def _due_ms(self) -> int | None:
        """The earliest time at which an engine is due."""
        dues = [group.answer.due_ms for group in self.groups.values() if group.engine is not None and group.answer]
        return min(dues) if dues else None

    def _keep(self) -> None:
        """Looks at the groups on a timer of its own, because each heartbeat moves the due times of engines."""
        for group in list(self.groups.values()):
            group.refusal = self.refusals.problem(group.uuid)
            group.keep(self.now_ms())
        self.refusals.look(self.now_ms())
        self.reopening.look(self.now_ms())
        self._keeper = self.loop.call_later(KEEP_S, self._keep)

    def _on_time(self) -> None:
        """One call gives the time to all engines that are due."""
        self._timer = None
        due_ms = self._due_ms()
        if due_ms is None or due_ms > self.now_ms():
            self._set_timer()
            return
        by_engine = {group.engine: group for group in self.groups.values() if group.engine is not None}
        for engine, answer in time_all(list(by_engine), self.now_ms()):
            by_engine[engine].time(answer)
        self._set_timer()

    # ---- for the transport ----

    def identity(self, peer: int) -> dict[bytes, Identity]:  # noqa: ARG002 - as the transport calls it
        """The state of each host on this member."""
        return {group.uuid: group.identity(first=True) for group in self.groups.values() if group.engine is not None}

    def greeted(self, peer: int, hello: Hello) -> str | None:
        """Judges each copy of a peer for its host. Refuses a peer whose program does not know what a log has."""
        unknown = self._with_unknown_records(peer, hello)
        if unknown is not None:
            return (
                f"host {unknown.name} has states of places, and {hello.name}'s program ({hello.program}) does not know "
                "them: start that member with the program of the others"
            )
        self.refusals.greeted(peer, hello)
        if hello.purpose == "frames" and not hello.hosts.keys() <= {group.uuid for group in self.all_groups()}:
            self._with_news.add(peer)
        return None

    def _with_unknown_records(self, peer: int, hello: Hello) -> Group | None:
        if hello.versions[1] >= STATES_OF_PLACES:
            return None
        for group in self.all_groups():
            if group.leads and group.remembers and any(each.member == peer for each in group.members()):
                return group
        return None

    def is_expected(self, hello: Hello) -> bool:
        """Accepts an unknown peer whose log reaches further: it may have been added while this member was away."""
        for uuid, told in hello.hosts.items():
            group = self.groups.get(uuid)
            if group is not None and group.is_behind(told):
                return True
        return False

    def connected(self, peer: int) -> None:
        """Frames can be sent to the peer."""
        self.refusals.connected(peer)
        for group in self.all_groups():
            group.connected(peer)
        if peer in self._with_news:
            self.join_hosts()

    def lost(self, peer: int, reset: bool) -> None:
        """The connection to a peer is gone."""
        self._with_news.discard(peer)
        self._requests.lost(peer)
        for group in list(self.groups.values()):
            group.lost(peer, reset)

    def frames(self, peer: int, received: list[Received]) -> None:
        """Engine frames have arrived."""
        refused = self.refusals.here(peer)
        for one in received:
            group = self._by_number.get(one.host)
            if group is None or group.uuid in refused:
                one.consumed()
            else:
                group.receive(peer, one)

    def control(self, peer: int, message: Message) -> None:
        """A control message has arrived: a request, or the answer to one."""
        if isinstance(message, Changed):
            self._requests.answered(peer, message)
        elif isinstance(message, HasRoom):
            group = self.groups.get(message.host)
            if group is not None and message.host not in self.refusals.here(peer):
                group.rooms.told(peer, message)
        elif isinstance(message, HostRefused):
            self.refusals.refused(peer, message)
        elif isinstance(message, HostOffered):
            self.refusals.offered(peer, message)
        elif isinstance(message, Change):
            self._begin(self._answer_change(peer, message))

    async def _answer_change(self, peer: int, asked: Change) -> None:
        group = self.groups.get(asked.host)
        if group is None:
            kind, reason = REFUSED, f"member {self.config.name} has no such host"
        else:
            kind, reason = await change_here(
                group, Wanted(asked.what, asked.member, asked.address, asked.voters, asked.speaks)
            )
        self.tell(peer, Changed(asked.request, kind, reason))

    def room(self, peer: int) -> None:
        """There is room again: frames that waited are sent."""
        for group in list(self.groups.values()):
            group.room(peer)

    def refused(self, peer: int, kind: str, reason: str) -> None:
        """A connection was refused. The same reason again is no news."""
        level = logging.DEBUG if self._refused.get(peer) == reason else logging.WARNING
        self._refused[peer] = reason
        logger.log(level, "member %d: connection refused (%s): %s", peer, kind, reason)

    def update(self, peer: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A peer asks for an update of a host."""
        self._begin(answer_update(self.member, self.groups, self.refusals.here(peer), peer, reader, writer))


def _make_host(path: Path, config: MemberConfig, uuid: bytes) -> None:
    path.mkdir(exist_ok=True)
    create(path, config.member, config.cluster, uuid=uuid)


def _refuse_voter(group: Group, hello: Hello) -> None:
    """Refuses an empty copy of a voter: the voter had a copy, and what that acknowledged counts (R11)."""
    if any(each.member == hello.member and each.voter for each in group.members()):
        raise StoreError(
            f"member {hello.name} is a voter of host {group.name} and has lost its copy: its directory was wiped, or "
            f"is not the one that it had. Get a fresh copy with 'logstore cluster rebuild {group.name}'"
        )
