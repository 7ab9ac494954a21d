"""A client of any member: its bytes pass through to the leader of its host, and end when another one leads."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any, cast

import pika
import pika.exceptions
import pytest
from pamqp import commands

pytest.importorskip("msgspec", reason="the extra cluster is not installed")
pytest.importorskip("logstore._consensus", reason="the cluster is not built")

from kit.amqp_client import PROTOCOL_HEADER, RawClient
from kit.amqp_trio import AmqpTrio
from kit.patience import PATIENCE_S, wait_until
from kit.trio import HOST
from logstore.broker import Limits
from logstore.cluster import relaying
from logstore.cluster.brokering import LEADER_NAMED_WITHIN_S
from logstore.cluster.group import HostNews
from logstore.cluster.relaying import Answered, Asked
from logstore.cluster.transport import Me, Nobody, Transport
from logstore.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DURABLE = pika.BasicProperties(delivery_mode=2)
QUEUE = "work"
ONE_IS_THE_LIMIT = r"\(530\).*connection limit \(1\) is reached"
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


@pytest.fixture
def single(tmp_path: Path) -> Iterator[AmqpTrio]:
    """Each broker takes one client."""
    made = AmqpTrio(tmp_path, limits=Limits(connections_max=1))
    made.start()
    yield made
    made.close()


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
    amqp.followers()
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
    member = amqp.followers()[0]
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
    clients = [amqp.client(member) for member in amqp.followers()]
    amqp.trio.members[leader].transfer(HOST)
    new = amqp.serving(but=leader)
    for client in clients:
        error = closed(client)
        assert error.reply_code == 320
        assert f"vhost '{HOST}'" in error.reply_text
        assert f"m{new}" in error.reply_text or f"m{leader}" in error.reply_text


def test_the_end_of_the_leaders_process_ends_relays_with_320(amqp: AmqpTrio) -> None:
    leader = amqp.serving()
    clients = [amqp.client(member) for member in amqp.followers()]
    broker = amqp.brokers[leader]
    for connection in broker.call(lambda: list(broker.server.connections)):
        broker.call(connection.transport.abort)  # as a kill does: no word to anybody
    for client in clients:
        error = closed(client)
        assert error.reply_code == 320
        assert f"the connection to member m{leader}, which led vhost '{HOST}', is gone" in error.reply_text


def tell(amqp: AmqpTrio, member: int, leader: int) -> None:
    """A member's broker hears who leads; 0: nobody."""
    broker = amqp.brokers[member]
    name, address = (f"m{leader}", amqp.trio.addresses[leader]) if leader else ("", "")
    broker.call(lambda: broker.brokering._on_news(HostNews(HOST, None, leader, name, address)))


def test_relays_end_when_no_leader_is_known_for_a_second(amqp: AmqpTrio) -> None:
    member = amqp.followers()[0]
    client = amqp.client(member)
    began = time.monotonic()
    tell(amqp, member, 0)
    assert closed(client).reply_text == f"CONNECTION_FORCED - vhost '{HOST}' has no leader now"
    assert time.monotonic() - began >= LEADER_NAMED_WITHIN_S
    wait_until(lambda: not relays(amqp, member), "it is gone")


def test_relays_go_on_when_the_same_leader_is_known_again(amqp: AmqpTrio) -> None:
    member, leader = amqp.followers()[0], amqp.serving()
    broker = amqp.brokers[member]
    client = amqp.client(member)
    tell(amqp, member, 0)
    (timer,) = broker.call(lambda: list(broker.brokering._leaderless.values()))
    tell(amqp, member, leader)
    assert timer.cancelled()
    assert broker.brokering._leaderless == {}
    assert client.channel().queue_declare(QUEUE).method.queue == QUEUE


