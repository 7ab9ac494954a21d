"""Where an export lies: a local directory, or a place in a file system that pyarrow or fsspec reaches.

A :class:`Place` is what readers of an export need: sizes, whole files, opened files and a list of names, all relative
to the target. :func:`place_of` makes it from what a caller gives. A :class:`RemotePlace` also writes, one whole file at
a time; the local target has its own way to write (target.py), because it can rename and force to disk.

No text made here has a password of an address: :attr:`Place.shown` is without user, password and query.
"""

from __future__ import annotations

import errno
import os
from abc import ABC, abstractmethod
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, quote, urlsplit

from xxhash import xxh64

from logstore.core import arguments
from logstore.core.extras import require
from logstore.core.imports import late
from logstore.core.regular_files import naming, open_regular, read_start, told
from logstore.errors import OptionError, StoreError
from logstore.export.addresses import is_address, one_line, without_secrets
from logstore.export.manifest import MANIFEST, ExportError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pyarrow as pa

__all__ = ["LocalPlace", "Place", "RemotePlace", "inside", "place_of"]

DATASETS: Final = ("records", "messages", "open")
PART: Final = ".part"
"""Ends the name of a file that is being written where a file appears before it is complete."""

_PIECE: Final = 1 << 20
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

# File systems on which a file appears when it is complete, at once, in the place of an older one.
_OBJECT_STORES: Final = frozenset({"s3", "s3a", "gcs", "gs", "abfs", "abfss", "az", "adl", "oss", "memory"})


class Place(ABC):
    """Where an export lies. Names of files are relative, with ``/``. Text of it is :attr:`shown`."""

    shown: str
    """Its path or address, without anything secret."""

    def __str__(self) -> str:
        return self.shown

    @property
    @abstractmethod
    def key(self) -> bytes:
        """Equal for two ways to name the same place."""

    @property
    @abstractmethod
    def hadoop(self) -> str:
        """The address of the place for Hadoop's file systems, which Spark reads with."""

    def absolute(self) -> Place:
        """The same place, whatever becomes of the working directory."""
        return self

    @abstractmethod
    def size(self, name: str) -> int | None:
        """The bytes of a file; None if there is none."""

    def sizes(self, *names: str) -> list[int | None]:
        """The bytes of files; None for one that is not there."""
        return [self.size(name) for name in names]

    @abstractmethod
    def read(self, name: str, limit: int) -> tuple[bytes, int]:
        """At most ``limit`` bytes from the beginning of a file, and its size. Raises ``FileNotFoundError``."""

    @abstractmethod
    def hash(self, name: str) -> tuple[int, str]:
        """The size in bytes and the XXH64 (hexadecimal) of a file. Raises ``FileNotFoundError``."""

    @abstractmethod
    def opened(self, name: str) -> Any:
        """A context manager with a file from which pyarrow can read. Raises ``FileNotFoundError``."""

    @abstractmethod
    def files(self) -> dict[str, int]:
        """The files below the three datasets with their sizes in bytes, whoever made them.

        Without those in directories like ``_delta_log``, which no reader of Parquet files takes for rows.
        """

    def line(self, error: Exception) -> str:
        """The first line of a library's text, without secrets."""
        return one_line(error, ())

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Turns an ``OSError`` into an ``ExportError`` that says what to do."""
        try:
            yield
        except OSError as error:
            said = self._said(error)
            raise ExportError(f"{said}. The earlier export is complete; the next run continues from there") from error

    @abstractmethod
    def _said(self, error: OSError) -> str:
        """What failed, and what to do."""


class LocalPlace(Place):
    """A directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.shown = str(path)

    @property
    def key(self) -> bytes:
        """The real path."""
        return os.fsencode(os.path.realpath(self.path))

    @property
    def hadoop(self) -> str:
        """``file:`` and the absolute path."""
        return f"file:{self.path.absolute()}"

    def absolute(self) -> Place:
        """The absolute path."""
        return LocalPlace(self.path.absolute())

    def size(self, name: str) -> int | None:
        """The bytes of a file, or of a link; None if there is neither."""
        try:
            return os.stat(self.path / name, follow_symlinks=False).st_size
        except (FileNotFoundError, NotADirectoryError):
            return None

    def read(self, name: str, limit: int) -> tuple[bytes, int]:
        """At most ``limit`` bytes from the beginning of a regular file, and its size."""
        return read_start(self.path / name, limit)

    def hash(self, name: str) -> tuple[int, str]:
        """The size in bytes and the XXH64 of a regular file."""
        made, size = xxh64(), 0
        path = self.path / name
        fd = open_regular(path)
        try:
            with naming(path):
                while piece := os.read(fd, _PIECE):
                    made.update(piece)
                    size += len(piece)
        finally:
            os.close(fd)
        return size, made.hexdigest()

    def opened(self, name: str) -> Any:
        """The opened file, as pyarrow does not take every path."""
        return (self.path / name).open("rb")

    def files(self) -> dict[str, int]:
        """The files below the datasets."""
        found = {}
        for dataset in DATASETS:
            top = self.path / dataset
            for directory, inner, names in os.walk(top):
                here = Path(directory)
                if here == top:
                    inner[:] = [name for name in inner if not name.startswith("_")]
                for name in names:
                    path = (here / name).relative_to(self.path).as_posix()
                    if (size := self.size(path)) is not None:
                        found[path] = size
        return found

    def _said(self, error: OSError) -> str:
        if error.errno in _FULL:
            return f"the disk of the target {self} is full: make room, or choose another target"
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            named = error.filename or self
            return f"the target {self} cannot be used ({named}: {error.strerror}): check the path"
        return f"the export to {self} failed ({told(error)}): check the disk and the permissions"


