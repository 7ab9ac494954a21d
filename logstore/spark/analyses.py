"""Analyses of a log on Spark: functions from tables to tables, for the records and the messages of a log.

``records`` has a row for each record, ``messages`` one for each ended message, ``open`` one for each live message;
``docs/spark.md`` has their columns. Parameters named ``messages`` accept ``messages``, ``open``, or their union from
:func:`everything`.

Invariants: nothing is collected, no row passes through Python, times are cut in UTC regardless of the session's time
zone, counts are exact, and a message on several queues counts on each of them. Only partial counts are shuffled, never
the rows themselves.
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from logstore.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import Column, DataFrame

__all__ = [
    "bytes_by_queue",
    "dead_lettered",
    "everything",
    "in_doubt",
    "latency",
    "latency_histogram",
    "latency_sketches",
    "merge_latency",
    "pinning",
    "pinning_by_queue",
    "places",
    "queue_depth",
    "redeliveries",
    "settled",
    "throughput",
]

DAY_US: Final = 86_400_000_000
QUANTILES: Final = {"p50_us": 0.5, "p90_us": 0.9, "p99_us": 0.99, "p999_us": 0.999}
SKETCH_K: Final = 200  # a rank is right to 1.33 % (99 % of the time); at most about 5 KB per sketch
EXACT_STEPS: Final = 128  # latencies below this many µs have their own steps; above, each power of two has 64
TAKEN: Final = ("accepted", "rejected")  # reasons of a dequeue by a consumer; a dequeue without a reason counts, too
_STARTS: Final = ("MESSAGE_START", "MESSAGE_START_PLACED")
_PUBLISHING: Final = (*_STARTS, "MESSAGE_ENQUEUE", "MESSAGE_MOVE")
_OPERATIONS: Final = (*_PUBLISHING, "MESSAGE_DEQUEUE")
_WORK: Final = (*_OPERATIONS, "MESSAGE_PLACE")
_UNDECIDED: Final = ("open", "prepared")
_UNITS: Final = {"microsecond": 1, "millisecond": 1_000, "second": 10**6, "minute": 60 * 10**6}
_UNITS_US: Final = _UNITS | {"hour": 3600 * 10**6, "day": DAY_US}


def interval_us(interval: str | timedelta) -> int:
    """An interval in µs, from a ``timedelta`` or a text such as ``15 minutes``. Raises ``OptionError`` otherwise."""
    if isinstance(interval, timedelta):
        found = interval // timedelta(microseconds=1)
    else:
        match = re.fullmatch(r"\s*(\d+)\s*([a-z]+?)s?\s*", str(interval).lower())
        unit = _UNITS_US.get(match[2]) if match else None
        found = int(match[1]) * unit if match and unit else 0
    if not 0 < found <= 366 * DAY_US:
        raise OptionError(
            f"{interval!r} is no interval: give a timedelta, or a number of {', '.join(_UNITS_US)}, up to a year"
        )
    return found


# ---- Building blocks


def everything(messages: DataFrame, open: DataFrame) -> DataFrame:  # noqa: A002 - the set's own name
    """Ended and open messages as one table; columns of only one of the sets are null in the rows of the other."""
    return messages.unionByName(open, allowMissingColumns=True)


def places(messages: DataFrame) -> DataFrame:
    """One row for each place that a message ever had: its id, ``content_bytes``, and the columns of ``places``."""
    from pyspark.sql import functions as f

    return messages.select("id", "content_bytes", f.inline("places"))


def _cut(time: Column, us: int) -> Column:
    """The start of the interval that contains a time, aligned to 1970 in UTC."""
    from pyspark.sql import functions as f

    micros = f.unix_micros(time)
    return f.timestamp_micros(micros - f.pmod(micros, f.lit(us)))


def _day(time: Column) -> Column:
    """The UTC day of a time; ``to_date`` would use the session's time zone."""
    from pyspark.sql import functions as f

    return f.date_from_unix_date(f.floor(f.unix_micros(time) / f.lit(DAY_US)).cast("int"))


def _if(condition: Column) -> Column:
    """A column for ``count``, which then counts the rows where the condition holds."""
    from pyspark.sql import functions as f

    return f.when(condition, f.lit(1))


