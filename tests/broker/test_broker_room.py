"""Work of a client waits while the log lacks room, and goes on in order; other clients do not wait with it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from pamqp import commands

from kit.broker_waits import nothing_comes
from kit.live_broker import Broker, open_store
from kit.patience import PATIENCE_S, wait_until
from kit.store_proxies import NarrowLog, Registered
from logstore.broker.consumers import SLICE_MAX
from logstore.broker.headers import encode_header
from logstore.broker.queues import TURN_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from kit.amqp_client import RawClient

MANY = 4 * SLICE_MAX + 7
OTHER = "other"


class LogWithoutSegment(NarrowLog):
    """Has room again when the test says that its next segment is ready; no group commit tells that."""

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        self._has_room: list[Callable[[Any], None]] = []
        self.asked = 0
        self.room: Callable[[], int] = lambda: 100

    def _on_room(self, callback: Callable[[None], object], *, loop: Any) -> Registered:
        return Registered(self._has_room, lambda _: loop.call_soon_threadsafe(callback, None))

    @property
    def room_percent(self) -> int:  # type: ignore[override] # the test decides
        self.asked += 1
        return self.room()

    def segment_is_ready(self) -> None:
        self.room = lambda: 100
        for each in self._has_room:
            each(None)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LogWithoutSegment]:
    made = LogWithoutSegment(open_store(tmp_path / "store"))
    yield made
    made.close()


@pytest.fixture
def broker(log: LogWithoutSegment, tmp_path: Path) -> Iterator[Broker]:
    """With a host beside that of the log."""
    made, other = Broker(log), open_store(tmp_path / OTHER)
    made.call_async(lambda: made.server.open_host(OTHER, other))
    made.call(lambda: made.server.users.change("guest", hosts=["/", OTHER]))
    yield made
    made.stop()
    other.close()


def confirming(broker: Broker, host: str = "/") -> RawClient:
    client = broker.raw().open(virtual_host=host)
    client.send(1, commands.Confirm.Select())
    client.expect(commands.Confirm.SelectOk)
    client.declare("q", durable=True)
    return client


def with_unacknowledged(broker: Broker, log: LogWithoutSegment) -> RawClient:
    """A client that has MANY messages of the queue."""
    client = confirming(broker)
    log.publish_many("q", [b"%d" % number for number in range(MANY)], headers=[b""] * MANY)
    client.send(1, commands.Basic.Consume(queue="q", consumer_tag="c"))
    client.expect(commands.Basic.ConsumeOk)
    for _ in range(MANY):
        client.delivery()
    return client


def test_a_publisher_goes_on_when_the_next_segment_is_ready_although_nothing_is_committed(
    broker: Broker, log: LogWithoutSegment
) -> None:
    client, neighbour = confirming(broker), confirming(broker, OTHER)
    client.publish("q", b"0")
    client.expect(commands.Basic.Ack)
    log.force()
    asked = log.asked
    log.room = lambda: 50
    for number in range(1, 4):
        client.publish("q", b"%d" % number)
    wait_until(lambda: log.asked > asked, "the broker has read the publishes")
    neighbour.publish("q", b"of the other host")
    neighbour.expect(commands.Basic.Ack)
    nothing_comes(client)
    assert log.queue("q").depth == 1
    log.segment_is_ready()
    acked = 0
    while acked < 4:
        acked = client.expect(commands.Basic.Ack).delivery_tag
    got = log.queue("q").acquire(4)
    assert [bytes(each.content) for each in got] == [b"0", b"1", b"2", b"3"]


def test_consumers_get_messages_when_the_next_segment_is_ready_although_nothing_is_committed(
    broker: Broker, log: LogWithoutSegment
) -> None:
    client = confirming(broker)
    log.publish("q", b"waits", header=b"")
    log.room = lambda: 50
    client.send(1, commands.Basic.Consume(queue="q"))
    client.expect(commands.Basic.ConsumeOk)
    nothing_comes(client)
    log.segment_is_ready()
    assert client.delivery()[1] == b"waits"


@pytest.mark.parametrize("how", ["acknowledges", "rejects"])
def test_a_client_settles_very_many_in_slices_while_others_are_answered_and_its_order_is_kept(
    broker: Broker, log: LogWithoutSegment, how: str
) -> None:
    client, neighbour = with_unacknowledged(broker, log), confirming(broker, OTHER)
    queue = broker.server.hosts["/"].vhost.queues["q"]
    log.room = lambda: 30 if log.queue("q").depth <= MANY - 2 * SLICE_MAX else 100
    settles = commands.Basic.Ack(0, True) if how == "acknowledges" else commands.Basic.Nack(0, True, False)
    client.send(1, settles, commands.Basic.Qos(0, 1))
    wait_until(lambda: log.queue("q").depth == MANY - 2 * SLICE_MAX, "two slices are settled")
    neighbour.publish("q", b"of the other host")
    neighbour.expect(commands.Basic.Ack)
    nothing_comes(client)
    assert log.queue("q").depth == MANY - 2 * SLICE_MAX
    log.segment_is_ready()
    client.expect(commands.Basic.QosOk)
    assert log.queue("q").depth == 0
    assert broker.call(lambda: (queue.unacknowledged_count, queue.acknowledged)) == (
        0,
        MANY if how == "acknowledges" else 0,
    )


def test_what_a_client_has_acknowledged_takes_effect_although_it_is_gone_before_the_log_has_room(
    broker: Broker, log: LogWithoutSegment
) -> None:
    client = with_unacknowledged(broker, log)
    log.room = lambda: 30 if log.queue("q").depth <= MANY - SLICE_MAX else 100
    client.send(1, commands.Basic.Ack(0, True))
    wait_until(lambda: log.queue("q").depth == MANY - SLICE_MAX, "a slice is settled")
    connections = broker.server.hosts["/"].connections
    broker.call(lambda: [each.transport.abort() for each in connections])  # it is not read, so its end would be missed
    wait_until(lambda: broker.call(lambda: not connections), "the connection is gone")
    client.socket.close()
    log.segment_is_ready()
    wait_until(lambda: log.queue("q").depth == 0, "all are settled")


def test_a_broker_that_stops_does_not_wait_for_room(broker: Broker, log: LogWithoutSegment) -> None:
    client = with_unacknowledged(broker, log)
    log.room = lambda: 30 if log.queue("q").depth <= MANY - SLICE_MAX else 100
    client.send(1, commands.Basic.Ack(0, True))
    wait_until(lambda: log.queue("q").depth == MANY - SLICE_MAX, "a slice is settled")
    broker.stop()
    assert not broker.mishaps


def test_very_many_overdue_messages_go_in_turns_and_only_while_the_log_has_room(
    broker: Broker, log: LogWithoutSegment
) -> None:
    confirming(broker).declare("short", durable=True, arguments={"x-message-ttl": 1})
    overdue = encode_header(b"\x00\x05short", b"\x00\x00", 1, None)
    log.publish_many("short", [b""] * MANY, headers=[overdue] * MANY)
    queue = broker.server.hosts["/"].vhost.queues["short"]
    looked_again = threading.Event()

    def room() -> int:
        if log.queue("short").depth > MANY - TURN_MAX:
            return 100
        looked_again.set()
        return 50

    log.room = room
    broker.call(queue.may_expire)
    assert looked_again.wait(PATIENCE_S), "the broker has not looked at the room after the first turn"
    assert log.queue("short").depth == MANY - TURN_MAX
    log.segment_is_ready()
    wait_until(lambda: log.queue("short").depth == 0, "all are removed")
