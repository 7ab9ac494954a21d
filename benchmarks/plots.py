"""The pictures, as SVG: rates on a logarithmic scale, and how far each target was met."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pictures
from figures import size_name
from results import Results

if TYPE_CHECKING:
    from pathlib import Path

MARKS = "osD^vP*X"
NAMES = {"publish": "publish", "consume + ack": "consume", "publish, consume + ack": "both"}


def draw(told: dict[str, Any], directory: Path) -> list[Path]:
    """Of a run as it is written down, into ``bench_*.svg``."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams |= {"svg.hashsalt": "logstore", "svg.fonttype": "none", "font.size": 9}
    mpl.rcParams |= {"axes.spines.top": False, "axes.spines.right": False}
    results, verdicts = Results.from_dict(told["rows"]), told["targets"]
    made = [_work(results, work, directory / f"bench_{name}.svg") for work, name in NAMES.items()]
    made.append(_targets(verdicts, directory / "bench_targets.svg"))
    return [path for path in made if path is not None]


def _work(results: Results, work: str, path: Path) -> Path | None:
    from matplotlib import pyplot as plt

    rows = [row for row in results.of("grid") if row.work == work]
    if not any(row.samples for row in rows):
        return None
    sizes = list(dict.fromkeys(row.content_bytes for row in rows))
    modes = list(dict.fromkeys(row.mode for row in rows))
    engines = list(dict.fromkeys(row.engine for row in rows if row.samples))
    figure, axes = plt.subplots(
        len(sizes), 1, figsize=(8.5, 2.6 * len(sizes)), sharex=True, squeeze=False, layout="constrained"
    )
    for axis, size in zip(axes[:, 0], sizes, strict=True):
        for number, engine in enumerate(engines):
            found = {row.mode: row for row in rows if (row.engine, row.content_bytes) == (engine, size) and row.samples}
            places = [modes.index(mode) + (number - len(engines) / 2) * 0.06 for mode in found]
            medians = [row.median for row in found.values()]
            errors = [
                [row.median - row.spread[0] for row in found.values()],
                [row.spread[1] - row.median for row in found.values()],
            ]
            own = engine == "logstore"
            axis.errorbar(
                places,
                medians,
                yerr=errors,
                fmt=MARKS[number % len(MARKS)],
                label=engine,
                color="crimson" if own else f"C{number}",
                markersize=7 if own else 5,
                zorder=3 if own else 2,
                linewidth=1,
            )
        axis.set_yscale("log")
        axis.grid(visible=True, axis="y", which="major", alpha=0.3)
        axis.set_ylabel("messages/s")
        axis.set_title(f"{work}, {size_name(size)} each, durable", loc="left", fontsize=9)
    axes[-1, 0].set_xticks(
        range(len(modes)), [mode.replace(", ", ",\n").replace("batches", "batches\n") for mode in modes]
    )
    axes[0, 0].legend(ncols=len(engines), fontsize=7, loc="lower left", bbox_to_anchor=(0, 1.12), frameon=False)
    pictures.save(figure, path)
    plt.close(figure)
    return path


def _share(measured: float, verdict: dict[str, Any]) -> float:
    """1 is the target, more is better; at most 100 and at least 1/100, since a figure may be 0."""
    share = measured / verdict["target"]
    clamped = min(max(share, 0.01), 100)
    return clamped if verdict["at_least"] else 1 / clamped


def _targets(verdicts: list[dict[str, Any]], path: Path) -> Path | None:
    from matplotlib import pyplot as plt

    if not verdicts:
        return None
    figure, axis = plt.subplots(figsize=(8.5, 0.6 + 0.27 * len(verdicts)), layout="constrained")
    for place, v in enumerate(reversed(verdicts)):
        median, *shares = [_share(each, v) for each in (v["median"], *v["samples"])]
        color = "seagreen" if v["met"] else "crimson"
        axis.plot([min(shares), max(shares)], [place, place], color=color, linewidth=1)
        axis.plot([median], [place], "o", color=color)
    axis.axvline(1, color="black", linewidth=0.8)
    axis.set_xscale("log")
    labels = [f"{v['work']}{' / ' if v['against'] else ''}{v['against']}" for v in reversed(verdicts)]
    axis.set_yticks(range(len(verdicts)), labels, fontsize=7)
    axis.set_title("measured / target: right of the line is met", loc="left", fontsize=9)
    pictures.save(figure, path)
    plt.close(figure)
    return path
