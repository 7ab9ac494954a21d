"""Copies of the checkout to build in, and the package index that such a build needs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from kit.stores import ROOT

if TYPE_CHECKING:
    from pathlib import Path


def checkout(where: Path) -> Path:
    """A copy of the files that a clone has, with the changes that are not committed."""
    leave = shutil.ignore_patterns("__pycache__", "*.so", "_core.c", "_consensus.c", "*.egg-info", "tests", "decisions")
    for name in ("logstore", "csrc", "tools", "docs"):
        shutil.copytree(ROOT / name, where / name, ignore=leave)
    for name in ("Makefile", "pyproject.toml", "setup.py", "constraints.txt", "README.md", "LICENSE", "NOTICE"):
        shutil.copy2(ROOT / name, where / name)
    return where


def quick_compiler(where: Path) -> Path:
    """A compiler in this directory that neither optimises nor writes symbols: for tests that build all modules and
    measure nothing.
    """
    where.mkdir(exist_ok=True)
    compiler = where / "cc"
    compiler.write_text(f'#!/bin/sh\nexec {shutil.which("gcc") or shutil.which("clang")} "$@" -O0 -g0 -fno-lto\n')
    compiler.chmod(0o755)
    return compiler


def need_an_index(not_done: str) -> None:
    """Skips the test, and says what is not done, if pip can download nothing. In continuous integration it fails."""
    command = [sys.executable, "-m", "pip", "download", "-qq", "--no-deps", "--retries", "0", "--dest", os.devnull]
    done = subprocess.run([*command, "wheel"], capture_output=True, check=False)
    if b"No matching distribution" in done.stderr:
        assert "CI" not in os.environ, "pip reaches no package index"
        pytest.skip(f"no package index is reachable: {not_done}")
