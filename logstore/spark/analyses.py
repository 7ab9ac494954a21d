"""Analyses of a log on Spark: functions from tables to tables, for the two sets that a log is.

``records`` has a row for each record, ``messages`` one for each message whose life has ended, ``open`` one for each
that lives; ``docs/spark.md`` has their columns. Where the functions say *messages*, they take ``messages``, ``open``,
or both as :func:`everything` puts them together.

What always holds: nothing is collected, no row passes through Python, times are cut in UTC whatever the session's time
zone is, counts are exact, and a message on several queues counts on each of them. Rows are shuffled only by what
they are counted by, and only after they were counted where they lie.
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
SKETCH_K: Final = 200  # a rank is right to 1.33 % (99 % of the time); at most about 5 KB each
EXACT_STEPS: Final = 128  # latencies below so many µs are steps of their own, above 64 steps for each power of two
TAKEN: Final = ("accepted", "rejected")  # reasons of a dequeue by a consumer; one that is not told is one too
_PUBLISHING: Final = ("MESSAGE_START", "MESSAGE_ENQUEUE")
_OPERATIONS: Final = (*_PUBLISHING, "MESSAGE_DEQUEUE")
_UNDECIDED: Final = ("open", "prepared")
_UNITS: Final = {"microsecond": 1, "millisecond": 1_000, "second": 10**6, "minute": 60 * 10**6}
_UNITS_US: Final = _UNITS | {"hour": 3600 * 10**6, "day": DAY_US}


def interval_us(interval: str | timedelta) -> int:
    """An interval in µs: a ``timedelta``, or a text such as ``15 minutes``. Raises ``OptionError`` for others."""
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


# ---- What they are made of


def everything(messages: DataFrame, open: DataFrame) -> DataFrame:  # noqa: A002 - the set's own name
    """Closed and open messages as one table; what only one of the sets has is null in the rows of the other."""
    return messages.unionByName(open, allowMissingColumns=True)


def places(messages: DataFrame) -> DataFrame:
    """One row for each place that a message ever had: its id, ``content_bytes``, and the columns of ``places``."""
    from pyspark.sql import functions as f

    return messages.select("id", "content_bytes", f.inline("places"))


def _cut(time: Column, us: int) -> Column:
    """The beginning of the interval in which a time lies, counted from 1970 in UTC."""
    from pyspark.sql import functions as f

    micros = f.unix_micros(time)
    return f.timestamp_micros(micros - f.pmod(micros, f.lit(us)))


def _day(time: Column) -> Column:
    """The UTC day of a time; ``to_date`` would take the session's."""
    from pyspark.sql import functions as f

    return f.date_from_unix_date(f.floor(f.unix_micros(time) / f.lit(DAY_US)).cast("int"))


def _if(condition: Column) -> Column:
    """What ``count`` counts where the condition holds."""
    from pyspark.sql import functions as f

    return f.when(condition, f.lit(1))


def _where(condition: Column, number: Column) -> Column:
    """A number where the condition holds and there is one; elsewhere 0."""
    from pyspark.sql import functions as f

    zero = f.lit(0).cast("long")
    return f.when(condition, f.coalesce(number.cast("long"), zero)).otherwise(zero)


