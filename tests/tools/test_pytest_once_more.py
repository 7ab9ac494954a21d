"""CI passes if at most five failed tests pass alone, and says which."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from kit.testing import ROOT

if TYPE_CHECKING:
    from pathlib import Path

FAILS_ONCE = """
import os, pathlib, pytest
@pytest.mark.parametrize("n", range({count}))
def test_fails_once(n):
    seen = pathlib.Path(f"seen-{{n}}")
    if not seen.exists():
        seen.touch()
        {how}
def test_passes(): pass
"""
ASSERTS = "assert False"
CRASHES = "os.abort()"
WORKERS = ("-p", "xdist", "-n", "2")


def run(directory: Path, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    (directory / "test_it.py").write_text(text)
    (directory / "pytest.ini").write_text("[pytest]\n")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # each process would import hypothesis, which takes long
    return subprocess.run(
        [sys.executable, ROOT / "tools" / "pytest_once_more.py", directory / "unstable", "-q", *options],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("options", [(), WORKERS], ids=["one process", "workers"])
def test_tests_that_pass_alone_are_listed_and_the_run_passes(tmp_path: Path, options: tuple[str, ...]) -> None:
    done = run(tmp_path, FAILS_ONCE.format(count=5, how=ASSERTS), *options)
    assert done.returncode == 0, done.stdout
    listed = (tmp_path / "unstable").read_text()
    assert sorted(listed.splitlines()) == [f"unstable: test_it.py::test_fails_once[{n}]" for n in range(5)]
    assert done.stdout.endswith(listed)


def test_a_worker_that_crashed_once_is_listed_and_its_last_words_are_printed(tmp_path: Path) -> None:
    done = run(tmp_path, FAILS_ONCE.format(count=1, how=CRASHES), *WORKERS)
    assert done.returncode == 0, done.stdout
    assert (tmp_path / "unstable").read_text() == "unstable: test_it.py::test_fails_once[0]\n"
    assert "Fatal Python error: Aborted" in done.stderr


def test_a_run_without_failures_lists_nothing(tmp_path: Path) -> None:
    done = run(tmp_path, "def test_passes(): pass\n")
    assert done.returncode == 0
    assert not (tmp_path / "unstable").exists()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (FAILS_ONCE.format(count=6, how=ASSERTS), "six fail"),
        (FAILS_ONCE.format(count=1, how=ASSERTS) + "def test_always(): assert False\n", "one fails alone as well"),
        ("import nothing_of_this_name\n", "a file cannot be collected"),
    ],
)
def test_other_failures_fail_the_run(tmp_path: Path, text: str, why: str) -> None:
    done = run(tmp_path, text)
    assert done.returncode != 0, why
    assert not (tmp_path / "unstable").exists()
