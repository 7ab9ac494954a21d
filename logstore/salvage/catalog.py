"""Reads what is readable of a damaged store's catalog, and writes the catalog of the new store.

It must never change the old database, or create a file next to it (catalog/at_rest.py).

Invariant: the new catalog has a queue for every id that the salvaged log names; a queue whose name is lost is named
after its id. Names come only from a catalog that belongs to the store.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from logstore.catalog.at_rest import copied_at_rest, read_at_rest
from logstore.catalog.backends import FILE_NAME
from logstore.catalog.catalog import Catalog
from logstore.catalog.changes import ChangedCatalog, applied_lsn
from logstore.catalog.rows import (
    QUEUE_ID_MAX,
    StoredBinding,
    StoredExchange,
    StoredQueue,
    canonical,
    checked_name,
    checked_text,
    parsed,
)
from logstore.catalog.statements import execute
from logstore.core.arguments import LSN_MAX
from logstore.core.imports import late
from logstore.errors import CatalogMismatch, CatalogUnavailable, OptionError, StoreError, VersionError
from logstore.inspect.catalog_changes import give_changes
from logstore.inspect.reader import Reader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path
    from uuid import UUID

_COLUMNS = {
    "queues": StoredQueue._fields,
    "exchanges": StoredExchange._fields,
    "bindings": StoredBinding._fields,
    "config": ("key", "value"),
}


@dataclass(slots=True)
class Names:
    """The known queues, exchanges, bindings and configuration."""

    whole: bool  # the catalog was read to its last row, so a smaller id without a row was deleted
    problem: str | None = None  # why the catalog could not be read completely
    next_queue_id: int = 1
    queues: dict[int, StoredQueue] = field(default_factory=dict)
    exchanges: dict[str, StoredExchange] = field(default_factory=dict)
    bindings: list[StoredBinding] = field(default_factory=list)
    config: dict[str, str] = field(default_factory=dict)
    made: list[int] = field(default_factory=list)  # ids of queues that no readable catalog names

    def is_gone(self, queue_id: int) -> bool:
        """Whether the catalog proves that this queue was deleted."""
        return self.whole and queue_id < self.next_queue_id and queue_id not in self.queues

    def name(self, queue_id: int) -> str:
        """The queue's name, for messages to people."""
        queue = self.queues.get(queue_id)
        return f"queue {queue_id}" if queue is None else queue.name

    def forget(self, queue_ids: Iterable[int]) -> list[str]:
        """Forgets queues that the log reports as deleted; returns their names."""
        gone = {queue_id: self.queues.pop(queue_id).name for queue_id in queue_ids if queue_id in self.queues}
        for queue_id, queue in self.queues.items():
            if queue.dead_letter in gone:
                self.queues[queue_id] = queue._replace(dead_letter=None)
        self.bindings = [row for row in self.bindings if row.queue_id not in gone]
        return sorted(gone.values())

    def complete(self, queue_ids: Iterable[int]) -> None:
        """Gives every required queue a row."""
        for queue_id in sorted(queue_ids):
            if queue_id not in self.queues:
                self._make(queue_id, f"queue-{queue_id}")
                self.made.append(queue_id)
        self.next_queue_id = max(self.next_queue_id, max(self.queues, default=0) + 1)

    def add(self, name: str) -> int:
        """Adds a queue with an id that was never used."""
        queue_id = self.next_queue_id
        self._make(queue_id, name)
        self.next_queue_id += 1
        return queue_id

    def _make(self, queue_id: int, name: str) -> None:
        taken = {queue.name for queue in self.queues.values()}
        free, number = name, 2
        while free in taken:
            free, number = f"{name}-{number}", number + 1
        self.queues[queue_id] = StoredQueue(queue_id, free, "{}", None)


# ---- Reading


def read_names(store_dir: Path, uuid: UUID, *, connect: str | None, schema: str | None) -> Names:
    """Reads the store's catalog; if it is damaged, its readable part.

    Raises ``CatalogUnavailable`` if the server does not answer, ``OptionError``, ``VersionError``.
    """
    if connect is not None or schema is not None:
        try:
            return _whole(store_dir, uuid, connect, schema)
        except (CatalogUnavailable, OptionError, VersionError):  # an error of the caller must not cost the names
            raise
        except StoreError as error:
            return Names(False, error.message)
    followed = _followed(store_dir, uuid)
    if followed is not None:
        return followed
    try:
        return read_at_rest(store_dir, lambda place, at_rest: _read(store_dir, place, uuid, at_rest=at_rest))
    except VersionError:
        raise
    except StoreError as error:
        return Names(False, error.message.split(": restore it")[0])


def _followed(store_dir: Path, uuid: UUID) -> Names | None:
    """The catalog of a member's copy, with the changes that its log has and its file lacks, up to a damage.

    None: it is no member's, or cannot be read whole.
    """
    problem = None
    try:
        if read_at_rest(store_dir, lambda place, at_rest: applied_lsn(place, uuid.bytes, at_rest=at_rest)) is None:
            return None
        with copied_at_rest(store_dir) as copy:
            try:
                with ChangedCatalog(copy, uuid.bytes) as catalog:
                    with Reader(store_dir, undurable=True, from_lsn=LSN_MAX) as reader:
                        info = reader.info
                    give_changes(catalog, store_dir, info, store_dir)
            except StoreError as error:
                problem = f"changes of it that the log has cannot be read: {error.message}"
            names = _whole(copy, uuid, None, None)
    except VersionError:
        raise
    except StoreError:
        return None
    names.problem = problem
    return names


