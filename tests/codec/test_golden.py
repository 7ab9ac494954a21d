"""The golden files: made by hand, checked in, and decoded equally by every reader of the format."""

from __future__ import annotations

import importlib
import json
import shutil
from dataclasses import fields, is_dataclass
from enum import IntEnum, IntFlag
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

import logstore
from kit.c_codec import decode_by_c, decode_fixed_by_c, encode_by_c, encode_fixed_by_c
from kit.checkpoints import decode_checkpoint, encode_checkpoint
from logstore.catalog.catalog import Catalog
from logstore.codec.files import Closed, Hint, Hold, Meta, SegmentHeader, decode_segment, iter_batches
from logstore.codec.records import BODIES, Batch, InlineCopy, OrderedCopy, Record, RecordFlag, RecordType, encode_record
from logstore.codec.state import PlaceState
from logstore.codec.strict import StrictReplay
from logstore.inspect import BatchBytes, Inspection, Reader
from logstore.verify.verification import Verification

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

HOUR_US = 1_700_000_000_000_000 + 3_600_000_000  # an hour after the golden files were made
ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden" / "v1"
SEGMENTS = sorted(str(path.relative_to(GOLDEN)) for path in GOLDEN.rglob("*.seg"))
OTHERS: dict[str, type[Meta | Hint | Closed | Hold]] = {
    "store/META": Meta,
    "store/HINT": Hint,
    "store/CLOSED": Closed,
    "store/holds/reader.hold": Hold,
}


@pytest.fixture(scope="module")
def generator() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "tools")
        yield importlib.import_module("make_golden")


def told(value: Any) -> Any:
    """A decoded structure in the form of the golden JSON."""
    if is_dataclass(value):
        return {field.name: told(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, IntFlag):
        return [flag.name for flag in type(value) if flag in value]
    if isinstance(value, IntEnum):
        return value.name
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, tuple | list):
        return [told(item) for item in value]
    return value


def told_record(record: Record) -> dict[str, Any]:
    words: dict[str, Any] = told(record)
    if not isinstance(record.type, RecordType):
        words["type"] = f"{record.type:#06x}"
    return words


def read(path: str) -> tuple[bytes, Any]:
    return (GOLDEN / path).read_bytes(), json.loads((GOLDEN / f"{path}.json").read_text())


def records_of(path: str) -> list[Record]:
    raw, expected = read(path)
    segment = decode_segment(raw, expected["end"])
    return [record for batch, records in segment.batches for record in (batch, *records)]


def test_the_checked_in_files_equal_the_generators_output(generator: ModuleType) -> None:
    assert generator.differences(generator.generate(), GOLDEN) == []


def test_a_changed_a_missing_and_an_extra_golden_file_are_each_noticed(generator: ModuleType, tmp_path: Path) -> None:
    files = {"same": b"1", "changed": b"2", "missing": b"3"}
    for name, raw in (("same", b"1"), ("changed", b"x"), ("extra", b"4")):
        (tmp_path / name).write_bytes(raw)
    assert generator.differences(files, tmp_path) == [
        "changed: differs",
        "extra: should not be there",
        "missing: is missing",
    ]


def test_all_golden_files_together_stay_below_one_mebibyte() -> None:
    assert sum(path.stat().st_size for path in GOLDEN.rglob("*") if path.is_file()) < 1 << 20


@pytest.mark.parametrize("path", SEGMENTS)
def test_records_py_decodes_a_golden_segment_to_its_json(path: str) -> None:
    raw, expected = read(path)
    segment = decode_segment(raw, expected["end"])
    assert told(segment.header) == expected["header"]
    assert f"{segment.header.first_lsn:016x}.seg" == Path(path).name
    found = [
        {"batch": told_record(batch), "records": [told_record(record) for record in records]}
        for batch, records in segment.batches
    ]
    assert found == expected["batches"]
    assert segment.stop.lsn == expected["stop_lsn"]
    assert (segment.stop.error is None) == (expected["stop"] == "end")


