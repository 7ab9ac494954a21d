"""``logstore stats``: what a store does now, from its broker, or what its log says without one."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from logstore.core.counts import counted
from logstore.store.statistics import COUNTERS, with_rates
from logstore.terminal.options import Amount, catalog_options, json_option, store_argument
from logstore.terminal.output import facts_lines, note_lines, output_width, print_json, size_text
from logstore.terminal.sampling import sample
from logstore.terminal.state import full_lines
from logstore.terminal.tables import table_lines
from logstore.terminal.watching import watch as watched

if TYPE_CHECKING:
    from pathlib import Path


@click.command()
@store_argument
@click.option("--watch", is_flag=True, help="Repeat until Ctrl-C, with rates; with --json one line each time.")
@click.option(
    "--every",
    "every_s",
    type=Amount(0.1, 86_400),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="The time between two samples of --watch.",
)
@json_option
@catalog_options
def stats(store_dir: Path, watch: bool, every_s: float, as_json: bool, connect: str | None, schema: str | None) -> None:
    """Show what a store does now: queues, log, forces, rates.

    With --watch it shows rates. A running broker is asked. Without one, or if it does not answer within some seconds,
    the log is read, which knows depths and sizes only. The deepest queues come first.
    """
    before: dict[str, Any] | None = None

    def look() -> dict[str, Any]:
        nonlocal before
        now = sample(store_dir, connect=connect, schema=schema)
        found, before = with_rates(now, before), now
        return found

    if not watch:
        show(look(), as_json=as_json)
        return
    watched(
        lambda: show(look(), as_json=as_json, is_repeated=True),
        lambda width, height: lines_of(look(), width, lines_max=height),
        every_s,
        as_json=as_json,
    )


def show(document: dict[str, Any], *, as_json: bool, is_repeated: bool = False) -> None:
    """Prints a sample once; with ``is_repeated`` an empty line ends it."""
    if as_json:
        print_json({name: value for name, value in document.items() if name != "clock_s"})
        return
    lines = [*lines_of(document, output_width()), *([""] if is_repeated else [])]
    sys.stdout.write("".join(f"{line}\n" for line in lines))


def lines_of(document: dict[str, Any], width: int, lines_max: int | None = None) -> list[str]:
    """A sample for people; with ``lines_max`` only the deepest queues that fit."""
    queues = sorted(document["queues"], key=lambda queue: (-queue["depth"], queue["name"]))
    head = [*full_lines(document["full"], width), *facts_lines(_facts(document), width)]
    head += note_lines(document["problem"], width)
    shown = queues if lines_max is None else queues[: max(lines_max - len(head) - 4, 1)]
    lines = [*head, "", *_queue_lines(document, shown, width)]
    if len(shown) < len(queues):
        lines.append(f"and {counted(len(queues) - len(shown), 'more queue')}, none of them deeper")
    return lines


def _facts(document: dict[str, Any]) -> list[tuple[str, str]]:
    log, broker, totals = document["log"], document["broker"], document["totals"]
    limit = "no limit" if log["max_bytes"] is None else f"limit {size_text(log['max_bytes'])}"
    facts = [
        ("time", f"{document['time'][:19].replace('T', ' ')} UTC"),
        ("state", _state(document)),
        ("log", f"{size_text(log['bytes'])}, of which {size_text(log['live_bytes'])} live; {limit}"),
    ]
    if log["held_bytes"]:
        facts.append(("held", f"{size_text(log['held_bytes'])}, kept only by holds"))
    if broker is not None:
        used, most = size_text(broker["memory_bytes"]), size_text(broker["memory_bytes_max"])
        overflow = broker.get("overflow_bytes", 0)  # an older broker has none
        facts += [
            ("clients", f"{counted(broker['connections'], 'connection')}, {counted(broker['channels'], 'channel')}"),
            ("memory", f"{used} of {most}" + (f", and {size_text(overflow)} in the log" if overflow else "")),
        ]
    facts.append(("messages", _messages(totals)))
    if document["forces"] is not None:
        facts.append(("forces", _forces(document["forces"])))
    if document["relocation"] is not None:
        moved = document["relocation"]
        failures = counted(moved["failures"], "failure") if moved["failures"] else "no failures"
        facts.append(
            ("relocation", f"{counted(moved['segments'], 'segment')}, {size_text(moved['bytes'])}; {failures}")
        )
        facts.append(("scrub", _scrub(document["scrub"])))
    facts += [("a thread has failed", text) for text in document["threads_failed"] or ()]
    return facts


def _state(document: dict[str, Any]) -> str:
    broker = document["broker"]
    if broker is not None:
        since = broker["started"][:19].replace("T", " ")
        return f"served by the broker of process {broker['pid']} (logstore {broker['version']}) since {since} UTC"
    said = {"live": "open in a writer", "closed": "closed cleanly", "crashed": "not closed: the next open recovers it"}
    return said[document["state"]]


def _messages(totals: dict[str, Any]) -> str:
    parts = [f"{totals['depth']} on queues, {totals['ready']} of them ready"]
    parts += [f"{totals[name]} {name}" for name in ("locked", "hidden", "expired") if totals[name]]
    if totals["unacknowledged"] is not None:
        parts.append(f"{totals['unacknowledged']} unacknowledged")
    if totals["unreadable"]:
        parts.append(f"{totals['unreadable']} unreadable and set aside (the broker's log says why)")
    for name in COUNTERS:
        rate = totals[f"{name}_per_s"]
        if rate is not None:
            parts.append(f"{rate:.1f} {name} per second")
        elif totals[name] is not None:
            parts.append(f"{totals[name]} {name}")
    return ", ".join(parts)


def _forces(forces: dict[str, Any]) -> str:
    mean = "" if forces["mean_us"] is None else f", {forces['mean_us'] / 1000:.2f} ms on average"
    rate = "" if forces["per_s"] is None else f", {forces['per_s']:.1f} per second"
    return f"{forces['count']}{rate}{mean}, at most {forces['took_us_max'] / 1000:.2f} ms"


def _scrub(scrub: dict[str, Any] | None) -> str:
    if scrub is None:
        return "not running"
    errors = f"{counted(scrub['errors'], 'error')}, the last: {scrub['last_error']}" if scrub["errors"] else "no errors"
    return f"{counted(scrub['rounds'], 'round')}, {size_text(scrub['bytes'])}, at LSN {scrub['position']}; {errors}"


def _queue_lines(document: dict[str, Any], queues: list[dict[str, Any]], width: int) -> list[str]:
    waiting = {name: name for name in ("hidden", "expired") if document["totals"][name]}
    if document["broker"] is None:
        keys = {"queue": "name", "depth": "depth", "ready": "ready", "locked": "locked", **waiting, "bytes": "bytes"}
    else:
        rates = document["seconds"] is not None
        keys = {"queue": "name", "depth": "depth", "ready": "ready", **waiting, "unacked": "unacknowledged"}
        keys |= {"unreadable": "unreadable"} if document["totals"]["unreadable"] else {}
        keys |= {"consumers": "consumers"}
        keys |= {f"{name}/s": f"{name}_per_s" for name in COUNTERS} if rates else {name: name for name in COUNTERS}
    rows = [[_cell(queue, key) for key in keys.values()] for queue in queues]
    return table_lines(list(keys), rows, width=width, right=list(keys)[1:])


def _cell(queue: dict[str, Any], key: str) -> str:
    value = queue[key]
    if value is None:
        return "-"
    if key == "name":
        return f"{value}" if queue["durable"] else f"{value} (in memory)"
    return f"{value:.1f}" if isinstance(value, float) else str(value)
