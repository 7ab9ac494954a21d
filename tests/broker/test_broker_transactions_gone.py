"""AMQP transactions whose client disconnects."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pamqp import commands

from kit.broker_transactions import drain, fill, ready, select, take
from kit.live_broker import message_bytes
from kit.patience import wait_until

if TYPE_CHECKING:
    from kit.live_broker import Broker
    from kit.store_proxies import HeldDisk


@pytest.mark.parametrize("goodbye", ["channel", "connection", "cut"])
@pytest.mark.parametrize("durable", [True, False])
def test_a_transaction_dies_with_its_client_and_its_deliveries_are_requeued_in_order(
    broker: Broker, durable: bool, goodbye: str
) -> None:
    fill(broker, "q", 4, durable=durable)
    client = broker.raw().open()
    client.declare("out", durable=durable)
    select(client)
    tags = [take(client) for _ in range(4)]
    client.send(1, commands.Basic.Ack(tags[2]), commands.Basic.Ack(tags[0]))
    client.publish("out", b"x")
    client.send(1, commands.Queue.Declare(queue="out", passive=True))
    client.expect(commands.Queue.DeclareOk)
    if goodbye == "channel":
        client.send(1, commands.Channel.Close(200, "", 0, 0))
        client.expect(commands.Channel.CloseOk)
    elif goodbye == "connection":
        client.send(0, commands.Connection.Close(200, "", 0, 0))
        client.expect(commands.Connection.CloseOk)
    else:
        client.socket.close()
    wait_until(lambda: ready(broker, "q") == 4)
    assert drain(broker, "q") == [b"0", b"1", b"2", b"3"]
    assert drain(broker, "out") == []
    assert broker.call(lambda: message_bytes(broker.server)) == 0


@pytest.mark.parametrize("large", [False, True])
def test_a_commit_whose_client_disconnects_is_atomic(held: tuple[Broker, HeldDisk], large: bool) -> None:
    broker, disk = held
    fill(broker, "q", 2)
    others = broker.call(lambda: len(broker.server.connections))
    client = broker.raw().open()
    client.declare("lasting", durable=True)
    client.declare("passing")
    select(client)
    tag = take(client)
    body = bytes(3 << 20 if large else 10)
    for queue in ("lasting", "passing"):
        client.publish(queue, body)
    client.send(1, commands.Basic.Ack(tag))
    client.send(1, commands.Queue.Declare(queue="q", passive=True))
    client.expect(commands.Queue.DeclareOk)
    disk.hold()
    client.send(1, commands.Tx.Commit())
    wait_until(lambda: broker.store.queue("lasting").depth == 1)
    client.socket.close()
    wait_until(lambda: broker.call(lambda: len(broker.server.connections)) == others)
    assert ready(broker, "passing") == 0
    disk.let_go()
    wait_until(lambda: ready(broker, "passing") == 1)
    assert drain(broker, "lasting") == drain(broker, "passing") == [body]
    assert drain(broker, "q") == [b"1"]
