"""The one virtual host, "/": all exchanges, queues and bindings, and their counterparts in the catalog.

Durable exchanges, durable shared queues and the bindings between them are in the store's catalog, and
durable there before a client hears of them; everything else lives here only.

Catalog work is done on the event loop's thread: a declaration costs a few milliseconds of everyone's
time, and in return no two clients ever see half of one.
"""

from __future__ import annotations

import base64
import logging
import secrets
from typing import TYPE_CHECKING, Any

from logstore.broker.arguments import (
    AUTO_DELETE_KEY,
    INTERNAL_KEY,
    QueueArguments,
    inequivalent,
    parse_queue_arguments,
    refuse_all,
    stored_queue_arguments,
)
from logstore.broker.durable_queue import DurableQueue
from logstore.broker.errors import (
    ACCESS_REFUSED,
    COMMAND_INVALID,
    RESOURCE_LOCKED,
    ChannelException,
    ConnectionException,
    not_found,
    not_implemented,
    precondition_failed,
)
from logstore.broker.exchanges import (
    DEFAULT_EXCHANGE,
    EXCHANGE_TYPES,
    PREDECLARED,
    Binding,
    DefaultExchange,
    Exchange,
    canonical_arguments,
)
from logstore.broker.memory_queue import MemoryBudget, MemoryQueue
from logstore.errors import StoreError, UnknownQueue

if TYPE_CHECKING:
    from collections.abc import Mapping

    from logstore import MessageStore, Queue
    from logstore.broker.queues import BrokerQueue
    from logstore.broker.wakeups import WakeUps

logger = logging.getLogger(__name__)

RESERVED_PREFIX = "amq."


