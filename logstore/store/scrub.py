"""Reads an open store's log in the background, again and again, to find damage while there are still good backups.

It never delays a writer or recycling, takes no hold, and writes nothing.

It reads only the durable part of the log. If the file system allows it, it reads with direct I/O: then the disk itself
is checked, and the page cache keeps its contents. Bytes count as damage only if they are wrong in two readings and the
base has not passed them meanwhile. Each damaged position is logged once.
"""

from __future__ import annotations

import logging
import os
import time
from typing import TYPE_CHECKING, Any, Final

from logstore._core import ffi, lib
from logstore.core.native import failure, filled, owned
from logstore.core.threads import Stop, start
from logstore.errors import CorruptLog, StoreError, StoreLocked
from logstore.inspect import Pace, ReaderInfo

if TYPE_CHECKING:
    from pathlib import Path

    from logstore._core import ls_reader_ptr
    from logstore._hot import Owner

logger = logging.getLogger("logstore.scrub")

ROUND_S_MIN: Final = 1.0  # so that a short log is not read without a pause
_KNOWN_MAX: Final = 1000  # damaged positions that are remembered; further ones are counted again in every round


class Scrub:
    """A thread that reads the log of the store in ``store_dir`` at ``rate`` bytes per second."""

    def __init__(self, store_dir: Path, rate: float) -> None:
        self._path = store_dir.absolute()
        self._rate = rate
        self._stop = Stop()
        self._known: set[int] = set()
        self.rounds = 0
        """Complete rounds, each from the base to the LSN that was durable when the round began."""
        self.bytes = 0
        """Bytes of the log that were read and verified."""
        self.errors = 0
        """Damaged positions found."""
        self.last_error: str | None = None
        self.position = 0
        """The LSN that this round has reached."""
        self.thread = start("logstore-scrub", self._run)

    def stop(self) -> None:
        """Ends the thread, within one step of reading."""
        self._stop.set()
        self.thread.join()

    def stats(self) -> dict[str, Any]:
        """The counters that the store's ``stats()`` includes."""
        return {
            "scrub_rounds": self.rounds,
            "scrub_bytes": self.bytes,
            "scrub_errors": self.errors,
            "scrub_last_error": self.last_error,
            "scrub_position": self.position,
        }

    def _run(self) -> None:
        pace = Pace(self._rate, wait=self._stop.wait)
        while not self._stop.is_set():
            until = time.monotonic() + ROUND_S_MIN
            try:
                if self._round(pace):
                    self.rounds += 1
            except StoreLocked:
                pass  # the writer is changing its files at this moment; the next round tries again
            except StoreError as problem:  # of the directory or of memory, not of the log
                self._report(0, f"the log cannot be scrubbed: {problem}")
            self._stop.wait(max(until - time.monotonic(), 0))

    def _round(self, pace: Pace) -> bool:
        """Reads from the base to the end. False if it was stopped."""
        from_lsn = self.position = 0
        end_lsn = 1
        while from_lsn < end_lsn:
            try:
                owner, reader = _open(self._path, from_lsn)
            except CorruptLog as damage:
                self._report(damage.lsn, damage.message)
                return not self._stop.is_set()  # without intact headers nothing can be read
            try:
                info = _describe(reader)
                end_lsn = info.end_lsn if from_lsn == 0 else min(end_lsn, info.end_lsn)
                stopped_at = self._skim(reader, info, pace)
            finally:
                owner.free()
            if stopped_at is None:
                return not self._stop.is_set()
            from_lsn = self._look_again(stopped_at, info)
        return not self._stop.is_set()

    def _skim(self, reader: Any, info: ReaderInfo, pace: Pace) -> int | None:
        """Reads on. Returns the LSN that cannot be read; None at the end of the log, or if the scrub was stopped."""
        lsn = ffi.new("uint64_t *")
        self.position = max(self.position, info.base_lsn)
        while not self._stop.is_set():
            code = lib.ls_reader_skim(reader, pace.step_bytes, lsn)
            read = max(int(lsn[0]) - self.position, 0)
            self.position += read
            self.bytes += read
            if code == lib.LS_END:
                return None
            if code in (lib.LS_CORRUPT, lib.LS_IO, lib.LS_RECYCLED):
                return int(lsn[0])
            if code != 0:
                raise failure(code)
            pace.spend(read)
        return None

    def _look_again(self, lsn: int, info: ReaderInfo) -> int:
        """Reads the position ``lsn`` a second time and reports it if it is wrong again. Returns where to continue."""
        try:
            owner, reader = _open(self._path, lsn)
        except CorruptLog as damage:
            self._report(damage.lsn, damage.message)
            return info.end_lsn
        try:
            now = _describe(reader)
            if now.base_lsn > lsn:
                return now.base_lsn  # dead meanwhile, so the damage does not matter
            reached = ffi.new("uint64_t *")
            segment_end = lsn - lsn % info.segment_size + info.segment_size
            code = 0
            while code == 0 and reached[0] <= lsn:
                code = lib.ls_reader_skim(reader, 1, reached)
            if code in (0, lib.LS_END):
                return int(reached[0])
            if code == lib.LS_RECYCLED:
                return lsn
            found = failure(code)
        finally:
            owner.free()
        if isinstance(found, StoreLocked):
            raise found
        self._report(lsn, found.message)
        return segment_end

    def _report(self, lsn: int, text: str) -> None:
        self.last_error = text
        if lsn in self._known:
            return
        if len(self._known) < _KNOWN_MAX:
            self._known.add(lsn)
        self.errors += 1
        logger.warning("scrub of %s: %s", self._path, text)


def _open(path: Path, from_lsn: int) -> tuple[Owner, ls_reader_ptr]:
    owner, made = owned("reader")
    code = lib.ls_reader_open(ffi.NULL, os.fsencode(path), from_lsn, made)
    if code == lib.LS_RECYCLED:
        raise StoreLocked("the writer recycled the segment before this reader opened it; the next round tries again")
    if code != 0:
        raise failure(code)
    lib.ls_reader_past_cache(made[0])
    return owner, made[0]


def _describe(reader: Any) -> ReaderInfo:
    return ReaderInfo._from_c(filled("ls_reader_info", lambda info: lib.ls_reader_describe(reader, info)))
