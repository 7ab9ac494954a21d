"""CoilMQ with this store under ``kill -9``: a real broker process, a real STOMP client, the promises of receipts."""

from __future__ import annotations

import random
import signal
import threading
from typing import TYPE_CHECKING

import pytest
import stomp

from kit.stomp_broker import CONFIG, Broker, Client

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.acceptance

ORDERS = "/queue/orders"
EVERY_BYTE = bytes(range(256))


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    made = Broker(tmp_path)
    yield made
    made.kill()


def consume_all(port: int, destination: str, ack: str = "client") -> list[tuple[dict[str, str], bytes]]:
    """Takes all messages and acknowledges them one by one; a last message, sent at the end, marks the end."""
    client = Client(port)
    assert client.send(destination, b"the end")
    client.subscribe(destination, ack)
    taken: list[tuple[dict[str, str], bytes]] = []
    while True:
        headers, body = client.got(len(taken) + 1)[-1]
        if ack == "client":
            assert client.ack(headers)
        if body == b"the end":
            client.disconnect()
            return taken
        taken.append((headers, body))


def test_frames_with_a_receipt_are_received_again_once_in_order_and_byte_for_byte(broker: Broker) -> None:
    client = Client(broker.start().port)
    sent = [
        (EVERY_BYTE * (number % 9) + b"%d" % number, {"number": str(number), "text": "naïve – \u4e2d"})
        for number in range(50)
    ]
    for body, headers in sent:
        assert client.send(ORDERS, body, **headers)
    broker.kill()

    taken = consume_all(broker.start().port, ORDERS)

    assert [body for _, body in taken] == [body for body, _ in sent]
    assert [{name: headers[name] for name in ("number", "text")} for headers, _ in taken] == [
        headers for _, headers in sent
    ]
    assert len({headers["message-id"] for headers, _ in taken}) == len(sent)


def test_acknowledged_frames_do_not_return_and_sent_ones_return_in_their_place(broker: Broker) -> None:
    client = Client(broker.start().port)
    for number in range(10):
        assert client.send(ORDERS, b"%d" % number)
    client.subscribe(ORDERS)
    for number in range(4):
        headers, body = client.got(number + 1)[-1]
        assert body == b"%d" % number
        assert client.ack(headers)
    unacknowledged = client.got(5)[-1]
    broker.kill()

    taken = consume_all(broker.start().port, ORDERS)

    assert [body for _, body in taken] == [b"%d" % number for number in range(4, 10)]
    assert taken[0][0]["message-id"] == unacknowledged[0]["message-id"]
    broker.kill()
    assert consume_all(broker.start().port, ORDERS) == []


def test_a_message_handed_to_a_waiting_subscriber_is_stored_before_its_receipt(broker: Broker) -> None:
    consumer = Client(broker.start().port)
    consumer.subscribe(ORDERS)
    publisher = Client(broker.port)
    assert publisher.send(ORDERS, b"straight through", kept="yes")
    headers, body = consumer.got(1)[0]
    assert (body, headers["kept"]) == (b"straight through", "yes")
    broker.kill()

    ((headers, body),) = consume_all(broker.start().port, ORDERS)

    assert (body, headers["kept"]) == (b"straight through", "yes")


def test_an_acknowledged_message_is_gone_though_its_publisher_stays_connected(broker: Broker) -> None:
    consumer = Client(broker.start().port)
    consumer.subscribe(ORDERS)
    publisher = Client(broker.port)
    assert publisher.send(ORDERS, b"once")
    headers, _ = consumer.got(1)[0]
    assert consumer.ack(headers)
    broker.kill()

    assert consume_all(broker.start().port, ORDERS) == []


def test_a_subscriber_that_does_not_acknowledge_gets_each_message_once(broker: Broker) -> None:
    client = Client(broker.start().port)
    for number in range(5):
        assert client.send(ORDERS, b"%d" % number)
    client.subscribe(ORDERS, ack="auto")
    assert client.send(ORDERS, b"5")
    assert [body for _, body in client.got(6)] == [b"%d" % number for number in range(6)]
    broker.kill()

    assert consume_all(broker.start().port, ORDERS) == []


def test_a_consumer_that_disconnects_leaves_its_message_in_its_place(broker: Broker) -> None:
    client = Client(broker.start().port)
    for number in range(3):
        assert client.send(ORDERS, b"%d" % number)
    consumer = Client(broker.port)
    consumer.subscribe(ORDERS)
    assert consumer.got(1)[0][1] == b"0"
    consumer.disconnect()
    consumer.wait_until(lambda: not consumer.connected)

    assert [body for _, body in consume_all(broker.port, ORDERS)] == [b"0", b"1", b"2"]


def test_a_committed_transaction_is_stored_and_an_open_one_never_was(broker: Broker) -> None:
    client = Client(broker.start().port)
    for transaction, body in [("kept", b"one"), ("kept", b"two"), ("given up", b"three"), ("open", b"four")]:
        if body != b"two":
            client.begin(transaction)
        client.send_in(transaction, ORDERS, body)
    assert client.abort("given up")
    assert client.commit("kept")
    broker.kill()

    assert [body for _, body in consume_all(broker.start().port, ORDERS)] == [b"one", b"two"]


