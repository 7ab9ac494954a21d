"""Measures moves and notes beside what a broker does without them.

    python benchmarks/moving.py [--dir DIR] [--rounds 7] [--messages 200]

A move with a header of 200 bytes beside a publish and a dequeue of a message of 24 bytes, for contents of 24 bytes and
of 1 MiB; a note of 24 bytes beside a dequeue. Each way is durable in the same sense: every call waits for the disk, or
none does and one force ends the round. Rounds alternate; ratios are medians of the rounds' ratios: above 1 the first is
faster.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import logstore

if TYPE_CHECKING:
    from collections.abc import Callable

    from logstore import MessageStore

HEADER = b"h" * 200
SMALL = b"x" * 24
CONTENTS = {"24 B": SMALL, "1 MiB": b"x" * (1 << 20)}


class Bench:
    """One store with two queues."""

    def __init__(self, store: MessageStore, messages: int) -> None:
        self.store = store
        self.messages = messages
        self.one, self.other, self.third = (store.declare_queue(name) for name in ("one", "other", "third"))

    def timed(self, calls: list[Callable[[], object]]) -> float:
        self.store.force()
        began = time.perf_counter()
        for call in calls:
            call()
        self.store.force()
        return time.perf_counter() - began

    def moves(self, content: bytes, *, wait: bool) -> float:
        count = self.messages  # whatever the content: a round's force and its first calls are shared by as many
        self.store.publish_many(self.one, [content] * count)
        held = self.one.acquire(count)
        seconds = self.timed([lambda d=d: self.one.move(d, self.other, header=HEADER, wait=wait) for d in held])
        self.other.purge()
        return seconds / count

    def publishes_and_dequeues(self, *, wait: bool) -> float:
        def once() -> None:
            key = self.store.publish(self.third, SMALL, wait=wait)
            self.store.dequeue(key, self.third, wait=wait)

        return self.timed([once] * self.messages) / self.messages

    def notes(self, *, wait: bool) -> float:
        keys = self.store.publish_many(self.third, [SMALL] * self.messages)
        seconds = self.timed([lambda key=key: self.store.annotate(key, self.third, SMALL, wait=wait) for key in keys])
        self.third.purge()
        return seconds / self.messages

    def dequeues(self, *, wait: bool) -> float:
        keys = self.store.publish_many(self.third, [SMALL] * self.messages)
        return self.timed([lambda key=key: self.store.dequeue(key, self.third, wait=wait) for key in keys]) / len(keys)


def measure(store: MessageStore, rounds: int, messages: int) -> dict[str, object]:
    """Microseconds for each operation, and the ratios."""
    bench = Bench(store, messages)
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        for wait in (True, False):
            how = "each waits" if wait else "one force"
            for size, content in CONTENTS.items():
                found.setdefault(f"move, {size}, {how}", []).append(bench.moves(content, wait=wait))
            found.setdefault(f"publish and dequeue, {how}", []).append(bench.publishes_and_dequeues(wait=wait))
            found.setdefault(f"note, {how}", []).append(bench.notes(wait=wait))
            found.setdefault(f"dequeue, {how}", []).append(bench.dequeues(wait=wait))
    ratios = {}
    for how in ("each waits", "one force"):
        for size in CONTENTS:
            ratios[f"move, {size}, {how}"] = (f"publish and dequeue, {how}", f"move, {size}, {how}")
        ratios[f"note, {how}"] = (f"dequeue, {how}", f"note, {how}")
    return {
        "load": os.getloadavg()[0],
        "microseconds": {name: round(statistics.median(each) * 1e6, 1) for name, each in found.items()},
        "ratios": {
            name: round(statistics.median(a / b for a, b in zip(found[x], found[y], strict=True)), 2)
            for name, (x, y) in ratios.items()
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--dir", type=Path, default=None, help="where the store is made; default: the temporary directory"
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--messages", type=int, default=200)
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(dir=given.dir, prefix="logstore-moving-") as directory,
        logstore.open(Path(directory) / "store") as store,
    ):
        print(json.dumps(measure(store, given.rounds, given.messages), indent=2))


if __name__ == "__main__":
    main()
