"""The targets, each with the samples that judge it."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from builds import BEFORE, OWN
from figures import size_name
from slices import CONSUME, PUBLISH

if TYPE_CHECKING:
    from results import Results, Row

LIMIT = "C loop"
LOOP = "asyncio, 1000 in flight"
NO_SLOWER = 0.95  # where a build only must not lose
DURABLE_ONE_BY_ONE = ("1 thread", "8 threads", "64 threads")


@dataclass
class Verdict:
    """A target, its samples, and what they are compared with."""

    work: str
    against: str
    samples: list[float]
    target: float
    unit: str = "×"
    at_least: bool = True

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def met(self) -> bool:
        return self.median >= self.target if self.at_least else self.median <= self.target

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"median": self.median, "met": self.met}


def paired(above: Row, below: Row) -> list[float]:
    """Ratios of slices of the same turn."""
    return [a / b for a, b in zip(above.samples, below.samples, strict=False)]


class Judge:
    """Finds the rows of each target; a target without rows is not judged."""

    def __init__(self, results: Results, short: set[str]) -> None:
        self.results = results
        self.short = short  # engines that sync too seldom to be quoted
        self.verdicts: list[Verdict] = []

    def ratio(self, work: str, above: Row | None, below: Row | None, target: float, *, at_least: bool = True) -> None:
        """Of two rows."""
        if above is not None and below is not None:
            verdict = Verdict(work, _name(above, below), paired(above, below), target, at_least=at_least)
            self.verdicts.append(verdict)

    def value(self, work: str, row: Row | None, target: float, unit: str, *, scale: float = 1.0, **how: bool) -> None:
        """Of one row."""
        if row is not None:
            self.verdicts.append(Verdict(work, "", [n * scale for n in row.samples], target, unit, **how))

    def best_peer(self, work: str, modes: tuple[str, ...], size: int) -> Row | None:
        """The fastest of the others in the grid, in any of these modes."""
        rows = [
            row
            for row in self.results.of("grid")
            if row.engine not in (OWN, BEFORE, LIMIT)
            and row.engine not in self.short
            and (row.work, row.content_bytes) == (work, size)
            and row.mode in modes
            and row.samples
        ]
        return max(rows, key=lambda row: row.median, default=None)

    def grid(self, engine: str, work: str, mode: str, size: int) -> Row | None:
        return self.results.find("grid", engine, work, mode, size)

    def judge(self) -> list[Verdict]:
        """All of them, in the order of the list of targets."""
        self._one_publisher()
        self._many_waiters()
        self._batches()
        self._consumers()
        self._reads()
        self._calls()
        self._transactions()
        self._opening()
        self._bounds()
        return self.verdicts

    def _one_publisher(self) -> None:
        for size in (100, 1024):
            own = self.grid(OWN, PUBLISH, "1 thread", size)
            work = f"one publisher, {size_name(size)}, each durable"
            self.ratio(work, own, self.grid(LIMIT, PUBLISH, "1 thread", size), 0.95)
            self.ratio(work, own, self.best_peer(PUBLISH, ("1 thread",), size), 1.0)
            self.ratio(work, own, self.grid(BEFORE, PUBLISH, "1 thread", size), NO_SLOWER)

    def _many_waiters(self) -> None:
        for size in (100, 1024):
            one, many, loop = (
                self.results.find("scaling", OWN, PUBLISH, mode, size) for mode in ("1 thread", "64 threads", LOOP)
            )
            self.ratio(f"64 threads, {size_name(size)}, each durable", many, one, 7.0)
            best = self.best_peer(PUBLISH, DURABLE_ONE_BY_ONE, size)
            of_grid = self.grid(OWN, PUBLISH, "64 threads", size)
            self.ratio(f"64 threads, {size_name(size)}, each durable", of_grid, best, 4.0)
            self.ratio(f"asyncio, 1000 in flight, {size_name(size)}", loop, one, 25.0)
            own, before = (
                self.results.find("scaling", name, "publish, processor", LOOP, size) for name in (OWN, BEFORE)
            )
            work = f"asyncio, 1000 in flight, {size_name(size)}, CPU"
            self.ratio(work, own, before, 0.7, at_least=False)
        own, other = (self.grid(name, PUBLISH, "64 threads", 1 << 20) for name in (OWN, "LMDB"))
        self.ratio("64 threads, 1 MiB, each durable", own, other, 1.0)

    def _batches(self) -> None:
        mode = "batches of 1000"
        for size, of_loop in ((100, None), (1024, 0.45), (16 << 10, 0.8)):
            own = self.grid(OWN, PUBLISH, mode, size)
            work = f"publish_many, {size_name(size)}, force per 1000"
            if of_loop is None:
                self.value(work, own, 1.5, "million/s", scale=1e-6)
            else:
                self.ratio(work, own, self.grid(LIMIT, PUBLISH, mode, size), of_loop)
            self.ratio(work, own, self.best_peer(PUBLISH, (mode,), size), 2.5)
            self.ratio(work, own, self.grid(BEFORE, PUBLISH, mode, size), NO_SLOWER)

    def _consumers(self) -> None:
        for size, mode, target in (
            (1024, "batches of 100", 1.4),
            (1024, "batches of 1000", 1.2),
            (16 << 10, "batches of 100", 1.2),
            (16 << 10, "batches of 1000", 0.8),
        ):
            own, other = (self.grid(name, CONSUME, mode, size) for name in (OWN, "LMDB"))
            self.ratio(f"consume + ack, {size_name(size)}, {mode}", own, other, target)
        for mode, target in (("1 thread", NO_SLOWER), ("64 threads", 2.5)):
            own, before = (self.grid(name, CONSUME, mode, 1024) for name in (OWN, BEFORE))
            self.ratio(f"consume + ack, 1 KiB, {mode}", own, before, target)

    def _reads(self) -> None:
        def find(name: str, work: str) -> Row | None:
            return self.results.find("reads", name, work, "1 thread", 1024)

        for work in ("scan in order", "scan in order, dropped"):
            self.ratio(f"contents, 1 KiB, {work}", find(OWN, work), find(BEFORE, work), 4.0)
        views = find(OWN, "scan in order, views dropped")
        self.ratio("contents, 1 KiB, scan in order, views", views, find("LMDB", "scan in order, dropped"), 0.8)
        for other, target in (("LMDB", 0.6), (BEFORE, NO_SLOWER)):
            self.ratio("contents, 1 KiB, at random", find(OWN, "random reads"), find(other, "random reads"), target)

    def _calls(self) -> None:
        work, row = "publish + dequeue, wait=False, one by one, 100 B", "publish, dequeue, nobody waits"
        own, before = (self.results.find("processor", name, row, "process", 100) for name in (OWN, BEFORE))
        self.value(work, own, 900.0, "thousand pairs/s of CPU", scale=1e-3)
        self.ratio(work, own, before, 2.6)
        held = self.results.find("processor", OWN, "reads while a hold keeps dead segments", "other threads", 1024)
        self.value("read while a hold keeps dead segments: other threads", held, 0.2, "µs of CPU", at_least=False)

    def _transactions(self) -> None:
        def find(name: str, how: str, work: str = "put and take") -> Row | None:
            return self.results.find("transactions", name, work, how, 1024)

        own = find(OWN, "1 thread, 10")
        if own is not None:
            forces = own.notes["syncs a transaction"]
            # a new segment, now and then, costs more
            verdict = Verdict("local transaction of 10", "", forces, 1.05, "forces", at_least=False)
            self.verdicts.append(verdict)
        for how, target in (("1 thread, 10", 1.5), ("1 thread, 100", 2.0), ("16 threads, 100", 2.0)):
            self.ratio(f"local transactions, {how} operations", find(OWN, how), find("SQLite", how), target)
        own, before = (find(name, "16 threads, 100", "put and take, processor") for name in (OWN, BEFORE))
        self.ratio("local transactions, 16 threads, 100 operations, CPU", own, before, 0.5, at_least=False)

    def _opening(self) -> None:
        def find(name: str, state: str, size: int) -> Row | None:
            return self.results.find("recovery", name, state, "log", size)

        for size, target in ((100, 0.4), (1024, 0.6)):
            work = f"recovery, {size_name(size)}, cold"
            self.ratio(work, find(OWN, "cold", size), find("read and hash", "cold", size), target)
        for state, target in (("cold", 1.25), ("warm", 1.3)):
            self.ratio(f"recovery, 100 B, {state}", find(OWN, state, 100), find(BEFORE, state, 100), target)
        one, two = (self.results.find("logs", name, "commit", "one thread", 1024) for name in ("one log", "two logs"))
        self.ratio("commit of 10 messages: one log against two", one, two, 1.0)

    def _bounds(self) -> None:
        """The same cost with any number of live messages, memory, and write amplification."""
        for work in ("dequeue, random", "dequeue_many, front", "dequeue_many, random"):
            rows = [row for row in self.results.of("live") if (row.engine, row.work) == (OWN, work)]
            before = [row for row in self.results.of("live") if (row.engine, row.work) == (BEFORE, work)]
            if len(rows) > 1:
                self.ratio(f"{work}, {rows[-1].mode}", rows[-1], rows[0], 1.3, at_least=False)
            if before:
                self.ratio(f"{work}, {rows[-1].mode}", rows[-1], before[-1], 1.05, at_least=False)
        for row in self.results.of("bounds"):
            target, unit = (1.25, "of content") if row.content_bytes > 8 else (80.0, "bytes")
            self.value(f"{row.work}, {row.mode}", row, target, unit, at_least=False)


def _name(above: Row, below: Row) -> str:
    same = above.mode == below.mode
    return below.engine if same else f"{below.engine}, {below.mode}"
