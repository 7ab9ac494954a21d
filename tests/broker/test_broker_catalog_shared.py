"""Changes of the catalog that wait share a commit, and each client sees what it would see if it were alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pamqp import commands

from kit.patience import PATIENCE_S, wait_until
from logstore.broker import catalog_changes
from logstore.errors import CatalogError, CatalogUnavailable

if TYPE_CHECKING:
    from kit.amqp_client import RawClient
    from kit.live_broker import Broker
    from kit.store_proxies import HangingCatalog

    Hanging = tuple[Broker, HangingCatalog]


def declare(name: str, **options: Any) -> commands.Queue.Declare:
    return commands.Queue.Declare(queue=name, durable=True, **options)


def bind(queue: str, key: str, exchange: str = "amq.topic") -> commands.Queue.Bind:
    return commands.Queue.Bind(queue=queue, exchange=exchange, routing_key=key)


def hang(broker: Broker, store: HangingCatalog) -> RawClient:
    """A client whose declaration hangs, so that all later changes wait."""
    client = broker.raw().open()
    store.hang()
    client.send(1, declare("first"))
    assert store.asked.wait(PATIENCE_S)
    return client


def are_read(client: RawClient) -> None:
    """Everything that the client has sent has reached the broker."""
    client.send(2, commands.Basic.Qos(prefetch_count=1))
    client.expect(commands.Basic.QosOk)


def waiting(broker: Broker) -> int:
    return broker.call(lambda: len(broker.server.hosts["/"].vhost.changes._line))


def queue_names(broker: Broker) -> set[str]:
    return {each.name for each in broker.server.hosts["/"].store.queues()}


def test_declarations_of_one_packet_share_a_commit_and_are_answered_in_order(hanging: Hanging) -> None:
    broker, store = hanging
    client = broker.raw().open(channels=2)
    store.hang()
    names = [f"q{number}" for number in range(100)]
    client.send(1, *(declare(name) for name in names))
    are_read(client)
    store.go_on()
    assert [client.expect(commands.Queue.DeclareOk).queue for _ in names] == names
    assert len(store.made) <= 3
    assert queue_names(broker) == set(names)
    assert broker.server.connections.copy().pop().receiving._held_bytes == 0


def test_declarations_of_several_connections_share_a_commit(hanging: Hanging) -> None:
    broker, store = hanging
    first = hang(broker, store)
    others = [broker.raw().open() for _ in range(10)]
    for number, client in enumerate(others):
        client.send(1, declare(f"q{number}"))
    wait_until(lambda: waiting(broker) == 10, "all wait")
    store.go_on()
    for client in (first, *others):
        client.expect(commands.Queue.DeclareOk)
    assert store.made == ["declare_queue", "declare_queues"]


def test_bindings_and_their_removals_and_deletions_of_queues_share_commits_too(hanging: Hanging) -> None:
    broker, store = hanging
    clients = [broker.raw().open(channels=2) for _ in range(3)]
    for number, client in enumerate(clients):
        client.declare(f"q{number}", durable=True)
    requests: list[tuple[Any, Any, str]] = [
        (lambda name: bind(name, "a.b"), commands.Queue.BindOk, "bind_many"),
        (
            lambda name: commands.Queue.Unbind(queue=name, exchange="amq.topic", routing_key="a.b"),
            commands.Queue.UnbindOk,
            "unbind_many",
        ),
        (lambda name: commands.Queue.Delete(queue=name), commands.Queue.DeleteOk, "delete_queues"),
    ]
    for request, answer, call in requests:
        first = hang(broker, store)
        for number, client in enumerate(clients):
            client.send(1, request(f"q{number}"))
        wait_until(lambda: waiting(broker) == 3, "all wait")
        store.go_on()
        first.expect(commands.Queue.DeclareOk)
        for client in clients:
            client.expect(answer)
        assert store.made == ["declare_queue", call]
        first.send(1, commands.Queue.Delete(queue="first"))
        first.expect(commands.Queue.DeleteOk)
    assert queue_names(broker) == set()


def test_bindings_of_one_packet_share_a_commit_and_messages_take_them(hanging: Hanging) -> None:
    broker, store = hanging
    client = broker.raw().open(channels=2)
    client.declare("q", durable=True)
    store.hang()
    client.send(1, *(bind("q", f"key.{number}") for number in range(50)))
    are_read(client)
    store.go_on()
    for _ in range(50):
        client.expect(commands.Queue.BindOk)
    assert len(store.made) <= 3
    for number in range(50):
        client.publish(f"key.{number}", b"x", exchange="amq.topic")
    assert client.declare("q", durable=True).message_count == 50


def test_removals_of_bindings_of_one_packet_share_a_commit(hanging: Hanging) -> None:
    broker, store = hanging
    client = broker.raw().open(channels=2)
    client.declare("q", durable=True)
    keys = [f"key.{number}" for number in range(50)]
    client.send(1, *(bind("q", key) for key in (*keys, "stays")))
    for _ in range(51):
        client.expect(commands.Queue.BindOk)
    store.hang()
    wanted = (*keys[:25], "missing", *keys[25:])
    client.send(1, *(commands.Queue.Unbind(queue="q", exchange="amq.topic", routing_key=key) for key in wanted))
    are_read(client)
    store.go_on()
    for _ in wanted:
        client.expect(commands.Queue.UnbindOk)
    assert len(store.made) <= 4
    assert [each.key for each in store.bindings()] == ["stays"]


def test_exchanges_of_one_packet_are_declared_and_deleted_in_shared_commits(hanging: Hanging) -> None:
    broker, store = hanging
    client = broker.raw().open(channels=2)
    names = [f"x{number}" for number in range(100)]
    store.hang()
    client.send(1, *(commands.Exchange.Declare(exchange=name, exchange_type="fanout", durable=True) for name in names))
    are_read(client)
    store.go_on()
    for _ in names:
        client.expect(commands.Exchange.DeclareOk)
    assert len(store.made) <= 3
    assert set(names) <= {each.name for each in store.exchanges()}
    store.hang()
    client.send(1, *(commands.Exchange.Delete(exchange=name) for name in names))
    are_read(client)
    store.go_on()
    for _ in names:
        client.expect(commands.Exchange.DeleteOk)
    assert len(store.made) <= 3
    assert {each.name for each in store.exchanges()} == {"amq.direct", "amq.fanout", "amq.topic"}


def test_exchanges_of_several_connections_share_commits(hanging: Hanging) -> None:
    broker, store = hanging
    clients = [broker.raw().open(channels=2) for _ in range(3)]
    for request, answer, call in (
        (
            lambda name: commands.Exchange.Declare(exchange=name, exchange_type="topic", durable=True),
            commands.Exchange.DeclareOk,
            "declare_exchanges",
        ),
        (lambda name: commands.Exchange.Delete(exchange=name), commands.Exchange.DeleteOk, "delete_exchanges"),
    ):
        first = hang(broker, store)
        for number, client in enumerate(clients):
            client.send(1, request(f"x{number}"))
        wait_until(lambda: waiting(broker) == 3, "all wait")
        store.go_on()
        first.expect(commands.Queue.DeclareOk)
        for client in clients:
            client.expect(answer)
        assert store.made == ["declare_queue", call]
        first.send(1, commands.Queue.Delete(queue="first"))
        first.expect(commands.Queue.DeleteOk)


def test_after_an_exchange_that_is_refused_those_before_it_are_made_and_those_behind_it_are_not(
    hanging: Hanging,
) -> None:
    broker, store = hanging
    client = broker.raw().open(channels=2)
    store.hang()
    for name, kind, durable in (
        ("a", "topic", True),
        ("b", "topic", True),
        ("brief", "topic", False),
        ("b", "topic", True),
        ("b", "fanout", True),
        ("never", "topic", True),
    ):
        client.send(1, commands.Exchange.Declare(exchange=name, exchange_type=kind, durable=durable))
    are_read(client)
    store.go_on()
    for _ in range(4):
        client.expect(commands.Exchange.DeclareOk)
    assert "inequivalent arg 'type' for exchange 'b'" in client.expect_channel_close(406)
    assert {"a", "b", "brief"} < set(broker.call(lambda: list(broker.server.hosts["/"].vhost.exchanges)))
    assert {each.name for each in store.exchanges()} == {"amq.direct", "amq.fanout", "amq.topic", "a", "b"}


def test_changes_of_another_kind_keep_their_place(hanging: Hanging) -> None:
    broker, store = hanging
    client = broker.raw().open(channels=2)
    client.declare("old", durable=True)
    store.hang()
    client.send(
        1,
        declare("a"),
        declare("b"),
        bind("b", "k", "amq.direct"),
        bind("a", "k", "amq.direct"),
        commands.Queue.Delete(queue="old"),
        declare("old"),
        declare("c"),
    )
    are_read(client)
    store.go_on()
    for kind, count in (("Declare", 2), ("Bind", 2), ("Delete", 1), ("Declare", 2)):
        for _ in range(count):
            client.expect(getattr(commands.Queue, f"{kind}Ok"))
    kinds = [name.split("_")[0] for name in store.made]
    assert [kind for at, kind in enumerate(kinds) if kinds[at - 1 : at] != [kind]] == [
        "declare",
        "bind",
        "delete",
        "declare",
    ]


def test_frames_between_declarations_keep_their_place(hanging: Hanging) -> None:
    broker, store = hanging
    client = broker.raw().open(channels=2)
    store.hang()
    client.send(1, declare("a"), declare("b"), declare("a", passive=True))
    client.publish("b", b"early")
    client.publish("c", b"too early")
    client.send(1, declare("c", nowait=True), declare("d", nowait=True), declare("", auto_delete=True))
    client.send(1, declare("mine", exclusive=True), declare("b"))
    are_read(client)
    store.go_on()
    names = [client.expect(commands.Queue.DeclareOk).queue for _ in range(3)]
    assert names == ["a", "b", "a"]
    assert client.expect(commands.Queue.DeclareOk).queue.startswith("amq.gen-")
    assert client.expect(commands.Queue.DeclareOk).queue == "mine"
    assert client.expect(commands.Queue.DeclareOk).message_count == 1
    assert client.declare("c", durable=True).message_count == 0


def test_the_empty_name_means_the_last_queue_of_a_shared_commit(hanging: Hanging) -> None:
    broker, store = hanging
    client = broker.raw().open(channels=2)
    store.hang()
    client.send(1, declare("a"), declare("b"), bind("", ""), declare("", passive=True))
    are_read(client)
    store.go_on()
    for _ in range(2):
        client.expect(commands.Queue.DeclareOk)
    client.expect(commands.Queue.BindOk)
    assert client.expect(commands.Queue.DeclareOk).queue == "b"
    client.publish("b", b"x", exchange="amq.topic")
    assert client.declare("b", durable=True).message_count == 1


def test_of_equal_declarations_of_one_packet_one_is_stored_and_a_different_one_is_refused(hanging: Hanging) -> None:
    broker, store = hanging
    client = broker.raw().open(channels=2)
    store.hang()
    client.send(1, declare("a"), declare("q"), declare("q"), declare("q", auto_delete=True), declare("never"))
    are_read(client)
    store.go_on()
    for name in ("a", "q", "q"):
        assert client.expect(commands.Queue.DeclareOk).queue == name
    assert "inequivalent arg 'auto_delete'" in client.expect_channel_close(406)
    are_read(client)
    assert queue_names(broker) == {"a", "q"}


@pytest.mark.parametrize(
    ("wrong", "code", "text"),
    [
        (declare("taken"), 506, "queue 'taken' exists with arguments"),
        (declare("amq.mine"), 403, "reserved prefix"),
        (declare("q", arguments={"x-max-length": 5}), 406, "invalid arg 'x-max-length'"),
    ],
    ids=["conflict", "reserved", "argument"],
)
def test_after_a_declaration_that_is_refused_those_before_it_are_made_and_those_behind_it_are_not(
    hanging: Hanging, wrong: Any, code: int, text: str
) -> None:
    broker, store = hanging
    first = hang(broker, store)
    client, other = broker.raw().open(channels=2), broker.raw().open(channels=2)
    client.send(1, declare("a"), declare("b"), wrong, declare("never"))
    are_read(client)
    other.send(1, declare("c"), declare("d"))
    are_read(other)
    store._store.declare_queue("taken", arguments={"of": "a program"})
    store.go_on()
    first.expect(commands.Queue.DeclareOk)
    for name in ("a", "b"):
        assert client.expect(commands.Queue.DeclareOk).queue == name
    assert text in client.expect_channel_close(code)
    for name in ("c", "d"):
        assert other.expect(commands.Queue.DeclareOk).queue == name
    are_read(client)
    assert queue_names(broker) == {"first", "taken", "a", "b", "c", "d"}


def test_after_a_binding_that_is_refused_those_before_it_are_made_and_those_behind_it_are_not(
    hanging: Hanging,
) -> None:
    broker, store = hanging
    client = broker.raw().open(channels=2)
    client.declare("q", durable=True)
    store.hang()
    client.send(1, bind("q", "a"), bind("q", "b"), bind("missing", "c"), bind("q", "never"))
    are_read(client)
    store.go_on()
    for _ in range(2):
        client.expect(commands.Queue.BindOk)
    assert "no queue 'missing'" in client.expect_channel_close(404)
    are_read(client)
    keys = {each.key for each in store.bindings()}
    assert keys == {"a", "b"}


def test_a_malformed_declaration_behind_others_ends_the_connection_after_they_are_answered(hanging: Hanging) -> None:
    broker, store = hanging
    client = broker.raw().open(channels=2)
    store.hang()
    client.send(1, declare("a"), declare("b"))
    client.send_bytes(b"\x01\x00\x01\x00\x00\x00\x05\x00\x32\x00\x0a\x00\xce")
    are_read(client)
    store.go_on()
    for _ in range(2):
        client.expect(commands.Queue.DeclareOk)
    client.expect_connection_close(502)


def test_if_the_catalog_is_unavailable_all_who_share_a_commit_learn_it_from_one_attempt(hanging: Hanging) -> None:
    broker, store = hanging
    first = hang(broker, store)
    others = [broker.raw().open() for _ in range(5)]
    for number, client in enumerate(others):
        client.send(1, declare(f"q{number}"), declare(f"r{number}"))
    wait_until(lambda: waiting(broker) == 5, "all wait")
    real = store._store.declare_queues
    store._store.declare_queues = unavailable = Unavailable()
    store.go_on()
    first.expect(commands.Queue.DeclareOk)
    for client in others:
        assert "the catalog is away" in client.expect_channel_close(506)
    assert unavailable.calls == 1
    assert queue_names(broker) == {"first"}
    store._store.declare_queues = real


class Unavailable:
    calls = 0

    def __call__(self, *_: Any) -> Any:
        self.calls += 1
        raise CatalogUnavailable("the catalog is away")


def test_a_client_that_is_gone_before_its_turn_leaves_the_others_their_answers(hanging: Hanging) -> None:
    broker, store = hanging
    first = hang(broker, store)
    gone, stays = broker.raw().open(channels=2), broker.raw().open()
    gone.send(1, declare("of the gone"), declare("behind it"))
    are_read(gone)
    stays.send(1, declare("stays"))
    wait_until(lambda: waiting(broker) == 2, "both wait")
    gone.socket.close()
    broker.wait_for_connections(2)
    store.go_on()
    for client in (first, stays):
        client.expect(commands.Queue.DeclareOk)
    assert "behind it" not in queue_names(broker)


def test_more_declarations_than_share_a_commit_are_all_made(hanging: Hanging, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog_changes, "SHARED_MAX", 4)
    broker, store = hanging
    first = hang(broker, store)
    client, other = broker.raw().open(channels=2), broker.raw().open()
    client.send(1, *(declare(f"q{number}") for number in range(10)))
    are_read(client)
    other.send(1, declare("other"))
    wait_until(lambda: waiting(broker) == 2, "both wait")
    store.go_on()
    first.expect(commands.Queue.DeclareOk)
    assert [client.expect(commands.Queue.DeclareOk).queue for _ in range(10)] == [f"q{number}" for number in range(10)]
    other.expect(commands.Queue.DeclareOk)
    assert len(queue_names(broker)) == 12


def test_what_a_vanished_client_owned_is_deleted_when_the_catalog_allows_it(
    hanging: Hanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog_changes, "LATER_S", 0.01)
    broker, store = hanging
    client = broker.raw().open()
    client.declare("watched", durable=True, auto_delete=True)
    client.send(1, commands.Basic.Consume(queue="watched"))
    client.expect(commands.Basic.ConsumeOk)
    client.send(1, commands.Exchange.Declare(exchange="of it", durable=True, auto_delete=True))
    client.expect(commands.Exchange.DeclareOk)
    client.declare("mine", exclusive=True)
    client.send(1, bind("mine", "k", "of it"))
    client.expect(commands.Queue.BindOk)
    store.hang(CatalogError("no change today"))
    store.go_on()
    client.socket.close()
    wait_until(lambda: store.made.count("delete_queue") > 2 and store.made.count("delete_exchange") > 2, "attempts")
    assert queue_names(broker) == {"watched"}
    store.failure = None
    wait_until(lambda: queue_names(broker) == set(), "the end of the queue")
    vhost = broker.server.hosts["/"].vhost
    wait_until(lambda: broker.call(lambda: "of it" not in vhost.exchanges), "the end of the exchange")
    assert "watched" not in broker.call(lambda: dict(vhost.queues))


def test_an_auto_delete_queue_that_has_a_consumer_again_when_the_catalog_is_back_stays(
    hanging: Hanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog_changes, "LATER_S", 0.01)
    broker, store = hanging
    client, other = broker.raw().open(), broker.raw().open()
    client.declare("watched", durable=True, auto_delete=True)
    client.send(1, commands.Basic.Consume(queue="watched"))
    client.expect(commands.Basic.ConsumeOk)
    store.hang(CatalogError("no change today"))
    store.go_on()
    client.socket.close()
    wait_until(lambda: store.made.count("delete_queue") > 2, "attempts")
    other.send(1, commands.Basic.Consume(queue="watched", consumer_tag="again"))
    other.expect(commands.Basic.ConsumeOk)
    store.failure = None
    wait_until(lambda: not broker.call(lambda: broker.server.hosts["/"].vhost.changes._later), "the last attempt")
    other.publish("watched", b"x")
    assert other.delivery()[1] == b"x"