class VirtualHost:
    """Names and what they stand for; every change to them goes through here."""

    def __init__(self, store: MessageStore, wakeups: WakeUps, memory_bytes_max: int) -> None:
        self.store = store
        self.wakeups = wakeups
        self.budget = MemoryBudget(memory_bytes_max)
        self.queues: dict[str, BrokerQueue] = {}
        self._owned: dict[object, set[BrokerQueue]] = {}  # exclusive queues by connection
        self.exchanges: dict[str, Exchange] = {DEFAULT_EXCHANGE: DefaultExchange(self.queues)}
        self._load()

    def _load(self) -> None:
        for handle in self.store.queues():
            self._add_durable_queue(handle)
        present = {row.name: row for row in self.store.exchanges()}
        for name, kind in PREDECLARED.items():
            if name not in present:
                present[name] = self.store.declare_exchange(name, type=kind)
        for name, row in present.items():
            if row.type not in EXCHANGE_TYPES:
                logger.warning("exchange %r has type %r, which this broker lacks: left alone", name, row.type)
                continue
            flags = row.arguments or {}
            self.exchanges[name] = Exchange(
                name,
                row.type,
                durable=True,
                auto_delete=flags.get(AUTO_DELETE_KEY) is True,
                internal=flags.get(INTERNAL_KEY) is True,
            )
        for binding in self.store.bindings():
            exchange, queue = self.exchanges.get(binding.exchange), self.queues.get(binding.queue)
            if exchange is not None and queue is not None:
                self._link(exchange, queue, binding.key, canonical_arguments(binding.arguments))

    # Looking up.

    def exchange(self, name: str) -> Exchange:
        """The exchange of that name. Raises 404."""
        exchange = self.exchanges.get(name)
        if exchange is None:
            raise not_found("exchange", name)
        return exchange

    def queue(self, name: str, connection: object) -> BrokerQueue:
        """The queue of that name. Raises 404, and 405 if it belongs to another connection."""
        queue = self.queues.get(name)
        if queue is None:
            raise not_found("queue", name)
        if queue.owner is not None and queue.owner is not connection:
            raise _locked(name)
        return queue

    # Exchanges.

    def declare_exchange(
        self,
        name: str,
        kind: str,
        *,
        durable: bool,
        auto_delete: bool,
        internal: bool,
        arguments: Mapping[str, Any] | None,
    ) -> None:
        """Declare an exchange, or check that an existing one is the same."""
        if kind not in EXCHANGE_TYPES:
            if kind == "headers":
                raise not_implemented("exchange type 'headers' is not implemented by this broker")
            raise ConnectionException(COMMAND_INVALID, f"unknown exchange type '{kind}'")
        found = self.exchanges.get(name)
        if found is not None:
            asked = {"type": kind, "durable": durable, "auto_delete": auto_delete, "internal": internal}
            current = {
                "type": found.kind,
                "durable": found.durable,
                "auto_delete": found.auto_delete,
                "internal": found.internal,
            }
            for key, value in asked.items():
                if value != current[key]:
                    raise inequivalent(key, "exchange", name, value, current[key])
        refuse_all("exchange", name, arguments)
        if found is not None:
            return
        if name.startswith(RESERVED_PREFIX):
            raise ChannelException(ACCESS_REFUSED, f"exchange name '{name}' contains reserved prefix 'amq.*'")
        if durable:
            flags = {AUTO_DELETE_KEY: auto_delete, INTERNAL_KEY: internal}
            self.store.declare_exchange(
                name, type=kind, arguments={key: True for key, value in flags.items() if value} or None
            )
        self.exchanges[name] = Exchange(name, kind, durable=durable, auto_delete=auto_delete, internal=internal)

    def delete_exchange(self, name: str, *, if_unused: bool) -> None:
        """Delete an exchange with its bindings; one that does not exist is deleted already."""
        if name == DEFAULT_EXCHANGE or name.startswith(RESERVED_PREFIX):
            raise ChannelException(ACCESS_REFUSED, f"deletion of system exchange '{name}' not allowed")
        exchange = self.exchanges.get(name)
        if exchange is None:
            return
        if if_unused and exchange.bindings:
            raise precondition_failed(f"exchange '{name}' in vhost '/' in use")
        if exchange.durable:
            self.store.delete_exchange(name)
        del self.exchanges[name]
        for binding in exchange.bindings:
            self.queues[binding.queue].bindings.discard(binding)

    # Queues.

    def new_queue_name(self) -> str:
        """A name that nobody has, for a queue declared without one."""
        return "amq.gen-" + base64.urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=")

    def declare_queue(
        self,
        name: str,
        connection: object,
        *,
        durable: bool,
        exclusive: bool,
        auto_delete: bool,
        arguments: Mapping[str, Any],
    ) -> BrokerQueue:
        """Declare a queue, or check that an existing one is the same."""
        wanted = parse_queue_arguments(name, arguments)
        if name in self.queues:
            found = self.queue(name, connection)
            _check_same(found, durable, exclusive, auto_delete, wanted)
            found.touch()
            return found
        if name.startswith(RESERVED_PREFIX) and not name.startswith("amq.gen-"):
            raise ChannelException(ACCESS_REFUSED, f"queue name '{name}' contains reserved prefix 'amq.*'")
        if durable and not exclusive:
            table: dict[str, Any] = dict(wanted.table())
            if auto_delete:
                table[AUTO_DELETE_KEY] = True
            return self._add_durable_queue(self.store.declare_queue(name, arguments=table or None))
        queue = MemoryQueue(
            name,
            self.wakeups,
            self.budget,
            declared_durable=durable,
            exclusive=exclusive,
            auto_delete=auto_delete,
            owner=connection if exclusive else None,
            ttl_ms=wanted.ttl_ms,
            expires_ms=wanted.expires_ms,
        )
        self._add_queue(queue)
        return queue

    def _add_durable_queue(self, handle: Queue) -> DurableQueue:
        flags = handle.arguments or {}
        wanted = stored_queue_arguments(flags)
        queue = DurableQueue(
            handle,
            self.wakeups,
            auto_delete=flags.get(AUTO_DELETE_KEY) is True,
            ttl_ms=wanted.ttl_ms,
            expires_ms=wanted.expires_ms,
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

    def _watch_unused(self, queue: BrokerQueue, delay_s: float) -> None:
        queue.unused_timer = self.wakeups.loop.call_later(delay_s, self._delete_if_unused, queue)

    def _delete_if_unused(self, queue: BrokerQueue) -> None:
        if queue.deleted or queue.expires_ms is None or self.wakeups.stopped:
            return
        expires_s = queue.expires_ms / 1000
        unused_s = 0.0 if queue.consumers else self.wakeups.loop.time() - queue.used_at
        if unused_s < expires_s:
            self._watch_unused(queue, expires_s - unused_s)
            return
        try:
            self.delete_queue(queue)
        except StoreError as error:
            logger.warning("queue %r is unused and cannot be deleted: %s", queue.name, error)

    def delete_queue(self, queue: BrokerQueue) -> int:
        """Delete a queue with its messages and bindings; how many messages waited."""
        if queue.deleted:
            return 0
        count = queue.ready_count
        if isinstance(queue, DurableQueue):
            try:
                self.store.delete_queue(queue.handle, wait=False)
            except UnknownQueue:
                logger.info("queue %r was already deleted from the store", queue.name)
        queue.close()
        del self.queues[queue.name]
        if queue.owner in self._owned:
            self._owned[queue.owner].discard(queue)
        for binding in list(queue.bindings):
            self._unlink(self.exchanges[binding.exchange], queue, binding)
        for consumer in list(queue.consumers):
            consumer.queue_is_gone()
        return count

    def consumer_left(self, queue: BrokerQueue) -> None:
        """A consumer was cancelled; an auto-delete queue goes with its last one."""
        if queue.auto_delete and not queue.consumers:
            self.delete_queue(queue)

    def connection_gone(self, connection: object) -> None:
        """Delete the exclusive queues of a connection."""
        for queue in self._owned.pop(connection, ()):
            self.delete_queue(queue)

    # Bindings.

    def bind(self, exchange_name: str, queue: BrokerQueue, key: str, arguments: Mapping[str, Any]) -> None:
        """Bind a queue to an exchange; a second time is harmless."""
        exchange = self._bindable(exchange_name)
        canonical = canonical_arguments(arguments)
        binding = Binding(exchange_name, queue.name, key, canonical)
        if binding in exchange.bindings:
            return
        if exchange.durable and isinstance(queue, DurableQueue):
            self.store.bind(exchange_name, queue.handle, key, arguments=binding.argument_table or None)
        self._link(exchange, queue, key, canonical)

    def unbind(self, exchange_name: str, queue: BrokerQueue, key: str, arguments: Mapping[str, Any]) -> None:
        """Remove a binding; one that does not exist is removed already."""
        exchange = self._bindable(exchange_name)
        binding = Binding(exchange_name, queue.name, key, canonical_arguments(arguments))
        if binding not in exchange.bindings:
            return
        if exchange.durable and isinstance(queue, DurableQueue):
            self.store.unbind(exchange_name, queue.handle, key, arguments=binding.argument_table or None)
        self._unlink(exchange, queue, binding)

    def _bindable(self, exchange_name: str) -> Exchange:
        if exchange_name == DEFAULT_EXCHANGE:
            raise ChannelException(ACCESS_REFUSED, "operation not permitted on the default exchange")
        return self.exchange(exchange_name)

    def _link(self, exchange: Exchange, queue: BrokerQueue, key: str, canonical: str) -> None:
        binding = Binding(exchange.name, queue.name, key, canonical)
        if exchange.add(binding, queue):
            queue.bindings.add(binding)

    def _unlink(self, exchange: Exchange, queue: BrokerQueue, binding: Binding) -> None:
        exchange.remove(binding, queue)
        queue.bindings.discard(binding)
        if exchange.auto_delete and not exchange.bindings and exchange.name in self.exchanges:
            self.delete_exchange(exchange.name, if_unused=False)


def _locked(name: str) -> ChannelException:
    return ChannelException(
        RESOURCE_LOCKED,
        f"cannot obtain exclusive access to locked queue '{name}' in vhost '/'. It could be originally "
        "declared on another connection or the exclusive property value does not match that of the "
        "original declaration.",
    )


def _check_same(queue: BrokerQueue, durable: bool, exclusive: bool, auto_delete: bool, wanted: QueueArguments) -> None:
    if exclusive != queue.exclusive:
        raise _locked(queue.name)
    is_durable = queue.declared_durable if isinstance(queue, MemoryQueue) else True
    for key, received, current in (
        ("durable", durable, is_durable),
        ("auto_delete", auto_delete, queue.auto_delete),
        ("x-message-ttl", wanted.ttl_ms, queue.ttl_ms),
        ("x-expires", wanted.expires_ms, queue.expires_ms),
    ):
        if received != current:
            raise inequivalent(key, "queue", queue.name, received, current)
