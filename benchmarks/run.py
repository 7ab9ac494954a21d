"""Measures all figures of the store in one run, next to a C loop and other stores on the same disk.

``make bench`` runs everything but the broker; with ``BENCH_ARGS=--quick`` a little of everything. Tables go to the
terminal; tables, pictures and ``results.json`` go to ``--out``. ``--report PAGE`` measures nothing: it writes the
tables of a run into that page, between its marks, and the pictures into the folder ``img`` next to it.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import peers
import plan
from builds import Build
from figures import conditions
from limits import BUILD, RawLoop
from report import write_page
from results import Results
from rich.console import Console
from slices import MODES, Span, loop_factory
from tables import every_table
from targets import Judge

# The suites, each with its function for one round.
SUITES = {
    "syncs": ("syncs", "run"),
    "grid": ("grid", "run"),
    "scaling": ("scaling", "run"),
    "growing": ("growing", "run"),
    "transactions": ("transactions", "run"),
    "processor": ("processor", "run"),
    "reads": ("reads", "run"),
    "recovery": ("opening", "run"),
    "start": ("opening", "run_start"),
    "logs": ("logs", "run"),
    "live": ("live", "run"),
    "bounds": ("live", "run_bounds"),
}
TABLE_WIDTH = 190
SHORT_OF = 0.99  # syncs for each durable unit; with fewer a store is not durable


def parsed(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line, checked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dir", type=Path, default=BUILD, help="directory of the stores, on the disk to be measured")
    parser.add_argument("--out", type=Path, default=BUILD / "latest", help="for results.json, tables and pictures")
    parser.add_argument("--quick", action="store_true", help="a little of everything; the figures must not be quoted")
    parser.add_argument("--before", type=Path, help="also measure the built package of this other checkout")
    parser.add_argument("--rounds", type=int, help=f"of everything ({plan.Plan().rounds})")
    parser.add_argument("--only", help=f"some suites, by comma: {', '.join(SUITES)}")
    parser.add_argument("--peers", help=f"some stores, by comma: {', '.join(peers.KNOWN)}")
    parser.add_argument("--sizes", help="only these content sizes of the grid, bytes, comma-separated")
    parser.add_argument(
        "--modes", help="some ways of the grid, by comma, as far as they begin so: " + "; ".join(m.name for m in MODES)
    )
    parser.add_argument("--recovery-messages", type=int, help="of 100 bytes, that are recovered (4 million)")
    parser.add_argument("--recovery-gib", type=float, help="of log with messages of 1 KiB, that is recovered (1)")
    parser.add_argument("--start-messages", type=int, help="live ones, with which a store is opened (1 million)")
    parser.add_argument("--report", type=Path, help="only write a run's tables into this page")
    parser.add_argument("--results", type=Path, help="the run for --report (OUT/results.json)")
    options = parser.parse_args(arguments)
    for name, known in (("only", tuple(SUITES)), ("peers", tuple(peers.KNOWN))):
        given = getattr(options, name)
        chosen = given.split(",") if given else list(known)
        if unknown := [one for one in chosen if one not in known]:
            parser.error(f"--{name}: there is no {', '.join(unknown)}; there are {', '.join(known)}")
        setattr(options, name, chosen)
    if options.sizes:
        try:
            options.sizes = [int(size) for size in options.sizes.split(",")]
        except ValueError:
            parser.error(f"--sizes: {options.sizes} is no list of whole numbers")
    if options.modes:
        options.modes = [mode for mode in MODES if mode.name.startswith(tuple(options.modes.split(",")))]
    if options.modes == [] or (options.sizes and min(options.sizes) < 1):
        parser.error("nothing is left to measure: look at --modes and --sizes")
    if "logstore" not in options.peers:
        parser.error("--peers: logstore is what is measured; name it too")
    options.builds = [Build()]
    if options.before is not None:
        try:
            options.builds = [Build(apart=True), Build.before(options.before)]
        except ValueError as problem:
            parser.error(f"--before: {problem}")
    if options.rounds is not None and options.rounds < 1:
        parser.error("--rounds is at least 1")
    return options


def planned(options: argparse.Namespace) -> plan.Plan:
    """The options' part of it."""
    made = plan.quick() if options.quick else plan.Plan()
    made.rounds = options.rounds or made.rounds
    if options.sizes:
        made.sizes = options.sizes
    if options.modes:
        made.modes = options.modes
    made.recovery_messages = options.recovery_messages or made.recovery_messages
    made.start_messages = options.start_messages or made.start_messages
    if options.recovery_gib:
        made.recovery_bytes = int(options.recovery_gib * (1 << 30))
    return made