def _read(store_dir: Path, place: Path, uuid: UUID, *, at_rest: bool) -> Names:
    """Reads the catalog in ``place``: the store's own, without a writer, or a copy."""
    try:
        return _whole(place, uuid, None, None, at_rest=at_rest)
    except VersionError:
        raise
    except StoreError as error:
        problem = error.message.replace(str(place), str(store_dir)).split(": restore it")[0]
        if isinstance(error, CatalogMismatch):
            return Names(False, problem)
        return _parts(place / FILE_NAME, uuid, problem, at_rest=at_rest)


def _whole(directory: Path, uuid: UUID, connect: str | None, schema: str | None, *, at_rest: bool = False) -> Names:
    with closing(
        Catalog.open(directory, connect=connect, schema=schema, store_uuid=uuid.bytes, read_only=True, at_rest=at_rest)
    ) as opened:
        now = opened._now
        return Names(
            True,
            None,
            now.next_queue_id,
            {queue.id: queue for queue in now.queues.values()},
            dict(now.exchanges),
            list(now.bindings),
            dict(now.config),
        )


def _parts(file: Path, uuid: UUID, problem: str, *, at_rest: bool) -> Names:
    """Reads the plausible rows of a damaged database."""
    names = Names(False, problem)
    uri = f"file:{quote(os.fsencode(file))}?{'mode=ro&immutable=1' if at_rest else 'mode=rw'}"
    with suppress(sqlite3.Error), closing(sqlite3.connect(uri, uri=True)) as connection:
        said = list(_rows(connection, "store", ("uuid", "next_queue_id")))
        if said and said[0][0] != str(uuid):
            names.problem = f"{problem}; and it belongs to the store {said[0][0]}"
            return names
        if said and isinstance(said[0][1], int):
            names.next_queue_id = said[0][1]
        _take(connection, "queues", lambda *row: _queue(names, StoredQueue(*row)))
        _take(connection, "exchanges", lambda *row: _exchange(names, StoredExchange(*row)))
        _take(connection, "bindings", lambda *row: _binding(names, StoredBinding(*row)))
        _take(connection, "config", lambda *row: names.config.__setitem__(*map(_text, row)))
    for queue_id, queue in names.queues.items():
        if queue.dead_letter is not None and queue.dead_letter not in names.queues:
            names.queues[queue_id] = queue._replace(dead_letter=None)
    for name, exchange in names.exchanges.items():
        if exchange.alternate is not None and exchange.alternate not in names.exchanges:
            names.exchanges[name] = exchange._replace(alternate=None)
    return names


def _rows(connection: sqlite3.Connection, table: str, columns: Iterable[str]) -> Iterator[tuple[Any, ...]]:
    """Yields rows up to the first page that cannot be read."""
    with suppress(sqlite3.Error):
        yield from connection.execute(f"SELECT {', '.join(columns)} FROM {table}")


def _take(connection: sqlite3.Connection, table: str, take: Callable[..., object]) -> None:
    for row in _rows(connection, table, _COLUMNS[table]):
        with suppress(TypeError, ValueError):  # a row that no catalog can contain is damage as well
            take(*row)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return checked_text("a value", value, bytes_max=1 << 20)


def _queue(names: Names, row: StoredQueue) -> None:
    checked_name("a queue", row.name)
    canonical("a queue", parsed(row.arguments))
    if not 0 < int(row.id) <= QUEUE_ID_MAX:
        raise ValueError("no id of a queue")
    if row.name not in {queue.name for queue in names.queues.values()}:
        names.queues[row.id] = row


def _exchange(names: Names, row: StoredExchange) -> None:
    checked_name("an exchange", row.name)
    checked_name("an exchange type", row.type)
    canonical("an exchange", parsed(row.arguments))
    names.exchanges[row.name] = row


def _binding(names: Names, row: StoredBinding) -> None:
    checked_text("a binding key", row.key)
    canonical("a binding", parsed(row.arguments))
    if row.exchange in names.exchanges and row.queue_id in names.queues and row not in names.bindings:
        names.bindings.append(row)


# ---- Writing


def write_names(directory: Path, uuid: UUID, names: Names) -> None:
    """Writes the catalog of the new store into its directory; durable on return."""
    late("sqlalchemy")
    import sqlalchemy as sa

    with closing(Catalog.create(directory, store_uuid=uuid.bytes)) as catalog:
        tables = catalog._tables
        with catalog._transaction() as connection:

            def insert(table: Any, rows: list[dict[str, Any]]) -> None:
                if rows:
                    connection.execute(sa.insert(table), rows)

            queues, exchanges = list(names.queues.values()), list(names.exchanges.values())
            insert(tables.queues, [one._replace(dead_letter=None)._asdict() for one in queues])
            insert(tables.exchanges, [one._replace(alternate=None)._asdict() for one in exchanges])
            for queue in queues:  # now every referenced queue exists
                if queue.dead_letter is not None:
                    changed = sa.update(tables.queues).where(tables.queues.c.id == queue.id)
                    connection.execute(changed.values(dead_letter=queue.dead_letter))
            for one in exchanges:
                if one.alternate is not None:
                    changed = sa.update(tables.exchanges).where(tables.exchanges.c.name == one.name)
                    connection.execute(changed.values(alternate=one.alternate))
            execute(connection, [catalog.statements.put_bindings(names.bindings)])
            insert(tables.config, [{"key": key, "value": value} for key, value in names.config.items()])
            connection.execute(sa.update(tables.store).values(next_queue_id=names.next_queue_id))
