"""The defects of this design's predecessor, each with the promise that prevents its return.

The numbers are those of the list in the design. The transactional forms are in test_defects_transactions.py.
"""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING, Any

import pytest

from kit.simulated import ALL_KEPT, ALL_LOST, BY_SEED, Disk
from kit.stores import SMALL_SEGMENT, contents, segment_files
from logstore import errors

if TYPE_CHECKING:
    from pathlib import Path

    from logstore import MessageStore

pytestmark = pytest.mark.on_disk

Open = Any


@pytest.mark.parametrize("size", [65_535, 65_536, 65_537, 131_072, 131_073, 1_000_003, 5 << 20])
def test_1_content_over_64_kib_is_cut_and_joined_without_a_byte_wrong(open_store: Open, size: int) -> None:
    data = random.Random(size).randbytes(size)
    with open_store() as store:
        queue = store.declare_queue("q")
        whole = store.publish(queue, data)
        parts = store.publish(queue, [data[:7], data[7:70_000], data[70_000:]])
        grown = store.stage(b"", data[:1])
        store.append_content(grown, data[1:])
        store.enqueue(grown, queue)
        assert store.load_content(whole) == data
    store = open_store()
    for key in (whole, parts, grown):
        assert store.load_content(key) == data
        assert store.load_content(key, 65_530, 12) == data[65_530:65_542]


def test_2_recovery_ends_although_a_message_is_still_on_a_second_queue(store: MessageStore, open_store: Open) -> None:
    first, second = store.declare_queue("first"), store.declare_queue("second")
    keys = [store.publish([first, second], b"%d" % i) for i in range(3)]
    for key in keys:
        store.dequeue(key, first)
    store.dequeue(keys[1], second)
    store.close()
    store = open_store()
    assert contents(store.queue("first")) == []
    assert contents(store.queue("second")) == [b"0", b"2"]


@pytest.mark.parametrize("seed", range(6))
def test_4_the_base_never_passes_an_append_so_no_acknowledged_message_is_lost(tmp_path: Path, seed: int) -> None:
    disk = Disk()
    path = tmp_path / "s"
    store = disk.open(path)
    queue = store.declare_queue("q")
    acknowledged: dict[int, bytes] = {}
    gone: set[int] = set()
    crashes: list[tuple[Disk, dict[int, bytes], set[int]]] = []
    started = threading.Barrier(5)

    def work(name: int) -> None:
        chance = random.Random(seed * 100 + name)
        started.wait()
        mine: list[int] = []
        for number in range(250):
            content = b"%d %d " % (name, number) + bytes(chance.randrange(1500))
            key = store.publish(queue, content)
            acknowledged[key] = content
            mine.append(key)
            while len(mine) > 2:  # most messages end at once, so that the base follows closely
                dead = mine.pop(0)
                gone.add(dead)
                store.dequeue(dead, queue, wait=False)

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    started.wait()
    for number in range(8):
        before = dict(acknowledged)
        after = disk.crash(BY_SEED if number % 2 else ALL_LOST, seed + number + 1)
        crashes.append((after, before, set(gone) | (set(acknowledged) - set(before))))
    for thread in threads:
        thread.join()
    assert store.stats()["segments_recycled"] > 0
    store.close()
    for after, before, excused in crashes:
        again = after.open(path)
        found = {message.id: message.content for message in again.messages("q")}
        missing = set(before) - set(found) - excused
        assert not missing
        assert all(found[key] == before[key] for key in set(before) & set(found))
        again.close()


def test_5_a_commit_takes_the_same_message_twice(store: MessageStore, open_store: Open) -> None:
    first, second = store.declare_queue("first"), store.declare_queue("second")
    key = store.publish([first, second], b"x")
    with store.transaction() as transaction:
        store.dequeue(key, first, transaction)
        store.dequeue(key, second, transaction)
        store.enqueue(key, first, transaction)
        store.dequeue(key, first, transaction)
        store.enqueue(key, second, transaction)
    assert (contents(first), contents(second)) == ([], [b"x"])
    with store.transaction() as transaction:
        store.dequeue(key, second, transaction)
    assert store.stats()["messages"] == 0
    store.close()
    assert open_store().stats()["messages"] == 0


