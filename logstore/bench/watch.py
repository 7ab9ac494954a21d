"""How large a log is, seen from outside: a process of its own adds up what the segment files take on the disk.

What it counts is what the disk gives away: every ``*.seg`` in the directory, spares and all, each with its length or
its allocated blocks, whichever is more, so that a sparse file counts as full. A file that is renamed while the
directory is read is counted once, by its inode. It asks the store nothing, so it can say what the store cannot: whether
its own account is true.

Run as a program (``python watch.py DIR SECONDS``) it prints a line a sample, nanoseconds of the monotonic clock
and bytes, until its standard input ends.
"""

from __future__ import annotations

import bisect
import os
import select
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import TracebackType

EVERY_S = 0.05
BLOCK_BYTES = 512  # what st_blocks counts in, whatever the file system's own are


def log_bytes(directory: str | os.PathLike[str]) -> int:
    """Bytes of all segment files in the directory, now. 0 for a directory that is not there.

    A sparse file counts as full. What the file system itself needs for one that was written in pieces (up to a block of
    it, for the list of the pieces) does not count.
    """
    sizes: dict[int, int] = {}
    try:
        for entry in os.scandir(directory):
            if entry.name.endswith(".seg"):
                try:
                    found = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue  # renamed or removed since the directory was read
                allocated = found.st_blocks * BLOCK_BYTES
                own = found.st_blksize  # of the file system's: where a file in many pieces has them written down
                sizes[found.st_ino] = allocated if allocated > found.st_size + own else found.st_size
    except FileNotFoundError:
        return 0
    return sum(sizes.values())


class Watch:
    """Samples of a log's size, taken by another process from before the ``with`` block begins until it has ended.

    ``samples`` grows: pairs of seconds (of ``time.monotonic``) and bytes, in order. Raises ``RuntimeError`` at the end
    of the block if the other process died, for then nothing was watched.
    """

    def __init__(self, directory: Path, every_s: float = EVERY_S) -> None:
        self.samples: list[tuple[float, int]] = []
        self._begun = threading.Event()
        self._command = [sys.executable, "-I", __file__, os.fspath(directory), str(every_s)]

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for the benchmark, which ends this in its own time
        )
        from logstore.core.threads import start  # not above: the other process runs this file by itself

        self._reader = start("logstore-watch", self._read)
        try:
            self._begun.wait()
        except BaseException:  # Ctrl-C: there is no block whose end could end it
            self._process.kill()
            self._process.wait()
            raise
        return self

    def _read(self) -> None:
        assert self._process.stdout is not None
        try:
            for line in self._process.stdout:
                at_ns, size = line.split()
                self.samples.append((int(at_ns) / 1e9, int(size)))
                self._begun.set()
        except BaseException:
            self._process.kill()  # nobody takes what it says
            raise
        finally:
            self._begun.set()  # or it never will

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        died = self._process.poll()
        assert self._process.stdin is not None
        self._process.stdin.close()  # one last sample, and it ends
        self._process.wait()
        self._reader.join()
        if self._process.stdout is not None:
            self._process.stdout.close()
        if self._reader.failure is not None and kind is None:
            raise RuntimeError(f"the thread that takes down the log's size has ended: {self._reader.failure}")
        if died is not None and kind is None:
            raise RuntimeError(f"the process that watches the log's size ended with status {died}")

    @property
    def largest(self) -> int:
        """The most bytes that any sample saw."""
        return max((size for _, size in self.samples), default=0)

    @property
    def last(self) -> int:
        """What the newest sample saw."""
        return self.samples[-1][1] if self.samples else 0

    def since(self, moment_s: float) -> list[tuple[float, int]]:
        """The samples from that moment on."""
        return self.samples[bisect.bisect_left(self.samples, (moment_s, 0)) :]


def _samples(directory: str, every_s: float) -> Iterator[tuple[int, int]]:
    """Until standard input ends, and once more then."""
    ended = False
    yield time.monotonic_ns(), log_bytes(directory)
    while not ended:
        ended = bool(select.select([sys.stdin], [], [], every_s)[0])
        yield time.monotonic_ns(), log_bytes(directory)


def main() -> None:
    """What the process runs. Should whoever asked be gone, there is nobody to tell, and nothing to say."""
    try:
        for at_ns, size in _samples(sys.argv[1], float(sys.argv[2])):
            print(at_ns, size, flush=True)
    except BrokenPipeError:
        os._exit(0)


if __name__ == "__main__":
    main()
