"""logstore: an append-only, log-structured message store.

The durable half of a message broker: messages on queues, transactions local and distributed, one shared log with
group commit. Start with :func:`open`; ``docs/api.md`` has the whole surface.
"""

from __future__ import annotations

from logstore.errors import (
    AlreadyEnqueued,
    CatalogError,
    CatalogMismatch,
    CatalogOvertaken,
    CatalogUnavailable,
    CorruptLog,
    DuplicateXid,
    MessageInUse,
    MessageLocked,
    NotAStore,
    NotEnqueued,
    OptionError,
    OutcomeUnknown,
    QueueExists,
    ReentrantCall,
    StoreClosed,
    StoreError,
    StoreForked,
    StoreFull,
    StoreLocked,
    StorePoisoned,
    TransactionEnded,
    TransactionError,
    UnknownExchange,
    UnknownMessage,
    UnknownQueue,
    UnknownXid,
    VersionError,
    WrongState,
)
from logstore.opening import open  # noqa: A004 - as in gzip.open
from logstore.queues import Delivery, Message, Queue
from logstore.reports import Recovery, SegmentLife
from logstore.store import MessageStore
from logstore.tail import Compaction, Tail
from logstore.transactions import Transaction, Xid

__version__ = "0.1.0"

__all__ = [
    "open",
    "MessageStore",
    "Queue",
    "Message",
    "Delivery",
    "Transaction",
    "Xid",
    "Recovery",
    "Compaction",
    "Tail",
    "SegmentLife",
    "StoreError",
    "NotAStore",
    "StoreLocked",
    "StoreFull",
    "StorePoisoned",
    "StoreClosed",
    "StoreForked",
    "ReentrantCall",
    "OptionError",
    "CorruptLog",
    "VersionError",
    "CatalogError",
    "CatalogMismatch",
    "CatalogOvertaken",
    "CatalogUnavailable",
    "UnknownMessage",
    "UnknownQueue",
    "UnknownExchange",
    "QueueExists",
    "MessageLocked",
    "MessageInUse",
    "AlreadyEnqueued",
    "NotEnqueued",
    "TransactionError",
    "UnknownXid",
    "DuplicateXid",
    "TransactionEnded",
    "WrongState",
    "OutcomeUnknown",
    "__version__",
]
