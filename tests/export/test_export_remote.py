"""An export to a store of objects has the rows of one to a directory, each once, whatever ends a run on its way."""

from __future__ import annotations

import errno
import re
import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import logstore
from kit.export_days import Days
from kit.exported import SEGMENT, everything, store_dir
from kit.killed import killed, quick_directory, remove
from logstore.arrow import read_table
from logstore.errors import OptionError
from logstore.export import (
    ExportDamaged,
    ExportError,
    ExportIncomplete,
    ExportLocked,
    ExportMismatch,
    export,
    hold_for,
    open_set,
    plan_export,
    upkeep,
    verify,
)
from logstore.export.manifest import INTENT, LOCK, MANIFEST, UPLOAD, Manifest
from logstore.export.places import RemotePlace, place_of
from logstore.export.remote_target import open_target
from logstore.export.target import read_manifest

pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install '/path/to/checkout[arrow]'")

from kit.object_store import BUCKET, ObjectStore

__all__ = ["store_dir"]  # a fixture
PLACE = f"{BUCKET}/kept"
_TOKEN = re.compile(r"-[0-9a-f]{16}(?=\.parquet$)")


def objects(store: ObjectStore) -> dict[str, bytes]:
    """Every object of the target."""
    return everything(store.directory / PLACE)


def nameless(found: dict[str, bytes]) -> dict[str, bytes]:
    """The files of the datasets by the names that a local target gives them."""
    made = {_TOKEN.sub("", name): raw for name, raw in found.items() if name.endswith(".parquet")}
    assert len(made) == len([name for name in found if name.endswith(".parquet")])
    return made


def of_datasets(target: Path) -> dict[str, bytes]:
    return {name: raw for name, raw in everything(target).items() if name.endswith(".parquet")}


def manifest_of(store: ObjectStore) -> Manifest:
    found = read_manifest(place_of(PLACE, store.files))
    assert found is not None
    return found


def work(path: Path, messages: int = 6) -> None:
    with logstore.open(path, segment_size=SEGMENT) as store:
        queue = store.declare_queue("orders")
        old = list(store.messages(queue))[:2]
        ids = list(store.publish_many(queue, [b"x" * 100] * messages))
        store.dequeue_many([one.id for one in old] + ids[:-3], queue)


class Case:
    """A store that has worked since its export, and the files of the datasets after the next export."""

    def __init__(self, place: Path, *, whole: bool) -> None:
        self.place = place
        self.source, self.copy = place / "store", place / "copy"
        local = place / "local"
        self.objects = ObjectStore(place / "objects", whole=whole)
        self.stride = 1 if whole else 3  # the steps between the calls that tests fail, but for the first test of kills
        self.before = place / "before"
        with logstore.open(self.source, segment_size=SEGMENT) as store:
            queue = store.declare_queue("orders")
            first = list(store.publish_many(queue, [bytes(2000)] * 100))
            store.dequeue_many(first[:30], queue)
        export(self.source, local)
        self.export()
        assert nameless(objects(self.objects)) == of_datasets(local)
        shutil.copytree(self.objects.directory, self.before)
        with logstore.open(self.source) as store:
            queue = store.queue("orders")
            more = list(store.publish_many(queue, [bytes(2000)] * 20))
            store.dequeue_many(first[30:60] + more[:5], queue)
        shutil.copytree(self.source, self.copy)
        export(self.source, local)
        self.wanted = of_datasets(local)

    def begin(self) -> None:
        """The target as it was before the second run."""
        shutil.rmtree(self.objects.directory)
        shutil.copytree(self.before, self.objects.directory)

    def export(self, source: Path | None = None) -> None:
        export(source or self.source, PLACE, filesystem=self.objects.files)

    def export_and_die(self, number: int) -> None:
        self.objects.at(number)
        self.export()

    def check(self) -> None:
        """The next run completes the export, and nothing else is left."""
        self.objects.at(0)
        self.export()
        found = objects(self.objects)
        assert nameless(found) == self.wanted
        assert set(found) == {MANIFEST, *manifest_of(self.objects).paths()}
        assert verify(PLACE, filesystem=self.objects.files).problems == ()


