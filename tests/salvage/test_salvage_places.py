"""A salvage keeps the states of places, whatever else of the log is lost."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from kit.moving_log import BASE, OLD, OLD_NEWEST, PUBLISHED
from kit.place_work import KEEPS_NOTE, PlacedLog, Worker, found, lenient, placed
from logstore.codec.files import decode_segment
from logstore.codec.records import MessageMove, MessageStartPlaced, Record, RecordFlag, RecordType, encode_record
from logstore.codec.scan import Damaged, Gap
from logstore.codec.state import PlaceState
from logstore.codec.strict import StrictReplay
from logstore.errors import StoreError
from logstore.salvage import salvage
from logstore.salvage.extent import CARRIER_BYTES_MIN, CARRIERS
from logstore.salvage.write import LogWriter, write_message, write_transaction

if TYPE_CHECKING:
    from logstore.salvage.state import State

SEGMENT = 64 << 10
GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "v1"


def written(log: PlacedLog, state: State, directory: Path) -> tuple[LogWriter, list[Record]]:
    """The log that a salvage writes for this state."""
    records = {record.lsn: record for record in log.records}
    writer = LogWriter(directory, UUID(int=1), SEGMENT, (log.next_lsn // SEGMENT + 1) * SEGMENT)
    for transaction in state.transactions.values():
        write_transaction(writer, transaction)
    for message_id, message in state.messages.items():
        write_message(writer, message_id, message, records.__getitem__)
    writer.close(1 << 20)
    segments = [decode_segment(path.read_bytes()) for path in sorted(directory.glob("*.seg"))]
    return writer, [record for one in segments for batch, rest in one.batches for record in (batch, *rest)]


def replayed(records: list[Record], base_lsn: int) -> StrictReplay:
    replay = StrictReplay(base_lsn, SEGMENT)
    for record in records:
        replay.apply(record)
    replay.finish()
    assert replay.problems == []
    return replay


@pytest.mark.parametrize("seed", range(10))
def test_the_written_log_has_the_states_of_places_and_of_pending_work(seed: int, tmp_path: Path) -> None:
    worker = Worker(random.Random(seed))
    for _ in range(300):
        worker.step()
    writer, records = written(worker.log, lenient(worker.log.records, BASE), tmp_path)
    replay = replayed(records, writer.base_lsn)
    worker.recover()
    assert found(replay.messages, worker.deleted, keys=False) == worker.told(keys=False)
    assert found(lenient(records, writer.base_lsn).messages, worker.deleted, keys=True) == worker.told(keys=True)
    types = Counter(record.type for record in records)
    assert types[RecordType.MESSAGE_RELOCATED_PLACED] > 5
    assert types[RecordType.MESSAGE_START_PLACED] == 0


@pytest.mark.parametrize("kind", ["note", "move"])
def test_a_state_that_only_pending_work_gives_is_written(kind: str, tmp_path: Path) -> None:
    log = PlacedLog()
    message, tx = log.publish(1), log.begin(b"x")
    if kind == "note":
        log.note(message, 1, b"", tx)
    else:
        log.move(message, 1, 2, tx, delivery_count=3, header=b"own")
    log.step(tx, RecordType.TX_END)
    log.prepare(tx, b"x")
    writer, records = written(log, lenient(log.records, BASE), tmp_path)
    replay = replayed(records, writer.base_lsn)
    assert replay.messages[message].pending == log.replay.messages[message].pending


def test_a_long_state_is_written_in_parts_of_one_type(tmp_path: Path) -> None:
    log = PlacedLog()
    message = log.start_placed(*range(1, 41), note=bytes(200))
    writer, records = written(log, lenient(log.records, BASE), tmp_path)
    replay = replayed(records, writer.base_lsn)
    assert [place.state for place in replay.messages[message].places] == [PlaceState(note=bytes(200))] * 40
    parts = [record for record in records if record.type is RecordType.MESSAGE_RELOCATED_PLACED]
    assert len(parts) > 1
    assert all(record.type is not RecordType.MESSAGE_RELOCATED for record in records)


def test_a_header_that_no_relocated_state_has_room_for_is_refused_by_name(tmp_path: Path) -> None:
    log = PlacedLog()
    message = log.publish(1)
    log.move(message, 1, 1, header=bytes(4090))
    with pytest.raises(StoreError, match=f"message {message} has a place with a header"):
        written(log, lenient(log.records, BASE), tmp_path)


def test_the_records_that_can_put_a_message_on_a_queue_are_counted_with_the_new_ones() -> None:
    new = {RecordType.MESSAGE_MOVE, RecordType.MESSAGE_START_PLACED, RecordType.MESSAGE_RELOCATED_PLACED}
    assert new < CARRIERS
    assert RecordType.MESSAGE_PLACE not in CARRIERS
    for body in (MessageMove(0, 0, 1), MessageStartPlaced(0, (1,), b"", b"", 0, 1)):
        assert len(encoded(body)) >= CARRIER_BYTES_MIN


def encoded(body: MessageMove | MessageStartPlaced) -> bytes:
    first = isinstance(body, MessageStartPlaced)
    kind = RecordType.MESSAGE_START_PLACED if first else RecordType.MESSAGE_MOVE
    length = 104 if first else 96
    return encode_record(Record(4096, kind, RecordFlag(0), 4096 if first else 8, 0 if first else 8, length, body), 1)


# ---- Damage


def damaged(record: Record, raw: bytes = b"") -> Damaged:
    """The record with a valid header and nothing else."""
    return Damaged(record.lsn, record.length, int(record.type), int(record.flags), record.id, record.prev, raw)


def without(log: PlacedLog, *lsns: int, header: bool) -> list[Record | Damaged | Gap]:
    """The log's records, of which those at these LSNs are damaged or gone."""
    items: list[Record | Damaged | Gap] = []
    for record in log.records:
        if record.lsn not in lsns:
            items.append(record)
        else:
            items.append(damaged(record) if header else Gap(record.lsn, record.lsn + 256, "gone", records=1))
    return items


