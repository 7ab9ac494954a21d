"""The journals of a chaos run: what each process of a member did, a JSON object a line, written before its next call.

A run of a member's process has a file of its own, ``m1-3.jsonl`` for the third run of m1. Every line has ``event`` and
``at_ns``, of the monotonic clock, which all processes of a machine share. A line is one ``write``, so SIGKILL loses
none that was written. The events:

============ ===================================== ===============================================================
event        other members of the line             written
============ ===================================== ===============================================================
leads        term                                  when the process has got the store of a new term
sent         sender, first, count, whole           before the publish of these numbers; whole: in one transaction
confirmed    sender, first, ids                    after it returned
unknown      sender, first, count, error           after it raised
acquiring    group, term, count                    before the acquire
acquired     group, ids, numbers                   after it; numbers are pairs (sender, number)
settling     group, start, end, how                before the accept or reject of these places of the group
settled      group, start, end, how                after it returned
refused      group, start, end, how, error         after it raised
released     group, start, end                     before the release
died         group, start, end                     before the deliveries are dropped without a word
round        number, planned, confirms             by the driver: before a round, with how many faults and confirms
fault        kind, members                         by the driver: after a fault was made
ended        number                                by the driver: when the round is over
============ ===================================== ===============================================================
"""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

Line = dict[str, Any]
BEGINNING = b'{"event":"%s",'  # of a line


class Journal:
    """The journal of this process. Any thread writes to it."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, event: str, **members: Any) -> None:
        """Writes one line; the kernel has it on return."""
        line = json.dumps({"event": event, "at_ns": time.monotonic_ns(), **members}, separators=(",", ":"))
        data = line.encode() + b"\n"
        written = os.write(self._file, data)
        if written != len(data):
            raise OSError(f"only {written} of {len(data)} bytes of a journal's line were written")


class Journals:
    """All journals of a directory, read on from where the last call ended."""

    def __init__(self, directory: Path, *events: str) -> None:
        """Those of some events, or all."""
        self._directory = directory
        self._starts = tuple(BEGINNING % event.encode() for event in events) or b""
        self._read: dict[str, int] = {}  # bytes of complete lines, by file

    def new_lines(self) -> list[Line]:
        """What was written since, by its time; each line has the name of its ``run``. A torn line waits for its end."""
        found = []
        for path in sorted(self._directory.glob("*.jsonl")):
            with path.open("rb") as file:
                file.seek(self._read.get(path.name, 0))
                data = file.read()
            end = data.rfind(b"\n") + 1
            self._read[path.name] = self._read.get(path.name, 0) + end
            lines = [line for line in data[:end].splitlines() if line.startswith(self._starts)]
            found += [json.loads(line) | {"run": path.stem} for line in lines]
        found.sort(key=lambda line: line["at_ns"])
        return found


class Outstanding:
    """What each sender has sent without a confirm, and its next number, from the journals of all members."""

    def __init__(self, directory: Path) -> None:
        self._journals = Journals(directory, "sent", "confirmed")
        self._unconfirmed: dict[int, dict[int, int]] = {}  # by sender: count by first number
        self._next: dict[int, int] = {}

    def refresh(self) -> None:
        """Reads what was written since."""
        for line in self._journals.new_lines():
            if line["event"] == "sent":
                sender, first, count = line["sender"], line["first"], line["count"]
                if first + count > self._next.get(sender, 0):  # else it is sent again
                    self._next[sender] = first + count
                    self._unconfirmed.setdefault(sender, {})[first] = count
            elif line["event"] == "confirmed":
                self._unconfirmed.get(line["sender"], {}).pop(line["first"], None)

    def of(self, sender: int) -> tuple[list[int], int]:
        """The first numbers of the unconfirmed batches of a sender, and the number after all that it has sent."""
        return sorted(self._unconfirmed.get(sender, {})), self._next.get(sender, 0)
