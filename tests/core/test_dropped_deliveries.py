"""A delivery that is dropped before it is settled gives its place back; a detached one leaves it to its token."""

from __future__ import annotations

import gc
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

import logstore
from kit import interrupts
from kit.patience import PATIENCE_S
from kit.stores import SMALL_SEGMENT
from logstore import Delivery, DeliveryToken, MessageStore, NotEnqueued, Queue

MESSAGES = 20


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    with logstore.open(tmp_path / "store", segment_size=SMALL_SEGMENT) as opened:
        dead = opened.declare_queue("dead")
        opened.publish_many(opened.declare_queue("q", dead_letter=dead), [b"%d" % n for n in range(MESSAGES)])
        opened.publish_many(opened.declare_queue("other"), [b"other"] * 3)
        yield opened


@pytest.fixture
def queue(store: MessageStore) -> Queue:
    return store.queue("q")


def acquired(store: MessageStore, name: str = "q") -> int:
    return int(store.stats()["queues"][name]["acquired"])


def numbers(deliveries: list[Delivery]) -> list[int]:
    return [int(delivery.content) for delivery in deliveries]


class Listener:
    """Keeps what the store's thread reports."""

    def __init__(self, store: MessageStore) -> None:
        self.told: SimpleQueue[tuple[str, str]] = SimpleQueue()
        store.on_release(lambda queue: self.told.put((queue.name, threading.current_thread().name)))

    def next(self) -> tuple[str, str]:
        return self.told.get(timeout=PATIENCE_S)


# ---- the places come back ----


def test_dropped_deliveries_go_back_to_their_old_places_with_their_counts(queue: Queue) -> None:
    taken = queue.acquire(8)
    random.Random(1).shuffle(taken)
    kept = [one for one in taken if int(one.content) in (2, 5)]
    while taken:
        del taken[-1]
    again = queue.acquire(MESSAGES)
    assert numbers(again) == [n for n in range(MESSAGES) if n not in (2, 5)]
    assert [one.delivery_count for one in again] == [2] * 6 + [1] * (MESSAGES - 8)
    assert [one.redelivered for one in again] == [True] * 6 + [False] * (MESSAGES - 8)
    assert [one.delivery_count for one in kept] == [1, 1]


def test_the_variable_of_a_loop_keeps_the_last_delivery_until_it_goes(store: MessageStore, queue: Queue) -> None:
    for delivery in queue.acquire(3):
        delivery.content  # not settled
    assert acquired(store) == 1
    del delivery
    assert acquired(store) == 0


@pytest.mark.parametrize("load", [False, True])
def test_a_list_that_nobody_keeps_holds_nothing(store: MessageStore, queue: Queue, load: bool) -> None:
    for _ in range(3):
        assert numbers(queue.acquire(MESSAGES, load=load)) == list(range(MESSAGES))
    assert acquired(store) == 0


def test_a_delivery_in_a_cycle_goes_back_when_the_collector_takes_it(store: MessageStore, queue: Queue) -> None:
    gc.disable()
    try:
        taken: list[Any] = [*queue.acquire(3)]
        taken.append(taken)
        del taken
        assert acquired(store) == 3
        gc.collect()
        assert acquired(store) == 0
    finally:
        gc.enable()
    assert numbers(queue.acquire(3)) == [0, 1, 2]


def test_a_delivery_dropped_on_another_thread_goes_back(store: MessageStore, queue: Queue) -> None:
    taken = queue.acquire(5)
    dropper = threading.Thread(target=taken.clear)
    dropper.start()
    dropper.join()
    assert numbers(queue.acquire(5)) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("call", ["accept", "accept_many", "release", "reject", "purge", "stats"])
def test_any_call_of_a_consumer_gives_dropped_deliveries_back(store: MessageStore, queue: Queue, call: str) -> None:
    (other,) = store.queue("other").acquire()
    kept, dropped = queue.acquire(2)
    del dropped
    if call == "purge":
        assert queue.purge() == MESSAGES - 1
    elif call == "stats":
        assert acquired(store) == 1
    else:
        getattr(other.queue, call)([other] if call == "accept_many" else other)
        assert store._released_queues() == set()  # nothing is left to do
    assert kept.content == b"0"
    kept.accept()


