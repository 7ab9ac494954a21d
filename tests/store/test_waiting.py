"""Acquires that wait: of threads with ``acquire(timeout=)``, of tasks with ``await queue.get()``.

``make pytest-asan`` runs these tests with an extension that notices every use of freed memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import math
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import uvloop

from kit.patience import PATIENCE_S, wait_until
from kit.stores import break_the_log
from logstore import errors

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from logstore import MessageStore, Queue

pytestmark = pytest.mark.on_disk

Open = Any
RUNNERS = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])


def wait_until_waiting(store: MessageStore, count: int) -> None:
    wait_until(lambda: store.stats()["waiting"] == count, f"{count} acquires that wait")


async def until_waiting(store: MessageStore, count: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while store.stats()["waiting"] != count:  # noqa: ASYNC110 - the core has no event for it
            await asyncio.sleep(0)


@pytest.fixture
def threads(store: MessageStore) -> Iterator[ThreadPoolExecutor]:
    """Threads that may wait for messages of the store, until it is closed."""
    with ThreadPoolExecutor(70) as made:
        yield made
        with contextlib.suppress(errors.OutcomeUnknown):
            store.close()


# ---- threads ----


def test_a_publish_in_another_thread_answers_an_acquire_that_waits(
    store: MessageStore, threads: ThreadPoolExecutor
) -> None:
    queue = store.declare_queue("q")
    waiting = threads.submit(queue.acquire, 5, load=True, timeout=PATIENCE_S)
    wait_until_waiting(store, 1)
    message_id = store.publish(queue, b"content", header=b"header")
    (delivery,) = waiting.result(PATIENCE_S)
    assert (delivery.id, delivery.content, delivery.header) == (message_id, b"content", b"header")
    assert (delivery.delivery_count, delivery.redelivered) == (1, False)
    delivery.accept()


def test_threads_that_wait_are_served_in_the_order_in_which_they_came(
    store: MessageStore, threads: ThreadPoolExecutor
) -> None:
    queue = store.declare_queue("q")
    waiting = []
    for count in range(1, 5):
        waiting.append(threads.submit(queue.acquire, 1, timeout=math.inf))
        wait_until_waiting(store, count)
    ids = store.publish_many(queue, [b"%d" % number for number in range(6)])
    assert [waits.result(PATIENCE_S)[0].id for waits in waiting] == list(ids[:4])
    assert [one.id for one in queue.acquire(9)] == list(ids[4:])


def test_when_its_time_is_over_an_acquire_returns_nothing_and_the_next_one_gets_the_message(
    store: MessageStore,
) -> None:
    queue = store.declare_queue("q")
    began = time.monotonic()
    assert queue.acquire(3, timeout=0.05) == []
    assert time.monotonic() - began >= 0.05
    assert queue.acquire(3, timeout=0) == []
    assert queue.acquire(0, timeout=math.inf) == []
    assert store.stats()["waiting"] == 0
    store.publish(queue, b"content")
    assert [one.content for one in queue.acquire(3, timeout=math.inf)] == [b"content"]


def test_a_released_a_dropped_and_an_unlocked_message_goes_to_the_thread_that_waits(
    store: MessageStore, threads: ThreadPoolExecutor
) -> None:
    queue = store.declare_queue("q")
    store.publish(queue, b"content")
    (held,) = queue.acquire()

    def release() -> None:
        held.release()

    waiting = threads.submit(queue.acquire, 1, timeout=math.inf)
    wait_until_waiting(store, 1)
    release()
    found = waiting.result(PATIENCE_S)
    assert [one.delivery_count for one in found] == [2]

    waiting = threads.submit(queue.acquire, 1, timeout=math.inf)
    wait_until_waiting(store, 1)
    found.clear()  # this drops the delivery
    found = waiting.result(PATIENCE_S)
    assert [one.delivery_count for one in found] == [3]

    transaction = store.begin()
    message_id = found[0].id
    found[0].release()
    store.dequeue(message_id, queue, transaction)
    waiting = threads.submit(queue.acquire, 1, timeout=math.inf)
    wait_until_waiting(store, 1)
    transaction.rollback()
    assert [one.id for one in waiting.result(PATIENCE_S)] == [message_id]


def test_a_message_is_handed_over_once_it_is_durable_and_not_before(
    store: MessageStore, threads: ThreadPoolExecutor
) -> None:
    queue = store.declare_queue("q")
    waiting = threads.submit(queue.acquire, 1, timeout=math.inf)
    wait_until_waiting(store, 1)
    transaction = store.begin()
    message_id = store.publish(queue, b"content", transaction=transaction)
    store.force()
    assert store.stats()["waiting"] == 1
    transaction.commit()
    (delivery,) = waiting.result(PATIENCE_S)
    assert delivery.id == message_id < store.durable_lsn


class Interrupted(Exception):
    """Raised by the handler of a signal."""


@contextlib.contextmanager
def handler(function: Callable[..., object]) -> Iterator[None]:
    before = signal.signal(signal.SIGUSR1, function)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_ctrl_c_ends_a_wait_and_nothing_is_taken_or_marked(store: MessageStore, threads: ThreadPoolExecutor) -> None:
    queue = store.declare_queue("q")
    main = threading.get_ident()

    def interrupt() -> None:
        wait_until_waiting(store, 1)
        signal.pthread_kill(main, signal.SIGUSR1)

    def raise_it(*_: object) -> None:
        raise Interrupted

    with handler(raise_it):
        sent = threads.submit(interrupt)
        with pytest.raises(Interrupted):
            queue.acquire(1, timeout=math.inf)
    sent.result(PATIENCE_S)
    assert store.stats()["waiting"] == 0
    store.publish(queue, b"content")
    assert [one.delivery_count for one in queue.acquire(9)] == [1]


def test_what_was_handed_over_when_the_signal_came_goes_back_unmarked(store: MessageStore) -> None:
    """The handler publishes, so the message is there before the wait goes on, and then raises."""
    queue = store.declare_queue("q")
    main = threading.get_ident()
    ids: list[int] = []

    def publish_and_raise(*_: object) -> None:
        ids.append(store.publish(queue, b"content"))
        raise Interrupted

    def interrupt() -> None:
        wait_until_waiting(store, 1)
        signal.pthread_kill(main, signal.SIGUSR1)

    with handler(publish_and_raise):
        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(Interrupted):
            queue.acquire(1, timeout=math.inf)
        thread.join()
    assert [(one.id, one.delivery_count) for one in queue.acquire(9)] == [(ids[0], 1)]


def test_a_signal_whose_handler_returns_does_not_end_the_wait(store: MessageStore) -> None:
    queue = store.declare_queue("q")
    main = threading.get_ident()
    came: list[int] = []

    def interrupt() -> None:
        wait_until_waiting(store, 1)
        for count in range(1, 4):
            signal.pthread_kill(main, signal.SIGUSR1)
            wait_until(lambda count=count: len(came) == count, "the signal")
        store.publish(queue, b"content")

    with handler(lambda *_: came.append(1)):
        thread = threading.Thread(target=interrupt)
        thread.start()
        assert [one.content for one in queue.acquire(1, timeout=math.inf)] == [b"content"]
        thread.join()


@pytest.mark.parametrize(
    ("end", "error"),
    [
        pytest.param(lambda store, queue: store.close(), errors.StoreClosed, id="closed"),
        pytest.param(lambda store, queue: store.delete_queue(queue), errors.UnknownQueue, id="deleted"),
        pytest.param(lambda store, queue: lose(store, queue), errors.OutcomeUnknown, id="failed"),
    ],
)
def test_sixty_four_threads_learn_at_once_that_their_wait_has_ended(
    store: MessageStore,
    threads: ThreadPoolExecutor,
    end: Callable[[MessageStore, Queue], object],
    error: type[errors.StoreError],
) -> None:
    queue = store.declare_queue("q")
    store.declare_queue("other")
    waiting = [threads.submit(queue.acquire, 1, timeout=math.inf) for _ in range(64)]
    wait_until_waiting(store, 64)
    end(store, queue)
    for waits in waiting:
        with pytest.raises(error):
            waits.result(PATIENCE_S)
    with pytest.raises((error, errors.StorePoisoned)):
        queue.acquire(1, timeout=math.inf)


def lose(store: MessageStore, queue: Queue) -> None:
    other = store.queue("other")
    break_the_log(store)
    with pytest.raises(errors.OutcomeUnknown):
        store.publish(other, b"lost")


def switches(threads: list[int]) -> int:
    """How often these threads have slept, by the system's count."""
    count = 0
    for thread in threads:
        status = Path(f"/proc/self/task/{thread}/status").read_text("ascii")
        count += int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])
    return count


