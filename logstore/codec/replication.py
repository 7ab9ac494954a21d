"""Finds contradictions in the replication of a log: its indexes, terms, members and catalog changes.

Written from section 10 of docs/format.md alone. It shares no code with csrc/replay, so that tests can compare the two.

Invariant: it takes the records of an accepted log in LSN order, each batch record before the records of its batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from logstore.codec.files import SEGMENT_HEADER_BYTES
from logstore.codec.records import TERM_SHIFT, Batch, CatalogChange, Members, Record, RecordFlag, RecordType

if TYPE_CHECKING:
    from collections.abc import Iterator


class ReplicationRules:
    """Takes records one by one with :meth:`judge`; :meth:`at_end` judges the log as a whole.

    ``segment_size`` in bytes is needed to judge where a term begins; without it that is not judged.
    """

    def __init__(self, base_lsn: int, segment_size: int | None = None) -> None:
        self.base_lsn = base_lsn
        self.newest: Record | None = None  # MEMBERS, while the log is replicated
        self._segment_size = segment_size
        self._batch: Batch | None = None
        self._batch_lsn = 0
        self._last_index = 0  # the largest so far, also if replication has ended since
        self._known_durable_lsn = 0
        self._needs_members = False  # the next record must be a MEMBERS
        # The LSN at which the open catalog change continues; 0: none is open; None: not known.
        self._part: int | None = None
        self._part_epoch = 0

    def judge(self, record: Record) -> Iterator[str]:
        """Takes a record and yields its contradictions."""
        if isinstance(record.body, Batch):
            yield from self._judge_batch(record, record.body)
            return
        if self._needs_members and record.type is not RecordType.MEMBERS:
            yield "replication begins with a batch that has no MEMBERS"
        self._needs_members = False
        if isinstance(record.body, Members):
            yield from self._judge_members(record, record.body)
        elif isinstance(record.body, CatalogChange):
            yield from self._judge_change(record, record.body)

    def at_end(self) -> Iterator[tuple[int, str]]:
        """The contradictions of the whole log, each with its LSN."""
        if self._batch is not None and self._batch.index != 0 and self.newest is None:
            yield self._batch_lsn, f"the log is replicated, and no MEMBERS lies at or above the base {self.base_lsn}"

    def _judge_batch(self, record: Record, body: Batch) -> Iterator[str]:
        before, self._batch, self._batch_lsn = self._batch, body, record.lsn
        if body.index == 0:
            self.newest = None  # a log that is not replicated has no live MEMBERS
            return
        begins = body.index == 1 or (before is not None and before.index == 0)
        self._needs_members = begins and body.count > 0
        if begins and body.count == 0:
            yield "replication begins with a batch that has no MEMBERS"
        if self._last_index not in (0, body.index - 1):
            yield f"its index {body.index} does not follow index {self._last_index} of the batch before it"
        if body.known_durable_lsn < self._known_durable_lsn:
            yield (
                f"it knows everything below {body.known_durable_lsn} to be durable, and a batch before it knew "
                f"everything below {self._known_durable_lsn}"
            )
        yield from self._judge_term(record, body, None if before is None else before.epoch)
        if self.newest is not None and self.newest.lsn < body.base_lsn:
            yield f"its base {body.base_lsn} lies above the newest MEMBERS, at {self.newest.lsn}"
        self._last_index = max(self._last_index, body.index)
        self._known_durable_lsn = max(self._known_durable_lsn, body.known_durable_lsn)

    def _judge_term(self, record: Record, body: Batch, epoch_before: int | None) -> Iterator[str]:
        size = self._segment_size
        if size is None:
            return
        first_lsn = -(-(body.epoch << TERM_SHIFT) // size) * size
        begins = first_lsn + SEGMENT_HEADER_BYTES
        if record.lsn < begins or (epoch_before not in (None, body.epoch) and record.lsn != begins):
            yield f"term {body.epoch} begins with the segment at {first_lsn}, and this batch is not the first in it"

    def _judge_members(self, record: Record, body: Members) -> Iterator[str]:
        batch, newest = self._batch, self.newest
        if RecordFlag.COPY not in record.flags:
            if batch is not None and batch.count != 1:
                yield "a MEMBERS that is no copy is not alone in its batch"
            if batch is not None and batch.index != body.index:
                yield f"a MEMBERS names index {body.index}, and its batch has index {batch.index}"
        elif newest is not None and record.id != newest.id:
            yield f"a MEMBERS of chain {record.id} is copied, and the newest is of chain {newest.id}"
        elif newest is not None and body != newest.body:
            yield "a copied MEMBERS differs from the one before it"
        self.newest = record

    def _judge_change(self, record: Record, body: CatalogChange) -> Iterator[str]:
        """Skips a change that a new leader left without an end: the rest of it was cut with the earlier term."""
        epoch = self._batch.epoch if self._batch is not None else 0
        expected = self._part
        if expected is None:
            expected = body.part  # the parts before it may lie below the base
        elif body.part == 0 and epoch != self._part_epoch:
            expected = 0
        if body.part != expected:
            yield f"part {body.part} of a catalog change stands where part {expected} belongs"
        self._part = body.part + 1 if RecordFlag.PART in record.flags else 0
        self._part_epoch = epoch
