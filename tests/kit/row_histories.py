"""Random histories of a store, for code that turns logs into rows: all kinds of records in many orders.

A history is determined by its seed. It restarts the store, in order and after a kill, and uses a small log, so that
chains are relocated and their old records recycled.
"""

from __future__ import annotations

import random
from contextlib import suppress
from typing import TYPE_CHECKING

import logstore
from kit.killed import and_then_killed
from logstore.core.xid import Xid
from logstore.errors import StoreError

if TYPE_CHECKING:
    from pathlib import Path

SEGMENT = 512 << 10


class History:
    """A store at work; `messages` are those that may still be live, `open` the open transactions."""

    def __init__(self, path: Path, seed: int, messages: list[int]) -> None:
        self.random = random.Random(seed)
        self.queues = ["one", "two", "three", "four"]
        self.messages = list(messages)
        self.transactions: list[logstore.Transaction] = []
        self.staged: list[int] = []
        self.xids = seed
        self.store = logstore.open(path, segment_size=SEGMENT, durability="relaxed")
        for name in self.queues:
            self.store.declare_queue(name)

    def run(self, steps: int, weight: int = 1) -> None:
        """Run this many steps; a larger `weight` gives larger contents and fuller segments."""
        acts = [self.publish] * 6 + [self.fan_out, self.big, self.stage, self.enqueue] * 2
        acts += [self.dequeue] * 6 + [self.transact, self.work, self.work, self.settle, self.settle, self.destroy]
        for _ in range(steps):
            with suppress(StoreError, IndexError, ValueError):  # locked, gone, ended or absent: random work meets these
                self.random.choice(acts)(weight)

    def content(self, weight: int) -> bytes:
        return self.random.randbytes(self.random.choice([0, 1, 40, 300, 2000]) * weight)

    def some(self, least: int = 1) -> list[str]:
        return self.random.sample(self.queues, self.random.randint(least, len(self.queues)))

    def publish(self, weight: int) -> None:
        name, header = self.random.choice(self.queues), self.random.randbytes(self.random.choice([0, 0, 9, 70]))
        self.messages.append(self.store.publish(name, self.content(weight), header=header, wait=False))

    def fan_out(self, weight: int) -> None:
        self.messages.append(self.store.publish(self.some(2), self.content(weight), wait=False))

    def big(self, weight: int) -> None:
        pieces = [self.random.randbytes(self.random.choice([10, 30_000])) for _ in range(self.random.randint(2, 4))]
        self.messages.append(self.store.publish(self.random.choice(self.queues), pieces, wait=False))

    def stage(self, weight: int) -> None:
        staged = self.store.stage(b"h", self.content(weight), wait=False)
        self.staged.append(staged)
        if self.random.random() < 0.5:
            self.store.append_content(staged, self.content(weight), wait=False)

    def enqueue(self, weight: int) -> None:
        pool = self.staged if self.staged and self.random.random() < 0.7 else self.messages
        message = self.random.choice(pool or [1 << 40])
        tx = self.random.choice(self.transactions) if self.transactions and self.random.random() < 0.3 else None
        self.store.enqueue(message, self.random.choice(self.queues), tx, wait=False)
        if message in self.staged:
            self.staged.remove(message)
            self.messages.append(message)

    def dequeue(self, weight: int) -> None:
        if self.random.random() < 0.3:
            for delivery in self.store.queue(self.random.choice(self.queues)).acquire(self.random.randint(1, 4)):
                self.random.choice([delivery.accept, delivery.reject, delivery.release])()
            return
        message = self.random.choice(self.messages[-60:] or [1 << 40])
        for name in self.random.sample(self.queues, len(self.queues)):
            with suppress(StoreError):
                self.store.dequeue(message, name, wait=False)
                return

    def destroy(self, weight: int) -> None:
        self.store.destroy(self.staged.pop(), wait=False)

    def transact(self, weight: int) -> None:
        if len(self.transactions) < 5:
            self.xids += 1
            xid = Xid(self.random.randint(-3, 3), b"%d" % self.xids, b"b") if self.random.random() < 0.5 else None
            self.transactions.append(self.store.begin(xid))

    def work(self, weight: int) -> None:
        tx = self.random.choice(self.transactions)
        for _ in range(self.random.randint(1, 3)):
            if self.random.random() < 0.5:
                names = self.some() if self.random.random() < 0.3 else self.random.choice(self.queues)
                self.messages.append(self.store.publish(names, self.content(weight), transaction=tx))
            else:
                message = self.random.choice(self.messages[-60:])
                self.store.dequeue(message, self.random.choice(self.queues), tx)

    def settle(self, weight: int) -> None:
        tx = self.transactions.pop(self.random.randrange(len(self.transactions)))
        if tx.xid is not None and self.random.random() < 0.7:
            tx.end()
            tx.prepare()
            if self.random.random() < 0.3:
                return  # in doubt
        self.random.choice([tx.commit, tx.commit, tx.rollback])()

    def drop_queue(self) -> None:
        """Deletes a queue with all that is on it, and makes another of that name."""
        name = self.random.choice(self.queues)
        self.store.delete_queue(name)
        self.store.declare_queue(name)

    def settle_doubt(self) -> None:
        """Decides some transactions that an earlier epoch left in doubt."""
        for tx in self.store.in_doubt():
            if self.random.random() < 0.5:
                self.random.choice([tx.commit, tx.rollback])()


def epoch(path: Path, seed: int, messages: list[int], steps: int, weight: int, kept: list[object]) -> list[int]:
    """One epoch of a history, which closes in order or, for half of the seeds, does not. Returns its messages."""
    history = History(path, seed, messages)
    kept.append(history)
    history.settle_doubt()
    history.run(steps // 2, weight)
    if history.random.random() < 0.3:
        history.drop_queue()
    history.run(steps - steps // 2, weight)
    if weight > 1:
        history.store.compact()
        history.run(20, 1)
    if history.random.random() < 0.5:
        history.store.close()
    else:
        history.store.force()
        history.store.publish("one", b"so that a batch says that the rest was durable")
    return history.messages


def make_history(path: Path, seed: int, *, epochs: int = 3, steps: int = 150, weight: int = 1) -> None:
    """A store at `path` with a history of several epochs, each in a process that was killed at its end."""
    messages: list[int] = []
    for number in range(epochs):
        messages = and_then_killed(epoch, path, seed * 1000 + number, messages, steps, weight)
