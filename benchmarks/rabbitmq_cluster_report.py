"""The results of rabbitmq_cluster.py as tables, and its ratios with their targets."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any, Final

from broker_systems import ONE_HOST, QUORUM, SINGLE, TRIO
from figures import readable
from loop_stalls import BOUNDS_MS
from tables import Table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Row = dict[str, Any]

WORKS: Final = {"publish": "publish until confirmed", "consume": "consume and acknowledge"}
RATE_MIN: Final = 2.0  # times the quorum queue's
#: A message, by load; the leader's is what it needs beyond the single broker.
CPU_US_MAX: Final = {
    "window 100": {"leader": 1.0, "follower": 3.0},
    "window 1": {"leader": 60.0, "follower": 60.0},
}
STALL_MS: Final = 100  # of a leader's loops


def _values(row: Row, work: str, name: str) -> list[float]:
    return [sample[work][name] for sample in row["samples"] if work in sample and name in sample[work]]


def _kind(row: Row) -> str:
    return f"{row['work']}{', relayed' if row['relayed'] else ''}"


def _range(values: Sequence[float], text: Callable[[float], str] = readable) -> str:
    return f"{text(statistics.median(values))} ({text(min(values))}–{text(max(values))})"


# ---- ratios ----------------------------------------------------------------------------------------------------------


def ratios(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Of our members to the other systems, round by round, with the targets where there are some."""
    found: list[dict[str, Any]] = []
    by_key = {(_kind(row), row["system"]): row for row in rows}
    for (kind, system), row in by_key.items():
        if system not in (TRIO, ONE_HOST):
            continue
        for other in (QUORUM, SINGLE, TRIO if system == ONE_HOST else ""):
            other_row = by_key.get((kind, other))
            if other_row is not None:
                found += _against(kind, row, other_row)
        if kind in CPU_US_MAX and system == TRIO and (kind, SINGLE) in by_key:
            found += _processor(kind, row, by_key[kind, SINGLE])
    return found


def _processor(kind: str, row: Row, single: Row) -> Iterator[dict[str, Any]]:
    most = CPU_US_MAX[kind]
    for work in WORKS:
        alone = [sample["processes"][0]["cpu_s"] * 1e6 for sample in _samples(single, work)]
        ours = [[used["cpu_s"] * 1e6 for used in sample["processes"]] for sample in _samples(row, work)]
        beyond = {
            "leader": [leader - one for (leader, *_), one in zip(ours, alone, strict=False)],
            "follower": [max(others) for _, *others in ours],
        }
        for role, samples in beyond.items():
            if not samples:
                continue
            median = statistics.median(samples)
            to = SINGLE if role == "leader" else "nothing"
            what = f"{role}'s µs CPU a message of {work}, less that of"
            found = {"kind": kind, "what": what, "of": TRIO, "to": to, "samples": samples, "median": median}
            yield found | {"target": f"≤ {most[role]:g}", "met": median <= most[role]}


def _against(kind: str, row: Row, other: Row) -> Iterator[dict[str, Any]]:
    judged = row["system"] == TRIO and other["system"] == QUORUM
    fast = judged and row["work"] == "window 100"  # the targets are for this window; others are printed
    for work in WORKS:
        for name, wanted in (("rate", f"≥ {RATE_MIN:g}" if fast else ""), ("p99_us", "< 1" if judged else "")):
            pairs = zip(_values(row, work, name), _values(other, work, name), strict=False)
            samples = [mine / theirs for mine, theirs in pairs]
            if not samples or (name == "rate" and row["work"] == "at a rate"):
                continue
            median = statistics.median(samples)
            met = None if not wanted else median >= RATE_MIN if name == "rate" else median < 1
            yield {
                "kind": kind,
                "what": work if name == "rate" else f"p99 of {work}",
                "of": row["system"],
                "to": other["system"],
                "samples": samples,
                "median": median,
                "target": wanted,
                "met": met,
            }


