"""A replay that never stops: what the readable records of a damaged log come to, and what cannot be known.

Written from section 7 of docs/format.md. The strict replays (csrc/replay, codec/replay.py) refuse what this one
has to live with: records that are not there. Where something is lost

* a relocated state replaces whatever was known before, so damage in what it supersedes costs nothing;
* a doubt is resolved towards keeping the message, and said;
* without any loss before it, a record means exactly what it means to recovery.

It takes, in LSN order, what scan.py found: records, records of which only the header is whole, and gaps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from logstore.codec.records import (
    Batch,
    InlineCopy,
    MessageChunk,
    MessageDequeue,
    MessageEnqueue,
    MessageRelocated,
    MessageStart,
    OrderedCopy,
    PendingKind,
    QueueDelete,
    Record,
    RecordFlag,
    RecordType,
    TxKind,
    TxRelocated,
    XidBody,
)
from logstore.salvage.scan import Damaged, Gap
from logstore.salvage.settle import settle
from logstore.salvage.state import (
    CONTENT_IN_DOUBT,
    CONTENT_LOST,
    START_UNKNOWN,
    Message,
    Piece,
    Place,
    State,
    Transaction,
    Work,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_LATER_UNKNOWN = "a record of it is lost that may have been an enqueue or a dequeue"
ELSEWHERE = "it lives on where no readable record says"


class _Copies:
    """What was copied of one chain, and no state has completed yet."""

    __slots__ = ("chunks", "newest", "parts", "parts_lost", "published", "start_bytes", "start_lsn")

    def __init__(self) -> None:
        self.newest = 0
        self.start_lsn = START_UNKNOWN
        self.start_bytes = 0
        self.published = False
        self.chunks: dict[int, Piece] = {}  # by offset
        self.parts: list[MessageRelocated] = []
        self.parts_lost = False


class SalvageReplay:
    """Takes everything with :meth:`apply`; :meth:`finish` says what it comes to."""

    def __init__(self, base_lsn: int) -> None:
        self.base_lsn = base_lsn
        self.messages: dict[int, Message] = {}
        self.transactions: dict[int, Transaction] = {}
        self.ended: set[int] = set()  # messages and transactions known to be over
        self.deleted_queues: set[int] = set()
        self.queue_id_max = 0
        self.probable: dict[int, list[int]] = {}  # queues of lost starts, unchecked
        self.missing: dict[int, int] = {}  # LSN of a record known by its neighbours only: its chain
        self.first_loss_lsn: int | None = None
        self.last_gap_lsn = 0  # where the last gap ends: nothing is known of what happened in it
        self.strays: dict[int, int] = {}  # chains below the base without a state: LSN of their first record
        self.staged_dropped = self.rolled_back = 0
        self._copies: dict[int, _Copies] = {}
        self._places: dict[tuple[Place, ...], tuple[Place, ...]] = {}
        self._time_us = 0
        self._epoch = 0
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
            RecordType.TX_RELOCATED: self._tx_relocated,
            RecordType.QUEUE_DELETE: self._delete_queue,
            RecordType.BATCH: self._batch,
        }

    # ---- What comes in

    def apply(self, item: Record | Damaged | Gap) -> None:
        """Take what comes next."""
        if isinstance(item, Gap):
            if item.records != 0:
                self._lose(item.lsn)
                self.last_gap_lsn = item.end_lsn
        elif isinstance(item, Damaged):
            self._damaged(item)
        else:
            handler = self._handlers.get(item.type)
            if handler is not None:
                handler(item)

    def enter(self, epoch: int) -> None:
        """A segment of this epoch begins."""
        if self._epoch not in (0, epoch):
            self._recover()
        self._epoch = epoch

    def _lose(self, lsn: int) -> None:
        if self.first_loss_lsn is None:
            self.first_loss_lsn = lsn

    def lossy_since(self, lsn: int) -> bool:
        """Whether anything may have stood behind this LSN of which nothing is known."""
        return self.last_gap_lsn > lsn

    def _batch(self, record: Record) -> None:
        assert isinstance(record.body, Batch)
        self._time_us = record.body.time_us

    # ---- Chains

    def _message(self, record: Record | Damaged) -> Message | None:
        """The message of this record; one without a content if its start is lost, None if it is known to be over."""
        message = self.messages.get(record.id)
        if message is not None:
            self._follow(record, message)
            return message
        if record.id in self.ended:
            return None
        if record.id < self.base_lsn:
            self.strays.setdefault(record.id, record.lsn)
        return self._ghost(record)

    def _ghost(self, record: Record | Damaged) -> Message:
        """A message of which no start can be read."""
        message = Message(START_UNKNOWN, 0, record.lsn, published=False)
        message.staged = False
        message.miss("its start is lost")
        self.messages[record.id] = message
        return message

    def _follow(self, record: Record | Damaged, message: Message) -> None:
        """A back-link to a record that nobody has read tells of one that is lost."""
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

    def _name(self, queues: Iterable[int]) -> None:
        self.queue_id_max = max(self.queue_id_max, *queues, 0)

    # ---- Messages

    def _start(self, record: Record) -> None:
        body = record.body
        if isinstance(body, InlineCopy | OrderedCopy):
            self._inline(record, body)
            return
        assert isinstance(body, MessageStart)
        published = RecordFlag.PUBLISHED in record.flags
        if RecordFlag.COPY in record.flags:
            copies = self._copy(record)
            copies.start_lsn, copies.start_bytes, copies.published = record.lsn, len(body.content), published
            return
        message = Message(record.lsn, len(body.content), record.lsn, published=published)
        self.messages[record.id] = message
        self._place(record, message, body)

    def _chunk(self, record: Record) -> None:
        body = record.body
        assert isinstance(body, MessageChunk)
        piece = Piece(record.lsn, len(body.content))
        if RecordFlag.COPY in record.flags:
            self._copy(record).chunks[body.offset] = piece
            return
        message = self._message(record)
        if message is None:
            return
        if message.lost == [CONTENT_IN_DOUBT] and body.offset == (message.content_bytes or 0):
            message.lost = None  # what is lost held none: this one goes on where the last ended
        message.chunks = message.chunks or {}
        if message.size is not None:  # as the last state has it
            message.size = body.offset + len(body.content)
        if body.content:
            message.chunks[body.offset] = piece
        else:  # an append that failed is taken back
            message.chunks = {offset: other for offset, other in message.chunks.items() if offset < body.offset}

    def _enqueue(self, record: Record) -> None:
        assert isinstance(record.body, MessageEnqueue)
        message = self._message(record)
        self._name(record.body.queues)
        if message is not None:
            self._place(record, message, record.body)

    def _place(self, record: Record, message: Message, body: MessageStart | MessageEnqueue) -> None:
        self._name(body.queues)
        if not body.queues:
            return
        if body.tx_id == 0:
            places = tuple(Place(queue_id, record.lsn, 0, self._time_us) for queue_id in body.queues)
            self._add(message, places)
            return
        for order_index, queue_id in enumerate(body.queues, body.order_index):
            self._work(message, Work(PendingKind.ENQUEUE, record.id, queue_id, body.tx_id, record.lsn, order_index))

    def _add(self, message: Message, places: tuple[Place, ...]) -> None:
        """A place that is there already lost its dequeue."""
        named = {place.queue_id for place in places}
        message.staged = False
        message.places = (*(place for place in message.places if place.queue_id not in named), *places)

    def _dequeue(self, record: Record) -> None:
        body = record.body
        assert isinstance(body, MessageDequeue)
        self._name((body.queue_id,))
        if RecordFlag.DELETES in record.flags:
            self._end_message(record.id)
            return
        message = self._message(record)
        if message is None:
            return
        if body.tx_id != 0:
            work = Work(PendingKind.DEQUEUE, record.id, body.queue_id, body.tx_id, record.lsn, 0)
            self._work(message, work)
            return
        self._drop(message, body.queue_id)
        if not message.places and not message.pending and message.start_lsn != START_UNKNOWN:
            self._outlived(record, message)

    def _outlived(self, record: Record, message: Message) -> None:
        """The last dequeue of a message carries its delete; this one does not, and no other place is known."""
        if self.first_loss_lsn is not None:
            message.miss(ELSEWHERE)
        else:
            self._end_message(record.id)

    def _drop(self, message: Message, queue_id: int) -> None:
        if any(place.queue_id == queue_id for place in message.places):
            message.places = tuple(place for place in message.places if place.queue_id != queue_id)
            return
        for work in message.pending or ():  # what was dequeued had been committed
            if work.queue_id == queue_id and work.kind is PendingKind.ENQUEUE:
                self._end_work(message, work)
                message.staged = False
                return

    def _delete(self, record: Record) -> None:
        self._end_message(record.id)

    def _end_message(self, message_id: int) -> None:
        message = self.messages.pop(message_id, None)
        for work in message.pending or () if message is not None else ():
            transaction = self.transactions.get(work.tx_id)
            if transaction is not None:
                transaction.work.remove(work)
        self.ended.add(message_id)
        self.strays.pop(message_id, None)
        self._copies.pop(message_id, None)

    def _delete_queue(self, record: Record) -> None:
        assert isinstance(record.body, QueueDelete)
        self._name((record.body.queue_id,))
        self.deleted_queues.add(record.body.queue_id)

    # ---- Relocated messages

    def _copy(self, record: Record | Damaged) -> _Copies:
        copies = self._copies.setdefault(record.id, _Copies())
        copies.newest = record.lsn
        return copies

    def _inline(self, record: Record, body: InlineCopy | OrderedCopy) -> None:
        ordered = isinstance(body, OrderedCopy)
        order_lsn = body.order_lsn if isinstance(body, OrderedCopy) else record.id
        first = body.order_index if isinstance(body, OrderedCopy) else 0
        time_us = 0 if isinstance(body, OrderedCopy) else body.enqueue_time_us
        places = tuple(
            Place(queue_id, order_lsn, first + (i if ordered else 0), time_us)
            for i, queue_id in enumerate(body.queues)
            if queue_id
        )
        self._name(body.queues)
        self._copies.pop(record.id, None)
        message = self._replaced(record, RecordFlag.PUBLISHED in record.flags)
        message.start_lsn, message.start_bytes = record.lsn, len(body.content)
        message.size, message.chunks = len(body.content), None
        message.places, message.staged = self._kept(message, places), False
        self._replace_work(message, [])

    def _replaced(self, record: Record, published: bool) -> Message:
        """The message, all of whose state is given now: nothing that was lost before matters any more."""
        message = self.messages.get(record.id)
        if message is None:
            message = self.messages[record.id] = Message(START_UNKNOWN, 0, record.lsn, published=published)
        self.ended.discard(record.id)
        self.strays.pop(record.id, None)
        message.last_lsn, message.published = record.lsn, published or message.published
        message.lost = message.doubts = None
        return message

    def _kept(self, message: Message, places: tuple[Place, ...]) -> tuple[Place, ...]:
        """A state does not say when a place was made; who knew it goes on knowing it."""
        times = {place.queue_id: place.time_us for place in message.places}
        return tuple(
            place if place.time_us else place._replace(time_us=times.get(place.queue_id, 0)) for place in places
        )

    def _relocated(self, record: Record) -> None:
        body = record.body
        assert isinstance(body, MessageRelocated)
        copies = self._copy(record)
        if body.part == 0:
            copies.parts, copies.parts_lost = [], False
        copies.parts_lost = copies.parts_lost or len(copies.parts) != body.part
        copies.parts.append(body)
        if RecordFlag.PART in record.flags:
            return
        del self._copies[record.id]
        known = self.messages.get(record.id)
        if copies.parts_lost:
            if known is not None and known.start_lsn != START_UNKNOWN:
                self._follow(record, known)  # the state as it was known is the one that was moved
                self._merge(known, copies)
                return
            if self.first_loss_lsn is None and record.id < self.base_lsn:
                return  # its first parts lie below the base: superseded
        self._take_state(record, copies)

    def _take_state(self, record: Record, copies: _Copies) -> None:
        last = copies.parts[-1]
        if self._is_superseded(record, last, copies):
            copies.parts = []
            self._copies[record.id] = copies  # a later state may name chunks that were copied for this one
            return
        message = self._replaced(record, copies.published)
        self._take_content(message, last, copies)
        if copies.parts_lost:
            message.miss("a part of its relocated state is lost")
        places = tuple(
            Place(row.queue_id, row.order_lsn, row.order_index, row.enqueue_time_us, row.delivery_count)
            for part in copies.parts
            for row in part.places
        )
        self._name(place.queue_id for place in places)
        message.places = self._kept(message, places)
        message.staged = RecordFlag.STAGED in record.flags
        self._replace_work(
            message,
            [
                Work(row.kind, record.id, row.queue_id, row.tx_id, row.lsn, row.order_index)
                for part in copies.parts
                for row in part.pending
            ],
        )

    def _is_superseded(self, record: Record, state: MessageRelocated, copies: _Copies) -> bool:
        """In a whole log: the start lies below the base, and so a later relocation tells all of the message."""
        return (
            self.first_loss_lsn is None
            and state.start_lsn < self.base_lsn
            and copies.start_lsn != state.start_lsn
            and record.id not in self.messages
        )

    def _take_content(self, message: Message, state: MessageRelocated, copies: _Copies) -> None:
        """From the records that the state names; contents never change, so any other copy of one will do as well."""
        if copies.start_lsn != START_UNKNOWN and (
            copies.start_lsn == state.start_lsn or message.start_lsn == START_UNKNOWN
        ):
            message.start_lsn, message.start_bytes = copies.start_lsn, copies.start_bytes
        pieces = dict(message.chunks or {}) | copies.chunks
        rows = {row.offset: row for part in copies.parts for row in part.chunks}
        if copies.parts_lost:
            message.chunks = pieces
        else:
            message.chunks = {offset: piece for offset, piece in pieces.items() if offset in rows} or None
        message.size = state.content_bytes

    def _merge(self, message: Message, copies: _Copies) -> None:
        """Copies that no state names hold what was copied, all the same."""
        if message.start_lsn == START_UNKNOWN:
            message.start_lsn, message.start_bytes = copies.start_lsn, copies.start_bytes
            if message.size is None:
                message.miss(CONTENT_IN_DOUBT)  # how much there was, only the state said
        if copies.chunks:
            message.chunks = copies.chunks | (message.chunks or {})

    def _replace_work(self, message: Message, said: list[Work]) -> None:
        for work in [one for one in message.pending or () if one not in said]:
            self._end_work(message, work)
        known = set(message.pending or ())
        for work in said:
            if work not in known:
                self._work(message, work)

    # ---- Transactions

    def _begin(self, record: Record) -> None:
        xid = record.body if isinstance(record.body, XidBody) else None
        self.transactions[record.id] = Transaction(
            record.id,
            record.lsn,
            xid,
            distributed=record.type == RecordType.DTX_START,
            started_us=self._time_us,
        )

    def _transaction(self, tx_id: int, lsn: int) -> Transaction:
        transaction = self.transactions.get(tx_id)
        if transaction is None:
            transaction = self.transactions[tx_id] = Transaction(tx_id, lsn, started=False)
        transaction.last_lsn = max(transaction.last_lsn, lsn)
        return transaction

    def _work(self, message: Message, work: Work) -> None:
        self._name((work.queue_id,))
        if work.tx_id in self.ended:
            return
        self._transaction(work.tx_id, work.lsn).work.append(work)
        message.pending = message.pending or []
        message.pending.append(work)

    def _end_work(self, message: Message, work: Work) -> None:
        transaction = self.transactions.get(work.tx_id)
        if transaction is not None and work in transaction.work:
            transaction.work.remove(work)
        if message.pending is not None and work in message.pending:
            message.pending.remove(work)
        if not message.pending:
            message.pending = None

    def _step(self, record: Record) -> None:
        if record.id in self.ended:
            return
        transaction = self._transaction(record.id, record.lsn)
        transaction.distributed = True
        if record.type == RecordType.TX_END:
            transaction.state = "ended"
            return
        transaction.state, transaction.prepared_us = "prepared", self._time_us
        if isinstance(record.body, XidBody):
            transaction.xid = record.body

    def _outcome(self, record: Record) -> None:
        transaction = self.transactions.pop(record.id, None)
        self.ended.add(record.id)
        if transaction is None:
            return
        if record.type == RecordType.TX_COMMIT:
            for work in list(transaction.work):
                self.commit(work, record.lsn)
        else:
            self.undo(transaction)

    def commit(self, work: Work, order_lsn: int) -> None:
        """The operation takes effect now."""
        message = self.messages.get(work.message_id)
        if message is None:
            return
        self._end_work(message, work)
        if work.kind is PendingKind.DEQUEUE:
            self._drop(message, work.queue_id)
        else:
            self._add(message, (Place(work.queue_id, order_lsn, work.order_index, self._time_us),))
        self._settle(work.message_id, message)

    def undo(self, transaction: Transaction) -> None:
        """None of its operations ever takes effect."""
        for work in list(transaction.work):
            message = self.messages.get(work.message_id)
            if message is not None:
                self._end_work(message, work)
                self._settle(work.message_id, message)
        transaction.work = []

    def _settle(self, message_id: int, message: Message) -> None:
        """A publish goes with the rollback of its enqueue; what was staged before stays staged."""
        if message.pending or message.places or message.start_lsn == START_UNKNOWN or message.doubts or message.lost:
            return
        if message.staged and not message.published:
            return
        self._end_message(message_id)

    def _forget(self, record: Record) -> None:
        transaction = self.transactions.pop(record.id, None)
        self.ended.add(record.id)
        if transaction is not None:  # it had an outcome, which is lost
            self.transactions[record.id] = transaction
            transaction.outcome_lost = True

    def _tx_relocated(self, record: Record) -> None:
        body = record.body
        assert isinstance(body, TxRelocated)
        transaction = self._transaction(record.id, record.lsn)
        self.ended.discard(record.id)
        transaction.distributed = body.kind is TxKind.DISTRIBUTED
        transaction.xid = XidBody(body.format_id, body.gtrid, body.bqual) if transaction.distributed else None
        transaction.state, transaction.started = body.state.name.lower(), True
        transaction.started_us, transaction.prepared_us = body.start_time_us, body.prepare_time_us

    # ---- Records of which only the header is whole

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

    def _damaged_message(self, lost: Damaged, kind: RecordType) -> None:
        moved = kind is RecordType.MESSAGE_RELOCATED or bool(lost.flags & RecordFlag.COPY)
        if moved:
            self._damaged_copy(lost, kind)
        elif kind is RecordType.MESSAGE_START:
            self._ghost(lost)
            self.probable[lost.id] = probable_queues(lost.raw)
        elif kind is RecordType.MESSAGE_DEQUEUE and lost.flags & RecordFlag.DELETES:
            self._end_message(lost.id)
        else:
            message = self._message(lost)
            if message is None:
                return
            if kind is RecordType.MESSAGE_CHUNK:
                message.miss(CONTENT_LOST)
            elif kind is RecordType.MESSAGE_ENQUEUE:
                message.miss(ELSEWHERE)
            else:
                message.doubt(lost.lsn, "a dequeue of it is lost: it may have been consumed")

    def _damaged_copy(self, lost: Damaged, kind: RecordType) -> None:
        """A copy that is lost costs nothing while what it was made from is known."""
        counts = bool(lost.flags & RecordFlag.INLINE) or (
            kind is RecordType.MESSAGE_RELOCATED and not lost.flags & RecordFlag.PART
        )
        message = self.messages.get(lost.id)
        if not counts:
            copies = self._copy(lost)
            copies.parts_lost = copies.parts_lost or kind is RecordType.MESSAGE_RELOCATED
            return
        copies = self._copies.pop(lost.id, _Copies())
        if message is not None:
            message.last_lsn = lost.lsn
            self._merge(message, copies)
        elif lost.id not in self.ended:
            message = self._ghost(lost)
            self._merge(message, copies)
            message.miss("its relocated state is lost")
            if kind is RecordType.MESSAGE_START:
                self.probable[lost.id] = probable_queues(lost.raw)

    # ---- Epochs

    def _recover(self) -> None:
        """What opening the store decided: records that say so follow, and would have been the same if they are lost.

        A transaction of which only relocated work was seen so far may be prepared: its own state follows.
        """
        for transaction in self.transactions.values():
            if transaction.started and transaction.state != "prepared" and not self.lossy_since(transaction.last_lsn):
                transaction.doomed = True
        self.drop_staged()

    def drop_staged(self) -> None:
        """Messages that were never enqueued go, unless their enqueue may be lost."""
        for message_id, message in list(self.messages.items()):
            if not message.staged or message.pending or message.lost or message.start_lsn == START_UNKNOWN:
                continue
            if self.lossy_since(message.last_lsn):
                message.miss("whether and where it was enqueued is lost")
                if message.size is None:
                    message.miss(CONTENT_IN_DOUBT)
            else:
                self.staged_dropped += 1
                self._end_message(message_id)

    def finish(self, is_gone: Callable[[int], bool]) -> State:
        """The state at the end of the log, as recovery would make it if it could.

        ``is_gone`` says of a queue's id whether the catalog knows that the queue was deleted.
        """
        self._recover()
        return settle(self, lambda queue_id: queue_id in self.deleted_queues or is_gone(queue_id))


def probable_queues(raw: bytes) -> list[int]:
    """The queues that a start record of which only the header is whole seems to name; no checksum says so."""
    count = int.from_bytes(raw[64:68], "little")
    if not 0 < count <= 64 or 72 + 4 * count > len(raw):
        return []
    queues = [int.from_bytes(raw[at : at + 4], "little") for at in range(72, 72 + 4 * count, 4)]
    return [queue_id for queue_id in queues if 0 < queue_id < 2**32 - 1]
