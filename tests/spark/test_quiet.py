"""Java and Spark print nothing on stderr unless something is wrong; errors are still seen.

The Java is the machine's; the last test shows which arguments a Java of another version does not get.
"""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from kit.spark_needed import require_spark
from logstore.spark.java import _wrapped

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.spark

TIMEOUT_S = 280

# One Java for all: starting it is what takes long.
ALL = """
import sys
import logstore.spark
from logstore.cli import run
spark = logstore.spark.session(quick=True, conf={"spark.master": "local[2]", "spark.sql.shuffle.partitions": "2"})
store, target, page = sys.argv[1:]
assert logstore.spark.read(spark, store).count() > 100
assert logstore.spark.export(spark, store, target).records > 100
assert logstore.spark.merge_latency(logstore.spark.latency_sketches(spark.read.parquet(f"{target}/messages"))).count()
java = spark._jvm
print("-- and now there are errors", file=sys.stderr, flush=True)
java.org.slf4j.LoggerFactory.getLogger("some.part").error("the disk is broken")
java.org.slf4j.LoggerFactory.getLogger("some.part").warn("a habit")
java.System.err.println("printed")
java.System.err.println("-- and now there are none")
assert run(["report", store, "--spark", "-o", page]) == 0  # with this session, which it stops
"""


@pytest.mark.slow
def test_spark_prints_nothing_on_stderr_but_errors_in_a_read_an_export_sketches_and_a_report(
    mixed: Path, tmp_path: Path
) -> None:
    require_spark()
    page = tmp_path / "page.html"
    command = [sys.executable, "-c", ALL, str(mixed), str(tmp_path / "target"), str(page)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr
    own, errors, printed, report = re.split(r"-- and now.*\n|(?<=broken\n)", done.stderr)
    assert own.count("\n") == 1
    assert "has recycled everything below LSN" in own, "the export's word on what it cannot have"
    assert errors.endswith("ERROR part: the disk is broken\n")
    assert errors.count("\n") == 1
    assert (printed, report) == ("printed\n", "")
    assert done.stdout == f"{page}\n"


@pytest.mark.parametrize(
    ("version", "kept"),
    [(17, ["--add-opens=java.base/sun.security.action=ALL-UNNAMED", "Main"]), (25, ["Main"])],
)
def test_a_java_of_any_version_gets_no_argument_that_it_warns_of(version: int, kept: list[str], tmp_path: Path) -> None:
    program = tmp_path / "java"
    program.write_text('#!/bin/sh\nfor each do echo "$each"; done\n')
    program.chmod(0o700)
    given = ["--add-modules=jdk.incubator.vector", "--add-opens=java.base/sun.security.action=ALL-UNNAMED", "Main"]
    wrapper = _wrapped(program, version) / "bin" / "java"
    shown = subprocess.run([wrapper, *given], capture_output=True, text=True, check=True)
    assert shown.stdout.splitlines() == kept
