"""One sentence for each picture of a report: what its data shows, not what it could show."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logstore.core.counts import counted
from logstore.report.names import short
from logstore.report.texts import count_text, size_short, span_text, whole

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["depth", "flow", "latency", "queue_bytes", "tail", "written"]


def _at(iso: str) -> str:
    return iso[:16].replace("T", " ")


def _most(found: Mapping[str, Any], values: Sequence[float]) -> tuple[float, str]:
    """The largest value of the intervals, and the start of the first interval that has it."""
    at = max(range(len(values)), key=values.__getitem__)
    return values[at], _at(found["times"][at])


def _name(row: Mapping[str, Any]) -> str:
    return f"“{short(row['label'])}”"


def _share(part: float, total: float) -> str:
    return f"{100 * part / total:.0f} %" if total else "nothing"


def depth(found: Mapping[str, Any]) -> str:
    """The deepest queue: from where to where, and when it was deepest."""
    series, count = found["depth"]["series"], len(found["depth"]["queues"])
    head = f"Depth of {counted(whole(count), 'queue')}"
    row = max(series, key=lambda one: max((value or 0 for value in one["values"]), default=0), default=None)
    known = [] if row is None else [index for index, value in enumerate(row["values"]) if value is not None]
    if row is None or not known:
        return f"{head}; none is known in this time."
    values = row["values"]
    top = max(known, key=values.__getitem__)
    first, last, most = values[known[0]], values[known[-1]], values[top]
    if not most:
        return f"{head}; none had a message at the end of an interval."
    name, since = _name(row), _at(found["times"][known[0]])
    if first == last == most:
        return f"{head}; the deepest, {name}, had {whole(last)} from {since} on, and has them at the end."
    change = "grew" if last > first else "fell" if last < first else "returned"
    path = f"{head}; {name} {change} from {whole(first)} to {whole(last)} since {since}"
    return f"{path}." if most in (first, last) else f"{path}, with {whole(most)} at most at {_at(found['times'][top])}."


def flow(found: Mapping[str, Any]) -> str:
    """What came, what ended, and the busiest interval."""
    came, went = found["depth"]["enqueued"], found["depth"]["ended"]
    if not sum(came) and not sum(went):
        return "Nothing was enqueued and nothing ended."
    most, when = _most(found, [one + other for one, other in zip(came, went, strict=True)])
    more = sum(came) - sum(went)
    change = (
        f"{whole(abs(more))} {'more' if more > 0 else 'fewer'} wait than before" if more else "as many wait as before"
    )
    rate = count_text(round(most / found["interval_s"], 2))
    return (
        f"{whole(sum(came))} places were enqueued and {whole(sum(went))} ended, so {change}; "
        f"most happened from {when} on, {rate} per second."
    )


def written(found: Mapping[str, Any]) -> str:
    """All bytes, the part of copies, and the busiest interval."""
    sizes, copies = found["written"]["record_bytes"], sum(found["written"]["copied_bytes"])
    if not sum(sizes):
        return "Nothing was written."
    most, when = _most(found, sizes)
    part = f"{_share(copies, sum(sizes))} of them copies" if copies else "none of them copies"
    rate = size_short(most / found["interval_s"])
    return f"{size_short(sum(sizes))} of records were written, {part}; most from {when} on, {rate} per second."


def latency(found: Mapping[str, Any]) -> str:
    """The busiest queue, and the slowest one if that is another."""
    rows = found["latency"]["queues"]
    first, slowest = rows[0], max(rows, key=lambda one: one["p99_us"])
    said = (
        f"Half of the {counted(whole(first['count']), 'message')} taken from {_name(first)} waited up to "
        f"{span_text(first['p50_us'])}, 99 % up to {span_text(first['p99_us'])}"
    )
    if slowest is first:
        return f"{said}{'; no other queue is slower' if len(rows) > 1 else ''}."
    return f"{said}; {_name(slowest)} is slowest: 99 % up to {span_text(slowest['p99_us'])}."


def queue_bytes(found: Mapping[str, Any]) -> str:
    """The queue with the most bytes, and its part."""
    row, total = found["bytes"]["queues"][0], found["bytes"]["total"]
    mine, all_of_it = (one["record_bytes"] + one["copied_bytes"] for one in (row, total))
    copies = f", {size_short(row['copied_bytes'])} of them copies" if row["copied_bytes"] else ""
    return f"{_name(row)} has the most: {size_short(mine)}, {_share(mine, all_of_it)} of all{copies}."


def tail(found: Mapping[str, Any]) -> str:
    """How much of the segments is needed."""
    segments = found["segments"]
    live, dead = (sum(one[name] for one in segments) for name in ("live_bytes", "dead_bytes"))
    free = sum(one["live_bytes"] == 0 and one["state"] != "current" for one in segments)
    empty = f"nothing needs {whole(free)} of them" if free else "each is needed in part"
    return (
        f"{counted(whole(len(segments)), 'segment')} with {size_short(live)} that is needed and {size_short(dead)} "
        f"that is not; {empty}."
    )
