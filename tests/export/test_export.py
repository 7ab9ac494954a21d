"""An export has every row exactly once, over any number of runs, while the store works."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

import logstore
from kit.exported import SEGMENT, damage, everything, manifest_of, recycle, store_dir
from kit.killed import and_then_killed
from kit.row_histories import epoch
from kit.row_oracle import message_rows, record_rows
from logstore.arrow import message_schema, open_schema, schema
from logstore.errors import NotAStore, OptionError, VersionError
from logstore.export import export, hold_for, plan_export
from logstore.export import files as export_files
from logstore.export import plan as export_plan
from logstore.export import run as module
from logstore.export.manifest import (
    MANIFEST,
    ExportDamaged,
    ExportGap,
    ExportIncomplete,
    ExportLocked,
    ExportMismatch,
    FileInfo,
    Manifest,
    Missing,
    Span,
)
from logstore.export.manifest import _encode as manifest_bytes
from logstore.export.mark import find_mark
from logstore.export.target import Target
from logstore.export.verification import verify
from logstore.holds import hold, list_holds
from logstore.inspect import Reader, SegmentInfo

pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed: pip install '/path/to/checkout[arrow]'")

__all__ = ["store_dir"]  # a fixture

Rows = list[dict[str, Any]]


def rows_of(target: Path, dataset: str) -> Rows:
    """All rows of a dataset, from the files that the manifest names."""
    rows: Rows = []
    for file in manifest_of(target).of(dataset):
        table = pq.read_table(target / file.path, partitioning=None)
        assert table.num_rows == file.rows
        rows += table.to_pylist()
    return rows


def nameless(rows: Rows) -> Rows:
    """The rows without names of queues, which depend on the time of the export."""
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


def test_files_have_the_columns_of_the_schema_and_describe_themselves(store_dir: Path, tmp_path: Path) -> None:
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
        assert (told[b"logstore.format_version"], told[b"logstore.schema_version"]) == (b"1", b"2")
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


def test_bodies_are_exported_only_on_request_and_cut(store_dir: Path, tmp_path: Path) -> None:
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
    job = export_files.Job("", UUID(int=7), 99, {}, None, "zstd:1", file_rows=2)
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


# ---- Beside a writer


def test_beside_a_writer_records_are_held_until_they_are_exported(tmp_path: Path) -> None:
    path, target = tmp_path / "store", tmp_path / "target"
    wanted = 0
    with logstore.open(path, segment_size=SEGMENT) as store, hold_for(path, target) as held:
        queue = store.declare_queue("orders")
        for _ in range(3):
            for _ in range(4):
                ids = store.publish_many(queue, [bytes(20_000)] * 40)
                store.dequeue_many(list(ids), queue)
                wanted += 40
            store.compact()
            report = export(path, target, hold=held)
            assert held.lsn == report.last_lsn
    starts = [row for row in rows_of(target, "records") if row["type"] == "MESSAGE_START" and not row["relocated"]]
    assert len(starts) == wanted
    assert len(rows_of(target, "messages")) == wanted
    assert list_holds(path) == []


def test_one_run_beside_a_writer_takes_a_hold_of_its_own_and_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, target = tmp_path / "store", tmp_path / "target"
    seen: list[list[str]] = []
    real = module.write_messages

    def spied(*arguments: Any, **options: Any) -> Any:
        seen.append([one.state for one in list_holds(path)])
        return real(*arguments, **options)

    monkeypatch.setattr(module, "write_messages", spied)
    with logstore.open(path, segment_size=SEGMENT) as store:
        store.publish(store.declare_queue("orders"), b"x")
        export(path, target)
        assert list_holds(path) == []
        assert export(path, target).last_lsn == store.durable_lsn
    assert seen == [["honoured"]]


def test_records_lost_before_their_export_are_reported_and_a_gap_is_skipped_only_if_allowed(
    tmp_path: Path,
) -> None:
    path, target = tmp_path / "store", tmp_path / "target"
    with logstore.open(path, segment_size=SEGMENT) as store:
        stays = store.publish(store.declare_queue("other"), b"stays")
        goes = store.publish("other", b"goes")
    last = export(path, target).last_lsn
    recycle(path, 20)
    with logstore.open(path) as store:
        store.dequeue(goes, "other")
        before = store.tail().base_lsn
    recycle(path, 20)
    with Reader(path) as reader:
        base = reader.segments()[0].first_lsn
        end = reader.info.end_lsn
    assert last < before <= base
    with pytest.raises(ExportGap, match="--allow-gap") as raised:
        export(path, target)
    assert (raised.value.start_lsn, raised.value.stop_lsn) == (last, base)
    with pytest.raises(ExportGap):
        plan_export(path, target)
    untouched = everything(target)
    assert plan_export(path, target, allow_gap=True).gap == Span(last, base)
    assert everything(target) == untouched
    report = export(path, target, allow_gap=True)
    assert (report.gap, report.start_lsn, report.last_lsn) == (Span(last, base), base, end)
    assert manifest_of(target).gaps == (Span(last, base),)
    assert [row["id"] for row in rows_of(target, "open")] == [stays]  # and not the one that ended in the gap
    assert verify(target).problems == ()
    assert export(path, target).files == 0


def consumed_store(path: Path) -> None:
    """A store whose log no longer has its first messages, because they were consumed."""
    logstore.open(path, segment_size=SEGMENT).close()
    recycle(path, 20)


def oldest_of(path: Path) -> Missing:
    with Reader(path) as reader:
        oldest = reader.oldest()
    assert oldest is not None
    return Missing(oldest.lsn, oldest.time_us)


@pytest.mark.parametrize("live", [False, True], ids=["closed", "beside a writer"])
def test_the_first_export_tells_what_the_log_no_longer_holds_and_later_ones_remember_it(
    live: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, target = tmp_path / "store", tmp_path / "target"
    consumed_store(path)
    with logstore.open(path) if live else contextlib.nullcontext() as store:
        planned = plan_export(path, target).missing_before
        assert caplog.messages == []
        missing = export(path, target).missing_before
        assert missing is not None
        assert missing.lsn > SEGMENT
        assert live or planned == missing == oldest_of(path)
        (message,) = caplog.messages
        assert str(missing) in message
        assert "--every" in message
        if store is not None:
            store.publish("orders", b"more")
        assert export(path, target).missing_before == missing
        assert len(caplog.messages) == 1  # the first run has told it
    assert manifest_of(target).missing_before == missing
    assert verify(target).manifest.missing_before == missing


def test_nothing_is_missing_from_a_log_that_goes_back_to_the_beginning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, target = tmp_path / "store", tmp_path / "target"
    logstore.open(path, segment_size=SEGMENT).close()
    with logstore.open(path) as store:
        store.publish(store.declare_queue("orders"), b"x")
    assert export(path, target, require_complete=True).missing_before is None
    assert (manifest_of(target).missing_before, caplog.messages) == (None, [])


def test_the_times_of_what_is_missing_are_before_those_of_what_is_exported(tmp_path: Path) -> None:
    path, target = tmp_path / "store", tmp_path / "target"
    consumed_store(path)
    missing = export(path, target).missing_before
    assert missing is not None
    rows = rows_of(target, "records")
    assert rows[0]["lsn"] >= missing.lsn
    assert min(row["time"] for row in rows).timestamp() * 1e6 >= missing.time_us - 1


def test_an_export_that_must_be_complete_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    path, target = tmp_path / "store", tmp_path / "target"
    consumed_store(path)
    for refused in (export, plan_export):
        with pytest.raises(ExportIncomplete, match=f"below LSN {oldest_of(path).lsn}.*--require-complete$"):
            refused(path, target, require_complete=True)
    assert not target.exists()
    with pytest.raises(OptionError, match="allow_gap and require_complete"):
        export(path, target, require_complete=True, allow_gap=True)
    export(path, target)
    with logstore.open(path) as store:
        store.publish("orders", b"more")
    assert export(path, target, require_complete=True).records > 0  # loses nothing more


def test_a_manifest_of_an_export_that_did_not_note_what_was_missing_is_continued(tmp_path: Path) -> None:
    path, target = tmp_path / "store", tmp_path / "target"
    consumed_store(path)
    export(path, target)
    content = json.loads((target / MANIFEST).read_text())["manifest"]
    del content["missing_before"]
    (target / MANIFEST).write_bytes(manifest_bytes("manifest", content))
    assert export(path, target).missing_before is None


def test_a_restart_and_recycling_of_exported_records_are_not_a_gap(tmp_path: Path) -> None:
    path, target = tmp_path / "store", tmp_path / "target"
    with logstore.open(path, segment_size=SEGMENT) as store:
        store.publish(store.declare_queue("other"), b"stays")
    last = export(path, target).last_lsn
    with logstore.open(path) as store:
        store.compact()
    with Reader(path) as reader:
        assert reader.segments()[0].first_lsn > last
    report = export(path, target)
    assert (report.gap, report.start_lsn) == (None, last)
    assert [row["queue"] for row in rows_of(target, "open")] == ["other"]
    assert len({row["lsn"] for row in rows_of(target, "records")}) == len(rows_of(target, "records"))


def test_a_writer_that_starts_during_the_export_of_a_closed_store_loses_no_row_silently(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, target = tmp_path / "store", tmp_path / "target"
    with logstore.open(path, segment_size=SEGMENT) as store:
        store.publish(store.declare_queue("orders"), b"first")
    export(path, target)
    with logstore.open(path) as store:
        store.publish("orders", b"second")
    assert plan_export(path, target).gap is None
    with Reader(path) as reader:
        end = reader.info.end_lsn
    real = {"write_records": module.write_records, "write_messages": module.write_messages}
    for name, other in (("write_records", "write_messages"), ("write_messages", "write_records")):
        over = threading.Event()

        def early(*arguments: Any, function: Any = real[other], over: Any = over, **options: Any) -> Any:
            made = function(*arguments, **options)
            over.set()
            return made

        def late(*arguments: Any, function: Any = real[name], over: Any = over, **options: Any) -> Any:
            assert over.wait(60)
            with Reader(path) as reader:
                last = reader.segments()[0].first_lsn
            while last < end:  # all that was planned is gone before it is read
                recycle(path, 20)
                with Reader(path) as reader:
                    last = reader.segments()[0].first_lsn
            return function(*arguments, **options)

        case = tmp_path / name
        shutil.copytree(target, case)
        untouched = manifest_of(case)
        with monkeypatch.context() as patch:
            patch.setattr(module, name, late)
            patch.setattr(module, other, early)
            with pytest.raises(ExportGap):
                export(path, case)
        assert manifest_of(case) == untouched


# ---- What is refused


def test_a_writer_that_opens_a_crashed_store_and_reuses_its_end_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, target = tmp_path / "store", tmp_path / "target"

    def crashes(kept: list[Any]) -> None:
        store = logstore.open(path, segment_size=SEGMENT)
        kept.append(store)
        queue = store.declare_queue("orders")
        store.publish_many(queue, [bytes(20_000)] * 60)
        store.dequeue_many([message.id for message in queue.browse()], queue)

    and_then_killed(crashes)
    force, opened = module.Run._force_tail, []

    def open_first(self: module.Run) -> None:
        if not opened:
            opened.append(True)
            recycle(path, 20)
        force(self)

    monkeypatch.setattr(module.Run, "_force_tail", open_first)
    report = export(path, target)
    with Reader(path) as reader:
        assert report.last_lsn == reader.last_lsn()


def test_an_impossible_source_or_target_is_refused_before_anything_is_written(store_dir: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    with pytest.raises(NotAStore):
        export(tmp_path, target)
    for inside in (store_dir, store_dir / "export", store_dir / ".." / "store" / "x"):
        with pytest.raises(OptionError, match="inside the store"):
            export(store_dir, inside)
    other = tmp_path / "other"
    other.mkdir()
    (other / "file").write_text("something")
    with pytest.raises(OptionError, match="no export"):
        export(store_dir, other)
    assert everything(other) == {"file": b"something"}
    with pytest.raises(OptionError, match="compression"):
        export(store_dir, target, compression="zip")
    with pytest.raises(OptionError, match="body"):
        export(store_dir, target, body=0)
    with pytest.raises(OptionError, match="file_bytes"):
        export(store_dir, target, file_bytes=0)
    with pytest.raises(OptionError, match="start_lsn"):
        export(store_dir, target, start_lsn=8)
    assert not (target / "records").exists()


def test_a_new_target_may_begin_at_a_later_lsn_and_continues_from_there(store_dir: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    lsns = [row["lsn"] for row in record_rows(store_dir)]
    export(store_dir, target, start_lsn=lsns[7])
    assert [row["lsn"] for row in rows_of(target, "records")] == lsns[7:]
    assert export(store_dir, target).files == 0
    with pytest.raises(OptionError, match="leave start_lsn out"):
        export(store_dir, target, start_lsn=lsns[8])


def test_a_target_of_another_store_or_of_a_later_moment_is_refused(store_dir: Path, tmp_path: Path) -> None:
    target, older = tmp_path / "target", tmp_path / "older"
    shutil.copytree(store_dir, older)
    recycle(store_dir, 1)
    export(store_dir, target)
    with pytest.raises(ExportMismatch, match="older copy"):
        export(older, target)
    another = tmp_path / "another"
    logstore.open(another, segment_size=SEGMENT).close()
    with pytest.raises(ExportMismatch, match="another target"):
        export(another, target)


def test_a_writer_that_opened_the_store_and_wrote_nothing_makes_no_older_copy_of_it(tmp_path: Path) -> None:
    path, target = tmp_path / "store", tmp_path / "target"
    with logstore.open(path, segment_size=SEGMENT) as store:
        store.publish(store.declare_queue("orders"), b"first")
        last = store.durable_lsn
    with logstore.open(path):
        assert export(path, target).last_lsn >= last
    exported = export(path, target)
    assert exported.files == 0
    with logstore.open(path) as store:
        assert export(path, target).files == 0
        store.publish("orders", b"second")
    export(path, target)
    assert [row["type"] for row in rows_of(target, "records")].count("MESSAGE_START") == 2
    assert verify(target).problems == ()


def test_copies_that_an_open_leaves_out_after_they_were_exported_make_no_older_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, target = tmp_path / "store", tmp_path / "target"
    with logstore.open(path, segment_size=SEGMENT) as store:
        store.publish(store.declare_queue("orders"), b"first")
    export(path, target)
    manifest = manifest_of(target)
    assert manifest.mark is not None
    with Reader(path) as reader:
        last = reader.last_lsn()
    for end, refused in ((last, False), (manifest.mark.lsn, True)):
        monkeypatch.setattr(Reader, "last_lsn", lambda _, end=end: end)
        if refused:
            with pytest.raises(ExportMismatch, match="older copy"):
                plan_export(path, target)
        else:
            later = replace(manifest, last_lsn=last + 64 * SEGMENT)
            with Reader(path) as reader:
                assert export_plan.plan_run(reader, later).units == ()


def test_the_mark_is_the_last_batch_that_no_open_leaves_out(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with logstore.open(path, segment_size=SEGMENT) as store:
        ids = store.publish_many(store.declare_queue("orders"), [bytes(20_000)] * 60)
        store.dequeue_many(list(ids)[:20], "orders")
        last = store.publish("orders", b"the last original")
        end = store.durable_lsn
    with Reader(path) as reader:
        found = find_mark(path, None, reader.segments(), Span(reader.info.base_lsn, end))
    assert found is not None
    assert found.lsn < last < end
    with logstore.open(path) as store:
        store.compact()  # all that lives is copied, and what was copied is recycled
    assert all(row["relocated"] for row in record_rows(path) if row["stream"] != "log")
    with Reader(path) as reader:
        *_, before, current = reader.segments()
        found = find_mark(path, None, reader.segments(), Span(reader.info.base_lsn, reader.last_lsn()))
    assert found is not None
    assert before.first_lsn < found.lsn < before.end_lsn < current.first_lsn
    with Reader(path) as reader:
        assert find_mark(path, None, reader.segments(), Span(current.first_lsn, reader.last_lsn())) is None


@pytest.mark.parametrize("gone", ["_manifest.json", "an older manifest", "a file", "a day of messages", "cut"])
def test_a_target_that_lacks_a_file_or_its_manifest_is_refused_and_no_row_is_doubled(
    store_dir: Path, tmp_path: Path, gone: str
) -> None:
    target = tmp_path / "target"
    export(store_dir, target)
    older = (target / "_manifest.json").read_bytes()
    with logstore.open(store_dir) as store:
        store.publish("orders", b"more")
    export(store_dir, target)
    (first, *_) = manifest_of(target).of("records")
    match gone:
        case "_manifest.json":
            (target / gone).unlink()
        case "an older manifest":
            (target / "_manifest.json").write_bytes(older)
        case "a file":
            (target / first.path).unlink()
        case "a day of messages":
            shutil.rmtree((target / manifest_of(target).of("messages")[0].path).parent)
        case _:
            os.truncate(target / first.path, 100)
    with logstore.open(store_dir) as store:
        store.publish("orders", b"and more")
    before = everything(target)
    for call in (export, plan_export, hold_for):
        with pytest.raises(ExportDamaged, match="[Rr]estore"):
            call(store_dir, target)
    assert everything(target) == before
    assert list_holds(store_dir) == []


def test_a_backup_used_in_place_of_its_store_is_detected(tmp_path: Path) -> None:
    path, target, backup = tmp_path / "store", tmp_path / "target", tmp_path / "backup"
    with logstore.open(path, segment_size=SEGMENT) as store:
        store.publish(store.declare_queue("orders"), b"before")
    shutil.copytree(path, backup)

    def go_on(directory: Path, content: bytes, count: int) -> int:
        with logstore.open(directory) as store:
            for _ in range(count):
                store.publish("orders", content * 20_000)
            return store.durable_lsn

    first = go_on(path, b"a", 60)
    export(path, target)
    mark = manifest_of(target).mark
    assert mark is not None
    assert mark.lsn < first
    assert go_on(backup, b"b", 70) > first
    before = everything(target)
    with pytest.raises(ExportMismatch, match="has another batch at LSN"):
        export(backup, target)
    assert everything(target) == before
    go_on(path, b"a", 60)
    assert export(path, target).records > 60  # and the store itself goes on


def test_a_second_export_to_the_same_target_is_refused(store_dir: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    with Target(target), pytest.raises(ExportLocked, match="wait"):
        export(store_dir, target)
    export(store_dir, target)
    with Target(target), pytest.raises(ExportLocked):
        verify(target)


def test_a_damaged_manifest_or_open_set_is_refused_and_nothing_is_written(store_dir: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    export(store_dir, target)
    with logstore.open(store_dir) as store:
        store.publish("orders", b"more")
    whole = everything(target)
    opened = manifest_of(target).open[0].path
    for name in ("_manifest.json", opened):
        damage(target / name)
        broken = everything(target)
        with pytest.raises(ExportDamaged, match=name):
            export(store_dir, target)
        assert everything(target) == broken
        (target / name).write_bytes(whole[name])
    (target / opened).unlink()
    with pytest.raises(ExportDamaged, match="missing"):
        export(store_dir, target)


def test_any_wrong_byte_of_a_manifest_is_detected_and_its_paths_stay_in_the_target(
    store_dir: Path, tmp_path: Path
) -> None:
    target = tmp_path / "target"
    export(store_dir, target)
    raw = (target / "_manifest.json").read_bytes()
    for at in range(0, len(raw.rstrip()), 7):
        try:
            assert Manifest.decode(raw[:at] + bytes([raw[at] ^ 4]) + raw[at + 1 :], "here") == manifest_of(target)
        except (ExportDamaged, VersionError) as error:
            assert "here" in error.message
        with pytest.raises(ExportDamaged):
            Manifest.decode(raw[:at], "here")
    for path in ("../x", "/etc/passwd", "records/day=2026-01-01/../../x", "records/x.parquet", "messages"):
        with pytest.raises(ValueError, match="path"):
            FileInfo("records", path, 0, 8, 1, 1, "0" * 16).check()


def test_a_newer_manifest_is_refused_as_newer(store_dir: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    export(store_dir, target)
    path = target / "_manifest.json"
    path.write_bytes(path.read_bytes().replace(b'"logstore_manifest": 3', b'"logstore_manifest": 5'))
    with pytest.raises(VersionError, match="newer logstore"):
        export(store_dir, target)


# ---- Pieces


def test_units_are_whole_segments_and_the_same_from_any_border_between_them() -> None:
    k = 100_000
    given = [(1 * k, 1.9 * k), (2 * k, 3 * k), (4 * k, 4.2 * k), (5 * k, 5.7 * k), (6 * k, 6 * k + 4096)]
    segments = [SegmentInfo(int(first), 1, int(end), False) for first, end in given]
    stop = 6 * k + 4096  # the last segment has nothing but its header
    units = export_plan.plan(segments, 130_000, stop, k)
    assert units == [Span(130_000, 4 * k), Span(4 * k, stop)]
    assert export_plan.plan(segments, 4 * k, stop, k) == units[1:]
    each = [Span(130_000, 2 * k), Span(2 * k, 4 * k), Span(4 * k, 5 * k), Span(5 * k, stop)]
    assert export_plan.plan(segments, 130_000, stop, 1) == each
    assert export_plan.plan(segments, 550_000, 550_000) == export_plan.plan(segments, 190_000, 2 * k) == []
    assert export_plan.plan(segments, 570_000, stop) == []  # nothing but a header is new
    assert export_plan.chunks(units, segments, 1) == [[units[0]], [units[1]]]
    assert export_plan.chunks(units, segments, k * k) == [units]
    assert export_plan.chunks([], segments) == []


def test_a_long_run_is_exported_in_chunks_and_gives_the_same_rows(
    store_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export(store_dir, tmp_path / "one", file_bytes=SEGMENT)
    monkeypatch.setattr(module.Run, "chunk_bytes", SEGMENT)
    commits = []
    real = Target.commit
    monkeypatch.setattr(Target, "commit", lambda *given: (commits.append(given), real(*given)))
    report = export(store_dir, tmp_path / "two", file_bytes=SEGMENT)
    for dataset in ("records", "messages", "open"):
        assert rows_of(tmp_path / "one", dataset)
        assert nameless(rows_of(tmp_path / "one", dataset)) == nameless(rows_of(tmp_path / "two", dataset))
    assert len(commits) == len(manifest_of(tmp_path / "two").of("records")) > 1
    assert report.messages == len(rows_of(tmp_path / "two", "messages"))


def test_without_pyarrow_the_error_names_the_extra(store_dir: Path, tmp_path: Path) -> None:
    code = "import sys; sys.modules['pyarrow'] = None; from logstore.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "export", store_dir, tmp_path / "target"],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(logstore.__file__).parent.parent)},
        timeout=120,
        check=False,
    )
    assert (done.returncode, "pip install '/path/to/checkout[arrow]'" in done.stderr) == (3, True)
    assert not (tmp_path / "target").exists()
