"""The package's own threads, with the worst exceptions: the exception that ends a thread is logged and reported, and no
caller waits forever.
"""

from __future__ import annotations

import ast
import asyncio
import gc
import logging
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import logstore
from kit.patience import wait_until
from logstore import MessageStore, errors
from logstore.bench import watch as bench_watch
from logstore.broker.catalog_changes import CatalogChanges
from logstore.core import threads
from logstore.spark import export_job as spark_export
from logstore.store import completions, releases
from logstore.store.overdue import Overdue
from logstore.store.scrub import Scrub
from logstore.terminal.stopping import Stopping

BEYOND = (SystemExit, GeneratorExit, KeyboardInterrupt, asyncio.CancelledError)  # not subclasses of Exception
WORST = (*BEYOND, MemoryError, errors.StoreError)

worst_of_all = pytest.mark.parametrize("worst", WORST)


@pytest.fixture
def thrower(worst: type[BaseException]) -> Callable[..., Any]:
    def throw(*_: object, **__: object) -> Any:
        raise worst("planted")

    return throw


def logged(caplog: pytest.LogCaptureFixture, name: str) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno == logging.ERROR and f"thread {name} has ended" in record.getMessage()
    ]


def test_every_thread_of_the_package_is_started_in_the_one_way() -> None:
    names = ("threading.Thread", "Thread", "threading.Timer", "Timer")
    bare = [
        f"{file.name}:{node.lineno}"
        for file in sorted(Path(logstore.__file__).parent.rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in names
    ]
    assert bare == []


@worst_of_all
def test_the_exception_that_ends_a_thread_is_logged_with_its_name_and_kept(
    worst: type[BaseException], thrower: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    thread = threads.start("logstore-test", thrower, 1)
    thread.join(60)
    assert thread.failure is not None
    assert worst.__name__ in thread.failure
    assert "planted" in thread.failure
    assert logged(caplog, "logstore-test")


@worst_of_all
def test_a_log_that_cannot_be_written_hides_no_end_of_a_thread(thrower: Callable[..., Any], worst: type) -> None:
    handler = logging.Handler()
    handler.emit = thrower  # type: ignore[method-assign]
    logging.getLogger("logstore").addHandler(handler)
    try:
        thread = threads.start("logstore-test", thrower)
        thread.join(60)
    finally:
        logging.getLogger("logstore").removeHandler(handler)
    assert worst.__name__ in str(thread.failure)


def test_a_thread_that_did_its_work_has_not_failed() -> None:
    done: list[int] = []
    thread = threads.start("logstore-test", done.append, 1)
    thread.join(60)
    assert (done, thread.failure) == ([1], None)


# ---- The store's


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[..., MessageStore]]:
    made: list[MessageStore] = []

    def make(**options: Any) -> MessageStore:
        made.append(logstore.open(tmp_path / "store", **options))
        return made[-1]

    yield make
    for store in made:
        store.close()


def failed(store: MessageStore) -> list[str]:
    return [text.partition(":")[0] for text in store.stats()["threads_failed"]]


@pytest.mark.parametrize("worst", [*BEYOND, MemoryError])
@pytest.mark.parametrize(
    ("kind", "method", "name", "options"),
    [
        (Overdue, "_roll_back_overdue", "logstore-overdue", {"prepared_timeout": 0.01}),
        (Scrub, "_round", "logstore-scrub", {"scrub_rate": 1 << 30}),
    ],
)
def test_the_stores_stats_name_a_thread_that_has_ended(
    worst: type[BaseException],
    kind: type,
    method: str,
    name: str,
    options: dict[str, Any],
    thrower: Callable[..., Any],
    opened: Callable[..., MessageStore],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(kind, method, thrower)
    store = opened(**options)
    wait_until(lambda: failed(store))
    assert failed(store) == [name]
    assert worst.__name__ in store.stats()["threads_failed"][0]
    wait_until(lambda: logged(caplog, name))
    store.publish(store.declare_queue("q"), b"goes on")


@pytest.mark.parametrize(
    ("kind", "method", "options"),
    [(Overdue, "_roll_back_overdue", {"prepared_timeout": 0.01}), (Scrub, "_round", {"scrub_rate": 1 << 30})],
)
def test_a_store_error_ends_no_thread_of_the_store(
    kind: type,
    method: str,
    options: dict[str, Any],
    opened: Callable[..., MessageStore],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[object] = []

    def refuse(*_: object) -> None:
        calls.append(None)
        raise errors.StoreError("planted")

    monkeypatch.setattr(kind, method, refuse)
    monkeypatch.setattr("logstore.store.scrub.ROUND_S_MIN", 0.001)
    store = opened(**options)
    wait_until(lambda: len(calls) >= 3)
    assert failed(store) == []


@worst_of_all
def test_a_callback_after_the_end_of_the_thread_that_calls_them_gets_a_new_one(
    worst: type[BaseException],
    thrower: Callable[..., Any],
    opened: Callable[..., MessageStore],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = opened()
    queue = store.declare_queue("q")
    heard: list[list[Any]] = [[], []]
    assert failed(store) == []
    with monkeypatch.context() as patch:
        patch.setattr(completions, "call_all", thrower)
        store.on_durable(heard[0].append)
        store.publish(queue, b"x")
        wait_until(lambda: failed(store))
    assert failed(store) == ["logstore-completions"]
    assert worst.__name__ in store.stats()["threads_failed"][0]
    store.on_durable(heard[1].append)
    store.publish(queue, b"x")
    wait_until(lambda: all(one and one[-1] >= store.durable_lsn for one in heard))
    assert failed(store) == []


@worst_of_all
def test_a_listener_starts_a_new_release_thread_after_the_old_one_has_ended(
    worst: type[BaseException],
    thrower: Callable[..., Any],
    opened: Callable[..., MessageStore],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = opened()
    queue = store.declare_queue("q")
    message = store.publish(queue, b"x")
    heard: list[list[Any]] = [[], []]

    def abandon() -> None:
        store.dequeue(message, queue, store.begin())
        gc.collect()

    with monkeypatch.context() as patch:
        patch.setattr(releases, "call_all", thrower)
        store.on_release(heard[0].append)
        abandon()
        wait_until(lambda: failed(store))
    assert failed(store) == ["logstore-releases"]
    assert worst.__name__ in store.stats()["threads_failed"][0]
    store.on_release(heard[1].append)
    abandon()
    wait_until(lambda: heard == [[queue], [queue]])
    assert failed(store) == []


# ---- Other threads


@worst_of_all
def test_a_change_of_the_catalog_answers_after_any_exception_and_the_loop_continues(
    worst: type[BaseException], thrower: Callable[..., Any]
) -> None:
    async def main() -> int:
        changes = CatalogChanges(asyncio.get_running_loop())
        expected = errors.CatalogError if worst in BEYOND else worst
        async with asyncio.timeout(60):
            with pytest.raises(expected) as caught:
                await changes.do(thrower)
        assert worst.__name__ in f"{caught.value!r}"
        return await changes.do(lambda: 1)

    assert asyncio.run(main()) == 1


def test_a_change_of_the_catalog_that_raises_stop_iteration_leaves_no_caller_waiting() -> None:
    async def main() -> None:
        changes = CatalogChanges(asyncio.get_running_loop())
        async with asyncio.timeout(60):
            with pytest.raises(errors.CatalogError, match="StopIteration"):
                await changes.do(lambda: next(iter(())))

    asyncio.run(main())


@worst_of_all
def test_a_watch_whose_thread_has_ended_says_so_and_hangs_nowhere(
    worst: type[BaseException], thrower: Callable[..., Any], tmp_path: Path
) -> None:
    class Broken(list[Any]):
        append = thrower

    watch = bench_watch.Watch(tmp_path, 0.001)
    watch.samples = Broken()
    with pytest.raises(RuntimeError, match=worst.__name__), watch:
        pass


@worst_of_all
def test_an_export_whose_hold_cannot_be_renewed_ends_all_the_same(
    worst: type[BaseException],
    thrower: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Held:
        renew = staticmethod(thrower)
        released = 0

        def release(self) -> None:
            self.released += 1

    class Query:
        awaitTermination = staticmethod(thrower)  # noqa: N815 - Spark's name

    monkeypatch.setattr(spark_export, "RENEWED_EVERY_S", 0.001)
    held: Any = Held()
    noticed = 0 if worst is errors.StoreError else 1  # a StoreError is expected: the task reports the missing part
    with spark_export._kept_alive(held):
        wait_until(lambda: noticed == 0 or logged(caplog, "logstore-export-hold"))
    query: Any = Query()
    threads.start("logstore-export-hold", spark_export._keep_while, query, held).join(60)
    assert held.released == 1
    assert len(logged(caplog, "logstore-export-hold")) == 2 * noticed


@worst_of_all
def test_a_thread_for_sigterm_that_has_ended_leaves_signals_as_they_were(
    thrower: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, worst: type
) -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    monkeypatch.setattr(signal, "sigwait", thrower)
    with Stopping(60) as stopping:
        stopping._thread.join(60)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
    assert worst.__name__ in logged(caplog, "logstore-stopping")[0]