def _by_queue(rows: DataFrame, keys: Sequence[str | Column], totals: dict[str, tuple[str, Column]]) -> DataFrame:
    """``totals`` (name: how they merge, and of what) by queue and ``keys``, and the queue's name.

    A queue that was deleted has a name in older rows only. So rows are counted by name as well, which a hash aggregate
    does as it reads, and what comes of that, a row or two for each queue and key, is merged by queue, where a window
    may follow without another shuffle. An aggregate of the names themselves would have to sort all rows.
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
    """The operations of ``records`` that took effect: also those of transactions whose outcome came later.

    A file of an export is never rewritten: it says ``open`` or ``prepared`` of a transaction that was decided after it
    was written. Such operations, few as they are, are joined with the TX_COMMIT that a later file has. ``snapshot``
    spares the join: the records were read from a store in one go, so that every outcome in them is final.
    """
    from pyspark.sql import functions as f

    operations = records.where(f.col("type").isin(*_OPERATIONS) & ~f.col("relocated"))
    columns = [name for name in ("type", "queue_id", "queue", "queue_ids", "enqueue_lsn") if name in records.columns]
    told = operations.where(f.col("effect_lsn").isNotNull()).select(*columns, "effect_lsn", "effect_time")
    if snapshot:
        return told
    waiting = operations.where(f.col("outcome").isin(*_UNDECIDED)).select(*columns, "tx_id")
    commits = records.where(f.col("type") == "TX_COMMIT").select(
        f.col("id").alias("tx_id"), f.col("lsn").alias("effect_lsn"), f.col("time").alias("effect_time")
    )
    return told.unionByName(waiting.join(commits, "tx_id").drop("tx_id"))


# ---- Depth


def queue_depth(
    rows: DataFrame,
    interval: str | timedelta,
    *,
    open: DataFrame | None = None,  # noqa: A002 - the set's own name
    first_lsn: int | None = None,
    snapshot: bool = False,
) -> DataFrame:
    """How deep each queue is over time: ``queue_id, queue, start, enqueued, ended, depth``.

    One row for each queue and interval in which something happened; ``depth`` is that at the interval's end. Places
    that were there before anything that the log still tells are in a row of which ``start`` is null.

    ``rows`` are messages, best as :func:`everything`: exact whatever has left the log, and the cheaper way.
    Or they are records. Those say all of a store only from its first record on: of a log whose older part is gone,
    give the first LSN that ``rows`` has as ``first_lsn``, and ``open``, without which older places that still wait
    are not counted (nor are those that ended with their queue). ``snapshot`` spares a join: the rows were read from a
    store in one go, so that every outcome in them is final.
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
    """Each place as two changes, made of one row, so that the set is read once."""
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
    # A record of several queues has the name of the first one only; the others get theirs from where they are it.
    named = f.when(f.col("each") == f.col("queue_id"), f.col("queue"))
    came = operations.where(publishing).select("queue_id", "queue", "effect_time", f.explode("queue_ids").alias("each"))
    changes = came.select(f.col("each").alias("queue_id"), named.alias("queue"), *_change(f.col("effect_time"), 1, 0))
    taken = operations.where(f.col("type") == "MESSAGE_DEQUEUE")
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
    # Where a place of these has ended, the DEQUEUE is in the rows, and was counted above.
    waiting = places(open).where(older & f.col("dequeue_lsn").isNull())
    return changes.unionByName(waiting.select("queue_id", "queue", *_change(nowhen, 1, 0)))


# ---- Latency


def _taken(messages: DataFrame, reasons: Sequence[str]) -> DataFrame:
    """Places that a consumer took, with how long they had waited in µs. The clock may have been set back: 0 then."""
    from pyspark.sql import functions as f

    waited = f.unix_micros("dequeue_time") - f.unix_micros("enqueue_time")
    took = f.coalesce(f.col("reason").isin(*reasons), f.lit(True)) & f.col("dequeue_lsn").isNotNull()
    ended = places(messages).where(took & f.col("enqueue_time").isNotNull() & f.col("dequeue_time").isNotNull())
    return ended.select("queue_id", "queue", "dequeue_time", f.greatest(waited, f.lit(0).cast("long")).alias("us"))


def latency_sketches(messages: DataFrame, *, reasons: Sequence[str] = TAKEN) -> DataFrame:
    """From enqueue to dequeue, by queue and UTC day of the dequeue, as sketches that :func:`merge_latency` merges.

    ``queue_id, queue, day, count, min_us, max_us, total_us, sketch`` (a KLL sketch of bigint, about 5 KB at most,
    however many it has seen). Counted are dequeues with one of these reasons, and those that tell none.
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
    """Percentiles of merged sketches, for each of the columns ``by`` (``queue_id`` if none is named).

    The columns ``by``, ``queue`` if it is by queue, ``count, min_us, mean_us, p50_us, p90_us, p99_us, p999_us,
    max_us``. ``count``, ``min_us``, ``mean_us`` and ``max_us`` are exact; a percentile has a rank that is right to
    1.33 % (99 % of the time). A sketch per queue and day is all that has to be kept of a year to ask for any part of
    it.
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
    """Percentiles from enqueue to dequeue by queue and UTC day of the dequeue.

    ``queue_id, queue, day`` and the columns of :func:`merge_latency`. One shuffle, of one sketch for each queue and day
    that a task has seen.
    """
    return _percentiles(latency_sketches(messages, reasons=reasons), ["queue_id", "queue", "day"])