def test_a_relay_is_not_begun_with_a_member_that_has_ceased_to_lead_meanwhile(amqp: AmqpTrio) -> None:
    member, leader = amqp.followers()[0], amqp.serving()
    broker = amqp.brokers[member]
    opens = broker.brokering._links.open
    opened: list[asyncio.Transport] = []

    async def open_late(*given: Any) -> Any:
        link, gone = await opens(*given)
        opened.append(link)
        if len(opened) == 1:
            broker.brokering._on_news(HostNews(HOST, None, 0, "", ""))
            asyncio.get_running_loop().call_soon(
                broker.brokering._on_news, HostNews(HOST, None, leader, f"m{leader}", amqp.trio.addresses[leader])
            )
        return link, gone

    broker.brokering._links.open = open_late
    assert amqp.client(member).channel().queue_declare(QUEUE).method.queue == QUEUE
    assert [each.is_closing() for each in opened] == [True, False]
    wait_until(lambda: len(relayed(amqp)) == 1, "the leader has forgotten the first one")


def test_the_end_of_the_link_in_the_middle_of_a_delivery_is_told_behind_whole_frames(narrow: AmqpTrio) -> None:
    member = narrow.followers()[0]
    raw = RawClient(narrow.ports[member], receive_buffer=4096).open(virtual_host=HOST)
    raw.declare(QUEUE, durable=True)
    for _ in range(100):
        raw.publish(QUEUE, bytes(99_000))
    raw.send(1, commands.Basic.Consume(queue=QUEUE, no_ack=True))
    raw.expect(commands.Basic.ConsumeOk)
    broker = narrow.brokers[member]
    (relay,) = broker.call(lambda: [each.relay for each in broker.server.connections])

    def is_cut() -> bool:
        if relay.frames._missing:
            relay._upstream.abort()  # as if the leader's machine was gone
        return bool(relay.frames._missing)

    while not broker.call(is_cut):
        raw.receive()
    found = None
    while not isinstance(found, commands.Connection.Close):
        _, found = raw.receive()  # whatever comes is a frame
    assert found.reply_code == 320


def test_what_a_client_sent_before_it_closed_its_socket_reaches_the_leader(amqp: AmqpTrio) -> None:
    leader, member = amqp.brokers[amqp.serving()], amqp.brokers[amqp.followers()[0]]
    raw = RawClient(member.server.port).open(virtual_host=HOST)
    raw.declare(QUEUE, durable=True)
    (upstream,) = member.call(lambda: [each.relay._upstream for each in member.server.connections])
    (served,) = leader.call(lambda: list(leader.server.connections))
    leader.call(served.transport.pause_reading)
    sent = 0
    while not member.call(upstream.get_write_buffer_size):
        raw.publish(QUEUE, bytes(10_000))
        sent += 1
    raw.socket.close()
    wait_until(lambda: not member.call(lambda: len(member.server.connections)), "the client is gone")
    leader.call(served.transport.resume_reading)
    direct = amqp.client(amqp.serving()).channel()
    wait_until(lambda: direct.queue_declare(QUEUE, passive=True).method.message_count == sent, "all are there")


def test_the_leader_judges_the_user_as_well(amqp: AmqpTrio) -> None:
    leader, member = amqp.brokers[amqp.serving()], amqp.followers()[0]
    leader.call(lambda: leader.server.users.change("guest", hosts=["/"]))
    with pytest.raises(pika.exceptions.AMQPConnectionError) as caught:
        amqp.client(member)
    assert f"(530) \"NOT_ALLOWED - access to vhost '{HOST}' refused for user 'guest'" in str(caught.value)
    leader.call(lambda: leader.server.users.remove("guest"))
    with pytest.raises(pika.exceptions.AMQPConnectionError) as caught:
        amqp.client(member)
    assert "(530)" in str(caught.value)
    assert "the member that leads it has no such user" in str(caught.value)


def test_a_relay_keeps_no_buffer_of_the_links_frames(amqp: AmqpTrio) -> None:
    leader, member = amqp.serving(), amqp.followers()[0]
    amqp.client(member)
    dialled = amqp.brokers[member].brokering._links._transport._links
    accepted = amqp.trio.members[leader]._running.transport._links
    links = [link for link in (*dialled, *accepted) if link.purpose == "relay"]
    assert [len(link._reader._bytes) for link in links] == [0, 0]


