"""The JVM connector outside of Spark: its reader alone, and what it says on a machine where it cannot work."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import logstore
from kit.message_headers import HEADERS_FLAG, header, long, table
from kit.row_oracle import record_rows
from kit.spark_logs import churn, open_small
from kit.spark_needed import require_connector
from kit.stores import ROOT
from logstore.spark.engines import connector_jar
from logstore.spark.java import QUICK_FLAGS, find_java
from logstore.spark.planner import Planner
from logstore.spark.schema import spark_schema

if TYPE_CHECKING:
    from collections.abc import Callable


pytestmark = pytest.mark.spark


OWN_MOUNTS = ["unshare", "--user", "--map-root-user", "--mount"]
MOUNTED = """
set -e
mount --bind "$1" "$1"
mount -o remount,bind,nosuid,nodev,noexec "$1"
shift
exec "$@"
"""


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of tests/spark/java, compiled; the JVMs that run them start quickly."""
    require_connector()
    javac = shutil.which("javac")
    if javac is None:
        pytest.skip("THE CONNECTOR IS NOT TESTED ALONE: a JDK is needed to compile classes of the tests' own")
    made = tmp_path_factory.mktemp("classes")
    sources = sorted((ROOT / "tests/spark/java").glob("*.java"))
    flags = [f"-J{flag}" for flag in QUICK_FLAGS.split()]
    subprocess.run([javac, *flags, "-proc:none", "-cp", class_path(connector_jar()), "-d", made, *sources], check=True)
    return made


def class_path(*before: Path | None) -> str:
    """These, then the jars of Spark."""
    import pyspark

    return os.pathsep.join([*map(str, filter(None, before)), f"{Path(pyspark.__file__).parent / 'jars'}/*"])


def java(where: str, *arguments: str | Path, at: Path | None = None, noexec: tuple[Path, ...] = ()) -> list[str]:
    """What a program prints that gets these arguments in a JVM with this class path.

    Nothing may be run from the directories ``noexec``, which are mounted so for the JVM alone.
    """
    command = [find_java().home / "bin" / "java", *QUICK_FLAGS.split(), "-cp", where, *arguments]
    for directory in noexec:
        command = ["sh", "-c", MOUNTED, "sh", directory, *command]
    command = [*OWN_MOUNTS, *command] if noexec else command
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=at)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture
def problem(classes: Path, tmp_path: Path) -> Callable[..., str]:
    """What the connector says in a JVM with these arguments and this directory before the jar."""

    def run(*arguments: str, before: Path | None = None, noexec: tuple[Path, ...] = ()) -> str:
        command = class_path(before, connector_jar(), classes)
        (line,) = java(command, *arguments, "Problem", at=tmp_path, noexec=noexec)
        return line

    return run


@pytest.fixture(scope="module")
def tasks(classes: Path) -> Callable[..., list[list[str]]]:
    """Runs plans in a JVM without Spark: of each a line for each task, with the first column's values and the error."""

    def run(plans: list[dict[str, Any]], schema: str, *arguments: str, flags: tuple[str, ...] = ()) -> list[list[str]]:
        (classes / "schema.json").write_text(schema)
        files = [classes / f"plan{number}.json" for number in range(len(plans))]
        for file, plan in zip(files, plans, strict=True):
            file.write_text(json.dumps(plan))
        where = class_path(classes, connector_jar())
        lines = iter(java(where, *flags, "logstore.spark.ReadPlan", classes / "schema.json", *files, *arguments))
        return [[next(lines) for _ in range(int(next(lines)))] for _ in plans]

    return run


LSN_ALONE = '{"type":"struct","fields":[{"name":"lsn","type":"long","nullable":false,"metadata":{}}]}'


def planned(path: Path, schema: str = LSN_ALONE, **options: str) -> dict[str, Any]:
    planner = Planner()
    given = {"path": str(path), **options}
    made: dict[str, Any] = planner.plan(given, planner.schema(given) if schema == LSN_ALONE else schema, schema, [])
    return made


def test_a_batch_stays_readable_where_another_thread_ends_the_task(
    tasks: Callable[..., list[list[str]]], mixed: Path, mixed_rows: list[dict[str, Any]]
) -> None:
    """As where a Python function gets the rows; the first batch of each task is read after the task was ended."""
    (lines,) = tasks([planned(mixed, batch_rows="50")], LSN_ALONE, "ended-by-another")
    whole = [row["lsn"] for row in mixed_rows]
    assert len(lines) > 1
    for line in lines:
        found = list(map(int, line.split()))
        first = whole.index(found[0])
        assert found == whole[first : first + len(found)]
    assert max(len(line.split()) for line in lines) == 50


