"""Limits on prepared transactions: always on their number, on their age only with the option."""

from __future__ import annotations

import logging
import threading
import time
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

import logstore
from kit.patience import wait_until
from logstore import Xid, errors

if TYPE_CHECKING:
    from collections.abc import Callable

    from logstore import MessageStore

    Open = Callable[..., MessageStore]


def prepare(store: MessageStore, number: int, queue: Any) -> logstore.Transaction:
    """Prepares one more branch with a message for the queue."""
    transaction = store.begin(Xid(1, number.to_bytes(4, "big")))
    store.publish(queue, b"waits", transaction=transaction)
    transaction.end()
    transaction.prepare()
    return transaction


def test_one_more_prepared_transaction_than_allowed_is_refused_and_can_still_commit(open_store: Open) -> None:
    store = open_store(max_prepared=3)
    queue = store.declare_queue("q")
    prepared = [prepare(store, number, queue) for number in range(3)]
    one_more = store.begin(Xid(1, b"more"))
    store.publish(queue, b"more", transaction=one_more)
    one_more.end()
    with pytest.raises(errors.TransactionError, match="max_prepared"):
        one_more.prepare()
    assert one_more.state == "ended"
    assert len(store.in_doubt()) == 3
    one_more.commit()
    assert queue.depth == 1
    prepared[0].commit()
    prepare(store, 9, queue)
    assert len(store.in_doubt()) == 3


def test_the_limit_counts_transactions_prepared_before_a_restart(open_store: Open) -> None:
    store = open_store(max_prepared=2)
    queue = store.declare_queue("q")
    prepare(store, 1, queue)
    prepare(store, 2, queue)
    store.close()
    store = open_store(max_prepared=2)
    with pytest.raises(errors.TransactionError, match="max_prepared"):
        prepare(store, 3, store.queue("q"))
    store.in_doubt()[0].rollback()
    prepare(store, 4, store.queue("q"))


def test_prepared_transactions_never_time_out_without_the_option(open_store: Open) -> None:
    store = open_store()
    prepare(store, 1, store.declare_queue("q"))
    time.sleep(0.3)
    assert len(store.in_doubt()) == 1
    assert store.stats()["overdue_rolled_back"] == 0


def test_an_overdue_transaction_is_rolled_back_with_a_warning_and_counted(
    open_store: Open, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(prepared_timeout=0.2)
    queue = store.declare_queue("q")
    key = store.publish(queue, b"kept")
    with caplog.at_level(logging.WARNING, logger="logstore.overdue"):
        transaction = store.begin(Xid(7, b"late"))
        store.dequeue(key, queue, transaction=transaction)
        transaction.end()
        transaction.prepare()
        # The rollback, the count and the warning are done one after the other, in another thread.
        wait_until(lambda: any(str(transaction.xid) in record.getMessage() for record in caplog.records))
    assert not store.in_doubt()
    assert transaction.state == "rolled_back"
    assert [message.id for message in store.messages(queue)] == [key]
    assert store.stats()["overdue_rolled_back"] == 1
    with pytest.raises(errors.TransactionEnded):
        transaction.commit()


def test_transactions_younger_than_the_timeout_stay(open_store: Open) -> None:
    store = open_store(prepared_timeout=3600)
    prepare(store, 1, store.declare_queue("q"))
    time.sleep(0.2)
    assert len(store.in_doubt()) == 1
    store.close()
    assert len(open_store(prepared_timeout=3600.0).in_doubt()) == 1


@pytest.mark.parametrize("wrong", [0, -1, True, "1", float("nan"), float("inf")])
def test_an_invalid_timeout_is_refused(open_store: Open, wrong: Any) -> None:
    with pytest.raises(errors.OptionError, match="prepared_timeout"):
        open_store(prepared_timeout=wrong)


@pytest.mark.parametrize("wrong", [0, -1, 65_537, 1.5, True])
def test_a_limit_on_prepared_transactions_that_makes_no_sense_is_refused(open_store: Open, wrong: Any) -> None:
    with pytest.raises(errors.OptionError, match="max_prepared"):
        open_store(max_prepared=wrong)


def test_no_exception_of_a_listener_ends_the_thread_for_overdue_transactions(open_store: Open) -> None:
    store = open_store(prepared_timeout=0.05)
    queue = store.declare_queue("q")

    def broken(_: object) -> None:
        raise SystemExit

    store.on_release(broken)
    for number in range(2):
        transaction = store.begin(logstore.Xid(1, b"%d" % number))
        store.publish(queue, b"x", transaction=transaction)
        transaction.end()
        transaction.prepare()
        wait_until(lambda transaction=transaction: transaction.state == "rolled_back")


def test_two_threads_and_the_timeout_that_end_one_branch_agree_on_its_outcome(open_store: Open) -> None:
    """The write buffers stay full, so every outcome waits for room and then finds the branch as others have left it."""
    store = open_store(prepared_timeout=0.05, max_write_buffers=2, segment_size=1 << 20)
    queue, noise = store.declare_queue("q"), store.declare_queue("noise")
    stop = threading.Event()
    failed: list[BaseException] = []

    def fill() -> None:
        try:
            while not stop.is_set():
                ids = store.publish_many(noise, [bytes(30_000)] * 4, wait=False)
                store.dequeue_many(ids, noise, wait=False)
        except BaseException as problem:  # noqa: BLE001 - raised below
            failed.append(problem)

    def end(transaction: logstore.Transaction, outcome: str, start: threading.Barrier, won: list[str]) -> None:
        try:
            start.wait(30)
            getattr(transaction, outcome)(wait=number % 2 == 0)
            won.append({"commit": "committed", "rollback": "rolled_back"}[outcome])
        except errors.TransactionEnded:
            pass
        except BaseException as problem:  # noqa: BLE001 - raised below
            failed.append(problem)

    publishers = [threading.Thread(target=fill) for _ in range(2)]
    for publisher in publishers:
        publisher.start()
    expected = []
    deadline = time.monotonic() + 1
    for number in count():
        if number >= 30 or time.monotonic() > deadline or failed:
            break
        transaction = store.begin(Xid(1, b"%d" % number))
        key = store.publish(queue, b"%d" % number, transaction=transaction)
        transaction.end()
        transaction.prepare(wait=False)
        if number % 3 == 2:
            time.sleep(0.049)  # all three at about the same moment
        won: list[str] = []
        start = threading.Barrier(2)
        outcomes = (("commit", "rollback"), ("commit", "commit"))[number % 2]
        enders = [threading.Thread(target=end, args=(transaction, outcome, start, won)) for outcome in outcomes]
        for ender in enders:
            ender.start()
        for ender in enders:
            ender.join(60)
        assert not any(ender.is_alive() for ender in enders)
        assert won in ([], [transaction.state])
        assert transaction.state == "rolled_back" or won == ["committed"]
        expected += [key] * (transaction.state == "committed")
    stop.set()
    for publisher in publishers:
        publisher.join(60)
    assert failed == []
    assert expected
    assert [message.id for message in store.messages(queue)] == expected
    store.close()
    store = open_store()
    assert store.in_doubt() == []
    assert [message.id for message in store.messages(store.queue("q"))] == expected
    assert store.stats()["messages"] == len(expected)
