"""The back-links of a log's chains, followed record by record (sections 5 and 7 of docs/format.md).

What always holds: a copy, or a part of a state, becomes a link of its chain only when the record comes that completes
it. Until then whatever else is written of the chain passes over it, for it may never count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from logstore.codec.records import FIRST
from logstore.codec.relocation import Copies, is_relocated

if TYPE_CHECKING:
    from logstore.codec.records import Record


class Chains:
    """The chains that may go on, by id: their newest records, and what was copied of them."""

    def __init__(self, base_lsn: int) -> None:
        self.base_lsn = base_lsn
        self._newest: dict[int, int] = {}  # LSN of the newest record that counts
        self._copies: dict[int, Copies] = {}  # not complete yet

    def link(self, record: Record) -> str | None:
        """Take a record that counts: its chain's newest from now on. What is wrong with its back-link, or None."""
        if record.type in FIRST and not is_relocated(record):
            wrong = f"chain {record.id} starts twice" if record.id in self._newest else None
        else:
            wrong = self._wrong_link(record)
        self._newest[record.id] = record.lsn
        return wrong

    def copy(self, record: Record) -> None:
        """Take a copy, or a part of a state that is not the last."""
        wrong = self._wrong_link(record)
        self._copies.setdefault(record.id, Copies()).add(record, wrong)

    def take_copies(self, id: int) -> Copies:  # noqa: A002 - the design's own word
        """What was copied of a chain, and now is complete or never will be."""
        return self._copies.pop(id, None) or Copies()

    def newest(self, id: int) -> int:  # noqa: A002
        """LSN of the chain's newest record that counts; the base if there is none."""
        return self._newest.get(id, self.base_lsn)

    def end(self, id: int) -> None:  # noqa: A002
        """Nothing follows in this chain."""
        self._newest.pop(id, None)
        self._copies.pop(id, None)

    def _wrong_link(self, record: Record) -> str | None:
        """It names the newest record of the chain that counts, or one below the base; a relocation's also a copy."""
        newest, prev = self._newest.get(record.id), record.prev
        if newest is None and record.id >= self.base_lsn:
            return f"chain {record.id} has no start, or had ended before"
        copies = self._copies.get(record.id)
        if copies is not None and prev == copies.newest and is_relocated(record):
            return None
        if newest is not None and prev != newest:
            return f"prev is {prev}, and the record before it in chain {record.id} is {newest}"
        if newest is None and prev >= self.base_lsn:
            return f"prev {prev} is no record of chain {record.id}"
        return None
