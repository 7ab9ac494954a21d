"""The threads of a benchmark: publishers and consumers.

They are threads of one process, because only one process can have the store open; a broker that embeds the store works
in the same way. The core releases Python's global lock in every call, so the threads share its group commits. Their
Python code runs one thread at a time.
"""

from __future__ import annotations

import abc
import queue
import random
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from logstore import errors
from logstore.bench.counts import Tally
from logstore.bench.load import Handed, Left, Load

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from logstore.store.queues import Queue


_STRIDE = 64  # messages that a publisher takes from the quota at a time if it publishes singly without waiting


class Worker(threading.Thread, abc.ABC):
    """A publisher or consumer. An exception in one of them stops all."""

    def __init__(self, load: Load, name: str, number: int) -> None:
        super().__init__(name=f"logstore-bench-{name}-{number}", daemon=True)
        self.load, self.number = load, number
        self.tally = Tally()
        self.dice = random.Random(f"{load.plan.seed} {name} {number}")

    def run(self) -> None:
        """Works, and reports an exception to the shared load."""
        try:
            self.work()
        except BaseException as problem:  # noqa: BLE001 - raised by the thread that waits for this one
            self.load.fail(problem)

    @abc.abstractmethod
    def work(self) -> None:
        """Works until the run is over."""


class Publisher(Worker):
    """Publishes batch after batch. With ``wait`` each is durable before the next."""

    def __init__(self, load: Load, number: int) -> None:
        super().__init__(load, "publisher", number)
        self._turn = number

    def work(self) -> None:
        """Publishes until the quota is used up."""
        load, plan = self.load, self.load.plan
        while True:
            transactional = load.in_transaction(self.dice)
            wanted = (plan.transaction or plan.batch) if transactional else plan.batch
            if not load.backlog.wait_for_room(wanted * plan.fan_out):
                return
            singly = wanted == 1 and not transactional and not plan.wait
            numbers = load.quota.take(_STRIDE if singly else wanted)
            if not numbers:
                return
            if singly:
                self._publish_singly(numbers, self._next_queues())
            else:
                self._publish_all(numbers, self._next_queues(), transactional=transactional)

    def _next_queues(self) -> list[Queue]:
        queues = self.load.queues
        first = self._turn
        self._turn += 1
        return [queues[(first + i) % len(queues)] for i in range(self.load.plan.fan_out)]

    def _publish_singly(self, numbers: range, queues: list[Queue]) -> None:
        """Publishes messages one by one, with only a clock reading in between, since such a call takes about 1 µs."""
        started_ns = time.monotonic_ns()
        contents = self.load.contents.some(numbers.start, len(numbers), started_ns)
        publish, add, clock = self.load.store.publish, self.tally.calls.add, time.monotonic_ns
        ids: list[int] = []
        full = False
        begun_ns = clock()
        for content in contents:
            try:
                ids.append(publish(queues, content, wait=False))
            except errors.StoreFull:
                full = True
                break
            ended_ns = clock()
            add(ended_ns - begun_ns)
            begun_ns = ended_ns
        self._account(ids, numbers, queues, started_ns)
        if full:
            self._publish_all(numbers[len(ids) :], queues, transactional=False)

    def _publish_all(self, numbers: range, queues: list[Queue], *, transactional: bool) -> None:
        """Publishes the messages; if the store is full, continues when consumers have made room."""
        full_at = -1
        while numbers:
            started_ns = time.monotonic_ns()
            contents = self.load.contents.some(numbers[0], len(numbers), started_ns)
            try:
                ids = self._publish(queues, contents, transactional=transactional)
            except errors.StoreFull as full:
                self.tally.full += 1
                done = [] if transactional else getattr(full, "published", [])
                self._account(done, numbers[: len(done)], queues, started_ns)
                numbers = numbers[len(done) :]
                if self.load.plan.consumers == 0:
                    raise
                if not self.load.backlog.wait_until_consumed():
                    return
                if self.load.backlog.waiting <= 0 and full_at == self.tally.places:
                    raise  # no message waits to be consumed, but there is no room
                full_at = self.tally.places
                continue
            self.tally.calls.add(time.monotonic_ns() - started_ns)
            self.tally.transactions += transactional
            self._account(ids, numbers, queues, started_ns)
            return

    def _publish(self, queues: list[Queue], contents: list[bytes], *, transactional: bool) -> Sequence[int]:
        store, wait = self.load.store, self.load.plan.wait
        if not transactional:
            return self._put(queues, contents, None, wait=wait)
        transaction = store.begin()
        try:
            ids = self._put(queues, contents, transaction, wait=False)
        except BaseException:
            transaction.rollback(wait=False)
            raise
        transaction.commit(wait=wait)
        return ids

    def _put(self, queues: list[Queue], contents: list[bytes], transaction: Any, *, wait: bool) -> Sequence[int]:
        store = self.load.store
        if len(contents) == 1:
            return [store.publish(queues, contents[0], transaction=transaction, wait=wait)]
        if len(queues) == 1:
            return store.publish_many(queues[0], contents, transaction=transaction, wait=wait)
        ids: list[int] = []
        try:
            for content in contents:
                ids += (store.publish(queues, content, transaction=transaction, wait=False),)
        except errors.StoreFull as full:
            full.published = ids  # type: ignore[attr-defined]
            raise
        if wait:
            store.force_unless_relaxed()
        return ids

    def _account(self, ids: Sequence[int], numbers: range, queues: list[Queue], started_ns: int) -> None:
        if not ids:
            return
        load, tally, places = self.load, self.tally, len(ids) * len(queues)
        tally.messages += len(ids)
        tally.places += places
        tally.content_bytes += len(ids) * load.plan.size
        tally.id_sum += sum(ids) * len(queues)
        load.backlog.published(places)
        if not load.plan.acquire and load.plan.consumers:
            for one in queues:
                group = load.queues.index(one) % load.groups
                load.handed[group].put(Handed(one, ids, numbers[0], started_ns))


