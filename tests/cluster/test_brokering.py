"""The broker of a member serves the hosts that the member leads, and ends them when it leads no longer."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

import pika
import pika.exceptions
import pytest

pytest.importorskip("msgspec", reason="the extra cluster is not installed")
pytest.importorskip("logstore._consensus", reason="the cluster is not built")

from kit.amqp_trio import AmqpTrio
from kit.patience import PATIENCE_S, wait_until
from kit.trio import HOST
from logstore.cluster.group import HostNews

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DURABLE = pika.BasicProperties(delivery_mode=2)
QUEUE = "work"


@pytest.fixture
def amqp(tmp_path: Path) -> Iterator[AmqpTrio]:
    made = AmqpTrio(tmp_path)
    yield made
    made.close()


def confirming(amqp: AmqpTrio, member: int) -> Any:
    channel = amqp.client(member).channel()
    channel.queue_declare(QUEUE, durable=True)
    channel.confirm_delivery()
    return channel


def at_leader(amqp: AmqpTrio) -> Any:
    """A channel, while leaders may change."""
    while True:
        with contextlib.suppress(pika.exceptions.AMQPError):
            return confirming(amqp, amqp.serving())


def publish(channel: Any, *bodies: str) -> None:
    for body in bodies:
        channel.basic_publish("", QUEUE, body.encode(), DURABLE)


def get_all(channel: Any) -> list[tuple[str, bool]]:
    """Every message with its mark; they stay unacknowledged."""
    found = []
    while True:
        method, _, body = channel.basic_get(QUEUE)
        if method is None:
            return found
        found.append((body.decode(), method.redelivered))


def closed(client: pika.BlockingConnection) -> pika.exceptions.ConnectionClosedByBroker:
    """Why the broker closed it, once it has."""
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as caught:
        while True:
            client.process_data_events(time_limit=PATIENCE_S)
    return caught.value


def refused(amqp: AmqpTrio, member: int, **given: Any) -> str:
    """What a client is told that cannot open a host there."""
    with pytest.raises(pika.exceptions.AMQPConnectionError) as caught:
        amqp.client(member, **given)
    return str(caught.value)


def test_what_is_confirmed_is_at_the_next_leader_and_unacknowledged_messages_come_again_marked(amqp: AmqpTrio) -> None:
    amqp.start()
    leader = amqp.serving()
    channel = confirming(amqp, leader)
    publish(channel, "1", "2", "3")
    method, _, _ = channel.basic_get(QUEUE)
    channel.basic_ack(method.delivery_tag)
    channel.basic_get(QUEUE)
    channel.queue_declare(QUEUE, passive=True)  # its answer says that the ack is on disk
    amqp.trio.members[leader].transfer(HOST)
    new = amqp.serving(but=leader)
    error = closed(channel.connection)
    assert error.reply_code == 320
    assert error.reply_text == f"CONNECTION_FORCED - vhost '{HOST}' is led by member m{new} now"
    assert get_all(confirming(amqp, new)) == [("2", True), ("3", True)]


def test_a_member_that_stops_hands_over_and_its_clients_are_told(amqp: AmqpTrio) -> None:
    amqp.start()
    leader = amqp.serving()
    channel = confirming(amqp, leader)
    publish(channel, "kept")
    amqp.stop(leader)
    assert closed(channel.connection).reply_code == 320
    assert get_all(confirming(amqp, amqp.serving())) == [("kept", True)]


def test_a_leader_without_a_majority_gives_neither_ack_nor_nack_and_waits_for_the_next_one(amqp: AmqpTrio) -> None:
    amqp.start()
    leader = amqp.serving()
    channel = confirming(amqp, leader)
    publish(channel, "confirmed")
    others = [member for member in amqp.ports if member != leader]
    amqp.stop(*others)
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as caught:
        publish(channel, "unknown")
    assert caught.value.reply_code == 320
    assert caught.value.reply_text == f"CONNECTION_FORCED - vhost '{HOST}' has no leader now"
    assert f"(541) \"INTERNAL_ERROR - vhost '{HOST}' has no leader: " in refused(amqp, leader)
    amqp.start(others[0])
    found = [body for body, _ in get_all(confirming(amqp, amqp.serving()))]
    assert found in (["confirmed"], ["confirmed", "unknown"])


def test_an_open_waits_for_an_election(amqp: AmqpTrio) -> None:
    amqp.start()
    leader = amqp.serving()
    broker = amqp.brokers[leader]
    amqp.trio.members[leader].listen_to_hosts(None)
    state = broker.brokering._states[HOST]
    broker.call(lambda: broker.brokering._on_news(HostNews(HOST, None, 0, "", "")))
    wait_until(lambda: not broker.server.hosts, "the host is closed")
    opened: list[Any] = []
    thread = threading.Thread(target=lambda: opened.append(amqp.client(leader)))
    thread.start()
    wait_until(lambda: broker.server._waiting, "the client waits")
    broker.call(lambda: broker.brokering._on_news(HostNews(HOST, state.store, leader, f"m{leader}", "")))
    thread.join()
    assert opened[0].is_open


def test_a_missing_or_forbidden_host_is_refused_by_every_member(amqp: AmqpTrio) -> None:
    amqp.start()
    amqp.serving()
    for member in amqp.ports:
        for given, text in (
            ({"vhost": "nowhere"}, "vhost nowhere not found"),
            ({"user": "stranger"}, f"access to vhost '{HOST}' refused for user 'stranger'"),
        ):
            said = refused(amqp, member, **given)
            assert "(530)" in said
            assert text in said


def test_two_hosts_have_leaders_of_their_own_and_one_ends_alone(tmp_path: Path) -> None:
    amqp = AmqpTrio(tmp_path, hosts=(HOST, "main"))
    try:
        amqp.start()
        amqp.trio.store("main")
        shop, root = amqp.serving(), amqp.serving("main")
        mine = amqp.client(root, "/").channel()
        mine.queue_declare("others", durable=True)
        amqp.trio.members[shop].transfer(HOST)
        amqp.serving(but=shop)
        mine.confirm_delivery()
        mine.basic_publish("", "others", b"goes on", DURABLE)
        assert mine.basic_get("others")[2] == b"goes on"
    finally:
        amqp.close()


def test_leaders_change_to_and_fro_under_a_publisher_and_nothing_confirmed_is_lost(amqp: AmqpTrio) -> None:
    amqp.start()
    confirming(amqp, amqp.serving())
    confirmed: list[str] = []
    stops = threading.Event()

    def work() -> None:
        number = 0
        while not stops.is_set():
            with contextlib.suppress(pika.exceptions.AMQPError):
                channel = at_leader(amqp)
                while not stops.is_set():
                    number += 1
                    publish(channel, str(number))
                    confirmed.append(str(number))

    thread = threading.Thread(target=work)
    thread.start()
    for _ in range(10):
        before = len(confirmed)
        wait_until(lambda before=before: len(confirmed) > before + 5, "it publishes")
        leader = amqp.trio.leader()
        with contextlib.suppress(Exception):
            amqp.trio.members[leader].transfer(HOST)
    stops.set()
    thread.join()
    found = [body for body, _ in get_all(at_leader(amqp))]
    assert [body for body in found if body in set(confirmed)] == confirmed
