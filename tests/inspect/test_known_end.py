"""Readers that are told where an earlier one found the end of the log: what they say when it ends earlier now."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from logstore.inspect import LogRecycled, Reader

if TYPE_CHECKING:
    from pathlib import Path

    from logstore import MessageStore


def crashed(store: MessageStore, target: Path) -> Path:
    """A copy of a store whose writer was killed."""
    return shutil.copytree(store.path, target)


def test_a_tail_that_a_crash_took_is_not_said_to_be_recycled(store: MessageStore, tmp_path: Path) -> None:
    queue = store.declare_queue("orders")
    for _ in range(5):
        store.publish(queue, b"body")
    path = crashed(store, tmp_path / "crashed")
    with Reader(path) as reader:
        info, last = reader.info, list(reader.batches())[-1]
    with Reader(path, keep_lsn=info.base_lsn, end_lsn=info.end_lsn) as reader:
        assert list(reader.batches())[-1] == last
    with (path / f"{last.first_lsn:016x}.seg").open("r+b") as segment:  # a power cut: it was not forced
        segment.seek(last.lsn - last.first_lsn)
        segment.write(bytes(len(last.raw)))
    with Reader(path, keep_lsn=info.base_lsn, end_lsn=info.end_lsn) as reader:
        batches = reader.batches()
        with pytest.raises(LogRecycled) as failed:
            list(batches)
    said = failed.value.message
    assert str(path) in said
    assert f"the log ends at LSN {last.lsn}, and ended at LSN {info.end_lsn} for an earlier reader" in said
    assert "recycled" not in said
    assert "reused" not in said


def test_the_end_of_a_log_without_a_batch_may_be_told(store: MessageStore, tmp_path: Path) -> None:
    path = crashed(store, tmp_path / "crashed")
    with Reader(path) as reader:
        info = reader.info
    assert info.end_lsn == 0
    with Reader(path, keep_lsn=info.base_lsn, end_lsn=info.end_lsn) as reader:
        assert list(reader.batches()) == []
