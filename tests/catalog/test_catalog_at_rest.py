"""Reading the catalog of a closed store: in place or from a copy, without leaving files."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

import pytest

from logstore import errors
from logstore.catalog import at_rest
from logstore.catalog.backends import FILE_NAME
from logstore.inspect import Reader, read_catalog
from logstore.salvage import salvage

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from logstore import MessageStore

    Open = Callable[..., MessageStore]


@pytest.fixture
def closed(open_store: Open, store_dir: Path) -> Path:
    """A store with two queues that was closed in order."""
    with open_store() as store:
        store.declare_queue("a")
        store.declare_queue("b")
    return store_dir


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory for temporary files, for this test only."""
    made = tmp_path / "scratch"
    made.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(made))
    return made


def leave_unwritten_changes(store_dir: Path) -> None:
    """The catalog as a crash leaves it: one row is only in the write-ahead log."""
    file = store_dir / FILE_NAME
    with closing(sqlite3.connect(file, isolation_level=None)) as database:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("UPDATE queues SET name = 'renamed' WHERE name = 'b'")
        kept = {name: (store_dir / name).read_bytes() for name in (FILE_NAME, f"{FILE_NAME}-wal")}
    for name, content in kept.items():
        (store_dir / name).write_bytes(content)


def queues(store_dir: Path) -> list[str]:
    with Reader(store_dir) as reader:
        return [queue.name for queue in read_catalog(store_dir, reader.info).queues]


def files(directory: Path) -> dict[str, tuple[int, int]]:
    return {path.name: (path.stat().st_mtime_ns, path.stat().st_size) for path in directory.iterdir()}


def test_a_closed_catalog_is_read_in_place_and_never_copied(
    closed: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        pytest.fail("a copy was made")

    monkeypatch.setattr(tempfile, "mkdtemp", refuse)
    before = files(closed)
    assert queues(closed) == ["a", "b"]
    assert salvage(closed, None).whole
    assert files(closed) == before
    assert list(scratch.iterdir()) == []


def test_changes_that_a_crash_left_in_the_wal_are_read_from_a_temporary_copy(closed: Path, scratch: Path) -> None:
    leave_unwritten_changes(closed)
    before = files(closed)
    assert queues(closed) == ["a", "renamed"]
    assert files(closed) == before
    assert list(scratch.iterdir()) == []


def test_a_catalog_too_large_to_copy_is_a_plain_error(
    closed: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_unwritten_changes(closed)
    monkeypatch.setattr(at_rest, "COPY_BYTES_MAX", 1000)
    with pytest.raises(errors.CatalogUnavailable, match="too large to be copied"):
        queues(closed)
    assert list(scratch.iterdir()) == []


def test_the_copy_of_a_killed_process_is_removed_by_the_next_one(
    closed: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_unwritten_changes(closed)
    child = os.fork()
    if child == 0:
        monkeypatch.setattr(at_rest, "_recover", lambda _: os._exit(9))
        with suppress(BaseException):
            queues(closed)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    (scratch / ".catalog-notours!").mkdir()
    assert len(list(scratch.iterdir())) == 2
    assert queues(closed) == ["a", "renamed"]
    assert [path.name for path in scratch.iterdir()] == [".catalog-notours!"]


def test_a_copy_that_another_process_reads_is_left_alone(closed: Path, scratch: Path) -> None:
    leave_unwritten_changes(closed)
    backend = at_rest.SqliteFile(closed, read_only=True)
    with at_rest._scratch(backend, None) as other:
        assert queues(closed) == ["a", "renamed"]
        assert list(scratch.iterdir()) == [other]


@pytest.mark.parametrize("odd", ["missing", "a file"])
def test_a_directory_for_copies_that_cannot_be_used_is_named(closed: Path, scratch: Path, odd: str) -> None:
    leave_unwritten_changes(closed)
    scratch.rmdir()
    if odd == "a file":
        scratch.write_bytes(b"")
    with pytest.raises(errors.CatalogUnavailable, match=str(scratch)):
        queues(closed)


def test_a_catalog_that_a_writer_changes_while_it_is_read_is_read_again(
    closed: Path, open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def read(place: Path, _: bool) -> list[str]:
        calls.append(place)
        if len(calls) == 1:
            with open_store() as store:
                store.declare_queue("c")
        with closing(sqlite3.connect(place / FILE_NAME)) as database:
            return [name for (name,) in database.execute("SELECT name FROM queues ORDER BY name")]

    assert at_rest.read_at_rest(closed, read) == ["a", "b", "c"]
    assert len(calls) == 2
