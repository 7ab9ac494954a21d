"""publish_many of whatever iterable a caller has: what it returns is durable, what it stored is named if it fails."""

from __future__ import annotations

import array
import itertools
import os
import signal
import threading
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import logstore
from kit.interrupts import Interrupted, every_step, interrupt
from kit.simulated import ALL_LOST, Disk
from logstore import errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from logstore import MessageStore, Queue

MANY = 3000  # more than one call of the core takes

# ---- what an iterable may do while it is read ----


class Broken(BaseException):
    """Raised by an iterable; no Exception, as KeyboardInterrupt is none."""


class Sized:
    """An iterable that gives ``given`` items, and says with each call of ``len`` the next of ``lengths``."""

    def __init__(self, given: int, *lengths: int) -> None:
        self.given = given
        self.lengths = itertools.chain(lengths, itertools.repeat(lengths[-1]))

    def __len__(self) -> int:
        return next(self.lengths)

    def __iter__(self) -> Iterator[bytes]:
        return (b"%d" % number for number in range(self.given))


def growing(_: MessageStore, __: Queue) -> Any:
    """A dict of which another one is made in between, as a caller's own container may do it."""

    class Growing(dict[bytes, None]):
        def __iter__(self) -> Iterator[bytes]:
            for number in range(MANY):
                yield b"%d" % number

    return Growing.fromkeys(b"%d" % number for number in range(1024))


def reentering(store: MessageStore, queue: Queue) -> Any:
    """It publishes, too, without waiting and with."""
    other = store.declare_queue("other")
    for number in range(MANY):
        if number % 1000 == 999:
            store.publish(other, b"inside", wait=False)
            store.publish_many(other, [b"inside"] * 3)
            store.publish_many(other, (b"inside" for _ in range(3)), wait=False)
        yield b"%d" % number


ITERABLES: dict[str, Callable[[MessageStore, Queue], Any]] = {
    "grows": growing,
    "says the length of its first piece": lambda *_: Sized(MANY, 1024),
    "says less than it gives": lambda *_: Sized(MANY, 7),
    "says more than it gives": lambda *_: Sized(MANY, 2 * MANY),
    "says that it is empty": lambda *_: Sized(MANY, 0),
    "says another length each time": lambda *_: Sized(MANY, 1, 1024, 2048, MANY),
    "enters the store again": reentering,
    "an array's views": lambda *_: (memoryview(b"%d" % number) for number in range(MANY)),
    "a list": lambda *_: [b"%d" % number for number in range(MANY)],
}


@pytest.fixture
def disk() -> Iterator[Disk]:
    made = Disk()
    yield made
    made.free()


def opened(disk: Disk, directory: Path) -> MessageStore:
    """Without threads of its own, so that nothing is durable by chance."""
    return disk.open(directory, background=0, segment_size=1 << 20)


def found_after_a_power_cut(disk: Disk, store: MessageStore) -> dict[int, bytes]:
    """The messages of the queue if power fails now. Closes the store."""
    after = disk.crash(ALL_LOST)
    store.close()
    again = opened(after, store.path)
    with again:
        found = {message.id: message.content for message in again.messages("q", load=True)}
    del again
    after.free()
    return found


@pytest.mark.parametrize("name", ITERABLES)
@pytest.mark.parametrize("headed", [False, True])
def test_what_publish_many_returned_is_there_after_a_power_cut(
    name: str, headed: bool, disk: Disk, tmp_path: Path
) -> None:
    store = opened(disk, tmp_path / "store")
    with store:
        queue = store.declare_queue("q")
        headers = (b"h" for _ in range(MANY)) if headed else None
        acknowledged = list(store.publish_many(queue, ITERABLES[name](store, queue), headers=headers))
        assert len(acknowledged) == MANY
        found = found_after_a_power_cut(disk, store)
        assert [found.get(key) for key in acknowledged] == [b"%d" % number for number in range(MANY)]
    del store, queue


@pytest.mark.parametrize("at", [0, 1, 5, 1024, MANY - 1])
@pytest.mark.parametrize("of", ["contents", "headers"])
def test_what_a_failed_publish_many_stored_is_named_and_there_after_a_power_cut(
    at: int, of: str, disk: Disk, tmp_path: Path
) -> None:
    def broken() -> Iterator[bytes]:
        yield from (b"%d" % number for number in range(at))
        raise Broken

    items = {"contents": (b"%d" % number for number in range(MANY)), "headers": (b"h" for _ in range(MANY))}
    items[of] = broken()
    store = opened(disk, tmp_path / "store")
    with store:
        with pytest.raises(Broken) as caught:
            store.publish_many(store.declare_queue("q"), items["contents"], headers=items["headers"])
        found = found_after_a_power_cut(disk, store)
        assert list(caught.value.published) == list(found)  # type: ignore[attr-defined] # not in its type
    del store


