"""One copy of a replicated store: :class:`Copy` follows, :class:`LeadingStore` leads.

This is the core's ``ls_replica_*`` in Python, without a network and without consensus: a program moves the batches from
the copy that leads to those that follow, says what a majority has forced, and decides which copy leads in which term.
docs/replication.md explains what each step promises.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from logstore import errors
from logstore._core import ffi, lib
from logstore.core import arguments
from logstore.core.native import check, copied
from logstore.store.message_store import MessageStore

if TYPE_CHECKING:
    from types import TracebackType

    from logstore._core import ls_replica_ptr

HEADER_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class Batch:
    """What one group commit of the leader wrote, as every copy has it."""

    term: int
    index: int
    """Its number since replication began."""
    lsn: int
    end_lsn: int
    first_lsn: int
    """The first LSN of its segment."""
    known_durable_lsn: int
    """Everything below it was known to be on a majority's disks."""
    header: bytes | None
    """The header of its segment, if it is the segment's first batch."""
    data: bytes


@dataclass(frozen=True, slots=True)
class CopyInfo:
    """Where a copy stands. Numbers are 0 while the log is not replicated."""

    term: int
    index: int
    end_lsn: int
    """Everything below it is forced on this copy's disk."""
    applied_index: int
    applied_lsn: int
    """Everything below it is durable, and in this copy's table."""
    durable_lsn: int
    base_lsn: int
    least_term: int
    """The least term in which this copy may lead."""
    messages: int
    stats: dict[str, int]


class Copy:
    """A copy that follows. One thread at a time may use it; a context manager."""

    def __init__(self, store_dir: str | os.PathLike[str], *, max_write_buffers: int = 10) -> None:
        """Opens the copy in ``store_dir``, whose store must exist, and forces its tail again.

        Raises ``NotAStore``, ``StoreLocked``, ``CorruptLog`` or ``VersionError``, as :func:`logstore.open` does.
        """
        self.path = Path(arguments.path("store_dir", store_dir))
        self._options = ffi.new("ls_options *")
        lib.ls_options_default(self._options)
        self._options.create = False
        self._options.max_write_buffers = arguments.integer("max_write_buffers", max_write_buffers, 2, 64)
        made = ffi.new("ls_replica **")
        check(lib.ls_replica_open(ffi.NULL, os.fsencode(self.path), self._options, made))
        self._c: ls_replica_ptr | None = made[0]

    def _usable(self) -> ls_replica_ptr:
        if self._c is None:
            raise errors.StoreClosed("this copy follows no longer: open it again")
        return self._c

    def take(self, batch: Batch) -> None:
        """Takes the next batch: it is checked as recovery would check it, written, and forced when this returns.

        Raises ``BatchRefused`` if it does not follow from what the copy has; then nothing was written. After a failed
        write every call raises ``StorePoisoned``: close the copy and open it again.
        """
        data = ffi.from_buffer("uint8_t[]", batch.data)
        header = ffi.NULL if batch.header is None else ffi.from_buffer("uint8_t[]", batch.header)
        if len(batch.data) != batch.end_lsn - batch.lsn:
            raise errors.BatchRefused(
                f"batch {batch.index} of term {batch.term} at LSN {batch.lsn} has {len(batch.data)} bytes, "
                f"and not those up to LSN {batch.end_lsn}. Nothing was written"
            )
        if batch.header is not None and len(batch.header) != HEADER_BYTES:
            raise errors.BatchRefused(f"a segment's header has {HEADER_BYTES} bytes, not {len(batch.header)}")
        numbers = batch.term, batch.index, batch.lsn, batch.end_lsn, batch.first_lsn, batch.known_durable_lsn
        given = ffi.new("ls_replica_batch *", [*numbers, header, data])
        check(lib.ls_replica_take(self._usable(), given))

    def cut(self, index: int) -> None:
        """Abandons everything above this index. Raises ``BatchRefused`` if some of that is durable."""
        check(lib.ls_replica_cut(self._usable(), index))

    def durable(self, lsn: int) -> None:
        """A majority has everything below ``lsn``, the end of a batch: that is applied.

        Raises ``BatchRefused`` if it lies beyond the end of this copy.
        """
        check(lib.ls_replica_durable(self._usable(), lsn))

    def checkpoint(self) -> bool:
        """Writes a checkpoint of the applied table; whether one can be taken at this moment."""
        taken = ffi.new("int *")
        check(lib.ls_replica_checkpoint(self._usable(), taken))
        return bool(taken[0])

    def begin_checkpoint(self) -> bool:
        """Begins a checkpoint of the applied table; a thread of the copy writes it while batches are taken.

        False: none can be taken at this moment, or one is being taken.
        """
        begun = ffi.new("int *")
        check(lib.ls_replica_checkpoint_begin(self._usable(), begun))
        return bool(begun[0])

    def checkpoint_ended(self) -> bool:
        """Whether no checkpoint is being taken any more.

        Raises ``StoreFull`` or ``StoreError``, once, if the one that was taken could not be written.
        """
        ended = ffi.new("int *")
        check(lib.ls_replica_checkpoint_ended(self._usable(), ended))
        return bool(ended[0])

    def info(self) -> CopyInfo:
        """Where the copy stands."""
        found = ffi.new("ls_replica_info *")
        lib.ls_replica_describe(self._usable(), found)
        values = vars(copied(found[0]))
        return CopyInfo(**values | {"stats": vars(values["stats"])})

    def lead(self, term: int, config: bytes | None = None) -> LeadingStore:
        """Leads in this term; the copy follows no longer.

        ``config`` is the configuration with which replication begins, for a log that is not replicated yet. The
        store serves once :meth:`LeadingStore.serve` says so. Raises ``OptionError`` for a term below ``least_term``;
        after any other failure the copy can only be closed.
        """
        made = ffi.new("ls_store **")
        given = ffi.NULL if config is None else ffi.from_buffer("uint8_t[]", config)
        size = 0 if config is None else len(config)
        check(lib.ls_replica_lead(self._usable(), term, given, size, made))
        self._c = None
        return LeadingStore(self.path, self._options, made[0])

    def detach(self, highest_term: int = 0) -> None:
        """Makes the copy a single store, which :func:`logstore.open` opens, with all that it has.

        That includes what no majority had. ``highest_term`` is the highest term that the program knows of. Raises
        ``OptionError`` if the store is not replicated; after any other failure the copy can only be closed.
        """
        check(lib.ls_replica_detach(self._usable(), highest_term))
        self._c = None

    def close(self) -> None:
        """Follows no longer. What was taken stays on the disk."""
        closing, self._c = self._c, None
        if closing is not None:
            lib.ls_replica_free(closing)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_c", None) is not None:
            self.close()


