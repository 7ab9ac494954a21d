"""The calls of consumers that logstore._hot makes: every form of their arguments, and no reference kept or lost."""

from __future__ import annotations

import ctypes
import gc
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import logstore
from kit.stores import SMALL_SEGMENT
from logstore import Delivery, MessageStore, Queue, _hot, errors


class Int(int):
    """A subclass, as a caller may have."""


PY_TP_CLEAR = 51  # the number of CPython's tp_clear for PyType_GetSlot, part of its stable ABI


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    with logstore.open(tmp_path / "store", segment_size=SMALL_SEGMENT) as opened:
        opened.publish_many(opened.declare_queue("q"), [b"%d" % number for number in range(20)])
        yield opened


@pytest.fixture
def queue(store: MessageStore) -> Queue:
    return store.queue("q")


def acquired(store: MessageStore) -> int:
    return int(store.stats()["queues"]["q"]["acquired"])


def deliveries_alive() -> int:
    gc.collect()
    return sum(type(one) is Delivery for one in gc.get_objects())


def test_every_form_of_an_acquire_gives_the_next_deliveries(store: MessageStore, queue: Queue) -> None:
    forms: list[Callable[[], list[Delivery]]] = [
        lambda: queue.acquire(),
        lambda: queue.acquire(1, load=False),
        lambda: queue.acquire(n=1, load=True),
        lambda: queue.acquire(load=True),
        lambda: queue.acquire(Int(1), load=1),  # type: ignore[arg-type] # wrong on purpose
        lambda: queue._acquire_slow(1, load=True),
    ]
    taken = [form() for form in forms]
    assert [(len(each), each[0].content) for each in taken] == [(1, b"%d" % number) for number in range(len(forms))]
    assert [each[0]._loaded is not None for each in taken] == [False, False, True, True, True, True]
    assert (queue.acquire(0), queue.acquire(0, load=True)) == ([], [])
    for wrong in (True, None, "1", 1.5, -1, 1 << 64):
        with pytest.raises(errors.OptionError, match="n is a number"):
            queue.acquire(wrong)  # type: ignore[arg-type] # wrong on purpose
    assert len(queue.acquire((1 << 63) - 1)) == 20 - len(forms)


def test_every_form_of_settling_settles_once(store: MessageStore, queue: Queue) -> None:
    settle: list[Callable[[Delivery], object]] = [
        lambda one: queue.accept(one, wait=False),
        lambda one: queue.accept(delivery=one, transaction=None, wait=1),  # type: ignore[arg-type] # wrong on purpose
        lambda one: queue._accept_slow(one),
        lambda one: one.accept(),
        lambda one: one.accept(wait=False, transaction=None),
        lambda one: one.reject(wait=False),
        lambda one: queue.accept_many([one]),
        lambda one: queue.accept_many((one,), wait=False),
        lambda one: queue.accept_many(iter([one]), wait=False),
        lambda one: queue.accept_many(deliveries={one: 1}, wait=0),  # type: ignore[arg-type] # wrong on purpose
        lambda one: queue.release(one),
        lambda one: queue.release(delivery=one),
        lambda one: one.release(),
    ]
    for call in settle:
        (one,) = queue.acquire()
        call(one)
        assert one._settled
        with pytest.raises(errors.NotEnqueued, match="settled before"):
            call(one)
    assert (queue.depth, acquired(store)) == (10, 0)


@pytest.mark.parametrize("wrong", [None, 1, "x", [None], object()])
def test_what_is_no_delivery_is_refused_and_named(store: MessageStore, queue: Queue, wrong: Any) -> None:
    for call in (queue.accept, queue.release, queue.reject):
        with pytest.raises(TypeError, match="delivery is"):
            call(wrong)
    (one,) = queue.acquire()
    with pytest.raises(TypeError, match="each of deliveries is"):
        queue.accept_many([one, wrong])
    with pytest.raises(TypeError):
        Delivery()
    assert (one._settled, acquired(store)) == (False, 1)


def test_a_batch_that_is_refused_keeps_its_deliveries(store: MessageStore, queue: Queue) -> None:
    first, second, third = queue.acquire(3)
    for batch in ([first, first], [first, second, first]):
        with pytest.raises(errors.NotEnqueued) as caught:
            queue.accept_many(batch)
        assert caught.value.dequeued == 0  # type: ignore[attr-defined] # set by accept_many alone
    store.dequeue(third.id, queue)
    for wait in (True, False):
        with pytest.raises(errors.UnknownMessage) as gone:
            queue.accept_many([first, second, third], wait=wait)
        assert gone.value.dequeued == 0  # type: ignore[attr-defined] # not in its type
    queue.accept_many([first, second])
    assert acquired(store) == 0


def test_no_delivery_is_kept_and_none_is_freed_too_early(store: MessageStore, queue: Queue) -> None:
    before = deliveries_alive()
    taken = queue.acquire(20, load=True)
    assert deliveries_alive() == before + 20
    contents = [one.content for one in taken]
    queue.accept_many(taken[:10])
    with pytest.raises(errors.NotEnqueued):
        queue.accept_many(taken)
    for one in taken[10:]:
        one.release()
        one.unload()
        assert one.content == contents[taken.index(one)]
    del one, taken
    assert deliveries_alive() == before
    assert contents == [b"%d" % number for number in range(20)]


def test_a_delivery_in_the_memory_of_another_has_nothing_of_it(queue: Queue) -> None:
    taken = queue.acquire(5, load=True)
    queue.accept_many(taken)
    del taken
    again = queue.acquire(5)
    assert [(one._settled, one._loaded, one.content) for one in again] == [
        (False, None, b"%d" % number) for number in range(5, 10)
    ]
    queue.accept_many(again)


def test_a_delivery_in_a_cycle_with_its_queue_keeps_no_store_alive(tmp_path: Path) -> None:
    store = logstore.open(tmp_path / "dropped")
    queue = store.declare_queue("q")
    store.publish(queue, b"")
    (delivery,) = queue.acquire()
    queue.kept = delivery  # type: ignore[attr-defined] # as an application may
    known = weakref.ref(store)
    with pytest.warns(ResourceWarning, match="was not closed"):
        del store, queue, delivery
        gc.collect()
    assert known() is None


@pytest.mark.parametrize("kind", [Delivery, _hot.QueueCalls, _hot.StoreCalls])
def test_the_garbage_collector_takes_nothing_from_a_delivery_its_queue_or_its_store(kind: type) -> None:
    get_slot = ctypes.pythonapi.PyType_GetSlot
    get_slot.restype, get_slot.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_int]
    assert get_slot(kind, PY_TP_CLEAR) is None


def test_after_a_close_deliveries_can_be_released_and_nothing_else(store: MessageStore, queue: Queue) -> None:
    one, two = queue.acquire(2)
    store.close()
    for call in (one.accept, lambda: queue.accept_many([one, two]), queue.acquire, lambda: one.content):
        with pytest.raises(errors.StoreClosed):
            call()
    one.release()
    with pytest.raises(errors.NotEnqueued):
        one.release()
    two.release()


def test_a_deleted_queues_deliveries_are_settled(store: MessageStore, queue: Queue) -> None:
    one, two = queue.acquire(2)
    store.delete_queue(queue)
    for call in (one.accept, one.release, one.reject, lambda: queue.accept_many([one, two])):
        with pytest.raises(errors.NotEnqueued, match="settled before"):
            call()
    with pytest.raises(errors.UnknownQueue):
        queue.acquire()
