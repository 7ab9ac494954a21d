"""The state that an interpreter of records keeps, and the results of a strict one: plain data, without rules."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from logstore.codec.records import PendingKind, Record, XidBody

START_UNKNOWN = 0  # as a start_lsn: no start record of the message is known


class Place(NamedTuple):
    """A message's place on a queue."""

    queue_id: int
    order_lsn: int  # at which it became visible
    order_index: int  # within that commit
    time_us: int = 0  # of the enqueue, as far as it is known
    delivery_count: int = 0


class Work(NamedTuple):
    """An operation of a transaction on a message, which takes effect at the commit."""

    kind: PendingKind
    message_id: int
    queue_id: int
    tx_id: int
    lsn: int  # of its record
    order_index: int  # of an enqueue in its transaction; 0 of a dequeue

    @property
    def key(self) -> tuple[int, int, int, int, int]:
        """Equal for an operation and its relocated form."""
        return self.tx_id, self.lsn, self.queue_id, self.kind, self.order_index


class Piece(NamedTuple):
    """A record with a part of a message's content."""

    lsn: int
    size: int  # bytes of content in it


class Doubt(NamedTuple):
    """Why a message that was kept is not surely as it was."""

    lsn: int  # of the record that is lost, or of the operation whose outcome is
    why: str


class Message:
    """A message that lives, as far as the records tell."""

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
        self.start_lsn = start_lsn  # of a readable start record; START_UNKNOWN
        self.start_bytes = start_bytes  # of content in it
        self.last_lsn = last_lsn  # of its newest record that counts and is known of
        self.published = published
        self.staged = True  # no enqueue of it has taken effect
        self.places: tuple[Place, ...] = ()  # those on deleted queues too
        self.length = start_bytes  # of the content so far, in bytes
        self.size: int | None = None  # of the content, where a relocated state says so
        self.chunks: dict[int, Piece] | None = None  # by offset in the content
        self.pending: list[Work] | None = None
        self.doubts: list[Doubt] | None = None
        self.lost: list[str] | None = None  # why what is known of it is not all

    def miss(self, why: str) -> None:
        """Note that a part of it is lost."""
        self.lost = self.lost or []
        if why not in self.lost:
            self.lost.append(why)

    def doubt(self, lsn: int, why: str) -> None:
        """Note that a lost record may have changed it."""
        self.doubts = self.doubts or []
        self.doubts.append(Doubt(lsn, why))

    @property
    def content_bytes(self) -> int | None:
        """Of the whole content; None if pieces of it are missing."""
        end = self.start_bytes
        chunks = self.chunks or {}
        for offset in sorted(chunks):
            if offset != end:
                return None
            end += chunks[offset].size
        if self.start_lsn == START_UNKNOWN or (self.size is not None and end != self.size):
            return None
        return end

    def as_found(self, message_id: int, queue_id: int) -> Place:
        """Its place on the queue for what was found."""
        self.staged = False
        return Place(queue_id, message_id, 0)

    @property
    def readable_bytes(self) -> int:
        """Of its content, in whatever pieces."""
        chunks = self.chunks or {}
        return sum(piece.size for piece in chunks.values()) + self.start_bytes * (self.start_lsn != START_UNKNOWN)


@dataclass(slots=True)
class Transaction:
    """A transaction without a known outcome."""

    id: int
    lsn: int  # of the first record that names it
    last_lsn: int
    xid: XidBody | None = None
    distributed: bool = False
    state: str = "active"  # ended, prepared
    started: bool = True  # its start or its relocated state was read; else it is known from its work only
    started_us: int = 0
    prepared_us: int = 0
    work: list[Work] = field(default_factory=list)
    enqueues: int | None = 0  # ever made in it; None: not known
    doomed: bool = False  # its epoch ended without an outcome, and nothing of it is lost: it was rolled back
    outcome_lost: bool = False  # it had one

    @property
    def prepared(self) -> bool:
        """Only an outcome from outside can end it."""
        return self.state == "prepared"


class Copies:
    """The copies of one chain that no state has completed yet."""

    __slots__ = ("chunks", "parts", "parts_lost", "published", "start_bytes", "start_lsn")

    def __init__(self) -> None:
        self.start_lsn = START_UNKNOWN  # of the newest copied start
        self.start_bytes = 0
        self.published = False
        self.chunks: dict[int, Piece] = {}  # by offset
        self.parts: list[Record] = []  # of a state, in order
        self.parts_lost = False


class Moved(NamedTuple):
    """The state that a relocation gives a message, without its content."""

    places: tuple[Place, ...]
    work: list[Work]
    staged: bool
    published: bool


# ---- Results of a strict replay


class Problem(NamedTuple):
    """A contradiction, which no sound log holds."""

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
    """What is on one queue."""

    depth: int = 0  # every visible place
    locked: int = 0  # places that an open transaction has dequeued
    content_bytes: int = 0


@dataclass(slots=True)
class Replayed:
    """The state at the end of the log."""

    messages: int  # that live
    staged: int  # of these: never enqueued, nor by an open transaction
    places: int
    queues: dict[int, QueueCounts]  # by id; only those with places
    transactions: list[Transaction]


def xid_text(xid: XidBody) -> str:
    """As people write it: ``format:gtrid-hex:bqual-hex``."""
    return f"{xid.format_id}:{xid.gtrid.hex()}:{xid.bqual.hex()}"
