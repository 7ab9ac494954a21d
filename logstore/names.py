"""The part of a store that is names: queues, exchanges, bindings and configuration, kept in the catalog.

A queue's row is durably committed before the log may name it, and deleted before the log says so. Where a commit's
answer never came, the queue that it was to delete is *in question*: nothing is put on it before the catalog has told,
for the next open would drop it.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, cast

from logstore import errors
from logstore._core import ffi, lib
from logstore._native import check
from logstore.queues import Queue

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterable, Iterator, Mapping, MutableMapping

    from logstore.catalog import BindingRow, Catalog, ExchangeRow, QueueRow
    from logstore.store import MessageStore

_ONE_QUEUE: Final = (Queue, str)


class Names:
    """What :class:`~logstore.store.MessageStore` has of the catalog."""

    _c: Any
    _pid: int
    _closed: bool
    _lock: threading.RLock
    _catalog: Catalog | None
    _queues: dict[int, Queue]
    _by_name: dict[str, Queue]  # those in question too
    _in_question: Mapping[int, Queue] = MappingProxyType({})  # replaced as a whole
    _followed: int = 0  # how many of the catalog's reloads are reflected here

    def _names(self) -> Catalog:
        if self._closed or self._catalog is None:
            raise errors.StoreClosed("the store is closed; open it again")
        self._not_forked()
        return self._catalog

    def _not_forked(self) -> None:
        if os.getpid() != self._pid:
            raise errors.StoreForked(
                "this process is a fork of the one that opened the store; open it again after fork"
            )

    def declare_queue(
        self, name: str, *, arguments: Mapping[str, Any] | None = None, dead_letter: Queue | str | None = None
    ) -> Queue:
        """The queue of this name, made if there is none; durable on return.

        ``arguments`` is a mapping that JSON can hold, opaque to the store. ``dead_letter`` is where rejected messages
        go. Raises ``QueueExists`` if it is there with others, ``UnknownQueue`` for a dead-letter queue that is not.
        """
        with self._change_names() as catalog:
            row, _ = catalog.declare_queue(
                name,
                arguments=arguments,
                dead_letter=None if dead_letter is None else self._name_of(dead_letter),
            )
            if row.id not in self._queues:
                self._add(row)
            return self._queues[row.id]

    @contextmanager
    def _change_names(self) -> Iterator[Catalog]:
        """One change at a time, after what is known of all earlier ones. Messages go on meanwhile."""
        catalog = self._names()
        with catalog.changes():
            self._follow(catalog)
            yield catalog

    def _follow(self, catalog: Catalog) -> None:
        """Do what the catalog did without telling: its memory was read anew."""
        if catalog.reloads == self._followed:
            return
        rows = {row.id: row for row in catalog.queues()}
        known = {**self._queues, **self._in_question}
        for queue_id in rows.keys() - known.keys():
            self._add(rows[queue_id])
        with self._lock:
            self._queues.update((queue_id, self._in_question[queue_id]) for queue_id in self._in_question.keys() & rows)
            self._in_question = MappingProxyType({})
            self._followed = catalog.reloads
        gone = [queue for queue_id, queue in known.items() if queue_id not in rows]
        for queue in gone:
            self._forget(queue)
        for queue in gone:
            check(lib.ls_queue_delete(self._c, queue.id, lib.LS_WAIT))

    def _look_again(self) -> None:
        """Find out what is in question, where anything may be. Raises ``CatalogUnavailable``."""
        catalog = self._names()
        if catalog.settled and catalog.reloads == self._followed:
            return
        with self._change_names():
            pass

    def _add(self, row: QueueRow) -> None:
        check(lib.ls_queue_add(self._c, row.id))
        with self._lock:
            self._remember(row)

    def _remember(self, row: QueueRow) -> None:
        """One handle for a queue, and so one acquisition state."""
        queue = Queue(cast("MessageStore", self), row.id, row.name, row.arguments, row.dead_letter)
        self._queues[queue.id] = queue
        self._by_name[queue.name] = queue

    def _forget(self, queue: Queue) -> None:
        with self._lock:
            self._queues.pop(queue.id, None)
            self._by_name.pop(queue.name, None)
        queue._forget()

    def queue(self, name: str) -> Queue:
        """The handle of a declared queue. Raises ``UnknownQueue``.

        ``CatalogUnavailable`` if it may have been declared by a change whose outcome is not known yet.
        """
        self._names()
        known = self._by_name.get(name)
        if known is None:
            self._look_again()
            known = self._by_name.get(name)
        if known is None:
            raise errors.UnknownQueue(f"there is no queue {name!r}; declare it first")
        return known

    def queues(self) -> list[Queue]:
        """All queues, by id."""
        if self._names().reloads != self._followed:
            self._look_again()
        with self._lock:
            known = {**self._queues, **self._in_question}
        return [known[queue_id] for queue_id in sorted(known)]

    def delete_queue(self, queue: Queue | str, *, wait: bool = True) -> None:
        """The queue goes, with its bindings and its places; messages without another place go with it.

        Raises ``UnknownQueue``, or ``CatalogError`` while it is another queue's dead-letter queue. If it is interrupted
        after the catalog's commit, the next open finishes it.
        """
        with self._change_names() as catalog:
            known = self._known(queue)
            try:
                catalog.delete_queue(known.id)
            except errors.CatalogError:
                if not catalog.settled:
                    self._question(known)
                raise
            self._forget(known)
        check(lib.ls_queue_delete(self._c, known.id, lib.LS_WAIT if wait else 0))

    def _question(self, queue: Queue) -> None:
        """Whether it is deleted nobody knows."""
        with self._lock:
            self._queues.pop(queue.id, None)
            self._in_question = MappingProxyType({**self._in_question, queue.id: queue})

    def declare_exchange(
        self,
        name: str,
        *,
        type: str = "direct",  # noqa: A002 - AMQP's own word
        arguments: Mapping[str, Any] | None = None,
        alternate: str | None = None,
    ) -> ExchangeRow:
        """The exchange of this name, made if there is none. Raises ``CatalogError`` if it differs."""
        return self._names().declare_exchange(name, type=type, arguments=arguments, alternate=alternate)[0]

    def exchange(self, name: str) -> ExchangeRow:
        """A declared exchange: ``name, type, arguments, alternate``. Raises ``UnknownExchange``."""
        return self._names().exchange(name)

    def exchanges(self) -> list[ExchangeRow]:
        """All exchanges, by name."""
        return self._names().exchanges()

    def delete_exchange(self, exchange: ExchangeRow | str) -> None:
        """The exchange goes, with its bindings. Raises ``UnknownExchange``."""
        self._names().delete_exchange(exchange if isinstance(exchange, str) else exchange.name)

    def bind(
        self,
        exchange: ExchangeRow | str,
        queue: Queue | str,
        key: str = "",
        *,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        """Binds them; the same pair may be bound again with another key or other arguments."""
        self._names().bind(*self._pair(exchange, queue), key, arguments=arguments)

    def unbind(
        self,
        exchange: ExchangeRow | str,
        queue: Queue | str,
        key: str = "",
        *,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        """Takes back the binding of exactly this key and these arguments."""
        self._names().unbind(*self._pair(exchange, queue), key, arguments=arguments)

    def _pair(self, exchange: ExchangeRow | str, queue: Queue | str) -> tuple[str, str]:
        return exchange if isinstance(exchange, str) else exchange.name, self._name_of(queue)

    def bindings(self) -> list[BindingRow]:
        """All bindings: ``exchange, queue, key, arguments``."""
        return self._names().bindings()

    @property
    def config(self) -> MutableMapping[str, str]:
        """General configuration, kept in the catalog: str to str."""
        return self._names().config

    def _known(self, queue: Queue | str) -> Queue:
        """The handle, of this store and not deleted.

        Raises ``UnknownQueue``, or ``CatalogUnavailable`` while nobody knows whether it was.
        """
        if type(queue) is Queue and self._queues.get(queue._id) is queue:
            return queue  # nearly always
        if isinstance(queue, str):
            queue = self.queue(queue)
        elif not isinstance(queue, Queue):
            raise TypeError(f"a queue is a Queue or its name, not {queue!r}")
        self._names()
        if queue._id in self._in_question:
            self._answer(queue)
        if self._queues.get(queue._id) is queue:
            return queue
        raise errors.UnknownQueue(f"queue {queue.name!r} was deleted, or is of another store; declare it first")

    def _answer(self, queue: Queue) -> None:
        try:
            self._look_again()
        except errors.CatalogUnavailable as error:
            raise errors.CatalogUnavailable(
                f"whether queue {queue.name!r} was deleted is not known until the catalog can be asked: {error.message}"
            ) from error

    def _name_of(self, queue: Queue | str) -> str:
        return queue if isinstance(queue, str) else self._known(queue).name

    def _queue_ids(self, queues: Queue | str | Iterable[Queue | str]) -> tuple[Any, int]:
        if isinstance(queues, _ONE_QUEUE):
            return self._known(queues)._c_id, 1
        ids = [self._known(queue).id for queue in queues]
        if not ids:
            raise errors.OptionError("no queue is named; give at least one")
        return ffi.new("uint32_t[]", ids), len(ids)
