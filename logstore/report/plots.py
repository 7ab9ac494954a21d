"""The pictures of a report: SVG whose colours come from the page, so that it suits light, dark and paper.

Each picture is drawn twice, for a wide page and for a phone, because scaled-down text is unreadable; the page shows the
one that fits. Names from users are drawn as plain text only, never as markup or as a formula.
"""

from __future__ import annotations

import io
import logging
import math
import re
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from html import escape
from typing import TYPE_CHECKING, Any, Final

from logstore.core.extras import require
from logstore.report import sentences
from logstore.report.names import plain, short
from logstore.report.texts import count_text, others_text, size_short, span_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["Picture", "only_errors", "pictures"]

WIDTHS: Final = {"wide": 1000, "narrow": 344}  # pixels; a phone has 390, and the page pads
COLOURS: Final = 10  # for series; the page has as many variables
# The colours that matplotlib uses, and their replacements in the page.
_INK, _FAINT = "#0000f0", "#0000f1"
_SERIES: Final = tuple(f"#0000e{index}" for index in range(COLOURS))
_REST: Final = "#0000ef"
_VARIABLES: Final = {_INK: "var(--ink)", _FAINT: "var(--line)", _REST: "var(--rest)"} | {
    colour: f"var(--c{index})" for index, colour in enumerate(_SERIES)
}
_TOKEN: Final = "row-{}"
_ONE: Final = timedelta(seconds=1)
_NAME_COLUMNS: Final = {"wide": 90, "narrow": 34}  # of 7 to 10 pixels each
_BYTE_STEPS: Final = [step << shift for shift in (0, 10, 20, 30, 40) for step in (1, 2, 5, 10, 20, 50, 100, 200, 500)]
_STRIP_CELLS: Final = {"wide": 120, "narrow": 48}


@dataclass(frozen=True, slots=True)
class Picture:
    """One plot in both widths, and the meaning of its colours."""

    title: str
    unit: str
    wide: str
    narrow: str
    legend: tuple[tuple[str, str, str, str], ...]
    """CSS colour, meaning, its short form, and the mark unless it is a patch of that colour."""
    says: str
    """What it shows, in a sentence."""


def pictures(found: dict[str, Any]) -> dict[str, Picture]:
    """The pictures of the figures (depth, flow, written, latency, bytes, tail) that have data."""
    with only_errors():
        return _pictures(found)


@contextmanager
def only_errors() -> Iterator[None]:
    """Turns off matplotlib's messages about its caches and fonts: a page needs neither, as the browser draws names.

    The first import of matplotlib belongs in it. Errors are still logged; afterwards all is as before.
    """
    logger = logging.getLogger("matplotlib")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _pictures(found: dict[str, Any]) -> dict[str, Picture]:
    drawn: dict[str, Picture] = {}
    if found["times"]:
        times = [datetime.fromisoformat(time) for time in found["times"]]
        drawn["depth"] = _depth(found, times)
        drawn["flow"] = _flow(found, times)
        drawn["written"] = _written(found, times)
    if found["latency"]["queues"]:
        drawn["latency"] = _latency(found)
    if found["bytes"]["queues"]:
        drawn["bytes"] = _bytes(found)
    if found.get("tail") and found["tail"]["segments"]:
        drawn["tail"] = _tail(found["tail"])
    return drawn


# ---- The frame


def _draw(
    name: str,
    title: str,
    unit: str,
    height: int,
    legend: Any,
    paint: Callable[[Any, Any, str], None],
    says: str,
    rows: Sequence[str] = (),
) -> Picture:
    """``rows``: the names that :func:`_rows` put into the picture."""
    made = {}
    for kind, width in WIDTHS.items():
        drawn = _svg(f"{name}-{kind}", f"{title}: {says}", width, height, kind, paint)
        made[kind] = _named(drawn, rows, kind)
    marked = tuple((colour, name, short(name), mark[0] if mark else "") for colour, name, *mark in legend)
    return Picture(title, unit, made["wide"], made["narrow"], marked, says)


