"""Prepared transactions: xids byte for byte, steps only in the right order, in doubt until an outcome."""

from __future__ import annotations

import gc
import itertools
import threading
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import logstore
from kit.killed import and_then_killed, quick_directory, remove
from kit.simulated import ALL_LOST, BY_SEED, Disk
from kit.stores import SMALL_SEGMENT, contents
from logstore import Xid, errors

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from logstore import MessageStore, Transaction

FORMAT_IDS = [-(2**63), -1, 0, 1, 2**31, 2**63 - 1]
PARTS = [b"", b"\x00", b"\x00\x00", b":", b"\xff" * 64, bytes(64), bytes(range(64)), b"a" * 63]

XIDS = st.builds(
    Xid,
    st.one_of(st.sampled_from(FORMAT_IDS), st.integers(-(2**63), 2**63 - 1)),
    st.one_of(st.sampled_from(PARTS), st.binary(max_size=64)),
    st.one_of(st.sampled_from(PARTS), st.binary(max_size=64)),
)


@pytest.fixture
def path() -> Iterator[Path]:
    made = quick_directory("logstore-prepared-")
    yield made / "store"
    remove(made)


def prepare(
    store: MessageStore, xid: Xid, content: bytes = b"x", queue: str = "q", *, wait: bool = True
) -> Transaction:
    tx = store.begin(xid)
    store.publish(queue, content, transaction=tx)
    tx.end()
    tx.prepare(wait=wait)
    return tx


def names(store: MessageStore) -> list[Xid | None]:
    return sorted((tx.xid for tx in store.in_doubt()), key=str)


def by_xid(store: MessageStore) -> dict[Xid | None, Transaction]:
    return {tx.xid: tx for tx in store.in_doubt()}


# ---- xids ----


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    xids=st.lists(XIDS, min_size=1, max_size=12, unique=True),
    outcomes=st.lists(st.booleans(), min_size=12, max_size=12),
)
@example(xids=[Xid(1, b"ab", b""), Xid(1, b"a", b"b"), Xid(1, b"", b"ab")], outcomes=[True, False] * 6)
@example(xids=[Xid(0, b"", b""), Xid(0, b"\x00", b""), Xid(0, b"", b"\x00")], outcomes=[False, True] * 6)
@example(xids=[Xid(i, b"\xff" * 64, bytes(64)) for i in FORMAT_IDS], outcomes=[True] * 12)
def test_every_xid_comes_back_byte_for_byte_and_names_its_own_branch_only(
    xids: list[Xid], outcomes: list[bool]
) -> None:
    directory = quick_directory("logstore-prepared-")
    try:
        disk = Disk()
        store = disk.open(directory / "store")
        store.declare_queue("q")
        for number, xid in enumerate(xids):
            prepare(store, xid, b"%d" % number, wait=False)
        store.force()
        assert names(store) == sorted(xids, key=str)
        for losses in (ALL_LOST, BY_SEED):
            disk = disk.crash(losses)
            store = disk.open(directory / "store")
            assert names(store) == sorted(xids, key=str)
            assert all(tx.state == "prepared" for tx in store.in_doubt())
            for xid in xids:
                with pytest.raises(errors.DuplicateXid):
                    store.begin(xid)
        expected = []
        waiting = by_xid(store)
        for number, (xid, commits) in enumerate(zip(xids, outcomes, strict=False)):
            (waiting[xid].commit if commits else waiting[xid].rollback)(wait=False)
            expected += [b"%d" % number] if commits else []
            again = store.begin(xid)
            assert again.xid == xid
            again.rollback(wait=False)
        assert contents(store.queue("q")) == expected
        store.force()
        store = disk.crash().open(directory / "store")
        assert store.in_doubt() == []
        assert contents(store.queue("q")) == expected
        store.close()
    finally:
        remove(directory)


def test_all_lengths_of_both_parts_survive_together(path: Path) -> None:
    """One branch for each pair of lengths at the limits, all at once, on the disk and after a kill."""
    lengths = (0, 1, 7, 8, 9, 63, 64)
    xids = [Xid(g - b, bytes([g + 1]) * g, bytes([255 - b]) * b) for g, b in itertools.product(lengths, repeat=2)]

    def work(path: Path, kept: list[Any]) -> None:
        store = logstore.open(path, segment_size=SMALL_SEGMENT)
        kept.append(store)
        store.declare_queue("q")
        kept += [prepare(store, xid, str(xid).encode(), wait=False) for xid in xids]
        store.force()

    and_then_killed(work, path)
    store = logstore.open(path)
    assert names(store) == sorted(xids, key=str)
    for tx in store.in_doubt():
        tx.commit(wait=False)
    assert sorted(contents(store.queue("q"))) == sorted(str(xid).encode() for xid in xids)
    store.close()


