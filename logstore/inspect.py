"""Looking at a store without opening it: beside its writer, after a close, or after a crash.

What it must never do: take the store's lock, create or change a file in the store, or show a record that the
core's reader has not verified.

What always holds: a reader sees one state of the log, that of the moment at which it was made. Beside a writer
this is what was durable then; after a crash it is what recovery will accept. A writer is not held up, so it may
reuse segments before they were read: that is :class:`LogRecycled`, and the remedy is to begin again.

LSNs, ids and sizes (bytes) are plain ints.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections import deque
from contextlib import closing
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from uuid import UUID

from logstore._core import ffi, lib
from logstore._native import check, failure
from logstore.catalog import Catalog, QueueRow
from logstore.catalog_places import FILE_NAME
from logstore.errors import CorruptLog, OptionError, StoreClosed, StoreError, VersionError
from logstore.records import LSN_LIMIT, InvalidRecord, NewerVersion, Record, decode_record, segment_seed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from logstore.holds import Hold

__all__ = [
    "BatchBytes",
    "CatalogView",
    "LogRecycled",
    "Reader",
    "ReaderInfo",
    "SegmentInfo",
    "read_catalog",
    "segment_name",
]

READ_AHEAD_BYTES = 64 << 20  # beside a writer: taken from the disk at once, before it is looked at
COPY_TRIES = 5  # a catalog that changes while it is copied is copied again


class LogRecycled(StoreError):
    """The writer reused segments before this reader had read them.

    What was read up to then was whole. Begin again, with a new reader: it starts at the new base.
    """


@dataclass(frozen=True, slots=True)
class ReaderInfo:
    """What there is to read, and how the log was left."""

    uuid: UUID
    segment_size: int
    max_undurable_bytes: int
    base_lsn: int  # the first LSN that is still needed
    end_lsn: int  # of the accepted log, or what is durable beside a writer
    watermark_lsn: int  # damage below it is corruption, not a torn tail
    epoch: int  # of the newest segment
    segments: int  # of the log
    spares: int  # files that hold nothing of the log
    log_bytes: int  # of all segment files
    torn_bytes: int  # of a write that a crash cut short: set aside, not part of the log
    live: bool  # a writer has the store open
    clean: bool  # the log ends in an orderly close

    @classmethod
    def from_c(cls, raw: Any) -> Self:
        """Of the core's ``ls_reader_info``."""
        numbers: dict[str, Any] = {field.name: getattr(raw, field.name) for field in fields(cls)}
        numbers["uuid"] = UUID(bytes=bytes(ffi.buffer(raw.uuid)))
        return cls(**numbers | {"live": bool(raw.live), "clean": bool(raw.clean)})

    @property
    def state(self) -> str:
        """``live`` beside a writer, ``closed`` after an orderly close, else ``crashed``."""
        return "live" if self.live else "closed" if self.clean else "crashed"

    @property
    def writer_epoch(self) -> int | None:
        """The epoch of the writer that has the store open, or None."""
        return self.epoch if self.live else None

    @property
    def durable_lsn(self) -> int:
        """Everything below it is known to be on the disk; what follows after a crash, recovery writes again."""
        return self.watermark_lsn if self.state == "crashed" else self.end_lsn


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """One segment of the log."""

    first_lsn: int
    epoch: int
    end_lsn: int  # of the log's part in it
    current: bool  # the last one

    @property
    def name(self) -> str:
        """Of its file."""
        return f"{self.first_lsn:016x}.seg"


@dataclass(frozen=True, slots=True)
class BatchBytes:
    """One accepted batch as it stands on the disk, verified by the core."""

    raw: bytes
    lsn: int
    epoch: int
    first_lsn: int  # of its segment

    @property
    def end_lsn(self) -> int:
        """Where the next one begins, if it is in this segment."""
        return self.lsn + len(self.raw)


def segment_name(lsn: int, segment_size: int) -> str:
    """Name of the segment file in which this LSN lies."""
    return f"{lsn - lsn % segment_size:016x}.seg"


