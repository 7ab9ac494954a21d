"""Listeners: how a registered callback ends, and what is left of it. What each event tells is in test_events.py."""

from __future__ import annotations

import asyncio
import functools
import gc
import os
import threading
import weakref
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import pytest
import uvloop

import logstore
from kit.patience import PATIENCE_S, wait_until
from logstore import Listener, MessageStore, errors

if TYPE_CHECKING:
    from collections.abc import Callable

Register = Any  # takes a callback, and perhaps loop and weak


def eventfds() -> int:
    """How many this process has open."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            found += os.readlink(f"/proc/self/fd/{name}") == "anon_inode:[eventfd]"
        except OSError:
            continue
    return found


def of_thread(store: MessageStore, kind: str) -> Callable[..., Listener]:
    """The registering call of this kind."""
    store.declare_queue("q")
    queue = store.queue("q")
    calls: dict[str, Callable[..., Listener]] = {
        "durable": store.on_durable,
        "release": store.on_release,
        "fullness": store.on_fullness,
        "nearly full": functools.partial(store.on_fullness, near=True),
        "arrived": queue.on_arrived,
        "released": queue.on_released,
        "death": store.on_death,
        "in doubt": store.on_in_doubt,
    }
    return calls[kind]


class Heard:
    """An object whose method listens."""

    def __init__(self) -> None:
        self.heard: SimpleQueue[object] = SimpleQueue()

    def listen(self, what: object) -> None:
        self.heard.put(what)


def one_of_each(store: MessageStore) -> None:
    """A group commit, a place that came back, a transaction in doubt and its outcome, a death."""
    store.publish("q", b"x")
    store.queue("q").acquire()[0].release()
    transaction = store.begin(logstore.Xid(1, b"x"))
    transaction.end()
    transaction.prepare()
    transaction.commit()
    store.queue("q").acquire()[0].accept()


OF_ROOM = ("fullness", "nearly full")
KINDS = ["durable", "release", "fullness", "nearly full", "arrived", "released", "death", "in doubt"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_listener_may_be_closed_twice_by_any_thread_and_after_the_store(store: MessageStore, kind: str) -> None:
    listener = of_thread(store, kind)(lambda _: None)
    assert not listener.closed
    threads = [threading.Thread(target=listener.close) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert listener.closed
    listener.close()
    other = of_thread(store, kind)(lambda _: None)
    store.close()
    assert other.closed
    other.close()
    listener.close()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in OF_ROOM])
def test_a_closed_listener_is_not_called_and_the_others_are(store: MessageStore, kind: str) -> None:
    register = of_thread(store, kind)
    closed, kept = Heard(), Heard()
    with register(closed.listen) as listener:
        register(kept.listen)
        one_of_each(store)
        closed.heard.get(timeout=PATIENCE_S)
        kept.heard.get(timeout=PATIENCE_S)
    assert listener.closed
    if kind == "durable":
        store.force()
        kept_of = store.durable_lsn
        wait_until(lambda: store._completions._reported_lsn >= kept_of)
    if kind not in ("durable", "release"):  # the thread has ended the call that it may have begun before the close
        ended = Heard()
        with register(ended.listen):
            one_of_each(store)
            ended.heard.get(timeout=PATIENCE_S)
    while not closed.heard.empty():
        closed.heard.get()
    one_of_each(store)
    store.close()
    assert closed.heard.empty()
    assert not kept.heard.empty()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in OF_ROOM])
def test_callbacks_may_close_themselves_and_each_other(store: MessageStore, kind: str) -> None:
    register = of_thread(store, kind)
    calls: list[str] = []
    listeners: dict[str, Listener] = {}
    heard = Heard()

    def close(mine: str, others: str) -> None:
        calls.append(mine)
        listeners[mine].close()
        listeners[others].close()

    listeners["one"] = register(lambda _: close("one", "two"))
    listeners["two"] = register(lambda _: calls.append("two"))
    listeners["three"] = register(lambda _: close("three", "one"))
    register(heard.listen)
    for _ in range(3):
        one_of_each(store)
        heard.heard.get(timeout=PATIENCE_S)
    store.close()
    assert calls == ["one", "three"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_weak_listener_ends_with_its_object(store: MessageStore, kind: str) -> None:
    register = of_thread(store, kind)
    kept, gone = Heard(), Heard()
    still = register(kept.listen, weak=True)
    ended = register(gone.listen, weak=True)
    known = weakref.ref(gone)
    del gone
    gc.collect()
    assert known() is None
    assert (still.closed, ended.closed) == (False, True)
    if kind not in OF_ROOM:
        one_of_each(store)
        kept.heard.get(timeout=PATIENCE_S)


@pytest.mark.parametrize("kind", ["arrived", "death"])
def test_2000_loops_that_listened_to_events_leave_neither_eventfd_nor_inbox(store: MessageStore, kind: str) -> None:
    register: Register = of_thread(store, kind)
    before = eventfds()
    for _ in range(2000):
        loop = asyncio.SelectorEventLoop()
        listener = register(print, loop=loop)
        loop.close()
        listener.close()
    assert eventfds() == before
    assert store._inboxes._all == {}


@pytest.mark.parametrize("kind", KINDS)
def test_what_cannot_listen_is_refused(store: MessageStore, kind: str) -> None:
    register: Register = of_thread(store, kind)
    with pytest.raises(TypeError, match="callback is a function"):
        register(None)
    for callback in (lambda _: None, print, [].append):
        with pytest.raises(errors.OptionError, match="a method of an object"):
            register(callback, weak=True)
    if kind != "release":
        with pytest.raises(TypeError, match="loop is an asyncio event loop"):
            register(print, loop=3)
    store.close()
    with pytest.raises(errors.StoreClosed):
        register(print)


def test_the_loop_of_another_thread_is_refused(store: MessageStore) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()

        def elsewhere() -> None:
            queue = store.declare_queue("q")
            for register in (store.on_durable, store.on_fullness, store.on_death, queue.on_arrived):
                with pytest.raises(errors.OptionError, match="runs in another thread"):
                    register(print, loop=loop)

        await asyncio.to_thread(elsewhere)

    asyncio.run(main())


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "release"])
def test_a_loop_without_a_listener_has_no_eventfd(store: MessageStore, run: Any, kind: str) -> None:
    register = of_thread(store, kind)

    async def main() -> tuple[int, int, int]:
        loop = asyncio.get_running_loop()
        before = eventfds()
        first, second = register(print, loop=loop), register(print, loop=loop)
        between = eventfds()
        first.close()
        assert eventfds() == between
        second.close()
        await asyncio.sleep(0)
        return before, between, eventfds()

    before, between, after = run(main())
    assert (before, between) == (after, after + 1)


def test_a_listener_that_another_thread_closes_leaves_no_eventfd(store: MessageStore) -> None:
    async def main() -> None:
        before = eventfds()
        listener = store.on_durable(print, loop=asyncio.get_running_loop())
        await asyncio.to_thread(listener.close)
        await asyncio.sleep(0)  # the loop's thread gives it back, as the close has asked it to
        assert eventfds() == before

    asyncio.run(main())


def test_2000_loops_that_listened_leave_neither_eventfd_nor_listener(store: MessageStore) -> None:
    before = eventfds()
    for _ in range(2000):
        loop = asyncio.SelectorEventLoop()
        listener = store.on_durable(print, loop=loop)
        loop.close()
        listener.close()
    assert eventfds() == before
    assert store._completions.loops == {}


def test_a_loop_that_no_longer_waits_is_left_alone_after_a_few_commits(store: MessageStore) -> None:
    store.declare_queue("q")

    async def main() -> None:
        before = eventfds()
        first = store.on_durable(lambda _: None, loop=asyncio.get_running_loop())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(store.durable(store.next_lsn + (1 << 30)), 0.001)
        mine = store._completions.loops[asyncio.get_running_loop()]
        mine.callbacks._all.clear()  # as the end of a weak callback's object does, which calls nothing
        assert first is not None
        async with asyncio.timeout(PATIENCE_S):
            while store._completions.loops:
                store.publish("q", b"x")
                await asyncio.sleep(0)
        assert eventfds() == before

    asyncio.run(main())


def test_the_thread_leaves_the_group_commits_alone_once_nobody_listens(store: MessageStore) -> None:
    store.declare_queue("q")
    before = eventfds()
    listeners = [store.on_durable(lambda _: None), store.on_fullness(lambda _: None)]
    for listener in listeners:
        listener.close()

    def is_quiet() -> bool:
        store.publish("q", b"x")
        return eventfds() == before + 1  # by which the thread is called again

    wait_until(is_quiet)
    heard = Heard()
    store.on_durable(heard.listen)
    store.publish("q", b"x")
    lsn = store.next_lsn
    wait_until(lambda: heard.heard.get(timeout=PATIENCE_S) == lsn)


def test_threads_that_register_and_close_all_the_time_lose_no_call_of_another(store: MessageStore) -> None:
    queue = store.declare_queue("q")
    heard: list[Any] = []
    store.on_durable(heard.append)
    stop = threading.Event()

    def churn() -> None:
        while not stop.is_set():
            store.on_durable(lambda _: None).close()
            store.on_release(lambda _: None).close()

    threads = [threading.Thread(target=churn) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(200):
            store.publish(queue, b"x")
            lsn = store.next_lsn
            wait_until(lambda: heard and heard[-1] >= lsn)  # noqa: B023 - used at once
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_the_store_may_be_closed_in_a_callback(store: MessageStore) -> None:
    closed = threading.Event()

    def callback(_: object) -> None:
        store.close()
        closed.set()

    listener = store.on_durable(callback)
    store.publish(store.declare_queue("q"), b"x", wait=False)
    assert closed.wait(PATIENCE_S)
    thread = store._completions.thread
    assert thread is not None
    thread.join()
    assert listener.closed
