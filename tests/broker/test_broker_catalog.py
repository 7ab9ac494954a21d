"""A catalog that hangs or is unavailable delays only the operations that need it."""

from __future__ import annotations

import sqlite3
import threading
from typing import TYPE_CHECKING, Any

import pytest
from pamqp import commands

import logstore
from kit.live_broker import Broker, message_bytes, open_store
from kit.patience import PATIENCE_S
from kit.store_proxies import HangingCatalog, Proxy
from logstore.errors import CatalogError, CatalogUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

REQUESTS: dict[str, Any] = {
    "queue.declare": commands.Queue.Declare(queue="new", durable=True),
    "queue.delete": commands.Queue.Delete(queue="old"),
    "queue.bind": commands.Queue.Bind(queue="old", exchange="amq.topic", routing_key="new"),
    "queue.unbind": commands.Queue.Unbind(queue="old", exchange="amq.topic", routing_key="old"),
    "exchange.declare": commands.Exchange.Declare(exchange="new", durable=True),
    "exchange.delete": commands.Exchange.Delete(exchange="old"),
    "basic.cancel": commands.Basic.Cancel(consumer_tag="last"),
}


def prepare(client: Any) -> None:
    client.declare("old", durable=True)
    client.declare("busy", durable=True)
    client.send(1, commands.Exchange.Declare(exchange="old", durable=True))
    client.expect(commands.Exchange.DeclareOk)
    client.send(1, commands.Queue.Bind(queue="old", exchange="amq.topic", routing_key="old"))
    client.expect(commands.Queue.BindOk)
    client.declare("watched", durable=True, auto_delete=True)
    client.send(1, commands.Basic.Consume(queue="watched", consumer_tag="last"))
    client.expect(commands.Basic.ConsumeOk)


@pytest.mark.parametrize("request_name", REQUESTS)
def test_while_a_change_hangs_other_channels_and_connections_are_served(
    request_name: str, hanging: tuple[Broker, HangingCatalog]
) -> None:
    broker, store = hanging
    client = broker.raw().open(channels=2)
    prepare(client)
    store.hang()
    client.send(1, REQUESTS[request_name])
    client.publish("busy", b"behind the change", channel=1)
    client.send(1, commands.Basic.Qos(prefetch_count=1))
    assert store.asked.wait(PATIENCE_S)

    client.send(2, commands.Confirm.Select())
    client.expect(commands.Confirm.SelectOk)
    client.publish("busy", b"beside it", channel=2)
    client.expect(commands.Basic.Ack)
    with broker.raw().open() as other:
        assert other.declare("busy", durable=True).message_count == 1
        other.declare("mine", exclusive=True)
        other.send(1, commands.Basic.Consume(queue="busy", no_ack=True))
        other.expect(commands.Basic.ConsumeOk)
        assert other.delivery()[1] == b"beside it"

        store.go_on()
        _, reply = client.receive()
        assert reply.name == f"{REQUESTS[request_name].name}Ok"
        client.expect(commands.Basic.QosOk)
        assert other.delivery()[1] == b"behind the change"


def test_frames_behind_a_change_that_finds_the_catalog_unavailable_are_refused_with_it(
    hanging: tuple[Broker, HangingCatalog],
) -> None:
    broker, store = hanging
    client = broker.raw().open(channels=10)
    store.hang(CatalogUnavailable("the catalog is away"))
    for number in range(1, 11):
        client.send(number, commands.Queue.Declare(queue=f"q{number}", durable=True))
    assert store.asked.wait(PATIENCE_S)
    with broker.raw().open() as other:  # so all ten have been read
        other.declare("mine", exclusive=True)
        store.go_on()
        for _ in range(10):
            assert "the catalog is away" in client.expect_channel_close(506)
    assert store.calls == 1
    store.failure = None
    client.open_channel(11)
    client.send(11, commands.Queue.Declare(queue="q1", durable=True))
    client.expect(commands.Queue.DeclareOk)


def test_of_concurrent_declarations_of_a_queue_equal_ones_succeed_and_a_different_one_is_refused(
    hanging: tuple[Broker, HangingCatalog],
) -> None:
    broker, store = hanging
    client = broker.raw().open(channels=3)
    store.hang()
    client.send(1, commands.Queue.Declare(queue="q", durable=True))
    assert store.asked.wait(PATIENCE_S)
    client.send(2, commands.Queue.Declare(queue="q", durable=True))
    client.send(3, commands.Queue.Declare(queue="q", durable=False))
    store.go_on()
    for _ in range(2):
        client.expect(commands.Queue.DeclareOk)
    assert "inequivalent arg 'durable'" in client.expect_channel_close(406)
    assert store.calls == 1


