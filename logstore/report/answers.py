"""The first part of a report: what is stuck, since when, what it costs, and the command that would free it.

An answer is a plain document. Those that an operator must act on come first; the order is that of ``KINDS``, then by
the bytes of log that it holds back, then by its messages. What nobody can know from this source is said as well.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from logstore.core.counts import counted
from logstore.core.moments import moment, time_text
from logstore.report.names import nameless, short
from logstore.report.texts import size_short, whole

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from logstore.report.counts import Doubt, OpenWork
    from logstore.report.waiting import Waiting

__all__ = ["KINDS", "STUCK_S", "Known", "answers", "not_known"]

STUCK_S: Final = 60  # a message that waits less is on its way
BEHIND_S: Final = 600  # for a queue from which something leaves
QUEUES_NAMED: Final = 3
# Level by kind, in the order shown: "stuck" needs a decision, "costs" keeps room, "waits" is intended.
KINDS: Final = {
    "full": "stuck",
    "in_doubt": "stuck",
    "transaction": "stuck",
    "client": "stuck",
    "queue": "stuck",
    "dead_letters": "costs",
    "behind": "costs",
    "hold": "costs",
    "expired": "costs",
    "scheduled": "waits",
}
_ORDER: Final = {kind: index for index, kind in enumerate(KINDS)}


@dataclass(slots=True)
class Known:
    """What the answers are made from."""

    place: str
    """The directory for the commands."""
    labels: Mapping[int, str]
    names: Mapping[int, str]
    waiting: Mapping[int, Waiting]
    left_us: Mapping[int, int | None] | None
    """When something last left a queue, at the latest; None for a queue if nothing did as far back as the log goes, and
    as a whole if not all of the log was counted.
    """
    step_us: int
    """The accuracy of these times."""
    first_us: int | None
    """The time of the first record."""
    now_us: int
    """When the log ended, or when a store in use was read."""
    doubts: Sequence[Doubt] = ()
    """The transactions in doubt, for a source that does not know ``work``."""
    work: Sequence[OpenWork] | None = None
    work_bytes: Mapping[int, int] = field(default_factory=dict)
    """The content bytes of the messages of ``work``, by transaction."""
    tail: Mapping[str, Any] | None = None
    dead_bytes: int = 0
    """Bytes of the log that nothing needs."""
    holding: frozenset[tuple[str, int]] = frozenset()
    """What needs the oldest segment: ("queue" or "transaction", id)."""
    dead_letter_ids: frozenset[int] = frozenset()
    """Queues that take the dead letters of another one, according to the catalog."""
    broker: Mapping[str, Any] | None = None
    queues_asked: frozenset[int] | None = None
    catalog_options: Sequence[str] = ()
    """The options with which a command finds the catalog."""

    def label(self, queue_id: int) -> str:
        """The queue for a text."""
        return f"“{short(self.labels[queue_id])}”" if queue_id in self.labels else nameless(queue_id)

    def listed(self, queue_ids: Sequence[int]) -> str:
        """Queues for a text."""
        more = len(queue_ids) - QUEUES_NAMED
        named = ", ".join(map(self.label, queue_ids[:QUEUES_NAMED]))
        return f"{named} and {counted(whole(more), 'more queue')}" if more > 0 else named

    def command(self, name: str, *rest: str) -> str:
        """A command of the shell that reads the catalog."""
        end = ["--"] if rest and rest[0].startswith("-") else []
        return shlex.join(["logstore", name, self.place, *self.catalog_options, *end, *rest])

    def command_of_store(self, name: str) -> str:
        """A command of the shell that needs no catalog."""
        return shlex.join(["logstore", name, self.place])

    def held_bytes(self, kind: str, number: int) -> int | None:
        """The bytes that nothing needs behind the oldest segment, if this is known to need it; else None."""
        if self.tail is None or (kind, number) not in self.holding:
            return None
        return self.dead_bytes


def answers(known: Known) -> list[dict[str, Any]]:
    """The answers, the worst first; empty if nothing is stuck."""
    found = [*_full(known), *_transactions(known), *_queues(known), *_holds(known)]
    stuck = {one["queue"]: one for one in found if one["kind"] == "queue"}
    found += _clients(known, stuck)
    return sorted(found, key=lambda one: (_ORDER[one["kind"]], -(one["held_bytes"] or 0), -(one["messages"] or 0)))


def _answer(kind: str, text: str, remedy: str, commands: Sequence[str] = (), **more: Any) -> dict[str, Any]:
    names = ("since", "messages", "content_bytes", "held_bytes", "queue_id", "queue", "tx_id", "xid")
    empty = dict.fromkeys((*names, "consumer"))
    told = {"kind": kind, "level": KINDS[kind], "text": text, "details": [], "at_least": False}
    return told | empty | {"remedy": remedy, "commands": list(commands)} | more


def _iso(us: int | None) -> str | None:
    return None if us is None else _time(us)


def _time(us: int) -> str:
    return moment(us).isoformat()


def _full(known: Known) -> list[dict[str, Any]]:
    full = None if known.broker is None else known.broker["full"]
    if full is None:
        return []
    level = "The log is full" if full["level"] == "full" else "The log is nearly full"
    remedy = "; ".join(full["remedies"]) or "more room for the log"
    return [_answer("full", f"{level}: {full['reason']}", remedy, [known.command("info")], since=full["since"])]


def _transactions(known: Known) -> list[dict[str, Any]]:
    if known.work is None:
        return [
            _transaction(known, one.tx_id, one.xid, one.since_us, one.operations, one.queue_ids, is_prepared=True)
            for one in known.doubts
        ]
    return [
        _transaction(
            known, one.tx_id, one.xid, one.since_us, len(one.message_ids), one.queue_ids, is_prepared=one.prepared
        )
        for one in known.work
        if one.prepared or one.since_us is None or known.now_us - one.since_us >= STUCK_S * 1_000_000
    ]


def _transaction(
    known: Known,
    tx_id: int,
    xid: str | None,
    since_us: int | None,
    operations: int,
    queue_ids: Sequence[int],
    *,
    is_prepared: bool,
) -> dict[str, Any]:
    on = f" on {known.listed(queue_ids)}" if queue_ids else ""
    name = f"Transaction {tx_id if xid is None else xid}"
    work = f"with {counted(whole(operations), 'operation')}{on}"
    queue_id = queue_ids[0] if len(queue_ids) == 1 else None
    told = {
        "since": _iso(since_us),
        "messages": operations,
        "content_bytes": known.work_bytes.get(tx_id),
        "held_bytes": known.held_bytes("transaction", tx_id),
        "tx_id": tx_id,
        "xid": xid,
        "queue_id": queue_id,
        "queue": None if queue_id is None else known.names.get(queue_id),
    }
    if not is_prepared:
        text = f"{name} is open, {work}: it was neither committed nor rolled back"
        remedy = "the program that began it commits it or rolls it back; the next open of the store rolls it back"
        return _answer("transaction", text, remedy, [known.command("tail")], **told)
    text = f"{name} is in doubt, {work}: it was prepared and has no outcome"
    remedy = "the outcome from its coordinator; if that is gone for good, one of these, the same for all branches"
    verbs = () if xid is None else ("rollback", "commit")
    place = ["logstore", "in-doubt", known.place]
    commands = [shlex.join([*place, verb, *known.catalog_options, xid or ""]) for verb in verbs]
    made = _answer("in_doubt", text, remedy, commands, **told)
    made["details"].append("what it dequeued is locked, what it published is invisible")
    return made


def _broker_rows(known: Known) -> dict[int, Mapping[str, Any]]:
    rows = () if known.broker is None else known.broker["queues"] or ()
    return {row["id"]: row for row in rows if row["id"] is not None}


def _queues(known: Known) -> list[dict[str, Any]]:
    rows = _broker_rows(known)
    found = []
    for queue_id, one in sorted(known.waiting.items()):
        if known.queues_asked is None or queue_id in known.queues_asked:
            if one.offered:
                found += _offered(known, queue_id, one, rows.get(queue_id))
            found += _scheduled(known, queue_id, one)
    return found


def _offered(known: Known, queue_id: int, one: Waiting, row: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """The answer for a queue whose messages a consumer could take."""
    since, at_least = one.since_us, one.unknown > 0
    if at_least:
        since = known.first_us
    age_us = None if since is None else known.now_us - since
    is_old = at_least or (age_us is not None and age_us >= STUCK_S * 1_000_000)
    left_us = None if known.left_us is None else known.left_us.get(queue_id)
    quiet = left_us is None or known.now_us - left_us >= max(STUCK_S * 1_000_000, known.step_us)
    consumers = None if row is None else row["consumers"]
    is_dead = queue_id in known.dead_letter_ids or (one.dead > 0 and 2 * one.dead >= one.places - one.unknown)
    name, told = known.label(queue_id), _of_queue(known, queue_id, one)
    told |= {"since": _iso(since), "at_least": at_least}
    waits = f"{counted(whole(one.offered), 'message')} of {name} {'waits' if one.offered == 1 else 'wait'}"
    if not is_old:
        return []
    if is_dead:
        text = f"{counted(whole(one.offered), 'dead letter')} on {name}"
        made = _answer(
            "dead_letters", text, "look at them, then consume or purge them", _commands(known, queue_id), **told
        )
    elif quiet or consumers == 0:
        why = ", and nothing takes them"
        remedy = "a consumer takes them, or a purge drops them"
        if consumers == 0:
            why = "; the queue has no consumer"
        elif row is not None and row["unacknowledged"]:
            why = ", and nothing is acknowledged"
            remedy = "its consumers acknowledge them or end; a purge drops what they do not have"
        elif known.left_us is None:
            why = ""
        text = f"{waits}{why}"
        made = _answer("queue", text, remedy, _commands(known, queue_id), **told)
        if known.left_us is None:
            pass  # only a part of the time was counted
        elif left_us is None:
            made["details"].append("nothing has left it as far back as the log goes")
        else:
            made["details"].append(f"nothing has left it since {time_text(max(left_us, 1))}")
    elif age_us is not None and age_us >= BEHIND_S * 1_000_000:
        text = f"{waits}; some are taken, but not the oldest"
        made = _answer(
            "behind", text, "more or faster consumers, or a purge, which drops them", _commands(known, queue_id), **told
        )
    else:
        return []
    if row is not None and (row["consumers"] or row["unacknowledged"]):
        made["details"].append(
            f"{counted(whole(row['consumers'] or 0), 'consumer')}, "
            f"{counted(whole(row['unacknowledged'] or 0), 'message')} not acknowledged"
        )
    if not known.names.get(queue_id):
        made |= {"remedy": "the next open of the store, which drops what no queue of the catalog has", "commands": []}
    return [made]


def _of_queue(known: Known, queue_id: int, one: Waiting) -> dict[str, Any]:
    return {
        "messages": one.offered,
        "content_bytes": one.content_bytes,
        "held_bytes": known.held_bytes("queue", queue_id),
        "queue_id": queue_id,
        "queue": known.names.get(queue_id),
    }


def _commands(known: Known, queue_id: int) -> list[str]:
    name = known.names.get(queue_id)
    return [] if name is None else [known.command("peek", name), known.command("purge", name)]


def _scheduled(known: Known, queue_id: int, one: Waiting) -> list[dict[str, Any]]:
    name, found = known.label(queue_id), []
    if one.expired:
        still = "is still there" if one.expired == 1 else "are still there"
        text = f"{counted(whole(one.expired), 'message')} of {name} expired and {still}"
        told = _of_queue(known, queue_id, one) | {"messages": one.expired, "since": _iso(one.expired_us)}
        remedy = "a broker that serves the store removes them, or dead-letters them"
        found.append(_answer("expired", text, remedy, _commands(known, queue_id), **told))
    if one.hidden:
        verb = "waits for its time" if one.hidden == 1 else "wait for their time"
        text = f"{counted(whole(one.hidden), 'message')} of {name} {verb}"
        told = _of_queue(known, queue_id, one) | {"messages": one.hidden}
        if one.offered or one.expired:
            told["content_bytes"] = None  # of all places together
        made = _answer(
            "scheduled", text, "nothing: each is offered at its time", _commands(known, queue_id)[:1], **told
        )
        made["details"].append(f"the first is due {time_text(one.due_us or 0)}")
        found.append(made)
    return found


def _holds(known: Known) -> list[dict[str, Any]]:
    found = []
    for hold in () if known.tail is None else known.tail["holds"]:
        if hold["state"] != "honoured" or not hold["kept_bytes"]:
            continue
        process = "" if hold["pid"] is None else f" of process {hold['pid']}"
        text = f"The hold “{short(hold['name'])}”{process} keeps the log from LSN {hold['lsn']} on for a reader"
        remedy = "the end of its reader, its time, or its limit" + (
            "" if hold["limit_bytes"] is None else f" of {size_short(hold['limit_bytes'])}"
        )
        since = None if hold["age_s"] is None else _iso(known.now_us - int(hold["age_s"] * 1e6))
        made = _answer(
            "hold", text, remedy, [known.command_of_store("holds")], held_bytes=hold["kept_bytes"], since=since
        )
        found.append(made)
    return found


def _clients(known: Known, stuck: Mapping[str | None, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The clients of the broker that have not acknowledged, or do not read."""
    found = []
    ids = {name: queue_id for queue_id, name in known.names.items()}
    for one in () if known.broker is None else known.broker["connections"] or ():
        asked = known.queues_asked
        if asked is not None and not any(known.names.get(queue_id) in one["queues"] for queue_id in asked):
            continue
        blocked, silent = one["blocked_s"] or 0, one["silent_s"]
        reads_not = one["waits_for"] == "client" and blocked >= STUCK_S
        on_stuck = [stuck[name] for name in one["queues"] if name in stuck]
        if not reads_not and not (one["unacknowledged"] and (silent >= STUCK_S or on_stuck)):
            continue
        seconds = blocked if reads_not else silent if silent >= STUCK_S else None
        stood = [each["since"] for each in on_stuck if each["since"]]
        connected = _time(known.now_us - int(one["connected_s"] * 1e6))
        since = max(min(stood, default=connected), connected, key=datetime.fromisoformat)
        queues = known.listed([ids[name] for name in one["queues"] if name in ids])
        user = "" if one["user"] is None else f" of user “{short(one['user'])}”"
        what = f"has {counted(whole(one['unacknowledged']), 'unacknowledged message')}"
        if queues:
            what += f" as a consumer of {queues}"
        if reads_not:
            what += f", and does not read: {size_short(one['unsent_bytes'])} wait for it"
        remedy = "it acknowledges or ends: when its connection closes, its messages go back to their queues"
        told = {
            "since": _iso(known.now_us - int(seconds * 1e6)) if seconds else since,
            "messages": one["unacknowledged"],
            "consumer": one["peer"],
            "queue": one["queues"][0] if len(one["queues"]) == 1 else None,
        }
        told["queue_id"] = ids.get(told["queue"])
        text = f"Client {one['peer']}{user} {what}"
        found.append(_answer("client", text, remedy, [known.command_of_store("connections")], **told))
    return found


def not_known(facts: Mapping[str, Any], broker: Mapping[str, Any] | None, *, catalog_secret: bool = False) -> list[str]:
    """Sentences that limit the answers."""
    found = []
    if facts["kind"] == "export":
        found.append(
            "An export does not have consumers, unacknowledged messages, open transactions, holds, and what holds the "
            "log back. The answers are of its last record. Report on the store itself for the rest."
        )
    elif facts["state"] != "live":
        found.append(
            "No process has the store open, so nothing is delivered until one opens it. How long a queue stood still "
            "is measured up to the last record."
        )
    elif broker is None:
        found.append("No broker was asked: consumers and unacknowledged messages are not known.")
    elif broker["problem"] is not None:
        found.append(f"Consumers and unacknowledged messages are not known: {broker['problem']}.")
    if facts["to"]:
        found.append("The answers are of the end of the log, not of the time asked for.")
    if catalog_secret:
        found.append(
            "The commands name the catalog without its password: give the whole URL in LOGSTORE_CONNECT instead."
        )
    if facts["queues_asked"]:
        found.append("Only of the queues asked for; transactions and holds are of the whole log.")
    return found
