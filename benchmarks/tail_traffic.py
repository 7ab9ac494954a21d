"""Traffic past old state, for tail_bound.py and tests/store/test_tail_bound.py.

A scenario puts state into the log that stays, then messages of 1 KiB pass: ``publish_many`` and ``dequeue_many``, and
one wait for each batch. Another process adds up the segment files the whole time. The promise: at every moment after
the first relocation they take at most max(4 segments, 2 x live) + one segment, including spares, and the old state can
be read unchanged. *Live* is the store's own count when a batch is consumed; the batch in flight is not counted, so the
bound is stricter.
"""

from __future__ import annotations

import bisect
import os
import random
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import logstore
from logstore.bench.runner import bound_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

CONTENT_BYTES = 1024
DISTINCT = 61
BATCH_BYTES = 500 * 1104  # of log: what a batch adds to what lives while it is on its way, at most
SHARE = 0.01  # of random survivors
LOOKS = 3  # at survivors, for each batch


class Mark(NamedTuple):
    """The store's counters, at a moment when a batch was consumed."""

    at_s: float
    counted_bytes: int
    relocated: int  # segments, ever
    appended: int  # bytes, ever, without what was moved
    content_bytes: int  # published, ever
    first: int  # id of the batch's first message
    oldest: int  # of all that stays; 0 if nothing does


class Wrong(Exception):
    """The old state has changed."""


class Scenario:
    """The old state: ids and contents. This base class leaves none, for comparison."""

    name = "nothing stays"

    def __init__(self, store: logstore.MessageStore) -> None:
        self.store = store
        self.kept: dict[int, bytes] = {}
        self.dice = random.Random(7)

    def begin(self) -> None:
        """Before the traffic."""

    def leave(self, batch: Sequence[tuple[int, bytes]]) -> Sequence[int]:
        """The messages of this batch, and of earlier ones, that are consumed now."""
        return [message_id for message_id, _ in batch]

    def look(self) -> None:
        """A few of those that stay, byte by byte."""
        for message_id, content in self.kept.items():
            self._compare(message_id, content)

    def look_at_all(self) -> None:
        """Every one of them."""
        for message_id, content in self.kept.items():
            self._compare(message_id, content)

    def check(self, store: logstore.MessageStore) -> None:
        """Check that the queues have exactly these messages, now or after a restart."""

    def _compare(self, message_id: int, content: bytes) -> None:
        if self.store.load_content(message_id) != content:
            raise Wrong(f"{self.name}: message {message_id} is not what was published")

    def _on_queue(self, store: logstore.MessageStore, name: str, expected: Iterable[int]) -> None:
        found = [message.id for message in store.messages(name)]
        if found != list(expected):
            raise Wrong(f"{self.name}: {len(found)} messages on {name!r}, not the {len(self.kept)} that were left")


class StuckMessage(Scenario):
    """One message that nobody reads."""

    name = "one stuck message"

    def begin(self) -> None:
        self.kept = {
            self.store.publish(self.store.declare_queue("stuck"), content): content for content in [b"old" * 99]
        }

    def check(self, store: logstore.MessageStore) -> None:
        self._on_queue(store, "stuck", self.kept)


class StuckTransaction(Scenario):
    """A prepared transaction whose coordinator never returns: it published one message and dequeued another."""

    name = "a stuck prepared transaction"
    xid = logstore.Xid(1, b"coordinator", b"branch")

    def begin(self) -> None:
        queue = self.store.declare_queue("stuck")
        waiting = self.store.publish(queue, b"taken" * 50)
        transaction = self.store.begin(self.xid)
        made = self.store.publish(queue, b"made" * 50, transaction=transaction)
        self.store.dequeue(waiting, queue, transaction)
        transaction.end()
        transaction.prepare()
        self.kept = {waiting: b"taken" * 50, made: b"made" * 50}

    def check(self, store: logstore.MessageStore) -> None:
        found = store.in_doubt()
        if [(one.xid, one.operations) for one in found] != [(self.xid, 2)]:
            raise Wrong(f"{self.name}: in doubt are {found}")
        taken = next(iter(self.kept))
        if [(one.id, one.locked) for one in store.messages("stuck")] != [(taken, True)]:
            raise Wrong(f"{self.name}: what it takes is not locked, or what it made is seen")


class StuckFanOut(Scenario):
    """A message on ten queues, of which one is never read."""

    name = "a fan-out with one queue of ten unread"

    def begin(self) -> None:
        queues = [self.store.declare_queue(f"fan {number}") for number in range(10)]
        message_id = self.store.publish(queues, b"fan" * 99)
        for queue in queues[1:]:
            self.store.dequeue(message_id, queue)
        self.kept = {message_id: b"fan" * 99}

    def check(self, store: logstore.MessageStore) -> None:
        self._on_queue(store, "fan 0", self.kept)
        for number in range(1, 10):
            self._on_queue(store, f"fan {number}", [])


