"""Conditions that the scanner evaluates instead of Spark: with the same result, reading less."""

from __future__ import annotations

import datetime as dt
import itertools
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's own pages have it
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)
from pyspark.testing import assertDataFrameEqual

import logstore.spark
from kit.torture import part_of
from logstore import errors
from logstore.codec.records import LSN_LIMIT
from logstore.spark.filters import Conditions
from logstore.spark.options import Options
from logstore.spark.reading import PUSHDOWN
from logstore.spark.schema import spark_schema
from logstore.spark.source import LogReader, PushingLogReader

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

LSN, TIME, TYPE, QUEUE, QUEUE_ID, ID = (("lsn",), ("time",), ("type",), ("queue",), ("queue_id",), ("id",))
NOON = dt.datetime(2026, 7, 1, 12, tzinfo=dt.UTC)
MICROSECOND = dt.timedelta(microseconds=1)


def left_of(*filters: Any) -> list[Any]:
    return list(Conditions().take(filters))


@pytest.mark.parametrize(
    "condition",
    [
        EqualTo(LSN, 5),
        GreaterThan(LSN, 5),
        GreaterThanOrEqual(LSN, 5),
        LessThan(LSN, 5),
        LessThanOrEqual(LSN, 5),
        EqualTo(TIME, NOON),
        GreaterThan(TIME, NOON),
        GreaterThanOrEqual(TIME, NOON),
        LessThan(TIME, NOON),
        LessThanOrEqual(TIME, NOON),
        EqualTo(TYPE, "BATCH"),
        In(TYPE, ("BATCH", "FOOTER")),
        EqualTo(QUEUE, "q"),
        In(QUEUE, ("q", "r")),
        EqualTo(QUEUE_ID, 1),
        In(QUEUE_ID, [1, 2]),
        EqualTo(ID, 4096),
        In(ID, (1, 2)),
        IsNotNull(LSN),
        IsNotNull(TYPE),
        IsNotNull(TIME),
    ],
)
def test_simple_conditions_on_indexed_columns_are_decided_by_the_scanner(condition: Any) -> None:
    assert left_of(condition) == []


@pytest.mark.parametrize(
    "condition",
    [
        IsNotNull(QUEUE),
        IsNotNull(ID),
        IsNull(ID),
        Not(EqualTo(TYPE, "BATCH")),
        EqualNullSafe(QUEUE_ID, 1),
        EqualTo(("outcome",), "open"),
        EqualTo(("store",), "x"),
        EqualTo(("relocated",), True),
        EqualTo(ID, True),
        EqualTo(QUEUE_ID, None),
        EqualTo(TYPE, "0x8123"),
        EqualTo(TIME, dt.datetime.max.replace(tzinfo=dt.UTC)),
        EqualTo(("a", "lsn"), 1),
        GreaterThan(ID, 5),
        LessThan(QUEUE_ID, 5),
        In(LSN, (1, 3)),
        In(QUEUE_ID, (1, None)),
        In(TYPE, ()),
        StringStartsWith(TYPE, "MESSAGE"),
    ],
)
def test_every_other_condition_is_left_to_spark(condition: Any) -> None:
    assert left_of(condition) == [condition]


def test_not_null_conditions_on_compared_columns_are_implied() -> None:
    assert left_of(IsNotNull(QUEUE), EqualTo(QUEUE, "q"), IsNotNull(ID)) == [IsNotNull(ID)]


def test_conditions_are_anded() -> None:
    made = Conditions()
    made.take([GreaterThan(LSN, 10), LessThanOrEqual(LSN, 20), In(TYPE, ("BATCH", "FOOTER")), EqualTo(TYPE, "FOOTER")])
    made.take([GreaterThan(TIME, NOON), LessThan(TIME, NOON + 9 * MICROSECOND), LessThan(TIME, NOON + 5 * MICROSECOND)])
    assert (made.start_lsn, made.stop_lsn) == (11, 21)
    assert made.wanted == {"type": {"FOOTER"}}
    assert (made.start_time, made.stop_time) == (NOON + MICROSECOND, NOON + 5 * MICROSECOND)
    assert not made.impossible
    made.take([EqualTo(TYPE, "BATCH")])
    assert made.impossible


def test_a_chain_has_no_record_below_its_id() -> None:
    made = Conditions()
    made.take([In(ID, (500, 300))])
    assert (made.start_lsn, made.stop_lsn) == (300, LSN_LIMIT)


@pytest.mark.parametrize(
    "contradiction",
    [
        (EqualTo(LSN, 5), EqualTo(LSN, 6)),
        (EqualTo(LSN, -5),),
        (EqualTo(ID, -1),),
        (EqualTo(QUEUE_ID, 0),),
        (GreaterThan(TIME, NOON), LessThan(TIME, NOON)),
        (EqualTo(QUEUE, "a"), EqualTo(QUEUE, "b")),
    ],
)
def test_an_impossible_condition_reads_nothing(contradiction: tuple[Any, ...], mixed: Path) -> None:
    reader = PushingLogReader(spark_schema(), Options.read({"path": str(mixed)}))
    assert list(reader.pushFilters(list(contradiction))) == []
    assert reader.partitions() == []


