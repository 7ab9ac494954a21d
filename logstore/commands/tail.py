"""``logstore tail``: what holds the base of a log, who owns it, what would free it, and a picture of all segments."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from logstore.core.counts import counted
from logstore.errors import StoreLocked
from logstore.holds import list_holds
from logstore.inspect import Inspection, read_catalog
from logstore.store import control
from logstore.store.base_holders import HOLDERS, HOLDERS_MAX, read_tail
from logstore.store.fullness import inspected_fullness
from logstore.terminal.changing import ask
from logstore.terminal.options import Amount, catalog_options, json_option, store_argument
from logstore.terminal.output import (
    age_text,
    lines_that_fit,
    note_lines,
    output_width,
    print_json,
    print_lines,
    shown_table,
    size_text,
)
from logstore.terminal.queue_names import nameless_text
from logstore.terminal.state import full_from_log, full_lines, held_bytes, limit_in, retried
from logstore.terminal.tables import folded_lines, printable
from logstore.terminal.watching import watch as watched

if TYPE_CHECKING:
    from pathlib import Path

CELLS_MAX = 72 * 6  # in the picture; in a longer log one cell stands for several segments
ROW_CELLS = 72
LETTERS = {"held": "h", "dead": ".", "mixed": "-", "live": "#", "moved": "r", "current": ">", "spare": "_"}
BLOCKS = {"held": "▒", "dead": "·", "mixed": "▄", "live": "█", "moved": "▓", "current": "▶", "spare": "○"}
COLOURS = {"held": 35, "dead": 90, "mixed": 33, "live": 32, "moved": 36, "current": 1, "spare": 34}  # ANSI
MEANING = {
    "held": "kept by a hold",
    "dead": "dead",
    "mixed": "live in part",
    "live": "live (half or more)",
    "moved": "relocated (most of the live bytes)",
    "current": "current",
    "spare": "spare",
}


@click.command()
@store_argument
@click.option(
    "--watch",
    type=Amount(0.1, 86_400),
    is_flag=False,
    flag_value=2.0,
    default=None,
    metavar="[SECONDS]",
    help="Repeat every SECONDS (default 2) until Ctrl-C; with --json one line each time.",
)
@click.option(
    "--limit",
    type=click.IntRange(0, HOLDERS_MAX),
    default=HOLDERS,
    show_default=True,
    help="The most messages and transactions holding the base to list.",
)
@json_option
@catalog_options
def tail(
    store_dir: Path, watch: float | None, limit: int, as_json: bool, connect: str | None, schema: str | None
) -> None:
    """Show what holds the tail of the log, and what would free it.

    A running broker is asked, and names consumers, too. Otherwise, or if it does not answer, the log is read.
    """

    def look() -> dict[str, Any]:
        return {"store": str(store_dir), **read(store_dir, limit, connect, schema)}

    if watch is None:
        show(look(), as_json=as_json)
        return
    fancy = is_fancy()  # the display replaces sys.stdout
    watched(
        lambda: show(look(), as_json=as_json),
        lambda width, height: lines_that_fit(lines_of(look(), fancy=fancy), width, height),
        watch,
        as_json=as_json,
    )


def read(store_dir: Path, limit: int, connect: str | None, schema: str | None) -> dict[str, Any]:
    """The tail as the broker reports it, or from the log; ``problem`` is why a broker was not heard."""
    problem = None
    if control.is_served(store_dir):
        try:
            found = ask(store_dir, "tail", {"limit": limit}, sign_of_life_s=control.SIGN_OF_LIFE_S)
            return {"through": "broker", "problem": None, **found}
        except StoreLocked as error:
            problem = f"this is read from the log, without the broker: {error.message}"

    def look() -> dict[str, Any]:
        with Inspection(store_dir) as found:
            found.read()
            catalog = read_catalog(store_dir, found.info, connect=connect, schema=schema)
            names = {queue.id: queue.name for queue in catalog.queues}
            report = read_tail(found.handle, names, list_holds(store_dir), limit)
            transient = catalog.transient
            document = report.as_dict()
            for queue in document["holding_queues"]:
                queue["transient"] = queue["queue"] is None and queue["queue_id"] in transient
            document |= {"log_bytes": found.info.log_bytes, "spares": found.info.spares}
            stored = limit_in(catalog)
            size = None if stored is None else stored.max_log_bytes
            fullness = inspected_fullness(found.handle, store_dir, size, held_bytes(store_dir))
            queues = {one.id: one for one in found.queues()}
            full = full_from_log(fullness, store_dir, queues, catalog)
            return {"through": "log", "problem": problem, "full": full, **document}

    return retried(store_dir, look)


def show(document: dict[str, Any], *, as_json: bool) -> None:
    """Prints it once."""
    if as_json:
        print_json(document)
    else:
        print_lines(lines_of(document, fancy=is_fancy()))


def lines_of(document: dict[str, Any], *, fancy: bool) -> list[str]:
    """The tail for people, as wide as the output."""
    width = output_width()
    parts = [note_lines(document.get("problem"), width)]
    parts.append([piece for line in facts(document) for piece in folded_lines(line, width)])
    drawn = picture(document, fancy=fancy)
    parts.append([coloured(line, styles) if fancy else line for line, styles in drawn])
    queues = queue_rows(document)
    if queues:
        names = ("queue", "messages", "bytes", "age of the oldest")
        parts.append(shown_table(names, queues, right=names[1:]))
    rows = holder_rows(document)
    if rows:
        names_xid = any(one["xid"] or any(place["xid"] for place in one["places"]) for one in document["holders"])
        whole = ("what would free it",) if names_xid else ()
        columns = ("holder", "id", "LSN", "needs", "age", "what would free it")
        parts.append(shown_table(columns, rows, right=("id", "LSN"), whole=whole))
    parts.append(_hold_lines(document["holds"]))
    return [line for part in parts if part for line in (*part, "")][:-1]


def _hold_lines(holds: list[dict[str, Any]]) -> list[str]:
    lines = []
    for hold in holds:
        process = "" if hold["pid"] is None else f" of process {hold['pid']}"
        kept = size_text(hold["kept_bytes"])
        lines.append(f"hold '{printable(hold['name'])}'{process} ({hold['state']}): keeps {kept}")
    return lines


def facts(document: dict[str, Any]) -> list[str]:
    """The lines above the picture."""
    compaction = document["compaction"]
    holding = document["holding_messages"] + document["holding_transactions"]
    copied = size_text(compaction["copied_bytes"])
    lines = [
        *full_lines(document.get("full"), output_width()),
        f"base {document['base_lsn']}, lowest LSN in need {document['needed_lsn']}, end {document['next_lsn']}",
        f"log {size_text(document['log_bytes'])}, of which {size_text(document['live_bytes'])} live",
        f"the oldest segment is needed by {counted(document['holding_messages'], 'message')} and "
        f"{counted(document['holding_transactions'], 'transaction')}, {size_text(document['holding_bytes'])} in it"
        if holding
        else "nothing holds the base",
        f"compacting would leave {size_text(compaction['bytes_after'])}, copying {copied}"
        if compaction["shrinks"]
        else "compacting would not make the log smaller",
    ]
    if document["will_move"]:
        lines.append("the log has more files than wanted: the writer will relocate what holds the base")
    return lines


def queue_rows(document: dict[str, Any]) -> list[tuple[object, ...]]:
    """One row for each queue whose messages hold the base; none from a broker that does not say."""
    is_partial = document["holding_messages"] + document["holding_transactions"] > HOLDERS_MAX
    rows: list[tuple[object, ...]] = []
    for queue in document.get("holding_queues", ()):
        name = f"{queue['queue_id']} {nameless_text(queue)}" if queue["queue"] is None else queue["queue"]
        more = " or more" if is_partial else ""
        rows.append((name, f"{queue['messages']}{more}", f"{queue['bytes']}{more}", _age(queue, "oldest_age_s")))
    return rows


def _age(row: dict[str, Any], key: str) -> str:
    age = "unknown" if row[key] is None else age_text(row[key])
    return f"{age} or more" if row["at_least"] else age


def holder_rows(document: dict[str, Any]) -> list[tuple[object, ...]]:
    """One row for each message or transaction that holds the base."""
    rows: list[tuple[object, ...]] = []
    for holder in document["holders"]:
        size, age = counted(holder["bytes"], "byte"), _age(holder, "age_s")
        rows.append((holder["kind"], holder["id"], holder["lsn"], size, age, printable(holder["remedy"])))
    return rows


# ---- The picture


def is_fancy() -> bool:
    """Whether the output is a terminal that can show UTF-8."""
    return sys.stdout.isatty() and (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"


def kind_of(segments: list[dict[str, Any]], segment_size: int, lowest_hold: int | None) -> str:
    """The kind of one cell, which stands for one segment, or several if the log is long."""
    states = {segment["state"] for segment in segments}
    if "current" in states:
        return "current"
    if states == {"spare"}:
        return "spare"
    if states == {"dead"}:
        is_held = lowest_hold is not None and any(segment["end_lsn"] > lowest_hold for segment in segments)
        return "held" if is_held else "dead"
    live = sum(segment["live_bytes"] for segment in segments)
    moved = sum(segment["relocated_bytes"] for segment in segments)
    if live == 0:
        return "dead"
    if 2 * moved > live:
        return "moved"
    return "live" if 2 * live >= segment_size * len(segments) else "mixed"


def picture(document: dict[str, Any], *, fancy: bool) -> list[tuple[str, list[str]]]:
    """Lines of cells, the oldest first, each with the kinds of its cells; then the legend."""
    spare = {"state": "spare", "live_bytes": 0, "relocated_bytes": 0, "end_lsn": 0}
    segments = [*document["segments"], *([spare] * document["spares"])]
    signs = BLOCKS if fancy else LETTERS
    holds = [hold["lsn"] for hold in document["holds"] if hold["state"] == "honoured"]
    lowest = min(holds, default=None)
    fold = -(-len(segments) // CELLS_MAX) if segments else 1
    groups = [segments[at : at + fold] for at in range(0, len(segments), fold)]
    kinds = [kind_of(group, document["segment_size"], lowest) for group in groups]
    behind = sum(segment["state"] == "dead" for segment in segments)
    lines: list[tuple[str, list[str]]] = []
    for at in range(0, len(kinds), ROW_CELLS):
        row = kinds[at : at + ROW_CELLS]
        lines.append(("".join(signs[kind] for kind in row), row))
        if at <= behind // fold < at + ROW_CELLS:
            lines.append((" " * (behind // fold - at) + "^ base", []))
    legend = "  ".join(f"{signs[kind]} {MEANING[kind]}" for kind in signs if kind in kinds)
    cell = f"{size_text(document['segment_size'])} each" if fold == 1 else f"{counted(fold, 'segment')} each"
    return [*lines, (legend, []), (cell, [])]


def coloured(line: str, kinds: list[str]) -> str:
    """The cells of a line in their colours."""
    if not kinds:
        return line
    return "".join(f"\x1b[{COLOURS[kind]}m{sign}\x1b[0m" for sign, kind in zip(line, kinds, strict=True))
