"""The log as a Spark source: the same rows as from every other reader, and no silent loss."""

from __future__ import annotations

import itertools
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's own pages have it
from pyspark.testing import assertDataFrameEqual

import logstore.arrow
import logstore.spark
from kit.replicated import golden_copy
from kit.row_oracle import record_rows
from kit.spark_logs import churn, damage, open_small
from kit.torture import part_of
from logstore import errors
from logstore.inspect import Reader
from logstore.spark.plan import cut

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from logstore.inspect import BatchBytes

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("engine")]


def rows_of(frame: DataFrame) -> list[dict[str, Any]]:
    """In LSN order, as plain values, times in UTC."""
    table = frame.toArrow().sort_by("lsn")
    return [{k: list(v) if isinstance(v, list) else v for k, v in row.items()} for row in table.to_pylist()]


def shown(rows: list[dict[str, Any]], columns: list[str]) -> list[dict[str, Any]]:
    return [{name: row[name] for name in columns} for row in rows]


def by_text(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: [str(value) for value in row.values()])


def test_the_source_gives_the_same_rows_and_columns_as_plain_python(
    spark: SparkSession, mixed: Path, mixed_rows: list[dict[str, Any]]
) -> None:
    found = rows_of(logstore.spark.read(spark, mixed))
    columns = logstore.arrow.schema().names
    assert list(found[0]) == columns
    assert found == shown(mixed_rows, columns)
    assert {"committed", "rolled_back", "prepared", None} <= {row["outcome"] for row in found}
    assert {"MESSAGE_RELOCATED", "TX_RELOCATED", "MESSAGE_CHUNK", "QUEUE_DELETE", "CLOSE"} <= {
        row["type"] for row in found
    }


def test_a_copy_of_a_replicated_store_is_read_up_to_what_is_known_durable(spark: SparkSession, tmp_path: Path) -> None:
    path = golden_copy(tmp_path / "store")
    frame = logstore.spark.read(spark, path)
    wanted = shown(record_rows(path), logstore.arrow.schema().names)
    assert rows_of(frame) == wanted
    replication = frame.where(F.col("stream") == "replication").orderBy("lsn")
    assert [row["type"] for row in replication.select("type").collect()] == [
        "MEMBERS",
        "CATALOG_CHANGE",
        "CATALOG_CHANGE",
        "CATALOG_CHANGE",
        "MEMBERS",
    ]
    assert frame.where(F.col("type") == "MEMBERS").count() == 2


def test_spark_and_arrow_read_the_same_frame(spark: SparkSession, mixed: Path) -> None:
    direct = spark.createDataFrame(logstore.arrow.read(mixed, strings="plain").read_all())
    source = spark.read.format("logstore").load(str(mixed))
    assertDataFrameEqual(source.orderBy("lsn"), direct.orderBy("lsn"), checkRowOrder=True, ignoreNullable=True)


def test_a_log_is_read_by_several_tasks(spark: SparkSession, mixed: Path) -> None:
    whole = logstore.spark.read(spark, mixed, columns=["lsn"])
    tasks = (
        whole.withColumn("task", F.spark_partition_id()).groupBy("task").agg(F.min("lsn"), F.max("lsn"), F.count("*"))
    )
    ranges = sorted(row[1:] for row in tasks.collect())
    assert len(ranges) >= 2
    assert all(before[1] < after[0] for before, after in itertools.pairwise(ranges))
    assert sum(row[2] for row in ranges) == whole.count() == len(record_rows(mixed))


@pytest.mark.parametrize(
    "columns", [["queue", "lsn"], ["time"], ["queue_ids", "header", "lsn", "redelivered"], ["store", "lsn"]]
)
def test_a_user_defined_schema_chooses_the_columns(
    spark: SparkSession, mixed: Path, mixed_rows: list[dict[str, Any]], columns: list[str]
) -> None:
    found = logstore.spark.read(spark, mixed, columns=columns)
    assert found.columns == columns
    with Reader(mixed) as reader:
        uuid = str(reader.info.uuid)
    rows = [{name: uuid if name == "store" else row[name] for name in columns} for row in mixed_rows]
    assert by_text(found.toArrow().to_pylist()) == by_text(rows)


