"""Queues: declaring, sharing, locking, deleting, purging, and automatic deletion."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pika
import pytest
from pamqp import commands

from kit.patience import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from kit.live_broker import Broker


def code_of(call: Callable[[], Any]) -> int:
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        call()
    return int(caught.value.reply_code)


def exists(broker: Broker, queue: str) -> bool:
    return broker.call(lambda: queue in broker.server.hosts["/"].vhost.queues)


@pytest.mark.parametrize("durable", [True, False])
def test_declaring_returns_messages_and_consumers_and_may_be_repeated(channel: Any, durable: bool) -> None:
    for _ in range(2):
        result = channel.queue_declare("q", durable=durable).method
        assert (result.queue, result.message_count, result.consumer_count) == ("q", 0, 0)
    channel.confirm_delivery()
    for _ in range(3):
        channel.basic_publish("", "q", b"x")
    assert channel.queue_declare("q", passive=True).method.message_count == 3
    channel.basic_get("q")
    assert channel.queue_declare("q", passive=True).method.message_count == 2
    channel.basic_consume("q", lambda *_: None)
    result = channel.queue_declare("q", durable=durable).method
    assert (result.message_count, result.consumer_count) == (0, 1)


def test_a_passive_declare_of_an_unknown_queue_is_404(channel: Any) -> None:
    assert code_of(lambda: channel.queue_declare("missing", passive=True)) == 404


def test_queues_without_a_name_get_one_each_and_the_channel_remembers_the_last(channel: Any) -> None:
    first = channel.queue_declare("").method.queue
    second = channel.queue_declare("").method.queue
    assert first.startswith("amq.gen-")
    assert first != second
    channel.queue_bind("", "amq.direct", "k")
    channel.basic_publish("amq.direct", "k", b"x")
    assert channel.basic_get(second)[2] == b"x"


def test_an_empty_queue_and_key_bind_the_last_queue_by_its_name(broker: Broker) -> None:
    client = broker.raw().open()
    name = client.declare("").queue
    client.send(1, commands.Queue.Bind(queue="", exchange="amq.direct", routing_key=""))
    client.expect(commands.Queue.BindOk)
    client.publish(name, b"x", exchange="amq.direct")
    assert client.declare("", passive=True).message_count == 1


def test_reserved_names_are_403(channel: Any) -> None:
    assert code_of(lambda: channel.queue_declare("amq.mine")) == 403


@pytest.mark.parametrize(
    ("changes", "arg"),
    [
        ({"durable": False}, "durable"),
        ({"auto_delete": True}, "auto_delete"),
        ({"arguments": {"x-message-ttl": 5}}, "x-message-ttl"),
        ({"arguments": {}}, "x-message-ttl"),
        ({"arguments": {"x-message-ttl": 60_000, "x-expires": 60_000}}, "x-expires"),
    ],
)
def test_a_declaration_that_differs_is_406_and_names_the_difference(
    broker: Broker, changes: dict[str, Any], arg: str
) -> None:
    same: dict[str, Any] = {"durable": True, "arguments": {"x-message-ttl": 60_000}}
    client = broker.raw().open()
    client.declare("q", **same)
    client.declare("q", durable=True, arguments={"x-message-ttl": 60_000, "x-queue-type": "classic"})
    client.send(1, commands.Queue.Declare(queue="q", **{**same, **changes}))
    assert f"inequivalent arg '{arg}' for queue 'q'" in client.expect_channel_close(406)


@pytest.mark.parametrize(
    "arguments",
    [
        {"x-max-length": 5},
        {"x-max-priority": 5},
        {"x-dead-letter-exchange": "x"},
        {"x-queue-type": "quorum"},
        {"x-single-active-consumer": True},
        {"unheard-of": 1},
        {"x-message-ttl": -1},
        {"x-message-ttl": "100"},
        {"x-message-ttl": True},
        {"x-expires": 0},
        {"x-expires": 1 << 40},
    ],
)
def test_arguments_that_are_not_implemented_or_make_no_sense_are_406_and_named(
    broker: Broker, arguments: dict[str, Any]
) -> None:
    client = broker.raw().open()
    client.send(1, commands.Queue.Declare(queue="q", arguments=arguments))
    assert f"invalid arg '{next(iter(arguments))}'" in client.expect_channel_close(406)


def test_an_exclusive_queue_is_locked_for_others_and_goes_with_its_connection(broker: Broker) -> None:
    owner, other = broker.pika(), broker.pika()
    name = owner.channel().queue_declare("mine", exclusive=True, durable=True).method.queue
    owner.channel().queue_declare("mine", exclusive=True, durable=True)
    for call in (
        lambda: other.channel().queue_declare(name, passive=True),
        lambda: other.channel().queue_declare(name, exclusive=True, durable=True),
        lambda: other.channel().basic_get(name),
        lambda: other.channel().basic_consume(name, lambda *_: None),
        lambda: other.channel().queue_bind(name, "amq.topic", "k"),
        lambda: other.channel().queue_purge(name),
        lambda: other.channel().queue_delete(name),
        lambda: owner.channel().queue_declare(name, exclusive=False, durable=True),
    ):
        assert code_of(call) == 405
    other.channel().basic_publish("", name, b"anyone may send")
    assert owner.channel().basic_get(name)[2] == b"anyone may send"
    owner.close()
    wait_until(lambda: not exists(broker, name))
    other.channel().queue_declare(name)


@pytest.mark.parametrize("durable", [True, False])
def test_an_auto_delete_queue_goes_with_its_last_consumer_not_before_its_first(broker: Broker, durable: bool) -> None:
    connection = broker.pika()
    channel = connection.channel()
    channel.queue_declare("q", auto_delete=True, durable=durable)
    assert exists(broker, "q")
    first = channel.basic_consume("q", lambda *_: None)
    second_connection = broker.pika()
    second_connection.channel().basic_consume("q", lambda *_: None)
    channel.basic_cancel(first)
    assert exists(broker, "q")
    second_connection.close()
    wait_until(lambda: not exists(broker, "q"))


def test_an_unused_queue_expires_and_use_postpones_it(broker: Broker) -> None:
    channel = broker.pika().channel()
    arguments = {"x-expires": 1000}
    for name in ("idle", "used", "consumed", "kept"):
        channel.queue_declare(name, durable=name == "kept", arguments=arguments)
    channel.basic_consume("consumed", lambda *_: None)
    while exists(broker, "idle") or exists(broker, "kept"):
        channel.basic_get("used")
        channel.connection.sleep(0.05)
    assert exists(broker, "used")
    assert exists(broker, "consumed")
    channel.cancel()
    channel.close()
    wait_until(lambda: not exists(broker, "used") and not exists(broker, "consumed"))


@pytest.mark.parametrize("durable", [True, False])
def test_deleting_returns_the_number_of_messages_and_respects_its_conditions(broker: Broker, durable: bool) -> None:
    channel = broker.pika().channel()
    channel.queue_declare("q", durable=durable)
    channel.confirm_delivery()
    for _ in range(3):
        channel.basic_publish("", "q", b"x")
    again = broker.pika()
    assert code_of(lambda: again.channel().queue_delete("q", if_empty=True)) == 406
    tag = channel.basic_consume("q", lambda *_: None)
    assert code_of(lambda: again.channel().queue_delete("q", if_unused=True)) == 406
    channel.basic_cancel(tag)
    channel.basic_recover(requeue=True)
    assert channel.queue_delete("q").method.message_count == 3
    assert channel.queue_delete("q").method.message_count == 0
    assert channel.queue_declare("q", durable=durable).method.message_count == 0
    assert channel.basic_get("q")[0] is None


@pytest.mark.parametrize("durable", [True, False])
def test_purging_drops_waiting_messages_and_keeps_unacknowledged_ones(channel: Any, durable: bool) -> None:
    channel.queue_declare("q", durable=durable)
    channel.confirm_delivery()
    for number in range(4):
        channel.basic_publish("", "q", b"%d" % number)
    channel.basic_get("q")
    assert channel.queue_purge("q").method.message_count == 3
    assert channel.queue_declare("q", passive=True).method.message_count == 0
    channel.basic_recover(requeue=True)
    method, _, body = channel.basic_get("q")
    assert (body, method.redelivered) == (b"0", True)


def test_consumers_of_a_deleted_queue_are_notified_if_requested(broker: Broker) -> None:
    cancelled: list[str] = []
    connection = broker.pika()
    channel = connection.channel()
    channel.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
    channel.queue_declare("q", durable=True)
    channel.basic_consume("q", lambda *_: None, consumer_tag="tag")
    quiet = broker.raw().open()
    quiet.send(1, commands.Basic.Consume(queue="q", consumer_tag="quiet"))
    quiet.expect(commands.Basic.ConsumeOk)
    broker.pika().channel().queue_delete("q")
    wait_until(lambda: connection.process_data_events(0.05) or bool(cancelled))
    assert cancelled == ["tag"]
    quiet.declare("other")


@pytest.mark.parametrize("durable", [True, False])
def test_acknowledging_messages_of_a_deleted_queue_is_harmless(channel: Any, durable: bool) -> None:
    channel.queue_declare("q", durable=durable)
    channel.confirm_delivery()
    for _ in range(3):
        channel.basic_publish("", "q", b"x")
    tags = [channel.basic_get("q")[0].delivery_tag for _ in range(3)]
    channel.queue_delete("q")
    channel.basic_ack(tags[0])
    channel.basic_nack(tags[1], requeue=True)
    channel.basic_nack(tags[2], requeue=False)
    assert channel.queue_declare("q", durable=durable).method.message_count == 0


def test_nowait_methods_have_no_answer(broker: Broker) -> None:
    client = broker.raw().open()
    client.send(
        1,
        commands.Exchange.Declare(exchange="e", nowait=True),
        commands.Queue.Declare(queue="q", durable=True, nowait=True),
        commands.Queue.Bind(queue="q", exchange="e", routing_key="k", nowait=True),
        commands.Confirm.Select(nowait=True),
        commands.Basic.Consume(queue="q", consumer_tag="t", nowait=True),
        commands.Basic.Cancel(consumer_tag="t", nowait=True),
        commands.Queue.Purge(queue="q", nowait=True),
        commands.Queue.Delete(queue="q", nowait=True),
        commands.Exchange.Delete(exchange="e", nowait=True),
        commands.Queue.Declare(queue="last"),
    )
    assert client.expect(commands.Queue.DeclareOk).queue == "last"


def test_messages_that_the_library_published_are_delivered_without_properties(broker: Broker) -> None:
    channel = broker.pika().channel()
    channel.queue_declare("q", durable=True)
    broker.store.publish(broker.store.queue("q"), b"plain")
    broker.store.publish(broker.store.queue("q"), b"odd", header=b"\x07nonsense")
    for body in (b"plain", b"odd"):
        method, properties, received = channel.basic_get("q")
        assert (method.exchange, method.routing_key, received) == ("", "q", body)
        assert properties.headers is None
