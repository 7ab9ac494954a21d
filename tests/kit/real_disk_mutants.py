"""The package built with the deliberate faults of tools/mutants.toml, for tests that prove that they detect faults.

The build directory is kept, so that only changed files are compiled again; a lock excludes a second build. The package
next to the extension is a copy, because Python looks for both in one directory.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

from kit.checkouts import quick_compiler
from kit.stores import ROOT
from tools.mutant_table import make_copy

BUILD = ROOT / "build" / "mutants-python"
MUTATED = ("_core*.so", "_hot*.so")  # the consensus engine is this checkout's: the copy has no libraft
PARTS = ("csrc", "logstore", "setup.py", "pyproject.toml", "README.md", "LICENSE")


def mutant_package(directory: Path) -> Path:
    """The import path of the built package, in a directory of the caller."""
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        make_copy(BUILD / "copy", PARTS)
        made = subprocess.run(
            [sys.executable, "setup.py", "--quiet", "build_ext", "-b", BUILD / "lib", "--build-temp", BUILD / "temp"],
            cwd=BUILD / "copy",
            env=os.environ | {"CC": str(quick_compiler(BUILD / "bin")), "LOGSTORE_CONNECTOR": "no"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert made.returncode == 0, made.stderr
        package = directory / "logstore"
        shutil.copytree(ROOT / "logstore", package, ignore=shutil.ignore_patterns(*MUTATED, "__pycache__"))
        for pattern in MUTATED:
            for module in (BUILD / "lib" / "logstore").glob(pattern):
                shutil.copy2(module, package)
    return directory
