"""A wall clock that jumps or stands: a library preloaded into a child process, and a file with the offset."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("clock_jumps.c")
HOUR_S = 3600
YEAR_S = 365 * 24 * HOUR_S


class JumpingClock:
    """Processes with `environment` have the machine's wall clock plus the offset of the last `jump`."""

    def __init__(self, directory: Path) -> None:
        compiler = next((found for name in ("cc", "gcc", "clang") if (found := shutil.which(name))), None)
        if compiler is None:
            pytest.skip("SKIPPED LOUDLY: no C compiler is here; clock jumps were NOT tried")
        library = directory / "clock_jumps.so"
        subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, SOURCE, "-ldl"], check=True, timeout=60)
        self._file = directory / "jump"
        self.jump(0)
        self.environment = os.environ | {"LD_PRELOAD": str(library), "CLOCK_JUMPS": str(self._file)}

    def jump(self, seconds: int) -> None:
        """Set the offset to the machine's clock, not to the previous jump."""
        self._write(seconds, stands=False)

    def stand(self, at_s: int) -> None:
        """Stop the clock at this second since 1970, until the next call."""
        self._write(at_s, stands=True)

    def _write(self, seconds: int, *, stands: bool) -> None:
        with open(self._file, "r+b" if self._file.exists() else "w+b") as file:
            file.write(struct.pack("=qq", seconds, stands))