def test_dropped_deliveries_of_several_queues_go_back_to_each(store: MessageStore, queue: Queue) -> None:
    mixed = [each for pair in zip(queue.acquire(3), store.queue("other").acquire(3), strict=True) for each in pair]
    mixed.clear()
    assert (acquired(store), acquired(store, "other")) == (0, 0)


def test_a_drop_in_a_finalizer_of_a_delivery_that_was_dropped_goes_back(store: MessageStore, queue: Queue) -> None:
    class Dies:
        def __init__(self, held: list[Delivery]) -> None:
            self.held = held

        def __del__(self) -> None:
            self.held += queue.acquire(2)

    one: list[Any] = queue.acquire(2)
    one.append(Dies([]))
    del one
    assert acquired(store) == 0


# ---- what does not come back ----


@pytest.mark.parametrize("settle", ["accept", "reject"])
def test_a_settled_delivery_releases_nothing_when_it_is_dropped(store: MessageStore, queue: Queue, settle: str) -> None:
    (one,) = queue.acquire()
    getattr(one, settle)()
    del one
    assert numbers(queue.acquire(1)) == [1]


def test_a_released_delivery_does_not_release_the_next_consumers_when_it_is_dropped(
    store: MessageStore, queue: Queue
) -> None:
    (one,) = queue.acquire()
    one.release()
    (next_one,) = queue.acquire()
    del one
    assert acquired(store) == 1
    next_one.accept()


def test_a_transaction_keeps_what_it_settles_until_its_outcome(store: MessageStore, queue: Queue) -> None:
    transaction = store.begin()
    queue.acquire()[0].accept(transaction=transaction)
    queue.acquire()[0].reject(transaction=transaction)
    assert acquired(store) == 2
    assert numbers(queue.acquire(1)) == [2]
    transaction.commit()
    assert acquired(store) == 0
    assert numbers(queue.acquire(1)) == [2]


@pytest.mark.parametrize("end", ["rollback", "abandon"])
def test_after_a_rollback_a_delivery_that_nobody_keeps_is_released(store: MessageStore, queue: Queue, end: str) -> None:
    kept, dropped = queue.acquire(2)
    transaction = store.begin()
    kept.accept(transaction=transaction)
    dropped.accept(transaction=transaction)
    del dropped
    assert acquired(store) == 2
    if end == "rollback":
        transaction.rollback()
    del transaction
    assert acquired(store) == 1
    assert numbers(queue.acquire(1)) == [1]
    kept.release()
    assert numbers(queue.acquire(2)) == [0, 1]


def test_a_prepared_transaction_keeps_what_it_settles(store: MessageStore, queue: Queue) -> None:
    transaction = store.begin(logstore.Xid(1, b"g"))
    queue.acquire()[0].accept(transaction=transaction)
    transaction.end()
    transaction.prepare()
    del transaction
    gc.collect()
    assert acquired(store) == 1
    store.in_doubt()[0].rollback()
    assert acquired(store) == 0
    assert numbers(queue.acquire(1)) == [0]


def test_dropping_a_delivery_of_a_deleted_queue_does_nothing(store: MessageStore, queue: Queue) -> None:
    taken = queue.acquire(3)
    store.delete_queue(queue)
    del taken
    assert store.queue("other").acquire(3) != []
    assert store._released_queues() == set()


def test_dropping_a_delivery_of_a_closed_store_does_nothing(tmp_path: Path) -> None:
    with logstore.open(tmp_path / "closed", segment_size=SMALL_SEGMENT) as store:
        queue = store.declare_queue("q")
        store.publish_many(queue, [b"0"] * 3)
        before, after = queue.acquire(2)
        del before
    del after
    with pytest.raises(logstore.StoreClosed):
        queue.acquire()
    with logstore.open(tmp_path / "closed") as again:
        assert len(again.queue("q").acquire(5)) == 3


def test_dropping_a_delivery_in_a_forked_child_does_nothing(store: MessageStore, queue: Queue) -> None:
    Listener(store)
    taken = queue.acquire(3)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            taken.clear()
            with pytest.raises(logstore.StoreForked):
                queue.acquire()
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert acquired(store) == 3
    assert numbers(taken) == [0, 1, 2]


