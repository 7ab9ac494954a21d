"""The findings of ``logstore verify``: problems, each with its place, and notes, which are not problems."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from logstore.inspect import segment_name

if TYPE_CHECKING:
    from logstore.errors import CorruptLog

KEPT = 1000  # problems that are kept; all are counted


class Found(NamedTuple):
    """One problem. Segment, offset and LSN are None if it has no place in the log."""

    kind: str  # damage, decoder, batch, chain, footer, replay, checkpoint, file, catalog
    text: str
    segment: str | None = None
    offset: int | None = None
    lsn: int | None = None


class Findings:
    """A list that keeps the first problems and counts all."""

    def __init__(self) -> None:
        self.problems: list[Found] = []
        self.count = 0
        self.notes: list[str] = []
        self.segment_size = 0  # known once the store's META has been read

    def add(self, found: Found) -> None:
        """Adds a problem."""
        self.count += 1
        if len(self.problems) < KEPT:
            self.problems.append(found)

    def note(self, kind: str, reason: str, lsn: int) -> None:
        """Adds a problem at an LSN."""
        name, offset = segment_name(lsn, self.segment_size), lsn % self.segment_size
        self.add(Found(kind, f"segment {name}, offset {offset}, LSN {lsn}: {reason}", name, offset, lsn))

    def damage(self, error: CorruptLog) -> None:
        """Adds an error of the core: damage, or (kind "chain") intact records that contradict each other."""
        kind = "chain" if "contradicts itself" in error.reason else "damage"
        where = (error.segment, error.offset, error.lsn) if error.segment else (None, None, None)
        place = f"segment {error.segment}, offset {error.offset}, LSN {error.lsn}: " if error.segment else ""
        self.add(Found(kind, f"{place}{error.reason}", *where))
