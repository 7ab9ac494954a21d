"""``logstore purge``: drops what waits on a queue, by the broker that has the store open or by opening it here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from logstore.commands.changing import BROKER, STORE, ask, change
from logstore.commands.info import queue_rows
from logstore.commands.options import catalog_options, dry_run_option, json_option, store_argument
from logstore.commands.output import print_json, printable
from logstore.commands.state import read_state
from logstore.errors import UnknownQueue

if TYPE_CHECKING:
    from pathlib import Path


@click.command()
@store_argument
@click.argument("queue")
@dry_run_option
@json_option
@catalog_options
def purge(store_dir: Path, queue: str, dry_run: bool, as_json: bool, connect: str | None, schema: str | None) -> None:
    """Drop the messages that wait on a queue.

    Those that a consumer has not acknowledged yet stay, and those that a transaction has locked.
    """
    document: dict[str, Any] = {"store": str(store_dir), "queue": queue, "dry_run": dry_run}
    if dry_run:
        document |= would_purge(store_dir, queue, connect=connect, schema=schema)
    else:
        document |= change(
            store_dir,
            "purge",
            {"queue": queue},
            lambda store: {"messages": store.queue(queue).purge()},
            connect=connect,
            schema=schema,
        )
    if as_json:
        print_json(document)
    else:
        click.echo(
            f"{'would be purged' if dry_run else 'purged'}: {document['messages']} messages of {printable(queue)}"
        )


def would_purge(store_dir: Path, queue: str, *, connect: str | None, schema: str | None) -> dict[str, Any]:
    """How many messages a purge would drop. Raises ``UnknownQueue``, and ``StoreLocked`` as the purge would."""
    state = read_state(store_dir, connect=connect, schema=schema)
    if state.info.live:  # only the broker knows what its consumers have
        return {"through": BROKER, **ask(store_dir, "purge", {"queue": queue, "dry_run": True})}
    for row in queue_rows(state):
        if row["name"] == queue:
            return {"through": STORE, "messages": row["depth"] - row["locked"]}
    raise UnknownQueue(f"there is no queue {queue!r}; 'logstore queues' lists those that are")
