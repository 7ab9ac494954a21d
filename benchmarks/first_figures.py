"""The first figures: the store against the least that the same disk could cost.

In one run, interleaved, for 100 B, 1 KiB and 64 KiB of content:

* one publisher, every message durable, against a C loop (raw_loop.c) that writes and syncs as many bytes: on premade
  (zero-filled) files, and on files that grow;
* 32 threads, every message durable, against one publisher;
* ``publish_many`` with a force every 1000 messages, against the C loop with a sync every 1000;
* opening a log of 1 GiB of 1 KiB messages, cold and warm, against a C program (read_and_hash.c) that reads and hashes
  the same files.

The premade figures are taken in slices of a tenth of a second or so, side by side and every second time backwards; a
ratio is that of two slices which stood beside each other (of two whole runs where the log grows, and for recovery), and
the median of the ratios is what counts: so a machine with other work to do spoils a slice and not the figure. What was
stored is opened again and compared, content by content, after the clock has stopped. Everything lives in one directory,
which is removed at the end.
"""

from __future__ import annotations

import argparse
import array
import contextlib
import gc
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from figures import Figure, Ratio, as_json, conditions, size_name, tell
from rich.console import Console

import logstore

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "benchmarks"

SEGMENT_BYTES = 16 << 20
DISTINCT = 251  # contents that differ; a message's number says which it has
THREADS = 32
GROUP = 1000  # messages a force
QUEUE = "figures"


@dataclass(frozen=True)
class Size:
    """How many messages of this size a slice of each figure takes."""

    content_bytes: int
    slices: int  # a round
    one: int
    threads: int
    many: int
    growing: int  # in one run, enough to need segments that were not there


SIZES = (
    Size(100, slices=10, one=1000, threads=6400, many=40_000, growing=130_000),
    Size(1024, slices=10, one=1000, threads=6400, many=20_000, growing=45_000),
    Size(65_536, slices=5, one=250, threads=1280, many=1000, growing=4000),
)
RECOVERY_MESSAGES = 1_000_000  # of 1 KiB: 1.1 GB of log