def known_of(options: argparse.Namespace, made: plan.Plan, kinds: list[Any]) -> dict[str, Any]:
    """Under which conditions."""
    loop = loop_factory()
    return conditions(options.dir.resolve()) | {
        "stores": {kind.name: kind.version() for kind in kinds},
        "event_loop": "asyncio" if loop is None else loop.__module__,
        "rounds": made.rounds,
        "slice_seconds": made.seconds,
        "slice_max_bytes": made.max_bytes,
        "quick": made.is_quick,
    }


def syncs_a_second(directory: Path) -> int:
    """The speed of a C loop that rewrites 4 KiB, which shows other load on the machine."""
    with RawLoop(directory / "probe", 8 << 20, "zeros") as raw:
        return round(raw.ask(4096, 1, Span(0.2, 1 << 30))["messages_per_s"])


def measure(options: argparse.Namespace, console: Console) -> dict[str, Any]:
    """All requested results, as stored."""
    made = planned(options)
    kinds, missing = peers.available(options.peers)
    for line in missing:
        console.print(f"[bold red]benchmarks: {line}[/bold red]", highlight=False)
    options.dir.mkdir(parents=True, exist_ok=True)
    known = known_of(options, made, kinds)
    results = Results()
    took: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="bench-", dir=options.dir) as directory, console.status("") as status:
        known["syncs_a_second_at_start"] = syncs_a_second(Path(directory))
        context = plan.Context(made, kinds, results, Path(directory), status.update, known=known, builds=options.builds)
        for context.round_number in range(made.rounds):
            for suite in options.only:
                start = time.perf_counter()
                module, function = SUITES[suite]
                getattr(importlib.import_module(module), function)(context)
                seconds = time.perf_counter() - start
                took[suite] = took.get(suite, 0.0) + seconds
                console.print(f"[dim]round {context.round_number + 1}: {suite}, {seconds:.0f} s[/dim]", highlight=False)
        known["syncs_a_second_at_end"] = syncs_a_second(Path(directory))
    known |= {"load_at_end": os.getloadavg()[0], "not_measured": missing}
    known["seconds"] = {suite: round(seconds, 1) for suite, seconds in took.items()}
    counts: dict[str, dict[str, float]] = known.get("syncs", {})
    short = {name for name, count in counts.items() if min(count.values(), default=1.0) < SHORT_OF}
    verdicts = [verdict.as_dict() for verdict in Judge(results, short).judge()]
    return {"conditions": known, "rows": results.as_dict(), "targets": verdicts}


def tell(told: dict[str, Any], out: Path, console: Console) -> None:
    """Terminal, tables, pictures, JSON."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "results.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    for name, value in told["conditions"].items():
        if name == "syncs":  # a table of its own
            continue
        console.print(f"[dim]{name.replace('_', ' ')}:[/dim] {value}", highlight=False)
    with (out / "tables.txt").open("w", encoding="utf-8") as text:
        for each in (console, Console(file=text, width=TABLE_WIDTH)):
            for table in every_table(told):
                table.show(each)
    if importlib.util.find_spec("matplotlib") is None:
        console.print("[bold red]benchmarks: no pictures: matplotlib is not installed[/bold red]")
    else:
        from plots import draw

        draw(told, out)
    console.print(f"benchmarks: written into {out}", highlight=False)


def main() -> None:
    options = parsed()
    wide = Console().width if sys.stdout.isatty() else TABLE_WIDTH
    console = Console(width=max(wide, 120))
    if options.report is not None:
        write_page(options.report, options.results or options.out / "results.json")
        return
    tell(measure(options, console), options.out, console)


if __name__ == "__main__":
    main()
