"""The limits of a member's broker are options of ``logstore cluster run``, as they are of ``logstore serve``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("msgspec", reason="the extra cluster is not installed")
pytest.importorskip("logstore._consensus", reason="the cluster is not built")

from kit.amqp_client import RawClient
from kit.command import fine, refused
from kit.member_process import MemberProcess, leads
from kit.ports import free_ports
from logstore.broker import Limits
from logstore.cluster import running

if TYPE_CHECKING:
    from pathlib import Path


def made(directory: Path, *options: str) -> Path:
    (port,) = free_ports(1)
    fine("cluster", "init", directory, "--name", "m1", "--listen", f"127.0.0.1:{port}", *options)
    return directory


def test_a_member_takes_a_limit_of_its_broker(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    m1 = made(tmp_path / "m1", "--amqp", f"127.0.0.1:{port}")
    process = MemberProcess(m1, "--max-body-bytes", "1K")
    try:
        leads(m1)
        client = RawClient(port).open()
        client.declare("q", durable=True)
        client.publish("q", bytes(1024))
        assert client.declare("q", durable=True).message_count == 1
        client.publish("q", bytes(1025))
        assert "size 1025 is larger than configured max size 1024" in client.expect_channel_close(311)
    finally:
        process.kill()


def test_each_option_sets_its_limit_and_the_others_stay_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    m1 = made(tmp_path / "m1", "--amqp", "127.0.0.1:5672")
    given: list[dict[str, Any]] = []
    monkeypatch.setattr(running, "run", lambda _, limits, **__: given.append(limits))
    for options in ((), ("--max-memory", "32M"), ("--max-body-bytes", "1K"), ("--blocked-timeout", "7.5")):
        fine("cluster", "run", "--dir", m1, *options)
    assert [Limits(**each) for each in given] == [
        Limits(),
        Limits(memory_bytes_max=32 << 20),
        Limits(body_bytes_max=1024),
        Limits(blocked_timeout_s=7.5),
    ]


def test_a_member_without_a_broker_refuses_limits_of_one_in_one_line(tmp_path: Path) -> None:
    m1 = made(tmp_path / "m1")
    said = refused(2, "cluster", "run", "--dir", m1, "--max-body-bytes", "1K", "--max-memory", "32M")
    assert said == (
        "logstore: --max-body-bytes, --max-memory: this member runs no broker; set amqp in "
        f"{m1}/cluster.toml, or leave the option out\n"
    )
