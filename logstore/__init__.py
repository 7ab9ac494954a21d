"""logstore: an append-only, log-structured message store.

The durable half of a message broker: messages on queues, local and distributed transactions, one shared log with
group commit. Start with :func:`open`; ``docs/api.md`` describes the whole interface.
"""

from __future__ import annotations

from logstore.catalog.rows import BindingRow, ExchangeRow
from logstore.core.reports import Recovery, SegmentLife
from logstore.core.xid import Xid
from logstore.errors import (
    AlreadyEnqueued,
    BatchRefused,
    CatalogError,
    CatalogMismatch,
    CatalogOvertaken,
    CatalogUnavailable,
    ClusterUnavailable,
    CorruptLog,
    DuplicateXid,
    EngineRefused,
    MessageInUse,
    MessageLocked,
    NoMajority,
    NotAStore,
    NotEnqueued,
    NotLeader,
    OptionError,
    OutcomeUnknown,
    QueueExists,
    ReentrantCall,
    ReplicatedStore,
    StoreClosed,
    StoreError,
    StoreForked,
    StoreFull,
    StoreLocked,
    StorePoisoned,
    TransactionEnded,
    TransactionError,
    TransactionLimit,
    UnknownExchange,
    UnknownMessage,
    UnknownQueue,
    UnknownXid,
    VersionError,
    WrongState,
)
from logstore.store.base_holders import Compaction, Tail
from logstore.store.counting import Acquisition, QueueCounts
from logstore.store.declarations import QueueDeclaration
from logstore.store.deliveries import Delivery, DeliveryToken, Message, MessageView
from logstore.store.fullness import Fullness
from logstore.store.listeners import Listener
from logstore.store.message_store import MessageStore
from logstore.store.opening import open  # noqa: A004 - as in gzip.open
from logstore.store.queues import Queue
from logstore.store.store_events import Deaths, InDoubtChange, InDoubtChanges
from logstore.store.transactions import Transaction

__version__ = "0.1.0"

__all__ = [
    "open",
    "MessageStore",
    "Queue",
    "QueueDeclaration",
    "BindingRow",
    "ExchangeRow",
    "Message",
    "MessageView",
    "Delivery",
    "DeliveryToken",
    "QueueCounts",
    "Acquisition",
    "Transaction",
    "Xid",
    "Recovery",
    "Compaction",
    "Fullness",
    "Listener",
    "Deaths",
    "InDoubtChange",
    "InDoubtChanges",
    "Tail",
    "SegmentLife",
    "StoreError",
    "NotAStore",
    "StoreLocked",
    "ReplicatedStore",
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
    "BatchRefused",
    "EngineRefused",
    "NoMajority",
    "NotLeader",
    "ClusterUnavailable",
    "NotEnqueued",
    "TransactionError",
    "UnknownXid",
    "DuplicateXid",
    "TransactionEnded",
    "TransactionLimit",
    "WrongState",
    "OutcomeUnknown",
    "__version__",
]
