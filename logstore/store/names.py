"""The part of a store that is names: queues, exchanges, bindings and configuration, kept in the catalog.

A queue's row is durably committed before the log may name it, and deleted before the log says so. Where a commit's
answer never came, the queue that it was to delete is *in question*: nothing is put on it before the catalog has told,
for the next open would drop it. So is a queue while it is being deleted.

Changes come one at a time, under the catalog's lock; readers take none, for what they look at is replaced by single
assignments. An exception at any moment, from a signal handler say, leaves the names behind the catalog, which shows in
that the catalog's queues are another object than those that were followed: the next change, or the next look at a
queue that is not there, follows.
"""

from __future__ import annotations

import os
import threading
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, cast

from logstore import errors
from logstore._core import ffi, lib
from logstore.catalog.rows import ExchangeRow
from logstore.core.arguments import instance, items, one_of, optional, shown, text
from logstore.core.native import check, failure
from logstore.store.queues import Queue

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, MutableMapping

    from logstore._core import ls_store_ptr
    from logstore.catalog.catalog import BindingRow, Catalog, QueueRow
    from logstore.catalog.rows import StoredQueue
    from logstore.store.message_store import MessageStore

_ONE_QUEUE: Final = (Queue, str)


class Names:
    """What :class:`~logstore.MessageStore` has of the catalog."""

    _c: ls_store_ptr
    _pid: int
    _closed: bool
    _catalog: Catalog | None
    _queues: dict[int, Queue]
    _by_name: dict[str, Queue]  # those in question too
    _in_question: Mapping[int, Queue] = MappingProxyType({})  # replaced as a whole
    _waits_not_in: int | None = None  # the thread that must not wait for the catalog
    _followed: Mapping[str, StoredQueue] | None = None  # the catalog's queues that are reflected here

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
        if dead_letter is not None:
            one_of("dead_letter", dead_letter, _ONE_QUEUE, "a Queue or its name")
        wanted = None if dead_letter is None else self._name_of(dead_letter)
        catalog = self._names()
        known = catalog.declared_queue(name, arguments=arguments, dead_letter=wanted)
        queue = None if known is None else self._queues.get(known.id)
        if queue is not None:
            return queue
        with catalog.changes():
            self._follow(catalog)
            row, _ = catalog.declare_queue(name, arguments=arguments, dead_letter=wanted, within=True)
            if row.id not in self._queues:
                self._add(row)
            self._followed = catalog.stored_queues
            return self._queues[row.id]

    def _follow(self, catalog: Catalog) -> None:
        """Does what the catalog did without this: its memory was read anew, or an exception came in between."""
        if self._has_followed(catalog):
            return
        stored = catalog.stored_queues
        rows = {row.id: row for row in catalog.queues()}
        for queue_id, row in rows.items():
            known = self._queues.get(queue_id) or self._in_question.get(queue_id)
            if known is None:
                self._add(row)
            else:
                self._remember(known)
        for queue in [known for queue_id, known in self._all_queues().items() if queue_id not in rows]:
            self._end(queue)
        self._in_question = MappingProxyType({})
        self._followed = stored

    def _has_followed(self, catalog: Catalog) -> bool:
        return catalog.settled and not self._in_question and catalog.stored_queues is self._followed

    @property
    def names_are_settled(self) -> bool:
        """Whether the outcome of every change of the catalog is known; False also while one is being committed."""
        return self._has_followed(self._names())

    def settle_names(self) -> None:
        """Finds out what is in question, where anything may be. Raises ``CatalogUnavailable``."""
        catalog = self._names()
        if self._has_followed(catalog):
            return
        if threading.get_ident() == self._waits_not_in:
            raise errors.CatalogUnavailable("the outcome of a change of the catalog is not known yet; try again later")
        with catalog.changes():
            self._follow(catalog)

    def never_wait_for_names_here(self) -> None:
        """From now on what would have to ask the catalog first, in the calling thread, raises ``CatalogUnavailable``.

        For the thread of an event loop, such as a broker's, which has another one call :meth:`settle_names`. Changes of
        the catalog itself wait as ever.
        """
        self._waits_not_in = threading.get_ident()

    def _add(self, row: QueueRow) -> None:
        """One handle for a queue, and so one acquisition state."""
        check(lib.ls_queue_add(self._c, row.id))
        self._remember(self._handle(row))

    def _handle(self, row: QueueRow) -> Queue:
        return Queue(cast("MessageStore", self), row.id, row.name, row.arguments, row.dead_letter)

    def _remember(self, queue: Queue) -> None:
        self._queues[queue.id] = queue
        self._by_name[queue.name] = queue

    def _end(self, queue: Queue) -> None:
        """The catalog has deleted it: its places go, then all that is known of it."""
        code = lib.ls_queue_delete(self._c, queue.id, 0)
        problem = failure(code) if code not in (0, lib.LS_UNKNOWN_QUEUE) else None  # it may have been ended before
        self._forget(queue)
        if problem is not None:  # the next open finishes it
            raise problem

    def _forget(self, queue: Queue) -> None:
        self._queues.pop(queue.id, None)
        if self._by_name.get(queue.name) is queue:
            del self._by_name[queue.name]
        self._unquestion(queue)
        queue._forget()

    def _all_queues(self) -> dict[int, Queue]:
        return {**self._queues, **self._in_question}

    def queue(self, name: str) -> Queue:
        """The handle of a declared queue. Raises ``UnknownQueue``.

        ``CatalogUnavailable`` if it may have been declared by a change whose outcome is not known yet.
        """
        self._names()
        if type(name) is not str:
            instance("name", name, str)
        known = self._by_name.get(name)
        if known is None:
            self.settle_names()
            known = self._by_name.get(name)
        if known is None:
            raise errors.UnknownQueue(f"there is no queue {name!r}; declare it first")
        return known

    def queues(self) -> list[Queue]:
        """All queues, by id."""
        if self._names().stored_queues is not self._followed:
            self.settle_names()
        known = self._all_queues()
        return [known[queue_id] for queue_id in sorted(known)]

    def delete_queue(self, queue: Queue | str, *, wait: bool = True) -> None:
        """The queue goes, with its bindings and its places; messages without another place go with it.

        Raises ``UnknownQueue``, or ``CatalogError`` while it is another queue's dead-letter queue. If it is interrupted
        after the catalog's commit, the next open finishes it.
        """
        wait = bool(wait)  # which may raise; then nothing is deleted
        catalog = self._names()
        with catalog.changes():
            self._follow(catalog)
            known = self._known(queue)
            self._question(known)
            try:
                catalog.delete_queue(known.id, within=True)
            except errors.StoreError:
                if catalog.settled and known.name in catalog.stored_queues:
                    self._remember(known)
                    self._unquestion(known)
                raise
            self._end(known)
            self._followed = catalog.stored_queues
        if wait:
            cast("MessageStore", self).force_unless_relaxed()

    def _question(self, queue: Queue) -> None:
        """Whether it is deleted nobody knows."""
        self._in_question = MappingProxyType({**self._in_question, queue.id: queue})
        self._queues.pop(queue.id, None)

    def _unquestion(self, queue: Queue) -> None:
        left = {queue_id: other for queue_id, other in self._in_question.items() if queue_id != queue.id}
        self._in_question = MappingProxyType(left)

    def declare_exchange(
        self,
        name: str,
        *,
        type: str = "direct",  # noqa: A002 - AMQP's own word
        arguments: Mapping[str, Any] | None = None,
        alternate: str | None = None,
    ) -> ExchangeRow:
        """The exchange of this name, made if there is none. Raises ``CatalogError`` if it differs."""
        optional(text, "alternate", alternate)
        return self._names().declare_exchange(name, type=type, arguments=arguments, alternate=alternate)[0]

    def exchange(self, name: str) -> ExchangeRow:
        """A declared exchange: ``name, type, arguments, alternate``. Raises ``UnknownExchange``."""
        return self._names().exchange(instance("name", name, str))

    def exchanges(self) -> list[ExchangeRow]:
        """All exchanges, by name."""
        return self._names().exchanges()

    def delete_exchange(self, exchange: ExchangeRow | str) -> None:
        """The exchange goes, with its bindings. Raises ``UnknownExchange``."""
        self._names().delete_exchange(_exchange_name(exchange))

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
        return _exchange_name(exchange), self._name_of(queue)

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
            raise TypeError(f"a queue is a Queue or its name, not {shown(queue)}")
        self._names()
        if queue._id in self._in_question:
            self._answer(queue)
        if self._queues.get(queue._id) is queue:
            return queue
        raise errors.UnknownQueue(f"queue {queue.name!r} was deleted, or is of another store; declare it first")

    def _answer(self, queue: Queue) -> None:
        try:
            self.settle_names()
        except errors.CatalogUnavailable as error:
            raise errors.CatalogUnavailable(
                f"whether queue {queue.name!r} was deleted is not known until the catalog can be asked: {error.message}"
            ) from error

    def _name_of(self, queue: Queue | str) -> str:
        return queue if isinstance(queue, str) else self._known(queue).name

    def _queue_ids(self, queues: Queue | str | Iterable[Queue | str]) -> tuple[Any, int]:
        if isinstance(queues, _ONE_QUEUE):
            return self._known(queues)._c_id, 1
        ids = [self._known(queue).id for queue in items("queue", queues, "queues and names, or one of them")]
        if not ids:
            raise errors.OptionError("no queue is named; give at least one")
        return ffi.new("uint32_t[]", ids), len(ids)


def _exchange_name(exchange: ExchangeRow | str) -> str:
    one_of("exchange", exchange, (ExchangeRow, str), "an exchange or its name")
    return exchange if isinstance(exchange, str) else exchange.name
