"""How fast a log is exported: megabytes of the log per second, records and messages together.

A log is written under a hold, so that all of it stays. It is exported several times to new targets, alternating with a
plain read of the same files, which is the upper bound, and with pyarrow writing the same tables, already in memory,
with the same encodings in one thread. Two logs: contents of 1 KiB, and of 24 bytes; each message is published and
consumed.
``--columns`` instead writes one row group with each possible encoding of each column, and prints size and time.
``--open N`` instead exports one new message beside N live ones, several times.
"""

from __future__ import annotations

import argparse
import random
import shutil
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

import logstore
from logstore.arrow import read
from logstore.export import export
from logstore.export.files import GROUP_ROWS
from logstore.export.files import _encodings as encodings
from logstore.holds import Hold, hold

if TYPE_CHECKING:
    from collections.abc import Iterator

MIB = 1 << 20
BATCH = 5000
LIVE = 5000
NESTED = ["places.list.element.queue", "places.list.element.reason"]
CONTENTS = {"1 KiB contents": 1024, "24 byte contents": 24}
ENCODINGS: dict[str, dict[str, object]] = {
    "plain": {},
    "dictionary": {"use_dictionary": True},
    "delta": {"column_encoding": "DELTA_BINARY_PACKED"},
    "byte stream split": {"column_encoding": "BYTE_STREAM_SPLIT"},
}


class Kept(Hold):
    """A hold that an export does not advance, so that the same log can be exported again."""

    def advance(self, lsn: int, *, expires_s: float | None = None) -> None:  # noqa: ARG002 - it stays where it is
        """Renew the hold's time."""
        self.renew(expires_s)