@pytest.mark.parametrize("restart", [False, True], ids=["in one run", "after a restart"])
def test_a_name_is_taken_while_its_branch_is_open_or_prepared_and_free_after_the_outcome(
    path: Path, restart: bool
) -> None:
    disk, xid = Disk(), Xid(5, b"taken", b"\x00")
    store = disk.open(path)
    store.declare_queue("q")
    for outcome in ("commit", "rollback"):
        tx = store.begin(xid)
        for step in ("publish", "end", "prepare"):
            with pytest.raises(errors.DuplicateXid, match="resolve"):
                store.begin(xid)
            assert store.stats()["transactions"] == 1
            store.publish("q", b"x", transaction=tx) if step == "publish" else getattr(tx, step)()
        if restart:
            disk = disk.crash()
            store = disk.open(path)
            (tx,) = store.in_doubt()
        with pytest.raises(errors.DuplicateXid):
            store.begin(xid)
        getattr(tx, outcome)()
    assert contents(store.queue("q")) == [b"x"]
    last = store.begin(xid)
    store.force()
    disk = disk.crash()
    store = disk.open(path)
    assert last.id not in [tx.id for tx in store.in_doubt()]
    store.begin(xid).rollback()  # it was not prepared, so its xid is free
    store.close()


# ---- order of steps ----

STEPS = ("work", "end", "prepare", "commit", "rollback")
AFTER = {  # the result of each step of a distributed transaction: the next state, or the error
    "active": {"work": "active", "end": "ended", "prepare": "WrongState", "commit": "WrongState", "rollback": "gone"},
    "ended": {"work": "WrongState", "end": "WrongState", "prepare": "prepared", "commit": "gone", "rollback": "gone"},
    "prepared": {
        "work": "WrongState",
        "end": "WrongState",
        "prepare": "WrongState",
        "commit": "gone",
        "rollback": "gone",
    },
    "gone": dict.fromkeys(STEPS, "TransactionEnded"),
}
LOCAL = {
    "active": {"work": "active", "end": "WrongState", "prepare": "WrongState", "commit": "gone", "rollback": "gone"},
    "gone": dict.fromkeys(STEPS, "TransactionEnded"),
}


@pytest.mark.parametrize("kind", ["distributed", "local"])
def test_every_order_of_steps_is_taken_or_refused_as_it_should_and_a_refusal_changes_nothing(
    store: MessageStore, kind: str
) -> None:
    queue = store.declare_queue("q")
    table = AFTER if kind == "distributed" else LOCAL
    refusals = 0
    for steps in itertools.product(STEPS, repeat=4):
        tx = store.begin(Xid(1, b"g") if kind == "distributed" else None)
        state, works, committed = "active", 0, 0
        for step in steps:
            answer = table[state][step]
            before = (tx.state, tx.operations, store.next_lsn, queue.depth)
            if hasattr(errors, answer):
                refusals += 1
                with pytest.raises(getattr(errors, answer)):
                    take(store, tx, step)
                assert (tx.state, tx.operations, store.next_lsn, queue.depth) == before
                continue
            take(store, tx, step)
            state = answer
            works += step == "work"
            committed = works if step == "commit" else committed
        assert queue.depth == committed
        assert store.in_doubt() == ([tx] if state == "prepared" else [])
        if state != "gone":
            tx.rollback(wait=False)
        store.dequeue_many([message.id for message in queue.browse()], queue, wait=False)
    assert refusals > 500
    assert store.stats()["messages"] == store.stats()["transactions"] == 0


def take(store: MessageStore, tx: Transaction, step: str) -> None:
    if step == "work":
        store.publish("q", b"x", transaction=tx)
    elif step == "end":
        tx.end()
    else:
        getattr(tx, step)(wait=False)


