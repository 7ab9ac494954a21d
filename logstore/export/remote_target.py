"""A target of an export that is not a local directory: an object store, or another file system of pyarrow or fsspec.

Nothing can be locked or renamed there, so a run writes whole files under names that no other file ever has: they end
with a token of the commit. The manifest is one file. When it is written, the run is part of the export.

A commit writes ``_upload.json``, an intent that names the files to come and those that go; then the files; then the
manifest; then it removes the files that the new manifest does not name, and at last the intent. A kill leaves the
intent. The next run finds out by the manifest whether that run was committed, and removes what is left of it. So files
that neither the manifest nor an intent names are never those of a killed run, and are refused as in a local target.

Other processes can write files for a run (:meth:`RemoteTarget.begin_tasks`): below ``_staging``, where no reader looks.
The commit gives them their names by copies that the store makes. What a killed run or a late process leaves there is
removed by the next run.

One run at a time writes to a target. In a machine a lock in the store's directory sees to that. Between machines
nothing can, but each run looks before it writes the manifest, and again after it, whether its intent and the manifest
that it continues are still there. A run that finds those of another one fails, and has changed nothing; the other
one's rows are the same rows. Only if a run stands still between that look and the arrival of its manifest, while
another begins, its manifest may name files that the other has removed. The look after it tells that, and every run
and reader refuses the export then: it is damaged, but never has a row twice or silently lacks one.

Invariants: no file of an export is ever written twice under one name. The manifest that stands names only complete
files.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import shutil
import stat
import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from xxhash import xxh64_hexdigest

from logstore.core.regular_files import lock_regular
from logstore.errors import StoreError
from logstore.export.manifest import (
    INTENT,
    MANIFEST,
    STAGING,
    UPLOAD,
    ExportDamaged,
    ExportError,
    ExportLocked,
    FileInfo,
    Intent,
    Manifest,
)
from logstore.export.places import PART, LocalPlace, Place, RemotePlace
from logstore.export.target import Target, checked_manifest, read_document
from logstore.inspect import LogRecycled

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from logstore.export.target import Catalogs

__all__ = ["RemoteTarget", "open_target"]

_NO_LOCK: Final = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})


def open_target(place: Place, store_dir: Path, catalogs: Catalogs = tuple) -> Target:
    """The locked target, local or not. Raises the errors of :class:`~logstore.export.target.Target`."""
    if isinstance(place, RemotePlace):
        return RemoteTarget(place, store_dir, catalogs)
    assert isinstance(place, LocalPlace)
    return Target(place.path, store_dir, catalogs)


class RemoteTarget(Target):
    """A target that is not a local directory."""

    place: RemotePlace

    def __init__(self, place: RemotePlace, store_dir: Path, catalogs: Catalogs = tuple) -> None:
        self.place = place
        self._catalogs_of = catalogs
        self.renew = lambda: None
        self._lock = self._directory = -1
        self._name = f"export-{xxh64_hexdigest(place.key)}"
        self._store_dir = store_dir
        self._scratch: Path | None = None
        self._uploaded: dict[FileInfo, str] = {}
        self._raw: bytes | None = None  # of the manifest that this run continues
        with place.explained():
            self._take_lock()
            try:
                self.manifest = self._recover()
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        """Removes what is left in the staging directory and releases the lock. A second call does nothing."""
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)
            self._scratch = None
        if self._directory >= 0:
            os.close(self._directory)
            self._directory = -1
        super().close()

    def _take_lock(self) -> None:
        """Locks this target for this store in this machine.

        A user that cannot write into the store's directory locks the directory itself, for all targets; the others
        share that lock.
        """
        self._directory = os.open(self._store_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._lock_directory(fcntl.LOCK_SH)
            self._lock_file()
        except BaseException:
            self.close()
            raise

    def _lock_directory(self, how: int) -> None:
        try:
            fcntl.flock(self._directory, how | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ExportLocked(f"another export of {self._store_dir} is running: wait until it has ended") from None

    def _lock_file(self) -> None:
        try:
            flags = os.O_RDWR | os.O_CREAT
            self._lock = lock_regular(self._store_dir / f"{self._name}.lock", fcntl.LOCK_EX, flags, 0o666)
        except BlockingIOError:
            raise ExportLocked(f"another export writes to {self.place}: wait until it has ended") from None
        except OSError as error:
            if error.errno not in _NO_LOCK:
                raise StoreError(f"{self._store_dir} cannot be locked for an export: {error.strerror}") from error
            self._lock_directory(fcntl.LOCK_EX)

    # ---- Staging, in this machine

    def _staging(self) -> Path:
        """A directory of this user for what is written before it goes to the target; a killed run's is used again."""
        if self._scratch is None:
            store = xxh64_hexdigest(os.fsencode(os.path.realpath(self._store_dir)))
            path = Path(tempfile.gettempdir()) / f"logstore-{self._name}-{store}-{os.getuid()}"
            try:
                with suppress(FileExistsError):
                    os.mkdir(path, 0o700)
                found = os.lstat(path)
                if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
                    raise PermissionError(errno.EACCES, "it is not a directory of this user", str(path))
                for left in path.iterdir():
                    shutil.rmtree(left)
                for name in ("staged", "parts"):
                    os.mkdir(path / name)
            except OSError as error:
                raise ExportError(
                    f"the files for {self.place} cannot be written to {path} first ({error.strerror}): correct that, "
                    "or name another directory in TMPDIR"
                ) from error
            self._scratch = path
        return self._scratch

    def begin(self) -> Path:
        """Returns the empty local directory in which a run writes its files."""
        staged = self._staging() / "staged"
        for left in staged.iterdir():
            left.unlink()
        return staged

    def begin_tasks(self) -> str:
        """Returns the directory of the target below which other processes write the files of the next commit."""
        return f"{STAGING}/{secrets.token_hex(8)}"

    def add_uploaded(self, files: Mapping[FileInfo, str]) -> None:
        """Tells where the next commit finds files that other processes have written."""
        self._uploaded.update(files)

    def part(self, part: FileInfo) -> Path:
        """A local copy of a part of the open set."""
        copy = self._staging() / "parts" / part.staged
        self.place.fetch(part.path, copy)
        return copy

    # ---- Commit

    def commit(self, manifest: Manifest, files: list[FileInfo]) -> None:
        """Commits a run: ``files`` are staged, and ``manifest`` lists them and all earlier files.

        The run belongs to the export as soon as the manifest is there, at the latest on return.
        """
        token = secrets.token_hex(8)
        named = {file: file.with_token(token) for file in files}
        manifest = replace(
            manifest,
            files=tuple(named.get(file, file) for file in manifest.files),
            open=tuple(named.get(part, part) for part in manifest.open),
        )
        raw = manifest.encode()
        earlier = set() if self.manifest is None else self.manifest.paths()
        removed = sorted(earlier - manifest.paths())
        intent = Intent(xxh64_hexdigest(raw), tuple(named.values()), tuple(removed)).encode()
        with self.place.explained():
            self._check_alone(None)
            self._put(UPLOAD, intent)
            for file, wanted in named.items():
                with suppress(LogRecycled):  # these rows were read; who reads the log next is told
                    self.renew()
                if file in self._uploaded:
                    self.place.take(self._uploaded[file], wanted.path, file.bytes)
                else:
                    self.place.put(wanted.path, self._staging() / "staged" / file.staged)
            try:
                self._check_alone(intent)
            except ExportLocked:
                ours = [file.path for file in named.values()]  # of which the other run knows some at most
                self._remove_all([*ours, UPLOAD] if read_document(self.place, UPLOAD) == intent else ours)
                raise
            self._put(MANIFEST, raw)
            self._raw, self.manifest = raw, manifest
            self._check_alone(intent)
            self._register_before(removed)
            self._remove_all([*removed, UPLOAD])
            self._remove_all(self._uploaded.values())
            self._uploaded.clear()

    def _put(self, name: str, content: bytes) -> None:
        path = self._staging() / "parts" / name
        path.write_bytes(content)
        self.place.put(name, path)

    def _check_alone(self, intent: bytes | None) -> None:
        """Raises ``ExportLocked`` unless the target has this run's manifest and intent."""
        if (read_document(self.place, UPLOAD), read_document(self.place, MANIFEST)) != (intent, self._raw):
            raise ExportLocked(
                f"another program writes to {self.place}, perhaps on another machine: let only one export write to a "
                "target, wait until it has ended, and run this again. logstore export --verify checks the target"
            )

    def _remove_all(self, names: Iterable[str]) -> None:
        for name in names:
            self.place.remove(name)

    # ---- After a kill

    def _recover(self) -> Manifest | None:
        self.catalogs = list(self._catalogs_of())
        raw = self._intent()
        if raw is None:
            self._raw = read_document(self.place, MANIFEST)
        else:
            self._clear(Intent.decode(raw, f"{self.place}/{UPLOAD}"))
        return self._checked()

    def _intent(self) -> bytes | None:
        raw = read_document(self.place, UPLOAD)
        if raw is None and not self.place.whole:
            raw = read_document(self.place, UPLOAD + PART)
            try:
                if raw is not None:
                    Intent.decode(raw, UPLOAD)
            except ExportDamaged:
                return None  # a kill cut it off, and nothing else was written
        return raw

    def _clear(self, intent: Intent) -> None:
        """Removes what a killed run has left: its files, or, if it was committed, those that it was to remove."""
        raw = read_document(self.place, MANIFEST)
        if raw is None and not self.place.whole:
            made = read_document(self.place, MANIFEST + PART)
            if made is not None and xxh64_hexdigest(made) == intent.manifest_xxh64:
                self.place.finish(MANIFEST)  # not written again: a kill would leave no copy
                raw = made
        self._raw = raw
        committed = xxh64_hexdigest(raw or b"") == intent.manifest_xxh64
        named = set() if raw is None else Manifest.decode(raw, f"{self.place}/{MANIFEST}").paths()
        left = [path for path in (intent.removed if committed else (f.path for f in intent.files)) if path not in named]
        if not committed:
            # If that run is alive in another machine, it finds this in the place of its own intent, and fails.
            taken = Intent(xxh64_hexdigest(raw or b""), (), tuple(left)).encode()
            self._put(UPLOAD, taken)
            self._check_alone(taken)
        else:
            self._register_before(left)
        self._remove_all([*left, UPLOAD])

    def _checked(self) -> Manifest | None:
        self._remove_all(self.place.below(STAGING))
        if self.place.size(INTENT) is not None:
            raise ExportDamaged(
                f"{self.place}/{INTENT} is of a run to a local directory that was interrupted before it was copied "
                "here: run the export to that directory again, and copy it again"
            )
        return checked_manifest(self.place)
