"""The bodies of records with states of places: what a place remembers beside its order (section 6 of docs/format.md).

Written from that page alone. Fields stand in the page's order; ``state_bits`` says which parts of a state are there.
Times are microseconds since 1970, and 0 means none.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntFlag
from typing import TYPE_CHECKING

from logstore.codec.bodies import ChunkPlace, DequeueReason, PendingKind, numbered
from logstore.codec.layout import (
    LSN_LIMIT,
    QUEUE_ID_MAX,
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
    within,
)
from logstore.codec.layout import (
    rows as rows_of,
)

if TYPE_CHECKING:
    from logstore.codec.records import Record

NOTE_BYTES_MAX = 255


class StateBit(IntFlag):
    """Parts of a place's state (section 6)."""

    HAS_HEADER = 1  # a header of the place's own follows, perhaps of no bytes
    KEEPS_HEADER = 2  # the own header of the place that ends; like the next one only in a move
    KEEPS_NOTE = 4


place_time = within(0, LSN_LIMIT - 1, "time of a place")
_queue_id_or_none = within(0, QUEUE_ID_MAX, "queue id")


def _own_header(header: bytes, state_bits: int) -> None:
    if header and not state_bits & StateBit.HAS_HEADER:
        raise ValueError("a header of its own without HAS_HEADER")


@dataclass(frozen=True, slots=True)
class MessageStartPlaced(Body):
    """``MESSAGE_START_PLACED``: a message's only content, and places that all have one state."""

    tx_id: int  # 0: none
    queues: tuple[int, ...]
    header: bytes  # of the message
    content: bytes
    order_index: int = 0  # of the first place; counts the enqueues of its transaction
    not_before_us: int = 0
    expires_us: int = 0
    note: bytes = b""

    parts = (
        number("tx_id", 8, lsn_or_none),
        count_of("header"),
        count_of("content"),
        count_of("queues", check=above_zero),
        number("order_index", 4),
        number("not_before_us", 8, place_time),
        number("expires_us", 8, place_time),
        count_of("note", 1),
        reserved(7),
        queue_list("queues", padded=True),
        data("note"),
        data("header"),
        data("content"),
    )

    def check(self, record: Record) -> None:
        """Section 6: it has a state, and its transaction began before it."""
        earlier(record.lsn, tx_id=self.tx_id)
        if not (self.not_before_us or self.expires_us or self.note):
            raise ValueError("a start with a state has none")
        numbered(self.tx_id, self.order_index, self.queues)


@dataclass(frozen=True, slots=True)
class MessagePlace(Body):
    """``MESSAGE_PLACE``: the note of a place."""

    tx_id: int  # 0: none
    queue_id: int
    note: bytes  # of no bytes: it is taken away

    parts = (
        number("tx_id", 8, lsn_or_none),
        number("queue_id", 4, a_queue_id),
        count_of("note", 1),
        reserved(3),
        data("note"),
    )

    def check(self, record: Record) -> None:
        """Section 6: the transaction began before this record."""
        earlier(record.lsn, tx_id=self.tx_id)


@dataclass(frozen=True, slots=True)
class MessageMove(Body):
    """``MESSAGE_MOVE``: a new place with its state, and perhaps the end of another one."""

    tx_id: int  # 0: none
    from_queue_id: int  # of the place that ends; 0: none
    queue_id: int  # of the new place
    order_index: int = 0  # of the new place, as in a start
    delivery_count: int = 0
    not_before_us: int = 0
    expires_us: int = 0
    reason: DequeueReason = DequeueReason.NOT_TOLD  # why the place ends
    state_bits: int = 0
    note: bytes = b""
    header: bytes = b""  # the place's own

    parts = (
        number("tx_id", 8, lsn_or_none),
        number("from_queue_id", 4, _queue_id_or_none),
        number("queue_id", 4, a_queue_id),
        number("order_index", 4),
        number("delivery_count", 4),
        number("not_before_us", 8, place_time),
        number("expires_us", 8, place_time),
        count_of("header"),
        count_of("note", 1),
        number("reason", 1, DequeueReason),
        number("state_bits", 2, within(0, 7, "set of parts of a state")),
        data("note"),
        data("header"),
    )

    def check(self, record: Record) -> None:
        """Section 6: the bits fit together, and what is kept or told of an end needs a place that ends."""
        earlier(record.lsn, tx_id=self.tx_id)
        numbered(self.tx_id, self.order_index, (self.queue_id,))
        _own_header(self.header, self.state_bits)
        if self.state_bits & StateBit.HAS_HEADER and self.state_bits & StateBit.KEEPS_HEADER:
            raise ValueError("a header of its own beside the one that is kept")
        if self.note and self.state_bits & StateBit.KEEPS_NOTE:
            raise ValueError("a note beside the one that is kept")
        if not self.from_queue_id and (self.reason or self.state_bits & ~StateBit.HAS_HEADER):
            raise ValueError("a move from nowhere keeps something, or says why")


