"""Reading an open store's log in the background, round and round, so that rot is found while there are backups.

What it must never do: hold up a writer or recycling, take a hold, or write anything.

What always holds: only what is durable is looked at, past the page cache where the file system can, so that it is the
disk that is asked and nothing is driven out; what reads wrong counts as damage only if it reads wrong twice and the
base has not passed it meanwhile; each damaged place is warned of once.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from logstore._core import ffi, lib
from logstore.core.native import failure, filled
from logstore.core.threads import start
from logstore.errors import CorruptLog, StoreError, StoreLocked
from logstore.inspect import Pace, ReaderInfo

if TYPE_CHECKING:
    from pathlib import Path

logger = logging.getLogger("logstore.scrub")

ROUND_S_MIN: Final = 1.0  # a log that is read at once is not read all the time
_KNOWN_MAX: Final = 1000  # damaged places that are remembered; more are counted again in every round


class Scrub:
    """Reads the log of the store in ``store_dir`` at ``rate`` bytes a second, from a thread of its own."""

    def __init__(self, store_dir: Path, rate: float) -> None:
        self._path = store_dir.absolute()
        self._rate = rate
        self._stop = threading.Event()
        self._known: set[int] = set()
        self.rounds = 0
        """Complete ones, from the base to what was durable when the round began."""
        self.bytes = 0
        """Of the log, read and found right."""
        self.errors = 0
        """Damaged places found."""
        self.last_error: str | None = None
        self.position = 0
        """The LSN up to which this round has come."""
        self.thread = start("logstore-scrub", self._run)

    def stop(self) -> None:
        """Ends the thread, within one step of reading."""
        self._stop.set()
        self.thread.join()

    def stats(self) -> dict[str, Any]:
        """For the store's own."""
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
                pass  # the hint is being written
            except StoreError as problem:  # the directory, or memory: not the log
                self._tell(0, f"the log cannot be scrubbed: {problem}")
            self._stop.wait(max(until - time.monotonic(), 0))

    def _round(self, pace: Pace) -> bool:
        """From the base to the end; False if it was stopped."""
        from_lsn = self.position = 0
        end_lsn = 1
        while from_lsn < end_lsn:
            try:
                reader = _open(self._path, from_lsn)
            except CorruptLog as damage:
                self._tell(damage.lsn, damage.message)
                return not self._stop.is_set()  # without its headers nothing can be read
            try:
                info = _describe(reader)
                end_lsn = info.end_lsn if from_lsn == 0 else min(end_lsn, info.end_lsn)
                stopped_at = self._skim(reader, info, pace)
            finally:
                ffi.release(reader)
            if stopped_at is None:
                return not self._stop.is_set()
            from_lsn = self._look_again(stopped_at, info)
        return not self._stop.is_set()

    def _skim(self, reader: Any, info: ReaderInfo, pace: Pace) -> int | None:
        """The LSN where it cannot be read; None at its end, or when it is to stop."""
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
        """Whether it still cannot be read there; where to go on."""
        try:
            reader = _open(self._path, lsn)
        except CorruptLog as damage:
            self._tell(damage.lsn, damage.message)
            return info.end_lsn
        try:
            now = _describe(reader)
            if now.base_lsn > lsn:
                return now.base_lsn  # dead meanwhile: nobody needs it
            at = ffi.new("uint64_t *")
            segment_end = lsn - lsn % info.segment_size + info.segment_size
            code = 0
            while code == 0 and at[0] <= lsn:
                code = lib.ls_reader_skim(reader, 1, at)
            if code in (0, lib.LS_END):
                return int(at[0])
            if code == lib.LS_RECYCLED:
                return lsn
            found = failure(code)
        finally:
            ffi.release(reader)
        if isinstance(found, StoreLocked):
            raise found
        self._tell(lsn, found.message)
        return segment_end

    def _tell(self, lsn: int, text: str) -> None:
        self.last_error = text
        if lsn in self._known:
            return
        if len(self._known) < _KNOWN_MAX:
            self._known.add(lsn)
        self.errors += 1
        logger.warning("scrub of %s: %s", self._path, text)


def _open(path: Path, from_lsn: int) -> Any:
    handle = ffi.new("ls_reader **")
    code = lib.ls_reader_open(ffi.NULL, os.fsencode(path), from_lsn, handle)
    if code == lib.LS_RECYCLED:
        raise StoreLocked("the writer is faster than this reader can look; it tries again")
    if code != 0:
        raise failure(code)
    lib.ls_reader_past_cache(handle[0])
    return ffi.gc(handle[0], lib.ls_reader_close)


def _describe(reader: Any) -> ReaderInfo:
    return ReaderInfo.from_c(filled("ls_reader_info", lambda info: lib.ls_reader_describe(reader, info)))
