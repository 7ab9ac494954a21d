"""Expiry of messages: by queue, by message, at the head, on time, and after a restart."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pika
import pytest

from kit.patience import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from kit.live_broker import Broker

both_kinds = pytest.mark.parametrize("durable", [True, False])


def count(channel: Any, queue: str = "q") -> int:
    return int(channel.queue_declare(queue, passive=True).method.message_count)


def wait_for(channel: Any, expected: int) -> None:
    wait_until(lambda: count(channel) == expected, f"a queue of {expected}")


def publish(channel: Any, body: bytes, ttl_ms: int | None = None) -> None:
    properties = pika.BasicProperties(expiration=None if ttl_ms is None else str(ttl_ms))
    channel.basic_publish("", "q", body, properties)


@both_kinds
def test_messages_of_a_queue_with_a_ttl_go_when_due_and_not_before(channel: Any, durable: bool) -> None:
    channel.queue_declare("q", durable=durable, arguments={"x-message-ttl": 400})
    channel.confirm_delivery()
    started = time.monotonic()
    for _ in range(3):
        publish(channel, b"x")
    while left := count(channel):
        assert left == 3 or time.monotonic() - started > 0.39  # the loop counts in milliseconds
    assert channel.basic_get("q")[0] is None


@both_kinds
def test_a_messages_own_expiration_counts_and_the_shorter_one_wins(channel: Any, durable: bool) -> None:
    channel.queue_declare("q", durable=durable, arguments={"x-message-ttl": 60_000})
    channel.confirm_delivery()
    publish(channel, b"short", 100)
    publish(channel, b"long", 120_000)
    wait_for(channel, 1)
    assert channel.basic_get("q")[2] == b"long"


@both_kinds
def test_a_message_goes_when_due_though_the_one_before_it_which_a_client_has_may_stay_longer(
    channel: Any, durable: bool
) -> None:
    channel.queue_declare("q", durable=durable)
    channel.confirm_delivery()
    publish(channel, b"long", 3_600_000)
    publish(channel, b"short", 1_000)
    assert channel.basic_get("q")[2] == b"long"
    wait_for(channel, 0)


@both_kinds
def test_overdue_messages_behind_the_head_are_never_delivered(channel: Any, durable: bool) -> None:
    channel.queue_declare("q", durable=durable)
    channel.confirm_delivery()
    publish(channel, b"lasting")
    publish(channel, b"short", 50)
    publish(channel, b"lasting too")
    time.sleep(0.2)
    assert [channel.basic_get("q", auto_ack=True)[2] for _ in range(3)] == [b"lasting", b"lasting too", None]


@both_kinds
def test_when_the_head_was_taken_the_next_one_expires_on_time(channel: Any, durable: bool) -> None:
    channel.queue_declare("q", durable=durable)
    channel.confirm_delivery()
    publish(channel, b"lasting")
    started = time.monotonic()
    publish(channel, b"short", 200)
    assert channel.basic_get("q", auto_ack=True)[2] == b"lasting"
    assert count(channel) == 1 or time.monotonic() - started > 0.2
    wait_for(channel, 0)


@both_kinds
def test_an_unacknowledged_message_expires_only_after_its_requeue(channel: Any, durable: bool) -> None:
    channel.queue_declare("q", durable=durable, arguments={"x-message-ttl": 150})
    channel.confirm_delivery()
    publish(channel, b"x")
    while (method := channel.basic_get("q")[0]) is None:  # on a busy machine it can be too late
        publish(channel, b"x")
    time.sleep(0.4)
    channel.basic_nack(method.delivery_tag, requeue=True)
    wait_for(channel, 0)


@both_kinds
def test_a_ttl_of_zero_is_delivered_at_once_or_never(channel: Any, durable: bool) -> None:
    channel.queue_declare("q", durable=durable, arguments={"x-message-ttl": 0})
    channel.confirm_delivery()
    publish(channel, b"nobody waits")
    wait_for(channel, 0)
    received: list[bytes] = []
    channel.basic_consume("q", lambda *given: received.append(given[3]), auto_ack=True)
    publish(channel, b"somebody waits")
    wait_until(lambda: channel.connection.process_data_events(0.05) or received)
    assert received == [b"somebody waits"]


def test_expiry_goes_on_after_a_restart(restart_broker: Callable[[], Broker]) -> None:
    channel = restart_broker().pika().channel()
    channel.queue_declare("q", durable=True)
    channel.confirm_delivery()
    publish(channel, b"short", 300)
    publish(channel, b"lasting")
    channel = restart_broker().pika().channel()
    channel.queue_declare("q", durable=True)
    wait_for(channel, 1)
    assert channel.basic_get("q")[2] == b"lasting"


def test_a_long_queue_of_overdue_messages_is_dropped_quickly(channel: Any) -> None:
    channel.queue_declare("q", durable=True, arguments={"x-message-ttl": 1})
    for _ in range(2000):
        publish(channel, b"x")
    wait_for(channel, 0)
