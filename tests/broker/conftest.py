"""Fixtures: a separate broker for each test.

With LOGSTORE_TEST_RELAYED=1 each client comes through another broker, which relays it, as in a cluster; tests that are
marked ``direct_only`` are skipped. Tests that are marked ``relayed_too`` run both ways always.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from kit.live_broker import Broker, open_store
from kit.store_proxies import HeldDisk
from logstore.broker import Limits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

ALL_ARE_RELAYED = bool(os.environ.get("LOGSTORE_TEST_RELAYED"))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    is_marked = metafunc.definition.get_closest_marker("relayed_too") is not None
    if is_marked and not ALL_ARE_RELAYED and "broker_class" in metafunc.fixturenames:
        metafunc.parametrize("broker_class", ["direct", "relayed"], indirect=True)


def pytest_runtest_setup(item: pytest.Item) -> None:
    direct_only = item.get_closest_marker("direct_only")
    if ALL_ARE_RELAYED and direct_only is not None:
        pytest.skip(direct_only.args[0])


@pytest.fixture(scope="module")
def broker_class(request: pytest.FixtureRequest) -> type[Broker]:
    """How clients reach the broker."""
    if not ALL_ARE_RELAYED and getattr(request, "param", "direct") == "direct":
        return Broker
    pytest.importorskip("msgspec", reason="the extra cluster is not installed")
    pytest.importorskip("logstore._consensus", reason="the cluster is not built")
    from kit.relayed_broker import RelayedBroker

    return RelayedBroker


@pytest.fixture
def start_broker(tmp_path: Path, broker_class: type[Broker]) -> Iterator[Callable[..., Broker]]:
    """Start a broker with the given limits; its store is closed after the test."""
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
def broker(start_broker: Callable[..., Broker]) -> Broker:
    return start_broker()


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
def channel(broker: Broker) -> Any:
    return broker.pika().channel()


@pytest.fixture
def restart_broker(tmp_path: Path, broker_class: type[Broker]) -> Iterator[Callable[[], Broker]]:
    """Start a broker on one store; each further call ends it, opens the store again and starts another one."""
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
