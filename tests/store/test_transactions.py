"""Transactions: atomicity, locks, order, states, xids, and their fate at a close and at a crash."""

from __future__ import annotations

import gc
import threading
from typing import TYPE_CHECKING, Any

import pytest

from kit.simulated import Disk
from kit.stores import contents
from logstore import Xid, errors

if TYPE_CHECKING:
    from pathlib import Path

    from logstore import MessageStore, Queue

Open = Any


@pytest.fixture
def queue(store: MessageStore) -> Queue:
    return store.declare_queue("q")


# ---- local ----


def test_nothing_of_a_transaction_is_seen_before_its_commit_and_all_of_it_after(
    store: MessageStore, queue: Queue, open_store: Open
) -> None:
    old = store.publish(queue, b"old")
    with store.transaction() as transaction:
        assert (transaction.state, transaction.xid, transaction.operations) == ("active", None, 0)
        keys = [store.publish(queue, b"1", transaction=transaction)]
        keys += store.publish_many(queue, [b"2", b"3"], transaction=transaction)
        staged = store.stage(b"", b"4")
        store.enqueue(staged, queue, transaction)
        store.dequeue(old, queue, transaction)
        assert transaction.operations == 5
        assert contents(queue) == [b"old"]
        assert queue.acquire() == []
        assert store.load_content(keys[0]) == b"1"
    assert transaction.state == "committed"
    assert contents(queue) == [b"1", b"2", b"3", b"4"]
    store.close()
    store = open_store()
    assert contents(store.queue("q")) == [b"1", b"2", b"3", b"4"]
    assert store.recovery.transactions_abandoned == 0


def test_an_exception_rolls_back_and_is_passed_on(store: MessageStore, queue: Queue) -> None:
    old = store.publish(queue, b"old")
    with pytest.raises(LookupError), store.transaction() as transaction:
        store.publish(queue, b"new", transaction=transaction)
        store.dequeue(old, queue, transaction)
        raise LookupError
    assert transaction.state == "rolled_back"
    assert contents(queue) == [b"old"]
    assert store.stats()["messages"] == 1
    store.dequeue(old, queue)


def test_the_block_may_settle_its_transaction_itself(store: MessageStore, queue: Queue) -> None:
    with store.transaction() as transaction:
        store.publish(queue, b"kept", transaction=transaction)
        transaction.commit()
    with store.transaction() as transaction:
        store.publish(queue, b"dropped", transaction=transaction)
        transaction.rollback()
    assert contents(queue) == [b"kept"]


def test_work_in_a_transaction_locks_the_message_for_others(store: MessageStore, queue: Queue) -> None:
    other = store.declare_queue("other")
    key = store.publish(queue, b"x")
    mine, yours = store.begin(), store.begin()
    store.dequeue(key, queue, mine)
    for transaction in (None, yours):
        with pytest.raises(errors.MessageLocked):
            store.dequeue(key, queue, transaction)
        with pytest.raises(errors.MessageLocked):
            store.dequeue_many([key], queue, transaction)
        with pytest.raises(errors.MessageLocked):
            store.enqueue(key, queue, transaction)
    store.enqueue(key, other, yours)
    with pytest.raises(errors.MessageLocked):
        store.enqueue(key, other)
    with pytest.raises(errors.StoreError):
        store.dequeue(key, other)
    assert queue.acquire() == []
    mine.rollback()
    yours.commit()
    assert contents(queue) == contents(other) == [b"x"]


def test_a_dequeue_elsewhere_never_deletes_what_a_transaction_has_locked(store: MessageStore, queue: Queue) -> None:
    other = store.declare_queue("other")
    key = store.publish([queue, other], b"x")
    transaction = store.begin()
    store.dequeue(key, queue, transaction)
    store.dequeue(key, other)
    assert store.load_content(key) == b"x"
    transaction.rollback()
    assert contents(queue) == [b"x"]
    store.dequeue(key, queue)
    with pytest.raises(errors.UnknownMessage):
        store.load_content(key)


def test_a_message_may_come_and_go_within_one_transaction(store: MessageStore, queue: Queue, open_store: Open) -> None:
    with store.transaction() as transaction:
        key = store.publish(queue, b"brief", transaction=transaction)
        store.dequeue(key, queue, transaction)
    assert (queue.depth, store.stats()["messages"]) == (0, 0)
    key = store.publish(queue, b"moved")
    store.publish(queue, b"stays")
    with store.transaction() as transaction:
        store.dequeue(key, queue, transaction)
        store.enqueue(key, queue, transaction)
        with pytest.raises(errors.AlreadyEnqueued):
            store.enqueue(key, queue, transaction)
        store.dequeue(key, queue, transaction)
        with pytest.raises(errors.NotEnqueued):
            store.dequeue(key, queue, transaction)
        store.enqueue(key, queue, transaction)
    assert contents(queue) == [b"stays", b"moved"]
    store.close()
    assert contents(open_store().queue("q")) == [b"stays", b"moved"]


