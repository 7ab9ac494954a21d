"""The strict policy of the interpreter: the log is complete, and every contradiction is a problem.

Invariant: it takes the records of an accepted log from its base on, in order, and never raises for their contents. It
notes a contradiction of the format's rules in ``problems``, and the newer record counts.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from sortedcontainers import SortedDict

from logstore.codec.chains import Chains
from logstore.codec.interpreter import NO_PLACE_FOR_STATE, Interpreter, missing_text
from logstore.codec.records import (
    Batch,
    MessageChunk,
    MessageRelocated,
    MessageRelocatedPlaced,
    PendingKind,
    Record,
    RecordFlag,
    RecordType,
    Stream,
    XidBody,
)
from logstore.codec.relocation import differences, start_bytes, state_chunks, wrong_state
from logstore.codec.replication import ReplicationRules
from logstore.codec.state import (
    Abandoned,
    Copies,
    EndState,
    Message,
    Moved,
    Piece,
    Place,
    Problem,
    QueueCounts,
    Staged,
    Transaction,
    Work,
    xid_text,
)

if TYPE_CHECKING:
    from logstore.codec.place_states import RelocatedState
    from logstore.codec.records import StateRow

__all__ = ["EndState", "Problem", "QueueCounts", "StrictReplay", "Transaction", "Work", "xid_text"]

PROBLEMS_MAX = 1000  # listed; the rest is only counted


class StrictReplay(Interpreter):
    """Takes records one by one with :meth:`apply`; :meth:`finish` returns the state at the end of the log.

    ``segment_size`` in bytes is needed to judge where the terms of a replicated log begin.
    """

    def __init__(self, base_lsn: int, segment_size: int | None = None) -> None:
        super().__init__(base_lsn)
        self.problems: list[Problem] = []
        self.problem_count = 0
        self.batches = 0
        self.records = 0  # without BATCH records
        self.types: Counter[RecordType | int] = Counter()
        self.undone: list[Abandoned] = []  # by recovery, because they have no outcome
        self.dropped: list[Staged] = []  # by recovery
        self.orphan_messages = 0  # records of messages that began below the base
        self.orphan_transactions = 0
        self._chains = Chains(base_lsn)
        self._replication = ReplicationRules(base_lsn, segment_size)
        self._places: dict[tuple[Place, ...], tuple[Place, ...]] = {}
        self._seen_chunks: dict[int, dict[int, Piece]] = {}  # of messages whose start lies below the base, by offset

    @property
    def orphans(self) -> int:
        """The number of records of chains that began below the base."""
        return self.orphan_messages + self.orphan_transactions

    @property
    def abandoned(self) -> int:
        """The number of transactions that recovery rolls back."""
        return len(self.undone)

    @property
    def staged_dropped(self) -> int:
        """The number of messages that recovery drops because they were never enqueued."""
        return len(self.dropped)

    def apply(self, record: Record) -> None:
        """Takes the next record."""
        self.types[record.type] += 1
        if isinstance(record.body, Batch):
            self.batches += 1
            self.enter(record.body.epoch)
        else:
            self.records += 1
        for reason in self._replication.judge(record):
            self.contradiction(record.lsn, reason)
        if record.id != 0 and isinstance(record.type, RecordType):
            wrong = self._chains.link(record)
            if wrong is not None:
                self.contradiction(record.lsn, wrong)
            deletes = RecordFlag.DELETES in record.flags
            if deletes and record.id not in self.messages:
                self._missing(record)
            if deletes or record.type in (RecordType.MESSAGE_DELETE, RecordType.TX_DELETE):
                self._chains.end(record.id)
        self.interpret(record)

    # ---- The policy

    def contradiction(self, lsn: int, reason: str) -> None:
        """Notes a problem."""
        self.problem_count += 1
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(Problem(lsn, reason))

    def _missing(self, record: Record) -> None:
        """Counts a record of a chain that began below the base; ignores one whose back-link was reported already."""
        if record.id < self.base_lsn and isinstance(record.type, RecordType):
            self.orphan_messages += record.type.stream is Stream.MESSAGE
            self.orphan_transactions += record.type.stream is Stream.TRANSACTION

    def known(self, record: Record) -> Message | None:
        """Records of unknown messages are orphans; their chunks are kept, because a relocated state may name them."""
        message = self.messages.get(record.id)
        if message is None:
            self._missing(record)
            if isinstance(record.body, MessageChunk) and record.id < self.base_lsn:
                offset, size = record.body.offset, len(record.body.content)
                seen = self._seen_chunks.setdefault(record.id, {})
                seen[offset] = Piece(record.lsn, size)
                if size == 0:
                    self._seen_chunks[record.id] = {at: piece for at, piece in seen.items() if at < offset}
        return message

    def add_content(self, record: Record, message: Message, body: MessageChunk) -> None:
        """A chunk must begin where the content ends; a truncation must end where a chunk begins."""
        if body.content and body.offset != message.length:
            reason = f"a chunk at {body.offset} does not continue content of {message.length} bytes"
            self.contradiction(record.lsn, reason)
        elif not body.content:
            cut = sum(message.pieces[offset].size for offset in message.pieces.irange(body.offset))
            if message.length - cut != body.offset:
                reason = f"content is taken back from {body.offset} on, and no chunk begins there"
                self.contradiction(record.lsn, reason)
        super().add_content(record, message, body)

    def numbered(self, lsn: int, tx_id: int, order_index: int, count: int) -> None:
        """The enqueues of a transaction must be numbered in the order in which they were made."""
        transaction = self.transactions.get(tx_id)
        if transaction is None:
            return
        if transaction.enqueues is not None and order_index != transaction.enqueues:
            reason = f"enqueue {order_index} of transaction {tx_id} comes after {transaction.enqueues} others"
            self.contradiction(lsn, reason)
        transaction.enqueues = order_index + count

    def opened(self, lsn: int, work: Work) -> Transaction | None:
        """The transaction of this work; makes one that began below the base, where its start record is gone."""
        tx_id = work.tx_id
        transaction = self.transactions.get(tx_id)
        if transaction is None:
            if tx_id >= self.base_lsn or tx_id in self.ended:
                self.contradiction(lsn, f"an operation of transaction {tx_id}, which is not open")
                return None
            transaction = Transaction(tx_id, lsn, lsn, started=False, enqueues=None)
            self.transactions[tx_id] = transaction
        return transaction

    def stepped(self, record: Record) -> Transaction | None:
        """Records of an unknown transaction are orphans."""
        transaction = self.transactions.get(record.id)
        if transaction is None:
            self._missing(record)
        return transaction

    def moved_transaction(self, record: Record, xid: XidBody | None, state: str) -> Transaction:
        """A relocated transaction must be open and unchanged."""
        transaction = self.transactions.get(record.id)
        if transaction is None:
            if record.id >= self.base_lsn or record.id in self.ended:
                self.contradiction(record.lsn, f"transaction {record.id} is relocated, and is not open")
            transaction = Transaction(record.id, record.lsn, record.lsn, enqueues=None)
            self.transactions[record.id] = transaction
            return transaction
        if transaction.xid != xid and (transaction.started or transaction.xid is not None):
            self.contradiction(record.lsn, f"transaction {record.id} is relocated under another xid")
        if transaction.state != state and (transaction.started or transaction.state != "active"):
            reason = f"transaction {record.id} is relocated as {state}, and it is {transaction.state}"
            self.contradiction(record.lsn, reason)
        return transaction

    def accepts(self, record: Record, copies: Copies, moved: Moved) -> bool:
        """Ignores a message whose last queue is deleted: the writer had not yet applied the deletion."""
        message, told = self.messages.get(record.id), f"message {record.id} is relocated"
        broken, seen = self._chains.take_broken(record.id), self._seen_chunks.pop(record.id, {})
        if isinstance(record.body, MessageRelocated | MessageRelocatedPlaced):
            for reason in wrong_state(record.body, copies, message, seen, moved, broken, self.base_lsn):
                self.contradiction(record.lsn, f"{told}: {reason}")
        queues = tuple(place.queue_id for place in moved.places)
        if len(set(queues)) < len(queues):
            self.contradiction(record.lsn, f"{told} with two places on one queue: {queues}")
        if message is not None:
            for difference in differences(message, record, moved, self._is_deleted):
                self.contradiction(record.lsn, f"{told} {difference}")
            return True
        if not (moved.staged or moved.work or any(not self._is_deleted(queue_id) for queue_id in queues)):
            return False
        if record.id >= self.base_lsn or record.id in self.ended:
            self.contradiction(record.lsn, f"{told} after its end")
        return True

    def accepts_without_parts(self, record: Record, copies: Copies) -> bool:  # noqa: ARG002
        """The first parts may lie below the base; a later relocation then has the whole state."""
        self._chains.take_broken(record.id)
        self._seen_chunks.pop(record.id, None)
        if record.id in self.messages or record.id >= self.base_lsn:
            reason = f"message {record.id} is relocated, and the first parts of its state are missing"
            self.contradiction(record.lsn, reason)
        return False

    def take_content(self, message: Message, state: RelocatedState, copies: Copies) -> None:
        """Takes the positions from the state."""
        chunks = state_chunks(copies)
        message.start_bytes = start_bytes(state, chunks, copies, message)
        message.start_lsn = state.start_lsn
        message.chunks = SortedDict((chunk.offset, Piece(chunk.lsn, chunk.content_bytes)) for chunk in chunks)

    def not_on(self, lsn: int, message_id: int, message: Message, queue_id: int, ended: str) -> None:  # noqa: ARG002
        """Reports a problem unless the queue was deleted."""
        if not self._is_deleted(queue_id):
            self.contradiction(lsn, f"message {message_id} is {ended} from queue {queue_id}, where it is not")

    def stated(self, lsn: int, row: StateRow) -> Message | None:
        """A row of an unknown message is an orphan if the message began below the base."""
        message = self.messages.get(row.id)
        if message is None and row.id < self.base_lsn:
            self.orphan_messages += 1
        elif message is None and not self._is_deleted(row.queue_id):
            self.contradiction(lsn, missing_text(NO_PLACE_FOR_STATE, row.id, row.queue_id))
        return message

    def missing_place(self, lsn: int, message_id: int, message: Message, queue_id: int, reason: str) -> Place | None:  # noqa: ARG002
        """Reports a problem unless the queue was deleted."""
        if not self._is_deleted(queue_id):
            self.contradiction(lsn, missing_text(reason, message_id, queue_id))
        return None

    def is_over(self, message: Message) -> bool:
        """Places on deleted queues do not count."""
        return not message.pending and not self._visible(message)

    def dequeued(self, record: Record, message: Message) -> None:
        """The last dequeue ends the message even without the flag."""
        if self.is_over(message) and not message.staged:
            self.end_message(record.id)

    def as_kept(self, places: tuple[Place, ...]) -> tuple[Place, ...]:
        """Keeps only queue ids and states; without states equal tuples once, because most messages share them."""
        bare = tuple(Place(place.queue_id, 0, 0, 0, place.state) for place in places)
        if any(place.state is not None for place in bare):
            return bare
        return self._places.setdefault(bare, bare)

    def keeps(self, work: Work) -> bool:
        """Work on a deleted queue waits for its transaction's outcome."""
        return self._is_deleted(work.queue_id)

    def recover(self) -> None:
        """Rolls back transactions that are not prepared, drops work on deleted queues, and drops staged messages."""
        for transaction in self.transactions.values():
            if transaction.started and not transaction.prepared:  # for others the state or the outcome follows
                self.undo(transaction)
            for work in [one for one in transaction.work if self._is_deleted(one.queue_id)]:
                message = self.messages.get(work.message_id)
                if message is not None:
                    self.end_work(message, work)
                    self._settle(work.message_id, message)
        staged = [one for one, message in self.messages.items() if message.staged and not message.pending]
        for message_id in staged:
            self.dropped.append(Staged(message_id, self.messages[message_id].length))
            self.end_message(message_id)
            self._chains.end(message_id)

    def _is_deleted(self, queue_id: int) -> bool:
        return queue_id in self.deleted_queues

    def _visible(self, message: Message) -> list[int]:
        return [place.queue_id for place in message.places if place.queue_id not in self.deleted_queues]

    # ---- The end

    def finish(self, *, writer_epoch: int | None = None) -> EndState:
        """The state at the end of the log: as recovery will restore it, or as the writer of this epoch has it now."""
        recovering = writer_epoch != self._epoch  # a writer that has written nothing yet has also recovered
        for transaction in self.transactions.values():
            if not transaction.started:
                self.contradiction(
                    transaction.lsn,
                    f"an operation of transaction {transaction.id}, which has neither start nor outcome "
                    "nor relocated state",
                )
        for lsn, reason in self._replication.at_end():
            self.contradiction(lsn, reason)
        if recovering:
            self.undone = [
                Abandoned(one.id, one.xid, len(one.work)) for one in self.transactions.values() if not one.prepared
            ]
            self.recover()
        return self._end_state(recovering=recovering)

    def _end_state(self, *, recovering: bool) -> EndState:
        queues: dict[int, QueueCounts] = {}
        messages = 0
        for message_id, message in self.messages.items():
            if self.is_over(message) and not message.staged:
                continue
            messages += 1
            self._check_content(message_id, message)
            for queue_id in self._visible(message):
                counts = queues.setdefault(queue_id, QueueCounts())
                counts.depth += 1
                counts.content_bytes += message.length
        remaining = [one for one in self.transactions.values() if one.prepared or not recovering]
        self._count_locked(queues, remaining)
        return EndState(
            messages=messages,
            staged=sum(one.staged and not one.pending for one in self.messages.values()),
            places=sum(counts.depth for counts in queues.values()),
            queues=queues,
            transactions=remaining,
        )

    def _check_content(self, message_id: int, message: Message) -> None:
        """Checks that the content of a live message lies above the base."""
        if min((message.start_lsn, *(piece.lsn for piece in message.pieces.values()))) < self.base_lsn:
            reason = f"message {message_id} lives, and content of it lies below the base"
            self.contradiction(self._chains.newest(message_id), reason)

    def _count_locked(self, queues: dict[int, QueueCounts], transactions: list[Transaction]) -> None:
        """Counts the places locked by transactions; dequeuing an enqueue of the same transaction locks nothing."""
        locked: set[tuple[int, int]] = set()
        for transaction in transactions:
            for work in transaction.work:
                message = self.messages.get(work.message_id)
                if work.kind is PendingKind.DEQUEUE and message is not None and work.queue_id in self._visible(message):
                    locked.add((work.message_id, work.queue_id))
        for _, queue_id in locked:
            queues[queue_id].locked += 1
