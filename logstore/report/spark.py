"""Counting for a report with Spark, by the analyses of :mod:`logstore.spark.analyses`.

The driver receives only counts: at most one row for each queue and interval, or queue and step of a histogram; never a
row for each message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logstore.core.moments import moment
from logstore.report.counts import OLDEST, WRITTEN, Counts, Deliveries, Doubt, Held, Latency, QueueBytes, micros
from logstore.spark import analyses as spark_analyses

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import timedelta

    from pyspark.sql import Column, DataFrame

    from logstore.report.counts import Grid, Scope

__all__ = ["count", "time_range"]


def time_range(records: DataFrame, gap_stop_lsn: int | None) -> tuple[tuple[int, int] | None, int | None]:
    """The first and the last time of the records, in µs (None if there are none), and the first one behind the gap."""
    from pyspark.sql import functions as f

    micros_of = f.unix_micros("time")
    behind = f.lit(False) if gap_stop_lsn is None else f.col("lsn") >= gap_stop_lsn
    resumed = f.min(f.when(behind, micros_of)).alias("resumed")
    (row,) = records.agg(f.min(micros_of).alias("first"), f.max(micros_of).alias("last"), resumed).collect()
    return None if row["first"] is None else (row["first"], row["last"]), row["resumed"]


def count(
    records: DataFrame,
    messages: DataFrame,
    open_rows: DataFrame,
    grid: Grid,
    scope: Scope,
    *,
    parts: bool,
    gap_stop_lsn: int | None,
) -> Counts:
    """The counts of a report from the three tables.

    ``parts``: the records were written at several moments, so a later part may decide a transaction that an earlier
    part calls undecided; then the records also give the transactions in doubt. ``gap_stop_lsn``: where the last gap of
    an export ends; a transaction without a record behind it ended in the gap.
    """
    from pyspark.sql import functions as f

    counts = Counts(grid, scope)
    everything = spark_analyses.everything(messages, open_rows)
    chosen = _of_queues(everything, scope)
    step = _step(grid)
    _flows(counts, records, everything, open_rows, scope, parts=parts)
    for row in _rows(spark_analyses.throughput(records.where(_within("time", scope)), step)):
        _written(counts, grid, row)
    ended = _ended_within(chosen, scope)
    for row in _rows(spark_analyses.latency_histogram(ended)):
        one = counts.latency.setdefault(row["queue_id"], Latency())
        one.add({row["step"]: row["count"]}, row["total_us"], row["min_us"], row["max_us"])
    for row in _rows(spark_analyses.redeliveries(ended)):
        counts.deliveries[row["queue_id"]] = Deliveries(
            row["settled"], row["told"], row["redelivered"], row["deliveries"], row["most"]
        )
    for row in _rows(spark_analyses.dead_lettered(ended).drop("day")):
        one_queue = counts.deliveries[row["queue_id"]]
        one_queue.dead += row["count"]
        one_queue.last_dead_us = max(micros(row["last_time"]), one_queue.last_dead_us or 0)
    first = everything.where(_on("queue_id", scope))
    began = first.where(_within(f.coalesce("start_time", "enqueue_time"), scope))
    for row in _rows(spark_analyses.bytes_by_queue(began)):
        names = ("messages", "places", "content_bytes", "record_bytes", "copied_bytes")
        counts.bytes[row["queue_id"]] = QueueBytes(*(row[name] for name in names))
    closed = messages.where(_on("queue_id", scope)).where(_within("end_time", scope))
    counts.outcomes = {row["outcome"]: row["count"] for row in _rows(closed.groupBy("outcome").count())}
    mine = _of_queues(open_rows, scope)
    _open(counts, mine.where(_on("queue_id", scope) | (f.size("places") > 0)))
    doubts = spark_analyses.in_doubt(records)
    if gap_stop_lsn is not None:
        doubts = doubts.join(records.where(f.col("lsn") >= gap_stop_lsn).select("tx_id"), "tx_id", "left_semi")
    for row in _rows(doubts.orderBy("tx_id")) if parts else ():
        counts.doubts.append(
            Doubt(row["tx_id"], row["xid"], micros(row["since"]), row["operations"], tuple(row["queue_ids"]))
        )
    counts.written = {name: counts.written.get(name, [0] * grid.buckets) for name in WRITTEN}
    return counts


def _rows(table: DataFrame) -> Iterator[dict[str, Any]]:
    """The rows of a counted table, with times in UTC."""
    for batch in table.toArrow().to_batches():
        yield from batch.to_pylist()


def _step(grid: Grid) -> timedelta:
    return moment(grid.step_us) - moment(0)


def _flows(
    counts: Counts, records: DataFrame, messages: DataFrame, open_rows: DataFrame, scope: Scope, *, parts: bool
) -> None:
    """Places that were added and removed, by queue and interval."""
    from pyspark.sql import functions as f

    grid, one, none = counts.grid, f.lit(1).cast("long"), f.lit(0).cast("long")
    done = spark_analyses.settled(records, snapshot=not parts)
    ends = f.col("type") == "MESSAGE_DEQUEUE"

    def change(queue_id: Column, added: Column, removed: Column) -> Column:
        return f.struct(queue_id.alias("queue_id"), added.alias("came"), removed.alias("went"))

    added, removed = f.when(ends, none).otherwise(one), f.when(ends, one).otherwise(none)
    named = f.transform("queue_ids", lambda queue_id: change(queue_id, added, removed))
    left = f.when(f.col("from_queue_id").isNotNull(), change(f.col("from_queue_id"), none, one))
    works = done.select(
        f.col("effect_lsn").alias("lsn"),
        f.col("effect_time").alias("time"),
        f.inline(f.concat(named, f.array_compact(f.array(left)))),
    )
    gone = records.where(f.col("type") == "QUEUE_DELETE").select("queue_id", f.col("lsn").alias("gone_lsn"))
    works = works.join(f.broadcast(gone), "queue_id", "left")
    works = works.where(f.col("gone_lsn").isNull() | (f.col("lsn") < f.col("gone_lsn")))
    places = spark_analyses.places(messages)
    dropped = places.where(f.col("reason") == "queue_deleted").select(
        "queue_id", f.col("dequeue_time").alias("time"), none.alias("came"), one.alias("went")
    )
    changes = works.select("queue_id", "time", "came", "went").unionByName(dropped)
    us = f.unix_micros("time")
    start, stop = grid.within(scope)
    index = f.floor((us - f.lit(grid.start_us)) / f.lit(grid.step_us)).cast("long")
    clipped = f.when(us >= stop, f.lit(grid.buckets)).when(us < start, f.lit(-1)).otherwise(index).alias("index")
    counted = changes.where(_on("queue_id", scope)).groupBy("queue_id", clipped)
    later: dict[int, int] = {}
    for row in _rows(counted.agg(f.sum("came").alias("came"), f.sum("went").alias("went"))):
        came = counts.came.setdefault(row["queue_id"], [0] * grid.buckets)
        went = counts.went.setdefault(row["queue_id"], [0] * grid.buckets)
        if row["index"] == grid.buckets:
            later[row["queue_id"]] = row["came"] - row["went"]
        elif row["index"] >= 0:
            came[row["index"]], went[row["index"]] = row["came"], row["went"]
    waiting = spark_analyses.places(open_rows).where(f.col("dequeue_lsn").isNull() & _on("queue_id", scope))
    counts.anchor({row["queue_id"]: row["count"] for row in _rows(waiting.groupBy("queue_id").count())}, later)


def _written(counts: Counts, grid: Grid, row: dict[str, Any]) -> None:
    index = grid.index(micros(row["start"]))
    if 0 <= index < grid.buckets:
        for name in WRITTEN:
            counts.written.setdefault(name, [0] * grid.buckets)[index] += row[name]


def _open(counts: Counts, rows: DataFrame) -> None:
    from pyspark.sql import functions as f

    waiting = f.size(f.filter("places", lambda place: place["dequeue_lsn"].isNull()))
    (total,) = _rows(
        rows.agg(
            f.count("id").alias("messages"),
            f.coalesce(f.sum(waiting), f.lit(0)).alias("places"),
            f.coalesce(f.sum("content_bytes"), f.lit(0)).alias("bytes"),
            f.count(f.when(f.col("pending") > 0, 1)).alias("pending"),
            f.count(f.when(f.col("staged"), 1)).alias("staged"),
        )
    )
    counts.open_messages, counts.open_places, counts.open_bytes = total["messages"], total["places"], total["bytes"]
    counts.open_pending, counts.open_staged = total["pending"], total["staged"]
    for row in _rows(spark_analyses.pinning(rows, OLDEST)):
        since = None if row["since"] is None else micros(row["since"])
        numbers = {name: row[name] for name in ("content_bytes", "places", "pending", "staged", "moved")}
        counts.oldest.append(Held(row["id"], row["queue_id"], since, **numbers))


# ---- The requested part


def _within(time: Column | str, scope: Scope) -> Column:
    """True where a time is in the requested range; without a range, for all rows."""
    from pyspark.sql import functions as f

    us = f.unix_micros(time)
    found = f.lit(True)
    if scope.start_us is not None:
        found = found & (us >= scope.start_us)
    if scope.stop_us is not None:
        found = found & (us < scope.stop_us)
    return found


def _on(column: str, scope: Scope) -> Column:
    """True where a queue is requested."""
    from pyspark.sql import functions as f

    return f.lit(True) if scope.queues is None else f.col(column).isin(*sorted(scope.queues))


def _of_queues(messages: DataFrame, scope: Scope) -> DataFrame:
    """Only places on the requested queues; a message may have others."""
    from pyspark.sql import functions as f

    if scope.queues is None:
        return messages
    wanted = sorted(scope.queues)
    return messages.withColumn("places", f.filter("places", lambda place: place["queue_id"].isin(*wanted)))


def _ended_within(messages: DataFrame, scope: Scope) -> DataFrame:
    """Only places that ended in the requested time."""
    from pyspark.sql import functions as f

    def ended(place: Column) -> Column:
        return place["dequeue_time"].isNotNull() & _within(place["dequeue_time"], scope)

    return messages.withColumn("places", f.filter("places", ended))
