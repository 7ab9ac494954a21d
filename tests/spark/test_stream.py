"""The log as a stream: every appended record is delivered exactly once, across restarts of query and store."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

import logstore.spark
from kit.patience import wait_until
from kit.row_oracle import record_rows
from kit.spark_logs import churn, everything, kept_whole, open_small
from kit.stores import ROOT
from logstore import errors
from logstore.holds import hold, list_holds
from logstore.inspect import LogRecycled, Reader
from logstore.spark.options import StreamOptions
from logstore.spark.schema import spark_schema
from logstore.spark.stream import LogStream

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("engine")]

TIMEOUT_S = 240  # of a busy machine
COLUMNS = ["lsn", "type", "queue", "id"]

WRITER = """
import sys, warnings
warnings.simplefilter("ignore")
import logstore
store = logstore.open(sys.argv[1])
queue = store.declare_queue("orders")
for _ in sys.stdin:
    ids = store.publish_many(queue, [bytes(5_000)] * 40)
    store.dequeue_many(ids[:36], queue)
    print(store.next_lsn, flush=True)
"""


def stream(path: Path, columns: list[str] | None = None, **options: object) -> LogStream:
    """As the driver has it."""
    given = {"path": str(path)} | {key: str(value) for key, value in options.items()}
    return LogStream(spark_schema(columns or ["lsn"]), StreamOptions.read(given))


def lsns(reader: LogStream, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    """Of one batch, read as executors do."""
    elsewhere = pickle.loads(pickle.dumps(reader))
    parts = pickle.loads(pickle.dumps(list(reader.partitions(start, end))))
    return [lsn for part in parts for batch in elsewhere.read(part) for lsn in batch.column(0).to_pylist()]


def all_lsns(path: Path, **options: Any) -> list[int]:
    return [row["lsn"] for row in record_rows(path, **options)]


def rows(reader: LogStream, start: dict[str, Any], end: dict[str, Any]) -> list[dict[str, Any]]:
    """Of one batch, read as executors do."""
    parts = reader.partitions(start, end)
    return [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]


def test_a_row_does_not_depend_on_the_size_or_the_time_of_its_batch(tmp_path: Path) -> None:
    path = tmp_path / "store"
    columns = ["lsn", "id", "type", "outcome", "enqueue_lsn", "enqueue_time"]
    with open_small(path) as store:
        queue = store.declare_queue("q")
        earlier = store.publish_many(queue, [bytes(20_000)] * 110)
        whole, parts = (stream(path, columns, start=store.next_lsn, partition_bytes=size) for size in (1 << 40, 1))
        starts = [reader.initialOffset() for reader in (whole, parts)]
        held = store.publish_many(queue, [bytes(20_000)] * 110)
        with store.transaction() as work:
            store.dequeue(held[0], queue, work)
        store.dequeue_many([*earlier, *held[1:]], queue)
        end = whole.latestOffset(starts[0], ReadAllAvailable())
        assert len(parts.partitions(starts[1], end)) > 2
        first = rows(whole, starts[0], end)
        assert rows(parts, starts[1], end) == first
        told = {row["id"]: row["enqueue_lsn"] for row in first if row["type"] == "MESSAGE_DEQUEUE"}
        assert [told[key] for key in held] == list(held)  # all that the batch itself has
        assert told[earlier[0]] is None  # what lies in segments below
        base = store.base_lsn
        churn(store, 4)
        store.compact()
        assert store.base_lsn > base
        for reader, start in zip((whole, parts), starts, strict=True):
            assert rows(reader, start, end) == first
            reader.stop()


def test_a_task_whose_batch_has_lost_its_beginning_reads_the_rest(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "store"
    with open_small(path) as store:
        queue = store.declare_queue("q")
        store.dequeue_many(store.publish_many(queue, [bytes(20_000)] * 110), queue)
        reader = stream(path, partition_bytes=1, failOnDataLoss="false")
        start = reader.initialOffset()
        store.publish_many(queue, [bytes(20_000)] * 110)
        end = reader.latestOffset(start, ReadAllAvailable())
        parts = list(reader.partitions(start, end))
        middle = len(parts) // 2
        with hold(path, "rest", lsn=parts[middle].value.start_lsn, limit_bytes=1 << 40):
            reader.stop()
            churn(store, 4)
            store.compact()
            for part in parts[middle:]:
                assert sum(batch.num_rows for batch in reader.read(part)) > 0
        assert "missing" not in caplog.text
        assert sum(batch.num_rows for batch in reader.read(parts[0])) == 0
        assert "missing" in caplog.text


def test_an_offset_never_lies_beyond_the_readable_log(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with open_small(path) as store:
        store.publish(store.declare_queue("q"), b"one")
    reader = stream(path)
    start = reader.initialOffset()
    with open_small(path):
        end = reader.latestOffset(start, ReadAllAvailable())
    assert lsns(reader, start, end) == all_lsns(path)
    assert reader.latestOffset(end, ReadAllAvailable()) == end
    reader.stop()


# ---- Whole queries


def run(spark: SparkSession, path: Path, place: Path, **options: object) -> list[dict[str, Any]]:
    """Stream everything that exists now into Parquet files in this directory; Spark's progress of the batches."""
    frame = logstore.spark.read_stream(spark, path, columns=COLUMNS, **options)
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(place / "checkpoint"))
    query = writer.trigger(availableNow=True).start(str(place / "rows"))
    assert query.awaitTermination(TIMEOUT_S)
    return [json.loads(progress.json) for progress in query.recentProgress]