def test_a_schema_may_be_written_in_sql(spark: SparkSession, mixed: Path, mixed_rows: list[dict[str, Any]]) -> None:
    found = spark.read.format("logstore").schema("time timestamp, queue_ids array<bigint>, lsn bigint").load(str(mixed))
    assert rows_of(found) == shown(mixed_rows, ["time", "queue_ids", "lsn"])


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ("lsn string", "asks for lsn string, and it is bigint"),
        ("lsn bigint, nothing int", "no column nothing; it has"),
        ("time date", "asks for time date, and it is timestamp"),
        ("queue_ids array<int>", "asks for queue_ids array<int>, and it is array<bigint>"),
    ],
)
def test_an_impossible_schema_is_refused_with_the_columns_name(
    spark: SparkSession, mixed: Path, schema: str, says: str
) -> None:
    with pytest.raises(AnalysisException) as refused:
        spark.read.format("logstore").schema(schema).load(str(mixed)).collect()
    assert says in str(refused.value)
    assert "OptionError" in str(refused.value)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"colour": "red"}, "has no option colour; it has: path"),
        ({"mode": "lenient"}, "strict or permissive"),
        ({"start_lsn": "x"}, "is no LSN"),
        ({"start_lsn": "9", "stop_lsn": "8"}, "beyond stop_lsn"),
        ({"partition_bytes": "0"}, "1 or more"),
        ({"body": "-1"}, "0 or more"),
        ({"path": "hdfs://there/x"}, "is no directory of this machine"),
    ],
)
def test_an_invalid_option_is_refused_before_anything_is_read(
    spark: SparkSession, mixed: Path, options: dict[str, str], says: str
) -> None:
    with pytest.raises(AnalysisException, match=says):
        spark.read.format("logstore").options(**{"path": str(mixed)} | options).load().collect()


def test_the_helpers_raise_the_packages_exceptions(spark: SparkSession, mixed: Path) -> None:
    with pytest.raises(errors.OptionError, match="no column nothing"):
        logstore.spark.read(spark, mixed, columns=["nothing"])
    with pytest.raises(errors.OptionError, match="no option colour"):
        logstore.spark.read(spark, mixed, colour="red")
    with pytest.raises(errors.OptionError, match="a list of columns"):
        logstore.spark.read(spark, mixed, columns="lsn")
    with pytest.raises(errors.OptionError, match="named twice"):
        logstore.spark.read(spark, [mixed, mixed])


def test_a_path_without_a_store_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(AnalysisException, match="NotAStore"):
        spark.read.format("logstore").load(str(tmp_path)).collect()
    with pytest.raises(errors.NotAStore):
        logstore.spark.read(spark, tmp_path)


def test_bodies_are_read_on_request_and_cut(spark: SparkSession, mixed: Path) -> None:
    found = spark.read.format("logstore").option("body", "4").load(str(mixed))
    assert found.columns[-1] == "body"
    lengths = found.select(F.length("body").alias("n"), "type").groupBy("type").agg(F.max("n")).collect()
    assert dict(map(tuple, lengths))["MESSAGE_START"] == 4
    whole = logstore.spark.read(spark, mixed, columns=["lsn", "body"], body=1 << 20).where("body is not null")
    expected = logstore.arrow.read(mixed, columns=["lsn", "body"], body=1 << 20, strings="plain").read_all()
    assert rows_of(whole) == [row for row in expected.to_pylist() if row["body"] is not None]