def test_an_acknowledgement_in_a_transaction_counts_at_its_commit(broker: Broker) -> None:
    client = Client(broker.start().port)
    for body in (b"first", b"second"):
        assert client.send(ORDERS, body)
    client.subscribe(ORDERS)
    client.begin("t")
    assert client.ack(client.got(1)[0][0], transaction="t")
    broker.kill()

    client = Client(broker.start().port)
    client.subscribe(ORDERS)
    client.begin("t")
    headers, body = client.got(1)[0]
    assert body == b"first"
    assert client.ack(headers, transaction="t")
    assert client.commit("t")
    broker.kill()

    assert [body for _, body in consume_all(broker.start().port, ORDERS)] == [b"second"]


def test_an_orderly_end_keeps_what_a_kill_keeps(broker: Broker) -> None:
    client = Client(broker.start().port)
    for body in (b"acknowledged", b"sent", b"waiting"):
        assert client.send(ORDERS, body)
    client.subscribe(ORDERS)
    assert client.ack(client.got(1)[0][0])
    assert client.got(2)[1][1] == b"sent"
    client.disconnect()
    client.wait_until(lambda: not client.connected)
    broker.stop(signal.SIGINT)

    assert [body for _, body in consume_all(broker.start().port, ORDERS)] == [b"sent", b"waiting"]


def test_nothing_with_a_receipt_is_lost_or_comes_again_however_often_the_broker_is_killed_at_work(
    broker: Broker,
) -> None:
    chance = random.Random(20)
    confirmed: list[bytes] = []
    acknowledged: list[bytes] = []
    received: list[bytes] = []
    numbers = iter(range(1 << 30))

    def publish(port: int) -> None:
        client = Client(port)
        with_receipt = True
        while with_receipt:
            body = b"%d" % next(numbers)
            try:
                with_receipt = client.send(ORDERS, body)
            except (OSError, stomp.exception.StompException):
                return
            if with_receipt:
                confirmed.append(body)

    def consume(port: int) -> None:
        client = Client(port)
        client.subscribe(ORDERS)
        taken = 0
        while True:
            client.wait_until(lambda: len(client.frames) > taken or not client.connected)  # noqa: B023 - used at once
            if len(client.frames) == taken:
                return
            headers, body = client.frames[taken]
            taken += 1
            received.append(body)
            try:
                if client.ack(headers):
                    acknowledged.append(body)
            except (OSError, stomp.exception.StompException):
                return

    for _ in range(4):
        broker.start()
        wanted = len(acknowledged) + chance.randint(5, 60)
        clients = [threading.Thread(target=work, args=(broker.port,)) for work in (publish, consume)]
        for thread in clients:
            thread.start()
        while len(acknowledged) < wanted:
            assert all(thread.is_alive() for thread in clients)
            clients[1].join(0.01)
        broker.kill()
        for thread in clients:
            thread.join(120)
            assert not thread.is_alive()

    at_the_end = [body for _, body in consume_all(broker.start().port, ORDERS, ack="auto")]
    assert len(acknowledged) > 20
    assert len(set(acknowledged)) == len(acknowledged), "an acknowledged message came again"
    assert not set(acknowledged) & set(at_the_end), "an acknowledged message came again"
    assert len(set(at_the_end)) == len(at_the_end), "a message came twice"
    assert not set(confirmed) - set(received) - set(at_the_end), "a confirmed message is lost"
    first_seen = list(dict.fromkeys(received + at_the_end))
    assert first_seen == sorted(first_seen, key=int), "out of order"


def test_a_full_store_refuses_with_an_error_and_works_again_once_drained(tmp_path: Path) -> None:
    small = Broker(tmp_path, CONFIG + "qstore.logstore.max_log_bytes = 3145728\n")  # the least: six segments
    try:
        client = Client(small.start().port)
        stored = 0
        while client.send(ORDERS, bytes(3000)):
            stored += 1
            assert stored < 2000, "never full"
        assert stored > 200
        assert "full" in client.errors[0], client.errors
        client.subscribe(ORDERS, ack="auto")
        assert len(client.got(stored)) == stored
        assert client.send(ORDERS, b"again")
        assert client.got(stored + 1)[-1][1] == b"again"
    finally:
        small.kill()


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (
            CONFIG.replace("scheduler.subscriber_priority_factory = logstore.plugins.coilmq.make_scheduler", ""),
            "set scheduler.subscriber_priority_factory = logstore.plugins.coilmq.make_scheduler",
        ),
        (CONFIG.replace("qstore.logstore.data_dir = {data_dir}", ""), "qstore.logstore.data_dir is not set"),
        (CONFIG + "qstore.logstore.segmentsize = 1\n", "qstore.logstore.segmentsize is not known"),
    ],
    ids=["no scheduler", "no directory", "a misspelt option"],
)
def test_a_broker_with_an_unsafe_setting_does_not_start_and_names_the_right_setting(
    tmp_path: Path, config: str, said: str
) -> None:
    broker = Broker(tmp_path, config)
    broker.spawn()
    broker.wait()
    assert said in broker.log()
    assert "listening on" not in broker.log()
