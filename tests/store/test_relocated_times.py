"""A relocation keeps the time of the enqueue in the log."""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING

import logstore
from kit.killed import and_then_killed
from kit.row_histories import SEGMENT, epoch
from kit.row_journal import new_store
from logstore.codec.records import InlineCopy, MessageRelocated
from logstore.holds import hold
from logstore.inspect import Reader

if TYPE_CHECKING:
    from pathlib import Path


def times_told(path: Path) -> tuple[int, int, int]:
    """How many places in states tell their time, how many do not, and how many inline copies tell theirs."""
    batches: list[tuple[int, int]] = []
    told, silent, inline = 0, 0, 0
    with Reader(path, keep_lsn=1) as reader:
        for batch in reader.batches():
            head, *records = reader._decode(batch)
            batches.append((batch.lsn, head.body.time_us))  # type: ignore[attr-defined]  # a BATCH record's
            for record in records:
                if isinstance(record.body, InlineCopy) and record.body.enqueue_time_us:
                    inline += 1
                for place in record.body.places if isinstance(record.body, MessageRelocated) else ():
                    at = bisect.bisect_right(batches, (place.order_lsn, 1 << 64)) - 1
                    assert place.enqueue_time_us in (0, batches[at][1])
                    told += place.enqueue_time_us != 0
                    silent += place.enqueue_time_us == 0
    return told, silent, inline


def test_places_in_relocated_states_say_when_the_batch_of_their_order_was_written(tmp_path: Path) -> None:
    new_store(tmp_path / "store")
    with hold(tmp_path / "store", "all"):
        messages: list[int] = []
        for number in range(6):
            messages = and_then_killed(epoch, tmp_path / "store", 7000 + number, messages, 120, 6)
        told, silent, inline = times_told(tmp_path / "store")
    assert told > 50
    assert inline > 10
    assert silent < told  # how many are cheap to find depends on when the store relocates


def test_all_places_say_it_while_the_segments_of_their_batches_are_few(tmp_path: Path) -> None:
    messages = 40
    new_store(tmp_path / "store")
    with hold(tmp_path / "store", "all"), logstore.open(tmp_path / "store", segment_size=SEGMENT) as store:
        for name in ("one", "two", "dead"):
            store.declare_queue(name)
        for _ in range(messages):
            store.enqueue(store.publish("one", b"lives"), "two")
        while not store.stats()["segments_relocated"]:
            store.dequeue(store.publish("dead", bytes(SEGMENT // 4)), "dead")
        store.force()
        told, silent, inline = times_told(tmp_path / "store")
    assert (told, silent, inline) == (2 * messages, 0, 0)
