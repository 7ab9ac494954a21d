"""The part of :class:`~logstore.store.queues.Queue` that gives messages back, moves them, and rejects them.

A move is one record of the log, so it costs the same whatever the size of the message. In a cluster none is written
before every member knows such records: then ``move`` raises ``WrongState``, and a rejection is a dequeue and an
enqueue.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

from logstore import errors
from logstore._core import ffi, lib
from logstore.core.native import check
from logstore.store.deliveries import Delivery, DeliveryToken
from logstore.store.own_bytes import place_move
from logstore.store.times import NO_TIMES, Times, after_delay, times_of
from logstore.store.transactions import handle_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime, timedelta

    from logstore.store.message_store import MessageStore
    from logstore.store.queues import Queue
    from logstore.store.transactions import Transaction

REASON_ACCEPTED: Final = 1
REASON_REJECTED: Final = 2
REASON_DEAD_LETTERED: Final = 5


def place_of(delivery: Delivery | DeliveryToken) -> tuple[int, int, int]:
    """Id, position and count."""
    if isinstance(delivery, DeliveryToken):
        return delivery.id, delivery.position, delivery.count
    return delivery.id, delivery.position, delivery.delivery_count


def _settled_before(queue: str, token: DeliveryToken) -> errors.NotEnqueued:
    return errors.NotEnqueued(f"message {token.id} is not on queue {queue!r}: its token was settled before")


class Moving:
    """The part of a queue that :mod:`logstore.store.moving` describes."""

    if TYPE_CHECKING:
        _store: MessageStore
        _dead_letter: str | None
        _name: str

        @property
        def _id(self) -> int:
            """Of QueueCalls."""

        def release(
            self,
            delivery: Delivery | DeliveryToken,
            *,
            unseen: bool = False,
            to_back: bool = False,
            wait: bool = False,
            delay: float | timedelta | None = None,
        ) -> None:
            """Of QueueCalls."""

        def _check_acquired(self, delivery: Delivery | DeliveryToken) -> None:
            """Of Queue, as the others."""

        def _is_gone(self, place: tuple[int, int, int]) -> bool: ...

        def _settle(self, delivery: Delivery | DeliveryToken, dequeue: Callable[[], object]) -> None: ...

        def _settle_in(
            self, transaction: Transaction, delivery: Delivery | DeliveryToken, dequeue: Callable[[], object]
        ) -> None: ...

        def _settle_within(self, transaction: Transaction, delivery: Delivery | DeliveryToken, reason: int) -> None: ...

        def _dequeue(
            self, delivery: Delivery | DeliveryToken, reason: int, transaction: Transaction | None, *, wait: bool
        ) -> None: ...

    def _release_slow(
        self,
        delivery: Delivery | DeliveryToken,
        *,
        unseen: bool = False,
        to_back: bool = False,
        wait: bool = False,
        delay: float | timedelta | None = None,
    ) -> None:
        unseen, to_back, wait = bool(unseen), bool(to_back), bool(wait)
        times = NO_TIMES if delay is None else after_delay(delay)
        if to_back and unseen:
            raise errors.OptionError(
                "a message that nobody has seen keeps its old place: give unseen or to_back, not both"
            )
        if wait and not to_back and delay is None:
            raise errors.OptionError(
                "wait is for to_back and delay: a release to the old place at once needs no record of the log"
            )
        self._check_acquired(delivery)
        if to_back:
            self._settle(
                delivery,
                lambda: self._move(delivery, self._id, times=times, keeps_count=True, keeps_expiry=True, wait=wait),
            )
            self._came_back()
            return
        if times:
            flags = (lib.LS_UNSEEN if unseen else 0) | (lib.LS_WAIT if wait else 0)
            self._settle(delivery, lambda: self._delay(delivery, times, flags))
            return
        if not isinstance(delivery, DeliveryToken):
            self.release(delivery, unseen=bool(unseen))
            return
        if self._is_gone(place_of(delivery)):  # ls_release finds nothing to do, which is no error of a delivery
            raise _settled_before(self._name, delivery)
        row = ffi.new("ls_delivery *")
        row.id, row.position, row.count = place_of(delivery)
        code = lib.ls_release(self._store._c, self._id, row, 1, lib.LS_UNSEEN if unseen else 0)
        if code not in (lib.LS_CLOSED, lib.LS_FORKED):  # after those, nothing is acquired
            check(code)
        self._came_back()

    def _delay(self, delivery: Delivery | DeliveryToken, times: Times, flags: int) -> None:
        if isinstance(delivery, DeliveryToken) and self._is_gone(place_of(delivery)):
            raise _settled_before(self._name, delivery)
        row = ffi.new("ls_delivery *")
        row.id, row.position, row.count = place_of(delivery)
        check(lib.ls_delay(self._store._c, self._id, row, 1, times.not_before_us, flags))

    def _came_back(self) -> None:
        """A place was released."""
        self._store._releases.tell()

    def _move_slow(
        self,
        delivery: Delivery | DeliveryToken,
        to: Queue | str,
        *,
        header: object = None,
        note: object = None,
        not_before: float | datetime | None = None,
        expires: float | datetime | None = None,
        transaction: Transaction | None = None,
        wait: bool = True,
    ) -> None:
        target = self._store._known(to).id
        times = times_of(not_before, expires)
        self._store._release_dropped()
        if transaction is None:
            self._settle(
                delivery, lambda: self._move(delivery, target, header=header, note=note, times=times, wait=wait)
            )
        else:
            self._settle_in(
                transaction,
                delivery,
                lambda: self._move(delivery, target, transaction, header=header, note=note, times=times, wait=False),
            )

    def _move(
        self,
        delivery: Delivery | DeliveryToken,
        target: int,
        transaction: Transaction | None = None,
        *,
        wait: bool,
        **state: Any,
    ) -> None:
        move, kept = place_move(self._id, target, **state)
        tx = handle_of(self._store, transaction)
        row, lsn = ffi.new("ls_delivery *"), ffi.new("uint64_t *")
        row.id, row.position, row.count = place_of(delivery)
        check(lib.ls_move(self._store._c, row.id, move, row, tx, lib.LS_WAIT if wait else 0, lsn))
        del kept

    def reject(
        self, delivery: Delivery | DeliveryToken, *, transaction: Transaction | None = None, wait: bool = True
    ) -> None:
        """See :meth:`Delivery.reject`. Takes a delivery or its token."""
        self._store._release_dropped()
        if self._dead_letter is None and transaction is not None:
            self._settle_within(transaction, delivery, REASON_REJECTED)
        elif self._dead_letter is None:
            self._settle(delivery, lambda: self._dequeue(delivery, REASON_REJECTED, None, wait=wait))
        elif transaction is not None:
            self._settle_in(transaction, delivery, lambda: self._dead_letter_in(delivery, transaction))
        else:
            self._settle(delivery, lambda: self._dead_letter_it(delivery, wait=wait))

    def _dead_letter_it(self, delivery: Delivery | DeliveryToken, *, wait: bool) -> None:
        target = self._store.queue(self._dead_letter or "").id
        with contextlib.suppress(errors.StoreFull, errors.WrongState, errors.AlreadyEnqueued):
            self._move(delivery, target, reason=REASON_DEAD_LETTERED, wait=wait)
            return
        transaction = self._store.begin()  # a full store takes it: the message only changes its queue
        try:
            self._dead_letter_in(delivery, transaction)
            transaction.commit(wait=wait)
        except BaseException:
            if transaction.state == "active":
                transaction.rollback(wait=False)
            raise

    def _dead_letter_in(self, delivery: Delivery | DeliveryToken, transaction: Transaction) -> None:
        target = self._store.queue(self._dead_letter or "")
        with contextlib.suppress(errors.WrongState, errors.AlreadyEnqueued):
            self._move(delivery, target.id, transaction, reason=REASON_DEAD_LETTERED, wait=False)
            return
        # Dequeued first: a message that is already gone must not become a dead letter.
        self._dequeue(delivery, REASON_DEAD_LETTERED, transaction, wait=False)
        with contextlib.suppress(errors.AlreadyEnqueued):
            self._store.enqueue(delivery.id, target, transaction)
