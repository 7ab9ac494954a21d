"""Segments, and the files that are not part of the log, as Python objects; completes records.py.

It contains segment headers, ``META``, ``HINT`` and holds (sections 4 and 8 of docs/format.md), and the walk over the
batches of a segment under the validity rule (section 1). Written from that page alone. The promises of records.py hold
here too: arbitrary bytes raise only InvalidRecord, nothing is read or allocated beyond the buffer, and encoding a
decoded object gives the same bytes.

The version is checked before any checksum: a right magic with a larger version raises NewerVersion.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, ClassVar, Self
from uuid import UUID

from xxhash import xxh64_intdigest

from logstore.codec.records import (
    BATCH_RECORD_BYTES,
    LSN_LIMIT,
    TERM_LIMIT,
    Batch,
    Buffer,
    InvalidRecord,
    MalformedRecord,
    NewerVersion,
    Record,
    RecordType,
    decode_record,
    segment_seed,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

FORMAT_VERSION = 1
BLOCK_BYTES = 4096
SEGMENT_HEADER_BYTES = BLOCK_BYTES
SEGMENT_SIZE_MIN = 64 << 10
SEGMENT_SIZE_MAX = 1 << 30
UNDURABLE_BYTES_MAX = (2**63 - 1) // 4

_VERSION = struct.Struct("<8sI")  # magic, format_version: the beginning of every later version, too
_START = struct.Struct("<8sII16s")  # magic, format_version, size of the whole, uuid


def record_bytes_max(segment_size: int) -> int:
    """The largest size of one record, in bytes (section 2)."""
    return min(segment_size // 16, 1 << 20)


def batch_bytes_max(segment_size: int) -> int:
    """The largest size of one batch, in bytes (section 2)."""
    return min(segment_size // 8, 2 << 20)


def _check_lsn(value: int, what: str) -> None:
    if not 0 < value < LSN_LIMIT:
        raise ValueError(f"{what} {value:#x} is no LSN")


def _check_segment_size(value: int) -> None:
    if value % BLOCK_BYTES or not SEGMENT_SIZE_MIN <= value <= SEGMENT_SIZE_MAX:
        raise ValueError(f"segment size {value} is not allowed")


@dataclass(frozen=True, slots=True)
class _Block:
    """A structure of fixed size: magic, version, size, UUID, numbers of 64 bits, zeros, checksum.

    A subclass adds the numbers as fields, in the page's order, and checks their ranges.
    """

    MAGIC: ClassVar[bytes]
    BYTES: ClassVar[int]

    uuid: UUID  # of the store; its 16 bytes stand in the order of its text form

    def _seed(self) -> int:
        return 0

    def _check(self) -> None:
        """Raises ValueError for a number out of its range."""

    @classmethod
    def _layout(cls) -> struct.Struct:
        return struct.Struct("<" + "".join("16s" if "UUID" in str(field.type) else "Q" for field in fields(cls)[1:]))

    def encode(self) -> bytes:
        """The whole structure with its checksum. Raises MalformedRecord for a number out of its range."""
        raw = bytearray(self.BYTES)
        values = [getattr(self, field.name) for field in fields(self)[1:]]
        values = [value.bytes if isinstance(value, UUID) else value for value in values]
        try:
            self._check()
            _START.pack_into(raw, 0, self.MAGIC, FORMAT_VERSION, self.BYTES, self.uuid.bytes)
            self._layout().pack_into(raw, _START.size, *values)
        except (ValueError, struct.error) as error:
            raise MalformedRecord(str(error), 0) from None
        raw[-8:] = xxh64_intdigest(raw[:-8], self._seed()).to_bytes(8, "little")
        return bytes(raw)

    @classmethod
    def decode(cls, buffer: Buffer) -> Self:
        """Decodes the structure at the front of ``buffer``.

        Raises NewerVersion; InvalidRecord for a wrong magic, length or checksum; MalformedRecord for a right checksum
        over content that breaks the page's rules.
        """
        raw = memoryview(buffer)[: cls.BYTES]
        if len(raw) < _VERSION.size or raw[:8] != cls.MAGIC:
            raise InvalidRecord(f"does not begin with {cls.MAGIC.decode()}", 0)
        _, version = _VERSION.unpack_from(raw)
        if version > FORMAT_VERSION:
            raise NewerVersion(f"format version {version} is newer than {FORMAT_VERSION}", 0)
        if len(raw) < cls.BYTES:
            raise InvalidRecord(f"{len(raw)} bytes are too few for {cls.BYTES}", 0)
        _, _, size, uuid = _START.unpack_from(raw)
        layout = cls._layout()
        build: Callable[..., Self] = cls
        values = layout.unpack_from(raw, _START.size)
        values = tuple(UUID(bytes=value) if isinstance(value, bytes) else value for value in values)
        block = build(UUID(bytes=uuid), *values)
        if int.from_bytes(raw[-8:], "little") != xxh64_intdigest(raw[:-8], block._seed()):
            raise InvalidRecord("checksum is wrong", 0)
        if version != FORMAT_VERSION or size != cls.BYTES:
            raise MalformedRecord(f"version {version} or size {size} is impossible", 0)
        if any(raw[_START.size + layout.size : -8]):
            raise MalformedRecord("reserved space is not zero", 0)
        try:
            block._check()
        except ValueError as error:
            raise MalformedRecord(str(error), 0) from None
        return block


@dataclass(frozen=True, slots=True)
class SegmentHeader(_Block):
    """The first block of a segment (section 4)."""

    segment_size: int  # bytes
    first_lsn: int  # equals the number in the file's name; the caller compares
    epoch: int
    prev_end_lsn: int  # where the log before this segment ends; 0 in the store's first segment
    created_us: int

    MAGIC: ClassVar[bytes] = b"LOGSTORE"
    BYTES: ClassVar[int] = SEGMENT_HEADER_BYTES

    def _seed(self) -> int:
        return self.seed

    @property
    def seed(self) -> int:
        """The seed of all checksums in this segment (section 3)."""
        return segment_seed(self.uuid, self.first_lsn, self.epoch)

    @property
    def first_record_lsn(self) -> int:
        """The LSN of the segment's first batch (section 2)."""
        return self.first_lsn + SEGMENT_HEADER_BYTES

    @property
    def limit_lsn(self) -> int:
        """The first LSN above the segment."""
        return self.first_lsn + self.segment_size

    def _check(self) -> None:
        _check_segment_size(self.segment_size)
        _check_lsn(self.first_lsn, "first_lsn")
        if self.first_lsn % self.segment_size or self.limit_lsn > LSN_LIMIT:
            raise ValueError(f"first_lsn {self.first_lsn:#x} is no place for a segment")
        if self.epoch == 0:
            raise ValueError("epoch is zero")
        if self.prev_end_lsn > self.first_lsn:
            raise ValueError("prev_end_lsn lies above the segment")


