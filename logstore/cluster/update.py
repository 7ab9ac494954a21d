"""An update: a member's copy is brought up to date by whole segments, when batches alone cannot.

This is the core's ``ls_update_*`` in Python. :class:`Source` is the sender, beside the program that has the copy open;
:class:`Update` is the receiver, on a :class:`~logstore.cluster.replica.Copy`. A program moves the bytes, and the
catalog, between them. docs/replication.md explains what always holds.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from logstore import errors
from logstore._core import ffi, lib
from logstore.core import arguments
from logstore.core.native import check, failure
from logstore.holds import LASTS_S, LIMIT_BYTES, LIMIT_BYTES_MAX, LogRecycled

if TYPE_CHECKING:
    from types import TracebackType

    from logstore._core import ls_update_ptr, ls_update_source_ptr
    from logstore.cluster.replica import Copy

STEP_BYTES: Final = 16 << 20
LSN_MAX: Final = (1 << 63) - 1
LASTS_S_MAX: Final = lib.LS_HOLD_DAYS_MAX * 86_400


@dataclass(frozen=True, slots=True)
class Segment:
    """The part of a segment that belongs to an update."""

    first_lsn: int
    term: int
    prev_end_lsn: int
    """Where the log before it ends."""
    bytes: int
    """From the file's start."""
    checksum: int
    """XXH64 of these bytes, seed 0."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything that an update sends, except the catalog."""

    uuid: bytes
    """The store's UUID."""
    segment_size: int
    max_undurable_bytes: int
    created_us: int
    end_lsn: int
    """Where the log ends: the end of a batch that a majority has."""
    term: int
    index: int
    """Of that batch."""
    segments: tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a segment that the sender is asked for."""

    first_lsn: int
    offset: int
    bytes: int


def _raise(code: int) -> None:
    if code == lib.LS_RECYCLED:
        raise LogRecycled(str(failure(code)))
    check(code)


class Source:
    """The sender of an update. One thread at a time may use it; a context manager."""

    def __init__(self, source: ls_update_source_ptr) -> None:
        """As :meth:`open` makes it."""
        self._c: ls_update_source_ptr | None = source

    @classmethod
    def open(
        cls,
        store_dir: str | os.PathLike[str],
        name: str,
        *,
        limit_bytes: int = LIMIT_BYTES,
        expires_s: float = LASTS_S,
        applied_lsn: int = 0,
    ) -> Self | None:
        """Takes a hold of this name on the log in ``store_dir``; the hold keeps what is sent, and the log after it.

        The hold keeps at most ``limit_bytes`` in addition to what the store needs itself, and ends ``expires_s``
        seconds after the last call. ``applied_lsn`` is where the sender's catalog stands: an update begins at the
        smaller of this and the base. None if the durable part of the log does not say yet where it begins: try again
        later. Raises ``LogRecycled`` if the log at ``applied_lsn`` is gone, and the errors of
        :func:`logstore.holds.hold`.
        """
        path = arguments.path("store_dir", store_dir)
        limit = arguments.integer("limit_bytes", limit_bytes, 1, LIMIT_BYTES_MAX)
        lasts_us = round(1e6 * arguments.number("expires_s", expires_s, 0, LASTS_S_MAX, "seconds"))
        lsn = arguments.integer("applied_lsn", applied_lsn, 0, LSN_MAX)
        made = ffi.new("ls_update_source **")
        code = lib.ls_update_source_open(ffi.NULL, os.fsencode(path), name.encode(), limit, lasts_us, lsn, made)
        if code == lib.LS_WOULD_WAIT:
            return None
        _raise(code)
        return cls(made[0])

    def _usable(self) -> ls_update_source_ptr:
        if self._c is None:
            raise errors.StoreClosed("this sender is closed: open another one")
        return self._c

    def index(self) -> int:
        """The index of the last batch that is sent, known before all is read."""
        found = ffi.new("ls_update_manifest *")
        lib.ls_update_source_manifest(self._usable(), found, ffi.NULL, 0)
        return int(found.index)

    def step(self) -> bool:
        """Reads and verifies the next 16 MiB of the log; returns whether all is read.

        Raises ``LogRecycled`` or ``CorruptLog``.
        """
        code = lib.ls_update_source_step(self._usable(), STEP_BYTES)
        if code != lib.LS_END:
            _raise(code)
        return code == lib.LS_END

    def manifest(self) -> Manifest:
        """Reads and verifies the rest of the log, and returns the manifest. Raises as :meth:`step`."""
        while not self.step():
            pass
        found = ffi.new("ls_update_manifest *")
        check(lib.ls_update_source_manifest(self._usable(), found, ffi.NULL, 0))
        count = found.segment_count
        rows = ffi.new("ls_update_segment[]", count)
        check(lib.ls_update_source_manifest(self._usable(), found, rows, count))
        segments = (
            Segment(rows[i].first_lsn, rows[i].term, rows[i].prev_end_lsn, rows[i].bytes, rows[i].checksum)
            for i in range(count)
        )
        return Manifest(
            bytes(ffi.buffer(found.uuid)),
            found.segment_size,
            found.max_undurable_bytes,
            found.created_us,
            found.end_lsn,
            found.term,
            found.index,
            tuple(segments),
        )

    def members(self) -> tuple[int, bytes]:
        """The newest configuration in the part of the log that is sent, and the index of its batch.

        Call it after :meth:`manifest`.
        """
        index, config, size = ffi.new("uint64_t *"), ffi.new("uint8_t **"), ffi.new("size_t *")
        check(lib.ls_update_source_members(self._usable(), index, config, size))
        return int(index[0]), bytes(ffi.buffer(config[0], size[0]))

    def read(self, first_lsn: int, offset: int, size: int) -> bytes:
        """Bytes of a segment. Raises ``LogRecycled`` if the hold was lost: begin a new update."""
        into = bytearray(size)
        _raise(lib.ls_update_source_read(self._usable(), first_lsn, offset, ffi.from_buffer("uint8_t[]", into), size))
        return bytes(into)

    def keep(self, lsn: int = 0) -> None:
        """Lets the log below ``lsn`` go (0: nothing), and begins the time of the hold again.

        Raises ``LogRecycled``.
        """
        _raise(lib.ls_update_source_keep(self._usable(), arguments.integer("lsn", lsn, 0, LSN_MAX)))

    def close(self) -> None:
        """Releases the hold."""
        closing, self._c = self._c, None
        if closing is not None:
            lib.ls_update_source_close(closing)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_c", None) is not None:
            self.close()


class Update:
    """The receiver of an update; a context manager.

    A new one, and :meth:`finish`, use the copy, so they are for its thread. The other calls use the update alone, one
    thread at a time: the copy may take batches meanwhile.

    Until :meth:`finish` returns, the copy that the member has stays as it is. An update that is closed before leaves
    its files, which another one uses again as far as they agree.
    """

    def __init__(self, copy: Copy, manifest: Manifest) -> None:
        """Begins an update of a member whose copy follows, or that has none.

        Raises ``BatchRefused`` if the manifest contradicts itself, is of another store, or ends before what the member
        has; ``StoreFull`` if there is no room. In both cases nothing was written.
        """
        given = ffi.new("ls_update_manifest *")
        if len(manifest.uuid) != len(given.uuid):
            raise errors.OptionError(f"a store's UUID has {len(given.uuid)} bytes, not {len(manifest.uuid)}")
        ffi.memmove(given.uuid, manifest.uuid, len(manifest.uuid))
        given.segment_size, given.max_undurable_bytes = manifest.segment_size, manifest.max_undurable_bytes
        given.created_us, given.end_lsn = manifest.created_us, manifest.end_lsn
        given.term, given.index, given.segment_count = manifest.term, manifest.index, len(manifest.segments)
        rows = ffi.new(
            "ls_update_segment[]",
            [[one.first_lsn, one.term, one.prev_end_lsn, one.bytes, one.checksum] for one in manifest.segments],
        )
        made = ffi.new("ls_update **")
        self._copy = copy  # whose directory is in use
        check(lib.ls_update_begin(copy._member(), given, rows, made))
        self._c: ls_update_ptr | None = made[0]
        self.path = Path(os.fsdecode(ffi.string(lib.ls_update_path(self._c))))
        """The new copy's directory: the catalog is put there before :meth:`finish`."""

    def _usable(self) -> ls_update_ptr:
        if self._c is None:
            raise errors.StoreClosed("this update is closed: begin another one")
        return self._c

    def next(self) -> Part | None:
        """The part to ask the sender for next; None if everything is here.

        Segments that agree with the member's present copy are copied from there by this call.
        """
        part = ffi.new("ls_update_part *")
        while (code := lib.ls_update_next(self._usable(), part)) == 0 and part.bytes == 0:
            pass
        if code == lib.LS_END:
            return None
        check(code)
        return Part(part.first_lsn, part.offset, part.bytes)

    def write(self, first_lsn: int, offset: int, data: bytes) -> None:
        """Takes bytes from the beginning of the part that was asked for.

        Raises ``BatchRefused`` if it is something else, or if the segment is whole now and differs from the manifest:
        then it is asked for again.
        """
        given = ffi.from_buffer("uint8_t[]", data)
        check(lib.ls_update_write(self._usable(), first_lsn, offset, given, len(data)))

    def finish(self) -> None:
        """Forces everything, opens the new copy, and lets ``VOTE`` name it; the previous copy is removed.

        Raises ``BatchRefused`` if something is missing, and ``CorruptLog`` if the log does not end where the manifest
        says; then the copy from before counts. After ``OutcomeUnknown`` only the next open of the member finds out.
        """
        check(lib.ls_update_finish(self._usable()))
        self._copy._follow_catalog()

    def close(self) -> None:
        """Ends the update."""
        closing, self._c = self._c, None
        if closing is not None:
            lib.ls_update_free(closing)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_c", None) is not None:
            self.close()