@pytest.mark.parametrize("path", SEGMENTS)
def test_both_codecs_encode_a_golden_segment_to_the_same_bytes(path: str) -> None:
    raw, expected = read(path)
    header = SegmentHeader.decode(raw)
    assert header.encode() == encode_fixed_by_c(header) == raw[:4096]
    for batch, records in iter_batches(raw, header, expected["end"]):
        for record in (batch, *records):
            at = record.lsn - header.first_lsn
            assert encode_record(record, header.seed) == raw[at : at + record.length]
            if isinstance(record.type, RecordType):
                assert encode_by_c(record, header.seed) == raw[at : at + record.length]


@pytest.mark.parametrize("path", OTHERS)
def test_both_codecs_decode_a_golden_file_to_its_json_and_encode_it_back(path: str) -> None:
    raw, expected = read(path)
    for found in (OTHERS[path].decode(raw), decode_fixed_by_c(OTHERS[path], raw)):
        assert told(found) == expected
        assert found.encode() == encode_fixed_by_c(found) == raw


def whole_store(case: str, into: Path) -> list[str]:
    """Copies the golden store of this case, META included; returns its segments, oldest first."""
    shutil.copytree(GOLDEN / case, into, ignore=shutil.ignore_patterns("*.json"))
    shutil.copyfile(GOLDEN / "store" / "META", into / "META")
    return [path for path in SEGMENTS if path.startswith(f"{case}/")]


@pytest.mark.parametrize("case", sorted({path.split("/")[0] for path in SEGMENTS}))
def test_the_c_reader_gives_exactly_the_batches_and_records_of_a_golden_store(case: str, tmp_path: Path) -> None:
    segments = [read(path) for path in whole_store(case, tmp_path / "store")]
    expected = [(raw, says, batch) for raw, says in segments for batch in says["batches"]]
    last, end_lsn = expected[-1][2], segments[-1][1]["stop_lsn"]
    if known := last["batch"]["body"]["known_durable_lsn"]:
        durable = [one for one in expected if one[2]["batch"]["lsn"] < known]
        assert len(expected) > len(durable)
        expected, end_lsn = durable, known  # what lies above may still be cut by another leader
    with Reader(tmp_path / "store") as reader:
        info = reader.info
        for (raw, says, batch), found in zip(expected, reader.batches(), strict=True):
            assert (found.lsn, found.epoch) == (batch["batch"]["lsn"], says["header"]["epoch"])
            at = found.lsn - says["header"]["first_lsn"]
            assert found.raw == raw[at : at + batch["batch"]["body"]["bytes"]]
            records = list(records_by_c(found, reader.seed(found.first_lsn, found.epoch)))
            assert {"batch": records[0], "records": records[1:]} == batch
    assert info.end_lsn == end_lsn
    assert info.base_lsn == last["batch"]["body"]["base_lsn"]
    assert info.clean == ([record["type"] for record in last["records"]] == ["CLOSE"])
    body = last["batch"]["body"]
    term = body["epoch"] if body["index"] else 0
    assert (info.index, info.term, info.known_durable_lsn) == (body["index"], term, body["known_durable_lsn"])


def test_a_checked_inspection_of_the_golden_replicated_store_reads_what_no_majority_is_known_to_have(
    tmp_path: Path,
) -> None:
    segments = [read(path)[1] for path in whole_store("replicated", tmp_path / "store")]
    batches = [batch for says in segments for batch in says["batches"]]
    undurable = [one for one in batches if one["batch"]["lsn"] >= batches[-1]["batch"]["body"]["known_durable_lsn"]]
    assert len(undurable) == 1
    for checked in (False, True):
        with Inspection(tmp_path / "store", checked=checked) as found:
            found.read()
            assert found.recovery.batches == len(batches) - (0 if checked else 1)
            assert found.info.end_lsn == (segments[-1]["stop_lsn"] if checked else undurable[0]["batch"]["lsn"])
            assert (found.info.index, found.info.term) == (7, 5)


