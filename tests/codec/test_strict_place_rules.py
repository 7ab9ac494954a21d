"""Logs that break one rule of the states of places each: the strict replay notes it, and continues."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kit.moving_log import BASE, DELETES, OLD, OLD_NEWEST, OLD_TX, PART
from kit.place_work import PlacedLog, placed
from logstore.codec.records import (
    MessageRelocated,
    PendingKind,
    PendingWork,
    PlacedPlace,
    PlacedWork,
    QueuePlace,
    RecordType,
    TxState,
)
from logstore.codec.state import PlaceState

if TYPE_CHECKING:
    from collections.abc import Callable

COMMIT = RecordType.TX_COMMIT

# Each takes a log with a message that is on queue 1, with a note "n", and on queue 2, with nothing.


def note_in_a_transaction_after_its_own_dequeue(log: PlacedLog, message: int) -> None:
    tx = log.begin()
    log.dequeue(message, 1, tx)
    log.note(message, 1, b"x", tx)


def note_that_finds_no_place_at_the_commit(log: PlacedLog, message: int) -> None:
    tx = log.begin()
    log.note(message, 1, b"x", tx)
    log.dequeue(message, 1)
    log.step(tx, COMMIT)


def move_that_finds_no_place_at_the_commit(log: PlacedLog, message: int) -> None:
    tx = log.begin()
    log.move(message, 1, 3, tx)
    log.dequeue(message, 1)
    log.step(tx, COMMIT)


def move_to_a_place_that_is_there_at_the_commit(log: PlacedLog, message: int) -> None:
    tx = log.begin()
    log.move(message, 1, 2, tx)
    log.step(tx, COMMIT)


def move_out_of_number(log: PlacedLog, message: int) -> None:
    tx = log.begin()
    log.move(message, 1, 3, tx)
    log.enqueues[tx] = 4
    log.move(message, 3, 4, tx)


def placed_start_out_of_number(log: PlacedLog, message: int) -> None:
    tx = log.begin()
    log.move(message, 1, 3, tx)
    log.enqueues[tx] = 0
    log.start_placed(1, tx=tx, note=b"n")


def enqueue_out_of_number_after_a_move(log: PlacedLog, message: int) -> None:
    tx = log.begin()
    log.move(message, 1, 3, tx)
    log.enqueues[tx] = 0
    log.publish(4, tx=tx)


def state_in_parts_of_two_types(log: PlacedLog, message: int) -> None:
    start = log.copy(message)
    log.placed_state(message, start, placed(1, note=b"n"), flags=PART)
    log.state(message, start, 2, part=1)


def state_in_parts_that_begin_plain(log: PlacedLog, message: int) -> None:
    start = log.copy(message)
    log.state(message, start, 2, flags=PART)
    log.placed_state(message, start, placed(1, note=b"n"), part=1)


def state_that_loses_pending_states(log: PlacedLog, message: int) -> None:
    log.note(message, 1, b"")
    tx = log.begin()
    lsn = log.move(message, 1, 3, tx, note=b"n")
    work = PendingWork(tx, lsn, 1, PendingKind.DEQUEUE, 0), PendingWork(tx, lsn, 3, PendingKind.ENQUEUE, 0)
    log.state(message, log.copy(message), 1, 2, pending=work)


def state_with_another_note_pending(log: PlacedLog, message: int) -> None:
    tx = log.begin()
    lsn = log.note(message, 1, b"x", tx)
    work = (PlacedWork(tx, lsn, 1, PendingKind.NOTE, note=b"y"),)
    log.placed_state(message, log.copy(message), placed(1, note=b"n"), placed(2), pending=work)


def state_without_a_pending_note(log: PlacedLog, message: int) -> None:
    log.note(message, 1, b"x", log.begin())
    log.placed_state(message, log.copy(message), placed(1, note=b"n"), placed(2))


def plain_state_with_a_count(log: PlacedLog, message: int) -> None:
    rows = QueuePlace(message, 0, 1, 0, 2), QueuePlace(message, 0, 2, 0, 0)
    log.add(RecordType.MESSAGE_RELOCATED, MessageRelocated(5, log.copy(message), 0, (), rows, ()), message)


def as_relocated(*places: PlacedPlace) -> Callable[[PlacedLog, int], object]:
    return lambda log, message: log.placed_state(message, log.copy(message), *places)


NO_NOTE = "a note is put on a place that is not there: message {} on queue {}"
NO_STATE = "the state of a place that is not there: message {} on queue {}"
LOST = "without the state of its place on queue 1, which would be lost: the state (delivery_count 0,"
NOTED = "(delivery_count 0, not_before_us 0, expires_us 0, note 6e, no header)"
WRONG: list[tuple[Callable[[PlacedLog, int], object], str]] = [
    (lambda log, message: log.note(message, 3, b"x"), NO_NOTE.format("{message}", 3)),
    (lambda log, message: log.note(message, 3, b"x", log.begin()), NO_NOTE.format("{message}", 3)),
    (note_in_a_transaction_after_its_own_dequeue, NO_NOTE.format("{message}", 1)),
    (note_that_finds_no_place_at_the_commit, NO_NOTE.format("{message}", 1)),
    (lambda log, message: log.note(message, 1, b"x", OLD_TX + BASE), "which is not open"),
    (lambda log, message: log.move(message, 3, 4), "message {message} is moved from queue 3, where it is not"),
    (
        lambda log, message: log.move(message, 3, 4, log.begin()),
        "message {message} is moved from queue 3, where it is not",
    ),
    (move_that_finds_no_place_at_the_commit, "message {message} is dequeued from queue 1, where it is not"),
    (lambda log, message: log.move(message, 1, 2), "message {message} is enqueued on queue 2, where it is already"),
    (lambda log, message: log.move(message, 0, 2), "message {message} is enqueued on queue 2, where it is already"),
    (move_to_a_place_that_is_there_at_the_commit, "message {message} is enqueued on queue 2, where it is already"),
    (move_out_of_number, "enqueue 4 of transaction"),
    (placed_start_out_of_number, "comes after 1 others"),
    (enqueue_out_of_number_after_a_move, "comes after 1 others"),
    (lambda log, message: log.states((message, 3, 1, 0, 0)), NO_STATE.format("{message}", 3)),
    (lambda log, message: log.state(message, log.copy(message), 1, 2), LOST),
    (lambda log, message: log.inline(message, 1, 2, content=b"hello"), LOST),
    (plain_state_with_a_count, f"of its place on queue 1, and it has the state {NOTED}"),
    (as_relocated(placed(1), placed(2)), LOST),
    (as_relocated(placed(1, note=b"n"), placed(2, 1)), "no header) of its place on queue 2, and it has no state"),
    (as_relocated(placed(1, 1, b"n"), placed(2)), f"and it has the state {NOTED}"),
    (as_relocated(placed(1, note=b"o"), placed(2)), "note 6f, no header) of its place on queue 1"),
    (as_relocated(placed(1, note=b"n", header=b""), placed(2)), "note 6e, header of no bytes) of its place on queue 1"),
    (as_relocated(placed(1, note=b"n", expires=5), placed(2)), "expires_us 5, note 6e, no header) of its place"),
    (as_relocated(placed(1, note=b"n")), "with places on queues [1], and it has them on [1, 2]"),
    (as_relocated(placed(1, note=b"n"), placed(2), placed(2)), "with two places on one queue: (1, 2, 2)"),
    (state_in_parts_of_two_types, "the parts of its state are of two types"),
    (state_in_parts_that_begin_plain, "the parts of its state are of two types"),
    (state_that_loses_pending_states, "without the state of enqueue on queue 3 by transaction"),
    (state_with_another_note_pending, "of note on queue 1 by transaction"),
    (state_without_a_pending_note, "with pending work [], and it has [note on queue 1 by transaction"),
]


@pytest.mark.parametrize("old", [True, False], ids=["old", "new"])
@pytest.mark.parametrize(("break_it", "reason"), WRONG, ids=lambda value: getattr(value, "__name__", value))
def test_a_contradiction_of_states_of_places_is_noted_and_replay_continues(
    break_it: Callable[[PlacedLog, int], object], reason: str, old: bool
) -> None:
    log = PlacedLog()
    if old:
        message = OLD
        log.placed_state(OLD, log.copy(OLD), placed(1, note=b"n"), placed(2))
    else:
        message = log.start_placed(1, note=b"n")
        log.enqueue(message, 2)
    assert log.reasons == []
    break_it(log, message)
    found = [one for one in log.reasons if reason.replace("{message}", str(message)) in one]
    assert found
    log.publish(7)
    assert log.depths()[7] == (1, 0)


def test_the_state_of_a_place_of_a_message_that_has_ended_is_a_contradiction() -> None:
    log = PlacedLog()
    message = log.publish(1)
    log.dequeue(message, 1, flags=DELETES)
    log.states((message, 1, 1, 0, 0))
    assert log.reasons == [NO_STATE.format(message, 1)]


def test_a_row_of_an_unknown_message_at_or_above_the_base_is_a_contradiction() -> None:
    log = PlacedLog()
    log.states((BASE, 1, 1, 0, 0))
    assert log.reasons == [NO_STATE.format(BASE, 1)]
    assert log.replay.orphans == 0


def test_a_contradicting_state_replaces_the_known_states() -> None:
    log = PlacedLog()
    message, tx = log.start_placed(1, 2, note=b"n"), log.begin()
    lsn = log.note(message, 2, b"x", tx)
    work = (PlacedWork(tx, lsn, 2, PendingKind.NOTE, note=b"y"),)
    log.placed_state(message, log.copy(message), placed(1, 4), placed(2, header=b"h"), pending=work)
    assert len(log.reasons) == 3
    log.step(tx, COMMIT)
    assert log.state_of(message, 1) == PlaceState(4)
    assert log.state_of(message, 2) == PlaceState(note=b"y", header=b"h")
    assert len(log.reasons) == 3


def test_records_with_states_of_an_old_chain_are_orphans_up_to_its_relocation() -> None:
    log = PlacedLog()
    log.note(OLD, 1, b"x")
    log.move(OLD, 1, 2)
    log.states((OLD, 2, 1, 0, 0))
    log.placed_state(OLD, OLD_NEWEST, placed(2, 1), part=1)
    log.placed_state(OLD, log.copy(OLD), placed(2, 1), flags=PART)
    assert (log.replay.messages, log.replay.orphans, log.reasons) == ({}, 3, [])


def test_the_queues_that_records_with_states_name_are_held_against_the_catalog() -> None:
    log = PlacedLog()
    message = log.start_placed(2, note=b"n")
    log.move_tx(OLD_TX, TxState.ACTIVE, xid=None)
    highest: list[tuple[int, Any]] = [
        (3, lambda: log.start_placed(3, note=b"n")),
        (4, lambda: log.move(message, 2, 4)),
        (5, lambda: log.note(OLD, 5, b"n")),
        (6, lambda: log.move(OLD, 6, 1)),
        (7, lambda: log.states((OLD, 7, 1, 0, 0))),
        (8, lambda: log.placed_state(OLD, log.copy(OLD), placed(8, 1))),
    ]
    for queue, do in highest:
        do()
        assert log.replay.queue_id_max == queue
