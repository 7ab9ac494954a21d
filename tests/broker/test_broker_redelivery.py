"""`redelivered` is true for what a client may have had, and only for that."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from pamqp import commands

from kit.amqp_client import RawClient
from kit.serve_process import serving
from logstore.broker import queues
from logstore.broker.streams import BodyStream
from logstore.store.queues import Queue

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kit.live_broker import Broker

every_way = pytest.mark.every_way
both_kinds = pytest.mark.parametrize("durable", [True, False])


def confirmed(client: RawClient, *bodies: bytes, queue: str = "q", **options: Any) -> None:
    """Publish with confirms, and wait for them."""
    client.send(1, commands.Confirm.Select())
    client.expect(commands.Confirm.SelectOk)
    for each in bodies:
        client.publish(queue, each, **options)
        client.expect(commands.Basic.Ack)


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def consume(client: RawClient, *tags: str, queue: str = "q", no_ack: bool = False, shared: int = 0) -> None:
    """Start these consumers, which may have this prefetch together; no delivery is read."""
    if shared:
        client.send(1, commands.Basic.Qos(0, shared, True))
        client.expect(commands.Basic.QosOk)
    for tag in tags:
        client.send(1, commands.Basic.Consume(queue=queue, consumer_tag=tag, no_ack=no_ack, nowait=True))


def marks(client: RawClient, count: int, *, ack: bool = True) -> list[tuple[bytes, bool]]:
    """The bodies of the next deliveries, and whether each is marked; each is acknowledged alone."""
    came = []
    for _ in range(count):
        deliver, body = client.delivery()
        came.append((body, deliver.redelivered))
        if ack:
            client.send(1, commands.Basic.Ack(deliver.delivery_tag))
    return came


def got(client: RawClient, queue: str = "q", *, channel: int = 1) -> tuple[bytes, bool]:
    """The body of the next message by basic.get, and whether it is marked."""
    client.send(channel, commands.Basic.Get(queue=queue))
    redelivered = client.expect(commands.Basic.GetOk).redelivered
    return client.content()[1], redelivered


@every_way
@both_kinds
def test_no_first_delivery_is_marked_when_consumers_share_a_prefetch(broker: Broker, durable: bool) -> None:
    client = broker.raw().open()
    client.declare("q", durable=durable)
    confirmed(broker.raw().open(), *numbered(100))
    consume(client, "a", "b", shared=10)
    assert sorted(marks(client, 100)) == sorted((body, False) for body in numbered(100))


@every_way
@both_kinds
def test_no_first_delivery_is_marked_when_bodies_are_longer_than_expected(broker: Broker, durable: bool) -> None:
    """The sizes of earlier bodies say how many messages are taken: here they say far too many."""
    bodies = [b"%04d" % number for number in range(300)]
    bodies += [b"%04d" % number * 25_000 for number in range(300, 330)]
    client = broker.raw(receive_buffer=4096).open()
    client.declare("q", durable=durable)
    confirmed(broker.raw().open(), *bodies)
    consume(client, "a", "b")
    assert sorted(marks(client, len(bodies), ack=False)) == [(body, False) for body in bodies]


@both_kinds
@pytest.mark.parametrize("tags", [("a",), ("a", "b")])
def test_what_finds_no_room_goes_to_another_client_unmarked(
    start_broker: Callable[..., Broker], durable: bool, tags: tuple[str, ...]
) -> None:
    """Room for a few bodies, and a client that reads nothing: the rest is for the other one."""
    broker = start_broker(unsent_bytes_high=10_000)
    slow = broker.raw(receive_buffer=4096).open()
    slow.declare("q", durable=durable)
    bodies = [b"%03d" % number for number in range(50)] + [b"%03d" % number * 20_000 for number in range(50, 200)]
    confirmed(broker.raw().open(), *bodies)
    consume(slow, *tags)
    broker.wait_until_unsent(10_000)
    other = broker.raw().open()
    count = other.declare("q", durable=durable, passive=True).message_count
    consume(other, "other")
    came = marks(other, count)
    assert came == [(body, False) for body in bodies[200 - count :]]


@every_way
@both_kinds
@pytest.mark.parametrize("how", ["get", "consume"])
def test_what_does_not_fit_the_frames_of_a_client_is_unmarked_for_the_next_one(
    broker: Broker, durable: bool, how: str
) -> None:
    small = broker.raw().open(frame_max=4096)
    small.declare("q", durable=durable)
    confirmed(setup := broker.raw().open(), b"wide", properties=commands.Basic.Properties(headers={"wide": "x" * 5000}))
    confirmed(setup, b"narrow")
    if how == "get":
        small.send(1, commands.Basic.Get(queue="q"))
    else:
        consume(small, "small")
    small.expect_channel_close(311)
    client = broker.raw().open()
    assert [got(client), got(client)] == [(b"wide", False), (b"narrow", False)]


def test_a_large_body_that_has_not_begun_is_unmarked_for_the_next_one(
    start_broker: Callable[..., Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = start_broker(inline_body_bytes_max=1000)
    reads, goes_on = threading.Event(), threading.Event()
    read_all = BodyStream._read_all

    def held(self: BodyStream) -> bytes:
        reads.set()
        assert goes_on.wait(60)
        return read_all(self)

    monkeypatch.setattr(BodyStream, "_read_all", held)
    client = broker.raw().open()
    client.declare("q", durable=True)
    confirmed(client, b"large" * 1000)
    consume(client, "a")
    assert reads.wait(60)
    client.socket.close()
    broker.wait_for_connections(0)
    goes_on.set()
    assert got(broker.raw().open()) == (b"large" * 1000, False)


@every_way
def test_what_waits_behind_a_large_body_is_unmarked(start_broker: Callable[..., Broker]) -> None:
    broker = start_broker(inline_body_bytes_max=1000)
    client = broker.raw().open()
    client.declare("q", durable=True)
    bodies = [b"%03d" % number * (1 if number % 4 else 1000) for number in range(80)]
    confirmed(broker.raw().open(), *bodies)
    consume(client, "a")
    assert marks(client, 80) == [(body, False) for body in bodies]


@every_way
@both_kinds
@pytest.mark.parametrize("how", ["requeue", "close", "disconnect"])
def test_what_a_client_had_is_marked_and_the_rest_is_not(broker: Broker, durable: bool, how: str) -> None:
    client = broker.raw().open()
    client.declare("q", durable=durable)
    confirmed(broker.raw().open(), *numbered(30))
    consume(client, "a", "b", shared=10)
    marks(client, 10, ack=False)
    if how == "requeue":
        client.send(1, commands.Basic.Cancel("a"), commands.Basic.Cancel("b"))
        client.expect(commands.Basic.CancelOk)
        client.expect(commands.Basic.CancelOk)
        client.send(1, commands.Basic.Nack(0, multiple=True, requeue=True))
    elif how == "close":
        client.send(1, commands.Channel.Close(200, "", 0, 0))
        client.expect(commands.Channel.CloseOk)
        client.open_channel(1)
    else:
        client.send(0, commands.Connection.Close(200, "", 0, 0))
        client.expect(commands.Connection.CloseOk)
        client = broker.raw().open()
    assert [got(client) for _ in range(30)] == [(body, int(body) < 10) for body in numbered(30)]


@every_way
def test_after_an_orderly_stop_only_what_was_handed_out_is_marked(
    restart_broker: Callable[[], Broker], way: str
) -> None:
    """A new leader counts as after a crash: everything may have been delivered."""
    broker = restart_broker()
    client = broker.raw().open()
    client.declare("q", durable=True)
    confirmed(broker.raw().open(), *numbered(100))
    consume(client, "a", "b", shared=10)
    marks(client, 10, ack=False)
    again = restart_broker().raw().open()
    consume(again, "a")
    assert marks(again, 100) == [(body, int(body) < 10 or way == "trio") for body in numbered(100)]


def test_a_dead_letter_is_marked_only_if_its_own_queue_has_delivered_it(restart_broker: Callable[[], Broker]) -> None:
    broker = restart_broker()
    broker.store.declare_queue("dead")
    broker.store.declare_queue("q", dead_letter="dead")
    broker = restart_broker()
    client = broker.raw().open()
    confirmed(broker.raw().open(), *numbered(3))
    consume(client, "a")
    assert marks(client, 3, ack=False) == [(body, False) for body in numbered(3)]
    client.send(1, commands.Basic.Nack(0, multiple=True, requeue=False), commands.Basic.Cancel("a"))
    client.expect(commands.Basic.CancelOk)
    client.declare("dead", passive=True, durable=True)
    assert got(client, "dead") == (b"0", False)
    client = restart_broker().raw().open()
    assert [got(client, "dead") for _ in range(3)] == [(b"0", True), (b"1", False), (b"2", False)]


def test_after_sigkill_everything_on_a_durable_queue_is_marked(tmp_path: Path) -> None:
    with serving(tmp_path / "store") as process:
        client = RawClient(process.port).open()
        client.declare("q", durable=True)
        confirmed(client, *numbered(2))
        assert got(client) == (b"0", False)
        process.kill()
        client.socket.close()
    with serving(tmp_path / "store") as process:
        client = RawClient(process.port).open()
        assert [got(client), got(client)] == [(b"0", True), (b"1", True)]
        client.socket.close()


def test_the_first_waiting_message_is_looked_up_behind_those_that_are_out(
    restart_broker: Callable[[], Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a start a queue does not know whether a message expires, and looks up the first one that waits."""
    restart_broker().raw().open().declare("q", durable=True)
    broker = restart_broker()
    confirmed(broker.raw().open(), *numbered(300), properties=commands.Basic.Properties(expiration="3600000"))
    broker = restart_broker()
    client = broker.raw().open()
    consume(client, "a", shared=299)
    marks(client, 299, ack=False)
    queue = broker.server.hosts["/"].vhost.queues["q"]
    looked_after: list[int | None] = []
    browse = Queue.browse

    def noted(self: Queue, *, after: int | None = None) -> Any:
        looked_after.append(after)
        return browse(self, after=after)

    def first() -> bytes | None:
        return broker.call(queue._head_header)

    bodies = {message.position: bytes(message.content) for message in broker.store.messages("q")}
    headers = [message.header for message in broker.store.messages("q")]
    monkeypatch.setattr(Queue, "browse", noted)
    assert first() == headers[299]
    assert bodies[looked_after[0] or 0] == b"298"
    client.send(1, commands.Basic.Cancel("a"))
    client.expect(commands.Basic.CancelOk)
    client.send(1, commands.Basic.Nack(5, requeue=True))  # it takes its old place, before all that are out
    client.declare("q", passive=True, durable=True)
    assert first() == headers[4]
    foreign = broker.store.queue("q").acquire(1)
    assert bytes(foreign[0].content) == b"4"
    assert got(client) == (b"299", False)
    foreign[0].release()
    assert first() == headers[4]  # another program had it when the last one was taken


def test_a_backlog_in_use_is_looked_up_by_time_and_not_by_delivery(
    restart_broker: Callable[[], Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = restart_broker()
    broker.raw().open().declare("q", durable=True)
    confirmed(broker.raw().open(), *numbered(100))
    broker = restart_broker()
    looked_up: list[Queue] = []
    monkeypatch.setattr(queues, "EXPIRY_CHECK_S", 3600.0)
    monkeypatch.setattr(Queue, "browse", lambda self, **_: looked_up.append(self) or iter(()))
    client = broker.raw().open()
    consume(client, "a", shared=1)
    assert marks(client, 100) == [(body, False) for body in numbered(100)]
    assert looked_up == []