def test_6_messages_may_be_dequeued_while_they_are_listed(store: MessageStore) -> None:
    queue = store.declare_queue("q")
    store.publish_many(queue, [b"%d" % i for i in range(700)])
    seen = []
    for message in store.messages(queue):
        seen.append(message.id)
        store.dequeue(message.id, queue, wait=False)
    assert len(seen) == len(set(seen)) == 700
    assert queue.depth == 0
    ids = store.publish_many(queue, [b"%d" % i for i in range(700)])
    for number, message in enumerate(store.messages(queue)):
        if number == 100:
            store.dequeue_many(ids[: ids.index(message.id) + 1], queue)
            break
    assert [message.id for message in queue.browse()] == list(ids[101:])


def test_7_a_message_may_be_dequeued_in_the_transaction_that_enqueued_it(store: MessageStore, open_store: Open) -> None:
    queue = store.declare_queue("q")
    with store.transaction() as transaction:
        kept = store.publish(queue, b"kept", transaction=transaction)
        brief = store.publish(queue, b"brief", transaction=transaction)
        store.dequeue(brief, queue, transaction)
    assert [message.id for message in queue.browse()] == [kept]
    store.close()
    assert contents(open_store().queue("q")) == [b"kept"]


def test_8_the_recovered_order_is_that_of_the_enqueues(store: MessageStore, open_store: Open) -> None:
    queue = store.declare_queue("q")
    staged = [store.stage(b"", b"%d" % i) for i in range(6)]
    for number in (3, 1, 5):
        store.enqueue(staged[number], queue)
    late = store.begin()
    store.enqueue(staged[0], queue, late)
    store.enqueue(staged[4], queue)
    late.commit()
    store.enqueue(staged[2], queue)
    expected = [b"3", b"1", b"5", b"4", b"0", b"2"]
    assert contents(queue) == expected
    for _ in range(3):
        store.close()
        store = open_store()
        assert contents(store.queue("q")) == expected


def test_9_content_can_be_loaded(store: MessageStore, open_store: Open) -> None:
    queue = store.declare_queue("q")
    key = store.publish(queue, b"0123456789" * 30_000)
    store.close()
    store = open_store()
    assert store.load_content(key, 299_995) == b"56789"
    assert store.load_content(key, 12, 5) == b"23456"