def delivered(spark: SparkSession, place: Path) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in spark.read.parquet(str(place / "rows")).select(COLUMNS).orderBy("lsn").collect()]


def test_records_of_a_live_writer_are_delivered_once_across_restarts_of_query_and_store(
    spark: SparkSession, tmp_path: Path
) -> None:
    path, place = tmp_path / "store", tmp_path / "out"
    open_small(path).close()
    with kept_whole(path) as held:  # for the query's rest, and to compare with all that ever was
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert writer.stdin is not None
        assert writer.stdout is not None

        def write(rounds: int) -> int:
            for _ in range(rounds):
                writer.stdin.write(b"\n")
                writer.stdin.flush()
                lsn = int(writer.stdout.readline())
            return lsn

        write(4)
        frame = logstore.spark.read_stream(spark, path, columns=COLUMNS, start=held.lsn, maxRecordsPerTrigger=200)
        start = frame.writeStream.format("parquet").option("checkpointLocation", str(place / "checkpoint"))
        query = start.trigger(processingTime="10 milliseconds").start(str(place / "rows"))
        try:
            wait_until(lambda: query.recentProgress, "the first batch")
            write(4)
            wait_until(lambda: query.exception() is not None or len(query.recentProgress) >= 3, "three batches")
            assert query.exception() is None
            assert max(progress["numInputRows"] for progress in query.recentProgress) == 200
            assert {one.name.split("-")[0] for one in list_holds(path)} == {"spark", "test"}
        finally:
            query.stop()
        write(4)
        writer.send_signal(signal.SIGKILL)
        writer.wait(TIMEOUT_S)
        writer.stdin.close()
        writer.stdout.close()
        # Spark ends the process that has the stream's hold, and does not wait for it.
        wait_until(lambda: [one.name for one in list_holds(path) if one.alive] == ["test"], "the stream's hold ends")
        with open_small(path) as store:  # a recovery, and an epoch of its own
            everything(store, b"after the kill ")
            churn(store, 2)
            store.compact()
            assert store.base_lsn > held.lsn
            run(spark, path, place, maxBytesPerTrigger=5_000_000)
            store.publish_many(store.queue("orders"), [b"x"] * 100)
        run(spark, path, place)
        expected = [tuple(row[name] for name in COLUMNS) for row in record_rows(path, hold=held)]
    found = delivered(spark, place)
    assert len(found) == len({row[0] for row in found})
    assert [(row[0], row[1], row[3]) for row in found] == [(row[0], row[1], row[3]) for row in expected]
    assert found[-3:] == expected[-3:]


