"""The third of many cases of one kind that `make check` takes: the commit's hash chooses it."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
THIRDS = 3


def third_of_this_commit() -> int:
    """0, 1 or 2, by the commit's hash; 0 without git. So a few commits in turn run all cases."""
    found = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    return int(found.stdout.strip() or "0", 16) % THIRDS


def span(count: int, third: int | None) -> tuple[int, int]:
    """Which of ``count`` numbers a third has: the first one, and how many; all of them for None."""
    if third is None:
        return 0, count
    first = count * third // THIRDS
    return first, count * (third + 1) // THIRDS - first
