"""The tail: every holder is named with its remedy, and after the remedy the base moves."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

import logstore
from kit.stores import SMALL_SEGMENT, segment_files
from logstore.holds import hold

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from logstore import MessageStore
    from logstore.store.base_holders import Holder

XID = logstore.Xid(1, b"order", b"db")


def pass_by(store: MessageStore, segments: int) -> None:
    """Publishes and consumes this many segments."""
    queue = store.declare_queue("traffic")
    for _ in range(segments * SMALL_SEGMENT // 100_000 + 1):
        store.dequeue_many(store.publish_many(queue, [bytes(20_000)] * 5), queue)


def holder_of(store: MessageStore, number: int) -> Holder:
    found = [holder for holder in store.tail().holders if holder.id == number]
    assert len(found) == 1
    return found[0]


def is_free(store: MessageStore) -> bool:
    """Whether nothing holds the base."""
    tail = store.tail()
    return not tail.holders and (tail.holding_messages, tail.holding_transactions, tail.live_bytes) == (0, 0, 0)


def test_the_oldest_message_is_named_with_its_queue_and_consuming_it_frees_the_base(store: MessageStore) -> None:
    queue = store.declare_queue("orders")
    oldest = store.publish(queue, b"x" * 1000)
    tail = store.tail()
    holder = holder_of(store, oldest)
    assert (holder.kind, holder.lsn, holder.content_bytes, holder.staged) == ("message", oldest, 1000, False)
    assert [(place.queue, place.state) for place in holder.places] == [("orders", "waits")]
    assert holder.remedy == "consume or purge queue 'orders'"
    assert holder.age_s is not None
    assert 0 <= holder.age_s < 3600
    assert (tail.needed_lsn, tail.holding_messages) == (oldest, 1)
    queue.purge()
    assert is_free(store)


def test_each_queue_of_the_holders_has_its_count_its_bytes_and_the_age_of_its_oldest(store: MessageStore) -> None:
    orders, audit = store.declare_queue("orders"), store.declare_queue("audit")
    store.publish(orders, b"x" * 1000)
    store.publish([orders, audit], b"y" * 10)
    store.stage(b"", b"on no queue")
    tail = store.tail(0)
    assert tail.holders == ()
    assert [(queue.queue, queue.messages) for queue in tail.holding_queues] == [("orders", 2), ("audit", 1)]
    by_id = {holder.id: holder for holder in store.tail().holders}
    for queue in tail.holding_queues:
        its = [one for one in by_id.values() if queue.queue in {place.queue for place in one.places}]
        assert queue.bytes == sum(one.bytes for one in its)
        assert queue.oldest_age_s is not None
        assert 0 <= queue.oldest_age_s < 3600
        assert not queue.at_least
    for queue_ in (orders, audit):
        queue_.purge()
    assert store.tail().holding_queues == ()


def test_a_staged_message_is_named_and_destroying_it_frees_the_base(store: MessageStore) -> None:
    staged = store.stage(b"", b"never enqueued")
    holder = holder_of(store, staged)
    assert holder.staged
    assert "enqueue or destroy" in holder.remedy
    store.destroy(staged)
    assert is_free(store)


@pytest.mark.parametrize("outcome", ["commit", "rollback"])
def test_a_transaction_in_doubt_is_named_by_its_xid_and_its_outcome_frees_it(store: MessageStore, outcome: str) -> None:
    queue = store.declare_queue("orders")
    taken = store.publish(queue, b"taken")
    transaction = store.begin(XID)
    store.dequeue(taken, queue, transaction=transaction)
    put = store.publish(queue, b"put", transaction=transaction)
    transaction.end()
    transaction.prepare()
    assert holder_of(store, taken).places[0].state == "locked"
    assert holder_of(store, put).places[0].state == "enqueue pending"
    for number in (taken, put, transaction.id):
        assert str(XID) in holder_of(store, number).remedy
        assert "in-doubt" in holder_of(store, number).remedy
    assert holder_of(store, transaction.id).state == "prepared"
    getattr(transaction, outcome)()
    assert all(str(XID) not in holder.remedy for holder in store.tail().holders)
    queue.purge()
    assert is_free(store)


def test_an_open_transaction_is_named_and_its_rollback_frees_the_base(store: MessageStore) -> None:
    transaction = store.begin()
    store.publish(store.declare_queue("orders"), b"x", transaction=transaction)
    assert holder_of(store, transaction.id).state == "active"
    assert f"transaction {transaction.id}" in holder_of(store, transaction.id).remedy
    transaction.rollback()
    store.force()
    assert is_free(store)


def test_of_a_fan_out_only_the_queue_that_is_left_is_named(store: MessageStore) -> None:
    queues = [store.declare_queue(f"q{n}") for n in range(10)]
    message = store.publish(queues, b"to all")
    for queue in queues[:-1]:
        store.dequeue(message, queue)
    pass_by(store, 6)
    assert holder_of(store, message).relocated
    assert holder_of(store, message).remedy == "consume or purge queue 'q9'"
    store.dequeue(message, queues[-1])
    assert is_free(store)


def test_a_chunked_message_counts_with_all_its_chunks(store: MessageStore) -> None:
    queue = store.declare_queue("orders")
    content = bytes(200_000)
    message = store.publish(queue, content)
    holder = holder_of(store, message)
    assert holder.content_bytes == len(content)
    assert len(content) < holder.bytes < len(content) + 10_000
    assert store.tail().live_bytes == holder.bytes
    queue.purge()
    assert is_free(store)


def test_a_hold_is_shown_with_its_kept_bytes(store: MessageStore, store_dir: Path) -> None:
    with hold(store_dir, "export", limit_bytes=1 << 30):
        pass_by(store, 4)
        store.compact()
        tail = store.tail()
        assert [each.name for each in tail.holds] == ["export"]
        assert len(tail.dead) == tail.held_segments > 0
        assert tail.compaction.held_bytes == tail.held_segments * SMALL_SEGMENT
    store.compact()
    assert store.tail().dead == ()


def test_the_lowest_holders_are_listed_up_to_the_limit_and_all_are_counted(store: MessageStore) -> None:
    queue = store.declare_queue("orders")
    ids = list(store.publish_many(queue, [b"x"] * 100))
    tail = store.tail(7)
    assert [holder.id for holder in tail.holders] == ids[:7]
    assert tail.holding_messages == 100
    assert store.tail(0).holders == ()


def test_relocated_messages_are_marked_and_dead_and_live_bytes_are_distinguished(store: MessageStore) -> None:
    queue = store.declare_queue("orders")
    message = store.publish(queue, b"x" * 1000)
    assert sum(segment.relocated_bytes for segment in store.tail().segments) == 0
    pass_by(store, 6)
    tail = store.tail()
    assert (
        sum(segment.relocated_bytes for segment in tail.segments) == tail.live_bytes == holder_of(store, message).bytes
    )
    assert all(segment.live_bytes + segment.dead_bytes <= SMALL_SEGMENT for segment in tail.segments)


def test_the_tail_as_json_equals_the_report(store: MessageStore) -> None:
    queue = store.declare_queue("orders")
    store.publish(queue, b"x")
    document: dict[str, Any] = json.loads(json.dumps(store.tail().as_dict()))
    assert document["holders"][0]["remedy"] == "consume or purge queue 'orders'"
    # The two are read one after the other, and the store may create a file in between.
    assert document["log_bytes"] == (len(document["segments"]) + document["spares"]) * SMALL_SEGMENT
    files, rest = divmod(document["compaction"]["bytes_before"], SMALL_SEGMENT)
    assert (document["compaction"]["segments_before"], rest) == (1, 0)
    assert files > 1  # spares included


# ---- compaction


def test_a_compaction_does_what_its_dry_run_says(store: MessageStore, store_dir: Path) -> None:
    queue = store.declare_queue("orders")
    ids = list(store.publish_many(queue, [bytes(20_000)] * 600))
    store.dequeue_many([number for at, number in enumerate(ids) if at % 20], queue, wait=False)
    would = store.compact(dry_run=True)
    done = store.compact()
    assert done.bytes_after < would.bytes_before or not would.shrinks  # the log may have been relocated before
    assert abs(would.bytes_after - done.bytes_after) <= SMALL_SEGMENT
    assert done.bytes_after == len(segment_files(store_dir)) * SMALL_SEGMENT == store.stats()["log_bytes"]
    assert [message.id for message in store.messages(queue)] == ids[::20]
    again = store.compact()
    assert (again.segments_moved, again.copied_bytes) == (0, 0)


def test_compacting_a_full_store_that_would_not_become_smaller_does_nothing_and_says_so(
    open_store: Callable[..., MessageStore], store_dir: Path
) -> None:
    store = open_store(segment_size=SMALL_SEGMENT, max_log_bytes=8 * SMALL_SEGMENT)
    queue = store.declare_queue("orders")
    with pytest.raises(logstore.StoreFull):
        store.publish_many(queue, [bytes(20_000)] * 1000)
    store.force()
    would, before = store.compact(dry_run=True), store.stats()
    done = store.compact()
    assert done == would
    assert (done.shrinks, done.segments_moved, done.copied_bytes) == (False, 0, 0)
    assert done.bytes_after == done.bytes_before <= done.planned_bytes
    assert len(segment_files(store_dir)) * SMALL_SEGMENT == done.bytes_after == before["log_bytes"]
    assert store.stats()["appended_bytes"] == before["appended_bytes"]


def test_a_dry_run_changes_nothing(store: MessageStore) -> None:
    queue = store.declare_queue("orders")
    ids = list(store.publish_many(queue, [bytes(20_000)] * 400))
    store.dequeue_many(ids[::4], queue)  # little enough that nothing is relocated automatically
    before, base_lsn = store.stats(), store.base_lsn
    assert store.compact(dry_run=True).segments_moved > 0
    after = store.stats()
    assert (after["segments_relocated"], after["messages"]) == (before["segments_relocated"], before["messages"])
    assert store.base_lsn == base_lsn


def test_after_everything_is_dequeued_and_compacted_at_most_six_segments_are_left(
    store: MessageStore, store_dir: Path
) -> None:
    queue = store.declare_queue("orders")
    ids = store.publish_many(queue, [bytes(20_000)] * 1200)
    assert len(segment_files(store_dir)) > 40
    store.dequeue_many(ids, queue)
    store.compact()
    assert len(segment_files(store_dir)) <= 6


def test_after_a_peak_the_disk_has_its_room_back_without_being_asked(
    store: MessageStore, store_dir: Path, wait_for: Callable[[Callable[[], object]], None]
) -> None:
    queue = store.declare_queue("orders")
    keep = store.publish(queue, b"stays")
    ids = store.publish_many(queue, [bytes(20_000)] * 1300)
    assert len(segment_files(store_dir)) >= 50
    store.dequeue_many(ids, queue)
    wait_for(lambda: len(segment_files(store_dir)) <= 5)
    assert [message.id for message in store.messages(queue)] == [keep]


def test_with_a_stuck_message_the_log_never_has_more_files_than_promised(store: MessageStore, store_dir: Path) -> None:
    queue = store.declare_queue("orders")
    keep = store.publish(queue, b"stuck")
    for _ in range(60):
        pass_by(store, 1)
        if store.stats()["segments_relocated"]:
            assert len(segment_files(store_dir)) <= 5
    stats = store.stats()
    assert stats["segments_relocated"] > 10
    assert 1.0 < stats["write_amplification"] < 1.01
    assert [message.id for message in store.messages(queue)] == [keep]


@pytest.fixture
def wait_for() -> Callable[[Callable[[], object]], None]:
    """Waits until a condition holds."""
    import time

    def wait(condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.01)

    return wait
