"""The Arrow schemas of records, of ended messages and of open ones.

The core declares the columns (rows_read.c, message_rows_put.c); docs/spark.md explains them. pyarrow is imported when
a schema is requested.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from logstore._core import ffi, lib
from logstore.core import arguments
from logstore.core.extras import require
from logstore.errors import OptionError
from logstore.rows.properties import decoded_fields
from logstore.rows.scan import COLUMNS, DICTIONARIES, TYPES

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["MESSAGE_COLUMNS", "message_schema", "open_schema", "schema"]


def _record_fields() -> dict[str, pa.Field]:
    return {field.name: field for field in _fields(" ".join(f"{name}:{word}" for name, word in TYPES.items()))}


def schema(columns: Sequence[str] | None = None, *, body: bool = False, strings: str = "plain") -> pa.Schema:
    """The schema of :func:`read` with these arguments; ``body`` adds that column to the default ones.
    ``properties`` and ``headers`` are there only by their names.

    Raises :class:`~logstore.errors.OptionError` for an unknown column, or one that is given twice.
    """
    arrow = require("arrow", "pyarrow")
    strings = arguments.choice("strings", strings, "plain", "dictionary")
    names = [name for name in COLUMNS if body or name != "body"] if columns is None else _wanted(columns)
    fields = _record_fields() | decoded_fields()
    for name in names:
        if name not in fields:
            raise OptionError(f"there is no column {arguments.shown(name)}; there are {', '.join(fields)}")
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


def _message_columns(tables: int, *, body: bool = False) -> str:
    """The columns that one of these tables has, in their order, as the core declares them."""
    found, of = [], ffi.new("int *")
    for number in range(lib.LS_MESSAGE_COLUMNS):
        column = ffi.string(lib.ls_message_rows_column(number, of)).decode()
        if of[0] & tables and (body or not of[0] & lib.LS_MESSAGES_BODY):
            found.append(column)
    return " ".join(found)


MESSAGE_COLUMNS: Final = tuple(
    column.split(":")[0]
    for column in _message_columns(lib.LS_MESSAGES_CLOSED | lib.LS_MESSAGES_OPEN, body=True).split()
)
"""The names of all columns of closed and of open messages, in their order; those of places stand behind them."""


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
            what = arrow.list_(
                arrow.field("element", arrow.struct(_fields(_message_columns(lib.LS_MESSAGES_PLACE))), nullable=False)
            )
        else:
            what = arrow.type_for_alias(kind)
        made.append(arrow.field(name, what, nullable=not word.endswith("!")))
    return made


def message_schema(*, body: bool = False) -> pa.Schema:
    """The schema of ended messages, one row each; ``body`` adds that column."""
    return require("arrow", "pyarrow").schema(_fields(_message_columns(lib.LS_MESSAGES_CLOSED, body=body)))


def open_schema(*, body: bool = False) -> pa.Schema:
    """The schema of open messages; ``body`` adds that column."""
    return require("arrow", "pyarrow").schema(_fields(_message_columns(lib.LS_MESSAGES_OPEN, body=body)))
