"""The scrub of an open store: it finds damage, skips the unwritten part, and disturbs no operation."""

from __future__ import annotations

import logging
import os
import time
from typing import TYPE_CHECKING, Any

import pytest

import logstore
from kit.patience import PATIENCE_S, wait_until
from logstore import errors
from logstore.inspect import Pace

if TYPE_CHECKING:
    from pathlib import Path

    from logstore import MessageStore

SEGMENT = 512 << 10
FAST = 1 << 40


def one_more_round(store: MessageStore) -> None:
    """Waits for a whole round that begins after this call; a running round may end first."""
    wanted = store.stats()["scrub_rounds"] + 2
    wait_until(lambda: store.stats()["scrub_rounds"] >= wanted)


def fill(store: MessageStore, count: int = 40, size: int = 60_000) -> list[int]:
    queue = store.declare_queue("q")
    return list(store.publish_many(queue, [bytes([n % 251]) * size for n in range(count)]))


def segment_of(path: Path, lsn: int) -> Path:
    return path / f"{lsn - lsn % SEGMENT:016x}.seg"


def flip(path: Path, lsn: int) -> None:
    """Flips one bit through the file system, so that every reader sees it."""
    with segment_of(path, lsn).open("r+b") as file:
        file.seek(lsn % SEGMENT)
        byte = file.read(1)[0]
        file.seek(lsn % SEGMENT)
        file.write(bytes([byte ^ 4]))
        file.flush()
        os.fsync(file.fileno())


def test_a_sound_log_is_read_repeatedly_up_to_the_durable_lsn(tmp_path: Path) -> None:
    with logstore.open(tmp_path / "store", segment_size=SEGMENT, scrub_rate=FAST) as store:
        fill(store)
        one_more_round(store)
        stats = store.stats()
        assert stats["scrub_position"] == store.durable_lsn
        assert stats["scrub_bytes"] >= 40 * 60_000
        assert (stats["scrub_errors"], stats["scrub_last_error"]) == (0, None)


def test_there_is_no_scrub_without_the_option(tmp_path: Path) -> None:
    with logstore.open(tmp_path / "store") as store:
        assert not any(name.startswith("scrub") for name in store.stats())


def test_damage_is_logged_once_and_counted_and_the_log_above_it_is_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "store"
    with (
        caplog.at_level(logging.WARNING, logger="logstore.store.scrub"),
        logstore.open(path, segment_size=SEGMENT, scrub_rate=FAST) as store,
    ):
        ids = fill(store)
        one_more_round(store)
        first, second = ids[5], ids[30]
        flip(path, first + 1000)
        flip(path, second + 1000)
        wait_until(lambda: store.stats()["scrub_errors"] == 2)
        one_more_round(store)
        stats = store.stats()
        assert stats["scrub_errors"] == 2
        assert segment_of(path, second).name in stats["scrub_last_error"]
        assert store.load_content(ids[0]) == bytes([0]) * 60_000
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2
    assert segment_of(path, first).name in told[0]
    assert segment_of(path, second).name in told[1]


def test_damage_below_the_base_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with logstore.open(path, segment_size=SEGMENT, scrub_rate=FAST) as store:
        ids = fill(store)
        one_more_round(store)
        store.dequeue_many(ids, "q")
        for _ in range(4):
            store.dequeue_many(fill(store, 10), "q")
        store.compact()
        passed = [each for each in sorted(path.glob("*.seg")) if int(each.stem, 16) + SEGMENT <= store.base_lsn]
        for each in passed:  # dead segments; they may be spares by now
            each.write_bytes(b"\xff" * SEGMENT)
        one_more_round(store)
        assert store.stats()["scrub_errors"] == 0


def test_recycling_continues_during_a_scrub_and_is_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with logstore.open(path, segment_size=SEGMENT, scrub_rate=4 << 20) as store:
        queue = store.declare_queue("q")
        until = store.stats()["scrub_rounds"] + 3
        base = store.base_lsn
        deadline = time.monotonic() + PATIENCE_S
        while store.stats()["scrub_rounds"] < until and time.monotonic() < deadline:
            store.dequeue_many(store.publish_many(queue, [bytes(20_000)] * 20), queue)
        stats = store.stats()
        assert stats["scrub_rounds"] >= until
        assert store.base_lsn > base + 2 * SEGMENT
        assert (stats["scrub_errors"], stats["scrub_last_error"]) == (0, None)
        assert stats["segments"] + stats["spares"] <= 8


def test_a_close_does_not_wait_for_a_round(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with logstore.open(path, segment_size=SEGMENT) as store:
        fill(store)
    before = time.monotonic()
    with logstore.open(path, scrub_rate=4096) as store:  # 2.4 MB: ten minutes
        wait_until(lambda: store.stats()["scrub_bytes"] > 0)
    assert time.monotonic() - before < PATIENCE_S


def test_a_forked_child_can_close_a_store_with_a_scrub(tmp_path: Path) -> None:
    with logstore.open(tmp_path / "store", segment_size=SEGMENT, scrub_rate=FAST) as store:
        fill(store, 5)
        pid = os.fork()
        if pid == 0:
            try:
                store.close()
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0
        one_more_round(store)
        assert store.stats()["scrub_errors"] == 0


@pytest.mark.parametrize("wrong", [0, 4095, -1, True, "10M", float("nan")])
def test_a_rate_that_makes_no_sense_is_refused(tmp_path: Path, wrong: Any) -> None:
    with pytest.raises(errors.OptionError, match="scrub_rate"):
        logstore.open(tmp_path / "store", scrub_rate=wrong)


@pytest.mark.parametrize("rate", [100_000.0, 3_000_000.0, 1e9])
def test_a_rate_is_kept_and_slow_times_are_not_made_up_for(rate: float) -> None:
    clock = [0.0]

    def sleep(seconds: float) -> None:
        clock[0] += seconds

    pace = Pace(rate, wait=sleep, now=lambda: clock[0])
    assert pace.step_bytes <= max(rate / 4, 64 << 10)
    size, began = pace.step_bytes, clock[0]
    for _ in range(1000):
        pace.spend(size)
    assert 1000 * size / (clock[0] - began) <= rate * 1.01
    clock[0] += 3600  # it was delayed elsewhere
    began = clock[0]
    for _ in range(1000):
        pace.spend(size)
    assert 1000 * size <= rate * (clock[0] - began + 0.2)  # an eighth of a second, not an hour


def test_a_pace_without_a_rate_never_waits() -> None:
    def wait(_seconds: float) -> None:
        raise AssertionError

    pace = Pace(None, wait=wait)
    for _ in range(10):
        pace.spend(1 << 40)
