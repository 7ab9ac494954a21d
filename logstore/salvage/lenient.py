"""The lenient policy of the interpreter: records are missing, and the replay never stops.

Recovery and the strict policy (codec/strict.py) refuse a log with a missing record. This policy continues:

* a relocated state replaces everything that was known before, so damage in older records costs nothing;
* in doubt, a message is kept and reported;
* a record without any loss before it means exactly what it means to recovery.

It takes the items of codec/scan.py in LSN order: records, records with only a valid header, and gaps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sortedcontainers import SortedDict

from logstore.codec.chains import RELOCATED
from logstore.codec.interpreter import Interpreter, state_parts
from logstore.codec.records import (
    Batch,
    MessageChunk,
    MessageRelocated,
    MessageRelocatedPlaced,
    PendingKind,
    Record,
    RecordFlag,
    RecordType,
    XidBody,
)
from logstore.codec.scan import Damaged, Gap, probable_queues
from logstore.codec.state import START_UNKNOWN, Copies, Message, Moved, Place, Transaction, Work
from logstore.salvage.settle import settle
from logstore.salvage.state import CONTENT_IN_DOUBT, CONTENT_LOST, State

if TYPE_CHECKING:
    from collections.abc import Callable

    from logstore.codec.place_states import RelocatedState
    from logstore.codec.records import StateRow

_STARTS = frozenset({RecordType.MESSAGE_START, RecordType.MESSAGE_START_PLACED})
_LATER_UNKNOWN = "a record of it is lost that may have been an enqueue or a dequeue"
ELSEWHERE = "it is still live, but no readable record names its queue"
TRANSACTIONS = 2  # the high byte of the types of transactions


class LenientReplay(Interpreter):
    """Takes every item with :meth:`apply`; :meth:`finish` returns the state at the end of the log."""

    keeps_ended = True  # a record of an ended chain must not revive it

    def __init__(self, base_lsn: int, record_bytes_max: int) -> None:
        super().__init__(base_lsn)
        self.start_bytes_max = record_bytes_max // 2  # a publish writes a shorter start only with its enqueues inside
        self.probable: dict[int, list[int]] = {}  # queues of lost start records, from bytes without a checksum
        self.published_bytes: dict[int, int] = {}  # lengths of lost start records that a publish wrote, by id
        self.missing: dict[int, int] = {}  # by LSN, the chain of a record that only other records name
        self.first_loss_lsn: int | None = None
        self.last_gap_lsn = 0  # the end of the last gap, in which anything may have happened
        self.strays: dict[int, int] = {}  # chains below the base without a state, with the LSN of their first record
        self.staged_dropped = 0
        self.unread_starts: set[int] = set()  # ids of messages that ended, and whose start could not be read
        self.transactional = False  # any record of a transaction, or of work in one, was seen
        self.newest: Batch | None = None  # of the batch records that were read
        self.queue_doubt_lsn = 0  # of the last record that deletes a queue which is not known

    def apply(self, item: Record | Damaged | Gap) -> None:
        """Takes the next item."""
        if isinstance(item, Gap):
            if item.records != 0:
                self._lose(item.lsn)
                self.last_gap_lsn = item.end_lsn
            return
        self.transactional = self.transactional or item.type >> 8 == TRANSACTIONS
        if isinstance(item, Damaged):
            self._damaged(item)
        else:
            self.interpret(item)

    def _lose(self, lsn: int) -> None:
        if self.first_loss_lsn is None:
            self.first_loss_lsn = lsn

    def lossy_since(self, lsn: int) -> bool:
        """Whether something unknown may have been written above this LSN."""
        return self.last_gap_lsn > lsn

    def _batch(self, record: Record) -> None:
        super()._batch(record)
        assert isinstance(record.body, Batch)
        self.newest = record.body

    # ---- Chains

    def known(self, record: Record | Damaged) -> Message | None:
        """The record's message, without content if its start is missing; None if it is known to have ended."""
        message = self.messages.get(record.id)
        if message is not None:
            self._follow(record, message)
            return message
        return None if record.id in self.ended else self._unknown(record.id, record.lsn, record.lsn)

    def _unknown(self, message_id: int, lsn: int, last_lsn: int) -> Message:
        """A message of which the record at ``lsn`` is the first that can be read."""
        if message_id < self.base_lsn:
            self.strays.setdefault(message_id, lsn)
        return self._ghost(message_id, last_lsn)

    def _ghost(self, message_id: int, last_lsn: int) -> Message:
        """A message whose start cannot be read."""
        message = Message(START_UNKNOWN, 0, last_lsn, published=False)
        message.staged = False
        message.miss("its start is lost")
        self.messages[message_id] = message
        return message

    def _follow(self, record: Record | Damaged, message: Message) -> None:
        """Notes a lost record if the back-link names one that was not read."""
        if record.prev > message.last_lsn:
            self._missed(record.prev, record.id, message)
        message.last_lsn = record.lsn

    def _missed(self, lsn: int, chain: int, message: Message) -> None:
        self.missing[lsn] = chain
        self._lose(lsn)
        if message.staged and not message.pending:
            message.miss(CONTENT_IN_DOUBT)
        else:
            message.doubt(lsn, _LATER_UNKNOWN)

    def end_message(self, message_id: int) -> None:
        """Forgets an ended message, and its stray records with it."""
        message = self.messages.get(message_id)
        if message_id >= self.base_lsn and (message is None or message.start_lsn == START_UNKNOWN):
            self.unread_starts.add(message_id)
        super().end_message(message_id)
        self.strays.pop(message_id, None)

    # ---- The policy

    def contradiction(self, lsn: int, reason: str) -> None:
        """Not an error: a lost record explains it (a second place, by its lost dequeue); the newer record counts."""

    def numbered(self, lsn: int, tx_id: int, order_index: int, count: int) -> None:
        """Not checked, because lost enqueues take their numbers with them."""

    def keeps(self, work: Work) -> bool:  # noqa: ARG002
        """A relocated state lists all pending work."""
        return False

    def add_content(self, record: Record, message: Message, body: MessageChunk) -> None:
        """A chunk that begins where the content ended proves that the lost record held no content."""
        if message.lost == [CONTENT_IN_DOUBT] and body.offset == (message.content_bytes or 0):
            message.lost = None
        super().add_content(record, message, body)

    def opened(self, lsn: int, work: Work) -> Transaction | None:  # noqa: ARG002
        """A transaction without a start is known from its work."""
        self.transactional = True
        return None if work.tx_id in self.ended else self._transaction(work.tx_id, work.lsn)

    def stepped(self, record: Record) -> Transaction | None:
        """A transaction without a start is known from its steps; an outcome ends only known work."""
        if record.type in (RecordType.TX_COMMIT, RecordType.TX_ROLLBACK):
            return self.transactions.get(record.id)
        return None if record.id in self.ended else self._transaction(record.id, record.lsn)

    def moved_transaction(self, record: Record, xid: XidBody | None, state: str) -> Transaction:  # noqa: ARG002
        """The relocated state counts, whatever was known before."""
        return self._transaction(record.id, record.lsn)

    def _transaction(self, tx_id: int, lsn: int) -> Transaction:
        transaction = self.transactions.get(tx_id)
        if transaction is None:
            transaction = self.transactions[tx_id] = Transaction(tx_id, lsn, lsn, started=False)
        transaction.last_lsn = max(transaction.last_lsn, lsn)
        return transaction

    def accepts(self, record: Record, copies: Copies, moved: Moved) -> bool:  # noqa: ARG002
        """In a complete log, a start below the base means that a later relocation has the whole message."""
        state = record.body
        if (
            isinstance(state, MessageRelocated | MessageRelocatedPlaced)
            and self.first_loss_lsn is None
            and state.start_lsn < self.base_lsn
            and copies.start_lsn != state.start_lsn
            and record.id not in self.messages
        ):
            copies.parts = []
            self._copies[record.id] = copies  # a later state may name chunks that were copied for this one
            return False
        self.strays.pop(record.id, None)
        return True

    def accepts_without_parts(self, record: Record, copies: Copies) -> bool:
        """Whether a state is used without its first parts.

        Not for a known message, which keeps its older state; nor in a complete log, where these parts lie below the
        base.
        """
        known = self.messages.get(record.id)
        if known is not None and known.start_lsn != START_UNKNOWN:
            self._follow(record, known)
            self._merge(known, copies)
            return False
        return self.first_loss_lsn is not None or record.id >= self.base_lsn

    def take_content(self, message: Message, state: RelocatedState, copies: Copies) -> None:
        """Uses the records that the state names, or other copies of them, because contents never change."""
        if copies.start_lsn != START_UNKNOWN and (
            copies.start_lsn == state.start_lsn or message.start_lsn == START_UNKNOWN
        ):
            message.start_lsn, message.start_bytes = copies.start_lsn, copies.start_bytes
        pieces = SortedDict({**message.pieces, **copies.chunks})
        listed = {row.offset for part in state_parts(copies) for row in part.chunks}
        if copies.parts_lost:
            message.chunks = pieces
            message.miss("a part of its relocated state is lost")
        else:
            message.chunks = SortedDict((offset, piece) for offset, piece in pieces.items() if offset in listed) or None

    def _merge(self, message: Message, copies: Copies) -> None:
        """Uses copies that no state names; they contain the same content."""
        if message.start_lsn == START_UNKNOWN:
            message.start_lsn, message.start_bytes = copies.start_lsn, copies.start_bytes
            if message.size is None:
                message.miss(CONTENT_IN_DOUBT)  # only the lost state had the length
        if copies.chunks:
            message.chunks = SortedDict({**copies.chunks, **message.pieces})

    def not_on(self, lsn: int, message_id: int, message: Message, queue_id: int, ended: str) -> None:  # noqa: ARG002
        """A pending enqueue on that queue must have been committed."""
        for work in message.pending or ():
            if work.queue_id == queue_id and work.kind is PendingKind.ENQUEUE:
                self.end_work(message, work)
                message.staged = False
                return

    def stated(self, lsn: int, row: StateRow) -> Message | None:
        """The row's message, without content if its start is missing; None if it is known to have ended."""
        message = self.messages.get(row.id)
        if message is not None or row.id in self.ended:
            return message
        if row.id < self.base_lsn and self.first_loss_lsn is None:
            return None  # an orphan
        return self._unknown(row.id, lsn, row.id)

    def missing_place(self, lsn: int, message_id: int, message: Message, queue_id: int, reason: str) -> Place | None:  # noqa: ARG002
        """The record proves that the place was there: its enqueue was committed, or is lost."""
        for work in message.pending or ():
            if work.queue_id == queue_id and work.kind is PendingKind.ENQUEUE:
                self.end_work(message, work)
                message.staged = False
                return Place(queue_id, work.lsn, 0, self._time_us, work.state)
        message.doubt(lsn, f"the record that put it on queue {queue_id} is lost")
        return message.as_found(message_id, queue_id)

    def is_over(self, message: Message) -> bool:
        """Whether the message has ended and nothing of it may be lost."""
        return not (
            message.pending or message.places or message.start_lsn == START_UNKNOWN or message.doubts or message.lost
        )

    def dequeued(self, record: Record, message: Message) -> None:
        """The last dequeue carries the delete. This one does not, so the message stays live if anything is lost."""
        if message.places or message.pending or message.start_lsn == START_UNKNOWN:
            return
        if self.first_loss_lsn is not None:
            message.miss(ELSEWHERE)
        else:
            self.end_message(record.id)

    # ---- Records with only a valid header

    def _damaged(self, lost: Damaged) -> None:
        kind = RecordType(lost.type)
        if kind.name.startswith("MESSAGE_"):
            self._lose(lost.lsn)
            self._damaged_message(lost, kind)
        elif kind in (RecordType.DTX_START, RecordType.TX_PREPARE, RecordType.TX_RELOCATED):
            self._lose(lost.lsn)
            transaction = self._transaction(lost.id, lost.lsn)
            transaction.distributed = transaction.distributed or kind is not RecordType.TX_RELOCATED
            if kind is RecordType.TX_PREPARE:
                transaction.state, transaction.prepared_us = "prepared", self._time_us
        elif kind is RecordType.QUEUE_DELETE:
            self._lose(lost.lsn)
            self.queue_doubt_lsn = lost.lsn

    def _damaged_message(self, lost: Damaged, kind: RecordType) -> None:
        moved = kind in RELOCATED or bool(lost.flags & RecordFlag.COPY)
        if moved:
            self._damaged_copy(lost, kind)
        elif kind in _STARTS:
            self._ghost(lost.id, lost.lsn)
            self.probable[lost.id] = probable_queues(lost.raw, kind)
            if lost.flags & RecordFlag.PUBLISHED:
                self.published_bytes[lost.id] = lost.length if kind is RecordType.MESSAGE_START else 0
        elif kind is RecordType.MESSAGE_DEQUEUE and lost.flags & RecordFlag.DELETES:
            self.end_message(lost.id)
        else:
            message = self.known(lost)
            if message is None:
                return
            if kind is RecordType.MESSAGE_CHUNK:
                message.miss(CONTENT_LOST)
            elif kind in (RecordType.MESSAGE_ENQUEUE, RecordType.MESSAGE_MOVE):
                message.miss(ELSEWHERE)
            elif kind is RecordType.MESSAGE_PLACE:
                message.doubt(lost.lsn, "a note on a place of it is lost: the note there may be an older one")
            else:
                message.doubt(lost.lsn, "a dequeue of it is lost: it may have been consumed")

    def _damaged_copy(self, lost: Damaged, kind: RecordType) -> None:
        """A lost copy costs nothing while its original is known."""
        counts = bool(lost.flags & RecordFlag.INLINE) or (kind in RELOCATED and not lost.flags & RecordFlag.PART)
        message = self.messages.get(lost.id)
        if not counts:
            copies = self._copies.setdefault(lost.id, Copies())
            copies.parts_lost = copies.parts_lost or kind in RELOCATED
            return
        copies = self._copies.pop(lost.id, Copies())
        self.strays.pop(lost.id, None)  # a relocated message is no orphan
        if message is not None:
            message.last_lsn = lost.lsn
            self._merge(message, copies)
        elif lost.id not in self.ended:
            message = self._ghost(lost.id, lost.lsn)
            self._merge(message, copies)
            message.miss("its relocated state is lost")
            if kind is RecordType.MESSAGE_START:
                self.probable[lost.id] = probable_queues(lost.raw, kind)

    # ---- Epochs

    def recover(self) -> None:
        """Applies what opening the store decided; its records follow, and would say the same if they were lost.

        A transaction known only from relocated work may be prepared, because its own state follows.
        """
        for transaction in self.transactions.values():
            if transaction.started and transaction.state != "prepared" and not self.lossy_since(transaction.last_lsn):
                transaction.doomed = True
        self.drop_staged()

    def drop_staged(self) -> None:
        """Drops messages that were never enqueued, unless their enqueue may be lost."""
        for message_id, message in list(self.messages.items()):
            if not message.staged or message.pending or message.lost or message.start_lsn == START_UNKNOWN:
                continue
            if self.lossy_since(message.last_lsn):
                message.miss("whether and where it was enqueued is lost")
                if message.size is None:
                    message.miss(CONTENT_IN_DOUBT)
            else:
                self.staged_dropped += 1
                self.end_message(message_id)

    def finish(self, is_gone: Callable[[int], bool]) -> State:
        """The state at the end of the log, as recovery would restore it if it could.

        ``is_gone`` returns whether the catalog proves that the queue with this id was deleted.
        """
        self.recover()
        return settle(self, lambda queue_id: queue_id in self.deleted_queues or is_gone(queue_id))
