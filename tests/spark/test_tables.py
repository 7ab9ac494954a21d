"""The source in SQL: tables of a catalog, names in any case, user-defined schemas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import AnalysisException
from pyspark.sql.types import LongType, StringType, StructField, StructType

import logstore.spark
from logstore.errors import OptionError
from logstore.spark.options import Options, StreamOptions, given_for, kept_with
from logstore.spark.schema import checked_columns, spark_schema

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("engine")]


def test_a_table_of_the_catalog_is_the_log(spark: SparkSession, mixed: Path, mixed_rows: list[dict[str, Any]]) -> None:
    for name, ddl in (
        ("by_option", f"OPTIONS (path '{mixed}', Partition_Bytes '1000000') TBLPROPERTIES ('colour' = 'red')"),
        ("by_location", f"LOCATION '{mixed}' COMMENT 'the log'"),
    ):
        spark.sql(f"CREATE TABLE {name} USING logstore {ddl}")
        assert spark.sql(f"SELECT count(*) FROM {name}").collect() == [(len(mixed_rows),)]
        starts = spark.table(name).where("type = 'MESSAGE_START'").count()
        assert starts == sum(row["type"] == "MESSAGE_START" for row in mixed_rows)
        spark.sql(f"DROP TABLE {name}")
    with pytest.raises(AnalysisException, match="has no option colour"):
        spark.sql(f"CREATE TABLE wrong USING logstore OPTIONS (path '{mixed}', colour 'red')")


def test_a_schema_that_declares_a_nullable_column_as_not_null_is_refused(
    spark: SparkSession, mixed: Path, mixed_rows: list[dict[str, Any]]
) -> None:
    asked = spark.read.format("logstore").schema("lsn bigint not null, queue string not null")
    with pytest.raises(AnalysisException, match="queue NOT NULL"):
        asked.load(str(mixed)).where("queue <> 'x'").count()
    whole = spark.read.format("logstore").schema("queue string, lsn bigint not null").load(str(mixed))
    assert whole.where("queue is null").count() == sum(row["queue"] is None for row in mixed_rows)


def test_names_of_columns_and_keywords_are_case_insensitive(
    spark: SparkSession, mixed: Path, mixed_rows: list[dict[str, Any]]
) -> None:
    options = {"MODE": "PERMISSIVE", "types": "message_start"}
    found = spark.read.format("logstore").schema("LSN bigint, Queue string").options(**options).load(str(mixed))
    assert found.columns == ["LSN", "Queue"]
    wanted = [(row["lsn"], row["queue"]) for row in mixed_rows if row["type"] == "MESSAGE_START"]
    assert sorted(found.collect()) == sorted(wanted)
    pushed = logstore.spark.read(spark, mixed, columns=["LSN", "Type"], pushdown=True)
    assert pushed.where("TYPE = 'MESSAGE_START'").count() == len(wanted)


def test_options_are_read_in_any_case() -> None:
    assert Options.read({"path": "x", "mode": "PERMISSIVE"}).permissive
    assert Options.read({"path": "x", "TYPES": "close"}).conditions.wanted == {"type": frozenset({"CLOSE"})}
    assert StreamOptions.read({"path": "x", "start": "LATEST", "failOnDataLoss": "FALSE"}).start == "latest"
    assert StreamOptions.read({"path": "x", "start": "0X10"}).start == 16
    asked = StructType([StructField("LSN", LongType()), StructField("Queue", StringType())])
    assert checked_columns(asked) == ["lsn", "queue"]
    with pytest.raises(OptionError, match="twice"):
        checked_columns(StructType([StructField("LSN", LongType()), StructField("lsn", LongType())]))


def test_the_options_of_a_table_are_kept_with_its_columns() -> None:
    created = {
        "provider": "logstore", "owner": "me", "location": "file:/x", "path": "file:/x", "comment": "c",
        "own": "1", "mode": "permissive", "option.mode": "permissive",
    }  # fmt: skip
    schema = kept_with(spark_schema(), created)
    assert given_for(schema, {}) == {"path": "file:/x", "mode": "permissive"}
    assert given_for(schema, {"MODE": "strict"}) == {"path": "file:/x", "mode": "strict"}
    assert kept_with(spark_schema(), {"path": "x"}) == spark_schema()
    with pytest.raises(OptionError, match="without a list of columns"):
        given_for(spark_schema(), {})
