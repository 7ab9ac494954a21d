"""The broker beside other users of the same store, and on stores that are opened or fail in other ways."""

from __future__ import annotations

import random
import socket
import struct
import threading
import time
from typing import TYPE_CHECKING, Any

import pika
import pytest
from pamqp import commands

import logstore
from kit.live_broker import Broker, open_store
from kit.patience import PATIENCE_S, wait_until
from kit.store_proxies import BrokenStore
from logstore.broker import BrokerError, Limits, run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def on_store(tmp_path: Path, broker_class: type[Broker]) -> Iterator[Callable[..., Broker]]:
    brokers: list[Broker] = []

    def start(store: Any, **limits: Any) -> Broker:
        brokers.append(broker_class(store, Limits(**limits)))
        return brokers[-1]

    yield start
    for broker in brokers:
        broker.stop()
        broker.store.close()


def consume(broker: Broker, queue: str) -> Any:
    client = broker.raw().open()
    client.send(1, commands.Basic.Consume(queue=queue))
    client.expect(commands.Basic.ConsumeOk)
    return client


def test_messages_that_a_program_publishes_reach_waiting_consumers(broker: Broker) -> None:
    broker.raw().open().declare("q", durable=True)
    client = consume(broker, "q")
    broker.store.publish("q", b"from the library", header=b"")
    assert client.delivery()[1] == b"from the library"
    with broker.store.transaction() as transaction:
        broker.store.publish("q", b"in a transaction", transaction=transaction)
    assert client.delivery()[1] == b"in a transaction"


def test_what_a_program_gives_back_reaches_a_waiting_consumer(broker: Broker) -> None:
    broker.raw().open().declare("q", durable=True)
    queue = broker.store.queue("q")
    key = broker.store.publish(queue, b"kept back", header=b"")
    transaction = broker.store.begin()
    broker.store.dequeue(key, queue, transaction)
    client = consume(broker, "q")
    transaction.rollback()
    assert client.delivery()[1] == b"kept back"
    held = broker.store.publish(queue, b"acquired", header=b"", acquire=True)
    held.release()
    assert client.delivery()[1] == b"acquired"


def test_only_the_queue_on_which_something_happens_is_served(broker: Broker) -> None:
    client = broker.raw().open()
    for name in ("idle", "q"):
        client.declare(name, durable=True)
    consume(broker, "idle")
    busy = consume(broker, "q")
    host = broker.server.hosts["/"]
    served: list[str] = []

    def count() -> None:
        for name in ("idle", "q"):
            queue = host.vhost.queues[name]
            queue.serve = lambda name=name, serve=queue.serve: served.append(name) or serve()

    broker.call(count)
    for number in range(20):
        broker.store.publish("q", b"%d" % number, header=b"")
        assert busy.delivery()[1] == b"%d" % number
    assert set(broker.call(lambda: list(served))) == {"q"}


def test_a_queue_is_listened_to_while_it_has_consumers(broker: Broker) -> None:
    broker.raw().open().declare("q", durable=True)
    host = broker.server.hosts["/"]
    client = consume(broker, "q")
    listeners = [one for each in host.wakeups._watched.values() for one in each]
    assert [one.closed for one in listeners] == [False, False]
    client.socket.close()
    wait_until(lambda: all(one.closed for one in listeners))
    assert not host.wakeups._watched
    consume(broker, "q")
    listeners = [one for each in host.wakeups._watched.values() for one in each]
    broker.stop()
    assert [one.closed for one in listeners] == [True, True]


@pytest.mark.parametrize("header", [b"\x00", b"\x01\x00", b"\x01\x00 short", b"\x01\x00" + bytes(11), b"\x01\x01"])
def test_a_header_of_a_program_that_looks_like_the_broker_s_own_is_delivered_as_none(
    broker: Broker, header: bytes
) -> None:
    broker.raw().open().declare("q", durable=True)
    client = consume(broker, "q")
    for _ in range(2):
        broker.store.publish("q", b"from the library", header=header)
        deliver, body = client.delivery()
        assert (deliver.exchange, deliver.routing_key, body) == ("", "q", b"from the library")


def test_rejected_messages_reach_the_consumers_of_their_dead_letter_queue(
    on_store: Callable[..., Broker], tmp_path: Path
) -> None:
    store = open_store(tmp_path / "store")
    store.declare_queue("dead")
    store.declare_queue("q", dead_letter="dead")
    broker = on_store(store)
    undertaker = consume(broker, "dead")
    client = consume(broker, "q")
    client.publish("q", b"unwanted")
    deliver, _ = client.delivery()
    client.send(1, commands.Basic.Reject(deliver.delivery_tag, requeue=False))
    deliver, body = undertaker.delivery()
    assert (body, deliver.redelivered, deliver.routing_key) == (b"unwanted", False, "q")


