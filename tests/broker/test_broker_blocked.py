"""``connection.blocked``: publishers are told that the disk is slow, and when it is over."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING

import pytest
from pamqp import body, commands, header

from kit.broker_waits import nothing_comes
from kit.live_broker import Broker, open_store
from kit.patience import wait_until
from kit.store_proxies import HeldDisk, NarrowLog
from logstore.broker.statistics import connection_statistics

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kit.amqp_client import RawClient

AFTER_S = 0.05
REASON = re.compile(r"virtual host '/': the disk has not made durable what was published [\d.]+ s ago")


@pytest.fixture
def slow(start_held: Callable[..., tuple[Broker, HeldDisk]]) -> tuple[Broker, HeldDisk]:
    """A broker that says early that its disk is slow, and the disk."""
    return start_held(blocked_after_s=AFTER_S)


def publisher(broker: Broker, *, wants_blocked: bool = True) -> RawClient:
    """A client that has published, and has its confirm."""
    client = broker.raw().open(wants_blocked=wants_blocked)
    client.declare("q", durable=True)
    client.send(1, commands.Confirm.Select())
    client.expect(commands.Confirm.SelectOk)
    client.publish("q", b"first")
    client.expect(commands.Basic.Ack)
    return client


def reason(client: RawClient) -> str:
    return str(client.expect(commands.Connection.Blocked).reason)


def test_a_publisher_is_told_the_reason_and_then_the_end_and_gets_its_confirms(slow: tuple[Broker, HeldDisk]) -> None:
    broker, disk = slow
    client = publisher(broker)
    for _ in range(2):
        disk.hold()
        client.publish("q", b"waits")
        assert REASON.fullmatch(reason(client))
        disk.let_go()
        assert {type(client.receive()[1]) for _ in range(2)} == {commands.Basic.Ack, commands.Connection.Unblocked}
    client.publish("q", b"goes on")
    assert client.expect(commands.Basic.Ack).delivery_tag == 4


@pytest.mark.parametrize("how", ["in one piece", "frame by frame", "large", "in a transaction"])
def test_however_a_message_is_published_its_client_is_told(slow: tuple[Broker, HeldDisk], how: str) -> None:
    broker, disk = slow
    client = broker.raw().open(channels=2, wants_blocked=True)
    client.declare("q", durable=True)
    content = bytes(3 << 20) if how == "large" else b"waits"
    if how == "in a transaction":
        client.send(1, commands.Tx.Select())
        client.expect(commands.Tx.SelectOk)
    disk.hold()
    if how == "frame by frame":
        client.send(1, commands.Basic.Publish(routing_key="q"))
        client.send(2, commands.Basic.Qos(0, 1))
        client.expect(commands.Basic.QosOk)  # so what follows is read by itself
        client.send(1, header.ContentHeader(0, len(content)), body.ContentBody(content))
    else:
        client.publish("q", content)
    if how == "in a transaction":
        client.send(1, commands.Tx.Commit())
    assert REASON.fullmatch(reason(client))
    disk.let_go()


def test_a_client_without_the_capability_and_one_that_has_not_published_are_told_nothing(
    slow: tuple[Broker, HeldDisk],
) -> None:
    broker, disk = slow
    knows, does_not_know = publisher(broker), publisher(broker, wants_blocked=False)
    idle = broker.raw().open(wants_blocked=True)
    disk.hold()
    does_not_know.publish("q", b"waits")
    assert REASON.fullmatch(reason(knows))
    nothing_comes(does_not_know)
    disk.let_go()
    knows.expect(commands.Connection.Unblocked)
    does_not_know.expect(commands.Basic.Ack)
    nothing_comes(does_not_know)
    nothing_comes(idle)


def test_who_publishes_first_while_the_disk_is_slow_is_told_at_once_and_once(slow: tuple[Broker, HeldDisk]) -> None:
    broker, disk = slow
    first, late = publisher(broker), broker.raw().open(wants_blocked=True)
    disk.hold()
    first.publish("q", b"waits")
    told = reason(first)
    late.publish("q", b"waits, too")
    assert reason(late) == told
    late.publish("q", b"is told already")
    nothing_comes(late)
    disk.let_go()
    late.expect(commands.Connection.Unblocked)


def test_consumers_of_other_connections_get_messages_and_acknowledge_meanwhile(slow: tuple[Broker, HeldDisk]) -> None:
    broker, disk = slow
    client = publisher(broker)
    consumer = broker.raw().open()
    disk.hold()
    client.publish("q", b"waits")
    reason(client)
    consumer.send(1, commands.Basic.Get(queue="q"))
    tag = consumer.expect(commands.Basic.GetOk).delivery_tag
    assert consumer.content()[1] == b"first"
    consumer.send(1, commands.Basic.Ack(tag))
    queue = broker.server.hosts["/"].vhost.queues["q"]
    wait_until(lambda: broker.call(lambda: queue.acknowledged) == 1, "the acknowledgement counts")
    disk.let_go()


def test_the_log_has_one_line_when_the_disk_gets_slow_and_one_when_it_is_well(
    slow: tuple[Broker, HeldDisk], caplog: pytest.LogCaptureFixture
) -> None:
    broker, disk = slow
    caplog.set_level(logging.INFO, "logstore.broker.blocking")
    client = publisher(broker)
    disk.hold()
    client.publish("q", b"waits")
    reason(client)
    for _ in range(5):  # a wait of more than the time after which it was told
        nothing_comes(client)
        client.publish("q", b"waits, too")
    disk.let_go()
    wait_until(lambda: broker.call(lambda: broker.server.hosts["/"].blocking.since) is None, "it is well")
    lines = [record.getMessage() for record in caplog.records if record.name == "logstore.broker.blocking"]
    assert len(lines) == 2
    assert REASON.fullmatch(lines[0])
    assert re.fullmatch(r"virtual host '/': publishes are durable again, after [\d.]+ s", lines[1])


def test_the_list_of_connections_has_the_reason_and_since_when(slow: tuple[Broker, HeldDisk]) -> None:
    broker, disk = slow
    client = publisher(broker)
    broker.raw().open()

    def rows() -> list[tuple[object, object, bool]]:
        found = [connection_statistics(each) for each in broker.server.hosts["/"].connections]
        found.sort(key=lambda one: one["waits_for"] is None)
        return [(one["waits_for"], one["blocked"], one["blocked_s"] is None) for one in found]

    disk.hold()
    client.publish("q", b"waits")
    told = reason(client)
    assert broker.call(rows) == [("disk", told, False), (None, None, True)]
    disk.let_go()
    client.expect(commands.Basic.Ack)
    client.expect(commands.Connection.Unblocked)
    assert broker.call(rows) == [(None, None, True)] * 2


@pytest.mark.parametrize(
    ("room", "publishes", "delivers", "acknowledges"),
    [(100, True, True, True), (65, False, True, True), (50, False, False, True), (30, False, False, False)],
)
def test_with_little_room_in_the_log_publishes_wait_first_then_deliveries_then_acknowledgements(
    tmp_path: Path, room: int, publishes: bool, delivers: bool, acknowledges: bool
) -> None:
    log = NarrowLog(open_store(tmp_path / "store"))
    broker = Broker(log)
    try:
        client, consumer = publisher(broker), broker.raw().open()
        client.publish("q", b"second")
        client.expect(commands.Basic.Ack)
        consumer.send(1, commands.Basic.Qos(0, 1), commands.Basic.Consume(queue="q"))
        consumer.expect(commands.Basic.QosOk)
        consumer.expect(commands.Basic.ConsumeOk)
        tag = consumer.delivery()[0].delivery_tag
        queue, connections = broker.server.hosts["/"].vhost.queues["q"], broker.server.hosts["/"].connections

        def counts() -> tuple[int, int, int]:
            return queue.published, queue.acknowledged, sum(each.receiving.is_paused for each in connections)

        log.room_percent = room
        client.publish("q", b"third")
        consumer.send(1, commands.Basic.Ack(tag))
        wanted = (2 + publishes, 0 + acknowledges, 2 - publishes - acknowledges)
        wait_until(lambda: broker.call(counts) == wanted, "who waits is not read")
        if delivers:
            assert consumer.delivery()[1] == b"second"
        else:
            nothing_comes(consumer)
        log.room_percent = 100
        log.let_go()
        client.expect(commands.Basic.Ack)
        if not delivers:
            assert consumer.delivery()[1] == b"second"
        assert broker.call(counts) == (3, 1, 0)
    finally:
        broker.stop()
        log.close()


def test_without_anything_that_waits_there_is_no_timer(slow: tuple[Broker, HeldDisk]) -> None:
    broker, _ = slow
    publisher(broker)
    blocking = broker.server.hosts["/"].blocking
    wait_until(lambda: broker.call(lambda: blocking._timer) is None, "the timer has ended")


def test_a_publisher_that_does_not_wait_is_told_and_then_not_read(
    start_held: Callable[..., tuple[Broker, HeldDisk]],
) -> None:
    broker, disk = start_held(blocked_after_s=AFTER_S, undurable_bytes_max=10_000)
    client = publisher(broker)
    disk.hold()
    client.publish("q", bytes(20_000))
    reason(client)
    client.publish("q", b"is not read")
    nothing_comes(client)
    queue = broker.server.hosts["/"].vhost.queues["q"]
    assert broker.call(lambda: queue.published) == 2
    disk.let_go()
    told = [client.receive()[1] for _ in range(3)]
    assert [value.delivery_tag for value in told if isinstance(value, commands.Basic.Ack)] == [2, 3]
