"""Judges the journals of a chaos run: what must hold of a replicated queue under faults.

* lost: a confirmed message is neither settled, nor on the queue, nor was its settlement tried with unknown outcome
* returned after accept: delivered, or on the queue, after its accept or reject returned. A deposed leader of an older
  term may deliver it until it notices; its accept must fail
* accepted twice: two settlements of one message returned
* reordered: in one reign (a run that leads in a term) the numbers of a sender are first handed out in another order
  than they were sent, or one was passed over; or the queue has them in another order. Numbers that were sent again, and
  those without a confirm, do not count
* two leaders: two runs lead or confirm in one term, or confirm the same id
* changed: the content is not what was sent, or a confirmed id has another message
* duplicated: a message that was confirmed, and was sent once, has a second id
* in part: of a transaction some messages are there and others are not
* without its fault: a round ended before all faults that its plan has were made
* too few confirms: a round ended with fewer confirmed messages than it had to have, or none after its last fault

The last two are failures of the driver: the round proves nothing.
A message is known by its id, which is an LSN, and its term is in the id: LSNs of term T begin at T x 2**40.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from chaos_journal import Line

TERM_SHIFT = 40
RULES = (
    "lost",
    "reordered",
    "returned after accept",
    "accepted twice",
    "two leaders",
    "changed",
    "duplicated",
    "in part",
    "without its fault",
    "too few confirms",
)
SHOWN_MAX = 10

Place = tuple[int, int, int]
"""A place on the queue: id, sender, number."""


@dataclass
class Reign:
    """What was handed out by one run in one term."""

    name: str
    seen: set[int] = field(default_factory=set)
    highest: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    """By sender: since when (ns) which number was the highest that was handed out, ascending."""
    unanswered: int = 0
    """Messages of acquires that have not returned: a kill hides what they got."""
    passed: set[int] = field(default_factory=set)
    """Ids that were there, and were passed over."""

    def highest_before(self, sender: int, at_ns: int) -> int:
        """The highest number handed out by an acquire that had returned before; -1: none."""
        entries = self.highest.get(sender, [])
        at = bisect.bisect_left(entries, (at_ns, -1))
        return entries[at - 1][1] if at else -1

    def seen_of(self, sender: int) -> int:
        """The highest number of all that were handed out; -1: none."""
        entries = self.highest.get(sender)
        return entries[-1][1] if entries else -1

    def hand_out(self, sender: int, number: int, at_ns: int) -> None:
        entries = self.highest.setdefault(sender, [])
        if not entries or number > entries[-1][1]:
            entries.append((at_ns, number))


@dataclass
class _Group:
    reign: Reign
    term: int
    since_ns: int
    count: int
    places: list[Place] = field(default_factory=list)


@dataclass
class _Round:
    number: int
    planned: int
    confirms: int  # the least
    made: int = 0
    confirmed: int = 0
    confirmed_after: int = 0  # since its last fault


class RoundsJudge:
    """What all judges have: counts, findings, and the rounds."""

    rules: Sequence[str]

    def __init__(self, *others: str) -> None:
        """``others``: further counts."""
        self.counts = dict.fromkeys(("confirmed", "left", "settled", "unknown", *others, *self.rules), 0)
        self.findings: list[str] = []
        self._round: _Round | None = None
        self._of_rounds = {"round": self._on_round, "fault": self._on_fault, "ended": self._on_ended}

    def take(self, lines: Iterable[Line]) -> None:
        """Judges further lines, which are not older than those before."""
        raise NotImplementedError

    def stock(self, queue: Sequence[Place], term: int, at_ns: int) -> None:
        """The whole queue, read from the leader of this term or from a closed copy, while nobody works."""
        raise NotImplementedError

    @property
    def violations(self) -> int:
        """How many there were, of all rules."""
        return sum(self.counts[rule] for rule in self.rules)

    def _find(self, rule: str, text: str) -> None:
        self.counts[rule] += 1
        if len(self.findings) < SHOWN_MAX:
            self.findings.append(f"{rule}: {text}")

    def _count_confirmed(self, count: int) -> None:
        self.counts["confirmed"] += count
        if self._round is not None:
            self._round.confirmed += count
            self._round.confirmed_after += count

    def _on_round(self, line: Line) -> None:
        self._round = _Round(line["number"], line["planned"], line["confirms"])

    def _on_fault(self, _: Line) -> None:
        if self._round is not None:
            self._round.made += 1
            self._round.confirmed_after = 0

    def _on_ended(self, line: Line) -> None:
        ended, self._round = self._round, None
        if ended is None or ended.number != line["number"]:
            self._find("without its fault", f"round {line['number']} ended and had not begun")
            return
        if not 0 < ended.planned <= ended.made:
            self._find("without its fault", f"round {ended.number}: {ended.made} of {ended.planned} faults were made")
        if ended.confirmed < ended.confirms or not ended.confirmed_after:
            self._find(
                "too few confirms",
                f"round {ended.number}: {ended.confirmed} of {ended.confirms}, {ended.confirmed_after} after faults",
            )


class Judge(RoundsJudge):
    """Takes lines in the order of their time, and now and then the queue while nobody works."""

    rules = RULES

    def __init__(self) -> None:
        super().__init__("deposed")
        self._leaders: dict[int, str] = {}  # the run that leads, by term
        self._next: dict[int, int] = {}  # the number after the last, by sender
        self._again: set[tuple[int, int]] = set()  # sender and number of what was sent again
        self._confirmed: dict[int, tuple[int, int]] = {}  # sender and number, by id, while it is not known to be gone
        self._settled: dict[int, tuple[int, int]] = {}  # by id: in which term it was settled or found gone, and when
        self._returned: set[int] = set()  # ids of which a settlement has returned
        self._tried: set[int] = set()
        self._groups: dict[tuple[str, int], _Group] = {}
        self._reigns: dict[tuple[str, int], Reign] = {}
        self._seen: set[int] = set()  # ids that were handed out and may be again
        self._ids: dict[tuple[int, int], int] = {}  # of what was confirmed, by sender and number
        self._wholes: dict[tuple[int, int], int] = {}  # the numbers of a transaction without a confirm, by the first
        self._ids_of: dict[tuple[int, int], set[int]] = {}  # all ids of each of their messages

    def take(self, lines: Iterable[Line]) -> None:
        """See ``RoundsJudge``."""
        lines = list(lines)
        senders = {
            "sent": self._on_sent,
            "confirmed": self._on_confirmed,
            "unknown": self._on_unknown,
            **self._of_rounds,
        }
        others = {
            "leads": self._on_leads,
            "acquiring": self._on_acquiring,
            "acquired": self._on_acquired,
            "settling": self._on_settling,
            "settled": self._on_settled,
        }
        for known in (senders, others):  # order is judged with all that was sent again meanwhile
            for line in lines:
                if line["event"] in known:
                    known[line["event"]](line)

    def stock(self, queue: Sequence[Place], term: int, at_ns: int) -> None:
        """See ``RoundsJudge``."""
        there = {key for key, _, _ in queue}
        self.counts["left"] += len(there & self._confirmed.keys())
        for key, sender, number in queue:
            self._judge_content((key, sender, number))
            if key in self._settled:
                self._find("returned after accept", f"{sender}:{number} (id {key}) is on the queue, and was settled")
        for key, (sender, number) in list(self._confirmed.items()):
            if key in there:
                continue
            if key not in self._settled and key not in self._tried:
                self._find("lost", f"{sender}:{number} (id {key}) was confirmed, and is neither settled nor there")
            self._settled.setdefault(key, (term, at_ns))
            del self._confirmed[key]
        for key in self._tried - there:
            self._settled.setdefault(key, (term, at_ns))
        self._tried &= there
        self._seen &= there
        self._judge_order(queue)
        self._judge_wholes()
        self._groups.clear()  # nobody works: each is dealt with, or its process is dead

    # ---- who leads ----

    def _on_leads(self, line: Line) -> None:
        self._is_led(line["term"], line["run"])

    def _is_led(self, term: int, run: str) -> None:
        other = self._leaders.setdefault(term, run)
        if other != run:
            self._find("two leaders", f"{other} and {run} in term {term}")

    # ---- senders ----

    def _on_sent(self, line: Line) -> None:
        sender, first, count = line["sender"], line["first"], line["count"]
        there = self._next.get(sender, 0)
        self._again |= {(sender, number) for number in range(first, min(first + count, there))}
        self._next[sender] = max(there, first + count)
        if line.get("whole"):
            self._wholes[sender, first] = count
            for number in range(first, first + count):
                self._ids_of.setdefault((sender, number), set())

    def _on_confirmed(self, line: Line) -> None:
        for at, key in enumerate(line["ids"]):
            self._is_led(key >> TERM_SHIFT, line["run"])
            if key in self._confirmed or key in self._settled:
                self._find("two leaders", f"id {key} was confirmed twice, the second time by {line['run']}")
            self._confirmed[key] = line["sender"], line["first"] + at
            self._ids[line["sender"], line["first"] + at] = key
            self._note_id((key, line["sender"], line["first"] + at))
        self._count_confirmed(len(line["ids"]))

    def _on_unknown(self, line: Line) -> None:
        self.counts["unknown"] += line["count"]

    # ---- receivers ----

    def _on_acquiring(self, line: Line) -> None:
        run, term = line["run"], line["term"]
        self._is_led(term, run)
        reign = self._reigns.setdefault((run, term), Reign(f"{run} in term {term}"))
        reign.unanswered += line["count"]
        self._groups[run, line["group"]] = _Group(reign, term, line["at_ns"], line["count"])

    def _on_acquired(self, line: Line) -> None:
        group = self._groups[line["run"], line["group"]]
        reign = group.reign
        reign.unanswered -= group.count
        group.places = [(key, *number) for key, number in zip(line["ids"], line["numbers"], strict=True)]
        for key, sender, number in group.places:
            self._judge_content((key, sender, number))
            if key in self._settled:
                self._was_settled(group, key, f"{sender}:{number} (id {key})")
            if key not in reign.seen:
                self._judge_first(reign, (key, sender, number), group.since_ns)
            reign.seen.add(key)
            self._seen.add(key)
        for _, sender, number in group.places:
            reign.hand_out(sender, number, line["at_ns"])
        if not group.places:
            del self._groups[line["run"], line["group"]]

    def _was_settled(self, group: _Group, key: int, name: str) -> None:
        settled_in, settled_ns = self._settled[key]
        if group.term < settled_in:
            self.counts["deposed"] += 1
        elif group.since_ns > settled_ns:
            self._find("returned after accept", f"{name} was delivered by {group.reign.name}")

    def _on_settling(self, line: Line) -> None:
        self._tried |= {key for key, _, _ in self._places(line)}

    def _on_settled(self, line: Line) -> None:
        group = self._groups[line["run"], line["group"]]
        for key, sender, number in self._places(line):
            if key in self._returned:
                self._find("accepted twice", f"{sender}:{number} (id {key}), the second time by {group.reign.name}")
            self._returned.add(key)
            self._settled[key] = group.term, line["at_ns"]
            self._tried.discard(key)
            self.counts["settled"] += 1

    def _places(self, line: Line) -> list[Place]:
        return self._groups[line["run"], line["group"]].places[line["start"] : line["end"]]

    # ---- contents ----

    def _judge_content(self, place: Place) -> None:
        self._note_id(place)
        key, sender, number = place
        known = self._confirmed.get(key, (sender, number))
        if not 0 <= number < self._next.get(sender, 0):
            self._find("changed", f"id {key} has {sender}:{number}, which was never sent")
        elif known != (sender, number):
            self._find("changed", f"id {key} has {sender}:{number}, and was confirmed as {known[0]}:{known[1]}")
        elif (sender, number) not in self._again and self._ids.get((sender, number), key) != key:
            self._find("duplicated", f"{sender}:{number} is id {self._ids[sender, number]} and id {key}")

    # ---- transactions ----

    def _note_id(self, place: Place) -> None:
        key, sender, number = place
        if (sender, number) in self._ids_of:
            self._ids_of[sender, number].add(key)

    def _judge_wholes(self) -> None:
        """Nobody works: each message that is there was acquired before, or is on the queue now.

        Each time that a transaction was sent, all of its numbers have got one id more, or none.
        """
        for (sender, first), count in list(self._wholes.items()):
            numbers = [(sender, number) for number in range(first, first + count)]
            times = [len(self._ids_of[number]) for number in numbers]
            if min(times) < max(times):
                self._find(
                    "in part", f"{sender}:{first} to {first + count - 1}: there {min(times)} to {max(times)} times"
                )
            if min(times) < max(times) or all(number in self._ids for number in numbers):
                del self._wholes[sender, first]
                for number in numbers:
                    del self._ids_of[number]

    # ---- order ----

    def _is_plain(self, key: int, sender: int, number: int) -> bool:
        """Whether its order counts: it is confirmed, and was sent once."""
        return self._confirmed.get(key) == (sender, number) and (sender, number) not in self._again

    def _judge_first(self, reign: Reign, place: Place, since_ns: int) -> None:
        """A reign hands this message out for the first time, in an acquire that began then."""
        key, sender, number = place
        if not self._is_plain(*place):
            return
        highest = reign.highest_before(sender, since_ns)
        if number < highest:
            self._find("reordered", f"{sender}:{number} (id {key}) came after {sender}:{highest} by {reign.name}")
        if key not in self._seen:
            self._judge_passed(place, but=reign)

    def _judge_passed(self, place: Place, but: Reign | None = None) -> None:
        """Nobody has got this message yet: a reign that handed out later ones has passed it over.

        A killed process may have got as many as its acquires had asked for, and nobody knows which.
        """
        key, sender, number = place
        for reign in self._reigns.values():
            if reign is but or key in reign.passed or reign.seen_of(sender) <= number:
                continue
            reign.passed.add(key)
            if len(reign.passed) > reign.unanswered:
                self._find("reordered", f"{sender}:{number} (id {key}) was passed over by {reign.name}")

    def _judge_order(self, queue: Sequence[Place]) -> None:
        last: dict[int, int] = {}
        for place in queue:
            key, sender, number = place
            if not self._is_plain(*place):
                continue
            if number < last.get(sender, -1):
                self._find("reordered", f"{sender}:{number} (id {key}) is behind {sender}:{last[sender]} on the queue")
            last[sender] = max(number, last.get(sender, -1))
            if key not in self._seen:
                self._judge_passed(place)
