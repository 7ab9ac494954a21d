"""The commands of the Makefile and of continuous integration: what they run; and pages name no other commands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from kit.checkouts import quick_compiler
from kit.stores import ROOT

if TYPE_CHECKING:
    from pathlib import Path

MAKEFILE = (ROOT / "Makefile").read_text("utf-8")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def recipe(target: str) -> str:
    """The lines of a target."""
    found = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)
    assert found is not None, f"there is no target {target}"
    return found[1]


def below(target: str) -> set[str]:
    """The targets that this one makes."""
    words = [each for line in re.findall(r"\$\(SUBMAKE\)(.*)", recipe(target)) for each in line.split()]
    return {word for word in words if "=" not in word and not word.startswith("-")}


def program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


# ---- `make test` for every change, `make check` for the long checks


def test_make_test_runs_the_checks_that_a_change_can_break_and_make_check_the_long_ones() -> None:
    assert below("test") == {"lint", "strict", "ctest", "pytest-collected", "pytest"}
    assert "$(SUBMAKE) STAGE=pytest pytest-workers pytest-spark" in MAKEFILE
    assert below("ci-setup") == {"setup", "ctest-programs"}
    assert below("check") == {
        *("sanitize", "ctest-trail", "pytest-overwritten", "pytest-asan"),
        *("test-slow", "proof-programs", "proof"),
    }


def test_every_python_test_is_in_one_of_the_three_runs() -> None:
    assert "-m 'not slow and not spark' --ignore=tests/spark $(WORKERS)" in recipe("pytest-workers")
    assert "-m 'not slow' tests/spark" in recipe("pytest-spark")
    assert "-m slow " in recipe("test-slow")
    assert "$(shell grep -rlF mark.slow tests --include='test_*.py')" in MAKEFILE
    kit = [path for path in (ROOT / "tests").rglob("*.py") if not path.name.startswith("test_")]
    assert [path.name for path in kit if "mark.slow" in path.read_text("utf-8")] == []
    marked = {path for path in (ROOT / "tests").rglob("test_*.py") if "pytest.mark.spark" in path.read_text("utf-8")}
    assert marked - {ROOT / "tests" / "project" / "test_commands.py"} == set(
        (ROOT / "tests" / "spark").glob("test_*.py")
    )


def test_only_a_program_that_has_run_without_a_thread_is_left_out_under_tsan(tmp_path: Path) -> None:
    (tmp_path / "Makefile").write_text(MAKEFILE)
    (tmp_path / "csrc/tests/unit").mkdir(parents=True)
    (tmp_path / "build/c/plain").mkdir(parents=True)
    for name, log in {
        "test_without": "no thread was started\n1 passed, 0 failed\n",
        "test_with": "1 passed, 0 failed\n",
        "test_speaks": "a.c:1: there is no thread was started\n1 passed, 0 failed\n",
        "test_dies": "",
        "test_new": None,
    }.items():
        (tmp_path / f"csrc/tests/unit/{name}.c").touch()
        if log is not None:
            (tmp_path / f"build/c/plain/{name}.log").write_text(log)

    def built(*arguments: str) -> set[str]:
        environment = {name: value for name, value in os.environ.items() if name not in {"MAKEFLAGS", "MAKELEVEL"}}
        command = ["make", "-n", "VARIANT=tsan", "run-ctests", *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        return set(re.findall(r"-o build/c/tsan/(test_\w+) ", done.stdout))

    some = {"test_with", "test_speaks", "test_dies", "test_new"}
    assert built("PROVE_tsan=") == some
    assert built("PROVE_tsan=", "EVERY=1") == {*some, "test_without"}
    assert "$(SUBMAKE) VARIANT=plain ctest-logs" in recipe("sanitize-tsan")


# ---- continuous integration


@pytest.fixture
def ci(tmp_path: Path):
    """Runs .ci/run with a make that only notes its targets, and fails at one of them."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("apt-get", "dpkg", "clang", "clang-format", "clang-tidy", "strace", "valgrind"):
        program(tools / name, "exit 0")

    def run(failing: str, unstable: str = "") -> tuple[list[str], subprocess.CompletedProcess[str]]:
        notes = tmp_path / "notes"
        notes.unlink(missing_ok=True)
        listing = f'echo "unstable: {unstable}" >> "$UNSTABLE"' if unstable else ":"
        program(tools / "make", f'echo "$*" >> {notes}; {listing}; [ "$*" != "{failing}" ]')
        environment = os.environ | {"PATH": f"{tools}:{os.environ['PATH']}", "UNSTABLE": str(tmp_path / "unstable")}
        done = subprocess.run([ROOT / ".ci" / "run"], env=environment, capture_output=True, text=True, check=False)
        return notes.read_text().splitlines(), done

    return run


