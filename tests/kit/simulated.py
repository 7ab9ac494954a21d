"""A store on the simulated disk: its log loses power and fails on demand; its catalog is a real SQLite file.

A power cut does not affect the catalog: SQLite's durability is not under test. Free the handles of a store before its
disk.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any, Final

from kit import testing
from logstore import MessageStore
from logstore._core import ffi, lib

if TYPE_CHECKING:
    from pathlib import Path

ALL_LOST: Final = 0
ALL_KEPT: Final = 1
BY_SEED: Final = 2

TINY_SEGMENT: Final = 64 * 1024  # the core's own least, below what users may choose


class Disk:
    """A disk in memory. A crash makes a copy that may lack unsynced data; this disk does not change."""

    def __init__(self, sim: Any = None) -> None:
        self._sim = testing.lib.ls_sim_new() if sim is None else sim
        assert self._sim != testing.ffi.NULL

    def open(self, path: Path, **options: Any) -> MessageStore:
        """The store in ``path``, whose directory exists on the real disk for the catalog."""
        path.mkdir(exist_ok=True)
        made = ffi.new("ls_options *")
        lib.ls_options_default(made)
        made.segment_size = TINY_SEGMENT
        for name, value in options.items():
            setattr(made, name, value)
        return MessageStore(path, made, system=testing.for_core(self._sim))

    def crash(self, losses: int = ALL_LOST, seed: int = 1) -> Disk:
        """A copy of the disk as a power cut leaves it."""
        after = testing.lib.ls_sim_crash(self._sim, losses, seed)
        assert after != testing.ffi.NULL
        return Disk(after)

    def fail(self, nth: int, error: int, *, forever: bool = False) -> None:
        """The nth call from now on fails with this errno, and all after it if asked; 0 ends the plan."""
        testing.lib.ls_sim_fail(self._sim, nth, forever, error)

    @property
    def now_us(self) -> int:
        """Its wall clock, µs since 1970. Only calls of the disk, of one microsecond each, and jumps move it."""
        return int(testing.lib.ls_sim_now(self._sim))

    def jump(self, us: int) -> None:
        """The wall clock jumps by so much; negative: back."""
        testing.lib.ls_sim_advance(self._sim, us)

    def free(self) -> None:
        """After every store on it is closed and forgotten."""
        gc.collect()
        testing.lib.ls_sim_free(self._sim)
