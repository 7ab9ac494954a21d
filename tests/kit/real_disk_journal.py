"""A journal outside the disk: begun operations and their results, in order, each with the position of the disk's log.

One line is written before a call and one after it. A line's place in the file orders it among all threads; its `at`,
the number of entries in the disk's log, orders it against the disk. An operation acknowledged at n entries is
acknowledged in every power cut after n or more entries; an operation begun at n is begun in no cut before n.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from kit.real_disk_server import Control

NEVER = 1 << 62

Place = tuple[str, str]  # tag of a message, name of a queue


def body(tag: str) -> bytes:
    """The content of the message with this tag, which ends with its size."""
    return hashlib.shake_128(tag.encode()).digest(int(tag.rsplit("-", 1)[1]))


def work(plus: list[Place] = (), minus: list[Place] = (), **more: Any) -> dict[str, Any]:
    """One atomic change: places that are made and places that end."""
    return {"plus": list(plus), "minus": list(minus), **more}


class JournalWriter:
    """Written by the threads of one process, line by line."""

    def __init__(self, path: Path | str, control: Control, first: int = 1) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.control = control
        self._lock = threading.Lock()
        self._next = first - 1

    def begin(self, *atoms: dict[str, Any]) -> int:
        with self._lock:
            self._next += 1
            self._say({"begun": self._next, "atoms": atoms})
            return self._next

    def back(self, number: int, *, durable: bool = True, ids: dict[str, int] | None = None) -> None:
        with self._lock:
            self._say({"back": number, "durable": durable, "ids": ids or {}})

    def refused(self, number: int) -> None:
        """Note that the store refused the operation."""
        with self._lock:
            self._say({"refused": number})

    def forced(self, numbers: list[int]) -> None:
        with self._lock:
            self._say({"forced": numbers})

    def note(self, **what: Any) -> None:
        """A remark, for the test to find."""
        with self._lock:
            self._say({"note": what})

    def _say(self, line: dict[str, Any]) -> None:
        data = json.dumps(line | {"at": self.control.entries}).encode() + b"\n"
        assert os.write(self._file, data) == len(data)


@dataclass
class Atom:
    """One atomic change."""

    what: str  # for the reader of a failure
    begun_at: int  # entries of the disk's log
    begun_line: int
    plus: list[Place]
    minus: list[Place]
    prepares: str = ""  # an xid: the places are pending until its outcome
    settles: str = ""  # an xid
    commits: bool = True
    queue: str = ""  # declared by this one, or with `deletes` deleted
    deletes: bool = False
    acked_at: int = NEVER
    back_line: int = NEVER
    refused: bool = False

    def at(self, position: int) -> bool | None:
        """Whether it has happened in a power cut at this position; None: unknown."""
        if self.refused:
            return False
        if self.acked_at <= position:
            return True
        return None if self.begun_at <= position else False


@dataclass
class Journal:
    """The journal as it was read."""

    atoms: list[Atom] = field(default_factory=list)
    ids: dict[str, int] = field(default_factory=dict)
    notes: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> Journal:
        journal = cls()
        of: dict[int, list[Atom]] = {}
        for number, text in enumerate(path.read_text().splitlines()):
            line = json.loads(text)
            if "begun" in line:
                of[line["begun"]] = [journal._atom(atom, number, line) for atom in line["atoms"]]
            elif "back" in line:
                journal.ids |= line["ids"]
                for atom in of[line["back"]]:
                    atom.back_line = number
                    atom.acked_at = line["at"] if line["durable"] else NEVER
            elif "refused" in line:
                for atom in of[line["refused"]]:
                    atom.refused = True
            elif "forced" in line:
                for atom in (atom for begun in line["forced"] for atom in of[begun]):
                    atom.acked_at = min(atom.acked_at, line["at"])
            else:
                journal.notes.append(line["note"] | {"at": line["at"]})
        return journal

    def _atom(self, said: dict[str, Any], number: int, line: dict[str, Any]) -> Atom:
        said = dict(said)
        places = {key: [(tag, queue) for tag, queue in said.pop(key)] for key in ("plus", "minus")}
        self.atoms.append(Atom(f"operation {line['begun']}", line["at"], number, **places, **said))
        return self.atoms[-1]

    def noted(self, key: str) -> Any:
        return next(note[key] for note in self.notes if key in note)
