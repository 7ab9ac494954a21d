"""One virtual host: every change to its exchanges, queues and bindings.

Changes of the catalog run off the event loop: each is checked, made durable and applied in its turn, so no client sees
a partial change. Those of one kind that wait share a commit (`catalog_changes`). A declaration of an existing object,
or of one in memory, is answered at once.
"""

from __future__ import annotations

import base64
import functools
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
)
from logstore.broker.catalog_changes import Change, no_more
from logstore.broker.durable_queue import DurableQueue
from logstore.broker.errors import (
    ACCESS_REFUSED,
    COMMAND_INVALID,
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
    Exchange,
    canonical_arguments,
)
from logstore.broker.host_objects import HostObjects, check_same
from logstore.broker.memory_queue import MemoryQueue
from logstore.catalog.rows import BindingRow, ExchangeRow
from logstore.errors import CatalogError, StoreError
from logstore.store.declarations import QueueDeclaration

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Mapping

    from logstore import MessageStore, Queue
    from logstore.broker.catalog_changes import Further
    from logstore.broker.queues import BrokerQueue

logger = logging.getLogger(__name__)

RESERVED_PREFIX = "amq."


def predeclare(store: MessageStore) -> None:
    """Declare the exchanges that every host has. It waits for the disk if one is missing."""
    present = {row.name for row in store.exchanges()}
    for name, kind in PREDECLARED.items():
        if name not in present:
            store.declare_exchange(name, type=kind)


