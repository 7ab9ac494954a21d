"""Transactions in doubt after a crash are settled by resolvers, ledgers, markers, and the recipe in the docs."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from kit.simulated import ALL_LOST, Disk
from kit.sql_partner import FixedLedger, Refusal, Shop, Step
from kit.stores import ROOT, contents
from logstore import errors, tpc

if TYPE_CHECKING:
    from pathlib import Path

    from logstore import MessageStore, Queue

Open = Any
API = (ROOT / "docs" / "api.md").read_text()


# ---- recovering ----


def leave_in_doubt(participant: tpc.Participant, manager: Any, content: bytes) -> tpc.Xid:
    """Leaves a branch as a power cut would: prepared, and its transaction gone."""
    participant.publish("q", content)
    xid = participant.xid
    (branch,) = [resource for resource in manager.get()._resources if type(resource).__name__ == "_Branch"]
    for step in ("tpc_begin", "commit", "tpc_vote"):
        getattr(branch, step)(manager.get())
    manager._txn = None
    del branch
    gc.collect()
    return xid


def test_recover_follows_the_resolver_and_leaves_branches_that_it_does_not_know(
    store: MessageStore, queue: Queue, open_store: Open, alone: Any, manager: Any
) -> None:
    yes, no, unknown = (leave_in_doubt(alone, manager, content) for content in (b"yes", b"no", b"unknown"))
    store.close()
    store = open_store()
    participant = tpc.Participant(store, transaction_manager=manager)
    seen: list[tpc.Xid] = []

    def resolver(xid: tpc.Xid) -> bool | None:
        seen.append(xid)
        assert xid.prepared is not None
        return {yes: True, no: False}.get(xid)

    recovered = participant.recover(resolver)
    assert sorted(seen) == sorted([yes, no, unknown])
    assert (recovered.committed, recovered.rolled_back, recovered.in_doubt) == ((yes,), (no,), (unknown,))
    assert contents(store.queue("q")) == [b"yes"]
    assert [branch.xid for branch in store.in_doubt()] == [unknown.name]
    assert participant.recover(lambda _: False).rolled_back == (unknown,)
    assert store.in_doubt() == []


def test_the_outcomes_of_recover_are_durable(tmp_path: Path, manager: Any) -> None:
    disk = Disk()
    store = disk.open(tmp_path / "s", relaxed=True, background=False)
    store.declare_queue("q")
    participant = tpc.Participant(store, transaction_manager=manager)
    leave_in_doubt(participant, manager, b"x")  # voted, and so forced, even in a relaxed store
    disk = disk.crash(ALL_LOST)
    store = disk.open(tmp_path / "s", relaxed=True, background=False)
    tpc.Participant(store, transaction_manager=manager).recover(lambda _: True)
    with disk.crash(ALL_LOST).open(tmp_path / "s") as again:
        assert (again.in_doubt(), contents(again.queue("q"))) == ([], [b"x"])


def test_recover_never_touches_a_branch_that_is_on_its_way(
    store: MessageStore, queue: Queue, alone: Any, manager: Any
) -> None:
    found: list[tpc.Recovered] = []

    def meanwhile() -> None:
        assert len(store.in_doubt()) == 1
        found.append(alone.recover(lambda _: False))

    with manager:
        alone.publish(queue, b"x")
        manager.get().join(Step(manager, "tpc_vote", "~z", meanwhile))
    assert found == [tpc.Recovered((), (), ())]
    assert contents(queue) == [b"x"]


def test_recover_ignores_branches_of_others(store: MessageStore, queue: Queue, alone: Any, manager: Any) -> None:
    named = tpc.Participant(store, name="named", transaction_manager=manager)
    own = leave_in_doubt(alone, manager, b"own")
    other = leave_in_doubt(named, manager, b"other")
    for xid in [(1, "foreign", "b"), (own.format_id, own.gtrid, "another"), (1, own.gtrid, own.bqual)]:
        with tpc.connect(store) as connection:
            connection.tpc_begin(xid)
            connection.tpc_prepare()
    assert alone.recover(lambda _: True).committed == (own,)
    assert len(store.in_doubt()) == 4
    assert named.recover(lambda _: False).rolled_back == (other,)
    assert len(store.in_doubt()) == 3


def test_a_resolver_that_fails_leaves_the_rest_in_doubt_and_may_be_called_again(
    store: MessageStore, queue: Queue, alone: Any, manager: Any
) -> None:
    for number in range(3):
        leave_in_doubt(alone, manager, b"%d" % number)
    answers: list[Any] = [True, OSError("no route to host")]

    def resolver(_: tpc.Xid) -> bool:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return bool(answer)

    with pytest.raises(OSError, match="no route"):
        alone.recover(resolver)
    assert (len(store.in_doubt()), len(contents(queue))) == (2, 1)
    with pytest.raises(TypeError, match="True, False or None"):
        alone.recover(lambda _: "yes")
    assert len(store.in_doubt()) == 2
    assert len(alone.recover(lambda _: True).committed) == 2
    assert sorted(contents(queue)) == [b"0", b"1", b"2"]


def test_recover_does_not_ask_about_branches_that_are_settled_meanwhile(
    store: MessageStore, queue: Queue, alone: Any, manager: Any
) -> None:
    for number in range(3):
        leave_in_doubt(alone, manager, b"%d" % number)
    asked: list[tpc.Xid] = []

    def resolver(xid: tpc.Xid) -> bool:
        asked.append(xid)
        for branch in store.in_doubt():
            branch.commit()
        return False

    assert alone.recover(resolver) == tpc.Recovered((), (), ())
    assert len(asked) == 1
    assert len(contents(queue)) == 3


def test_recover_without_anybody_to_ask_is_refused(alone: Any) -> None:
    with pytest.raises(errors.OptionError, match="pass a resolver"):
        alone.recover()


def test_recover_asks_the_ledger_by_default_and_the_ledger_forgets_settled_branches(
    store: MessageStore, queue: Queue, manager: Any
) -> None:
    ledger = FixedLedger(answer=True)
    participant = tpc.Participant(store, ledger=ledger, transaction_manager=manager)
    for number in range(3):
        with manager:
            participant.publish(queue, b"%d" % number)
    assert (len(ledger.written_xids), ledger.asked) == (3, [])
    connection = tpc.connect(store)  # a branch with the same name that is in the ledger and still in doubt
    connection.tpc_begin(ledger.written_xids[0])
    connection.tpc_prepare()
    ledger.answer = None
    kept = ledger.written_xids[0]
    assert participant.recover().in_doubt == (kept,)
    assert (ledger.written_xids, ledger.asked) == ([kept], [kept])
    ledger.answer = False
    assert participant.recover().rolled_back == (kept,)
    assert ledger.written_xids == []


def test_a_name_that_is_too_long_is_refused(store: MessageStore) -> None:
    tpc.Participant(store, name="x" * 31)
    for name in ("x" * 32, "ä" * 16):
        with pytest.raises(errors.OptionError, match="31 bytes"):
            tpc.Participant(store, name=name)
    with pytest.raises(TypeError, match="MessageStore"):
        tpc.Participant("data")  # type: ignore[arg-type]


# ---- markers ----


def test_a_marker_once_denied_can_never_be_committed(shop: Shop, manager: Any) -> None:
    xid = tpc.Xid(1, "g", "b")
    assert shop.markers.committed(xid) is False
    assert shop.markers.committed(xid) is False
    with pytest.raises(Exception, match="UNIQUE"), manager:
        shop.order("tea")
        shop.markers.write(xid)
    assert shop.orders() == []
    assert shop.markers.committed(xid) is False


def test_a_marker_is_there_if_and_only_if_its_transaction_committed(shop: Shop, manager: Any) -> None:
    xids = [tpc.Xid(1, "g", "b"), tpc.Xid(1, "g", "c"), tpc.Xid(2, "g", "b"), tpc.Xid(1, "h", "b")]
    with manager:
        shop.markers.write(xids[0])
    with pytest.raises(Refusal), manager:
        shop.markers.write(xids[1])
        shop.session.flush()
        raise Refusal
    assert [shop.markers.committed(xid) for xid in xids] == [True, False, False, False]
    assert sorted(shop.markers.written("b")) == sorted([xids[0], xids[2], xids[3]])
    shop.markers.forget([xids[0], xids[3]])
    assert shop.markers.written("b") == [xids[2]]
    assert shop.markers.written("c") == [xids[1]]


def test_a_query_waits_for_a_commit_in_progress(shop: Shop, manager: Any) -> None:
    xid = tpc.Xid(1, "g", "b")
    answers: list[bool | None] = []
    asking = threading.Event()

    def ask() -> None:
        asking.set()
        answers.append(shop.markers.committed(xid))

    thread = threading.Thread(target=ask)
    with manager:
        shop.markers.write(xid)
        shop.session.flush()
        thread.start()
        assert asking.wait(60)
        assert answers == []
    thread.join(60)
    assert answers == [True]


def test_a_savepoint_of_the_databases_cannot_take_the_marker_back(
    store: MessageStore, queue: Queue, shop: Shop, joined: Any, manager: Any
) -> None:
    with manager:
        shop.order("tea")
        shop.session.flush()
        nested = shop.session.begin_nested()
        joined.publish(queue, b"tea")
        nested.rollback()
    assert (shop.orders(), contents(queue), shop.marked()) == (["tea"], [b"tea"], [True])


def test_recover_clears_the_table(store: MessageStore, queue: Queue, shop: Shop, joined: Any, manager: Any) -> None:
    for number in range(5):
        with manager:
            shop.order(str(number))
            joined.publish(queue, b"%d" % number)
    shop.markers.committed(tpc.Xid(1, "another", "participant"))
    assert sorted(shop.marked()) == [False, True, True, True, True, True]
    assert joined.recover() == tpc.Recovered((), (), ())
    assert shop.marked() == [False]


# ---- the recipe in docs/api.md ----


def test_the_recipe_works_as_it_is_printed(tmp_path: Path) -> None:
    whole, own = [block for block in re.findall(r"```python\n(.*?)```", API, re.DOTALL) if "tpc.Participant" in block]
    done = subprocess.run(
        [sys.executable, "-c", whole + own],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert (done.stdout, done.returncode) == ("[('tea', True)] 0\nb'coffee'\n", 0), done.stderr