def test_an_acknowledgement_that_the_store_refuses_closes_the_channel_and_loses_nothing(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = broker.pika().channel()
    setup.queue_declare("q", durable=True)
    setup.confirm_delivery()
    for number in range(3):
        setup.basic_publish("", "q", b"%d" % number)
    client = consume(broker, "q")
    for _ in range(3):
        client.delivery()

    def refuse(*_: Any, **__: Any) -> None:
        raise logstore.StoreFull("no room for the record")

    with monkeypatch.context() as patched:
        patched.setattr(logstore.Queue, "accept", refuse)
        patched.setattr(logstore.Queue, "accept_many", refuse)
        client.send(1, commands.Basic.Ack(3, multiple=True))
        client.expect_channel_close(506)
    received = [setup.basic_get("q", auto_ack=True)[2] for _ in range(3)]
    assert received == [b"0", b"1", b"2"]


def test_an_unreadable_message_is_skipped_and_the_others_are_delivered(broker: Broker) -> None:
    setup = broker.pika().channel()
    setup.queue_declare("q", durable=True)
    setup.confirm_delivery()
    bodies = [b"message %d of three" % number for number in range(3)]
    for body in bodies:
        setup.basic_publish("", "q", body)
    for path in broker.store.path.rglob("*.seg"):
        at = path.read_bytes().find(bodies[1])
        if at >= 0:
            with path.open("r+b") as file:
                file.seek(at)
                file.write(b"M")
    with pytest.raises(logstore.CorruptLog):
        [message.content for message in broker.store.messages("q")]
    client = consume(broker, "q")
    assert [client.delivery()[1] for _ in range(2)] == [bodies[0], bodies[2]]
    assert client.declare("q", passive=True).message_count == 0
    assert broker.store.queue("q").depth == 3


def test_on_a_relaxed_store_confirms_do_not_wait_for_the_disk(on_store: Callable[..., Broker], tmp_path: Path) -> None:
    broker = on_store(logstore.open(tmp_path / "store", durability="relaxed"))
    client = broker.raw().open()
    client.declare("q", durable=True)
    client.send(1, commands.Confirm.Select())
    client.expect(commands.Confirm.SelectOk)
    for number in range(1, 101):
        client.publish("q", b"x")
        assert client.expect(commands.Basic.Ack).delivery_tag == number
    broker.store.force()  # messages are offered once they are durable
    client.send(1, commands.Basic.Get(queue="q"))
    client.expect(commands.Basic.GetOk)


def test_a_full_store_can_be_drained_through_the_broker_and_filled_again(
    on_store: Callable[..., Broker], tmp_path: Path
) -> None:
    store = logstore.open(tmp_path / "store", segment_size=512 * 1024, max_log_bytes=6 * 512 * 1024)
    broker = on_store(store)
    client = broker.raw().open()
    client.declare("q", durable=True)
    client.send(1, commands.Confirm.Select())
    client.expect(commands.Confirm.SelectOk)
    stored = 0
    while True:
        client.publish("q", bytes(20_000))
        if isinstance(client.receive()[1], commands.Basic.Nack):
            break
        stored += 1
    assert stored > 10
    for left in reversed(range(stored)):
        client.send(1, commands.Basic.Get(queue="q"))
        got = client.expect(commands.Basic.GetOk)
        assert got.message_count == left
        client.content()
        client.send(1, commands.Basic.Ack(got.delivery_tag))
    client.declare("q", passive=True)

    def is_stored() -> bool:
        client.publish("q", b"again")
        return isinstance(client.receive()[1], commands.Basic.Ack)

    wait_until(is_stored, "the dequeues on the disk, when the base moves")


def test_a_poisoned_store_ends_the_command_with_one_plain_line(tmp_path: Path) -> None:
    store = BrokenStore(open_store(tmp_path / "store"))
    threading.Timer(1.0, store.break_down).start()
    try:
        with pytest.raises(BrokerError, match="can no longer write"):
            run(store, port=0)
    finally:
        store.close()


def test_clients_that_disconnect_at_any_moment_lose_nothing_and_disturb_no_other(broker: Broker) -> None:
    setup = broker.pika().channel()
    setup.queue_declare("q", durable=True)
    setup.confirm_delivery()
    for number in range(200):
        setup.basic_publish("", "q", b"%03d" % number + bytes(2000))
    dice = random.Random(11)

    def vanish(client: Any) -> None:
        linger = struct.pack("ii", 1, 0)  # a reset instead of a proper end
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        client.socket.close()

    for _ in range(60):
        client = broker.raw().open()
        client.send(1, commands.Basic.Qos(0, dice.randrange(100)), commands.Basic.Consume(queue="q"))
        time.sleep(dice.random() * 0.005)
        if dice.random() < 0.5:
            client.send_bytes(b"\x01\x00\x01\x00\x00\x00\x40half a frame")
        vanish(client)
    last = broker.raw().open()
    last.send(1, commands.Basic.Consume(queue="q"))
    last.expect(commands.Basic.ConsumeOk)
    assert [int(last.delivery()[1][:3]) for _ in range(200)] == list(range(200))


def test_many_clients_at_once_get_each_message_once(broker: Broker) -> None:
    setup = broker.pika().channel()
    setup.queue_declare("q", durable=True)
    received: list[bytes] = []
    lock = threading.Lock()

    def publish(number: int) -> None:
        with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            for count in range(100):
                channel.basic_publish("", "q", b"%d-%d" % (number, count))

    def consume_all() -> None:
        with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port)) as connection:
            channel = connection.channel()
            channel.basic_qos(prefetch_count=7)
            for method, _, body in channel.consume("q", inactivity_timeout=0.2):
                if method is None:
                    if len(received) >= 600:
                        return
                    continue
                with lock:
                    received.append(body)
                channel.basic_ack(method.delivery_tag)

    threads = [threading.Thread(target=publish, args=(number,), daemon=True) for number in range(6)]
    threads += [threading.Thread(target=consume_all, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert len(received) == len(set(received)) == 600