class RandomSurvivors(Scenario):
    """One message of a hundred, chosen at random, is left. After ``most`` survivors the oldest is consumed for each new
    one, so that the live bytes stay the same and the same traffic passes every survivor.
    """

    name = "1 % random survivors"
    most = 0  # no limit: they add up until the end
    share = SHARE

    def __init__(self, store: logstore.MessageStore) -> None:
        super().__init__(store)
        self._oldest: deque[int] = deque()

    def leave(self, batch: Sequence[tuple[int, bytes]]) -> Sequence[int]:
        consumed = []
        for message_id, content in batch:
            if self.dice.random() < self.share:
                self.kept[message_id] = content
                self._oldest.append(message_id)
            else:
                consumed.append(message_id)
        while self.most and len(self._oldest) > self.most:
            oldest = self._oldest.popleft()
            del self.kept[oldest]
            consumed.append(oldest)
        return consumed

    def look(self) -> None:
        for _ in range(LOOKS if self._oldest else 0):
            message_id = self._oldest[self.dice.randrange(len(self._oldest))]
            self._compare(message_id, self.kept[message_id])

    def check(self, store: logstore.MessageStore) -> None:
        self._on_queue(store, "traffic", self.kept)


SCENARIOS = (StuckMessage, StuckTransaction, StuckFanOut, RandomSurvivors)


@dataclass
class Traffic:
    """The messages that pass, and the counters after each batch."""

    store: logstore.MessageStore
    scenario: Scenario
    batch: int = 500  # messages
    marks: list[Mark] = field(default_factory=list)
    published: int = 0  # bytes of content
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self._queue = self.store.declare_queue("traffic")
        self._contents = [os.urandom(CONTENT_BYTES) for _ in range(DISTINCT)]
        self.scenario.begin()

    def pass_by(self, content_bytes: int, *, pause: Callable[[], object] | None = None) -> float:
        """Pass this many bytes, batch after batch; the seconds it took. Survivors are read in between."""
        started = time.perf_counter()
        until = self.published + content_bytes
        while self.published < until:
            first = self.published // CONTENT_BYTES % DISTINCT
            contents = [self._contents[(first + i) % DISTINCT] for i in range(self.batch)]
            ids = self.store.publish_many(self._queue, contents, wait=False)
            self.store.dequeue_many(self.scenario.leave(list(zip(ids, contents, strict=True))), self._queue)
            self.published += self.batch * CONTENT_BYTES
            self.scenario.look()
            self._mark(ids[0])
            if pause is not None:
                pause()
        took = time.perf_counter() - started
        self.seconds += took
        return took

    def _mark(self, first: int) -> None:
        native = self.store._stats_native()
        self.marks.append(
            Mark(
                at_s=time.monotonic(),
                counted_bytes=int(native.counted_bytes),
                relocated=int(native.segments_relocated),
                appended=int(native.appended_bytes - native.relocated_bytes),
                content_bytes=self.published,
                first=first,
                oldest=next(iter(self.scenario.kept), 0),
            )
        )


def unmoved_bytes(marks: Sequence[Mark]) -> list[int]:
    """The size of the log at each mark without relocation: everything since the oldest survivor.

    Computed from what was appended, not measured: in such a log only acknowledgements advance the base.
    """
    firsts = [mark.first for mark in marks]
    kept = []
    for mark in marks:
        batch = bisect.bisect_right(firsts, mark.oldest) - 1  # -1: before all traffic
        before = marks[batch - 1].appended if batch > 0 else 0
        kept.append(mark.appended - before if mark.oldest else 0)
    return kept


@dataclass(frozen=True, slots=True)
class Judged:
    """The verdict on the samples of the other process."""

    samples: int  # after the first relocation
    over: int  # of these, above the bound
    over_whole: int  # of these, above the bound in whole segments, with the batch in flight counted as live
    worst: float  # the largest share of its bound that one had
    largest: int  # bytes
    bound: int  # bytes, of the worst
    blind_s: float  # the longest time between two of them


def judge(samples: Sequence[tuple[float, int]], marks: Sequence[Mark], segment_size: int) -> Judged:
    """Compares every sample since the first relocation with the bound of that moment: the smaller of the adjacent
    marks.
    """
    moments = [mark.at_s for mark in marks]
    first = next((mark.at_s for mark in marks if mark.relocated), None)
    count = over = over_whole = largest = 0
    before, blind_s = first, 0.0
    worst, bound_of_worst = 0.0, bound_bytes(segment_size, 0)
    for at_s, size in samples:
        if first is None or at_s < first:
            continue
        blind_s = max(blind_s, at_s - (before or at_s))
        before = at_s
        after = min(bisect.bisect_left(moments, at_s), len(marks) - 1)
        live = min(marks[after].counted_bytes, marks[max(after - 1, 0)].counted_bytes)
        bound = bound_bytes(segment_size, live)
        count += 1
        over += size > bound
        busy = max(marks[after].counted_bytes, marks[max(after - 1, 0)].counted_bytes) + BATCH_BYTES
        over_whole += size > -(-bound_bytes(segment_size, busy) // segment_size) * segment_size
        largest = max(largest, size)
        if size / bound > worst:
            worst, bound_of_worst = size / bound, bound
    return Judged(count, over, over_whole, worst, largest, bound_of_worst, blind_s)
