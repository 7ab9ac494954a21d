"""The results of a run of rabbitmq.py: tables for the terminal and for a page, a picture, and the targets."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING, Any, Final

import pictures
from figures import readable, size_name
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from rich.console import Console

WORKS: Final = {"publish": "publish until confirmed", "consume": "consume and acknowledge"}
OWN: Final = "logstore"
QUORUM: Final = "RabbitMQ quorum"
RIVALS: Final = {QUORUM: 1.5, "before": 1.3}  # targets for 1 KiB and a window of 100
PERCENTILES: Final = (50.0, 99.0, 99.9)
TARGET_BYTES: Final = 1024
TARGET_WINDOW: Final = 100


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that `percent` of them do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def systems(told: dict[str, Any]) -> list[str]:
    """Their names, in the order of the run."""
    return list(dict.fromkeys(row["system"] for row in told["rates"]))


def cells(told: dict[str, Any]) -> Iterator[tuple[tuple[int, int, int], dict[str, dict[str, Any]]]]:
    """Size, connections and window, with each system's row."""
    found: dict[tuple[int, int, int], dict[str, dict[str, Any]]] = {}
    for row in told["rates"]:
        found.setdefault((row["body_bytes"], row["connections"], row["window"]), {})[row["system"]] = row
    yield from found.items()


def rival(told: dict[str, Any]) -> str:
    """The system that the store's broker is compared with."""
    return next(name for name in systems(told) if name in RIVALS)


def ratios(rows: dict[str, dict[str, Any]], other: str, work: str) -> list[float]:
    """Own rate over the rival's, round by round."""
    return [
        a["rate"] / b["rate"]
        for a, b in zip(rows[OWN][work], rows[other][work], strict=False)
        if not rows[OWN]["errors"] and not rows[other]["errors"]
    ]


def judge(told: dict[str, Any]) -> list[dict[str, Any]]:
    """Every target, with what was reached."""
    verdicts: list[dict[str, Any]] = []
    other = rival(told)
    target = RIVALS[other]
    for (body_bytes, connections, window), rows in cells(told):
        if (body_bytes, window) != (TARGET_BYTES, TARGET_WINDOW):
            continue
        for work, name in WORKS.items():
            samples = ratios(rows, other, work)
            if samples:
                reached = statistics.median(samples)
                what = f"{name}, {connections} connection{'s' * (connections > 1)}: times {other}"
                verdicts.append({"what": what, "target": target, "reached": reached, "met": reached >= target})
    p99 = {row["system"]: percentile(latencies(row), 99.0) for row in told.get("latency", []) if row["slices"]}
    if OWN in p99 and QUORUM in p99:
        reached = p99[OWN] / p99[QUORUM]
        what = f"p99 of publish until confirmed, of that of {QUORUM}"
        verdicts.append({"what": what, "target": "below 1", "reached": reached, "met": reached < 1})
    return verdicts


def latencies(row: dict[str, Any]) -> list[float]:
    """Of all rounds together, µs."""
    return [each for one in row["slices"] for each in one["latencies_us"]]


