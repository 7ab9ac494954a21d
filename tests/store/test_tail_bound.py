"""The log's size depends on its live messages, not on the age of the oldest: measured from outside.

The small version of benchmarks/tail_bound.py, with the same traffic and the same assertions.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import pytest

import logstore
from kit.patience import PATIENCE_S
from kit.stores import ROOT
from logstore.bench.runner import bound_bytes
from logstore.bench.watch import Watch, log_bytes

sys.path.insert(0, str(ROOT / "benchmarks"))

from tail_traffic import SCENARIOS, Judged, Mark, RandomSurvivors, Scenario, Traffic, Wrong, judge, unmoved_bytes

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.on_disk

MIB = 1 << 20
EVERY_S = 0.001  # between samples, as far as the other process gets the processor
TRAFFIC = {512 << 10: 16 * MIB, 4 * MIB: 48 * MIB}  # bytes of content, by segment size: dozens of times the bound


def wait_for_a_look(watch: Watch) -> None:
    """Waits until the other process has measured, however busy the machine is."""
    since = time.monotonic()
    while watch.samples[-1][0] <= since:
        assert time.monotonic() < since + PATIENCE_S, "the process that watches does not"
        time.sleep(EVERY_S / 4)


def watched(path: Path, kind: type[Scenario], segment_size: int, content_bytes: int) -> tuple[Traffic, Judged]:
    """Runs the traffic while another process measures the log; compares all messages before and after a restart."""
    with Watch(path, EVERY_S) as watch, logstore.open(path, segment_size=segment_size) as store:
        traffic = Traffic(store, kind(store), batch=200)
        traffic.pass_by(content_bytes, pause=lambda: wait_for_a_look(watch))
        traffic.scenario.look_at_all()
        traffic.scenario.check(store)
    with logstore.open(path, create=False) as store:
        bound = bound_bytes(segment_size, store.stats()["counted_bytes"])
        assert log_bytes(path) <= bound + segment_size  # an open begins a segment before it relocates the oldest
        traffic.scenario.store = store
        traffic.scenario.look_at_all()
        traffic.scenario.check(store)
        until = time.monotonic() + PATIENCE_S
        while log_bytes(path) > bound:
            assert time.monotonic() < until, "an idle store did not come back to its bound"
            time.sleep(0.001)
    return traffic, judge(watch.samples, traffic.marks, segment_size)


@pytest.mark.parametrize("segment_size", TRAFFIC, ids=lambda size: f"{size // 1024}K")
@pytest.mark.parametrize("kind", SCENARIOS)
def test_surviving_messages_never_make_the_log_larger_than_its_bound(
    tmp_path: Path, kind: type[Scenario], segment_size: int
) -> None:
    traffic, judged = watched(tmp_path / "store", kind, segment_size, TRAFFIC[segment_size])
    relocated = traffic.marks[-1].relocated
    assert relocated > TRAFFIC[segment_size] // segment_size // 10  # survivors had to be relocated repeatedly
    batches = sum(mark.relocated > 0 for mark in traffic.marks)
    assert judged.samples >= batches > len(traffic.marks) / 2  # the other process was measuring
    assert judged.over == 0, judged
    assert unmoved_bytes(traffic.marks)[-1] > 0.9 * traffic.published  # survivors at the tail


def test_the_log_shrinks_to_its_live_messages_once_survivors_are_consumed(tmp_path: Path) -> None:
    """A steady state: 500 survivors, each consumed when about 50 000 messages have passed it."""

    class Steady(RandomSurvivors):
        most = 500

    traffic, judged = watched(tmp_path / "store", Steady, 512 << 10, 60 * MIB)
    assert len(traffic.scenario.kept) == 500
    assert judged.samples > 0
    assert judged.over == 0, judged


def test_the_log_exceeds_twice_its_live_bytes_by_less_than_one_segment(tmp_path: Path) -> None:
    """Survivors add up to 3 segments; the bound is then 7, and on the way a file exists completely or not at all."""

    class AddUp(RandomSurvivors):
        share = 0.04

    traffic, judged = watched(tmp_path / "store", AddUp, 512 << 10, 36 * MIB)
    assert traffic.marks[-1].counted_bytes > 2.5 * (512 << 10)
    assert judged.samples > 0
    assert judged.over_whole == 0, judged


# ---- The judge


def test_a_sample_above_its_bound_is_seen_and_one_before_the_first_relocation_is_not() -> None:
    story = ((1.0, 0, 0), (2.0, 0, 1), (3.0, 5 * MIB, 2), (4.0, 5 * MIB, 2))
    marks = [Mark(at_s, live, relocated, 0, 0, 0, 0) for at_s, live, relocated in story]
    five = 5 * MIB
    assert judge([(1.5, 99 * MIB)], marks, MIB).samples == 0
    assert judge([(2.0, five), (2.5, five)], marks, MIB) == Judged(2, 0, 0, 1.0, five, five, 0.5)
    assert judge([(2.5, five + 1)], marks, MIB).over == 1  # messages that live from 3.0 on do not count yet
    assert judge([(3.5, 11 * MIB)], marks, MIB).over == 0
    assert judge([(3.5, 11 * MIB), (9.0, 11 * MIB + 4096)], marks, MIB).over == 1
    assert judge([], [], MIB).samples == 0


def test_the_predicted_log_reaches_back_to_the_oldest_survivor() -> None:
    def mark(appended: int, first: int, oldest: int) -> Mark:
        return Mark(0.0, 0, 0, appended, 0, first, oldest)

    marks = [mark(100, 10, 5), mark(250, 20, 25), mark(400, 30, 25), mark(500, 40, 0), mark(600, 50, 50)]
    assert unmoved_bytes(marks) == [100, 150, 300, 0, 100]


def test_a_survivor_that_changed_or_went_is_noticed(tmp_path: Path) -> None:
    for kind in SCENARIOS:
        with logstore.open(tmp_path / kind.__name__, segment_size=MIB) as store:
            traffic = Traffic(store, kind(store), batch=200)
            traffic.pass_by(MIB)
            scenario = traffic.scenario
            scenario.look_at_all()
            scenario.check(store)
            kept = dict(scenario.kept)
            scenario.kept = {message_id: content[:-1] + b"?" for message_id, content in kept.items()}
            with pytest.raises(Wrong):
                scenario.look_at_all()
            scenario.kept = kept
            for transaction in store.in_doubt():
                transaction.rollback()
            for queue in store.queues():
                queue.purge()
            with pytest.raises(Wrong):
                scenario.check(store)
