"""The catalog on a real PostgreSQL server: separate from other stores, and correct after a loss of the connection."""

from __future__ import annotations

import json
import logging
import os
import shlex
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

import logstore
from kit.catalog_cases import CHANGES, OTHER_UUID, UUID, everything, fill, run_python
from kit.patience import PATIENCE_S, wait_until
from kit.postgres import PASSWORD, Server, Wire, fresh_schema
from logstore.catalog.catalog import Catalog
from logstore.errors import (
    CatalogError,
    CatalogMismatch,
    CatalogUnavailable,
    OptionError,
    StoreError,
)
from logstore.report import report
from logstore.report.page import page

pytestmark = pytest.mark.postgres


@pytest.fixture
def place(server: Server) -> dict[str, Any]:
    """The options for an unused schema."""
    return {"connect": server.url(), "schema": fresh_schema(), "store_uuid": UUID}


@pytest.fixture
def catalog(tmp_path: Path, place: dict[str, Any]) -> Iterator[Catalog]:
    with closing(Catalog.create(tmp_path, **place)) as made:
        fill(made)
        yield made


def on_server(directory: Path, place: dict[str, Any]) -> tuple[object, ...]:
    """What a reader of its own finds committed."""
    with closing(Catalog.open(directory, **place, read_only=True)) as witness:
        return everything(witness)


# ---- What was committed is there


def test_a_catalog_on_a_server_stores_the_same_rows_as_a_file(tmp_path: Path, place: dict[str, Any]) -> None:
    with pytest.raises(CatalogMismatch, match="empty"):
        Catalog.open(tmp_path, **place)
    with (
        closing(Catalog.create(tmp_path, **place)) as there,
        closing(Catalog.create(tmp_path, store_uuid=UUID)) as here,
    ):
        fill(there)
        fill(here)
        assert everything(there) == everything(here)
        for change in sorted(CHANGES, key=lambda name: name.startswith("delete")):
            CHANGES[change](there)
            CHANGES[change](here)
            assert on_server(tmp_path, place) == everything(there) == everything(here)


def test_a_commit_waits_for_the_disk_whatever_the_servers_setting(server: Server, catalog: Catalog) -> None:
    assert server.value("SHOW synchronous_commit") == "off"
    with catalog._transaction() as connection:
        assert connection.exec_driver_sql("SHOW synchronous_commit").scalar() == "on"


def test_text_of_any_encoding_is_returned_unchanged(tmp_path: Path, catalog: Catalog, place: dict[str, Any]) -> None:
    name = "ä" * 127 + "\n"
    catalog.declare_queue(name, arguments={"日本": "\0\ud800"})
    catalog.config["ключ"] = "'; DROP SCHEMA public; --%s :name"
    assert on_server(tmp_path, place) == everything(catalog)


def test_two_stores_cannot_have_one_schema(tmp_path: Path, catalog: Catalog, place: dict[str, Any]) -> None:
    before = everything(catalog)
    for start in (Catalog.create, Catalog.open):
        with pytest.raises(CatalogMismatch, match="belongs to the store 00010203"):
            start(tmp_path, **{**place, "store_uuid": OTHER_UUID})
    assert on_server(tmp_path, place) == before
    catalog.declare_queue("still ours")


