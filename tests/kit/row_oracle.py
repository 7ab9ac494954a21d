"""The rows of a log, computed in plain Python: the second implementation of the C scanners.

:func:`record_rows` and :func:`message_rows` read the records with the pure-Python decoder and apply the rules of the
tables one by one, in lists and dictionaries: slow, without Arrow, and with nothing in common with the scanners but
docs/format.md. Rows are dicts by column, in the columns' order; times are datetimes in UTC, ids and LSNs plain ints, a
missing value None.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from logstore.codec.placed import (
    MessageMove,
    MessagePlace,
    MessageRelocatedPlaced,
    MessageStartPlaced,
    PlacedPlace,
    PlacedWork,
    PlaceStates,
    StateBit,
)
from logstore.codec.records import (
    Batch,
    DequeueReason,
    InlineCopy,
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
    Record,
    RecordFlag,
    RecordType,
    Stream,
    TxKind,
    TxRelocated,
    TxState,
    XidBody,
)
from logstore.inspect import Reader, read_catalog

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping

    from logstore.holds import Hold

Row = dict[str, Any]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
STREAMS = {1: "message", 2: "transaction"}
STARTS = (MessageStart, InlineCopy, OrderedCopy, MessageStartPlaced)
OPERATIONS = (MessageStart, MessageStartPlaced, MessageEnqueue, MessageDequeue, MessagePlace, MessageMove)
RELOCATED = (MessageRelocated, MessageRelocatedPlaced)
COUNT_MAX = 2**31 - 1
TIME_MAX_US = (datetime(9999, 12, 31, 23, 59, 59, 999999, UTC) - EPOCH) // timedelta(microseconds=1)


def moment(us: int) -> datetime:
    """µs since 1970 as a datetime."""
    return EPOCH + timedelta(microseconds=us)


@dataclass(frozen=True)
class Stood:
    """A record and its position."""

    record: Record
    batch_lsn: int
    segment: int
    epoch: int
    time_us: int


@dataclass
class Log:
    """All readable records of a log, in memory."""

    stood: list[Stood]
    end_lsn: int  # the durable LSN beside a writer; after a crash the end that recovery will accept
    queue_names: Mapping[int, str]
    batches: list[tuple[int, int]] = field(default_factory=list)  # LSN, time in µs
    ends: list[int] = field(default_factory=list)  # of the batches

    @classmethod
    def read(cls, store_dir: str | os.PathLike[str], hold: Hold | None, queue_names: Mapping[int, str] | None) -> Log:
        log = cls([], 0, {})
        with Reader(store_dir, hold=hold) as reader:
            for batch in reader.batches():
                time_us = 0
                for record in reader._decode(batch):
                    if isinstance(record.body, Batch):
                        time_us = record.body.time_us
                        log.batches.append((batch.lsn, time_us))
                        log.ends.append(batch.end_lsn)
                    log.stood.append(Stood(record, batch.lsn, batch.first_lsn, batch.epoch, time_us))
            log.end_lsn = reader.info.end_lsn
            if queue_names is None:
                queue_names = {queue.id: queue.name for queue in read_catalog(store_dir, reader.info).queues}
        log.queue_names = queue_names
        return log

    def time_us(self, lsn: int) -> int | None:
        """The time of the batch with this LSN; None if it cannot be read."""
        at = bisect.bisect_right(self.batches, (lsn, 1 << 64)) - 1
        return self.batches[at][1] if at >= 0 and lsn < self.ends[at] else None


# ---- records


def record_rows(
    store_dir: str | os.PathLike[str],
    start_lsn: int | None = None,
    stop_lsn: int | None = None,
    hold: Hold | None = None,
    as_of_lsn: int | None = None,
    *,
    body: int | None = None,
    queue_names: Mapping[int, str] | None = None,
) -> list[Row]:
    """One row per record from ``start_lsn`` to before ``stop_lsn`` (what is durable).

    Outcomes are those known below ``as_of_lsn``.
    With ``body`` there is also that column, cut to that many bytes.
    """
    log = Log.read(store_dir, hold, queue_names)
    start = 0 if start_lsn is None else start_lsn
    stop = log.end_lsn if stop_lsn is None else min(stop_lsn, log.end_lsn)
    work = _RecordRows(log, log.end_lsn if as_of_lsn is None else as_of_lsn)
    rows = []
    for stood in log.stood:
        if start <= stood.record.lsn < stop:
            row = work.row(stood)
            if body is not None:
                content = getattr(stood.record.body, "content", None)
                row["body"] = None if content is None else content[:body]
            rows.append(row)
    return rows


class _RecordRows:
    def __init__(self, log: Log, as_of_lsn: int) -> None:
        self.log = log
        self.by_lsn = {stood.record.lsn: stood for stood in log.stood}
        self.outcomes: dict[int, tuple[str, int]] = {}  # of a transaction: outcome, LSN
        self.prepared: set[int] = set()
        for stood in log.stood:
            record = stood.record
            if record.lsn >= as_of_lsn:
                break
            if record.type == RecordType.TX_COMMIT:
                self.outcomes[record.id] = "committed", record.lsn
            elif record.type == RecordType.TX_ROLLBACK:
                self.outcomes[record.id] = "rolled_back", record.lsn
            elif record.type == RecordType.TX_PREPARE or (
                isinstance(record.body, TxRelocated) and record.body.state == TxState.PREPARED
            ):
                self.prepared.add(record.id)

    def outcome(self, tx_id: int) -> str:
        if tx_id in self.outcomes:
            return self.outcomes[tx_id][0]
        return "prepared" if tx_id in self.prepared else "open"

    def effect(self, lsn: int, tx_id: int) -> int | None:
        """Where an operation took effect."""
        if tx_id == 0:
            return lsn
        outcome, at = self.outcomes.get(tx_id, ("", 0))
        return at if outcome == "committed" else None

    def row(self, stood: Stood) -> Row:
        record, body = stood.record, stood.record.body
        code = int(record.type)
        known = isinstance(record.type, RecordType)
        stream = STREAMS.get((code & 0x7FFF) >> 8, "log")
        if known and record.type.stream is Stream.REPLICATION:
            stream = "replication"
        queues = _queues(body)
        tx_id = record.id if known and stream == "transaction" else getattr(body, "tx_id", 0)
        operation = isinstance(body, OPERATIONS)
        effect_lsn = self.effect(record.lsn, tx_id) if operation else record.lsn
        outcome = self.outcome(tx_id) if tx_id else None
        if record.type == RecordType.TX_DELETE and outcome in ("open", "prepared"):
            outcome = None  # it has ended, and the log no longer has the outcome
        stated = body.rows[0] if isinstance(body, PlaceStates) else body
        told = min(getattr(stated, "delivery_count", 0), COUNT_MAX)
        leaves = _left_queue(body)
        enqueue_lsn, enqueue_us = self.place(record, leaves, tx_id) if leaves else (None, None)
        header = _header(body)
        content = getattr(body, "content", None)
        return {
            "lsn": record.lsn,
            "type": record.type.name if isinstance(record.type, RecordType) else f"{code:#06x}",
            "stream": stream,
            "id": record.id or None,
            "prev": record.prev or None,
            "epoch": stood.epoch,
            "time": moment(stood.time_us),
            "batch_lsn": stood.batch_lsn,
            "segment": stood.segment,
            "queue_id": queues[0] if queues else None,
            "queue": self.log.queue_names.get(queues[0]) if queues else None,
            "queue_count": len(queues),
            "queue_ids": queues or None,
            "tx_id": tx_id or None,
            "outcome": outcome,
            "effect_lsn": effect_lsn,
            "effect_time": None if effect_lsn is None else _moment_or_none(self.log.time_us(effect_lsn)),
            "enqueue_lsn": enqueue_lsn,
            "enqueue_time": _moment_or_none(enqueue_us),
            "xid": _xid(body),
            "record_bytes": record.length,
            "header_bytes": _size(header),
            "content_bytes": body.content_bytes if isinstance(body, RELOCATED) else _size(content),
            "content_offset": 0 if isinstance(body, STARTS) else getattr(body, "offset", None),
            "flags": int(record.flags),
            "relocated": RecordFlag.COPY in record.flags or isinstance(body, (*RELOCATED, TxRelocated)),
            "inline_enqueue": isinstance(body, STARTS) and bool(queues),
            "deletes": record.type == RecordType.MESSAGE_DELETE or RecordFlag.DELETES in record.flags,
            "delivery_count": told or None,
            "redelivered": told > 1 if told else None,
            "reason": _reason(body),
            "from_queue_id": getattr(body, "from_queue_id", 0) or None,
            "not_before": _time_or_none(getattr(stated, "not_before_us", 0)),
            "expires": _time_or_none(getattr(stated, "expires_us", 0)),
            "header": header,
            "note": body.note if isinstance(body, MessagePlace) else getattr(body, "note", b"") or None,
        }

    # ---- which place a dequeue ends, found along the back-links

    def place(self, end: Record, queue_id: int, tx_id: int) -> tuple[int | None, int | None]:
        """LSN at which the place that this record ends became visible, and when, in µs."""
        at = self.by_lsn.get(end.prev)
        while at is not None and at.record.id == end.id:
            found = self.enqueued(at.record, end, queue_id, tx_id)
            if found is not None:
                return found
            at = self.by_lsn.get(at.record.prev)
        return None, None

    def enqueued(self, record: Record, end: Record, queue_id: int, tx_id: int) -> tuple[int | None, int | None] | None:
        """The evidence of this record about the place; None: the search continues before it."""
        body = record.body
        if isinstance(body, InlineCopy | OrderedCopy):
            if queue_id not in body.queues:
                return None, None
            if isinstance(body, OrderedCopy):
                return body.order_lsn, self.log.time_us(body.order_lsn)
            return record.id, body.enqueue_time_us or self.log.time_us(record.id)
        if isinstance(body, MessageStart | MessageStartPlaced | MessageEnqueue) and queue_id in body.queues:
            return self.enqueued_by(record.lsn, body.tx_id, end, tx_id)
        if isinstance(body, MessageMove) and queue_id == body.queue_id:
            return self.enqueued_by(record.lsn, body.tx_id, end, tx_id)
        if isinstance(body, RELOCATED):
            for place in body.places:
                if place.queue_id == queue_id:
                    return place.order_lsn, place.enqueue_time_us or self.log.time_us(place.order_lsn)
            pending: tuple[PendingWork | PlacedWork, ...] = body.pending
            for work in reversed(pending):
                if work.queue_id == queue_id and work.kind == PendingKind.ENQUEUE:
                    found = self.enqueued_by(work.lsn, work.tx_id, end, tx_id)
                    if found is not None:
                        return found
            return (None, None) if body.part == 0 else None
        return None

    def enqueued_by(self, lsn: int, tx_id: int, end: Record, end_tx_id: int) -> tuple[int | None, int | None] | None:
        effect = self.effect(lsn, tx_id)
        if tx_id and tx_id == end_tx_id:
            return effect, None if effect is None else self.log.time_us(effect)
        return None if effect is None or effect > end.lsn else (effect, self.log.time_us(effect))


def _queues(body: Any) -> list[int]:
    """Every queue that a record names, in order; of a move the new place's alone."""
    if isinstance(body, MessageDequeue | QueueDelete | MessagePlace | MessageMove):
        return [body.queue_id]
    if isinstance(body, PlaceStates):
        return [row.queue_id for row in body.rows]
    if isinstance(body, RELOCATED):
        return [place.queue_id for place in body.places] + [work.queue_id for work in body.pending]
    return [queue_id for queue_id in getattr(body, "queues", ()) if queue_id]


