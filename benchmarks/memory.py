"""The cost of a live message in memory, and whether an operation costs the same with any number of live messages.

* Memory: a separate process publishes messages of 8 bytes on one queue, and its resident memory is read at 1, 2, 5 and
  10 million (and at the start, after a warm-up of publishes and dequeues). The growth is that of the core's table:
  Python keeps nothing of a message.
* Flatness: stores with 10^4, 10^6 and 10^7 live messages (or other ``--levels``) are open at the same time and run
  short slices in turn: publishes and dequeues without waiting, singly, in batches of 1000, in transactions of 10
  (published, staged and enqueued, dequeued), and acquired and accepted in hundreds; from the front, as queues are
  consumed, and at random, which is the worst case for memory access. The result is the caller's processor time for one
  message; that of the whole process, with the flusher, is reported, too. A slice publishes as many messages as it
  dequeues.
"""

from __future__ import annotations

import argparse
import array
import gc
import itertools
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from figures import Figure, conditions
from rich.console import Console
from rich.table import Table

import logstore

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "benchmarks"
MIB = 1 << 20
QUEUE = "waiting"
CONTENT = b"8 bytes."
BATCH = 1000
SINGLES = 500  # of a slice
BATCHES = 2
TX_OPERATIONS = 10
TXS = 20
ACQUIRED = 100
BYTES_TARGET = 80
FLAT_TARGET = 1.3


