"""``logstore verify``: reads the whole log and checks its consistency.

It checks every checksum, batch, chain, reference and footer with the core, at the speed of the disk; the second decoder
and the second replay against the core's, on all of a small log and a sample of a large one; the files next to the log;
and whether the catalog belongs to the log.

A torn tail is not a problem: it is the rest of a write that was never acknowledged. Damage is a problem. The rest of a
segment after a damaged batch cannot be read, but the later segments are still checked, so that the extent is known.
"""

from __future__ import annotations

import sys
from contextlib import closing, suppress
from shlex import quote
from typing import TYPE_CHECKING, Any

import click

from logstore.core.counts import counted
from logstore.errors import CorruptLog
from logstore.terminal.options import SIZE, catalog_options, json_option, store_argument
from logstore.terminal.output import (
    fact_name,
    fact_value,
    one_line,
    print_facts,
    print_json,
    progress,
    range_text,
    size_text,
)
from logstore.terminal.replication import NOT_RUNNING, REPLICATION, replication, replication_text
from logstore.terminal.state import STATES, retried
from logstore.verify import Verification

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

RATE_MIN = 64 << 10
SHOWN = 50  # problems shown without --json


@click.command()
@store_argument
@click.option(
    "--thorough",
    is_flag=True,
    help="Compare the second decoder and replay with the core on every record, not on a sample; slow.",
)
@click.option(
    "--rate",
    type=SIZE,
    metavar="BYTES",
    help="Read at most BYTES per second, such as 20M, to spare a live system; a hold keeps the unread log.",
)
@click.option(
    "--direct", is_flag=True, help="Read from the disk itself, past the page cache, and leave the cache as it is."
)
@json_option
@catalog_options
def verify(
    store_dir: Path,
    thorough: bool,
    rate: int | None,
    direct: bool,
    as_json: bool,
    connect: str | None,
    schema: str | None,
) -> int:
    """Check the whole log, its files and the catalog.

    Exits 0 if all is well (also after a crash), 1 if anything is damaged or wrong, 3 if DIR is not a store or cannot
    be read.
    """
    if rate is not None and rate < RATE_MIN:
        raise click.UsageError(f"--rate is at least {RATE_MIN} bytes per second")

    def once() -> Verification:
        made = Verification(store_dir, thorough=thorough, rate=rate, direct=direct)
        with closing(made), progress("verifying", made.bytes_expected) as show:
            made.run(show, connect=connect, schema=schema)
        return made

    found = retried(store_dir, once)
    document = describe(store_dir, found)
    if as_json:
        print_json(document)
    else:
        _print(document, elsewhere=connect is not None or schema is not None)
    findings = found.findings
    if findings.count == 0:
        return 0
    sys.stdout.flush()
    more = f" (and {findings.count - 1} more)" if findings.count > 1 else ""
    click.echo(f"logstore: {store_dir}: {one_line(findings.problems[0].text)}{more}", err=True)
    return 1


def describe(store_dir: Path, found: Verification) -> dict[str, Any]:
    """The keys of ``verify --json``."""
    info, recovery, findings = found.info, found.recovery, found.findings
    document: dict[str, Any] = {
        "store": str(store_dir),
        "ok": findings.count == 0,
        "state": None if info is None else info.state,
        "uuid": None if info is None else str(info.uuid),
        "thorough": found.thorough,
        "base_lsn": None if info is None else info.base_lsn,
        "end_lsn": None if info is None else info.end_lsn,
        "copied": found.copied,
        "torn_lsn": found.torn_lsn,
        "torn_bytes": 0 if info is None else info.torn_bytes,
        "segments": found.segments,
        "footers": found.footers,
        "batches": found.batches,
        "records": found.records if info is not None else None,
        "bytes": found.bytes_read,
        "compared": found.compared,
        "checkpoint_lsn": found.checkpoint_lsn,
    }
    if recovery is not None:
        document |= {
            "messages": recovery.messages,
            "places": recovery.places,
            "in_doubt": found.in_doubt,
            "orphans": recovery.orphans,
        }
    if info is not None:
        with suppress(CorruptLog):  # already a finding
            document |= replication(store_dir, info)
    problems = [one._asdict() for one in findings.problems]
    return document | {
        "notes": findings.notes,
        "problem_count": findings.count,
        "problems": problems,
        "affected": found.affected,
        "next": f"logstore salvage {quote(str(store_dir))} NEW" if found.damaged else None,
    }


