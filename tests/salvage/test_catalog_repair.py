"""``logstore repair-catalog``: a catalog damaged in any way is repaired, and the store opens with its messages."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import logstore
from kit.command import fails, fine, run, told
from kit.stores import SMALL_SEGMENT, contents

KEPT = "catalog.sqlite.before-repair"


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed store: queue 1 "dead", 2 "orders" (dead letters to 1), 3 deleted, 4 "late"; a message on each."""
    path = tmp_path_factory.mktemp("template") / "store"
    with logstore.open(path, segment_size=SMALL_SEGMENT) as store:
        store.declare_queue("dead")
        store.declare_queue("orders", dead_letter="dead")
        gone = store.declare_queue("gone")
        store.declare_queue("late")
        store.declare_exchange("rest")
        store.declare_exchange("market", alternate="rest")
        for queue in store.queues():
            store.bind("market", queue, queue.name)
            store.publish(queue, queue.name.encode())
        store.delete_queue(gone)
    return path


@pytest.fixture
def path(template: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(template, tmp_path / "store"))


def execute(path: Path, *statements: str) -> None:
    """Without checks of references, as damage would."""
    with closing(sqlite3.connect(path / "catalog.sqlite", isolation_level=None)) as database:
        for statement in statements:
            database.execute(statement)


def files(path: Path) -> dict[str, Any]:
    return {one.name: (one.read_bytes(), one.stat().st_mtime_ns) for one in path.iterdir() if one.is_file()}


def names_twice(path: Path) -> None:
    """Two rows with one name, in a table without the constraint."""
    execute(path, "CREATE TABLE copied (id INTEGER PRIMARY KEY, name TEXT, arguments TEXT, dead_letter INTEGER)")
    execute(path, "INSERT INTO copied SELECT * FROM queues", "DROP TABLE queues")
    execute(path, "ALTER TABLE copied RENAME TO queues", "UPDATE queues SET name = 'dead' WHERE id = 4")


ALL = {"dead": [b"dead"], "orders": [b"orders"], "late": [b"late"]}
LATE_LOST = {"dead": [b"dead"], "orders": [b"orders"], "queue-4": [b"late"]}

ADDED = (
    "queue 4 is added as 'queue-4' without its arguments and bindings, which are lost: the log has 1 message on it, "
    "and the catalog is older than the log"
)

