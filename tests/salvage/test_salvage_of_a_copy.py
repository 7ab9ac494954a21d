"""The catalog of a member's copy: salvage takes what its log has, and no repair invents queues for it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from backup.test_backup_catalog import change, leave_behind

import logstore
from kit.command import fails, fine, run
from kit.copy_group import Group

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    made = Group(tmp_path, catalog=True)
    yield made
    made.close()


@pytest.fixture
def behind(group: Group, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy whose log has changes of the catalog that its file lacks; nobody has it open."""
    store = group.lead(0)
    store.declare_queue("gone")
    leave_behind(group, 1, monkeypatch)
    change(store)
    group.cease()
    group.copies[1].close()
    return group.stores[1]


def rows(store_dir: Path) -> int:
    with closing(sqlite3.connect(store_dir / "catalog.sqlite")) as connection:
        return int(connection.execute("SELECT count(*) FROM queues").fetchone()[0])


def test_salvage_of_a_copy_that_is_behind_its_log_has_the_changes_of_the_log(behind: Path, tmp_path: Path) -> None:
    before = (behind / "catalog.sqlite").read_bytes()
    fine("salvage", behind, tmp_path / "new")
    with logstore.open(tmp_path / "new") as store:
        assert {queue.name for queue in store.queues()} == {"orders", "late"}
        assert [(one.exchange, one.queue, one.key) for one in store.bindings()] == [("events", "orders", "a.#")]
        assert store.config["one"] == "1"
        assert store.queue("late").depth == 1
    assert (behind / "catalog.sqlite").read_bytes() == before


def test_the_catalog_of_a_copy_is_not_repaired_but_left_to_its_member(behind: Path, group: Group) -> None:
    before = rows(behind)
    for more in ((), ("--dry-run",)):
        said = fails(run("repair-catalog", behind, *more), 3)
        assert "logstore cluster rebuild" in said
        assert "logstore cluster detach" in said
    assert rows(behind) == before
    group.copies[1] = group.open(1)
    group.copies[1].close()
    assert rows(behind) == 2
