"""``logstore recover``: opens a store, so that it is recovered, and reports the recovery; or reports what it would do.

A dry run takes no lock and writes nothing: it makes the same replay without opening the store.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from logstore.codec.records import LSN_LIMIT
from logstore.core.counts import counted
from logstore.core.lock_holder import store_locked
from logstore.errors import StoreError
from logstore.inspect import Reader
from logstore.inspect.refusals import check_single, refusals
from logstore.terminal.options import catalog_options, json_option, store_argument
from logstore.terminal.output import fact_name, fact_value, print_facts, print_json, size_text
from logstore.terminal.state import read_state

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from logstore.core.reports import Recovery

SIZES = frozenset({"bytes_read", "bytes_rewritten", "torn_bytes", "staged_bytes"})
NOT_KNOWN = frozenset({"created", "direct", "bytes_rewritten"})  # unknown in a dry run, like all times
SHOWN = 20  # lines of each list without --json

LISTS: dict[str, Callable[[dict[str, Any]], str]] = {
    "dropped_queues": lambda one: (
        f"dropped: {counted(one['places'], 'place')} on queue {one['id']}, which was "
        f"{'transient' if one['transient'] else 'deleted'}"
    ),
    "staged": lambda one: f"dropped: message {one['id']}, never enqueued, {counted(one['content_bytes'], 'byte')}",
    "abandoned": lambda one: (
        f"rolled back: transaction {one['id']}, {_named(one)}, {counted(one['operations'], 'operation')}"
    ),
    "in_doubt": lambda one: f"in doubt: transaction {one['id']}, {_named(one)}",
}


def _named(one: dict[str, Any]) -> str:
    return "local" if one["xid"] is None else f"xid {one['xid']}"


@click.command()
@store_argument
@click.option("--dry-run", is_flag=True, help="Change nothing; show what recovery would find and do.")
@json_option
@catalog_options
def recover(store_dir: Path, dry_run: bool, as_json: bool, connect: str | None, schema: str | None) -> None:
    """Recover a store and report what recovery found and did.

    The store is opened as a broker would open it, and closed cleanly. Transactions without an outcome are rolled
    back, prepared ones stay in doubt, and a torn tail is set aside.
    """
    run = would_find if dry_run else _recovered
    document = run(store_dir, connect=connect, schema=schema)
    if as_json:
        print_json(document)
        return
    _print(document)


def _print(document: dict[str, Any]) -> None:
    facts = {name: value for name, value in document.items() if name not in ("store", *LISTS)}
    if not facts["checkpoint_ignored"]:
        facts.pop("checkpoint_ignored")
    if not facts["checkpoint_used"]:
        facts["checkpoint_used"] = "no" if "checkpoint_ignored" in facts else "no: there is none"
        for name in ("checkpoint_lsn", "checkpoint_bytes", "checkpoint_us"):
            facts.pop(name, None)
    for name in SIZES & facts.keys():
        facts[name] = size_text(facts[name])
    for name in [name for name in facts if name.endswith("_us")]:
        facts[name.removesuffix("_us") + "_time"] = f"{facts.pop(name) / 1e6:.6f} s"
    print_facts((fact_name(name), fact_value(value)) for name, value in facts.items())
    for name, line in LISTS.items():
        for one in document[name][:SHOWN]:
            click.echo(line(one))
        if len(document[name]) > SHOWN:
            click.echo(f"... and {len(document[name]) - SHOWN} more; --json lists up to a thousand of each kind")


def _recovered(store_dir: Path, *, connect: str | None, schema: str | None) -> dict[str, Any]:
    import logstore

    is_store = (store_dir / "META").is_file()
    begun_lsn = _last_begun(store_dir)  # raises the specific error, as the dry run does
    # create=True only makes the LOCK file that a copied store may lack; no store is made here.
    with logstore.open(store_dir, create=is_store, connect=connect, catalog=schema) as store:
        in_doubt = [{"id": one.id, "xid": str(one.xid)} for one in sorted(store.in_doubt(), key=lambda one: one.id)]
        report = _report(store.recovery, begun_lsn)
    return {"store": str(store_dir), "dry_run": False, **report, "in_doubt": in_doubt}


def would_find(store_dir: Path, *, connect: str | None, schema: str | None) -> dict[str, Any]:
    """The part of the report that can be known without opening the store.

    Raises ``StoreLocked`` while a writer runs, because an open store needs no recovery and cannot be opened again.
    Raises ``StoreError`` if an open would be refused.
    """
    state = read_state(store_dir, connect=connect, schema=schema, as_opened=True)
    info = state.info
    if info.live:
        raise store_locked(store_dir)
    check_single(info)
    for refusal in refusals(store_dir, connect=connect, schema=schema):
        raise StoreError(refusal)
    full = _report(state.recovery, _last_begun(store_dir))
    report = {name: full[name] for name in full if name not in NOT_KNOWN and not name.endswith("_us")}
    report["epoch"] = info.epoch + 1
    in_doubt = [{"id": one.id, "xid": str(one.xid)} for one in state.transactions]
    return {"store": str(store_dir), "dry_run": True, **report, "in_doubt": in_doubt}


def _last_begun(store_dir: Path) -> int:
    """The LSN at which the last open of the store began to write."""
    with Reader(store_dir, from_lsn=LSN_LIMIT - 1) as reader:
        segments = reader.segments()
    return min((one.first_lsn for one in segments if one.epoch == segments[-1].epoch), default=0)


def _report(recovery: Recovery, begun_lsn: int) -> dict[str, Any]:
    """The report without the messages that an earlier open has dropped already: those staged before it began."""
    report = asdict(recovery)
    gone = [one for one in recovery.staged if one.id < begun_lsn]
    report["staged"] = [asdict(one) for one in recovery.staged if one.id >= begun_lsn]
    report["staged_dropped"] -= len(gone)
    report["staged_bytes"] -= sum(one.content_bytes for one in gone)
    for named, one in zip(report["abandoned"], recovery.abandoned, strict=True):
        named["xid"] = None if one.xid is None else str(one.xid)
    return report
