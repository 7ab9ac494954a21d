"""Measures what changes of the catalog cost those who publish, and what a batch of names saves.

    python benchmarks/declaring.py [publishing] [batches] [--dir DIR] [--slices 20] [--seconds 0.5] [--commits 200]

``publishing``: the rate of durable publishes (each waits, or 256 are under way) while another thread declares and
deletes queues, in slices that alternate with slices in which another process commits the same rows to a SQLite file of
its own. So both have the same load of the disk, and the ratio is what the interpreter's work for a commit takes from
the publisher. The CPU time of a commit, there and here, depends less on what else the machine does.

``batches``: 1,000 queues declared, bound, unbound and deleted one by one, and in a batch each.
"""

from __future__ import annotations

import argparse
import collections
import json
import multiprocessing
import os
import queue
import shutil
import sqlite3
import statistics
import tempfile
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import logstore

if TYPE_CHECKING:
    from collections.abc import Callable

    from logstore import MessageStore, Queue

BODY = b"x" * 100
WINDOW = 256
QUEUES = 1000


def paced(commits: int, goes: Any, ends: Any, commit: Callable[[int], object]) -> tuple[int, float]:
    """Commits at this rate, as far as the disk can, while ``goes`` is set; returns their number and their CPU time."""
    number, spent = 0, 0.0
    while not ends.is_set():
        goes.wait()
        began, first, cpu = time.perf_counter(), number, time.thread_time()
        while goes.is_set() and not ends.is_set():
            commit(number)
            number += 1
            time.sleep(max(0.0, began + (number - first) / commits - time.perf_counter()))
        spent += time.thread_time() - cpu
    return number, spent


def commit_rows(file: Path, commits: int, goes: Any, ends: Any, done: Any) -> None:
    """The other process: the statements of a declaration and of a deletion, in turns."""
    with closing(sqlite3.connect(file, isolation_level=None)) as database:
        for setting in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
            database.execute(f"PRAGMA {setting}").fetchall()
        uuid, revision, next_id = database.execute("SELECT uuid, revision, next_queue_id FROM store").fetchone()

        def commit(number: int) -> None:
            queue_id = next_id + number // 2
            database.execute("BEGIN IMMEDIATE")
            database.execute(
                "UPDATE store SET next_queue_id=?, revision=? WHERE uuid=? AND revision=?",
                (queue_id + 1, revision + number + 1, uuid, revision + number),
            )
            if number % 2:
                database.execute("DELETE FROM queues WHERE id=?", (queue_id,))
            else:
                row = queue_id, f"made{queue_id}", "{}", None
                database.execute("INSERT INTO queues (id, name, arguments, dead_letter) VALUES (?, ?, ?, ?)", row)
            database.execute("COMMIT")

        commit(0)
        commit(1)
        done.put((0, 0.0))  # it is ready
        done.put(paced(commits, goes, ends, lambda number: commit(number + 2)))


class Committer:
    """Commits while it is told to go: in a thread of this process, or in another process."""

    def __init__(self, goes: Any, ends: Any, done: Any, works: Any) -> None:
        self._goes, self._ends, self._done, self._works = goes, ends, done, works

    @classmethod
    def here(cls, store: MessageStore, commits: int) -> Self:
        """Declares a queue and deletes it, in turns."""
        goes, ends, done = threading.Event(), threading.Event(), queue.SimpleQueue[tuple[int, float]]()

        def commit(number: int) -> None:
            if number % 2:
                store.delete_queue("made", wait=False)
            else:
                store.declare_queue("made")

        return cls(goes, ends, done, threading.Thread(target=lambda: done.put(paced(commits, goes, ends, commit))))

    @classmethod
    def elsewhere(cls, file: Path, commits: int) -> Self:
        """Commits the same rows to this file."""
        fresh = multiprocessing.get_context("spawn")
        goes, ends, done = fresh.Event(), fresh.Event(), fresh.Queue()
        return cls(goes, ends, done, fresh.Process(target=commit_rows, args=(file, commits, goes, ends, done)))

    def start(self) -> None:
        """Begins, and waits for the word to go."""
        self._works.start()

    def ready(self) -> None:
        """Waits until the other process is ready."""
        self._done.get()

    def during(self, work: Callable[[], float]) -> float:
        """The result of the work, beside the commits."""
        self._goes.set()
        try:
            return work()
        finally:
            self._goes.clear()

    def end(self) -> tuple[int, float]:
        """The number of commits, and the seconds of CPU time that they took."""
        self._ends.set()
        self._goes.set()
        found: tuple[int, float] = self._done.get()
        self._works.join()
        return found