def test_every_kind_of_work_is_refused_after_the_end(store: MessageStore) -> None:
    queue = store.declare_queue("q")
    key, staged = store.publish(queue, b"there"), store.stage(b"", b"staged")
    for number, steps in enumerate((["end"], ["end", "prepare"], ["end", "commit"], ["rollback"])):
        tx = store.begin(Xid(number, b"g"))
        for step in steps:
            getattr(tx, step)()
        error = errors.WrongState if steps[-1] in ("end", "prepare") else errors.TransactionEnded
        for work in (
            lambda tx=tx: store.publish(queue, b"x", transaction=tx),
            lambda tx=tx: store.publish(queue, [b"in", b"parts"], transaction=tx),
            lambda tx=tx: store.publish_many(queue, [b"x"], transaction=tx),
            lambda tx=tx: store.enqueue(staged, queue, tx),
            lambda tx=tx: store.dequeue(key, queue, tx),
            lambda tx=tx: store.dequeue_many([key], queue, tx),
        ):
            with pytest.raises(error):
                work()
        assert [(message.id, message.locked) for message in queue.browse()] == [(key, False)]
        assert store.stats()["messages"] == 2


# ---- in doubt ----


def test_in_doubt_lists_exactly_the_prepared_transactions_even_before_a_restart(path: Path) -> None:
    disk = Disk()
    store = disk.open(path)
    store.declare_queue("q")
    local, active, ended = store.begin(), store.begin(Xid(1, b"active")), store.begin(Xid(2, b"ended"))
    ended.end()
    assert store.in_doubt() == []
    first = prepare(store, Xid(3, b"first"))
    second = prepare(store, Xid(4, b"second"))
    assert by_xid(store) == {first.xid: first, second.xid: second}
    assert all(tx.prepared_us > 0 and tx.operations == 1 for tx in store.in_doubt())
    store.close()
    with pytest.raises(errors.StoreClosed):
        first.commit()
    for _ in range(2):
        store = disk.open(path)
        assert set(by_xid(store)) == {first.xid, second.xid}
        assert all(tx.prepared_us > 0 and tx.operations == 1 for tx in store.in_doubt())
        assert store.in_doubt() == store.in_doubt()
        store.close()
    del local, active


def test_a_prepared_branch_without_a_handle_can_be_found_and_resolved(path: Path) -> None:
    """Dropping the handle is no outcome, neither before a restart nor after one."""
    disk = Disk()
    store = disk.open(path)
    store.declare_queue("q")
    for outcome in ("commit", "rollback"):
        tx_id = prepare(store, Xid(1, b"forgotten"), outcome.encode()).id
        gc.collect()
        disk = disk.crash()
        store = disk.open(path)
        for _ in range(3):
            assert [tx.id for tx in store.in_doubt()] == [tx_id]
            gc.collect()
        getattr(store.in_doubt()[0], outcome)()
        assert store.in_doubt() == []
    assert contents(store.queue("q")) == [b"commit"]
    store.close()


def test_messages_of_a_prepared_transaction_stay_locked_until_its_outcome(path: Path) -> None:
    disk = Disk()
    store = disk.open(path)
    store.declare_queue("q")
    store.declare_queue("r")
    key, other = store.publish("q", b"taken"), store.publish("q", b"free")
    tx = store.begin(Xid(1, b"g"))
    store.dequeue(key, "q", tx)
    store.enqueue(key, "r", tx)
    tx.end()
    tx.prepare()
    for _ in range(3):
        check_locked(store, key, other)
        disk = disk.crash()
        store = disk.open(path)
    assert store.queue("q").purge() == 1
    assert [(message.id, message.locked) for message in store.messages("q")] == [(key, True)]
    store.in_doubt()[0].commit()
    assert (contents(store.queue("q")), contents(store.queue("r"))) == ([], [b"taken"])
    store.close()


def check_locked(store: MessageStore, key: int, free: int) -> None:
    """The message is locked but readable; the next message is available."""
    another = store.begin()
    for into in (None, another):
        for refused in (store.dequeue, store.enqueue):
            with pytest.raises(errors.MessageLocked):
                refused(key, "q", into)
        with pytest.raises(errors.MessageLocked):
            store.enqueue(key, "r", into)
        with pytest.raises(errors.NotEnqueued):
            store.dequeue(key, "r", into)
    another.rollback()
    with pytest.raises(errors.MessageInUse):
        store.destroy(key)
    assert store.load_content(key) == b"taken"
    (got,) = store.queue("q").acquire(5)
    assert got.id == free
    got.release()
    assert store.queue("r").acquire(5) == []


