"""The broker's log: at the default level what an operator needs, in one line each; connections only with -v."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pika
import pytest
from pika.exceptions import AMQPConnectionError, ProbableAccessDeniedError, ProbableAuthenticationError

import logstore
from kit.serve_process import ServeProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextlib.contextmanager
def served(path: Path, *options: str) -> Iterator[ServeProcess]:
    process = ServeProcess(path, options=options)
    try:
        yield process
    finally:
        process.kill()


def connect(broker: ServeProcess, name: str = "guest", password: str = "guest", vhost: str = "/") -> Any:
    credentials = pika.PlainCredentials(name, password)
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port, vhost, credentials))


def publish(broker: ServeProcess, count: int) -> None:
    connection = connect(broker)
    channel = connection.channel()
    channel.queue_declare("orders", durable=True)
    channel.confirm_delivery()
    for _ in range(count):
        channel.basic_publish("", "orders", b"body", pika.BasicProperties(delivery_mode=2))
    connection.close()


def told(broker: ServeProcess) -> list[str]:
    """The lines of the log, without their time and the logger's name."""
    lines = broker.errors.read_text().splitlines()
    return [" ".join([line.split()[2], line.partition(": ")[2]]) for line in lines]


def test_a_start_tells_version_store_and_address_and_a_stop_that_the_store_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with served(path) as broker:
        publish(broker, 3)
        assert broker.stop() == 0
        assert told(broker) == [
            f"INFO logstore {logstore.__version__}: store {path}, created, with segments of 16777216 bytes (16 MiB)",
            f"INFO listening on 127.0.0.1:{broker.port}",
            "INFO stopping; open connections: 0",
            "INFO stopped: the store is closed",
        ]


def test_the_next_start_tells_what_the_recovery_found(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with served(path) as broker:
        publish(broker, 3)
        assert broker.stop() == 0
    broker.errors.unlink()
    with served(path) as broker:
        (line,) = [line for line in told(broker) if "store" in line]
        assert f"store {path}, closed cleanly; epoch 2; 3 messages from " in line
        publish(broker, 2)
    broker.errors.unlink()
    with served(path) as broker:
        (line,) = [line for line in told(broker) if "store" in line]
        assert f"store {path}, not closed: recovered after a crash; epoch 3; 5 messages from " in line


@pytest.mark.parametrize(
    ("login", "error", "reason"),
    [
        ({"name": "somebody"}, ProbableAuthenticationError, "user 'somebody' is unknown, or the password is wrong"),
        ({"password": "other"}, ProbableAuthenticationError, "user 'guest' is unknown, or the password is wrong"),
        ({"vhost": "other"}, ProbableAccessDeniedError, "530 NOT_ALLOWED - vhost other not found"),
        (
            {"name": "two\nlines"},
            ProbableAuthenticationError,
            r"user 'two\nlines' is unknown, or the password is wrong",
        ),
    ],
)
def test_a_refused_login_is_one_line_with_peer_and_reason(
    login: dict[str, str], error: type[AMQPConnectionError], reason: str, tmp_path: Path
) -> None:
    with served(tmp_path / "store") as broker:
        with pytest.raises(error):
            connect(broker, **login)
        assert broker.stop() == 0
        (line,) = [line for line in told(broker) if " refused: " in line]
        before, _, after = line.partition(" refused: ")
        assert after == reason
        assert before.startswith("WARNING login from 127.0.0.1:")
        assert before.rpartition(":")[2].isdigit()


def test_connections_are_logged_with_v_only(tmp_path: Path) -> None:
    with served(tmp_path / "store", "-v") as broker:
        connect(broker).close()
        assert broker.stop() == 0
        (line,) = [line for line in told(broker) if "has opened" in line]
        assert line.startswith("DEBUG connection 127.0.0.1:")
        assert line.endswith("user 'guest' has opened vhost '/'")
        assert [line for line in told(broker) if "is gone" in line]


def test_a_start_says_what_became_of_a_segment_size_below_the_least(tmp_path: Path) -> None:
    with served(tmp_path / "store", "--segment-size", "1000") as broker:
        assert "created, with segments of 524288 bytes (512 KiB)" in told(broker)[0]
