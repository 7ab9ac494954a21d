"""Reads the records of a log as Arrow record batches, with the queues' names from the catalog.

Each row is a record that the core has verified; the core fills the columns. LSNs and ids are int64, sizes are bytes,
times are microseconds in UTC.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from logstore._core import lib
from logstore.codec.records import RecordType
from logstore.core import arguments
from logstore.core.extras import require
from logstore.errors import OptionError
from logstore.inspect import Reader, read_catalog
from logstore.rows.properties import DECODED, decoded_columns
from logstore.rows.scan import RowScan, check_known_places, type_bits
from logstore.rows.schema import schema

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import datetime

    import pyarrow as pa

    from logstore.holds import Hold
    from logstore.inspect import ReaderInfo

__all__ = ["BODY_BYTES", "Where", "open_places", "queue_names", "read", "warn_of_missing"]

BODY_BYTES: Final = 64 << 10
"""The length to which a body is cut by default."""

BATCH_ROWS: Final = 1 << 15
_BATCH_ROWS_MAX: Final = lib.LS_ROWS_MOST
_BODY_BYTES_MAX: Final = 1 << 30

logger = logging.getLogger("logstore.arrow")


@dataclass(frozen=True, slots=True)
class Where:
    """Which records are wanted; a record must match every given field. The scan skips most of the others unread."""

    types: Sequence[str] | None = None
    """Names of record types, such as ``MESSAGE_START``."""
    queue_ids: Sequence[int] | None = None
    """Only records whose ``queue_id`` is one of these."""
    ids: Sequence[int] | None = None
    """Only records of these chains."""
    start_time: datetime | None = None
    """Start at this time, with a time zone."""
    stop_time: datetime | None = None
    """Stop before this time."""


def read(
    store_dir: str | os.PathLike[str],
    *,
    start_lsn: int | None = None,
    stop_lsn: int | None = None,
    columns: Sequence[str] | None = None,
    body: int | None = None,
    where: Where | None = None,
    hold: Hold | None = None,
    keep_lsn: int | None = None,
    end_lsn: int | None = None,
    as_of_lsn: int | None = None,
    connect: str | None = None,
    catalog: str | None = None,
    queue_names: Mapping[int, str] | None = None,
    batch_rows: int = BATCH_ROWS,
    strings: str = "dictionary",
    known: pa.Table | None = None,
    permissive: bool = False,
) -> pa.RecordBatchReader:
    """The records with ``start_lsn`` ≤ LSN < ``stop_lsn`` (default: the whole log) as a stream of record batches.

    ``columns``: their names, in this order; by default all but ``body``. ``body``: the length in bytes to which a body
    is cut (default 64 KiB); giving it adds the column to the default ones. ``properties`` and ``headers``, decoded from
    ``header``, are made only where ``columns`` names them. Outcomes of transactions are those known
    below ``as_of_lsn`` (default: the end of the log). ``hold`` keeps the log while it is read; without one, a running
    writer may recycle it. ``keep_lsn`` stands for a hold of another process: everything from there on is read, or
    ``LogRecycled`` is raised. With it, ``end_lsn`` may say where a :class:`~logstore.inspect.Reader` found the end of
    the log, which is then not searched again. Without a hold, a ``start_lsn`` below the log's base means the base.
    ``queue_names``: the names of the queues by id, instead of the catalog's (``connect`` and ``catalog`` locate the
    catalog, as in ``logstore.open``). ``strings``: ``dictionary`` or ``plain``, for columns with few distinct values.
    ``known``: places (``id``, ``queue_id``, ``enqueue_lsn``, ``enqueue_time``; each once) whose enqueues may have been
    recycled; an export knows them from its open messages, see :func:`open_places`.

    The stream is read once; each batch has at most ``batch_rows`` rows. Reading it raises ``CorruptLog`` where the log
    is damaged, after all rows before that place, and ``LogRecycled`` if the writer recycled the log. With
    ``permissive`` an unreadable part is skipped up to the next readable segment; a warning names the part, and values
    that depend on it (outcomes, enqueues) are null. Calling this raises ``OptionError``, ``MissingExtra``, and the
    errors of opening a :class:`~logstore.inspect.Reader` and its catalog.
    """
    arrow = require("arrow", "pyarrow")
    made = schema(columns, body=body is not None, strings=strings)
    where = Where() if where is None else arguments.instance("where", where, Where)
    start, stop, as_of = (_lsn(name, value) for name, value in _lsns(start_lsn, stop_lsn, as_of_lsn))
    size = arguments.integer("body", BODY_BYTES if body is None else body, 0, _BODY_BYTES_MAX)
    rows = arguments.integer("batch_rows", batch_rows, 1, _BATCH_ROWS_MAX)
    arguments.catalog(connect, catalog, called="catalog")
    given = arguments.optional(arguments.names_by_id, "queue_names", queue_names)
    types, times = _types(where.types), _times(where)
    if known is not None:
        check_known_places(known)
    ids = _id_list("ids", where.ids)
    queue_ids = _id_list("queue_ids", where.queue_ids)
    reader = Reader(store_dir, from_lsn=start, hold=hold, keep_lsn=keep_lsn, end_lsn=end_lsn, permissive=permissive)
    try:
        names = given
        if names is None:
            names = _names(store_dir, reader.info, connect, catalog) if "queue" in made.names else {}
        scan = RowScan(
            reader,
            _scanned(made),
            start_lsn=start,
            stop_lsn=stop,
            as_of_lsn=as_of if as_of_lsn is None else max(1, as_of),  # to the core 0 means the end
            body_bytes=size,
            batch_rows=rows,
            queue_names=names,
            types=types,
            queue_ids=queue_ids,
            ids=ids,
            start_time=times[0],
            stop_time=times[1],
            known=known,
        )
    except BaseException:
        reader.close()
        raise
    if (stop_lsn is not None and stop <= start) or (where.types is not None and not where.types):
        scan.close()
        return arrow.RecordBatchReader.from_batches(made, iter(()))
    return arrow.RecordBatchReader.from_batches(made, _batches(scan, reader, made, start, stop))


def _scanned(made: pa.Schema) -> pa.Schema:
    """The columns that the core makes: those of this schema, and ``header`` for what is decoded from it."""
    names = [name for name in made.names if name not in DECODED]
    if len(names) < len(made.names) and "header" not in names:
        names.append("header")
    return require("arrow", "pyarrow").schema(
        [made.field(name) if name in made.names else schema([name]).field(name) for name in names]
    )


def _batches(scan: RowScan, reader: Reader, made: pa.Schema, start_lsn: int, stop_lsn: int) -> Iterator[pa.RecordBatch]:
    arrow = require("arrow", "pyarrow")
    decodes = not set(DECODED).isdisjoint(made.names)
    with scan:
        for batch in scan:
            if decodes:
                made_here = decoded_columns(made.names, batch.column("header"))
                arrays = [made_here[name] if name in DECODED else batch.column(name) for name in made.names]
                yield arrow.RecordBatch.from_arrays(arrays, schema=made)
            else:
                yield batch
        warn_of_missing(reader, start_lsn, stop_lsn)


def warn_of_missing(reader: Reader, start_lsn: int = 0, stop_lsn: int = 0) -> None:
    """Logs the parts of this range that a permissive reader skipped; ``stop_lsn`` 0: up to the end of the log."""
    for first, end in reader.missing():
        if end > start_lsn and (stop_lsn == 0 or first < stop_lsn):
            logger.warning(
                "%s: from LSN %d up to LSN %d what cannot be read was left out: `logstore verify` says what is damaged",
                reader.path,
                first,
                end,
            )


def queue_names(
    store_dir: str | os.PathLike[str],
    *,
    connect: str | None = None,
    catalog: str | None = None,
    info: ReaderInfo | None = None,
) -> dict[int, str]:
    """The names of the store's queues by id, from the catalog. ``info``: what a reader has found of the log before.

    Raises the errors of :func:`read`.
    """
    arguments.catalog(connect, catalog, called="catalog")
    if info is None:
        with Reader(store_dir) as reader:
            info = reader.info
    return _names(store_dir, info, connect, catalog)


def open_places(messages: pa.Table) -> pa.Table:
    """The places that open messages (a table like ``OPEN``) still have, in the form of ``known`` in :func:`read`."""
    arrow = require("arrow", "pyarrow")
    compute = require("arrow", "pyarrow.compute")
    arguments.instance("messages", messages, arrow.Table, what="a pyarrow.Table")
    missing = {"id", "places"} - set(messages.schema.names)
    if missing:
        raise OptionError(f"messages has the columns id and places, and lacks {' and '.join(sorted(missing))}")
    lists = messages["places"].combine_chunks()
    lists = arrow.concat_arrays(lists.chunks) if isinstance(lists, arrow.ChunkedArray) else lists
    ids = compute.take(messages["id"], compute.list_parent_indices(lists))
    places = arrow.Table.from_struct_array(compute.list_flatten(lists))
    places = places.append_column("id", ids)
    return places.filter(compute.is_null(places["dequeue_lsn"])).select(
        ["id", "queue_id", "enqueue_lsn", "enqueue_time"]
    )


def _names(
    store_dir: str | os.PathLike[str], info: ReaderInfo, connect: str | None, catalog: str | None
) -> dict[int, str]:
    view = read_catalog(store_dir, info, connect=connect, schema=catalog)
    return {queue.id: queue.name for queue in view.queues}


# ---- Arguments


def _lsns(start: int | None, stop: int | None, as_of: int | None) -> list[tuple[str, int | None]]:
    return [("start_lsn", start), ("stop_lsn", stop), ("as_of_lsn", as_of)]


def _lsn(name: str, value: int | None) -> int:
    return 0 if value is None else arguments.integer(name, value, 0, arguments.LSN_MAX)


def _id_list(name: str, values: Sequence[int] | None) -> list[int] | None:
    if values is None:
        return None
    listed = arguments.items(name, values, "numbers")
    return sorted({arguments.integer(f"each of {name}", each, 0, arguments.LSN_MAX) for each in listed})


def _types(names: Sequence[str] | None) -> int:
    if names is None:
        return 0
    known = set(RecordType.__members__)
    wanted = arguments.texts("types", names)
    for name in wanted:
        if name not in known:
            raise OptionError(
                f"there is no record type {arguments.shown(name)}; there are {', '.join(RecordType.__members__)}"
            )
    return type_bits(wanted)


def _times(where: Where) -> list[datetime | None]:
    named = {"start_time": where.start_time, "stop_time": where.stop_time}
    return [arguments.optional(arguments.moment, name, value) for name, value in named.items()]
