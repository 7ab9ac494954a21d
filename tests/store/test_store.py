"""The store as a whole: lifecycle, durability, publishing and reading, options, and its files."""

from __future__ import annotations

import array
import asyncio
import gc
import mmap
import os
import stat
import threading
import time
import warnings
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import logstore
from kit.patience import wait_until
from kit.stores import SMALL_SEGMENT, contents, segment_files
from logstore import errors
from logstore.core import arguments

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from logstore import MessageStore

pytestmark = pytest.mark.on_disk

Open = Any

SPARES_MAX = 4  # two are reserved for opening a full store, and at most two more stand by


def copy_of(directory: Path, target: Path) -> Path:
    """A copy as after a crash of the process: the files as they are now, without the lock."""
    target.mkdir()
    for file in directory.iterdir():
        if file.is_file():
            (target / file.name).write_bytes(file.read_bytes())
    return target


# ---- lifecycle ----


def test_a_store_is_made_with_the_directories_above_it(tmp_path: Path, open_store: Open) -> None:
    store = open_store(tmp_path / "a" / "b" / "c")
    assert store.recovery.created
    assert store.path == tmp_path / "a" / "b" / "c"
    assert (store.path / "META").is_file()


def test_the_store_is_a_context_manager_and_closes_at_the_end(open_store: Open) -> None:
    with open_store() as store:
        queue = store.declare_queue("q")
        store.publish(queue, b"kept")
    with pytest.raises(errors.StoreClosed, match="open it again"):
        store.publish(queue, b"late")
    assert contents(open_store().queue("q")) == [b"kept"]


def test_closing_twice_is_harmless(store: MessageStore) -> None:
    store.close()
    store.close()


