"""Exports of earlier versions, as they are checked in, are read, merged, shortened and registered as those of this one.

``export-v2`` was written by the program before the manifest's version 3. ``export-v1`` has the same rows in the columns
and the single open set of a program without states of places.
"""

from __future__ import annotations

import shutil
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from kit.command import told
from kit.exported import NEW_COLUMNS, manifest_of
from kit.stores import ROOT
from logstore.export import delta, upkeep
from logstore.export.places import place_of
from logstore.export.target import Target
from logstore.export.verification import verify
from logstore.rows.schema import message_schema, schema

pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed: pip install '/path/to/checkout[arrow]'")

if TYPE_CHECKING:
    from pathlib import Path

VERSIONS = ("v1", "v2")
ROWS = {"records": 28, "messages": 8}


@pytest.fixture(params=VERSIONS)
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    made = tmp_path / "target"
    shutil.copytree(ROOT / "tests" / "golden" / f"export-{request.param}", made)
    (made / "_LOCK").touch()
    return made


def rows_of(target: Path, dataset: str) -> list[dict[str, Any]]:
    return [
        row
        for file in manifest_of(target).of(dataset)
        for row in pq.read_table(target / file.path, partitioning=None).to_pylist()
    ]


def test_it_is_whole_and_a_query_has_its_rows(target: Path) -> None:
    report = verify(target)
    assert (report.problems, report.records, report.messages) == ((), ROWS["records"], ROWS["messages"])
    assert report.manifest.dropped == ()
    for name, count in (*ROWS.items(), ("open", 4)):
        assert told("sql", target, f"SELECT count(*) FROM {name}")["rows"] == [[count]]


def test_its_files_are_merged_into_one_with_all_columns_of_now_and_the_same_values(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {name: rows_of(target, name) for name in ROWS}
    monkeypatch.setattr(upkeep, "MERGE_FILES", 2)
    with Target(target) as place:
        assert upkeep.keep_up(place, None, target).merged_files == 4
    assert verify(target).problems == ()
    for name, wanted in (("records", schema(body=True)), ("messages", message_schema(body=True))):
        (file,) = manifest_of(target).of(name)
        assert pq.ParquetFile(target / file.path).schema_arrow.remove_metadata() == wanted
        for row, old in zip(rows_of(target, name), before[name], strict=True):
            assert {key: row[key] for key in old if key != "places"} == {k: v for k, v in old.items() if k != "places"}
            assert all(row[key] is None for key in NEW_COLUMNS if key in row and key not in old)
            for place_now, place_then in zip(row.get("places", ()), old.get("places", ()), strict=True):
                assert {key: place_now[key] for key in place_then} == place_then


def test_its_days_are_dropped_and_named(target: Path) -> None:
    with Target(target) as place:
        files = manifest_of(target).files
        assert upkeep.drop_expired(place, timedelta.max).dropped_files == 0
        with pytest.MonkeyPatch.context() as patch:
            late = upkeep._now() + timedelta(days=365)
            patch.setattr(upkeep, "_now", lambda: late)
            assert upkeep.drop_expired(place, timedelta(days=90)).dropped_files == len(files) == 4
    report = verify(target)
    assert (report.problems, report.records) == ((), 0)
    assert {one.dataset: one.rows for one in report.manifest.dropped} == ROWS


def test_it_becomes_a_delta_table(target: Path) -> None:
    deltalake = pytest.importorskip("deltalake", reason="pip install '/path/to/checkout[delta]'")
    assert delta.register(place_of(target), manifest_of(target)) == 4
    for name, count in ROWS.items():
        assert deltalake.DeltaTable(str(target / name)).to_pyarrow_table().num_rows == count