def shortened(told: dict[str, Any]) -> dict[str, Any]:
    """The same with each slice's latencies as their percentiles in steps of a tenth, instead of every single one."""
    rows = []
    for row in told.get("latency", []):
        slices = []
        for one in row["slices"]:
            values = sorted(one["latencies_us"])
            steps = [values[min(len(values) - 1, len(values) * step // 1000)] for step in range(1001)]
            slices.append({name: each for name, each in one.items() if name != "latencies_us"} | {"permille_us": steps})
        rows.append(row | {"slices": slices})
    return told | {"latency": rows}


def cost(samples: list[dict[str, Any]]) -> str:
    """The server's processor time for each message, and the share of one processor that the client needed."""
    server = statistics.median(each["server_cpu_s"] / each["messages"] for each in samples) * 1e6
    client = max(each["client_cpu_s"] / each["seconds"] for each in samples)
    return f"{server:.1f} µs, {client:.0%}"


def rate_rows(told: dict[str, Any], work: str) -> Iterator[list[str]]:
    """The cells of a table: a line for each kind of load, two columns for each system, and the ratio."""
    for (body_bytes, connections, window), rows in cells(told):
        line = [size_name(body_bytes), str(connections), str(window or "none")]
        for system in systems(told):
            samples = rows[system][work]
            if not samples:
                line += ["failed", ""]
                continue
            rates = [each["rate"] for each in samples]
            line += [
                f"{readable(statistics.median(rates))} ({readable(min(rates))}–{readable(max(rates))})",
                cost(samples),
            ]
        found = ratios(rows, rival(told), work)
        line.append(f"{statistics.median(found):.2f} ({min(found):.2f}–{max(found):.2f})" if found else "")
        yield line


def rate_headings(told: dict[str, Any]) -> list[str]:
    """Of those columns."""
    pairs = [[f"{system}, messages/s", "server CPU each, client CPU"] for system in systems(told)]
    return ["content", "connections", "window", *[each for pair in pairs for each in pair], f"{OWN} / {rival(told)}"]


def latency_rows(told: dict[str, Any]) -> Iterator[list[str]]:
    """A line for each system: percentiles in ms, and the spread of the 99th over the rounds."""
    for row in told.get("latency", []):
        if not row["slices"]:
            yield [row["system"], "failed"]
            continue
        values = latencies(row)
        p99 = [percentile(one["latencies_us"], 99.0) / 1000 for one in row["slices"]]
        yield [
            row["system"],
            f"{row['rate']:g}/s",
            *[f"{percentile(values, each) / 1000:.2f}" for each in PERCENTILES],
            f"{max(values) / 1000:.1f}",
            f"{min(p99):.2f}–{max(p99):.2f}",
            cost(row["slices"]),
        ]


LATENCY_HEADINGS: Final = (
    "system", "rate", "p50 ms", "p99 ms", "p99.9 ms", "max ms", "p99 by round", "server CPU each, client CPU",
)  # fmt: skip


def sync_lines(told: dict[str, Any]) -> Iterator[str]:
    """The syncs behind a confirm, as text."""
    for system, found in told["syncs"].items():
        if "missing" in found:
            yield f"{system}: {found['missing']}"
            continue
        calls = ", ".join(f"{count} {name}" for name, count in found["syncs"].items() if count) or "no sync at all"
        files = found["files_opened_synchronous"]
        also = f"; every write to {', '.join(files)} is one too" if files else ""
        each = sum(found["syncs"].values()) / found["messages"]
        yield f"{system}: {calls} for {found['messages']} messages, one unconfirmed at a time: {each:.2f} each{also}"


def came_back_lines(told: dict[str, Any]) -> Iterator[str]:
    """Acknowledged messages that were on a queue again after the consumers had disconnected."""
    for system in systems(told):
        rows = [row for row in told["rates"] if row["system"] == system]
        consumed = sum(each["messages"] for row in rows for each in row["consume"])
        came_back = sum(row["came_back"] for row in rows)
        yield f"{system}: of {consumed} messages that were acknowledged, {came_back} came back"


def tell(told: dict[str, Any], console: Console) -> None:
    """On the terminal."""
    for name, value in told["conditions"].items():
        console.print(f"[dim]{name.replace('_', ' ')}:[/dim] {value}", highlight=False)
    for line in sync_lines(told):
        console.print(f"[dim]syncs:[/dim] {line}", highlight=False)
    for line in came_back_lines(told):
        console.print(f"[dim]checked:[/dim] {line}", highlight=False)
    for work, name in WORKS.items():
        _show(console, f"{name}: median (min–max)", rate_headings(told), rate_rows(told, work))
    if told.get("latency"):
        _show(console, "publish until confirmed at a fixed rate, 1 KiB", LATENCY_HEADINGS, latency_rows(told))
    for verdict in told["targets"]:
        mark = "[green]met[/green]" if verdict["met"] else "[red]missed[/red]"
        console.print(
            f"{verdict['what']}: {verdict['reached']:.2f} (target {verdict['target']}) {mark}", highlight=False
        )


def _show(console: Console, title: str, headings: Sequence[str], lines: Iterator[list[str]]) -> None:
    table = Table(title=title)
    for at, heading in enumerate(headings):
        table.add_column(heading, justify="left" if at == 0 else "right")
    for line in lines:
        table.add_row(*line)
    console.print(table)


def markdown(told: dict[str, Any]) -> str:
    """For a page."""
    lines = [f"{name.replace('_', ' ')}: {value}  " for name, value in told["conditions"].items()]
    lines += ["", *[f"- {line}" for line in (*sync_lines(told), *came_back_lines(told))]]
    for work, name in WORKS.items():
        lines += ["", f"**{name}**", "", *_table(rate_headings(told), rate_rows(told, work))]
    if told.get("latency"):
        lines += ["", "**publish until confirmed at a fixed rate, 1 KiB**", ""]
        lines += _table(LATENCY_HEADINGS, latency_rows(told))
    lines += ["", *_table(("target", "wanted", "reached", ""), _verdict_rows(told))]
    return "\n".join(lines) + "\n"


def _verdict_rows(told: dict[str, Any]) -> Iterator[list[str]]:
    for verdict in told["targets"]:
        wanted = str(verdict["target"])
        yield [verdict["what"], wanted, f"{verdict['reached']:.2f}", "met" if verdict["met"] else "missed"]


def _table(headings: Sequence[str], lines: Iterator[list[str]]) -> list[str]:
    made = [f"| {' | '.join(headings)} |", "| --- " + "| ---: " * (len(headings) - 1) + "|"]
    return made + [f"| {' | '.join(line)} |" for line in lines]


def draw(told: dict[str, Any], path: Path) -> None:
    """Rates on logarithmic scales, and the whole range of percentiles, as SVG. Raises `ImportError`."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams |= {"svg.hashsalt": "logstore", "svg.fonttype": "none", "font.size": 8}
    mpl.rcParams |= {"axes.spines.top": False, "axes.spines.right": False}
    from matplotlib import pyplot as plt

    sizes = list(dict.fromkeys(row["body_bytes"] for row in told["rates"]))
    figure = plt.figure(figsize=(3.2 * max(2, len(sizes)), 8), layout="constrained")
    grid = figure.add_gridspec(3, len(sizes))
    for down, (work, name) in enumerate(WORKS.items()):
        for across, size in enumerate(sizes):
            axis = figure.add_subplot(grid[down, across])
            _draw_rates(axis, told, work, size)
            axis.set_title(f"{name}, {size_name(size)}")
            if across == 0:
                axis.set_ylabel("messages/s")
    axis = figure.add_subplot(grid[2, :])
    _draw_latencies(axis, told)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    pictures.save(figure, path)
    plt.close(figure)


def _draw_rates(axis: Any, told: dict[str, Any], work: str, size: int) -> None:
    found = [(key, rows) for key, rows in cells(told) if key[0] == size]
    names = systems(told)
    for number, system in enumerate(names):
        places, medians, below, above = [], [], [], []
        for at, (_, rows) in enumerate(found):
            rates = [each["rate"] for each in rows[system][work]]
            if rates:
                median = statistics.median(rates)
                places.append(at + (number - (len(names) - 1) / 2) * 0.2)
                medians.append(median)
                below.append(median - min(rates))
                above.append(max(rates) - median)
        color = "crimson" if system == OWN else f"C{number - 1}"
        axis.errorbar(places, medians, yerr=[below, above], fmt="osD"[number % 3], color=color, label=system)
    axis.set_yscale("log")
    axis.grid(axis="y", alpha=0.3)
    axis.set_xticks(range(len(found)), [f"{key[1]} con.\nw {key[2] or '∞'}" for key, _ in found])


def _draw_latencies(axis: Any, told: dict[str, Any]) -> None:
    for number, row in enumerate(told.get("latency", [])):
        values = sorted(latencies(row))
        if not values:
            continue
        beyond = [1 - at / len(values) for at in range(len(values))]
        color = "crimson" if row["system"] == OWN else f"C{number - 1}"
        axis.plot([each / 1000 for each in values], beyond, color=color)
        axis.set_title(f"publish until confirmed, 1 KiB, {row['rate']:g} messages/s")
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel("ms")
    axis.set_ylabel("share that took longer")
    axis.grid(alpha=0.3)
