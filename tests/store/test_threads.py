"""Many threads with every operation at once: each acknowledged message exactly once, in its producer's order."""

from __future__ import annotations

import collections
import random
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from kit.stores import SMALL_SEGMENT, contents
from logstore import errors

if TYPE_CHECKING:
    from collections.abc import Callable

    from logstore import MessageStore, Queue

pytestmark = pytest.mark.on_disk

Open = Any


class Crowd:
    """Threads that start together; their exceptions are raised at the end."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []
        self._failures: list[BaseException] = []
        self._go = threading.Event()

    def add(self, work: Callable[..., object], *arguments: object) -> None:
        def run() -> None:
            self._go.wait()
            try:
                work(*arguments)
            except BaseException as problem:  # noqa: BLE001 - raised again at the end
                self._failures.append(problem)

        self._threads.append(threading.Thread(target=run, daemon=True))
        self._threads[-1].start()

    def run(self, timeout: float = 60) -> None:
        self._go.set()
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.1, deadline - time.monotonic()))
        stuck = sum(thread.is_alive() for thread in self._threads)
        if self._failures:
            raise self._failures[0]
        assert stuck == 0, f"{stuck} threads did not come to an end"


def in_order(seen: list[bytes]) -> dict[bytes, list[int]]:
    """Numbers by producer, in the order of delivery."""
    by_producer: dict[bytes, list[int]] = collections.defaultdict(list)
    for content in seen:
        producer, number = content.split()[:2]
        by_producer[producer].append(int(number))
    return by_producer


PRODUCERS = 5
EACH = 900


def produce(store: MessageStore, queue: Queue, name: int, acknowledged: list[bytes]) -> None:
    """Publishes in every available way; notes the acknowledged messages in order."""
    chance = random.Random(name)
    number = 0

    def fresh() -> bytes:
        nonlocal number
        number += 1
        return b"%d %d " % (name, number) + bytes(chance.choice([0, 10, 3000, 40_000]) if number % 20 == 0 else 50)

    while number < EACH:
        way = chance.randrange(6)
        mine = [fresh() for _ in range(1 if way < 3 else chance.randint(1, 4))]
        if way == 0:
            store.publish(queue, mine[0])
        elif way == 1:
            store.publish(queue, mine[0], wait=False)
            store.force(store.next_lsn)
        elif way == 2:
            key = store.stage(b"", mine[0][:1])
            store.append_content(key, mine[0][1:])
            store.enqueue(key, queue)
        elif way == 3:
            store.publish_many(queue, mine)
        elif way == 4:
            with store.transaction() as transaction:
                for content in mine:
                    store.publish(queue, content, transaction=transaction)
        else:
            transaction = store.begin()
            for content in mine:
                store.publish(queue, b"never " + content, transaction=transaction)
            transaction.rollback()
            store.publish_many(queue, mine)
        acknowledged.extend(mine)


def test_every_acknowledged_message_is_consumed_once_and_in_its_producers_order(open_store: Open) -> None:
    store = open_store()
    queue = store.declare_queue("q")
    acknowledged: list[list[bytes]] = [[] for _ in range(PRODUCERS)]
    accepted: list[bytes] = []
    first_seen: list[bytes] = []
    seen: set[int] = set()
    lock = threading.Lock()
    done = threading.Event()
    busy = PRODUCERS
    crowd = Crowd()

    def producer(name: int) -> None:
        nonlocal busy
        try:
            produce(store, queue, name, acknowledged[name])
        finally:
            with lock:
                busy -= 1
                if busy == 0:
                    done.set()

    def consume(number: int) -> None:
        chance = random.Random(1000 + number)
        while True:
            finished = done.is_set()
            with lock:  # first deliveries have the order of acquiring
                deliveries = queue.acquire(chance.randint(1, 8))
                for delivery in deliveries:
                    if delivery.id not in seen:
                        seen.add(delivery.id)
                        first_seen.append(delivery.content)
                    else:
                        assert delivery.redelivered
            for delivery in deliveries:
                if chance.random() < 0.15:
                    delivery.release()
                    continue
                content = delivery.content
                way = chance.randrange(3)
                if way == 0:
                    with store.transaction() as transaction:
                        store.dequeue(delivery.id, queue, transaction)
                else:
                    delivery.accept(wait=way == 1)
                with lock:
                    accepted.append(content)
            if finished and not deliveries:
                return

    def look() -> None:
        while not done.is_set():
            stats = store.stats()
            assert stats["places"] >= 0
            assert store.tail().base_lsn <= store.next_lsn
            for message in store.messages(queue):
                try:
                    assert len(message.content) == message.size
                except errors.UnknownMessage:
                    continue
            store.in_doubt()

    def care() -> None:
        number = 0
        while not done.is_set():
            number += 1
            extra = store.declare_queue(f"extra{number}")
            store.publish([extra], b"brief")
            store.compact()
            store.delete_queue(extra)

    for name in range(PRODUCERS):
        crowd.add(producer, name)
    for number in range(3):
        crowd.add(consume, number)
    crowd.add(look)
    crowd.add(care)
    crowd.run()
    given = [content for one in acknowledged for content in one]
    assert sorted(accepted) == sorted(given)
    assert all(numbers == sorted(numbers) for numbers in in_order(first_seen).values())
    assert queue.depth == 0
    assert store.stats()["messages"] == 0
    assert store.stats()["transactions"] == 0
    store.close()
    store = open_store()
    assert store.queue("q").depth == 0
    assert store.stats()["messages"] == 0


@pytest.mark.parametrize("seed", range(6))
def test_closing_while_other_threads_work_loses_no_acknowledged_message(open_store: Open, seed: int) -> None:
    store = open_store()
    queue = store.declare_queue("q")
    acknowledged: list[list[bytes]] = [[] for _ in range(6)]
    stopped = []
    crowd = Crowd()

    def work(name: int) -> None:
        try:
            while True:
                produce(store, queue, name, acknowledged[name])
        except (errors.StoreClosed, errors.TransactionEnded) as problem:
            stopped.append(problem)

    def close() -> None:
        time.sleep(0.02 + 0.05 * seed)
        store.close()

    for name in range(6):
        crowd.add(work, name)
    crowd.add(close)
    crowd.run()
    assert len(stopped) == 6
    store = open_store()
    assert store.recovery.clean
    there = collections.Counter(contents(store.queue("q")))
    given = collections.Counter(content for one in acknowledged for content in one)
    assert not given - there  # a message may have become durable without an acknowledgement
    assert not any(content.startswith(b"never") for content in there)


def test_threads_that_wait_share_their_syncs_and_all_hear_of_theirs(open_store: Open) -> None:
    store = open_store()
    queue = store.declare_queue("q")
    before = store.stats()["syncs"]
    crowd = Crowd()

    def publish() -> None:
        for _ in range(40):
            store.publish(queue, b"x")
            assert store.durable_lsn > 0

    for _ in range(24):
        crowd.add(publish)
    crowd.run()
    assert queue.depth == 24 * 40
    assert store.stats()["syncs"] - before < 24 * 40 * 0.6


def test_the_same_messages_taken_by_many_threads_go_to_one_each(open_store: Open) -> None:
    store = open_store()
    queue = store.declare_queue("q")
    ids = list(store.publish_many(queue, [b"%d" % i for i in range(1500)]))
    taken: list[int] = []
    crowd = Crowd()

    def take(seed: int) -> None:
        mine = ids[:]
        random.Random(seed).shuffle(mine)
        for key in mine:
            try:
                store.dequeue(key, queue, wait=False)
            except (errors.UnknownMessage, errors.NotEnqueued):
                continue
            taken.append(key)

    for seed in range(5):
        crowd.add(take, seed)
    crowd.run()
    assert sorted(taken) == ids
    assert store.stats()["messages"] == 0


def test_a_full_store_is_emptied_and_filled_by_many_threads_at_once(open_store: Open) -> None:
    store = open_store(max_log_bytes=8 * SMALL_SEGMENT)
    queue = store.declare_queue("q")
    published = [0] * 3
    refused = [0] * 3
    consumed = [0] * 2
    stop = threading.Event()
    ended = threading.Semaphore(0)  # one for each producer that has finished
    all_ended = threading.Event()
    crowd = Crowd()

    def fill(name: int) -> None:
        while not stop.is_set():
            try:
                store.publish(queue, bytes(20_000), wait=False)
                published[name] += 1
            except errors.StoreFull:
                refused[name] += 1
                time.sleep(0.001)
        ended.release()

    def drain(name: int) -> None:
        time.sleep(0.5)
        while not all_ended.is_set() or queue.depth > 0:
            deliveries = queue.acquire(20)
            for delivery in deliveries:
                delivery.accept(wait=False)
            consumed[name] += len(deliveries)
            if not deliveries:
                store.force()
                time.sleep(0.001)

    def end() -> None:
        time.sleep(2)
        stop.set()
        for _ in published:
            ended.acquire()
        all_ended.set()

    for name in range(3):
        crowd.add(fill, name)
    for name in range(2):
        crowd.add(drain, name)
    crowd.add(end)
    crowd.run()
    assert sum(consumed) == sum(published) > 500
    assert sum(refused) > 0
    assert store.stats()["log_bytes"] <= 8 * SMALL_SEGMENT
    store.publish(queue, b"room")
