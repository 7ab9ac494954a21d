"""The state that an interpreter of records keeps, and the results of a strict replay: plain data, without rules."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from sortedcontainers import SortedDict

from logstore.codec.records import PendingKind

if TYPE_CHECKING:
    from logstore.codec.records import Record, XidBody

_NONE: SortedDict[int, Piece] = SortedDict()

START_UNKNOWN = 0  # a start_lsn: no start record of the message is known


@dataclass(frozen=True, slots=True)
class PlaceState:
    """What a place remembers beside its order (section 6); times in µs since 1970."""

    delivery_count: int = 0
    not_before_us: int = 0  # it is not offered before; 0: no such time
    expires_us: int = 0  # it is not offered after; 0: no such time
    note: bytes = b""
    header: bytes | None = None  # of its own, perhaps of no bytes; None: the message's

    @property
    def or_none(self) -> PlaceState | None:
        """None in place of a state with nothing in it."""
        return None if self == NO_STATE else self


NO_STATE = PlaceState()


class Place(NamedTuple):
    """A message's place on a queue."""

    queue_id: int
    order_lsn: int  # LSN at which it became visible
    order_index: int  # within that commit
    time_us: int = 0  # of the enqueue; 0: not known
    state: PlaceState | None = None


class Work(NamedTuple):
    """An operation of a transaction on a message, which takes effect at the commit."""

    kind: PendingKind
    message_id: int
    queue_id: int
    tx_id: int
    lsn: int  # of its record
    order_index: int  # of an enqueue within its transaction; 0 for the others
    state: PlaceState | None = None  # that an enqueue gives; of a note its bytes, None: it takes the note away

    @property
    def key(self) -> tuple[int, int, int, int, int]:
        """Equal for an operation and its relocated form."""
        return self.tx_id, self.lsn, self.queue_id, self.kind, self.order_index


def with_note(state: PlaceState | None, new: PlaceState | None) -> PlaceState | None:
    """The state with the note of the new one, or without a note if that has none."""
    return replace(state or NO_STATE, note=(new or NO_STATE).note).or_none


class Piece(NamedTuple):
    """A record that contains a part of a message's content."""

    lsn: int
    size: int  # of the content in it, in bytes


class Doubt(NamedTuple):
    """A reason why a kept message may have changed."""

    lsn: int  # of the lost record, or of the operation with an unknown outcome
    why: str


class Message:
    """A live message, as far as the records tell."""

    __slots__ = (
        "chunks",
        "doubts",
        "last_lsn",
        "length",
        "lost",
        "pending",
        "places",
        "published",
        "size",
        "staged",
        "start_bytes",
        "start_lsn",
    )

    def __init__(self, start_lsn: int, start_bytes: int, last_lsn: int, *, published: bool) -> None:
        self.start_lsn = start_lsn  # of a readable start record, or START_UNKNOWN
        self.start_bytes = start_bytes  # bytes of content in it
        self.last_lsn = last_lsn  # of its newest known record that counts
        self.published = published
        self.staged = True  # no enqueue of it has taken effect
        self.places: tuple[Place, ...] = ()  # places on deleted queues included
        self.length = start_bytes  # bytes of content so far
        self.size: int | None = None  # bytes of content according to a relocated state
        self.chunks: SortedDict[int, Piece] | None = None  # by offset in the content
        self.pending: list[Work] | None = None
        self.doubts: list[Doubt] | None = None
        self.lost: list[str] | None = None  # reasons why some records of the message are unknown

    def miss(self, why: str) -> None:
        """Notes that a part of the message is lost."""
        self.lost = self.lost or []
        if why not in self.lost:
            self.lost.append(why)

    def doubt(self, lsn: int, why: str) -> None:
        """Notes that a lost record may have changed the message."""
        self.doubts = self.doubts or []
        self.doubts.append(Doubt(lsn, why))

    def place(self, queue_id: int) -> Place | None:
        """Its place on the queue, if it has one."""
        return next((place for place in self.places if place.queue_id == queue_id), None)

    def place_for(self, tx_id: int, queue_id: int) -> Place | None:
        """Its place on the queue as this transaction has it, its own pending operations counted."""
        place = self.place(queue_id)
        for work in self.pending or ():
            if work.tx_id != tx_id or work.queue_id != queue_id:
                continue
            if work.kind is PendingKind.DEQUEUE:
                place = None
            elif work.kind is PendingKind.ENQUEUE:
                place = Place(queue_id, work.lsn, work.order_index, 0, work.state)
            elif place is not None:
                place = place._replace(state=with_note(place.state, work.state))
        return place

    @property
    def has_states(self) -> bool:
        """Whether a place of it has a state, or pending work gives one: then its relocated state has states, too."""
        if any(place.state is not None for place in self.places):
            return True
        return any(work.state is not None or work.kind is PendingKind.NOTE for work in self.pending or ())

    @property
    def pieces(self) -> SortedDict[int, Piece]:
        """The chunks, to be read only: most messages have none, and share one empty dictionary."""
        return _NONE if self.chunks is None else self.chunks

    @property
    def content_bytes(self) -> int | None:
        """The length of the whole content; None if pieces of it are missing."""
        end = self.start_bytes
        for offset, piece in self.pieces.items():
            if offset != end:
                return None
            end += piece.size
        if self.start_lsn == START_UNKNOWN or (self.size is not None and end != self.size):
            return None
        return end

    def as_found(self, message_id: int, queue_id: int) -> Place:
        """A place whose order key is lost, or one on the queue for found messages."""
        self.staged = False
        return Place(queue_id, message_id, 0)

    @property
    def readable_bytes(self) -> int:
        """Bytes of the content that can be read, contiguous or not."""
        return sum(piece.size for piece in self.pieces.values()) + self.start_bytes * (self.start_lsn != START_UNKNOWN)


