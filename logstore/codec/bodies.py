"""The bodies of the log's records: one class for each record of section 6 of docs/format.md.

Written from that page alone. Fields stand in the page's order. A class's ``parts`` are its layout; its ``check`` has
the rules that need the record's own LSN or flags.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, IntFlag
from itertools import pairwise
from typing import TYPE_CHECKING

from logstore.codec.layout import (
    Body,
    a_queue_id,
    above_zero,
    an_lsn,
    content_size,
    count_of,
    data,
    earlier,
    lsn_or_none,
    number,
    padded_rows,
    queue_list,
    reserved,
    rest,
    rows,
    within,
    xid_part_size,
    zeros,
)

if TYPE_CHECKING:
    from logstore.codec.records import Record

FOOTER_COUNTS_MAX = 24
MEMBERS_CONFIG_MAX = 4032
TERM_SHIFT = 40  # a term's LSNs begin at the term times 2^40
TERM_LIMIT = 1 << 23
RECORD_HEADER_BYTES = 48
BATCH_RECORD_BYTES = 104


class RecordFlag(IntFlag):
    """Bits of a record's ``flags`` (section 5); each is legal only on the record types listed there."""

    COPY = 1
    PART = 2
    DELETES = 4
    PUBLISHED = 8
    STAGED = 16
    INLINE = 32
    ORDERED = 64


class DequeueReason(IntEnum):
    """Why a message left a queue (section 6, ``MESSAGE_DEQUEUE``)."""

    NOT_TOLD = 0
    ACCEPTED = 1
    REJECTED = 2
    EXPIRED = 3
    PURGED = 4
    DEAD_LETTERED = 5
    QUEUE_DELETED = 6


class CatalogAction(IntEnum):
    """The effect of a ``CATALOG_CHANGE``'s row (section 6)."""

    PUT = 1
    DELETE = 2


class CatalogObject(IntEnum):
    """The object that a ``CATALOG_CHANGE``'s row describes (section 6)."""

    QUEUE = 1
    EXCHANGE = 2
    BINDING = 3
    CONFIG = 4


class PendingKind(IntEnum):
    """The effect that a transaction's commit will have on a place (section 6, ``MESSAGE_RELOCATED``)."""

    ENQUEUE = 1
    DEQUEUE = 2
    NOTE = 3  # only in rows with states


class TxKind(IntEnum):
    """Kind of a relocated transaction (section 6, ``TX_RELOCATED``)."""

    LOCAL = 1
    DISTRIBUTED = 2


class TxState(IntEnum):
    """State of a relocated transaction (section 6, ``TX_RELOCATED``)."""

    ACTIVE = 1
    ENDED = 2
    PREPARED = 3


@dataclass(frozen=True, slots=True)
class Batch(Body):
    """``BATCH``: describes one group commit; the first record of every batch."""

    epoch: int  # of the segment, as plain bytes
    count: int  # records that follow in this batch
    bytes: int  # of the whole batch, this record included
    durable_lsn: int  # everything below it was durable before this batch was written
    base_lsn: int  # first LSN that the state below durable_lsn still needs
    time_us: int
    index: int = 0  # since replication began; 0: not replicated
    known_durable_lsn: int = 0  # with an index: everything below it was on a majority's disks

    parts = (
        number("epoch", 8, above_zero),
        number("count", 4),
        number("bytes", 4),
        number("durable_lsn", 8, an_lsn),
        number("base_lsn", 8, an_lsn),
        number("time_us", 8),
        number("index", 8),
        number("known_durable_lsn", 8, lsn_or_none),
    )

    def check(self, record: Record) -> None:
        """Section 6: the batch has room for its records, and every LSN that it names lies at or below it."""
        room = self.bytes - BATCH_RECORD_BYTES
        if room < RECORD_HEADER_BYTES * self.count or self.bytes % 8 or (room > 0) != (self.count > 0):
            raise ValueError(f"{self.bytes} bytes are not those of a batch of {self.count} records")
        if max(self.durable_lsn, self.base_lsn) > record.lsn:
            raise ValueError("durable_lsn or base_lsn lies above the batch")
        if self.index == 0:
            if self.known_durable_lsn:
                raise ValueError("a batch without an index knows what is durable by majority")
        elif self.known_durable_lsn > record.lsn:
            raise ValueError("known_durable_lsn lies above the batch")
        elif self.epoch >= TERM_LIMIT or record.lsn >> TERM_SHIFT != self.epoch:
            raise ValueError(f"a batch with an index at an LSN that is not of the term {self.epoch}")


