"""Helpers for tests of a store besides the fixtures: a small segment size, ways to read a store, and a failed log."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
SMALL_SEGMENT = 512 * 1024  # the least that a user may choose


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


@contextmanager
def in_memory(otherwise: Path) -> Iterator[Path]:
    """A directory in memory, where a sync costs nothing; ``otherwise`` on a machine without room for one."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK) or shutil.disk_usage(memory).free < 1 << 30:
        yield otherwise
        return
    with tempfile.TemporaryDirectory(prefix="logstore-", dir=memory) as made:
        yield Path(made)
