"""Awaiting an LSN ends like awaiting a future of asyncio, and what ends one await leaves every other one alone.

``make pytest-asan`` runs these tests with an extension that notices every use of freed memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import fcntl
import functools
import gc
import os
import socket
import sys
import time
import traceback
import tracemalloc
import weakref
from typing import TYPE_CHECKING, Any

import pytest

import logstore
from kit.patience import PATIENCE_S, wait_until
from kit.stores import SMALL_SEGMENT, break_the_log
from logstore import errors
from logstore._hot import Waiters

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterator
    from pathlib import Path

    from logstore import MessageStore

pytestmark = pytest.mark.on_disk

Open = Any
FAR = 1 << 30  # bytes of the log that no test here appends


@contextlib.contextmanager
def new_loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    try:
        yield loop
    finally:
        loop.close()


def alone(loop: asyncio.AbstractEventLoop) -> Waiters:
    """Waiters of this loop, without a store."""
    done = loop.create_future()
    done.set_result(None)
    return Waiters(loop, done)


def one_turn(loop: asyncio.AbstractEventLoop) -> None:
    loop.call_soon(loop.stop)
    loop.run_forever()


def wait(waiters: Waiters, lsn: int, resume: Callable[[Any], object]) -> Any:
    """Waits as a task does."""
    made: Any = waiters.until(lsn)
    assert next(made.__await__()) is made
    made.add_done_callback(resume, context=contextvars.copy_context())
    return made


# ---- what ends one await leaves the others alone ----


def test_closing_a_coroutine_that_waits_ends_no_other_wait(store: MessageStore) -> None:
    queue = store.declare_queue("q")

    async def main() -> None:
        others = [asyncio.ensure_future(store.durable(store.next_lsn + 1)) for _ in range(3)]
        await asyncio.sleep(0)
        coro = store.durable(store.next_lsn + FAR)
        coro.send(None)
        coro.close()
        with pytest.raises(KeyError):
            again = store.durable(store.next_lsn + FAR)
            again.send(None)
            again.throw(KeyError())
        store.publish(queue, b"x")
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*others)
            store.publish(queue, b"y", wait=False)
            await store.durable(store.next_lsn)

    asyncio.run(main())


def test_a_coroutine_that_waits_and_is_collected_ends_no_other_wait(store: MessageStore) -> None:
    queue = store.declare_queue("q")

    async def main() -> None:
        others = [asyncio.ensure_future(store.durable(store.next_lsn + 1)) for _ in range(3)]
        await asyncio.sleep(0)
        coro: Any = store.durable(store.next_lsn + FAR)
        coro.send(None)
        cycle = [coro]
        cycle.append(cycle)
        del coro, cycle
        gc.collect()
        store.publish(queue, b"x")
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*others)

    asyncio.run(main())


def test_a_coroutine_that_is_closed_inside_a_task_loses_no_other_waiter(store: MessageStore) -> None:
    queue = store.declare_queue("q")

    class Both:
        def __init__(self, first: Any) -> None:
            self.first = first

        def __await__(self) -> Iterator[Any]:
            self.first.send(None)  # it waits, and is given up before the task sees that
            self.first.close()
            yield from store.durable(store.next_lsn).__await__()

    async def both() -> None:
        await Both(store.durable(store.next_lsn + FAR))

    async def main() -> None:
        store.publish(queue, b"x", wait=False)
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*(both() for _ in range(3)), *(store.durable(store.next_lsn) for _ in range(3)))

    asyncio.run(main())


def test_an_await_has_nothing_that_ends_a_coroutine() -> None:
    with new_loop() as loop:
        waiter = alone(loop).until(1)
        assert [name for name in ("close", "throw", "send") if hasattr(waiter, name)] == []
        with pytest.raises(TypeError):
            type(waiter)()


# ---- as asyncio's own future ----


async def cancelled(begin: Callable[[], Awaitable[Any]]) -> object:
    task = asyncio.ensure_future(begin())
    await asyncio.sleep(0)
    answer = task.cancel("given up")
    done = await asyncio.gather(task, return_exceptions=True)
    return answer, task.cancelled(), [(type(each), each.args) for each in done if isinstance(each, BaseException)]


async def uncancelled(begin: Callable[[], Awaitable[Any]]) -> object:
    seen: list[object] = []

    async def inner() -> None:
        try:
            await begin()
        except asyncio.CancelledError as problem:
            seen.append(problem.args)

    task = asyncio.ensure_future(inner())
    await asyncio.sleep(0)
    seen += [task.cancel("given up"), task.uncancel()]
    await task
    return seen, task.cancelled()


async def cancelled_twice(begin: Callable[[], Awaitable[Any]]) -> object:
    seen: list[object] = []

    async def inner() -> None:
        for _ in range(2):
            try:
                await begin()
            except asyncio.CancelledError as problem:
                seen.append(problem.args)

    task = asyncio.ensure_future(inner())
    await asyncio.sleep(0)
    seen += [task.cancel("first"), task.cancel("second")]
    for _ in range(3):
        await asyncio.sleep(0)
    seen += [task.done(), task.cancelling(), task.cancel("third")]
    await asyncio.wait([task])
    return seen, task.cancelled()


async def cancelled_before_it_runs(begin: Callable[[], Awaitable[Any]]) -> object:
    async def inner() -> None:
        with pytest.raises(asyncio.CancelledError):
            await asyncio.sleep(0)
        await begin()

    task = asyncio.ensure_future(inner())
    await asyncio.sleep(0)
    task.cancel()
    task.cancel()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    done = task.done()
    task.cancel()
    await asyncio.wait([task])
    return done, task.cancelled()


async def cancels_itself(begin: Callable[[], Awaitable[Any]]) -> object:
    async def inner() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel("by itself")
        await begin()

    done = await asyncio.gather(asyncio.ensure_future(inner()), return_exceptions=True)
    return [(type(each), each.args) for each in done if isinstance(each, BaseException)]


async def timed_out(begin: Callable[[], Awaitable[Any]]) -> object:
    found: list[object] = []
    for _ in range(2):
        try:
            async with asyncio.timeout(0.001):
                await begin()
        except TimeoutError as problem:
            found.append(type(problem.__cause__))
    task = asyncio.current_task()
    assert task is not None
    return found, task.cancelling()


async def waited_for(begin: Callable[[], Awaitable[Any]]) -> object:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(begin(), 0.001)
    task = asyncio.ensure_future(asyncio.wait_for(begin(), PATIENCE_S))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel("given up")
    await asyncio.wait([task])
    return task.cancelled()


async def grouped(begin: Callable[[], Awaitable[Any]]) -> object:
    async def wait() -> None:
        await begin()

    async def fail() -> None:
        await asyncio.sleep(0)
        raise KeyError

    tasks: list[asyncio.Task[None]] = []
    with pytest.raises(ExceptionGroup) as caught:
        async with asyncio.TaskGroup() as group:
            tasks += [group.create_task(wait()), group.create_task(fail()), group.create_task(wait())]
    return [task.cancelled() for task in tasks], len(caught.value.exceptions)


async def gathered(begin: Callable[[], Awaitable[Any]]) -> object:
    both = asyncio.gather(begin(), begin())
    await asyncio.sleep(0)
    both.cancel()
    with pytest.raises(asyncio.CancelledError):
        await both
    return both.cancelled()


async def shielded(begin: Callable[[], Awaitable[Any]]) -> object:
    inner = asyncio.ensure_future(begin())
    outer = asyncio.shield(inner)
    await asyncio.sleep(0)
    outer.cancel()
    with pytest.raises(asyncio.CancelledError):
        await outer
    left = inner.done()
    inner.cancel()
    await asyncio.wait([inner])
    return left, inner.cancelled()


CASES = (
    cancelled,
    uncancelled,
    cancelled_twice,
    cancelled_before_it_runs,
    cancels_itself,
    timed_out,
    waited_for,
    grouped,
    gathered,
    shielded,
)


def eager(loop: asyncio.AbstractEventLoop, coro: Any, **more: Any) -> Any:
    return asyncio.Task(coro, loop=loop, eager_start=True, **more)  # type: ignore[call-arg] # from 3.12 on


FACTORIES = {
    "in C": lambda loop, coro, **more: asyncio.Task(coro, loop=loop, **more),
    "in Python": lambda loop, coro, **more: asyncio.tasks._PyTask(coro, loop=loop, **more),  # type: ignore[attr-defined]
    **({"eager": eager} if sys.version_info >= (3, 12) else {}),
}


@pytest.mark.parametrize("factory", FACTORIES)
@pytest.mark.parametrize("case", CASES)
def test_cancelling_an_await_does_what_it_does_to_a_future(
    store: MessageStore, case: Callable[[Callable[[], Awaitable[Any]]], Coroutine[Any, Any, object]], factory: str
) -> None:
    async def of_store() -> None:
        await store.durable(store.next_lsn + FAR)

    async def of_asyncio() -> None:
        await asyncio.get_running_loop().create_future()

    async def main() -> None:
        asyncio.get_running_loop().set_task_factory(FACTORIES[factory])  # type: ignore[arg-type]
        async with asyncio.timeout(PATIENCE_S):
            expected = await case(of_asyncio)
            assert await case(of_store) == expected

    asyncio.run(main())


def test_a_task_that_is_cancelled_when_its_lsn_is_durable_has_waited_in_full(store: MessageStore) -> None:
    queue = store.declare_queue("q")

    async def main() -> None:
        task = asyncio.ensure_future(store.durable(store.next_lsn + 1))
        await asyncio.sleep(0)
        store.publish(queue, b"x")
        task.cancel()  # before the loop has seen the group commit
        await asyncio.wait([task])
        assert task.cancelled()
        await store.durable(store.next_lsn)

    asyncio.run(main())


def test_a_task_may_cancel_one_that_the_same_group_commit_resumes() -> None:
    with new_loop() as loop:
        waiters = alone(loop)
        resumed: list[str] = []
        made: list[Any] = []

        def first(_: object) -> None:
            resumed.append("first")
            assert made[1].cancel("given up")

        def second(future: Any) -> None:
            with pytest.raises(asyncio.CancelledError, match="given up"):
                future.result()
            resumed.append("second")

        made += [wait(waiters, 1, first), wait(waiters, 2, second)]
        waiters._wake(5)
        assert resumed == ["first"]
        one_turn(loop)
        assert resumed == ["first", "second"]
        assert not made[0].cancel()
        assert not made[1].cancel()


def test_cancelling_one_of_ten_thousand_costs_as_much_as_one_of_ten() -> None:
    with new_loop() as loop:
        seconds = []
        for count in (10, 10_000):
            best = float("inf")
            for _ in range(5):
                waiters = alone(loop)
                made = [wait(waiters, 1, print) for _ in range(count)]
                begin = time.process_time()
                for each in made[::2]:
                    each.cancel()
                best = min(best, (time.process_time() - begin) / (count / 2))
                loop._ready.clear()  # type: ignore[attr-defined] # nobody is resumed
            seconds.append(best)
        assert seconds[1] < 10 * seconds[0]


# ---- the list ----


def test_waiters_are_resumed_by_lsn_then_by_arrival_whatever_was_cancelled_between() -> None:
    with new_loop() as loop:
        waiters = alone(loop)
        resumed: list[tuple[int, int]] = []
        made = []
        for n in range(1000):
            lsn = n * 7919 % 100 + 1
            made.append(wait(waiters, lsn, functools.partial(lambda key, _: resumed.append(key), (lsn, n))))
        expected = sorted((n * 7919 % 100 + 1, n) for n in range(1000) if n % 3 == 0)
        for n, each in enumerate(made):
            if n % 3:
                each.cancel()
        loop._ready.clear()  # type: ignore[attr-defined] # the cancelled ones
        for end in range(0, 101, 10):
            waiters._wake(end)
            assert resumed == [key for key in expected if key[0] <= end]


def test_a_cancelled_wait_keeps_nothing_of_its_task(store: MessageStore) -> None:
    class Kept:
        pass

    async def wait(kept: Kept) -> None:
        assert kept
        await store.durable(store.next_lsn + FAR)

    async def main() -> None:
        kept = Kept()
        task = asyncio.ensure_future(wait(kept))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        left = weakref.ref(kept)
        del kept, task
        gc.collect()
        assert left() is None

    asyncio.run(main())


def test_only_a_task_can_wait_and_once() -> None:
    with new_loop() as loop:
        waiters = alone(loop)
        for wrong in (-1, 1 << 64):
            with pytest.raises(OverflowError):
                waiters.until(wrong)
            with pytest.raises(OverflowError):
                waiters._wake(wrong)
        waiter: Any = waiters.until(1)
        context = contextvars.copy_context()
        with pytest.raises(TypeError):
            waiter.add_done_callback(print)
        with pytest.raises(TypeError):
            waiter.add_done_callback(print, context=None)
        assert not waiter.cancel()
        assert waiter.get_loop() is loop
        waiter.add_done_callback(print, context=context)
        with pytest.raises(RuntimeError, match="an object of its own"):
            waiter.add_done_callback(print, context=context)


def test_a_task_that_begins_to_wait_too_late_is_resumed_in_the_next_turn() -> None:
    with new_loop() as loop:
        waiters = alone(loop)
        resumed: list[int] = []
        reached, failed = waiters.until(1), waiters.until(2)
        waiters.reported_lsn = 1
        reached.add_done_callback(lambda _: resumed.append(1), context=contextvars.copy_context())
        waiters.failed = KeyError
        failed.add_done_callback(lambda _: resumed.append(2), context=contextvars.copy_context())
        one_turn(loop)
        assert resumed == [1, 2]


def test_waiters_without_a_loop_refuse_every_use() -> None:
    waiters = Waiters.__new__(Waiters)
    for call in (lambda: waiters.until(1), lambda: waiters._wake(1)):
        with pytest.raises(RuntimeError, match="__init__"):
            call()
    with pytest.raises(AttributeError):
        _ = waiters.loop


def test_a_task_whose_cancelling_fails_waits_on() -> None:
    class Refuses(asyncio.SelectorEventLoop):
        refuses = False

        def create_future(self) -> Any:
            if self.refuses:
                raise KeyboardInterrupt
            return super().create_future()

    loop = Refuses()
    waiters = alone(loop)
    resumed: list[int] = []
    made = [wait(waiters, n, functools.partial(lambda n, _: resumed.append(n), n)) for n in (1, 2, 3)]
    loop.refuses = True
    with pytest.raises(KeyboardInterrupt):
        made[1].cancel()
    waiters._wake(5)
    assert resumed == [1, 2, 3]
    loop.close()


# ---- descriptors ----


def pending(store: MessageStore) -> asyncio.AbstractEventLoop:
    """A loop that was closed while a task of it waits."""
    loop = asyncio.new_event_loop()

    async def main() -> None:
        asyncio.ensure_future(store.durable(store.next_lsn + FAR))  # noqa: RUF006 - the store keeps it
        await asyncio.sleep(0.01)

    loop.run_until_complete(main())
    loop.close()
    return loop


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("first", ["the store", "the loop"])
def test_a_loop_that_is_closed_with_a_waiter_and_then_collected_uses_nothing_freed(tmp_path: Path, first: str) -> None:
    store = logstore.open(tmp_path / "store", segment_size=SMALL_SEGMENT)
    loop = pending(store)
    if first == "the store":
        store.close()
        del store
        gc.collect()
    del loop
    gc.collect()
    if first == "the loop":
        store.close()
        del store
        gc.collect()
    with logstore.open(tmp_path / "store") as again:
        again.publish(again.declare_queue("q"), b"x")


def test_the_next_loop_may_get_the_number_of_a_closed_loop_s_eventfd_and_keeps_it(store: MessageStore) -> None:
    queue = store.declare_queue("q")

    async def once() -> None:
        store.publish(queue, b"x", wait=False)
        async with asyncio.timeout(PATIENCE_S):
            await store.durable(store.next_lsn)

    async def main() -> bool:
        await once()
        mine = store._completions.loops.get(asyncio.get_running_loop())
        if mine is None:  # it was durable before the loop had to wait
            return False
        has_it = mine._fd == number
        gc.collect()  # of the task that waited in the closed loop
        await once()
        return has_it

    for _ in range(100):  # a thread of the store may take the number first
        number = store._completions.loops[pending(store)]._fd
        if asyncio.run(main()):
            return
    pytest.fail("no loop got the number")


def eventfds() -> set[str]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}") == "anon_inode:[eventfd]":
                found.add(name)
    return found


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_nothing_is_read_from_a_socket_with_the_number_of_an_eventfd_that_was_closed(store: MessageStore) -> None:
    queue = store.declare_queue("q")
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.sendall(b"8 bytes!")

    async def once() -> None:
        store.publish(queue, b"x", wait=False)
        async with asyncio.timeout(PATIENCE_S):
            await store.durable(store.next_lsn)

    async def main() -> bool:
        os.close(low)  # for the eventfd of this loop
        await once()
        mine = fcntl.fcntl(ours, fcntl.F_DUPFD_CLOEXEC, number)
        gc.collect()  # of the task that waited in the closed loop
        if mine == number:
            assert os.read(mine, 100) == b"8 bytes!"
        await once()
        os.close(mine)  # it is still the socket's
        return mine == number

    for _ in range(100):  # a thread of the store may take the number first
        low = os.open("/dev/null", os.O_RDONLY)
        number = store._completions.loops[pending(store)]._fd
        if asyncio.run(main()):
            break
    else:
        pytest.fail("the socket never got the number")
    ours.close()
    theirs.close()


def test_an_eventfd_is_closed_with_the_store_of_a_loop_that_was_closed_before(open_store: Open) -> None:
    store = open_store()
    loop = pending(store)
    mine = store._completions.loops[loop]
    number = str(mine._fd)
    assert number in eventfds()
    store.close()
    assert mine._fd == -1
    assert number not in eventfds()


def test_a_loop_that_cannot_watch_the_store_keeps_no_eventfd(store: MessageStore) -> None:
    class Refuses(asyncio.SelectorEventLoop):
        def add_reader(self, *_: object) -> None:
            raise NotImplementedError

    async def main() -> None:
        with pytest.raises(NotImplementedError):
            await store.durable(store.next_lsn + FAR)

    loop = Refuses()
    loop.run_until_complete(main())
    before = eventfds()
    for _ in range(100):  # more than there are eventfds
        loop.run_until_complete(main())
    assert eventfds() == before
    loop.close()


# ---- a forked child ----


def in_child(work: Callable[[], object]) -> int:
    """The status of a forked child that does this work: 0 if nothing is raised."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException:  # noqa: BLE001 - shown by the status
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(status)
    return os.waitpid(child, 0)[1]


