"""``logstore info``: facts about a store."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import click

from logstore.codec.files import FORMAT_VERSION
from logstore.errors import StoreError
from logstore.holds import list_holds
from logstore.inspect import Oldest, Reader
from logstore.inspect.refusals import refusals
from logstore.store import control
from logstore.terminal.changing import ask
from logstore.terminal.options import catalog_options, json_option, store_argument
from logstore.terminal.output import (
    fact_name,
    one_line,
    output_width,
    print_facts,
    print_json,
    size_text,
)
from logstore.terminal.replication import NOT_RUNNING, replication, replication_text
from logstore.terminal.state import STATES, State, full_from_log, full_lines, held_bytes, limit_in, read_state, retried

if TYPE_CHECKING:
    from pathlib import Path


@click.command()
@store_argument
@json_option
@catalog_options
def info(store_dir: Path, as_json: bool, connect: str | None, schema: str | None) -> None:
    """Show the state, positions, sizes and counts of a store."""
    oldest = retried(store_dir, lambda: _oldest(store_dir))
    state = read_state(store_dir, connect=connect, schema=schema)
    document = {"store": str(store_dir), "full": why_full(store_dir, state)} | describe(store_dir, state, oldest)
    copy = retried(store_dir, lambda: replication(store_dir, state.info))
    document |= copy
    document["open_refused"] = refusals(store_dir, connect=connect, schema=schema)
    if as_json:
        print_json(document)
        return
    shown: dict[str, Any] = document | {"state": STATES[document["state"]]}
    for line in full_lines(shown.pop("full"), output_width()):
        click.echo(line)
    refused = shown.pop("open_refused")
    for name in copy:
        shown.pop(name)
    if copy and not state.info.live:
        shown["state"] = NOT_RUNNING
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
    for name in ("segment_size", "log_bytes", "transaction_bytes", "held_bytes"):
        shown[name] = size_text(shown[name])
    print_facts((fact_name(name), value) for name, value in shown.items())
    if copy:
        click.echo(f"replicated: {replication_text(copy)}")
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
        "transaction_bytes": state.fullness.transaction_bytes,
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
