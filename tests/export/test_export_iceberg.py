"""An export's files are in the Iceberg tables once each, also after a kill between the manifest and the catalog."""

from __future__ import annotations

import fcntl
import shutil
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import logstore
from kit.export_days import Days
from kit.patience import PATIENCE_S
from logstore.errors import StoreError
from logstore.export import export, upkeep
from logstore.export import iceberg as export_iceberg
from logstore.export.iceberg import LAST_LSN, MISSING_LSN, MISSING_TIME, open_catalog
from logstore.export.manifest import ExportError, ExportMismatch
from logstore.export.places import place_of
from logstore.export.target import read_manifest

pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install '/path/to/checkout[arrow]'")
pytest.importorskip("pyiceberg", reason="pyiceberg is not installed: pip install '/path/to/checkout[iceberg]'")

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")  # pyiceberg's own


def work(path: Path) -> None:
    with logstore.open(path, segment_size=512 << 10) as store:
        queue = store.declare_queue("orders")
        ids = list(store.publish_many(queue, [b"x"] * 20))
        store.dequeue_many(ids[:10], queue)


def rows(catalog: Any, dataset: str) -> tuple[int, int]:
    """Rows of a table, and different ones."""
    table = catalog.load_table(("logstore", dataset)).scan().to_arrow()
    key = "lsn" if dataset == "records" else "id"
    return table.num_rows, len(set(table.column(key).to_pylist()))


def test_each_run_adds_its_files_and_a_run_with_nothing_new_adds_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, target, place = tmp_path / "store", tmp_path / "target", tmp_path / "iceberg"
    records = messages = 0
    for number in range(1, 3):
        work(path)
        report = export(path, target, iceberg=place)
        records += report.records
        messages += report.messages
        catalog = open_catalog(place)
        assert rows(catalog, "records") == (records, records)
        assert rows(catalog, "messages") == (messages, messages) == (10 * number, 10 * number)
        table = catalog.load_table(("logstore", "records"))
        assert len(table.history()) == number
        assert table.current_snapshot().summary.additional_properties[LAST_LSN] == str(report.last_lsn)
        assert [field.name for field in table.spec().fields] == ["day"]
        before = table.metadata_location
        export(path, target, iceberg=place)
        assert catalog.load_table(("logstore", "records")).metadata_location == before
    assert caplog.messages == []


def test_a_snapshot_says_what_the_log_no_longer_held_at_the_first_export(tmp_path: Path) -> None:
    path, target, place = tmp_path / "store", tmp_path / "target", tmp_path / "iceberg"

    def summary() -> dict[str, str]:
        snapshot = open_catalog(place).load_table(("logstore", "records")).current_snapshot()
        return dict(snapshot.summary.additional_properties)

    work(path)
    export(path, tmp_path / "whole", iceberg=place)
    assert MISSING_LSN not in summary()
    assert MISSING_TIME not in summary()
    with logstore.open(path) as store:
        for _ in range(8):
            store.dequeue_many(store.publish_many("orders", [bytes(20_000)] * 50), "orders")
            store.compact()
    place = tmp_path / "later"
    for _ in range(2):
        missing = export(path, target, iceberg=place).missing_before
        assert missing is not None
        assert summary()[MISSING_LSN] == str(missing.lsn)
        assert summary()[MISSING_TIME] == missing.time.isoformat()
        work(path)


def test_files_of_a_killed_run_are_registered_by_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, target, place = tmp_path / "store", tmp_path / "target", tmp_path / "iceberg"
    work(path)
    export(path, target, iceberg=place)
    work(path)
    real = export_iceberg._register

    def die(catalog: Any, dataset: str, *rest: Any) -> int:
        if dataset == "messages":
            raise KeyboardInterrupt
        return real(catalog, dataset, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(export_iceberg, "_register", die)
        with pytest.raises(KeyboardInterrupt):
            export(path, target, iceberg=place)
    catalog = open_catalog(place)
    manifest = read_manifest(target)
    assert manifest is not None
    wanted = {name: sum(file.rows for file in manifest.of(name)) for name in ("records", "messages")}
    assert rows(catalog, "records")[0] == wanted["records"]
    assert rows(catalog, "messages")[0] < wanted["messages"]
    export(path, target, iceberg=place)
    for name, count in wanted.items():
        assert rows(catalog, name) == (count, count)


def test_an_export_made_before_is_registered_whole_and_a_filter_on_time_reads_by_day(tmp_path: Path) -> None:
    path, target, place = tmp_path / "store", tmp_path / "target", tmp_path / "iceberg"
    for _ in range(2):
        work(path)
        export(path, target)
    export(path, target, iceberg=place)
    table = open_catalog(place).load_table(("logstore", "messages"))
    assert table.scan().to_arrow().num_rows == 20
    assert table.scan(row_filter="end_time < '2001-01-01T00:00:00+00:00'").to_arrow().num_rows == 0
    assert list(table.scan(row_filter="end_time < '2001-01-01T00:00:00+00:00'").plan_files()) == []


def test_tables_of_one_export_are_refused_for_another(tmp_path: Path) -> None:
    path, place = tmp_path / "store", tmp_path / "iceberg"
    work(path)
    export(path, tmp_path / "one", iceberg=place)
    with pytest.raises(ExportMismatch, match="another export"):
        export(path, tmp_path / "two", iceberg=place)
    (tmp_path / "file").write_text("")
    with pytest.raises(ExportError, match="cannot be made"):
        export(path, tmp_path / "two", iceberg=tmp_path / "file")
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / "catalog.sqlite").write_bytes(b"no database" * 1000)
    with pytest.raises(StoreError, match="Iceberg"):
        export(path, tmp_path / "two", iceberg=damaged)


