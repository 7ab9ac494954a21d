"""A checkpoint file as Python objects: the second implementation of section 8 of docs/format.md.

Written from that page alone, like logstore/codec/records.py, with the same promises: arbitrary bytes raise only
InvalidRecord, allocations are bounded by the input, and decoded bytes encode to the same bytes.
"""

from __future__ import annotations

import struct
from dataclasses import astuple, dataclass, field, fields, replace
from enum import IntEnum, IntFlag
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from xxhash import xxh64_intdigest

from logstore.codec.files import BLOCK_BYTES, _Block, _check_lsn
from logstore.codec.records import BATCH_RECORD_BYTES, Buffer, InvalidRecord, MalformedRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BLOCK = 65536
BLOCK_HEADER = struct.Struct("<QII")  # checksum, index, bytes
_SEED = struct.Struct("<16sQQQQ")
_U32 = 1 << 32
QUEUE_ID_MAX = _U32 - 2
TIME_MAX = (1 << 63) - 1
ORDER_INDEX_MAX = (1 << 24) - 1
RECORD_BYTES_MAX = 1 << 20
CONTENT_BYTES_MAX = (1 << 63) - 1


class Kind(IntEnum):
    """The kinds of rows."""

    DELETION = 1
    TRANSACTION = 2
    PLAIN = 3
    SINGLE = 4
    CHAIN = 5
    STATE = 7


class MessageFlags(IntFlag):
    """Of a message's row."""

    STAGED = 1
    PUBLISHED = 2
    LOOSE = 4
    WIDE = 8


class StateBits(IntFlag):
    """Of the row of a state."""

    OPERATION = 1
    NOTE = 2
    HEADER = 4


