"""The figures of a report: one plain document, which ``--json`` prints as it is and the page draws.

Every list of queues is complete and sorted by its main figure, largest first; ``rest`` sums up the queues that the page
does not show. Times are texts in ISO 8601 (UTC), spans µs, sizes bytes. A depth is null where it is not known, which is
before the last gap of an export.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from logstore.core.moments import moment
from logstore.report.counts import Latency, QueueBytes
from logstore.report.names import labels

if TYPE_CHECKING:
    from collections.abc import Iterable

    from logstore.report.counts import Counts, Held

__all__ = ["age_s", "figures"]

RANKS: Final = {"p50_us": 0.5, "p90_us": 0.9, "p99_us": 0.99, "p999_us": 0.999}


def figures(counts: Counts, facts: dict[str, Any], top: int, tail: dict[str, Any] | None) -> dict[str, Any]:
    """The document: ``facts`` about the store, then all counts; ``top`` queues are shown one by one.

    ``tail``: the tail in the form of ``logstore tail --json``; None for an export.
    """
    counts.labels = labels(counts.names)
    oldest = [_held(counts, held) for held in counts.oldest]
    tail = None if tail is None else _dated(tail, oldest, facts["read_time"])
    return {
        **facts,
        "interval_s": counts.grid.step_us / 1e6,
        "times": [time.isoformat() for time in counts.grid.times()],
        "top": top,
        "summary": _summary(counts)
        | _oldest(oldest, tail, facts["queues_asked"])
        | {"unseen": None if facts["from"] or facts["to"] else _unseen(counts)},
        "depth": _depth(counts, top),
        "written": counts.written,
        "latency": _latency(counts, top),
        "bytes": _bytes(counts, top),
        "deliveries": _deliveries(counts),
        "oldest": oldest,
        "in_doubt": [
            {
                "tx_id": doubt.tx_id,
                "xid": doubt.xid,
                "since": _iso(doubt.since_us),
                "operations": doubt.operations,
                "queues": [_named(counts, queue_id)["queue"] for queue_id in doubt.queue_ids],
            }
            for doubt in counts.doubts
        ],
        "tail": tail,
    }


def _dated(tail: dict[str, Any], oldest: list[dict[str, Any]], read_time: str | None) -> dict[str, Any]:
    """The tail, where a message that is also in ``oldest`` has the same time there.

    The rows know the time of the first enqueue. For a message that was moved they may know none; then the log's tail
    knows it, or a time before which it was enqueued. Changes ``oldest``.
    """
    listed = {one["id"]: one for one in oldest}
    holders = []
    for holder in tail["holders"]:
        since, at_least = _iso(holder["time_us"]), holder["at_least"]
        one = listed.get(holder["id"]) if holder["kind"] == "message" else None
        if one is not None and one["since"] is None:
            one["since"], one["at_least"] = since, at_least
        elif one is not None:
            since, at_least = one["since"], one["at_least"]
        holders.append(holder | {"since": since, "at_least": at_least, "age_s": age_s(since, read_time)})
    return tail | {"holders": holders}


def age_s(since: str | None, read_time: str | None) -> float | None:
    """Seconds from a time to the reading, not below 0; None if one of both is not known."""
    if since is None or read_time is None:
        return None
    return max((datetime.fromisoformat(read_time) - datetime.fromisoformat(since)).total_seconds(), 0.0)


def _oldest(oldest: list[dict[str, Any]], tail: dict[str, Any] | None, queues: list[str]) -> dict[str, Any]:
    """The oldest of all live messages that are listed; only of these queues, if there are any."""
    holders = [one for one in (tail or {"holders": []})["holders"] if one["kind"] == "message"]
    if queues:
        holders = [one for one in holders if any(place["queue"] in queues for place in one["places"])]
    messages = [*oldest, *holders]
    known = [one for one in messages if one["since"] is not None]
    first = min(known, key=lambda one: str(one["since"]), default=None)
    return {
        "oldest_is_known": len(known) == len(messages) and (first is None or not first["at_least"]),
        "oldest_since": None if first is None else first["since"],
    }


def _iso(us: int | None) -> str | None:
    return None if us is None else moment(us).isoformat()


def _named(counts: Counts, queue_id: int | None) -> dict[str, Any]:
    """The queue's id, name and label; id and name are None for messages that were never on a queue."""
    name = None if queue_id is None else counts.names.get(queue_id)
    return {"queue_id": queue_id, "queue": name, "label": counts.label(queue_id)}


def _summary(counts: Counts) -> dict[str, Any]:
    return {
        "published": sum(counts.written.get("messages", ())),
        "records": sum(counts.written.get("records", ())),
        "record_bytes": sum(counts.written.get("record_bytes", ())),
        "content_bytes": sum(counts.written.get("content_bytes", ())),
        "closed": sum(counts.outcomes.values()),
        "outcomes": dict(sorted(counts.outcomes.items())),
        "open": counts.open_messages,
        "places": counts.open_places,
        "open_bytes": counts.open_bytes,
        "pending": counts.open_pending,
        "staged": counts.open_staged,
        "queues": len(counts.queue_ids()),
        "in_doubt": len(counts.doubts),
    }


def _unseen(counts: Counts) -> int:
    """The number of ended places of messages that were never relocated and whose start was recycled."""
    ended = sum(map(sum, counts.went.values()))
    return max(ended - sum(one.settled for one in counts.deliveries.values()), 0)


def _sum(rows: Iterable[list[int]], length: int) -> list[int]:
    total = [0] * length
    for row in rows:
        total = [one + other for one, other in zip(total, row, strict=True)]
    return total


