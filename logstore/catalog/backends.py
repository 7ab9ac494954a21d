"""The backends of a catalog: a SQLite file in the store directory, or a schema of a server (see postgres.py).

A backend knows how to make, open and check itself, and how to explain its driver's exceptions. Opening never creates a
catalog, and no file is changed before it is known to belong to this store.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from logstore.catalog.postgres import PostgresSchema
from logstore.catalog.text import one_line
from logstore.core.imports import late
from logstore.core.regular_files import check_regular, force_directory, open_regular
from logstore.errors import CatalogError, CatalogMismatch, CatalogUnavailable, OptionError

if TYPE_CHECKING:  # imported late: these would double the time of "import logstore"
    import sqlite3

    from sqlalchemy import Connection, Engine

FILE_NAME = "catalog.sqlite"
SIDE_NAMES = tuple(f"{FILE_NAME}-{one}" for one in ("wal", "shm", "journal"))  # SQLite's files next to it

TIMEOUT_S = 10.0  # ample: a change normally takes milliseconds
BUSY_TIMEOUT_S = 5.0  # ample: readers never hold the lock


class Backend(Protocol):
    """The operations that each backend provides."""

    where: str  # for messages
    schema: str | None
    statement_s: float
    """How long a close waits for a statement that another thread executes. 0: it may take the connection away."""

    def make(self) -> None:
        """Makes everything that must exist before the first connection."""

    def engine(self) -> Engine:
        """Connections whose commits are durable. Creates nothing and changes no foreign data."""

    def prepare_schema(self, connection: Connection) -> None:
        """Makes everything that must exist before the tables."""

    def verify(self, connection: Connection) -> None:
        """Checks the structures below the rows. Raises ``CatalogError`` for damage."""

    def settle(self, engine: Engine) -> None:
        """Changes the backend's own settings. Called once it is known that the backend belongs to this store."""

    def renew(self, engine: Engine) -> None:
        """Discards state that an earlier failed write may have left. Called before a change."""

    def explain(self, error: Exception) -> CatalogError:
        """The error of our own for an exception of the driver, with one plain sentence."""


