"""A disk's log, and the bytes that a power cut leaves on the disk.

A write that a later flush covers is on the disk. Writes after the last flush may be there, partly or not at all, in any
order: none, all, a prefix, or a random choice of writes, blocks or sectors.
"""

from __future__ import annotations

import enum
import os
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kit.real_disk_server import ENTRY, FAILED_FLUSH, FLUSH, WRITE

if TYPE_CHECKING:
    from pathlib import Path

SECTOR = 512
BLOCK = 4096


class Kept(enum.Enum):
    """Which writes survive that no flush covered."""

    NOTHING = "nothing"
    ALL = "all"
    FIRST = "the first so many writes"
    WRITES = "random writes"
    BLOCKS = "random blocks"
    SECTORS = "random sectors"


@dataclass(frozen=True)
class Entry:
    """One entry of the log; the data of a write starts at `data_at` in the log."""

    what: bytes
    offset: int
    size: int
    data_at: int


class DiskLog:
    """A disk's log up to its end when it was read."""

    def __init__(self, path: Path) -> None:
        self._bytes = path.read_bytes()
        self.entries: list[Entry] = []
        at = 0
        while at + ENTRY.size <= len(self._bytes):
            what, offset, size = ENTRY.unpack_from(self._bytes, at)
            at += ENTRY.size
            self.entries.append(Entry(what, offset, size, at))
            at += size if what == WRITE else 0

    def count(self, what: bytes) -> int:
        return sum(entry.what == what for entry in self.entries)

    def flushes(self) -> list[int]:
        """The positions right after each flush."""
        return [index + 1 for index, entry in enumerate(self.entries) if entry.what == FLUSH]

    def windows(self) -> list[int]:
        """The positions at which some write is not covered by a flush."""
        found, open_writes = [], False
        for index, entry in enumerate(self.entries):
            open_writes = entry.what == WRITE or (open_writes and entry.what != FLUSH)
            if open_writes:
                found.append(index + 1)
        return found

    def split(self, position: int, *, forgetful: bool = False) -> tuple[list[Entry], list[Entry]]:
        """The writes among the first `position` entries: those certainly on the disk, and the others.

        A forgetful disk returns data that was written before a failed flush, but never stores it, as the kernel does
        with a file's pages.
        """
        durable: list[Entry] = []
        waiting: list[Entry] = []
        for entry in self.entries[:position]:
            if entry.what == WRITE:
                waiting.append(entry)
            elif entry.what == FLUSH:
                durable += waiting
                waiting = []
            elif entry.what == FAILED_FLUSH and forgetful:
                waiting = []
        return durable, waiting

    def data(self, entry: Entry) -> memoryview:
        return memoryview(self._bytes)[entry.data_at : entry.data_at + entry.size]


class BaseImage:
    """A disk's first contents, without its holes, to begin any number of images with."""

    def __init__(self, path: Path) -> None:
        self.size = path.stat().st_size
        self._blocks: list[tuple[int, bytes]] = []
        with path.open("rb") as file:
            at = 0
            while at < self.size:
                try:
                    at = os.lseek(file.fileno(), at, os.SEEK_DATA)
                except OSError:  # nothing but a hole
                    break
                end = os.lseek(file.fileno(), at, os.SEEK_HOLE)
                for block in range(at, end, 1 << 20):
                    data = os.pread(file.fileno(), min(1 << 20, end - block), block)
                    if data.count(0) != len(data):
                        self._blocks.append((block, data))
                at = end

    def write(self, path: Path) -> int:
        """A new image with these contents; its descriptor, which the caller closes."""
        path.unlink(missing_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.truncate(file, self.size)
        for at, data in self._blocks:
            os.pwrite(file, data, at)
        return file


@dataclass(frozen=True)
class Cut:
    """A power cut: after this many entries of the log, with this choice of unflushed writes."""

    position: int
    kept: Kept
    seed: int = 0

    def __str__(self) -> str:
        return f"the power cut after entry {self.position}, of the unflushed {self.kept.value} kept, seed {self.seed}"


def leave(base: BaseImage, log: DiskLog, cut: Cut, image: Path, *, forgetful: bool = False) -> int:
    """Makes the image that the cut leaves, and returns the number of unflushed writes."""
    chance = random.Random(cut.seed)
    durable, waiting = log.split(cut.position, forgetful=forgetful)
    file = base.write(image)
    try:
        for entry in durable:
            os.pwrite(file, log.data(entry), entry.offset)
        first = chance.randint(0, len(waiting))
        for index, entry in enumerate(waiting):
            if cut.kept is Kept.FIRST and index >= first:
                break
            _keep(file, entry, log.data(entry), cut.kept, chance)
    finally:
        os.close(file)
    return len(waiting)


def _keep(file: int, entry: Entry, data: memoryview, kept: Kept, chance: random.Random) -> None:
    if kept is Kept.NOTHING or (kept is Kept.WRITES and chance.random() < 0.5):
        return
    step = {Kept.SECTORS: SECTOR, Kept.BLOCKS: BLOCK}.get(kept, entry.size)
    for at in range(0, entry.size, step):
        if kept in (Kept.SECTORS, Kept.BLOCKS) and chance.random() < 0.5:
            continue
        os.pwrite(file, data[at : at + step], entry.offset + at)
