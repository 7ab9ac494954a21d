"""The message store: :class:`MessageStore`, thin over the core.

The core holds the log, the table of what lives and the order of every queue; the catalog holds names. This class joins
the two, checks what comes from outside, and turns codes into exceptions. It keeps nothing that the core knows.
"""

from __future__ import annotations

import array
import contextlib
import itertools
import operator
import os
import threading
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from logstore import errors
from logstore._core import ffi, lib
from logstore.catalog.places import TIMEOUT_S as CATALOG_TIMEOUT_S
from logstore.core import arguments
from logstore.core.directory import make_parents, refuse_other_things
from logstore.core.locks import Lock
from logstore.core.native import as_buffer, check, failure, listed, number, places_of
from logstore.core.xid import Xid
from logstore.store.care import Care
from logstore.store.completions import Completions, check_loop
from logstore.store.content import batches, count_of, is_parts, split
from logstore.store.overdue import Overdue
from logstore.store.queues import Message, Queue
from logstore.store.releases import Releases
from logstore.store.transactions import Transaction, handle_of, new_handle

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from types import TracebackType

    from logstore.catalog.catalog import Catalog
    from logstore.store.scrub import Scrub

_PLACES_AT_ONCE: Final = 256

# What every call needs, looked up once.
_BUFFERS: Final = (bytes, bytearray, memoryview)
_NULL: Final = ffi.NULL
_WAIT: Final = lib.LS_WAIT
_MORE: Final = lib.LS_MORE
_ID_END: Final = 1 << 63
_publish_one: Final = lib.ls_publish_one
_dequeue_one: Final = lib.ls_dequeue_one
_durable_soon: Final = lib.ls_durable_soon


class _Small(threading.local):
    """Where a thread reads contents that fit, so that nothing is made for each of them but its bytes."""

    def __init__(self) -> None:
        self.into: Final = ffi.new("uint8_t[]", _SMALL_BYTES)
        self.ids: Final = ffi.new("uint64_t[1]")
        self.sizes: Final = ffi.new("uint64_t[2]")  # of header and content
        self.done: Final = ffi.new("size_t *")
        self.view: Final = ffi.buffer(self.into)


_SMALL_BYTES: Final = 64 << 10
_small: Final = _Small()


