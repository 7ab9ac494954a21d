"""The broker as a process: its output, its end, and its errors if it cannot start."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pika
import pytest

from kit.live_broker import open_store
from kit.serve_process import serving
from logstore.broker import BrokerError, Limits, run

if TYPE_CHECKING:
    from pathlib import Path


def connect(port: int) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))


def test_sigterm_ends_the_broker_within_ten_seconds_and_the_next_start_has_everything(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with serving(store) as process:
        channel = connect(process.port).channel()
        channel.queue_declare("q", durable=True)
        channel.confirm_delivery()
        for number in range(100):
            channel.basic_publish("", "q", b"%d" % number)
        channel.basic_get("q")
        started = time.monotonic()
        assert process.stop() == 0
        assert time.monotonic() - started < 10
        assert process.complaints() == []
    with serving(store) as process:
        channel = connect(process.port).channel()
        assert channel.queue_declare("q", durable=True).method.message_count == 100
        assert channel.basic_get("q")[2] == b"0"


@pytest.mark.parametrize("hangs", ["force", "publish"])
def test_sigterm_ends_a_hanging_broker_and_the_next_start_has_everything(tmp_path: Path, hangs: str) -> None:
    code = (
        "import sys, threading, logstore\n"
        "from logstore.cli import main\n"
        "store = logstore.MessageStore\n"
        "real = getattr(store, sys.argv.pop(1))\n"
        "def hang(self, *args, **options):\n"
        "    if not args or b'hang' not in args[1:2]: return real(self, *args, **options)\n"
        "    threading.Event().wait()\n"
        "def hang_always(self, *args): threading.Event().wait()\n"
        "setattr(store, real.__name__, hang if real.__name__ == 'publish' else hang_always)\n"
        "main()\n"
    )
    arguments = ["serve", str(tmp_path / "store"), "--port", "0", "--stop-timeout", "2"]
    with subprocess.Popen(
        [sys.executable, "-c", code, hangs, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            channel = connect(int(process.stdout.readline().rpartition(":")[2])).channel()
            channel.queue_declare("q", durable=True)
            channel.confirm_delivery()
            channel.basic_publish("", "q", b"kept")
            threading.Thread(target=publish_unheard, args=[channel], daemon=True).start()
            time.sleep(0.2)  # in the one case until the loop hangs
            process.terminate()
            said = process.communicate(timeout=60)[1]
        finally:
            process.kill()
    assert process.returncode == 1
    assert "not ended 2 s after SIGTERM" in said
    with serving(tmp_path / "store") as again:
        channel = connect(again.port).channel()
        assert channel.basic_get("q")[2] == b"kept"


def publish_unheard(channel: Any) -> None:
    with contextlib.suppress(Exception):
        channel.basic_publish("", "q", b"hang")


def test_after_sigkill_everything_confirmed_is_there_and_the_same_port_works(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with serving(store) as process:
        channel = connect(process.port).channel()
        channel.queue_declare("q", durable=True)
        channel.confirm_delivery()
        for number in range(100):
            channel.basic_publish("", "q", b"%d" % number)
        for _ in range(10):
            method, _, _ = channel.basic_get("q")
            channel.basic_ack(method.delivery_tag)
        channel.queue_declare("q", passive=True)
        process.kill()
    with serving(store, process.port) as again:
        channel = connect(again.port).channel()
        assert channel.queue_declare("q", durable=True).method.message_count == 90
        assert channel.basic_get("q")[2] == b"10"


def test_a_port_in_use_is_one_plain_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ended = subprocess.run(
            [sys.executable, "-m", "logstore", "serve", str(tmp_path / "store"), "--port", str(port)],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    assert ended.returncode not in (0, -9)
    assert ended.stdout == ""
    assert f"127.0.0.1:{port} is already in use: choose another with --port" in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "store").exists(), "a store was made for a broker that cannot listen"


@pytest.mark.parametrize(
    ("host", "port", "says"),
    [
        ("192.0.2.1", 0, "not an address of this machine"),
        ("host.invalid", 0, "unknown"),
    ],
)
def test_an_unusable_address_is_one_plain_line(tmp_path: Path, host: str, port: int, says: str) -> None:
    store = open_store(tmp_path / "store")
    try:
        with pytest.raises(BrokerError, match=says):
            run(store, host=host, port=port)
    finally:
        store.close()


@pytest.mark.parametrize(
    "limits",
    [
        {"frame_bytes_max": 100},
        {"channels_max": 0},
        {"channels_max": 70_000},
        {"heartbeat_s": -1},
        {"connections_max": 0},
        {"body_bytes_max": -5},
    ],
)
def test_impossible_limits_are_refused(limits: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(limits))):
        Limits(**limits)
