"""Log records as Python objects: an independent implementation of the disk format.

This file is written from docs/format.md alone and shares no line with the C codec; tests prove that both give equal
bytes. It is for inspection and for tests, not for speed. The bodies are in bodies.py, files and blocks in files.py; a
reader of records can import everything from here.

It must never import the rest of the package, trust a length that no check covers, read or allocate beyond its buffer,
or raise anything but :class:`InvalidRecord` for bytes that came from a disk.

Invariant: a record is decoded only if all of its bytes follow the page, so encoding a decoded record gives the same
bytes again.

Numbers are unsigned unless stated otherwise. LSNs are positions in the log's byte space, and 0 means none. Times are
microseconds since 1970, for analysis only. Section numbers are those of docs/format.md.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Self, TypeAlias

from xxhash import xxh64_intdigest

from logstore.codec.bodies import (
    BATCH_RECORD_BYTES,
    FOOTER_COUNTS_MAX,
    MEMBERS_CONFIG_MAX,
    RECORD_HEADER_BYTES,
    TERM_LIMIT,
    TERM_SHIFT,
    Batch,
    CatalogAction,
    CatalogChange,
    CatalogObject,
    CatalogRow,
    ChunkPlace,
    Close,
    DequeueReason,
    Empty,
    Filler,
    Footer,
    InlineCopy,
    Members,
    MessageChunk,
    MessageDequeue,
    MessageEnqueue,
    MessageRelocated,
    MessageStart,
    OrderedCopy,
    PendingKind,
    PendingWork,
    QueueDelete,
    QueuePlace,
    RecordFlag,
    TxKind,
    TxRelocated,
    TxState,
    TypeCount,
    Unknown,
    XidBody,
)
from logstore.codec.layout import (
    CONTENT_BYTES_MAX,
    LSN_LIMIT,
    QUEUE_ID_MAX,
    XID_PART_BYTES_MAX,
    Body,
    Cursor,
    an_lsn,
    decode_parts,
    encode_parts,
)
from logstore.codec.placed import (
    NOTE_BYTES_MAX,
    MessageMove,
    MessagePlace,
    MessageRelocatedPlaced,
    MessageStartPlaced,
    PlacedPlace,
    PlacedWork,
    PlaceStates,
    StateBit,
    StateRow,
)

if TYPE_CHECKING:
    from uuid import UUID

__all__ = [
    "BATCH_RECORD_BYTES",
    "BODIES",
    "CONTENT_BYTES_MAX",
    "FIRST",
    "FLAGS",
    "FOOTER_COUNTS_MAX",
    "LSN_LIMIT",
    "MEMBERS_CONFIG_MAX",
    "QUEUE_ID_MAX",
    "RECORD_HEADER_BYTES",
    "SKIPPABLE",
    "TERM_LIMIT",
    "TERM_SHIFT",
    "XID_PART_BYTES_MAX",
    "Batch",
    "Body",
    "Buffer",
    "CatalogAction",
    "CatalogChange",
    "CatalogObject",
    "CatalogRow",
    "ChunkPlace",
    "Close",
    "DequeueReason",
    "Empty",
    "Filler",
    "Footer",
    "InlineCopy",
    "InvalidRecord",
    "MalformedRecord",
    "Members",
    "MessageChunk",
    "MessageDequeue",
    "MessageEnqueue",
    "MessageRelocated",
    "MessageStart",
    "NewerVersion",
    "OrderedCopy",
    "PendingKind",
    "PendingWork",
    "QueueDelete",
    "QueuePlace",
    "Record",
    "RecordFlag",
    "RecordType",
    "Stream",
    "TxKind",
    "TxRelocated",
    "TxState",
    "TypeCount",
    "Unknown",
    "XidBody",
    "body_class",
    "decode_record",
    "encode_record",
    "header_check",
    "record_bytes",
    "seal_record",
    "segment_seed",
    "MessageMove",
    "MessagePlace",
    "MessageRelocatedPlaced",
    "MessageStartPlaced",
    "PlaceStates",
    "PlacedPlace",
    "PlacedWork",
    "StateBit",
    "StateRow",
    "NOTE_BYTES_MAX",
]

SKIPPABLE = 0x8000  # bit of a type's code: a reader that does not know the type skips the record

Buffer: TypeAlias = bytes | bytearray | memoryview

HEADER = struct.Struct("<QIIHHIQQQ")  # checksum, header_check, length, type, flags, spare, lsn, id, prev
_SEED = struct.Struct("<16sQQ")


class InvalidRecord(ValueError):
    """These bytes are not a valid record for this position: never written, torn, damaged, or of another place or time.

    ``reason`` says what is wrong; ``offset`` is the position of the record or file in the buffer, in bytes.
    """

    def __init__(self, reason: str, offset: int) -> None:
        super().__init__(f"{reason} (at offset {offset})")
        self.reason = reason
        self.offset = offset


class MalformedRecord(InvalidRecord):
    """The checksums are right, but the content breaks a rule of the page.

    Neither a torn write nor bit rot causes this: the writer has a defect.
    """


class NewerVersion(InvalidRecord):
    """Written by a later version of the format, which this reader cannot interpret."""


class Stream(IntEnum):
    """The family of a record: the upper byte of its type (section 5)."""

    MESSAGE = 1
    TRANSACTION = 2
    HOUSEKEEPING = 3
    REPLICATION = 4


_NONE = RecordFlag(0)
_STARTS = RecordFlag.COPY | RecordFlag.PUBLISHED | RecordFlag.INLINE | RecordFlag.ORDERED


class RecordType(IntEnum):
    """The record types (section 5): code, class of the body, legal flags, and whether it begins a chain."""

    body: type[Body]  # of a record that is not an inline copy; body_class covers all
    flags: RecordFlag
    first: bool

    def __new__(cls, code: int, body: type[Body] = Empty, flags: RecordFlag = _NONE, first: bool = False) -> Self:
        """Makes a member from its line below."""
        made = int.__new__(cls, code)
        made._value_, made.body, made.flags, made.first = code, body, flags, first
        return made

    MESSAGE_START = 0x0101, MessageStart, _STARTS, True
    MESSAGE_CHUNK = 0x0102, MessageChunk, RecordFlag.COPY
    MESSAGE_ENQUEUE = 0x0103, MessageEnqueue
    MESSAGE_DEQUEUE = 0x0104, MessageDequeue, RecordFlag.DELETES
    MESSAGE_DELETE = 0x0105
    MESSAGE_RELOCATED = 0x0106, MessageRelocated, RecordFlag.PART | RecordFlag.STAGED
    MESSAGE_PLACE = 0x0107, MessagePlace
    MESSAGE_MOVE = 0x0108, MessageMove
    MESSAGE_START_PLACED = 0x0109, MessageStartPlaced, RecordFlag.PUBLISHED, True
    MESSAGE_RELOCATED_PLACED = 0x010A, MessageRelocatedPlaced, RecordFlag.PART | RecordFlag.STAGED
    DTX_START = 0x0201, XidBody, _NONE, True
    TX_START = 0x0202, Empty, _NONE, True
    TX_END = 0x0203
    TX_PREPARE = 0x0204, XidBody
    TX_COMMIT = 0x0205
    TX_ROLLBACK = 0x0206
    TX_DELETE = 0x0207
    TX_RELOCATED = 0x0208, TxRelocated
    BATCH = 0x0301, Batch
    FILLER = 0x0302, Filler
    FOOTER = 0x0303, Footer
    QUEUE_DELETE = 0x0304, QueueDelete
    CLOSE = 0x0305, Close
    PLACE_STATES = 0x0306, PlaceStates
    MEMBERS = 0x0401, Members, RecordFlag.COPY, True
    CATALOG_CHANGE = 0x0402, CatalogChange, RecordFlag.PART

    @property
    def stream(self) -> Stream:
        """The family this type belongs to."""
        return Stream(self >> 8)

    @property
    def chained(self) -> bool:
        """Whether its records belong to chains, and have an id."""
        return self.stream is not Stream.HOUSEKEEPING and self is not RecordType.CATALOG_CHANGE


BODIES: dict[RecordType, type[Body]] = {kind: kind.body for kind in RecordType}
FLAGS: dict[RecordType, RecordFlag] = {kind: kind.flags for kind in RecordType if kind.flags}
FIRST = frozenset(kind for kind in RecordType if kind.first)  # the types that begin a chain


# Tables by plain numbers: the look-ups and operators of an enumeration would take most of the time for a record.
_TYPES: dict[int, RecordType] = {int(kind): kind for kind in RecordType}
_BODY_CLASSES: dict[int, type[Body]] = {int(kind): kind.body for kind in RecordType}
_FLAG_BITS: dict[int, int] = {int(kind): int(kind.flags) for kind in RecordType}
_FLAG_SETS = tuple(RecordFlag(bits) for bits in range(2 * max(RecordFlag)))
_COPY, _INLINE, _ORDERED = int(RecordFlag.COPY), int(RecordFlag.INLINE), int(RecordFlag.ORDERED)
_START = int(RecordType.MESSAGE_START)
_NO_CHAIN = frozenset(int(kind) for kind in RecordType if not kind.chained)
_FIRST = frozenset(map(int, FIRST))


def body_class(code: int, flags: int) -> type[Body]:
    """The class of the body for this type and these flags; ``Unknown`` for an unknown type."""
    if code == _START and flags & _INLINE:
        return OrderedCopy if flags & _ORDERED else InlineCopy
    return _BODY_CLASSES.get(code, Unknown)


# ---- The record, section 5.


@dataclass(frozen=True, slots=True)
class Record:
    """One record of the log."""

    lsn: int  # of the record itself
    type: RecordType | int  # an int only if unknown and skippable
    flags: RecordFlag
    id: int  # LSN of the chain's first record; 0 in housekeeping records
    prev: int  # LSN of the chain's previous record; 0 in the first, and in housekeeping records
    length: int  # bytes, header and padding included
    body: Body


def record_bytes(body: Body) -> int:
    """The length of a record with this body, in bytes, header and padding included (section 6)."""
    return (RECORD_HEADER_BYTES + len(encode_parts(body)) + 7) // 8 * 8


def segment_seed(uuid: UUID, first_lsn: int, epoch: int) -> int:
    """The seed of all checksums in one segment of one store in one epoch (section 3)."""
    return xxh64_intdigest(_SEED.pack(uuid.bytes, first_lsn, epoch))


def header_check(header: Buffer, seed: int) -> int:
    """The 32-bit check of a record's header alone, which makes its length trustworthy (section 5)."""
    return xxh64_intdigest(header[12:RECORD_HEADER_BYTES], seed) & 0xFFFFFFFF


