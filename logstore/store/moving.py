"""The part of :class:`~logstore.store.queues.Queue` that moves messages to other queues, and rejects them.

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
from logstore.store.transactions import handle_of

if TYPE_CHECKING:
    from collections.abc import Callable

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


class Moving:
    """The part of a queue that :mod:`logstore.store.moving` describes."""

    if TYPE_CHECKING:
        _store: MessageStore
        _dead_letter: str | None

        @property
        def _id(self) -> int:
            """Of QueueCalls."""

        def _settle(self, delivery: Delivery | DeliveryToken, dequeue: Callable[[], object]) -> None:
            """Of Queue, as the next two."""

        def _settle_in(
            self, transaction: Transaction, delivery: Delivery | DeliveryToken, dequeue: Callable[[], object]
        ) -> None: ...

        def _settle_within(self, transaction: Transaction, delivery: Delivery | DeliveryToken, reason: int) -> None: ...

        def _dequeue(
            self, delivery: Delivery | DeliveryToken, reason: int, transaction: Transaction | None, *, wait: bool
        ) -> None: ...

    def move(
        self,
        delivery: Delivery | DeliveryToken,
        to: Queue | str,
        *,
        header: object = None,
        note: object = None,
        transaction: Transaction | None = None,
        wait: bool = True,
    ) -> None:
        """Moves the message to the end of the queue ``to``, which may be this one, and settles the delivery.

        One record of the log, whatever the size of the message: it is on one of the queues at every moment, after a
        crash, too. The new place was handed out to nobody, so its count is 0. It has the given ``header`` (bytes,
        which stands for the message's there) and ``note`` (at most 255 bytes); None: what the old place has of its
        own. Takes a delivery or its token. In a transaction it takes effect at the commit.

        Raises ``AlreadyEnqueued`` if ``to`` has the message, ``StoreFull`` (in a transaction a full store takes moves),
        ``OptionError`` for a long note or header, and the errors of ``accept``; then the place stays acquired. Raises
        ``WrongState`` while a member of the cluster runs a program that does not know moves.
        """
        target = self._store._known(to)
        self._store._release_dropped()
        if transaction is None:
            self._settle(delivery, lambda: self._move(delivery, target, header=header, note=note, wait=wait))
        else:
            self._settle_in(
                transaction,
                delivery,
                lambda: self._move(delivery, target, transaction, header=header, note=note, wait=False),
            )

    def _move(
        self,
        delivery: Delivery | DeliveryToken,
        target: Queue,
        transaction: Transaction | None = None,
        *,
        wait: bool,
        **state: Any,
    ) -> None:
        move, kept = place_move(self._id, target._id, **state)
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
        target = self._store.queue(self._dead_letter or "")
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
            self._move(delivery, target, transaction, reason=REASON_DEAD_LETTERED, wait=False)
            return
        # Dequeued first: a message that is already gone must not become a dead letter.
        self._dequeue(delivery, REASON_DEAD_LETTERED, transaction, wait=False)
        with contextlib.suppress(errors.AlreadyEnqueued):
            self._store.enqueue(delivery.id, target, transaction)