def test_a_staged_message_whose_only_enqueue_was_rolled_back_is_staged_again(
    store: MessageStore, queue: Queue, open_store: Open
) -> None:
    key = store.stage(b"h", b"x")
    for content in (b"x", b"xy"):
        transaction = store.begin()
        store.enqueue(key, queue, transaction)
        transaction.rollback()
        assert store.load_content(key) == content
        store.append_content(key, b"y")
    store.enqueue(key, queue)
    assert contents(queue) == [b"xyy"]
    lost = store.stage(b"", b"z")
    transaction = store.begin()
    store.enqueue(lost, queue, transaction)
    transaction.rollback()
    store.close()
    store = open_store()
    assert contents(store.queue("q")) == [b"xyy"]
    assert store.recovery.staged_dropped == 1


def test_a_publish_that_was_rolled_back_is_gone(store: MessageStore, queue: Queue) -> None:
    for content in (b"inline", bytes(200_000), [b"in", b"parts"]):
        transaction = store.begin()
        key = store.publish(queue, content, transaction=transaction)
        transaction.rollback()
        with pytest.raises(errors.UnknownMessage):
            store.load_content(key)
    assert store.stats()["messages"] == 0


def test_a_rollback_restores_every_place_in_its_order(store: MessageStore, queue: Queue, open_store: Open) -> None:
    ids = list(store.publish_many(queue, [b"%d" % i for i in range(10)]))
    transaction = store.begin()
    store.dequeue_many(reversed(ids[2:7]), queue, transaction)
    store.publish(queue, b"no", transaction=transaction)
    transaction.rollback()
    expected = [b"%d" % i for i in range(10)]
    assert contents(queue) == expected
    store.close()
    assert contents(open_store().queue("q")) == expected


def test_an_outcome_is_given_once(store: MessageStore, queue: Queue) -> None:
    for how in ("commit", "rollback"):
        transaction = store.begin()
        key = store.publish(queue, b"x", transaction=transaction)
        getattr(transaction, how)()
        for again in ("commit", "rollback", "end", "prepare"):
            with pytest.raises(errors.TransactionEnded, match="begin another"):
                getattr(transaction, again)()
        with pytest.raises(errors.TransactionEnded):
            store.publish(queue, b"y", transaction=transaction)
        with pytest.raises(errors.TransactionEnded):
            store.dequeue(key, queue, transaction)
        assert transaction.state == {"commit": "committed", "rollback": "rolled_back"}[how]


def test_a_transaction_of_another_store_is_refused(
    store: MessageStore, queue: Queue, open_store: Any, tmp_path: Path
) -> None:
    other = open_store(tmp_path / "other")
    foreign = other.begin()
    with pytest.raises(errors.TransactionError, match="another store"):
        store.publish(queue, b"x", transaction=foreign)
    with pytest.raises(TypeError):
        store.publish(queue, b"x", transaction=object())  # type: ignore[arg-type]
    assert queue.depth == 0


def test_an_abandoned_transaction_rolls_back(store: MessageStore, queue: Queue) -> None:
    key = store.publish(queue, b"x")
    transaction = store.begin()
    store.dequeue(key, queue, transaction)
    del transaction
    gc.collect()
    assert store.stats()["transactions"] == 0
    assert [delivery.id for delivery in queue.acquire()] == [key]


def test_closing_rolls_back_what_is_open(store: MessageStore, queue: Queue, open_store: Open) -> None:
    key = store.publish(queue, b"kept")
    transaction = store.begin()
    store.dequeue(key, queue, transaction)
    store.publish(queue, b"never", transaction=transaction)
    store.close()
    store = open_store()
    assert contents(store.queue("q")) == [b"kept"]
    assert store.recovery.clean
    assert store.recovery.transactions_abandoned == 0
    assert store.recovery.transactions_rolled_back == 1


def test_a_crash_rolls_back_what_is_open_and_says_so(tmp_path: Path) -> None:
    disk = Disk()
    store = disk.open(tmp_path / "s")
    queue = store.declare_queue("q")
    key = store.publish(queue, b"kept")
    transaction = store.begin()
    store.dequeue(key, queue, transaction)
    store.publish(queue, b"never", transaction=transaction)
    store.force()
    after = disk.crash()
    for abandoned in (1, 0):
        store = after.open(tmp_path / "s")
        assert store.recovery.transactions_abandoned == abandoned
        assert contents(store.queue("q")) == [b"kept"]
        assert store.stats()["transactions"] == 0
        store.close()


def test_work_on_a_queue_that_is_deleted_meanwhile_has_no_effect(
    store: MessageStore, queue: Queue, open_store: Open
) -> None:
    kept = store.declare_queue("kept")
    key = store.publish(queue, b"x")
    transaction = store.begin()
    store.dequeue(key, queue, transaction)
    store.publish([queue, kept], b"y", transaction=transaction)
    store.publish(queue, b"z", transaction=transaction)
    store.delete_queue(queue)
    transaction.commit()
    assert contents(kept) == [b"y"]
    assert store.stats()["messages"] == 1
    again = store.begin()
    later = store.declare_queue("later")
    key = store.publish(later, b"w")
    store.dequeue(key, later, again)
    store.delete_queue(later)
    again.rollback()
    assert store.stats()["messages"] == 1
    store.close()
    store = open_store()
    assert contents(store.queue("kept")) == [b"y"]
    assert store.stats()["messages"] == 1


