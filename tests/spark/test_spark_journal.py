"""The writer's journal compared with Spark's rows of its log: from the source, and from two kinds of exports.

The log is recycled and relocated, and its writer killed, between the exports.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import logstore.export
import logstore.spark
from kit.row_journal import Event, Journal, md5, new_store, write_epoch
from kit.spark_logs import kept_whole
from logstore.holds import hold
from logstore.inspect import Reader

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

EPOCHS = 2

PLACE = """
concat_ws(',', p.queue_id, coalesce(p.enqueue_tx, 0), if(p.enqueue_tx is null, p.enqueue_lsn, 0),
    coalesce(p.dequeue_tx, 0), if(p.dequeue_tx is null and p.reason is null, coalesce(p.dequeue_lsn, 0), 0),
    coalesce(p.reason, ''), coalesce(p.delivery_count, 0))
"""
MESSAGE = f"""
md5(concat_ws('|', id, outcome, header_bytes, content_bytes, place_count,
    array_join(transform(places, p -> {PLACE}), ';')))
"""
DEQUEUE = """
md5(concat_ws(',', id, queue_id, coalesce(tx_id, 0), if(tx_id is null and reason is null, lsn, 0),
    coalesce(reason, ''), coalesce(delivery_count, 0)))
"""


class BySpark:
    """Spark's texts of the rows of any source."""

    def __init__(self, records: DataFrame, messages: DataFrame | None = None) -> None:
        self._records, self._messages = records, messages

    def messages(self) -> list[str]:
        """The md5 of every message's text, sorted."""
        assert self._messages is not None
        return sorted(row[0] for row in self._messages.selectExpr(MESSAGE).collect())

    def dequeues(self) -> list[str]:
        """The md5 of every dequeue's text, sorted."""
        dequeues = self._records.where("type = 'MESSAGE_DEQUEUE'")
        return sorted(row[0] for row in dequeues.selectExpr(DEQUEUE).collect())

    def sums(self) -> tuple[int, ...]:
        """How many messages have original START and CHUNK records, and their bytes of content and of headers."""
        contents = self._records.where("NOT relocated AND type IN ('MESSAGE_START', 'MESSAGE_CHUNK')")
        (told,) = contents.selectExpr("count(DISTINCT id)", "sum(content_bytes)", "sum(header_bytes)").collect()
        return tuple(told)


@pytest.fixture(scope="module")
def read(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    path = tmp_path_factory.mktemp("journal") / "store"
    new_store(path)
    local, job = path.with_name("local"), path.with_name("job")
    events: list[Event] = []
    with kept_whole(path) as whole, hold(path, "local") as first, hold(path, "job") as second:
        for epoch in range(EPOCHS):
            events = write_epoch(path, 30 + epoch, events)
            logstore.export.export(path, local, hold=first, file_bytes=1 << 20)
            logstore.spark.export(spark, path, job, hold=second, file_bytes=1 << 20)
        with Reader(path) as reader:
            assert reader.info.base_lsn > whole.lsn
        with logstore.spark.held(spark, path, hold=whole) as source:
            exports = [
                BySpark(spark.read.parquet(str(place / "records")), spark.read.parquet(str(place / "messages")))
                for place in (local, job)
            ]
            yield {"journal": Journal(events), "source": BySpark(source), "local": exports[0], "job": exports[1]}


@pytest.mark.parametrize("way", ["source", "local", "job"])
def test_spark_finds_the_dequeues_and_contents_of_the_journal(read: dict[str, Any], way: str) -> None:
    journal, rows = read["journal"], read[way]
    assert rows.dequeues() == md5(journal.dequeue_texts())
    assert rows.sums() == journal.sums()


@pytest.mark.parametrize("way", ["local", "job"])
def test_spark_finds_the_closed_messages_of_the_journal(read: dict[str, Any], way: str) -> None:
    found = read[way].messages()
    assert found == md5(message.text() for message in read["journal"].closed)
    assert len(found) > 200
