"""The message store: :class:`MessageStore`, a thin layer over the core.

The core holds the log, the table of live messages and the order of every queue; the catalog holds the names. This class
connects the two, checks arguments, and turns return codes into exceptions. It keeps no copy of the core's state. Its
bases are its parts, a file each; each of them stands directly on the calls of :mod:`logstore._hot`.
"""

from __future__ import annotations

import array
import contextlib
import os
import sys
import warnings
from pathlib import Path
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final, Literal, Self, overload

from logstore import errors
from logstore._core import ffi, lib
from logstore.catalog.backends import TIMEOUT_S as CATALOG_TIMEOUT_S
from logstore.catalog.backends import backend_for
from logstore.catalog.transient import TransientIds
from logstore.core import arguments
from logstore.core.directory import make_parents, refuse_other_things, remove_parents
from logstore.core.imports import late
from logstore.core.lock_holder import store_locked
from logstore.core.locks import Lock, is_running
from logstore.core.native import check, failure, listed, number, owned, places_of, tell
from logstore.core.xid import Xid
from logstore.store.completions import Completions
from logstore.store.deliveries import Message, MessageView, checked_position
from logstore.store.durability import Durability
from logstore.store.fork import refuse_fork
from logstore.store.inboxes import Inboxes
from logstore.store.limit import StoredLimit, keep_limit
from logstore.store.listeners import check_callback
from logstore.store.listening import Listening
from logstore.store.maintenance import Maintenance
from logstore.store.name_batches import NameBatches
from logstore.store.overdue import Overdue
from logstore.store.own_bytes import as_note
from logstore.store.publishing import Publishing, checked_id
from logstore.store.releases import Releases
from logstore.store.transactions import Transaction, handle_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import TracebackType

    from logstore._core import ls_cursor_ptr, ls_store_ptr
    from logstore._hot import Owner
    from logstore.catalog.catalog import Catalog
    from logstore.store.listeners import Listener
    from logstore.store.queues import Queue
    from logstore.store.scrub import Scrub

_PLACES_AT_ONCE: Final = 256

# Looked up once, because every publish or dequeue needs them.
_NULL: Final = ffi.NULL
_WAIT: Final = lib.LS_WAIT


