"""Virtual hosts of one running broker: each has its own store, objects, clients and failures."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Any

import pika
import pytest
from pamqp import commands

import logstore
from kit.broker_waits import nothing_comes
from kit.live_broker import Broker, open_store
from kit.patience import PATIENCE_S, wait_until
from kit.store_proxies import BrokenStore, FullStore, HeldDisk
from logstore.broker import BrokerError, Limits, descriptors
from logstore.broker.errors import CONNECTION_FORCED, ConnectionException
from logstore.store import control

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


class Unforceable(BrokenStore):
    """Its force fails once it is broken, as that of a poisoned store does."""

    def force(self) -> None:
        if self.broken:
            raise self._failure()
        self._store.force()


class LateForce(HeldDisk):
    """A force takes a moment, and then everything is reported as durable."""

    def force(self) -> None:
        time.sleep(0.3)
        self.let_go()


class Hosts:
    """A broker with the hosts `/` and others, whose stores it closes at the end."""

    def __init__(self, directory: Path, broker_class: type[Broker]) -> None:
        self._directory = directory
        self._broker_class = broker_class
        self.stores: dict[str, Any] = {"/": open_store(directory / "root")}
        self.broker: Any = None

    def start(self, proxy: Callable[[Any], Any] = lambda store: store, **limits: Any) -> Hosts:
        """Start the broker; `proxy` wraps the store of `/`."""
        self.stores["/"] = proxy(self.stores["/"])
        self.broker = self._broker_class(self.stores["/"], Limits(**limits))
        return self

    def open(self, name: str, proxy: Callable[[Any], Any] = lambda store: store) -> Any:
        store = self.stores[name] = proxy(open_store(self._directory / f"store{len(self.stores)}"))
        self.broker.call_async(lambda: self.broker.server.open_host(name, store))
        self.broker.call(lambda: self.broker.server.users.change("guest", hosts=list(self.stores)))
        return store

    def close(self, name: str, error: ConnectionException) -> None:
        self.broker.call_async(lambda: self.broker.server.close_host(name, error))
        self.stores.pop(name).close()

    def channel(self, name: str) -> Any:
        return self.broker.pika(virtual_host=name).channel()

    def client(self, name: str) -> Any:
        """A client of the wire, with confirms on channel 1."""
        client = self.broker.raw().open(virtual_host=name)
        client.send(1, commands.Confirm.Select())
        client.expect(commands.Confirm.SelectOk)
        client.declare("q", durable=True)
        return client

    def stop(self) -> None:
        if self.broker is not None:
            self.broker.stop()
        for store in self.stores.values():
            store.close()


@pytest.fixture
def hosts(tmp_path: Path, broker_class: type[Broker]) -> Iterator[Hosts]:
    made = Hosts(tmp_path, broker_class)
    yield made
    made.stop()


def refusal(hosts: Hosts, name: str) -> tuple[int, str]:
    """The code and the text with which the broker refuses to open a host."""
    client = hosts.broker.raw()
    client.start()
    client.expect(commands.Connection.Tune)
    client.send(0, commands.Connection.TuneOk(0, 131072, 0), commands.Connection.Open(name))
    close = client.expect(commands.Connection.Close)
    return close.reply_code, close.reply_text


@pytest.mark.parametrize("durable", [True, False])
def test_queues_and_exchanges_of_one_name_on_two_hosts_do_not_meet(hosts: Hosts, durable: bool) -> None:
    hosts.start().open("shop")
    channels = {name: hosts.channel(name) for name in ("/", "shop")}
    for name, channel in channels.items():
        channel.exchange_declare("news", "fanout", durable=durable)
        channel.queue_declare("orders", durable=durable)
        channel.queue_bind("orders", "news")
        channel.confirm_delivery()
        channel.basic_publish("", "orders", f"to the queue in {name}".encode())
        channel.basic_publish("news", "", f"to the exchange in {name}".encode())
    for name, channel in channels.items():
        got = [channel.basic_get("orders", auto_ack=True)[2] for _ in range(3)]
        assert got == [f"to the queue in {name}".encode(), f"to the exchange in {name}".encode(), None]


def test_a_host_has_the_predeclared_exchanges_and_nothing_else(hosts: Hosts) -> None:
    hosts.start()
    hosts.channel("/").queue_declare("orders", durable=True)
    hosts.open("shop")
    channel = hosts.channel("shop")
    for exchange in ("amq.direct", "amq.fanout", "amq.topic"):
        channel.exchange_declare(exchange, passive=True)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker):
        channel.queue_declare("orders", passive=True)


def test_a_transaction_on_one_host_is_in_the_log_of_that_host_only(hosts: Hosts) -> None:
    shop = hosts.start().open("shop")
    for name in ("/", "shop"):
        hosts.channel(name).queue_declare("orders", durable=True)
    before = hosts.stores["/"].next_lsn, shop.next_lsn
    channel = hosts.channel("shop")
    channel.tx_select()
    channel.basic_publish("", "orders", b"one")
    channel.basic_publish("", "orders", b"two")
    channel.tx_commit()
    assert (shop.queue("orders").depth, hosts.stores["/"].queue("orders").depth) == (2, 0)
    assert shop.next_lsn > before[1]
    assert hosts.stores["/"].next_lsn == before[0]


@pytest.mark.parametrize("name", ["shop", "a/b", "Größe \u202e", "x" * 255])
def test_texts_of_refusals_name_the_host(hosts: Hosts, name: str) -> None:
    hosts.start().open(name)
    channel = hosts.channel(name)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        channel.queue_declare("missing", passive=True)
    whole = f"NOT_FOUND - no queue 'missing' in vhost '{name}'"
    assert caught.value.reply_text == whole.encode()[:255].decode(errors="ignore")


@pytest.mark.parametrize(
    ("method", "code", "text"),
    [
        (commands.Queue.Declare(queue="q", durable=False), 406, "inequivalent arg 'durable' for queue 'q' in vhost "),
        (commands.Queue.Declare(queue="n", arguments={"x": 1}), 406, "invalid arg 'x' for queue 'n' in vhost "),
        (
            commands.Exchange.Declare(exchange="e", arguments={"x": 1}),
            406,
            "invalid arg 'x' for exchange 'e' in vhost ",
        ),
        (
            commands.Basic.Consume(queue="q", arguments={"x": 1}),
            406,
            "invalid arg 'x' for consumer of queue 'q' in vhost ",
        ),
        (commands.Queue.Delete(queue="q", if_empty=True), 406, "queue 'q' in vhost "),
        (commands.Queue.Bind(queue="q", exchange="e", routing_key="k"), 404, "no exchange 'e' in vhost "),
    ],
)
def test_every_text_that_has_a_host_has_the_host_of_the_connection(
    hosts: Hosts, method: Any, code: int, text: str
) -> None:
    hosts.start().open("shop")
    client = hosts.client("shop")
    client.publish("q", b"x")
    client.expect(commands.Basic.Ack)
    client.send(1, method)
    told = client.expect_channel_close(code)
    assert f"{text}'shop'" in told


def test_a_host_that_is_not_there_is_530_before_and_after_it_was_open(hosts: Hosts) -> None:
    hosts.start()
    missing = 530, "NOT_ALLOWED - vhost shop not found"
    assert refusal(hosts, "shop") == missing
    hosts.open("shop")
    hosts.channel("shop").queue_declare("q")
    hosts.close("shop", ConnectionException(CONNECTION_FORCED, "vhost 'shop' is closed"))
    assert refusal(hosts, "shop") == missing


def test_a_host_cannot_be_opened_twice(hosts: Hosts) -> None:
    store = hosts.start().open("shop")
    with pytest.raises(BrokerError, match="vhost 'shop' is open already"):
        hosts.broker.call_async(lambda: hosts.broker.server.open_host("shop", store))


def test_closing_a_host_ends_its_connections_with_the_given_error_and_no_others(hosts: Hosts) -> None:
    hosts.start().open("shop", HeldDisk)
    shop, root = hosts.client("shop"), hosts.client("/")
    hosts.stores["shop"].hold()
    shop.publish("q", b"unknown")
    wait_until(lambda: hosts.stores["shop"].queue("q").depth == 1, "the publish has arrived")
    hosts.broker.call_async(
        lambda: hosts.broker.server.close_host("shop", ConnectionException(CONNECTION_FORCED, "the host moves"), 0.5)
    )
    assert shop.expect_connection_close(320) == "CONNECTION_FORCED - the host moves"  # neither ack nor nack before it
    root.publish("q", b"x")
    root.expect(commands.Basic.Ack)


def test_a_host_that_was_closed_can_be_opened_again_with_what_it_had(hosts: Hosts, tmp_path: Path) -> None:
    path = hosts.start().open("shop").path
    channel = hosts.channel("shop")
    channel.queue_declare("orders", durable=True)
    channel.confirm_delivery()
    for body in (b"one", b"two"):
        channel.basic_publish("", "orders", body)
    assert channel.basic_get("orders")[2] == b"one"  # not acknowledged
    hosts.close("shop", ConnectionException(CONNECTION_FORCED, "closed"))
    store = hosts.stores["shop"] = logstore.open(path)
    hosts.broker.call_async(lambda: hosts.broker.server.open_host("shop", store))
    again = hosts.channel("shop")
    assert [again.basic_get("orders", auto_ack=True)[2] for _ in range(2)] == [b"one", b"two"]


def test_a_full_host_refuses_its_publishes_and_another_takes_them(hosts: Hosts) -> None:
    hosts.start(blocked_timeout_s=0.05).open("shop", FullStore)
    shop, root = hosts.client("shop"), hosts.client("/")
    hosts.stores["shop"].full = True
    for client, answer in ((shop, commands.Basic.Nack), (root, commands.Basic.Ack)):
        client.publish("q", b"x")
        client.expect(answer)


@pytest.mark.direct_only("a host of a cluster has another leader when a store of it has failed")
def test_a_poisoned_host_ends_its_own_connections_and_the_broker_goes_on(hosts: Hosts) -> None:
    store = hosts.start().open("shop", BrokenStore)
    shop, bystander, root = hosts.client("shop"), hosts.client("shop"), hosts.client("/")
    store.hold()
    shop.publish("q", b"unknown")
    wait_until(lambda: store.queue("q").depth == 1, "the publish has arrived")
    store.break_down()
    assert "the store can no longer write" in shop.expect_connection_close(541)  # neither ack nor nack before it
    bystander.expect_connection_close(541)
    root.publish("q", b"x")
    root.expect(commands.Basic.Ack)
    assert not hosts.broker.server._failed.done()
    assert refusal(hosts, "shop") == (
        541,
        "INTERNAL_ERROR - access to vhost 'shop' refused for user 'guest': vhost 'shop' is down",
    )
    nothing_comes(root)


def test_a_publish_that_finds_its_host_poisoned_ends_that_host_only(hosts: Hosts) -> None:
    store = hosts.start().open("shop", BrokenStore)
    shop, root = hosts.client("shop"), hosts.client("/")
    store.broken = True
    shop.publish("q", b"x")
    shop.expect(commands.Basic.Nack)
    shop.expect_connection_close(541)
    root.publish("q", b"x")
    root.expect(commands.Basic.Ack)


@pytest.mark.direct_only("a client that has opened no host belongs to the relaying broker, which has no store")
def test_the_broker_fails_when_the_store_of_the_root_is_poisoned_and_other_hosts_lose_nothing(hosts: Hosts) -> None:
    hosts.start(Unforceable).open("shop", LateForce)
    root, shop, early = hosts.client("/"), hosts.client("shop"), hosts.broker.raw()
    early.start()
    early.expect(commands.Connection.Tune)
    hosts.stores["/"].break_down()
    root.expect_connection_close(541)
    early.expect_connection_close(541)
    hosts.broker.call_async(hosts.broker.server.failure)
    shop.publish("q", b"x")
    shop.expect(commands.Basic.Ack)
    hosts.stores["shop"].hold()
    shop.publish("q", b"y")
    nothing_comes(shop)
    hosts.broker.call_async(lambda: hosts.broker.server.stop(3))
    shop.expect(commands.Basic.Ack)
    shop.expect_connection_close(320)


def test_commands_reach_each_host_through_the_directory_of_its_store(hosts: Hosts) -> None:
    store = hosts.start().open("shop")
    channel = hosts.channel("shop")
    channel.queue_declare("orders", durable=True)
    channel.confirm_delivery()
    channel.basic_publish("", "orders", b"one")
    root, shop = hosts.stores["/"].path, store.path
    stats = {name: control.call(path, "stats", {}) for name, path in (("/", root), ("shop", shop))}
    assert {name: each["broker"]["vhost"] for name, each in stats.items()} == {"/": "/", "shop": "shop"}
    assert {name: each["broker"]["connections"] for name, each in stats.items()} == {"/": 0, "shop": 1}
    assert [len(each["queue_rows"]) for each in stats.values()] == [0, 1]
    assert control.call(shop, "purge", {"queue": "orders"})["messages"] == 1
    hosts.channel("/")
    told = {path: control.call(path, "connections", {})["connections"] for path in (root, shop)}
    assert sorted(each["vhost"] for each in told[root]) == ["/", "shop"]
    assert [each["vhost"] for each in told[shop]] == ["shop"]


@pytest.mark.direct_only("a client that has opened no host belongs to the relaying broker")
def test_a_connection_that_has_not_opened_a_host_is_listed_without_one(hosts: Hosts) -> None:
    client = hosts.start().broker.raw()
    client.start()
    client.expect(commands.Connection.Tune)
    (listed,) = control.call(hosts.stores["/"].path, "connections", {})["connections"]
    assert (listed["user"], listed["vhost"]) == ("guest", None)
    client.send(0, commands.Connection.Close(0, "", 0, 0))
    client.expect(commands.Connection.CloseOk)


def test_each_open_store_has_its_own_reserve_of_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descriptors, "limit", lambda: 10_000 + len(os.listdir("/proc/self/fd")))
    assert descriptors.sockets_max(20_000, stores=1) - descriptors.sockets_max(20_000, stores=3) == 640
    assert descriptors.sockets_max(20_000, stores=1, sockets=7) - descriptors.sockets_max(20_000, stores=1) == 7
    assert descriptors.sockets_max(20_000, stores=1_000) == 5_000  # half of them stay for clients


class Waits:
    """A cluster whose next leader is not known yet: the host stays open until then."""

    def __init__(self) -> None:
        self.ended = threading.Event()

    def has_ended(self, _name: str) -> None:
        self.ended.set()


@pytest.mark.direct_only("the relaying broker has an `elsewhere` of its own")
def test_an_ended_host_that_waits_for_its_next_leader_takes_and_answers_nothing_more(hosts: Hosts) -> None:
    store = hosts.start().open("shop", BrokenStore)
    shop, consumer, server = hosts.client("shop"), hosts.client("shop"), hosts.broker.server
    waits = server.elsewhere = Waits()
    store.publish("q", b"taken")
    consumer.send(1, commands.Basic.Consume(queue="q"))
    consumer.expect(commands.Basic.ConsumeOk)
    consumer.delivery()
    store.broken = True
    # The publish finds the store ended. What the client asks then, and others ask, must not look as if all were well.
    shop.publish("q", b"x")
    shop.send(1, commands.Queue.Declare(queue="q", passive=True))
    assert waits.ended.wait(PATIENCE_S)
    shop.expect(commands.Basic.Nack)  # of the publish, of which nothing was written
    consumer.send(1, commands.Basic.Nack(delivery_tag=1, requeue=True))
    consumer.send(1, commands.Queue.Declare(queue="q", passive=True))
    hosts.broker.call(lambda: setattr(server, "elsewhere", None))
    hosts.close("shop", ConnectionException(CONNECTION_FORCED, "vhost 'shop' is led by member b now"))
    assert "led by member b" in shop.expect_connection_close(320)
    assert "led by member b" in consumer.expect_connection_close(320)
