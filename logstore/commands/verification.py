"""The checks behind ``logstore verify``: one pass over a log, and what was found wrong in it.

What always holds: it changes nothing; and beside a writer, what it calls a problem is none of the writer's doing,
since everything it looks at was durable before it began.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from logstore.commands.replay import Replay, Replayed
from logstore.commands.state import catalog_contradiction
from logstore.errors import CatalogError, CatalogUnavailable, CorruptLog
from logstore.files import SEGMENT_HEADER_BYTES
from logstore.inspect import (
    BatchBytes,
    LogRecycled,
    Reader,
    ReaderInfo,
    read_catalog,
    segment_name,
)
from logstore.records import Batch, Footer, InvalidRecord, Record, RecordType, encode_record

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

KEPT = 1000  # problems; all are counted
SAMPLE_FIRST = 100  # of each type of record, compared byte for byte
SAMPLE_EVERY = 64  # and all records of each batch of so many


class Found(NamedTuple):
    """One problem. Where it has no place in the log, segment, offset and LSN are None."""

    kind: str  # damage, decoder, batch, chain, footer, catalog
    text: str
    segment: str | None = None
    offset: int | None = None
    lsn: int | None = None


class _SegmentCount:
    """What a footer says of its segment, counted."""

    def __init__(self, first_lsn: int) -> None:
        self.first_lsn = first_lsn
        self.types: Counter[int] = Counter()
        self.last_lsn = 0  # of the newest record that is no BATCH
        self.before_lsn = 0  # of the newest record


class Verification:
    """One look at a store. :meth:`run` fills in what the attributes say.

    Making it raises as Reader does, but that a log too damaged to be opened is a finding, not an error.
    """

    def __init__(self, store_dir: Path, *, thorough: bool) -> None:
        self.store_dir = store_dir
        self.thorough = thorough
        self.problems: list[Found] = []
        self.problem_count = 0
        self.info: ReaderInfo | None = None
        self.replay: Replay | None = None
        self.replayed: Replayed | None = None  # only of a log that could be read to its end
        self.torn_lsn: int | None = None
        self.segments = self.footers = self.batches = self.bytes_read = self.compared = 0
        self._reader: Reader | None = None
        self._count = _SegmentCount(-1)
        self._batch_base_lsn = self._batch_durable_lsn = 0
        try:
            self._reader = Reader(store_dir)
        except CorruptLog as error:
            self._damage(error)
            return
        self.info = self._reader.info
        if self.info.state == "crashed":
            last = self._reader.segments()[-1]
            self.torn_lsn = max(self.info.end_lsn, last.first_lsn + SEGMENT_HEADER_BYTES)

    @property
    def bytes_expected(self) -> int:
        """About how much there is to read."""
        return 0 if self.info is None else max(self.info.end_lsn - self.info.base_lsn, 0)

    def run(self, show: Callable[[int], None], *, connect: str | None, schema: str | None) -> None:
        """Check everything; ``show`` is told how far it is.

        Raises LogRecycled if a writer was faster, ``VersionError``, and ``StoreError`` for what cannot be read.
        """
        if self._reader is None or self.info is None:
            return
        with self._reader as reader:
            whole = self._walk(reader, self.info, show)
        assert self.replay is not None
        if whole:
            self.replayed = self.replay.finish(writer_epoch=self.info.writer_epoch)
        for problem in self.replay.problems:
            self._note("chain", problem.reason, problem.lsn)
        self.problem_count += self.replay.problem_count - len(self.replay.problems)
        self._check_catalog(connect, schema)

    # ---- Problems

    def _add(self, found: Found) -> None:
        self.problem_count += 1
        if len(self.problems) < KEPT:
            self.problems.append(found)

    def _note(self, kind: str, reason: str, lsn: int) -> None:
        assert self.info is not None
        name, offset = segment_name(lsn, self.info.segment_size), lsn % self.info.segment_size
        self._add(Found(kind, f"segment {name}, offset {offset}, LSN {lsn}: {reason}", name, offset, lsn))

    def _damage(self, error: CorruptLog) -> None:
        where = (error.segment, error.offset, error.lsn) if error.segment else (None, None, None)
        place = f"segment {error.segment}, offset {error.offset}, LSN {error.lsn}: " if error.segment else ""
        self._add(Found("damage", f"{place}{error.reason}", *where))

    # ---- The log

    def _walk(self, reader: Reader, info: ReaderInfo, show: Callable[[int], None]) -> bool:
        """Check every batch; False if damage ended it. Then only checksums are checked in what follows."""
        self.replay = Replay(info.base_lsn)
        self.segments = sum(segment.end_lsn > segment.first_lsn for segment in reader.segments())
        try:
            for batch in reader.batches():
                self._check_batch(reader, batch)
                show(batch.end_lsn - info.base_lsn)
        except CorruptLog as error:
            self._damage(error)
            self._walk_on(error.lsn, info, show)
            return False
        return True

    def _walk_on(self, damaged_lsn: int, info: ReaderInfo, show: Callable[[int], None]) -> None:
        size = info.segment_size
        while (next_lsn := damaged_lsn - damaged_lsn % size + size) < info.end_lsn:
            with Reader(self.store_dir, from_lsn=next_lsn) as reader:
                if reader.info.base_lsn > damaged_lsn:
                    raise LogRecycled(f"the writer of {self.store_dir} has reused what was damaged; run this again")
                try:
                    for batch in reader.batches():
                        self.batches += 1
                        self.bytes_read += len(batch.raw)
                        show(batch.end_lsn - info.base_lsn)
                    return
                except CorruptLog as error:
                    self._damage(error)
                    damaged_lsn = error.lsn

    def _check_batch(self, reader: Reader, batch: BatchBytes) -> None:
        assert self.replay is not None
        if batch.first_lsn != self._count.first_lsn:
            self._count = _SegmentCount(batch.first_lsn)
        compared = self.thorough or self.batches % SAMPLE_EVERY == 0
        self.batches += 1
        self.bytes_read += len(batch.raw)
        at = 0
        for record in reader.decode(batch):
            if isinstance(record.body, Batch):
                self._check_batch_record(record, record.body, batch)
            elif isinstance(record.body, Footer):
                self._check_footer(record, record.body)
            self.replay.apply(record)
            if compared or self.replay.types[record.type] <= SAMPLE_FIRST:
                self._compare(record, batch.raw[at : at + record.length], reader.seed(batch.first_lsn, batch.epoch))
            self._count.types[int(record.type)] += 1
            self._count.before_lsn = record.lsn
            if record.type is not RecordType.BATCH:
                self._count.last_lsn = record.lsn
            at += record.length

    def _compare(self, record: Record, raw: bytes, seed: int) -> None:
        self.compared += 1
        try:
            same = encode_record(record, seed) == raw
        except InvalidRecord:
            same = False
        if not same:
            self._note("decoder", "the second decoder does not write what it has read", record.lsn)

    def _check_batch_record(self, record: Record, body: Batch, batch: BatchBytes) -> None:
        """What a batch says of itself and of the log before it. The core has counted its records."""
        assert self.info is not None
        if body.epoch != batch.epoch or body.bytes != len(batch.raw):
            self._note("batch", "the decoders disagree on the batch's epoch or size", record.lsn)
        if body.durable_lsn > record.lsn:
            self._note("batch", f"it says that LSN {body.durable_lsn}, above it, was durable before it", record.lsn)
        opens_segment = record.lsn == batch.first_lsn + SEGMENT_HEADER_BYTES
        if body.base_lsn > body.durable_lsn and not (opens_segment and body.base_lsn == batch.first_lsn):
            self._note("batch", f"its base {body.base_lsn} lies above what was durable", record.lsn)
        if body.base_lsn % self.info.segment_size != 0:
            self._note("batch", f"its base {body.base_lsn} is not the first LSN of a segment", record.lsn)
        if body.durable_lsn < self._batch_durable_lsn or body.base_lsn < self._batch_base_lsn:
            self._note("batch", "its durable LSN or its base lies below that of a batch before it", record.lsn)
        self._batch_durable_lsn = max(self._batch_durable_lsn, body.durable_lsn)
        self._batch_base_lsn = max(self._batch_base_lsn, body.base_lsn)

    def _check_footer(self, record: Record, body: Footer) -> None:
        self.footers += 1
        count = self._count
        counted = sorted(count.types.items())
        said = [(one.type, one.count) for one in body.counts]
        log_bytes = record.lsn - count.first_lsn - SEGMENT_HEADER_BYTES
        wrong = []
        if said != counted:
            wrong.append(f"counts {said}, and there are {counted}")
        if body.last_lsn not in (count.last_lsn, count.before_lsn):
            wrong.append(f"last LSN {body.last_lsn}, and it is {count.before_lsn}")
        if body.bytes != log_bytes:
            wrong.append(f"{body.bytes} bytes, and there are {log_bytes}")
        if body.batches != count.types[RecordType.BATCH]:
            wrong.append(f"{body.batches} batches, and there are {count.types[RecordType.BATCH]}")
        if wrong:
            self._note("footer", f"the segment's footer says {'; '.join(wrong)}", record.lsn)

    # ---- The catalog

    def _check_catalog(self, connect: str | None, schema: str | None) -> None:
        assert self.info is not None
        assert self.replay is not None
        try:
            catalog = read_catalog(self.store_dir, self.info, connect=connect, schema=schema)
        except CatalogUnavailable:
            raise
        except CatalogError as error:
            self._add(Found("catalog", error.message))
            return
        contradiction = catalog_contradiction(self.replay, catalog)
        if contradiction is not None:
            self._add(Found("catalog", contradiction))
