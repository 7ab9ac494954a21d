"""An export's files are in the Delta tables once each, also after a kill between the manifest and their logs."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

import logstore
from kit.delta_tables import KEYS, check, opened
from kit.export_days import Days
from kit.exported import as_version_1, manifest_of
from kit.s3_server import s3
from logstore.export import delta as export_delta
from logstore.export import export, upkeep
from logstore.export.manifest import ExportError, Manifest
from logstore.export.places import RemotePlace, place_of
from logstore.export.target import read_manifest
from logstore.export.verification import verify

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install '/path/to/checkout[arrow]'")
delta = pytest.importorskip("deltalake", reason="deltalake is not installed: pip install '/path/to/checkout[delta]'")

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["s3"]  # a fixture


def work(path: Path) -> None:
    with logstore.open(path, segment_size=512 << 10) as store:
        queue = store.declare_queue("orders")
        ids = list(store.publish_many(queue, [b"x"] * 20))
        store.dequeue_many(ids[:10], queue)


def actions(target: Path, dataset: str, kind: str) -> list[dict[str, Any]]:
    """The actions of the newest commit."""
    import json

    newest = max((target / dataset / "_delta_log").glob("*.json"))
    return [json.loads(line)[kind] for line in newest.read_text().splitlines() if kind in json.loads(line)]


def test_each_run_adds_its_files_and_a_run_with_nothing_new_makes_no_commit(tmp_path: Path) -> None:
    path, target = tmp_path / "store", tmp_path / "target"
    for number in range(1, 4):
        work(path)
        export(path, target, delta=number == 2)  # the first run's files are registered by the second
        if number == 1:
            assert not export_delta.is_registered(place_of(target))
            continue
        check(target)
        versions = [delta.DeltaTable(str(target / name)).version() for name in KEYS]
        assert versions == [number - 1] * 2
        export(path, target)
        assert [delta.DeltaTable(str(target / name)).version() for name in KEYS] == versions
    assert verify(target).problems == ()


def test_dropped_and_merged_files_leave_the_tables_and_a_merge_changes_no_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, target = tmp_path / "store", tmp_path / "target"
    days = Days(monkeypatch)
    for day in ("2030-01-01", "2030-01-03", "2030-01-03"):
        days.begin(day)
        work(path)
        export(path, target, delta=True)
    work(path)
    monkeypatch.setattr(upkeep, "MERGE_FILES", 3)
    assert export(path, target).upkeep.merged_files == 6
    check(target)
    for dataset in KEYS:
        # The merged file has rows of a file that the table never had, so it changes data.
        assert [one["dataChange"] for one in actions(target, dataset, "add")] == [True]
    work(path)
    export(path, target, keep=timedelta(days=1))
    check(target)
    monkeypatch.setattr(upkeep, "MERGE_FILES", 2)
    assert export(path, target).upkeep.merged_files == 4
    check(target)
    for dataset in KEYS:
        told = actions(target, dataset, "add") + actions(target, dataset, "remove")
        assert [one["dataChange"] for one in told] == [False] * 3
    days.begin("2031-01-01")
    export(path, target, keep=timedelta(days=1))
    check(target)
    for dataset in KEYS:
        assert [one["dataChange"] for one in actions(target, dataset, "remove")] == [True]


def test_a_commit_that_fails_or_dies_is_made_good_by_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, target = tmp_path / "store", tmp_path / "target"
    for _ in range(3):
        work(path)
        export(path, target, delta=True)
    monkeypatch.setattr(upkeep, "MERGE_FILES", 3)
    real = export_delta._register

    def die(place: Any, dataset: str, *rest: Any) -> int:
        if dataset == "messages":
            raise KeyboardInterrupt
        return real(place, dataset, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(export_delta, "_register", die)
        with pytest.raises(KeyboardInterrupt):
            export(path, target)
    table = delta.DeltaTable(str(target / "messages")).to_pyarrow_table()
    assert table.num_rows == 30  # its files stay as long as the table names them
    with monkeypatch.context() as patch:
        patch.setattr(export_delta, "_commit", lambda *_: (_ for _ in ()).throw(OSError("no disk")))
        work(path)
        with pytest.raises(ExportError, match=r"Delta table .*no disk"):
            export(path, target)
    export(path, target)
    check(target)


def test_a_commit_of_another_program_is_kept_and_the_next_number_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, target = tmp_path / "store", tmp_path / "target"
    work(path)
    export(path, target, delta=True)
    real = export_delta._commit
    other: list[int] = []

    def late(table: Any, *rest: Any) -> None:
        if not other:
            other.append(table.version() + 1)
            delta.DeltaTable(str(target / "records")).alter.set_table_description("changed meanwhile")
        real(table, *rest)

    monkeypatch.setattr(export_delta, "_commit", late)
    work(path)
    export(path, target)
    check(target)
    table = delta.DeltaTable(str(target / "records"))
    assert (table.metadata().description, table.version()) == ("changed meanwhile", other[0] + 1)


def test_columns_that_an_older_export_lacks_are_added_and_null_in_its_rows(tmp_path: Path) -> None:
    path, target = tmp_path / "store", tmp_path / "target"
    work(path)
    export(path, target)
    as_version_1(target)
    export(path, target, delta=True)
    names = delta.DeltaTable(str(target / "records")).to_pyarrow_table().column_names
    assert "note" not in names
    before = manifest_of(target).last_lsn
    work(path)
    export(path, target)
    rows = delta.DeltaTable(str(target / "records")).to_pyarrow_table()
    assert "note" in rows.column_names
    assert {row["note"] for row in rows.to_pylist() if row["lsn"] < before} == {None}
    assert rows.num_rows == sum(file.rows for file in manifest_of(target).of("records"))


@pytest.mark.parametrize("kind", ["directory", pytest.param("s3", marks=pytest.mark.slow)])
def test_a_log_is_short_after_many_runs_and_the_table_is_kept_up_without_its_first_commits(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    path = tmp_path / "store"
    target = str(tmp_path / "target") if kind == "directory" else request.getfixturevalue("s3").address()
    monkeypatch.setattr(export_delta, "_CHECKPOINT_EVERY", 3)
    place = place_of(target)
    for number in range(4):
        work(path)
        export(path, target, delta=number == 0)
        if number == 0:
            table = opened(target, "records")
            table.alter.set_table_properties({"delta.logRetentionDuration": "interval 0 seconds"})
    check(target)
    kept = {name: [place.size(f"{name}/_delta_log/{at:020}.json") for at in (0, 4)] for name in KEYS}
    assert [size is None for size in kept["records"]] == [True, False]
    assert [size is None for size in kept["messages"]] == [False, False]  # its retention is 30 days
    assert export_delta.is_registered(place)
    assert verify(target).problems == ()


@pytest.mark.parametrize("kind", ["directory", pytest.param("s3", marks=pytest.mark.slow)])
def test_merged_files_of_a_killed_run_stay_until_the_table_no_longer_names_them(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    path = tmp_path / "store"
    target = str(tmp_path / "target") if kind == "directory" else request.getfixturevalue("s3").address()
    for _ in range(3):
        work(path)
        export(path, target, delta=True)
    monkeypatch.setattr(upkeep, "MERGE_FILES", 3)

    def fails(error: BaseException) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(export_delta, "_commit", lambda *_: (_ for _ in ()).throw(error))
            with pytest.raises(type(error) if isinstance(error, KeyboardInterrupt) else ExportError):
                export(path, target)

    fails(KeyboardInterrupt())  # nothing clears up after it, as after a kill
    for _ in range(2):
        fails(OSError("no disk"))
        for dataset, key in KEYS.items():
            found = opened(target, dataset).to_pyarrow_table()[key].to_pylist()
            assert len(found) == len(set(found)) == sum(file.rows for file in read(target).of(dataset))
    export(path, target)
    check(target)


def read(target: str) -> Manifest:
    manifest = read_manifest(target)
    assert manifest is not None
    return manifest


@pytest.mark.parametrize("kind", ["directory", pytest.param("s3", marks=pytest.mark.slow)])
def test_a_table_whose_log_lacks_its_hint_of_the_checkpoint_is_kept_up(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    path = tmp_path / "store"
    target = str(tmp_path / "target") if kind == "directory" else request.getfixturevalue("s3").address()
    place = place_of(target)
    work(path)
    export(path, target, delta=True)
    for name in KEYS:
        opened(target, name).create_checkpoint()
        for gone in (f"{0:020}.json", "_last_checkpoint"):
            if isinstance(place, RemotePlace):
                place.remove(f"{name}/_delta_log/{gone}")
            else:
                (tmp_path / "target" / name / "_delta_log" / gone).unlink()
    work(path)
    export(path, target)
    check(target)


def test_a_checkpoint_that_a_kill_or_another_program_prevented_is_made_after_the_next_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, target = tmp_path / "store", tmp_path / "target"
    monkeypatch.setattr(export_delta, "_CHECKPOINT_EVERY", 3)
    work(path)
    export(path, target, delta=True)
    for number in range(2):
        delta.DeltaTable(str(target / "records")).alter.set_table_description(f"of another program {number}")
    assert delta.DeltaTable(str(target / "records")).version() == 3
    work(path)
    export(path, target)
    assert [one.name[:20] for one in (target / "records" / "_delta_log").glob("*.checkpoint.parquet")] == [f"{4:020}"]
    check(target)
