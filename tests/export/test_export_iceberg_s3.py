"""An export's Iceberg tables on S3: each file once, metadata beside the data, whatever ends a run."""

from __future__ import annotations

import signal
import subprocess
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

import logstore
from kit.command import run
from kit.export_days import Days
from kit.patience import PATIENCE_S
from kit.s3_server import KEY, SECRET, S3Server, s3
from logstore.errors import OptionError
from logstore.export import export, upkeep, verify
from logstore.export.iceberg import LAST_LSN, open_catalog
from logstore.export.object_stores import iceberg_properties
from logstore.export.places import RemotePlace, place_of
from logstore.export.target import read_manifest

pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install '/path/to/checkout[arrow]'")
pytest.importorskip("pyiceberg", reason="pyiceberg is not installed: pip install '/path/to/checkout[iceberg]'")

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["s3"]  # a fixture
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")  # pyiceberg's own
KEYS = {"records": "lsn", "messages": "id"}

# Exports to an address, and dies before the table of messages.
DYING = """
import os, signal, sys
from pathlib import Path
from logstore.export import export, iceberg
real = iceberg._register
def dying(catalog, dataset, *rest):
    if dataset == "messages":
        os.kill(os.getpid(), signal.SIGKILL)
    return real(catalog, dataset, *rest)
iceberg._register = dying
export(sys.argv[1], sys.argv[2], iceberg=sys.argv[3])
"""


def work(path: Path) -> None:
    with logstore.open(path, segment_size=512 << 10) as store:
        queue = store.declare_queue("orders")
        ids = list(store.publish_many(queue, [b"x"] * 20))
        store.dequeue_many(ids[:10], queue)


def check(target: str, directory: Path) -> None:
    """Check that the tables have the rows of the manifest's files, each once, and say so, also without the catalog."""
    from pyiceberg.table import StaticTable

    place, manifest = place_of(target), read_manifest(target)
    assert isinstance(place, RemotePlace)
    assert manifest is not None
    catalog = open_catalog(directory, target)
    for dataset, key in KEYS.items():
        table = catalog.load_table(("logstore", dataset))
        alone: Any = StaticTable.from_metadata(table.metadata_location, iceberg_properties(place))
        for one in (table, alone):
            rows = one.scan().to_arrow()
            assert rows.num_rows == len(set(rows[key].to_pylist())) == sum(each.rows for each in manifest.of(dataset))
        assert len(list(table.scan().plan_files())) == len(manifest.of(dataset))
        assert table.current_snapshot().summary.additional_properties[LAST_LSN] == str(manifest.last_lsn)
        assert table.location() == f"s3://{place.system[1]}/_iceberg/{dataset}"


def test_every_run_registers_its_files_and_takes_out_what_was_dropped_or_merged(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, directory = tmp_path / "store", tmp_path / "iceberg"
    host = s3.endpoint.partition("://")[2]
    bucket = s3.address().removeprefix("s3://")
    target = f"s3://{KEY}:{SECRET}@{bucket}/two%20words?endpoint_override={host}&scheme=http&region=us-east-1"
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL", "AWS_REGION"):
        monkeypatch.delenv(name)
    days = Days(monkeypatch)
    monkeypatch.setattr(upkeep, "MERGE_FILES", 2)
    merged = dropped = 0
    for day in ("2030-01-01", "2030-01-03", "2030-01-03"):
        days.begin(day)
        work(path)
        report = export(path, target, iceberg=directory, keep=timedelta(days=1))
        merged, dropped = merged + report.upkeep.merged_files, dropped + report.upkeep.dropped_files
    check(target, directory)
    assert (merged, dropped) == (4, 2)
    assert verify(target).problems == ()
    assert SECRET.encode() not in (directory / "catalog.sqlite").read_bytes()
    assert {path.name for path in directory.iterdir()} == {"catalog.lock", "catalog.sqlite"}


@pytest.mark.slow
def test_a_run_killed_between_the_manifest_and_a_table_is_registered_by_the_next(s3: S3Server, tmp_path: Path) -> None:
    path, target, directory = tmp_path / "store", s3.address(), tmp_path / "iceberg"
    work(path)
    code = [sys.executable, "-c", DYING, str(path), target, str(directory)]
    done = subprocess.run(code, timeout=PATIENCE_S, check=False, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert open_catalog(directory, target).list_tables("logstore") == [("logstore", "records")]
    work(path)
    again = run("export", path, target, "--iceberg", directory)
    assert (again.returncode, again.stderr) == (0, "")
    check(target, directory)


def test_an_address_that_is_not_s3_has_no_iceberg_tables_and_the_export_does_not_begin(tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    work(tmp_path / "store")
    with pytest.raises(OptionError, match="Iceberg tables need a local directory or S3"):
        export(tmp_path / "store", "memory://noiceberg/x", iceberg=tmp_path / "iceberg")
    assert place_of("memory://noiceberg/x").files() == {}
    assert not (tmp_path / "iceberg").exists()
