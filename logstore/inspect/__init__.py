"""Reads a store without opening it: while a writer runs, after a close, or after a crash.

:class:`Reader` reads the log; each record is a :class:`Record` with a body of the class of its type.
:class:`Inspection` replays the records into a state. Nothing here takes the store's lock or changes a file of it. It
may import ``catalog``, ``codec``, ``core`` and :mod:`logstore.holds`.
"""

from __future__ import annotations

from logstore.codec.records import (
    Batch,
    ChunkPlace,
    Close,
    DequeueReason,
    Empty,
    Filler,
    Footer,
    InlineCopy,
    MessageChunk,
    MessageDequeue,
    MessageEnqueue,
    MessageRelocated,
    MessageStart,
    OrderedCopy,
    PendingKind,
    PendingWork,
    QueueDelete,
    QueuePlace,
    Record,
    RecordFlag,
    RecordType,
    TxKind,
    TxRelocated,
    TxState,
    TypeCount,
    Unknown,
    XidBody,
)
from logstore.holds import LogRecycled
from logstore.inspect.catalog import CatalogView, read_catalog
from logstore.inspect.inspection import Inspection, OpenTransaction, Pace, QueueLife, Work
from logstore.inspect.reader import (
    BatchBytes,
    Oldest,
    Reader,
    ReaderInfo,
    SegmentInfo,
    segment_name,
)

__all__ = [
    "Batch",
    "BatchBytes",
    "CatalogView",
    "ChunkPlace",
    "Close",
    "DequeueReason",
    "Empty",
    "Filler",
    "Footer",
    "InlineCopy",
    "Inspection",
    "LogRecycled",
    "MessageChunk",
    "MessageDequeue",
    "MessageEnqueue",
    "MessageRelocated",
    "MessageStart",
    "Oldest",
    "OpenTransaction",
    "OrderedCopy",
    "Pace",
    "PendingKind",
    "PendingWork",
    "QueueDelete",
    "QueueLife",
    "QueuePlace",
    "Reader",
    "ReaderInfo",
    "Record",
    "RecordFlag",
    "RecordType",
    "SegmentInfo",
    "TxKind",
    "TxRelocated",
    "TxState",
    "TypeCount",
    "Unknown",
    "Work",
    "XidBody",
    "read_catalog",
    "segment_name",
]