@dataclass(frozen=True, slots=True)
class PlacedPlace(Body):
    """A relocated message's place on a queue, with its state."""

    order_lsn: int  # LSN at which the place became visible
    enqueue_time_us: int
    queue_id: int
    order_index: int  # within the commit
    delivery_count: int = 0
    not_before_us: int = 0
    expires_us: int = 0
    state_bits: int = 0
    note: bytes = b""
    header: bytes = b""

    parts = (
        number("order_lsn", 8, an_lsn),
        number("enqueue_time_us", 8),
        number("queue_id", 4, a_queue_id),
        number("order_index", 4),
        number("delivery_count", 4),
        count_of("header"),
        number("not_before_us", 8, place_time),
        number("expires_us", 8, place_time),
        count_of("note", 1),
        number("state_bits", 1, within(0, 1, "set of parts of a state")),
        reserved(2),
        reserved(4),
        data("note"),
        data("header"),
    )

    def __post_init__(self) -> None:
        _own_header(self.header, self.state_bits)


@dataclass(frozen=True, slots=True)
class PlacedWork(Body):
    """One operation of an open transaction on a relocated message, with the state that it gives."""

    tx_id: int
    lsn: int  # of the operation
    queue_id: int
    kind: PendingKind
    delivery_count: int = 0
    not_before_us: int = 0
    expires_us: int = 0
    state_bits: int = 0
    order_index: int = 0  # within the transaction
    note: bytes = b""
    header: bytes = b""

    parts = (
        number("tx_id", 8, an_lsn),
        number("lsn", 8, an_lsn),
        number("queue_id", 4, a_queue_id),
        number("kind", 4, PendingKind),
        number("delivery_count", 4),
        count_of("header"),
        number("not_before_us", 8, place_time),
        number("expires_us", 8, place_time),
        count_of("note", 1),
        number("state_bits", 1, within(0, 1, "set of parts of a state")),
        reserved(2),
        number("order_index", 4),
        data("note"),
        data("header"),
    )

    def __post_init__(self) -> None:
        _own_header(self.header, self.state_bits)
        more_than_a_note = self.delivery_count or self.not_before_us or self.expires_us or self.state_bits
        if more_than_a_note and self.kind is not PendingKind.ENQUEUE:
            raise ValueError("a state that only an enqueue gives")
        if self.note and self.kind is PendingKind.DEQUEUE:
            raise ValueError("a dequeue with a note")


@dataclass(frozen=True, slots=True)
class MessageRelocatedPlaced(Body):
    """``MESSAGE_RELOCATED_PLACED``: a chain's whole state, with those of its places, or a part of it."""

    content_bytes: int  # length of the whole content
    start_lsn: int
    part: int
    chunks: tuple[ChunkPlace, ...]
    places: tuple[PlacedPlace, ...]
    pending: tuple[PlacedWork, ...]

    parts = (
        number("content_bytes", 8, content_size),
        number("start_lsn", 8, an_lsn),
        number("part", 4),
        count_of("chunks"),
        count_of("places"),
        count_of("pending"),
        rows_of("chunks", ChunkPlace, 24),
        padded_rows("places", PlacedPlace),
        padded_rows("pending", PlacedWork),
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
class StateRow(Body):
    """The count and the times of one place."""

    id: int  # of the message
    not_before_us: int
    expires_us: int
    queue_id: int
    delivery_count: int

    parts = (
        number("id", 8, an_lsn),
        number("not_before_us", 8, place_time),
        number("expires_us", 8, place_time),
        number("queue_id", 4, a_queue_id),
        number("delivery_count", 4),
    )


@dataclass(frozen=True, slots=True)
class PlaceStates(Body):
    """``PLACE_STATES``: replaces the counts and times of places of any messages."""

    rows: tuple[StateRow, ...]

    parts = (count_of("rows", check=above_zero), reserved(4), rows_of("rows", StateRow, 32))

    def check(self, record: Record) -> None:
        """Section 6: the messages began before this record."""
        for row in self.rows:
            earlier(record.lsn, id=row.id)
