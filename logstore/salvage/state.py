"""What a damaged log comes to: plain data, from which the new store and the report are made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from logstore.codec.records import PendingKind, XidBody

CONTENT_IN_DOUBT = "a record of it is lost that may have held content"
CONTENT_LOST = "a part of its content is lost"
START_UNKNOWN = 0  # as a start_lsn: no start record of the message can be read


class Place(NamedTuple):
    """A message's place on a queue."""

    queue_id: int
    order_lsn: int  # at which it became visible
    order_index: int  # within that commit
    time_us: int = 0  # of the enqueue, as far as it is known
    delivery_count: int = 0


class Work(NamedTuple):
    """What a transaction did to a message, and will make count when it commits."""

    kind: PendingKind
    message_id: int
    queue_id: int
    tx_id: int
    lsn: int
    order_index: int


class Piece(NamedTuple):
    """A readable record with a part of a message's content."""

    lsn: int
    size: int  # bytes of content in it


class Message:
    """A message that lives, as far as the readable records tell."""

    __slots__ = (
        "chunks",
        "doubts",
        "last_lsn",
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
        self.places: tuple[Place, ...] = ()
        self.size: int | None = None  # of the content, where a relocated state says so
        self.chunks: dict[int, Piece] | None = None  # by offset in the content
        self.pending: list[Work] | None = None
        self.doubts: list[Doubt] | None = None
        self.lost: list[str] | None = None  # why what is known of it is not all

    def miss(self, why: str) -> None:
        """Something that belongs to it is lost."""
        self.lost = self.lost or []
        if why not in self.lost:
            self.lost.append(why)

    def doubt(self, lsn: int, why: str) -> None:
        """Something may have happened to it."""
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


class Doubt(NamedTuple):
    """Why a message that was kept is not surely as it was."""

    lsn: int  # of the record that is lost, or of the operation whose outcome is
    why: str


@dataclass(slots=True)
class Transaction:
    """A transaction without a known outcome."""

    id: int
    last_lsn: int
    xid: XidBody | None = None
    distributed: bool = False
    state: str = "active"  # ended, prepared
    started: bool = True
    started_us: int = 0
    prepared_us: int = 0
    work: list[Work] = field(default_factory=list)
    doomed: bool = False  # its epoch ended without an outcome, and nothing of it is lost: it was rolled back
    outcome_lost: bool = False  # it had one


@dataclass(slots=True)
class LostMessage:
    """A message of which the content, or every place, is lost."""

    id: int
    why: list[str]
    lsn: int | None = None  # of the lost record, where one is known
    queues: list[int] = field(default_factory=list)  # on which it is known to have been
    queues_probable: list[int] = field(default_factory=list)  # from bytes that no checksum covers any more
    readable_bytes: int = 0  # of its content
    certain: bool = True  # False: it may have been gone already
    kept: bool = False  # whole, but its queues are not known: it is on the queue for what was found


@dataclass(slots=True)
class Doubtful:
    """A message that was kept although it may be gone, or kept otherwise than it was."""

    id: int
    queue_id: int | None
    lsn: int
    why: str


@dataclass(slots=True)
class LostTransaction:
    """A transaction whose outcome is not known."""

    id: int
    xid: XidBody | None
    why: str
    in_doubt: bool  # kept in doubt


@dataclass(slots=True)
class State:
    """Everything that could be made out."""

    messages: dict[int, Message]  # that live, whole, each with a place or pending work
    found: dict[int, Message]  # whole, and their queues are not known
    transactions: dict[int, Transaction]  # in doubt
    lost: list[LostMessage]
    doubtful: list[Doubtful]
    lost_transactions: list[LostTransaction]
    queue_id_max: int
    staged_dropped: int
    rolled_back: int  # transactions that recovery would roll back
    doubt_lsn: int  # what was kept and was last heard of below it may have been consumed; 0: nothing may
    maybe_consumed: int  # messages of which this is so
