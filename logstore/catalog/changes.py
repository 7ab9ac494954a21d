"""Changes of a catalog as rows: the contents of a ``CATALOG_CHANGE`` of a log, and how a catalog file gets them.

The row format is in section 6 of docs/format.md. Each file says up to which LSN it has every change (``applied``), in
the same transaction as the change. So a crash between log and file leaves a file that is behind, and the log has the
rest. This module reads no log: its callers give it the changes.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import struct
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from logstore.catalog.catalog import Catalog
from logstore.catalog.rows import Contents, StoredBinding, StoredExchange, StoredQueue
from logstore.catalog.statements import Step, execute
from logstore.catalog.transient import BLOCKS_KEY, TransientIds
from logstore.codec.bodies import CatalogAction, CatalogChange, CatalogObject, CatalogRow
from logstore.codec.layout import Cursor, decode_parts, encode_parts
from logstore.core.imports import late

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from sqlalchemy import Connection, Table
    from sqlalchemy.sql import Executable

    from logstore.catalog.statements import Statements

_T = TypeVar("_T")

_PART: Final = struct.Struct("<II")


@dataclass(frozen=True, slots=True)
class Change:
    """A change that is in the log."""

    end_lsn: int
    """The end of its record."""
    rows: tuple[CatalogRow, ...]


# ---- rows ------------------------------------------------------------------------------------------------------------


def rows_between(before: Contents, after: Contents) -> tuple[CatalogRow, ...]:
    """The rows that make ``after`` of ``before``: what is deleted, then what is put, in the order of creation.

    A queue that stays and has other arguments is put.
    """
    differing, made = _changed(before.queues, after.queues)
    stays = {one.id for one in made if one.name in before.queues and before.queues[one.name].id == one.id}
    gone = [one for one in differing if one.id not in stays]
    # A queue's dead-letter queue has a lower id than the queue, and its row ends after the queue's row.
    users_first = sorted(gone, key=lambda one: one.id, reverse=True)
    deleted = [_row(CatalogAction.DELETE, CatalogObject.QUEUE, {"name": one.name}, one.id) for one in users_first]
    put = [_row(CatalogAction.PUT, CatalogObject.QUEUE, _without(one._asdict(), "id"), one.id) for one in made]
    lost, found = _changed(before.exchanges, after.exchanges)
    deleted += [_row(CatalogAction.DELETE, CatalogObject.EXCHANGE, {"name": one.name}) for one in lost]
    put += [_row(CatalogAction.PUT, CatalogObject.EXCHANGE, one._asdict()) for one in found]
    if gone or lost or after.bindings is not before.bindings:
        queues, exchanges = {one.id for one in gone}, {one.name for one in lost}
        # Bindings go with their queue or exchange, also if another one of its name is put in the same change.
        left = {one for one in before.bindings if one.queue_id not in queues and one.exchange not in exchanges}
        ended = (one for one in before.bindings if one in left and one not in after.bindings)
        deleted += [_row(CatalogAction.DELETE, CatalogObject.BINDING, one._asdict()) for one in ended]
        new = (one for one in after.bindings if one not in left)
        put += [_row(CatalogAction.PUT, CatalogObject.BINDING, one._asdict()) for one in new]
    keys = [key for key in before.config if key not in after.config]
    deleted += [_row(CatalogAction.DELETE, CatalogObject.CONFIG, {"key": key}) for key in keys]
    changed = {key: text for key, text in after.config.items() if before.config.get(key) != text}
    put += [_row(CatalogAction.PUT, CatalogObject.CONFIG, {"key": key, "value": changed[key]}) for key in changed]
    return (*deleted, *put)


def _changed(before: Mapping[str, _T], after: Mapping[str, _T]) -> tuple[list[_T], list[_T]]:
    """The rows that are only in the first, and the rows that are only in the second.

    A change shares the mappings that it leaves alone.
    """
    if after is before:
        return [], []
    gone = [one for name, one in before.items() if after.get(name) != one]
    return gone, [one for name, one in after.items() if before.get(name) != one]


def _without(value: dict[str, object], key: str) -> dict[str, object]:
    return {name: one for name, one in value.items() if name != key}


def _row(action: CatalogAction, kind: CatalogObject, value: Mapping[str, object], queue_id: int = 0) -> CatalogRow:
    text = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return CatalogRow(action, kind, queue_id, text.encode())


def encode_rows(rows: Sequence[CatalogRow]) -> bytes:
    """The rows, encoded as in a ``CATALOG_CHANGE``."""
    return encode_parts(CatalogChange(0, tuple(rows)))[_PART.size :]


def decode_rows(raw: bytes, count: int) -> tuple[CatalogRow, ...]:
    """The inverse of :func:`encode_rows`."""
    change = decode_parts(CatalogChange, Cursor(memoryview(_PART.pack(0, count) + raw)))
    return change.rows  # type: ignore[attr-defined,no-any-return]


def steps_of(statements: Statements, rows: Iterable[CatalogRow]) -> list[Step]:
    """The statements that a database executes for these rows."""
    return [step for row in rows for step in _steps(statements, row)]


def _steps(statements: Statements, row: CatalogRow) -> list[Step]:
    value: dict[str, Any] = json.loads(row.row)
    puts = row.action is CatalogAction.PUT
    if row.object is CatalogObject.QUEUE:
        if puts:
            return [statements.put_queue_again(StoredQueue(id=row.queue_id, **value))]
        return [statements.delete_queues([row.queue_id])]
    if row.object is CatalogObject.EXCHANGE:
        if puts:
            return [statements.put_exchanges([StoredExchange(**value)])]
        return [statements.delete_exchanges([value["name"]])]
    if row.object is CatalogObject.BINDING:
        bindings = [StoredBinding(**value)]
        return [statements.put_bindings(bindings) if puts else statements.delete_bindings(bindings)]
    if puts:
        return statements.put_config(value["key"], value["value"])
    return [statements.delete_config(value["key"])]


def queues_and_config(contents: Contents, changes: Iterable[Change]) -> Contents:
    """The contents with the changes of their queues and configuration, in memory; some of these may be there already.

    Exchanges and bindings stay as they are.
    """
    stored = {one.id: one for one in contents.queues.values()}
    config, next_id = dict(contents.config), contents.next_queue_id
    for row in (row for change in changes for row in change.rows):
        value, puts = json.loads(row.row), row.action is CatalogAction.PUT
        if row.object is CatalogObject.QUEUE:
            stored.pop(row.queue_id, None)
            if puts:
                stored[row.queue_id] = StoredQueue(id=row.queue_id, **value)
                next_id = max(next_id, _next_after(row))
        elif row.object is CatalogObject.CONFIG:
            config.pop(value["key"], None)
            if puts:
                config[value["key"]] = value["value"]
            next_id = max(next_id, _next_after(row))
    queues = [stored[key] for key in sorted(stored)]
    return dataclasses.replace(
        contents,
        next_queue_id=next_id,
        queues={one.name: one for one in queues},
        queue_names={one.id: one.name for one in queues},
        config=config,
    )


# ---- up to where a file has every change -----------------------------------------------------------------------------


@functools.cache
def _applied_table() -> Table:
    late("sqlalchemy")
    import sqlalchemy as sa

    return sa.Table(
        "applied",
        sa.MetaData(),
        sa.Column("one", sa.Integer, sa.CheckConstraint("one = 1"), primary_key=True, autoincrement=False),
        sa.Column("lsn", sa.Integer, nullable=False),
    )


@functools.cache
def _applied_statements() -> tuple[Executable, Executable]:
    late("sqlalchemy")
    import sqlalchemy as sa

    return sa.delete(_applied_table()), sa.insert(_applied_table())


def applied_steps(lsn: int) -> list[Step]:
    """The steps after which a database says that it has every change below ``lsn``."""
    deletes, inserts = _applied_statements()
    return [Step(deletes, [{}]), Step(inserts, [{"one": 1, "lsn": lsn}])]


def _read_applied(connection: Connection) -> int | None:
    late("sqlalchemy")
    import sqlalchemy as sa

    table = _applied_table()
    if not sa.inspect(connection).has_table(table.name):
        return None
    found = connection.execute(sa.select(table.c.lsn)).scalar()
    return None if found is None else int(found)


def applied_in(catalog: Catalog) -> int | None:
    """The LSN up to which the file of this catalog has every change; None: the file does not say."""
    with catalog.snapshot() as (connection, _):
        return _read_applied(connection)


def applied_lsn(store_dir: Path, store_uuid: bytes, *, at_rest: bool = False) -> int | None:
    """The LSN up to which the catalog's file in a directory has every change; None: the file does not say.

    Opening it checks its identity and its pages. ``at_rest``: no process writes it. Raises as :meth:`Catalog.open`.
    """
    with closing(Catalog.open(store_dir, store_uuid=store_uuid, read_only=True, at_rest=at_rest)) as catalog:
        return applied_in(catalog)


# ---- making changes ------------------------------------------------------------------------------------------------


class ChangedCatalog:
    """A catalog's file that gets changes from a log. One thread at a time uses it."""

    def __init__(self, store_dir: Path, store_uuid: bytes) -> None:
        """Opens the file. Raises as :meth:`Catalog.open` does."""
        self._catalog = Catalog.open(store_dir, store_uuid=store_uuid)
        self.applied_lsn: int | None = None
        """The file has every change below it; None: it does not say."""
        self._waiting: list[Change] = []
        self._in_doubt = False  # the last transaction failed, and may have been committed
        try:
            self._read_applied()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def catalog(self) -> Catalog:
        """The catalog itself."""
        return self._catalog

    def close(self) -> None:
        """Closes the file. A second call does nothing."""
        self._catalog.close()

    @property
    def is_behind(self) -> bool:
        """Whether the file lacks changes that it was given."""
        return bool(self._waiting)

    def _read_applied(self) -> None:
        self.applied_lsn = applied_in(self._catalog)
        self._in_doubt = False

    def apply(self, changes: Iterable[Change]) -> None:
        """Makes these changes, each in a transaction of its own; skips those that the file has already.

        After an exception the next call goes on with what is left.
        """
        self._waiting += changes
        if self._in_doubt:
            self._read_applied()
        while self._waiting:
            change = self._waiting[0]
            if change.end_lsn > (self.applied_lsn or 0):
                self._make(change.rows, change.end_lsn)
            del self._waiting[0]

    def advance(self, lsn: int) -> None:
        """The log has no further change below ``lsn``: the file says so, so that a start need not look there."""
        if not self._waiting and not self._in_doubt and lsn > (self.applied_lsn or 0):
            self.say(lsn)

    def say(self, lsn: int) -> None:
        """Says that the file has every change below ``lsn``, whatever it said before."""
        self._make((), lsn)

    def _make(self, rows: tuple[CatalogRow, ...], applied_lsn: int) -> None:
        next_id = max(map(_next_after, rows), default=0)
        self._in_doubt = True
        statements = self._catalog.statements
        with self._catalog.snapshot() as (connection, _):
            _applied_table().create(connection, checkfirst=True)
            counted = _counted(statements, next_id, bool(rows))
            execute(connection, [*steps_of(statements, rows), *applied_steps(applied_lsn), *counted])
        self.applied_lsn = applied_lsn
        self._in_doubt = False


def _next_after(row: CatalogRow) -> int:
    """The id after those that the row gives out; 0 if it gives out none. A deletion gave out none, or earlier."""
    if row.action is not CatalogAction.PUT:
        return 0
    if row.object is CatalogObject.QUEUE:
        return row.queue_id + 1
    if row.object is not CatalogObject.CONFIG:
        return 0
    value = json.loads(row.row)
    return TransientIds.parsed(value["value"]).end if value["key"] == BLOCKS_KEY else 0


def _counted(statements: Statements, next_id: int, changes: bool) -> Iterator[Step]:
    if changes:
        yield statements.revise()
    if next_id:
        yield statements.raise_next_queue_id(next_id)
