"""Deliveries that are accepted or rejected in a transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import logstore
from kit.interrupts import Interrupted, every_step
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


# ---- many at once ----


def batch_of(queue: Any, kind: str) -> list[Any]:
    """All messages of the queue as deliveries, as tokens, or as both in turn."""
    held = queue.acquire(100)
    return [each.detach() if kind == "tokens" or (kind == "mixed" and at % 2) else each for at, each in enumerate(held)]


@pytest.mark.parametrize("kind", ["deliveries", "tokens", "mixed"])
@pytest.mark.parametrize("made", [list, tuple, iter], ids=["list", "tuple", "iterator"])
def test_a_batch_accepted_in_a_transaction_is_gone_with_the_commit_and_not_before(
    store: Any, queue: Any, kind: str, made: Callable[[Any], Any]
) -> None:
    store.publish_many(queue, [b"more"] * 98)
    batch = batch_of(queue, kind)
    with store.transaction() as tx:
        queue.accept_many(made(batch), transaction=tx)
        store.publish("plain", b"answer", transaction=tx)
        assert (tx.operations, counts(store)) == (101, (100, 100, 100))
        with pytest.raises(logstore.MessageLocked):
            queue.accept(batch[0])
    assert counts(store) == (0, 0, 0)
    assert contents(store.queue("plain")) == [b"0", b"1", b"answer"]
    for each in batch:
        with pytest.raises(logstore.NotEnqueued):
            queue.accept(each)


@pytest.mark.parametrize("kind", ["deliveries", "tokens", "mixed"])
def test_after_a_rollback_a_batch_is_still_acquired_and_comes_back_to_its_places(
    store: Any, queue: Any, kind: str
) -> None:
    batch = batch_of(queue, kind)
    tx = store.begin()
    queue.accept_many(batch, transaction=tx)
    tx.rollback()
    assert (counts(store), queue.acquire(9)) == ((2, 0, 2), [])
    for each in reversed(batch):
        queue.release(each)
    again = queue.acquire(9)
    assert [(each.content, each.delivery_count) for each in again] == [(b"0", 2), (b"1", 2)]


@pytest.mark.parametrize(("outcome", "left"), [("commit", []), ("rollback", [b"0", b"1"])])
def test_a_transaction_keeps_a_batch_that_its_program_drops(store: Any, queue: Any, outcome: str, left: Any) -> None:
    tx = store.begin()
    queue.accept_many(queue.acquire(9), transaction=tx)
    assert counts(store) == (2, 2, 2)
    getattr(tx, outcome)()
    found = queue.acquire(9)
    assert [each.content for each in found] == left


def test_a_batch_with_one_that_cannot_be_settled_adds_nothing_to_the_transaction(store: Any, queue: Any) -> None:
    store.publish_many(queue, [b"2", b"3", b"4"])
    fine, settled, lost, other, token = queue.acquire(5)
    (foreign,) = store.queue("plain").acquire(1)
    settled.accept()
    store.dequeue(lost.id, queue)
    rival, tx = store.begin(), store.begin()
    other.accept(transaction=rival)
    token = token.detach()
    refused = {
        "settled": ([fine, token, settled], logstore.NotEnqueued),
        "lost": ([fine, lost], logstore.UnknownMessage),
        "locked": ([fine, other], logstore.MessageLocked),
        "of another queue": ([fine, token, foreign], logstore.NotEnqueued),
        "a token of another queue": ([fine, token._replace(queue=token.queue + 1)], logstore.NotEnqueued),
        "a delivery twice": ([fine, token, fine], logstore.NotEnqueued),
        "a token twice": ([token, fine, token], logstore.NotEnqueued),
        "no delivery": ([fine, token, 7], TypeError),
    }
    for name, (batch, problem) in refused.items():
        with pytest.raises(problem) as caught:
            queue.accept_many(batch, transaction=tx)
        assert (getattr(caught.value, "dequeued", None), tx.operations) == (0, 0), name
    queue.accept_many([fine, token], transaction=tx)
    with pytest.raises(logstore.NotEnqueued) as caught:
        queue.accept_many([fine], transaction=tx)
    assert (caught.value.dequeued, tx.operations) == (0, 2)  # type: ignore[attr-defined] # set on the error
    tx.commit()
    rival.rollback()
    assert counts(store) == (1, 0, 1)


def test_a_batch_is_refused_with_a_transaction_of_another_store_or_with_an_outcome(
    open_store: Callable[..., Any], store: Any, queue: Any, tmp_path: Any
) -> None:
    batch, ended = queue.acquire(2), store.begin()
    ended.commit()
    foreign = open_store(tmp_path / "other").begin()
    for transaction, problem in (
        (foreign, logstore.TransactionError),
        (ended, logstore.TransactionEnded),
        (7, TypeError),
    ):
        with pytest.raises(problem) as caught:
            queue.accept_many(batch, transaction=transaction)
        assert caught.value.dequeued == 0  # type: ignore[attr-defined] # set on the error
    queue.accept_many(batch)
    assert counts(store) == (0, 0, 0)


MANY = 300  # above the numbers that Python keeps made, and above what is settled without releasing the interpreter


@pytest.mark.parametrize("made", [list, iter], ids=["list", "iterator"])
def test_whichever_allocation_fails_a_batch_says_how_many_are_in_the_transaction(
    store: Any, queue: Any, made: Callable[[Any], Any]
) -> None:
    testcapi = pytest.importorskip("_testcapi", reason="SKIPPED LOUDLY: this Python has no _testcapi")
    store.publish_many(queue, [b"x"] * (MANY - 2))
    failed = passed_in_a_row = number = 0
    while passed_in_a_row <= 20:  # some allocations may fail without harm
        held, tx, problem = queue.acquire(MANY), store.begin(), None
        given = made(held)
        testcapi.set_nomemory(number, number + 1)
        try:
            queue.accept_many(given, transaction=tx)
        except MemoryError as caught:
            testcapi.remove_mem_hooks()
            problem = caught
        testcapi.remove_mem_hooks()
        assert len(held) == MANY
        assert tx.operations == (MANY if problem is None else getattr(problem, "dequeued", 0)), number
        tx.rollback()
        for each in held:
            each.release()
        failed += problem is not None
        passed_in_a_row = passed_in_a_row + 1 if problem is None else 0
        number += 1
    assert failed > 0


@pytest.mark.parametrize("made", [list, iter], ids=["list", "iterator"])
def test_a_handler_that_raises_in_a_batch_says_how_many_are_in_the_transaction(
    store: Any, queue: Any, made: Callable[[Any], Any]
) -> None:
    state: dict[str, Any] = {}
    told: set[int] = set()

    def handler() -> None:
        raise Interrupted

    def accept(_: int) -> None:
        try:
            queue.accept_many(made(state["held"]), transaction=state["tx"])
        except Interrupted as problem:
            if hasattr(problem, "dequeued"):  # one that comes while another is given the attribute has none
                told.add(problem.dequeued)
                assert problem.dequeued == state["tx"].operations
            raise

    state.update(held=queue.acquire(2), tx=store.begin())
    for _ in every_step(accept, handler):
        state["tx"].rollback()
        for each in state["held"]:
            each.release()
        state.update(held=queue.acquire(2), tx=store.begin())
        assert len(state["held"]) == 2
    assert told == ({0, 2} if made is iter else {2})
