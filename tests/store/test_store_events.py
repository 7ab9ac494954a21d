"""What listeners of the store are told: deaths of messages, transactions in doubt. How they end: test_listeners.py."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import tempfile
import threading
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.patience import PATIENCE_S, wait_until
from kit.simulated import ALL_KEPT, ALL_LOST, BY_SEED, Disk
from kit.stores import break_the_log
from logstore import Deaths, InDoubtChanges, MessageStore, Queue, Transaction, Xid, errors
from logstore._core import ffi, lib
from logstore.store.queue_events import EventInbox

if TYPE_CHECKING:
    from collections.abc import Callable

Open = Any


@pytest.fixture
def queue(store: MessageStore) -> Queue:
    return store.declare_queue("q")


class Told:
    """Keeps the deaths that a listener is called with."""

    def __init__(self) -> None:
        self._heard: SimpleQueue[Deaths] = SimpleQueue()
        self.missed = 0

    def __call__(self, deaths: Deaths) -> None:
        self._heard.put(deaths)

    def next(self, count: int = 1) -> list[int]:
        """The next messages that died, at least so many; they may come in several calls."""
        found: list[int] = []
        while len(found) < count:
            found.extend(self._ids(self._heard.get(timeout=PATIENCE_S)))
        return found

    def rest(self) -> list[int]:
        """What was told and not asked for yet."""
        found: list[int] = []
        with contextlib.suppress(Empty):
            while True:
                found.extend(self._ids(self._heard.get_nowait()))
        return found

    def _ids(self, deaths: Deaths) -> tuple[int, ...]:
        self.missed += deaths.missed
        return deaths.ids


# ---- deaths ----


def accept(store: MessageStore, queue: Queue, ids: list[int]) -> None:
    for delivery in queue.acquire_ids(ids):
        delivery.accept(wait=False)


def accept_many(store: MessageStore, queue: Queue, ids: list[int]) -> None:
    queue.accept_many(queue.acquire_ids(ids))


def reject(store: MessageStore, queue: Queue, ids: list[int]) -> None:
    for delivery in queue.acquire_ids(ids):
        delivery.reject()


def dequeue_many(store: MessageStore, queue: Queue, ids: list[int]) -> None:
    store.dequeue_many(ids, queue, wait=False)
    store.next_lsn


def purge(store: MessageStore, queue: Queue, ids: list[int]) -> None:
    queue.purge()


def delete_queue(store: MessageStore, queue: Queue, ids: list[int]) -> None:
    store.delete_queue(queue)


def commit(store: MessageStore, queue: Queue, ids: list[int]) -> None:
    with store.transaction() as transaction:
        store.dequeue_many(ids, queue, transaction)


ENDS = [accept, accept_many, reject, dequeue_many, purge, delete_queue, commit]


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
def test_messages_that_die_are_told_in_order_whatever_ends_them(
    store: MessageStore, queue: Queue, end: Callable[[MessageStore, Queue, list[int]], None]
) -> None:
    told, other = Told(), store.declare_queue("other")
    store.publish(other, b"dies before")
    other.purge()
    store.on_death(told)
    on_both = store.publish([queue, other], b"y")
    ids = list(store.publish_many(queue, [b"x"] * 10))
    end(store, queue, [on_both, *ids])
    assert told.next(10) == ids
    store.dequeue(on_both, other)
    assert told.next() == [on_both]
    assert (told.rest(), told.missed) == ([], 0)


def test_a_move_is_no_death_and_a_rollback_ends_only_what_its_transaction_published(store: MessageStore) -> None:
    told, dead = Told(), store.declare_queue("dead")
    queue = store.declare_queue("q", dead_letter=dead)
    key = store.publish(queue, b"x")
    store.on_death(told)
    queue.acquire()[0].reject()
    transaction = store.begin()
    store.dequeue(key, dead, transaction)
    published = store.publish(queue, b"never on the queue", transaction=transaction)
    transaction.rollback()
    assert told.next() == [published]
    staged = store.stage(b"h", b"c")
    store.destroy(staged)
    assert told.next() == [staged]
    assert [one.id for one in dead.browse()] == [key]
    dead.purge()
    assert told.next() == [key]


def test_a_loop_is_told_of_deaths_in_its_thread(store: MessageStore, queue: Queue) -> None:
    async def main() -> None:
        told: asyncio.Queue[tuple[Deaths, threading.Thread]] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        store.on_death(lambda deaths: told.put_nowait((deaths, threading.current_thread())), loop=loop)
        key = await asyncio.to_thread(store.publish, queue, b"x")
        await asyncio.to_thread(queue.purge)
        async with asyncio.timeout(PATIENCE_S):
            assert await told.get() == (Deaths((key,), 0), threading.main_thread())
        assert told.empty()

    asyncio.run(main())


def test_a_listener_that_does_not_come_to_it_costs_no_more_than_its_limit_and_knows_how_many_it_missed(
    open_store: Open,
) -> None:
    store = open_store(durability="relaxed")
    queue = store.declare_queue("q")
    count = lib.LS_DEATHS_MAX + 10_000
    ids = list(store.publish_many(queue, [b""] * count, wait=False))
    told, began, goes_on = Told(), threading.Event(), threading.Event()

    def listen(deaths: Deaths) -> None:
        told(deaths)
        began.set()
        assert goes_on.wait(PATIENCE_S)

    store.on_death(listen)
    store.dequeue(ids[0], queue)
    assert began.wait(PATIENCE_S)
    store.dequeue_many(ids[1:], queue)
    store.force()
    goes_on.set()
    assert told.next(1 + lib.LS_DEATHS_MAX) == ids[: 1 + lib.LS_DEATHS_MAX]
    wait_until(lambda: told.rest() == [] and told.missed == count - 1 - lib.LS_DEATHS_MAX, "the number of the others")
    last = store.publish(queue, b"")
    queue.purge()
    assert told.next() == [last]


def test_a_failed_log_tells_of_no_death(open_store: Open) -> None:
    store = open_store()
    queue = store.declare_queue("q")
    key = store.publish(queue, b"x")
    told: list[Deaths] = []
    failed: SimpleQueue[object] = SimpleQueue()
    store.on_death(told.append)
    store.on_durable(failed.put)
    break_the_log(store)
    store.dequeue(key, queue, wait=False)
    while not isinstance(failed.get(timeout=PATIENCE_S), errors.OutcomeUnknown):
        pass
    store.close()
    assert told == []


def test_a_forked_child_may_not_listen_to_the_store_and_is_never_called(store: MessageStore, queue: Queue) -> None:
    told = Told()
    listener = store.on_death(told)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            listener.close()
            for register in (store.on_death, store.on_in_doubt):
                with pytest.raises(errors.StoreForked):
                    register(print)
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    key = store.publish(queue, b"x")
    queue.purge()
    assert told.next() == [key]


def test_an_error_of_a_callback_is_logged_and_the_others_are_called(
    store: MessageStore, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: object) -> None:
        raise SystemExit

    told = Told()
    store.on_death(fail)
    store.on_death(told)
    for _ in range(2):
        key = store.publish(queue, b"x")
        queue.purge()
        assert told.next() == [key]
    assert caplog.text.count("a death callback failed") == 2


# ---- deaths and power cuts ----

STEPS = st.tuples(st.sampled_from("pppPdddetcrsxq"), st.integers(0, 1 << 16), st.booleans())


class Work:
    """Random operations on a store; what they refuse changes nothing."""

    def __init__(self, store: MessageStore) -> None:
        self.store = store
        self.queues = [store.declare_queue(f"q{number}") for number in range(3)]
        self.ids: list[int] = []
        self.transactions: list[Transaction] = []

    def step(self, kind: str, pick: int, wait: bool) -> None:
        store, queue = self.store, self.queues[pick % len(self.queues)]
        transaction = self.transactions[pick % len(self.transactions)] if self.transactions and pick % 3 else None
        with contextlib.suppress(errors.StoreError):
            match kind:
                case "p":
                    content = bytes(pick % 4 * 3000)
                    self.ids.append(store.publish(queue, content, transaction=transaction, wait=wait))
                case "P":
                    self.ids.append(store.publish(self.queues, b"everywhere", wait=wait))
                case "d" if self.ids:
                    store.dequeue(self.ids[pick % len(self.ids)], queue, transaction, wait=wait)
                case "e" if self.ids:
                    store.enqueue(self.ids[pick % len(self.ids)], queue, transaction, wait=wait)
                case "t":
                    self.transactions.append(store.begin())
                case "c" | "r" if self.transactions:
                    one = self.transactions.pop(pick % len(self.transactions))
                    (one.commit if kind == "c" else one.rollback)(wait=wait)
                case "s":
                    self.ids.append(store.stage(b"h", b"c", wait=wait))
                case "x" if self.ids:
                    store.destroy(self.ids[pick % len(self.ids)], wait=wait)
                case "q":
                    store.delete_queue(self.queues.pop(0))
                    self.queues.append(store.declare_queue(f"q{store.next_lsn}"))


def lives(store: MessageStore, message_id: int) -> bool:
    return bool(lib.ls_message(store._c, message_id, ffi.new("ls_message_info *")) == 0)


@settings(max_examples=60)
@given(
    st.lists(st.tuples(STEPS, st.booleans()), min_size=20, max_size=60),
    st.lists(st.tuples(STEPS, st.booleans()), max_size=20),
    st.sampled_from([ALL_LOST, ALL_KEPT, BY_SEED]),
    st.integers(1, 1 << 30),
)
def test_what_is_told_is_what_died_and_a_power_cut_brings_none_of_it_back(
    before: list[Any], after: list[Any], losses: int, seed: int
) -> None:
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as scratch:
        disk, place, catalog = Disk(), Path(scratch) / "s", Path(scratch) / "catalog"
        store = disk.open(place)
        work, told = Work(store), list[int]()
        inbox = EventInbox(store._c)  # its eventfd is the simulated disk's: the test looks in place of a loop

        def listen(deaths: Deaths) -> None:
            assert deaths.missed == 0
            told.extend(deaths.ids)

        inbox.of_store.listen(lib.LS_NOTICE_DEATHS, listen, weak=False)
        for step, looks in before:
            work.step(*step)
            if looks:
                inbox.tell()
        store.force()
        inbox.tell()
        assert len(told) == len(set(told))
        assert set(told) == {each for each in work.ids if not lives(store, each)}
        for step, looks in after:
            work.step(*step)
            if looks:
                inbox.tell()
        shutil.copytree(place, catalog)
        cut = disk.crash(losses, seed)
        inbox.end()
        store.close()
        shutil.rmtree(place)
        catalog.rename(place)
        opened = cut.open(place)
        assert not any(lives(opened, each) for each in told)
        opened.close()
        del work, store, opened, inbox
        cut.free()
        disk.free()


# ---- in doubt ----


def prepared(store: MessageStore, queue: Queue, name: bytes, *, wait: bool = True) -> Transaction:
    transaction = store.begin(Xid(1, name))
    store.publish(queue, b"x", transaction=transaction)
    transaction.end()
    transaction.prepare(wait=wait)
    return transaction


class Changes:
    """Keeps the changes that a listener is called with."""

    def __init__(self) -> None:
        self._heard: SimpleQueue[InDoubtChanges] = SimpleQueue()

    def __call__(self, changes: InDoubtChanges) -> None:
        self._heard.put(changes)

    def next(self, count: int) -> list[tuple[int, bytes, str]]:
        found: list[tuple[int, bytes, str]] = []
        while len(found) < count:
            heard = self._heard.get(timeout=PATIENCE_S)
            assert heard.missed == 0
            found.extend((one.id, one.xid.gtrid, one.state) for one in heard.changes)
        assert self._heard.empty()
        return found


def test_a_transaction_in_doubt_and_its_outcome_are_told(store: MessageStore, queue: Queue) -> None:
    told = Changes()
    store.on_in_doubt(told)
    first = prepared(store, queue, b"first")
    assert told.next(1) == [(first.id, b"first", "prepared")]
    second = prepared(store, queue, b"second", wait=False)
    first.commit(wait=False)
    second.rollback()
    assert told.next(3) == [
        (second.id, b"second", "prepared"),
        (first.id, b"first", "committed"),
        (second.id, b"second", "rolled_back"),
    ]


def test_neither_a_local_transaction_nor_one_that_is_committed_at_once_is_ever_in_doubt(
    store: MessageStore, queue: Queue
) -> None:
    told = Changes()
    store.on_in_doubt(told)
    with store.transaction() as transaction:
        store.publish(queue, b"x", transaction=transaction)
    at_once = store.begin(Xid(1, b"at once"))
    at_once.end()
    at_once.commit()
    given_up = store.begin(Xid(1, b"given up"))
    del given_up
    last = prepared(store, queue, b"last")
    assert told.next(1) == [(last.id, b"last", "prepared")]
    last.rollback()


def test_what_an_open_finds_in_doubt_is_listed_and_its_outcome_is_told(open_store: Open) -> None:
    store = open_store()
    key = prepared(store, store.declare_queue("q"), b"early").id
    store.close()
    store = open_store()
    told = Changes()
    store.on_in_doubt(told)
    (found,) = store.in_doubt()
    found.commit()
    assert told.next(1) == [(key, b"early", "committed")]


def test_a_loop_is_told_of_transactions_in_doubt(store: MessageStore, queue: Queue) -> None:
    async def main() -> None:
        told: asyncio.Queue[InDoubtChanges] = asyncio.Queue()
        store.on_in_doubt(told.put_nowait, loop=asyncio.get_running_loop())
        transaction = await asyncio.to_thread(prepared, store, queue, b"x")
        async with asyncio.timeout(PATIENCE_S):
            (change,) = (await told.get()).changes
        assert (change.id, change.xid, change.state) == (transaction.id, Xid(1, b"x"), "prepared")
        await asyncio.to_thread(transaction.rollback)

    asyncio.run(main())


def test_changes_beyond_the_limit_are_counted(store: MessageStore, queue: Queue) -> None:
    heard: list[InDoubtChanges] = []
    began, goes_on = threading.Event(), threading.Event()

    def listen(changes: InDoubtChanges) -> None:
        heard.append(changes)
        began.set()
        assert goes_on.wait(PATIENCE_S)

    store.on_in_doubt(listen)
    prepared(store, queue, b"first").commit()
    assert began.wait(PATIENCE_S)
    for number in range(lib.LS_IN_DOUBT_MAX // 2 + 50):
        prepared(store, queue, b"%d" % number, wait=False).rollback(wait=False)
    store.force()
    goes_on.set()
    count = 2 + 2 * (lib.LS_IN_DOUBT_MAX // 2 + 50)
    wait_until(lambda: sum(len(one.changes) + one.missed for one in heard) == count, "all are told or counted")
    assert sum(one.missed for one in heard) >= 100


# ---- all of them, from many threads ----


def test_every_death_is_told_once_while_other_listeners_come_and_go(store: MessageStore, queue: Queue) -> None:
    told, stop = Told(), threading.Event()
    ids: list[list[int]] = [[], []]
    store.on_death(told)

    def work(mine: list[int]) -> None:
        for number in range(300):
            mine.append(store.publish(queue, b"x", wait=False))
            store.dequeue(mine[-1], queue, wait=number % 5 == 0)
        store.force()

    def churn() -> None:
        while not stop.is_set():
            store.on_death(lambda _: None).close()
            store.on_in_doubt(lambda _: None).close()

    threads = [threading.Thread(target=work, args=(mine,)) for mine in ids]
    churning = threading.Thread(target=churn)
    for thread in (*threads, churning):
        thread.start()
    try:
        for thread in threads:
            thread.join()
        assert sorted(told.next(600)) == sorted(ids[0] + ids[1])
    finally:
        stop.set()
        churning.join()
