"""Clients that mostly wait for each confirm, with everything else between: each message and confirm comes once."""

from __future__ import annotations

import random
import socket
from typing import TYPE_CHECKING, Any

import pytest
from pamqp import commands

from kit.amqp_client import publish_bytes
from kit.patience import wait_until
from logstore.broker import wakeups

if TYPE_CHECKING:
    from collections.abc import Callable

    from kit.amqp_client import RawClient
    from kit.live_broker import Broker

pytestmark = pytest.mark.direct_only("the store sends no confirm of a client that another member relays")

QUEUE = "q"
SHORT = 400  # publishes on the short path


@pytest.fixture(autouse=True)
def _short_path_is_tried_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wakeups, "USUAL_AFTER", 0)


def with_confirms(client: RawClient, number: int) -> None:
    client.send(number, commands.Confirm.Select())
    client.expect(commands.Confirm.SelectOk)


def short_publishes(broker: Broker) -> list[int]:
    """What the publishes on the short path return from now on."""
    host = broker.server.hosts["/"].wakeups
    usual, found = host.publish, []

    def publish(*arguments: Any) -> int:
        found.append(usual(*arguments))
        return found[-1]

    broker.call(lambda: setattr(host, "publish", publish))
    return found


class Storm:
    """One client with two channels, and another one; checks each frame that the first one gets."""

    def __init__(self, broker: Broker, seed: int) -> None:
        self.broker = broker
        self.chance = random.Random(seed)
        self.client = broker.raw().open(channels=2)
        self.client.declare(QUEUE, durable=True)
        (self.connection,) = broker.server.connections
        self.other = broker.raw().open()
        for client, number in ((self.client, 1), (self.client, 2), (self.other, 1)):
            with_confirms(client, number)
        self.bodies: dict[int, list[bytes]] = {1: [], 2: [], 3: []}  # 3: of the other client
        self.taken: list[bytes] = []
        self.sent = {1: 0, 2: 0}
        self.confirmed = {1: 0, 2: 0}
        self.asked: dict[int, list[int]] = {1: [], 2: []}  # how many were sent when the channel asked something

    def made(self, number: int) -> bytes:
        body = b"%d %d" % (number, len(self.bodies[number])) + b"x" * self.chance.choice((0, 0, 0, 30, 30_000))
        self.bodies[number].append(body)
        return publish_bytes(QUEUE, body, channel=number if number < 3 else 1)

    def next(self, number: int, count: int = 1) -> bytes:
        self.sent[number] += count
        return b"".join(self.made(number) for _ in range(count))

    def read(self) -> None:
        number, value = self.client.receive()
        if isinstance(value, commands.Basic.Ack):
            tag, before = value.delivery_tag, self.confirmed[number]
            assert before < tag <= self.sent[number]
            assert value.multiple or tag == before + 1
            self.confirmed[number] = tag
        elif isinstance(value, commands.Queue.DeclareOk | commands.Channel.CloseOk):
            assert self.confirmed[number] >= self.asked[number].pop(0)
        else:
            assert isinstance(value, commands.Connection.Blocked)

    def catch_up(self) -> None:
        while self.confirmed != self.sent or any(self.asked.values()):
            self.read()

    def lone(self) -> None:
        for _ in range(self.chance.randrange(1, 9)):
            self.client.send_bytes(self.next(self.chance.choice((1, 1, 1, 2))))
            self.catch_up()

    def burst(self) -> None:
        for _ in range(self.chance.randrange(1, 4)):
            number = self.chance.choice((1, 2))
            self.client.send_bytes(self.next(number, self.chance.randrange(1, 4)))

    def pieces(self) -> None:
        data = self.next(1)
        at = self.chance.randrange(1, len(data))
        self.client.send_bytes(data[:at])
        self.broker.call(lambda: None)
        self.client.send_bytes(data[at:])

    def ask(self) -> None:
        number = self.chance.choice((1, 2))
        self.asked[number].append(self.sent[number])
        self.client.send(number, commands.Queue.Declare(queue=QUEUE, passive=True))

    def reopen(self) -> None:
        self.asked[2].append(self.sent[2])
        self.client.send(2, commands.Channel.Close(200, "", 0, 0))
        self.catch_up()
        self.client.open_channel(2)
        with_confirms(self.client, 2)
        self.sent[2] = self.confirmed[2] = 0

    def tell(self) -> None:
        self.broker.call(lambda: self.connection.reply(commands.Connection.Blocked("of its own accord")))

    def others_publish(self) -> None:
        self.other.send_bytes(self.made(3))
        self.other.expect(commands.Basic.Ack)

    def others_get(self) -> None:
        self.other.send(1, commands.Basic.Get(queue=QUEUE, no_ack=True))
        _, value = self.other.receive()
        if isinstance(value, commands.Basic.GetOk):
            self.taken.append(self.other.content()[1])

    def run(self, goes_on: Callable[[], bool]) -> None:
        steps: list[Callable[[], None]] = [
            self.burst,
            self.pieces,
            self.ask,
            self.reopen,
            self.tell,
            self.others_publish,
            self.others_get,
        ]
        while goes_on():
            self.lone()
            self.chance.choice(steps)()
            if self.chance.random() < 0.8:
                self.catch_up()
        self.catch_up()


