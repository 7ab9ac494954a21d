"""The Python of Spark's workers in tests: a worker begins with all that it needs imported.

Spark asks a process (``pyspark.daemon``, one for each kind of worker) to fork a worker, which imports pyspark from a
zip of sources, pyarrow and logstore: 0.8 s of processor time. An error ends a worker, and so does a minute without
work. Here the process has imported all that, compiled, before it forks. Sessions of users have Spark's own way, and so
have the tests that start a session in a process of its own.

This file is also the program that runs in place of Python, with Python's arguments.
"""

from __future__ import annotations

import gc
import importlib
import os
import runpy
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

IMPORTED: Final = ("pyarrow", "pyspark.worker", "logstore.arrow", "logstore.spark.source", "logstore.spark.stream")
DAEMON: Final = "pyspark.daemon"
TASKS: Final = "pyspark.worker"
PLANS: Final = "pyspark.sql.worker.plan_data_source_read"


def quick_python(place: Path) -> str:
    """A program in this directory that Spark can start instead of this Python."""
    program = place / "python"
    program.write_text(f"#!/bin/sh\nexec '{sys.executable}' -P '{__file__}' \"$@\"\n")
    program.chmod(0o700)
    return str(program)


def run(module: str, *arguments: str) -> None:
    """Run this module of pyspark as a program."""
    zips = [path for path in sys.path if path.endswith(".zip")]
    sys.path[:] = [path for path in sys.path if path not in zips] + zips  # pyspark's zip comes first
    sys.argv[:] = [module, *arguments]
    if module == DAEMON:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # no threads of its own, because of the fork
        if PLANS in arguments:  # queries get two tasks, as on a machine with one core
            os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
        for name in (*IMPORTED, *arguments, *(["pandas"] if TASKS in arguments else [])):
            importlib.import_module(name)
        gc.freeze()  # a worker collects garbage after each task
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    assert sys.argv[1] == "-m", sys.argv
    run(*sys.argv[2:])
