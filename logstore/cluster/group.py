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
* Jobs are done in the order in which they were given; batches that wait are taken together (R3), and only the newest
  "durable" counts.
* A job that fails ends the group: it leaves, says why, and the member lives on.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, Protocol

from logstore._core import ffi, lib
from logstore.cluster import engine as engines
from logstore.cluster.engine import Answer, Engine, Frame, Member
from logstore.cluster.frames import Carried, Identity
from logstore.cluster.group_update import GroupUpdates
from logstore.cluster.jobs import (
    Cut,
    Drop,
    Durable,
    Follow,
    Found,
    Job,
    Keep,
    Lead,
    NoteCatalog,
    NoteTail,
    Serve,
    Take,
    Vote,
    carried_of,
    first_to_keep,
    found_in,
    take_and_apply,
)
from logstore.cluster.membership import Changes
from logstore.cluster.replica import Batch, Copy, LeadingStore
from logstore.core import arguments
from logstore.errors import BatchRefused, EngineRefused, StoreError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from logstore.cluster.link import Received
    from logstore.store.message_store import MessageStore

logger = logging.getLogger(__name__)

_P = ParamSpec("_P")

KEPT_BYTES: Final = 64 << 20
KEEP_EVERY_MS: Final = 1000
FLOOR_EVERY_MS: Final = 500
NOTE_CATALOG_EVERY_MS: Final = 10_000


