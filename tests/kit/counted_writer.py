"""A writer process that says before and after each durable change what every queue must count, until it is killed.

``python -m kit.counted_writer DIR SEED`` prints JSON lines: ``{"next": counts}`` before a change, ``{"done": counts}``
after it. ``counts`` is the state that an open would find, per queue ``[depth, locked, bytes, locked bytes]``, from
plain sums of its own. Work of local transactions, and what consumers hold, is in none of them. It ends by itself after
``CHANGES_MAX`` changes.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import logstore
from logstore import Xid

if TYPE_CHECKING:
    from logstore import Delivery, Transaction

QUEUES = ("one", "two", "dead")
SEGMENT = 512 << 10
CHANGES_MAX = 5000
SIZES = (0, 1, 300, 5000, 90_000)  # the last takes several records

Change = dict[str, list[int]]


class Writer:
    """The store, and what is on its queues."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.store = logstore.open(directory, segment_size=SEGMENT)
        dead = self.store.declare_queue("dead")
        self.store.declare_queue("one", dead_letter=dead)
        self.store.declare_queue("two")
        self.free: dict[str, dict[int, int]] = {name: {} for name in QUEUES}  # ids and sizes, without transactions
        self.counts: Change = {name: [0, 0, 0, 0] for name in QUEUES}
        self.held: list[Delivery] = []
        self.local: list[tuple[Transaction, list[tuple[str, int, int]]]] = []
        self.prepared: list[tuple[Transaction, list[tuple[str, int, int]], list[tuple[str, int, int]]]] = []

    def expect(self, changes: list[tuple[str, int, int, int, int]]) -> None:
        """Announces a change."""
        for name, *amounts in changes:
            self.counts[name] = [one + more for one, more in zip(self.counts[name], amounts, strict=True)]
        say({"next": self.counts})

    def pick(self, name: str, n: int) -> list[tuple[str, int, int]]:
        """Takes some free places out of the model: queue, id, size."""
        chosen = self.chance.sample(sorted(self.free[name]), min(n, len(self.free[name])))
        return [(name, key, self.free[name].pop(key)) for key in chosen]

    def put_back(self, places: list[tuple[str, int, int]]) -> None:
        for name, key, size in places:
            self.free[name][key] = size

    # ---- changes ----

    def publish(self) -> None:
        size, names = self.chance.choice(SIZES), self.chance.sample(("one", "two"), self.chance.choice((1, 2)))
        self.expect([(name, 1, 0, size, 0) for name in names])
        key = self.store.publish(names, bytes(size))
        self.put_back([(name, key, size) for name in names])

    def accept(self) -> None:
        name = self.chance.choice(QUEUES)
        for _, key, size in self.pick(name, 1):
            self.expect([(name, -1, 0, -size, 0)])
            self.store.dequeue(key, name)

    def reject(self) -> None:
        for name, key, size in self.pick("one", 1):
            self.expect([(name, -1, 0, -size, 0), ("dead", 1, 0, size, 0)])
            (delivery,) = self.store.queue(name).acquire_ids([key])
            delivery.reject()
            self.put_back([("dead", key, size)])

    def hold(self) -> None:
        """A consumer acquires places and settles none."""
        for name, key, _ in self.pick(self.chance.choice(QUEUES), 1):
            self.held += self.store.queue(name).acquire_ids([key])

    def work_of(self, transaction: Transaction) -> tuple[list[tuple[str, int, int]], list[tuple[str, int, int]]]:
        """Dequeues one or two places, if any are free, and publishes a message."""
        name = self.chance.choice([one for one in QUEUES if self.free[one]] or QUEUES)
        taken, size = self.pick(name, 2), self.chance.choice(SIZES)
        for _, key, _ in taken:
            self.store.dequeue(key, name, transaction=transaction)
        return taken, [("two", self.store.publish("two", bytes(size), transaction=transaction), size)]

    def leave_open(self) -> None:
        transaction = self.store.begin()
        self.local.append((transaction, self.work_of(transaction)[0]))

    def roll_back(self) -> None:
        if self.local:
            transaction, taken = self.local.pop(0)
            transaction.rollback()
            self.put_back(taken)

    def prepare(self) -> None:
        transaction = self.store.begin(Xid(1, self.chance.randbytes(8)))
        taken, made = self.work_of(transaction)
        transaction.end()
        self.expect([(name, 0, 1, 0, size) for name, _, size in taken])
        transaction.prepare()
        self.prepared.append((transaction, taken, made))

    def settle(self) -> None:
        """Of any transaction but the first, which stays in doubt."""
        if len(self.prepared) < 2:
            return
        transaction, taken, made = self.prepared.pop()
        if self.chance.random() < 0.5:
            ended = [(name, -1, -1, -size, -size) for name, _, size in taken]
            self.expect([*ended, *((name, 1, 0, size, 0) for name, _, size in made)])
            transaction.commit()
            self.put_back(made)
        else:
            self.expect([(name, 0, -1, 0, -size) for name, _, size in taken])
            transaction.rollback()
            self.put_back(taken)

    def checkpoint(self) -> None:
        self.store.checkpoint()

    def compact(self) -> None:
        self.store.compact()

    def work(self) -> None:
        often: list[Any] = [self.publish] * 12 + [self.accept] * 6 + [self.reject, self.hold] * 2
        often += [self.leave_open, self.roll_back, self.prepare, self.settle] * 2 + [self.checkpoint, self.compact]
        self.publish()
        self.prepare()
        for _ in range(CHANGES_MAX):
            self.chance.choice(often)()
            say({"done": self.counts})


def say(line: dict[str, Change]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    Writer(Path(sys.argv[1]), int(sys.argv[2])).work()
