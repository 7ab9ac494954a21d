"""Writes a new log: the salvaged messages and transactions as relocated chains under their old ids.

It must never reuse an id, or mark something as durable before it is.

Invariant: the first LSN lies above every id that the old log can have assigned. So every id lies below the base, and
every chain is written in its relocated form (section 6 of docs/format.md); places keep their order keys. A batch before
the last one gives its segment's start as the durable LSN, which is always true; CLOSE is written only after everything
before it was forced.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from xxhash import xxh64

from logstore.codec.files import (
    Closed,
    Meta,
    SegmentHeader,
    batch_bytes_max,
    record_bytes_max,
)
from logstore.codec.place_states import order_of, placed_place, placed_work
from logstore.codec.records import (
    BATCH_RECORD_BYTES,
    FOOTER_COUNTS_MAX,
    LSN_LIMIT,
    RECORD_HEADER_BYTES,
    Batch,
    Body,
    ChunkPlace,
    Close,
    Footer,
    InlineCopy,
    MessageChunk,
    MessageRelocated,
    MessageRelocatedPlaced,
    MessageStart,
    MessageStartPlaced,
    OrderedCopy,
    PendingWork,
    QueuePlace,
    Record,
    RecordFlag,
    RecordType,
    TxKind,
    TxRelocated,
    TxState,
    TypeCount,
    encode_record,
    record_bytes,
    seal_record,
)
from logstore.core.regular_files import force_directory, naming, told
from logstore.errors import StoreError, StoreFull

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from uuid import UUID

    from logstore.codec.state import Message, Transaction

EPOCH = 1
_COPY, _INLINE, _ORDERED = int(RecordFlag.COPY), int(RecordFlag.INLINE), int(RecordFlag.ORDERED)
_FOOTER_BYTES_MAX = 72 + 8 * FOOTER_COUNTS_MAX
_RESERVE_BYTES = _FOOTER_BYTES_MAX + 2 * BATCH_RECORD_BYTES + RECORD_HEADER_BYTES  # a footer, or CLOSE in its own batch
_NO_SPACE = frozenset({28, 122, 27})  # ENOSPC, EDQUOT, EFBIG


def first_lsn_beyond(lsn: int, gap_bytes: int, segment_size: int) -> int:
    """The first LSN of a log that follows one that ended at ``lsn``; its last ids may lie ``gap_bytes`` above that."""
    first = ((lsn + gap_bytes) // segment_size + 1) * segment_size
    if first + 1024 * segment_size >= LSN_LIMIT:
        raise StoreError("the log has reached the highest LSN: no more records can be written to it ")
    return first


class LogWriter:
    """A log in its own directory. Raises ``StoreFull`` or ``StoreError`` if the system refuses a write."""

    def __init__(self, directory: Path, uuid: UUID, segment_size: int, first_lsn: int) -> None:
        self.directory, self.uuid, self.segment_size, self.base_lsn = directory, uuid, segment_size, first_lsn
        self.record_bytes_max = record_bytes_max(segment_size)
        self.bytes_written = 0
        self.segments = 0
        self._batch_bytes_max = batch_bytes_max(segment_size)
        self._file = -1
        self._records: list[bytes] = []  # encoded records of the open batch
        self._batch_bytes = BATCH_RECORD_BYTES
        self._end_lsn = first_lsn  # of the written part
        self._types: Counter[int] = Counter()  # record counts of the segment, by type
        self._last_lsn = 0
        self._begin_segment(first_lsn, 0)

    # ---- Records

    def append(self, kind: RecordType, flags: int, chain: int, prev: int, body: Body, length: int = 0) -> int:
        """Appends a record, whose length may be known already; returns its LSN."""
        length = length or record_bytes(body)
        if length > self.record_bytes_max:
            raise AssertionError(f"a record of {length} bytes")
        if self._batch_bytes + length + _FOOTER_BYTES_MAX > self._batch_bytes_max:
            self._write_batch()
        used = self._end_lsn + self._batch_bytes - self._header.first_lsn
        if used + length + _RESERVE_BYTES > self.segment_size:
            self._end_segment()
        return self._put(kind, flags, chain, prev, body, length)

    def _put(self, kind: RecordType, flags: int, chain: int, prev: int, body: Body, length: int) -> int:
        lsn = self._end_lsn + self._batch_bytes
        record = Record(lsn, kind, RecordFlag(flags), chain, prev, length, body)
        self._records.append(seal_record(record, self._header.seed))
        self._batch_bytes += length
        self._types[int(kind)] += 1
        self._last_lsn = lsn
        return lsn

    def _write_batch(self, durable_lsn: int = 0) -> None:
        if not self._records:
            return
        header = self._header
        durable_lsn = durable_lsn or header.first_record_lsn
        size = self._batch_bytes
        body = Batch(EPOCH, len(self._records), size, durable_lsn, self.base_lsn, time.time_ns() // 1000)
        batch = Record(self._end_lsn, RecordType.BATCH, RecordFlag(0), 0, 0, BATCH_RECORD_BYTES, body)
        raw = b"".join((encode_record(batch, header.seed), *self._records))
        self._write(raw, self._end_lsn - header.first_lsn)
        self._types[int(RecordType.BATCH)] += 1
        self._end_lsn += size
        self._records, self._batch_bytes = [], BATCH_RECORD_BYTES

    # ---- Segments

    def _begin_segment(self, first_lsn: int, prev_end_lsn: int) -> None:
        now_us = time.time_ns() // 1000
        self._header = SegmentHeader(self.uuid, self.segment_size, first_lsn, EPOCH, prev_end_lsn, now_us)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._name = self.directory / f"{first_lsn:016x}.seg"
        with self._explained():
            self._file = os.open(self._name, flags, 0o600)
            os.posix_fallocate(self._file, 0, self.segment_size)
        self._write(self._header.encode(), 0)
        self._end_lsn = self._header.first_record_lsn
        self._types.clear()
        self.segments += 1

    def _end_segment(self) -> None:
        """Writes the footer, in the open batch or in its own, and begins the next segment."""
        lsn = self._end_lsn + self._batch_bytes
        self._types[int(RecordType.BATCH)] += 1  # includes the batch that holds the footer
        counts = tuple(TypeCount(kind, count) for kind, count in sorted(self._types.items()))
        self._types[int(RecordType.BATCH)] -= 1
        log_bytes = lsn - self._header.first_record_lsn
        footer = Footer(self._last_lsn, log_bytes, self._types[int(RecordType.BATCH)] + 1, counts)
        self._put(RecordType.FOOTER, 0, 0, 0, footer, record_bytes(footer))
        self._write_batch()
        self._force_segment()
        self._begin_segment(self._header.limit_lsn, self._end_lsn)

    def _force_segment(self) -> None:
        try:
            with self._explained():
                os.fsync(self._file)
        finally:
            os.close(self._file)
            self._file = -1

    def _write(self, raw: bytes, offset: int) -> None:
        left = memoryview(raw)
        with self._explained():
            while left:
                done = os.pwrite(self._file, left, offset)
                left, offset = left[done:], offset + done
        self.bytes_written += len(raw)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            with naming(self._name):
                yield
        except OSError as error:
            kind = StoreFull if error.errno in _NO_SPACE else StoreError
            raise kind(f"the new store cannot be written ({told(error)}); choose another place") from error

    # ---- The end

    def close(self, max_undurable_bytes: int) -> None:
        """Writes CLOSE and the files next to the log; META comes last, as in creation. All is durable on return."""
        self._write_batch()
        with self._explained():
            os.fsync(self._file)
        closed_lsn = self._end_lsn
        self._put(RecordType.CLOSE, 0, 0, 0, Close(), RECORD_HEADER_BYTES)
        self._write_batch(durable_lsn=closed_lsn)
        self._force_segment()
        now_us = time.time_ns() // 1000
        self._beside("CLOSED", Closed(self.uuid, EPOCH, closed_lsn, now_us).encode())
        self._beside("LOCK", b"")
        self._beside("META", Meta(self.uuid, self.segment_size, max_undurable_bytes, now_us).encode())
        with self._explained():
            force_directory(self.directory)

    def _beside(self, name: str, raw: bytes) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._name = self.directory / name
        with self._explained():
            self._file = os.open(self._name, flags, 0o600)
        self._write(raw, 0)
        self._force_segment()

    def abandon(self) -> None:
        """Closes the file; the caller removes the written part."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


