"""`logstore cluster demo`: three members as processes; what a reader of the README does with them."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
from typing import TYPE_CHECKING

import pika
import pika.exceptions
import pytest

pytest.importorskip("msgspec", reason="the extra cluster is not installed")
pytest.importorskip("logstore._consensus", reason="the cluster is not built")

from kit.command import fails, fine, run
from kit.patience import PATIENCE_S, wait_until
from kit.serve_process import CommandProcess
from logstore.cluster.running import status

if TYPE_CHECKING:
    from pathlib import Path


class DemoProcess(CommandProcess):
    """One run of the demo. Its output is read up to its last line."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory.with_name("demo.stderr"), "cluster", "demo", "--dir", directory)
        assert self._process.stdout is not None
        lines = self.first_line.splitlines()  # as many as had come
        while lines[-1] != "Ctrl-C ends them all.":
            lines.append(self._process.stdout.readline().decode().rstrip("\n"))
            assert lines[-1], self.errors.read_text()
        self.text = "\n".join(lines)
        self.pids = {name: int(pid) for name, pid in re.findall(r"^  (m\d)  process (\d+) ", self.text, re.MULTILINE)}
        self.commands = [shlex.split(line)[1:] for line in re.findall(r"^  (logstore .*)$", self.text, re.MULTILINE)]

    def next_line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().decode()


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_message_outlives_the_member_that_led_by_the_words_of_the_demo(tmp_path: Path) -> None:
    demo = DemoProcess(tmp_path / "three")
    try:
        assert sorted(demo.pids) == ["m1", "m2", "m3"]
        publish, look, peek = demo.commands
        assert "on the disks of a majority" in fine(*publish)
        (led,) = re.findall(r"(m\d) leads the host", demo.text)
        os.kill(demo.pids[led], signal.SIGKILL)
        assert f"{led} was ended by signal 9" in demo.next_line()
        other = tmp_path / "three" / ("m2" if led == "m1" else "m1")
        wait_until(lambda: status(other)["hosts"][0]["leader"] not in (None, status_id(tmp_path, led)), "another leads")
        assert led in fine(*[word for word in look if word != "--watch"])
        # Its copy shows what it knows to be durable: so once the new leader has told it.
        wait_until(lambda: "the first message" in fine(*peek), "the message is there")
        demo.signal(signal.SIGINT)
        demo.ended(PATIENCE_S)
        assert all(is_gone(pid) for pid in demo.pids.values())
    finally:
        demo.signal(signal.SIGINT)
        demo.ended(PATIENCE_S)
    again = DemoProcess(tmp_path / "three")
    try:
        wait_until(lambda: "the first message" in fine(*again.commands[2]), "the message is there")
    finally:
        again.stop(PATIENCE_S)
    assert all(is_gone(pid) for pid in again.pids.values())


def status_id(tmp_path: Path, name: str) -> int:
    found = status(tmp_path / "three" / name)
    member = found["member"]
    assert isinstance(member, int)
    return member


def test_clients_of_the_demos_brokers_find_a_message_whichever_member_is_killed(tmp_path: Path) -> None:
    demo = DemoProcess(tmp_path / "three")
    try:
        (led,) = re.findall(r"(m\d) leads the host", demo.text)
        ports = {
            name: int(port) for name, port in re.findall(r"^  (m\d) .* AMQP 127.0.0.1:(\d+) ", demo.text, re.MULTILINE)
        }
        assert len(ports) == 3
        relays = next(name for name in ports if name != led)
        channel = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", ports[relays])).channel()
        channel.queue_declare("orders", durable=True)
        channel.confirm_delivery()
        channel.basic_publish("", "orders", b"one coffee", pika.BasicProperties(delivery_mode=2))
        os.kill(demo.pids[led], signal.SIGKILL)
        demo.next_line()
        addresses = [pika.ConnectionParameters("127.0.0.1", port, connection_attempts=20) for port in ports.values()]
        found: list[bytes] = []

        def get() -> bool:
            with contextlib.suppress(pika.exceptions.AMQPError):
                method, _, body = pika.BlockingConnection(addresses).channel().basic_get("orders")
                assert method is None or method.redelivered
                found.append(body)
            return bool(found)

        wait_until(get, "another member leads")
        assert found == [b"one coffee"]
    finally:
        demo.stop(PATIENCE_S)


def test_a_message_is_published_only_where_the_host_is_led(tmp_path: Path) -> None:
    demo = DemoProcess(tmp_path / "three")
    try:
        (led,) = re.findall(r"(m\d) leads the host", demo.text)
        other = tmp_path / "three" / next(name for name in demo.pids if name != led)
        said = fails(run("cluster", "publish", "main", "orders", "x", "--dir", other), 1)
        assert f"member {led} leads host main" in said
    finally:
        demo.stop(PATIENCE_S)
