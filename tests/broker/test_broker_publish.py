"""Publishing: routing to several queues, confirms, returns, sizes, refusals."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pika
import pytest
from pamqp import body, commands, header

from kit.broker_waits import nothing_comes
from kit.live_broker import Broker, message_bytes
from kit.store_proxies import BrokenStore, FullStore, HeldDisk

if TYPE_CHECKING:
    from collections.abc import Callable


def confirming(broker: Broker, **options: Any) -> Any:
    client = broker.raw().open(**options)
    client.send(1, commands.Confirm.Select())
    client.expect(commands.Confirm.SelectOk)
    return client


def test_one_message_goes_to_every_bound_queue_durable_or_not(channel: Any) -> None:
    for name, durable in (("d1", True), ("d2", True), ("m1", False), ("m2", False)):
        channel.queue_declare(name, durable=durable)
        channel.queue_bind(name, "amq.topic", "#")
        channel.queue_bind(name, "amq.topic", "k")
    channel.confirm_delivery()
    channel.basic_publish("amq.topic", "k", b"one")
    for name in ("d1", "d2", "m1", "m2"):
        assert channel.basic_get(name, auto_ack=True)[2] == b"one"
        assert channel.basic_get(name, auto_ack=True)[0] is None


def test_properties_and_headers_come_out_bit_by_bit_as_they_went_in(channel: Any) -> None:
    properties = pika.BasicProperties(
        content_type="application/json",
        content_encoding="utf-8",
        headers={
            "n": 1,
            "big": 1 << 40,
            "list": [1, "two", {"three": b"\xff\x00"}],
            "none": None,
            "yes": True,
        },
        delivery_mode=2,
        priority=7,
        correlation_id="c",
        reply_to="r",
        expiration="100000",
        message_id="m",
        timestamp=1_700_000_000,
        type="t",
        user_id="guest",
        app_id="a",
    )
    for durable in (True, False):
        channel.queue_declare(f"q{durable}", durable=durable)
        channel.basic_publish("", f"q{durable}", b"x", properties)
        assert channel.basic_get(f"q{durable}", auto_ack=True)[1] == properties


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("size", [0, 1, 131_064, 131_065, 300_000, 3_000_000])
def test_bodies_of_any_size_come_back_whole(channel: Any, durable: bool, size: int) -> None:
    content = bytes(index % 251 for index in range(min(size, 1000))) * (size // 1000 + 1)
    content = content[:size]
    channel.queue_declare("q", durable=durable)
    channel.confirm_delivery()
    channel.basic_publish("", "q", content)
    channel.basic_publish("", "q", b"after")
    assert channel.basic_get("q", auto_ack=True)[2] == content
    assert channel.basic_get("q", auto_ack=True)[2] == b"after"


def test_a_delivery_respects_the_receivers_frame_max(broker: Broker) -> None:
    sender = broker.pika().channel()
    sender.queue_declare("q", durable=True)
    sender.confirm_delivery()
    sender.basic_publish("", "q", bytes(50_000))
    client = broker.raw().open(frame_max=4096)
    client.send(1, commands.Basic.Consume(queue="q"))
    client.expect(commands.Basic.ConsumeOk)
    client.expect(commands.Basic.Deliver)
    client.expect(header.ContentHeader)
    received = 0
    while received < 50_000:
        piece = len(client.expect(body.ContentBody).value)
        assert piece <= 4096 - 8
        received += piece


def test_properties_that_a_receivers_frame_max_cannot_hold_close_its_channel_and_lose_nothing(
    broker: Broker,
) -> None:
    sender = broker.pika().channel()
    sender.queue_declare("q", durable=True)
    sender.confirm_delivery()
    sender.basic_publish("", "q", b"x", pika.BasicProperties(headers={"long": "x" * 10_000}))
    client = broker.raw().open(frame_max=4096)
    client.send(1, commands.Basic.Consume(queue="q"))
    client.expect(commands.Basic.ConsumeOk)
    assert "frame_max" in client.expect_channel_close(311)
    assert sender.basic_get("q")[2] == b"x"


def test_unroutable_messages_are_returned_if_mandatory_before_their_ack(broker: Broker) -> None:
    client = confirming(broker)
    client.publish("nowhere", b"lost")
    assert client.expect(commands.Basic.Ack).delivery_tag == 1
    client.publish("nowhere", b"returned", mandatory=True, exchange="amq.direct")
    returned = client.expect(commands.Basic.Return)
    assert (returned.reply_code, returned.reply_text) == (312, "NO_ROUTE")
    assert (returned.exchange, returned.routing_key) == ("amq.direct", "nowhere")
    assert client.content()[1] == b"returned"
    assert client.expect(commands.Basic.Ack).delivery_tag == 2


def test_a_mandatory_message_that_is_routable_is_not_returned(channel: Any) -> None:
    channel.queue_declare("q", durable=True)
    channel.confirm_delivery()
    channel.basic_publish("", "q", b"x", mandatory=True)
    with pytest.raises(pika.exceptions.UnroutableError):
        channel.basic_publish("", "missing", b"x", mandatory=True)


def test_a_confirm_comes_after_the_group_commit_and_never_before(
    on_store: Callable[..., tuple[Broker, Any]],
) -> None:
    broker, disk = on_store(HeldDisk)
    client = confirming(broker)
    client.declare("q", durable=True)
    disk.hold()
    for number in range(5):
        client.publish("q", b"%d" % number)
    nothing_comes(client)
    disk.let_go()
    ack = client.expect(commands.Basic.Ack)
    assert (ack.delivery_tag, ack.multiple) == (5, True)
    client.publish("q", b"5")
    ack = client.expect(commands.Basic.Ack)
    assert (ack.delivery_tag, ack.multiple) == (6, False)


def test_memory_queues_and_unroutable_messages_are_confirmed_at_once_but_in_order(
    on_store: Callable[..., tuple[Broker, Any]],
) -> None:
    broker, disk = on_store(HeldDisk)
    client = confirming(broker)
    client.declare("memory")
    client.declare("durable", durable=True)
    disk.hold()
    client.publish("memory", b"1")
    assert client.expect(commands.Basic.Ack).delivery_tag == 1
    client.publish("durable", b"2")
    client.publish("memory", b"3")
    client.publish("nowhere", b"4", mandatory=True)
    nothing_comes(client)
    disk.let_go()
    seen = []
    while True:
        value = client.receive()[1]
        seen.append(type(value).__name__)
        if isinstance(value, commands.Basic.Ack) and value.delivery_tag == 4:
            break
    assert seen.index("Return") < len(seen) - 1


def test_a_message_without_confirms_can_be_got_on_the_same_channel(
    on_store: Callable[..., tuple[Broker, Any]],
) -> None:
    broker, disk = on_store(HeldDisk)
    client = broker.raw().open(channels=2)
    client.declare("q", durable=True)
    disk.hold()
    client.publish("q", b"x")
    client.send(1, commands.Basic.Get(queue="q"))
    nothing_comes(client)
    disk.let_go()
    client.expect(commands.Basic.GetOk)
    assert client.content()[1] == b"x"


def test_a_full_store_nacks_with_confirms_and_closes_the_channel_without(
    on_store: Callable[..., tuple[Broker, Any]],
) -> None:
    broker, store = on_store(FullStore, blocked_timeout_s=0.05)
    client = confirming(broker, channels=2)
    client.declare("q", durable=True)
    client.publish("q", b"1")
    client.expect(commands.Basic.Ack)
    store.full = True
    client.publish("q", b"2")
    nack = client.expect(commands.Basic.Nack)
    assert (nack.delivery_tag, nack.multiple) == (2, False)
    client.publish("q", b"x", channel=2)
    assert "full" in client.expect_channel_close(506)
    store.full = False
    client.publish("q", b"3")
    assert client.expect(commands.Basic.Ack).delivery_tag == 3
    assert client.declare("q", passive=True).message_count == 2


def test_a_full_store_refuses_a_large_body_in_the_same_way(
    on_store: Callable[..., tuple[Broker, Any]],
) -> None:
    broker, store = on_store(FullStore, inline_body_bytes_max=1000, blocked_timeout_s=0.05)
    client = confirming(broker)
    client.declare("q", durable=True)
    client.declare("m")
    client.send(1, commands.Queue.Bind(queue="q", exchange="amq.fanout"))
    client.expect(commands.Queue.BindOk)
    client.send(1, commands.Queue.Bind(queue="m", exchange="amq.fanout"))
    client.expect(commands.Queue.BindOk)
    store.full = True
    client.publish("", bytes(5000), exchange="amq.fanout")
    assert client.expect(commands.Basic.Nack).delivery_tag == 1
    assert client.declare("m", passive=True).message_count == 0
    assert broker.call(lambda: message_bytes(broker.server)) == 0


def test_a_poisoned_store_closes_every_connection_with_541_and_tells_nothing_of_outstanding_publishes(
    on_store: Callable[..., tuple[Broker, Any]],
) -> None:
    broker, store = on_store(BrokenStore)
    publisher = confirming(broker)
    bystander = broker.raw().open()
    publisher.declare("q", durable=True)
    store.hold()
    for _ in range(3):
        publisher.publish("q", b"x")
    time.sleep(0.2)
    store.break_down()
    publisher.expect_connection_close(541)  # the next method: no ack and no nack comes before it
    bystander.expect_connection_close(541)


def test_a_publish_that_finds_the_store_poisoned_is_nacked_and_541(
    on_store: Callable[..., tuple[Broker, Any]],
) -> None:
    broker, store = on_store(BrokenStore)
    publisher = confirming(broker)
    publisher.declare("q", durable=True)
    store.broken = True
    publisher.publish("q", b"x")
    assert publisher.expect(commands.Basic.Nack).delivery_tag == 1
    publisher.expect_connection_close(541)


def test_immediate_is_540(broker: Broker) -> None:
    client = broker.raw().open()
    client.declare("q")
    client.publish("q", b"x", immediate=True)
    client.expect_channel_close(540)


def test_a_body_larger_than_allowed_is_311_before_it_is_sent(start_broker: Callable[..., Broker]) -> None:
    client = start_broker(body_bytes_max=10_000).raw().open(channels=2)
    client.declare("q")
    client.publish("q", bytes(10_000))
    client.send(1, commands.Basic.Publish(routing_key="q"), header.ContentHeader(0, 10_001))
    client.expect_channel_close(311)
    client.send(1, body.ContentBody(b"still coming"), body.ContentBody(b"ignored"))
    client.send(2, commands.Queue.Declare(queue="q", passive=True))
    assert client.expect(commands.Queue.DeclareOk).message_count == 1


@pytest.mark.parametrize(
    ("properties", "code"),
    [({"expiration": "soon"}, 406), ({"expiration": "-1"}, 406), ({"user_id": "somebody"}, 406)],
)
def test_invalid_properties_close_the_channel(broker: Broker, properties: dict[str, str], code: int) -> None:
    client = broker.raw().open()
    client.declare("q")
    client.publish("q", b"x", properties=commands.Basic.Properties(**properties))
    client.expect_channel_close(code)


def test_a_thousand_pipelined_publishes_are_all_confirmed_and_in_order(broker: Broker) -> None:
    client = confirming(broker)
    client.declare("q", durable=True)
    for number in range(1000):
        client.publish("q", b"%d" % number)
    confirmed = 0
    while confirmed < 1000:
        ack = client.expect(commands.Basic.Ack)
        assert ack.delivery_tag > confirmed
        assert ack.multiple or ack.delivery_tag == confirmed + 1
        confirmed = ack.delivery_tag
    for number in range(1000):
        client.send(1, commands.Basic.Get(queue="q", no_ack=True))
        client.expect(commands.Basic.GetOk)
        assert client.content()[1] == b"%d" % number
