"""Measures what a consumer that waits costs, as a thread and as a task, beside a hand-over without a store.

    python benchmarks/waiting.py [--dir DIR] [--rounds 5] [--messages 1500]

A thread that waits with ``acquire(timeout=)`` and is answered by a durable publish, beside a ``threading.Condition``
and a durable publish alone; then processor time a message of one task with one message in flight, and of 1,000 tasks on
1,000 queues with one each; and how often 64 threads and 1,000 tasks wake while nothing arrives.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import logstore

if TYPE_CHECKING:
    from collections.abc import Callable

    from logstore import MessageStore, Queue

BODY = b"x" * 100
APART_S = 0.0002  # between two messages, so that the thread waits again
QUIET_S = 10.0


def handed_over(count: int, give: Callable[[], object], take: Callable[[], object]) -> float:
    """Median microseconds from the begin of ``give`` to the end of ``take`` in another thread."""
    taken: list[int] = []
    done = threading.Event()

    def work() -> None:
        for _ in range(count):
            take()
            taken.append(time.perf_counter_ns())
            done.set()

    thread = threading.Thread(target=work)
    thread.start()
    spent = []
    for number in range(count):
        time.sleep(APART_S)
        began = time.perf_counter_ns()
        give()
        done.wait()
        done.clear()
        spent.append(taken[number] - began)
    thread.join()
    return statistics.median(spent) / 1000


def by_condition(count: int) -> float:
    condition, box = threading.Condition(), []

    def give() -> None:
        with condition:
            box.append(1)
            condition.notify()

    def take() -> None:
        with condition:
            while not box:
                condition.wait()
            box.clear()

    return handed_over(count, give, take)


def by_store(store: MessageStore, queue: Queue, count: int) -> float:
    return handed_over(
        count,
        lambda: store.publish(queue, BODY),
        lambda: queue.acquire(1, timeout=math.inf)[0].accept(wait=False),
    )


def publish_alone(store: MessageStore, queue: Queue, count: int) -> float:
    spent = []
    for _ in range(count):
        began = time.perf_counter_ns()
        store.publish(queue, BODY)
        spent.append(time.perf_counter_ns() - began)
    return statistics.median(spent) / 1000


async def one_in_flight(store: MessageStore, queues: list[Queue], count: int) -> None:
    """On each queue one task takes a message and publishes the next, ``count`` times."""

    async def consume(queue: Queue) -> None:
        for _ in range(count):
            (delivery,) = await queue.get()
            delivery.accept(wait=False)
            store.publish(queue, BODY, wait=False)

    for queue in queues:
        store.publish(queue, BODY, wait=False)
    await asyncio.gather(*map(consume, queues))
    for queue in queues:
        queue.purge(wait=False)


def processor_us(store: MessageStore, queues: list[Queue], count: int) -> float:
    began = time.process_time()
    asyncio.run(one_in_flight(store, queues, count))
    return (time.process_time() - began) / count / len(queues) * 1e6


def switches() -> int:
    """How often the threads of this process have slept."""
    texts = [path.read_text("ascii") for path in Path("/proc/self/task").glob("*/status")]
    return sum(int(text.partition("\nvoluntary_ctxt_switches:")[2].split()[0]) for text in texts)


async def woken(store: MessageStore, queues: list[Queue]) -> int:
    """Switches of all threads in a quiet time, with a task on each queue and 64 threads that wait."""
    idle = queues[0]
    threads = [threading.Thread(target=lambda: idle.acquire(1, timeout=QUIET_S + 5)) for _ in range(64)]
    for thread in threads:
        thread.start()
    tasks = [asyncio.ensure_future(queue.get(timeout=QUIET_S + 5)) for queue in queues]
    while store.stats()["waiting"] < len(threads) + len(tasks):  # noqa: ASYNC110 - the core has no event for it
        await asyncio.sleep(0.01)
    before = switches()
    await asyncio.sleep(QUIET_S)
    count = switches() - before
    store.publish_many(idle, [BODY] * (len(threads) + 1))
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for thread in threads:
        await asyncio.to_thread(thread.join)
    return count


def main() -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", type=Path, help="where the store is made (default: the directory for temporary files)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, default=1500)
    given = parser.parse_args()
    figures: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(dir=given.dir) as place, logstore.open(f"{place}/store") as store:
        queue = store.declare_queue("q")
        alone = store.declare_queue("alone")
        many = [store.declare_queue(f"q{number}") for number in range(1000)]
        for _ in range(given.rounds):
            for name, value in {
                "publish_us": publish_alone(store, alone, given.messages),
                "condition_us": by_condition(given.messages),
                "acquire_us": by_store(store, queue, given.messages),
                "one_task_cpu_us": processor_us(store, many[:1], given.messages),
                "thousand_tasks_cpu_us": processor_us(store, many, 40),
            }.items():
                figures.setdefault(name, []).append(value)
        medians = {name: round(statistics.median(values), 1) for name, values in figures.items()}
        ratio = medians["acquire_us"] / (medians["publish_us"] + medians["condition_us"])
        woke = asyncio.run(woken(store, many))
    print(json.dumps({**medians, "ratio": round(ratio, 2), "switches_in_quiet": woke, "quiet_s": QUIET_S}))


if __name__ == "__main__":
    main()
