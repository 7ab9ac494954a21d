"""A queue as a broker uses it: acquiring in order, settling, counting, dead letters, purging, rollback."""

from __future__ import annotations

import gc
import threading
import weakref
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import logstore
from kit.stores import contents
from logstore import errors

if TYPE_CHECKING:
    from pathlib import Path

    from logstore import MessageStore, Queue

Open = Any


@pytest.fixture
def queue(store: MessageStore) -> Queue:
    return store.declare_queue("q")


def numbers(deliveries: list[Any]) -> list[int]:
    return [int(delivery.content) for delivery in deliveries]


def fill(store: MessageStore, queue: Queue, count: int) -> list[int]:
    return list(store.publish_many(queue, [b"%d" % i for i in range(count)]))


# ---- acquiring ----


def test_messages_are_acquired_in_order_and_only_once(store: MessageStore, queue: Queue) -> None:
    fill(store, queue, 3000)
    held = [queue.acquire(2), queue.acquire(), queue.acquire(2500), queue.acquire(10_000)]
    assert [numbers(each) for each in held] == [[0, 1], [2], list(range(3, 2503)), list(range(2503, 3000))]
    assert queue.acquire(5) == []
    assert queue.acquire(0) == []
    with pytest.raises(errors.OptionError):
        queue.acquire(-1)
    assert queue.depth == 3000
    assert store.stats()["queues"]["q"]["acquired"] == 3000


def test_a_delivery_says_what_it_is(store: MessageStore, queue: Queue) -> None:
    key = store.publish(queue, b"body", header=b"head")
    (delivery,) = queue.acquire()
    assert (delivery.id, delivery.content, delivery.header) == (key, b"body", b"head")
    assert (delivery.redelivered, delivery.delivery_count) == (False, 1)
    assert str(key) in repr(delivery)


def test_an_accepted_delivery_is_never_seen_again(store: MessageStore, queue: Queue, open_store: Open) -> None:
    fill(store, queue, 3)
    for delivery in queue.acquire(2):
        delivery.accept()
        assert store.durable_lsn == store.next_lsn
    assert contents(queue) == [b"2"]
    store.close()
    assert contents(open_store().queue("q")) == [b"2"]


def test_a_released_message_returns_to_its_place_and_counts_its_deliveries(store: MessageStore, queue: Queue) -> None:
    fill(store, queue, 4)
    first, second, third = queue.acquire(3)
    third.release()
    first.release()
    again = queue.acquire(10)
    assert numbers(again) == [0, 2, 3]
    assert [delivery.delivery_count for delivery in again] == [2, 2, 1]
    assert [delivery.redelivered for delivery in again] == [True, True, False]
    second.release()
    again[0].release()
    assert [delivery.delivery_count for delivery in queue.acquire(2)] == [3, 2]


@pytest.mark.parametrize("by", ["delivery", "queue", "token"])
def test_a_message_released_unseen_is_back_in_its_place_and_not_marked(
    store: MessageStore, queue: Queue, by: str
) -> None:
    fill(store, queue, 3)

    def give_back(delivery: logstore.Delivery, unseen: bool) -> None:
        if by == "delivery":
            delivery.release(unseen=unseen)
        else:
            queue.release(delivery if by == "queue" else delivery.detach(), unseen=unseen)

    first, second = queue.acquire(2)
    give_back(second, True)
    give_back(first, True)
    again = queue.acquire(3)
    assert numbers(again) == [0, 1, 2]
    assert [(one.delivery_count, one.redelivered) for one in again] == [(1, False)] * 3
    give_back(again[0], False)
    (seen,) = queue.acquire(1)
    assert (seen.delivery_count, seen.redelivered) == (2, True)
    give_back(seen, True)  # what was seen before stays marked
    (seen,) = queue.acquire(1)
    assert (seen.delivery_count, seen.redelivered) == (2, True)
    with pytest.raises(errors.NotEnqueued):
        give_back(first, True)


