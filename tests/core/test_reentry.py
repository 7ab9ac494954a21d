"""Reentry by the same thread and exceptions at any step of the library: no operation is left half done.

Every operation is interrupted at every line of the package and wherever CPython handles signals in between: by an
exception, and by a call into the library like that of a signal handler or a finalizer. Unless LOGSTORE_TORTURE_S is
set, operations are interrupted at every third step; the lock always at every step.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import itertools
import sqlite3
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import logstore
from kit.interrupts import Interrupted, every_step, interrupt, run
from kit.patience import PATIENCE_S
from kit.simulated import Disk
from kit.stores import SMALL_SEGMENT
from kit.torture import tortured
from logstore import Delivery, MessageStore, ReentrantCall
from logstore.core.locks import Lock

SHM = Path("/dev/shm")
STRIDE = 1 if tortured() else 3  # a prime: the operations differ in their steps, and so in the tested ones
INSIDE = 11 if tortured() else 127  # the same for the steps of SQLAlchemy and of Python's own modules


@pytest.fixture
def quick_dir(tmp_path: Path) -> Iterator[Path]:
    """A directory where a sync costs nothing, if there is one."""
    if not SHM.is_dir():
        yield tmp_path / "store"
        return
    with tempfile.TemporaryDirectory(dir=SHM) as made:
        yield Path(made) / "store"


@pytest.fixture
def store(quick_dir: Path) -> Iterator[MessageStore]:
    with logstore.open(quick_dir, segment_size=SMALL_SEGMENT) as opened:
        opened.declare_queue("dead")
        opened.declare_queue("q", dead_letter="dead")
        opened.declare_exchange("e")
        yield opened


def queue_rows(directory: Path) -> dict[str, int]:
    """The queues in the catalog's file; checks that its next id is above them all."""
    with closing(sqlite3.connect(f"file:{directory}/catalog.sqlite?mode=ro", uri=True)) as database:
        rows = dict(database.execute("SELECT name, id FROM queues").fetchall())
        ((following,),) = database.execute("SELECT next_queue_id FROM store").fetchall()
    assert following > max(rows.values())
    return rows


def check_names(store: MessageStore) -> None:
    """Checks that the store works, and that its queues equal those in the catalog's file."""
    store.config["after"] = "".join(store.config.get("after", "") or "x")[:8] + "x"
    names = {queue.name: queue.id for queue in store.queues()}
    assert names == queue_rows(store.path)
    assert all(store.queue(name).id == queue_id for name, queue_id in names.items())
    assert not threading.current_thread().daemon


def reopened(store: MessageStore) -> contextlib.closing[MessageStore]:
    store.close()
    return closing(logstore.open(store.path, create=False))


# ---- The lock


def test_a_lock_is_entered_once_by_a_thread_and_by_the_next_one_afterwards() -> None:
    lock, done = Lock("the thing"), list[int]()
    with lock:
        with pytest.raises(ReentrantCall, match="the thing is already in use by this thread"):
            use(lock, done)
        other = threading.Thread(target=use, args=(lock, done))
        other.start()
        assert not done
    other.join()
    use(lock, done)
    assert done == [1, 2, 1, 2]


def test_a_lock_whose_preparation_fails_is_free_again() -> None:
    def fail() -> None:
        raise ValueError("not prepared")

    lock = Lock("the thing", then=fail)
    for _ in range(2):
        with pytest.raises(ValueError, match="not prepared"), lock:
            pass


def use(lock: Lock, done: list[int]) -> None:
    with lock:
        done.append(1)
        done.append(2)


def test_an_exception_at_any_step_leaves_a_lock_that_its_thread_can_take() -> None:
    lock, done = Lock("the thing"), list[int]()
    interrupted = 0
    for _, ended in every_step(lambda _: use(lock, done), interrupt, within=""):
        interrupted += not ended
        done.clear()
        use(lock, done)
        assert done == [1, 2]
    assert interrupted > 10
    other = threading.Thread(target=use, args=(lock, done))
    other.start()
    other.join(PATIENCE_S)
    assert not other.is_alive()


def test_a_second_entry_at_any_step_is_refused_while_the_lock_is_held_and_harms_nothing() -> None:
    lock = Lock("the thing")
    refused = 0

    def again() -> None:
        nonlocal refused
        try:
            use(lock, [])
        except ReentrantCall:
            refused += 1

    for _, ended in every_step(lambda _: use(lock, []), again, within=""):
        assert ended
        assert lock.acquire(blocking=False)
        lock.release()
    assert refused > 5