def numbered(tx_id: int, order_index: int, queues: tuple[int, ...]) -> None:
    """Checks that the enqueues of a transaction are numbered from 0, and that others have the index 0."""
    if order_index + len(queues) > 2**24 if tx_id else order_index != 0:
        raise ValueError("an order index that no enqueue has")


@dataclass(frozen=True, slots=True)
class MessageStart(Body):
    """``MESSAGE_START``: a message's header, its first content, and perhaps all its enqueues."""

    tx_id: int  # transaction of the inline enqueues; 0: none
    queues: tuple[int, ...]
    header: bytes
    content: bytes
    order_index: int = 0  # of the first inline enqueue; counts the enqueues of its transaction

    parts = (
        number("tx_id", 8, lsn_or_none),
        count_of("header"),
        count_of("content"),
        count_of("queues"),
        number("order_index", 4),
        queue_list("queues", padded=True),
        data("header"),
        data("content"),
    )

    def check(self, record: Record) -> None:
        """Section 6: only inline enqueues have a transaction, and a copy has no enqueues unless it has ``INLINE``."""
        earlier(record.lsn, tx_id=self.tx_id)
        if self.tx_id and not self.queues:
            raise ValueError("a transaction without an enqueue")
        if self.queues and RecordFlag.COPY in record.flags:
            raise ValueError("a copy enqueues")
        numbered(self.tx_id, self.order_index, self.queues)


@dataclass(frozen=True, slots=True)
class InlineCopy(Body):
    """``MESSAGE_START`` with ``COPY`` and ``INLINE``: a whole relocated message with its places.

    Its places have the order key of a publish outside transactions: the chain's id and index 0.
    """

    enqueue_time_us: int  # of the batch with the enqueue; 0: not known
    queues: tuple[int, ...]
    header: bytes
    content: bytes

    parts = (
        number("enqueue_time_us", 8),
        count_of("header"),
        count_of("content"),
        count_of("queues", check=above_zero),
        reserved(4),
        queue_list("queues", padded=True),
        data("header"),
        data("content"),
    )


@dataclass(frozen=True, slots=True)
class OrderedCopy(Body):
    """``MESSAGE_START`` with ``COPY``, ``INLINE`` and ``ORDERED``: an inline copy with its own order key."""

    order_lsn: int  # LSN at which the places became visible
    queues: tuple[int, ...]  # 0: a place that has ended; its order index still counts
    header: bytes
    content: bytes
    order_index: int  # of the first entry of the list; each later entry has one more

    parts = (
        number("order_lsn", 8, an_lsn),
        count_of("header"),
        count_of("content"),
        count_of("queues", check=above_zero),
        number("order_index", 4),
        queue_list("queues", padded=True, gaps=True),
        data("header"),
        data("content"),
    )

    def check(self, record: Record) -> None:
        """Section 6: the places became visible after the chain began and before it was copied."""
        earlier(record.lsn, order_lsn=self.order_lsn)
        if self.order_lsn <= record.id:
            raise ValueError(f"order_lsn {self.order_lsn:#x} does not lie above the chain's id")
        numbered(self.order_lsn, self.order_index, self.queues)


@dataclass(frozen=True, slots=True)
class MessageChunk(Body):
    """``MESSAGE_CHUNK``: more content."""

    offset: int  # of these bytes, within the content
    content: bytes

    parts = (number("offset", 8, content_size), count_of("content"), reserved(4), data("content"))

    def __post_init__(self) -> None:
        content_size(self.offset + len(self.content))


@dataclass(frozen=True, slots=True)
class MessageEnqueue(Body):
    """``MESSAGE_ENQUEUE``: places on one or more queues."""

    tx_id: int  # 0: none
    queues: tuple[int, ...]
    order_index: int = 0  # as in MESSAGE_START

    parts = (
        number("tx_id", 8, lsn_or_none),
        count_of("queues", check=above_zero),
        number("order_index", 4),
        queue_list("queues", padded=False),
    )

    def check(self, record: Record) -> None:
        """Section 6: the transaction began before this record."""
        earlier(record.lsn, tx_id=self.tx_id)
        numbered(self.tx_id, self.order_index, self.queues)


