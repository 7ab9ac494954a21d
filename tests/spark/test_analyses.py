"""The analyses on Spark: the same results as plain Python from the same log, with minimal query plans."""

from __future__ import annotations

import re
from collections import defaultdict
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as f
from pyspark.testing import assertDataFrameEqual

import logstore.spark
from kit.row_oracle import message_rows
from kit.torture import part_of
from logstore import arrow
from logstore.errors import OptionError
from logstore.report.counts import step_us
from logstore.rows.messages import MessageScan
from logstore.spark import analyses as spark_analyses

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

MINUTE = timedelta(minutes=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Log:
    """One log as Spark's three tables, and as plain Python's rows."""

    def __init__(self, spark: SparkSession, store_dir: Path, files: Path, rows: list[dict[str, Any]]) -> None:
        names = arrow.queue_names(store_dir)
        pq.write_table(pa.Table.from_pylist(rows, arrow.RECORDS), files / "records.parquet")
        with MessageScan(store_dir, start_lsn=0, stop_lsn=1 << 62, seed=None, queue_names=names) as scan:
            closed = pa.Table.from_batches([batch.cast(arrow.MESSAGES) for batch in scan], arrow.MESSAGES)
            opened = scan.open_rows().cast(arrow.OPEN)
        pq.write_table(closed, files / "messages.parquet")
        pq.write_table(opened, files / "open.parquet")
        self.records = spark.read.parquet(str(files / "records.parquet"))
        self.messages = spark.read.parquet(str(files / "messages.parquet"))
        self.open = spark.read.parquet(str(files / "open.parquet"))
        self.both = logstore.spark.everything(self.messages, self.open)
        self.rows = rows
        self.closed_rows, self.open_rows = message_rows(store_dir)
        self.places = [place for row in [*self.closed_rows, *self.open_rows] for place in row["places"]]


@pytest.fixture(scope="module")
def log(
    spark: SparkSession, mixed: Path, mixed_rows: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> Log:
    return Log(spark, mixed, tmp_path_factory.mktemp("tables"), mixed_rows)


def rows_of(table: DataFrame) -> list[dict[str, Any]]:
    """By way of Arrow, so that times know their zone."""
    return table.toArrow().to_pylist()


def cut(time: datetime | None, us: timedelta) -> datetime | None:
    return None if time is None else time - (time - EPOCH) % us


def executed(table: DataFrame) -> str:
    """The plan by which this table was computed, or else is computed now."""
    execution = table._jdf.queryExecution()
    if "isFinalPlan=false" in execution.executedPlan().toString():
        table.collect()
    plan: str = execution.executedPlan().toString()
    assert "isFinalPlan=true" in plan or "AdaptiveSparkPlan" not in plan
    return plan.split("+- == Initial Plan ==", maxsplit=1)[0]


def keys_of_shuffles(plan: str) -> list[set[str]]:
    """The keys of each shuffle in the plan."""
    assert "rangepartitioning" not in plan
    assert "RoundRobin" not in plan
    found = re.findall(r"Exchange hashpartitioning\((.*?), \d+\)", plan)
    return [{re.sub(r"#\d+L?", "", key) for key in keys.split(", ")} for keys in found]


def no_detour(plan: str) -> None:
    for word in (
        "Python",
        "ArrowEval",
        "BatchEval",
        "MapInArrow",
        "CartesianProduct",
        "BroadcastNestedLoop",
        "Collect ",
    ):
        assert word not in plan, word


# ---- Depth


def expected_depth(places: list[dict[str, Any]]) -> set[tuple[int, datetime | None, int, int, int]]:
    flows: dict[int, dict[datetime | None, list[int]]] = defaultdict(lambda: defaultdict(lambda: [0, 0]))
    for place in places:
        flows[place["queue_id"]][cut(place["enqueue_time"], MINUTE)][0] += 1
        if place["dequeue_lsn"] is not None:
            flows[place["queue_id"]][cut(place["dequeue_time"], MINUTE)][1] += 1
    found = set()
    for queue_id, starts in flows.items():
        depth = 0
        for start in sorted(starts, key=lambda one: one or EPOCH):
            came, went = starts[start]
            depth += came - went
            found.add((queue_id, start, came, went, depth))
    return found


def depth_rows(table: DataFrame) -> set[tuple[int, datetime | None, int, int, int]]:
    rows = rows_of(table)
    assert {tuple(row) for row in rows} == {("queue_id", "queue", "start", "enqueued", "ended", "depth")}
    return {(row["queue_id"], row["start"], row["enqueued"], row["ended"], row["depth"]) for row in rows}


def test_queue_depth_counts_every_place_of_the_log(log: Log) -> None:
    table = logstore.spark.queue_depth(log.both, "1 minute")
    assert depth_rows(table) == expected_depth(log.places)
    plan = executed(table)
    no_detour(plan)
    assert keys_of_shuffles(plan)[-1] <= {"queue_id", "queue", "_groupingexpression", "start"}
    assert sorted(map(len, keys_of_shuffles(plan))) == [1, 3], "by queue, name and interval; then by queue"
    assert plan.count("Window [") == 1
    assert plan.count("HashAggregate(keys=[queue_id") >= 2, "what is shuffled was counted first"
    assert "Join" not in plan


def test_queue_depth_of_records_is_that_of_messages(log: Log) -> None:
    first = min(row["lsn"] for row in log.rows)
    expected = {row[:2]: row[4] for row in expected_depth(log.places)}
    for snapshot in (True, False):
        table = logstore.spark.queue_depth(log.records, MINUTE, open=log.open, first_lsn=first, snapshot=snapshot)
        # What was there before the log begins and went with its queue is in no record but the deletion.
        last: dict[int, int] = {row[0]: row[4] for row in sorted(depth_rows(table), key=lambda row: row[1] or EPOCH)}
        wanted = {queue: depth for (queue, _), depth in sorted(expected.items(), key=lambda one: one[0][1] or EPOCH)}
        assert last == wanted
        assert ("Join" in executed(table)) is not snapshot
        no_detour(executed(table))


def parts(rows: list[dict[str, Any]], at: int, spark: SparkSession) -> DataFrame:
    """The rows as in two exports, of which the first ended below `at`."""
    decided = {row["tx_id"]: row["lsn"] for row in rows if row["type"] in ("TX_COMMIT", "TX_ROLLBACK")}
    prepared = {row["tx_id"]: row["lsn"] for row in rows if row["type"] == "TX_PREPARE"}
    made = []
    for row in rows:
        late = decided.get(row["tx_id"], 0)
        if row["lsn"] < at <= late:
            state = "prepared" if prepared.get(row["tx_id"], at) < at else "open"
            changed = {"outcome": state}
            if row["type"] in ("MESSAGE_START", "MESSAGE_ENQUEUE", "MESSAGE_DEQUEUE"):
                changed |= {"effect_lsn": None, "effect_time": None}
            row = row | changed
        made.append(row)
    return spark.createDataFrame(pa.Table.from_pylist(made, arrow.RECORDS))


def test_a_transaction_decided_in_a_later_file_counts_at_its_decision(spark: SparkSession, log: Log) -> None:
    commits = [row["lsn"] for row in log.rows if row["type"] == "TX_COMMIT"]
    assert len(commits) > 1
    whole = depth_rows(logstore.spark.queue_depth(log.records, MINUTE, snapshot=True))
    undecided = 0
    for at in part_of(commits, 3):
        split = parts(log.rows, at, spark)
        undecided += split.where("outcome = 'open' or outcome = 'prepared'").count()
        assert depth_rows(logstore.spark.queue_depth(split, MINUTE)) == whole
        assert doubts(logstore.spark.in_doubt(split)) == doubts(logstore.spark.in_doubt(log.records))
    assert undecided > 0


# ---- Latency


def waited(places: list[dict[str, Any]]) -> dict[tuple[int, date], list[int]]:
    found: dict[tuple[int, date], list[int]] = defaultdict(list)
    for place in places:
        if place["dequeue_time"] and place["enqueue_time"] and place["reason"] in (None, "accepted", "rejected"):
            us = (place["dequeue_time"] - place["enqueue_time"]) // timedelta(microseconds=1)
            found[place["queue_id"], place["dequeue_time"].date()].append(max(us, 0))
    return found


def test_latency_gives_exact_counts_and_extremes_and_percentiles_within_its_bound(log: Log) -> None:
    table = logstore.spark.latency(log.messages)
    closed = [place for row in log.closed_rows for place in row["places"]]
    expected = waited(closed)
    rows = {(row["queue_id"], row["day"]): row for row in rows_of(table)}
    assert rows.keys() == expected.keys()
    for key, values in expected.items():
        values.sort()
        row = rows[key]
        assert (row["count"], row["min_us"], row["max_us"]) == (len(values), values[0], values[-1])
        assert row["mean_us"] == pytest.approx(sum(values) / len(values))
        for name, rank in (("p50_us", 0.5), ("p90_us", 0.9), ("p99_us", 0.99)):
            allowed = max(2, round(0.0133 * len(values)) + 1)
            at = round(rank * len(values))
            low, high = values[max(at - allowed, 0)], values[min(at + allowed, len(values) - 1)]
            assert low <= row[name] <= high, (key, name)
    plan = executed(table)
    no_detour(plan)
    assert len(keys_of_shuffles(plan)) == 1
    assert "partial_kll_sketch_agg_bigint" in plan, "sketches are shuffled, not latencies"
    assert "Window" not in plan


def test_sketches_of_days_merge_to_those_of_all_days(log: Log) -> None:
    sketches = logstore.spark.latency_sketches(log.messages)
    merged = logstore.spark.merge_latency(sketches)
    expected: dict[int, list[int]] = defaultdict(list)
    for (queue_id, _), values in waited([place for row in log.closed_rows for place in row["places"]]).items():
        expected[queue_id] += values
    rows = {row["queue_id"]: row for row in rows_of(merged)}
    assert {key: (row["count"], row["min_us"], row["max_us"]) for key, row in rows.items()} == {
        key: (len(values), min(values), max(values)) for key, values in expected.items()
    }
    by_day = rows_of(logstore.spark.merge_latency(sketches, "day"))
    assert sum(row["count"] for row in by_day) == sum(map(len, expected.values()))
    size = max(row["size"] for row in rows_of(sketches.select(f.length("sketch").alias("size"))))
    assert size <= 8192
    no_detour(executed(merged))


def test_a_histogram_has_each_latency_in_its_step(log: Log) -> None:
    table = logstore.spark.latency_histogram(log.both)
    counted: dict[tuple[int, int], int] = {(row["queue_id"], row["step"]): row["count"] for row in rows_of(table)}
    expected: dict[tuple[int, int], int] = defaultdict(int)
    bounds = [step_us(step) for step in range(128 + 64 * 40)]
    for (queue_id, _), values in waited(log.places).items():
        for us in values:
            (step,) = (step for step, (low, high) in enumerate(bounds) if low <= us < high)
            expected[queue_id, step] += 1
    assert counted == dict(expected)
    no_detour(executed(table))


# ---- The tail and what is in doubt


FIRST = datetime.min.replace(tzinfo=UTC)  # for records that the log no longer has


def waits_on(row: dict[str, Any]) -> list[int]:
    return [place["queue_id"] for place in row["places"] if place["dequeue_lsn"] is None]


def test_holders_of_the_tail_are_found_without_a_shuffle(log: Log) -> None:
    table = logstore.spark.pinning(log.open, 7)
    expected = sorted(log.open_rows, key=lambda row: (row["enqueue_time"] or row["start_time"] or FIRST, row["id"]))[:7]
    found = rows_of(table)
    assert [(row["id"], row["queue_id"], row["moved"]) for row in found] == [
        (row["id"], next(iter(waits_on(row)), None), row["copy_count"] > 0) for row in expected
    ]
    assert [row["since"] for row in found] == [row["enqueue_time"] or row["start_time"] for row in expected]
    assert [row["places"] for row in found] == [len(waits_on(row)) for row in expected]
    plan = executed(table)
    assert "Exchange" not in plan
    assert "TakeOrderedAndProject" in plan
    no_detour(plan)


def test_live_messages_are_counted_by_queue(log: Log) -> None:
    table = logstore.spark.pinning_by_queue(log.open)
    expected: dict[int | None, list[dict[str, Any]]] = defaultdict(list)
    for row in log.open_rows:
        for queue_id in waits_on(row) or [None]:
            expected[queue_id].append(row)
    assert {row["queue_id"]: (row["messages"], row["content_bytes"], row["oldest_id"]) for row in rows_of(table)} == {
        key: (len(rows), sum(row["content_bytes"] for row in rows), min(row["id"] for row in rows))
        for key, rows in expected.items()
    }
    no_detour(executed(table))


def doubts(table: DataFrame) -> list[tuple[Any, ...]]:
    return sorted((row["tx_id"], row["xid"], row["operations"], tuple(row["queue_ids"])) for row in rows_of(table))


def test_prepared_transactions_without_an_outcome_are_in_doubt(log: Log) -> None:
    table = logstore.spark.in_doubt(log.records)
    prepared = {row["tx_id"]: row for row in log.rows if row["outcome"] == "prepared"}
    assert len(prepared) == 2
    found = {row["tx_id"]: row for row in rows_of(table)}
    assert found.keys() == prepared.keys()
    for tx_id, row in found.items():
        mine = [one for one in log.rows if one["tx_id"] == tx_id]
        works = [one for one in mine if one["type"] in ("MESSAGE_START", "MESSAGE_ENQUEUE", "MESSAGE_DEQUEUE")]
        assert row["operations"] == len(works)
        assert row["xid"] == max(one["xid"] for one in mine if one["xid"])
        times = [one["time"] for one in mine if one["type"] == "TX_PREPARE"] or [min(one["time"] for one in mine)]
        assert row["since"] == times[0]
    plan = executed(table)
    no_detour(plan)
    assert all(keys == {"tx_id"} for keys in keys_of_shuffles(plan))
    assert "SortMergeJoin" not in plan, "outcomes are not shuffled: the few undecided go to them"


# ---- Bytes, deliveries, throughput


def test_bytes_by_queue_of_messages_sum_up_to_all_of_them(log: Log) -> None:
    table = logstore.spark.bytes_by_queue(log.both)
    expected: dict[int | None, list[int]] = defaultdict(lambda: [0] * 5)
    for row in [*log.closed_rows, *log.open_rows]:
        numbers = (1, *(row[name] for name in ("place_count", "content_bytes", "record_bytes", "copied_bytes")))
        expected[row["queue_id"]] = [one + other for one, other in zip(expected[row["queue_id"]], numbers, strict=True)]
    columns = ("messages", "places", "content_bytes", "record_bytes", "copied_bytes")
    found = {row["queue_id"]: row for row in rows_of(table)}
    assert {key: [row[name] for name in columns] for key, row in found.items()} == dict(expected)
    for row in found.values():
        if row["record_bytes"]:
            assert row["write_amplification"] == pytest.approx(
                (row["record_bytes"] + row["copied_bytes"]) / row["record_bytes"]
            )
    assert sum(row["copied_bytes"] for row in found.values()) > 0
    plan = executed(table)
    no_detour(plan)
    assert "Join" not in plan
    assert [len(keys) for keys in keys_of_shuffles(plan)] in ([1, 2], [2, 1])


def test_bytes_by_queue_of_records_sum_up_to_the_log(log: Log) -> None:
    rows = rows_of(logstore.spark.bytes_by_queue(log.records))
    assert sum(row["record_bytes"] + row["copied_bytes"] for row in rows) == sum(
        one["record_bytes"] for one in log.rows
    )
    assert sum(row["places"] for row in rows) == sum(
        one["queue_count"]
        for one in log.rows
        if one["type"] in ("MESSAGE_START", "MESSAGE_ENQUEUE") and not one["relocated"]
    )


def test_redeliveries_and_dead_letters_are_counted_by_queue(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "store"
    with logstore.open(path, segment_size=1 << 19) as store:
        store.declare_queue("dead")
        orders = store.declare_queue("orders", dead_letter="dead")
        store.publish_many(orders, [b"x"] * 20)
        for delivery in orders.acquire(6):
            delivery.release()
        taken = orders.acquire(6)  # a delivery that is dropped would be released
        for delivery in taken[:4]:
            delivery.accept()
        for delivery in orders.acquire(3):
            delivery.reject()
    names = arrow.queue_names(path)
    with MessageScan(path, start_lsn=0, stop_lsn=1 << 62, seed=None, queue_names=names) as scan:
        closed = pa.Table.from_batches([batch.cast(arrow.MESSAGES) for batch in scan], arrow.MESSAGES)
        opened = scan.open_rows().cast(arrow.OPEN)
    both = logstore.spark.everything(spark.createDataFrame(closed), spark.createDataFrame(opened))
    again = logstore.spark.redeliveries(both)
    assertDataFrameEqual(
        again.select("queue", "settled", "told", "redelivered", "deliveries", "most"),
        spark.createDataFrame([("orders", 7, 7, 4, 11, 2)], again.select("queue", *again.columns[2:]).schema),
    )
    dead = logstore.spark.dead_lettered(both)
    (row,) = rows_of(dead)
    assert (row["queue"], row["count"], row["day"]) == ("orders", 3, row["last_time"].date())
    for table in (again, dead):
        no_detour(executed(table))
        assert "Join" not in executed(table)


def test_throughput_counts_every_record_in_its_interval(log: Log) -> None:
    table = logstore.spark.throughput(log.records, "10 seconds")
    expected: dict[datetime | None, list[int]] = defaultdict(lambda: [0] * 7)
    for row in log.rows:
        numbers = (
            1,
            row["record_bytes"],
            row["record_bytes"] * row["relocated"],
            int(row["type"] == "MESSAGE_START" and not row["relocated"]),
            0 if row["relocated"] else row["content_bytes"] or 0,
            int(row["type"] == "TX_COMMIT"),
            int(row["type"] == "TX_ROLLBACK"),
        )
        start = cut(row["time"], timedelta(seconds=10))
        expected[start] = [one + other for one, other in zip(expected[start], numbers, strict=True)]
    found = {row.pop("start"): list(row.values()) for row in rows_of(table)}
    assert found == dict(expected)
    plan = executed(table)
    no_detour(plan)
    assert len(keys_of_shuffles(plan)) == 1
    assert "SortAggregate" not in plan


# ---- All of them


def test_defining_an_analysis_starts_no_job_and_a_query_for_one_day_reads_only_that_day(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    days = tmp_path / "messages"
    log.messages.withColumn("day", f.lit("2026-01-01")).write.partitionBy("day").parquet(str(days))
    log.messages.withColumn("day", f.lit("2026-01-02")).write.mode("append").partitionBy("day").parquet(str(days))
    messages = spark.read.parquet(str(days))
    spark.sparkContext.setJobGroup("asking", "nothing may run")
    one_day = messages.where(f.col("day") == "2026-01-01")
    asked: list[Callable[[], DataFrame]] = [
        lambda: logstore.spark.queue_depth(one_day, MINUTE),
        lambda: logstore.spark.latency(one_day),
        lambda: logstore.spark.bytes_by_queue(one_day),
        lambda: logstore.spark.redeliveries(one_day),
        lambda: logstore.spark.dead_lettered(one_day),
        lambda: logstore.spark.in_doubt(log.records),
        lambda: logstore.spark.throughput(log.records, MINUTE),
        lambda: logstore.spark.pinning_by_queue(log.open),
    ]
    tables = [ask() for ask in asked]
    assert list(spark.sparkContext.statusTracker().getJobIdsForGroup("asking")) == []
    spark.sparkContext.setJobGroup("reading", "one day")
    for table in tables[:4]:  # dead letters there are none, and Spark finds that out
        plan = executed(table)
        assert "PartitionFilters: [isnotnull(day" in plan
        read = re.search(r"ReadSchema: struct<(.*)", plan)
        assert read is not None
        assert "header_bytes" not in read[1], "columns that nobody asked for are not read"


def test_days_and_intervals_are_in_utc_whatever_the_session_says(spark: SparkSession, log: Log) -> None:
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kathmandu")
    try:
        days = {row["day"] for row in rows_of(logstore.spark.latency(log.messages))}
        starts = {row["start"] for row in rows_of(logstore.spark.queue_depth(log.both, "1 day"))} - {None}
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert days == {day for _, day in waited([place for row in log.closed_rows for place in row["places"]])}
    assert {(start - EPOCH) % timedelta(days=1) for start in starts} == {timedelta(0)}


def test_an_interval_is_a_timedelta_or_a_text() -> None:
    for text, us in (
        ("1 second", 10**6),
        ("15 minutes", 900 * 10**6),
        ("2 Hours", 7200 * 10**6),
        ("1 day", 86400 * 10**6),
    ):
        assert spark_analyses.interval_us(text) == us
    assert spark_analyses.interval_us(timedelta(milliseconds=5)) == 5000
    for wrong in ("", "minute", "1 month", "-1 day", "0 seconds", "1000 days", timedelta(0)):
        with pytest.raises(OptionError, match="is no interval"):
            spark_analyses.interval_us(wrong)