def test_the_memory_of_dropped_deliveries_is_used_again(store: MessageStore, queue: Queue) -> None:
    ids = set()
    for _ in range(50):
        taken = queue.acquire(MESSAGES)
        ids.update(map(id, taken))
        del taken
    assert len(ids) <= 2 * MESSAGES


# ---- listeners ----


def test_the_stores_thread_gives_a_dropped_delivery_back_and_calls_the_listeners(
    store: MessageStore, queue: Queue
) -> None:
    listener = Listener(store)
    taken = queue.acquire(3)
    del taken
    assert listener.next() == ("q", "logstore-releases")
    assert numbers(queue.acquire(MESSAGES)) == list(range(MESSAGES))


def test_listeners_hear_of_each_queue_once_for_all_that_was_dropped_together(store: MessageStore, queue: Queue) -> None:
    taken = [*queue.acquire(5), *store.queue("other").acquire(3)]
    taken.clear()
    assert (acquired(store), acquired(store, "other")) == (0, 0)  # no listener, and nothing to tell
    taken = [*queue.acquire(5), *store.queue("other").acquire(3)]
    listener = Listener(store)
    taken.clear()
    heard = {listener.next()[0]}
    while heard != {"q", "other"}:
        heard.add(listener.next()[0])
    store.close()  # ends the thread after all earlier notices
    rest = [listener.told.get() for _ in range(listener.told.qsize())]
    assert len(rest) < 8


def test_listeners_hear_of_a_dropped_delivery_that_another_call_gave_back(store: MessageStore, queue: Queue) -> None:
    listener = Listener(store)
    for _ in range(100):
        taken = queue.acquire(1)
        del taken
        assert store.queue("other").acquire(0) == []
        assert listener.next()[0] == "q"


def test_a_notice_that_failed_for_lack_of_memory_is_given_by_the_next_call(store: MessageStore, queue: Queue) -> None:
    noticed: list[None] = []

    def fails(_: None) -> None:
        raise MemoryError

    store._notify = fails
    taken = queue.acquire(3)
    with pytest.raises(KeyError, match="kept"):
        try:
            raise KeyError("kept")
        finally:
            del taken
    store._notify = noticed.append
    again = queue.acquire(2)
    assert (numbers(again), noticed) == ([0, 1], [None])
    again.clear()
    queue.acquire(2)
    assert noticed == [None]  # nobody has looked since
    assert store._released_queues() == {queue.id}
    assert noticed == [None]
    queue.acquire(1)
    assert noticed == [None, None]


def test_a_blocked_consumer_gets_what_another_one_dropped(store: MessageStore, queue: Queue) -> None:
    came_back = threading.Semaphore(0)
    store.on_release(lambda _: came_back.release())
    taken = queue.acquire(MESSAGES)
    got: list[int] = []

    def consume() -> None:
        while len(got) < MESSAGES:
            batch = queue.acquire(3)
            got.extend(numbers(batch))
            queue.accept_many(batch, wait=False)
            if not batch and not came_back.acquire(timeout=PATIENCE_S):
                return

    consumer = threading.Thread(target=consume)
    consumer.start()
    while taken:
        taken.pop()
    consumer.join()
    assert sorted(got) == list(range(MESSAGES))


def test_a_listener_that_drops_deliveries_itself_is_called_again(store: MessageStore, queue: Queue) -> None:
    calls: SimpleQueue[int] = SimpleQueue()
    left = [5]

    def listener(_: Queue) -> None:
        left[0] -= 1
        calls.put(left[0])
        if left[0] > 0:
            queue.acquire(2)

    store.on_release(listener)
    queue.acquire(1)
    assert [calls.get(timeout=PATIENCE_S) for _ in range(5)] == [4, 3, 2, 1, 0]


