"""The core's record scanner as Arrow record batches; the lower half of :mod:`logstore.arrow`.

The core fills columns in Arrow's own layout; this module adds the types, without a copy. It must never create a Python
object for each record.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Self

from logstore._core import ffi, lib
from logstore.codec.records import RecordType
from logstore.core import arguments
from logstore.core.extras import require
from logstore.core.native import check, owned
from logstore.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import TracebackType

    import pyarrow as pa

    from logstore._core import ls_columns_ptr
    from logstore._hot import Owner
    from logstore.inspect import Reader

__all__ = [
    "COLUMNS",
    "DICTIONARIES",
    "OUTCOMES",
    "REASONS",
    "STREAMS",
    "TYPES",
    "RowScan",
    "column_array",
    "known_types",
    "type_bits",
]

_NUMBERS: Final = {
    name.removeprefix("LS_ROWS_").lower(): getattr(lib, name)
    for name in dir(lib)
    if name.startswith("LS_ROWS_") and name not in {"LS_ROWS_COLUMNS", "LS_ROWS_MOST", "LS_ROWS_QUEUE_IDS_ITEM"}
}
COLUMNS: Final = tuple(sorted(_NUMBERS, key=_NUMBERS.__getitem__))
"""The names of all columns, in their order."""

REASONS: Final = ("accepted", "rejected", "expired", "purged", "dead_lettered", "queue_deleted")
STREAMS: Final = ("message", "transaction", "log", "replication")
OUTCOMES: Final = ("committed", "rolled_back", "prepared", "open")
_TYPES_PER_STREAM: Final = 12
_KNOWN_TYPES: Final = 4 * _TYPES_PER_STREAM  # in the core's numbering

TYPES: Final = {name: ffi.string(lib.ls_rows_column(_NUMBERS[name])).decode() for name in COLUMNS}
"""The type of each column in the core's notation: ``int64!`` is never null."""

DICTIONARIES: Final = frozenset(name for name, word in TYPES.items() if word.rstrip("!") == "name")
"""Columns for which the core gives the index of a string."""


def _type_name(code: int) -> str:
    try:
        return RecordType(code).name
    except ValueError:
        return f"{code:#06x}"


def known_types() -> list[str]:
    """The names of the record types that this version knows, by the core's numbers."""
    return [_type_name(lib.ls_rows_type(ffi.NULL, number)) for number in range(_KNOWN_TYPES)]


