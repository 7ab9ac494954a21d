"""Messages that are damaged on the disk below a running broker: their queue goes on, with one line in the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pika
import pytest
from pamqp import commands

if TYPE_CHECKING:
    from kit.live_broker import Broker

PERSISTENT = pika.BasicProperties(delivery_mode=2)


def publish(broker: Broker, bodies: list[bytes], **arguments: Any) -> Any:
    channel = broker.pika().channel()
    channel.queue_declare("q", durable=True, arguments=arguments)
    channel.confirm_delivery()
    for body in bodies:
        channel.basic_publish("", "q", body, PERSISTENT)
    return channel


def damage(broker: Broker, wanted: bytes) -> None:
    for path in broker.store.path.glob("*.seg"):
        at = path.read_bytes().find(wanted)
        if at >= 0:
            with path.open("r+b") as file:
                file.seek(at)
                file.write(b"rot!")
            return
    raise AssertionError("the log has no such bytes")


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname in ("WARNING", "ERROR")]


def test_a_first_message_that_cannot_be_read_is_set_aside_when_its_expiry_is_looked_up(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    bodies = [b"message %d of three" % number for number in range(3)]
    channel = publish(broker, bodies, **{"x-message-ttl": 3_600_000})
    damage(broker, bodies[0])
    queue = broker.server.hosts["/"].vhost.queues["q"]

    def look_again() -> None:
        assert queue._expiry_timer is not None
        queue._expiry_timer.cancel()
        queue._drop_overdue()

    for _ in range(3):
        broker.call(look_again)
    (line,) = lines(caplog)
    (ours,) = queue.unreadable_ids()
    assert line.startswith(f"queue 'q': message {ours} cannot be read and is set aside until a restart")
    assert (queue.ready_count, queue.unacknowledged_count, queue.unreadable_count) == (2, 0, 1)
    channel.basic_publish("", "q", b"a fourth", PERSISTENT)
    assert [channel.basic_get("q", auto_ack=True)[2] for _ in range(3)] == [*bodies[1:], b"a fourth"]


def test_a_get_goes_on_with_the_next_message_if_a_part_of_a_long_one_cannot_be_read(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    channel = publish(broker, [b"x" * (3 << 20) + b"the end of it", b"the next"])
    damage(broker, b"the end of it")
    assert channel.basic_get("q")[2] == b"the next"
    assert len(lines(caplog)) == 1
    queue = broker.server.hosts["/"].vhost.queues["q"]
    assert (queue.ready_count, queue.unacknowledged_count, queue.unreadable_count) == (0, 1, 1)
    client = broker.raw().open()
    client.send(1, commands.Basic.Get(queue="q"))
    client.expect(commands.Basic.GetEmpty)
