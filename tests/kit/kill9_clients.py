"""Publishers and consumers that survive a broker that is killed, and record their results.

A message is named by its publisher and a growing number; none is ever sent twice, so a message that arrives twice was
delivered twice.
"""

from __future__ import annotations

import abc
import collections
import contextlib
import itertools
import logging
import random
import struct
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError

if TYPE_CHECKING:
    from collections.abc import Iterator

# pika logs every broken connection at length, and here all connections break.
logging.getLogger("pika").setLevel(logging.CRITICAL)

QUEUE = "work"
BACKLOG_MAX = 1000  # publishers wait for consumers, so that the end does not take longer than the test
GONE = (AMQPError, OSError)  # what pika raises when the broker dies under it

Name = tuple[int, int]  # publisher and number


class Delivered(NamedTuple):
    """One delivery to a consumer."""

    run: int  # which start of the broker
    name: Name
    redelivered: bool


class Shared:
    """The records of all clients; many threads append to them, the test judges them at the end."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.run = 0
        self.publishing = threading.Event()
        self.publishing.set()
        self.consuming = threading.Event()
        self.consuming.set()
        self.confirmed: set[Name] = set()
        self.settled: set[Name] = set()
        self.delivered: dict[int, list[Delivered]] = collections.defaultdict(list)  # by consumer
        self.names: set[Name] = set()  # delivered at least once
        self.delivered_after_settled: list[Name] = []
        self.idle: set[int] = set()  # consumers that found the queue empty
        self.lock = threading.Lock()

    def has_backlog(self) -> bool:
        return len(self.confirmed) - len(self.names) > BACKLOG_MAX

    def connect(self) -> pika.BlockingConnection:
        return pika.BlockingConnection(
            pika.ConnectionParameters(
                "127.0.0.1", self.port, socket_timeout=5, blocked_connection_timeout=10, heartbeat=10
            )
        )


def encode(name: Name, size: int) -> bytes:
    return struct.pack(">HQ", *name) + bytes(size)


def decode(body: bytes) -> Name:
    publisher, number = struct.unpack_from(">HQ", body)
    return publisher, number


def random_size(dice: random.Random) -> int:
    return dice.choice([0, 10, 100, 1000, 1000, 5000, 150_000 if dice.random() < 0.05 else 500])


class Client(threading.Thread, abc.ABC):
    """Connects, works until the broker is gone, connects again."""

    def __init__(self, shared: Shared, number: int, seed: int, going: threading.Event) -> None:
        super().__init__(name=f"{type(self).__name__}-{number}", daemon=True)
        self.shared = shared
        self.number = number
        self.dice = random.Random(seed)
        self.going = going
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            while self.going.is_set():
                try:
                    self.work()
                except GONE:
                    time.sleep(0.02)
        except BaseException as error:  # noqa: BLE001 - the test raises it
            self.failure = error

    @abc.abstractmethod
    def work(self) -> None:
        """The work on one connection, until the broker is gone."""


class Publisher(Client):
    """Waits for each confirm before the next publish."""

    next_number = 0

    def __init__(self, shared: Shared, number: int, seed: int) -> None:
        super().__init__(shared, number, seed, shared.publishing)

    def next_message(self) -> tuple[Name, bytes]:
        name = (self.number, self.next_number)
        self.next_number += 1
        return name, encode(name, random_size(self.dice))

    def work(self) -> None:
        connection = self.shared.connect()
        with closing(connection) as channel:
            channel.confirm_delivery()
            while self.going.is_set():
                if self.shared.has_backlog():
                    connection.sleep(0.01)
                    continue
                name, body = self.next_message()
                channel.basic_publish("", QUEUE, body, pika.BasicProperties(delivery_mode=2), mandatory=True)
                self.shared.confirmed.add(name)


class PipeliningPublisher(Publisher):
    """Keeps many publishes in flight, and handles confirms as they arrive."""

    OUTSTANDING_MAX = 100

    def work(self) -> None:
        outstanding: dict[int, Name] = {}
        errors: list[Exception] = []

        def confirmed(frame: Any) -> None:
            method = frame.method
            assert isinstance(method, pika.spec.Basic.Ack), method
            last = method.delivery_tag
            for tag in [each for each in outstanding if each == last or (method.multiple and each < last)]:
                self.shared.confirmed.add(outstanding.pop(tag))
            publish()

        def publish() -> None:
            if not self.going.is_set():
                if not outstanding:
                    connection.close()
                return
            if self.shared.has_backlog():
                if not outstanding:
                    connection.ioloop.call_later(0.01, publish)
                return
            while len(outstanding) < self.OUTSTANDING_MAX:
                name, body = self.next_message()
                tag = next(tags)
                outstanding[tag] = name
                channel[0].basic_publish("", QUEUE, body, pika.BasicProperties(delivery_mode=2))

        def opened(given: Any) -> None:
            channel.append(given)
            given.confirm_delivery(confirmed, callback=lambda _: publish())

        tags = itertools.count(1)
        channel: list[Any] = []
        connection = pika.SelectConnection(
            pika.ConnectionParameters("127.0.0.1", self.shared.port, heartbeat=10),
            on_open_callback=lambda connection: connection.channel(on_open_callback=opened),
            on_open_error_callback=lambda _, error: ended(error),
            on_close_callback=lambda _, error: ended(error),
        )

        def ended(error: Any) -> None:
            errors.append(error)
            connection.ioloop.stop()

        connection.ioloop.start()
        time.sleep(0.02)


class Consumer(Client):
    """Acknowledges, and now and then makes a synchronous call, whose answer makes earlier acknowledgements certain."""

    def __init__(self, shared: Shared, number: int, seed: int) -> None:
        super().__init__(shared, number, seed, shared.consuming)

    def work(self) -> None:
        with closing(self.shared.connect()) as channel:
            channel.basic_qos(prefetch_count=self.dice.choice([5, 20, 100]))
            run = self.shared.run
            unacked: list[tuple[int, Name]] = []
            acked: list[Name] = []
            for method, _, body in channel.consume(QUEUE, inactivity_timeout=0.2):
                if method is not None:
                    name = decode(body)
                    self.note(Delivered(run, name, method.redelivered))
                    unacked.append((method.delivery_tag, name))
                if unacked and (method is None or self.dice.random() < 0.5):
                    acked += self.acknowledge(channel, unacked)
                if acked and (method is None or self.dice.random() < 0.1):
                    channel.queue_declare(QUEUE, passive=True)
                    with self.shared.lock:
                        self.shared.settled.update(acked)
                    acked.clear()
                if method is None:
                    self.shared.idle.add(self.number)
                else:
                    self.shared.idle.discard(self.number)
                if not self.going.is_set() and not unacked and not acked:
                    return

    def note(self, delivered: Delivered) -> None:
        with self.shared.lock:
            if delivered.name in self.shared.settled:
                self.shared.delivered_after_settled.append(delivered.name)
            self.shared.names.add(delivered.name)
            self.shared.delivered[self.number].append(delivered)

    def acknowledge(self, channel: BlockingChannel, unacked: list[tuple[int, Name]]) -> list[Name]:
        if self.dice.random() < 0.5:
            channel.basic_ack(unacked[-1][0], multiple=True)
        else:
            for tag, _ in unacked:
                channel.basic_ack(tag)
        names = [name for _, name in unacked]
        unacked.clear()
        return names


@contextlib.contextmanager
def closing(connection: pika.BlockingConnection) -> Iterator[BlockingChannel]:
    try:
        yield connection.channel()
    finally:
        with contextlib.suppress(*GONE):
            connection.close()
