"""Local transactions against SQLite: the same work, on the same disk, in one run.

Transactions of 1, 10 and 100 operations, from one thread and from 16. Operations alternate: put a message of 1 KiB on a
queue, take the oldest off it by its id. Every thread has a queue of its own, and enough messages on it to begin with.

* logstore: ``publish`` and ``dequeue`` in ``store.transaction()``, ``durability="strict"``.
* SQLite: ``INSERT`` and ``DELETE`` by primary key in ``messages(id, queue, body)``, WAL, ``synchronous=FULL``, a
  connection for each thread. It has one writer at a time, so the threads wait for each other in front of it, at a lock:
  that is faster than its busy handler, which sleeps.

The two take turns in slices of a fifth of a second or so, every second time backwards; a ratio is that of two slices
which stood beside each other, and the median of the ratios is what counts. How many transactions share a sync depends
on their speed, so the store's syncs are those that it counted while the clock ran; strace counts SQLite's in a short
run of its own, and the store's with one thread beside them. What is on the queues is compared at the end, body by
body, after both were opened again.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import re
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from figures import Figure, Ratio, conditions, readable
from rich.console import Console
from rich.table import Table

import logstore

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parent.parent

BODY_BYTES = 1024
DISTINCT = 251
OPERATIONS = (1, 10, 100)
THREADS = (1, 16)
WAITING = 200  # messages on each queue to begin with
SLICE_S = 0.2
SEGMENT_BYTES = 16 << 20
SEGMENTS = 8

BODIES = [os.urandom(BODY_BYTES) for _ in range(DISTINCT)]


class Wrong(Exception):
    """What is stored is not what was put there."""


class Worker:
    """One thread's queue: what is on it, by id, oldest first, and which body comes next."""

    def __init__(self, number: int) -> None:
        self.queue = f"queue {number}"
        self.waiting: deque[tuple[int, bytes]] = deque()
        self.done = 0  # operations

    def next_body(self) -> bytes:
        """Bodies take turns."""
        return BODIES[self.done // 2 % DISTINCT]


class Engine(Protocol):
    """A store under test."""

    name: str
    workers: list[Worker]

    def session(self, worker: Worker) -> Callable[[int], None]:
        """For one thread: does a transaction of so many operations."""

    def close(self) -> None:
        """In good order."""

    def contents(self) -> dict[str, list[bytes]]:
        """Opened again: the bodies on every queue in order."""


class Logstore:
    """The store."""

    name = "logstore"

    def __init__(self, directory: Path, threads: int) -> None:
        self.path = directory / "logstore"
        self.store = logstore.open(self.path, segment_size=SEGMENT_BYTES, initial_segments=SEGMENTS)
        self.workers = [Worker(number) for number in range(threads)]
        for worker in self.workers:
            bodies = [BODIES[number % DISTINCT] for number in range(WAITING)]
            ids = self.store.publish_many(self.store.declare_queue(worker.queue), bodies)
            worker.waiting.extend(zip(ids, bodies, strict=True))

    def session(self, worker: Worker) -> Callable[[int], None]:
        """A handle on the queue is all that is needed."""
        store, queue = self.store, self.store.queue(worker.queue)

        def transact(operations: int) -> None:
            with store.transaction() as transaction:
                for _ in range(operations):
                    if worker.done % 2:
                        store.dequeue(worker.waiting.popleft()[0], queue, transaction)
                    else:
                        body = worker.next_body()
                        worker.waiting.append((store.publish(queue, body, transaction=transaction), body))
                    worker.done += 1

        return transact

    def close(self) -> None:
        """In good order."""
        self.store.close()

    def contents(self) -> dict[str, list[bytes]]:
        """By the queues' own order."""
        with logstore.open(self.path, create=False) as store:
            return {queue.name: [message.content for message in queue.browse()] for queue in store.queues()}


class Sqlite:
    """A table."""

    name = "SQLite"

    def __init__(self, directory: Path, threads: int) -> None:
        self.path = directory / "messages.sqlite"
        self.turn = threading.Lock()
        self.connections: list[sqlite3.Connection] = []
        self.workers = [Worker(number) for number in range(threads)]
        made = self.connect()
        made.execute("CREATE TABLE messages (id INTEGER PRIMARY KEY, queue TEXT NOT NULL, body BLOB NOT NULL)")
        made.execute("BEGIN IMMEDIATE")
        for worker in self.workers:
            for number in range(WAITING):
                body = BODIES[number % DISTINCT]
                self.insert(made, worker, body)
        made.execute("COMMIT")

    def connect(self) -> sqlite3.Connection:
        """As durable as it can be, with as much cache as it wants."""
        made = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False, timeout=60)
        mode = made.execute("PRAGMA journal_mode=WAL").fetchone()
        made.execute("PRAGMA synchronous=FULL")
        made.execute("PRAGMA cache_size=-65536")
        if mode != ("wal",) or made.execute("PRAGMA synchronous").fetchone() != (2,):
            raise Wrong("SQLite does not do what it was told")
        self.connections.append(made)
        return made

    @staticmethod
    def insert(connection: sqlite3.Connection, worker: Worker, body: bytes) -> None:
        """One message."""
        made = connection.execute("INSERT INTO messages (queue, body) VALUES (?, ?)", (worker.queue, body))
        assert made.lastrowid is not None
        worker.waiting.append((made.lastrowid, body))

    def session(self, worker: Worker) -> Callable[[int], None]:
        """A connection of its own, and its turn."""
        connection = self.connect()

        def transact(operations: int) -> None:
            with self.turn:
                connection.execute("BEGIN IMMEDIATE")
                for _ in range(operations):
                    if worker.done % 2:
                        connection.execute("DELETE FROM messages WHERE id = ?", (worker.waiting.popleft()[0],))
                    else:
                        self.insert(connection, worker, worker.next_body())
                    worker.done += 1
                connection.execute("COMMIT")

        return transact

    def close(self) -> None:
        """Every connection."""
        for connection in self.connections:
            connection.close()

    def contents(self) -> dict[str, list[bytes]]:
        """By the ids' order."""
        found: dict[str, list[bytes]] = {worker.queue: [] for worker in self.workers}
        self.connections = []
        for queue, body in self.connect().execute("SELECT queue, body FROM messages ORDER BY id"):
            found[queue].append(body)
        self.close()
        return found