class MessageStore(Care):
    """An open store. Made by :func:`logstore.open`; usable from many threads; a context manager.

    Unless it says otherwise, what changes something is durable when it returns. With ``wait=False`` it returns at once,
    and is durable once :attr:`durable_lsn` has reached the :attr:`next_lsn` read after the call. Operations in a
    transaction never wait.

    Every operation can raise ``StoreClosed``, ``StoreForked``, ``StorePoisoned``, and, when it waits,
    ``OutcomeUnknown``.
    """

    def __init__(
        self,
        store_dir: str | os.PathLike[str],
        options: Any,
        *,
        connect: str | None = None,
        catalog: str | None = None,
        catalog_timeout: float = CATALOG_TIMEOUT_S,
        prepared_timeout: float | None = None,
        scrub_rate: float | None = None,
        system: Any = ffi.NULL,
    ) -> None:
        self._path = Path(store_dir)
        self._pid = os.getpid()
        self._lock = Lock(f"the store {store_dir}")
        self._queues: dict[int, Queue] = {}
        self._by_name: dict[str, Queue] = {}
        self._prepared: dict[int, Transaction] = {}
        self._releases = Releases(self)
        self._closed = True  # until there is something to close
        self._system = system
        if options.create:
            make_parents(self._path)
            if system == ffi.NULL:
                refuse_other_things(self._path)
        handle = ffi.new("ls_store **")
        check(lib.ls_open(system, os.fsencode(self._path), options, handle))
        self._c = ffi.gc(handle[0], lib.ls_free)
        self._closed = False
        self._relaxed = bool(options.relaxed)
        self._catalog: Catalog | None = None
        self._catalog_place = connect, catalog
        try:
            self._catalog = self._open_catalog(connect, catalog, catalog_timeout)
            self._serve(self._catalog)
        except BaseException:
            self._abandon()
            raise
        self._completions = Completions(self._c)
        self._overdue = Overdue(self, prepared_timeout) if prepared_timeout is not None else None
        self._scrub = self._start_scrub(scrub_rate) if scrub_rate is not None else None
        size = lib.ls_segment_size(self._c)
        if options.segment_size not in (0, size):
            warnings.warn(
                f"the store {self._path} was made with a segment_size of {size} bytes; "
                f"{options.segment_size} is ignored",
                stacklevel=3,
            )

    def _open_catalog(self, connect: str | None, schema: str | None, timeout_s: float) -> Catalog:
        from logstore.catalog.catalog import Catalog

        uuid = ffi.new("uint8_t[16]")
        lib.ls_uuid(self._c, uuid)
        make = Catalog.create if lib.ls_creating(self._c) else Catalog.open
        uuid_bytes = bytes(ffi.buffer(uuid))
        return make(self._path, connect=connect, schema=schema, store_uuid=uuid_bytes, timeout_s=timeout_s)

    def _serve(self, catalog: Catalog) -> None:
        rows = catalog.queues()
        check(lib.ls_serve(self._c, [row.id for row in rows], len(rows), catalog.next_queue_id))
        for row in rows:
            self._remember(self._handle(row))
        self._followed = catalog.stored_queues

    def _start_scrub(self, rate: float) -> Scrub:
        from logstore.store.scrub import Scrub  # with the decoder, which a store needs for nothing else

        return Scrub(self._path, rate)

    def _abandon(self) -> None:
        if self._catalog is not None:
            self._catalog.close()
        lib.ls_close(self._c)
        self._closed = True

    # ---- life ----

    def close(self) -> None:
        """Rolls back what is open, forces what is not durable, and ends the log in an orderly way.

        A second call does nothing, nor does one in a forked child. Prepared transactions stay in doubt.
        Raises ``OutcomeUnknown`` if the last force failed; the store is closed all the same.
        """
        if os.getpid() != self._pid:
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if self._overdue is not None:
            self._overdue.stop()
        if self._scrub is not None:
            self._scrub.stop()
        self._releases.close()
        code = lib.ls_close(self._c)
        problem = failure(code) if code != 0 else None
        self._completions.close()
        if self._catalog is not None:
            self._catalog.close()
        if problem is not None:
            raise problem

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True) and os.getpid() == self._pid:
            warnings.warn(f"the store {self._path} was not closed", ResourceWarning, stacklevel=2, source=self)
            with contextlib.suppress(errors.StoreError):
                self.close()

    def __repr__(self) -> str:
        return f"<MessageStore {str(self._path)!r}{' closed' if self._closed else ''}>"

    @property
    def path(self) -> Path:
        """The store directory."""
        return self._path

    @property
    def segment_size(self) -> int:
        """Bytes of each of its segments, as stored."""
        return int(lib.ls_segment_size(self._c))

    # ---- messages in ----

    def stage(self, header: object = b"", content: object = b"", *, wait: bool = False) -> int:
        """A message without a place yet, to be added to and enqueued; its id.

        A staged message that is never enqueued is dropped by the next open, which is why nothing waits here
        unless asked.
        Raises ``StoreFull``, or ``OptionError`` for a header that does not fit into one record (a sixteenth
        of a segment,
        at most 1 MiB).
        """
        wait = bool(wait)  # which may raise; then nothing is staged
        message_id = self._stage(header, content, 0)
        if wait:
            self.force_unless_relaxed()
        return message_id

    def _stage(self, header: object, content: object, flags: int) -> int:
        h, header_bytes = as_buffer(header, "header")
        first, rest = split(content)
        c, content_bytes = as_buffer(first)
        made = ffi.new("uint64_t *")
        check(lib.ls_stage(self._c, h, header_bytes, c, content_bytes, flags, made))
        message_id = int(made[0])
        try:
            for part in rest:
                self._append(message_id, part, "content")
        except BaseException:
            self._undo_stage(message_id)
            raise
        return message_id

    def _undo_stage(self, message_id: int) -> None:
        with contextlib.suppress(errors.StoreError):  # the first failure is the one to tell; recovery drops it too
            self.destroy(message_id, wait=False)

    def append_content(self, message_id: int, data: object, *, wait: bool = False) -> None:
        """More content for a staged message; any buffer, or an iterable of buffers.

        Raises ``UnknownMessage``, ``MessageInUse`` once it is enqueued, ``StoreFull``.
        """
        wait = bool(wait)  # as in stage
        first, rest = split(data, "data")
        for part in itertools.chain([first], rest):
            self._append(_id(message_id), part, "data")
        if wait:
            self.force_unless_relaxed()

    def _append(self, message_id: int, data: object, name: str) -> None:
        c, size = as_buffer(data, name)
        check(lib.ls_append_content(self._c, message_id, c, size, 0))

    def enqueue(
        self,
        message_id: int,
        queue: Queue | str | Iterable[Queue | str],
        transaction: Transaction | None = None,
        *,
        wait: bool = True,
    ) -> int:
        """Puts the message on the queue, or on several at once; the LSN of the record.

        In a transaction it becomes visible at the commit. Raises ``UnknownMessage``, ``UnknownQueue``,
        ``AlreadyEnqueued``, ``MessageLocked`` (by another transaction's work on that queue), ``StoreFull``.
        """
        ids, count = self._queue_ids(queue)
        return self._enqueue(_id(message_id), ids, count, transaction, wait=wait)

    def _enqueue(
        self, message_id: int, queue_ids: Any, count: int, transaction: Transaction | None, *, wait: bool
    ) -> int:
        lsn = ffi.new("uint64_t *")
        tx = handle_of(self, transaction)
        check(lib.ls_enqueue(self._c, message_id, queue_ids, count, tx, lib.LS_WAIT if wait else 0, lsn))
        return int(lsn[0])

    def publish(
        self,
        queue: Queue | str | Iterable[Queue | str],
        content: object,
        *,
        header: object = b"",
        transaction: Transaction | None = None,
        wait: bool = True,
    ) -> int:
        """A new message on the queue, or atomically on several; its id.

        ``content`` is any buffer, or an iterable of buffers, of which only one is held at a time. Raises
        ``UnknownQueue``, ``StoreFull``, ``OptionError``; a publish that fails leaves nothing behind.
        """
        if (
            type(content) is bytes
            and type(queue) is Queue
            and type(header) is bytes
            and transaction is None
            and self._queues.get(queue._id) is queue
        ):  # nearly always, and then in one step
            message_id: int = _publish_one(
                self._c, queue._id, header, len(header), content, len(content), _WAIT if wait else 0
            )
            if message_id:
                return message_id
            raise failure(lib.ls_last_error().code)
        ids, count = self._queue_ids(queue)
        if not isinstance(content, _BUFFERS) and is_parts(content):
            return self._publish_parts(ids, count, content, header, transaction, wait=wait)
        h, header_bytes = as_buffer(header, "header")
        c, content_bytes = as_buffer(content)
        made = ffi.new("uint64_t *")
        tx = _NULL if transaction is None else handle_of(self, transaction)
        flags = _WAIT if wait else 0
        code = lib.ls_publish(self._c, ids, count, h, header_bytes, c, content_bytes, tx, flags, made)
        if code != 0:
            raise failure(code)
        return int(made[0])

    def _publish_parts(
        self,
        queue_ids: Any,
        count: int,
        content: object,
        header: object,
        transaction: Transaction | None,
        *,
        wait: bool,
    ) -> int:
        message_id = self._stage(header, content, lib.LS_PUBLISHED)
        try:
            self._enqueue(message_id, queue_ids, count, transaction, wait=wait)
        except errors.OutcomeUnknown:
            raise
        except BaseException:
            self._undo_stage(message_id)
            raise
        return message_id

    def publish_many(
        self,
        queue: Queue | str,
        contents: Iterable[Any],
        *,
        headers: Iterable[Any] | None = None,
        transaction: Transaction | None = None,
        wait: bool = True,
    ) -> Sequence[int]:
        """One message for each of ``contents``, in order; their ids. Each is atomic; one force at the end.

        ``contents`` is an iterable of buffers, or a pyarrow binary array, which is passed on whole.
        ``headers`` has as many.
        If it fails in the middle, the exception's ``published`` holds the ids of those that are stored.
        """
        queue_id = self._known(queue).id
        tx = handle_of(self, transaction)
        ids = array.array("Q")
        total = count_of("contents", contents)
        waiting = wait and transaction is None and not self._relaxed
        try:
            for content, sizes, header, header_sizes in batches(contents, headers):
                last = len(ids) + len(sizes) == total  # saves handing the force over to another thread
                flags = (_WAIT if last else _MORE) if waiting else 0
                self._publish_batch(queue_id, content, sizes, header, header_sizes, tx, flags, ids)
                waiting = waiting and not last
        except Exception as problem:
            problem.published = ids  # type: ignore[attr-defined]
            raise
        finally:  # what is stored is durable, whatever became of the rest
            if waiting and ids:
                self.force()
        return ids

    def _publish_batch(
        self,
        queue_id: int,
        content: Any,
        sizes: Sequence[int],
        header: Any,
        header_sizes: Sequence[int] | None,
        tx: Any,
        flags: int,
        ids: array.array[int],
    ) -> None:
        count = len(sizes)
        if count == 1 and tx == _NULL:
            header_size = 0 if header_sizes is None else header_sizes[0]
            message_id = _publish_one(self._c, queue_id, header, header_size, content, sizes[0], flags)
            if not message_id:
                raise failure(lib.ls_last_error().code)
            ids.append(message_id)
            return
        made = ffi.new("uint64_t[]", count)
        done = ffi.new("size_t *")
        code = lib.ls_publish_many(
            self._c, queue_id, count, content, _c_sizes(sizes), header, _c_sizes(header_sizes), tx, flags, made, done
        )
        ids.frombytes(ffi.buffer(made, done[0] * 8))
        check(code)

    def force_unless_relaxed(self) -> None:
        """What ``wait=True`` does at the end of a batch."""
        if not self._relaxed:
            self.force()

    # ---- messages out ----

    def dequeue(
        self,
        message_id: int,
        queue: Queue | str,
        transaction: Transaction | None = None,
        *,
        wait: bool = True,
    ) -> int:
        """Takes the message off the queue; the LSN of the record. With its last place it is gone.

        In a transaction it is locked until the outcome. Raises ``UnknownMessage``, ``UnknownQueue``, ``NotEnqueued``,
        ``MessageLocked``.
        """
        if (
            type(message_id) is int
            and 0 < message_id < _ID_END
            and type(queue) is Queue
            and transaction is None
            and self._queues.get(queue._id) is queue
        ):  # nearly always, and then in one step
            lsn: int = _dequeue_one(self._c, message_id, queue._id, _WAIT if wait else 0)
            if lsn:
                return lsn
            raise failure(lib.ls_last_error().code)
        return self._dequeue(message_id, self._known(queue).id, transaction, 0, 0, wait=wait)

    def _dequeue(
        self,
        message_id: int,
        queue_id: int,
        transaction: Transaction | None,
        reason: int,
        count: int,
        *,
        wait: bool,
    ) -> int:
        made = ffi.new("uint64_t *")
        tx = _NULL if transaction is None else handle_of(self, transaction)
        flags = _WAIT if wait else 0
        code = lib.ls_dequeue(self._c, _id(message_id), queue_id, tx, reason, count, flags, made)
        if code != 0:
            raise failure(code)
        lsn: int = made[0]
        return lsn

    def dequeue_many(
        self,
        message_ids: Iterable[int],
        queue: Queue | str,
        transaction: Transaction | None = None,
        *,
        wait: bool = True,
    ) -> None:
        """Takes all of them off the queue, with one force. All are checked before the first is dequeued.

        Raises as ``dequeue`` does. Only if another thread takes one of them at the same moment can it stop in
        the middle;
        the exception's ``dequeued`` then says how many were. Raises ``OptionError`` for an id that is named twice.
        """
        queue_id = self._known(queue).id
        if isinstance(message_ids, array.array) and message_ids.typecode == "Q":
            ids = message_ids
        else:
            ids = array.array("Q", map(_id, arguments.items("message_ids", message_ids, "message ids")))
        if len(set(ids)) != len(ids):
            raise errors.OptionError("one of the ids is named twice; name each message once")
        done = ffi.new("size_t *")
        tx = handle_of(self, transaction)
        flags = lib.LS_WAIT if wait else 0
        c_ids = ffi.from_buffer("uint64_t[]", ids)
        code = lib.ls_dequeue_many(self._c, c_ids, len(ids), queue_id, tx, 0, flags, done)
        if code != 0:
            problem = failure(code)
            problem.dequeued = int(done[0])  # type: ignore[attr-defined]
            raise problem

    def destroy(self, message_id: int, *, wait: bool = True) -> None:
        """Ends a staged message. Raises ``MessageInUse`` for one with a place or pending work, ``UnknownMessage``."""
        check(lib.ls_destroy(self._c, _id(message_id), lib.LS_WAIT if wait else 0))

    def _number(self, message_id: int, name: str) -> int:
        return number("ls_message_info", lambda info: lib.ls_message(self._c, _id(message_id), info), name)

    def load_content(self, message_id: int, offset: int = 0, length: int | None = None) -> bytes:
        """The content from ``offset`` on, ``length`` bytes of it at most; slices as Python does.

        Every record that is read is verified first. Raises ``UnknownMessage``, ``CorruptLog``.
        """
        key = _id(message_id)
        if length is None and offset == 0:
            small = _small
            small.ids[0] = key
            check(lib.ls_load_many(self._c, small.ids, 1, small.into, _SMALL_BYTES, small.sizes, small.done))
            if small.done[0] == 1:  # else it does not fit, and nothing was read
                start, size = small.sizes[0], small.sizes[1]
                content: bytes = small.view[start : start + size]
                return content
        size = self._number(key, "content_bytes")
        try:
            start, stop, _ = slice(offset, None).indices(size)
            if length is not None:
                stop = start + slice(None, length).indices(max(0, stop - start))[1]
        except (TypeError, ValueError):
            told = f"{arguments.shown(offset)} and {arguments.shown(length)}"
            raise TypeError(f"offset and length are whole numbers, as in a slice, not {told}") from None
        wanted = max(0, stop - start)
        into = bytearray(wanted)
        done = ffi.new("size_t *")
        check(lib.ls_load_content(self._c, key, start, ffi.from_buffer("uint8_t[]", into), wanted, done))
        return bytes(into) if done[0] == wanted else bytes(into[: done[0]])

    def header(self, message_id: int) -> bytes:
        """The message's header. Raises ``UnknownMessage``, ``CorruptLog``."""
        key = _id(message_id)
        limit = self._number(key, "start_bytes")
        into = ffi.new("uint8_t[]", limit)
        done = ffi.new("size_t *")
        check(lib.ls_load_header(self._c, key, into, limit, done))
        return bytes(ffi.buffer(into, done[0]))

    def messages(self, queue: Queue | str) -> Iterator[Message]:
        """The queue's places in order, acquired and locked ones too, pending enqueues not.

        Lazy; may be abandoned, and the queue may change meanwhile: what is added behind is seen, what is gone is not.
        """
        for _, message_id, size, locked, recovered in self._places(self._known(queue), lib.LS_CURSOR_ALL):
            yield Message(self, message_id, size, bool(locked), bool(recovered))

    def _places(self, queue: Queue, kind: int) -> Iterator[tuple[int, int, int, int, int]]:
        """Its places as :func:`~logstore.core.native.places_of` gives them."""
        made = ffi.new("ls_cursor **")
        check(lib.ls_cursor_open(self._c, queue.id, kind, made))
        cursor = ffi.gc(made[0], lib.ls_cursor_close)
        places = ffi.new("ls_place[]", _PLACES_AT_ONCE)
        done = ffi.new("size_t *")
        while True:
            check(lib.ls_cursor_next(cursor, places, _PLACES_AT_ONCE, done))
            if done[0] == 0:
                ffi.release(cursor)
                return
            yield from places_of(places, done[0])

    def on_release(self, callback: Callable[[Queue], object]) -> None:
        """Calls it with the queue whenever a place comes back to it: released, or unlocked by a rollback (then for
        every queue). Of a transaction that was abandoned a thread of the store's tells. What becomes durable is told
        by :meth:`on_durable`. What it raises is logged.
        """
        arguments.function("callback", callback)
        with self._lock:
            self._releases.add(callback)

    # ---- transactions ----

    def begin(self, xid: Xid | None = None) -> Transaction:
        """A new transaction: local, or with an xid a branch of a distributed one.

        Raises ``DuplicateXid`` while a branch with that xid is open or prepared, ``StoreFull``.
        """
        made = new_handle()
        c_xid = ffi.NULL if xid is None else arguments.instance("xid", xid, Xid, what="a logstore.Xid")._to_c()
        check(lib.ls_begin(self._c, c_xid, made))
        return Transaction(self, made)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """A local transaction that commits at the end of the block and rolls back if it raises."""
        made = self.begin()
        try:
            yield made
        except BaseException:
            if made.state == "active":
                made.rollback()
            raise
        if made.state == "active":
            made.commit()

    def in_doubt(self) -> list[Transaction]:
        """Every prepared transaction without an outcome, from before a restart or from now, the oldest first."""
        with self._lock:
            ids = listed("uint64_t", lambda *into: lib.ls_in_doubt(self._c, *into))
            return [self._in_doubt(transaction_id) for transaction_id in sorted(ids)]

    def _in_doubt(self, transaction_id: int) -> Transaction:
        known = self._prepared.get(transaction_id)
        if known is None:
            made = new_handle()
            check(lib.ls_in_doubt_take(self._c, transaction_id, made))
            known = self._prepared[transaction_id] = Transaction(self, made)
        return known

    def _keep_prepared(self, transaction: Transaction) -> None:
        with self._lock:
            self._prepared[transaction.id] = transaction

    def _forget_transaction(self, transaction: Transaction, *, rolled_back: bool) -> None:
        with self._lock:
            self._prepared.pop(transaction.id, None)
        if rolled_back:
            self._releases.rolled_back()

    # ---- durability ----

    def force(self, lsn: int | None = None) -> None:
        """Makes everything up to ``lsn`` durable; without one, everything appended so far. Raises
        ``OutcomeUnknown``.
        """
        check(lib.ls_force(self._c, 0 if lsn is None else max(arguments.integer("lsn", lsn, 0, arguments.LSN_MAX), 1)))

    async def durable(self, lsn: int) -> None:
        """Returns once :attr:`durable_lsn` has reached ``lsn``. Raises ``OutcomeUnknown`` if it never will."""
        try:
            soon = _durable_soon(self._c, lsn)
        except (TypeError, OverflowError):
            lsn = arguments.integer("lsn", lsn, 0, arguments.LSN_MAX)
            soon = _durable_soon(self._c, lsn)
        if not soon:
            await self._completions.wait(lsn)

    def on_durable(
        self, callback: Callable[[int | Exception], object], *, loop: asyncio.AbstractEventLoop | None = None
    ) -> None:
        """Calls it once per group commit with the new durable LSN, and once with the exception if the log fails: from a
        thread of the store's, or in ``loop``, from which it must then be called. It stays registered.
        """
        arguments.function("callback", callback)
        if loop is not None:
            check_loop(loop)
        self._completions.add_callback(callback, loop)


def _c_sizes(sizes: Sequence[int] | None) -> Any:
    if sizes is None:
        return _NULL
    if type(sizes) is list:
        return ffi.new("uint64_t[]", sizes)
    return ffi.from_buffer("uint64_t[]", sizes)


def _id(message_id: object) -> int:
    if type(message_id) is int and 0 < message_id < _ID_END:
        return message_id  # nearly always
    if isinstance(message_id, bool) or not isinstance(message_id, int):
        raise TypeError(f"a message id is an int, not {arguments.shown(message_id)}")
    number = operator.index(message_id)  # of a subclass, the number itself
    if not 0 < number < _ID_END:
        raise errors.UnknownMessage(f"there is no message {arguments.shown(number)}: ids are 1 to 2**63 - 1")
    return number