def _known_sum(rows: Iterable[list[int | None]], length: int) -> list[int | None]:
    """As :func:`_sum`; None where a number is not known."""
    total: list[int | None] = [0] * length
    for row in rows:
        total = [None if one is None or other is None else one + other for one, other in zip(total, row, strict=True)]
    return total


def _most(depths: Iterable[int | None]) -> int | None:
    return max((one for one in depths if one is not None), default=None)


def _depth(counts: Counts, top: int) -> dict[str, Any]:
    buckets = counts.grid.buckets
    empty = [0] * buckets
    queues = []
    for queue_id in counts.queue_ids():
        depths, before = counts.depths(queue_id), counts.depth_before(queue_id)
        came, went = counts.came.get(queue_id, empty), counts.went.get(queue_id, empty)
        queues.append(
            {
                **_named(counts, queue_id),
                "enqueued": sum(came),
                "ended": sum(went),
                "deepest": _most([before, *depths]),
                "depth": depths[-1] if depths else before,
                "values": depths,
            }
        )
    queues.sort(key=lambda one: (-(one["deepest"] or 0), -one["enqueued"], one["queue_id"]))
    others = queues[top:]
    found: dict[str, Any] = {
        "known_from": _iso(counts.known_from_us),
        "queues": [{name: value for name, value in one.items() if name != "values"} for one in queues],
        "series": [{name: one[name] for name in ("queue_id", "queue", "label", "values")} for one in queues[:top]],
        "rest": None,
        "total": _known_sum((one["values"] for one in queues), buckets),
        "enqueued": _sum(counts.came.values(), buckets),
        "ended": _sum(counts.went.values(), buckets),
    }
    if others:
        sums = {name: sum(one[name] for one in others) for name in ("enqueued", "ended")}
        (depth,) = _known_sum(([one["depth"]] for one in others), 1)
        values = _known_sum((one["values"] for one in others), buckets)
        deepest = _most([depth, *values])
        found["rest"] = {"queues": len(others), **sums, "depth": depth, "deepest": deepest, "values": values}
    return found


def _latency_row(latency: Latency) -> dict[str, Any]:
    quantiles = {name: latency.quantile_us(rank) for name, rank in RANKS.items()}
    mean = latency.total_us / latency.count if latency.count else 0.0
    return {"count": latency.count, "min_us": latency.min_us, "mean_us": mean, **quantiles, "max_us": latency.max_us}


def _latency(counts: Counts, top: int) -> dict[str, Any]:
    ranked = sorted(counts.latency.items(), key=lambda item: (-item[1].count, item[0]))
    rest = Latency()
    for _, one in ranked[top:]:
        rest.add(one.steps, one.total_us, one.min_us, one.max_us)
    return {
        "queues": [{**_named(counts, queue_id), **_latency_row(one)} for queue_id, one in ranked],
        "rest": {"queues": len(ranked) - top, **_latency_row(rest)} if rest.count else None,
    }


def _bytes_row(one: QueueBytes) -> dict[str, Any]:
    names = ("messages", "places", "content_bytes", "record_bytes", "copied_bytes")
    return {name: getattr(one, name) for name in names} | {"write_amplification": one.amplification}


def _bytes(counts: Counts, top: int) -> dict[str, Any]:
    def order(item: tuple[int | None, QueueBytes]) -> tuple[int, int]:
        return -(item[1].record_bytes + item[1].copied_bytes), -1 if item[0] is None else item[0]

    ranked = sorted(counts.bytes.items(), key=order)
    rest, total = QueueBytes(), QueueBytes()
    for index, (_, one) in enumerate(ranked):
        for sums in (total, rest) if index >= top else (total,):
            sums.add(one.messages, one.places, one.content_bytes, one.record_bytes, one.copied_bytes)
    return {
        "queues": [{**_named(counts, queue_id), **_bytes_row(one)} for queue_id, one in ranked],
        "rest": {"queues": len(ranked) - top, **_bytes_row(rest)} if len(ranked) > top else None,
        "total": _bytes_row(total),
    }


def _deliveries(counts: Counts) -> list[dict[str, Any]]:
    ranked = sorted(counts.deliveries.items(), key=lambda item: (-item[1].redelivered, -item[1].dead, item[0]))
    return [
        {
            **_named(counts, queue_id),
            **{name: getattr(one, name) for name in ("settled", "told", "redelivered", "deliveries", "most")},
            "dead_lettered": one.dead,
            "last_dead_lettered": _iso(one.last_dead_us),
        }
        for queue_id, one in ranked
    ]


def _held(counts: Counts, held: Held) -> dict[str, Any]:
    names = ("id", "content_bytes", "places", "pending", "staged", "moved")
    told = {name: getattr(held, name) for name in names}
    since = {"since": _iso(held.since_us), "at_least": False}
    return _named(counts, held.queue_id) | since | told | {"remedy": _remedy(counts, held)}


def _remedy(counts: Counts, held: Held) -> str:
    """The action that would free it, as a sentence."""
    actions = []
    if held.queue_id is not None:
        name = counts.names.get(held.queue_id)
        more = f" and {held.places - 1} more" if held.places > 1 else ""
        actions.append(f"consume or purge queue {held.queue_id if name is None else repr(name)}{more}")
    if held.pending:
        actions.append("commit or roll back the transaction that has work on it")
    if not actions and held.staged:
        return "enqueue or destroy it; a restart drops it"
    if not actions and held.places:
        return "consume or purge the queues on which it waits"
    return "; ".join(actions) if actions else "nothing: it is being removed"