def test_closing_wakes_the_thread_that_calls_listeners(store: MessageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logstore.store.completions._STOP_POLL_MS", 120_000)
    store.on_durable(lambda lsn: None)
    store.publish(store.declare_queue("q"), b"x")
    started = time.monotonic()
    store.close()
    assert time.monotonic() - started < 60


def test_every_operation_on_a_closed_store_says_so(store: MessageStore) -> None:
    queue = store.declare_queue("q")
    key = store.publish(queue, b"x")
    delivery = queue.acquire()[0]
    tx = store.begin()
    store.close()
    calls: list[Callable[[], object]] = [
        lambda: store.publish(queue, b""),
        lambda: store.publish_many(queue, [b""]),
        lambda: store.stage(),
        lambda: store.append_content(key, b""),
        lambda: store.enqueue(key, queue),
        lambda: store.dequeue(key, queue),
        lambda: store.dequeue_many([key], queue),
        lambda: store.destroy(key),
        lambda: store.load_content(key),
        lambda: store.header(key),
        lambda: list(store.messages(queue)),
        lambda: store.begin(),
        lambda: store.in_doubt(),
        lambda: store.force(),
        lambda: store.compact(),
        lambda: store.tail(),
        lambda: store.stats(),
        lambda: store.declare_queue("q"),
        lambda: store.queue("q"),
        lambda: store.queues(),
        lambda: store.delete_queue(queue),
        lambda: store.declare_exchange("e"),
        lambda: store.exchanges(),
        lambda: store.bindings(),
        lambda: store.config.get("a"),
        lambda: queue.acquire(),
        lambda: queue.depth,
        lambda: queue.purge(),
        lambda: delivery.accept(),
        lambda: tx.commit(),
        lambda: asyncio.run(store.durable(1 << 40)),
    ]
    for number, call in enumerate(calls):
        with pytest.raises(errors.StoreClosed):
            print(number, call())


def test_a_dropped_store_warns_and_releases_its_lock(store_dir: Path, open_store: Open) -> None:
    store = logstore.open(store_dir, segment_size=SMALL_SEGMENT)
    queue = store.declare_queue("q")
    store.publish_many(queue, [b"%d" % i for i in range(600)])
    queue.acquire(3)
    abandoned = store.messages(queue)
    next(abandoned)
    transaction = store.begin()
    store.publish(queue, b"never", transaction=transaction)
    with pytest.warns(ResourceWarning, match="not closed"):
        del store, queue, transaction, abandoned
        gc.collect()
    assert open_store().queue("q").depth == 600


def test_handles_that_outlive_a_closed_store_are_freed_in_any_order(store_dir: Path) -> None:
    for _ in range(20):
        store = logstore.open(store_dir, segment_size=SMALL_SEGMENT)
        queue = store.declare_queue("q")
        store.publish(queue, b"x")
        queue.acquire(1)
        listing = store.messages(queue)
        next(listing)
        transaction = store.begin()
        store.close()
        del store, queue
        gc.collect()
        del listing, transaction
        gc.collect()


def test_a_forked_child_is_told_to_open_for_itself_and_disturbs_nobody(store: MessageStore, open_store: Open) -> None:
    queue = store.declare_queue("q")
    key = store.publish(queue, b"parent")
    calls: list[Callable[[], object]] = [
        lambda: store.publish(queue, b"child"),
        lambda: store.load_content(key),
        lambda: store.force(),
        lambda: store.stats(),
        lambda: store.declare_queue("other"),
        lambda: store.begin(),
        lambda: queue.acquire(),
        lambda: queue.depth,
        lambda: store.base_lsn,
        lambda: store.next_lsn,
        lambda: store.durable_lsn,
        lambda: store.tail(),
        lambda: store.config["x"],
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # fork in a process with threads
        child = os.fork()
    if child == 0:
        wrong = 0
        for call in calls:
            try:
                call()
            except errors.StoreForked as problem:
                wrong += "after fork" not in str(problem)
            except BaseException:  # noqa: BLE001 - counted, and shown by the exit status
                wrong += 1
            else:
                wrong += 1
        store.close()  # does nothing
        os._exit(wrong)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert store.publish(queue, b"parent again") > key
    store.close()
    assert contents(open_store().queue("q")) == [b"parent", b"parent again"]


def test_a_child_does_not_keep_the_parents_lock(store: MessageStore, open_store: Open) -> None:
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        os.close(writer)
        os.read(reader, 1)  # until the parent releases it
        os._exit(0)
    os.close(reader)
    store.close()
    open_store().close()
    os.close(writer)
    os.waitpid(child, 0)


# ---- durability ----


def test_a_publish_is_durable_when_it_returns(store: MessageStore, tmp_path: Path, open_store: Open) -> None:
    queue = store.declare_queue("q")
    store.publish(queue, b"acknowledged")
    assert store.durable_lsn == store.next_lsn
    crashed = open_store(copy_of(store.path, tmp_path / "crashed"))
    assert contents(crashed.queue("q")) == [b"acknowledged"]
    assert not crashed.recovery.clean


def test_every_changing_operation_is_durable_when_it_returns(store: MessageStore) -> None:
    first, second = store.declare_queue("first"), store.declare_queue("second")

    def settled() -> bool:
        return store.durable_lsn == store.next_lsn

    key = store.publish(first, b"x")
    assert settled()
    store.enqueue(key, second)
    assert settled()
    store.dequeue(key, second)
    assert settled()
    keys = store.publish_many(first, [b"a", b"b"])
    assert settled()
    store.dequeue_many(keys, first)
    assert settled()
    store.destroy(store.stage())
    assert settled()
    with store.transaction() as transaction:
        store.publish(first, b"t", transaction=transaction)
    assert settled()
    transaction = store.begin()
    store.publish(first, b"t", transaction=transaction)
    transaction.rollback()
    assert settled()
    first.acquire()[0].accept()
    assert settled()
    first.acquire()[0].reject()
    assert settled()
    store.publish(first, b"y", wait=False)
    first.purge()
    assert settled()
    store.delete_queue(second)
    assert settled()
    store.append_content(store.stage(b"h", [b"a", b"b"], wait=True), [b"c", b"d"], wait=True)
    assert settled()


def test_without_waiting_a_force_of_the_next_lsn_makes_it_durable(store: MessageStore) -> None:
    queue = store.declare_queue("q")
    for number in range(100):
        key = store.publish(queue, b"%d" % number, wait=False)
        assert store.next_lsn > key >= store.base_lsn
    ticket = store.next_lsn
    store.force(ticket)
    assert store.durable_lsn >= ticket
    store.force()
    store.force(0)
    assert store.durable_lsn == store.next_lsn


@pytest.mark.parametrize("beyond", [1, 1 << 40])
def test_a_force_beyond_the_end_of_the_log_is_refused(store: MessageStore, beyond: int) -> None:
    store.publish(store.declare_queue("q"), b"x", wait=False)
    end = store.next_lsn
    with pytest.raises(logstore.OptionError, match=f"LSN {end + beyond} lies beyond the end of the log, {end}"):
        store.force(end + beyond)


@pytest.mark.parametrize("content", [{"a": 1}, {"a"}, 5, None, object()])
def test_content_that_is_no_buffer_is_named_in_the_refusal(store: MessageStore, content: object) -> None:
    queue = store.declare_queue("q")
    with pytest.raises(TypeError, match=r"^content is bytes or another buffer, not ") as refused:
        store.publish(queue, content)  # type: ignore[arg-type] # what is refused
    assert arguments.shown(content) in str(refused.value)
    assert queue.depth == 0


def test_without_waiting_it_becomes_durable_by_itself(store: MessageStore) -> None:
    queue = store.declare_queue("q")
    store.publish(queue, b"x", wait=False)
    ticket = store.next_lsn
    wait_until(lambda: store.durable_lsn >= ticket)


def test_the_lsns_only_grow_and_stand_in_order(store: MessageStore) -> None:
    queue = store.declare_queue("q")
    before = (store.base_lsn, store.durable_lsn, store.next_lsn)
    for _ in range(300):
        keys = store.publish_many(queue, [bytes(3000)] * 5, wait=False)
        store.dequeue_many(keys, queue, wait=False)
        now = (store.base_lsn, store.durable_lsn, store.next_lsn)
        assert all(a <= b for a, b in zip(before, now, strict=True))
        assert now[1] <= now[2]
        before = now
    assert store.base_lsn > keys[-1] - 20 * SMALL_SEGMENT  # the base follows the consumer


def test_undurable_bytes_never_exceed_their_limit(open_store: Open) -> None:
    store = open_store(max_undurable_bytes=2 * SMALL_SEGMENT)
    queue = store.declare_queue("q")
    for _ in range(200):
        store.publish(queue, bytes(20_000), wait=False)
        durable, end = store.durable_lsn, store.next_lsn
        assert end - durable <= 2 * SMALL_SEGMENT


def test_relaxed_durability_returns_at_once_and_is_named_in_every_statistic(open_store: Open) -> None:
    with open_store() as strict:
        assert strict.stats()["durability"] == "strict"
    with open_store(durability="relaxed") as store:
        assert store.stats()["durability"] == "relaxed"
        queue = store.declare_queue("q")
        started = store.stats()["syncs"]
        for number in range(2000):
            store.publish(queue, b"%d" % number)
        assert store.stats()["syncs"] - started < 1900
        store.force()
        assert store.durable_lsn == store.next_lsn
    assert open_store().queue("q").depth == 2000


# ---- publishing ----


def test_a_message_comes_back_as_it_was_given(store: MessageStore) -> None:
    queue = store.declare_queue("q")
    key = store.publish(queue, b"body", header=b"head")
    assert store.load_content(key) == b"body"
    assert store.header(key) == b"head"
    (message,) = store.messages(queue)
    assert (message.id, message.size, message.header, message.content) == (key, 4, b"head", b"body")
    assert not message.locked
    assert not message.redelivered


def test_a_fan_out_is_one_message_on_every_queue(store: MessageStore, open_store: Open) -> None:
    queues = [store.declare_queue(f"q{i}") for i in range(5)]
    before = store.stats()
    key = store.publish(queues, b"to all", header=b"h")
    after = store.stats()
    assert after["messages"] - before["messages"] == 1
    assert after["places"] - before["places"] == 5
    assert after["records"] - before["records"] == 1
    store.dequeue(key, queues[2])
    store.close()
    store = open_store()
    assert [len(contents(queue)) for queue in store.queues()] == [1, 1, 0, 1, 1]
    assert store.load_content(key) == b"to all"


def test_a_fan_out_takes_handles_names_and_generators(store: MessageStore) -> None:
    first, second = store.declare_queue("first"), store.declare_queue("second")
    store.publish((queue for queue in [first, "second"]), b"1")
    store.publish((queue for queue in ["first", second]), iter([b"2", b"", b"2"]))
    assert contents(first) == contents(second) == [b"1", b"22"]


def test_a_fan_out_that_names_a_queue_twice_or_none_is_refused_and_leaves_nothing(store: MessageStore) -> None:
    queue = store.declare_queue("q")
    for content in (b"short", [b"in", b"parts"], bytes(SMALL_SEGMENT)):
        with pytest.raises(errors.OptionError, match="twice"):
            store.publish([queue, "q"], content)
        with pytest.raises(errors.OptionError, match="list of queues is empty"):
            store.publish([], content)
        with pytest.raises(errors.UnknownQueue):
            store.publish([queue, "nowhere"], content)
    assert store.stats()["messages"] == 0


def test_a_publish_that_fails_in_its_content_leaves_nothing(store: MessageStore) -> None:
    queue = store.declare_queue("q")

    def broken() -> Any:
        yield b"first"
        yield bytes(100_000)
        raise LookupError("the source broke")

    with pytest.raises(LookupError):
        store.publish(queue, broken())
    with pytest.raises(TypeError):
        store.publish(queue, [b"bytes", "and text"])
    with pytest.raises(TypeError):
        store.publish(queue, "text")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        store.publish(queue, 5)  # type: ignore[arg-type]
    assert store.stats()["messages"] == 0
    assert queue.depth == 0


def every_buffer(data: bytes, directory: Path) -> dict[str, Any]:
    import pyarrow as pa

    file = directory / "content"
    file.write_bytes(data + b"\0")
    with file.open("r+b") as opened:
        mapped = mmap.mmap(opened.fileno(), len(data)) if data else b""
    return {
        "bytes": data,
        "bytearray": bytearray(data),
        "memoryview": memoryview(b"<" + data + b">")[1:-1],
        "array": array.array("B", data),
        "mmap": mapped,
        "pyarrow.Buffer": pa.py_buffer(data),
        "list": [data[:10], data[10:]],
        "generator": (data[at : at + 7] for at in range(0, len(data), 7)),
        "buffers of many kinds": [bytearray(data[:5]), memoryview(data)[5:9], b"", pa.py_buffer(data[9:])],
    }


@pytest.mark.parametrize("size", [0, 1, 100, 40_000, 200_000])
def test_content_is_any_buffer_or_an_iterable_of_buffers(store: MessageStore, tmp_path: Path, size: int) -> None:
    queue = store.declare_queue("q")
    data = bytes(i * 7 % 251 for i in range(size))
    for kind, content in every_buffer(data, tmp_path).items():
        key = store.publish(queue, content, header=bytearray(b"h"))
        assert store.load_content(key) == data, kind
        assert store.header(key) == b"h"
    staged = store.stage(memoryview(b"head"), array.array("I", [1, 2, 3]))
    assert store.load_content(staged) == array.array("I", [1, 2, 3]).tobytes()
    with pytest.raises(logstore.OptionError, match="not contiguous"):
        store.publish(queue, memoryview(bytes(100))[::2])


def test_a_header_has_its_own_limit_and_a_sentence_for_it(store: MessageStore) -> None:
    queue = store.declare_queue("q")
    largest = SMALL_SEGMENT // 16 - 200
    key = store.publish(queue, b"c", header=bytes(largest))
    assert store.header(key) == bytes(largest)
    with pytest.raises(errors.OptionError, match="header needs .* larger segment_size"):
        store.publish(queue, b"c", header=bytes(SMALL_SEGMENT // 16))
    with pytest.raises(errors.OptionError, match="header"):
        store.stage(bytes(SMALL_SEGMENT))
    assert store.stats()["messages"] == 1


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_load_content_slices_as_python_does(store: MessageStore, data: st.DataObject) -> None:
    sizes = st.integers(0, 3) | st.integers(0, 200) | st.integers(30_000, 100_000)
    parts = [bytes([i + 1]) * n for i, n in enumerate(data.draw(st.lists(sizes, max_size=4)))]
    whole = b"".join(parts)
    near = st.integers(-len(whole) - 3, len(whole) + 3) | st.sampled_from([0, 1, -1, 2**70, -(2**70)])
    key = store.stage(b"", parts)
    for _ in range(8):
        offset, length = data.draw(near), data.draw(st.none() | near)
        assert store.load_content(key, offset, length) == whole[offset:][:length]
    assert store.load_content(key) == whole
    store.destroy(key, wait=False)


def test_a_staged_message_grows_until_it_is_enqueued(store: MessageStore) -> None:
    queue, other = store.declare_queue("q"), store.declare_queue("other")
    key = store.stage(b"head", b"one ")
    store.append_content(key, b"two ")
    store.append_content(key, [b"three", b" ", b"four"])
    assert queue.depth == 0
    lsn = store.enqueue(key, [queue, "other"])
    assert key < lsn < store.next_lsn
    assert contents(queue) == contents(other) == [b"one two three four"]
    with pytest.raises(errors.MessageInUse):
        store.append_content(key, b"five")
    with pytest.raises(errors.AlreadyEnqueued):
        store.enqueue(key, queue)


def test_an_enqueue_on_several_queues_happens_on_all_or_none(store: MessageStore) -> None:
    first, second = store.declare_queue("first"), store.declare_queue("second")
    key = store.publish(second, b"x")
    with pytest.raises(errors.AlreadyEnqueued):
        store.enqueue(key, [first, second])
    assert (first.depth, second.depth) == (0, 1)


def test_a_staged_message_is_destroyed_or_dropped_by_the_next_open(store: MessageStore, open_store: Open) -> None:
    queue = store.declare_queue("q")
    gone, left = store.stage(b"", b"destroyed"), store.stage(b"", b"left")
    store.destroy(gone)
    with pytest.raises(errors.UnknownMessage):
        store.load_content(gone)
    with pytest.raises(errors.UnknownMessage):
        store.destroy(gone)
    store.close()
    store = open_store()
    assert store.recovery.staged_dropped == 1
    with pytest.raises(errors.UnknownMessage):
        store.enqueue(left, queue.name)


def test_a_message_with_a_place_or_pending_work_is_not_destroyed(store: MessageStore) -> None:
    queue = store.declare_queue("q")
    key = store.publish(queue, b"x")
    with pytest.raises(errors.MessageInUse, match="dequeue it"):
        store.destroy(key)
    staged = store.stage(b"", b"y")
    transaction = store.begin()
    store.enqueue(staged, queue, transaction)
    with pytest.raises(errors.MessageInUse):
        store.destroy(staged)
    transaction.rollback()
    store.destroy(staged)


def test_with_its_last_place_a_message_is_gone(store: MessageStore) -> None:
    first, second = store.declare_queue("first"), store.declare_queue("second")
    key = store.publish([first, second], b"x")
    store.dequeue(key, first)
    assert store.load_content(key) == b"x"
    with pytest.raises(errors.NotEnqueued):
        store.dequeue(key, first)
    store.dequeue(key, second)
    for call in (store.load_content, store.header, store.destroy):
        with pytest.raises(errors.UnknownMessage):
            call(key)
    with pytest.raises(errors.UnknownMessage):
        store.dequeue(key, second)


def test_a_message_may_come_back_to_a_queue_and_stands_at_its_end(store: MessageStore, open_store: Open) -> None:
    queue, other = store.declare_queue("q"), store.declare_queue("other")
    first, _ = store.publish([queue, other], b"first"), store.publish(queue, b"second")
    store.dequeue(first, queue)
    store.enqueue(first, queue)
    assert contents(queue) == [b"second", b"first"]
    store.close()
    assert contents(open_store().queue("q")) == [b"second", b"first"]


# ---- batches ----


def chunked(items: list[bytes], size: int, kind: Any) -> Any:
    import pyarrow as pa

    return pa.chunked_array([pa.array(items[at : at + size], kind) for at in range(0, len(items), size)], kind)


def many_ways(items: list[bytes]) -> dict[str, Any]:
    import pyarrow as pa

    padded = [b"before"] * 3 + items + [b"after"]
    return {
        "list": items,
        "tuple": tuple(items),
        "generator": (item for item in items),
        "bytearrays": [bytearray(item) for item in items],
        "binary": pa.array(items, pa.binary()),
        "large_binary": pa.array(items, pa.large_binary()),
        "sliced": pa.array(padded, pa.binary())[3:-1],
        "sliced large": pa.array(padded, pa.large_binary()).slice(3, len(items)),
        "chunked": chunked(items, 7, pa.binary()),
        "chunked and sliced": chunked(padded, 5, pa.large_binary()).slice(3, len(items)),
    }


@pytest.mark.parametrize("count", [0, 1, 2, 50])
def test_publish_many_takes_any_iterable_and_arrow_arrays_whole(store: MessageStore, count: int) -> None:
    items = [b"<%d>" % i * (i % 5) for i in range(count)]
    for name, contents_given in many_ways(items).items():
        queue = store.declare_queue(name)
        ids = store.publish_many(queue, contents_given)
        assert len(ids) == count
        assert list(ids) == sorted(set(ids))
        assert contents(queue) == items, name
        assert [message.id for message in queue.browse()] == list(ids)


def test_publish_many_gives_each_content_its_header(store: MessageStore) -> None:
    import pyarrow as pa

    items = [b"c%d" % i for i in range(5000)]
    heads = [b"h%d" % i * (i % 3) for i in range(5000)]
    for name, given_items, given_heads in [
        ("lists", items, heads),
        ("generators", iter(items), (head for head in heads)),
        ("arrow", pa.array(items), pa.array(heads)),
    ]:
        queue = store.declare_queue(name)
        store.publish_many(queue, given_items, headers=given_heads)
        assert [message.header for message in queue.browse()] == heads
        assert contents(queue) == items


def test_publish_many_reads_every_kind_of_buffer_and_holds_none_afterwards(store: MessageStore, tmp_path: Path) -> None:
    import pyarrow as pa

    queue = store.declare_queue("q")
    (tmp_path / "file").write_bytes(b"mapped")
    growing = [bytearray(b"%d" % number) for number in range(50)]
    with (tmp_path / "file").open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        given = [
            b"bytes",
            memoryview(b"a view")[2:],
            mapped,
            array.array("I", [1, 2]),
            pa.py_buffer(b"arrow"),
            *growing,
        ]
        expected = [bytes(item) for item in given]
        for kind in (list, tuple, iter):
            ids = store.publish_many(queue, kind(given), headers=kind(given[::-1]))
            assert [store.load_content(each) for each in ids] == expected
            assert [store.header(each) for each in ids] == expected[::-1]
    for item in growing:
        item += b"an exported bytearray could not grow"


@pytest.mark.parametrize(
    "wrong", [5, "text", None, memoryview(bytes(10))[::2], [b"x"]], ids=lambda wrong: type(wrong).__name__
)
def test_an_item_that_is_no_buffer_is_refused_before_its_piece_is_stored(store: MessageStore, wrong: Any) -> None:
    queue = store.declare_queue("q")
    growing = bytearray(b"x")
    for items, headers in [
        ([growing, wrong], None),
        ([growing, b"y"], [growing, wrong]),
        (iter([wrong]), None),
        (iter([b"y"]), [wrong]),
    ]:
        with pytest.raises(TypeError, match="buffer") as caught:
            store.publish_many(queue, items, headers=headers)
        assert list(caught.value.published) == []  # type: ignore[attr-defined] # not in its type
    assert queue.depth == 0
    growing += b"an exported bytearray could not grow"


def test_publish_many_refuses_another_number_of_headers_before_it_stores_anything(store: MessageStore) -> None:
    queue = store.declare_queue("q")
    for heads in ([], [b"1"], [b"1", b"2", b"3"]):
        with pytest.raises(errors.OptionError, match="headers for"):
            store.publish_many(queue, [b"a", b"b"], headers=heads)
    assert queue.depth == 0


def test_publish_many_refuses_values_that_are_no_list_of_contents(store: MessageStore) -> None:
    import pyarrow as pa

    queue = store.declare_queue("q")
    for wrong in (b"one buffer", "text", 5, memoryview(b"x"), pa.py_buffer(b"x")):
        with pytest.raises(TypeError):
            store.publish_many(queue, wrong)  # type: ignore[arg-type]
    with pytest.raises(errors.OptionError, match="null"):
        store.publish_many(queue, pa.array([b"a", None]))
    with pytest.raises(errors.OptionError, match="binary"):
        store.publish_many(queue, pa.array([1, 2]))
    assert queue.depth == 0


def test_a_failing_publish_many_lists_the_stored_messages_and_has_made_them_durable(store: MessageStore) -> None:
    queue = store.declare_queue("q")

    def source() -> Any:
        yield from (b"%d" % i for i in range(5000))
        raise LookupError("the source broke")

    with pytest.raises(LookupError) as caught:
        store.publish_many(queue, source())
    stored = list(caught.value.published)  # type: ignore[attr-defined]
    assert [message.id for message in queue.browse()] == stored
    assert len(stored) == 5000
    assert store.durable_lsn == store.next_lsn


def test_dequeue_many_takes_lists_arrays_and_generators(store: MessageStore) -> None:
    queue = store.declare_queue("q")
    ids = store.publish_many(queue, [b"%d" % i for i in range(9)])
    store.dequeue_many(ids[:2], queue)
    store.dequeue_many(list(ids[2:4]), "q")
    store.dequeue_many((key for key in ids[4:6]), queue)
    store.dequeue_many(array.array("L", ids[6:8]), queue)
    assert contents(queue) == [b"8"]
    store.dequeue_many([], queue)
    syncs = store.stats()["syncs"]
    more = store.publish_many(queue, [b"x"] * 100)
    store.dequeue_many(more, queue)
    assert store.stats()["syncs"] - syncs == 2


def test_ids_that_change_during_dequeue_many_count_as_they_were_checked(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    from logstore._core import lib
    from logstore.store import message_store

    queue = store.declare_queue("q")
    ids = array.array("Q", store.publish_many(queue, [b"%d" % i for i in range(4)]))
    given = ids[:2]

    class Changing:
        """The core, and another thread that changes the ids just before the core reads them."""

        def __getattr__(self, name: str) -> Any:
            return getattr(lib, name)

        def ls_dequeue_many(self, *arguments: Any) -> int:
            given[:] = array.array("Q", [ids[3], ids[3]])
            return int(lib.ls_dequeue_many(*arguments))

    monkeypatch.setattr(message_store, "lib", Changing())
    store.dequeue_many(given, queue)
    assert contents(queue) == [b"2", b"3"]


def test_dequeue_many_checks_every_id_before_it_takes_the_first(store: MessageStore) -> None:
    queue, other = store.declare_queue("q"), store.declare_queue("other")
    ids = list(store.publish_many(queue, [b"a", b"b", b"c"]))
    elsewhere = store.publish(other, b"d")
    small = array.array("H", [1, 2, 3])  # as many numbers, in fewer bytes
    for wrong, error in [
        ([*ids, elsewhere], errors.NotEnqueued),
        ([*ids, 1], errors.UnknownMessage),
        ([*ids, 0], errors.UnknownMessage),
        ([*ids, -1], errors.UnknownMessage),
        ([*ids, 2**64], errors.UnknownMessage),
        (small, errors.UnknownMessage),
        ([*ids, ids[0]], errors.OptionError),
        ([*ids, "7"], TypeError),
        ([*ids, True], TypeError),
    ]:
        with pytest.raises(error):
            store.dequeue_many(wrong, queue)  # type: ignore[arg-type]
        assert queue.depth == 3


# ---- listing ----


def test_messages_is_lazy_and_may_be_abandoned_while_its_queue_changes(store: MessageStore) -> None:
    queue = store.declare_queue("q")
    ids = store.publish_many(queue, [b"%d" % i for i in range(1000)])
    listing = store.messages(queue)
    seen = [next(listing).id for _ in range(300)]
    store.dequeue_many(ids[250:600], queue)
    last = store.publish(queue, b"added")
    rest = [message.id for message in listing]
    assert seen == list(ids[:300])
    assert rest[-1] == last
    assert set(rest) >= set(ids[600:])
    assert rest == sorted(rest)
    abandoned = store.messages(queue)
    next(abandoned)
    del abandoned
    forgotten = store.messages(queue)
    next(forgotten)
    store.delete_queue(queue)
    with pytest.raises(errors.UnknownQueue):
        list(forgotten)


def test_messages_lists_locked_and_acquired_places_but_no_pending_enqueue(store: MessageStore) -> None:
    queue = store.declare_queue("q")
    first, second, _ = (store.publish(queue, content) for content in (b"1", b"2", b"3"))
    held = queue.acquire(1)
    transaction = store.begin()
    store.dequeue(second, queue, transaction)
    store.publish(queue, b"pending", transaction=transaction)
    assert [(message.content, message.locked) for message in store.messages("q")] == [
        (b"1", False),
        (b"2", True),
        (b"3", False),
    ]
    assert queue.depth == 3
    per_queue = store.stats()["queues"]["q"]
    assert per_queue == {"depth": 3, "locked": 1, "acquired": len(held), "hidden": 0, "expired": 0}
    transaction.commit()
    assert contents(queue) == [b"1", b"3", b"pending"]
    assert first in {message.id for message in queue.browse()}


# ---- recovery ----


def test_everything_is_restored_after_an_orderly_close(store: MessageStore, open_store: Open) -> None:
    queue = store.declare_queue("q", arguments={"max": 3})
    kept = store.publish(queue, bytes(100_000), header=b"big")
    store.dequeue(store.publish(queue, b"gone"), queue)
    end = store.next_lsn
    store.close()
    again = open_store()
    report = again.recovery
    assert report.clean
    assert not report.created
    assert report.torn_bytes == 0
    assert (report.messages, report.places) == (1, 1)
    assert report.end_lsn > end
    assert report.epoch == 2
    assert report.total_us >= report.scan_us
    assert again.queue("q").arguments == {"max": 3}
    (message,) = again.messages("q")
    assert (message.id, message.redelivered, message.size) == (kept, False, 100_000)
    assert message.content == bytes(100_000)


def test_ids_are_never_reused_not_even_those_that_never_reached_the_disk(open_store: Open, tmp_path: Path) -> None:
    store = open_store(durability="relaxed")
    queue = store.declare_queue("q")
    store.publish(queue, b"x")
    store.force()
    image = copy_of(store.path, tmp_path / "crashed")
    lost = [store.publish(queue, bytes(3000), wait=False) for _ in range(100)]
    again = open_store(image)
    assert again.publish(again.queue("q"), b"new") > max(lost)


def test_opening_again_and_again_costs_no_space_and_loses_nothing(open_store: Open, store_dir: Path) -> None:
    with open_store() as store:
        store.publish(store.declare_queue("q"), b"kept")
    sizes = set()
    for _ in range(12):
        with open_store() as store:
            assert contents(store.queue("q")) == [b"kept"]
            sizes.add(len(segment_files(store_dir)))
    assert max(sizes) <= 5


def test_a_compaction_that_had_nothing_to_write_leaves_the_close_orderly(open_store: Open) -> None:
    open_store().close()
    for _ in range(3):
        store = open_store()
        assert store.recovery.clean
        store.compact()
        store.close()


def test_a_torn_tail_is_cut_and_reported(store: MessageStore, open_store: Open, tmp_path: Path) -> None:
    queue = store.declare_queue("q")
    for number in range(3):
        store.publish(queue, b"%d" % number)
    end = store.durable_lsn
    store.publish(queue, b"3" * 20_000)
    image = copy_of(store.path, tmp_path / "crashed")
    (segment,) = [file for file in segment_files(image) if file.read_bytes()[:8] == b"LOGSTORE"]
    with segment.open("r+b") as file:  # the disk had begun to write the last batch
        file.seek(end - int(segment.stem, 16) + 10_000)
        file.write(bytes(20_000))
    again = open_store(image)
    assert contents(again.queue("q")) == [b"0", b"1", b"2"]
    assert again.recovery.torn_bytes > 20_000
    assert again.recovery.end_lsn == end
    assert not again.recovery.clean
    again.publish(again.queue("q"), b"4")
    again.close()
    again = open_store(image)
    assert contents(again.queue("q")) == [b"0", b"1", b"2", b"4"]
    assert again.recovery.clean
    assert again.recovery.torn_bytes == 0


# ---- options and files ----


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"segment_size": 0}, "segment_size"),
        ({"segment_size": -1}, "segment_size"),
        ({"segment_size": (1 << 30) + 1}, "segment_size"),
        ({"segment_size": "16M"}, "segment_size"),
        ({"segment_size": True}, "segment_size"),
        ({"segment_size": 1e6}, "segment_size"),
        ({"initial_segments": 0}, "initial_segments"),
        ({"initial_segments": 65537}, "initial_segments"),
        ({"max_write_buffers": 1}, "max_write_buffers"),
        ({"max_write_buffers": 65}, "max_write_buffers"),
        ({"max_undurable_bytes": 0}, "max_undurable_bytes"),
        ({"max_undurable_bytes": 1 << 61}, "max_undurable_bytes"),
        ({"max_log_bytes": 0}, "max_log_bytes"),
        ({"max_log_bytes": 1}, "max_log_bytes is at least 6 segments"),
        ({"max_log_bytes": 6 * SMALL_SEGMENT - 1}, "6 segments"),
        ({"durability": "none"}, "durability"),
        ({"durability": None}, "durability"),
    ],
)
def test_an_option_out_of_its_range_is_refused_by_name(store_dir: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(errors.OptionError, match=words):
        logstore.open(store_dir, **{"segment_size": SMALL_SEGMENT, **options})
    assert not segment_files(store_dir) if store_dir.exists() else True


def test_a_refused_option_does_not_stand_in_the_way_of_a_right_one(open_store: Open, store_dir: Path) -> None:
    with pytest.raises(errors.OptionError):
        open_store(max_log_bytes=5 * SMALL_SEGMENT)
    with open_store(max_log_bytes=6 * SMALL_SEGMENT) as store:
        store.publish(store.declare_queue("q"), b"x")


@pytest.mark.parametrize(
    ("asked", "made"), [(1, 512 << 10), (512 << 10, 512 << 10), ((512 << 10) + 1, (512 << 10) + 4096)]
)
def test_the_segment_size_is_rounded_up(store_dir: Path, asked: int, made: int) -> None:
    with logstore.open(store_dir, segment_size=asked) as store:
        assert store.segment_size == made
    assert {file.stat().st_size for file in segment_files(store_dir)} == {made}


def test_the_default_segment_is_16_mib_and_two_files_are_there_at_full_size(store_dir: Path) -> None:
    with logstore.open(store_dir) as store:
        assert store.segment_size == 16 << 20
        first_two = segment_files(store_dir)[:2]
        assert [file.stat().st_size for file in first_two] == [16 << 20] * 2
        assert all(file.stat().st_blocks * 512 >= 16 << 20 for file in first_two)  # never sparse


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_the_initial_segments_exist_at_full_size_when_open_returns(
    open_store: Open, store_dir: Path, count: int
) -> None:
    open_store(initial_segments=count)
    sizes = [file.stat().st_size for file in segment_files(store_dir)]
    assert sizes[:count] == [SMALL_SEGMENT] * count
    assert len(sizes) <= max(count, 2) + SPARES_MAX  # more spares may be under way


def test_another_segment_size_at_a_later_open_is_ignored_with_a_warning(store_dir: Path) -> None:
    logstore.open(store_dir, segment_size=SMALL_SEGMENT).close()
    with pytest.warns(UserWarning, match=r"segment_size of 524288 bytes; 1048576 is ignored"):
        store = logstore.open(store_dir, segment_size=1 << 20)
    assert store.segment_size == SMALL_SEGMENT
    store.close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        logstore.open(store_dir).close()
        logstore.open(store_dir, segment_size=SMALL_SEGMENT).close()
        logstore.open(store_dir, segment_size=1).close()  # rounded up to the smallest size


def test_files_and_directories_are_private_to_the_owner_with_any_umask(store_dir: Path, open_store: Open) -> None:
    before = os.umask(0)
    try:
        store = open_store()
        queue = store.declare_queue("q")
        for _ in range(200):
            store.publish(queue, bytes(10_000), wait=False)
        store.force()
        modes = {path: stat.S_IMODE(path.stat().st_mode) for path in [store_dir, *store_dir.rglob("*")]}
    finally:
        os.umask(before)
    assert {path.name: oct(mode) for path, mode in modes.items() if mode != (0o700 if path.is_dir() else 0o600)} == {}
    assert len(modes) > 6


def test_few_spares_are_kept_and_an_emptied_store_is_small_again(store: MessageStore, store_dir: Path) -> None:
    queue = store.declare_queue("q")
    ids: list[int] = []
    while len(segment_files(store_dir)) < 15:
        ids += store.publish_many(queue, [bytes(30_000)] * 20)
    assert store.stats()["spares"] <= SPARES_MAX
    store.dequeue_many(ids, queue)
    store.compact()
    wait_until(lambda: len(segment_files(store_dir)) <= 6, "a small store")
    stats = store.stats()
    assert stats["spares"] <= SPARES_MAX
    assert stats["log_bytes"] == (stats["segments"] + stats["spares"]) * SMALL_SEGMENT
    assert store.base_lsn <= store.durable_lsn


def test_after_compact_returns_an_empty_store_has_at_most_six_segments(store: MessageStore, store_dir: Path) -> None:
    queue = store.declare_queue("q")
    for _ in range(10):
        store.dequeue_many(store.publish_many(queue, [bytes(30_000)] * 100), queue)
    store.compact()
    assert len(segment_files(store_dir)) <= 6


def test_segments_are_recycled_while_the_queue_is_worked_off(store: MessageStore, store_dir: Path) -> None:
    queue = store.declare_queue("q")
    most = 0
    for number in range(600):
        key = store.publish(queue, b"%d" % number + bytes(20_000), wait=False)
        store.dequeue(key, queue, wait=number % 20 == 0)
        most = max(most, len(segment_files(store_dir)))
    store.force()
    assert most <= 8
    assert store.stats()["segments_recycled"] > 5
    assert store.base_lsn > 10 * SMALL_SEGMENT


def test_a_read_that_is_under_way_never_sees_another_generations_bytes(store: MessageStore) -> None:
    queue, keep = store.declare_queue("q"), store.declare_queue("keep")
    stop = threading.Event()
    wrong: list[object] = []

    def read() -> None:
        while not stop.is_set():
            for message in store.messages(keep):
                try:
                    content = message.content
                except errors.UnknownMessage:
                    continue
                if len(set(content)) != 1 or len(content) != 50_000:
                    wrong.append(content[:10])

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(300):
        key = store.publish(keep, bytes([number % 255 + 1]) * 50_000, wait=False)
        store.dequeue(store.publish(queue, bytes(10_000), wait=False), queue, wait=False)
        if number % 7 == 0:
            store.force()
        store.dequeue(key, keep, wait=False)
    stop.set()
    reader.join()
    assert wrong == []


# ---- reports ----


def test_the_tail_shows_the_base_and_the_live_bytes_of_each_segment(store: MessageStore) -> None:
    queue = store.declare_queue("q")
    keep = store.publish(queue, bytes(1000))
    # Of four segments or fewer nothing is moved.
    store.dequeue_many(store.publish_many(queue, [bytes(30_000)] * 20), queue)
    tail = store.tail()
    assert tail.base_lsn == store.base_lsn <= keep
    assert tail.durable_lsn == tail.next_lsn == store.next_lsn
    assert tail.segments[0].first_lsn == tail.base_lsn
    assert tail.segments[0].live_records == 1
    assert 1000 < tail.segments[0].live_bytes < 1500
    assert [segment.current for segment in tail.segments].count(True) == 1
    assert tail.segments[-1].current
    assert [segment.first_lsn for segment in tail.segments] == sorted(segment.first_lsn for segment in tail.segments)
    store.dequeue(keep, queue)
    store.compact()
    assert store.tail().base_lsn > tail.base_lsn


def test_stats_count_operations(store: MessageStore) -> None:
    first, second = store.declare_queue("first"), store.declare_queue("second")
    before = store.stats()
    store.publish_many(first, [b"x"] * 10)
    store.publish([first, second], b"y")
    with store.transaction() as transaction:
        assert store.stats()["transactions"] == 1
        store.publish(second, b"z", transaction=transaction)
    after = store.stats()
    assert after["messages"] == 12
    assert after["places"] == 13
    assert after["transactions"] == 0
    assert after["syncs"] - before["syncs"] == 3
    assert after["batches"] - before["batches"] == 3
    assert after["records"] > before["records"]
    assert after["full"] is False
    assert after["queues"] == {
        "first": {"depth": 11, "locked": 0, "acquired": 0, "hidden": 0, "expired": 0},
        "second": {"depth": 2, "locked": 0, "acquired": 0, "hidden": 0, "expired": 0},
    }


# ---- names ----


def test_a_queue_is_declared_once_and_found_again(store: MessageStore, open_store: Open) -> None:
    queue = store.declare_queue("orders", arguments={"x": [1, {"y": None}]})
    assert store.declare_queue("orders", arguments={"x": [1, {"y": None}]}) is queue
    assert store.queue("orders") is queue
    with pytest.raises(errors.QueueExists):
        store.declare_queue("orders")
    with pytest.raises(errors.UnknownQueue, match="declare it first"):
        store.queue("Orders")
    assert (queue.name, queue.arguments, queue.dead_letter) == ("orders", {"x": [1, {"y": None}]}, None)
    store.close()
    again = open_store()
    assert [q.name for q in again.queues()] == ["orders"]
    assert again.queue("orders").id == queue.id
    assert again.queue("orders").arguments == {"x": [1, {"y": None}]}


def test_a_deleted_queue_takes_its_places_along_and_its_id_is_never_used_again(
    store: MessageStore, open_store: Open
) -> None:
    gone, kept = store.declare_queue("gone"), store.declare_queue("kept")
    only = store.publish(gone, b"only here")
    both = store.publish([gone, kept], b"on both")
    held = gone.acquire(1)[0]
    store.delete_queue(gone)
    for call in (lambda: gone.acquire(1), lambda: gone.depth, lambda: store.publish(gone, b"")):
        with pytest.raises(errors.UnknownQueue):
            call()
    with pytest.raises(errors.StoreError):
        held.accept()
    with pytest.raises(errors.UnknownMessage):
        store.load_content(only)
    assert store.load_content(both) == b"on both"
    again = store.declare_queue("gone")
    assert again.id > kept.id
    assert again.depth == 0
    store.close()
    store = open_store()
    assert contents(store.queue("kept")) == [b"on both"]
    assert store.queue("gone").depth == 0
    assert store.recovery.places == 1
    store.delete_queue("kept")
    assert store.stats()["messages"] == 0


def test_a_queue_of_another_store_is_unknown_here(store: MessageStore, open_store: Open, tmp_path: Path) -> None:
    other = open_store(tmp_path / "other")
    foreign = other.declare_queue("q")
    store.declare_queue("q")
    with pytest.raises(errors.UnknownQueue, match="another store"):
        store.publish(foreign, b"x")
    with pytest.raises(TypeError):
        store.publish(5, b"x")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        store.depth_of = store.publish([5], b"x")  # type: ignore[list-item, attr-defined]


def test_a_deletion_that_was_cut_after_the_catalogs_commit_is_finished_by_the_next_open(
    store: MessageStore, open_store: Open
) -> None:
    queue = store.declare_queue("q")
    store.publish_many(queue, [b"%d" % i for i in range(10)])
    assert store._catalog is not None
    store._catalog.delete_queue(queue.id)  # then the process dies
    store.close()
    for dropped in (1, 0):
        store = open_store()
        assert (store.recovery.queues_dropped, store.recovery.places_dropped) == (dropped, 10 * dropped)
        assert store.stats()["messages"] == 0
        store.close()


def test_exchanges_bindings_and_configuration_are_kept(store: MessageStore, open_store: Open) -> None:
    queue = store.declare_queue("q")
    store.declare_exchange("lost", type="fanout")
    exchange = store.declare_exchange("events", type="topic", arguments={"a": 1}, alternate="lost")
    assert store.declare_exchange("events", type="topic", arguments={"a": 1}, alternate="lost") == exchange
    with pytest.raises(errors.CatalogError):
        store.declare_exchange("events", type="direct")
    store.bind("events", queue, "a.*")
    store.bind(exchange, "q", "a.*", arguments={"n": 2})
    store.bind("events", "q")
    store.unbind(exchange, queue)
    store.config["colour"] = "green"
    with pytest.raises(errors.UnknownExchange):
        store.bind("nothing", queue)
    with pytest.raises(errors.UnknownQueue):
        store.bind("events", "nothing")
    store.close()
    again = open_store()
    found = again.exchange("events")
    assert (found.name, found.type, found.arguments, found.alternate) == ("events", "topic", {"a": 1}, "lost")
    assert [row.name for row in again.exchanges()] == ["events", "lost"]
    assert [(row.exchange, row.queue, row.key, row.arguments) for row in again.bindings()] == [
        ("events", "q", "a.*", {}),
        ("events", "q", "a.*", {"n": 2}),
    ]
    assert dict(again.config) == {"colour": "green"}
    again.delete_queue("q")
    assert again.bindings() == []
    again.delete_exchange("events")
    with pytest.raises(errors.UnknownExchange):
        again.exchange("events")
