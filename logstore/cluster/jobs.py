"""What a group's thread does on the disk: its jobs, and the data that the engine needs at a start."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from logstore.cluster import engine as engines
from logstore.cluster.frames import Carried
from logstore.cluster.replica import Batch, Copy, configuration_of
from logstore.errors import CatalogError, StoreError, StoreFull

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from logstore.cluster.group import Group
    from logstore.cluster.said import Said

TAKEN_TOGETHER: Final = 24
_KIND: Final = {"batch": engines.BATCH, "first": engines.FIRST, "members": engines.MEMBERS}


# ---- at a start ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Found:
    """The state of a copy at a start."""

    uuid: bytes
    cluster: bytes
    """The cluster's UUID in ``VOTE``."""
    rebuild: int
    start_term: int
    member: int
    """The member that VOTE is of."""
    copy: int
    """The copy's number; 0: an update is to bring one."""
    tail: tuple[int, int]
    durable: tuple[int, int]
    log: engines.Log


def found_in(copy: Copy) -> Found:
    """The data with which the engine starts."""
    member = copy.member()
    if not copy.is_there:
        log = engines.Log(vote_term=member.term, voted_for=member.voted_for)
        zero = (0, 0)
        return Found(
            member.uuid, member.cluster, member.rebuild, member.start_term, member.member_id, 0, zero, zero, log
        )
    info = copy.info()
    entries: list[engines.Entry] = []
    members_index, members = 0, b""
    first_kept = 0
    if info.index:
        if info.applied_index:  # otherwise the first configuration is one of the entries
            members_index, members = copy.members()
        kept = copy.kept()
        if info.applied_index >= 2:  # an engine with a snapshot begins at 2 or above
            kept = range(max(kept.start, 2), kept.stop)
        first_kept = kept.start
        for index in kept:
            entry = copy.entry(index)
            config = configuration_of(copy.read(index)) if entry.kind == "members" else b""
            entries.append(engines.Entry(entry.term, _KIND[entry.kind], config))
    log = engines.Log(
        vote_term=member.term,
        voted_for=member.voted_for,
        header_term=member.term if info.index else 0,
        known_durable=info.applied_index,
        known_durable_term=info.applied_term if info.applied_index else 0,
        members_index=members_index,
        members=members,
        first_kept=first_kept,
        entries=entries,
    )
    return Found(
        member.uuid,
        member.cluster,
        member.rebuild,
        member.start_term,
        member.member_id,
        member.copy,
        (info.term, info.index),
        (info.applied_term if info.applied_index else 0, info.applied_index),
        log,
    )


def carried_of(copy: Copy, index: int) -> Carried:
    """A kept batch in the form in which it is sent. Raises as :meth:`Copy.read` does."""
    entry = copy.entry(index)
    batch = copy.read(index)
    config = configuration_of(batch) if entry.kind == "members" else b""
    return Carried(batch, _KIND[entry.kind], config)


def first_to_keep(copy: Copy, kept_bytes: int) -> int:
    """The lowest index among the newest batches that have this many bytes together.

    Within a term LSNs count bytes; between two terms they jump.
    """
    kept = copy.kept()
    last, left = kept.stop - 1, kept_bytes
    while kept and left > 0 and last >= kept.start:
        newest = copy.entry(last)
        low, high = kept.start, last
        while low < high:
            middle = (low + high) // 2
            entry = copy.entry(middle)
            if entry.term < newest.term or newest.end_lsn - entry.lsn > left:
                low = middle + 1
            else:
                high = middle
        left -= newest.end_lsn - copy.entry(low).lsn
        if low == kept.start or copy.entry(low - 1).term == newest.term:
            return low
        last = low - 1
    return max(last + 1, 1)


# ---- jobs ------------------------------------------------------------------------------------------------------------


class Job:
    """Runs in the group's thread."""

    __slots__ = ()

    def do(self, copy: Copy) -> Callable[[Group], None]:
        """Does the work; returns the function that the loop calls afterwards."""
        raise NotImplementedError


def nothing(group: Group) -> None:
    """The loop has nothing to do afterwards."""


@dataclass(slots=True)
class Take(Job):
    """Batches that follow the end of this log, and the callback that tells their sender that their memory is free."""

    batches: list[Batch]
    consumed: Callable[[], None] | None


@dataclass(slots=True)
class Durable(Job):
    """A majority has everything up to this index."""

    index: int


@contextlib.contextmanager
def _full_catalog_waits() -> Iterator[None]:
    """A catalog file without room is written later: its changes wait, and their segments are kept."""
    try:
        yield
    except CatalogError as error:
        if not error.is_full:
            raise


