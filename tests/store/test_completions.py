"""Notification that an LSN has become durable, or never will: callbacks, awaitables, and a failed log."""

from __future__ import annotations

import asyncio
import contextvars
import errno
import gc
import socket
import threading
import weakref
from typing import TYPE_CHECKING, Any

import pytest

from kit.patience import PATIENCE_S, wait_until
from kit.simulated import Disk
from kit.stores import break_the_log
from logstore import errors
from logstore.store.completions import Completions

if TYPE_CHECKING:
    from pathlib import Path

    from logstore import MessageStore

pytestmark = pytest.mark.on_disk

Open = Any


def test_a_callback_hears_of_every_group_with_its_durable_lsn_and_stays(store: MessageStore) -> None:
    queue = store.declare_queue("q")
    heard: list[Any] = []
    threads: set[threading.Thread] = set()

    def callback(what: Any) -> None:
        heard.append(what)
        threads.add(threading.current_thread())

    store.on_durable(callback)
    for number in range(20):
        store.publish(queue, b"%d" % number)
        wanted = store.next_lsn
        wait_until(lambda: heard and heard[-1] >= wanted, "the callback was not called")  # noqa: B023 - used at once
    assert heard == sorted(set(heard))
    assert all(isinstance(lsn, int) for lsn in heard)
    assert threading.main_thread() not in threads
    store.close()
    assert heard[-1] == store.durable_lsn


def test_several_callbacks_are_called_even_if_one_raises(store: MessageStore) -> None:
    queue = store.declare_queue("q")
    first: list[Any] = []
    second: list[Any] = []

    def broken(what: Any) -> None:
        first.append(what)
        raise RuntimeError("not the store's fault")

    store.on_durable(broken)
    store.on_durable(second.append)
    for _ in range(3):
        store.publish(queue, b"x")
        wait_until(lambda: second and second[-1] >= store.next_lsn, "the second callback was not called")
    assert first == second


def test_a_callback_may_use_the_store(store: MessageStore) -> None:
    queue = store.declare_queue("q")
    more = iter([b"second", b"third"])

    def callback(_: Any) -> None:
        for content in more:
            store.publish(queue, content, wait=False)
            return

    store.on_durable(callback)
    store.publish(queue, b"first")
    wait_until(lambda: queue.depth == 3, "the callback did not publish")


def test_the_last_append_becomes_durable_even_without_another_waiter(store: MessageStore) -> None:
    """An operation in a transaction requests no flush; reading ``next_lsn`` does, and commit listeners are notified."""
    queue = store.declare_queue("q")
    heard: list[Any] = []
    store.on_durable(heard.append)
    with store.transaction() as transaction:
        store.publish(queue, b"x", transaction=transaction)
        wanted = store.next_lsn
        wait_until(lambda: heard and heard[-1] >= wanted, "nobody flushed it")


def test_a_callback_in_a_loop_is_called_there_and_hears_of_the_failure_once(open_store: Open) -> None:
    store = open_store()
    queue = store.declare_queue("q")
    heard: list[Any] = []
    threads: set[threading.Thread] = set()

    def callback(what: Any) -> None:
        heard.append(what)
        threads.add(threading.current_thread())

    async def main() -> None:
        store.on_durable(callback, loop=asyncio.get_running_loop())
        async with asyncio.timeout(PATIENCE_S):
            for number in range(5):
                store.publish(queue, b"%d" % number, wait=False)
                await store.durable(store.next_lsn)
            break_the_log(store)
            store.publish(queue, b"lost", wait=False)
            with pytest.raises(errors.OutcomeUnknown):
                await store.durable(store.next_lsn)
            with pytest.raises(errors.OutcomeUnknown):
                await store.durable(store.next_lsn)

    asyncio.run(main())
    *lsns, failure = heard
    assert lsns == sorted(set(lsns))
    assert lsns[-1] == store.durable_lsn
    assert isinstance(failure, errors.OutcomeUnknown)
    assert threads == {threading.main_thread()}