def test_dropped_and_merged_files_leave_the_tables_with_the_run_that_removes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, target, place = tmp_path / "store", tmp_path / "target", tmp_path / "iceberg"
    days = Days(monkeypatch)
    for day in ("2030-01-01", "2030-01-03", "2030-01-03", "2030-01-03"):
        days.begin(day)
        work(path)
        export(path, target, iceberg=place)
    monkeypatch.setattr(upkeep, "MERGE_FILES", 3)
    report = export(path, target, iceberg=place, keep=timedelta(days=1))
    assert (report.upkeep.dropped_files, report.upkeep.merged_files) == (2, 6)
    manifest = read_manifest(target)
    assert manifest is not None
    catalog = open_catalog(place)
    for name in ("records", "messages"):
        kept = sum(file.rows for file in manifest.of(name))
        assert kept > 0
        assert rows(catalog, name) == (kept, kept)
        table = catalog.load_table(("logstore", name))
        assert len(list(table.scan().plan_files())) == 1
        assert table.current_snapshot().summary.additional_properties[LAST_LSN] == str(manifest.last_lsn)


def test_no_removed_file_is_in_a_table_when_it_goes_and_a_failed_catalog_is_made_good_by_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, target, place = tmp_path / "store", tmp_path / "target", tmp_path / "iceberg"
    for _ in range(3):
        work(path)
        export(path, target, iceberg=place)
    before = {name: rows(open_catalog(place), name) for name in ("records", "messages")}
    monkeypatch.setattr(upkeep, "MERGE_FILES", 3)
    with monkeypatch.context() as patch:
        patch.setattr(export_iceberg, "_register", lambda *_: (_ for _ in ()).throw(OSError("no disk")))
        with pytest.raises(ExportError, match="Iceberg catalog"):
            export(path, target, iceberg=place)
    for name, counts in before.items():
        assert rows(open_catalog(place), name) == counts  # the files are there as long as the tables name them
    export(path, target, iceberg=place)
    for name, counts in before.items():
        assert rows(open_catalog(place), name) == counts
        assert len(list(open_catalog(place).load_table(("logstore", name)).scan().plan_files())) == 1


def test_of_two_programs_that_register_the_same_files_the_second_waits_and_finds_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, target, place = tmp_path / "store", tmp_path / "target", tmp_path / "iceberg"
    work(path)
    export(path, target)
    manifest = read_manifest(target)
    assert manifest is not None
    register, lock, second = export_iceberg._register, fcntl.flock, threading.Event()
    others: list[Future[int]] = []

    def while_another_waits(*given: Any) -> int:
        if not others:
            others.append(threads.submit(export_iceberg.register, place_of(target), manifest, place))
            assert second.wait(PATIENCE_S)
        return register(*given)

    def locked(file: int, how: int) -> None:
        if threading.current_thread() is not threading.main_thread():
            second.set()
        lock(file, how)

    monkeypatch.setattr(export_iceberg, "_register", while_another_waits)
    monkeypatch.setattr(export_iceberg.fcntl, "flock", locked)
    with ThreadPoolExecutor(1) as threads:
        assert export_iceberg.register(place_of(target), manifest, place) == 2
        assert others[0].result(PATIENCE_S) == 0
    wanted = sum(file.rows for file in manifest.of("records"))
    assert rows(open_catalog(place), "records") == (wanted, wanted)
    assert len(open_catalog(place).load_table(("logstore", "records")).history()) == 1


def test_a_file_that_a_table_names_twice_is_named_once_after_the_next_run(tmp_path: Path) -> None:
    path, target, place = tmp_path / "store", tmp_path / "target", tmp_path / "iceberg"
    for _ in range(2):
        work(path)
        export(path, target, iceberg=place)
    wanted = rows(open_catalog(place), "records")
    table = open_catalog(place).load_table(("logstore", "records"))
    again = next(task.file.file_path for task in table.scan().plan_files())
    table.add_files([again], check_duplicate_files=False)
    assert rows(open_catalog(place), "records")[0] > wanted[0]
    export(path, target, iceberg=place)
    assert rows(open_catalog(place), "records") == wanted


