"""Spark on the log in place, compared with Spark on the Parquet files of the same log.

A log of small messages, each published and consumed, is written under a hold and exported. Then four scans, in turn:
counting rows, sum of two columns, grouping by four columns, reading all columns; from the Python source, which gets the
columns as a schema, from the JVM connector, if its jar is built, and from the exported records, of which Parquet reads
only used columns. Also one operator's query: how many messages of
one queue were consumed in a twenty-fourth of the log's time (an hour of a day), and after how long; from the records of
the log, and from the exported messages.

Then the log goes on for a hundredth of its length, and the same scans, and a count, read the table of the export and
the log above it: "table". They are compared with Spark on the Parquet files of a second export, which has all of these
records: "whole export". "table of a long tail" is the same with the log's side read by tasks.

Everything runs in one session with two cores; reported are medians and the middle half of the turns.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

import logstore
import logstore.spark
from logstore.export import export
from logstore.holds import hold
from logstore.spark import joined
from logstore.spark.engines import connector_jar

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from logstore.holds import Hold

BATCH = 5000
QUEUES = 8
HOURS = 24

TAIL = 100  # the table's log side is this part of the log

SCANS: dict[str, list[str]] = {
    "count": ["lsn"],
    "two columns": ["lsn", "record_bytes"],
    "four columns": ["type", "queue", "lsn", "record_bytes"],
    "all columns": [],
}


def write_log(path: Path, records: int) -> None:
    """About so many records: a message of 24 bytes is published on one of the queues and consumed a little later."""
    contents = [b"%024d" % number for number in range(BATCH)]
    with logstore.open(path, durability="relaxed", segment_size=16 << 20) as store:
        queues = [store.declare_queue(f"queue {number}") for number in range(QUEUES)]
        waiting: list[tuple[Any, Any]] = []
        for turn in range(max(1, records // 2 // BATCH)):
            queue = queues[turn % QUEUES]
            waiting.append((store.publish_many(queue, contents), queue))
            if len(waiting) > QUEUES:
                store.dequeue_many(*waiting.pop(0))
        for made in waiting:
            store.dequeue_many(*made)


def scanned(frame: DataFrame, name: str) -> None:
    """Reads these columns of all rows."""
    if name == "count":
        frame.count()
    elif name == "two columns":
        frame.selectExpr("sum(lsn)", "sum(record_bytes)").collect()
    elif name == "four columns":
        frame.groupBy("type", "queue").agg({"lsn": "max", "record_bytes": "sum"}).collect()
    else:
        frame.write.format("noop").mode("overwrite").save()


def took(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def asked_of_records(records: DataFrame, queue: str, start: str, stop: str) -> tuple[Any, ...]:
    """How many messages of a queue were consumed in this time, and after how many µs in the mean."""
    found = records.where(
        f"type = 'MESSAGE_DEQUEUE' AND queue = '{queue}' AND effect_time >= {start} AND effect_time < {stop}"
    )
    (row,) = found.selectExpr("count(*)", "avg(unix_micros(effect_time) - unix_micros(enqueue_time))").collect()
    return tuple(row)


def asked_of_messages(messages: DataFrame, queue: str, start: str, stop: str) -> tuple[Any, ...]:
    """The same of the messages; the day is what prunes directories, the time what prunes row groups and pages."""
    found = messages.where(
        f"day = to_date({start}) AND queue = '{queue}' AND end_time >= {start} AND end_time < {stop} "
        "AND outcome = 'dequeued'"
    )
    (row,) = found.selectExpr("count(*)", "avg(unix_micros(dequeue_time) - unix_micros(enqueue_time))").collect()
    return tuple(row)


def measure(spark: SparkSession, path: Path, target: Path, held: Hold, turns: int) -> dict[str, Any]:
    """Seconds of each turn, by what was done and where."""
    records = spark.read.parquet(str(target / "records"))
    messages = spark.read.parquet(str(target / "messages"))
    (bounds,) = records.selectExpr("unix_micros(min(time))", "unix_micros(max(time))", "count(*)").collect()
    first, last, count = bounds
    width = (last - first) // HOURS
    start, stop = (f"timestamp_micros({first + width * (HOURS // 2 + n)})" for n in (0, 1))
    found: dict[str, Any] = {"records": count, "seconds": {}}
    with logstore.spark.held(spark, path, hold=held, engine="python") as whole:
        for turn in range(-1, turns):  # the first turn is not counted: it compiles code and loads files into memory
            for name, columns in SCANS.items():
                with logstore.spark.held(spark, path, columns=columns or None, hold=held, engine="python") as source:
                    times = {
                        "source": took(lambda source=source, name=name: scanned(source, name)),
                        "parquet": took(lambda name=name: scanned(records.drop("day"), name)),
                    }
                if connector_jar() is not None:
                    with logstore.spark.held(spark, path, hold=held, engine="jvm") as connector:
                        times["connector"] = took(lambda frame=connector, name=name: scanned(frame, name))
                if turn >= 0:
                    for way, seconds in times.items():
                        found["seconds"].setdefault(f"{name}, {way}", []).append(seconds)
            began = time.perf_counter()
            of_log = asked_of_records(whole, "queue 3", start, stop)
            between = time.perf_counter()
            of_messages = asked_of_messages(messages, "queue 3", start, stop)
            ended = time.perf_counter()
            if of_log != of_messages:
                raise SystemExit(f"the log says {of_log}, and the exported messages {of_messages}")
            found["answer"] = of_log
            if turn >= 0:
                for way, seconds in (("log", between - began), ("exported", ended - between)):
                    found["seconds"].setdefault(f"one queue, one hour, {way}", []).append(seconds)
    return found


def measure_table(spark: SparkSession, path: Path, target: Path, whole: Path, turns: int) -> dict[str, list[float]]:
    """Seconds of each turn: the table of the export in ``target`` and the log above it, and the equal export."""
    seconds: dict[str, list[float]] = {}
    equal = spark.read.parquet(str(whole / "records")).drop("day")
    rows = equal.count()
    eager = joined.EAGER_BYTES
    for turn in range(-1, turns):
        for name in ("count", *SCANS):
            columns = SCANS.get(name) or None
            times = {}
            for way, limit in (("table", eager), ("table of a long tail", 0)):
                joined.EAGER_BYTES = limit
                made = time.perf_counter()
                frame = logstore.spark.read(spark, path, export=target, columns=columns)
                seconds.setdefault(f"{name}, made {way}", []).append(time.perf_counter() - made)
                if turn < 0 and frame.count() != rows:
                    raise SystemExit(f"the table has {frame.count()} rows, and the equal export {rows}")
                times[way] = took(lambda frame=frame, name=name: scanned(frame, name))
            times["whole export"] = took(lambda name=name: scanned(equal, name))
            if turn >= 0:
                for way, one in times.items():
                    seconds.setdefault(f"{name}, {way}", []).append(one)
    joined.EAGER_BYTES = eager
    return seconds


def show(found: dict[str, Any]) -> None:
    count, seconds = found["records"], found["seconds"]
    table = Table("what", "seconds", "middle half", "million records/s", "ratio", title=f"{count:,} records")
    goals = {
        "source": [("parquet", "of Parquet's speed")],
        "connector": [("parquet", "of Parquet's speed"), ("source", "× the Python source's")],
        "exported": [("log", "× the log's speed (goal 5)")],
        "table": [("whole export", "of Parquet's (goal 0.85)")],
        "table of a long tail": [("whole export", "of Parquet's (goal 0.85)")],
    }
    for name, samples in seconds.items():
        middle = statistics.median(samples)
        low, _, high = statistics.quantiles(samples, n=4, method="inclusive") if len(samples) > 1 else samples * 3
        what, _, way = name.rpartition(", ")
        ratios = []
        for other, said in goals.get(way, []):
            pairs = zip(seconds[f"{what}, {other}"], samples, strict=True)
            ratios.append(f"{statistics.median(theirs / ours for theirs, ours in pairs):.2f} {said}")
        ratio = ", ".join(ratios)
        table.add_row(name, f"{middle:.3f}", f"{low:.3f} to {high:.3f}", f"{count / middle / 1e6:.2f}", ratio)
    Console(width=140).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small log and few turns, to test the program")
    parser.add_argument("--records", type=int, default=12_000_000, help="in the log (12000000)")
    parser.add_argument("--turns", type=int, default=7, help="of each (7)")
    parser.add_argument("--json", action="store_true", help="the seconds of every turn")
    given = parser.parse_args()
    records, turns = (400_000, 2) if given.quick else (given.records, given.turns)
    place = Path(tempfile.mkdtemp(prefix="logstore-spark-scan-"))
    try:
        path, target = place / "store", place / "export"
        logstore.open(path, segment_size=16 << 20).close()
        kept: dict[str, Any] = {"limit_bytes": 1 << 40, "expires_s": 86_400}
        with hold(path, "benchmark", **kept) as held, hold(path, "export", **kept) as moving:
            write_log(path, records)
            export(path, target, hold=moving)
            conf = {"spark.master": "local[2]", "spark.sql.shuffle.partitions": "2", "spark.driver.memory": "3g"}
            spark = logstore.spark.session(log_level="FATAL", conf=conf)
            found = measure(spark, path, target, held, turns)
            write_log(path, records // TAIL)
            shutil.copytree(target, place / "whole")
            export(path, place / "whole", hold=moving)
            found["seconds"] |= measure_table(spark, path, target, place / "whole", turns)
            spark.stop()
        if given.json:
            print(json.dumps(found))
        else:
            show(found)
    finally:
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    main()
