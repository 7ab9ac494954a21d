"""Judges the journals of a chaos run over AMQP (chaos_amqp.py): what must hold of a durable queue of a replicated host.

* lost: a confirmed message is neither settled, nor on the queue, nor was its settlement tried with unknown outcome
* returned after accept: delivered, or on the queue, after its ack was known to be on disk
* accepted twice: two sessions were told that their settlement of one message is on disk
* unmarked: delivered again without the mark ``redelivered``
* reordered: a session got first deliveries of a sender's numbers in another order than they were sent, or the queue has
  them in another order. Numbers without a confirm do not count
* changed: the content is not what was sent
* in part: of a transaction some messages are there and others are not
* without its fault, too few confirms: as in chaos_judge.py

A leader that is deposed may deliver until it notices, and can put nothing on disk any more. So a delivery that would
break a rule is held against a session only when a later settlement of that session is on disk.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from chaos_judge import RoundsJudge

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from chaos_journal import Line

RULES = (
    "lost",
    "reordered",
    "returned after accept",
    "accepted twice",
    "unmarked",
    "changed",
    "in part",
    "without its fault",
    "too few confirms",
)

Place = tuple[int, int]
"""Sender and number."""


@dataclass
class _Session:
    places: list[Place] = field(default_factory=list)
    """Of the settlement that is under way."""
    suspects: list[tuple[str, str]] = field(default_factory=list)
    """Rules and texts, of deliveries that only a deposed leader may make."""
    held: int = 0
    """How many of them came before that settlement."""
    firsts: list[Place] = field(default_factory=list)
    """First deliveries, in their order."""


class AmqpJudge(RoundsJudge):
    """Takes lines in the order of their time, and now and then the queue while no client is connected."""

    rules = RULES

    def __init__(self) -> None:
        super().__init__("deposed")
        self._next: dict[int, int] = {}  # the number after the last, by sender
        self._confirmed: set[Place] = set()  # ever
        self._open: set[Place] = set()  # confirmed, and not known to be gone
        self._tried: set[Place] = set()
        self._settled: set[Place] = set()  # or found gone
        self._returned: set[Place] = set()  # settled, as a session was told
        self._seen: set[Place] = set()
        self._wholes: dict[Place, int] = {}  # transactions that are not judged yet: count, by the first number
        self._sessions: defaultdict[tuple[str, int], _Session] = defaultdict(_Session)

    def take(self, lines: Iterable[Line]) -> None:
        """See ``RoundsJudge``."""
        known = {
            "sent": self._on_sent,
            "confirmed": self._on_confirmed,
            "unknown": self._on_unknown,
            "delivered": self._on_delivered,
            "settling": self._on_settling,
            "settled": self._on_settled,
            **self._of_rounds,
        }
        for line in lines:
            if line["event"] in known:
                known[line["event"]](line)

    def stock(self, queue: Sequence[tuple[int, int, int]], term: int, at_ns: int) -> None:  # noqa: ARG002
        """See ``RoundsJudge``."""
        there = {(sender, number) for _, sender, number in queue}
        if len(there) != len(queue):
            self._find("changed", f"{len(queue) - len(there)} messages are on the queue twice")
        self.counts["left"] += len(there & self._open)
        for place in there:
            self._judge_content(place)
            if place in self._settled:
                self._find("returned after accept", f"{_text(place)} is on the queue, and was settled")
        for place in self._open - there - self._tried - self._settled:
            self._find("lost", f"{_text(place)} was confirmed, and is neither settled nor there")
        self._settled |= (self._open | self._tried) - there
        self._open &= there
        self._tried &= there
        self._judge_order([(sender, number) for _, sender, number in queue], "on the queue")
        for session in self._sessions.values():
            self._judge_order(session.firsts, "in a session")
            self.counts["deposed"] += len(session.suspects)
        self._sessions.clear()  # nobody is connected
        self._judge_wholes(there)

    # ---- senders ----

    def _on_sent(self, line: Line) -> None:
        sender, first, count = line["sender"], line["first"], line["count"]
        self._next[sender] = first + count
        if line["whole"]:
            self._wholes[sender, first] = count

    def _on_confirmed(self, line: Line) -> None:
        places = {(line["sender"], number) for number in line["numbers"]}
        self._confirmed |= places
        self._open |= places - self._settled
        self._count_confirmed(len(places))

    def _on_unknown(self, line: Line) -> None:
        self.counts["unknown"] += line["count"]

    # ---- receivers ----

    def _session(self, line: Line) -> _Session:
        return self._sessions[line["run"], line["session"]]

    def _on_delivered(self, line: Line) -> None:
        session, place = self._session(line), (line["sender"], line["number"])
        self._judge_content(place)
        if place in self._settled:
            session.suspects.append(("returned after accept", f"{_text(place)} was delivered, and was settled"))
        elif place in self._seen and not line["redelivered"]:
            session.suspects.append(("unmarked", f"{_text(place)} was delivered again, and is not marked"))
        elif not line["redelivered"]:
            session.firsts.append(place)
        self._seen.add(place)

    def _on_settling(self, line: Line) -> None:
        session = self._session(line)
        session.places = [(sender, number) for sender, number in line["places"]]
        session.held = len(session.suspects)
        self._tried.update(session.places)

    def _on_settled(self, line: Line) -> None:
        session = self._session(line)
        for rule, text in session.suspects[: session.held]:
            self._find(rule, text)
        del session.suspects[: session.held]
        for place in session.places:
            if place in self._returned:
                self._find("accepted twice", _text(place))
        self._returned.update(session.places)
        self._settled.update(session.places)
        self._open.difference_update(session.places)
        self._tried.difference_update(session.places)
        self.counts["settled"] += len(session.places)
        session.places = []

    # ---- what is there ----

    def _judge_content(self, place: Place) -> None:
        sender, number = place
        if not 0 <= number < self._next.get(sender, 0):
            self._find("changed", f"a content has {_text(place)}, which was never sent")

    def _judge_order(self, places: Sequence[Place], where: str) -> None:
        last: dict[int, int] = {}
        for place in places:
            sender, number = place
            if place not in self._confirmed:
                continue
            if number < last.get(sender, -1):
                self._find("reordered", f"{_text(place)} is behind {sender}:{last[sender]} {where}")
            last[sender] = max(number, last.get(sender, -1))

    def _judge_wholes(self, there: set[Place]) -> None:
        """Nobody works: a message that is there was delivered before, or is on the queue now."""
        wholes, self._wholes = self._wholes, {}
        for (sender, first), count in wholes.items():
            places = [(sender, number) for number in range(first, first + count)]
            found = sum(place in self._seen or place in there for place in places)
            if 0 < found < count:
                self._find("in part", f"{sender}:{first} to {first + count - 1}: {found} of them are there")


def _text(place: Place) -> str:
    return f"{place[0]}:{place[1]}"