class Consumer(Worker):
    """The common part of both ways to consume: leaving survivors, checking contents, settling and counting."""

    def __init__(self, load: Load, number: int) -> None:
        super().__init__(load, "consumer", number)
        self.left: deque[Left] = deque()
        plan = load.plan
        self._left_max = plan.survivors_max // plan.consumers + (number < plan.survivors_max % plan.consumers)

    def leave_some(self, items: list[Left]) -> list[Left]:
        """Leaves a share of the items. Returns the items to consume, with the oldest survivors above the limit."""
        share = self.load.plan.survivors
        if share == 0:
            return items
        taken: list[Left] = []
        for item in items:
            (self.left if self.dice.random() < share else taken).append(item)
        while len(self.left) > self._left_max:
            taken.append(self.left.popleft())
        return taken

    def check(self, content: bytes, number: int | None) -> None:
        """Counts the content if it is wrong."""
        if not self.load.contents.is_right(content, number):
            self.tally.wrong += 1

    def account(self, items: Sequence[Left]) -> None:
        """Counts consumed items."""
        self.tally.messages += len(items)
        self.tally.places += len(items)
        self.tally.content_bytes += len(items) * self.load.plan.size
        self.tally.id_sum += sum(item.id for item in items)

    def settle(self, items: Sequence[Left]) -> None:
        """Consumes all items; a random share of the calls uses transactions."""
        store, wait = self.load.store, self.load.plan.wait
        if not self.load.in_transaction(self.dice):
            self.take_off(items, None, wait=wait)
            return
        size = self.load.plan.transaction or len(items)
        for start in range(0, len(items), size):
            transaction = store.begin()
            try:
                self.take_off(items[start : start + size], transaction, wait=False)
            except BaseException:
                transaction.rollback(wait=False)
                raise
            transaction.commit(wait=wait)
            self.tally.transactions += 1

    @abc.abstractmethod
    def take_off(self, items: Sequence[Left], transaction: Any, *, wait: bool) -> None:
        """Takes the items off their queues."""