class Reader:
    """The accepted log of a store, from its base or from the batch that holds ``from_lsn``, to its end.

    A context manager. It is read once, front to back: :meth:`batches`, :meth:`records` and :meth:`chain` go on
    where the last call stopped. One thread at a time uses it.

    Raises ``NotAStore``, ``VersionError``, ``CorruptLog``, ``StoreLocked`` while a writer is in the midst of
    opening the store for the first time, or ``StoreError`` for what the system refuses.

    With ``hold``, a :class:`~logstore.holds.Hold` on this store, the log begins at the hold's segment, though the base
    may have passed it, and no writer is faster while the hold lasts. Where another process has the hold, ``keep_lsn``
    stands in for it: the log begins at the segment of that LSN, and :class:`LogRecycled` is raised if something at or
    above it is gone.
    """

    def __init__(
        self,
        store_dir: str | os.PathLike[str],
        *,
        from_lsn: int = 0,
        hold: Hold | None = None,
        keep_lsn: int | None = None,
    ) -> None:
        if not 0 <= from_lsn < LSN_LIMIT:
            raise OptionError(f"from_lsn is {from_lsn}, and an LSN is 0 to {LSN_LIMIT - 1}")
        if keep_lsn is not None and (hold is not None or not 0 < keep_lsn < LSN_LIMIT):
            raise OptionError(f"keep_lsn is {keep_lsn}: it is an LSN from 1 to {LSN_LIMIT - 1}, and stands for a hold")
        self.path = Path(store_dir)
        self._from_lsn = from_lsn
        self._keep_lsn = keep_lsn
        self._held = hold is not None or keep_lsn is not None
        if hold is not None and hold.path.absolute() != self.path.absolute():
            raise OptionError(f"the hold {hold.name} is on {hold.path}, and not on {self.path}: take one there")
        self._c: Any = ffi.gc(self._open() if hold is None else hold.open_reader(from_lsn), lib.ls_reader_close)
        self.info = self._describe()
        self._seeds: dict[tuple[int, int], int] = {}

    def _open(self) -> Any:
        handle = ffi.new("ls_reader **")
        path = os.fsencode(self.path)
        if self._keep_lsn is None:
            code = lib.ls_reader_open(ffi.NULL, path, self._from_lsn, handle)
        else:
            code = lib.ls_reader_open_kept(ffi.NULL, path, self._keep_lsn, self._from_lsn, handle)
        if code == lib.LS_RECYCLED:
            raise LogRecycled(failure(code).message)
        check(code)
        return handle[0]

    def _describe(self) -> ReaderInfo:
        raw = ffi.new("ls_reader_info *")
        lib.ls_reader_describe(self._c, raw)
        return ReaderInfo.from_c(raw)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the files; a second call is harmless."""
        if self._c is not None:
            ffi.release(self._c)
            self._c = None

    def segments(self) -> list[SegmentInfo]:
        """The segments of the log, oldest first."""
        room = self.info.segments + 1
        found, count = ffi.new("ls_segment_info[]", room), ffi.new("size_t *")
        check(lib.ls_reader_segments(self._c, found, room, count))
        return [SegmentInfo(one.first_lsn, one.epoch, one.end_lsn, bool(one.current)) for one in found[0 : count[0]]]

    # ---- What it reads

    def batches(self) -> Iterator[BatchBytes]:
        """Every accepted batch that ends beyond ``from_lsn``, verified and copied out.

        Raises ``CorruptLog`` where the log is damaged, :class:`LogRecycled` beside a writer that was faster.
        """
        ahead: deque[BatchBytes] = deque()
        waiting, untouched = 0, True
        error: StoreError | None = None
        more = True
        while more or ahead:
            while more and waiting <= (READ_AHEAD_BYTES if self.info.live else 0):
                try:
                    batch = self._next()
                except LogRecycled as overtaken:
                    if untouched:
                        raise  # nothing was given out, so beginning again repeats nothing
                    error, batch = overtaken, None
                except StoreError as failed:
                    error, batch = failed, None  # what is whole comes first
                more = batch is not None
                if batch is not None:
                    ahead.append(batch)
                    waiting += len(batch.raw)
            if ahead:
                batch = ahead.popleft()
                waiting -= len(batch.raw)
                untouched = False
                yield batch
        if error is not None:
            raise error

    def _next(self) -> BatchBytes | None:
        raw = ffi.new("ls_batch *")
        while True:
            code = lib.ls_reader_next(self.handle, raw)
            if code == lib.LS_END:
                return None
            if code != 0:
                raise self.explained(code)
            if raw.lsn + raw.size > self._from_lsn:
                return BatchBytes(bytes(ffi.buffer(raw.bytes, raw.size)), raw.lsn, raw.epoch, raw.first_lsn)

    @property
    def handle(self) -> Any:
        """The core's reader, for whatever else of the core reads with it."""
        if self._c is None:
            raise StoreClosed("this reader is closed: make another one")
        return self._c

    def explained(self, code: int) -> StoreError:
        """What a code of the core means here."""
        failed = failure(code)
        if code == lib.LS_RECYCLED:
            return LogRecycled(
                f"the writer of {self.path} reused a segment before it was read"
                + (", since the hold had run out, by its time or its limit; " if self._held else "; ")
                + "nothing is wrong with the log: run this again, or at a quieter time"
            )
        return failed

    def records(self) -> Iterator[Record]:
        """Every record of these batches in order, the BATCH records included, from ``from_lsn`` on.

        Raises as :meth:`batches`; ``CorruptLog`` also if the two decoders of the format disagree.
        """
        for batch in self.batches():
            for record in self.decode(batch):
                if record.lsn >= self._from_lsn:
                    yield record

    def decode(self, batch: BatchBytes) -> Iterator[Record]:
        """The records of one batch, its BATCH record first, read by the decoder in records.py."""
        seed = self._seed(batch)
        at, end = 0, len(batch.raw)
        while at < end:
            lsn = batch.lsn + at
            try:
                record = decode_record(batch.raw, at, seed, lsn)
            except NewerVersion as error:
                raise VersionError(f"{self.path}: {error.reason}; use a newer logstore") from None
            except InvalidRecord as error:
                raise CorruptLog(
                    f"the core reads a record here that the second decoder refuses ({error.reason})",
                    segment=segment_name(lsn, self.info.segment_size),
                    offset=lsn - batch.first_lsn,
                    lsn=lsn,
                ) from None
            yield record
            at += record.length

    def _seed(self, batch: BatchBytes) -> int:
        return self.seed(batch.first_lsn, batch.epoch)

    def seed(self, first_lsn: int, epoch: int) -> int:
        """Seed of the checksums in this segment."""
        key = first_lsn, epoch
        if key not in self._seeds:
            self._seeds[key] = segment_seed(self.info.uuid, first_lsn, epoch)
        return self._seeds[key]

    def chain(self, id: int) -> Iterator[Record]:  # noqa: A002 - the design's own word
        """All records of one message or transaction, in order; none if the log does not hold it.

        Its copies and relocated states are among them, those too that never counted; what stands before the last
        complete relocation is superseded by it. A reader made with ``from_lsn=id`` skips what cannot be part of it.
        """
        return (record for record in self.naming(id) if record.id == id)

    def naming(self, id: int) -> Iterator[Record]:  # noqa: A002 - the design's own word
        """All records of one message or transaction, and of a transaction those of its operations as well, in order."""
        wanted = id.to_bytes(8, "little")
        for batch in self.batches() if id != 0 else ():
            if wanted in batch.raw:  # a batch that has it nowhere need not be decoded
                for record in self.decode(batch):
                    if record.lsn >= self._from_lsn and (record.id == id or _is_work_of(record, id)):
                        yield record


