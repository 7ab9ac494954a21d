"""The package with the deliberate faults of csrc/mutants built in, for tests that show what they would notice.

The build directory stays, so that what is up to date is not compiled again; a lock keeps two builders apart. The
package beside the extension is a copy, for Python looks for both in one directory.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

from kit.stores import ROOT

BUILD = ROOT / "build" / "mutants-python"


def mutant_package(directory: Path) -> Path:
    """Where the built package may be imported from: in a directory of the caller's."""
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = subprocess.run(
            [sys.executable, "setup.py", "--quiet", "build_ext", "-b", BUILD / "lib", "--build-temp", BUILD / "temp"],
            cwd=ROOT,
            env={**os.environ, "LOGSTORE_MUTANTS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert made.returncode == 0, made.stderr
        package = directory / "logstore"
        shutil.copytree(ROOT / "logstore", package, ignore=shutil.ignore_patterns("_core*.so", "__pycache__"))
        for module in (BUILD / "lib" / "logstore").glob("_core*.so"):
            shutil.copy2(module, package)
    return directory