class VirtualHost(HostObjects):
    """All exchanges, queues and bindings by name; every change to them is made here.

    The predeclared exchanges must be in the store.
    """

    # Exchanges.

    async def declare_exchange(
        self,
        wanted: Exchange,
        arguments: Mapping[str, Any] | None,
        answer: Callable[[], object],
        further: Further = no_more,
    ) -> None:
        """Declare an exchange, or check that an existing one is the same; then call `answer`.

        `further` gives the next `stored_exchange` that waits behind this one, to be made together with it.
        """

        def make_in_memory() -> None:
            if not self._has_exchange(wanted, arguments):
                self.exchanges[wanted.name] = wanted
            answer()

        change = self.stored_exchange(wanted, arguments, answer)
        if change is not None:
            change.further = further
            await self.changes.make(self._stored.declaring_exchanges, change)
        elif wanted.name in self.exchanges or not self.changes.involves("exchange", wanted.name):
            make_in_memory()
        else:
            async with self.changes.turn(("exchange", wanted.name)):
                make_in_memory()

    def stored_exchange(
        self, wanted: Exchange, arguments: Mapping[str, Any] | None, answer: Callable[[], object]
    ) -> Change | None:
        """The declaration of a durable exchange; None if it exists, or is not durable.

        Raises what a client gets for an exchange that it may not declare.
        """
        if wanted.kind not in EXCHANGE_TYPES:
            if wanted.kind == "headers":
                raise not_implemented("exchange type 'headers' is not implemented by this broker")
            raise ConnectionException(COMMAND_INVALID, f"unknown exchange type '{wanted.kind}'")
        if self._has_exchange(wanted, arguments):
            return None
        if wanted.name.startswith(RESERVED_PREFIX):
            raise ChannelException(ACCESS_REFUSED, f"exchange name '{wanted.name}' contains reserved prefix 'amq.*'")
        if not wanted.durable:
            return None
        flags = {AUTO_DELETE_KEY: wanted.auto_delete, INTERNAL_KEY: wanted.internal}
        row = ExchangeRow(wanted.name, wanted.kind, {key: True for key, value in flags.items() if value})

        def check() -> ExchangeRow | None:
            if not self._has_exchange(wanted, arguments):
                return row
            answer()
            return None

        def apply(_: object) -> None:
            self.exchanges[wanted.name] = wanted
            answer()

        return Change((("exchange", wanted.name),), wanted.name, check, apply)

    def _has_exchange(self, wanted: Exchange, arguments: Mapping[str, Any] | None) -> bool:
        """Whether the exchange exists. Raises if it differs, or if there are unsupported arguments."""
        found = self.exchanges.get(wanted.name)
        if found is not None:
            for key, attribute in (
                ("type", "kind"),
                ("durable", "durable"),
                ("auto_delete", "auto_delete"),
                ("internal", "internal"),
            ):
                asked, current = getattr(wanted, attribute), getattr(found, attribute)
                if asked != current:
                    raise inequivalent(key, "exchange", wanted.name, self.name, asked, current)
        refuse_all("exchange", wanted.name, arguments, self.name)
        return found is not None

    async def delete_exchange(
        self, name: str, *, if_unused: bool, answer: Callable[[], object], further: Further = no_more
    ) -> None:
        """Delete an exchange with its bindings, if there is one; then call `answer`.

        `further` gives the next `stored_exchange_deletion` that waits behind this one, to be made together with it.
        """
        change = self.stored_exchange_deletion(name, if_unused=if_unused, answer=answer)
        if change is not None:
            change.further = further
            await self.changes.make(self._stored.deleting_exchanges, change)
            return
        exchange = self.exchanges.get(name)
        if exchange is not None:
            self._drop_exchange(exchange)
        answer()

    def stored_exchange_deletion(self, name: str, *, if_unused: bool, answer: Callable[[], object]) -> Change | None:
        """The deletion of a durable exchange; None if there is none of that name.

        Raises what a client gets for an exchange that it may not delete.
        """
        if name == DEFAULT_EXCHANGE or name.startswith(RESERVED_PREFIX):
            raise ChannelException(ACCESS_REFUSED, f"deletion of system exchange '{name}' not allowed")
        exchange = self._deletable_exchange(name, if_unused=if_unused)
        if exchange is None or not exchange.durable:
            return None

        def check() -> str | None:
            exchange = self._deletable_exchange(name, if_unused=if_unused)
            if exchange is not None and exchange.durable:
                return name
            apply()
            return None

        def apply(_: object = None) -> None:
            exchange = self.exchanges.get(name)
            if exchange is not None:
                self._drop_exchange(exchange)
            answer()

        return Change((("exchange", name),), name, check, apply)

    def _deletable_exchange(self, name: str, *, if_unused: bool) -> Exchange | None:
        exchange = self.exchanges.get(name)
        if exchange is not None and if_unused and exchange.bindings:
            raise precondition_failed(f"exchange '{name}' in vhost '{self.name}' in use")
        return exchange

    async def _delete_unused(self, exchanges: Iterable[Exchange]) -> None:
        """Delete auto-delete exchanges that lost their last binding and still have none."""
        refused = []
        for exchange in exchanges:
            if self.exchanges.get(exchange.name) is not exchange or exchange.bindings:
                continue
            try:
                await self.delete_exchange(exchange.name, if_unused=True, answer=lambda: None)
            except ChannelException:
                pass  # it has a binding again
            except CatalogError as error:
                logger.warning("unused exchange %r cannot be deleted yet: %s", exchange.name, error)
                refused.append(exchange)
            except StoreError as error:
                logger.warning("unused exchange %r cannot be deleted: %s", exchange.name, error)
        if refused:
            what = "deleting exchanges without bindings"
            self.changes.later(what, functools.partial(self._delete_unused, refused))

    # Queues.

    def new_queue_name(self) -> str:
        """A unique name for a queue that is declared without one."""
        return "amq.gen-" + base64.urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=")

    async def declare_queue(
        self,
        name: str,
        connection: object,
        *,
        durable: bool,
        exclusive: bool,
        auto_delete: bool,
        arguments: Mapping[str, Any],
        answer: Callable[[BrokerQueue], object],
        further: Further = no_more,
    ) -> None:
        """Declare a queue, or check that an existing one is the same; `answer` is called with it.

        `further` gives the next `stored_declaration` that waits behind this one, to be made together with it.
        """
        wanted = parse_queue_arguments(name, arguments, self.name)

        def find() -> bool:
            if name not in self.queues:
                return False
            queue = self.queue(name, connection)
            check_same(self.name, queue, durable, exclusive, auto_delete, wanted)
            queue.touch()
            answer(queue)
            return True

        def make_in_memory() -> None:
            queue = MemoryQueue(
                name,
                self.wakeups,
                self.budget.queues,
                self.overflow,
                declared_durable=durable,
                exclusive=exclusive,
                auto_delete=auto_delete,
                owner=connection if exclusive else None,
                arguments=wanted,
            )
            self._add_queue(queue)
            answer(queue)

        if find():
            return
        self._refuse_reserved(name)
        if durable and not exclusive:
            change = self._declaration(name, wanted, auto_delete, answer)
            declare = change.check
            change.check = lambda: None if find() else declare()
            change.further = further
            await self.changes.make(self._stored.declaring, change)
        elif not self.changes.involves("queue", name):
            make_in_memory()
        else:
            async with self.changes.turn(("queue", name)):
                if not find():
                    make_in_memory()

    def stored_declaration(
        self,
        name: str,
        *,
        auto_delete: bool,
        arguments: Mapping[str, Any],
        answer: Callable[[BrokerQueue], object],
    ) -> Change | None:
        """The declaration of a durable shared queue; None if there is a queue of that name.

        Raises what a client gets for a queue that it may not declare.
        """
        if name in self.queues:
            return None
        self._refuse_reserved(name)
        return self._declaration(name, parse_queue_arguments(name, arguments, self.name), auto_delete, answer)

    def _refuse_reserved(self, name: str) -> None:
        if name.startswith(RESERVED_PREFIX) and not name.startswith("amq.gen-"):
            raise ChannelException(ACCESS_REFUSED, f"queue name '{name}' contains reserved prefix 'amq.*'")

    def _declaration(
        self, name: str, wanted: QueueArguments, auto_delete: bool, answer: Callable[[BrokerQueue], object]
    ) -> Change:
        table: dict[str, Any] = dict(wanted.table())
        if auto_delete:
            table[AUTO_DELETE_KEY] = True
        return Change(
            names=(("queue", name),),
            key=name,
            check=lambda: QueueDeclaration(name, table or None),
            apply=lambda handle: answer(self._add_durable_queue(handle)),
        )

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
        what = f"deleting the unused queue {queue.name!r}"
        self.changes.in_background(what, self._delete_unused_queue(queue, expires_s))

    async def _delete_unused_queue(self, queue: BrokerQueue, expires_s: float) -> None:
        try:
            await self.delete_queue(queue, unless=lambda: _is_used_again(queue, expires_s))
        finally:
            if not queue.deleted:
                self._watch_unused(queue, expires_s)

    async def delete_queue(self, queue: BrokerQueue, *, unless: Callable[[], bool] = lambda: False) -> int:
        """Delete a queue with its messages and bindings. Returns the number of messages that waited.

        `unless` is called when the turn of this deletion has come. If it returns True or raises, nothing is deleted.
        """
        count = 0
        unused: list[Exchange] = []

        def check() -> Queue | None:
            nonlocal count
            if queue.deleted or unless():
                return None
            count = queue.ready_count
            if not isinstance(queue, DurableQueue):
                return None
            queue.is_leaving = True
            return queue.handle

        def apply(_: object = None) -> None:
            unused.extend(self._drop(queue))

        if isinstance(queue, DurableQueue):
            try:
                change = Change(names=(("queue", queue.name),), key=queue.name, check=check, apply=apply)
                await self.changes.make(self._stored.deleting, change)
            finally:
                queue.is_leaving = False
        elif not (queue.deleted or unless()):
            count = queue.ready_count
            apply()
        await self._delete_unused(unused)
        return count

    def consumer_left(self, queue: BrokerQueue) -> Coroutine[Any, Any, object] | None:
        """A consumer was cancelled. Returns the deletion of an auto-delete queue that has no consumer left."""
        if not queue.auto_delete or queue.consumers or queue.deleted:
            return None
        return self._delete_left(queue)

    async def _delete_left(self, queue: BrokerQueue) -> None:
        """Delete an auto-delete queue without consumers: now, or when the catalog does not refuse it any more."""
        try:
            await self.delete_queue(queue, unless=lambda: bool(queue.consumers))
        except CatalogError:
            what = f"deleting the queue {queue.name!r}, whose last consumer has left"
            self.changes.later(what, functools.partial(self._delete_left, queue))
            raise

    def connection_gone(self, connection: object) -> None:
        """Delete the exclusive queues of a connection, at once: they are in memory."""
        unused: list[Exchange] = []
        for queue in self._owned.pop(connection, ()):
            try:
                unused += self._drop(queue)
            except Exception:
                logger.exception("queue %r cannot be removed completely", queue.name)
        if unused:
            self.changes.in_background("deleting exchanges without bindings", self._delete_unused(unused))

    # Bindings.

    async def bind(
        self,
        exchange_name: str,
        queue: BrokerQueue,
        key: str,
        arguments: Mapping[str, Any],
        answer: Callable[[], object],
        further: Further = no_more,
    ) -> None:
        """Bind a queue to an exchange, and call `answer`; repeating a binding changes nothing.

        `further` gives the next `stored_binding` that waits behind this one, to be made together with it.
        """
        exchange = self._bindable(exchange_name)
        change = self.stored_binding(exchange_name, queue, key, arguments, answer)
        if change is None:
            self._link(exchange, queue, key, canonical_arguments(arguments))
            answer()
        else:
            change.further = further
            await self.changes.make(self._stored.binding, change)

    def stored_binding(
        self,
        exchange_name: str,
        queue: BrokerQueue,
        key: str,
        arguments: Mapping[str, Any],
        answer: Callable[[], object],
    ) -> Change | None:
        """The binding of a durable queue to a durable exchange; None if there is nothing to store.

        Raises what a client gets for a binding that it may not make.
        """
        exchange = self._bindable(exchange_name)
        canonical = canonical_arguments(arguments)
        binding = Binding(exchange_name, queue.name, key, canonical)
        if binding in exchange.bindings or not (exchange.durable and isinstance(queue, DurableQueue)):
            return None

        def check() -> BindingRow | None:
            exchange = self._bindable(exchange_name)
            if queue.deleted:
                raise not_found("queue", queue.name, self.name)
            if binding not in exchange.bindings and exchange.durable:
                return BindingRow(exchange_name, queue.name, key, binding.argument_table)
            apply()
            return None

        def apply(_: object = None) -> None:
            self._link(self.exchanges[exchange_name], queue, key, canonical)
            answer()

        return Change((("exchange", exchange_name), ("queue", queue.name)), binding, check, apply)

    async def unbind(
        self,
        exchange_name: str,
        queue: BrokerQueue,
        key: str,
        arguments: Mapping[str, Any],
        answer: Callable[[], object],
        further: Further = no_more,
    ) -> None:
        """Remove a binding, if there is one, and call `answer`.

        `further` gives the next `stored_removal` that waits behind this one, to be made together with it.
        """
        exchange = self._bindable(exchange_name)
        change = self.stored_removal(exchange_name, queue, key, arguments, answer)
        if change is not None:
            change.further = further
            await self.changes.make(self._stored.unbinding, change)
            return
        binding = Binding(exchange_name, queue.name, key, canonical_arguments(arguments))
        unused: list[Exchange | None] = []
        if binding in exchange.bindings:
            removal = self._removal(queue, binding, unused.append)
            if exchange.durable and isinstance(queue, DurableQueue):
                await self.changes.make(self._stored.unbinding, removal)
            else:
                removal.apply(None)
        await self._delete_unused(each for each in unused if each is not None)
        answer()

    def stored_removal(
        self,
        exchange_name: str,
        queue: BrokerQueue,
        key: str,
        arguments: Mapping[str, Any],
        answer: Callable[[], object],
    ) -> Change | None:
        """The removal of a stored binding from an exchange that stays; None if this is none.

        Raises what a client gets for a binding that it may not remove.
        """
        exchange = self._bindable(exchange_name)
        binding = Binding(exchange_name, queue.name, key, canonical_arguments(arguments))
        is_stored = binding in exchange.bindings and exchange.durable and isinstance(queue, DurableQueue)
        if not is_stored or exchange.auto_delete:
            return None

        def removed(unused: Exchange | None) -> None:
            answer()
            if unused is not None:  # another exchange of its name
                self.changes.in_background("deleting exchanges without bindings", self._delete_unused([unused]))

        return self._removal(queue, binding, removed)

    def _removal(self, queue: BrokerQueue, binding: Binding, removed: Callable[[Exchange | None], object]) -> Change:
        """Calls `removed` at the end, with an auto-delete exchange that has no binding left."""

        def check() -> BindingRow | None:
            exchange = self._bindable(binding.exchange)
            if binding not in exchange.bindings:
                removed(None)
            elif exchange.durable:
                return BindingRow(binding.exchange, queue.name, binding.key, binding.argument_table)
            else:
                apply()
            return None

        def apply(_: object = None) -> None:
            removed(self._unlink(self.exchanges[binding.exchange], queue, binding))

        return Change((("exchange", binding.exchange), ("queue", queue.name)), binding, check, apply)

    def _bindable(self, exchange_name: str) -> Exchange:
        if exchange_name == DEFAULT_EXCHANGE:
            raise ChannelException(ACCESS_REFUSED, "operation not permitted on the default exchange")
        return self.exchange(exchange_name)


def _is_used_again(queue: BrokerQueue, expires_s: float) -> bool:
    return bool(queue.consumers) or queue.wakeups.loop.time() - queue.used_at < expires_s
