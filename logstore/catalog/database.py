"""The connection between a catalog's memory and its database: opening, loading, and one change at a time.

* A change is one transaction. Memory changes only after its commit was confirmed, and then by one assignment that
  replaces the contents. So an exception at any moment leaves either the old or the new contents.
* If the answer to a commit is missing, no further change is made before its outcome is known. Every change locks the
  same row; waiting for that row also waits for a commit that is still in progress on a server.
* If a transaction does not end normally, its connection is closed. An exception may have interrupted it between any two
  steps, and an open transaction would block every later one.

* The exception of a signal handler leaves this module as the handler raised it. SQLAlchemy can replace it by an
  exception of its own, such as the ``AssertionError`` of a ``finally`` block that was reached too early.

Drivers' exceptions never leave this module, only those in ``errors.py``.
"""

from __future__ import annotations

import os
import sys
import uuid
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, Self

from logstore.catalog.backends import TIMEOUT_S, Backend, SqliteFile, backend_for
from logstore.catalog.rows import Contents, make_tables
from logstore.catalog.statements import Statements, execute
from logstore.catalog.text import one_line
from logstore.core.imports import late
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

if TYPE_CHECKING:  # imported late: these would double the time of "import logstore"
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from sqlalchemy import Connection, Engine

    from logstore.catalog.rows import StoredQueue, Tables
    from logstore.catalog.statements import Step

CATALOG_VERSION = 1


class ChangeLog(Protocol):
    """The log of a replicated store, which a change of its catalog enters before the database has it."""

    def carry(self, statements: Statements, before: Contents, after: Contents) -> Carried:
        """The change that turns ``before`` into ``after``. Nothing is written yet. Raises ``OptionError``."""

    def write(self, carried: Any) -> None:
        """Writes the change to the log; on return a majority has it. After an exception :meth:`has` knows more."""

    def has(self, carried: Any) -> bool:
        """Whether a majority has the change.

        Raises ``OutcomeUnknown`` if that is unknown here, because the store no longer leads.
        """


class Carried(Protocol):
    """A change that is in the log."""

    @property
    def steps(self) -> Sequence[Step]:
        """The statements that the database executes once a majority has the change."""