def latency_histogram(messages: DataFrame, *, reasons: Sequence[str] = TAKEN) -> DataFrame:
    """The same as exact counts: ``queue_id, queue, step, count, total_us, min_us, max_us``.

    A step is one µs wide below 128 µs and at most 1/64 of its latency above: percentiles of it are right to 1.6 %,
    any two histograms merge by adding, and equal logs give equal histograms. :func:`logstore.report.counts.step_us`
    gives a step's bounds.
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
    """What holds the tail and since when: the messages that have lived longest, oldest first, at most ``limit``.

    ``id`` (the LSN at which it began), ``queue_id, queue`` (the first on which it waits), ``since`` (its first enqueue,
    else its start), ``content_bytes, places`` (on which it waits), ``pending, staged, moved`` (it was relocated: what
    it needs lies further up now).
    Those come first of which the log no longer tells since when. Nothing is shuffled but the best of each task.
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
    """What lives, by each queue on which it waits: ``queue_id, queue, messages, content_bytes, oldest_id, since``.

    ``queue_id`` is null for what waits on none: it is staged, or a transaction without an outcome has it.
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

    ``since`` is the time of its TX_PREPARE, or, if the log has only what was relocated of it, of its oldest record
    here; ``operations`` counts those whose records are in the rows. Only rows of undecided transactions are grouped,
    and of all outcomes only those that meet one of them are looked at further.
    """
    from pyspark.sql import functions as f

    undecided = records.where(f.col("tx_id").isNotNull() & f.col("outcome").isin(*_UNDECIDED))
    prepared = f.col("type") == "TX_PREPARE"
    by_transaction = undecided.groupBy("tx_id").agg(
        f.max("xid").alias("xid"),
        f.coalesce(f.min(f.when(prepared, f.col("time"))), f.min("time")).alias("since"),
        f.max(f.when(prepared, f.col("lsn"))).alias("prepare_lsn"),
        f.count(_if(f.col("type").isin(*_OPERATIONS))).alias("operations"),
        f.array_sort(f.collect_set(f.when(f.col("type").isin(*_OPERATIONS), f.col("queue_id")))).alias("queue_ids"),
        f.bool_or(prepared | (f.col("outcome") == "prepared")).alias("prepared"),
    )
    # The few that are undecided find their outcome, if a later part of the log has it; never the other way round.
    decided = (
        records.where(f.col("type").isin("TX_COMMIT", "TX_ROLLBACK"))
        .select(f.col("id").alias("tx_id"))
        .join(f.broadcast(by_transaction.select("tx_id")), "tx_id", "left_semi")
    )
    waiting = by_transaction.where("prepared").join(f.broadcast(decided), "tx_id", "left_anti")
    return waiting.drop("prepared")


# ---- Bytes, deliveries, throughput


def bytes_by_queue(rows: DataFrame) -> DataFrame:
    """What each queue costs the log: ``queue_id, queue, messages, places, content_bytes, record_bytes, copied_bytes,
    write_amplification``.

    Of messages: by the queue on which each came first, so that nothing is counted twice; ``write_amplification`` is
    what was written for each byte of records as first written: 1 if nothing was ever moved. Of records: by the first
    queue that a record names; chunks, outcomes and housekeeping name none and are in the row without a queue;
    ``messages`` and ``places`` count what was published there, in transactions that were rolled back as well.
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
            "messages": ("count", _if((f.col("type") == "MESSAGE_START") & first)),
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
    """How often a place was delivered before it was settled, by queue: ``queue_id, queue, settled, told, redelivered,
    deliveries, most``.

    ``settled`` places are those that ended, ``told`` those of them whose dequeue tells its deliveries, ``redelivered``
    those that took more than one, ``deliveries`` all of those told, ``most`` the largest number for one.
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
    last_time, last_lsn`` (of the dequeue).
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
    """What the log took by interval: ``start, records, record_bytes, copied_bytes, messages, content_bytes, commits,
    rollbacks``.

    By the time of the batch. ``messages`` were begun and ``content_bytes`` came with them or their chunks, also in
    transactions that were rolled back later; ``copied_bytes`` is the part of ``record_bytes`` that moved what was
    there.
    """
    from pyspark.sql import functions as f

    us = interval_us(interval)
    first = ~f.col("relocated")
    counts = {
        "records": f.count("lsn"),
        "record_bytes": f.sum(f.col("record_bytes").cast("long")),
        "copied_bytes": f.sum(_where(~first, f.col("record_bytes"))),
        "messages": f.count(_if((f.col("type") == "MESSAGE_START") & first)),
        "content_bytes": f.sum(_where(first, f.col("content_bytes"))),
        "commits": f.count(_if(f.col("type") == "TX_COMMIT")),
        "rollbacks": f.count(_if(f.col("type") == "TX_ROLLBACK")),
    }
    return records.groupBy(_cut(f.col("time"), us).alias("start")).agg(
        *(value.alias(name) for name, value in counts.items())
    )