# ---- one by one ----


STREAMS: dict[str, Callable[[Any], Any]] = {
    "a generator": lambda items: items,
    "a map": lambda items: map(bytearray, items),
    "a sequence of its own": lambda items: type("Own", (), {"__len__": lambda _: 7, "__iter__": lambda _: items})(),
}


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("in_transaction", [False, True])
def test_before_an_iterable_is_asked_for_its_next_item_all_before_it_are_stored(
    store: MessageStore, stream: str, in_transaction: bool
) -> None:
    queue = store.declare_queue("q")
    transaction = store.begin() if in_transaction else None

    def stored() -> int:
        return queue.depth if transaction is None else transaction.operations

    def watching() -> Iterator[bytes]:
        for number in range(1500):
            assert stored() == number
            yield b"%d" % number

    ids = store.publish_many(queue, STREAMS[stream](watching()), transaction=transaction)
    if transaction is not None:
        transaction.commit()
    assert [message.id for message in queue.browse()] == list(ids)
    assert len(ids) == 1500


@pytest.mark.parametrize("of", ["contents", "headers"])
@pytest.mark.parametrize("wait", [True, False])
def test_an_iterable_may_wait_until_its_earlier_items_are_consumed(store: MessageStore, of: str, wait: bool) -> None:
    queue = store.declare_queue("q")
    consumed: list[bytes] = []

    def waiting() -> Iterator[bytes]:
        for number in range(20):
            yield b"%d" % number
            done = number if of == "headers" else number + 1  # a content is published with its header
            while len(consumed) < done:
                for delivery in queue.acquire(load=True):
                    consumed.append(delivery.content)
                    delivery.accept(wait=False)

    others = (b"%d" % number for number in range(20))
    contents, headers = (waiting(), others) if of == "contents" else (others, waiting())
    assert len(store.publish_many(queue, contents, headers=headers, wait=wait)) == 20
    assert consumed == [b"%d" % number for number in range(19 if of == "headers" else 20)]


def test_a_long_iterable_in_c_lets_other_threads_run_and_signals_be_handled(store: MessageStore) -> None:
    queue = store.declare_queue("q")

    def interrupt_soon() -> None:
        while queue.depth == 0:
            pass
        os.kill(os.getpid(), signal.SIGUSR1)

    def handler(*_: object) -> None:
        raise Broken

    before = signal.signal(signal.SIGUSR1, handler)
    thread = threading.Thread(target=interrupt_soon)
    try:
        thread.start()
        with pytest.raises(Broken) as caught:
            store.publish_many(queue, itertools.repeat(b"x"), wait=False)
        thread.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(caught.value.published) == queue.depth > 0  # type: ignore[attr-defined] # not in its type


@pytest.mark.parametrize("size", [0, 100, 16 << 10, (16 << 10) + 1, 300_000])
def test_each_item_of_a_stream_is_stored_byte_for_byte_whatever_its_size(store: MessageStore, size: int) -> None:
    queue = store.declare_queue("q")
    items = [bytes([number]) * (size + number % 3) for number in range(40)]
    heads = [bytes([number]) * (number * 50) for number in range(40)]
    for kind in (bytes, bytearray, memoryview):
        ids = store.publish_many(queue, map(kind, items), headers=map(kind, heads))
        assert [store.load_content(key) for key in ids] == items
        assert [store.header(key) for key in ids] == heads


def test_an_iterable_that_ends_its_transaction_or_closes_the_store_gets_an_error(open_store: Any) -> None:
    store = open_store()
    for end, error in (
        (lambda tx: tx.commit(), errors.TransactionEnded),
        (lambda tx: tx.rollback(), errors.TransactionEnded),
        (lambda tx: tx.__del__(), errors.TransactionEnded),
        (lambda _: store.delete_queue("q"), errors.UnknownQueue),
        (lambda _: store.close(), errors.StoreClosed),
    ):
        queue, transaction = store.declare_queue("q"), store.begin()

        def ending(end: Any = end, transaction: Any = transaction) -> Iterator[bytes]:
            yield b"before"
            end(transaction)
            yield b"after"

        with pytest.raises(error) as caught:
            store.publish_many(queue, ending(), transaction=transaction)
        assert len(caught.value.published) == 1  # type: ignore[attr-defined] # not in its type


