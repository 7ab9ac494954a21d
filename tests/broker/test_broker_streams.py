"""Large bodies on their way to clients: in pieces, as the client reads, and each of them whole or not at all."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from pamqp import body, commands, header

from kit.patience import wait_until
from logstore.broker.streams import PIECE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from kit.amqp_client import RawClient
    from kit.live_broker import Broker

LARGE = 10 << 20
SMALL_BUFFER = 1 << 16


def content(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


@pytest.fixture
def client(broker: Broker) -> RawClient:
    made = broker.raw(receive_buffer=SMALL_BUFFER).open(channels=2)
    made.declare("q", durable=True)
    return made


def publish(broker: Broker, *bodies: bytes) -> None:
    for each in bodies:
        broker.store.publish("q", each, header=b"")


def consume(client: RawClient, *, no_ack: bool = False, channel: int = 1) -> None:
    client.send(channel, commands.Basic.Consume(queue="q", consumer_tag="c", no_ack=no_ack))
    client.expect(commands.Basic.ConsumeOk)


def held_bytes(broker: Broker) -> int:
    """What all connections hold for their clients."""
    return broker.call(
        lambda: sum(
            each.outbox.size_bytes + each.transport.get_write_buffer_size() for each in broker.server.connections
        )
    )


def count_of(broker: Broker) -> int:
    return int(broker.store.queue("q").depth)


@pytest.mark.parametrize("how", ["consume", "consume, no_ack", "get", "get, no_ack"])
def test_a_large_body_arrives_whole_between_small_ones(broker: Broker, client: RawClient, how: str) -> None:
    bodies = [
        b"first",
        content(LARGE),
        b"second",
        content(3 * PIECE_BYTES + 5 << 2, 2),
        content(LARGE // 2, 3),
        b"last",
    ]
    publish(broker, *bodies)
    no_ack = how.endswith("no_ack")
    if how.startswith("consume"):
        consume(client, no_ack=no_ack)
    for number, expected in enumerate(bodies, 1):
        if how.startswith("get"):
            client.send(1, commands.Basic.Get(queue="q", no_ack=no_ack))
            method: Any = client.expect(commands.Basic.GetOk)
        else:
            method = client.expect(commands.Basic.Deliver)
        assert method.delivery_tag == number
        assert client.content()[1] == expected
    if not no_ack:
        client.send(1, commands.Basic.Ack(delivery_tag=len(bodies), multiple=True))
    wait_until(lambda: count_of(broker) == 0, "each of them is settled")


def test_clients_that_do_not_read_hold_a_piece_each_and_not_a_body(broker: Broker) -> None:
    clients = [broker.raw(receive_buffer=SMALL_BUFFER).open() for _ in range(4)]
    clients[0].declare("q", durable=True)
    publish(broker, *[content(LARGE, seed) for seed in range(len(clients))])
    for each in clients:
        each.send(1, commands.Basic.Qos(prefetch_count=1))
        each.expect(commands.Basic.QosOk)
        consume(each)
    most = len(clients) * (broker.server.limits.unsent_bytes_high + 2 * PIECE_BYTES)
    wait_until(lambda: broker.call(lambda: all(each.outbox.socket_is_full for each in broker.server.connections)))
    assert held_bytes(broker) <= most
    got = set()
    for each in clients:
        got.add(each.delivery()[1])
        assert held_bytes(broker) <= most
    assert got == {content(LARGE, seed) for seed in range(len(clients))}


def test_other_channels_go_on_while_a_body_is_sent_and_its_own_waits(broker: Broker, client: RawClient) -> None:
    large = content(LARGE)
    publish(broker, large)
    consume(client)
    client.expect(commands.Basic.Deliver)
    client.expect(header.ContentHeader)
    client.send(1, commands.Queue.Declare(queue="q", durable=True))
    client.send(2, commands.Queue.Declare(queue="q", durable=True))
    pieces, order = b"", []
    while len(order) < 2:
        number, value = client.receive()
        if isinstance(value, body.ContentBody):
            pieces += value.value
        else:
            assert isinstance(value, commands.Queue.DeclareOk)
            order.append((number, len(pieces) == LARGE))
    assert order == [(2, False), (1, True)]
    assert pieces == large


@pytest.mark.parametrize("no_ack", [True, False])
def test_a_channel_that_closes_during_a_body_gets_the_rest_before_its_answer(
    broker: Broker, client: RawClient, no_ack: bool
) -> None:
    large = content(LARGE)
    publish(broker, large)
    consume(client, no_ack=no_ack)
    client.expect(commands.Basic.Deliver)
    client.send(1, commands.Channel.Close(200, "", 0, 0))
    assert client.content()[1] == large
    client.expect(commands.Channel.CloseOk)
    client.send(2, commands.Basic.Get(queue="q"))
    again = client.expect(commands.Basic.GetOk)
    assert again.redelivered
    assert client.content()[1] == large


def test_a_client_that_goes_away_during_a_body_without_acknowledgement_has_not_taken_it(
    broker: Broker, client: RawClient
) -> None:
    large = content(LARGE)
    publish(broker, large)
    consume(client, no_ack=True)
    client.expect(commands.Basic.Deliver)
    client.send(1, commands.Queue.Declare(queue="q", durable=True))  # its answer waits for the end of the body
    wait_until(lambda: broker.call(lambda: any(each.replies.count > 1 for each in broker.server.connections)))
    client.socket.close()
    broker.wait_for_connections(0)
    publish(broker, b"another")  # a commit, after which nothing waits for one
    wait_until(lambda: broker.call(lambda: not broker.server.hosts["/"].wakeups._waiters), "nothing is left of it")
    other = broker.raw().open()
    consume(other, no_ack=True)
    deliver, got = other.delivery()
    assert (deliver.redelivered, got) == (True, large)


@pytest.mark.parametrize("what", ["deleted", "purged"])
def test_a_body_that_is_gone_ends_the_connection_and_one_that_is_acquired_outlives_a_purge(
    broker: Broker, client: RawClient, what: str
) -> None:
    large = content(LARGE)
    publish(broker, large)
    consume(client)
    client.expect(commands.Basic.Deliver)
    other = broker.raw().open()
    if what == "purged":
        other.send(1, commands.Queue.Purge(queue="q"))
        other.expect(commands.Queue.PurgeOk)
        assert client.content()[1] == large
        return
    other.send(1, commands.Queue.Delete(queue="q"))
    other.expect(commands.Queue.DeleteOk)
    with pytest.raises((ConnectionError, AssertionError)):
        client.content()
    assert other.declare("q", durable=True).message_count == 0


def test_a_consumer_gets_what_comes_behind_a_large_body_after_it_has_acknowledged(
    broker: Broker, client: RawClient
) -> None:
    bodies = [content(LARGE // 4, seed) for seed in range(4)]
    publish(broker, *bodies)
    client.send(1, commands.Basic.Qos(prefetch_count=1))
    client.expect(commands.Basic.QosOk)
    consume(client)
    for number, expected in enumerate(bodies, 1):
        deliver, got = client.delivery()
        assert (deliver.delivery_tag, deliver.redelivered, got == expected) == (number, False, True)
        client.send(1, commands.Basic.Ack(delivery_tag=number))


def test_confirms_wait_for_the_end_of_a_body_on_their_channel(broker: Broker, client: RawClient) -> None:
    large = content(LARGE)
    publish(broker, large)
    client.declare("other", durable=True)
    client.send(1, commands.Confirm.Select())
    client.expect(commands.Confirm.SelectOk)
    consume(client)
    client.expect(commands.Basic.Deliver)
    client.publish("other", b"published meanwhile")
    assert client.content()[1] == large
    assert client.expect(commands.Basic.Ack).delivery_tag == 1


def test_a_large_body_is_the_same_whoever_gets_it(start_broker: Callable[..., Broker]) -> None:
    broker = start_broker(inline_body_bytes_max=1000)
    clients = [broker.raw().open(frame_max=frame_max) for frame_max in (4096, 8192, 131072)]
    clients[0].declare("q", durable=True)
    bodies = {content(1001 + 317 * seed, seed) for seed in range(60)}
    for each in clients:
        each.send(1, commands.Basic.Qos(prefetch_count=20))
        each.expect(commands.Basic.QosOk)
        consume(each)
    publish(broker, *bodies)
    assert {each.delivery()[1] for each in clients for _ in range(20)} == bodies
