"""The store's operations as a transaction has them: no ``transaction=``, no ``wait=``.

Which transaction that is, and what becomes of exceptions, is said by the class that inherits them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from logstore.core import arguments
from logstore.store.deliveries import Delivery
from logstore.store.message_store import MessageStore

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from contextlib import AbstractContextManager

    from logstore.store.queues import Queue
    from logstore.store.transactions import Transaction


class Operations(ABC):
    """What can be done within a transaction. All of it takes effect at the commit, or none."""

    def __init__(self, store: MessageStore) -> None:
        self._store = arguments.instance(
            "store", store, MessageStore, what="a MessageStore, as logstore.open() gives it"
        )

    @abstractmethod
    def _transaction_to_use(self) -> AbstractContextManager[Transaction]:
        """The current transaction, begun if there is none, around one operation."""

    @property
    def store(self) -> MessageStore:
        """The store itself, for everything that is not part of a transaction."""
        return self._store

    def publish(self, queue: Queue | str | Iterable[Queue | str], content: object, *, header: object = b"") -> int:
        """See :meth:`MessageStore.publish`; visible from the commit on."""
        with self._transaction_to_use() as transaction:
            return self._store.publish(queue, content, header=header, transaction=transaction)

    def publish_many(
        self, queue: Queue | str, contents: Iterable[Any], *, headers: Iterable[Any] | None = None
    ) -> Sequence[int]:
        """See :meth:`MessageStore.publish_many`; all visible at once, at the commit."""
        with self._transaction_to_use() as transaction:
            return self._store.publish_many(queue, contents, headers=headers, transaction=transaction)

    def enqueue(self, message_id: int, queue: Queue | str | Iterable[Queue | str]) -> int:
        """See :meth:`MessageStore.enqueue`; visible from the commit on."""
        with self._transaction_to_use() as transaction:
            return self._store.enqueue(message_id, queue, transaction)

    def dequeue(self, message_id: int, queue: Queue | str) -> int:
        """See :meth:`MessageStore.dequeue`; locked until the outcome, gone with the commit."""
        with self._transaction_to_use() as transaction:
            return self._store.dequeue(message_id, queue, transaction)

    def dequeue_many(self, message_ids: Iterable[int], queue: Queue | str) -> None:
        """See :meth:`MessageStore.dequeue_many`; locked until the outcome, gone with the commit."""
        with self._transaction_to_use() as transaction:
            self._store.dequeue_many(message_ids, queue, transaction)

    def accept(self, delivery: Delivery) -> None:
        """See :meth:`Delivery.accept`: gone with the commit; after a rollback it is still acquired."""
        arguments.instance("delivery", delivery, Delivery)
        with self._transaction_to_use() as transaction:
            delivery.accept(transaction=transaction)

    def reject(self, delivery: Delivery) -> None:
        """See :meth:`Delivery.reject`: dead-lettered or gone with the commit; after a rollback still acquired."""
        arguments.instance("delivery", delivery, Delivery)
        with self._transaction_to_use() as transaction:
            delivery.reject(transaction=transaction)
