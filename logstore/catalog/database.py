"""Between a catalog's memory and its database: opening, loading, and one change at a time.

* A change is one transaction; memory follows only after its commit was confirmed. What memory holds is never changed
  in place: one assignment replaces it, so that an exception at any moment leaves the old or the new contents.
* If the answer to a commit never came, nothing is changed before it is known what became of it: the row that every
  change takes is waited for, so that a commit still under way on a server is waited for, too.
* A transaction that did not end in order takes its connection with it: an exception may have come between any two
  steps of it, and what it left open would stand in the way of every later one.

No driver's exception leaves this module, only those of the tree in ``errors.py``.
"""

from __future__ import annotations

import os
import uuid
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, NoReturn, Self

from logstore.catalog.places import TIMEOUT_S, Place, place_for
from logstore.catalog.rows import Contents, make_tables
from logstore.catalog.text import one_line
from logstore.core.locks import Lock
from logstore.errors import (
    CatalogError,
    CatalogMismatch,
    CatalogOvertaken,
    OptionError,
    StoreClosed,
    StoreError,
    StoreForked,
    VersionError,
)

if TYPE_CHECKING:  # imported where they are used: half of the time that "import logstore" may take
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from sqlalchemy import Connection, Engine
    from sqlalchemy.sql import Executable

    from logstore.catalog.rows import StoredQueue, Tables

CATALOG_VERSION = 1