def fill(store: logstore.MessageStore, count: int) -> array.array[int]:
    """Publish this many more; their ids."""
    queue = store.queue(QUEUE)
    contents = [CONTENT] * BATCH
    ids = array.array("Q")
    for _ in range(count // BATCH):
        ids.extend(store.publish_many(queue, contents, wait=False))
    store.force()
    return ids


# ---- memory ----


def fill_and_forget(store: logstore.MessageStore, count: int) -> None:
    """Publish this many more and keep no ids: a list of them would leave holes in this process's heap."""
    queue = store.queue(QUEUE)
    contents = [CONTENT] * BATCH
    for _ in range(count // BATCH):
        store.publish_many(queue, contents, wait=False)
    store.force()


def resident() -> int:
    """Bytes of this process's own memory that are in use."""
    gc.collect()
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Anonymous:"))


def memory_once(path: Path, steps: list[int]) -> None:
    """In a process of its own: resident bytes at each number of live messages."""
    with logstore.open(path, segment_size=16 * MIB) as store:
        queue = store.declare_queue(QUEUE)
        for _ in range(3):  # every write buffer is touched, and every code path
            store.dequeue_many(fill(store, 50 * BATCH), queue)
            large = [store.publish(queue, bytes(256 << 10), wait=False) for _ in range(200)]
            store.dequeue_many(large, queue)
        store.checkpoint()
        said = [(0, resident())]
        for count in steps:
            fill_and_forget(store, count - said[-1][0])
            said.append((count, resident()))
        print(json.dumps(said), flush=True)
        os._exit(0)


def measure_memory(directory: Path, steps: list[int]) -> list[tuple[int, int]]:
    done = subprocess.run(
        [sys.executable, __file__, "memory", directory / "memory", *map(str, steps)],
        check=True,
        capture_output=True,
        text=True,
    )
    shutil.rmtree(directory / "memory")
    return [(count, size) for count, size in json.loads(done.stdout)]


# ---- flatness ----


class Level:
    """A store with this many live messages, and its results: nanoseconds for one message."""

    def __init__(self, path: Path, live: int) -> None:
        self.live = live
        self.store = logstore.open(path, segment_size=16 * MIB)
        self.queue = self.store.declare_queue(QUEUE)
        self.ids = fill(self.store, live)
        self._front = 0
        self.dice = random.Random(live)
        self.accepted: set[int] = set()  # of those whose ids are still in the list
        self.caller: dict[str, list[float]] = {}
        self.process: dict[str, list[float]] = {}

    def from_front(self, count: int) -> array.array[int]:
        """The oldest live messages."""
        taken = array.array("Q")
        while len(taken) < count:
            message_id = self.ids[self._front]
            self._front += 1
            if message_id in self.accepted:
                self.accepted.discard(message_id)
            else:
                taken.append(message_id)
        return taken

    def at_random(self, count: int) -> array.array[int]:
        """Random messages of the younger half."""
        ids, half = self.ids, (self._front + len(self.ids)) // 2
        taken = array.array("Q")
        while len(taken) < count:
            at = self.dice.randrange(half, len(ids))
            ids[at], ids[-1] = ids[-1], ids[at]
            message_id = ids.pop()
            if message_id in self.accepted:
                self.accepted.discard(message_id)
            else:
                taken.append(message_id)
        return taken

    def time(self, what: str, count: int, work: Callable[[], object]) -> None:
        """Processor time of the caller's thread and of the whole process."""
        process, caller = time.process_time_ns(), time.thread_time_ns()
        work()
        self.caller.setdefault(what, []).append((time.thread_time_ns() - caller) / count)
        self.store.force()
        self.process.setdefault(what, []).append((time.process_time_ns() - process) / count)

    def slice(self) -> None:
        """Each kind of operation once; as many messages are published as dequeued."""
        store, queue, new = self.store, self.queue, array.array("Q")

        def publish() -> None:
            for _ in range(2 * SINGLES):
                new.append(store.publish(queue, CONTENT, wait=False))

        def publish_many() -> None:
            for _ in range(2 * BATCHES):
                new.extend(store.publish_many(queue, [CONTENT] * BATCH, wait=False))

        self.time("publish", 2 * SINGLES, publish)
        self.time("publish_many", 2 * BATCHES * BATCH, publish_many)
        for name, chosen in (("front", self.from_front), ("random", self.at_random)):
            singles, many = chosen(SINGLES), [chosen(BATCH) for _ in range(BATCHES)]

            def dequeue(ids: array.array[int] = singles) -> None:
                for message_id in ids:
                    store.dequeue(message_id, queue, wait=False)

            def dequeue_many(batches: list[array.array[int]] = many) -> None:
                for ids in batches:
                    store.dequeue_many(ids, queue, wait=False)

            self.time(f"dequeue, {name}", SINGLES, dequeue)
            self.time(f"dequeue_many, {name}", BATCHES * BATCH, dequeue_many)
        self.slice_of_transactions(new)
        self.slice_of_deliveries(new)
        self.ids.extend(new)

    def slice_of_transactions(self, new: array.array[int]) -> None:
        """Replace the dequeued messages: half of them published, half staged and enqueued."""
        store, queue = self.store, self.queue
        chosen = {"front": self.from_front(TXS * TX_OPERATIONS), "random": self.at_random(TXS * TX_OPERATIONS)}

        def publish() -> None:
            for _ in range(TXS):
                transaction = store.begin()
                for _ in range(TX_OPERATIONS):
                    new.append(store.publish(queue, CONTENT, transaction=transaction))
                transaction.commit(wait=False)

        def enqueue() -> None:
            for _ in range(TXS):
                staged = [store.stage(content=CONTENT, wait=False) for _ in range(TX_OPERATIONS)]
                transaction = store.begin()
                for message_id in staged:
                    store.enqueue(message_id, queue, transaction=transaction)
                transaction.commit(wait=False)
                new.extend(staged)

        self.time("publish, tx of 10", TXS * TX_OPERATIONS, publish)
        self.time("stage and enqueue, tx of 10", TXS * TX_OPERATIONS, enqueue)
        for name, ids in chosen.items():

            def dequeue(ids: array.array[int] = ids) -> None:
                for first in range(0, len(ids), TX_OPERATIONS):
                    transaction = store.begin()
                    for message_id in ids[first : first + TX_OPERATIONS]:
                        store.dequeue(message_id, queue, transaction=transaction)
                    transaction.commit(wait=False)

            self.time(f"dequeue, tx of 10, {name}", TXS * TX_OPERATIONS, dequeue)

    def slice_of_deliveries(self, new: array.array[int]) -> None:
        """Acquire at the front and accept; publish as many."""
        for _ in range(2):
            new.extend(self.store.publish_many(self.queue, [CONTENT] * ACQUIRED, wait=False))
        self.store.force()
        accepted: list[int] = []

        def work() -> None:
            deliveries = self.queue.acquire(ACQUIRED)
            accepted.extend(delivery.id for delivery in deliveries)
            self.queue.accept_many(deliveries, wait=False)

        self.time("acquire and accept_many, 100", ACQUIRED, work)
        self.time("acquire and accept_many, 100", ACQUIRED, work)
        self.accepted.update(accepted)

    def samples(self) -> dict[str, list[float]]:
        """The caller's nanoseconds for one message, by operation."""
        return self.caller

    def close(self) -> None:
        """Also compares the number of messages."""
        if self.queue.depth != self.live:
            raise SystemExit(f"memory: {self.queue.depth} messages are left, not {self.live}")
        self.store.close()


def measure_flatness(directory: Path, lives: list[int], rounds: int) -> list[Level]:
    levels = [Level(directory / f"live-{live}", live) for live in lives]
    gc.collect()
    for number in range(rounds):
        for level in levels if number % 2 == 0 else reversed(levels):
            level.slice()
    for level in levels:
        level.close()
    return levels


# ---- telling ----


def bytes_each(said: list[tuple[int, int]]) -> list[float]:
    """For a message: of each step but the first, which reuses warmed-up memory, and of all steps together."""
    each = [(size - least) / (count - before) for (before, least), (count, size) in itertools.pairwise(said)]
    return [*each[1:], (said[-1][1] - said[0][1]) / said[-1][0]]


def tell_memory(console: Console, said: list[tuple[int, int]]) -> None:
    table = Table(title="Memory of one-queue messages", title_justify="left")
    for name in ("live", "resident, all of it", "bytes a message", "since the step before"):
        table.add_column(name, justify="right")
    for (before, least), (count, size) in itertools.pairwise(said):
        mean = (size - said[0][1]) / count
        table.add_row(f"{count:,}", f"{size / MIB:.0f} MiB", f"{mean:.1f}", f"{(size - least) / (count - before):.1f}")
    console.print(table)
    worst = max(bytes_each(said))
    verdict = "met" if worst <= BYTES_TARGET else "missed"
    console.print(f"at most {worst:.1f} bytes for each more; {BYTES_TARGET}: {verdict}", highlight=False)


def ratio_of(levels: list[Level], what: str) -> float:
    """The ratio of the most expensive level to the cheapest, from the caller's medians."""
    medians = [statistics.median(level.caller[what]) for level in levels]
    return max(medians) / min(medians)


def as_figures(levels: list[Level]) -> dict[str, Any]:
    """The JSON form: a figure for each operation and level, and the flatness of each operation."""
    figures = [
        asdict(figure) | {"median": figure.median}
        for level in levels
        for whose, times in (("caller", level.caller), ("process", level.process))
        for what, samples in times.items()
        for figure in [Figure(f"{what}, {level.live} live, {whose}", len(CONTENT), "ns of processor time", samples)]
    ]
    flat = {what: ratio_of(levels, what) for what in levels[0].caller}
    verdicts = [
        {"name": what, "ratio": ratio, "target": FLAT_TARGET, "met": ratio <= FLAT_TARGET}
        for what, ratio in flat.items()
    ]
    return {"levels": [level.live for level in levels], "figures": figures, "flatness": verdicts}


def tell_flatness(console: Console, levels: list[Level]) -> None:
    table = Table(title="Processor time of one message, ns: the caller (the whole process)", title_justify="left")
    table.add_column("")
    for level in levels:
        table.add_column(f"{level.live:,} live", justify="right")
    table.add_column("most / least, the caller", justify="right")
    for what in levels[0].caller:
        medians = [statistics.median(level.caller[what]) for level in levels]
        cells = [
            f"{median:.0f} ({statistics.median(level.process[what]):.0f})"
            for median, level in zip(medians, levels, strict=True)
        ]
        ratio = ratio_of(levels, what)
        table.add_row(what, *cells, f"{ratio:.2f} {'met' if ratio <= FLAT_TARGET else 'missed'}")
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dir", type=Path, default=BUILD, help="where to write")
    parser.add_argument("--most", type=int, default=10_000_000, help="live messages (10 million)")
    parser.add_argument("--levels", default="10000,1000000,10000000", help="live messages side by side, by comma")
    parser.add_argument("--rounds", type=int, default=40, help="slices on each store (40)")
    parser.add_argument("--only", choices=("memory", "flatness"), help="one of the two")
    parser.add_argument("--json", type=Path, help="also write everything into this file")
    options = parser.parse_args()
    options.dir.mkdir(parents=True, exist_ok=True)
    console = Console(width=160)
    document: dict[str, Any] = {"conditions": conditions(options.dir.resolve())}
    with tempfile.TemporaryDirectory(prefix="memory-", dir=options.dir) as made:
        if options.only != "flatness":
            with console.status("memory"):
                said = measure_memory(Path(made), [options.most // part for part in (10, 5, 2, 1)])
            document["memory"] = said
            tell_memory(console, said)
        if options.only != "memory":
            with console.status("flatness"):
                lives = [live for live in map(int, options.levels.split(",")) if live <= options.most]
                levels = measure_flatness(Path(made), lives, options.rounds)
            document |= as_figures(levels)
            tell_flatness(console, levels)
    for key, value in document["conditions"].items():
        console.print(f"[dim]{key.replace('_', ' ')}:[/dim] {value}", highlight=False)
    if options.json is not None:
        options.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:2] == ["memory"]:
        memory_once(Path(sys.argv[2]), list(map(int, sys.argv[3:])))
    else:
        main()
