"""The names of a store: queues, exchanges, bindings and configuration, which are kept in the catalog.

Order: a queue's row is durably committed in the catalog before the log may name the queue, and deleted there before the
log records the deletion. A queue is *in question* while it is being deleted, and as long as the answer to the commit of
its deletion is missing. No message is put on a queue in question before the catalog has answered, because the next
open would drop that message.

Changes are made one at a time, under the catalog's lock. Readers take no lock, because the attributes they read are
replaced by single assignments. An exception at any moment (for example from a signal handler) can leave this class
behind the catalog. That is detected by identity: ``_followed`` is then not the catalog's present mapping of queues. The
next change, or the next lookup of an unknown queue, brings this class up to date.
"""

from __future__ import annotations

import threading
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from logstore import errors
from logstore._core import ffi, lib
from logstore._hot import StoreCalls
from logstore.catalog.rows import ExchangeRow, QueueRow, WantedQueue, canonical, checked_name, parsed
from logstore.core.arguments import instance, items, one_of, optional, shown, text
from logstore.core.native import check, failure
from logstore.store.declarations import QueueDeclaration, each
from logstore.store.fork import refuse_fork
from logstore.store.queues import Queue

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, MutableMapping, Sequence

    from logstore._core import ls_store_ptr
    from logstore.catalog.catalog import BindingRow, Catalog
    from logstore.catalog.rows import StoredQueue
    from logstore.store.message_store import MessageStore

_ONE_QUEUE: Final = (Queue, str)
_BLOCK_MIN: Final = 1024
_BLOCK_MAX: Final = 65_536
"""Ids that one commit reserves for transient queues: each commit twice as many as the one before."""


class _Unfinished(NamedTuple):
    """Transient queues that are being declared."""

    queues: Sequence[Queue] = ()
    made_with: str | None = None
    """The name of a durable queue of the same batch: they are made only if the catalog has it."""


_NOTHING: Final = _Unfinished()


