"""The Arrow schemas of records, of ended messages and of open ones.

The core declares the columns of records (rows_read.c); docs/spark.md explains them. pyarrow is imported when a schema
is requested.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from logstore.core import arguments
from logstore.core.extras import require
from logstore.errors import OptionError
from logstore.rows.scan import COLUMNS, DICTIONARIES, TYPES

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["message_schema", "open_schema", "schema"]


def _record_fields() -> dict[str, pa.Field]:
    return {field.name: field for field in _fields(" ".join(f"{name}:{word}" for name, word in TYPES.items()))}


def schema(columns: Sequence[str] | None = None, *, body: bool = False, strings: str = "plain") -> pa.Schema:
    """The schema of :func:`read` with these arguments; ``body`` adds that column to the default ones.

    Raises :class:`~logstore.errors.OptionError` for an unknown column, or one that is given twice.
    """
    arrow = require("arrow", "pyarrow")
    strings = arguments.choice("strings", strings, "plain", "dictionary")
    names = [name for name in COLUMNS if body or name != "body"] if columns is None else _wanted(columns)
    fields = _record_fields()
    for name in names:
        if name not in fields:
            raise OptionError(f"there is no column {arguments.shown(name)}; there are {', '.join(COLUMNS)}")
        if names.count(name) > 1:
            raise OptionError(f"the column {name!r} is named twice")
        if strings == "dictionary" and name in DICTIONARIES:
            index = arrow.int32() if name == "queue" else arrow.int8()
            fields[name] = fields[name].with_type(arrow.dictionary(index, arrow.string()))
    return arrow.schema([fields[name] for name in names])


def _wanted(columns: object) -> list[str]:
    if isinstance(columns, str | bytes | bytearray | memoryview) or not isinstance(columns, Sequence):
        raise OptionError(f"columns is a sequence of names, not {arguments.shown(columns)}")
    names = []
    for name in arguments.items("columns", columns, "names"):  # checked item by item, because the sequence may be long
        if not isinstance(name, str):
            raise OptionError(f"columns is a sequence of names, and {arguments.shown(name)} in it is none")
        names.append(name)
    return names


_PLACE_FIELDS: Final = (
    "queue_id:int64 queue:string enqueue_lsn:int64 enqueue_time:time enqueue_tx:int64 "
    "dequeue_lsn:int64 dequeue_time:time dequeue_tx:int64 reason:string delivery_count:int32"
)
_MESSAGE_HEAD: Final = (
    "id:int64! queue_id:int64 queue:string start_time:time enqueue_lsn:int64 enqueue_time:time "
    "dequeue_lsn:int64 dequeue_time:time"
)
_MESSAGE_END: Final = "end_lsn:int64! end_time:time! outcome:string!"
_MESSAGE_REST: Final = (
    "reason:string delivery_count:int32 place_count:int32! header_bytes:int64 content_bytes:int64! "
    "record_count:int32! record_bytes:int64! copy_count:int32! copied_bytes:int64! "
    "enqueue_tx:int64 dequeue_tx:int64 whole:bool! places:places!"
)
_OPEN_REST: Final = "pending:int32! staged:bool! state:binary!"


def _fields(text: str) -> list[pa.Field]:
    arrow = require("arrow", "pyarrow")
    made = []
    for word in text.split():
        name, kind = word.rstrip("!").split(":")
        if kind == "time":
            what = arrow.timestamp("us", tz="UTC")
        elif kind == "name":
            what = arrow.string()
        elif kind == "list":
            what = arrow.list_(arrow.field("element", arrow.int64(), nullable=False))
        elif kind == "places":
            what = arrow.list_(arrow.field("element", arrow.struct(_fields(_PLACE_FIELDS)), nullable=False))
        else:
            what = arrow.type_for_alias(kind)
        made.append(arrow.field(name, what, nullable=not word.endswith("!")))
    return made


def message_schema() -> pa.Schema:
    """The schema of ended messages, one row each."""
    return require("arrow", "pyarrow").schema(_fields(f"{_MESSAGE_HEAD} {_MESSAGE_END} {_MESSAGE_REST}"))


def open_schema() -> pa.Schema:
    """The schema of open messages."""
    return require("arrow", "pyarrow").schema(_fields(f"{_MESSAGE_HEAD} {_MESSAGE_REST} {_OPEN_REST}"))
