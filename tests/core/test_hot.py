"""The calls that logstore._hot makes: whatever form its arguments have, a call gives what the slow path gives.

Every usual call has a slow twin, the Python method with the suffix ``_slow``. The extension keeps no reference that it
does not own, and a closed or forked store answers as one.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import sys
import threading
import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import logstore
from kit.stores import SMALL_SEGMENT
from logstore import MessageStore, _hot


class Bytes(bytes):
    """A subclass, as a caller may have."""


class Int(int):
    """A subclass, as a caller may have."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    with logstore.open(tmp_path / "store", segment_size=SMALL_SEGMENT) as opened:
        opened.declare_queue("q")
        opened.declare_queue("r")
        yield opened


def outcome(call: Callable[[], object]) -> object:
    """The result, or the error's type and text."""
    try:
        return call()
    except Exception as problem:  # noqa: BLE001 - two errors are compared
        return type(problem), str(problem), type(problem.__cause__)


# ---- both ways ----


@pytest.mark.parametrize(
    "content", [b"", b"c", bytes(20_000), bytes(200_000), Bytes(b"c"), bytearray(b"c"), [b"c", b"d"]]
)
def test_every_form_of_a_publish_stores_the_same_message(store: MessageStore, content: Any) -> None:
    expected = b"".join(content) if isinstance(content, list) else bytes(content)
    waits = itertools.cycle([False, True, 1, "", False])
    for header in (b"", b"h", Bytes(b"h"), bytearray(b"h"), memoryview(b"h")):
        for queue in (store.queue("q"), "q", [store.queue("q"), "r"]):
            for publish in (store.publish, store._publish_slow):
                key = publish(queue, content, header=header, wait=next(waits))  # type: ignore[arg-type]
                assert type(key) is int
                assert (store.load_content(key), store._load_content_slow(key)) == (expected, expected)
                assert (store.header(key), store._header_slow(key)) == (bytes(header), bytes(header))
    assert [message.content for message in store.messages("r")] == [expected] * 10


@pytest.mark.parametrize("kind", [int, Int])
def test_every_form_of_a_dequeue_takes_the_message_off(store: MessageStore, kind: type[int]) -> None:
    queue = store.queue("q")
    for name in (queue, "q"):
        for dequeue in (store.dequeue, store._dequeue_slow):
            before = store.next_lsn
            assert before <= dequeue(kind(store.publish(queue, b"")), name, None, wait=False) < store.next_lsn
            with store.transaction() as transaction:
                assert dequeue(kind(store.publish(queue, b"")), name, transaction) > before
    assert queue.depth == 0


@pytest.mark.parametrize("kind", [int, Int])
def test_every_form_of_an_annotate_gives_the_place_the_note(store: MessageStore, kind: type[int]) -> None:
    queue = store.queue("q")
    key = kind(store.publish(queue, b""))
    (held,) = queue.acquire()
    for note in (b"n", b"", bytes(255), Bytes(b"s"), bytearray(b"a"), memoryview(b"v")):
        for name in (queue, "q"):
            for annotate in (store.annotate, store._annotate_slow):
                before = store.next_lsn
                assert before <= annotate(key, name, note, None, wait=False) < store.next_lsn
                assert held.note == bytes(note)
                with store.transaction() as transaction:
                    assert annotate(key, name, b"in it", transaction) > before
                assert held.note == b"in it"
    held.release()


