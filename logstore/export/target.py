"""A local target of an export: locked, changed atomically, and recovered after a crash; remote_target.py has others.

A run writes its files into ``_staging`` and forces them to disk. Then ``_intent.json`` is renamed into place: from this
moment the run counts. Then each file is renamed to its place, the manifest last, and the intent is removed. The next
export completes an intent that it finds; without an intent it deletes the staged files. So a crash at any moment leaves
the export as before the run or as after it, once the next export has recovered it.

Invariants: every file outside ``_staging`` is named by the manifest or the intent, and a file of records or messages
is never changed: it is removed once the manifest no longer names it, because retention dropped it or a merged file has
its rows. All names other than data files begin with an underscore, so that Spark and the
patterns ``records/day=*/*.parquet`` of DuckDB and Polars ignore them.
"""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from xxhash import xxh64

from logstore.core.directory import lies_in
from logstore.core.regular_files import force_directory, lock_regular, naming
from logstore.errors import OptionError
from logstore.export.manifest import (
    INTENT,
    LOCK,
    MANIFEST,
    STAGING,
    UPLOAD,
    ExportDamaged,
    ExportLocked,
    FileInfo,
    Intent,
    Manifest,
    is_file_path,
    is_open_path,
)
from logstore.export.places import LocalPlace, Place, place_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType

    Catalog = Callable[[Manifest], object]
    Catalogs = Callable[[], Iterable[Catalog]]

__all__ = ["StagedFile", "Target", "checked_manifest", "read_document", "read_manifest"]

