"""Messages on a queue have the order in which they became visible, at run time and after any restart.

A plain enqueue becomes visible at once; those of a transaction at its commit, in the order of the enqueues. A rollback
returns messages to their old places. Small programs run in every interleaving, each on its own queue, and larger ones
at random.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kit.killed import quick_directory, remove
from kit.simulated import ALL_LOST, BY_SEED, Disk
from kit.stores import contents
from logstore import Xid

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from logstore import MessageStore, Transaction

ENQUEUE, STAGED, DEQUEUE, END, PREPARE, COMMIT, ROLLBACK = (
    "enqueue",
    "enqueue staged",
    "dequeue",
    "end",
    "prepare",
    "commit",
    "rollback",
)


@pytest.fixture
def path() -> Iterator[Path]:
    made = quick_directory("logstore-order-")
    yield made / "store"
    remove(made)


def interleavings(lengths: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Every interleaving: the index of the next actor, each as often as it has steps."""
    if not any(lengths):
        yield ()
    for actor, left in enumerate(lengths):
        if left:
            rest = [*lengths[:actor], left - 1, *lengths[actor + 1 :]]
            for others in interleavings(rest):
                yield (actor, *others)


class Row:
    """One queue, its expected contents, and the transactions that work on it; a message's name is its content."""

    def __init__(self, store: MessageStore, name: str, present: Sequence[str] = ()) -> None:
        self.store = store
        self.queue = store.declare_queue(name)
        self.prefix = name + " "
        self.order: list[str] = []
        self.ids: dict[str, int] = {}
        self.txs: dict[int, Transaction | None] = {}
        self.works: dict[int, list[tuple[str, str]]] = {}
        for word in present:
            self.enqueue(None, word)

    def begin(self, actor: int, kind: str) -> None:
        """``plain`` works outside any transaction."""
        xid = Xid(actor, self.queue.name.encode(), b"") if kind == "distributed" else None
        self.txs[actor] = None if kind == "plain" else self.store.begin(xid)
        self.works[actor] = []

    def step(self, actor: int, what: str, word: str = "") -> None:
        if what in (ENQUEUE, STAGED):
            self.enqueue(actor, word, staged=what == STAGED)
        elif what == DEQUEUE:
            self.dequeue(actor, word)
        else:
            tx = self.txs[actor]
            if tx is not None:
                waits = {} if what == END else {"wait": False}
                getattr(tx, what)(**waits)
            if what in (COMMIT, ROLLBACK):
                self.settle(actor, commits=what == COMMIT)

    def tx(self, actor: int | None) -> Transaction | None:
        return None if actor is None else self.txs[actor]

    def enqueue(self, actor: int | None, word: str, *, staged: bool = False) -> None:
        content = (self.prefix + word).encode()
        if word in self.ids:
            self.store.enqueue(self.ids[word], self.queue, self.tx(actor), wait=False)
        elif staged:
            self.ids[word] = self.store.stage(b"", content)
            self.store.enqueue(self.ids[word], self.queue, self.tx(actor), wait=False)
        else:
            self.ids[word] = self.store.publish(self.queue, content, transaction=self.tx(actor), wait=False)
        self.did(actor, ENQUEUE, word)

    def dequeue(self, actor: int | None, word: str) -> None:
        self.store.dequeue(self.ids[word], self.queue, self.tx(actor), wait=False)
        self.did(actor, DEQUEUE, word)

    def did(self, actor: int | None, what: str, word: str) -> None:
        if actor is None or self.txs[actor] is None:
            self.apply(what, word)
        else:
            self.works[actor].append((what, word))

    def apply(self, what: str, word: str) -> None:
        if what == ENQUEUE:
            self.order.append(word)
        else:
            self.order.remove(word)

    def settle(self, actor: int, *, commits: bool) -> None:
        for what, word in self.works.pop(actor):
            if commits:
                self.apply(what, word)

    def expected(self) -> list[bytes]:
        return [(self.prefix + word).encode() for word in self.order]


