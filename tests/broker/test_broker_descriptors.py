"""A broker with a low limit of open files: some are reserved for the log, connections get the rest."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest
from pamqp import commands

from kit.amqp_client import RawClient
from kit.serve_process import ServeProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextlib.contextmanager
def serving_with(limits: str, path: Path) -> Iterator[ServeProcess]:
    under = ["sh", "-c", f'{limits}; exec "$@"', "sh"]
    process = ServeProcess(path, under=under, options=["--segment-size", "512K"])
    try:
        yield process
    finally:
        process.kill()


def connections(process: ServeProcess, count: int) -> list[RawClient]:
    return [RawClient(process.port, timeout=60) for _ in range(count)]


def test_silent_clients_beyond_the_limit_of_open_files_make_room_with_a_line_and_the_log_works(tmp_path: Path) -> None:
    with serving_with("ulimit -n 64", tmp_path / "store") as process:
        client = RawClient(process.port, timeout=60).open()
        client.declare("q", durable=True)
        client.send(1, commands.Confirm.Select())
        client.expect(commands.Confirm.SelectOk)
        idle = connections(process, 200)
        idle[0].expect_end()
        idle[-1].start()
        idle[-1].expect(commands.Connection.Tune)
        for _ in range(60):  # through seven segments
            client.publish("q", bytes(60_000))
            client.expect(commands.Basic.Ack)
        for each in idle:
            each.socket.close()
        RawClient(process.port, timeout=60).open()
        lines = process.complaints()
        assert "64 open files are allowed, so at most" in lines[0]
        assert "is closed in its handshake" in lines[1]
        assert len(lines) <= 3, "they are not logged one by one"
        assert process.stop() == 0


def test_a_login_beyond_the_connections_that_open_files_allow_is_530_and_the_log_works(tmp_path: Path) -> None:
    with serving_with("ulimit -n 64", tmp_path / "store") as process:
        clients = []
        with pytest.raises(AssertionError, match=r"connection limit \(\d+\) is reached"):
            while len(clients) < 60:
                clients.append(RawClient(process.port, timeout=60).open())
        first = clients[0]
        first.declare("q", durable=True)
        first.send(1, commands.Confirm.Select())
        first.expect(commands.Confirm.SelectOk)
        for _ in range(60):  # through seven segments
            first.publish("q", bytes(60_000))
            first.expect(commands.Basic.Ack)
        first.socket.close()
        late = RawClient(process.port, timeout=60)
        while True:
            with contextlib.suppress(AssertionError):
                late.open()
                break
            late = RawClient(process.port, timeout=60)
        assert process.stop() == 0


def test_the_soft_limit_of_open_files_is_raised_to_the_hard_one(tmp_path: Path) -> None:
    with serving_with("ulimit -Sn 64", tmp_path / "store") as process:
        clients = connections(process, 60)
        for client in clients:
            client.open()
        assert process.stop() == 0
        assert process.complaints() == []
