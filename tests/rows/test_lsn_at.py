"""The place in a log by a time: found from the headers of the segments and the batches of one segment."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from kit.clock_jumps import HOUR_S, JumpingClock
from logstore import arrow
from logstore.errors import OptionError
from logstore.inspect import Reader

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install '/path/to/checkout[arrow]'")

NOON_S = int(datetime(2026, 7, 1, 12, tzinfo=UTC).timestamp())
NOON = datetime.fromtimestamp(NOON_S, UTC)
HOUR = timedelta(hours=1)
SECOND = timedelta(seconds=1)

# For each hour: a few batches, then as many that the segment ends within the hour.
WRITER = """
import struct, sys, warnings
warnings.simplefilter("ignore")
import logstore
store = logstore.open(sys.argv[1], segment_size=1 << 20)
queue = store.declare_queue("orders")
for hours in sys.argv[3:]:
    with open(sys.argv[2], "r+b") as clock:
        clock.write(struct.pack("=qq", %d + 3600 * int(hours), 1))
    for _ in range(3):
        store.publish(queue, b"small")
    for _ in range(8):
        store.publish(queue, bytes(200_000))
store.close()
"""


def write_log(path: Path, place: Path, hours: list[int]) -> None:
    """A log written while the clock stood at each of these hours after noon, one after the other."""
    clock = JumpingClock(place)
    clock.stand(NOON_S - HOUR_S)
    command = [sys.executable, "-c", WRITER % NOON_S, str(path), clock.environment["CLOCK_JUMPS"], *map(str, hours)]
    subprocess.run(command, env=clock.environment, check=True, timeout=120)


def first_at(path: Path, time: datetime) -> int | None:
    """The LSN of the first batch of the whole log at or after this time."""
    with Reader(path) as reader:
        for batch in reader.batches():
            list(reader._decode(batch))
            if datetime.fromtimestamp(reader.batch_time_us / 1e6, UTC) >= time:
                return batch.lsn
    return None


def test_the_place_of_a_time_is_its_first_batch_and_no_other_segment_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "store"
    write_log(path, tmp_path, [0, 1, 2, 3])
    with Reader(path) as reader:
        segments, end = reader.segments(), reader.last_lsn()
    assert len(segments) > 4
    scanned = []

    def read(*args: object, start_lsn: int, stop_lsn: int, **options: object) -> object:
        scanned.append((start_lsn, stop_lsn))
        return arrow.read(*args, start_lsn=start_lsn, stop_lsn=stop_lsn, **options)  # type: ignore[arg-type]  # as given

    monkeypatch.setattr("logstore.rows.times.read", read)
    for hours in range(4):
        for time in (NOON + hours * HOUR - SECOND, NOON + hours * HOUR):
            assert arrow.lsn_at(path, time) == first_at(path, time)
    assert arrow.lsn_at(path, NOON - 10 * HOUR) == first_at(path, NOON - 10 * HOUR)
    assert arrow.lsn_at(path, NOON + 10 * HOUR) == end
    places = {(segment.first_lsn, segment.end_lsn) for segment in segments}
    assert set(scanned) <= places
    assert len(scanned) == 10
    with pytest.raises(OptionError, match="zone"):
        arrow.lsn_at(path, datetime(2026, 7, 1))  # noqa: DTZ001 - that is what is refused


def test_after_a_clock_was_set_back_the_first_place_that_had_the_time_counts(tmp_path: Path) -> None:
    path = tmp_path / "store"
    write_log(path, tmp_path, [0, 3, 1, 2, 4])
    for hours in (1, 2, 3):
        assert arrow.lsn_at(path, NOON + hours * HOUR) == first_at(path, NOON + 3 * HOUR)
    assert arrow.lsn_at(path, NOON + 4 * HOUR) == first_at(path, NOON + 4 * HOUR)
    after = arrow.lsn_at(path, NOON + 4 * HOUR)
    assert arrow.lsn_at(path, NOON, start_lsn=after) == after