def test_a_forked_child_may_neither_wait_nor_listen(store: MessageStore) -> None:
    asyncio.run(store.durable(store.durable_lsn))
    store.on_durable(lambda _: None)
    store.on_release(lambda _: None)

    def work() -> None:
        for call in (
            lambda: asyncio.run(asyncio.wait_for(store.durable(1 << 60), PATIENCE_S)),
            lambda: store.on_durable(print),
            lambda: store.on_release(print),
            lambda: store.on_durable(print, loop=asyncio.new_event_loop()),
        ):
            with pytest.raises(errors.StoreForked):
                call()

    assert in_child(work) == 0


def test_a_fork_inside_a_loop_leaves_the_parent_s_waiters_their_eventfd(store: MessageStore) -> None:
    queue = store.declare_queue("q")

    async def main() -> None:
        waiting = [asyncio.ensure_future(store.durable(store.next_lsn + 1)) for _ in range(3)]
        await asyncio.sleep(0)

        def work() -> None:
            assert store._completions.loops == {}
            coro = store.durable(1 << 60)
            with pytest.raises(errors.StoreForked):
                coro.send(None)
            resumed = store.durable(1 << 60)
            with pytest.raises(errors.StoreForked):
                resumed.send(None)
            gc.collect()

        assert in_child(work) == 0
        store.publish(queue, b"x")
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*waiting)

    asyncio.run(main())


