"""Measures the log's size while old state stays and 20 GiB of messages pass, and the cost of keeping it small.

For each scenario of tail_traffic.py two stores are open: one with old state, and one without. They run slices in turn,
every second time in reverse order; a ratio is that of two adjacent slices. Another process adds up the first store's
segment files every 50 ms (allocated bytes, including spares, sparse files counted as full), and every sample since the
first relocation is compared with max(4 segments, 2 x live) + one segment. Old messages are read and compared the whole
time, and all of them at the end and after a restart.

``--csv`` and ``--svg`` store the samples: the largest of each step, with the live bytes, the bound, and the size that
the log would have without relocation (computed from what was appended, not measured).

A log has whole files. If 2 x live is above 4 segments and not a whole number of them, the policy
(csrc/log/space/file_needs.c) rounds up. So samples may exceed the bound by less than a segment; these are counted. More
than that is a failure.

Exit status: 1 if a sample exceeded its bound by a whole segment, or an old message changed.
"""

from __future__ import annotations

import argparse
import bisect
import csv
import json
import os
import shutil
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pictures
from figures import conditions, readable, spread
from rich.console import Console
from rich.table import Table
from tail_traffic import SCENARIOS, Judged, RandomSurvivors, Scenario, Traffic, judge, unmoved_bytes

import logstore
from logstore.bench.runner import bound_bytes
from logstore.bench.watch import EVERY_S, Watch

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "benchmarks"
MIB, GIB = 1 << 20, 1 << 30
STEPS = 250  # of each scenario in the CSV and the plot
BESIDE = 4  # the slices of the store without old state are this many times shorter
RATIO_TARGET = 0.8


class SteadySurvivors(RandomSurvivors):
    """The same with 5000 survivors at a time, each until half a million messages have passed it."""

    name = "1 % random survivors, 5000 at a time"
    most = 5000


ALL: dict[str, type[Scenario]] = dict(
    zip(("message", "transaction", "fan-out", "survivors", "steady"), (*SCENARIOS, SteadySurvivors), strict=True)
)


class Point(NamedTuple):
    """The largest sample of a step."""

    scenario: str
    seconds: float
    content_bytes: int
    log_bytes: int
    live_bytes: int
    bound_bytes: int
    unmoved_bytes: int


@dataclass
class Outcome:
    """Of one scenario."""

    name: str
    content_bytes: int = 0
    rates: list[float] = field(default_factory=list)  # content MB/s of its slices
    rates_beside: list[float] = field(default_factory=list)  # of the adjacent slices of the store without old state
    judged: Judged | None = None
    survivors: int = 0
    live_bytes: int = 0
    moved_per_byte: float = 0.0  # bytes relocated for each newly appended byte
    waits_for_spare: int = 0
    files_made: int = 0
    recovery_us: int = 0
    points: list[Point] = field(default_factory=list)

    @property
    def ratios(self) -> list[float]:
        return [a / b for a, b in zip(self.rates, self.rates_beside, strict=True)]


