"""One replicated store on a member: its engine, its copy, and the thread that works on the disk for both.

```
        the member's loop                                     the group's thread
 frames, time, forced ──▶ engine ──▶ answer ──▶ jobs ──────▶  take, durable, cut, vote, lead, cease
      ▲                      │                                      │
      │                      └──▶ frames to send                    │
      └───────────────────── what was done ◀────────────────────────┘
```

* The loop owns the engine. The thread owns the copy, but while the copy leads the loop takes its batches and reads
  kept ones.
* The thread does its jobs in the order in which they were given (``copy_thread.py``).
* A job that fails ends the group: it leaves, says why, and the member lives on.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Concatenate, Final, ParamSpec, Protocol

from logstore.cluster import appends
from logstore.cluster import engine as engines
from logstore.cluster.copy_thread import CopyThread
from logstore.cluster.counting import Counts
from logstore.cluster.disk_room import Rooms
from logstore.cluster.engine import Answer, Engine, Frame, Member
from logstore.cluster.frames import STATES_OF_PLACES, Carried, Identity
from logstore.cluster.group_update import GroupUpdates
from logstore.cluster.jobs import (
    Cut,
    Durable,
    Follow,
    Found,
    Job,
    Lead,
    Serve,
    Take,
    Vote,
    carried_of,
    found_in,
)
from logstore.cluster.keeping import Keeping
from logstore.cluster.membership import Changes
from logstore.cluster.pacing import Pacing
from logstore.cluster.replica import Batch, Copy, LeadingStore
from logstore.cluster.said import Said
from logstore.core import arguments
from logstore.errors import BatchRefused, EngineRefused, StoreError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from logstore.cluster.frames import Message
    from logstore.cluster.link import Received
    from logstore.store.message_store import MessageStore

logger = logging.getLogger(__name__)

_P = ParamSpec("_P")

KEPT_BYTES: Final = 64 << 20
NEWS_S: Final = 0.002
"""How long the news of what is durable may wait for an append, which says it as well."""


class Around(Protocol):
    """The calls that a group makes to its member. All of it is called on the loop."""

    member: int
    cluster: bytes
    """The cluster's UUID."""
    loop: asyncio.AbstractEventLoop

    def now_ms(self) -> int:
        """The clock of all engines, in ms."""

    def send(self, peer: int, group: Group, frame: Frame, carried: Sequence[Carried]) -> bool:
        """Sends a frame, see ``Transport.send``."""

    def is_connected(self, peer: int, group: Group) -> bool:
        """Whether frames of the group can be sent."""

    def speaks(self, peer: int) -> int:
        """The highest version of the protocol that the peer announced, see ``Transport.speaks``."""

    def tell(self, peer: int, message: Message) -> bool:
        """Sends a control message; False: not connected."""

    async def open_update(self, peer: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Opens a connection for an update, see ``Transport.open_update``."""

    def changed(self, group: Group) -> None:
        """Called when the group's leader, its state or its due time has changed."""

    def members_changed(self, group: Group) -> None:
        """Called when the group's configuration may have changed."""


@dataclass(frozen=True, slots=True)
class Standing:
    """The state of a group on this member."""

    state: str
    """``follows``, ``leads`` (it serves), ``stands`` (it leads and does not serve yet), ``failed`` or ``closed``."""
    term: int
    leader: int
    """The member that leads; 0: none is known."""
    index: int
    durable_index: int
    paced_by: int
    """The member that lags, for which this leader holds confirms back; 0: none."""
    problem: str


@dataclass(frozen=True, slots=True, eq=True)
class HostNews:
    """What a broker must know of a host."""

    host: str
    store: MessageStore | None
    """The store, while this member leads and serves."""
    leader: int
    """The member that leads; 0: none is known."""
    leader_name: str
    leader_address: str


def _guarded(method: Callable[Concatenate[Group, _P], None]) -> Callable[Concatenate[Group, _P], None]:
    """Ends the group if an event's handler fails: the failure would go unnoticed, and later answers would be wrong."""

    @functools.wraps(method)
    def guarded(group: Group, /, *given: _P.args, **named: _P.kwargs) -> None:
        try:
            method(group, *given, **named)
        except EngineRefused:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is
            group.fail(error)

    return guarded


class Group:
    """One replicated store on this member. Its methods are called on the member's loop."""

    def __init__(
        self,
        around: Around,
        name: str,
        host_dir: Path,
        *,
        kept_bytes: int = KEPT_BYTES,
        before: Group | None = None,
    ) -> None:
        """Sets up the group; :meth:`open` opens its copy.

        ``before``: the same host, whose copy this process has had open.
        """
        self.name = name
        self.path = host_dir
        self.store: MessageStore | None = None
        """The store, while this member leads and serves."""
        self.problem: StoreError | None = None
        self._problem_before = "" if before is None else str(before.problem)
        self.waits_for = ""
        """Why it has no copy, or an old one; empty: it waits for nothing."""
        self.refusal = ""  # why this copy, or another member's copy, is refused
        self._around = around
        self._kept_bytes = arguments.integer("kept_bytes", kept_bytes, 1, arguments.LSN_MAX)
        self._copy: Copy | None = None
        self._engine: Engine | None = None
        self.thread = CopyThread(self)
        self._closed = False
        self._ended = False  # the thread, too
        self._leading: LeadingStore | None = None
        self._term = 0  # the term that this member leads, from the engine's LEAD on; 0: it does not lead
        self._first = 0  # the index of that term's first batch
        self._unsubmitted: deque[Batch] = deque()
        self.pacing = Pacing(self._kept_bytes)
        # Index and end of each batch that is durable and not confirmed yet.
        self._unconfirmed: deque[tuple[int, int]] = deque()
        # Batches that this leader handed out and that are not durable yet, by index.
        self._recent: dict[int, Carried] = {}
        self._forced = 0  # index forced on the leader's disk, as far as the engine knows
        self._held: dict[int, deque[tuple[Frame, list[Carried]]]] = {}  # for peers without room
        self._news: dict[int, Frame] = {}  # what is durable, for each peer
        self._tells_news = False  # soon
        self.said: Said = Said() if before is None else before.said
        self._counts: Counts = Counts() if before is None else before._counts
        self._tail = (0, 0)  # term and index of the last batch that is forced here
        self._durable = (0, 0)
        self._told = 0  # the newest durable index that was passed to the thread
        self._rebuild = self._start_term = 0
        self._keeping = Keeping(self, self._kept_bytes)
        self.uuid = b""
        self.changes = Changes(self)
        self.copy_number = 0
        """The store is in the directory ``copy-N``; 0: an update is to bring it."""
        self.updates = GroupUpdates(self, around)
        self.rooms = Rooms(self, around)
        self.answer: Answer | None = None
        """The engine's latest."""
        self.remembers = False
        """Whether the log of this leader has states of places, so that every member has to know them."""

    # ---- opening and closing ----

    async def open(self) -> None:
        """Opens the copy and starts the engine. Raises as :meth:`Copy.open` does."""
        loop = self._around.loop
        found = await loop.run_in_executor(self.thread.executor, self._open_copy)
        now_ms = self._around.now_ms()
        self.uuid, self.copy_number = found.uuid, found.copy
        options = engines.Options(
            group=int.from_bytes(found.uuid[:8], "little") or 1,
            member=self._around.member,
            seed=int.from_bytes(os.urandom(4), "little") or 1,
        )
        self.said.began(found)
        self._tail = found.tail
        self._durable = found.durable
        self._told = found.durable[1]
        self._rebuild, self._start_term = found.rebuild, found.start_term
        self._engine = Engine(options, found.log, now_ms)
        self._act(self._engine.answer)
        self._around.members_changed(self)

    def _open_copy(self) -> Found:
        copy = self._copy = Copy.open(self.path, kept_bytes=self._kept_bytes, catalog=True)
        found = found_in(copy)
        if found.member != self.member:
            raise StoreError(
                f"{self.path} belongs to member {found.member}, and this is member {self.member}: no directory is "
                "another member's"
            )
        if found.cluster != self._around.cluster:
            raise StoreError(
                f"{self.path} belongs to cluster {found.cluster.hex()}, and this member to cluster "
                f"{self._around.cluster.hex()}: put the directory back where it was"
            )
        self.said.check(self.path, found)
        return found

    async def close(self) -> None:
        """Leaves the group in order: on return the copy is closed and the thread has ended.

        A second call does nothing.
        """
        if self._ended:
            return
        self._closed = self._ended = True
        self._stop_reading()
        self.thread.stop()
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()
        await self.updates.close()
        await self._around.loop.run_in_executor(self.thread.executor, self._close_copy)
        self.thread.executor.shutdown(wait=False)
        self._around.changed(self)

    def _close_copy(self) -> None:
        copy, self._copy = self._copy, None
        self.store = None
        if copy is not None:
            copy.close()

    def is_connected(self, peer: int) -> bool:
        """Whether frames can be sent to this member."""
        return self._around.is_connected(peer, self)

    def counted_rebuild(self, member: int) -> int:
        """The rebuild number that this member has counted for another member's copy."""
        return self._counts.rebuild_of(member)

    def fail(self, error: BaseException) -> None:
        """The group ends on this member, because its disk or its log can no longer be trusted."""
        if self._closed:
            return
        self.problem = error if isinstance(error, StoreError) else StoreError(f"{type(error).__name__}: {error}")
        is_news = self._problem_before != str(self.problem)
        level = logging.ERROR if is_news else logging.DEBUG
        logger.log(level, "host %s leaves its group on this member: %s", self.name, error, exc_info=error)
        self._closed = True
        self._stop_reading()
        self.thread.stop()
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()
        self.updates.stop()
        self.thread.executor.submit(self._close_failed)
        self._around.changed(self)

    async def has_closed(self) -> None:
        """After a failure: on return the copy is closed, and its directory may be replaced."""
        await self._around.loop.run_in_executor(self.thread.executor, lambda: None)

    def _close_failed(self) -> None:
        with contextlib.suppress(StoreError):
            self._close_copy()

    # ---- what the member asks ----

    @property
    def engine(self) -> Engine | None:
        """The engine; None: the group failed or is closed."""
        return self._engine

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The options of the member."""
        return self._around.loop

    @property
    def member(self) -> int:
        """The id of this member."""
        return self._around.member

    @property
    def leader(self) -> int:
        """The member that leads; 0: none is known."""
        return 0 if self.answer is None or self._closed else self.answer.leader

    @property
    def served(self) -> MessageStore | None:
        """The store, while this member leads and serves, and its copy can be relied on."""
        return None if self._closed else self.store

    @property
    def leads(self) -> bool:
        """Whether the copy leads; it may not serve yet."""
        return self._leading is not None

    @property
    def leading(self) -> LeadingStore | None:
        """The copy that leads."""
        return self._leading

    @property
    def copy(self) -> Copy | None:
        """The copy; None: the group failed or is closed."""
        return self._copy

    @property
    def term(self) -> int:
        """The term that this member leads in, serving or not; 0: it follows."""
        return self._term

    @property
    def tail(self) -> tuple[int, int]:
        """Term and index of the last batch that is forced here."""
        return self._tail

    @property
    def durable(self) -> tuple[int, int]:
        """Term and index of the last batch that is known to be durable."""
        return self._durable

    @property
    def told(self) -> int:
        """The newest durable index that was passed to the copy while it follows."""
        return self._told

    def now_ms(self) -> int:
        """The clock of all engines, in ms."""
        return self._around.now_ms()

    def members(self) -> list[Member]:
        """The newest configuration that this member has; empty without a copy."""
        return [] if self._engine is None else self._engine.members()

    def voters_with(self, member: int) -> int:
        """How many voters there are, this member among them; 0: it is none."""
        voters = [each.member for each in self.members() if each.voter]
        return len(voters) if member in voters else 0

    def standing(self) -> Standing:
        """The group's state."""
        answer = self.answer
        state = "follows"
        if self._closed:
            state = "closed" if self.problem is None else "failed"
        elif self._term:
            state = "leads" if self.store is not None else "stands"
        return Standing(
            state,
            0 if answer is None else answer.term,
            0 if answer is None else answer.leader,
            0 if answer is None else answer.last_index,
            0 if answer is None else answer.durable_index,
            self.pacing.held_by(self._around.now_ms()),
            (self.waits_for or self.refusal or self.rooms.problem) if self.problem is None else str(self.problem),
        )

    def undurable_bytes(self) -> int:
        """The bytes of the batches that this leader handed out and that no majority has yet."""
        durable = 0 if self.answer is None else self.answer.durable_index
        return sum(len(one.batch.data) for index, one in self._recent.items() if index > durable)

    def identity(self, first: bool) -> Identity:
        """The state of the host on this member's disk, for a HELLO."""
        return Identity(self._rebuild, *self._tail, self._start_term, first)

    def is_behind(self, told: Identity) -> bool:
        """Whether a peer's log reaches further than the log of this member."""
        return (told.tail_term, told.tail_index) > self._tail

    def judge(self, peer: int, start: int, told: Identity) -> str | None:
        """Why a peer's copy is refused (R10); None: it is accepted."""
        return self._counts.judge(peer, start, told, self._durable, self._term)

    # ---- events ----

    @_guarded
    def receive(self, peer: int, received: Received) -> None:
        """An engine frame of this host has arrived."""
        if self._engine is None:
            received.consumed()
            return
        frame = Frame._make(received.frame)
        (answer,) = self._engine.receive(self._around.now_ms(), (frame,))
        self._count(peer, frame)
        self._act(answer, received.batches, received.consumed)
        self._confirm()
        if answer.flags & engines.CUT or any(entry[1] == engines.MEMBERS for entry in frame.entries):
            self._around.members_changed(self)

    @_guarded
    def act(self, answer: Answer) -> None:
        """The engine has answered to an event about an update."""
        self._act(answer)

    @_guarded
    def time(self, answer: Answer) -> None:
        """The engine has answered to the time."""
        self._act(answer)
        self._confirm()
        self._submit()  # a transfer may have ended without success

    @_guarded
    def lost(self, peer: int, reset: bool) -> None:
        """The connection to a peer is gone."""
        self._held.pop(peer, None)
        self.pacing.lost(peer)
        self.updates.lost(peer)
        self.rooms.lost(peer)
        if reset and self._engine is not None:
            self._act(self._engine.lost(self._around.now_ms(), peer))

    @_guarded
    def room(self, peer: int) -> None:
        """There is room again: sends the frames that waited for it."""
        held = self._held.get(peer)
        while held:
            if not self._around.send(peer, self, *held[0]):
                if not self._around.is_connected(peer, self):
                    held.clear()
                return
            held.popleft()
        self._held.pop(peer, None)

    @_guarded
    def connected(self, peer: int) -> None:  # noqa: ARG002 - any of them may be the last
        """A peer is connected."""
        self._look_at_versions()

    def transfer(self, member: int = 0) -> None:
        """Hands over to this voter, or to any. ``EngineRefused``: it does not lead, or cannot now."""
        if self._engine is None:
            raise EngineRefused(f"host {self.name} takes no part on this member")
        self._act(self._engine.transfer(self._around.now_ms(), member))

    # ---- the engine's answers ----

    def _act(self, answer: Answer, batches: Sequence[Batch] = (), consumed: Callable[[], None] | None = None) -> None:
        before, self.answer = self.answer, answer
        self.updates.acted()
        flags = answer.flags
        if flags & (engines.FOLLOW | engines.CUT):
            self._step_back(answer)
        if flags & engines.VOTE:  # VOTE before the batches: the copy takes no batch of a term that VOTE does not have
            self.give(Vote(answer.vote_term, answer.voted_for, answer.vote_number))
        if flags & engines.TAKE:
            at = answer.take_index - batches[0].index
            self.give(Take(list(batches[at : at + answer.take_count]), consumed))
        elif consumed is not None:
            consumed()
        if flags & ~(engines.FOLLOW | engines.CUT | engines.VOTE | engines.TAKE):
            self._step_on(answer)
        for frame in answer.frames:
            self._send(frame)
        if before is None or (before.leader, before.due_ms) != (answer.leader, answer.due_ms) or flags:
            self._around.changed(self)
        if flags & engines.SNAPSHOT:
            self.keep_from(1)

    def _step_back(self, answer: Answer) -> None:
        if answer.flags & engines.FOLLOW:
            self._stop_reading()
            self.store = None
            self.give(Follow(answer.last_index))
        if answer.flags & engines.CUT:
            self.give(Cut(answer.cut_index - 1, self.said))

    def _step_on(self, answer: Answer) -> None:
        flags = answer.flags
        if flags & engines.LEAD:
            self._term, self._first = answer.term, answer.first_index
            self.give(Lead(answer.term, threading.get_ident()))
        if flags & engines.DURABLE:  # before SERVE: the log must know what is durable before it reports that it leads
            self._is_durable(answer.durable_index)
        if flags & engines.SERVE:
            self.give(Serve())
        if flags & engines.COPY:
            self.updates.take(answer.update_from, answer.update_index)
        if flags & engines.SWITCH:
            self.updates.switch()
        if flags & engines.CONFLICT:
            logger.error("host %s: a frame contradicts what is durable here", self.name)

    def _send(self, frame: Frame) -> None:
        if frame.type == engines.UPDATE:
            self.pacing.offered(frame.peer, frame.log_index)
        if frame.flags & engines.NO_ANSWER:
            self._news[frame.peer] = frame
            self._tell_news_soon()
            return
        if not frame.entry_count:
            self._send_one(frame, [])
            return
        carried = self._carried(frame.log_index + 1, frame.entry_count)
        if carried is None:
            return  # treated like a lost frame; the engine sends it again
        self._news.pop(frame.peer, None)
        for part, some in appends.parts(frame, carried):
            self._send_one(part, some)

    def _tell_news_soon(self) -> None:
        if not self._tells_news:
            self._tells_news = True
            self.loop.call_later(NEWS_S, self._tell_news, dict(self._news))

    @_guarded
    def _tell_news(self, waited: dict[int, Frame]) -> None:
        """Sends the news that has waited since this call was planned; later news waits as long."""
        self._tells_news = False
        for peer, frame in waited.items():
            if self._news.get(peer) is frame:
                del self._news[peer]
                self._send_one(frame, [])
        if self._news:
            self._tell_news_soon()

    def _send_one(self, frame: Frame, carried: list[Carried]) -> None:
        held = self._held.get(frame.peer)
        if held is None and self._around.send(frame.peer, self, frame, carried):
            return
        if held is None and not self._around.is_connected(frame.peer, self):
            return
        self._held.setdefault(frame.peer, deque()).append((frame, carried))  # in order, behind what waits

    def _carried(self, index: int, count: int) -> list[Carried] | None:
        carried = []
        copy = self._copy
        for at in range(index, index + count):
            one = self._recent.get(at)
            if one is None:
                if copy is None or self._leading is None:
                    return None
                try:
                    one = carried_of(copy, at)
                except BatchRefused:
                    self._around.loop.call_soon(self._keep_what_is_there)
                    return None
                except StoreError as error:
                    self.fail(error)
                    return None
            carried.append(one)
        return carried

    def _count(self, peer: int, frame: Frame) -> None:
        """Counts what a member said, to compare it when the member connects again (R10)."""
        granted = frame.flags & (engines.GRANTED | engines.PRE_VOTE) == engines.GRANTED
        if frame.type == engines.VOTED and granted:
            self._counts.voted(peer, frame.term)
        leads = self._term and frame.term == self._term and self._leading is not None
        if frame.type == engines.APPENDED and leads and frame.other == 0 and frame.log_index:
            self.pacing.acknowledged(peer, frame.log_index, self._around.now_ms())
            term = self._term_of(frame.log_index)
            if term:
                self._counts.acknowledged(peer, frame.term, term, frame.log_index)

    def _term_of(self, index: int) -> int:
        one = self._recent.get(index)
        if one is not None:
            return one.batch.term
        if index >= self._durable[1] and self._durable[0] == self._term:
            return self._term
        try:
            return 0 if self._copy is None else self._copy.entry(index).term
        except BatchRefused:
            return 0

    # ---- leading ----

    def led(self, leading: LeadingStore, term: int) -> None:
        """The copy leads now."""
        if self._term != term or self._closed:
            return  # it ceases already: that job waits
        self._leading = leading
        self.remembers = False
        self._forced = 0
        self.rooms.changed()
        self._around.loop.add_reader(leading.fileno(), self._on_log)
        self._on_log()

    @_guarded
    def _on_log(self) -> None:
        """The log has handed out a batch, or has forced one."""
        leading, engine = self._leading, self._engine
        if leading is None or engine is None:
            return
        with contextlib.suppress(BlockingIOError):
            os.read(leading.fileno(), 8)
        try:
            while (batch := leading.next()) is not None:
                self._unsubmitted.append(batch)
        except StoreError as error:
            self.fail(error)
            return
        self._submit()
        self._note_forced()

    def _submit(self) -> None:
        while self._unsubmitted and self._engine is not None and self._leading is not None:
            if not self._engine.may_submit():
                return  # handed out during a transfer: these batches stay, or are cut
            batch = self._unsubmitted.popleft()
            first = batch.index == self._first
            config = self.changes.configuration_of(batch)
            kind = engines.MEMBERS if config else engines.FIRST if first else engines.BATCH
            self._recent[batch.index] = Carried(batch, kind, config)
            self.pacing.written(batch.index, len(batch.data))
            try:
                answer = self._engine.submit(self._around.now_ms(), engines.Entry(batch.term, kind, config))
            except EngineRefused as error:
                self.fail(error)
                return
            self._act(answer)
            if config:
                self._around.members_changed(self)

    def _note_forced(self) -> None:
        leading, engine = self._leading, self._engine
        if leading is None or engine is None or self.answer is None:
            return
        forced = min(leading.forced, self.answer.last_index)
        if forced > self._forced and forced in self._recent:
            self._forced = forced
            term = self._recent[forced].batch.term
            self._is_forced(term, forced)
            self._act(engine.forced(self._around.now_ms(), forced, term))

    def _is_durable(self, index: int) -> None:
        if self._leading is None:
            self.give(Durable(index))
            return
        one = self._recent.get(index)
        if one is None:
            return  # batches of an earlier term: the first batch of this term makes all of them durable
        self._durable = (one.batch.term, index)
        self.updates.became_durable()
        self._unconfirmed.append((index, one.batch.end_lsn))
        self._confirm()
        self.changes.durable(index)
        for each in [each for each in self._recent if each <= index - 8]:
            del self._recent[each]
        self._submit()

    def _confirm(self, *, all_of_it: bool = False) -> None:
        """Passes what is durable to the log, as fast as a lagging voter allows; until the store serves, at once."""
        waiting, now_ms, end_lsn = self._unconfirmed, self._around.now_ms(), 0
        while waiting and (all_of_it or self.store is None or self.pacing.confirms(waiting[0][0], now_ms)):
            end_lsn = waiting.popleft()[1]
        if end_lsn and self._leading is not None and self._leading.store is not None:
            self._leading.majority_has(end_lsn)

    def _stop_reading(self) -> None:
        self._confirm(all_of_it=True)
        self.pacing.begin()
        leading, self._leading = self._leading, None
        if leading is not None and leading.store is not None:
            self._around.loop.remove_reader(leading.fileno())
            leading.call_off()  # the thread may wait for a majority
        self._unsubmitted.clear()
        self._recent.clear()
        self._held.clear()
        self._news.clear()
        self._term = 0
        self.changes.call_off()

    # ---- what the thread has done ----

    def _is_forced(self, term: int, index: int) -> None:
        self._tail = self.said.tail = (term, index)

    def forced_here(self, index: int, term: int) -> None:
        """The batch and all batches before it are forced here."""
        self._is_forced(term, index)
        if self._engine is not None:
            self._act(self._engine.forced(self._around.now_ms(), index, term))

    def applied(self, index: int, term: int) -> None:
        """Everything up to this index has been applied to the table."""
        self._told = index
        self._durable = (term, index)
        self.updates.became_durable()

    def was_cut(self, term: int, index: int) -> None:
        """The log was cut here: no peer is asked for more than this member has (R10)."""
        self._is_forced(term, index)
        self._counts.lower(term, index)

    def voted(self, number: int, term: int, voted_for: int) -> None:
        """``VOTE`` is forced."""
        self.said.voted(term, voted_for)
        if self._engine is not None:
            self._act(self._engine.vote_forced(self._around.now_ms(), number))

    def serves(self, leading: LeadingStore | None, store: MessageStore | None) -> None:
        """The store is open."""
        if leading is not None and leading is self._leading and store is not None:
            self.store = store
            self._look_at_versions()
            self._around.changed(self)

    def follows_again(self, term: int, index: int) -> None:
        """The copy follows again after it led, and its log was forced again."""
        self.was_cut(term, index)
        if index:
            self.forced_here(index, term)

    def switched(self, copy_number: int, term: int, index: int) -> None:
        """The copy that an update brought is in use, and all of it is durable (R10: lowers the counts to its end)."""
        self._counts.lower(*self._durable)
        self.copy_number = copy_number
        self._is_forced(term, index)
        self._durable = (term, index)
        self._told = index
        if self._engine is not None:
            self._act(self._engine.switched(self._around.now_ms()))
        self.updates.switched()
        self._around.members_changed(self)

    # ---- what stays for other members ----

    @_guarded
    def keep(self, now_ms: int) -> None:
        """Called now and then: drops what need not be kept, makes voters of standbys, probes the disk."""
        if self._leading is not None and self._leading.store is not None:
            self._leading.probe_disk()
        if self._engine is None or not self._keeping.look(now_ms):
            return
        self.pacing.members = frozenset(one.member for one in self.members()) - {self.member}
        self.rooms.changed()
        if self.store is not None:
            self.changes.promote()
            self._look_at_versions()

    def _look_at_versions(self) -> None:
        """Lets the log have states of places once every member has said that it knows them (R12)."""
        leading = self._leading
        if leading is None or self.store is None or self.remembers:
            return
        others = [each.member for each in self.members() if each.member != self.member]
        every = all(self._around.speaks(member) >= STATES_OF_PLACES for member in others)
        self.remembers = leading.remember(every=every)

    def keep_from(self, index: int) -> None:
        """Drops the entries below this index, if the engine agrees."""
        self._keeping.keep_from(index)

    @_guarded
    def _keep_what_is_there(self) -> None:
        """A peer needs a batch that the copy does not keep, or that could not be read: the peer needs an update."""
        if self._leading is not None and self._copy is not None:
            self.keep_from(self._copy.kept().start)

    # ---- the thread ----

    def give(self, job: Job) -> None:
        """Adds a job for the thread, behind the jobs that wait."""
        self.thread.give(job)