# ---- The catalog

Change = Callable[[MessageStore, int], object]

CHANGES: dict[str, Change] = {
    "declare_queue": lambda store, n: store.declare_queue(f"new {n}", dead_letter="dead"),
    "delete_queue": lambda store, _: store.delete_queue("old", wait=False),
    "declare_exchange": lambda store, n: store.declare_exchange(f"e{n}"),
    "bind": lambda store, n: store.bind("e", "q", str(n)),
    "unbind": lambda store, n: store.unbind("e", "q", str(n)),
    "config": lambda store, n: store.config.update({"n": str(n)}),
    "limit": lambda store, n: store.set_max_log_bytes((1 << 30) + n),
    "config del": lambda store, n: store.config.pop("n", None),
}


def prepare(store: MessageStore, change: str, n: int) -> None:
    if change == "delete_queue":
        store.declare_queue("old")
    elif change == "unbind":
        store.bind("e", "q", str(n))
    elif change == "config del":
        store.config["n"] = str(n)


@pytest.mark.parametrize("change", CHANGES)
def test_an_exception_at_any_step_of_a_change_leaves_a_working_catalog(change: str, store: MessageStore) -> None:
    interrupted = 0
    prepare(store, change, 1)
    for n, ended in every_step(lambda n: CHANGES[change](store, n), interrupt, stride=STRIDE):
        interrupted += not ended
        check_names(store)
        prepare(store, change, n + 1)
    assert interrupted > 40 // STRIDE
    rows = queue_rows(store.path)
    with reopened(store) as again:
        assert {queue.name: queue.id for queue in again.queues()} == rows


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_inside_a_change_is_refused_or_works_and_both_catalogs_agree(change: str, store: MessageStore) -> None:
    outcomes: list[str] = []

    def again() -> None:
        try:
            store.declare_queue("within")
            outcomes.append("done")
        except ReentrantCall:
            outcomes.append("refused")

    prepare(store, change, 1)
    for n, ended in every_step(lambda n: CHANGES[change](store, n), again, stride=STRIDE):
        assert ended
        rows = queue_rows(store.path)
        assert ("within" in rows) == (outcomes[-1:] == ["done"])
        if "within" in rows:
            store.delete_queue("within")
        prepare(store, change, n + 1)
    check_names(store)
    assert set(outcomes) == {"done", "refused"}
    rows = queue_rows(store.path)
    with reopened(store) as again_opened:
        assert {queue.name: queue.id for queue in again_opened.queues()} == rows


class ControlC(Interrupted, KeyboardInterrupt):
    """As Python's own handler raises it."""


class TooSlow(Interrupted, ValueError):
    """Of a handler whose exception is an ``Exception``, and of a class that the catalog gets from damaged rows."""


