"""Clients that work while a broker is disturbed, and the journal of their results, exact to each message.

A message is named by its publisher and a growing number, and is published once, to one queue. A publish or an
acknowledgement in flight when the connection broke is unknown in the journal.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import random
import struct
import threading
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import pika
from pika.exceptions import AMQPError, NackError

import logstore
from kit.patience import PATIENCE_S, wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from pika.adapters.blocking_connection import BlockingChannel

# pika logs every broken connection at length, and here all connections break.
logging.getLogger("pika").setLevel(logging.CRITICAL)

QUEUES = ("one", "two")

Name = tuple[int, int]  # publisher and number


def encode(name: Name, size: int) -> bytes:
    """The name and a padding that no other message has."""
    return struct.pack(">HQ", *name) + bytes([name[1] % 251]) * size


def decode(body: bytes) -> Name:
    """The name; checks the body that was published under it."""
    publisher, number = struct.unpack_from(">HQ", body)
    assert body == encode((publisher, number), len(body) - 10), "wrong content"
    return publisher, number


def connect(port: int, heartbeat: int = 30) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port, socket_timeout=30, heartbeat=heartbeat))


class Journal:
    """The journal of every message."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.queues: dict[Name, str] = {}  # where it went, if it went
        self.confirmed: set[Name] = set()
        self.refused: set[Name] = set()
        self.taken: set[Name] = set()  # acknowledged by a consumer, perhaps without effect
        self.settled: set[Name] = set()  # … and the broker has answered a later call

    def check(self, store: Path) -> int:
        """Check that the closed store has exactly the expected messages; their number."""
        with logstore.open(store) as opened:
            found = {queue.name: [decode(message.content) for message in queue.browse()] for queue in opened.queues()}
            assert opened.stats()["transactions"] == 0
        there = [name for names in found.values() for name in names]
        assert len(set(there)) == len(there), "a message is there twice"
        with self.lock:
            lost = self.confirmed - self.taken - set(there)
            assert not lost, f"{len(lost)} confirmed messages are lost: {sorted(lost)[:5]}"
            back = self.settled & set(there)
            assert not back, f"{len(back)} acknowledged messages are back: {sorted(back)[:5]}"
            assert not self.refused & set(there), "a refused message is there"
            for queue, names in found.items():
                assert all(self.queues.get(name) == queue for name in names), "a message is on another queue"
                by_publisher: dict[int, list[int]] = collections.defaultdict(list)
                for publisher, number in names:
                    by_publisher[publisher].append(number)
                assert all(numbers == sorted(numbers) for numbers in by_publisher.values()), "out of order"
        return len(there)


class Client(threading.Thread, ABC):
    """Connects, works until the connection breaks, and connects again once it may."""

    def __init__(self, journal: Journal, port: int, number: int, seed: int, heartbeat: int = 30) -> None:
        super().__init__(daemon=True)
        self.journal = journal
        self.port = port
        self.number = number
        self.dice = random.Random(seed)
        self.heartbeat = heartbeat
        self.over = threading.Event()
        self.may_connect = threading.Event()
        self.may_connect.set()
        self.idle = threading.Event()  # it has no connection
        self.breaks = 0
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.over.is_set():
                self.idle.set()
                if not self.may_connect.wait(0.05):
                    continue
                self.idle.clear()
                try:
                    connection = connect(self.port, self.heartbeat)
                    with contextlib.closing(connection):
                        self.work(connection.channel())
                except (AMQPError, OSError):
                    self.breaks += 1
                    time.sleep(0.01)
        except BaseException as error:  # noqa: BLE001 - the test raises it
            self.failure = error
        finally:
            self.idle.set()

    @abstractmethod
    def work(self, channel: BlockingChannel) -> None:
        """The work on one connection, until it breaks or the test ends."""


