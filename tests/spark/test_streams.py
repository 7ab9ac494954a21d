"""Several stores as one stream: every record of each once, whatever is added to the list and restarted."""

from __future__ import annotations

import pickle
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

import logstore.spark
from kit.row_oracle import record_rows
from kit.spark_logs import open_small
from logstore import errors
from logstore.holds import list_holds
from logstore.inspect import Reader
from logstore.spark.options import StreamOptions
from logstore.spark.schema import spark_schema
from logstore.spark.stream import LogStream
from logstore.spark.streams import ManyStreams

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("engine")]

TIMEOUT_S = 240  # of a busy machine


def streams(*paths: Path, **options: str) -> ManyStreams:
    """As the driver has it."""
    given = StreamOptions.read({"paths": str([str(path) for path in paths]).replace("'", '"')} | options)
    return ManyStreams(spark_schema(["store", "lsn"]), given)


def rows(reader: ManyStreams, start: dict[str, Any], end: dict[str, Any]) -> set[tuple[str, int]]:
    """Of one batch, read as executors do; no row comes twice."""
    elsewhere = pickle.loads(pickle.dumps(reader))
    parts = pickle.loads(pickle.dumps(list(reader.partitions(start, end))))
    found = [tuple(row.values()) for part in parts for batch in elsewhere.read(part) for row in batch.to_pylist()]
    assert len(found) == len(set(found))
    return set(found)


def uuid_of(path: Path) -> str:
    with Reader(path) as reader:
        return str(reader.info.uuid)


def all_of(*paths: Path) -> set[tuple[str, int]]:
    return {(uuid_of(path), row["lsn"]) for path in paths for row in record_rows(path)}


@pytest.fixture
def others(tmp_path: Path) -> list[Path]:
    """Two stores of other brokers."""
    for name in ("one", "two"):
        with open_small(tmp_path / name) as store:
            store.publish_many(store.declare_queue(name), [b"x"] * 100)
    return [tmp_path / "one", tmp_path / "two"]


def test_a_stream_of_several_stores_has_every_record_of_each_once(mixed: Path, others: list[Path]) -> None:
    whole = all_of(mixed, *others)
    for limit in (ReadAllAvailable(), ReadMaxRows(90), ReadMaxBytes(3_000_000)):
        reader = streams(mixed, *others)
        at = reader.initialOffset()
        found: set[tuple[str, int]] = set()
        while (end := reader.latestOffset(at, limit)) != at:
            batch = rows(reader, at, end)
            assert found.isdisjoint(batch)
            assert len(batch) <= (90 if isinstance(limit, ReadMaxRows) else 1 << 62)
            found |= batch
            reader.commit(end)
            at = end
        assert found == whole
        assert set(at["stores"]) == {uuid_of(path) for path in (mixed, *others)}
        assert [len(list_holds(path)) for path in (mixed, *others)] == [1, 1, 1]
        reader.stop()
        assert [len(list_holds(path)) for path in (mixed, *others)] == [0, 0, 0]


def test_a_store_is_added_to_a_running_checkpoint_and_one_that_is_done_is_left_out(others: list[Path]) -> None:
    one, two = others
    alone = LogStream(spark_schema(["store", "lsn"]), StreamOptions.read({"path": str(one)}))
    start = alone.initialOffset()
    middle = alone.latestOffset(start, ReadMaxRows(30))
    first = {tuple(row.values()) for part in alone.partitions(start, middle) for batch in alone.read(part)
             for row in batch.to_pylist()}  # fmt: skip
    alone.stop()
    both = streams(one, two)
    found, at = set(first), middle
    while (end := both.latestOffset(at, ReadAllAvailable())) != at:
        batch = rows(both, at, end)
        assert found.isdisjoint(batch)
        found, at = found | batch, end
    assert found == all_of(one, two)
    both.stop()
    with pytest.raises(errors.StoreError, match="the checkpoint is of the stores .*name all of them"):
        alone.latestOffset(at, ReadAllAvailable())
    left = streams(one, shutil.copytree(two, one.parent / "three"))
    assert left.latestOffset(at, ReadAllAvailable()) == at  # the same store at another place
    left.stop()
    with open_small(one.parent / "new") as store:
        store.publish(store.declare_queue("q"), b"x")
    rest = streams(one, one.parent / "new")
    assert rest.latestOffset(at, ReadAllAvailable())["stores"].items() > at["stores"].items()
    with pytest.raises(errors.StoreError, match=f"rows of the store {uuid_of(two)}"):
        rest.partitions({"stores": at["stores"] | {uuid_of(two): 0}}, at)
    rest.stop()


def test_a_copy_of_a_store_beside_it_is_refused(others: list[Path]) -> None:
    copy = shutil.copytree(others[0], others[0].parent / "copy")
    with pytest.raises(errors.OptionError, match="is a copy of another of the stores"):
        streams(others[0], copy).initialOffset()


def test_a_query_on_several_stores_writes_their_rows_with_the_store_on_each(
    spark: SparkSession, others: list[Path], tmp_path: Path
) -> None:
    frame = logstore.spark.read_stream(spark, others, types=["MESSAGE_START"])
    assert frame.columns[0] == "store"
    writer = frame.select("store", "lsn").writeStream.format("parquet").partitionBy("store")
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    for more in (0, 5):
        with open_small(others[1]) as store:
            store.publish_many("two", [b"y"] * more)
        query = writer.trigger(availableNow=True).start(str(tmp_path / "rows"))
        assert query.awaitTermination(TIMEOUT_S)
    found = spark.read.parquet(str(tmp_path / "rows")).groupBy("store").count().collect()
    assert {row["store"]: row["count"] for row in found} == {uuid_of(others[0]): 100, uuid_of(others[1]): 105}
