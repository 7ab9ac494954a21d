"""An export has every row once, over any number of runs, beside whatever the store does meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from killed import and_then_killed
from row_histories import epoch
from row_oracle import message_rows, record_rows

import logstore
from logstore import export_files
from logstore.arrow import message_schema, open_schema, schema
from logstore.errors import OptionError
from logstore.export import export, hold_for
from logstore.export_manifest import (
    Manifest,
    Span,
)
from logstore.export_target import read_manifest
from logstore.export_verify import verify
from logstore.holds import hold
from logstore.inspect import Reader

pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed: pip install 'logstore[arrow]'")

if TYPE_CHECKING:
    pass

SEGMENT = 512 << 10
Rows = list[dict[str, Any]]


def manifest_of(target: Path) -> Manifest:
    found = read_manifest(target)
    assert found is not None
    return found


def rows_of(target: Path, dataset: str) -> Rows:
    """All rows of a dataset as they stand in the files that the manifest names."""
    rows: Rows = []
    for file in manifest_of(target).of(dataset):
        table = pq.read_table(target / file.path, partitioning=None)
        assert table.num_rows == file.rows
        rows += table.to_pylist()
    return rows


def everything(target: Path) -> dict[str, bytes]:
    """Every file of a target, by its path."""
    return {path.relative_to(target).as_posix(): path.read_bytes() for path in target.rglob("*") if path.is_file()}


def nameless(rows: Rows) -> Rows:
    """Without the names of queues, which are those of the moment of the export."""
    made = []
    for row in rows:
        kept = {name: value for name, value in row.items() if name not in ("queue", "state")}
        if "places" in kept:
            kept["places"] = nameless(kept["places"])
        made.append(kept)
    return made


def same(found: Rows, wanted: Rows) -> None:
    for one, other in zip(found, wanted, strict=False):
        assert one == other
    assert len(found) == len(wanted)


@pytest.fixture
def store_dir(tmp_path: Path) -> Path:
    """Some messages, some gone, over several segments; closed."""
    path = tmp_path / "store"
    with logstore.open(path, segment_size=SEGMENT) as store:
        queue = store.declare_queue("orders")
        ids = store.publish_many(queue, [bytes(20_000)] * 60, headers=[b"head"] * 60)
        store.dequeue_many(list(ids)[:30:2], queue)
    return path


# ---- What is in it


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_runs_between_epochs_have_every_row_of_records_and_messages_once_and_right(tmp_path: Path, seed: int) -> None:
    path, target = tmp_path / "store", tmp_path / "target"
    logstore.open(path, segment_size=SEGMENT).close()
    messages: list[int] = []
    wanted: Rows = []
    runs = 0
    with (
        hold(path, "witness", limit_bytes=1 << 40) as witness,
        hold_for(path, target, limit_bytes=1 << 40) as held,
    ):
        for number in range(4):
            messages = and_then_killed(epoch, path, seed * 1000 + number, messages, 60, [1, 8, 4][seed])
            report = export(path, target, hold=held, file_bytes=SEGMENT)
            wanted += record_rows(path, report.start_lsn, report.last_lsn, witness, report.last_lsn)
            runs += report.files > 0
        assert export(path, target, hold=held).files == 0
        closed, left = message_rows(path, hold=witness)
        with Reader(path, hold=witness) as reader:
            first = reader.segments()[0].first_lsn
            assert manifest_of(target).last_lsn == reader.info.end_lsn
    assert runs == 4
    found = rows_of(target, "records")
    for one, other in zip(found, wanted, strict=True):
        if one["type"] == "TX_DELETE" and one["outcome"] is None:
            other["outcome"] = None  # its outcome was exported by the run before, and is let go of
        assert one == other
    same(nameless(rows_of(target, "messages")), nameless(closed))
    same(nameless(rows_of(target, "open")), nameless(left))
    assert manifest_of(target).first_lsn == first
    assert verify(target).problems == ()


def test_files_have_the_columns_of_the_schema_and_say_what_they_are(store_dir: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    export(store_dir, target)
    wanted = {"records": schema(), "messages": message_schema(), "open": open_schema()}
    info = manifest_of(target)
    for dataset, columns in wanted.items():
        (file,) = info.of(dataset)
        parquet = pq.ParquetFile(target / file.path)
        assert parquet.schema_arrow.remove_metadata() == columns
        told = parquet.metadata.metadata
        assert told[b"logstore.store"] == str(info.store).encode()
        assert (told[b"logstore.start_lsn"], told[b"logstore.stop_lsn"]) == (
            b"%d" % file.start_lsn,
            b"%d" % file.stop_lsn,
        )
        assert (told[b"logstore.format_version"], told[b"logstore.schema_version"]) == (b"1", b"1")
        assert b"ARROW:schema" not in told
        group = parquet.metadata.row_group(0)
        for at in range(group.num_columns):
            column = group.column(at)
            assert column.compression == "ZSTD"
            if column.path_in_schema in ("lsn", "id", "prev", "time", "batch_lsn", "end_lsn", "end_time"):
                assert "DELTA_BINARY_PACKED" in column.encodings
                assert column.has_column_index == (column.path_in_schema != "prev")
            if column.path_in_schema in ("type", "stream", "queue", "outcome", "reason"):
                assert "RLE_DICTIONARY" in column.encodings


def test_bodies_are_there_only_if_asked_for_and_cut(store_dir: Path, tmp_path: Path) -> None:
    export(store_dir, tmp_path / "with", body=5)
    starts = [row for row in rows_of(tmp_path / "with", "records") if row["type"] == "MESSAGE_START"]
    assert starts
    assert {row["body"] for row in starts} == {bytes(5)}
    assert {row["content_bytes"] for row in starts} == {20_000}
    export(store_dir, tmp_path / "without")
    assert "body" not in rows_of(tmp_path / "without", "records")[0]
    with pytest.raises(OptionError, match="without bodies"):
        export(store_dir, tmp_path / "without", body=5)


def test_the_same_log_gives_the_same_bytes_and_a_run_with_nothing_new_writes_none(
    store_dir: Path, tmp_path: Path
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    first = export(store_dir, one, file_bytes=SEGMENT)
    export(store_dir, two, file_bytes=SEGMENT)
    assert first.files > 2
    assert everything(one) == everything(two)
    stamps = {path: path.stat().st_mtime_ns for path in one.rglob("*")}
    report = export(store_dir, one)
    assert (report.files, report.records, report.open, report.last_lsn) == (0, 0, first.open, first.last_lsn)
    assert {path: path.stat().st_mtime_ns for path in one.rglob("*")} == stamps


def test_an_export_of_a_closed_store_leaves_its_directory_as_it_is(store_dir: Path, tmp_path: Path) -> None:
    before = everything(store_dir), sorted(store_dir.iterdir())
    export(store_dir, tmp_path / "target")
    assert (everything(store_dir), sorted(store_dir.iterdir())) == before


def test_rows_are_cut_into_files_by_day_and_number_and_never_within_an_lsn(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    day = 86_400_000_000
    keys = [8, 16, 16, 16, 24, 32, 40, 40, 48, 56]
    times = [
        5,
        6,
        7,
        8,
        day - 1,
        day,
        day + 1,
        day + 1,
        3,
        1 << 62,
    ]  # two clocks go wrong
    batch = pa.record_batch({"lsn": keys, "time": pa.array(times, pa.timestamp("us", tz="UTC"))})
    job = export_files.Job("", manifest_uuid(), 99, {}, None, "zstd:1", file_rows=2)
    for rows in (1, 2, 3, 10):
        staging = tmp_path / str(rows)
        staging.mkdir()
        parts = [batch.slice(at, rows) for at in range(0, 10, rows)]
        made = export_files._write(job, "records", Span(0, 99), staging, "lsn", "time", parts, "")
        assert [(file.path.split("/")[1], file.start_lsn, file.stop_lsn, file.rows) for file in made] == [
            ("day=1970-01-01", 0, 24, 4),  # more than two rows, since they are of one LSN
            ("day=1970-01-01", 24, 32, 1),
            ("day=1970-01-02", 32, 48, 3),
            ("day=1970-01-01", 48, 56, 1),
            ("day=9999-12-31", 56, 99, 1),
        ]
        assert sorted(path.name for path in staging.iterdir()) == sorted(file.staged for file in made)


def manifest_uuid() -> Any:
    from uuid import UUID

    return UUID("00112233-4455-6677-8899-aabbccddeeff")
