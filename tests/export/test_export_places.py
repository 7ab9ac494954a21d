"""A place of an export reads what others have written, and its texts and errors have no secret."""

from __future__ import annotations

import errno
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kit.export_days import Days
from kit.exported import store_dir
from kit.object_store import BUCKET, ObjectStore
from logstore.arrow import read_table
from logstore.errors import OptionError, StoreError
from logstore.export import ExportError, ExportLocked, export, hold_for, remote_target, run, verify
from logstore.export.manifest import UPLOAD
from logstore.export.places import LocalPlace, RemotePlace, place_of
from logstore.export.remote_target import open_target
from logstore.export.target import read_document
from logstore.holds import Hold
from logstore.report.sources import ExportSource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

fs = pytest.importorskip("pyarrow.fs", reason="pyarrow is not installed: pip install '/path/to/checkout[arrow]'")
memory = pytest.importorskip("fsspec.implementations.memory", reason="fsspec is not installed")

__all__ = ["store_dir"]  # a fixture
PLACE = f"{BUCKET}/kept"


def remembering() -> Any:
    """A file system that remembers lists and finds files in them, as those of many stores do."""

    class Remembering(memory.MemoryFileSystem):  # type: ignore[misc, name-defined] # fsspec has no types
        protocol = ("gs", "gcs")
        cachable = False

        def ls(self, path: str, detail: bool = True, **_: Any) -> Any:
            path = self._strip_protocol(path)
            if path not in self.dircache:
                self.dircache[path] = super().ls(path, detail=True)
            return self.dircache[path] if detail else [one["name"] for one in self.dircache[path]]

        def info(self, path: str, **_: Any) -> Any:
            path = self._strip_protocol(path)
            for one in self.ls(self._parent(path)):
                if one["name"] == path:
                    return one
            raise FileNotFoundError(path)

        def isfile(self, path: str) -> bool:
            try:
                return bool(self.info(path)["type"] == "file")
            except FileNotFoundError:
                return False

        def invalidate_cache(self, path: str | None = None) -> None:
            self.dircache.clear()

    return fs.PyFileSystem(fs.FSSpecHandler(Remembering()))


def placed(system: Any, path: str = PLACE) -> RemotePlace:
    place = place_of(path, system)
    assert isinstance(place, RemotePlace)
    return place


def test_what_another_machine_has_written_is_read_where_a_file_system_remembers_lists(tmp_path: Path) -> None:
    here, there = placed(remembering(), "/remembered"), placed(remembering(), "/remembered")
    for content in (b"short", b"much longer than before"):
        here.every()
        (tmp_path / "staged").write_bytes(content)
        there.put(UPLOAD, tmp_path / "staged")
        assert read_document(here, UPLOAD) == content
    here.every()
    there.remove(UPLOAD)
    assert read_document(here, UPLOAD) is None


def test_a_file_system_of_several_names_is_known_by_the_first() -> None:
    place = placed(remembering(), "/remembered")
    assert place.whole
    assert str(place) == "gs://remembered"


def test_a_first_export_needs_permission_for_the_keys_of_its_target_only(store_dir: Path, tmp_path: Path) -> None:
    class Narrow(ObjectStore):
        def get_file_info(self, paths: list[str]) -> Any:
            if BUCKET in paths:
                raise PermissionError("access denied")
            return super().get_file_info(paths)

    files = Narrow(tmp_path).files
    assert export(store_dir, PLACE, filesystem=files).files > 0
    assert verify(PLACE, filesystem=files).problems == ()
    with pytest.raises(ExportError, match="contains no export"):
        verify(f"{BUCKET}/other", filesystem=files)


@pytest.mark.parametrize("secret", ["12/34secret", "/secret", "se\u2100cret", "[secret"])
def test_no_part_of_a_secret_that_makes_an_address_ambiguous_is_shown(secret: str) -> None:
    with pytest.raises(OptionError, match="is not an address of s3://") as caught:
        place_of(f"s3://AKIA:{secret}@archive/x")
    assert "secret" not in caught.value.message
    assert "cret" not in caught.value.message