def test_each_wrong_argument_gives_the_error_of_the_slow_path(store: MessageStore, tmp_path: Path) -> None:
    queue, deleted = store.queue("q"), store.declare_queue("deleted")
    store.delete_queue(deleted)
    there, locked = store.publish(queue, b"there"), store.publish(queue, b"locked")
    lock = store.begin()
    store.dequeue(locked, queue, lock)
    ended = store.begin()
    ended.rollback()
    with logstore.open(tmp_path / "other", segment_size=SMALL_SEGMENT) as other:
        strange = other.declare_queue("q")
        branch = other.begin()
        calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
            ("publish", (), {}),
            ("publish", (queue,), {}),
            ("publish", (queue, b"", b""), {}),
            ("publish", (queue, "text"), {}),
            ("publish", (queue, 7), {}),
            ("publish", (queue, b""), {"header": "text"}),
            ("publish", (queue, b""), {"header": None}),
            ("publish", (queue, b""), {"heading": b""}),
            ("publish", (queue, b""), {"transaction": 1}),
            ("publish", (queue, b""), {"transaction": ended}),
            ("publish", (queue, b""), {"transaction": branch}),
            ("publish", (queue, b""), {"header": bytes(1 << 20)}),
            *(("publish", (wrong, b""), {}) for wrong in (None, 1, "none", deleted, strange, [], [queue, queue])),
            ("dequeue", (there,), {}),
            ("dequeue", (there, queue, None, True), {}),
            ("dequeue", (there, queue), {"header": b""}),
            ("dequeue", (there, queue, None), {"transaction": None}),
            ("dequeue", (there, queue, ended), {}),
            ("dequeue", (there, queue, branch), {"wait": False}),
            ("dequeue", (there, "r"), {}),
            ("dequeue", (locked, queue), {}),
            ("annotate", (there, queue), {}),
            ("annotate", (there, queue, b"", None, True), {}),
            ("annotate", (there, queue, b""), {"header": b""}),
            ("annotate", (there, queue, b"", None), {"transaction": None}),
            ("annotate", (there, queue, b"", ended), {}),
            ("annotate", (there, queue, b"", branch), {"wait": False}),
            ("annotate", (there, "r", b""), {}),
            ("annotate", (locked, queue, b""), {}),
            *(
                ("annotate", (there, queue, wrong), {})
                for wrong in (None, 1, "note", [b""], bytes(256), bytearray(256))
            ),
            *(("annotate", (there, wrong, b""), {}) for wrong in (None, 1, "none", deleted, strange, [queue])),
            *(("dequeue", (there, wrong), {}) for wrong in (None, 1, "none", deleted, strange, [queue])),
            *(
                (name, (wrong, *rest), {})
                for wrong in (0, -1, 1, 1 << 63, 1 << 64, -(1 << 70), True, 1.0, "1", None, b"")
                for name, rest in (
                    ("dequeue", (queue,)),
                    ("annotate", (queue, b"")),
                    ("load_content", ()),
                    ("header", ()),
                )
            ),
            ("load_content", (), {}),
            ("header", (), {}),
            ("header", (there, 0), {}),
            ("load_content", (there, "1"), {}),
            ("load_content", (there,), {"size": 1}),
        ]
        before = store.stats()["messages"]
        for name, given, named in calls:
            found = outcome(lambda: getattr(store, name)(*given, **named))  # noqa: B023 - called at once
            slow = outcome(lambda: getattr(store, f"_{name}_slow")(*given, **named))  # noqa: B023 - called at once
            assert isinstance(found, tuple), (name, given, named)
            if found[0] is TypeError and f"_{name}_slow()" in slow[1]:  # type: ignore[index] # of the call itself
                assert found[0] is slow[0]  # type: ignore[index] # known by the line above
            else:
                assert found == slow, (name, given, named)
        assert store.stats()["messages"] == before
        branch.rollback()
    lock.rollback()


def test_a_slice_of_a_content_is_that_of_python(store: MessageStore) -> None:
    body = bytes(range(250)) * 100
    key = store.publish("q", body)
    for offset in (0, 1, 24_999, 25_000, 30_000, -1, -30_000):
        assert store.load_content(key, offset) == body[offset:]
        assert store.load_content(key, offset, 7) == body[offset:][:7]
        assert store.load_content(message_id=key, offset=offset, length=None) == body[offset:]


@pytest.mark.parametrize("size", [0, 1, 8000, 8191, 8192, 8193, 100_000, 3_000_000])
def test_a_content_of_any_size_is_loaded_whole_before_and_after_it_is_durable(store: MessageStore, size: int) -> None:
    body = os.urandom(size)
    with store.transaction() as transaction:
        key = store.publish("q", body, transaction=transaction)
    early = store.publish("q", body, wait=False)
    assert store.load_content(early) == store.load_content(key) == body


def test_an_lsn_is_told_and_awaited_alike_both_ways(store: MessageStore) -> None:
    store.force()
    for change in (lambda: None, lambda: store.publish("q", b"", wait=False)):
        change()
        assert type(store.next_lsn) is int
        assert store.next_lsn == store._next_lsn_slow()
        assert type(store.durable_lsn) is type(store.room_percent) is int
        assert store.room_percent == store._room_percent_slow()
    store.force()
    assert store.durable_lsn == store._durable_lsn_slow() == store.next_lsn
    for lsn in (0, 1, store.durable_lsn, Int(1)):
        assert store._undurable(lsn) == store._undurable_slow(lsn) == 0
    for lsn in (store.next_lsn + (1 << 30), Int(1 << 40), (1 << 63) - 1):
        assert store._undurable(lsn) == store._undurable_slow(lsn) == lsn
    for wrong in (-1, 1 << 63, 1 << 64, "1", None, 1.5, True):
        found = outcome(lambda: store._undurable(wrong))  # type: ignore[arg-type]  # noqa: B023 - called at once
        assert isinstance(found, tuple)
        assert found == outcome(lambda: store._undurable_slow(wrong))  # type: ignore[arg-type]  # noqa: B023