@pytest.fixture(scope="module", params=["whole objects", "files that are renamed"])
def case(request: pytest.FixtureRequest) -> Any:
    place = quick_directory("export-remote-")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(open_set, "PART_ROWS", 16)
        yield Case(place, whole=request.param == "whole objects")
    remove(place)


def test_after_a_kill_at_any_call_the_next_run_has_every_row_once(case: Case) -> None:
    number, seen = 0, set()
    while True:
        number += 1
        case.begin()
        if not killed(case.export_and_die, number):
            break
        found = objects(case.objects)
        seen.add((MANIFEST in found and found[MANIFEST] == everything(case.before / PLACE)[MANIFEST], UPLOAD in found))
        case.check()
    assert number > 30
    assert seen >= {(True, False), (True, True), (False, True)}


def test_a_run_killed_while_it_clears_a_killed_run_is_cleared_by_the_next(case: Case) -> None:
    case.begin()
    case.objects.at(0)
    case.export()
    last, again = case.objects.count, 0
    for first in (last - 1, last - 4, last - 12):
        number = 0
        while True:
            number += case.stride
            case.begin()
            assert killed(case.export_and_die, first)
            if not killed(case.export_and_die, number) or number > 16:
                break
            again += 1
            case.check()
    assert again > 5


def test_a_run_killed_while_it_completes_a_rename_of_the_manifest_leaves_the_manifest(case: Case) -> None:
    case.begin()
    case.objects.at(0)
    case.export()
    last, between = case.objects.count, 0
    for first in range(last - 16, last):
        case.begin()
        assert killed(case.export_and_die, first)
        between = between if MANIFEST in objects(case.objects) else first
    assert (between > 0) is not case.objects.whole
    number = 0
    while between and number < 12:
        number += 1
        case.begin()
        assert killed(case.export_and_die, between)
        if not killed(case.export_and_die, number):
            break
        case.check()


def test_after_a_failed_call_anywhere_the_error_names_it_and_the_next_run_has_every_row_once(case: Case) -> None:
    def refuse(_: str, path: str) -> None:
        raise RuntimeError("the network is gone") if number % 2 else PermissionError(errno.EACCES, "access denied")

    number = 0
    while True:
        number += case.stride
        case.begin()
        case.objects.at(number, refuse)
        try:
            case.export()
        except ExportError as error:
            assert re.search("the network is gone|access denied|bytes were written", error.message)
            assert f"{BUCKET}/kept" in error.message
            assert "the network, the credentials" in error.message
        if case.objects.count < number:
            break
        case.check()
    assert number > 30


def test_a_run_of_another_machine_between_any_two_calls_is_told_and_no_row_is_doubled_or_silently_missing(
    case: Case,
) -> None:
    def other(_: str, __: str) -> None:
        case.objects.at(0)
        case.export(case.copy)

    number, told, damaged = 0, 0, 0
    while True:
        number += case.stride
        case.begin()
        case.objects.at(number, other)
        try:
            case.export()
        except ExportLocked as error:
            assert "another program writes" in error.message
            told += 1
        except ExportError:
            pass  # the files that it looked at were replaced meanwhile
        if case.objects.number:
            break  # it was over before
        try:
            case.check()
        except ExportDamaged as error:
            # The other run came and went between the last look and the writing of the manifest.
            assert re.search("is missing|does not name all files", error.message)
            with pytest.raises(ExportDamaged):
                read_table(case.source, PLACE, filesystem=case.objects.files)
            damaged += 1
    assert told > 5
    assert damaged <= 3


def test_rows_of_a_remote_export_and_the_log_are_those_of_a_local_one(case: Case, tmp_path: Path) -> None:
    case.begin()
    case.objects.at(0)
    for table in ("records", "messages", "open"):
        found = read_table(case.source, PLACE, table, filesystem=case.objects.files).read_all()
        assert found.num_rows > 10
        if table != "open":
            assert found.equals(_alone(case.source, tmp_path, table))


def _alone(source: Path, tmp_path: Path, table: str) -> Any:
    target = tmp_path / "alone"
    export(source, target)
    return read_table(source, target, table).read_all()


# ---- What is refused


@pytest.fixture
def kept(tmp_path: Path) -> ObjectStore:
    return ObjectStore(tmp_path / "objects")


