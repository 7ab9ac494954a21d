"""Reading contents: at random by key, and all of a queue in order; from the page cache, by one thread.

Every store holds the same messages of 1 KiB, and the keys are read in the same random order.
"""

from __future__ import annotations

import gc
import random
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from grid import make_bodies
from peers.base import ReadablePeer, Wrong
from slices import settle

if TYPE_CHECKING:
    from collections.abc import Callable

    from plan import Context

SUITE = "reads"
SIZE = 1024
BATCH = 100
RANDOM, SCAN = "random reads", "scan in order"


def run(context: Context) -> None:
    """One round."""
    context.say("contents, at random and in order")
    count = context.plan.read_messages // BATCH * BATCH
    bodies = make_bodies(SIZE)
    expected = [bodies[number % len(bodies)] for number in range(count)]
    with tempfile.TemporaryDirectory(prefix="reads-", dir=context.directory) as made:
        peers, steps = [], []
        for kind in context.kinds:
            if not issubclass(kind, ReadablePeer):
                for work in (RANDOM, SCAN):
                    row = context.results.row(SUITE, kind.name, work, "1 thread", SIZE, sync="reads")
                    row.reason = "a queue only: a read by key would consume the message"
                continue
            peer = kind(Path(made) / kind.name, count * SIZE)
            publish = peer.publisher()
            for first in range(0, count, BATCH):
                publish(expected[first : first + BATCH])
            peers.append(peer)
            steps.append(_measured(context, peer, expected))
        gc.collect()
        settle()
        for step in context.turned(steps, 0):
            step()
        for peer in peers:
            peer.close()


def _measured(context: Context, peer: ReadablePeer, expected: list[bytes]) -> Callable[[], None]:
    def measure() -> None:
        keys = list(peer.keys())
        if len(keys) != len(expected):
            raise Wrong(f"{peer.name} has {len(keys)} messages, not {len(expected)}")
        order = random.Random(1).sample(range(len(keys)), len(keys) // 2)
        read = peer.reader()
        for work, measured in ((RANDOM, lambda: [read(keys[n]) for n in order]), (SCAN, lambda: list(peer.scan()))):
            start = time.perf_counter()
            found = measured()
            seconds = time.perf_counter() - start
            if found != ([expected[n] for n in order] if work == RANDOM else expected):
                raise Wrong(f"{peer.name}, {work}: a content is not what was published")
            row = context.results.row(SUITE, peer.name, work, "1 thread", SIZE, sync="reads")
            row.samples.append(len(found) / seconds)

    return measure
