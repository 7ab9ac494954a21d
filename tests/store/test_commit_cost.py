"""The cost of an outcome: one write and one force, for any number of operations.

Counted in two ways: on the simulated disk, where each call in turn fails, which shows the calls that an outcome needs;
and on a real disk, where strace counts the syncs of the process.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kit.simulated import Disk
from kit.stores import ROOT
from logstore import MessageStore, Transaction, Xid
from logstore.errors import OutcomeUnknown, StoreError

pytestmark = pytest.mark.on_disk

BODY = bytes(1024)
SEGMENT = 1 << 20  # a batch holds an eighth of it: more than the largest transaction here
WRITE_AND_FORCE = [1, 2]


def local(store: MessageStore) -> Transaction:
    return store.begin()


def distributed(store: MessageStore) -> Transaction:
    return store.begin(Xid(1, b"global", b"branch"))


def work(store: MessageStore, transaction: Transaction, operations: int) -> None:
    """Half of the operations take existing messages, the other half put new ones."""
    queue = store.queue("q")
    waiting = [message.id for message in store.messages(queue)]
    for number in range(operations):
        if number % 2:
            store.dequeue(waiting[number // 2], queue, transaction)
        else:
            store.publish(queue, BODY, transaction=transaction)
    if transaction.xid is not None:
        transaction.end()


Begin = Callable[[MessageStore], Transaction]
Step = Callable[[Transaction], None]

ONE_STEP: dict[str, tuple[Begin, Step]] = {
    "local commit": (local, lambda transaction: transaction.commit()),
    "local rollback": (local, lambda transaction: transaction.rollback()),
    "one-phase commit": (distributed, lambda transaction: transaction.commit()),
    "prepare": (distributed, lambda transaction: transaction.prepare()),
}


def ready(disk: Disk, path: Path, begin: Begin, operations: int) -> Transaction:
    """A transaction with its operations done, and no other writes pending."""
    store = disk.open(path, segment_size=SEGMENT, background=0)
    queue = store.declare_queue("q")
    store.publish_many(queue, [BODY] * 50)
    store.force()
    transaction = begin(store)
    work(store, transaction, operations)
    return transaction


def indispensable(path: Path, begin: Begin, operations: int, steps: list[Step]) -> list[int]:
    """The calls of the last step that it cannot succeed without, as numbers from 1 on."""
    found = []
    for nth in range(1, 8):
        disk = Disk()
        transaction = ready(disk, path / str(nth), begin, operations)
        for step in steps[:-1]:
            step(transaction)
        disk.fail(nth, errno.EIO)
        try:
            steps[-1](transaction)
        except OutcomeUnknown:
            found.append(nth)
        disk.fail(0, 0)
        with contextlib.suppress(StoreError):
            transaction._store.close()
        del transaction
        disk.free()
    return found


@pytest.mark.parametrize("operations", [1, 10, 100])
@pytest.mark.parametrize("outcome", ONE_STEP)
def test_an_outcome_is_one_write_and_one_force(outcome: str, operations: int, tmp_path: Path) -> None:
    begin, step = ONE_STEP[outcome]
    assert indispensable(tmp_path, begin, operations, [step]) == WRITE_AND_FORCE
    disk = Disk()
    transaction = ready(disk, tmp_path / "counted", begin, operations)
    store = transaction._store
    before = store.stats()
    step(transaction)
    after = store.stats()
    assert (after["syncs"] - before["syncs"], after["batches"] - before["batches"]) == (1, 1)
    assert store.durable_lsn == store.next_lsn


@pytest.mark.parametrize("outcome", ["commit", "rollback"])
def test_prepare_and_its_outcome_are_two_forces(outcome: str, tmp_path: Path) -> None:
    def step(transaction: Transaction) -> None:
        getattr(transaction, outcome)()

    assert indispensable(tmp_path, distributed, 10, [Transaction.prepare, step]) == WRITE_AND_FORCE
    disk = Disk()
    transaction = ready(disk, tmp_path / "counted", distributed, 10)
    before = transaction._store.stats()["syncs"]
    transaction.prepare()
    step(transaction)
    assert transaction._store.stats()["syncs"] - before == 2


@pytest.mark.parametrize("begin", [local, distributed])
def test_work_in_a_transaction_does_not_touch_the_disk(begin: Begin, tmp_path: Path) -> None:
    disk = Disk()
    store = disk.open(tmp_path / "s", segment_size=SEGMENT, background=0)
    store.publish_many(store.declare_queue("q"), [BODY] * 50)
    store.force()
    before = store.stats()["syncs"]
    disk.fail(1, errno.EIO, forever=True)
    transaction = begin(store)
    work(store, transaction, 100)
    disk.fail(0, 0)
    assert store.stats()["syncs"] == before
    transaction.commit()
    assert store.queue("q").depth == 50


SCRIPT = """
import json, os, sys, time
import logstore

