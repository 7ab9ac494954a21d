"""The main promise: messages that the broker confirmed survive `kill -9`, and settled messages stay settled.

Three publishers with confirms and two consumers work while the broker is killed at random moments and started again on
the same store. The seed is printed; LOGSTORE_SEED repeats its choices, but the timing of a real machine varies.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pika
import pytest

from kit.kill9_clients import QUEUE, Consumer, PipeliningPublisher, Publisher, Shared
from kit.patience import PATIENCE_S, wait_until
from kit.serve_process import ServeProcess
from kit.torture import seconds_to_spend

if TYPE_CHECKING:
    from pathlib import Path

KILLS = max(6, round(seconds_to_spend(0) / 6))

pytestmark = [pytest.mark.acceptance, pytest.mark.on_disk, pytest.mark.timeout(300 + 20 * KILLS)]


def verify(store: Path) -> dict[str, Any]:
    """The output of `logstore verify`, which must find no error."""
    ended = subprocess.run(
        [sys.executable, "-m", "logstore", "verify", str(store), "--json"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    report: dict[str, Any] = json.loads(ended.stdout)
    return report


def deliveries(shared: Shared) -> int:
    return sum(len(each) for each in list(shared.delivered.values()))


def kill_at_random_moments(shared: Shared, store: Path, dice: random.Random) -> tuple[ServeProcess, int]:
    """Kill and restart; the last broker, still running, and how many kills left an unclean log."""
    unclean = 0
    process = ServeProcess(store, shared.port)
    for run in range(1, KILLS + 1):
        if dice.random() > 0.15:  # otherwise at once, before clients have reconnected
            goal_confirmed = len(shared.confirmed) + dice.randrange(1, 100)
            goal_delivered = deliveries(shared) + dice.randrange(1, 100)
            wait_until(lambda goal=goal_confirmed: len(shared.confirmed) >= goal, "publishing")
            wait_until(lambda goal=goal_delivered: deliveries(shared) >= goal, "delivering")
        time.sleep(dice.uniform(0, 0.6))
        process.kill()
        unclean += verify(store)["state"] == "crashed"
        shared.run = run
        process = ServeProcess(store, shared.port)
    return process, unclean


def test_kill_9_loses_no_confirmed_message_and_repeats_no_settled_one(tmp_path: Path) -> None:
    seed = int(os.environ.get("LOGSTORE_SEED") or random.randrange(1 << 32))
    print(f"LOGSTORE_SEED={seed}")
    dice = random.Random(seed)
    store = tmp_path / "store"

    first = ServeProcess(store)
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", first.port))
    connection.channel().queue_declare(QUEUE, durable=True)
    first.kill()

    shared = Shared(first.port)
    publishers = [
        Publisher(shared, 0, dice.random()),
        Publisher(shared, 1, dice.random()),
        PipeliningPublisher(shared, 2, dice.random()),
    ]
    consumers = [Consumer(shared, number, dice.random()) for number in range(2)]
    for client in (*publishers, *consumers):
        client.start()

    process, unclean = kill_at_random_moments(shared, store, dice)
    try:
        shared.publishing.clear()
        for publisher in publishers:
            publisher.join(PATIENCE_S)
            assert not publisher.is_alive(), "a publisher waits for a confirm that does not come"
        shared.idle.clear()
        wait_until(lambda: len(shared.idle) == len(consumers), "draining")
        shared.consuming.clear()
        for consumer in consumers:
            consumer.join(PATIENCE_S)
        assert [client.failure for client in (*publishers, *consumers)] == [None] * 5
        assert process.stop() == 0
    finally:
        process.kill()
    assert verify(store)["state"] == "closed"
    judge(shared, unclean)


def judge(shared: Shared, unclean: int) -> None:
    """The checks on all records."""
    everything = [each for seen in shared.delivered.values() for each in seen]
    names = shared.names
    lost = shared.confirmed - names
    assert not lost, f"{len(lost)} confirmed messages were never delivered: {sorted(lost)[:10]}"
    assert not shared.delivered_after_settled, (
        f"settled messages were delivered again: {shared.delivered_after_settled[:10]}"
    )
    for seen in shared.delivered.values():
        first_deliveries: dict[int, int] = {}  # over the whole test, by publisher
        in_this_run: dict[tuple[int, int], int] = {}
        for run, (publisher, number), redelivered in seen:
            # Within one start nothing is requeued, so a consumer's messages are in order …
            assert number > in_this_run.get((run, publisher), -1), "out of order within one run"
            in_this_run[run, publisher] = number
            # … and first deliveries are in order over all starts.
            if not redelivered:
                assert number > first_deliveries.get(publisher, -1), "first deliveries out of order"
                first_deliveries[publisher] = number
    again = len(everything) - len(names)
    print(
        f"{len(shared.confirmed)} confirmed, {len(names)} delivered, {again} delivered again, "
        f"{len(shared.settled)} settled, {unclean} of {KILLS} kills left an unclean log"
    )
    assert len(shared.confirmed) > KILLS, "hardly anything was published: nothing was tested"
    assert unclean, "no kill left an unclean log: nothing was tested"
    assert again, "no kill exposed a redelivery: nothing was tested"
