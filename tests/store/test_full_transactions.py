"""A full store is drained by transactions, too: they take messages, put them on other queues, prepare and commit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import logstore
from kit.command import fine, told
from kit.stores import SMALL_SEGMENT
from logstore import errors

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from logstore import MessageStore

    Open = Callable[..., MessageStore]

LIMIT = 8 * SMALL_SEGMENT
BODY = bytes(20_000)


def full(store: MessageStore, body: bytes = BODY) -> int:
    """Publishes until the store refuses; how many messages there are."""
    store.declare_queue("dead")
    queue = store.declare_queue("orders", dead_letter="dead")
    with pytest.raises(errors.StoreFull):
        store.publish_many(queue, [body] * 40_000)
    store.force()
    return queue.depth


@pytest.mark.parametrize("begun", ["before it was full", "in the full store"])
def test_a_transaction_accepts_messages_of_a_full_store(open_store: Open, store_dir: Path, begun: str) -> None:
    store = open_store(max_log_bytes=LIMIT)
    earlier = store.begin()
    made = full(store)
    transaction = earlier if begun == "before it was full" else store.begin()
    for delivery in store.queue("orders").acquire(5):
        delivery.accept(transaction=transaction)
    with pytest.raises(errors.StoreFull):
        store.publish("orders", BODY)
    transaction.commit()
    assert store.queue("orders").depth == made - 5
    store.close()
    store = open_store()
    assert store.queue("orders").depth == made - 5
    with store.transaction() as again:
        store.dequeue_many([message.id for message in store.messages("orders")][:20], "orders", transaction=again)
    assert store.queue("orders").depth == made - 25


def test_a_two_phase_accept_is_prepared_and_committed_in_a_full_store(open_store: Open) -> None:
    store = open_store(max_log_bytes=LIMIT)
    made = full(store)
    transaction = store.begin(xid=logstore.Xid(1, b"global", b"branch"))
    for delivery in store.queue("orders").acquire(5):
        delivery.accept(transaction=transaction)
    transaction.end()
    transaction.prepare()
    store.close()
    store = open_store()
    (found,) = store.in_doubt()
    found.commit()
    assert store.queue("orders").depth == made - 5


@pytest.mark.parametrize("within", ["a transaction", "no transaction"])
def test_a_message_of_a_full_store_is_rejected_to_its_dead_letter_queue(open_store: Open, within: str) -> None:
    store = open_store(max_log_bytes=LIMIT)
    made = full(store)
    deliveries = store.queue("orders").acquire(5)
    if within == "a transaction":
        with store.transaction() as transaction:
            for delivery in deliveries:
                delivery.reject(transaction=transaction)
    else:
        for delivery in deliveries:
            delivery.reject()
    assert (store.queue("orders").depth, store.queue("dead").depth) == (made - 5, 5)
    assert [message.id for message in store.messages("dead")] == [delivery.id for delivery in deliveries]
    for delivery in store.queue("dead").acquire(5):
        delivery.accept()
    store.close()


def test_a_message_is_moved_within_a_full_store_and_put_on_a_second_queue_only_if_there_is_room(
    open_store: Open,
) -> None:
    store = open_store(max_log_bytes=LIMIT)
    made = full(store)
    message_id = next(iter(store.messages("orders"))).id
    with store.transaction() as transaction, pytest.raises(errors.StoreFull):
        store.enqueue(message_id, "dead", transaction)
    with store.transaction() as transaction:
        store.dequeue(message_id, "orders", transaction)
        store.enqueue(message_id, "dead", transaction)
    assert (store.queue("orders").depth, store.queue("dead").depth) == (made - 1, 1)


def test_what_exceeds_the_pool_is_refused_at_the_operation_and_the_rest_commits(
    open_store: Open, store_dir: Path
) -> None:
    store = open_store(max_log_bytes=LIMIT)
    made = full(store, b"")  # so small that the pool has room for fewer than there are
    kept = store.fullness().transaction_bytes
    assert kept == SMALL_SEGMENT // 4
    before = store.fullness().transaction_bytes_left
    assert before is not None
    transaction, taken = store.begin(), 0
    with pytest.raises(errors.TransactionLimit, match=f"have used the {kept} bytes that it keeps for them"):
        for delivery in store.queue("orders").acquire(made):
            delivery.accept(transaction=transaction)
            taken += 1
    left = store.fullness().transaction_bytes_left
    assert left is not None
    assert left < before
    assert taken > kept // 400
    transaction.commit()
    assert store.queue("orders").depth == made - taken
    store.close()
    assert told("info", store_dir)["transaction_bytes"] == kept
    assert f"transaction bytes  {kept} bytes" in " ".join(fine("info", store_dir).split("\n"))


def test_a_store_with_room_takes_transactions_of_any_size_the_log_can_hold(open_store: Open) -> None:
    store = open_store()
    queue = store.declare_queue("orders")
    many = store.publish_many(queue, [b""] * 20_000)
    assert store.fullness().transaction_bytes_left is None
    with store.transaction() as transaction:
        store.dequeue_many(many, queue, transaction=transaction)
    assert queue.depth == 0
