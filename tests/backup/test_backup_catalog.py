"""A backup of a replicated store's copy has each change of the catalog that its log has, or is not made."""

from __future__ import annotations

import shutil
import sqlite3
import threading
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from cluster.test_catalog_log import all_agree, contents

import logstore
from kit.copy_group import Group, fill
from kit.patience import PATIENCE_S, wait_until
from logstore import errors
from logstore.backup import back_up
from logstore.catalog.changes import applied_lsn
from logstore.catalog.database import CatalogDatabase
from logstore.inspect import Reader
from logstore.inspect.catalog_changes import changes_between

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.on_disk


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    made = Group(tmp_path, catalog=True)
    yield made
    made.close()


def applied(store_dir: Path) -> int:
    with Reader(store_dir) as reader:
        found = applied_lsn(store_dir, reader.info.uuid.bytes)
    assert found is not None
    return found


def leave_behind(group: Group, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on this copy takes and applies batches, and its catalog's file gets none of the changes."""
    monkeypatch.setattr(group.copies[number], "_follow_catalog", lambda: None)


def change(store: logstore.MessageStore) -> int:
    """Changes of each kind; the id of a message on a queue that they make."""
    store.declare_exchange("events", type="topic")
    store.bind("events", "orders", "a.#")
    store.config["one"] = "1"
    store.delete_queue("gone")
    store.declare_queue("late", dead_letter="orders")
    return store.publish("late", b"on a new queue")


@pytest.mark.parametrize("state", ["stopped", "running"])
def test_a_backup_of_a_follower_has_the_changes_that_its_file_lacks(
    group: Group, state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = group.lead(0)
    store.declare_queue("gone")
    store.publish("gone", b"x")
    wait_until(lambda: all_agree(group), "all have it")
    leave_behind(group, 1, monkeypatch)
    published = change(store)
    after = store.publish("orders", b"says that the changes are durable")
    wait_until(lambda: group.copy(1).info().applied_lsn > after, "the follower has applied it")
    before = contents(group.stores[0])
    if state == "stopped":
        group.close()
    with Reader(group.stores[1]) as reader:
        assert reader.info.state == ("live" if state == "running" else "crashed")
    behind = contents(group.stores[1])
    assert behind != before
    report = back_up(group.stores[1], tmp_path / "backup")
    assert contents(report.target) == before
    assert contents(group.stores[1]) == behind, "the copy is not changed"
    assert report.bytes == sum(path.stat().st_size for path in report.target.iterdir())
    with logstore.open(report.target) as single:
        assert [message.id for message in single.messages("late")] == [published]
        assert [(one.exchange, one.queue, one.key) for one in single.bindings()] == [("events", "orders", "a.#")]
        assert dict(single.config) == {"one": "1"}
        assert single.declare_queue("next").id == 4


def test_a_backup_of_a_leader_has_the_change_that_it_is_just_making(
    group: Group, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = group.lead(0)
    store.declare_exchange("events", type="topic")
    real = CatalogDatabase._execute
    reached, goes_on = threading.Event(), threading.Event()

    def wait(self: CatalogDatabase, statements: Any, after: Any) -> None:
        reached.set()
        assert goes_on.wait(PATIENCE_S)
        real(self, statements, after)

    monkeypatch.setattr(CatalogDatabase, "_execute", wait)
    binding = threading.Thread(target=store.bind, args=("events", "orders", "a.#"))
    binding.start()
    try:
        assert reached.wait(PATIENCE_S)
        report = back_up(group.stores[0], tmp_path / "backup")
    finally:
        goes_on.set()
        binding.join()
    monkeypatch.undo()
    assert contents(report.target) == contents(group.stores[0])
    with logstore.open(report.target) as single:
        assert [(one.exchange, one.queue, one.key) for one in single.bindings()] == [("events", "orders", "a.#")]


def test_changes_below_the_base_come_from_the_copy_that_is_backed_up(
    group: Group, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = group.lead(0)
    store.declare_queue("gone")
    wait_until(lambda: all_agree(group), "all have it")
    leave_behind(group, 1, monkeypatch)
    for message in store.messages("orders"):
        store.dequeue(message.id, "orders")
    published = change(store)
    store.dequeue(published, "late")
    for one in fill(store, 100):
        store.dequeue(one, "orders")
    fill(store, 100)
    store.config["two"] = "2"  # above the base
    store.publish("orders", b"says that the changes are durable")
    before = contents(group.stores[0])
    group.close()
    report = back_up(group.stores[1], tmp_path / "backup")
    assert applied(group.stores[1]) < report.base_lsn
    assert contents(report.target) == before
    logstore.open(report.target).close()


@pytest.mark.parametrize("state", ["stopped", "running"])
def test_a_catalog_that_is_ahead_of_the_backups_end_ends_its_deletions_and_makes_empty_queues(
    group: Group, state: str, tmp_path: Path
) -> None:
    store = group.lead(0)
    store.declare_queue("gone")
    store.publish_many("gone", [b"x", b"y"])
    kept = [message.id for message in store.messages("orders")]

    def change_once(*_: int) -> None:
        if "late" not in [queue.name for queue in store.queues()]:
            store.delete_queue("gone")
            store.publish(store.declare_queue("late"), b"after the end")
            store.bind(store.declare_exchange("events", type="topic").name, "late", "a.#")

    if state == "stopped":
        change_once()
        group.close()
        report = back_up(group.stores[0], tmp_path / "backup")
    else:
        report = back_up(group.stores[0], tmp_path / "backup", progress=change_once)
    assert applied(group.stores[0]) > report.lsn
    assert contents(report.target) == contents(group.stores[0])
    with logstore.open(report.target) as single:
        if state == "running":
            assert (single.recovery.queues_dropped, single.recovery.places_dropped) == (1, 2)
            assert list(single.messages("late")) == []
        assert [message.id for message in single.messages("orders")] == kept
        assert [(one.exchange, one.queue, one.key) for one in single.bindings()] == [("events", "late", "a.#")]
        assert single.declare_queue("next").id == 4
    with logstore.open(report.target) as single:
        assert single.recovery.queues_dropped == 0


def test_a_copy_whose_file_lacks_what_its_log_no_longer_has_is_not_backed_up(group: Group, tmp_path: Path) -> None:
    group.lead(0).declare_queue("gone")
    group.cease()
    copy = group.copy(1)
    copy.close()
    shutil.copy(group.stores[1] / "catalog.sqlite", tmp_path / "older.sqlite")
    group.copies[1] = copy = group.open(1)
    store = group.lead(0)
    change(store)
    for one in fill(store, 200):
        store.dequeue(one, "orders")
    group.cease()
    copy.durable(copy.info().end_lsn)
    copy.note_catalog()
    copy.drop_kept(copy.kept()[-1])
    fill(group.lead(0), 200)
    group.close()
    shutil.copy(tmp_path / "older.sqlite", group.stores[1] / "catalog.sqlite")
    with pytest.raises(errors.CatalogMismatch, match=r"has lost what follows .* No backup was made"):
        back_up(group.stores[1], tmp_path / "backup")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["member-1", "member-2", "member-3", "older.sqlite"]


def test_a_copy_whose_file_does_not_say_what_it_has_of_its_logs_changes_is_not_backed_up(
    group: Group, tmp_path: Path
) -> None:
    store = group.lead(0)
    store.declare_queue("first")
    store.publish("first", b"says that the change is durable")
    group.close()
    with closing(sqlite3.connect(group.stores[1] / "catalog.sqlite")) as database:
        database.execute("DROP TABLE applied")
        database.commit()
    with pytest.raises(errors.CatalogMismatch, match=r"does not say which changes .* No backup was made"):
        back_up(group.stores[1], tmp_path / "backup")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["member-1", "member-2", "member-3"]


def test_a_part_of_the_log_that_is_not_there_yet_is_not_taken_for_one_without_changes(group: Group) -> None:
    group.lead(0).declare_queue("first")
    group.close()
    with Reader(group.stores[1]) as reader:
        end_lsn = reader.info.end_lsn
    assert changes_between(group.stores[1], applied(group.stores[1]), end_lsn) == []
    with pytest.raises(errors.StoreError, match="run this again"):
        changes_between(group.stores[1], applied(group.stores[1]), end_lsn + 1)


def test_a_copy_whose_changes_were_kept_out_of_its_log_is_backed_up_as_it_is(tmp_path: Path) -> None:
    group = Group(tmp_path)
    try:
        group.lead(0).declare_queue("first")
        report = back_up(group.stores[0], tmp_path / "backup")
        assert contents(report.target) == contents(group.stores[0])
        with Reader(report.target) as reader:
            assert applied_lsn(report.target, reader.info.uuid.bytes) is None
    finally:
        group.close()
