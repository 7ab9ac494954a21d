"""The disk as a program: a FUSE file system with the single file `disk`, over an image.

Every write goes into the image and, with its bytes, into a log; every flush goes into the log. A page of shared memory
lets the tests fail writes or flushes, and has the length of the log. Requests are served one at a time, so the log has
the order of the disk's work.

Run as `python real_disk_server.py IMAGE LOG CONTROL MOUNTPOINT`; it ends when it is unmounted, or with its parent.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import signal
import stat
import struct
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

NAME = "disk"
ENTRY = struct.Struct("<cQQ")  # what, offset, bytes; the bytes follow a write that succeeded
WRITE, FLUSH, FAILED_WRITE, FAILED_FLUSH = b"W", b"F", b"w", b"f"

CONTROL_BYTES = 64 * 1024
MOST_RANGES = 1024
PR_SET_PDEATHSIG = 1


class Range(ctypes.Structure):
    _fields_ = (("first", ctypes.c_uint64), ("end", ctypes.c_uint64))


class Control(ctypes.Structure):
    """The shared page; either side writes one field at a time."""

    _fields_ = (
        ("entries", ctypes.c_uint64),  # in the log, each done before it counts
        ("reads", ctypes.c_uint64),
        ("failed_writes", ctypes.c_uint64),
        ("failed_flushes", ctypes.c_uint64),
        ("fail_write_after", ctypes.c_uint64),  # n: the nth write from now on fails, once
        ("fail_flush_after", ctypes.c_uint64),
        ("fail_writes", ctypes.c_uint32),  # 1: all of them
        ("fail_flushes", ctypes.c_uint32),  # 1: all of them
        ("range_count", ctypes.c_uint32),  # writes that touch one of so many ranges fail
        ("unused", ctypes.c_uint32),
        ("ranges", Range * MOST_RANGES),
    )

    def heal(self) -> None:
        self.fail_writes = self.fail_flushes = self.range_count = 0
        self.fail_write_after = self.fail_flush_after = 0

    def fail_ranges(self, ranges: list[tuple[int, int]]) -> None:
        assert 0 < len(ranges) <= MOST_RANGES
        for index, (first, end) in enumerate(ranges):
            self.ranges[index] = Range(first, end)
        self.range_count = len(ranges)

    def bad(self, offset: int, size: int) -> bool:
        """Whether a write there fails; asked once for each write."""
        if self.fail_write_after > 0:
            self.fail_write_after -= 1
            if self.fail_write_after == 0:
                return True
        if self.fail_writes:
            return True
        return any(
            self.ranges[i].first < offset + size and offset < self.ranges[i].end for i in range(self.range_count)
        )

    def bad_flush(self) -> bool:
        """Whether a flush fails; asked once for each."""
        if self.fail_flush_after > 0:
            self.fail_flush_after -= 1
            if self.fail_flush_after == 0:
                return True
        return bool(self.fail_flushes)


def control_of(path: Path | str) -> Control:
    """The page of memory behind the file, shared with every process that maps it."""
    with open(path, "r+b") as file:
        return Control.from_buffer(mmap.mmap(file.fileno(), CONTROL_BYTES))


def serve(image: str, log: str, control: str, mountpoint: str) -> None:
    """Serves until unmounted."""
    import mfusepy

    class Disk(mfusepy.Operations):  # type: ignore[misc] # it has no types
        use_ns = True

        def __init__(self) -> None:
            self.image = os.open(image, os.O_RDWR | os.O_CLOEXEC)
            self.log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            self.control = control_of(control)

        def note(self, what: bytes, offset: int = 0, size: int = 0, data: bytes = b"") -> None:
            entry = ENTRY.pack(what, offset, size) + data
            if os.write(self.log, entry) != len(entry):
                raise mfusepy.FuseOSError(errno.ENOSPC)
            self.control.entries += 1

        def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
            if path == "/":
                return {"st_mode": stat.S_IFDIR | 0o700, "st_nlink": 2}
            if path != f"/{NAME}":
                raise mfusepy.FuseOSError(errno.ENOENT)
            return {"st_mode": stat.S_IFREG | 0o600, "st_nlink": 1, "st_size": os.fstat(self.image).st_size}

        def open(self, path: str, flags: int) -> int:
            return 0

        def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
            self.control.reads += 1
            return os.pread(self.image, size, offset)

        def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
            if self.control.bad(offset, len(data)):
                self.note(FAILED_WRITE, offset, len(data))
                self.control.failed_writes += 1
                raise mfusepy.FuseOSError(errno.EIO)
            written = os.pwrite(self.image, data, offset)
            assert written == len(data)
            self.note(WRITE, offset, written, data)
            return written

        def fsync(self, path: str, datasync: int, fh: int) -> int:
            if self.control.bad_flush():
                self.note(FAILED_FLUSH)
                self.control.failed_flushes += 1
                raise mfusepy.FuseOSError(errno.EIO)
            self.note(FLUSH)
            return 0

    mfusepy.FUSE(
        Disk(), mountpoint, foreground=True, nothreads=True, direct_io=True, fsname=os.path.dirname(mountpoint)
    )


def end_with_parent() -> None:
    """End this disk when the tests' process is killed; the next run removes the remains."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


if __name__ == "__main__":
    end_with_parent()
    serve(*sys.argv[1:5])