def run(directory: Path, kind: type[Scenario], content_bytes: int, segment_size: int, slices: int) -> Outcome:
    """The scenario and the store beside it."""
    paths = directory / "stays", directory / "beside"
    outcome = Outcome(kind.name)
    with (
        Watch(paths[0], EVERY_S) as watch,
        logstore.open(paths[0], segment_size=segment_size) as store,
        logstore.open(paths[1], segment_size=segment_size) as other,
    ):
        traffic, beside = Traffic(store, kind(store)), Traffic(other, Scenario(other))
        started = time.monotonic()
        share = content_bytes // slices

        def here() -> None:
            outcome.rates.append(share / traffic.pass_by(share) / 1e6)

        def there() -> None:
            outcome.rates_beside.append(share // BESIDE / beside.pass_by(share // BESIDE) / 1e6)

        for number in range(slices):
            for step in (here, there) if number % 2 == 0 else (there, here):
                step()
        traffic.scenario.look_at_all()
        traffic.scenario.check(store)
        native = store._stats_native()
    outcome.content_bytes = traffic.published
    outcome.survivors = len(traffic.scenario.kept)
    outcome.live_bytes = int(native.live_bytes)
    outcome.moved_per_byte = native.relocated_bytes / (native.appended_bytes - native.relocated_bytes)
    outcome.waits_for_spare, outcome.files_made = int(native.waits_for_spare), int(native.segments_created)
    outcome.judged = judge(watch.samples, traffic.marks, segment_size)
    outcome.points = points_of(kind.name, traffic, watch.samples, started, segment_size)
    with logstore.open(paths[0], create=False) as store:
        outcome.recovery_us = store.recovery.total_us
        traffic.scenario.store = store
        traffic.scenario.look_at_all()
        traffic.scenario.check(store)
    for path in paths:
        shutil.rmtree(path)
    return outcome


def points_of(
    name: str, traffic: Traffic, samples: Sequence[tuple[float, int]], started: float, segment_size: int
) -> list[Point]:
    """The largest sample of each step."""
    unmoved = unmoved_bytes(traffic.marks)
    moments = [mark.at_s for mark in traffic.marks]
    largest: dict[int, Point] = {}
    for at_s, size in samples:
        after = min(bisect.bisect_left(moments, at_s), len(moments) - 1)
        mark = traffic.marks[after]
        step = mark.content_bytes * STEPS // (traffic.published + 1)
        if step not in largest or size > largest[step].log_bytes:
            bound = bound_bytes(segment_size, mark.counted_bytes)
            known = at_s - started, mark.content_bytes, size, mark.counted_bytes, bound, unmoved[after]
            largest[step] = Point(name, *known)
    return [largest[step] for step in sorted(largest)]


# ---- output ----


def tell(console: Console, known: dict[str, Any], outcomes: Sequence[Outcome]) -> None:
    for name, value in known.items():
        console.print(f"[dim]{name.replace('_', ' ')}:[/dim] {value}", highlight=False)
    for one in outcomes:
        judged = one.judged or Judged(0, 0, 0, 0.0, 0, 0, 0.0)
        verdict = "met" if statistics.median(one.ratios) >= RATIO_TARGET else "missed"
        table = Table(title=one.name, title_justify="left", show_header=False)
        for name, value in (
            ("passed", f"{one.content_bytes / GIB:.2f} GiB of content"),
            ("samples since the first move", f"{judged.samples}, of them {judged.over} above the bound"),
            ("and in whole segments", f"{judged.over_whole} above it"),
            ("longest time between two", f"{judged.blind_s * 1e3:.0f} ms"),
            ("the worst", f"{judged.worst:.3f} of its bound, {judged.bound / MIB:.1f} MiB"),
            ("log at most", f"{judged.largest / MIB:.1f} MiB"),
            ("stays at the end", f"{one.survivors} messages; {one.live_bytes / MIB:.3f} MiB live"),
            ("moved", f"{one.moved_per_byte:.4f} bytes for each that was appended"),
            ("waits for a spare", f"{one.waits_for_spare}; {one.files_made} files made"),
            ("content MB/s", f"{readable(statistics.median(one.rates))} ({spread(one.rates)})"),
            ("where nothing stays", f"{readable(statistics.median(one.rates_beside))} ({spread(one.rates_beside)})"),
            ("ratio", f"{statistics.median(one.ratios):.2f} ({spread(one.ratios)}), {RATIO_TARGET} {verdict}"),
            ("recovery", f"{one.recovery_us / 1e3:.0f} ms"),
        ):
            table.add_row(name, value)
        console.print(table)


def write_csv(path: Path, outcomes: Sequence[Outcome]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(Point._fields)
        for one in outcomes:
            writer.writerows((point.scenario, f"{point.seconds:.2f}", *point[2:]) for point in one.points)


def read_csv(path: Path) -> list[list[Point]]:
    """By scenario, in order."""
    found: dict[str, list[Point]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            numbers = [int(row[name]) for name in Point._fields[2:]]
            found.setdefault(row["scenario"], []).append(Point(row["scenario"], float(row["seconds"]), *numbers))
    return list(found.values())


def draw(path: Path, series: Sequence[Sequence[Point]]) -> None:
    """One panel for each scenario: log bytes over the bytes that passed, with relocation and without."""
    try:
        import matplotlib as mpl
    except ModuleNotFoundError:
        raise SystemExit("tail_bound: the plot needs matplotlib: pip install '/path/to/checkout[bench]'") from None
    mpl.use("svg")
    mpl.rcParams |= {"svg.hashsalt": "logstore", "svg.fonttype": "none", "font.size": 9}
    from matplotlib import pyplot as plt

    columns = 2 if len(series) > 1 else 1
    rows = -(-len(series) // columns)
    figure, panels = plt.subplots(rows, columns, figsize=(5 * columns, 3 * rows), squeeze=False)
    for panel, points in zip(panels.flat, series, strict=False):
        passed = [point.content_bytes / GIB for point in points]
        panel.set_title(points[0].scenario)
        for name, what, style in (
            ("unmoved_bytes", "without relocation (computed)", {"color": "#b03030", "linestyle": "--"}),
            ("log_bytes", "on the disk, spares and all", {"color": "#4080c0", "linewidth": 2}),
            ("bound_bytes", "bound: max(4 segments, 2 × live) + 1 segment", {"color": "black", "linestyle": ":"}),
            ("live_bytes", "live", {"color": "#308030"}),
        ):
            panel.plot(passed, [max(getattr(point, name), 1) / MIB for point in points], label=what, **style)
        panel.set_yscale("log")
        panel.set_ylim(bottom=0.1)
        panel.grid(visible=True, alpha=0.3)
    for panel in panels[-1]:
        panel.set_xlabel("GiB of messages that passed")
    for row in panels:
        row[0].set_ylabel("MiB")
    for panel in panels.flat[len(series) :]:
        panel.set_visible(False)
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=2, frameon=False)
    figure.tight_layout(rect=(0, 0.4 / rows / 3, 1, 1))
    pictures.save(figure, path)


# ---- the run ----


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("scenarios", nargs="*", default=list(ALL), help=f"of {', '.join(ALL)} (all)")
    parser.add_argument("--dir", type=Path, default=BUILD, help="directory of the stores, on the disk to be measured")
    parser.add_argument("--gib", type=float, default=20.0, help="content that passes in each scenario (20)")
    parser.add_argument("--slices", type=int, default=20, help="pairs of slices (20)")
    parser.add_argument("--segment-size", type=int, default=16 * MIB, help="bytes (16 MiB)")
    parser.add_argument("--json", type=Path, help="also write everything but the samples into this file")
    parser.add_argument("--csv", type=Path, help="write the samples into this file")
    parser.add_argument("--svg", type=Path, help="draw them")
    parser.add_argument("--draw-only", nargs="+", type=Path, help="draw these CSV files and measure nothing")
    options = parser.parse_args()
    if options.draw_only:
        draw(options.svg, [points for each in options.draw_only for points in read_csv(each)])
        return
    if unknown := set(options.scenarios) - set(ALL):
        parser.error(f"there is no scenario {min(unknown)!r}")
    options.dir.mkdir(parents=True, exist_ok=True)
    known = conditions(options.dir.resolve()) | {
        "segment_bytes": options.segment_size,
        "content": f"{options.gib:g} GiB in messages of 1 KiB, 500 a batch: publish_many, dequeue_many, one wait",
        "durability": "strict",
    }
    console = Console()
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="tail-bound-", dir=options.dir) as made:
        for name in options.scenarios:
            with console.status(ALL[name].name):
                size = int(options.gib * GIB)
                outcomes.append(run(Path(made), ALL[name], size, options.segment_size, options.slices))
    known["load_at_end"] = os.getloadavg()[0]
    tell(console, known, outcomes)
    if options.json is not None:
        kept = [{name: value for name, value in asdict(one).items() if name != "points"} for one in outcomes]
        options.json.write_text(json.dumps({"conditions": known, "outcomes": kept}, indent=2) + "\n", encoding="utf-8")
    if options.csv is not None:
        write_csv(options.csv, outcomes)
    if options.svg is not None:
        draw(options.svg, [one.points for one in outcomes])
    if any(one.judged is None or one.judged.over_whole or not one.judged.samples for one in outcomes):
        raise SystemExit("tail_bound: the log was larger than its bound, or nothing was ever moved")


if __name__ == "__main__":
    main()