# ---- tables ----------------------------------------------------------------------------------------------------------


def tables(told: dict[str, Any]) -> list[Table]:
    """All of them."""
    return [*(_figures(told["rows"], work) for work in WORKS), _ratios(told["ratios"]), _stalls(told["stalls"])]


def _figures(rows: Sequence[Row], work: str) -> Table:
    headings = ["load", "system", "messages/s", "p50 ms", "p99 ms", "max ms"]
    headings += ["CPU µs", "KiB written", "forces", "KiB on disk", "flushes"]
    table = Table(f"{WORKS[work]}, 1 KiB: median (least–most); costs a message", headings, left=2)
    table.note("Values of several processes: the one that leads, then the client's if it is relayed, then the others")
    table.note("Written and forced: as the logs say, RabbitMQ as /proc says; on disk: by the device, of all processes")
    for row in rows:
        rates = _values(row, work, "rate")
        if not rates:
            continue
        times = [_milliseconds(row, work, name) for name in ("p50_us", "p99_us", "max_us")]
        costs = [
            _cost(row, work, name, factor) for name, factor in (("cpu_s", 1e6), (_bytes(row), 1 / 1024), ("forces", 1))
        ]
        costs += [_disk(row, work, name, factor) for name, factor in (("bytes", 1 / 1024), ("flushes", 1))]
        table.rows.append([_kind(row), row["system"], _range(rates), *times, *costs])
    return table


def _bytes(row: Row) -> str:
    return "write_bytes" if row["system"] == QUORUM else "log_bytes"


def _disk(row: Row, work: str, name: str, factor: float) -> str:
    found = [sample["disk"][name] * factor for sample in _samples(row, work) if name in sample.get("disk", ())]
    return f"{statistics.median(found):.3g}" if found else ""


def _milliseconds(row: Row, work: str, name: str) -> str:
    values = _values(row, work, name)
    if not values:
        return ""
    return f"{max(values) / 1000:.1f}" if name == "max_us" else f"{statistics.median(values) / 1000:.2f}"


def _cost(row: Row, work: str, name: str, factor: float) -> str:
    """The median of each process."""
    samples = [sample["processes"] for sample in _samples(row, work) if "processes" in sample]
    medians = [
        statistics.median(used[name] * factor for used in of_one)
        for of_one in zip(*samples, strict=True)
        if all(name in used for used in of_one)
    ]
    return " / ".join(f"{each:.3f}" if name == "forces" else f"{each:.1f}" for each in medians)


def _samples(row: Row, work: str) -> list[dict[str, Any]]:
    return [sample[work] for sample in row["samples"] if work in sample]


def _ratios(found: Sequence[dict[str, Any]]) -> Table:
    table = Table(
        "Compared round by round: median (least–most)", ["load", "what", "of", "to", "ratio", "target", ""], left=4
    )
    for one in found:
        verdict = {None: "", True: "met", False: "missed"}[one["met"]]
        shown = _range(one["samples"], "{:.2f}".format)
        table.rows.append([one["kind"], one["what"], one["of"], one["to"], shown, one["target"], verdict])
    return table


def _stalls(found: Sequence[dict[str, Any]]) -> Table:
    bounds = [f"≤ {bound} ms" for bound in BOUNDS_MS] + ["more"]
    table = Table(
        "How late a timer of 10 ms came on a leader's loops, and in an idle process: how often",
        ["load", "system", "work", "loop", *bounds, "longest ms", f"< {STALL_MS} ms"],
        left=4,
    )
    for one in found:
        if one["role"] != "follower":
            verdict = "met" if one["longest_ms"] < STALL_MS else "missed"
            verdict = verdict if one["role"] == "leader" else ""
            cells = [one["work"], one["system"], one["what"], one["loop"], *map(str, one["counts"])]
            table.rows.append([*cells, f"{one['longest_ms']:.1f}", verdict])
    return table