def check_through_restarts(disk: Disk, path: Path, store: MessageStore, rows: Sequence[Row]) -> None:
    """Checks the order at run time, after a power cut, after a second one without work, and after an orderly close."""
    assert [contents(row.queue) for row in rows] == [row.expected() for row in rows]
    store.force()
    for losses in (ALL_LOST, BY_SEED):
        disk = disk.crash(losses)
        store = disk.open(path)
        assert [contents(store.queue(row.queue.name)) for row in rows] == [row.expected() for row in rows]
    store.close()
    store = disk.open(path)
    for row in rows:
        queue = store.queue(row.queue.name)
        got = queue.acquire(len(row.order) + 1)
        assert [delivery.content for delivery in got] == row.expected()
        for delivery in got:
            delivery.release()
    store.close()


PROGRAMS = {
    "plain": [(ENQUEUE, "1"), (ENQUEUE, "2")],
    "local": [(ENQUEUE, "1"), (STAGED, "2"), (COMMIT, "")],
    "distributed": [(ENQUEUE, "1"), (STAGED, "2"), (END, ""), (PREPARE, ""), (COMMIT, "")],
    "one-phase": [(STAGED, "1"), (END, ""), (COMMIT, "")],
    "rolled back": [(ENQUEUE, "1"), (ROLLBACK, "")],
}