def test_a_child_that_goes_on_with_its_parent_s_loop_ends_the_waits_that_it_inherited(store: MessageStore) -> None:
    loop = asyncio.new_event_loop()
    waiting = loop.create_task(store.durable(store.next_lsn + FAR))
    loop.run_until_complete(asyncio.sleep(0.01))

    def work() -> None:
        with pytest.raises(errors.StoreForked):
            loop.run_until_complete(waiting)

    assert in_child(work) == 0
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(waiting)
    loop.close()


# ---- errors that are raised often ----


class Kept:
    """What a caller has in a local variable."""


@pytest.mark.parametrize("how", ["closed", "failed"])
def test_a_thousand_errors_of_waiting_keep_nothing_of_their_callers(store: MessageStore, how: str) -> None:
    store.publish(store.declare_queue("q"), b"x")
    kind = errors.StoreClosed if how == "closed" else errors.OutcomeUnknown
    left: list[weakref.ref[Kept]] = []
    lengths: set[int] = set()

    async def ask() -> None:
        kept = Kept()
        left.append(weakref.ref(kept))
        try:
            await store.durable(store.durable_lsn + FAR)
        except kind as problem:
            lengths.add(sum(1 for _ in traceback.walk_tb(problem.__traceback__)))

    async def main() -> None:
        waiting = asyncio.ensure_future(ask())
        await asyncio.sleep(0.01)
        if how == "closed":
            await asyncio.to_thread(store.close)
        else:
            break_the_log(store)
            store.publish("q", b"x", wait=False)
        async with asyncio.timeout(PATIENCE_S):
            await waiting
        lengths.clear()
        for _ in range(100):
            await ask()
        before = memory()
        for _ in range(1000):
            await ask()
        left.clear()
        assert memory() - before < 100_000  # bytes; each kept frame has several hundred
        await ask()

    def memory() -> int:
        left.clear()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        asyncio.run(main())
    finally:
        tracemalloc.stop()
    assert len(lengths) == 1
    gc.collect()
    assert [each() for each in left] == [None]


@pytest.mark.parametrize("in_loop", [True, False])
def test_every_callback_gets_an_exception_of_its_own(store: MessageStore, in_loop: bool) -> None:
    store.declare_queue("q")
    heard: list[BaseException] = []

    def callback(report: object) -> None:
        if isinstance(report, Exception):
            heard.append(report)
            raise report

    async def main() -> None:
        loop = asyncio.get_running_loop() if in_loop else None
        for _ in range(3):
            store.on_durable(callback, loop=loop)
        waiting = asyncio.ensure_future(store.durable(store.next_lsn + FAR))
        await asyncio.sleep(0)
        break_the_log(store)
        store.publish("q", b"x", wait=False)
        with pytest.raises(errors.OutcomeUnknown):
            await waiting

    asyncio.run(main())
    wait_until(lambda: len(heard) == 3)
    if not in_loop:
        store.on_durable(callback)
        assert len(heard) == 4
    assert len({id(each) for each in heard}) == len(heard)
    assert len({sum(1 for _ in traceback.walk_tb(each.__traceback__)) for each in heard}) == 1