class Publisher(Client):
    """Publishes with confirms, one after the other."""

    next_number = 0

    def work(self, channel: BlockingChannel) -> None:
        channel.confirm_delivery()
        while not self.over.is_set():
            with self.journal.lock:
                crowded = len(self.journal.confirmed) - len(self.journal.taken) > 600
            if crowded:
                channel.connection.sleep(0.01)
                continue
            name = (self.number, self.next_number)
            self.next_number += 1
            queue = self.dice.choice(QUEUES)
            body = encode(name, self.dice.choice([0, 10, 100, 1000, 1000, 5000, 150_000 if name[1] % 20 == 0 else 7]))
            with self.journal.lock:
                self.journal.queues[name] = queue
            try:
                channel.basic_publish("", queue, body, pika.BasicProperties(delivery_mode=2), mandatory=True)
            except NackError:
                with self.journal.lock:
                    self.journal.refused.add(name)
                continue
            with self.journal.lock:
                self.journal.confirmed.add(name)


class Consumer(Client):
    """Consumes, acknowledges or requeues; now and then makes a call whose answer makes acknowledgements certain."""

    def work(self, channel: BlockingChannel) -> None:
        acknowledged: list[Name] = []
        while not self.over.is_set():
            queue = self.dice.choice(QUEUES)
            method, _, body = channel.basic_get(queue)
            if method is None:
                channel.connection.sleep(0.01)
            else:
                choice = self.dice.random()
                name = decode(body)
                with self.journal.lock:
                    assert name not in self.journal.settled, "an acknowledged message was delivered again"
                    if choice < 0.8:
                        self.journal.taken.add(name)
                if choice < 0.8:
                    channel.basic_ack(method.delivery_tag)
                    acknowledged.append(name)
                elif choice < 0.95:
                    channel.basic_nack(method.delivery_tag, requeue=True)
            if acknowledged and self.dice.random() < 0.2:
                self.settle(channel, acknowledged)
        self.settle(channel, acknowledged)

    def settle(self, channel: BlockingChannel, acknowledged: list[Name]) -> None:
        channel.queue_declare(QUEUES[0], passive=True)  # answered when earlier acknowledgements are durable
        with self.journal.lock:
            self.journal.settled.update(acknowledged)
        acknowledged.clear()


class Crowd:
    """Some of each, all on one journal."""

    def __init__(self, port: int, dice: random.Random, heartbeats: tuple[int, ...] = (30,) * 5) -> None:
        self.journal = Journal()
        kinds = [Publisher, Publisher, Publisher, Consumer, Consumer]
        self.clients = [
            kind(self.journal, port, number, dice.randrange(1 << 32), heartbeats[number])
            for number, kind in enumerate(kinds)
        ]
        for client in self.clients:
            client.start()

    def check_alive(self) -> None:
        for client in self.clients:
            if client.failure is not None:
                raise client.failure

    def work_on(self, publishes: int, settles: int) -> None:
        """Wait until this many more publishes were confirmed, and acknowledgements are certain."""
        confirmed, settled = len(self.journal.confirmed) + publishes, len(self.journal.settled) + settles

        def done() -> bool:
            self.check_alive()
            return len(self.journal.confirmed) >= confirmed and len(self.journal.settled) >= settled

        wait_until(done, "publishing and acknowledging")

    def hold(self) -> None:
        """Stop reconnecting, and wait until every client has noticed the broken connection."""
        for client in self.clients:
            client.may_connect.clear()

    def wait_idle(self) -> None:
        wait_until(lambda: all(client.idle.is_set() for client in self.clients), "noticing that the broker is gone")
        self.check_alive()

    def let_go(self) -> None:
        for client in self.clients:
            client.may_connect.set()

    def end(self) -> None:
        for client in self.clients:
            client.over.set()
        for client in self.clients:
            client.join(PATIENCE_S)
            assert not client.is_alive(), "a client waits for ever for an answer"
        self.check_alive()


def make_queues(port: int) -> None:
    with contextlib.closing(connect(port)) as connection:
        for queue in QUEUES:
            connection.channel().queue_declare(queue, durable=True)
