"""Many frames at a time: calls collected for the store have the same effect as each frame served alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pamqp import body, commands, frame, header

from kit.live_broker import Broker
from kit.patience import wait_until
from kit.store_proxies import HeldDisk, PickyStore
from logstore.broker import batches

if TYPE_CHECKING:
    from collections.abc import Callable


def publish(key: str, content: bytes, *, channel: int = 1, exchange: str = "", **properties: Any) -> bytes:
    """All frames of a publish."""
    parts: list[Any] = [
        commands.Basic.Publish(exchange=exchange, routing_key=key),
        header.ContentHeader(0, len(content), commands.Basic.Properties(**properties)),
    ]
    parts += [body.ContentBody(content)] if content else []
    return b"".join(frame.marshal(part, channel) for part in parts)


def ack(tag: int, *, channel: int = 1, multiple: bool = False) -> bytes:
    return frame.marshal(commands.Basic.Ack(tag, multiple=multiple), channel)


def confirming(broker: Broker, channels: int = 1) -> Any:
    client = broker.raw().open(channels=channels)
    for number in range(1, channels + 1):
        client.send(number, commands.Confirm.Select())
        client.expect(commands.Confirm.SelectOk)
    return client


def outcomes(client: Any, count: int, channel: int = 1) -> dict[int, bool]:
    """The results of the first `count` publishes of a channel: True for an ack, False for a nack; each once."""
    told: dict[int, bool] = {}
    while len(told) < count:
        number, value = client.receive()
        assert number == channel
        assert isinstance(value, commands.Basic.Ack | commands.Basic.Nack)
        first = max(told, default=0) + 1 if value.multiple else value.delivery_tag
        for tag in range(first, value.delivery_tag + 1):
            assert tag not in told, "told twice"
            told[tag] = isinstance(value, commands.Basic.Ack)
    return told


def stored(broker: Broker, queue: str) -> list[bytes]:
    return [message.content for message in broker.store.messages(queue)]


# ---- publishing ----


def test_publishes_that_come_together_are_stored_in_order_and_confirmed_once_each(broker: Broker) -> None:
    client = confirming(broker)
    client.declare("q", durable=True)
    client.declare("r", durable=True)
    contents = [b"%d" % number for number in range(1500)]  # more than one collection
    client.send_bytes(b"".join(publish("r" if number % 100 == 99 else "q", contents[number]) for number in range(1500)))
    assert outcomes(client, 1500) == dict.fromkeys(range(1, 1501), True)
    assert stored(broker, "q") == [each for at, each in enumerate(contents) if at % 100 != 99]
    assert stored(broker, "r") == contents[99::100]
    assert len(contents) > 2 * batches.MESSAGES_MAX


def test_consecutive_publishes_reach_the_store_in_one_call(
    on_store: Callable[..., tuple[Broker, Any]],
) -> None:
    class Counting(PickyStore):
        calls: list[int] = []  # noqa: RUF012 - of this test alone

        def publish_many(self, queue: Any, contents: Any, **options: Any) -> Any:
            self.calls.append(len(contents))
            return super().publish_many(queue, contents, **options)

    broker, store = on_store(Counting)
    client = confirming(broker)
    client.declare("q", durable=True)
    client.send_bytes(publish("q", b"first"))  # shows what the next ones look like
    outcomes(client, 1)
    client.send_bytes(b"".join(publish("q", b"%02d" % number) for number in range(60)))
    wait_until(lambda: len(stored(broker, "q")) == 61)
    assert max(store.calls) >= 30


def test_a_store_that_fills_up_in_the_middle_refuses_those_and_only_those_that_it_does_not_take(
    on_store: Callable[..., tuple[Broker, Any]],
) -> None:
    """Outcome: a nack for each message that is not there, a confirm for each that is, in the order of their tags."""
    broker, _ = on_store(PickyStore, blocked_timeout_s=0.05)
    client = confirming(broker)
    client.declare("q", durable=True)
    contents = [b"unwanted %d" % at if at in (3, 4, 17, 29) else b"message  %d" % at for at in range(30)]
    client.send_bytes(b"".join(publish("q", content) for content in contents))
    assert outcomes(client, 30) == {at + 1: b"unwanted" not in content for at, content in enumerate(contents)}
    assert stored(broker, "q") == [content for content in contents if b"unwanted" not in content]


def test_without_confirms_a_refused_publish_closes_its_channel_and_no_other(
    on_store: Callable[..., tuple[Broker, Any]],
) -> None:
    broker, _ = on_store(PickyStore, blocked_timeout_s=0.05)
    client = broker.raw().open(channels=2)
    client.declare("q", durable=True)
    warm = publish("q", b"a") + publish("q", b"b", channel=2)
    client.send_bytes(
        warm
        + publish("q", b"c")
        + publish("q", b"d", channel=2)
        + publish("q", b"unwanted")
        + publish("q", b"after it")
        + publish("q", b"e", channel=2)
    )
    assert client.expect_channel_close(506)
    wait_until(lambda: len(stored(broker, "q")) >= 5)
    assert stored(broker, "q") == [b"a", b"b", b"c", b"d", b"e"]


def test_two_channels_in_turn_get_their_own_confirms(broker: Broker) -> None:
    client = confirming(broker, channels=2)
    client.declare("q", durable=True)
    order = [1, 1, 2, 1, 2, 2, 2, 1] * 20
    client.send_bytes(b"".join(publish("q", b"%d" % at, channel=channel) for at, channel in enumerate(order)))
    told = {1: 0, 2: 0}
    while told != {1: order.count(1), 2: order.count(2)}:
        channel, value = client.receive()
        assert isinstance(value, commands.Basic.Ack)
        assert value.multiple or value.delivery_tag == told[channel] + 1
        assert value.delivery_tag > told[channel], "told twice"
        told[channel] = value.delivery_tag
    assert stored(broker, "q") == [b"%d" % at for at in range(len(order))]


def test_publishes_before_a_bad_frame_are_stored_and_confirmed_before_the_close(broker: Broker) -> None:
    client = confirming(broker)
    client.declare("q", durable=True)
    good = b"".join(publish("q", b"%d" % number) for number in range(20))
    client.send_bytes(good + frame.marshal(commands.Queue.Declare(queue="none", passive=True), 1))
    assert outcomes(client, 20) == dict.fromkeys(range(1, 21), True)
    client.expect_channel_close(404)
    assert stored(broker, "q") == [b"%d" % number for number in range(20)]


def test_publishes_before_a_broken_connection_are_stored(broker: Broker) -> None:
    client = confirming(broker)
    client.declare("q", durable=True)
    client.send_bytes(b"".join(publish("q", b"%d" % number) for number in range(20)) + b"\x09 is no frame")
    wait_until(lambda: len(stored(broker, "q")) == 20)


def test_a_purge_after_publishes_drops_them(broker: Broker) -> None:
    client = broker.raw().open()
    client.declare("q", durable=True)
    ten = b"".join(publish("q", b"%d" % number) for number in range(10))
    client.send_bytes(ten + frame.marshal(commands.Queue.Purge(queue="q"), 1) + publish("q", b"later"))
    assert client.expect(commands.Queue.PurgeOk).message_count == 10
    wait_until(lambda: stored(broker, "q") == [b"later"])


def test_messages_with_properties_that_the_broker_acts_on_keep_their_place(broker: Broker) -> None:
    """Outcome: one that expires, one of a named user, one with other properties: all in order, and confirmed."""
    client = confirming(broker)
    client.declare("q", durable=True)
    options: list[dict[str, Any]] = [{}, {"expiration": "600000"}, {"user_id": "guest"}, {"message_id": "m"}, {}]
    client.send_bytes(b"".join(publish("q", b"%d" % at, **options[at % 5]) for at in range(50)))
    assert outcomes(client, 50) == dict.fromkeys(range(1, 51), True)
    consumer = broker.raw().open()
    consumer.send(1, commands.Basic.Consume(queue="q"))
    consumer.expect(commands.Basic.ConsumeOk)
    for at in range(50):
        consumer.expect(commands.Basic.Deliver)
        head, content = consumer.content()
        assert content == b"%d" % at
        wanted = options[at % 5]
        assert {name: getattr(head.properties, name) for name in ("expiration", "user_id", "message_id")} == {
            name: wanted.get(name) for name in ("expiration", "user_id", "message_id")
        }


# ---- acknowledging ----


def consumer_of(broker: Broker, queue: str, count: int, **options: Any) -> Any:
    client = broker.raw().open()
    client.send(1, commands.Basic.Consume(queue=queue, **options))
    client.expect(commands.Basic.ConsumeOk)
    for _ in range(count):
        client.delivery()
    return client


def test_acknowledgements_that_come_together_are_one_call_of_the_store(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = broker.store.declare_queue("other way round")
    broker.store.publish_many(queue, [b"%d" % number for number in range(100)])
    calls: list[int] = []
    accept_many = type(queue).accept_many

    def counting(self: Any, deliveries: Any, **options: Any) -> None:
        calls.append(len(deliveries))
        accept_many(self, deliveries, **options)

    monkeypatch.setattr(type(queue), "accept_many", counting)
    setup = broker.raw().open()
    setup.declare("q", durable=True)
    setup.send_bytes(b"".join(publish("q", b"%d" % number) for number in range(100)))
    client = consumer_of(broker, "q", 100)
    client.send_bytes(b"".join(ack(tag) for tag in range(1, 101)))
    client.declare("q", passive=True)  # whose answer waits for them
    assert broker.store.queue("q").depth == 0
    assert max(calls) >= 50


def test_an_unknown_tag_closes_the_channel_and_earlier_acknowledgements_take_effect(broker: Broker) -> None:
    setup = broker.raw().open()
    setup.declare("q", durable=True)
    setup.send_bytes(b"".join(publish("q", b"%d" % number) for number in range(6)))
    client = consumer_of(broker, "q", 6)
    client.send_bytes(ack(1) + ack(3) + ack(3) + ack(5))
    client.expect_channel_close(406)
    assert [setup_get(setup) for _ in range(5)] == [b"1", b"3", b"4", b"5", None]


def setup_get(client: Any) -> bytes | None:
    client.send(1, commands.Basic.Get(queue="q", no_ack=True))
    _, value = client.receive()
    return client.content()[1] if isinstance(value, commands.Basic.GetOk) else None  # type: ignore[no-any-return] # untyped client


def test_a_message_removed_by_a_tool_does_not_prevent_acknowledging_the_others(broker: Broker) -> None:
    setup = broker.raw().open()
    setup.declare("q", durable=True)
    setup.send_bytes(b"".join(publish("q", b"%d" % number) for number in range(10)))
    client = consumer_of(broker, "q", 10)
    gone = [message.id for message in broker.store.messages("q")][4]
    broker.store.dequeue(gone, "q")
    client.send_bytes(b"".join(ack(tag) for tag in range(1, 11)))
    assert client.declare("q", passive=True).message_count == 0
    assert broker.store.queue("q").depth == 0


def test_a_confirm_implies_that_earlier_acknowledgements_are_durable(
    on_store: Callable[..., tuple[Broker, Any]],
) -> None:
    """Outcome: after a client acknowledges, publishes and gets the confirm, the acknowledged message never returns."""
    broker, store = on_store(HeldDisk)
    client = confirming(broker)
    client.declare("q", durable=True)
    client.declare("r", durable=True)
    client.publish("r", b"how it looks")
    client.publish("q", b"work")
    outcomes(client, 2)
    client.send(1, commands.Basic.Consume(queue="q"))
    client.expect(commands.Basic.ConsumeOk)
    client.delivery()
    store.hold()
    client.send_bytes(ack(1) + publish("r", b"result"))
    wait_until(lambda: len(stored(broker, "r")) == 2 and broker.store.queue("q").depth == 0)
    after_both = store.next_lsn
    store.let_go()
    assert client.expect(commands.Basic.Ack).delivery_tag == 3
    assert store.durable_lsn >= after_both


def test_deliveries_without_acknowledgement_leave_the_store_many_at_a_time(broker: Broker) -> None:
    setup = broker.raw().open()
    setup.declare("q", durable=True)
    setup.send_bytes(b"".join(publish("q", b"%d" % number) for number in range(200)))
    client = broker.raw().open()
    client.send(1, commands.Basic.Consume(queue="q", no_ack=True))
    client.expect(commands.Basic.ConsumeOk)
    assert [client.delivery()[1] for _ in range(200)] == [b"%d" % number for number in range(200)]
    wait_until(lambda: broker.store.queue("q").depth == 0)


def test_bodies_of_delivered_messages_are_not_kept_in_memory(broker: Broker) -> None:
    """Outcome: an unacknowledged message needs only its entry; its body is read again for another delivery."""
    setup = broker.raw().open()
    setup.declare("q", durable=True)
    setup.send_bytes(b"".join(publish("q", b"%d" % number * 50) for number in range(20)))
    consumer_of(broker, "q", 20)

    def loaded() -> list[Any]:
        (channel,) = [
            channel
            for connection in broker.server.connections
            for channel in connection.channels.values()
            if channel.consuming.consumers
        ]
        return [each.place._loaded for each in channel.consuming._unacked.values()]

    assert broker.call(loaded) == [None] * 20


def test_large_bodies_are_delivered_for_the_first_time_however_full_the_socket_is(broker: Broker) -> None:
    """Outcome: no message is taken, returned for lack of room, and then marked as redelivered."""
    setup = confirming(broker)
    setup.declare("q", durable=True)
    bodies = [b"%03d" % number * 6000 for number in range(200)]
    for body_ in bodies:
        setup.publish("q", body_)
    outcomes(setup, 200)
    client = broker.raw(receive_buffer=4096).open()
    client.send(1, commands.Basic.Consume(queue="q"))
    client.expect(commands.Basic.ConsumeOk)
    for body_ in bodies:
        deliver, content = client.delivery()
        assert not deliver.redelivered
        assert content == body_


# ---- any mixture ----

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.sampled_from(["q", "r", "m", "nowhere"]), st.integers(0, 3)),
        st.tuples(st.just("fan out"), st.just("both"), st.integers(0, 2)),
        st.tuples(st.just("property"), st.sampled_from(["q", "r"]), st.integers(0, 2)),
        st.tuples(st.just("ack"), st.just(""), st.integers(0, 3)),
        st.tuples(st.just("ack all"), st.just(""), st.integers(0, 3)),
    ),
    max_size=40,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS, cuts=st.lists(st.integers(1, 4000), max_size=4), together=st.booleans())
def test_batches_of_frames_have_the_same_outcome_as_single_frames(
    broker: Broker, steps: list[tuple[str, str, int]], cuts: list[int], together: bool
) -> None:
    """Outcome: queues have the published messages in order, without acknowledged ones; each publish has one confirm."""
    client = confirming(broker)
    for queue in ("q", "r", "m"):
        client.declare(queue, durable=queue != "m")
        client.send(1, commands.Queue.Purge(queue=queue))
        client.expect(commands.Queue.PurgeOk)
    for queue in ("q", "r"):
        client.send(1, commands.Queue.Bind(queue=queue, exchange="amq.fanout"))
        client.expect(commands.Queue.BindOk)
    client.declare("work", durable=True)
    client.send_bytes(b"".join(publish("work", b"w%d" % number) for number in range(10)))
    outcomes(client, 10)
    consumer = broker.raw().open()  # on a connection of its own, so that its deliveries do not mix with confirms
    consumer.send(1, commands.Basic.Consume(queue="work"))
    consumer.expect(commands.Basic.ConsumeOk)
    for _ in range(10):
        consumer.delivery()

    wanted: dict[str, list[bytes]] = {"q": [], "r": [], "m": []}
    unacked = list(range(1, 11))
    data, acks, count = b"", b"", 0
    for number, (what, key, size) in enumerate(steps):
        content = b"%d " % number * size * 40
        if what == "publish":
            data += publish(key, content)
            wanted.get(key, []).append(content)
            count += 1
        elif what == "property":
            data += publish(key, content, message_id=str(number))
            wanted[key].append(content)
            count += 1
        elif what == "fan out":
            data += publish("", content, exchange="amq.fanout")
            wanted["q"].append(content)
            wanted["r"].append(content)
            count += 1
        elif unacked:
            tag = unacked[size % len(unacked)]
            acks += ack(tag, multiple=what == "ack all")
            unacked = [each for each in unacked if each != tag and (what == "ack" or each > tag)]
    ends = sorted({at for at in cuts if at < len(data)}) if not together else []
    for start, end in zip([0, *ends], [*ends, len(data)], strict=True):
        client.send_bytes(data[start:end])
    consumer.send_bytes(acks)
    told = {tag - 10: outcome for tag, outcome in outcomes_after(client, 10, count).items()}
    assert told == dict.fromkeys(range(1, count + 1), True)
    for queue in ("q", "r"):
        assert stored(broker, queue) == wanted[queue]
    assert client.declare("m").message_count == len(wanted["m"])
    consumer.declare("work", passive=True)
    assert broker.store.queue("work").depth == len(unacked)
    client.send(1, commands.Queue.Delete(queue="work"))
    client.expect(commands.Queue.DeleteOk)
    client.socket.close()
    consumer.socket.close()


def outcomes_after(client: Any, before: int, count: int) -> dict[int, bool]:
    """As `outcomes`, of the `count` publishes behind the first ones."""
    told: dict[int, bool] = {}
    while len(told) < count:
        _, value = client.receive()
        assert isinstance(value, commands.Basic.Ack | commands.Basic.Nack)
        first = max(told, default=before) + 1 if value.multiple else value.delivery_tag
        for tag in range(first, value.delivery_tag + 1):
            assert tag not in told, "told twice"
            told[tag] = isinstance(value, commands.Basic.Ack)
    return told
