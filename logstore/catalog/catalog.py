"""The catalog: queues, exchanges, bindings and configuration of a store, in SQL.

SQLite inside the store directory by default, or one schema of a shared PostgreSQL server.

* A change is one transaction, durable when the call returns. Memory changes only after the commit. A failed call has
  changed nothing. If the connection broke during a commit, the next change first reads its outcome.
* Reads are answered from memory and never wait for the database.
* Queue ids grow from 1 and are never reused, because log records name them.
* The store's lock ensures one writer. If there is a second writer nevertheless (a copied store directory, a shared
  server), the first change based on outdated contents fails, and that catalog object accepts no further change.
* Opening never creates a catalog, and never changes a catalog of another store.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from logstore.catalog.config import Config
from logstore.catalog.database import CatalogDatabase
from logstore.catalog.rows import (
    QUEUE_ID_MAX,
    BindingRow,
    Contents,
    ExchangeRow,
    QueueRow,
    StoredBinding,
    StoredExchange,
    StoredQueue,
    WantedQueue,
    canonical,
    checked_name,
    checked_text,
    parsed,
)
from logstore.catalog.transient import BLOCKS_KEY, TransientIds
from logstore.errors import CatalogError, QueueExists, UnknownExchange, UnknownQueue

if TYPE_CHECKING:  # imported late: SQLAlchemy would double the time of "import logstore"
    from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence

    from logstore.catalog.statements import Step


__all__ = ["BindingRow", "Catalog", "ExchangeRow", "QueueRow"]


class Catalog(CatalogDatabase):
    """The catalog of one store, open. All methods may be called from any thread."""

    # ---- Queues

    @property
    def next_queue_id(self) -> int:
        """The id of the next declared queue. Every queue id in the log is below it."""
        return self._read().next_queue_id

    def queues(self, of: Contents | None = None) -> list[QueueRow]:
        """All queues, of the catalog or of other contents, sorted by id."""
        now = self._read() if of is None else of
        return [self._queue_row(queue, now) for queue in now.queues.values()]

    def contents(self) -> Contents:
        """All rows, in memory, at one moment."""
        return self._read()

    def queue(self, name: str) -> QueueRow:
        """The queue of this name. Raises ``UnknownQueue``."""
        now = self._read()
        return self._queue_row(self._known_queue(name, now), now)

    def _queue_row(self, queue: StoredQueue, now: Contents | None = None) -> QueueRow:
        names = (now or self._now).queue_names
        dead_letter = None if queue.dead_letter is None else names[queue.dead_letter]
        return QueueRow(queue.id, queue.name, parsed(queue.arguments), dead_letter)

    def _known_queue(self, name: str, now: Contents | None = None) -> StoredQueue:
        queue = (now or self._now).queues.get(name)
        if queue is None:
            raise UnknownQueue(f"no queue is called {name!r} in {self._backend.where}: declare it first")
        return queue

    def declare_queue(
        self,
        name: str,
        *,
        arguments: Mapping[str, Any] | None = None,
        dead_letter: str | None = None,
    ) -> tuple[QueueRow, bool]:
        """The queue of this name, and whether this call made it. Durable on return.

        Raises ``QueueExists`` if the queue exists with other arguments or another ``dead_letter``, ``UnknownQueue`` if
        there is no queue called ``dead_letter``.
        """
        text = canonical(f"queue {checked_name('a queue', name)!r}", arguments)
        wanted = WantedQueue(name, text, dead_letter)
        found = self.same_queue(wanted) if self.memory_answers else None
        if found is not None:
            return found, False
        with self.changes():
            found = self.same_queue(wanted)
            return (found, False) if found is not None else (self.make_queues([wanted])[0], True)

    def same_queue(self, wanted: WantedQueue) -> QueueRow | None:
        """The queue of this name, if it exists. Raises ``QueueExists`` if it is another one."""
        now = self._read()
        known = now.queues.get(wanted.name)
        if known is None:
            return None
        row = self._queue_row(known, now)
        if known.arguments == wanted.arguments and row.dead_letter == wanted.dead_letter:
            return row
        raise QueueExists(
            f"queue {wanted.name!r} exists with arguments {known.arguments} and dead-letter queue "
            f"{row.dead_letter!r}, but was declared with {wanted.arguments} and {wanted.dead_letter!r}: "
            "declare it as it exists, or delete it first"
        )

    def make_queues(self, wanted: Sequence[WantedQueue]) -> list[QueueRow]:
        """Makes these queues, which do not exist, in one commit; durable on return.

        Called inside a block of :meth:`changes`. A dead-letter queue may be an earlier one of them. Raises
        ``UnknownQueue`` for another that does not exist.
        """
        now = self._now
        after = replace(now, queues=dict(now.queues), queue_names=dict(now.queue_names))
        if now.next_queue_id + len(wanted) > QUEUE_ID_MAX + 1:
            self._refuse_ids()
        made = []
        for name, arguments, dead_letter, _ in wanted:
            target = None if dead_letter is None else self._known_queue(dead_letter, after).id
            row = StoredQueue(after.next_queue_id, name, arguments, target)
            after.queues[name], after.queue_names[row.id] = row, name
            after.next_queue_id += 1
            made.append(row)
        self._commit(self.statements.put_queues(made), after=after)
        return [self._queue_row(row) for row in made]

    def update_queue(self, queue_id: int, arguments: str) -> None:
        """Replaces a queue's arguments, given as their canonical text; durable on return.

        Called inside a block of :meth:`changes`. Raises ``UnknownQueue``.
        """
        known = self._now.queues[self._known_id(queue_id)]
        if known.arguments != arguments:
            row = known._replace(arguments=arguments)
            after = replace(self._now, queues={**self._now.queues, row.name: row})
            self._commit(self.statements.change_queue(row), after=after)

    def delete_queue(self, queue_id: int) -> None:
        """Deletes a queue and its bindings; durable on return. Its id is never reused.

        Raises ``UnknownQueue``, or ``CatalogError`` while it is the dead-letter queue of another queue.
        """
        with self.changes():
            self.delete_queues([queue_id])

    def delete_queues(self, queue_ids: Iterable[int]) -> None:
        """Deletes queues and their bindings in one commit, as :meth:`delete_queue`.

        Called inside a block of :meth:`changes`. A dead-letter queue may go with the queues that name it.
        """
        gone = {queue_id: self._known_id(queue_id) for queue_id in queue_ids}
        for other in self._now.queues.values():
            if other.dead_letter in gone and other.id not in gone:
                raise CatalogError(
                    f"queue {gone[other.dead_letter]!r} is the dead-letter queue of {other.name!r}: "
                    "delete that one first"
                )
        after = replace(self._now, queues=dict(self._now.queues), queue_names=dict(self._now.queue_names))
        for queue_id, name in gone.items():
            del after.queues[name], after.queue_names[queue_id]
        if any(row.queue_id in gone for row in self._now.bindings):
            after.bindings = {row: None for row in self._now.bindings if row.queue_id not in gone}
        # A dead-letter queue is older than the queues that name it.
        self._commit(self.statements.delete_queues(sorted(gone, reverse=True)), after=after)

    def has_queue(self, queue_id: int) -> bool:
        """Whether memory has a queue of this id."""
        return queue_id in self._now.queue_names

    def _known_id(self, queue_id: int) -> str:
        name = self._now.queue_names.get(queue_id)
        if name is None:
            raise UnknownQueue(f"no queue has the id {queue_id} in {self._backend.where}: it may be deleted already")
        return name

    def reserve_queue_ids(self, count: int) -> range:
        """Gives out this many ids for transient queues, and notes them in the configuration; durable on return.

        Called inside a block of :meth:`changes`.
        """
        block = range(self._now.next_queue_id, self._now.next_queue_id + count)
        if block.stop > QUEUE_ID_MAX:
            self._refuse_ids()
        text = str(TransientIds.of(self._now.config).with_block(block))
        after = replace(self._now, config={**self._now.config, BLOCKS_KEY: text}, next_queue_id=block.stop)
        self._commit(*self.statements.put_config(BLOCKS_KEY, text), after=after)
        return block

    def _refuse_ids(self) -> NoReturn:
        raise CatalogError(
            f"{self._backend.where} has given out all {QUEUE_ID_MAX} queue ids, "
            "which are never reused: continue in a new store"
        )

    # ---- Exchanges

    def exchanges(self) -> list[ExchangeRow]:
        """All exchanges, sorted by name."""
        now = self._read()
        return [self._exchange_row(now.exchanges[name]) for name in sorted(now.exchanges)]

    def exchange(self, name: str) -> ExchangeRow:
        """The exchange of this name. Raises ``UnknownExchange``."""
        self._check_usable()
        return self._exchange_row(self._known_exchange(name))

    def _exchange_row(self, exchange: StoredExchange) -> ExchangeRow:
        return ExchangeRow(exchange.name, exchange.type, parsed(exchange.arguments), exchange.alternate)

    def _known_exchange(self, name: str, now: Contents | None = None) -> StoredExchange:
        exchange = (now or self._now).exchanges.get(name)
        if exchange is None:
            raise UnknownExchange(f"no exchange is called {name!r} in {self._backend.where}: declare it first")
        return exchange

    def declare_exchange(
        self,
        name: str,
        *,
        type: str = "direct",  # noqa: A002 - the protocol's own word
        arguments: Mapping[str, Any] | None = None,
        alternate: str | None = None,
    ) -> tuple[ExchangeRow, bool]:
        """The exchange of this name, and whether this call made it.

        Durable on return. Raises ``CatalogError`` if it exists with another type, other arguments or another alternate,
        ``UnknownExchange`` if there is no exchange called ``alternate``.
        """
        wanted = self.checked_exchange(name, type, arguments, alternate)
        if self.memory_answers and self._now.exchanges.get(name) == wanted:
            return self._exchange_row(wanted), False
        with self.changes():
            return self._exchange_row(wanted), self.declare_exchanges([wanted])

    def declare_exchanges(self, wanted: Iterable[StoredExchange]) -> bool:
        """Makes those of these exchanges that do not exist in one commit, as :meth:`declare_exchange`.

        Whether there were any. Called inside a block of :meth:`changes`. An alternate may be an earlier one of them.
        """
        now = self._now
        after = replace(now, exchanges=dict(now.exchanges))
        for row in wanted:
            known = after.exchanges.get(row.name)
            if known is not None and known != row:
                raise CatalogError(
                    f"exchange {row.name!r} exists as {known.type!r} with arguments {known.arguments} and "
                    f"alternate {known.alternate!r}, but was declared as {row.type!r} with {row.arguments} and "
                    f"{row.alternate!r}: declare it as it exists, or delete it first"
                )
            if known is None and row.alternate is not None:
                self._known_exchange(row.alternate, after)
            after.exchanges[row.name] = row
        made = [row for name, row in after.exchanges.items() if name not in now.exchanges]
        if made:
            self._commit(self.statements.put_exchanges(made), after=after)
        return bool(made)

    def checked_exchange(
        self,
        name: str,
        type: str,  # noqa: A002 - the protocol's own word
        arguments: Mapping[str, Any] | None,
        alternate: str | None,
    ) -> StoredExchange:
        """The exchange as a row, whether or not it exists. Raises ``OptionError``."""
        text = canonical(f"exchange {checked_name('an exchange', name)!r}", arguments)
        return StoredExchange(name, checked_name("an exchange type", type), text, alternate)

    def delete_exchange(self, name: str) -> None:
        """Deletes an exchange and its bindings; durable on return.

        Raises ``UnknownExchange``, or ``CatalogError`` while it is the alternate of another one.
        """
        with self.changes():
            self.delete_exchanges([name])

    def delete_exchanges(self, names: Iterable[str]) -> None:
        """Deletes exchanges and their bindings in one commit, as :meth:`delete_exchange`.

        Called inside a block of :meth:`changes`.
        """
        gone = {self._known_exchange(name).name for name in names}
        for other in self._now.exchanges.values():
            if other.alternate in gone:
                raise CatalogError(
                    f"exchange {other.alternate!r} is the alternate of {other.name!r}: delete that one first"
                )
        after = replace(
            self._now,
            exchanges={name: row for name, row in self._now.exchanges.items() if name not in gone},
            bindings={row: None for row in self._now.bindings if row.exchange not in gone},
        )
        self._commit(self.statements.delete_exchanges(sorted(gone)), after=after)

    # ---- Bindings

    def bindings(self) -> list[BindingRow]:
        """All bindings, in the order of their creation."""
        now = self._read()
        return [
            BindingRow(row.exchange, now.queue_names[row.queue_id], row.key, parsed(row.arguments))
            for row in now.bindings
        ]

    def bind(self, exchange: str, queue: str, key: str = "", *, arguments: Mapping[str, Any] | None = None) -> None:
        """Binds a queue to an exchange; durable on return.

        Repeating a binding changes nothing; other arguments make another binding. Raises ``UnknownExchange`` or
        ``UnknownQueue``.
        """
        if self.memory_answers:
            now = self._read()
            if self.checked_binding(exchange, queue, key, arguments, now) in now.bindings:
                return
        with self.changes():
            self.bind_many([self.checked_binding(exchange, queue, key, arguments)])

    def bind_many(self, rows: Iterable[StoredBinding]) -> None:
        """Makes these bindings in one commit, as :meth:`bind`. Called inside a block of :meth:`changes`."""
        made = {row: None for row in rows if row not in self._now.bindings}
        if made:
            after = replace(self._now, bindings={**self._now.bindings, **made})
            self._commit(self.statements.put_bindings(made), after=after)

    def unbind(self, exchange: str, queue: str, key: str = "", *, arguments: Mapping[str, Any] | None = None) -> None:
        """Removes the binding with exactly this key and these arguments; durable on return.

        Does nothing if there is none. Raises ``UnknownExchange`` or ``UnknownQueue``.
        """
        with self.changes():
            self.unbind_many([self.checked_binding(exchange, queue, key, arguments)])

    def unbind_many(self, rows: Iterable[StoredBinding]) -> None:
        """Removes these bindings in one commit, as :meth:`unbind`. Called inside a block of :meth:`changes`."""
        gone = {row for row in rows if row in self._now.bindings}
        if gone:
            after = replace(self._now, bindings={row: None for row in self._now.bindings if row not in gone})
            self._commit(self.statements.delete_bindings(gone), after=after)

    def checked_binding(
        self, exchange: str, queue: str, key: str, arguments: Mapping[str, Any] | None, now: Contents | None = None
    ) -> StoredBinding:
        """The binding as a row, whether or not it exists. Raises ``UnknownExchange`` or ``UnknownQueue``."""
        if not isinstance(key, str):
            raise TypeError(f"a binding key is a str, not {type(key).__name__}")
        text = canonical(f"the binding of queue {queue!r} to exchange {exchange!r}", arguments)
        return StoredBinding(
            self._known_exchange(exchange, now).name,
            self._known_queue(queue, now).id,
            checked_text("a binding key", key),
            text,
        )

    # ---- Configuration

    @property
    def config(self) -> MutableMapping[str, str]:
        """General configuration, str to str; each change is durable when it returns."""
        return Config(self)

    def _set_config(self, changes_of: Callable[[Mapping[str, str]], Mapping[str, str | None]]) -> None:
        """Changes the configuration in one transaction.

        ``changes_of`` gets the present entries and returns the new value of each changed key; None removes it.
        """
        with self.changes():
            steps: list[Step] = []
            changes = changes_of(self._now.config)
            for key, value in changes.items():
                if value is None:
                    steps.append(self.statements.delete_config(key))
                elif key in self._now.config:
                    steps += self.statements.put_config(key, value)
                else:
                    steps.append(self.statements.add_config(key, value))
            config = {key: value for key, value in {**self._now.config, **changes}.items() if value is not None}
            if config != self._now.config:
                self._commit(*steps, after=replace(self._now, config=config))