def quick(size: Size) -> Size:
    """Little of everything."""
    return replace(size, slices=2, growing=size.growing // 10)


class Wrong(Exception):
    """What was read back is not what was stored, or a figure did not measure what it says."""


Step = tuple[Figure, Callable[[], float]]


# ---- what is stored, and whether it is there ----


def verify(path: Path, ids: Sequence[int], expected: Sequence[bytes]) -> None:
    """Opens the store again and compares every message."""
    with logstore.open(path, create=False) as store:
        for message_id, content in zip(ids, expected, strict=True):
            if store.load_content(message_id) != content:
                raise Wrong(f"message {message_id} of {path} is not what was published")
        if store.queue(QUEUE).depth != len(ids):
            raise Wrong(f"the queue in {path} holds {store.queue(QUEUE).depth} messages, not {len(ids)}")


class Bench:
    """Where everything is done, and the two C programs."""

    def __init__(self, directory: Path) -> None:
        self.dir = directory
        self.raw_loop = compiled("raw_loop", [])
        self.read_and_hash = compiled("read_and_hash", ["csrc/xxh64.c"])

    def raw(self, content_bytes: int, count: int, group: int, mode: str) -> float:
        """Messages a second of the C loop."""
        done = subprocess.run(
            [self.raw_loop, self.dir / "raw", str(content_bytes), str(count), str(group), mode],
            check=True,
            capture_output=True,
            text=True,
        )
        return float(json.loads(done.stdout)["messages_per_s"])


def compiled(name: str, others: list[str]) -> Path:
    """The C program, built if it is older than its sources."""
    sources = [ROOT / "benchmarks" / f"{name}.c", *(ROOT / other for other in others)]
    program = BUILD / name
    if program.exists() and program.stat().st_mtime > max(source.stat().st_mtime for source in sources):
        return program
    BUILD.mkdir(parents=True, exist_ok=True)
    compiler = os.environ.get("CC") or next((cc for cc in ("cc", "gcc", "clang") if shutil.which(cc)), None)
    if compiler is None:
        raise SystemExit("first_figures: a C compiler is needed: install gcc or clang, or name one with CC")
    flags = ["-std=c11", "-O2", "-Wall", "-Wextra", f"-I{ROOT / 'csrc'}"]
    subprocess.run([*compiler.split(), *flags, "-o", program, *sources], check=True)
    return program


# ---- recovery ----


class RecoveryBench:
    """A log of 1 KiB messages, opened again and again by processes of their own that never close it."""

    def __init__(self, bench: Bench, count: int) -> None:
        self.bench = bench
        self.count = count
        self.path = bench.dir / "recovery"
        self.steps: list[Step] = []
        self.ratios: list[Ratio] = []
        for cold in (True, False):
            state = "cold" if cold else "warm"
            read, opened = (Figure(f"{what}, {state}", 1024, "MB/s") for what in ("read and hash", "recovery"))
            self.steps += [(read, partial(self.read, cold=cold)), (opened, partial(self.open, cold=cold))]
            target = 0.5 if cold else None
            self.ratios.append(Ratio(f"recovery / read and hash, {state}", 1024, opened, read, target))
        self._write()

    @property
    def figures(self) -> list[Figure]:
        return [figure for figure, _ in self.steps]

    def round(self, number: int) -> None:
        """Cold and warm, reading beside opening."""
        for figure, measure in self.steps if number % 2 == 0 else reversed(self.steps):
            figure.samples.append(measure())

    def _write(self) -> None:
        self.body = os.urandom(1024)
        segments = self.count * 1110 // SEGMENT_BYTES + 5
        with logstore.open(self.path, segment_size=SEGMENT_BYTES, initial_segments=segments) as store:
            queue = store.declare_queue(QUEUE)
            for _ in range(self.count // GROUP):
                store.publish_many(queue, [self.body] * GROUP)
            log = [segment.first_lsn for segment in store.tail().segments]
        self.files = [self.path / f"{first_lsn:016x}.seg" for first_lsn in log]
        self.bytes = sum(file.stat().st_size for file in self.files)

    def _cache(self, *, cold: bool) -> None:
        """Takes every file out of the page cache, or reads every one into it."""
        for file in self.path.glob("*.seg"):
            fd = os.open(file, os.O_RDONLY)
            os.fdatasync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)
            if not cold:
                file.read_bytes()

    def read(self, *, cold: bool) -> float:
        """MB a second of reading and hashing."""
        self._cache(cold=cold)
        done = subprocess.run([self.bench.read_and_hash, *self.files], check=True, capture_output=True, text=True)
        return float(json.loads(done.stdout)["mb_per_s"])

    def open(self, *, cold: bool) -> float:
        """MB a second, of the same bytes, of opening."""
        self._cache(cold=cold)
        done = subprocess.run(
            [sys.executable, __file__, "--open-once", self.path],
            check=True,
            capture_output=True,
            text=True,
        )
        report = json.loads(done.stdout)
        if report["messages"] != self.count or report["last_content"] != self.body.hex():
            raise Wrong(f"recovery found {report['messages']} messages, not {self.count}, or not their contents")
        return self.bytes / float(report["seconds"]) / 1e6

    def verify(self) -> None:
        """All of it, once, at the end."""
        with logstore.open(self.path, create=False) as store:
            messages = store.messages(QUEUE)
            right = sum(message.content == self.body for message in messages)
        if right != self.count:
            raise Wrong(f"of {self.count} messages {right} were recovered with their contents")


def open_once(path: Path) -> None:
    """In a process of its own: opens, says how long it took and what was found, and goes without closing."""
    with tempfile.TemporaryDirectory() as other:
        logstore.open(other).close()  # what Python imports for a first open is no part of opening
    start = time.perf_counter()
    store = logstore.open(path, create=False)
    seconds = time.perf_counter() - start
    *_, last = store.messages(QUEUE)
    report = {"seconds": seconds, "messages": store.recovery.messages, "last_content": last.content.hex()}
    print(json.dumps(report), flush=True)
    os._exit(0)


# ---- publishing ----


class PublishBench:
    """The figures of one content size. ``ids`` and ``expected`` grow with what the open store was given."""

    store: logstore.MessageStore
    queue: logstore.Queue

    def __init__(self, bench: Bench, size: Size) -> None:
        self.bench = bench
        self.size = size
        self.path = bench.dir / "store"
        self.bodies = [os.urandom(size.content_bytes) for _ in range(DISTINCT)]
        self.group = [self.bodies[number % DISTINCT] for number in range(GROUP)]
        self.ids = array.array("Q")
        self.expected: list[bytes] = []

        def figure(name: str) -> Figure:
            return Figure(name, size.content_bytes, "messages/s")

        n, raw = size.content_bytes, bench.raw
        self.raw_one, self.one = figure("C loop, premade"), figure("one publisher, premade")
        self.threads = figure("32 threads, premade")
        self.raw_many, self.many = figure("C loop, sync every 1000"), figure("publish_many, 1000 a force")
        self.raw_growing, self.growing = figure("C loop, growing"), figure("one publisher, growing")
        self.steps: list[Step] = [
            (self.raw_one, lambda: raw(n, size.one, 1, "zeros")),
            (self.one, lambda: self.publish_one_by_one(size.one)),
            (self.threads, self.publish_from_threads),
            (self.raw_many, lambda: raw(n, size.many, GROUP, "zeros")),
            (self.many, self.publish_many),
        ]
        self.ratios = [
            Ratio("one publisher / C loop, premade", n, self.one, self.raw_one, 0.85),
            Ratio("one publisher / C loop, growing", n, self.growing, self.raw_growing, None),
            Ratio("32 threads / one publisher", n, self.threads, self.one, 6.0),
            Ratio("publish_many / C loop", n, self.many, self.raw_many, 0.6 if n == 1024 else None),
        ]

    @property
    def figures(self) -> list[Figure]:
        return [*(figure for figure, _ in self.steps), self.raw_growing, self.growing]

    def round(self) -> None:
        """All slices on premade segments, then both runs on growing files."""
        s = self.size
        in_all = s.slices * (s.one + s.threads + s.many)
        record = -(-(80 + s.content_bytes) // 8) * 8
        log_bytes = s.slices * 104 * (s.one + s.threads) + 1.05 * in_all * record
        with self.fresh_store(math.ceil(log_bytes / SEGMENT_BYTES) + 4):
            made = self.store.stats()["segments_created"]
            for number in range(s.slices):
                for figure, measure in self.steps if number % 2 == 0 else reversed(self.steps):
                    figure.samples.append(measure())
            if self.store.stats()["segments_created"] != made:
                raise Wrong("a segment was made while the clock ran; it should have been there")
        self.raw_growing.samples.append(self.bench.raw(s.content_bytes, min(s.growing, 10_000), 1, "grow"))
        with self.fresh_store(2):
            self.growing.samples.append(self.publish_one_by_one(s.growing))

    @contextlib.contextmanager
    def fresh_store(self, segments: int) -> Iterator[None]:
        """A new store with so many segments; at the end it is opened again, compared and removed."""
        self.ids, self.expected = array.array("Q"), []
        with logstore.open(self.path, segment_size=SEGMENT_BYTES, initial_segments=segments) as self.store:
            self.queue = self.store.declare_queue(QUEUE)
            os.sync()  # what was written and removed before is not to be paid for here
            gc.collect()
            yield
        verify(self.path, self.ids, self.expected)
        shutil.rmtree(self.path)
        os.sync()

    def publish_one_by_one(self, count: int) -> float:
        """Messages a second of one thread, each durable before the next."""
        bodies = [self.bodies[number % DISTINCT] for number in range(count)]
        publish, queue, ids = self.store.publish, self.queue, self.ids
        start = time.perf_counter()
        for body in bodies:
            ids.append(publish(queue, body))
        seconds = time.perf_counter() - start
        self.expected += bodies
        return count / seconds

    def publish_from_threads(self) -> float:
        """Messages a second of THREADS threads, each message durable before its thread's next."""
        each = self.size.threads // THREADS
        bodies = [self.bodies[number % DISTINCT] for number in range(each)]
        published = [array.array("Q") for _ in range(THREADS)]
        ready = threading.Barrier(THREADS + 1)

        def publish(ids: array.array[int]) -> None:
            ready.wait()
            for body in bodies:
                ids.append(self.store.publish(self.queue, body))

        threads = [threading.Thread(target=publish, args=(ids,)) for ids in published]
        for thread in threads:
            thread.start()
        ready.wait()
        start = time.perf_counter()
        for thread in threads:
            thread.join()
        seconds = time.perf_counter() - start
        for ids in published:
            self.ids.extend(ids)
            self.expected += bodies
        return each * THREADS / seconds

    def publish_many(self) -> float:
        """Messages a second, GROUP of them in each call, which returns when they are durable."""
        calls = self.size.many // GROUP
        start = time.perf_counter()
        for _ in range(calls):
            self.ids.extend(self.store.publish_many(self.queue, self.group))
        seconds = time.perf_counter() - start
        self.expected += self.group * calls
        return calls * GROUP / seconds


# ---- the run ----


def run(directory: Path, rounds: int, *, small: bool, console: Console) -> tuple[list[Figure], list[Ratio]]:
    bench = Bench(directory)
    publishing = [PublishBench(bench, quick(size) if small else size) for size in SIZES]
    with console.status("writing the log that recovery reads"):
        recovery = RecoveryBench(bench, RECOVERY_MESSAGES // (10 if small else 1))
    for number in range(rounds):
        for of_size in publishing:
            with console.status(f"round {number + 1} of {rounds}: {size_name(of_size.size.content_bytes)}"):
                of_size.round()
        with console.status(f"round {number + 1} of {rounds}: recovery"):
            recovery.round(number)
    with console.status("comparing what was recovered"):
        recovery.verify()
    both: list[PublishBench | RecoveryBench] = [*publishing, recovery]
    return [f for one in both for f in one.figures], [r for one in both for r in one.ratios]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dir", type=Path, default=BUILD, help="where to write: the disk that is measured")
    parser.add_argument("--repeat", type=int, default=5, help="rounds (5)")
    parser.add_argument("--quick", action="store_true", help="a tenth of everything, one round: no figures to quote")
    parser.add_argument("--json", type=Path, help="also write everything into this file")
    parser.add_argument("--open-once", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.open_once is not None:
        open_once(options.open_once)
    if options.repeat < 1:
        parser.error("--repeat is at least 1")
    options.dir.mkdir(parents=True, exist_ok=True)
    console = Console()
    known = conditions(options.dir.resolve()) | {
        "segment_bytes": SEGMENT_BYTES,
        "sync": "pwrite and fdatasync a batch (the C loop: a message, or 1000)",
        "durability": "strict",
    }
    rounds = 1 if options.quick else options.repeat
    with tempfile.TemporaryDirectory(prefix="first-figures-", dir=options.dir) as made:
        figures, ratios = run(Path(made), rounds, small=options.quick, console=console)
    known |= {"rounds": rounds, "load_at_end": os.getloadavg()[0]}
    tell(console, known, figures, ratios)
    if options.json is not None:
        options.json.write_text(as_json(known, figures, ratios) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
