"""The load of a benchmark: recognisable contents, the messages still to publish, and the backlog that paces threads."""

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
    from logstore.store.deliveries import Delivery
    from logstore.store.queues import Queue

DISTINCT = 251  # different contents; a prime, so that no batch size keeps meeting the same ones
_POOL_BYTES = 64 << 20  # the limit of all contents together; but at least three contents exist
_STAMP = 8  # bytes: in the first content of a batch the time of publishing, otherwise zeros
_NUMBER = 8  # bytes: the number of the content
_POLL_S = 0.1  # the polling interval for changes that signal no event


class Contents:
    """The contents that a benchmark publishes repeatedly and can compare byte by byte."""

    def __init__(self, size: int) -> None:
        self.checked = size >= CHECKED_BYTES_MIN
        self.distinct = max(3, min(DISTINCT, _POOL_BYTES // max(size, 1)))
        dice = random.Random(f"contents of {size} bytes")  # the same in every run, so that earlier contents are known
        if self.checked:
            rest = size - _STAMP - _NUMBER
            names = [number.to_bytes(_NUMBER, "little") for number in range(self.distinct)]
            self._all = [bytes(_STAMP) + name + dice.randbytes(rest) for name in names]
        else:
            self._all = [dice.randbytes(size) for _ in range(self.distinct)]
        self._tails = [content[_STAMP:] for content in self._all]

    def some(self, first: int, count: int, stamp_ns: int = 0) -> list[bytes]:
        """``count`` contents from number ``first`` on; the first one contains ``stamp_ns`` if it is not 0."""
        start = first % self.distinct
        made = self._all[start : start + count]
        while len(made) < count:
            made += self._all[: count - len(made)]
        if stamp_ns and self.checked:
            made[0] = stamp_ns.to_bytes(_STAMP, "little") + made[0][_STAMP:]
        return made

    def stamp_ns(self, content: bytes) -> int:
        """The time of publishing in the content, monotonic ns; 0 if it has none."""
        return int.from_bytes(content[:_STAMP], "little") if self.checked else 0

    def is_right(self, content: bytes, number: int | None) -> bool:
        """Whether it is the published content of this number; without ``number``, of the number that it contains."""
        if not self.checked:
            return number is None or content == self._all[number % self.distinct]
        if number is None:
            number = int.from_bytes(content[_STAMP : _STAMP + _NUMBER], "little")
            if number >= self.distinct:
                return False
        return content[_STAMP:] == self._tails[number % self.distinct]


class Backlog:
    """The number of waiting places, which paces the threads: publishers wait for room, consumers for their turn.

    With ``sawtooth`` only one side works at a time: publishers until the depth is reached, then consumers until the
    queues are empty.
    """

    def __init__(self, plan: Plan, waiting: int) -> None:
        self._depth, self._sawtooth = plan.depth if plan.consumers else 0, plan.sawtooth
        self._draining = False
        self._changed = threading.Condition()
        self.waiting = waiting
        self.ended = False  # nothing more is published
        self.stopped = False  # all threads end

    def wait_for_room(self, places: int) -> bool:
        """Waits until ``places`` more may be published. False if the run was stopped."""
        if self._depth == 0:
            return not self.stopped
        with self._changed:
            while not self.stopped and (
                self._draining if self._sawtooth else self.waiting > 0 and self.waiting + places > self._depth
            ):
                self._changed.wait()
        return not self.stopped

    def wait_for_turn(self) -> bool:
        """Waits until consumers may work. False if the run was stopped."""
        with self._changed:
            while self._sawtooth and not (self._draining or self.ended or self.stopped):
                self._changed.wait()
        return not self.stopped

    def published(self, places: int) -> None:
        """Adds published places."""
        with self._changed:
            self.waiting += places
            if self._sawtooth and self.waiting >= self._depth:
                self._draining = True
            self._changed.notify_all()

    def consumed(self, places: int) -> None:
        """Subtracts places that were consumed, or that consumers left on the queue."""
        with self._changed:
            self.waiting -= places
            if self.waiting <= 0:
                self._draining = False
            self._changed.notify_all()

    def wait_until_consumed(self) -> bool:
        """Waits until half of the waiting places are consumed: the store is full. False if the run was stopped."""
        with self._changed:
            enough = self.waiting // 2
            self._draining = self._sawtooth and self.waiting > 0
            self._changed.notify_all()
            while not self.stopped and self.waiting > enough:
                self._changed.wait()
        return not self.stopped

    def wait_for_change(self, timeout_s: float = _POLL_S) -> None:
        """Waits until something was published or consumed, at most ``timeout_s`` seconds."""
        with self._changed:
            self._changed.wait(timeout_s)

    def end(self, *, stop: bool) -> None:
        """Ends publishing; with ``stop`` also consuming."""
        with self._changed:
            self.ended = True
            self.stopped = self.stopped or stop
            self._changed.notify_all()


class Quota:
    """The messages still to publish, for all publishers together."""

    def __init__(self, plan: Plan) -> None:
        self._lock = threading.Lock()
        self._left = plan.message_limit
        self._seconds = plan.time_limit_s
        self._until: float | None = None
        self._next = 0

    def start(self) -> None:
        """Starts the clock."""
        if self._seconds is not None:
            self._until = time.monotonic() + self._seconds

    def take(self, wanted: int) -> range:
        """The numbers of the next messages, at most ``wanted``; empty when the limit or the time is reached."""
        if self._until is not None and time.monotonic() >= self._until:
            return range(0)
        with self._lock:
            count = wanted if self._left is None else min(wanted, self._left)
            self._left = None if self._left is None else self._left - count
            first = self._next
            self._next += count
        return range(first, first + count)


class Handed(NamedTuple):
    """A batch that a publisher hands to a consumer which dequeues by id."""

    queue: Queue
    ids: Sequence[int]
    first: int
    """The number of the first message's content."""
    stamp_ns: int


class Left(NamedTuple):
    """A message that a consumer has taken, and leaves on its queue or settles."""

    queue: Queue
    id: int
    number: int | None
    delivery: Delivery | None


class Load:
    """The state that the threads of one run share."""

    def __init__(self, store: MessageStore, plan: Plan, queues: list[Queue], contents: Contents, waiting: int) -> None:
        self.store, self.plan, self.queues, self.contents = store, plan, queues, contents
        self.backlog = Backlog(plan, waiting)
        self.quota = Quota(plan)
        self.groups = max(min(plan.consumers, len(queues)), 1)
        """The number of groups of queues and consumers: queue n and consumer n belong to group n modulo this."""
        self.handed: list[queue.SimpleQueue[Handed | None]] = [queue.SimpleQueue() for _ in range(self.groups)]
        self.problem: BaseException | None = None

    def fail(self, problem: BaseException) -> None:
        """Keeps the first exception and stops all threads."""
        self.problem = self.problem or problem
        self.stop()

    def stop(self) -> None:
        """Stops all threads."""
        self.backlog.end(stop=True)
        self._wake_consumers()

    def end_publishing(self) -> None:
        """Ends publishing; consumers continue until the queues are empty."""
        self.backlog.end(stop=False)
        self._wake_consumers()

    def _wake_consumers(self) -> None:
        for group in self.handed:
            for _ in range(self.plan.consumers):
                group.put(None)

    def in_transaction(self, dice: random.Random) -> bool:
        """Whether the next batch is a transaction."""
        return self.plan.transaction_share > 0 and dice.random() < self.plan.transaction_share
