"""What a benchmark counts while it runs: calls and how long they took, in little memory however long it goes on."""

from __future__ import annotations

import array
from dataclasses import dataclass, field

_STEPS_BITS = 5  # of each power of two: 32 steps, so a time is known to 3 %
_STEPS = 1 << _STEPS_BITS
_SLOTS = (65 - _STEPS_BITS) * _STEPS


class Times:
    """How often something took how long: counts in steps of 3 % from a nanosecond on. One thread adds to it."""

    __slots__ = ("_counts", "count", "largest_ns", "total_ns")

    def __init__(self) -> None:
        self._counts = array.array("Q", bytes(8 * _SLOTS))
        self.count = 0
        self.total_ns = 0
        self.largest_ns = 0

    def add(self, took_ns: int) -> None:
        """One more."""
        took_ns = max(took_ns, 0)
        shift = max(took_ns.bit_length() - _STEPS_BITS - 1, 0)
        self._counts[(shift << _STEPS_BITS) + (took_ns >> shift)] += 1
        self.count += 1
        self.total_ns += took_ns
        if took_ns > self.largest_ns:
            self.largest_ns = took_ns

    def include(self, other: Times) -> None:
        """All of the other's, too."""
        for slot, count in enumerate(other._counts):
            if count:
                self._counts[slot] += count
        self.count += other.count
        self.total_ns += other.total_ns
        self.largest_ns = max(self.largest_ns, other.largest_ns)

    def at_most_us(self, share: float) -> float | None:
        """Microseconds that this share of them stayed within; None if there were none."""
        if self.count == 0:
            return None
        left = share * self.count
        for slot, count in enumerate(self._counts):
            left -= count
            if count and left <= 0:
                return min(_upper_ns(slot), self.largest_ns) / 1000
        return self.largest_ns / 1000

    def as_dict(self) -> dict[str, float | int | None]:
        """Count, mean and percentiles, in microseconds."""
        return {
            "count": self.count,
            "mean_us": None if self.count == 0 else self.total_ns / self.count / 1000,
            "p50_us": self.at_most_us(0.5),
            "p99_us": self.at_most_us(0.99),
            "p999_us": self.at_most_us(0.999),
            "max_us": None if self.count == 0 else self.largest_ns / 1000,
        }


def _upper_ns(slot: int) -> int:
    """The longest time that is counted in the slot."""
    shift = max((slot >> _STEPS_BITS) - 1, 0)
    return ((slot - (shift << _STEPS_BITS) + 1) << shift) - 1


@dataclass(slots=True)
class Tally:
    """One thread's account of the messages it published or took."""

    messages: int = 0
    places: int = 0
    """On queues: with fan-out more than messages."""
    content_bytes: int = 0
    transactions: int = 0
    id_sum: int = 0
    """Of every place's message id; what went in came out if both sides have the same."""
    wrong: int = 0
    """Contents that were not what was published."""
    full: int = 0
    """Times that the store was full and refused."""
    calls: Times = field(default_factory=Times)
    """Until the call returned: durable, unless nobody waits."""
    end_to_end: Times = field(default_factory=Times)
    """From before a publish to behind the dequeue; one of each batch."""

    def include(self, other: Tally) -> None:
        """Add another thread's."""
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
    """All threads'."""
    total = Tally()
    for tally in tallies:
        total.include(tally)
    return total