def test_nobody_who_waits_wakes_while_messages_arrive_elsewhere(
    store: MessageStore, threads: ThreadPoolExecutor
) -> None:
    queue, other = store.declare_queue("q"), store.declare_queue("other")
    natives: list[int] = []

    def wait() -> list[Any]:
        natives.append(threading.get_native_id())
        return queue.acquire(1, timeout=math.inf)

    waiting = [threads.submit(wait) for _ in range(64)]
    wait_until_waiting(store, 64)
    wait_until(lambda: all("S (sleeping)" in status(each) for each in natives), "threads that sleep")
    before = switches(natives)
    for number in range(200):
        store.publish(other, b"%d" % number)
    assert switches(natives) == before
    store.publish_many(queue, [b"x"] * 64)
    assert sum(len(waits.result(PATIENCE_S)) for waits in waiting) == 64


def status(thread: int) -> str:
    return Path(f"/proc/self/task/{thread}/status").read_text("ascii")


@pytest.mark.parametrize("wrong", [-1, -0.001, math.nan, "1", True, [1], -math.inf])
def test_a_wrong_timeout_is_refused_and_nothing_waits(store: MessageStore, wrong: Any) -> None:
    queue = store.declare_queue("q")
    with pytest.raises(errors.OptionError, match="timeout is a number of seconds"):
        queue.acquire(1, timeout=wrong)
    with pytest.raises(errors.OptionError, match="timeout is a number of seconds"):
        asyncio.run(queue.get(1, timeout=wrong))
    with pytest.raises(errors.OptionError, match="n is a number"):
        asyncio.run(queue.get(-1))
    assert store.stats()["waiting"] == 0


