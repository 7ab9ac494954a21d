"""Processes that compete for one store: many that open it at the same time, winners that are killed, and forks.

One process wins; the others get `StoreLocked`. The death of a winner at any moment frees the store and loses nothing
that was reported as durable. A child of `fork` gets `StoreForked` from every call and keeps no lock; its parent is not
affected.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import random
import select
import signal
import threading
import time
import traceback
import warnings
from typing import TYPE_CHECKING, Any

import pytest

import logstore
from kit.killed import quick_directory, remove
from kit.patience import PATIENCE_S
from kit.stores import SMALL_SEGMENT, contents
from kit.torture import seconds_to_spend
from logstore import errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from logstore import MessageStore

    Open = Callable[..., MessageStore]

CONTENDERS = 5
WINS = 60


@pytest.fixture
def quick_store() -> Iterator[Path]:
    """A directory in memory: SIGKILL loses nothing that the kernel has."""
    made = quick_directory("logstore-processes-")
    yield made / "store"
    remove(made)


# ---- many openers ----


class Contender:
    """A child that opens the store, publishes, and closes it, again and again, until it is killed."""

    def __init__(self, path: Path, say: int, seed: int) -> None:
        self.ended_at: float | None = None
        self.pid = os.fork()
        if self.pid == 0:
            try:
                contend(path, say, random.Random(seed))
            except BaseException:  # noqa: BLE001 - told to the test, which raises
                os.write(say, f"{os.getpid()} failed {time.monotonic()} {traceback.format_exc()[-2000:]!r}\n".encode())
            finally:
                os._exit(1)

    def kill(self) -> None:
        self.ended_at = time.monotonic()  # what it held until now it held for sure
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def contend(path: Path, pipe: int, dice: random.Random) -> None:
    def say(what: str, more: object = "") -> None:
        os.write(pipe, f"{os.getpid()} {what} {time.monotonic()} {more}\n".encode())  # whole: it is short

    number = 0
    while True:
        try:
            store = logstore.open(path, segment_size=SMALL_SEGMENT)
        except errors.StoreLocked:
            say("locked")
            continue
        say("won")
        queue = store.declare_queue("q")
        for _ in range(dice.randrange(1, 6)):
            number += 1
            store.publish(queue, b"%d.%d" % (os.getpid(), number))
            say("published", number)
        say("closes")
        store.close()


class Race:
    """The lines of all processes, in order."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()
        self.rest = b""
        self.said: list[tuple[int, str, float, str]] = []

    def listen(self) -> None:
        ready, _, _ = select.select([self.reader], [], [], PATIENCE_S)
        assert ready, f"nobody has opened, or been refused, for {PATIENCE_S} s"
        *lines, self.rest = (self.rest + os.read(self.reader, 1 << 16)).split(b"\n")
        for line in lines:
            pid, what, at, more = line.decode().split(" ", 3)
            assert what != "failed", more
            self.said.append((int(pid), what, float(at), more))

    def count(self, what: str) -> int:
        return sum(each[1] == what for each in self.said)

    def holds(self, ended: dict[int, float]) -> list[tuple[float, float]]:
        """The time in which a process certainly held the store."""
        since: dict[int, float] = {}
        known = []
        for pid, what, at, _ in self.said:
            if what == "won":
                since[pid] = at
            elif what == "closes":
                known.append((since.pop(pid), at))
        known += [(at, ended[pid]) for pid, at in since.items()]
        return sorted(known)

    def close(self) -> None:
        os.close(self.reader)
        os.close(self.writer)


def test_one_of_many_processes_that_open_a_store_wins_also_when_winners_are_killed(quick_store: Path) -> None:
    """Outcome: never two at once; the others get `StoreLocked`; every message of a winner exists."""
    dice = random.Random(int(os.environ.get("LOGSTORE_SEED") or random.randrange(1 << 32)))
    wins = max(WINS, int(seconds_to_spend(0) * 15))
    race = Race()
    ended: dict[int, float] = {}
    living: list[Contender] = []
    try:
        while race.count("won") < wins:
            while len(living) < CONTENDERS:
                living.append(Contender(quick_store, race.writer, dice.randrange(1 << 32)))
            race.listen()
            if dice.random() < 0.1:
                victim = living.pop(dice.randrange(len(living)))
                victim.kill()
                ended[victim.pid] = victim.ended_at or 0.0
    finally:
        for each in living:
            each.kill()
            ended[each.pid] = each.ended_at or 0.0
    while select.select([race.reader], [], [], 0)[0]:
        race.listen()
    holds = race.holds(ended)
    race.close()
    for (_, until), (since, _) in itertools.pairwise(holds):
        assert until <= since, "two processes had the store open at once"
    assert race.count("locked") > 0, "nobody was ever refused: nothing was tested"
    published = {f"{pid}.{more.strip()}" for pid, what, _, more in race.said if what == "published"}
    with logstore.open(quick_store) as store:
        there = [content.decode() for content in contents(store.queue("q"))]
    assert published <= set(there), "a killed winner's acknowledged message is lost"
    assert len(set(there)) == len(there)


# ---- fork in the middle ----


def fork_quietly() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # fork in a process with threads
        return os.fork()


def is_told_forked(calls: list[Callable[[], object]]) -> bool:
    for call in calls:
        try:
            call()
        except errors.StoreForked:
            continue
        return False
    return True


