"""Limits on what is prepared: in number always, in age only where somebody asked for it."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

import pytest

import logstore
from logstore import Xid, errors

if TYPE_CHECKING:
    from collections.abc import Callable

    from logstore import MessageStore

    Open = Callable[..., MessageStore]


def prepare(store: MessageStore, number: int, queue: Any) -> logstore.Transaction:
    """One more prepared branch with a message on its way to the queue."""
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


def test_the_limit_counts_what_earlier_lives_have_prepared(open_store: Open) -> None:
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


def test_nothing_prepared_is_ended_by_time_unless_asked_for(open_store: Open) -> None:
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
        deadline = time.monotonic() + 20
        while store.in_doubt() and time.monotonic() < deadline:
            time.sleep(0.02)
    assert transaction.state == "rolled_back"
    assert [message.id for message in store.messages(queue)] == [key]
    deadline = time.monotonic() + 20
    while store.stats()["overdue_rolled_back"] == 0 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert store.stats()["overdue_rolled_back"] == 1
    assert any(str(transaction.xid) in record.getMessage() for record in caplog.records)
    with pytest.raises(errors.TransactionEnded):
        transaction.commit()


def test_what_is_younger_than_the_timeout_stays(open_store: Open) -> None:
    store = open_store(prepared_timeout=3600)
    prepare(store, 1, store.declare_queue("q"))
    time.sleep(0.2)
    assert len(store.in_doubt()) == 1
    store.close()
    assert len(open_store(prepared_timeout=3600.0).in_doubt()) == 1


@pytest.mark.parametrize("wrong", [0, -1, True, "1", float("nan"), float("inf")])
def test_a_timeout_that_is_none_is_refused(open_store: Open, wrong: Any) -> None:
    with pytest.raises(errors.OptionError, match="prepared_timeout"):
        open_store(prepared_timeout=wrong)


@pytest.mark.parametrize("wrong", [0, -1, 65_537, 1.5, True])
def test_a_limit_on_prepared_transactions_that_makes_no_sense_is_refused(open_store: Open, wrong: Any) -> None:
    with pytest.raises(errors.OptionError, match="max_prepared"):
        open_store(max_prepared=wrong)
