"""A broker whose store is full says so: one line in its log, the reason in 506, and FULL in `info` and `tail`."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker, NackError

from kit.command import fine, told
from kit.serve_process import ServeProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pika.adapters.blocking_connection import BlockingChannel

MIB = 1 << 20
LIMIT = 8 * MIB
BODY = bytes(40_000)
FULL_LINE = "WARNING logstore.broker.host: the store is full"
PERSISTENT = pika.BasicProperties(delivery_mode=2)


@contextlib.contextmanager
def served(path: Path, *options: str) -> Iterator[ServeProcess]:
    process = ServeProcess(path, options=("--segment-size", "1M", "--blocked-timeout", "0.05", *options))
    try:
        yield process
        assert process.stop() == 0
    finally:
        process.kill()


@contextlib.contextmanager
def connected(broker: ServeProcess) -> Iterator[pika.BlockingConnection]:
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port))
    try:
        yield connection
    finally:
        if connection.is_open:
            connection.close()


def publish_until_refused(channel: BlockingChannel) -> int:
    """Publishes with confirms; then twenty more, which are refused too."""
    stored = 0
    with contextlib.suppress(NackError):
        while stored < 5000:
            channel.basic_publish("", "orders", BODY, PERSISTENT)
            stored += 1
    for _ in range(20):
        with pytest.raises(NackError):
            channel.basic_publish("", "orders", BODY, PERSISTENT)
    return stored


def lines(broker: ServeProcess, text: str) -> list[str]:
    return [line for line in broker.errors.read_text().splitlines() if text in line]


def text_of_506(connection: pika.BlockingConnection) -> str:
    """What a publisher without confirms is told."""
    channel = connection.channel()
    with pytest.raises(ChannelClosedByBroker) as closed:
        for _ in range(10):
            channel.basic_publish("", "orders", BODY, PERSISTENT)
        channel.queue_declare("orders", passive=True)
    assert closed.value.reply_code == 506
    return str(closed.value.reply_text)


def test_one_line_tells_that_the_limit_is_reached_and_one_that_there_is_room(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with served(path, "--max-log-bytes", str(LIMIT)) as broker, connected(broker) as connection:
        assert told("info", path)["full"] is None
        channel = connection.channel()
        channel.queue_declare("orders", durable=True)
        channel.confirm_delivery()
        stored = publish_until_refused(channel)
        (line,) = lines(broker, FULL_LINE)
        assert f"max_log_bytes is {LIMIT}" in line
        text = text_of_506(connection)
        assert f"max_log_bytes ({LIMIT})" in text
        assert f"the log has {LIMIT} bytes" in text

        full = told("info", path)["full"]
        assert (full["cause"], full["max_log_bytes"], full["log_bytes"]) == ("limit", LIMIT, LIMIT)
        assert full["since"] is not None
        said = fine("info", path).splitlines()
        assert said[0].startswith("FULL since 2")
        assert said[1] == f"to free it: consume or purge queue 'orders' ({stored} messages)"
        assert "raise the limit" in said[2]
        assert fine("tail", path).startswith("FULL since 2")
        assert told("tail", path)["full"]["cause"] == "limit"

        assert not lines(broker, "has room again")
        channel.queue_purge("orders")
        channel.basic_publish("", "orders", BODY, PERSISTENT)
        assert told("info", path)["full"] is None
        assert len(lines(broker, FULL_LINE)) == 1
        (line,) = lines(broker, "has room again")
        assert "INFO" in line
        assert not fine("info", path).startswith("FULL")


def test_acknowledgements_are_committed_in_a_full_store(tmp_path: Path) -> None:
    with served(tmp_path / "store", "--max-log-bytes", str(LIMIT)) as broker, connected(broker) as connection:
        channel = connection.channel()
        channel.queue_declare("orders", durable=True)
        channel.confirm_delivery()
        stored = publish_until_refused(channel)
        taking = connection.channel()
        taking.tx_select()
        for _ in range(5):
            method, _, _ = taking.basic_get("orders")
            assert method is not None
            taking.basic_ack(method.delivery_tag)
        taking.tx_commit()
        assert taking.queue_declare("orders", passive=True).method.message_count == stored - 5
        with pytest.raises(NackError):
            for _ in range(20):
                channel.basic_publish("", "orders", BODY, PERSISTENT)


def test_a_broker_on_a_full_disk_names_the_disk(mounted_disk: Callable[[int], Path]) -> None:
    disk = mounted_disk(24)
    path = disk / "store"
    with served(path) as broker, connected(broker) as connection:
        channel = connection.channel()
        channel.queue_declare("orders", durable=True)
        channel.confirm_delivery()
        publish_until_refused(channel)
        (line,) = lines(broker, FULL_LINE)
        assert "the disk has no room for another segment of 1048576 bytes" in line
        assert "the disk has no room" in text_of_506(connection)
        full = told("info", path)["full"]
        assert (full["cause"], full["max_log_bytes"]) == ("disk", None)
        assert any("make room on the disk" in one for one in full["remedies"])
        assert os.statvfs(disk).f_bavail * 4096 < 2 * MIB
        channel.queue_purge("orders")
        channel.basic_publish("", "orders", BODY, PERSISTENT)
        assert len(lines(broker, "has room again")) == 1
        assert told("info", path)["full"] is None


def test_a_closed_full_store_is_shown_as_full_with_its_largest_queue(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with served(path, "--max-log-bytes", str(LIMIT)) as broker, connected(broker) as connection:
        channel = connection.channel()
        channel.queue_declare("orders", durable=True)
        channel.confirm_delivery()
        publish_until_refused(channel)
    full = told("info", path)["full"]
    assert (full["cause"], full["since"]) == ("limit", None)
    assert full["remedies"][0].startswith("consume or purge queue 'orders' (")
    assert fine("tail", path).startswith("FULL: the log has ")


def test_the_limit_holds_at_the_next_start_without_the_option_and_none_removes_it(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with served(path, "--max-log-bytes", "8M"):
        pass
    document = told("info", path)
    assert document["max_log_bytes"] == LIMIT
    assert f"{LIMIT} bytes (8 MiB), set at the open of " in fine("info", path)
    with served(path) as broker, connected(broker) as connection:
        channel = connection.channel()
        channel.queue_declare("orders", durable=True)
        channel.confirm_delivery()
        publish_until_refused(channel)
    with served(path, "--max-log-bytes", "none") as broker, connected(broker) as connection:
        connection.channel().basic_publish("", "orders", BODY, PERSISTENT)
        assert told("info", path)["full"] is None
    assert told("info", path)["max_log_bytes"] is None
