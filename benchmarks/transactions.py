"""Local transactions compared with SQLite: the same work on the same disk, in turn.

Transactions of 1, 10 and 100 operations, from one thread and from 16. Operations alternate: publish a message of 1 KiB
on a queue, dequeue the oldest by its id. Every thread has its own queue, which has enough messages at the start.

* logstore: ``publish`` and ``dequeue`` in ``store.transaction()``, ``durability="strict"``.
* SQLite: ``INSERT`` and ``DELETE`` by primary key in ``messages(id, queue, body)``, WAL, ``synchronous=FULL``, a
  connection for each thread. It has one writer at a time, so the threads wait for each other in front of it, at a lock:
  that is faster than its busy handler, which sleeps.

How many transactions share a sync depends on their speed, so the store's syncs are those that it counted during the
measurement; ``syncs.py`` counts both with strace in a short run. At the end both are opened again, and all bodies on
the queues are compared.
"""

from __future__ import annotations

import gc
import os
import shutil
import sqlite3
import tempfile
import threading
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from peers.base import Wrong
from slices import settle

import logstore

if TYPE_CHECKING:
    from collections.abc import Callable

    from plan import Context

SUITE = "transactions"
WORK, PROCESSOR = "put and take", "put and take, processor"
RATE, SYNCS = "transactions a second", "syncs a transaction"
BODY_BYTES = 1024
DISTINCT = 251
OPERATIONS = (1, 10, 100)
THREADS = (1, 16)
WAITING = 200  # messages on each queue to begin with
SEGMENT_BYTES = 16 << 20
SEGMENTS = 8

BODIES = [os.urandom(BODY_BYTES) for _ in range(DISTINCT)]


class Worker:
    """One thread's queue: its messages by id, the oldest first, and the next body."""

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
        """For one thread: runs a transaction with this many operations."""

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
        """Full durability, and a large cache."""
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

    def measure(self, operations: int, seconds: float) -> dict[str, float]:
        """For one slice, in which each transaction is durable before its thread's next."""
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
        syncs = self._syncs()
        ready.wait()
        start, processor = time.perf_counter(), time.process_time()
        for thread in threads:
            thread.join()
        seconds, processor = time.perf_counter() - start, time.process_time() - processor
        done = sum(counts)
        made = {RATE: done / seconds, PROCESSOR: processor / done * 1e6, SYNCS: (self._syncs() - syncs) / done}
        settle()
        return made

    def _syncs(self) -> int:
        """As the store counts them."""
        return int(self.engine.store.stats()["syncs"]) if isinstance(self.engine, Logstore) else 0

    def close(self) -> None:
        """Also compares the messages that are left."""
        self.engine.close()
        verify(self.engine)

    def times(self, operations: int, transactions: int) -> None:
        """Run this many transactions in each thread, to count syncs."""

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
        raise Wrong(f"the queues of {engine.name} do not have the messages that were published")


# ---- the suite ----


def _step(context: Context, name: str, run: Any, threads: int, operations: int) -> Callable[[], None]:
    """A slice of one engine."""
    how = f"{threads} thread{'s' if threads > 1 else ''}, {operations}"
    sync = "WAL, synchronous=FULL" if name == Sqlite.name else "strict: fdatasync a group"
    row = context.results.row(SUITE, name, WORK, how, BODY_BYTES, unit="transactions/s", sync=sync)
    processor = context.results.row(SUITE, name, PROCESSOR, how, BODY_BYTES, unit="µs of CPU each", sync=sync)

    def measure() -> None:
        told = run.measure(operations, context.plan.seconds)
        row.samples.append(told[RATE])
        processor.samples.append(told[PROCESSOR])
        if name != Sqlite.name:
            row.notes.setdefault(SYNCS, []).append(told[SYNCS])

    return measure


def run(context: Context) -> None:
    """One round."""
    for threads in THREADS:
        context.say(f"transactions, {threads} threads")
        made = Path(tempfile.mkdtemp(prefix="transactions-", dir=context.directory))
        runs = [(Sqlite.name, context.build_of_others.make(opened, Sqlite, made, threads))]
        for build in context.builds:
            directory = made / build.name
            directory.mkdir()
            runs.append((build.name, build.make(opened, Logstore, directory, threads)))
        os.sync()  # earlier writes and removals must not be charged to this run
        gc.collect()
        for operations in OPERATIONS:
            steps = [_step(context, name, each, threads, operations) for name, each in runs]
            turns = context.plan.turns_of_targets if operations >= 10 else context.plan.turns
            for turn in range(turns):
                for step in context.turned(steps, turn):
                    step()
        for _, each in runs:
            each.close()
        shutil.rmtree(made)