def test_ended_loops_leave_room_for_new_ones(store: MessageStore) -> None:
    queue = store.declare_queue("q")

    async def once() -> None:
        store.publish(queue, b"x", wait=False)
        async with asyncio.timeout(PATIENCE_S):
            await store.durable(store.next_lsn)

    for _ in range(100):
        asyncio.run(once())
    assert queue.depth == 100


def test_the_65th_open_event_loop_is_refused_until_another_one_is_closed(store: MessageStore) -> None:
    loops = [asyncio.new_event_loop() for _ in range(66)]

    async def listen() -> None:  # to await an LSN that is already durable takes none of the 64
        store.on_durable(lambda _: None, loop=asyncio.get_running_loop())

    try:
        for loop in loops[:64]:
            loop.run_until_complete(listen())
        with pytest.raises(errors.OptionError, match="64 event loops or threads wait .*; close one, or wait in fewer"):
            loops[64].run_until_complete(listen())
        loops[0].run_until_complete(listen())
        loops[1].close()
        loops[65].run_until_complete(listen())
    finally:
        for loop in loops:
            loop.close()


def test_awaiting_an_lsn_returns_once_it_is_durable(store: MessageStore) -> None:
    queue = store.declare_queue("q")

    async def publish(name: int) -> None:
        for number in range(50):
            key = store.publish(queue, b"%d %d" % (name, number), wait=False)
            ticket = store.next_lsn
            await store.durable(ticket)
            assert store.durable_lsn >= ticket > key

    async def main() -> None:
        await store.durable(0)
        await store.durable(store.durable_lsn)
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*map(publish, range(20)))

    asyncio.run(main())
    assert queue.depth == 1000
    assert store.stats()["syncs"] < 1000  # one sync served many waiters


def test_loops_in_many_threads_wait_side_by_side(store: MessageStore) -> None:
    queue = store.declare_queue("q")
    failures: list[BaseException] = []

    async def main() -> None:
        for _ in range(30):
            store.publish(queue, b"x", wait=False)
            async with asyncio.timeout(PATIENCE_S):
                await store.durable(store.next_lsn)

    def run() -> None:
        try:
            asyncio.run(main())
        except BaseException as problem:  # noqa: BLE001 - shown by the assertion
            failures.append(problem)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert queue.depth == 120


def test_a_cancelled_waiter_or_a_closed_loop_harms_no_other_waiter(store: MessageStore) -> None:
    queue = store.declare_queue("q")

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await store.durable(store.next_lsn + (1 << 30))

    asyncio.run(give_up())
    store.publish(queue, b"x")

    async def wait() -> None:
        store.publish(queue, b"y", wait=False)
        async with asyncio.timeout(PATIENCE_S):
            await store.durable(store.next_lsn)

    asyncio.run(wait())


def test_closing_wakes_every_waiter(store: MessageStore) -> None:
    async def main() -> None:
        waiting = asyncio.ensure_future(store.durable(store.next_lsn + (1 << 30)))
        await asyncio.sleep(0.05)
        await asyncio.to_thread(store.close)
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(errors.StoreClosed):
                await waiting
        with pytest.raises(errors.StoreClosed):
            await store.durable(1 << 60)

    asyncio.run(main())


def test_close_reports_durability_before_it_returns(store: MessageStore) -> None:
    heard: list[Any] = []
    store.on_durable(heard.append)
    queue = store.declare_queue("q")
    store.publish(queue, b"x", wait=False)
    ticket = store.next_lsn
    store.close()
    assert heard[-1] >= ticket


# ---- many tasks of one loop ----

FAR = 1 << 30  # bytes of the log that no test here appends


def test_tasks_are_resumed_in_the_order_of_their_lsns_and_each_in_its_own_context(store: MessageStore) -> None:
    queue = store.declare_queue("q")
    name: contextvars.ContextVar[int] = contextvars.ContextVar("name")
    resumed: list[int] = []

    async def wait(number: int, lsn: int) -> None:
        name.set(number)
        await store.durable(lsn)
        resumed.append(name.get())

    async def main() -> None:
        start = store.next_lsn
        order = [5, 0, 3, 3, 1, 4, 2, 9, 8, 7, 6, *range(10, 100)]
        tasks = [asyncio.ensure_future(wait(number, start + 50 * number)) for number in order]
        await asyncio.sleep(0)
        store.publish(queue, bytes(50 * 100))
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*tasks)

    asyncio.run(main())
    assert resumed == sorted(resumed)
    assert len(resumed) == 101


