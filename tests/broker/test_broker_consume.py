"""Consuming: delivery, prefetch, acknowledgement, requeue in order, taking turns."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Any

import pytest
from pamqp import commands

from kit.broker_waits import nothing_comes
from kit.live_broker import Broker

if TYPE_CHECKING:
    from kit.amqp_client import RawClient

pytestmark = pytest.mark.every_way

both_kinds = pytest.mark.parametrize("durable", [True, False])


def fill(broker: Broker, queue: str, count: int, *, durable: bool, start: int = 0) -> None:
    channel = broker.pika().channel()
    channel.queue_declare(queue, durable=durable)
    channel.confirm_delivery()
    for number in range(start, start + count):
        channel.basic_publish("", queue, b"%d" % number)


def consume(client: RawClient, queue: str = "q", *, channel: int = 1, **options: Any) -> str:
    client.send(channel, commands.Basic.Consume(queue=queue, **options))
    return str(client.expect(commands.Basic.ConsumeOk).consumer_tag)


def qos(client: RawClient, count: int, *, shared: bool = False) -> None:
    client.send(1, commands.Basic.Qos(0, count, shared))
    client.expect(commands.Basic.QosOk)


def deliveries(client: RawClient, count: int) -> list[tuple[int, int, bool]]:
    """Number, delivery tag and redelivered flag of each."""
    received = []
    for _ in range(count):
        method, body = client.delivery()
        received.append((int(body), method.delivery_tag, method.redelivered))
    return received


def settle(client: RawClient) -> int:
    """The number of ready messages, by a synchronous call."""
    return int(client.declare("q", passive=True).message_count)


@both_kinds
def test_messages_are_delivered_in_order_with_their_routing(broker: Broker, durable: bool) -> None:
    fill(broker, "q", 10, durable=durable)
    client = broker.raw().open()
    tag = consume(client)
    assert tag.startswith("amq.ctag-")
    for number in range(10):
        method, body = client.delivery()
        assert (method.consumer_tag, method.delivery_tag, method.redelivered) == (tag, number + 1, False)
        assert (method.exchange, method.routing_key, body) == ("", "q", b"%d" % number)


@both_kinds
def test_new_messages_reach_a_waiting_consumer_at_once(broker: Broker, durable: bool) -> None:
    client = broker.raw().open(channels=2)
    client.declare("q", durable=durable)
    consume(client)
    for number in range(20):
        client.publish("q", b"%d" % number, channel=2)
        assert client.delivery()[1] == b"%d" % number


@both_kinds
def test_prefetch_limits_unacknowledged_messages_and_each_ack_allows_one_more(broker: Broker, durable: bool) -> None:
    fill(broker, "q", 10, durable=durable)
    client = broker.raw().open()
    qos(client, 3)
    consume(client)
    assert [number for number, _, _ in deliveries(client, 3)] == [0, 1, 2]
    nothing_comes(client)
    client.send(1, commands.Basic.Ack(1))
    assert deliveries(client, 1) == [(3, 4, False)]
    nothing_comes(client)
    client.send(1, commands.Basic.Ack(4, multiple=True))
    assert [number for number, _, _ in deliveries(client, 3)] == [4, 5, 6]
    nothing_comes(client)


@both_kinds
def test_shared_prefetch_counts_all_consumers_of_the_channel(broker: Broker, durable: bool) -> None:
    fill(broker, "q", 10, durable=durable)
    fill(broker, "r", 10, durable=durable)
    client = broker.raw().open()
    qos(client, 3, shared=True)
    consume(client, "q")
    for _ in range(3):
        client.delivery()
    consume(client, "r")
    nothing_comes(client)
    client.send(1, commands.Basic.Ack(0, multiple=True))
    for _ in range(3):
        client.delivery()
    nothing_comes(client)
    qos(client, 5, shared=True)
    for _ in range(2):
        client.delivery()
    nothing_comes(client)


def test_prefetch_applies_to_each_later_consumer_separately(broker: Broker) -> None:
    fill(broker, "q", 20, durable=True)
    client = broker.raw().open()
    qos(client, 2)
    consume(client, consumer_tag="two")
    for _ in range(2):
        client.delivery()
    qos(client, 5)
    consume(client, consumer_tag="five")
    tags = collections.Counter(client.delivery()[0].consumer_tag for _ in range(5))
    assert tags == {"five": 5}
    nothing_comes(client)


def test_prefetch_of_a_py_amqp_client_limits_the_whole_channel_at_once(broker: Broker) -> None:
    fill(broker, "q", 20, durable=True)
    client = broker.raw().open(product="py-amqp")
    qos(client, 2)
    for tag in ("one", "two"):
        client.send(1, commands.Basic.Consume(queue="q", consumer_tag=tag, nowait=True))
    for _ in range(2):
        client.delivery()
    nothing_comes(client)
    client.send(1, commands.Basic.Qos(0, 5, False))
    client.expect(commands.Basic.QosOk)
    for _ in range(3):
        client.delivery()
    nothing_comes(client)


@both_kinds
def test_messages_not_acknowledged_come_back_in_order_and_marked_when_the_connection_goes(
    broker: Broker, durable: bool
) -> None:
    fill(broker, "q", 6, durable=durable)
    client = broker.raw().open()
    qos(client, 4)
    consume(client)
    deliveries(client, 4)
    client.send(1, commands.Basic.Ack(2))
    deliveries(client, 1)
    assert settle(client) == 1
    client.socket.close()
    other = broker.raw().open()
    consume(other)
    assert [(number, again) for number, _, again in deliveries(other, 5)] == [
        (0, True),
        (2, True),
        (3, True),
        (4, True),
        (5, False),
    ]


@both_kinds
def test_closing_the_channel_requeues_its_messages(broker: Broker, durable: bool) -> None:
    fill(broker, "q", 3, durable=durable)
    client = broker.raw().open(channels=2)
    consume(client)
    deliveries(client, 3)
    client.send(1, commands.Channel.Close(200, "", 0, 0))
    client.expect(commands.Channel.CloseOk)
    consume(client, channel=2)
    assert [(number, again) for number, _, again in deliveries(client, 3)] == [
        (0, True),
        (1, True),
        (2, True),
    ]


@both_kinds
def test_requeue_puts_messages_back_where_they_were(broker: Broker, durable: bool) -> None:
    fill(broker, "q", 5, durable=durable)
    client = broker.raw().open()
    qos(client, 3)
    consume(client)
    assert [number for number, _, _ in deliveries(client, 3)] == [0, 1, 2]
    client.send(1, commands.Basic.Nack(3, requeue=True))
    assert deliveries(client, 1) == [(2, 4, True)]
    client.send(1, commands.Basic.Nack(0, multiple=True, requeue=True))
    assert [(number, again) for number, _, again in deliveries(client, 3)] == [
        (0, True),
        (1, True),
        (2, True),
    ]
    client.send(1, commands.Basic.Reject(6, requeue=True))
    assert [number for number, _, _ in deliveries(client, 1)] == [1]


@both_kinds
def test_rejected_messages_are_gone(broker: Broker, durable: bool) -> None:
    fill(broker, "q", 4, durable=durable)
    client = broker.raw().open()
    qos(client, 3)
    consume(client, consumer_tag="t")
    deliveries(client, 3)
    client.send(1, commands.Basic.Reject(1, requeue=False))
    client.send(1, commands.Basic.Nack(3, multiple=True, requeue=False))
    deliveries(client, 1)
    client.send(1, commands.Basic.Cancel("t"))
    client.expect(commands.Basic.CancelOk)
    client.send(1, commands.Basic.Recover(requeue=True))
    client.expect(commands.Basic.RecoverOk)
    assert settle(client) == 1


@both_kinds
def test_recover_requeues_everything_in_order(broker: Broker, durable: bool) -> None:
    fill(broker, "q", 4, durable=durable)
    client = broker.raw().open()
    consume(client)
    deliveries(client, 4)
    client.send(1, commands.Basic.Recover(requeue=True))
    client.expect(commands.Basic.RecoverOk)
    assert [(number, again) for number, _, again in deliveries(client, 4)] == [(number, True) for number in range(4)]
    client.send(1, commands.Basic.RecoverAsync(requeue=True))
    assert [number for number, _, _ in deliveries(client, 4)] == [0, 1, 2, 3]
    client.send(1, commands.Basic.Recover(requeue=False))
    client.expect_channel_close(540)


@pytest.mark.parametrize(
    "method",
    [
        commands.Basic.Ack(2),
        commands.Basic.Ack(0),
        commands.Basic.Ack(9, multiple=True),
        commands.Basic.Nack(2),
        commands.Basic.Reject(2),
    ],
)
def test_an_unknown_delivery_tag_is_406_and_gives_everything_back(broker: Broker, method: Any) -> None:
    fill(broker, "q", 2, durable=True)
    client = broker.raw().open(channels=2)
    client.send(1, commands.Basic.Get(queue="q"))
    client.expect(commands.Basic.GetOk)
    client.content()
    client.send(1, method)
    assert "unknown delivery tag" in client.expect_channel_close(406)
    client.send(2, commands.Queue.Declare(queue="q", passive=True))
    assert client.expect(commands.Queue.DeclareOk).message_count == 2


def test_acknowledging_twice_is_406(broker: Broker) -> None:
    fill(broker, "q", 1, durable=True)
    client = broker.raw().open()
    client.send(1, commands.Basic.Get(queue="q"))
    client.expect(commands.Basic.GetOk)
    client.content()
    client.send(1, commands.Basic.Ack(1), commands.Basic.Ack(1))
    client.expect_channel_close(406)


@both_kinds
def test_get_takes_one_message_and_says_how_many_remain(broker: Broker, durable: bool) -> None:
    fill(broker, "q", 2, durable=durable)
    client = broker.raw().open()
    for remaining in (1, 0):
        client.send(1, commands.Basic.Get(queue="q"))
        got = client.expect(commands.Basic.GetOk)
        assert (got.message_count, got.redelivered) == (remaining, False)
        client.content()
    client.send(1, commands.Basic.Get(queue="q"))
    client.expect(commands.Basic.GetEmpty)
    client.send(1, commands.Basic.Nack(0, multiple=True), commands.Basic.Get(queue="q", no_ack=True))
    assert client.expect(commands.Basic.GetOk).redelivered is True
    assert client.content()[1] == b"0"


@both_kinds
def test_a_consumer_without_acks_gets_everything_once(broker: Broker, durable: bool) -> None:
    fill(broker, "q", 100, durable=durable)
    client = broker.raw().open()
    qos(client, 1)
    consume(client, no_ack=True)
    assert [number for number, _, _ in deliveries(client, 100)] == list(range(100))
    settle(client)
    client.socket.close()
    other = broker.raw().open()
    assert settle(other) == 0


@both_kinds
def test_consumers_take_turns(broker: Broker, durable: bool) -> None:
    client = broker.raw().open(channels=4)
    client.declare("q", durable=durable)
    for number in (1, 2, 3):
        consume(client, channel=number, consumer_tag=f"t{number}")
    fill(broker, "q", 30, durable=durable)
    tags = collections.Counter(client.delivery()[0].consumer_tag for _ in range(30))
    assert tags == {"t1": 10, "t2": 10, "t3": 10}


@both_kinds
def test_a_consumer_without_credit_does_not_stop_the_others(broker: Broker, durable: bool) -> None:
    fill(broker, "q", 20, durable=durable)
    slow, quick = broker.raw().open(), broker.raw().open()
    qos(slow, 1)
    consume(slow)
    deliveries(slow, 1)
    consume(quick)
    assert len(deliveries(quick, 19)) == 19


def test_an_exclusive_consumer_is_alone(broker: Broker) -> None:
    client = broker.raw().open(channels=4)
    client.declare("q")
    consume(client, channel=1, consumer_tag="mine", exclusive=True)
    client.send(2, commands.Basic.Consume(queue="q"))
    assert "exclusive use" in client.expect_channel_close(403)
    client.send(1, commands.Basic.Cancel("mine"))
    client.expect(commands.Basic.CancelOk)
    consume(client, channel=3)
    client.send(1, commands.Basic.Consume(queue="q", exclusive=True))
    client.expect_channel_close(403)


def test_a_consumer_tag_in_use_is_530_and_an_unknown_queue_404(broker: Broker) -> None:
    client = broker.raw().open()
    client.declare("q")
    consume(client, consumer_tag="t")
    client.send(1, commands.Basic.Consume(queue="q", consumer_tag="t"))
    client.expect_connection_close(530)
    client = broker.raw().open()
    client.send(1, commands.Basic.Consume(queue="missing"))
    client.expect_channel_close(404)


@pytest.mark.parametrize(
    ("method", "code"),
    [
        (commands.Basic.Consume(queue="q", arguments={"x-priority": 5}), 406),
        (commands.Basic.Consume(queue="q", no_local=True), 540),
        (commands.Basic.Qos(1000, 0, False), 540),
    ],
)
def test_unsupported_consumer_options_are_refused(broker: Broker, method: Any, code: int) -> None:
    client = broker.raw().open()
    client.declare("q")
    client.send(1, method)
    client.expect_channel_close(code)


def test_cancelling_keeps_unacknowledged_messages_and_may_be_repeated(broker: Broker) -> None:
    fill(broker, "q", 3, durable=True)
    client = broker.raw().open()
    qos(client, 2)
    consume(client, consumer_tag="t")
    deliveries(client, 2)
    for _ in range(2):
        client.send(1, commands.Basic.Cancel("t"))
        client.expect(commands.Basic.CancelOk)
    client.send(1, commands.Basic.Ack(2, multiple=True))
    assert settle(client) == 1


def test_flow_stops_and_resumes_deliveries(broker: Broker) -> None:
    client = broker.raw().open(channels=2)
    client.declare("q")
    consume(client)
    client.send(1, commands.Channel.Flow(False))
    assert client.expect(commands.Channel.FlowOk).active is False
    client.publish("q", b"0", channel=2)
    nothing_comes(client)
    client.send(1, commands.Channel.Flow(True))
    assert client.expect(commands.Channel.FlowOk).active is True
    assert deliveries(client, 1) == [(0, 1, False)]


def test_unacknowledged_messages_of_one_channel_are_bounded(start_broker: Any) -> None:
    broker = start_broker(unacked_max=10)
    fill(broker, "q", 30, durable=True)
    client = broker.raw().open()
    consume(client)
    deliveries(client, 10)
    nothing_comes(client)
    client.send(1, commands.Basic.Ack(0, multiple=True))
    deliveries(client, 10)


def test_unacknowledged_messages_are_delivered_again_after_a_restart(restart_broker: Any) -> None:
    broker = restart_broker()
    fill(broker, "q", 5, durable=True)
    client = broker.raw().open()
    qos(client, 3)
    consume(client)
    deliveries(client, 3)
    client.send(1, commands.Basic.Ack(2))
    deliveries(client, 1)
    settle(client)
    broker = restart_broker()
    client = broker.raw().open()
    consume(client)
    assert [number for number, _, _ in deliveries(client, 4)] == [0, 2, 3, 4]