def test_a_large_transaction_survives_segments_and_reopening(
    store: MessageStore, queue: Queue, open_store: Open
) -> None:
    with store.transaction() as transaction:
        for number in range(300):
            store.publish(queue, b"%03d" % number + bytes(10_000), transaction=transaction)
    store.close()
    store = open_store()
    assert [content[:3] for content in contents(store.queue("q"))] == [b"%03d" % i for i in range(300)]


def test_an_open_transaction_moves_along_with_the_log_and_still_commits(store: MessageStore, queue: Queue) -> None:
    transaction = store.begin()
    store.publish(queue, b"early", transaction=transaction)
    base = store.base_lsn
    for _ in range(10):
        store.dequeue_many(store.publish_many(queue, [bytes(30_000)] * 30), queue)
    store.compact()
    assert store.base_lsn > transaction.id > base
    assert store.stats()["log_bytes"] <= 8 * store.segment_size
    assert queue.depth == 0
    transaction.commit()
    assert contents(queue) == [b"early"]


def test_many_threads_commit_side_by_side(store: MessageStore, queue: Queue) -> None:
    def work(name: int) -> None:
        for number in range(30):
            with store.transaction() as transaction:
                store.publish(queue, b"%d %d a" % (name, number), transaction=transaction)
                store.publish(queue, b"%d %d b" % (name, number), transaction=transaction)

    threads = [threading.Thread(target=work, args=(name,)) for name in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = contents(queue)
    assert len(found) == 360
    pairs = list(zip(found[::2], found[1::2], strict=True))
    assert all(a[:-1] == b[:-1] and a.endswith(b"a") and b.endswith(b"b") for a, b in pairs)


# ---- distributed ----


def test_a_refusal_says_which_step_comes_first_and_a_branch_when_it_was_prepared(store: MessageStore) -> None:
    xid = Xid(7, b"global", b"branch")
    transaction = store.begin(xid)
    for step in (transaction.prepare, transaction.commit):
        with pytest.raises(errors.WrongState, match="end it first"):
            step()
    transaction.end()
    transaction.prepare()
    assert (transaction.xid, transaction.state) == (xid, "prepared")
    assert str(xid) in repr(transaction)
    assert transaction.prepared_us > 0
    assert store.durable_lsn == store.next_lsn
    transaction.rollback()
    local = store.begin()
    for step in (local.end, local.prepare):
        with pytest.raises(errors.WrongState, match="local"):
            step()
    local.rollback()


def test_a_prepared_branch_stays_in_doubt_through_closing_and_crashing(tmp_path: Path) -> None:
    disk = Disk()
    store = disk.open(tmp_path / "s")
    queue = store.declare_queue("q")
    key = store.publish(queue, b"taken")
    for number in range(2):
        transaction = store.begin(Xid(-number, b"g", bytes(64)))
        store.publish(queue, b"given %d" % number, transaction=transaction)
        if number == 0:
            store.dequeue(key, queue, transaction)
        transaction.end()
        transaction.prepare()
    store.close()
    disk = disk.crash()
    store = disk.open(tmp_path / "s")
    disk = disk.crash()
    store = disk.open(tmp_path / "s")
    queue = store.queue("q")
    assert store.recovery.transactions_in_doubt == 2
    assert [(m.content, m.locked) for m in queue.browse()] == [(b"taken", True)]
    assert queue.acquire() == []
    with pytest.raises(errors.MessageLocked):
        store.dequeue(key, queue)
    with pytest.raises(errors.DuplicateXid):
        store.begin(Xid(0, b"g", bytes(64)))
    first, second = sorted(store.in_doubt(), key=lambda transaction: transaction.id)
    assert (first.xid, second.xid) == (Xid(0, b"g", bytes(64)), Xid(-1, b"g", bytes(64)))
    assert store.in_doubt() == [first, second] or store.in_doubt() == [second, first]
    assert first.prepared_us > 0
    second.rollback()
    first.commit()
    assert contents(queue) == [b"given 0"]
    store.close()
    store = disk.open(tmp_path / "s")
    assert store.in_doubt() == []
    assert contents(store.queue("q")) == [b"given 0"]
    store.close()


def test_an_unprepared_branch_is_rolled_back_by_recovery(tmp_path: Path) -> None:
    disk = Disk()
    store = disk.open(tmp_path / "s")
    queue = store.declare_queue("q")
    branches = [store.begin(Xid(number, b"g")) for number in range(2)]
    for branch in branches:
        store.publish(queue, b"never", transaction=branch)
    branches[1].end()
    store.force()
    store = disk.crash().open(tmp_path / "s")
    assert store.recovery.transactions_abandoned == 2
    assert store.in_doubt() == []
    assert store.queue("q").depth == 0
    store.begin(Xid(0, b"g")).rollback()