class LeadingStore:
    """The copy that leads: its batches are taken with :meth:`next`, and the store serves after :meth:`serve`."""

    def __init__(self, path: Path, options: Any, made: Any) -> None:
        self.path = path
        self._options = options
        self._made = made
        self._store: MessageStore | None = None

    def next(self) -> Batch | None:
        """The next batch that was handed out, or None. It is not forced here yet; see :attr:`forced`."""
        found = ffi.new("ls_replica_batch *")
        code = lib.ls_replica_next(self._made, found)
        if code == lib.LS_END:
            return None
        check(code)
        header = None if found.header == ffi.NULL else bytes(ffi.buffer(found.header, HEADER_BYTES))
        data = bytes(ffi.buffer(found.bytes, found.end_lsn - found.lsn))
        numbers = found.term, found.index, found.lsn, found.end_lsn, found.first_lsn, found.known_durable_lsn
        return Batch(*numbers, header, data)

    @property
    def forced(self) -> int:
        """The index up to which batches are forced on this copy's disk."""
        return int(lib.ls_replica_forced(self._made))

    def fileno(self) -> int:
        """An eventfd that is signalled when a batch was handed out, and when one was forced here."""
        return int(lib.ls_replica_event_fd(self._made))

    def majority_has(self, lsn: int) -> None:
        """A majority has forced everything below ``lsn``. Raises ``BatchRefused`` beyond what :meth:`next` gave."""
        check(lib.ls_replica_majority_has(self._made, lsn))

    def change_members(self, config: bytes) -> int:
        """Writes a new configuration, alone in its batch; the batch's index."""
        index = ffi.new("uint64_t *")
        check(lib.ls_replica_change_members(self._made, ffi.from_buffer("uint8_t[]", config), len(config), index))
        return int(index[0])

    def serve(self) -> MessageStore | None:
        """The store, or None while the term's first batch is not durable.

        Another thread has to move the batches meanwhile.
        """
        if self._store is None and lib.ls_replica_leads(self._made):
            self._store = _LedStore(self)
        return self._store

    def cease(self) -> None:
        """Leads no longer: calls that wait raise ``OutcomeUnknown``. Then :class:`Copy` may open the directory."""
        check(lib.ls_replica_cease(self._made))
        if self._store is None:
            lib.ls_free(self._made)
        else:
            self._store.close()
        self._made = None


class _LedStore(MessageStore):
    """The store of a copy that leads already."""

    def __init__(self, leading: LeadingStore) -> None:
        self._led = leading
        super().__init__(leading.path, leading._options)

    def _open_core(self, options: Any, made: Any) -> int:  # noqa: ARG002 - as in MessageStore
        made[0] = self._led._made
        return 0

    def _serve_core(self, queue_ids: list[int], next_queue_id: int) -> int:
        return int(lib.ls_replica_serve(self._c, queue_ids, len(queue_ids), next_queue_id))
