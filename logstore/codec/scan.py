"""Finds the records of one segment one by one, where its batches can no longer be walked.

A record carries its own LSN, a check of its header and a checksum, both seeded with its place, store and epoch. So a
record that validates at its own LSN was written there by this store into this segment, whatever happened to its
neighbours.

Invariant: found and lost parts are adjacent and cover the segment's whole part of the log, in order.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from logstore.codec.files import SEGMENT_HEADER_BYTES
from logstore.codec.records import (
    BATCH_RECORD_BYTES,
    BODIES,
    HEADER,
    QUEUE_ID_MAX,
    RECORD_HEADER_BYTES,
    Batch,
    Close,
    Empty,
    InvalidRecord,
    NewerVersion,
    Record,
    RecordFlag,
    RecordType,
    decode_record,
    header_check,
    segment_seed,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

_LSN_AT = 24  # offset in a record's header
_TYPE_AT = 16
NOTHING_READABLE = "no record can be read there"
_EPOCH_AT = 48  # offset in a batch record
_QUEUE_COUNT_AT, _QUEUES_AT = 64, 72  # offsets in a start record
_PLACED_QUEUES_AT = 96  # in one with a state, whose count stands at the same offset


class Damaged(NamedTuple):
    """A record with a valid header and a damaged body."""

    lsn: int
    length: int
    type: int
    flags: int
    id: int
    prev: int
    raw: bytes  # its bytes as found

    @property
    def end_lsn(self) -> int:
        """The LSN of the next record."""
        return self.lsn + self.length


@dataclass(slots=True)
class Gap:
    """Bytes in which no record can be recognised."""

    lsn: int
    end_lsn: int
    why: str
    records: int | None = None  # number of lost records, batch records excluded; None: not known
    certain: bool = True  # False: this part may never have been written
    unreadable: bool = False  # the disk cannot read it

    @property
    def bytes(self) -> int:
        """The length of the gap."""
        return self.end_lsn - self.lsn


Found: TypeAlias = Record | Damaged | Gap


def _positions(raw: bytes, first_lsn: int, start: int, end: int) -> Iterator[int]:
    """Offsets at which the LSN field of a record header equals the LSN of that position."""
    at = start
    while at + RECORD_HEADER_BYTES <= end:
        lsn = first_lsn + at
        chunk_end = min(at + 256 - lsn % 256, end)
        pattern = (lsn >> 8).to_bytes(7, "little")
        low = at + _LSN_AT + 1
        while (hit := raw.find(pattern, low, chunk_end + _LSN_AT + 1)) >= 0:
            offset = hit - _LSN_AT - 1
            if offset % 8 == 0 and raw[hit - 1] == (first_lsn + offset) & 0xFF and offset + RECORD_HEADER_BYTES <= end:
                yield offset
            low = hit + 1
        at = chunk_end


def _look(view: memoryview, offset: int, first_lsn: int, seed: int) -> Record | Damaged | None:
    """Decodes a record at this offset; returns Damaged if only its header is valid, else None. Raises NewerVersion."""
    lsn = first_lsn + offset
    if int.from_bytes(view[offset + _LSN_AT : offset + _LSN_AT + 8], "little") != lsn:
        return None
    try:
        return decode_record(view, offset, seed, lsn)
    except NewerVersion:
        raise
    except InvalidRecord:
        pass
    if offset + RECORD_HEADER_BYTES > len(view):
        return None
    _, check, length, code, flags, _, _, chain_id, prev = HEADER.unpack_from(view, offset)
    if check != header_check(view[offset : offset + RECORD_HEADER_BYTES], seed):
        return None
    if length < RECORD_HEADER_BYTES or length % 8 or code not in BODIES:
        return None
    kind = RecordType(code)
    if BODIES[kind] in (Empty, Close) and length == RECORD_HEADER_BYTES:  # the header's check covers everything
        return Record(lsn, kind, RecordFlag(flags), chain_id, prev, length, BODIES[kind]())
    raw = bytes(view[offset : offset + length])
    return Damaged(lsn, len(raw), code, flags, chain_id, prev, raw)


def clear_epochs(raw: bytes, uuid: UUID, first_lsn: int) -> Counter[int]:
    """Counts the batch records that validate with the epoch that they name, by epoch."""
    found: Counter[int] = Counter()
    batch, view = int(RecordType.BATCH).to_bytes(2, "little"), memoryview(raw)
    for offset in _positions(raw, first_lsn, SEGMENT_HEADER_BYTES, len(raw)):
        if raw[offset + _TYPE_AT : offset + _TYPE_AT + 2] != batch or offset + BATCH_RECORD_BYTES > len(raw):
            continue
        epoch = int.from_bytes(raw[offset + _EPOCH_AT : offset + _EPOCH_AT + 8], "little")
        record = _look(view, offset, first_lsn, segment_seed(uuid, first_lsn, epoch))
        if isinstance(record, Record) and isinstance(record.body, Batch):
            found[epoch] += 1
    return found


def readable_records(raw: bytes, first_lsn: int, seed: int) -> bool:
    """Whether it contains any record of this seed."""
    view = memoryview(raw)
    return any(
        isinstance(_look(view, offset, first_lsn, seed), Record)
        for offset in _positions(raw, first_lsn, SEGMENT_HEADER_BYTES, len(raw))
    )


def walk(raw: bytes, start: int, end: int, first_lsn: int, seed: int) -> Iterator[Found]:
    """Yields everything from offset ``start`` to ``end``, gaps included; the last gap reaches to ``end``."""
    view, at = memoryview(raw)[:end], start
    while at < end:
        found = _look(view, at, first_lsn, seed)
        if found is None:
            candidates = (_look(view, behind, first_lsn, seed) for behind in _positions(raw, first_lsn, at + 8, end))
            found = next((one for one in candidates if one is not None), None)
            until = end if found is None else found.lsn - first_lsn
            yield Gap(first_lsn + at, first_lsn + until, NOTHING_READABLE)
            at = until
        if found is not None:
            yield found
            at += found.length


class BatchRun(NamedTuple):
    """A batch, or the part between two batches."""

    lsn: int
    end_lsn: int
    batch: Batch | None  # None: the batch record cannot be read
    items: list[Found]  # the batch record included
    accepted: bool
    missing: int | None = None  # records in its gaps, according to the batch record; None: not known


def batches(raw: bytes, end: int, first_lsn: int, epoch: int, uuid: UUID) -> Iterator[BatchRun]:
    """The part of a segment up to offset ``end``, batch by batch; a batch record gives the number of lost records."""
    seed = segment_seed(uuid, first_lsn, epoch)
    run: list[Found] = []
    batch: Batch | None = None
    batch_lsn = batch_end = first_lsn + SEGMENT_HEADER_BYTES
    for item in walk(raw, SEGMENT_HEADER_BYTES, end, first_lsn, seed):
        parts: tuple[Found, ...] = (item,)
        if isinstance(item, Gap) and item.lsn < batch_end < item.end_lsn:
            parts = Gap(item.lsn, batch_end, item.why), Gap(batch_end, item.end_lsn, item.why)
        for part in parts:
            body = part.body if isinstance(part, Record) else None
            if batch is not None and part.lsn >= batch_end:
                yield _closed(batch_lsn, batch_end, batch, run)
                run, batch, batch_lsn = [], None, batch_end
            if isinstance(body, Batch):
                if run:
                    yield _closed(batch_lsn, part.lsn, batch, run)
                    run = []
                batch, batch_lsn, batch_end = body, part.lsn, part.lsn + body.bytes
            run.append(part)
    if run:
        last = run[-1]
        yield _closed(batch_lsn, last.lsn + (last.bytes if isinstance(last, Gap) else last.length), batch, run)


def _closed(lsn: int, end_lsn: int, batch: Batch | None, items: list[Found]) -> BatchRun:
    """Completes a batch and sets the number of lost records in its gaps."""
    gaps = [item for item in items if isinstance(item, Gap)]
    if batch is None:
        first = items[0]
        if isinstance(first, Gap) and first.lsn == lsn and first.bytes <= BATCH_RECORD_BYTES:
            first.records = 0  # it can only have held the batch record
        return BatchRun(lsn, end_lsn, None, items, False)
    missing = batch.count - (len(items) - len(gaps) - 1)
    whole = end_lsn == lsn + batch.bytes
    if len(gaps) == 1 and whole:
        gaps[0].records = missing
    sound = all(isinstance(item, Record) for item in items)
    return BatchRun(lsn, end_lsn, batch, items, sound and missing == 0 and whole, missing if whole else None)


def probable_queues(raw: bytes, kind: RecordType) -> list[int]:
    """The queues that a start record with a damaged body seems to name; no checksum proves them."""
    first_at = _PLACED_QUEUES_AT if kind is RecordType.MESSAGE_START_PLACED else _QUEUES_AT
    count = int.from_bytes(raw[_QUEUE_COUNT_AT : _QUEUE_COUNT_AT + 4], "little")
    if not 0 < count <= 64 or first_at + 4 * count > len(raw):
        return []
    queues = [int.from_bytes(raw[at : at + 4], "little") for at in range(first_at, first_at + 4 * count, 4)]
    return [queue_id for queue_id in queues if 0 < queue_id <= QUEUE_ID_MAX]