def test_a_listener_does_not_keep_a_store_alive_whose_deliveries_were_dropped(tmp_path: Path) -> None:
    code = f"""
import gc, logstore, weakref
store = logstore.open({str(tmp_path / "gone")!r})
queue = store.declare_queue("q")
store.publish_many(queue, [b""] * 10)
store.on_release(print)
taken = queue.acquire(10)
store.close()
known = weakref.ref(store)
del store, queue
assert known() is not None
del taken
gc.collect()
assert known() is None
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE_S)


def test_the_collector_may_take_a_closed_store_apart_in_any_order(tmp_path: Path) -> None:
    """It may clear the queue of notices before it frees the last delivery, which must notify nobody then."""
    code = f"""
import gc, logstore
for number in range(20):
    store = logstore.open({str(tmp_path)!r} + f"/{{number}}")
    queue = store.declare_queue("q")
    store.publish_many(queue, [b""] * 10)
    store.on_release(print)
    for each in queue.acquire(10):
        queue.held = [each, getattr(queue, "held", None)]
    store.held = [[one] for one in (queue, store, queue.held)]
    queue.notices = store._releases._notices
    store.close()
    del store, queue, each
    gc.collect()
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE_S)


def test_threads_that_drop_and_accept_lose_and_double_nothing(store: MessageStore, queue: Queue) -> None:
    listener = Listener(store)
    messages = 4000
    store.publish_many(queue, [b"%d" % n for n in range(MESSAGES, messages)])
    lock, got, problems = threading.Lock(), [], []

    def consume(chance: random.Random) -> None:  # a function of its own: a loop's variable keeps the last delivery
        for delivery in queue.acquire(chance.randint(1, 40), load=chance.random() < 0.5):
            if chance.random() < 0.5:
                key = int(delivery.content)
                delivery.accept(wait=False)
                with lock:
                    got.append(key)

    def work(number: int) -> None:
        chance = random.Random(number)
        try:
            while len(got) < messages and not problems:
                consume(chance)
        except Exception as problem:  # noqa: BLE001 - told below
            problems.append(problem)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert sorted(got) == list(range(messages))
    assert (queue.depth, acquired(store)) == (0, 0)
    assert listener.next() == ("q", "logstore-releases")


# ---- interrupts ----


# The handler may raise in a callback of a weak reference, which cannot pass that on.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_signal_handler_that_raises_during_acquires_leaves_no_place_acquired(
    store: MessageStore, queue: Queue
) -> None:
    store.publish_many(queue, [b"%d" % n for n in range(MESSAGES, 3000)])
    chance = random.Random(5)
    fired = interrupted = 0

    def handler(*_: object) -> None:
        nonlocal fired
        fired += 1
        raise interrupts.Interrupted

    before = signal.signal(signal.SIGVTALRM, handler)
    try:
        while interrupted < 40:
            try:
                wanted = fired + 1
                signal.setitimer(signal.ITIMER_VIRTUAL, chance.uniform(0.0001, 0.003))
                while fired < wanted:  # a finalizer of another object may swallow the exception
                    taken = queue.acquire(chance.choice([1, 100, 3000]), load=chance.random() < 0.3)
                    del taken
            except interrupts.Interrupted:
                interrupted += 1
                taken = []
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
    assert numbers(queue.acquire(3001)) == list(range(3000))


@pytest.mark.parametrize("use", ["acquire", "accept", "reject", "release", "accept_many", "tokens"])
def test_an_interrupt_at_any_step_leaves_no_place_acquired(store: MessageStore, queue: Queue, use: str) -> None:
    calls: dict[str, Callable[[], object]] = {
        "acquire": lambda: queue._acquire_slow(3, load=True),
        "accept": lambda: queue._accept_slow(queue.acquire()[0], wait=False),
        "reject": lambda: queue.acquire()[0].reject(wait=False),
        "release": lambda: queue.acquire()[0].release(),
        "accept_many": lambda: queue.accept_many(iter(queue.acquire(2)), wait=False),  # type: ignore[arg-type]
        "tokens": lambda: [each.release() for each in queue.acquire(2)],
    }
    steps = 0
    for _ in interrupts.every_step(lambda _: calls[use](), interrupts.interrupt):
        steps += 1
        assert acquired(store) == 0
        if queue.depth < 5:
            store.publish_many(queue, [b"more"] * 50)
    assert steps > 0 or use in ("release", "tokens")


