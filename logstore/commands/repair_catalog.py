"""``logstore repair-catalog``: brings back a catalog that disagrees with itself, or that is older than its log."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from logstore.commands.options import catalog_options, dry_run_option, json_option, store_argument
from logstore.commands.output import Failure, one_line, print_json

if TYPE_CHECKING:
    from pathlib import Path


@click.command("repair-catalog")
@store_argument
@dry_run_option
@json_option
@catalog_options
def repair_catalog(store_dir: Path, dry_run: bool, as_json: bool, connect: str | None, schema: str | None) -> None:
    """Mend the catalog of a closed store, and say each change.

    For a store that does not open because its catalog disagrees with itself or is older than the log. The next queue id
    is raised above all that are used, references to what is gone are dropped, a name that two queues have is left to
    the first, queues that the log deleted go, and those that only the log has come back as queue-ID. The file as it was
    is kept as catalog.sqlite.before-repair; the log is only read.

    Exits 0 if nothing is wrong or all of it was mended, 1 if the catalog is beyond that, 3 if it cannot be opened.
    """
    from logstore.store.catalog_repair import repair_catalog as repair

    found = repair(store_dir, connect=connect, schema=schema, dry_run=dry_run)
    if found.problem is not None:
        found.changes.clear()
    document: dict[str, Any] = {"store": str(store_dir), "dry_run": dry_run, **asdict(found)}
    if as_json:
        print_json(document)
    else:
        _print(document)
    if found.problem is not None:
        raise Failure(f"nothing was changed, for the catalog cannot be mended: {found.problem}")


def _print(document: dict[str, Any]) -> None:
    for line in document["changes"]:
        click.echo(one_line(f"would change: {line}" if document["dry_run"] else f"changed: {line}"))
    for line in document["notes"]:
        click.echo(one_line(f"note: {line}"))
    if document["kept"] is not None:
        click.echo(one_line(f"the catalog as it was is in {document['kept']}"))
    if not document["changes"] and document["problem"] is None:
        click.echo("nothing is wrong with the catalog, and nothing was changed")
