"""The cost of the calls themselves: publish and dequeue one by one from Python, without waiting for durability.

A pair is one message of 100 bytes, published and then dequeued by its id. Times are processor times: of the whole
process, including its writes to the log, and of the calling thread.
"""

from __future__ import annotations

import gc
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from peers.base import Wrong
from peers.own import Logstore
from slices import settle

if TYPE_CHECKING:
    from plan import Context

SUITE = "one by one"
WORK = "publish, dequeue, nobody waits"
SIZE = 100
ROOM = 64 << 20


def run(context: Context) -> None:
    """One round."""
    plan = context.plan
    context.say("publish and dequeue, one by one")
    with tempfile.TemporaryDirectory(prefix="pairs-", dir=context.directory) as made:
        peer = Logstore(Path(made) / "store", ROOM)
        rows = {
            clock: context.results.row(
                SUITE, peer.name, WORK, clock, SIZE, unit="pairs/s of CPU", sync="none: forced after"
            )
            for clock in ("process", "calling thread")
        }
        body = bytes(SIZE)
        gc.collect()
        _pairs(peer, body, plan.pairs // 10)
        for _ in range(plan.turns_of_targets):
            for clock, seconds in zip(rows, _pairs(peer, body, plan.pairs), strict=True):
                rows[clock].samples.append(plan.pairs / seconds)
            peer.store.force()
            settle()
        if peer.queue.depth:
            raise Wrong(f"{peer.queue.depth} messages are left of pairs")
        peer.close()


def _pairs(peer: Logstore, body: bytes, count: int) -> tuple[float, float]:
    """Processor seconds: of the process, of this thread."""
    publish, dequeue, queue = peer.store.publish, peer.store.dequeue, peer.queue
    before = time.process_time(), time.thread_time()
    for _ in range(count):
        dequeue(publish(queue, body, wait=False), queue, wait=False)
    return time.process_time() - before[0], time.thread_time() - before[1]
