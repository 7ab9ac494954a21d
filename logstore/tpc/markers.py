"""Markers: rows in an SQL database that say which transactions it committed. A ledger for a participant.

A transaction writes its own row, so the row exists if and only if the transaction committed. A query inserts a row with
the same key that says "not committed". If that succeeds, the transaction can never commit. If it fails, the row exists;
the insert may first wait for a commit in progress. So an answer stays true.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from logstore.catalog.rows import checked_text
from logstore.core import arguments
from logstore.core.imports import late
from logstore.tpc.xid import Xid

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sqlalchemy import Engine
    from sqlalchemy.orm import Session, scoped_session

_ROWS_AT_ONCE = 500


class Markers:
    """A table of markers in the database that the application writes.

    ``engine`` is the database, and ``session`` the application's session on it: a session, or the ``scoped_session``
    that was given to ``zope.sqlalchemy.register``. It must commit in one phase (SQLAlchemy's default). The table is
    created if it is missing, in ``schema`` or else in the default one. Several stores and processes may share it.
    Raises the errors of SQLAlchemy.
    """

    def __init__(
        self,
        engine: Engine,
        session: Session | scoped_session[Any],
        *,
        table: str = "logstore_markers",
        schema: str | None = None,
    ) -> None:
        late("sqlalchemy")
        late("sqlalchemy.orm")
        import sqlalchemy
        from sqlalchemy.orm import registry

        arguments.instance("engine", engine, sqlalchemy.Engine, what="an SQLAlchemy Engine")
        arguments.having("session", session, ("add", "flush"), "an SQLAlchemy Session or scoped_session")
        _check_name("table", table)
        arguments.optional(_check_name, "schema", schema)
        self._engine = engine
        self._session = session
        rows = registry()
        self._table = sqlalchemy.Table(
            table,
            rows.metadata,
            sqlalchemy.Column("bqual", sqlalchemy.String(64), primary_key=True),
            sqlalchemy.Column("gtrid", sqlalchemy.String(64), primary_key=True),
            sqlalchemy.Column("format_id", sqlalchemy.BigInteger, primary_key=True, autoincrement=False),
            sqlalchemy.Column("committed", sqlalchemy.Boolean, nullable=False),
            schema=schema,
        )
        self._row: Any = type("Marker", (), {})
        rows.map_imperatively(self._row, self._table)
        rows.metadata.create_all(engine)

    def write(self, xid: Xid) -> None:
        """Adds the row to the current SQL transaction."""
        row = self._row()
        row.format_id, row.gtrid, row.bqual = Xid.of(xid)
        row.committed = True
        self._session.add(row)

    def committed(self, xid: Xid) -> bool | None:
        """Whether the database committed the transaction of this name; from ``False`` on it never will.

        ``None`` in the rare case that the row went away meanwhile.
        """
        late("sqlalchemy")
        from sqlalchemy import insert
        from sqlalchemy.exc import IntegrityError

        key = dict(zip(("format_id", "gtrid", "bqual"), Xid.of(xid), strict=True))
        try:
            with self._engine.begin() as connection:
                connection.execute(insert(self._table).values(**key, committed=False))
        except IntegrityError:
            return self._look(key)
        return False

    def _look(self, key: dict[str, Any]) -> bool | None:
        late("sqlalchemy")
        from sqlalchemy import select

        with self._engine.connect() as connection:
            found: bool | None = connection.scalar(select(self._table.c.committed).filter_by(**key))
        return found

    def written(self, bqual: str) -> Iterable[Xid]:
        """The names of one participant's rows, of both kinds."""
        late("sqlalchemy")
        from sqlalchemy import select

        arguments.text("bqual", bqual)
        columns = self._table.c
        with self._engine.connect() as connection:
            rows = connection.execute(
                select(columns.format_id, columns.gtrid, columns.bqual).where(columns.bqual == bqual)
            )
            return [Xid(*row) for row in rows]

    def forget(self, xids: Iterable[Xid]) -> None:
        """Deletes these rows, some hundreds in a transaction."""
        late("sqlalchemy")
        from sqlalchemy import bindparam, delete

        columns = self._table.c
        one = delete(self._table).where(
            columns.format_id == bindparam("f"), columns.gtrid == bindparam("g"), columns.bqual == bindparam("b")
        )
        todo = (
            {"f": xid.format_id, "g": xid.gtrid, "b": xid.bqual}
            for xid in map(Xid.of, arguments.items("xids", xids, "xids"))
        )
        while step := list(itertools.islice(todo, _ROWS_AT_ONCE)):
            with self._engine.begin() as connection:
                connection.execute(one, step)


def _check_name(what: str, name: object) -> None:
    checked_text(f"the name of the {what}", arguments.text(what, name), empty=False)