def test_one_run_at_a_time_writes_to_a_target_of_a_store(store_dir: Path, kept: ObjectStore) -> None:
    place = place_of(PLACE, kept.files)
    with open_target(place, store_dir), pytest.raises(ExportLocked, match="wait until it has ended"):
        export(store_dir, PLACE, filesystem=kept.files)
    with open_target(place, store_dir):
        export(store_dir, f"{BUCKET}/other", filesystem=kept.files)
    export(store_dir, PLACE, filesystem=kept.files)


def test_a_target_without_its_manifest_or_with_an_older_one_is_refused_and_nothing_is_removed(
    store_dir: Path, kept: ObjectStore
) -> None:
    export(store_dir, PLACE, filesystem=kept.files)
    place = kept.directory / PLACE / MANIFEST
    older = place.read_bytes()
    work(store_dir)
    export(store_dir, PLACE, filesystem=kept.files)
    newer = place.read_bytes()
    for put in (place.unlink, lambda: place.write_bytes(older)):
        put()
        before = objects(kept)
        for call in (export, plan_export, hold_for):
            with pytest.raises(ExportDamaged, match="Restore"):
                call(store_dir, PLACE, filesystem=kept.files)
        assert objects(kept) == before
        place.write_bytes(newer)
    assert export(store_dir, PLACE, filesystem=kept.files).files == 0


def test_verify_tells_every_missing_damaged_and_foreign_object(store_dir: Path, kept: ObjectStore) -> None:
    export(store_dir, PLACE, filesystem=kept.files)
    top = kept.directory / PLACE
    manifest = manifest_of(kept)
    records, messages, opened = manifest.of("records")[0].path, manifest.of("messages")[0].path, manifest.open[0].path
    (top / records).unlink()
    raw = (top / messages).read_bytes()
    (top / messages).write_bytes(raw[:100] + bytes([raw[100] ^ 1]) + raw[101:])
    (top / "open" / "another.parquet").write_bytes((top / opened).read_bytes())
    assert list(verify(PLACE, filesystem=kept.files).problems) == [
        f"{records}: is missing",
        f"{messages}: is damaged: its hash is wrong",
        "open/another.parquet: is not a file of the export, but would be read as one",
    ]
    with pytest.raises(ExportError, match="contains no export"):
        verify(f"{BUCKET}/nothing", filesystem=kept.files)
    (top / UPLOAD).write_bytes(b"")
    with pytest.raises(ExportError, match="run the export again, then verify"):
        verify(PLACE, filesystem=kept.files)


def test_an_object_that_is_cut_off_after_it_was_written_fails_the_run(store_dir: Path, kept: ObjectStore) -> None:
    real = kept.get_file_info

    def cut(paths: list[str]) -> Any:
        for path in paths:
            if path.endswith(".parquet"):
                (kept.directory / path).write_bytes(b"PAR1")
        return real(paths)

    kept.get_file_info = cut  # type: ignore[method-assign] # an error of the store
    with pytest.raises(ExportError, match="it has 4 bytes after"):
        export(store_dir, PLACE, filesystem=kept.files)
    kept.get_file_info = real  # type: ignore[method-assign] # as it was
    assert MANIFEST not in objects(kept)
    assert export(store_dir, PLACE, filesystem=kept.files).files > 0
    assert verify(PLACE, filesystem=kept.files).problems == ()


def test_what_needs_a_directory_or_s3_is_refused_by_name(store_dir: Path, kept: ObjectStore, tmp_path: Path) -> None:
    for option in ({"delta": True}, {"iceberg": tmp_path / "iceberg"}):
        with pytest.raises(OptionError, match=f"(?i){next(iter(option))} tables need a local directory or S3"):
            export(store_dir, PLACE, filesystem=kept.files, **option)
    with pytest.raises(TypeError, match=r"filesystem is a pyarrow\.fs\.FileSystem"):
        export(store_dir, PLACE, filesystem="s3")
    local = tmp_path / "local"
    export(store_dir, local)
    (local / INTENT).write_bytes(b"")
    (kept.directory / PLACE).parent.mkdir(exist_ok=True)
    shutil.copytree(local, kept.directory / PLACE)
    with pytest.raises(ExportDamaged, match="interrupted before it was copied"):
        export(store_dir, PLACE, filesystem=kept.files)