def test_a_failed_acquire_releases_each_place_once_and_uncounted(store: MessageStore, queue: Queue) -> None:
    testcapi = pytest.importorskip("_testcapi")
    noticed: list[None] = []
    store._notify = noticed.append
    failed = 0
    for after in range(60):
        store._released_queues()
        noticed.clear()
        testcapi.set_nomemory(after, after + 1)
        try:
            taken = queue.acquire(MESSAGES, load=True)
        except MemoryError:
            failed += 1
            taken = []
        finally:
            testcapi.remove_mem_hooks()
        assert noticed == []  # what nobody has seen was not dropped
        del taken
        assert acquired(store) == 0
    assert failed > 0
    kept = queue.acquire(MESSAGES)
    assert numbers(kept) == list(range(MESSAGES))
    assert {one.delivery_count for one in kept} == {1 + 60 - failed}


# ---- tokens ----


def test_a_token_holds_the_place_of_a_delivery_that_is_dropped(store: MessageStore, queue: Queue) -> None:
    tokens = [one.detach() for one in queue.acquire(5)]
    assert acquired(store) == 5
    assert numbers(queue.acquire(1)) == [5]
    assert [(token.queue, token.count) for token in tokens] == [(queue.id, 1)] * 5
    assert [token.id for token in tokens] == [message.id for message in queue.browse()][:5]
    queue.accept(tokens[0])
    queue.release(tokens[1])
    queue.reject(tokens[2])
    (delivery,) = queue.acquire()
    assert delivery.content == b"1"
    queue.accept_many([tokens[3], delivery, tokens[4]])
    assert acquired(store) == 0
    assert [message.content for message in store.queue("dead").browse()] == [b"2"]
    assert numbers(queue.acquire(1)) == [5]


def test_a_detached_delivery_can_be_read_and_not_settled(store: MessageStore, queue: Queue) -> None:
    (delivery,) = queue.acquire()
    token = delivery.detach()
    assert (delivery.content, delivery.header, delivery.id) == (b"0", b"", token.id)
    for call in (
        delivery.accept,
        delivery.release,
        delivery.reject,
        delivery.detach,
        lambda: queue.accept_many([delivery]),
    ):
        with pytest.raises(NotEnqueued, match="was detached"):
            call()
    queue.accept(token)
    assert queue.depth == MESSAGES - 1


def test_a_settled_delivery_cannot_be_detached(store: MessageStore, queue: Queue) -> None:
    one, two, gone = [*queue.acquire(2), *store.queue("other").acquire(1)]
    one.accept()
    two.release()
    store.delete_queue("other")
    for each in (one, two, gone):
        with pytest.raises(NotEnqueued, match="settled before"):
            each.detach()


def test_a_pickled_token_settles_the_message(queue: Queue) -> None:
    token = pickle.loads(pickle.dumps(queue.acquire()[0].detach()))
    assert type(token) is DeliveryToken
    queue.accept(token)
    assert numbers(queue.acquire(1)) == [1]


SETTLED: dict[str, Callable[[Queue, DeliveryToken], object]] = {
    "accept": lambda queue, token: queue.accept(token),
    "accept_many": lambda queue, token: queue.accept_many([token]),
    "release": lambda queue, token: queue.release(token),
    "reject": lambda queue, token: queue.reject(token),
}


@pytest.mark.parametrize("first", SETTLED)
@pytest.mark.parametrize("second", SETTLED)
def test_a_token_is_settled_once(store: MessageStore, queue: Queue, first: str, second: str) -> None:
    token = queue.acquire()[0].detach()
    SETTLED[first](queue, token)
    with pytest.raises(NotEnqueued):
        SETTLED[second](queue, token)
    if first == "release":
        (again,) = queue.acquire()
        with pytest.raises(NotEnqueued):
            SETTLED[second](queue, token)
        assert acquired(store) == 1
        again.accept()


