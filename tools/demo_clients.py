"""The clients of `make demo`: pika, each in its own process, that reconnect and continue after the broker is killed.

They have the guarantees of any client of a durable broker: a message is published once the broker has confirmed it, and
messages that were not confirmed when the connection broke are published again. So some messages arrive twice, and none
is lost. Each message has a number, and every process notes in shared memory the numbers that were confirmed or
received.
"""

from __future__ import annotations

import random
import signal
import time
from dataclasses import dataclass
from typing import Any

import pika
from pika.exceptions import AMQPError, StreamLostError

QUEUES = ("orders", "audit", "billing", "telemetry", "documents", "payments", "archive", "rejected")
FANOUT = "events"
TELEMETRY = "metrics"
WINDOW = 1500  # messages of a publisher that are not confirmed yet
TX_SIZE = 20
AGAIN_S = 0.2  # between two attempts to connect
GONE = (AMQPError, StreamLostError, OSError)


@dataclass
class Shared:
    """Memory shared by the processes: flags, counts, and one byte for each message and queue."""

    port: int
    messages: int
    payments: int
    stop: Any  # consumers: no more messages will arrive
    billing: Any  # when the queue billing gets a consumer
    published: Any  # a count for each publisher
    consumed: Any  # a count for each consumer
    confirmed: Any  # a byte for each message
    seen: dict[str, Any]  # of each queue: a byte for each message

    @property
    def total(self) -> int:
        """All messages, those published in transactions last."""
        return self.messages + self.payments


def kind_of(number: int) -> str:
    """The flow of a message; the same in every process."""
    chance = number * 2654435761 % 1000
    for below, kind in ((2, "documents"), (4, "archive"), (330, FANOUT), (560, "telemetry")):
        if chance < below:
            return kind
    return "orders"


def queues_of(shared: Shared, number: int) -> tuple[str, ...]:
    """The queues at which it must arrive."""
    if number >= shared.messages:
        return ("payments",)
    kind = kind_of(number)
    return ("audit", "billing") if kind == FANOUT else (kind,)


def body_of(number: int, kind: str, noise: bytes) -> bytes:
    """Some contents are large; the others have a usual size."""
    size = 48_000 + number % 64_000 if kind == "documents" else 40 + number * 7919 % 360
    start = number * 31 % (len(noise) - size)
    return noise[start : start + size]


def connect(shared: Shared, alive: Any) -> pika.BlockingConnection | None:
    """A connection, as soon as the broker is available; None when the demo ends."""
    while alive():
        try:
            return pika.BlockingConnection(
                pika.ConnectionParameters("127.0.0.1", shared.port, heartbeat=0, blocked_connection_timeout=60)
            )
        except GONE:
            time.sleep(AGAIN_S)
    return None


def declare(channel: Any) -> None:
    """Queues, exchanges, bindings."""
    for name in QUEUES:
        channel.queue_declare(name, durable=True)
    channel.exchange_declare(FANOUT, "fanout", durable=True)
    channel.exchange_declare(TELEMETRY, "topic", durable=True)
    channel.queue_bind("audit", FANOUT)
    channel.queue_bind("billing", FANOUT)
    channel.queue_bind("telemetry", TELEMETRY, "sensor.#")


def _quiet() -> None:
    """Ignore Ctrl-C, which the parent process handles."""
    import logging

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.getLogger("pika").setLevel(logging.CRITICAL)


class Publisher:
    """Publishes its share with confirms, with many unconfirmed at a time."""

    def __init__(self, shared: Shared, index: int, count: int) -> None:
        self.shared, self.index = shared, index
        self.todo = list(range(index, shared.messages, count))[::-1]
        self.under_way: dict[int, int] = {}
        self.tag = 0
        self.noise = random.Random(7).randbytes(200_000)
        self.properties = pika.BasicProperties(delivery_mode=2)
        self.connection: Any = None
        self.channel: Any = None

    def run(self) -> None:
        """Publish until all are confirmed."""
        while self.todo or self.under_way:
            parameters = pika.ConnectionParameters("127.0.0.1", self.shared.port, heartbeat=0)
            self.connection = pika.SelectConnection(
                parameters,
                on_open_callback=lambda connection: connection.channel(on_open_callback=self._opened),
                on_open_error_callback=lambda connection, _: connection.ioloop.stop(),
                on_close_callback=lambda connection, _: connection.ioloop.stop(),
            )
            self.connection.ioloop.start()
            # Unconfirmed messages may have arrived or not, so they are published again.
            self.todo += sorted(self.under_way.values(), reverse=True)
            self.under_way.clear()
            if self.todo:
                time.sleep(AGAIN_S)

    def _opened(self, channel: Any) -> None:
        self.channel, self.tag = channel, 0
        channel.confirm_delivery(self._confirmed, callback=lambda _: self._fill())

    def _fill(self) -> None:
        while self.todo and len(self.under_way) < WINDOW and self.channel.is_open:
            number = self.todo.pop()
            kind = kind_of(number)
            exchange, key = (FANOUT, "") if kind == FANOUT else ("", kind)
            if kind == "telemetry":
                exchange, key = TELEMETRY, f"sensor.{number % 50}"
            self.properties.message_id = str(number)
            self.tag += 1
            self.under_way[self.tag] = number
            self.channel.basic_publish(exchange, key, body_of(number, kind, self.noise), self.properties)

    def _confirmed(self, frame: Any) -> None:
        method = frame.method
        tags = [method.delivery_tag]
        if method.multiple:
            tags = [tag for tag in self.under_way if tag <= method.delivery_tag]
        fine = type(method).__name__ == "Ack"
        for tag in tags:
            number = self.under_way.pop(tag, None)
            if number is None:
                continue
            if fine:
                self.shared.published[self.index] += 1
                self.shared.confirmed[number] = 1
            else:
                self.todo.append(number)
        if self.todo:
            if len(self.under_way) < WINDOW // 2:
                self._fill()
        elif not self.under_way and self.connection.is_open:
            self.connection.close()


