"""What a replay of the log keeps, and what it gives: plain data, without rules."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from logstore.codec.records import PendingKind, XidBody
    from logstore.codec.relocation import Content


class Problem(NamedTuple):
    """Something that no sound log says."""

    lsn: int
    reason: str


class Operation(NamedTuple):
    """What a transaction did to a message and will make count when it commits."""

    kind: PendingKind
    message_id: int
    queue_id: int
    tx_id: int
    lsn: int  # of its record
    order_index: int  # of an enqueue in its transaction; 0 of a dequeue


class Message:
    """A message that lives, or does not know yet that its last queue was deleted."""

    __slots__ = ("content", "content_bytes", "places", "published", "staged")

    def __init__(self, content_bytes: int, published: bool) -> None:
        self.content_bytes = content_bytes
        self.content: Content | None = None  # where it stands; None: all of it in the chain's first record
        self.places: tuple[int, ...] = ()  # queue ids, those of deleted queues too
        self.staged = True  # no enqueue has taken effect yet
        self.published = published


@dataclass(slots=True)
class OpenTransaction:
    """A transaction without an outcome."""

    id: int
    lsn: int  # of the first record that tells of it
    xid: XidBody | None = None  # None: local
    state: str = "active"
    started: bool = True  # its start or its relocated state lies in the log; else it is known from its work only
    prepared_us: int = 0
    operations: list[Operation] = field(default_factory=list)
    enqueues: int | None = 0  # ever made in it; None: not known

    @property
    def prepared(self) -> bool:
        """Only an outcome from outside can end it."""
        return self.state == "prepared"


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
    staged: int  # of these: never enqueued, by a transaction neither
    places: int
    queues: dict[int, QueueCounts]  # by id; only those with places
    transactions: list[OpenTransaction]


def xid_text(xid: XidBody) -> str:
    """As people write it: ``format:gtrid-hex:bqual-hex``."""
    return f"{xid.format_id}:{xid.gtrid.hex()}:{xid.bqual.hex()}"
