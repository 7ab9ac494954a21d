"""AMQP transactions and kill -9: a kill before the commit leaves nothing, one after it all, else all or nothing."""

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
from kit.patience import PATIENCE_S, wait_until
from kit.serve_process import ServeProcess, serving

if TYPE_CHECKING:
    from pathlib import Path

    from pika.adapters.blocking_connection import BlockingChannel

MESSAGES = 6000  # far more than is done between the kills
KILLS = 6

# pika logs every broken connection at length, and here all connections break.
logging.getLogger("pika").setLevel(logging.CRITICAL)


def connect(port: int) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))


def counts(store: Path) -> dict[str, int]:
    with logstore.open(store) as opened:
        assert opened.in_doubt() == []
        assert opened.stats()["transactions"] == 0
        return {queue.name: queue.depth for queue in opened.queues()}


def begin_work(port: int) -> BlockingChannel:
    """Five messages on "in"; one of them is acknowledged and answered on two queues in a transaction."""
    channel = connect(port).channel()
    for queue in ("in", "out", "audit"):
        channel.queue_declare(queue, durable=True)
    channel.tx_select()
    for number in range(5):
        channel.basic_publish("", "in", b"%d" % number)
    channel.tx_commit()
    work(channel)
    return channel


def work(channel: BlockingChannel) -> None:
    channel.basic_ack(channel.basic_get("in")[0].delivery_tag)
    channel.basic_publish("", "out", b"done")
    channel.basic_publish("", "audit", b"done")
    channel.queue_declare("in", passive=True)  # all of it has arrived


def test_a_kill_before_the_commit_leaves_nothing_of_the_transaction(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with serving(store) as process:
        begin_work(process.port)
        process.kill()
    assert counts(store) == {"in": 5, "out": 0, "audit": 0}


def test_a_kill_after_commit_ok_leaves_all_of_the_transaction(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with serving(store) as process:
        begin_work(process.port).tx_commit()
        process.kill()
    assert counts(store) == {"in": 4, "out": 1, "audit": 1}


def test_a_kill_between_commit_and_commit_ok_leaves_all_or_nothing(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with serving(store) as process:
        begin_work(process.port).tx_commit()
        process.kill()
    answered = 1
    for delay_s in (0, 0, 0.0005, 0.001, 0.002, 0.05):
        with serving(store) as process:
            channel = connect(process.port).channel()
            channel.tx_select()
            work(channel)
            for _ in range(2):
                channel.basic_publish("", "in", b"more")
            channel._impl._send_method(pika.spec.Tx.Commit())  # and nobody waits for the answer
            channel.connection.process_data_events(0)
            time.sleep(delay_s)  # so that it dies at different moments
            process.kill()
        found = counts(store)
        assert found["out"] == found["audit"] == found["in"] - 3
        assert answered <= found["out"] <= answered + 1
        answered = found["out"]


class Worker(threading.Thread):
    """Consumes from "in" and answers on "out" and "audit", a few at a time; rolls back now and then."""

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


@pytest.mark.acceptance
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
            wait_until(lambda goal=goal: sum(worker.committed for worker in workers) >= goal)
            time.sleep(dice.uniform(0, 0.02))  # so that it dies at any moment of a transaction
            process.kill()
            process = ServeProcess(store, process.port)
        for worker in workers:
            worker.going.clear()
            worker.join(PATIENCE_S)
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
        channel = connect(process.port).channel()
        channel.queue_declare("q", durable=True)
        channel.tx_select()
        for number in range(2000):  # more than one write takes
            channel.basic_publish("", "q", b"%d" % number + bytes(2000))
        channel.queue_declare("q", passive=True)
        process.kill()
    with logstore.open(store) as found:
        assert found.queue("q").depth == 0
        assert found.recovery.transactions_abandoned == 0