def test_a_release_takes_unseen_by_name_only(store: MessageStore, queue: Queue) -> None:
    fill(store, queue, 1)
    (delivery,) = queue.acquire(1)
    for wrong in (lambda: delivery.release(True), lambda: queue.release(delivery, True)):  # type: ignore[call-arg] # refused
        with pytest.raises(TypeError):
            wrong()
    with pytest.raises(TypeError, match="unexpected keyword argument 'seen'"):
        delivery.release(seen=True)  # type: ignore[call-arg] # refused
    delivery.release(unseen=1)  # type: ignore[arg-type] # any true value
    assert queue.acquire(1)[0].delivery_count == 1


def test_after_an_orderly_close_what_was_handed_out_is_marked_and_counts_go_on(
    store: MessageStore, queue: Queue, open_store: Open
) -> None:
    fill(store, queue, 4)
    first, _held, unseen = queue.acquire(3)
    first.release()
    unseen.release(unseen=True)
    store.close()
    store = open_store()
    queue = store.queue("q")
    assert [message.redelivered for message in queue.browse()] == [True, True, False, False]
    deliveries = queue.acquire(4)
    assert numbers(deliveries) == [0, 1, 2, 3]
    assert [(d.redelivered, d.delivery_count) for d in deliveries] == [(True, 2), (True, 2), (False, 1), (False, 1)]


def test_a_delivery_is_settled_once(store: MessageStore, queue: Queue) -> None:
    for how in ("accept", "release", "reject"):
        store.publish(queue, b"1")
        (delivery,) = queue.acquire()
        getattr(delivery, how)()
        for again in ("accept", "release", "reject"):
            with pytest.raises(errors.NotEnqueued, match="settled before"):
                getattr(delivery, again)()
        queue.purge()


def test_a_delivery_that_was_released_and_acquired_again_is_another_one(store: MessageStore, queue: Queue) -> None:
    store.publish(queue, b"1")
    (old,) = queue.acquire()
    old.release()
    (new,) = queue.acquire()
    with pytest.raises(errors.NotEnqueued):
        old.accept()
    new.accept()
    assert queue.depth == 0


def test_a_delivery_is_settled_on_its_own_queue_only(store: MessageStore, queue: Queue) -> None:
    other = store.declare_queue("other")
    store.publish([queue, other], b"1")
    (delivery,) = queue.acquire()
    for settle in (other.accept, other.release, other.reject):
        with pytest.raises(errors.NotEnqueued, match="not acquired from queue 'other'"):
            settle(delivery)
    queue.accept(delivery)
    assert other.depth == 1


def test_only_durable_messages_are_acquired(open_store: Open) -> None:
    store = open_store(durability="relaxed")
    queue = store.declare_queue("q")
    for number in range(2000):
        store.publish(queue, b"%d" % number, wait=False)
        end = store.durable_lsn
        for delivery in queue.acquire(5):
            assert delivery.id < max(end, store.durable_lsn)
            delivery.accept(wait=False)
    store.force()
    rest = queue.acquire(5000)
    assert numbers(rest) == list(range(2000 - len(rest), 2000))


def test_a_message_dequeued_by_id_is_not_offered_and_an_acquired_one_cannot_be_accepted(
    store: MessageStore, queue: Queue
) -> None:
    ids = fill(store, queue, 5)
    first, second = queue.acquire(2)
    store.dequeue(ids[0], queue)
    store.dequeue(ids[3], queue)
    with pytest.raises(errors.UnknownMessage):
        first.accept()
    with pytest.raises(errors.UnknownMessage):
        first.content
    second.release()
    assert numbers(queue.acquire(5)) == [1, 2, 4]


def test_two_queues_deliver_the_same_message_independently(store: MessageStore, queue: Queue) -> None:
    other = store.declare_queue("other")
    store.publish([queue, other], b"1")
    (here,), (there,) = queue.acquire(), other.acquire()
    here.accept()
    assert there.content == b"1"
    there.release()
    (there,) = other.acquire()
    there.accept()
    assert store.stats()["messages"] == 0


# ---- rejecting ----