def seal_record(record: Record, seed: int) -> bytes:
    """The bytes of a record that keeps the page's rules, in the segment with this seed.

    Raises MalformedRecord for a field that does not fit its place, and for a length that does not match the body. Only
    :func:`encode_record` checks the rest; a writer that built the record itself saves that time.
    """
    try:
        body = encode_parts(record.body)
        header = record.length, record.type, record.flags, 0, record.lsn, record.id, record.prev
        raw = bytearray(HEADER.pack(0, 0, *header) + body)
    except (OverflowError, struct.error) as error:
        raise MalformedRecord(f"a field does not fit its place: {error}", 0) from None
    raw += bytes(-len(raw) % 8)
    if len(raw) != record.length:
        raise MalformedRecord("the record would not be read back as it was given", 0)
    raw[8:12] = header_check(raw, seed).to_bytes(4, "little")
    raw[0:8] = xxh64_intdigest(memoryview(raw)[8:], seed).to_bytes(8, "little")
    return bytes(raw)


def encode_record(record: Record, seed: int) -> bytes:
    """The record's bytes in the segment with this seed (sections 5 and 6).

    Raises MalformedRecord for a record that :func:`decode_record` would not return unchanged: a field out of range, a
    flag on the wrong type, a length that does not match the body.
    """
    raw = seal_record(record, seed)
    if decode_record(raw, 0, seed, record.lsn) != record:
        raise MalformedRecord("the record would not be read back as it was given", 0)
    return raw