def test_no_task_waits_for_a_later_commit_than_its_own(store: MessageStore) -> None:
    queue = store.declare_queue("q")

    async def main() -> None:
        far = asyncio.ensure_future(store.durable(store.next_lsn + FAR))
        async with asyncio.timeout(PATIENCE_S):
            for _ in range(100):
                store.publish(queue, b"x", wait=False)
                near = [asyncio.ensure_future(store.durable(store.next_lsn)) for _ in range(3)]
                await asyncio.gather(*near)
        assert not far.done()
        far.cancel()

    asyncio.run(main())


@pytest.mark.parametrize("in_c", [True, False])
def test_a_cancelled_task_ends_without_a_commit_and_no_other_one_does(store: MessageStore, in_c: bool) -> None:
    queue = store.declare_queue("q")

    def make(loop: Any, coro: Any, **more: Any) -> Any:
        return asyncio.Task(coro, loop=loop, **more) if in_c else asyncio.tasks._PyTask(coro, loop=loop, **more)  # type: ignore[attr-defined]

    async def main() -> None:
        asyncio.get_running_loop().set_task_factory(make)
        start = store.next_lsn
        tasks = [asyncio.ensure_future(store.durable(start + 1)) for _ in range(20)]
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel("given up")
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.wait(tasks[::2])
        assert all(task.cancelled() for task in tasks[::2])
        assert not any(task.done() for task in tasks[1::2])
        store.publish(queue, b"x")
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*tasks[1::2])

    asyncio.run(main())


def test_a_task_that_swallows_its_cancellation_can_wait_again(store: MessageStore) -> None:
    queue = store.declare_queue("q")
    cancelled = 0

    async def stubborn(lsn: int) -> None:
        nonlocal cancelled
        while True:
            try:
                return await store.durable(lsn)
            except asyncio.CancelledError:
                cancelled += 1

    async def main() -> None:
        lsn = store.next_lsn + 1
        tasks = [asyncio.ensure_future(stubborn(lsn)) for _ in range(3)]
        await asyncio.sleep(0)
        for number in (0, 1, 0, 0):
            tasks[number].cancel()
            for _ in range(10):
                await asyncio.sleep(0)
        store.publish(queue, b"x")
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*tasks)

    asyncio.run(main())
    assert cancelled == 4


def test_timeouts_end_each_wait_by_itself(store: MessageStore) -> None:
    async def give_up(seconds: float) -> str:
        try:
            async with asyncio.timeout(seconds):
                await store.durable(store.next_lsn + FAR)
        except TimeoutError:
            return "timed out"
        return "durable"

    async def main() -> list[str]:
        return await asyncio.gather(*(give_up(number / 1000) for number in range(50)))

    assert asyncio.run(main()) == ["timed out"] * 50


def test_a_task_that_ends_the_loop_s_run_keeps_no_other_task_from_being_resumed(store: MessageStore) -> None:
    queue = store.declare_queue("q")
    resumed: list[int] = []

    async def wait(number: int, lsn: int) -> None:
        await store.durable(lsn)
        resumed.append(number)
        if number == 1:
            raise KeyboardInterrupt

    async def publish() -> None:
        await asyncio.sleep(0)
        store.publish(queue, b"x")
        await asyncio.sleep(60)

    loop = asyncio.new_event_loop()
    tasks = [loop.create_task(wait(number, store.next_lsn + 1)) for number in range(5)]
    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(publish())
    loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    assert resumed == [0, 1, 2, 3, 4]
    assert [type(task.exception()) for task in tasks] == [type(None), KeyboardInterrupt, *[type(None)] * 3]
    loop.close()


