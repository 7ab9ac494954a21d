"""Many names in one call: each batch is one commit of the catalog, all of it or nothing.

On a replicated store a batch is one change of its log, with the deletions of all its queues. Every entry is checked
before the first takes effect, and an error names the entry's position. What a batch does is what the calls for one do:
:mod:`logstore.store.names` has both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from logstore.catalog.rows import BindingRow, ExchangeRow
from logstore.core.arguments import instance, optional, text
from logstore.store.declarations import QueueDeclaration, batch_of, each, refuse_twice
from logstore.store.names import Names, exchange_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from logstore.catalog.catalog import Catalog
    from logstore.catalog.rows import StoredBinding, StoredExchange
    from logstore.store.queues import Queue


class NameBatches(Names):
    """The part of :class:`~logstore.MessageStore` that changes many names in one call."""

    def declare_queues(self, declarations: Iterable[QueueDeclaration]) -> list[Queue]:
        """As :meth:`declare_queue` for each of at most 10,000 declarations; returns the queues in their order.

        One commit of the catalog makes all that do not exist, durable on return; on a replicated store they must fit in
        one record of its log, else ``OptionError``. A ``dead_letter`` may name a queue of an earlier declaration. After
        an error no queue was made. Raises also ``OptionError`` for a name that occurs twice, and for an empty batch.
        """
        batch = batch_of("declarations", declarations, "QueueDeclarations")
        what = "a QueueDeclaration"
        wanted = each(
            "declarations",
            batch,
            lambda one: self._wanted(instance("each of declarations", one, QueueDeclaration, what=what)),
        )
        return self._declare(self._names(), wanted, "declarations")

    def delete_queues(self, queues: Iterable[Queue | str], *, wait: bool = True) -> None:
        """As :meth:`delete_queue` for each of at most 10,000 queues, in one commit of the catalog.

        A dead-letter queue may be deleted together with the queues that name it. After an error no queue was deleted,
        unless the log failed after the commit: the next open completes the deletion. Raises also ``OptionError`` for a
        queue that occurs twice, and for an empty batch.
        """
        wait = bool(wait)  # may raise; then nothing is deleted
        batch = batch_of("queues", queues, "queues and names")
        catalog = self._names()
        with catalog.changes():
            self._follow(catalog)
            seen: set[int] = set()

            def known(queue: Queue | str) -> Queue:
                found = self._known(queue)
                refuse_twice(seen, found.id, f"queue {found.name!r}")
                return found

            self._delete(catalog, each("queues", batch, known))
        if wait:
            self.force_unless_relaxed()

    def declare_exchanges(self, exchanges: Iterable[ExchangeRow]) -> None:
        """As :meth:`declare_exchange` for each of at most 10,000 exchanges, in one commit of the catalog.

        An ``alternate`` may name an earlier one of them. Durable on return; after an error none was made. Raises also
        ``OptionError`` for a name that occurs twice, and for an empty batch.
        """
        catalog, batch = self._names(), batch_of("exchanges", exchanges, "ExchangeRows")
        seen: set[str] = set()

        def stored(exchange: ExchangeRow) -> StoredExchange:
            instance("each of exchanges", exchange, ExchangeRow, what="an ExchangeRow")
            optional(text, "alternate", exchange.alternate)
            found = catalog.checked_exchange(exchange.name, exchange.type, exchange.arguments, exchange.alternate)
            refuse_twice(seen, found.name, f"exchange {found.name!r}")
            return found

        wanted = each("exchanges", batch, stored)
        with catalog.changes():
            catalog.declare_exchanges(wanted)

    def delete_exchanges(self, exchanges: Iterable[ExchangeRow | str]) -> None:
        """As :meth:`delete_exchange` for each of at most 10,000 exchanges, in one commit of the catalog.

        After an error none was deleted. Raises ``CatalogError`` for one that is the alternate of another one, also of
        one in the batch, and ``OptionError`` for one that occurs twice, and for an empty batch.
        """
        catalog, batch = self._names(), batch_of("exchanges", exchanges, "exchanges and names")
        with catalog.changes():
            seen: set[str] = set()

            def known(exchange: ExchangeRow | str) -> str:
                found = catalog.exchange(exchange_name(exchange)).name
                refuse_twice(seen, found, f"exchange {found!r}")
                return found

            catalog.delete_exchanges(each("exchanges", batch, known))

    def bind_many(self, bindings: Iterable[BindingRow]) -> None:
        """As :meth:`bind` for each of at most 10,000 bindings, in one commit of the catalog; durable on return.

        A :class:`BindingRow` names exchange and queue, as those of :meth:`bindings` do. After an error none was made.
        Raises also ``OptionError`` for a binding that occurs twice, and for an empty batch.
        """
        catalog, batch = self._names(), batch_of("bindings", bindings, "BindingRows")
        with catalog.changes():
            catalog.bind_many(self._bindings_of(catalog, batch))

    def unbind_many(self, bindings: Iterable[BindingRow]) -> None:
        """As :meth:`unbind` for each of at most 10,000 bindings, in one commit of the catalog; see :meth:`bind_many`.

        A binding that does not exist is left out.
        """
        catalog, batch = self._names(), batch_of("bindings", bindings, "BindingRows")
        with catalog.changes():
            catalog.unbind_many(self._bindings_of(catalog, batch))

    def _bindings_of(self, catalog: Catalog, batch: list[BindingRow]) -> list[StoredBinding]:
        seen: set[StoredBinding] = set()

        def stored(binding: BindingRow) -> StoredBinding:
            instance("each of bindings", binding, BindingRow, what="a BindingRow")
            exchange, queue = text("the exchange", binding.exchange), text("the queue", binding.queue)
            self._refuse_transient_binding(queue)
            found = catalog.checked_binding(exchange, queue, binding.key, binding.arguments)
            refuse_twice(seen, found, f"the binding of queue {queue!r} to exchange {exchange!r}")
            return found

        return each("bindings", batch, stored)