# ---- a slice ----


@dataclass
class Run:
    """One engine with its threads' sessions."""

    engine: Engine
    sessions: list[Callable[[int], None]]
    done: int = 0  # transactions of the last slice

    def rate(self, operations: int, seconds: float) -> float:
        """Transactions a second, each durable before its thread's next."""
        counts = [0] * len(self.sessions)
        ready = threading.Barrier(len(self.sessions) + 1)

        def work(number: int) -> None:
            transact = self.sessions[number]
            ready.wait()
            end = time.perf_counter() + seconds
            while time.perf_counter() < end:
                transact(operations)
                counts[number] += 1

        threads = [threading.Thread(target=work, args=(number,)) for number in range(len(self.sessions))]
        for thread in threads:
            thread.start()
        ready.wait()
        start = time.perf_counter()
        for thread in threads:
            thread.join()
        seconds = time.perf_counter() - start
        self.done = sum(counts)
        return self.done / seconds

    def times(self, operations: int, transactions: int) -> None:
        """So many of each thread, for counting syncs."""

        def work(number: int) -> None:
            for _ in range(transactions):
                self.sessions[number](operations)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(len(self.sessions))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def opened(kind: type[Logstore | Sqlite], directory: Path, threads: int) -> Run:
    """With messages on every queue."""
    engine = kind(directory, threads)
    return Run(engine, [engine.session(worker) for worker in engine.workers])


def verify(engine: Engine) -> None:
    """After it was closed."""
    expected = {worker.queue: [body for _, body in worker.waiting] for worker in engine.workers}
    if engine.contents() != expected:
        raise Wrong(f"what is on the queues of {engine.name} is not what was put there")


# ---- the run ----


@dataclass
class Case:
    """One row of the table."""

    threads: int
    operations: int
    sqlite: Figure
    store: Figure
    store_syncs: int = 0  # while the clock ran
    store_transactions: int = 0
    strace_syncs: dict[str, float] = field(default_factory=dict)  # a transaction, by engine

    @property
    def ratio(self) -> Ratio:
        """Slice by slice."""
        return Ratio(f"{self.threads} threads, {self.operations}", BODY_BYTES, self.store, self.sqlite, None)


def syncs_of(run: Run) -> int:
    """As the store counts them."""
    assert isinstance(run.engine, Logstore)
    return int(run.engine.store.stats()["syncs"])


def measure(cases: list[Case], directory: Path, rounds: int, slices: int, console: Console) -> None:
    """Fills the cases' samples."""
    for round_number in range(rounds):
        for threads in THREADS:
            with console.status(f"round {round_number + 1} of {rounds}: {threads} threads"):
                made = Path(tempfile.mkdtemp(dir=directory))
                runs = {kind.name: opened(kind, made, threads) for kind in (Sqlite, Logstore)}
                os.sync()  # what was written and removed before is not to be paid for here
                gc.collect()
                for number in range(slices):
                    for case in cases:
                        if case.threads != threads:
                            continue
                        turns = [(case.sqlite, runs["SQLite"]), (case.store, runs["logstore"])]
                        before = syncs_of(runs["logstore"])
                        for figure, run in turns if number % 2 == 0 else reversed(turns):
                            figure.samples.append(run.rate(case.operations, SLICE_S))
                        case.store_syncs += syncs_of(runs["logstore"]) - before
                        case.store_transactions += runs["logstore"].done
                for run in runs.values():
                    run.engine.close()
                    verify(run.engine)
                shutil.rmtree(made)