def write_log(path: Path, content_bytes: int, log_bytes: int) -> None:
    """Publish and consume messages of about this size in turn on eight queues, roughly in order."""
    chance = random.Random(content_bytes)
    contents = [bytes(chance.randint(content_bytes // 2, content_bytes * 3 // 2)) for _ in range(BATCH)]
    with logstore.open(path, durability="relaxed") as store:
        queues = [store.declare_queue(f"queue {number}") for number in range(8)]
        alive: list[tuple[int, logstore.Queue]] = []
        first = store.durable_lsn
        number = 0
        while store.durable_lsn - first < log_bytes:
            for content in contents:
                number += 1
                queue = queues[chance.randrange(len(queues))]
                header = b"text/plain; key=%d" % number
                alive.append((store.publish(queue, content, header=header, wait=False), queue))
                if len(alive) > LIVE:
                    at = chance.randrange(100)
                    alive[at], alive[0] = alive[0], alive[at]
                    store.dequeue(*alive.pop(0), wait=False)
            store.force()


def plain_read(path: Path) -> float:
    """Seconds to read all segments."""
    started = time.perf_counter()
    for segment in sorted(path.glob("*.seg")):
        with segment.open("rb", buffering=0) as file:
            while file.read(4 * MIB):
                pass
    return time.perf_counter() - started


@dataclass(frozen=True)
class Figures:
    """Of one export."""

    rate: float  # MB of the log per second
    cpu_rate: float  # MB of the log per second of processor time, which does not depend on other load
    size: float  # bytes of Parquet per byte of the log
    ratio: float  # seconds that pyarrow needs for the same tables in memory, per second of the export
    cpu_ratio: float  # the same of processor time
    records: int
    messages: int


def measure(path: Path, held: Hold, target: Path, compression: str) -> Iterator[Figures]:
    """Each call exports to a new target."""
    while True:
        cpu_s = time.process_time()
        report = export(path, target, hold=held, compression=compression)
        spent_s = time.process_time() - cpu_s
        alone_s, alone_cpu_s = written_alone(target, compression)
        shutil.rmtree(target)
        mb = report.log_bytes / 1e6
        size = report.bytes / report.log_bytes
        yield Figures(
            mb / report.seconds,
            mb / spent_s,
            size,
            alone_s / report.seconds,
            alone_cpu_s / spent_s,
            report.records,
            report.messages,
        )


def written_alone(target: Path, compression: str) -> tuple[float, float]:
    """Seconds, and seconds of processor time, in which pyarrow writes the export's tables, which are in memory."""
    codec, _, level = compression.partition(":")
    spent_s = cpu_s = 0.0
    for path in sorted(target.glob("[rmo]*/**/*.parquet")):
        names = [field.name for field in pq.read_schema(path) if field.type == pa.string()]
        rows = pq.read_table(path, partitioning=None, read_dictionary=[*names, *NESTED]).combine_chunks()
        started, cpu = time.perf_counter(), time.process_time()
        pq.write_table(
            rows,
            target / "alone",
            row_group_size=GROUP_ROWS,
            compression=codec,
            compression_level=int(level) if level else None,
            store_schema=False,
            write_page_index=True,
            **encodings(rows.schema),
        )
        spent_s += time.perf_counter() - started
        cpu_s += time.process_time() - cpu
    return spent_s, cpu_s


def run(directory: Path, log_bytes: int, rounds: int, compressions: list[str]) -> Table:
    """The figures of all logs."""
    table = Table(
        "log",
        "compression",
        "export, MB/s of log",
        "least and most",
        "MB per CPU second",
        "read alone, MB/s",
        "Parquet/log",
        "of pyarrow's rate",
        "of its CPU rate",
        "rows",
    )
    for name, content_bytes in CONTENTS.items():
        path = directory / f"log-{content_bytes}"
        logstore.open(path).close()
        with hold(path, "all", limit_bytes=1 << 40) as held:
            held.__class__ = Kept
            write_log(path, content_bytes, log_bytes)
            runs = {each: measure(path, held, directory / "target", each) for each in compressions}
            found: dict[str, list[Figures]] = {each: [] for each in compressions}
            reads = []
            for _ in range(rounds):
                reads.append(sum(each.stat().st_size for each in path.glob("*.seg")) / plain_read(path) / 1e6)
                for each, step in runs.items():
                    found[each].append(next(step))
        for each, rows in found.items():
            rates = [row.rate for row in rows]
            table.add_row(
                name,
                each,
                f"{statistics.median(rates):.0f}",
                f"{min(rates):.0f} to {max(rates):.0f}",
                f"{statistics.median(row.cpu_rate for row in rows):.0f}",
                f"{statistics.median(reads):.0f}",
                f"{rows[0].size:.3f}",
                f"{statistics.median(row.ratio for row in rows):.2f}",
                f"{statistics.median(row.cpu_ratio for row in rows):.2f}",
                f"{rows[0].records:,} records, {rows[0].messages:,} messages",
            )
        shutil.rmtree(path)
    return table


def columns(directory: Path, log_bytes: int) -> Table:
    """Bytes per row and nanoseconds per row of every column by every encoding that fits it."""
    path = directory / "log"
    logstore.open(path).close()
    table = Table("column", *[f"{name} {level}" for name in ENCODINGS for level in ("zstd:1", "zstd:3")])
    with hold(path, "all", limit_bytes=1 << 40) as held:
        write_log(path, 24, log_bytes)
        rows = pa.Table.from_batches(list(read(path, hold=held))).unify_dictionaries().combine_chunks()
    for name in rows.column_names:
        cells = []
        for options in ENCODINGS.values():
            cells += [_written(directory / "one.parquet", rows.select([name]), dict(options), at) for at in (1, 3)]
        table.add_row(name, *cells)
    return table


def beside_open(directory: Path, live: int, rounds: int) -> Table:
    """The time of runs with one new message beside so many live ones, after the first run."""
    path, target = directory / "log", directory / "target"
    with logstore.open(path, durability="relaxed") as store:
        queue = store.declare_queue("queue")
        for at in range(0, live, BATCH):
            store.publish_many(queue, [bytes(24)] * min(BATCH, live - at))
    export(path, target)
    spent = []
    for _ in range(rounds):
        with logstore.open(path) as store:
            store.publish("queue", b"new")
        started, cpu = time.perf_counter(), time.process_time()
        report = export(path, target)
        spent.append((time.perf_counter() - started, time.process_time() - cpu, report.bytes))
    table = Table("live messages", "seconds", "seconds of CPU", "least and most", "bytes of records")
    cpus = [cpu for _, cpu, _ in spent]
    table.add_row(
        f"{live:,}",
        f"{statistics.median(one for one, _, _ in spent):.2f}",
        f"{statistics.median(cpus):.2f}",
        f"{min(cpus):.2f} to {max(cpus):.2f}",
        f"{spent[0][2]:,}",
    )
    return table


def _written(path: Path, rows: pa.Table, options: dict[str, object], level: int) -> str:
    if "column_encoding" in options:
        options |= {"column_encoding": {rows.column_names[0]: options["column_encoding"]}}
    started = time.perf_counter()
    try:
        pq.write_table(rows, path, compression="zstd", compression_level=level, **({"use_dictionary": False} | options))
    except (pa.ArrowException, OSError):
        return "-"
    spent = time.perf_counter() - started
    return f"{path.stat().st_size / rows.num_rows:.2f} B {spent / rows.num_rows * 1e9:.0f} ns"


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=512, help="of log")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--compression", default="zstd:1", help="several are given with commas")
    parser.add_argument("--columns", action="store_true")
    parser.add_argument("--open", type=int, metavar="N")
    parser.add_argument("--dir", type=Path)
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="exports-", dir=options.dir))
    try:
        if options.open is not None:
            Console(width=120).print(beside_open(directory, options.open, options.rounds))
        elif options.columns:
            Console(width=220).print(columns(directory, options.mib * MIB))
        else:
            Console(width=160).print(run(directory, options.mib * MIB, options.rounds, options.compression.split(",")))
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