class Around(Protocol):
    """What a group needs of its member. All of it is called on the loop."""

    member: int
    loop: asyncio.AbstractEventLoop

    def now_ms(self) -> int:
        """The clock of all engines, in ms."""

    def send(self, peer: int, group: Group, frame: Frame, carried: Sequence[Carried]) -> bool:
        """Sends a frame, see ``Transport.send``."""

    def is_connected(self, peer: int) -> bool:
        """Whether frames can be sent."""

    async def open_update(self, peer: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Opens a connection for an update, see ``Transport.open_update``."""

    def changed(self, group: Group) -> None:
        """The group's leader, its state or its due time is another."""

    def members_changed(self, group: Group) -> None:
        """The group's configuration may be another."""


@dataclass(frozen=True, slots=True)
class Standing:
    """How a group stands on this member."""

    state: str
    """``follows``, ``leads`` (it serves), ``stands`` (it leads and does not serve yet), ``failed`` or ``closed``."""
    term: int
    leader: int
    """The member that leads; 0: none is known."""
    index: int
    durable_index: int
    problem: str


def _guarded(method: Callable[Concatenate[Group, _P], None]) -> Callable[Concatenate[Group, _P], None]:
    """An event whose handler fails ends the group: nothing else would notice, and its answers are not to be trusted."""

    @functools.wraps(method)
    def guarded(group: Group, /, *given: _P.args, **named: _P.kwargs) -> None:
        try:
            method(group, *given, **named)
        except EngineRefused:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is
            group.fail(error)

    return guarded


class _Counted:
    """What this member counts of each peer (R10)."""

    def __init__(self) -> None:
        self.identity = ffi.new("ls_identity *")
        self.rebuild = 0
        self.start = 0
        """Of the process that was heard last."""


class Group:
    """One replicated store on this member. Its methods are called on the member's loop."""

    def __init__(self, around: Around, name: str, host_dir: Path, *, kept_bytes: int = KEPT_BYTES) -> None:
        """Opens nothing yet, see :meth:`open`."""
        self.name = name
        self.path = host_dir
        self.store: MessageStore | None = None
        """The store, while this member leads and serves."""
        self.problem: StoreError | None = None
        self._around = around
        self._kept_bytes = arguments.integer("kept_bytes", kept_bytes, 1, arguments.LSN_MAX)
        self._copy: Copy | None = None
        self._engine: Engine | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"logstore-{name}")
        self._jobs: deque[Job] = deque()
        self._is_working = False
        self._closed = False
        self._leading: LeadingStore | None = None
        self._term = 0  # that is led, from the engine's LEAD on; 0: none
        self._first = 0  # the index of that term's first batch
        self._unsubmitted: deque[Batch] = deque()
        self._recent: dict[int, Carried] = {}  # handed out by this leader and not durable yet, by index
        self._forced = 0  # by the leader's disk, as the engine knows
        self._held: dict[int, deque[tuple[Frame, list[Carried]]]] = {}  # for peers without room
        self._counted: dict[int, _Counted] = {}
        self._tail = (0, 0)  # term and index that are forced here
        self._durable = (0, 0)
        self._told = 0  # the newest index that the thread was told to be durable
        self._rebuild = self._start_term = 0
        self._kept_ms = self._floor_ms = self._catalog_ms = 0
        self.uuid = b""
        self.changes = Changes(self)
        self.copy_number = 0
        """The store is in the directory ``copy-N``; 0: an update is to bring it."""
        self.updates = GroupUpdates(self, around)
        self.answer: Answer | None = None
        """The engine's latest."""

    # ---- opening and closing ----

    async def open(self) -> None:
        """Opens the copy and starts the engine. Raises as :meth:`Copy.open` does."""
        loop = self._around.loop
        found = await loop.run_in_executor(self._thread, self._open_copy)
        now_ms = self._around.now_ms()
        self.uuid, self.copy_number = found.uuid, found.copy
        options = engines.Options(
            group=int.from_bytes(found.uuid[:8], "little") or 1,
            member=self._around.member,
            seed=int.from_bytes(os.urandom(4), "little") or 1,
        )
        self._tail = found.tail
        self._durable = found.durable
        self._told = found.durable[1]
        self._rebuild, self._start_term = found.rebuild, found.start_term
        self._engine = Engine(options, found.log, now_ms)
        self._act(self._engine.answer)
        self._around.members_changed(self)

    def _open_copy(self) -> Found:
        copy = self._copy = Copy.open(self.path, kept_bytes=self._kept_bytes, catalog=True)
        return found_in(copy)

    async def close(self) -> None:
        """Leaves in order: the copy is closed, and the thread has ended on return."""
        self._closed = True
        self._stop_reading()
        self._jobs.clear()
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()
        await self.updates.close()
        await self._around.loop.run_in_executor(self._thread, self._close_copy)
        self._thread.shutdown(wait=False)
        self._around.changed(self)

    def _close_copy(self) -> None:
        copy, self._copy = self._copy, None
        self.store = None
        if copy is not None:
            copy.close()

    def fail(self, error: BaseException) -> None:
        """The group leaves: its disk or its log cannot be relied on."""
        if self._closed:
            return
        self.problem = error if isinstance(error, StoreError) else StoreError(f"{type(error).__name__}: {error}")
        logger.error("host %s leaves its group on this member: %s", self.name, error, exc_info=error)
        self._closed = True
        self._stop_reading()
        self._jobs.clear()
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()
        self.updates.stop()
        self._thread.submit(self._close_failed)
        self._around.changed(self)

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
        """The member's."""
        return self._around.loop

    @property
    def member(self) -> int:
        """The id of the member that this is on."""
        return self._around.member

    @property
    def leader(self) -> int:
        """The member that leads; 0: none is known."""
        return 0 if self.answer is None or self._closed else self.answer.leader

    def members(self) -> list[Member]:
        """The newest configuration that this member has; empty without a copy."""
        return [] if self._engine is None else self._engine.members()

    def standing(self) -> Standing:
        """How it stands."""
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
            "" if self.problem is None else str(self.problem),
        )

    def undurable_bytes(self) -> int:
        """The bytes of the batches that this leader handed out and that no majority has yet."""
        durable = 0 if self.answer is None else self.answer.durable_index
        return sum(len(one.batch.data) for index, one in self._recent.items() if index > durable)

    def identity(self, first: bool) -> Identity:
        """What this member's disk has of the host, for a HELLO."""
        return Identity(self._rebuild, *self._tail, self._start_term, first)

    def is_behind(self, told: Identity) -> bool:
        """Whether a peer's log reaches further than this one's."""
        return (told.tail_term, told.tail_index) > self._tail

    def judge(self, peer: int, start: int, told: Identity) -> str | None:
        """Why a peer's copy is refused (R10); None: it is accepted."""
        counted = self._counted.setdefault(peer, _Counted())
        new_run = counted.start != start
        given = ffi.new(
            "ls_identity_told *",
            [told.rebuild, told.tail_term, told.tail_index, told.vote_term_at_start, new_run],
        )
        text = lib.ls_identity_judge(counted.identity, given, *self._durable, self._term)
        if text != ffi.NULL:
            return f"host {self.name}: {ffi.string(text).decode()}"
        counted.start, counted.rebuild = start, told.rebuild
        return None

    # ---- events ----

    @_guarded
    def receive(self, peer: int, received: Received) -> None:
        """An engine frame of this host came."""
        if self._engine is None:
            received.consumed()
            return
        frame = Frame._make(received.frame)
        (answer,) = self._engine.receive(self._around.now_ms(), (frame,))
        self._count(peer, frame)
        self._act(answer, received.batches, received.consumed)
        if answer.flags & engines.CUT or any(entry[1] == engines.MEMBERS for entry in frame.entries):
            self._around.members_changed(self)
        self._keep(self._around.now_ms())  # a follower that hears its leader is never due

    @_guarded
    def act(self, answer: Answer) -> None:
        """The engine was told of an update, and this is its answer."""
        self._act(answer)

    @_guarded
    def time(self, answer: Answer) -> None:
        """The engine was given the time, with this answer."""
        self._act(answer)
        self._keep(self._around.now_ms())

    @_guarded
    def lost(self, peer: int, reset: bool) -> None:
        """The connection to a peer is gone."""
        self._held.pop(peer, None)
        self.updates.lost(peer)
        if reset and self._engine is not None:
            self._act(self._engine.lost(self._around.now_ms(), peer))

    @_guarded
    def room(self, peer: int) -> None:
        """Frames that waited for room go on."""
        held = self._held.get(peer)
        while held:
            if not self._around.send(peer, self, *held[0]):
                if not self._around.is_connected(peer):
                    held.clear()
                return
            held.popleft()
        self._held.pop(peer, None)

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
        if flags & engines.TAKE:
            at = answer.take_index - batches[0].index
            self.give(Take(list(batches[at : at + answer.take_count]), consumed))
        elif consumed is not None:
            consumed()
        if flags & ~(engines.FOLLOW | engines.CUT | engines.TAKE):
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
            self.give(Cut(answer.cut_index - 1))

    def _step_on(self, answer: Answer) -> None:
        flags = answer.flags
        if flags & engines.VOTE:
            self.give(Vote(answer.vote_term, answer.voted_for, answer.vote_number))
        if flags & engines.LEAD:
            self._term, self._first = answer.term, answer.first_index
            self.give(Lead(answer.term))
        if flags & engines.DURABLE:  # before SERVE: the log says that it leads once it knows that
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
        carried: list[Carried] = []
        if frame.entry_count:
            found = self._carried(frame.log_index + 1, frame.entry_count)
            if found is None:
                return  # as a frame that is lost; the engine sends it again
            carried = found
        held = self._held.get(frame.peer)
        if held is None and self._around.send(frame.peer, self, frame, carried):
            return
        if held is None and not self._around.is_connected(frame.peer):
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
        """What a member said, for the next time that it comes (R10)."""
        counted = self._counted.setdefault(peer, _Counted())
        granted = frame.flags & (engines.GRANTED | engines.PRE_VOTE) == engines.GRANTED
        if frame.type == engines.VOTED and granted:
            lib.ls_identity_voted(counted.identity, frame.term)
        leads = self._term and frame.term == self._term and self._leading is not None
        if frame.type == engines.APPENDED and leads and frame.other == 0 and frame.log_index:
            term = self._term_of(frame.log_index)
            if term:
                lib.ls_identity_acknowledged(counted.identity, counted.rebuild, frame.term, term, frame.log_index)

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
        """The thread has made the copy lead."""
        if self._term != term or self._closed:
            return  # it ceases already: that job waits
        self._leading = leading
        self._forced = 0
        self._around.loop.add_reader(leading.fileno(), self._on_log)
        self._on_log()

    @_guarded
    def _on_log(self) -> None:
        """The log has handed out a batch, or forced one."""
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
                return  # during a transfer: they stay, or are cut
            batch = self._unsubmitted.popleft()
            first = batch.index == self._first
            config = self.changes.configuration_of(batch)
            kind = engines.MEMBERS if config else engines.FIRST if first else engines.BATCH
            self._recent[batch.index] = Carried(batch, kind, config)
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
            self._tail = (term, forced)
            self._act(engine.forced(self._around.now_ms(), forced, term))

    def _is_durable(self, index: int) -> None:
        if self._leading is None:
            self.give(Durable(index))
            return
        one = self._recent.get(index)
        if one is None:
            return  # of an earlier term: the first batch of this one says it of all before
        self._durable = (one.batch.term, index)
        self.updates.became_durable()
        self._leading.majority_has(one.batch.end_lsn)
        self.changes.durable(index)
        for each in [each for each in self._recent if each <= index - 8]:
            del self._recent[each]
        self._submit()

    def _stop_reading(self) -> None:
        leading, self._leading = self._leading, None
        if leading is not None and leading.store is not None:
            self._around.loop.remove_reader(leading.fileno())
            leading.call_off()  # the thread may wait for a majority
        self._unsubmitted.clear()
        self._recent.clear()
        self._held.clear()
        self._term = 0
        self.changes.call_off()

    # ---- what the thread has done ----

    def forced_here(self, index: int, term: int) -> None:
        """The batch and all before it are forced here."""
        self._tail = (term, index)
        if self._engine is not None:
            self._act(self._engine.forced(self._around.now_ms(), index, term))

    def applied(self, index: int, term: int) -> None:
        """The table has everything up to this index."""
        self._told = index
        self._durable = (term, index)
        self.updates.became_durable()

    def was_cut(self, term: int, index: int) -> None:
        """The log ends here: nobody is asked for more than this member has itself (R10)."""
        self._tail = (term, index)
        for counted in self._counted.values():
            lib.ls_identity_lower(counted.identity, term, index)

    def voted(self, number: int) -> None:
        """``VOTE`` is forced."""
        if self._engine is not None:
            self._act(self._engine.vote_forced(self._around.now_ms(), number))

    def serves(self, leading: LeadingStore | None, store: MessageStore | None) -> None:
        """The store is open."""
        if leading is not None and leading is self._leading and store is not None:
            self.store = store
            self._around.changed(self)

    def follows_again(self, term: int, index: int) -> None:
        """The copy follows after it led, and its log was forced again."""
        self.was_cut(term, index)
        if index:
            self.forced_here(index, term)

    def switched(self, copy_number: int, term: int, index: int) -> None:
        """The copy that an update brought counts, and all that it has is durable (R10: what was counted is lowered)."""
        for counted in self._counted.values():
            lib.ls_identity_lower(counted.identity, *self._durable)
        self.copy_number = copy_number
        self._tail = self._durable = (term, index)
        self._told = index
        if self._engine is not None:
            self._act(self._engine.switched(self._around.now_ms()))
        self.updates.switched()
        self._around.members_changed(self)

    # ---- what stays for other members ----

    def _keep(self, now_ms: int) -> None:
        """Now and then: the kept window, the floor of VOTE, and what the catalog's file says."""
        if now_ms - self._floor_ms >= FLOOR_EVERY_MS:
            self._floor_ms = now_ms
            self.give(NoteTail())
        if now_ms - self._catalog_ms >= NOTE_CATALOG_EVERY_MS:
            self._catalog_ms = now_ms
            self.give(NoteCatalog())
        if now_ms - self._kept_ms >= KEEP_EVERY_MS:
            self._kept_ms = now_ms
            if self.store is not None:
                self.changes.promote()
            if self._leading is not None and self._copy is not None:
                self.keep_from(first_to_keep(self._copy, self._kept_bytes))
            elif not self._term:
                self.give(Keep(self._kept_bytes))

    def keep_from(self, index: int) -> None:
        """Entries below the index need not stay, if the engine agrees."""
        engine, copy, answer = self._engine, self._copy, self.answer
        snapshot = self._durable[1] if self._leading is not None else self._told
        if engine is None or copy is None or answer is None or snapshot < 2:
            return
        first = max(1, min(index, snapshot))
        try:
            made, kept = engine.snapshot(self._around.now_ms(), snapshot, first)
        except EngineRefused:
            return
        self._act(made)
        if self._leading is not None:
            copy.drop_kept(kept)
        else:
            self.give(Drop(kept))

    @_guarded
    def _keep_what_is_there(self) -> None:
        """A peer needs what the copy does not keep, perhaps since it could not be read: so it needs an update."""
        if self._leading is not None and self._copy is not None:
            self.keep_from(self._copy.kept().start)

    # ---- the thread ----

    def give(self, job: Job) -> None:
        """A job for the thread, behind those that wait."""
        self._jobs.append(job)
        self._work()

    def _work(self) -> None:
        if self._is_working or not self._jobs or self._closed:
            return
        chunk = [self._jobs.popleft()]
        mergeable = isinstance(chunk[0], (Take, Durable))
        while mergeable and self._jobs and isinstance(self._jobs[0], (Take, Durable)) and len(chunk) < 64:
            chunk.append(self._jobs.popleft())
        self._is_working = True
        future = self._thread.submit(self._do, chunk)
        future.add_done_callback(lambda done: self._around.loop.call_soon_threadsafe(self._done, done))

    def _do(self, chunk: list[Job]) -> list[Callable[[Group], None]]:
        """In the thread. What is to be done on the loop afterwards."""
        copy = self._copy
        if copy is None:
            return []
        if isinstance(chunk[0], (Take, Durable)):
            return take_and_apply(copy, chunk)
        return [chunk[0].do(copy)]

    @_guarded
    def _done(self, future: Any) -> None:
        self._is_working = False
        if self._closed:
            return
        error = future.exception()
        if error is not None:
            self.fail(error)
            return
        for then in future.result():
            if not self._closed:
                then(self)
        self._work()