def decode_record(buffer: Buffer, offset: int, seed: int, expected_lsn: int) -> Record:
    """Decodes the record at ``offset`` of ``buffer``, which must have ``expected_lsn`` and the segment's seed.

    Raises :class:`InvalidRecord` if a check fails, :class:`MalformedRecord` if the checks hold but the content breaks
    the page's rules, and :class:`NewerVersion` if the checks hold but only a later version knows the type.
    """
    view = memoryview(buffer)
    if not 0 <= offset <= len(view) - RECORD_HEADER_BYTES:
        raise InvalidRecord("no room for a record header", offset)
    header = view[offset : offset + RECORD_HEADER_BYTES]
    checksum, check, length, code, flags, spare, lsn, chain_id, prev = HEADER.unpack(header)
    if check != header_check(header, seed):
        raise InvalidRecord("header check is wrong", offset)
    if lsn != expected_lsn:
        raise InvalidRecord(f"record of LSN {lsn:#x} at the place of LSN {expected_lsn:#x}", offset)
    if length < RECORD_HEADER_BYTES or length % 8:
        raise MalformedRecord(f"length {length} is impossible", offset)
    if length > len(view) - offset:
        raise InvalidRecord(f"length {length} is more than there is", offset)
    if checksum != xxh64_intdigest(view[offset + 8 : offset + length], seed):
        raise InvalidRecord("checksum is wrong", offset)
    if code not in _TYPES and not code & SKIPPABLE and code != 0:
        raise NewerVersion(f"record type {code:#06x} belongs to a later version", offset)
    try:
        if spare or lsn % 8:
            raise ValueError("spare is not zero, or lsn is not aligned")
        body = _decode_body(code, flags, view[offset + RECORD_HEADER_BYTES : offset + length])
        known = _FLAG_SETS[flags] if flags < len(_FLAG_SETS) else RecordFlag(flags)
        record = Record(lsn, _TYPES.get(code, code), known, chain_id, prev, length, body)
        _check_chain_and_flags(record, code, flags)
        body.check(record)
    except ValueError as error:
        raise MalformedRecord(str(error), offset) from None
    return record


