"""The catalog under faults: a failure at any statement, another process's lock, permissions, forks, threads."""

from __future__ import annotations

import os
import resource
import shutil
import socket
import sqlite3
import tempfile
import threading
import time
from _thread import RLock
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from kit.catalog_cases import CHANGES, UUID, everything, fill, reopened, run_python
from kit.patience import PATIENCE_S
from logstore.catalog import backends
from logstore.catalog.catalog import Catalog, QueueRow
from logstore.catalog.rows import WantedQueue
from logstore.core.locks import Lock
from logstore.errors import (
    CatalogError,
    CatalogOvertaken,
    CatalogUnavailable,
    OptionError,
    StoreClosed,
    StoreForked,
)


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    with closing(Catalog.create(tmp_path, store_uuid=UUID)) as made:
        yield made


# ---- Faults: a call that fails has changed nothing


@pytest.mark.parametrize("change", CHANGES)
def test_whichever_statement_fails_nothing_is_changed_and_the_next_try_works(
    change: str, catalog: Catalog, tmp_path: Path
) -> None:
    fill(catalog)
    before = everything(catalog)
    left = 0

    def fail(*_: object) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise sqlite3.OperationalError("planted")

    sa.event.listen(catalog._engine, "before_cursor_execute", fail)
    for n in range(1, 100):
        left = n
        try:
            CHANGES[change](catalog)
        except CatalogError:
            left = 0
            assert everything(catalog) == before
            with reopened(tmp_path, read_only=True) as witness:
                assert everything(witness) == before
        else:
            break
    assert 3 <= n < 100, "begin, the counting of the change, and the change itself"
    assert everything(catalog) != before
    with reopened(tmp_path, read_only=True) as witness:
        assert everything(witness) == everything(catalog)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("committed", [False, True])
def test_after_a_commit_without_an_answer_the_next_change_finds_its_outcome(
    change: str,
    committed: bool,
    catalog: Catalog,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fill(catalog)
    before = everything(catalog)
    really = catalog._engine.dialect.do_commit

    def lose(connection: Any) -> None:
        if committed:
            really(connection)
        raise sqlite3.OperationalError("planted: no answer")

    with monkeypatch.context() as patch:
        patch.setattr(catalog._engine.dialect, "do_commit", lose)
        with pytest.raises(CatalogError):
            CHANGES[change](catalog)
    assert everything(catalog) == before, "nothing is believed that was not confirmed"

    with closing(Catalog.create(tmp_path_factory.mktemp("twin"), store_uuid=UUID)) as twin:
        fill(twin)
        if committed:
            CHANGES[change](twin)
        twin.declare_queue("afterwards")
        catalog.declare_queue("afterwards")
        assert everything(catalog) == everything(twin)
        with reopened(tmp_path, read_only=True) as witness:
            assert everything(witness) == everything(twin)


def test_a_full_disk_is_one_sentence_and_loses_nothing(catalog: Catalog, tmp_path: Path) -> None:
    fill(catalog)
    before = everything(catalog)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / "catalog.sqlite-wal").stat().st_size, hard))
    try:
        with pytest.raises(CatalogError, match=r"catalog\.sqlite") as caught:
            catalog.declare_queue("too much")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "\n" not in caught.value.message
    assert everything(catalog) == before
    assert catalog.declare_queue("now")[0].id == 3
    catalog.close()
    with reopened(tmp_path) as again:
        assert [row.name for row in again.queues()] == ["dead", "orders", "now"]


def test_a_database_at_its_size_limit_reports_that_it_is_full(catalog: Catalog) -> None:
    with catalog._transaction() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
        connection.exec_driver_sql(f"PRAGMA max_page_count={pages}")
    with pytest.raises(CatalogError, match="disk is full"):
        catalog.declare_queue("big", arguments={"x": "y" * 60000})
    assert catalog.queues() == []
    assert catalog.declare_queue("small")[0].id == 1


