"""Changes of a group's members: one at a time, through its log, by the member that leads (R11).

A member joins as a standby, is brought up to date, and becomes a voter once it has all. No member has to remember that
it is on its way: each leader looks at its standbys. A request may come from any member; it goes to the one that leads.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from logstore.cluster import engine as engines
from logstore.cluster.addresses import parse_named
from logstore.cluster.frames import STATES_OF_PLACES, Message
from logstore.cluster.jobs import ChangeMembers
from logstore.cluster.replica import Batch, configuration_of
from logstore.errors import EngineRefused, NoMajority, NotLeader, OptionError, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from logstore.cluster.engine import Member
    from logstore.cluster.group import Group

logger = logging.getLogger(__name__)

VOTERS_MAX: Final = 5
AGAIN_S: Final = 0.1
CHANGE_WITHIN_S: Final = 30.0
"""How long a request waits for a leader that can make the change, unless its caller says otherwise."""


def is_due(members: Sequence[Member]) -> int:
    """The standby that is to become a voter, or 0: one or two voters grow to three, and from there by two at a time."""
    voters = sum(each.voter for each in members)
    ready = [each.member for each in members if not each.voter and each.acknowledged]
    if not ready or voters >= VOTERS_MAX:
        return 0
    if voters < 3 or voters % 2 == 0 or (len(ready) >= 2 and voters + 2 <= VOTERS_MAX):
        return ready[0]
    return 0


class Changes:
    """The changes that this member makes in a group that it leads. It belongs to the loop."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._planned = b""
        self._index = 0  # index of the batch that has the change; 0: it is not handed out yet
        self._done: asyncio.Future[None] | None = None

    @property
    def is_open(self) -> bool:
        """Whether a change is in progress."""
        return self._done is not None

    def begin(self, what: int, member: int, address: str = "") -> asyncio.Future[None]:
        """Begins a change; the future ends when a majority has it.

        ``EngineRefused``: not now, or this member does not lead. ``OptionError``: no configuration comes of it.
        """
        group, engine = self._group, self._group.engine
        if engine is None or self.is_open:
            raise EngineRefused(f"host {group.name}: another change of members is in progress, or it takes no part")
        if what == engines.ADD:
            group.keep_from(2)  # an empty member gets everything that it needs by an update
        self._planned = engine.plan(what, member, address)
        self._index = 0
        self._done = group.loop.create_future()
        self._done.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody may wait for it
        group.give(ChangeMembers(self._planned))
        return self._done

    def configuration_of(self, batch: Batch) -> bytes:
        """The configuration in a batch that the log has handed out; empty: the batch is an ordinary one."""
        if not self._planned or self._index:
            return b""
        try:
            found = configuration_of(batch)
        except OptionError:
            return b""
        self._index = batch.index
        return found

    def durable(self, index: int) -> None:
        """A majority has everything up to this index."""
        if self._index and index >= self._index:
            self._end(None)

    def failed(self, error: StoreError) -> None:
        """The log did not accept the change."""
        self._end(error)

    def call_off(self) -> None:
        """The member no longer leads."""
        self._end(NotLeader("the leader changed during a change of members: look whether it was made", 0))

    def _end(self, error: StoreError | None) -> None:
        done, self._done = self._done, None
        self._planned, self._index = b"", 0
        if done is None or done.done():
            return
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    def promote(self) -> None:
        """Makes a voter of a standby that has caught up. Called now and then, while this member serves."""
        engine = self._group.engine
        if engine is None or self.is_open:
            return
        member = is_due(engine.members())
        if member:
            with contextlib.suppress(EngineRefused):  # it lacks some yet
                self.begin(engines.PROMOTE, member)
                logger.info("host %s: member %d has all and becomes a voter", self._group.name, member)


# ---- requests --------------------------------------------------------------------------------------------------------


class Change(Message, frozen=True, tag=16):
    """A member asks another member, the leader as far as it knows, for a change of members."""

    request: int
    host: bytes
    what: int
    member: int
    address: str
    voters: int = 0
    speaks: int = 0


class Changed(Message, frozen=True, tag=17):
    """The answer to such a request."""

    request: int
    kind: str
    """Of ``KINDS``."""
    reason: str


DONE: Final = "done"
LATER: Final = "later"
"""Not now, or not here: ask again."""
REFUSED: Final = "refused"
MESSAGES: Final = (Change, Changed)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A change of a group's members."""

    what: int
    member: int
    address: str = ""
    """Of ``ADD``: ``NAME@HOST:PORT``."""
    voters: int = 0
    """Of ``PROMOTE``: not needed once there are so many; 0: it is, whatever their number."""
    speaks: int = 0
    """Of ``ADD``: the highest version of the protocol that the member announced."""


def is_made(members: Sequence[Member], wanted: Wanted) -> bool:
    """Whether the members of the group are as this change wants them.

    ``OptionError``: another one has that id, name or address.
    """
    found = next((each for each in members if each.member == wanted.member), None)
    if wanted.what == engines.REMOVE:
        return found is None
    if wanted.what == engines.PROMOTE:
        is_enough = 0 < wanted.voters <= sum(each.voter for each in members)
        return found is not None and (found.voter or is_enough)
    name, address = parse_named(wanted.address)
    for each in members:
        has_name, has_address = _parsed(each.address)
        if each.member == wanted.member and each.address == wanted.address:
            continue
        if each.member == wanted.member or has_name == name or has_address == address:
            raise OptionError(
                f"member {wanted.member} ({name} at {address}) cannot be added, because member {each.member} is "
                f"{has_name} at {has_address}: ids, names and addresses are used once"
            )
    return found is not None