@dataclass(frozen=True, slots=True)
class MessageDequeue(Body):
    """``MESSAGE_DEQUEUE``: the place on one queue ends."""

    tx_id: int  # 0: none
    queue_id: int
    delivery_count: int  # 0 if not given
    reason: DequeueReason

    parts = (
        number("tx_id", 8, lsn_or_none),
        number("queue_id", 4, a_queue_id),
        number("delivery_count", 2),
        number("reason", 2, DequeueReason),
    )

    def check(self, record: Record) -> None:
        """Section 6: the transaction began before this record, and a dequeue in a transaction has no ``DELETES``."""
        earlier(record.lsn, tx_id=self.tx_id)
        if self.tx_id and RecordFlag.DELETES in record.flags:
            raise ValueError("a delete in a transaction")


@dataclass(frozen=True, slots=True)
class Empty(Body):
    """Record types without a body: ``MESSAGE_DELETE``, and those of local transactions except ``TX_RELOCATED``."""


@dataclass(frozen=True, slots=True)
class Close(Body):
    """``CLOSE``: marks an orderly close; the only record of the last batch."""


@dataclass(frozen=True, slots=True)
class ChunkPlace(Body):
    """The position of one chunk of a relocated message."""

    lsn: int  # of the MESSAGE_CHUNK
    offset: int  # within the content
    content_bytes: int

    parts = (
        number("lsn", 8, an_lsn),
        number("offset", 8),
        number("content_bytes", 4),
        reserved(4),
    )


@dataclass(frozen=True, slots=True)
class QueuePlace(Body):
    """A relocated message's place on a queue."""

    order_lsn: int  # LSN at which the place became visible
    enqueue_time_us: int
    queue_id: int
    order_index: int  # within the commit
    delivery_count: int

    parts = (
        number("order_lsn", 8, an_lsn),
        number("enqueue_time_us", 8),
        number("queue_id", 4, a_queue_id),
        number("order_index", 4),
        number("delivery_count", 4),
        reserved(4),
    )


def _enqueue_or_dequeue(kind: int) -> PendingKind:
    return PendingKind(within(PendingKind.ENQUEUE, PendingKind.DEQUEUE, "pending work")(kind))


@dataclass(frozen=True, slots=True)
class PendingWork(Body):
    """One operation of an open transaction on a relocated message."""

    tx_id: int
    lsn: int  # of the operation
    queue_id: int
    kind: PendingKind
    order_index: int  # within the transaction

    parts = (
        number("tx_id", 8, an_lsn),
        number("lsn", 8, an_lsn),
        number("queue_id", 4, a_queue_id),
        number("kind", 4, _enqueue_or_dequeue),
        number("order_index", 4),
        reserved(4),
    )


@dataclass(frozen=True, slots=True)
class MessageRelocated(Body):
    """``MESSAGE_RELOCATED``: a chain's whole state, or with flag ``PART`` a part of it."""

    content_bytes: int  # length of the whole content
    start_lsn: int  # of the MESSAGE_START copy
    part: int
    chunks: tuple[ChunkPlace, ...]
    places: tuple[QueuePlace, ...]
    pending: tuple[PendingWork, ...]

    parts = (
        number("content_bytes", 8, content_size),
        number("start_lsn", 8, an_lsn),
        number("part", 4),
        count_of("chunks"),
        count_of("places"),
        count_of("pending"),
        rows("chunks", ChunkPlace, 24),
        rows("places", QueuePlace, 32),
        rows("pending", PendingWork, 32),
    )

    def check(self, record: Record) -> None:
        """Section 6: every LSN that it names lies below it, in order, and every chunk lies inside the content."""
        earlier(record.lsn, start_lsn=self.start_lsn)
        for chunk in self.chunks:
            earlier(record.lsn, chunk=chunk.lsn)
            if chunk.offset + chunk.content_bytes > self.content_bytes:
                raise ValueError("a chunk lies outside the content")
        for place in self.places:
            earlier(record.lsn, place=place.order_lsn)
        for work in self.pending:
            earlier(record.lsn, work=work.lsn)
            earlier(work.lsn, tx_id=work.tx_id)


@dataclass(frozen=True, slots=True)
class XidBody(Body):
    """``DTX_START``, ``TX_PREPARE``: a distributed transaction's name."""

    format_id: int  # signed
    gtrid: bytes  # at most 64 bytes
    bqual: bytes  # at most 64 bytes

    parts = (
        number("format_id", 8, signed=True),
        count_of("gtrid", 1, xid_part_size),
        count_of("bqual", 1, xid_part_size),
        reserved(6),
        data("gtrid"),
        data("bqual"),
    )


