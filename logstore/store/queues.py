"""Queues as a broker sees them: acquiring and settling messages, in order, with delivery counts.

The core keeps the places of a queue and their order. A :class:`Queue` adds the state that is not durable: acquisition
and delivery counts, in a bounded window over the core's order. The window is a ``SortedDict`` by position. It holds the
places that came back and those that were fetched but not handed out. All other places stay in the core and cost nothing
here.

Invariants, under the queue's lock: a position is in the window or acquired, never both; the smallest position is
offered first; a place is handed out only if the core says at that moment that it exists and is not locked.

An exception can interrupt a change at any moment, for example from a signal handler. So a place is added to its new
collection before it is removed from the old one, and ``_disturbed`` is set during the change. The next call that finds
``_disturbed`` set rebuilds the window and starts again at the front of the queue. So no place is lost, and none is
handed out twice.
"""

from __future__ import annotations

import array
import contextlib
import itertools
from typing import TYPE_CHECKING, Any, Final, Literal, overload

from sortedcontainers import SortedDict

from logstore import errors
from logstore._core import ffi, lib
from logstore._hot import QueueCalls
from logstore.core import arguments
from logstore.core.locks import QuickLock
from logstore.core.native import check, places_of
from logstore.store.deliveries import Delivery, Message, MessageView, Place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from logstore.store.message_store import MessageStore
    from logstore.store.transactions import Transaction

REASON_ACCEPTED: Final = 1
REASON_REJECTED: Final = 2
REASON_PURGED: Final = 4
REASON_DEAD_LETTERED: Final = 5

_FETCH_MAX: Final = 1024
_LOAD_BYTES: Final = 1 << 20  # the most that one acquire loads
_HEADER_BYTES: Final = 512  # room for a message's header and its record's overhead; a longer header is read on access
_COUNT_MAX: Final = (1 << 16) - 1
_PURGE_STEP: Final = 1000
_GONE: Final = 0
_THERE: Final = 1
_LOST_PLACE: Final = (errors.UnknownMessage, errors.NotEnqueued, errors.UnknownQueue, errors.OutcomeUnknown)
_ONE_MESSAGE: Final = (lib.LS_UNKNOWN_MESSAGE, lib.LS_CORRUPT, lib.LS_IO)  # errors that concern a single message

_new_unset = ffi.new_allocator(should_clear_after_alloc=False)


