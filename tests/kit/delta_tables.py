"""The Delta tables of an export, read by their own library, against the manifest."""

from __future__ import annotations

from typing import Any, Final

import pytest

from logstore.export import delta as export_delta
from logstore.export.iceberg import LAST_LSN
from logstore.export.places import Place, place_of
from logstore.export.target import read_manifest

KEYS: Final = {"records": "lsn", "messages": "id"}


def opened(target: object, dataset: str) -> Any:
    """The table; of an address, with what the export's own file system was given."""
    address, options = export_delta._storage(place_of(target))
    return pytest.importorskip("deltalake").DeltaTable(f"{address}/{dataset}", storage_options=options)


def check(target: Place | object) -> None:
    """Check that the tables have the rows of the manifest's files, each once, and say so."""
    manifest = read_manifest(place_of(target))
    assert manifest is not None
    for dataset, key in KEYS.items():
        table = opened(target, dataset)
        wanted = manifest.of(dataset)
        assert sorted(table.get_add_actions(flatten=True)["path"].to_pylist()) == sorted(
            file.path.removeprefix(f"{dataset}/") for file in wanted
        )
        rows = table.to_pyarrow_table()
        assert rows.num_rows == len(set(rows[key].to_pylist())) == sum(file.rows for file in wanted)
        assert {str(day) for day in rows["day"].to_pylist()} == {file.day for file in wanted}
        last = table.history(1)[0]
        assert last[LAST_LSN] == str(manifest.last_lsn)
        assert table.transaction_version(export_delta.APPLICATION) == manifest.last_lsn
