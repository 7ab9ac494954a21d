"""``store.backup(target)`` and ``logstore backup``: a whole copy of a store, with or without a running writer.

First the log is copied, from the base up to the LSN that was durable when the copy began; a hold keeps the log
meanwhile. Then the catalog is copied. The core verifies every batch before it is written. The unused end of each
segment is zeros in the copy, so copies of the same state are byte-identical. The copy is made in a directory next to
the target, forced to disk, and renamed as the last step. So a crash at any moment leaves either no target or a whole
backup.

The backup has the UUID of its store and opens without further files. That of a copy of a replicated store ends where a
majority's log was known to end, and is a single store: the core appends the batch that ends replication, and its
catalog gets the changes of the log that the copy's catalog lacked.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from logstore._core import ffi, lib
from logstore.backup.place import building_place
from logstore.catalog.backends import FILE_NAME
from logstore.catalog.copy import copy_catalog
from logstore.codec.files import SEGMENT_HEADER_BYTES, Closed, Meta, SegmentHeader, decode_segment
from logstore.codec.records import Batch, InvalidRecord, Record, RecordFlag, RecordType
from logstore.core import arguments
from logstore.core.directory import lies_in
from logstore.core.native import check
from logstore.core.regular_files import as_store_error, force_directory, naming, read_start, told
from logstore.errors import CatalogMismatch, CorruptLog, NotAStore, OptionError, StoreError
from logstore.holds import LIMIT_BYTES, LIMIT_BYTES_MAX, Hold, hold
from logstore.inspect import LogRecycled, Reader, SegmentInfo, segment_name
from logstore.inspect.catalog_changes import take_undurable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from logstore.inspect import BatchBytes, ReaderInfo

__all__ = ["BackupPlan", "BackupReport", "back_up", "plan_backup"]

RATE_MAX: Final = 1e15  # bytes per second
HOLD_S: Final = 3600.0  # long enough for a machine that sleeps; the hold ends with this process anyway
RENEWED_AFTER_S: Final = 60.0
PIECE_BYTES: Final = 1 << 20
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_COPIES: Final = frozenset(
    {
        RecordType.MESSAGE_RELOCATED,
        RecordType.MESSAGE_RELOCATED_PLACED,
        RecordType.TX_RELOCATED,
        RecordType.FILLER,
    }
)
_ZEROS: Final = bytes(PIECE_BYTES)
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class BackupPlan:
    """The extent of a backup made now."""

    lsn: int
    """The durable LSN, up to which the log would be copied."""
    bytes: int
    segments: int
    free_bytes: int
    """Free bytes for this user on the target's file system."""


@dataclass(frozen=True, slots=True)
class BackupReport:
    """The result of a backup."""

    target: Path
    lsn: int
    """The backup contains exactly the log below this LSN."""
    base_lsn: int
    """The first LSN of its log."""
    bytes: int
    """Bytes of all its files."""
    segments: int
    seconds: float


def plan_backup(
    store_dir: str | os.PathLike[str],
    target: str | os.PathLike[str],
) -> BackupPlan:
    """What :func:`back_up` would copy, and how much room there is. Nothing is made.

    Raises the same errors, but reads only what is needed to know the log's size.
    """
    source, goal = arguments.path("store_dir", store_dir), arguments.path("target", target)
    with as_store_error(f"a backup of {source} to {goal} is not possible"):
        _check_target(source, goal)
        with Reader(source) as reader:
            parts = _parts(reader)
            size = len(parts) * reader.info.segment_size + _other_bytes(source)
            return BackupPlan(reader.info.end_lsn, size, len(parts), _free_bytes(goal.absolute().parent))