def _decode_body(code: int, flags: int, content: memoryview) -> Body:
    if code == 0:
        raise ValueError("type is zero")
    cursor = Cursor(content)
    body = decode_parts(body_class(code, flags), cursor)
    if cursor.left >= 8:
        raise ValueError("length is more than the body needs")
    cursor.take_zeros(cursor.left)
    return body


def _check_chain_and_flags(record: Record, code: int, flags: int) -> None:
    """Checks the rules of section 5 on lsn, id, prev and flags; raises ValueError."""
    an_lsn(record.lsn)
    if record.id > record.lsn or record.prev >= record.lsn:
        raise ValueError("id or prev lies above the record")
    if code not in _TYPES:
        return
    if flags & ~_FLAG_BITS[code]:
        raise ValueError(f"flags {flags:#06x} are not those of {_TYPES[code].name}")
    if flags & _INLINE and not flags & _COPY:
        raise ValueError("INLINE without COPY")
    if flags & _ORDERED and not flags & _INLINE:
        raise ValueError("ORDERED without INLINE")
    if code in _NO_CHAIN:
        if record.id or record.prev:
            raise ValueError("a record without a chain names one")
    elif code in _FIRST and not flags & _COPY:
        if record.id != record.lsn or record.prev:
            raise ValueError("the first record of a chain names another one")
    elif not 0 < record.id <= record.prev:
        raise ValueError("a later record of a chain does not follow it")
