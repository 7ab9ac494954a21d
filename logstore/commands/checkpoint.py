"""``logstore checkpoint``: writes a checkpoint now, through the broker or by opening the store."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from logstore.core.counts import counted
from logstore.inspect import Inspection
from logstore.terminal.changing import change, plan, would_change
from logstore.terminal.options import catalog_options, dry_run_option, json_option, store_argument
from logstore.terminal.output import print_json, size_text

if TYPE_CHECKING:
    from pathlib import Path


@click.command()
@store_argument
@dry_run_option
@json_option
@catalog_options
def checkpoint(store_dir: Path, dry_run: bool, as_json: bool, connect: str | None, schema: str | None) -> None:
    """Write a checkpoint, so that the next open is fast.

    The next open reads only the log after it. The store also writes checkpoints in the background and at a clean close.
    A checkpoint is never required.
    """
    document: dict[str, Any] = {"store": str(store_dir), "dry_run": dry_run}
    planned = plan(store_dir, lambda: would_checkpoint(store_dir), connect=connect, schema=schema)
    if dry_run:
        document |= would_change(store_dir, "checkpoint", {}, planned)
    else:
        document |= change(
            store_dir, "checkpoint", {}, lambda store: asdict(store.checkpoint()), connect=connect, schema=schema
        )
    if as_json:
        print_json(document)
        return
    said = "a checkpoint would have" if dry_run else "a checkpoint was written:"
    click.echo(
        f"{said} {size_text(document['bytes'])}, with {counted(document['messages'], 'message')} and "
        f"{counted(document['transactions'], 'open transaction')}, at LSN {document['lsn']}"
    )


def would_checkpoint(store_dir: Path) -> dict[str, Any]:
    """The size of a checkpoint of a closed store, written now."""
    from logstore._core import lib
    from logstore.core.native import filled

    with Inspection(store_dir) as found:
        found.read()
        info = filled("ls_checkpoint_info", lambda into: lib.ls_checkpoint_size(found.handle, into))
        would = {"lsn": found.info.end_lsn, "bytes": info.bytes, "messages": info.messages}
        return {**would, "transactions": info.transactions, "seconds": 0.0}
