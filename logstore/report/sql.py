"""SQL over a store or an export: a connection of DuckDB with the views ``records``, ``messages``, ``open`` and
``transactions``.

Each view reads the source when a query names it, and only the columns that the query needs; nothing is copied into a
database first. All queries of one connection see the state that the source had when it was opened.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Self

from logstore.core.extras import require
from logstore.errors import OptionError
from logstore.export.places import RemotePlace
from logstore.report.sources import ExportSource, StoreSource, open_source
from logstore.rows.properties import DECODED, decoded_columns, decoded_fields
from logstore.rows.schema import message_schema, open_schema, schema

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Sequence
    from types import TracebackType

    import pyarrow as pa

__all__ = ["VIEWS", "Database"]

BATCH_ROWS: Final = 1 << 13

VIEWS: Final = ("records", "messages", "open", "transactions")

_RECORDS: Final = """
CREATE VIEW records AS SELECT *, logstore_properties(header) AS properties, logstore_headers(header) AS headers
FROM {source}
"""
_TRANSACTIONS: Final = """
CREATE VIEW transactions AS SELECT
    tx_id AS id,
    max(xid) AS xid,
    arg_max(outcome, lsn) AS outcome,
    min(time) AS first_time,
    max(time) FILTER (type = 'TX_PREPARE') AS prepare_time,
    max(time) AS last_time,
    count(*) FILTER (type = 'MESSAGE_ENQUEUE' OR inline_enqueue) AS enqueues,
    count(*) FILTER (type = 'MESSAGE_DEQUEUE') AS dequeues,
    count(*) FILTER (type = 'MESSAGE_MOVE') AS moves,
    list_sort(list(DISTINCT queue_id) FILTER (queue_id IS NOT NULL)) AS queue_ids,
    count(*) AS records,
    sum(record_bytes)::BIGINT AS record_bytes
