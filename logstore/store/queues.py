"""Queues as a broker sees them: acquiring and settling messages, in order, with delivery counts.

The core keeps which places are acquired and how often each was handed out; :class:`Queue` keeps nothing of that and
takes no lock. So any thread, signal handler or finalizer may enter it at any moment.

A delivery is settled once: its own mark says so first, and the core refuses one whose place was released since. An
exception from a signal handler can interrupt a call between any two steps. So the memory that the core writes to exists
before the call, and an exception's handler looks whether the place is gone. A delivery that is dropped unsettled
releases its place (``_hot/dropped.c``); a token does not, and has no mark: only the core knows whether it was settled.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import itertools
import math
import time
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, Self, overload

from logstore import errors
from logstore._core import ffi, lib
from logstore._hot import QueueCalls
from logstore.core import arguments
from logstore.core.native import check, tell
from logstore.store.counting import acquisitions_of, counts_of, enqueued_at
from logstore.store.deliveries import Delivery, DeliveryToken, Message, MessageView, checked_position
from logstore.store.moving import REASON_ACCEPTED, Moving, place_of
from logstore.store.own_bytes import note_of, own_header
from logstore.store.publishing import checked_id
from logstore.store.times import times_of_place
from logstore.store.transactions import handle_of

if TYPE_CHECKING:
    import builtins  # the class has a property `bytes`
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from datetime import datetime

    from logstore._hot import Owner, Taker
    from logstore.store.counting import Acquisition, QueueCounts
    from logstore.store.listeners import Listener
    from logstore.store.message_store import MessageStore
    from logstore.store.transactions import Transaction

REASON_PURGED: Final = 4

_PURGE_STEP: Final = 1000
_GONE: Final = 0
_LOST_PLACE: Final = (errors.UnknownMessage, errors.NotEnqueued, errors.UnknownQueue, errors.OutcomeUnknown)
_COUNT_MAX: Final = (1 << 32) - 1
_A_DELIVERY: Final = "a Delivery or a DeliveryToken"
_FOREVER_S: Final = 1e9
"""A wait of this length, 31 years, never ends by itself; timers take no infinite time."""


def _until_ns(wait_s: float) -> int:
    return time.monotonic_ns() + int(wait_s * 1e9) if wait_s < _FOREVER_S else (1 << 64) - 1


def _end_wait(served: asyncio.Future[None]) -> None:
    if not served.done():
        served.set_result(None)


@contextlib.contextmanager
def _gone_is_settled() -> Iterator[None]:
    """A token has no mark: whether it was settled before is seen from its message, which may have ended then."""
    try:
        yield
    except errors.UnknownMessage as problem:
        refused = errors.NotEnqueued(f"{problem}; a token of it was settled before")
        refused.__dict__.update(problem.__dict__)  # how many were settled
        raise refused from problem


class Queue(Moving, QueueCalls):
    """The handle of a declared queue."""

    def __init__(
        self,
        store: MessageStore,
        queue_id: int,
        name: str,
        arguments: Mapping[str, Any],
        dead_letter: str | None,
        *,
        transient: bool = False,
    ) -> None:
        self._store = store
        self._attach(store, queue_id)
        self._name = name
        self._arguments = dict(arguments)
        self._dead_letter = dead_letter
        self._transient = transient
        self._c_id = ffi.new("uint32_t[1]", [queue_id])

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
        """The arguments it was declared with, or that ``update_queue`` gave it since, as a copy."""
        return dict(self._arguments)

    @property
    def dead_letter(self) -> str | None:
        """The name of the queue that rejected messages go to; None if there is none."""
        return self._dead_letter

    @property
    def transient(self) -> bool:
        """Whether it ends with this open of the store, because the catalog does not have it."""
        return self._transient

    @property
    def depth(self) -> int:
        """The number of its places: waiting, acquired, locked, hidden and expired ones."""
        return counts_of(self._store, self._id).depth

    @property
    def ready(self) -> int:
        """The number of places that are neither acquired nor locked, hidden nor expired.

        Some may not be durable yet; an acquire gets durable ones only.
        """
        return self.counts().ready

    @property
    def acquired(self) -> int:
        """The number of places that consumers have acquired; one that a transaction has locked too is not counted."""
        return self.counts().acquired

    @property
    def locked(self) -> int:
        """The number of places that transactions without an outcome have dequeued."""
        return self.counts().locked

    @property
    def hidden(self) -> int:
        """The number of places that are not offered before a time that has not come; neither acquired nor locked."""
        return self.counts().hidden

    @property
    def bytes(self) -> int:
        """Content bytes of all its places, headers not counted."""
        return self.counts().bytes

    @property
    def ready_bytes(self) -> int:
        """Content bytes of its ready places."""
        return self.counts().ready_bytes

    def counts(self) -> QueueCounts:
        """All counts of one moment; the properties, read one after another, are of several moments.

        Takes the same time for a queue of any length. Raises ``UnknownQueue`` after the queue was deleted.
        """
        self._store._release_dropped()
        return counts_of(self._store, self._id)

    def acquisitions(self) -> list[Acquisition]:
        """The places that consumers have acquired, in the order of the queue, each since when.

        Read in steps with no lock held in between: a place that is settled, released or acquired meanwhile is in the
        list or not. Takes time with the length of the queue. Raises ``UnknownQueue`` after the queue was deleted.
        """
        self._store._release_dropped()
        return acquisitions_of(self._store, self._id)

    def _enqueued_at(self, message_id: int, position: int) -> datetime | None:
        """For ``Delivery.enqueued_at``."""
        return enqueued_at(self._store, self._id, message_id, position)

    def _note(self, message_id: int, position: int) -> builtins.bytes:
        """For ``Delivery.note``."""
        return note_of(self._store, self._id, message_id, position)

    def _expires(self, message_id: int, position: int) -> datetime | None:
        """For ``Delivery.expires``."""
        return times_of_place(self._store, self._id, message_id, position)[1]

    def _own_header(self, message_id: int, position: int) -> builtins.bytes:
        """For ``Delivery.header``, of a place that has one of its own."""
        return own_header(self._store, self._id, message_id, position)

    # ---- acquiring ----

    def _acquire_slow(
        self, n: int = 1, *, after: int | None = None, load: bool = False, timeout: float | None = None
    ) -> list[Delivery]:
        """``acquire`` for every form of its arguments; :mod:`logstore._hot` makes the usual call itself."""
        n = arguments.integer("n", n, 0, arguments.LSN_MAX)
        wait_s = 0.0 if timeout is None else arguments.duration("timeout", timeout)
        load = bool(load)
        if after is not None:
            if wait_s > 0:
                raise errors.OptionError("acquire(after=) does not wait: leave out the timeout, or wait for the front")
            return self._acquire_after(n, checked_position("after", after), load)
        if n == 0:
            return []
        until_ns = _until_ns(wait_s)
        if (found := self.acquire(n, load=load)) or wait_s == 0:
            return found
        taker = self._wait_as(n)
        try:
            taker.wait(until_ns)
            return taker.take(load)
        finally:
            taker.give_back()

    async def get(
        self,
        n: int = 1,
        *,
        load: bool = False,
        timeout: float | None = None,  # noqa: ASYNC109 - as acquire has it
    ) -> list[Delivery]:
        """As :meth:`acquire` with a timeout, but only the task waits. Without ``timeout`` it waits for ever.

        A task that is cancelled gives back unseen what it got. Raises what ``acquire`` raises.
        """
        n = arguments.integer("n", n, 0, arguments.LSN_MAX)
        wait_s = math.inf if timeout is None else arguments.duration("timeout", timeout)
        load = bool(load)
        if n == 0 or (found := self.acquire(n, load=load)) or wait_s == 0:
            return found if n else []
        loop = asyncio.get_running_loop()
        inbox = self._store._inboxes.of(loop)
        number, served = inbox.expect()
        taker = timer = None
        try:
            taker = self._wait_as(n, inbox.owner, number)
            if wait_s < _FOREVER_S:
                timer = loop.call_later(wait_s, _end_wait, served)
            await served
            return taker.take(load)
        finally:
            inbox.forget(number)
            if timer is not None:
                timer.cancel()
            if taker is not None:
                taker.give_back()

    def _wait_as(self, n: int, inbox: Owner | None = None, number: int = 0) -> Taker:
        self._store._releases.watch()  # a delivery that another thread drops comes back to those that wait
        return self._taker(n, inbox, number)

    def __aiter__(self) -> Self:
        """``async for delivery in queue``: one after another, without an end; see :meth:`get`."""
        return self

    async def __anext__(self) -> Delivery:
        while True:
            if found := await self.get():
                return found[0]

    def on_arrived(
        self, callback: Callable[[Queue], object], *, loop: asyncio.AbstractEventLoop | None = None, weak: bool = False
    ) -> Listener:
        """Calls ``callback`` with the queue after messages arrived: they were published and are durable.

        One call says "one or more since the last call"; another consumer may have them already. What happens after the
        call began is told by another call, so a callback that acquires what there is misses nothing. Messages that are
        on the queue before this call are not told: look once after it. A thread of the store calls it; with ``loop``,
        that event loop, and this method must be called from that loop's thread. The deletion of the queue ends the
        listener, without a call. ``weak`` and exceptions as for :meth:`MessageStore.on_durable`.

        Raises ``UnknownQueue`` after the queue was deleted.
        """
        return self._store._listen(self, lib.LS_ARRIVED, callback, loop, weak=weak)

    def on_released(
        self, callback: Callable[[Queue], object], *, loop: asyncio.AbstractEventLoop | None = None, weak: bool = False
    ) -> Listener:
        """As :meth:`on_arrived`, after places came back.

        They were released, also by a delivery that was dropped unsettled, or a rollback unlocked them, or they were
        hidden and their time has come.
        """
        made = self._store._listen(self, lib.LS_RELEASED, callback, loop, weak=weak)
        self._store._releases.watch()
        return made

    def on_expired(
        self, callback: Callable[[Queue], object], *, loop: asyncio.AbstractEventLoop | None = None, weak: bool = False
    ) -> Listener:
        """As :meth:`on_arrived`, after messages expired: :meth:`expired` gives them."""
        return self._store._listen(self, lib.LS_EXPIRED, callback, loop, weak=weak)

    def acquire_ids(self, message_ids: Iterable[int], *, load: bool = False) -> list[Delivery]:
        """Acquires exactly these messages, as far as they can be had: durable, on this queue, not locked, not acquired.

        Returns their deliveries in the order of ``message_ids``; the others are left out, as is an id's second
        occurrence. Released, each stands in its old place. ``load`` as in ``acquire``.

        Raises ``UnknownQueue`` after the queue was deleted, ``TypeError`` for an id that is no int, and
        ``UnknownMessage`` for a number that no id can be.
        """
        ids = array.array("Q", map(checked_id, arguments.items("message_ids", message_ids, "message ids")))
        return self._acquire_ids(ids, bool(load))

    def expired(self, n: int = 1, *, load: bool = False) -> list[Delivery]:
        """Acquires the first ``n`` messages of the queue that have expired, in its order; ``[]`` if there are none.

        No other call hands them out. Each is settled, moved or rejected like any delivery; released, it is expired
        again. ``load`` as in ``acquire``. Takes time with the number of messages that it gives.

        Raises ``UnknownQueue`` after the queue was deleted.
        """
        return self._acquire_expired(arguments.integer("n", n, 0, arguments.LSN_MAX), bool(load))

    # ---- settling ----

    def _token_of(self, delivery: Delivery) -> DeliveryToken:
        """For ``Delivery.detach``, which marks the delivery then."""
        self._check_acquired(delivery)
        return DeliveryToken(self._id, delivery.id, delivery.position, delivery.delivery_count, self._store._opened_as)

    def _check_token(self, token: DeliveryToken) -> None:
        for name, most in (("id", arguments.LSN_MAX), ("position", arguments.LSN_MAX), ("count", _COUNT_MAX)):
            arguments.integer(f"the token's {name}", getattr(token, name), 0, most)
        if self._is_deleted or (token.queue, token.opened) != (self._id, self._store._opened_as):
            raise errors.NotEnqueued(
                f"the token of message {token.id} is not of queue {self._name!r}, or of an earlier open of the store"
            )

    def _check_acquired(self, delivery: Delivery | DeliveryToken) -> None:
        if isinstance(delivery, DeliveryToken):
            self._check_token(delivery)
        elif getattr(delivery, "queue", None) is not self or delivery._settled or self._is_deleted:
            self._refuse(delivery)

    def _refuse(self, delivery: Delivery) -> NoReturn:
        arguments.instance("delivery", delivery, Delivery, what=_A_DELIVERY)
        if delivery.queue is not self:
            raise errors.NotEnqueued(f"message {delivery.id} was not acquired from queue {self._name!r}")
        if delivery._detached:
            raise errors.NotEnqueued(
                f"this delivery of message {delivery.id} was detached: settle the message with the token of detach()"
            )
        raise errors.NotEnqueued(
            f"message {delivery.id} is no longer acquired from queue {self._name!r}: it was settled before"
        )

    def _settle(self, delivery: Delivery | DeliveryToken, dequeue: Callable[[], object]) -> None:
        """Settles with ``dequeue``. The place stays acquired until ``dequeue`` has succeeded."""
        self._check_acquired(delivery)
        if isinstance(delivery, DeliveryToken):
            with _gone_is_settled():
                dequeue()
            return
        try:
            delivery._settled = True
            dequeue()
        except _LOST_PLACE:
            raise
        except BaseException:
            delivery._settled = self._is_gone(place_of(delivery))  # or the exception came after the dequeue
            raise

    def _is_gone(self, place: tuple[int, int, int]) -> bool:
        key, position = (ffi.new("uint64_t[1]", [one]) for one in place[:2])
        state = ffi.new("uint8_t[1]")
        code = lib.ls_places_check(self._store._c, self._id, key, position, 1, state)
        return bool(code == 0 and state[0] == _GONE)

    def _accept_slow(
        self, delivery: Delivery | DeliveryToken, *, transaction: Transaction | None = None, wait: bool = True
    ) -> None:
        if transaction is not None:
            self._settle_within(transaction, delivery, REASON_ACCEPTED)
            return
        self._settle(delivery, lambda: self._dequeue(delivery, REASON_ACCEPTED, None, wait=wait))

    def _dequeue(
        self, delivery: Delivery | DeliveryToken, reason: int, transaction: Transaction | None, *, wait: bool
    ) -> None:
        tx = handle_of(self._store, transaction)
        flags = lib.LS_WAIT if wait else 0
        row, lsn = ffi.new("ls_delivery *"), ffi.new("uint64_t *")
        row.id, row.position, row.count = place_of(delivery)
        check(lib.ls_settle(self._store._c, self._id, row, tx, reason, flags, lsn))

    def _accept_many_slow(
        self,
        deliveries: Iterable[Delivery | DeliveryToken],
        *,
        transaction: Transaction | None = None,
        wait: bool = True,
    ) -> None:
        batch: list[Delivery | tuple[int, int, int]] = []
        tokens: set[DeliveryToken] = set()
        before: int | None = None
        try:
            for each in arguments.items("deliveries", deliveries, "deliveries"):
                if isinstance(each, DeliveryToken):
                    self._check_new(each, tokens)
                    tokens.add(each)
                    batch.append(place_of(each))
                else:
                    batch.append(arguments.instance("each of deliveries", each, Delivery, what=_A_DELIVERY))
            handle_of(self._store, transaction)  # raises for one that is not this store's
            before = (
                transaction.operations
                if transaction is not None
                else sum(each._settled for each in batch if isinstance(each, Delivery))
            )
            with _gone_is_settled() if tokens else contextlib.nullcontext():
                self._accept_batch(tuple(batch), bool(wait), transaction)
        except BaseException as problem:
            if before is None or not hasattr(problem, "dequeued"):  # the core's call has not noted it
                tell(problem, "dequeued", 0 if before is None else self._settled_of(batch, transaction) - before)
            raise

    def _settled_of(self, batch: list[Delivery | tuple[int, int, int]], transaction: Transaction | None) -> int:
        if transaction is not None:
            return transaction.operations
        return sum(each._settled if isinstance(each, Delivery) else self._is_gone(each) for each in batch)

    def _check_new(self, token: DeliveryToken, earlier: set[DeliveryToken]) -> None:
        """Checks one of several, so that all are checked before the first is settled."""
        self._check_token(token)
        if token in earlier:
            raise errors.NotEnqueued(f"the token of message {token.id} occurs twice; name each delivery once")

    def _settle_within(self, transaction: Transaction, delivery: Delivery | DeliveryToken, reason: int) -> None:
        self._settle_in(transaction, delivery, lambda: self._dequeue(delivery, reason, transaction, wait=False))

    def _settle_in(
        self, transaction: Transaction, delivery: Delivery | DeliveryToken, dequeue: Callable[[], object]
    ) -> None:
        """Dequeues in the transaction; the place stays acquired until the commit.

        The transaction keeps the delivery until its outcome, so that it is not released before.
        """
        self._check_acquired(delivery)
        if isinstance(delivery, DeliveryToken):
            with _gone_is_settled():
                dequeue()
            return
        try:
            dequeue()
        except (errors.UnknownMessage, errors.NotEnqueued, errors.UnknownQueue) as problem:
            if isinstance(problem, errors.UnknownQueue) or self._is_gone(place_of(delivery)):
                delivery._settled = True
            raise
        transaction._settles((delivery,))

    # ---- the rest ----

    @overload
    def browse(
        self, *, after: int | None = None, load: bool = False, views: Literal[False] = False
    ) -> Iterator[Message]: ...
    @overload
    def browse(
        self, *, after: int | None = None, load: bool = False, views: Literal[True]
    ) -> Iterator[MessageView]: ...
    def browse(self, *, after: int | None = None, load: bool = False, views: bool = False) -> Iterator[Message]:
        """All places in order, acquired and locked ones included; see ``MessageStore.messages``.

        With ``after``, the position of a place, only those after it. Raises ``OptionError`` for a position that no
        place of the queue has had in this open.
        """
        return self._store._messages(self, after=after, load=load, views=views)

    def purge(self, *, wait: bool = True) -> int:
        """Dequeues all messages that are neither acquired nor locked. Returns their number; durable on return.

        Messages published meanwhile stay.
        """
        wait = bool(wait)  # may raise; then nothing is purged
        self._store._release_dropped()
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

    def _forget(self) -> None:
        """The queue was deleted: its deliveries cannot be settled any more."""
        self._is_deleted = True

    def __repr__(self) -> str:
        return f"<Queue {self._name!r} id {self._id}>"