def test_the_export_of_another_store_and_an_incomplete_first_run_are_refused(
    store_dir: Path, kept: ObjectStore, tmp_path: Path
) -> None:
    another = tmp_path / "another"
    work(another)
    export(another, PLACE, filesystem=kept.files)
    before = objects(kept)
    with pytest.raises(ExportMismatch, match="choose another target"):
        export(store_dir, PLACE, filesystem=kept.files)
    assert objects(kept) == before
    with logstore.open(another) as store:
        for _ in range(30):
            store.dequeue_many(store.publish_many("orders", [bytes(20_000)] * 40), "orders")
        store.compact()
    with pytest.raises(ExportIncomplete):
        export(another, f"{BUCKET}/new", filesystem=kept.files, require_complete=True)
    assert everything(kept.directory / BUCKET).keys() == {f"kept/{name}" for name in before}


# ---- Copies, retention and compaction


def test_a_local_export_and_its_copy_in_a_store_of_objects_continue_each_other(
    store_dir: Path, kept: ObjectStore, tmp_path: Path
) -> None:
    local, back = tmp_path / "local", tmp_path / "back"
    export(store_dir, local)
    shutil.copytree(local, kept.directory / PLACE, ignore=shutil.ignore_patterns(LOCK, "_staging"))
    work(store_dir)
    assert export(store_dir, PLACE, filesystem=kept.files).files == 2
    shutil.copytree(kept.directory / PLACE, back)
    work(store_dir)
    assert export(store_dir, back).files == 2
    assert verify(back).problems == ()
    assert b'"logstore_manifest": 3' in (local / MANIFEST).read_bytes()
    assert b'"logstore_manifest": 4' in (back / MANIFEST).read_bytes()  # it has names that older programs refuse


def test_keep_drops_exactly_the_rows_of_the_days_that_ended_longer_ago(
    kept: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    days, path = Days(monkeypatch), tmp_path / "store"
    for day in ("2030-01-01", "2030-01-02", "2030-01-03", "2030-01-04"):
        days.begin(day)
        work(path)
        export(path, PLACE, filesystem=kept.files)
    before = manifest_of(kept)
    gone = [file for file in before.files if file.day <= "2030-01-02"]
    whole = {
        table: read_table(path, PLACE, table, filesystem=kept.files).read_all() for table in ("records", "messages")
    }
    keep = timedelta(days=1)
    assert list(plan_export(path, PLACE, keep=keep, filesystem=kept.files).expired) == gone
    report = export(path, PLACE, keep=keep, filesystem=kept.files)
    assert (report.upkeep.dropped_files, report.upkeep.dropped_rows) == (len(gone), sum(file.rows for file in gone))
    assert len(gone) == 4
    for table, rows in whole.items():
        lost = sum(file.rows for file in gone if file.dataset == table)
        assert lost > 0
        assert read_table(path, PLACE, table, filesystem=kept.files).read_all().equals(rows.slice(lost))
    assert set(objects(kept)) == {MANIFEST, *manifest_of(kept).paths()}
    assert verify(PLACE, filesystem=kept.files).problems == ()


def test_many_small_objects_are_merged_into_one_with_the_same_rows(
    kept: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "store"
    monkeypatch.setattr(upkeep, "MERGE_FILES", 4)
    merged = 0
    for _ in range(5):
        work(path)
        merged += export(path, PLACE, filesystem=kept.files).upkeep.merged_files
    assert merged == 8
    found = read_table(path, PLACE, filesystem=kept.files).read_all()
    assert found["lsn"].to_pylist() == sorted(set(found["lsn"].to_pylist()))
    assert set(objects(kept)) == {MANIFEST, *manifest_of(kept).paths()}
    assert len(manifest_of(kept).of("records")) == 2
    assert verify(PLACE, filesystem=kept.files).problems == ()


def test_a_place_knows_whether_its_store_writes_whole_files(tmp_path: Path) -> None:
    for whole in (True, False):
        place = place_of(PLACE, ObjectStore(tmp_path, whole=whole).files)
        assert isinstance(place, RemotePlace)
        assert place.whole is whole
