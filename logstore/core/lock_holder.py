"""Says which process holds the lock of a store: ``/proc/locks`` lists locks of files by device and inode.

Best effort: a holder in another PID namespace, or on a file system that reports another device there (btrfs), is not
found. Only the texts of errors depend on it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from logstore.errors import StoreLocked

# 1: FLOCK  ADVISORY  WRITE 4711 fe:01:1234 0 EOF; a process that waits has "->" after the number.
_LOCK: Final = re.compile(r"^\d+: FLOCK +\S+ +(READ|WRITE) +(\d+) ([0-9a-f]+):([0-9a-f]+):(\d+) ", re.MULTILINE)
_LOCKS: Final = Path("/proc/locks")


def store_locked(
    store_dir: str | os.PathLike[str], advice: str = "close it there first", what: str = "the store"
) -> StoreLocked:
    """The error for a store that a writer has open. It names the process if that can be found; ``advice`` follows.

    ``what`` is another kind of directory that has such a ``LOCK``.
    """
    pid = holder(store_dir)
    if pid is None:
        where = "another process or handle"
    elif pid == os.getpid():
        where = "this process already"
    else:
        where = process_text(pid)
    return StoreLocked(f"{what} {store_dir} is open in {where}: {advice}")


def holder(store_dir: str | os.PathLike[str]) -> int | None:
    """The id of the process that has the store's LOCK locked, a writer if there is one; None if none is found."""
    try:
        status = os.stat(os.path.join(store_dir, "LOCK"))
        locks = _LOCKS.read_text("ascii", "replace")
    except OSError:
        return None
    wanted = os.major(status.st_dev), os.minor(status.st_dev), status.st_ino
    found = {
        kind: int(pid)
        for kind, pid, major, minor, inode in _LOCK.findall(locks)
        if (int(major, 16), int(minor, 16), int(inode)) == wanted and os.path.exists(f"/proc/{pid}")
    }
    return found.get("WRITE", found.get("READ"))


def is_stopped(pid: int) -> bool:
    """Whether a signal or a debugger has stopped the process; False if that cannot be found."""
    try:
        status = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    return status.rpartition(b") ")[2][:1] in (b"T", b"t")


def process_text(pid: int) -> str:
    """The process and its program for people: ``process 4711 (logstore serve)``; no arguments, which may be secret."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").rstrip("\0").split("\0")
    except OSError:
        words = [""]
    program = os.path.basename(words[0])
    if program.startswith("python"):
        if words[1:3] == ["-m", "logstore"]:
            program, words = "logstore", words[2:]
        elif words[1:] and not words[1].startswith("-"):
            words = words[1:]
            program = os.path.basename(words[0])
    if program == "logstore" and words[1:] and re.fullmatch("[a-z-]+", words[1]):
        program += f" {words[1]}"
    return f"process {pid} ({program})" if program else f"process {pid}"
