"""The comparison of the broker with other queue systems: what is measured, and what is left out."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pamqp", reason="the extra broker is not installed")

from kit.stores import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))

import queue_servers  # found by the line above
import queue_wires
from rabbitmq_server import Missing

if TYPE_CHECKING:
    from pathlib import Path


def test_the_broker_alone_is_measured_under_each_load(tmp_path: Path) -> None:
    options = ["--rounds", "1", "--seconds", "0.1", "--messages", "150", "--sizes", "100", "--systems"]
    command = [
        sys.executable,
        str(ROOT / "benchmarks" / "alternatives.py"),
        "--dir",
        str(tmp_path),
        "--out",
        str(tmp_path / "out"),
    ]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads((tmp_path / "out" / "results.json").read_text())
    assert [(row["system"], row["load"], len(row["samples"])) for row in told["rows"]] == [
        ("logstore", "window 1", 1),
        ("logstore", "window 100", 1),
        ("logstore", "consume", 1),
    ]
    assert told["rows"][2]["samples"][0]["messages"] == 150


def test_a_system_that_is_not_installed_is_missing_and_says_how_to_get_it() -> None:
    class Absent(queue_servers.RedisServer):
        program = "redis-server-of-nobody"

    with pytest.raises(Missing, match="apt-get install redis-server"):
        Absent.path()


def test_answers_count_once_however_they_are_cut() -> None:
    answers = {
        queue_wires.RedisWire: b"$3\r\n1-1\r\n$4\r\n12-0\r\n",
        queue_wires.BeanstalkWire: b"INSERTED 1\r\nINSERTED 22\r\n",
        queue_wires.NatsWire: b'MSG in.p 1 9\r\n{"seq":1}\r\nMSG in.p 1 9\r\n{"seq":2}\r\n',
    }
    for kind, answer in answers.items():
        for cut in range(len(answer) + 1):
            wire = kind.__new__(kind)
            wire._rest = b""
            assert wire.confirmed(answer[:cut]) + wire.confirmed(answer[cut:]) == 2, (kind, cut)


@pytest.mark.parametrize("kind", [queue_wires.RedisWire, queue_wires.BeanstalkWire, queue_wires.NatsWire])
def test_a_refusal_is_no_confirm(kind: type) -> None:
    wire = kind.__new__(kind)
    wire._rest = b""
    with pytest.raises(queue_wires.WireError):
        wire.confirmed(b"-ERR no\r\n-ERR no\r\n")
