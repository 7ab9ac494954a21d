"""Measures what listeners cost those who do not listen.

    python benchmarks/telling.py [--dir DIR] [--rounds 7] [--messages 2000] [--listeners 2000]

The rollback of one dequeue in a store with 10 queues and in one with 10,000, with a listener. Then the rate of durable
publishes in a store where listeners of one kind were opened and closed, beside a store that never had one: called by
the store's thread, by one event loop, and by a loop each. Rounds alternate; ratios are medians of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import asyncio
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

    from logstore import Listener, MessageStore, Queue

BODY = b"x" * 100
QUEUES = 10, 10_000
ROLLBACKS = 300


def listener_calls(store: MessageStore, queue: Queue) -> dict[str, Callable[..., Listener]]:
    """The registering calls by name."""
    return {
        "on_durable": store.on_durable,
        "on_fullness": store.on_fullness,
        "on_death": store.on_death,
        "on_in_doubt": store.on_in_doubt,
        "on_arrived": queue.on_arrived,
        "on_released": queue.on_released,
        "on_release": store.on_release,
    }


def nothing(_: object) -> None:
    """A callback."""


def in_thread(register: Callable[..., Listener], count: int) -> None:
    listeners = [register(nothing) for _ in range(count)]
    for listener in listeners:
        listener.close()


def in_one_loop(register: Callable[..., Listener], count: int) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        listeners = [register(nothing, loop=loop) for _ in range(count)]
        for listener in listeners:
            listener.close()

    asyncio.run(main())


def in_loops(register: Callable[..., Listener], count: int) -> None:
    for _ in range(count):
        loop = asyncio.SelectorEventLoop()
        listener = register(nothing, loop=loop)
        loop.close()
        listener.close()


WAYS = {"thread": in_thread, "one loop": in_one_loop, "loops of their own": in_loops}


def rate(store: MessageStore, queue: Queue, messages: int) -> float:
    """Durable publishes a second."""
    began = time.perf_counter()
    for _ in range(messages):
        store.publish(queue, BODY)
    spent = time.perf_counter() - began
    queue.purge()
    return messages / spent


def after_listeners(directory: str, kind: str, way: str, options: argparse.Namespace) -> dict[str, float]:
    """Rates before and after, in two stores that are measured in turns: one with the listeners of the past."""
    with logstore.open(Path(directory) / "plain") as plain, logstore.open(Path(directory) / "told") as told:
        stores = [(store, store.declare_queue("q")) for store in (plain, told)]
        WAYS[way](listener_calls(*stores[1])[kind], options.listeners)
        for one in stores:
            rate(*one, options.messages // 4)
        rounds = [[rate(*one, options.messages) for one in stores] for _ in range(options.rounds)]
    return {
        "before_s": statistics.median(before for before, _ in rounds),
        "after_s": statistics.median(after for _, after in rounds),
        "ratio": statistics.median(after / before for before, after in rounds),
    }


def rollback_us(store: MessageStore, queue: Queue) -> float:
    """Median of one rollback of one dequeue."""
    key = store.publish(queue, BODY)
    spent = []
    for _ in range(ROLLBACKS):
        transaction = store.begin()
        store.dequeue(key, queue, transaction)
        began = time.perf_counter_ns()
        transaction.rollback(wait=False)
        spent.append(time.perf_counter_ns() - began)
    return statistics.median(spent) / 1000


def rollbacks(directory: str, rounds: int) -> dict[str, float]:
    """At both numbers of queues, in turns."""
    stores = []
    for count in QUEUES:
        store = logstore.open(Path(directory) / f"{count}")
        queues = [store.declare_queue(f"q{number}") for number in range(count)]
        store.on_release(nothing)
        stores.append((store, queues[count // 2]))
    found = [[rollback_us(*one) for one in stores] for _ in range(rounds)]
    for store, _ in stores:
        store.close()
    return {
        f"{QUEUES[0]}_us": statistics.median(few for few, _ in found),
        f"{QUEUES[1]}_us": statistics.median(many for _, many in found),
        "ratio": statistics.median(many / few for few, many in found),
    }


def main() -> None:
    """Prints the figures as JSON, one line each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", default=None)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--messages", type=int, default=2000)
    parser.add_argument("--listeners", type=int, default=2000)
    options = parser.parse_args()
    print(json.dumps({"load": [round(one, 2) for one in os.getloadavg()]}))
    with tempfile.TemporaryDirectory(dir=options.dir) as directory:
        print(json.dumps({"rollback": rollbacks(directory, options.rounds)}), flush=True)
    for kind in ("on_durable", "on_fullness", "on_death", "on_in_doubt", "on_arrived", "on_released", "on_release"):
        for way in WAYS:
            if kind == "on_release" and way != "thread":
                continue  # it takes no loop
            with tempfile.TemporaryDirectory(dir=options.dir) as directory:
                print(json.dumps({kind: way, **after_listeners(directory, kind, way, options)}), flush=True)
    print(json.dumps({"load": [round(one, 2) for one in os.getloadavg()]}))


if __name__ == "__main__":
    main()
