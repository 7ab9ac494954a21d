"""The disks of the members of a chaos run: each a real file system over a disk that logs its writes and flushes.

It is the harness of the tests of real disks (tests/kit/real_disk.py), which needs root, FUSE and loop devices. So a
power cut loses what was written and not forced, a disk is full, or a flush fails, as it happens to a process.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))

from kit.real_disk import RealDisk, lacking, place_of_ones_own
from kit.real_disk_log import Cut, Kept

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable

BLOCK_BYTES = 4096
FIRST_PIECE_BYTES = 64 << 20
FILLING = "filling"  # the file that fills a disk


def missing_for(file_system: str) -> list[str]:
    """What such disks need and is not here."""
    of_machine, packages = lacking(file_system)
    return of_machine + packages


class Disks:
    """A disk for each member."""

    def __init__(self, members: Iterable[int], file_system: str) -> None:
        self.unflushed = 0
        """Writes that no flush had covered when the power was cut."""
        self._disks: dict[int, RealDisk] = {}
        with contextlib.ExitStack() as ends:
            place = ends.enter_context(place_of_ones_own())
            for member in members:
                own = place / f"m{member}"
                own.mkdir()
                self._disks[member] = RealDisk(own, file_system)
                self._disks[member].mount()
            self._ends = ends.pop_all()

    def path(self, member: int) -> Path:
        """Where the member's file system is mounted."""
        return self._disks[member].path

    def lose_power(self, member: int, chance: random.Random, *, forgetful: bool = False) -> None:
        """The member's process is dead: of what its disk had not flushed a drawn part is lost.

        A forgetful disk has also lost what was written before a flush that failed.
        """
        disk = self._disks[member]
        cut = Cut(disk.control.entries, chance.choice(list(Kept)), chance.randrange(1 << 32))
        disk.control.heal()
        self.unflushed += disk.lose_power(cut, forgetful=forgetful)

    def fill(self, member: int) -> None:
        """There is no room on the member's disk."""
        file = os.open(self.path(member) / FILLING, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            size, piece = 0, FIRST_PIECE_BYTES
            while piece >= BLOCK_BYTES:
                try:
                    os.posix_fallocate(file, size, piece)
                    size += piece
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    piece //= 2
        finally:
            os.close(file)

    def make_room(self, member: int) -> None:
        """There is room again."""
        (self.path(member) / FILLING).unlink(missing_ok=True)

    def fail_flush(self, member: int) -> None:
        """The next flush of the member's disk fails."""
        self._disks[member].control.fail_flush_after = 1

    def has_failed(self, member: int) -> bool:
        """Whether a flush has failed since the disk's log began."""
        return bool(self._disks[member].control.failed_flushes)

    def end(self) -> None:
        """Unmounts and removes all."""
        for disk in self._disks.values():
            with contextlib.suppress(AssertionError):  # what is left is taken apart with the place
                disk.end()
        self._ends.close()