class SqliteFile:
    """``catalog.sqlite`` in the store directory. Its -wal and -shm files get their mode from it."""

    schema: str | None = None

    def __init__(
        self,
        store_dir: str | os.PathLike[str],
        *,
        read_only: bool,
        at_rest: bool = False,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """``at_rest``: no process has it open, so it is read in place, and no file is made next to it."""
        self.path = Path(os.fspath(store_dir)).absolute() / FILE_NAME
        self.read_only = read_only
        self.at_rest = at_rest
        self.timeout_s = self.statement_s = timeout_s
        self.where = f"the catalog {self.path}"

    def make(self) -> None:
        """Makes an empty file, durably. An existing file stays unchanged."""
        try:
            try:
                made = open_regular(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            except FileExistsError:
                return
            os.close(made)
            force_directory(self.path.parent)
        except OSError as error:
            raise CatalogUnavailable(
                f"{self.where} cannot be made: {error.strerror}; check the directory and try again"
            ) from error

    def check_files(self) -> None:
        """Checks that SQLite will open regular files only, which it may read, and write unless ``read_only``.

        Raises ``CatalogMismatch`` if the catalog is missing, ``CatalogError`` or ``CatalogUnavailable``.
        """
        # By name, never through a descriptor: closing one would drop every lock that SQLite holds on the file in this
        # process.
        for name in (FILE_NAME, *SIDE_NAMES):
            path = self.path.with_name(name)
            try:
                check_regular(path, write=not self.read_only)
            except FileNotFoundError:
                if name != FILE_NAME:
                    continue
                raise CatalogMismatch(
                    f"{self.where} is missing, but the log needs it: restore it together with the log, "
                    "or name the server that has it with connect and catalog"
                ) from None
            except OSError as error:
                said = f"{self.where} cannot be used: {error.strerror}" + (f" ({name})" if name != FILE_NAME else "")
                if isinstance(error, PermissionError) and os.access(path, os.R_OK, effective_ids=True):
                    raise CatalogError(
                        f"{self.where} cannot be written: {error.strerror}; check its permissions and its directory's"
                    ) from error
                if error.errno == errno.EINVAL:
                    raise CatalogError(f"{said}; replace it by the catalog's regular file") from error
                raise CatalogUnavailable(f"{said}; check the disk and the permissions") from error

    def engine(self) -> Engine:
        """One connection for all threads, because changes are made one at a time."""
        late("sqlite3")
        late("sqlalchemy")
        late("sqlalchemy.pool")
        late("sqlalchemy.dialects.sqlite")  # else imported in create_engine
        import sqlite3
        from urllib.parse import quote

        import sqlalchemy as sa
        from sqlalchemy.pool import StaticPool

        self.check_files()
        mode, begin = ("ro", "BEGIN") if self.read_only else ("rw", "BEGIN IMMEDIATE")
        uri = f"file:{quote(os.fsencode(self.path))}?mode={mode}"
        alone = not os.path.lexists(f"{self.path}-wal") and not os.access(self.path.parent, os.W_OK)
        if self.at_rest or (self.read_only and alone):
            uri += "&immutable=1"  # on a read-only medium SQLite cannot make its -shm file and does not need it

        def connect() -> sqlite3.Connection:
            connection = sqlite3.connect(
                uri,
                uri=True,
                timeout=min(BUSY_TIMEOUT_S, self.timeout_s),
                isolation_level=None,
                check_same_thread=False,
            )
            for setting in (
                "trusted_schema=OFF",
                "cell_size_check=ON",
                "foreign_keys=ON",
                "synchronous=FULL",
            ):
                connection.execute(f"PRAGMA {setting}")
            return connection

        engine = sa.create_engine("sqlite+pysqlite://", creator=connect, poolclass=StaticPool, hide_parameters=True)
        # With isolation_level None the driver begins no transaction itself. So tables, too, are made in a transaction.
        sa.event.listen(engine, "begin", lambda connection: connection.exec_driver_sql(begin))
        return engine

    def prepare_schema(self, connection: Connection) -> None:
        """Does nothing: a file has no schemas."""

    def settle(self, engine: Engine) -> None:
        """Switches to write-ahead logging, which the file's header records, and sets the permissions."""
        if self.read_only:
            return
        raw = engine.raw_connection()
        try:
            cursor = raw.cursor()
            cursor.execute("PRAGMA journal_mode=WAL")
            mode = cursor.fetchone()
            cursor.close()
        finally:
            raw.close()
        if mode != ("wal",):
            raise CatalogUnavailable(
                f"{self.where} is on a file system without the shared memory that SQLite's WAL needs: "
                "move the store to a local disk"
            )
        for suffix in ("", "-wal", "-shm"):
            with suppress(OSError):  # absent, or owned by another user who lets us write
                os.chmod(f"{self.path}{suffix}", 0o600)
        self.renew(engine)

    def renew(self, engine: Engine) -> None:
        """Writes the write-ahead log back into the file, forces it, and empties the log.

        After a failed sync the page cache shows data that the disk does not have. On ext4, later writes through the
        same pages are synced without an error and are still lost at a power failure. Records after such a gap in the
        log would then be lost, too. An emptied log starts in new blocks. After a clean close there is no log.
        """
        if self.read_only:
            return
        raw = engine.raw_connection()
        try:
            cursor: sqlite3.Cursor = raw.cursor()  # type: ignore[assignment] # the driver is known
            cursor.execute(
                "SELECT count(*) FROM sqlite_master"
            ).fetchall()  # without a read the new mode blocks the next
            ((busy, _, _),) = cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            cursor.close()
        finally:
            raw.close()
        if busy:
            raise CatalogUnavailable(f"{self.where} is being read by another process; end that process, or try again")

    def reuse_blocks(self, engine: Engine) -> None:
        """Writes the write-ahead log back into the file. The next change overwrites the log from its start.

        On a full disk small changes go on so. What the file has no room for stays in the log.
        """
        raw = engine.raw_connection()
        try:
            cursor = raw.cursor()
            cursor.execute("PRAGMA wal_checkpoint(RESTART)")
            cursor.fetchall()
            cursor.close()
        finally:
            raw.close()

    def verify(self, connection: Connection) -> None:
        """Checks all pages and references; SQLite itself notices damage only when it reads the damaged part."""
        found = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar()
        if found == "ok":
            found = connection.exec_driver_sql("PRAGMA foreign_key_check").first()
            if found is None:
                return
            found = f"a row of {found[0]} refers to nothing"
        raise CatalogError(f"{self.where} is damaged ({one_line(found)}): restore it together with the log")

    def explain(self, error: Exception) -> CatalogError:
        """The error for SQLite's result code."""
        late("sqlite3")
        import sqlite3

        cause = getattr(error, "orig", None) or error
        code = getattr(cause, "sqlite_errorcode", None)
        if code == sqlite3.SQLITE_IOERR_SHMSIZE:
            code = sqlite3.SQLITE_FULL  # the file -shm, which is made at each first open, gets no block
        match None if code is None else code & 0xFF:
            case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
                return CatalogUnavailable(f"{self.where} is locked by another process; end that process, or try again")
            case sqlite3.SQLITE_NOTADB | sqlite3.SQLITE_CORRUPT:
                return CatalogError(f"{self.where} is damaged ({one_line(cause)}): restore it together with the log")
            case sqlite3.SQLITE_FULL:
                full = CatalogError(f"{self.where} cannot grow, its disk is full: make room and repeat the call")
                full.is_full = True
                return full
            case sqlite3.SQLITE_READONLY:
                return CatalogError(f"{self.where} cannot be written: check its permissions and its directory's")
            case sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM | sqlite3.SQLITE_IOERR:
                return CatalogUnavailable(
                    f"{self.where} cannot be read or written ({cause}): check the disk and the permissions"
                )
        return CatalogError(f"{self.where} could not be used ({one_line(cause)})")


def backend_for(
    store_dir: str | os.PathLike[str],
    connect: str | None,
    schema: str | None,
    *,
    read_only: bool = False,
    at_rest: bool = False,
    timeout_s: float = TIMEOUT_S,
) -> Backend:
    """The backend that the options name. Nothing is opened or changed. Raises ``OptionError``."""
    if connect is not None:
        return PostgresSchema(connect, schema, timeout_s=timeout_s, read_only=read_only)
    if schema is not None:
        raise OptionError("catalog names a schema on a server: give connect too, or leave catalog out")
    return SqliteFile(store_dir, read_only=read_only, at_rest=at_rest, timeout_s=timeout_s)
