"""The second reader of ``logstore verify``: it decodes a log with codec/records.py and replays it in Python.

It shares only the specification (docs/format.md) with the core, no code. It is slow, but it keeps everything and does
not stop at a problem, so it finds every problem after the core has found one.

Invariant: the normal work of a running writer is never reported as a problem, because everything that is read was
durable before the reading began.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from logstore.codec.files import SEGMENT_HEADER_BYTES
from logstore.codec.records import Batch, Footer, InvalidRecord, Record, RecordType, encode_record
from logstore.codec.strict import EndState, StrictReplay
from logstore.errors import CorruptLog
from logstore.inspect import BatchBytes, LogRecycled, Reader, ReaderInfo

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from logstore.verify.findings import Findings

SAMPLED_SEGMENTS = 8
SAMPLED_BYTES = 64 << 10  # of one batch in each sampled segment
FOOTER_TYPES_END = 0x0400  # a footer counts the types of streams 1 to 3


class _SegmentCount:
    """The values that the footer of a segment should contain."""

    def __init__(self, first_lsn: int) -> None:
        self.first_lsn = first_lsn
        self.types: Counter[int] = Counter()
        self.last_lsn = 0  # of the newest record other than BATCH
        self.before_lsn = 0  # of the newest record


class Witness:
    """A reading of a log. Problems go into ``findings``."""

    def __init__(self, store_dir: Path, findings: Findings) -> None:
        self.store_dir = store_dir
        self.compared = 0
        self.footers = self.batches = self.bytes_read = 0
        self.replay: StrictReplay | None = None
        self.end_state: EndState | None = None  # None if the log could not be read to its end
        self._findings = findings
        self._count = _SegmentCount(-1)
        self._batch_base_lsn = self._batch_durable_lsn = 0

    def read(self, show: Callable[[int], None]) -> ReaderInfo:
        """Reads and replays the whole log; calls ``show`` with the bytes read. After damage it only reads.

        Raises LogRecycled if a writer reused a segment first, ``VersionError``, and ``StoreError`` for read errors.
        """
        with Reader(self.store_dir, undurable=True) as reader:
            info = reader.info
            if self._walk(reader, info, show):
                assert self.replay is not None
                self.end_state = self.replay.finish(writer_epoch=info.writer_epoch)
        assert self.replay is not None
        for problem in self.replay.problems:
            self._findings.note("chain", problem.reason, problem.lsn)
        self._findings.count += self.replay.problem_count - len(self.replay.problems)
        return info

    def sample(self, info: ReaderInfo) -> None:
        """Compares the two decoders on a few batches from all parts of the log."""
        with Reader(self.store_dir, undurable=True) as reader:
            segments = [one for one in reader.segments() if one.end_lsn > one.first_lsn]
        step = max(len(segments) // SAMPLED_SEGMENTS, 1)
        for segment in {*segments[::step], segments[-1]} if segments else ():
            if segment.first_lsn < info.base_lsn:
                continue
            with Reader(self.store_dir, from_lsn=segment.first_lsn, undurable=True) as reader:
                for batch in reader.batches():
                    at = 0
                    for record in reader._decode(batch):
                        self._compare(record, batch, at, reader)
                        at += record.length
                        if at > SAMPLED_BYTES:
                            break
                    break

    def _walk(self, reader: Reader, info: ReaderInfo, show: Callable[[int], None]) -> bool:
        """Checks every batch. False after damage; then only the checksums of later segments were checked."""
        self.replay = StrictReplay(info.base_lsn, info.segment_size)
        try:
            for batch in reader.batches():
                self._check_batch(reader, info, batch)
                show(batch.end_lsn - info.base_lsn)
        except CorruptLog as error:
            self._findings.damage(error)
            self._walk_on(error.lsn, info, show)
            return False
        return True

    def _walk_on(self, damaged_lsn: int, info: ReaderInfo, show: Callable[[int], None]) -> None:
        size = info.segment_size
        while (next_lsn := damaged_lsn - damaged_lsn % size + size) < info.end_lsn:
            with Reader(self.store_dir, from_lsn=next_lsn, undurable=True) as reader:
                if reader.info.base_lsn > damaged_lsn:
                    raise LogRecycled(f"the writer of {self.store_dir} has reused the damaged segment; run this again")
                try:
                    for batch in reader.batches():
                        self.batches += 1
                        self.bytes_read += len(batch.raw)
                        show(batch.end_lsn - info.base_lsn)
                    return
                except CorruptLog as error:
                    self._findings.damage(error)
                    damaged_lsn = error.lsn

    def _check_batch(self, reader: Reader, info: ReaderInfo, batch: BatchBytes) -> None:
        assert self.replay is not None
        if batch.first_lsn != self._count.first_lsn:
            self._count = _SegmentCount(batch.first_lsn)
        self.batches += 1
        self.bytes_read += len(batch.raw)
        at = 0
        for record in reader._decode(batch):
            if isinstance(record.body, Batch):
                self._check_batch_record(record, record.body, batch, info)
            elif isinstance(record.body, Footer):
                self._check_footer(record, record.body)
            self.replay.apply(record)
            self._compare(record, batch, at, reader)
            self._count.types[int(record.type)] += 1
            self._count.before_lsn = record.lsn
            if record.type is not RecordType.BATCH:
                self._count.last_lsn = record.lsn
            at += record.length

    def _compare(self, record: Record, batch: BatchBytes, at: int, reader: Reader) -> None:
        self.compared += 1
        seed = reader.seed(batch.first_lsn, batch.epoch)
        try:
            same = encode_record(record, seed) == batch.raw[at : at + record.length]
        except InvalidRecord:
            same = False
        if not same:
            self._findings.note("decoder", "the second decoder encodes the record to other bytes", record.lsn)

    def _check_batch_record(self, record: Record, body: Batch, batch: BatchBytes, info: ReaderInfo) -> None:
        """Checks a batch's statements about itself and the log before it. The core has counted its records."""
        note = self._findings.note
        if body.epoch != batch.epoch or body.bytes != len(batch.raw):
            note("batch", "the decoders disagree on the batch's epoch or size", record.lsn)
        if body.durable_lsn > record.lsn:
            note("batch", f"its durable LSN {body.durable_lsn} is above the batch itself", record.lsn)
        opens_segment = record.lsn == batch.first_lsn + SEGMENT_HEADER_BYTES
        if body.base_lsn > body.durable_lsn and not (opens_segment and body.base_lsn == batch.first_lsn):
            note("batch", f"its base {body.base_lsn} is above its durable LSN", record.lsn)
        if body.base_lsn % info.segment_size != 0:
            note("batch", f"its base {body.base_lsn} is not the first LSN of a segment", record.lsn)
        if body.durable_lsn < self._batch_durable_lsn or body.base_lsn < self._batch_base_lsn:
            note("batch", "its durable LSN or its base is below that of an earlier batch", record.lsn)
        self._batch_durable_lsn = max(self._batch_durable_lsn, body.durable_lsn)
        self._batch_base_lsn = max(self._batch_base_lsn, body.base_lsn)

    def _check_footer(self, record: Record, body: Footer) -> None:
        self.footers += 1
        count = self._count
        counted = sorted((kind, n) for kind, n in count.types.items() if kind < FOOTER_TYPES_END)
        said = [(one.type, one.count) for one in body.counts]
        log_bytes = record.lsn - count.first_lsn - SEGMENT_HEADER_BYTES
        wrong = []
        if said != counted:
            wrong.append(f"counts {said}, but there are {counted}")
        if body.last_lsn not in (count.last_lsn, count.before_lsn):
            wrong.append(f"last LSN {body.last_lsn}, but it is {count.before_lsn}")
        if body.bytes != log_bytes:
            wrong.append(f"{body.bytes} bytes, but there are {log_bytes}")
        if body.batches != count.types[RecordType.BATCH]:
            wrong.append(f"{body.batches} batches, but there are {count.types[RecordType.BATCH]}")
        if wrong:
            self._findings.note("footer", f"the segment's footer says {'; '.join(wrong)}", record.lsn)
