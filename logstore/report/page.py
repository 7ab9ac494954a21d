"""The page of a report: one self-contained HTML file made from the figures and their pictures.

It must never let the name of a queue, a file or an xid become markup. All text passes through the template's escaping;
only the pictures are inserted unchanged, because their names are escaped already.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from logstore.core.counts import counted
from logstore.core.extras import require
from logstore.report.answer_texts import answer_section
from logstore.report.figures import age_s
from logstore.report.names import short
from logstore.report.plots import pictures
from logstore.report.texts import age_text, count_text, depth_text, others_text, size_short, span_text, time_text, whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["page"]

STATES = {
    "live": "open in a writer while this was read",
    "closed": "closed cleanly",
    "crashed": "not closed: the next open recovers it",
}


def page(found: dict[str, Any]) -> str:
    """The HTML text for a document of :func:`logstore.report.report`."""
    jinja2 = require("report", "jinja2")
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["short"] = short
    template = environment.from_string(files("logstore.report").joinpath("page.html").read_text("utf-8"))
    drawn = pictures(found)
    made = template.render(
        title=found["title"],
        lines=_lines(found),
        answers=answer_section(found),
        tiles=_tiles(found),
        sections=_sections(found, drawn),
    )
    return str(made)


# ---- Texts


def _lines(found: dict[str, Any]) -> list[str]:
    place = f"{found['store']} · store {found['uuid']}"
    if found["kind"] == "store":
        place += f" · {STATES[found['state']]}"
    else:
        place += " · from its export"
    told = f"LSN {found['base_lsn']} to {found['end_lsn']}"
    if found["first_time"] is not None:
        told += f" · {time_text(found['first_time'])} to {time_text(found['last_time'])} UTC"
    asked = []
    if found["missing_before"] is not None:
        lost = found["missing_before"]
        where = "no longer in the log" if found["kind"] == "store" else "recycled before the first export"
        asked.append(
            f"{where}: everything below LSN {lost['lsn']}, logged before {time_text(lost['time'])} UTC; "
            "how many messages that was is not recorded"
        )
    asked += [f"lost before it was exported: LSN {start} to {stop}" for start, stop in found["gaps"]]
    asked += [
        f"dropped from the export, being too old: {one['dataset']} of days up to {one['last_day']}"
        for one in found["dropped"]
    ]
    if found["depth"]["known_from"] is not None:
        since = time_text(found["depth"]["known_from"])
        asked.append(f"the depth of queues is known, and drawn, only from {since} UTC on, where that part ends")
    unseen = found["summary"]["unseen"]
    if unseen:
        asked.append(
            f"{whole(unseen)} of the {whole(sum(found['depth']['ended']))} places that ended were of messages that "
            "began where the log was recycled since: depth, throughput and bytes written count them, nothing else does"
        )
    if found["queues_asked"]:
        asked.append("only of " + ", ".join(found["queues_asked"]))
    if found["from"] or found["to"]:
        asked.append(
            f"only from {time_text(found['from'] or found['first_time'])} to {time_text(found['to'] or 'now')}"
        )
    return [place, told, *asked]


def _tiles(found: dict[str, Any]) -> list[dict[str, Any]]:
    said = found["summary"]
    since, known = said["oldest_since"], said["oldest_is_known"]
    everywhere = ", all queues" if found["queues_asked"] else ""
    depths = [one["depth"] for one in found["depth"]["queues"]]
    waiting = None if None in depths else sum(depths)
    outcomes = ", ".join(f"{whole(number)} {name.replace('_', ' ')}" for name, number in said["outcomes"].items())
    return [
        {
            "name": "Messages started",
            "value": whole(said["published"]),
            "more": f"{size_short(said['content_bytes'])} of content{everywhere}",
        },
        {"name": "Messages ended", "value": whole(said["closed"]), "more": outcomes or "none yet"},
        {
            "name": "Waiting",
            "value": depth_text(waiting),
            "more": "places, at the end of the time asked for"
            if found["to"]
            else f"places of {counted(whole(said['open']), 'live message')}, {size_short(said['open_bytes'])}",
        },
        {
            "name": "Oldest live message",
            "value": ("" if known or since is None else "≥ ") + age_text(age_s(since, found["read_time"])),
            "more": _oldest(since, known, said["open"]),
        },
        {
            "name": "In doubt",
            "value": whole(said["in_doubt"]),
            "more": "prepared transactions",
            "bad": said["in_doubt"] > 0,
        },
        {
            "name": "Log" if found["kind"] == "store" else "Exported files",
            "value": size_short(found["log_bytes"]),
            "more": counted(whole(said["records"]), "record")
            + (" in the time asked for" if found["from"] or found["to"] else ""),
        },
        {"name": "Queues", "value": whole(said["queues"]), "more": "that had messages"},
        {
            "name": "Written per byte",
            "value": _ratio(found["bytes"]["total"]["write_amplification"]),
            "more": "copies included",
        },
    ]


def _oldest(since: str | None, known: bool, open_messages: int) -> str:
    if since is None:
        return "the log no longer has the time" if open_messages else "no live messages"
    return f"since {time_text(since)}" + ("" if known else " or longer")


def _ratio(number: float | None) -> str:
    return "–" if number is None else f"{number:.3g}"


# ---- Tables


def _table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, last: Sequence[object] | None = None, note: str = ""
) -> dict[str, Any]:
    """``columns``: the prefix ``#`` marks a column of numbers, ``*`` one of long texts; others have short texts."""
    kinds = {"#": "n", "*": "words"}
    named = [
        {
            "name": name[1:] if name[:1] in kinds else name,
            "right": name[:1] == "#",
            "kind": kinds.get(name[:1], "name"),
        }
        for name in columns
    ]
    made = [{"cells": list(map(str, row)), "sum": False} for row in rows]
    if last is not None:
        made.append({"cells": list(map(str, last)), "sum": True})
    return {"columns": named, "rows": made, "note": note}


