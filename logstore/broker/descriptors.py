"""File descriptors: some are reserved for the log and the catalog; connections may use the rest."""

from __future__ import annotations

import os
import resource
from typing import Final

SET_ASIDE_MAX: Final = 320  # of each store: 256 open segments, and the catalog, checkpoints, holds and commands


def raise_limit() -> None:
    """Raise this process's soft limit of open files to its hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def limit() -> int | None:
    """The limit of open files of this process; None if there is no limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def sockets_max(wanted: int, stores: int = 1, sockets: int = 0) -> int:
    """How many of the `wanted` sockets may be open at once, while `stores` are and `sockets` of them are open already.

    Of few free descriptors, half are reserved.
    """
    files_max = limit()
    if files_max is None:
        return wanted
    free = max(0, files_max - len(os.listdir("/proc/self/fd")) + sockets)
    return max(1, min(wanted, free - min(stores * SET_ASIDE_MAX, free // 2)))