_STAGED_MANIFEST: Final = "manifest.json"
_STAGED_INTENT: Final = "intent.json"
_MANIFEST_BYTES_MAX: Final = 1 << 30
_PIECE: Final = 1 << 20
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class StagedFile:
    """A new file, written sequentially, hashed meanwhile and forced to disk at its end. A file object for writers."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.bytes = 0
        self._hash = xxh64()
        self._kept: list[bytes] = []  # buffered, because writers write many small pieces
        self._kept_bytes = 0
        self._fd = os.open(path, _NEW, 0o666)
        self._abandoned = False

    @property
    def closed(self) -> bool:
        """Whether it is closed."""
        return self._fd < 0

    def writable(self) -> bool:
        """Whether it can be written."""
        return not self.closed

    def tell(self) -> int:
        """The number of bytes written."""
        return self.bytes

    def flush(self) -> None:
        """Does nothing; writers may call it. :meth:`finish` writes everything."""

    def write(self, data: bytes) -> int:
        """Adds bytes to the buffer. Raises ``OSError`` if buffered bytes cannot be written."""
        size = len(data)
        if self._abandoned:
            return size  # a discarded writer may still write something
        self._kept.append(bytes(data))
        self._kept_bytes += size
        self.bytes += size
        if self._kept_bytes >= _PIECE:
            self._write_out()
        return size

    def _write_out(self) -> None:
        content, self._kept, self._kept_bytes = b"".join(self._kept), [], 0
        self._hash.update(content)
        view = memoryview(content)
        with naming(self.path):
            while view:
                view = view[os.write(self._fd, view) :]

    def finish(self) -> str:
        """Writes the rest and forces the file to disk. Returns its XXH64 in hexadecimal."""
        self._write_out()
        fd, self._fd = self._fd, -1
        try:
            with naming(self.path):
                os.fsync(fd)
        finally:
            os.close(fd)
        return self._hash.hexdigest()

    def close(self) -> None:
        """Does nothing; writers call it at their end. The owner calls :meth:`finish`."""

    def abandon(self) -> None:
        """Deletes the file. A second call does nothing."""
        self._abandoned = True
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        with suppress(OSError):
            os.unlink(self.path)


class Target:
    """The target of an export, locked until it is closed. A context manager.

    ``manifest`` describes its contents; None if nothing was exported yet. ``catalogs`` gives functions that are called
    with each manifest that no longer names files of records or messages, when it stands and before they go, also for
    the commit of a killed run. So no catalog names files that are gone. Raises ``OptionError`` for a directory with
    other files, :class:`~logstore.export.manifest.ExportLocked`, ``ExportDamaged``, ``VersionError``, ``ExportError``
    if the system refuses an operation, and the errors of the functions.
    """

    def __init__(self, path: str | os.PathLike[str], store_dir: Path | None = None, catalogs: Catalogs = tuple) -> None:
        self.path = Path(path)
        self.place: Place = LocalPlace(self.path)
        self.staging = self.path / STAGING
        self._catalogs_of = catalogs
        self.catalogs: list[Catalog] = []
        self.renew: Callable[[], object] = lambda: None
        """Called between the files of a commit that takes long: it keeps the hold on the log."""
        self._lock = -1
        if store_dir is not None:
            _check_outside(store_dir, self.path)
        with self.place.explained():
            self._make()
            self._take_lock()
            try:
                self.manifest = self._recover()
            except BaseException:
                self.close()
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Releases the lock. A second call does nothing."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _make(self) -> None:
        """Makes the directory if it does not exist. Refuses a directory with files other than an export."""
        made = False
        with suppress(FileExistsError):
            os.mkdir(self.path)
            made = True
        if made:
            force_directory(self.path.absolute().parent)
            return
        names = set(os.listdir(self.path))
        if names and not names & {LOCK, MANIFEST, INTENT}:
            raise OptionError(
                f"the target {self.path} contains files, but no export; choose an absent or empty directory"
            )

    def _take_lock(self) -> None:
        try:
            self._lock = lock_regular(self.path / LOCK, fcntl.LOCK_EX, os.O_RDWR | os.O_CREAT, 0o666)
        except BlockingIOError:
            raise ExportLocked(f"another export writes to {self.path}: wait until it has ended") from None

    def _recover(self) -> Manifest | None:
        self.catalogs = list(self._catalogs_of())
        raw = read_document(self.place, INTENT)
        if raw is not None:
            intent = Intent.decode(raw, self.path / INTENT)
            self._place(intent)
            self._register_before(intent.removed)
            self._remove(intent)
        self.clear_staging()
        return checked_manifest(self.place)

    def clear_staging(self) -> None:
        """Deletes staged files, which no intent names."""
        with suppress(FileNotFoundError):
            for name in sorted(os.listdir(self.staging)):
                os.unlink(self.staging / name)

    def begin(self) -> Path:
        """Makes the empty staging directory and returns its path."""
        with self.place.explained():
            with suppress(FileExistsError):
                os.mkdir(self.staging)
            self.clear_staging()
            force_directory(self.path)
        return self.staging

    def part(self, part: FileInfo) -> Path:
        """A local file with a part of the open set. Raises ``FileNotFoundError`` if there is none."""
        return self.path / part.path

    def commit(self, manifest: Manifest, files: list[FileInfo]) -> None:
        """Commits a run: ``files`` are staged and forced, and ``manifest`` lists them and all earlier files.

        The run belongs to the export as soon as the intent is in place, at the latest on return.
        """
        with self.place.explained():
            raw = manifest.encode()
            earlier = set() if self.manifest is None else self.manifest.paths()
            removed = sorted(earlier - manifest.paths())
            intent = Intent(self._stage(_STAGED_MANIFEST, raw), tuple(files), tuple(removed))
            self._stage(_STAGED_INTENT, intent.encode())
            force_directory(self.staging)
            os.rename(self.staging / _STAGED_INTENT, self.path / INTENT)
            force_directory(self.path)
            self._place(intent)
            self.manifest = manifest
            self._register_before(removed)
            self._remove(intent)

    def register(self, manifest: Manifest) -> None:
        """Has all catalogs name the files of the manifest. Raises ``ExportError``, ``MissingExtra``."""
        for catalog in self.catalogs:
            catalog(manifest)

    def _register_before(self, removed: Iterable[str]) -> None:
        """Registers the manifest that stands, which no longer names these files, before they go."""
        if self.catalogs and not all(is_open_path(path) for path in removed):
            manifest = read_manifest(self.place)
            assert manifest is not None
            self.register(manifest)

    def _stage(self, name: str, content: bytes) -> str:
        file = StagedFile(self.staging / name)
        try:
            file.write(content)
            return file.finish()
        except BaseException:
            file.abandon()
            raise

    def _place(self, intent: Intent) -> None:
        """Moves all files of the intent to their places; may be repeated after an interruption."""
        directories = {self.path}
        for file in intent.files:
            place = self.path / file.path
            for directory in (place.parent.parent, place.parent):
                if directory not in directories:
                    with suppress(FileExistsError):
                        os.mkdir(directory)
                    directories.add(directory)
            self._move(self.staging / file.staged, place, file.bytes)
        for directory in sorted(directories, key=lambda path: len(path.parts), reverse=True):
            force_directory(directory)
        self._move_manifest(intent)
        force_directory(self.path)

    def _remove(self, intent: Intent) -> None:
        """Removes what the new manifest no longer names, then the intent; may be repeated after an interruption."""
        for path in intent.removed:
            with suppress(FileNotFoundError):  # it was removed before the interruption
                os.unlink(self.path / path)
        for directory in sorted({(self.path / path).parent for path in intent.removed}):
            try:
                force_directory(directory)
                if directory.parent != self.path:  # a day, which may have no file any more
                    os.rmdir(directory)
                    force_directory(directory.parent)
            except FileNotFoundError:
                pass  # it was removed before the interruption
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
        os.unlink(self.path / INTENT)
        force_directory(self.path)

    def _move(self, staged: Path, place: Path, size: int) -> None:
        try:
            os.rename(staged, place)
        except FileNotFoundError:
            try:
                found = os.stat(place, follow_symlinks=False).st_size
            except FileNotFoundError:
                found = -1
            if found != size:
                raise ExportDamaged(
                    f"{place} is missing, or is not the file that an interrupted run wrote: export to a new target"
                ) from None

    def _move_manifest(self, intent: Intent) -> None:
        place = self.path / MANIFEST
        with suppress(FileNotFoundError):  # it was moved before the interruption
            os.rename(self.staging / _STAGED_MANIFEST, place)
        raw = read_document(self.place, MANIFEST)
        if raw is None or xxh64(raw).hexdigest() != intent.manifest_xxh64:
            raise ExportDamaged(f"{place} is not the manifest of the interrupted run: export to a new target")


def read_manifest(target: Place | str | os.PathLike[str]) -> Manifest | None:
    """The manifest of the target; None if there is none."""
    place = place_of(target)
    raw = read_document(place, MANIFEST)
    return None if raw is None else Manifest.decode(raw, f"{place}/{MANIFEST}")


def checked_manifest(target: Place | str | os.PathLike[str]) -> Manifest | None:
    """The manifest of the target, checked against the files that exist.

    Raises :class:`~logstore.export.manifest.ExportDamaged` for missing or additional files of an export: to continue
    would lose rows or write them twice.
    """
    place = place_of(target)
    # This order shows a run that another process completes meanwhile either as not yet begun or as completed.
    found = {name: size for name, size in place.files().items() if is_file_path(name)}
    interrupted = any(place.size(name) is not None for name in intents(place))
    manifest = read_manifest(place)
    named = {} if manifest is None else {file.path: file.bytes for file in (*manifest.files, *manifest.of("open"))}
    strangers = sorted(found.keys() - named.keys()) if not interrupted else []
    strangers = [name for name in strangers if place.size(name) is not None]  # not replaced meanwhile
    if strangers:
        where = f"{place}/{MANIFEST} is missing" if manifest is None else f"{place}/{MANIFEST} does not name all files"
        raise ExportDamaged(
            f"{where}, but {place}/{strangers[0]} was exported{_and_more(strangers)}: another export would duplicate "
            f"its rows. Restore {MANIFEST}, or export to a new target"
        )
    lost = sorted(name for name, size in named.items() if not is_open_path(name) and found.get(name) != size)
    lost = [name for name in lost if place.size(name) != named[name]]
    if lost and read_manifest(place) != manifest:
        return checked_manifest(place)  # a run has removed them meanwhile
    if lost:
        raise ExportDamaged(
            f"{place}/{lost[0]} is missing or damaged{_and_more(lost)}, and no other file has its rows: restore it, or "
            "export to a new target"
        )
    return manifest


def intents(place: Place) -> tuple[str, ...]:
    """The names of what shows that a run is under way, or was interrupted."""
    return (INTENT,) if isinstance(place, LocalPlace) else (UPLOAD, INTENT)


def _and_more(names: list[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""


def _check_outside(store_dir: Path, target: Path) -> None:
    if lies_in(target, store_dir):
        raise OptionError(f"the target {target} is inside the store {store_dir}; choose a place outside")


def read_document(place: Place, name: str) -> bytes | None:
    """The manifest or intent of a target; None if there is none."""
    try:
        raw, size = place.read(name, _MANIFEST_BYTES_MAX)
    except FileNotFoundError:
        return None
    if size > _MANIFEST_BYTES_MAX:
        raise ExportDamaged(f"{place}/{name} is larger than an export ever writes it: restore it")
    return raw
