"""Counts of a queue: places and bytes by holder, at one moment and without a walk; and the list of what
consumers have acquired, since when."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from kit.stores import contents
from logstore import Acquisition, Delivery, QueueCounts, Xid, errors
from logstore._core import lib

if TYPE_CHECKING:
    from collections.abc import Callable

    from logstore import MessageStore, Queue

LARGE = b"x" * 300_000


def counted(queue: Queue) -> tuple[int, int, int, int, int, int]:
    found = queue.counts()
    assert found.depth == found.ready + found.acquired + found.locked
    return (found.depth, found.ready, found.acquired, found.locked, found.bytes, found.ready_bytes)


def same_as_a_walk(queue: Queue) -> None:
    """With nothing acquired."""
    listed = list(queue.browse())
    free = [one for one in listed if not one.locked]
    size = sum(one.size for one in listed)
    assert counted(queue) == (len(listed), len(free), 0, len(listed) - len(free), size, sum(one.size for one in free))


def test_a_queue_counts_its_places_and_their_bytes_by_who_holds_them(store: MessageStore) -> None:
    queue = store.declare_queue("q")
    assert queue.counts() == QueueCounts(0, 0, 0, 0, 0, 0)
    store.publish_many(queue, [b"1", b"22", b"333", b"4444"])
    first, second = queue.acquire(2)
    assert counted(queue) == (4, 2, 2, 0, 10, 7)
    assert (queue.depth, queue.ready, queue.acquired, queue.locked) == (4, 2, 2, 0)
    assert (queue.bytes, queue.ready_bytes) == (10, 7)
    first.accept()
    second.release()
    assert counted(queue) == (3, 3, 0, 0, 9, 9)


def test_a_place_that_is_acquired_and_accepted_in_an_open_transaction_counts_once_as_locked(
    store: MessageStore,
) -> None:
    queue = store.declare_queue("q")
    store.publish_many(queue, [b"1", b"22", b"333"])
    held = queue.acquire(2)
    tx = store.begin()
    held[0].accept(transaction=tx)
    store.publish(queue, b"4444", transaction=tx)  # no place yet
    assert counted(queue) == (3, 1, 1, 1, 6, 3)
    tx.rollback()
    assert counted(queue) == (3, 1, 2, 0, 6, 3)
    tx = store.begin()
    held[0].accept(transaction=tx)
    store.publish(queue, b"4444", transaction=tx)
    tx.commit()
    assert counted(queue) == (3, 2, 1, 0, 9, 7)


def test_a_dequeue_that_is_prepared_is_locked_after_an_open_too(open_store: Callable[..., MessageStore]) -> None:
    store = open_store()
    queue = store.declare_queue("q")
    ids = store.publish_many(queue, [b"1", b"22"])
    tx = store.begin(Xid(1, b"x"))
    store.dequeue(ids[1], queue, transaction=tx)
    tx.end()
    tx.prepare()
    store.close()
    store = open_store()
    queue = store.queue("q")
    assert counted(queue) == (2, 1, 0, 1, 3, 1)
    store.in_doubt()[0].rollback()
    assert counted(queue) == (2, 2, 0, 0, 3, 3)


def test_a_message_counts_on_each_of_its_queues(store: MessageStore) -> None:
    one, two = store.declare_queue("one"), store.declare_queue("two")
    store.publish([one, two], LARGE)  # of several records
    store.publish(two, b"22")
    held = one.acquire(1)
    assert counted(one) == (1, 0, 1, 0, 300_000, 0)
    assert counted(two) == (2, 2, 0, 0, 300_002, 300_002)
    store.delete_queue(one)
    with pytest.raises(errors.UnknownQueue):
        one.counts()
    with pytest.raises(errors.UnknownQueue):
        one.acquisitions()
    assert counted(two) == (2, 2, 0, 0, 300_002, 300_002)
    del held


def test_a_dead_letter_counts_on_its_new_queue(store: MessageStore) -> None:
    dead = store.declare_queue("dead")
    queue = store.declare_queue("q", dead_letter=dead)
    store.publish(queue, b"1")
    queue.acquire(1)[0].reject()
    assert counted(queue) == (0, 0, 0, 0, 0, 0)
    assert counted(dead) == (1, 1, 0, 0, 1, 1)


def test_a_purge_leaves_the_counts_of_what_is_held(store: MessageStore) -> None:
    queue = store.declare_queue("q")
    store.publish_many(queue, [b"%d" % number for number in range(1500)])
    held = queue.acquire(1)
    assert queue.purge() == 1499
    assert counted(queue) == (1, 0, 1, 0, 1, 0)
    del held


def test_a_delivery_that_is_dropped_counts_as_ready_again(store: MessageStore) -> None:
    queue = store.declare_queue("q")
    store.publish(queue, b"1")
    held: list[object] = [*queue.acquire(1)]
    held.append(held)  # only the garbage collector ends it
    assert counted(queue) == (1, 0, 1, 0, 1, 0)
    del held
    gc.collect()
    assert counted(queue) == (1, 1, 0, 0, 1, 1)


@pytest.mark.parametrize("way", ["clean", "checkpoint", "moved"])
def test_the_counts_are_right_straight_after_an_open(open_store: Callable[..., MessageStore], way: str) -> None:
    store = open_store(segment_size=1 << 20)
    queue, other = store.declare_queue("q"), store.declare_queue("other")
    for _ in range(6):
        store.publish([queue, other], LARGE)
        store.publish(queue, b"small")
    held = queue.acquire(3)
    held[0].accept()
    if way == "checkpoint":
        store.checkpoint()
        store.publish(queue, b"after it")
    elif way == "moved":
        other.purge()
        store.compact()
    before = {one.name: (one.depth, one.bytes) for one in (queue, other)}
    same = {message.id for message in queue.browse()}
    del held
    store.close()
    store = open_store(segment_size=1 << 20)
    for name, (depth, size) in before.items():
        again = store.queue(name)
        assert counted(again) == (depth, depth, 0, 0, size, size)
        same_as_a_walk(again)
    assert {message.id for message in store.queue("q").browse()} == same


def test_counts_take_one_call_of_the_core_for_a_queue_of_any_length(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What that call costs is in the guard of instructions, as ``queue_counts``."""
    queue = store.declare_queue("q")
    for _ in range(20):
        store.publish_many(queue, [b"x"] * 1000, wait=False)
    calls = []

    def counts_get(*given: object) -> int:
        calls.append(given)
        return lib.ls_queue_counts_get(*given)  # type: ignore[arg-type] # passed on as they came

    monkeypatch.setattr("logstore.store.counting.lib", SimpleNamespace(ls_queue_counts_get=counts_get))
    assert queue.counts() == QueueCounts(20_000, 20_000, 0, 0, 20_000, 20_000)
    assert len(calls) == 1