class Crowd:
    """Threads that use the store all the time, each with its acknowledged messages."""

    def __init__(self, store: MessageStore, threads: int) -> None:
        self.going = True
        self.acknowledged: list[list[bytes]] = [[] for _ in range(threads)]
        self.failures: list[BaseException] = []
        self._threads = [threading.Thread(target=self._work, args=(store, name)) for name in range(threads)]
        for thread in self._threads:
            thread.start()

    def _work(self, store: MessageStore, name: int) -> None:
        number = 0
        try:
            while self.going:
                number += 1
                content = b"%d %d " % (name, number) + bytes(100 if number % 10 else 30_000)
                if number % 3:
                    store.publish("q", content)
                else:
                    with store.transaction() as tx:
                        store.publish("q", content, transaction=tx)
                self.acknowledged[name].append(content)
        except BaseException as problem:  # noqa: BLE001 - the test raises it
            self.failures.append(problem)

    def count(self) -> int:
        return sum(map(len, self.acknowledged))

    def end(self) -> None:
        self.going = False
        for thread in self._threads:
            thread.join(PATIENCE_S)
        assert not any(thread.is_alive() for thread in self._threads), "a thread did not come back from the store"
        assert self.failures == []


def test_a_child_does_not_wait_for_a_lock_that_a_thread_of_its_parent_held(open_store: Open) -> None:
    store = open_store()
    held, forked = threading.Event(), threading.Event()

    def hold() -> None:
        with store._lock:
            held.set()
            forked.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    child = fork_quietly()
    if child == 0:
        signal.alarm(60)
        os._exit(0 if is_told_forked([store.in_doubt]) else 1)
    forked.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert store.in_doubt() == []
    store.close()


def test_a_fork_during_calls_of_other_threads_harms_neither_process(open_store: Open) -> None:
    """Outcome: each child gets `StoreForked` quickly; the parent's threads continue; nothing is lost."""
    store = open_store()
    queue = store.declare_queue("q")
    kept = store.publish(queue, b"before")
    crowd = Crowd(store, 4)
    transaction = store.begin()
    store.publish(queue, b"in a transaction", transaction=transaction)
    until = time.monotonic() + seconds_to_spend(0)
    forks = 0
    while forks < 40 or time.monotonic() < until:
        goal = crowd.count() + 2
        while crowd.count() < goal and not crowd.failures:
            time.sleep(0)
        forks += 1
        child = fork_quietly()
        if child == 0:
            signal.alarm(60)  # a child that waits for a lock that nobody here holds
            right = is_told_forked(
                [
                    lambda: store.publish(queue, b"child"),
                    lambda: store.load_content(kept),
                    lambda: transaction.commit(),
                    lambda: store.begin(),
                    lambda: store.force(),
                    lambda: store.in_doubt(),
                    lambda: queue.acquire(),
                ]
            )
            store.close()
            os._exit(0 if right else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    crowd.end()
    transaction.commit()
    store.close()
    there = contents(open_store().queue("q"))
    assert len(there) == crowd.count() + 2
    for name, acknowledged in enumerate(crowd.acknowledged):
        assert [each for each in there if each.startswith(b"%d " % name)] == acknowledged


def forked_worker(path: Path, answers: Any) -> None:
    """A pool's worker: uses the inherited store, and then opens its own."""
    inherited = INHERITED["store"]
    try:
        told = is_told_forked([lambda: inherited.publish("q", b"worker"), lambda: inherited.stats()])
        with logstore.open(path, segment_size=SMALL_SEGMENT) as own:
            own.publish(own.declare_queue("own"), b"worker's")
        answers.put(told)
    except BaseException as problem:  # noqa: BLE001 - told to the test, which raises
        answers.put(problem)


INHERITED: dict[str, MessageStore] = {}


def test_a_forked_worker_can_open_its_own_stores(open_store: Open, tmp_path: Path) -> None:
    """Outcome: the inherited store raises `StoreForked`, the worker can open others, the parent's store works."""
    store = INHERITED["store"] = open_store()
    store.declare_queue("q")
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        workers = [context.Process(target=forked_worker, args=(tmp_path / f"own{n}", answers)) for n in range(3)]
        for worker in workers:
            worker.start()
    for number in range(50):
        store.publish("q", b"%d" % number)
    for worker in workers:
        worker.join(PATIENCE_S)
        assert worker.exitcode == 0  # its exit handlers and finalizers have left the parent's store alone
    assert [answers.get() for _ in workers] == [True] * 3
    del INHERITED["store"]
    store.close()
    assert contents(open_store().queue("q")) == [b"%d" % number for number in range(50)]
    for number in range(3):
        with logstore.open(tmp_path / f"own{number}") as own:
            assert contents(own.queue("own")) == [b"worker's"]


def test_a_child_forked_while_another_thread_waits_for_the_lock_does_not_keep_it(open_store: Open) -> None:
    """Outcome: the store can be opened again after its opener has closed it, in spite of children."""
    reader, writer = os.pipe()
    children = []
    try:
        for _ in range(6):  # in most of them the other thread has the file open, and not yet the lock
            first = open_store()
            thread = threading.Thread(target=open_however_often, args=(first.path,))
            thread.start()
            time.sleep(0.03)
            children.append(fork_quietly())
            if children[-1] == 0:
                os.close(writer)
                os.read(reader, 1)  # until the parent has seen enough
                os._exit(0)
            first.close()
            thread.join(PATIENCE_S)
    finally:
        os.close(writer)
        os.close(reader)
        for child in children:
            os.waitpid(child, 0)


def open_however_often(path: Path) -> None:
    """Each try waits for a moment, and the other store is closed during one."""
    while True:
        with contextlib.suppress(errors.StoreLocked):
            logstore.open(path, segment_size=SMALL_SEGMENT).close()
            return
