"""Markers on a real server: a commit may be in progress while its client is cut off or dead."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy
import transaction
from sqlalchemy.exc import IntegrityError, OperationalError

from kit import postgres
from kit.patience import PATIENCE_S, wait_until
from kit.postgres import Server, Wire
from kit.sql_partner import Base, Shop
from kit.stores import contents
from logstore import tpc

if TYPE_CHECKING:
    from collections.abc import Iterator

    from logstore import MessageStore

pytestmark = pytest.mark.postgres


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    yield from postgres.running_server()


@pytest.fixture
def wire(server: Server) -> Iterator[Wire]:
    made = Wire(server)
    yield made
    made.close()


@pytest.fixture
def manager() -> Iterator[Any]:
    made = transaction.TransactionManager()
    yield made
    made.abort()


@pytest.fixture
def shop(server: Server, wire: Wire, manager: Any) -> Iterator[Shop]:
    """The application connects through the wire; queries about markers do not."""
    through, direct = sqlalchemy.create_engine(wire.url()), sqlalchemy.create_engine(server.url())
    made = Shop(through, manager, markers_engine=direct)
    yield made
    made.close()
    Base.metadata.drop_all(direct)
    with direct.begin() as connection:
        connection.execute(sqlalchemy.text("DROP TABLE logstore_markers"))
    direct.dispose()


@pytest.fixture
def joined(store: MessageStore, shop: Shop, manager: Any) -> tpc.Participant:
    store.declare_queue("q")
    return tpc.Participant(store, ledger=shop.markers, transaction_manager=manager)


def waits_for_a_lock(server: Server) -> bool:
    return bool(server.value("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"))


def commit(shop: Shop, joined: tpc.Participant, manager: Any) -> None:
    with manager:
        shop.order("tea")
        joined.publish("q", b"tea")


def test_both_are_there_after_a_commit(store: MessageStore, shop: Shop, joined: Any, manager: Any) -> None:
    commit(shop, joined, manager)
    assert (shop.orders(), contents(store.queue("q")), shop.marked()) == (["tea"], [b"tea"], [True])
    joined.recover()
    assert shop.marked() == []


def test_neither_is_there_if_the_commit_never_arrives(
    store: MessageStore, shop: Shop, joined: Any, manager: Any, wire: Wire
) -> None:
    wire.cut_at(b"COMMIT", "before")
    with pytest.raises(OperationalError):
        commit(shop, joined, manager)
    assert (shop.orders(), contents(store.queue("q")), store.in_doubt()) == ([], [], [])


def test_both_are_there_if_only_the_answer_to_the_commit_is_lost(
    store: MessageStore, shop: Shop, joined: Any, manager: Any, wire: Wire
) -> None:
    wire.cut_at(b"COMMIT", "behind")
    with pytest.raises(OperationalError):
        commit(shop, joined, manager)
    assert (shop.orders(), contents(store.queue("q")), store.in_doubt()) == (["tea"], [b"tea"], [])


def test_both_are_there_if_the_commit_arrives_while_the_ledger_is_asked(
    store: MessageStore, server: Server, shop: Shop, joined: Any, manager: Any, wire: Wire
) -> None:
    wire.cut_at(b"COMMIT", "late")

    def let_it_arrive() -> None:
        wait_until(lambda: waits_for_a_lock(server), "who asks waits for the commit")
        wire.go.set()

    messenger = threading.Thread(target=let_it_arrive)
    messenger.start()
    with pytest.raises(OperationalError):
        commit(shop, joined, manager)
    messenger.join(PATIENCE_S)
    assert (shop.orders(), contents(store.queue("q")), store.in_doubt()) == (["tea"], [b"tea"], [])


def test_a_transaction_that_was_denied_can_no_longer_write_its_marker(
    store: MessageStore, shop: Shop, joined: Any, manager: Any
) -> None:
    shop.order("tea")
    joined.publish("q", b"tea")
    assert shop.markers.committed(joined.xid) is False
    with pytest.raises(IntegrityError):
        manager.commit()
    manager.abort()
    assert (shop.orders(), contents(store.queue("q")), store.in_doubt()) == ([], [], [])