def test_a_client_that_disconnects_while_its_exclusive_queue_is_being_declared_leaves_nothing(
    hanging: tuple[Broker, HangingCatalog],
) -> None:
    broker, store = hanging
    first, second = broker.raw().open(), broker.raw().open()
    store.hang(CatalogError("no change today"))
    first.send(1, commands.Queue.Declare(queue="q", durable=True))
    assert store.asked.wait(PATIENCE_S)
    second.send(1, commands.Queue.Declare(queue="q", exclusive=True))
    broker.raw().open()  # so that was read
    second.socket.close()
    while len(broker.server.connections) > 2:
        threading.Event().wait(0.01)
    store.go_on()
    assert "no change today" in first.expect_channel_close(506)
    first.open_channel(2)
    first.send(2, commands.Queue.Declare(queue="q", passive=True))
    assert "no queue 'q'" in first.expect_channel_close(404)


def test_too_many_frames_behind_a_change_pause_reading_and_all_are_served_afterwards(
    hanging: tuple[Broker, HangingCatalog],
) -> None:
    broker, store = hanging
    client = broker.raw().open()
    client.declare("busy", durable=True)
    store.hang()
    client.send(1, commands.Queue.Declare(queue="new", durable=True))
    assert store.asked.wait(PATIENCE_S)
    sender = threading.Thread(target=lambda: [client.publish("busy", bytes(100_000)) for _ in range(40)])
    sender.start()
    [connection] = broker.server.connections
    while not connection.receiving.is_paused:
        sender.join(0.01)
    assert connection.receiving._held_bytes < 3 * broker.server.limits.unsent_bytes_high
    store.go_on()
    client.expect(commands.Queue.DeclareOk)
    sender.join(PATIENCE_S)
    assert client.declare("busy", durable=True).message_count == 40


def test_every_exclusive_queue_of_a_connection_is_deleted_although_the_catalog_refuses_later_changes(
    hanging: tuple[Broker, HangingCatalog],
) -> None:
    broker, store = hanging
    client = broker.raw().open()
    names = ["a", "b", "c"]
    for name in names:
        client.declare(name, exclusive=True)
        client.send(1, commands.Exchange.Declare(exchange=f"of {name}", durable=True, auto_delete=True))
        client.expect(commands.Exchange.DeclareOk)
        client.send(1, commands.Queue.Bind(queue=name, exchange=f"of {name}"))
        client.expect(commands.Queue.BindOk)
    store.failure = CatalogError("no change today")
    client.socket.close()
    with broker.raw().open() as other:
        for name in names:
            while True:  # until the broker has seen the end of the other
                other.send(1, commands.Queue.Declare(queue=name, passive=True))
                if "no queue" in other.expect(commands.Channel.Close).reply_text:
                    break
                other.send(1, commands.Channel.CloseOk())
                other.open_channel(1)
            other.send(1, commands.Channel.CloseOk())
            other.open_channel(1)
    assert broker.call(lambda: list(broker.server.hosts["/"].vhost._owned)) == []


class LateDeletion(Proxy):
    """A queue is deleted from the store, and the broker learns of it only when the test allows it."""

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        self.deleted = threading.Event()
        self.go_on = threading.Event()

    def delete_queue(self, *args: Any, **options: Any) -> None:
        self._store.delete_queue(*args, **options)
        self.deleted.set()
        assert self.go_on.wait(PATIENCE_S)


@pytest.fixture
def late(tmp_path: Path, broker_class: type[Broker]) -> Iterator[tuple[Broker, LateDeletion]]:
    store = LateDeletion(open_store(tmp_path / "store"))
    broker = broker_class(store)
    yield broker, store
    store.go_on.set()
    broker.stop()
    store.close()


def start_deletion(broker: Broker, store: LateDeletion, *queues: str) -> Any:
    """A client that has published to each of the queues, where one is being deleted."""
    client = broker.raw().open(channels=3)
    for queue in queues:
        client.declare(queue, durable=True)
        client.send(1, commands.Queue.Bind(queue=queue, exchange="amq.fanout"))
        client.expect(commands.Queue.BindOk)
    client.declare("in memory")
    client.send(1, commands.Queue.Bind(queue="in memory", exchange="amq.fanout"))
    client.expect(commands.Queue.BindOk)
    client.send(3, commands.Queue.Delete(queue=queues[0]))
    assert store.deleted.wait(PATIENCE_S)
    return client


