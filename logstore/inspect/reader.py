"""Reads a store's log without opening the store: while a writer runs, after a close, or after a crash.

It must never take the store's lock, create or change a file in the store, or return a record that the core's reader has
not verified.

Invariant: a reader shows one state of the log, that of the moment of its creation. While a writer runs, this is the log
that was durable then; after a crash it is the log that recovery will accept. The reader does not delay the writer, so
the writer may reuse segments before they were read: this raises :class:`LogRecycled`, and the caller starts again.

LSNs, ids and sizes (bytes) are plain ints.
"""

from __future__ import annotations

import os
from collections import deque
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self
from uuid import UUID

from logstore._core import ffi, lib
from logstore.codec.files import SEGMENT_HEADER_BYTES, SegmentHeader
from logstore.codec.records import (
    BATCH_RECORD_BYTES,
    HEADER,
    RECORD_HEADER_BYTES,
    Batch,
    InvalidRecord,
    NewerVersion,
    PlaceStates,
    Record,
    RecordType,
    decode_record,
    segment_seed,
)
from logstore.core import arguments
from logstore.core.native import check, failure, filled, listed, owned
from logstore.core.regular_files import read_start
from logstore.errors import CorruptLog, OptionError, StoreClosed, StoreError, VersionError
from logstore.holds import Hold, LogRecycled, list_holds

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from logstore._core import Pointer, ls_reader_ptr

__all__ = [
    "BatchBytes",
    "LogRecycled",
    "Oldest",
    "Reader",
    "ReaderInfo",
    "SegmentInfo",
    "segment_name",
]

CLOSE_BATCH_BYTES = BATCH_RECORD_BYTES + RECORD_HEADER_BYTES  # an orderly close that had nothing else to log
READ_AHEAD_BYTES = 64 << 20  # while a writer runs: read from the disk in one step, before the batches are decoded


@dataclass(frozen=True, slots=True)
class ReaderInfo:
    """The limits of the readable log, and how the log was left."""

    uuid: UUID
    segment_size: int
    max_undurable_bytes: int
    base_lsn: int  # the first LSN that recovery needs
    end_lsn: int  # of the accepted log; while a writer runs, of its durable part
    seen_lsn: int  # end of the valid batches, including a last segment that does not count
    watermark_lsn: int  # damage below it is corruption, not a torn tail
    epoch: int  # of the newest segment
    segments: int  # of the log
    spares: int  # files without a part of the log
    log_bytes: int  # of all segment files
    torn_bytes: int  # of an incomplete write at a crash: not part of the log
    live: bool  # a writer has the store open
    clean: bool  # the log ends in an orderly close
    index: int = 0  # index of the newest batch; 0: the log is not replicated
    term: int = 0  # term of that batch, if it has an index
    # As that batch says: a majority had everything below it; another leader may cut the rest.
    known_durable_lsn: int = 0

    @classmethod
    def _from_c(cls, raw: Any) -> Self:
        """Copies the core's ``ls_reader_info``."""
        numbers: dict[str, Any] = {field.name: getattr(raw, field.name) for field in fields(cls)}
        numbers["uuid"] = UUID(bytes=raw.uuid)
        return cls(**numbers | {"live": bool(raw.live), "clean": bool(raw.clean)})

    @property
    def state(self) -> str:
        """``live`` while a writer runs, ``closed`` after an orderly close, else ``crashed``."""
        return "live" if self.live else "closed" if self.clean else "crashed"

    @property
    def writer_epoch(self) -> int | None:
        """The epoch of the writer that has the store open, or None."""
        return self.epoch if self.live else None

    @property
    def durable_lsn(self) -> int:
        """Everything below it is known to be on the disk, or on a majority's disks if the log is replicated; after a
        crash, recovery writes the rest again.
        """
        if self.index != 0 and not self.live:
            return self.known_durable_lsn
        return self.watermark_lsn if self.state == "crashed" else self.end_lsn


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """One segment of the log."""

    first_lsn: int
    epoch: int
    end_lsn: int  # of the segment's part of the log
    current: bool  # True for the last segment

    @property
    def name(self) -> str:
        """The name of its file."""
        return f"{self.first_lsn:016x}.seg"


@dataclass(frozen=True, slots=True)
class Oldest:
    """The oldest part of the log that is still there. The writer reuses the segments before it."""

    lsn: int  # the first one of its segment
    time_us: int  # when that segment was begun, in µs since 1970
    from_beginning: bool  # nothing was ever logged before it

    @property
    def time(self) -> datetime:
        """``time_us`` in UTC."""
        return datetime.fromtimestamp(self.time_us / 1_000_000, UTC)


