"""The sentence and the line of each record with states of places."""

from __future__ import annotations

from pathlib import Path

import pytest

from logstore.codec.files import decode_segment
from logstore.codec.records import (
    Body,
    DequeueReason,
    MessageMove,
    MessagePlace,
    MessageRelocated,
    MessageRelocatedPlaced,
    MessageStartPlaced,
    PendingKind,
    PlacedPlace,
    PlacedWork,
    PlaceStates,
    QueuePlace,
    Record,
    RecordFlag,
    RecordType,
    StateRow,
)
from logstore.commands.dump import _named
from logstore.terminal.meaning import meaning
from logstore.terminal.records import record_document, record_line

NAMES = {1: "orders", 2: "dead"}
AT = 1_700_000_000_123_456
UNTIL, EXPIRES = "hidden until 2023-11-14 22:13:20.123 UTC", "expires 2023-11-14 22:13:20.123 UTC"
GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "v1" / "places"

KINDS = {kind.body: kind for kind in RecordType}


def record(body: Body, flags: int = 0) -> Record:
    return Record(4096, KINDS[type(body)], RecordFlag(flags), 8, 8, 256, body)


SENTENCES: list[tuple[Body, str]] = [
    (MessageStartPlaced(0, (1, 3), b"", b"", 0, AT), f"published to queues 'orders', 3, {UNTIL}"),
    (
        MessageStartPlaced(9, (2,), b"", b"", 0, 0, AT, b"n"),
        f"published to queue 'dead', {EXPIRES}, with the note 'n', by transaction 9: takes effect at its commit",
    ),
    (MessagePlace(0, 1, b"seen by billing"), "its place on queue 'orders' gets the note 'seen by billing'"),
    (MessagePlace(0, 1, b"\xff\x00"), "its place on queue 'orders' gets the note hex ff 00"),
    (
        MessagePlace(9, 3, b""),
        "its place on queue 3 loses its note by transaction 9: takes effect at its commit",
    ),
    (
        MessageMove(0, 1, 2, 0, 3, 0, AT, DequeueReason.DEAD_LETTERED, 1, b"why", b"x-death"),
        (
            f"moved from queue 'orders' to queue 'dead' (dead-lettered), delivered 3 times, {EXPIRES}, "
            "with the note 'why', with a header of its own of 7 bytes"
        ),
    ),
    (
        MessageMove(0, 1, 1, 0, 1, AT, state_bits=6),
        (
            f"moved to the end of queue 'orders', delivered once, {UNTIL}, "
            "with the header of its own that it had there, with the note that it had there"
        ),
    ),
    (
        MessageMove(9, 0, 2, state_bits=1),
        "enqueued on queue 'dead', with a header of its own of 0 bytes, by transaction 9: takes effect at its commit",
    ),
    (
        PlaceStates((StateRow(64, AT, 0, 1, 2), StateRow(72, 0, 0, 3, 0))),
        (
            f"counts and times of places: message 64 on queue 'orders', delivered 2 times, {UNTIL}; "
            "message 72 on queue 3, none"
        ),
    ),
    (
        MessageRelocatedPlaced(
            5,
            64,
            0,
            (),
            (PlacedPlace(64, 0, 1, 0, 1, note=b"n"), PlacedPlace(64, 0, 2, 0)),
            (
                PlacedWork(9, 80, 3, PendingKind.ENQUEUE, expires_us=AT),
                PlacedWork(9, 80, 1, PendingKind.DEQUEUE),
                PlacedWork(9, 88, 2, PendingKind.NOTE),
                PlacedWork(9, 96, 2, PendingKind.NOTE, note=b"m"),
            ),
        ),
        (
            "relocated: its whole state, 5 bytes of content, on queue 'orders' (delivered once, with the note 'n'), "
            f"on queue 'dead', enqueued on queue 3 ({EXPIRES}) by transaction 9 without an outcome, "
            "dequeued from queue 'orders' by transaction 9 without an outcome, "
            "noted on queue 'dead' (without a note) by transaction 9 without an outcome, "
            "noted on queue 'dead' (with the note 'm') by transaction 9 without an outcome"
        ),
    ),
    (
        MessageRelocated(5, 64, 0, (), (QueuePlace(64, 0, 1, 0, 0), QueuePlace(64, 0, 3, 0, 0)), ()),
        "relocated: its whole state, 5 bytes of content, on queues 'orders', 3",
    ),
]


@pytest.mark.parametrize(("body", "sentence"), SENTENCES)
def test_each_record_with_states_of_places_has_its_sentence(body: Body, sentence: str) -> None:
    assert meaning(record(body), NAMES) == sentence


def test_a_part_of_a_state_with_states_says_that_it_is_one() -> None:
    body = MessageRelocatedPlaced(5, 64, 1, (), (), ())
    part = "part 1 of its state, relocated; counts once the last part is there"
    assert meaning(record(body, RecordFlag.PART), NAMES) == part
    assert meaning(record(body, RecordFlag.STAGED), NAMES).endswith("on no queue, never enqueued yet")


def test_a_line_shows_the_times_of_a_place_as_times_and_its_queues_by_name() -> None:
    line = record_line(record(MessageMove(0, 1, 2, 0, 3, AT, 0, note=b"why", header=b"xy", state_bits=1)), False, NAMES)
    assert " from_queue=orders queue=dead " in line
    assert " not_before=2023-11-14T22:13:20.123456Z expires=none " in line
    assert line.endswith(" note=776879 header_bytes=2")
    assert " from_queue=none queue=dead " in record_line(record(MessageMove(0, 0, 2)), False, NAMES)
    rows = record_line(record(PlaceStates((StateRow(64, 0, AT, 1, 2),))), False, NAMES)
    assert "(id=64 not_before=none expires=2023-11-14T22:13:20.123456Z queue=orders delivery_count=2)" in rows


def test_the_json_of_a_record_keeps_the_numbers_and_has_the_note_in_hexadecimal() -> None:
    told = record_document(record(MessageMove(0, 1, 2, 0, 3, AT, 0, note=b"why", header=b"xy", state_bits=1)), True)
    body = told["body"]
    assert (body["not_before_us"], body["expires_us"], body["from_queue_id"]) == (AT, 0, 1)
    assert (body["note"], body["header"], body["header_bytes"]) == ("776879", "eHk=", 2)


def test_a_filter_by_queue_finds_both_queues_of_a_move_and_the_rows_of_states() -> None:
    assert sorted(_named(record(MessageMove(0, 1, 2)))) == [1, 2]
    assert list(_named(record(MessageMove(0, 0, 2)))) == [2]
    assert list(_named(record(PlaceStates((StateRow(64, 0, AT, 1, 2), StateRow(64, 0, AT, 3, 2)))))) == [1, 3]


def test_every_golden_record_with_states_has_a_sentence_and_a_line() -> None:
    (path,) = GOLDEN.glob("*.seg")
    found = [one for _, records in decode_segment(path.read_bytes()).batches for one in records]
    assert len(found) > 10
    for one in found:
        assert meaning(one, NAMES)
        assert record_line(one, True, NAMES).startswith(str(one.lsn))
