"""An export has the states of places, and goes on where a program without their columns left it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import logstore
from kit.exported import NEW_COLUMNS, NEW_FIELDS, SEGMENT, as_version_1, manifest_of
from kit.placed_logs import make_placed_log
from kit.row_oracle import message_rows, record_rows
from logstore.export import export
from logstore.export.places import place_of
from logstore.export.verification import verify
from logstore.report import report

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install '/path/to/checkout[arrow]'")
pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed: pip install '/path/to/checkout[arrow]'")

if TYPE_CHECKING:
    from pathlib import Path

Rows = list[dict[str, Any]]


def tables_of(target: Path, dataset: str) -> list[Any]:
    return [pq.read_table(target / file.path, partitioning=None) for file in manifest_of(target).of(dataset)]


def rows_of(target: Path, dataset: str) -> Rows:
    return [row for table in tables_of(target, dataset) for row in table.to_pylist()]


def without_state(rows: Rows) -> Rows:
    return [{name: value for name, value in row.items() if name != "state"} for row in rows]


@pytest.mark.parametrize("seed", [0, 1])
def test_an_export_has_the_rows_of_a_log_with_states_of_places(tmp_path: Path, seed: int) -> None:
    path, target = tmp_path / "store", tmp_path / "target"
    make_placed_log(path, seed, recycles=bool(seed))
    export(path, target)
    closed, still_open = message_rows(path)
    assert rows_of(target, "records") == record_rows(path)
    assert rows_of(target, "messages") == closed
    assert without_state(rows_of(target, "open")) == still_open
    assert verify(target).problems == ()
    assert manifest_of(target).schema_version == 2


def work(path: Path) -> None:
    with logstore.open(path, segment_size=SEGMENT) as store:
        queue = store.declare_queue("orders")
        ids = list(store.publish_many(queue, [b"x"] * 30))
        store.dequeue_many(ids[:10], queue)
        for delivery in store.queue("orders").acquire(5):
            delivery.accept()


@pytest.fixture
def continued(tmp_path: Path) -> Path:
    """The target of an export whose first run was of version 1; the store is `store` beside it."""
    path, target = tmp_path / "store", tmp_path / "target"
    work(path)
    export(path, target)
    as_version_1(target)
    assert manifest_of(target).schema_version == 1
    assert verify(target).problems == ()
    work(path)
    export(path, target)
    return target


def test_an_export_of_version_1_is_continued_with_the_new_columns(continued: Path) -> None:
    assert manifest_of(continued).schema_version == 2
    first, *_, last = tables_of(continued, "records")
    assert not NEW_COLUMNS & set(first.column_names)
    assert set(last.column_names) >= NEW_COLUMNS
    for table, there in ((tables_of(continued, "messages")[0], False), (tables_of(continued, "messages")[-1], True)):
        fields = {field.name for field in table.schema.field("places").type.value_type}
        assert bool(fields & NEW_FIELDS) is there
    whole = continued.parent / "whole"
    export(continued.parent / "store", whole)
    found = pa.concat_tables(tables_of(continued, "records"), promote_options="default").to_pylist()
    wanted = {row["lsn"]: row for row in rows_of(whole, "records")}
    assert all(
        row[name] == wanted[row["lsn"]][name] for row in found for name in wanted[row["lsn"]] if name != "outcome"
    )
    assert {row["id"] for row in rows_of(continued, "messages")} == {row["id"] for row in rows_of(whole, "messages")}
    assert without_state(rows_of(continued, "open")) == without_state(rows_of(whole, "open"))
    assert verify(continued).problems == ()


def test_the_report_counts_both_parts_of_a_continued_export(continued: Path) -> None:
    whole = continued.parent / "whole"
    export(continued.parent / "store", whole)
    found, wanted = report(continued), report(whole)
    for name in ("summary", "depth", "written", "latency", "deliveries"):
        assert found[name] == wanted[name]


def test_duckdb_and_polars_read_both_parts_of_a_continued_export(continued: Path) -> None:
    duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed: pip install duckdb")
    polars = pytest.importorskip("polars", reason="polars is not installed: pip install polars")
    pattern = f"{continued}/messages/*/*.parquet"
    count = len(rows_of(continued, "messages"))
    query = f"SELECT count(*), count(place.note) FROM (SELECT unnest(places) AS place FROM read_parquet('{pattern}', union_by_name = true))"  # noqa: E501 - a path of the test
    assert duckdb.sql(query).fetchall() == [(count, 0)]
    frame = polars.scan_parquet(
        pattern,
        missing_columns="insert",
        cast_options=polars.ScanCastOptions(missing_struct_fields="insert", extra_struct_fields="ignore"),
        extra_columns="ignore",
    )
    assert frame.select(polars.len()).collect().item() == count


def test_iceberg_tables_get_the_new_columns(tmp_path: Path) -> None:
    pytest.importorskip("pyiceberg", reason="pyiceberg is not installed: pip install '/path/to/checkout[iceberg]'")
    from logstore.export.iceberg import open_catalog

    path, target, place = tmp_path / "store", tmp_path / "target", tmp_path / "iceberg"
    work(path)
    export(path, target)
    as_version_1(target)
    from logstore.export.iceberg import register

    register(place_of(target), manifest_of(target), place)
    table = open_catalog(place).load_table(("logstore", "records"))
    assert not NEW_COLUMNS & {field.name for field in table.schema().fields}
    work(path)
    export(path, target, iceberg=place)
    for dataset in ("records", "messages"):
        found = open_catalog(place).load_table(("logstore", dataset)).scan().to_arrow()
        assert found.num_rows == len(rows_of(target, dataset))
    table = open_catalog(place).load_table(("logstore", "records"))
    assert {field.name for field in table.schema().fields} >= NEW_COLUMNS