def by_queue(items: Sequence[Left]) -> Iterator[tuple[Queue, list[int]]]:
    """The ids of the items, grouped by queue."""
    ids: dict[int, tuple[Queue, list[int]]] = {}
    for item in items:
        ids.setdefault(item.queue.id, (item.queue, []))[1].append(item.id)
    yield from ids.values()


class Dequeuer(Consumer):
    """Dequeues by the ids that publishers hand over."""

    def work(self) -> None:
        """Dequeues until publishers are done and nothing is left."""
        handed = self.load.handed[self.number % self.load.groups]
        ended = False
        while not ended:
            batch = handed.get()
            batches: list[Handed] = []
            count = 0
            while batch is not None:
                batches.append(batch)
                count += len(batch.ids)
                if count >= self.load.plan.take:
                    break
                try:
                    batch = handed.get_nowait()
                except queue.Empty:
                    break
            ended = batch is None
            if batches and self.load.backlog.wait_for_turn():
                self._consume(batches)
            ended = ended or self.load.backlog.stopped

    def _consume(self, batches: list[Handed]) -> None:
        items = [
            Left(batch.queue, message_id, batch.first + i, None)
            for batch in batches
            for i, message_id in enumerate(batch.ids)
        ]
        taken = self.leave_some(items)
        for start in range(0, len(taken), self.load.plan.take):
            some = taken[start : start + self.load.plan.take]
            if self.load.plan.verify:
                for item in some:
                    self.check(self.load.store.load_content(item.id), item.number)
            started_ns = time.monotonic_ns()
            self.settle(some)
            self.tally.calls.add(time.monotonic_ns() - started_ns)
        self.account(taken)
        now_ns = time.monotonic_ns()
        for batch in batches:
            self.tally.end_to_end.add(now_ns - batch.stamp_ns)
        self.load.backlog.consumed(len(items))

    def take_off(self, items: Sequence[Left], transaction: Any, *, wait: bool) -> None:
        """Dequeues the items, with one force for all."""
        store = self.load.store
        if len(items) == 1:
            store.dequeue(items[0].id, items[0].queue, transaction, wait=wait)
            return
        groups = list(by_queue(items))
        for number, (one, ids) in enumerate(groups, start=1):
            store.dequeue_many(ids, one, transaction, wait=wait and number == len(groups))


class Accepter(Consumer):
    """Acquires, reads and accepts, as a broker does for its clients."""

    def work(self) -> None:
        """Consumes until publishers are done and its queues are empty."""
        load = self.load
        mine = load.queues[self.number % load.groups :: load.groups]
        while load.backlog.wait_for_turn():
            ended = load.backlog.ended  # read first, so that everything published before the end is found
            found = [self._consume(one) for one in mine]
            if not any(found):
                if ended:
                    return
                load.backlog.wait_for_change()

    def _consume(self, one: Queue) -> bool:
        started_ns = time.monotonic_ns()
        deliveries = one.acquire(self.load.plan.take)
        if not deliveries:
            return False
        stamps = []
        for delivery in deliveries:
            content = delivery.content
            stamps.append(self.load.contents.stamp_ns(content))
            if self.load.plan.verify:
                self.check(content, None)
        taken = self.leave_some([Left(one, delivery.id, None, delivery) for delivery in deliveries])
        self.settle(taken)
        now_ns = time.monotonic_ns()
        self.tally.calls.add(now_ns - started_ns)
        for stamp_ns in stamps:
            if stamp_ns:
                self.tally.end_to_end.add(now_ns - stamp_ns)
        self.account(taken)
        self.load.backlog.consumed(len(deliveries))
        return True

    def take_off(self, items: Sequence[Left], transaction: Any, *, wait: bool) -> None:
        """Accepts each item, with one force for all."""
        alone = len(items) == 1
        for item in items:
            assert item.delivery is not None
            item.delivery.accept(transaction=transaction, wait=wait and alone)
        if wait and not alone and items:
            self.load.store.force_unless_relaxed()
