"""The JVM connector: what only it does, its names, and what it says where it cannot work.

That its rows, columns, options and errors are those of the Python source is tested with the Python source: the tests of
both take the fixture ``engine``.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's own pages have it
from pyspark.testing import assertDataFrameEqual

import logstore.spark
from kit.patience import wait_until
from kit.spark_logs import churn, damage, open_small
from kit.spark_needed import require_connector
from kit.torture import stride
from logstore import errors
from logstore.inspect import Reader
from logstore.spark.engines import chosen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

PYTHON = "spark.logstore.python"


#: As sessions of users have it: the rows of the connector are read by code that Spark generates.
GENERATED_CODE = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}


@pytest.fixture(autouse=True)
def connector(spark: SparkSession) -> Iterator[None]:
    require_connector()
    before = {name: spark.conf.get(name) for name in GENERATED_CODE}
    for name, value in GENERATED_CODE.items():
        spark.conf.set(name, value)
    yield
    for name, value in before.items():
        spark.conf.set(name, value)
    spark.conf.unset("spark.logstore.engine")
    spark.conf.unset(PYTHON)


def plan_of(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


def rows_out_of_the_scan(frame: DataFrame) -> int:
    frame.collect()
    leaves = frame._jdf.queryExecution().executedPlan().collectLeaves()
    (scan,) = (leaves.apply(n) for n in range(leaves.size()))
    return int(scan.metrics().apply("numOutputRows").value())


def said(call: Callable[[], object]) -> str:
    """What an error says; one that a JVM raises has a stack of Java behind it."""
    with pytest.raises(PySparkException) as failed:
        call()
    return str(failed.value)


# ---- Push-down


def test_only_the_columns_of_a_query_leave_the_scanner(spark: SparkSession, mixed: Path) -> None:
    frame = logstore.spark.read(spark, mixed, engine="jvm").groupBy("queue").agg(F.max("lsn"))
    (scan,) = [line for line in plan_of(frame).splitlines() if "BatchScan" in line]
    assert "[lsn#" in scan
    assert "queue#" in scan
    assert scan.count("#") == 2
    assert frame.count() > 1


CONDITIONS = [
    "type = 'MESSAGE_DEQUEUE'",
    "type IN ('TX_COMMIT', 'nonsense', 'MESSAGE_START')",
    "queue = 'audit'",
    "queue IN ('orders', 'never declared')",
    "queue_id = 2",
    "id IN (0, -1, 8192, 123456789012)",
    "lsn > 9000000",
    "lsn BETWEEN 9000000 AND 10000000",
    "lsn IN (1, 9000000, 9524968)",
    "time >= timestamp '2020-01-01 00:00:00Z'",
    "time > timestamp '9999-12-31 23:59:59.999999Z'",
    "time < timestamp '0001-01-01 00:00:00Z'",
    "queue IS NULL",
    "queue IS NOT NULL AND relocated = false",
    "queue <> 'orders' OR queue_id <=> 2",
    "cardinality(queue_ids) = 2",
    "outcome = 'committed'",
]


def test_conditions_decide_every_row_as_spark_would(spark: SparkSession, mixed: Path) -> None:
    every = logstore.spark.read(spark, mixed, engine="python")
    asked = [" AND ".join(pair) for pair in itertools.combinations(CONDITIONS, 2)]
    asked = [*asked[:: stride(9)], *CONDITIONS]
    (wanted,) = every.selectExpr(*(f"count_if({each})" for each in asked)).collect()
    pushed = logstore.spark.read(spark, mixed, engine="jvm")
    assert [pushed.where(each).count() for each in asked] == list(wanted)
    assert sum(count > 0 for count in wanted) > 12


def test_queries_on_one_frame_each_have_their_own_conditions(
    spark: SparkSession, mixed: Path, mixed_rows: list[dict[str, Any]]
) -> None:
    frame = logstore.spark.read(spark, mixed, engine="jvm")
    starts = sum(row["type"] == "MESSAGE_START" for row in mixed_rows)
    batches = sum(row["type"] == "BATCH" for row in mixed_rows)
    assert frame.where("type = 'MESSAGE_START'").count() == starts
    assert frame.count() == len(mixed_rows)
    both = frame.where("type = 'MESSAGE_START'").unionAll(frame.where("type = 'BATCH'"))
    assert both.count() == starts + batches
    pairs = frame.where("type = 'BATCH'").alias("b").join(frame.alias("a"), F.expr("a.batch_lsn = b.lsn"))
    assert pairs.count() == len(mixed_rows)


def test_unwanted_rows_do_not_leave_the_scanner_and_spark_filters_nothing(
    spark: SparkSession, mixed: Path, mixed_rows: list[dict[str, Any]]
) -> None:
    frame = logstore.spark.read(spark, mixed, engine="jvm").where("queue = 'orders' AND type = 'MESSAGE_DEQUEUE'")
    wanted = sum(row["queue"] == "orders" and row["type"] == "MESSAGE_DEQUEUE" for row in mixed_rows)
    assert rows_out_of_the_scan(frame) == wanted
    assert "Filter (" not in plan_of(frame)
    assert "PushedFilters: [IsNotNull(queue)" in plan_of(frame)


def test_a_count_makes_no_rows_outside_of_the_scanner(
    spark: SparkSession, mixed: Path, mixed_rows: list[dict[str, Any]]
) -> None:
    frame = logstore.spark.read(spark, mixed, engine="jvm")
    counted = frame.selectExpr("count(*)", "count(lsn)")
    assert "PushedAggregates: COUNT" in plan_of(counted)
    assert counted.collect() == [(len(mixed_rows), len(mixed_rows))]
    with_nulls = frame.selectExpr("count(queue)")
    assert "PushedAggregates" not in plan_of(with_nulls)
    assert with_nulls.collect() == [(sum(row["queue"] is not None for row in mixed_rows),)]
    nothing = frame.where("queue = 'never declared'").selectExpr("count(*)")
    assert "PushedAggregates: COUNT" in plan_of(nothing)
    assert nothing.collect() == [(0,)]
    left = frame.where("relocated").selectExpr("count(*)")  # Spark decides this condition, so it needs the rows
    assert "PushedAggregates" not in plan_of(left)
    assert left.collect() == [(sum(row["relocated"] for row in mixed_rows),)]


def test_a_limit_ends_the_scan_of_each_task(spark: SparkSession, mixed: Path) -> None:
    frame = logstore.spark.read(spark, mixed, engine="jvm", partition_bytes=1 << 40)
    tasks = frame.rdd.getNumPartitions()
    few = frame.limit(7)
    assert "PushedLimit: 7" in plan_of(few)
    assert rows_out_of_the_scan(few) <= 7 * tasks
    assert few.count() == 7
    assert len(frame.where("type = 'BATCH'").limit(3).collect()) == 3
    assert "PushedLimit" not in plan_of(frame.where("relocated").limit(3))  # Spark decides the condition after the scan


def test_the_size_of_a_scan_is_estimated_from_its_log_and_columns(spark: SparkSession, mixed: Path) -> None:
    def size(frame: DataFrame) -> int:
        return int(frame._jdf.queryExecution().optimizedPlan().stats().sizeInBytes())

    frame = logstore.spark.read(spark, mixed, engine="jvm")
    with Reader(mixed) as reader:
        log = sum(one.end_lsn - one.first_lsn for one in reader.segments())
    assert 0 < size(frame.select("lsn")) < size(frame) < 100 * log
    last = frame.agg(F.max("lsn")).collect()[0][0]
    assert size(frame.where(f"lsn = {last}")) < size(frame)


# ---- Values


def test_batches_of_every_size_give_the_same_rows(spark: SparkSession, mixed: Path) -> None:
    whole = logstore.spark.read(spark, mixed, engine="jvm").orderBy("lsn")
    for rows in (1, 63, 64, 65, 1 << 20):
        assertDataFrameEqual(
            logstore.spark.read(spark, mixed, engine="jvm", batch_rows=rows).orderBy("lsn"), whole, checkRowOrder=True
        )


def test_a_python_function_gets_the_rows_of_the_connector(spark: SparkSession, mixed: Path) -> None:
    """The rows are then read by a thread of their own, while the task's thread waits for Python."""
    frame = logstore.spark.read(spark, mixed, engine="jvm")
    added = F.udf(lambda lsn: lsn + 1, "bigint")
    (row,) = frame.select(F.sum(added("lsn") - F.col("lsn"))).collect()
    assert row[0] == frame.count()
    assert len(frame.select(added("lsn")).limit(3).collect()) == 3