@pytest.mark.parametrize("more", [1, 2, 1000])
@pytest.mark.parametrize("count", [0, 1, 40])
def test_another_number_of_headers_than_contents_is_refused_and_what_is_stored_is_named(
    count: int, more: int, disk: Disk, tmp_path: Path
) -> None:
    store = opened(disk, tmp_path / "store")
    few, many = [b"%d" % number for number in range(count)], [b"x"] * (count + more)
    with store:
        queue = store.declare_queue("q")
        for contents, headers in ((iter(few), iter(many)), (few, iter(many)), (iter(few), many)):
            with pytest.raises(
                errors.OptionError, match=f"at least {count + 1} headers for {count} contents"
            ) as caught:
                store.publish_many(queue, contents, headers=headers)
            assert len(caught.value.published) == count  # type: ignore[attr-defined] # not in its type
        with pytest.raises(errors.OptionError, match=f"there are {count} headers for at least {count + 1}") as caught:
            store.publish_many(queue, iter(many), headers=iter(few))
        assert len(caught.value.published) == count  # type: ignore[attr-defined] # not in its type
        assert len(found_after_a_power_cut(disk, store)) == 4 * count
    del store, queue


# ---- failures ----


FAILING: dict[str, Callable[[], dict[str, Any]]] = {
    "a list": lambda: {"contents": [b"%d" % number for number in range(2000)]},
    "lists of buffers": lambda: {"contents": [bytearray(b"x")] * 60, "headers": [memoryview(b"h")] * 60},
    "a stream": lambda: {"contents": (b"%d" % number for number in range(90))},
    "a stream with headers": lambda: {"contents": iter([bytearray(b"x")] * 90), "headers": iter([b"h"] * 90)},
    "arrow": lambda: {"contents": pa.chunked_array([[b"x"] * 1500, [b"y"] * 10])},
    "arrow with headers": lambda: {"contents": pa.array([b"x"] * 40), "headers": pa.array([b"y"] * 40)},
}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of a generator that is closed
@pytest.mark.parametrize("name", FAILING)
@pytest.mark.parametrize("wait", [True, False])
def test_whichever_allocation_fails_the_ids_of_what_is_stored_are_named(
    store: MessageStore, name: str, wait: bool
) -> None:
    testcapi = pytest.importorskip("_testcapi", reason="SKIPPED LOUDLY: this Python has no _testcapi")
    queue = store.declare_queue("q")
    store.publish_many(queue, wait=wait, **FAILING[name]())  # imports modules and fills caches
    before, failed, stored, passed_in_a_row = queue.depth, 0, 0, 0
    for number in itertools.count():
        given = FAILING[name]()
        problem, published = None, array.array("Q")
        testcapi.set_nomemory(number, number + 1)
        try:
            published = store.publish_many(queue, wait=wait, **given)  # type: ignore[assignment] # it is one
        except BaseException as caught:  # noqa: BLE001 - looked at below
            testcapi.remove_mem_hooks()
            problem = caught
        testcapi.remove_mem_hooks()
        if problem is not None:
            assert isinstance(problem, MemoryError)
            published = getattr(problem, "published", published)
            failed += 1
            stored += len(published) > 0
        assert list(published) == [message.id for message in queue.browse()][before:], number
        before += len(published)
        passed_in_a_row = passed_in_a_row + 1 if problem is None else 0
        if passed_in_a_row > 20:  # some allocations may fail without harm
            break
    assert failed > 3
    assert stored > 0 or "stream" not in name


class Refusing(Exception):
    """Takes no attribute."""

    __slots__ = ()

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(name)


class Guarded(Exception):
    """Has an attribute of this name that nobody may set."""

    @property
    def published(self) -> int:
        return 7


@pytest.mark.parametrize(
    "kind", [Refusing, Guarded, Broken, KeyboardInterrupt, SystemExit, GeneratorExit, StopIteration]
)
def test_an_exception_of_an_iterable_reaches_the_caller_whatever_its_class(
    store: MessageStore, kind: type[BaseException]
) -> None:
    queue = store.declare_queue("q")
    problem = kind()

    class Failing:
        def __init__(self) -> None:
            self.left = 3

        def __iter__(self) -> Failing:
            return self

        def __next__(self) -> bytes:
            self.left -= 1
            if self.left < 0:
                raise problem
            return b"x"

    if kind is StopIteration:
        assert len(store.publish_many(queue, Failing())) == 3
        return
    with pytest.raises(kind) as caught:
        store.publish_many(queue, Failing())
    assert caught.value is problem
    stored = [message.id for message in queue.browse()]
    assert problem.published == 7 if kind is Guarded else list(problem.published) == stored  # type: ignore[attr-defined]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of a generator that is closed
