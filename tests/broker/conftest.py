"""Fixtures: a separate broker for each test."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from kit.live_broker import Broker as DirectBroker
from kit.live_broker import open_store
from kit.store_proxies import HeldDisk
from logstore.broker import Limits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

if os.environ.get("LOGSTORE_TEST_RELAYED"):  # every client comes through another broker, as in a cluster
    from kit.relayed_broker import RelayedBroker as Broker
else:
    Broker = DirectBroker


@pytest.fixture
def start_broker(tmp_path: Path) -> Iterator[Callable[..., Broker]]:
    """Start a broker with the given limits; its store is closed after the test."""
    brokers: list[Broker] = []

    def start(**limits: Any) -> Broker:
        broker = Broker(open_store(tmp_path / f"store{len(brokers)}"), Limits(**limits))
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
def held(tmp_path: Path) -> Iterator[tuple[Broker, HeldDisk]]:
    """A broker, and its disk, which can be held so that no new operation is reported as durable."""
    disk = HeldDisk(open_store(tmp_path / "store"))
    broker = Broker(disk)
    yield broker, disk
    broker.stop()
    disk.close()


@pytest.fixture
def channel(broker: Broker) -> Any:
    return broker.pika().channel()


@pytest.fixture
def restart_broker(tmp_path: Path) -> Iterator[Callable[[], Broker]]:
    """Start a broker on one store; each further call ends it, opens the store again and starts another one."""
    brokers: list[Broker] = []

    def stop() -> None:
        if brokers:
            old = brokers.pop()
            old.stop()
            old.store.close()

    def restart() -> Broker:
        stop()
        brokers.append(Broker(open_store(tmp_path / "store")))
        return brokers[-1]

    yield restart
    stop()
