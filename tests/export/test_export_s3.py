"""``logstore export`` to a real server of S3, and to a file system of fsspec."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import logstore
from kit.command import run
from kit.exported import store_dir
from kit.patience import PATIENCE_S
from kit.s3_server import KEY, SECRET, S3Server, s3, s3_server
from logstore.arrow import export, read_table
from logstore.errors import OptionError
from logstore.export import ExportError, verify
from logstore.export.manifest import MANIFEST, UPLOAD
from logstore.export.places import inside, place_of

fs = pytest.importorskip("pyarrow.fs", reason="pyarrow is not installed: pip install '/path/to/checkout[arrow]'")

if TYPE_CHECKING:
    pass

__all__ = ["s3", "store_dir"]  # fixtures
KEPT = f"s3://{KEY}:{SECRET}@"
_memory = itertools.count(1)

# Exports, and dies before a call: store, address, the call's name and the beginning of the file's name.
DYING = """
import os, signal, sys
from logstore.export import export
from logstore.export.places import RemotePlace
call, start = sys.argv[3:]
real = getattr(RemotePlace, call)
def dying(place, name, *rest):
    if name.startswith(start):
        os.kill(os.getpid(), signal.SIGKILL)
    return real(place, name, *rest)
setattr(RemotePlace, call, dying)
export(sys.argv[1], sys.argv[2])
"""


def objects(server: S3Server, address: str) -> set[str]:
    root = address.removeprefix("s3://")
    found = server.files.get_file_info(fs.FileSelector(root, recursive=True, allow_not_found=True))
    return {info.path.removeprefix(f"{root}/") for info in found if info.is_file}


def more(path: Path) -> None:
    with logstore.open(path) as store:
        store.dequeue_many(store.publish_many("orders", [b"more"] * 10), "orders")


@pytest.fixture
def address(s3: S3Server) -> str:
    return s3.address()


@pytest.fixture
def memory() -> str:
    """A place in memory, of fsspec."""
    pytest.importorskip("fsspec")
    return f"memory://kept-{next(_memory)}/export"


@pytest.mark.parametrize("kind", ["address", "memory"])
def test_the_command_exports_to_an_address_run_after_run_and_verifies_it(
    store_dir: Path, tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    target, local = request.getfixturevalue(kind), tmp_path / "local"
    for _ in range(2):
        done = run("export", store_dir, target)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(f"{target}: ")
        export(store_dir, local)
        more(store_dir)
    assert run("export", store_dir, target, "--dry-run").stdout.startswith("would be exported: ")
    for table in ("records", "messages"):
        assert read_table(store_dir, target, table).read_all().equals(read_table(store_dir, local, table).read_all())
    found = verify(target)
    assert (found.problems, found.records) == ((), verify(local).records)
    done = run("export", "--verify", target, "--json")
    assert json.loads(done.stdout)["target"] == target
    kept = run("export", store_dir, target, "--keep", "90d", "--json")
    assert json.loads(kept.stdout)["dropped_rows"] == 0


def test_a_run_on_s3_that_is_killed_is_completed_by_the_next_with_every_row_once(
    store_dir: Path, s3: S3Server, tmp_path: Path
) -> None:
    local = tmp_path / "local"
    export(store_dir, local)
    wanted = {table: read_table(store_dir, local, table).read_all() for table in ("records", "messages")}
    left = []
    for call in (("put", "open/"), ("put", MANIFEST), ("remove", UPLOAD)):
        target = s3.address()
        code = [sys.executable, "-c", DYING, str(store_dir), target, *call]
        done = subprocess.run(code, timeout=PATIENCE_S, check=False, capture_output=True)
        assert done.returncode == -signal.SIGKILL, done.stderr
        left.append(objects(s3, target))
        export(store_dir, target)
        found = verify(target)
        assert found.problems == ()
        assert len(objects(s3, target)) == 1 + found.files
        for table, rows in wanted.items():
            assert read_table(store_dir, target, table).read_all().equals(rows)
    assert [UPLOAD in names for names in left] == [True, True, True]
    assert [MANIFEST in names for names in left] == [False, False, True]


def test_keep_and_the_options_of_a_run_are_those_of_a_local_target(store_dir: Path, address: str) -> None:
    export(store_dir, address, body=100, compression="snappy")
    with pytest.raises(OptionError, match="bodies of 100 bytes"):
        export(store_dir, address, body=200)
    rows = verify(address).records
    report = export(store_dir, address, keep=timedelta(microseconds=1))
    assert report.upkeep.dropped_rows in (0, rows + verify(address).messages)  # midnight may pass


@pytest.mark.parametrize("kind", ["address", "memory"])
def test_targets_below_an_address_are_found_whatever_characters_they_are_named_with(
    store_dir: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    top = request.getfixturevalue(kind)
    named = f"{top}/two%20words=100%25"
    export(store_dir, named)
    assert [verify(str(target)).problems for target in inside(top)] == [()]
    place = place_of(named)
    assert place.hadoop == (named if kind == "memory" else f"s3a://{top.removeprefix('s3://')}/two words=100%")


@pytest.mark.parametrize("kind", ["address", "memory"])
def test_reports_and_queries_of_an_address_are_those_of_a_directory(
    store_dir: Path, tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    pytest.importorskip("duckdb")
    target, local = request.getfixturevalue(kind), tmp_path / "local"
    export(store_dir, target, body=10)
    export(store_dir, local, body=10)
    queries = (
        "SELECT type, queue, count(*), sum(record_bytes) FROM records GROUP BY ALL ORDER BY ALL",
        "SELECT outcome, count(*), max(end_lsn) FROM messages GROUP BY ALL ORDER BY ALL",
        "SELECT count(*), min(id) FROM open",
        "SELECT count(body), max(octet_length(body)) FROM records WHERE type = 'MESSAGE_START'",
    )
    for query in queries:
        found, wanted = (json.loads(run("sql", place, query, "--json").stdout) for place in (target, local))
        assert (found["rows"], found["store"]) == (wanted["rows"], target)
    found, wanted = (json.loads(run("report", place, "--json").stdout) for place in (target, local))
    assert (found.pop("store"), found.pop("title")) == (target, f"{target.rpartition('/')[2]}: a report")
    assert found == {name: value for name, value in wanted.items() if name not in ("store", "title")}


def test_a_server_that_goes_away_during_a_run_is_told_in_one_line(store_dir: Path) -> None:
    with s3_server() as server:
        target = server.address()

        def gone(*_: int) -> None:
            server.stop()

        with pytest.raises(ExportError) as caught:
            export(store_dir, target, progress=gone)
        assert "check the address, the network" in caught.value.message
        assert "\n" not in caught.value.message
        done = run("export", store_dir, target)
        assert (done.returncode, done.stdout) == (3, "")
        assert len(done.stderr.splitlines()) == 1
        assert "Traceback" not in done.stderr


def test_bad_addresses_are_refused_in_one_line_and_no_secret_is_printed(
    store_dir: Path, s3: S3Server, tmp_path: Path
) -> None:
    cases = {
        f"{KEPT}no-such-bucket/x": "no such bucket",
        f"{KEPT}archive/x?bogus=1": "bogus",
        f"s3://{KEY}:with/slash@archive/x": "%2F",
        f"unheard://user:{SECRET}@of/x": "neither pyarrow nor fsspec knows, unheard://",
        f"sftp://user:{SECRET}@host/x": "needs a Python package that is not installed",
        "s3://": "name a bucket",
        "https://somewhere/x": "needs a Python package",
    }
    for address, said in cases.items():
        commands = (("export", store_dir, address), ("export", store_dir, address, "--dry-run"))
        for command in (*commands, ("export", "--verify", address), ("sql", address, "SELECT 1"), ("report", address)):
            done = run(*command)
            assert done.returncode not in (0, 1) or "no such bucket" in done.stderr, address
            assert said in done.stderr, address
            assert len(done.stderr.splitlines()) == 1, done.stderr
            assert SECRET not in done.stderr + done.stdout
            assert "with/slash" not in done.stderr
    assert not any(path.name.startswith("s3:") for path in tmp_path.iterdir())
    done = run("export", f"{KEPT}archive/x", "s3://archive/y")
    assert "only TARGET may be an address" in done.stderr
    assert run("export", store_dir, f"{KEPT}archive/secret?region=us-east-1").stdout.startswith("s3://archive/secret: ")
    assert MANIFEST in objects(s3, "s3://archive/secret")


def test_a_file_address_is_the_directory(store_dir: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    assert export(store_dir, f"file://{target}").target == target
    assert export(store_dir, target).files == 0
    assert export(store_dir, str(target), filesystem=fs.LocalFileSystem()).files == 0
