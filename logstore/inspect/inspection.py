"""The state of a store's log, replayed by the core without opening the store, even while a writer runs.

It must never take the store's lock, create or change a file in the store, or delay a writer.

Invariant: while a writer runs, the state is that of one moment at which all of it was durable, with the writer's open
transactions and staged messages. After a close or a crash it is the state that an open would restore. LSNs, ids and
sizes (bytes) are plain ints, times are µs since 1970.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from logstore._core import ffi, lib
from logstore.core import arguments
from logstore.core.native import check, failure, filled, listed, number, owned, places_of
from logstore.core.reports import Recovery, SegmentLife
from logstore.core.xid import Xid, xid_from_c
from logstore.errors import StoreClosed
from logstore.holds import LogRecycled
from logstore.inspect.reader import ReaderInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import TracebackType

    from logstore._core import ls_store_ptr
    from logstore._hot import Owner

__all__ = ["Inspection", "OpenTransaction", "OwnBytes", "Pace", "PlaceLife", "QueueLife", "Work"]

STEP_BYTES: Final = 4 << 20  # bytes read between two checks of the clock and of Ctrl-C
STEP_BYTES_MIN: Final = 64 << 10
STEPS_PER_S: Final = 8
RATE_MAX: Final = 1e15  # bytes a second
PLACES_AT_ONCE: Final = 4096
BAD_CHECKPOINTS: Final = frozenset(
    {
        lib.LS_CHECKPOINT_DAMAGED,
        lib.LS_CHECKPOINT_NEWER,
        lib.LS_CHECKPOINT_FOREIGN,
        lib.LS_CHECKPOINT_CONTRADICTS,
        lib.LS_CHECKPOINT_UNREADABLE,
    }
)
STATES: Final = {lib.LS_TX_ACTIVE: "active", lib.LS_TX_ENDED: "ended", lib.LS_TX_PREPARED: "prepared"}


class Pace:
    """Limits reading to a rate in bytes per second, without making up for slower times before; None: no limit."""

    def __init__(
        self,
        rate: float | None,
        *,
        wait: Callable[[float], object] = time.sleep,
        now: Callable[[], float] | None = None,
    ) -> None:
        rate = arguments.optional(arguments.number, "rate", rate, 0, RATE_MAX, "bytes a second")
        arguments.function("wait", wait)
        arguments.optional(arguments.function, "now", now)
        self.step_bytes = STEP_BYTES
        if rate is not None:
            self.step_bytes = int(min(max(rate / STEPS_PER_S, STEP_BYTES_MIN), STEP_BYTES))
        self._rate = rate
        self._wait = wait
        self._now = time.monotonic if now is None else now
        self._due = self._now()

    def spend(self, size: int) -> None:
        """Notes that this number of bytes was read, and waits until the next bytes may be read."""
        arguments.integer("size", size, 0, arguments.LSN_MAX)
        if self._rate is None:
            return
        now = self._now()
        self._due = max(self._due, now - 1 / STEPS_PER_S) + size / self._rate
        if self._due > now:
            self._wait(self._due - now)


@dataclass(frozen=True, slots=True)
class QueueLife:
    """The state of one queue. The log knows no names, and no queues without places."""

    id: int
    deleted: bool
    """The log says that it was deleted; it has no places."""
    depth: int
    """Visible places."""
    locked: int
    """Of these, places that a transaction without an outcome has dequeued."""
    content_bytes: int
    """Of all places."""
    ready_bytes: int
    """Content bytes of the ready places."""
    hidden: int = 0
    """Places that are not offered before a time that has not come, and are not locked."""
    expired: int = 0
    """Places past the time at which they expire, and not locked."""

    @property
    def ready(self) -> int:
        """Places that are not locked, hidden or expired; a log does not know what consumers have acquired."""
        return self.depth - self.locked - self.hidden - self.expired


@dataclass(frozen=True, order=True, slots=True)
class OwnBytes:
    """Where a note or a header of a place lies: bytes inside a record of the log."""

    lsn: int
    """Of the record."""
    at: int
    """Where they begin in it."""
    size: int


@dataclass(frozen=True, slots=True)
class PlaceLife:
    """A place of a message: one queue that it is on."""

    queue_id: int
    locked: bool
    """A transaction without an outcome has dequeued it."""
    hidden: bool
    """It is not offered before ``not_before_us``, which has not come."""
    expired: bool
    """``expires_us`` has passed."""
    delivery_count: int
    """That the log has; a running writer may know of more deliveries."""
    not_before_us: int
    """0: no such time."""
    expires_us: int
    """0: no such time."""
    note: OwnBytes | None
    header: OwnBytes | None
    """Of its own, perhaps of no bytes; None: the message's header."""

    @classmethod
    def _from_c(cls, one: Any) -> Self:
        return cls(
            one.queue_id,
            bool(one.locked),
            bool(one.hidden),
            bool(one.expired),
            one.delivery_count,
            one.times.not_before_us,
            one.times.expires_us,
            _own(one.note),
            _own(one.header),
        )