def test_the_golden_replicated_store_has_two_terms_and_a_batch_that_the_second_one_cut() -> None:
    single, first, second = [read(path)[1] for path in SEGMENTS if path.startswith("replicated/")]
    bodies = [batch["batch"]["body"] for says in (single, first, second) for batch in says["batches"]]
    assert [(body["epoch"], body["index"]) for body in bodies] == [
        (1, 0), (2, 1), (2, 2), (2, 3), (2, 4), (5, 5), (5, 6), (5, 7)
    ]  # fmt: skip
    assert (first["header"]["first_lsn"], second["header"]["first_lsn"]) == (2 << 40, 5 << 40)
    raw = (GOLDEN / "replicated" / f"{2 << 40:016x}.seg").read_bytes()
    assert len(decode_segment(raw).batches) == len(first["batches"]) + 1
    assert len(second["batches"][0]["records"]) == 0


def records_by_c(batch: BatchBytes, seed: int) -> Iterator[dict[str, Any]]:
    at = 0
    while at < len(batch.raw):
        record = decode_by_c(batch.raw, at, seed, batch.lsn + at)
        yield told_record(record)
        at += record.length


def test_opening_the_golden_store_recovers_its_messages(tmp_path: Path) -> None:
    where = tmp_path / "store"
    segments = whole_store("store", where)
    catalog = Catalog.create(where, store_uuid=Meta.decode((where / "META").read_bytes()).uuid.bytes)
    assert [catalog.declare_queue(name)[0].id for name in ("one", "two")] == [1, 2]
    catalog.close()
    starts = [record for path in segments for record in records_of(path) if record.type is RecordType.MESSAGE_START]
    _, second, third = starts
    with logstore.open(where) as store:
        assert store.recovery.clean
        assert store.recovery.messages == 2
        for name, messages in (("one", [second]), ("two", [second, third])):
            queue = store.queue(name)
            waiting = list(queue.browse())
            assert [one.id for one in waiting] == [message.id for message in messages]
            assert [one.content for one in waiting] == [message.body.content for message in messages]


def test_the_golden_checkpoint_with_states_decodes_to_its_json_and_encodes_back() -> None:
    raw, expected = read("places/CHECKPOINT")
    found = decode_checkpoint(raw)
    assert told(found) == expected
    assert encode_checkpoint(found.header, found.deletions, found.transactions, found.messages) == raw
    states = [(message.operations != (), state) for message in found.messages for state in message.states]
    assert {state.operation for _, state in states} == {False, True}
    assert any(state.note and state.header for _, state in states)
    assert any(state.not_before_us for _, state in states)
    assert any(state.expires_us for _, state in states)


def test_the_core_finds_in_the_golden_checkpoint_what_the_golden_log_says(tmp_path: Path) -> None:
    where = tmp_path / "store"
    whole_store("places", where)
    catalog = Catalog.create(where, store_uuid=Meta.decode((where / "META").read_bytes()).uuid.bytes)
    for queue_id in range(1, 8):
        assert catalog.declare_queue(str(queue_id))[0].id == queue_id
    catalog.close()
    found = Verification(where)
    found.run(lambda _: None, connect=None, schema=None)
    assert (found.findings.problems, found.checkpoint_lsn) == ([], read("places/CHECKPOINT")[1]["header"]["lsn"])
    with logstore.open(where) as store:
        assert store.recovery.checkpoint_used
        assert store.recovery.messages == 4
        (dead,) = store.queue("4").acquire()
        assert (dead.header, dead.note, dead.delivery_count) == (b"x-death: 1", b"why", 9)
        (noted,) = store.queue("3").acquire()
        assert noted.note == b"in a transaction"


def test_an_open_of_the_golden_replicated_store_is_refused_by_name_and_changes_nothing(tmp_path: Path) -> None:
    where = tmp_path / "store"
    whole_store("replicated", where)
    Catalog.create(where, store_uuid=Meta.decode((where / "META").read_bytes()).uuid.bytes).close()
    before = {path: path.read_bytes() for path in where.glob("*.seg")}
    with pytest.raises(logstore.ReplicatedStore, match=r"term 5, index 7.*logstore cluster detach"):
        logstore.open(where)
    assert {path: path.read_bytes() for path in where.glob("*.seg")} == before


def test_the_golden_segments_hold_every_record_type_and_every_flag() -> None:
    records = [record for path in SEGMENTS for record in records_of(path)]
    assert {record.type for record in records} == {*RecordType, 0x8001}
    flags = RecordFlag(0)
    for record in records:
        flags |= record.flags
    every_flag = RecordFlag(0)
    for flag in RecordFlag:
        every_flag |= flag
    assert flags == every_flag
    assert set(BODIES) == set(RecordType)
    inline_copies = {type(record.body) for record in records if RecordFlag.INLINE in record.flags}
    assert inline_copies == {InlineCopy, OrderedCopy}


