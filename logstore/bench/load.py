"""The load of a benchmark: contents that can be recognised, what is still to be done, and who may do it when."""

from __future__ import annotations

import queue
import random
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

from logstore.bench.plan import CHECKED_BYTES_MIN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logstore import MessageStore
    from logstore.bench.plan import Plan
    from logstore.store.queues import Delivery, Queue

DISTINCT = 251  # contents that differ, if they are small; a prime, so that no batch size makes them meet for ever
_POOL_BYTES = 64 << 20  # of all contents together, but three there are
_STAMP = 8  # bytes: when it was published, if it is the first of its batch; else zeros
_NUMBER = 8  # bytes: which of the contents it is
_PATIENCE_S = 0.1  # between two looks at what has no event


class Contents:
    """The contents that a benchmark publishes, over and over, and knows again byte by byte."""

    def __init__(self, size: int) -> None:
        self.checked = size >= CHECKED_BYTES_MIN
        self.distinct = max(3, min(DISTINCT, _POOL_BYTES // max(size, 1)))
        dice = random.Random(f"contents of {size} bytes")  # an earlier run's are known again
        if self.checked:
            rest = size - _STAMP - _NUMBER
            names = [number.to_bytes(_NUMBER, "little") for number in range(self.distinct)]
            self._all = [bytes(_STAMP) + name + dice.randbytes(rest) for name in names]
        else:
            self._all = [dice.randbytes(size) for _ in range(self.distinct)]
        self._tails = [content[_STAMP:] for content in self._all]

    def some(self, first: int, count: int, stamp_ns: int = 0) -> list[bytes]:
        """``count`` of them from this number on, the first with a time in it if one is given."""
        at = first % self.distinct
        made = self._all[at : at + count]
        while len(made) < count:
            made += self._all[: count - len(made)]
        if stamp_ns and self.checked:
            made[0] = stamp_ns.to_bytes(_STAMP, "little") + made[0][_STAMP:]
        return made

    def stamp_ns(self, content: bytes) -> int:
        """When it was published; 0 if it does not say."""
        return int.from_bytes(content[:_STAMP], "little") if self.checked else 0

    def is_right(self, content: bytes, number: int | None) -> bool:
        """Whether it is what was published: as that number or, where none is known, as the one it says it is."""
        if not self.checked:
            return number is None or content == self._all[number % self.distinct]
        if number is None:
            number = int.from_bytes(content[_STAMP : _STAMP + _NUMBER], "little")
            if number >= self.distinct:
                return False
        return content[_STAMP:] == self._tails[number % self.distinct]


class Backlog:
    """How many places wait, and who therefore waits: publishers for room, consumers for their turn.

    With ``sawtooth`` only one side works: publishers until the depth is reached, consumers until nothing is left.
    """

    def __init__(self, plan: Plan, waiting: int) -> None:
        self._depth, self._sawtooth = plan.depth if plan.consumers else 0, plan.sawtooth
        self._draining = False
        self._changed = threading.Condition()
        self.waiting = waiting
        self.ended = False  # nothing is published any more
        self.stopped = False  # whoever waits goes home

    def wait_for_room(self, places: int) -> bool:
        """Until so many more may wait; False if it is all over."""
        if self._depth == 0:
            return not self.stopped
        with self._changed:
            while not self.stopped and (
                self._draining if self._sawtooth else self.waiting > 0 and self.waiting + places > self._depth
            ):
                self._changed.wait()
        return not self.stopped

    def wait_for_turn(self) -> bool:
        """Until consumers may work; False if it is all over."""
        with self._changed:
            while self._sawtooth and not (self._draining or self.ended or self.stopped):
                self._changed.wait()
        return not self.stopped

    def published(self, places: int) -> None:
        """So many more wait."""
        with self._changed:
            self.waiting += places
            if self._sawtooth and self.waiting >= self._depth:
                self._draining = True
            self._changed.notify_all()

    def consumed(self, places: int) -> None:
        """So many less: taken, or left for good."""
        with self._changed:
            self.waiting -= places
            if self.waiting <= 0:
                self._draining = False
            self._changed.notify_all()

    def wait_until_consumed(self) -> bool:
        """The store is full: until half of what waits is gone; False if it is all over."""
        with self._changed:
            enough = self.waiting // 2
            self._draining = self._sawtooth and self.waiting > 0
            self._changed.notify_all()
            while not self.stopped and self.waiting > enough:
                self._changed.wait()
        return not self.stopped

    def wait_for_change(self, timeout_s: float = _PATIENCE_S) -> None:
        """Until anything was published or consumed, or a moment has passed."""
        with self._changed:
            self._changed.wait(timeout_s)

    def end(self, *, stop: bool) -> None:
        """Nothing more is published; with ``stop`` nothing is consumed either."""
        with self._changed:
            self.ended = True
            self.stopped = self.stopped or stop
            self._changed.notify_all()


class Quota:
    """What is still to be published, for all publishers together."""

    def __init__(self, plan: Plan) -> None:
        self._lock = threading.Lock()
        self._left = plan.message_limit
        self._seconds = plan.time_limit_s
        self._until: float | None = None
        self._next = 0

    def start(self) -> None:
        """The clock runs from here."""
        if self._seconds is not None:
            self._until = time.monotonic() + self._seconds

    def take(self, wanted: int) -> range:
        """The numbers of the next messages, up to ``wanted`` of them; empty when it is enough."""
        if self._until is not None and time.monotonic() >= self._until:
            return range(0)
        with self._lock:
            count = wanted if self._left is None else min(wanted, self._left)
            self._left = None if self._left is None else self._left - count
            first = self._next
            self._next += count
        return range(first, first + count)


class Handed(NamedTuple):
    """A batch on its way from a publisher to a consumer that dequeues by id."""

    queue: Queue
    ids: Sequence[int]
    first: int
    """The number of the first one's content."""
    stamp_ns: int


class Left(NamedTuple):
    """A message that a consumer left where it is."""

    queue: Queue
    id: int
    number: int | None
    delivery: Delivery | None


class Load:
    """What the threads of one run share."""

    def __init__(self, store: MessageStore, plan: Plan, queues: list[Queue], contents: Contents, waiting: int) -> None:
        self.store, self.plan, self.queues, self.contents = store, plan, queues, contents
        self.backlog = Backlog(plan, waiting)
        self.quota = Quota(plan)
        self.groups = max(min(plan.consumers, len(queues)), 1)
        """Of queues, which share consumers: queue and consumer n belong to group n modulo this."""
        self.handed: list[queue.SimpleQueue[Handed | None]] = [queue.SimpleQueue() for _ in range(self.groups)]
        self.problem: BaseException | None = None

    def fail(self, problem: BaseException) -> None:
        """The first thing that went wrong ends everything."""
        self.problem = self.problem or problem
        self.stop()

    def stop(self) -> None:
        """Everybody goes home."""
        self.backlog.end(stop=True)
        self._say_the_end()

    def end_publishing(self) -> None:
        """Consumers go on until nothing is left."""
        self.backlog.end(stop=False)
        self._say_the_end()

    def _say_the_end(self) -> None:
        for group in self.handed:
            for _ in range(self.plan.consumers):
                group.put(None)

    def in_transaction(self, dice: random.Random) -> bool:
        """Whether the next batch is one."""
        return self.plan.transaction_share > 0 and dice.random() < self.plan.transaction_share
