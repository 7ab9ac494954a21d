"""Steps that the tests of AMQP transactions share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pamqp import commands

from kit.live_broker import Broker

if TYPE_CHECKING:
    from kit.amqp_client import RawClient


def drain(broker: Broker, queue: str) -> list[bytes]:
    """Consume the ready messages of a queue, in order."""
    channel = broker.pika().channel()
    found = []
    while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
        found.append(got[2])
    return found


def ready(broker: Broker, queue: str) -> int:
    return int(broker.call(lambda: broker.server.hosts["/"].vhost.queues[queue].ready_count))


def fill(broker: Broker, queue: str, count: int, *, durable: bool = True) -> None:
    channel = broker.pika().channel()
    channel.queue_declare(queue, durable=durable)
    channel.confirm_delivery()
    for number in range(count):
        channel.basic_publish("", queue, b"%d" % number)


def select(client: RawClient, number: int = 1) -> None:
    client.send(number, commands.Tx.Select())
    client.expect(commands.Tx.SelectOk)


def take(client: RawClient, queue: str = "q") -> int:
    client.send(1, commands.Basic.Get(queue=queue))
    tag = client.expect(commands.Basic.GetOk).delivery_tag
    client.content()
    return int(tag)