BROKEN: dict[str, tuple[Callable[[Path], None], list[str], dict[str, list[bytes]]]] = {
    "the next id is in use": (
        lambda path: execute(path, "UPDATE store SET next_queue_id = 1"),
        ["the next queue id is set to 5: it was 1, and queue id 4 is in use"],
        ALL,
    ),
    "the next id is named by the log": (
        lambda path: (
            execute(path, "DELETE FROM queues WHERE id = 4", "DELETE FROM bindings WHERE queue_id = 4")
            or execute(path, "UPDATE store SET next_queue_id = 3")
        ),
        [
            ADDED,
            "the next queue id is set to 5: it was 3, and queue id 4 is in use",
        ],
        LATE_LOST,
    ),
    "only the log names the newest queue, which was deleted": (
        lambda path: (
            execute(path, "UPDATE store SET next_queue_id = 3", "DELETE FROM queues WHERE id = 4")
            or execute(
                path, "DELETE FROM bindings WHERE queue_id = 4", "INSERT INTO queues VALUES (3, 'gone', '{}', 1)"
            )
        ),
        [
            "queue 3, 'gone', is removed with its bindings: the log says that it was deleted",
            ADDED,
            "the next queue id is set to 5: it was 3, and queue id 4 is in use",
        ],
        LATE_LOST,
    ),
    "the next id is no number": (
        lambda path: execute(path, "UPDATE store SET next_queue_id = 'x'"),
        ["the next queue id is set to 5: it was 'x', and queue id 4 is in use"],
        ALL,
    ),
    "the count of changes is no number": (
        lambda path: execute(path, "UPDATE store SET revision = 'x'"),
        ["the count of changes is set to 1: it was 'x'"],
        ALL,
    ),
    "a dead-letter queue is gone": (
        lambda path: execute(path, "UPDATE queues SET dead_letter = 77 WHERE id = 2"),
        ["queue 'orders' has no dead-letter queue any more: it was 77, gone"],
        ALL,
    ),
    "an alternate is gone": (
        lambda path: execute(path, "UPDATE exchanges SET alternate = 'x' WHERE name = 'market'"),
        ["exchange 'market' has no alternate any more: it was 'x', gone"],
        ALL,
    ),
    "bindings to what is gone": (
        lambda path: execute(
            path,
            "UPDATE bindings SET exchange = 'x' WHERE queue_id = 1",
            "UPDATE bindings SET queue_id = 77 WHERE queue_id = 2",
        ),
        [
            "the binding of queue 1 to exchange 'x' with key 'dead' is removed: there is no exchange 'x'",
            "the binding of queue 77 to exchange 'market' with key 'orders' is removed: there is no queue 77",
        ],
        ALL,
    ),
    "a name twice": (names_twice, ["queue 4 is renamed to 'queue-4': queue 1 is called 'dead', too"], LATE_LOST),
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_dry_run_reports_a_broken_catalog_and_the_command_repairs_it(how: str, path: Path) -> None:
    break_it, changes, messages = BROKEN[how]
    break_it(path)
    if how != "a name twice":
        with pytest.raises(logstore.StoreError):
            logstore.open(path, create=False)
    before = files(path)
    said = told("repair-catalog", path, "--dry-run")
    assert said == {
        "store": str(path),
        "dry_run": True,
        "changes": changes,
        "notes": said["notes"],
        "problem": None,
        "kept": None,
    }
    assert files(path) == before
    assert [line.removeprefix("would change: ") for line in lines("--dry-run", path)] == changes
    assert files(path) == before

    done = told("repair-catalog", path)
    assert (done["changes"], done["kept"]) == (changes, str(path / KEPT))
    with closing(sqlite3.connect(path / KEPT)) as kept, closing(sqlite3.connect(path / "catalog.sqlite")) as mended:
        assert list(kept.iterdump()) != list(mended.iterdump())
    with logstore.open(path, create=False) as store:
        assert {queue.name: contents(queue) for queue in store.queues()} == messages
        assert store.declare_queue("new").id == 5
    assert "the catalog has no errors" in fine("repair-catalog", path)


def lines(*arguments: object) -> list[str]:
    return fine("repair-catalog", *arguments).splitlines()


def test_nothing_is_changed_where_nothing_is_wrong(path: Path) -> None:
    before = files(path)
    said = told("repair-catalog", path)
    assert (said["changes"], said["notes"], said["kept"]) == ([], [], None)
    assert files(path) == before


def test_messages_of_a_queue_without_a_row_below_the_next_id_are_reported(path: Path) -> None:
    execute(path, "DELETE FROM queues WHERE id = 4", "DELETE FROM bindings WHERE queue_id = 4")
    before = files(path)
    said = told("repair-catalog", path)
    assert said["changes"] == []
    assert ["the next open drops 1 message on it" in note for note in said["notes"]] == [True]
    assert files(path) == before


def test_a_catalog_that_a_crash_left_with_a_write_ahead_log_is_mended_and_kept_whole(path: Path) -> None:
    with closing(sqlite3.connect(path / "catalog.sqlite", isolation_level=None)) as database:
        database.execute("UPDATE store SET next_queue_id = 2")
        crashed = shutil.copytree(path, path.with_name("crashed"))
    assert (crashed / "catalog.sqlite-wal").stat().st_size > 0
    before = files(crashed)
    assert told("repair-catalog", crashed, "--dry-run")["changes"]
    assert files(crashed) == before
    fine("repair-catalog", crashed)
    with closing(sqlite3.connect(crashed / KEPT)) as kept:
        assert kept.execute("SELECT next_queue_id FROM store").fetchall() == [(2,)]
    with logstore.open(crashed, create=False) as store:
        assert len(store.queues()) == 3


def test_each_repair_keeps_the_file_under_a_name_of_its_own(path: Path) -> None:
    for kept in (KEPT, f"{KEPT}-2"):
        execute(path, "UPDATE store SET next_queue_id = 1")
        assert told("repair-catalog", path)["kept"] == str(path / kept)


def test_damage_that_no_command_can_repair_is_reported_and_left_unchanged(path: Path) -> None:
    execute(path, "UPDATE store SET next_queue_id = 1", "UPDATE queues SET arguments = 'no JSON' WHERE id = 2")
    before = files(path)
    said = fails(run("repair-catalog", path), 1)
    assert f"the catalog cannot be repaired: the catalog {path}/catalog.sqlite: " in said
    assert files(path) == before


def test_a_catalog_that_is_missing_or_is_no_database_cannot_be_opened(path: Path) -> None:
    (path / "catalog.sqlite").write_bytes(b"no database at all " * 100)
    fails(run("repair-catalog", path), 3)
    (path / "catalog.sqlite").unlink()
    assert "missing" in fails(run("repair-catalog", path), 3)
    assert not (path / KEPT).exists()
    fails(run("repair-catalog", path / "nowhere"), 3)
    fails(run("repair-catalog"), 2)


@pytest.mark.parametrize("options", [[], ["--dry-run"]])
def test_an_open_store_is_refused_and_unchanged(options: list[str], path: Path) -> None:
    with logstore.open(path, create=False) as store:
        assert "is open in this process already" in fails(run("repair-catalog", path, *options), 3)
        assert len(store.queues()) == 3


def test_a_failure_within_the_repair_changes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from logstore.salvage import catalog_repair

    execute(path, "UPDATE store SET next_queue_id = 1")
    before = (path / "catalog.sqlite").read_bytes()
    really, calls = catalog_repair._Mending._raise_next_id, []

    def fail(mending: Any) -> None:
        really(mending)
        calls.append(mending)
        if len(calls) == 2:
            raise sqlite3.OperationalError("planted")

    monkeypatch.setattr(catalog_repair._Mending, "_raise_next_id", fail)
    fails(run("repair-catalog", path), 3)
    with closing(sqlite3.connect(path / "catalog.sqlite")) as database:
        assert database.execute("SELECT next_queue_id FROM store").fetchall() == [(1,)]
    assert (path / KEPT).read_bytes()[100:] == before[100:]
