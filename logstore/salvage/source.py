"""The files of a damaged store: which are segments of one log, their epochs, and where each segment's part ends.

It must never write in the store's directory, or trust a number that no checksum covers. If META is damaged, any
segment's header replaces it; if a header is damaged, the segment's batch records replace it.

Invariant: nothing at or above a segment's ``cut_lsn`` is part of the log (section 1 of docs/format.md). A block that
the disk cannot read is replaced by zeros and counted, and is damage like any other.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

from logstore.codec.files import (
    BLOCK_BYTES,
    SEGMENT_HEADER_BYTES,
    SEGMENT_SIZE_MAX,
    SEGMENT_SIZE_MIN,
    Closed,
    Hint,
    Mark,
    Meta,
    SegmentHeader,
)
from logstore.codec.records import InvalidRecord, NewerVersion, segment_seed
from logstore.codec.scan import clear_epochs, readable_records
from logstore.core.lock_holder import store_locked
from logstore.core.regular_files import lock_regular, naming, open_regular, read_start, told
from logstore.errors import NotAStore, StoreError, VersionError

if TYPE_CHECKING:
    from types import TracebackType
    from uuid import UUID

    from logstore.codec.bodies import Batch

_NAME = re.compile(r"[0-9a-f]{16}\.seg")
_READ_BYTES = 1 << 20
EPOCHS_TRIED = 4096  # for a segment without a readable header or batch record
UNKNOWN_GAP_BYTES = 1 << 40  # range of ids above the log that may be in use if META is lost: more than memory can hold


B = TypeVar("B", Meta, Hint, Closed)


@dataclass(slots=True)
class SegmentFile:
    """One file with the name of a segment."""

    first_lsn: int
    size: int  # bytes
    header: SegmentHeader | None
    why: str  # the reason why the header is not valid
    epoch: int = 0  # 0: not known, or a spare
    cut_lsn: int | None = None  # the end of its part of the log, if a later header gives it
    in_log: bool = False
    unreadable: set[int] = field(default_factory=set)  # offsets of blocks that the disk could not read

    @property
    def name(self) -> str:
        """The file's name."""
        return f"{self.first_lsn:016x}.seg"


