"""An export and the log above it, read through Arrow, are one table: each row once, as the log alone would have it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

import logstore
from kit.exported import as_version_1, recycle, store_dir
from kit.row_histories import SEGMENT, History
from kit.row_oracle import message_rows, record_rows
from logstore import arrow
from logstore.errors import OptionError, StoreError
from logstore.export import ExportDamaged, ExportGap, ExportMismatch, export, hold_for, joined, joined_rows
from logstore.holds import hold
from logstore.inspect import LogRecycled, Reader

if TYPE_CHECKING:
    from pathlib import Path

    from logstore.holds import Hold

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install '/path/to/checkout[arrow]'")

__all__ = ["store_dir"]  # a fixture

Rows = list[dict[str, Any]]


def nameless(rows: Rows) -> Rows:
    """The rows without the names of queues, which are those of the time of the export, and without states."""
    made = []
    for row in rows:
        kept = {name: value for name, value in row.items() if name not in ("queue", "state")}
        if "places" in kept:
            kept["places"] = nameless(kept["places"])
        made.append(kept)
    return made


def same(found: Rows, wanted: Rows) -> None:
    for one, other in zip(found, wanted, strict=False):
        assert one == other
    assert len(found) == len(wanted)


def rows_of(path: Path, target: Path, table: str = "records") -> Rows:
    found: Rows = arrow.read_table(path, target, table).read_all().to_pylist()
    return found


def check(path: Path, target: Path, witness: Hold) -> None:
    """Compares all tables of a store without a writer with those of its whole log, computed in plain Python."""
    found, wanted = rows_of(path, target), record_rows(path, hold=witness)
    for one, other in zip(found, wanted, strict=True):
        if one["type"] == "TX_DELETE" and one["outcome"] is None:
            other["outcome"] = None  # its outcome was exported by an earlier run, and is let go of
    same(nameless(found), nameless([{name: row[name] for name in found[0]} for row in wanted]))
    closed, still_open = message_rows(path, hold=witness)
    same(nameless(rows_of(path, target, "messages")), nameless(closed))
    same(nameless(rows_of(path, target, "open")), nameless(still_open))


@pytest.mark.parametrize(
    "seed", [0, 1, pytest.param(2, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.slow)]
)
def test_the_tables_are_those_of_the_log_over_histories_that_recycle_it(tmp_path: Path, seed: int) -> None:
    path, target = tmp_path / "store", tmp_path / "target"
    logstore.open(path, segment_size=SEGMENT).close()
    weight = [1, 8, 4, 2][seed]
    with (
        hold(path, "witness", limit_bytes=1 << 40) as witness,
        hold_for(path, target, limit_bytes=1 << 40) as held,
    ):
        messages: list[int] = []
        for number in range(4):
            history = History(path, seed * 1000 + number, messages)
            history.settle_doubt()
            history.run(80, weight)
            export(path, target, hold=held)  # with open transactions and staged messages
            history.run(60, weight)
            if number == 2:
                history.drop_queue()
            messages = history.messages
            history.store.compact()
            history.store.close()
            check(path, target, witness)
        with Reader(path) as reader:
            assert reader.segments()[0].first_lsn > rows_of(path, target)[0]["lsn"], "history is part of the table"


def test_of_the_open_set_only_the_bodies_of_rows_are_in_memory(tmp_path: Path) -> None:
    path, target, size = tmp_path / "store", tmp_path / "target", 8 << 10
    bodies = [os.urandom(size) for _ in range(8192)]
    with logstore.open(path) as store:
        queue = store.declare_queue("orders")
        ids = list(store.publish_many(queue, bodies))
        export(path, target, body=size)
        store.dequeue_many(ids[-2:], queue)
    before, counting = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    pa.set_memory_pool(counting)
    try:
        table = arrow.read_table(path, target, "messages", columns=["id", "body"]).read_all()
    finally:
        pa.set_memory_pool(before)
    assert table.to_pylist() == [
        {"id": number, "body": body} for number, body in zip(ids[-2:], bodies[-2:], strict=True)
    ]
    assert counting.max_memory() < size * len(bodies) / 2


def test_duckdb_and_polars_read_the_table(store_dir: Path, tmp_path: Path) -> None:
    duckdb, polars = pytest.importorskip("duckdb"), pytest.importorskip("polars")
    target = tmp_path / "target"
    export(store_dir, target)
    with hold(store_dir, "witness", limit_bytes=1 << 40) as witness:
        with logstore.open(store_dir) as store:
            store.dequeue_many(store.publish_many("orders", [b"x"] * 7), "orders")
        wanted = [(row["lsn"], row["type"]) for row in record_rows(store_dir, hold=witness)]
        first, second = (arrow.read_table(store_dir, target, columns=["lsn", "type"]) for _ in range(2))
    assert polars.from_arrow(first).rows() == wanted
    with duckdb.connect() as database:
        database.register("rows", second)
        assert database.sql("SELECT lsn, type FROM rows").fetchall() == wanted


def test_a_stream_keeps_its_rows_while_the_export_and_the_log_move_on(store_dir: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    export(store_dir, target)
    with hold_for(store_dir, target) as held:
        recycle(store_dir, 2)
        streams = {name: arrow.read_table(store_dir, target, name) for name in ("records", "messages", "open")}
        wanted = {name: arrow.read_table(store_dir, target, name).read_all() for name in streams}
        export(store_dir, target, hold=held)
        recycle(store_dir, 8)
        assert {name: stream.read_all() for name, stream in streams.items()} == wanted


def test_a_part_of_the_open_set_that_a_run_replaces_is_read_again(
    store_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "target"
    export(store_dir, target)
    real, found = joined.find_join, []
    monkeypatch.setattr(joined, "_PAUSE_S", 0.0)

    def overtaken(*given: Any) -> joined.Join:
        found.append(real(*given))
        if len(found) == 1:  # a whole run after the manifest was read
            with hold_for(store_dir, target) as held, logstore.open(store_dir) as store:
                store.publish_many("orders", [b"new"] * 3)
                store.force()
                export(store_dir, target, hold=held)
        return found[-1]

    monkeypatch.setattr(joined, "find_join", overtaken)
    assert len(rows_of(store_dir, target, "open")) == 45 + 3
    assert len(found) == 2
    for part in (target / "open").iterdir():
        part.unlink()
    with pytest.raises(StoreError, match="not the part of the open set that the manifest names.*Run the export again"):
        arrow.read_table(store_dir, target, "open")


def test_columns_that_an_older_program_did_not_export_are_null(store_dir: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    export(store_dir, target)
    as_version_1(target)
    with hold(store_dir, "witness", limit_bytes=1 << 40) as witness:
        with logstore.open(store_dir) as store:
            store.dequeue_many(store.publish_many("orders", [b"x"] * 5), "orders")
        check(store_dir, target, witness)


def test_columns_are_those_asked_for_in_their_order(store_dir: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    export(store_dir, target, body=10)
    columns = ["headers", "body", "lsn", "properties", "outcome"]
    table = arrow.read_table(store_dir, target, columns=columns).read_all()
    assert table.schema == arrow.schema(columns)
    assert [row["body"] for row in table.to_pylist()] == [row["body"] for row in record_rows(store_dir, body=10)]
    assert arrow.read_table(store_dir, target, "messages", columns=["queue", "id"]).schema.names == ["queue", "id"]


def test_what_cannot_be_joined_is_refused_with_what_to_do(store_dir: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    with pytest.raises(OptionError, match="no export in .*: name the target"):
        arrow.read_table(store_dir, target)
    export(store_dir, target)
    with pytest.raises(OptionError, match="has no bodies: export to a new target with --body"):
        arrow.read_table(store_dir, target, columns=["body"])
    with pytest.raises(OptionError, match="messages has no column 'no'; it has id"):
        arrow.read_table(store_dir, target, "messages", columns=["no"])
    with logstore.open(tmp_path / "other") as store:
        store.declare_queue("orders")
    with pytest.raises(ExportMismatch, match="holds the export of store"):
        arrow.read_table(tmp_path / "other", target)
    recycle(store_dir, 12)
    with pytest.raises(ExportGap, match=r"LSN \d+ to \d+. Run `logstore export --allow-gap`") as gap:
        arrow.read_table(store_dir, target)
    assert gap.value.start_lsn < gap.value.stop_lsn
    export(store_dir, target, allow_gap=True)
    stream = arrow.read_table(store_dir, target)
    file = next((target / "records").rglob("*.parquet"))
    file.unlink()
    with pytest.raises(ExportDamaged, match=file.name):
        stream.read_all()
    with pytest.raises(ExportDamaged, match=file.name):
        arrow.read_table(store_dir, target)


def test_a_long_log_that_a_writer_recycles_is_never_skipped(
    store_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "target"
    monkeypatch.setattr(joined_rows, "EAGER_BYTES", 0)
    export(store_dir, target)
    with logstore.open(store_dir) as store:
        store.publish_many("orders", [b"new"] * 3)
        store.force()
        stream = arrow.read_table(store_dir, target)
    recycle(store_dir, 20)
    with pytest.raises(LogRecycled):
        stream.read_all()
