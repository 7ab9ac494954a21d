"""Relocated chains, replayed in Python: their state, and the contradictions that are found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kit.moving_log import DELETES, FIVE, OLD, OLD_NEWEST, OLD_TX, PART, PUBLISHED, STAGED, MovingLog
from logstore.codec.records import (
    ChunkPlace,
    DequeueReason,
    Empty,
    MessageDequeue,
    PendingKind,
    PendingWork,
    RecordType,
    TxState,
    XidBody,
)

if TYPE_CHECKING:
    from collections.abc import Callable

# ---- The forms of a relocation. Each takes a message of five bytes with places on queues 1 and 2.


def whole_state(log: MovingLog, message: int) -> int:
    return log.state(message, log.copy(message, flags=PUBLISHED), 1, 2)


def inline_copy(log: MovingLog, message: int) -> int:
    return log.inline(message, 1, 2, flags=PUBLISHED)


def ordered_copy(log: MovingLog, message: int) -> int:
    return log.ordered(message, 1, 0, 0, 2)


def state_of_chunks(log: MovingLog, message: int) -> int:
    start = log.copy(message, FIVE[:1])
    first, second = log.copy_chunk(message, 1, FIVE[1:3]), log.copy_chunk(message, 3, FIVE[3:])
    return log.state(message, start, 1, 2, chunks=(ChunkPlace(first, 1, 2), ChunkPlace(second, 3, 2)))


def state_in_parts(log: MovingLog, message: int) -> int:
    start = log.copy(message, FIVE[:4])
    log.state(message, start, chunks=(ChunkPlace(log.copy_chunk(message, 4, FIVE[4:]), 4, 1),), flags=PART)
    log.state(message, start, 1, part=1, flags=PART)
    return log.state(message, start, 2, part=2)


each_form = pytest.mark.parametrize(
    "relocate",
    [whole_state, inline_copy, ordered_copy, state_of_chunks, state_in_parts],
    ids=lambda form: form.__name__,
)


@each_form
def test_a_relocation_of_a_known_message_changes_nothing_and_the_chain_continues_from_it(
    relocate: Callable[[MovingLog, int], int],
) -> None:
    log = MovingLog()
    message = log.publish(1, 2)
    for _ in range(3):
        relocate(log, message)
    assert log.finish() == ({1: (1, 0), 2: (1, 0)}, 1)
    assert log.replay.finish().queues[1].content_bytes == len(FIVE)
    log.enqueue(message, 3)
    for queue in (1, 2):
        log.dequeue(message, queue)
    log.dequeue(message, 3, flags=DELETES)
    assert (log.finish(), log.reasons) == (({}, 0), [])


@each_form
def test_a_chain_that_began_below_the_base_is_made_from_its_relocation(
    relocate: Callable[[MovingLog, int], int],
) -> None:
    log = MovingLog()
    relocate(log, OLD)
    relocate(log, OLD)
    assert log.finish() == ({1: (1, 0), 2: (1, 0)}, 1)
    assert log.replay.finish().queues[2].content_bytes == len(FIVE)
    log.dequeue(OLD, 1)
    log.dequeue(OLD, 2, flags=DELETES)
    assert (log.finish(), log.replay.orphans, log.reasons) == (({}, 0), 0, [])


def test_records_of_an_old_chain_are_orphans_up_to_its_relocation_and_count_after_it() -> None:
    log = MovingLog()
    log.dequeue(OLD, 3)
    log.enqueue(OLD, 2)
    assert (log.finish(), log.replay.orphans) == (({}, 0), 2)
    whole_state(log, OLD)
    log.dequeue(OLD, 2)
    assert (log.finish(), log.replay.orphans, log.reasons) == (({1: (1, 0)}, 1), 2, [])


def test_content_may_follow_a_relocated_staged_message() -> None:
    log = MovingLog()
    log.state(OLD, log.copy(OLD), flags=STAGED)
    log.chunk(OLD, 5, b"678")
    start = log.copy(OLD, b"12345678")
    log.state(OLD, start, size=8, flags=STAGED)
    log.chunk(OLD, 8, b"9")
    assert log.replay.finish(writer_epoch=1).staged == 1
    log.enqueue(OLD, 1)
    assert (log.replay.finish().queues[1].content_bytes, log.reasons) == (9, [])


def test_a_relocated_staged_message_is_dropped_by_recovery_like_any_other() -> None:
    log = MovingLog()
    log.state(OLD, log.copy(OLD), flags=STAGED)
    assert log.finish() == ({}, 1)
    assert log.finish(recovering=True) == ({}, 0)
    assert (log.replay.staged_dropped, log.reasons) == (1, [])


def test_a_state_may_leave_the_start_and_chunks_where_they_are() -> None:
    log = MovingLog()
    message = log.stage()
    chunks = [log.chunk(message, 0, b"ab"), log.chunk(message, 2, b"cd")]
    log.enqueue(message, 1)
    moved = log.copy_chunk(message, 0, b"ab")
    rows = ChunkPlace(moved, 0, 2), ChunkPlace(chunks[1], 2, 2)
    log.state(message, message, 1, size=4, chunks=rows)
    log.state(message, log.copy(message, b""), 1, size=4, chunks=rows)
    assert (log.finish(), log.reasons) == (({1: (1, 0)}, 1), [])


# ---- Relocations without a complete state


@pytest.mark.parametrize("message", [OLD, None], ids=["old", "known"])
def test_copies_and_parts_without_a_state_mean_nothing_and_the_chain_passes_over_them(message: int | None) -> None:
    log = MovingLog()
    if message is None:
        message = log.publish(1, 2)
    else:
        whole_state(log, message)
    start = log.copy(message, b"garbage")
    log.copy_chunk(message, 70, b"x", prev=8)
    log.state(message, start, 9, part=0, flags=PART)
    log.state(message, start, 9, part=7, flags=PART)
    assert log.finish() == ({1: (1, 0), 2: (1, 0)}, 1)
    log.dequeue(message, 2)
    log.state(message, log.copy(message, prev=log.last[message]), 1)  # of another attempt, in one record
    log.dequeue(message, 1, flags=DELETES)
    assert (log.finish(), log.reasons) == (({}, 0), [])
    assert log.replay.queue_id_max == 2


def test_copies_of_a_chain_that_is_never_relocated_leave_it_an_orphan() -> None:
    log = MovingLog()
    start = log.copy(OLD)
    log.state(OLD, start, 1, flags=PART)
    log.dequeue(OLD, 1, flags=DELETES)
    assert (log.finish(), log.replay.orphans, log.reasons) == (({}, 0), 1, [])


def test_the_last_part_of_a_state_whose_first_lies_below_the_base_leaves_its_chain_an_orphan() -> None:
    log = MovingLog()
    log.state(OLD, OLD_NEWEST, 2, part=1)
    log.dequeue(OLD, 2, flags=DELETES)
    assert (log.finish(), log.replay.orphans, log.reasons) == (({}, 0), 1, [])


def test_a_message_may_die_or_change_between_its_copies_and_its_state() -> None:
    log = MovingLog()
    message, other = log.publish(1, 2), log.publish(1)
    start = log.copy(message, FIVE[:2])
    log.dequeue(message, 2)
    chunk = log.copy_chunk(message, 2, FIVE[2:])
    log.copy(other)
    log.enqueue(message, 3)
    log.dequeue(other, 1, flags=DELETES)
    log.copy_chunk(other, 5, b"late", prev=log.last[other])
    log.state(message, start, 1, 3, chunks=(ChunkPlace(chunk, 2, 3),))
    log.dequeue(message, 1)
    assert (log.finish(), log.reasons) == (({3: (1, 0)}, 1), [])


def test_the_state_may_follow_the_newest_record_instead_of_the_last_copy() -> None:
    log = MovingLog()
    message = log.publish(1, 2)
    start = log.copy(message)
    newest = log.dequeue(message, 2)
    log.state(message, start, 1, prev=newest)
    log.dequeue(message, 1, flags=DELETES)
    assert (log.finish(), log.reasons) == (({}, 0), [])


# ---- Deleted queues


def test_places_on_deleted_queues_may_be_in_a_state_or_not() -> None:
    log = MovingLog()
    messages = [log.publish(1, 2) for _ in range(4)]
    log.delete_queue(2)
    log.inline(messages[0], 1)
    log.inline(messages[1], 1, 2)
    log.inline(OLD, 1, 2)
    log.state(messages[2], log.copy(messages[2]), 1, 2)
    assert (log.finish(), log.reasons) == (({1: (5, 0)}, 5), [])
    log.dequeue(messages[1], 1, flags=DELETES)
    assert (log.finish(), log.reasons) == (({1: (4, 0)}, 4), [])


def test_a_relocation_does_not_revive_places_of_a_deleted_queue() -> None:
    log = MovingLog()
    swept, dequeued = log.publish(2), log.publish(1, 2)
    log.delete_queue(2)
    log.dequeue(dequeued, 1)
    for message in (swept, dequeued, OLD):
        log.inline(message, 2)
    assert (log.finish(), log.reasons) == (({}, 0), [])


# ---- Transactions


def pending(
    tx: int, lsn: int, queue: int, kind: PendingKind = PendingKind.DEQUEUE, order_index: int = 0
) -> PendingWork:
    return PendingWork(tx, lsn, queue, kind, order_index)


@pytest.mark.parametrize(
    ("outcome", "queues"), [(RecordType.TX_COMMIT, {2: (1, 0)}), (RecordType.TX_ROLLBACK, {1: (1, 0)})]
)
def test_a_transaction_is_known_from_relocated_work_and_its_outcome_applies_to_it(
    outcome: RecordType, queues: dict[int, tuple[int, int]]
) -> None:
    log = MovingLog()
    work = pending(OLD_TX, OLD_TX + 8, 2, PendingKind.ENQUEUE, 3), pending(OLD_TX, OLD_TX + 16, 1)
    log.state(OLD, log.copy(OLD), 1, pending=work)
    assert log.finish()[0] == {1: (1, 1)}
    log.replay.problems.clear()  # the problem that the transaction has no outcome yet
    log.step(OLD_TX, outcome)
    assert (log.finish(), log.reasons) == ((queues, 1), [])
    assert log.replay.orphans == 0


def test_relocated_work_of_a_transaction_without_start_outcome_or_relocated_state_is_a_contradiction() -> None:
    log = MovingLog()
    log.state(OLD, log.copy(OLD), 1, pending=(pending(OLD_TX, OLD_TX + 8, 1),))
    log.finish()
    assert len(log.reasons) == 1
    assert "neither start nor outcome nor relocated state" in log.reasons[0]


@pytest.mark.parametrize("tx_first", [True, False])
def test_a_relocated_prepared_transaction_is_in_doubt_with_its_name_and_time(tx_first: bool) -> None:
    log = MovingLog()
    if tx_first:
        log.move_tx(OLD_TX, TxState.PREPARED, prepare_us=77)
    log.state(OLD, log.copy(OLD), 1, pending=(pending(OLD_TX, OLD_TX + 8, 1),))
    if not tx_first:
        log.move_tx(OLD_TX, TxState.PREPARED, prepare_us=77)
    found = log.replay.finish()
    assert [(one.id, one.xid, one.prepared_us) for one in found.transactions] == [(OLD_TX, XidBody(1, b"x", b""), 77)]
    assert found.queues[1].locked == 1
    log.move_tx(OLD_TX, TxState.PREPARED, prepare_us=77)
    log.step(OLD_TX, RecordType.TX_COMMIT)
    assert (log.finish(), log.replay.committed, log.reasons) == (({}, 0), 1, [])


def test_work_that_is_known_before_its_transaction_outlives_a_recovery_in_between() -> None:
    log = MovingLog()
    log.batch(epoch=1)
    log.state(OLD, log.copy(OLD), 1, pending=(pending(OLD_TX, OLD_TX + 8, 1),))
    log.batch(epoch=2)
    log.move_tx(OLD_TX, TxState.PREPARED, prepare_us=77)
    found = log.replay.finish()
    assert (found.queues[1].locked, [one.id for one in found.transactions]) == (1, [OLD_TX])
    assert log.reasons == []


def test_a_state_may_name_a_chunk_that_was_not_moved_though_its_start_lies_below_the_base() -> None:
    log = MovingLog()
    stayed = log.chunk(OLD, 2, b"345")
    log.state(OLD, log.copy(OLD, b"12"), 1, chunks=(ChunkPlace(stayed, 2, 3),))
    found = log.replay.finish()
    assert (found.queues[1].content_bytes, log.reasons) == (5, [])
    again = MovingLog()
    stayed = again.chunk(OLD, 3, b"45")  # it is compared with the state
    again.state(OLD, again.copy(OLD, b"12"), 1, chunks=(ChunkPlace(stayed, 2, 3),))
    again.finish()
    assert len(again.reasons) == 1


def test_an_unprepared_relocated_transaction_is_undone_by_recovery() -> None:
    log = MovingLog()
    log.move_tx(OLD_TX, TxState.ACTIVE, xid=None)
    log.inline(OLD, 1)
    log.dequeue(OLD, 1, tx=OLD_TX)
    assert log.finish() == ({1: (1, 1)}, 1)
    assert log.finish(recovering=True) == ({1: (1, 0)}, 1)
    assert (log.replay.abandoned, log.reasons) == (1, [])


def test_work_that_is_known_is_relocated_once() -> None:
    log = MovingLog()
    message, other = log.publish(1), log.publish(1)
    tx = log.begin(b"x")
    enqueued, dequeued = log.enqueue(message, 2, 3, tx=tx), log.dequeue(message, 1, tx=tx)
    log.dequeue(other, 1, tx=tx)
    work = (
        pending(tx, enqueued, 2, PendingKind.ENQUEUE, 0),
        pending(tx, enqueued, 3, PendingKind.ENQUEUE, 1),
        pending(tx, dequeued, 1, order_index=9),  # a dequeue has no order index
    )
    for _ in range(2):
        log.state(message, log.copy(message), 1, pending=work)
        log.move_tx(tx, TxState.ACTIVE)
    assert log.finish() == ({1: (2, 2)}, 2)
    log.enqueue(other, 3, tx=tx)
    log.step(tx, RecordType.TX_COMMIT)
    assert (log.finish(), log.reasons) == (({2: (1, 0), 3: (2, 0)}, 2), [])


def test_the_work_of_a_deleted_queue_may_be_relocated_or_not() -> None:
    log = MovingLog()
    tx = log.begin()
    messages = [log.publish(1), log.publish(1)]
    lsns = [log.enqueue(message, 2, tx=tx) for message in messages]
    log.delete_queue(2)
    log.state(messages[0], log.copy(messages[0]), 1)
    log.state(messages[1], log.copy(messages[1]), 1, pending=(pending(tx, lsns[1], 2, PendingKind.ENQUEUE, 1),))
    log.step(tx, RecordType.TX_COMMIT)
    assert (log.finish(), log.reasons) == (({1: (2, 0)}, 2), [])


def test_the_enqueues_of_a_relocated_transaction_are_numbered_from_the_first_that_is_seen() -> None:
    log = MovingLog()
    log.move_tx(OLD_TX, TxState.ACTIVE, xid=None)
    log.enqueues[OLD_TX] = 40
    log.publish(1, 2, tx=OLD_TX)
    log.publish(1, tx=OLD_TX)
    assert log.reasons == []
    log.enqueues[OLD_TX] = 50
    log.publish(1, tx=OLD_TX)
    assert log.reasons == [f"enqueue 50 of transaction {OLD_TX} comes after 43 others"]


# ---- Contradictions


def relocated_after_its_end(log: MovingLog, message: int) -> None:
    for queue in (1, 2):
        log.dequeue(message, queue)
    whole_state(log, message)


def relocated_after_its_delete(log: MovingLog, message: int) -> None:
    for queue in (1, 2):
        log.dequeue(message, queue)
    log.add(RecordType.MESSAGE_DELETE, Empty(), message)
    inline_copy(log, message)


def with_other_work(log: MovingLog, message: int) -> None:
    tx = log.begin()
    lsn = log.dequeue(message, 1, tx=tx)
    log.state(message, log.copy(message), 1, 2, pending=(pending(tx, lsn, 2),))


def without_its_work(log: MovingLog, message: int) -> None:
    log.dequeue(message, 1, tx=log.begin())
    inline_copy(log, message)


def with_work_of_a_transaction_that_ended(log: MovingLog, message: int) -> None:
    log.move_tx(OLD_TX, TxState.ACTIVE)
    log.step(OLD_TX, RecordType.TX_COMMIT)
    log.state(message, log.copy(message), 1, 2, pending=(pending(OLD_TX, OLD_TX + 8, 1),))


def of_a_chunk_that_is_another(log: MovingLog, message: int) -> None:
    start, chunk = log.copy(message, FIVE[:2]), log.copy_chunk(message, 2, b"34")
    log.state(message, start, 1, 2, chunks=(ChunkPlace(chunk, 2, 3),))


def of_content_with_a_hole(log: MovingLog, message: int) -> None:
    start, chunk = log.copy(message, FIVE[:2]), log.copy_chunk(message, 3, b"45")
    log.state(message, start, 1, 2, chunks=(ChunkPlace(chunk, 3, 2),))


def of_an_older_copy(log: MovingLog, message: int) -> None:
    older = log.copy(message)
    log.copy(message)
    log.state(message, older, 1, 2)


def from_a_copy_that_was_completed_before(log: MovingLog, message: int) -> None:
    older = log.copy(message)
    log.state(message, older, 1, 2)
    log.state(message, log.copy(message, prev=older), 1, 2)


def in_parts_of_which_some_are_of_another_attempt(log: MovingLog, message: int) -> None:
    start = log.copy(message)
    log.state(message, start, 1, flags=PART)
    log.state(message, start, part=1, flags=PART)
    log.state(message, start, 2, part=1)


def of_a_start_left_where_it_is_with_a_chunk_of_what_is_in_it(log: MovingLog, message: int) -> None:
    start, chunk = log.last[message], log.copy_chunk(message, 2, FIVE[2:])
    log.state(message, start, 1, 2, chunks=(ChunkPlace(chunk, 2, 3),))


def from_a_copy_that_does_not_follow(log: MovingLog, message: int) -> None:
    log.state(message, log.copy(message, prev=message + 8), 1, 2)


def before_a_copy_counts(log: MovingLog, message: int) -> None:
    body = MessageDequeue(0, 1, 0, DequeueReason.NOT_TOLD)
    log.add(RecordType.MESSAGE_DEQUEUE, body, message, prev=log.copy(message))


def in_parts_of_different_sizes(log: MovingLog, message: int) -> None:
    start = log.copy(message)
    log.state(message, start, 1, size=4, flags=PART)
    log.state(message, start, 2, part=1)


MOVED_WRONG: list[tuple[Callable[[MovingLog, int], object], str]] = [
    (lambda log, message: log.inline(message, 1), "with places on queues [1], and it has them on [1, 2]"),
    (lambda log, message: log.inline(message, 1, 2, 3), "with places on queues [1, 2, 3], and it has them on [1, 2]"),
    (lambda log, message: log.inline(message, 1, 2, 1), "two places on one queue"),
    (lambda log, message: log.inline(message, 1, 2, content=b""), "with 0 bytes of content, and it has 5"),
    (lambda log, message: log.inline(message, 1, 2, prev=message + 8), "the record before it in chain"),
    (lambda log, message: log.state(message, log.copy(message), flags=STAGED), "as one that was never enqueued"),
    (lambda log, message: log.state(message, log.copy(message), 1, 2, flags=STAGED), "says that it was never enqueued"),
    (lambda log, message: log.state(message, log.copy(message), 1, 2, prev=message + 8), "the record before it"),
    (lambda log, message: log.state(message, message + 8, 1, 2), "neither the newest copy nor where it was"),
    (lambda log, message: log.state(message, log.copy(message, b"1234"), 1, 2), "does not occur exactly once"),
    (lambda log, message: log.state(message, log.copy(message), 1, 2, part=1), "first parts of its state are missing"),
    (before_a_copy_counts, "the record before it in chain"),
    (of_a_chunk_that_is_another, "its chunk of 3 bytes at 2 is not that of LSN"),
    (of_content_with_a_hole, "does not occur exactly once"),
    (of_an_older_copy, "neither the newest copy nor where it was"),
    (of_a_start_left_where_it_is_with_a_chunk_of_what_is_in_it, "does not occur exactly once"),
    (from_a_copy_that_does_not_follow, "the record before it in chain"),
    (from_a_copy_that_was_completed_before, "the record before it in chain"),
    (in_parts_of_which_some_are_of_another_attempt, "first parts of its state are missing"),
    (in_parts_of_different_sizes, "of different contents"),
    (with_other_work, "with pending work [dequeue on queue 2"),
    (without_its_work, "with pending work [], and it has [dequeue on queue 1"),
    (with_work_of_a_transaction_that_ended, "which is not open"),
    (relocated_after_its_end, "relocated after its end"),
    (relocated_after_its_delete, "relocated after its end"),
]


@pytest.mark.parametrize("old", [True, False], ids=["old", "new"])
@pytest.mark.parametrize(("move", "reason"), MOVED_WRONG, ids=lambda value: getattr(value, "__name__", value))
def test_a_relocation_that_contradicts_the_known_state_is_noted_and_replay_continues(
    move: Callable[[MovingLog, int], object], reason: str, old: bool
) -> None:
    log = MovingLog()
    message = OLD if old else log.publish(1, 2)
    if old:
        inline_copy(log, message)
    move(log, message)
    log.publish(7)
    assert log.finish()[0][7] == (1, 0)
    assert reason in " ".join(log.reasons)


@pytest.mark.parametrize("delete", ["dequeue", "delete"])
def test_an_orphan_that_was_deleted_is_not_relocated_after_it(delete: str) -> None:
    log = MovingLog()
    if delete == "dequeue":
        log.dequeue(OLD, 1, flags=DELETES)
    else:
        log.add(RecordType.MESSAGE_DELETE, Empty(), OLD)
    log.inline(OLD, 1, prev=OLD_NEWEST)
    assert log.reasons == [f"message {OLD} is relocated after its end"]


def test_a_contradicting_relocation_replaces_the_known_state() -> None:
    log = MovingLog()
    message = log.publish(1, 2)
    tx = log.begin()
    lsn = log.dequeue(message, 1, tx=tx)
    log.state(message, log.copy(message, b"12"), 2, 3, size=2, pending=(pending(tx, lsn, 2),))
    assert len(log.reasons) == 3
    assert log.finish() == ({2: (1, 1), 3: (1, 0)}, 1)
    log.step(tx, RecordType.TX_COMMIT)
    assert log.finish() == ({3: (1, 0)}, 1)
    assert log.replay.finish().queues[3].content_bytes == 2
    assert len(log.reasons) == 3


def test_no_content_of_a_live_message_lies_below_the_base() -> None:
    log = MovingLog()
    log.state(OLD, OLD_NEWEST, 1)
    log.finish()
    assert log.reasons == [f"message {OLD} lives, and content of it lies below the base"]


def test_a_state_may_name_missing_records_if_the_message_has_ended() -> None:
    log = MovingLog()
    log.state(OLD, OLD_NEWEST, 1, chunks=(ChunkPlace(OLD_NEWEST + 8, 3, 2),))
    log.dequeue(OLD, 1)
    assert (log.finish(), log.reasons) == (({}, 0), [])


def test_the_queues_that_a_relocation_names_are_held_against_the_catalog() -> None:
    log = MovingLog()
    log.move_tx(OLD_TX, TxState.ACTIVE, xid=None)
    for highest, relocate in (
        (5, lambda: log.inline(OLD, 5)),
        (6, lambda: log.state(OLD, log.copy(OLD), 6)),
        (7, lambda: log.state(OLD, log.copy(OLD), 6, pending=(pending(OLD_TX, OLD_TX + 8, 7, PendingKind.ENQUEUE),))),
    ):
        relocate()
        assert log.replay.queue_id_max == highest


@pytest.mark.parametrize(
    ("records", "reason"),
    [
        (lambda log, tx: log.move_tx(tx, TxState.ACTIVE, xid=b"y"), "under another xid"),
        (lambda log, tx: log.move_tx(tx, TxState.ACTIVE, xid=None), "under another xid"),
        (lambda log, tx: log.move_tx(tx, TxState.PREPARED), "as prepared, and it is active"),
        (lambda log, tx: log.step(tx, RecordType.TX_ROLLBACK) and log.move_tx(tx, TxState.ACTIVE), "is not open"),
    ],
)
@pytest.mark.parametrize("old", [True, False], ids=["old", "new"])
def test_a_transaction_that_is_relocated_with_a_wrong_state_is_noted(records: Any, reason: str, old: bool) -> None:
    log = MovingLog()
    tx = OLD_TX if old else log.begin(b"x")
    log.move_tx(tx, TxState.ACTIVE)
    assert log.reasons == []
    records(log, tx)
    assert reason in " ".join(log.reasons)
