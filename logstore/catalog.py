"""The catalog: queues, exchanges, bindings and configuration of a store, in SQL.

SQLite inside the store directory by default, or one schema of a shared PostgreSQL server.

* A change is one transaction, durable when the call returns; memory follows only after the commit. A call
  that fails has changed nothing; if a connection broke within a commit, the next change first reads what
  became of it.
* Reads come from memory and never wait for the database.
* Queue ids grow from 1 and are never used twice, whatever is deleted: log records name them.
* The store's lock makes sure of one writer. Should a second one have come in (a copied store directory, a
  shared server), whoever writes after the other is refused for good: nothing is written on stale knowledge.
* Opening never creates a catalog, and a catalog of another store is never touched.

No driver's exception leaves this module, only those of the tree in ``errors.py``.
"""

from __future__ import annotations

import hashlib
import os
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

from logstore.catalog_places import Place, one_line, place_for
from logstore.catalog_rows import (
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
    make_tables,
    parsed,
)
from logstore.errors import (
    CatalogError,
    CatalogMismatch,
    OptionError,
    QueueExists,
    StoreClosed,
    StoreError,
    StoreForked,
    UnknownExchange,
    UnknownQueue,
    VersionError,
)

if TYPE_CHECKING:  # imported where they are used: half of the time that "import logstore" may take
    from sqlalchemy import Connection
    from sqlalchemy.sql import Executable

__all__ = ["BindingRow", "Catalog", "ExchangeRow", "QueueRow"]

CATALOG_VERSION = 1
CONFIG_BYTES_MAX = 1024 * 1024