@pytest.mark.parametrize("settle", SETTLED)
def test_a_token_of_another_queue_or_open_or_store_is_refused(tmp_path: Path, settle: str) -> None:
    tokens = []
    for name in ("one", "two", "one"):
        with logstore.open(tmp_path / name, segment_size=SMALL_SEGMENT) as store:
            queue, other = store.declare_queue("q"), store.declare_queue("other")
            if queue.depth == 0:
                store.publish([queue, other], b"")
            for token in [*tokens, other.acquire()[0].detach()]:
                with pytest.raises(NotEnqueued, match="is not of queue 'q', or of an earlier open"):
                    SETTLED[settle](queue, token)
            assert (acquired(store), acquired(store, "other")) == (0, 1)
            tokens.append(queue.acquire()[0].detach())
            assert acquired(store) == 1


@pytest.mark.parametrize("settle", SETTLED)
def test_a_token_of_a_deleted_queue_or_a_closed_store_is_refused(
    store: MessageStore, queue: Queue, settle: str
) -> None:
    other = store.queue("other")
    token, deleted = queue.acquire()[0].detach(), other.acquire()[0].detach()
    store.delete_queue(other)
    with pytest.raises(NotEnqueued):
        SETTLED[settle](other, deleted)
    store.close()
    if settle == "release":
        queue.release(token)  # as of a delivery: nothing is acquired any more
    else:
        with pytest.raises(logstore.StoreClosed):
            SETTLED[settle](queue, token)


def test_a_batch_with_a_token_that_cannot_be_settled_settles_nothing(store: MessageStore, queue: Queue) -> None:
    one, two, settled, foreign = [*queue.acquire(3), *store.queue("other").acquire(1)]
    tokens = [each.detach() for each in (two, settled, foreign)]
    queue.accept(tokens[1])
    for batch in ([one, tokens[0], tokens[1]], [one, tokens[0], tokens[2]], [one, tokens[0], tokens[0]], [one, two]):
        with pytest.raises(NotEnqueued) as refused:
            queue.accept_many(batch)
        assert refused.value.dequeued == 0  # type: ignore[attr-defined]
    assert (queue.depth, acquired(store)) == (MESSAGES - 1, 2)
    queue.accept_many(iter([one, tokens[0]]))
    assert (queue.depth, acquired(store)) == (MESSAGES - 3, 0)


def test_a_token_that_the_store_refuses_stays_valid(store: MessageStore, queue: Queue) -> None:
    token, taken = (one.detach() for one in queue.acquire(2))
    store.dequeue(taken.id, queue)
    with pytest.raises(NotEnqueued) as refused:
        queue.accept_many([token, taken])
    assert refused.value.dequeued == 0  # type: ignore[attr-defined]
    transaction = store.begin()
    store.dequeue(token.id, queue, transaction)
    with pytest.raises(logstore.MessageLocked):
        queue.accept(token)
    transaction.rollback()
    queue.accept(token)
    assert acquired(store) == 0


@pytest.mark.parametrize("outcome", ["commit", "rollback"])
@pytest.mark.parametrize("settle", ["accept", "reject"])
def test_a_token_is_settled_in_a_transaction(store: MessageStore, queue: Queue, outcome: str, settle: str) -> None:
    token = queue.acquire()[0].detach()
    transaction = store.begin()
    getattr(queue, settle)(token, transaction=transaction)
    getattr(transaction, outcome)()
    assert acquired(store) == (0 if outcome == "commit" else 1)
    if outcome == "rollback":
        queue.release(token)
    assert numbers(queue.acquire(1)) == [1 if outcome == "commit" else 0]


@pytest.mark.parametrize("settle", SETTLED)
def test_what_is_no_token_is_refused_by_name(store: MessageStore, queue: Queue, settle: str) -> None:
    token = queue.acquire()[0].detach()
    for wrong in (tuple(token), tuple(token)[1:4], None, 7):
        with pytest.raises(TypeError, match="Delivery or a DeliveryToken"):
            SETTLED[settle](queue, wrong)  # type: ignore[arg-type] # wrong on purpose
    for field, value in (("id", "x"), ("position", -1), ("count", 1 << 40), ("id", 1 << 70)):
        with pytest.raises((TypeError, ValueError), match=f"the token's {field}"):
            SETTLED[settle](queue, token._replace(**{field: value}))
    with pytest.raises(NotEnqueued):
        SETTLED[settle](queue, token._replace(count=2))
    SETTLED[settle](queue, token)