@dataclass(frozen=True, slots=True)
class Meta(_Block):
    """``META``: identifies a directory as a store (section 8)."""

    segment_size: int  # bytes
    max_undurable_bytes: int
    created_us: int

    MAGIC: ClassVar[bytes] = b"LSTRMETA"
    BYTES: ClassVar[int] = BLOCK_BYTES

    def _check(self) -> None:
        _check_segment_size(self.segment_size)
        if not 2 * self.segment_size <= self.max_undurable_bytes <= UNDURABLE_BYTES_MAX:
            raise ValueError(f"max_undurable_bytes {self.max_undurable_bytes} is not allowed")


@dataclass(frozen=True, slots=True)
class Hint(_Block):
    """``HINT``: the limit for a reader while a writer runs; recovery never trusts it (section 8)."""

    epoch: int
    durable_lsn: int
    base_lsn: int

    MAGIC: ClassVar[bytes] = b"LSTRHINT"
    BYTES: ClassVar[int] = 64

    def _check(self) -> None:
        if self.epoch == 0:
            raise ValueError("epoch is zero")
        _check_lsn(self.durable_lsn, "durable_lsn")
        _check_lsn(self.base_lsn, "base_lsn")


@dataclass(frozen=True, slots=True)
class Closed(_Block):
    """``CLOSED``: records where an orderly close ended the log, so that a later loss of its end is detected (section
    8).
    """

    epoch: int
    end_lsn: int  # LSN of CLOSE; everything below it was durable
    closed_us: int

    MAGIC: ClassVar[bytes] = b"LSTRCLSD"
    BYTES: ClassVar[int] = 64

    def _check(self) -> None:
        if self.epoch == 0:
            raise ValueError("epoch is zero")
        _check_lsn(self.end_lsn, "end_lsn")


