"""A catalog in one schema of a PostgreSQL server: connecting, the settings of a transaction, translating errors.

* The user's settings in the URL are respected, except ``synchronous_commit``: without it a commit is not durable.
* No wait is unbounded. The server limits waits for locks and statements. A stopped server does not, although its kernel
  still acknowledges packets; so each answer also has a deadline here, after which the connection is closed.
* Passwords never appear in messages.
"""

from __future__ import annotations

import math
import re
import time
from typing import TYPE_CHECKING, Any, Final, TypeVar

from logstore.catalog.text import one_line
from logstore.core.extras import install_command
from logstore.core.imports import late
from logstore.errors import CatalogError, CatalogUnavailable, OptionError

if TYPE_CHECKING:  # imported late: these would double the time of "import logstore"
    from collections.abc import Generator

    import psycopg
    from sqlalchemy import URL, Connection, Engine

T = TypeVar("T")

DEFAULT_SCHEMA: Final = "logstore"
_SCHEMA: Final = re.compile("[A-Za-z_][A-Za-z0-9_]{0,62}")

# Fractions of the timeout: the server reports a lock or a slow statement before the connection is given up here.
LOCK_PART: Final = 0.5
STATEMENT_PART: Final = 0.75
IDLE_TIMEOUT_S: Final = 30  # then the server ends a transaction whose client is gone, and unlocks its row

# libpq's settings to notice within a minute that the server is gone.
_KEEPALIVE: Final = {
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}
_CHECK_SERVER: Final = "check the server, its address and the role, then try again"
# Safe to show; a URL's query may have a password.
_SHOWN: Final = frozenset(
    {"host", "hostaddr", "port", "dbname", "service", "passfile"}
    | {"sslmode", "sslrootcert", "sslcert", "sslkey", "target_session_attrs"}
)