@pytest.mark.parametrize("seed", range(3))
def test_each_message_is_stored_once_and_confirmed_once_in_order_whatever_comes_between(
    broker: Broker, seed: int
) -> None:
    storm = Storm(broker, seed)
    returned = short_publishes(broker)
    storm.run(lambda: sum(lsn > 0 for lsn in returned) < SHORT)
    store = broker.store
    left = [store.load_content(each.id) for each in store.queue(QUEUE).browse()]
    everything = storm.taken + left
    for number, bodies in storm.bodies.items():
        assert [each for each in everything if each.startswith(b"%d " % number)] == bodies
    assert broker.call(lambda: broker.server.hosts["/"].vhost.queues[QUEUE].published) == len(everything)
    storm.ask()
    storm.catch_up()
    storm.other.declare(QUEUE, durable=True)  # the store has a confirm of neither any more
    assert broker.call(lambda: [each.replies.size_bytes for each in broker.server.connections]) == [0, 0]


def test_a_client_that_goes_while_its_publish_is_under_way_leaves_nothing_to_the_next_one(broker: Broker) -> None:
    returned = short_publishes(broker)
    broker.raw().open().declare(QUEUE, durable=True)
    for _ in range(50):
        client = broker.raw().open()
        with_confirms(client, 1)
        count, tag = len(returned), 0
        while not any(lsn > 0 for lsn in returned[count:]):
            client.publish(QUEUE, b"confirmed")
            tag += 1
            assert client.expect(commands.Basic.Ack).delivery_tag == tag
        client.publish(QUEUE, b"maybe")
        client.socket.close()  # the next client may get the number that its socket had in the broker
    broker.wait_for_connections(1)
    assert broker.call(lambda: broker.server.budget.output.used_bytes) == 0


def test_the_confirm_of_a_full_socket_is_sent_as_a_whole_once_its_client_reads(broker: Broker) -> None:
    """It publishes one by one, and reads nothing, so a confirm does not fit at some time, or only in part."""
    client = broker.raw(receive_buffer=2048).open()
    client.declare(QUEUE, durable=True)
    with_confirms(client, 1)
    (connection,) = broker.server.connections
    with socket.fromfd(connection.socket, socket.AF_INET, socket.SOCK_STREAM) as its_own:
        its_own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # the least that the kernel allows
    store, queue = broker.store, broker.server.hosts["/"].vhost.queues[QUEUE]
    sent = 0

    def is_full() -> bool:
        nonlocal sent
        client.publish(QUEUE, b"x")
        sent += 1
        wait_until(lambda: queue.published == sent and store.durable_lsn == store.next_lsn, "it is stored")
        return broker.call(lambda: connection.transport.get_write_buffer_size()) > 0

    wait_until(is_full, "the socket is full")
    tag = 0
    while tag < sent:
        ack = client.expect(commands.Basic.Ack)
        assert ack.delivery_tag > tag
        assert ack.multiple or ack.delivery_tag == tag + 1
        tag = ack.delivery_tag


def test_a_publisher_that_may_have_little_undurable_waits_for_the_disk_after_each(
    start_broker: Callable[..., Broker],
) -> None:
    broker = start_broker(undurable_bytes_max=1)
    client = broker.raw().open()
    client.declare(QUEUE, durable=True)
    with_confirms(client, 1)
    for tag in range(1, 300):
        client.publish(QUEUE, b"x")
        assert client.expect(commands.Basic.Ack).delivery_tag == tag
    assert broker.call(lambda: [each.receiving.pauses for each in broker.server.connections]) == [0]
    assert broker.store.queue(QUEUE).counts().depth == 299
