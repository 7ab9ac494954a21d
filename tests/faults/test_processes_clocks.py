"""A wall clock that jumps far, in both directions, between runs and during them: ids and order do not depend on it."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

import logstore
from kit.clock_jumps import HOUR_S, YEAR_S, JumpingClock
from kit.killed import quick_directory, remove
from kit.stores import ROOT, SMALL_SEGMENT, contents

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

JUMPS = (0, 20 * YEAR_S, -20 * YEAR_S, -56 * YEAR_S, HOUR_S, -HOUR_S, 200 * YEAR_S)
RUNS, EACH = 2, 40

WORKER = """
import os, signal, struct, sys, time, logstore
path, jump = sys.argv[1], open(sys.argv[2], "r+b")
first, EACH, jumps = int(sys.argv[3]), int(sys.argv[4]), [int(each) for each in sys.argv[5:]]
store = logstore.open(path, segment_size=524288)
store.declare_queue("q")
for number in range(first, first + EACH):
    jump.seek(0)
    jump.write(struct.pack("=q", jumps[number % len(jumps)]))
    jump.flush()
    with store.transaction() as tx:
        key = store.publish("q", b"%d " % number + bytes(number % 9 * 3000), transaction=tx)
    branch = store.begin(logstore.Xid(1, b"%d" % number, b""))
    store.publish("in doubt", b"x", transaction=branch) if number % 20 == 0 else None
    branch.end()
    branch.prepare() if number % 20 == 0 else branch.rollback()
    store.compact() if number % 14 == 0 else None
    print(number, key, int(time.time()), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A directory in memory: SIGKILL loses nothing that the kernel has, and there is no disk to wait for."""
    made = quick_directory("logstore-storm-")
    yield made
    remove(made)


@pytest.fixture
def clock(tmp_path: Path) -> Iterator[JumpingClock]:
    return JumpingClock(tmp_path)


def test_ids_order_and_recovery_do_not_depend_on_the_clock(clock: JumpingClock, tmp_path: Path) -> None:
    """Outcome: ids grow and order is that of publishing, over jumps of decades in every run and between them."""
    path = tmp_path / "store"
    with logstore.open(path, segment_size=SMALL_SEGMENT) as store:
        store.declare_queue("in doubt")
    ids: list[int] = []
    seen = set()
    for run in range(RUNS):
        done = subprocess.run(
            [
                sys.executable,
                "-c",
                WORKER,
                str(path),
                str(tmp_path / "jump"),
                str(EACH * run),
                str(EACH),
                *map(str, JUMPS),
            ],
            env=clock.environment | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        lines = [line.split() for line in done.stdout.splitlines()]
        assert [int(number) for number, _, _ in lines] == list(range(EACH * run, EACH * run + EACH)), done.stderr
        ids += [int(key) for _, key, _ in lines]
        seen |= {round((int(said) - time.time()) / YEAR_S) for _, _, said in lines}
    assert len(seen) >= 4, "the clock did not jump: nothing was tested"
    assert ids == sorted(set(ids)), "an id is smaller than an earlier one, or is there twice"
    clock.jump(0)
    with logstore.open(path, segment_size=SMALL_SEGMENT) as store:
        assert [message.id for message in store.messages("q")] == ids
        assert contents(store.queue("q")) == [b"%d " % n + bytes(n % 9 * 3000) for n in range(RUNS * EACH)]
        assert len(store.in_doubt()) == RUNS * EACH // 20
        for branch in store.in_doubt():
            branch.commit()
        assert store.queue("in doubt").depth == RUNS * EACH // 20
