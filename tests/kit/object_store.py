"""A store of objects in a local directory, as a file system of pyarrow, whose every call can be counted and replaced.

An object appears when it is complete, in the place of an older one, as on S3; if a write fails, none appears. With
``whole=False`` a file appears when it is opened, and a rename replaces a file in two steps, as on HDFS.
"""

from __future__ import annotations

import io
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import fs

if TYPE_CHECKING:
    from collections.abc import Callable

BUCKET = "bucket"


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class _Written(io.RawIOBase):
    def __init__(self, store: ObjectStore, path: Path) -> None:
        super().__init__()
        self._store, self._path = store, path
        self._made = b""
        self._broken = False
        if not store.whole:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"")

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._broken = True  # unless the next line returns
        self._store.step("write", str(self._path))
        self._broken = False
        self._made += bytes(data)
        if not self._store.whole:
            self._path.write_bytes(self._made)
        return len(data)

    def close(self) -> None:
        if not self.closed and self._store.whole and not self._broken:
            self._broken = True
            self._store.step("close", str(self._path))
            self._path.parent.mkdir(parents=True, exist_ok=True)
            staged = self._path.with_name("." + self._path.name)
            staged.write_bytes(self._made)
            staged.rename(self._path)
        super().close()


class ObjectStore(fs.FileSystemHandler):  # type: ignore[misc] # pyarrow has no types
    """What pyarrow calls. ``instead(name, path)`` is called before the call of this number."""

    def __init__(self, directory: Path, *, whole: bool = True) -> None:
        self.directory, self.whole = directory, whole
        self.count, self.number = 0, 0
        self.instead: Callable[[str, str], object] = die
        self._inner = fs.LocalFileSystem()
        (directory / BUCKET).mkdir(parents=True, exist_ok=True)

    @property
    def files(self) -> fs.PyFileSystem:
        """The file system; it has the bucket ``bucket``."""
        return fs.PyFileSystem(self)

    def at(self, number: int, instead: Callable[[str, str], object] = die) -> None:
        """Counts from now on, and calls ``instead`` before the call of this number."""
        self.count, self.number, self.instead = 0, number, instead

    def step(self, name: str, path: str) -> None:
        self.count += 1
        if self.count == self.number:
            self.instead(name, path)

    def _here(self, path: str) -> Path:
        return self.directory / path

    def get_type_name(self) -> str:
        return "test+s3" if self.whole else "test+files"

    def get_file_info(self, paths: list[str]) -> list[fs.FileInfo]:
        self.step("info", paths[0])
        return [self._info(path) for path in paths]

    def _info(self, path: str) -> fs.FileInfo:
        here = self._here(path)
        if here.is_file():
            return fs.FileInfo(path, fs.FileType.File, size=here.stat().st_size)
        return fs.FileInfo(path, fs.FileType.Directory if here.is_dir() else fs.FileType.NotFound)

    def get_file_info_selector(self, selector: fs.FileSelector) -> list[fs.FileInfo]:
        self.step("list", selector.base_dir)
        found = sorted(self._here(selector.base_dir).rglob("*"))
        return [self._info(path.relative_to(self.directory).as_posix()) for path in found]

    def create_dir(self, path: str, recursive: bool) -> None:
        self.step("create_dir", path)
        self._here(path).mkdir(parents=recursive, exist_ok=True)

    def delete_file(self, path: str) -> None:
        self.step("delete", path)
        self._here(path).unlink()

    def move(self, source: str, target: str) -> None:
        self.step("unlink", target)
        self._here(target).unlink(missing_ok=True)
        self.step("rename", target)
        self._here(source).rename(self._here(target))

    def copy_file(self, source: str, target: str) -> None:
        self.step("copy", target)
        self._here(target).parent.mkdir(parents=True, exist_ok=True)
        staged = self._here(target).with_name("." + self._here(target).name)
        staged.write_bytes(self._here(source).read_bytes())
        staged.rename(self._here(target))

    def open_input_stream(self, path: str) -> Any:
        self.step("open", path)
        return self._inner.open_input_stream(str(self._here(path)))

    def open_input_file(self, path: str) -> Any:
        self.step("open", path)
        return self._inner.open_input_file(str(self._here(path)))

    def open_output_stream(self, path: str, metadata: Any) -> pa.PythonFile:
        self.step("create", path)
        return pa.PythonFile(_Written(self, self._here(path)), mode="w")

    def normalize_path(self, path: str) -> str:
        return path

    def _refused(self, *_: object) -> Any:
        raise AssertionError("an export makes no such call")

    open_append_stream = delete_dir = delete_dir_contents = delete_root_dir_contents = _refused
