"""A store in the transactions of the transaction package: joining, voting, finishing, aborting."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

import pytest
import transaction
from transaction.interfaces import IDataManager, TransactionFailedError
from zope.interface.verify import verifyObject

from kit.simulated import ALL_LOST, Disk
from kit.sql_partner import FixedLedger, Refusal, Shop, Step, refuse
from kit.stores import contents
from logstore import errors, tpc

if TYPE_CHECKING:
    from pathlib import Path

    from logstore import MessageStore, Queue

Open = Any


# ---- together ----


def test_an_enqueue_and_a_row_commit_together(store: MessageStore, queue: Queue, shop: Shop, joined: Any) -> None:
    old = store.publish(queue, b"old")
    with joined._manager:
        shop.order("tea")
        joined.publish(queue, b"tea")
        joined.dequeue(old, queue)
        assert contents(queue) == [b"old"]
    assert (shop.orders(), contents(queue)) == (["tea"], [b"tea"])
    assert store.in_doubt() == []


def test_neither_happens_when_the_block_raises(store: MessageStore, queue: Queue, shop: Shop, joined: Any) -> None:
    with pytest.raises(Refusal), joined._manager:
        shop.order("tea")
        joined.publish(queue, b"tea")
        raise Refusal
    assert (shop.orders(), contents(queue)) == ([], [])
    assert store.stats()["transactions"] == 0


def test_neither_happens_when_the_database_refuses(store: MessageStore, queue: Queue, shop: Shop, joined: Any) -> None:
    with joined._manager:
        shop.order("tea")
    with pytest.raises(Exception, match="UNIQUE"), joined._manager:
        shop.order("tea")
        joined.publish(queue, b"tea")
    assert (shop.orders(), contents(queue)) == (["tea"], [])
    assert store.stats()["transactions"] == 0


def test_a_delivery_is_consumed_together_with_its_row(
    queue: Queue, store: MessageStore, shop: Shop, joined: Any
) -> None:
    store.publish_many(queue, [b"tea", b"coffee"])
    first, second = queue.acquire(2)
    with joined._manager:
        shop.order(first.content.decode())
        joined.accept(first)
    with pytest.raises(Refusal), joined._manager:
        shop.order(second.content.decode())
        joined.accept(second)
        raise Refusal
    assert (shop.orders(), contents(queue)) == (["tea"], [b"coffee"])
    second.release()
    (again,) = queue.acquire()
    assert (again.content, again.delivery_count) == (b"coffee", 2)


def test_several_stores_and_the_database_commit_together_or_not_at_all(
    store: MessageStore, queue: Queue, open_store: Open, shop: Shop, joined: Any, manager: Any, tmp_path: Path
) -> None:
    other = open_store(tmp_path / "other")
    other.declare_queue("q")
    second = tpc.Participant(other, ledger=shop.markers, transaction_manager=manager)
    with manager:
        shop.order("tea")
        joined.publish("q", b"tea")
        second.publish("q", b"tea")
        assert joined.xid.gtrid == second.xid.gtrid
        assert joined.xid.bqual != second.xid.bqual
    with pytest.raises(Refusal), manager:
        shop.order("coffee")
        joined.publish("q", b"coffee")
        second.publish("q", b"coffee")
        manager.get().join(Step(manager, "tpc_vote", "~last", refuse))
        manager.get().join(Step(manager, "tpc_vote", "logstore~", refuse))
    assert shop.orders() == ["tea"]
    assert contents(queue) == contents(other.queue("q")) == [b"tea"]
    assert store.in_doubt() == other.in_doubt() == []


@pytest.mark.parametrize("relaxed", [False, True])
def test_a_commit_is_durable_and_leaves_nothing_in_doubt(tmp_path: Path, manager: Any, relaxed: bool) -> None:
    disk = Disk()
    store = disk.open(tmp_path / "s", relaxed=relaxed, background=False)
    store.declare_queue("q")
    participant = tpc.Participant(store, transaction_manager=manager)
    with manager:
        participant.publish("q", b"x")
    with disk.crash(ALL_LOST).open(tmp_path / "s") as again:
        assert (again.in_doubt(), contents(again.queue("q"))) == ([], [b"x"])


def test_two_participants_of_one_store_share_its_branch_unless_they_are_named_apart(
    store: MessageStore, queue: Queue, manager: Any
) -> None:
    same = [tpc.Participant(store, transaction_manager=manager) for _ in range(2)]
    named = tpc.Participant(store, name="named", transaction_manager=manager)
    with manager:
        for participant in (*same, named):
            participant.publish(queue, b"x")
        assert store.stats()["transactions"] == 2
        assert same[0].xid == same[1].xid != named.xid
    assert len(contents(queue)) == 3


def test_a_store_joins_with_its_first_operation_and_not_before(
    store: MessageStore, queue: Queue, shop: Shop, joined: Any, manager: Any
) -> None:
    with manager:
        shop.order("tea")
        xid = joined.xid
        assert store.stats()["transactions"] == 0
    assert shop.marked() == []
    with manager:
        assert joined.xid != xid
        expected = joined.xid
        joined.publish(queue, b"x")
        assert (store.stats()["transactions"], joined.xid) == (1, expected)
        joined.publish(queue, b"y")
        assert store.stats()["transactions"] == 1
    assert shop.marked() == [True]


def test_threads_have_their_own_transactions(store: MessageStore, queue: Queue) -> None:
    participant = tpc.Participant(store)  # uses the package's thread-local manager

    def work(name: int) -> None:
        for number in range(10):
            with transaction.manager:
                participant.publish(queue, b"%d %d a" % (name, number))
                participant.publish(queue, b"%d %d b" % (name, number))

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = contents(queue)
    assert len(found) == 80
    assert all(a[:-1] == b[:-1] for a, b in zip(found[::2], found[1::2], strict=True))


def test_a_commit_costs_two_forces(tmp_path: Path, manager: Any) -> None:
    store = Disk().open(tmp_path / "s", background=False)  # so that nothing is forced in the background
    store.declare_queue("q")
    participant = tpc.Participant(store, transaction_manager=manager)
    before = store.stats()["syncs"]
    with manager:
        for number in range(50):
            participant.publish("q", b"%d" % number)
    assert store.stats()["syncs"] - before == 2


# ---- the protocol ----


def test_it_votes_before_one_phase_resources_commit(shop: Shop, queue: Queue, joined: Any, manager: Any) -> None:
    with manager:
        shop.order("tea")
        joined.publish(queue, b"tea")
        shop.session.flush()
        keys = {type(resource).__name__: resource.sortKey() for resource in manager.get()._resources}
        assert keys["_Branch"] < keys["SessionDataManager"]
        assert keys["SessionDataManager"].startswith("~")


def test_the_joined_resource_is_a_data_manager(queue: Queue, alone: Any, manager: Any) -> None:
    alone.publish(queue, b"x")
    (branch,) = manager.get()._resources
    assert verifyObject(IDataManager, branch)
    assert branch.transaction_manager is manager


@pytest.mark.parametrize(
    ("step", "key"),
    [
        *((step, key) for step in ("tpc_begin", "commit") for key in ("a", "m", "~z")),
        ("tpc_vote", "a"),
        ("tpc_vote", "m"),
    ],
)
def test_a_refusal_before_the_decision_leaves_nothing_anywhere(
    store: MessageStore, queue: Queue, shop: Shop, joined: Any, manager: Any, step: str, key: str
) -> None:
    with pytest.raises(Refusal), manager:
        shop.order("tea")
        joined.publish(queue, b"tea")
        manager.get().join(Step(manager, step, key, refuse))
    assert (shop.orders(), contents(queue)) == ([], [])
    assert store.stats()["transactions"] == 0
    with manager:
        joined.publish(queue, b"the next one is not disturbed")
    assert len(contents(queue)) == 1


@pytest.mark.parametrize(("step", "key"), [("tpc_vote", "~z"), ("tpc_finish", "a"), ("tpc_finish", "~z")])
def test_an_abort_after_the_database_committed_commits_too(
    store: MessageStore, queue: Queue, shop: Shop, joined: Any, manager: Any, step: str, key: str
) -> None:
    with pytest.raises(Refusal), manager:
        shop.order("tea")
        joined.publish(queue, b"tea")
        manager.get().join(Step(manager, step, key, refuse))
    assert (shop.orders(), contents(queue)) == (["tea"], [b"tea"])
    assert store.in_doubt() == []


@pytest.mark.parametrize("answer", [None, OSError("no route to host")])
def test_an_abort_that_cannot_ask_the_ledger_leaves_the_branch_in_doubt_and_says_so(
    store: MessageStore, queue: Queue, manager: Any, caplog: pytest.LogCaptureFixture, answer: Any
) -> None:
    ledger = FixedLedger(answer)
    participant = tpc.Participant(store, ledger=ledger, transaction_manager=manager)
    with pytest.raises(Refusal), manager:
        participant.publish(queue, b"tea")
        manager.get().join(Step(manager, "tpc_vote", "~z", refuse))
    manager.abort()
    (branch,) = store.in_doubt()
    assert f"branch {branch.xid} stays in doubt: call recover()" in caplog.text
    ledger.answer = True
    assert participant.recover().committed == (tpc.Xid.of(branch.xid),)
    assert contents(queue) == [b"tea"]


def test_an_abort_without_a_ledger_rolls_back(store: MessageStore, queue: Queue, alone: Any, manager: Any) -> None:
    with pytest.raises(Refusal), manager:
        alone.publish(queue, b"tea")
        manager.get().join(Step(manager, "tpc_vote", "~z", refuse))
    assert (store.in_doubt(), contents(queue)) == ([], [])


@pytest.mark.parametrize("again", ["abort", "tpc_abort"])
def test_an_abort_after_the_end_changes_nothing(queue: Queue, alone: Any, manager: Any, again: str) -> None:
    alone.publish(queue, b"x")
    current = manager.get()
    (branch,) = current._resources
    manager.commit()
    getattr(branch, again)(current)
    getattr(branch, again)(current)
    assert contents(queue) == [b"x"]


def test_hooks_after_the_commit_cannot_take_it_back(queue: Queue, alone: Any, manager: Any) -> None:
    with manager:
        alone.publish(queue, b"x")
        manager.get().addAfterCommitHook(lambda status: None)  # after such hooks the package aborts every resource
    assert contents(queue) == [b"x"]


def test_a_failed_transaction_takes_no_more_work(store: MessageStore, queue: Queue, alone: Any, manager: Any) -> None:
    alone.publish(queue, b"x")
    manager.get().join(Step(manager, "tpc_vote", "~z", refuse))
    with pytest.raises(Refusal):
        manager.commit()
    with pytest.raises(TransactionFailedError):
        alone.publish(queue, b"y")
    assert store.stats()["transactions"] == 0
    manager.abort()
    with manager:
        alone.publish(queue, b"z")
    assert contents(queue) == [b"z"]


def test_work_in_a_before_commit_hook_takes_part(
    store: MessageStore, queue: Queue, shop: Shop, joined: Any, manager: Any
) -> None:
    with manager:
        shop.order("tea")
        manager.get().addBeforeCommitHook(lambda: joined.publish(queue, b"tea"))
    assert (shop.orders(), contents(queue), shop.marked()) == (["tea"], [b"tea"], [True])


def test_work_that_comes_too_late_for_its_marker_fails_the_transaction(
    store: MessageStore, queue: Queue, shop: Shop, joined: Any, manager: Any
) -> None:
    class Late:
        def beforeCompletion(self, current: Any) -> None:  # noqa: N802 - the interface's name
            if armed:
                joined.publish(queue, b"tea")

        def afterCompletion(self, current: Any) -> None:  # noqa: N802 - the interface's name
            pass

        def newTransaction(self, current: Any) -> None:  # noqa: N802 - the interface's name
            pass

    armed = [True]
    late = Late()
    manager.registerSynch(late)
    with pytest.raises(errors.TransactionError, match="before-commit hook"), manager:
        shop.order("tea")
        manager.get().addAfterAbortHook(armed.clear)
        manager.get().addAfterCommitHook(lambda status: armed.clear())
    assert (shop.orders(), contents(queue), store.stats()["transactions"]) == ([], [], 0)


def test_a_message_locked_by_another_transaction_may_be_retried(
    store: MessageStore, queue: Queue, alone: Any, manager: Any
) -> None:
    key = store.publish(queue, b"x")
    holder = store.begin()
    store.dequeue(key, queue, holder)
    tries = 0

    def work() -> None:
        nonlocal tries
        tries += 1
        if tries == 2:
            holder.rollback()
        alone.dequeue(key, queue)

    manager.run(work, 2)
    assert (tries, contents(queue)) == (2, [])
    with pytest.raises(errors.UnknownMessage):  # and this is not
        manager.run(lambda: alone.dequeue(key, queue), 2)


# ---- savepoints ----


def test_a_savepoint_after_work_in_a_store_is_refused(queue: Queue, alone: Any, manager: Any) -> None:
    alone.publish(queue, b"x")
    with pytest.raises(TypeError, match="Savepoints unsupported"):
        manager.savepoint()
    manager.abort()
    assert contents(queue) == []


def test_an_optimistic_savepoint_may_be_taken_but_not_gone_back_to(queue: Queue, alone: Any, manager: Any) -> None:
    alone.publish(queue, b"x")
    savepoint = manager.savepoint(optimistic=True)
    with pytest.raises(TypeError, match="Savepoints unsupported"):
        savepoint.rollback()
    with pytest.raises(TransactionFailedError):
        manager.commit()
    manager.abort()
    assert contents(queue) == []


def test_going_back_to_a_savepoint_before_the_first_operation_undoes_the_stores_part_and_its_marker(
    store: MessageStore, queue: Queue, shop: Shop, joined: Any, manager: Any
) -> None:
    with manager:
        savepoint = manager.savepoint()
        joined.publish(queue, b"undone")
        first = joined.xid
        savepoint.rollback()
        assert store.stats()["transactions"] == 0
        shop.order("tea")
        joined.publish(queue, b"tea")
        assert joined.xid != first
    assert (shop.orders(), contents(queue), shop.marked()) == (["tea"], [b"tea"], [True])
    with manager:
        savepoint = manager.savepoint()
        joined.publish(queue, b"undone")
        savepoint.rollback()
    assert (contents(queue), shop.marked()) == ([b"tea"], [True])


# ---- when the store fails ----


@pytest.mark.parametrize("key", ["m", "~z"])
def test_a_disk_that_fails_between_vote_and_finish_raises_nothing_and_is_settled_by_recovery(
    tmp_path: Path, manager: Any, shop: Shop, caplog: pytest.LogCaptureFixture, key: str
) -> None:
    disk = Disk()
    store = disk.open(tmp_path / "s")
    store.declare_queue("q")
    participant = tpc.Participant(store, ledger=shop.markers, transaction_manager=manager)
    with manager:
        shop.order("tea")
        participant.publish("q", b"tea")
        manager.get().join(Step(manager, "tpc_vote", key, lambda: disk.fail(1, 5, forever=True)))
    (record,) = [record for record in caplog.records if record.levelno == logging.CRITICAL]
    assert record.name == "logstore.tpc"
    assert "open the store again and call recover()" in record.getMessage()
    assert record.exc_info is not None
    assert shop.orders() == ["tea"]
    with disk.crash(ALL_LOST).open(tmp_path / "s") as again:
        assert contents(again.queue("q")) == []
        recovered = tpc.Participant(again, ledger=shop.markers, transaction_manager=manager).recover()
        assert (len(recovered.committed), recovered.rolled_back, recovered.in_doubt) == (1, (), ())
        assert contents(again.queue("q")) == [b"tea"]
        assert shop.marked() == []


def test_a_disk_that_fails_in_the_vote_fails_the_transaction_everywhere(
    tmp_path: Path, manager: Any, shop: Shop
) -> None:
    disk = Disk()
    store = disk.open(tmp_path / "s")
    store.declare_queue("q")
    participant = tpc.Participant(store, ledger=shop.markers, transaction_manager=manager)
    with pytest.raises(errors.OutcomeUnknown), manager:
        shop.order("tea")
        participant.publish("q", b"tea")
        manager.get().join(Step(manager, "tpc_vote", "a", lambda: disk.fail(1, 5, forever=True)))
    assert shop.orders() == []
    with disk.crash().open(tmp_path / "s") as again:
        tpc.Participant(again, ledger=shop.markers, transaction_manager=manager).recover()
        assert (contents(again.queue("q")), again.in_doubt()) == ([], [])


@pytest.mark.parametrize("step", ["tpc_begin", "tpc_vote"])
def test_a_store_that_is_closed_on_the_way_ends_with_both_or_neither(
    store: MessageStore, open_store: Open, queue: Queue, shop: Shop, joined: Any, manager: Any, step: str
) -> None:
    def commit() -> None:
        with manager:
            shop.order("tea")
            joined.publish("q", b"tea")
            manager.get().join(Step(manager, step, "m", store.close))

    if step == "tpc_begin":
        with pytest.raises(errors.StoreClosed):
            commit()
    else:
        commit()  # the database has committed, so this is no failure
    store = open_store()
    tpc.Participant(store, ledger=shop.markers, transaction_manager=manager).recover()
    assert contents(store.queue("q")) == [name.encode() for name in shop.orders()]
    assert shop.orders() == ([] if step == "tpc_begin" else ["tea"])


def test_a_heuristic_outcome_against_the_decision_is_reported(
    store: MessageStore, queue: Queue, alone: Any, manager: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with manager:
        alone.publish(queue, b"x")
        manager.get().join(Step(manager, "tpc_finish", "a", lambda: store.in_doubt()[0].rollback()))
    assert "was rolled back by another program, but the transaction was committed" in caplog.text
    caplog.clear()
    with manager:
        alone.publish(queue, b"y")
        manager.get().join(Step(manager, "tpc_finish", "a", lambda: store.in_doubt()[0].commit()))
    assert (caplog.text, contents(queue)) == ("", [b"y"])
