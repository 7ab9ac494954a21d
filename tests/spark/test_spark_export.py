"""The export as a Spark job: it writes the same files as the local export, however often it is restarted."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.testing import assertDataFrameEqual

import logstore.arrow
import logstore.export
import logstore.spark
from kit.patience import wait_until
from kit.row_oracle import record_rows
from kit.spark_logs import churn, damage, everything, kept_whole, open_small
from kit.stores import ROOT
from logstore import errors
from logstore.errors import OptionError
from logstore.export.manifest import ExportError, ExportLocked
from logstore.export.target import Target, read_manifest
from logstore.holds import list_holds
from logstore.inspect import Reader

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

TIMEOUT_S = 240  # of a busy machine
FILE_BYTES = 1 << 20


def files(target: Path) -> dict[str, bytes]:
    """All files of an export, by path."""
    found = {str(path.relative_to(target)): path.read_bytes() for path in target.rglob("*") if path.is_file()}
    return {path: raw for path, raw in found.items() if path != "_LOCK"}


@pytest.mark.parametrize("body", [None, 1000])
def test_the_job_writes_the_same_bytes_as_the_local_export(
    spark: SparkSession, mixed: Path, tmp_path: Path, body: int | None
) -> None:
    local = logstore.export.export(mixed, tmp_path / "local", file_bytes=FILE_BYTES, body=body)
    job = logstore.spark.export(spark, mixed, tmp_path / "job", file_bytes=FILE_BYTES, body=body)
    assert files(tmp_path / "job") == files(tmp_path / "local")
    assert job.files == local.files >= 5
    assert (job.records, job.messages, job.open, job.last_lsn) == (
        local.records,
        local.messages,
        local.open,
        local.last_lsn,
    )
    again = logstore.spark.export(spark, mixed, tmp_path / "job")
    assert (again.files, again.last_lsn) == (0, local.last_lsn)
    assert files(tmp_path / "job") == files(tmp_path / "local")


def test_exported_rows_equal_those_of_the_source(spark: SparkSession, mixed: Path, tmp_path: Path) -> None:
    logstore.spark.export(spark, mixed, tmp_path / "job", file_bytes=FILE_BYTES, chunk_bytes=3 * FILE_BYTES)
    exported = spark.read.parquet(str(tmp_path / "job" / "records")).drop("day")
    source = logstore.spark.read(spark, mixed)
    columns = [name for name in source.columns if name != "queue_ids"]  # whose elements Parquet calls nullable
    assertDataFrameEqual(
        exported.select(columns).orderBy("lsn"), source.select(columns).orderBy("lsn"), ignoreNullable=True
    )
    assert exported.selectExpr("sum(size(queue_ids))").collect() == source.selectExpr("sum(size(queue_ids))").collect()


def test_consecutive_runs_on_a_live_store_miss_nothing_although_it_recycles(
    spark: SparkSession, tmp_path: Path
) -> None:
    target = tmp_path / "target"
    with open_small(tmp_path / "live") as store, kept_whole(store.path) as held:
        everything(store, b"1 ")
        logstore.spark.export(spark, store.path, target, start_lsn=held.lsn)
        with logstore.export.hold_for(store.path, target) as kept:
            churn(store, 2)
            logstore.export.export(store.path, target, hold=kept)  # the two may take turns
            everything(store, b"2 ")
            churn(store, 2)
            store.compact()
            assert store.base_lsn > held.lsn
            before = read_manifest(target)
            assert before is not None
            assert store.base_lsn > before.last_lsn
            last = logstore.spark.export(spark, store.path, target, hold=kept)
            assert kept.lsn == last.last_lsn
        wanted = record_rows(store.path, stop_lsn=last.last_lsn, hold=held)
        assert [one.name for one in list_holds(store.path)] == ["test"]
    found = spark.read.parquet(str(target / "records")).select("lsn", "type").orderBy("lsn").collect()
    assert [tuple(row) for row in found] == [(row["lsn"], row["type"]) for row in wanted]


def test_a_second_export_of_any_kind_waits_its_turn(spark: SparkSession, mixed: Path, tmp_path: Path) -> None:
    with Target(tmp_path / "target", mixed), pytest.raises(ExportLocked):
        logstore.spark.export(spark, mixed, tmp_path / "target")
    with pytest.raises(errors.OptionError, match="file_bytes"):
        logstore.spark.export(spark, mixed, tmp_path / "target", file_bytes=0)


def test_an_address_that_executors_must_not_see_or_cannot_reach_is_refused(
    spark: SparkSession, mixed: Path, tmp_path: Path
) -> None:
    pytest.importorskip("fsspec")
    for address, says in (
        ("s3://user:secret@archive/x", "target s3://archive/x has a key or a password"),
        ("memory://job/x", "the target is memory://job/x, which only this process reaches"),
        ("unheard://of/x", "neither pyarrow nor fsspec knows, unheard://"),
    ):
        for job in (
            lambda address=address: logstore.spark.export(spark, mixed, address),
            lambda address=address: logstore.spark.stream_export(spark, mixed, address, tmp_path / "checkpoint"),
        ):
            with pytest.raises(OptionError, match=says):
                job()


def test_a_failed_task_leaves_the_target_unchanged_and_reports_the_reason(
    spark: SparkSession, mixed: Path, tmp_path: Path
) -> None:
    path, target = shutil.copytree(mixed, tmp_path / "store"), tmp_path / "target"
    with Reader(path) as reader:
        middle = reader.segments()[len(reader.segments()) // 2]
        batch = next(one for one in reader.batches() if one.first_lsn == middle.first_lsn)
    logstore.spark.export(spark, path, target, stop_lsn=middle.first_lsn)
    before = files(target)
    damage(path, batch.lsn + 60)
    with pytest.raises(ExportError, match=f"a task of the export.*segment {middle.name}.*running this again"):
        logstore.spark.export(spark, path, target)
    assert {name: raw for name, raw in files(target).items() if not name.startswith("_staging")} == before


def test_a_stream_exports_new_records_and_a_repeated_batch_is_not_doubled(spark: SparkSession, tmp_path: Path) -> None:
    target, checkpoint = tmp_path / "target", tmp_path / "checkpoint"

    def follow(**stream: object) -> int:
        query = logstore.spark.stream_export(
            spark, store.path, target, checkpoint, trigger={"availableNow": True}, stream=stream
        )
        assert query.awaitTermination(TIMEOUT_S)
        return len(query.recentProgress)

    with open_small(tmp_path / "live") as store:
        everything(store, b"1 ")
        first, end = store.base_lsn, store.durable_lsn
        assert follow(maxBytesPerTrigger=(end - first) // 2 + 1) == 2
        everything(store, b"2 ")
        follow()
        before = files(target)
        # As after a kill between the export's commit and the query's own: the batch is delivered again.
        commits = [path for path in checkpoint.joinpath("commits").iterdir() if path.name.isdigit()]
        last = max(commits, key=lambda path: int(path.name))
        last.unlink()
        last.with_name(f".{last.name}.crc").unlink(missing_ok=True)
        follow()
        assert {path for path in files(target) if path.startswith("records/")} == {
            path for path in before if path.startswith("records/")
        }
        wait_until(lambda: not any(one.alive for one in list_holds(store.path)), "what the queries held is let go of")
        manifest = read_manifest(target)
        assert manifest is not None
        wanted = record_rows(store.path, stop_lsn=manifest.last_lsn)
    found = spark.read.parquet(str(target / "records")).select("lsn", "type").orderBy("lsn").collect()
    assert [tuple(row) for row in found] == [(row["lsn"], row["type"]) for row in wanted]


@pytest.mark.slow
def test_the_module_is_a_program(mixed: Path, tmp_path: Path) -> None:
    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "logstore.spark_export", *map(str, arguments)],
            env={**os.environ, "PYTHONPATH": str(ROOT), "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )

    done = run(mixed, tmp_path / "job", "--file-bytes", "1M", "--json")
    assert done.returncode == 0, done.stderr
    logstore.export.export(mixed, tmp_path / "local", file_bytes=FILE_BYTES)
    assert files(tmp_path / "job") == files(tmp_path / "local")
    told: dict[str, Any] = json.loads(done.stdout)
    assert told["records"] == len(record_rows(mixed))
    wrong = run(tmp_path, tmp_path / "other")
    assert wrong.returncode == 3
    assert "Traceback" not in wrong.stderr


def test_exports_of_several_stores_are_one_table_with_the_store_on_each_row(
    spark: SparkSession, mixed: Path, tmp_path: Path
) -> None:
    with open_small(tmp_path / "other") as store:
        store.publish_many(store.declare_queue("q"), [b"x"] * 7)
    counts = {}
    for path, target in ((mixed, tmp_path / "one"), (tmp_path / "other", tmp_path / "two")):
        report = logstore.export.export(path, target)
        with Reader(path) as reader:
            counts[str(reader.info.uuid)] = (report.records, report.messages, report.open)
    targets = [tmp_path / "one", tmp_path / "two"]
    for number, table in enumerate(("records", "messages", "open")):
        found = logstore.spark.read_exports(spark, targets, table)
        told = {row["store"]: row["count"] for row in found.groupBy("store").count().collect()}
        assert told == {store: count[number] for store, count in counts.items() if count[number]}
    whole = logstore.spark.read_exports(spark, targets, "records")
    (second,) = (store for store, count in counts.items() if count[2] == 7)
    plan = whole.where(f"store = '{second}'")._jdf.queryExecution().optimizedPlan().toString()
    assert plan.count("Relation [") == 1, "the other export is not read"
    for wrong, table, says in (
        ([*targets, tmp_path / "one"], "records", "second export of the store"),
        ([mixed], "records", "no export in"),
        (targets, "queues", "no table 'queues'; it has records, messages, open"),
        (tmp_path / "one", "records", "or a list of exports"),
        ([], "records", "a list of directories"),
    ):
        with pytest.raises(errors.OptionError, match=says):
            logstore.spark.read_exports(spark, wrong, table)  # type: ignore[arg-type]  # wrong on purpose
