"""Heartbeats, slow readers, fast writers, and the ends of connections."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import time
from typing import TYPE_CHECKING

import pika
import pytest
from pamqp import commands, frame, heartbeat

from kit.amqp_client import publish_bytes
from kit.broker_waits import send_until_paused
from kit.live_broker import Broker, open_store
from kit.patience import PATIENCE_S, wait_until
from kit.store_proxies import HeldDisk
from logstore.broker import Limits
from logstore.broker.receiving import Pause

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def for_ever(call: Callable[[], object]) -> None:
    """Until it raises what the test expects."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        call()


def test_heartbeats_come_at_half_the_interval_while_nothing_else_is_sent(broker: Broker) -> None:
    client = broker.raw().open(heartbeat=1)
    for _ in range(2):
        assert isinstance(client.receive_any()[1], heartbeat.Heartbeat)
        client.send(0, heartbeat.Heartbeat())


def test_a_client_that_misses_two_heartbeats_is_disconnected_and_its_messages_are_requeued(broker: Broker) -> None:
    client = broker.raw().open(heartbeat=1)
    client.declare("q")
    client.publish("q", b"x")
    client.send(1, commands.Basic.Get(queue="q"))
    client.expect(commands.Basic.GetOk)
    started = time.monotonic()  # before the broker heard from it last
    client.content()
    with pytest.raises(ConnectionError):
        for_ever(client.receive_any)
    assert time.monotonic() - started > 1.9
    assert broker.raw().open().declare("q").message_count == 1


def test_a_client_that_sends_heartbeats_stays(broker: Broker) -> None:
    client = broker.raw().open(heartbeat=1)
    for _ in range(8):
        client.send(0, heartbeat.Heartbeat())
        time.sleep(0.4)
    client.declare("q")


def test_without_heartbeats_an_idle_client_stays(broker: Broker) -> None:
    client = broker.raw().open(heartbeat=0)
    time.sleep(1.5)
    client.declare("q")


def test_a_consumer_that_does_not_read_needs_bounded_memory_and_delays_no_other(
    start_broker: Callable[..., Broker],
) -> None:
    broker = start_broker(unsent_bytes_high=200_000)
    channel = broker.pika().channel()
    channel.queue_declare("q", durable=True)
    channel.confirm_delivery()
    for _ in range(300):
        channel.basic_publish("", "q", bytes(50_000))
    slow = broker.raw(receive_buffer=10_000).open()
    slow.send(1, commands.Basic.Consume(queue="q"))
    broker.wait_until_unsent(200_000)
    ready = channel.queue_declare("q", passive=True).method.message_count
    assert (300 - ready) * 50_000 < broker.socket_bytes_max, "the rest has to wait in the queue, not in the socket"
    quick = broker.raw().open()
    quick.send(1, commands.Basic.Consume(queue="q", no_ack=True))
    quick.expect(commands.Basic.ConsumeOk)
    for _ in range(ready):
        quick.delivery()
    slow.expect(commands.Basic.ConsumeOk)
    for _ in range(300 - ready):
        slow.delivery()


def test_a_slow_reader_gets_everything_in_the_end(start_broker: Callable[..., Broker]) -> None:
    broker = start_broker(unsent_bytes_high=50_000)
    client = broker.raw(receive_buffer=10_000).open(channels=2)
    client.declare("q")
    for number in range(200):
        client.publish("q", b"%06d" % number * 2000, channel=2)
    client.send(1, commands.Basic.Consume(queue="q", no_ack=True))
    client.expect(commands.Basic.ConsumeOk)
    for number in range(200):
        assert client.delivery()[1] == b"%06d" % number * 2000
        if number % 20 == 0:
            time.sleep(0.02)


