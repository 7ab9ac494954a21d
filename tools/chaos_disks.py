"""The disks of the members of a chaos run: each a real file system over a disk that logs its writes and flushes.

It is the harness of the tests of real disks (tests/kit/real_disk.py), which needs root, FUSE and loop devices. So a
power cut loses what was written and not forced, a disk is full, or a flush fails, as it happens to a process.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))

from kit.real_disk import RealDisk, lacking, place_of_ones_own
from kit.real_disk_log import Cut, Kept

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable

BLOCK_BYTES = 4096
FLUSH_WITHIN_S = 5.0
SOON_S = 0.5
LOOK_S = 0.001
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
        self._full: set[int] = set()
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

    def cut_off(self, members: Iterable[int], *, at_flush: bool) -> None:
        """The disks do nothing from now on; calls under way fail, and so nothing more is said to be forced.

        ``at_flush``: one of them was about to flush, so that there is something to lose; if a flush comes soon.
        """
        controls = [self._disks[member].control for member in members]
        before = [control.failed_flushes for control in controls]
        for control in controls:
            control.fail_flushes = 1
        end = time.monotonic() + SOON_S
        while at_flush and time.monotonic() < end and before == [control.failed_flushes for control in controls]:
            time.sleep(LOOK_S)
        for control in controls:
            control.fail_writes = 1

    def is_full(self, member: int) -> bool:
        """Whether the disk was filled, and has no room yet."""
        return member in self._full

    def lose_power(self, member: int, chance: random.Random, *, forgetful: bool = False) -> None:
        """The member's process is dead: of what its disk had not flushed a drawn part is lost.

        A forgetful disk has also lost what was written before a flush that failed.
        """
        disk = self._disks[member]
        cut = Cut(disk.control.entries, chance.choice(list(Kept)), chance.randrange(1 << 32))
        disk.control.heal()
        self.unflushed += disk.lose_power(cut, forgetful=forgetful)
        if member not in self._full:
            self.make_room(member)  # the removal of the filling may be what was lost

    def fill(self, member: int) -> None:
        """There is no room on the member's disk."""
        self._full.add(member)
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
        """There is room again: at once, or, if a flush has failed and nothing can be written, with the next start."""
        self._full.discard(member)
        try:
            (self.path(member) / FILLING).unlink(missing_ok=True)
        except OSError as error:
            if error.errno != errno.EROFS or not self.has_failed(member):
                raise

    def fail_flush(self, member: int) -> bool:
        """A flush of the member's disk fails; whether one came."""
        control = self._disks[member].control
        control.fail_flush_after = 1
        end = time.monotonic() + FLUSH_WITHIN_S
        while control.fail_flush_after and time.monotonic() < end:
            time.sleep(LOOK_S)
        control.heal()
        return self.has_failed(member)

    def has_failed(self, member: int) -> bool:
        """Whether a flush has failed since the power was lost."""
        return bool(self._disks[member].control.failed_flushes)

    def end(self) -> None:
        """Unmounts and removes all."""
        for disk in self._disks.values():
            with contextlib.suppress(AssertionError):  # what is left is taken apart with the place
                disk.end()
        self._ends.close()