def back_up(
    store_dir: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    connect: str | None = None,
    catalog: str | None = None,
    rate_bytes_s: float | None = None,
    hold_limit_bytes: int | None = None,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> BackupReport:
    """Copies the store to ``target``, an absent or empty directory, at no more than ``rate_bytes_s`` bytes per second.

    ``connect`` and ``catalog`` name the catalog if it is on a server. While a writer runs, the hold keeps at most
    ``hold_limit_bytes`` (default 1 GiB, or the log's size if that is more) in addition to what the store itself needs.
    ``progress`` is called with the bytes done and the total bytes.

    Raises ``OptionError`` for an unsuitable target, ``CorruptLog`` if the log is damaged, ``LogRecycled`` if the hold's
    limit was reached, the catalog's errors, and ``StoreError`` if the system refuses an operation, for example because
    the disk is full. After any error, no backup was made.
    """
    source, goal = arguments.path("store_dir", store_dir), arguments.path("target", target)
    arguments.catalog(connect, catalog, called="catalog")
    rate = arguments.optional(arguments.number, "rate_bytes_s", rate_bytes_s, 0, RATE_MAX, "bytes a second")
    arguments.optional(arguments.integer, "hold_limit_bytes", hold_limit_bytes, 1, LIMIT_BYTES_MAX)
    arguments.function("progress", progress)
    with as_store_error(f"a backup of {source} to {goal} is not possible"):
        _check_target(source, goal)
    started = time.monotonic()
    try:
        with _hold_of(source, hold_limit_bytes) as held, Reader(source, hold=held) as reader:
            copy = _Copy(source, goal, reader, held, _Pace(rate), progress)
            return copy.make(connect, catalog, started)
    except CorruptLog as error:
        error.message += "; no backup was made"
        error.args = (error.message,)
        raise
    except LogRecycled as error:
        raise LogRecycled(f"{error.message}; no backup was made: raise the hold limit or the rate limit") from error


# ---- The target


def _check_target(source: Path, target: Path) -> None:
    if not (source / "META").is_file():
        Reader(source).close()  # raises the specific error
        raise NotAStore(f"{source} is not a store: it has no META file; check the path")
    try:
        status = target.lstat()
    except FileNotFoundError:
        status = None
    except OSError as error:
        raise OptionError(f"the target {target} cannot be accessed: {error.strerror}; choose another place") from error
    if status is not None and not stat.S_ISDIR(status.st_mode):
        raise OptionError(f"the target {target} exists and is not a directory; choose an absent or empty directory")
    parent = target.absolute().parent
    if not parent.is_dir():
        raise OptionError(f"the directory {parent} does not exist; make it, or choose another target")
    if lies_in(parent, source) or lies_in(target, source):
        raise OptionError(f"the target {target} is inside the store {source}; choose a place outside")
    if status is not None and any(os.scandir(target)):
        raise OptionError(f"the target {target} is not empty; choose an absent or empty directory")


def _free_bytes(directory: Path) -> int:
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize


def _other_bytes(source: Path) -> int:
    """Bytes of META, CLOSED, and the catalog if it is a file of the store."""
    with contextlib.suppress(OSError):
        return Meta.BYTES + Closed.BYTES + (source / FILE_NAME).stat().st_size
    return Meta.BYTES + Closed.BYTES


# ---- The source


@contextlib.contextmanager
def _hold_of(source: Path, limit_bytes: int | None) -> Iterator[Hold | None]:
    if limit_bytes is None:
        with Reader(source, from_lsn=(1 << 63) - 1) as reader:
            limit_bytes = max(LIMIT_BYTES, reader.info.log_bytes)
    name = f"backup-{os.getpid()}-{secrets.token_hex(4)}"
    try:
        held = hold(source, name, limit_bytes=limit_bytes, expires_s=HOLD_S)
    except StoreError as error:
        if isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EROFS:
            yield None  # on a read-only file system there is no writer, so no hold is needed
            return
        raise
    with held:
        yield held


def _parts(reader: Reader) -> list[SegmentInfo]:
    """The segments that contain a part of the log. After a crash the last segment may contain none."""
    return [one for one in reader.segments() if one.end_lsn >= one.first_lsn + SEGMENT_HEADER_BYTES]


class _Pace:
    """Limits the average rate of the whole copy, in bytes per second."""

    def __init__(self, rate_bytes_s: float | None) -> None:
        self._rate = rate_bytes_s
        self._started = time.monotonic()

    def wait(self, done: int, tick: Callable[[], None]) -> None:
        """Waits until the rate allows ``done`` bytes, and calls ``tick`` about once per second."""
        if self._rate is None:
            return
        while (left := self._started + done / self._rate - time.monotonic()) > 0:
            time.sleep(min(left, 1.0))
            tick()


class _Copy:
    """One backup in progress."""

    def __init__(
        self,
        source: Path,
        target: Path,
        reader: Reader,
        held: Hold | None,
        pace: _Pace,
        progress: Callable[[int, int], None],
    ) -> None:
        self._source = source
        self._target = target
        self._reader = reader
        self._info: ReaderInfo = reader.info
        self._held = held
        self._pace = pace
        self._progress = progress
        self._renewed = time.monotonic()
        self._parts = _parts(reader)
        self._total = len(self._parts) * self._info.segment_size + _other_bytes(source)
        self._done = 0
        self._last: BatchBytes | None = None

    def make(self, connect: str | None, schema: str | None, started: float) -> BackupReport:
        """Makes the whole backup. It has the target's name on return."""
        with self._explained():
            free = _free_bytes(self._target.absolute().parent)
        if free < self._total:
            raise StoreError(
                f"the backup needs {self._total} bytes, but {self._target.absolute().parent} has only {free} free: "
                "make room, or choose another target"
            )
        with self._explained(), building_place(self._target) as place:
            self._copy_log(place)
            kept = self._drop_dead_segments(place)
            others = self._copy_other_files(place)
            replicated = self._is_replicated()
            made = self._detach(place) if replicated else len(kept)
            others += copy_catalog(
                self._source,
                place,
                store_uuid=self._info.uuid.bytes,
                live=self._info.live,
                connect=connect,
                schema=schema,
                tick=self._tick,
                complete=lambda: self._complete_catalog(place) if replicated else None,
            )
            self._check(place)
            self._progress(self._total, self._total)
            force_directory(place)
            os.rename(place, self._target)  # replaces an empty directory, or nothing
        self._force_name()
        return BackupReport(
            target=self._target,
            lsn=self._info.end_lsn,
            base_lsn=kept[0].first_lsn,
            bytes=made * self._info.segment_size + others,
            segments=made,
            seconds=time.monotonic() - started,
        )

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in _FULL:
                said = f"the disk of the target {self._target} is full: make room, or choose another target"
            elif error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                said = f"another process has put files into the target {self._target} meanwhile: choose another target"
            else:
                said = f"the backup to {self._target} failed ({told(error)}): check the disk and the permissions"
            raise StoreError(f"{said}. No backup was made") from error

    def _force_name(self) -> None:
        parent = self._target.absolute().parent
        try:
            force_directory(parent)
        except OSError as error:
            raise StoreError(
                f"the backup {self._target} is complete, but its name could not be forced to disk ({error.strerror}): "
                f"check the disk of {parent}, and whether the backup is still there"
            ) from error

    # ---- the log

    def _copy_log(self, place: Path) -> None:
        batches = self._reader.batches()
        batch = next(batches, None)
        for part in self._parts:
            if self._held is not None and part.first_lsn > self._held.lsn:
                self._held.advance(part.first_lsn)  # everything below has been copied
                self._renewed = time.monotonic()
            with _new_file(place / part.name) as file:
                self._write(file, self._header_of(part))
                at = part.first_lsn + SEGMENT_HEADER_BYTES
                while batch is not None and batch.first_lsn == part.first_lsn:
                    if batch.lsn != at or batch.end_lsn > part.end_lsn:
                        raise self._gap(part, at)
                    self._write(file, batch.raw)
                    at, self._last = batch.end_lsn, batch
                    batch = next(batches, None)
                if at != part.end_lsn:
                    raise self._gap(part, at)
                self._fill(file, part.first_lsn + self._info.segment_size - at)
                os.fsync(file)
        if batch is not None:
            raise StoreError(f"the segments of {self._source} changed while they were copied: run the backup again")

    def _gap(self, part: SegmentInfo, lsn: int) -> CorruptLog:
        return CorruptLog(
            "the valid batches end before the end of the segment's part of the log",
            segment=part.name,
            offset=lsn - part.first_lsn,
            lsn=lsn,
        )

    def _header_of(self, part: SegmentInfo) -> bytes:
        try:
            raw = _read_file(self._source / part.name, SEGMENT_HEADER_BYTES)
        except FileNotFoundError:
            raise LogRecycled(f"segment {part.name} of {self._source} was reused before it was copied") from None
        try:
            header = SegmentHeader.decode(raw)
        except InvalidRecord as error:
            raise self._bad_header(part, error.reason) from None
        expected = self._info.uuid, self._info.segment_size, part.first_lsn, part.epoch
        if (header.uuid, header.segment_size, header.first_lsn, header.epoch) != expected:
            raise self._bad_header(part, "it belongs to another segment")
        return raw

    def _bad_header(self, part: SegmentInfo, why: str) -> CorruptLog:
        return CorruptLog(f"the segment's header is not valid ({why})", segment=part.name, offset=0, lsn=part.first_lsn)

    def _drop_dead_segments(self, place: Path) -> list[SegmentInfo]:
        """Removes segments below the base that the last batch names; the hold began at an earlier base."""
        newest = self._newest()
        if newest is None:
            return self._parts
        for part in self._parts:
            if part.first_lsn < newest.base_lsn:
                (place / part.name).unlink()
        return [part for part in self._parts if part.first_lsn >= newest.base_lsn]

    # ---- the rest

    def _copy_other_files(self, place: Path) -> int:
        meta = _read_file(self._source / "META", Meta.BYTES)
        try:
            uuid = Meta.decode(meta).uuid
        except InvalidRecord as error:
            raise CorruptLog(f"META is damaged ({error.reason})", segment="", offset=0, lsn=0) from None
        if uuid != self._info.uuid:
            raise StoreError(f"{self._source} was replaced by another store while it was copied: run the backup again")
        files = {"META": meta, "LOCK": b""}
        with contextlib.suppress(FileNotFoundError, InvalidRecord):
            raw = _read_file(self._source / "CLOSED", Closed.BYTES)
            closed = Closed.decode(raw)
            if closed.uuid == uuid and closed.end_lsn <= self._info.end_lsn:  # otherwise it is from a later close
                files["CLOSED"] = raw
        for name, content in files.items():
            with _new_file(place / name) as file:
                self._write(file, content)
                os.fsync(file)
        return sum(map(len, files.values()))

    def _newest(self) -> Batch | None:
        """The batch record with which the copied log ends."""
        if self._last is None:
            return None
        first = next(self._reader._decode(self._last)).body
        assert isinstance(first, Batch)
        return first

    def _is_replicated(self) -> bool:
        newest = self._newest()
        return newest is not None and newest.index != 0

    def _detach(self, place: Path) -> int:
        """Makes the backup of a replicated store's copy a single store: a further segment says that all of it counts.

        Returns the number of segments then.
        """
        options = ffi.new("ls_options *")
        lib.ls_options_default(options)
        options.create = options.background = False
        options.initial_segments = 1
        try:
            check(lib.ls_backup_detach(ffi.NULL, os.fsencode(place), options))
        except StoreError as error:
            raise StoreError(
                f"the backup of {self._source} cannot be made a single store ({error.message}). No backup was made"
            ) from error
        (place / "HINT").unlink()
        (place / "holds").rmdir()
        with Reader(place) as made:
            log = {one.name for one in made.segments()}
        for spare in place.glob("*.seg"):
            if spare.name not in log:
                spare.unlink()
        return len(log)

    def _complete_catalog(self, place: Path) -> None:
        """Gives the copied catalog the changes of the copied log that the copy's own catalog had not made yet.

        In a single store no reader would use them. What lies below the base is still in the source.
        """
        try:
            take_undurable(place, below_base_in=self._source)
        except CatalogMismatch as error:
            said = error.message.replace(str(place), str(self._source))
            raise CatalogMismatch(f"{said}. No backup was made") from error

    def _check(self, place: Path) -> None:
        """Reads the copy as the next open will read it, and checks that its log ends at the expected LSN."""
        last = self._last
        try:
            with Reader(place) as made:
                found = made.segments()[-2].end_lsn if self._is_replicated() else made.info.end_lsn
        except StoreError as error:
            raise StoreError(f"the backup of {self._source} cannot be read back ({error.message})") from error
        if last is None or found == last.end_lsn or self._ends_in_copies(place, last, found):
            return
        raise StoreError(f"the backup of {self._source} ends at LSN {found} and not at {last.end_lsn}: check the disk")

    def _ends_in_copies(self, place: Path, last: BatchBytes, found: int) -> bool:
        """Whether the log lacks only a last segment of relocated copies. An open may ignore such a segment: the
        originals are still there, so it contains nothing new.
        """
        before = [part.end_lsn for part in self._parts if part.first_lsn < last.first_lsn]
        if not before or found != before[-1]:
            return False
        segment = decode_segment(
            _read_file(place / segment_name(last.lsn, self._info.segment_size), self._info.segment_size)
        )
        copies = all(inside and all(map(_is_copy, inside)) for _, inside in segment.batches)
        return segment.stop.lsn == last.end_lsn and copies

    # ---- writing

    def _write(self, file: int, content: bytes) -> None:
        view = memoryview(content)
        while view:
            view = view[os.write(file, view[:PIECE_BYTES]) :]
        self._done += len(content)
        self._pace.wait(self._done, self._tick)
        self._tick()
        self._progress(min(self._done, self._total), self._total)

    def _fill(self, file: int, size: int) -> None:
        while size > 0:
            self._write(file, _ZEROS[: min(size, PIECE_BYTES)])
            size -= min(size, PIECE_BYTES)

    def _tick(self) -> None:
        if self._held is not None and time.monotonic() - self._renewed > RENEWED_AFTER_S:
            self._held.renew()
            self._renewed = time.monotonic()


def _is_copy(record: Record) -> bool:
    return record.type in _COPIES or RecordFlag.COPY in RecordFlag(record.flags)


@contextlib.contextmanager
def _new_file(path: Path) -> Iterator[int]:
    file = os.open(path, _NEW, 0o600)
    try:
        with naming(path):
            yield file
    finally:
        os.close(file)


def _read_file(path: Path, size: int) -> bytes:
    return read_start(path, size)[0]