def test_a_range_of_the_log_can_be_read(spark: SparkSession, mixed: Path, mixed_rows: list[dict[str, Any]]) -> None:
    lsns = [row["lsn"] for row in mixed_rows]
    low, high = lsns[len(lsns) // 3], lsns[-20]
    found = logstore.spark.read(spark, mixed, columns=["lsn"], start_lsn=low, stop_lsn=hex(high))
    assert [row["lsn"] for row in rows_of(found)] == [lsn for lsn in lsns if low <= lsn < high]
    assert logstore.spark.read(spark, mixed, columns=["lsn"], start_lsn=low, stop_lsn=low).count() == 0


def test_outcomes_can_be_read_as_known_at_an_lsn(spark: SparkSession, mixed: Path) -> None:
    rows = record_rows(mixed)
    commit = max(row["lsn"] for row in rows if row["type"] == "TX_COMMIT")
    found = rows_of(logstore.spark.read(spark, mixed, columns=["lsn", "outcome"], as_of_lsn=commit, stop_lsn=commit))
    assert found == shown(record_rows(mixed, stop_lsn=commit, as_of_lsn=commit), ["lsn", "outcome"])
    assert "prepared" in {row["outcome"] for row in found}
    assert found != shown(record_rows(mixed, stop_lsn=commit), ["lsn", "outcome"])


def test_several_stores_are_read_at_once_with_the_stores_name_on_each_row(
    spark: SparkSession, mixed: Path, tmp_path: Path
) -> None:
    with open_small(tmp_path / "other") as store:
        store.publish(store.declare_queue("q"), b"elsewhere")
    found = logstore.spark.read(spark, [mixed, tmp_path / "other"])
    counts = {row["store"]: row["count"] for row in found.groupBy("store").count().collect()}
    expected = {}
    for path in (mixed, tmp_path / "other"):
        with Reader(path) as reader:
            expected[str(reader.info.uuid)] = len(record_rows(path))
    assert counts == expected
    assert found.columns[0] == "store"


def test_a_store_is_a_table_in_sql(spark: SparkSession, mixed: Path, mixed_rows: list[dict[str, Any]]) -> None:
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW log USING logstore OPTIONS (path '{mixed}', partition_bytes '1000000')"
    )
    ((count, starts),) = spark.sql("SELECT count(*), count_if(type = 'MESSAGE_START') FROM log").collect()
    assert count == len(mixed_rows)
    assert starts == sum(row["type"] == "MESSAGE_START" for row in mixed_rows)
    logstore.spark.read(spark, mixed).createOrReplaceTempView("seen")
    ((joined,),) = spark.sql("SELECT count(*) FROM log JOIN seen USING (lsn)").collect()
    assert joined == count


def test_counting_needs_no_column(spark: SparkSession, mixed: Path, mixed_rows: list[dict[str, Any]]) -> None:
    assert spark.read.format("logstore").load(str(mixed)).count() == len(mixed_rows)


# ---- Damage

#: Where in the log, and what of that segment cannot be read.
DAMAGED = list(itertools.product([0, 0.5, 1], ["batch", "header", "gone"]))


def largest_batch(path: Path) -> tuple[BatchBytes, int]:
    """Of a segment in the middle of the log, and the first LSN of the next one."""
    with Reader(path) as reader:
        segments = reader.segments()
        assert len(segments) >= 3
        middle = len(segments) // 2
        inside = [batch for batch in reader.batches() if batch.first_lsn == segments[middle].first_lsn]
        return max(inside, key=lambda batch: len(batch.raw)), segments[middle + 1].first_lsn


