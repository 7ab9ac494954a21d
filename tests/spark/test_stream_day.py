"""A day of 10⁷ messages, replayed at 100 times its speed, reaches a streaming query once and in order.

The query and the store are killed on the way and started again, and the writer recycles what the query has read. In a
normal run it is a hundredth of that day; a torture replays all of it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute
import pyarrow.parquet
import pytest

import logstore
from kit import replayed_day
from kit.replayed_day import AT_ONCE, NUMBER_BYTES, QUEUES, SEGMENT, committed
from kit.spark_needed import require_spark
from kit.stores import ROOT
from kit.torture import tortured
from logstore.holds import hold
from logstore.inspect import Reader

if TYPE_CHECKING:
    from pathlib import Path

    from logstore.holds import Hold

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.on_disk, pytest.mark.timeout(7200)]

DAY = 10_000_000
RATE = 100 * DAY / 86_400
MESSAGES = DAY if tortured() else DAY // 100
KILLS = 6 if tortured() else 2  # of the store and of the query in turn


class Replay:
    """The two processes, and the hold that keeps the log while the query is down."""

    def __init__(self, path: Path, place: Path, held: Hold, ending: ExitStack) -> None:
        self.path, self.place, self.held, self.ending = path, place, held, ending
        self._follow = ("follow", path, place, held.lsn)
        assert self._started("write", path, AT_ONCE, RATE).wait() == 0
        self.query = self._started(*self._follow)
        while committed(place)[0] == 0:  # Java takes as long to start as the replay of a part of the day
            assert self.query.poll() is None, "the query died"
            time.sleep(0.05)
        self.writer = self._started("write", path, MESSAGES, RATE)

    def _started(self, *arguments: object) -> subprocess.Popen[str]:
        """A process group of its own, which also has the Java of a query."""
        process = subprocess.Popen(
            [sys.executable, replayed_day.__file__, *map(str, arguments)],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"},
        )
        self.ending.callback(self._kill, process)
        return process

    @staticmethod
    def _kill(process: subprocess.Popen[str]) -> None:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()

    def follow(self) -> None:
        """Writes on until all is written; kills the store and the query in turn."""
        kills = of_query = 0
        while (number := self._written()) < MESSAGES:
            batches, lsn = committed(self.place)
            self.held.advance(max(lsn, self.held.lsn))
            assert self.query.poll() is None, "the query died"
            if kills < KILLS and number >= MESSAGES * (kills + 1) // (KILLS + 1):
                if kills % 2:
                    if batches == of_query:
                        continue  # until it has committed something since it was started
                    self._kill(self.query)
                    self.query, of_query = self._started(*self._follow), batches
                else:
                    self._kill(self.writer)
                    self.writer = self._started("write", self.path, MESSAGES, RATE)
                kills += 1
        assert self.writer.wait() == 0

    def _written(self) -> int:
        assert self.writer.stdout is not None
        said = self.writer.stdout.readline()
        assert said, "the writer died"
        return int(said)

    def finish(self) -> None:
        """Kills the query once more, and reads what is left."""
        self._kill(self.query)
        assert self._started(*self._follow, "now").wait() == 0


def test_a_day_at_a_hundred_times_its_speed_arrives_once_and_in_order(tmp_path: Path) -> None:
    require_spark()
    path, place = tmp_path / "store", tmp_path / "query"
    logstore.open(path, segment_size=SEGMENT).close()
    with hold(path, "day", limit_bytes=1 << 40, expires_s=86_400) as held, ExitStack() as ending:
        replay = Replay(path, place, held, ending)
        began = time.monotonic()
        replay.follow()
        written = time.monotonic()
        replay.finish()
        speed, rest = MESSAGES / (written - began) / (DAY / 86_400), time.monotonic() - written
        print(f"{MESSAGES:,} messages at {speed:.0f} times the day's speed; the rest was read {rest:.0f} s later")
    with Reader(path) as reader:
        assert committed(place)[1] == reader.info.end_lsn
        assert reader.info.base_lsn > reader.info.end_lsn // 2, "the writer recycled what was read"
    last, starts, ends = 0, [], []
    for batch in sorted((place / "rows").iterdir()):
        rows = pyarrow.parquet.read_table(batch, partitioning=None)  # in the order of its tasks
        lsns = rows["lsn"].to_numpy()
        assert len(lsns) == 0 or last < lsns[0], "a batch has only what no batch before it had"
        assert (np.diff(lsns) > 0).all()
        last = lsns[-1] if len(lsns) else last
        published = rows.filter(
            (pyarrow.compute.field("type") == "MESSAGE_START") & ~pyarrow.compute.field("relocated")
        )
        starts.append(np.frombuffer(b"".join(published["body"].to_pylist()), f">u{NUMBER_BYTES}").astype(np.int64))
        ends.append(rows.filter(pyarrow.compute.field("deletes"))["id"].to_numpy())
    assert np.array_equal(np.concatenate(starts), np.arange(MESSAGES))
    ended = np.concatenate(ends)
    assert len(np.unique(ended)) == len(ended)
    assert MESSAGES - (QUEUES + 1) * AT_ONCE <= len(ended) < MESSAGES
