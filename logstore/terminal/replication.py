"""Where a copy of a replicated store stands, for the commands that report it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logstore.codec.files import SEGMENT_HEADER_BYTES
from logstore.core.counts import counted
from logstore.inspect import Reader

if TYPE_CHECKING:
    from pathlib import Path

    from logstore.inspect import ReaderInfo

REPLICATION = ("term", "index", "forced_lsn", "known_durable_lsn", "undurable_bytes")
"""The keys of :func:`replication`."""

NOT_RUNNING = "not open: its member recovers it"
"""The state of such a copy, in words, where a single store's is that the next open recovers it."""


def replication(store_dir: Path, info: ReaderInfo) -> dict[str, Any]:
    """The keys that the commands add for a copy of a replicated store; none for any other store.

    ``undurable_bytes`` counts the log above ``known_durable_lsn`` without the LSNs that lie between two terms. While a
    writer runs, all that is shown is durable. Raises the errors of Reader.
    """
    if info.index == 0:
        return {}
    told = {"term": info.term, "index": info.index}
    if info.live:
        return told | {"forced_lsn": info.end_lsn, "known_durable_lsn": info.end_lsn, "undurable_bytes": 0}
    known = info.known_durable_lsn
    with Reader(store_dir, from_lsn=known, undurable=True) as reader:
        end_lsn = reader.info.end_lsn
        parts = [(one.first_lsn + SEGMENT_HEADER_BYTES, min(one.end_lsn, end_lsn)) for one in reader.segments()]
    undurable = sum(max(end - max(first, known), 0) for first, end in parts)
    return told | {"forced_lsn": end_lsn, "known_durable_lsn": known, "undurable_bytes": undurable}


def replication_text(told: dict[str, Any]) -> str:
    """One line about these keys."""
    return (
        f"term {told['term']}, index {told['index']}, forced to LSN {told['forced_lsn']}, known durable to LSN "
        f"{told['known_durable_lsn']} ({counted(told['undurable_bytes'], 'byte')} may still be cut)"
    )