@pytest.mark.parametrize("name", FAILING)
def test_an_exception_at_any_step_names_what_is_stored(store: MessageStore, name: str) -> None:
    queue = store.declare_queue("q")
    before, problems, named = 0, 0, 0

    def call(_: int) -> None:
        nonlocal problems, named
        try:
            store.publish_many(queue, **FAILING[name]())
        except Interrupted as problem:
            problems += 1
            stored = [message.id for message in queue.browse()][before:]
            if hasattr(problem, "published"):  # one that comes while another is given the attribute has none
                assert list(problem.published) == stored
                named += 1
            raise

    for _ in every_step(call, interrupt, stride=7):
        before = queue.depth
    assert problems > 3
    assert named > problems // 2


# ---- flags ----


class Changing:
    """Its truth value is another one each time that it is asked for."""

    def __init__(self, first: bool) -> None:
        self.asked = 0
        self.first = first

    def __bool__(self) -> bool:
        self.asked += 1
        return self.first == (self.asked % 2 == 1)


def waiting_calls(store: MessageStore) -> dict[str, Callable[[Any], object]]:
    """Every call that takes ``wait``, with messages for it to work on."""
    queue = store.declare_queue("q", dead_letter="dead")
    keys = list(store.publish_many(queue, [b"%d" % number for number in range(8)]))
    held = queue.acquire(8)
    staged = [store.stage(b"", b"staged") for _ in range(4)]
    other = store.declare_queue("other")
    ends = [store.begin(logstore.Xid(1, b"%d" % number)) for number in range(3)]
    for each in ends:
        store.publish(other, b"", transaction=each)
        each.end()
    elsewhere = list(store.publish_many(other, [b"x"] * 6))
    return {
        "publish": lambda wait: store.publish(other, b"c", wait=wait),
        "publish of parts": lambda wait: store.publish(other, [b"c", b"d"], wait=wait),
        "publish_many": lambda wait: store.publish_many(other, [b"c"] * 3, wait=wait),
        "publish_many of a generator": lambda wait: store.publish_many(other, (b"c" for _ in range(3)), wait=wait),
        "stage": lambda wait: store.stage(b"", [b"c"], wait=wait),
        "append_content": lambda wait: store.append_content(staged[0], [b"c"], wait=wait),
        "enqueue": lambda wait: store.enqueue(staged[1], other, wait=wait),
        "destroy": lambda wait: store.destroy(staged[2], wait=wait),
        "dequeue": lambda wait: store.dequeue(elsewhere[0], other, wait=wait),
        "dequeue_many": lambda wait: store.dequeue_many(iter(elsewhere[1:3]), other, wait=wait),
        "accept": lambda wait: queue.accept(held[0], wait=wait),
        "accept_many": lambda wait: queue.accept_many(iter(held[1:3]), wait=wait),
        "reject": lambda wait: queue.reject(held[3], wait=wait),
        "commit": lambda wait: ends[0].commit(wait=wait),
        "prepare": lambda wait: ends[1].prepare(wait=wait),
        "rollback": lambda wait: ends[2].rollback(wait=wait),
        "purge": lambda wait: other.purge(wait=wait),
        "delete_queue": lambda wait: store.delete_queue(store.declare_queue("gone"), wait=wait) if keys else None,
    }


@pytest.mark.parametrize("first", [True, False])
def test_every_call_asks_once_whether_it_shall_wait(store: MessageStore, first: bool) -> None:
    store.declare_queue("dead")
    for name, call in waiting_calls(store).items():
        wait = Changing(first)
        call(wait)
        assert wait.asked == 1, name
        if first:
            durable = store.durable_lsn
            assert durable >= store.next_lsn, name


class Lying(list[bytes]):
    """A list that claims to have far more items than memory could hold."""

    def __len__(self) -> int:
        return 1 << 40


@pytest.mark.parametrize("headers", [None, [b"h"]])
@pytest.mark.parametrize("in_transaction", [False, True])
def test_a_list_whose_length_lies_is_refused_without_memory_for_that_length(
    store: MessageStore, headers: Any, in_transaction: bool
) -> None:
    queue = store.declare_queue("q")
    transaction = store.begin() if in_transaction else None
    with pytest.raises(errors.OptionError, match="contents"):
        store.publish_many(queue, Lying([b"a"]), headers=headers, transaction=transaction)
    assert queue.depth == 0
