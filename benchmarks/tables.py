"""The tables: made once, shown on a terminal or written as Markdown."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from figures import readable, size_name
from results import Results
from rich.markup import escape
from rich.table import Table as RichTable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from results import Row
    from rich.console import Console


@dataclass
class Table:
    """A title, headings and cells; what a cell refers to by number stands below."""

    title: str
    headings: list[str]
    rows: list[list[str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    left: int = 1  # the number of columns with text

    def note(self, text: str) -> str:
        """The mark of a note."""
        if text not in self.notes:
            self.notes.append(text)
        return f"({self.notes.index(text) + 1})"

    def show(self, console: Console) -> None:
        made = RichTable(title=escape(self.title), title_justify="left")
        for number, heading in enumerate(self.headings):
            made.add_column(escape(heading), justify="left" if number < self.left else "right")
        for row in self.rows:
            made.add_row(*map(escape, row))
        console.print(made)
        for number, note in enumerate(self.notes):
            console.print(f"[dim]({number + 1}) {escape(note)}[/dim]", highlight=False)

    def markdown(self) -> list[str]:
        lines = [f"**{self.title}**", "", _line(self.headings)]
        lines.append(_line(["---" if number < self.left else "---:" for number in range(len(self.headings))]))
        lines += [_line(row) for row in self.rows]
        if self.notes:
            lines += ["", " ".join(f"({number + 1}) {note}." for number, note in enumerate(self.notes))]
        return [*lines, ""]


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def rate(row: Row) -> str:
    """The median and half the width of the middle half, in per cent of it."""
    lower, upper = row.spread
    share = (upper - lower) / 2 / row.median * 100 if row.median else 0.0
    return f"{short(row.median)} ±{share:.0f} %"


def short(value: float) -> str:
    """Three digits or so."""
    for factor, name in ((1e6, " M"), (1e3, " k")):
        if value >= factor:
            scaled = value / factor
            return f"{scaled:.0f}{name}" if scaled >= 100 else f"{scaled:.3g}{name}"
    return f"{value:.3g}"


def cell(table: Table, row: Row | None) -> str:
    """A figure, or the reason why there is none."""
    if row is None:
        return ""
    if row.samples:
        made = row.notes.get("segments made while the clock ran", 0)
        mark = table.note("segments had to be made while the clock ran") if made else ""
        return f"{rate(row)} {mark}".strip()
    return table.note(row.reason or "not measured")


def grid_tables(results: Results, synced: dict[str, str]) -> list[Table]:
    """A table for each work and size: a line for each store, with its sync mode and its counted syncs."""
    rows = results.of("grid")
    tables = []
    for work in dict.fromkeys(row.work for row in rows):
        for size in dict.fromkeys(row.content_bytes for row in rows):
            some = [row for row in rows if (row.work, row.content_bytes) == (work, size)]
            modes = list(dict.fromkeys(row.mode for row in some))
            table = Table(
                f"{work}: messages/s, {size_name(size)} ({size} bytes) each",
                ["store", "sync", "syncs a unit", *modes],
                left=2,
            )
            for engine in dict.fromkeys(row.engine for row in some):
                found = {row.mode: row for row in some if row.engine == engine}
                if work != "publish" and not any(row.samples for row in found.values()):
                    continue  # the limit of publishing
                cells = [cell(table, found.get(mode)) for mode in modes]
                sync = next(iter(found.values())).sync
                table.rows.append([engine, sync, synced.get(engine, "?"), *cells])
            tables.append(table)
    return tables


def suite_table(results: Results, suite: str, title: str) -> Table:
    """Any other suite: a line for each row."""
    table = Table(title, ["work", "how", "store", "content", "sync", "median", "quartiles", "unit"], left=5)
    for row in results.of(suite):
        if row.samples:
            quartiles = "–".join(map(readable, row.spread))
            figures = [readable(row.median), quartiles, row.unit]
        else:
            figures = [table.note(row.reason or "not measured"), "", ""]
        table.rows.append([row.work, row.mode, row.engine, size_name(row.content_bytes), row.sync, *figures])
    return table


def verdict_table(verdicts: list[dict[str, Any]]) -> Table:
    """Met or missed."""
    table = Table("Targets", ["work", "against", "median", "min–max", "target", ""], left=2)
    for v in verdicts:
        sign = "≥" if v["at_least"] else "≤"
        spread = f"{min(v['samples']):.2f}–{max(v['samples']):.2f}"
        target = f"{sign} {v['target']:g} {v['unit']}"
        word = "met" if v["met"] else "MISSED"
        table.rows.append([v["work"], v["against"], f"{v['median']:.2f}", spread, target, word])
    return table


TITLES = {
    "scaling": "Many waiters beside one, each message durable",
    "growing": "Into files that grow: two segments at the start, nothing consumed",
    "transactions": "Local transactions: half of the operations put, half take",
    "processor": "Processor time of single calls from Python",
    "reads": "Contents read, from the page cache",
    "recovery": "Opening after a kill, beside reading and hashing the same files",
    "start": "Opening with a checkpoint",
    "logs": "One log against two: messages and their outcome, written in C",
    "live": "Processor time of the caller, by the number of live messages",
    "bounds": "Memory and write amplification",
}


def sync_table(counts: dict[str, dict[str, float]]) -> Table:
    """What strace counted."""
    works = list(dict.fromkeys(work for count in counts.values() for work in count))
    table = Table(
        "fsync, fdatasync and msync calls for each durable unit, one thread, counted by strace", ["store", *works]
    )
    for engine, count in counts.items():
        table.rows.append([engine, *(f"{count[work]:.2f}" if work in count else "" for work in works)])
    return table


def every_table(told: dict[str, Any]) -> list[Table]:
    """The tables of a stored run, in the order of the page."""
    results, counts = Results.from_dict(told["rows"]), told["conditions"].get("syncs", {})
    synced = {engine: f"{min(count.values()):.2g}" for engine, count in counts.items() if count}
    tables = [verdict_table(told["targets"])] if told["targets"] else []
    tables += [sync_table(counts)] if counts else []
    tables += grid_tables(results, synced)
    tables += [suite_table(results, suite, title) for suite, title in TITLES.items() if results.of(suite)]
    return tables