def test_ci_runs_make_test_and_then_make_check(ci) -> None:
    made, done = ci("nothing")
    assert (made, done.returncode) == (["ci-setup", "test", "check"], 0)
    assert re.search(r"=== make test: passed in \d+ s", done.stdout)
    assert re.search(r"=== make check: passed in \d+ s", done.stdout)


@pytest.mark.parametrize(("failing", "ran"), [("test", ["ci-setup", "test"]), ("check", ["ci-setup", "test", "check"])])
def test_ci_stops_at_the_first_command_that_fails_and_names_it(ci, failing: str, ran: list[str]) -> None:
    made, done = ci(failing)
    assert (made, done.returncode) == (ran, 1)
    assert re.search(rf"make {failing} FAILED after \d+ s", done.stderr.splitlines()[-2])


def test_ci_passes_and_ends_with_the_tests_that_passed_only_alone(ci) -> None:
    _, done = ci("nothing", unstable="tests/test_one.py::test_one")
    assert done.returncode == 0
    assert done.stderr.splitlines()[-2:] == ["unstable: tests/test_one.py::test_one"] * 2
    assert not any("unstable" in line for line in ci("nothing")[1].stderr.splitlines())


def test_the_python_tests_run_once_more_alone_where_ci_asks_for_it() -> None:
    asked = "tools/pytest_once_more.py '$(UNSTABLE)'"
    assert f"PYTEST := $(BIN)/python $(if $(UNSTABLE),{asked},-m pytest)" in MAKEFILE
    for target in ("pytest-workers", "pytest-spark", "test-slow"):
        assert "$(PYTEST) -q" in recipe(target)


# ---- one test


def made_one(tmp_path: Path, name: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Runs `make test-one` with a Python that only prints its arguments."""
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    program(tmp_path / "venv" / "bin" / "python", 'case "$2" in pytest) echo "$*";; esac')
    for made in ("venv/.installed-everything", "extension", "built"):
        (tmp_path / made).touch()
    places = [f"VENV={tmp_path}/venv", f"EXTENSION={tmp_path}/extension", f"BUILT_WITH={tmp_path}/other"]
    command = ["make", "--no-print-directory", *options, "test-one", f"T={name}", *places]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("name", "called"),
    [
        ("test_queues", "-m pytest -q tests/store/test_queues.py"),
        ("tests/store/test_queues.py", "-m pytest -q tests/store/test_queues.py"),
        ("tests/store/test_queues.py::test_a", "-m pytest -q tests/store/test_queues.py::test_a"),
        ("abandoned", "-m pytest -q -k abandoned"),
    ],
)
def test_make_test_one_runs_a_file_a_test_or_every_match_of_the_name(tmp_path: Path, name: str, called: str) -> None:
    assert made_one(tmp_path, name).stdout.splitlines()[-1] == called


def test_make_test_one_runs_a_c_program_without_python(tmp_path: Path) -> None:
    done = made_one(tmp_path, "test_vfs", "--dry-run")
    assert "build/c/plain/test_vfs" in done.stdout
    assert "setup.py" not in done.stdout


def test_make_test_one_without_a_name_says_how_to_give_one(tmp_path: Path) -> None:
    done = made_one(tmp_path, "")
    assert done.returncode == 2
    assert "make test-one T=test_queues" in done.stderr
    for kind in ("C test program", "Python file", "part of names of Python tests"):
        assert kind in done.stderr


@pytest.mark.slow
def test_plain_pytest_runs_one_file_in_a_fresh_clone(tmp_path: Path) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("no git here: a fresh clone was NOT tried")
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", ROOT, clone], check=True)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["CC"] = str(quick_compiler(tmp_path / "quick"))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/store/test_content.py"],
        cwd=clone,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert list((clone / "logstore").glob("_core*.so"))


# ---- the commands on the pages


def test_make_help_names_every_target_of_the_pages_and_the_pages_name_no_other() -> None:
    listed = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    targets = set(re.findall(r"^  make (\S+)", listed, re.MULTILINE))
    named = {
        target
        for page in PAGES
        for code in re.findall(r"```\n(.*?)```|`([^`\n]+)`", page.read_text("utf-8"), re.DOTALL)
        for target in re.findall(r"^make ([a-z][a-z-]*)", "".join(code), re.MULTILINE)
    }
    assert {"run", "test", "check", "test-one", "proof", "torture", "bench"} <= named <= targets
    documented = set(re.findall(r"^([a-z-]+):[^#\n]*## ", MAKEFILE, re.MULTILINE))
    assert documented == targets