class Names(StoreCalls):
    """The part of :class:`~logstore.MessageStore` that works with the catalog."""

    _c: ls_store_ptr
    _pid: int
    _closed: bool
    _catalog: Catalog | None
    _queues: dict[int, Queue]
    _by_name: dict[str, Queue]  # also the queues that are being deleted
    _in_question: Mapping[int, Queue] = MappingProxyType({})  # replaced as a whole
    _dead_letters: dict[str, set[int]]  # by the name of a dead-letter queue: the transient queues that name it
    _unfinished: _Unfinished = _NOTHING  # transient queues that are being declared
    _ids: range = range(0)  # reserved for transient queues
    _block: int = _BLOCK_MIN // 2  # as many were reserved last
    _never_waiting_thread: int | None = None  # the thread that must not wait for the catalog
    _followed: Mapping[str, StoredQueue] | None = None  # the catalog's mapping that this class reflects

    if TYPE_CHECKING:

        def force_unless_relaxed(self) -> None:
            """Of Durability."""

    def _names(self) -> Catalog:
        if self._closed or self._catalog is None:
            raise errors.StoreClosed("the store is closed; open it again")
        refuse_fork(self._pid)
        return self._catalog

    def declare_queue(
        self,
        name: str,
        *,
        arguments: Mapping[str, Any] | None = None,
        dead_letter: Queue | str | None = None,
        transient: bool = False,
    ) -> Queue:
        """Returns the queue of this name, and makes it if it does not exist; durable on return.

        ``arguments`` is a mapping that JSON can represent; the store does not interpret it. Rejected messages go to
        ``dead_letter``. Raises ``QueueExists`` if the queue exists with other arguments or another dead-letter queue,
        and ``UnknownQueue`` if the dead-letter queue does not exist.

        A ``transient`` queue, such as one for a session or for replies, is not in the catalog, so it costs no commit
        (one for each thousand). It ends with this open of the store: the next one drops its messages. Until then it is
        a queue like any other, but it has no bindings, and no durable queue can name it for dead letters.
        """
        wanted = self._wanted(QueueDeclaration(name, arguments, dead_letter, bool(transient)))
        catalog = self._names()
        known = None
        if wanted.transient:
            known = self._same_transient(wanted)
        elif catalog.memory_answers:
            row = catalog.same_queue(wanted)
            known = None if row is None else self._queues.get(row.id)
        if known is not None and known.id not in self._in_question:
            return known
        return self._declare(catalog, [wanted], None)[0]

    def _wanted(self, declared: QueueDeclaration) -> WantedQueue:
        dead_letter = declared.dead_letter
        if dead_letter is not None:
            one_of("dead_letter", dead_letter, _ONE_QUEUE, "a Queue or its name")
            dead_letter = self._name_of(dead_letter)
        name = checked_name("a queue", declared.name)
        arguments = canonical(f"queue {name!r}", declared.arguments)
        return WantedQueue(name, arguments, dead_letter, bool(declared.transient))

    def _declare(self, catalog: Catalog, batch: Sequence[WantedQueue], said: str | None) -> list[Queue]:
        """The queues of the batch; those that do not exist are made in one commit of the catalog.

        One more commit comes before it if there are not enough ids for transient queues.
        """
        with catalog.changes():
            self._follow(catalog)
            declared: dict[str, bool] = {}  # in this batch: whether it is transient
            known = each(said, batch, lambda one: self._check_wanted(catalog, one, declared))
            new = [one for one, queue in zip(batch, known, strict=True) if queue is None]
            durable = [one for one in new if not one.transient]
            self._unfinished = _Unfinished(
                self._transient_handles(catalog, [one for one in new if one.transient]),
                made_with=durable[0].name if durable else None,
            )
            for row in catalog.make_queues(durable) if durable else ():
                self._add(row)
            self._finish(catalog)
            self._followed = catalog.stored_queues
            return [self._by_name[one.name] for one in batch]

    def _check_wanted(self, catalog: Catalog, wanted: WantedQueue, declared: dict[str, bool]) -> Queue | None:
        """The queue, if it exists. Raises if another one has its name, or if it cannot be made."""
        name, _, dead_letter, transient = wanted
        if name in declared:
            raise errors.OptionError(f"queue {name!r} is declared twice in the batch; declare it once")
        declared[name] = transient
        if transient:
            known = self._same_transient(wanted)
        else:
            known = self._by_name.get(name)
            if known is not None and known.transient:
                raise errors.QueueExists(
                    f"queue {name!r} exists and is transient: choose another name, or delete it first"
                )
            catalog.same_queue(wanted)
        if known is None and dead_letter is not None:
            self._check_dead_letter(catalog, wanted, dead_letter, declared)
        return known

    def _check_dead_letter(
        self, catalog: Catalog, wanted: WantedQueue, dead_letter: str, declared: Mapping[str, bool]
    ) -> None:
        if dead_letter == wanted.name or dead_letter not in declared:
            target = self._by_name.get(dead_letter)
            if target is None:
                catalog.queue(dead_letter)  # raises UnknownQueue
            is_transient = target is not None and target.transient
        else:
            is_transient = declared[dead_letter]
        if is_transient and not wanted.transient:
            raise errors.OptionError(
                f"queue {dead_letter!r} is transient, so it cannot be the dead-letter queue of durable queue "
                f"{wanted.name!r}"
            )

    def _transient_handles(self, catalog: Catalog, wanted: Sequence[WantedQueue]) -> list[Queue]:
        if len(self._ids) < len(wanted):
            self._block = min(2 * self._block, _BLOCK_MAX)
            self._ids = catalog.reserve_queue_ids(max(self._block, len(wanted)))
        ids, self._ids = self._ids[: len(wanted)], self._ids[len(wanted) :]
        return [
            self._handle(QueueRow(queue_id, one.name, parsed(one.arguments), one.dead_letter), transient=True)
            for queue_id, one in zip(ids, wanted, strict=True)
        ]

    def _finish(self, catalog: Catalog) -> None:
        """Completes the declaration of transient queues, also one that an exception interrupted."""
        queues, made_with = self._unfinished
        if made_with is None or made_with in catalog.stored_queues:
            try:
                for queue in queues:
                    check(lib.ls_queue_add(self._c, queue.id))
                    self._remember(queue)
            except errors.StoreError:
                self._unfinished = _NOTHING
                for queue in queues:
                    self._end(queue)
                raise
        self._unfinished = _NOTHING

    def _same_transient(self, wanted: WantedQueue) -> Queue | None:
        name, arguments, dead_letter, _ = wanted
        known = self._by_name.get(name)
        if known is None:
            return None
        if not known.transient:
            raise errors.QueueExists(f"queue {name!r} exists and is durable: choose another name, or delete it first")
        found = canonical(f"queue {name!r}", known.arguments)
        if found == arguments and known.dead_letter == dead_letter:
            return known
        raise errors.QueueExists(
            f"transient queue {name!r} exists with arguments {found} and dead-letter queue {known.dead_letter!r}, but "
            f"was declared with {arguments} and {dead_letter!r}: declare it as it exists, or delete it first"
        )

    def update_queue(self, queue: Queue | str, *, arguments: Mapping[str, Any] | None) -> None:
        """Replaces the queue's arguments; durable on return, for a transient queue until the store is closed.

        ``arguments`` as in :meth:`declare_queue`, which knows the queue by the new ones from then on. Raises
        ``UnknownQueue``.
        """
        catalog = self._names()
        with catalog.changes():
            self._follow(catalog)
            known = self._known(queue)
            text = canonical(f"queue {known.name!r}", arguments)
            if not known.transient:
                catalog.update_queue(known.id, text)
            known._arguments = parsed(text)
            self._followed = catalog.stored_queues

    def _follow(self, catalog: Catalog) -> None:
        """Applies changes of the catalog that this class missed: the catalog was read again, or an exception
        interrupted a change.
        """
        self._finish(catalog)
        if self._has_followed(catalog):
            return
        stored = catalog.stored_queues
        rows = {row.id: row for row in catalog.queues()}
        # Transient queues that were deleted together with durable ones end if the catalog has deleted those.
        asked = [queue for queue in self._in_question.values() if queue.transient]
        are_kept = any(queue_id in rows for queue_id in self._in_question)
        for queue in asked:
            if are_kept:
                self._remember(queue)
            else:
                self._end(queue)
        for queue_id, row in rows.items():
            known = self._queues.get(queue_id) or self._in_question.get(queue_id)
            if known is None:
                self._add(row)
            else:
                known._arguments = row.arguments
                self._remember(known)
        for queue_id, queue in self._all_queues().items():
            if queue_id not in rows and not queue.transient:
                self._end(queue)
        self._in_question = MappingProxyType({})
        self._followed = stored

    def _has_followed(self, catalog: Catalog) -> bool:
        return catalog.settled and not self._in_question and catalog.stored_queues is self._followed

    @property
    def names_are_settled(self) -> bool:
        """Whether the outcome of every change of the catalog is known. False also during a commit."""
        return self._has_followed(self._names())

    def settle_names(self) -> None:
        """Asks the catalog for the outcome of unanswered changes, if there are any. Raises ``CatalogUnavailable``."""
        catalog = self._names()
        if self._has_followed(catalog):
            return
        if threading.get_ident() == self._never_waiting_thread:
            raise errors.CatalogUnavailable("the outcome of a change of the catalog is not known yet; try again later")
        with catalog.changes():
            self._follow(catalog)

    def never_wait_for_names_here(self) -> None:
        """From now on, calls in this thread that would have to ask the catalog raise ``CatalogUnavailable`` instead.

        For the thread of an event loop, such as a broker's, which lets another thread call :meth:`settle_names`.
        Changes of the catalog itself still wait.
        """
        self._never_waiting_thread = threading.get_ident()

    def _add(self, row: QueueRow) -> None:
        """Adds a queue with its only handle, which holds its only acquisition state."""
        check(lib.ls_queue_add(self._c, row.id))
        self._remember(self._handle(row))

    def _handle(self, row: QueueRow, *, transient: bool = False) -> Queue:
        owner = cast("MessageStore", self)
        return Queue(owner, row.id, row.name, row.arguments, row.dead_letter, transient=transient)

    def _remember(self, queue: Queue) -> None:
        self._queues[queue.id] = queue
        self._by_name[queue.name] = queue
        if queue.transient and queue.dead_letter is not None:
            self._dead_letters.setdefault(queue.dead_letter, set()).add(queue.id)

    def _end(self, queue: Queue) -> None:
        """Removes a queue that the catalog has deleted: first its places from the log, then its handle."""
        code = lib.ls_queue_delete(self._c, queue.id, 0)
        problem = failure(code) if code not in (0, lib.LS_UNKNOWN_QUEUE) else None  # unknown: it was removed before
        self._forget(queue)
        if problem is not None:  # the next open completes the deletion
            raise problem

    def _forget(self, queue: Queue) -> None:
        self._queues.pop(queue.id, None)
        if self._by_name.get(queue.name) is queue:
            del self._by_name[queue.name]
        if queue.transient and queue.dead_letter is not None:
            users = self._dead_letters.get(queue.dead_letter, set())
            users.discard(queue.id)
            if not users:
                self._dead_letters.pop(queue.dead_letter, None)
        queue._forget()

    def _all_queues(self) -> dict[int, Queue]:
        return {**self._queues, **self._in_question}

    def _queue_of(self, queue_id: int) -> Queue | None:
        """The handle, without a question to the catalog. None: the queue was deleted."""
        return self._in_question.get(queue_id) or self._queues.get(queue_id)

    def queue(self, name: str) -> Queue:
        """The handle of a declared queue.

        Raises ``UnknownQueue``, or ``CatalogUnavailable`` if a change with an unknown outcome may have declared it.
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
        """All queues, sorted by id."""
        if self._names().stored_queues is not self._followed:
            self.settle_names()
        known = self._all_queues()
        return [known[queue_id] for queue_id in sorted(known)]

    def delete_queue(self, queue: Queue | str, *, wait: bool = True) -> None:
        """Deletes the queue, its bindings and its places, and every message that has no place on another queue.

        Raises ``UnknownQueue``, or ``CatalogError`` while it is another queue's dead-letter queue. If the call is
        interrupted after the catalog's commit, the next open completes the deletion.
        """
        wait = bool(wait)  # may raise; then nothing is deleted
        catalog = self._names()
        with catalog.changes():
            self._follow(catalog)
            self._delete(catalog, [self._known(queue)])
        if wait:
            self.force_unless_relaxed()

    def _delete(self, catalog: Catalog, queues: Sequence[Queue]) -> None:
        """Deletes these queues in one commit of the catalog, and then in the log."""
        ids = {queue.id for queue in queues}
        for queue in queues:
            users = self._dead_letters.get(queue.name, set()) - ids
            if users:
                user = self._queues[min(users)].name
                raise errors.CatalogError(
                    f"queue {queue.name!r} is the dead-letter queue of {user!r}: delete that one first"
                )
        durable = [queue.id for queue in queues if not queue.transient]
        self._put_in_question(queues)
        try:
            if durable:
                catalog.delete_queues(durable)
        except errors.StoreError:
            if catalog.settled and all(catalog.has_queue(queue_id) for queue_id in durable):
                self._end_question(kept=queues)
            raise
        problem: errors.StoreError | None = None
        for queue in queues:
            try:
                self._end(queue)
            except errors.StoreError as error:
                problem = problem or error
        self._end_question()
        self._followed = catalog.stored_queues
        if problem is not None:  # the next open completes the deletion
            raise problem

    def _put_in_question(self, queues: Sequence[Queue]) -> None:
        """Marks the queues: it is unknown whether they are deleted."""
        self._in_question = MappingProxyType({queue.id: queue for queue in queues})
        for queue in queues:
            self._queues.pop(queue.id, None)

    def _end_question(self, kept: Iterable[Queue] = ()) -> None:
        for queue in kept:
            self._remember(queue)
        self._in_question = MappingProxyType({})

    def declare_exchange(
        self,
        name: str,
        *,
        type: str = "direct",  # noqa: A002 - AMQP's own word
        arguments: Mapping[str, Any] | None = None,
        alternate: str | None = None,
    ) -> ExchangeRow:
        """Returns the exchange of this name, and makes it if it does not exist. Raises ``CatalogError`` if it exists
        with another type, other arguments or another alternate.
        """
        optional(text, "alternate", alternate)
        return self._names().declare_exchange(name, type=type, arguments=arguments, alternate=alternate)[0]

    def exchange(self, name: str) -> ExchangeRow:
        """A declared exchange: ``name, type, arguments, alternate``. Raises ``UnknownExchange``."""
        return self._names().exchange(instance("name", name, str))

    def exchanges(self) -> list[ExchangeRow]:
        """All exchanges, sorted by name."""
        return self._names().exchanges()

    def delete_exchange(self, exchange: ExchangeRow | str) -> None:
        """Deletes the exchange and its bindings. Raises ``UnknownExchange``."""
        self._names().delete_exchange(exchange_name(exchange))

    def bind(
        self,
        exchange: ExchangeRow | str,
        queue: Queue | str,
        key: str = "",
        *,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        """Binds the queue to the exchange. The same pair may be bound again with another key or other arguments."""
        self._names().bind(*self._pair(exchange, queue), key, arguments=arguments)

    def unbind(
        self,
        exchange: ExchangeRow | str,
        queue: Queue | str,
        key: str = "",
        *,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        """Removes the binding with exactly this key and these arguments."""
        self._names().unbind(*self._pair(exchange, queue), key, arguments=arguments)

    def _pair(self, exchange: ExchangeRow | str, queue: Queue | str) -> tuple[str, str]:
        name = self._name_of(queue)
        self._refuse_transient_binding(name)
        return exchange_name(exchange), name

    def _refuse_transient_binding(self, name: str) -> None:
        known = self._by_name.get(name)
        if known is not None and known.transient:
            raise errors.OptionError(
                f"queue {name!r} is transient, and bindings are for durable queues: publish to it by its name"
            )

    def bindings(self) -> list[BindingRow]:
        """All bindings: ``exchange, queue, key, arguments``."""
        return self._names().bindings()

    @property
    def config(self) -> MutableMapping[str, str]:
        """General configuration, kept in the catalog: str to str."""
        return self._names().config

    def _known(self, queue: Queue | str) -> Queue:
        """The handle of a queue that belongs to this store and was not deleted.

        Raises ``UnknownQueue``, or ``CatalogUnavailable`` while it is unknown whether it was deleted.
        """
        if type(queue) is Queue and self._queues.get(queue._id) is queue:
            return queue  # the usual case
        if isinstance(queue, str):
            queue = self.queue(queue)
        elif not isinstance(queue, Queue):
            raise TypeError(f"a queue is a Queue or its name, not {shown(queue)}")
        self._names()
        if queue._id in self._in_question:
            self._resolve(queue)
        if self._queues.get(queue._id) is queue:
            return queue
        raise errors.UnknownQueue(f"queue {queue.name!r} was deleted, or belongs to another store; declare it first")

    def _resolve(self, queue: Queue) -> None:
        try:
            self.settle_names()
        except errors.CatalogUnavailable as error:
            raise errors.CatalogUnavailable(
                f"it is unknown whether queue {queue.name!r} was deleted until the catalog answers: {error.message}"
            ) from error

    def _name_of(self, queue: Queue | str) -> str:
        return queue if isinstance(queue, str) else self._known(queue).name

    def _queue_ids(self, queues: Queue | str | Iterable[Queue | str]) -> tuple[Any, int]:
        if isinstance(queues, _ONE_QUEUE):
            return self._known(queues)._c_id, 1
        ids = [self._known(queue).id for queue in items("queue", queues, "queues and names, or one of them")]
        if not ids:
            raise errors.OptionError("the list of queues is empty; name at least one")
        return ffi.new("uint32_t[]", ids), len(ids)


def exchange_name(exchange: ExchangeRow | str) -> str:
    """The name of an exchange. Raises ``TypeError``."""
    one_of("exchange", exchange, (ExchangeRow, str), "an exchange or its name")
    return exchange if isinstance(exchange, str) else exchange.name