def test_tasks_that_wait_are_freed_with_their_loop(store: MessageStore) -> None:
    class Kept:
        pass

    async def wait(kept: Kept) -> None:
        assert kept
        await store.durable(store.next_lsn + FAR)

    async def main() -> weakref.ref[Kept]:
        kept = Kept()
        asyncio.ensure_future(wait(kept))  # noqa: RUF006 - nobody keeps it
        await asyncio.sleep(0)
        return weakref.ref(kept)

    loop = asyncio.new_event_loop()
    left = loop.run_until_complete(main())
    loop.close()
    assert left() is not None
    del loop
    asyncio.run(main())  # another loop takes the place of the one that was closed
    gc.collect()
    assert left() is None


# ---- a failed log ----


def test_after_a_failed_write_every_caller_gets_the_error_and_no_operation_is_accepted(open_store: Open) -> None:
    store = open_store()
    queue = store.declare_queue("q")
    kept = store.publish(queue, b"kept")
    (held,) = queue.acquire(1)
    transaction = store.begin()
    store.publish(queue, b"pending", transaction=transaction)
    store.force()
    durable = store.durable_lsn
    heard: list[Any] = []
    store.on_durable(heard.append)
    break_the_log(store)
    with pytest.raises(errors.OutcomeUnknown, match="open it again") as caught:
        store.publish(queue, b"who knows")
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == errno.ENOSPC
    wait_until(lambda: heard, "the callback was not called")
    for _ in range(2):
        with pytest.raises(errors.OutcomeUnknown):
            store.force()
        with pytest.raises(errors.OutcomeUnknown):
            asyncio.run(store.durable(store.next_lsn))
        for write in (
            lambda: store.publish(queue, b"x"),
            lambda: store.publish(queue, b"x", wait=False),
            lambda: store.publish_many(queue, [b"x"]),
            lambda: store.dequeue(kept, queue),
            lambda: store.stage(),
            lambda: store.begin(),
            lambda: transaction.commit(),
            held.accept,
            held.reject,
        ):
            with pytest.raises(errors.StorePoisoned, match="open it again"):
                write()
    store.force(durable)
    asyncio.run(store.durable(durable))
    assert store.durable_lsn == durable
    assert queue.depth == 2  # messages in memory can still be listed
    assert len(heard) == 1
    assert isinstance(heard[0], errors.OutcomeUnknown)
    late: list[Any] = []
    store.on_durable(late.append)
    assert [type(what) for what in late] == [errors.OutcomeUnknown]
    store.close()
    again = open_store()
    assert [message.content for message in again.messages("q")] == [b"kept"]


def test_a_waiter_gets_the_error_when_the_log_fails(open_store: Open) -> None:
    store = open_store()
    queue = store.declare_queue("q")

    async def main() -> None:
        waiting = [asyncio.ensure_future(store.durable(store.next_lsn + (1 << 20))) for _ in range(3)]
        await asyncio.sleep(0.05)
        break_the_log(store)
        store.publish(queue, b"x", wait=False)
        async with asyncio.timeout(PATIENCE_S):
            for waiter in waiting:
                with pytest.raises(errors.OutcomeUnknown):
                    await waiter

    asyncio.run(main())


def test_every_waiting_thread_learns_that_its_outcome_is_unknown(tmp_path: Path) -> None:
    disk = Disk()
    store = disk.open(tmp_path / "s")
    queue = store.declare_queue("q")
    told: list[BaseException | None] = []
    started = threading.Barrier(8)

    def publish() -> None:
        started.wait()
        try:
            for _ in range(1000):
                store.publish(queue, b"x")
        except errors.StoreError as problem:
            told.append(problem)
        else:
            told.append(None)

    threads = [threading.Thread(target=publish) for _ in range(8)]
    disk.fail(300, errno.ENOSPC, forever=True)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert not any(thread.is_alive() for thread in threads)
    assert len(told) == 8
    assert all(isinstance(problem, errors.OutcomeUnknown | errors.StorePoisoned) for problem in told)
    assert any(isinstance(problem, errors.OutcomeUnknown) for problem in told)
    store.close()