def test_each_batch_can_be_joined_and_written_by_a_function(spark: SparkSession, mixed: Path, tmp_path: Path) -> None:
    names = spark.createDataFrame([("MESSAGE_START", "begins")], "type string, word string")

    def keep(rows: DataFrame, number: int) -> None:
        rows.join(names, "type").write.mode("overwrite").parquet(str(tmp_path / f"batch={number}"))

    frame = logstore.spark.read_stream(spark, mixed, columns=COLUMNS, start="earliest")
    writer = frame.writeStream.foreachBatch(keep).option("checkpointLocation", str(tmp_path / "checkpoint"))
    assert writer.trigger(availableNow=True).start().awaitTermination(TIMEOUT_S)
    found = spark.read.parquet(str(tmp_path / "batch=0"))
    expected = logstore.spark.read(spark, mixed, columns=["lsn"], types=["MESSAGE_START"])
    assert {row["word"] for row in found.collect()} == {"begins"}
    assert sorted(row["lsn"] for row in found.collect()) == sorted(row["lsn"] for row in expected.collect())


def test_batches_respect_their_limit_and_end_at_the_present_log(
    spark: SparkSession, mixed: Path, tmp_path: Path
) -> None:
    whole = all_lsns(mixed)
    limit = len(whole) // 3 + 1
    told = run(spark, mixed, tmp_path, maxRecordsPerTrigger=limit)
    assert [one["numInputRows"] for one in told] == [limit, limit, len(whole) - 2 * limit]
    assert [row[0] for row in delivered(spark, tmp_path)] == whole
    with Reader(mixed) as reader:
        assert told[-1]["sources"][0]["endOffset"] == {"lsn": reader.info.end_lsn, "store": str(reader.info.uuid)}
    assert run(spark, mixed, tmp_path) == [] or delivered(spark, tmp_path)[-1][0] == whole[-1]
    assert len(delivered(spark, tmp_path)) == len(whole)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"start": "later"}, "is no LSN"),
        ({"as_of_lsn": 5}, "no option as_of_lsn; it has: path"),
        ({"stopLNS": 5}, "no option stoplns: is stop_lsn meant. it has: path"),
        ({"startingOffsets": "latest", "startingTimestamp": 0}, "begins at one place"),
        ({"maxRecordsPerTrigger": 5, "maxBytesPerTrigger": 5}, "one limit"),
        ({"maxRecordsPerTrigger": 0}, "1 or more"),
        ({"failOnDataLoss": "perhaps"}, "true or false"),
    ],
)
def test_a_stream_refuses_impossible_options(
    spark: SparkSession, mixed: Path, options: dict[str, object], says: str
) -> None:
    with pytest.raises(errors.OptionError, match=says):
        logstore.spark.read_stream(spark, mixed, **options)
    for wrong in ({"start": 5}, {"stop_lsn": 5}, {"maxRecordsPerTrigger": 1}):
        with pytest.raises(errors.OptionError, match="of one store|for 2 stores"):
            logstore.spark.read_stream(spark, [mixed, mixed.parent], **wrong)


def test_a_plain_stream_in_sql_words_refuses_it_too(spark: SparkSession, mixed: Path) -> None:
    with pytest.raises((AnalysisException, StreamingQueryException), match="OptionError.* true or false") as refused:
        frame = spark.readStream.format("logstore").option("failOnDataLoss", "perhaps").load(str(mixed))
        frame.writeStream.format("noop").trigger(availableNow=True).start().awaitTermination(TIMEOUT_S)
    assert "Traceback" not in str(refused.value)


# ---- Its offsets and its hold, as the driver calls it


def test_a_stream_begins_at_the_given_position(mixed: Path) -> None:
    with Reader(mixed) as reader:
        base, end, uuid = reader.info.base_lsn, reader.info.end_lsn, str(reader.info.uuid)
    for start, lsn in (("earliest", base), ("latest", end), (base + 5000, base + 5000)):
        reader = stream(mixed, start=start)
        assert reader.initialOffset() == {"lsn": lsn, "store": uuid}
        reader.stop()
    with pytest.raises(errors.OptionError, match="ends at"):
        stream(mixed, start=end + 1).initialOffset()
    assert list_holds(mixed) == []