class Queue(QueueCalls):
    """The handle of a declared queue, which holds the store's only acquisition state for it."""

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
        self._lock = QuickLock(f"queue {name!r}")
        self._disturbed = False
        self._window: SortedDict[int, Place] = SortedDict()
        self._acquired: dict[int, Place] = {}
        self._locked: dict[int, Place] = {}
        self._cursor: Any = None
        self._places: Any = None
        self._seen_rollbacks = 0

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
        try:
            entered = self._lock.once()
            with entered:
                if self._disturbed:
                    self._start_over()
                self._disturbed = True
                while len(taken) < n:
                    if not self._window:  # nothing came back, so the core's next places can be handed out directly
                        if not self._hand_out_next(n - len(taken), taken):
                            break
                        continue
                    self._fill(n - len(taken))
                    self._hand_out(n - len(taken), taken)
                self._disturbed = False
            if load and taken:
                self._load(taken)
            return taken
        except BaseException:
            if taken:
                entered = self._lock.once()
                with entered:
                    self._take_back(taken)
            raise

    def _take_back(self, taken: list[Delivery]) -> None:
        """Undoes an acquisition whose caller got an exception: the places wait again with their old counts."""
        self._disturbed = True
        self._start_over()
        for delivery in taken:
            place = delivery._place
            place.deliveries = delivery.delivery_count - 1
            self._window[place.position] = place
            self._acquired.pop(place.position, None)

    def _start_over(self) -> None:
        """Repairs the state after an interrupted change: the window is right, and the cursor restarts at the front."""
        window = dict(dict.items(self._window))  # only the entries: the sorted order may not be up to date
        for position in window:
            self._acquired.pop(position, None)
        self._window = SortedDict(window)
        self._cursor = None
        self._seen_rollbacks = -1
        self._disturbed = False

    def _hand_out_next(self, n: int, taken: list[Delivery]) -> bool:
        """Hands out the core's next places without the window. False if the core has none."""
        self._seen_rollbacks = self._store._releases.rollbacks
        rows = self._next_rows(min(n, _FETCH_MAX))
        for position, message_id, content_bytes, _, recovered in rows:
            if position in self._acquired:
                continue
            place = self._locked.get(position) if self._locked else None
            if place is None:
                place = Place(position, message_id, recovered != 0, content_bytes)
            place.deliveries += 1
            taken.append(Delivery(self, place))
            self._acquired[position] = place
        if self._locked:
            for position, *_ in rows:
                self._locked.pop(position, None)
        return bool(rows)

    def _load(self, deliveries: list[Delivery]) -> None:
        """Reads headers and contents, many in one call; skips those that do not fit or cannot be read."""
        first, left = 0, _LOAD_BYTES
        while first < len(deliveries):
            room, last = 0, first
            while last < len(deliveries):
                needed = deliveries[last]._place.content_bytes + _HEADER_BYTES
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

    def _hand_out(self, n: int, taken: list[Delivery]) -> None:
        count = min(n, len(self._window))
        places = list(self._window.values()[:count])
        for place, state in zip(places, self._states(places), strict=True):
            if state != _THERE:  # gone; or locked: after a rollback the cursor returns to it
                if state != _GONE and place.deliveries > 0:
                    self._set_aside(place)
            else:
                place.deliveries += 1
                taken.append(Delivery(self, place))
                self._acquired[place.position] = place
            self._window.pop(place.position, None)

    def _set_aside(self, place: Place) -> None:
        """Keeps the delivery count of a place that a transaction has locked."""
        self._locked[place.position] = place
        if len(self._locked) > _FETCH_MAX:
            places = list(self._locked.values())
            for known, state in zip(places, self._states(places), strict=True):
                if state == _GONE:
                    del self._locked[known.position]

    def _states(self, places: list[Place]) -> bytes:
        ids = array.array("Q", [place.id for place in places])
        positions = array.array("Q", [place.position for place in places])
        states = ffi.new("uint8_t[]", len(places))
        check(
            lib.ls_places_check(
                self._store._c,
                self._id,
                ffi.from_buffer("uint64_t[]", ids),
                ffi.from_buffer("uint64_t[]", positions),
                len(places),
                states,
            )
        )
        return bytes(ffi.buffer(states))

    def _fill(self, n: int) -> None:
        """Fetches until the window has ``n`` places. After a rollback the cursor is back at an earlier place; then it
        fetches everything up to the window's last position.
        """
        rollbacks = self._store._releases.rollbacks
        behind = rollbacks != self._seen_rollbacks
        self._seen_rollbacks = rollbacks
        while len(self._window) < n or behind:
            last = self._fetch(min(max(n, 1), _FETCH_MAX))
            if last is None:
                return
            behind = behind and bool(self._window) and last < self._window.peekitem(-1)[0]

    def _fetch(self, n: int) -> int | None:
        """Fetches the next ``n`` places into the window. Returns the last one's position, None if there was none."""
        rows = self._next_rows(n)
        for position, message_id, content_bytes, _, recovered in rows:
            if position not in self._acquired and position not in self._window:
                known = self._locked.get(position)
                self._window[position] = known or Place(position, message_id, recovered != 0, content_bytes)
                self._locked.pop(position, None)
        return rows[-1][0] if rows else None

    def _next_rows(self, n: int) -> list[tuple[int, int, int, int, int]]:
        """The core's next places, as :func:`~logstore.core.native.places_of` gives them."""
        if self._cursor is None:
            made = ffi.new("ls_cursor **")
            check(lib.ls_cursor_open(self._store._c, self._id, lib.LS_CURSOR_OFFER, made))
            self._cursor = ffi.gc(made[0], lib.ls_cursor_close)
            self._places = ffi.new("ls_place[]", _FETCH_MAX)
        done = ffi.new("size_t *")
        check(lib.ls_cursor_next(self._cursor, self._places, n, done))
        return places_of(self._places, done[0])

    # ---- settling ----

    def _check_acquired(self, delivery: Delivery) -> None:
        if type(delivery) is not Delivery:
            arguments.instance("delivery", delivery, Delivery)
        if delivery._queue is not self:
            raise errors.NotEnqueued(f"message {delivery.id} was not acquired from queue {self._name!r}")
        place = delivery._place
        known = self._acquired.get(place.position)
        if delivery._settled or known is None or known.deliveries != delivery.delivery_count:
            raise errors.NotEnqueued(
                f"message {delivery.id} is no longer acquired from queue {self._name!r}: it was settled before"
            )

    def _settle(self, delivery: Delivery, dequeue: Callable[[], object]) -> None:
        """Settles with ``dequeue``. The place stays acquired until that has succeeded, and if the store refuses it."""
        claimed = False
        try:
            entered = self._lock.once()
            with entered:
                self._check_acquired(delivery)
                claimed = True
                delivery._settled = True
            dequeue()
            self._acquired.pop(delivery._place.position, None)
        except _LOST_PLACE:
            if claimed:
                self._acquired.pop(delivery._place.position, None)
            raise
        except BaseException:
            if claimed:
                self._unclaim(delivery)
            raise

    def _unclaim(self, delivery: Delivery) -> None:
        delivery._settled = False
        with contextlib.suppress(errors.StoreError):
            if self._states([delivery._place])[0] == _GONE:  # the exception came after the dequeue
                self._acquired.pop(delivery._place.position, None)

    def accept(self, delivery: Delivery, *, transaction: Transaction | None = None, wait: bool = True) -> None:
        """See :meth:`Delivery.accept`."""
        if transaction is not None:
            self._settle_within(transaction, delivery, REASON_ACCEPTED)
            return
        self._settle(delivery, lambda: self._dequeue(delivery, REASON_ACCEPTED, None, wait=wait))

    def _dequeue(self, delivery: Delivery, reason: int, transaction: Transaction | None, *, wait: bool) -> None:
        self._store._dequeue(delivery.id, self._id, transaction, reason, delivery.delivery_count, wait=wait)

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
        try:
            entered = self._lock.once()
            with entered:
                for delivery in batch:
                    self._check_acquired(delivery)
                    claimed.append(delivery)
                    delivery._settled = True
            self._dequeue_many(batch, done, wait=wait)
            self._drop_acquired(batch)
        except BaseException as problem:
            for delivery in claimed[done[0] :]:
                delivery._settled = False
            self._drop_acquired(claimed[: done[0]])
            if isinstance(problem, errors.StoreError):
                problem.dequeued = int(done[0])  # type: ignore[attr-defined] # set only here
            raise

    def _dequeue_many(self, batch: list[Delivery], done: Any, *, wait: bool) -> None:
        check(
            lib.ls_settle_many(
                self._store._c,
                ffi.from_buffer("uint64_t[]", array.array("Q", [delivery.id for delivery in batch])),
                ffi.from_buffer(
                    "uint16_t[]", array.array("H", [min(each.delivery_count, _COUNT_MAX) for each in batch])
                ),
                len(batch),
                self._id,
                REASON_ACCEPTED,
                lib.LS_WAIT if wait else 0,
                done,
            )
        )

    def _drop_acquired(self, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            self._acquired.pop(delivery._place.position, None)

    def _settle_within(self, transaction: Transaction, delivery: Delivery, reason: int) -> None:
        """Dequeues in the transaction; the place stays acquired until the commit."""
        entered = self._lock.once()
        with entered:
            self._check_acquired(delivery)
        try:
            self._dequeue(delivery, reason, transaction, wait=False)
        except (errors.UnknownMessage, errors.NotEnqueued, errors.UnknownQueue) as problem:
            if isinstance(problem, errors.UnknownQueue) or self._states([delivery._place])[0] == _GONE:
                self._forget_delivery(delivery)
            raise
        transaction._on_commit.append(lambda: self._forget_delivery(delivery))

    def _forget_delivery(self, delivery: Delivery) -> None:
        entered = self._lock.once()
        with entered:
            if not delivery._settled:  # otherwise it was released meanwhile
                delivery._settled = True
                self._acquired.pop(delivery._place.position, None)

    def release(self, delivery: Delivery) -> None:
        """See :meth:`Delivery.release`."""
        entered = self._lock.once()
        with entered:
            if self._disturbed:
                self._start_over()
            self._check_acquired(delivery)
            place = delivery._place
            self._disturbed = True
            self._window[place.position] = place
            self._acquired.pop(place.position, None)
            delivery._settled = True
            self._disturbed = False
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
        purged = 0
        entered = self._lock.once()
        with entered:  # no place may be handed out meanwhile
            for position, message_id in places:
                if position in self._acquired:
                    continue
                with contextlib.suppress(errors.UnknownMessage, errors.NotEnqueued, errors.MessageLocked):
                    self._store._dequeue(message_id, self._id, None, REASON_PURGED, 0, wait=False)
                    purged += 1
        return purged

    def _acquired_count(self) -> int:
        return len(self._acquired)

    def _forget(self) -> None:
        """Clears the state of a deleted queue. Takes no lock: the core refuses every later operation on the queue."""
        self._window = SortedDict()
        self._acquired = {}
        self._locked = {}

    def __repr__(self) -> str:
        return f"<Queue {self._name!r} id {self._id}>"
