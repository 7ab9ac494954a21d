"""Retention drops whole days and says so, compaction keeps every row, and the next run continues as before."""

from __future__ import annotations

import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import logstore
from kit.disk_steps import Steps, die
from kit.export_days import Days
from kit.exported import SEGMENT, as_version_1, damage, everything, export_with_a_gap, manifest_of, recycle
from kit.killed import killed, quick_directory, remove
from kit.torture import stride
from logstore.arrow import message_schema, read_table, schema
from logstore.errors import OptionError
from logstore.export import export, plan_export, upkeep
from logstore.export.manifest import MANIFEST, Dropped, ExportDamaged, ExportError
from logstore.export.target import read_manifest
from logstore.export.verification import verify

pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed: pip install '/path/to/checkout[arrow]'")

Rows = list[dict[str, Any]]
DAYS = ("2030-01-01", "2030-01-02", "2030-01-03", "2030-01-04")


def rows_of(target: Path, dataset: str) -> Rows:
    """All rows of the files that the manifest names."""
    return [
        row
        for file in manifest_of(target).of(dataset)
        for row in pq.read_table(target / file.path, partitioning=None).to_pylist()
    ]


def pattern_rows(target: Path, dataset: str) -> Rows:
    """All rows of the files that a pattern over the days finds."""
    files = sorted(target.glob(f"{dataset}/*/*.parquet"), key=lambda path: path.name)
    return [row for path in files for row in pq.read_table(path, partitioning=None).to_pylist()]


def work(path: Path, messages: int = 6) -> None:
    """Publishes messages, of which some live on and the others end, some of earlier calls among them."""
    with logstore.open(path, segment_size=SEGMENT) as store:
        queue = store.declare_queue("orders")
        old = list(store.messages(queue))[:2]
        ids = list(store.publish_many(queue, [b"x" * 100] * messages))
        store.dequeue_many([one.id for one in old] + ids[:-3], queue)


@pytest.fixture
def days(monkeypatch: pytest.MonkeyPatch) -> Days:
    return Days(monkeypatch)


def four_days(days: Days, path: Path, target: Path, **options: Any) -> None:
    """An export of four days, a run each."""
    for day in DAYS:
        days.begin(day)
        work(path)
        export(path, target, **options)


# ---- Retention


def test_keep_drops_exactly_the_rows_of_days_that_ended_longer_ago(days: Days, tmp_path: Path) -> None:
    path, target, whole = tmp_path / "store", tmp_path / "target", tmp_path / "whole"
    four_days(days, path, target)
    shutil.copytree(target, whole)
    gone = [file for file in manifest_of(whole).files if file.day <= "2030-01-02"]
    assert {(file.dataset, file.day) for file in gone} == {
        (dataset, day) for dataset in ("records", "messages") for day in DAYS[:2]
    }
    report = export(path, target, keep=timedelta(days=1))  # now is noon, so the third of January ended half a day ago
    assert (report.files, report.upkeep.dropped_files) == (0, len(gone))
    assert report.upkeep.dropped_rows == sum(file.rows for file in gone)
    for dataset in ("records", "messages"):
        before, after = rows_of(whole, dataset), rows_of(target, dataset)
        lost = sum(file.rows for file in gone if file.dataset == dataset)
        assert lost > 0
        assert after == before[lost:] == pattern_rows(target, dataset)
    assert not (target / "records" / "day=2030-01-01").exists()
    assert verify(target).problems == ()
    assert export(path, target, keep=timedelta(days=1)).upkeep.dropped_files == 0


def test_the_manifest_names_one_dropped_range_for_each_dataset_with_its_rows(days: Days, tmp_path: Path) -> None:
    path, target = tmp_path / "store", tmp_path / "target"
    four_days(days, path, target, keep=timedelta(days=1))
    manifest = manifest_of(target)
    wanted = []
    for dataset in ("records", "messages"):
        first = manifest.of(dataset)[0]
        (found,) = [one for one in manifest.dropped if one.dataset == dataset]
        assert (found.stop_lsn, found.last_day, found.files) == (first.start_lsn, "2030-01-02", 2)
        wanted.append(found)
    assert wanted[0].start_lsn == manifest.first_lsn
    assert manifest.dropped == tuple(wanted)
    assert verify(target).manifest.dropped == manifest.dropped


