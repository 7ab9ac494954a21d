"""A place of an export reads what others have written, and its texts and errors have no secret."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kit.exported import store_dir
from kit.object_store import BUCKET, ObjectStore
from logstore.errors import OptionError
from logstore.export import ExportError, export, hold_for, run, verify
from logstore.export.manifest import UPLOAD
from logstore.export.places import RemotePlace, place_of
from logstore.export.target import read_document
from logstore.holds import Hold

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
