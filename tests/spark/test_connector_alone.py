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
    from collections.abc import Callable, Iterator


pytestmark = pytest.mark.spark


HEAP_MIB = 48
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


def java(where: str, *arguments: str | Path) -> list[str | Path]:
    """The command that starts a program with these arguments in a JVM with this class path."""
    return [find_java().home / "bin" / "java", *QUICK_FLAGS.split(), "-cp", where, *arguments]


@pytest.fixture(scope="module")
def problems(classes: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The connector's words, by case, where it cannot work as usual. One JVM tries all, since its start is slow."""
    place = tmp_path_factory.mktemp("problems")
    (place / "other" / "logstore").mkdir(parents=True)
    (place / "other" / "logstore" / "built-with.properties").write_text("spark=5.1.0\n")
    cases = {"architecture": "os.arch=riscv64", "spark": "other", "directory": "java.io.tmpdir=none"}
    command = java(class_path(classes), "Problem", connector_jar() or "", *cases.values())
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=place)
    assert done.returncode == 0, done.stderr
    left = {"files left": " ".join(path.name for path in place.glob("logstore-scanner-*"))}
    return dict(zip(cases, done.stdout.splitlines(), strict=True)) | left


@pytest.fixture(scope="module")
def tasks(classes: Path) -> Iterator[Callable[..., list[list[str]]]]:
    """Runs plans in a JVM without Spark: of each a line for each task, with the first column's values and the error."""
    command = java(class_path(classes, connector_jar()), f"-Xmx{HEAP_MIB}m", "logstore.spark.ReadPlan")
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    requests, replies = process.stdin, process.stdout
    assert requests is not None
    assert replies is not None

    def line() -> str:
        found = replies.readline()
        assert found, f"the JVM ended with {process.wait()}"
        return found.removesuffix("\n")

    def run(plans: list[dict[str, Any]], schema: str, *arguments: str) -> list[list[str]]:
        (classes / "schema.json").write_text(schema)
        files = [classes / f"plan{number}.json" for number in range(len(plans))]
        for file, plan in zip(files, plans, strict=True):
            file.write_text(json.dumps(plan))
        print(classes / "schema.json", *files, *arguments, sep="\t", file=requests, flush=True)
        return [[line() for _ in range(int(line()))] for _ in plans]

    with process:  # which ends its input
        yield run


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
    """All headers with their texts take twice the memory that the JVM has."""
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
    (lines,) = tasks([plan], schema)
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


def test_another_architecture_is_one_plain_error(problems: dict[str, str]) -> None:
    assert problems["architecture"] == (
        "StoreError: the jar of the source logstore-jvm has no native library for linux-riscv64, this machine: build "
        "the jar there with 'make jar', or use the Python source with engine='python'"
    )


def test_another_spark_is_one_plain_error(problems: dict[str, str]) -> None:
    found = problems["spark"]
    assert found.startswith(
        "StoreError: the jar of the source logstore-jvm was built with Spark 5.1.0 for Spark 5 from"
    )
    assert "use the jar of that version, or the Python source with engine='python'" in found


def test_a_library_is_loaded_where_the_temporary_directory_does_not_allow_it(problems: dict[str, str]) -> None:
    assert problems["directory"] == "null"
    assert problems["files left"] == ""  # deleted once it is loaded


@pytest.fixture
def own_mounts() -> list[str]:
    """The words before a command that run it with mounts of its own."""
    command = ["unshare", "--user", "--map-root-user", "--mount"]
    if subprocess.run([*command, "true"], capture_output=True, check=False).returncode:
        pytest.skip("A NOEXEC DIRECTORY IS NOT TRIED: this system gives a user no mount namespace of its own")
    return command


def test_a_library_is_not_loaded_from_a_noexec_mount_and_without_another_place_this_is_one_plain_error(
    classes: Path, own_mounts: list[str], tmp_path: Path
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    flags = (f"-Djava.io.tmpdir={scratch}", f"-Duser.home={tmp_path}")
    command = java(class_path(classes), *flags, "Problem", connector_jar() or "", "file.encoding=UTF-8")
    found = []
    for noexec in ((scratch,), (tmp_path, Path("/dev/shm"))):
        mounted = [*own_mounts, *(word for path in noexec for word in ("sh", "-c", MOUNTED, "sh", path)), *command]
        done = subprocess.run(mounted, capture_output=True, text=True, check=False, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        found += done.stdout.splitlines()
    assert found[0] == "null"
    assert found[1].startswith(
        f"StoreError: the native library of the source logstore-jvm cannot be loaded from any of {scratch} ("
    )
    assert "/dev/shm (" in found[1]
    assert "name a directory that is no noexec mount with -Djava.io.tmpdir" in found[1]
    assert not list(tmp_path.rglob("logstore-scanner-*"))