def places(state: State, message: int) -> dict[int, PlaceState | None]:
    return {place.queue_id: place.state for place in state.messages[message].places}


def test_a_lost_move_leaves_the_message_where_it_was_and_says_so() -> None:
    log = PlacedLog()
    message = log.start_placed(1, note=b"n")
    lost = log.move(message, 1, 2)
    state = lenient(without(log, lost, header=True), BASE)
    assert places(state, message) == {1: PlaceState(note=b"n")}
    assert ["it is still live, but no readable record names its queue" in one.why for one in state.doubtful] == [True]


@pytest.mark.parametrize("header", [True, False])
def test_a_message_is_on_the_queue_that_a_row_of_states_names_if_its_enqueue_is_lost(header: bool) -> None:
    log = PlacedLog()
    message, other = log.stage(), log.stage()
    lost = log.enqueue(message, 3), log.enqueue(other, 3)
    log.states((message, 3, 2, 0, 9), (other, 3, 1, 0, 0))
    state = lenient(without(log, *lost, header=header), BASE)
    assert places(state, message) == {3: PlaceState(2, 0, 9)}
    keys = {(place.order_lsn, place.order_index) for one in (message, other) for place in state.messages[one].places}
    assert len(keys) == 2
    assert any("the record that put it on queue 3 is lost" in one.why for one in state.doubtful)


def test_a_note_on_a_pending_place_says_that_its_transaction_was_committed() -> None:
    log = PlacedLog()
    tx = log.begin()
    message = log.start_placed(1, tx=tx, expires=9, note=b"n")
    lost = log.step(tx, RecordType.TX_COMMIT)
    log.note(message, 1, b"m")
    state = lenient(without(log, lost, header=False), BASE)
    assert places(state, message) == {1: PlaceState(0, 0, 9, b"m")}


def test_a_lost_note_costs_only_the_note_and_is_reported() -> None:
    log = PlacedLog()
    message = log.start_placed(1, note=b"old")
    lost = log.note(message, 1, b"new")
    state = lenient(without(log, lost, header=True), BASE)
    assert places(state, message) == {1: PlaceState(note=b"old")}
    assert [one.why for one in state.doubtful] == [
        "a note on a place of it is lost: the note there may be an older one"
    ]


def test_a_note_of_a_transaction_whose_outcome_is_lost_is_not_kept_and_is_reported() -> None:
    log = PlacedLog()
    message, tx = log.start_placed(1, note=b"old"), log.begin()
    log.note(message, 1, b"new", tx)
    lost = log.step(tx, RecordType.TX_COMMIT)
    state = lenient(without(log, lost, header=False), BASE)
    assert places(state, message) == {1: PlaceState(note=b"old")}
    (doubt,) = state.doubtful
    assert doubt.why.startswith(f"transaction {tx} put a note on it on queue 1, and its outcome is lost")