class CatalogDatabase:
    """What :class:`~logstore.catalog.Catalog` stands on."""

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
        self._record: Any = None  # the pool's, of the one connection
        self._disturbed = False  # a transaction has begun on it that has not ended in order
        _on_connect(self._engine, self._connected)

        # One change at a time; held while the database works.
        self._change = Lock(place.where, then=self._prepare_change)
        self._stale = False  # memory may be behind the database: a commit's outcome is not known
        self._committing = False  # stale or not, nobody has been told yet that the outcome is unknown
        self._overtaken = False  # somebody else wrote: what memory holds is no ground to write on
        self._reloads = 0
        self._now = Contents()  # replaced as a whole

    @classmethod
    def create(
        cls,
        store_dir: str | os.PathLike[str],
        *,
        connect: str | None = None,
        schema: str | None = None,
        store_uuid: bytes,
        timeout_s: float = TIMEOUT_S,
    ) -> Self:
        """Make the catalog of a new store and open it; durable on return.

        Each answer of a server is waited for ``timeout_s`` at most. Harmless if it exists for the same UUID: so an
        interrupted creation is finished. Raises ``CatalogMismatch`` if the place holds anything else.
        """
        place = place_for(store_dir, connect, schema, timeout_s=timeout_s)
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
        at_rest: bool = False,
        timeout_s: float = TIMEOUT_S,
    ) -> Self:
        """Open the catalog of the store with this UUID; nothing is ever created.

        ``read_only`` gives what was committed at this moment, beside a live writer and without disturbing it; a
        file that is known to be ``at_rest`` is read as it is, and nothing is made beside it.
        Raises ``CatalogMismatch`` (missing, empty, another store's), ``VersionError``, ``CatalogUnavailable``
        or ``CatalogError``.
        """
        place = place_for(store_dir, connect, schema, read_only=read_only, at_rest=at_rest, timeout_s=timeout_s)
        return cls(place, store_uuid, read_only=read_only)._started(create=False)

    def _started(self, *, create: bool) -> Self:
        try:
            with self._transaction() as connection:
                if create:
                    self._create_tables(connection)
                self._check_identity(connection)
                if not self._read_only:
                    self._settled_revision(connection)
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
            if self._disturbed:
                self._drop_connection()
            self._engine.dispose()

    # ---- Asking the database

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
        import sqlite3

        from sqlalchemy.exc import SQLAlchemyError

        with self._explained():
            if self._disturbed:
                self._drop_connection()
            self._disturbed = True
            connection = self._engine.connect()
            try:
                connection.begin()
                yield connection
                connection.commit()
                connection.close()
                self._disturbed = False
            except GeneratorExit:  # an exception kept the block from being entered, and this comes at any time later
                raise
            except (SQLAlchemyError, sqlite3.Error, StoreError):
                # The database refused: its connection stays, since closing SQLite's last one while the disk fails also
                # removes the write-ahead log.
                self._roll_back(connection)
                raise
            except BaseException:
                self._drop_connection()
                raise

    def _roll_back(self, connection: Connection) -> None:
        import sqlite3

        raw = None if self._record is None else self._record.dbapi_connection
        try:
            if isinstance(raw, sqlite3.Connection):
                raw.rollback()  # also after a COMMIT that failed, which SQLAlchemy takes for the end
            connection.close()
            self._disturbed = False
        except Exception:  # noqa: BLE001 - the first error is the one to raise
            self._drop_connection()

    def _connected(self, _raw: object, record: object) -> None:
        self._record = record

    def _drop_connection(self) -> None:
        """Close the connection, even if somebody still refers to it; the next transaction opens a new one."""
        import sqlite3

        record, self._record = self._record, None
        raw = None if record is None else record.dbapi_connection
        if raw is not None:
            if isinstance(raw, sqlite3.Connection):
                with suppress(sqlite3.Error):
                    raw.rollback()  # closing alone waits for cursors that a traceback may hold
            record.invalidate()
        self._engine.dispose()
        self._disturbed = False

    @contextmanager
    def snapshot(self) -> Iterator[tuple[Connection, Tables]]:
        """One transaction on the database itself and its tables; for whoever copies them."""
        self._check_usable()
        with self._transaction() as connection:
            yield connection, self._tables

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
            raise CatalogMismatch(
                f"{where} is empty, and the log needs it: restore it together with the log, "
                "or name the place that has it with connect and catalog"
            )
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
                "bring the right log and catalog together, or give this store a place of its own"
            )

    def _settled_revision(self, connection: Connection) -> int:
        """The count of changes once no change is under way any more; none can begin before this transaction ends.

        On a server the commit of a process that was killed, or of a connection that broke, may still be at work.
        """
        import sqlalchemy as sa

        waiting = sa.select(self._tables.store.c.revision).with_for_update()
        return int(connection.execute(waiting).scalar_one())

    def _load(self, connection: Connection) -> None:
        self._now = Contents.read(connection, self._tables)

    # ---- One change at a time

    def _check_usable(self) -> None:
        if self._pid != os.getpid():
            raise StoreForked(f"{self._place.where} was opened by the parent process: open the store in this one")
        if self._closed:
            raise StoreClosed(f"{self._place.where} is closed: open the store again")

    def _read(self) -> Contents:
        """The state after the last commit. Never waits."""
        self._check_usable()
        return self._now

    def _changing(self, within: bool = False) -> AbstractContextManager[object]:
        """Keeps other changes out of the block; ``within`` a block of :meth:`changes`, which does already."""
        return nullcontext() if within else self.changes()

    def changes(self) -> AbstractContextManager[object]:
        """Keeps all other changes out of the block; the outcome of every earlier one is known in it.

        Raises ``CatalogUnavailable`` if that cannot be found out at present, ``CatalogOvertaken`` if this store may not
        change the catalog any more, ``ReentrantCall`` if this thread is at a change already.
        """
        self._check_usable()  # before the lock, which a forked child may have inherited locked
        return self._change

    def _prepare_change(self) -> None:
        self._check_usable()
        if self._read_only:
            raise CatalogError(f"{self._place.where} was opened for reading only: open the store to change it")
        if self._overtaken:
            self._refuse_second_writer()
        if self._stale:
            self._reload()

    @property
    def _memory_answers(self) -> bool:
        """Whether what memory has is there; not while the outcome of a change that has failed is unknown."""
        self._check_usable()
        return not (self._read_only or self._overtaken or (self._stale and not self._committing))

    @property
    def settled(self) -> bool:
        """Whether the outcome of every change is known; False also while one is being committed."""
        return not self._stale

    @property
    def reloads(self) -> int:
        """How often the outcome of a change had to be read from the database."""
        return self._reloads

    @property
    def stored_queues(self) -> dict[str, StoredQueue]:
        """The queues by name, never changed in place: it is another object whenever they are others."""
        return self._now.queues

    def _reload(self) -> None:
        """Learn what became of a commit whose answer never came."""
        with self._explained():
            if self._disturbed:
                self._drop_connection()
            self._disturbed = True
            self._place.renew(self._engine)
            self._disturbed = False
        with self._transaction() as connection:
            if self._settled_revision(connection) not in (self._now.revision, self._now.revision + 1):
                self._refuse_second_writer()
            self._load(connection)
        self._reloads += 1
        self._stale = False

    def _refuse_second_writer(self) -> NoReturn:
        self._overtaken = True
        raise CatalogOvertaken(
            f"{self._place.where} was changed by another process since it was opened, "
            "and a catalog has one writer: close the other store, then open this one again"
        )

    def _commit(self, *statements: Executable, after: Contents) -> None:
        """Do it all in one transaction; then ``after`` is what memory holds."""
        import sqlalchemy as sa

        store, revision = self._tables.store, self._now.revision
        after.revision = revision + 1
        counted = (
            sa.update(store)
            .where(store.c.uuid == self._uuid, store.c.revision == revision)
            .values(revision=after.revision, next_queue_id=after.next_queue_id)
        )
        try:
            with self._transaction() as connection:
                if connection.execute(counted).rowcount != 1:
                    self._refuse_second_writer()
                for statement in statements:
                    connection.execute(statement)
                self._committing = self._stale = (
                    True  # from here on, until memory has followed: the commit is on its way
                )
            self._now = after
            self._stale = False
        finally:
            self._committing = False


def _on_connect(engine: Engine, then: Any) -> None:
    import sqlalchemy as sa

    sa.event.listen(engine, "connect", then)