@pytest.mark.parametrize(
    ("kinds", "count"),
    [
        (("local", "local", "plain"), 560),
        (("local", "distributed"), 56),
        (("distributed", "distributed"), 252),
        (("distributed", "plain", "plain"), 756),
        (("local", "one-phase", "plain"), 560),
        (("local", "rolled back", "plain"), 210),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else str(value),
)
def test_the_first_commit_comes_first_in_every_interleaving(path: Path, kinds: tuple[str, ...], count: int) -> None:
    disk = Disk()
    store = disk.open(path)
    rows = []
    programs = [PROGRAMS[kind] for kind in kinds]
    lengths = [len(program) for program in programs]
    for number, turns in enumerate(interleavings(lengths)):
        row = Row(store, f"q{number}")
        for actor, kind in enumerate(kinds):
            row.begin(actor, {"one-phase": "distributed", "rolled back": "local"}.get(kind, kind))
        done = [0] * len(kinds)
        for actor in turns:
            what, word = programs[actor][done[actor]]
            row.step(actor, what, f"{actor}{word}" if word else "")
            done[actor] += 1
        rows.append(row)
    assert len(rows) == count == math.factorial(sum(lengths)) // math.prod(math.factorial(n) for n in lengths)
    assert len({tuple(row.order) for row in rows}) > 1
    check_through_restarts(disk, path, store, rows)


OUTCOMES = (COMMIT, ROLLBACK)


def takes_from_a_full_row(row: Row, turns: Sequence[int], takes: Sequence[str], outcomes: Sequence[str]) -> None:
    """Each actor dequeues a message and ends its transaction; committed actors also enqueue a message at the end."""
    done = [0] * len(takes)
    for actor in turns:
        if done[actor] == 0:
            row.step(actor, DEQUEUE, takes[actor])
            row.step(actor, ENQUEUE, takes[actor])
        elif done[actor] == 1 and row.txs[actor] is not None and row.txs[actor].xid is not None:  # type: ignore[union-attr]
            row.step(actor, END)
            row.step(actor, PREPARE)
        elif done[actor] == 2:
            row.step(actor, outcomes[actor])
        done[actor] += 1


@pytest.mark.parametrize("kinds", [("local", "local"), ("local", "distributed"), ("distributed", "distributed")])
def test_a_rollback_brings_a_message_back_to_its_old_place_whatever_happened_around_it(
    path: Path, kinds: tuple[str, str]
) -> None:
    disk = Disk()
    store = disk.open(path)
    rows = []
    for takes in itertools.permutations("abc", 2):
        for outcomes in itertools.product(OUTCOMES, repeat=2):
            for turns in interleavings([3, 3]):
                row = Row(store, f"q{len(rows)}", "abc")
                for actor, kind in enumerate(kinds):
                    row.begin(actor, kind)
                takes_from_a_full_row(row, turns, takes, outcomes)
                rows.append(row)
    assert len(rows) == 6 * 4 * 20
    assert {"".join(row.order) for row in rows} >= {"abc", "bca", "acb", "cab"}
    check_through_restarts(disk, path, store, rows)


def test_messages_that_a_rollback_returns_come_again_before_those_behind_them(path: Path) -> None:
    """A consumer that had passed the locked places gets them first, at their old place."""
    disk = Disk()
    store = disk.open(path)
    queue = store.declare_queue("q")
    ids = list(store.publish_many(queue, [b"%d" % i for i in range(6)]))
    tx = store.begin()
    store.dequeue_many([ids[3], ids[0]], queue, tx)
    first, second = queue.acquire(2)
    assert (first.content, second.content) == (b"1", b"2")
    tx.rollback()
    held = queue.acquire(2)
    assert [delivery.content for delivery in held] == [b"0", b"3"]
    second.release()
    assert [delivery.content for delivery in queue.acquire(10)] == [b"2", b"4", b"5"]
    store = disk.crash().open(path)
    assert contents(store.queue("q")) == [b"%d" % i for i in range(6)]
    store.close()


def test_outcomes_given_after_a_restart_decide_the_order_too(path: Path) -> None:
    """They were prepared earlier and committed later, so they come after everything visible in between."""
    for order in itertools.permutations(range(3)):
        disk = Disk()
        store = disk.open(path.with_name(f"store{order}"))
        here = store.path
        queue = store.declare_queue("q")
        for number in range(3):
            tx = store.begin(Xid(number, b"g"))
            store.publish(queue, b"%d a" % number, transaction=tx)
            store.publish(queue, b"%d b" % number, transaction=tx)
            tx.end()
            tx.prepare()
        store.publish(queue, b"before")
        expected = [b"before"]
        for number in order:
            disk = disk.crash()
            store = disk.open(here)
            waiting = {tx.xid.format_id: tx for tx in store.in_doubt() if tx.xid is not None}
            assert len(waiting) == 3 - order.index(number)
            waiting[number].commit()
            store.publish("q", b"then %d" % number)
            expected += [b"%d a" % number, b"%d b" % number, b"then %d" % number]
            assert contents(store.queue("q")) == expected
        for _ in range(2):
            disk = disk.crash()
            store = disk.open(here)
            assert contents(store.queue("q")) == expected
        store.close()


def test_one_commit_keeps_the_order_of_its_enqueues_on_every_queue(path: Path) -> None:
    """A fan-out, single enqueues and a batch in one transaction; each queue has the order of the calls."""
    disk = Disk()
    store = disk.open(path)
    left, right = store.declare_queue("left"), store.declare_queue("right")
    staged = [store.stage(b"", b"s%d" % i) for i in range(3)]
    tx = store.begin(Xid(1, b"g"))
    store.enqueue(staged[2], [right, left], tx)
    store.publish([left, right], b"fan", transaction=tx)
    store.publish_many(left, [b"m0", b"m1"], transaction=tx)
    store.enqueue(staged[0], left, tx)
    store.enqueue(staged[1], [left, right], tx)
    store.enqueue(staged[0], right, tx)
    store.publish(right, [b"pa", b"rts"], transaction=tx)
    tx.end()
    tx.prepare()
    expected = ([b"s2", b"fan", b"m0", b"m1", b"s0", b"s1"], [b"s2", b"fan", b"s1", b"s0", b"parts"])
    for last in (False, True):
        disk = disk.crash()
        store = disk.open(path)
        if not last:
            assert contents(store.queue("left")) == contents(store.queue("right")) == []
            store.in_doubt()[0].commit()
        assert (contents(store.queue("left")), contents(store.queue("right"))) == expected
    store.close()


class Chance:
    """A random history of one row, driven by hypothesis, with restarts that only prepared transactions survive."""

    KINDS = ("local", "distributed")

    def __init__(self, path: Path) -> None:
        self.path = path
        self.disk = Disk()
        self.store = self.disk.open(path)
        self.row = Row(self.store, "q")
        self.states: dict[int, str] = {}
        self.words = 0
        self.actors = 0

    def free(self, actor: int | None) -> list[str]:
        """The messages that may be dequeued, because no other transaction has work on them."""
        touched = {word for other, work in self.row.works.items() if other != actor for _, word in work}
        mine = list(self.row.order)
        for what, word in self.row.works.get(actor, []) if actor is not None else []:
            if what == ENQUEUE:
                mine.append(word)
            else:
                mine.remove(word)
        return [word for word in mine if word not in touched]

    def step(self, pick: int, which: int) -> None:
        active = [actor for actor, state in self.states.items() if state == "active"]
        open_ones = sorted(self.states)
        kind = pick % 8
        if kind == 0 and len(self.states) < 4:
            self.begin(which)
        elif kind in (1, 2):
            self.words += 1
            self.row.enqueue(([None, *active])[which % (len(active) + 1)], f"m{self.words}", staged=which % 2 == 0)
        elif kind == 3:
            self.take(([None, *active])[which % (len(active) + 1)], which)
        elif kind in (4, 5) and open_ones:
            self.finish(open_ones[which % len(open_ones)], COMMIT if kind == 4 else ROLLBACK)
        elif kind == 6 and active:
            self.prepare(active[which % len(active)])
        elif kind == 7:
            self.restart(which)

    def begin(self, which: int) -> None:
        self.actors += 1
        self.row.begin(self.actors, self.KINDS[which % 2])
        self.states[self.actors] = "active"

    def take(self, actor: int | None, which: int) -> None:
        """Takes a message away, or moves it to the end of the queue."""
        free = self.free(actor)
        if free:
            word = free[which % len(free)]
            self.row.dequeue(actor, word)
            if actor is not None and which % 3:
                self.row.enqueue(actor, word)

    def prepare(self, actor: int) -> None:
        tx = self.row.txs[actor]
        if tx is not None and tx.xid is not None:
            self.row.step(actor, END)
            self.row.step(actor, PREPARE)
            self.states[actor] = "prepared"

    def finish(self, actor: int, outcome: str) -> None:
        tx = self.row.txs[actor]
        if tx is not None and tx.state == "active" and tx.xid is not None and outcome == COMMIT:
            self.row.step(actor, END)
        self.row.step(actor, outcome)
        del self.states[actor]

    def restart(self, which: int) -> None:
        if which % 2:
            self.store.force()
            self.disk = self.disk.crash([ALL_LOST, BY_SEED][which // 2 % 2], which + 1)
        else:
            self.store.close()
        self.store = self.disk.open(self.path)
        self.row.store, self.row.queue = self.store, self.store.queue("q")
        for actor in [actor for actor, state in self.states.items() if state == "active"]:
            self.row.settle(actor, commits=False)
            del self.states[actor]
        found = {tx.xid.format_id: tx for tx in self.store.in_doubt() if tx.xid is not None}
        assert sorted(found) == sorted(self.states)
        self.row.txs.update(found)

    def check(self) -> None:
        assert contents(self.row.queue) == self.row.expected()


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=st.lists(st.tuples(st.integers(0, 7), st.integers(0, 30)), min_size=10, max_size=60))
def test_the_order_holds_through_any_history_of_outcomes_and_restarts(steps: list[tuple[int, int]]) -> None:
    directory = quick_directory("logstore-order-")
    try:
        chance = Chance(directory / "store")
        for pick, which in steps:
            chance.step(pick, which)
            chance.check()
        for which in (1, 0):
            chance.restart(which)
            chance.check()
        chance.store.close()
    finally:
        remove(directory)