def _svg(name: str, title: str, width: int, height: int, kind: str, paint: Callable[[Any, Any, str], None]) -> str:
    mpl = require("report", "matplotlib")
    canvas = require("report", "matplotlib.backends.backend_svg").FigureCanvasSVG
    figures = require("report", "matplotlib.figure")
    settings = {
        "svg.fonttype": "none",
        "svg.hashsalt": name,  # unique within a page, and equal figures give equal bytes
        "font.size": 12.0,
        "text.color": _INK,
        "axes.labelcolor": _INK,
        "xtick.color": _INK,
        "ytick.color": _INK,
        "axes.edgecolor": _FAINT,
        "grid.color": _FAINT,
        "text.parse_math": False,
        "axes.unicode_minus": False,
        "figure.constrained_layout.use": True,
        "path.simplify": True,
    }
    with mpl.rc_context(settings):
        figure = figures.Figure(figsize=(width / 72, height / 72), dpi=72)
        canvas(figure)
        figure.patch.set_alpha(0)
        axes = figure.add_subplot()
        axes.patch.set_alpha(0)
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
        axes.tick_params(length=0, pad=7)
        axes.set_axisbelow(True)
        paint(figure, axes, kind)
        text = io.StringIO()
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(text, format="svg", metadata=nothing)
    return _inlined(text.getvalue(), name, title, width, height)


def _inlined(svg: str, name: str, title: str, width: int, height: int) -> str:
    """The picture for use inside a page: no prologue, unique ids, and the page's colours."""
    body = svg[svg.index("<svg") :]
    body = body[body.index(">") + 1 :]
    body = re.sub(r"#0000[ef][0-9f]", lambda found: _VARIABLES.get(found[0], found[0]), body)
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    # matplotlib numbers its ids from 1 in each picture (figure_1, line2d_3), and few of them are referenced.
    wanted = set(re.findall(r"#([\w.-]+)", body))
    body = re.sub(r' id="([^"]*)"', lambda found: found[0] if found[1] in wanted else "", body)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" id="{name}" '
        f'role="img" aria-label="{escape(title)}" width="{width}" height="{height}" viewBox="0 0 {width} {height}">'
    )
    return head + body.rstrip()


def _over_time(axes: Any, times: list[datetime], kind: str) -> None:
    dates = require("report", "matplotlib.dates")

    locator = dates.AutoDateLocator(minticks=3, maxticks=8 if kind == "wide" else 4, tz="UTC")
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator, tz="UTC"))
    axes.set_xlim(times[0], _end(times))
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", linewidth=0.8)


def _end(times: list[datetime]) -> datetime:
    return times[-1] + ((times[1] - times[0]) if len(times) > 1 else _ONE)


def _stairs(axes: Any, times: list[datetime], values: Sequence[float], colour: str, **style: Any) -> None:
    """Draws a value per interval, up to the interval's end."""
    edges = [*times, _end(times)]
    axes.step(edges, [*values, values[-1]], where="post", color=colour, **style)


def _whole(axes: Any, text: Callable[..., str]) -> None:
    ticker = require("report", "matplotlib.ticker")

    axes.yaxis.set_major_locator(ticker.MaxNLocator(nbins=5, integer=True, min_n_ticks=1))
    axes.yaxis.set_major_formatter(text)


def _of_bytes(axis: Any, most: float, count: int) -> None:
    """Sets at most ``count`` ticks at round sizes."""
    ticker = require("report", "matplotlib.ticker")
    step = next((one for one in _BYTE_STEPS if most / one <= count), most / count)
    axis.set_major_locator(ticker.MultipleLocator(step or 1))
    axis.set_major_formatter(size_short)


# ---- The pictures


def _depth(found: dict[str, Any], times: list[datetime]) -> Picture:
    depth = found["depth"]
    series = [(one["label"], _drawn(one["values"])) for one in depth["series"]]
    colours = [_SERIES[index % COLOURS] for index in range(len(series))]
    if depth["rest"]:
        series.append((others_text(depth["rest"]["queues"]), _drawn(depth["rest"]["values"])))
        colours.append(_REST)

    def paint(_: Any, axes: Any, kind: str) -> None:
        for (_, values), colour in reversed(list(zip(series, colours, strict=True))):
            _stairs(axes, times, values, colour, linewidth=1.6)
        _over_time(axes, times, kind)
        if not any(value > 0 for _, values in series for value in values):
            axes.set_ylim(0, 1)
        _whole(axes, count_text)

    legend = [(_VARIABLES[colour], name) for (name, _), colour in zip(series, colours, strict=True)]
    unit = "messages waiting at the end of each interval"
    return _draw("depth", "Queue depth over time", unit, 300, legend, paint, sentences.depth(found))


def _drawn(values: list[int | None]) -> list[float]:
    """Numbers for a line, which has a gap where a depth is not known."""
    return [math.nan if value is None else value for value in values]


