"""Copies a store's catalog to a new SQLite file, for a backup.

The copy shows the catalog at one moment, with or without a running writer. A catalog on a server is copied row by row,
so that the backup can be opened without the server. The finished copy is one file: closed, forced to disk and checked.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing, suppress
from typing import TYPE_CHECKING
from urllib.parse import quote

from logstore.catalog.at_rest import read_at_rest
from logstore.catalog.backends import SIDE_NAMES, SqliteFile
from logstore.catalog.catalog import Catalog
from logstore.core.imports import late
from logstore.core.regular_files import naming, open_regular

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_PAGES_AT_ONCE = 1024
_ROWS_AT_ONCE = 1000
_BUSY_S = 5.0


def copy_catalog(
    store_dir: Path,
    target_dir: Path,
    *,
    store_uuid: bytes,
    live: bool,
    connect: str | None = None,
    schema: str | None = None,
    tick: Callable[[], None] = lambda: None,
    complete: Callable[[], object] = lambda: None,
) -> int:
    """Makes ``catalog.sqlite`` in ``target_dir`` and returns its size in bytes. Calls ``tick`` from time to time.

    ``complete`` is called once, when the copy has what the original had; it may change the copy. Raises its errors,
    ``CatalogMismatch``, ``CatalogUnavailable``, ``CatalogError`` or ``VersionError``.
    """
    if connect is not None or schema is not None:
        _copy_rows(store_dir, target_dir, store_uuid, connect, schema)
    else:
        _copy_file(store_dir, target_dir, store_uuid, live=live, tick=tick)
    complete()
    backend = SqliteFile(target_dir, read_only=False)
    try:
        with closing(sqlite3.connect(backend.path, isolation_level=None)) as database:
            database.execute("PRAGMA journal_mode=DELETE").fetchall()  # so that all contents are in one file
    except sqlite3.Error as error:
        raise backend.explain(error) from error
    with closing(Catalog.open(target_dir, store_uuid=store_uuid, read_only=True)):
        pass  # opening has checked its identity, its pages and its references
    for name in SIDE_NAMES:
        with suppress(FileNotFoundError):
            os.unlink(target_dir / name)
    os.chmod(backend.path, 0o600)
    handle = open_regular(backend.path)
    try:
        with naming(backend.path):
            os.fsync(handle)
            return os.fstat(handle).st_size
    finally:
        os.close(handle)


def _copy_file(store_dir: Path, target_dir: Path, store_uuid: bytes, *, live: bool, tick: Callable[[], None]) -> None:
    if live:
        Catalog.open(store_dir, store_uuid=store_uuid, read_only=True).close()  # checks its identity
        _by_pages(store_dir, target_dir, tick)
    else:
        read_at_rest(
            store_dir.absolute(),
            lambda place, at_rest: _by_pages(place, target_dir, tick, at_rest=at_rest),
            copies_in=target_dir,
        )


def _by_pages(source_dir: Path, target_dir: Path, tick: Callable[[], None], *, at_rest: bool = False) -> None:
    source, target = SqliteFile(source_dir, read_only=True), SqliteFile(target_dir, read_only=False)
    target.make()
    uri = f"file:{quote(os.fsencode(source.path))}?mode=ro{'&immutable=1' if at_rest else ''}"
    failing = source
    try:
        with (
            closing(sqlite3.connect(uri, uri=True, timeout=_BUSY_S)) as origin,
            closing(sqlite3.connect(target.path, timeout=_BUSY_S)) as copy,
        ):
            origin.execute("SELECT count(*) FROM sqlite_master").fetchall()
            failing = target
            copy.execute("PRAGMA synchronous=FULL")
            origin.backup(copy, pages=_PAGES_AT_ONCE, progress=lambda *_: tick())
    except sqlite3.Error as error:
        raise failing.explain(error) from error


def _copy_rows(store_dir: Path, target_dir: Path, store_uuid: bytes, connect: str | None, schema: str | None) -> None:
    late("sqlalchemy")
    import sqlalchemy as sa

    with (
        closing(
            Catalog.open(store_dir, connect=connect, schema=schema, store_uuid=store_uuid, read_only=True)
        ) as source,
        closing(Catalog.create(target_dir, store_uuid=store_uuid)) as target,
        source.snapshot() as (origin, theirs),
        target.snapshot() as (copy, ours),
    ):
        copy.exec_driver_sql("PRAGMA defer_foreign_keys=ON")  # a row may refer to a later one
        copy.execute(sa.delete(ours.store))
        for name in ("store", "queues", "exchanges", "bindings", "config"):
            table = getattr(theirs, name)
            found = origin.execute(sa.select(table).order_by(*table.primary_key.columns))
            for rows in found.mappings().partitions(_ROWS_AT_ONCE):
                copy.execute(sa.insert(getattr(ours, name)), [dict(row) for row in rows])
