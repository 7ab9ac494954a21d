"""A relay between two brokers: with TLS, with clients that do not wait, and with a leader that stops reading."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("msgspec", reason="the extra cluster is not installed")
pytest.importorskip("logstore._consensus", reason="the cluster is not built")

from pamqp import commands

from kit.live_broker import open_store
from kit.patience import PATIENCE_S, wait_until
from kit.relayed_broker import RelayedBroker
from logstore.broker import Limits, frames
from logstore.cluster.addresses import Tls
from logstore.cluster.certificates import make_authority, make_certificate

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

UNSENT_BYTES_HIGH = 64 << 10
ONE_READ_BYTES = 512 << 10
"""What one read of a socket may add to a buffer that is full already."""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RelayedBroker]:
    store = open_store(tmp_path / "store")
    made = RelayedBroker(store, Limits(unsent_bytes_high=UNSENT_BYTES_HIGH))
    yield made
    made.stop()
    store.close()


@pytest.fixture
def encrypted(tmp_path: Path) -> Iterator[RelayedBroker]:
    pytest.importorskip("cryptography", reason="the extra cluster is not installed")
    authority = make_authority(tmp_path)
    made = [make_certificate(tmp_path, authority, name) for name in ("front", "back")]
    front, back = (Tls(authority.cert, each.cert, each.key) for each in made)
    store = open_store(tmp_path / "store")
    broker = RelayedBroker(store, tls=(front, back))
    yield broker
    broker.stop()
    store.close()


def nothing_left(broker: RelayedBroker) -> None:
    def gone() -> bool:
        return not any(
            len(server.connections) + server.admission.admitted_count for server in (broker.front, broker.server)
        )

    wait_until(lambda: broker.call(gone), "neither broker has a connection")
    wait_until(lambda: not broker.acceptor.transport._links, "the member has no link")


def test_a_relay_between_members_with_certificates_is_encrypted(encrypted: RelayedBroker) -> None:
    client = encrypted.raw().open()
    client.declare("q", durable=True)
    content = random.Random(3).randbytes(3 << 20)
    client.publish("q", content)
    (relay,) = encrypted.call(lambda: [each.relay for each in encrypted.front.connections])
    assert relay._upstream.get_extra_info("ssl_object").version() == "TLSv1.3"
    client.send(1, commands.Basic.Consume(queue="q"))
    client.expect(commands.Basic.ConsumeOk)
    assert client.delivery()[1] == content
    client.socket.close()
    nothing_left(encrypted)


def test_what_a_client_sent_before_its_end_reaches_the_leader_encrypted(encrypted: RelayedBroker) -> None:
    client = encrypted.raw().open()
    client.declare("q", durable=True)
    (upstream,) = encrypted.call(lambda: [each.relay._upstream for each in encrypted.front.connections])
    (served,) = encrypted.call(lambda: list(encrypted.server.connections))
    encrypted.call(served.transport.pause_reading)
    sent = 0
    while not encrypted.call(upstream.get_write_buffer_size):
        client.publish("q", bytes(100_000))
        sent += 1
    client.socket.close()
    wait_until(lambda: not encrypted.call(lambda: len(encrypted.front.connections)), "the client is gone")
    encrypted.call(served.transport.resume_reading)
    nothing_left(encrypted)
    assert encrypted.raw().open().declare("q", passive=True).message_count == sent


def test_what_a_client_sends_behind_the_open_reaches_the_leader_in_order(broker: RelayedBroker) -> None:
    client = broker.raw()
    client.start()
    client.expect(commands.Connection.Tune)
    sent = [frames.method(0, commands.Connection.TuneOk(0, 131072, 0))]
    sent.append(frames.method(0, commands.Connection.Open("/")))
    sent.append(frames.method(1, commands.Channel.Open()))
    sent += [frames.method(1, commands.Queue.Declare(queue=f"q{number}")) for number in range(50)]
    client.send_bytes(b"".join(sent))
    client.expect(commands.Connection.OpenOk)
    client.expect(commands.Channel.OpenOk)
    for number in range(50):
        assert client.expect(commands.Queue.DeclareOk).queue == f"q{number}"


def test_a_leader_that_stops_reading_stops_the_client_with_bounded_memory(broker: RelayedBroker) -> None:
    client = broker.raw().open()
    (served,) = broker.call(lambda: list(broker.server.connections))
    (relay,) = broker.call(lambda: [each.relay for each in broker.front.connections])
    broker.call(served.transport.pause_reading)
    client.socket.setblocking(False)
    beats = frames.HEARTBEAT_FRAME * 20_000
    sent = 0

    def is_stopped() -> bool:
        nonlocal sent
        try:
            while True:
                sent += client.socket.send(beats[sent % len(beats) :])
        except BlockingIOError:
            return not broker.call(relay.client.is_reading)

    wait_until(is_stopped, "the client is not read")
    assert relay._upstream.get_write_buffer_size() <= UNSENT_BYTES_HIGH + ONE_READ_BYTES
    client.socket.settimeout(PATIENCE_S)
    broker.call(served.transport.resume_reading)
    client.send_bytes(beats[sent % len(beats) :])
    assert client.declare("q").queue == "q"
