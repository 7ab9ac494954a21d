"""``logstore chain``: every record of one message or transaction, the meaning of each, and its present state."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from logstore.commands.dump import bodies_option, document, line, log_records
from logstore.commands.meaning import meaning
from logstore.commands.options import LSN, catalog_options, json_option, store_argument
from logstore.commands.output import Failure, one_line, print_json, progress
from logstore.commands.state import retried
from logstore.errors import CatalogError, CorruptLog, UnknownMessage
from logstore.inspect import Inspection, read_catalog

if TYPE_CHECKING:
    from pathlib import Path


@click.command()
@store_argument
@click.argument("id", type=LSN)
@bodies_option
@json_option
@catalog_options
def chain(
    store_dir: Path,
    id: int,  # noqa: A002 - the design's own word
    bodies: bool,
    as_json: bool,
    connect: str | None,
    schema: str | None,
) -> None:
    """Print all records of one message or transaction in order, and where it is now.

    ID is its persistence ID, decimal, or hexadecimal with 0x. Copies and relocated states are among the records; the
    last complete relocation supersedes the records before it. The operations of a transaction are printed, too.
    """
    records: list[dict[str, Any]] = []
    operations: list[dict[str, Any]] = []
    for record in log_records(store_dir, id, lambda reader: reader.naming(id)):
        own = record.id == id
        if as_json:
            (records if own else operations).append(document(record, bodies) | {"meaning": meaning(record)})
            continue
        (records if own else operations).append({})
        text = meaning(record) if own else f"an operation of message {record.id}: {meaning(record)}"
        sys.stdout.write(line(record, bodies) + "\n")
        if text:
            sys.stdout.write(f"{'':12} {one_line(text)}\n")
    if not records:
        raise Failure(
            f"{store_dir}: no record in the log belongs to {id}: it is no message or transaction, or was removed before"
        )
    now = retried(lambda: _now(store_dir, id, connect, schema))
    if as_json:
        found = {"store": str(store_dir), "id": id, "records": records, "operations": operations, "now": now}
        print_json(found)
    else:
        sys.stdout.write(f"now: {one_line(_now_text(now))}\n")


def _now(store_dir: Path, id: int, connect: str | None, schema: str | None) -> dict[str, Any]:  # noqa: A002
    """The value of ``now`` in ``chain --json``: its state, and for a message its queues and its LSN."""
    with Inspection(store_dir) as found:
        try:
            with progress("reading", max(found.info.end_lsn - found.info.base_lsn, 0)) as show:
                found.read(show)
        except CorruptLog as error:
            return {"state": "unknown", "why": error.message}
        for transaction in found.transactions():
            if transaction.id == id:
                xid = None if transaction.xid is None else str(transaction.xid)
                return {"state": transaction.state, "xid": xid, "lsn": transaction.start_lsn}
        try:
            lsn, places = found.whereabouts(id)
        except UnknownMessage:
            return {"state": "over"}
        try:
            view = read_catalog(store_dir, found.info, connect=connect, schema=schema)
            names: dict[int, str | None] = {one.id: one.name for one in view.queues}
        except CatalogError:
            names = {}
    queues = [{"id": queue, "name": names.get(queue), "locked": locked} for queue, locked in places]
    return {"state": "live", "lsn": lsn, "moved": lsn != id, "queues": queues}


def _now_text(now: dict[str, Any]) -> str:
    if now["state"] == "unknown":
        return f"unknown, because the log cannot be replayed: {now['why']}"
    if now["state"] == "over":
        return "over: none of its records is needed"
    if now["state"] != "live":
        return f"a transaction without an outcome, {now['state']}, held by its record at LSN {now['lsn']}"
    where = f"{'relocated to' if now['moved'] else 'not relocated, at'} LSN {now['lsn']}"
    on = ", ".join(
        f"{one['name'] or 'queue ' + str(one['id'])}{' (locked by a transaction)' if one['locked'] else ''}"
        for one in now["queues"]
    )
    return f"live, {where}, on {on or 'no queue'}"