class RemotePlace(Place):
    """A place in one of pyarrow's file systems.

    Every error of a library is an ``OSError`` here, whose text is one line without secrets.
    """

    def __init__(
        self, system: Any, root: str, shown: str, secrets: Iterable[str] = (), endpoint: str | None = None
    ) -> None:
        self._system = system
        self._endpoint = endpoint
        self._root = root.rstrip("/")
        self.shown = shown.rstrip("/")
        self._secrets = tuple(secrets)
        handler = getattr(system, "handler", None)
        self._fsspec = handler.fs if isinstance(handler, require("arrow", "pyarrow.fs").FSSpecHandler) else None
        self.whole = _kind_of(getattr(system, "base_fs", system)) in _OBJECT_STORES
        """Whether a file appears when it is complete. Elsewhere it is written under another name and renamed."""

    @property
    def key(self) -> bytes:
        """The address, and the server if the address names one."""
        return (self.shown if self._endpoint is None else f"{self.shown}?{self._endpoint}").encode()

    @property
    def hadoop(self) -> str:
        """The address; Hadoop's file system of S3 is ``s3a``. Its credentials are those of the Spark session."""
        return f"s3a://{self._root}" if self.shown.startswith("s3://") else self.shown

    def size(self, name: str) -> int | None:
        """The bytes of a file; None if there is none."""
        return self.sizes(name)[0]

    def sizes(self, *names: str) -> list[int | None]:
        """The bytes of files; None for one that is not there."""
        with self._calls():
            self._forget_lists()
            found = self._system.get_file_info([self._path(name) for name in names])
            return [info.size if info.is_file else None for info in found]

    def read(self, name: str, limit: int) -> tuple[bytes, int]:
        """At most ``limit`` bytes from the beginning of a file, and a size that is larger if there are more."""
        with self._calls(name), self._stream(name) as file:
            raw = file.read(limit)
            return raw, len(raw) + (len(file.read(1)) if len(raw) == limit else 0)

    def hash(self, name: str) -> tuple[int, str]:
        """The size in bytes and the XXH64 of a file."""
        made, size = xxh64(), 0
        with self._calls(name), self._stream(name) as file:
            while piece := file.read(_PIECE):
                made.update(piece)
                size += len(piece)
        return size, made.hexdigest()

    @contextmanager
    def opened(self, name: str) -> Iterator[Any]:
        """The opened file; what is read of it is fetched when it is read."""
        with self._calls(name):
            self._forget_lists()
            with self._system.open_input_file(self._path(name)) as file:
                yield file

    def files(self) -> dict[str, int]:
        """The files below the datasets. Raises ``FileNotFoundError`` if there is no such bucket."""
        found = {}
        for name, size in self.every().items():
            dataset, slash, rest = name.partition("/")
            if slash and dataset in DATASETS and not rest.startswith("_"):
                found[name] = size
        return found

    def every(self) -> dict[str, int]:
        """All files of the target with their sizes in bytes. Raises ``FileNotFoundError`` if there is no bucket."""
        fs = require("arrow", "pyarrow.fs")
        with self._calls():
            self._forget_lists()
            found = self._system.get_file_info(fs.FileSelector(self._root, recursive=True, allow_not_found=True))
            bucket = self._root.partition("/")[0]
            if not found and bucket and self.whole and self._is_absent(bucket):
                raise FileNotFoundError(errno.ENOENT, "there is no such bucket or container", bucket)
            start = len(self._root) + 1
            return {info.path[start:]: info.size for info in found if info.is_file}

    def below(self, directory: str) -> list[str]:
        """The files below a directory of the place."""
        fs = require("arrow", "pyarrow.fs")
        with self._calls(directory):
            self._forget_lists()
            top = fs.FileSelector(self._path(directory), recursive=True, allow_not_found=True)
            return [info.path[len(self._root) + 1 :] for info in self._system.get_file_info(top) if info.is_file]

    @property
    def shared(self) -> bool:
        """Whether another process finds the same files there."""
        return _kind_of(getattr(self._system, "base_fs", self._system)) != "memory"

    def _is_absent(self, bucket: str) -> bool:
        """Whether there is no such bucket. Permissions may be for some of its keys only, and refuse the question."""
        try:
            found = self._system.get_file_info(bucket)
        except OSError:
            return False
        return not found.is_file and found.type.name != "Directory"

    def written(self, name: str) -> str:
        """A name as it is in an address. Of the libraries, only pyarrow has other characters for some."""
        return quote(name) if self._fsspec is None else name

    def dataset(self, names: list[str], schema: pa.Schema) -> Any:
        """Parquet files as a ``pyarrow.dataset.Dataset``, of which a query reads the columns and groups it needs."""
        datasets = require("arrow", "pyarrow.dataset")
        paths = [self._path(name) for name in names]
        return datasets.dataset(paths, schema, format="parquet", filesystem=self._system)

    @property
    def system(self) -> tuple[Any, str]:
        """The file system, and the path of the place in it, without what only gives its paths another beginning."""
        inner = getattr(self._system, "base_fs", None)
        return (self._system, self._root) if inner is None else (inner, f"{self._system.base_path}{self._root}")

    def line(self, error: Exception) -> str:
        """The first line of a library's text, without secrets."""
        return one_line(error, self._secrets)

    # ---- Writing

    def put(self, name: str, staged: Path) -> None:
        """Writes a file from a local one, in the place of an older file.

        It has its name when it is complete. Where a store has no such write, a rename gives it the name; between them
        an older file may be absent for a moment, and its successor has the name with :data:`PART`.
        """
        fs = require("arrow", "pyarrow.fs")
        path = self._path(name)
        written = path if self.whole else path + PART
        with self._calls(name):
            if not self.whole:
                self._system.create_dir(path.rpartition("/")[0], recursive=True)
            if self._fsspec is not None:  # an error inside of copy_files would close the file, as if it were complete
                self._fsspec.put_file(str(staged), written)
            else:
                fs.copy_files(
                    *(str(staged), written),
                    source_filesystem=fs.LocalFileSystem(),
                    destination_filesystem=self._system,
                )
            if not self.whole:
                self._system.move(written, path)
            self._check_size(name, staged.stat().st_size)  # pyarrow ignores some errors of closing a file

    def take(self, staged: str, name: str, size: int) -> None:
        """Gives a complete file of the place, of this size, the name ``name``, without a transfer of its bytes.

        Where a file appears when it is complete this is a copy, and the first one stays. Elsewhere it is a rename.
        """
        with self._calls(name):
            if self.whole:
                self._system.copy_file(self._path(staged), self._path(name))
            else:
                self._system.create_dir(self._path(name).rpartition("/")[0], recursive=True)
                self._system.move(self._path(staged), self._path(name))
            self._check_size(name, size)

    def _check_size(self, name: str, wanted: int) -> None:
        if (size := self.size(name)) != wanted:
            there = "it is not there" if size is None else f"it has {size} bytes"
            raise OSError(errno.EIO, f"{there} after {wanted} bytes were written")

    def finish(self, name: str) -> None:
        """Gives a file its name that a killed :meth:`put` has written whole, where a rename does that."""
        with self._calls(name):
            self._system.move(self._path(name) + PART, self._path(name))

    def fetch(self, name: str, into: Path) -> None:
        """Copies a file into a local one. Raises ``FileNotFoundError``."""
        fs = require("arrow", "pyarrow.fs")
        with self._calls(name):
            fs.copy_files(
                *(self._path(name), str(into)),
                source_filesystem=self._system,
                destination_filesystem=fs.LocalFileSystem(),
            )

    def remove(self, name: str) -> None:
        """Removes a file if it is there, and what a killed :meth:`put` has left of it."""
        for one in (name,) if self.whole else (name, name + PART):
            with self._calls(name), suppress(FileNotFoundError):
                self._system.delete_file(self._path(one))

    # ---- Errors

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _stream(self, name: str) -> Any:
        self._forget_lists()
        return self._system.open_input_stream(self._path(name))

    def _forget_lists(self) -> None:
        """Some of fsspec's file systems remember lists, also for the sizes of files; others have changed them since."""
        if self._fsspec is not None:
            self._fsspec.invalidate_cache()

    @contextmanager
    def _calls(self, name: str | None = None) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            if error.filename is None and name is not None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), f"{self}/{name}") from None
            raise
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001 - each of fsspec's libraries raises exceptions of its own
            where = None if name is None else f"{self}/{name}"
            code = error.errno if isinstance(error, OSError) and error.errno else errno.EIO
            raise OSError(code, one_line(error, self._secrets), where) from None

    def _said(self, error: OSError) -> str:
        return (
            f"the export to {self} failed ({told(error)}): check the address, the network, the credentials and the "
            "permissions"
        )


