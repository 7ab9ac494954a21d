"""The counts that a report is made of; Arrow or Spark computes them.

Invariants: equal logs give equal counts with both; nothing here grows with the number of messages, only with the
number of queues and intervals. Times are µs since 1970, in UTC.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from logstore.core.moments import EPOCH, moment
from logstore.report.names import nameless

__all__ = ["Counts", "Deliveries", "Doubt", "Grid", "Held", "Latency", "QueueBytes", "Scope", "step_us"]

SECOND_US: Final = 1_000_000
EXACT_STEPS: Final = 128  # as logstore.spark.analyses.latency_histogram has them
BUCKETS_MAX: Final = 160
OLDEST: Final = 10  # live messages that are listed one by one
_NICE_MS: Final = (10, 20, 50, 100, 200, 500)
_NICE_S: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200)
_NICE_DAYS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 366)
NICE_US: Final = (
    *(one * 1000 for one in _NICE_MS),
    *(one * SECOND_US for one in _NICE_S),
    *(one * 86_400 * SECOND_US for one in _NICE_DAYS),
)


def micros(time: datetime) -> int:
    """µs since 1970, without rounding."""
    return (time - EPOCH) // timedelta(microseconds=1)


def step_us(step: int) -> tuple[int, int]:
    """The latencies of one step of a histogram: the lowest, and the first above."""
    if step < EXACT_STEPS:
        return step, step + 1
    shift = step // 64 - 1
    low = (step - shift * 64) << shift
    return low, low + (1 << shift)


@dataclass(frozen=True, slots=True)
class Scope:
    """The requested part of the log."""

    queues: frozenset[int] | None = None
    """Only these queues."""
    start_us: int | None = None
    stop_us: int | None = None
    """Only events in between, ``stop_us`` not included."""


@dataclass(frozen=True, slots=True)
class Grid:
    """Consecutive intervals of time, aligned to 1970."""

    start_us: int
    step_us: int
    buckets: int

    @classmethod
    def over(cls, first_us: int, last_us: int) -> Grid:
        """The finest grid that covers both times with at most ``BUCKETS_MAX`` intervals of a round length."""
        for step in NICE_US:
            start = first_us - first_us % step
            buckets = (last_us - start) // step + 1
            if buckets <= BUCKETS_MAX:
                return cls(start, step, buckets)
        start = first_us - first_us % NICE_US[-1]
        step = NICE_US[-1] * -(-((last_us - start) // NICE_US[-1] + 1) // (BUCKETS_MAX - 1))  # one more by cutting
        start = first_us - first_us % step
        return cls(start, step, (last_us - start) // step + 1)

    @property
    def stop_us(self) -> int:
        """The end of the last interval."""
        return self.start_us + self.step_us * self.buckets

    def within(self, scope: Scope) -> tuple[int, int]:
        """The counted range of time: the first and the last interval may be requested in part."""
        start = self.start_us if scope.start_us is None else max(self.start_us, scope.start_us)
        return start, self.stop_us if scope.stop_us is None else min(self.stop_us, scope.stop_us)

    def index(self, us: int) -> int:
        """The index of the interval that contains a time; below 0 or above the last for other times."""
        return (us - self.start_us) // self.step_us

    def times(self) -> list[datetime]:
        """The starts of the intervals."""
        return [moment(self.start_us + self.step_us * index) for index in range(self.buckets)]


@dataclass(slots=True)
class Latency:
    """The latencies from enqueue to dequeue on one queue, as a histogram."""

    count: int = 0
    total_us: int = 0
    min_us: int = 0
    max_us: int = 0
    steps: dict[int, int] = field(default_factory=dict)

    def add(self, steps: dict[int, int], total_us: int, min_us: int, max_us: int) -> None:
        """Adds at least one latency."""
        self.min_us = min(self.min_us, min_us) if self.count else min_us
        self.max_us = max(self.max_us, max_us)
        self.total_us += total_us
        for step, count in steps.items():
            self.steps[step] = self.steps.get(step, 0) + count
            self.count += count

    def quantile_us(self, rank: float) -> float:
        """The quantile of this share, right to 0.8 % and never beyond the smallest or largest latency."""
        wanted, seen = rank * self.count, 0
        for step in sorted(self.steps):
            seen += self.steps[step]
            if seen >= wanted:
                low, high = step_us(step)
                middle = (low + high - 1) / 2
                return min(max(middle, float(self.min_us)), float(self.max_us))
        return float(self.max_us)


@dataclass(slots=True)
class QueueBytes:
    """The bytes of the log for the messages that were first put on one queue."""

    messages: int = 0
    places: int = 0
    content_bytes: int = 0
    record_bytes: int = 0
    copied_bytes: int = 0

    def add(self, messages: int, places: int, content: int, record: int, copied: int) -> None:
        """Adds messages."""
        self.messages += messages
        self.places += places
        self.content_bytes += content
        self.record_bytes += record
        self.copied_bytes += copied

    @property
    def amplification(self) -> float | None:
        """Bytes written for each byte of records as first written."""
        return (self.record_bytes + self.copied_bytes) / self.record_bytes if self.record_bytes else None


@dataclass(slots=True)
class Deliveries:
    """Deliveries and dead letters of the places that ended on one queue."""

    settled: int = 0
    told: int = 0
    redelivered: int = 0
    deliveries: int = 0
    most: int = 0
    dead: int = 0
    last_dead_us: int | None = None


@dataclass(frozen=True, slots=True)
class Held:
    """A live message."""

    id: int
    queue_id: int | None
    """The first queue on which it waits."""
    since_us: int | None
    """The time of its enqueue, or else of its start; None if the log no longer has it."""
    content_bytes: int
    places: int
    pending: int
    staged: bool
    moved: bool

    @property
    def order(self) -> tuple[int, int]:
        """The sort key, oldest first; a message with an unknown time is older than all others."""
        return -1 if self.since_us is None else self.since_us, self.id


@dataclass(frozen=True, slots=True)
class Doubt:
    """A prepared transaction without an outcome."""

    tx_id: int
    xid: str | None
    since_us: int | None
    operations: int
    queue_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OpenWork:
    """A transaction without an outcome, and the messages that it would add or take."""

    tx_id: int
    xid: str | None
    prepared: bool
    since_us: int | None
    message_ids: tuple[int, ...]
    """One for each operation."""
    queue_ids: tuple[int, ...]


WRITTEN: Final = ("records", "record_bytes", "copied_bytes", "messages", "content_bytes", "commits", "rollbacks")


@dataclass(slots=True)
class Counts:
    """All counts. Lists have one number for each interval of the grid."""

    grid: Grid
    scope: Scope = field(default_factory=Scope)
    names: dict[int, str] = field(default_factory=dict)
    """The names of queues by id; a deleted queue has none."""
    labels: dict[int, str] = field(default_factory=dict)
    """The same for people: see :func:`logstore.report.names.labels`."""
    known_from_us: int | None = None
    """The first time after the last gap of an export: depths before it are not known. None: all are known."""
    opening: dict[int, int] = field(default_factory=dict)
    """Places that existed before the first interval; see :meth:`anchor`. Meaningless if there is a gap after it."""
    came: dict[int, list[int]] = field(default_factory=dict)
    went: dict[int, list[int]] = field(default_factory=dict)
    written: dict[str, list[int]] = field(default_factory=dict)
    """By the names in WRITTEN; always for all queues."""
    latency: dict[int, Latency] = field(default_factory=dict)
    bytes: dict[int | None, QueueBytes] = field(default_factory=dict)
    """By queue id; None stands for messages that were never on a queue."""
    deliveries: dict[int, Deliveries] = field(default_factory=dict)
    outcomes: dict[str, int] = field(default_factory=dict)
    """For messages that have ended."""
    open_messages: int = 0
    open_places: int = 0
    open_bytes: int = 0
    open_pending: int = 0
    open_staged: int = 0
    oldest: list[Held] = field(default_factory=list)
    doubts: list[Doubt] = field(default_factory=list)

    def label(self, queue_id: int | None) -> str:
        """The queue for people, whether it has a name or not."""
        if queue_id is None or queue_id not in self.labels:
            return nameless(queue_id)
        return self.labels[queue_id]

    def anchor(self, waiting: dict[int, int], later: dict[int, int]) -> None:
        """Computes the depths at the beginning from those at the end.

        ``waiting``: places on each queue at the end of the log; ``later``: the change after the last interval. Counting
        from the beginning would be wrong: for a message whose start was recycled, the log has only the dequeue.
        """
        for queue_id in sorted({*self.came, *self.went, *waiting, *later}):
            grew = sum(self.came.get(queue_id, ())) - sum(self.went.get(queue_id, ())) + later.get(queue_id, 0)
            self.opening[queue_id] = waiting.get(queue_id, 0) - grew

    def depth_before(self, queue_id: int) -> int | None:
        """The depth before the first interval; None if it is not known."""
        return self.opening.get(queue_id, 0) if self._knows(self.grid.within(self.scope)[0]) else None

    def depths(self, queue_id: int) -> list[int | None]:
        """The depth at the end of each interval; None where it is not known."""
        came, went = self.came.get(queue_id), self.went.get(queue_id)
        depth, (_, stop) = self.opening.get(queue_id, 0), self.grid.within(self.scope)
        found: list[int | None] = []
        for index in range(self.grid.buckets):
            depth += (came[index] if came else 0) - (went[index] if went else 0)
            end = min(self.grid.start_us + (index + 1) * self.grid.step_us, stop)
            found.append(depth if self._knows(end) else None)
        return found

    def last_left_us(self, queue_id: int) -> int | None:
        """The end of the last interval in which something left a queue; None if nothing did."""
        went = self.went.get(queue_id, ())
        last = max((index for index, number in enumerate(went) if number), default=None)
        return None if last is None else self.grid.start_us + (last + 1) * self.grid.step_us

    def _knows(self, us: int) -> bool:
        """Whether all changes of depth from this time on are in the log."""
        return self.known_from_us is None or us > self.known_from_us

    def queue_ids(self) -> list[int]:
        """Every queue that had a message, sorted by id."""
        return sorted({*self.opening, *self.came, *self.went})
