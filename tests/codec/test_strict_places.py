"""States of places, replayed in Python: what each record does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kit.moving_log import DELETES, OLD, OLD_TX, PART, PUBLISHED, STAGED
from kit.place_work import HAS_HEADER, KEEPS_HEADER, KEEPS_NOTE, PlacedLog, placed
from logstore.codec.records import (
    DequeueReason,
    PendingKind,
    PlacedWork,
    QueuePlace,
    RecordType,
    TxState,
)
from logstore.codec.records import MessageRelocated as Relocated
from logstore.codec.state import PlaceState

if TYPE_CHECKING:
    pass

COMMIT, ROLLBACK = RecordType.TX_COMMIT, RecordType.TX_ROLLBACK


# ---- MESSAGE_START_PLACED


def test_each_place_of_a_placed_start_begins_with_its_times_and_its_note() -> None:
    log = PlacedLog()
    message = log.start_placed(1, 2, before=5, expires=9, note=b"n")
    assert [log.state_of(message, queue) for queue in (1, 2)] == [PlaceState(0, 5, 9, b"n")] * 2
    assert (log.finish(), log.reasons) == (({1: (1, 0), 2: (1, 0)}, 1), [])
    assert log.replay.finish().queues[1].content_bytes == 5


def test_a_placed_start_begins_its_chain_and_its_content_may_stay_where_it_is() -> None:
    log = PlacedLog()
    message = log.start_placed(1, note=b"n")
    log.placed_state(message, message, placed(1, note=b"n"))
    log.placed_state(message, log.copy(message, flags=PUBLISHED), placed(1, note=b"n"))
    log.dequeue(message, 1, flags=DELETES)
    assert (log.finish(), log.reasons) == (({}, 0), [])


def test_a_placed_start_in_a_transaction_places_its_message_at_the_commit_or_leaves_nothing() -> None:
    log = PlacedLog()
    tx, other = log.begin(), log.begin()
    message, gone = log.start_placed(1, tx=tx, before=5), log.start_placed(2, tx=other, expires=5)
    assert log.replay.messages[message].places == ()
    log.step(other, ROLLBACK)
    log.step(tx, COMMIT)
    assert log.state_of(message, 1) == PlaceState(0, 5)
    assert gone not in log.replay.messages
    assert (log.depths(), log.reasons) == ({1: (1, 0)}, [])


# ---- MESSAGE_PLACE


def test_a_note_replaces_the_one_before_and_no_bytes_take_it_away() -> None:
    log = PlacedLog()
    message = log.start_placed(1, 2, before=5, note=b"n")
    log.note(message, 1, b"new")
    assert log.state_of(message, 1) == PlaceState(0, 5, note=b"new")
    assert log.state_of(message, 2) == PlaceState(0, 5, note=b"n")
    log.note(message, 1, b"")
    assert log.state_of(message, 1) == PlaceState(0, 5)
    plain = log.publish(3)
    log.note(plain, 3, b"x")
    log.note(plain, 3, b"")
    assert log.state_of(plain, 3) is None
    assert log.reasons == []


def test_a_note_is_a_record_of_its_chain() -> None:
    log = PlacedLog()
    message = log.publish(1)
    log.note(message, 1, b"x")
    log.last[message] = message
    log.dequeue(message, 1, flags=DELETES)
    assert "the record before it in chain" in log.reasons[0]


def test_notes_in_a_transaction_take_effect_at_its_commit_in_their_order() -> None:
    log = PlacedLog()
    message, tx = log.publish(1), log.begin()
    for note in (b"first", b"second"):
        log.note(message, 1, note, tx)
    assert log.state_of(message, 1) is None
    log.step(tx, COMMIT)
    assert log.state_of(message, 1) == PlaceState(note=b"second")
    tx = log.begin()
    log.note(message, 1, b"never", tx)
    log.step(tx, ROLLBACK)
    assert log.state_of(message, 1) == PlaceState(note=b"second")
    assert log.reasons == []


def test_a_transaction_sees_nothing_of_what_another_one_does_to_a_place() -> None:
    log = PlacedLog()
    message, tx, other = log.start_placed(1, note=b"n"), log.begin(), log.begin()
    log.dequeue(message, 1, other)
    log.move(message, 1, 2, tx, bits=KEEPS_NOTE)
    log.step(other, ROLLBACK)
    log.step(tx, COMMIT)
    assert log.state_of(message, 2) == PlaceState(note=b"n")
    assert log.reasons == []


def test_a_transaction_notes_the_place_that_it_has_enqueued_itself() -> None:
    log = PlacedLog()
    tx = log.begin()
    message = log.start_placed(1, tx=tx, expires=7)
    log.note(message, 1, b"mine", tx)
    log.step(tx, COMMIT)
    assert log.state_of(message, 1) == PlaceState(0, 0, 7, b"mine")
    assert log.reasons == []


# ---- MESSAGE_MOVE


def test_a_move_ends_a_place_with_its_state_and_makes_one_with_its_own() -> None:
    log = PlacedLog()
    message = log.start_placed(1, note=b"old")
    log.move(message, 1, 2, delivery_count=3, expires_us=9, note=b"why", header=b"x", reason=DequeueReason.REJECTED)
    assert log.state_of(message, 2) == PlaceState(3, 0, 9, b"why", b"x")
    assert (log.finish(), log.reasons) == (({2: (1, 0)}, 1), [])


@pytest.mark.parametrize("bits", [0, KEEPS_HEADER, KEEPS_NOTE, KEEPS_HEADER | KEEPS_NOTE])
@pytest.mark.parametrize("queue", [1, 2])
def test_a_move_keeps_the_header_and_the_note_that_it_says(queue: int, bits: int) -> None:
    log = PlacedLog()
    message = log.start_placed(1, before=4)
    log.move(message, 1, 1, note=b"n", header=b"")
    log.move(message, 1, queue, bits=bits, delivery_count=1)
    note, header = b"n" if bits & KEEPS_NOTE else b"", b"" if bits & KEEPS_HEADER else None
    assert log.state_of(message, queue) == PlaceState(1, note=note, header=header)
    assert (log.depths(), log.reasons) == ({queue: (1, 0)}, [])


def test_a_move_that_keeps_what_the_place_does_not_have_gives_nothing() -> None:
    log = PlacedLog()
    message = log.publish(1)
    log.move(message, 1, 2, bits=KEEPS_HEADER | KEEPS_NOTE)
    assert log.state_of(message, 2) is None
    assert log.reasons == []


def test_a_move_from_nowhere_is_an_enqueue_with_a_state() -> None:
    log = PlacedLog()
    message = log.stage()
    log.move(message, 0, 1, header=b"")
    assert log.finish(recovering=True) == ({1: (1, 0)}, 1)
    assert log.state_of(message, 1) == PlaceState(header=b"")
    assert (log.replay.staged_dropped, log.reasons) == (0, [])


def test_a_message_never_dies_by_a_move() -> None:
    log = PlacedLog()
    message, tx = log.publish(1), log.begin()
    log.move(message, 1, 1)
    log.move(message, 1, 2, tx)
    log.step(tx, COMMIT)
    log.dequeue(message, 2, flags=DELETES)
    assert (log.finish(), log.reasons) == (({}, 0), [])


@pytest.mark.parametrize(("outcome", "queue"), [(COMMIT, 2), (ROLLBACK, 1)])
def test_a_move_in_a_transaction_locks_the_place_and_takes_effect_at_the_commit(
    outcome: RecordType, queue: int
) -> None:
    log = PlacedLog()
    message, tx = log.start_placed(1, note=b"n"), log.begin()
    log.move(message, 1, 2, tx, bits=KEEPS_NOTE)
    assert log.depths() == {1: (1, 1)}
    log.step(tx, outcome)
    assert log.state_of(message, queue) == PlaceState(note=b"n")
    assert (log.depths(), log.reasons) == ({queue: (1, 0)}, [])


def test_what_a_move_in_a_transaction_keeps_is_what_the_place_has_for_it_at_that_moment() -> None:
    log = PlacedLog()
    message, tx = log.start_placed(1, note=b"old"), log.begin()
    log.note(message, 1, b"mine", tx)
    log.move(message, 1, 2, tx, bits=KEEPS_NOTE, header=b"own")
    log.move(message, 2, 3, tx, bits=KEEPS_NOTE | KEEPS_HEADER)
    log.note(message, 3, b"later", tx)
    log.move(message, 3, 3, tx, bits=KEEPS_HEADER)
    log.step(tx, COMMIT)
    assert log.state_of(message, 3) == PlaceState(header=b"own")
    assert (log.depths(), log.reasons) == ({3: (1, 0)}, [])


def test_what_a_move_in_a_transaction_keeps_is_known_before_the_commit() -> None:
    log = PlacedLog()
    message, tx = log.start_placed(1, note=b"old"), log.begin()
    log.move(message, 1, 2, tx, bits=KEEPS_NOTE)
    work = log.replay.messages[message].pending
    assert work is not None
    assert [(one.kind, one.queue_id, one.state) for one in work] == [
        (PendingKind.DEQUEUE, 1, None),
        (PendingKind.ENQUEUE, 2, PlaceState(note=b"old")),
    ]
    assert log.reasons == []


# ---- PLACE_STATES


def test_a_row_of_states_replaces_count_and_times_and_leaves_note_and_header() -> None:
    log = PlacedLog()
    message, plain = log.start_placed(1, 2, before=5, note=b"n"), log.publish(1)
    log.move(message, 2, 2, header=b"h", note=b"m", delivery_count=9)
    log.states((message, 1, 2, 0, 8), (message, 2, 0, 0, 0), (plain, 1, 1, 0, 0))
    assert log.state_of(message, 1) == PlaceState(2, 0, 8, b"n")
    assert log.state_of(message, 2) == PlaceState(note=b"m", header=b"h")
    assert log.state_of(plain, 1) == PlaceState(1)
    log.states((plain, 1, 0, 0, 0))
    assert log.state_of(plain, 1) is None
    assert log.reasons == []


def test_of_two_rows_of_one_place_the_last_one_counts_and_the_chain_goes_on_without_them() -> None:
    log = PlacedLog()
    message = log.publish(1)
    log.states((message, 1, 7, 7, 7), (message, 1, 2, 0, 0))
    assert log.state_of(message, 1) == PlaceState(2)
    log.dequeue(message, 1, flags=DELETES)
    assert (log.finish(), log.reasons) == (({}, 0), [])


def test_a_row_of_a_message_that_began_below_the_base_is_an_orphan() -> None:
    log = PlacedLog()
    log.states((OLD, 1, 2, 0, 0), (OLD, 2, 2, 0, 0))
    assert (log.replay.orphans, log.reasons) == (2, [])
    log.placed_state(OLD, log.copy(OLD), placed(1, 2))
    log.states((OLD, 1, 3, 0, 0))
    assert log.state_of(OLD, 1) == PlaceState(3)
    assert (log.replay.orphans, log.reasons) == (2, [])


# ---- The end of a state


def test_a_row_for_a_place_that_was_deleted_with_its_queue_is_no_contradiction() -> None:
    log = PlacedLog()
    message = log.publish(1, 2)
    log.delete_queue(1)
    log.dequeue(message, 2, flags=DELETES)
    log.states((message, 1, 1, 0, 0))
    assert (log.replay.orphans, log.reasons) == (0, [])


def test_a_state_ends_with_its_place() -> None:
    log = PlacedLog()
    message = log.start_placed(1, 2, note=b"n")
    log.dequeue(message, 1)
    log.enqueue(message, 1)
    assert log.state_of(message, 1) is None
    log.delete_queue(2)
    log.states((message, 2, 1, 0, 0))
    log.note(message, 2, b"late")
    log.inline(message, 1, content=b"hello", flags=PUBLISHED)
    assert (log.depths(), log.reasons) == ({1: (1, 0)}, [])


def test_work_on_a_place_of_a_deleted_queue_is_no_contradiction() -> None:
    log = PlacedLog()
    message, tx = log.publish(1, 2), log.begin()
    log.note(message, 2, b"n", tx)
    log.move(message, 2, 3, tx)
    log.delete_queue(2)
    log.step(tx, COMMIT)
    assert (log.depths(), log.reasons) == ({1: (1, 0), 3: (1, 0)}, [])


def test_recovery_leaves_nothing_of_notes_and_moves_without_an_outcome() -> None:
    log = PlacedLog()
    message, tx = log.start_placed(1, note=b"n"), log.begin()
    log.note(message, 1, b"never", tx)
    log.move(message, 1, 2, tx, note=b"never")
    assert log.finish(recovering=True) == ({1: (1, 0)}, 1)
    assert log.state_of(message, 1) == PlaceState(note=b"n")


# ---- Relocations


def test_a_chain_that_began_below_the_base_is_made_from_its_state_with_states() -> None:
    log = PlacedLog()
    log.move_tx(OLD_TX, TxState.ACTIVE, xid=None)
    work = (
        PlacedWork(OLD_TX, OLD_TX + 8, 3, PendingKind.ENQUEUE, 4, 5, 6, HAS_HEADER, 0, b"n", b""),
        PlacedWork(OLD_TX, OLD_TX + 8, 1, PendingKind.DEQUEUE),
        PlacedWork(OLD_TX, OLD_TX + 16, 2, PendingKind.NOTE, note=b"new"),
    )
    for _ in range(2):
        start = log.copy(OLD)
        log.placed_state(OLD, start, placed(1, 1), flags=PART)
        log.placed_state(OLD, start, placed(2, note=b"n", header=b"h"), pending=work, part=1)
    assert log.state_of(OLD, 1) == PlaceState(1)
    log.step(OLD_TX, COMMIT)
    assert log.state_of(OLD, 2) == PlaceState(note=b"new", header=b"h")
    assert log.state_of(OLD, 3) == PlaceState(4, 5, 6, b"n", b"")
    assert (log.depths(), log.reasons) == ({2: (1, 0), 3: (1, 0)}, [])


def test_a_relocated_move_ends_the_old_place_before_it_makes_the_new_one() -> None:
    log = PlacedLog()
    log.move_tx(OLD_TX, TxState.ACTIVE, xid=None)
    work = (
        PlacedWork(OLD_TX, OLD_TX + 8, 1, PendingKind.ENQUEUE, 2),
        PlacedWork(OLD_TX, OLD_TX + 8, 1, PendingKind.DEQUEUE),
    )
    log.placed_state(OLD, log.copy(OLD), placed(1, 1), pending=work)
    log.step(OLD_TX, COMMIT)
    assert log.state_of(OLD, 1) == PlaceState(2)
    assert (log.depths(), log.reasons) == ({1: (1, 0)}, [])


def test_a_staged_message_may_be_relocated_with_states_of_its_pending_work() -> None:
    log = PlacedLog()
    message, tx = log.stage(), log.begin()
    lsn = log.move(message, 0, 1, tx, note=b"n")
    work = PlacedWork(tx, lsn, 1, PendingKind.ENQUEUE, note=b"n")
    log.placed_state(message, log.copy(message, b""), pending=(work,), flags=STAGED, size=0)
    log.step(tx, COMMIT)
    assert log.state_of(message, 1) == PlaceState(note=b"n")
    assert log.reasons == []


def test_the_parts_of_a_state_with_states_count_only_with_the_last_one() -> None:
    log = PlacedLog()
    message = log.start_placed(1, note=b"n")
    log.placed_state(message, log.copy(message), placed(1, 7), flags=PART)
    log.note(message, 1, b"m")
    assert log.state_of(message, 1) == PlaceState(note=b"m")
    log.dequeue(message, 1, flags=DELETES)
    assert (log.finish(), log.reasons) == (({}, 0), [])


def test_a_delivery_count_in_a_plain_state_is_a_state() -> None:
    log = PlacedLog()
    body = Relocated(5, log.copy(OLD), 0, (), (QueuePlace(OLD, 0, 1, 0, 3),), ())
    log.add(RecordType.MESSAGE_RELOCATED, body, OLD)
    assert log.state_of(OLD, 1) == PlaceState(3)
    log.placed_state(OLD, log.copy(OLD), placed(1, 3))
    assert log.reasons == []
