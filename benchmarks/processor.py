"""Processor time of single calls from Python.

* Pairs: one message of 100 bytes, published and then dequeued by its id, both without waiting for durability. Times of
  the whole process, including its writes to the log, and of the calling thread.
* Reads while a hold keeps dead segments: the time of all other threads for each content that is read.
"""

from __future__ import annotations

import gc
import itertools
import random
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from peers.base import Wrong
from peers.own import Logstore
from slices import settle

import logstore
from logstore.holds import hold

if TYPE_CHECKING:
    from plan import Context

SUITE = "processor"
PAIRS, HELD = "publish, dequeue, nobody waits", "reads while a hold keeps dead segments"
PROCESS, THREAD, OTHERS = "process", "calling thread", "other threads"
SIZE, HELD_SIZE = 100, 1024
ROOM = 64 << 20
SMALL_SEGMENT = 1 << 20
BATCH = 500
DEAD, LIVE = 10, 40  # batches; the live ones fill more than the write buffers


class Pairs:
    """Messages that are published and dequeued one by one."""

    def __init__(self, path: Path) -> None:
        self.peer = Logstore(path, ROOM)
        gc.collect()

    def measure(self, count: int) -> dict[str, float]:
        """Pairs for a second of processor time."""
        publish, dequeue, queue, body = self.peer.store.publish, self.peer.store.dequeue, self.peer.queue, bytes(SIZE)
        process, thread = time.process_time(), time.thread_time()
        for _ in range(count):
            dequeue(publish(queue, body, wait=False), queue, wait=False)
        thread, process = time.thread_time() - thread, time.process_time() - process
        self.peer.store.force()
        settle()
        return {PROCESS: count / process, THREAD: count / thread}

    def close(self) -> None:
        if self.peer.queue.depth:
            raise Wrong(f"{self.peer.queue.depth} messages are left of pairs")
        self.peer.close()


class HeldReads:
    """A log whose oldest segments are dead, and kept by a hold."""

    def __init__(self, path: Path) -> None:
        self.store = logstore.open(path, segment_size=SMALL_SEGMENT)
        self.hold = hold(path, "benchmark")
        queue = self.store.declare_queue("measured")
        contents = [bytes(HELD_SIZE)] * BATCH
        for _ in range(DEAD):
            self.store.dequeue_many(self.store.publish_many(queue, contents), queue)
        published = [self.store.publish_many(queue, contents) for _ in range(LIVE)]
        self.ids = list(itertools.chain(*published[: LIVE // 2]))  # these are only in files
        gc.collect()
        if not self.store.stats()["held_segments"]:
            raise Wrong("the hold keeps nothing")

    def measure(self, count: int) -> dict[str, float]:
        """Microseconds of processor time of all other threads, for a read."""
        load, chosen = self.store.load_content, random.Random(count).choices(self.ids, k=count)
        settle()
        process, thread = time.process_time(), time.thread_time()
        for message_id in chosen:
            load(message_id)
        thread, process = time.thread_time() - thread, time.process_time() - process
        return {OTHERS: (process - thread) / count * 1e6}

    def close(self) -> None:
        self.hold.release()
        self.store.close()


def run(context: Context) -> None:
    """One round."""
    plan = context.plan
    for work, kind, size, unit in (
        (PAIRS, Pairs, SIZE, "pairs/s of CPU"),
        (HELD, HeldReads, HELD_SIZE, "µs of CPU a read"),
    ):
        context.say(work)
        with tempfile.TemporaryDirectory(prefix="processor-", dir=context.directory) as made:
            opened = [(build.name, build.make(kind, Path(made) / build.name)) for build in context.builds]
            for _, each in opened:
                each.measure(plan.pairs // 10)
            for turn in range(plan.turns_of_targets):
                for name, each in context.turned(opened, turn):
                    for clock, sample in each.measure(plan.pairs).items():
                        sync = "none: forced after" if kind is Pairs else "reads"
                        row = context.results.row(SUITE, name, work, clock, size, unit=unit, sync=sync)
                        row.samples.append(sample)
            for _, each in opened:
                each.close()
