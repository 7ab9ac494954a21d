"""The judge: whether an opened store's contents agree with the journal after a power cut.

Acknowledged operations have happened; operations that were not begun have not; others have happened as a whole or not
at all, and none if an earlier one is missing. Contents are exact, and every queue is in the order in which its messages
became visible. Prepared transactions are in doubt, with their work and their locks, until they get an outcome.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kit.real_disk_journal import NEVER, Atom, Journal, Place

if TYPE_CHECKING:
    from collections.abc import Iterator

Shown = dict[str, Any]  # the result of real_disk_work.look


@dataclass
class _Fate:
    """The journal's facts about one place."""

    comes: Atom | None = None
    goes: list[Atom] = field(default_factory=list)
    locked_by: list[Atom] = field(default_factory=list)  # prepared dequeues


class Judge:
    """One verdict on one store after one cut."""

    def __init__(self, journal: Journal, position: int) -> None:
        self.journal = journal
        self.violations: list[str] = []
        self._happened = {id(atom): atom.at(position) for atom in journal.atoms}
        self._prepared = {atom.prepares: atom for atom in journal.atoms if atom.prepares}
        self._settled = {atom.settles: atom for atom in journal.atoms if atom.settles}
        self._fates: dict[Place, _Fate] = {}
        for atom in journal.atoms:
            self._note(atom)

    def _note(self, atom: Atom) -> None:
        if atom.prepares:
            for place in atom.minus:
                self._fates.setdefault(place, _Fate()).locked_by.append(atom)
            return
        if atom.settles and not atom.commits:
            return
        source = self._prepared[atom.settles] if atom.settles else atom
        for place in source.plus:
            self._fates.setdefault(place, _Fate()).comes = atom
        for place in source.minus:
            self._fates.setdefault(place, _Fate()).goes.append(atom)

    def of(self, shown: Shown) -> list[str]:
        """The errors found."""
        self._queues(shown)
        self._in_doubt(shown)
        self._places(shown)
        self._a_beginning()
        self._order(shown)
        return self.violations

    def _wrong(self, what: str) -> None:
        self.violations.append(what)

    def _is(self, atom: Atom, happened: bool, why: str) -> None:
        """Note evidence of the store that it happened, or that it did not."""
        known = self._happened[id(atom)]
        if known is None:
            self._happened[id(atom)] = happened
        elif known is not happened:
            was = "acknowledged or seen" if known else "not begun, or seen not to have happened"
            self._wrong(f"{why}, but {atom.what} was {was}")

    # ---- contents ----

    def _queues(self, shown: Shown) -> None:
        deleted = {atom.queue: atom for atom in self.journal.atoms if atom.deletes}
        for atom in self.journal.atoms:
            if not atom.queue or atom.deletes:
                continue
            end = deleted.get(atom.queue)
            if atom.queue in shown["queues"]:
                self._is(atom, True, f"queue {atom.queue} is there")
                if end is not None:
                    self._is(end, False, f"queue {atom.queue} is there")
            elif end is None or self._happened[id(end)] is False:
                self._is(atom, False, f"queue {atom.queue} is missing")
            elif self._happened[id(atom)]:
                self._is(end, True, f"queue {atom.queue} is missing")

    def _in_doubt(self, shown: Shown) -> None:
        for xid in shown["in doubt"]:
            if xid not in self._prepared:
                self._wrong(f"{xid} is in doubt and was never prepared")
        for xid, atom in self._prepared.items():
            outcome = self._settled.get(xid)
            if xid in shown["in doubt"]:
                self._is(atom, True, f"{xid} is in doubt")
                if outcome is not None:
                    self._is(outcome, False, f"{xid} is in doubt")
            elif outcome is None or self._happened[id(outcome)] is False:
                self._is(atom, False, f"{xid} is not in doubt")
            elif self._happened[id(atom)] is True:
                self._is(outcome, True, f"{xid} is not in doubt")

    def _places(self, shown: Shown) -> None:
        there: dict[Place, Shown] = {}
        for queue, messages in shown["queues"].items():
            for message in messages:
                place = (message["tag"], queue)
                if place in there:
                    self._wrong(f"{place} is there twice")
                there[place] = message
                self._message(place, message)
        for place in there:
            self._present(place)
        for _ in range(2):  # the evidence of one place about an operation may decide another one
            for place, fate in self._fates.items():
                if place not in there:
                    self._absent(place, fate)

    def _message(self, place: Place, message: Shown) -> None:
        if not message["whole"]:
            self._wrong(f"the content of {place} is not what was published")
        if self.journal.ids.get(place[0], message["id"]) != message["id"]:
            self._wrong(f"{place} has another id than it was given")
        locks = self._fates[place].locked_by if place in self._fates else []
        held = any(self._happened[id(a)] and not self._is_settled(a.prepares) for a in locks)
        if held and not message["locked"]:
            self._wrong(f"{place} was dequeued by a prepared transaction and is not locked")
        if message["locked"] and not locks:
            self._wrong(f"{place} is locked without a transaction")

    def _is_settled(self, xid: str) -> bool:
        outcome = self._settled.get(xid)
        return outcome is not None and self._happened[id(outcome)] is not False

    def _present(self, place: Place) -> None:
        fate = self._fates.get(place)
        if fate is None or fate.comes is None:
            self._wrong(f"{place} is there and was never made")
            return
        self._is(fate.comes, True, f"{place} is there")
        for atom in fate.goes:
            self._is(atom, False, f"{place} is there")

    def _absent(self, place: Place, fate: _Fate) -> None:
        if fate.comes is None or self._happened[id(fate.comes)] is False:
            return
        may_go = [atom for atom in fate.goes if self._happened[id(atom)] is not False]
        if not may_go:
            self._is(fate.comes, False, f"{place} is missing")
        elif self._happened[id(fate.comes)] and not any(self._happened[id(atom)] for atom in may_go):
            self._is(may_go[0], True, f"{place} is gone")

    # ---- order ----

    def _a_beginning(self) -> None:
        """A crash leaves a prefix of the log: an operation survives only if all earlier ones do."""
        in_log = [atom for atom in self.journal.atoms if not atom.queue]
        for before, after in itertools.pairwise(in_log):
            of_one_call = before.begun_line == after.begun_line  # in the log in the order that it gave
            if of_one_call and self._happened[id(before)] is False and self._happened[id(after)]:
                self._wrong(f"of {after.what} a later part is there, an earlier one is missing")
        missing = [atom for atom in in_log if self._happened[id(atom)] is False and atom.back_line < NEVER]
        there = [atom for atom in in_log if self._happened[id(atom)]]
        if not missing or not there:
            return
        first = min(missing, key=lambda atom: atom.back_line)
        last = max(there, key=lambda atom: atom.begun_line)
        if first.back_line < last.begun_line:
            self._wrong(f"{last.what} is there, {first.what} before it is missing")

    def _order(self, shown: Shown) -> None:
        for queue, messages in shown["queues"].items():
            newest: tuple[int, Place] = (-1, ("", ""))
            for place, atom in self._visible(queue, messages):
                if atom.back_line < newest[0]:
                    self._wrong(f"{place} is after {newest[1]}, which became visible later")
                newest = max(newest, (atom.begun_line, place))
            self._order_within(queue, messages)

    def _visible(self, queue: str, messages: list[Shown]) -> Iterator[tuple[Place, Atom]]:
        for message in messages:
            place = (message["tag"], queue)
            fate = self._fates.get(place)
            if fate is not None and fate.comes is not None:
                yield place, fate.comes

    def _order_within(self, queue: str, messages: list[Shown]) -> None:
        """The places of one call are in the call's order."""
        position: dict[int, int] = {}
        for place, atom in self._visible(queue, messages):
            source = self._prepared[atom.settles] if atom.settles else atom
            rank = self._rank(source, place)
            if rank < position.get(source.begun_line, -1):
                self._wrong(f"{place} is after a later place of its own operation")
            position[source.begun_line] = rank

    def _rank(self, source: Atom, place: Place) -> int:
        siblings = [atom for atom in self.journal.atoms if atom.begun_line == source.begun_line]
        return [p for atom in siblings for p in atom.plus].index(place)


def judge(journal: Journal, position: int, shown: Shown) -> list[str]:
    """The errors of a store that was opened after a power cut at this position of the disk's log."""
    return Judge(journal, position).of(shown)


def same(before: Shown, after: Shown) -> list[str]:
    """The differences between two looks at an unchanged store."""
    wrong = [
        f"queue {name} has changed" for name in before["queues"] if before["queues"][name] != after["queues"].get(name)
    ]
    wrong += ["the queues have changed"] if before["queues"].keys() != after["queues"].keys() else []
    wrong += ["the transactions in doubt have changed"] if before["in doubt"] != after["in doubt"] else []
    return wrong
