"""The log as Arrow record batches, for every program that reads those: DuckDB, Polars, pandas, Parquet, Spark.

A row is a record of the log. The core verifies it and fills the columns; docs/spark.md has the schema. Nothing here
takes the store's lock or writes to the store, so it works while a writer runs (up to the durable LSN), after a close
and after a crash. Needs ``pip install '/path/to/checkout[arrow]'``.

LSNs and ids are int64, sizes are bytes, times are microseconds in UTC.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logstore.core.imports import late
from logstore.rows.records import BODY_BYTES, Where, open_places, queue_names, read
from logstore.rows.scan import COLUMNS
from logstore.rows.schema import message_schema, open_schema, schema
from logstore.rows.times import lsn_at

if TYPE_CHECKING:
    import pyarrow as pa

    from logstore.export import export
    from logstore.export.joined_rows import read_table

    # Made on first access, so that importing this module does not import pyarrow.
    RECORDS: pa.Schema
    MESSAGES: pa.Schema
    OPEN: pa.Schema

__all__ = [
    "BODY_BYTES",
    "COLUMNS",
    "MESSAGES",
    "OPEN",
    "RECORDS",
    "Where",
    "export",
    "lsn_at",
    "open_places",
    "queue_names",
    "read",
    "read_table",
    "schema",
]


def __getattr__(name: str) -> Any:
    if name == "export":  # imported late: reading rows does not need it
        late("logstore.export")
        from logstore.export import export

        return export
    if name == "read_table":
        late("logstore.export.joined_rows")
        from logstore.export.joined_rows import read_table

        return read_table
    made = {"RECORDS": schema, "MESSAGES": message_schema, "OPEN": open_schema}.get(name)
    if made is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return made()
