"""Readers of a member's copy see the changes of its catalog that its log has and its file lacks."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from backup.test_backup_catalog import change, leave_behind

from kit.command import fine, run
from kit.copy_group import Group, all_agree
from kit.patience import wait_until
from logstore.inspect import Reader, read_catalog

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    made = Group(tmp_path, catalog=True)
    yield made
    made.close()


def end_lsn(store_dir: Path) -> int:
    with Reader(store_dir) as reader:
        return reader.info.end_lsn


def test_a_reader_of_a_copy_that_is_behind_sees_the_queues_of_its_log(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = group.lead(0)
    store.declare_queue("gone")
    store.publish("gone", b"x")
    wait_until(lambda: all_agree(group), "all have it")
    leave_behind(group, 1, monkeypatch)
    change(store)
    after = store.publish("orders", b"says that the changes are durable")
    behind = group.stores[1]
    wait_until(lambda: end_lsn(behind) > after, "readers of the follower see it")
    group.close()
    before = (behind / "catalog.sqlite").read_bytes()
    with Reader(behind) as reader:
        seen, leaders = (read_catalog(place, reader.info) for place in (behind, group.stores[0]))
    assert [(queue.name, queue.dead_letter) for queue in seen.queues] == [("orders", None), ("late", "orders")]
    assert seen == leaders
    assert seen.config["one"] == "1"
    assert "late" in fine("queues", behind)
    assert "on a new queue" in fine("peek", behind, "late")
    for command in ("info", "verify", "tail"):
        done = run(command, behind)
        assert done.returncode == 0, done.stdout + done.stderr
    assert (behind / "catalog.sqlite").read_bytes() == before
    with closing(sqlite3.connect(f"file:{behind}/catalog.sqlite?mode=ro", uri=True)) as file:
        assert file.execute("SELECT name FROM queues ORDER BY id").fetchall() == [("orders",), ("gone",)]