def test_a_rejected_message_is_gone_without_a_dead_letter_queue(store: MessageStore, queue: Queue) -> None:
    fill(store, queue, 2)
    queue.acquire()[0].reject()
    assert contents(queue) == [b"1"]
    assert store.stats()["messages"] == 1


def test_a_rejected_message_moves_to_the_dead_letter_queue_in_one_step(store: MessageStore, open_store: Open) -> None:
    dead = store.declare_queue("dead")
    queue = store.declare_queue("work", dead_letter=dead)
    assert queue.dead_letter == "dead"
    key = store.publish(queue, b"bad", header=b"h")
    store.publish(queue, b"good")
    queue.acquire()[0].reject()
    assert contents(queue) == [b"good"]
    (message,) = dead.browse()
    assert (message.id, message.content, message.header) == (key, b"bad", b"h")
    assert store.durable_lsn == store.next_lsn
    store.close()
    store = open_store()
    assert contents(store.queue("work")) == [b"good"]
    assert contents(store.queue("dead")) == [b"bad"]
    assert store.queue("work").dead_letter == "dead"


def test_a_message_that_is_on_the_dead_letter_queue_already_only_leaves_its_own(store: MessageStore) -> None:
    dead = store.declare_queue("dead")
    queue = store.declare_queue("work", dead_letter="dead")
    store.publish([queue, dead], b"x")
    queue.acquire()[0].reject()
    assert (queue.depth, dead.depth) == (0, 1)
    assert store.stats()["transactions"] == 0


def test_the_dead_letter_queue_must_be_there_and_stays_while_it_is_needed(store: MessageStore) -> None:
    with pytest.raises(errors.UnknownQueue):
        store.declare_queue("work", dead_letter="nowhere")
    store.declare_queue("dead")
    store.declare_queue("work", dead_letter="dead")
    with pytest.raises(errors.QueueExists):
        store.declare_queue("work")
    with pytest.raises(errors.CatalogError, match="dead-letter"):
        store.delete_queue("dead")
    assert store.queue("dead").depth == 0
    store.delete_queue("work")
    store.delete_queue("dead")


def test_a_refused_settling_leaves_the_message_acquired(store: MessageStore, queue: Queue) -> None:
    store.publish(queue, b"1")
    (delivery,) = queue.acquire()
    transaction = store.begin()
    store.dequeue(delivery.id, queue, transaction)
    with pytest.raises(errors.MessageLocked):
        delivery.accept()
    assert queue.acquire() == []
    transaction.rollback()
    assert queue.acquire() == []  # still the first consumer's
    delivery.accept()
    assert queue.depth == 0


# ---- purging and browsing ----


def test_purging_drops_waiting_messages_and_keeps_acquired_and_locked_ones(store: MessageStore, queue: Queue) -> None:
    ids = fill(store, queue, 2500)
    kept = queue.acquire(1)[0]
    transaction = store.begin()
    store.dequeue(ids[7], queue, transaction)
    assert queue.purge() == 2498
    assert store.durable_lsn == store.next_lsn
    assert contents(queue) == [b"0", b"7"]
    assert queue.purge() == 0
    transaction.commit()
    kept.release()
    assert queue.purge() == 1
    assert queue.acquire() == []
    assert store.stats()["messages"] == 0


def test_a_purge_drops_the_messages_present_at_its_start_and_none_published_meanwhile(
    store: MessageStore, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store, queue, 1500)
    step = queue._purge_step

    def publish_too(places: list[tuple[int, int]]) -> int:
        assert len(late) < 20, "a purge ends beside a publisher"
        late.append(store.publish(queue, b"late", wait=False))
        return step(places)

    late: list[int] = []
    monkeypatch.setattr(queue, "_purge_step", publish_too)
    assert queue.purge() == 1500
    assert [message.id for message in queue.browse()] == late