@pytest.mark.parametrize("size", [10, 2 << 20])
@pytest.mark.parametrize("transactional", [False, True])
def test_a_message_for_several_queues_skips_one_that_is_being_deleted(
    size: int, transactional: bool, late: tuple[Broker, LateDeletion]
) -> None:
    broker, store = late
    client = start_deletion(broker, store, "gone", "kept")
    client.send(2, commands.Tx.Select() if transactional else commands.Confirm.Select())
    client.expect(commands.Tx.SelectOk if transactional else commands.Confirm.SelectOk)
    client.publish("", bytes(size), channel=2, exchange="amq.fanout")
    if transactional:
        client.send(2, commands.Tx.Commit())
    client.expect(commands.Tx.CommitOk if transactional else commands.Basic.Ack)
    assert client.declare("kept", durable=True).message_count == 1
    assert client.declare("in memory").message_count == 1
    store.go_on.set()
    client.expect(commands.Queue.DeleteOk)
    client.send(1, commands.Queue.Purge(queue="in memory"))
    client.expect(commands.Queue.PurgeOk)
    assert broker.call(lambda: message_bytes(broker.server)) == 0


@pytest.mark.parametrize("size", [10, 2 << 20])
def test_a_message_whose_only_queue_is_being_deleted_is_returned_and_confirmed(
    size: int, late: tuple[Broker, LateDeletion]
) -> None:
    broker, store = late
    client = start_deletion(broker, store, "gone")
    client.send(2, commands.Confirm.Select())
    client.expect(commands.Confirm.SelectOk)
    for number in range(1, 4):
        client.publish("gone", bytes([number]) * size, channel=2, mandatory=True)
        returned = client.expect(commands.Basic.Return)
        assert (returned.reply_code, returned.routing_key) == (312, "gone")
        assert client.content()[1] == bytes([number]) * size
        assert client.expect(commands.Basic.Ack).delivery_tag == number
    client.send(2, commands.Basic.Get(queue="gone"))
    client.expect(commands.Basic.GetEmpty)


def test_a_queue_that_cannot_be_served_does_not_affect_others(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    client = broker.raw().open()
    for name in ("bad", "good"):
        client.declare(name)
        client.send(1, commands.Basic.Consume(queue=name, no_ack=True))
        client.expect(commands.Basic.ConsumeOk)
        client.send(1, commands.Queue.Bind(queue=name, exchange="amq.fanout"))
        client.expect(commands.Queue.BindOk)
    queues = broker.server.hosts["/"].vhost.queues
    monkeypatch.setattr(queues["bad"], "serve", lambda: 1 / 0)
    client.publish("", b"for both", exchange="amq.fanout")
    assert client.delivery()[1] == b"for both"
    assert [mishap["log"] for mishap in broker.mishaps] == ["queue 'bad' cannot be served"]
    broker.mishaps.clear()


def test_a_broker_stops_while_a_change_hangs(hanging: tuple[Broker, HangingCatalog]) -> None:
    broker, store = hanging
    client = broker.raw().open()
    store.hang()
    client.send(1, commands.Queue.Declare(queue="new", durable=True))
    assert store.asked.wait(PATIENCE_S)
    broker.call_async(lambda: broker.server.stop(1))
    client.expect_connection_close(320)


def test_while_another_program_holds_the_file_of_the_catalog_declarations_wait_and_get_506_and_the_rest_goes_on(
    tmp_path: Path, broker_class: type[Broker]
) -> None:
    store = logstore.open(tmp_path / "store", segment_size=1 << 20, catalog_timeout=1)
    broker = broker_class(store)
    client, other = broker.raw().open(channels=3), broker.raw().open(channels=2)
    client.declare("old", durable=True)
    holder = sqlite3.connect(tmp_path / "store" / "catalog.sqlite", isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    client.send(1, commands.Queue.Declare(queue="a", durable=True), commands.Queue.Declare(queue="b", durable=True))
    other.send(1, commands.Queue.Declare(queue="c", durable=True))
    client.send(2, commands.Confirm.Select())
    client.expect(commands.Confirm.SelectOk)
    client.publish("old", b"meanwhile", channel=2)
    client.expect(commands.Basic.Ack)
    client.send(3, commands.Basic.Consume(queue="old", no_ack=True))
    client.expect(commands.Basic.ConsumeOk)
    assert client.delivery()[1] == b"meanwhile"
    for each in (client, other):
        assert "locked" in each.expect_channel_close(506)
    holder.execute("ROLLBACK")
    holder.close()
    other.send(2, commands.Queue.Declare(queue="c", durable=True))
    other.expect(commands.Queue.DeclareOk)
    assert {each.name for each in store.queues()} == {"old", "c"}
    broker.stop()
    store.close()
