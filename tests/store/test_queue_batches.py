"""Consuming in batches: contents read together, and many messages accepted with one force."""

from __future__ import annotations

import array
import contextlib
import errno
import itertools
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import logstore
from kit.interrupts import Interrupted, every_step
from kit.simulated import Disk
from logstore import errors

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from logstore import Delivery, MessageStore, Queue

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


# ---- what is left undone when a batch fails ----

CONSUMING: dict[str, Callable[[MessageStore, Queue, list[Delivery]], Callable[[], object]]] = {
    "accept_many of a list": lambda _, queue, held: partial(queue.accept_many, list(held)),
    "accept_many of an iterator": lambda _, queue, held: partial(queue.accept_many, iter(held)),
    "accept_many without waiting": lambda _, queue, held: partial(queue.accept_many, tuple(held), wait=False),
    "dequeue_many": lambda store, queue, held: partial(store.dequeue_many, [each.id for each in held], queue),
    "dequeue_many of an array": lambda store, queue, held: partial(
        store.dequeue_many, array.array("Q", [each.id for each in held]), queue, wait=False
    ),
}
"""Each makes a call that is ready to be made."""

BATCH = 300  # above the numbers that Python keeps made


def dequeued_by(problem: BaseException) -> int:
    return int(getattr(problem, "dequeued", 0))  # none if the call was not even entered


@pytest.mark.parametrize("call", CONSUMING)
def test_whichever_allocation_fails_the_exception_says_how_many_were_dequeued(
    call: str, store: MessageStore, queue: Queue
) -> None:
    testcapi = pytest.importorskip("_testcapi", reason="SKIPPED LOUDLY: this Python has no _testcapi")
    store.publish_many(queue, [b"x"] * BATCH)
    failed = passed_in_a_row = 0
    for number in itertools.count():
        store.publish_many(queue, [b"x"] * (BATCH - queue.depth))
        held = queue.acquire(BATCH)
        problem: BaseException | None = None
        consume = CONSUMING[call](store, queue, held)
        testcapi.set_nomemory(number, number + 1)
        try:
            consume()
        except BaseException as caught:  # noqa: BLE001 - looked at below
            testcapi.remove_mem_hooks()
            problem = caught
        testcapi.remove_mem_hooks()
        if problem is None:
            assert queue.depth == 0
        else:
            assert isinstance(problem, MemoryError)
            assert dequeued_by(problem) == BATCH - queue.depth, number
            failed += 1
        for each in held:
            with contextlib.suppress(errors.NotEnqueued, errors.UnknownMessage):
                each.release()
        assert queue.acquired == 0
        passed_in_a_row = passed_in_a_row + 1 if problem is None else 0
        if passed_in_a_row > 20:  # some allocations may fail without harm
            break
    assert failed > 0


def test_an_error_for_which_memory_is_missing_says_how_many_were_dequeued(tmp_path: Path) -> None:
    """The disk fails in the force, so all are dequeued; then the exception that says so cannot be made."""
    testcapi = pytest.importorskip("_testcapi", reason="SKIPPED LOUDLY: this Python has no _testcapi")
    raised: list[type[BaseException]] = []
    told = 0
    while raised[-3:] != [errors.OutcomeUnknown] * 3:
        disk = Disk()
        store = disk.open(tmp_path / f"{len(raised)}")
        queue = store.declare_queue("q")
        store.publish_many(queue, [b"x"] * BATCH)
        held = queue.acquire(BATCH)
        consume = CONSUMING["accept_many of a list"](store, queue, held)
        disk.fail(1, errno.EIO, forever=True)
        testcapi.set_nomemory(len(raised), len(raised) + 1)
        try:
            consume()
        except BaseException as caught:  # noqa: BLE001 - looked at below
            testcapi.remove_mem_hooks()
            raised.append(type(caught))  # one in each round: the disk always fails
            told += hasattr(caught, "dequeued")
            assert dequeued_by(caught) in (BATCH - queue.depth, 0)
        testcapi.remove_mem_hooks()
        with contextlib.suppress(errors.StoreError):
            store.close()
        del store, queue, held, consume  # before the disk goes
        disk.free()
    assert set(raised) == {MemoryError, errors.OutcomeUnknown}
    assert told >= 0.8 * len(raised), "only where the attribute itself finds no memory is it missing"


class Refusing(Interrupted):
    """Takes no attribute in the usual way."""

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(name)


@pytest.mark.parametrize("call", CONSUMING)
@pytest.mark.parametrize("kind", [Interrupted, Refusing])
def test_an_exception_of_a_handler_says_how_many_were_dequeued(
    kind: type[BaseException], call: str, store: MessageStore, queue: Queue
) -> None:
    held: list[Delivery] = []
    counts: list[int] = []

    def handler() -> None:
        raise kind

    def consume(_: int) -> None:
        try:
            CONSUMING[call](store, queue, held)()
        except Interrupted as problem:
            if hasattr(problem, "dequeued"):  # one that comes while another is given the attribute has none
                counts.append(dequeued_by(problem))
                assert counts[-1] == 3 - queue.depth
            raise

    store.publish_many(queue, [b"x"] * 3)
    held = queue.acquire(3)
    for _ in every_step(consume, handler):
        for each in held:
            with contextlib.suppress(errors.NotEnqueued, errors.UnknownMessage):
                each.release()
        store.publish_many(queue, [b"x"] * (3 - queue.depth))
        held = queue.acquire(3)
    if "list" not in call and "without" not in call:  # those have no step in Python
        assert set(counts) == {0, 3}


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
