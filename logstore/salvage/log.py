"""Reads a damaged log from its base to its end: passes every readable record and every gap to the replay.

The end of the log is decided as recovery decides it (docs/recovery.md). In the last segment, at or above W, a batch
that is not accepted is a torn tail, which cannot contain an acknowledged message. Below W it is damage, and its
readable records count.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from logstore.codec.files import BLOCK_BYTES, SEGMENT_HEADER_BYTES, record_bytes_max
from logstore.codec.records import Footer, Record, RecordType
from logstore.codec.scan import NOTHING_READABLE, BatchRun, Damaged, Gap, batches
from logstore.salvage.extent import CARRIERS, Counted, Sealed
from logstore.salvage.lenient import LenientReplay
from logstore.salvage.write import first_lsn_beyond

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from logstore.salvage.source import SegmentFile, Source

_SEALS = frozenset({RecordType.FOOTER, RecordType.CLOSE})  # the last record of a segment that has a successor


@dataclass(slots=True)
class Torn:
    """A torn tail: bytes of a write that was never reported as durable."""

    lsn: int
    end_lsn: int
    records: int  # readable records in it

    @property
    def bytes(self) -> int:
        """The length of the torn tail."""
        return self.end_lsn - self.lsn


@dataclass(slots=True)
class Replicated:
    """What the newest batch says of replication, in the log of a copy of a replicated store."""

    term: int
    index: int
    known_durable_lsn: int  # a majority was known to have everything below it
    undurable_bytes: int  # that were read above it, and are kept


@dataclass(slots=True)
class Log:
    """The readable part of a log."""

    replay: LenientReplay
    base_lsn: int
    end_lsn: int  # above everything that is known to have been written
    watermark_lsn: int
    gaps: list[Gap] = field(default_factory=list)
    damaged: list[Damaged] = field(default_factory=list)  # without their raw bytes
    torn: Torn | None = None
    segments: int = 0
    records: int = 0  # number of readable records
    bytes_read: int = 0
    disk_error_bytes: int = 0  # bytes that the disk could not read, in whole blocks
    base_known: bool = True  # False: no batch record gives the base, and segments before the first one may be missing
    counted: list[Counted] = field(default_factory=list)  # batches with more than one gap
    sealed: list[Sealed] = field(default_factory=list)  # segments with a readable footer
    headers: list[str] = field(default_factory=list)  # names of segments with a damaged header
    replicated: Replicated | None = None


class _Reading:
    """One pass over the log."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.size = source.segment_size
        self.files = [one for one in source.files if one.in_log]
        base_lsn, watermark_lsn, base_known = self._ends()
        self.files = [one for one in self.files if one.first_lsn >= base_lsn]
        replay = LenientReplay(base_lsn, record_bytes_max(self.size))
        self.log = Log(replay, base_lsn, watermark_lsn, watermark_lsn, base_known=base_known)
        self._reached_lsn = base_lsn + SEGMENT_HEADER_BYTES  # everything below it was read or noted as a gap
        self._seal: RecordType | None = None  # the record that sealed the segment before, if it was read
        self._epoch = 0
        self._carriers = 0  # records of the types in CARRIERS that were recognised in this segment
        self._parts: list[tuple[int, int]] = []  # of the log in each segment: LSN of the first byte, and of the end

    def _ends(self) -> tuple[int, int, bool]:
        """The base and W, from the newest readable batch records and from the files next to the log; and whether the
        base is known.
        """
        base_lsn = watermark_lsn = 0
        for one in reversed(self.files):
            for run in self._runs(one):
                for item in run.items:
                    if isinstance(item, Record) and item.type is RecordType.CLOSE:
                        watermark_lsn = max(watermark_lsn, item.lsn)
                if run.batch is not None:
                    base_lsn = max(base_lsn, run.batch.base_lsn)
                    watermark_lsn = max(watermark_lsn, self.source.forced_by(run.lsn, run.batch))
            if base_lsn:
                break
        for one in self.files:
            watermark_lsn = max(watermark_lsn, one.header.prev_end_lsn if one.header is not None else 0)
        if self.source.closed is not None:
            watermark_lsn = max(watermark_lsn, self.source.closed.end_lsn)
        if self.source.hint is not None:
            watermark_lsn = max(watermark_lsn, self.source.hint.durable_lsn)
        known = bool(base_lsn)
        if not base_lsn:
            base_lsn = min((one.first_lsn for one in self.files), default=watermark_lsn)
            first = next((one.header for one in self.files if one.first_lsn == base_lsn), None)
            known = first is not None and first.prev_end_lsn == 0  # the store's first segment
        return base_lsn - base_lsn % self.size, watermark_lsn, known

    def _runs(self, one: SegmentFile) -> Iterator[BatchRun]:
        raw = self.source.segment(one)
        end = len(raw) if one.cut_lsn is None else min(len(raw), one.cut_lsn - one.first_lsn)
        return batches(raw, end, one.first_lsn, one.epoch, self.source.uuid)

    # ---- Gaps

    def _gap(self, gap: Gap) -> None:
        if gap.end_lsn <= gap.lsn:
            return
        self.log.gaps.append(gap)
        self.log.replay.apply(gap)

    def _between(self, one: SegmentFile) -> None:
        """Notes the gap between the segment before and this one."""
        reached = self._reached_lsn
        if one.first_lsn <= reached < one.first_lsn + SEGMENT_HEADER_BYTES + 1:
            return  # the first segment of the log
        if one.header is not None:
            end_lsn = min(one.header.prev_end_lsn, one.first_lsn)
            if end_lsn > reached:
                self._gap(Gap(reached, end_lsn, "a segment, or the end of one, is missing"))
            return
        if not self._follows(one):
            why = "where the log before this segment ended is not known: its header is damaged"
            self._gap(Gap(reached, one.first_lsn, why, certain=False))

    def _follows(self, one: SegmentFile) -> bool:
        """Whether a segment without a valid header is certainly the next one."""
        if self._seal is RecordType.FOOTER:
            return one.first_lsn == self._limit(self._reached_lsn) and one.epoch == self._epoch
        begins = first_lsn_beyond(self._reached_lsn, self.source.gap_bytes, self.size)
        return self._seal is RecordType.CLOSE and one.first_lsn == begins and one.epoch == self._epoch + 1

    def _limit(self, lsn: int) -> int:
        """The first LSN above the segment that contains the record before this LSN."""
        return (lsn - 1) // self.size * self.size + self.size

    # ---- Segments

    def read(self, show: Callable[[int, int], None]) -> Log:
        """Reads the whole log."""
        total = len(self.files) * self.size
        for i, one in enumerate(self.files):
            self._between(one)
            self.log.replay.enter(one.epoch)
            self._epoch = one.epoch
            if one.header is None:
                self.log.headers.append(one.name)
            self._segment(one, last=i == len(self.files) - 1)
            self.log.segments += 1
            self.log.disk_error_bytes += BLOCK_BYTES * len(one.unreadable)
            show((i + 1) * self.size, total)
        self._end()
        return self.log

    def _segment(self, one: SegmentFile, *, last: bool) -> None:
        self._reached_lsn = one.first_lsn + SEGMENT_HEADER_BYTES
        self._seal = None
        self._carriers = 0
        torn = False
        for run in self._runs(one):
            self.log.bytes_read += run.end_lsn - run.lsn
            if torn or (last and one.cut_lsn is None and not run.accepted and run.lsn >= self.log.watermark_lsn):
                torn = True
                self._tear(run)
                continue
            for item in run.items:
                self._take(item, one)
            if run.missing is not None and sum(isinstance(item, Gap) for item in run.items) > 1:
                self.log.counted.append(Counted(run.lsn, run.end_lsn, run.missing))
        if one.cut_lsn is not None:
            self._gap(self._rest(one, self._reached_lsn, one.cut_lsn))
            self._reached_lsn = max(self._reached_lsn, one.cut_lsn)
        self._parts.append((one.first_lsn + SEGMENT_HEADER_BYTES, self._reached_lsn))

    def _rest(self, one: SegmentFile, lsn: int, end_lsn: int) -> Gap:
        why = "a segment was cut short" if lsn >= one.first_lsn + one.size else NOTHING_READABLE
        return Gap(lsn, min(end_lsn, one.first_lsn + self.size), why)

    def _tear(self, run: BatchRun) -> None:
        found = [item for item in run.items if not isinstance(item, Gap)]
        if not found:
            return  # from before the log first used this file
        torn = self.log.torn = self.log.torn or Torn(run.lsn, run.lsn, 0)
        torn.records += len(found)
        batch_bytes = 0 if run.batch is None else run.batch.bytes
        torn.end_lsn = max(torn.end_lsn, found[-1].lsn + found[-1].length, run.lsn + batch_bytes)

    def _take(self, item: Record | Damaged | Gap, one: SegmentFile) -> None:
        """Takes an item; a last gap without a known cut may be from before the log first used this file."""
        if isinstance(item, Gap):
            if item.end_lsn < one.first_lsn + min(one.size, self.size) or one.cut_lsn is not None:
                self._gap(item)
                self._reached_lsn, self._seal = item.end_lsn, None
            return
        self._reached_lsn = item.lsn + item.length
        self._seal = RecordType(item.type) if item.type in _SEALS else None
        self._carriers += item.type in CARRIERS
        if isinstance(item, Damaged):
            self.log.damaged.append(item._replace(raw=b""))
        else:
            self.log.records += 1
            if isinstance(item.body, Footer):
                self._sealed(item.lsn, item.body, one)
        self.log.replay.apply(item)

    def _sealed(self, lsn: int, footer: Footer, one: SegmentFile) -> None:
        counted = sum(row.count for row in footer.counts if row.type in CARRIERS)
        if counted >= self._carriers:
            self.log.sealed.append(Sealed(one.first_lsn, lsn, counted - self._carriers))

    def _end(self) -> None:
        """Notes the part above the last readable record that is missing although it was durable."""
        log, reached = self.log, self._reached_lsn
        if log.watermark_lsn > reached:
            self._gap(Gap(reached, log.watermark_lsn, "the log ends before what was durable once"))
        elif self.files and self.files[-1].size < self.size and log.torn is None:
            one = self.files[-1]
            why = "a segment was cut short, and what was there cannot be told from a torn tail"
            self._gap(Gap(max(reached, one.first_lsn + one.size), one.first_lsn + self.size, why, certain=False))
        batch = log.replay.newest
        if batch is not None and batch.index != 0:
            known = batch.known_durable_lsn
            undurable = sum(max(end_lsn - max(lsn, known), 0) for lsn, end_lsn in self._parts)
            log.replicated = Replicated(batch.epoch, batch.index, known, undurable)
        newest = max((one.first_lsn for one in self.source.files if one.in_log), default=0)
        log.end_lsn = max(log.watermark_lsn, self._reached_lsn, newest, log.torn.end_lsn if log.torn else 0)


def read_log(source: Source, show: Callable[[int, int], None]) -> Log:
    """Reads everything readable of the log, from its base on."""
    return _Reading(source).read(show)