def test_the_end_of_the_relaying_member_releases_what_its_clients_had(amqp: AmqpTrio) -> None:
    member = amqp.followers()[0]
    direct = amqp.client(amqp.serving()).channel()
    direct.queue_declare(QUEUE, durable=True)
    direct.basic_publish("", QUEUE, b"held", DURABLE)
    channel = amqp.client(member).channel()
    assert channel.basic_get(QUEUE)[2] == b"held"
    amqp.stop(member)
    wait_until(lambda: direct.queue_declare(QUEUE, passive=True).method.message_count == 1, "it is back")
    method, _, _ = direct.basic_get(QUEUE)
    assert method.redelivered


def test_a_client_that_reads_nothing_stops_the_leader_and_is_disconnected(narrow: AmqpTrio) -> None:
    member = narrow.followers()[0]
    direct = narrow.client(narrow.serving()).channel()
    direct.queue_declare(QUEUE, durable=True)
    for _ in range(64):
        direct.basic_publish("", QUEUE, bytes(1 << 20), DURABLE)
    raw = RawClient(narrow.ports[member]).open(virtual_host=HOST)
    raw.send(1, commands.Basic.Consume(queue=QUEUE))
    broker = narrow.brokers[member]

    def unsent() -> int:
        return broker.call(lambda: sum(each.transport.get_write_buffer_size() for each in broker.server.connections))

    wait_until(lambda: unsent() > LIMITS.unsent_bytes_high, "the client's socket is full")
    assert unsent() < 4 << 20
    wait_until(lambda: not relays(narrow, member), "it is disconnected")
    wait_until(lambda: direct.queue_declare(QUEUE, passive=True).method.message_count == 64, "all are back")


def test_a_silent_client_is_disconnected_by_the_leader(amqp: AmqpTrio) -> None:
    member = amqp.followers()[0]
    raw = RawClient(amqp.ports[member]).open(virtual_host=HOST, heartbeat=1)
    wait_until(lambda: relayed(amqp), "the leader has it")
    wait_until(lambda: not relayed(amqp), "the leader ends it")
    wait_until(lambda: not relays(amqp, member), "the relay ends, too")
    raw.socket.close()


def test_a_member_that_does_not_lead_refuses_to_be_relayed_to(amqp: AmqpTrio) -> None:
    first, second = amqp.followers()
    broker = amqp.brokers[first]
    leader = broker.brokering.leader(HOST)
    wrong = type(leader)(second, f"m{second}")
    told: list[str] = []

    def connect() -> None:
        with contextlib.suppress(Exception):
            amqp.client(first)
        told.append("done")

    address = amqp.trio.addresses[second]

    def mislead() -> None:
        state = broker.brokering._states[HOST]
        broker.brokering._states[HOST] = state._replace(leader=wrong)
        broker.brokering._links.know(second, f"m{second}", address)

    broker.call(mislead)
    thread = threading.Thread(target=connect)
    thread.start()
    wait_until(lambda: broker.server._waiting, "it asks again")
    broker.call(lambda: broker.brokering._states.update({HOST: broker.brokering._states[HOST]._replace(leader=leader)}))
    thread.join()
    assert relays(amqp, first) == 1
    assert relays(amqp, second) == 0


def asked() -> bytes:
    return bytes(relaying.MESSAGES.frame(Asked(HOST, "guest", "127.0.0.1", 1, 2047, 131072, 0, False, False)))


def with_a_wrong_bit(frame: bytes, at: int) -> bytes:
    return frame[:at] + bytes((frame[at] ^ 1,)) + frame[at + 1 :]


