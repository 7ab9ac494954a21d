"""The store's part of changes of exchanges, queues and bindings: a call for one, or one for many that wait together."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any

from logstore.broker.catalog_changes import Kind
from logstore.broker.errors import STORE_ENDED
from logstore.errors import CatalogUnavailable, StoreError, UnknownExchange, UnknownQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from logstore import BindingRow, ExchangeRow, MessageStore, Queue, QueueDeclaration

logger = logging.getLogger(__name__)


class StoredChanges:
    """The kinds of changes that share a commit, each of exchanges, of queues or of bindings."""

    def __init__(self, store: MessageStore, in_thread: Callable[[Callable[[], Any]], Coroutine[Any, Any, Any]]) -> None:
        self._store = store
        self._in_thread = in_thread
        self.declaring_exchanges = self._kind(self._declare_exchange, store.declare_exchanges)
        self.deleting_exchanges = self._kind(self._delete_exchange, store.delete_exchanges)
        self.declaring = self._kind(self._declare, store.declare_queues)
        self.deleting = self._kind(self._delete, lambda many: store.delete_queues(many, wait=False))
        self.binding = self._kind(self._bind, store.bind_many)
        self.unbinding = self._kind(self._unbind, store.unbind_many)

    def _kind(self, one: Callable[[Any], object], many: Callable[[list[Any]], object]) -> Kind:
        async def make(given: list[Any]) -> list[Any]:
            if len(given) == 1:
                return [await self._in_thread(lambda: one(given[0]))]
            made = await self._in_thread(lambda: many(given))
            return made if isinstance(made, list) else [None] * len(given)

        return Kind(make, self._may_be_alone)

    def _may_be_alone(self, error: Exception) -> bool:
        if not isinstance(error, StoreError) or isinstance(error, (CatalogUnavailable, *STORE_ENDED)):
            return False
        try:
            return self._store.names_are_settled  # else some of the changes may have been made
        except StoreError:  # it is closed
            return False

    def _declare_exchange(self, wanted: ExchangeRow) -> None:
        self._store.declare_exchange(wanted.name, type=wanted.type, arguments=wanted.arguments or None)

    def _delete_exchange(self, name: str) -> None:
        with contextlib.suppress(UnknownExchange):  # deleted from the store already
            self._store.delete_exchange(name)

    def _declare(self, wanted: QueueDeclaration) -> Queue:
        return self._store.declare_queue(wanted.name, arguments=wanted.arguments)

    def _delete(self, queue: Queue) -> None:
        try:
            self._store.delete_queue(queue, wait=False)
        except UnknownQueue:
            logger.info("queue %r was deleted from the store before", queue.name)

    def _bind(self, row: BindingRow) -> None:
        self._store.bind(row.exchange, row.queue, row.key, arguments=row.arguments)

    def _unbind(self, row: BindingRow) -> None:
        self._store.unbind(row.exchange, row.queue, row.key, arguments=row.arguments)
