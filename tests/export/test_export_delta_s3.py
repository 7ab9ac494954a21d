"""An export's Delta tables on S3 are those of an export to a directory: each file once, whatever ends a run."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

import logstore
from kit.command import run
from kit.delta_tables import KEYS, check, opened
from kit.export_days import Days
from kit.patience import PATIENCE_S
from kit.s3_server import KEY, SECRET, S3Server, s3
from logstore.errors import OptionError
from logstore.export import delta as export_delta
from logstore.export import export, object_stores, upkeep, verify
from logstore.export.places import place_of

fs = pytest.importorskip("pyarrow.fs", reason="pyarrow is not installed: pip install '/path/to/checkout[arrow]'")
delta = pytest.importorskip("deltalake", reason="deltalake is not installed: pip install '/path/to/checkout[delta]'")

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["s3"]  # a fixture

# Exports to an address, and dies before the commit of this number.
DYING = """
import os, signal, sys
from logstore.export import delta, export
real, made = delta._commit, []
def dying(*given):
    made.append(given)
    if len(made) == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*given)
delta._commit = dying
export(sys.argv[1], sys.argv[2], delta=True)
"""


def work(path: Path) -> None:
    with logstore.open(path, segment_size=512 << 10) as store:
        queue = store.declare_queue("orders")
        ids = list(store.publish_many(queue, [b"x"] * 20))
        store.dequeue_many(ids[:10], queue)


def test_every_run_keeps_the_tables_up_and_removes_from_them_what_was_dropped_or_merged(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, target = tmp_path / "store", f"{s3.address()}/two%20words"
    days = Days(monkeypatch)
    monkeypatch.setattr(upkeep, "MERGE_FILES", 2)
    merged = dropped = 0
    for day in ("2030-01-01", "2030-01-03", "2030-01-03"):
        days.begin(day)
        work(path)
        report = export(path, target, delta=day == "2030-01-01", keep=timedelta(days=1))
        merged, dropped = merged + report.upkeep.merged_files, dropped + report.upkeep.dropped_files
        check(target)
    assert (merged, dropped) == (4, 2)
    versions = [opened(target, name).version() for name in KEYS]
    export(path, target)
    assert [opened(target, name).version() for name in KEYS] == versions
    assert verify(target).problems == ()


@pytest.mark.slow
def test_a_run_killed_between_the_manifest_and_a_table_is_registered_by_the_next(s3: S3Server, tmp_path: Path) -> None:
    path, target = tmp_path / "store", s3.address()
    work(path)
    code = [sys.executable, "-c", DYING, str(path), target, "2"]
    done = subprocess.run(code, timeout=PATIENCE_S, check=False, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert [opened(target, name).to_pyarrow_table().num_rows > 0 for name in KEYS] == [True, False]
    work(path)
    again = run("export", path, target)
    assert (again.returncode, again.stderr) == (0, "")
    check(target)


def test_of_programs_that_make_a_commit_at_the_same_time_one_wins_and_the_others_take_the_next_numbers(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, target = tmp_path / "store", s3.address()
    work(path)
    export(path, target, delta=True)
    real, others = export_delta._commit, 5
    together, told = threading.Barrier(1 + others), []
    failed = delta.exceptions.CommitFailedError

    def describe(table: Any, number: int) -> None:
        together.wait(PATIENCE_S)
        try:
            table.alter.set_table_description(f"changed by {number}")
            told.append(number)
        except failed:  # it saw another's change of the same thing
            pass

    def late(table: Any, *rest: Any) -> None:
        monkeypatch.setattr(export_delta, "_commit", real)
        tables = [opened(target, "records") for _ in range(others)]
        threads = [threading.Thread(target=describe, args=one) for one in zip(tables, range(others), strict=True)]
        for thread in threads:
            thread.start()
        together.wait(PATIENCE_S)
        try:
            real(table, *rest)
        finally:
            for thread in threads:
                thread.join()

    before = opened(target, "records").version()
    monkeypatch.setattr(export_delta, "_commit", late)
    work(path)
    export(path, target)
    check_rows(target)
    assert opened(target, "records").version() == before + 1 + len(told)


def check_rows(target: str) -> None:
    rows = opened(target, "records").to_pyarrow_table()
    assert rows.num_rows == len(set(rows["lsn"].to_pylist())) == verify(target).records


def test_endpoint_region_and_credentials_are_those_of_the_export(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "store"
    work(path)
    place = s3.address()
    host = s3.endpoint.partition("://")[2]
    given = fs.S3FileSystem(
        access_key=KEY, secret_key=SECRET, session_token="t", region="eu-west-1", endpoint_override=host, scheme="http"
    )
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL", "AWS_REGION"):
        monkeypatch.delenv(name)
    bucket = place.removeprefix("s3://")
    address = f"s3://{KEY}:{SECRET}@{bucket}?endpoint_override={host}&scheme=http&region=us-east-1"
    export(path, address, delta=True)
    check(address)
    other = f"{bucket}-b"
    export(path, other, delta=True, filesystem=given)
    check(place_of(other, given))
    below = fs.SubTreeFileSystem("archive", given)
    options = {
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_SESSION_TOKEN": "t",
        "AWS_REGION": "eu-west-1",
        "AWS_ENDPOINT_URL": s3.endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_CONDITIONAL_PUT": "etag",
    }
    assert object_stores.delta_storage(place_of("a b", below)) == ("s3://archive/a%20b", options)  # type: ignore[arg-type]


def test_an_address_that_is_not_s3_has_no_delta_tables_and_the_export_does_not_begin(tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    work(tmp_path / "store")
    with pytest.raises(OptionError, match="Delta tables need a local directory or S3"):
        export(tmp_path / "store", "memory://nodelta/x", delta=True)
    assert place_of("memory://nodelta/x").files() == {}