def test_limits_cut_at_records_and_at_bytes(mixed: Path) -> None:
    whole = all_lsns(mixed)
    reader = stream(mixed)
    at = first = reader.initialOffset()
    assert isinstance(reader.getDefaultReadLimit(), ReadAllAvailable)
    assert stream(mixed, maxRecordsPerTrigger=7).getDefaultReadLimit() == ReadMaxRows(7)
    assert stream(mixed, maxBytesPerTrigger=7).getDefaultReadLimit() == ReadMaxBytes(7)
    for limit in (ReadMaxRows(1), ReadMaxRows(37), ReadMaxBytes(100_000), ReadMaxBytes(1), ReadAllAvailable()):
        after = reader.latestOffset(at, limit)
        found = lsns(reader, at, after)
        assert found == [lsn for lsn in whole if at["lsn"] <= lsn < after["lsn"]]
        if isinstance(limit, ReadMaxRows):
            assert len(found) == limit.max_rows
        if isinstance(limit, ReadMaxBytes):
            assert after["lsn"] - at["lsn"] > 0
        at = after
    assert reader.latestOffset(at, ReadAllAvailable()) == at
    assert lsns(reader, at, at) == []
    assert lsns(reader, first, at) == whole
    assert list(reader.read(InputPartition(None))) == []
    reader.stop()


def test_the_tail_is_held_until_a_batch_is_committed(tmp_path: Path) -> None:
    with open_small(tmp_path / "live") as store:
        store.publish(store.declare_queue("q"), b"x")
        reader = stream(store.path)
        start = reader.initialOffset()
        churn(store, 4)
        store.dequeue_many([one.id for one in store.messages("q")], "q")
        store.compact()
        end = reader.latestOffset(start, ReadAllAvailable())
        assert store.base_lsn > start["lsn"]
        (kept,) = list_holds(store.path)
        assert kept.lsn == start["lsn"]
        first = lsns(reader, start, end)
        assert first[0] < store.base_lsn
        churn(store, 4)
        assert lsns(reader, start, end) == first  # read again, as after a failed task
        reader.commit(end)
        (kept,) = list_holds(store.path)
        assert kept.lsn == end["lsn"]
        reader.commit(start)  # never back
        more = reader.latestOffset(end, ReadAllAvailable())
        assert lsns(reader, end, more)[0] >= end["lsn"]
        reader.stop()
        reader.stop()
        assert list_holds(store.path) == []


def recycled(tmp_path: Path, **options: object) -> tuple[Any, LogStream, dict[str, Any]]:
    """A store that recycled segments while no stream ran, a new stream, and the offset at which it continues."""
    store = open_small(tmp_path / "live")
    queue = store.declare_queue("q")
    ids = store.publish_many(queue, [b"x"] * 10)
    before = stream(store.path)
    offset = before.initialOffset()
    before.stop()
    store.dequeue_many(ids, queue)
    for _ in range(3):
        churn(store, 4)
        store.compact()
    return store, stream(store.path, **options), offset


def test_records_recycled_while_no_query_ran_are_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    store, reader, offset = recycled(tmp_path)
    for _ in range(2):
        with pytest.raises(LogRecycled, match=f"LSN {offset['lsn']}.*new checkpoint.*failOnDataLoss"):
            reader.latestOffset(offset, ReadAllAvailable())
    with pytest.raises(LogRecycled):
        reader.partitions(offset, {"lsn": store.base_lsn + 4096, "store": offset["store"]})
    reader.stop()
    store.close()