COUNTED = 40  # transactions of each thread


def count_syncs(cases: list[Case], directory: Path) -> str:
    """Has strace count; how, or why not."""
    strace = shutil.which("strace")
    if strace is None:
        return "not counted: there is no strace here"
    for case in cases:
        for name in ("SQLite", "logstore") if case.threads == 1 else ("SQLite",):
            made = Path(tempfile.mkdtemp(dir=directory))
            trace = made / "trace"
            what = ["--count-once", name, str(case.threads), str(case.operations), "--dir", str(made)]
            calls = "getsid,fsync,fdatasync,msync,sync_file_range"
            subprocess.run(
                [strace, "-f", "-qq", "-o", trace, "-e", f"trace={calls}", sys.executable, __file__, *what], check=True
            )
            inside = found = 0
            for line in trace.read_text().splitlines():
                inside ^= "getsid(" in line
                found += bool(inside) and bool(re.search(r"\b(fsync|fdatasync|msync|sync_file_range)\(", line))
            case.strace_syncs[name] = found / (COUNTED * case.threads)
            shutil.rmtree(made)
    return f"strace, {COUNTED} transactions of each thread"


def count_once(name: str, threads: int, operations: int, directory: Path) -> None:
    """In a process of its own, under strace."""
    run = opened(Logstore if name == "logstore" else Sqlite, directory, threads)
    os.getsid(0)  # a mark
    run.times(operations, COUNTED)
    os.getsid(0)
    run.engine.close()


# ---- telling ----


def quartiles(samples: list[float]) -> str:
    """The middle half of them."""
    lower, _, upper = statistics.quantiles(samples, n=4) if len(samples) > 1 else samples * 3
    return f"{readable(lower)}–{readable(upper)}"


def tell(console: Console, known: dict[str, Any], cases: list[Case]) -> None:
    """Conditions and one table."""
    for name, value in known.items():
        console.print(f"[dim]{name.replace('_', ' ')}:[/dim] {value}", highlight=False)
    table = Table(title="Transactions a second (median, quartiles)")
    for heading in ("threads", "operations", "SQLite", "logstore", "ratio", "syncs a transaction"):
        table.add_column(heading, justify="right")
    for case in cases:
        ratio = case.ratio
        counted = f"{case.strace_syncs['SQLite']:.2f}" if "SQLite" in case.strace_syncs else "?"
        syncs = f"{counted} / {case.store_syncs / case.store_transactions:.2f}"
        table.add_row(
            str(case.threads),
            str(case.operations),
            f"{readable(case.sqlite.median)} ({quartiles(case.sqlite.samples)})",
            f"{readable(case.store.median)} ({quartiles(case.store.samples)})",
            f"{ratio.median:.2f} ({quartiles(ratio.samples)})",
            syncs,
        )
    console.print(table)


def as_json(known: dict[str, Any], cases: list[Case]) -> str:
    """Everything."""
    rows = [asdict(case) | {"ratio_median": case.ratio.median, "ratios": case.ratio.samples} for case in cases]
    return json.dumps({"conditions": known, "cases": rows}, indent=2)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dir", type=Path, default=ROOT / "build" / "benchmarks", help="the disk that is measured")
    parser.add_argument("--repeat", type=int, default=5, help="rounds (5)")
    parser.add_argument("--slices", type=int, default=10, help="of each figure in a round (10)")
    parser.add_argument("--json", type=Path, help="also write everything into this file")
    parser.add_argument("--count-once", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.count_once is not None:
        name, threads, operations = options.count_once
        count_once(name, int(threads), int(operations), options.dir)
        return
    if options.repeat < 1 or options.slices < 1:
        parser.error("--repeat and --slices are at least 1")
    options.dir.mkdir(parents=True, exist_ok=True)
    console = Console(width=max(Console().width, 120))
    known = conditions(options.dir.resolve()) | {
        "sqlite": f"{sqlite3.sqlite_version}, WAL, synchronous=FULL",
        "logstore": f'segments of {SEGMENT_BYTES >> 20} MiB, durability="strict": pwrite and fdatasync a batch',
        "bodies": f"{BODY_BYTES} bytes; operations alternate between put and take",
        "rounds": f"{options.repeat} of {options.slices} slices",
    }
    cases = [
        Case(t, n, Figure(f"SQLite {t} {n}", BODY_BYTES, "/s"), Figure(f"logstore {t} {n}", BODY_BYTES, "/s"))
        for t in THREADS
        for n in OPERATIONS
    ]
    with tempfile.TemporaryDirectory(prefix="transactions-", dir=options.dir) as made:
        measure(cases, Path(made), options.repeat, options.slices, console)
        known["load_at_end"] = os.getloadavg()[0]
        with console.status("counting syncs"):
            known["syncs_counted_by"] = count_syncs(cases, Path(made))
    tell(console, known, cases)
    if options.json is not None:
        options.json.write_text(as_json(known, cases) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
