"""Reads a catalog that no process has open, without changing it and without leaving files behind.

SQLite makes files next to a database that it reads, unless it is told that the database is immutable. A catalog that
consists of its one file is read in place, as immutable. A catalog that a crash left with a write-ahead log or a
rollback journal is copied first (at most COPY_BYTES_MAX bytes), and SQLite recovers the copy.

The contents always come from one state of the files. If a process is killed, its copy is removed when the next copy is
made in the same directory.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from logstore.catalog.backends import FILE_NAME, SIDE_NAMES, SqliteFile
from logstore.core.imports import late
from logstore.core.regular_files import open_regular, read_start, told
from logstore.errors import CatalogUnavailable, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")
Stamps = dict[str, tuple[int, int, int]]

COPY_BYTES_MAX: Final = 4 << 30
_WAL, _SHM, _JOURNAL = SIDE_NAMES
TRIES: Final = 5  # if the catalog changes while it is read
_PREFIX: Final = ".catalog-"
_OURS: Final = re.compile(re.escape(_PREFIX) + r"[a-z0-9_]{8}")
_PIECE_BYTES: Final = 1 << 20


def read_at_rest(store_dir: Path, read: Callable[[Path, bool], T], *, copies_in: Path | None = None) -> T:
    """Calls ``read`` for the catalog of a store that no writer has open, and returns its result.

    ``read`` gets the directory that contains the catalog, and True if the file there is the store's own, at rest, or
    False if it is a copy. It is called again if a writer changed the files meanwhile. A copy, if needed, is made in
    ``copies_in`` (by default the system's directory for temporary files). Raises the errors of ``read``,
    ``CatalogUnavailable`` or ``CatalogError``.
    """
    backend = SqliteFile(store_dir, read_only=True)
    for _ in range(TRIES):
        backend.check_files()
        before = _stamps(store_dir)
        try:
            if not any(_is_pending(store_dir / name) for name in before if name in (_WAL, _JOURNAL)):
                found = read(store_dir, True)
            else:
                with _copied(backend, before, copies_in) as copy:
                    found = read(copy, False)
        except StoreError:
            if _stamps(store_dir) == before:
                raise
            continue
        if _stamps(store_dir) == before:
            return found
    raise CatalogUnavailable(f"{backend.where} changed during each of {TRIES} readings: try again at a quieter time")


@contextmanager
def copied_at_rest(store_dir: Path) -> Iterator[Path]:
    """A temporary directory with a copy of the catalog of a store that no writer has open.

    Raises ``CatalogUnavailable``, ``CatalogMismatch`` if there is no catalog, or ``CatalogError``.
    """
    backend = SqliteFile(store_dir, read_only=True)
    backend.check_files()
    with _copied(backend, _stamps(store_dir), None) as copy:
        yield copy


def _is_pending(path: Path) -> bool:
    """Whether a write-ahead log or a journal has a header. SQLite ignores one without a header."""
    try:
        return any(read_start(path, 8)[0])
    except FileNotFoundError:
        return False
    except OSError as error:
        raise CatalogUnavailable(f"{path} cannot be read: {error.strerror}; check the disk") from error


def _stamps(directory: Path) -> Stamps:
    found = {}
    for name in (FILE_NAME, *SIDE_NAMES):
        try:
            status = os.lstat(directory / name)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise CatalogUnavailable(f"the catalog cannot be inspected ({told(error)}); check the disk") from error
        found[name] = status.st_ino, status.st_size, status.st_mtime_ns
    return found


@contextmanager
def _copied(backend: SqliteFile, stamps: Stamps, copies_in: Path | None) -> Iterator[Path]:
    """A directory with a recovered copy of the catalog. Error messages name the original."""
    size = sum(found[1] for found in stamps.values())
    if size > COPY_BYTES_MAX:
        raise CatalogUnavailable(
            f"{backend.where} has changes that SQLite has not written back, and with {size} bytes it is too large to "
            f"be copied for reading (at most {COPY_BYTES_MAX}): open the store once, which writes them back"
        )
    with _scratch(backend, copies_in) as made:
        try:
            for name, (_, bytes_there, _) in stamps.items():
                if name != _SHM:
                    _copy(backend.path.with_name(name), made / name, bytes_there)
        except OSError as error:
            named = error.filename or made
            raise CatalogUnavailable(
                f"{backend.where} cannot be copied for reading ({named}: {error.strerror}): solve that, or set TMPDIR "
                "to a directory with room"
            ) from error
        try:
            _recover(made / FILE_NAME)
            yield made
        except StoreError as error:
            raise type(error)(error.message.replace(str(made), str(backend.path.parent))) from error


def _copy(source: Path, target: Path, size: int) -> None:
    """Copies ``size`` bytes. Pieces of zeros become holes."""
    origin = open_regular(source)
    try:
        copy = open_regular(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            done = 0
            while done < size and (piece := os.pread(origin, min(_PIECE_BYTES, size - done), done)):
                if any(piece):
                    written = 0
                    while written < len(piece):
                        written += os.pwrite(copy, piece[written:], done + written)
                done += len(piece)
            os.truncate(copy, done)
        finally:
            os.close(copy)
    finally:
        os.close(origin)


def _recover(file: Path) -> None:
    """Lets SQLite roll back or write back unfinished changes. Damage stays, and the reader reports it."""
    late("sqlite3")
    import sqlite3

    with suppress(sqlite3.Error), closing(sqlite3.connect(file)) as database:
        database.execute("SELECT count(*) FROM sqlite_master").fetchall()


# ---- Where copies are


@contextmanager
def _scratch(backend: SqliteFile, parent: Path | None) -> Iterator[Path]:
    """A temporary directory, locked while it is used. Those of dead processes are removed first."""
    try:
        parent = Path(tempfile.gettempdir()) if parent is None else parent
        _clear_away(parent)
        made, lock = _locked_directory(parent)
    except OSError as error:
        raise CatalogUnavailable(
            f"{backend.where} cannot be copied for reading ({error.filename or parent}: {error.strerror}): solve that, "
            "or set TMPDIR to another directory"
        ) from error
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
        os.close(lock)


def _locked_directory(parent: Path) -> tuple[Path, int]:
    while True:
        made = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        with suppress(FileNotFoundError, BlockingIOError):  # another process took it for a dead process's directory
            lock = _lock(made)
            if os.path.lexists(made):
                return made, lock
            os.close(lock)


def _lock(directory: Path) -> int:
    lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(lock)
        raise
    return lock


def _clear_away(parent: Path) -> None:
    for entry in os.scandir(parent):
        if _OURS.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
            with suppress(OSError):
                lock = _lock(Path(entry.path))
                try:
                    if os.fstat(lock).st_uid == os.geteuid():
                        shutil.rmtree(entry.path, ignore_errors=True)
                finally:
                    os.close(lock)