def _print(document: dict[str, Any], *, elsewhere: bool) -> None:
    facts = dict(document)
    problems, notes, affected = facts.pop("problems"), facts.pop("notes"), facts.pop("affected")
    salvaging = facts.pop("next")
    torn_lsn, torn_bytes = facts.pop("torn_lsn"), facts.pop("torn_bytes")
    copy = {name: facts.pop(name) for name in REPLICATION if name in facts}
    for name in ("ok", "store"):
        facts.pop(name)
    facts = {"bytes_read" if name == "bytes" else name: value for name, value in facts.items()}
    copied = facts.pop("copied")
    facts["state"] = (
        "a copy of a running store: the next open recovers it" if copied else STATES.get(facts["state"], facts["state"])
    )
    if copy and document["state"] != "live":
        facts["state"] = NOT_RUNNING
    facts["bytes_read"] = size_text(facts["bytes_read"])
    facts["problems"] = facts.pop("problem_count") or "none"
    print_facts((fact_name(name), fact_value(value)) for name, value in facts.items() if value is not None)
    if copied and document["ok"]:
        click.echo(f"the copy is consistent: it has everything that was durable below LSN {document['end_lsn']}")
    elif document["state"] == "crashed" and torn_bytes:
        click.echo(
            f"the log ended in a crash: {counted(torn_bytes, 'byte')} of a torn tail at LSN {torn_lsn} "
            f"{'is' if torn_bytes == 1 else 'are'} set aside, nothing acknowledged is in it"
        )
    elif document["state"] == "crashed" and document["ok"]:
        click.echo(f"the store was not closed, but no write was torn: the log is whole up to LSN {torn_lsn}")
    elif document["state"] == "live":
        done = "the log is sound" if document["ok"] else "checked"
        click.echo(f"a writer has the store open: {done} up to LSN {document['end_lsn']}, which was durable")
    if copy:
        click.echo(f"replicated: {replication_text(copy)}")
    for note in notes:
        click.echo(f"note: {one_line(note)}")
    for problem in problems[:SHOWN]:
        click.echo(f"{problem['kind']}: {one_line(problem['text'])}")
    if len(problems) > SHOWN:
        click.echo(f"... and {document['problem_count'] - SHOWN} more (--json has {len(problems)} of them)")
    if affected is not None:
        for line in _affected_lines(affected):
            click.echo(one_line(line))
    if salvaging is not None:
        same = " (with the same --connect and --catalog)" if elsewhere else ""
        closed = ", after the writer has closed the store" if document["state"] == "live" else ""
        text = f"{one_line(salvaging)}{same} copies what is readable into a new store{closed}; or restore a backup"
        click.echo(f"next: {text}")


def _affected_lines(told: dict[str, Any]) -> Iterable[str]:
    """What damage affects; at most ``SHOWN`` messages and transactions are named."""
    for one in told["messages"][:SHOWN]:
        names, qualifier = one["queues"] or one["queues_probable"], "" if one["queues"] else "perhaps "
        on = f" {qualifier}on {', '.join(names)}" if names else ""
        yield f"affected: message {one['id']}{on}{'' if one['certain'] else ', perhaps'}: {one['why']}"
    if told["message_count"] > SHOWN:
        yield f"... and {counted(told['message_count'] - SHOWN, 'more message')}"
    for one in told["queues"]:
        yield f"affected: queue {one['name']}, lost messages: {range_text(one['lost'])}"
    for xid in told["transactions"][:SHOWN]:
        yield f"affected: transaction {xid}"
    if told["records_unknown"]:
        records, size = told["records_unknown"], told["bytes_unreadable"]
        yield (
            f"affected: {counted(size, 'unreadable byte')}, with at least {counted(records, 'record')} that "
            "nothing names"
        )
    if told["lost_messages"]["most"] is None and told["beside_writer"]:
        yield "affected: how many messages a salvage would lose is known after the writer has closed the store"
    elif told["lost_messages"]["most"] != 0:
        yield f"affected: messages that a salvage would lose: {range_text(told['lost_messages'])}"
    elif not any(told[name] for name in ("message_count", "transactions", "records_unknown", "doubtful_count")):
        yield "affected: no message; a salvage would keep all of them"
