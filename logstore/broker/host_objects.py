"""The exchanges, queues and bindings of a virtual host, in step with the catalog of its store.

Durable exchanges, durable shared queues and the bindings between them are in the store's catalog, and durable there
before a client gets the reply. All others exist only here, in memory. `VirtualHost` makes the changes.

After a change with an unknown outcome, the catalog is asked until it answers, and its contents replace those here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any, Final

from logstore.broker.arguments import (
    AUTO_DELETE_KEY,
    INTERNAL_KEY,
    QueueArguments,
    inequivalent,
    stored_queue_arguments,
)
from logstore.broker.catalog_changes import CatalogChanges
from logstore.broker.durable_queue import DurableQueue
from logstore.broker.errors import RESOURCE_LOCKED, ChannelException, not_found
from logstore.broker.exchanges import (
    DEFAULT_EXCHANGE,
    EXCHANGE_TYPES,
    Binding,
    DefaultExchange,
    Exchange,
    canonical_arguments,
)
from logstore.broker.memory_queue import MemoryQueue
from logstore.broker.overflow import OverflowLog
from logstore.broker.stored_changes import StoredChanges
from logstore.errors import CatalogError

if TYPE_CHECKING:
    from collections.abc import Callable

    from logstore import MessageStore, Queue
    from logstore.broker.memory import MemoryBudget
    from logstore.broker.queues import BrokerQueue
    from logstore.broker.wakeups import WakeUps
    from logstore.catalog.catalog import ExchangeRow

logger = logging.getLogger(__name__)

FIND_OUT_S: Final = 1.0  # between two attempts to learn the outcome of a change


class HostObjects:
    """All exchanges, queues and bindings by name. The predeclared exchanges must be in the store."""

    if TYPE_CHECKING:

        def _watch_unused(self, queue: BrokerQueue, delay_s: float) -> None:
            """Of VirtualHost."""

    def __init__(self, name: str, store: MessageStore, wakeups: WakeUps, budget: MemoryBudget) -> None:
        self.name = name
        self.store = store
        self.wakeups = wakeups
        self.budget = budget
        self.queues: dict[str, BrokerQueue] = {}
        self._owned: dict[object, set[BrokerQueue]] = {}  # exclusive queues by connection
        self.exchanges: dict[str, Exchange] = {DEFAULT_EXCHANGE: DefaultExchange(self.queues)}
        self.changes = CatalogChanges(wakeups.loop)
        self.overflow = OverflowLog(wakeups)
        self._stored = StoredChanges(store, self._store)
        self._finding_out = False
        self._load()

    def _load(self) -> None:
        for handle in self.store.queues():
            self._add_durable_queue(handle)
        for row in self.store.exchanges():
            self._add_durable_exchange(row)
        self._link_durable()

    def _add_durable_exchange(self, row: ExchangeRow) -> None:
        if row.type not in EXCHANGE_TYPES:
            logger.warning("exchange %r has type %r, which this broker does not have: ignored", row.name, row.type)
            return
        flags = row.arguments or {}
        self.exchanges[row.name] = Exchange(
            row.name,
            row.type,
            durable=True,
            auto_delete=flags.get(AUTO_DELETE_KEY) is True,
            internal=flags.get(INTERNAL_KEY) is True,
        )

    def _link_durable(self) -> set[Binding]:
        """Make every binding of the catalog. Returns all of them."""
        stored = set()
        for row in self.store.bindings():
            exchange, queue = self.exchanges.get(row.exchange), self.queues.get(row.queue)
            if exchange is not None and queue is not None:
                canonical = canonical_arguments(row.arguments)
                self._link(exchange, queue, row.key, canonical)
                stored.add(Binding(row.exchange, row.queue, row.key, canonical))
        return stored

    # Changing the catalog.

    async def _store(self, change: Callable[[], Any]) -> Any:
        """Make a change of the catalog in another thread; the caller holds the turn. Raises `StoreError`."""
        try:
            return await self.changes.do(change)
        except CatalogError:
            if not self.store.names_are_settled:
                self._find_out()
            raise

    def _find_out(self) -> None:
        """Start to ask for the unknown outcome of a change."""
        if not self._finding_out:
            self._finding_out = True
            self.changes.in_background("reading the outcome of a change of the catalog", self._ask_until_known())

    async def _ask_until_known(self) -> None:
        try:
            while not self.wakeups.stopped:
                await asyncio.sleep(FIND_OUT_S)
                with contextlib.suppress(CatalogError):
                    async with self.changes.turn():
                        await self.changes.do(self.store.settle_names)
                        self._follow_catalog()
                    return
        finally:
            self._finding_out = False

    def _follow_catalog(self) -> None:
        """Replace the durable queues and exchanges by those of the catalog; those in memory stay."""
        handles = {handle.name: handle for handle in self.store.queues()}
        rows = {row.name: row for row in self.store.exchanges()}
        for queue in list(self.queues.values()):
            if isinstance(queue, DurableQueue) and handles.get(queue.name) is not queue.handle:
                self._drop(queue)
        for exchange in list(self.exchanges.values()):
            if exchange.durable and exchange.name not in rows and exchange.name != DEFAULT_EXCHANGE:
                self._drop_exchange(exchange)
        for name, handle in handles.items():
            if name not in self.queues:
                self._add_durable_queue(handle)
        for name, row in rows.items():
            if name not in self.exchanges:
                self._add_durable_exchange(row)
        stored = self._link_durable()
        for exchange in self.exchanges.values():
            for binding in exchange.bindings - stored:
                queue = self.queues[binding.queue]
                if exchange.durable and isinstance(queue, DurableQueue):
                    self._unlink(exchange, queue, binding)

    async def end_memory_queues(self, timeout_s: float) -> None:
        """The host ends, and with it its queues in memory: free what they have in memory and in the log."""
        for queue in list(self.queues.values()):
            if isinstance(queue, MemoryQueue) and not queue.deleted:
                queue.close()
        await self.overflow.finish(timeout_s)

    # Looking up.

    def exchange(self, name: str) -> Exchange:
        """The exchange of that name. Raises 404."""
        exchange = self.exchanges.get(name)
        if exchange is None:
            raise not_found("exchange", name, self.name)
        return exchange

    def queue(self, name: str, connection: object) -> BrokerQueue:
        """The queue of that name. Raises 404, and 405 if it belongs to another connection."""
        queue = self.queues.get(name)
        if queue is None:
            raise not_found("queue", name, self.name)
        if queue.owner is not None and queue.owner is not connection:
            raise locked(name, self.name)
        return queue

    def _drop_exchange(self, exchange: Exchange) -> None:
        del self.exchanges[exchange.name]
        for binding in exchange.bindings:
            self.queues[binding.queue].bindings.discard(binding)

    def _add_durable_queue(self, handle: Queue) -> DurableQueue:
        flags = handle.arguments or {}
        wanted = stored_queue_arguments(flags)
        queue = DurableQueue(
            handle,
            self.wakeups,
            auto_delete=flags.get(AUTO_DELETE_KEY) is True,
            arguments=wanted,
            neighbours=self.queues,
        )
        self._add_queue(queue)
        if handle.depth:
            queue.may_expire()
        return queue

    def _add_queue(self, queue: BrokerQueue) -> None:
        self.queues[queue.name] = queue
        if queue.owner is not None:
            self._owned.setdefault(queue.owner, set()).add(queue)
        if queue.expires_ms is not None:
            self._watch_unused(queue, queue.expires_ms / 1000)

    def _drop(self, queue: BrokerQueue) -> list[Exchange]:
        """Remove a deleted queue. Returns the auto-delete exchanges that lost their last binding."""
        queue.close()
        del self.queues[queue.name]
        if queue.owner in self._owned:
            self._owned[queue.owner].discard(queue)
        unused = [self._unlink(self.exchanges[binding.exchange], queue, binding) for binding in list(queue.bindings)]
        for consumer in list(queue.consumers):
            try:
                consumer.queue_is_gone()
            except Exception:
                logger.exception("a consumer of the deleted queue %r cannot be notified", queue.name)
        return [exchange for exchange in unused if exchange is not None]

    def _link(self, exchange: Exchange, queue: BrokerQueue, key: str, canonical: str) -> None:
        binding = Binding(exchange.name, queue.name, key, canonical)
        if exchange.add(binding, queue):
            queue.bindings.add(binding)

    def _unlink(self, exchange: Exchange, queue: BrokerQueue, binding: Binding) -> Exchange | None:
        """Remove a binding. Returns the exchange if it is auto-delete and has no binding left."""
        exchange.remove(binding, queue)
        queue.bindings.discard(binding)
        return exchange if exchange.auto_delete and not exchange.bindings else None


def locked(name: str, vhost: str) -> ChannelException:
    """405: the queue belongs to another connection."""
    return ChannelException(
        RESOURCE_LOCKED,
        f"cannot obtain exclusive access to locked queue '{name}' in vhost '{vhost}'. It could be originally "
        "declared on another connection or the exclusive property value does not match that of the "
        "original declaration.",
    )


def check_same(
    vhost: str, queue: BrokerQueue, durable: bool, exclusive: bool, auto_delete: bool, wanted: QueueArguments
) -> None:
    """Check that a declaration fits the queue that exists. Raises a 405 or 406 channel exception."""
    if exclusive != queue.exclusive:
        raise locked(queue.name, vhost)
    is_durable = queue.declared_durable if isinstance(queue, MemoryQueue) else True
    for key, received, current in (
        ("durable", durable, is_durable),
        ("auto_delete", auto_delete, queue.auto_delete),
        *((key, value, queue.arguments.by_key()[key]) for key, value in wanted.by_key().items()),
    ):
        if received != current:
            raise inequivalent(key, "queue", queue.name, vhost, received, current)