def column_array(column: Any, kind: pa.DataType, rows: int, owner: object, child: pa.Array | None = None) -> pa.Array:
    """An ``ls_column`` as an array of this type. The core owns the memory; ``owner`` keeps it alive."""
    arrow = require("arrow", "pyarrow")
    valid = None
    if column.valid != ffi.NULL:
        valid = arrow.foreign_buffer(int(ffi.cast("uintptr_t", column.valid)), (rows + 7) // 8, owner)
    buffers = [valid]
    if column.offsets != ffi.NULL:
        buffers.append(arrow.foreign_buffer(int(ffi.cast("uintptr_t", column.offsets)), 4 * (rows + 1), owner))
    if child is None:
        values = int(ffi.cast("uintptr_t", column.values))
        buffers.append(arrow.foreign_buffer(values, column.value_bytes, owner))
    children = None if child is None else [child]
    return arrow.Array.from_buffers(kind, rows, buffers, column.nulls, 0, children)


class RowScan:
    """The records of a log as record batches of these columns, in the order of the log. A context manager.

    ``reader`` is new; the scan owns and closes it. ``queue_names`` gives the names of queues by id. A record must match
    all of ``types`` (from :func:`type_bits`), ``queue_ids``, ``ids`` and times (``start_time`` ≤ time < ``stop_time``);
    None or 0 matches every record.
    """

    def __init__(
        self,
        reader: Reader,
        schema: pa.Schema,
        *,
        start_lsn: int,
        stop_lsn: int,
        as_of_lsn: int,
        body_bytes: int,
        batch_rows: int,
        queue_names: Mapping[int, str],
        types: int = 0,
        queue_ids: Sequence[int] | None = None,
        ids: Sequence[int] | None = None,
        start_time: datetime | None = None,
        stop_time: datetime | None = None,
        known: pa.Table | None = None,
    ) -> None:
        self._reader = reader
        self._schema = schema
        self._named = sorted(queue_names)
        self._names = [queue_names[number] for number in self._named]
        self._unknown: list[int] = []
        options = ffi.new("ls_rows_options *")
        options.columns = sum(1 << _NUMBERS[name] for name in schema.names)
        options.start_lsn, options.stop_lsn, options.as_of_lsn = start_lsn, stop_lsn, as_of_lsn
        options.rows_max, options.body_max, options.types = batch_rows, body_bytes, types
        options.timed = start_time is not None or stop_time is not None
        options.start_us = 0 if start_time is None else max(0, _microseconds(start_time))
        options.stop_us = (1 << 64) - 1 if stop_time is None else max(0, _microseconds(stop_time))
        lists = {"queue_ids": queue_ids, "ids": ids, "named": self._named}
        kept = {name: ffi.new("uint64_t[]", list(values)) for name, values in lists.items() if values is not None}
        counts = {"queue_ids": "queue_id_count", "ids": "id_count", "named": "named_count"}
        for name, array in kept.items():
            setattr(options, name, array)
            setattr(options, counts[name], len(array))
        if known is not None and known.num_rows > 0:
            kept |= _known_places(options, known)
        self._owner, made = owned("rows")
        check(lib.ls_rows_open(reader.handle, options, made))
        self._c: Any = made[0]
        self._dictionaries = self._make_dictionaries()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the files. A second call does nothing."""
        self._c = None
        self._owner.free()
        self._reader.close()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        while self._c is not None:
            owner, batch = owned("columns")
            code = lib.ls_rows_next(self._c, batch)
            if code == lib.LS_END:
                return
            if code != 0:
                raise self._reader._explained(code)
            if batch[0] != ffi.NULL:
                yield self._record_batch(owner, batch[0])

    def _record_batch(self, owner: Owner, batch: ls_columns_ptr) -> pa.RecordBatch:
        arrow = require("arrow", "pyarrow")
        columns, rows = ffi.new("ls_column[]", lib.LS_ROWS_COLUMNS), ffi.new("uint64_t *")
        lib.ls_columns_get(batch, columns, lib.LS_ROWS_COLUMNS, rows)
        arrays = [self._array(field, columns, rows[0], owner) for field in self._schema]
        if not arrays:  # the number of rows is needed even without columns
            return arrow.RecordBatch.from_struct_array(arrow.Array.from_buffers(arrow.struct([]), rows[0], [None]))
        return arrow.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _array(self, field: pa.Field, columns: Any, rows: int, owner: Any) -> pa.Array:
        arrow = require("arrow", "pyarrow")
        column = columns[_NUMBERS[field.name]]
        if field.name == "queue_ids":
            items = columns[lib.LS_ROWS_QUEUE_IDS_ITEM]
            child = column_array(items, arrow.int64(), items.rows, owner)
            return column_array(column, field.type, rows, owner, child)
        if field.name not in DICTIONARIES:
            return column_array(column, field.type, rows, owner)
        indices = column_array(column, arrow.int32() if field.name == "queue" else arrow.int8(), rows, owner)
        made = arrow.DictionaryArray.from_arrays(indices, self._dictionary(field.name), safe=False)
        return made if arrow.types.is_dictionary(field.type) else made.dictionary_decode()

    def _make_dictionaries(self) -> dict[str, pa.Array]:
        arrow = require("arrow", "pyarrow")
        lists = {"type": known_types(), "stream": STREAMS, "queue": self._names, "outcome": OUTCOMES, "reason": REASONS}
        return {name: arrow.array(values, arrow.string()) for name, values in lists.items()}

    def _dictionary(self, name: str) -> pa.Array:
        if name == "type":
            self._learn_types()
        return self._dictionaries[name]

    def _learn_types(self) -> None:
        """Adds types of a later version, which get a number when they first occur."""
        arrow = require("arrow", "pyarrow")
        met = len(self._unknown)
        while code := lib.ls_rows_type(self._c, _KNOWN_TYPES + len(self._unknown)):
            self._unknown.append(code)
        if len(self._unknown) > met:
            more = arrow.array([_type_name(code) for code in self._unknown[met:]], arrow.string())
            self._dictionaries["type"] = arrow.concat_arrays([self._dictionaries["type"], more])


_PLACES: Final = {
    "place_ids": "id",
    "place_queue_ids": "queue_id",
    "place_lsns": "enqueue_lsn",
    "place_times": "enqueue_time",
}


def check_known_places(known: object) -> None:
    """Raises ``TypeError`` for an object that is not an Arrow table, ``OptionError`` for missing columns."""
    arrow = require("arrow", "pyarrow")
    table = arguments.instance("known", known, arrow.Table, what="a pyarrow.Table")
    for column in _PLACES.values():
        found = table.schema.field(column).type if table.schema.names.count(column) == 1 else None
        if found is None or not (arrow.types.is_integer(found) or arrow.types.is_timestamp(found)):
            raise OptionError(
                f"known has the columns {', '.join(_PLACES.values())}, of numbers and times: see open_places"
            )


def _known_places(options: Any, known: pa.Table) -> dict[str, Any]:
    """Fills the core's lists from a table of places; the result keeps their memory alive."""
    arrow = require("arrow", "pyarrow")
    compute = require("arrow", "pyarrow.compute")
    ordered = known.sort_by([("id", "ascending"), ("queue_id", "ascending")])
    kept = {}
    for name, column in _PLACES.items():
        values = compute.fill_null(ordered[column].cast(arrow.int64()), 0).combine_chunks()
        chunk = values.chunk(0) if isinstance(values, arrow.ChunkedArray) else values
        kept[name] = ffi.from_buffer("uint64_t[]", chunk.buffers()[1], require_writable=False)
        setattr(options, name, kept[name] + chunk.offset)
    options.place_count = ordered.num_rows
    return kept


def type_bits(types: Sequence[str]) -> int:
    """The core's bit set of these record types."""
    return sum(
        {
            1 << ((kind >> 8) - 1) * _TYPES_PER_STREAM + (kind & 0xFF) - 1
            for kind in (RecordType[name] for name in types)
        }
    )


def _microseconds(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