@dataclass(slots=True)
class Transaction:
    """A transaction without a known outcome."""

    id: int
    lsn: int  # of the first record that names it
    last_lsn: int
    xid: XidBody | None = None
    distributed: bool = False
    state: str = "active"  # or: ended, prepared
    started: bool = True  # its start or relocated state was read; False: only its work is known
    started_us: int = 0
    prepared_us: int = 0
    work: list[Work] = field(default_factory=list)
    enqueues: int | None = 0  # the number made in it so far; None: not known
    doomed: bool = False  # rolled back: its epoch ended without an outcome, and none of its records is lost
    outcome_lost: bool = False  # it had an outcome, which is lost

    @property
    def prepared(self) -> bool:
        """Whether only an outcome from outside can end the transaction."""
        return self.state == "prepared"


class Copies:
    """The copies of one chain that are not part of a complete relocation yet."""

    __slots__ = ("chunks", "parts", "parts_lost", "published", "start_bytes", "start_lsn")

    def __init__(self) -> None:
        self.start_lsn = START_UNKNOWN  # of the newest copy of the start
        self.start_bytes = 0
        self.published = False
        self.chunks: dict[int, Piece] = {}  # by offset
        self.parts: list[Record] = []  # parts of a state, in order
        self.parts_lost = False


class Moved(NamedTuple):
    """The state that a relocation gives a message, without its content."""

    places: tuple[Place, ...]
    work: list[Work]
    staged: bool
    published: bool


# ---- Results of a strict replay


class Problem(NamedTuple):
    """A contradiction, which a correct log never contains."""

    lsn: int
    reason: str


class Staged(NamedTuple):
    """A message that recovery drops because it was never enqueued."""

    id: int
    content_bytes: int


class Abandoned(NamedTuple):
    """A transaction that recovery rolls back."""

    id: int
    xid: XidBody | None
    operations: int


@dataclass(slots=True)
class QueueCounts:
    """The counts of one queue."""

    depth: int = 0  # visible places
    locked: int = 0  # places that open transactions have dequeued
    content_bytes: int = 0


@dataclass(slots=True)
class EndState:
    """The state at the end of the log."""

    messages: int  # live messages
    staged: int  # live messages that were never enqueued, not even by an open transaction
    places: int
    queues: dict[int, QueueCounts]  # by id; only those with places
    transactions: list[Transaction]


def xid_text(xid: XidBody) -> str:
    """The common text form: ``format:gtrid-hex:bqual-hex``."""
    return f"{xid.format_id}:{xid.gtrid.hex()}:{xid.bqual.hex()}"