def inside(target: str | os.PathLike[str]) -> list[str | Path]:
    """The targets that lie in this directory or address, by name; none if it is a target itself."""
    place = place_of(target)
    if isinstance(place, LocalPlace):
        root = place.path.absolute()
        return [] if (root / MANIFEST).exists() else sorted(one.parent for one in root.glob(f"*/{MANIFEST}"))
    assert isinstance(place, RemotePlace)
    with place.explained():
        names = [name for name in place.every() if name.rpartition("/")[2] == MANIFEST]
    before, mark, query = str(target).partition("?")
    tops = [] if MANIFEST in names else sorted(name.partition("/")[0] for name in names if name.count("/") == 1)
    return [f"{before.rstrip('/')}/{place.written(top)}{mark}{query}" for top in tops]


def place_of(target: object, filesystem: Any = None) -> Place:
    """The place that a caller names: a path, an address, a path in ``filesystem`` (pyarrow's), or a place.

    Nothing is read. Raises ``OptionError`` for anything else, for an address of an unknown kind and for one that its
    library refuses, and :class:`~logstore.core.extras.MissingExtra` if that library is not installed.
    """
    if isinstance(target, Place):
        return target
    if filesystem is not None:
        fs = require("arrow", "pyarrow.fs")
        arguments.instance("filesystem", filesystem, fs.FileSystem, what="a pyarrow.fs.FileSystem")
        root = arguments.text("target", target)
        return _placed(filesystem, root, f"{_kind_of(filesystem)}://{root.lstrip('/')}")
    if not is_address(target):
        return LocalPlace(arguments.path("target", target))
    address = arguments.text("target", target)
    shown, secrets = without_secrets(address)
    try:
        system, root = _resolved(address, shown)
    except StoreError:
        raise
    except Exception as error:  # noqa: BLE001 - each library refuses an address in its own way
        what = one_line(error, (address, *secrets))
        raise OptionError(f"the target {shown} cannot be used ({what}): check the address") from None
    if not root.strip("/"):
        raise OptionError(f"the target {shown} is a whole file system: name a bucket, and a path in it")
    endpoint = dict(parse_qsl(urlsplit(address).query)).get("endpoint_override")
    return _placed(system, root, shown, (address, *secrets), endpoint)


