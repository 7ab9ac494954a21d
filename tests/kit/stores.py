"""Helpers for tests of a store besides the fixtures: a small segment size, ways to read a store, and a failed log."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SMALL_SEGMENT = 512 * 1024  # the least that a user may choose
MEMORY_ROOM = 6 << 30  # three workers use up to 1.7 GiB; Spark and the processes of the tests need memory too


def contents(queue: Any) -> list[bytes]:
    """The messages of a queue, in order."""
    return [message.content for message in queue.browse()]


def segment_files(directory: Path) -> list[Path]:
    """The store's segments, spares included, by first LSN."""
    return sorted(directory.glob("*.seg"))


def break_the_log(store: Any) -> None:
    """From now on writes to its segments go to a full device."""
    full = os.open("/dev/full", os.O_WRONLY | os.O_CLOEXEC)
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            continue
        if target.startswith(str(store.path)) and target.endswith(".seg"):
            os.dup2(full, int(fd), inheritable=False)
    os.close(full)


def memory_root() -> Path | None:
    """A file system in memory, where a sync costs nothing; None unless it, the machine and the container have room."""
    root, limit, used = Path("/dev/shm"), Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    try:
        free = [shutil.disk_usage(root).free, _available_bytes()]
        if limit.exists() and (most := limit.read_text().strip()) != "max":
            free.append(int(most) - int(used.read_text()))
    except (OSError, ValueError):
        return None
    return root if os.access(root, os.W_OK | os.X_OK) and min(free) >= MEMORY_ROOM else None


def _available_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0
