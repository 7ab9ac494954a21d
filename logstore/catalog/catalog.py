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

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

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
    canonical,
    checked_name,
    checked_text,
    parsed,
)
from logstore.catalog.transient import BLOCKS_KEY, TransientIds
from logstore.core.imports import late
from logstore.errors import CatalogError, QueueExists, UnknownExchange, UnknownQueue

if TYPE_CHECKING:  # imported late: SQLAlchemy would double the time of "import logstore"
    from collections.abc import Callable, Mapping, MutableMapping

    from sqlalchemy.sql import Executable

_K = TypeVar("_K")
_V = TypeVar("_V")

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
        within: bool = False,
    ) -> tuple[QueueRow, bool]:
        """The queue of this name, and whether this call made it. Durable on return.

        Pass ``within=True`` inside a block of :meth:`changes`. Raises ``QueueExists`` if the queue exists with other
        arguments or another ``dead_letter``, ``UnknownQueue`` if there is no queue called ``dead_letter``.
        """
        late("sqlalchemy")
        import sqlalchemy as sa

        found = self.declared_queue(name, arguments=arguments, dead_letter=dead_letter)
        if found is not None:
            return found, False
        text = canonical(f"queue {name!r}", arguments)
        with self._changing(within):
            found = self._same_queue(name, text, dead_letter)
            if found is not None:
                return found, False
            target = None if dead_letter is None else self._known_queue(dead_letter).id
            made = StoredQueue(self._now.next_queue_id, name, text, target)
            if made.id > QUEUE_ID_MAX:
                self._refuse_ids()
            after = replace(
                self._now,
                queues={**self._now.queues, name: made},
                queue_names={**self._now.queue_names, made.id: name},
                next_queue_id=made.id + 1,
            )
            self._commit(sa.insert(self._tables.queues).values(made._asdict()), after=after)
            return self._queue_row(made), True

    def declared_queue(
        self, name: str, *, arguments: Mapping[str, Any] | None = None, dead_letter: str | None = None
    ) -> QueueRow | None:
        """The result of ``declare_queue`` from memory, without waiting; None if only the database can answer."""
        text = canonical(f"queue {checked_name('a queue', name)!r}", arguments)
        if not self._memory_answers:
            return None
        return self._same_queue(name, text, dead_letter)

    def _same_queue(self, name: str, arguments: str, dead_letter: str | None) -> QueueRow | None:
        now = self._read()
        known = now.queues.get(name)
        if known is None:
            return None
        row = self._queue_row(known, now)
        if known.arguments == arguments and row.dead_letter == dead_letter:
            return row
        raise QueueExists(
            f"queue {name!r} exists with arguments {known.arguments} and dead-letter queue "
            f"{row.dead_letter!r}, but was declared with {arguments} and {dead_letter!r}: "
            "declare it as it exists, or delete it first"
        )

    def delete_queue(self, queue_id: int, *, within: bool = False) -> None:
        """Deletes a queue and its bindings; durable on return. Its id is never reused.

        Pass ``within=True`` inside a block of :meth:`changes`. Raises ``UnknownQueue``, or ``CatalogError`` while it is
        the dead-letter queue of another queue.
        """
        late("sqlalchemy")
        import sqlalchemy as sa

        queues = self._tables.queues
        with self._changing(within):
            name = self._now.queue_names.get(queue_id)
            if name is None:
                raise UnknownQueue(
                    f"no queue has the id {queue_id} in {self._backend.where}: it may be deleted already"
                )
            users = [other.name for other in self._now.queues.values() if other.dead_letter == queue_id]
            if users:
                raise CatalogError(f"queue {name!r} is the dead-letter queue of {users[0]!r}: delete that one first")
            after = replace(
                self._now,
                queues=_without(self._now.queues, name),
                queue_names=_without(self._now.queue_names, queue_id),
                bindings={row: None for row in self._now.bindings if row.queue_id != queue_id},
            )
            self._commit(sa.delete(queues).where(queues.c.id == queue_id), after=after)

    def reserve_queue_ids(self, count: int) -> range:
        """Gives out this many ids for transient queues, and notes them in the configuration; durable on return.

        Called inside a block of :meth:`changes`.
        """
        late("sqlalchemy")
        import sqlalchemy as sa

        block = range(self._now.next_queue_id, self._now.next_queue_id + count)
        if block.stop > QUEUE_ID_MAX:
            self._refuse_ids()
        text = str(TransientIds.of(self._now.config).with_block(block))
        table = self._tables.config
        after = replace(self._now, config={**self._now.config, BLOCKS_KEY: text}, next_queue_id=block.stop)
        removed = sa.delete(table).where(table.c.key == BLOCKS_KEY)
        self._commit(removed, sa.insert(table).values(key=BLOCKS_KEY, value=text), after=after)
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
        late("sqlalchemy")
        import sqlalchemy as sa

        text = canonical(f"exchange {checked_name('an exchange', name)!r}", arguments)
        wanted = StoredExchange(name, checked_name("an exchange type", type), text, alternate)
        if self._memory_answers and self._now.exchanges.get(name) == wanted:
            return self._exchange_row(wanted), False
        with self._changing():
            known = self._now.exchanges.get(name)
            if known is not None:
                if known == wanted:
                    return self._exchange_row(known), False
                raise CatalogError(
                    f"exchange {name!r} exists as {known.type!r} with arguments {known.arguments} and "
                    f"alternate {known.alternate!r}, but was declared as {type!r} with {text} and "
                    f"{alternate!r}: declare it as it exists, or delete it first"
                )
            if alternate is not None:
                self._known_exchange(alternate)
            after = replace(self._now, exchanges={**self._now.exchanges, name: wanted})
            self._commit(sa.insert(self._tables.exchanges).values(wanted._asdict()), after=after)
            return self._exchange_row(wanted), True

    def delete_exchange(self, name: str) -> None:
        """Deletes an exchange and its bindings; durable on return.

        Raises ``UnknownExchange``, or ``CatalogError`` while it is the alternate of another one.
        """
        late("sqlalchemy")
        import sqlalchemy as sa

        exchanges = self._tables.exchanges
        with self._changing():
            self._known_exchange(name)
            users = [other.name for other in self._now.exchanges.values() if other.alternate == name]
            if users:
                raise CatalogError(f"exchange {name!r} is the alternate of {users[0]!r}: delete that one first")
            after = replace(
                self._now,
                exchanges=_without(self._now.exchanges, name),
                bindings={row: None for row in self._now.bindings if row.exchange != name},
            )
            self._commit(sa.delete(exchanges).where(exchanges.c.name == name), after=after)

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
        late("sqlalchemy")
        import sqlalchemy as sa

        if self._memory_answers:
            now = self._read()
            if self._binding(exchange, queue, key, arguments, now) in now.bindings:
                return
        with self._changing():
            row = self._binding(exchange, queue, key, arguments)
            if row in self._now.bindings:
                return
            after = replace(self._now, bindings={**self._now.bindings, row: None})
            values = {**row._asdict(), "arguments_sha256": _sha256(row.arguments)}
            self._commit(sa.insert(self._tables.bindings).values(values), after=after)

    def unbind(self, exchange: str, queue: str, key: str = "", *, arguments: Mapping[str, Any] | None = None) -> None:
        """Removes the binding with exactly this key and these arguments; durable on return.

        Does nothing if there is none. Raises ``UnknownExchange`` or ``UnknownQueue``.
        """
        late("sqlalchemy")
        import sqlalchemy as sa

        table = self._tables.bindings
        with self._changing():
            row = self._binding(exchange, queue, key, arguments)
            if row not in self._now.bindings:
                return
            after = replace(self._now, bindings=_without(self._now.bindings, row))
            same = (
                (table.c.exchange == row.exchange)
                & (table.c.queue_id == row.queue_id)
                & (table.c.key == row.key)
                & (table.c.arguments_sha256 == _sha256(row.arguments))
            )
            self._commit(sa.delete(table).where(same), after=after)

    def _binding(
        self, exchange: str, queue: str, key: str, arguments: Mapping[str, Any] | None, now: Contents | None = None
    ) -> StoredBinding:
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
        late("sqlalchemy")
        import sqlalchemy as sa

        table = self._tables.config
        with self._changing():
            statements: list[Executable] = []
            changes = changes_of(self._now.config)
            for key, value in changes.items():
                if value is None:
                    statements.append(sa.delete(table).where(table.c.key == key))
                elif key in self._now.config:
                    statements.append(sa.update(table).where(table.c.key == key).values(value=value))
                else:
                    statements.append(sa.insert(table).values(key=key, value=value))
            config = {key: value for key, value in {**self._now.config, **changes}.items() if value is not None}
            if config != self._now.config:
                self._commit(*statements, after=replace(self._now, config=config))


def _without(entries: dict[_K, _V], key: _K) -> dict[_K, _V]:
    left = dict(entries)
    del left[key]
    return left


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("ascii")).hexdigest()