def test_another_thread_may_resolve_a_branch(store: MessageStore) -> None:
    queue = store.declare_queue("q")
    for outcome, state in (("commit", "committed"), ("rollback", "rolled_back")):
        tx = prepare(store, Xid(1, b"g"), outcome.encode())
        failed: list[BaseException] = []

        def resolve(outcome: str = outcome, failed: list[BaseException] = failed) -> None:
            try:
                (found,) = store.in_doubt()
                getattr(found, outcome)()
            except BaseException as problem:  # noqa: BLE001 - raised below
                failed.append(problem)

        thread = threading.Thread(target=resolve)
        thread.start()
        thread.join(120)
        assert failed == []
        assert tx.state == state
        with pytest.raises(errors.TransactionEnded):
            tx.commit()
    assert contents(queue) == [b"commit"]
    assert store.in_doubt() == []


def test_hundreds_may_be_prepared_at_once_and_are_resolved_in_any_order(path: Path) -> None:
    count = 500
    store = logstore.open(path, segment_size=SMALL_SEGMENT)
    store.declare_queue("q")
    kept = [prepare(store, Xid(number, b"many"), b"%03d" % number, wait=False) for number in range(count)]
    store.force()
    assert len(store.in_doubt()) == store.stats()["transactions"] == count
    assert store.queue("q").depth == 0
    del kept
    store.close()
    store = logstore.open(path)
    assert store.recovery.transactions_in_doubt == count
    waiting = by_xid(store)
    assert set(waiting) == {Xid(number, b"many") for number in range(count)}
    expected = []
    for number in sorted(range(count), key=lambda n: (n * 7919) % count):
        tx = waiting[Xid(number, b"many")]
        if number % 3:
            tx.commit(wait=False)
            expected.append(b"%03d" % number)
        else:
            tx.rollback(wait=False)
    assert contents(store.queue("q")) == expected
    assert store.in_doubt() == []
    store.close()
    store = logstore.open(path)
    assert contents(store.queue("q")) == expected
    assert store.stats()["transactions"] == 0
    store.close()


def test_threads_may_prepare_and_resolve_side_by_side(store: MessageStore) -> None:
    queue = store.declare_queue("q")
    failed: list[BaseException] = []

    def work(name: int) -> None:
        try:
            for number in range(25):
                tx = prepare(store, Xid(name, b"%d" % number), b"%d %d" % (name, number))
                assert tx in store.in_doubt()
                (tx.commit if number % 2 else tx.rollback)()
        except BaseException as problem:  # noqa: BLE001 - raised below
            failed.append(problem)

    threads = [threading.Thread(target=work, args=(name,)) for name in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    assert failed == []
    assert sorted(contents(queue)) == sorted(
        b"%d %d" % (name, number) for name in range(6) for number in range(1, 25, 2)
    )
    assert store.in_doubt() == []


def test_in_doubt_may_be_listed_while_others_resolve(path: Path) -> None:
    """After a restart the listing itself makes every handle, so it meets branches that have just ended."""
    store = logstore.open(path, segment_size=SMALL_SEGMENT)
    store.declare_queue("q")
    for number in range(400):
        prepare(store, Xid(number, b"many"), wait=False)
    store.close()
    store = logstore.open(path)
    waiting = store.in_doubt()
    started = threading.Event()

    def resolve() -> None:
        started.wait(60)
        for tx in waiting:
            tx.commit(wait=False)

    thread = threading.Thread(target=resolve)
    thread.start()
    started.set()
    left = len(waiting)
    while left:
        found = store.in_doubt()
        assert len(found) <= left
        left = len(found)
    thread.join(120)
    assert store.queue("q").depth == 400
    store.close()


def test_an_empty_branch_is_prepared_and_resolved_like_any_other(path: Path) -> None:
    disk = Disk()
    store = disk.open(path)
    for outcome in ("commit", "rollback"):
        tx = store.begin(Xid(0, b""))
        tx.end()
        tx.prepare()
        disk = disk.crash()
        store = disk.open(path)
        (tx,) = store.in_doubt()
        assert (tx.xid, tx.operations) == (Xid(0, b""), 0)
        getattr(tx, outcome)()
    store = disk.crash().open(path)
    assert store.in_doubt() == []
    store.close()
