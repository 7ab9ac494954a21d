"""A host whose majority is slow: its publishers are told for whom they wait, and go on when it is over."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pika
import pytest
from pamqp import commands

pytest.importorskip("msgspec", reason="the extra cluster is not installed")
pytest.importorskip("logstore._consensus", reason="the cluster is not built")

from kit.amqp_client import RawClient
from kit.live_broker import open_store
from kit.patience import PATIENCE_S, wait_until
from kit.relayed_broker import RelayedBroker
from kit.slow_trio import LEADER, SlowTrio
from kit.store_proxies import HeldDisk
from kit.trio import HOST
from logstore.broker import Limits

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kit.amqp_trio import MemberBroker
    from logstore.broker.connection import Connection

QUEUE = "work"
MORE = 150  # messages of 1000 bytes: more than the log of this segment size takes behind a slow majority
REASON = re.compile(
    rf"virtual host '{HOST}': the members m2 and m3 have not made durable what was published [\d.]+ s ago"
)


@pytest.fixture
def amqp(tmp_path: Path) -> Iterator[SlowTrio]:
    made = SlowTrio(tmp_path)
    made.start()
    yield made
    made.close()


class Publisher:
    """A pika client that publishes without waiting, and what it is told."""

    def __init__(self, amqp: SlowTrio) -> None:
        self.told: list[Any] = []
        self._opened = False
        given = pika.ConnectionParameters("127.0.0.1", amqp.ports[LEADER], HOST)
        self.client = pika.BlockingConnection(given)
        self.client.add_on_connection_blocked_callback(lambda _, frame: self.told.append(frame.method.reason))
        self.client.add_on_connection_unblocked_callback(lambda *_: self.told.append("unblocked"))
        self.channel = self.client.channel()
        self.channel.queue_declare(QUEUE, durable=True)

    def publish(self, body: bytes) -> None:
        self.channel.basic_publish("", QUEUE, body)

    def until_told(self, count: int) -> None:
        while len(self.told) < count:
            self.client.process_data_events(time_limit=PATIENCE_S)


def raw(amqp: SlowTrio) -> RawClient:
    """It does not understand connection.blocked."""
    client = RawClient(amqp.ports[LEADER]).open(virtual_host=HOST)
    client.send(1, commands.Confirm.Select())
    client.expect(commands.Confirm.SelectOk)
    return client


def test_publishers_are_told_who_is_slow_and_all_is_confirmed_when_it_is_over(amqp: SlowTrio) -> None:
    publisher = Publisher(amqp)
    with raw(amqp) as other:
        amqp.hang()
        publisher.publish(b"waits")
        other.publish(QUEUE, b"waits, too")
        publisher.until_told(1)
        assert REASON.fullmatch(publisher.told[0])
        amqp.work()
        publisher.until_told(2)
        assert publisher.told[1] == "unblocked"
        assert other.expect(commands.Basic.Ack).delivery_tag == 1  # and nothing before it
    publisher.publish(b"goes on")
    assert publisher.channel.queue_declare(QUEUE, passive=True).method.message_count == 3
    publisher.client.close()


def test_who_goes_on_publishing_stops_neither_the_broker_nor_acknowledgements_and_is_not_read(amqp: SlowTrio) -> None:
    broker = amqp.brokers[LEADER]
    with raw(amqp) as publisher, raw(amqp) as consumer, raw(amqp) as other:
        publisher.declare(QUEUE, durable=True)
        for number in range(5):
            publisher.publish(QUEUE, b"%d" % number)
            publisher.expect(commands.Basic.Ack)
        consumer.send(1, commands.Basic.Consume(queue=QUEUE))
        consumer.expect(commands.Basic.ConsumeOk)
        tags = [consumer.delivery()[0].delivery_tag for _ in range(5)]
        queue = broker.server.hosts[HOST].vhost.queues[QUEUE]
        amqp.hang()
        for _ in range(MORE):
            publisher.publish(QUEUE, bytes(1000))
            other.send(1, commands.Basic.Qos(0, 1))
            other.expect(commands.Basic.QosOk)  # the broker's loop has gone on
        wait_until(lambda: broker.call(lambda: any(each.receiving.is_paused for each in _of(broker))), "it is not read")
        assert broker.call(lambda: queue.published) < 5 + MORE
        for tag in tags:
            consumer.send(1, commands.Basic.Ack(tag))
        wait_until(lambda: broker.call(lambda: queue.acknowledged) == 5, "acknowledgements count")
        amqp.work()
        confirmed = 5
        while confirmed < 5 + MORE:
            confirmed = publisher.expect(commands.Basic.Ack).delivery_tag
        assert broker.call(lambda: queue.published) == 5 + MORE


def _of(broker: MemberBroker) -> set[Connection]:
    return broker.server.hosts[HOST].connections


def test_a_leader_that_ceases_while_it_is_slow_closes_the_connections_with_320(amqp: SlowTrio) -> None:
    publisher = Publisher(amqp)
    amqp.hang()
    publisher.publish(b"waits")
    publisher.until_told(1)
    amqp.kill_others()
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as caught:
        publisher.until_told(2)
    assert caught.value.reply_code == 320


def test_a_relay_passes_the_notices_to_a_client_that_understands_them_and_to_no_other(tmp_path: Path) -> None:
    disk = HeldDisk(open_store(tmp_path / "store"))
    broker = RelayedBroker(disk, Limits(blocked_after_s=0.05))
    try:
        knows, does_not = broker.raw().open(wants_blocked=True), broker.raw().open()
        for client in (knows, does_not):
            client.declare(QUEUE, durable=True)
            client.send(1, commands.Confirm.Select())
            client.expect(commands.Confirm.SelectOk)
        disk.hold()
        for client in (does_not, knows):
            client.publish(QUEUE, b"waits")
        assert "the disk has not made durable" in knows.expect(commands.Connection.Blocked).reason
        disk.let_go()
        assert {type(knows.receive()[1]) for _ in range(2)} == {commands.Basic.Ack, commands.Connection.Unblocked}
        does_not.expect(commands.Basic.Ack)
    finally:
        broker.stop()
        disk.close()
