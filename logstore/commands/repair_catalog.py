"""``logstore repair-catalog``: repairs a catalog that contradicts itself or is older than its log."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from logstore.terminal.options import catalog_options, dry_run_option, json_option, store_argument
from logstore.terminal.output import Failure, one_line, print_json

if TYPE_CHECKING:
    from pathlib import Path


@click.command("repair-catalog")
@store_argument
@dry_run_option
@json_option
@catalog_options
def repair_catalog(store_dir: Path, dry_run: bool, as_json: bool, connect: str | None, schema: str | None) -> None:
    """Repair the catalog of a store, and report each change.

    For a store that does not open because its catalog contradicts itself or is older than the log. The next queue id
    is raised above all used ids. References to missing objects are removed. If two queues have the same name, the
    second one is renamed. Queues that the log says were deleted are removed, and queues that only the log has are
    added as queue-ID. The old file is kept as catalog.sqlite.before-repair; the log is only read.

    Exits 0 if nothing is wrong or everything was repaired, 1 if the catalog cannot be repaired, 3 if it cannot be
    opened.
    """
    from logstore.salvage.catalog_repair import repair_catalog as repair

    found = repair(store_dir, connect=connect, schema=schema, dry_run=dry_run)
    if found.problem is not None:
        found.changes.clear()
    document: dict[str, Any] = {"store": str(store_dir), "dry_run": dry_run, **asdict(found)}
    if as_json:
        print_json(document)
    else:
        _print(document)
    if found.problem is not None:
        raise Failure(f"nothing was changed, because the catalog cannot be repaired: {found.problem}")


def _print(document: dict[str, Any]) -> None:
    for line in document["changes"]:
        click.echo(one_line(f"would change: {line}" if document["dry_run"] else f"changed: {line}"))
    for line in document["notes"]:
        click.echo(one_line(f"note: {line}"))
    if document["kept"] is not None:
        click.echo(one_line(f"the old catalog is kept as {document['kept']}"))
    if not document["changes"] and document["problem"] is None:
        click.echo("the catalog has no errors, and nothing was changed")