FROM records WHERE tx_id IS NOT NULL GROUP BY tx_id
"""


class Database:
    """The views of one store or export. A context manager: closing it releases the hold on a store that is in use.

    ``body``: the length in bytes to which the columns ``body`` of a store's views are cut; None: there are no such
    columns. An export has the bodies with which it was made. Raises ``MissingExtra``, ``OptionError``, and what
    :func:`~logstore.report.sources.open_source` raises.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        body: int | None = None,
        connect: str | None = None,
        catalog: str | None = None,
    ) -> None:
        duckdb = require("sql", "duckdb")
        require("sql", "numpy")  # DuckDB needs it for functions in Python, and would say so too late
        self._problem: Exception | None = None
        self._errors: type[Exception] = duckdb.Error
        self._source = open_source(path, connect=connect, catalog=catalog)
        try:
            self._duckdb = duckdb.connect(config={"autoinstall_known_extensions": False})
            try:
                self._make_views(body)
            except BaseException:
                self._duckdb.close()
                raise
        except BaseException:
            self._source.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection and the source. A second call does nothing."""
        self._duckdb.close()
        self._source.close()

    def query(self, text: str, rows: int = BATCH_ROWS) -> pa.RecordBatchReader:
        """The result of the last statement, in batches of at most ``rows`` rows; the caller reads it in :meth:`told`.

        Raises ``OptionError`` for what DuckDB refuses, in its words, and the errors of reading the source.
        """
        with self.told():
            found = self._duckdb.sql(text)
            if found is None:
                raise OptionError("the query has no statement")
            return found.to_arrow_reader(rows)

    @contextmanager
    def told(self) -> Iterator[None]:
        """Around each use of a result: raises an error of reading the source as it was, instead of DuckDB's of it."""
        arrow = require("sql", "pyarrow")
        try:
            yield
        except (self._errors, arrow.ArrowException, OSError) as problem:
            told, self._problem = self._problem, None
            if told is not None:
                raise told from None
            if isinstance(problem, self._errors):
                raise OptionError(str(problem).partition("\n\nLINE ")[0]) from None
            raise

    # ---- Views

    def _make_views(self, body: int | None) -> None:
        self._duckdb.execute("SET TimeZone = 'UTC'")
        for name in DECODED:
            self._make_function(name)
        if isinstance(self._source, ExportSource):
            if body is not None:
                raise OptionError(f"{self._source.shown} is an export: it has the bodies with which it was made")
            self._show_export(self._source)
        else:
            assert isinstance(self._source, StoreSource)
            self._show_store(self._source, body)
        self._duckdb.execute(_RECORDS.format(source="logstore_records"))
        self._duckdb.execute(_TRANSACTIONS)

    def _make_function(self, name: str) -> None:
        """``logstore_NAME(header)``, a column that is decoded where a query names it."""
        kinds = require("sql", "duckdb").sqltype
        self._duckdb.create_function(
            f"logstore_{name}",
            lambda headers: decoded_columns([name], headers.combine_chunks())[name],  # DuckDB evaluates annotations
            [kinds("BLOB")],
            kinds(_sql_type(decoded_fields()[name].type)),
            type="arrow",
            null_handling="special",
        )

    def _show_store(self, source: StoreSource, body: int | None) -> None:
        records = schema(body=body is not None, strings="dictionary")

        has_body = body is not None

        def cut(names: list[str]) -> int | None:
            return body if "body" in names else None

        def opened(names: list[str]) -> Iterator[Any]:
            batches, rest = source.messages(body=cut(names))
            for _ in batches:
                pass
            yield from rest().to_batches()

        self._register("logstore_records", records, lambda columns: source.records(columns, body=body))
        # Bodies are read only for a query that names the column.
        self._register("messages", message_schema(body=has_body), lambda names: source.messages(body=cut(names))[0])
        self._register("open", open_schema(body=has_body), opened)

    def _show_export(self, source: ExportSource) -> None:
        """The files of the manifest, which DuckDB reads itself, and the open set that was read with the manifest.

        DuckDB reads files that are not in a directory through Arrow, and so needs no extension for that.
        """
        arrow = require("sql", "pyarrow")
        body = source.manifest.options.body is not None
        tables = {
            "logstore_records": ("records", schema(body=body)),
            "messages": ("messages", message_schema(body=body)),
        }
        for view, (dataset, columns) in tables.items():
            files = source.files(dataset)
            if files and isinstance(source.place, RemotePlace):
                self._duckdb.register(view, source.place.dataset(files, columns))
            elif files:
                paths = [f"{source.place}/{file}" for file in files]
                listed = ", ".join("'" + path.replace("'", "''") + "'" for path in paths)
                text = f"read_parquet([{listed}], union_by_name = true, hive_partitioning = false)"
                lacks = body and "body" not in self._duckdb.sql(f"FROM {text}").columns
                more = ", NULL::BLOB AS body" if lacks else ""  # an earlier version wrote all of them
                self._duckdb.execute(f"CREATE VIEW {view} AS SELECT *{more} FROM {text}")
            else:
                self._duckdb.register(view, arrow.Table.from_batches([], schema=columns))
        self._duckdb.register("open", source.open_rows(body=body))

    def _register(self, view: str, made: pa.Schema, read: Callable[[list[str]], Iterator[pa.RecordBatch]]) -> None:
        """A view whose rows ``read`` gives, with at least the named columns, each time that a query reads it."""
        arrow, datasets = require("sql", "pyarrow"), require("sql", "pyarrow.dataset")

        def scanner(
            _: object,
            columns: Sequence[str] | None = None,
            filter: Any = None,  # noqa: A002 - pyarrow's name
            **_others: object,
        ) -> Any:
            # A condition may name columns that are not among the wanted ones, and says only as a text which.
            named = [name for name in made.names if columns is None or name in columns or name in str(filter)]
            reader = arrow.RecordBatchReader.from_batches(
                arrow.schema([made.field(name) for name in named]), self._kept(named, read)
            )
            return datasets.Scanner.from_batches(reader, columns=columns, filter=filter)

        members = {"__init__": lambda _: None, "schema": made, "scanner": scanner}
        self._duckdb.register(view, type("LogTable", (datasets.Dataset,), members)())

    def _kept(
        self, names: list[str], read: Callable[[list[str]], Iterator[pa.RecordBatch]]
    ) -> Iterator[pa.RecordBatch]:
        """These columns of what ``read`` gives; keeps its error, of which DuckDB would tell a text with a traceback."""
        try:
            for batch in read(names):
                yield batch.select(names)
        except Exception as problem:
            self._problem = problem
            raise


def _sql_type(kind: pa.DataType) -> str:
    types = require("sql", "pyarrow").types
    if types.is_struct(kind):
        fields = (kind.field(number) for number in range(kind.num_fields))
        listed = ", ".join(f'"{field.name}" {_sql_type(field.type)}' for field in fields)
        return f"STRUCT({listed})"
    if types.is_map(kind):
        return f"MAP({_sql_type(kind.key_type)}, {_sql_type(kind.item_type)})"
    return {"string": "VARCHAR", "int32": "INTEGER", "timestamp[us, tz=UTC]": "TIMESTAMPTZ"}[str(kind)]