def _more(found: dict[str, Any], rows: Sequence[Any], what: str = "queues") -> str:
    top = found["top"]
    return f"{whole(len(rows) - top)} more {what}: --top N, or --json for all" if len(rows) > top else ""


@dataclass(slots=True)
class _Section:
    id: str
    title: str
    picture: Any = None
    texts: Sequence[str] = ()
    tables: Sequence[dict[str, Any]] = ()
    details: dict[str, Any] | None = None


def _sections(found: dict[str, Any], drawn: dict[str, Any]) -> list[_Section]:
    made = [
        _depth(found, drawn.get("depth")),
        _flow(found, drawn.get("flow")),
        _written(found, drawn.get("written")),
        _latency(found, drawn.get("latency")),
        _tail(found, drawn.get("tail")),
        _in_doubt(found),
        _bytes(found, drawn.get("bytes")),
        _redeliveries(found),
        _dead(found),
    ]
    return [one for one in made if one is not None]


def _depth(found: dict[str, Any], drawn: Any) -> _Section:
    depth, top = found["depth"], found["top"]
    if not depth["queues"]:
        return _Section("depth", "Queue depth", texts=["No message was on any queue."])
    rest = depth["rest"]

    def cells(one: dict[str, Any], name: str) -> list[str]:
        numbers = whole(one["enqueued"]), whole(one["ended"]), depth_text(one["deepest"]), depth_text(one["depth"])
        return [name, *numbers]

    shown = _table(
        ("queue", "#enqueued", "#ended", "#deepest", "#at the end"),
        [cells(one, one["label"]) for one in depth["queues"][:top]],
        last=cells(rest, others_text(rest["queues"])) if rest else None,
    )
    series = [*depth["series"], *([{**rest, "label": "others"}] if rest else [])]
    moments = [
        [time_text(time), *(depth_text(one["values"][index]) for one in series), depth_text(depth["total"][index])]
        for index, time in enumerate(found["times"])
    ]
    columns = ("start of the interval (UTC)", *(f"#{one['label']}" for one in series), "#all")
    details = _table(columns, moments) | {"summary": f"each interval of {_interval(found)}"}
    return _Section("depth", "Queue depth", drawn, tables=[shown], details=details)


def _interval(found: dict[str, Any]) -> str:
    return span_text(found["interval_s"] * 1e6)


def _flow(found: dict[str, Any], drawn: Any) -> _Section | None:
    if drawn is None:
        return None
    depth, seconds = found["depth"], found["interval_s"]
    everywhere = ", all queues" if found["queues_asked"] else ""
    rows = [
        ("places enqueued", depth["enqueued"]),
        ("places ended", depth["ended"]),
        (f"messages started{everywhere}", found["written"]["messages"]),
    ]
    commits = [
        (f"transactions {what}{everywhere}", found["written"][name])
        for what, name in (("committed", "commits"), ("rolled back", "rollbacks"))
    ]
    shown = _table(
        ("what", "#in all", f"#most in {_interval(found)}", "#most per second"),
        [
            (name, whole(sum(values)), whole(max(values)), count_text(round(max(values) / seconds, 2)))
            for name, values in rows + commits
            if values
        ],
    )
    outcomes = found["summary"]["outcomes"]
    ends = _table(
        ("how messages ended", "#messages"),
        [(name.replace("_", " "), whole(number)) for name, number in outcomes.items()],
        last=("all", whole(found["summary"]["closed"])) if outcomes else None,
    )
    columns = ("start of the interval (UTC)", "#places enqueued", "#places ended")
    moments = zip(
        map(time_text, found["times"]), map(whole, depth["enqueued"]), map(whole, depth["ended"]), strict=True
    )
    details = _table(columns, moments) | {"summary": f"each interval of {_interval(found)}"}
    return _Section("throughput", "Throughput", drawn, tables=[shown, ends], details=details)


