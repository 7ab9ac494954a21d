"""The environment that the Makefile makes: whose it is, what it compiles, and what an editor sees through it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from kit.checkouts import checkout, need_an_index, quick_compiler
from kit.stores import ROOT

if TYPE_CHECKING:
    from pathlib import Path


def make(where: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in {"MAKEFLAGS", "MAKELEVEL", "VENV"}}
    command = ["make", "--no-print-directory", *arguments]
    return subprocess.run(command, cwd=where, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("target", ["run", "setup", "demo", "bench", "test-one T=test_queues"])
def test_an_environment_of_somebody_else_stays_as_it_is(tmp_path: Path, target: str) -> None:
    theirs = tmp_path / "venv"
    (theirs / "bin").mkdir(parents=True)
    (theirs / "pyvenv.cfg").write_text("home = /usr/bin\n")
    done = make(ROOT, *target.split(), f"VENV={theirs}")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.splitlines()[0] == (
        f"logstore: {theirs} was not made by this Makefile and stays as it is: move it away, or name another directory "
        "with VENV=.venv-logstore"
    )
    assert sorted(path.name for path in theirs.rglob("*")) == ["bin", "pyvenv.cfg"]


def test_a_link_that_leads_nowhere_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "venv").symlink_to(tmp_path / "nowhere")
    assert make(ROOT, "run", f"VENV={tmp_path}/venv").returncode == 2
    assert [path.name for path in tmp_path.iterdir()] == ["venv"]


@pytest.mark.parametrize("mark", [".made-by-logstore", ".installed-broker"])
def test_an_environment_of_ours_without_pip_is_made_again_and_keeps_its_mark(tmp_path: Path, mark: str) -> None:
    """Up to the first download, which a missing Python prevents: here venv makes one file only."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nif [ "$2" = venv ]; then echo > $3/made; else exec {sys.executable} "$@"; fi\n')
    python.chmod(0o755)
    for name in ("Makefile", "pyproject.toml", "setup.py", "constraints.txt"):
        shutil.copy2(ROOT / name, tmp_path / name)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "old").touch()
    (tmp_path / ".venv" / mark).touch()
    os.utime(tmp_path / ".venv" / mark, (0, 0))
    done = make(tmp_path, "run", f"PYTHON={python}")
    assert done.stdout.splitlines() == ["logstore: making the environment .venv"]
    assert sorted(os.listdir(tmp_path / ".venv")) == [".gitignore", ".made-by-logstore", "made"]


@pytest.mark.slow
def test_an_environment_and_its_modules_compile_each_source_once_and_say_what_is_under_way(tmp_path: Path) -> None:
    need_an_index("the compiler's calls were NOT counted")
    where = checkout(tmp_path / "checkout")
    log = tmp_path / "compiled"
    compiler = tmp_path / "cc"
    compiler.write_text(f'#!/bin/sh\necho "$*" >> {log}\nexec {quick_compiler(tmp_path / "quick")} "$@"\n')
    compiler.chmod(0o755)
    targets = [".venv/.installed-broker", "build/.extension", f"CC={compiler}", f"PYTHON={sys.executable}"]
    done = make(where, *targets)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[:2] == [
        "logstore: making the environment .venv",
        "logstore: downloading and installing the build tools",
    ]
    assert "logstore: downloading and installing logstore with what it needs (broker)" in lines
    assert re.fullmatch(r"logstore: compiling the extension modules \(\d+ C files\)", lines[-1])
    compiled = Counter(source for line in log.read_text().splitlines() for source in re.findall(r"-c (\S+\.c)\b", line))
    assert len(compiled) > 100
    assert set(compiled.values()) == {1}
    assert (where / ".venv" / ".made-by-logstore").exists()

    calls = log.read_text()
    again = make(where, *targets)
    assert (again.returncode, log.read_text()) == (0, calls)
    said = subprocess.run([where / ".venv/bin/logstore", "--version"], cwd=tmp_path, capture_output=True, check=False)
    assert said.returncode == 0, said.stderr


def test_mypy_sees_the_types_from_another_directory(tmp_path: Path) -> None:
    """Through the environment alone. An editor finds the package in the same way."""
    (tmp_path / "program.py").write_text(
        "import logstore\nwith logstore.open('store') as store:\n    reveal_type(store.declare_queue('orders'))\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", tmp_path / "cache", "program.py"],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "MYPYPATH"}},
        capture_output=True,
        text=True,
        check=False,
    )
    assert 'Revealed type is "logstore.store.queues.Queue"' in done.stdout, done.stdout
    assert done.returncode == 0