def _xid(body: Any) -> str | None:
    if isinstance(body, XidBody) or (isinstance(body, TxRelocated) and body.kind == TxKind.DISTRIBUTED):
        return f"{body.format_id}:{body.gtrid.hex()}:{body.bqual.hex()}"
    return None


def _left_queue(body: Any) -> int:
    """The queue on which a record ends a place; 0: none."""
    if isinstance(body, MessageMove):
        return body.from_queue_id
    return body.queue_id if isinstance(body, MessageDequeue) else 0


def _header(body: Any) -> bytes | None:
    """The message's header, or the own one of a new place."""
    if isinstance(body, MessageMove):
        return body.header if body.state_bits & StateBit.HAS_HEADER else None
    return body.header if isinstance(body, STARTS) else None


def _reason(body: Any) -> str | None:
    reason = getattr(body, "reason", DequeueReason.NOT_TOLD)
    return None if reason == DequeueReason.NOT_TOLD else reason.name.lower()


def _time_or_none(us: int) -> datetime | None:
    return moment(min(us, TIME_MAX_US)) if us else None


def _size(content: bytes | None) -> int | None:
    return None if content is None else len(content)


def _moment_or_none(us: int | None) -> datetime | None:
    return None if us is None else moment(us)


# ---- messages


@dataclass(frozen=True)
class State:
    """What a place remembers beside its order."""

    count: int = 0
    not_before_us: int = 0
    expires_us: int = 0
    note: bytes = b""
    header_bytes: int | None = None  # of a header of its own

    @classmethod
    def of(cls, body: MessageStartPlaced | MessageMove | PlacedPlace | PlacedWork | PendingWork | QueuePlace) -> State:
        if isinstance(body, PendingWork | QueuePlace):
            return cls()
        if isinstance(body, MessageStartPlaced):
            return cls(0, body.not_before_us, body.expires_us, body.note)
        own = len(body.header) if body.state_bits & StateBit.HAS_HEADER else None
        return cls(body.delivery_count, body.not_before_us, body.expires_us, body.note, own)


