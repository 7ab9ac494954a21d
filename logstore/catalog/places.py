"""Where a catalog can be: a SQLite file in the store directory, or a schema of a server, which postgres.py reaches.

A place knows how to make, open and check itself, and how to say what its driver's exceptions mean. It never
creates a catalog that was to be opened, and changes no file before it is known to be ours.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from logstore.catalog.postgres import PostgresSchema
from logstore.catalog.text import one_line
from logstore.core.regular_files import check_regular, force_directory, open_regular
from logstore.errors import CatalogError, CatalogMismatch, CatalogUnavailable, OptionError

if TYPE_CHECKING:  # imported where they are used: half of the time that "import logstore" may take
    import sqlite3

    from sqlalchemy import Connection, Engine

FILE_NAME = "catalog.sqlite"
SIDE_NAMES = tuple(f"{FILE_NAME}-{one}" for one in ("wal", "shm", "journal"))  # what SQLite keeps beside it

TIMEOUT_S = 10.0  # what a change takes is milliseconds
BUSY_TIMEOUT_S = 5.0  # readers never hold the lock; whoever holds it longer is no reader


class Place(Protocol):
    """What a place must know about itself."""

    where: str  # for messages
    schema: str | None

    def make(self) -> None:
        """Make what must be there before anything can connect."""

    def engine(self) -> Engine:
        """Connections that are durable at commit; nothing is created, and nothing of others changed."""

    def prepare_schema(self, connection: Connection) -> None:
        """Make what must be there before the tables."""

    def verify(self, connection: Connection) -> None:
        """Look for damage below the rows, or raise ``CatalogError``."""

    def settle(self, engine: Engine) -> None:
        """Do what changes the place itself, and so waits until it is known to be ours."""

    def renew(self, engine: Engine) -> None:
        """Before a change: let nothing stand on what a write that failed, in this process or before, may have left."""

    def explain(self, error: Exception) -> CatalogError:
        """Say in one plain sentence what an exception of the driver means."""


class SqliteFile:
    """``catalog.sqlite`` in the store directory; its -wal and -shm files take their mode from it."""

    schema: str | None = None

    def __init__(
        self,
        store_dir: str | os.PathLike[str],
        *,
        read_only: bool,
        at_rest: bool = False,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """``at_rest``: nobody has it open, so it is read in place, and no file is made beside it."""
        self.path = Path(os.fspath(store_dir)).absolute() / FILE_NAME
        self.read_only = read_only
        self.at_rest = at_rest
        self.timeout_s = timeout_s
        self.where = f"the catalog {self.path}"

    def make(self) -> None:
        """An empty file, its directory entry forced; one that is there stays as it is."""
        try:
            try:
                made = open_regular(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            except FileExistsError:
                return
            os.close(made)
            force_directory(self.path.parent)
        except OSError as error:
            raise CatalogUnavailable(
                f"{self.where} cannot be made: {error.strerror}; see to the directory and try again"
            ) from error

    def check_files(self) -> None:
        """That SQLite will open nothing but regular files, which it may read, and write unless ``read_only``.

        Raises ``CatalogMismatch`` where the catalog is missing, ``CatalogError`` or ``CatalogUnavailable``.
        """
        # By name, never through a descriptor of our own: closing one would drop every lock that SQLite holds
        # on the file in this process.
        for name in (FILE_NAME, *SIDE_NAMES):
            path = self.path.with_name(name)
            try:
                check_regular(path, write=not self.read_only)
            except FileNotFoundError:
                if name != FILE_NAME:
                    continue
                raise CatalogMismatch(
                    f"{self.where} is missing, and the log needs it: restore it together with the log, "
                    "or name the server that has it with connect and catalog"
                ) from None
            except OSError as error:
                said = f"{self.where} cannot be used: {error.strerror}" + (f" ({name})" if name != FILE_NAME else "")
                if isinstance(error, PermissionError) and os.access(path, os.R_OK, effective_ids=True):
                    raise CatalogError(
                        f"{self.where} cannot be written: {error.strerror}; see to its permissions and its directory's"
                    ) from error
                if error.errno == errno.EINVAL:
                    raise CatalogError(f"{said}; put the catalog itself there, without what is odd") from error
                raise CatalogUnavailable(f"{said}; see to the disk and the permissions") from error

    def engine(self) -> Engine:
        """One connection for all threads: changes come one at a time anyway."""
        import sqlite3
        from urllib.parse import quote

        import sqlalchemy as sa
        from sqlalchemy.pool import StaticPool

        self.check_files()
        mode, begin = ("ro", "BEGIN") if self.read_only else ("rw", "BEGIN IMMEDIATE")
        uri = f"file:{quote(os.fsencode(self.path))}?mode={mode}"
        alone = not os.path.lexists(f"{self.path}-wal") and not os.access(self.path.parent, os.W_OK)
        if self.at_rest or (self.read_only and alone):
            uri += "&immutable=1"  # on a read-only medium SQLite cannot make its -shm file, and needs none

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
        # With isolation_level None the driver begins nothing by itself: tables too are made in a transaction.
        sa.event.listen(engine, "begin", lambda connection: connection.exec_driver_sql(begin))
        return engine

    def prepare_schema(self, connection: Connection) -> None:
        """Nothing: a file has no schemas."""

    def settle(self, engine: Engine) -> None:
        """The write-ahead log, which the header records, and the permissions."""
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
            with suppress(OSError):  # absent, or another user's, who lets us write all the same
                os.chmod(f"{self.path}{suffix}", 0o600)
        self.renew(engine)

    def renew(self, engine: Engine) -> None:
        """The write-ahead log is written into the file, forced, and emptied.

        After a sync that failed the page cache shows what the disk does not have, and on ext4 what is later written
        through the same pages is synced without an error and gone with the power. What comes after would be read
        only behind such a hole. An empty log begins in new blocks. After an orderly close there is none.
        """
        if self.read_only:
            return
        raw = engine.raw_connection()
        try:
            cursor: sqlite3.Cursor = raw.cursor()  # type: ignore[assignment] # the driver is known
            cursor.execute("SELECT count(*) FROM sqlite_master").fetchall()  # else the mode, just set, is in the way
            ((busy, _, _),) = cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            cursor.close()
        finally:
            raw.close()
        if busy:
            raise CatalogUnavailable(f"{self.where} is being read by another process; end that one, or try again")

    def verify(self, connection: Connection) -> None:
        """Pages and references; SQLite itself would notice only when it comes across them."""
        found = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar()
        if found == "ok":
            found = connection.exec_driver_sql("PRAGMA foreign_key_check").first()
            if found is None:
                return
            found = f"a row of {found[0]} refers to nothing"
        raise CatalogError(f"{self.where} is damaged ({one_line(found)}): restore it together with the log")

    def explain(self, error: Exception) -> CatalogError:
        """By SQLite's own result code."""
        import sqlite3

        cause = getattr(error, "orig", None) or error
        code = getattr(cause, "sqlite_errorcode", None)
        match None if code is None else code & 0xFF:
            case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
                return CatalogUnavailable(f"{self.where} is locked by another process; end that one, or try again")
            case sqlite3.SQLITE_NOTADB | sqlite3.SQLITE_CORRUPT:
                return CatalogError(f"{self.where} is damaged ({one_line(cause)}): restore it together with the log")
            case sqlite3.SQLITE_FULL:
                return CatalogError(f"{self.where} cannot grow, its disk is full: make room and repeat the call")
            case sqlite3.SQLITE_READONLY:
                return CatalogError(f"{self.where} cannot be written: see to the permissions of it and its directory")
            case sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM | sqlite3.SQLITE_IOERR:
                return CatalogUnavailable(
                    f"{self.where} cannot be read or written ({cause}): see to the disk and the permissions"
                )
        return CatalogError(f"{self.where} could not be used ({one_line(cause)})")


def place_for(
    store_dir: str | os.PathLike[str],
    connect: str | None,
    schema: str | None,
    *,
    read_only: bool = False,
    at_rest: bool = False,
    timeout_s: float = TIMEOUT_S,
) -> Place:
    """The place that the options name, or ``OptionError``; nothing is touched."""
    if connect is not None:
        return PostgresSchema(connect, schema, timeout_s=timeout_s, read_only=read_only)
    if schema is not None:
        raise OptionError("catalog names a schema on a server: give connect too, or leave it out")
    return SqliteFile(store_dir, read_only=read_only, at_rest=at_rest, timeout_s=timeout_s)