def test_10_records_are_forced_together(store: MessageStore) -> None:
    queue = store.declare_queue("q")
    syncs = store.stats()["syncs"]
    store.publish_many(queue, [b"x"] * 1000)
    assert store.stats()["syncs"] - syncs <= 3
    syncs = store.stats()["syncs"]
    for _ in range(8):
        with store.transaction() as transaction:
            for _ in range(50):
                store.publish(queue, b"x", transaction=transaction)
    assert store.stats()["syncs"] - syncs == 8
    syncs = store.stats()["syncs"]
    threads = [threading.Thread(target=lambda: [store.publish(queue, b"x") for _ in range(50)]) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.stats()["syncs"] - syncs < 16 * 50 * 3 // 4


def test_11_content_may_be_empty(store: MessageStore, open_store: Open) -> None:
    queue = store.declare_queue("q")
    keys = [store.publish(queue, b""), store.publish(queue, []), store.publish(queue, [b"", b""], header=b"h")]
    keys += store.publish_many(queue, [b"", b""])
    staged = store.stage()
    store.append_content(staged, b"")
    store.enqueue(staged, queue)
    keys.append(staged)
    for again in (store, None):
        if again is None:
            store.close()
            again = open_store()
        assert [again.load_content(key) for key in keys] == [b""] * 6
        assert [message.size for message in again.messages("q")] == [0] * 6
        assert again.load_content(keys[0], 0, 10) == b""


def fill_segments(store: MessageStore, count: int) -> list[int]:
    queue = store.declare_queue("q")
    ids: list[int] = []
    while len(store.tail().segments) < count:
        ids += store.publish_many(queue, [b"%d" % len(ids) + bytes(20_000)] * 5)
    return ids


def test_12_a_bad_record_neither_ends_the_log_nor_costs_a_later_file(store: MessageStore, open_store: Open) -> None:
    fill_segments(store, 4)
    store.close()
    files = segment_files(store.path)
    before = {file: file.read_bytes() for file in files}
    damaged = files[1]
    with damaged.open("r+b") as file:
        file.seek(SMALL_SEGMENT // 2)
        byte = file.read(1)
        file.seek(SMALL_SEGMENT // 2)
        file.write(bytes([byte[0] ^ 1]))
    for _ in range(2):
        with pytest.raises(errors.CorruptLog) as caught:
            open_store()
        assert caught.value.segment == damaged.name
        assert 0 < caught.value.offset <= SMALL_SEGMENT // 2
        assert caught.value.lsn == int(damaged.stem, 16) + caught.value.offset
    assert segment_files(store.path) == files
    assert {file: file.read_bytes() for file in files if file != damaged} == {
        file: data for file, data in before.items() if file != damaged
    }
    damaged.write_bytes(before[damaged])
    assert open_store().recovery.clean


@pytest.mark.parametrize("losses", [ALL_LOST, ALL_KEPT, BY_SEED])
def test_13_old_contents_of_a_recycled_file_are_never_read_as_the_log(tmp_path: Path, losses: int) -> None:
    disk = Disk()
    path = tmp_path / "s"
    store = disk.open(path)
    queue = store.declare_queue("q")
    for round_number in range(40):
        ids = store.publish_many(queue, [b"%d %d" % (round_number, i) + bytes(3000) for i in range(10)])
        if round_number < 39:
            store.dequeue_many(ids, queue)
    assert store.stats()["segments_recycled"] >= 3
    expected = contents(queue)
    for seed in range(1, 6):
        after = disk.crash(losses, seed)
        for _ in range(2):
            again = after.open(path)
            assert contents(again.queue("q")) == expected
            after = after.crash(losses, seed)
    store.close()


def fill_up(store: MessageStore, size: int) -> list[int]:
    """Publishes until the store is full; returns the acknowledged ids."""
    queue = store.declare_queue("q")
    ids: list[int] = []
    with pytest.raises(errors.StoreFull, match="Consume messages"):
        for _ in range(100_000):
            ids.append(store.publish(queue, b"%d" % len(ids) + bytes(size), wait=len(ids) % 100 == 0))
    store.force()
    return ids


@pytest.mark.parametrize("size", [0, 100, 20_000])
def test_14_a_full_log_can_be_restarted_and_drained_and_filled_again(open_store: Open, size: int) -> None:
    limit = 6 * SMALL_SEGMENT
    store = open_store(max_log_bytes=limit)
    ids = fill_up(store, size)
    assert store.stats()["log_bytes"] <= limit
    assert store.stats()["full"]
    for _ in range(3):
        store.close()
        store = open_store(max_log_bytes=limit)
        assert [message.id for message in store.messages("q")] == ids
    queue = store.queue("q")
    with pytest.raises(errors.StoreFull):
        for _ in range(10_000):
            store.publish(queue, bytes(size), wait=False)
    ids = [message.id for message in queue.browse()]
    for at in range(0, len(ids), 500):
        store.dequeue_many(ids[at : at + 500], queue)
    assert queue.depth == 0
    again = fill_up(store, size)
    assert len(again) > len(ids) // 2
    assert len(segment_files(store.path)) * SMALL_SEGMENT <= limit
    store.close()
    store = open_store(max_log_bytes=limit)
    assert [message.id for message in store.messages("q")] == again
    for delivery in store.queue("q").acquire(len(again)):
        delivery.accept(wait=False)
    store.close()


def test_15_one_unconsumed_message_blocks_neither_its_neighbours_nor_a_restart(open_store: Open) -> None:
    limit = 8 * SMALL_SEGMENT
    store = open_store(max_log_bytes=limit)
    stuck = store.publish(store.declare_queue("stuck"), b"nobody wants me")
    ids = fill_up(store, 20_000)
    store.dequeue_many(ids, "q")
    assert store.queue("q").depth == 0
    store.close()
    store = open_store(max_log_bytes=limit)
    assert contents(store.queue("q")) == []
    assert store.load_content(stuck) == b"nobody wants me"
    store.dequeue(stuck, "stuck")
    store.compact()
    fresh = store.publish_many("q", [bytes(20_000)] * 20)
    assert [message.id for message in store.messages("q")] == list(fresh)
