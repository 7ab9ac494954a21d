"""The conditions of a query that the scanner can apply exactly, and their combination.

A condition is taken only if it decides every row as Spark would, nulls included; all others are returned to Spark. Even
a returned condition may limit the range that is read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from logstore.codec.records import LSN_LIMIT, RecordType

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyspark.sql.datasource import Filter

__all__ = ["Conditions", "listed"]

MICROSECOND: Final = timedelta(microseconds=1)
NEVER_NULL: Final = frozenset({"lsn", "type", "time", "stream", "epoch", "batch_lsn", "segment", "store"})
SETS: Final = {"type": str, "queue": str, "queue_id": int, "id": int}
"""Columns for which the scanner can select single values, and the types of these."""


@dataclass(slots=True)
class Conditions:
    """The conditions that every row must meet."""

    start_lsn: int = 0
    stop_lsn: int = LSN_LIMIT
    start_time: datetime | None = None
    stop_time: datetime | None = None
    wanted: dict[str, frozenset[Any]] = field(default_factory=dict)
    """By column of :data:`SETS`: a row must have one of these values."""

    @property
    def impossible(self) -> bool:
        """Whether no row can meet them."""
        times = self.start_time is not None and self.stop_time is not None and self.start_time >= self.stop_time
        return self.start_lsn >= self.stop_lsn or times or any(not values for values in self.wanted.values())

    def queue_ids(self, names: Mapping[int, str]) -> tuple[int, ...] | None:
        """The queue ids that a row must have one of; None: any. ``names``: the names of queues by id."""
        ids, wanted = self.wanted.get("queue_id"), self.wanted.get("queue")
        if wanted is not None:
            named = frozenset(id for id, name in names.items() if name in wanted)  # noqa: A001 - a queue's id
            ids = named if ids is None else ids & named
        return listed(ids)

    def take(self, filters: Sequence[Filter]) -> Iterable[Filter]:
        """Takes the filters, which are ANDed, and returns those that are not decided here."""
        from pyspark.sql.datasource import IsNotNull

        left = [one for one in filters if not isinstance(one, IsNotNull) and not self._takes(one)]
        # A wanted value is not null, so IsNotNull is decided once all wanted columns are known.
        nulls = [one for one in filters if isinstance(one, IsNotNull) and not self._never_null(one.attribute)]
        return left + nulls

    def _never_null(self, path: tuple[str, ...]) -> bool:
        return len(path) == 1 and (path[0].lower() in NEVER_NULL or path[0].lower() in self.wanted)

    def _takes(self, one: Filter) -> bool:
        from pyspark.sql import datasource as spark

        path: tuple[str, ...] = getattr(one, "attribute", ())
        value: Any = getattr(one, "value", None)
        if len(path) != 1:
            return False
        column = path[0].lower()
        if isinstance(one, spark.In):
            values = tuple(value) if isinstance(value, list | tuple) else ()
            if column == "lsn" and values and all(_is(each, int) for each in values):
                self.limit(min(values), max(values) + 1)  # Spark then decides between the values
                return False
            return column in SETS and bool(values) and self.want(column, values)
        if isinstance(one, spark.EqualTo) and column in SETS:
            return self.want(column, (value,))
        if column == "lsn" and _is(value, int):
            return self._takes_lsn(one, value)
        if column == "time" and isinstance(value, datetime) and value.tzinfo is not None:
            return self._takes_time(one, value.astimezone(UTC))
        return False

    def _takes_lsn(self, one: Filter, value: int) -> bool:
        from pyspark.sql import datasource as spark

        ranges = {
            spark.EqualTo: (value, value + 1),
            spark.GreaterThan: (value + 1, LSN_LIMIT),
            spark.GreaterThanOrEqual: (value, LSN_LIMIT),
            spark.LessThan: (0, value),
            spark.LessThanOrEqual: (0, value + 1),
        }
        found = ranges.get(type(one))
        if found is None:
            return False
        self.limit(*found)
        return True

    def limit(self, start: int, stop: int) -> None:
        """Only rows with start ≤ LSN < stop."""
        self.start_lsn = max(self.start_lsn, start)
        self.stop_lsn = max(0, min(self.stop_lsn, stop))

    def _takes_time(self, one: Filter, value: datetime) -> bool:
        from pyspark.sql import datasource as spark

        try:
            after = value + MICROSECOND
        except OverflowError:
            return False  # no later time exists
        ranges: dict[Any, tuple[datetime | None, datetime | None]] = {
            spark.EqualTo: (value, after),
            spark.GreaterThan: (after, None),
            spark.GreaterThanOrEqual: (value, None),
            spark.LessThan: (None, value),
            spark.LessThanOrEqual: (None, after),
        }
        found = ranges.get(type(one))
        if found is None:
            return False
        start, stop = found
        if start is not None and (self.start_time is None or start > self.start_time):
            self.start_time = start
        if stop is not None and (self.stop_time is None or stop < self.stop_time):
            self.stop_time = stop
        return True

    def want(self, column: str, values: Iterable[Any]) -> bool:
        """Only rows with one of these values in a column of :data:`SETS`; false if that cannot be decided here."""
        values = tuple(values)
        if not all(_is(each, SETS[column]) for each in values):
            return False
        if column == "type" and not RecordType.__members__.keys() >= set(values):
            return False  # possibly a type of a later version
        found = frozenset(values)
        if column in ("id", "queue_id"):
            found = frozenset(each for each in found if 0 < each < LSN_LIMIT)  # no log contains other values
        self.wanted[column] = self.wanted.get(column, found) & found
        if column == "id" and self.wanted[column]:
            self.limit(min(self.wanted[column]), LSN_LIMIT)  # a chain's id is the LSN of its first record
        return True


def listed(values: frozenset[Any] | None) -> tuple[Any, ...] | None:
    """The wanted values in order; None: any."""
    return None if values is None else tuple(sorted(values))


def _is(value: object, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)