def test_damage_fails_the_query_with_its_segment_offset_and_lsn(
    spark: SparkSession, mixed: Path, tmp_path: Path
) -> None:
    path = shutil.copytree(mixed, tmp_path / "damaged")
    batch, _ = largest_batch(path)
    segment = damage(path, batch.lsn + len(batch.raw) // 2)
    with pytest.raises(PySparkException) as failed:
        logstore.spark.read(spark, path, columns=["lsn"]).collect()
    said = str(failed.value)
    assert "CorruptLog" in said
    assert f"in segment {segment} at offset {batch.lsn - batch.first_lsn} (LSN {batch.lsn})" in said


@pytest.mark.parametrize(("where", "how"), part_of(DAMAGED, 2))
def test_a_permissive_query_gives_the_rows_of_every_readable_segment(
    spark: SparkSession, mixed: Path, mixed_rows: list[dict[str, Any]], tmp_path: Path, how: str, where: float
) -> None:
    path = shutil.copytree(mixed, tmp_path / "damaged")
    with Reader(path) as reader:
        segments = reader.segments()
        bad = segments[round(where * (len(segments) - 1))]
        batch = max((one for one in reader.batches() if one.first_lsn == bad.first_lsn), key=lambda one: len(one.raw))
    lost = range(bad.first_lsn, bad.first_lsn + reader.info.segment_size)
    if how == "gone":
        (path / bad.name).unlink()
    elif how == "header":
        damage(path, bad.first_lsn + 40)
    else:
        damage(path, batch.lsn + len(batch.raw) // 2)
        lost = range(batch.lsn, lost.stop)
    expected = [row for row in mixed_rows if row["lsn"] not in lost]
    columns = ["lsn", "type", "queue", "outcome", "enqueue_lsn"]
    for size in (1, 1 << 30):  # the damage in a task of its own, and with others
        found = rows_of(logstore.spark.read(spark, path, columns=columns, mode="permissive", partition_bytes=size))
        # The outcome of a record may be in the unreadable part; the record itself is there.
        assert shown(found, columns[:3]) == shown(expected, columns[:3])
        for one, other in zip(found, expected, strict=True):
            assert one["outcome"] in (None, other["outcome"])
            assert one["enqueue_lsn"] in (None, other["enqueue_lsn"])
    loaded = spark.read.format("logstore").option("mode", "PERMISSIVE").load(str(path))
    assert loaded.count() == len(expected)


# ---- Beside a writer


def test_a_live_store_is_read_up_to_the_durable_lsn_when_the_frame_is_made(spark: SparkSession, tmp_path: Path) -> None:
    with open_small(tmp_path / "live") as store:
        queue = store.declare_queue("q")
        store.publish_many(queue, [b"x"] * 10)
        before = logstore.spark.read(spark, store.path)
        store.publish_many(queue, [b"x"] * 10)
        after = logstore.spark.read(spark, store.path)
        for _ in range(2):
            assert before.where("type = 'MESSAGE_START'").count() == 10
            assert after.where("type = 'MESSAGE_START'").count() == 20
        expected = len(record_rows(store.path))
        assert spark.read.format("logstore").load(str(store.path)).count() == expected


def test_all_queries_of_a_hold_see_one_state_however_busy_the_writer(spark: SparkSession, tmp_path: Path) -> None:
    with open_small(tmp_path / "live") as store:
        queue = store.declare_queue("q")
        ids = store.publish_many(queue, [b"x"] * 10)
        with logstore.spark.held(spark, store.path) as frame:
            expected = rows_of(frame)
            store.dequeue_many(ids, queue)
            base = store.base_lsn
            churn(store, 4)
            store.compact()
            assert store.base_lsn > base
            assert rows_of(frame) == expected
            assert frame.where("type = 'MESSAGE_START'").count() == 10
        assert store.stats()["holds"] == 0


def test_a_query_that_a_writer_overtakes_says_so_and_loses_nothing_silently(tmp_path: Path) -> None:
    from logstore.spark.options import Options
    from logstore.spark.schema import spark_schema
    from logstore.spark.source import LogReader

    with open_small(tmp_path / "live") as store:
        queue = store.declare_queue("q")
        ids = store.publish_many(queue, [b"x"] * 10)
        reader = LogReader(spark_schema(["lsn"]), Options.read({"path": str(store.path)}))
        (planned, *_) = reader.partitions()
        store.dequeue_many(ids, queue)
        for _ in range(3):
            churn(store, 4)
            store.compact()
        with pytest.raises(logstore.inspect.LogRecycled):
            list(reader.read(planned))


# ---- How it is cut


def test_small_segments_are_read_together_and_every_core_has_work() -> None:
    parts = [(n * 100, n * 100 + 80) for n in range(40)]
    assert [part for task in cut(parts, 160) for part in task] == parts
    assert all(len(task) <= 3 for task in cut(parts, 160))
    assert len(cut(parts, 1 << 30)) >= 2
    assert cut([], 100) == []
    assert cut(parts[:1], 1) == [parts[:1]]


def test_a_path_may_be_a_file_uri(spark: SparkSession, mixed: Path) -> None:
    assert logstore.spark.read(spark, mixed.as_uri(), columns=["lsn"]).count() > 0