def _where(condition: Column, number: Column) -> Column:
    """The number where the condition holds and it is not null; otherwise 0."""
    from pyspark.sql import functions as f

    zero = f.lit(0).cast("long")
    return f.when(condition, f.coalesce(number.cast("long"), zero)).otherwise(zero)


def _by_queue(rows: DataFrame, keys: Sequence[str | Column], totals: dict[str, tuple[str, Column]]) -> DataFrame:
    """``totals`` (name: how to merge, and the column) by queue and ``keys``, and the queue's name.

    A deleted queue has a name in older rows only. So rows are first counted by queue and name, in a hash aggregate
    while they are read. The result, one or two rows for each queue and key, is then merged by queue; a window may
    follow without another shuffle. An aggregate of the names themselves would have to sort all rows.
    """
    from pyspark.sql import functions as f

    def merge(how: str, values: Column) -> Column:
        function: Callable[[Column], Column] = getattr(f, how)
        return function(values)

    counted = rows.groupBy("queue_id", "queue", *keys).agg(
        *(merge(how, values).alias(name) for name, (how, values) in totals.items())
    )
    columns = [name for name in counted.columns if name not in totals and name != "queue"]
    return (
        counted.repartition("queue_id")
        .groupBy(*columns)
        .agg(
            f.max("queue").alias("queue"),
            *(merge("sum" if how == "count" else how, f.col(name)).alias(name) for name, (how, _) in totals.items()),
        )
    )


def settled(records: DataFrame, *, snapshot: bool = False) -> DataFrame:
    """The operations of ``records`` that took effect, including those whose transaction committed in a later part.

    A file of an export is never rewritten: its rows still say ``open`` or ``prepared`` if the transaction ended after
    the file was written. These few operations are joined with the TX_COMMIT in a later file. ``snapshot`` saves the
    join: the records are from one reading of a store, so every outcome in them is final.
    """
    from pyspark.sql import functions as f

    operations = records.where(f.col("type").isin(*_OPERATIONS) & ~f.col("relocated"))
    wanted = "type", "queue_id", "queue", "queue_ids", "from_queue_id", "enqueue_lsn"
    columns = [name for name in wanted if name in records.columns]
    told = operations.where(f.col("effect_lsn").isNotNull()).select(*columns, "effect_lsn", "effect_time")
    if snapshot:
        return told
    waiting = operations.where(f.col("outcome").isin(*_UNDECIDED)).select(*columns, "tx_id")
    commits = records.where(f.col("type") == "TX_COMMIT").select(
        f.col("id").alias("tx_id"), f.col("lsn").alias("effect_lsn"), f.col("time").alias("effect_time")
    )
    return told.unionByName(waiting.join(commits, "tx_id").drop("tx_id"))


def _ending(operations: DataFrame) -> DataFrame:
    """The operations that ended a place, by its queue: dequeues and moves. An older export's records have no moves."""
    from pyspark.sql import functions as f

    dequeues = operations.where(f.col("type") == "MESSAGE_DEQUEUE")
    if "from_queue_id" not in operations.columns:
        return dequeues
    moves = operations.where(f.col("from_queue_id").isNotNull()).withColumns(
        {"queue_id": f.col("from_queue_id"), "queue": f.lit(None).cast("string")}
    )
    return dequeues.unionByName(moves)


# ---- Depth


