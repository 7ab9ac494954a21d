"""The counters of a benchmark: calls and their durations, in constant memory however long the run is."""

from __future__ import annotations

import array
from dataclasses import dataclass, field

_STEPS_BITS = 5  # 32 steps for each power of two, so the error of a duration is at most 3 %
_STEPS = 1 << _STEPS_BITS
_SLOTS = (65 - _STEPS_BITS) * _STEPS


class Times:
    """A histogram of durations, in steps of 3 % from one nanosecond on. Only one thread adds to it."""

    __slots__ = ("_counts", "count", "largest_ns", "total_ns")

    def __init__(self) -> None:
        self._counts = array.array("Q", bytes(8 * _SLOTS))
        self.count = 0
        self.total_ns = 0
        self.largest_ns = 0

    def add(self, took_ns: int) -> None:
        """Adds one duration in nanoseconds."""
        took_ns = max(took_ns, 0)
        shift = max(took_ns.bit_length() - _STEPS_BITS - 1, 0)
        self._counts[(shift << _STEPS_BITS) + (took_ns >> shift)] += 1
        self.count += 1
        self.total_ns += took_ns
        if took_ns > self.largest_ns:
            self.largest_ns = took_ns

    def include(self, other: Times) -> None:
        """Adds all durations of another histogram."""
        for slot, count in enumerate(other._counts):
            if count:
                self._counts[slot] += count
        self.count += other.count
        self.total_ns += other.total_ns
        self.largest_ns = max(self.largest_ns, other.largest_ns)

    def at_most_us(self, share: float) -> float | None:
        """The quantile of this share (0 to 1) in microseconds; None if there are no durations."""
        if self.count == 0:
            return None
        left = share * self.count
        for slot, count in enumerate(self._counts):
            left -= count
            if count and left <= 0:
                return min(_upper_ns(slot), self.largest_ns) / 1000
        return self.largest_ns / 1000

    def as_dict(self) -> dict[str, float | int | None]:
        """Count, and mean, percentiles and maximum in microseconds."""
        return {
            "count": self.count,
            "mean_us": None if self.count == 0 else self.total_ns / self.count / 1000,
            "p50_us": self.at_most_us(0.5),
            "p99_us": self.at_most_us(0.99),
            "p999_us": self.at_most_us(0.999),
            "max_us": None if self.count == 0 else self.largest_ns / 1000,
        }


def _upper_ns(slot: int) -> int:
    """The longest duration that the slot counts, in nanoseconds."""
    shift = max((slot >> _STEPS_BITS) - 1, 0)
    return ((slot - (shift << _STEPS_BITS) + 1) << shift) - 1


@dataclass(slots=True)
class Tally:
    """The counters of one thread, for the messages that it published or consumed."""

    messages: int = 0
    places: int = 0
    """Places on queues; with fan-out more than messages."""
    content_bytes: int = 0
    transactions: int = 0
    id_sum: int = 0
    """The sum of the message ids of all places; equal on both sides if all published messages were consumed."""
    wrong: int = 0
    """Contents that differ from the published ones."""
    full: int = 0
    """Calls that the store refused because it was full."""
    calls: Times = field(default_factory=Times)
    """Durations of the calls; with ``wait`` until the data was durable."""
    end_to_end: Times = field(default_factory=Times)
    """Durations from before the publish until after the dequeue; one per batch."""

    def include(self, other: Tally) -> None:
        """Adds another thread's counters."""
        self.messages += other.messages
        self.places += other.places
        self.content_bytes += other.content_bytes
        self.transactions += other.transactions
        self.id_sum += other.id_sum
        self.wrong += other.wrong
        self.full += other.full
        self.calls.include(other.calls)
        self.end_to_end.include(other.end_to_end)


def sum_of(tallies: list[Tally]) -> Tally:
    """The sum of all threads' counters."""
    total = Tally()
    for tally in tallies:
        total.include(tally)
    return total
