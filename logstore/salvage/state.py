"""The state that can be made out of a damaged log: plain data for the new store and the report."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from logstore.codec.records import XidBody
    from logstore.codec.replay_state import Message, Transaction

CONTENT_IN_DOUBT = "a record of it is lost that may have held content"
CONTENT_LOST = "a part of its content is lost"


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
