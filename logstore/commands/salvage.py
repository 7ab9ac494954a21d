"""``logstore salvage``: copies everything readable of a damaged store into a new one, and lists what is lost.

Nothing is ever repaired in place. The operator decides from the report, so it can also be written to a file. Without
--json only the beginning of each list is shown.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from logstore.core.counts import counted
from logstore.terminal.options import PathText, catalog_options, dry_run_option, json_option, store_argument
from logstore.terminal.output import fact_name, one_line, print_facts, print_json, print_table, range_text, size_text
from logstore.terminal.working import working

if TYPE_CHECKING:
    from pathlib import Path

    from logstore.salvage import Salvaged

SHOWN = 20  # lines of each list without --json
LISTS = ("queues", "lost", "lost_ranges", "lost_records", "doubtful", "transactions", "queues_deleted", "notes")


@click.command()
@store_argument
@click.argument("target", required=False, type=PathText(readable=False))
@dry_run_option
@click.option(
    "--report",
    "report_file",
    metavar="FILE",
    type=PathText(dir_okay=False, writable=True),
    help="Also write the whole report to FILE, as JSON.",
)
@json_option
@catalog_options
def salvage(
    store_dir: Path,
    target: Path | None,
    dry_run: bool,
    report_file: Path | None,
    as_json: bool,
    connect: str | None,
    schema: str | None,
) -> int:
    """Copy what is readable of a damaged store to a new one.

    DIR is only read: nothing is ever repaired in place. TARGET is an absent or empty directory; its catalog is a file
    in it. Ids, queues, contents, order and transactions in doubt stay the same. Messages that are lost, or may have
    been consumed before, are listed with their queues, as far as readable records name them. How many are lost is a
    range where nothing says it exactly.

    Exits 0 if nothing is lost, 1 if anything is lost or doubtful, 3 if nothing can be salvaged.
    """
    from logstore.salvage import salvage as run

    if target is None and not dry_run:
        raise click.UsageError("Name the directory for the new store, or use --dry-run.")
    with working() as show:
        report = run(store_dir, None if dry_run else target, connect=connect, catalog=schema, show=show)
    document = describe(report)
    if report_file is not None:
        report_file.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if as_json:
        print_json(document)
    else:
        _print(document)
    if report.whole:
        return 0
    sys.stdout.flush()
    click.echo(f"logstore: {store_dir}: {_in_short(document)}", err=True)
    return 1


def describe(report: Salvaged) -> dict[str, Any]:
    """The keys of ``salvage --json``."""
    fields = {name: getattr(report, name) for name in report.__slots__}
    return {"store": fields.pop("store"), "whole": report.whole, **fields}


def _in_short(document: dict[str, Any]) -> str:
    lost = document["lost_messages"]
    counts: tuple[tuple[Any, str, str], ...] = (
        (lost["most"] != 0 and range_text(lost, "an unknown number of"), "message is lost", "messages are lost"),
        (document["found"], "message is found without its queue", "messages are found without their queues"),
        (
            sum(one["records"] != 0 for one in document["lost_ranges"]),
            "range of the log cannot be read",
            "ranges of the log cannot be read",
        ),
        (len(document["doubtful"]), "message is doubtful", "messages are doubtful"),
        (len(document["transactions"]), "transaction has no known outcome", "transactions have no known outcome"),
        (len(document["queues_unnamed"]), "queue has lost its name", "queues have lost their names"),
        (sum(one["costs"] for one in document["lost_records"]), "record is damaged", "records are damaged"),
    )
    return ", ".join(counted(count, one, more) for count, one, more in counts if count)


# ---- Output without --json


def _print(document: dict[str, Any]) -> None:
    plain = {name: value for name, value in document.items() if name not in LISTS and value is not None}
    for name in ("whole", "torn", "replicated", "maybe_consumed", "queues_unnamed"):
        plain.pop(name, None)
    for name in [name for name in plain if "bytes" in name]:
        plain[name] = size_text(plain[name])
    plain["found_without_queues"] = plain.pop("found")
    plain["lost_messages"] = range_text(document["lost_messages"]) if document["lost_messages"]["most"] != 0 else "none"
    plain["doubtful messages"] = len(document["doubtful"]) or "none"
    print_facts((fact_name(name), value) for name, value in plain.items())
    if document["queues"]:
        columns = ("queue", "name", "recovered", "lost")
        rows = [(one["id"], one["name"], one["recovered"], range_text(one["lost"])) for one in document["queues"]]
        print_table(columns, rows, right=("queue", "recovered", "lost"))
    _print_unlisted(document)
    for name, line in _LINES.items():
        items = document[name]
        for one in items[:SHOWN]:
            click.echo(one_line(line(one)))
        if len(items) > SHOWN:
            click.echo(f"... and {len(items) - SHOWN} more; --json and --report have all of them")
    _print_remarks(document)


def _print_unlisted(document: dict[str, Any]) -> None:
    """Says how many of the lost messages no line below names."""
    most = document["lost_messages"]["most"]
    unlisted = None if most is None else most - sum(not one["found"] for one in document["lost"])
    if unlisted is None:
        click.echo("not listed: an unknown number of messages, because nothing says where the log began")
    elif unlisted:
        click.echo(f"not listed: at most {counted(unlisted, 'message')} that only unreadable ranges can have held")


def _print_remarks(document: dict[str, Any]) -> None:
    torn, maybe = document["torn"], document["maybe_consumed"]
    if torn is not None:
        click.echo(
            f"torn tail: {counted(torn['bytes'], 'byte was', 'bytes were')} never acknowledged, at LSN "
            f"{torn['lsn']}; not copied"
        )
    if (replicated := document["replicated"]) is not None:
        click.echo(
            f"replicated: the store was a copy at term {replicated['term']}, index {replicated['index']}; "
            f"{counted(replicated['undurable_bytes'], 'byte')} of its log, above LSN "
            f"{replicated['known_durable_lsn']}, were not known to be durable and are kept. The new store is single"
        )
    if maybe is not None:
        click.echo(
            f"may have been consumed: {counted(maybe['messages'], 'message')} whose last record is below LSN "
            f"{maybe['last_heard_of_below_lsn']}, where the last unreadable range ends"
        )
    if document["queues_unnamed"]:
        ids = ", ".join(map(str, document["queues_unnamed"][:SHOWN]))
        click.echo(f"queues whose names are lost are named after their ids: {ids}")
    if document["target"] is None:
        click.echo("nothing was written")


def _lost_line(one: dict[str, Any]) -> str:
    names = ", ".join(map(repr, one["queue_names"]))
    where = f"on {names}" if names else "on unknown queues"
    probable = ", ".join(map(repr, one["queue_names_probable"]))
    where += f" (probably {probable})" if probable and not names else ""
    state = "lost" if one["certain"] else "perhaps lost"
    kept = "; its content is complete and on the queue for found messages" if one["found"] else ""
    return f"{state}: message {one['id']} {where}: {one['why']}{kept}"


def _range_line(one: dict[str, Any]) -> str:
    unknown = one["records_unknown"]
    held = "an unknown number of records" if unknown is None else counted(unknown, "unknown record")
    held = "perhaps no records" if not one["certain"] else held
    named = "".join(f", one of chain {record['id']} at {record['lsn']}" for record in one["records_named"])
    return (
        f"unreadable: {counted(one['bytes'], 'byte')} of segment {one['segment']} at offset {one['offset']}, LSN "
        f"{one['lsn']} to "
        f"{one['end_lsn']}: {held}{named} ({one['why']})"
    )


_LINES: dict[str, Any] = {
    "lost": _lost_line,
    "lost_ranges": _range_line,
    "lost_records": lambda one: (
        f"damaged: {one['type']} of {counted(one['bytes'], 'byte')} at LSN {one['lsn']}, segment "
        f"{one['segment']}, offset "
        f"{one['offset']}" + (f", of chain {one['id']}" if one["id"] else "")
    ),
    "doubtful": lambda one: f"doubtful: message {one['id']}: {one['why']} (LSN {one['lsn']})",
    "transactions": lambda one: (
        f"transaction {one['id']}"
        + (f", xid {one['xid']}" if one["xid"] else "")
        + (", in doubt" if one["in_doubt"] else "")
        + f": {one['why']}"
    ),
    "queues_deleted": lambda one: f"not copied: queue {one!r}, which was deleted according to the log",
    "notes": lambda one: f"note: {one}",
}