def passes(one: Any, row: dict[str, Any]) -> bool:
    """As in SQL's WHERE, where null counts as false."""
    value = row[one.attribute[0]]
    if isinstance(one, IsNotNull) or value is None:
        return value is not None
    return {
        EqualTo: lambda: value == one.value,
        In: lambda: value in one.value,
        GreaterThan: lambda: value > one.value,
        GreaterThanOrEqual: lambda: value >= one.value,
        LessThan: lambda: value < one.value,
        LessThanOrEqual: lambda: value <= one.value,
    }[type(one)]()


def test_conditions_of_the_scanner_are_decided_exactly(mixed: Path, mixed_rows: list[dict[str, Any]]) -> None:
    """Pairs of conditions, compared with rows computed in plain Python; without a session."""
    middle, late = mixed_rows[len(mixed_rows) // 2], mixed_rows[-30]
    two = next(row for row in mixed_rows if row["type"] == "MESSAGE_START" and row["queue_count"] == 2)
    singles = [
        *(kind(LSN, middle["lsn"]) for kind in (EqualTo, GreaterThan, LessThan, LessThanOrEqual, GreaterThanOrEqual)),
        *(kind(TIME, middle["time"]) for kind in (EqualTo, GreaterThan, LessThan, LessThanOrEqual, GreaterThanOrEqual)),
        LessThan(LSN, late["lsn"]),
        EqualTo(TYPE, "MESSAGE_DEQUEUE"),
        In(TYPE, ("TX_COMMIT", "TX_ROLLBACK", "MESSAGE_START")),
        EqualTo(QUEUE, "orders"),
        In(QUEUE, ("audit", "never declared")),
        EqualTo(QUEUE_ID, two["queue_id"]),
        In(QUEUE_ID, (2, 99)),
        EqualTo(ID, two["id"]),
        In(ID, (two["id"], middle["id"] or 1, late["id"] or 1)),
        IsNotNull(TIME),
    ]
    schema = spark_schema(["lsn", "queue"])
    options = Options.read({"path": str(mixed)})
    met = 0
    for pair in part_of(list(itertools.combinations_with_replacement(singles, 2)), 3):
        reader = PushingLogReader(schema, options)
        assert list(reader.pushFilters(list(pair))) == []
        batches = [batch for part in reader.partitions() for batch in reader.read(part)]
        found = [lsn for batch in batches for lsn in batch.column(0).to_pylist()]
        assert found == [row["lsn"] for row in mixed_rows if all(passes(one, row) for one in pair)], pair
        met += bool(found)
    assert met > 20


def test_conditions_in_sql_arrive_as_they_were_meant(
    spark: SparkSession, mixed: Path, mixed_rows: list[dict[str, Any]]
) -> None:
    everything = logstore.spark.read(spark, mixed, pushdown=False)
    middle, late = mixed_rows[len(mixed_rows) // 2], mixed_rows[-30]
    moment = f"timestamp '{middle['time']:%Y-%m-%d %H:%M:%S.%f}Z'"
    asked = [
        f"time > {moment} AND lsn < {late['lsn']} AND queue = 'audit'",
        f"time <= {moment} AND type IN ('MESSAGE_START', 'nonsense') AND queue IN ('orders', 'audit')",
        f"queue = 'orders' AND type = 'MESSAGE_START' AND lsn > {mixed_rows[9]['lsn']} AND relocated = false",
        "queue <> 'orders' AND queue_id <=> 2",
        "queue IS NULL AND type <> 'BATCH'",
        "queue = 'orders' OR type = 'BATCH'",
        "type = 'BATCH' AND queue = 'orders'",
    ]
    sums = [part for each in asked for part in (f"count_if({each})", f"sum(if({each}, lsn, 0))")]
    (told,) = everything.selectExpr(*sums).collect()
    found: list[int] = []
    for condition in asked:
        frame = logstore.spark.read(spark, mixed, pushdown=True).where(condition)
        (row,) = frame.selectExpr("count(*)", "ifnull(sum(lsn), 0)").collect()
        found += row
    assert found == list(told)
    assert sum(count > 0 for count in found[::2]) == len(asked) - 1


def test_queries_on_one_frame_each_use_their_own_conditions(
    spark: SparkSession, mixed: Path, mixed_rows: list[dict[str, Any]]
) -> None:
    """Spark 4 gets this wrong with pushed conditions, so by default they are not pushed."""
    frame = logstore.spark.read(spark, mixed)
    starts = sum(row["type"] == "MESSAGE_START" for row in mixed_rows)
    batches = sum(row["type"] == "BATCH" for row in mixed_rows)
    assert frame.where("type = 'MESSAGE_START'").count() == starts
    assert frame.count() == len(mixed_rows)
    assert frame.where("type = 'MESSAGE_START' OR type = 'BATCH'").count() == starts + batches
    both = frame.where("type = 'MESSAGE_START'").unionAll(frame.where("type = 'BATCH'"))
    assert both.count() == starts + batches
    pushed = logstore.spark.read(spark, mixed, pushdown=True)
    assert pushed.where("type = 'BATCH'").count() == batches
    plain = spark.read.format("logstore").load(str(mixed))  # is not changed by that
    assert plain.where("type = 'BATCH'").count() == batches
    assert plain.count() == len(mixed_rows)
    pairs = frame.where("type = 'BATCH'").alias("b").join(frame.alias("a"), F.expr("a.batch_lsn = b.lsn"))
    assert pairs.count() == len(mixed_rows)


def test_conditions_given_as_options_are_decided_by_the_scanner_on_every_spark(
    spark: SparkSession, mixed: Path, mixed_rows: list[dict[str, Any]]
) -> None:
    middle = mixed_rows[len(mixed_rows) // 2]["time"]
    frame = logstore.spark.read(
        spark,
        mixed,
        columns=["lsn"],
        types=["MESSAGE_START", "MESSAGE_DEQUEUE"],
        queues=["orders", "never declared"],
        stop_time=middle,
    )
    wanted = [
        row["lsn"]
        for row in mixed_rows
        if row["type"] in ("MESSAGE_START", "MESSAGE_DEQUEUE") and row["queue"] == "orders" and row["time"] < middle
    ]
    assert wanted
    assert rows_out_of_the_scan(frame) == len(wanted)
    assert [row["lsn"] for row in frame.orderBy("lsn").collect()] == wanted
    some = ",".join(str(lsn) for lsn in wanted[:3])
    ids = spark.read.format("logstore").option("ids", some).option("queue_ids", "1,2").load(str(mixed))
    assert {row["id"] for row in ids.collect()} <= set(wanted[:3])
    nothing = logstore.spark.read(spark, mixed, queues=["never declared"])
    assert nothing.count() == 0
    for wrong in ({"types": "NOTHING"}, {"ids": "x"}, {"queues": "[1]"}, {"start_time": "2026-01-01T00:00:00"}):
        with pytest.raises(errors.OptionError, match=next(iter(wrong))):
            logstore.spark.read(spark, mixed, **wrong)


def rows_out_of_the_scan(frame: DataFrame) -> int:
    """As Spark counted them while it ran."""
    frame.collect()
    plan = frame._jdf.queryExecution().executedPlan()
    leaves = plan.collectLeaves()
    (scan,) = (leaves.apply(n) for n in range(leaves.size()))
    return int(scan.metrics().apply("numOutputRows").value())


def test_unwanted_rows_do_not_leave_the_scanner(
    spark: SparkSession, mixed: Path, mixed_rows: list[dict[str, Any]]
) -> None:
    condition = "queue = 'orders' AND type = 'MESSAGE_DEQUEUE'"
    wanted = sum(row["queue"] == "orders" and row["type"] == "MESSAGE_DEQUEUE" for row in mixed_rows)
    frame = logstore.spark.read(spark, mixed, pushdown=True).where(condition)
    assert rows_out_of_the_scan(frame) == wanted
    assert "Filter (" not in frame._jdf.queryExecution().executedPlan().toString()
    plain = logstore.spark.read(spark, mixed, pushdown=False).where(condition)
    assert rows_out_of_the_scan(plain) == len(mixed_rows)
    assert "Filter (" in plain._jdf.queryExecution().executedPlan().toString()
    assertDataFrameEqual(plain, frame)


def test_segments_without_wanted_lsns_are_not_opened(mixed: Path, mixed_rows: list[dict[str, Any]]) -> None:
    def segments(*filters: Any) -> int:
        reader = PushingLogReader(spark_schema(), Options.read({"path": str(mixed), "partition_bytes": "1"}))
        list(reader.pushFilters(list(filters)))
        return len(reader.partitions())

    whole = segments()
    last = mixed_rows[-1]["lsn"]
    assert whole >= 5
    assert segments(GreaterThanOrEqual(LSN, last)) == 1
    assert segments(EqualTo(ID, mixed_rows[-5]["lsn"])) <= 2
    assert segments(EqualTo(QUEUE, "never declared")) == 0


def test_the_plain_source_works_where_pushing_is_switched_off(spark: SparkSession, mixed: Path) -> None:
    logstore.spark.register(spark)
    spark.conf.set(PUSHDOWN, "false")
    try:
        assert spark.read.format("logstore").load(str(mixed)).where("type = 'CLOSE'").count() == 1
        frame = logstore.spark.read(spark, mixed, pushdown=True)
        spark.conf.set(PUSHDOWN, "false")
        with pytest.raises(AnalysisException, match="filterPushdown"):  # Spark's own word for it
            frame.where(F.col("lsn") > 0).count()
    finally:
        logstore.spark.register(spark)
    assert "pushFilters" not in vars(LogReader)
