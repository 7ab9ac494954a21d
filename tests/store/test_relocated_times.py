"""A relocation keeps the time of the enqueue in the log."""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING

from kit.killed import and_then_killed
from kit.row_histories import epoch
from kit.row_journal import new_store
from logstore.codec.records import InlineCopy, MessageRelocated
from logstore.holds import hold
from logstore.inspect import Reader

if TYPE_CHECKING:
    from pathlib import Path


def test_places_in_relocated_states_say_when_the_batch_of_their_order_was_written(tmp_path: Path) -> None:
    new_store(tmp_path / "store")
    batches: list[tuple[int, int]] = []
    told, inline, silent = 0, 0, 0
    with hold(tmp_path / "store", "all"):
        messages: list[int] = []
        for number in range(6):
            messages = and_then_killed(epoch, tmp_path / "store", 7000 + number, messages, 120, 6)
        with Reader(tmp_path / "store", keep_lsn=1) as reader:
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
    assert told > 50
    assert inline > 10
    assert silent <= told // 20