@pytest.mark.parametrize("huge", [1e308, 1 << 70, 10**400, 1e9])
def test_a_huge_timeout_is_for_ever(store: MessageStore, threads: ThreadPoolExecutor, huge: Any) -> None:
    queue = store.declare_queue("q")
    waiting = threads.submit(queue.acquire, 1 << 62, timeout=huge)
    wait_until_waiting(store, 1)
    store.publish_many(queue, [b"x"] * 3)
    assert len(waiting.result(PATIENCE_S)) == 3

    async def main() -> None:
        task = asyncio.ensure_future(queue.get(timeout=huge))
        await until_waiting(store, 1)
        store.publish(queue, b"y")
        assert len(await task) == 1

    asyncio.run(main())


def test_a_forked_child_is_refused_and_its_parent_waits_on(store: MessageStore, threads: ThreadPoolExecutor) -> None:
    queue = store.declare_queue("q")
    waiting = threads.submit(queue.acquire, 1, timeout=math.inf)
    wait_until_waiting(store, 1)
    child = os.fork()
    if child == 0:
        code = 1
        with contextlib.suppress(BaseException):
            try:
                queue.acquire(1, timeout=math.inf)
            except errors.StoreForked:
                code = 0
        os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    store.publish(queue, b"content")
    assert len(waiting.result(PATIENCE_S)) == 1


# ---- tasks ----


@RUNNERS
def test_tasks_are_served_in_the_order_in_which_they_came(store: MessageStore, run: Any) -> None:
    queue = store.declare_queue("q")

    async def main() -> None:
        tasks = []
        for count in range(1, 6):
            tasks.append(asyncio.ensure_future(queue.get(load=True)))
            await until_waiting(store, count)
        ids = store.publish_many(queue, [b"%d" % number for number in range(5)])
        found = [(await task)[0] for task in tasks]
        assert [(one.id, one.content) for one in found] == [(each, b"%d" % at) for at, each in enumerate(ids)]
        assert await queue.get(timeout=0.01) == []
        assert await queue.get(0) == []

    run(main())


@RUNNERS
def test_a_thousand_tasks_on_a_thousand_queues_get_their_messages_and_none_wakes_before(
    store: MessageStore, run: Any
) -> None:
    queues = store_queues(store, 1000)

    async def main() -> None:
        tasks = [asyncio.ensure_future(queue.get()) for queue in queues]
        await until_waiting(store, len(queues))
        inbox = store._inboxes.of(asyncio.get_running_loop())
        other = store.declare_queue("other")
        for _ in range(50):
            await asyncio.to_thread(store.publish, other, b"x")
        with pytest.raises(BlockingIOError):
            os.eventfd_read(inbox._fd)
        assert not any(task.done() for task in tasks)
        ids = [store.publish(queue, b"x", wait=False) for queue in queues]
        assert [(await task)[0].id for task in tasks] == ids

    run(main())


def store_queues(store: MessageStore, count: int) -> list[Queue]:
    return [store.declare_queue(f"q{number}") for number in range(count)]


@RUNNERS
def test_a_task_that_is_cancelled_after_it_was_served_gives_the_message_to_the_next_one(
    store: MessageStore, run: Any
) -> None:
    queue = store.declare_queue("q")

    async def main() -> None:
        first = asyncio.ensure_future(queue.get())
        await until_waiting(store, 1)
        second = asyncio.ensure_future(queue.get())
        await until_waiting(store, 2)
        message_id = store.publish(queue, b"content")
        assert store.stats()["waiting"] == 1  # the first has it, and does not know yet
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        (delivery,) = await second
        assert (delivery.id, delivery.delivery_count) == (message_id, 1)

    run(main())


