"""``logstore info`` and ``logstore queues``: facts about a store, and the messages on its queues."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

import click

from logstore.codec.files import FORMAT_VERSION
from logstore.codec.records import LSN_LIMIT
from logstore.commands.changing import ask
from logstore.commands.options import catalog_options, json_option, store_argument
from logstore.commands.output import (
    fact_name,
    note_lines,
    one_line,
    output_width,
    print_facts,
    print_json,
    print_table,
    size_text,
)
from logstore.commands.sampling import asked
from logstore.commands.state import State, full_from_log, full_lines, held_bytes, limit_in, read_state, retried
from logstore.core.directory import with_directory
from logstore.errors import CorruptLog, StoreError
from logstore.holds import list_holds
from logstore.inspect import Oldest, QueueLife, Reader, read_catalog
from logstore.inspect.refusals import refusals
from logstore.store import control

if TYPE_CHECKING:
    from pathlib import Path

_OF_BROKER = ("unacknowledged", "unreadable", "consumers")  # what only a broker knows of a queue
STATES = {
    "live": "open in a writer",
    "closed": "closed cleanly",
    "crashed": "not closed: the next open recovers it",
}


@click.command()
@store_argument
@json_option
@catalog_options
def info(store_dir: Path, as_json: bool, connect: str | None, schema: str | None) -> None:
    """Show the state, positions, sizes and counts of a store."""
    oldest = retried(lambda: _oldest(store_dir))
    state = read_state(store_dir, connect=connect, schema=schema)
    document = {"store": str(store_dir), "full": why_full(store_dir, state)} | describe(store_dir, state, oldest)
    document["open_refused"] = refusals(store_dir, connect=connect, schema=schema)
    if as_json:
        print_json(document)
        return
    shown: dict[str, Any] = document | {"state": STATES[document["state"]]}
    for line in full_lines(shown.pop("full"), output_width()):
        click.echo(line)
    refused = shown.pop("open_refused")
    whole = shown.pop("from_beginning")
    if oldest is not None:
        shown["oldest_lsn"] = f"{oldest.lsn} ({'the beginning' if whole else 'the log below it was recycled'})"
        shown["oldest_time"] = f"{oldest.time:%Y-%m-%d %H:%M:%S} UTC"
    if shown["checkpoint_lsn"] is None:
        shown["checkpoint_lsn"] = "none is used"
    else:  # the log below the checkpoint was not read
        shown = {f"{name} since it" if name in ("batches", "records") else name: shown[name] for name in shown}
    set_at = shown.pop("max_log_bytes_set")
    limit = shown["max_log_bytes"]
    if limit is None:
        shown["max_log_bytes"] = "none"
    else:
        when = set_at[:19].replace("T", " ")
        shown["max_log_bytes"] = f"{size_text(limit)}, set at the open of {when} UTC"
    for name in ("segment_size", "log_bytes", "held_bytes"):
        shown[name] = size_text(shown[name])
    print_facts((fact_name(name), value) for name, value in shown.items())
    for text in refused:
        click.echo(f"an open is refused: {one_line(text)}")


def why_full(store_dir: Path, state: State) -> dict[str, Any] | None:
    """The key ``full``: as a running broker says, or else as the log does."""
    if state.info.live:
        with contextlib.suppress(StoreError):
            full: dict[str, Any] | None = ask(store_dir, "fullness", {}, sign_of_life_s=control.SIGN_OF_LIFE_S)["full"]
            return full
    return full_from_log(state.fullness, store_dir, state.queues, state.catalog)


def _oldest(store_dir: Path) -> Oldest | None:
    with Reader(store_dir) as reader:
        return reader.oldest()


def describe(store_dir: Path, state: State, oldest: Oldest | None) -> dict[str, Any]:
    """The keys of ``info --json``, in the order of the output without --json."""
    found, recovery = state.info, state.recovery
    holds = [one for one in list_holds(store_dir) if one.honoured]
    limit = limit_in(state.catalog)
    return {
        "store": str(store_dir),
        "uuid": str(found.uuid),
        "format_version": FORMAT_VERSION,
        "state": found.state,
        "segment_size": found.segment_size,
        "oldest_lsn": None if oldest is None else oldest.lsn,
        "oldest_time": None if oldest is None else oldest.time.isoformat(),
        "from_beginning": None if oldest is None else oldest.from_beginning,
        "base_lsn": found.base_lsn,
        "durable_lsn": found.durable_lsn,
        "end_lsn": found.end_lsn,
        "epoch": found.epoch,
        "segments": found.segments,
        "spares": found.spares,
        "log_bytes": found.log_bytes,
        "max_log_bytes": None if limit is None else limit.max_log_bytes,
        "max_log_bytes_set": None if limit is None else limit.set_at.isoformat(),
        "torn_bytes": found.torn_bytes,
        "checkpoint_lsn": recovery.checkpoint_lsn if recovery.checkpoint_used else None,
        "batches": recovery.batches,
        "records": recovery.records,
        "queues": len(state.catalog.queues),
        "messages": recovery.messages,
        "staged": state.staged,
        "places": recovery.places,
        "transactions": len(state.transactions),
        "in_doubt": sum(one.prepared for one in state.transactions),
        "holds": len(holds),
        "held_bytes": held_bytes(store_dir),
    }


@click.command()
@store_argument
@json_option
@catalog_options
def queues(store_dir: Path, as_json: bool, connect: str | None, schema: str | None) -> None:
    """List the queues and the number of messages on each.

    Depth counts all visible places, and locked counts those of them that a transaction without an outcome has
    dequeued. A queue without a name is being deleted. A running broker adds the queues that it keeps in memory, and for
    each queue the unacknowledged messages and the consumers.
    """
    sample, problem = asked(store_dir)
    try:
        rows = queue_rows(read_state(store_dir, connect=connect, schema=schema))
    except CorruptLog as error:
        if sample is None:
            raise
        rows = _rows_of_broker(store_dir, sample["queues"], connect, schema)
        problem = f"the bytes of the queues are unknown: {with_directory(error.message, store_dir)}"
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
    columns = ("id", "queue", "depth", "locked", *named, "bytes", *(key.replace("_", " ") for key in rare))
    print_table(
        columns,
        (
            (
                "" if row["id"] is None else row["id"],
                name_text(row),
                row["depth"],
                row["locked"],
                *(("-" if row[key] is None else row[key]) for key in (*known, "content_bytes")),
                *(_rare_text(row[key]) for key in rare),
            )
            for row in rows
        ),
        right=("id", "depth", "locked", *named, "bytes"),
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
        return "(being deleted)"
    return f"{row['name']}" if row["durable"] else f"{row['name']} (in memory)"


def with_broker(rows: list[dict[str, Any]], sampled: list[dict[str, Any]] | None) -> list[dict[str, Any]]:
    """The rows with what a broker knows: the keys are null where it was not asked, or does not have the queue yet."""
    by_id = {queue["id"]: queue for queue in sampled or ()}
    found = []
    for row in rows:
        queue = by_id.get(row["id"], {})
        found.append(row | {key: queue.get(key) for key in _OF_BROKER} | {"durable": True})
    in_memory = [queue for queue in sampled or () if not queue["durable"]]
    return found + [
        {
            **{key: queue[key] for key in ("id", "name", "depth", "locked")},
            "content_bytes": queue["bytes"],
            "dead_letter": None,
            "arguments": {},
            **{key: queue[key] for key in (*_OF_BROKER, "durable")},
        }
        for queue in sorted(in_memory, key=lambda queue: str(queue["name"]))
    ]


def _rows_of_broker(
    store_dir: Path, sampled: list[dict[str, Any]], connect: str | None, schema: str | None
) -> list[dict[str, Any]]:
    """The rows of the stored queues beside a broker whose log cannot be read: without bytes."""
    with Reader(store_dir, from_lsn=LSN_LIMIT - 1) as reader:
        catalog = read_catalog(store_dir, reader.info, connect=connect, schema=schema)
    by_id = {queue["id"]: queue for queue in sampled}
    return [
        {
            "id": queue.id,
            "name": queue.name,
            "depth": by_id[queue.id]["depth"],
            "locked": by_id[queue.id]["locked"],
            "content_bytes": None,
            "dead_letter": queue.dead_letter,
            "arguments": queue.arguments,
        }
        for queue in catalog.queues
        if queue.id in by_id
    ]


def queue_rows(state: State) -> list[dict[str, Any]]:
    """The queues of ``queues --json``: those of the catalog, and those that still have places in the log."""
    known = {queue.id: queue for queue in state.catalog.queues}
    counted = state.queues
    rows = []
    for queue_id in sorted(known.keys() | counted.keys()):
        queue, counts = known.get(queue_id), counted.get(queue_id, QueueLife(queue_id, False, 0, 0, 0))
        rows.append(
            {
                "id": queue_id,
                "name": None if queue is None else queue.name,
                "depth": counts.depth,
                "locked": counts.locked,
                "content_bytes": counts.content_bytes,
                "dead_letter": None if queue is None else queue.dead_letter,
                "arguments": {} if queue is None else queue.arguments,
            }
        )
    return rows