# ---- what the objects are bound to ----


def test_a_part_of_the_data_is_published_and_the_answer_left_if_there_is_an_eventfd_for_it(store: MessageStore) -> None:
    queue = store.queue("q")

    def publish(queue: Any, start: int, end: int, header: bytes = b"h") -> int:
        return store._publish_answered(queue, header, b"0123456789", start, end, -1, -1, b"confirmed")

    for start, end in ((0, 10), (3, 3), (9, 10)):
        lsn = publish(queue, start, end)
        assert -lsn == store.next_lsn
    store.force()
    found = [(each.header, each.content) for each in store.messages(queue)]
    assert found == [(b"h", b"0123456789"), (b"h", b""), (b"h", b"9")]
    for start, end in ((-1, 3), (4, 3), (0, 11)):
        with pytest.raises(ValueError, match=f"there are no bytes from {start} to {end}"):
            publish(queue, start, end)
    for refused in ("q", None, object()):
        assert publish(refused, 0, 1) == 0
    store.delete_queue("q")
    assert publish(queue, 0, 1) == 0
    other = store.queue("r")
    store.close()
    assert publish(other, 0, 1) == 0


def test_an_object_is_bound_to_one_core_and_once(store: MessageStore) -> None:
    queue, transaction = store.queue("q"), store.begin()
    for attach in (
        lambda: store._attach(store._owner, {}, False),
        lambda: store._attach(_hot.Owner("store"), {}, False),  # an empty one
        lambda: _hot.StoreCalls()._attach(object(), {}, False),  # type: ignore[arg-type]
        lambda: queue._attach(store, 7),
        lambda: transaction._attach(store, store._owner),
        lambda: _hot.bind(0, Exception),  # type: ignore[arg-type] # wrong on purpose
    ):
        with pytest.raises(ValueError, match="once|NULL|owner"):
            attach()
    assert store.publish(queue, b"", transaction=transaction)
    transaction.rollback()


def test_an_object_that_is_bound_to_nothing_reaches_no_core() -> None:
    unbound = _hot.StoreCalls()
    for call in (
        lambda: unbound.publish("q", b""),
        lambda: unbound.load_content(1),
        lambda: unbound.next_lsn,
        lambda: unbound._undurable(1),
    ):
        with pytest.raises(AttributeError, match="_slow"):
            call()


def test_a_transaction_whose_finalizer_has_run_reaches_no_freed_memory(store: MessageStore) -> None:
    transaction = store.begin()
    transaction.__del__()
    for use in (
        lambda: store.publish("q", b"", transaction=transaction),
        lambda: store.publish(store.queue("q"), b"", transaction=transaction),
        transaction.commit,
    ):
        with pytest.raises(logstore.TransactionEnded, match="rolled back"):
            use()
    assert (transaction.state, store.stats()["transactions"]) == ("rolled_back", 0)


def test_a_store_and_its_transaction_in_a_cycle_are_collected(tmp_path: Path) -> None:
    store = logstore.open(tmp_path / "store", segment_size=SMALL_SEGMENT)
    queue = store.declare_queue("q")
    transaction = store.begin()
    store.publish(queue, b"", transaction=transaction)
    transaction.cycle = [store, queue, transaction]  # type: ignore[attr-defined] # not in its type
    store.close()
    left = [weakref.ref(each) for each in (store, queue, transaction)]
    del store, queue, transaction
    gc.collect()
    assert [each() for each in left] == [None] * 3


# ---- references ----


