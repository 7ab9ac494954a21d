"""Reading contents: at random by key, and all of a queue in order; from the page cache, by one thread.

Every store holds the same messages of 1 KiB, and the keys are read in the same random order. All contents are kept
until the clock has stopped, which costs memory as well; or each is dropped before the next one, as copies and as views.
"""

from __future__ import annotations

import gc
import itertools
import random
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from grid import make_bodies
from peers.base import ReadablePeer, Wrong
from slices import settle

if TYPE_CHECKING:
    from collections.abc import Iterable

    from plan import Context

SUITE = "reads"
SIZE = 1024
BATCH = 100
RANDOM, SCAN = "random reads", "scan in order"
STREAM, VIEWS = "scan in order, dropped", "scan in order, views dropped"


class Reads:
    """Of one open store, which holds the messages."""

    def __init__(self, kind: type[ReadablePeer], path: Path, bodies: list[bytes], count: int) -> None:
        self.expected = [bodies[number % len(bodies)] for number in range(count)]
        self.peer = kind(path, count * SIZE)
        publish = self.peer.publisher()
        for first in range(0, count, BATCH):
            publish(self.expected[first : first + BATCH])
        gc.collect()
        settle()

    def measure(self) -> dict[str, float]:
        """Messages a second, by work."""
        peer, expected = self.peer, self.expected
        keys = list(peer.keys())
        if len(keys) != len(expected):
            raise Wrong(f"{peer.name} has {len(keys)} messages, not {len(expected)}")
        order = random.Random(1).sample(range(len(keys)), len(keys) // 2)
        read = peer.reader()
        made = {}
        for work, measured, wanted in (
            (RANDOM, lambda: [read(keys[n]) for n in order], [expected[n] for n in order]),
            (SCAN, lambda: list(peer.scan()), expected),
        ):
            start = time.perf_counter()
            found = measured()
            made[work] = len(found) / (time.perf_counter() - start)
            self._compare(work, found, wanted)
        for work, contents in ((STREAM, peer.scan), (VIEWS, peer.views)):
            if work == VIEWS and not peer.has_views():
                continue
            start = time.perf_counter()
            for _ in contents():
                pass
            made[work] = len(expected) / (time.perf_counter() - start)
            self._compare(work, contents(), expected)
        return made

    def _compare(self, work: str, found: Iterable[bytes | memoryview], expected: list[bytes]) -> None:
        if not all(one == other for one, other in itertools.zip_longest(found, expected)):
            raise Wrong(f"{self.peer.name}, {work}: a content is not the one that was published")

    def close(self) -> None:
        self.peer.close()


def run(context: Context) -> None:
    """One round."""
    context.say("contents, at random and in order")
    count = context.plan.read_messages // BATCH * BATCH
    bodies = make_bodies(SIZE)
    with tempfile.TemporaryDirectory(prefix="reads-", dir=context.directory) as made:
        opened = []
        for store in context.stores:
            if issubclass(store.kind, ReadablePeer):
                path = Path(made) / store.name
                opened.append((store.name, store.build.make(Reads, store.kind, path, bodies, count)))
                continue
            for work in (RANDOM, SCAN):
                row = context.results.row(SUITE, store.name, work, "1 thread", SIZE, sync="reads")
                row.reason = "a queue only: a read by key would consume the message"
        for turn in range(context.plan.turns_of_targets):
            for name, reads in context.turned(opened, turn):
                for work, rate in reads.measure().items():
                    row = context.results.row(SUITE, name, work, "1 thread", SIZE, sync="reads")
                    row.samples.append(rate)
        for _, reads in opened:
            reads.close()
