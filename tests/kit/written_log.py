"""A log that is written record by record, without a store. Every record keeps the rules of docs/format.md."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

from kit.stores import ROOT
from logstore.catalog.catalog import Catalog
from logstore.codec.files import Meta, SegmentHeader
from logstore.codec.records import (
    Batch,
    Body,
    Record,
    RecordFlag,
    RecordType,
    decode_record,
    encode_record,
    record_bytes,
    seal_record,
)

if TYPE_CHECKING:
    from pathlib import Path

GOLDEN = ROOT / "tests" / "golden" / "v1"
SEGMENT = 64 << 10
BATCH_BYTES_MAX = SEGMENT // 8
TIME_US = 1_700_000_000_000_000


class WrittenLog:
    """A directory with a log; records go to its end, batch by batch, and segment by segment."""

    def __init__(self, path: Path) -> None:
        path.mkdir()
        shutil.copyfile(GOLDEN / "store" / "META", path / "META")
        self.path = path
        self.uuid = Meta.decode((path / "META").read_bytes()).uuid
        catalog = Catalog.create(path, store_uuid=self.uuid.bytes)
        for number in range(1, 8):
            catalog.declare_queue(f"q{number}")
        catalog.close()
        self.epoch = 1
        self.end_lsn = 0
        self.base_lsn = SEGMENT
        self.batches = 0
        self.waiting: list[Record] = []
        self.last: dict[int, int] = {}  # of each chain
        self.begin_segment()

    def begin_segment(self) -> None:
        self.first_lsn = (self.end_lsn + SEGMENT - 1) // SEGMENT * SEGMENT or SEGMENT
        header = SegmentHeader(self.uuid, SEGMENT, self.first_lsn, self.epoch, self.end_lsn, TIME_US)
        self.seed = header.seed
        self.file = self.path / f"{self.first_lsn:016x}.seg"
        self.file.write_bytes(header.encode().ljust(SEGMENT, b"\0"))
        self.end_lsn = self.first_lsn + 4096
        self.next_lsn = self.end_lsn + 104

    def new_epoch(self) -> None:
        self.end_batch()
        self.epoch += 1
        self.begin_segment()

    def new_segment(self) -> None:
        self.end_batch()
        self.begin_segment()

    def drop_below(self, lsn: int) -> None:
        """The base is now at this segment; the files below are gone."""
        self.base_lsn = lsn
        self.end_batch()
        for file in self.path.glob("*.seg"):
            if int(file.stem, 16) < lsn:
                file.unlink()

    def end_batch(self) -> None:
        if not self.waiting:
            return
        length = self.next_lsn - self.end_lsn
        time_us = TIME_US + 1000 * self.batches
        body = Batch(self.epoch, len(self.waiting), length, self.end_lsn, self.base_lsn, time_us)
        batch = Record(self.end_lsn, RecordType.BATCH, RecordFlag(0), 0, 0, 104, body)
        raw = b"".join(encode_record(record, self.seed) for record in (batch, *self.waiting))
        assert len(raw) == length
        with self.file.open("r+b") as file:
            file.seek(self.end_lsn - self.first_lsn)
            file.write(raw)
        self.waiting = []
        self.batches += 1
        self.end_lsn = self.next_lsn
        self.next_lsn += 104

    def add(self, kind: RecordType, body: Body, chain: int = 0, flags: int = 0) -> int:
        """The LSN of the new record; `chain` -1 begins one."""
        length = record_bytes(body)
        if self.next_lsn + length > self.end_lsn + BATCH_BYTES_MAX:
            self.end_batch()
        if self.next_lsn + length > self.first_lsn + SEGMENT:
            self.new_segment()
        lsn = self.next_lsn
        chain = lsn if chain == -1 else chain
        self.waiting.append(Record(lsn, kind, RecordFlag(flags), chain, self.last.get(chain, 0), length, body))
        if chain:
            self.last[chain] = lsn
        self.next_lsn += length
        return lsn


def golden_places(path: Path) -> None:
    """The golden segment with every record that carries states, as a store of its own: its base is that segment."""
    log = WrittenLog(path)
    log.file.unlink()
    source = GOLDEN / "places" / "0000000000050000.seg"
    raw = bytearray(source.read_bytes())
    header = SegmentHeader.decode(bytes(raw[:4096]))
    at = 4096
    while any(raw[at : at + 104]):
        batch = decode_record(raw, at, header.seed, header.first_lsn + at)
        body = batch.body
        assert isinstance(body, Batch)
        sealed = seal_record(replace(batch, body=replace(body, base_lsn=header.first_lsn)), header.seed)
        raw[at : at + 104] = sealed
        at += body.bytes
    (path / source.name).write_bytes(raw)
