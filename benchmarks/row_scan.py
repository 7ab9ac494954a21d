"""How fast the core turns a log into rows: million records a second on one thread, compared with verification alone.

One log of small messages, half of them consumed, is scanned several times in turn: verified only; with different
columns; as messages. Wall time and the thread's CPU time are reported.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

import logstore
import logstore.arrow
from logstore._core import ffi, lib
from logstore.inspect import Reader
from logstore.rows.messages import MessageScan

if TYPE_CHECKING:
    from collections.abc import Callable

COLUMNS = {
    "lsn": ["lsn"],
    "lsn, type, id, time": ["lsn", "type", "id", "time"],
    "and queue, sizes": ["lsn", "type", "id", "time", "queue", "record_bytes", "content_bytes"],
    "and enqueue time, effect": [
        *("lsn", "type", "id", "time", "queue", "record_bytes", "content_bytes"),
        *("enqueue_lsn", "enqueue_time", "tx_id", "outcome", "effect_lsn"),
    ],
    "all but bodies": None,
}


def write_log(path: Path, messages: int) -> None:
    """Publish messages of 40 bytes on eight queues; every other one is consumed at once."""
    with logstore.open(path, durability="relaxed") as store:
        queues = [store.declare_queue(f"queue {number}") for number in range(8)]
        for number in range(messages // 1000):
            queue = queues[number % 8]
            ids = store.publish_many(queue, [b"x" * 40] * 1000, headers=[b"h=1"] * 1000)
            store.dequeue_many(list(ids)[::2], queue)


def verified(path: Path) -> int:
    """Records that the reader has verified, in batches and no more."""
    with Reader(path) as reader:
        lsn = ffi.new("uint64_t *")
        while lib.ls_reader_skim(reader.handle, 1 << 24, lsn) == 0:
            pass
    return 0


def rows(path: Path, columns: list[str] | None) -> int:
    """How many rows the scanner gives."""
    return sum(batch.num_rows for batch in logstore.arrow.read(path, columns=columns))


def messages(path: Path) -> int:
    """How many messages have ended, and are open."""
    with MessageScan(path, start_lsn=0, stop_lsn=(1 << 63) - 1, seed=None, queue_names={}) as scan:
        return sum(batch.num_rows for batch in scan) + scan.open_rows().num_rows


def measure(works: dict[str, Callable[[], int]], rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Seconds of wall and of CPU time, in turns."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            wall, cpu = time.perf_counter(), time.thread_time()
            work()
            found[name].append((time.perf_counter() - wall, time.thread_time() - cpu))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=3_000_000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--quick", action="store_true", help="200 000 messages, three rounds")
    given = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="logstore-bench-"))
    try:
        path = directory / "store"
        write_log(path, 200_000 if given.quick else given.messages)
        records = rows(path, ["lsn"])
        with Reader(path) as reader:
            size = sum(one.end_lsn - one.first_lsn for one in reader.segments())
        works: dict[str, Callable[[], int]] = {"verified, no rows": lambda: verified(path)}
        works |= {name: lambda columns=columns: rows(path, columns) for name, columns in COLUMNS.items()}
        works["messages"] = lambda: messages(path)
        table = Table("what", "million records/s", "least to most", "of CPU time", "MB/s of log")
        for name, times in measure(works, 3 if given.quick else given.rounds).items():
            walls = sorted(records / wall / 1e6 for wall, _ in times)
            cpu = statistics.median(records / own / 1e6 for _, own in times)
            middle = statistics.median(walls)
            table.add_row(
                name,
                f"{middle:.2f}",
                f"{walls[0]:.2f} to {walls[-1]:.2f}",
                f"{cpu:.2f}",
                f"{middle * size / records:.0f}",
            )
        Console(width=120).print(f"{records:,} records in {size / 1e6:.0f} MB of log, from the page cache", table)
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