@dataclass
class Place:
    """A message's place on a queue, existing or ended."""

    queue_id: int
    enqueue_lsn: int
    order_index: int
    enqueue_us: int | None
    enqueue_tx: int | None
    dequeue_lsn: int | None = None
    dequeue_us: int | None = None
    dequeue_tx: int | None = None
    reason: str | None = None
    delivery_count: int | None = None
    queue_deleted: bool = False
    state: State = State()

    @property
    def told(self) -> int | None:
        return self.delivery_count or min(self.state.count, COUNT_MAX) or None


@dataclass
class Pending:
    """A pending operation of a transaction on a message."""

    tx_id: int
    lsn: int
    queue_id: int
    kind: PendingKind
    order_index: int
    epoch: int
    reason: str | None = None
    delivery_count: int | None = None
    state: State = State()


@dataclass
class Message:
    """The state of an open message."""

    id: int
    whole: bool
    published: bool
    enqueued: bool = False  # some enqueue took effect
    start_us: int | None = None
    header_bytes: int | None = None
    content_bytes: int = 0
    record_count: int = 0
    record_bytes: int = 0
    copy_count: int = 0
    copied_bytes: int = 0
    places: list[Place] = field(default_factory=list)
    pending: list[Pending] = field(default_factory=list)
    ended: Place | None = None  # the one that ended last

    def open_place(self, queue_id: int) -> Place | None:
        return next((one for one in self.places if one.queue_id == queue_id and one.dequeue_lsn is None), None)

    @property
    def held(self) -> bool:
        return bool(self.pending) or any(place.dequeue_lsn is None for place in self.places)


