"""Queues as a broker sees them: acquiring and settling messages, in order, with delivery counts.

The core keeps which places are acquired and how often each was handed out; :class:`Queue` keeps nothing of that and
takes no lock. So any thread, signal handler or finalizer may enter it at any moment.

A delivery is settled once: its own mark says so first, and the core refuses one whose place was released since. An
exception from a signal handler can interrupt a call between any two steps. So the memory that the core writes to exists
before the call, and an exception's handler gives back what was acquired, or looks whether the place is gone.
"""

from __future__ import annotations

import array
import contextlib
import itertools
import struct
from typing import TYPE_CHECKING, Any, Final, Literal, overload

from logstore import errors
from logstore._core import ffi, lib
from logstore._hot import QueueCalls
from logstore.core import arguments
from logstore.core.native import check
from logstore.store.deliveries import Delivery, Message, MessageView
from logstore.store.transactions import handle_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from logstore.store.message_store import MessageStore
    from logstore.store.transactions import Transaction

REASON_ACCEPTED: Final = 1
REASON_REJECTED: Final = 2
REASON_PURGED: Final = 4
REASON_DEAD_LETTERED: Final = 5

_ACQUIRE_MAX: Final = 1024  # in one call
_LOAD_BYTES: Final = 1 << 20  # the most that one acquire loads
_HEADER_BYTES: Final = 512  # room for a message's header and its record's overhead; a longer header is read on access
_PURGE_STEP: Final = 1000
_GONE: Final = 0
_NOTHING_TO_RELEASE: Final = (lib.LS_CLOSED, lib.LS_FORKED)  # the next open finds nothing acquired
_LOST_PLACE: Final = (errors.UnknownMessage, errors.NotEnqueued, errors.UnknownQueue, errors.OutcomeUnknown)
_ONE_MESSAGE: Final = (lib.LS_UNKNOWN_MESSAGE, lib.LS_CORRUPT, lib.LS_IO)  # errors that concern a single message

_ROW: Final = struct.Struct("@QQQII")  # ls_delivery

_new_unset = ffi.new_allocator(should_clear_after_alloc=False)


