"""The record scanner gives the same rows as the slow one in Python, for every kind of log and for parts of one."""

from __future__ import annotations

import logging
import random
import shutil
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from kit.replicated import KNOWN_DURABLE_LSN, golden_copy
from kit.row_histories import make_history
from kit.row_oracle import record_rows
from logstore import arrow
from logstore.codec.records import RecordType
from logstore.errors import CorruptLog, OptionError, StoreError
from logstore.inspect import Reader
from logstore.inspect.reader import SEGMENT_HEADER_BYTES

if TYPE_CHECKING:
    from pathlib import Path

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install '/path/to/checkout[arrow]'")

SEEDS = range(8)


@pytest.fixture(scope="module", params=SEEDS)
def history(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A store with a history, and its writer's record of it."""
    path = tmp_path_factory.mktemp("history") / "store"
    make_history(path, request.param, weight=1 if request.param % 2 else 12)
    return path, request.param


def rows_of(path: Path, **options: Any) -> list[dict[str, Any]]:
    return arrow.read(path, strings="plain", **options).read_all().to_pylist()


def same(found: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> None:
    for one, other in zip(found, wanted, strict=False):
        assert one == other
    assert len(found) == len(wanted)


def test_every_row_is_the_one_that_the_oracle_works_out(history: tuple[Path, int]) -> None:
    path, _ = history
    wanted = record_rows(path)
    same(rows_of(path), wanted)
    same(rows_of(path, batch_rows=7), wanted)


def test_every_part_of_a_log_gives_the_rows_that_it_gives_in_the_whole(history: tuple[Path, int]) -> None:
    path, seed = history
    wanted = record_rows(path)
    chance = random.Random(seed)
    lsns = [row["lsn"] for row in wanted]
    borders = sorted(chance.sample(lsns, min(12, len(lsns))))
    pieces = [rows_of(path, start_lsn=a, stop_lsn=b) for a, b in zip([None, *borders], [*borders, None], strict=True)]
    same([row for piece in pieces for row in piece], wanted)


def test_outcomes_are_those_known_at_the_requested_lsn(history: tuple[Path, int]) -> None:
    path, seed = history
    lsns = [row["lsn"] for row in record_rows(path)]
    for as_of in random.Random(seed).sample(lsns, 4):
        same(rows_of(path, stop_lsn=as_of, as_of_lsn=as_of), record_rows(path, stop_lsn=as_of, as_of_lsn=as_of))


def test_a_projection_has_the_columns_asked_for_in_that_order(history: tuple[Path, int]) -> None:
    path, seed = history
    wanted = record_rows(path, body=11)
    chance = random.Random(seed)
    for _ in range(6):
        names = chance.sample(arrow.COLUMNS, chance.randint(1, 8))
        found = arrow.read(path, columns=names, body=11).read_all()
        assert found.schema == arrow.schema(names, strings="dictionary")
        same(found.to_pylist(), [{name: row[name] for name in names} for row in wanted])


def test_exactly_the_matching_records_pass(history: tuple[Path, int]) -> None:
    path, seed = history
    wanted = record_rows(path)
    chance = random.Random(seed)
    queues = {row["queue_id"] for row in wanted} - {None}
    ids = {row["id"] for row in wanted} - {None}
    times = [row["time"] for row in wanted]
    for _ in range(6):
        types = chance.sample(["MESSAGE_START", "MESSAGE_DEQUEUE", "TX_COMMIT", "BATCH"], 2)
        some = chance.sample(sorted(ids), min(20, len(ids)))
        few = chance.sample(sorted(queues), 2)
        start, stop = sorted(chance.sample(times, 2))
        same(rows_of(path, where=arrow.Where(types=types)), [row for row in wanted if row["type"] in types])
        same(rows_of(path, where=arrow.Where(ids=some)), [row for row in wanted if row["id"] in some])
        same(rows_of(path, where=arrow.Where(queue_ids=few)), [row for row in wanted if row["queue_id"] in few])
        found = rows_of(path, where=arrow.Where(start_time=start, stop_time=stop, types=types))
        same(found, [row for row in wanted if row["type"] in types and start <= row["time"] < stop])


def test_values_of_recycled_places_come_from_the_known_places(history: tuple[Path, int]) -> None:
    path, _ = history
    wanted = record_rows(path)
    known: dict[tuple[int, int], tuple[int, Any]] = {}
    for row in wanted:
        if row["type"] == "MESSAGE_DEQUEUE":
            known[row["id"], row["queue_id"]] = row["id"] + 1, wanted[0]["time"]
    for row in wanted:
        if row["type"] == "MESSAGE_DEQUEUE" and row["enqueue_lsn"] is None:
            row["enqueue_lsn"], row["enqueue_time"] = known[row["id"], row["queue_id"]]
    columns = ["id", "queue_id", "enqueue_lsn", "enqueue_time"]
    table = pa.Table.from_pylist(
        [dict(zip(columns, (*place, *said), strict=True)) for place, said in known.items()],
        pa.schema([(name, pa.timestamp("us", "UTC") if name == "enqueue_time" else pa.int64()) for name in columns]),
    )
    same(rows_of(path, known=table), wanted)
    same(rows_of(path, known=table.slice(0, 0)), record_rows(path))


def test_nothing_passes_an_empty_list_or_an_empty_range(history: tuple[Path, int]) -> None:
    path, _ = history
    lsn = record_rows(path)[3]["lsn"]
    for where in (arrow.Where(types=[]), arrow.Where(ids=[]), arrow.Where(queue_ids=[])):
        assert rows_of(path, where=where) == []
    assert rows_of(path, start_lsn=lsn, stop_lsn=lsn) == []
    assert rows_of(path, start_lsn=1 << 60) == []


def test_invalid_arguments_are_refused_with_the_valid_ones(tmp_path: Path) -> None:
    make_history(tmp_path / "store", 1, epochs=1, steps=5)
    refused: list[tuple[dict[str, Any], str]] = [
        ({"columns": ["lsn", "size"]}, "there is no column 'size'; there are lsn, type"),
        ({"columns": ["lsn", "lsn"]}, "named twice"),
        ({"columns": "lsn"}, "a sequence of names"),
        ({"start_lsn": -1}, "start_lsn is a number from 0"),
        ({"stop_lsn": 1 << 63}, "stop_lsn is a number from 0"),
        ({"batch_rows": 0}, "batch_rows is a number from 1"),
        ({"body": -1}, "body is a number from 0"),
        ({"strings": "short"}, "'plain' or 'dictionary'"),
        ({"where": arrow.Where(types=["START"])}, "there is no record type 'START'"),
        ({"where": arrow.Where(ids=[True])}, "ids is a number"),
    ]
    for options, words in refused:
        with pytest.raises(OptionError, match=words):
            arrow.read(tmp_path / "store", **options)


def test_a_time_without_a_zone_is_refused(tmp_path: Path) -> None:
    make_history(tmp_path / "store", 1, epochs=1, steps=5)
    moment = record_rows(tmp_path / "store")[0]["time"].replace(tzinfo=None) + timedelta(seconds=1)
    with pytest.raises(OptionError, match="with a time zone"):
        arrow.read(tmp_path / "store", where=arrow.Where(start_time=moment))


def harm(path: Path, name: str, how: str) -> None:
    file = path / name
    if how == "gone":
        file.unlink()
    elif how == "a directory":
        file.unlink()
        file.mkdir()
    elif how == "cut":
        with file.open("r+b") as opened:
            opened.truncate(SEGMENT_HEADER_BYTES + 40)
    else:
        with file.open("r+b") as opened:
            opened.seek(40 if how == "header" else SEGMENT_HEADER_BYTES + 40)
            byte = opened.read(1)[0]
            opened.seek(-1, 1)
            opened.write(bytes([byte ^ 0x10]))


@pytest.mark.parametrize("how", ["gone", "a directory", "header", "cut", "batch"])
def test_a_permissive_read_gives_all_readable_rows_and_null_for_unknown_values(
    history: tuple[Path, int], how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, seed = history
    whole = {row["lsn"]: row for row in record_rows(path)}
    with Reader(path) as reader:
        parts = reader.segments()
        # For a log that was not closed, nothing shows that it once continued.
        segments = parts if reader.info.clean else parts[:-1]
        segments = [one for one in segments if one.end_lsn > one.first_lsn + SEGMENT_HEADER_BYTES]
    for number, bad in enumerate(random.Random(seed).sample(segments, min(3, len(segments)))):
        harmed = shutil.copytree(path, tmp_path / str(number))
        harm(harmed, bad.name, how)
        with pytest.raises(StoreError) as strict:
            rows_of(harmed)
        assert isinstance(strict.value, CorruptLog) or how == "a directory"
        caplog.clear()
        with caplog.at_level(logging.WARNING, "logstore.arrow"):
            rows = rows_of(harmed, permissive=True)
        found = {row["lsn"]: row for row in rows}
        assert list(found) == sorted(found)
        assert len(found) == len(rows)
        # Only the next segment's header shows what an open had set aside.
        beside = [lsn for lsn in found if not any(one.first_lsn <= lsn < one.end_lsn for one in parts)]
        found = {lsn: row for lsn, row in found.items() if lsn not in beside}
        here = range(bad.first_lsn, bad.first_lsn + reader.info.segment_size)
        assert [lsn for lsn in found if lsn not in here] == [lsn for lsn in whole if lsn not in here]
        for lsn, row in found.items():
            for column, value in row.items():
                assert value in (None, whole[lsn][column]), (lsn, column, strict.value)
        with Reader(harmed, permissive=True) as reader:
            for _ in reader.batches():
                pass
            missing = reader.missing()
        assert len(missing) == 1, (segments, reader.info, reader.segments)
        assert not any(first <= lsn < end for first, end in missing for lsn in found)
        kept = [lsn for lsn in whole if lsn < reader.info.watermark_lsn]  # without the record of the close
        lost = [lsn for lsn in kept if lsn not in found and not any(first <= lsn < end for first, end in missing)]
        assert lost == [], (segments, reader.info, missing, bad)
        assert "what cannot be read was left out" in caplog.text


def test_a_permissive_read_of_a_whole_log_gives_every_row_and_warns_of_nothing(
    history: tuple[Path, int], caplog: pytest.LogCaptureFixture
) -> None:
    path, _ = history
    same(rows_of(path, permissive=True), record_rows(path))
    assert caplog.text == ""


def test_a_copy_of_a_replicated_store_gives_the_rows_of_the_oracle_up_to_what_is_known_durable(tmp_path: Path) -> None:
    path = golden_copy(tmp_path / "store")
    wanted = record_rows(path, body=11)
    same(rows_of(path, body=11), wanted)
    replication = [row for row in wanted if row["stream"] == "replication"]
    assert [(row["type"], row["relocated"], row["id"] is None) for row in replication] == [
        ("MEMBERS", False, False),
        ("CATALOG_CHANGE", False, True),
        ("CATALOG_CHANGE", False, True),
        ("CATALOG_CHANGE", False, True),
        ("MEMBERS", True, False),
    ]
    assert wanted[-1]["lsn"] < KNOWN_DURABLE_LSN
    found = rows_of(path, body=11, where=arrow.Where(types=["MEMBERS", "CATALOG_CHANGE"]))
    same(found, replication)
    same(rows_of(path, body=11, where=arrow.Where(ids=[replication[0]["id"]])), [replication[0], replication[-1]])


def test_the_names_of_a_scan_have_every_known_type_at_its_number(tmp_path: Path) -> None:
    path = golden_copy(tmp_path / "store")
    found = arrow.read(path, columns=["type", "stream"], strings="dictionary").read_all().combine_chunks()
    assert found["stream"].chunk(0).dictionary.to_pylist() == ["message", "transaction", "log", "replication"]
    names = found["type"].chunk(0).dictionary.to_pylist()
    assert {name for name in names if not name.startswith("0x")} == set(RecordType.__members__)