def test_a_move_of_a_transaction_whose_outcome_is_lost_keeps_the_message_with_its_states() -> None:
    log = PlacedLog()
    message, tx = log.start_placed(1, note=b"n"), log.begin()
    log.move(message, 1, 2, tx, bits=KEEPS_NOTE, delivery_count=2)
    lost = log.step(tx, RecordType.TX_COMMIT)
    state = lenient(without(log, lost, header=False), BASE)
    assert places(state, message) == {1: PlaceState(note=b"n"), 2: PlaceState(2, note=b"n")}


def test_a_damaged_placed_start_tells_its_queues_where_they_stand_in_it() -> None:
    body = MessageStartPlaced(0, (3, 9), b"h", b"content", 0, 5, 0, b"n")
    whole = Record(BASE, RecordType.MESSAGE_START_PLACED, PUBLISHED, BASE, 0, 120, body)
    raw = encode_record(whole, 1)
    state = lenient([damaged(whole, raw)], BASE)
    (lost,) = state.lost
    assert (lost.id, lost.queues_probable, lost.certain) == (BASE, [3, 9], True)


def test_a_relocated_state_with_states_survives_everything_before_it() -> None:
    log = PlacedLog()
    message = log.start_placed(1, note=b"n")
    lost = log.move(message, 1, 2, delivery_count=3, header=b"own")
    log.placed_state(message, log.copy(message, flags=PUBLISHED), placed(2, 3, header=b"own"))
    state = lenient(without(log, message, lost, header=False), BASE)
    assert places(state, message) == {2: PlaceState(3, header=b"own")}
    assert (state.lost, state.doubtful) == ([], [])


def test_a_damaged_state_with_states_leaves_what_was_known_before() -> None:
    log = PlacedLog()
    message = log.start_placed(1, note=b"n")
    log.copy(message, flags=PUBLISHED)
    lost = log.placed_state(message, log.last[message], placed(1, note=b"n"))
    state = lenient(without(log, lost, header=True), BASE)
    assert places(state, message) == {1: PlaceState(note=b"n")}


def test_rows_of_states_of_chains_that_began_below_the_base_are_no_loss() -> None:
    log = PlacedLog()
    log.states((OLD, 1, 2, 0, 0))
    log.note(OLD, 1, b"n")
    log.placed_state(OLD, OLD_NEWEST, placed(1, 2, b"n"))
    log.placed_state(OLD, log.copy(OLD), placed(1, 2, b"n", b"h"))
    state = lenient(log.records, BASE)
    assert places(state, OLD) == {1: PlaceState(2, note=b"n", header=b"h")}
    assert (state.lost, state.doubtful) == ([], [])
    alone = PlacedLog()
    alone.states((OLD, 1, 2, 0, 0))
    assert lenient(alone.records, BASE).lost == []


# ---- Whole stores


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    """The golden store with states of places."""
    made = tmp_path / "store"
    shutil.copytree(GOLDEN / "places", made, ignore=shutil.ignore_patterns("*.json"))
    shutil.copyfile(GOLDEN / "store" / "META", made / "META")
    return made


def test_a_salvage_reads_a_log_with_states_of_places(golden: Path) -> None:
    report = salvage(golden, None)
    assert (report.messages, report.places, report.rolled_back) == (4, 8, 1)
    assert (report.lost, report.doubtful, report.lost_messages) == ([], [], {"least": 0, "most": 0})


def test_a_salvaged_store_has_the_states_of_places(golden: Path, tmp_path: Path) -> None:
    salvage(golden, tmp_path / "new")
    files = [path.read_bytes() for path in sorted((tmp_path / "new").glob("*.seg"))]
    segments = [decode_segment(raw) for raw in files if raw[:8] != bytes(8)]  # the others are spares
    records = [record for one in segments for batch, rest in one.batches for record in (batch, *rest)]
    replay = replayed(records, segments[0].header.first_lsn)
    states = {place.queue_id: place.state for message in replay.messages.values() for place in message.places}
    assert states[4] == PlaceState(8, note=b"why", header=b"x-death: 1")
    assert states[3] == PlaceState(2**32 - 1, note=b"in a transaction")
