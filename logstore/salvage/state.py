"""The state that can be restored from a damaged log: plain data for the new store and the report."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from logstore.codec.records import XidBody
    from logstore.codec.state import Message, Transaction

CONTENT_IN_DOUBT = "a record of it is lost that may have held content"
CONTENT_LOST = "a part of its content is lost"


@dataclass(slots=True)
class LostMessage:
    """A message whose content, or every place, is lost."""

    id: int
    why: list[str]
    lsn: int | None = None  # of the lost record, if it is known
    queues: list[int] = field(default_factory=list)  # queues on which it certainly was
    queues_probable: list[int] = field(default_factory=list)  # from bytes that no checksum covers any more
    readable_bytes: int = 0  # readable bytes of its content
    certain: bool = False  # True: readable records prove that it was live; False: it may have ended before
    placed: bool = False  # True: it had a place on each of ``queues``; False: a transaction works on it there
    elsewhere: bool = True  # a lost record that other records name may have put it on other queues, too
    kept: bool = False  # whole, but its queues are not known: it is on the queue for found messages


@dataclass(slots=True)
class Doubtful:
    """A message that was kept although it may have ended or changed."""

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
    in_doubt: bool  # True: kept in doubt; False: not kept


@dataclass(slots=True)
class State:
    """Everything that could be restored."""

    messages: dict[int, Message]  # live, whole, each with a place or pending work
    found: dict[int, Message]  # whole, but their queues are not known
    transactions: dict[int, Transaction]  # in doubt
    lost: list[LostMessage]
    doubtful: list[Doubtful]
    lost_transactions: list[LostTransaction]
    queue_id_max: int
    staged_dropped: int
    rolled_back: int  # transactions that recovery would roll back
    doubt_lsn: int  # kept messages whose newest record lies below it may have been consumed; 0: none
    maybe_consumed: int  # the number of such messages
    deletions: bool  # whether a queue was deleted, as far as the log and the catalog tell
    queues_gone: set[int] = field(default_factory=set)  # deleted or transient, and the log still had places on them
    dropped_in_doubt: int = 0  # messages whose known queues were all deleted, and that may have been on another one
