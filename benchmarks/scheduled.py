"""Messages that wait for a time, beside messages that do not: offering, memory, and opening.

    python benchmarks/scheduled.py [--dir DIR] [--messages 1000000] [--due 100000] [--rounds 5]

* Offering: a queue has messages whose times are in random order; in each round a tenth of them becomes due, at random
  places, and ``acquire`` takes them all, 1,000 at a time. Two other stores have as many messages without times, of
  which the same number is taken: in one those at the front, which follow each other in memory; in the other those at
  the scheduled ones' positions, while a consumer holds the rest. So the first ratio has the cost of scattered memory
  and of the index of times, the second that of the index. The stores take turns; the first acquire of a round finds
  what is due. Times are CPU time of the thread, which other work on the machine disturbs less.
* All due: the same for queues of which every message becomes due at once, at random times of a second that has passed.
* A steady clock: another tenth of the scheduled messages becomes due within a second, and every hundredth of it a
  consumer takes what is due, and as many from the front of the queue without times.
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


def cost(queue: logstore.Queue, count: int) -> Cost:
    spent, held = acquire_all(queue, count)
    return spent, settle(queue, held)


def steadily(queues: list[logstore.Queue], count: int) -> tuple[Cost, ...]:
    """Of each queue the costs when this many become due on the first one, and are taken as they do."""
    spent = [[0.0, 0.0] for _ in queues]
    done = 0
    while done < count:
        time.sleep(0.01)
        found = 0
        for number, queue in enumerate(queues):
            began = time.thread_time_ns()
            held = queue.acquire(count - done if number == 0 else found)
            spent[number][0] += time.thread_time_ns() - began
            if held:
                spent[number][1] += settle(queue, held) * len(held)
            found = len(held)
        done += found
    return tuple((acquired / count, settled / count) for acquired, settled in spent)


def schedule(store: logstore.MessageStore, queue: logstore.Queue, chance: random.Random, times: list[float]) -> None:
    for at in times:
        store.publish(queue, CONTENT, not_before=at + chance.random(), wait=False)


Costs = dict[str, list[tuple[Cost, ...]]]  # of each case and round those of the queues that are compared


def offering(place: Path, messages: int, due: int, rounds: int) -> Costs:
    """Costs of messages that are due, of neighbours without times, and of scattered ones without."""
    chance = random.Random(1)
    groups = [number for number in range(rounds + 1) for _ in range(due)]  # the last one is for the steady clock
    groups += [rounds + 1] * (messages - len(groups))  # these are never due
    chance.shuffle(groups)
    lead_s, apart_s = 20 + (messages + rounds * due) * 15e-6, 4 + due * 20e-6
    with (
        open_at(place / "scheduled") as scheduled,
        open_at(place / "neighbours") as neighbours,
        open_at(place / "scattered") as scattered,
    ):
        queues = [store.declare_queue("q") for store in (scheduled, neighbours, scattered)]
        together = [scheduled.declare_queue(f"together {number}") for number in range(rounds)]
        fill(neighbours, queues[1], (2 * rounds + 1) * due)
        fill(scattered, queues[2], messages)
        others = acquire_by_group(queues[2], groups, rounds + 1)
        first = time.time() + lead_s
        starts = [first + number * apart_s for number in range(rounds + 1)]
        never = first + 3600
        times = [starts[each] if each <= rounds else never + FAR_S * chance.random() for each in groups]
        schedule(scheduled, queues[0], chance, times)
        for number, queue in enumerate(together):
            schedule(scheduled, queue, chance, [starts[number] + apart_s / 2] * due)
        scheduled.force()
        assert time.time() < first, "the machine is too slow for these times: fewer messages"
        found: Costs = {"scattered": [], "all due": [], "steady clock": []}
        for number in range(rounds):
            for delivery in others[number]:
                queues[2].release(delivery, unseen=True)
            others[number] = []
            time.sleep(max(0.0, starts[number] + 1.2 - time.time()))
            gc.collect()
            gc.disable()
            found["scattered"].append(tuple(cost(queue, due) for queue in queues))
            time.sleep(max(0.0, starts[number] + apart_s / 2 + 1.2 - time.time()))
            found["all due"].append(tuple(cost(queue, due) for queue in (together[number], queues[1])))
            gc.enable()
        time.sleep(max(0.0, starts[rounds] - time.time()))
        found["steady clock"].append(steadily(queues[:2], due))
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
        for case, costs in found.items():
            for name, each in (
                ("acquire", [[cost[0] for cost in one] for one in costs]),
                ("acquire and accept", [[sum(cost) for cost in one] for one in costs]),
            ):
                timed, *plain = (statistics.median(of) for of in zip(*each, strict=True))
                ratios = [statistics.median(one[0] / one[1 + other] for one in each) for other in range(len(plain))]
                beside = [f"{spent:.0f} ({ratio:.2f})" for spent, ratio in zip(plain, ratios, strict=True)]
                print(f"{case}, {name}: {timed:.0f} ns a message; without times (ratio) {', '.join(beside)}")
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