def _flow(found: dict[str, Any], times: list[datetime]) -> Picture:
    seconds = found["interval_s"]
    rates = {name: [one / seconds for one in found["depth"][name]] for name in ("enqueued", "ended")}

    def paint(_: Any, axes: Any, kind: str) -> None:
        for index, values in enumerate(rates.values()):
            _stairs(axes, times, values, _SERIES[index], linewidth=1.6)
        _over_time(axes, times, kind)
        axes.yaxis.set_major_formatter(count_text)

    legend = [(_VARIABLES[_SERIES[0]], "enqueued"), (_VARIABLES[_SERIES[1]], "ended: dequeued or queue deleted")]
    unit = "places per second; a message counts on each of its queues"
    return _draw("flow", "Throughput", unit, 240, legend, paint, sentences.flow(found))


def _written(found: dict[str, Any], times: list[datetime]) -> Picture:
    seconds, written = found["interval_s"], found["written"]
    copied = [one / seconds for one in written["copied_bytes"]]
    first = [
        (one - other) / seconds for one, other in zip(written["record_bytes"], written["copied_bytes"], strict=True)
    ]
    edges = [*times, _end(times)]

    def paint(_: Any, axes: Any, kind: str) -> None:
        both = [one + other for one, other in zip(first, copied, strict=True)]
        for values, base, colour in ((first, [0.0] * len(first), _SERIES[0]), (both, first, _SERIES[3])):
            above, below = [*values, values[-1]], [*base, base[-1]]
            axes.fill_between(edges, below, above, step="post", color=colour, linewidth=0)
        _over_time(axes, times, kind)
        _of_bytes(axes.yaxis, max(both, default=0), 5)

    legend = [(_VARIABLES[_SERIES[0]], "records as first written"), (_VARIABLES[_SERIES[3]], "copies: relocation")]
    unit = "bytes of records per second, whole log"
    return _draw("written", "Bytes written", unit, 220, legend, paint, sentences.written(found))


def _rows(axes: Any, count: int) -> None:
    """One row for each name; the name stands above its row, so that long names fit on a phone.

    Matplotlib draws a token, for which :func:`_named` puts the name: the browser has fonts for every script.
    """
    for index in range(count):
        axes.annotate(
            _TOKEN.format(index),
            (0, index),
            xycoords=axes.get_yaxis_transform(),
            xytext=(0, 7),
            textcoords="offset points",
            parse_math=False,
        )
    axes.set_ylim(count - 0.5, -0.8)
    axes.set_yticks([])
    axes.grid(axis="x", linewidth=0.8)


def _named(svg: str, names: Sequence[str], kind: str) -> str:
    """The picture with the names of its rows, each cut to the width and with the whole name as its tooltip."""
    for index, name in enumerate(names):
        text = f"<title>{escape(plain(name))}</title>{escape(short(name, _NAME_COLUMNS[kind]))}"
        svg = svg.replace(f">{_TOKEN.format(index)}<", f">{text}<")
    return svg


def _latency(found: dict[str, Any]) -> Picture:
    rows = [(one["label"], one) for one in found["latency"]["queues"][: found["top"]]]
    if found["latency"]["rest"]:
        rows.append((others_text(found["latency"]["rest"]["queues"]), found["latency"]["rest"]))
    marks = (("p50_us", "o", 0), ("p90_us", "D", 2), ("p99_us", "s", 3), ("p999_us", "|", 1))

    def paint(_: Any, axes: Any, kind: str) -> None:

        ticker = require("report", "matplotlib.ticker")
        axes.set_xscale("log")
        for index, (_, one) in enumerate(rows):
            low, high = max(one["p50_us"], 1), max(one["p999_us"], 1)
            axes.plot([low, high], [index, index], color=_FAINT, linewidth=5, solid_capstyle="round")
            for name, mark, colour in marks:
                axes.plot([max(one[name], 1)], [index], mark, color=_SERIES[colour], markersize=8, markeredgewidth=2.4)
        _rows(axes, len(rows))
        low = min(max(one["p50_us"], 1) for _, one in rows)
        high = max(max(one["p999_us"], 1) for _, one in rows)
        axes.set_xlim(low / 1.6, high * 1.6)
        ticks = _span_ticks(low / 1.6, high * 1.6, 8 if kind == "wide" else 4)
        axes.xaxis.set_major_locator(ticker.FixedLocator(ticks) if ticks else ticker.LogLocator())
        axes.xaxis.set_minor_locator(ticker.NullLocator())
        axes.xaxis.set_major_formatter(span_text)

    names = {"p50_us": ("half", "●"), "p90_us": ("90 %", "◆"), "p99_us": ("99 %", "■"), "p999_us": ("99.9 %", "|")}
    legend = [(_VARIABLES[_SERIES[colour]], *names[name]) for name, _, colour in marks]
    return _draw(
        "latency",
        "From enqueue to dequeue",
        "time within which this share of the messages was consumed (logarithmic)",
        34 * len(rows) + 46,
        legend,
        paint,
        sentences.latency(found),
        [name for name, _ in rows],
    )