def test_a_clock_set_back_drops_a_day_wherever_it_lies_and_every_other_row_stays(days: Days, tmp_path: Path) -> None:
    path, target, whole = tmp_path / "store", tmp_path / "target", tmp_path / "whole"
    for day in ("2030-01-05", "2030-01-01", "2030-01-05", "2030-01-01", "2030-01-06"):
        days.begin(day)
        work(path)
        export(path, target)
    shutil.copytree(target, whole)
    export(path, target, keep=timedelta(days=3))
    manifest = manifest_of(target)
    assert [one.dataset for one in manifest.dropped].count("records") == 2
    kept = [file for file in manifest_of(whole).of("records") if file.day != "2030-01-01"]
    assert manifest.of("records") == kept
    assert verify(target).problems == ()


def test_a_run_after_retention_continues_as_one_without_it(days: Days, tmp_path: Path) -> None:
    path, target, whole = tmp_path / "store", tmp_path / "target", tmp_path / "whole"
    four_days(days, path, whole)
    shutil.copytree(whole, target)
    export(path, target, keep=timedelta(hours=1))
    work(path)
    one, two = export(path, target, keep=timedelta(hours=1)), export(path, whole)
    assert (one.start_lsn, one.last_lsn, one.open, one.messages) == (
        two.start_lsn,
        two.last_lsn,
        two.open,
        two.messages,
    )
    named = manifest_of(target)
    assert (named.open, named.mark, named.last_lsn) == (
        manifest_of(whole).open,
        manifest_of(whole).mark,
        manifest_of(whole).last_lsn,
    )
    found, wanted = everything(target), everything(whole)
    assert found.keys() < wanted.keys()
    assert all(raw == wanted[name] for name, raw in found.items() if name != MANIFEST)


def test_everything_may_be_dropped_and_the_export_goes_on(days: Days, tmp_path: Path) -> None:
    path, target = tmp_path / "store", tmp_path / "target"
    four_days(days, path, target)
    days.begin("2031-01-01")
    export(path, target, keep=timedelta(days=90))
    assert (rows_of(target, "records"), rows_of(target, "messages")) == ([], [])
    assert rows_of(target, "open")
    assert verify(target).problems == ()
    work(path)
    report = export(path, target, keep=timedelta(days=90))
    assert len(rows_of(target, "records")) == report.records > 0
    assert verify(target).problems == ()


def test_a_plan_tells_what_would_be_dropped_and_changes_nothing(days: Days, tmp_path: Path) -> None:
    path, target = tmp_path / "store", tmp_path / "target"
    four_days(days, path, target)
    before = everything(target)
    planned = plan_export(path, target, keep=timedelta(days=1)).expired
    assert everything(target) == before
    assert {file.day for file in planned} == set(DAYS[:2])
    assert plan_export(path, target).expired == ()
    export(path, target, keep=timedelta(days=1))
    assert before.keys() - everything(target).keys() == {file.path for file in planned}


def test_a_keep_that_is_no_age_is_refused_and_one_before_1970_drops_nothing(days: Days, tmp_path: Path) -> None:
    path, target = tmp_path / "store", tmp_path / "target"
    four_days(days, path, target)
    for keep in (timedelta(0), timedelta(days=-1)):
        with pytest.raises(OptionError, match="above 0"):
            export(path, target, keep=keep)
    assert export(path, target, keep=timedelta.max).upkeep.dropped_files == 0


def test_the_table_of_export_and_log_has_what_retention_left_and_the_log(days: Days, tmp_path: Path) -> None:
    path, target = tmp_path / "store", tmp_path / "target"
    four_days(days, path, target)
    work(path)
    wanted = {name: read_table(path, target, name).read_all().to_pylist() for name in ("records", "messages", "open")}
    export(path, target, keep=timedelta(days=1))
    work(path)
    lost = dict.fromkeys(wanted, 0) | {one.dataset: one.rows for one in manifest_of(target).dropped}
    for name in ("records", "messages"):
        found = read_table(path, target, name).read_all().to_pylist()
        kept = wanted[name][lost[name] :]
        assert len(found) > len(kept) > 0
        for row, other in zip(found, kept, strict=False):
            assert row == other