def made_at_once(directory: Path, place: dict[str, Any], stores: int) -> list[object]:
    """Several stores create a catalog there at the same time; the result of each: its number, or the error's type."""
    ready = threading.Barrier(stores)
    became: list[object] = []

    def create(number: int) -> None:
        ready.wait()
        try:
            Catalog.create(directory, **{**place, "store_uuid": bytes([number]) * 16}).close()
            became.append(number)
        except StoreError as error:
            became.append(type(error))

    threads = [threading.Thread(target=create, args=[number]) for number in range(1, stores + 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return became


def test_one_of_several_stores_that_create_a_schema_at_the_same_time_gets_it(
    tmp_path: Path, place: dict[str, Any]
) -> None:
    for attempt in range(5):
        where = {**place, "schema": f"{place['schema']}_{attempt}"}
        became = made_at_once(tmp_path, where, 4)
        winners = [one for one in became if isinstance(one, int)]
        assert len(winners) == 1
        assert became.count(CatalogMismatch) == 3
        with closing(Catalog.open(tmp_path, **{**where, "store_uuid": bytes(winners) * 16})) as made:
            assert everything(made) == ([], [], [], {}, 1)


def test_a_schema_with_other_tables_is_refused_and_not_touched(
    tmp_path: Path, server: Server, place: dict[str, Any]
) -> None:
    schema = place["schema"]
    server.run(f"CREATE SCHEMA {schema}", f"CREATE TABLE {schema}.recipes (title text)")
    for start, reason in ((Catalog.create, "holds other tables"), (Catalog.open, "is empty")):
        with pytest.raises(CatalogMismatch, match=reason):
            start(tmp_path, **place)
    assert server.value(f"SELECT count(*) FROM pg_tables WHERE schemaname = '{schema}'") == 1


def test_a_reader_sees_all_tables_at_one_moment(tmp_path: Path, catalog: Catalog, place: dict[str, Any]) -> None:
    before = everything(catalog)
    slipped_in: list[object] = []

    def change(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if ".queues" in statement and not slipped_in:  # the reader has read `store`, and is about to read the rest
            slipped_in.append(True)
            catalog.declare_queue("new", dead_letter="dead")
            catalog.bind("rest", "new")

    sa.event.listen(sa.Engine, "before_cursor_execute", change)
    try:
        seen = on_server(tmp_path, place)
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", change)
    assert slipped_in
    assert seen == before
    assert on_server(tmp_path, place) == everything(catalog) != before


def test_the_second_writer_is_refused_for_ever(tmp_path: Path, catalog: Catalog, place: dict[str, Any]) -> None:
    with closing(Catalog.open(tmp_path, **place)) as second:
        assert second.declare_queue("from the second")[0].id == 3
        for _ in range(2):
            with pytest.raises(CatalogError, match="changed by another process"):
                catalog.declare_queue("from the first")
        assert second.declare_queue("more")[0].id == 4


# ---- Connections that break


def test_a_dropped_connection_is_restored_silently(server: Server, catalog: Catalog) -> None:
    for number in range(3):
        server.drop_sessions()
        catalog.declare_queue(f"after {number}")
    server.kill_a_session()
    catalog.declare_queue("after a crash of the server's own")
    assert [row.id for row in catalog.queues()] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("change", CHANGES)
def test_wherever_the_connection_breaks_nothing_is_changed_and_the_next_try_works(
    change: str, server: Server, catalog: Catalog, tmp_path: Path, place: dict[str, Any]
) -> None:
    before = everything(catalog)
    left = 0

    def cut(*_: object) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            server.drop_sessions()

    sa.event.listen(catalog._engine, "before_cursor_execute", cut)
    for n in range(1, 100):
        left = n
        try:
            CHANGES[change](catalog)
        except CatalogUnavailable as error:
            left = 0
            assert "\n" not in error.message
            assert everything(catalog) == on_server(tmp_path, place) == before
            assert catalog.settled, "no commit was on its way"
        else:
            break
    assert 3 <= n < 100, "the settings, the counting of the change, and the change itself"
    assert everything(catalog) == on_server(tmp_path, place) != before


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("how", ["before", "behind"])
def test_after_a_commit_without_an_answer_the_next_change_finds_its_outcome(
    change: str, how: str, wire: Wire, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, place: dict[str, Any]
) -> None:
    with closing(Catalog.create(tmp_path, **{**place, "connect": wire.url()})) as catalog:
        fill(catalog)
        before = everything(catalog)
        wire.cut_at(b"COMMIT", how)
        with pytest.raises(CatalogUnavailable) as caught:
            CHANGES[change](catalog)
        assert "\n" not in caught.value.message
        assert everything(catalog) == before, "nothing is believed that was not confirmed"
        assert not catalog.settled
        with closing(Catalog.create(tmp_path_factory.mktemp("twin"), store_uuid=UUID)) as twin:
            fill(twin)
            if how == "behind":
                CHANGES[change](twin)
            twin.declare_queue("afterwards")
            catalog.declare_queue("afterwards")
            assert everything(catalog) == everything(twin) == on_server(tmp_path, place)
        assert catalog.settled
        assert catalog.reloads == 1


@pytest.mark.parametrize("next_step", ["change", "open"])
def test_a_commit_in_progress_on_the_server_is_awaited(
    next_step: str, server: Server, wire: Wire, tmp_path: Path, place: dict[str, Any]
) -> None:
    with closing(Catalog.create(tmp_path, **{**place, "connect": wire.url()})) as catalog:
        fill(catalog)
        wire.cut_at(b"COMMIT", "late")
        with pytest.raises(CatalogUnavailable):
            catalog.delete_queue(2)
        found: list[object] = []

        def go_on() -> None:
            if next_step == "change":
                catalog.declare_queue("afterwards")
                found.append([row.name for row in catalog.queues()])
            else:
                with closing(Catalog.open(tmp_path, **place)) as again:
                    again.declare_queue("afterwards")
                    found.append([row.name for row in again.queues()])

        going_on = threading.Thread(target=go_on)
        going_on.start()
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        wait_until(lambda: server.value(waiting), "the next step waits for the row that the commit holds")
        assert not found
        wire.go.set()
        going_on.join(PATIENCE_S)
        assert found == [["dead", "afterwards"]]


def test_after_a_kill_and_restart_of_the_server_the_catalog_has_everything_and_works(
    server: Server, catalog: Catalog, tmp_path: Path, place: dict[str, Any]
) -> None:
    before = everything(catalog)
    server.kill()
    for _ in range(2):
        with pytest.raises(CatalogUnavailable, match="cannot be reached"):
            catalog.declare_queue("nobody hears it")
    assert everything(catalog) == before, "what is read comes from memory"
    server.start()
    assert catalog.declare_queue("now")[0].id == 3
    assert on_server(tmp_path, place) == everything(catalog)


def test_a_permanent_lock_is_unavailable(server: Server, tmp_path: Path, place: dict[str, Any]) -> None:
    with closing(Catalog.create(tmp_path, **place, timeout_s=2)) as catalog, server.session() as other:
        with other.transaction():
            other.execute(f"LOCK TABLE {place['schema']}.store")
            with pytest.raises(CatalogUnavailable, match="locked by another session"):
                catalog.declare_queue("blocked")
            assert catalog.queues() == []
        assert catalog.declare_queue("free")[0].id == 1


@pytest.mark.parametrize("setting", ["lock_timeout", "statement_timeout"])
def test_a_timeout_in_the_url_stands(setting: str, server: Server, tmp_path: Path, place: dict[str, Any]) -> None:
    url = server.url(options=f"-c {setting}=1234ms")
    with (
        closing(Catalog.create(tmp_path, **{**place, "connect": url})) as catalog,
        catalog._transaction() as connection,
    ):
        assert connection.exec_driver_sql(f"SHOW {setting}").scalar() == "1234ms"


# ---- A server that has stopped: the kernel acknowledges for it, and nobody answers


@pytest.fixture
def frozen(server: Server) -> Iterator[Callable[[], None]]:
    """Suspends every process of the server when called; they are resumed after the test."""
    yield server.freeze
    server.thaw()


def test_a_silent_server_is_unavailable_and_nothing_is_changed(
    server: Server, tmp_path: Path, place: dict[str, Any], frozen: Callable[[], None]
) -> None:
    with closing(Catalog.create(tmp_path, **place, timeout_s=2)) as catalog:
        fill(catalog)
        before = everything(catalog)
        frozen()
        for change in ("declare_queue", "unbind"):
            with pytest.raises(CatalogUnavailable, match="cannot be reached"):
                CHANGES[change](catalog)
        assert everything(catalog) == before
        server.thaw()
        catalog.declare_queue("afterwards")
        assert on_server(tmp_path, place) == everything(catalog)


def test_a_commit_whose_answer_is_overdue_is_read_from_the_server_before_the_next_change(
    server: Server, tmp_path: Path, place: dict[str, Any], frozen: Callable[[], None]
) -> None:
    with closing(Catalog.create(tmp_path, **place, timeout_s=2)) as catalog:
        fill(catalog)
        sa.event.listen(catalog._engine, "commit", lambda _: frozen(), once=True)
        with pytest.raises(CatalogUnavailable, match="no answer in 2 s"):
            catalog.declare_queue("half")
        assert not catalog.settled
        server.thaw()
        assert not catalog.declare_queue("half")[1], "the server had heard the commit"
        assert catalog.reloads == 1
        assert on_server(tmp_path, place) == everything(catalog)


def test_a_forked_child_does_not_disturb_the_parents_session(
    server: Server, tmp_path: Path, place: dict[str, Any]
) -> None:
    code = (
        "import os, sys; from logstore.catalog.catalog import Catalog; from logstore.errors import StoreForked\n"
        "catalog = Catalog.create(sys.argv[1], connect=sys.argv[2], schema=sys.argv[3], store_uuid=bytes(range(16)))\n"
        "def session():\n"
        "    with catalog._transaction() as c: return c.exec_driver_sql('SELECT pg_backend_pid()').scalar()\n"
        "before, child = session(), os.fork()\n"
        "if child == 0:\n"
        "    try: catalog.queues()\n"
        "    except StoreForked: catalog.close(); sys.exit(0)\n"
        "    sys.exit(1)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "assert session() == before\n"
        "print(catalog.declare_queue('after')[0].id)\n"
    )
    done = run_python(code, tmp_path, place["connect"], place["schema"])
    assert (done.stdout, done.stderr) == ("1\n", "")


# ---- What cannot work is said in one sentence, without the password


def refused(kind: type[StoreError], reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, **where: Any) -> str:
    """Check that it is neither created nor opened; the error, after a check that neither it nor a log has a secret."""
    said = ""
    with caplog.at_level(logging.DEBUG):
        for start in (Catalog.create, Catalog.open):
            with pytest.raises(kind, match=reason) as caught:
                start(tmp_path, **{"store_uuid": UUID, **where})
            said = caught.value.message
            assert "\n" not in said
            everything_said = "".join(traceback.format_exception(caught.value)) + caplog.text
            for secret in (PASSWORD, "s3cret", "hidden"):
                assert secret not in everything_said
    assert list(tmp_path.iterdir()) == []
    return said


def test_a_wrong_password_role_or_database_is_unavailable(
    server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for url, reason in (
        (server.url(password="hidden"), "password authentication failed"),
        (server.url(password=None) + "&password=hidden", "password authentication failed"),
        (server.url("stranger"), "authentication failed"),
        (server.url().replace("/postgres?", "/nowhere?"), 'database "nowhere" does not exist'),
        (server.url(sslmode="nonsense"), "invalid sslmode"),
    ):
        said = refused(CatalogUnavailable, reason, tmp_path, caplog, connect=url)
        assert "check the server" in said


def test_a_missing_server_is_unavailable(server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for query in ({"host": str(tmp_path)}, {"host": "127.0.0.1", "port": "1"}, {"host": "nobody.invalid"}):
        refused(CatalogUnavailable, "cannot be reached", tmp_path, caplog, connect=server.url(**query))


def test_an_invalid_url_is_refused(server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for url in ("hidden", "postgresql://me:hidden@host:port/db", "", "mysql://me:hidden@host/db"):
        refused(OptionError, "connect", tmp_path, caplog, connect=url)
    refused(CatalogError, "invalid connection option", tmp_path, caplog, connect=server.url(nonsense="1"))
    for schema in ("", "two words", "x" * 64, "a.b", "ä"):
        refused(OptionError, "is not a schema name", tmp_path, caplog, connect=server.url(), schema=schema)


def grant(server: Server, role: str, *statements: str) -> str:
    """A role with exactly these rights; its URL."""
    server.run(f"DROP ROLE IF EXISTS {role}", f"CREATE ROLE {role} LOGIN PASSWORD 's3cret'", *statements)
    return server.url(role, "s3cret")


def test_a_role_without_rights_gets_a_clear_error(
    server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture, place: dict[str, Any]
) -> None:
    stranger = grant(server, f"stranger_{place['schema']}")
    with pytest.raises(CatalogError, match="this role may not use.*permission denied") as caught:
        Catalog.create(tmp_path, **{**place, "connect": stranger})
    assert "s3cret" not in "".join(traceback.format_exception(caught.value))
    assert server.value(f"SELECT count(*) FROM pg_namespace WHERE nspname = '{place['schema']}'") == 0
    Catalog.create(tmp_path, **place).close()
    refused(CatalogError, "this role may not use", tmp_path, caplog, connect=stranger, schema=place["schema"])


@pytest.mark.parametrize("how", ["grants", "setting"])
def test_a_read_only_role_can_read_and_cannot_open_for_writing(
    how: str, server: Server, catalog: Catalog, tmp_path: Path, place: dict[str, Any]
) -> None:
    schema, role = place["schema"], f"reader_{place['schema']}"
    rights = "SELECT" if how == "grants" else "ALL"
    reader = {
        **place,
        "connect": grant(
            server,
            role,
            f"GRANT USAGE ON SCHEMA {schema} TO {role}",
            f"GRANT {rights} ON ALL TABLES IN SCHEMA {schema} TO {role}",
        ),
    }
    if how == "setting":
        server.run(f"ALTER ROLE {role} SET default_transaction_read_only = on")
    assert on_server(tmp_path, reader) == everything(catalog)
    with pytest.raises(CatalogError, match="this role may not use" if how == "grants" else "is read-only"):
        Catalog.open(tmp_path, **reader)
    catalog.declare_queue("the writer goes on")


def test_dropped_tables_are_one_sentence(server: Server, catalog: Catalog, place: dict[str, Any]) -> None:
    before = everything(catalog)
    server.run(f"DROP SCHEMA {place['schema']} CASCADE")
    for _ in range(2):
        with pytest.raises(CatalogError, match="could not be used.*does not exist") as caught:
            catalog.declare_queue("new")
        assert "\n" not in caught.value.message
    assert everything(catalog) == before


def test_losing_the_server_prints_no_output_of_the_driver(
    server: Server, tmp_path: Path, place: dict[str, Any]
) -> None:
    code = (
        "import os, sys; from logstore.catalog.catalog import Catalog; from logstore.errors import CatalogUnavailable\n"
        "catalog = Catalog.create(sys.argv[1], connect=sys.argv[2], schema=sys.argv[3], store_uuid=bytes(range(16)))\n"
        "with catalog._transaction() as c: c.exec_driver_sql('SELECT 1')\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "try: catalog.declare_queue('lost')\n"
        "except CatalogUnavailable as error: print(error)\n"
        "catalog.close()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, tmp_path, place["connect"], place["schema"]],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        server.kill()
        said, complaints = process.communicate("go\n", timeout=PATIENCE_S)
    assert said.startswith("the catalog ")
    assert said.count("\n") == 1
    assert complaints == ""


# ---- Commands for an operator


@pytest.mark.parametrize("is_secret", [False, True], ids=["plain", "with a password"])
def test_the_commands_of_a_report_name_the_server_without_its_password(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_secret: bool
) -> None:
    path, schema = tmp_path / "store", fresh_schema()
    place = {"connect": server.url(), "catalog": schema}
    with logstore.open(path, **place) as store:
        doubt = store.begin(xid=logstore.Xid(-7, b"order", b""))
        store.publish(store.declare_queue("in"), b"x", transaction=doubt)
        doubt.end()
        doubt.prepare()
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    found = report(path, connect=server.url(password=PASSWORD if is_secret else None), catalog=schema)
    assert PASSWORD not in page(found)
    assert PASSWORD not in json.dumps(found)
    assert any("LOGSTORE_CONNECT" in said for said in found["not_known"]) == is_secret
    rollback = found["answers"][0]["commands"][0]
    assert shlex.split(rollback)[3:7:3] == ["rollback", "--catalog"]
    done = subprocess.run(
        [sys.executable, "-m", "logstore", *shlex.split(rollback)[1:]], check=False, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert report(path, **place)["answers"] == []