@dataclass(frozen=True, slots=True)
class TxRelocated(Body):
    """``TX_RELOCATED``: the whole state of an open transaction. The xid of a local transaction is all zero."""

    format_id: int  # signed
    gtrid: bytes
    bqual: bytes
    kind: TxKind
    state: TxState
    start_time_us: int
    prepare_time_us: int

    parts = (
        number("format_id", 8, signed=True),
        count_of("gtrid", 1, xid_part_size),
        count_of("bqual", 1, xid_part_size),
        number("kind", 1, TxKind),
        number("state", 1, TxState),
        reserved(4),
        number("start_time_us", 8),
        number("prepare_time_us", 8),
        data("gtrid"),
        data("bqual"),
    )

    def __post_init__(self) -> None:
        if self.kind == TxKind.LOCAL and (self.format_id or self.gtrid or self.bqual):
            raise ValueError("a local transaction has an xid")


@dataclass(frozen=True, slots=True)
class Filler(Body):
    """``FILLER``: zero bytes without a meaning."""

    bytes: int  # number of zeros; a multiple of 8

    parts = (zeros("bytes"),)


@dataclass(frozen=True, slots=True)
class TypeCount(Body):
    """The number of records of one type in a sealed segment."""

    type: int  # of a RecordType, or of a skippable type
    count: int

    parts = (number("type", 4), number("count", 4, above_zero))


@dataclass(frozen=True, slots=True)
class Footer(Body):
    """``FOOTER``: the last record of a segment that has a successor; readers never need it."""

    last_lsn: int  # of the record before this one
    bytes: int  # from the first record position to this record
    batches: int
    counts: tuple[TypeCount, ...]  # ascending by type

    parts = (
        number("last_lsn", 8, an_lsn),
        number("bytes", 8),
        number("batches", 4),
        count_of("counts", check=within(0, FOOTER_COUNTS_MAX, "number of types")),
        rows("counts", TypeCount, 8),
    )

    def __post_init__(self) -> None:
        if any(one.type >= next_one.type for one, next_one in pairwise(self.counts)):
            raise ValueError("counts do not ascend by type")

    def check(self, record: Record) -> None:
        """Section 6: the counted records lie below the footer."""
        earlier(record.lsn, last_lsn=self.last_lsn)


@dataclass(frozen=True, slots=True)
class QueueDelete(Body):
    """``QUEUE_DELETE``: every place and all pending work on a queue end."""

    queue_id: int

    parts = (number("queue_id", 4, a_queue_id), reserved(4))


@dataclass(frozen=True, slots=True)
class Unknown(Body):
    """The body of a skippable type that this reader does not know (section 5)."""

    raw: bytes  # padding included

    parts = (rest("raw"),)


# ---- Replication, section 10.


@dataclass(frozen=True, slots=True)
class Members(Body):
    """``MEMBERS``: who the members of a replicated log are."""

    index: int  # of the batch in which it was first written
    config: bytes  # in the encoding of the consensus library

    parts = (
        number("index", 8, above_zero),
        count_of("config", check=within(1, MEMBERS_CONFIG_MAX, "length of a configuration")),
        reserved(4),
        data("config"),
    )


@dataclass(frozen=True, slots=True)
class CatalogRow(Body):
    """One row of a ``CATALOG_CHANGE``."""

    action: CatalogAction
    object: CatalogObject
    queue_id: int  # of a queue; 0 for the other objects
    row: bytes  # UTF-8 JSON that only the catalog reads

    parts = (
        number("action", 1, CatalogAction),
        number("object", 1, CatalogObject),
        reserved(2),
        number("queue_id", 4),
        count_of("row"),
        reserved(4),
        data("row"),
    )

    def __post_init__(self) -> None:
        if self.object is CatalogObject.QUEUE:
            a_queue_id(self.queue_id)
        elif self.queue_id:
            raise ValueError("only a queue's row has a queue id")


@dataclass(frozen=True, slots=True)
class CatalogChange(Body):
    """``CATALOG_CHANGE``: one transaction of the catalog, or a part of it."""

    part: int  # from 0 on; all parts but the last have the flag PART
    rows: tuple[CatalogRow, ...]

    parts = (
        number("part", 4),
        count_of("rows", check=above_zero),
        padded_rows("rows", CatalogRow),
    )
