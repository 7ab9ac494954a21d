"""File descriptors: the log and the catalog have theirs set aside before connections may take the rest."""

from __future__ import annotations

import os
import resource
from typing import Final

SET_ASIDE_MAX: Final = 320  # 256 segments that are open at once, and the catalog, checkpoints, holds and commands


def raise_limit() -> None:
    """Let this process open as many files as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def limit() -> int | None:
    """How many files this process may have open at once; None for any number."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def sockets_max(wanted: int) -> int:
    """How many of `wanted` sockets there may be beside what is open now; half of a small rest is set aside."""
    most = limit()
    if most is None:
        return wanted
    free = max(0, most - len(os.listdir("/proc/self/fd")))
    return max(1, min(wanted, free - min(SET_ASIDE_MAX, free // 2)))