def message_rows(
    store_dir: str | os.PathLike[str],
    start_lsn: int | None = None,
    stop_lsn: int | None = None,
    hold: Hold | None = None,
    *,
    queue_names: Mapping[int, str] | None = None,
) -> tuple[list[Row], list[Row]]:
    """The messages that closed from ``start_lsn`` to before ``stop_lsn``, and those open there (without ``state``).

    Nothing is known of what happened before ``start_lsn``.
    """
    log = Log.read(store_dir, hold, queue_names)
    start = 0 if start_lsn is None else start_lsn
    stop = log.end_lsn if stop_lsn is None else min(stop_lsn, log.end_lsn)
    work = _MessageRows(log.queue_names)
    for stood in log.stood:
        if start <= stood.record.lsn < stop:
            work.take(stood)
    work.closed.sort(key=lambda row: (row["end_lsn"], row["id"]))
    return work.closed, [work.open_row(work.open[message_id]) for message_id in sorted(work.open)]


class _MessageRows:
    def __init__(self, queue_names: Mapping[int, str]) -> None:
        self.queue_names = queue_names
        self.open: dict[int, Message] = {}
        self.closed: list[Row] = []
        self.epoch = 0
        self.deleted: set[int] = set()  # queues
        self.prepared: set[int] = set()  # transactions
        self.copies: dict[int, list[tuple[Record, int]]] = {}  # of a chain since its last relocation: COPY records
        self.parts: list[Record] = []  # of a state that is not complete yet

    def take(self, stood: Stood) -> None:
        record, body = stood.record, stood.record.body
        if stood.epoch != self.epoch:
            self.new_epoch(stood)
        message = self.open.get(record.id)
        copy = RecordFlag.COPY in record.flags
        if isinstance(body, InlineCopy | OrderedCopy):
            self.inline_copy(stood, body)
        elif isinstance(body, RELOCATED):
            self.relocated(stood, body)
        elif copy and isinstance(body, MessageStart | MessageChunk):
            self.copies.setdefault(record.id, []).append((record, len(getattr(body, "header", b""))))
        elif isinstance(body, MessageStart | MessageStartPlaced):
            self.start(stood, body)
        elif isinstance(body, PlaceStates):
            self.place_states(body)
        elif message is not None and record.type in _OPERATIONS:
            message.record_count += 1
            message.record_bytes += record.length
            _OPERATIONS[RecordType(record.type)](self, message, stood)
        elif record.type in (RecordType.TX_COMMIT, RecordType.TX_ROLLBACK):
            self.outcome(stood)
        elif isinstance(body, QueueDelete):
            self.queue_delete(stood, body.queue_id)
        elif record.type == RecordType.TX_PREPARE or getattr(body, "state", None) == TxState.PREPARED:
            self.prepared.add(record.id)

    def new_epoch(self, stood: Stood) -> None:
        """An open drops messages that were staged and never enqueued."""
        seen_before, self.epoch = self.epoch != 0, stood.epoch
        if seen_before:
            for message in list(self.open.values()):
                if not message.enqueued and not message.pending:
                    self.close(message, stood, "dropped")

    # ---- a chain's own records

    def start(self, stood: Stood, body: MessageStart | MessageStartPlaced) -> None:
        record = stood.record
        message = Message(record.id, whole=True, published=RecordFlag.PUBLISHED in record.flags)
        message.start_us, message.header_bytes = stood.time_us, len(body.header)
        message.content_bytes, message.record_count, message.record_bytes = len(body.content), 1, record.length
        self.open[record.id] = message
        self.enqueue_on(message, stood, body)

    def chunk(self, message: Message, stood: Stood) -> None:
        body = stood.record.body
        assert isinstance(body, MessageChunk)
        if not body.content:  # undoes an append that failed
            message.content_bytes = min(message.content_bytes, body.offset)
        message.content_bytes += len(body.content)

    def enqueue(self, message: Message, stood: Stood) -> None:
        body = stood.record.body
        assert isinstance(body, MessageEnqueue)
        self.enqueue_on(message, stood, body)

    def enqueue_on(
        self, message: Message, stood: Stood, body: MessageStart | MessageStartPlaced | MessageEnqueue
    ) -> None:
        state = State.of(body) if isinstance(body, MessageStartPlaced) else State()
        for number, queue_id in enumerate(body.queues):
            if body.tx_id:
                index, lsn = body.order_index + number, stood.record.lsn
                pending = Pending(body.tx_id, lsn, queue_id, PendingKind.ENQUEUE, index, stood.epoch, state=state)
                message.pending.append(pending)
            else:
                self.place(message, stood, queue_id, 0, None, state)

    def place(
        self, message: Message, stood: Stood, queue_id: int, order_index: int, tx_id: int | None, state: State
    ) -> None:
        if message.open_place(queue_id) is None and queue_id not in self.deleted:
            message.places.append(Place(queue_id, stood.record.lsn, order_index, stood.time_us, tx_id, state=state))
        message.enqueued = True

    # ---- records with states of places

    def note(self, message: Message, stood: Stood) -> None:
        body = stood.record.body
        assert isinstance(body, MessagePlace)
        if body.tx_id:
            state = State(note=body.note)
            lsn = stood.record.lsn
            message.pending.append(
                Pending(body.tx_id, lsn, body.queue_id, PendingKind.NOTE, 0, stood.epoch, state=state)
            )
        else:
            self.put_note(message, body.queue_id, body.note)

    def put_note(self, message: Message, queue_id: int, note: bytes) -> None:
        place = message.open_place(queue_id)
        if place is not None:
            place.state = replace(place.state, note=note)

    def move(self, message: Message, stood: Stood) -> None:
        body, lsn = stood.record.body, stood.record.lsn
        assert isinstance(body, MessageMove)
        state = State.of(body)
        kept = self.kept(message, body)
        if body.state_bits & StateBit.KEEPS_NOTE:
            state = replace(state, note=kept.note)
        if body.state_bits & StateBit.KEEPS_HEADER:
            state = replace(state, header_bytes=kept.header_bytes)
        if body.tx_id:
            if body.from_queue_id:
                ended = Pending(body.tx_id, lsn, body.from_queue_id, PendingKind.DEQUEUE, 0, stood.epoch, _reason(body))
                message.pending.append(ended)
            kind, index = PendingKind.ENQUEUE, body.order_index
            message.pending.append(Pending(body.tx_id, lsn, body.queue_id, kind, index, stood.epoch, state=state))
            return
        if body.from_queue_id:
            if message.open_place(body.from_queue_id) is None:
                return
            self.end_place(message, stood, body.from_queue_id, None, _reason(body))
        self.place(message, stood, body.queue_id, 0, None, state)

    def kept(self, message: Message, body: MessageMove) -> State:
        """The state of the place that a move ends, as its transaction sees it."""
        place = message.open_place(body.from_queue_id)
        state = State() if place is None else place.state
        for work in message.pending:  # in the order of the log
            if body.tx_id and (work.tx_id, work.queue_id) == (body.tx_id, body.from_queue_id):
                if work.kind is PendingKind.ENQUEUE:
                    state = work.state
                elif work.kind is PendingKind.NOTE:
                    state = replace(state, note=work.state.note)
        return state

    def place_states(self, body: PlaceStates) -> None:
        for row in body.rows:
            message = self.open.get(row.id)
            place = None if message is None else message.open_place(row.queue_id)
            if place is not None:
                place.state = replace(
                    place.state,
                    count=row.delivery_count,
                    not_before_us=row.not_before_us,
                    expires_us=row.expires_us,
                )

    def dequeue(self, message: Message, stood: Stood) -> None:
        body = stood.record.body
        assert isinstance(body, MessageDequeue)
        told, reason = body.delivery_count or None, _reason(body)
        if body.tx_id:
            lsn = stood.record.lsn
            kind = PendingKind.DEQUEUE
            message.pending.append(Pending(body.tx_id, lsn, body.queue_id, kind, 0, stood.epoch, reason, told))
            return
        self.end_place(message, stood, body.queue_id, None, reason, told)
        if RecordFlag.DELETES in stood.record.flags:
            self.close(message, stood, None)
        else:
            self.close_if_over(message, stood)

    def end_place(
        self,
        message: Message,
        stood: Stood,
        queue_id: int,
        tx_id: int | None,
        reason: str | None = None,
        delivery_count: int | None = None,
    ) -> None:
        place = message.open_place(queue_id)
        if place is not None:
            place.dequeue_lsn, place.dequeue_us, place.dequeue_tx = stood.record.lsn, stood.time_us, tx_id
            place.reason, place.delivery_count = reason, delivery_count
            message.ended = place

    def delete(self, message: Message, stood: Stood) -> None:
        self.close(message, stood, None if message.enqueued else "destroyed")

    # ---- records outside the chain that end work and places

    def outcome(self, stood: Stood) -> None:
        tx_id = stood.record.id
        for message in list(self.open.values()):
            mine = [work for work in message.pending if work.tx_id == tx_id]
            message.pending = [work for work in message.pending if work.tx_id != tx_id]
            if not mine:
                continue
            if stood.record.type == RecordType.TX_COMMIT:
                for work in sorted(mine, key=lambda one: (one.lsn, one.order_index)):
                    if work.kind is PendingKind.ENQUEUE:
                        self.place(message, stood, work.queue_id, work.order_index, tx_id, work.state)
                    elif work.kind is PendingKind.NOTE:
                        self.put_note(message, work.queue_id, work.state.note)
                    else:
                        self.end_place(message, stood, work.queue_id, tx_id, work.reason, work.delivery_count)
            elif not message.enqueued and not message.pending:
                if message.published:
                    self.close(message, stood, "rolled_back")
                elif tx_id not in self.prepared and mine[-1].epoch < stood.epoch:
                    self.close(message, stood, "dropped")  # recovery rolled back, and did not keep it
            self.close_if_over(message, stood)

    def queue_delete(self, stood: Stood, queue_id: int) -> None:
        """End the places; work there waits for its transaction's outcome, and has no effect."""
        self.deleted.add(queue_id)
        for message in list(self.open.values()):
            place = message.open_place(queue_id)
            if place is not None:
                self.end_place(message, stood, queue_id, None, "queue_deleted")
                place.queue_deleted = True
                self.close_if_over(message, stood)

    def close_if_over(self, message: Message, stood: Stood) -> None:
        if message.id in self.open and message.enqueued and not message.held:
            self.close(message, stood, None)

    # ---- relocations: a chain's whole state

    def inline_copy(self, stood: Stood, body: InlineCopy | OrderedCopy) -> None:
        record = stood.record
        ordered = isinstance(body, OrderedCopy)
        order_lsn = body.order_lsn if isinstance(body, OrderedCopy) else record.id
        first = body.order_index if isinstance(body, OrderedCopy) else 0
        us = None if isinstance(body, OrderedCopy) else body.enqueue_time_us or None
        places = [
            Place(queue_id, order_lsn, first + (number if ordered else 0), us, None)
            for number, queue_id in enumerate(body.queues)
            if queue_id
        ]
        self.parts = []
        self.copies.pop(record.id, None)
        message = self.moved(record, RecordFlag.PUBLISHED in record.flags, False, places, [])
        if message is not None:
            message.header_bytes, message.content_bytes = len(body.header), len(body.content)
            message.copied_bytes += record.length

    def relocated(self, stood: Stood, body: MessageRelocated | MessageRelocatedPlaced) -> None:
        record = stood.record
        if body.part == 0:
            self.parts = []
        if body.part != len(self.parts) or (self.parts and self.parts[0].id != record.id):
            return
        self.parts.append(record)
        if RecordFlag.PART in record.flags:
            return
        parts, self.parts = self.parts, []
        bodies = [part.body for part in parts if isinstance(part.body, RELOCATED)]
        places = [
            Place(one.queue_id, one.order_lsn, one.order_index, one.enqueue_time_us or None, None, state=State.of(one))
            for each in bodies
            for one in each.places
        ]
        pending = [
            Pending(one.tx_id, one.lsn, one.queue_id, one.kind, one.order_index, stood.epoch, state=State.of(one))
            for each in bodies
            for one in each.pending
        ]
        named = {body.start_lsn} | {chunk.lsn for each in bodies for chunk in each.chunks}
        copies = [(copy, size) for copy, size in self.copies.pop(record.id, []) if copy.lsn in named]
        starts = [(copy, size) for copy, size in copies if copy.type == RecordType.MESSAGE_START]
        published = any(RecordFlag.PUBLISHED in copy.flags for copy, _ in starts)
        message = self.moved(record, published, RecordFlag.STAGED in record.flags, places, pending)
        if message is not None:
            message.content_bytes = body.content_bytes
            for _, header_bytes in starts:
                message.header_bytes = header_bytes
            message.copied_bytes += sum(one.length for one, _ in copies) + sum(part.length for part in parts)

    def moved(
        self, record: Record, published: bool, staged: bool, places: list[Place], pending: list[Pending]
    ) -> Message | None:
        """The relocated message, made now if it was not known before; None if its state is not live.

        A known one keeps its history, because the state repeats it.
        """
        message = self.open.get(record.id)
        if message is None:
            if not staged and not places and not pending:
                return None
            message = Message(record.id, whole=False, published=published, enqueued=not staged, places=places)
            message.pending = pending
            self.open[record.id] = message
        message.copy_count += 1
        return message

    # ---- rows

    def close(self, message: Message, stood: Stood, outcome: str | None) -> None:
        del self.open[message.id]
        if outcome is None:
            ended = message.ended
            outcome = "queue_deleted" if ended is None or ended.queue_deleted else "dequeued"
        row = self.row(message)
        end = {"end_lsn": stood.record.lsn, "end_time": moment(stood.time_us), "outcome": outcome}
        self.closed.append({name: end[name] if name in end else row[name] for name in MESSAGE_COLUMNS})

    def open_row(self, message: Message) -> Row:
        row = self.row(message)
        row |= {"pending": len(message.pending), "staged": not message.enqueued}
        return {name: row[name] for name in OPEN_COLUMNS}

    def row(self, message: Message) -> Row:
        places = sorted(message.places, key=lambda place: (place.enqueue_lsn, place.order_index))  # stable
        first = places[0] if places else None
        told = [place.told for place in places if place.told is not None]
        last = message.ended
        return {
            "id": message.id,
            "queue_id": first and first.queue_id,
            "queue": first and self.queue_names.get(first.queue_id),
            "start_time": _moment_or_none(message.start_us),
            "enqueue_lsn": first and first.enqueue_lsn,
            "enqueue_time": first and _moment_or_none(first.enqueue_us),
            "dequeue_lsn": last and last.dequeue_lsn,
            "dequeue_time": last and _moment_or_none(last.dequeue_us),
            "reason": last and last.reason,
            "delivery_count": max(told, default=None),
            "place_count": len(places),
            "header_bytes": message.header_bytes,
            "content_bytes": message.content_bytes,
            "record_count": message.record_count,
            "record_bytes": message.record_bytes,
            "copy_count": message.copy_count,
            "copied_bytes": message.copied_bytes,
            "enqueue_tx": first and first.enqueue_tx,
            "dequeue_tx": last and last.dequeue_tx,
            "whole": message.whole,
            "places": [self.place_row(place) for place in places],
        }

    def place_row(self, place: Place) -> Row:
        return {
            "queue_id": place.queue_id,
            "queue": self.queue_names.get(place.queue_id),
            "enqueue_lsn": place.enqueue_lsn,
            "enqueue_time": _moment_or_none(place.enqueue_us),
            "enqueue_tx": place.enqueue_tx,
            "dequeue_lsn": place.dequeue_lsn,
            "dequeue_time": _moment_or_none(place.dequeue_us),
            "dequeue_tx": place.dequeue_tx,
            "reason": place.reason,
            "delivery_count": place.told,
            "not_before": _time_or_none(place.state.not_before_us),
            "expires": _time_or_none(place.state.expires_us),
            "note": place.state.note or None,
            "header_bytes": place.state.header_bytes,
        }


_OPERATIONS: dict[RecordType, Callable[[_MessageRows, Message, Stood], None]] = {
    RecordType.MESSAGE_CHUNK: _MessageRows.chunk,
    RecordType.MESSAGE_ENQUEUE: _MessageRows.enqueue,
    RecordType.MESSAGE_DEQUEUE: _MessageRows.dequeue,
    RecordType.MESSAGE_DELETE: _MessageRows.delete,
    RecordType.MESSAGE_PLACE: _MessageRows.note,
    RecordType.MESSAGE_MOVE: _MessageRows.move,
}

_TIMES = ["id", "queue_id", "queue", "start_time", "enqueue_lsn", "enqueue_time", "dequeue_lsn", "dequeue_time"]
_SIZES = ["header_bytes", "content_bytes", "record_count", "record_bytes", "copy_count", "copied_bytes"]
_COMMON = ["reason", "delivery_count", "place_count", *_SIZES, "enqueue_tx", "dequeue_tx", "whole", "places"]
MESSAGE_COLUMNS = [*_TIMES, "end_lsn", "end_time", "outcome", *_COMMON]
OPEN_COLUMNS = [*_TIMES, *_COMMON, "pending", "staged"]