@dataclass(frozen=True, slots=True)
class CheckpointHeader(_Block):
    """The first block of ``CHECKPOINT``."""

    epoch: int
    lsn: int  # everything below it is in the file
    batch_lsn: int
    batch_checksum: int
    base_lsn: int
    file_bytes: int
    salt: int
    created_us: int
    messages: int
    places: int
    operations: int
    transactions: int
    deletions: int

    MAGIC: ClassVar[bytes] = b"LSTRCKPT"
    BYTES: ClassVar[int] = BLOCK_BYTES

    def _check(self) -> None:
        if self.epoch == 0:
            raise ValueError("epoch is zero")
        for name in ("lsn", "batch_lsn", "base_lsn"):
            _check_lsn(getattr(self, name), name)
        if self.batch_lsn + BATCH_RECORD_BYTES > self.lsn or self.base_lsn > self.batch_lsn:
            raise ValueError("the batch does not end at the checkpoint, or lies below the base")
        if self.lsn % 8 or self.batch_lsn % 8:
            raise ValueError("an LSN of a record is a multiple of 8")
        rest = (self.file_bytes - BLOCK_BYTES) % BLOCK
        if self.file_bytes < BLOCK_BYTES or self.file_bytes % 8 or 0 < rest <= BLOCK_HEADER.size:
            raise ValueError(f"a file of {self.file_bytes} bytes is none")
        if self.file_bytes > CONTENT_BYTES_MAX:
            raise ValueError("the file is too long")
        least = {"messages": 24, "places": 16, "operations": 32, "transactions": 192, "deletions": 16}
        for name, size in least.items():
            if getattr(self, name) > self.file_bytes // size:
                raise ValueError(f"the file is too short for {getattr(self, name)} {name}")

    def block_seed(self, index: int) -> int:
        """Seed of block ``index``'s checksum (section 3)."""
        packed = _SEED.pack(self.uuid.bytes, self.lsn, self.epoch, self.salt, index)
        return xxh64_intdigest(packed, 0)

    @property
    def block_count(self) -> int:
        """How many blocks follow the header."""
        return -(-(self.file_bytes - BLOCK_BYTES) // BLOCK)


class Deletion(NamedTuple):
    """A ``QUEUE_DELETE`` of the log."""

    queue_id: int
    lsn: int


class OpenTransaction(NamedTuple):
    """A transaction without an outcome."""

    distributed: bool
    state: int  # 1 active, 2 ended, 3 prepared
    id: int
    start_lsn: int
    last_lsn: int
    start_time_us: int
    prepare_time_us: int
    format_id: int
    gtrid: bytes
    bqual: bytes


class Chunk(NamedTuple):
    """A chunk of content."""

    lsn: int
    offset: int
    record_bytes: int
    content_bytes: int


class Part(NamedTuple):
    """A record of a relocated state that is kept beside the start."""

    lsn: int
    record_bytes: int


class Place(NamedTuple):
    """A place on a queue, with its order key."""

    order_lsn: int
    order_index: int
    queue_id: int


class Operation(NamedTuple):
    """Pending work."""

    tx_id: int
    lsn: int
    queue_id: int
    order_index: int
    kind: int  # 1 enqueue, 2 dequeue, 3 note


class OwnBytes(NamedTuple):
    """Where a note, or a header of a place's own, lies."""

    lsn: int
    record_bytes: int
    at: int
    bytes: int


class State(NamedTuple):
    """What a place remembers, or the place that an operation makes."""

    operation: bool
    of: int  # the place's queue id; of an operation how many later ones the message has
    not_before_us: int
    expires_us: int
    delivery_count: int
    note: OwnBytes | None
    header: OwnBytes | None


@dataclass(frozen=True, slots=True)
class Growth:
    """The growth of a message when it is moved, as admission counts it, in bytes."""

    rows: int = 0
    work_state: int = 0
    work_rows: int = 0


@dataclass(frozen=True, slots=True)
class Message:
    """A message, whichever row it has."""

    kind: Kind
    flags: MessageFlags
    id: int
    record_bytes: int  # of the start record
    content_bytes: int  # in it
    start_lsn: int
    last_lsn: int
    content_total: int
    state_bytes: int = 0
    growth: Growth = field(default_factory=Growth)
    chunks: tuple[Chunk, ...] = ()
    parts: tuple[Part, ...] = ()
    places: tuple[Place, ...] = ()
    operations: tuple[Operation, ...] = ()
    states: tuple[State, ...] = ()


@dataclass(frozen=True, slots=True)
class CheckpointFile:
    """All of a checkpoint."""

    header: CheckpointHeader
    deletions: tuple[Deletion, ...]
    transactions: tuple[OpenTransaction, ...]
    messages: tuple[Message, ...]


# ---- rows

_DELETION = struct.Struct("<IIQ")
_TRANSACTION = struct.Struct("<BBB5xQQQQQqBB6x128s")
_MESSAGE = struct.Struct("<BBHIQII")  # as all messages begin: kind, flags, 0, queue or places, id, record, content
_PLACED = struct.Struct("<QQQII")  # start, last, order, index, growth
_CHAINED = struct.Struct("<QQQIIIIIII4x")  # start, last, total, chunks, parts, operations, state, growth, two of work
_CHUNK = struct.Struct("<QQII")
_PART = struct.Struct("<QI4x")
_PLACE = struct.Struct("<QII")
_OPERATION = struct.Struct("<QQIII4x")
_STATE = struct.Struct("<BBHIQQII")  # kind, bits, 0, of, not before, expires, count, 0
_OWN = struct.Struct("<QIIII")  # LSN, record, at, bytes, 0

ROW_BYTES = {
    Kind.DELETION: _DELETION.size,
    Kind.TRANSACTION: _TRANSACTION.size,
    Kind.PLAIN: _MESSAGE.size,
    Kind.SINGLE: _MESSAGE.size + _PLACED.size,
    Kind.CHAIN: _MESSAGE.size + _CHAINED.size,
    Kind.STATE: _STATE.size,
}


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(what)


class _Rules:
    """Checks the rules of docs/format.md for the checkpoint's LSN."""

    def __init__(self, lsn: int) -> None:
        self.lsn = lsn

    def stands(self, lsn: int, first: int) -> None:
        _require(first <= lsn < self.lsn and lsn % 8 == 0, f"LSN {lsn:#x} is not where it could stand")

    def queue(self, queue_id: int) -> None:
        _require(0 < queue_id <= QUEUE_ID_MAX, f"queue {queue_id} is none")

    def record(self, size: int) -> None:
        _require(48 <= size <= RECORD_BYTES_MAX and size % 8 == 0, f"a record of {size} bytes is none")

    def index(self, index: int) -> None:
        _require(index <= ORDER_INDEX_MAX, f"order index {index} is too large")

    def deletion(self, one: Deletion) -> None:
        self.queue(one.queue_id)
        self.stands(one.lsn, 8)

    def transaction(self, one: OpenTransaction) -> None:
        _require(one.state in ((1, 2, 3) if one.distributed else (1,)), f"state {one.state} is none")
        _require(len(one.gtrid) <= 64 and len(one.bqual) <= 64, "an xid's part is too long")
        _require(one.distributed or not (one.gtrid or one.bqual or one.format_id), "a local one has no xid")
        self.stands(one.id, 8)
        self.stands(one.start_lsn, one.id)
        self.stands(one.last_lsn, one.start_lsn)

    def message(self, one: Message) -> None:
        self.stands(one.id, 8)
        self.stands(one.start_lsn, one.id)
        self.stands(one.last_lsn, one.start_lsn)
        self.record(one.record_bytes)
        _require(one.content_bytes <= one.record_bytes - 48, "more content than its record has")
        _require(one.content_bytes <= one.content_total <= CONTENT_BYTES_MAX, "less content than its record has")
        _require(one.state_bytes % 8 == 0 and one.state_bytes <= RECORD_BYTES_MAX, "no length of a state")
        _require(one.kind is Kind.CHAIN or not one.flags & MessageFlags.STAGED, "a staged message has no place")
        at = one.content_bytes
        for chunk in one.chunks:
            self.stands(chunk.lsn, one.id)
            self.record(chunk.record_bytes)
            size = (64 + chunk.content_bytes + 7) // 8 * 8
            _require(chunk.offset == at and chunk.record_bytes == size, "a chunk does not continue its content")
            at += chunk.content_bytes
        _require(at == one.content_total, "the chunks are not the content")
        for part in one.parts:
            self.stands(part.lsn, one.id)
            self.record(part.record_bytes)
        for place in one.places:
            self.stands(place.order_lsn, one.id)
            self.index(place.order_index)
            self.queue(place.queue_id)
        _require(len({place.queue_id for place in one.places}) == len(one.places), "twice on one queue")
        for work in one.operations:
            self.stands(work.lsn, one.id)
            self.index(work.order_index)
            self.queue(work.queue_id)
            _require(work.kind in (1, 2, 3) and 0 < work.tx_id < work.lsn, "no operation of a transaction")

    def own(self, one: OwnBytes, first: int) -> None:
        self.stands(one.lsn, first)
        self.record(one.record_bytes)
        _require(one.at >= 48 and one.at + one.bytes <= one.record_bytes, "bytes that are not in their record")

    def states(self, one: Message) -> None:
        queues = {place.queue_id for place in one.places}
        seen: set[int] = set()
        latest = -1
        for state in one.states:
            timed = bool(state.not_before_us or state.expires_us or state.delivery_count)
            _require(timed or state.note is not None or state.header is not None, "a state that is none")
            _require(max(state.not_before_us, state.expires_us) <= TIME_MAX, "a time that is none")
            for own in (state.note, state.header):
                if own is not None:
                    self.own(own, one.id)
            _require(state.note is None or 0 < state.note.bytes <= 255, "a note of a length that no note has")
            if not state.operation:
                _require(state.of in queues - seen, "a state of a place that is not there, or has one")
                seen.add(state.of)
                continue
            _require(latest < state.of < len(one.operations), "a state of no operation, or out of turn")
            latest = state.of
            kind = one.operations[-1 - state.of].kind
            _require(kind == 1 or (kind == 3 and not timed and state.header is None), "a state that its kind has not")


class _Rows:
    """The rows of all blocks, one after another."""

    def __init__(self, raw: memoryview, header: CheckpointHeader) -> None:
        self._raw = raw
        self._header = header
        self._index = 0
        self._at = self._end = 0

    def _next_block(self) -> bool:
        header = self._header
        if self._index == header.block_count:
            return False
        start = BLOCK_BYTES + BLOCK * self._index
        stop = min(start + BLOCK, header.file_bytes)
        checksum, index, used = BLOCK_HEADER.unpack_from(self._raw, start)
        if checksum != xxh64_intdigest(self._raw[start + 8 : stop], header.block_seed(self._index)):
            raise InvalidRecord(f"block {self._index}: checksum is wrong", start)
        last = self._index + 1 == header.block_count
        whole = BLOCK_HEADER.size < used <= stop - start and used % 8 == 0 and (not last or used == stop - start)
        if index != self._index or not whole or any(self._raw[start + used : stop]):
            raise MalformedRecord(f"block {self._index}: its rows end nowhere", start)
        self._index += 1
        self._at, self._end = start + BLOCK_HEADER.size, start + used
        return True

    def take(self, size: int) -> memoryview:
        """The next ``size`` bytes, which lie in one block."""
        if self._at == self._end and not self._next_block():
            raise MalformedRecord("a row is missing", self._header.file_bytes)
        if size > self._end - self._at:
            raise MalformedRecord("a row does not fit its block", self._at)
        self._at += size
        return self._raw[self._at - size : self._at]

    def __iter__(self) -> Iterator[tuple[Kind, memoryview]]:
        while self._at < self._end or self._next_block():
            try:
                kind = Kind(self._raw[self._at])
            except ValueError as error:
                raise MalformedRecord(str(error), self._at) from None
            yield kind, self.take(ROW_BYTES[kind])


def _message(kind: Kind, row: memoryview, rows: _Rows) -> Message:
    _, flags, zero, number, id_, record, content = _MESSAGE.unpack_from(row)
    _require(zero == 0 and flags < 16, "bytes that no field takes are not zero")
    if kind is Kind.PLAIN:
        return Message(
            kind, MessageFlags(flags), id_, record, content, id_, id_, content, places=(Place(id_, 0, number),)
        )
    if kind is Kind.SINGLE:
        start, last, order, index, growth = _PLACED.unpack_from(row, _MESSAGE.size)
        return Message(
            kind,
            MessageFlags(flags),
            id_,
            record,
            content,
            start,
            last,
            content,
            growth=Growth(growth),
            places=(Place(order, index, number),),
        )
    start, last, total, chunks, parts, operations, state, *growth = _CHAINED.unpack_from(row, _MESSAGE.size)
    _require(not any(row[-4:]), "bytes that no field takes are not zero")
    return Message(
        kind,
        MessageFlags(flags),
        id_,
        record,
        content,
        start,
        last,
        total,
        state,
        Growth(*growth),
        tuple(Chunk(*_CHUNK.unpack(rows.take(_CHUNK.size))) for _ in range(chunks)),
        tuple(_part(rows.take(_PART.size)) for _ in range(parts)),
        tuple(Place(*_PLACE.unpack(rows.take(_PLACE.size))) for _ in range(number)),
        tuple(_operation(rows.take(_OPERATION.size)) for _ in range(operations)),
    )


def _part(row: memoryview) -> Part:
    _require(not any(row[-4:]), "bytes that no field takes are not zero")
    return Part(*_PART.unpack(row))


def _operation(row: memoryview) -> Operation:
    _require(not any(row[-4:]), "bytes that no field takes are not zero")
    return Operation(*_OPERATION.unpack(row))


def _own(row: memoryview) -> OwnBytes:
    *told, zero = _OWN.unpack(row)
    _require(zero == 0, "bytes that no field takes are not zero")
    return OwnBytes(*told)


def _state(row: memoryview, rows: _Rows) -> State:
    _, bits, zero, of, not_before, expires, count, more_zero = _STATE.unpack(row)
    _require(zero == more_zero == 0 and bits < 8, "bytes that no field takes are not zero")
    note = _own(rows.take(_OWN.size)) if bits & StateBits.NOTE else None
    header = _own(rows.take(_OWN.size)) if bits & StateBits.HEADER else None
    return State(bool(bits & StateBits.OPERATION), of, not_before, expires, count, note, header)


def _transaction(row: memoryview) -> OpenTransaction:
    _, kind, state, id_, start, last, began, prepared, format_id, gtrid, bqual, xid = _TRANSACTION.unpack(row)
    _require(kind in (1, 2) and gtrid <= 64 and bqual <= 64, "no transaction's kind or xid")
    clean = not any(row[3:8]) and not any(row[58:64]) and not any(xid[gtrid + bqual :])
    _require(clean, "bytes that no field takes are not zero")
    return OpenTransaction(
        kind == 2, state, id_, start, last, began, prepared, format_id, xid[:gtrid], xid[gtrid : gtrid + bqual]
    )


def decode_checkpoint(buffer: Buffer) -> CheckpointFile:
    """All of a checkpoint's file; raises NewerVersion, InvalidRecord or MalformedRecord."""
    raw = memoryview(buffer)
    header = CheckpointHeader.decode(raw)
    if len(raw) != header.file_bytes:
        raise InvalidRecord(f"the file has {len(raw)} bytes and says {header.file_bytes}", 0)
    rules, rows = _Rules(header.lsn), _Rows(raw, header)
    deletions: list[Deletion] = []
    transactions: list[OpenTransaction] = []
    messages: list[Message] = []
    seen = 0
    try:
        for kind, row in rows:
            rank = min(kind, Kind.PLAIN)
            _require(rank >= seen, "rows are not in the order of their kinds")
            seen = rank
            if kind is Kind.DELETION:
                first, queue_id, lsn = _DELETION.unpack(row)
                _require(first == Kind.DELETION, "bytes that no field takes are not zero")
                deletions.append(Deletion(queue_id, lsn))
                rules.deletion(deletions[-1])
            elif kind is Kind.TRANSACTION:
                transactions.append(_transaction(row))
                rules.transaction(transactions[-1])
            elif kind is Kind.STATE:
                _require(len(messages) > 0, "a state of no message")
                messages[-1] = replace(messages[-1], states=(*messages[-1].states, _state(row, rows)))
            else:
                messages.append(_message(kind, row, rows))
                rules.message(messages[-1])
        for message in messages:
            rules.states(message)
        _check_whole(header, deletions, transactions, messages)
    except ValueError as error:
        raise MalformedRecord(str(error), 0) from None
    return CheckpointFile(header, tuple(deletions), tuple(transactions), tuple(messages))


def _check_whole(
    header: CheckpointHeader, deletions: list[Deletion], transactions: list[OpenTransaction], messages: list[Message]
) -> None:
    open_ones = {one.id for one in transactions}
    _require(len(open_ones) == len(transactions) == header.transactions, "not the transactions that it says")
    _require(len({one.queue_id for one in deletions}) == len(deletions) == header.deletions, "not the deletions")
    _require(len({one.id for one in messages}) == len(messages) == header.messages, "not the messages that it says")
    _require(sum(len(one.places) for one in messages) == header.places, "not the places that it says")
    _require(sum(len(one.operations) for one in messages) == header.operations, "not the operations that it says")
    unknown = any(work.tx_id not in open_ones for one in messages for work in one.operations)
    _require(not unknown, "work of a transaction that is not open")


# ---- and back


def _encode_transaction(one: OpenTransaction) -> bytes:
    kind = 2 if one.distributed else 1
    return _TRANSACTION.pack(
        Kind.TRANSACTION, kind, one.state, *one[2:8], len(one.gtrid), len(one.bqual), one.gtrid + one.bqual
    )


def _encode_message(one: Message) -> Iterator[bytes]:
    number = len(one.places) if one.kind is Kind.CHAIN else one.places[0].queue_id
    head = _MESSAGE.pack(one.kind, one.flags, 0, number, one.id, one.record_bytes, one.content_bytes)
    if one.kind is Kind.PLAIN:
        yield head
    elif one.kind is Kind.SINGLE:
        place = one.places[0]
        yield head + _PLACED.pack(one.start_lsn, one.last_lsn, place.order_lsn, place.order_index, one.growth.rows)
    else:
        counts = (len(one.chunks), len(one.parts), len(one.operations), one.state_bytes)
        yield head + _CHAINED.pack(one.start_lsn, one.last_lsn, one.content_total, *counts, *astuple(one.growth))
        yield from (_CHUNK.pack(*chunk) for chunk in one.chunks)
        yield from (_PART.pack(*part) for part in one.parts)
        yield from (_PLACE.pack(*place) for place in one.places)
        yield from (_OPERATION.pack(*work) for work in one.operations)
    for state in one.states:
        own = [(bit, bytes_) for bit, bytes_ in ((2, state.note), (4, state.header)) if bytes_ is not None]
        bits = state.operation + sum(bit for bit, _ in own)
        times = (state.not_before_us, state.expires_us, state.delivery_count)
        yield _STATE.pack(Kind.STATE, bits, 0, state.of, *times, 0)
        yield from (_OWN.pack(*bytes_, 0) for _, bytes_ in own)


def encode_checkpoint(
    header: CheckpointHeader,
    deletions: tuple[Deletion, ...] = (),
    transactions: tuple[OpenTransaction, ...] = (),
    messages: tuple[Message, ...] = (),
) -> bytes:
    """The file; sizes and counts of ``header`` are taken from what it holds, its other fields as they are."""
    blocks = [bytearray(BLOCK_HEADER.size)]

    def put(row: bytes) -> None:
        if len(blocks[-1]) + len(row) > BLOCK:
            blocks.append(bytearray(BLOCK_HEADER.size))
        blocks[-1] += row

    for deletion in deletions:
        put(_DELETION.pack(Kind.DELETION, *deletion))
    for transaction in transactions:
        put(_encode_transaction(transaction))
    for message in messages:
        for row in _encode_message(message):
            put(row)
    if len(blocks[-1]) == BLOCK_HEADER.size:
        blocks.pop()
    counts = {
        "file_bytes": BLOCK_BYTES + BLOCK * max(len(blocks) - 1, 0) + (len(blocks[-1]) if blocks else 0),
        "messages": len(messages),
        "places": sum(len(one.places) for one in messages),
        "operations": sum(len(one.operations) for one in messages),
        "transactions": len(transactions),
        "deletions": len(deletions),
    }
    build: Callable[..., CheckpointHeader] = CheckpointHeader
    sealed = build(**{one.name: getattr(header, one.name) for one in fields(header)} | counts)
    for index, block in enumerate(blocks):
        used = len(block)
        block.extend(bytes(0 if index + 1 == len(blocks) else BLOCK - used))
        BLOCK_HEADER.pack_into(block, 0, 0, index, used)
        block[:8] = xxh64_intdigest(block[8:], sealed.block_seed(index)).to_bytes(8, "little")
    return sealed.encode() + b"".join(blocks)