def test_what_is_no_request_for_a_relay_is_refused(amqp: AmqpTrio) -> None:
    leader = amqp.serving()
    member = amqp.followers()[0]

    async def answer_to(said: bytes) -> bytes:
        transport = Transport(amqp.trio.members[member]._running.transport.me, cast("Any", Nobody()))
        transport.set_peers({leader: (f"m{leader}", amqp.trio.addresses[leader])})
        reader, writer = (await transport.open_relay(leader)).streams_opened()
        writer.write(said)
        writer.write_eof()
        found = await reader.read()
        await transport.close()
        return found

    wrong = [b"GET / HTTP/1.1\r\n\r\n", bytes(relaying.MESSAGES.frame(Answered())), asked()[:-1], b""]
    wrong += [with_a_wrong_bit(asked(), at) for at in (0, 8, 12, 14, 16, 40, -1)]
    for said in wrong:
        assert asyncio.run(answer_to(said)) == b"", said
    assert asyncio.run(answer_to(asked())) != b""
    wait_until(lambda: not relayed(amqp), "nothing is left of them")


def test_too_many_connections_at_the_leader_are_refused_through_a_relay(single: AmqpTrio) -> None:
    member = single.followers()[0]
    single.client(single.serving())
    with pytest.raises(pika.exceptions.AMQPConnectionError, match=ONE_IS_THE_LIMIT):
        single.client(member)
    wait_until(lambda: not relays(single, member), "nothing is left of it")
    assert single.brokers[member].server.admission.admitted_count == 0


def test_members_whose_connections_are_all_relayed_say_why_they_refuse_another(single: AmqpTrio) -> None:
    member = single.followers()[0]
    single.client(member)
    for full in (member, single.serving()):
        with pytest.raises(pika.exceptions.AMQPConnectionError, match=ONE_IS_THE_LIMIT):
            single.client(full)


def test_a_client_that_leaves_while_it_waits_leaves_nothing_behind(amqp: AmqpTrio) -> None:
    first, _ = amqp.followers()
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
    assert broker.server.admission.admitted_count == 0
    wait_until(lambda: not relayed(amqp), "the leader has forgotten it")


def test_a_relay_that_meets_a_full_leader_or_gets_no_answer_leaves_nothing_behind(amqp: AmqpTrio) -> None:
    member = amqp.followers()[0]
    leads = amqp.serving()
    leader, front = amqp.brokers[leads], amqp.brokers[member]
    leader.call(lambda: setattr(leader.server.admission, "sockets_max", 0))
    with pytest.raises(pika.exceptions.AMQPConnectionError, match=r"\(530\)"):
        amqp.client(member)
    assert leader.server.admission.admitted_count == 0
    assert not leader.server.hosts[HOST].connections
    wait_until(lambda: not front.brokering._links._transport._links, "its link is gone")

    async def nobody(*_: Any) -> None:
        raise OSError("it has no sockets left")

    amqp.trio.members[leads].accept_relays(nobody)
    with pytest.raises(pika.exceptions.AMQPConnectionError, match=rf"\(320\).*led by member m{leads} now, but "):
        amqp.client(member)
    wait_until(lambda: not front.brokering._links._transport._links, "its links are gone")
    assert front.server._waiting == []


def test_silent_clients_of_a_full_leader_make_room_for_a_relayed_one(amqp: AmqpTrio) -> None:
    member = amqp.followers()[0]
    leads = amqp.serving()
    admission = amqp.brokers[leads].server.admission
    silent = [RawClient(amqp.ports[leads]) for _ in range(5)]
    for each in silent:
        each.send_bytes(PROTOCOL_HEADER)
        each.expect(commands.Connection.Start)
    amqp.brokers[leads].call(lambda: setattr(admission, "sockets_max", admission.sockets_open + 1))
    assert amqp.client(member).is_open
    for each in silent[:3]:  # a relayed client takes three sockets
        each.expect_end()
    silent[3].send(0, commands.Connection.StartOk({}, "PLAIN", "\0guest\0guest", "en_US"))
    silent[3].expect(commands.Connection.Tune)


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