def test_a_permanent_lock_is_unavailable_and_reads_never_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends, "BUSY_TIMEOUT_S", 3.0)
    with closing(Catalog.create(tmp_path, store_uuid=UUID)) as catalog:
        catalog.declare_queue("orders")
        with closing(sqlite3.connect(tmp_path / "catalog.sqlite", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            failures: list[Exception] = []

            def declare() -> None:
                try:
                    catalog.declare_queue("blocked")
                except CatalogUnavailable as error:
                    failures.append(error)

            blocked = threading.Thread(target=declare)
            blocked.start()
            while catalog._change.acquire(blocking=False):  # until the change has it, and waits for the database
                catalog._change.release()
                time.sleep(0.001)
            assert [row.name for row in catalog.queues()] == ["orders"]
            assert blocked.is_alive(), "the change was still waiting while we read"
            blocked.join()
            assert "locked by another process" in str(failures[0])
            other.execute("ROLLBACK")
        assert catalog.declare_queue("blocked")[0].id == 2


def test_the_second_writer_is_refused_for_ever(catalog: Catalog, tmp_path: Path) -> None:
    with reopened(tmp_path) as second:
        assert second.declare_queue("from the second")[0].id == 1
        for _ in range(2):
            with pytest.raises(CatalogOvertaken, match="changed by another process"):
                catalog.declare_queue("from the first")
        assert catalog.queues() == []
        assert second.declare_queue("more")[0].id == 2


# ---- Readers, permissions, processes, threads


def test_a_reader_beside_a_writer_sees_committed_rows_and_changes_nothing(catalog: Catalog, tmp_path: Path) -> None:
    fill(catalog)
    before = (tmp_path / "catalog.sqlite").read_bytes()
    with reopened(tmp_path, read_only=True) as reader:
        assert everything(reader) == everything(catalog)
        for change in CHANGES.values():
            with pytest.raises(CatalogError, match="for reading only"):
                change(reader)
    assert (tmp_path / "catalog.sqlite").read_bytes() == before
    catalog.declare_queue("the writer goes on")


def as_nobody(code: str, directory: Path) -> str:
    drop = "import os, sys\nif os.getuid() == 0: os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
    report = (
        "from logstore.catalog.catalog import Catalog; from logstore.errors import StoreError\n"
        "import sqlite3, sqlalchemy.dialects.sqlite, sqlalchemy.pool\n"
        f"{drop}"
        "try:\n"
        f"    {code}\n"
        "except StoreError as error: print(type(error).__name__, error)\n"
    )
    done = run_python(report, directory)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def public_dir() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp())
    try:
        with closing(Catalog.create(directory, store_uuid=UUID)) as made:
            made.declare_queue("orders")
        directory.chmod(0o555)
        yield directory
    finally:
        directory.chmod(0o700)
        shutil.rmtree(directory)


OPEN = "catalog = Catalog.open(sys.argv[1], store_uuid=bytes(range(16)){})"


def test_an_unreadable_file_is_unavailable(public_dir: Path) -> None:
    (public_dir / "catalog.sqlite").chmod(0o000)
    assert as_nobody(OPEN.format(""), public_dir).startswith("CatalogUnavailable the catalog /")


@pytest.mark.parametrize("directory_mode", [0o555, 0o777])
def test_a_read_only_file_is_refused_to_a_writer_and_open_to_a_reader(directory_mode: int, public_dir: Path) -> None:
    (public_dir / "catalog.sqlite").chmod(0o444)
    public_dir.chmod(directory_mode)
    said = as_nobody(OPEN.format(""), public_dir)
    assert said.startswith("CatalogError")
    assert "cannot be written" in said
    reading = OPEN.format(", read_only=True") + "; print(catalog.queues()[0].name)"
    assert as_nobody(reading, public_dir) == "orders\n"


def test_a_directory_that_cannot_be_written_gets_no_catalog(public_dir: Path) -> None:
    public_dir.chmod(0o700)
    (public_dir / "catalog.sqlite").unlink()
    public_dir.chmod(0o555)
    said = as_nobody("Catalog.create(sys.argv[1], store_uuid=bytes(range(16)))", public_dir)
    assert said.startswith("CatalogUnavailable")
    assert "Permission denied" in said


def test_a_closed_catalog_says_so_and_may_be_closed_twice(catalog: Catalog) -> None:
    config = catalog.config
    catalog.close()
    catalog.close()
    for call in (catalog.queues, lambda: catalog.declare_queue("x"), lambda: config["x"]):
        with pytest.raises(StoreClosed):
            call()


def test_a_forked_child_is_refused_and_does_not_disturb_the_parent(catalog: Catalog) -> None:
    catalog.declare_queue("before")
    child = os.fork()
    if child == 0:
        try:
            for call in (catalog.queues, lambda: catalog.declare_queue("x")):
                with pytest.raises(StoreForked):
                    call()
            catalog.close()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert catalog.declare_queue("after")[0].id == 2


def test_many_threads_declare_at_once_and_every_id_is_given_once(catalog: Catalog) -> None:
    results: list[tuple[QueueRow, bool]] = []

    def declare(thread: int) -> None:
        for n in range(10):
            results.append(catalog.declare_queue("shared"))
            results.append(catalog.declare_queue(f"own {thread} {n}"))

    threads = [threading.Thread(target=declare, args=[i]) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    made = [row for row, new in results if new]
    assert sorted(row.id for row in made) == list(range(1, 82))
    assert len(results) == 160
    assert {row.id for row, _ in results} == {row.id for row in catalog.queues()}


def test_reading_sends_no_query_to_the_database(catalog: Catalog) -> None:
    fill(catalog)
    asked: list[str] = []
    sa.event.listen(catalog._engine, "before_cursor_execute", lambda *event: asked.append(event[2]))
    everything(catalog)
    catalog.queue("orders")
    catalog.exchange("market")
    catalog.declare_queue("dead")
    catalog.bind("rest", "dead")
    assert asked == []
    catalog.config["x"] = "y"
    assert len(asked) == 3, "the listener listens: begin, count, insert"


def test_importing_the_module_imports_no_database() -> None:
    code = (
        "import sys, logstore.catalog.catalog; print(sorted({'sqlalchemy', 'sqlite3', 'psycopg'} & set(sys.modules)))"
    )
    assert run_python(code).stdout == "[]\n"


# ---- A server


def test_impossible_options_are_refused_before_anything_is_touched(tmp_path: Path) -> None:
    for options in (
        {"schema": "shared"},
        {"connect": "no url"},
        {"connect": "mysql://host/db"},
        {"connect": "postgresql://host/db", "schema": "two words"},
    ):
        with pytest.raises(OptionError):
            Catalog.create(tmp_path, store_uuid=UUID, **options)
    with pytest.raises(OptionError, match="16 bytes"):
        Catalog.open(tmp_path, store_uuid=b"short")
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_does_not_answer_is_unavailable_and_no_password_is_shown(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, never listening: nobody else can answer there
        url = f"postgresql+psycopg://user:secret@127.0.0.1:{taken.getsockname()[1]}/db"
        for start in (Catalog.create, Catalog.open):
            with pytest.raises(CatalogUnavailable, match="cannot be reached") as caught:
                start(tmp_path, connect=url, store_uuid=UUID)
            assert "secret" not in str(caught.value)
            assert "\n" not in caught.value.message
    assert list(tmp_path.iterdir()) == []


def test_a_close_waits_for_a_change_that_another_thread_has_in_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite would lose its connection in the middle of a statement, and the process would crash."""
    catalog = Catalog.create(tmp_path, store_uuid=UUID)
    inside, closing_now, order = threading.Event(), threading.Event(), []

    def close() -> None:
        assert inside.wait(PATIENCE_S)
        catalog.close()
        order.append("closed")
        closing_now.set()

    def acquire(lock: Lock, *args: Any, **kwargs: Any) -> bool:
        if threading.current_thread() is closer:
            closing_now.set()  # and waits
        return RLock.acquire(lock, *args, **kwargs)

    def pause(*_: object) -> None:
        inside.set()
        assert closing_now.wait(PATIENCE_S)
        if "changed" not in order:
            order.append("changed")

    monkeypatch.setattr(Lock, "acquire", acquire, raising=False)
    sa.event.listen(catalog._engine, "before_cursor_execute", pause)
    closer = threading.Thread(target=close)
    closer.start()
    with catalog.changes():
        catalog.make_queues([WantedQueue("q", "{}", None)])
    closer.join(PATIENCE_S)
    assert order == ["changed", "closed"]
    with closing(Catalog.open(tmp_path, store_uuid=UUID)) as again:
        assert [row.name for row in again.queues()] == ["q"]