def test_the_files_of_a_log_are_closed_after_every_query(spark: SparkSession, mixed: Path, tmp_path: Path) -> None:
    damaged = shutil.copytree(mixed, tmp_path / "damaged")
    with Reader(damaged) as reader:
        segment = reader.segments()[2]
    damage(damaged, segment.first_lsn + 5000)
    logstore.spark.read(spark, mixed, engine="jvm").limit(1).collect()
    logstore.spark.read(spark, mixed, engine="jvm").collect()
    said(lambda: logstore.spark.read(spark, damaged, engine="jvm").collect())
    assert files_open_below(spark, mixed) == files_open_below(spark, damaged) == []


def files_open_below(spark: SparkSession, path: Path) -> list[str]:
    """The files and directories of a store that the JVM has open."""
    process = spark._jvm.java.lang.ProcessHandle.current().pid()
    found = []
    for one in Path(f"/proc/{process}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            found.append(os.readlink(one))
    assert found
    return [name for name in found if Path(name).is_relative_to(path)]


def test_a_killed_task_frees_its_scan(spark: SparkSession, mixed: Path, tmp_path: Path) -> None:
    """Its rows go to a Python function, so another thread than the killed one reads them."""
    reached, rest = tmp_path / "reached", tmp_path / "rest"
    for one in (reached, rest):
        os.mkfifo(one)

    def held_up(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            reached.write_text("here")  # waits until the test reads it
            rest.read_text()  # nobody ever writes
            yield batch[["lsn"]]

    # More bytes than fit between the task and its function, which waits: so the task is inside of its range.
    frame = logstore.spark.read(spark, mixed, columns=["lsn", "header"], engine="jvm", batch_rows=10)
    wide = frame.select("lsn", "header", F.repeat(F.lit("x"), 100_000).alias("filler"))
    spark.conf.set(
        "spark.sql.execution.arrow.maxRecordsPerBatch", "5"
    )  # or the task reads all before the function begins
    rows = wide.coalesce(1).mapInPandas(held_up, "lsn bigint")
    ended: list[str] = []

    def collect() -> None:
        with pytest.raises(Py4JJavaError, match="cancelled"):
            rows.collect()
        ended.append("cancelled")

    job = threading.Thread(target=collect)
    job.start()
    reached.read_text()
    assert files_open_below(spark, mixed)
    spark.sparkContext.cancelAllJobs()
    job.join()
    spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert ended == ["cancelled"]

    def freed() -> bool:
        spark._jvm.System.gc()
        return not files_open_below(spark, mixed)

    wait_until(freed)


# ---- Errors


def test_both_sources_say_the_same_of_damage(spark: SparkSession, mixed: Path, tmp_path: Path) -> None:
    path = shutil.copytree(mixed, tmp_path / "damaged")
    with Reader(path) as reader:
        batch = max(reader.batches(), key=lambda one: len(one.raw))
    damage(path, batch.lsn + len(batch.raw) // 2)
    with pytest.raises(errors.CorruptLog) as told, Reader(path) as reader:
        list(reader.batches())
    for engine in ("jvm", "python"):
        assert told.value.message in said(
            lambda engine=engine: logstore.spark.read(spark, path, engine=engine).collect()
        )


def test_both_sources_say_the_same_of_a_log_that_a_writer_recycled(spark: SparkSession, tmp_path: Path) -> None:
    with open_small(tmp_path / "live") as store:
        queue = store.declare_queue("q")
        ids = store.publish_many(queue, [b"x"] * 10)
        frames = [logstore.spark.read(spark, store.path, engine=engine) for engine in ("jvm", "python")]
        store.dequeue_many(ids, queue)
        for _ in range(3):
            churn(store, 4)
            store.compact()
        found = [said(frame.collect) for frame in frames]
    assert all("LogRecycled" in text for text in found)
    texts = [text[text.index("LogRecycled") :].splitlines()[0] for text in found]
    assert texts[0].removeprefix("LogRecycled: ") == texts[1].partition(": ")[2]


def test_both_sources_say_the_same_of_an_option(spark: SparkSession, mixed: Path) -> None:
    found = [
        said(lambda name=name: spark.read.format(name).option("modus", "x").load(str(mixed)).collect())
        for name in ("logstore-jvm", "logstore-python")
    ]
    assert "OptionError: the source logstore has no option modus; it has:" in found[0]
    assert found[0].partition("OptionError: ")[2].splitlines()[0] in found[1]


def test_a_planner_without_the_package_is_one_plain_error(spark: SparkSession, mixed: Path, tmp_path: Path) -> None:
    frame = spark.read.format("logstore-jvm")
    spark.conf.set(PYTHON, str(tmp_path / "none"))
    text = said(lambda: frame.load(str(mixed)).count())
    assert "MissingExtra: the source logstore-jvm plans its queries with the Python package logstore" in text
    assert f"set {PYTHON} to a Python that has it" in text
    bare = tmp_path / "bare"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S -I "$@"\n')
    bare.chmod(0o700)
    spark.conf.set(PYTHON, str(bare))
    assert "cannot import logstore, or what its sources for Spark need" in said(lambda: frame.load(str(mixed)).count())
    spark.conf.set(PYTHON, sys.executable)
    assert frame.load(str(mixed)).count() > 0


def test_a_planner_that_dies_is_replaced(spark: SparkSession, mixed: Path, tmp_path: Path) -> None:
    program, place = tmp_path / "python", tmp_path / "pid"
    program.write_text(f'#!/bin/sh\necho $$ > {place}\nexec {sys.executable} "$@"\n')
    program.chmod(0o700)
    spark.conf.set(PYTHON, str(program))
    rows = spark.read.format("logstore-jvm").load(str(mixed)).count()
    first = int(place.read_text())
    os.kill(first, signal.SIGKILL)
    child = spark._jvm.java.lang.ProcessHandle.of(first)
    if child.isPresent():
        child.get().onExit().get()
    assert spark.read.format("logstore-jvm").load(str(mixed)).count() == rows
    assert int(place.read_text()) != first


# ---- Names


def test_each_source_has_a_name_of_its_own_and_the_session_chooses_who_has_logstore(
    spark: SparkSession, mixed: Path
) -> None:
    def sources(frame: DataFrame) -> str:
        return plan_of(frame.select("lsn"))

    def of(name: str) -> str:
        return sources(spark.read.format(name).load(str(mixed)))

    logstore.spark.register(spark)
    assert "(Python)" in of("logstore")
    assert "(Python)" in of("logstore-python")
    assert "logstore-jvm" in of("logstore-jvm")
    logstore.spark.register(spark, engine="jvm")
    assert "logstore-jvm" in of("logstore")
    assert "(Python)" in of("logstore-python")
    assert "logstore-jvm" in sources(logstore.spark.read(spark, mixed))
    logstore.spark.register(spark, engine="python")
    assert "(Python)" in of("logstore")
    assert "(Python)" in sources(logstore.spark.read(spark, mixed))
    assert "logstore-jvm" in sources(logstore.spark.read(spark, mixed, engine="jvm"))
    spark.conf.unset("spark.logstore.engine")
    assert "logstore-jvm" in sources(logstore.spark.read(spark, mixed))


def test_what_only_the_python_source_does_is_read_with_it(spark: SparkSession, mixed: Path) -> None:
    assert "logstore-jvm" in plan_of(logstore.spark.read(spark, mixed, columns=["lsn", "properties"]))
    assert "(Python)" in plan_of(logstore.spark.read(spark, mixed, pushdown=False))
    with pytest.raises(errors.OptionError, match="pushdown is a choice of the Python source"):
        logstore.spark.read(spark, mixed, pushdown=True, engine="jvm")
    with pytest.raises(errors.OptionError, match="engine is 'jvm' or 'python', not 'scala'"):
        logstore.spark.read(spark, mixed, engine="scala")


def test_a_checkpoint_of_one_source_is_continued_by_the_other(spark: SparkSession, tmp_path: Path) -> None:
    with open_small(tmp_path / "store") as store:
        queue = store.declare_queue("q")
        found = []
        for engine in ["jvm", "python", "jvm"]:
            store.publish_many(queue, [b"x"] * 5)
            frame = logstore.spark.read_stream(
                spark, store.path, columns=["lsn"], types=["MESSAGE_START"], engine=engine
            )
            written = frame.writeStream.format("parquet").option("path", str(tmp_path / "out"))
            written = written.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
            written.start().awaitTermination()
            rows = spark.read.parquet(str(tmp_path / "out"))
            found.append((rows.count(), rows.distinct().count()))
        assert found == [(5, 5), (10, 10), (15, 15)]
        assert store.stats()["holds"] == 0


class FakeSession:
    """A session whose JVM has this to say of the connector; None: it does not have it."""

    def __init__(self, problem: str | None) -> None:
        self.conf: dict[str, str] = {}
        found = SimpleNamespace(newInstance=lambda: SimpleNamespace(problem=lambda: problem))

        def find(*given: object) -> object:
            if problem is None:
                raise LookupError
            return found

        classes = SimpleNamespace(forName=find)
        loader = SimpleNamespace(getContextOrSparkClassLoader=lambda: None)
        spark = SimpleNamespace(apache=SimpleNamespace(spark=SimpleNamespace(util=SimpleNamespace(Utils=loader))))
        self._jvm = SimpleNamespace(java=SimpleNamespace(lang=SimpleNamespace(Class=classes)), org=spark)


def test_a_connector_that_does_not_work_is_replaced_by_the_python_source_and_that_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    session: Any = FakeSession("StoreError: the jar has no native library for linux-riscv64, this machine")
    for _ in range(2):
        assert chosen(session, None) == "python"
    (said_once,) = caplog.messages
    assert said_once.startswith("the jar has no native library for linux-riscv64, this machine; meanwhile the Python")
    with pytest.raises(errors.OptionError, match="no native library for linux-riscv64"):
        chosen(session, "jvm")
    assert chosen(session, "python") == "python"


def test_without_the_connector_the_python_source_reads_and_nothing_is_said(caplog: pytest.LogCaptureFixture) -> None:
    session: Any = FakeSession(None)
    assert chosen(session, None) == "python"
    assert caplog.messages == []
    with pytest.raises(errors.OptionError, match=r"this session has no JVM connector: name .*logstore-spark\.jar"):
        chosen(session, "jvm")
