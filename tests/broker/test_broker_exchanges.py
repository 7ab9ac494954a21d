"""Exchanges and bindings: declaring, routing, deleting, and what is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pika
import pytest
from pamqp import commands

if TYPE_CHECKING:
    from collections.abc import Callable

    from kit.live_broker import Broker

pytestmark = pytest.mark.every_way


def received(channel: Any, queue: str) -> list[bytes]:
    bodies = []
    while True:
        method, _, body = channel.basic_get(queue, auto_ack=True)
        if method is None:
            return bodies
        bodies.append(body)


@pytest.mark.parametrize("durable", [True, False])
def test_direct_fanout_and_topic_exchanges_route_by_their_rules(channel: Any, durable: bool) -> None:
    keys = ["red", "red.big", "green.big", ""]
    bindings = {
        "direct": ["red", "green.big"],
        "fanout": ["whatever"],
        "topic": ["*.big", "red.#"],
    }
    expected = {
        "direct": ["red", "green.big"],
        "fanout": keys,
        "topic": ["red", "red.big", "green.big"],
    }
    for kind, patterns in bindings.items():
        channel.exchange_declare(kind, kind, durable=durable)
        channel.queue_declare(f"q-{kind}", durable=durable)
        for pattern in patterns:
            channel.queue_bind(f"q-{kind}", kind, pattern)
        for key in keys:
            channel.basic_publish(kind, key, key.encode())
        assert received(channel, f"q-{kind}") == [key.encode() for key in expected[kind]]


def test_the_predeclared_exchanges_are_there_and_may_be_declared_as_they_are(channel: Any) -> None:
    for kind in ("direct", "fanout", "topic"):
        channel.exchange_declare(f"amq.{kind}", kind, durable=True)
        channel.exchange_declare(f"amq.{kind}", passive=True)
        channel.queue_declare(f"q-{kind}")
        channel.queue_bind(f"q-{kind}", f"amq.{kind}", "k")
        channel.basic_publish(f"amq.{kind}", "k", b"x")
        assert received(channel, f"q-{kind}") == [b"x"]


def test_a_binding_takes_effect_at_once_and_stops_at_once(channel: Any) -> None:
    channel.queue_declare("q")
    channel.exchange_declare("e", "topic")
    channel.basic_publish("e", "a.b", b"before")
    channel.queue_bind("q", "e", "a.*")
    channel.queue_bind("q", "e", "a.*")
    channel.basic_publish("e", "a.b", b"bound")
    channel.queue_unbind("q", "e", "a.*")
    channel.queue_unbind("q", "e", "a.*")
    channel.basic_publish("e", "a.b", b"after")
    assert received(channel, "q") == [b"bound"]


def test_the_same_pair_may_be_bound_twice_with_different_arguments(channel: Any) -> None:
    channel.queue_declare("q", durable=True)
    channel.exchange_declare("e", "direct", durable=True)
    channel.queue_bind("q", "e", "k", {"n": 1})
    channel.queue_bind("q", "e", "k", {"n": 2})
    channel.queue_unbind("q", "e", "k", {"n": 1})
    channel.basic_publish("e", "k", b"once")
    assert received(channel, "q") == [b"once"]
    channel.queue_unbind("q", "e", "k", {"n": 2})
    channel.basic_publish("e", "k", b"gone")
    assert received(channel, "q") == []


def test_the_default_exchange_reaches_every_queue_by_name_and_can_be_neither_bound_nor_changed(
    broker: Broker,
) -> None:
    for method in (
        commands.Queue.Bind(queue="q", exchange="", routing_key="x"),
        commands.Queue.Unbind(queue="q", exchange="", routing_key="x"),
        commands.Exchange.Declare(exchange="", exchange_type="direct"),
        commands.Exchange.Delete(exchange=""),
        commands.Exchange.Delete(exchange="amq.topic"),
        commands.Exchange.Declare(exchange="amq.mine", exchange_type="direct"),
    ):
        client = broker.raw().open()
        client.declare("q")
        client.send(1, method)
        client.expect_channel_close(403)


def test_names_outside_the_specifications_alphabet_work(channel: Any) -> None:
    channel.exchange_declare("Größe {a}", "topic")
    channel.queue_declare("очередь?")
    channel.queue_bind("очередь?", "Größe {a}", "ключ.*")
    channel.basic_publish("Größe {a}", "ключ.один", b"x")
    method, _, body = channel.basic_get("очередь?", auto_ack=True)
    assert (method.exchange, method.routing_key, body) == ("Größe {a}", "ключ.один", b"x")


@pytest.mark.parametrize(
    ("changes", "arg"),
    [
        ({"exchange_type": "fanout"}, "type"),
        ({"durable": False}, "durable"),
        ({"auto_delete": True}, "auto_delete"),
        ({"internal": True}, "internal"),
    ],
)
def test_a_declaration_that_differs_is_406_and_names_the_difference(
    broker: Broker, changes: dict[str, Any], arg: str
) -> None:
    client = broker.raw().open()
    same = {"exchange": "e", "exchange_type": "direct", "durable": True}
    for _ in range(2):
        client.send(1, commands.Exchange.Declare(**same))
        client.expect(commands.Exchange.DeclareOk)
    client.send(1, commands.Exchange.Declare(**{**same, **changes}))
    assert f"inequivalent arg '{arg}' for exchange 'e'" in client.expect_channel_close(406)


@pytest.mark.parametrize(
    ("method", "code"),
    [
        (commands.Exchange.Declare(exchange="e", exchange_type="headers"), 540),
        (commands.Exchange.Declare(exchange="e", arguments={"alternate-exchange": "x"}), 406),
        (commands.Exchange.Declare(exchange="e", passive=True), 404),
        (commands.Exchange.Bind(destination="amq.topic", source="amq.fanout"), 540),
        (commands.Exchange.Unbind(destination="amq.topic", source="amq.fanout"), 540),
        (commands.Queue.Bind(queue="q", exchange="missing", routing_key="k"), 404),
        (commands.Queue.Bind(queue="missing", exchange="amq.topic", routing_key="k"), 404),
        (commands.Queue.Bind(queue="", exchange="amq.topic", routing_key="k"), 404),
        (commands.Queue.Bind(queue="q", exchange="amq.topic", arguments={"x": bytearray(b"b")}), 406),
    ],
)
def test_refused_operations_on_exchanges_close_the_channel_with_their_code(
    broker: Broker, method: Any, code: int
) -> None:
    client = broker.raw().open(channels=2)
    client.send(2, commands.Queue.Declare(queue="q"))
    client.expect(commands.Queue.DeclareOk)
    client.send(1, method)
    client.expect_channel_close(code)


def test_an_unknown_exchange_type_is_503(broker: Broker) -> None:
    client = broker.raw().open()
    client.send(1, commands.Exchange.Declare(exchange="e", exchange_type="x-strange"))
    client.expect_connection_close(503)


def test_publishing_to_a_missing_or_internal_exchange_closes_the_channel(broker: Broker) -> None:
    client = broker.raw().open(channels=2)
    client.publish("k", b"x", exchange="missing")
    assert "no exchange 'missing' in vhost '/'" in client.expect_channel_close(404)
    client.send(2, commands.Exchange.Declare(exchange="inside", internal=True))
    client.expect(commands.Exchange.DeclareOk)
    client.publish("k", b"x", exchange="inside", channel=2)
    client.expect_channel_close(403)


def test_an_exchange_in_use_is_kept_if_unused_was_asked_and_deleting_twice_is_harmless(channel: Any) -> None:
    channel.exchange_declare("e", "direct", durable=True)
    channel.queue_declare("q", durable=True)
    channel.queue_bind("q", "e", "k")
    other = channel.connection.channel()
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        other.exchange_delete("e", if_unused=True)
    assert caught.value.reply_code == 406
    channel.exchange_delete("e")
    channel.exchange_delete("e")
    with pytest.raises(pika.exceptions.ChannelClosedByBroker):
        channel.exchange_declare("e", passive=True)


def test_an_auto_delete_exchange_goes_with_its_last_binding(channel: Any) -> None:
    channel.exchange_declare("e", "direct", auto_delete=True)
    channel.queue_declare("q1")
    channel.queue_declare("q2")
    channel.queue_bind("q1", "e", "k")
    channel.queue_bind("q2", "e", "k")
    channel.queue_unbind("q1", "e", "k")
    channel.exchange_declare("e", passive=True)
    channel.queue_delete("q2")
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        channel.exchange_declare("e", passive=True)
    assert caught.value.reply_code == 404


def test_durable_exchanges_queues_and_bindings_are_there_after_a_restart_and_others_are_not(
    restart_broker: Callable[[], Broker],
) -> None:
    channel = restart_broker().pika().channel()
    channel.exchange_declare("keep", "topic", durable=True, internal=False)
    channel.exchange_declare("keep-auto", "fanout", durable=True, auto_delete=True)
    channel.exchange_declare("lose", "topic")
    channel.queue_declare("keep", durable=True, arguments={"x-message-ttl": 100_000})
    channel.queue_declare("lose")
    channel.queue_declare("lose-exclusive", durable=True, exclusive=True)
    channel.queue_bind("keep", "keep", "a.#", {"note": ["x", 1]})
    channel.queue_bind("keep", "amq.topic", "b.*")
    channel.queue_bind("keep", "lose", "a.#")
    channel.queue_bind("keep", "keep", "unbound")
    channel.queue_unbind("keep", "keep", "unbound")
    channel.confirm_delivery()
    channel.basic_publish("keep", "a.1", b"early")

    channel = restart_broker().pika().channel()
    channel.exchange_declare("keep", "topic", durable=True)
    channel.exchange_declare("keep-auto", "fanout", durable=True, auto_delete=True)
    channel.queue_declare("keep", durable=True, arguments={"x-message-ttl": 100_000})
    channel.basic_publish("keep", "a.2", b"late")
    channel.basic_publish("amq.topic", "b.3", b"other")
    channel.basic_publish("keep", "unbound", b"lost")
    assert received(channel, "keep") == [b"early", b"late", b"other"]
    for missing in ("lose", "lose-exclusive"):
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
            channel.connection.channel().queue_declare(missing, passive=True)
        assert caught.value.reply_code == 404
    with pytest.raises(pika.exceptions.ChannelClosedByBroker):
        channel.exchange_declare("lose", passive=True)