# ---- what is acquired ----


def test_acquired_places_are_listed_in_order_with_their_counts_and_times(store: MessageStore) -> None:
    queue = store.declare_queue("q")
    store.publish_many(queue, [b"%d" % number for number in range(2000)])
    start = datetime.now(UTC) - timedelta(seconds=1)
    assert queue.acquisitions() == []
    queue.acquire(1)[0].release()
    held = queue.acquire(1500)
    tx = store.begin()
    held[7].accept(transaction=tx)
    held[3].release()
    listed = queue.acquisitions()
    expected = [one for one in held if one is not held[3]]
    assert [one.id for one in listed] == [one.id for one in expected]
    assert [one.position for one in listed] == [one.position for one in expected]
    assert [one.delivery_count for one in listed] == [one.delivery_count for one in expected]
    assert [one.id for one in listed if one.locked] == [held[7].id]
    assert all(start <= one.since <= datetime.now(UTC) + timedelta(seconds=1) for one in listed)
    assert all(one.since.tzinfo is UTC for one in listed)
    tx.rollback()


def test_an_acquisition_is_a_value_that_nobody_changes(store: MessageStore) -> None:
    queue = store.declare_queue("q")
    store.publish(queue, b"1")
    held = queue.acquire(1)
    (one,) = queue.acquisitions()
    assert isinstance(one, Acquisition)
    with pytest.raises(AttributeError):
        one.since = datetime.now(UTC)  # type: ignore[misc] # refused at run time, too
    held[0].accept()
    assert queue.acquisitions() == []


def test_a_delivery_knows_the_queue_that_it_was_acquired_from(store: MessageStore) -> None:
    queue = store.declare_queue("q")
    store.publish(queue, b"1")
    (delivery,) = queue.acquire(1)
    assert isinstance(delivery, Delivery)
    assert delivery.queue is queue
    with pytest.raises(AttributeError):
        delivery.queue = queue  # type: ignore[misc] # refused at run time, too
    assert contents(queue) == [b"1"]


# ---- when a message was enqueued ----


