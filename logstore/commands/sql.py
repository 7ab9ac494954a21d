"""``logstore sql``: asks a store or an export in SQL."""

from __future__ import annotations

import csv
import sys
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import click

from logstore.export.addresses import shown
from logstore.report.sql import Database
from logstore.terminal.options import SIZE, catalog_options, json_option, source_argument
from logstore.terminal.output import print_json, print_table

if TYPE_CHECKING:
    from pathlib import Path

_NUMBERS = (int, float, Decimal)


@click.command()
@source_argument
@click.argument("query", required=False)
@click.option(
    "--body", type=SIZE, help="Give records, messages and open a column body, cut to this many bytes [default: none]."
)
@click.option("--csv", "as_csv", is_flag=True, help="Print comma-separated values, with a line of names.")
@json_option
@catalog_options
def sql(
    store_dir: Path | str,
    query: str | None,
    body: int | None,
    as_csv: bool,
    as_json: bool,
    connect: str | None,
    schema: str | None,
) -> None:
    """Ask a store or an export in SQL.

    DIR is a store, which a broker may have open, or the target or address of an export. QUERY is in the SQL of DuckDB,
    with the views records, messages (the closed ones), open (the live ones) and transactions; without QUERY it is read
    from stdin. Nothing in DIR is changed. Needs the extra: pip install '/path/to/checkout[sql]'
    """
    if as_csv and as_json:
        raise click.UsageError("--csv and --json are two forms of the result: give one of them")
    if query is None:
        if sys.stdin is None or sys.stdin.isatty():
            raise click.UsageError("give a query, such as 'SELECT type, count(*) FROM records GROUP BY type'")
        query = sys.stdin.read()
    with Database(store_dir, body=body, connect=connect, catalog=schema) as database:
        result = database.query(query)
        columns = result.schema
        with database.told():
            if as_csv:
                writer = csv.writer(sys.stdout, lineterminator="\n")
                writer.writerow(columns.names)
                for batch in result:
                    writer.writerows([_text(value) for value in row] for row in _rows(batch))
                return
            rows = [row for batch in result for row in _rows(batch)]
    if as_json:
        named = [{"name": field.name, "type": str(field.type)} for field in columns]
        print_json({"store": shown(store_dir), "columns": named, "rows": [[*map(_plain, row)] for row in rows]})
        return
    if not rows:
        click.echo("there are no rows")
        return
    numbers = [all(isinstance(row[at], _NUMBERS) for row in rows) for at in range(len(columns))]
    right = [name for name, is_number in zip(columns.names, numbers, strict=True) if is_number]
    print_table(columns.names, [[*map(_text, row)] for row in rows], right=right)


def _rows(batch: Any) -> list[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in batch.columns), strict=True))


def _plain(value: Any) -> Any:
    """The value as JSON has it: a time in ISO 8601, bytes as ASCII with an escape for each that is not printable."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bytes):
        return "".join(chr(byte) if 32 <= byte < 127 and byte != 92 else f"\\x{byte:02X}" for byte in value)
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _text(value: Any) -> str:
    """The value for people: nothing for a null."""
    plain = _plain(value)
    return "" if plain is None else str(plain)
