"""Follows the back-links of a log's chains, record by record (sections 5 and 7 of docs/format.md).

Invariant: a copy, or a part of a state, becomes a link of its chain only when the record arrives that completes the
relocation. Until then other records of the chain skip it, because the relocation may never be completed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from logstore.codec.records import FIRST, RecordFlag, RecordType

if TYPE_CHECKING:
    from logstore.codec.records import Record

RELOCATED = frozenset({RecordType.MESSAGE_RELOCATED, RecordType.MESSAGE_RELOCATED_PLACED})
COPY, INLINE, PART = int(RecordFlag.COPY), int(RecordFlag.INLINE), int(RecordFlag.PART)


def is_relocated(record: Record) -> bool:
    """Whether the record is a copy, of a message or of MEMBERS, or the relocated state of a message or a part of it."""
    return record.type in RELOCATED or int(record.flags) & COPY != 0


def is_complete(record: Record) -> bool:
    """Whether a relocated record gives a whole state, together with any copies and parts before it."""
    flags = int(record.flags)
    if record.type is RecordType.MEMBERS:
        return True
    return flags & INLINE != 0 or (record.type in RELOCATED and flags & PART == 0)


class Chains:
    """The chains that may continue, by id: their newest records, and the copies that do not count yet."""

    def __init__(self, base_lsn: int) -> None:
        self.base_lsn = base_lsn
        self._newest: dict[int, int] = {}  # LSN of the newest record that counts
        self._copied: dict[int, int] = {}  # LSN of the newest copy or part of an incomplete relocation
        self._broken: dict[int, dict[int, str]] = {}  # errors in the back-links of copies and parts, by LSN

    def link(self, record: Record) -> str | None:
        """Takes a record and returns the error in its back-link, if any; keeps the errors of copies and parts."""
        if is_relocated(record):
            wrong = self._wrong_link(record)
            if not is_complete(record):
                self._copied[record.id] = record.lsn
                if wrong is not None:
                    self._broken.setdefault(record.id, {})[record.lsn] = wrong
                return None
            self._copied.pop(record.id, None)
        elif record.type in FIRST:
            wrong = f"chain {record.id} starts twice" if record.id in self._newest else None
        else:
            wrong = self._wrong_link(record)
        self._newest[record.id] = record.lsn
        return wrong

    def take_broken(self, id: int) -> dict[int, str]:  # noqa: A002 - the design's own word
        """Returns the errors in the back-links of the copies and parts of a relocation that is now complete."""
        return self._broken.pop(id, {})

    def newest(self, id: int) -> int:  # noqa: A002
        """LSN of the chain's newest record that counts; the base if the chain has none."""
        return self._newest.get(id, self.base_lsn)

    def end(self, id: int) -> None:  # noqa: A002
        """Ends the chain: no record follows."""
        for kept in (self._newest, self._copied, self._broken):
            kept.pop(id, None)

    def _wrong_link(self, record: Record) -> str | None:
        """Checks that ``prev`` names the chain's newest record that counts, or one below the base; a copy may also name
        a copy.
        """
        newest, prev = self._newest.get(record.id), record.prev
        if newest is None and record.id >= self.base_lsn:
            return f"chain {record.id} has no start, or had ended before"
        if prev == self._copied.get(record.id) and is_relocated(record):
            return None
        if newest is not None and prev != newest:
            return f"prev is {prev}, and the record before it in chain {record.id} is {newest}"
        if newest is None and prev >= self.base_lsn:
            return f"prev {prev} is no record of chain {record.id}"
        return None
