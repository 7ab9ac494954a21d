"""A writer process is killed with SIGKILL in the middle of its work. Straight after the open the counts are those that
the writer had said, and those of a walk."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import logstore
from kit.counted_writer import QUEUES, SEGMENT
from kit.patience import PATIENCE_S
from kit.stores import ROOT
from logstore import QueueCounts

if TYPE_CHECKING:
    from pathlib import Path

    from logstore import MessageStore, Queue

Counts = dict[str, QueueCounts]


def killed_after(directory: Path, seed: int, changes: int) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
    """What the writer said last: after a change, and before one. The process was killed after that many changes."""
    with subprocess.Popen(
        [sys.executable, "-m", "kit.counted_writer", str(directory), str(seed)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "tests")))},
        text=True,
    ) as writer:
        assert writer.stdout is not None
        lines = []
        for line in writer.stdout:  # to the end of the pipe, which has what it said until it died
            lines.append(line)
            if len(lines) == changes:
                writer.send_signal(signal.SIGKILL)
        assert writer.wait(PATIENCE_S) == -signal.SIGKILL
    said = [json.loads(line) for line in lines if line.endswith("\n")]
    done = next(one["done"] for one in reversed(said) if "done" in one)
    return done, said[-1].get("next", done)


def of_journal(counts: dict[str, list[int]]) -> Counts:
    return {
        name: QueueCounts(depth, depth - locked, 0, locked, size, size - locked_size)
        for name, (depth, locked, size, locked_size) in counts.items()
    }


def of_walk(queue: Queue) -> QueueCounts:
    listed = list(queue.browse())
    free = [one for one in listed if not one.locked]
    sizes = sum(one.size for one in listed), sum(one.size for one in free)
    return QueueCounts(len(listed), len(free), 0, len(listed) - len(free), *sizes)


def counted(store: MessageStore) -> Counts:
    return {name: store.queue(name).counts() for name in QUEUES}


@pytest.mark.parametrize("changes", [40, 400, 1500])
def test_after_a_kill_9_ready_locked_and_bytes_are_what_the_writer_had_made_durable(
    tmp_path: Path, changes: int
) -> None:
    done, coming = killed_after(tmp_path / "store", changes, changes)
    with logstore.open(tmp_path / "store", segment_size=SEGMENT) as store:
        found = counted(store)
        assert found in (of_journal(done), of_journal(coming))
        assert found == {name: of_walk(store.queue(name)) for name in QUEUES}
        assert sum(one.depth for one in found.values()) > 0


def test_after_a_kill_9_places_locked_by_prepared_transactions_count_as_ready_after_the_rollback(
    tmp_path: Path,
) -> None:
    done, _ = killed_after(tmp_path / "store", 7, 600)
    assert sum(one[1] for one in done.values()) > 0
    with logstore.open(tmp_path / "store", segment_size=SEGMENT) as store:
        before = counted(store)
        assert sum(one.locked for one in before.values()) > 0
        for transaction in store.in_doubt():
            transaction.rollback()
        after = counted(store)
        for name in QUEUES:
            depth, size = before[name].depth, before[name].bytes
            assert after[name] == QueueCounts(depth, depth, 0, 0, size, size) == of_walk(store.queue(name))


def test_after_a_kill_9_prepared_transactions_that_are_committed_take_their_places_from_the_counts(
    tmp_path: Path,
) -> None:
    killed_after(tmp_path / "store", 11, 600)
    with logstore.open(tmp_path / "store", segment_size=SEGMENT) as store:
        before = counted(store)
        transactions = store.in_doubt()
        assert sum(one.locked for one in before.values()) > 0
        for transaction in transactions:
            transaction.commit()
        after = counted(store)
        locked = sum(one.locked for one in before.values())
        assert sum(one.depth for one in after.values()) == (
            sum(one.depth for one in before.values()) - locked + len(transactions)  # each has published one message
        )
        assert after == {name: of_walk(store.queue(name)) for name in QUEUES}
