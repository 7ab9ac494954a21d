"""A wall clock that jumps while the broker runs: it changes times to live, but neither deliveries nor order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pika
import pytest

from kit.clock_jumps import HOUR_S, YEAR_S, JumpingClock
from kit.killed import quick_directory, remove
from kit.patience import wait_until
from kit.serve_process import ServeProcess
from kit.storm_clients import connect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.acceptance


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A directory in memory: SIGKILL loses nothing that the kernel has, and there is no disk to wait for."""
    made = quick_directory("logstore-storm-")
    yield made
    remove(made)


@pytest.fixture
def clock(tmp_path: Path) -> JumpingClock:
    return JumpingClock(tmp_path)


@pytest.fixture
def start(clock: JumpingClock, tmp_path: Path) -> Iterator[Callable[[], ServeProcess]]:
    started: list[ServeProcess] = []

    def start_one() -> ServeProcess:
        started.append(ServeProcess(tmp_path / "store", environment=clock.environment))
        return started[-1]

    yield start_one
    for process in started:
        process.kill()


def opened(process: ServeProcess) -> Any:
    channel = connect(process.port).channel()
    channel.confirm_delivery()
    channel.queue_declare("q", durable=True)
    return channel


def publish(channel: Any, body: bytes, ttl_s: int | None = None) -> None:
    expiration = None if ttl_s is None else str(ttl_s * 1000)
    channel.basic_publish("", "q", body, pika.BasicProperties(delivery_mode=2, expiration=expiration))


def depth(channel: Any) -> int:
    return int(channel.queue_declare("q", passive=True).method.message_count)


def take_all(channel: Any) -> list[bytes]:
    taken = []
    while (got := channel.basic_get("q"))[0] is not None:
        taken.append(got[2])
        channel.basic_ack(got[0].delivery_tag)
    return taken


def test_messages_without_a_time_to_live_are_delivered_in_order_whatever_the_clock_says(
    clock: JumpingClock, start: Callable[[], ServeProcess]
) -> None:
    """Outcome: every message once, in the order of publishing; connections with heartbeats stay, because heartbeats use
    the monotonic clock."""
    numbers = 0
    for _ in range(2):
        process = start()
        idle = connect(process.port, heartbeat=30)
        channel = opened(process)
        for jump in (0, 30 * YEAR_S, -30 * YEAR_S, HOUR_S, -56 * YEAR_S):
            clock.jump(jump)
            for _ in range(5):
                publish(channel, b"%d" % numbers)
                numbers += 1
        idle.channel().queue_declare("q", passive=True)
        process.kill()
    clock.jump(-10 * YEAR_S)
    assert take_all(opened(start())) == [b"%d" % number for number in range(numbers)]


def test_a_clock_that_jumps_ahead_affects_only_times_to_live(
    clock: JumpingClock, start: Callable[[], ServeProcess]
) -> None:
    """Outcome: messages overdue by the new clock are never delivered; others stay."""
    process = start()
    channel = opened(process)
    for number in range(3):
        publish(channel, b"%d a minute" % number, 60)
        publish(channel, b"%d ten years" % number, 10 * YEAR_S // 60)
        publish(channel, b"%d for ever" % number)
    assert depth(channel) == 9
    clock.jump(HOUR_S)
    left = [b"%d %s" % (number, kind) for number in range(3) for kind in (b"ten years", b"for ever")]
    process.kill()
    process = start()  # which sees the new clock from its beginning
    channel = opened(process)
    assert take_all(channel) == left
    assert depth(channel) == 0


def test_a_clock_that_jumps_back_lengthens_times_to_live(
    clock: JumpingClock, start: Callable[[], ServeProcess]
) -> None:
    """Outcome: no message expires too early; all do when the clock reaches the time again."""
    clock.jump(HOUR_S)
    channel = opened(start())
    publish(channel, b"until an hour and a minute from now", 60)
    clock.jump(0)
    publish(channel, b"a minute", 60)
    assert depth(channel) == 2
    clock.jump(2 * HOUR_S)
    # A timer that was set by the old clock goes off when that said; a get looks at the clock itself.
    assert channel.basic_get("q")[0] is None
    wait_until(lambda: depth(channel) == 0, "expiring")
    clock.jump(-YEAR_S)
    publish(channel, b"and on", 1)
    assert channel.basic_get("q")[2] == b"and on"