def test_a_transaction_that_could_not_be_made_durable_is_in_one_state_after_reopening(tmp_path: Path) -> None:
    for nth in (1, 2):  # the write, then the sync
        disk = Disk()
        path = tmp_path / str(nth)
        store = disk.open(path)
        queue = store.declare_queue("q")
        transaction = store.begin()
        store.publish(queue, b"a", transaction=transaction)
        store.publish(queue, b"b", transaction=transaction)
        disk.fail(nth, errno.EIO, forever=True)
        with pytest.raises(errors.OutcomeUnknown):
            transaction.commit()
        disk.fail(0, 0)
        store.close()
        seen = set()
        for _ in range(2):
            store = disk.open(path)
            seen.add(tuple(message.content for message in store.messages("q")))
            store.close()
        assert seen in ({()}, {(b"a", b"b")})


@pytest.mark.parametrize("worst", [SystemExit, GeneratorExit, KeyboardInterrupt, asyncio.CancelledError])
def test_no_exception_of_a_callback_ends_the_thread_that_calls_them(
    worst: type[BaseException], store: MessageStore
) -> None:
    queue = store.declare_queue("q")
    heard: list[Any] = []

    def broken(_: Any) -> None:
        raise worst

    store.on_durable(broken)
    store.on_durable(heard.append)
    for _ in range(3):
        store.publish(queue, b"x")
        wait_until(lambda: heard and heard[-1] >= store.next_lsn, "nobody was called any more")


def test_a_commit_right_after_registration_is_reported_even_if_the_thread_starts_late(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = store.declare_queue("q")
    heard: list[Any] = []
    published = threading.Event()
    really = Completions._run

    def late(self: Completions, *arguments: Any) -> None:
        published.wait(60)
        really(self, *arguments)

    monkeypatch.setattr(Completions, "_run", late)
    store.on_durable(heard.append)
    store.publish(queue, b"x")
    wanted = store.durable_lsn
    published.set()
    wait_until(lambda: heard and heard[-1] >= wanted, "the commit was not told")


def test_a_task_that_waits_while_the_store_has_an_answer_to_send_is_resumed(store: MessageStore) -> None:
    queue = store.declare_queue("q")
    here, there = socket.socketpair()

    async def main() -> None:
        answers = store._answers_of(asyncio.get_running_loop())
        for number in range(50):
            store.publish(queue, b"x", wait=False)
            lsn = store.next_lsn
            data, sent = b"%d" % number, list[int]()
            is_left = answers.answer(lsn, here.fileno(), data, lambda sent=sent: sent.append(answers.answered()))
            await store.durable(lsn)
            assert store.durable_lsn >= lsn
            if is_left and not sent:
                sent.append(answers.answered())
            assert not is_left or sent in ([-1], [len(data)])

    with here, there:
        asyncio.run(main())


def test_answers_follow_one_another_without_being_taken_back_and_each_is_sent_once(store: MessageStore) -> None:
    queue = store.declare_queue("q")
    here, there = socket.socketpair()

    async def main() -> None:
        answers = store._answers_of(asyncio.get_running_loop())
        for number in range(200):
            answer, fd = b"%d" % number, answers.answering_fd
            if fd >= 0:
                is_left = store._publish_answered(queue, b"", b"body", 0, 4, fd, here.fileno(), answer) > 0
            else:
                store.publish(queue, b"body", wait=False)
                is_left = answers.answer(store.next_lsn, here.fileno(), answer, answers.answered)
            if not is_left:  # it was durable at once
                answers.answered()
                here.send(answer)
            assert there.recv(9) == answer
        assert [each.content for each in store.messages(queue)] == [b"body"] * 200

    with here, there:
        asyncio.run(main())


def test_a_loop_with_a_second_callback_hears_of_every_commit(store: MessageStore) -> None:
    here, there = socket.socketpair()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        store.on_durable(lambda _: None, loop=loop)
        answers = store._answers_of(loop)
        store.on_durable(lambda _: None, loop=loop)
        store.publish(store.declare_queue("q"), b"x", wait=False)
        assert not answers.answer(store.next_lsn, here.fileno(), b"x", answers.answered)

    with here, there:
        asyncio.run(main())
