"""The rows of a log against its writer's own journal: no operation on the store is missing or listed twice.

Between the passes the log is recycled and relocated, and its writer is killed. The rows are read by the package's
scanner, DuckDB and Polars.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kit.row_journal import (
    ByDuckDB,
    ByPolars,
    Event,
    Journal,
    dequeue_text,
    md5,
    message_text,
    new_store,
    write_epoch,
)
from logstore import arrow
from logstore.export import export
from logstore.holds import hold
from logstore.inspect import Reader
from logstore.rows.messages import MessageScan

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install '/path/to/checkout[arrow]'")

if TYPE_CHECKING:
    from pathlib import Path

EPOCHS = 3


class Read:
    """The rows of a log, read in passes, one after each epoch."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.target = path.with_name("exported")
        self.events: list[Event] = []
        self.records: list[dict[str, Any]] = []
        self.messages: list[dict[str, Any]] = []
        self.open: Any = None
        self.bases: list[int] = []

    def take(self, start: int, held: Any) -> int:
        """One pass, from ``start`` to the end."""
        with Reader(self.path, hold=held) as reader:
            stop = reader.info.end_lsn
            self.bases.append(reader.info.base_lsn)
        options: dict[str, Any] = {"start_lsn": start, "stop_lsn": stop, "hold": held}
        self.records += arrow.read(self.path, **options).read_all().to_pylist()
        names = arrow.queue_names(self.path)
        with MessageScan(self.path, queue_names=names, seed=self.open, **options) as scan:
            self.messages += [row for batch in scan for row in batch.to_pylist()]
            self.open = scan.open_rows()
        export(self.path, self.target, hold=held, file_bytes=1 << 20)  # the hold advances with the export
        return stop


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> Read:
    path = tmp_path_factory.mktemp("journal") / "store"
    new_store(path)
    done = Read(path)
    with hold(path, "reader") as held:
        start = done.take(0, held)
        for epoch in range(EPOCHS):
            done.events = write_epoch(path, 10 + epoch, done.events)
            start = done.take(start, held)
    return done


def test_every_message_of_the_journal_has_one_row_that_agrees_with_the_journal(read: Read) -> None:
    journal = Journal(read.events)
    found = [message_text(row) for row in read.messages]
    assert sorted(found) == sorted(message.text() for message in journal.closed)
    assert md5(found) == md5(message.text() for message in journal.closed)
    assert {row["outcome"] for row in read.messages} >= {"dequeued", "rolled_back", "queue_deleted", "dropped"}
    assert all(row["whole"] for row in read.messages)
    keys = [(row["end_lsn"], row["id"]) for row in read.messages]
    assert keys == sorted(set(keys))


def test_an_open_message_of_the_journal_is_open_in_the_rows(read: Read) -> None:
    journal = Journal(read.events)
    rows = {row["id"]: row for row in read.open.to_pylist()}
    assert rows.keys() == journal.messages.keys()
    for message in journal.messages.values():
        row = rows[message.id]
        assert (row["header_bytes"], row["content_bytes"]) == (message.header_bytes, message.content_bytes)
        assert (row["pending"], row["staged"]) == (len(message.work), not message.enqueued)
        assert [place["queue_id"] for place in row["places"]] == [place.queue_id for place in message.places]


def test_every_dequeue_of_the_journal_is_a_record_with_that_outcome(read: Read) -> None:
    journal = Journal(read.events)
    rows = [row for row in read.records if row["type"] == "MESSAGE_DEQUEUE"]
    assert sorted(map(dequeue_text, rows)) == sorted(journal.dequeue_texts())
    for row in rows:
        if row["tx_id"] and row["outcome"] not in ("open", "prepared"):  # others may end in a later pass
            assert row["outcome"] == journal.outcomes[row["tx_id"]]


def test_every_content_of_the_journal_is_in_the_records_once(read: Read) -> None:
    journal = Journal(read.events)
    sizes: dict[int, list[int]] = {}
    for row in read.records:
        if row["type"] in ("MESSAGE_START", "MESSAGE_CHUNK") and not row["relocated"]:
            total = sizes.setdefault(row["id"], [0, 0])
            total[0] += row["header_bytes"] or 0
            total[1] += row["content_bytes"]
    assert sizes == {one.id: [one.header_bytes, one.content_bytes] for one in journal.started.values()}


def test_the_enqueue_that_a_dequeue_ends_is_the_journals(read: Read) -> None:
    journal = Journal(read.events)
    places = {
        (message.id, place.queue_id): place
        for message in journal.started.values()
        for place in message.places
        if not place.enqueue_tx
    }
    told = 0
    for row in read.records:
        place = places.get((row["id"], row["queue_id"])) if row["type"] == "MESSAGE_DEQUEUE" else None
        if place is not None and row["enqueue_lsn"] is not None:
            assert row["enqueue_lsn"] == place.enqueue_lsn
            told += 1
    assert told > 100


def test_the_log_was_recycled_and_relocated_between_the_passes(read: Read) -> None:
    assert read.bases == sorted(read.bases)
    assert read.bases[-1] > read.bases[0]
    assert any(row["relocated"] for row in read.records)
    assert any(row["copy_count"] > 0 for row in read.messages)
    outcomes = set(Journal(read.events).outcomes.values())
    assert outcomes == {"committed", "rolled_back"}


@pytest.mark.parametrize("reader", [ByDuckDB, ByPolars])
def test_software_that_knows_nothing_of_this_one_reads_the_same_rows_from_the_exports(read: Read, reader: Any) -> None:
    name = reader.__name__.removeprefix("By")
    pytest.importorskip(name.lower(), reason=f"{name} is not installed: pip install '/path/to/checkout[test]'")
    journal = Journal(read.events)
    records, messages = (
        [str(file) for file in sorted((read.target / kind).rglob("*.parquet"))] for kind in ("records", "messages")
    )
    assert len(records) > EPOCHS  # more than one for each run
    by = reader(records, messages)
    assert by.messages() == md5(message.text() for message in journal.closed)
    assert by.dequeues() == md5(journal.dequeue_texts())
    contents = [row for row in read.records if row["content_offset"] is not None and not row["relocated"]]
    assert by.sums() == (len(contents), *journal.sums())


def test_the_exports_hold_the_rows_of_the_scans(read: Read) -> None:
    from pyarrow import parquet

    wanted = {"records": (read.records, ["lsn"]), "messages": (read.messages, ["end_lsn", "id"])}
    for kind, (rows, order) in wanted.items():
        tables = [parquet.ParquetFile(file).read() for file in (read.target / kind).rglob("*.parquet")]
        found = pa.concat_tables([table.select(tables[0].column_names) for table in tables])
        found = found.sort_by([(name, "ascending") for name in order]).to_pylist()
        assert len(found) == len(rows)
        for one, other in zip(found, rows, strict=True):
            if kind == "records":  # an export knows places whose records a partial scan cannot read
                for name in ("enqueue_lsn", "enqueue_time"):
                    one[name] = one[name] if other[name] is not None else None
            assert one == other
