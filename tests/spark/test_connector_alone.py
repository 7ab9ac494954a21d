"""The JVM connector outside of Spark: its reader alone, and what it says on a machine where it cannot work."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kit.row_oracle import record_rows
from kit.spark_logs import churn, open_small
from kit.spark_needed import require_connector
from kit.stores import ROOT
from logstore.spark.engines import connector_jar
from logstore.spark.java import find_java
from logstore.spark.planner import Planner

if TYPE_CHECKING:
    from collections.abc import Callable


pytestmark = pytest.mark.spark

CHECK = """
public class Check {
    public static void main(String[] given) throws Exception {
        Object source = Class.forName("logstore.spark.LogSource").getDeclaredConstructor().newInstance();
        System.out.println(source.getClass().getMethod("problem").invoke(source));
    }
}
"""


@pytest.fixture
def problem(tmp_path: Path) -> Callable[..., str]:
    """What the connector says in a JVM with these arguments and this directory before the jar."""
    program = tmp_path / "Check.java"
    program.write_text(CHECK)
    java = find_java().home / "bin" / "java"
    if shutil.which("javac") is None:
        pytest.skip("THE CONNECTOR'S ERRORS ARE NOT TESTED: a JDK is needed to run a class of the test's own")
    import pyspark

    def run(*arguments: str, before: Path | None = None) -> str:
        jars = Path(pyspark.__file__).parent / "jars"
        path = os.pathsep.join(str(each) for each in (before, connector_jar(), f"{jars}/*") if each is not None)
        done = subprocess.run(
            [java, *arguments, "-cp", path, program], capture_output=True, text=True, check=False, cwd=tmp_path
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[str]]:
    """Runs the tasks of a plan in a JVM without Spark: a line each, with the first column's values and the error."""
    import pyspark

    require_connector()
    javac, java = shutil.which("javac"), find_java().home / "bin" / "java"
    if javac is None:
        pytest.skip("THE CONNECTOR'S READER IS NOT TESTED ALONE: a JDK is needed to compile a class of the test's own")
    made = tmp_path_factory.mktemp("classes")
    jars = f"{connector_jar()}{os.pathsep}{Path(pyspark.__file__).parent / 'jars'}/*"
    subprocess.run([javac, "-cp", jars, "-d", made, ROOT / "tests/spark/java/ReadPlan.java"], check=True)

    def run(plan: dict[str, Any], schema: str, *arguments: str) -> list[str]:
        files = [made / "plan.json", made / "schema.json"]
        files[0].write_text(json.dumps(plan))
        files[1].write_text(schema)
        done = subprocess.run(
            [java, "-cp", f"{made}{os.pathsep}{jars}", "logstore.spark.ReadPlan", *files, *arguments],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return run


LSN_ALONE = '{"type":"struct","fields":[{"name":"lsn","type":"long","nullable":false,"metadata":{}}]}'


def planned(path: Path, **options: str) -> dict[str, Any]:
    planner = Planner()
    given = {"path": str(path), **options}
    made: dict[str, Any] = planner.plan(given, planner.schema(given), LSN_ALONE, [])
    return made


def test_a_batch_stays_readable_where_another_thread_ends_the_task(
    tasks: Callable[..., list[str]], mixed: Path, mixed_rows: list[dict[str, Any]]
) -> None:
    """As where a Python function gets the rows; the first batch of each task is read after the task was ended."""
    lines = tasks(planned(mixed, batch_rows="50"), LSN_ALONE, "ended by another")
    whole = [row["lsn"] for row in mixed_rows]
    assert len(lines) > 1
    for line in lines:
        found = list(map(int, line.split()))
        first = whole.index(found[0])
        assert found == whole[first : first + len(found)]
    assert max(len(line.split()) for line in lines) == 50


def test_a_stream_that_may_lose_data_reads_what_is_left(tasks: Callable[..., list[str]], tmp_path: Path) -> None:
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
        strict = tasks(plan, LSN_ALONE)
        assert strict
        assert all("LogRecycled: " in line for line in strict)
        assert tasks(plan | {"lossy": True}, LSN_ALONE) == [""] * len(strict)
        # Only what the rows look back to is gone.
        assert all("LogRecycled: " in line for line in tasks(late, LSN_ALONE))
        left = [int(lsn) for line in tasks(late | {"lossy": True}, LSN_ALONE) for lsn in line.split()]
        assert left == [row["lsn"] for row in record_rows(store.path) if row["lsn"] >= late["tasks"][0]["start_lsn"]]


def test_lists_that_do_not_fit_each_other_are_refused(tasks: Callable[..., list[str]], mixed: Path) -> None:
    plan = planned(mixed)
    plan["tasks"] = [one | {"ids": [9, 3]} for one in plan["tasks"]]
    assert {line.partition(":")[0] for line in tasks(plan, LSN_ALONE)} == {"OptionError"}
    plan["tasks"] = [one | {"ids": None, "path": str(mixed / "none")} for one in plan["tasks"]]
    assert {line.partition(":")[0] for line in tasks(plan, LSN_ALONE)} == {"NotAStore"}
    assert "OptionError" in tasks(plan | {"tasks": planned(mixed)["tasks"], "batch_rows": (1 << 20) + 1}, LSN_ALONE)[0]


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
