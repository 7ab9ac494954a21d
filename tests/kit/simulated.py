"""A store on the simulated disk: its log loses power and fails on demand; its catalog is a real SQLite file.

SQLite's own promises are not in question here, so the catalog simply stays; what a power cut does to it is the
business of SQLite's tests. The handles of a store are let go before its disk.
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
    """A disk in memory. What is not synced may go at a crash, which gives another disk and leaves this one."""

    def __init__(self, sim: Any = None) -> None:
        self._sim = testing.lib.ls_sim_new() if sim is None else sim
        assert self._sim != testing.ffi.NULL

    def open(self, path: Path, **options: Any) -> MessageStore:
        """The store in ``path``, whose directory exists on the real disk for the catalog's sake."""
        path.mkdir(exist_ok=True)
        made = ffi.new("ls_options *")
        lib.ls_options_default(made)
        made.segment_size = TINY_SEGMENT
        for name, value in options.items():
            setattr(made, name, value)
        return MessageStore(path, made, system=testing.for_core(self._sim))

    def crash(self, losses: int = ALL_LOST, seed: int = 1) -> Disk:
        """The disk as the power cut leaves it."""
        after = testing.lib.ls_sim_crash(self._sim, losses, seed)
        assert after != testing.ffi.NULL
        return Disk(after)

    def fail(self, nth: int, error: int, *, forever: bool = False) -> None:
        """The nth call from now on fails with this errno, and all after it if asked; 0 ends the plan."""
        testing.lib.ls_sim_fail(self._sim, nth, forever, error)

    def free(self) -> None:
        """After every store on it is closed and forgotten."""
        gc.collect()
        testing.lib.ls_sim_free(self._sim)