@RUNNERS
def test_a_task_that_is_cancelled_while_it_waits_takes_nothing(store: MessageStore, run: Any) -> None:
    queue = store.declare_queue("q")

    async def main() -> None:
        tasks = [asyncio.ensure_future(queue.get(3)) for _ in range(10)]
        await until_waiting(store, 10)
        for task in tasks[::2]:
            task.cancel()
        await asyncio.wait(tasks[::2])
        await until_waiting(store, 5)
        ids = [store.publish(queue, b"content") for _ in range(5)]
        assert [(await task)[0].id for task in tasks[1::2]] == ids

    run(main())


@RUNNERS
def test_async_for_gives_one_message_after_another(store: MessageStore, run: Any) -> None:
    queue = store.declare_queue("q")
    seen: list[bytes] = []

    async def consume() -> None:
        async for delivery in queue:
            seen.append(delivery.content)
            delivery.accept(wait=False)
            if len(seen) == 20:
                return

    async def main() -> None:
        task = asyncio.ensure_future(consume())
        for number in range(20):
            await asyncio.to_thread(store.publish, queue, b"%d" % number)
        await asyncio.wait_for(task, PATIENCE_S)

    run(main())
    assert seen == [b"%d" % number for number in range(20)]
    assert queue.depth == 0


@RUNNERS
@pytest.mark.parametrize("how", ["closed", "deleted", "failed"])
def test_tasks_learn_at_once_that_their_wait_has_ended(open_store: Open, run: Any, how: str) -> None:
    store = open_store()
    queue = store.declare_queue("q")
    store.declare_queue("other")
    ends: dict[str, tuple[Callable[[], object], type[errors.StoreError]]] = {
        "closed": (store.close, errors.StoreClosed),
        "deleted": (lambda: store.delete_queue(queue), errors.UnknownQueue),
        "failed": (lambda: lose(store, queue), errors.OutcomeUnknown),
    }
    end, error = ends[how]

    async def main() -> None:
        tasks = [asyncio.ensure_future(queue.get()) for _ in range(200)]
        await until_waiting(store, 200)
        await asyncio.to_thread(end)
        async with asyncio.timeout(PATIENCE_S):
            for task in tasks:
                with pytest.raises(error):
                    await task
        with pytest.raises((error, errors.StorePoisoned)):
            await queue.get()

    run(main())


def test_a_task_that_is_never_resumed_gives_back_what_it_got(store: MessageStore) -> None:
    queue = store.declare_queue("q")
    loop = asyncio.new_event_loop()

    async def start() -> asyncio.Task[Any]:
        task = asyncio.ensure_future(queue.get())
        await until_waiting(store, 1)
        return task

    task: Awaitable[Any] | None = loop.run_until_complete(start())
    message_id = store.publish(queue, b"content")
    loop.close()
    with contextlib.suppress(RuntimeError):
        task.get_coro().close()  # type: ignore[union-attr] # as the end of the interpreter would
    task = None
    gc.collect()
    (delivery,) = queue.acquire()
    assert (delivery.id, delivery.delivery_count) == (message_id, 1)
    delivery.accept()

    async def again() -> None:
        waits = asyncio.ensure_future(queue.get())
        await until_waiting(store, 1)
        store.publish(queue, b"again")
        assert [one.content for one in await waits] == [b"again"]

    asyncio.run(again())


def test_threads_and_tasks_share_one_queue_and_each_message_goes_to_one_of_them(
    store: MessageStore, threads: ThreadPoolExecutor
) -> None:
    queue = store.declare_queue("q")
    count, seen = 2000, []

    def work() -> None:
        with contextlib.suppress(errors.UnknownQueue):
            while True:
                for delivery in queue.acquire(4, timeout=0.001):
                    seen.append(delivery.id)
                    delivery.accept(wait=False)

    async def consume() -> None:
        with contextlib.suppress(errors.UnknownQueue):
            async for delivery in queue:
                seen.append(delivery.id)
                delivery.accept(wait=False)

    async def impatient() -> None:
        with contextlib.suppress(errors.UnknownQueue):
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.001):
                        for delivery in await queue.get(2):
                            seen.append(delivery.id)
                            delivery.accept(wait=False)

    def publish() -> list[int]:
        ids = [store.publish(queue, b"x", wait=False) for _ in range(count // 2)]
        store.force()
        return ids

    async def main() -> list[int]:
        loop = asyncio.get_running_loop()
        working = [loop.run_in_executor(threads, work) for _ in range(4)]
        tasks = [asyncio.ensure_future(consume()) for _ in range(4)] + [asyncio.ensure_future(impatient())]
        published = await asyncio.gather(*[loop.run_in_executor(threads, publish) for _ in range(2)])
        async with asyncio.timeout(PATIENCE_S):
            while queue.depth:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0)
            await loop.run_in_executor(threads, store.delete_queue, queue)
            await asyncio.gather(*working, *tasks)
        return sorted(itertools.chain.from_iterable(published))

    assert asyncio.run(main()) == sorted(seen)