KINDS: list[type[BaseException]] = [ControlC, TooSlow]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", CHANGES)
def test_an_exception_inside_the_database_driver_comes_out_and_leaves_a_working_catalog(
    change: str, kind: type[BaseException], store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in the code of other packages; the last exceptions, and the objects in their frames, are kept alive."""
    in_finalizers: list[BaseException | None] = []  # Python raises these nowhere
    monkeypatch.setattr(sys, "unraisablehook", lambda of: in_finalizers.append(of.exc_value))
    kept: list[BaseException] = []
    raised: list[BaseException] = []

    def handler() -> None:
        raised.append(kind("the handler's"))
        raise raised[-1]

    def call(n: int) -> None:
        raised.clear()
        in_finalizers.clear()
        try:
            CHANGES[change](store, n)
        except BaseException as caught:  # noqa: BLE001 - looked at here
            assert raised == [caught], "the handler's own exception comes out"
            kept.append(caught)
            del kept[:-3]
            raise Interrupted from None
        if not issubclass(kind, Exception):  # SQLAlchemy ignores one of these where it closes a cursor
            assert raised == in_finalizers, "the handler's exception is not lost"

    prepare(store, change, 1)
    first = KINDS.index(kind)  # so that the kinds differ in their steps
    for n, _ in every_step(call, handler, stride=INSIDE + 2 * first, within=""):
        check_names(store)
        assert len(store.queues()) == len(store.stats()["queues"])
        prepare(store, change, n + 1)
    assert len(kept) == 3
    rows = queue_rows(store.path)
    with reopened(store) as again:
        assert {queue.name: queue.id for queue in again.queues()} == rows


def test_an_exception_that_was_being_handled_is_not_taken_for_an_interruption(store: MessageStore) -> None:
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        with pytest.raises(logstore.CatalogError, match="CHECK"), store._names()._transaction() as connection:
            connection.exec_driver_sql("UPDATE store SET one = 2")
    check_names(store)


def test_a_message_is_never_put_on_a_queue_whose_deletion_was_interrupted(store: MessageStore) -> None:
    """The next open would drop an acknowledged message on a queue that is missing in the catalog."""
    handle = store.declare_queue("old")
    for _ in every_step(lambda n: CHANGES["delete_queue"](store, n), interrupt, stride=STRIDE):
        with contextlib.suppress(logstore.UnknownQueue):
            store.publish(handle, b"acknowledged")
            assert "old" in queue_rows(store.path)
        handle = store.declare_queue("old")


def test_reading_the_catalog_within_a_change_works(store: MessageStore) -> None:
    seen: list[int] = []

    def read() -> None:
        seen.append(len(store.bindings()) + len(store.exchanges()) + len(store.config))
        assert store.queue("q").name == "q"

    for _, ended in every_step(lambda n: store.bind("e", "q", str(n)), read, stride=STRIDE):
        assert ended
    assert len(seen) > 40 // STRIDE


def test_a_finalizer_that_changes_the_catalog_is_refused_and_harms_no_later_change(store: MessageStore) -> None:
    refusals: list[Any] = []

    class Finalized:
        def __del__(self) -> None:
            try:
                store.declare_queue("by the finalizer")
            except ReentrantCall as refusal:
                refusals.append(refusal.message)

    for n, ended in every_step(lambda n: store.declare_queue(f"new {n}"), lambda: Finalized() and None, stride=STRIDE):
        assert ended
        if n % 10 == 0:
            check_names(store)
            with contextlib.suppress(logstore.UnknownQueue):
                store.delete_queue("by the finalizer")
    assert refusals
    check_names(store)


# ---- Queues

MESSAGES = 6


def refill(store: MessageStore) -> list[int]:
    """Six messages wait; the first two were acquired before and released. Returns their ids in order."""
    for name in ("q", "dead"):
        for message in store.messages(name):
            store.dequeue(message.id, name, wait=False)
    ids = list(store.publish_many("q", [b"%d" % i for i in range(MESSAGES)]))
    queue = store.queue("q")
    for delivery in queue.acquire(2):
        delivery.release()
    return ids


def places(store: MessageStore, name: str) -> list[int]:
    return [message.id for message in store.messages(name)]


def take_all(store: MessageStore, held: list[Delivery]) -> list[int]:
    """Releases what is held, then acquires everything: in order, no message twice, none missing."""
    queue = store.queue("q")
    for delivery in held:
        with contextlib.suppress(logstore.NotEnqueued, logstore.UnknownMessage):
            delivery.release()
    taken = queue.acquire(2 * MESSAGES)
    ids = [delivery.id for delivery in taken]
    for delivery in taken:
        delivery.release()
    assert store.stats()["queues"]["q"]["acquired"] == 0
    return ids


def work_with_load(store: MessageStore, held: list[Delivery]) -> None:
    held += store.queue("q").acquire(4, load=True)


USES: dict[str, Callable[[MessageStore, list[Delivery]], object]] = {
    "acquire": lambda store, held: held.extend(store.queue("q").acquire(4)),
    "acquire one by one": lambda store, held: [held.extend(store.queue("q").acquire()) for _ in range(3)],
    "acquire and load": work_with_load,
    "release": lambda _, held: held[1].release(),
    "accept": lambda _, held: held[1].accept(wait=False),
    "accept_many": lambda store, held: store.queue("q").accept_many(held, wait=False),
    "reject": lambda _, held: held[1].reject(wait=False),
    "purge": lambda store, _: store.queue("q").purge(wait=False),
    "messages": lambda store, _: list(store.messages("q")),
}


IN_ONE_STEP = {"acquire", "acquire one by one", "acquire and load", "release", "accept", "accept_many"}
"""Each of these is one call into C without steps that a signal can interrupt; a finalizer may still run in it."""


def held_for(store: MessageStore, use: str) -> list[Delivery]:
    return store.queue("q").acquire(3) if use in ("release", "accept", "accept_many", "reject") else []


@pytest.mark.parametrize("use", USES)
def test_an_exception_at_any_step_neither_loses_nor_doubles_a_message(use: str, store: MessageStore) -> None:
    interrupted = 0

    def call(_: int) -> None:
        nonlocal held
        USES[use](store, held)

    held: list[Delivery] = []
    ids = refill(store)
    held = held_for(store, use)
    for _, ended in every_step(call, interrupt, stride=STRIDE):
        interrupted += not ended
        left = places(store, "q")
        assert take_all(store, held) == left, "each message that is on the queue is offered, once and in its place"
        assert sorted(left + places(store, "dead")) == ids or use in ("accept", "accept_many", "purge")
        ids = refill(store)
        held = held_for(store, use)
    assert interrupted > 20 // STRIDE or use == "messages" or use in IN_ONE_STEP
    with reopened(store) as again:
        assert len(places(again, "q")) <= MESSAGES


@pytest.mark.parametrize("use", USES)
def test_a_message_acquired_inside_any_use_of_a_queue_is_out_once(use: str, store: MessageStore) -> None:
    inside: list[Delivery] = []
    entries = 0

    def again() -> None:
        nonlocal entries
        inside.extend(store.queue("q").acquire(2))
        entries += 1

    held: list[Delivery] = []
    refill(store)
    held = held_for(store, use)
    for _, ended in every_step(lambda _: USES[use](store, held), again, stride=STRIDE):  # noqa: B023 - called at once
        assert ended
        out = [delivery.id for delivery in held + inside if not delivery._settled]
        assert len(set(out)) == len(out)
        assert take_all(store, held + inside) == places(store, "q")
        inside.clear()
        refill(store)
        held = held_for(store, use)
    assert entries > 20 // STRIDE or use in IN_ONE_STEP


class Finalized:
    """An object that only a garbage collection frees, and that uses the library then."""

    def __init__(self, use: Callable[[], object]) -> None:
        self.use = use
        self.itself = self

    def __del__(self) -> None:
        self.use()


@contextlib.contextmanager
def garbage_collected_at_any_allocation() -> Iterator[None]:
    before = gc.get_threshold()
    gc.collect()
    gc.set_threshold(1)
    try:
        yield
    finally:
        gc.set_threshold(*before)


@pytest.mark.parametrize("load", [False, True])
def test_a_finalizer_that_releases_deliveries_neither_waits_nor_breaks_the_queue(
    store: MessageStore, load: bool
) -> None:
    queue = store.queue("q")
    released: list[int] = []
    for _ in range(20):
        refill(store)
        (held,) = queue.acquire()
        with garbage_collected_at_any_allocation():
            Finalized(lambda: (held.release(), released.append(1)))  # noqa: B023 - called within the loop
            taken = queue.acquire(3, load=load)
        gc.collect()
        left = places(store, "q")
        assert len({each.id for each in taken}) == 3
        rest = queue.acquire(MESSAGES)
        assert store.stats()["queues"]["q"]["acquired"] == len(left)
        del rest
    assert len(released) == 20


@pytest.mark.parametrize("use", ["acquire", "acquire and load", "release", "accept", "accept_many"])
def test_a_finalizer_that_acquires_within_a_call_gets_messages_of_its_own(use: str, store: MessageStore) -> None:
    queue = store.queue("q")
    for _ in range(20):
        held: list[Delivery] = []
        inside: list[Delivery] = []
        refill(store)
        held = held_for(store, use)
        with garbage_collected_at_any_allocation():
            Finalized(lambda: inside.extend(queue.acquire(2)))  # noqa: B023 - called within the loop
            USES[use](store, held)
        gc.collect()
        out = [delivery.id for delivery in held + inside if not delivery._settled]
        assert inside
        assert len(set(out)) == len(out)
        assert take_all(store, held + inside) == places(store, "q")


# ---- Transactions


def in_a_transaction(store: MessageStore, _: int) -> None:
    with store.transaction() as tx:
        store.publish("q", b"one", transaction=tx)


def in_a_branch(store: MessageStore, number: int) -> None:
    tx = store.begin(logstore.Xid(1, str(number).encode()))
    store.publish("q", b"one", transaction=tx)
    tx.end()
    tx.prepare()
    tx.commit()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # interrupted in a finalizer
@pytest.mark.parametrize("work", [in_a_transaction, in_a_branch])
def test_an_exception_at_any_step_leaves_no_transaction_that_cannot_be_ended(
    store: MessageStore, work: Callable[[MessageStore, int], None]
) -> None:
    for _ in every_step(lambda number: work(store, number), interrupt, stride=STRIDE):
        for prepared in store.in_doubt():
            prepared.rollback()
        assert store.stats()["transactions"] == 0


# ---- Closing


class Closing:
    """A store with a thread of every kind, in a directory that is opened again and again."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.acknowledged: list[int] = []
        self.kept: list[BaseException] = []
        with logstore.open(directory, segment_size=SMALL_SEGMENT) as store:
            store.declare_queue("q")

    def open(self) -> MessageStore:
        """The store with a new message; checks that every earlier one is there."""
        store = logstore.open(self.directory, create=False, prepared_timeout=1000, scrub_rate=1e6)
        assert [message.id for message in store.messages("q")] == self.acknowledged
        store.on_durable(len)  # type: ignore[arg-type] # its error is logged
        store.on_release(lambda _: None)
        self.acknowledged.append(store.publish("q", b"x"))
        return store


@pytest.mark.parametrize(("within", "stride"), [(str(Path(logstore.__file__).parent), 1), ("", INSIDE // 7)])
def test_a_close_that_an_exception_interrupts_at_any_step_is_finished_by_the_next(
    quick_dir: Path, within: str, stride: int, caplog: pytest.LogCaptureFixture
) -> None:
    closing_store = Closing(quick_dir)
    caplog.set_level("CRITICAL", "logstore")
    before = set(threading.enumerate())  # others of this process may be ending
    store = closing_store.open()
    interrupted = 0

    def close(_: int) -> None:
        try:
            store.close()
        except Interrupted as problem:
            closing_store.kept = [problem]  # and with it the frames of the interrupted call
            raise

    for _, ended in every_step(close, interrupt, stride=stride, within=within):
        interrupted += not ended
        store.close()
        store.close()
        with pytest.raises(logstore.StoreClosed):
            store.publish("q", b"x")
        assert {thread.name for thread in threading.enumerate() if thread not in before} == set()
        store = closing_store.open()
    store.close()
    assert interrupted > 40


def test_an_interrupted_close_whose_force_failed_says_so_the_next_time(tmp_path: Path) -> None:
    """Either the interrupted call or the next one raises it, unless the exception replaces it in the last step."""
    said = 0
    for number in itertools.count(1):
        disk = Disk()
        told: list[str] = []
        reached = _close_with_a_failing_disk(disk, tmp_path / f"{number}", number, told)
        said += len(told)
        assert len(told) <= 1
        disk.free()
        if not reached:
            assert told
            break
    assert number > 20
    assert said > number - 5


def _close_with_a_failing_disk(disk: Disk, directory: Path, at: int, told: list[str]) -> bool:
    """Interrupted at this step, and closed again. ``told`` gets the errors; whether the step was reached."""
    store = disk.open(directory)
    store.declare_queue("q")
    store.publish("q", b"x")
    disk.fail(1, errno.EIO, forever=True)  # in the close, since nothing else is left to be written

    def close() -> None:
        try:
            store.close()
        except (logstore.OutcomeUnknown, logstore.StorePoisoned) as problem:
            told.append(problem.message)

    reached = True
    with contextlib.suppress(Interrupted):
        reached = run(close, at, interrupt)
    close()
    close()
    return reached


def test_a_close_in_a_handler_of_a_close_does_no_harm_at_any_step(quick_dir: Path) -> None:
    closing_store = Closing(quick_dir)
    store = closing_store.open()

    def again() -> None:
        with contextlib.suppress(ReentrantCall):
            store.close()

    for _, ended in every_step(lambda _: store.close(), again, stride=STRIDE):  # noqa: B023 - called at once
        assert ended
        store = closing_store.open()
    store.close()


def test_a_callback_that_closes_the_store_does_not_wait_for_the_thread_that_closes_it(quick_dir: Path) -> None:
    closing_store = Closing(quick_dir)
    for _ in range(20):
        store = closing_store.open()
        store.on_durable(lambda _: store.close())  # noqa: B023 - the store of this round, which the loop waits for
        store.publish("q", b"y", wait=False)
        store.close()
        for _ in range(2):
            store.close()
        with contextlib.closing(logstore.open(quick_dir, create=False)) as again:
            closing_store.acknowledged = [message.id for message in again.messages("q")]
