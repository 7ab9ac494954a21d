"""What alternatives.py has measured, as a page of tables and as a picture."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any, Final

import pictures
from builds import BEFORE, OWN
from figures import readable, size_name

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ONE, MANY, CONSUME = "window 1", "window 100", "consume"
LOADS: Final = (ONE, MANY, CONSUME)
CPU_US_MAX: Final = 75.0
RATIOS_MIN: Final = {(ONE, "redis"): 0.9, (ONE, "beanstalkd"): 0.75}


def _rates(row: dict[str, Any]) -> list[float]:
    return [each["rate"] for each in row["samples"]]


def _cpu_us(row: dict[str, Any]) -> list[float]:
    return [each["server_cpu_s"] / each["messages"] * 1e6 for each in row["samples"]]


def _ratios(told: dict[str, Any], row: dict[str, Any]) -> list[float]:
    """Ours to this one's, round by round."""
    own = next(
        each
        for each in told["rows"]
        if (each["system"], each["load"], each["body_bytes"]) == (OWN, row["load"], row["body_bytes"])
    )
    return [ours / other for ours, other in zip(_rates(own), _rates(row), strict=True)]


def judge(told: dict[str, Any]) -> list[dict[str, Any]]:
    """The targets for the smallest body."""
    size = min(row["body_bytes"] for row in told["rows"])
    made = []
    for row in told["rows"]:
        if row["body_bytes"] != size:
            continue
        if (row["system"], row["load"]) == (OWN, ONE):
            reached = statistics.median(_cpu_us(row))
            made.append(_verdict(f"{ONE}, server CPU, µs/message", CPU_US_MAX, reached, reached <= CPU_US_MAX))
        wanted = RATIOS_MIN.get((row["load"], row["system"]))
        if wanted is not None:
            reached = statistics.median(_ratios(told, row))
            made.append(_verdict(f"{ONE}, rate / {row['system']}", wanted, reached, reached >= wanted))
    return made


def _verdict(what: str, target: float, reached: float, met: bool) -> dict[str, Any]:
    return {"what": what, "target": target, "reached": reached, "met": met}


def markdown(told: dict[str, Any]) -> str:
    """Conditions, syncs, a table for each load and size, and the targets."""
    lines = [f"{name.replace('_', ' ')}: {value}  " for name, value in told["conditions"].items()]
    lines.append("")
    for name, counted in told["syncs"].items():
        syncs = counted.get("missing") or f"{sum(counted['syncs'].values()) / counted['messages']:.2f} for each confirm"
        lines.append(f"- syncs, {name}, {ONE}: {syncs}")
    for size, load in dict.fromkeys((row["body_bytes"], row["load"]) for row in told["rows"]):
        lines += ["", f"**{load}, {size_name(size)}**", ""]
        lines += [
            "| system | messages/s | min–max | server CPU, µs/message | median latency, µs | ours / it, min–max |"
        ]
        lines += ["| --- | ---: | ---: | ---: | ---: | ---: |"]
        lines += list(_lines(told, load, size))
    lines += ["", "| target | wanted | reached | |", "| --- | ---: | ---: | --- |"]
    for each in told["targets"]:
        verdict = "met" if each["met"] else "missed"
        lines.append(f"| {each['what']} | {each['target']} | {each['reached']:.2f} | {verdict} |")
    return "\n".join(lines) + "\n"


def _lines(told: dict[str, Any], load: str, size: int) -> Iterator[str]:
    for row in told["rows"]:
        if (row["load"], row["body_bytes"]) != (load, size):
            continue
        rates, ratios = _rates(row), _ratios(told, row)
        latencies = [each["latency_us"] for each in row["samples"] if each["latency_us"] is not None]
        latency = f"{statistics.median(latencies):.0f}" if latencies else ""
        ratio = f"{statistics.median(ratios):.2f}, {min(ratios):.2f}–{max(ratios):.2f}" if row["system"] != OWN else ""
        yield (
            f"| {row['system']} | {readable(statistics.median(rates))} | {readable(min(rates))}–{readable(max(rates))} "
            f"| {statistics.median(_cpu_us(row)):.1f} | {latency} | {ratio} |"
        )


def draw(told: dict[str, Any], path: Path) -> None:
    """Rates above, the servers' processor time below, a column for each load, as SVG. Raises `ImportError`."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams |= {"svg.hashsalt": "logstore", "svg.fonttype": "none", "font.size": 8}
    mpl.rcParams |= {"axes.spines.top": False, "axes.spines.right": False}
    from matplotlib import pyplot as plt

    rows = [row for row in told["rows"] if row["system"] != BEFORE]
    loads = list(dict.fromkeys(row["load"] for row in rows))
    sizes = list(dict.fromkeys(row["body_bytes"] for row in rows))
    names = list(dict.fromkeys(row["system"] for row in rows))
    figure, axes = plt.subplots(2, len(loads), figsize=(3.2 * len(loads), 5), squeeze=False, layout="constrained")
    for across, load in enumerate(loads):
        for down, (values, unit) in enumerate(((_rates, "messages/s"), (_cpu_us, "server CPU, µs/message"))):
            axis = axes[down, across]
            for row in rows:
                if row["load"] == load:
                    _point(axis, values(row), names.index(row["system"]), sizes.index(row["body_bytes"]))
            axis.set_yscale("log")
            axis.grid(axis="y", which="both", alpha=0.2)
            axis.set_xticks(range(len(names)), names, rotation=20)
            axis.margins(x=0.12)
            if across == 0:
                axis.set_ylabel(unit)
            if down == 0:
                axis.set_title(f"publish, {load}" if load != CONSUME else "consume and acknowledge")
    marks = ", ".join(f"{'●◆■▲'[at % 4]} {size_name(size)}" for at, size in enumerate(sizes))
    figure.suptitle(f"one connection, each confirm and acknowledgement durable; {marks}", fontsize=8)
    pictures.save(figure, path)
    plt.close(figure)


def _point(axis: Any, values: list[float], place: int, which: int) -> None:
    median = statistics.median(values)
    axis.errorbar(
        [place + 0.18 * which],
        [median],
        yerr=[[median - min(values)], [max(values) - median]],
        fmt="oDs^"[which % 4],
        markersize=5,
        color="crimson" if place == 0 else f"C{place - 1}",
    )