def test_a_client_that_sends_requests_and_never_reads_is_not_read_from(start_broker: Callable[..., Broker]) -> None:
    broker = start_broker(unsent_bytes_high=50_000, unsent_bytes_max=200_000)
    client = broker.raw(receive_buffer=10_000).open()
    client.declare("q", durable=True)
    client.publish("q", bytes(100_000))
    ask = b"".join(
        frame.marshal(each, 1)
        for each in (commands.Basic.Get(queue="q"), commands.Basic.Nack(0, multiple=True, requeue=True))
    )
    send_until_paused(broker, client, ask * 100, Pause.UNSENT | Pause.REPLIES)
    assert broker.unsent() < 1_000_000
    broker.raw().open().declare("other")


def test_a_peer_that_reads_nothing_for_too_long_is_disconnected(start_broker: Callable[..., Broker]) -> None:
    broker = start_broker(unsent_bytes_high=50_000, stall_s=0.5)
    client = broker.raw(receive_buffer=10_000).open()
    client.declare("q")
    for _ in range(100):
        client.publish("q", bytes(100_000))
    client.send(1, commands.Basic.Consume(queue="q"))
    wait_until(lambda: broker.call(lambda: not broker.server.connections))
    assert broker.raw().open().declare("q").message_count == 100


def test_a_publisher_is_not_read_from_while_the_disk_is_behind(tmp_path: Path, broker_class: type[Broker]) -> None:
    disk = HeldDisk(open_store(tmp_path / "store"))
    broker = broker_class(disk, Limits(undurable_bytes_max=100_000))
    try:
        client = broker.raw().open()
        client.declare("q", durable=True)
        client.send(1, commands.Confirm.Select())
        client.expect(commands.Confirm.SelectOk)
        disk.hold()
        send_until_paused(broker, client, publish_bytes("q", bytes(10_000)), Pause.UNDURABLE)
        received = broker.call(lambda: broker.server.hosts["/"].vhost.queues["q"].ready_count)
        assert received < 200
        other = broker.raw().open()
        other.declare("memory")
        disk.let_go()
        confirmed = 0
        while confirmed < received:
            confirmed = client.expect(commands.Basic.Ack).delivery_tag
    finally:
        broker.stop()
        disk.close()


def test_stopping_notifies_clients_confirms_publishes_and_requeues_unacknowledged_messages(
    restart_broker: Callable[[], Broker],
) -> None:
    broker = restart_broker()
    client = broker.raw().open()
    client.declare("q", durable=True)
    client.send(1, commands.Confirm.Select())
    client.expect(commands.Confirm.SelectOk)
    for number in range(3):
        client.publish("q", b"%d" % number)
    confirmed = 0
    while confirmed < 3:
        confirmed = client.expect(commands.Basic.Ack).delivery_tag
    client.send(1, commands.Basic.Get(queue="q"))
    client.expect(commands.Basic.GetOk)
    client.content()
    with_pika = broker.pika()
    idle = broker.raw().open()
    port = broker.server.port
    done = asyncio.run_coroutine_threadsafe(broker.server.stop(3), broker.loop)
    assert "shut down" in client.expect_connection_close(320)
    idle.expect_connection_close(320)
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker):
        for_ever(lambda: with_pika.process_data_events(0.1))
    done.result(PATIENCE_S)
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), 1).close()
    channel = restart_broker().pika().channel()
    assert channel.queue_declare("q", durable=True).method.message_count == 3


def test_stopping_does_not_wait_for_silent_clients(start_broker: Callable[..., Broker]) -> None:
    broker = start_broker()
    broker.raw().open()
    with_nothing = socket.create_connection(("127.0.0.1", broker.port))
    broker.call_async(lambda: broker.server.stop(1))
    with_nothing.close()


def test_running_out_of_descriptors_does_not_end_the_broker(broker: Broker) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    client = broker.raw().open()
    sockets = []
    try:
        used = len(os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + 20, hard))
        with pytest.raises(OSError, match="Too many"):
            for_ever(lambda: sockets.append(socket.create_connection(("127.0.0.1", broker.port), 1)))
        client.declare("q")
    finally:
        for each in sockets:
            each.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    client.declare("q")
    wait_until(lambda: broker.call(lambda: len(broker.server.connections)) == 1)
    broker.raw().open().declare("q")
