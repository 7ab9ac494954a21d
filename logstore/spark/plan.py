"""The plan of a Spark query: each store as of the planning of the query, divided into ranges of whole segments.

One inspection of a store gives everything that its tasks need: the first and the last LSN and the names of its queues.
So all tasks of a query see one state, and none opens the catalog.
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

__all__ = ["Range", "View", "cut", "look", "place_of", "used_names"]

TASKS_PER_CORE: Final = 2


@dataclass(frozen=True, slots=True)
class View:
    """A store's log as it stood at one moment."""

    path: str
    uuid: UUID
    base_lsn: int
    """The first LSN of the log."""
    stop_lsn: int
    """The end of the log, as far as it is read."""
    end_lsn: int | None
    """Where the log's end was found, for later readers; None if parts of it are skipped."""
    segments: tuple[tuple[int, int], ...]
    """The first LSN and the end of the log's part of each segment, in order."""
    names: Mapping[int, str] = field(default_factory=dict)
    """The names of queues by id."""

    def clipped(self, start_lsn: int, stop_lsn: int) -> tuple[tuple[int, int], ...]:
        """The parts of the segments in this range; the first part may begin inside a segment."""
        cut_down = ((max(first, start_lsn), min(end, stop_lsn)) for first, end in self.segments)
        return tuple((first, end) for first, end in cut_down if first < end)


@dataclass(frozen=True, slots=True)
class Range:
    """The range that one task reads."""

    path: str
    uuid: str
    start_lsn: int
    stop_lsn: int
    keep_lsn: int
    """Everything from this LSN on must exist, even if the base has passed it; segments below are not read."""
    end_lsn: int | None
    """Where the plan found the end of the log: a task need not search it again. None: it must."""
    as_of_lsn: int
    """Outcomes are those known at this LSN."""
    names: Mapping[int, str]
    types: tuple[str, ...] | None = None
    queue_ids: tuple[int, ...] | None = None
    ids: tuple[int, ...] | None = None
    start_time: datetime | None = None
    stop_time: datetime | None = None

    def where(self) -> Any:
        """The conditions for the scanner, or None."""
        from logstore.arrow import Where

        given = {name: getattr(self, name) for name in ("types", "queue_ids", "ids", "start_time", "stop_time")}
        return Where(**given) if any(value is not None for value in given.values()) else None


def look(
    path: str,
    *,
    names: bool = True,
    durable: bool = False,
    keep_lsn: int | None = None,
    end_lsn: int | None = None,
    connect: str | None = None,
    catalog: str | None = None,
    permissive: bool = False,
) -> View:
    """Inspects a store, and with ``names`` its catalog, up to the last record that a recovery would accept.

    With ``durable`` only up to the LSN known to be durable; the two differ only after a crash. With ``permissive``
    unreadable segments are skipped, and a warning says what is missing. ``end_lsn`` is where an earlier reader
    found the end.

    Raises as :class:`~logstore.inspect.Reader` and :func:`~logstore.inspect.read_catalog` do.
    """
    with Reader(path, keep_lsn=keep_lsn, end_lsn=None if permissive else end_lsn, permissive=permissive) as reader:
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
        None if permissive else info.end_lsn,
        tuple((one.first_lsn, min(one.end_lsn, stop_lsn)) for one in segments if one.first_lsn < stop_lsn),
        {row.id: row.name for row in read_catalog(path, info, connect=connect, schema=catalog).queues} if names else {},
    )


def place_of(view: View, time: datetime, keep_lsn: int | None, *, start_lsn: int = 0, permissive: bool = False) -> int:
    """The LSN where the log reached this time; its end if it did not."""
    from logstore.rows.times import lsn_at

    end_lsn = None if keep_lsn is None else view.end_lsn
    found = lsn_at(view.path, time, start_lsn=start_lsn, keep_lsn=keep_lsn, end_lsn=end_lsn, permissive=permissive)
    return min(found, view.stop_lsn)


def cut(parts: Sequence[tuple[int, int]], partition_bytes: int, stores: int = 1) -> list[list[tuple[int, int]]]:
    """Groups adjacent parts up to about ``partition_bytes``, or less if cores would have no work otherwise."""
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