def _placed(system: Any, root: str, shown: str, secrets: Iterable[str] = (), endpoint: str | None = None) -> Place:
    if _kind_of(system) in ("local", "file"):
        return LocalPlace(arguments.path("target", root))
    return RemotePlace(system, root, shown, secrets, endpoint)


def _kind_of(system: Any) -> str:
    """Its name in addresses: of those that fsspec has for it, the first."""
    handler = getattr(system, "handler", None)
    if isinstance(handler, require("arrow", "pyarrow.fs").FSSpecHandler):
        names = handler.fs.protocol
        return str(names if isinstance(names, str) else names[0])
    return str(system.type_name.rpartition("+")[2])


def _resolved(address: str, shown: str) -> tuple[Any, str]:
    """The file system and the path in it: pyarrow's, or one of fsspec's if pyarrow has none for this address."""
    arrow, fs = require("arrow", "pyarrow"), require("arrow", "pyarrow.fs")
    try:
        system, root = fs.FileSystem.from_uri(address)
        return system, root
    except NotImplementedError:
        pass  # this pyarrow was built without it
    except arrow.ArrowInvalid as error:
        if "nrecognized filesystem type" not in str(error):
            raise
    kind = shown.partition(":")[0]
    try:
        fsspec: Callable[..., tuple[Any, str]] = late("fsspec.core").url_to_fs
        inner, root = fsspec(address)
    except ImportError as error:
        what = one_line(error, (address,))
        raise OptionError(
            f"the target {shown} needs a Python package that is not installed ({what}): install it, or choose another "
            "target"
        ) from None
    except ValueError as error:
        if "rotocol not known" not in str(error):
            raise
        raise OptionError(
            f"the target {shown} is of a kind that neither pyarrow nor fsspec knows, {kind}://; a target is a "
            "directory, or an address such as s3://bucket/path"
        ) from None
    if "local" in (inner.protocol if isinstance(inner.protocol, tuple) else (inner.protocol,)):
        return fs.LocalFileSystem(), root
    return fs.PyFileSystem(fs.FSSpecHandler(inner)), root