def queue_depth(
    rows: DataFrame,
    interval: str | timedelta,
    *,
    open: DataFrame | None = None,  # noqa: A002 - the set's own name
    first_lsn: int | None = None,
    snapshot: bool = False,
) -> DataFrame:
    """The depth of each queue over time: ``queue_id, queue, start, enqueued, ended, depth``.

    One row for each queue and interval with a change; ``depth`` is the depth at the interval's end. Places older than
    the rest of the log are in a row with a null ``start``.

    ``rows`` are messages, preferably from :func:`everything`: exact even if parts of the log were recycled, and
    cheaper. Or they are records, which are complete only from a store's first record on. If an older part of the log is
    gone, pass the first LSN in ``rows`` as ``first_lsn``, and ``open``; otherwise older places that still wait are not
    counted, nor are those that ended with their queue. ``snapshot`` saves a join: the rows are from one reading of a
    store, so every outcome in them is final.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    us = interval_us(interval)
    changes = _place_changes(rows) if "places" in rows.columns else _record_changes(rows, open, first_lsn, snapshot)
    totals = {"enqueued": ("sum", f.col("came")), "ended": ("sum", f.col("went")), "deleted": ("max", f.col("deleted"))}
    counted = _by_queue(changes, [_cut(f.col("time"), us).alias("start")], totals)
    until_now = Window.partitionBy("queue_id").orderBy("start").rowsBetween(Window.unboundedPreceding, 0)
    before = Window.partitionBy("queue_id").orderBy("start").rowsBetween(Window.unboundedPreceding, -1)
    run = f.sum(f.col("enqueued") - f.col("ended")).over(until_now)
    gone_before = f.coalesce(f.max("deleted").over(before), f.lit(False))
    left = counted.withColumns({"run": run, "gone": gone_before}).where(~f.col("gone"))
    return left.select(
        "queue_id",
        "queue",
        "start",
        "enqueued",
        f.when(f.col("deleted"), f.col("ended") + f.col("run")).otherwise(f.col("ended")).alias("ended"),
        f.when(f.col("deleted"), f.lit(0).cast("long")).otherwise(f.col("run")).alias("depth"),
    )


def _change(time: Column, came: int, went: int, deleted: bool = False) -> list[Column]:
    from pyspark.sql import functions as f

    numbers = {"came": f.lit(came).cast("long"), "went": f.lit(went).cast("long"), "deleted": f.lit(deleted)}
    return [time.alias("time"), *(value.alias(name) for name, value in numbers.items())]


def _place_changes(messages: DataFrame) -> DataFrame:
    """Each place as two changes, generated from one row, so that the set is read once."""
    from pyspark.sql import functions as f

    def change(time: str, came: int, went: int) -> Column:
        return f.struct(*_change(f.col(time), came, went))

    ended = f.when(f.col("dequeue_lsn").isNotNull(), change("dequeue_time", 0, 1))
    both = f.array_compact(f.array(change("enqueue_time", 1, 0), ended))
    return places(messages).select("queue_id", "queue", f.inline(both))


def _record_changes(
    records: DataFrame,
    open: DataFrame | None,  # noqa: A002 - the set's own name
    first_lsn: int | None,
    snapshot: bool,
) -> DataFrame:
    from pyspark.sql import functions as f

    operations = settled(records, snapshot=snapshot)
    publishing = f.col("type").isin(*_PUBLISHING)
    # A record of several queues has only the first one's name; the other names come from records of those queues.
    named = f.when(f.col("each") == f.col("queue_id"), f.col("queue"))
    came = operations.where(publishing).select("queue_id", "queue", "effect_time", f.explode("queue_ids").alias("each"))
    changes = came.select(f.col("each").alias("queue_id"), named.alias("queue"), *_change(f.col("effect_time"), 1, 0))
    taken = _ending(operations)
    changes = changes.unionByName(taken.select("queue_id", "queue", *_change(f.col("effect_time"), 0, 1)))
    deletions = records.where(f.col("type") == "QUEUE_DELETE")
    changes = changes.unionByName(deletions.select("queue_id", "queue", *_change(f.col("time"), 0, 0, True)))
    if first_lsn is None:
        return changes
    nowhen = f.lit(None).cast("timestamp")
    older = f.coalesce(f.col("enqueue_lsn") < f.lit(first_lsn), f.lit(True))
    changes = changes.unionByName(taken.where(older).select("queue_id", "queue", *_change(nowhen, 1, 0)))
    if open is None:
        return changes
    # If one of these places has ended, its DEQUEUE is in the rows and was counted above.
    waiting = places(open).where(older & f.col("dequeue_lsn").isNull())
    return changes.unionByName(waiting.select("queue_id", "queue", *_change(nowhen, 1, 0)))


# ---- Latency


def _taken(messages: DataFrame, reasons: Sequence[str]) -> DataFrame:
    """Places that a consumer took, with their waiting time in µs; 0 if the clock was set back."""
    from pyspark.sql import functions as f

    waited = f.unix_micros("dequeue_time") - f.unix_micros("enqueue_time")
    took = f.coalesce(f.col("reason").isin(*reasons), f.lit(True)) & f.col("dequeue_lsn").isNotNull()
    ended = places(messages).where(took & f.col("enqueue_time").isNotNull() & f.col("dequeue_time").isNotNull())
    return ended.select("queue_id", "queue", "dequeue_time", f.greatest(waited, f.lit(0).cast("long")).alias("us"))


def latency_sketches(messages: DataFrame, *, reasons: Sequence[str] = TAKEN) -> DataFrame:
    """Latencies from enqueue to dequeue, by queue and UTC day of the dequeue, as sketches for :func:`merge_latency`.

    ``queue_id, queue, day, count, min_us, max_us, total_us, sketch`` (a KLL sketch of bigint, at most about 5 KB).
    Dequeues and moves with one of these reasons count, and those without a reason.
    """
    from pyspark.sql import functions as f

    days = _taken(messages, reasons).groupBy("queue_id", _day(f.col("dequeue_time")).alias("day"))
    return days.agg(
        f.max("queue").alias("queue"),
        f.count("us").alias("count"),
        f.min("us").alias("min_us"),
        f.max("us").alias("max_us"),
        f.sum("us").alias("total_us"),
        f.kll_sketch_agg_bigint("us", SKETCH_K).alias("sketch"),
    ).select("queue_id", "queue", "day", "count", "min_us", "max_us", "total_us", "sketch")


def merge_latency(sketches: DataFrame, *by: str) -> DataFrame:
    """Percentiles of merged sketches, grouped by the columns ``by`` (default: ``queue_id``).

    The columns ``by``, ``queue`` if grouped by queue, ``count, min_us, mean_us, p50_us, p90_us, p99_us, p999_us,
    max_us``. ``count``, ``min_us``, ``mean_us`` and ``max_us`` are exact; the rank of a percentile is right to 1.33 %
    (99 % of the time). One sketch per queue and day is enough to query any part of a year later.
    """
    from pyspark.sql import functions as f

    keys = by or ("queue_id",)
    names = [f.max("queue").alias("queue")] if "queue_id" in keys and "queue" not in keys else []
    merged = sketches.groupBy(*keys).agg(
        *names,
        f.sum("count").alias("count"),
        f.min("min_us").alias("min_us"),
        f.max("max_us").alias("max_us"),
        f.sum("total_us").alias("total_us"),
        f.kll_merge_agg_bigint("sketch").alias("sketch"),
    )
    return _percentiles(merged, [*keys, *(["queue"] if names else [])])


def _percentiles(sketches: DataFrame, keys: Sequence[str]) -> DataFrame:
    from pyspark.sql import functions as f

    ranks = f.array(*(f.lit(rank) for rank in QUANTILES.values()))
    found = sketches.withColumn("found", f.kll_sketch_get_quantile_bigint("sketch", ranks))
    quantiles = [f.col("found")[index].alias(name) for index, name in enumerate(QUANTILES)]
    mean = (f.col("total_us") / f.col("count")).alias("mean_us")
    return found.select(*keys, "count", "min_us", mean, *quantiles, "max_us")


def latency(messages: DataFrame, *, reasons: Sequence[str] = TAKEN) -> DataFrame:
    """Percentiles of the time from enqueue to dequeue, by queue and UTC day of the dequeue.

    ``queue_id, queue, day`` and the columns of :func:`merge_latency`. It shuffles once, one sketch for each queue and
    day of a task.
    """
    return _percentiles(latency_sketches(messages, reasons=reasons), ["queue_id", "queue", "day"])


def latency_histogram(messages: DataFrame, *, reasons: Sequence[str] = TAKEN) -> DataFrame:
    """The latencies as exact counts: ``queue_id, queue, step, count, total_us, min_us, max_us``.

    A step is 1 µs wide below 128 µs, and at most 1/64 of its latency above: its percentiles are right to 1.6 %. Two
    histograms merge by addition, and equal logs give equal histograms. :func:`logstore.report.counts.step_us` returns a
    step's bounds.
    """
    from pyspark.sql import functions as f

    taken = _taken(messages, reasons).withColumn("shift", f.expr("greatest(length(bin(us)) - 7, 0)"))
    stepped = taken.withColumn("step", f.expr("shift * 64 + shiftright(us, shift)"))
    waited = f.col("us")
    totals = {
        "count": ("count", waited),
        "total_us": ("sum", waited),
        "min_us": ("min", waited),
        "max_us": ("max", waited),
    }
    return _by_queue(stepped, ["step"], totals).select("queue_id", "queue", "step", *totals)


# ---- The tail


def pinning(open: DataFrame, limit: int = 10) -> DataFrame:  # noqa: A002 - the set's own name
    """The messages that hold the tail: the oldest live messages, oldest first, at most ``limit``.

    ``id`` (the LSN of its start), ``queue_id, queue`` (the first on which it waits), ``since`` (the time of its first
    enqueue, or else of its start), ``content_bytes, places`` (on which it waits), ``pending, staged, moved`` (it was
    relocated, so the log needs it only from a higher LSN on). Messages with an unknown ``since`` come first. Only the
    oldest rows of each task are shuffled.
    """
    from pyspark.sql import functions as f

    first = f.get(_waiting(), f.lit(0))
    return (
        open.select(
            "id",
            first["queue_id"].alias("queue_id"),
            first["queue"].alias("queue"),
            f.coalesce("enqueue_time", "start_time").alias("since"),
            "content_bytes",
            f.size(_waiting()).alias("places"),
            "pending",
            "staged",
            (f.col("copy_count") > 0).alias("moved"),
        )
        .orderBy(f.col("since").asc_nulls_first(), "id")
        .limit(limit)
    )


def _waiting() -> Column:
    from pyspark.sql import functions as f

    return f.filter("places", lambda place: place["dequeue_lsn"].isNull())


def pinning_by_queue(open: DataFrame) -> DataFrame:  # noqa: A002 - the set's own name
    """The live messages of each queue: ``queue_id, queue, messages, content_bytes, oldest_id, since``.

    ``queue_id`` is null for messages without a place: they are staged, or an open transaction has dequeued them.
    """
    from pyspark.sql import functions as f

    since = f.coalesce("enqueue_time", "start_time").alias("since")
    waiting = open.select("id", "content_bytes", since, f.explode_outer(_waiting()).alias("place"))
    totals = {
        "messages": ("count", f.col("id")),
        "content_bytes": ("sum", f.col("content_bytes")),
        "oldest_id": ("min", f.col("id")),
        "since": ("min", f.col("since")),
    }
    rows = waiting.select("id", "content_bytes", "since", "place.queue_id", "place.queue")
    return _by_queue(rows, [], totals).select("queue_id", "queue", *totals)


def in_doubt(records: DataFrame) -> DataFrame:
    """Prepared transactions without an outcome: ``tx_id, xid, since, prepare_lsn, operations, queue_ids``.

    ``since`` is the time of its TX_PREPARE, or, if only its relocated records are left, of the oldest of them;
    ``operations`` counts those whose records are in the rows. Only rows of undecided transactions are grouped, and only
    their outcomes are joined.
    """
    from pyspark.sql import functions as f

    undecided = records.where(f.col("tx_id").isNotNull() & f.col("outcome").isin(*_UNDECIDED))
    prepared = f.col("type") == "TX_PREPARE"
    works = f.col("type").isin(*_WORK)
    queue_ids = f.collect_set(f.when(works, f.col("queue_id")))
    if "from_queue_id" in records.columns:
        queue_ids = f.concat(queue_ids, f.collect_set("from_queue_id"))
    by_transaction = undecided.groupBy("tx_id").agg(
        f.max("xid").alias("xid"),
        f.coalesce(f.min(f.when(prepared, f.col("time"))), f.min("time")).alias("since"),
        f.max(f.when(prepared, f.col("lsn"))).alias("prepare_lsn"),
        f.count(_if(works)).alias("operations"),
        f.array_sort(f.array_distinct(queue_ids)).alias("queue_ids"),
        f.bool_or(prepared | (f.col("outcome") == "prepared")).alias("prepared"),
    )
    # The few undecided transactions look for their outcome in a later part of the log.
    decided = (
        records.where(f.col("type").isin("TX_COMMIT", "TX_ROLLBACK"))
        .select(f.col("id").alias("tx_id"))
        .join(f.broadcast(by_transaction.select("tx_id")), "tx_id", "left_semi")
    )
    waiting = by_transaction.where("prepared").join(f.broadcast(decided), "tx_id", "left_anti")
    return waiting.drop("prepared")


# ---- Bytes, deliveries, throughput


def bytes_by_queue(rows: DataFrame) -> DataFrame:
    """The bytes of the log for each queue: ``queue_id, queue, messages, places, content_bytes, record_bytes,
    copied_bytes, write_amplification``.

    For messages: by the first queue of each message, so that nothing counts twice. ``write_amplification`` is the
    number of bytes written for each byte of records as first written: 1 without relocation. For records: by the first
    queue in a record; chunks, outcomes and housekeeping name no queue and are in the row without one. ``messages`` and
    ``places`` count what was published there, including rolled-back transactions.
    """
    from pyspark.sql import functions as f

    if "places" in rows.columns:
        totals = {
            "messages": ("count", f.col("id")),
            "places": ("sum", f.col("place_count").cast("long")),
            "content_bytes": ("sum", f.col("content_bytes")),
            "record_bytes": ("sum", f.col("record_bytes")),
            "copied_bytes": ("sum", f.col("copied_bytes")),
        }
    else:
        first = ~f.col("relocated")
        totals = {
            "messages": ("count", _if(f.col("type").isin(*_STARTS) & first)),
            "places": ("sum", _where(f.col("type").isin(*_PUBLISHING) & first, f.col("queue_count"))),
            "content_bytes": ("sum", _where(first, f.col("content_bytes"))),
            "record_bytes": ("sum", _where(first, f.col("record_bytes"))),
            "copied_bytes": ("sum", _where(~first, f.col("record_bytes"))),
        }
    written = f.col("record_bytes") + f.col("copied_bytes")
    once = f.when(f.col("record_bytes") > 0, f.col("record_bytes"))
    amplification = (written / once).alias("write_amplification")
    return _by_queue(rows, [], totals).select("queue_id", "queue", *totals, amplification)


def redeliveries(messages: DataFrame) -> DataFrame:
    """Deliveries per place, by queue: ``queue_id, queue, settled, told, redelivered, deliveries, most``.

    ``settled`` counts places that ended, ``told`` those of them with a delivery count, ``redelivered`` those delivered
    more than once. ``deliveries`` is the sum of the known counts, ``most`` the largest one.
    """
    from pyspark.sql import functions as f

    ended = places(messages).where(f.col("dequeue_lsn").isNotNull())
    delivered = f.col("delivery_count")
    totals = {
        "settled": ("count", f.col("id")),
        "told": ("count", delivered),
        "redelivered": ("count", _if(delivered > 1)),
        "deliveries": ("sum", f.coalesce(delivered.cast("long"), f.lit(0).cast("long"))),
        "most": ("max", f.coalesce(delivered, f.lit(0))),
    }
    return _by_queue(ended, [], totals).select("queue_id", "queue", *totals)


def dead_lettered(messages: DataFrame) -> DataFrame:
    """Places that ended as dead letters, by the queue that they left and UTC day: ``queue_id, queue, day, count,
    last_time, last_lsn`` (of the dequeue or the move).
    """
    from pyspark.sql import functions as f

    ended = places(messages).where(f.col("reason") == "dead_lettered")
    totals = {
        "count": ("count", f.col("id")),
        "last_time": ("max", f.col("dequeue_time")),
        "last_lsn": ("max", f.col("dequeue_lsn")),
    }
    return _by_queue(ended, [_day(f.col("dequeue_time")).alias("day")], totals).select(
        "queue_id", "queue", "day", *totals
    )


def throughput(records: DataFrame, interval: str | timedelta) -> DataFrame:
    """Records and bytes written, by interval: ``start, records, record_bytes, copied_bytes, messages, content_bytes,
    commits, rollbacks``.

    Intervals use the time of the batch. ``messages`` counts starts of messages, and ``content_bytes`` their content and
    chunks, including transactions that were rolled back later. ``copied_bytes`` is the part of ``record_bytes`` written
    by relocation.
    """
    from pyspark.sql import functions as f

    us = interval_us(interval)
    first = ~f.col("relocated")
    counts = {
        "records": f.count("lsn"),
        "record_bytes": f.sum(f.col("record_bytes").cast("long")),
        "copied_bytes": f.sum(_where(~first, f.col("record_bytes"))),
        "messages": f.count(_if(f.col("type").isin(*_STARTS) & first)),
        "content_bytes": f.sum(_where(first, f.col("content_bytes"))),
        "commits": f.count(_if(f.col("type") == "TX_COMMIT")),
        "rollbacks": f.count(_if(f.col("type") == "TX_ROLLBACK")),
    }
    return records.groupBy(_cut(f.col("time"), us).alias("start")).agg(
        *(value.alias(name) for name, value in counts.items())
    )