@dataclass(frozen=True, slots=True)
class Seen(_Block):
    """``SEEN``: which places may have been handed out before an orderly close without a count (section 8)."""

    epoch: int
    seen_lsn: int  # places that became visible below it; 0: none

    MAGIC: ClassVar[bytes] = b"LSTRSEEN"
    BYTES: ClassVar[int] = 64

    def _check(self) -> None:
        if self.epoch == 0:
            raise ValueError("epoch is zero")
        if self.seen_lsn != 0:
            _check_lsn(self.seen_lsn, "seen_lsn")


@dataclass(frozen=True, slots=True)
class Hold(_Block):
    """``holds/NAME.hold``: asks the writer to keep segments for a reader (section 8)."""

    hold_lsn: int  # everything at or above it is kept
    limit_bytes: int  # the most that it may keep; 0: no limit
    expires_us: int
    created_us: int

    MAGIC: ClassVar[bytes] = b"LSTRHOLD"
    BYTES: ClassVar[int] = 256

    def _check(self) -> None:
        _check_lsn(self.hold_lsn, "hold_lsn")


@dataclass(frozen=True, slots=True)
class Vote(_Block):
    """One slot of ``VOTE``: a member's term, vote and identity (section 8)."""

    cluster_uuid: UUID
    member_id: int
    sequence: int  # the larger one of the two valid slots counts
    term: int
    voted_for: int  # a member's id; 0: none
    copy: int  # the store is in the directory copy-N
    rebuild: int  # how often this member's copy was removed and made again
    floor_term: int  # of the tail that the log must reach; 0: none is known
    floor_index: int
    detached: int  # 1: replication has ended here

    MAGIC: ClassVar[bytes] = b"LSTRVOTE"
    BYTES: ClassVar[int] = BLOCK_BYTES

    def _check(self) -> None:
        if 0 in (self.member_id, self.sequence, self.copy) or self.detached > 1:
            raise ValueError("a slot without a member, a sequence or a copy")
        if self.term >= TERM_LIMIT or self.floor_term > self.term:
            raise ValueError(f"term {self.term} or the floor's term {self.floor_term} is not allowed")
        if (self.floor_term == 0) != (self.floor_index == 0):
            raise ValueError("a floor has a term and an index, or neither")


@dataclass(frozen=True, slots=True)
class Mark(_Block):
    """One slot of ``MARK``: batches that a copy writes with one force (section 8)."""

    sequence: int  # the larger one of the two valid slots counts
    from_lsn: int  # what these batches call durable counts only up to here; 0: none are marked
    to_lsn: int

    MAGIC: ClassVar[bytes] = b"LSTRMARK"
    BYTES: ClassVar[int] = BLOCK_BYTES

    def _check(self) -> None:
        if self.sequence == 0:
            raise ValueError("a slot without a sequence")
        if self.from_lsn or self.to_lsn:
            _check_lsn(self.from_lsn, "from_lsn")
            _check_lsn(self.to_lsn, "to_lsn")
            if self.from_lsn >= self.to_lsn:
                raise ValueError("a mark that ends before it begins")