def _written(found: dict[str, Any], drawn: Any) -> _Section | None:
    if drawn is None:
        return None
    written, seconds = found["written"], found["interval_s"]
    whole_log = [
        (name.replace("_", " "), sum(written[name])) for name in ("record_bytes", "copied_bytes", "content_bytes")
    ]
    most = max(written["record_bytes"]) / seconds
    rows = [(name, size_short(size), whole(size)) for name, size in whole_log]
    rows.append(("most written per second", f"{size_short(most)}/s", whole(most)))
    rows.append(("records", "", whole(found["summary"]["records"])))
    shown = _table(
        ("what", "#size", "#number"),
        rows,
        note="Of the records that are in the log now; what was recycled is not counted."
        if found["kind"] == "store"
        else "Of all records that were ever exported.",
    )
    columns = ("start of the interval (UTC)", "#records", "#bytes", "#of them copies")
    moments = zip(
        map(time_text, found["times"]),
        *(map(whole, written[name]) for name in ("records", "record_bytes", "copied_bytes")),
        strict=True,
    )
    details = _table(columns, moments) | {"summary": f"each interval of {_interval(found)}"}
    return _Section("written", "Bytes written", drawn, tables=[shown], details=details)


def _latency(found: dict[str, Any], drawn: Any) -> _Section:
    latency, top = found["latency"], found["top"]
    if not latency["queues"]:
        return _Section("latency", "From enqueue to dequeue", texts=["No message was taken by a consumer."])
    keys = ("min_us", "p50_us", "p90_us", "p99_us", "p999_us", "max_us", "mean_us")

    def cells(one: dict[str, Any], name: str) -> list[str]:
        return [name, whole(one["count"]), *(span_text(one[key]) for key in keys)]

    rest = latency["rest"]
    shown = _table(
        ("queue", "#taken", "#least", "#half", "#90 %", "#99 %", "#99.9 %", "#most", "#mean"),
        [cells(one, one["label"]) for one in latency["queues"][:top]],
        last=cells(rest, others_text(rest["queues"])) if rest else None,
        note="By the times of the batches that made enqueue and dequeue durable. Percentiles are right to 0.8 %. "
        "Not counted: expired, purged and dead-lettered messages, and deleted queues.",
    )
    return _Section("latency", "From enqueue to dequeue", drawn, tables=[shown])


def _tail(found: dict[str, Any], drawn: Any) -> _Section:
    tail = found.get("tail")
    texts: list[str] = []
    tables = []
    if tail is not None:
        holding = tail["holding_messages"] + tail["holding_transactions"]
        texts.append(
            f"The oldest segment of the log is needed by {counted(whole(tail['holding_messages']), 'message')} and "
            f"{counted(whole(tail['holding_transactions']), 'transaction')}, {size_short(tail['holding_bytes'])} in it."
            if holding
            else "Nothing needs the oldest segment of the log."
        )
        compaction = tail["compaction"]
        would = (
            f"leave {size_short(compaction['bytes_after'])} and copy {size_short(compaction['copied_bytes'])}."
            if compaction["shrinks"]
            else "not make it smaller."
        )
        texts.append(
            f"{size_short(tail['log_bytes'])} on disk, {size_short(tail['live_bytes'])} of it live. "
            f"Compacting would {would}"
        )
        rows = [
            (
                f"{one['kind']} {one['id']}",
                whole(one["lsn"]),
                size_short(one["bytes"]),
                age_text(one["age_s"], one["at_least"]),
                one["remedy"],
            )
            for one in tail["holders"]
        ]
        tables.append(_table(("what holds the tail", "#needs from LSN", "#bytes", "#age", "*what would free it"), rows))
        holds = [(one["name"], whole(one["lsn"]), size_short(one["kept_bytes"]), one["state"]) for one in tail["holds"]]
        if holds:
            tables.append(_table(("hold", "#from LSN", "#keeps", "state"), holds))
    rows_oldest = [
        (
            one["label"],
            str(one["id"]),
            time_text(one["since"]),
            age_text(age_s(one["since"], found["read_time"]), one["at_least"]),
            size_short(one["content_bytes"]),
            whole(one["places"]),
            ", ".join(word for word in ("moved", "staged") if one[word]) or "",
            one["remedy"],
        )
        for one in found["oldest"]
    ]
    if rows_oldest:
        columns = (
            "oldest messages, by queue",
            "#id",
            "#since (UTC)",
            "#age",
            "#content",
            "#waits on",
            "",
            "*what would free it",
        )
        tables.append(_table(columns, rows_oldest))
    else:
        texts.append("No live messages.")
    return _Section("tail", "What holds the tail", drawn, texts, tables)


