"""Deliveries that are accepted or rejected in a transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import logstore
from kit.stores import contents

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def queue(store: Any) -> Any:
    dead = store.declare_queue("dead")
    store.declare_queue("plain")
    made = store.declare_queue("q", dead_letter=dead)
    for queue in (made, store.queue("plain")):
        store.publish_many(queue, [b"0", b"1"])
    return made


def counts(store: Any, name: str = "q") -> tuple[int, int, int]:
    """Depth, locked, acquired."""
    found = store.stats()["queues"][name]
    return found["depth"], found["locked"], found["acquired"]


def test_a_delivery_accepted_in_a_transaction_is_gone_with_the_commit(store: Any, queue: Any) -> None:
    (delivery,) = queue.acquire(1)
    with store.transaction() as tx:
        delivery.accept(transaction=tx)
        store.publish("plain", b"answer", transaction=tx)
        assert counts(store) == (2, 1, 1)
        rest = queue.acquire(5)
        assert [each.content for each in rest] == [b"1"]
    assert counts(store) == (1, 0, 1)
    assert contents(store.queue("plain")) == [b"0", b"1", b"answer"]
    with pytest.raises(logstore.NotEnqueued):
        delivery.accept()


@pytest.mark.parametrize("settle", ["accept", "reject", "release"])
def test_after_a_rollback_a_delivery_is_still_acquired_and_can_be_settled(store: Any, queue: Any, settle: str) -> None:
    (delivery,) = queue.acquire(1)
    tx = store.begin()
    delivery.accept(transaction=tx)
    tx.rollback()
    assert counts(store) == (2, 0, 1)
    rest = queue.acquire(5)
    assert [each.content for each in rest] == [b"1"]
    getattr(delivery, settle)()
    assert counts(store) == ((2, 0, 1) if settle == "release" else (1, 0, 1))


def test_a_delivery_released_before_the_outcome_comes_back_after_a_rollback_only(store: Any, queue: Any) -> None:
    for outcome, comes_back in (("rollback", [b"0"]), ("commit", [])):
        (delivery,) = queue.acquire(1)
        assert delivery.content == b"0"
        tx = store.begin()
        delivery.accept(transaction=tx)
        delivery.release()
        (other,) = queue.acquire(5)
        assert other.content == b"1"
        getattr(tx, outcome)()
        found = queue.acquire(5)
        assert [each.content for each in found] == comes_back
        for each in (other, *found):
            each.release()
    assert counts(store) == (1, 0, 0)


@pytest.mark.parametrize("outcome", ["commit", "rollback"])
def test_a_rejected_message_moves_to_the_dead_letters_with_the_outcome(store: Any, queue: Any, outcome: str) -> None:
    (delivery,) = queue.acquire(1)
    tx = store.begin()
    delivery.reject(transaction=tx)
    assert (counts(store), counts(store, "dead")) == ((2, 1, 1), (0, 0, 0))
    getattr(tx, outcome)()
    if outcome == "commit":
        assert (contents(queue), contents(store.queue("dead"))) == ([b"1"], [b"0"])
        assert counts(store) == (1, 0, 0)
    else:
        assert (contents(queue), contents(store.queue("dead"))) == ([b"0", b"1"], [])
        assert counts(store) == (2, 0, 1)


def test_without_a_dead_letter_queue_a_rejected_message_is_gone_with_the_commit(store: Any, queue: Any) -> None:
    (delivery,) = store.queue("plain").acquire(1)
    with store.transaction() as tx:
        delivery.reject(transaction=tx)
    assert contents(store.queue("plain")) == [b"1"]
    assert counts(store, "plain") == (1, 0, 0)


@pytest.mark.parametrize("settle", ["accept", "reject"])
def test_a_message_that_another_consumer_took_meanwhile_is_neither_enqueued_nor_still_acquired(
    store: Any, queue: Any, settle: str
) -> None:
    (delivery,) = queue.acquire(1)
    store.enqueue(delivery.id, "plain")
    store.dequeue(delivery.id, queue)
    with store.transaction() as tx, pytest.raises(logstore.NotEnqueued):
        getattr(delivery, settle)(transaction=tx)
    assert counts(store) == (1, 0, 0)
    assert contents(store.queue("dead")) == []


def test_a_prepared_settlement_outlives_the_process_that_made_it(
    open_store: Callable[..., Any], store: Any, queue: Any
) -> None:
    xid = logstore.Xid(1, b"g")
    (delivery,) = queue.acquire(1)
    tx = store.begin(xid)
    delivery.accept(transaction=tx)
    tx.end()
    tx.prepare()
    store.close()
    again = open_store()
    assert counts(again) == (2, 1, 0)
    again.in_doubt()[0].commit()
    assert contents(again.queue("q")) == [b"1"]


def test_a_delivery_of_another_queue_or_a_transaction_of_another_store_is_refused(
    open_store: Callable[..., Any], store: Any, queue: Any, tmp_path: Any
) -> None:
    (delivery,) = queue.acquire(1)
    tx = store.begin()
    with pytest.raises(logstore.NotEnqueued):
        store.queue("plain").accept(delivery, transaction=tx)
    tx.rollback()
    foreign = open_store(tmp_path / "other").begin()
    with pytest.raises(logstore.TransactionError):
        delivery.accept(transaction=foreign)
    delivery.accept()
    assert counts(store) == (1, 0, 0)
