"""``logstore in-doubt``: lists the prepared transactions that wait for an outcome, and gives them one by hand.

Listing reads the log, even while a writer runs, and changes nothing. An outcome is given by the broker, which is asked
through its control socket, or by opening the store.
"""

from __future__ import annotations

import time
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from logstore.core.counts import counted
from logstore.core.xid import Xid
from logstore.errors import UnknownXid
from logstore.store.outcomes import decide, unknown
from logstore.terminal.changing import BROKER, ask, change, plan, would_change
from logstore.terminal.directory_group import ListsByDefault
from logstore.terminal.options import XID, catalog_options, dry_run_option, json_option, naming, path_argument
from logstore.terminal.output import age_text, print_facts, print_json, print_table
from logstore.terminal.state import State, read_state

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from logstore.catalog.transient import TransientIds
    from logstore.inspect import OpenTransaction

DONE = {"commit": "committed", "rollback": "rolled back"}
# An xid may begin with a minus sign, which must not be taken for an option.
_XID_FIRST = {"ignore_unknown_options": True}


@click.group(name="in-doubt", cls=ListsByDefault, no_args_is_help=False)
@path_argument
@click.pass_context
def in_doubt(context: click.Context, store_dir: Path) -> None:
    """List prepared transactions, or give one its outcome.

    Without a verb it lists them. Their coordinator should give the outcome; do it here only if the coordinator is gone
    for good, and give all branches of the transaction the same outcome. Until then the dequeued messages are locked,
    and the published ones invisible.
    """
    context.obj = store_dir


@in_doubt.command(name="list")
@json_option
@catalog_options
@click.pass_obj
def list_(store_dir: Path, as_json: bool, connect: str | None, schema: str | None) -> None:
    """List the transactions that wait for an outcome.

    Each is shown with its xid, the time since it was prepared, and the number of messages that it would add to (+) and
    take from (-) each queue.
    """
    with naming(store_dir):
        rows = in_doubt_rows(read_state(store_dir, connect=connect, schema=schema), time.time())
    if as_json:
        print_json({"store": str(store_dir), "in_doubt": rows})
        return
    if not rows:
        click.echo("no transaction is in doubt")
        return
    print_table(
        ("xid", "readable", "id", "state", "prepared", "age", "operations", "queues"),
        (
            (
                row["xid"],
                row["readable"],
                row["id"],
                row["state"],
                f"{row['prepared_at'][:19]} UTC" if row["prepared_at"] else "",
                "" if row["age_s"] is None else age_text(row["age_s"]),
                row["operations"],
                queues_text(row["queues"]),
            )
            for row in rows
        ),
        right=("id", "age", "operations"),
        whole=("xid",),
    )


def in_doubt_rows(state: State, now_s: float) -> list[dict[str, Any]]:
    """The transactions of ``list --json``, oldest first."""
    names = {queue.id: queue.name for queue in state.catalog.queues}
    prepared = [one for one in state.transactions if one.prepared]
    transient = state.catalog.transient
    return [_row(one, names, transient, now_s) for one in sorted(prepared, key=lambda one: (one.prepared_us, one.id))]


def _row(transaction: OpenTransaction, names: dict[int, str], transient: TransientIds, now_s: float) -> dict[str, Any]:
    assert transaction.xid is not None  # a prepare carries it
    since_s = transaction.prepared_us / 1e6
    return {
        "xid": str(transaction.xid),
        "readable": readable(transaction.xid),
        "id": transaction.id,
        "state": transaction.state,
        "prepared_us": transaction.prepared_us,
        "prepared_at": datetime.fromtimestamp(since_s, UTC).isoformat(" ", "seconds") if since_s else None,
        "age_s": round(max(now_s - since_s, 0), 3) if since_s else None,
        "operations": len(transaction.work),
        "queues": _queues(transaction, names, transient),
    }


def _queues(transaction: OpenTransaction, names: dict[int, str], transient: TransientIds) -> list[dict[str, Any]]:
    counted = Counter((one.queue_id, one.enqueues) for one in transaction.work)
    return [
        {
            "id": queue_id,
            "name": names.get(queue_id),
            "enqueues": counted[queue_id, True],
            "dequeues": counted[queue_id, False],
            "transient": queue_id not in names and queue_id in transient,
        }
        for queue_id in sorted({queue_id for queue_id, _ in counted})
    ]


def readable(xid: Xid) -> str:
    """The xid for people: parts that are text are shown as text."""
    parts = (part.decode("ascii") if part and _is_text(part) else part.hex() for part in (xid.gtrid, xid.bqual))
    return ":".join((str(xid.format_id), *parts))


def _is_text(part: bytes) -> bool:
    return part.isascii() and part.decode("ascii").isprintable()


