"""``logstore connections``: the clients of a real broker, and which of them hangs."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

import pytest
from pamqp import commands

import logstore
from kit.amqp_client import RawClient
from kit.command import fails, fine, run, told
from kit.serve_process import ServeProcess, serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

COUNT, BODY = 40, b"x" * (1 << 20)  # more than the sockets between a broker and its client take


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "store"
    with logstore.open(made) as store:
        store.publish_many(store.declare_queue("large"), [BODY] * COUNT)
        store.publish_many(store.declare_queue("small"), [b"an order"] * 5)
    return made


@pytest.fixture
def broker(path: Path) -> Iterator[ServeProcess]:
    with serving(path) as process:
        yield process


def consuming(broker: ServeProcess, queue: str, prefetch: int) -> RawClient:
    client = RawClient(broker.port).open()
    client.send(1, commands.Basic.Qos(0, prefetch), commands.Basic.Consume(queue=queue))
    client.expect(commands.Basic.QosOk)
    client.expect(commands.Basic.ConsumeOk)
    return client


def listed(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = told("connections", path)["connections"]
    return found


def test_a_client_that_does_not_read_comes_first_with_what_waits_for_it_and_since_when(
    broker: ServeProcess, path: Path
) -> None:
    with consuming(broker, "small", 2) as works, consuming(broker, "large", 0) as hangs:
        assert [works.delivery()[1] for _ in range(2)] == [b"an order"] * 2
        deadline = time.monotonic() + 30
        while (rows := listed(path))[0]["waits_for"] != "client":
            assert time.monotonic() < deadline
        first, second = rows
        assert first["peer"] == "{}:{}".format(*hangs.socket.getsockname())
        assert first["unsent_bytes"] > len(BODY)
        assert 0 <= first["blocked_s"] <= first["connected_s"]
        assert (first["channels"], first["consumers"], first["queues"]) == (1, 1, ["large"])
        assert 0 < first["unacknowledged"] < COUNT
        assert second["peer"] == "{}:{}".format(*works.socket.getsockname())
        shown = ("user", "vhost", "state", "channels", "consumers", "queues", "unacknowledged", "unsent_bytes")
        assert [second[key] for key in shown] == ["guest", "/", "open", 1, 1, ["small"], 2, 0]
        assert second["waits_for"] is second["blocked_s"] is None
        assert 0 <= second["silent_s"] <= second["connected_s"]
        text = fine("connections", path)
        assert re.search(r"^client +user +vhost +channels +consumers +unacked +unsent +waits for +connected", text)
        assert re.search(
            rf"^{first['peer']} +guest +/ +1 +1 +\d+ +[\d.]+ [KM]iB +client for \d+ .* large$", text, re.MULTILINE
        )
        for _ in range(COUNT):
            hangs.delivery()
        hangs.declare("large", passive=True)
        (again,) = [row for row in listed(path) if row["peer"] == first["peer"]]
        assert (again["waits_for"], again["blocked_s"], again["unsent_bytes"]) == (None, None, 0)
        assert again["unacknowledged"] == COUNT


def test_a_client_that_has_not_logged_in_is_shown_with_its_state(broker: ServeProcess, path: Path) -> None:
    with RawClient(broker.port):
        (row,) = listed(path)
        assert (row["user"], row["vhost"], row["state"], row["channels"]) == (None, None, "opening", 0)
        assert "(opening)" in fine("connections", path)


@pytest.mark.usefixtures("broker")
def test_a_broker_without_clients_says_so(path: Path) -> None:
    assert fine("connections", path) == "no client is connected\n"
    assert listed(path) == []


def test_without_a_broker_the_command_says_that_one_is_needed(path: Path) -> None:
    assert "a running broker is needed" in fails(run("connections", path), 1)
    with logstore.open(path):
        assert "no broker listens" in fails(run("connections", path), 3)