def test_a_purge_never_takes_messages_that_consumers_have_acquired(store: MessageStore, queue: Queue) -> None:
    fill(store, queue, 4000)
    failures: list[BaseException] = []
    accepted = []

    def consume() -> None:
        try:
            while deliveries := queue.acquire(3):
                for delivery in deliveries:
                    delivery.accept(wait=False)
                    accepted.append(delivery.id)
        except BaseException as problem:  # noqa: BLE001 - shown by the assertion
            failures.append(problem)

    thread = threading.Thread(target=consume)
    thread.start()
    purged = queue.purge()
    thread.join()
    assert failures == []
    assert purged + len(accepted) == 4000


def test_browsing_neither_takes_nor_counts(store: MessageStore, queue: Queue) -> None:
    fill(store, queue, 600)
    assert [int(message.content) for message in queue.browse()] == list(range(600))
    (delivery,) = queue.acquire()
    assert delivery.delivery_count == 1
    assert not delivery.redelivered


# ---- rollback and consumers ----


def test_a_rollback_returns_a_place_to_consumers_in_order(store: MessageStore, queue: Queue) -> None:
    ids = fill(store, queue, 6)
    transaction = store.begin()
    store.dequeue(ids[1], queue, transaction)
    store.dequeue(ids[4], queue, transaction)
    held = queue.acquire(2)
    assert numbers(held) == [0, 2]
    transaction.rollback()
    assert numbers(queue.acquire(10)) == [1, 3, 4, 5]


def test_a_rollback_returns_a_message_before_fetched_and_released_ones(store: MessageStore, queue: Queue) -> None:
    ids = fill(store, queue, 6)
    transaction = store.begin()
    store.dequeue(ids[0], queue, transaction)
    taken = queue.acquire(5)
    for delivery in taken:
        delivery.release()
    transaction.rollback()
    assert numbers(queue.acquire(2)) == [0, 1]


def test_an_abandoned_transaction_gives_its_message_back_to_its_place(store: MessageStore, queue: Queue) -> None:
    ids = fill(store, queue, 4)
    transaction = store.begin()
    store.dequeue(ids[0], queue, transaction)
    for delivery in queue.acquire(3):
        delivery.release()
    del transaction
    gc.collect()
    held = [queue.acquire()[0] for _ in ids]
    assert [one.id for one in held] == ids


def test_a_locked_place_keeps_its_count_of_deliveries(store: MessageStore, queue: Queue) -> None:
    (first, _) = fill(store, queue, 2)
    queue.acquire()[0].release()
    transaction = store.begin()
    store.dequeue(first, queue, transaction)
    assert numbers(queue.acquire(2)) == [1]
    transaction.rollback()
    (delivery,) = queue.acquire()
    assert (delivery.id, delivery.delivery_count, delivery.redelivered) == (first, 2, True)


def test_a_commit_makes_its_messages_available_in_the_order_of_commits(store: MessageStore, queue: Queue) -> None:
    early, late = store.begin(), store.begin()
    store.publish(queue, b"0", transaction=early)
    store.publish(queue, b"2", transaction=late)
    store.publish(queue, b"1", transaction=early)
    assert queue.acquire() == []
    late.commit()
    store.publish(queue, b"3")
    early.commit()
    assert numbers(queue.acquire(10)) == [2, 3, 0, 1]


def test_listeners_hear_of_released_places_and_of_rollbacks_of_their_queues_only(
    store: MessageStore, queue: Queue
) -> None:
    heard: list[str] = []
    store.on_release(lambda released: heard.append(released.name))
    store.declare_queue("other")
    ids = fill(store, queue, 1)
    queue.acquire()[0].release()
    assert heard == ["q"]
    transaction = store.begin()
    store.dequeue(ids[0], queue, transaction)
    transaction.rollback()
    assert heard == ["q", "q"]


def test_listeners_hear_of_an_abandoned_transaction_from_no_finalizer(store: MessageStore, queue: Queue) -> None:
    heard = SimpleQueue[tuple[str, str, int]]()
    ids = fill(store, queue, 2)

    def listen(released: Queue) -> None:
        (delivery,) = released.acquire()
        heard.put((released.name, threading.current_thread().name, delivery.id))

    store.on_release(listen)
    transaction = store.begin()
    store.dequeue(ids[0], queue, transaction)
    with store._lock:  # whatever the finalizer interrupts
        del transaction
        gc.collect()
        assert heard.get(timeout=60) == ("q", "logstore-releases", ids[0])


