"""Stores for the tests with Spark: a log with every kind of record, and ways to damage it and to add to it."""

from __future__ import annotations

import subprocess
import sys
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import logstore
from kit.stores import ROOT, SMALL_SEGMENT
from logstore.holds import hold

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TIMEOUT_S = 240  # of a busy machine

DYING = """
import os, signal, sys, logstore
store = logstore.open(sys.argv[1])
queue = store.queue("orders")
store.publish_many(queue, [b"before the kill"] * 50)
work = store.begin()
store.publish(queue, b"never committed", transaction=work)
store.publish(queue, b"after it, so that it is on the disk")
os.kill(os.getpid(), signal.SIGKILL)
"""


def open_small(path: Path, **options: Any) -> logstore.MessageStore:
    """Open a store with small segments."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # another segment_size than the stored one
        return logstore.open(path, segment_size=SMALL_SEGMENT, **options)


def churn(store: logstore.MessageStore, rounds: int = 1, queue: str = "churn") -> None:
    """Publish and consume two segments of messages in each round."""
    name = store.declare_queue(queue)
    for _ in range(rounds):
        store.dequeue_many(store.publish_many(name, [bytes(20_000)] * 55), name)


def everything(store: logstore.MessageStore, tag: bytes) -> int:
    """Fan-out, chunks, transactions with every outcome, a deleted queue; the id of a message that stays."""
    orders, audit, doomed = (store.declare_queue(name) for name in ("orders", "audit", "doomed"))
    kept = store.publish([orders, audit], b"kept through it all" * 100, header=b"\x00head\xff")
    first = store.publish_many(orders, [b"%d" % n for n in range(200)])
    both = [store.publish([orders, audit], b"to two", header=b"h") for _ in range(20)]
    staged = store.stage(b"staged", b"one,")
    store.append_content(staged, bytes(70_000))
    store.enqueue(staged, audit)
    store.stage(b"", b"never enqueued")
    store.destroy(store.stage(b"", b"destroyed"))
    store.dequeue_many(first[:120], orders)
    for id in both[:10]:  # noqa: A001 - a message's id
        store.dequeue(id, orders)
    with store.transaction() as work:
        store.dequeue(first[120], orders, work)
        store.publish(audit, b"committed", transaction=work)
    undone = store.begin()
    store.publish(orders, b"rolled back", transaction=undone)
    store.dequeue(first[121], orders, undone)
    undone.rollback()
    store.publish_many(doomed, [b"gone with its queue"] * 10)
    store.delete_queue(doomed)
    for name, number, ends in ((tag + b"in doubt", 122, False), (tag + b"decided", 123, True)):
        branch = store.begin(logstore.Xid(7, name, b"b"))
        store.dequeue(first[number], orders, branch)
        store.publish(audit, name, transaction=branch)
        branch.end()
        branch.prepare()
        if ends:
            branch.commit()
    return kept


def mixed_log(path: Path) -> None:
    """All of that twice, with the first part relocated since; a kill in between, and restarts; closed."""
    store = open_small(path)
    kept = everything(store, b"first, ")
    churn(store, 2)
    store.compact()
    store.close()
    killed = subprocess.run(
        [sys.executable, "-c", DYING, str(path)],
        env={"PYTHONPATH": str(ROOT)},
        timeout=TIMEOUT_S,
        check=False,
        capture_output=True,
    )
    assert killed.returncode == -9, killed.stderr
    store = open_small(path)
    # Live messages, few and large, keep the log long enough for several partitions.
    store.publish_many(store.queue("audit"), [b"%d" % n * 4000 for n in range(250)])
    store.dequeue(kept, "orders")
    everything(store, b"second, ")
    store.publish_many(store.queue("audit"), [b"%d" % n * 4000 for n in range(250)])
    store.close()


def damage(path: Path, lsn: int) -> str:
    """Flips a byte of the log at this LSN; the segment's name."""
    first = lsn - lsn % SMALL_SEGMENT
    file = path / f"{first:016x}.seg"
    raw = bytearray(file.read_bytes())
    raw[lsn - first] ^= 0x40
    file.write_bytes(raw)
    return file.name


@contextmanager
def kept_whole(path: Path) -> Iterator[Any]:
    """Keep the whole log from being recycled, so that everything written can be compared."""
    with hold(path, "test", limit_bytes=1 << 40) as held:
        yield held
