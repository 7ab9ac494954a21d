"""Damaged and missing transaction records: refused by name, and never another outcome.

The log of these tests has every kind of transaction record in its middle. One of them is flipped, zeroed, overwritten,
or replaced by a meaningless record with right checksums.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import logstore
from kit.killed import quick_directory, remove
from kit.stores import SMALL_SEGMENT, contents
from logstore import Xid, errors
from logstore.codec.bodies import Filler, RecordFlag
from logstore.codec.records import Record, RecordType, encode_record
from logstore.inspect import Reader

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Damaged:
    """A log with every kind of transaction record in its middle, and a way to change one of them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with logstore.open(path, segment_size=SMALL_SEGMENT) as store:
            store.declare_queue("q")
            for number, how in enumerate(("commit", "rollback", "prepare", "local commit", "local rollback")):
                tx = store.begin(None if how.startswith("local") else Xid(number, b"global", b"branch"))
                store.publish("q", b"before %d" % number)
                store.publish("q", b"in %d" % number, transaction=tx)
                if tx.xid is not None:
                    tx.end()
                    tx.prepare()
                if how != "prepare":
                    getattr(tx, how.split()[-1])()
                store.publish("q", b"after %d" % number)
            self.expected = contents(store.queue("q"))
        with Reader(path) as reader:
            self.batches = [(batch, list(reader._decode(batch))) for batch in reader.batches()]
            self.seeds = {batch.first_lsn: reader.seed(batch.first_lsn, batch.epoch) for batch, _ in self.batches}
        self.files = {file: file.read_bytes() for file in path.glob("*.seg")}

    def records(self, *types: RecordType) -> list[tuple[Any, Record]]:
        return [(batch, record) for batch, records in self.batches for record in records if record.type in types]

    def write(self, batch: Any, lsn: int, data: bytes) -> None:
        with self.file(batch).open("r+b") as file:
            file.seek(lsn - batch.first_lsn)
            file.write(data)

    def file(self, batch: Any) -> Path:
        return self.path / f"{batch.first_lsn:016x}.seg"

    def bytes_of(self, batch: Any, record: Record) -> bytes:
        at = record.lsn - batch.lsn
        return bytes(batch.raw[at : at + record.length])

    def restore(self) -> None:
        for file in set(self.path.glob("*.seg")) - set(self.files):
            file.unlink()  # left by an open that was not refused
        for file, data in self.files.items():
            file.write_bytes(data)

    def check_refused(self, batch: Any) -> errors.CorruptLog:
        """Checks that the open is refused with the place, and that nothing was written."""
        before = self.file(batch).read_bytes()
        with pytest.raises(errors.CorruptLog) as caught:
            logstore.open(self.path)
        assert caught.value.segment == self.file(batch).name
        assert caught.value.lsn == batch.first_lsn + caught.value.offset
        assert batch.lsn <= caught.value.lsn < batch.end_lsn
        assert f"{caught.value.offset}" in str(caught.value)
        assert self.file(batch).read_bytes() == before
        return caught.value


@pytest.fixture(scope="module")
def damaged() -> Iterator[Damaged]:
    directory = quick_directory("logstore-damaged-")
    yield Damaged(directory / "store")
    remove(directory)


TRANSACTION_RECORDS = [
    RecordType.DTX_START,
    RecordType.TX_START,
    RecordType.TX_END,
    RecordType.TX_PREPARE,
    RecordType.TX_COMMIT,
    RecordType.TX_ROLLBACK,
    RecordType.TX_DELETE,
]


@pytest.mark.parametrize("kind", TRANSACTION_RECORDS)
def test_one_flipped_bit_anywhere_in_a_transaction_record_is_named_and_never_another_outcome(
    damaged: Damaged, kind: RecordType
) -> None:
    batch, record = damaged.records(kind)[0]
    whole = damaged.bytes_of(batch, record)
    try:
        for at in range(len(whole)):
            flipped = bytearray(whole)
            flipped[at] ^= 1 << at % 8
            damaged.write(batch, record.lsn, bytes(flipped))
            damaged.check_refused(batch)
    finally:
        damaged.restore()


@pytest.mark.parametrize("kind", TRANSACTION_RECORDS)
def test_a_missing_transaction_record_is_detected(damaged: Damaged, kind: RecordType) -> None:
    """Zeroed, or overwritten by another record of the same log, like a write to the wrong place."""
    batch, record = damaged.records(kind)[0]
    others = [damaged.bytes_of(*other) for other in damaged.records(*TRANSACTION_RECORDS) if other[1] != record]
    same_length = [data for data in others if len(data) == record.length]
    assert same_length or kind == RecordType.TX_START
    try:
        for data in [bytes(record.length), *same_length]:
            damaged.write(batch, record.lsn, data)
            damaged.check_refused(batch)
    finally:
        damaged.restore()


def forged_filler(damaged: Damaged, batch: Any, record: Record) -> bytes:
    """A meaningless record with right checksums, as long as the one that it replaces."""
    body = Filler(record.length - 48)
    filler = Record(record.lsn, RecordType.FILLER, RecordFlag(0), 0, 0, record.length, body)
    return encode_record(filler, damaged.seeds[batch.first_lsn])


@pytest.mark.parametrize(
    "kind",
    [
        RecordType.DTX_START,
        RecordType.TX_START,
        RecordType.TX_COMMIT,
        RecordType.TX_ROLLBACK,
    ],
)
def test_a_log_without_a_start_or_an_outcome_contradicts_itself_though_its_checksums_are_right(
    damaged: Damaged, kind: RecordType
) -> None:
    for batch, record in damaged.records(kind):
        try:
            damaged.write(batch, record.lsn, forged_filler(damaged, batch, record))
            with pytest.raises(errors.CorruptLog) as caught:
                logstore.open(damaged.path).close()
            assert record.lsn < caught.value.lsn  # where the next record does not fit
        finally:
            damaged.restore()


def test_the_log_of_these_tests_is_whole_when_nothing_is_changed(damaged: Damaged) -> None:
    """Without this the refusals would prove nothing."""
    counts = {kind: len(damaged.records(kind)) for kind in TRANSACTION_RECORDS}
    assert list(counts.values()) == [3, 2, 3, 3, 2, 2, 4]
    for batch, record in damaged.records(*TRANSACTION_RECORDS):
        damaged.write(batch, record.lsn, damaged.bytes_of(batch, record))
    store = logstore.open(damaged.path)
    assert contents(store.queue("q")) == damaged.expected
    assert [tx.xid for tx in store.in_doubt()] == [Xid(2, b"global", b"branch")]
    store.close()
    damaged.restore()
