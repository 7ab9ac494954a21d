"""What a Spark query reads: each store as it stood when the query was planned, cut into ranges of whole segments.

One look at a store gives everything that its tasks need: up to which LSN, from which on, under which names its queues
go. So all tasks of a query see one state, and none opens the catalog.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from logstore.inspect import Reader, read_catalog

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime
    from uuid import UUID

__all__ = ["Range", "View", "cut", "look"]

TASKS_PER_CORE: Final = 2


@dataclass(frozen=True, slots=True)
class View:
    """A store's log as it stood at one moment."""

    path: str
    uuid: UUID
    base_lsn: int
    """Where it begins."""
    stop_lsn: int
    """Where it ends."""
    segments: tuple[tuple[int, int], ...]
    """First LSN of each, and where the log's part in it ends; in order."""
    names: Mapping[int, str] = field(default_factory=dict)
    """Of the queues, by id."""

    def clipped(self, start_lsn: int, stop_lsn: int) -> tuple[tuple[int, int], ...]:
        """What of the segments lies in this range; the first may begin within one."""
        cut_down = ((max(first, start_lsn), min(end, stop_lsn)) for first, end in self.segments)
        return tuple((first, end) for first, end in cut_down if first < end)


@dataclass(frozen=True, slots=True)
class Range:
    """What one task reads."""

    path: str
    uuid: str
    start_lsn: int
    stop_lsn: int
    keep_lsn: int
    """All from here on must be there, though the base may have passed it; segments below are not looked at."""
    as_of_lsn: int
    """Outcomes are those that were known here."""
    names: Mapping[int, str]
    types: tuple[str, ...] | None = None
    queue_ids: tuple[int, ...] | None = None
    ids: tuple[int, ...] | None = None
    start_time: datetime | None = None
    stop_time: datetime | None = None

    def where(self) -> Any:
        """The conditions as the scanner has them, or None."""
        from logstore.arrow import Where

        given = {name: getattr(self, name) for name in ("types", "queue_ids", "ids", "start_time", "stop_time")}
        return Where(**given) if any(value is not None for value in given.values()) else None


def look(
    path: str,
    *,
    names: bool = True,
    durable: bool = False,
    keep_lsn: int | None = None,
    connect: str | None = None,
    catalog: str | None = None,
    permissive: bool = False,
) -> View:
    """One look at a store, and with ``names`` at its catalog: up to the last record that a recovery would accept.

    With ``durable`` only up to where it was known to be durable. The two differ after a crash alone. With
    ``permissive`` it passes over segments that cannot be read, and a warning says what is missing.

    Raises as :class:`~logstore.inspect.Reader` and :func:`~logstore.inspect.read_catalog` do.
    """
    with Reader(path, keep_lsn=keep_lsn, permissive=permissive) as reader:
        info, segments, last_lsn = reader.info, reader.segments(), reader.last_lsn()
        if permissive:
            from logstore.rows.records import warn_of_missing

            warn_of_missing(reader)
    stop_lsn = min(info.durable_lsn if durable else info.end_lsn, last_lsn)
    return View(
        path,
        info.uuid,
        info.base_lsn,
        stop_lsn,
        tuple((one.first_lsn, min(one.end_lsn, stop_lsn)) for one in segments if one.first_lsn < stop_lsn),
        {row.id: row.name for row in read_catalog(path, info, connect=connect, schema=catalog).queues} if names else {},
    )


def cut(parts: Sequence[tuple[int, int]], partition_bytes: int, stores: int = 1) -> list[list[tuple[int, int]]]:
    """Neighbouring parts together, up to about so many bytes; less, where that leaves cores without work."""
    total = sum(end - first for first, end in parts)
    tasks = max(1, TASKS_PER_CORE * len(os.sched_getaffinity(0)) // stores)
    target = max(1, min(partition_bytes, -(-total // tasks)))
    made: list[list[tuple[int, int]]] = []
    size = 0
    for first, end in parts:
        if not made or size + (end - first) // 2 >= target:
            made.append([])
            size = 0
        made[-1].append((first, end))
        size += end - first
    return made


def used_names(names: Mapping[int, str], columns: Iterable[str]) -> Mapping[int, str]:
    """None of them, unless a column shows them: they go to every task."""
    return names if "queue" in columns else {}