class PostgresSchema:
    """One schema of a PostgreSQL server."""

    statement_s = 0.0  # a statement that has lost its connection fails

    def __init__(self, connect: str, schema: str | None, *, timeout_s: float, read_only: bool = False) -> None:
        self.url = _url(connect)
        self.timeout_s = timeout_s
        self.read_only = read_only
        self.schema: str | None = DEFAULT_SCHEMA if schema is None else schema
        if not _SCHEMA.fullmatch(str(self.schema)):
            raise OptionError(f"catalog={schema!r} is not a schema name: letters, digits and _ only, at most 63")
        # The password is there to be shown as ***.
        shown = _without_secrets(self.url).set(password=self.url.password).render_as_string(hide_password=True)
        self.where = f"the catalog {self.schema!r} at {shown}"

    def make(self) -> None:
        """Does nothing: the server has the database, and the schema is made with the tables."""

    def engine(self) -> Engine:
        """One connection, renewed when it breaks. Nothing is sent before the first transaction."""
        late("sqlalchemy")
        import sqlalchemy as sa

        settings = {"connect_timeout": math.ceil(self.timeout_s), "client_encoding": "utf8", **_KEEPALIVE}
        given = {name: value for name, value in settings.items() if name not in self.url.query}
        # A pooler may use another session, which lacks the statements prepared in an earlier one.
        given["prepare_threshold"] = None
        try:
            engine = sa.create_engine(
                self.url,
                connect_args=given,
                pool_size=1,
                max_overflow=0,
                pool_timeout=self.timeout_s,
                pool_pre_ping=True,
                hide_parameters=True,
            )
        except ImportError as error:
            raise CatalogUnavailable(f"{self.where} needs the driver psycopg: {install_command('postgres')}") from error
        begin = self._begin()
        sa.event.listen(engine, "begin", lambda connection: connection.exec_driver_sql(begin))
        connection_class = _with_deadlines(self.timeout_s)
        sa.event.listen(engine, "do_connect", lambda _d, _r, args, options: connection_class.connect(*args, **options))
        return engine

    def _begin(self) -> str:
        """The statements that begin a transaction. They are local to it, because a pooler's sessions are shared."""
        settings = [
            "SET LOCAL synchronous_commit TO on",
            f"SET LOCAL idle_in_transaction_session_timeout TO '{IDLE_TIMEOUT_S}s'",
        ]
        for name, part in (("lock_timeout", LOCK_PART), ("statement_timeout", STATEMENT_PART)):
            if name not in str(self.url.query.get("options", "")):
                settings.append(f"SET LOCAL {name} TO '{max(1, int(1000 * part * self.timeout_s))}ms'")
        if self.read_only:  # one snapshot of all tables, also while a writer runs
            settings.insert(0, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        return "; ".join(settings)

    def prepare_schema(self, connection: Connection) -> None:
        """Makes the schema if it is missing; making one needs more privileges than using one.

        Waits for another session that is making a catalog in this schema.
        """
        late("sqlalchemy")
        import sqlalchemy as sa

        assert self.schema is not None
        lock = sa.func.pg_advisory_xact_lock(sa.func.hashtextextended(f"logstore catalog {self.schema}", 0))
        connection.execute(sa.select(lock))
        if not sa.inspect(connection).has_schema(self.schema):
            connection.execute(sa.schema.CreateSchema(self.schema))

    def verify(self, connection: Connection) -> None:
        """Does nothing: the server checks its own pages and references."""

    def settle(self, engine: Engine) -> None:
        """Does nothing: the operator chooses the server's settings."""

    def renew(self, engine: Engine) -> None:
        """Does nothing: the server maintains its own files."""

    def explain(self, error: Exception) -> CatalogError:
        """The error for the SQLSTATE, or for the driver's exception if the server sent no SQLSTATE."""
        late("sqlalchemy.exc")
        from sqlalchemy.exc import InterfaceError, OperationalError
        from sqlalchemy.exc import TimeoutError as PoolTimeout

        cause = getattr(error, "orig", None) or error
        state = getattr(cause, "sqlstate", None)
        said = one_line(cause)
        if state is None:
            if isinstance(error, OperationalError | InterfaceError | PoolTimeout):
                return CatalogUnavailable(f"{self.where} cannot be reached ({said}): {_CHECK_SERVER}")
            return CatalogError(f"{self.where} could not be used ({said}): check the connect URL and the server")
        if state == "53100":
            return CatalogError(f"{self.where} cannot grow, the server's disk is full: make room and repeat the call")
        if state == "55P03":
            return CatalogUnavailable(
                f"{self.where} is locked by another session of the server; end that session, or try again"
            )
        if state == "42501":
            return CatalogError(
                f"this role may not use {self.where} ({said}): grant it the schema and its tables, or connect as "
                "another role"
            )
        if state == "25006":
            return CatalogError(
                f"{self.where} is read-only ({said}): connect to the primary server, as a role that may write"
            )
        # Connection, authentication, unknown database; rollback, resources, operator intervention; idle for too long.
        if state[:2] in ("08", "28", "3D", "40", "53", "57") or state == "25P03":
            return CatalogUnavailable(f"{self.where} cannot be reached now ({said}): {_CHECK_SERVER}")
        return CatalogError(f"{self.where} could not be used ({said}): check the schema on the server")


def _with_deadlines(timeout_s: float) -> type[psycopg.Connection[Any]]:
    """Psycopg's connection class with a deadline: if an answer takes longer than ``timeout_s``, it closes itself.

    The server may execute the statement even then.
    """
    late("psycopg")
    import psycopg

    class WithDeadlines(psycopg.Connection[Any]):
        def wait(self, gen: Generator[Any, Any, T], *args: Any, **options: Any) -> T:
            return super().wait(self._until(gen, time.monotonic() + timeout_s), *args, **options)

        def _until(self, gen: Generator[Any, Any, T], deadline: float) -> Generator[Any, Any, T]:
            # The driver resumes the generator when the socket is ready, and otherwise ten times per second.
            ready = None
            while True:
                try:
                    wanted = gen.send(ready)
                except StopIteration as answer:
                    found: T = answer.value
                    return found
                if time.monotonic() >= deadline:
                    self.close()
                    raise psycopg.OperationalError(f"no answer in {timeout_s:g} s")
                ready = yield wanted

    return WithDeadlines


def command_options(connect: str, schema: str | None) -> tuple[list[str], bool]:
    """The options with which a command names this catalog, and whether the URL has a secret that they lack.

    Raises ``OptionError``.
    """
    url = _url(connect)
    shown = _without_secrets(url)
    options = ["--connect", shown.render_as_string()]
    return options + ([] if schema is None else ["--catalog", schema]), shown != url


def _without_secrets(url: URL) -> URL:
    query = {name: value for name, value in url.query.items() if name in _SHOWN}
    return url.create(url.drivername, url.username, None, url.host, url.port, url.database, query)


def _url(connect: str) -> URL:
    late("sqlalchemy.engine")
    late("sqlalchemy.exc")
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        url = make_url(connect)
    except (ArgumentError, ValueError):  # not chained: their texts contain the URL with its password
        raise OptionError("connect is not a database URL; write postgresql+psycopg://user@host/database") from None
    if url.drivername not in ("postgresql", "postgresql+psycopg"):
        raise OptionError(f"connect names {url.drivername}, but only postgresql+psycopg:// is supported")
    return url.set(drivername="postgresql+psycopg")