def test_a_place_knows_when_it_became_visible_and_after_every_open_the_same(
    open_store: Callable[..., MessageStore],
) -> None:
    store = open_store()
    queue, other = store.declare_queue("q"), store.declare_queue("other")
    start = datetime.now(UTC)
    first = store.publish(queue, b"1")
    middle = datetime.now(UTC)
    tx = store.begin()
    store.enqueue(first, other, transaction=tx)
    tx.commit()
    end = datetime.now(UTC)
    (here,), (there,) = queue.browse(), other.browse()
    assert here.enqueued_at is not None
    assert there.enqueued_at is not None
    assert start <= here.enqueued_at <= middle <= there.enqueued_at <= end
    (delivery,) = queue.acquire(1)
    times = (delivery.enqueued_at, there.enqueued_at)
    assert times[0] == here.enqueued_at
    store.publish(queue, b"later, in the same segment")
    later = list(queue.browse())[1]
    assert later.enqueued_at is not None
    assert end <= later.enqueued_at <= datetime.now(UTC)
    delivery.release()
    store.close()
    store = open_store()
    assert (next(store.queue("q").browse()).enqueued_at, next(store.queue("other").browse()).enqueued_at) == times


def test_the_time_of_a_place_survives_that_its_message_is_moved(open_store: Callable[..., MessageStore]) -> None:
    store = open_store(segment_size=1 << 20)
    queue, other, filler = (store.declare_queue(name) for name in ("q", "other", "filler"))
    store.publish(queue, b"short")
    store.publish([queue, other], b"x" * 1_500_000)
    for _ in range(8):
        store.publish(filler, LARGE)
    before = [(message.id, message.enqueued_at) for one in (queue, other) for message in one.browse()]
    assert all(time is not None for _, time in before)
    filler.purge()
    store.compact()
    store.force()
    assert store.base_lsn > max(key for key, _ in before)  # all were moved
    after = [(message.id, message.enqueued_at) for one in (queue, other) for message in one.browse()]
    assert after == before
    store.close()
    store = open_store(segment_size=1 << 20)
    again = [store.queue(name) for name in ("q", "other")]
    assert [(message.id, message.enqueued_at) for one in again for message in one.browse()] == before


def test_times_of_more_segments_than_are_kept_in_memory_are_read_again(
    open_store: Callable[..., MessageStore],
) -> None:
    store = open_store(segment_size=1 << 20)
    queue = store.declare_queue("q")
    for _ in range(16):
        store.publish(queue, LARGE)
    listed = list(queue.browse())
    times = [message.enqueued_at for message in listed]
    assert None not in times
    assert times == sorted(time for time in times if time is not None)
    assert [message.enqueued_at for message in reversed(listed)] == times[::-1]


def test_the_time_of_a_place_that_has_ended_is_refused(store: MessageStore) -> None:
    queue, other = store.declare_queue("q"), store.declare_queue("other")
    store.publish([queue, other], b"1")
    (message,), (delivery,) = other.browse(), queue.acquire(1)
    delivery.accept()
    with pytest.raises(errors.NotEnqueued):
        _ = delivery.enqueued_at
    other.purge()
    with pytest.raises(errors.UnknownMessage):
        _ = message.enqueued_at
    store.publish(queue, b"2")
    (delivery,) = queue.acquire(1)
    store.close()
    with pytest.raises(errors.StoreClosed):
        _ = delivery.enqueued_at


def test_many_threads_read_times_while_messages_are_published_and_moved(
    open_store: Callable[..., MessageStore],
) -> None:
    store = open_store(segment_size=1 << 20)
    queue, filler = store.declare_queue("q"), store.declare_queue("filler")
    for _ in range(6):
        store.publish(queue, LARGE)
        store.publish(filler, LARGE)
    listed = list(queue.browse())
    times = [message.enqueued_at for message in listed]

    def read() -> bool:
        return all([message.enqueued_at for message in listed] == times for _ in range(20))

    with ThreadPoolExecutor(4) as pool:
        found = [pool.submit(read) for _ in range(4)]
        filler.purge()
        store.compact()
        assert all(one.result() for one in found)


def test_a_listed_message_says_how_often_its_place_was_handed_out(open_store: Callable[..., MessageStore]) -> None:
    store = open_store()
    queue = store.declare_queue("q")
    store.publish_many(queue, [b"1", b"2"])
    (message, other) = queue.browse()
    for count in range(3):
        assert (message.delivery_count, other.delivery_count) == (count, 0)
        (delivery,) = queue.acquire()
        delivery.release()
    store.close()
    with pytest.raises(errors.StoreClosed):
        _ = message.delivery_count
    store = open_store()
    (message, other) = store.queue("q").browse()
    assert (message.delivery_count, other.delivery_count) == (3, 0)
    store.dequeue(message.id, "q")
    with pytest.raises(errors.UnknownMessage):
        _ = message.delivery_count