def take_and_apply(copy: Copy, chunk: Sequence[Job]) -> list[Callable[[Group], None]]:
    """Takes all batches, as many with one force as the core allows, and then applies the durable ones.

    Where the disk has no room for the next segment, the rest waits; what is applied may make room.
    """
    batches = [batch for job in chunk if isinstance(job, Take) for batch in job.batches]
    consumed = [job.consumed for job in chunk if isinstance(job, Take) and job.consumed is not None]
    durable = max((job.index for job in chunk if isinstance(job, Durable)), default=0)
    after: list[Callable[[Group], None]] = []
    at = 0
    full: StoreFull | None = None
    while at < len(batches) and full is None:
        try:
            at += copy.take_many(batches[at : at + TAKEN_TOGETHER])
        except StoreFull as error:
            full = error

    def consume() -> None:
        for each in consumed:
            each()

    if at:
        last = batches[at - 1]
        after.append(lambda group: group.forced_here(last.index, last.term))
    if full is None:
        after.insert(0, lambda group: consume())  # noqa: ARG005 - as all that is done on the loop
    else:
        rest, why = Take(batches[at:], consume), full
        after.append(lambda group: group.thread.wait_for_room(rest, why))
    applied = copy.apply(durable)
    if applied.has_changes:
        with _full_catalog_waits():
            copy.follow_catalog()
    if durable:
        after.append(lambda group: group.applied(durable, applied.term))
    after.append(lambda group: group.rooms.here(applied.room))
    return after


@dataclass(slots=True)
class Cut(Job):
    """Everything above this index is abandoned."""

    index: int
    said: Said

    def do(self, copy: Copy) -> Callable[[Group], None]:  # noqa: D102 - as in Job
        info = copy.info()
        if info.index > self.index:  # batches that wait for room were not taken yet
            self.said.lower(_term_at(copy, self.index), self.index)
            copy.cut(self.index)
            info = copy.info()
        return lambda group: group.was_cut(info.term, info.index)


def _term_at(copy: Copy, index: int) -> int:
    """The term of a batch; of one that is not kept, one that is not above it."""
    info = copy.info()
    is_kept = index in copy.kept()
    return copy.entry(index).term if is_kept else min(info.applied_term, info.term)


@dataclass(slots=True)
class Vote(Job):
    """Writes term and vote to ``VOTE`` and forces them."""

    term: int
    voted_for: int
    number: int

    def do(self, copy: Copy) -> Callable[[Group], None]:  # noqa: D102 - as in Job
        copy.vote(self.term, self.voted_for)
        return lambda group: group.voted(self.number, self.term, self.voted_for)


@dataclass(slots=True)
class Lead(Job):
    """The copy leads in this term."""

    term: int
    moved_by: int
    """The loop's thread."""

    def do(self, copy: Copy) -> Callable[[Group], None]:  # noqa: D102 - as in Job
        leading = copy.lead(self.term)
        leading.moved_by(self.moved_by)
        return lambda group: group.led(leading, self.term)


class Serve(Job):
    """The store opens, once its first batch is durable."""

    def do(self, copy: Copy) -> Callable[[Group], None]:  # noqa: D102 - as in Job
        leading = copy.leading
        store = None if leading is None else leading.serve()
        return lambda group: group.serves(leading, store)


@dataclass(slots=True)
class Follow(Job):
    """The copy no longer leads; batches above this index never became entries."""

    last_index: int

    def do(self, copy: Copy) -> Callable[[Group], None]:  # noqa: D102 - as in Job
        if copy.leading is not None:
            copy.leading.cease()
        if copy.info().index > self.last_index:
            copy.cut(self.last_index)
        info = copy.info()
        return lambda group: group.follows_again(info.term, info.index)


@dataclass(slots=True)
class ChangeMembers(Job):
    """Writes a new configuration to the log."""

    config: bytes

    def do(self, copy: Copy) -> Callable[[Group], None]:  # noqa: D102 - as in Job
        leading = copy.leading
        if leading is None:
            return nothing
        try:
            leading.change_members(self.config)
        except StoreError as error:
            problem = error
            return lambda group: group.changes.failed(problem)
        return nothing


class AskRoom(Job):
    """Looks whether the disk has room again."""

    def do(self, copy: Copy) -> Callable[[Group], None]:  # noqa: D102 - as in Job
        if copy.leading is not None:
            return nothing
        room = copy.room()
        return lambda group: group.rooms.here(room)


class NoteTail(Job):
    """``VOTE`` notes how far the log reaches."""

    def do(self, copy: Copy) -> Callable[[Group], None]:  # noqa: D102 - as in Job
        copy.note_tail()
        return nothing


class NoteCatalog(Job):
    """Lets the catalog's file note up to which LSN it has every change."""

    def do(self, copy: Copy) -> Callable[[Group], None]:  # noqa: D102 - as in Job
        with _full_catalog_waits():
            copy.note_catalog()
        return nothing


@dataclass(slots=True)
class Keep(Job):
    """Computes how much is kept for other members."""

    kept_bytes: int

    def do(self, copy: Copy) -> Callable[[Group], None]:  # noqa: D102 - as in Job
        if copy.leading is not None:
            return nothing
        first = first_to_keep(copy, self.kept_bytes)
        return lambda group: group.keep_from(first)


@dataclass(slots=True)
class Drop(Job):
    """Drops the batches below this index, which need not be kept."""

    index: int

    def do(self, copy: Copy) -> Callable[[Group], None]:  # noqa: D102 - as in Job
        if copy.leading is None:
            copy.drop_kept(self.index)
        return nothing
