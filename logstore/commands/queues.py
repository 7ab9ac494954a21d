"""``logstore queues``: the queues of a store, and the messages on each."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from logstore.codec.records import LSN_LIMIT
from logstore.core.directory import with_directory
from logstore.errors import CorruptLog
from logstore.inspect import Reader, read_catalog
from logstore.store.statistics import PLACE_COUNTS
from logstore.terminal.options import catalog_options, json_option, store_argument
from logstore.terminal.output import note_lines, output_width, print_json, print_table
from logstore.terminal.queue_names import nameless_text
from logstore.terminal.sampling import asked
from logstore.terminal.state import queue_rows, read_state

if TYPE_CHECKING:
    from pathlib import Path

_OF_BROKER = ("unacknowledged", "unreadable", "consumers")  # what only a broker knows of a queue


@click.command()
@store_argument
@json_option
@catalog_options
def queues(store_dir: Path, as_json: bool, connect: str | None, schema: str | None) -> None:
    """List the queues and the number of messages on each.

    Depth counts all visible places, ready those that a consumer can get, locked those that a transaction without an
    outcome has dequeued, hidden those that are offered later, and expired those whose time has passed; bytes counts
    content. A queue without a name is transient, or is being deleted. A
    running broker gives the counts of this moment, adds the queues that it keeps in memory, and for each queue the
    unacknowledged messages and the consumers.
    """
    sample, problem = asked(store_dir)
    try:
        rows = queue_rows(read_state(store_dir, connect=connect, schema=schema))
    except CorruptLog as error:
        if sample is None:
            raise
        rows = _rows_of_broker(store_dir, sample["queues"], connect, schema)
        problem = f"queues without a name are not listed: {with_directory(error.message, store_dir)}"
    rows = with_broker(rows, None if sample is None else sample["queues"])
    if as_json:
        print_json({"store": str(store_dir), "problem": problem, "queues": rows})
        return
    if not rows:
        click.echo("there are no queues")
        return
    known = [] if sample is None else ["unacknowledged", "consumers"]
    if any(row["unreadable"] for row in rows):
        known.insert(1, "unreadable")
    rare = [key for key in ("dead_letter", "arguments") if any(row[key] for row in rows)]
    named = ["unacked" if key == "unacknowledged" else key for key in known]
    places = ["depth", "ready", "locked", *(key for key in ("hidden", "expired") if any(row[key] for row in rows))]
    columns = ("id", "queue", *places, *named, "bytes", *(key.replace("_", " ") for key in rare))
    print_table(
        columns,
        (
            (
                "" if row["id"] is None else row["id"],
                name_text(row),
                *(("-" if row[key] is None else row[key]) for key in (*places, *known, "bytes")),
                *(_rare_text(row[key]) for key in rare),
            )
            for row in rows
        ),
        right=("id", *places, *named, "bytes"),
    )
    for line in note_lines(problem, output_width()):
        click.echo(line)


def _rare_text(value: str | dict[str, Any] | None) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value) if value else ""


def name_text(row: dict[str, Any]) -> str:
    """The name of a queue for people."""
    if row["name"] is None:
        return nameless_text(row)
    return f"{row['name']}" if row["durable"] else f"{row['name']} (in memory)"


def with_broker(rows: list[dict[str, Any]], sampled: list[dict[str, Any]] | None) -> list[dict[str, Any]]:
    """The rows with what a broker knows: its counts, which are of one moment, instead of those of the log. Its own keys
    are null where it was not asked, or does not have the queue yet.
    """
    by_id = {queue["id"]: queue for queue in sampled or ()}
    found = []
    for row in rows:
        queue = by_id.get(row["id"], {})
        counts = {key: queue[key] for key in PLACE_COUNTS} if queue else {}
        found.append(row | counts | {key: queue.get(key) for key in _OF_BROKER} | {"durable": True})
    in_memory = [queue for queue in sampled or () if not queue["durable"]]
    return found + [
        {
            **{key: queue[key] for key in ("id", "name", *PLACE_COUNTS)},
            "dead_letter": None,
            "arguments": {},
            "transient": False,
            **{key: queue[key] for key in (*_OF_BROKER, "durable")},
        }
        for queue in sorted(in_memory, key=lambda queue: str(queue["name"]))
    ]


def _rows_of_broker(
    store_dir: Path, sampled: list[dict[str, Any]], connect: str | None, schema: str | None
) -> list[dict[str, Any]]:
    """The rows of the stored queues, without counts, while a broker runs and its log cannot be read."""
    with Reader(store_dir, from_lsn=LSN_LIMIT - 1) as reader:
        catalog = read_catalog(store_dir, reader.info, connect=connect, schema=schema)
    known = {queue["id"] for queue in sampled}
    return [
        {
            "id": queue.id,
            "name": queue.name,
            "dead_letter": queue.dead_letter,
            "arguments": queue.arguments,
            "transient": False,
        }
        for queue in catalog.queues
        if queue.id in known
    ]
