"""The columns ``properties`` and ``headers``: both sources make the same of every message header."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings

import logstore
import logstore.spark
from kit import message_headers
from kit.message_headers import HEADERS_FLAG, header, table
from kit.spark_needed import require_connector
from logstore.export import export
from logstore.spark import joined

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, Row, SparkSession

pytestmark = pytest.mark.spark

ENGINES = ("python", "jvm")
COLUMNS = ("lsn", "header", "properties", "headers")
TIMEOUT_S = 240  # of a busy machine
FIELDS = [
    "exchange",
    "routing_key",
    "content_type",
    "content_encoding",
    "delivery_mode",
    "priority",
    "correlation_id",
    "reply_to",
    "expiration",
    "message_id",
    "type",
    "user_id",
    "app_id",
]
#: A content type, an app id, a time, and headers.
FULL = header(
    (1 << 15) | HEADERS_FLAG | (1 << 6) | (1 << 3),
    b"\x04text" + table([("x", b"S\0\0\0\1a"), ("n", b"I\0\0\0\7")]) + (1_800_000_000).to_bytes(8, "big") + b"\x04shop",
    routing=b"\x06events\x04paid",
)


@pytest.fixture(autouse=True)
def connector(spark: SparkSession) -> Iterator[None]:
    """As users have it: code that Spark generates reads the connector's columns."""
    require_connector()
    names = ("spark.sql.codegen.wholeStage", "spark.sql.codegen.factoryMode")
    before = {name: spark.conf.get(name) for name in names}
    for name, value in zip(names, ("true", "FALLBACK"), strict=True):
        spark.conf.set(name, value)
    yield
    for name, value in before.items():
        spark.conf.set(name, value)


def published(path: Path, headers: list[bytes]) -> None:
    with logstore.open(path, segment_size=16 << 20) as store:  # so large for the longest header
        store.publish_many(store.declare_queue("q"), [b""] * len(headers), headers=headers)