def _span_ticks(low: float, high: float, most: int) -> list[float]:
    """Round spans of time, at most ``most`` of them."""
    units = [("µs", 1.0), ("ms", 1e3), ("s", 1e6), ("min", 60e6), ("h", 3600e6), ("d", 86_400e6)]
    steps = {"µs": (1, 3, 10, 30, 100, 300), "ms": (1, 3, 10, 30, 100, 300), "s": (1, 3, 10, 30)}
    more = {"min": (1, 3, 10, 30), "h": (1, 3, 12), "d": (1, 3, 10, 30, 100, 300, 1000, 3000, 10_000)}
    known = [size * step for unit, size in units for step in (steps | more)[unit]]
    inside = [one for one in known if low <= one <= high]
    if len(inside) < 3:  # they are close together
        inside = [size * step for _, size in units for step in range(1, 60) if low <= size * step <= high]
    return inside[:: -(-len(inside) // most)] if inside else []


def _bytes(found: dict[str, Any]) -> Picture:
    rows = [(one["label"], one) for one in found["bytes"]["queues"][: found["top"]]]
    if found["bytes"]["rest"]:
        rows.append((others_text(found["bytes"]["rest"]["queues"]), found["bytes"]["rest"]))

    def paint(_: Any, axes: Any, kind: str) -> None:
        first = [one["record_bytes"] for _, one in rows]
        copies = [one["copied_bytes"] for _, one in rows]
        at = range(len(rows))
        axes.barh(at, first, height=0.3, color=_SERIES[0])
        axes.barh(at, copies, left=first, height=0.3, color=_SERIES[3])
        _rows(axes, len(rows))
        axes.set_xlim(left=0)
        most = max(one + other for one, other in zip(first, copies, strict=True))
        _of_bytes(axes.xaxis, most, 6 if kind == "wide" else 3)

    legend = [(_VARIABLES[_SERIES[0]], "records as first written"), (_VARIABLES[_SERIES[3]], "copies: relocation")]
    unit = "bytes of the log, by the queue on which a message came first"
    names = [name for name, _ in rows]
    return _draw(
        "bytes", "Bytes by queue", unit, 38 * len(rows) + 46, legend, paint, sentences.queue_bytes(found), names
    )


def _tail(tail: dict[str, Any]) -> Picture:
    segments = tail["segments"]

    def paint(_: Any, axes: Any, kind: str) -> None:
        fold = -(-len(segments) // _STRIP_CELLS[kind])
        groups = [segments[at : at + fold] for at in range(0, len(segments), fold)]
        live = [sum(one["live_bytes"] for one in group) for group in groups]
        dead = [sum(one["dead_bytes"] for one in group) for group in groups]
        at = range(len(groups))
        axes.bar(at, live, width=0.8, color=_SERIES[2])
        axes.bar(at, dead, bottom=live, width=0.8, color=_REST)
        axes.set_xlim(-0.6, max(len(groups), 12) - 0.4)
        ends = [0, len(groups) - 1] if len(groups) > 12 else [0]  # both ends, if there is room
        axes.set_xticks(ends, [_lsn_text(groups[index][0]["first_lsn"]) for index in ends])
        for label, side in zip(axes.get_xticklabels(), ("left", "right"), strict=False):
            label.set_horizontalalignment(side)
        axes.grid(axis="y", linewidth=0.8)
        _of_bytes(axes.yaxis, max(one + other for one, other in zip(live, dead, strict=True)), 4)

    legend = [(_VARIABLES[_SERIES[2]], "needed"), (_VARIABLES[_REST], "needed by nothing")]
    unit = "bytes in each segment of the log, from the base (left) to the head; beyond 120 (48) several share a bar"
    return _draw("tail", "The segments", unit, 200, legend, paint, sentences.tail(tail))


def _lsn_text(lsn: int) -> str:
    return f"{lsn:,}".replace(",", " ")
