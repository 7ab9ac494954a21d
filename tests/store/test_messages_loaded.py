"""Messages listed with their contents: the same as one by one, as copies or as views that outlive everything else."""

from __future__ import annotations

import collections
import copy
import dataclasses
import gc
import os
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import logstore
from kit.stores import SMALL_SEGMENT
from logstore import Message, MessageStore, MessageView, Queue

SIZES = (0, 1, 100, 8191, 8192, 8193, 40_000, 600_000, 0, 7)  # the segment's records hold 32 KiB
LISTINGS: tuple[dict[str, bool], ...] = ({}, {"load": True}, {"views": True}, {"load": True, "views": True})


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    with logstore.open(tmp_path / "store", segment_size=SMALL_SEGMENT) as opened:
        yield opened


@pytest.fixture
def queue(store: MessageStore) -> Queue:
    """With contents of every size, headers of every third, and a place that a transaction has locked."""
    made = store.declare_queue("q")
    for number in range(40 * len(SIZES)):
        header = b"header %d" % number if number % 3 == 0 else b""
        store.publish(made, filling(number), header=header, wait=number % 50 == 0)
    return made


def filling(number: int) -> bytes:
    size = SIZES[number % len(SIZES)] if number < 20 or number % 10 not in (6, 7) else number
    return (b"%d;" % number * (size // 2 + 1))[:size]


def fields(message: Message) -> tuple[Any, ...]:
    return message.id, message.size, message.locked, message.redelivered, message.header, bytes(message.content)


@pytest.mark.parametrize("durable", [True, False])
def test_every_way_to_list_messages_gives_the_same_in_the_same_order(
    store: MessageStore, queue: Queue, durable: bool
) -> None:
    with store.transaction() as transaction:
        for message in list(store.messages(queue))[::7]:
            store.dequeue(message.id, queue, transaction)
        if durable:
            store.force()
        first, *others = [[fields(message) for message in store.messages(queue, **kind)] for kind in LISTINGS]
        assert [each[2] for each in first] == [number % 7 == 0 for number in range(400)]
        assert [each[5] for each in first] == [filling(number) for number in range(400)]
        assert [each[4] for each in first][:4] == [b"header 0", b"", b"", b"header 3"]
        assert others == [first] * 3
        assert [fields(message) for message in queue.browse(views=True)] == first
        transaction.rollback()


def test_what_was_handed_out_is_redelivered_in_every_listing(tmp_path: Path) -> None:
    with logstore.open(tmp_path / "store") as store:
        queue = store.declare_queue("q")
        store.publish(queue, b"handed out")
        store.publish(queue, b"not")
        queue.acquire(1)[0].release()
    with logstore.open(tmp_path / "store") as store:
        for kind in LISTINGS:
            assert [message.redelivered for message in store.messages("q", **kind)] == [True, False]


def test_only_a_listing_with_views_gives_views(store: MessageStore, queue: Queue) -> None:
    for kind in LISTINGS:
        for message in store.messages(queue, **kind):
            assert type(message) is (MessageView if "views" in kind else Message)
            assert type(message.content) is (memoryview if "views" in kind else bytes)
            assert type(message.header) is bytes


def test_a_message_removed_meanwhile_keeps_what_was_loaded_and_else_raises(store: MessageStore) -> None:
    queue = store.declare_queue("q")
    small, large = store.publish(queue, b"small"), store.publish(queue, bytes(600_000))
    for kind in LISTINGS:
        listed = list(store.messages(queue, **kind))
        assert [message.id for message in listed] == [small, large]
        with store.transaction() as transaction:
            store.dequeue(small, queue, transaction)
            store.dequeue(large, queue, transaction)
        if kind:
            assert listed[0].content == b"small"
        else:
            with pytest.raises(logstore.UnknownMessage):
                _ = listed[0].content
        with pytest.raises(logstore.UnknownMessage):
            _ = listed[1].content
        small, large = store.publish(queue, b"small"), store.publish(queue, bytes(600_000))


def test_the_listing_follows_the_queue_between_its_batches(store: MessageStore) -> None:
    queue = store.declare_queue("q")
    ids = list(store.publish_many(queue, [b"%d" % number for number in range(1000)]))
    listed = store.messages(queue, load=True)
    first = next(listed)
    store.dequeue_many(ids[300:], queue)
    later = store.publish(queue, b"later")
    assert [first.id, *(message.id for message in listed)] == [*ids[:300], later]
    listed = store.messages(queue, load=True)
    store.delete_queue(queue)
    with pytest.raises(logstore.UnknownQueue):
        next(listed)


def test_a_listing_of_a_closed_store_raises_at_its_next_batch(tmp_path: Path) -> None:
    store = logstore.open(tmp_path / "store")
    queue = store.declare_queue("q")
    store.publish_many(queue, [b"x"] * 300)
    listed = store.messages(queue, load=True)
    assert next(listed).content == b"x"
    store.close()
    with pytest.raises(logstore.StoreClosed):
        list(listed)


@pytest.mark.parametrize("kind", LISTINGS)
def test_damage_is_raised_at_the_access_to_the_damaged_message_alone(tmp_path: Path, kind: dict[str, bool]) -> None:
    with logstore.open(tmp_path / "store") as store:
        queue = store.declare_queue("q")
        store.publish_many(queue, [b"content %d" % number for number in range(50)])
        (segment,) = [path for path in (tmp_path / "store").glob("*.seg") if b"content 20" in path.read_bytes()]
        with segment.open("r+b") as file:
            file.seek(segment.read_bytes().index(b"content 20"))
            file.write(b"damaged")
        for number, message in enumerate(store.messages(queue, **kind)):
            if number == 20:
                with pytest.raises(logstore.CorruptLog):
                    _ = message.content
            else:
                assert message.content == b"content %d" % number


# ---- views ----


def test_a_view_shows_its_content_whatever_becomes_of_the_message_the_store_and_other_views(tmp_path: Path) -> None:
    store = logstore.open(tmp_path / "store", segment_size=SMALL_SEGMENT)
    queue = store.declare_queue("q")
    bodies = [os.urandom(1000) for _ in range(2000)]
    store.publish_many(queue, bodies)
    kept, parts = [], []
    for number, message in enumerate(store.messages(queue, views=True)):
        if number % 100 == 3:
            kept.append((number, message.content))
            parts.append((number, message.content[10:20]))
    del message
    for name in ("q", "p"):  # the memory of everything that was freed is used again
        store.delete_queue(store.declare_queue(name))
    store.publish_many(store.declare_queue("p"), [b"\xff" * 1000] * 2000)
    assert all(set(view.content) == {255} for view in store.messages("p", views=True))
    store.close()
    del store, queue
    gc.collect()
    assert all(view == bodies[number] for number, view in kept)
    kept.clear()
    gc.collect()
    assert [(number, bytes(view)) for number, view in parts] == [
        (number, bodies[number][10:20]) for number in range(3, 2000, 100)
    ]


def test_nothing_can_be_written_through_a_view(store: MessageStore, queue: Queue) -> None:
    for message in store.messages(queue, views=True):
        assert message.content.readonly
        assert message.content.format == "B"


def test_a_view_is_what_a_slice_of_its_whole_batch_would_be(store: MessageStore, queue: Queue) -> None:
    for message in store.messages(queue, views=True):
        view, content = message.content, store.load_content(message.id)
        assert (view.nbytes, view.shape, view.strides, view.ndim) == (len(content), (len(content),), (1,), 1)
        assert view.c_contiguous
        assert (hash(view), view.tolist(), bytes(view[::-1])) == (hash(content), list(content), content[::-1])
        assert bytes(view[len(content) // 2 :]) == content[len(content) // 2 :]
        assert bytes(view.cast("c")) == content
        with pytest.raises(IndexError):
            view[len(content)]
        with view:
            pass


def test_a_listing_whose_views_are_dropped_holds_one_batch_at_a_time(store: MessageStore) -> None:
    queue = store.declare_queue("q")
    store.publish_many(queue, [bytes(100)] * 1000)
    tracemalloc.start()
    try:
        collections.deque(store.messages(queue, views=True), maxlen=0)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert 512 << 10 < peak < 900_000


def test_views_of_one_batch_share_memory_and_free_it_together(store: MessageStore) -> None:
    queue = store.declare_queue("q")
    store.publish_many(queue, [bytes(100)] * 100)
    views = [message.content for message in store.messages(queue, views=True)]
    (shared,) = {id(view.obj) for view in views}
    assert shared
    owner = views[0].obj
    assert len(gc.get_referrers(owner)) >= 1
    assert all(view.obj is owner for view in views)


@pytest.mark.parametrize("kind", LISTINGS)
def test_a_listing_that_is_entered_again_while_it_reads_refuses_that_and_goes_on(
    store: MessageStore, queue: Queue, kind: dict[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = [message.id for message in store.messages(queue)]
    read_places = store._read_places

    def entered_again(*arguments: Any) -> list[Message]:
        found: list[Message] = read_places(*arguments)
        with pytest.raises(ValueError, match="already executing"):
            next(listing)  # as a signal handler or another thread may
        return found

    monkeypatch.setattr(store, "_read_places", entered_again)
    listing = store.messages(queue, **kind)
    assert [message.id for message in listing] == expected


# ---- Message ----


def test_a_listed_message_equals_one_that_its_class_makes(store: MessageStore, queue: Queue) -> None:
    for kind in LISTINGS:
        for listed in store.messages(queue, **kind):
            made = type(listed)(
                store, queue.id, listed.id, listed.position, listed.size, listed.locked, listed.redelivered
            )
            assert (listed, hash(listed), repr(listed)) == (made, hash(made), repr(made))
            assert fields(listed) == fields(made) == fields(copy.copy(listed))
            assert dataclasses.replace(listed, size=7).size == 7
            with pytest.raises(dataclasses.FrozenInstanceError):
                listed.size = 7  # type: ignore[misc] # it is frozen
            assert not hasattr(listed, "__dict__")