def _queue_text(row: dict[str, Any]) -> str:
    if row["name"] is None:
        return "(transient queue)" if row.get("transient") else "(deleted queue)"
    return str(row["name"])


def queues_text(queues: Sequence[dict[str, Any]]) -> str:
    """The numbers of messages that would be added to and taken from each queue."""
    return ", ".join(
        " ".join(
            (
                _queue_text(row),
                *([f"+{row['enqueues']}"] if row["enqueues"] else []),
                *([f"-{row['dequeues']}"] if row["dequeues"] else []),
            )
        )
        for row in queues
    )


@in_doubt.command(context_settings=_XID_FIRST)
@click.argument("xid", type=XID)
@dry_run_option
@json_option
@catalog_options
@click.pass_obj
def commit(store_dir: Path, /, **options: Any) -> None:
    """Commit a transaction.

    Its published messages become visible, and its dequeued messages are removed. This cannot be undone.
    """
    with naming(store_dir):
        _give("commit", store_dir, **options)


@in_doubt.command(context_settings=_XID_FIRST)
@click.argument("xid", type=XID)
@dry_run_option
@json_option
@catalog_options
@click.pass_obj
def rollback(store_dir: Path, /, **options: Any) -> None:
    """Roll a transaction back.

    Its published messages are removed, and its dequeued messages return to their old places. This cannot be undone.
    """
    with naming(store_dir):
        _give("rollback", store_dir, **options)


def _give(outcome: str, store_dir: Path, xid: str, connect: str | None, schema: str | None, **options: Any) -> None:
    place: dict[str, Any] = {"connect": connect, "schema": schema}
    refused, exact = None, None
    with suppress(ValueError):
        exact = Xid.parse(xid)
    if exact is not None:
        try:
            _decide(outcome, store_dir, exact, **place, **options)
            return
        except UnknownXid as error:  # hexadecimal digits may be the text of a readable name, too
            refused = error
    _decide(outcome, store_dir, _named(store_dir, xid, refused, **place), **place, **options)


def _named(store_dir: Path, name: str, refused: UnknownXid | None, *, connect: str | None, schema: str | None) -> Xid:
    """The xid in doubt that ``list`` shows under this readable name.

    Raises ``UnknownXid``: ``refused``, if it is given and none has the name.
    """
    rows = in_doubt_rows(read_state(store_dir, connect=connect, schema=schema), time.time())
    found = [row["xid"] for row in rows if row["readable"] == name]
    if len(found) > 1:
        raise UnknownXid(f"more than one transaction in doubt is shown as {name}; give one of: {', '.join(found)}")
    if not found:
        raise refused or unknown(name, none_waits=not rows)
    return Xid.parse(found[0])


def _decide(
    outcome: str, store_dir: Path, xid: Xid, *, dry_run: bool, as_json: bool, connect: str | None, schema: str | None
) -> None:
    document: dict[str, Any] = {"store": str(store_dir), "xid": str(xid), "outcome": outcome, "dry_run": dry_run}

    def look() -> dict[str, Any]:
        return would_decide(store_dir, xid, connect=connect, schema=schema)

    planned = plan(store_dir, look, connect=connect, schema=schema)
    if dry_run and planned is None:
        ask(store_dir, "ping", {})  # before the xid is looked up, as the outcome itself would
        document |= {"through": BROKER, **look()}
    elif dry_run:
        document |= would_change(store_dir, f"in-doubt.{outcome}", {}, planned)
    else:
        document |= change(
            store_dir,
            f"in-doubt.{outcome}",
            {"xid": str(xid)},
            lambda store: decide(store, xid, outcome),
            connect=connect,
            schema=schema,
        )
    if as_json:
        print_json(document)
        return
    what = f"{counted(document['operations'], 'operation')} of transaction {document['id']}, xid {xid}"
    if dry_run:
        click.echo(f"would be {DONE[outcome]}: {what}")
        print_facts(_effects(outcome, document["queues"]))
    else:
        click.echo(f"{DONE[outcome]}: {what}")


def would_decide(store_dir: Path, xid: Xid, *, connect: str | None, schema: str | None) -> dict[str, Any]:
    """The transaction that an outcome would apply to. Raises ``UnknownXid``."""
    rows = in_doubt_rows(read_state(store_dir, connect=connect, schema=schema), time.time())
    for row in rows:
        if row["xid"] == str(xid):
            return {name: row[name] for name in ("id", "operations", "queues")}
    raise unknown(xid, none_waits=not rows)


def _effects(outcome: str, queues: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    """A line for each queue."""
    appear, go = ("would appear", "would go") if outcome == "commit" else ("would be forgotten", "would be unlocked")
    return [
        (
            _queue_text(row),
            ", ".join(f"{row[kind]} {verb}" for kind, verb in (("enqueues", appear), ("dequeues", go)) if row[kind]),
        )
        for row in queues
    ]
