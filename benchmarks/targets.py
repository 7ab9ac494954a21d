"""The targets, each with the samples that judge it."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from figures import size_name
from slices import CONSUME, PUBLISH

if TYPE_CHECKING:
    from results import Results, Row

OWN, LIMIT = "logstore", "C loop"
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

    def ratio(self, work: str, above: Row | None, below: Row | None, target: float) -> None:
        """Of two rows."""
        if above is not None and below is not None:
            self.verdicts.append(Verdict(work, _name(above, below), paired(above, below), target))

    def best_peer(self, work: str, modes: tuple[str, ...], size: int) -> Row | None:
        """The fastest of the others in the grid, in any of these modes."""
        rows = [
            row
            for row in self.results.of("grid")
            if row.engine not in (OWN, LIMIT)
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
        for size in (100, 1024, 16 << 10):
            own = self.grid(OWN, CONSUME, "batches of 100", size)
            best = self.best_peer(CONSUME, ("batches of 100",), size)
            self.ratio(f"consume + ack, {size_name(size)}, batches of 100", own, best, 3.0)
        self._others()
        return self.verdicts

    def _one_publisher(self) -> None:
        for size in (100, 1024):
            own = self.grid(OWN, PUBLISH, "1 thread", size)
            work = f"one publisher, {size_name(size)}, each durable"
            self.ratio(work, own, self.grid(LIMIT, PUBLISH, "1 thread", size), 0.95)
            self.ratio(work, own, self.best_peer(PUBLISH, ("1 thread",), size), 1.0)

    def _many_waiters(self) -> None:
        for size in (100, 1024):
            one, many, loop = (
                self.results.find("scaling", OWN, PUBLISH, mode, size)
                for mode in ("1 thread", "64 threads", "asyncio, 1000 in flight")
            )
            self.ratio(f"64 threads, {size_name(size)}, each durable", many, one, 7.0)
            best = self.best_peer(PUBLISH, DURABLE_ONE_BY_ONE, size)
            of_grid = self.grid(OWN, PUBLISH, "64 threads", size)
            self.ratio(f"64 threads, {size_name(size)}, each durable", of_grid, best, 4.0)
            self.ratio(f"asyncio, 1000 in flight, {size_name(size)}", loop, one, 25.0)

    def _batches(self) -> None:
        mode = "batches of 1000"
        for size in (100, 1024, 16 << 10):
            own = self.grid(OWN, PUBLISH, mode, size)
            work = f"publish_many, {size_name(size)}, force per 1000"
            if own is not None and size == 100:
                self.verdicts.append(Verdict(work, "", [n / 1e6 for n in own.samples], 1.5, "million/s"))
            if size > 100:
                self.ratio(work, own, self.grid(LIMIT, PUBLISH, mode, size), 0.8)
            self.ratio(work, own, self.best_peer(PUBLISH, (mode,), size), 3.0)

    def _others(self) -> None:
        find = self.results.find
        pairs = find("one by one", OWN, "publish, dequeue, nobody waits", "process", 100)
        if pairs is not None:
            work = "publish + dequeue, wait=False, one by one, 100 B"
            self.verdicts.append(Verdict(work, "", [n / 1e3 for n in pairs.samples], 600.0, "thousand pairs/s of CPU"))
        own, other = (find("transactions", name, "put and take", "1 thread, 10", 1024) for name in (OWN, "SQLite"))
        if own is not None:
            forces = own.notes["syncs a transaction"]
            # a new segment, now and then, costs more
            verdict = Verdict("local transaction of 10", "", forces, 1.05, "forces", at_least=False)
            self.verdicts.append(verdict)
        self.ratio("local transaction of 10, 1 KiB", own, other, 1.5)
        for size in (100, 1024):
            recovery, read = (find("recovery", name, "cold", "log", size) for name in (OWN, "read and hash"))
            self.ratio(f"recovery, {size_name(size)}, cold", recovery, read, 0.6)
        small = find("recovery", OWN, "cold, messages", "log", 100)
        if small is not None:
            rates = [n / 1e6 for n in small.samples]
            self.verdicts.append(Verdict("recovery, 100 B, cold", "", rates, 5.0, "million/s"))
        one, two = (find("logs", name, "commit", "one thread", 1024) for name in ("one log", "two logs"))
        self.ratio("commit of 10 messages: one log against two", one, two, 1.0)


def _name(above: Row, below: Row) -> str:
    same = above.mode == below.mode
    return below.engine if same else f"{below.engine}, {below.mode}"
