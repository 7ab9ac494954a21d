"""Spark shows the states of places: the rows of the second implementation, and analyses that know moves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import logstore.spark
from kit.exported import as_version_1
from kit.placed_logs import make_placed_log
from kit.row_oracle import message_rows, record_rows
from logstore import arrow
from logstore.arrow import export
from logstore.report import report

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

NEW = ["from_queue_id", "not_before", "expires", "note"]


@pytest.fixture(scope="module")
def placed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log with every record that carries states of places, and nothing recycled."""
    path = tmp_path_factory.mktemp("placed") / "store"
    make_placed_log(path, 11, recycles=False)
    return path


def rows_of(frame: DataFrame) -> list[dict[str, Any]]:
    table = frame.toArrow()
    key = "lsn" if "lsn" in table.column_names else "id"
    return table.sort_by(key).to_pylist()  # type: ignore[no-any-return]  # pyarrow is untyped


@pytest.mark.usefixtures("engine")
def test_the_source_gives_the_rows_of_the_oracle(spark: SparkSession, placed: Path) -> None:
    wanted = record_rows(placed)
    assert rows_of(logstore.spark.read(spark, placed)) == wanted
    few = logstore.spark.read(spark, placed, columns=["lsn", *NEW], types=["MESSAGE_MOVE", "MESSAGE_PLACE"])
    names = ["lsn", *NEW]
    chosen = [row for row in wanted if row["type"] in ("MESSAGE_MOVE", "MESSAGE_PLACE")]
    assert rows_of(few) == [{name: row[name] for name in names} for row in chosen]
    with_note = logstore.spark.read(spark, placed).where("length(note) > 0")
    assert with_note.count() == sum(bool(row["note"]) for row in wanted)


def test_an_export_by_spark_has_the_bytes_of_one_by_arrow(spark: SparkSession, placed: Path, tmp_path: Path) -> None:
    export(placed, tmp_path / "one")
    logstore.spark.export(spark, placed, tmp_path / "two")
    files = {path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*.parquet")}
    assert files
    for file in files:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()
    closed, still_open = message_rows(placed)
    assert rows_of(spark.read.parquet(f"{tmp_path}/one/messages").drop("day")) == sorted(
        closed, key=lambda row: row["id"]
    )
    assert rows_of(spark.read.parquet(f"{tmp_path}/one/open").drop("state")) == still_open


@pytest.mark.usefixtures("engine")
def test_depths_counted_from_records_and_from_messages_are_the_same(
    spark: SparkSession, placed: Path, tmp_path: Path
) -> None:
    export(placed, tmp_path / "target")
    messages, opened = (spark.read.parquet(f"{tmp_path}/target/{name}") for name in ("messages", "open"))
    records = logstore.spark.read(spark, placed)

    def depths(frame: DataFrame) -> dict[tuple[Any, ...], tuple[int, ...]]:
        return {(row.queue_id, row.start): (row.enqueued, row.ended, row.depth) for row in frame.collect()}

    by_records = depths(logstore.spark.queue_depth(records, "10 milliseconds"))
    by_messages = depths(logstore.spark.queue_depth(logstore.spark.everything(messages, opened), "10 milliseconds"))
    assert by_records == by_messages
    assert len({queue_id for queue_id, _ in by_records}) > 3
    sums = logstore.spark.bytes_by_queue(records).collect()
    starts = [row for row in record_rows(placed) if row["type"] in ("MESSAGE_START", "MESSAGE_START_PLACED")]
    assert sum(row.messages for row in sums) == sum(not row["relocated"] for row in starts)


def test_the_report_by_spark_equals_the_report_by_arrow(spark: SparkSession, placed: Path, tmp_path: Path) -> None:
    def compared(found: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in found.items() if name not in ("tail", "read_time")}

    export(placed, tmp_path / "target")
    found = compared(report(tmp_path / "target"))
    assert compared(report(tmp_path / "target", spark=spark)) == found
    assert found["summary"]["published"] == sum(
        row["type"] in ("MESSAGE_START", "MESSAGE_START_PLACED") and not row["relocated"] for row in record_rows(placed)
    )
    as_version_1(tmp_path / "target")
    assert compared(report(tmp_path / "target", spark=spark)) == compared(report(tmp_path / "target"))


def test_spark_merges_the_columns_of_an_export_that_was_continued(
    spark: SparkSession, placed: Path, tmp_path: Path
) -> None:
    export(placed, tmp_path / "target")
    wanted = spark.read.parquet(f"{tmp_path}/target/messages").drop("day").schema
    as_version_1(tmp_path / "target")
    one = next((tmp_path / "target").rglob("messages-*.parquet"))
    copy = tmp_path / "target" / "messages" / "day=2000-01-01" / "later.parquet"
    copy.parent.mkdir()
    export(placed, tmp_path / "new")
    copy.write_bytes(next((tmp_path / "new").rglob("messages-*.parquet")).read_bytes())
    both = spark.read.option("mergeSchema", "true").parquet(f"{tmp_path}/target/messages").drop("day")
    assert both.schema["places"].dataType == wanted["places"].dataType
    assert both.count() == 2 * len(message_rows(placed)[0])
    assert both.selectExpr("inline(places)").where("note IS NOT NULL").count() > 0
    assert one.exists()
    assert arrow.MESSAGES.names == both.columns
