"""What the records of a log mean, in pure Python: which messages live, on which queues, and what is pending.

Written from section 7 of docs/format.md alone and sharing nothing with csrc/replay, so that the two can be held
against each other. It is for inspection: it keeps places without their order.

What always holds: it takes the records of an accepted log from its base on, in order, and never raises for what
they say; what contradicts the format's rules is noted in ``problems``, and it goes on. A relocated state wins over
what was known before, also where the two differ, which is a problem.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from logstore.codec.chains import Chains
from logstore.codec.records import (
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
    TxKind,
    TxRelocated,
    XidBody,
)
from logstore.codec.relocation import (
    Content,
    MessageState,
    Piece,
    completed_state,
    differences,
    inline_state,
    is_relocated,
    work_key,
)
from logstore.codec.replay_state import (
    Abandoned,
    Message,
    OpenTransaction,
    Operation,
    Problem,
    QueueCounts,
    Replayed,
    Staged,
    xid_text,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = [
    "OpenTransaction",
    "Operation",
    "Problem",
    "QueueCounts",
    "Replay",
    "Replayed",
    "xid_text",
]

PROBLEMS_MAX = 1000  # noted; all are counted
MESSAGE_TYPES = frozenset(kind for kind in RecordType if kind.name.startswith("MESSAGE_"))


def _before(pieces: dict[int, Piece], offset: int) -> dict[int, Piece]:
    return {lsn: piece for lsn, piece in pieces.items() if piece.offset < offset}


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
        self.undone: list[Abandoned] = []  # by recovery, for want of an outcome
        self.dropped: list[Staged] = []  # by recovery
        self.orphan_messages = 0  # records of messages that began below the base
        self.orphan_transactions = 0
        self.queue_id_max = 0  # of all that are named
        self.deleted_queues: set[int] = set()
        self._base_lsn = base_lsn
        self._epoch = 0
        self._time_us = 0
        self._messages: dict[int, Message] = {}
        self._staged: set[int] = set()
        self._transactions: dict[int, OpenTransaction] = {}
        self._pending: dict[int, list[Operation]] = {}  # by message; what open transactions did to it
        self._chains = Chains(base_lsn)
        self._seen_chunks: dict[int, dict[int, Piece]] = {}  # of messages whose start lies below the base
        self._ended: set[int] = set()  # chains that began below the base and are known to be over
        self._places: dict[tuple[int, ...], tuple[int, ...]] = {}  # equal ones kept once
        self._handlers: dict[RecordType | int, Callable[[Record], None]] = {
            RecordType.MESSAGE_START: self._start,
            RecordType.MESSAGE_CHUNK: self._chunk,
            RecordType.MESSAGE_ENQUEUE: self._enqueue,
            RecordType.MESSAGE_DEQUEUE: self._dequeue,
            RecordType.MESSAGE_DELETE: self._delete,
            RecordType.MESSAGE_RELOCATED: self._relocate,
            RecordType.TX_START: self._begin,
            RecordType.DTX_START: self._begin,
            RecordType.TX_END: self._step,
            RecordType.TX_PREPARE: self._step,
            RecordType.TX_COMMIT: self._outcome,
            RecordType.TX_ROLLBACK: self._outcome,
            RecordType.TX_DELETE: self._forget,
            RecordType.TX_RELOCATED: self._relocate_transaction,
            RecordType.QUEUE_DELETE: self._delete_queue,
            RecordType.BATCH: self._batch,
        }

    @property
    def orphans(self) -> int:
        """Records of chains that began below the base."""
        return self.orphan_messages + self.orphan_transactions

    @property
    def abandoned(self) -> int:
        """How many transactions recovery rolls back."""
        return len(self.undone)

    @property
    def staged_dropped(self) -> int:
        """How many messages recovery drops because they were never enqueued."""
        return len(self.dropped)

    def apply(self, record: Record) -> None:
        """Take the next record."""
        self.types[record.type] += 1
        handler = self._handlers.get(record.type)
        if handler is None:
            self.records += 1
            return
        if record.type is not RecordType.BATCH:
            self.records += 1
            if record.id != 0 and not is_relocated(record):
                self._link(record)
        handler(record)

    def _problem(self, lsn: int, reason: str) -> None:
        self.problem_count += 1
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(Problem(lsn, reason))

    # ---- Chains

    def _link(self, record: Record) -> None:
        wrong = self._chains.link(record)
        if wrong is not None:
            self._problem(record.lsn, wrong)

    def _missing(self, record: Record) -> None:
        """A record of a chain that began below the base, or that :meth:`_link` has complained of."""
        if record.id >= self._base_lsn:
            return
        if record.type in MESSAGE_TYPES:
            self.orphan_messages += 1
        else:
            self.orphan_transactions += 1

    # ---- Messages

    def _name_queues(self, queues: Iterable[int]) -> None:
        self.queue_id_max = max(self.queue_id_max, *queues, 0)

    def _start(self, record: Record) -> None:
        if is_relocated(record):
            self._copy(record)
            return
        body = record.body
        assert isinstance(body, MessageStart)
        made = Message(len(body.content), bool(record.flags & RecordFlag.PUBLISHED))
        self._messages[record.id] = made
        self._staged.add(record.id)
        self._place(record, made, body)

    def _chunk(self, record: Record) -> None:
        body, message = record.body, self._messages.get(record.id)
        assert isinstance(body, MessageChunk)
        if is_relocated(record):
            self._copy(record)
            return
        if message is None:
            self._missing(record)
            if record.id < self._base_lsn:  # a relocated state may name it where it is
                seen = self._seen_chunks.setdefault(record.id, {})
                seen[record.lsn] = Piece(body.offset, len(body.content))
                if not body.content:
                    self._seen_chunks[record.id] = _before(seen, body.offset)
            return
        if not body.content:  # an append that failed is taken back
            self._take_back(record, message, body.offset)
            return
        if body.offset != message.content_bytes:
            self._problem(
                record.lsn, f"a chunk at {body.offset} does not continue content of {message.content_bytes} bytes"
            )
        if message.content is None:
            message.content = Content(record.id, message.content_bytes, {})
        message.content.chunks[record.lsn] = Piece(body.offset, len(body.content))
        message.content_bytes += len(body.content)

    def _take_back(self, record: Record, message: Message, offset: int) -> None:
        content = message.content
        before = {} if content is None else content.chunks
        after = _before(before, offset)
        cut = sum(piece.content_bytes for lsn, piece in before.items() if lsn not in after)
        if message.content_bytes - cut != offset:
            self._problem(record.lsn, f"content is taken back from {offset} on, and no chunk begins there")
        message.content_bytes = offset
        if content is not None:
            message.content = Content(content.start_lsn, content.start_bytes, after)

    def _enqueue(self, record: Record) -> None:
        body, message = record.body, self._messages.get(record.id)
        assert isinstance(body, MessageEnqueue)
        if message is None:
            self._name_queues(body.queues)
            self._number(record, body)
            self._missing(record)
        else:
            self._place(record, message, body)

    def _place(self, record: Record, message: Message, body: MessageStart | MessageEnqueue) -> None:
        self._name_queues(body.queues)
        if body.tx_id == 0:
            for queue_id in body.queues:
                self._add_place(record, record.id, message, queue_id)
            return
        self._number(record, body)
        for order_index, queue_id in enumerate(body.queues, body.order_index):
            work = Operation(PendingKind.ENQUEUE, record.id, queue_id, body.tx_id, record.lsn, order_index)
            self._work(record, work)

    def _number(self, record: Record, body: MessageStart | MessageEnqueue) -> None:
        """The enqueues of a transaction are numbered in the order in which they were made."""
        transaction = self._transactions.get(body.tx_id)
        if transaction is None:
            return
        if transaction.enqueues is not None and body.order_index != transaction.enqueues:
            reason = f"enqueue {body.order_index} of transaction {body.tx_id} comes after {transaction.enqueues} others"
            self._problem(record.lsn, reason)
        transaction.enqueues = body.order_index + len(body.queues)

    def _add_place(self, record: Record, message_id: int, message: Message, queue_id: int) -> None:
        message.staged = False
        self._staged.discard(message_id)
        if queue_id in self.deleted_queues:
            return
        if queue_id in message.places:
            self._problem(record.lsn, f"message {message_id} is enqueued on queue {queue_id}, where it is already")
        else:
            places = (*message.places, queue_id)
            message.places = self._places.setdefault(places, places)

    def _drop_place(self, record: Record, message_id: int, message: Message, queue_id: int) -> None:
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
            self._work(record, Operation(PendingKind.DEQUEUE, record.id, body.queue_id, body.tx_id, record.lsn, 0))
        else:
            self._drop_place(record, record.id, message, body.queue_id)
            if record.flags & RecordFlag.DELETES:
                self._end_message(record, message)
            else:
                self._bury_if_dead(record.id, message)
        if record.flags & RecordFlag.DELETES:
            self._end_chain(record)

    def _delete(self, record: Record) -> None:
        message = self._messages.get(record.id)
        if message is not None:
            message.staged = False
            self._end_message(record, message)
        self._end_chain(record)

    def _end_chain(self, record: Record) -> None:
        self._chains.end(record.id)
        if record.id < self._base_lsn:
            self._ended.add(record.id)

    def _end_message(self, record: Record, message: Message) -> None:
        if not self._is_dead(record.id, message):
            self._problem(record.lsn, f"message {record.id} is deleted while it is still needed")
        self._remove_message(record.id)

    def _is_dead(self, message_id: int, message: Message) -> bool:
        return message_id not in self._pending and not message.staged and not self._visible(message)

    def _visible(self, message: Message) -> list[int]:
        return [place for place in message.places if place not in self.deleted_queues]

    def _bury_if_dead(self, message_id: int, message: Message) -> None:
        if self._is_dead(message_id, message):
            self._remove_message(message_id)

    def _remove_message(self, message_id: int) -> None:
        del self._messages[message_id]
        self._staged.discard(message_id)
        self._pending.pop(message_id, None)
        if message_id < self._base_lsn:
            self._ended.add(message_id)

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

    def _work(self, record: Record, operation: Operation) -> None:
        tx_id = operation.tx_id
        transaction = self._transactions.get(tx_id)
        if transaction is None:
            if tx_id >= self._base_lsn or tx_id in self._ended:
                self._problem(record.lsn, f"an operation of transaction {tx_id}, which is not open")
                return
            transaction = OpenTransaction(tx_id, record.lsn, started=False, enqueues=None)
            self._transactions[tx_id] = transaction
        transaction.operations.append(operation)
        self._pending.setdefault(operation.message_id, []).append(operation)

    def _end_work(self, operation: Operation) -> None:
        """It is pending no more."""
        left = self._pending.get(operation.message_id, [])
        if operation in left:
            left.remove(operation)
        if not left:
            self._pending.pop(operation.message_id, None)

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
        if record.id < self._base_lsn:
            self._ended.add(record.id)
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
        self._end_work(operation)
        if operation.kind is PendingKind.DEQUEUE:
            self._drop_place(record, operation.message_id, message, operation.queue_id)
        else:
            self._add_place(record, operation.message_id, message, operation.queue_id)
        self._settle(operation.message_id, message)

    def _undo(self, transaction: OpenTransaction) -> None:
        for operation in transaction.operations:
            message = self._messages.get(operation.message_id)
            if message is not None:
                self._end_work(operation)
                self._settle(operation.message_id, message)
        transaction.operations = []

    def _settle(self, message_id: int, message: Message) -> None:
        """A publish goes with the rollback of its enqueue; what was staged before stays staged."""
        if message_id not in self._pending and not self._visible(message) and message.published:
            message.staged = False
        self._bury_if_dead(message_id, message)

    def _forget(self, record: Record) -> None:
        if record.id in self._transactions:
            self._problem(record.lsn, f"transaction {record.id} is forgotten before its outcome")
        self._chains.end(record.id)

    def _relocate_transaction(self, record: Record) -> None:
        body, transaction = record.body, self._transactions.get(record.id)
        assert isinstance(body, TxRelocated)
        xid = None if body.kind is TxKind.LOCAL else XidBody(body.format_id, body.gtrid, body.bqual)
        state = body.state.name.lower()
        if transaction is None:
            if record.id >= self._base_lsn or record.id in self._ended:
                self._problem(record.lsn, f"transaction {record.id} is relocated, and is not open")
            transaction = OpenTransaction(record.id, record.lsn, enqueues=None)
            self._transactions[record.id] = transaction
        else:
            if transaction.xid != xid and (transaction.started or transaction.xid is not None):
                self._problem(record.lsn, f"transaction {record.id} is relocated under another xid")
            if transaction.state != state and (transaction.started or transaction.state != "active"):
                reason = f"transaction {record.id} is relocated as {state}, and it is {transaction.state}"
                self._problem(record.lsn, reason)
        transaction.started = True
        transaction.xid, transaction.state, transaction.prepared_us = xid, state, body.prepare_time_us

    # ---- Relocated messages

    def _copy(self, record: Record) -> None:
        """A copied start or chunk: it counts through the state that names it, or alone if it is inline."""
        if RecordFlag.INLINE not in record.flags:
            self._chains.copy(record)
            return
        self._link(record)
        self._chains.take_copies(record.id)
        self._replace(record, inline_state(record))

    def _relocate(self, record: Record) -> None:
        if RecordFlag.PART in record.flags:
            self._chains.copy(record)
            return
        self._link(record)
        copies = self._chains.take_copies(record.id)
        message = self._messages.get(record.id)
        known = None if message is None else message.content
        if message is not None and known is None:
            known = Content(record.id, message.content_bytes, {})
        copies.chunks = self._seen_chunks.pop(record.id, {}) | copies.chunks
        state, wrong = completed_state(record, copies, known, self._base_lsn)
        for reason in wrong:
            self._problem(record.lsn, f"message {record.id} is relocated: {reason}")
        if state is not None:
            self._replace(record, state)
        elif message is not None or record.id >= self._base_lsn:
            self._problem(record.lsn, f"message {record.id} is relocated, and the first parts of its state are missing")

    def _replace(self, record: Record, state: MessageState) -> None:
        """What a relocation says is the message's whole state, whatever was or was not seen of it before."""
        self._name_queues(state.queues)
        self._name_queues(work.queue_id for work in state.pending)
        if len(set(state.queues)) < len(state.queues):
            self._problem(record.lsn, f"message {record.id} is relocated with two places on one queue: {state.queues}")
        message = self._messages.get(record.id)
        if message is None:
            alive = state.staged or state.pending or any(not self._is_deleted(queue_id) for queue_id in state.queues)
            if not alive:  # its last queue was deleted, which the writer had yet to apply
                return
            if record.id >= self._base_lsn or record.id in self._ended:
                self._problem(record.lsn, f"message {record.id} is relocated after its end")
            message = self._messages[record.id] = Message(state.content_bytes, state.published)
        else:
            pending = self._pending.get(record.id, [])
            for difference in differences(message, pending, state, self._is_deleted):
                self._problem(record.lsn, f"message {record.id} is relocated {difference}")
        message.content_bytes, message.content = state.content_bytes, state.content
        places = tuple(dict.fromkeys(state.queues))
        message.places = self._places.setdefault(places, places)
        message.staged = state.staged
        (self._staged.add if state.staged else self._staged.discard)(record.id)
        self._replace_work(record, state)

    def _replace_work(self, record: Record, state: MessageState) -> None:
        """Work that is known already stays where it is in its transaction; other work comes or goes."""
        said = {work_key(work) for work in state.pending}
        known = self._pending.get(record.id, [])
        for operation in [one for one in known if work_key(one) not in said and not self._is_deleted(one.queue_id)]:
            self._transactions[operation.tx_id].operations.remove(operation)
            self._end_work(operation)
        there = {work_key(work) for work in known}
        for work in state.pending:
            if work_key(work) not in there:
                order_index = work.order_index if work.kind is PendingKind.ENQUEUE else 0
                operation = Operation(work.kind, record.id, work.queue_id, work.tx_id, work.lsn, order_index)
                self._work(record, operation)

    def _is_deleted(self, queue_id: int) -> bool:
        return queue_id in self.deleted_queues

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
            if transaction.started and not transaction.prepared:  # of others the state or the outcome follows
                self._undo(transaction)
        for message_id in [one for one in self._staged if one not in self._pending]:
            self.dropped.append(Staged(message_id, self._messages[message_id].content_bytes))
            self._remove_message(message_id)
            self._chains.end(message_id)

    def finish(self, *, writer_epoch: int | None = None) -> Replayed:
        """The state at the end of the log: as recovery will make it, or as the writer of this epoch has it now."""
        recovering = writer_epoch != self._epoch  # a writer that has written nothing yet has recovered, too
        for transaction in self._transactions.values():
            if not transaction.started:
                self._problem(
                    transaction.lsn,
                    f"an operation of transaction {transaction.id}, which has neither start nor outcome "
                    "nor relocated state",
                )
        if recovering:
            self.undone = [
                Abandoned(one.id, one.xid, len(one.operations))
                for one in self._transactions.values()
                if not one.prepared
            ]
            self._recover()
        return self._replayed(recovering=recovering)

    def _replayed(self, *, recovering: bool) -> Replayed:
        queues: dict[int, QueueCounts] = {}
        messages = 0
        for message_id, message in self._messages.items():
            if self._is_dead(message_id, message):
                continue
            messages += 1
            self._check_content(message_id, message)
            for queue_id in self._visible(message):
                counts = queues.setdefault(queue_id, QueueCounts())
                counts.depth += 1
                counts.content_bytes += message.content_bytes
        remaining = [one for one in self._transactions.values() if one.prepared or not recovering]
        self._count_locked(queues, remaining)
        return Replayed(
            messages=messages,
            staged=sum(one not in self._pending for one in self._staged),
            places=sum(counts.depth for counts in queues.values()),
            queues=queues,
            transactions=remaining,
        )

    def _check_content(self, message_id: int, message: Message) -> None:
        """What a message that lives needs is above the base."""
        content = message.content
        if content is not None and min((content.start_lsn, *content.chunks)) < self._base_lsn:
            reason = f"message {message_id} lives, and content of it lies below the base"
            self._problem(self._chains.newest(message_id), reason)

    def _count_locked(self, queues: dict[int, QueueCounts], transactions: list[OpenTransaction]) -> None:
        """A transaction's dequeue locks the place that is there; one of what it enqueued itself locks nothing."""
        locked: set[tuple[int, int]] = set()
        for transaction in transactions:
            for work in transaction.operations:
                message = self._messages.get(work.message_id)
                if work.kind is PendingKind.DEQUEUE and message is not None and work.queue_id in self._visible(message):
                    locked.add((work.message_id, work.queue_id))
        for _, queue_id in locked:
            queues[queue_id].locked += 1
