"""The rules of a replicated log, on forged logs: each contradiction is found, and what is allowed is none."""

from __future__ import annotations

from typing import Any

import pytest

from kit.record_cases import SEGMENT
from logstore.codec.records import (
    Batch,
    CatalogAction,
    CatalogChange,
    CatalogObject,
    CatalogRow,
    Members,
    MessageStart,
    Record,
    RecordFlag,
    RecordType,
)
from logstore.codec.strict import StrictReplay

COPY, PART = RecordFlag.COPY, RecordFlag.PART
BASE = SEGMENT
ROW = CatalogRow(CatalogAction.PUT, CatalogObject.QUEUE, 1, b"{}")


def start_of(term: int, segment: int = SEGMENT) -> int:
    """The first LSN at which a batch of the term may stand."""
    return -(-(term << 40) // segment) * segment + 4096


class Forged:
    """A log whose batches are forged one by one; ``index`` goes on by itself unless it is given."""

    def __init__(self, base_lsn: int = BASE, segment: int = SEGMENT) -> None:
        self.replay = StrictReplay(base_lsn, segment)
        self.segment = segment
        self.lsn = base_lsn + 4096
        self.epoch = 1
        self.index = self.known = 0
        self.last: dict[int, int] = {}

    @property
    def reasons(self) -> list[str]:
        self.replay.finish()
        return [problem.reason for problem in self.replay.problems]

    def term(self, term: int, lsn: int | None = None) -> None:
        self.epoch, self.lsn = term, start_of(term, self.segment) if lsn is None else lsn

    def add(self, kind: RecordType, body: Any, flags: int = 0, chain: int | None = 0, prev: int | None = None) -> int:
        lsn = self.lsn
        chain = lsn if chain is None else chain
        prev = self.last.get(chain, 0) if prev is None else prev
        self.replay.apply(Record(lsn, kind, RecordFlag(flags), chain, prev, 256, body))
        self.last[chain] = lsn
        self.lsn += 256
        return lsn

    def batch(self, *records: tuple[Any, ...], index: int | None = None, base_lsn: int = BASE) -> list[int]:
        """A batch with an index; returns the LSNs of its records."""
        self.index = self.index + 1 if index is None else index
        body = Batch(self.epoch, len(records), 104, self.lsn, base_lsn, 0, self.index, self.known)
        self.add(RecordType.BATCH, body, prev=0)
        return [self.add(*record) for record in records]

    def single(self, *records: tuple[Any, ...]) -> None:
        """A batch without an index."""
        self.add(RecordType.BATCH, Batch(self.epoch, len(records), 104, self.lsn, BASE, 0), prev=0)
        for record in records:
            self.add(*record)


def members(index: int, config: bytes = b"one") -> tuple[Any, ...]:
    return RecordType.MEMBERS, Members(index, config), 0, None


def copied(chain: int, index: int = 1, config: bytes = b"one", prev: int | None = None) -> tuple[Any, ...]:
    return RecordType.MEMBERS, Members(index, config), COPY, chain, prev


def change(part: int = 0, flags: int = 0) -> tuple[Any, ...]:
    return RecordType.CATALOG_CHANGE, CatalogChange(part, (ROW,)), flags, 0, 0


def publish() -> tuple[Any, ...]:
    return RecordType.MESSAGE_START, MessageStart(0, (1,), b"", b""), RecordFlag.PUBLISHED, None


def begun(segment: int = SEGMENT) -> tuple[Forged, int]:
    """A log in term 2 whose replication has begun, and the LSN of its MEMBERS."""
    log = Forged(segment=segment, base_lsn=segment)
    log.single(publish())
    log.term(2)
    (lsn,) = log.batch(members(1), base_lsn=segment)
    return log, lsn


def test_a_log_that_becomes_replicated_changes_its_leader_and_becomes_single_again_has_no_contradiction() -> None:
    log, first = begun()
    log.batch(publish(), change())
    log.batch(change(0, PART), change(1, PART))
    log.batch(publish(), change(2))
    log.batch(change(0, PART))  # its other parts are cut
    log.known = log.lsn
    log.term(5)
    log.batch()
    (copy, _) = log.batch(copied(first), change())
    log.batch(copied(first))
    (second,) = log.batch(members(log.index + 1, b"two"))
    log.batch(copied(second, log.index, b"two"), publish())
    log.term(5 + 65536)
    log.single(publish())
    assert log.reasons == []
    log.epoch, log.lsn = 70000, start_of(70000)
    log.batch(members(log.index + 1, b"again"), base_lsn=start_of(70000) - 4096)
    assert (log.reasons, copy > first) == ([], True)


def test_a_log_from_a_base_in_the_middle_of_replication_has_no_contradiction() -> None:
    base = start_of(7) - 4096 + 3 * SEGMENT
    log = Forged(base)
    log.epoch, log.index, log.known = 7, 41, base
    log.batch(change(3, PART), base_lsn=base)
    log.batch(change(4), copied(base - 800, 9, b"three", base - 400), base_lsn=base)
    assert log.reasons == []


@pytest.mark.parametrize("index", [1, 2, 4, 1000])
def test_indexes_follow_one_another(index: int) -> None:
    log, _ = begun()
    log.batch(publish())
    log.batch(publish(), index=index)
    found = log.reasons
    assert any(f"index {index} does not follow index 2" in one for one in found)


def test_indexes_continue_when_replication_begins_again() -> None:
    log, _ = begun()
    log.batch(publish())
    log.term(70000)
    log.single()
    log.epoch, log.lsn = 80000, start_of(80000)
    log.batch(members(1), index=1)
    assert log.reasons == ["its index 1 does not follow index 2 of the batch before it"]


def test_what_is_known_durable_never_decreases() -> None:
    log, first = begun()
    log.known = first
    log.batch(publish())
    log.known = first - 8
    log.batch(publish())
    assert log.reasons == [
        f"it knows everything below {first - 8} to be durable, and a batch before it knew everything below {first}"
    ]


@pytest.mark.parametrize("records", [(), (publish(),)], ids=["empty", "message"])
@pytest.mark.parametrize("after", ["nothing", "a single store", "a detached store"])
def test_replication_begins_with_members(records: tuple[Any, ...], after: str) -> None:
    log = Forged()
    if after == "nothing":
        log.replay = StrictReplay(BASE, SEGMENT)
    elif after == "a single store":
        log.single(publish())
    else:
        log, _ = begun()
        log.term(70000)
        log.single()
    log.term(80000)
    log.batch(*records)
    log.batch(members(log.index + 1))
    assert log.reasons == ["replication begins with a batch that has no MEMBERS"]


@pytest.mark.parametrize("beside", [(publish(),), (change(),)], ids=["message", "change"])
def test_members_that_are_no_copy_are_alone_in_their_batch(beside: tuple[Any, ...]) -> None:
    log, _ = begun()
    log.batch(members(2, b"two"), *beside)
    assert log.reasons == ["a MEMBERS that is no copy is not alone in its batch"]


def test_members_that_are_no_copy_name_the_index_of_their_batch() -> None:
    log, _ = begun()
    log.batch(members(1, b"two"))
    assert log.reasons == ["a MEMBERS names index 1, and its batch has index 2"]


def test_a_catalog_change_has_its_parts_in_order_and_none_of_another_between_them() -> None:
    for wrong, reason in (
        ((change(1),), "part 1 of a catalog change stands where part 0 belongs"),
        ((change(0, PART), change(2)), "part 2 of a catalog change stands where part 1 belongs"),
        ((change(0, PART), change(0)), "part 0 of a catalog change stands where part 1 belongs"),
    ):
        log, _ = begun()
        log.batch(change())
        for one in wrong:
            log.batch(one)
        log.batch(change())
        assert log.reasons == [reason]


def test_a_new_term_does_not_continue_in_the_middle_of_another_change() -> None:
    log, _ = begun()
    log.batch(change(0, PART))
    log.term(3)
    log.batch()
    log.batch(change(2))
    assert log.reasons == ["part 2 of a catalog change stands where part 1 belongs"]


def test_a_replicated_log_has_members_at_or_above_its_base() -> None:
    base = start_of(7) - 4096
    log = Forged(base)
    log.epoch, log.index = 7, 41
    log.batch(publish(), base_lsn=base)
    lsn = log.lsn
    log.batch(publish(), base_lsn=base)
    assert log.reasons == [f"the log is replicated, and no MEMBERS lies at or above the base {base}"]
    assert log.replay.problems[0].lsn == lsn


def test_no_batch_names_a_base_above_the_newest_members() -> None:
    log, first = begun()
    log.batch(publish(), base_lsn=first - first % SEGMENT)
    above = first - first % SEGMENT + SEGMENT
    log.lsn = above + 4096
    log.batch(publish(), base_lsn=above)
    assert log.reasons == [f"its base {above} lies above the newest MEMBERS, at {first}"]


def test_a_copy_of_the_members_is_linked_to_them() -> None:
    log, first = begun()
    log.batch(copied(first, prev=first + 8))
    assert log.reasons == [f"prev is {first + 8}, and the record before it in chain {first} is {first}"]
    log, first = begun()
    (copy,) = log.batch(copied(first))
    log.batch(copied(first, prev=first))
    assert log.reasons == [f"prev is {first}, and the record before it in chain {first} is {copy}"]


def test_a_copy_is_one_of_the_newest_members() -> None:
    log, first = begun()
    (second,) = log.batch(members(2, b"two"))
    log.batch(copied(first))
    assert log.reasons == [f"a MEMBERS of chain {first} is copied, and the newest is of chain {second}"]


def test_a_copy_of_the_members_has_their_index_and_configuration() -> None:
    for index, config in ((2, b"one"), (1, b"two")):
        log, first = begun()
        log.batch(copied(first, index, config))
        assert log.reasons == ["a copied MEMBERS differs from the one before it"]


@pytest.mark.parametrize("segment", [SEGMENT, 96 << 10])
def test_a_term_begins_with_the_first_segment_at_or_above_its_first_lsn(segment: int) -> None:
    reason = "term {} begins with the segment at {}, and this batch is not the first in it"
    for term, shift in ((3, segment), (3, 8), (5, 7 * segment)):
        log, _ = begun(segment)
        log.term(term, start_of(term, segment) + shift)
        log.batch(base_lsn=segment)
        log.batch(base_lsn=segment)
        assert log.reasons == [reason.format(term, start_of(term, segment) - 4096)]
    log, _ = begun(segment)
    log.term(3, start_of(3, segment))
    log.batch(base_lsn=segment)
    assert log.reasons == []


def test_a_batch_below_the_first_segment_of_its_term_is_a_contradiction() -> None:
    segment = 96 << 10  # does not divide a term's first LSN
    first = start_of(2, segment) - 4096
    assert first > 2 << 40
    log = Forged(first - segment, segment)
    log.term(2, first - 1024)
    log.batch(members(1), base_lsn=segment)
    assert log.reasons == [f"term 2 begins with the segment at {first}, and this batch is not the first in it"]