def test_the_properties_that_a_task_keeps_decoded_are_bounded_in_bytes(
    tasks: Callable[..., list[list[str]]], tmp_path: Path
) -> None:
    """All headers with their texts take twice the memory that the task has."""
    with logstore.open(tmp_path / "store") as store:
        queue = store.declare_queue("q")
        for first in range(0, 600, 100):
            headers = [
                header(HEADERS_FLAG, table([("x", b"x" + long(b"%d\xff" % number * 15_000))]))
                for number in range(first, first + 100)
            ]
            store.publish_many(queue, [b""] * 100, headers=headers)
    schema = spark_schema(["lsn", "headers"]).json()
    plan = planned(tmp_path / "store", schema, types="MESSAGE_START", batch_rows="20")
    (lines,) = tasks([plan], schema, flags=("-Xmx48m",))
    assert sum(len(line.split()) for line in lines) == 600


def test_a_stream_that_may_lose_data_reads_what_is_left(tasks: Callable[..., list[list[str]]], tmp_path: Path) -> None:
    with open_small(tmp_path / "live") as store:
        queue = store.declare_queue("q")
        ids = store.publish_many(queue, [b"x"] * 10)
        plan = planned(store.path, partition_bytes="1")
        store.dequeue_many(ids, queue)
        for _ in range(3):
            churn(store, 4)
            store.compact()
        late = planned(store.path, partition_bytes="1")
        late["tasks"] = [one | {"keep_lsn": plan["tasks"][0]["keep_lsn"]} for one in late["tasks"]]
        plans = [plan, plan | {"lossy": True}, late, late | {"lossy": True}]
        strict, lossy, cut, rest = tasks(plans, LSN_ALONE)
        assert strict
        assert all("LogRecycled: " in line for line in strict)
        assert lossy == [""] * len(strict)
        # Only what the rows look back to is gone.
        assert all("LogRecycled: " in line for line in cut)
        left = [int(lsn) for line in rest for lsn in line.split()]
        assert left == [row["lsn"] for row in record_rows(store.path) if row["lsn"] >= late["tasks"][0]["start_lsn"]]


def test_lists_that_do_not_fit_each_other_are_refused(tasks: Callable[..., list[list[str]]], mixed: Path) -> None:
    plan = planned(mixed)
    unsorted = plan | {"tasks": [one | {"ids": [9, 3]} for one in plan["tasks"]]}
    elsewhere = plan | {"tasks": [one | {"path": str(mixed / "none")} for one in plan["tasks"]]}
    found = tasks([unsorted, elsewhere, plan | {"batch_rows": (1 << 20) + 1}], LSN_ALONE)
    assert [{line.partition(":")[0] for line in lines} for lines in found[:2]] == [{"OptionError"}, {"NotAStore"}]
    assert "OptionError" in found[2][0]


def test_another_architecture_is_one_plain_error(problem: Callable[..., str]) -> None:
    assert problem("-Dos.arch=riscv64") == (
        "StoreError: the jar of the source logstore-jvm has no native library for linux-riscv64, this machine: build "
        "the jar there with 'make jar', or use the Python source with engine='python'"
    )


def test_another_spark_is_one_plain_error(problem: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "other" / "logstore").mkdir(parents=True)
    (tmp_path / "other" / "logstore" / "built-with.properties").write_text("spark=5.1.0\n")
    found = problem(before=tmp_path / "other")
    assert found.startswith(
        "StoreError: the jar of the source logstore-jvm was built with Spark 5.1.0 for Spark 5 from"
    )
    assert "use the jar of that version, or the Python source with engine='python'" in found


def test_a_library_is_loaded_where_the_temporary_directory_does_not_allow_it(
    problem: Callable[..., str], tmp_path: Path
) -> None:
    assert problem(f"-Djava.io.tmpdir={tmp_path / 'none'}") == "null"
    assert not list(tmp_path.glob("logstore-scanner-*"))  # deleted once it is loaded


@pytest.fixture
def mounts() -> None:
    tried = subprocess.run([*OWN_MOUNTS, "true"], capture_output=True, check=False)
    if tried.returncode:
        pytest.skip("A NOEXEC DIRECTORY IS NOT TRIED: this system gives a user no mount namespace of its own")


@pytest.mark.usefixtures("mounts")
def test_a_library_is_not_loaded_from_a_noexec_mount_and_without_another_place_this_is_one_plain_error(
    problem: Callable[..., str], tmp_path: Path
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    places = (f"-Djava.io.tmpdir={scratch}", f"-Duser.home={tmp_path}")
    assert problem(*places, noexec=(scratch,)) == "null"
    refused = problem(*places, noexec=(tmp_path, Path("/dev/shm")))
    assert refused.startswith(
        f"StoreError: the native library of the source logstore-jvm cannot be loaded from any of {scratch} ("
    )
    assert "/dev/shm (" in refused
    assert "name a directory that is no noexec mount with -Djava.io.tmpdir" in refused
    assert not list(tmp_path.rglob("logstore-scanner-*"))
