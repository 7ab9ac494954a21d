"""Measures the size of a log from outside: a separate process adds up the disk space of the segment files.

It counts every ``*.seg`` file in the directory, spares included. A file counts with its length or its allocated blocks,
whichever is more, so a sparse file counts as full. A file that is renamed during the reading is counted once, by its
inode. The process does not ask the store, so its result can be used to check the store's own numbers.

Run as a program (``python watch.py DIR SECONDS``) it prints one line per sample (nanoseconds of the monotonic clock,
and bytes) until its standard input ends.
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
BLOCK_BYTES = 512  # the unit of st_blocks on every file system


def log_bytes(directory: str | os.PathLike[str]) -> int:
    """The size of all segment files in the directory now, in bytes; 0 if the directory does not exist.

    A sparse file counts as full. The block that the file system may need for a file's extent list does not count.
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
                block = found.st_blksize  # a fragmented file may need one more block for its extent list
                sizes[found.st_ino] = allocated if allocated > found.st_size + block else found.st_size
    except FileNotFoundError:
        return 0
    return sum(sizes.values())


class Watch:
    """Samples of a log's size, taken by another process from before the ``with`` block begins until after its end.

    ``samples`` grows: pairs of seconds (of ``time.monotonic``) and bytes, in order. Raises ``RuntimeError`` at the end
    of the block if the other process died, because samples are then missing.
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
            start_new_session=True,  # Ctrl-C goes to the benchmark only, which then ends this process
        )
        from logstore.core.threads import start  # not above: the other process runs this file without the package

        self._reader = start("logstore-watch", self._read)
        try:
            self._begun.wait()
        except BaseException:  # for example Ctrl-C: __exit__ will not be called
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
            self._process.kill()  # its output is no longer read
            raise
        finally:
            self._begun.set()  # after a failure, too, so that __enter__ does not wait for ever

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        died = self._process.poll()
        assert self._process.stdin is not None
        self._process.stdin.close()  # it takes one last sample and ends
        self._process.wait()
        self._reader.join()
        if self._process.stdout is not None:
            self._process.stdout.close()
        if self._reader.failure is not None and kind is None:
            raise RuntimeError(f"the thread that records the log's size has failed: {self._reader.failure}")
        if died is not None and kind is None:
            raise RuntimeError(f"the process that measures the log's size ended early with status {died}")

    @property
    def largest(self) -> int:
        """The largest sample in bytes."""
        return max((size for _, size in self.samples), default=0)

    @property
    def last(self) -> int:
        """The newest sample in bytes."""
        return self.samples[-1][1] if self.samples else 0

    def since(self, moment_s: float) -> list[tuple[float, int]]:
        """The samples from this moment on."""
        return self.samples[bisect.bisect_left(self.samples, (moment_s, 0)) :]


def _samples(directory: str, every_s: float) -> Iterator[tuple[int, int]]:
    """Samples until standard input ends, and one more after that."""
    ended = False
    yield time.monotonic_ns(), log_bytes(directory)
    while not ended:
        ended = bool(select.select([sys.stdin], [], [], every_s)[0])
        yield time.monotonic_ns(), log_bytes(directory)


def main() -> None:
    """The program of the process. Ends silently if the reader of its output is gone."""
    try:
        for at_ns, size in _samples(sys.argv[1], float(sys.argv[2])):
            print(at_ns, size, flush=True)
    except BrokenPipeError:
        os._exit(0)


if __name__ == "__main__":
    main()