def test_the_same_address_at_two_servers_is_two_places() -> None:
    keys = {
        place_of(f"s3://archive/x?region=us-east-1&scheme=http&endpoint_override=127.0.0.{number}:9").key
        for number in (1, 2)
    }
    assert len(keys) == 2


def test_the_hold_on_the_log_is_renewed_between_the_files_of_a_commit(
    store_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    class Seen(ObjectStore):
        def step(self, name: str, path: str) -> None:
            if name == "close":
                seen.append(path.rpartition(".")[2])

    def renew(_: Hold, expires_s: float | None = None) -> None:
        seen.append("renewed")

    files = Seen(tmp_path).files
    monkeypatch.setattr(run, "RENEWED_AFTER_S", -1.0)
    with hold_for(store_dir, PLACE, filesystem=files) as held:
        monkeypatch.setattr(Hold, "renew", renew)
        export(store_dir, PLACE, filesystem=files, hold=held)
    first = seen.index("parquet")
    assert seen[first - 1 : first + 3] == ["renewed", "parquet", "renewed", "parquet"]


def failing_reads(work: Callable[[], object], store: ObjectStore) -> Iterator[str]:
    """What the work says when one of its calls of the store fails, call by call; an empty text if it does not fail."""

    def gone(_: str, __: str) -> None:
        raise RuntimeError("the network is gone")

    number = 0
    while True:
        number += 1
        store.at(number, gone)
        try:
            work()
        except StoreError as error:
            yield error.message
        if store.count < number:
            return


def read_export(store: ObjectStore) -> None:
    with ExportSource(place_of(PLACE, store.files)) as source:  # type: ignore[arg-type] # the tests' own file system
        list(source.records(["lsn"]))
        list(source.messages()[0])


@pytest.mark.parametrize("table", ["records", "messages", "open", "of a report"])
def test_every_read_of_an_export_that_fails_is_told_as_one_of_the_network(
    store_dir: Path, tmp_path: Path, table: str
) -> None:
    store = ObjectStore(tmp_path)
    export(store_dir, PLACE, filesystem=store.files)

    def work() -> object:
        if table == "of a report":
            return read_export(store)
        return read_table(store_dir, PLACE, table, filesystem=store.files).read_all()

    told = list(failing_reads(work, store))
    assert len(told) > 4
    assert all("the network is gone" in said for said in told)


def test_a_report_of_an_export_whose_file_a_run_removes_meanwhile_says_to_run_it_again(
    store_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    days, target = Days(monkeypatch), tmp_path / "target"
    export(store_dir, target)
    with ExportSource(target) as source:
        days.begin("2030-01-09")
        export(store_dir, target, keep=timedelta(days=1))
        with pytest.raises(ExportError, match="removed .* while it was read: run this again"):
            list(source.records(["lsn"]))


def test_a_user_that_cannot_write_into_the_directory_of_a_store_and_one_that_can_exclude_each_other(
    store_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> int:
        raise PermissionError(errno.EACCES, "access denied")

    place, other = (placed(ObjectStore(tmp_path / name).files) for name in ("here", "there"))
    with open_target(place, store_dir), monkeypatch.context() as patch:
        patch.setattr(remote_target, "lock_regular", refused)
        with pytest.raises(ExportLocked):
            open_target(place, store_dir)
    with monkeypatch.context() as patch:
        patch.setattr(remote_target, "lock_regular", refused)
        reading = open_target(place, store_dir)
    with reading, pytest.raises(ExportLocked):
        open_target(other, store_dir)
    with open_target(other, store_dir):
        pass


def test_a_local_directory_is_one_whichever_library_has_its_file_system(tmp_path: Path) -> None:
    local = pytest.importorskip("fsspec.implementations.local")
    place = place_of(str(tmp_path), fs.PyFileSystem(fs.FSSpecHandler(local.LocalFileSystem())))
    assert isinstance(place, LocalPlace)
    assert place.path == tmp_path
