"""Messages that wait for a time, beside messages that do not: offering, memory, and opening.

    python benchmarks/scheduled.py [--dir DIR] [--messages 1000000] [--due 100000] [--rounds 5]

* Offering: a queue has messages whose times are in random order; in each round a tenth of them becomes due, at random
  places, and ``acquire`` takes them all, 1,000 at a time. Two other stores have as many messages without times, of
  which the same number is taken: in one those at the front, which follow each other in memory; in the other those at
  the scheduled ones' positions, while a consumer holds the rest. So the first ratio has the cost of scattered memory
  and of the index of times, the second that of the index. The stores take turns; the first acquire of a round finds
  what is due. Times are CPU time of the thread, which other work on the machine disturbs less.
* Memory: resident bytes of a message on one queue, without times, with one and with both; each in a process of its own.
* Opening: the same stores, with a checkpoint and by a replay of the whole log, in turn.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import logstore

KINDS = ("plain", "not_before", "both")
CONTENT = b"8 bytes."
SEGMENT_BYTES = 16 << 20
AT_ONCE = 1000
FAR_S = 30 * 86_400.0


def open_at(path: Path) -> logstore.MessageStore:
    return logstore.open(path, segment_size=SEGMENT_BYTES, durability="relaxed")


def acquire_all(queue: logstore.Queue, count: int) -> tuple[float, list[logstore.Delivery]]:
    """Nanoseconds a message to acquire this many."""
    held: list[logstore.Delivery] = []
    began = time.thread_time_ns()
    while len(held) < count and (more := queue.acquire(min(AT_ONCE, count - len(held)))):
        held += more
    spent = time.thread_time_ns() - began
    assert len(held) == count
    return spent / count, held


def settle(queue: logstore.Queue, held: list[logstore.Delivery]) -> float:
    """Nanoseconds a message to accept them."""
    began = time.thread_time_ns()
    for at in range(0, len(held), AT_ONCE):
        queue.accept_many(held[at : at + AT_ONCE], wait=False)
    return (time.thread_time_ns() - began) / len(held)


def fill(store: logstore.MessageStore, queue: logstore.Queue, messages: int) -> None:
    for _ in range(messages // AT_ONCE):
        store.publish_many(queue, [CONTENT] * AT_ONCE, wait=False)
    store.force()


def acquire_by_group(queue: logstore.Queue, groups: list[int], rounds: int) -> list[list[logstore.Delivery]]:
    """Acquires everything; the deliveries of each round's positions."""
    found: list[list[logstore.Delivery]] = [[] for _ in range(rounds + 1)]
    for group, delivery in zip(groups, acquire_all(queue, len(groups))[1], strict=True):
        found[group].append(delivery)
    return found


Cost = tuple[float, float]  # nanoseconds a message: to acquire it, to accept it


def offering(place: Path, messages: int, due: int, rounds: int) -> list[tuple[Cost, ...]]:
    """Of each round the costs of messages that are due, of neighbours without times, and of scattered ones without."""
    chance = random.Random(1)
    groups = [number for number in range(rounds) for _ in range(due)]
    groups += [rounds] * (messages - len(groups))  # these are never due
    chance.shuffle(groups)
    lead_s, apart_s = 20 + messages * 15e-6, 2 + due * 20e-6
    with (
        open_at(place / "scheduled") as scheduled,
        open_at(place / "neighbours") as neighbours,
        open_at(place / "scattered") as scattered,
    ):
        queues = [store.declare_queue("q") for store in (scheduled, neighbours, scattered)]
        fill(neighbours, queues[1], messages)
        fill(scattered, queues[2], messages)
        others = acquire_by_group(queues[2], groups, rounds)
        first = time.time() + lead_s
        for group in groups:
            at = (
                first + group * apart_s + chance.random()
                if group < rounds
                else time.time() + FAR_S * chance.random() + 3600
            )
            scheduled.publish(queues[0], CONTENT, not_before=at, wait=False)
        scheduled.force()
        assert time.time() < first, "the machine is too slow for these times: fewer messages"
        found = []
        for number in range(rounds):
            for delivery in others[number]:
                queues[2].release(delivery, unseen=True)
            others[number] = []
            time.sleep(max(0.0, first + number * apart_s + 1.2 - time.time()))
            gc.collect()
            gc.disable()
            taken = [acquire_all(queue, due) for queue in queues]
            found.append(
                tuple((spent, settle(queue, held)) for queue, (spent, held) in zip(queues, taken, strict=True))
            )
            gc.enable()
            del taken
        return found


