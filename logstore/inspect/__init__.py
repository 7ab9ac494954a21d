"""Looks at a store without opening it: beside its writer, after a close, or after a crash.

:class:`Reader` gives the records of the log, :class:`Inspection` the state that they come to. Nothing here takes the
store's lock or changes a file of it. It may import ``catalog``, ``codec``, ``core`` and :mod:`logstore.holds`.
"""

from __future__ import annotations

from logstore.holds import LogRecycled
from logstore.inspect.inspection import Inspection, OpenTransaction, Pace, QueueLife, Work
from logstore.inspect.reader import (
    BatchBytes,
    CatalogView,
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
