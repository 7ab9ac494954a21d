"""Fixtures: a separate broker for each test.

With LOGSTORE_TEST_RELAYED=1 each client comes through another broker, which relays it, as in a cluster; tests that are
marked ``direct_only`` are skipped.

With LOGSTORE_TEST_TRIO=1 the broker is a trio of real members, the same one for all tests, and clients go to its leader
and its followers in turns. Tests that need more than AMQP, such as the server or a store of their own, are skipped; the
last lines say how many.

Tests that are marked ``every_way`` run all three ways always.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from kit.live_broker import LEFT_OUT, Broker, Clients, open_store
from kit.store_proxies import HangingCatalog, HeldDisk
from logstore.broker import Limits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from kit.trio_broker import SharedTrio, TrioBroker

WAYS = ("direct", "relayed", "trio")
ONLY = next((way for way in WAYS if os.environ.get(f"LOGSTORE_TEST_{way.upper()}")), None)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    is_marked = metafunc.definition.get_closest_marker("every_way") is not None
    if is_marked and ONLY is None and "way" in metafunc.fixturenames:
        metafunc.parametrize("way", WAYS, indirect=True)


def pytest_runtest_setup(item: pytest.Item) -> None:
    direct_only = item.get_closest_marker("direct_only")
    if ONLY is not None and direct_only is not None:
        pytest.skip(direct_only.args[0])
    if ONLY == "trio" and not {"start_broker", "restart_broker", "served"} & set(getattr(item, "fixturenames", ())):
        pytest.skip(f"{LEFT_OUT}it has no client of a broker, or a broker of its own")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if ONLY == "trio":
        reasons = [str(report.longrepr) for report in terminalreporter.stats.get("skipped", ())]
        count = sum(LEFT_OUT in reason for reason in reasons)
        terminalreporter.write_line(f"{count} tests were {LEFT_OUT}they need more than AMQP")


@pytest.fixture(scope="module")
def way(request: pytest.FixtureRequest) -> str:
    """How clients reach the broker."""
    found = str(getattr(request, "param", ONLY or "direct"))
    if found != "direct":
        pytest.importorskip("msgspec", reason="the extra cluster is not installed")
        pytest.importorskip("logstore._consensus", reason="the cluster is not built")
    return found


@pytest.fixture(scope="module")
def broker_class(way: str) -> type[Broker]:
    """The broker of a store that a test has opened."""
    if way == "trio":
        pytest.skip(f"{LEFT_OUT}it has a store of its own")
    if way == "direct":
        return Broker
    from kit.relayed_broker import RelayedBroker

    return RelayedBroker


@pytest.fixture(scope="session")
def shared_trio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedTrio]:
    from kit.trio_broker import SharedTrio

    made = SharedTrio(tmp_path_factory.mktemp("trio"))
    yield made
    made.close()


def lent(trio: SharedTrio) -> Iterator[Callable[..., Clients]]:
    """The trio is the broker of a test once, with the given limits."""
    brokers: list[TrioBroker] = []

    def lend(**limits: Any) -> Clients:
        if brokers:
            pytest.skip(f"{LEFT_OUT}it has two brokers")
        brokers.append(trio.lend(**limits))
        return brokers[0]

    yield lend
    for broker in brokers:
        trio.take_back(broker)


def lent_again(trio: SharedTrio) -> Iterator[Callable[[], Clients]]:
    """The trio is the broker of a test; each further call stops all members, and starts them."""
    brokers: list[TrioBroker] = []

    def restart() -> Clients:
        for old in brokers:
            old.close_clients()
        brokers.append(trio.restart() if brokers else trio.lend())
        return brokers[-1]

    yield restart
    for broker in brokers[-1:]:
        trio.take_back(broker)


@pytest.fixture
def start_broker(request: pytest.FixtureRequest, tmp_path: Path, way: str) -> Iterator[Callable[..., Clients]]:
    """Start a broker with the given limits; its store is closed after the test."""
    if way == "trio":
        yield from lent(request.getfixturevalue("shared_trio"))
        return
    broker_class = request.getfixturevalue("broker_class")
    brokers: list[Broker] = []

    def start(**limits: Any) -> Broker:
        broker = broker_class(open_store(tmp_path / f"store{len(brokers)}"), Limits(**limits))
        brokers.append(broker)
        return broker

    yield start
    for broker in brokers:
        broker.stop()
        broker.store.close()


@pytest.fixture
def broker(start_broker: Callable[..., Clients]) -> Clients:
    return start_broker()


@pytest.fixture
def channel(broker: Clients) -> Any:
    return broker.pika().channel()


@pytest.fixture
def restart_broker(request: pytest.FixtureRequest, tmp_path: Path, way: str) -> Iterator[Callable[[], Clients]]:
    """Start a broker on one store; each further call ends it, opens the store again and starts another one."""
    if way == "trio":
        yield from lent_again(request.getfixturevalue("shared_trio"))
        return
    broker_class = request.getfixturevalue("broker_class")
    brokers: list[Broker] = []

    def stop() -> None:
        if brokers:
            old = brokers.pop()
            old.stop()
            old.store.close()

    def restart() -> Broker:
        stop()
        brokers.append(broker_class(open_store(tmp_path / "store")))
        return brokers[-1]

    yield restart
    stop()


@pytest.fixture
def on_store(tmp_path: Path, broker_class: type[Broker]) -> Iterator[Callable[..., tuple[Broker, Any]]]:
    """A broker on a store that is wrapped in one that misbehaves."""
    brokers: list[Broker] = []

    def start(proxy: Callable[[Any], Any], **limits: Any) -> tuple[Broker, Any]:
        store = proxy(open_store(tmp_path / "store"))
        brokers.append(broker_class(store, Limits(**limits)))
        return brokers[-1], store

    yield start
    for broker in brokers:
        broker.stop()
        broker.store.close()


@pytest.fixture
def start_held(tmp_path: Path, broker_class: type[Broker]) -> Iterator[Callable[..., tuple[Broker, HeldDisk]]]:
    """Start a broker with the given limits on a disk that can be held: no new operation is then reported as durable."""
    started: list[tuple[Broker, HeldDisk]] = []

    def start(**limits: Any) -> tuple[Broker, HeldDisk]:
        disk = HeldDisk(open_store(tmp_path / f"held{len(started)}"))
        started.append((broker_class(disk, Limits(**limits)), disk))
        return started[-1]

    yield start
    for broker, disk in started:
        broker.stop()
        disk.close()


@pytest.fixture
def held(start_held: Callable[..., tuple[Broker, HeldDisk]]) -> tuple[Broker, HeldDisk]:
    """A broker and its disk, which can be held."""
    return start_held()


@pytest.fixture
def hanging(tmp_path: Path, broker_class: type[Broker]) -> Iterator[tuple[Broker, HangingCatalog]]:
    store = HangingCatalog(open_store(tmp_path / "store"))
    broker = broker_class(store)
    yield broker, store
    store.go_on()
    broker.stop()
    store.close()