def mark():  # a call that nothing else here makes
    os.getsid(0)

counted = []
with logstore.open(sys.argv[1], segment_size=4 << 20) as store:
    queue = store.declare_queue("q")
    while store.stats()["spares"] < 3:  # else they are made, and synced, in between
        time.sleep(0.01)
    for begin, steps in json.loads(sys.argv[2]):
        for operations in (1, 10, 100):
            ids = store.publish_many(queue, [bytes(1024)] * 50)
            transaction = store.begin(logstore.Xid(1, b"g") if begin == "distributed" else None)
            mark()
            for number in range(operations):
                if number % 2:
                    store.dequeue(ids[number // 2], queue, transaction)
                else:
                    store.publish(queue, bytes(1024), transaction=transaction)
            if begin == "distributed":
                transaction.end()
            for step in steps:
                getattr(transaction, step)()
            mark()
            counted.append(len(steps))
    queue.purge()
print(json.dumps(counted))
"""

PLANS = [
    ("local", ["commit"]),
    ("local", ["rollback"]),
    ("distributed", ["commit"]),
    ("distributed", ["prepare", "commit"]),
    ("distributed", ["prepare", "rollback"]),
]


def test_the_kernel_sees_one_sync_for_each_outcome_and_two_with_prepare(tmp_path: Path) -> None:
    strace = shutil.which("strace")
    if strace is None:
        why = "there is no strace here to count syncs with: install it"
        if os.environ.get("CI") == "true":
            pytest.fail(why)
        pytest.skip(why)
    trace = tmp_path / "trace"
    calls = "getsid,fsync,fdatasync,sync,syncfs,sync_file_range,msync,io_uring_enter,io_submit"
    watched = [sys.executable, "-c", SCRIPT, tmp_path / "s", json.dumps(PLANS)]
    done = subprocess.run(
        [strace, "-f", "-qq", "-y", "-o", trace, "-e", f"trace={calls}", *watched],
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    syncs: list[int] = []
    inside = False
    for line in trace.read_text().splitlines():
        if "getsid(" in line:
            inside = not inside
            if inside:
                syncs.append(0)
        elif inside and "resumed>" not in line:
            assert re.search(r"fdatasync\(\d+<.*\.seg>", line), line
            syncs[-1] += 1
    assert syncs == json.loads(done.stdout) == [len(steps) for _, steps in PLANS for _ in range(3)]


def test_stats_give_the_time_of_all_forces_and_of_the_slowest(tmp_path: Path) -> None:
    store = Disk().open(tmp_path / "s", segment_size=SEGMENT, background=0)
    queue = store.declare_queue("q")
    before = store.stats()
    for _ in range(5):
        store.publish(queue, BODY)
    after = store.stats()
    assert after["syncs"] - before["syncs"] == 5
    took = after["sync_us"] - before["sync_us"]
    assert took >= 5  # each call of the simulated disk takes a microsecond
    assert took / 5 <= after["sync_us_max"] <= after["sync_us"]
