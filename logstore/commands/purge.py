"""``logstore purge``: removes the waiting messages of a queue, through the broker or by opening the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from logstore.core.counts import counted
from logstore.store.changes import left_text
from logstore.terminal.changing import change, plan, would_change
from logstore.terminal.options import catalog_options, dry_run_option, json_option, store_argument
from logstore.terminal.output import print_json
from logstore.terminal.queue_names import queue_argument, unknown_queue
from logstore.terminal.state import queue_rows, read_state
from logstore.terminal.tables import printable

if TYPE_CHECKING:
    from pathlib import Path

    from logstore import MessageStore


@click.command()
@store_argument
@queue_argument
@dry_run_option
@json_option
@catalog_options
def purge(store_dir: Path, queue: str, dry_run: bool, as_json: bool, connect: str | None, schema: str | None) -> None:
    """Remove the messages that wait on a queue.

    Messages that a consumer has not acknowledged stay, and so do messages that a transaction has locked; their numbers
    are shown.
    """
    document: dict[str, Any] = {"store": str(store_dir), "queue": queue, "dry_run": dry_run}
    arguments = {"queue": queue}

    def look() -> dict[str, Any]:
        return would_purge(store_dir, queue, connect=connect, schema=schema)

    planned = plan(store_dir, look, connect=connect, schema=schema)
    if dry_run:
        document |= would_change(store_dir, "purge", arguments, planned)
    else:
        document |= change(
            store_dir,
            "purge",
            arguments,
            lambda store: purge_opened(store, queue),
            connect=connect,
            schema=schema,
        )
    if as_json:
        print_json(document)
    else:
        left = left_text(document)
        click.echo(
            f"{'would be purged' if dry_run else 'purged'}: {counted(document['messages'], 'message')} of "
            f"{printable(queue)}{f'; left: {left}' if left else ''}"
        )


def purge_opened(store: MessageStore, queue: str) -> dict[str, Any]:
    """Purges a queue of a store that nothing else uses. Raises ``UnknownQueue``."""
    handle = store.queue(queue)
    return {"messages": handle.purge(), **_left(handle.locked)}


def _left(locked: int) -> dict[str, int]:
    return {"unacknowledged": 0, "locked": locked, "unreadable": 0}


def would_purge(store_dir: Path, queue: str, *, connect: str | None, schema: str | None) -> dict[str, Any]:
    """What a purge of a closed store would remove and leave. Raises ``UnknownQueue``."""
    rows = queue_rows(read_state(store_dir, connect=connect, schema=schema))
    for row in rows:
        if row["name"] == queue:
            return {"messages": row["depth"] - row["locked"], **_left(row["locked"])}
    raise unknown_queue(queue, (row["name"] for row in rows if row["name"] is not None))