def _parsed(text: str) -> tuple[str, str]:
    try:
        return parse_named(text)
    except OptionError:
        return "", text


def _too_few(group: Group, members: Sequence[Member], leaves: int) -> str:
    """Why nothing could become durable without this member; empty: a majority of the others is connected."""
    rest = [each.member for each in members if each.voter and each.member != leaves]
    there = sum(one == group.member or group.is_connected(one) for one in rest)
    if not rest or 2 * there > len(rest):
        return ""
    return (
        f"without member {leaves} host {group.name} has {len(rest)} voters, of which a majority is needed, and "
        f"{there} can be reached now"
    )


def _too_old(group: Group, wanted: Wanted) -> str:
    """Why the program of a member to be added cannot follow the log; empty: it can."""
    if wanted.what != engines.ADD or not group.remembers or wanted.speaks >= STATES_OF_PLACES:
        return ""
    return (
        f"member {wanted.member} cannot be added: host {group.name} has states of places, and the program of that "
        "member does not know them: start it with the program of the others"
    )


async def change_here(group: Group, wanted: Wanted) -> tuple[str, str]:
    """Makes a change as the leader; returns kind and reason of the answer."""
    engine = group.engine
    if engine is None or group.store is None:
        return LATER, f"member {group.member} does not lead host {group.name}"
    try:
        if group.changes.is_open:
            return LATER, f"another change of the members of host {group.name} is in progress"
        if is_made(engine.members(), wanted):
            return DONE, ""
        if too_old := _too_old(group, wanted):
            return REFUSED, too_old
        if wanted.what == engines.REMOVE and (lacking := _too_few(group, engine.members(), wanted.member)):
            return LATER, lacking
        if wanted.what == engines.REMOVE and wanted.member == group.member:
            if sum(each.voter for each in engine.members()) == 1:
                return REFUSED, f"member {wanted.member} is the only voter of host {group.name}"
            group.transfer()
            return LATER, f"member {wanted.member} leads host {group.name}, and hands over"
        await group.changes.begin(wanted.what, wanted.member, wanted.address)
    except OptionError as error:
        return REFUSED, str(error)
    except StoreError as error:
        # EngineRefused; or NotLeader or OutcomeUnknown: the next attempt sees whether the change was made.
        return LATER, str(error)
    return DONE, ""


class Requests:
    """The requests that this member sends to other members. It belongs to the loop."""

    def __init__(self, send: Callable[[int, Message], bool], loop: asyncio.AbstractEventLoop) -> None:
        self._send = send
        self._loop = loop
        self._next = 0
        self._open: dict[int, tuple[int, asyncio.Future[tuple[str, str]]]] = {}

    async def ask(self, peer: int, host: bytes, wanted: Wanted, within_s: float) -> tuple[str, str]:
        """Sends a request to a peer; returns kind and reason of its answer."""
        self._next += 1
        answer: asyncio.Future[tuple[str, str]] = self._loop.create_future()
        self._open[self._next] = (peer, answer)
        request = self._next
        try:
            change = Change(request, host, wanted.what, wanted.member, wanted.address, wanted.voters, wanted.speaks)
            if not self._send(peer, change):
                return LATER, f"member {peer}, which leads, is not connected"
            return await asyncio.wait_for(answer, within_s)
        except TimeoutError:
            return LATER, f"member {peer}, which leads, has not answered"
        finally:
            del self._open[request]

    def answered(self, peer: int, message: Changed) -> None:
        """An answer came."""
        asked, answer = self._open.get(message.request, (0, None))
        if answer is not None and asked == peer and not answer.done():
            answer.set_result((message.kind, message.reason))

    def lost(self, peer: int) -> None:
        """The connection to a peer is gone, so no answer of that peer will arrive."""
        for asked, answer in self._open.values():
            if asked == peer and not answer.done():
                answer.set_result((LATER, f"the connection to member {peer}, which leads, is gone"))

    async def change(self, group: Group, wanted: Wanted, within_s: float) -> None:
        """Lets the leader make a change, and asks again while it cannot.

        Raises ``OptionError`` for a change that no time makes possible, ``NoMajority`` if it was not made in time.
        """
        end = self._loop.time() + within_s
        reason = ""
        while (left := end - self._loop.time()) > 0:
            leader = group.leader
            if leader == group.member:
                kind, reason = await change_here(group, wanted)
            elif leader:
                kind, reason = await self.ask(leader, group.uuid, wanted, left)
            else:
                kind, reason = LATER, "no leader is known"
            if kind == DONE:
                return
            if kind == REFUSED:
                raise OptionError(reason)
            await asyncio.sleep(min(AGAIN_S, left))
        raise NoMajority(f"host {group.name}: the members were not changed within {within_s:.0f} s: {reason}")