class Catalog:
    """The catalog of one store, open. All methods may be called from any thread."""

    def __init__(self, place: Place, store_uuid: bytes, *, read_only: bool) -> None:
        """Not for callers: :meth:`create` or :meth:`open`."""
        if len(store_uuid) != 16:
            raise OptionError(f"a store UUID has 16 bytes, not {len(store_uuid)}")
        self._place = place
        self._uuid = str(uuid.UUID(bytes=bytes(store_uuid)))
        self._read_only = read_only
        self._pid = os.getpid()
        self._closed = False
        self._engine = place.engine()
        self._tables = make_tables(place.schema)

        self._change = threading.RLock()  # one change at a time; held while the database works
        self._stale = False  # memory may be behind the database: a commit's outcome is not known
        self._overtaken = False  # somebody else wrote: what memory holds is no ground to write on

        self._memory = threading.Lock()  # guards what _now holds; never held while the database works
        self._now = Contents()

    @classmethod
    def create(
        cls,
        store_dir: str | os.PathLike[str],
        *,
        connect: str | None = None,
        schema: str | None = None,
        store_uuid: bytes,
    ) -> Catalog:
        """Make the catalog of a new store and open it; durable on return.

        Harmless if it exists for the same UUID: so an interrupted creation is finished. Raises
        ``CatalogMismatch`` if the place holds anything else.
        """
        place = place_for(store_dir, connect, schema)
        place.make()
        return cls(place, store_uuid, read_only=False)._started(create=True)

    @classmethod
    def open(
        cls,
        store_dir: str | os.PathLike[str],
        *,
        connect: str | None = None,
        schema: str | None = None,
        store_uuid: bytes,
        read_only: bool = False,
    ) -> Catalog:
        """Open the catalog of the store with this UUID; nothing is ever created.

        ``read_only`` gives what was committed at this moment, beside a live writer and without disturbing it.
        Raises ``CatalogMismatch`` (missing, empty, another store's), ``VersionError``, ``CatalogUnavailable``
        or ``CatalogError``.
        """
        place = place_for(store_dir, connect, schema, read_only=read_only)
        return cls(place, store_uuid, read_only=read_only)._started(create=False)

    def _started(self, *, create: bool) -> Catalog:
        try:
            with self._transaction() as connection:
                if create:
                    self._create_tables(connection)
                self._check_identity(connection)
                self._place.verify(connection)
                self._load(connection)
            with self._explained():
                self._place.settle(self._engine)
                if not self._read_only:
                    self._check_writable()
        except BaseException:
            self.close()
            raise
        return self

    def _check_writable(self) -> None:
        """Now, rather than at the first change: try one, and take it back."""
        import sqlalchemy as sa

        with self._engine.connect() as connection:
            connection.execute(sa.update(self._tables.store).values(revision=self._now.revision))
            connection.rollback()

    def close(self) -> None:
        """Let go of the database; a second call is harmless. In a forked child, nothing happens."""
        if self._closed:
            return
        self._closed = True
        if os.getpid() == self._pid:
            self._engine.dispose()

    # ---- Between memory and the database

    @contextmanager
    def _explained(self) -> Iterator[None]:
        import sqlite3

        from sqlalchemy.exc import SQLAlchemyError

        try:
            yield
        except (SQLAlchemyError, sqlite3.Error) as error:
            raise self._place.explain(error) from error
        except (TypeError, ValueError) as error:  # text that is none, a number that is none
            if isinstance(error, StoreError):
                raise
            raise CatalogError(
                f"{self._place.where} is damaged ({one_line(error)}): restore it together with the log"
            ) from error

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        with self._explained(), self._engine.begin() as connection:
            yield connection

    def _table_names(self, connection: Connection) -> set[str]:
        import sqlalchemy as sa

        return set(sa.inspect(connection).get_table_names(schema=self._place.schema))

    def _create_tables(self, connection: Connection) -> None:
        import sqlalchemy as sa

        self._place.prepare_schema(connection)
        found = self._table_names(connection)
        if found and "store" not in found:
            raise CatalogMismatch(
                f"{self._place.where} holds other tables ({min(found)}): give this store a place of its own"
            )
        if not found:
            self._tables.metadata.create_all(connection, checkfirst=False)
            row = {"one": 1, "uuid": self._uuid, "catalog_version": CATALOG_VERSION}
            connection.execute(sa.insert(self._tables.store).values(**row, next_queue_id=1, revision=0))

    def _check_identity(self, connection: Connection) -> None:
        import sqlalchemy as sa

        where, store = self._place.where, self._tables.store
        found = self._table_names(connection)
        # The version before all else: a newer catalog may look different in everything but this.
        version = connection.execute(sa.select(store.c.catalog_version)).scalar() if "store" in found else None
        if version is None:
            raise CatalogMismatch(f"{where} is empty, and the log needs it: restore it together with the log")
        if version > CATALOG_VERSION:
            raise VersionError(
                f"{where} has version {version}, and this logstore knows {CATALOG_VERSION} at most: "
                "use a newer logstore"
            )
        missing = {table.name for table in self._tables.metadata.sorted_tables} - found
        if missing:
            raise CatalogError(f"{where} is damaged (no table {min(missing)}): restore it together with the log")
        other = connection.execute(sa.select(store.c.uuid)).scalar()
        if other != self._uuid:
            raise CatalogMismatch(
                f"{where} belongs to the store {other}, and this is {self._uuid}: "
                "bring the right log and catalog together"
            )

    def _load(self, connection: Connection) -> None:
        contents = Contents.read(connection, self._tables)
        with self._memory:
            self._now = contents

    def _check_usable(self) -> None:
        if self._pid != os.getpid():
            raise StoreForked(f"{self._place.where} was opened by the parent process: open the store in this one")
        if self._closed:
            raise StoreClosed(f"{self._place.where} is closed: open the store again")

    @contextmanager
    def _reading(self) -> Iterator[None]:
        self._check_usable()
        with self._memory:
            yield

    @contextmanager
    def _changing(self) -> Iterator[None]:
        self._check_usable()  # before the lock, which a forked child may have inherited locked
        with self._change:
            self._check_usable()
            if self._read_only:
                raise CatalogError(f"{self._place.where} was opened for reading only: open the store to change it")
            if self._overtaken:
                self._refuse_second_writer()
            if self._stale:
                self._reload()
            yield

    def _reload(self) -> None:
        """Learn what became of a commit whose answer never came."""
        import sqlalchemy as sa

        with self._transaction() as connection:
            revision = connection.execute(sa.select(self._tables.store.c.revision)).scalar_one()
            if revision not in (self._now.revision, self._now.revision + 1):
                self._refuse_second_writer()
            self._load(connection)
        self._stale = False

    def _refuse_second_writer(self) -> NoReturn:
        self._overtaken = True
        raise CatalogError(
            f"{self._place.where} was changed by another process since it was opened, "
            "and a catalog has one writer: close the other store, then open this one again"
        )

    def _commit(self, *statements: Executable, then: Callable[[], None], next_queue_id: int | None = None) -> None:
        """Do it all in one transaction, then let memory follow."""
        import sqlalchemy as sa

        store, revision = self._tables.store, self._now.revision + 1
        following = self._now.next_queue_id if next_queue_id is None else next_queue_id
        counted = (
            sa.update(store)
            .where(store.c.revision == self._now.revision)
            .values(revision=revision, next_queue_id=following)
        )
        self._stale = True  # until memory has followed, however this is left
        with self._transaction() as connection:
            if connection.execute(counted).rowcount != 1:
                self._refuse_second_writer()
            for statement in statements:
                connection.execute(statement)
        with self._memory:
            then()
            self._now.revision, self._now.next_queue_id = revision, following
        self._stale = False

    # ---- Queues

    @property
    def next_queue_id(self) -> int:
        """The id that the next declared queue will have; every id in the log is below it."""
        with self._reading():
            return self._now.next_queue_id

    def queues(self) -> list[QueueRow]:
        """All queues, by id."""
        with self._reading():
            return [self._queue_row(queue) for queue in self._now.queues.values()]

    def queue(self, name: str) -> QueueRow:
        """The queue of this name, or ``UnknownQueue``."""
        with self._reading():
            return self._queue_row(self._known_queue(name))

    def _queue_row(self, queue: StoredQueue) -> QueueRow:
        dead_letter = None if queue.dead_letter is None else self._now.queue_names[queue.dead_letter]
        return QueueRow(queue.id, queue.name, parsed(queue.arguments), dead_letter)

    def _known_queue(self, name: str) -> StoredQueue:
        queue = self._now.queues.get(name)
        if queue is None:
            raise UnknownQueue(f"no queue is called {name!r} in {self._place.where}: declare it first")
        return queue

    def declare_queue(
        self, name: str, *, arguments: Mapping[str, Any] | None = None, dead_letter: str | None = None
    ) -> tuple[QueueRow, bool]:
        """The queue of this name, and whether this call made it.

        Durable on return. Raises ``QueueExists`` if it is there with other arguments or another
        ``dead_letter``, ``UnknownQueue`` if there is no queue called ``dead_letter``.
        """
        import sqlalchemy as sa

        text = canonical(f"queue {checked_name('a queue', name)!r}", arguments)
        with self._changing():
            known = self._now.queues.get(name)
            if known is not None:
                row = self._queue_row(known)
                if known.arguments == text and row.dead_letter == dead_letter:
                    return row, False
                raise QueueExists(
                    f"queue {name!r} exists with arguments {known.arguments} and dead-letter queue "
                    f"{row.dead_letter!r}, and was declared with {text} and {dead_letter!r}: "
                    "declare it as it is, or delete it first"
                )
            target = None if dead_letter is None else self._known_queue(dead_letter).id
            made = StoredQueue(self._now.next_queue_id, name, text, target)
            if made.id > QUEUE_ID_MAX:
                raise CatalogError(
                    f"{self._place.where} has given out all {QUEUE_ID_MAX} queue ids, "
                    "which are never used twice: continue in a new store"
                )

            def remember() -> None:
                self._now.queues[name] = made
                self._now.queue_names[made.id] = name

            self._commit(
                sa.insert(self._tables.queues).values(made._asdict()),
                then=remember,
                next_queue_id=made.id + 1,
            )
            return self._queue_row(made), True

    def delete_queue(self, queue_id: int) -> None:
        """Delete a queue with its bindings; durable on return. Its id is not used again.

        Raises ``UnknownQueue``, or ``CatalogError`` while another queue sends its rejected messages there.
        """
        import sqlalchemy as sa

        queues = self._tables.queues
        with self._changing():
            name = self._now.queue_names.get(queue_id)
            if name is None:
                raise UnknownQueue(f"no queue has the id {queue_id} in {self._place.where}: it may be deleted already")
            users = [other.name for other in self._now.queues.values() if other.dead_letter == queue_id]
            if users:
                raise CatalogError(f"queue {name!r} is the dead-letter queue of {users[0]!r}: delete that one first")

            def forget() -> None:
                del self._now.queues[name], self._now.queue_names[queue_id]
                self._now.bindings = {row: None for row in self._now.bindings if row.queue_id != queue_id}

            self._commit(sa.delete(queues).where(queues.c.id == queue_id), then=forget)

    # ---- Exchanges

    def exchanges(self) -> list[ExchangeRow]:
        """All exchanges, by name."""
        with self._reading():
            return [self._exchange_row(self._now.exchanges[name]) for name in sorted(self._now.exchanges)]

    def exchange(self, name: str) -> ExchangeRow:
        """The exchange of this name, or ``UnknownExchange``."""
        with self._reading():
            return self._exchange_row(self._known_exchange(name))

    def _exchange_row(self, exchange: StoredExchange) -> ExchangeRow:
        return ExchangeRow(exchange.name, exchange.type, parsed(exchange.arguments), exchange.alternate)

    def _known_exchange(self, name: str) -> StoredExchange:
        exchange = self._now.exchanges.get(name)
        if exchange is None:
            raise UnknownExchange(f"no exchange is called {name!r} in {self._place.where}: declare it first")
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

        Durable on return. Raises ``CatalogError`` if it is there with another type, arguments or alternate,
        ``UnknownExchange`` if there is no exchange called ``alternate``.
        """
        import sqlalchemy as sa

        text = canonical(f"exchange {checked_name('an exchange', name)!r}", arguments)
        wanted = StoredExchange(name, checked_name("an exchange type", type), text, alternate)
        with self._changing():
            known = self._now.exchanges.get(name)
            if known is not None:
                if known == wanted:
                    return self._exchange_row(known), False
                raise CatalogError(
                    f"exchange {name!r} exists as {known.type!r} with arguments {known.arguments} and "
                    f"alternate {known.alternate!r}, and was declared as {type!r} with {text} and "
                    f"{alternate!r}: declare it as it is, or delete it first"
                )
            if alternate is not None:
                self._known_exchange(alternate)

            def remember() -> None:
                self._now.exchanges[name] = wanted

            self._commit(sa.insert(self._tables.exchanges).values(wanted._asdict()), then=remember)
            return self._exchange_row(wanted), True

    def delete_exchange(self, name: str) -> None:
        """Delete an exchange with its bindings; durable on return.

        Raises ``UnknownExchange``, or ``CatalogError`` while it is the alternate of another one.
        """
        import sqlalchemy as sa

        exchanges = self._tables.exchanges
        with self._changing():
            self._known_exchange(name)
            users = [other.name for other in self._now.exchanges.values() if other.alternate == name]
            if users:
                raise CatalogError(f"exchange {name!r} is the alternate of {users[0]!r}: delete that one first")

            def forget() -> None:
                del self._now.exchanges[name]
                self._now.bindings = {row: None for row in self._now.bindings if row.exchange != name}

            self._commit(sa.delete(exchanges).where(exchanges.c.name == name), then=forget)

    # ---- Bindings

    def bindings(self) -> list[BindingRow]:
        """All bindings, in the order in which they were made."""
        with self._reading():
            return [
                BindingRow(row.exchange, self._now.queue_names[row.queue_id], row.key, parsed(row.arguments))
                for row in self._now.bindings
            ]

    def bind(self, exchange: str, queue: str, key: str = "", *, arguments: Mapping[str, Any] | None = None) -> None:
        """Bind a queue to an exchange; durable on return.

        The same binding again is harmless; other arguments make another binding. Raises
        ``UnknownExchange`` or ``UnknownQueue``.
        """
        import sqlalchemy as sa

        with self._changing():
            row = self._binding(exchange, queue, key, arguments)
            if row in self._now.bindings:
                return

            def remember() -> None:
                self._now.bindings[row] = None

            values = {**row._asdict(), "arguments_sha256": _sha256(row.arguments)}
            self._commit(sa.insert(self._tables.bindings).values(values), then=remember)

    def unbind(self, exchange: str, queue: str, key: str = "", *, arguments: Mapping[str, Any] | None = None) -> None:
        """Take back the binding with exactly this key and these arguments; durable on return.

        Harmless if there is none. Raises ``UnknownExchange`` or ``UnknownQueue``.
        """
        import sqlalchemy as sa

        table = self._tables.bindings
        with self._changing():
            row = self._binding(exchange, queue, key, arguments)
            if row not in self._now.bindings:
                return

            def forget() -> None:
                del self._now.bindings[row]

            same = (
                (table.c.exchange == row.exchange)
                & (table.c.queue_id == row.queue_id)
                & (table.c.key == row.key)
                & (table.c.arguments_sha256 == _sha256(row.arguments))
            )
            self._commit(sa.delete(table).where(same), then=forget)

    def _binding(self, exchange: str, queue: str, key: str, arguments: Mapping[str, Any] | None) -> StoredBinding:
        if not isinstance(key, str):
            raise TypeError(f"a binding key is a str, not {type(key).__name__}")
        text = canonical(f"the binding of queue {queue!r} to exchange {exchange!r}", arguments)
        return StoredBinding(
            self._known_exchange(exchange).name,
            self._known_queue(queue).id,
            checked_text("a binding key", key),
            text,
        )

    # ---- Configuration

    @property
    def config(self) -> MutableMapping[str, str]:
        """General configuration, str to str; each change is durable when it returns."""
        return _Config(self)

    def _set_config(self, changes: Mapping[str, str | None]) -> None:
        """Set all of these, or remove what is None, in one transaction."""
        import sqlalchemy as sa

        table = self._tables.config
        with self._changing():
            statements: list[Executable] = []
            for key, value in changes.items():
                if value is None:
                    statements.append(sa.delete(table).where(table.c.key == key))
                elif key in self._now.config:
                    statements.append(sa.update(table).where(table.c.key == key).values(value=value))
                else:
                    statements.append(sa.insert(table).values(key=key, value=value))
            after = {key: value for key, value in {**self._now.config, **changes}.items() if value is not None}
            if after == self._now.config:
                return

            def remember() -> None:
                self._now.config = after

            self._commit(*statements, then=remember)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("ascii")).hexdigest()


class _Config(MutableMapping[str, str]):
    """A view: it holds nothing itself. A call is one transaction, ``update`` and ``clear`` too."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def _entries(self) -> dict[str, str]:
        with self._catalog._reading():
            return self._catalog._now.config  # replaced as a whole by every change, never changed in place

    def __getitem__(self, key: str) -> str:
        return self._entries()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries())

    def __len__(self) -> int:
        return len(self._entries())

    def __repr__(self) -> str:
        return f"<config {self._entries()}>"

    def __setitem__(self, key: str, value: str) -> None:
        self.update({key: value})

    def __delitem__(self, key: str) -> None:
        with self._catalog._changing():
            self._entries()[key]
            self._catalog._set_config({key: None})

    def update(self, *others: Any, **named: Any) -> None:
        """As ``dict.update``, all of it or nothing."""
        changes: dict[str, str] = dict(*others, **named)
        for key, value in changes.items():
            checked_name("a configuration entry", key)
            if not isinstance(value, str):
                raise TypeError(f"configuration {key!r} takes a str, not {type(value).__name__}")
            checked_text(f"configuration {key!r}", value, bytes_max=CONFIG_BYTES_MAX)
        self._catalog._set_config(changes)

    def clear(self) -> None:
        """Remove every entry, all of it or nothing."""
        with self._catalog._changing():
            self._catalog._set_config(dict.fromkeys(self._entries()))
