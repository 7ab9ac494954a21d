"""The state that an interpreter of records keeps, and the results of a strict replay: plain data, without rules."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from sortedcontainers import SortedDict

if TYPE_CHECKING:
    from logstore.codec.records import PendingKind, Record, XidBody

_NONE: SortedDict[int, Piece] = SortedDict()

START_UNKNOWN = 0  # a start_lsn: no start record of the message is known


class Place(NamedTuple):
    """A message's place on a queue."""

    queue_id: int
    order_lsn: int  # LSN at which it became visible
    order_index: int  # within that commit
    time_us: int = 0  # of the enqueue; 0: not known
    delivery_count: int = 0


class Work(NamedTuple):
    """An operation of a transaction on a message, which takes effect at the commit."""

    kind: PendingKind
    message_id: int
    queue_id: int
    tx_id: int
    lsn: int  # of its record
    order_index: int  # of an enqueue within its transaction; 0 for a dequeue

    @property
    def key(self) -> tuple[int, int, int, int, int]:
        """Equal for an operation and its relocated form."""
        return self.tx_id, self.lsn, self.queue_id, self.kind, self.order_index


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
        """The message's place on the queue for found messages."""
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
