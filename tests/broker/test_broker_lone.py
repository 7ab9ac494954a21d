"""The publish of a client that waits for each confirm: its short path means the same as the usual one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pamqp import commands

from kit.amqp_client import publish_bytes
from kit.patience import wait_until
from kit.store_proxies import Proxy
from logstore.broker.headers import decode_header
from logstore.broker.memory import HELD_BYTES
from logstore.broker.wakeups import PUBLISH_PERCENT

if TYPE_CHECKING:
    from kit.amqp_client import RawClient
    from kit.live_broker import Broker

pytestmark = pytest.mark.direct_only("the store sends no confirm of a client that another member relays")

QUEUE = "q"


class Lone:
    """A client that waits for each confirm, and what its publishes on the short path returned."""

    def __init__(self, broker: Broker, *, channels: int = 1) -> None:
        self.broker = broker
        self.client = broker.raw().open(channels=channels, wants_blocked=True)
        self.client.declare(QUEUE, durable=True)
        self.client.send(1, commands.Confirm.Select())
        self.client.expect(commands.Confirm.SelectOk)
        self.wakeups = broker.server.hosts["/"].wakeups
        self.lsns: list[int] = []
        self.tag = 0
        usual = self.wakeups.publish

        def publish(*arguments: Any) -> int:
            self.lsns.append(usual(*arguments))
            return self.lsns[-1]

        broker.call(lambda: setattr(self.wakeups, "publish", publish))

    def confirmed(self, body: bytes = b"x", key: str = QUEUE, **options: Any) -> None:
        self.client.publish(key, body, **options)
        self.tag += 1
        ack = self.client.expect(commands.Basic.Ack)
        assert (ack.delivery_tag, ack.multiple) == (self.tag, False)

    def arm(self, **options: Any) -> int:
        """Publishes until one took the short path, and the store has its confirm. Returns how many were published."""
        before = self.tag

        def is_short() -> bool:
            self.confirmed(**options)
            return bool(self.lsns) and self.lsns[-1] > 0 and self.is_armed()

        wait_until(is_short, "a publish takes the short path")
        return self.tag - before

    def is_armed(self) -> bool:
        return self.broker.call(lambda: any(each.answerer is not None for each in self.broker.server.connections))


@pytest.fixture
def lone(broker: Broker) -> Lone:
    return Lone(broker)


def stored(broker: Broker, queue: str = QUEUE) -> list[tuple[bytes, Any]]:
    return [
        (broker.store.load_content(each.id), decode_header(each.header, b""))
        for each in broker.store.queue(queue).browse()
    ]


def test_a_publish_on_the_short_path_is_stored_and_counted_as_every_other_one(broker: Broker, lone: Lone) -> None:
    for size in (1, 1, 100, 3, 3):
        lone.arm(body=bytes(size))
    lone.client.publish(QUEUE, b"usual" * 20_000)
    lone.client.expect(commands.Basic.Ack)
    everything = stored(broker)
    assert len(everything) == lone.tag + 1
    assert {len(body) for body, _ in everything} == {1, 3, 100, 100_000}
    assert len({(head.routing, head.properties, head.expiration_ms) for _, head in everything}) == 1
    times = [head.published_ms for _, head in everything]
    assert times == sorted(times)
    assert broker.call(lambda: broker.server.hosts["/"].vhost.queues[QUEUE].published) == lone.tag + 1


def test_the_confirm_that_the_store_has_is_counted_once_and_not_after_it_was_taken_back(
    broker: Broker, lone: Lone
) -> None:
    def counted() -> list[int]:
        return [each.replies.size_bytes for each in broker.server.connections if each.answerer is not None]

    def is_counted() -> bool:
        lone.arm()
        return broker.call(counted) == [HELD_BYTES]

    wait_until(is_counted, "a confirm is with the store")
    lone.client.declare(QUEUE, durable=True)
    assert broker.call(lambda: [each.replies.size_bytes for each in broker.server.connections]) == [0]


def test_the_next_publish_may_come_in_pieces_or_with_others(lone: Lone) -> None:
    data = publish_bytes(QUEUE, b"x")
    for at in range(1, len(data)):
        lone.arm()
        lone.client.send_bytes(data[:at])
        lone.broker.call(lambda: None)  # it has seen them
        lone.client.send_bytes(data[at:])
        lone.tag += 1
        assert lone.client.expect(commands.Basic.Ack).delivery_tag == lone.tag
    lone.arm()
    lone.client.send_bytes(data * 3)
    last = 0
    while last < lone.tag + 3:
        last = lone.client.expect(commands.Basic.Ack).delivery_tag
    assert last == lone.tag + 3


def test_publishes_that_are_sent_before_the_last_confirm_came_are_confirmed_in_order(lone: Lone) -> None:
    for _ in range(20):
        lone.arm()
        for _ in range(5):
            lone.client.publish(QUEUE, b"x")
        end = lone.tag + 5
        while lone.tag < end:
            ack = lone.client.expect(commands.Basic.Ack)
            assert ack.delivery_tag > lone.tag
            assert ack.multiple or ack.delivery_tag == lone.tag + 1
            lone.tag = ack.delivery_tag


def test_a_message_with_another_key_goes_to_its_own_queue(broker: Broker, lone: Lone) -> None:
    lone.client.declare("r", durable=True)
    for key in (QUEUE, "r", QUEUE, "r"):
        lone.arm(key=key)
        lone.confirmed(key="r" if key == QUEUE else QUEUE)
    for queue in (QUEUE, "r"):
        routing = bytes((0, 1)) + queue.encode()
        assert {head.routing for _, head in stored(broker, queue)} == {routing}
    assert len(stored(broker)) + len(stored(broker, "r")) == lone.tag


def test_a_mandatory_message_is_returned_once_its_queue_is_gone(broker: Broker, lone: Lone) -> None:
    lone.arm(mandatory=True)
    other = broker.raw().open()
    other.send(1, commands.Queue.Delete(queue=QUEUE))
    other.expect(commands.Queue.DeleteOk)
    lone.client.publish(QUEUE, b"back", mandatory=True)
    assert lone.client.expect(commands.Basic.Return).reply_code == 312
    assert lone.client.content()[1] == b"back"
    assert lone.client.expect(commands.Basic.Ack).delivery_tag == lone.tag + 1


def test_a_queue_in_memory_that_is_bound_meanwhile_gets_the_next_message(broker: Broker, lone: Lone) -> None:
    def bound(queue: str, client: RawClient) -> None:
        client.send(1, commands.Queue.Bind(queue=queue, exchange="amq.fanout"))
        client.expect(commands.Queue.BindOk)

    bound(QUEUE, lone.client)
    count = lone.arm(exchange="amq.fanout")
    other = broker.raw().open()
    other.declare("memory", exclusive=True)
    bound("memory", other)
    lone.confirmed(b"both", exchange="amq.fanout")
    assert stored(broker)[count][0] == b"both"
    other.send(1, commands.Basic.Get(queue="memory", no_ack=True))
    other.expect(commands.Basic.GetOk)
    assert other.content()[1] == b"both"


def test_a_transaction_on_another_channel_keeps_its_own_order(broker: Broker) -> None:
    lone = Lone(broker, channels=2)
    lone.client.send(2, commands.Tx.Select())
    lone.client.expect(commands.Tx.SelectOk)
    lone.arm()
    lone.client.publish(QUEUE, b"pending", channel=2)
    lone.arm()
    assert b"pending" not in [body for body, _ in stored(broker)]
    lone.client.send(2, commands.Tx.Commit())
    lone.client.expect(commands.Tx.CommitOk)
    assert [body for body, _ in stored(broker)].count(b"pending") == 1
    lone.arm()


def test_a_consumer_that_comes_meanwhile_gets_every_message(broker: Broker, lone: Lone) -> None:
    lone.arm()
    other = broker.raw().open()
    other.send(1, commands.Basic.Consume(queue=QUEUE, no_ack=True))
    other.expect(commands.Basic.ConsumeOk)
    for _ in range(20):
        lone.confirmed()
    for _ in range(lone.tag):
        other.delivery()


def test_an_exception_of_the_channel_comes_after_the_last_confirm(lone: Lone) -> None:
    lone.arm()
    lone.client.publish(QUEUE, b"x")
    lone.client.publish(QUEUE, b"x", exchange="unknown")
    assert lone.client.expect(commands.Basic.Ack).delivery_tag == lone.tag + 1
    lone.client.expect_channel_close(404)


@pytest.mark.parametrize(
    ("name", "value"),
    [("nearly_full", True), ("room_percent", PUBLISH_PERCENT - 1), ("_publish_answered", lambda *_: 0)],
)
def test_the_short_path_is_not_taken_while_the_store_has_little_room_or_refuses_it(
    broker: Broker, lone: Lone, name: str, value: Any
) -> None:
    class Short(Proxy):
        """Says so where the short path asks."""

    setattr(Short, name, value)
    lone.arm()
    broker.call(lambda: setattr(lone.wakeups, "store", Short(broker.store)))
    lone.client.publish(QUEUE, b"usual")
    broker.call(lambda: setattr(lone.wakeups, "store", broker.store))
    lone.tag += 1
    assert lone.client.expect(commands.Basic.Ack).delivery_tag == lone.tag
    assert lone.lsns[-1] == 0
    assert [body for body, _ in stored(broker)].count(b"usual") == 1
    lone.arm()


def test_a_queue_that_is_deleted_and_declared_again_gets_the_next_message(broker: Broker, lone: Lone) -> None:
    other = broker.raw().open()
    for _ in range(5):
        lone.arm()
        other.send(1, commands.Queue.Delete(queue=QUEUE))
        other.expect(commands.Queue.DeleteOk)
        other.declare(QUEUE, durable=True)
        lone.confirmed(b"new")
        assert [body for body, _ in stored(broker)] == [b"new"]


def test_a_binding_that_changes_meanwhile_changes_where_the_next_message_goes(broker: Broker, lone: Lone) -> None:
    lone.client.declare("r", durable=True)
    other = broker.raw().open()

    def change(method: Any, answer: Any, queue: str) -> None:
        other.send(1, method(queue=queue, exchange="amq.direct", routing_key="key"))
        other.expect(answer)

    change(commands.Queue.Bind, commands.Queue.BindOk, QUEUE)
    for number in range(4):
        lone.arm(key="key", exchange="amq.direct")
        change(commands.Queue.Bind, commands.Queue.BindOk, "r")
        lone.confirmed(b"both", key="key", exchange="amq.direct")
        change(commands.Queue.Unbind, commands.Queue.UnbindOk, QUEUE)
        lone.confirmed(b"one", key="key", exchange="amq.direct")
        assert [body for body, _ in stored(broker, "r")][2 * number :] == [b"both", b"one"]
        change(commands.Queue.Bind, commands.Queue.BindOk, QUEUE)
        change(commands.Queue.Unbind, commands.Queue.UnbindOk, "r")
    assert len(stored(broker)) == lone.tag - 4


def test_messages_of_the_short_path_expire(broker: Broker, lone: Lone) -> None:
    lone.client.declare("short", durable=True, arguments={"x-message-ttl": 1})
    for _ in range(5):
        lone.arm(key="short")
    wait_until(lambda: not stored(broker, "short"), "all have expired")