class CatalogDatabase:
    """The base of :class:`~logstore.catalog.catalog.Catalog`: the database, and the contents in memory."""

    def __init__(self, backend: Backend, store_uuid: bytes, *, read_only: bool) -> None:
        """Not for callers: they use :meth:`create` or :meth:`open`."""
        if len(store_uuid) != 16:
            raise OptionError(f"a store UUID has 16 bytes, not {len(store_uuid)}")
        self._backend = backend
        self._uuid = str(uuid.UUID(bytes=bytes(store_uuid)))
        self._read_only = read_only
        self._pid = os.getpid()
        self._closed = self._is_shut = False
        self._engine = backend.engine()
        self._tables = make_tables(backend.schema)
        self.statements = Statements(self._tables)
        """The prepared statements for changes of this database."""
        self._record: Any = None  # the pool's record of the one connection
        self._disturbed = False  # a transaction has begun on it and has not ended normally
        _on_connect(self._engine, self._connected)

        # Allows one change at a time; held during the database's work.
        self._change = Lock(backend.where, then=self._prepare_change)
        self._stale = False  # a commit's outcome is unknown, so memory may be behind the database
        self._committing = False  # a commit is in progress, and no caller knows of an unknown outcome yet
        self._overtaken = False  # another process wrote, so no change may be based on this memory
        self._log: ChangeLog | None = None
        self._owed: tuple[Carried, Contents] | None = None  # a change that the log may have, and the database may lack
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
        """Makes the catalog of a new store and opens it; durable on return.

        ``timeout_s`` is the longest wait for each answer of a server, in seconds. If the catalog exists with the same
        UUID, it is opened; so a second call completes an interrupted creation. Raises ``CatalogMismatch`` if the
        backend holds anything else.
        """
        backend = backend_for(store_dir, connect, schema, timeout_s=timeout_s)
        backend.make()
        return cls(backend, store_uuid, read_only=False)._started(create=True)

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
        log: ChangeLog | None = None,
    ) -> Self:
        """Opens the catalog of the store with this UUID; never creates one.

        ``read_only`` reads the state committed at this moment, also while a writer runs. ``at_rest`` says that no
        process has the file open: it is read in place, and no file is made next to it. With ``log`` each change stands
        there before it is made here.
        Raises ``CatalogMismatch`` (missing, empty, or another store's), ``VersionError``, ``CatalogUnavailable`` or
        ``CatalogError``.
        """
        backend = backend_for(store_dir, connect, schema, read_only=read_only, at_rest=at_rest, timeout_s=timeout_s)
        made = cls(backend, store_uuid, read_only=read_only)
        made._log = log
        return made._started(create=False)

    def _started(self, *, create: bool) -> Self:
        try:
            with self._transaction() as connection:
                if create:
                    self._create_tables(connection)
                self._check_identity(connection)
                if not self._read_only:
                    self._settled_revision(connection)
                self._backend.verify(connection)
                self._load(connection)
            with self._explained():
                self._backend.settle(self._engine)
                if not self._read_only:
                    self._check_writable()
        except BaseException:
            self.close()
            raise
        return self

    def _check_writable(self) -> None:
        """Makes a change and rolls it back, so that a missing permission shows now and not at the first change."""
        late("sqlalchemy")
        import sqlalchemy as sa

        with self._engine.connect() as connection:
            connection.execute(sa.update(self._tables.store).values(revision=self._now.revision))
            connection.rollback()

    def close(self) -> None:
        """Closes the connection. A second call does nothing, nor does a call in a forked child.

        A change that another thread has in progress ends first if the database is a file; if it does not end within
        the timeout, the connection ends with the process. That of a server fails. If an exception interrupted the first
        call, the second one finishes it.
        """
        self._closed = True
        if self._is_shut or os.getpid() != self._pid:
            return
        wait_s = self._backend.statement_s
        is_quiet = self._change.acquire(timeout=wait_s)
        if wait_s and not is_quiet:
            return  # SQLite crashes if it loses its connection in the middle of a statement
        try:
            if self._disturbed:
                self._drop_connection()
            self._disturbed = True
            self._engine.dispose()
            self._disturbed = False
            self._is_shut = True
        finally:
            if is_quiet:
                self._change.release()

    # ---- Asking the database

    @contextmanager
    def _explained(self) -> Iterator[None]:
        late("sqlite3")
        late("sqlalchemy.exc")
        import sqlite3

        from sqlalchemy.exc import SQLAlchemyError

        outer = sys.exception()
        try:
            yield
        except BaseException as error:
            _raise_interruption(error, outer)
            if isinstance(error, (SQLAlchemyError, sqlite3.Error)):
                raise self._backend.explain(error) from error
            if isinstance(error, (TypeError, ValueError)) and not isinstance(error, StoreError):
                # A value of the wrong type in the database.
                raise CatalogError(
                    f"{self._backend.where} is damaged ({one_line(error)}): restore it together with the log"
                ) from error
            raise

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        late("sqlite3")
        late("sqlalchemy.exc")
        import sqlite3

        from sqlalchemy.exc import SQLAlchemyError

        outer = sys.exception()
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
            except GeneratorExit:  # an exception came before the block was entered; this may arrive much later
                raise
            except BaseException as error:
                refused = isinstance(error, (SQLAlchemyError, sqlite3.Error, StoreError))
                if refused and _interruption(error, outer) is None:
                    # The connection stays open: while the disk fails, closing SQLite's last connection would also
                    # remove the write-ahead log.
                    self._roll_back(connection)
                else:
                    self._drop_connection()
                raise

    def _roll_back(self, connection: Connection) -> None:
        late("sqlite3")
        import sqlite3

        raw = None if self._record is None else self._record.dbapi_connection
        outer = sys.exception()
        try:
            if isinstance(raw, sqlite3.Connection):
                raw.rollback()  # also after a failed COMMIT, which SQLAlchemy treats as the end of the transaction
            connection.close()
            self._disturbed = False
        except Exception as error:  # noqa: BLE001 - the first error is the one to raise
            self._drop_connection()
            _raise_interruption(error, outer)

    def _connected(self, _raw: object, record: object) -> None:
        self._record = record

    def _drop_connection(self) -> None:
        """Closes the connection, even if it is still referenced; the next transaction opens a new one."""
        late("sqlite3")
        import sqlite3

        record = self._record
        raw = None if record is None else record.dbapi_connection
        if raw is not None:
            if isinstance(raw, sqlite3.Connection):
                with suppress(sqlite3.Error):
                    raw.rollback()  # close() alone would wait for cursors that a traceback may still reference
            try:
                record.invalidate()
            except AttributeError:  # SQLAlchemy was interrupted before it had made the record completely
                raw.close()
        self._record = None
        self._engine.dispose()
        self._disturbed = False

    @contextmanager
    def snapshot(self) -> Iterator[tuple[Connection, Tables]]:
        """A transaction on the database, and its tables, for copying them."""
        self._check_usable()
        with self._transaction() as connection:
            yield connection, self._tables

    def _table_names(self, connection: Connection) -> set[str]:
        late("sqlalchemy")
        import sqlalchemy as sa

        return set(sa.inspect(connection).get_table_names(schema=self._backend.schema))

    def _create_tables(self, connection: Connection) -> None:
        late("sqlalchemy")
        import sqlalchemy as sa

        self._backend.prepare_schema(connection)
        found = self._table_names(connection)
        if found and "store" not in found:
            raise CatalogMismatch(
                f"{self._backend.where} holds other tables ({min(found)}): use an empty place for this store"
            )
        if not found:
            self._tables.metadata.create_all(connection, checkfirst=False)
            row = {"one": 1, "uuid": self._uuid, "catalog_version": CATALOG_VERSION}
            connection.execute(sa.insert(self._tables.store).values(**row, next_queue_id=1, revision=0))

    def _check_identity(self, connection: Connection) -> None:
        late("sqlalchemy")
        import sqlalchemy as sa

        where, store = self._backend.where, self._tables.store
        found = self._table_names(connection)
        # The version first: in a newer catalog everything else may be different.
        version = connection.execute(sa.select(store.c.catalog_version)).scalar() if "store" in found else None
        if version is None:
            raise CatalogMismatch(
                f"{where} is empty, but the log needs its contents: restore it together with the log, "
                "or name the right catalog with connect and catalog"
            )
        if version > CATALOG_VERSION:
            raise VersionError(
                f"{where} has version {version}, but this logstore knows only versions up to {CATALOG_VERSION}: "
                "use a newer logstore"
            )
        missing = {table.name for table in self._tables.metadata.sorted_tables} - found
        if missing:
            raise CatalogError(f"{where} is damaged (no table {min(missing)}): restore it together with the log")
        other = connection.execute(sa.select(store.c.uuid)).scalar()
        if other != self._uuid:
            raise CatalogMismatch(
                f"{where} belongs to the store {other}, but this is the store {self._uuid}: "
                "put the matching log and catalog together, or use an empty place for this store"
            )

    def _settled_revision(self, connection: Connection) -> int:
        """The count of changes, read when no change is in progress. None can begin before this transaction ends.

        On a server the commit of a killed process, or of a broken connection, may still be in progress.
        """
        late("sqlalchemy")
        import sqlalchemy as sa

        waiting = sa.select(self._tables.store.c.revision).with_for_update()
        return int(connection.execute(waiting).scalar_one())

    def _load(self, connection: Connection) -> None:
        self._now = Contents.read(connection, self._tables)

    # ---- One change at a time

    def _check_usable(self) -> None:
        if self._pid != os.getpid():
            raise StoreForked(f"{self._backend.where} was opened by the parent process: open the store in this one")
        if self._closed:
            raise StoreClosed(f"{self._backend.where} is closed: open the store again")

    def _read(self) -> Contents:
        """The state after the last commit. Never waits."""
        self._check_usable()
        return self._now

    def changes(self) -> AbstractContextManager[object]:
        """Keeps all other changes out of the block. Inside it, the outcome of every earlier change is known.

        Raises ``CatalogUnavailable`` if an outcome cannot be determined now, ``CatalogOvertaken`` if another process
        has changed the catalog, ``ReentrantCall`` if this thread is already inside a change.
        """
        self._check_usable()  # before the lock, which a forked child may have inherited locked
        return self._change

    def try_transaction(self, work: Callable[[Connection, Tables], None]) -> bool:
        """Does the work in one transaction if no change is in progress, and never waits for one; whether it did.

        For a thread that runs no signal handlers. The contents in memory stay as they are.
        """
        if not self._change.acquire(blocking=False):
            return False
        try:
            self._prepare_change()
            with self._transaction() as connection:
                work(connection, self._tables)
        finally:
            self._change.release()
        return True

    def reuse_blocks(self) -> None:
        """On a full disk: makes room, as far as possible, so that the next write needs no new blocks.

        Only a catalog in a file needs this.
        """
        if isinstance(self._backend, SqliteFile):
            with self._explained():
                self._backend.reuse_blocks(self._engine)

    def _prepare_change(self) -> None:
        self._check_usable()
        if self._read_only:
            raise CatalogError(f"{self._backend.where} was opened for reading only: open the store to change it")
        if self._overtaken:
            self._refuse_second_writer()
        if self._stale:
            self._reload()
        if self._owed is not None:
            self._settle(*self._owed)

    def _settle(self, carried: Carried, after: Contents) -> None:
        """Makes a change that the log has and the database may lack, because the call that wanted it failed."""
        if self._log is not None and self._now.revision < after.revision and self._log.has(carried):
            self._execute(carried.steps, after)
        self._owed = None

    @property
    def memory_answers(self) -> bool:
        """Whether memory may answer for the database: not after a failed change whose outcome is unknown."""
        self._check_usable()
        unknown = (self._stale and not self._committing) or self._owed is not None
        return not (self._read_only or self._overtaken or unknown)

    @property
    def settled(self) -> bool:
        """Whether the outcome of every change is known. False also during a commit."""
        return not self._stale and self._owed is None

    @property
    def reloads(self) -> int:
        """How often the outcome of a change had to be read from the database."""
        return self._reloads

    @property
    def stored_queues(self) -> dict[str, StoredQueue]:
        """The queues by name. Never changed in place: a change replaces the whole mapping by another object."""
        return self._now.queues

    def _reload(self) -> None:
        """Reads the outcome of a commit whose answer is missing."""
        with self._explained():
            if self._disturbed:
                self._drop_connection()
            self._disturbed = True
            self._backend.renew(self._engine)
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
            f"{self._backend.where} was changed by another process since it was opened, "
            "but a catalog has one writer: close the other store, then open this one again"
        )

    def _commit(self, *steps: Step, after: Contents) -> None:
        """Executes all steps in one transaction; then ``after`` becomes the contents in memory."""
        after.revision = self._now.revision + 1
        if self._log is None:
            self._execute(steps, after)
            return
        carried = self._log.carry(self.statements, self._now, after)
        self._owed = carried, after
        self._log.write(carried)
        self._execute(carried.steps, after)
        self._owed = None

    def _execute(self, steps: Sequence[Step], after: Contents) -> None:
        try:
            with self._transaction() as connection:
                if not self.statements.count(connection, self._uuid, after.revision, after.next_queue_id):
                    self._refuse_second_writer()
                execute(connection, steps)
                self._committing = self._stale = True  # until memory has changed: the block's end commits
            self._now = after
            self._stale = False
        finally:
            self._committing = False