# ---- memory, and stores to open ----


def resident() -> int:
    """Bytes of this process's own memory that are in use."""
    gc.collect()
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Anonymous:"))


def publish(store: logstore.MessageStore, kind: str, count: int) -> None:
    queue, chance = store.queue("q"), random.Random(2)
    if kind == "plain":
        for _ in range(count // AT_ONCE):
            store.publish_many(queue, [CONTENT] * AT_ONCE, wait=False)
        return
    for _ in range(count):
        at = time.time() + 3600 + FAR_S * chance.random()
        store.publish(queue, CONTENT, not_before=at, expires=at + 60 if kind == "both" else None, wait=False)


def build(path: Path, kind: str, count: int) -> None:
    """In a process of its own: prints the resident bytes of a message."""
    with open_at(path) as store:
        queue = store.declare_queue("q")
        for _ in range(3):  # every write buffer is touched, and every code path
            publish(store, kind, 20 * AT_ONCE)
            for _ in range(200):
                store.publish(queue, bytes(256 << 10), wait=False)
            queue.purge(wait=False)
        store.checkpoint()
        before = resident()
        publish(store, kind, count)
        store.force()
        print(json.dumps((resident() - before) / count))


def open_once(path: Path, count: int) -> None:
    """In a process of its own: prints the seconds that an open takes; ends without a close."""
    began = time.perf_counter()
    store = open_at(path)
    spent = time.perf_counter() - began
    assert store.queue("q").depth == count
    print(json.dumps(spent), flush=True)
    os._exit(0)


def child(*arguments: object) -> Any:
    done = subprocess.run(
        [sys.executable, __file__, *map(str, arguments)], check=True, stdout=subprocess.PIPE, text=True
    )
    return json.loads(done.stdout)


def opening(place: Path, messages: int, rounds: int, *, replays: bool) -> dict[str, float]:
    """Median seconds of an open for each kind; the kinds take turns."""
    spent: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for _ in range(rounds):
        for kind in KINDS:
            if replays:
                (place / kind / "CHECKPOINT").unlink(missing_ok=True)
            spent[kind].append(child("open", place / kind, messages))
    return {kind: statistics.median(each) for kind, each in spent.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--dir", type=Path, help="where to put the stores; default: the system's temporary directory")
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--due", type=int, default=100_000, help="messages that become due in a round")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory(dir=options.dir) as made:
        place = Path(made)
        found = offering(place, options.messages, options.due, options.rounds)
        for name, costs in (
            ("acquire", [[cost[0] for cost in one] for one in found]),
            ("acquire and accept", [[sum(cost) for cost in one] for one in found]),
        ):
            timed, near, far = (statistics.median(each) for each in zip(*costs, strict=True))
            ratios = [statistics.median(one[0] / one[other] for one in costs) for other in (1, 2)]
            print(
                f"{name}: {timed:.0f} ns a message that is due; without times {near:.0f} (ratio {ratios[0]:.2f}), "
                f"as scattered {far:.0f} ({ratios[1]:.2f})"
            )
        for kind in KINDS:
            print(f"{kind}: {child('build', place / kind, kind, options.messages):.1f} bytes a message in memory")
        for replays in (False, True):
            spent = opening(place, options.messages, options.rounds, replays=replays)
            how = "replay" if replays else "checkpoint"
            print(f"open by {how}: " + ", ".join(f"{kind} {seconds:.3f} s" for kind, seconds in spent.items()))
    print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["build"]:
        build(Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
    elif sys.argv[1:2] == ["open"]:
        open_once(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        main()