class MessageStore(Publishing, Durability, Listening, Maintenance, NameBatches):
    """An open store. Made by :func:`logstore.open`; usable from many threads; a context manager.

    A change is durable when its method returns, unless the method says otherwise. With ``wait=False`` the method
    returns at once; the change is durable when :attr:`durable_lsn` has reached the :attr:`next_lsn` read after the
    call. Operations in a transaction never wait.

    Every operation can raise ``StoreClosed``, ``StoreForked`` and ``StorePoisoned``; an operation that waits also
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
        max_log_bytes: int | None = None,
        system: Any = ffi.NULL,
    ) -> None:
        self._path = Path(store_dir)
        self._pid = os.getpid()
        self._opened_as = int.from_bytes(os.urandom(8), "little")  # in the tokens of deliveries
        self._lock = Lock(f"the store {store_dir}")
        self._limit_lock = Lock(f"the limit of the store {store_dir}")
        self._queues: dict[int, Queue] = {}
        self._by_name: dict[str, Queue] = {}
        self._dead_letters: dict[str, set[int]] = {}
        self._prepared: dict[int, Transaction] = {}
        self._releases = Releases(self)
        self._closed = self._is_shut = True  # until the core's handle exists
        self._closing_thread = 0
        self._close_codes: list[int] = []  # the result of the core's close; empty until it was called
        self._close_problem: errors.StoreError | None = None
        self._system = system
        backend_for(self._path, connect, catalog)  # wrong options are refused before anything is made
        parents: list[Path] = []
        if options.create:
            parents = make_parents(self._path)
            if system == ffi.NULL:
                refuse_other_things(self._path)
        self._owner, made = owned("store")
        code = self._open_core(options, made)
        if code != 0:
            remove_parents(parents)
        if code == lib.LS_LOCKED:
            raise store_locked(self._path)
        check(code)
        self._c: ls_store_ptr = made[0]
        self._completions = Completions(self._c, self._owner)
        self._inboxes = Inboxes(self._c)
        self._overdue: Overdue | None = None
        self._scrub: Scrub | None = None
        self._closed = self._is_shut = False
        self._relaxed = bool(options.relaxed)
        self._attach(self._owner, self._queues, self._relaxed)
        self._catalog: Catalog | None = None
        self._catalog_arguments = connect, catalog
        try:
            self._catalog = self._open_catalog(connect, catalog, catalog_timeout)
            if max_log_bytes is None:
                self._apply_limit(self._catalog)
            self._serve(self._catalog)
            if max_log_bytes is not None:
                keep_limit(self._catalog.config, max_log_bytes)
        except BaseException:
            self._abandon()
            raise
        if prepared_timeout is not None:
            self._overdue = Overdue(self, prepared_timeout)
        if scrub_rate is not None:
            self._scrub = self._start_scrub(scrub_rate)
        size = lib.ls_segment_size(self._c)
        if options.segment_size not in (0, size):
            warnings.warn(
                f"the store {self._path} was made with a segment_size of {size} bytes; "
                f"{options.segment_size} is ignored",
                stacklevel=3,
            )

    def _open_core(self, options: Any, made: Any) -> int:
        return int(lib.ls_open(self._system, os.fsencode(self._path), options, made))

    def _serve_core(self, queue_ids: list[int], next_queue_id: int) -> int:
        return int(lib.ls_serve(self._c, queue_ids, len(queue_ids), next_queue_id))

    def _open_catalog(self, connect: str | None, schema: str | None, timeout_s: float) -> Catalog:
        late("logstore.catalog.catalog")
        from logstore.catalog.catalog import Catalog

        uuid = ffi.new("uint8_t[16]")
        lib.ls_uuid(self._c, uuid)
        make = Catalog.create if lib.ls_creating(self._c) else Catalog.open
        uuid_bytes = bytes(ffi.buffer(uuid))
        return make(self._path, connect=connect, schema=schema, store_uuid=uuid_bytes, timeout_s=timeout_s)

    def _apply_limit(self, catalog: Catalog) -> None:
        stored = StoredLimit.of(catalog.config)
        if stored is not None:
            check(lib.ls_limit_log(self._c, stored.max_log_bytes))

    def _serve(self, catalog: Catalog) -> None:
        rows = catalog.queues()
        self._earlier_transient = TransientIds.of(catalog.config)
        check(self._serve_core([row.id for row in rows], catalog.next_queue_id))
        for row in rows:
            self._remember(self._handle(row))
        self._followed = catalog.stored_queues

    def _start_scrub(self, rate: float) -> Scrub:
        late("logstore.store.scrub")
        from logstore.store.scrub import Scrub  # imported late: it brings the decoder, which nothing else here needs

        return Scrub(self._path, rate)

    def _abandon(self) -> None:
        if self._catalog is not None:
            self._catalog.close()
        lib.ls_close(self._c)
        self._closed = self._is_shut = True

    # ---- closing ----

    def close(self) -> None:
        """Rolls back open transactions, makes the whole log durable, and ends it with a CLOSE record.

        Prepared transactions stay in doubt. A second call does nothing, nor does a call in a forked child, or one while
        another is in progress; but if an exception of a signal handler has interrupted a call, the next one finishes
        its work. Raises ``OutcomeUnknown`` if the last force failed; the store is closed even then.
        """
        if os.getpid() != self._pid:
            return
        with self._lock:
            if self._is_shut or self._is_being_closed():
                return
            self._closed = True
            self._closing_thread = get_ident()
        # A signal handler may raise an exception between any two steps; the next call then repeats them all. So each
        # step does nothing the second time, and the core's result is stored in the step that gets it.
        if self._overdue is not None:
            self._overdue.stop()
        if self._scrub is not None:
            self._scrub.stop()
        self._releases.close()
        self._notify = None  # the garbage collector may take the queue of notices apart before the last delivery goes
        if not self._close_codes:
            self._close_codes.extend(map(lib.ls_close, (self._c,)))
        if self._close_codes[0] != 0 and self._close_problem is None:
            self._close_problem = failure(self._close_codes[0])
        self._completions.close()
        self._inboxes.close()
        if self._catalog is not None:
            self._catalog.close()
        problem, self._close_problem = self._close_problem, None
        self._is_shut = True
        if problem is not None:
            raise problem

    def _is_being_closed(self) -> bool:
        """Whether a call of :meth:`close`, other than the one that asks, is in progress."""
        thread = self._closing_thread
        mine = thread == get_ident()
        frame = sys._getframe(2) if mine else sys._current_frames().get(thread)
        return is_running(MessageStore.close, self, frame)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self._notify = None  # as in close()
        if not getattr(self, "_is_shut", True) and os.getpid() == self._pid:
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
        """The size of each segment in bytes, as fixed when the store was made."""
        return int(lib.ls_segment_size(self._c))

    # ---- messages out ----

    def _dequeue_slow(
        self,
        message_id: int,
        queue: Queue | str,
        transaction: Transaction | None = None,
        *,
        wait: bool = True,
    ) -> int:
        """``dequeue`` for every form of its arguments; :mod:`logstore._hot` makes the usual call itself."""
        queue_id = self._known(queue).id
        made = ffi.new("uint64_t *")
        tx = _NULL if transaction is None else handle_of(self, transaction)
        flags = _WAIT if wait else 0
        code = lib.ls_dequeue(self._c, checked_id(message_id), queue_id, tx, 0, 0, flags, made)
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

        Raises the errors of ``dequeue``, and ``OptionError`` for a repeated id. The exception's attribute ``dequeued``
        is the number of messages that were dequeued, the first ones of ``message_ids``. It is above 0 only if the call
        stopped in the middle, because another thread took one of the messages at the same moment or memory ran out, or
        if the force failed or a signal handler raised.
        """
        done = None
        try:
            done = ffi.new("size_t *")
            queue_id = self._known(queue).id
            if isinstance(message_ids, array.array) and message_ids.typecode == "Q":
                ids = array.array("Q", message_ids)  # its own: another thread may change the caller's during the call
            else:
                ids = array.array("Q", map(checked_id, arguments.items("message_ids", message_ids, "message ids")))
            if len(set(ids)) != len(ids):
                raise errors.OptionError("an id occurs twice; name each message once")
            tx = handle_of(self, transaction)
            flags = lib.LS_WAIT if wait else 0
            c_ids = ffi.from_buffer("uint64_t[]", ids)
            check(lib.ls_dequeue_many(self._c, c_ids, len(ids), queue_id, tx, 0, flags, done))
        except BaseException as problem:
            tell(problem, "dequeued", 0 if done is None else int(done[0]))
            raise

    def _annotate_slow(
        self,
        message_id: int,
        queue: Queue | str,
        note: object,
        transaction: Transaction | None = None,
        *,
        wait: bool = True,
    ) -> int:
        """``annotate`` for every form of its arguments; :mod:`logstore._hot` makes the usual call itself."""
        queue_id = self._known(queue).id
        c_note, note_bytes = as_note(note)
        made = ffi.new("uint64_t *")
        tx = handle_of(self, transaction)
        flags = _WAIT if wait else 0
        check(lib.ls_annotate(self._c, checked_id(message_id), queue_id, c_note, note_bytes, tx, flags, made))
        return int(made[0])

    def _number(self, message_id: int, name: str) -> int:
        return number("ls_message_info", lambda info: lib.ls_message(self._c, checked_id(message_id), info), name)

    def _load_content_slow(self, message_id: int, offset: int = 0, length: int | None = None) -> bytes:
        """``load_content`` for every form of its arguments; :mod:`logstore._hot` makes the usual call itself."""
        key = checked_id(message_id)
        size = self._number(key, "content_bytes")
        try:
            start, stop, _ = slice(offset, None).indices(size)
            if length is not None:
                stop = start + slice(None, length).indices(max(0, stop - start))[1]
        except (TypeError, ValueError):
            given = f"{arguments.shown(offset)} and {arguments.shown(length)}"
            raise TypeError(f"offset and length are whole numbers, as in a slice, not {given}") from None
        wanted = max(0, stop - start)
        into = bytearray(wanted)
        done = ffi.new("size_t *")
        check(lib.ls_load_content(self._c, key, start, ffi.from_buffer("uint8_t[]", into), wanted, done))
        return bytes(into) if done[0] == wanted else bytes(into[: done[0]])

    def _header_slow(self, message_id: int) -> bytes:
        """``header`` for every form of its argument; :mod:`logstore._hot` makes the usual call itself."""
        key = checked_id(message_id)
        limit = self._number(key, "start_bytes")
        into = ffi.new("uint8_t[]", limit)
        done = ffi.new("size_t *")
        check(lib.ls_load_header(self._c, key, into, limit, done))
        return bytes(ffi.buffer(into, done[0]))

    @overload
    def messages(
        self, queue: Queue | str, *, load: bool = False, views: Literal[False] = False
    ) -> Iterator[Message]: ...
    @overload
    def messages(self, queue: Queue | str, *, load: bool = False, views: Literal[True]) -> Iterator[MessageView]: ...
    def messages(self, queue: Queue | str, *, load: bool = False, views: bool = False) -> Iterator[Message]:
        """The queue's places in order, acquired and locked ones included, pending enqueues not included.

        Lazy; may be abandoned. If the queue changes meanwhile, later places that were added are included, and places
        that were removed are not.

        With ``load``, headers and contents are read with the places, up to 256 messages or 512 KiB at a time, which is
        much cheaper than one by one. A message that could not be loaded so is read on access, which raises the error if
        that fails again. With ``views`` they are loaded too, and not copied: see :class:`MessageView`.
        """
        return self._messages(queue, load=load, views=views)

    def _messages(self, queue: Queue | str, *, after: int | None = None, load: bool, views: bool) -> Iterator[Message]:
        position = None if after is None else checked_position("after", after)
        known = self._known(queue)
        owner, cursor = self._open_cursor(known, lib.LS_CURSOR_ALL)
        if position is not None:
            check(lib.ls_cursor_after(cursor, position))
        return self._read_all(owner, known.id, MessageView if views else Message, load)

    def _read_all(self, owner: Owner, queue_id: int, kind: type[Message], load: bool) -> Iterator[Message]:
        # A generator refuses to be entered again by another thread or a signal handler. An iterator of itertools
        # over it would then free it while it runs.
        while found := self._read_places(owner, queue_id, kind, load, kind is MessageView):
            yield from found
            del found  # so that two batches are not held at once
        owner.free()

    def _open_cursor(self, queue: Queue, kind: int) -> tuple[Owner, ls_cursor_ptr]:
        owner, made = owned("cursor")
        check(lib.ls_cursor_open(self._c, queue.id, kind, made))
        return owner, made[0]

    def _places(self, queue: Queue, kind: int) -> Iterator[tuple[int, int, int, int, int]]:
        """Its places as :func:`~logstore.core.native.places_of` gives them."""
        owner, cursor = self._open_cursor(queue, kind)
        places = ffi.new("ls_place[]", _PLACES_AT_ONCE)
        done = ffi.new("size_t *")
        while True:
            check(lib.ls_cursor_next(cursor, places, _PLACES_AT_ONCE, done))
            if done[0] == 0:
                owner.free()
                return
            yield from places_of(places, done[0])

    def on_release(self, callback: Callable[[Queue], object], *, weak: bool = False) -> Listener:
        """Calls ``callback`` with the queue when places come back to it; one call may stand for several.

        A place comes back by a release, by a delivery that was dropped unsettled, or by a rollback that unlocks it. The
        thread that released or rolled back calls it; if a delivery was dropped or a transaction abandoned, a thread of
        the store. ``weak`` as for :meth:`on_durable`; exceptions of the callback are logged. For single queues, with an
        event loop, and for messages that arrive, see :meth:`Queue.on_released` and :meth:`Queue.on_arrived`.
        """
        check_callback(callback, weak=weak)
        refuse_fork(self._pid)
        with self._lock:
            return self._releases.add(callback, weak=weak)

    # ---- transactions ----

    def begin(self, xid: Xid | None = None) -> Transaction:
        """Begins a transaction: local, or, with an xid, a branch of a distributed transaction.

        Raises ``StoreFull``, and ``DuplicateXid`` while a branch with that xid is open or prepared.
        """
        owner, made = owned("tx")
        c_xid = ffi.NULL if xid is None else arguments.instance("xid", xid, Xid, what="a logstore.Xid")._to_c()
        check(lib.ls_begin(self._c, c_xid, made))
        return Transaction(self, owner, made[0])

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
        """Every prepared transaction without an outcome, from before or after a restart, the oldest first."""
        with self._lock:
            ids = listed("uint64_t", lambda *into: lib.ls_in_doubt(self._c, *into))
            return [self._in_doubt(transaction_id) for transaction_id in sorted(ids)]

    def _in_doubt(self, transaction_id: int) -> Transaction:
        known = self._prepared.get(transaction_id)
        if known is None:
            owner, made = owned("tx")
            check(lib.ls_in_doubt_take(self._c, transaction_id, made))
            known = self._prepared[transaction_id] = Transaction(self, owner, made[0])
        return known

    def _keep_prepared(self, transaction: Transaction) -> None:
        with self._lock:
            self._prepared[transaction.id] = transaction

    def _forget_transaction(self, transaction: Transaction, *, rolled_back: bool) -> None:
        with self._lock:
            self._prepared.pop(transaction.id, None)
        if rolled_back:
            self._releases.tell()
