"""Reads a store without opening it: while a writer runs, after a close, or after a crash.

:class:`Reader` reads the records of the log, :class:`Inspection` replays them into a state. Nothing here takes the
store's lock or changes a file of it. It may import ``catalog``, ``codec``, ``core`` and :mod:`logstore.holds`.
"""

from __future__ import annotations

from logstore.holds import LogRecycled
from logstore.inspect.inspection import Inspection, OpenTransaction, Pace, QueueLife, Work
from logstore.inspect.reader import (
    BatchBytes,
    CatalogView,
    Oldest,
    Reader,
    ReaderInfo,
    SegmentInfo,
    read_catalog,
    segment_name,
)

__all__ = [
    "BatchBytes",
    "CatalogView",
    "Inspection",
    "LogRecycled",
    "Oldest",
    "OpenTransaction",
    "Pace",
    "QueueLife",
    "Reader",
    "ReaderInfo",
    "SegmentInfo",
    "Work",
    "read_catalog",
    "segment_name",
]
