"""A sample of what a store does: log, forces, relocation, scrub and queues, for ``logstore stats`` and other monitors.

A sample is a JSON document; docs/api.md has its keys. Its counters only grow while one process serves the store, so two
samples give rates. A broker sends its part through the control socket, with the queues as rows to keep it short. What a
sample does not know is null: a log that is only read knows no counters and no consumers.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from logstore.store.fullness import full_document

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from logstore.store.message_store import MessageStore

__all__ = ["COUNTERS", "PLACE_COUNTS", "QUEUE_KEYS", "sampled_queues", "statistics_of", "totals_of", "with_rates"]

COUNTERS: Final = ("published", "delivered", "acknowledged")
PLACE_COUNTS: Final = (
    *("depth", "ready", "acquired", "locked", "hidden", "expired"),
    *("bytes", "ready_bytes"),
)  # as of ``QueueCounts``
QUEUE_KEYS: Final = (
    *("id", "name", "durable", *PLACE_COUNTS, "unacknowledged", "unreadable", "consumers"),
    *COUNTERS,
)
_SUMS: Final = (
    *("depth", "ready", "acquired", "locked", "hidden", "expired"),
    *("unacknowledged", "unreadable", "consumers", *COUNTERS),
)


def statistics_of(store: MessageStore) -> dict[str, Any]:
    """The part of a sample that an open store knows: everything but its queues. May wait for the disk (holds)."""
    counters = store._counters()
    limit = store.fullness().max_log_bytes
    scrub = None
    if "scrub_rounds" in counters:
        scrub = {name: counters[f"scrub_{name}"] for name in ("rounds", "bytes", "errors", "last_error", "position")}
    return {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "clock_s": time.monotonic(),
        "full": full_document(store),
        "log": {
            "bytes": counters["log_bytes"],
            "live_bytes": counters["live_bytes"],
            "counted_bytes": counters["counted_bytes"],
            "held_bytes": counters["held_bytes"],
            "max_bytes": limit,
            "segments": counters["segments"],
            "spares": counters["spares"],
            "base_lsn": store.base_lsn,
            "durable_lsn": store.durable_lsn,
        },
        "forces": {
            "count": counters["syncs"],
            "bytes": counters["batch_bytes"],
            "took_us": counters["sync_us"],
            "took_us_max": counters["sync_us_max"],
        },
        "relocation": {
            "segments": counters["segments_relocated"],
            "bytes": counters["relocated_bytes"],
            "failures": counters["relocation_failures"],
        },
        "scrub": scrub,
        "threads_failed": counters["threads_failed"],
    }


def sampled_queues(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[dict[str, Any]]:
    """Queues from the rows that a broker sent. A key that it does not send is null, one that is new is left out."""
    places = {name: at for at, name in enumerate(columns)}
    wanted = [(name, places.get(name)) for name in QUEUE_KEYS]
    return [{name: None if at is None else row[at] for name, at in wanted} for row in rows]


def totals_of(queues: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The sums over all queues; null if no queue says."""
    listed = list(queues)
    sums = {}
    for name in _SUMS:
        known = [queue[name] for queue in listed if queue[name] is not None]
        sums[name] = sum(known) if known or not listed else None
    return sums


def with_rates(sample: dict[str, Any], before: dict[str, Any] | None) -> dict[str, Any]:
    """The sample with rates per second since the sample ``before`` of the same store.

    A rate is null without such a sample, if another process served the store then, and for a queue that is new.
    """
    seconds = None
    if before is not None and sample["broker"] is not None and _process(sample) == _process(before):
        seconds = sample["clock_s"] - before["clock_s"]
    if not seconds or before is None:
        seconds, old, forces = None, {}, None
    else:
        old, forces = {(one["id"], one["name"]): one for one in before["queues"]}, before["forces"]
    queues = [_with_rates_of(queue, old.get((queue["id"], queue["name"])), seconds) for queue in sample["queues"]]
    totals = dict(sample["totals"])
    for name in COUNTERS:
        known = [queue[f"{name}_per_s"] for queue in queues if queue[f"{name}_per_s"] is not None]
        totals[f"{name}_per_s"] = None if seconds is None else round(sum(known), 3)
    made = {**sample, "seconds": seconds, "totals": totals, "queues": queues}
    if sample["forces"] is not None:
        made["forces"] = _forces(sample["forces"], forces, seconds)
    return made


def _process(sample: Mapping[str, Any]) -> tuple[Any, Any] | None:
    broker = sample["broker"]
    return None if broker is None else (broker["pid"], broker["started"])


def _with_rates_of(queue: dict[str, Any], before: dict[str, Any] | None, seconds: float | None) -> dict[str, Any]:
    made = dict(queue)
    for name in COUNTERS:
        grown = None
        if seconds is not None and before is not None and None not in (queue[name], before[name]):
            grown = queue[name] - before[name]
        made[f"{name}_per_s"] = None if grown is None or seconds is None or grown < 0 else round(grown / seconds, 3)
    return made


def _forces(now: dict[str, Any], before: dict[str, Any] | None, seconds: float | None) -> dict[str, Any]:
    count, took_us = now["count"], now["took_us"]
    if before is not None:
        count, took_us = count - before["count"], took_us - before["took_us"]
    per_s = None if seconds is None else round(count / seconds, 3)
    return {**now, "per_s": per_s, "mean_us": round(took_us / count, 1) if count > 0 else None}
