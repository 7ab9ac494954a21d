"""Runs pytest; if at most five tests fail, runs these alone once more, and passes if they pass then.

    python tools/pytest_once_more.py FILE PYTEST_ARGUMENT...

For CI, where one test that depends on the machine's speed must not cost the whole run. A line for each test that
failed and then passed is added to FILE and printed: such a test is to be mended. What the first run wrote to standard
error, such as the stacks of a worker that crashed or was stopped, is printed when it has failed.
Exit status: 0 if no test failed, or if all that did passed alone; else pytest's.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

MOST = 5  # more failures have a common cause, which is not the clock
TESTS_FAILED = 1  # pytest's status; others are interrupts, errors of pytest, and wrong usage
LIST = "LOGSTORE_FAILED_TESTS"  # the file that names the failed tests of a run


class FailedTests:
    """A plugin of pytest: writes the ids of failed tests to a file, in the process that leads the workers."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.failed: dict[str, None] = {}
        self.collected = True

    def pytest_collectreport(self, report: Any) -> None:
        self.collected = self.collected and not report.failed

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.failed[report.nodeid] = None

    def pytest_sessionfinish(self) -> None:
        if self.collected:  # otherwise there are tests that could not run
            self.path.write_text("".join(f"{each}\n" for each in self.failed))


def pytest_configure(config: Any) -> None:
    """Registers the plugin: pytest loads this file by its name."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(FailedTests(Path(os.environ[LIST])))


def run(arguments: list[str], names: Path) -> tuple[int, list[str]]:
    """Exit status, and the failed tests if pytest could run all; standard error is printed if the run failed."""
    here = Path(__file__)
    path = os.pathsep.join(filter(None, (str(here.parent), os.environ.get("PYTHONPATH"))))
    with tempfile.TemporaryFile() as errors:
        status = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", here.stem, *arguments],
            env=os.environ | {LIST: str(names), "PYTHONPATH": path},
            stderr=errors,
            check=False,
        ).returncode
        if status != 0:
            errors.seek(0)
            sys.stderr.write(errors.read().decode(errors="replace"))
            sys.stderr.flush()
    return status, names.read_text().splitlines() if names.exists() else []


def main(unstable: Path, arguments: list[str]) -> int:
    with tempfile.TemporaryDirectory() as made:
        status, failed = run(arguments, Path(made, "first"))
        if status != TESTS_FAILED or not 0 < len(failed) <= MOST:
            return status
        print(f"*** {len(failed)} failed; once more, alone:", *failed, sep="\n    ", flush=True)
        again, still = run(["-q", *failed], Path(made, "second"))
    if again != 0:
        print("*** failed alone as well:", *still, sep="\n    ", flush=True)
        return status
    lines = "".join(f"unstable: {each}\n" for each in failed)
    with unstable.open("a") as listed:
        listed.write(lines)
    print(lines, end="", flush=True)
    return 0


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(f"usage: {sys.argv[0]} FILE PYTEST_ARGUMENT...")
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
