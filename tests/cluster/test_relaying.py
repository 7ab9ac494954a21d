"""A client of any member: its bytes pass through to the leader of its host, and end when another one leads."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING, Any, cast

import pika
import pika.exceptions
import pytest
from pamqp import commands

pytest.importorskip("msgspec", reason="the extra cluster is not installed")
pytest.importorskip("logstore._consensus", reason="the cluster is not built")

from kit.amqp_client import RawClient
from kit.amqp_trio import AmqpTrio
from kit.patience import PATIENCE_S, wait_until
from kit.trio import HOST
from logstore.broker import Limits
from logstore.cluster.transport import Me, Nobody, Transport
from logstore.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DURABLE = pika.BasicProperties(delivery_mode=2)
QUEUE = "work"
LIMITS = Limits(unsent_bytes_high=64 << 10, unsent_bytes_max=256 << 10, stall_s=2)


@pytest.fixture
def amqp(tmp_path: Path) -> Iterator[AmqpTrio]:
    made = AmqpTrio(tmp_path)
    made.start()
    yield made
    made.close()


@pytest.fixture
def narrow(tmp_path: Path) -> Iterator[AmqpTrio]:
    made = AmqpTrio(tmp_path, limits=LIMITS)
    made.start()
    yield made
    made.close()


def followers(amqp: AmqpTrio) -> list[int]:
    """Members that relay."""
    leader = amqp.serving()
    others = [member for member in amqp.brokers if member != leader]
    for member in others:
        wait_until(lambda member=member: amqp.brokers[member].brokering.leader(HOST), "it knows who leads")
    return others


def relays(amqp: AmqpTrio, member: int) -> int:
    server = amqp.brokers[member].server
    return amqp.brokers[member].call(lambda: sum(each.relay is not None for each in server.connections))


def relayed(amqp: AmqpTrio) -> list[dict[str, Any]]:
    """What the leader knows of clients that others relay."""
    from logstore.broker.statistics import connection_statistics

    broker = amqp.brokers[amqp.serving()]
    all_of_them = broker.call(lambda: [connection_statistics(each) for each in broker.server.connections])
    return [one for one in all_of_them if one["via"]]


def closed(client: pika.BlockingConnection) -> pika.exceptions.ConnectionClosedByBroker:
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as caught:
        while True:
            client.process_data_events(time_limit=PATIENCE_S)
    return caught.value


def test_a_client_of_any_member_publishes_consumes_and_commits(amqp: AmqpTrio) -> None:
    followers(amqp)
    large = bytes(range(256)) * (10 << 12)  # 10 MiB
    for number, member in enumerate(amqp.brokers):
        channel = amqp.client(member).channel()
        channel.queue_declare(QUEUE, durable=True)
        channel.confirm_delivery()
        for body in (b"first", large, b""):
            channel.basic_publish("", QUEUE, body, DURABLE)
        channel.basic_qos(prefetch_count=2)
        found = []
        for method, _, body in channel.consume(QUEUE):
            found.append(body)
            channel.basic_ack(method.delivery_tag)
            if len(found) == 3:
                break
        channel.cancel()
        assert found == [b"first", large, b""]
        committing = channel.connection.channel()
        committing.tx_select()
        committing.basic_publish("", QUEUE, str(number).encode(), DURABLE)
        committing.tx_commit()
        assert committing.queue_declare(QUEUE, passive=True).method.message_count == 1
        committing.queue_purge(QUEUE)


def test_the_leader_knows_the_client_and_who_relays_it(amqp: AmqpTrio) -> None:
    member = followers(amqp)[0]
    client = amqp.client(member)
    mine = client._impl._transport._sock.getsockname()
    (found,) = relayed(amqp)
    assert found["peer"] == f"127.0.0.1:{mine[1]}"
    assert (found["via"], found["user"], found["vhost"]) == (f"m{member}", "guest", HOST)
    assert relays(amqp, member) == 1
    client.close()
    wait_until(lambda: not relayed(amqp), "the leader has forgotten it")
    wait_until(lambda: not relays(amqp, member), "the relay is gone")


def test_a_change_of_the_leader_ends_relays_with_its_name(amqp: AmqpTrio) -> None:
    leader = amqp.serving()
    clients = [amqp.client(member) for member in followers(amqp)]
    amqp.trio.members[leader].transfer(HOST)
    new = amqp.serving(but=leader)
    for client in clients:
        error = closed(client)
        assert error.reply_code == 320
        assert f"vhost '{HOST}'" in error.reply_text
        assert f"m{new}" in error.reply_text or f"m{leader}" in error.reply_text


def test_the_end_of_the_leaders_process_ends_relays_with_320(amqp: AmqpTrio) -> None:
    leader = amqp.serving()
    clients = [amqp.client(member) for member in followers(amqp)]
    broker = amqp.brokers[leader]
    for connection in broker.call(lambda: list(broker.server.connections)):
        broker.call(connection.transport.abort)  # as a kill does: no word to anybody
    for client in clients:
        error = closed(client)
        assert error.reply_code == 320
        assert f"the connection to member m{leader}, which led vhost '{HOST}', is gone" in error.reply_text


def test_the_end_of_the_relaying_member_releases_what_its_clients_had(amqp: AmqpTrio) -> None:
    member = followers(amqp)[0]
    direct = amqp.client(amqp.serving()).channel()
    direct.queue_declare(QUEUE, durable=True)
    direct.basic_publish("", QUEUE, b"held", DURABLE)
    channel = amqp.client(member).channel()
    assert channel.basic_get(QUEUE)[2] == b"held"
    amqp.stop(member)
    wait_until(lambda: direct.queue_declare(QUEUE, passive=True).method.message_count == 1, "it is back")
    method, _, _ = direct.basic_get(QUEUE)
    assert method.redelivered


def test_what_a_client_sent_before_it_closed_its_socket_reaches_the_leader(amqp: AmqpTrio) -> None:
    member = followers(amqp)[0]
    direct = amqp.client(amqp.serving()).channel()
    direct.queue_declare(QUEUE, durable=True)
    raw = RawClient(amqp.ports[member]).open(virtual_host=HOST)
    for _ in range(200):
        raw.publish(QUEUE, bytes(50_000), properties=commands.Basic.Properties(delivery_mode=2))
    raw.socket.close()
    wait_until(lambda: direct.queue_declare(QUEUE, passive=True).method.message_count == 200, "all are there")


def test_a_client_that_reads_nothing_stops_the_leader_and_is_disconnected(narrow: AmqpTrio) -> None:
    member = followers(narrow)[0]
    direct = narrow.client(narrow.serving()).channel()
    direct.queue_declare(QUEUE, durable=True)
    for _ in range(64):
        direct.basic_publish("", QUEUE, bytes(1 << 20), DURABLE)
    raw = RawClient(narrow.ports[member]).open(virtual_host=HOST)
    raw.send(1, commands.Basic.Consume(queue=QUEUE))
    relaying = narrow.brokers[member]

    def unsent() -> int:
        return relaying.call(
            lambda: sum(each.transport.get_write_buffer_size() for each in relaying.server.connections)
        )

    wait_until(lambda: unsent() > LIMITS.unsent_bytes_high, "the client's socket is full")
    assert unsent() < 4 << 20
    wait_until(lambda: not relays(narrow, member), "it is disconnected")
    wait_until(lambda: direct.queue_declare(QUEUE, passive=True).method.message_count == 64, "all are back")


def test_a_silent_client_is_disconnected_by_the_leader(amqp: AmqpTrio) -> None:
    member = followers(amqp)[0]
    raw = RawClient(amqp.ports[member]).open(virtual_host=HOST, heartbeat=1)
    wait_until(lambda: relayed(amqp), "the leader has it")
    wait_until(lambda: not relayed(amqp), "the leader ends it")
    wait_until(lambda: not relays(amqp, member), "the relay ends, too")
    raw.socket.close()


def test_a_member_that_does_not_lead_refuses_to_be_relayed_to(amqp: AmqpTrio) -> None:
    first, second = followers(amqp)
    broker = amqp.brokers[first]
    leader = broker.brokering.leader(HOST)
    wrong = type(leader)(second, f"m{second}")
    told: list[str] = []

    def tell() -> None:
        with contextlib.suppress(Exception):
            amqp.client(first)
        told.append("done")

    address = amqp.trio.addresses[second]

    def mislead() -> None:
        state = broker.brokering._states[HOST]
        broker.brokering._states[HOST] = state._replace(leader=wrong)
        broker.brokering._links.know(second, f"m{second}", address)

    broker.call(mislead)
    thread = threading.Thread(target=tell)
    thread.start()
    wait_until(lambda: broker.server._waiting, "it asks again")
    broker.call(lambda: broker.brokering._states.update({HOST: broker.brokering._states[HOST]._replace(leader=leader)}))
    thread.join()
    assert relays(amqp, first) == 1
    assert relays(amqp, second) == 0


@pytest.mark.parametrize(
    "said", [b"\x00\x00\x00\x00", b"\xff\xff\xff\xff", b"\x04\x00\x00\x00abcd", b"\x01\x00\x00\x00\x80", b""]
)
def test_what_is_no_request_for_a_relay_is_refused(amqp: AmqpTrio, said: bytes) -> None:
    leader = amqp.serving()
    member = followers(amqp)[0]

    async def work() -> bytes:
        config = amqp.trio.config(member)
        transport = Transport(Me(cluster=config.cluster, member=member, name=config.name), cast("Any", Nobody()))
        transport.set_peers({leader: (f"m{leader}", amqp.trio.addresses[leader])})
        reader, writer = (await transport.open_relay(leader)).streams_opened()
        writer.write(said)
        writer.write_eof()
        found = await reader.read()
        await transport.close()
        return found

    assert asyncio.run(work()) == b""
    assert relayed(amqp) == []


def test_too_many_connections_at_the_leader_are_refused_through_a_relay(tmp_path: Path) -> None:
    amqp = AmqpTrio(tmp_path, limits=Limits(connections_max=1))
    amqp.start()
    try:
        member = followers(amqp)[0]
        amqp.client(amqp.serving())
        with pytest.raises(pika.exceptions.AMQPConnectionError, match=r"\(530\).*connection limit \(1\) is reached"):
            amqp.client(member)
        wait_until(lambda: not relays(amqp, member), "nothing is left of it")
        assert amqp.brokers[member].server._admitted == 0
    finally:
        amqp.close()


def test_a_client_that_leaves_while_it_waits_leaves_nothing_behind(amqp: AmqpTrio) -> None:
    first, _ = followers(amqp)
    broker = amqp.brokers[first]
    state = broker.brokering._states[HOST]
    broker.call(lambda: broker.brokering._states.update({HOST: state._replace(leader=None)}))
    raw = RawClient(amqp.ports[first])
    raw.start()
    raw.expect(commands.Connection.Tune)
    raw.send(0, commands.Connection.TuneOk(0, 131072, 0), commands.Connection.Open(HOST))
    wait_until(lambda: broker.server._waiting, "it waits")
    raw.socket.close()
    broker.call(lambda: broker.brokering._states.update({HOST: state}))
    broker.call(broker.server.hosts_have_changed)
    wait_until(lambda: not broker.server.connections, "it is gone")
    assert broker.server._admitted == 0
    wait_until(lambda: not relayed(amqp), "the leader has forgotten it")


def test_a_relay_that_meets_a_full_leader_or_gets_no_answer_leaves_nothing_behind(amqp: AmqpTrio) -> None:
    member = followers(amqp)[0]
    leads = amqp.serving()
    leader, front = amqp.brokers[leads], amqp.brokers[member]
    leader.call(lambda: setattr(leader.server, "_sockets_max", 0))
    with pytest.raises(pika.exceptions.AMQPConnectionError, match=r"\(530\)"):
        amqp.client(member)
    assert leader.server._admitted == 0
    assert not leader.server.hosts[HOST].connections
    wait_until(lambda: not front.brokering._links._transport._links, "its link is gone")

    async def nobody(*_: Any) -> None:
        raise OSError("it has no sockets left")

    amqp.trio.members[leads].accept_relays(nobody)
    with pytest.raises(pika.exceptions.AMQPConnectionError, match=rf"\(320\).*led by member m{leads} now, but "):
        amqp.client(member)
    wait_until(lambda: not front.brokering._links._transport._links, "its links are gone")
    assert front.server._waiting == []


def test_a_stranger_cannot_relay(amqp: AmqpTrio) -> None:
    leader = amqp.serving()

    async def work() -> None:
        config = amqp.trio.config(1)
        transport = Transport(Me(cluster=config.cluster, member=9, name="m9"), cast("Any", Nobody()))
        transport.set_peers({leader: (f"m{leader}", amqp.trio.addresses[leader])})
        try:
            await transport.open_relay(leader)
        finally:
            await transport.close()

    with pytest.raises(StoreError, match="is not expected"):
        asyncio.run(work())