class Queue(QueueCalls):
    """The handle of a declared queue."""

    def __init__(
        self,
        store: MessageStore,
        queue_id: int,
        name: str,
        arguments: Mapping[str, Any],
        dead_letter: str | None,
    ) -> None:
        self._store = store
        self._attach(queue_id)
        self._name = name
        self._arguments = dict(arguments)
        self._dead_letter = dead_letter
        self._c_id = ffi.new("uint32_t[1]", [queue_id])
        self._is_deleted = False

    @property
    def name(self) -> str:
        """The name it was declared with."""
        return self._name

    @property
    def id(self) -> int:
        """The catalog's id for it, never reused for another queue."""
        return self._id

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments it was declared with, as a copy."""
        return dict(self._arguments)

    @property
    def dead_letter(self) -> str | None:
        """The name of the queue that rejected messages go to; None if there is none."""
        return self._dead_letter

    @property
    def depth(self) -> int:
        """The number of its places: waiting, acquired and locked ones."""
        return self._store._depth(self._id)[0]

    # ---- acquiring ----

    def acquire(self, n: int = 1, *, load: bool = False) -> list[Delivery]:
        """Acquires up to ``n`` messages from the front, in order. Only durable, unlocked, not acquired ones count.

        With ``load`` their headers and contents are read in one call, up to 1 MiB together, which is much cheaper than
        one by one. A message that could not be loaded is read on access, which raises the error if that fails again.

        Raises :class:`~logstore.errors.UnknownQueue` after the queue was deleted.
        """
        if type(n) is not int or n < 0:
            n = arguments.integer("n", n, 0, arguments.LSN_MAX)
        taken: list[Delivery] = []
        calls: list[tuple[Any, Any]] = []  # each one's rows, and how many of them it has acquired
        try:
            while len(taken) < n:
                room = min(n - len(taken), _ACQUIRE_MAX)
                rows, done = _new_unset("ls_delivery[]", room), ffi.new("size_t *")
                calls.append((rows, done))
                check(lib.ls_acquire(self._store._c, self._id, rows, room, 0, done))
                taken += [Delivery(self, *row) for row in _ROW.iter_unpack(ffi.buffer(rows, done[0] * _ROW.size))]
                if done[0] < room:
                    break
            if load and taken:
                self._load(taken)
            return taken
        except BaseException:
            for rows, done in calls:
                lib.ls_release(self._store._c, self._id, rows, done[0], lib.LS_UNSEEN)
            raise

    def _load(self, deliveries: list[Delivery]) -> None:
        """Reads headers and contents, many in one call; skips those that do not fit or cannot be read."""
        first, left = 0, _LOAD_BYTES
        while first < len(deliveries):
            room, last = 0, first
            while last < len(deliveries):
                needed = deliveries[last]._content_bytes + _HEADER_BYTES
                if room + needed > left:
                    break
                room += needed
                last += 1
            if last == first:
                return
            done, code = self._load_some(deliveries[first:last], room)
            left -= room
            first += done
            if code not in (0, *_ONE_MESSAGE):
                return
            if code or not done:
                first += 1

    def _load_some(self, deliveries: list[Delivery], room: int) -> tuple[int, int]:
        """Loads from the first on. Returns how many were loaded, and the core's code if it stopped with an error."""
        count = len(deliveries)
        into = _new_unset("uint8_t[]", room)
        sizes = _new_unset("uint64_t[]", 2 * count)
        done = ffi.new("size_t *")
        ids = ffi.from_buffer("uint64_t[]", array.array("Q", [delivery.id for delivery in deliveries]))
        code = lib.ls_load_many(self._store._c, ids, count, into, room, sizes, done)
        data = ffi.buffer(into)
        start = 0
        loaded = iter(ffi.unpack(sizes, 2 * done[0]))
        for delivery, header_bytes, content_bytes in zip(deliveries, loaded, loaded, strict=False):
            end = start + header_bytes
            delivery._loaded = data[start:end], data[end : end + content_bytes]
            start = end + content_bytes
        return done[0], code

    # ---- settling ----

    def _check_acquired(self, delivery: Delivery) -> None:
        if type(delivery) is not Delivery:
            arguments.instance("delivery", delivery, Delivery)
        if delivery._queue is not self:
            raise errors.NotEnqueued(f"message {delivery.id} was not acquired from queue {self._name!r}")
        if delivery._settled or self._is_deleted:
            raise errors.NotEnqueued(
                f"message {delivery.id} is no longer acquired from queue {self._name!r}: it was settled before"
            )

    def _settle(self, delivery: Delivery, dequeue: Callable[[], object]) -> None:
        """Settles with ``dequeue``. The place stays acquired until that has succeeded, and if the store refuses it."""
        self._check_acquired(delivery)
        try:
            delivery._settled = True
            dequeue()
        except _LOST_PLACE:
            raise
        except BaseException:
            delivery._settled = self._is_gone(delivery)  # or the exception came after the dequeue
            raise

    def _is_gone(self, delivery: Delivery) -> bool:
        key, position = (ffi.new("uint64_t[1]", [one]) for one in (delivery.id, delivery._position))
        state = ffi.new("uint8_t[1]")
        code = lib.ls_places_check(self._store._c, self._id, key, position, 1, state)
        return bool(code == 0 and state[0] == _GONE)

    def accept(self, delivery: Delivery, *, transaction: Transaction | None = None, wait: bool = True) -> None:
        """See :meth:`Delivery.accept`."""
        if transaction is not None:
            self._settle_within(transaction, delivery, REASON_ACCEPTED)
            return
        self._settle(delivery, lambda: self._dequeue(delivery, REASON_ACCEPTED, None, wait=wait))

    def _dequeue(self, delivery: Delivery, reason: int, transaction: Transaction | None, *, wait: bool) -> None:
        tx = handle_of(self._store, transaction)
        flags = lib.LS_WAIT if wait else 0
        lsn = ffi.new("uint64_t *")
        check(lib.ls_settle(self._store._c, self._id, _rows([delivery]), tx, reason, flags, lsn))

    def accept_many(self, deliveries: Iterable[Delivery], *, wait: bool = True) -> None:
        """Accepts all of them, with one force. All are checked before the first is dequeued.

        Raises the errors of :meth:`Delivery.accept`. The exception's attribute ``dequeued`` is the number of
        deliveries, from the first on, that were accepted; the others stay acquired.
        """
        batch = [
            each if type(each) is Delivery else arguments.instance("each of deliveries", each, Delivery)
            for each in arguments.items("deliveries", deliveries, "deliveries")
        ]
        claimed: list[Delivery] = []
        done = ffi.new("size_t *")
        flags = lib.LS_WAIT if wait else 0
        try:
            for delivery in batch:
                self._check_acquired(delivery)
                claimed.append(delivery)
                delivery._settled = True
            check(lib.ls_settle_all(self._store._c, self._id, _rows(batch), len(batch), REASON_ACCEPTED, flags, done))
        except BaseException as problem:
            for delivery in claimed[done[0] :]:
                delivery._settled = False
            if isinstance(problem, errors.StoreError):
                problem.dequeued = int(done[0])  # type: ignore[attr-defined] # set only here
            raise

    def _settle_within(self, transaction: Transaction, delivery: Delivery, reason: int) -> None:
        """Dequeues in the transaction; the place stays acquired until the commit."""
        self._check_acquired(delivery)
        try:
            self._dequeue(delivery, reason, transaction, wait=False)
        except (errors.UnknownMessage, errors.NotEnqueued, errors.UnknownQueue) as problem:
            if isinstance(problem, errors.UnknownQueue) or self._is_gone(delivery):
                delivery._settled = True
            raise
        transaction._on_commit.append(lambda: setattr(delivery, "_settled", True))

    def release(self, delivery: Delivery) -> None:
        """See :meth:`Delivery.release`."""
        self._check_acquired(delivery)
        code = lib.ls_release(self._store._c, self._id, _rows([delivery]), 1, 0)
        if code not in _NOTHING_TO_RELEASE:
            check(code)
        delivery._settled = True
        self._store._releases.tell(self)

    def reject(self, delivery: Delivery, *, transaction: Transaction | None = None, wait: bool = True) -> None:
        """See :meth:`Delivery.reject`."""
        if transaction is not None:
            if self._dead_letter is None:
                self._settle_within(transaction, delivery, REASON_REJECTED)
            else:  # dequeue first: a message that is already gone must not become a dead letter
                self._settle_within(transaction, delivery, REASON_DEAD_LETTERED)
                self._enqueue_dead_letter(delivery, transaction)
            return
        if self._dead_letter is None:
            self._settle(delivery, lambda: self._dequeue(delivery, REASON_REJECTED, None, wait=wait))
        else:
            self._settle(delivery, lambda: self._dead_letter_it(delivery, wait=wait))

    def _dead_letter_it(self, delivery: Delivery, *, wait: bool) -> None:
        transaction = self._store.begin()
        try:
            self._enqueue_dead_letter(delivery, transaction)
            self._dequeue(delivery, REASON_DEAD_LETTERED, transaction, wait=False)
            transaction.commit(wait=wait)
        except BaseException:
            if transaction.state == "active":
                transaction.rollback(wait=False)
            raise

    def _enqueue_dead_letter(self, delivery: Delivery, transaction: Transaction) -> None:
        with contextlib.suppress(errors.AlreadyEnqueued):
            self._store.enqueue(delivery.id, self._store.queue(self._dead_letter or ""), transaction)

    # ---- the rest ----

    @overload
    def browse(self, *, load: bool = False, views: Literal[False] = False) -> Iterator[Message]: ...
    @overload
    def browse(self, *, load: bool = False, views: Literal[True]) -> Iterator[MessageView]: ...
    def browse(self, *, load: bool = False, views: bool = False) -> Iterator[Message]:
        """All places in order, acquired and locked ones included; see ``MessageStore.messages``."""
        messages = self._store.messages
        return messages(self, views=True) if views else messages(self, load=load)

    def purge(self, *, wait: bool = True) -> int:
        """Dequeues all messages that are neither acquired nor locked. Returns their number; durable on return.

        Messages published meanwhile stay.
        """
        wait = bool(wait)  # may raise; then nothing is purged
        purged = 0
        end = self._store.next_lsn  # ids are LSNs, so the first later id ends the purge: all places after it are newer
        first = itertools.islice(self._store._places(self, lib.LS_CURSOR_ALL), self.depth)
        places = (row[:2] for row in itertools.takewhile(lambda row: row[1] < end, first))  # position and id
        while step := list(itertools.islice(places, _PURGE_STEP)):
            purged += self._purge_step(step)
        if wait:
            self._store.force_unless_relaxed()
        return purged

    def _purge_step(self, places: list[tuple[int, int]]) -> int:
        ids = ffi.from_buffer("uint64_t[]", array.array("Q", [message_id for _, message_id in places]))
        done = ffi.new("size_t *")
        check(lib.ls_purge(self._store._c, self._id, ids, len(places), REASON_PURGED, 0, done))
        return int(done[0])

    def _acquired_count(self) -> int:
        acquired = ffi.new("uint64_t *")
        code = lib.ls_queue_acquired(self._store._c, self._id, acquired)
        if code != lib.LS_UNKNOWN_QUEUE:  # it may have been deleted meanwhile
            check(code)
        return int(acquired[0])

    def _forget(self) -> None:
        """The queue was deleted: its deliveries cannot be settled any more."""
        self._is_deleted = True

    def __repr__(self) -> str:
        return f"<Queue {self._name!r} id {self._id}>"


def _rows(deliveries: list[Delivery]) -> Any:
    """The deliveries as the core names them."""
    rows = bytearray(len(deliveries) * _ROW.size)
    for at, each in enumerate(deliveries):
        _ROW.pack_into(rows, at * _ROW.size, each._position, each.id, 0, each.delivery_count, 0)
    return ffi.from_buffer("ls_delivery[]", rows)
