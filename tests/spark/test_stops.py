"""Where a read or a stream begins and stops, by LSN and by time, and which rows of it the options select."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

import logstore.spark
from kit.row_oracle import record_rows
from kit.spark_logs import open_small
from logstore import arrow, errors
from logstore.spark.options import StreamOptions
from logstore.spark.schema import spark_schema
from logstore.spark.stream import LogStream

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("engine")]

MICROSECOND = timedelta(microseconds=1)


def stream(path: Path, **options: object) -> LogStream:
    """As the driver has it."""
    given = {"path": str(path)} | {key: str(value) for key, value in options.items()}
    return LogStream(spark_schema(["lsn", "type", "queue"]), StreamOptions.read(given))


def rows(reader: LogStream, start: dict[str, Any], end: dict[str, Any]) -> list[dict[str, Any]]:
    """Of one batch, read as executors do."""
    return [row for part in reader.partitions(start, end) for batch in reader.read(part) for row in batch.to_pylist()]


def followed(reader: LogStream, limit: object = None) -> list[list[dict[str, Any]]]:
    """The rows of each batch, until there are no more."""
    made, at = [], reader.initialOffset()
    while (end := reader.latestOffset(at, limit or ReadAllAvailable())) != at:  # type: ignore[arg-type]  # a limit
        made.append(rows(reader, at, end))
        at = end
    reader.stop()
    return made


@pytest.fixture(scope="module")
def times(mixed_rows: list[dict[str, Any]]) -> tuple[datetime, datetime]:
    """A third and two thirds of the way through the log: both are times of batches."""
    return mixed_rows[len(mixed_rows) // 3]["time"], mixed_rows[2 * len(mixed_rows) // 3]["time"]


def test_a_stream_stops_at_the_given_lsn_or_time(
    mixed: Path, mixed_rows: list[dict[str, Any]], times: tuple[datetime, datetime]
) -> None:
    first, last = times
    stop = mixed_rows[2 * len(mixed_rows) // 3]["lsn"]
    start_lsn, stop_lsn = arrow.lsn_at(mixed, first), arrow.lsn_at(mixed, last)
    assert mixed_rows[0]["lsn"] < start_lsn < stop_lsn < mixed_rows[-1]["lsn"]
    for options, low, high in (
        ({"stopLsn": stop}, 0, stop),
        ({"ENDINGTIMESTAMP": last.isoformat()}, 0, stop_lsn),
        ({"startingTimestamp": first.isoformat()}, start_lsn, 1 << 62),
        ({"starting_timestamp": first.isoformat(), "endingTimestamp": last.isoformat()}, start_lsn, stop_lsn),
        ({"startingTimestamp": 0, "endingTimestamp": datetime.now(UTC).isoformat()}, 0, 1 << 62),
    ):
        whole = [row["lsn"] for row in mixed_rows if low <= row["lsn"] < high]
        for limit, most in ((ReadAllAvailable(), 1 << 62), (ReadMaxRows(200), 200)):
            batches = followed(stream(mixed, **options), limit)
            assert [row["lsn"] for row in itertools.chain(*batches)] == whole
            assert max(map(len, batches)) <= most


def test_a_stream_beside_a_writer_goes_on_to_its_stop_and_no_further(tmp_path: Path) -> None:
    with open_small(tmp_path / "live") as store:
        queue = store.declare_queue("q")
        store.publish(queue, b"x")
        later = datetime.now(UTC) + timedelta(hours=1)
        stop = store.next_lsn + 300
        reader, timed = stream(store.path, stop_lsn=stop), stream(store.path, endingTimestamp=later.isoformat())
        at = reader.initialOffset()
        middle = reader.latestOffset(at, ReadAllAvailable())
        assert middle["lsn"] < stop
        store.publish_many(queue, [b"x"] * 20)
        end = reader.latestOffset(middle, ReadAllAvailable())
        assert end["lsn"] == stop
        assert reader.latestOffset(end, ReadAllAvailable()) == end
        assert all(row["lsn"] < stop for row in rows(reader, middle, end))
        assert timed.latestOffset(timed.initialOffset(), ReadAllAvailable())["lsn"] > stop  # the time has not come
        with pytest.raises(errors.OptionError, match="yet to come"):
            stream(store.path, startingTimestamp=later.isoformat()).initialOffset()
        for one in (reader, timed):
            one.stop()


def test_a_stream_has_the_selected_rows_only_and_its_limit_counts_these(
    mixed: Path, mixed_rows: list[dict[str, Any]]
) -> None:
    wanted = [
        {name: row[name] for name in ("lsn", "type", "queue")}
        for row in mixed_rows
        if row["type"] in ("MESSAGE_START", "MESSAGE_DEQUEUE") and row["queue"] == "orders"
    ]
    assert len(wanted) > 100
    options = {"Types": "message_start,Message_Dequeue", "QUEUES": "orders"}
    assert list(itertools.chain(*followed(stream(mixed, **options)))) == wanted
    batches = followed(stream(mixed, **options), ReadMaxRows(50))
    assert list(itertools.chain(*batches)) == wanted
    assert [len(batch) for batch in batches if batch][:-1] == [50] * ((len(wanted) - 1) // 50)
    assert list(itertools.chain(*followed(stream(mixed, queues="nowhere")))) == []


def test_a_read_begins_and_stops_where_the_log_reached_a_time(
    spark: SparkSession, mixed: Path, mixed_rows: list[dict[str, Any]], times: tuple[datetime, datetime]
) -> None:
    first, last = times
    found = logstore.spark.read(spark, mixed, columns=["lsn"], startingTimestamp=first, endingTimestamp=last)
    low, high = arrow.lsn_at(mixed, first), arrow.lsn_at(mixed, last)
    wanted = [row["lsn"] for row in mixed_rows if low <= row["lsn"] < high]
    assert sorted(row["lsn"] for row in found.collect()) == wanted
    rest = spark.read.format("logstore").schema("lsn bigint").option("STARTINGTIMESTAMP", last.isoformat())
    assert rest.load(str(mixed)).count() == sum(row["lsn"] >= high for row in mixed_rows)
    with pytest.raises(errors.OptionError, match="after endingTimestamp"):
        logstore.spark.read(spark, mixed, startingTimestamp=last, endingTimestamp=first)
    with pytest.raises(errors.OptionError, match="no option start_tme: is start_time meant"):
        logstore.spark.read(spark, mixed, start_tme=first)


def test_properties_and_headers_of_amqp_are_columns_of_a_read(spark: SparkSession, tmp_path: Path) -> None:
    commands = pytest.importorskip("pamqp.commands", reason="pamqp is not installed")
    from logstore.broker.headers import encode_header

    properties = commands.Basic.Properties(app_id="shop", priority=7, headers={"tenant": "a", "try": 2})
    with open_small(tmp_path / "store") as store:
        queue = store.declare_queue("orders")
        header = encode_header(b"\x00\x06orders", properties.marshal(), 1, None)
        for _ in range(3):
            store.publish(queue, b"x", header=header)
        store.publish(queue, b"x", header=b"another program's")
    found = logstore.spark.read(
        spark, tmp_path / "store", columns=["properties", "lsn", "headers"], types=["MESSAGE_START"]
    )
    chosen = found.selectExpr("properties.routing_key", "properties.app_id", "properties.priority", "headers['try']")
    assert sorted(map(tuple, chosen.collect()), key=str) == [("orders", "shop", 7, "2")] * 3 + [(None,) * 4]
    plain = spark.read.format("logstore").schema("headers map<string, string>, Properties struct<app_id: string>")
    with pytest.raises(Exception, match="the schema asks for Properties struct<app_id:string>, and it is struct<"):
        plain.load(str(tmp_path / "store")).collect()
    assert "properties" not in logstore.spark.read(spark, tmp_path / "store").columns
    assert (
        len(record_rows(tmp_path / "store"))
        == found.sparkSession.read.format("logstore").load(str(tmp_path / "store")).count()
    )