# ---- Chains


def write_transaction(writer: LogWriter, transaction: Transaction) -> None:
    """Writes a prepared transaction, in doubt."""
    assert transaction.xid is not None
    xid = transaction.xid
    body = TxRelocated(
        xid.format_id,
        xid.gtrid,
        xid.bqual,
        TxKind.DISTRIBUTED,
        TxState.PREPARED,
        transaction.started_us,
        transaction.prepared_us,
    )
    writer.append(RecordType.TX_RELOCATED, 0, transaction.id, transaction.id, body)


class Digest:
    """A 64-bit digest of a message's header and content; it does not depend on how the content is split."""

    def __init__(self, header: bytes) -> None:
        self._hash = xxh64(len(header).to_bytes(8, "little") + header)

    def add(self, content: bytes) -> None:
        """Adds the next bytes of the content."""
        self._hash.update(content)

    def value(self) -> int:
        """The digest, 64 bits."""
        return self._hash.intdigest()


def write_message(writer: LogWriter, message_id: int, message: Message, read: Callable[[int], Record]) -> int:
    """Writes a message under its old id; ``read`` returns the record at an LSN of the old log. Returns the digest."""
    start = read(message.start_lsn).body
    assert isinstance(start, MessageStart | MessageStartPlaced | InlineCopy | OrderedCopy)
    digest = Digest(start.header)
    digest.add(start.content)
    published = int(RecordFlag.PUBLISHED) if message.published else 0
    if _write_inline(writer, message_id, message, start, published):
        return digest.value()
    copy = MessageStart(0, (), start.header, start.content)
    start_lsn = writer.append(RecordType.MESSAGE_START, _COPY | published, message_id, message_id, copy)
    prev, chunks = start_lsn, []
    for offset, piece in message.pieces.items():
        chunk = read(piece.lsn).body
        assert isinstance(chunk, MessageChunk)
        digest.add(chunk.content)
        prev = writer.append(RecordType.MESSAGE_CHUNK, _COPY, message_id, prev, chunk)
        chunks.append(ChunkPlace(prev, offset, len(chunk.content)))
    _write_state(writer, message_id, message, start_lsn, prev, chunks)
    return digest.value()