def test_no_call_keeps_or_drops_a_reference(store: MessageStore) -> None:
    queue, transaction = store.queue("q"), store.begin()
    content, header = bytes(300), bytes(30)
    key = store.publish(queue, content)
    ended = store.begin()
    ended.rollback()
    named = {"header": header, "transaction": transaction}
    watched = [store, queue, transaction, ended, content, header, key, named, _hot, _hot.StoreCalls, logstore.Message]

    def use() -> None:
        taken = store.publish(queue, content, header=header, wait=False)
        store.dequeue(taken, queue, wait=False)
        store.publish(queue, content, **named)
        store.publish(queue, bytearray(content), wait=False)
        store.load_content(key)
        store.header(key)
        store._undurable(store.next_lsn)
        assert store._publish_answered(queue, header, content, 1, 9, -1, -1, b"confirmed") < 0
        for kind in ({}, {"load": True}, {"views": True}):
            for message in store.messages(queue, **kind):
                assert message.content
        for wrong in (
            lambda: store.publish(queue, content, transaction=ended),
            lambda: store.publish(None, content),  # type: ignore[arg-type] # wrong on purpose
            lambda: store.dequeue(1, queue),
            lambda: store.load_content(1),
            lambda: store._undurable("1"),  # type: ignore[arg-type] # wrong on purpose
            lambda: store._publish_answered(queue, header, content, 0, 301, -1, -1, b""),
        ):
            with contextlib.suppress(logstore.StoreError, TypeError, ValueError):
                wrong()

    use()
    before = [sys.getrefcount(each) for each in watched]
    for _ in range(20):
        use()
    gc.collect()
    assert [sys.getrefcount(each) for each in watched] == before
    transaction.rollback()


def test_calls_leave_no_memory_behind(store: MessageStore) -> None:
    queue, content = store.queue("q"), bytes(500)

    def use() -> None:
        for _ in range(300):
            key = store.publish(queue, content, wait=False)
            store.load_content(key)
            list(store.messages(queue, views=True))
            store.dequeue(key, queue, wait=False)
            with contextlib.suppress(logstore.UnknownMessage):
                store.dequeue(key, queue, wait=False)

    use()
    tracemalloc.start()
    try:
        use()
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(25):
            use()
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] - before < 80_000  # one object a call would be 200,000
    finally:
        tracemalloc.stop()


# ---- closed, forked, re-entered ----


def test_a_store_that_is_closed_while_threads_call_it_answers_that_it_is_closed(tmp_path: Path) -> None:
    store = logstore.open(tmp_path / "store", segment_size=SMALL_SEGMENT)
    queue = store.declare_queue("q")
    problems: list[BaseException] = []
    counts = [0] * 4

    def work(number: int) -> None:
        try:
            while True:
                key = store.publish(queue, bytes(2000), wait=number == 0)
                store.load_content(key)
                for _ in store.messages(queue, views=True):
                    break
                store.dequeue(key, queue, wait=False)
                counts[number] += 1
        except BaseException as problem:  # noqa: BLE001 - compared below
            problems.append(problem)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    while min(counts) < 20:
        pass
    store.close()
    for thread in threads:
        thread.join()
    assert [type(problem) for problem in problems] == [logstore.StoreClosed] * 4
    with logstore.open(tmp_path / "store") as again:
        assert len(list(again.messages("q", load=True))) <= 4


def test_a_forked_child_gets_store_forked_from_every_call(store: MessageStore) -> None:
    queue = store.queue("q")
    key, transaction = store.publish(queue, b"x"), store.begin()
    child = os.fork()
    if child == 0:
        found = [
            outcome(call)
            for call in (
                lambda: store.publish(queue, b""),
                lambda: store.publish(queue, b"", wait=False),
                lambda: store.publish(queue, b"", transaction=transaction),
                lambda: store.dequeue(key, queue, wait=False),
                lambda: store.load_content(key),
                lambda: list(store.messages(queue, load=True)),
                lambda: store.next_lsn,
                lambda: store.durable_lsn,
                lambda: store.room_percent,
                lambda: store.nearly_full,
            )
        ]
        os._exit(0 if [each[0] for each in found] == [logstore.StoreForked] * 10 else 1)  # type: ignore[index] # an outcome is a tuple here
    assert os.waitpid(child, 0)[1] == 0
    transaction.rollback()
    assert store.load_content(key) == b"x"


def test_a_finalizer_may_call_the_store_while_messages_are_listed(store: MessageStore) -> None:
    queue = store.queue("q")
    keys = store.publish_many(queue, [bytes(100)] * 2000)
    ran = 0

    class Finalized:
        def __init__(self) -> None:
            self.cycle = self

        def __del__(self) -> None:
            nonlocal ran
            ran += 1
            store.dequeue(store.publish(queue, b"by a finalizer", wait=False), queue, wait=False)

    threshold = gc.get_threshold()
    gc.set_threshold(5)
    try:
        seen = []
        for message in store.messages(queue, views=True):
            Finalized()
            seen.append(message.id)
    finally:
        gc.set_threshold(*threshold)
    gc.collect()
    assert seen[: len(keys)] == list(keys)
    assert ran > 100