class Source:
    """A store's directory, read only. A context manager: no writer can open the store until it ends.

    Raises ``NotAStore`` if no file identifies the store, ``StoreLocked`` while a writer runs, ``VersionError`` for a
    later version of the format.
    """

    def __init__(self, store_dir: str | os.PathLike[str]) -> None:
        self.path = Path(store_dir)
        self._lock = -1
        self._open_file = -1
        self._open_lsn = -1
        self.notes: list[str] = []  # remarks about files, for the report
        try:
            self._directory = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            kind = NotAStore if error.errno in (errno.ENOENT, errno.ENOTDIR) else StoreError
            raise kind(f"the store directory {self.path} cannot be opened: {error.strerror}") from error
        try:
            self._look_for_writer()
            self._identify()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the files. A second call does nothing."""
        for name in ("_open_file", "_lock", "_directory"):
            descriptor = getattr(self, name, -1)
            if descriptor >= 0:
                os.close(descriptor)
                setattr(self, name, -1)
        self._open_lsn = -1

    def _look_for_writer(self) -> None:
        """Takes a shared lock on the file that a writer locks: other readers can take it too, a writer cannot."""
        try:
            self._lock = lock_regular("LOCK", fcntl.LOCK_SH, dir_fd=self._directory)
        except BlockingIOError:
            raise store_locked(self.path, "close it there first, or salvage a copy") from None
        except FileNotFoundError:
            return  # a copy without LOCK that was never opened here
        except OSError as error:
            self.notes.append(f"LOCK cannot be looked at ({error.strerror}): make sure that nothing has the store open")

    # ---- Which store it is

    def _small(self, name: str, size: int) -> bytes:
        try:
            return read_start(name, size, dir_fd=self._directory)[0]
        except FileNotFoundError:
            return b""
        except OSError as error:
            self.notes.append(f"{name} cannot be read: {error.strerror}")
            return b""

    def _block(self, kind: type[B], name: str) -> B | None:
        raw = self._small(name, kind.BYTES)
        try:
            return kind.decode(raw) if raw else None
        except NewerVersion as error:
            raise VersionError(f"{self.path}: {name}: {error.reason}; use a newer logstore") from None
        except InvalidRecord as error:
            self.notes.append(f"{name} is damaged: {error.reason}")
            return None

    def _marks(self) -> list[Mark]:
        """The valid slots of MARK. A damaged one counts for nothing, as at an open."""
        raw, marks = self._small("MARK", 2 * Mark.BYTES), []
        for at in range(0, len(raw), Mark.BYTES):
            with contextlib.suppress(InvalidRecord):
                marks.append(Mark.decode(raw[at : at + Mark.BYTES]))
        return marks

    def _is_in_one_segment(self, mark: Mark) -> bool:
        return not mark.to_lsn or mark.from_lsn // self.segment_size == (mark.to_lsn - 1) // self.segment_size

    def forced_by(self, lsn: int, batch: Batch) -> int:
        """Below this LSN everything was forced once, as a batch record at ``lsn`` says; under a mark it says less."""
        mark = self.mark
        if mark is not None and mark.from_lsn <= lsn < mark.to_lsn:
            return min(batch.durable_lsn, mark.from_lsn)
        return batch.durable_lsn

    def _identify(self) -> None:
        meta = self._block(Meta, "META") or self._block(Meta, "META.new")
        self.hint = self._block(Hint, "HINT")
        self.closed = self._block(Closed, "CLOSED")
        marks = self._marks()
        self.files = self._list()
        headers = [one.header for one in self.files if one.header is not None]
        told = Counter(header.uuid for header in headers)
        if meta is not None and (not told or meta.uuid in told):
            self.uuid = meta.uuid
        elif told:
            self.uuid = told.most_common(1)[0][0]
            if meta is not None:
                self.notes.append(f"META belongs to the store {meta.uuid}, and the segments to {self.uuid}")
            else:
                self.notes.append("META cannot be read: the segments' headers say which store it is")
            meta = None
        else:
            self.uuid = self._last_word()
            meta = None
        headers = [header for header in headers if header.uuid == self.uuid]
        self.segment_size = meta.segment_size if meta is not None else self._size_told(headers)
        self.max_undurable_bytes = meta.max_undurable_bytes if meta is not None else 2 * self.segment_size
        self.gap_bytes = self.max_undurable_bytes if meta is not None else UNKNOWN_GAP_BYTES
        if self.hint is not None and self.hint.uuid != self.uuid:
            self.notes.append(f"HINT belongs to the store {self.hint.uuid}")
            self.hint = None
        if self.closed is not None and self.closed.uuid != self.uuid:
            self.notes.append(f"CLOSED belongs to the store {self.closed.uuid}")
            self.closed = None
        self.mark = max(
            (mark for mark in marks if mark.uuid == self.uuid and self._is_in_one_segment(mark)),
            key=lambda mark: mark.sequence,
            default=None,
        )
        self._judge_headers()
        self._find_cuts()
        self._find_epochs()

    def _last_word(self) -> UUID:
        """The UUID from HINT or CLOSED, if neither META nor a header has it."""
        for block in (self.closed, self.hint):
            if block is not None:
                self.notes.append("neither META nor any segment's header can be read: HINT or CLOSED say which store")
                return block.uuid
        raise NotAStore(
            f"{self.path} has no META, and no segment with a header, and neither HINT nor CLOSED, that could be read: "
            "nothing identifies the store, and without its UUID no record can be verified. Restore META, or "
            "any file of the same store, from a backup"
        )

    def _size_told(self, headers: list[SegmentHeader]) -> int:
        sizes = Counter(header.segment_size for header in headers) or Counter(
            one.size
            for one in self.files
            if SEGMENT_SIZE_MIN <= one.size <= SEGMENT_SIZE_MAX and one.size % BLOCK_BYTES == 0
        )
        if not sizes:
            raise NotAStore(f"{self.path} has no segment file of a size that a segment can have: there is nothing left")
        return sizes.most_common(1)[0][0]

    # ---- Segments

    def _statuses(self) -> list[tuple[str, os.stat_result]]:
        """Every file with the name of a segment, in order."""
        try:
            with naming(self.path):
                names = [name for name in sorted(os.listdir(self._directory)) if _NAME.fullmatch(name) is not None]
            return [(name, os.stat(name, dir_fd=self._directory, follow_symlinks=False)) for name in names]
        except OSError as error:
            raise StoreError(f"{self.path} cannot be read ({told(error)}); see to the disk") from error

    def _list(self) -> list[SegmentFile]:
        found = []
        for name, status in self._statuses():
            first_lsn = int(name[:16], 16)
            if not stat.S_ISREG(status.st_mode):
                self.notes.append(f"{name} is not a regular file")
                continue
            one = SegmentFile(first_lsn, status.st_size, None, "")
            try:
                one.header = SegmentHeader.decode(self.read(one, 0, SEGMENT_HEADER_BYTES))
            except NewerVersion as error:
                raise VersionError(f"{self.path}: segment {name}: {error.reason}; use a newer logstore") from None
            except InvalidRecord as error:
                one.why = error.reason
            found.append(one)
        return found

    def _judge_headers(self) -> None:
        """Accepts a header only if it belongs to this store and position; a recycled file's old header does not."""
        kept = []
        for one in self.files:
            header = one.header
            if one.first_lsn % self.segment_size or not one.first_lsn:
                self.notes.append(f"{one.name} is no name of a segment of {self.segment_size} bytes")
                continue
            kept.append(one)
            if header is None:
                continue
            if header.uuid != self.uuid or header.first_lsn != one.first_lsn:
                one.header, one.why = None, "it is the header of another segment"
            elif header.segment_size != self.segment_size:
                one.header, one.why = None, f"it is of segments of {header.segment_size} bytes"
            else:
                one.epoch, one.in_log = header.epoch, True
        self.files = kept

    def _find_cuts(self) -> None:
        """Sets where each segment's part of the log ends, from the header of the next one."""
        for i, later in enumerate(self.files):
            if later.header is None or later.header.prev_end_lsn == 0:
                continue
            end = later.header.prev_end_lsn
            for one in (self.files[k] for k in range(i - 1, -1, -1)):
                if one.first_lsn + self.segment_size <= end:
                    break
                one.cut_lsn = end if one.cut_lsn is None else min(one.cut_lsn, end)
        for one in self.files:
            if one.cut_lsn is not None and one.cut_lsn <= one.first_lsn + SEGMENT_HEADER_BYTES:
                one.in_log = False  # a crash came before its first batch, or the log continued elsewhere

    def _find_epochs(self) -> None:
        """Finds the epochs of segments without a valid header: from their batch records, or by trying."""
        for i, one in enumerate(self.files):
            cut_away = one.cut_lsn is not None and one.cut_lsn <= one.first_lsn + SEGMENT_HEADER_BYTES
            if one.header is not None or cut_away:
                continue
            raw = self.segment(one)
            said = clear_epochs(raw, self.uuid, one.first_lsn)
            if said:
                one.epoch = said.most_common(1)[0][0]
            else:
                one.epoch = self._fitting_epoch(raw, one.first_lsn, i)
            one.in_log = one.epoch != 0

    def _fitting_epoch(self, raw: bytes, first_lsn: int, index: int) -> int:
        """Tries the epochs between those of the neighbours, because epochs grow with the LSNs."""
        before = [one.epoch for one in self.files[:index] if one.epoch]
        behind = [one.epoch for one in self.files[index + 1 :] if one.epoch]
        low = max(before, default=1)
        high = min(behind, default=low + 1)
        for epoch in range(low, min(high, low + EPOCHS_TRIED) + 1):
            if readable_records(raw, first_lsn, segment_seed(self.uuid, first_lsn, epoch)):
                return epoch
        return 0

    # ---- Bytes

    def read(self, one: SegmentFile, offset: int, size: int) -> bytes:
        """These bytes of a segment, as many as the file has; zeros replace blocks that the disk cannot read."""
        if self._open_lsn != one.first_lsn:
            if self._open_file >= 0:
                os.close(self._open_file)
                self._open_file, self._open_lsn = -1, -1
            try:
                self._open_file = open_regular(one.name, dir_fd=self._directory)
            except OSError as error:
                raise self._unread(one, error) from error
            self._open_lsn = one.first_lsn
        parts = []
        while size > 0:
            want = min(size, _READ_BYTES)
            part = self._read_part(one, offset, want)
            if not part:
                break
            parts.append(part)
            offset += len(part)
            size -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _read_part(self, one: SegmentFile, offset: int, size: int) -> bytes:
        try:
            return os.pread(self._open_file, size, offset)
        except OSError as error:
            if error.errno != errno.EIO:
                raise self._unread(one, error) from error
        block = offset - offset % BLOCK_BYTES
        size = min(size, block + BLOCK_BYTES - offset, max(one.size - offset, 0))
        try:
            return os.pread(self._open_file, size, offset)
        except OSError as error:
            if error.errno != errno.EIO:
                raise self._unread(one, error) from error
        one.unreadable.add(block)
        return bytes(size)

    def _unread(self, one: SegmentFile, error: OSError) -> StoreError:
        return StoreError(
            f"{self.path / one.name} cannot be read: {error.strerror}; see to the disk and the permissions, so that "
            "readable records are not reported as lost"
        )

    def segment(self, one: SegmentFile) -> bytes:
        """The whole file, up to the size of a segment."""
        return self.read(one, 0, min(one.size, self.segment_size))
