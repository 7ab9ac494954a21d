"""Consuming in batches: contents read together, and many messages accepted with one force."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import logstore
from logstore import errors

if TYPE_CHECKING:
    from pathlib import Path

    from logstore import MessageStore, Queue

Open = Any


@pytest.fixture
def queue(store: MessageStore) -> Queue:
    return store.declare_queue("q")


# ---- reading together ----


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    messages=st.lists(
        st.tuples(
            st.integers(0, 600) | st.integers(0, 400_000),  # bytes of content: in one record, or in chunks
            st.integers(0, 40) | st.integers(0, 5000),  # bytes of header
        ),
        min_size=1,
        max_size=12,
    ),
    durable=st.booleans(),
)
def test_contents_read_together_equal_contents_read_one_by_one(
    store: MessageStore, queue: Queue, messages: list[tuple[int, int]], durable: bool
) -> None:
    """Headers and contents are equal for all sizes, on the disk and in a write buffer."""
    for at, (content_bytes, header_bytes) in enumerate(messages):
        store.publish(queue, bytes((at + 1,)) * content_bytes, header=bytes((at + 101,)) * header_bytes, wait=False)
    store.force()
    if not durable:
        store.publish(queue, b"not offered", wait=False)
    together = queue.acquire(len(messages), load=True)
    assert [(len(each.content), len(each.header)) for each in together] == messages
    for at, each in enumerate(together):
        assert set(each.content) <= {at + 1}
        assert set(each.header) <= {at + 101}
        assert each.content == store.load_content(each.id)
        assert each.header == store.header(each.id)
    queue.accept_many(together)
    queue.purge()


def test_a_content_that_was_read_stays_readable_after_the_message_has_ended(store: MessageStore, queue: Queue) -> None:
    store.publish(queue, b"body", header=b"head")
    (read,) = queue.acquire(1, load=True)
    store.publish(queue, b"other")
    (unread,) = queue.acquire(1)
    queue.accept_many([read, unread])
    assert (read.header, read.content) == (b"head", b"body")
    with pytest.raises(errors.UnknownMessage):
        _ = unread.content


def test_only_the_damaged_message_of_a_batch_raises(tmp_path: Path) -> None:
    """The others of the batch can be read; the damaged one raises on access."""
    with logstore.open(tmp_path / "store", segment_size=512 * 1024) as store:
        queue = store.declare_queue("q")
        ids = [store.publish(queue, b"content %d " % number * 20, header=b"h") for number in range(5)]
        with (tmp_path / "store" / f"{ids[2] // (512 * 1024) * (512 * 1024):016x}.seg").open("r+b") as segment:
            segment.seek(ids[2] % (512 * 1024) + 80)
            segment.write(b"\xff\xfe\xfd")
        deliveries = queue.acquire(5, load=True)
        for number in (0, 1, 3, 4):
            assert deliveries[number].content == b"content %d " % number * 20
        with pytest.raises(errors.CorruptLog):
            _ = deliveries[2].content


def test_contents_that_do_not_fit_the_batch_are_read_on_access(store: MessageStore, queue: Queue) -> None:
    big = bytes(range(256)) * 8192  # 2 MiB
    for content in (b"a", big, b"b", big[:-1], b"c"):
        store.publish(queue, content, wait=False)
    store.force()
    assert [each.content for each in queue.acquire(5, load=True)] == [b"a", big, b"b", big[:-1], b"c"]


def test_no_more_than_a_mebibyte_is_read_ahead(store: MessageStore, queue: Queue) -> None:
    store.publish_many(queue, [bytes(100_000)] * 30)
    deliveries = queue.acquire(30, load=True)
    read = [each for each in deliveries if each._loaded is not None]
    assert 8 <= len(read) <= 10
    assert read == deliveries[: len(read)]
    read[0].unload()
    assert {len(each.content) for each in deliveries} == {100_000}
    assert read[0]._loaded is None


# ---- accepting together ----


def test_many_are_accepted_with_one_force_and_never_seen_again(
    store: MessageStore, queue: Queue, open_store: Open
) -> None:
    store.publish_many(queue, [b"%d" % number for number in range(50)])
    deliveries = queue.acquire(40)
    syncs = store.stats()["syncs"]
    queue.accept_many(deliveries)
    assert store.stats()["syncs"] <= syncs + 2, "it forced for each"
    assert store.durable_lsn >= store.next_lsn
    assert queue.depth == 10
    store.close()
    again = open_store()
    assert [each.content for each in again.queue("q").acquire(50)] == [b"%d" % number for number in range(40, 50)]


def test_a_settled_delivery_in_a_batch_leaves_the_whole_batch_unchanged(store: MessageStore, queue: Queue) -> None:
    store.publish_many(queue, [b"0", b"1", b"2"])
    first, second, third = queue.acquire(3)
    second.accept()
    with pytest.raises(errors.NotEnqueued) as caught:
        queue.accept_many([first, second, third])
    assert caught.value.dequeued == 0  # type: ignore[attr-defined] # set by accept_many alone
    with pytest.raises(errors.NotEnqueued):
        queue.accept_many([first, first])
    assert queue.depth == 2
    queue.accept_many([first, third])
    assert queue.depth == 0


def test_a_message_that_is_gone_leaves_the_others_of_the_batch_acquired(store: MessageStore, queue: Queue) -> None:
    """None of the batch is accepted; each can still be accepted, or released to its place."""
    store.publish_many(queue, [b"0", b"1", b"2"])
    deliveries = queue.acquire(3)
    store.dequeue(deliveries[1].id, queue)
    with pytest.raises(errors.UnknownMessage) as caught:
        queue.accept_many(deliveries)
    assert caught.value.dequeued == 0  # type: ignore[attr-defined] # set by accept_many alone
    deliveries[2].accept()
    deliveries[0].release()
    (again,) = queue.acquire(5)
    assert (again.content, again.redelivered) == (b"0", True)


def test_another_queues_delivery_is_refused(store: MessageStore, queue: Queue) -> None:
    other = store.declare_queue("other")
    store.publish([queue, other], b"both")
    (mine,), (theirs,) = queue.acquire(), other.acquire()
    with pytest.raises(errors.NotEnqueued):
        queue.accept_many([mine, theirs])
    queue.accept_many([mine])
    other.accept_many([theirs])
    assert (queue.depth, other.depth) == (0, 0)


def test_accepting_an_empty_batch_does_nothing(store: MessageStore, queue: Queue) -> None:
    before = store.next_lsn
    queue.accept_many([])
    assert store.next_lsn == before


# ---- order ----


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.tuples(st.sampled_from("arxbt"), st.integers(1, 7)), max_size=25))
def test_returned_messages_are_acquired_before_new_ones(
    store: MessageStore, queue: Queue, steps: list[tuple[str, int]]
) -> None:
    """After any mixture of acquire, release, accept and rollback, the smallest id is next."""
    queue.purge()
    waiting = list(store.publish_many(queue, [b"m"] * 30))
    out: list[Any] = []
    for step, n in steps:
        if step == "a":
            got = queue.acquire(n)
            assert [each.id for each in got] == waiting[:n]
            del waiting[: len(got)]
            out += got
        elif step == "t" and waiting:  # locked by a transaction, and unlocked by its end
            transaction = store.begin()
            locked = waiting[min(n, len(waiting)) - 1]
            store.dequeue(locked, queue, transaction)
            got = queue.acquire(2)
            rest = [each for each in waiting if each != locked][:2]
            assert [each.id for each in got] == rest
            waiting = [each for each in waiting if each not in rest]
            out += got
            transaction.rollback()
        else:
            some, out = out[:n], out[n:]
            if step == "x":
                queue.accept_many(some)
                continue
            for each in reversed(some) if step == "b" else some:
                each.release()
            waiting = sorted(waiting + [each.id for each in some])
    assert [each.id for each in queue.acquire(100)] == waiting
    for each in out:
        each.accept(wait=False)
    for message in queue.browse():
        store.dequeue(message.id, queue, wait=False)
    assert store.stats()["queues"]["q"]["acquired"] == 0
