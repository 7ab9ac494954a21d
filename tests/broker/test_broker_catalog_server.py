"""A broker whose catalog is on a PostgreSQL server that stops, or fails during a change."""

from __future__ import annotations

import itertools
import signal
from typing import TYPE_CHECKING, Any

import pytest
from pamqp import commands

import logstore
from kit import postgres
from kit.amqp_client import RawClient
from kit.live_broker import Broker
from kit.patience import wait_until
from kit.postgres import Server, Wire
from kit.serve_process import ServeProcess
from logstore.store.control import call

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.postgres

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def shared_server() -> Iterator[Server]:
    yield from postgres.running_server()


@pytest.fixture
def server(shared_server: Server) -> Iterator[Server]:
    """A running server, whatever the previous test did to it."""
    if shared_server.process is None:
        shared_server.start()
    yield shared_server
    if shared_server.process is not None:
        shared_server.thaw()


@pytest.fixture
def schema() -> str:
    return f"s{next(_numbers)}"


def serve(path: Path, server: Server, schema: str, timeout_s: int) -> ServeProcess:
    return ServeProcess(
        path,
        options=["--catalog", schema, "--catalog-timeout", str(timeout_s)],
        environment={"LOGSTORE_CONNECT": server.url()},
    )


def test_a_stopped_server_delays_only_changes_of_the_catalog(tmp_path: Path, server: Server, schema: str) -> None:
    process = serve(tmp_path / "store", server, schema, 3)
    try:
        changing = RawClient(process.port, timeout=60).open(channels=2)
        changing.declare("old", durable=True)
        server.freeze()
        changing.send(1, commands.Queue.Declare(queue="new", durable=True))
        changing.send(2, commands.Confirm.Select())
        changing.expect(commands.Confirm.SelectOk)
        changing.publish("old", b"beside it", channel=2)
        changing.expect(commands.Basic.Ack)
        with RawClient(process.port, timeout=60).open() as other:
            assert other.declare("old", durable=True).message_count == 1
            other.send(1, commands.Basic.Consume(queue="old"))
            other.expect(commands.Basic.ConsumeOk)
            assert other.delivery()[1] == b"beside it"
        assert call(tmp_path / "store", "ping", {})["pid"] == process.pid
        assert "cannot be reached" in changing.expect_channel_close(506)
        server.thaw()
        changing.open_channel(3)
        changing.send(3, commands.Queue.Declare(queue="new", durable=True))
        changing.expect(commands.Queue.DeclareOk)
        assert process.stop() == 0
        assert "Traceback" not in process.errors.read_text()
    finally:
        process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_broker_ends_while_its_server_is_stopped_and_a_change_hangs(
    number: int, tmp_path: Path, server: Server, schema: str
) -> None:
    process = serve(tmp_path / "store", server, schema, 600)
    try:
        client = RawClient(process.port, timeout=60).open()
        client.declare("old", durable=True)
        server.freeze()
        client.send(1, commands.Queue.Declare(queue="new", durable=True))
        with RawClient(process.port, timeout=60).open():  # so the other was read
            process.signal(number)
            assert process.ended(60) == 0
    finally:
        process.kill()
    server.thaw()
    with logstore.open(tmp_path / "store", connect=server.url(), catalog=schema) as store:
        assert store.queue("old").depth == 0


@pytest.mark.parametrize("committed", [False, True])
def test_the_outcome_of_a_deletion_without_an_answer_is_found_without_a_request(
    committed: bool, tmp_path: Path, server: Server, schema: str, broker_class: type[Broker]
) -> None:
    wire = Wire(server)
    store = logstore.open(tmp_path / "store", connect=wire.url(), catalog=schema, catalog_timeout=5)
    broker = broker_class(store)
    try:
        client = broker.raw(timeout=60).open(channels=2)
        for queue in ("orders", "other"):
            client.declare(queue, durable=True)
            client.send(1, commands.Queue.Bind(queue=queue, exchange="amq.fanout"))
            client.expect(commands.Queue.BindOk)
        # The server dies before the broker misses the answer: a living one would be asked after a second.
        wire.cut_at(b"COMMIT", "behind" if committed else "before", then=server.kill)
        client.send(1, commands.Queue.Delete(queue="orders"))
        client.expect_channel_close(506)
        client.send(2, commands.Confirm.Select())
        client.expect(commands.Confirm.SelectOk)
        client.publish("orders", b"lost by the next open", channel=2)
        client.expect(commands.Basic.Nack)
        client.publish("other", b"one", channel=2)
        client.expect(commands.Basic.Ack)
        server.start()
        wait_until(lambda: not broker.call(lambda: broker.server.hosts["/"].vhost._finding_out), "the catalog has told")
        assert broker.call(lambda: "orders" in broker.server.hosts["/"].vhost.queues) is not committed
        client.publish("", b"two", channel=2, exchange="amq.fanout")
        client.expect(commands.Basic.Ack)
        client.open_channel(3)
        client.send(3, commands.Queue.Declare(queue="orders", durable=True))
        assert client.expect(commands.Queue.DeclareOk).message_count == (0 if committed else 1)
    finally:
        broker.stop()
        store.close()
        wire.close()


@pytest.mark.parametrize("change", ["declare", "exchange", "bind", "unbind", "delete exchange"])
def test_a_change_without_an_answer_takes_effect_when_its_outcome_is_known(
    change: str, tmp_path: Path, server: Server, schema: str, broker_class: type[Broker]
) -> None:
    requests: dict[str, Any] = {
        "declare": commands.Queue.Declare(queue="new", durable=True),
        "exchange": commands.Exchange.Declare(exchange="new", durable=True),
        "bind": commands.Queue.Bind(queue="old", exchange="amq.direct", routing_key="new"),
        "unbind": commands.Queue.Unbind(queue="old", exchange="amq.direct", routing_key="old"),
        "delete exchange": commands.Exchange.Delete(exchange="old"),
    }
    wire = Wire(server)
    store = logstore.open(tmp_path / "store", connect=wire.url(), catalog=schema, catalog_timeout=5)
    broker = broker_class(store)
    try:
        client = broker.raw(timeout=60).open()
        client.declare("old", durable=True)
        client.send(1, commands.Queue.Bind(queue="old", exchange="amq.direct", routing_key="old"))
        client.expect(commands.Queue.BindOk)
        client.send(1, commands.Exchange.Declare(exchange="old", durable=True))
        client.expect(commands.Exchange.DeclareOk)
        wire.cut_at(b"COMMIT", "behind")
        client.send(1, requests[change])
        client.expect_channel_close(506)
        vhost = broker.server.hosts["/"].vhost
        wait_until(lambda: not broker.call(lambda: vhost._finding_out), "the catalog has told")
        assert broker.call(lambda: sorted(vhost.queues)) == sorted(queue.name for queue in store.queues())
        durable = {exchange.name for exchange in store.exchanges()}
        assert broker.call(lambda: set(vhost.exchanges)) == {"", *durable}
        bound = {(row.exchange, row.queue, row.key) for row in store.bindings()}
        assert broker.call(lambda: {each[:3] for one in vhost.exchanges.values() for each in one.bindings}) == bound
        assert ("new" in {*durable, *(queue.name for queue in store.queues())}) is (change in ("declare", "exchange"))
        client.open_channel(2)
        client.send(2, requests[change])
        assert client.receive()[1].name == f"{requests[change].name}Ok"
    finally:
        broker.stop()
        store.close()
        wire.close()