def test_releases_right_before_the_close_are_reported_before_it(store: MessageStore, queue: Queue) -> None:
    heard: list[str] = []
    ids = fill(store, queue, 1)
    store.on_release(lambda released: heard.append(released.name))
    transaction = store.begin()
    store.dequeue(ids[0], queue, transaction)
    del transaction
    gc.collect()
    store.close()
    assert heard == ["q"]
    assert "logstore-releases" not in [thread.name for thread in threading.enumerate()]


def test_a_listener_does_not_keep_a_dropped_store_alive(tmp_path: Path) -> None:
    opened = logstore.open(tmp_path / "dropped")
    opened.on_release(lambda _: None)
    known = weakref.ref(opened)
    with pytest.warns(ResourceWarning, match="was not closed"):
        del opened
        gc.collect()
    assert known() is None


def test_a_rollback_does_not_wait_for_the_catalog(
    store: MessageStore, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[str] = []
    store.on_release(lambda released: heard.append(released.name))

    def refuse() -> None:
        raise errors.CatalogUnavailable("planted")

    ids = fill(store, queue, 1)
    transaction = store.begin()
    store.dequeue(ids[0], queue, transaction)
    monkeypatch.setattr(store, "settle_names", refuse)
    monkeypatch.setattr(store, "_followed", None)
    transaction.rollback()
    assert heard == ["q"]


def test_a_listener_that_fails_is_logged_and_hides_nothing(
    store: MessageStore, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: Queue) -> None:
        raise RuntimeError("not the store's fault")

    store.on_release(fail)
    ids = fill(store, queue, 1)
    queue.acquire()[0].release()
    with pytest.raises(KeyError), store.transaction() as transaction:
        store.dequeue(ids[0], queue, transaction)
        raise KeyError
    assert caplog.text.count("a release callback failed") == 2


# ---- any order of steps ----

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["publish", "acquire", "accept", "release", "reject", "lock", "commit", "rollback", "dequeue"]),
        st.integers(0, 7),
    ),
    max_size=60,
)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_acquisition_always_offers_the_first_free_place(store: MessageStore, steps: list[tuple[str, int]]) -> None:
    queue = store.declare_queue("q")
    queue.purge()
    order: list[int] = []  # every place, in order
    counts: dict[int, int] = {}
    held: dict[int, Any] = {}
    locked: dict[int, Any] = {}
    for step, number in steps:
        if step == "publish":
            order += store.publish_many(queue, [b"x"] * (number + 1))
        elif step == "acquire":
            free = [key for key in order if key not in held and key not in locked][:number]
            got = queue.acquire(number)
            assert [delivery.id for delivery in got] == free
            for delivery in got:
                counts[delivery.id] = counts.get(delivery.id, 0) + 1
                assert delivery.delivery_count == counts[delivery.id]
                held[delivery.id] = delivery
        elif step in ("accept", "release", "reject") and held:
            key = sorted(held)[number % len(held)]
            getattr(held.pop(key), step)()
            if step != "release":
                order.remove(key)
        elif step in ("lock", "dequeue"):
            free = [key for key in order if key not in held and key not in locked]
            if free:
                key = free[number % len(free)]
                transaction = store.begin() if step == "lock" else None
                store.dequeue(key, queue, transaction)
                if transaction is None:
                    order.remove(key)
                else:
                    locked[key] = transaction
        elif step in ("commit", "rollback") and locked:
            key = sorted(locked)[number % len(locked)]
            getattr(locked.pop(key), step)()
            if step == "commit":
                order.remove(key)
        assert queue.depth == len(order)
    assert [message.id for message in queue.browse()] == order
    for transaction in locked.values():
        transaction.rollback()
    for delivery in held.values():
        delivery.release()
    assert [delivery.id for delivery in queue.acquire(len(order) + 1)] == order
    for key in order:
        store.dequeue(key, queue, wait=False)
    queue.acquire(1)