def test_a_file_in_a_dropped_range_is_refused_as_damage(days: Days, tmp_path: Path) -> None:
    path, target = tmp_path / "store", tmp_path / "target"
    four_days(days, path, target)
    manifest = manifest_of(target)
    first = manifest.of("records")[0]
    bad = Dropped("records", first.start_lsn, first.stop_lsn, 1, 1, first.day)
    from dataclasses import replace

    (target / MANIFEST).write_bytes(replace(manifest, dropped=(bad,)).encode())
    with pytest.raises(ExportDamaged, match="was dropped"):
        read_manifest(target)


# ---- Compaction


def many_runs(path: Path, target: Path, runs: int) -> None:
    for _ in range(runs):
        work(path)
        export(path, target)


def test_a_day_of_many_runs_has_few_files_and_each_row_once_in_order(
    days: Days, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, target, whole = tmp_path / "store", tmp_path / "target", tmp_path / "whole"
    for run in range(40):
        days.begin(DAYS[run // 20])
        work(path)
        export(path, target)
        with monkeypatch.context() as patch:
            patch.setattr(upkeep, "MERGE_FILES", 1000)
            export(path, whole)
    assert len(manifest_of(whole).of("records")) >= 40
    for dataset, made in (("records", schema()), ("messages", message_schema())):
        files = manifest_of(target).of(dataset)
        for day in DAYS[:2]:
            assert 0 < len([file for file in files if file.day == day]) < upkeep.MERGE_FILES
        assert rows_of(target, dataset) == rows_of(whole, dataset) == pattern_rows(target, dataset)
        for file in files:
            opened = pq.ParquetFile(target / file.path)
            assert opened.schema_arrow.remove_metadata() == made
    assert rows_of(target, "open") == rows_of(whole, "open")
    assert verify(target).problems == ()


def test_the_same_runs_give_the_same_merged_bytes(days: Days, tmp_path: Path) -> None:
    path, one, two = tmp_path / "store", tmp_path / "one", tmp_path / "two"
    for _ in range(18):
        work(path)
        export(path, one)
        export(path, two)
    assert len(manifest_of(one).of("records")) < 18
    assert everything(one) == everything(two)


def test_files_are_merged_up_to_the_target_size_and_never_over_a_hole(
    days: Days, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, target = tmp_path / "store", tmp_path / "target"
    export_with_a_gap(path, target)
    monkeypatch.setattr(upkeep, "MERGE_FILES", 2)
    (gap,) = manifest_of(target).gaps
    before = rows_of(target, "records")
    export(path, target)
    files = manifest_of(target).of("records")
    assert len(files) == 2
    assert files[0].stop_lsn <= gap.start_lsn < gap.stop_lsn <= files[1].start_lsn
    assert rows_of(target, "records") == before
    assert verify(target).problems == ()
    monkeypatch.setattr(upkeep, "MERGE_BYTES", max(file.bytes for file in files))
    many_runs(path, target, 3)
    assert all(
        one.bytes + two.bytes > upkeep.MERGE_BYTES or one.stop_lsn <= gap.start_lsn
        for one, two in zip(*[iter(manifest_of(target).of("records"))] * 2, strict=False)
    )


def test_files_of_an_older_version_are_merged_with_newer_ones(
    days: Days, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, target = tmp_path / "store", tmp_path / "target"
    many_runs(path, target, 2)
    as_version_1(target)
    before = {name: rows_of(target, name) for name in ("records", "messages")}
    monkeypatch.setattr(upkeep, "MERGE_FILES", 2)
    assert export(path, target).upkeep.merged_files == 4
    for name, rows in before.items():
        found = rows_of(target, name)
        assert len(found) == len(rows)
        for row, old in zip(found, rows, strict=True):
            assert {key: row[key] for key in old if key != "places"} == {k: old[k] for k in old if k != "places"}
    assert verify(target).problems == ()


def test_a_damaged_file_is_never_merged(days: Days, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, target = tmp_path / "store", tmp_path / "target"
    many_runs(path, target, 2)
    damaged = manifest_of(target).of("records")[0].path
    damage(target / damaged)
    before = everything(target)
    monkeypatch.setattr(upkeep, "MERGE_FILES", 2)
    with pytest.raises(ExportDamaged, match="cannot be merged"):
        export(path, target)
    assert {name: raw for name, raw in everything(target).items() if not name.startswith("_staging")} == before


def test_a_table_that_is_being_read_goes_on_over_a_merge_and_says_if_its_rows_are_dropped(
    days: Days, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, target = tmp_path / "store", tmp_path / "target"
    many_runs(path, target, 4)
    for name in ("records", "messages"):
        wanted = read_table(path, target, name).read_all().to_pylist()
        with monkeypatch.context() as patch:
            reading = read_table(path, target, name, columns=["reason"] if name == "messages" else ["type"])
            found = reading.read_next_batch().to_pylist()
            work(path)
            patch.setattr(upkeep, "MERGE_FILES", 3)
            assert export(path, target).upkeep.merged_files
            found += reading.read_all().to_pylist()
            column = "reason" if name == "messages" else "type"
            assert [row[column] for row in found] == [row[column] for row in wanted]
        many_runs(path, target, 4)
    reading = read_table(path, target)
    reading.read_next_batch()
    days.begin("2040-01-01")
    export(path, target, keep=timedelta(days=1))
    with pytest.raises(ExportError, match="--keep dropped"):
        reading.read_all()


# ---- Kills


class Case:
    """An export whose next run drops a day and merges files, and the expected result."""

    def __init__(self, days: Days, place: Path) -> None:
        self.store, self.target, self.before = place / "store", place / "target", place / "before"
        for day in (DAYS[0], DAYS[2], DAYS[2], DAYS[2]):
            days.begin(day)
            work(self.store)
            export(self.store, self.before)
        upkeep.MERGE_FILES = 3  # type: ignore[misc] # patched by the fixture, which takes it back
        self.begin()
        work(self.store)
        self.rows = {name: rows_of(self.before, name) for name in ("records", "messages")}
        days.begin(DAYS[2])
        self.run()
        self.wanted = everything(self.target)

    def begin(self) -> None:
        shutil.rmtree(self.target, ignore_errors=True)
        shutil.copytree(self.before, self.target)

    def run(self) -> None:
        export(self.store, self.target, keep=timedelta(days=1))


@pytest.fixture(scope="module")
def case() -> Any:
    place = quick_directory("upkeep-")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(upkeep, "MERGE_FILES", 1000)
        yield Case(Days(patch), place)
    remove(place)


def run_and_die(case: Case, number: int) -> None:
    with Steps(case.target, number, die):
        case.run()


def test_after_a_kill_at_any_step_each_row_is_there_once_and_the_next_run_ends_in_the_same_bytes(case: Case) -> None:
    kept = manifest_of(case.target)
    assert kept.dropped
    assert len(kept.of("records")) == 1
    number, seen = 0, set()
    while True:
        number += stride(3)
        case.begin()
        if not killed(run_and_die, case, number):
            break
        manifest = read_manifest(case.target)
        assert manifest is not None
        for name, before in case.rows.items():
            found = rows_of(case.target, name)
            lost = sum(one.rows for one in manifest.dropped if one.dataset == name)
            assert found[: len(before) - lost] == before[lost:]
            assert len({row["lsn" if name == "records" else "id"] for row in found}) == len(found)
        seen.add((bool(manifest.dropped), len(manifest.of("records"))))
        case.run()
        assert everything(case.target) == case.wanted
        assert verify(case.target).problems == ()
    assert seen == {(False, 4), (True, 3), (True, 4), (True, 1)}
    assert number > 60


def test_the_log_may_be_recycled_below_a_merged_and_shortened_export(days: Days, tmp_path: Path) -> None:
    path, target = tmp_path / "store", tmp_path / "target"
    four_days(days, path, target)
    export(path, target, keep=timedelta(days=1))
    recycle(path, 3)
    export(path, target, keep=timedelta(days=1), allow_gap=True)
    assert verify(target).problems == ()
