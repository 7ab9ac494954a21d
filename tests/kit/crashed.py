"""Stores whose process died without closing them, and their logs as plain bytes."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from logstore.codec.records import (
    Batch,
    Empty,
    MessageDequeue,
    MessageEnqueue,
    MessageStart,
    Record,
    RecordFlag,
    RecordType,
    XidBody,
)
from logstore.codec.strict import StrictReplay

CRASH = """
import json, os, sys, logstore
store = logstore.open(sys.argv[1], segment_size=512 << 10)
{work}
store.force()
os._exit(0)
"""


def crash(path: Path, work: str) -> None:
    """A process works on the store and dies without closing it."""
    subprocess.run([sys.executable, "-c", CRASH.format(work=work), str(path)], check=True, timeout=120)


def snapshot(path: Path) -> dict[str, tuple[int, int, int, bytes]]:
    """The properties of every file that an inspection must not change."""
    found = {}
    for each in sorted(path.rglob("*")):
        status = each.lstat()
        content = each.read_bytes() if each.is_file() else b""
        found[str(each)] = status.st_ino, status.st_mode, status.st_mtime_ns, content
    return found


class Log:
    """Replays hand-made records one by one."""

    def __init__(self, base_lsn: int = 4096) -> None:
        self.replay = StrictReplay(base_lsn)
        self.next_lsn = base_lsn
        self.last: dict[int, int] = {}
        self.enqueues: Counter[int] = Counter()
        self.batch(epoch=1)

    def add(self, kind: RecordType, body: Any, chain: int = 0, flags: int = 0, prev: int | None = None) -> int:
        lsn = self.next_lsn
        self.next_lsn += 256
        chain = lsn if chain == -1 else chain
        record = Record(
            lsn, kind, RecordFlag(flags), chain, self.last.get(chain, 0) if prev is None else prev, 256, body
        )
        self.last[chain] = lsn
        self.replay.apply(record)
        return lsn

    def batch(self, epoch: int) -> None:
        self.epoch = epoch
        self.add(RecordType.BATCH, Batch(epoch, 0, 104, 4096, 4096, 0), prev=0)

    def publish(self, *queues: int, tx: int = 0) -> int:
        body = MessageStart(tx, queues, b"", b"12345", self.number(tx, queues))
        return self.add(RecordType.MESSAGE_START, body, -1, RecordFlag.PUBLISHED)

    def number(self, tx: int, queues: tuple[int, ...]) -> int:
        first = self.enqueues[tx]
        self.enqueues[tx] += len(queues)
        return first if tx else 0

    def stage(self) -> int:
        return self.add(RecordType.MESSAGE_START, MessageStart(0, (), b"", b""), -1)

    def enqueue(self, message: int, *queues: int, tx: int = 0) -> int:
        return self.add(RecordType.MESSAGE_ENQUEUE, MessageEnqueue(tx, queues, self.number(tx, queues)), message)

    def dequeue(self, message: int, queue: int, tx: int = 0, flags: int = 0) -> int:
        body = MessageDequeue(tx, queue, 0, 0)  # type: ignore[arg-type]
        return self.add(RecordType.MESSAGE_DEQUEUE, body, message, flags)

    def begin(self, xid: bytes | None = None) -> int:
        if xid is None:
            return self.add(RecordType.TX_START, Empty(), -1)
        return self.add(RecordType.DTX_START, XidBody(1, xid, b""), -1)

    def step(self, tx: int, kind: RecordType) -> int:
        return self.add(kind, XidBody(1, b"x", b"") if kind is RecordType.TX_PREPARE else Empty(), tx)

    def finish(self, *, recovering: bool = False) -> tuple[dict[int, tuple[int, int]], int]:
        """Depth and locked places of every queue with places, and the number of live messages."""
        found = self.replay.finish(writer_epoch=None if recovering else self.epoch)
        return {queue: (counts.depth, counts.locked) for queue, counts in found.queues.items()}, found.messages


WORK = """
import random
r = random.Random(int(sys.argv[2]))
from logstore.errors import StoreError
queues = store.queues() or [store.declare_queue(f"q{n}") for n in range(3)]
transactions, ids = list(store.in_doubt()), []
for n in range(300):
    tx = r.choice(transactions) if transactions and r.random() < 0.4 else None
    try:
        match r.choice("ppppddddesSbbooEPQ"):
            case "Q":
                store.delete_queue(queues.pop(r.randrange(3)), wait=False)
                queues.append(store.declare_queue(f"q{os.urandom(8).hex()}"))
            case "p":
                content = bytes(r.choice([0, 9, 30000]))
                ids.append(store.publish(r.sample(queues, 2), content, transaction=tx, wait=False))
            case "d": store.dequeue(r.choice(ids), r.choice(queues), tx, wait=False)
            case "e": store.enqueue(r.choice(ids), r.choice(queues), tx, wait=False)
            case "s": ids.append(store.stage(b"h", b"c"))
            case "S": store.append_content(ids[-1], bytes(40000))
            case "b":
                xid = logstore.Xid(1, os.urandom(8), b"") if r.random() < 0.7 else None
                transactions.append(store.begin(xid))
            case "o":
                one = transactions.pop(r.randrange(len(transactions)))
                (one.commit if r.random() < 0.6 else one.rollback)(wait=False)
            case "E": r.choice(transactions).end()
            case "P": r.choice(transactions).prepare(wait=False)
    except (StoreError, IndexError, ValueError):
        pass
store.force()
stats = store.stats()
said = {name: stats[name] for name in ("messages", "transactions")}
counts = stats["queues"]
said["queues"] = {queue.id: [counts[queue.name]["depth"], counts[queue.name]["locked"]] for queue in queues}
print(json.dumps(said), flush=True)
sys.stdin.read()
"""
