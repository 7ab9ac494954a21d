"""Acknowledgements and replies: an answer is sent only when everything before it is durable."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from pamqp import commands

from kit.broker_waits import nothing_comes
from kit.live_broker import Broker
from kit.store_proxies import HeldDisk

if TYPE_CHECKING:
    from kit.amqp_client import RawClient


def with_messages(broker: Broker, count: int, *, channels: int = 1) -> RawClient:
    client = broker.raw().open(channels=channels)
    client.declare("q", durable=True)
    client.send(1, commands.Confirm.Select())
    client.expect(commands.Confirm.SelectOk)
    for number in range(count):
        client.publish("q", b"%d" % number)
    confirmed = 0
    while confirmed < count:
        confirmed = client.expect(commands.Basic.Ack).delivery_tag
    return client


def take(client: RawClient, channel: int = 1) -> int:
    client.send(channel, commands.Basic.Get(queue="q"))
    tag = client.expect(commands.Basic.GetOk).delivery_tag
    client.content()
    return int(tag)


synchronous = [
    (commands.Queue.Declare(queue="q", passive=True), commands.Queue.DeclareOk),
    (commands.Basic.Qos(0, 5), commands.Basic.QosOk),
    (commands.Queue.Bind(queue="q", exchange="amq.topic", routing_key="x"), commands.Queue.BindOk),
    (commands.Exchange.Declare(exchange="e", exchange_type="direct"), commands.Exchange.DeclareOk),
    (commands.Basic.Consume(queue="other"), commands.Basic.ConsumeOk),
    (commands.Basic.Cancel("unknown"), commands.Basic.CancelOk),
    (commands.Basic.Recover(requeue=True), commands.Basic.RecoverOk),
    (commands.Basic.Get(queue="other"), commands.Basic.GetEmpty),
    (commands.Confirm.Select(), commands.Confirm.SelectOk),
    (commands.Channel.Flow(True), commands.Channel.FlowOk),
    (commands.Channel.Close(200, "", 0, 0), commands.Channel.CloseOk),
]


@pytest.mark.parametrize(("call", "answer"), synchronous)
@pytest.mark.parametrize("how", ["ack", "nack", "reject"])
def test_an_answer_after_an_acknowledgement_implies_that_it_is_durable(
    held: tuple[Broker, HeldDisk], call: Any, answer: Any, how: str
) -> None:
    broker, disk = held
    client = with_messages(broker, 1)
    client.declare("other")
    tag = take(client)
    disk.hold()
    settle = {
        "ack": commands.Basic.Ack(tag),
        "nack": commands.Basic.Nack(tag, requeue=False),
        "reject": commands.Basic.Reject(tag, requeue=False),
    }[how]
    client.send(1, settle, call)
    nothing_comes(client)
    disk.let_go()
    client.expect(answer)


def test_closing_the_connection_is_answered_when_the_acknowledgements_are_durable(
    held: tuple[Broker, HeldDisk],
) -> None:
    broker, disk = held
    client = with_messages(broker, 1)
    tag = take(client)
    disk.hold()
    client.send(1, commands.Basic.Ack(tag))
    client.send(0, commands.Connection.Close(200, "", 0, 0))
    nothing_comes(client)
    disk.let_go()
    client.expect(commands.Connection.CloseOk)
    client.expect_end()


@pytest.mark.parametrize("goodbye", ["channel", "connection", "none"])
def test_a_get_that_waits_when_its_client_leaves_takes_nothing(held: tuple[Broker, HeldDisk], goodbye: str) -> None:
    broker, disk = held
    client = with_messages(broker, 2)
    tag = take(client)
    disk.hold()
    client.send(1, commands.Basic.Ack(tag), commands.Basic.Get(queue="q"))
    if goodbye == "channel":
        client.send(1, commands.Channel.Close(200, "", 0, 0))
    elif goodbye == "connection":
        client.send(0, commands.Connection.Close(200, "", 0, 0))
    nothing_comes(client)
    if goodbye == "none":
        client.socket.close()
        other = broker.raw().open()
        disk.let_go()
    else:
        disk.let_go()
        client.expect(commands.Channel.CloseOk if goodbye == "channel" else commands.Connection.CloseOk)
        other = broker.raw().open()
    assert other.declare("q", passive=True).message_count == 1
    assert take(other) == 1


def test_answers_are_in_the_order_of_their_requests(held: tuple[Broker, HeldDisk]) -> None:
    broker, disk = held
    client = with_messages(broker, 3)
    tags = [take(client) for _ in range(2)]
    disk.hold()
    client.send(
        1,
        commands.Basic.Qos(0, 7),
        commands.Basic.Ack(tags[0]),
        commands.Queue.Declare(queue="q", passive=True),
        commands.Basic.Get(queue="q"),
        commands.Basic.Ack(tags[1]),
    )
    client.publish("q", b"3")
    client.publish("nowhere", b"4", mandatory=True)
    client.send(1, commands.Basic.Cancel("x"), commands.Queue.Declare(queue="q", passive=True))
    client.expect(commands.Basic.QosOk)
    nothing_comes(client)
    disk.let_go()
    client.expect(commands.Queue.DeclareOk)
    client.expect(commands.Basic.GetOk)
    client.content()
    acked = 0
    while acked < 5:
        value = client.receive()[1]
        if isinstance(value, commands.Basic.Return):
            client.content()
        else:
            acked = value.delivery_tag
    client.expect(commands.Basic.CancelOk)
    client.expect(commands.Queue.DeclareOk)


def test_other_channels_and_connections_are_not_delayed(held: tuple[Broker, HeldDisk]) -> None:
    broker, disk = held
    client = with_messages(broker, 1, channels=2)
    other = broker.raw().open()
    tag = take(client)
    disk.hold()
    client.send(1, commands.Basic.Ack(tag), commands.Basic.Qos(0, 1))
    client.send(2, commands.Basic.Qos(0, 2))
    assert client.receive()[0] == 2
    other.declare("another")
    disk.let_go()
    assert client.receive()[0] == 1


def test_deliveries_pause_while_an_answer_is_held(held: tuple[Broker, HeldDisk]) -> None:
    broker, disk = held
    client = with_messages(broker, 4)
    client.send(1, commands.Basic.Qos(0, 1))
    client.expect(commands.Basic.QosOk)
    client.send(1, commands.Basic.Consume(queue="q"))
    client.expect(commands.Basic.ConsumeOk)
    assert client.delivery()[1] == b"0"
    disk.hold()
    client.send(1, commands.Basic.Ack(1))
    assert client.delivery()[1] == b"1"
    client.send(1, commands.Queue.Declare(queue="q", passive=True), commands.Basic.Ack(2))
    nothing_comes(client)
    disk.let_go()
    client.expect(commands.Queue.DeclareOk)
    assert client.delivery()[1] == b"2"


def test_a_message_is_delivered_only_when_it_is_on_the_disk(held: tuple[Broker, HeldDisk]) -> None:
    broker, disk = held
    client = with_messages(broker, 0)
    client.send(1, commands.Basic.Consume(queue="q"))
    client.expect(commands.Basic.ConsumeOk)
    publisher = broker.raw().open()
    for number in range(50):
        publisher.publish("q", b"%d" % number)
        deliver, body = client.delivery()
        assert body == b"%d" % number
        assert deliver.redelivered is False
        assert disk._store.durable_lsn > 0


def test_the_confirm_of_a_lone_publish_waits_for_no_further_turn_of_the_loop(held: tuple[Broker, HeldDisk]) -> None:
    """The turn that stores the message schedules nothing, and neither does the one that hears of the group commit."""
    broker, _ = held
    client = with_messages(broker, 2)
    turns = broker.server.turns
    calls: list[Any] = []

    class Loop:
        def call_soon(self, call: Any) -> None:
            calls.append(call)
            real.call_soon(call)

    real = turns._loop
    broker.call(lambda: setattr(turns, "_loop", Loop()))
    client.publish("q", b"alone")
    client.expect(commands.Basic.Ack)
    broker.call(lambda: setattr(turns, "_loop", real))
    assert calls == []


def test_without_traffic_the_broker_sleeps(held: tuple[Broker, HeldDisk]) -> None:
    broker, _ = held
    with_messages(broker, 3)
    turns = 0
    stop = threading.Event()

    def count() -> None:
        nonlocal turns
        turns += 1

    original = broker.server.turns._run
    broker.server.turns._run = lambda: (count(), original())  # type: ignore[method-assign,func-returns-value] # a spy
    stop.wait(0.5)
    assert turns == 0