@dataclass(frozen=True, slots=True)
class BatchBytes:
    """One accepted batch as it is on the disk, verified by the core."""

    raw: bytes
    lsn: int
    epoch: int
    first_lsn: int  # of the segment

    @property
    def end_lsn(self) -> int:
        """The LSN of the next batch in the same segment."""
        return self.lsn + len(self.raw)


def segment_name(lsn: int, segment_size: int) -> str:
    """The name of the segment file that contains this LSN."""
    at = arguments.integer("lsn", lsn, 0, arguments.LSN_MAX)
    return f"{at - at % arguments.integer('segment_size', segment_size, 1, arguments.LSN_MAX):016x}.seg"


class Reader:
    """The accepted log of a store, from its base or from the batch with ``from_lsn``, to its end.

    A context manager. It is read once, front to back: :meth:`batches`, :meth:`records` and :meth:`chain` continue where
    the last call stopped. One thread at a time uses it.

    Raises ``NotAStore``, ``VersionError``, ``CorruptLog``, ``StoreLocked`` while a writer opens the store for the first
    time, or ``StoreError`` if the system refuses.

    With ``hold``, a :class:`~logstore.holds.Hold` on this store, the log begins at the hold's segment, even if the base
    has passed it, and no writer reuses that part while the hold lasts. If another process has the hold, pass
    ``keep_lsn`` instead: the log begins at the segment of that LSN, and :class:`LogRecycled` is raised if a part at or
    above it is gone. With ``keep_lsn``, ``end_lsn`` may say where an earlier reader found the end of this log (its
    ``info.end_lsn``): this reader ends there. Without a writer it then need not search for the end, which reads the
    last segment and all spares, and ``info`` does not say how the log was left. If a crash has taken a part of the log
    since, :class:`LogRecycled` is raised. 0, the end of a log that has no batch yet, is as None.

    With ``permissive`` it skips what it cannot read: a segment that is missing or has a damaged header, and the rest of
    a segment from a damaged batch on. :meth:`missing` lists the skipped parts. ``CorruptLog`` is raised only if no
    segment is left.

    Of a replicated log without a writer it gives what a majority is known to have. With ``undurable`` it gives all of
    it; another leader may still cut the rest. The other choices except ``from_lsn`` are not possible then.
    """

    def __init__(
        self,
        store_dir: str | os.PathLike[str],
        *,
        from_lsn: int = 0,
        hold: Hold | None = None,
        keep_lsn: int | None = None,
        end_lsn: int | None = None,
        permissive: bool = False,
        undurable: bool = False,
    ) -> None:
        self.path = arguments.path("store_dir", store_dir)
        self._from_lsn = arguments.integer("from_lsn", from_lsn, 0, arguments.LSN_MAX)
        self._keep_lsn = arguments.optional(arguments.integer, "keep_lsn", keep_lsn, 1, arguments.LSN_MAX)
        if hold is not None:
            arguments.instance("hold", hold, Hold)
            if keep_lsn is not None:
                raise OptionError(f"keep_lsn is {keep_lsn} and hold is {hold!r}: give one of the two")
        self._end_lsn = arguments.optional(arguments.integer, "end_lsn", end_lsn, 0, arguments.LSN_MAX)
        if end_lsn is not None and (keep_lsn is None or permissive):
            raise OptionError("end_lsn stands with keep_lsn, and not with hold or permissive")
        if undurable and (permissive or hold is not None or keep_lsn is not None):
            raise OptionError("undurable stands with from_lsn alone, and not with hold, keep_lsn or permissive")
        self._held = None if hold is None else (hold.name, hold.lsn)
        if hold is not None and hold.path.absolute() != self.path.absolute():
            raise OptionError(f"the hold {hold.name} is on {hold.path}, and not on {self.path}: take one there")
        self._owner, made = owned("reader")
        if hold is None or permissive:
            self._open(made, permissive=permissive, undurable=undurable)
        else:
            hold._open_reader(from_lsn, made)
        self._c: ls_reader_ptr | None = made[0]
        self.info = ReaderInfo._from_c(filled("ls_reader_info", lambda info: lib.ls_reader_describe(self.handle, info)))
        self._seeds: dict[tuple[int, int], int] = {}
        self.batch_time_us = 0
        """When the batch of the record that was returned last was written, in µs since 1970; 0 before the first."""

    def _open(self, made: Pointer[ls_reader_ptr], *, permissive: bool, undurable: bool) -> None:
        path = os.fsencode(self.path)
        if permissive:
            keep_lsn = self._held[1] if self._held is not None else self._keep_lsn or 0
            code = lib.ls_reader_open_permissive(ffi.NULL, path, keep_lsn, self._from_lsn, made)
        elif undurable:
            code = lib.ls_reader_open_undurable(ffi.NULL, path, self._from_lsn, made)
        elif self._keep_lsn is None:
            code = lib.ls_reader_open(ffi.NULL, path, self._from_lsn, made)
        else:
            code = lib.ls_reader_open_kept(ffi.NULL, path, self._keep_lsn, self._end_lsn or 0, self._from_lsn, made)
        if code == lib.LS_RECYCLED:
            raise LogRecycled(failure(code).message)
        check(code)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the files. A second call does nothing."""
        self._c = None
        self._owner.free()

    def segments(self) -> list[SegmentInfo]:
        """The segments of the log, oldest first."""
        found = listed("ls_segment_info", lambda *into: lib.ls_reader_segments(self.handle, *into))
        return [SegmentInfo(one.first_lsn, one.epoch, one.end_lsn, bool(one.current)) for one in found]

    def header(self, segment: SegmentInfo) -> SegmentHeader:
        """The header of one of these segments.

        Raises :class:`LogRecycled` if the writer has reused the file, ``CorruptLog`` for damage, or ``StoreError``.
        """
        path = self.path / arguments.instance("segment", segment, SegmentInfo).name
        reused = f"the writer of {self.path} reused {segment.name} meanwhile: run this again"
        try:
            header = SegmentHeader.decode(read_start(path, SEGMENT_HEADER_BYTES)[0])
        except FileNotFoundError:
            raise LogRecycled(reused) from None
        except InvalidRecord as error:
            raise CorruptLog(error.reason, segment=segment.name, offset=0, lsn=segment.first_lsn) from None
        except OSError as error:
            raise StoreError(f"{path} cannot be read: {error.strerror}; check the disk and the permissions") from error
        if header.first_lsn != segment.first_lsn:
            raise LogRecycled(reused)
        return header

    def oldest(self) -> Oldest | None:
        """How far back this log goes; None if it has no segment. Raises the errors of :meth:`header`."""
        for segment in self.segments():
            header = self.header(segment)
            # A store begins at the LSN segment_size. After a first epoch of nothing but its close, nothing is missing.
            begins = self.info.segment_size + SEGMENT_HEADER_BYTES
            return Oldest(segment.first_lsn, header.created_us, header.prev_end_lsn <= begins + CLOSE_BATCH_BYTES)
        return None

    def missing(self) -> list[tuple[int, int]]:
        """The parts that a permissive reader has skipped so far: first LSN and end of each, ascending."""
        found = listed("ls_lsn_range", lambda *into: lib.ls_reader_missing(self.handle, *into))
        return [(one.first_lsn, one.end_lsn) for one in found]

    def last_lsn(self) -> int:
        """The LSN of the last record. The log ends above it if a writer has begun a segment and written nothing."""
        ends = [one.end_lsn for one in self.segments() if one.end_lsn > one.first_lsn + SEGMENT_HEADER_BYTES]
        return min(ends[-1], self.info.end_lsn) if ends else self.info.base_lsn

    # ---- Reading

    def batches(self, *, ahead: bool = True) -> Iterator[BatchBytes]:
        """Every accepted batch that ends above ``from_lsn``, verified and copied.

        While a writer runs, up to 64 MiB are read ahead of what was returned, unless ``ahead`` is false: then each
        batch is read when it is wanted.

        Raises ``CorruptLog`` if the log is damaged, :class:`LogRecycled` if a writer reused a segment before it was
        read.
        """
        read: deque[BatchBytes] = deque()
        room = READ_AHEAD_BYTES if self.info.live and ahead else 0
        waiting, untouched = 0, True
        error: StoreError | None = None
        more = True
        while more or read:
            while more and waiting <= room:
                try:
                    batch = self._next()
                except LogRecycled as overtaken:
                    if untouched:
                        raise  # nothing was returned yet, so starting again repeats nothing
                    error, batch = overtaken, None
                except StoreError as failed:
                    error, batch = failed, None  # the valid batches before the error come first
                more = batch is not None
                if batch is not None:
                    read.append(batch)
                    waiting += len(batch.raw)
            if read:
                batch = read.popleft()
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
                raise self._explained(code)
            if raw.lsn + raw.size > self._from_lsn:
                return BatchBytes(bytes(ffi.buffer(raw.bytes, raw.size)), raw.lsn, raw.epoch, raw.first_lsn)

    @property
    def handle(self) -> Any:
        """The core's reader, for other functions of the core."""
        if self._c is None:
            raise StoreClosed("this reader is closed: make another one")
        return self._c

    def _explained(self, code: int) -> StoreError:
        """The exception for an error code of the core."""
        failed = failure(code)
        if code == lib.LS_RECYCLED and self._end_lsn:  # recycled, or lost in a crash
            return LogRecycled(f"{self.path}: {failed.message}")
        if code == lib.LS_RECYCLED:
            return LogRecycled(
                f"the writer of {self.path} reused a segment before it was read, {self._unkept()}; nothing is wrong "
                "with the log: run this again, or at a quieter time"
            )
        return failed

    def _unkept(self) -> str:
        """The reason why nothing kept the lost part."""
        if self._held is not None:
            states = {one.name: one.state for one in list_holds(self.path)}
            state = states.get(self._held[0], "gone")
            if state == "honoured":
                return f"below LSN {self._held[1]}, from which on the hold {self._held[0]} keeps it"
            return f"since the hold {self._held[0]} is {state}"
        if self._keep_lsn is not None:
            return f"and from LSN {self._keep_lsn} on no hold keeps it"
        return "and no hold was taken"

    def records(self, only: RecordType | None = None) -> Iterator[Record]:
        """Every record of these batches in order, including the BATCH records, from ``from_lsn`` on.

        With ``only`` those of one type; the others are passed over and not decoded.

        Raises the errors of :meth:`batches`; ``CorruptLog`` also if the two decoders of the format disagree.
        """
        for batch in self.batches():
            for record in self._decode(batch, only):
                if record.lsn >= self._from_lsn:
                    yield record

    def _decode(self, batch: BatchBytes, only: RecordType | None = None) -> Iterator[Record]:
        """The records of one batch, its BATCH record first, decoded by codec/records.py."""
        seed = self._seed(batch.first_lsn, batch.epoch)
        at, end = 0, len(batch.raw)
        while at < end:
            lsn = batch.lsn + at
            if only is not None:  # the core has verified the batch
                _, _, length, code, *_ = HEADER.unpack_from(batch.raw, at)
                if code != only:
                    at += length
                    continue
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
            if at == 0 and isinstance(record.body, Batch):
                self.batch_time_us = record.body.time_us
            yield record
            at += record.length

    def seed(self, first_lsn: int, epoch: int) -> int:
        """The seed of the checksums in this segment."""
        arguments.integer("first_lsn", first_lsn, 0, arguments.LSN_MAX)
        arguments.integer("epoch", epoch, 0, (1 << 32) - 1)
        return self._seed(first_lsn, epoch)

    def _seed(self, first_lsn: int, epoch: int) -> int:
        key = first_lsn, epoch
        if key not in self._seeds:
            self._seeds[key] = segment_seed(self.info.uuid, first_lsn, epoch)
        return self._seeds[key]

    def chain(self, id: int) -> Iterator[Record]:  # noqa: A002 - the design's own word
        """All records of one message or transaction, in order; none if it is not in the log.

        They include copies and relocated states, even incomplete ones; the last complete relocation supersedes the
        records before it. A reader made with ``from_lsn=id`` skips the part of the log before the chain.
        """
        named = self.naming(id)  # also checks the id
        return (record for record in named if record.id == id)

    def naming(self, id: int) -> Iterator[Record]:  # noqa: A002 - the design's own word
        """All records of one message or transaction, in order; for a transaction also those of its operations.

        For a message also those that replace the counts and times of its places.
        """
        wanted = arguments.integer("id", id, 0, arguments.LSN_MAX).to_bytes(8, "little")
        return self._naming(id, wanted)

    def _naming(self, id: int, wanted: bytes) -> Iterator[Record]:  # noqa: A002 - the design's own word
        for batch in self.batches() if id != 0 else ():
            if wanted in batch.raw:  # a batch without these bytes need not be decoded
                for record in self._decode(batch):
                    if record.lsn >= self._from_lsn and (
                        record.id == id or _is_work_of(record, id) or _has_states_of(record, id)
                    ):
                        yield record


def _is_work_of(record: Record, tx_id: int) -> bool:
    body = record.body
    return getattr(body, "tx_id", 0) == tx_id or any(one.tx_id == tx_id for one in getattr(body, "pending", ()))


def _has_states_of(record: Record, message_id: int) -> bool:
    return isinstance(record.body, PlaceStates) and any(row.id == message_id for row in record.body.rows)