def replayed(case: str) -> StrictReplay:
    (path,) = (path for path in SEGMENTS if path.startswith(f"{case}/"))
    records = records_of(path)
    (*_, last) = (record.body for record in records if isinstance(record.body, Batch))
    replay = StrictReplay(last.base_lsn)
    for record in records:
        replay.apply(record)
    return replay


def test_the_golden_inline_copies_replay_to_their_json() -> None:
    replay = replayed("inline")
    found = replay.finish(writer_epoch=3)
    depths = {queue: counts.depth for queue, counts in found.queues.items()}
    assert depths == {1: 4, 2: 4, 3: 3, 4: 1, 2**32 - 2: 1}
    assert (found.messages, found.places, found.staged, found.transactions) == (7, 13, 0, [])
    assert found.queues[4].content_bytes == len(b"begun here")
    assert (replay.orphans, replay.problems) == (0, [])


def test_the_golden_relocated_states_replay_to_their_json() -> None:
    replay = replayed("relocation")
    found = replay.finish(writer_epoch=3)
    assert {queue: (one.depth, one.locked) for queue, one in found.queues.items()} == {1: (2, 1), 2: (2, 0), 3: (1, 0)}
    assert (found.messages, found.staged, found.queues[3].content_bytes) == (3, 1, 7)
    assert [(one.state, one.xid is None, len(one.work)) for one in found.transactions] == [
        ("active", True, 1),
        ("prepared", False, 1),
        ("ended", False, 1),
    ]
    assert (replay.orphans, replay.problems) == (0, [])
    assert [one.id for one in replay.finish().transactions] == [0x31200]


def test_the_golden_states_of_places_replay_to_their_json() -> None:
    replay = replayed("places")
    found = replay.finish(writer_epoch=3)
    counts = {queue: (one.depth, one.locked) for queue, one in found.queues.items()}
    assert counts == {1: (2, 1), 2: (1, 0), 3: (1, 0), 4: (1, 0), 5: (1, 0), 6: (1, 0), 7: (1, 0)}
    states = {place.queue_id: place.state for message in replay.messages.values() for place in message.places}
    assert states[4] == PlaceState(8, note=b"why", header=b"x-death: 1")  # kept twice
    assert states[3] == PlaceState(2**32 - 1, note=b"in a transaction")
    assert (states[5], states[6], states[7]) == (PlaceState(0, 0, HOUR_US, header=b""), None, PlaceState(note=b"n"))
    (open_one,) = found.transactions
    assert [(work.queue_id, work.kind.name, work.order_index) for work in open_one.work] == [
        (1, "DEQUEUE", 0),
        (3, "ENQUEUE", 9),
        (2, "NOTE", 0),
    ]
    assert (replay.orphans, replay.problems) == (0, [])


def test_a_segment_that_is_cut_by_its_successor_still_holds_the_whole_batch_above_the_cut() -> None:
    raw, expected = read("store/0000000000020000.seg")
    assert len(decode_segment(raw).batches) == len(decode_segment(raw, expected["end"]).batches) + 1
    successor = SegmentHeader.decode(read("store/0000000000050000.seg")[0])
    assert successor.prev_end_lsn == expected["end"]


def test_old_batches_in_a_recycled_segment_stand_exactly_where_the_new_ones_end_and_are_not_accepted() -> None:
    raw, expected = read("recycled/0000000000040000.seg")
    at = expected["stop_lsn"] - expected["header"]["first_lsn"]
    assert raw[at + 16 : at + 18] == RecordType.BATCH.to_bytes(2, "little")
    stop = decode_segment(raw).stop
    assert stop.lsn == expected["stop_lsn"]
    assert stop.error is not None


def test_the_page_shows_exactly_the_worked_example_that_the_generator_prints(generator: ModuleType) -> None:
    page = (ROOT / "docs" / "format.md").read_text()
    assert f"```\n{generator.example()}\n```\n" in page
