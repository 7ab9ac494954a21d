"""PEP 249's two-phase commit: the calls, and when each is refused."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from kit.simulated import ALL_LOST, Disk
from kit.stores import contents
from logstore import errors, tpc

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from logstore import MessageStore, Queue

Open = Any


@pytest.fixture
def queue(store: MessageStore) -> Queue:
    return store.declare_queue("q")


@pytest.fixture
def connection(store: MessageStore, queue: Queue) -> tpc.Connection:
    return tpc.connect(store)


def prepare(connection: tpc.Connection, xid: Any, content: bytes = b"prepared") -> None:
    connection.tpc_begin(xid)
    connection.publish("q", content)
    connection.tpc_prepare()


# ---- plain transactions ----


def test_the_first_operation_begins_a_transaction_and_commit_ends_it(
    store: MessageStore, queue: Queue, connection: tpc.Connection
) -> None:
    old = store.publish(queue, b"old")
    staged = connection.stage(b"h", b"sta")
    connection.append_content(staged, b"ged")
    assert store.stats()["transactions"] == 0
    connection.enqueue(staged, queue)
    connection.publish(queue, b"one", header=b"x")
    connection.publish_many(queue, [b"two", b"three"])
    connection.dequeue(old, queue)
    assert contents(queue) == [b"old"]
    connection.commit()
    assert contents(queue) == [b"staged", b"one", b"two", b"three"]
    connection.dequeue_many([message.id for message in connection.messages(queue)], "q")
    connection.rollback()
    assert contents(queue) == [b"staged", b"one", b"two", b"three"]
    assert (connection.header(staged), connection.load_content(staged, 3)) == (b"h", b"ged")
    assert store.stats()["transactions"] == 0


def test_commit_and_rollback_without_a_transaction_do_nothing(store: MessageStore, connection: tpc.Connection) -> None:
    before = store.next_lsn
    connection.commit()
    connection.rollback()
    assert store.next_lsn == before


def test_a_plain_commit_is_durable(tmp_path: Path) -> None:
    disk = Disk()
    store = disk.open(tmp_path / "s")
    store.declare_queue("q")
    connection = tpc.connect(store)
    connection.publish("q", b"kept")
    connection.commit()
    connection.publish("q", b"never")
    again = disk.crash(ALL_LOST).open(tmp_path / "s")
    assert contents(again.queue("q")) == [b"kept"]


def test_a_delivery_is_accepted_or_rejected_within_the_transaction(store: MessageStore) -> None:
    store.declare_queue("dead")
    queue = store.declare_queue("live", dead_letter="dead")
    store.publish_many(queue, [b"a", b"b"])
    first, second = queue.acquire(2)
    connection = tpc.connect(store)
    connection.accept(first)
    connection.reject(second)
    connection.rollback()
    assert (contents(queue), contents(store.queue("dead"))) == ([b"a", b"b"], [])
    connection.accept(first)
    connection.reject(second)
    connection.commit()
    assert (contents(queue), contents(store.queue("dead"))) == ([], [b"b"])


# ---- the two phases ----


def test_a_branch_commits_in_two_phases(store: MessageStore, queue: Queue, connection: tpc.Connection) -> None:
    connection.tpc_begin(connection.xid(1, "gtrid", "bqual"))
    connection.publish(queue, b"x")
    assert connection.tpc_recover() == []
    connection.tpc_prepare()
    assert connection.tpc_recover() == [(1, "gtrid", "bqual")]
    assert contents(queue) == []
    connection.tpc_commit()
    assert connection.tpc_recover() == []
    assert contents(queue) == [b"x"]
    connection.commit()  # back in the ordinary state


def test_a_commit_without_a_prepare_is_one_phase_and_costs_one_force(tmp_path: Path) -> None:
    store = Disk().open(tmp_path / "s", background=False)  # so that nothing is forced in the background
    queue = store.declare_queue("q")
    connection = tpc.connect(store)
    connection.tpc_begin(connection.xid(1, "gtrid", "bqual"))
    connection.publish(queue, b"x")
    before = store.stats()["syncs"]
    connection.tpc_commit()
    assert store.stats()["syncs"] - before == 1
    assert contents(queue) == [b"x"]


@pytest.mark.parametrize("prepared", [False, True])
def test_a_branch_rolls_back_from_either_phase(
    store: MessageStore, queue: Queue, connection: tpc.Connection, prepared: bool
) -> None:
    key = store.publish(queue, b"stays")
    connection.tpc_begin(connection.xid(1, "gtrid", "bqual"))
    connection.publish(queue, b"x")
    connection.dequeue(key, queue)
    if prepared:
        connection.tpc_prepare()
    connection.tpc_rollback()
    assert connection.tpc_recover() == []
    assert contents(queue) == [b"stays"]
    connection.tpc_begin(connection.xid(1, "gtrid", "bqual"))  # the xid is free again
    connection.tpc_rollback()


@pytest.mark.parametrize("how", ["commit", "rollback"])
def test_a_prepared_branch_outlives_its_connection_and_its_store(
    store: MessageStore, queue: Queue, open_store: Open, how: str
) -> None:
    for reopened in (False, True):
        connection = tpc.connect(store)
        prepare(connection, connection.xid(1, "gtrid", "bqual"), b"%d" % reopened)
        connection.close()
        if reopened:
            store.close()
            store = open_store()
        with tpc.connect(store) as other:
            (found,) = other.tpc_recover()
            getattr(other, f"tpc_{how}")(other.xid(1, "gtrid", "bqual"))
            assert (found, other.tpc_recover()) == ((1, "gtrid", "bqual"), [])
    assert contents(store.queue("q")) == ([b"0", b"1"] if how == "commit" else [])


@pytest.mark.parametrize("relaxed", [False, True])
def test_a_prepare_survives_a_power_cut_and_so_does_the_outcome(tmp_path: Path, relaxed: bool) -> None:
    disk = Disk()
    store = disk.open(tmp_path / "s", relaxed=relaxed, background=False)
    store.declare_queue("q")
    connection = tpc.connect(store)
    prepare(connection, (1, "g", "b"), b"promised")
    prepared = disk.crash(ALL_LOST)
    connection.tpc_commit()
    committed = disk.crash(ALL_LOST)
    with prepared.open(tmp_path / "s") as again:
        assert tpc.connect(again).tpc_recover() == [(1, "g", "b")]
        tpc.connect(again).tpc_commit((1, "g", "b"))
        assert contents(again.queue("q")) == [b"promised"]
    with committed.open(tmp_path / "s") as again:
        assert tpc.connect(again).tpc_recover() == []
        assert contents(again.queue("q")) == [b"promised"]


# ---- refused calls ----


@pytest.mark.parametrize("prepared", [False, True])
def test_commit_and_rollback_are_refused_during_a_two_phase_transaction(
    queue: Queue, connection: tpc.Connection, prepared: bool
) -> None:
    connection.tpc_begin((1, "g", "b"))
    connection.publish("q", b"x")
    if prepared:
        connection.tpc_prepare()
    for how in ("commit", "rollback"):
        with pytest.raises(tpc.ProgrammingError, match=rf"use tpc_{how}\(\)"):
            getattr(connection, how)()
    connection.tpc_commit()
    assert contents(queue) == [b"x"]


def begin_plain(connection: tpc.Connection) -> None:
    connection.publish("q", b"mine")


def begin_two_phase(connection: tpc.Connection) -> None:
    connection.tpc_begin((1, "mine", ""))
    connection.publish("q", b"mine")


def begin_and_prepare(connection: tpc.Connection) -> None:
    begin_two_phase(connection)
    connection.tpc_prepare()


@pytest.mark.parametrize("begin", [begin_plain, begin_two_phase, begin_and_prepare])
@pytest.mark.parametrize("call", ["tpc_begin", "tpc_commit", "tpc_rollback"])
def test_a_call_with_an_xid_is_refused_inside_a_transaction_which_goes_on(
    store: MessageStore, queue: Queue, begin: Callable[[tpc.Connection], None], call: str
) -> None:
    prepare(tpc.connect(store), (1, "other", ""), b"other")
    connection = tpc.connect(store)
    begin(connection)
    with pytest.raises(tpc.ProgrammingError, match="inside a transaction: finish it with"):
        getattr(connection, call)((1, "new" if call == "tpc_begin" else "other", ""))
    connection.commit() if begin is begin_plain else connection.tpc_commit()
    assert contents(queue) == [b"mine"]
    assert connection.tpc_recover() == [(1, "other", "")]


def test_prepare_is_refused_outside_a_two_phase_transaction_and_the_second_time(
    queue: Queue, connection: tpc.Connection
) -> None:
    with pytest.raises(tpc.ProgrammingError, match="begin one with tpc_begin"):
        connection.tpc_prepare()
    connection.publish("q", b"x")
    with pytest.raises(tpc.ProgrammingError, match="begin one with tpc_begin"):
        connection.tpc_prepare()
    connection.rollback()
    prepare(connection, (1, "g", "b"))
    with pytest.raises(tpc.ProgrammingError, match="prepared already"):
        connection.tpc_prepare()
    connection.tpc_commit()


@pytest.mark.parametrize("how", ["tpc_commit", "tpc_rollback"])
def test_an_outcome_without_an_xid_wants_a_two_phase_transaction(
    queue: Queue, connection: tpc.Connection, how: str
) -> None:
    with pytest.raises(tpc.ProgrammingError, match="there is none"):
        getattr(connection, how)()
    connection.publish("q", b"x")
    with pytest.raises(tpc.ProgrammingError, match="there is none"):
        getattr(connection, how)()
    connection.commit()
    assert contents(queue) == [b"x"]


def test_after_a_prepare_further_work_is_refused(store: MessageStore, queue: Queue, connection: tpc.Connection) -> None:
    key = store.publish(queue, b"old")
    prepare(connection, (1, "g", "b"), b"new")
    for work in (
        lambda: connection.publish(queue, b"late"),
        lambda: connection.publish_many(queue, [b"late"]),
        lambda: connection.dequeue(key, queue),
        lambda: connection.dequeue_many([key], queue),
        lambda: connection.enqueue(key, queue),
    ):
        with pytest.raises(tpc.ProgrammingError, match=r"accepts no more work: finish it with tpc_commit"):
            work()
    assert connection.load_content(key) == b"old"
    connection.tpc_commit()
    assert contents(queue) == [b"old", b"new"]


@pytest.mark.parametrize("how", ["tpc_commit", "tpc_rollback"])
def test_an_xid_that_is_not_in_doubt_is_refused(store: MessageStore, connection: tpc.Connection, how: str) -> None:
    other = tpc.connect(store)
    other.tpc_begin((1, "g", "unprepared"))
    for xid in [(1, "g", "unprepared"), (1, "g", "never"), (2, "g", "b")]:
        with pytest.raises(tpc.ProgrammingError, match="tpc_recover") as caught:
            getattr(connection, how)(xid)
        assert isinstance(caught.value.__cause__, errors.UnknownXid)
    prepare(connection, (1, "g", "b"))
    connection.tpc_commit()
    with pytest.raises(tpc.ProgrammingError):
        getattr(connection, how)((1, "g", "b"))


def test_a_name_is_taken_while_its_branch_is_open_or_prepared(store: MessageStore, queue: Queue) -> None:
    first, second = tpc.connect(store), tpc.connect(store)
    first.tpc_begin((1, "g", "b"))
    for _ in range(2):
        with pytest.raises(tpc.ProgrammingError) as caught:
            second.tpc_begin((1, b"g", b"b"))
        assert isinstance(caught.value.__cause__, errors.DuplicateXid)
        if not first.tpc_recover():
            first.tpc_prepare()
    second.publish(queue, b"second goes on")
    second.commit()
    first.tpc_rollback()
    second.tpc_begin((1, "g", "b"))
    second.tpc_commit()
    assert contents(queue) == [b"second goes on"]


def test_a_branch_that_another_connection_settled_is_over_for_its_own(
    store: MessageStore, queue: Queue, connection: tpc.Connection
) -> None:
    prepare(connection, (1, "g", "b"))
    tpc.connect(store).tpc_commit((1, "g", "b"))
    with pytest.raises(tpc.ProgrammingError) as caught:
        connection.tpc_rollback()
    assert isinstance(caught.value.__cause__, errors.TransactionEnded)
    connection.publish(queue, b"next")
    connection.commit()
    assert contents(queue) == [b"prepared", b"next"]


def test_recover_neither_begins_nor_ends_a_transaction(
    store: MessageStore, queue: Queue, connection: tpc.Connection
) -> None:
    assert connection.tpc_recover() == []
    connection.tpc_begin((1, "g", "b"))  # would be refused inside a transaction
    connection.publish(queue, b"x")
    connection.tpc_recover()
    connection.publish(queue, b"y")
    connection.tpc_prepare()
    assert len(connection.tpc_recover()) == 1
    connection.tpc_commit()
    connection.publish(queue, b"z")
    connection.tpc_recover()
    connection.rollback()
    assert contents(queue) == [b"x", b"y"]


def test_recover_may_be_called_while_other_connections_prepare(store: MessageStore, queue: Queue) -> None:
    done = threading.Event()
    found: list[set[tuple[int, str, str]]] = []

    def prepare_and_commit() -> None:
        try:
            with tpc.connect(store) as connection:
                for number in range(100):
                    prepare(connection, (1, "g", str(number)))
                    connection.tpc_commit()
        finally:
            done.set()

    thread = threading.Thread(target=prepare_and_commit)
    thread.start()
    with tpc.connect(store) as connection:
        while not done.is_set():
            found.append(set(connection.tpc_recover()))
    thread.join()
    assert len(contents(queue)) == 100
    assert all(len(names) <= 1 for names in found)


def test_a_failed_operation_leaves_the_transaction_usable(queue: Queue, connection: tpc.Connection) -> None:
    connection.tpc_begin((1, "g", "b"))
    connection.publish(queue, b"x")
    with pytest.raises(tpc.ProgrammingError, match="declare it first"):
        connection.publish("no such queue", b"y")
    connection.tpc_prepare()
    connection.tpc_commit()
    assert contents(queue) == [b"x"]


# ---- closing ----


def test_a_closed_connection_refuses_everything_but_another_close(queue: Queue, connection: tpc.Connection) -> None:
    prepare(connection, (1, "g", "b"))
    connection.close()
    connection.close()
    for call in (
        connection.commit,
        connection.rollback,
        connection.tpc_prepare,
        connection.tpc_commit,
        connection.tpc_rollback,
        connection.tpc_recover,
        connection.stage,
        lambda: connection.tpc_begin((1, "g", "c")),
        lambda: connection.tpc_commit((1, "g", "b")),
        lambda: connection.xid(1, "g", "c"),
        lambda: connection.publish(queue, b"x"),
        lambda: connection.messages(queue),
    ):
        with pytest.raises(tpc.InterfaceError, match="the connection is closed"):
            call()


@pytest.mark.parametrize("begin", [begin_plain, begin_two_phase])
def test_closing_rolls_back_what_is_not_prepared(
    store: MessageStore, queue: Queue, begin: Callable[[tpc.Connection], None]
) -> None:
    connection = tpc.connect(store)
    begin(connection)
    connection.close()
    assert store.stats()["transactions"] == 0
    assert contents(queue) == []


def test_a_connection_may_be_closed_after_its_store(store: MessageStore, queue: Queue, open_store: Open) -> None:
    connection, holder = tpc.connect(store), tpc.connect(store)
    connection.publish(queue, b"never")
    prepare(holder, (1, "g", "b"))
    store.close()
    with pytest.raises(tpc.InterfaceError):
        connection.commit()
    with pytest.raises(tpc.InterfaceError):
        holder.tpc_commit()
    connection.close()
    holder.close()
    store = open_store()
    assert tpc.connect(store).tpc_recover() == [(1, "g", "b")]
    assert contents(store.queue("q")) == []


def test_the_block_commits_or_rolls_back_and_closes(store: MessageStore, queue: Queue) -> None:
    with tpc.connect(store) as connection:
        connection.publish(queue, b"kept")
    with pytest.raises(LookupError), tpc.connect(store) as connection:
        connection.publish(queue, b"dropped")
        raise LookupError
    with tpc.connect(store) as connection:
        prepare(connection, (1, "g", "b"), b"later")
    with pytest.raises(tpc.InterfaceError):
        connection.commit()
    tpc.connect(store).tpc_commit((1, "g", "b"))
    assert contents(queue) == [b"kept", b"later"]


def test_the_block_does_not_guess_the_end_of_an_unprepared_branch(store: MessageStore, queue: Queue) -> None:
    with pytest.raises(tpc.ProgrammingError, match=r"use tpc_commit\(\)"), tpc.connect(store) as connection:
        begin_two_phase(connection)
    assert store.stats()["transactions"] == 0
    assert contents(queue) == []


# ---- other calls ----


def test_a_failing_disk_is_an_operational_error_and_the_branch_is_settled_after_a_restart(tmp_path: Path) -> None:
    disk = Disk()
    store = disk.open(tmp_path / "s")
    store.declare_queue("q")
    connection = tpc.connect(store)
    connection.tpc_begin((1, "g", "b"))
    connection.publish("q", b"x")
    disk.fail(1, 5, forever=True)
    with pytest.raises(tpc.OperationalError) as caught:
        connection.tpc_prepare()
    assert isinstance(caught.value.__cause__, errors.OutcomeUnknown)
    for finish in (connection.tpc_commit, connection.tpc_rollback, connection.tpc_commit):
        with pytest.raises(tpc.OperationalError):  # it is still the connection's own
            finish()
    connection.close()
    with disk.crash().open(tmp_path / "s") as again:
        assert contents(again.queue("q")) == []
        assert again.in_doubt() == []  # nothing of it had reached the disk


def test_only_a_store_can_be_connected_to() -> None:
    with pytest.raises(TypeError, match="MessageStore"):
        tpc.connect("data")  # type: ignore[arg-type]


def test_it_imports_few_modules(run_python: Any) -> None:
    done = run_python(
        """
        import sys
        import logstore
        assert not [name for name in sys.modules if name.startswith("logstore.tpc")]
        import logstore.tpc
        print([name for name in ("transaction", "zope.interface", "sqlalchemy") if name in sys.modules])
        """
    )
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