def test_snapshots_that_name_removed_files_expire_and_metadata_does_not_grow_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, target, place = tmp_path / "store", tmp_path / "target", tmp_path / "iceberg"
    monkeypatch.setattr(export_iceberg, "SNAPSHOTS", 4)
    monkeypatch.setitem(export_iceberg._KEPT, "write.metadata.previous-versions-max", "3")
    monkeypatch.setitem(export_iceberg._KEPT, "commit.manifest.min-count-to-merge", "2")
    days = Days(monkeypatch)
    for number in range(1, 7):
        days.begin("2030-01-01" if number < 6 else "2030-01-03")
        work(path)
        export(path, target, iceberg=place)
    table = open_catalog(place).load_table(("logstore", "records"))
    assert len(table.snapshots()) == 3  # of the fifth run two were left
    for snapshot in table.snapshots():  # all that are left can be read
        assert table.scan(snapshot_id=snapshot.snapshot_id).to_arrow().num_rows > 0
    export(path, target, iceberg=place, keep=timedelta(days=1))
    manifest = read_manifest(target)
    assert manifest is not None
    assert len(manifest.of("records")) == 1
    table = open_catalog(place).load_table(("logstore", "records"))
    assert [one.snapshot_id for one in table.snapshots()] == [table.current_snapshot().snapshot_id]
    assert rows(open_catalog(place), "records")[0] == manifest.of("records")[0].rows
    metadata = Path(table.location().removeprefix("file://")) / "metadata"
    named = {table.metadata_location, *(entry.metadata_file for entry in table.metadata.metadata_log)}
    named |= {table.current_snapshot().manifest_list}
    named |= {one.manifest_path for one in table.current_snapshot().manifests(table.io)}
    assert {one.name for one in metadata.iterdir()} == {location.rpartition("/")[2] for location in named}
    assert len(named) < 8


def test_an_expiry_leaves_the_files_of_a_commit_that_another_program_is_making(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sql, updates = pytest.importorskip("pyiceberg.catalog.sql"), pytest.importorskip("pyiceberg.table.update")
    path, target, place = tmp_path / "store", tmp_path / "target", tmp_path / "iceberg"
    days = Days(monkeypatch)
    for day in ("2030-01-01", "2030-01-03"):
        days.begin(day)
        work(path)
        export(path, target, iceberg=place)
    foreign = shutil.copy(max(target.glob("records/day=*/*.parquet")), tmp_path / "foreign.parquet")
    begun, expired = threading.Event(), threading.Event()
    other: list[threading.Thread] = []
    commit, write = sql.SqlCatalog.commit_table, sql.SqlCatalog._write_metadata

    def append() -> None:
        open_catalog(place).load_table(("logstore", "records")).add_files([str(foreign)])

    def waiting(*given: Any, **named: Any) -> None:
        if threading.current_thread() in other:
            begun.set()
            assert expired.wait(PATIENCE_S)
        write(*given, **named)

    def committed(catalog: Any, table: Any, wanted: Any, changes: Any) -> Any:
        done = commit(catalog, table, wanted, changes)
        if any(isinstance(one, updates.RemoveSnapshotsUpdate) for one in changes) and not other:
            other.append(threading.Thread(target=append))
            other[0].start()
            assert begun.wait(PATIENCE_S)
        return done

    with monkeypatch.context() as patch:
        patch.setattr(sql.SqlCatalog, "commit_table", committed)
        patch.setattr(sql.SqlCatalog, "_write_metadata", staticmethod(waiting))
        export(path, target, iceberg=place, keep=timedelta(days=1))
        expired.set()
        other[0].join()
    manifest = read_manifest(target)
    assert manifest is not None
    kept = sum(file.rows for file in manifest.of("records"))
    assert rows(open_catalog(place), "records") == (2 * kept, kept)
    export(path, target, iceberg=place)
    assert rows(open_catalog(place), "records") == (kept, kept)


def test_an_expiry_leaves_what_other_programs_put_beside_the_metadata(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, target, place = tmp_path / "store", tmp_path / "target", tmp_path / "iceberg"
    days = Days(monkeypatch)
    days.begin("2030-01-01")
    work(path)
    export(path, target, iceberg=place)
    table = open_catalog(place).load_table(("logstore", "records"))
    table.manage_snapshots().create_tag(table.current_snapshot().snapshot_id, "first").commit()
    days.begin("2030-01-03")
    for _ in range(2):
        work(path)
        export(path, target, iceberg=place)
    metadata = Path(table.location().removeprefix("file://")) / "metadata"
    strangers = ["statistics.stats", "version-hint.text", f"{uuid4()}-m0.avro", f"snap-1-0-{uuid4()}.avro"]
    for name in strangers:
        (metadata / name).write_bytes(b"of another table")
    export(path, target, iceberg=place, keep=timedelta(days=1))
    table.refresh()
    tagged = table.snapshot_by_name("first")
    assert len(table.snapshots()) == 2
    assert [one.added_rows_count for one in tagged.manifests(table.io)] != []
    assert {one.name for one in metadata.iterdir()} >= set(strangers)