def _write_inline(
    writer: LogWriter,
    message_id: int,
    message: Message,
    start: MessageStart | MessageStartPlaced | InlineCopy | OrderedCopy,
    published: int,
) -> bool:
    """Writes the message as one record if it has an inline form; returns whether it did."""
    places = message.places
    simple = bool(places) and not message.chunks and not message.pending and not message.staged
    if not simple or len({place.order_lsn for place in places}) > 1 or any(one.state is not None for one in places):
        return False
    order_lsn, flags = places[0].order_lsn, _COPY | _INLINE | published
    body: InlineCopy | OrderedCopy
    if order_lsn == message_id:
        if any(place.order_index for place in places):
            return False
        times = {place.time_us for place in places}
        time_us = times.pop() if len(times) == 1 else 0
        body = InlineCopy(time_us, tuple(place.queue_id for place in places), start.header, start.content)
    else:
        by_index = {place.order_index: place.queue_id for place in places}
        low, count = min(by_index), max(by_index) - min(by_index) + 1
        if order_lsn < message_id or len(by_index) < len(places) or 4 * count > 80 + 32 * len(places):
            return False
        queues = tuple(by_index.get(low + i, 0) for i in range(count))
        body, flags = OrderedCopy(order_lsn, queues, start.header, start.content, low), flags | _ORDERED
    length = record_bytes(body)
    if length > writer.record_bytes_max:
        return False
    writer.append(RecordType.MESSAGE_START, flags, message_id, message_id, body, length)
    return True


def _write_state(
    writer: LogWriter, message_id: int, message: Message, start_lsn: int, prev: int, chunks: list[ChunkPlace]
) -> None:
    """Writes the state, in as many parts as necessary, all with states of places if it has any."""
    work = sorted(message.pending or (), key=order_of)
    kind = RecordType.MESSAGE_RELOCATED
    made: type[MessageRelocated | MessageRelocatedPlaced] = MessageRelocated
    places: list[Any]
    pending: list[Any]
    if message.has_states:
        kind, made = RecordType.MESSAGE_RELOCATED_PLACED, MessageRelocatedPlaced
        places, pending = [placed_place(one) for one in message.places], [placed_work(one) for one in work]
    else:
        places = [QueuePlace(one.order_lsn, one.time_us, one.queue_id, one.order_index, 0) for one in message.places]
        pending = [PendingWork(one.tx_id, one.lsn, one.queue_id, one.kind, one.order_index) for one in work]
    size = message.content_bytes
    assert size is not None
    part, last = 0, False
    while not last:
        room = writer.record_bytes_max - 80
        now = []
        for rows in (chunks, places, pending):
            fitting = 0
            while fitting < len(rows) and (length := record_bytes(rows[fitting]) - RECORD_HEADER_BYTES) <= room:
                room -= length
                fitting += 1
            now.append(tuple(rows[:fitting]))
            del rows[:fitting]
        last = not (chunks or places or pending)
        if not last and not any(now):
            raise StoreError(f"message {message_id} has a place with a header that no relocated state has room for")
        flags = (RecordFlag.STAGED if message.staged else 0) if last else RecordFlag.PART
        prev = writer.append(kind, flags, message_id, prev, made(size, start_lsn, part, *now))
        part += 1
