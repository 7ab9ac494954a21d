"""What the records of a log mean, in pure Python: which messages live, on which queues, and what is pending.

Written from section 7 of docs/format.md alone and sharing nothing with csrc/recover.c, so that the two can be held
against each other. It is for inspection: it keeps places without their order.

What always holds: it takes the records of an accepted log from its base on, in order, and never raises for what
they say; what contradicts the format's rules is noted in ``problems``, and it goes on.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from logstore.errors import VersionError
from logstore.records import (
    FIRST,
    Batch,
    MessageChunk,
    MessageDequeue,
    MessageEnqueue,
    MessageStart,
    PendingKind,
    QueueDelete,
    Record,
    RecordFlag,
    RecordType,
    XidBody,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable

PROBLEMS_MAX = 1000  # noted; all are counted


class Problem(NamedTuple):
    """Something that no sound log says."""

    lsn: int
    reason: str


class Operation(NamedTuple):
    """What a transaction did to a message and will make count when it commits."""

    kind: PendingKind
    message_id: int
    queue_id: int


class _Message:
    __slots__ = ("content_bytes", "pending", "places", "published", "staged")

    def __init__(self, content_bytes: int, published: bool) -> None:
        self.content_bytes = content_bytes
        self.places: tuple[int, ...] = ()  # queue ids, those of deleted queues too
        self.pending = 0  # operations of open transactions
        self.staged = True  # no enqueue has taken effect yet
        self.published = published


@dataclass(slots=True)
class OpenTransaction:
    """A transaction without an outcome."""

    id: int
    lsn: int  # of the first record that tells of it
    xid: XidBody | None = None  # None: local
    state: str = "active"
    started: bool = True  # its start lies in the log; else it lies below the base
    prepared_us: int = 0
    operations: list[Operation] = field(default_factory=list)
    enqueues: int = 0  # ever made in it

    @property
    def prepared(self) -> bool:
        """Only an outcome from outside can end it."""
        return self.state == "prepared"


@dataclass(slots=True)
class QueueCounts:
    """What is on one queue."""

    depth: int = 0  # every visible place
    locked: int = 0  # places that an open transaction has dequeued
    content_bytes: int = 0


@dataclass(slots=True)
class Replayed:
    """The state at the end of the log."""

    messages: int  # that live
    staged: int  # of these: never enqueued, by a transaction neither
    places: int
    queues: dict[int, QueueCounts]  # by id; only those with places
    transactions: list[OpenTransaction]


class Replay:
    """Takes records one by one with :meth:`apply`; :meth:`finish` says what they come to."""

    def __init__(self, base_lsn: int) -> None:
        self.problems: list[Problem] = []
        self.problem_count = 0
        self.batches = 0
        self.records = 0  # BATCH records not counted
        self.types: Counter[RecordType | int] = Counter()
        self.committed = 0
        self.rolled_back = 0  # by a record of their own
        self.abandoned = 0  # by recovery, for want of an outcome
        self.staged_dropped = 0  # by recovery
        self.orphans = 0
        self.queue_id_max = 0  # of all that are named
        self.deleted_queues: set[int] = set()
        self._base_lsn = base_lsn
        self._epoch = 0
        self._time_us = 0
        self._messages: dict[int, _Message] = {}
        self._staged: set[int] = set()
        self._transactions: dict[int, OpenTransaction] = {}
        self._last: dict[int, int] = {}  # chains that may go on: the LSN of the newest record
        self._places: dict[tuple[int, ...], tuple[int, ...]] = {}  # equal ones kept once
        self._handlers: dict[RecordType | int, Callable[[Record], None]] = {
            RecordType.MESSAGE_START: self._start,
            RecordType.MESSAGE_CHUNK: self._chunk,
            RecordType.MESSAGE_ENQUEUE: self._enqueue,
            RecordType.MESSAGE_DEQUEUE: self._dequeue,
            RecordType.MESSAGE_DELETE: self._delete,
            RecordType.MESSAGE_RELOCATED: self._relocated,
            RecordType.TX_START: self._begin,
            RecordType.DTX_START: self._begin,
            RecordType.TX_END: self._step,
            RecordType.TX_PREPARE: self._step,
            RecordType.TX_COMMIT: self._outcome,
            RecordType.TX_ROLLBACK: self._outcome,
            RecordType.TX_DELETE: self._forget,
            RecordType.TX_RELOCATED: self._relocated,
            RecordType.QUEUE_DELETE: self._delete_queue,
            RecordType.BATCH: self._batch,
        }

    def apply(self, record: Record) -> None:
        """Take the next record. Raises ``VersionError`` for relocated chains, which this version does not know."""
        self.types[record.type] += 1
        handler = self._handlers.get(record.type)
        if handler is None:
            self.records += 1
            return
        if record.type is not RecordType.BATCH:
            self.records += 1
            if record.id != 0:
                self._link(record)
        handler(record)

    def _problem(self, lsn: int, reason: str) -> None:
        self.problem_count += 1
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(Problem(lsn, reason))

    # ---- Chains

    def _link(self, record: Record) -> None:
        """The back-link names the chain's newest record, or one below the base."""
        last = self._last.get(record.id)
        if record.type in FIRST and not record.flags & RecordFlag.COPY:
            if last is not None:
                self._problem(record.lsn, f"chain {record.id} starts twice")
        elif last is not None:
            if record.prev != last:
                self._problem(
                    record.lsn, f"prev is {record.prev}, and the record before it in chain {record.id} is {last}"
                )
        elif record.id >= self._base_lsn:
            self._problem(record.lsn, f"chain {record.id} has no start, or had ended before")
        elif record.prev >= self._base_lsn:
            self._problem(record.lsn, f"prev {record.prev} is no record of chain {record.id}")
        self._last[record.id] = record.lsn

    def _missing(self, record: Record) -> None:
        """A record of a chain that began below the base, or that :meth:`_link` has complained of."""
        if record.id < self._base_lsn:
            self.orphans += 1

    # ---- Messages

    def _name_queues(self, queues: Iterable[int]) -> None:
        self.queue_id_max = max(self.queue_id_max, *queues, 0)

    def _start(self, record: Record) -> None:
        body = record.body
        assert isinstance(body, MessageStart)
        if record.flags & RecordFlag.COPY:
            return
        made = _Message(len(body.content), bool(record.flags & RecordFlag.PUBLISHED))
        self._messages[record.id] = made
        self._staged.add(record.id)
        self._place(record, made, body)

    def _chunk(self, record: Record) -> None:
        body, message = record.body, self._messages.get(record.id)
        assert isinstance(body, MessageChunk)
        if record.flags & RecordFlag.COPY:
            return
        if message is None:
            self._missing(record)
            return
        if body.offset != message.content_bytes:
            self._problem(
                record.lsn, f"a chunk at {body.offset} does not continue content of {message.content_bytes} bytes"
            )
        message.content_bytes += len(body.content)

    def _enqueue(self, record: Record) -> None:
        body, message = record.body, self._messages.get(record.id)
        assert isinstance(body, MessageEnqueue)
        if message is None:
            self._name_queues(body.queues)
            self._number(record, body)
            self._missing(record)
        else:
            self._place(record, message, body)

    def _place(self, record: Record, message: _Message, body: MessageStart | MessageEnqueue) -> None:
        self._name_queues(body.queues)
        if body.tx_id == 0:
            for queue_id in body.queues:
                self._add_place(record, record.id, message, queue_id)
            return
        self._number(record, body)
        for queue_id in body.queues:
            self._work(record, body.tx_id, Operation(PendingKind.ENQUEUE, record.id, queue_id))

    def _number(self, record: Record, body: MessageStart | MessageEnqueue) -> None:
        """The enqueues of a transaction are numbered in the order in which they were made."""
        transaction = self._transactions.get(body.tx_id)
        if transaction is None:
            return
        if transaction.started and body.order_index != transaction.enqueues:
            reason = f"enqueue {body.order_index} of transaction {body.tx_id} comes after {transaction.enqueues} others"
            self._problem(record.lsn, reason)
        transaction.enqueues = body.order_index + len(body.queues)

    def _add_place(self, record: Record, message_id: int, message: _Message, queue_id: int) -> None:
        message.staged = False
        self._staged.discard(message_id)
        if queue_id in self.deleted_queues:
            return
        if queue_id in message.places:
            self._problem(record.lsn, f"message {message_id} is enqueued on queue {queue_id}, where it is already")
        else:
            places = (*message.places, queue_id)
            message.places = self._places.setdefault(places, places)

    def _drop_place(self, record: Record, message_id: int, message: _Message, queue_id: int) -> None:
        places = tuple(place for place in message.places if place != queue_id)
        if len(places) == len(message.places) and queue_id not in self.deleted_queues:
            self._problem(record.lsn, f"message {message_id} is dequeued from queue {queue_id}, where it is not")
        message.places = self._places.setdefault(places, places)

    def _dequeue(self, record: Record) -> None:
        body, message = record.body, self._messages.get(record.id)
        assert isinstance(body, MessageDequeue)
        self._name_queues((body.queue_id,))
        if message is None:
            self._missing(record)
        elif body.tx_id != 0:
            self._work(record, body.tx_id, Operation(PendingKind.DEQUEUE, record.id, body.queue_id))
        else:
            self._drop_place(record, record.id, message, body.queue_id)
            if record.flags & RecordFlag.DELETES:
                self._end_message(record, message)
            else:
                self._bury_if_dead(record.id, message)
        if record.flags & RecordFlag.DELETES:
            self._last.pop(record.id, None)

    def _delete(self, record: Record) -> None:
        message = self._messages.get(record.id)
        if message is not None:
            message.staged = False
            self._end_message(record, message)
        self._last.pop(record.id, None)

    def _end_message(self, record: Record, message: _Message) -> None:
        if not self._is_dead(message):
            self._problem(record.lsn, f"message {record.id} is deleted while it is still needed")
        self._remove_message(record.id)

    def _is_dead(self, message: _Message) -> bool:
        return not message.pending and not message.staged and not self._visible(message)

    def _visible(self, message: _Message) -> list[int]:
        return [place for place in message.places if place not in self.deleted_queues]

    def _bury_if_dead(self, message_id: int, message: _Message) -> None:
        if self._is_dead(message):
            self._remove_message(message_id)

    def _remove_message(self, message_id: int) -> None:
        del self._messages[message_id]
        self._staged.discard(message_id)

    def _delete_queue(self, record: Record) -> None:
        """Places there are gone at once; messages without another are counted out at the end."""
        body = record.body
        assert isinstance(body, QueueDelete)
        self._name_queues((body.queue_id,))
        self.deleted_queues.add(body.queue_id)

    # ---- Transactions

    def _begin(self, record: Record) -> None:
        xid = record.body if isinstance(record.body, XidBody) else None
        self._transactions[record.id] = OpenTransaction(record.id, record.lsn, xid)

    def _work(self, record: Record, tx_id: int, operation: Operation) -> None:
        transaction = self._transactions.get(tx_id)
        if transaction is None:
            if tx_id >= self._base_lsn:
                self._problem(record.lsn, f"an operation of transaction {tx_id}, which is not open")
                return
            transaction = self._transactions[tx_id] = OpenTransaction(tx_id, record.lsn, started=False)
        transaction.operations.append(operation)
        self._messages[operation.message_id].pending += 1

    def _step(self, record: Record) -> None:
        transaction = self._transactions.get(record.id)
        if transaction is None:
            self._missing(record)
        elif record.type is RecordType.TX_END:
            transaction.state = "ended"
        else:
            assert isinstance(record.body, XidBody)
            transaction.xid = record.body
            transaction.state = "prepared"
            transaction.prepared_us = self._time_us

    def _outcome(self, record: Record) -> None:
        transaction = self._transactions.pop(record.id, None)
        if transaction is None:
            self._missing(record)
        elif record.type is RecordType.TX_COMMIT:
            self.committed += 1
            for operation in transaction.operations:
                self._commit(record, operation)
        else:
            self.rolled_back += 1
            self._undo(transaction)

    def _commit(self, record: Record, operation: Operation) -> None:
        message = self._messages.get(operation.message_id)
        if message is None:  # deleted by a record that was complained of
            return
        message.pending -= 1
        if operation.kind is PendingKind.DEQUEUE:
            self._drop_place(record, operation.message_id, message, operation.queue_id)
        else:
            self._add_place(record, operation.message_id, message, operation.queue_id)
        self._settle(operation.message_id, message)

    def _undo(self, transaction: OpenTransaction) -> None:
        for operation in transaction.operations:
            message = self._messages.get(operation.message_id)
            if message is not None:
                message.pending -= 1
                self._settle(operation.message_id, message)
        transaction.operations = []

    def _settle(self, message_id: int, message: _Message) -> None:
        """A publish goes with the rollback of its enqueue; what was staged before stays staged."""
        if not message.pending and not self._visible(message) and message.published:
            message.staged = False
        self._bury_if_dead(message_id, message)

    def _forget(self, record: Record) -> None:
        if record.id in self._transactions:
            self._problem(record.lsn, f"transaction {record.id} is forgotten before its outcome")
        self._last.pop(record.id, None)

    def _relocated(self, record: Record) -> None:
        raise VersionError(
            f"the log holds relocated chains (LSN {record.lsn}), which this version does not replay: use a newer one"
        )

    # ---- Epochs

    def _batch(self, record: Record) -> None:
        body = record.body
        assert isinstance(body, Batch)
        self.batches += 1
        self._time_us = body.time_us
        if body.epoch != self._epoch and self._epoch != 0:
            self._recover()
        self._epoch = body.epoch

    def _recover(self) -> None:
        """What opening the store does: transactions that are not prepared are undone, staged messages dropped."""
        for transaction in self._transactions.values():
            if not transaction.prepared:
                self._undo(transaction)
        for message_id in [one for one in self._staged if not self._messages[one].pending]:
            self._remove_message(message_id)
            self._last.pop(message_id, None)
            self.staged_dropped += 1

    def finish(self, *, writer_epoch: int | None = None) -> Replayed:
        """The state at the end of the log: as recovery will make it, or as the writer of this epoch has it now."""
        recovering = writer_epoch != self._epoch  # a writer that has written nothing yet has recovered, too
        for transaction in self._transactions.values():
            if not transaction.started:
                self._problem(
                    transaction.lsn,
                    f"an operation of transaction {transaction.id}, which has neither start nor outcome",
                )
        if recovering:
            self._recover()
            self.abandoned = sum(not one.prepared for one in self._transactions.values())
        return self._replayed(recovering=recovering)

    def without_queues(self, queue_ids: Iterable[int]) -> Replayed:
        """The state as recovery will make it if these queues are gone from the catalog; after :meth:`finish`."""
        self.deleted_queues.update(queue_ids)
        return self._replayed(recovering=True)

    def _replayed(self, *, recovering: bool) -> Replayed:
        queues: dict[int, QueueCounts] = {}
        messages = 0
        for message in self._messages.values():
            messages += not self._is_dead(message)
            for queue_id in self._visible(message):
                counts = queues.setdefault(queue_id, QueueCounts())
                counts.depth += 1
                counts.content_bytes += message.content_bytes
        remaining = [one for one in self._transactions.values() if one.prepared or not recovering]
        self._count_locked(queues, remaining)
        return Replayed(
            messages=messages,
            staged=sum(not self._messages[one].pending for one in self._staged),
            places=sum(counts.depth for counts in queues.values()),
            queues=queues,
            transactions=remaining,
        )

    def _count_locked(self, queues: dict[int, QueueCounts], transactions: list[OpenTransaction]) -> None:
        """A transaction's dequeue locks the place that is there; one of what it enqueued itself locks nothing."""
        locked: set[tuple[int, int]] = set()
        for transaction in transactions:
            for kind, message_id, queue_id in transaction.operations:
                message = self._messages.get(message_id)
                if kind is PendingKind.DEQUEUE and message is not None and queue_id in self._visible(message):
                    locked.add((message_id, queue_id))
        for _, queue_id in locked:
            queues[queue_id].locked += 1


def half_deleted(replayed: Replayed, kept: Container[int]) -> dict[int, int]:
    """The queues whose deletion recovery finishes, and how many places on each it drops.

    They have places, or work of transactions in doubt, and the catalog no longer has them.
    """
    worked_on = {operation.queue_id: 0 for one in replayed.transactions for operation in one.operations}
    places = worked_on | {queue_id: counts.depth for queue_id, counts in replayed.queues.items()}
    return {queue_id: places[queue_id] for queue_id in sorted(places) if queue_id not in kept}


def xid_text(xid: XidBody) -> str:
    """As people write it: ``format:gtrid-hex:bqual-hex``."""
    return f"{xid.format_id}:{xid.gtrid.hex()}:{xid.bqual.hex()}"