# ---- A segment's part of the log, section 1.


@dataclass(frozen=True, slots=True)
class Stop:
    """Where the accepted batches of a segment end, and why.

    ``error`` is None if the segment's part of the log ends by rule. Otherwise it is the reason why the batch at ``lsn``
    is not accepted; recovery decides whether that is a torn tail or corruption.
    """

    lsn: int
    error: InvalidRecord | None


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment's header and its part of the log: accepted batches, each a BATCH record and its records."""

    header: SegmentHeader
    batches: tuple[tuple[Record, tuple[Record, ...]], ...]
    stop: Stop


def iter_batches(
    buffer: Buffer, header: SegmentHeader, end: int | None = None
) -> Generator[tuple[Record, list[Record]], None, Stop]:
    """Walks the accepted batches of a segment: each BATCH record with the records of its batch (section 1).

    ``buffer`` begins with the segment's header and may be shorter than the segment. ``end`` is the LSN at which the
    segment's part of the log ends: the ``prev_end_lsn`` of the next segment, or None in the last segment. The generator
    returns where and why the walk ended. Raises NewerVersion for a record of a later format version, because nothing
    after it can be judged.
    """
    limit_lsn = header.limit_lsn if end is None else min(end, header.limit_lsn)
    part = memoryview(buffer)[: max(limit_lsn - header.first_lsn, 0)]
    lsn = header.first_record_lsn
    while lsn < limit_lsn:
        try:
            batch, records = _decode_batch(part, header, lsn)
        except NewerVersion:
            raise
        except InvalidRecord as error:
            return Stop(lsn, error)
        yield batch, records
        lsn += sum(record.length for record in records) + batch.length
    return Stop(lsn, None)


def _decode_batch(part: memoryview, header: SegmentHeader, lsn: int) -> tuple[Record, list[Record]]:
    """Decodes the complete batch at ``lsn``. Raises InvalidRecord if any part of it is invalid."""
    start = lsn - header.first_lsn
    seed = header.seed
    batch = decode_record(part, start, seed, lsn)
    body = batch.body
    if not isinstance(body, Batch):
        raise MalformedRecord("a record outside a batch", start)
    if body.epoch != header.epoch:
        raise MalformedRecord(f"batch of epoch {body.epoch} in a segment of epoch {header.epoch}", start)
    if not BATCH_RECORD_BYTES <= body.bytes <= batch_bytes_max(header.segment_size):
        raise MalformedRecord(f"a batch of {body.bytes} bytes", start)
    end = start + body.bytes
    if end > len(part):
        raise InvalidRecord("the batch does not fit the segment's part of the log", start)
    records: list[Record] = []
    at = start + batch.length
    while at < end and len(records) < body.count:
        record = decode_record(part[:end], at, seed, header.first_lsn + at)
        if record.length > record_bytes_max(header.segment_size):
            raise MalformedRecord(f"a record of {record.length} bytes", at)
        if record.type is RecordType.BATCH:
            raise MalformedRecord("a batch inside a batch", at)
        records.append(record)
        at += record.length
    if at != end or len(records) != body.count:
        raise MalformedRecord(f"{len(records)} records of {at - start} bytes are not what the batch says", start)
    return batch, records


def decode_segment(buffer: Buffer, end: int | None = None) -> Segment:
    """Decodes a segment's header and accepted batches; ``end`` as in :func:`iter_batches`.

    Raises the errors of SegmentHeader.decode and :func:`iter_batches`.
    """
    header = SegmentHeader.decode(buffer)
    batches: list[tuple[Record, tuple[Record, ...]]] = []
    walk = iter_batches(buffer, header, end)
    while True:
        try:
            batch, records = next(walk)
        except StopIteration as stopped:
            return Segment(header, tuple(batches), stopped.value)
        batches.append((batch, tuple(records)))
