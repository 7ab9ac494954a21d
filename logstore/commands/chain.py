"""``logstore chain``: every record of one message or transaction, the meaning of each, and its present state."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from logstore.codec.records import PlaceStates
from logstore.core.moments import time_text
from logstore.errors import CatalogError, CorruptLog, UnknownMessage
from logstore.inspect import Inspection, Reader, RecordType, read_catalog
from logstore.inspect.place_states import place_states
from logstore.terminal.meaning import meaning
from logstore.terminal.options import LSN, catalog_options, json_option, store_argument
from logstore.terminal.output import Failure, iso_time, one_line, print_json, progress
from logstore.terminal.place_states import own_text, standing_text, state_document
from logstore.terminal.queue_names import queue_names
from logstore.terminal.records import bodies_option, log_records, record_document, record_line
from logstore.terminal.state import retried

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from logstore.codec.records import Record


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
    """Print all records of one message or transaction.

    They come in order, and then where it is now. ID is its persistence ID, decimal, or hexadecimal with 0x. Copies and
    relocated states are among the records; the last complete relocation supersedes the records before it. Records that
    replace counts and times of places are shown with the rows of this message only. The operations of a transaction
    are printed, too. A MEMBERS of a replicated log has a chain as well.
    """
    records: list[dict[str, Any]] = []
    operations: list[dict[str, Any]] = []
    names = queue_names(store_dir, connect, schema)
    members = False
    for record, time_us in log_records(store_dir, id, lambda reader: _timed(reader, id)):
        own = record.id == id or isinstance(record.body, PlaceStates)
        members = members or (own and record.type is RecordType.MEMBERS)
        text = meaning(record, names)
        if as_json:
            more = {"time": iso_time(time_us), "meaning": text}
            (records if own else operations).append(record_document(record, bodies) | more)
            continue
        (records if own else operations).append({})
        text = text if own else f"an operation of message {record.id}: {text}"
        sys.stdout.write(record_line(record, bodies, names) + "\n")
        sys.stdout.write(f"{'':12} {time_text(time_us)}{': ' if text else ''}{one_line(text)}\n")
    if not records:
        raise Failure(
            f"{store_dir}: no record in the log belongs to {id}: it is no message or transaction, or was removed before"
        )
    now = retried(store_dir, lambda: _members_now(store_dir, id) if members else _now(store_dir, id, connect, schema))
    if as_json:
        found = {"store": str(store_dir), "id": id, "records": records, "operations": operations, "now": now}
        print_json(found)
    else:
        sys.stdout.write(f"now: {one_line(_now_text(now))}\n")


def _timed(reader: Reader, id: int) -> Iterator[tuple[Record, int]]:  # noqa: A002 - as the command names it
    """The records of the chain, each with the time of its batch; of the rows of a PLACE_STATES those of the message."""
    for record in reader.naming(id):
        if isinstance(record.body, PlaceStates):
            body = PlaceStates(tuple(row for row in record.body.rows if row.id == id))
            yield replace(record, body=body), reader.batch_time_us
        else:
            yield record, reader.batch_time_us


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
        queues = [
            {"id": place.queue_id, "name": names.get(place.queue_id), "locked": place.locked}
            | state_document(state, hidden=place.hidden, expired=place.expired)
            | {"text": f"{standing_text(state, hidden=place.hidden, expired=place.expired)}{own_text(state)}"}
            for place, state in zip(places, place_states(found, places), strict=True)
        ]
    return {"state": "live", "lsn": lsn, "moved": lsn != id, "queues": queues}


def _members_now(store_dir: Path, id: int) -> dict[str, Any]:  # noqa: A002 - as the command names it
    """As :func:`_now`: the newest MEMBERS of a replicated log lives."""
    newest: Record | None = None
    with Reader(store_dir, from_lsn=id) as reader:
        for record in reader.records():
            newest = record if record.type is RecordType.MEMBERS else newest
        if newest is None or newest.id != id or reader.info.index == 0:
            return {"state": "over"}
    return {"state": "members", "lsn": newest.lsn, "moved": newest.lsn != id}


def _now_text(now: dict[str, Any]) -> str:
    if now["state"] == "unknown":
        return f"unknown, because the log cannot be replayed: {now['why']}"
    if now["state"] == "over":
        return "over: none of its records is needed"
    if now["state"] == "members":
        return f"the members of the log, {_place(now)}"
    if now["state"] != "live":
        return f"a transaction without an outcome, {now['state']}, held by its record at LSN {now['lsn']}"
    on = ", ".join(_on(one) for one in now["queues"])
    return f"live, {_place(now)}, on {on or 'no queue'}"


def _on(queue: dict[str, Any]) -> str:
    """A queue, and what the place there has and how it stands, in brackets."""
    told = f"{', locked by a transaction' if queue['locked'] else ''}{queue['text']}"[2:]
    return f"{queue['name'] or 'queue ' + str(queue['id'])}{f' ({told})' if told else ''}"


def _place(now: dict[str, Any]) -> str:
    return f"{'relocated to' if now['moved'] else 'not relocated, at'} LSN {now['lsn']}"