def _own(one: Any) -> OwnBytes | None:
    return OwnBytes(one.lsn, one.at, one.bytes) if one.lsn else None


@dataclass(frozen=True, slots=True)
class Work:
    """One operation of an open transaction; it takes effect at the commit."""

    message_id: int
    lsn: int
    """LSN of its record."""
    queue_id: int
    enqueues: bool
    """True for an enqueue, false for a dequeue."""
    order_index: int
    """Of an enqueue, within its transaction."""
    locks: bool
    """True if it locks a visible place."""


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction without an outcome."""

    id: int
    start_lsn: int
    """LSN of its start record, or of its newest relocation."""
    xid: Xid | None
    """``None`` for a local transaction."""
    state: str
    """``active``, ``ended`` or ``prepared``."""
    started_us: int
    """0: not known."""
    prepared_us: int
    """0: not prepared."""
    work: tuple[Work, ...]

    @property
    def prepared(self) -> bool:
        """Whether only an outcome from outside can end it."""
        return self.state == "prepared"


class Inspection:
    """A replay of the store in ``store_dir``. A context manager; one thread at a time uses it.

    :meth:`read` reads the log; the other methods return the result. A checkpoint is used as an open would use it,
    unless it is disabled. With ``checked`` the parts that no replay needs are verified as well: back-links, what
    batches say of earlier batches, footers. ``direct`` bypasses the page cache if the file system can: it reads from
    the disk itself and evicts no other pages.

    Raises the errors of :class:`~logstore.inspect.Reader`.
    """

    def __init__(
        self,
        store_dir: str | os.PathLike[str],
        *,
        checked: bool = False,
        checkpoint: bool = True,
        direct: bool = False,
    ) -> None:
        self.path = arguments.path("store_dir", store_dir)
        self._flags = (lib.LS_INSPECT_CHECK if checked else 0) | (lib.LS_INSPECT_DIRECT if direct else 0)
        self._owner: Owner | None = None
        self._handle: ls_store_ptr | None = None
        self._open(0 if checkpoint else lib.LS_INSPECT_NO_CHECKPOINT)

    def _open(self, flags: int) -> None:
        self._owner, made = owned("store")
        self._check(lib.ls_inspect_open(ffi.NULL, os.fsencode(self.path), self._flags | flags, made))
        self._handle = made[0]
        self.info = ReaderInfo._from_c(filled("ls_inspection", self._describe).log)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Releases files and memory. A second call does nothing."""
        self._handle = None
        if self._owner is not None:
            self._owner.free()

    @property
    def _c(self) -> ls_store_ptr:
        if self._handle is None:
            raise StoreClosed("this inspection is closed: make another one")
        return self._handle

    @property
    def handle(self) -> ls_store_ptr:
        """The core's ``ls_store``, for other readers of the core."""
        return self._c

    def _check(self, code: int) -> None:
        if code == lib.LS_RECYCLED:
            raise LogRecycled(
                f"the writer of {self.path} reused a segment before it was read; nothing is wrong with the log: run "
                "this again, or at a quieter time"
            )
        check(code)

    def _describe(self, found: Any) -> None:
        lib.ls_inspect_describe(self._c, found)

    def _number(self, name: str) -> int:
        return number("ls_inspection", self._describe, name)

    def read(self, show: Callable[[int], object] = lambda _: None, *, rate: float | None = None) -> None:
        """Reads the log to its end, at most ``rate`` bytes per second; ``show`` is called with the bytes read so far.

        Raises ``CorruptLog`` if the log is damaged or contradicts itself, ``VersionError``,
        :class:`~logstore.inspect.LogRecycled` if a writer reused a segment before it was read.
        """
        arguments.function("show", show)
        code = self._read(show, Pace(rate))
        if code == lib.LS_CORRUPT and self.recovery.checkpoint_used:
            self.close()
            self._open(lib.LS_INSPECT_NO_CHECKPOINT)  # it may be at fault; as in an open, the log alone decides
            code = self._read(show, Pace(rate))
        if code != lib.LS_END:
            if code == lib.LS_RECYCLED:
                self._check(code)
            raise failure(code)

    def _read(self, show: Callable[[int], object], pace: Pace) -> int:
        lsn, before, base = ffi.new("uint64_t *"), self.bytes_read, self.info.base_lsn
        while (code := int(lib.ls_inspect_step(self._c, pace.step_bytes, lsn))) == 0:
            show(lsn[0] - base)
            done = self.bytes_read
            pace.spend(done - before)  # not the LSNs, which jump with each term
            before = done
        show(lsn[0] - base)
        return code

    @property
    def checkpoint_is_bad(self) -> bool:
        """Whether a checkpoint exists that is damaged or belongs to another store.

        A checkpoint that the base has passed, or that is newer than the replayed log, is not bad.
        """
        state = number("ls_recovery", lambda report: lib.ls_recovery_report(self._c, report), "checkpoint_state")
        return state in BAD_CHECKPOINTS

    def _differs_from(self, other: Inspection) -> str | None:
        """The difference between this state, from a checkpoint, and one from the log alone; both read to the end."""
        found = filled("ls_checkpoint_difference", lambda into: lib.ls_checkpoint_compare(self._c, other._c, into))
        if not found.differs:
            return None
        of = f" of {found.id}" if found.id else f" of queue {found.queue_id}" if found.queue_id else ""
        return f"{found.text.decode('utf-8', 'replace')}{of}"

    # ---- The result

    def _drop_queues(self, queue_ids: Iterable[int], next_queue_id: int) -> None:
        """Compares with the ids of the catalog's queues, as an open does. Raises ``CatalogMismatch``."""
        ids = list(queue_ids)
        check(lib.ls_inspect_catalog(self._c, ffi.new("uint32_t[]", ids), len(ids), next_queue_id))

    @property
    def recovery(self) -> Recovery:
        """The report of an open, without the times, the bytes it would write, and its epoch."""
        return Recovery._of(self._c)

    @property
    def bytes_read(self) -> int:
        """Bytes read from the segments."""
        return self._number("bytes_read")

    @property
    def footers(self) -> int:
        """The number of footers that were compared with their segments."""
        return self._number("footers")

    @property
    def staged(self) -> int:
        """The number of messages that were never enqueued, not even by an open transaction."""
        return self._number("staged")

    @property
    def stated(self) -> int:
        """The number of places with a count, a time, a note or a header of their own."""
        return self._number("stated")

    @property
    def queue_id_max(self) -> int:
        """The largest queue id that any record names."""
        return self._number("queue_id_max")

    def queues(self) -> list[QueueLife]:
        """The queues that the log knows, by id."""
        found = listed("ls_queue_info", lambda *into: lib.ls_inspect_queues(self._c, *into))
        made = [
            QueueLife(
                one.id,
                bool(one.deleted),
                one.depth,
                one.locked,
                one.content_bytes,
                one.ready_bytes,
                one.hidden,
                one.expired,
            )
            for one in found
        ]
        return sorted(made, key=lambda one: one.id)

    def transactions(self) -> list[OpenTransaction]:
        """The transactions without an outcome, by id: all of them while a writer runs, otherwise those in doubt."""
        found = listed("ls_open_tx", lambda *into: lib.ls_inspect_transactions(self._c, *into))
        made = [
            OpenTransaction(
                one.id,
                one.start_lsn,
                xid_from_c(one.xid) if one.distributed else None,
                STATES[one.state],
                one.started_us,
                one.prepared_us,
                self._work(one.id),
            )
            for one in found
        ]
        return sorted(made, key=lambda one: one.id)

    def _work(self, tx_id: int) -> tuple[Work, ...]:
        found = listed("ls_open_work", lambda *into: lib.ls_inspect_work(self._c, tx_id, *into))
        return tuple(
            Work(one.message_id, one.lsn, one.queue_id, bool(one.enqueues), one.order_index, bool(one.locks))
            for one in found
        )

    def whereabouts(self, message_id: int) -> tuple[int, list[PlaceLife]]:
        """The LSN of a message's start record or its newest copy, and its places.

        Raises ``UnknownMessage`` unless the message is live.
        """
        message_id = arguments.integer("message_id", message_id, 0, arguments.LSN_MAX)
        lsn = ffi.new("uint64_t *")
        found = listed("ls_message_place", lambda *into: lib.ls_inspect_places(self._c, message_id, lsn, *into))
        return int(lsn[0]), [PlaceLife._from_c(one) for one in found]

    def content_bytes(self, message_id: int) -> int:
        """The size of a message's content in bytes. Raises ``UnknownMessage`` unless the message is live."""
        key = arguments.integer("message_id", message_id, 0, arguments.LSN_MAX)
        return number("ls_message_info", lambda info: lib.ls_message(self._c, key, info), "content_bytes")

    def places(self, queue_id: int) -> Iterator[tuple[int, bool]]:
        """The messages on a queue in order: id, and whether a transaction locks it. Raises ``UnknownQueue``."""
        queue_id = arguments.integer("queue_id", queue_id, 0, (1 << 32) - 1)
        owner, made = owned("cursor")
        check(lib.ls_cursor_open(self._c, queue_id, lib.LS_CURSOR_ALL, made))
        cursor = made[0]
        rows, done = ffi.new("ls_place[]", PLACES_AT_ONCE), ffi.new("size_t *")
        check(lib.ls_cursor_next(cursor, rows, PLACES_AT_ONCE, done))
        while done[0] > 0:
            yield from ((message_id, bool(locked)) for _, message_id, _, locked, _ in places_of(rows, done[0]))
            check(lib.ls_cursor_next(cursor, rows, PLACES_AT_ONCE, done))
        owner.free()

    def segments(self) -> list[SegmentLife]:
        """The segments of the log, oldest first, with the live records of each."""
        rows = listed("ls_segment_info", lambda *into: lib.ls_segments(self._c, *into))
        return [SegmentLife._from_c(one) for one in rows if one.first_lsn >= self.info.base_lsn]
