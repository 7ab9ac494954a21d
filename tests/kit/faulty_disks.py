"""A disk that is full, hangs or fails: a library preloaded into a child process, and a file with the state."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("disk_faults.c")


class FaultyDisk:
    """What a process with `environment` finds: the disk works, has no room, or hangs or fails in each sync."""

    def __init__(self, directory: Path, fails: str = "") -> None:
        """`fails`: a part of the paths of the files that :meth:`fail` is about; without it all are."""
        compiler = next((found for name in ("cc", "gcc", "clang") if (found := shutil.which(name))), None)
        if compiler is None:
            pytest.skip("SKIPPED LOUDLY: no C compiler is here; full and hanging disks were NOT tried")
        library = directory / "disk_faults.so"
        if not library.exists():
            subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, SOURCE, "-ldl"], check=True, timeout=60)
        self._file = directory / f"disk-{len(list(directory.glob('disk-*')))}"
        self._file.write_bytes(b"-")
        self.environment = os.environ | {"LD_PRELOAD": str(library), "DISK_FAULTS": str(self._file)}
        if fails:
            self.environment["DISK_FAILS"] = fails

    def _becomes(self, state: bytes) -> None:
        with self._file.open("r+b") as file:
            file.write(state)

    def fill(self) -> None:
        """No file gets another block."""
        self._becomes(b"f")

    def hang(self) -> None:
        """No sync returns."""
        self._becomes(b"h")

    def hang_at_new_files(self) -> None:
        """No sync of a new file, or of a directory, returns."""
        self._becomes(b"n")

    def fail(self) -> None:
        """Each sync fails, and what was written stays in the page cache."""
        self._becomes(b"e")

    def work(self) -> None:
        """As it should be."""
        self._becomes(b"-")