def waiting(store: MessageStore, to: Queue, until: float) -> int:
    """Each publish waits until it is durable."""
    count = 0
    while time.perf_counter() < until:
        store.publish(to, BODY)
        count += 1
    return count


def windowed(store: MessageStore, to: Queue, until: float) -> int:
    """At most 256 publishes are not durable yet."""
    under_way: collections.deque[int] = collections.deque()
    count = 0
    while time.perf_counter() < until:
        store.publish(to, BODY, wait=False)
        under_way.append(store.next_lsn)
        if len(under_way) > WINDOW:
            oldest = under_way.popleft()
            if store.durable_lsn < oldest:
                store.force(oldest)
        count += 1
    store.force()
    return count


WAYS = {"each waits": waiting, f"{WINDOW} under way": windowed}


def rate(store: MessageStore, to: Queue, publish: Callable[..., int], seconds: float) -> float:
    """Durable publishes a second."""
    began = time.perf_counter()
    count = publish(store, to, began + seconds)
    spent = time.perf_counter() - began
    to.purge()
    return count / spent


def publishing(directory: Path, options: argparse.Namespace) -> None:
    """Slices of both in turns, for each way to publish."""
    for way, publish in WAYS.items():
        with logstore.open(directory / way) as store:
            store.declare_queue("q")
        shutil.copy(store.path / "catalog.sqlite", directory / "other.sqlite")  # closed, it has all rows
        with logstore.open(directory / way) as store:
            to = store.queue("q")
            elsewhere = Committer.elsewhere(directory / "other.sqlite", options.commits)
            elsewhere.start()
            elsewhere.ready()
            here = Committer.here(store, options.commits)
            here.start()
            found = []
            for _ in range(options.slices):

                def measure() -> float:
                    return rate(store, to, publish, options.seconds)  # noqa: B023 - called at once

                found.append((elsewhere.during(measure), here.during(measure)))
            (rows, rows_cpu), (names, names_cpu) = elsewhere.end(), here.end()
        beside, declaring = (statistics.mean(column) for column in zip(*found, strict=True))
        report = {
            "publishing": way,
            "beside_another_process_s": round(beside),
            "while_declaring_s": round(declaring),
            "ratio": round(declaring / beside, 3),
            "quartiles": [round(one, 2) for one in statistics.quantiles([here_ / there for there, here_ in found])],
            "commits_s": [round(number / options.seconds / options.slices) for number in (rows, names)],
            "cpu_us_a_commit": [round(rows_cpu / rows * 1e6), round(names_cpu / names * 1e6)],
        }
        print(json.dumps(report), flush=True)
        (directory / "other.sqlite").unlink()


def batches(directory: Path, _: argparse.Namespace) -> None:
    """Seconds of each step, one by one and in a batch."""
    from logstore import BindingRow, QueueDeclaration

    names = [f"q{number}" for number in range(QUEUES)]
    bindings = [BindingRow("x", name, "k") for name in names]

    def each(call: Callable[[Any], object]) -> Callable[[list[Any]], None]:
        def calls(given: list[Any]) -> None:
            for one in given:
                call(one)

        return calls

    with logstore.open(directory / "batches") as store:
        store.declare_exchange("x")
        steps: dict[str, tuple[list[Any], Callable[[Any], object], Callable[[list[Any]], object]]] = {
            "declare": (names, store.declare_queue, lambda all_: store.declare_queues(map(QueueDeclaration, all_))),
            "bind": (bindings, lambda one: store.bind(one.exchange, one.queue, one.key), store.bind_many),
            "unbind": (bindings, lambda one: store.unbind(one.exchange, one.queue, one.key), store.unbind_many),
            "delete": (names, store.delete_queue, store.delete_queues),
        }
        spent: dict[str, dict[str, float]] = {step: {} for step in steps}
        for way in ("one by one", "batch"):
            for step, (given, call, batch) in steps.items():
                began = time.perf_counter()
                (batch if way == "batch" else each(call))(given)
                spent[step][f"{way}_ms"] = round((time.perf_counter() - began) * 1000, 1)
    print(json.dumps({"batches": QUEUES, **spent}), flush=True)


PARTS = {"publishing": publishing, "batches": batches}


def main() -> None:
    """Prints the figures as JSON, one line each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], default=[])
    parser.add_argument("--dir", default=None)
    parser.add_argument("--slices", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--commits", type=int, default=200)
    options = parser.parse_args()
    print(json.dumps({"load": [round(one, 2) for one in os.getloadavg()]}), flush=True)
    for part in options.parts or PARTS:
        with tempfile.TemporaryDirectory(dir=options.dir) as directory:
            PARTS[part](Path(directory), options)
    print(json.dumps({"load": [round(one, 2) for one in os.getloadavg()]}))


if __name__ == "__main__":
    main()
