"""Room in the log: publishers wait while there is little, everybody else goes on, and nobody waits for ever."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from typing import TYPE_CHECKING, Any

import pytest
from pamqp import body, commands, frame, header, heartbeat

import logstore
from kit.broker_waits import nothing_comes
from kit.live_broker import open_store
from kit.patience import PATIENCE_S, wait_until
from kit.store_proxies import FullStore, ShortLog
from logstore.broker import Limits
from logstore.broker.statistics import connection_statistics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from kit.amqp_client import RawClient
    from kit.live_broker import Broker

    Start = Callable[..., Broker]

MIB = 1 << 20
LIMIT = 8 * MIB
BODY = bytes(20_000)
NEARLY_FULL = "virtual host '/': the store is nearly full: consume messages or "
AT_ONCE_S = 0.05
"""A limit for tests in which the event is that it is over."""


@pytest.fixture
def start(tmp_path: Path, broker_class: type[Broker]) -> Iterator[Start]:
    """Start a broker on this store, or on one whose log has a limit."""
    brokers: list[Broker] = []

    def begin(store: Any = None, **limits: Any) -> Broker:
        if store is None:
            store = logstore.open(tmp_path / "limited", segment_size=MIB, max_log_bytes=LIMIT)
        brokers.append(broker_class(store, Limits(**limits)))
        return brokers[-1]

    yield begin
    for broker in brokers:
        broker.stop()
        broker.store.close()


@pytest.fixture
def short(tmp_path: Path, start: Start) -> tuple[Broker, ShortLog]:
    """A broker, and its log, which is nearly full when the test says so."""
    log = ShortLog(open_store(tmp_path / "store"))
    return start(log), log


def opened(broker: Broker, *, channels: int = 1, confirms: bool = True, heartbeat: int = 0) -> RawClient:
    """A client that understands connection.blocked, with a queue and confirms on all channels."""
    client = broker.raw().open(channels=channels, wants_blocked=True, heartbeat=heartbeat)
    client.declare("q", durable=True)
    for number in range(1, channels + 1 if confirms else 1):
        client.send(number, commands.Confirm.Select())
        client.expect(commands.Confirm.SelectOk)
    return client


def publisher(broker: Broker, **options: Any) -> RawClient:
    """The same; it has published one message on channel 1, and has its confirm."""
    client = opened(broker, **options)
    client.publish("q", b"first")
    client.expect(commands.Basic.Ack)
    return client


def reason(client: RawClient) -> str:
    return str(client.expect(commands.Connection.Blocked).reason)


def goes_on(client: RawClient, answer: type[Any] = commands.Basic.Ack) -> None:
    """It is not blocked any more, and has its answer."""
    assert {type(client.receive()[1]) for _ in range(2)} == {commands.Connection.Unblocked, answer}


def space(broker: Broker) -> Any:
    return broker.server.hosts["/"].space


def paused(broker: Broker) -> int:
    return broker.call(lambda: sum(each.receiving.is_paused for each in broker.server.hosts["/"].connections))


def depth(broker: Broker) -> int:
    return int(broker.store.queue("q").depth)


def messages(*contents: bytes, channel: int = 1) -> bytes:
    """The frames of some publishes."""
    return b"".join(
        frame.marshal(value, channel)
        for content in contents
        for value in (
            commands.Basic.Publish(routing_key="q"),
            header.ContentHeader(0, len(content)),
            body.ContentBody(content),
        )
    )


def publish_until_blocked(client: RawClient, content: bytes = BODY) -> int:
    """How many were confirmed before it is told that it is blocked; one more is on its way."""
    confirmed = 0
    while True:
        client.publish("q", content)
        _, value = client.receive()
        if isinstance(value, commands.Connection.Blocked):
            assert value.reason.startswith(NEARLY_FULL)
            return confirmed
        assert isinstance(value, commands.Basic.Ack)
        confirmed = value.delivery_tag


def outcomes(client: RawClient, last_tag: int) -> list[Any]:
    """What comes until this publish has its outcome; notices are left out."""
    found: list[Any] = []
    while not found or found[-1].delivery_tag < last_tag:
        _, value = client.receive()
        if not isinstance(value, commands.Connection.Blocked | commands.Connection.Unblocked):
            found.append(value)
    return found


def drain(broker: Broker) -> None:
    """Takes everything off the queue, from the next connection."""
    client = broker.raw().open()
    client.send(1, commands.Queue.Purge(queue="q"))
    client.expect(commands.Queue.PurgeOk)


def test_a_consumer_drains_a_full_store_while_a_publisher_is_blocked_and_nothing_is_refused_or_lost(
    start: Start,
) -> None:
    broker = start()
    client, consumer = opened(broker), broker.raw().open()
    confirmed = publish_until_blocked(client)
    more = 400
    contents = [b"%06d" % at + BODY for at in range(more)]
    consumer.send(1, commands.Basic.Qos(0, 10), commands.Basic.Consume(queue="q"))
    consumer.expect(commands.Basic.QosOk)
    consumer.expect(commands.Basic.ConsumeOk)
    client.socket.setblocking(False)
    unsent = memoryview(messages(*contents))
    taken: list[bytes] = []
    while len(taken) < confirmed + 1 + more:  # the publisher sends what the broker reads
        if unsent:
            with contextlib.suppress(BlockingIOError):
                unsent = unsent[client.socket.send(unsent) :]
        method, content = consumer.delivery()
        consumer.send(1, commands.Basic.Ack(method.delivery_tag))
        taken.append(content)
    assert taken[confirmed + 1 :] == contents
    client.socket.settimeout(PATIENCE_S)
    assert all(isinstance(each, commands.Basic.Ack) for each in outcomes(client, confirmed + 1 + more))


def test_publishers_are_told_with_the_reason_and_the_remedy_and_when_it_is_over(start: Start) -> None:
    broker = start()
    client, other, idle = opened(broker), publisher(broker), broker.raw().open(wants_blocked=True)
    for _ in range(2):
        confirmed = publish_until_blocked(client)
        text = reason(other)  # it publishes nothing now
        assert text.startswith(NEARLY_FULL + "raise max_log_bytes; the log has ")
        assert f"max_log_bytes is {LIMIT}" in text
        nothing_comes(idle)
        drain(broker)
        other.expect(commands.Connection.Unblocked)
        goes_on(client)
        client.publish("q", b"goes on")
        assert client.expect(commands.Basic.Ack).delivery_tag == confirmed + 2


def test_who_publishes_first_while_there_is_little_room_is_told_at_once(short: tuple[Broker, ShortLog]) -> None:
    broker, log = short
    client = opened(broker)
    log.shorten(True)
    client.publish("q", b"waits")
    assert reason(client).startswith(NEARLY_FULL)
    nothing_comes(client)
    assert depth(broker) == 0
    log.shorten(False)
    goes_on(client)


def test_a_slow_disk_and_little_room_together_are_told_once_and_both_must_be_over(tmp_path: Path, start: Start) -> None:
    log = ShortLog(open_store(tmp_path / "store"))
    broker = start(log, blocked_after_s=0.05)
    client = publisher(broker)
    for first_over in ("disk", "room"):
        log.hold()
        client.publish("q", b"waits for the disk")
        assert "the disk has not made durable" in reason(client)
        log.shorten(True)
        nothing_comes(client)
        if first_over == "disk":
            log.let_go()
            client.expect(commands.Basic.Ack)
            nothing_comes(client)
            log.shorten(False)
            client.expect(commands.Connection.Unblocked)
        else:
            log.shorten(False)
            nothing_comes(client)
            log.let_go()
            goes_on(client)


@pytest.mark.parametrize("how", ["one", "a run", "frame by frame", "large", "in a transaction"])
def test_however_it_publishes_a_connection_is_not_read_and_others_go_on(
    short: tuple[Broker, ShortLog], how: str
) -> None:
    broker, log = short
    other = broker.raw().open()
    client = opened(broker, confirms=False) if how == "in a transaction" else publisher(broker)
    before = depth(broker)
    if how == "in a transaction":
        client.send(1, commands.Tx.Select())
        client.expect(commands.Tx.SelectOk)
    elif how == "a run":
        client.send_bytes(messages(b"second", b"third", b"fourth"))
        assert outcomes(client, 4)[-1].delivery_tag == 4
        before = 4
    log.shorten(True)
    if how != "in a transaction":
        reason(client)
    if how == "a run":
        client.send_bytes(messages(*[b"waits"] * 100))
    elif how == "frame by frame":
        for value in (commands.Basic.Publish(routing_key="q"), header.ContentHeader(0, 5), body.ContentBody(b"waits")):
            client.send(1, value)
    else:
        client.publish("q", bytes(3 * MIB) if how == "large" else b"waits")
    if how == "in a transaction":
        client.send(1, commands.Tx.Commit())
        reason(client)
    wait_until(lambda: paused(broker) == 1, "it is not read")
    other.declare("q", passive=True, durable=True)
    other.send(1, commands.Basic.Get(queue="q") if before else commands.Queue.Purge(queue="q"))
    other.expect(commands.Basic.GetOk if before else commands.Queue.PurgeOk)
    assert depth(broker) == before
    log.shorten(False)
    if how == "in a transaction":
        goes_on(client, commands.Tx.CommitOk)
        assert depth(broker) == 1
    else:
        last = {"a run": 104}.get(how, 2)
        assert all(isinstance(each, commands.Basic.Ack) for each in outcomes(client, last))
        assert depth(broker) == last


def test_acknowledgements_before_a_publish_take_effect_and_those_behind_it_wait(short: tuple[Broker, ShortLog]) -> None:
    broker, log = short
    client = publisher(broker)
    client.publish("q", b"second")
    client.expect(commands.Basic.Ack)
    for _ in range(2):
        client.send(1, commands.Basic.Get(queue="q"))
        client.expect(commands.Basic.GetOk)
        client.content()
    log.shorten(True)
    reason(client)
    ack = [frame.marshal(commands.Basic.Ack(tag), 1) for tag in (1, 2)]
    client.send_bytes(ack[0] + messages(b"waits") + ack[1])
    queue = broker.server.hosts["/"].vhost.queues["q"]
    wait_until(lambda: broker.call(lambda: queue.acknowledged) == 1, "the first acknowledgement")
    wait_until(lambda: paused(broker) == 1, "it is not read")
    assert broker.call(lambda: queue.acknowledged) == 1
    log.shorten(False)
    goes_on(client)
    wait_until(lambda: broker.call(lambda: queue.acknowledged) == 2, "the second one")


def test_a_transaction_that_only_acknowledges_commits_at_once(short: tuple[Broker, ShortLog]) -> None:
    broker, log = short
    publisher(broker)
    client = broker.raw().open(wants_blocked=True)
    client.send(1, commands.Tx.Select())
    client.expect(commands.Tx.SelectOk)
    log.shorten(True)
    client.send(1, commands.Basic.Get(queue="q"))
    tag = client.expect(commands.Basic.GetOk).delivery_tag
    client.content()
    client.send(1, commands.Basic.Ack(tag), commands.Tx.Commit())
    client.expect(commands.Tx.CommitOk)
    assert depth(broker) == 0


@pytest.mark.parametrize("how", ["one", "a run", "large", "in a transaction", "a large transaction"])
def test_what_the_store_refuses_without_a_warning_is_kept_until_there_is_room(
    tmp_path: Path, start: Start, how: str
) -> None:
    store = FullStore(open_store(tmp_path / "store"))
    broker = start(store)
    client = opened(broker, channels=2, confirms="transaction" not in how)
    if "transaction" in how:
        client.send(1, commands.Tx.Select())
        client.expect(commands.Tx.SelectOk)
    contents = [b"%d" % at for at in range({"one": 1, "large": 1, "a large transaction": 600}.get(how, 40))]
    if how == "large":
        contents = [bytes(3 * MIB)]
    else:
        client.send_bytes(messages(b"like the others", channel=2))
        if how == "a run":
            client.expect(commands.Basic.Ack)
    wait_until(lambda: depth(broker) == (how != "large"), "the first message")
    while how == "one" and client.receive()[0] != 2:
        pass
    store.full = True
    if how == "a run":
        client.send_bytes(b"".join(messages(each, channel=1 + at % 2) for at, each in enumerate(contents)))
    elif how == "large":
        client.publish("q", contents[0])
    else:
        client.send_bytes(messages(*contents))
    if "transaction" in how:
        client.send(1, commands.Tx.Commit())
    assert reason(client).startswith("virtual host '/': the store is full: consume messages or make room")
    wait_until(lambda: paused(broker) == 1 or how == "large", "it is not read")
    store.full = False
    got: list[tuple[int, Any]] = []
    wanted = {1: 20, 2: 21} if how == "a run" else {1: 1}

    def is_complete() -> bool:
        if "transaction" in how:
            return any(isinstance(each, commands.Tx.CommitOk) for _, each in got)
        acks = {number: value.delivery_tag for number, value in got if isinstance(value, commands.Basic.Ack)}
        return acks == wanted

    while not is_complete() or not any(isinstance(each, commands.Connection.Unblocked) for _, each in got):
        got.append(client.receive())
        assert not isinstance(got[-1][1], commands.Basic.Nack | commands.Channel.Close)
    held = [message.content for message in store.messages("q")]
    assert held == ([] if how == "large" else [b"like the others"]) + contents


def test_a_commit_that_needs_more_than_is_left_waits_for_a_consumer(start: Start) -> None:
    broker = start()
    client, filling = opened(broker, confirms=False), opened(broker)
    client.send(1, commands.Tx.Select())
    client.expect(commands.Tx.SelectOk)
    client.send_bytes(messages(*[BODY] * 150))
    for _ in range(120):
        filling.publish("q", BODY[:10_000])
        filling.expect(commands.Basic.Ack)
    while not broker.call(lambda: broker.store.fullness().counted_bytes > 3 * MIB):
        filling.publish("q", BODY)
        filling.expect(commands.Basic.Ack)
    client.send(1, commands.Tx.Commit())
    reason(client)
    drain(broker)
    told: list[Any] = [commands.Connection.Blocked]
    while commands.Tx.CommitOk not in told or told.count(commands.Connection.Blocked) * 2 >= len(told):
        told.append(type(client.receive()[1]))
    notices = [each for each in told if each is not commands.Tx.CommitOk]
    assert notices == [commands.Connection.Blocked, commands.Connection.Unblocked] * (len(notices) // 2)
    assert depth(broker) == 150


def test_a_large_body_waits_in_the_middle_for_room_and_arrives_whole(start: Start) -> None:
    broker = start()
    client = opened(broker)
    confirmed = publish_until_blocked(client, bytes(400_000))
    drain(broker)
    outcomes(client, confirmed + 1)
    whole = os.urandom(1_900_000)
    blocked = 0
    for tag in range(confirmed + 2, confirmed + 6):
        client.publish("q", whole)
        while True:
            _, value = client.receive()
            if isinstance(value, commands.Connection.Blocked):
                blocked += 1
                drain(broker)
            elif isinstance(value, commands.Basic.Ack):
                assert value.delivery_tag == tag
                break
            else:
                assert isinstance(value, commands.Connection.Unblocked)
    assert blocked
    assert broker.store.load_content(next(iter(broker.store.messages("q"))).id) == whole


def test_who_has_waited_is_refused_with_a_nack_and_further_publishes_at_once(start: Start) -> None:
    broker = start(blocked_timeout_s=AT_ONCE_S)
    client = opened(broker)
    confirmed = publish_until_blocked(client)
    last = confirmed + 100  # more than the store takes after it was nearly full
    client.send_bytes(messages(*[BODY] * 99))
    found = outcomes(client, last)
    nacked = [each.delivery_tag for each in found if isinstance(each, commands.Basic.Nack)]
    assert nacked[-1] == last
    assert nacked == list(range(nacked[0], last + 1))
    assert depth(broker) == nacked[0] - 1
    drain(broker)
    client.publish("q", b"goes on")
    assert isinstance(outcomes(client, last + 1)[-1], commands.Basic.Ack)


def test_without_confirms_the_channel_of_who_has_waited_is_closed_with_506_and_the_reason(start: Start) -> None:
    broker = start(blocked_timeout_s=AT_ONCE_S)
    filling = opened(broker)
    publish_until_blocked(filling)
    client = opened(broker, channels=2, confirms=False)
    client.send_bytes(messages(*[BODY] * 100))
    text = ""
    while not text:
        _, value = client.receive()
        if isinstance(value, commands.Channel.Close):
            assert value.reply_code == 506
            text = value.reply_text
    assert f"max_log_bytes ({LIMIT})" in text
    assert "Consume messages" in text
    client.send(1, commands.Channel.CloseOk())
    client.send(2, commands.Queue.Purge(queue="q"))
    found = client.receive()[1]
    assert (found if isinstance(found, commands.Queue.PurgeOk) else client.expect(commands.Queue.PurgeOk)).message_count


def test_a_commit_that_has_waited_is_refused_as_a_whole(start: Start) -> None:
    broker = start(blocked_timeout_s=AT_ONCE_S)
    publish_until_blocked(opened(broker))
    before = depth(broker)
    client = broker.raw().open()
    client.send(1, commands.Tx.Select())
    client.expect(commands.Tx.SelectOk)
    client.send_bytes(messages(*[BODY] * 100))
    client.send(1, commands.Tx.Commit())
    assert "Consume messages" in client.expect_channel_close(506)
    wait_until(lambda: depth(broker) >= before, "the rest")
    assert depth(broker) <= before + 1  # what the other one waits with


def test_a_host_that_is_nearly_full_blocks_no_other(tmp_path: Path, start: Start) -> None:
    log = ShortLog(open_store(tmp_path / "shop"))
    broker = start(open_store(tmp_path / "root"))
    broker.call_async(lambda: broker.server.open_host("shop", log))
    broker.call(lambda: broker.server.users.change("guest", hosts=["/", "shop"]))
    other = publisher(broker)
    client = broker.raw().open(virtual_host="shop", wants_blocked=True)
    client.declare("q", durable=True)
    log.shorten(True)
    client.publish("q", b"waits")
    assert reason(client).startswith("virtual host 'shop': the store is nearly full")
    other.publish("q", b"goes on")
    assert other.expect(commands.Basic.Ack).delivery_tag == 2
    log.shorten(False)
    client.expect(commands.Connection.Unblocked)
    broker.stop()
    log.close()


def test_a_blocked_client_whose_heartbeats_are_not_read_is_not_given_up(tmp_path: Path, start: Start) -> None:
    store = FullStore(open_store(tmp_path / "store"))
    broker = start(store, blocked_timeout_s=3.5)
    client = opened(broker, heartbeat=1)
    store.full = True
    client.publish("q", b"waits")
    seen: list[Any] = []
    while not isinstance(seen[-1:] and seen[-1], commands.Basic.Nack):  # after more than two intervals without a byte
        seen.append(client.receive_any()[1])
    assert any(isinstance(each, heartbeat.Heartbeat) for each in seen)


def test_the_list_of_connections_says_that_a_publisher_waits_for_space(short: tuple[Broker, ShortLog]) -> None:
    broker, log = short
    client = publisher(broker)
    broker.raw().open()

    def rows() -> list[tuple[object, object, bool]]:
        found = [connection_statistics(each) for each in broker.server.hosts["/"].connections]
        found.sort(key=lambda one: one["waits_for"] is None)
        return [(one["waits_for"], one["blocked"], one["blocked_s"] is None) for one in found]

    log.shorten(True)
    told = reason(client)
    client.publish("q", b"waits")
    wait_until(lambda: broker.call(rows)[0][0] == "space", "it waits")
    assert broker.call(rows) == [("space", told, False), (None, None, True)]
    log.shorten(False)
    goes_on(client)
    assert broker.call(rows) == [(None, None, True)] * 2


def test_the_log_has_one_line_when_publishers_wait_and_one_when_they_go_on(
    short: tuple[Broker, ShortLog], caplog: pytest.LogCaptureFixture
) -> None:
    broker, log = short
    caplog.set_level(logging.INFO, "logstore.broker.space")
    clients = [publisher(broker) for _ in range(2)]
    log.shorten(True)
    for client in clients:
        reason(client)
        client.publish("q", b"waits")
    log.shorten(False)
    for client in clients:
        goes_on(client)
    lines = [record.getMessage() for record in caplog.records if record.name == "logstore.broker.space"]
    assert len(lines) == 2
    assert lines[0].startswith("the store is nearly full: ")
    assert "each for 30 s at most" in lines[0]
    assert lines[1] == "the store is not nearly full any more: publishers go on"


@pytest.mark.parametrize("how", ["not read", "a kept run", "a kept commit"])
def test_a_client_that_goes_away_while_it_waits_leaves_nothing(tmp_path: Path, start: Start, how: str) -> None:
    log = ShortLog(open_store(tmp_path / "store"))
    store = FullStore(log)
    broker = start(store, blocked_timeout_s=0.5)  # while it is not read its end is not seen
    client = publisher(broker) if how != "a kept commit" else opened(broker, confirms=False)
    if how == "a kept commit":
        client.send(1, commands.Tx.Select())
        client.expect(commands.Tx.SelectOk)
    before = depth(broker)
    if how == "not read":
        log.shorten(True)
    else:
        store.full = True
    client.send_bytes(messages(*[b"waits"] * 20))
    if how == "a kept commit":
        client.send(1, commands.Tx.Commit())
    reason(client)
    wait_until(lambda: broker.call(lambda: bool(space(broker)._waits)), "it waits")
    client.socket.close()
    if how == "not read":
        log.shorten(False)  # what it had sent is stored before the broker reads the end of its socket
        wait_until(lambda: depth(broker) == before + 20, "what was received")
    broker.wait_for_connections(0)
    wait_until(lambda: not broker.call(lambda: space(broker)._waits), "the end of the wait")
    store.full = False
    assert broker.call(lambda: broker.server.hosts["/"].vhost.budget.used_bytes) == 0
    assert depth(broker) == before + (20 if how == "not read" else 0)


@pytest.mark.parametrize("how", ["not read", "kept"])
def test_a_stop_does_not_wait_for_blocked_publishers(tmp_path: Path, start: Start, how: str) -> None:
    log = ShortLog(open_store(tmp_path / "store"))
    store = FullStore(log)
    broker = start(store, blocked_timeout_s=3600)
    client = publisher(broker)
    if how == "kept":
        store.full = True
    else:
        log.shorten(True)
    client.send_bytes(messages(*[b"waits"] * 20))
    reason(client)
    stopped = asyncio.run_coroutine_threadsafe(broker.server.stop(3600), broker.loop)
    _, value = client.receive()
    while isinstance(value, commands.Basic.Nack | commands.Connection.Unblocked):
        _, value = client.receive()
    assert (value.name, value.reply_code) == ("Connection.Close", 320)
    client.send(0, commands.Connection.CloseOk())
    stopped.result(PATIENCE_S)


def test_a_disk_that_another_program_fills_blocks_publishers_until_it_has_room(
    mounted_disk: Callable[[int], Path], start: Start
) -> None:
    disk = mounted_disk(24)
    broker = start(logstore.open(disk / "store", segment_size=MIB))
    client = publisher(broker)
    other_file = disk / "other"
    with other_file.open("wb") as file, pytest.raises(OSError, match="No space"):
        while True:
            file.write(bytes(65536))
            file.flush()
    tag, told = 1, None
    while told is None:
        client.publish("q", BODY)
        tag += 1
        _, value = client.receive()
        told = getattr(value, "reason", None)
    assert "make room on the disk" in told or "free disk space" in told
    nothing_comes(client)
    other_file.unlink()
    assert all(isinstance(each, commands.Basic.Ack) for each in outcomes(client, tag))
    assert depth(broker) == tag
