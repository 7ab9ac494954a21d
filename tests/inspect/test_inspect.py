"""Reading a store from outside: while a writer runs, after a close, a crash or damage."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import logstore
from kit.crashed import CRASH, WORK, Log, crash, snapshot
from logstore.codec.records import (
    Empty,
    MessageStart,
    QueueDelete,
    Record,
    RecordFlag,
    RecordType,
    encode_record,
)
from logstore.codec.strict import StrictReplay
from logstore.errors import (
    CatalogMismatch,
    CorruptLog,
    NotAStore,
    OptionError,
    StoreClosed,
    StoreError,
)
from logstore.inspect import LogRecycled, Reader, read_catalog, segment_name
from logstore.inspect import reader as module

if TYPE_CHECKING:
    from collections.abc import Iterator

SEGMENT = 512 << 10


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    """Three segments, one queue with 61 messages, closed."""
    path = tmp_path / "closed"
    with logstore.open(path, segment_size=SEGMENT) as store:
        queue = store.declare_queue("orders", arguments={"a": 1})
        store.declare_queue("other", dead_letter="orders")
        store.publish_many(queue, [os.urandom(20_000) for _ in range(60)])
        store.publish(queue, b"last", header=b"h")
    return path


def lsns(path: Path, **options: Any) -> list[int]:
    with Reader(path, **options) as reader:
        return [record.lsn for record in reader.records()]


# ---- The reader


def test_a_reader_gives_every_record_once_in_order_and_both_decoders_agree(closed: Path) -> None:
    with Reader(closed) as reader:
        assert (reader.info.state, reader.info.live, reader.info.clean) == ("closed", False, True)
        assert reader.info.segment_size == SEGMENT
        segments = reader.segments()
        assert len(segments) == reader.info.segments == 3
        assert [segment.current for segment in segments] == [False, False, True]
        assert segments[-1].end_lsn == reader.info.end_lsn == reader.info.durable_lsn
        assert all((closed / segment.name).is_file() for segment in segments)
        last = 0
        types: Counter[str] = Counter()
        for batch in reader.batches():
            for record in reader._decode(batch):
                assert record.lsn > last
                last = record.lsn
                types[RecordType(record.type).name] += 1
                at = record.lsn - batch.lsn
                raw = encode_record(record, reader.seed(batch.first_lsn, batch.epoch))
                assert raw == batch.raw[at : at + record.length]
    assert types["MESSAGE_START"] == 61
    assert (types["FOOTER"], types["CLOSE"]) == (2, 1)


def test_from_lsn_begins_at_the_first_record_at_or_above_it_wherever_that_is(closed: Path) -> None:
    whole = lsns(closed)
    for index in (0, 1, 2, len(whole) // 2, len(whole) - 1):
        assert lsns(closed, from_lsn=whole[index]) == whole[index:]
        assert lsns(closed, from_lsn=whole[index] + 1) == whole[index + 1 :]
    assert lsns(closed, from_lsn=1) == whole
    assert lsns(closed, from_lsn=(1 << 63) - 1) == []


@pytest.mark.parametrize("from_lsn", [-1, 1 << 63, 1 << 70])
def test_an_invalid_lsn_is_refused(closed: Path, from_lsn: int) -> None:
    with pytest.raises(OptionError, match="from_lsn"):
        Reader(closed, from_lsn=from_lsn)


def test_a_chain_is_all_records_of_one_message_and_no_others(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with logstore.open(path, segment_size=SEGMENT) as store:
        one, two = store.declare_queue("one"), store.declare_queue("two")
        store.publish(one, b"before")
        message_id = store.stage(b"header", b"a")
        store.append_content(message_id, b"b")
        store.publish(two, b"between")
        store.enqueue(message_id, one)
        store.dequeue(message_id, one)
    with Reader(path, from_lsn=message_id) as reader:
        chain = list(reader.chain(message_id))
    assert [RecordType(record.type).name for record in chain] == [
        "MESSAGE_START",
        "MESSAGE_CHUNK",
        "MESSAGE_ENQUEUE",
        "MESSAGE_DEQUEUE",
    ]
    assert [record.prev for record in chain] == [0, *(record.lsn for record in chain[:-1])]
    with Reader(path) as reader:
        assert list(reader.chain(0)) == []  # housekeeping records belong to no chain


def test_a_reader_sees_the_log_of_its_creation_while_a_writer_runs(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with logstore.open(path, segment_size=SEGMENT) as store:
        queue = store.declare_queue("orders")
        store.publish(queue, b"one")
        with Reader(path) as reader:
            assert reader.info.state == "live"
            assert reader.info.end_lsn == store.durable_lsn
            store.publish(queue, b"two")
            assert sum(record.type == RecordType.MESSAGE_START for record in reader.records()) == 1
        with Reader(path) as reader:
            assert sum(record.type == RecordType.MESSAGE_START for record in reader.records()) == 2


def test_reading_delays_no_writer_and_creates_or_changes_no_file(tmp_path: Path, closed: Path) -> None:
    crashed = tmp_path / "crashed"
    crash(crashed, "store.publish(store.declare_queue('q'), b'x')")
    for path in (closed, crashed):
        before = snapshot(path)
        with Reader(path) as reader:
            view = read_catalog(path, reader.info)
            assert len(list(reader.records())) > 1
            # The lock is free: the reader took it only for a moment.
            lock = "import fcntl, sys; fcntl.flock(open(sys.argv[1]), fcntl.LOCK_EX | fcntl.LOCK_NB)"
            subprocess.run([sys.executable, "-c", lock, str(path / "LOCK")], check=True)
        assert view.next_queue_id == len(view.queues) + 1
        assert snapshot(path) == before


def test_after_a_crash_the_durable_log_is_read_and_the_state_is_crashed(tmp_path: Path) -> None:
    path = tmp_path / "store"
    crash(path, "[store.publish(store.declare_queue('q'), b'x%d' % n) for n in range(10)]")
    with Reader(path) as reader:
        info = reader.info
        assert (info.state, info.clean) == ("crashed", False)
        assert info.base_lsn < info.durable_lsn <= info.end_lsn
        bodies = [record.body.content for record in reader.records() if isinstance(record.body, MessageStart)]
    assert bodies == [b"x%d" % n for n in range(10)]


@pytest.mark.parametrize("name", ["missing", "empty", "file", "others"])
def test_a_directory_that_is_no_store_is_refused_as_such(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name == "file":
        path.write_bytes(b"x")
    elif name != "missing":
        path.mkdir()
    if name == "others":
        (path / "0000000000080000.seg").write_bytes(bytes(100))
    with pytest.raises(NotAStore):
        Reader(path)


def test_damage_raises_after_all_rows_before_it(closed: Path) -> None:
    with Reader(closed) as reader:
        batches = [batch.lsn for batch in reader.batches()]
        second = reader.segments()[1]
    damaged_lsn = next(lsn for lsn in batches if lsn > second.first_lsn + 100_000)
    with (closed / second.name).open("r+b") as file:
        file.seek(damaged_lsn - second.first_lsn + 200)
        file.write(b"\xff\x00\xff")
    given = []
    with Reader(closed) as reader, pytest.raises(CorruptLog) as caught:
        given.extend(batch.lsn for batch in reader.batches())
    assert given == [lsn for lsn in batches if lsn < damaged_lsn]
    assert caught.value.segment == second.name == segment_name(damaged_lsn, SEGMENT)
    assert (caught.value.lsn, caught.value.offset) == (damaged_lsn, damaged_lsn - second.first_lsn)


def test_a_record_that_only_one_decoder_accepts_is_damage(closed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(buffer: bytes, offset: int, seed: int, lsn: int) -> Record:
        raise module.InvalidRecord("no", offset)

    monkeypatch.setattr(module, "decode_record", refuse)
    with Reader(closed) as reader, pytest.raises(CorruptLog, match="second decoder") as caught:
        next(reader.records())
    assert caught.value.lsn == SEGMENT + 4096


def test_a_closed_reader_says_so(closed: Path) -> None:
    reader = Reader(closed)
    reader.close()
    reader.close()
    with pytest.raises(StoreClosed):
        next(reader.batches())


# ---- While a writer reuses segments


@contextmanager
def churned(path: Path) -> Iterator[tuple[logstore.MessageStore, Any]]:
    """A store, and a function that moves its base far enough to reuse every segment it has."""
    with logstore.open(path, segment_size=SEGMENT) as store:
        queue = store.declare_queue("orders")

        def churn() -> None:
            for _ in range(4):
                ids = store.publish_many(queue, [bytes(20_000)] * 60)
                store.dequeue_many(ids, queue)
                store.compact()

        yield store, churn


def test_a_reader_that_is_overtaken_says_so_and_a_new_one_reads_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "READ_AHEAD_BYTES", 0)
    path = tmp_path / "store"
    with churned(path) as (store, churn):
        ids = store.publish_many("orders", [bytes(20_000)] * 60)
        with Reader(path) as reader:  # while they are live: it begins at the segment that is reused below
            batches = reader.batches()
            next(batches)
            store.dequeue_many(ids, "orders")
            churn()
            with pytest.raises(LogRecycled, match="run this again"):
                list(batches)
        with Reader(path) as reader:
            assert reader.info.base_lsn > 2 * SEGMENT
            assert list(reader.batches())


def test_bytes_read_ahead_stay_readable_when_the_writer_reuses_the_segment(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with churned(path) as (store, churn):
        while True:
            ids = store.publish_many("orders", [bytes(20_000)] * 60)
            store.dequeue_many(ids, "orders")
            with Reader(path) as reader:
                batches = reader.batches()
                try:
                    first = next(batches)
                except LogRecycled:
                    continue  # before it read anything: it starts again
                churn()
                assert reader.info.base_lsn < store.base_lsn
                last = first
                for last in batches:
                    assert list(reader._decode(last))
                assert last.end_lsn == reader.info.end_lsn
                break


def test_a_writer_that_comes_after_the_reader_is_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with churned(path) as (_, churn):
        churn()
    with Reader(path) as reader:
        assert reader.info.state == "closed"
        with churned(path) as (_, churn):
            churn()
            with pytest.raises(LogRecycled):
                list(reader.batches())


# ---- The catalog


def test_the_catalog_is_read_while_a_writer_runs_after_a_close_and_after_a_crash(tmp_path: Path, closed: Path) -> None:
    crashed = tmp_path / "crashed"
    crash(crashed, "store.declare_queue('in the write-ahead log')")
    for path, names in ((closed, ["orders", "other"]), (crashed, ["in the write-ahead log"])):
        with Reader(path) as reader:
            assert [queue.name for queue in read_catalog(path, reader.info).queues] == names
    with logstore.open(closed) as store, Reader(closed) as reader:
        store.declare_queue("new")
        view = read_catalog(closed, reader.info)
        assert [queue.name for queue in view.queues] == ["orders", "other", "new"]
        assert view.queues[0].arguments == {"a": 1}
        assert view.queues[1].dead_letter == "orders"


def test_another_stores_catalog_or_none_is_a_mismatch_that_names_the_store(tmp_path: Path, closed: Path) -> None:
    with logstore.open(tmp_path / "another"):
        pass
    with Reader(closed) as reader:
        shutil.copy(tmp_path / "another" / "catalog.sqlite", closed / "catalog.sqlite")
        with pytest.raises(CatalogMismatch, match=str(closed)):
            read_catalog(closed, reader.info)
        (closed / "catalog.sqlite").unlink()
        with pytest.raises(CatalogMismatch, match="missing"):
            read_catalog(closed, reader.info)
        (closed / "catalog.sqlite").mkdir()
        with pytest.raises(StoreError, match="regular file"):
            read_catalog(closed, reader.info)


# ---- The replay


def test_a_message_lives_until_its_last_place_is_gone() -> None:
    log = Log()
    message = log.publish(1, 2)
    log.publish(1)
    log.dequeue(message, 1)
    assert log.finish() == ({1: (1, 0), 2: (1, 0)}, 2)
    log.dequeue(message, 2, flags=RecordFlag.DELETES)
    assert log.finish() == ({1: (1, 0)}, 1)
    assert log.replay.problems == []


def test_work_in_a_transaction_counts_at_its_commit_and_never_after_a_rollback() -> None:
    log = Log()
    there = log.publish(1)
    for outcome, after in ((RecordType.TX_ROLLBACK, {1: (1, 0)}), (RecordType.TX_COMMIT, {2: (1, 0)})):
        tx = log.begin()
        log.publish(2, tx=tx)
        log.dequeue(there, 1, tx=tx)
        assert log.finish()[0] == {1: (1, 1)}
        log.step(tx, outcome)
        log.step(tx, RecordType.TX_DELETE)
        assert log.finish()[0] == after
    assert log.finish()[1] == 1
    assert (log.replay.committed, log.replay.rolled_back, log.replay.problems) == (1, 1, [])


def test_recovery_rolls_back_unprepared_transactions_and_drops_staged_messages() -> None:
    log = Log()
    one, two = log.publish(1), log.publish(1)
    active, prepared = log.begin(), log.begin(b"x")
    log.dequeue(one, 1, tx=active)
    log.dequeue(two, 1, tx=prepared)
    log.publish(2, tx=prepared)
    log.step(prepared, RecordType.TX_END)
    log.step(prepared, RecordType.TX_PREPARE)
    log.stage()
    log.enqueue(log.stage(), 3, tx=active)
    assert log.finish() == ({1: (2, 2)}, 5)
    assert log.finish(recovering=True) == ({1: (2, 1)}, 3)
    assert (log.replay.abandoned, log.replay.staged_dropped) == (1, 2)


def test_a_new_epoch_shows_that_recovery_has_run() -> None:
    log = Log()
    tx = log.begin()
    message = log.stage()
    log.enqueue(message, 1, tx=tx)
    log.batch(epoch=2)
    log.step(tx, RecordType.TX_ROLLBACK)
    kept = log.stage()
    found = log.replay.finish(writer_epoch=2)
    assert (found.messages, found.staged, found.transactions) == (1, 1, [])
    assert (log.replay.rolled_back, log.replay.staged_dropped, log.replay.problems) == (1, 1, [])
    log.enqueue(kept, 1)
    log.stage()
    assert log.finish() == ({1: (1, 0)}, 2)
    assert log.replay.finish(writer_epoch=3).messages == 1  # epoch 3 has not written a batch yet


def test_a_deleted_queue_has_no_places_and_keeps_no_message_alive() -> None:
    log = Log()
    both, only = log.publish(1, 2), log.publish(1)
    tx = log.begin()
    log.enqueue(both, 3, tx=tx)
    for queue in (1, 3):
        log.add(RecordType.QUEUE_DELETE, QueueDelete(queue), prev=0)
    assert log.finish() == ({2: (1, 0)}, 1)
    log.step(tx, RecordType.TX_COMMIT)
    log.dequeue(both, 2, flags=RecordFlag.DELETES)
    assert log.finish() == ({}, 0)
    assert only > 0
    assert log.replay.problems == []


def test_records_of_chains_that_began_below_the_base_are_counted_and_ignored() -> None:
    log = Log(base_lsn=1 << 20)
    log.last = {512: 768, 1024: 1024}
    log.dequeue(512, 1, flags=RecordFlag.DELETES)
    log.step(1024, RecordType.TX_COMMIT)
    log.last[2048] = 2048
    tx = log.begin()
    log.enqueue(2048, 1, 2, tx=tx)
    log.publish(1, tx=tx)
    log.step(tx, RecordType.TX_COMMIT)
    assert log.finish() == ({1: (1, 0)}, 1)
    assert (log.replay.orphans, log.replay.problems) == (3, [])


def misnumbered(log: Log) -> None:
    tx = log.begin()
    log.enqueues[tx] = 1
    log.publish(1, tx=tx)


@pytest.mark.parametrize(
    ("records", "reason"),
    [
        (lambda log: log.dequeue(log.publish(1), 2), "where it is not"),
        (lambda log: log.enqueue(log.publish(1), 1), "where it is already"),
        (lambda log: log.dequeue(log.publish(1, 2), 1, flags=RecordFlag.DELETES), "still needed"),
        (lambda log: log.enqueue(log.next_lsn - 256, 1), "has no start"),
        (lambda log: log.dequeue(log.publish(1), 1, tx=4096), "not open"),
        (lambda log: log.add(RecordType.MESSAGE_DELETE, Empty(), log.stage(), prev=4096), "the record before it"),
        (lambda log: log.dequeue(log.publish(1), 1, tx=512), "neither start nor outcome"),
        (lambda log: log.add(RecordType.TX_COMMIT, Empty(), 512, prev=4096), "is no record of chain"),
        (lambda log: log.step(log.begin(), RecordType.TX_DELETE), "before its outcome"),
        (misnumbered, "comes after 0 others"),
    ],
)
def test_a_contradiction_of_the_format_is_noted_and_replay_continues(records: Any, reason: str) -> None:
    log = Log()
    records(log)
    log.publish(7)
    assert log.finish()[0][7] == (1, 0)
    assert reason in " ".join(problem.reason for problem in log.replay.problems)
    assert log.replay.problem_count == len(log.replay.problems) > 0


@pytest.mark.parametrize("seed", range(4))
def test_replay_agrees_with_the_core_while_a_writer_runs_and_about_recovery(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "store"
    for turn in range(3):
        with subprocess.Popen(
            [sys.executable, "-c", CRASH.format(work=WORK), str(path), str(10 * seed + turn)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            said = json.loads(process.stdout.readline())
            with Reader(path) as reader:
                assert reader.info.live
                replay = StrictReplay(reader.info.base_lsn)
                for record in reader.records():
                    replay.apply(record)
                found = replay.finish(writer_epoch=reader.info.writer_epoch)
            assert replay.problems == []
            queues = {name: [counts.depth, counts.locked] for name, counts in found.queues.items()}
            assert queues == {int(name): counts for name, counts in said["queues"].items() if counts[0]}
            assert (found.messages, len(found.transactions)) == (said["messages"], said["transactions"])
            process.kill()
        with Reader(path) as reader:
            replay = StrictReplay(reader.info.base_lsn)
            for record in reader.records():
                replay.apply(record)
            found = replay.finish()
        with logstore.open(path) as store:
            report = store.recovery
            assert (found.messages, found.places) == (report.messages, report.places)
            assert replay.abandoned == report.transactions_abandoned
            assert len(found.transactions) == report.transactions_in_doubt == len(store.in_doubt())
            assert (replay.committed, replay.staged_dropped) == (report.transactions_committed, report.staged_dropped)
            assert (replay.rolled_back, replay.orphans) == (report.transactions_rolled_back, report.orphans)


def test_a_log_read_while_it_is_written_is_never_called_damaged(tmp_path: Path) -> None:
    path = tmp_path / "store"
    work = """
queue = store.declare_queue("orders")
print("ready", flush=True)
while True:
    ids = store.publish_many(queue, [bytes(9000)] * 60)
    store.dequeue_many(ids, queue)
"""
    with subprocess.Popen(
        [sys.executable, "-c", CRASH.format(work=work), str(path)], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        bases, overtaken = set(), 0
        until = time.monotonic() + 60
        while len(bases) < 8 and time.monotonic() < until:
            try:
                with Reader(path) as reader:
                    bases.add(reader.info.base_lsn)
                    assert all(list(reader._decode(batch)) for batch in reader.batches())
            except LogRecycled:
                overtaken += 1
        process.kill()
    assert len(bases) == 8  # the base moved
    assert overtaken <= len(bases)