def first(row: Row) -> Any:
    return row[0]


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with messages of the broker, of another program, and without a header."""
    path = tmp_path_factory.mktemp("few") / "store"
    plain = header(1 << 15, b"\x04json", routing=b"\x00\x01q")
    published(path, [FULL, plain, FULL, b"another program's", b"", header()] * 20)
    return path


def frames(spark: SparkSession, path: Path, *columns: str, **options: Any) -> list[DataFrame]:
    return [logstore.spark.read(spark, path, columns=columns, engine=engine, **options) for engine in ENGINES]


def test_both_sources_make_the_same_of_every_header(spark: SparkSession, tmp_path: Path) -> None:
    """One store has all of them, so that each source is asked once."""
    made = list(message_headers.ODD)

    @settings(max_examples=250, database=None, derandomize=True)
    @given(message_headers.headers())
    def collect(one: bytes) -> None:
        made.append(one)

    collect()
    published(tmp_path / "store", made)
    asked = [
        *("lsn", "header", "properties IS NULL", "headers IS NULL", "unix_micros(properties.timestamp)"),
        *(f"properties.{name}" for name in FIELDS),
        "map_entries(headers)",  # in their order
    ]
    found, wanted = (
        sorted(tuple(row) for row in frame.selectExpr(*asked).collect())
        for frame in reversed(frames(spark, tmp_path / "store", *COLUMNS, types=["MESSAGE_START"]))
    )
    assert len(found) == len(wanted) == len(made)
    for one, other in zip(found, wanted, strict=True):
        assert one == other
    assert sum(row[2] for row in wanted) > 30
    assert sum(bool(row[-1]) for row in wanted) > 60
    assert all(sum(row[at] is not None for row in wanted) > 10 for at in range(4, 5 + len(FIELDS)))


#: Of a struct, Spark asks the connector for the fields that a query uses.
QUERIES = [
    "properties.content_type",
    "properties",
    "headers",
    "headers['x'], cardinality(headers), get(map_values(headers), 1)",
    "headers['n'], properties.timestamp, properties.app_id, lsn, properties.exchange",
    "properties IS NULL, headers IS NULL",
    "properties.priority + 1, struct(properties.routing_key, properties)",
    "array(properties.app_id, properties.reply_to), header",
]

CONDITIONS = {
    "properties.content_type = 'text'": 40,
    "headers['n'] = '7' AND properties.app_id > 'a'": 40,
    "properties.content_type IS NULL AND properties IS NOT NULL": 20,
    "cardinality(headers) = 0": 40,
}


def test_a_query_of_some_fields_has_their_values(spark: SparkSession, few: Path) -> None:
    python, jvm = frames(spark, few, *COLUMNS)
    expressions = [f"struct({query})" for query in QUERIES]
    wanted = sorted(python.selectExpr("lsn", *expressions).collect())
    for number, each in enumerate(expressions, 1):
        assert sorted(jvm.selectExpr("lsn", each).collect()) == [(row[0], row[number]) for row in wanted]
    for condition, count in CONDITIONS.items():
        assert jvm.where(condition).count() == count, condition


def test_only_the_fields_of_a_query_leave_the_scanner(spark: SparkSession, few: Path) -> None:
    frame = frames(spark, few, *COLUMNS)[1].groupBy("properties.content_type").count()
    (scan,) = [line for line in str(frame._jdf.queryExecution().executedPlan()).splitlines() if "BatchScan" in line]
    assert "headers#" not in scan
    assert "lsn#" not in scan
    relation = frame._jdf.queryExecution().optimizedPlan().collectLeaves().head()
    assert relation.scan().readSchema().simpleString() == "struct<properties:struct<content_type:string>>"
    assert {row[0]: row[1] for row in frame.collect() if row[0]} == {"text": 40, "json": 20}


def test_a_stream_of_either_source_has_them(spark: SparkSession, few: Path, tmp_path: Path) -> None:
    found = []
    for engine in ENGINES:
        frame = logstore.spark.read_stream(spark, few, columns=["headers", "lsn", "properties"], engine=engine)
        written = frame.writeStream.format("memory").queryName(f"headers_{engine}").trigger(availableNow=True)
        assert written.start().awaitTermination(TIMEOUT_S)
        found.append(
            sorted(spark.table(f"headers_{engine}").selectExpr("lsn", "headers", "properties").collect(), key=first)
        )
    assert found[0] == found[1]
    assert sum(row["headers"] == {"x": "a", "n": "7"} for row in found[1]) == 40


@pytest.mark.parametrize(
    ("source", "eager_bytes"),
    [("jvm", joined.EAGER_BYTES), ("jvm", 0), ("python", joined.EAGER_BYTES)],
    ids=["jvm-decoded-at-once", "jvm-read-by-tasks", "python"],
)
def test_an_export_and_the_log_above_it_have_them(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, eager_bytes: int
) -> None:
    """The exported rows have the headers as bytes, so they are decoded when they are read."""
    monkeypatch.setattr(joined, "EAGER_BYTES", eager_bytes)
    path, target = tmp_path / "store", tmp_path / "target"
    published(path, [FULL, *message_headers.ODD] * 2)
    export(path, target)
    published(path, [header(), b"another program's", FULL] * 5)
    above, alone = (
        logstore.spark.read(spark, path, columns=["lsn", "headers", "properties"], **given)
        for given in ({"export": target, "engine": source}, {"engine": "jvm"})
    )
    assert ("MapInArrow" in str(above._jdf.queryExecution().optimizedPlan())) == (source == "python")
    found = sorted(above.collect(), key=first)
    assert found == sorted(alone.collect(), key=first)
    assert sum(row["headers"] == {"x": "a", "n": "7"} and row["properties"]["app_id"] == "shop" for row in found) == 7
    (count,) = above.where("properties.content_type = 'text' AND headers['n'] = '7'").selectExpr("count(*)").collect()
    assert count[0] == 7
