"""publish_many of whatever iterable a caller has: what it returns is durable, what it stored is named if it fails."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest

import logstore
from kit.simulated import ALL_LOST, Disk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from logstore import MessageStore, Queue

MANY = 3000  # more than one call of the core takes

# ---- what an iterable may do while it is read ----


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