def test_a_stream_that_may_lose_data_continues_and_reports_the_gap(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store, reader, offset = recycled(tmp_path, failOnDataLoss="false")
    end = reader.latestOffset(offset, ReadAllAvailable())
    found = lsns(reader, offset, end)
    assert found == [lsn for lsn in all_lsns(store.path) if lsn < end["lsn"]]
    base = store.base_lsn
    assert f"from LSN {offset['lsn']} up to LSN {base}" in caplog.text
    reader.stop()
    store.close()


def test_a_stream_continues_at_the_end_of_an_epoch_although_the_base_is_in_the_next_one(tmp_path: Path) -> None:
    store = open_small(tmp_path / "live")
    queue = store.declare_queue("q")
    ids = list(store.publish_many(queue, [b"x"] * 10))
    store.dequeue_many(ids, queue)
    store.close()
    before = stream(store.path)
    end = before.latestOffset(before.initialOffset(), ReadAllAvailable())
    before.stop()
    store = open_small(tmp_path / "live")
    store.publish(store.queue("q"), b"in the next epoch")
    churn(store)
    assert store.base_lsn > end["lsn"]
    reader = stream(store.path)
    more = reader.latestOffset(end, ReadAllAvailable())
    assert lsns(reader, end, more) == [lsn for lsn in all_lsns(store.path) if lsn < more["lsn"]]
    reader.stop()
    store.close()


def test_a_checkpoint_of_another_store_is_refused(mixed: Path, tmp_path: Path) -> None:
    before = stream(mixed)
    offset = before.initialOffset()
    before.stop()
    with open_small(tmp_path / "other") as store:
        churn(store)
        reader = stream(store.path, failOnDataLoss="false")
        for call in (
            lambda: reader.latestOffset(offset, ReadAllAvailable()),
            lambda: reader.partitions(offset, offset | {"lsn": offset["lsn"] + 1}),
        ):
            with pytest.raises(errors.StoreError, match="the checkpoint is of the store"):
                call()
        reader.stop()


def test_a_batch_planned_beside_a_writer_is_complete_after_the_writer_was_killed(tmp_path: Path) -> None:
    path = tmp_path / "store"
    open_small(path).close()
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert writer.stdin is not None
    assert writer.stdout is not None
    writer.stdin.write(b"\n")
    writer.stdin.flush()
    writer.stdout.readline()
    reader = stream(path)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    writer.send_signal(signal.SIGKILL)
    writer.communicate(timeout=TIMEOUT_S)
    found = lsns(reader, start, end)
    assert len(found) > 70
    assert found == [lsn for lsn in all_lsns(path) if lsn < end["lsn"]]
    assert reader.latestOffset(end, ReadAllAvailable()) == end
    open_small(path).close()  # a recovery
    more = reader.latestOffset(end, ReadAllAvailable())
    assert found + lsns(reader, end, more) == all_lsns(path)
    reader.stop()


def test_a_log_that_was_reset_to_an_older_state_is_refused(mixed: Path) -> None:
    reader = stream(mixed)
    start = reader.initialOffset()
    with pytest.raises(errors.StoreError, match="was set back"):
        reader.partitions(start, start | {"lsn": start["lsn"] + (1 << 40)})
    reader.stop()


def test_a_stream_up_to_now_ends_there_whatever_is_appended(tmp_path: Path) -> None:
    with open_small(tmp_path / "live") as store:
        queue = store.declare_queue("q")
        store.publish_many(queue, [b"x"] * 10)
        reader = stream(store.path)
        start = reader.initialOffset()
        reader.prepareForTriggerAvailableNow()
        now = reader.reportLatestOffset()
        store.publish_many(queue, [b"x"] * 10)
        assert reader.latestOffset(start, ReadAllAvailable()) == now
        assert reader.latestOffset(now, ReadAllAvailable()) == now
        assert reader.reportLatestOffset() != now
        reader.stop()


def test_outcomes_are_as_they_were_known_where_the_batch_ends(mixed: Path) -> None:
    rows = record_rows(mixed)
    commit = max(row["lsn"] for row in rows if row["type"] == "TX_COMMIT")
    reader = stream(mixed, ["lsn", "outcome", "queue"])
    start = reader.initialOffset()
    for end in (commit, rows[-1]["lsn"] + 1):
        parts = reader.partitions(start, start | {"lsn": end})
        found = [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
        expected = record_rows(mixed, stop_lsn=end, as_of_lsn=end)
        assert found == [{name: row[name] for name in ("lsn", "outcome", "queue")} for row in expected]
    reader.stop()