def publish(shared: Shared, index: int, count: int) -> None:
    """One publisher of `count`."""
    _quiet()
    Publisher(shared, index, count).run()


def publish_in_transactions(shared: Shared, index: int) -> None:
    """Publishes payments in transactions; now and then one is rolled back first and published again."""
    _quiet()
    noise = random.Random(8).randbytes(200_000)
    todo = list(range(shared.messages, shared.total))
    while todo:
        connection = connect(shared, lambda: True)
        if connection is None:
            return
        try:
            channel = connection.channel()
            channel.tx_select()
            rolled_back = False
            while todo:
                some = todo[:TX_SIZE]
                for number in some:
                    properties = pika.BasicProperties(delivery_mode=2, message_id=str(number))
                    channel.basic_publish("", "payments", body_of(number, "payments", noise), properties)
                if not rolled_back and some[0] % 7 == 0:
                    channel.tx_rollback()
                    rolled_back = True
                    continue
                rolled_back = False
                channel.tx_commit()
                for number in some:
                    shared.confirmed[number] = 1
                shared.published[index] += len(some)
                del todo[: len(some)]
            connection.close()
        except GONE:
            time.sleep(AGAIN_S)


class Consumer:
    """Consumes from some queues: accepts most messages, returns some once, rejects some orders."""

    def __init__(self, shared: Shared, index: int, queues: tuple[str, ...]) -> None:
        self.shared, self.index, self.queues = shared, index, queues
        self.waiting = 0
        self.last = 0

    def run(self) -> None:
        """Consume until no more messages will arrive."""
        while not self.shared.stop.value:
            connection = connect(self.shared, lambda: not self.shared.stop.value)
            if connection is None:
                return
            try:
                self._consume(connection)
            except GONE:
                time.sleep(AGAIN_S)

    def _consume(self, connection: Any) -> None:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=400)
        later = [name for name in self.queues if name == "billing"]
        for name in self.queues:
            if name not in later:
                self._subscribe(channel, name)
        self.waiting = self.last = 0
        while not self.shared.stop.value:
            if later and self.shared.billing.value:
                self._subscribe(channel, later.pop())
            connection.process_data_events(time_limit=0.05)
            self._settle(channel)
        connection.close()

    def _subscribe(self, channel: Any, name: str) -> None:
        def taken(channel: Any, method: Any, properties: Any, _: bytes) -> None:
            self._taken(channel, name, method, int(properties.message_id))

        channel.basic_consume(name, taken)

    def _settle(self, channel: Any) -> None:
        if self.waiting:
            channel.basic_ack(self.last, multiple=True)
            self.waiting = 0

    def _taken(self, channel: Any, name: str, method: Any, number: int) -> None:
        self.shared.seen[name][number] = 1
        if name == "orders" and number % 97 == 0:
            self._settle(channel)
            channel.basic_reject(method.delivery_tag, requeue=False)
        elif name in ("orders", "telemetry") and number % 53 == 0 and not method.redelivered:
            self._settle(channel)
            channel.basic_nack(method.delivery_tag, requeue=True)
            return
        else:
            self.last = method.delivery_tag
            self.waiting += 1
            if self.waiting == 200:
                self._settle(channel)
        self.shared.consumed[self.index] += 1


def consume(shared: Shared, index: int, queues: tuple[str, ...]) -> None:
    """One consumer."""
    _quiet()
    Consumer(shared, index, queues).run()


def look_at_rest(shared: Shared) -> dict[str, int]:
    """The numbers of the waiting messages by queue; each message is read and returned."""
    connection = connect(shared, lambda: True)
    if connection is None:
        return {}
    found = {}
    channel = connection.channel()
    for name in QUEUES:
        found[name] = 0
        while True:
            method, properties, _ = channel.basic_get(name)
            if method is None:
                break
            shared.seen[name][int(properties.message_id)] = 1
            found[name] += 1
    connection.close()
    return found
