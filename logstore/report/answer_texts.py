"""The answers of a report for its page: the first of each kind, with their facts as texts, and what limits them all."""

from __future__ import annotations

from collections import Counter
from typing import Any

from logstore.core.counts import counted
from logstore.report.figures import age_s
from logstore.report.texts import age_text, size_short, time_text, whole
from logstore.store.base_holders import HOLDERS_MAX

__all__ = ["answer_section"]

ANSWERS_SHOWN = 5  # of each kind
KIND_TEXTS = {
    "in_doubt": "in doubt",
    "transaction": "open transactions",
    "client": "clients",
    "queue": "queues from which nothing is taken",
    "dead_letters": "queues of dead letters",
    "behind": "queues that fall behind",
    "hold": "holds",
    "expired": "queues with expired messages",
    "scheduled": "queues whose messages wait for their time",
}
# These can hold the oldest segment.
HOLDING = frozenset({"in_doubt", "transaction", "queue", "dead_letters", "behind"})


def answer_section(found: dict[str, Any]) -> dict[str, Any]:
    """The answers for people: the facts of each in one line, and the limits of all."""
    listed = found["answers"]
    levels = Counter(one["level"] for one in listed)
    said = [
        f"{whole(levels[level])} {one if levels[level] == 1 else many}"
        for level, one, many in (
            ("stuck", "needs a decision", "need a decision"),
            ("costs", "keeps room", "keep room"),
            ("waits", "waits for its time", "wait for their time"),
        )
        if levels[level]
    ]
    shown: Counter[str] = Counter()
    first = []
    for one in listed:
        shown[one["kind"]] += 1
        if shown[one["kind"]] <= ANSWERS_SHOWN:
            first.append(_answer(found, one))
    more = [f"{whole(n - ANSWERS_SHOWN)} {KIND_TEXTS[kind]}" for kind, n in shown.items() if n > ANSWERS_SHOWN]
    return {
        "said": f"{', '.join(said)}." if said else _all_well(found),
        "listed": first,
        "more": f"Not shown: {', '.join(more)}; --json has all." if more else "",
        "limits": found["not_known"],
    }


def _all_well(found: dict[str, Any]) -> str:
    said = found["summary"]
    if not said["places"]:
        return "Nothing is stuck: no message waits."
    waits = f"{counted(whole(said['places']), 'place')} of messages {'waits' if said['places'] == 1 else 'wait'}"
    return f"Nothing is stuck: {waits}, none for long."


def _all_holders_known(tail: dict[str, Any] | None) -> bool:
    """Whether all that needs the oldest segment was looked at."""
    return tail is not None and tail["holding_messages"] + tail["holding_transactions"] <= HOLDERS_MAX


def _answer(found: dict[str, Any], one: dict[str, Any]) -> dict[str, Any]:
    facts = []
    if one["since"] is not None:
        age = age_text(age_s(one["since"], found["read_time"]), one["at_least"])
        since = f"{'before ' if one['at_least'] else ''}{time_text(one['since'])[:16]} UTC"
        facts.append(("for", f"{age}, since {since}"))
    size = "" if one["content_bytes"] is None else f", {size_short(one['content_bytes'])} of content"
    if one["messages"] is not None:
        noun = "operation" if one["tx_id"] is not None else "message"
        facts.append(("how much", f"{counted(whole(one['messages']), noun)}{size}"))
    if one["held_bytes"]:
        facts.append(("costs", f"holds back the log: {size_short(one['held_bytes'])} that nothing needs stay on disk"))
    elif one["kind"] in HOLDING and _all_holders_known(found["tail"]):
        facts.append(("costs", "only its own bytes: it does not hold back the log"))
    facts += [("note", detail) for detail in one["details"]]
    return {name: one[name] for name in ("kind", "level", "text", "queue", "remedy", "commands")} | {"facts": facts}
