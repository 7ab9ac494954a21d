"""``logstore compact``: makes the log small now, through the broker or by opening the store."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING, Any

import click

from logstore.core.counts import counted
from logstore.inspect import Inspection
from logstore.store.base_holders import compaction_of
from logstore.terminal.changing import STORE, change, plan, would_change
from logstore.terminal.options import catalog_options, dry_run_option, json_option, store_argument
from logstore.terminal.output import print_json, size_text
from logstore.terminal.state import matching_catalog

if TYPE_CHECKING:
    from pathlib import Path


@click.command()
@store_argument
@dry_run_option
@json_option
@catalog_options
def compact(store_dir: Path, dry_run: bool, as_json: bool, connect: str | None, schema: str | None) -> None:
    """Make the log as small as possible now.

    Relocates the live records of the oldest segments, recycles the segments below the base and deletes surplus files.
    Does nothing if the log would not become smaller. The log is kept small without this command; use it to make room at
    once.
    """
    document: dict[str, Any] = {"store": str(store_dir), "dry_run": dry_run}
    planned = plan(store_dir, lambda: would_compact(store_dir, connect, schema), connect=connect, schema=schema)
    if dry_run or (planned is not None and not planned["shrinks"]):  # an open alone makes a short log longer
        document |= would_change(store_dir, "compact", {}, planned)
    else:
        document |= change(
            store_dir, "compact", {}, lambda store: store.compact().as_dict(), connect=connect, schema=schema
        )
        if planned is not None and document["through"] == STORE:
            document["bytes_before"] = planned["bytes_before"]  # before the open
    if as_json:
        print_json(document)
        return
    if not document["shrinks"]:
        click.echo(f"nothing {'would be' if dry_run else 'was'} done: compacting would not make the log smaller")
        click.echo(
            f"the log is {size_text(document['bytes_before'])}; compacted it would be "
            f"{size_text(document['planned_bytes'])}"
        )
        return
    was, becomes, relocates = ("is", "would become", "would relocate") if dry_run else ("was", "is now", "relocated")
    click.echo(
        f"the log {was} {size_text(document['bytes_before'])} and {becomes} {size_text(document['bytes_after'])}"
    )
    click.echo(
        f"{relocates} {counted(document['segments_moved'], 'segment')}, copying {size_text(document['copied_bytes'])}"
    )
    if document["held_bytes"]:
        click.echo(
            f"holds keep {size_text(document['held_bytes'])} of it: see 'logstore holds {quote(str(store_dir))}'"
        )


def would_compact(store_dir: Path, connect: str | None, schema: str | None) -> dict[str, Any]:
    """The estimated result of a compaction of a closed store. Raises what an open would raise of its catalog."""
    with Inspection(store_dir) as found:
        found.read()
        matching_catalog(found, store_dir, connect=connect, schema=schema)
        return compaction_of(found.handle, dry_run=True).as_dict()
