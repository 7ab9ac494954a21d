"""The meaning of a log's records in pure Python: the live messages, their queues, and the pending work.

Written from section 7 of docs/format.md alone. It shares no code with csrc/replay, so that tests can compare the two.
This class implements the meaning of each record; a subclass adds the policy (policy.py) for a record of an unknown
chain and for a contradiction.

Invariant: records come in LSN order. A relocated state replaces everything that was known of its message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sortedcontainers import SortedDict

from logstore.codec.place_states import (
    given_state,
    moved_state,
    order_of,
    relocated_place,
    relocated_work,
)
from logstore.codec.policy import Policy
from logstore.codec.records import (
    Batch,
    InlineCopy,
    MessageChunk,
    MessageDequeue,
    MessageEnqueue,
    MessageMove,
    MessagePlace,
    MessageRelocated,
    MessageRelocatedPlaced,
    MessageStart,
    MessageStartPlaced,
    OrderedCopy,
    PendingKind,
    PlaceStates,
    QueueDelete,
    Record,
    RecordFlag,
    RecordType,
    TxKind,
    TxRelocated,
    XidBody,
)
from logstore.codec.state import (
    NO_STATE,
    START_UNKNOWN,
    Copies,
    Message,
    Moved,
    Piece,
    Place,
    PlaceState,
    Transaction,
    Work,
    with_note,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from logstore.codec.place_states import RelocatedState

NO_PLACE_FOR_NOTE = "a note is put on a place that is not there"
NO_PLACE_FOR_STATE = "the state of a place that is not there"


class Interpreter(Policy):
    """Takes records one by one with :meth:`interpret`."""

    def __init__(self, base_lsn: int) -> None:
        self.base_lsn = base_lsn
        self.messages: dict[int, Message] = {}
        self.transactions: dict[int, Transaction] = {}
        self.ended: set[int] = set()  # ids of messages and transactions that have ended
        self.deleted_queues: set[int] = set()
        self.queue_id_max = 0  # the largest id that any record names
        self.committed = 0
        self.rolled_back = 0  # transactions with a rollback record
        self._copies: dict[int, Copies] = {}
        self._time_us = 0
        self._epoch = 0
        self._handlers: dict[RecordType | int, Callable[[Record], None]] = {
            RecordType.MESSAGE_START: self._start,
            RecordType.MESSAGE_START_PLACED: self._start,
            RecordType.MESSAGE_CHUNK: self._chunk,
            RecordType.MESSAGE_ENQUEUE: self._enqueue,
            RecordType.MESSAGE_DEQUEUE: self._dequeue,
            RecordType.MESSAGE_DELETE: self._finish,
            RecordType.MESSAGE_RELOCATED: self._relocate,
            RecordType.MESSAGE_RELOCATED_PLACED: self._relocate,
            RecordType.MESSAGE_PLACE: self._note,
            RecordType.MESSAGE_MOVE: self._move,
            RecordType.PLACE_STATES: self._state_places,
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

    # ---- Input

    def interpret(self, record: Record) -> None:
        """Takes the next record; ignores types that do not affect the state."""
        handler = self._handlers.get(record.type)
        if handler is not None:
            handler(record)

    def enter(self, epoch: int) -> None:
        """Begins a segment of this epoch."""
        if self._epoch not in (0, epoch):
            self.recover()
        self._epoch = epoch

    def _batch(self, record: Record) -> None:
        assert isinstance(record.body, Batch)
        self._time_us = record.body.time_us

    def _name(self, queues: Iterable[int]) -> None:
        self.queue_id_max = max(self.queue_id_max, *queues, 0)

    def _note_end(self, id: int) -> None:  # noqa: A002 - the design's own word
        if self.keeps_ended or id < self.base_lsn:
            self.ended.add(id)

    # ---- Messages

    def _start(self, record: Record) -> None:
        body = record.body
        published = RecordFlag.PUBLISHED in record.flags
        if isinstance(body, InlineCopy | OrderedCopy):
            self._inline(record, body, published=published)
            return
        assert isinstance(body, MessageStart | MessageStartPlaced)
        if RecordFlag.COPY in record.flags:
            copies = self._copies.setdefault(record.id, Copies())
            copies.start_lsn, copies.start_bytes, copies.published = record.lsn, len(body.content), published
            return
        message = Message(record.lsn, len(body.content), record.lsn, published=published)
        self.messages[record.id] = message
        self.numbered(record.lsn, body.tx_id, body.order_index, len(body.queues))
        self._place(record, message, body)

    def _chunk(self, record: Record) -> None:
        body = record.body
        assert isinstance(body, MessageChunk)
        if RecordFlag.COPY in record.flags:
            copies = self._copies.setdefault(record.id, Copies())
            copies.chunks[body.offset] = Piece(record.lsn, len(body.content))
            return
        message = self.known(record)
        if message is not None:
            self.add_content(record, message, body)

    def add_content(self, record: Record, message: Message, body: MessageChunk) -> None:
        """Appends a chunk to the content; an empty chunk truncates it after a failed append."""
        if message.chunks is None:
            message.chunks = SortedDict()
        if message.size is not None:  # the size from the newest relocated state
            message.size = body.offset + len(body.content)
        if body.content:
            message.length += len(body.content)
            message.chunks[body.offset] = Piece(record.lsn, len(body.content))
        else:
            message.length = body.offset
            for offset in list(message.chunks.irange(body.offset)):
                del message.chunks[offset]

    def _enqueue(self, record: Record) -> None:
        body = record.body
        assert isinstance(body, MessageEnqueue)
        self._name(body.queues)
        self.numbered(record.lsn, body.tx_id, body.order_index, len(body.queues))
        message = self.known(record)
        if message is not None:
            self._place(record, message, body)

    def _place(
        self, record: Record, message: Message, body: MessageStart | MessageStartPlaced | MessageEnqueue
    ) -> None:
        self._name(body.queues)
        if not body.queues:
            return
        state = given_state(body)
        if body.tx_id == 0:
            places = tuple(Place(queue_id, record.lsn, 0, self._time_us, state) for queue_id in body.queues)
            self._add(record.lsn, record.id, message, places)
            return
        for order_index, queue_id in enumerate(body.queues, body.order_index):
            work = Work(PendingKind.ENQUEUE, record.id, queue_id, body.tx_id, record.lsn, order_index, state)
            self._work(record.lsn, message, work)

    def _add(self, lsn: int, message_id: int, message: Message, places: tuple[Place, ...]) -> None:
        named = {place.queue_id for place in places}
        for place in message.places:
            if place.queue_id in named and place.queue_id not in self.deleted_queues:
                reason = f"message {message_id} is enqueued on queue {place.queue_id}, where it is already"
                self.contradiction(lsn, reason)
        message.staged = False
        kept = tuple(place for place in message.places if place.queue_id not in named)
        message.places = self.as_kept(kept + places)

    def _dequeue(self, record: Record) -> None:
        body = record.body
        assert isinstance(body, MessageDequeue)
        self._name((body.queue_id,))
        if RecordFlag.DELETES in record.flags:
            if record.id in self.messages:
                self._drop(record.lsn, record.id, self.messages[record.id], body.queue_id)
            self._finish(record)
            return
        message = self.known(record)
        if message is None:
            return
        if body.tx_id != 0:
            work = Work(PendingKind.DEQUEUE, record.id, body.queue_id, body.tx_id, record.lsn, 0)
            self._work(record.lsn, message, work)
            return
        self._drop(record.lsn, record.id, message, body.queue_id)
        self.dequeued(record, message)

    def _drop(self, lsn: int, message_id: int, message: Message, queue_id: int, ended: str = "dequeued") -> None:
        left = tuple(place for place in message.places if place.queue_id != queue_id)
        if len(left) == len(message.places):
            self.not_on(lsn, message_id, message, queue_id, ended)
        message.places = self.as_kept(left)

    def _move(self, record: Record) -> None:
        """Ends a place and makes another one, or only that; the message lives on."""
        body = record.body
        assert isinstance(body, MessageMove)
        self._name((body.from_queue_id, body.queue_id))
        self.numbered(record.lsn, body.tx_id, body.order_index, 1)
        message = self.known(record)
        if message is None:
            return
        lsn, tx_id, left = record.lsn, body.tx_id, body.from_queue_id
        place = message.place_for(tx_id, left)
        state = moved_state(body, place)
        if tx_id == 0:
            if left:
                self._drop(lsn, record.id, message, left, "moved")
            self._add(lsn, record.id, message, (Place(body.queue_id, lsn, 0, self._time_us, state),))
            return
        if left:
            if place is None and left not in self.deleted_queues:
                self.contradiction(lsn, f"message {record.id} is moved from queue {left}, where it is not")
            self._work(lsn, message, Work(PendingKind.DEQUEUE, record.id, left, tx_id, lsn, 0))
        work = Work(PendingKind.ENQUEUE, record.id, body.queue_id, tx_id, lsn, body.order_index, state)
        self._work(lsn, message, work)

    # ---- States of places

    def _note(self, record: Record) -> None:
        body = record.body
        assert isinstance(body, MessagePlace)
        self._name((body.queue_id,))
        message = self.known(record)
        if message is None:
            return
        state = PlaceState(note=body.note).or_none
        work = Work(PendingKind.NOTE, record.id, body.queue_id, body.tx_id, record.lsn, 0, state)
        if body.tx_id == 0:
            self._put_note(record.lsn, message, work)
            return
        if body.queue_id not in self.deleted_queues and message.place_for(body.tx_id, body.queue_id) is None:
            self.contradiction(record.lsn, missing_text(NO_PLACE_FOR_NOTE, record.id, body.queue_id))
        self._work(record.lsn, message, work)

    def _put_note(self, lsn: int, message: Message, work: Work) -> None:
        place = message.place(work.queue_id)
        if place is None:
            place = self.missing_place(lsn, work.message_id, message, work.queue_id, NO_PLACE_FOR_NOTE)
        if place is not None:
            self._set_state(message, place, with_note(place.state, work.state))

    def _state_places(self, record: Record) -> None:
        body = record.body
        assert isinstance(body, PlaceStates)
        self._name(row.queue_id for row in body.rows)
        for row in body.rows:
            message = self.stated(record.lsn, row)
            if message is None:
                continue
            place = message.place(row.queue_id)
            if place is None:
                place = self.missing_place(record.lsn, row.id, message, row.queue_id, NO_PLACE_FOR_STATE)
            if place is not None:
                kept = place.state or NO_STATE
                state = PlaceState(row.delivery_count, row.not_before_us, row.expires_us, kept.note, kept.header)
                self._set_state(message, place, state.or_none)

    def _set_state(self, message: Message, place: Place, state: PlaceState | None) -> None:
        """Gives the place this state; it may be new."""
        others = tuple(one for one in message.places if one.queue_id != place.queue_id)
        message.places = self.as_kept((*others, place._replace(state=state)))

    # ---- The end of messages and queues

    def _finish(self, record: Record) -> None:
        """Handles a record that ends the message."""
        message = self.messages.get(record.id)
        if message is not None and not (self.is_over(message) and (not message.staged or self._is_delete(record))):
            self.contradiction(record.lsn, f"message {record.id} is deleted while it is still needed")
        self.end_message(record.id)

    def _is_delete(self, record: Record) -> bool:
        """Whether the record is a delete that is legal here; MESSAGE_DELETE may also end a message that was never
        enqueued.
        """
        return record.type is RecordType.MESSAGE_DELETE

    def end_message(self, message_id: int) -> None:
        """Forgets a message that has ended, and all pending work on it."""
        message = self.messages.pop(message_id, None)
        for work in message.pending or () if message is not None else ():
            transaction = self.transactions.get(work.tx_id)
            if transaction is not None:
                transaction.work.remove(work)
        self._note_end(message_id)
        self._copies.pop(message_id, None)

    def _delete_queue(self, record: Record) -> None:
        """Ends places and work on the queue at once; messages without another place are found at the end."""
        assert isinstance(record.body, QueueDelete)
        self._name((record.body.queue_id,))
        self.deleted_queues.add(record.body.queue_id)

    # ---- Relocated messages

    def _inline(self, record: Record, body: InlineCopy | OrderedCopy, *, published: bool) -> None:
        ordered = isinstance(body, OrderedCopy)
        order_lsn = body.order_lsn if isinstance(body, OrderedCopy) else record.id
        first = body.order_index if isinstance(body, OrderedCopy) else 0
        time_us = 0 if isinstance(body, OrderedCopy) else body.enqueue_time_us
        places = tuple(
            Place(queue_id, order_lsn, first + (i if ordered else 0), time_us)
            for i, queue_id in enumerate(body.queues)
            if queue_id
        )
        self._copies.pop(record.id, None)
        copies, size = Copies(), len(body.content)
        copies.start_lsn, copies.start_bytes, copies.published = record.lsn, size, published
        state = MessageRelocated(size, record.lsn, 0, (), (), ())
        self._replace(record, state, copies, Moved(places, [], staged=False, published=published))

    def _relocate(self, record: Record) -> None:
        body = record.body
        assert isinstance(body, MessageRelocated | MessageRelocatedPlaced)
        copies = self._copies.setdefault(record.id, Copies())
        if body.part == 0:
            copies.parts, copies.parts_lost = [], False
        copies.parts_lost = copies.parts_lost or len(copies.parts) != body.part
        copies.parts.append(record)
        if RecordFlag.PART in record.flags:
            return
        del self._copies[record.id]
        if copies.parts_lost and not self.accepts_without_parts(record, copies):
            return
        parts = state_parts(copies)
        places = tuple(relocated_place(row) for part in parts for row in part.places)
        work = sorted((relocated_work(record.id, row) for part in parts for row in part.pending), key=order_of)
        moved = Moved(places, work, RecordFlag.STAGED in record.flags, copies.published)
        self._replace(record, body, copies, moved)

    def _replace(self, record: Record, state: RelocatedState, copies: Copies, moved: Moved) -> None:
        """Replaces the message's state with the relocated one, regardless of what was known before."""
        self._name(place.queue_id for place in moved.places)
        self._name(work.queue_id for work in moved.work)
        if not self.accepts(record, copies, moved):
            return
        message = self.messages.get(record.id)
        if message is None:
            message = self.messages[record.id] = Message(START_UNKNOWN, 0, record.lsn, published=False)
        self.ended.discard(record.id)
        message.last_lsn, message.published = record.lsn, moved.published or message.published
        message.lost = message.doubts = None
        self.take_content(message, state, copies)
        message.size = message.length = state.content_bytes
        times = {place.queue_id: place.time_us for place in message.places}  # a relocated state may lack the times
        message.places = self.as_kept(
            tuple(one if one.time_us else one._replace(time_us=times.get(one.queue_id, 0)) for one in moved.places)
        )
        message.staged = moved.staged
        self._replace_work(record.lsn, message, moved.work)

    def _replace_work(self, lsn: int, message: Message, said: list[Work]) -> None:
        """Keeps known work at its position in its transaction, and adds or removes other work."""
        keys = {work.key for work in said}
        for work in [one for one in message.pending or () if one.key not in keys and not self.keeps(one)]:
            self.end_work(message, work)
        there = {work.key: work for work in message.pending or ()}
        for work in said:
            if work.key not in there:
                self._work(lsn, message, work)
            elif work != there[work.key]:
                self._restate(message, there[work.key], work)

    def _restate(self, message: Message, old: Work, new: Work) -> None:
        """Replaces an operation by the same one with another state."""
        transaction = self.transactions.get(old.tx_id)
        for works in (message.pending, transaction.work if transaction is not None else None):
            if works is not None and old in works:
                works[works.index(old)] = new

    # ---- Transactions

    def _begin(self, record: Record) -> None:
        self.transactions[record.id] = Transaction(
            record.id,
            record.lsn,
            record.lsn,
            record.body if isinstance(record.body, XidBody) else None,
            distributed=record.type is RecordType.DTX_START,
            started_us=self._time_us,
        )

    def _work(self, lsn: int, message: Message, work: Work) -> None:
        self._name((work.queue_id,))
        transaction = self.opened(lsn, work)
        if transaction is None:
            return
        transaction.last_lsn = max(transaction.last_lsn, work.lsn)
        transaction.work.append(work)
        message.pending = message.pending or []
        message.pending.append(work)

    def end_work(self, message: Message, work: Work) -> None:
        """Removes an operation from the pending work."""
        transaction = self.transactions.get(work.tx_id)
        if transaction is not None and work in transaction.work:
            transaction.work.remove(work)
        if message.pending is not None and work in message.pending:
            message.pending.remove(work)
        if not message.pending:
            message.pending = None

    def _step(self, record: Record) -> None:
        transaction = self.stepped(record)
        if transaction is None:
            return
        transaction.distributed = True
        if record.type is RecordType.TX_END:
            transaction.state = "ended"
            return
        transaction.state, transaction.prepared_us = "prepared", self._time_us
        if isinstance(record.body, XidBody):
            transaction.xid = record.body

    def _outcome(self, record: Record) -> None:
        transaction = self.stepped(record)
        self.transactions.pop(record.id, None)
        self._note_end(record.id)
        if transaction is None:
            return
        if record.type is RecordType.TX_COMMIT:
            self.committed += 1
            for work in list(transaction.work):
                self.commit(work, record.lsn)
        else:
            self.rolled_back += 1
            self.undo(transaction)

    def commit(self, work: Work, order_lsn: int) -> None:
        """Applies an operation at the commit."""
        message = self.messages.get(work.message_id)
        if message is None:
            return
        self.end_work(message, work)
        if work.kind is PendingKind.DEQUEUE:
            self._drop(order_lsn, work.message_id, message, work.queue_id)
        elif work.kind is PendingKind.NOTE:
            self._put_note(order_lsn, message, work)
        else:
            place = Place(work.queue_id, order_lsn, work.order_index, self._time_us, work.state)
            self._add(order_lsn, work.message_id, message, (place,))
        self._settle(work.message_id, message)

    def undo(self, transaction: Transaction) -> None:
        """Drops all operations of the transaction."""
        for work in list(transaction.work):
            message = self.messages.get(work.message_id)
            if message is not None:
                self.end_work(message, work)
                self._settle(work.message_id, message)
        transaction.work = []

    def _settle(self, message_id: int, message: Message) -> None:
        """Ends a message whose enqueue was rolled back, if nothing keeps it; a message that was staged before stays
        staged.
        """
        if self.is_over(message) and (message.published or not message.staged):
            self.end_message(message_id)

    def _forget(self, record: Record) -> None:
        self._note_end(record.id)
        transaction = self.transactions.get(record.id)
        if transaction is not None:
            self.contradiction(record.lsn, f"transaction {record.id} is forgotten before its outcome")
            transaction.outcome_lost = True

    def _relocate_transaction(self, record: Record) -> None:
        body = record.body
        assert isinstance(body, TxRelocated)
        distributed, state = body.kind is TxKind.DISTRIBUTED, body.state.name.lower()
        xid = XidBody(body.format_id, body.gtrid, body.bqual) if distributed else None
        transaction = self.moved_transaction(record, xid, state)
        self.ended.discard(record.id)
        transaction.last_lsn = max(transaction.last_lsn, record.lsn)
        transaction.distributed, transaction.xid = distributed, xid
        transaction.state, transaction.started = state, True
        transaction.started_us, transaction.prepared_us = body.start_time_us, body.prepare_time_us


def state_parts(copies: Copies) -> list[RelocatedState]:
    """The bodies of a state's parts that were found."""
    return [part.body for part in copies.parts if isinstance(part.body, MessageRelocated | MessageRelocatedPlaced)]


def missing_text(reason: str, message_id: int, queue_id: int) -> str:
    """The sentence for a note or a state whose place is not there."""
    return f"{reason}: message {message_id} on queue {queue_id}"
