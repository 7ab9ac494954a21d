"""A store, a shop and a transaction manager for one common transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import transaction

from kit.sql_partner import Shop
from logstore import tpc

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from logstore import MessageStore, Queue


@pytest.fixture
def manager() -> Iterator[transaction.TransactionManager]:
    """A separate transaction manager, left without a transaction."""
    made = transaction.TransactionManager()
    yield made
    made.abort()


@pytest.fixture
def queue(store: MessageStore) -> Queue:
    return store.declare_queue("q")


@pytest.fixture
def shop(tmp_path: Path, manager: Any) -> Iterator[Shop]:
    made = Shop.in_file(tmp_path / "shop.sqlite", manager)
    yield made
    made.close()


@pytest.fixture
def alone(store: MessageStore, queue: Queue, manager: Any) -> tpc.Participant:
    """A participant without a ledger."""
    return tpc.Participant(store, transaction_manager=manager)


@pytest.fixture
def joined(store: MessageStore, queue: Queue, shop: Shop, manager: Any) -> tpc.Participant:
    """A participant together with the shop."""
    return tpc.Participant(store, ledger=shop.markers, transaction_manager=manager)