def _is_work_of(record: Record, tx_id: int) -> bool:
    body = record.body
    return getattr(body, "tx_id", 0) == tx_id or any(one.tx_id == tx_id for one in getattr(body, "pending", ()))


# ---- The catalog, read only


@dataclass(frozen=True, slots=True)
class CatalogView:
    """What the catalog says of queues."""

    next_queue_id: int  # every id in the log is below it
    queues: tuple[QueueRow, ...]  # by id


def read_catalog(
    store_dir: str | os.PathLike[str],
    info: ReaderInfo,
    *,
    connect: str | None = None,
    schema: str | None = None,
) -> CatalogView:
    """The queues that the catalog of this store has committed; nothing is created or changed.

    It is read after the log, so it is as new as the log or newer. Raises ``CatalogMismatch`` (missing, another
    store's), ``VersionError``, ``CatalogUnavailable`` or ``CatalogError``.
    """
    directory = Path(store_dir).absolute()
    if connect is not None or schema is not None or info.live or not _is_file(directory / FILE_NAME):
        return _view(directory, info, connect, schema)
    # SQLite makes files beside a database that nobody has open, even to read it. So a copy is read.
    with tempfile.TemporaryDirectory(prefix="logstore-") as copy:
        try:
            copy_catalog_files(directory, Path(copy))
            return _view(Path(copy), info, None, None)
        except StoreError as error:
            raise type(error)(error.message.replace(copy, str(directory))) from error
        except OSError as error:
            raise StoreError(f"the catalog {directory / FILE_NAME} cannot be read: {error.strerror}") from error


def _view(directory: Path, info: ReaderInfo, connect: str | None, schema: str | None) -> CatalogView:
    with closing(
        Catalog.open(directory, connect=connect, schema=schema, store_uuid=info.uuid.bytes, read_only=True)
    ) as opened:
        return CatalogView(opened.next_queue_id, tuple(opened.queues()))


def _is_file(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def copy_catalog_files(source: Path, target: Path) -> bool:
    """The database and its write-ahead log, whether both of one moment: a writer that comes meanwhile changes them."""
    for _ in range(COPY_TRIES):
        before = _stamps(source)
        for name in before:
            shutil.copyfile(source / name, target / name)
        if _stamps(source) == before:
            return True
    return False


def _stamps(directory: Path) -> dict[str, tuple[int, int]]:
    found = {}
    for name in (FILE_NAME, f"{FILE_NAME}-wal"):
        path = directory / name
        if _is_file(path):
            status = path.stat()
            found[name] = status.st_size, status.st_mtime_ns
    return found
