"""What listeners are told, and when: messages that arrived, places that came back. How they end: test_listeners.py."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import threading
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

import pytest

from kit.patience import PATIENCE_S, wait_until
from kit.stores import break_the_log
from logstore import MessageStore, Queue, errors

if TYPE_CHECKING:
    from collections.abc import Callable

Open = Any


@pytest.fixture
def queue(store: MessageStore) -> Queue:
    return store.declare_queue("q")


class Told:
    """Keeps what a listener is called with."""

    def __init__(self) -> None:
        self._heard: SimpleQueue[Queue] = SimpleQueue()

    def __call__(self, queue: Queue) -> None:
        self._heard.put(queue)

    def next(self) -> str:
        return self._heard.get(timeout=PATIENCE_S).name

    def is_quiet_before(self, last: Callable[[], object], queue: Queue) -> bool:
        """Whether the next call is that for ``queue`` which ``last`` causes."""
        last()
        return self._heard.get(timeout=PATIENCE_S) is queue and self._heard.empty()


# ---- arrivals ----


def test_a_message_is_told_when_it_can_be_acquired(store: MessageStore, queue: Queue) -> None:
    got: SimpleQueue[bytes] = SimpleQueue()

    def take(mine: Queue) -> None:
        for one in mine.acquire(10):
            got.put(one.content)
            one.accept()

    queue.on_arrived(take)
    for number in range(50):
        store.publish(queue, b"%d" % number, wait=number % 2 == 0)
        store.next_lsn
        assert got.get(timeout=PATIENCE_S) == b"%d" % number


def test_only_the_queue_to_which_messages_came_is_told(store: MessageStore, queue: Queue) -> None:
    told, other = Told(), store.declare_queue("other")
    queue.on_arrived(told)
    other.on_arrived(told)
    store.publish(other, b"x")
    assert told.next() == "other"
    with store.transaction() as transaction:
        store.publish(queue, b"x", transaction=transaction)
    assert told.next() == "q"
    store.publish([queue, other], b"both")
    assert {told.next(), told.next()} == {"q", "other"}
    assert told.is_quiet_before(lambda: store.publish(queue, b"x"), queue)


def test_a_loop_is_told_in_its_thread_and_by_no_commit_of_another_queue(store: MessageStore, queue: Queue) -> None:
    other = store.declare_queue("other")

    async def main() -> None:
        told: asyncio.Queue[tuple[Queue, threading.Thread]] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        queue.on_arrived(lambda mine: told.put_nowait((mine, threading.current_thread())), loop=loop)
        inbox = store._inboxes._all[loop]
        with pytest.raises(BlockingIOError):
            os.eventfd_read(inbox.fd)
        await asyncio.to_thread(store.publish, other, b"x")
        with pytest.raises(BlockingIOError):  # nothing has woken the loop
            os.eventfd_read(inbox.fd)
        await asyncio.to_thread(store.publish, queue, b"x")
        async with asyncio.timeout(PATIENCE_S):
            assert await told.get() == (queue, threading.main_thread())
        assert told.empty()

    asyncio.run(main())


def test_messages_that_were_there_are_not_told_and_those_after_an_open_are(open_store: Open) -> None:
    store = open_store()
    store.publish(store.declare_queue("q"), b"before")
    store.close()
    store = open_store()
    queue, told = store.queue("q"), Told()
    queue.on_arrived(told)
    assert [one.content for one in queue.acquire(10)] == [b"before"]
    assert told.is_quiet_before(lambda: store.publish(queue, b"after"), queue)


def test_a_waiting_get_and_a_listener_hear_of_the_same_message(store: MessageStore, queue: Queue) -> None:
    told = Told()

    async def main() -> None:
        queue.on_arrived(told, loop=asyncio.get_running_loop())
        waiting = asyncio.ensure_future(queue.get())
        await asyncio.sleep(0)
        await asyncio.to_thread(store.publish, queue, b"x")
        async with asyncio.timeout(PATIENCE_S):
            (got,) = await waiting
        assert got.content == b"x"
        got.accept()

    asyncio.run(main())
    assert told.next() == "q"


# ---- places that come back ----


def test_a_release_is_told_of_every_way_back(store: MessageStore, queue: Queue) -> None:
    ids = list(store.publish_many(queue, [b"x"] * 3))
    told = Told()
    queue.on_released(told)
    queue.acquire()[0].release()
    assert told.next() == "q"
    queue.release(queue.acquire()[0].detach())
    assert told.next() == "q"
    queue.acquire()  # dropped
    assert told.next() == "q"
    transaction = store.begin()
    store.dequeue(ids[0], queue, transaction)
    transaction.rollback()
    assert told.next() == "q"
    transaction = store.begin()
    store.dequeue(ids[0], queue, transaction)
    del transaction
    gc.collect()
    assert told.next() == "q"
    queue.acquire_ids([ids[2]])[0].release()  # before the queue's offer has reached it
    assert told.next() == "q"
    store.publish(queue, b"no release")
    assert told.is_quiet_before(lambda: queue.acquire()[0].release(), queue)


@pytest.mark.parametrize("queues", [2, 300])
def test_a_rollback_tells_only_the_queues_whose_places_it_unlocks(store: MessageStore, queues: int) -> None:
    every = [store.declare_queue(f"q{number}") for number in range(queues)]
    ids = [store.publish(each, b"x", wait=False) for each in every]
    heard: list[Queue] = []
    calls: list[Queue] = []
    store.on_release(heard.append)
    told = Told()
    for each in every:
        each.on_released(told)
        each.on_released(calls.append)
    with pytest.raises(KeyError), store.transaction() as transaction:
        store.dequeue(ids[1], every[1], transaction)
        raise KeyError
    assert heard == [every[1]]
    assert told.next() == "q1"
    assert told.is_quiet_before(lambda: every[0].acquire()[0].release(), every[0])
    assert heard == [every[1], every[0]]
    wait_until(lambda: calls == [every[1], every[0]])


def test_a_queue_that_is_declared_later_is_told_to_listeners_of_all_queues(store: MessageStore, queue: Queue) -> None:
    heard: list[str] = []
    with store.on_release(lambda mine: heard.append(mine.name)):
        later = store.declare_queue("later")
        store.publish_many(later, [b"x"] * 2)
        later.acquire()[0].release()
        store.delete_queue(later)
    store.publish(queue, b"x")
    queue.acquire()[0].release()
    assert heard == ["later"]


# ---- the end of a queue, of a store, of a process ----


def test_the_deletion_of_its_queue_ends_a_listener_without_a_call(store: MessageStore, queue: Queue) -> None:
    told, other = Told(), Told()
    listener = queue.on_arrived(told)
    kept = store.declare_queue("kept")
    kept.on_arrived(other)
    store.delete_queue(queue)
    wait_until(lambda: listener.closed)
    assert other.is_quiet_before(lambda: store.publish(kept, b"x"), kept)
    assert told._heard.empty()
    with pytest.raises(errors.UnknownQueue):
        queue.on_arrived(told)
    listener.close()


def test_a_closed_store_calls_no_listener_and_refuses_new_ones(store: MessageStore, queue: Queue) -> None:
    told: list[Queue] = []

    async def main() -> None:
        (key,) = store.publish_many(queue, [b"x"])
        listener = queue.on_released(told.append, loop=asyncio.get_running_loop())
        transaction = store.begin()
        store.dequeue(key, queue, transaction)
        await asyncio.to_thread(store.close)  # it rolls back
        async with asyncio.timeout(PATIENCE_S):
            while not listener.closed:  # noqa: ASYNC110 - nobody is told of the end of a listener
                await asyncio.sleep(0)
        del transaction
        for loop in (None, asyncio.get_running_loop()):
            with pytest.raises(errors.StoreClosed):
                queue.on_arrived(print, loop=loop)

    asyncio.run(main())
    assert told == []


def test_a_failed_log_tells_of_no_arrival(open_store: Open) -> None:
    store = open_store()
    queue = store.declare_queue("q")
    told: list[Queue] = []
    failed: SimpleQueue[object] = SimpleQueue()
    queue.on_arrived(told.append)
    store.on_durable(failed.put)
    break_the_log(store)
    store.publish(queue, b"never durable", wait=False)
    while not isinstance(failed.get(timeout=PATIENCE_S), errors.OutcomeUnknown):
        pass
    store.close()
    assert told == []


def test_a_forked_child_may_not_listen_and_is_never_called(store: MessageStore, queue: Queue) -> None:
    told = Told()
    listener = queue.on_arrived(told)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            listener.close()
            with pytest.raises(errors.StoreForked):
                queue.on_arrived(print)
            gc.collect()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert told.is_quiet_before(lambda: store.publish(queue, b"x"), queue)


# ---- many threads ----


@pytest.mark.parametrize("in_loop", [False, True])
def test_a_consumer_that_looks_only_when_told_gets_every_message(
    store: MessageStore, queue: Queue, in_loop: bool
) -> None:
    """Publishers, consumers that give back, and listeners that come and go: no event is lost between two looks."""
    wanted, got = 600, []
    done, stop = threading.Event(), threading.Event()
    chance = random.Random(7)

    def look(mine: Queue) -> None:
        for delivery in mine.acquire(chance.randint(1, 5)) + mine.acquire(1000):
            if chance.random() < 0.3:
                delivery.release()
            else:
                got.append(delivery.id)
                delivery.accept(wait=False)
        if len(got) == wanted:
            done.set()

    def publish(first: int) -> None:
        for number in range(first, wanted, 2):
            store.publish(queue, b"x", wait=number % 3 == 0)
            if number % 3:
                store.next_lsn

    def churn() -> None:
        while not stop.is_set():
            queue.on_arrived(lambda _: None).close()
            queue.on_released(lambda _: None).close()

    async def loop_main(loop: asyncio.AbstractEventLoop) -> None:
        queue.on_arrived(look, loop=loop)
        queue.on_released(look, loop=loop)
        look(queue)  # the publishers began before
        while not done.is_set():  # noqa: ASYNC110 - a thread or the loop sets it
            await asyncio.sleep(0.001)

    if not in_loop:
        queue.on_arrived(look)
        queue.on_released(look)
    threads = [threading.Thread(target=publish, args=(first,)) for first in (0, 1)]
    threads.append(threading.Thread(target=churn))
    for thread in threads:
        thread.start()
    try:
        if in_loop:

            async def main() -> None:
                async with asyncio.timeout(PATIENCE_S):
                    await loop_main(asyncio.get_running_loop())

            asyncio.run(main())
        else:
            assert done.wait(PATIENCE_S)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert len(set(got)) == wanted


def test_an_error_of_a_callback_is_logged_and_the_others_are_called(
    store: MessageStore, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: Queue) -> None:
        raise SystemExit

    told = Told()
    queue.on_arrived(fail)
    queue.on_arrived(told)
    for _ in range(2):
        store.publish(queue, b"x")
        assert told.next() == "q"
    assert caplog.text.count("a queue callback failed") == 2
    with pytest.raises(Empty):
        told._heard.get_nowait()