_DATABASE = {"logstore", "psycopg", "psycopg_binary", "sqlalchemy", "sqlite3"}
_WITHIN = _DATABASE | sys.stdlib_module_names
"""Packages whose code runs within a transaction. The code of a signal handler is in another one."""


def _interruption(error: BaseException, outer: BaseException | None) -> BaseException | None:
    """The exception with which a signal handler interrupted the database's work, if ``error`` is it or replaced it.

    ``outer`` is the exception that was being handled when the work began.
    """
    found: BaseException | None = error
    while found is not None and found is not outer:
        trace = found.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        home = "" if trace is None else _package(trace.tb_frame.f_globals.get("__name__"))
        # SQLAlchemy's exception may have the traceback of the one that it replaces.
        is_foreign = _package(type(found).__module__) not in _DATABASE and trace is not None and home not in _WITHIN
        if not isinstance(found, Exception) or is_foreign:
            return found
        found = found.__context__
    return None


def _package(module: object) -> str:
    return str(module).partition(".")[0]


def _raise_interruption(error: BaseException, outer: BaseException | None) -> None:
    """Raises the signal handler's exception if ``error`` has replaced it or is it."""
    found = _interruption(error, outer)
    if found is not None:
        raise found from found.__cause__


def _on_connect(engine: Engine, then: Any) -> None:
    late("sqlalchemy")
    import sqlalchemy as sa

    sa.event.listen(engine, "connect", then)
