"""Consume and publish in one transaction, through kill -9: every message is answered exactly once."""

from __future__ import annotations

import collections
import logging
import os
import random
import threading
import time
from typing import TYPE_CHECKING

import pika
import pytest
from pika.exceptions import AMQPError

import logstore
from broker.serve_process import ServeProcess, serving

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MESSAGES = 6000  # far more than is done between the kills
KILLS = 6
STEP_S = 60.0

pytestmark = pytest.mark.acceptance

# pika reports at length every connection that dies under it, and here they all do.
logging.getLogger("pika").setLevel(logging.CRITICAL)


class Worker(threading.Thread):
    """Takes from "in" and answers on "out" and "audit", a few at a time, and now and then changes its mind."""

    def __init__(self, port: int, seed: int) -> None:
        super().__init__(daemon=True)
        self.port = port
        self.dice = random.Random(seed)
        self.going = threading.Event()
        self.going.set()
        self.committed = 0  # transactions of which it was told so
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            while self.going.is_set():
                try:
                    self.work()
                except (AMQPError, OSError):
                    time.sleep(0.02)
        except BaseException as error:  # noqa: BLE001 - the test raises it
            self.failure = error

    def work(self) -> None:
        parameters = pika.ConnectionParameters("127.0.0.1", self.port, socket_timeout=10, heartbeat=10)
        connection = pika.BlockingConnection(parameters)
        channel = connection.channel()
        channel.tx_select()
        while self.going.is_set():
            taken = [channel.basic_get("in") for _ in range(self.dice.randrange(1, 8))]
            taken = [each for each in taken if each[0] is not None]
            if not taken:
                connection.sleep(0.01)
                continue
            for method, _, body in taken:
                for queue in ("out", "audit"):
                    channel.basic_publish("", queue, body + bytes(self.dice.choice([0, 100, 20_000])))
                channel.basic_ack(method.delivery_tag)
            if self.dice.random() < 0.2:
                channel.tx_rollback()
                channel.basic_recover(requeue=True)
            else:
                channel.tx_commit()
                self.committed += 1
        connection.close()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + STEP_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_every_message_is_answered_exactly_once_through_kill_9(tmp_path: Path) -> None:
    seed = int(os.environ.get("LOGSTORE_SEED") or random.randrange(1 << 32))
    print(f"LOGSTORE_SEED={seed}")
    dice = random.Random(seed)
    store = tmp_path / "store"
    names = [b"%06d" % number for number in range(MESSAGES)]
    with logstore.open(store) as made:
        for queue in ("in", "out", "audit"):
            made.declare_queue(queue)
        made.publish_many("in", names)

    process = ServeProcess(store)
    workers = [Worker(process.port, dice.randrange(1 << 32)) for _ in range(2)]
    try:
        for worker in workers:
            worker.start()
        for _ in range(KILLS):
            goal = sum(worker.committed for worker in workers) + dice.randrange(1, 10)
            wait_for(lambda goal=goal: sum(worker.committed for worker in workers) >= goal)
            time.sleep(dice.uniform(0, 0.02))  # so that it dies at any moment of a transaction
            process.kill()
            process = ServeProcess(store, process.port)
        for worker in workers:
            worker.going.clear()
            worker.join(STEP_S)
            assert not worker.is_alive()
            assert worker.failure is None
        assert process.stop() == 0
    finally:
        process.kill()

    with logstore.open(store) as found:
        assert found.stats()["transactions"] == 0
        left, *answers = (
            collections.Counter(message.content[:6] for message in found.messages(queue))
            for queue in ("in", "out", "audit")
        )
    assert answers[0] == answers[1]
    assert left + answers[0] == collections.Counter(names)
    assert sum(answers[0].values()) > KILLS, "hardly anything was done: nothing was tested"


def test_an_answer_that_was_never_committed_is_not_there_after_the_restart(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with serving(store) as process:
        channel = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", process.port)).channel()
        channel.queue_declare("q", durable=True)
        channel.tx_select()
        for number in range(2000):  # more than one write takes
            channel.basic_publish("", "q", b"%d" % number + bytes(2000))
        channel.queue_declare("q", passive=True)
        process.kill()
    with logstore.open(store) as found:
        assert found.queue("q").depth == 0
        assert found.recovery.transactions_abandoned == 0