def _in_doubt(found: dict[str, Any]) -> _Section:
    if not found["in_doubt"]:
        return _Section("in-doubt", "In doubt", texts=["No prepared transaction waits for an outcome."])
    rows = [
        (
            one["xid"] or "not known",
            str(one["tx_id"]),
            time_text(one["since"]),
            whole(one["operations"]),
            _listed(one["queues"]),
        )
        for one in found["in_doubt"]
    ]
    shown = _table(
        ("xid", "#id", "#since (UTC)", "#operations", "queues"),
        rows[:100],
        note="'logstore in-doubt DIR list' says more, and commit and rollback decide them."
        + (f" {whole(len(rows) - 100)} more: --json" if len(rows) > 100 else ""),
    )
    return _Section("in-doubt", "In doubt", tables=[shown])


def _listed(names: Sequence[str | None]) -> str:
    return ", ".join("(deleted)" if name is None else name for name in names)


def _bytes(found: dict[str, Any], drawn: Any) -> _Section:
    cost, top = found["bytes"], found["top"]
    if not cost["queues"]:
        return _Section("bytes", "Bytes by queue", texts=["No message was begun."])

    def cells(one: dict[str, Any], name: str) -> list[str]:
        numbers = [whole(one[key]) for key in ("messages", "places")]
        sizes = [size_short(one[key]) for key in ("content_bytes", "record_bytes", "copied_bytes")]
        return [name, *numbers, *sizes, _ratio(one["write_amplification"])]

    rest = cost["rest"]
    rows = [cells(one, one["label"]) for one in cost["queues"][:top]]
    if rest:
        rows.append(cells(rest, others_text(rest["queues"])))
    shown = _table(
        ("queue", "#messages", "#places", "#content", "#records", "#copies", "#written per byte"),
        rows,
        last=cells(cost["total"], "all"),
        note="A message on several queues is counted once, where it came first. Written per byte: records as first "
        "written and their copies, for each byte of records as first written.",
    )
    return _Section("bytes", "Bytes by queue and write amplification", drawn, tables=[shown])


def _redeliveries(found: dict[str, Any]) -> _Section:
    rows = [one for one in found["deliveries"] if one["redelivered"]]
    told, settled = (sum(one[name] for one in found["deliveries"]) for name in ("told", "settled"))
    if not rows:
        text = f"Of {whole(settled)} places that ended, {whole(told)} tell their deliveries; none took more than one."
        return _Section("redeliveries", "Redeliveries", texts=[text if settled else "Nothing has ended yet."])
    shown = _table(
        ("queue", "#ended", "#told", "#redelivered", "#share", "#deliveries", "#most for one"),
        [
            (
                one["label"],
                whole(one["settled"]),
                whole(one["told"]),
                whole(one["redelivered"]),
                f"{100 * one['redelivered'] / one['told']:.3g} %",
                whole(one["deliveries"]),
                whole(one["most"]),
            )
            for one in rows[: found["top"]]
        ],
        note=_more(found, rows),
    )
    return _Section("redeliveries", "Redeliveries", tables=[shown])


def _dead(found: dict[str, Any]) -> _Section:
    rows = sorted((one for one in found["deliveries"] if one["dead_lettered"]), key=lambda one: -one["dead_lettered"])
    if not rows:
        return _Section("dead-letters", "Dead-lettered", texts=["None."])
    shown = _table(
        ("queue that they left", "#dead-lettered", "#of all that ended", "#last (UTC)"),
        [
            (
                one["label"],
                whole(one["dead_lettered"]),
                f"{100 * one['dead_lettered'] / one['settled']:.3g} %",
                time_text(one["last_dead_lettered"]),
            )
            for one in rows[: found["top"]]
        ],
        note=_more(found, rows),
    )
    return _Section("dead-letters", "Dead-lettered", tables=[shown])
