"""``logstore sql``: a store or an export in SQL, with the same answers, and nothing changed."""

from __future__ import annotations

import csv
import importlib
import io
import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import logstore
from kit.command import fine, run, told
from kit.exported import SEGMENT, damage
from kit.stores import ROOT
from logstore.core import extras
from logstore.holds import list_holds

if TYPE_CHECKING:
    pass

pytest.importorskip("duckdb", reason="the extra sql is not installed")

RECORDS, ENDED, LIVE = 1000, 400, 600


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sql") / "it's a store"
    with logstore.open(path, segment_size=SEGMENT) as made:
        rejected = made.declare_queue("rejected")
        orders = made.declare_queue("orders", dead_letter=rejected.name)
        made.publish_many(orders, [b"an order"] * RECORDS, headers=[b"head"] * RECORDS)
        for delivery in orders.acquire(ENDED):
            delivery.accept()
        (delivery,) = orders.acquire(1)
        delivery.reject()
        with made.transaction() as tx:
            made.publish([orders, rejected], b"in a transaction", transaction=tx)
        made.begin().rollback()
    return path


@pytest.fixture(scope="module")
def export(store: Path) -> Path:
    target = store.parent / "target"
    assert run("export", store, target, "--body", "4").returncode == 0
    return target


def rows(directory: Path, query: str, *options: object) -> list[list[Any]]:
    found: list[list[Any]] = told("sql", directory, query, *options)["rows"]
    return found


QUERIES = (
    "SELECT type, count(*), sum(record_bytes) FROM records GROUP BY type ORDER BY type",
    "SELECT lsn FROM records WHERE type = 'MESSAGE_DEQUEUE' AND queue = 'orders' ORDER BY lsn",
    "SELECT lsn, prev, outcome, queue_ids, header FROM records WHERE lsn % 7 = 0 ORDER BY lsn",
    "SELECT outcome, reason, count(*) FROM messages GROUP BY ALL ORDER BY ALL",
    "SELECT p.queue, count(*) FROM open, unnest(places) AS u(p) WHERE p.dequeue_lsn IS NULL GROUP BY ALL ORDER BY ALL",
    "SELECT * EXCLUDE (first_time, last_time, prepare_time) FROM transactions ORDER BY id",
    "SELECT count(*) FROM messages m JOIN records r ON r.id = m.id JOIN records s USING (lsn)",
    "SELECT date_trunc('day', max(time)), typeof(max(time)) FROM records",
    "SELECT count(properties), count(headers), count(*) FROM records",
)


@pytest.mark.parametrize("query", QUERIES)
def test_a_store_and_its_export_give_the_same_answer(store: Path, export: Path, query: str) -> None:
    found = rows(store, query)
    assert found == rows(export, query)
    assert found


def test_the_views_have_what_the_store_did(store: Path) -> None:
    counts = dict(rows(store, "SELECT type, count(*) FROM records GROUP BY type"))
    assert (counts["MESSAGE_START"], counts["MESSAGE_DEQUEUE"], counts["MESSAGE_MOVE"]) == (RECORDS + 1, ENDED, 1)
    assert rows(store, "SELECT count(*), min(outcome) FROM messages") == [[ENDED, "dequeued"]]
    assert rows(store, "SELECT count(*) FROM open") == [[RECORDS - ENDED + 1]]
    (published, nothing) = rows(
        store, "SELECT outcome, enqueues, dequeues, len(queue_ids) FROM transactions ORDER BY id"
    )
    assert published == ["committed", 1, 0, 1]
    assert nothing == ["rolled_back", 0, 0, None]


def test_properties_of_a_brokers_messages_are_columns(tmp_path: Path) -> None:
    from pamqp import commands

    from logstore.broker.headers import encode_header

    with logstore.open(tmp_path / "store") as made:
        properties = commands.Basic.Properties(app_id="a", headers={"order": 17})
        header = encode_header(b"\x06events\x04paid", properties.marshal(), 1, None)
        made.publish(made.declare_queue("q"), b"x", header=header)
    query = "SELECT properties.app_id, headers['order'] FROM records WHERE properties.exchange = 'events'"
    assert rows(tmp_path / "store", query) == [["a", "17"]]


def test_a_body_is_there_where_it_was_asked_for(store: Path, export: Path) -> None:
    query = "SELECT DISTINCT body FROM records WHERE body IS NOT NULL ORDER BY body LIMIT 1"
    assert rows(store, query, "--body", "4") == rows(export, query) == [["an o"]]
    done = run("sql", store, query)
    assert (done.returncode, done.stdout) == (2, "")
    assert 'Referenced column "body" not found' in done.stderr
    done = run("sql", export, query, "--body", "4")
    assert (done.returncode, done.stdout) == (2, "")
    assert "it has the bodies with which it was made" in done.stderr


def test_each_form_of_the_result_has_all_rows_and_names(store: Path) -> None:
    query = "SELECT type, lsn, time, header, tx_id FROM records WHERE type = 'MESSAGE_START' ORDER BY lsn"
    document = told("sql", store, query)
    assert document["store"] == str(store)
    assert document["columns"][1:3] == [
        {"name": "lsn", "type": "int64"},
        {"name": "time", "type": "timestamp[us, tz=UTC]"},
    ]
    listed = list(csv.reader(io.StringIO(fine("sql", store, query, "--csv"))))
    assert listed[0] == ["type", "lsn", "time", "header", "tx_id"]
    assert listed[1:] == [["" if cell is None else str(cell) for cell in row] for row in document["rows"]]
    assert len(listed) == RECORDS + 2
    assert datetime.fromisoformat(listed[1][2]).tzinfo == UTC
    table = fine("sql", store, query).splitlines()
    assert table[0].split() == listed[0]
    assert len(table) == RECORDS + 3
    assert fine("sql", store, "SELECT 'a\n\x1b[31mb' AS red").splitlines()[-1] == "a\\n\\x1b[31mb"


def test_a_query_from_stdin_may_have_several_statements(store: Path) -> None:
    text = "CREATE TABLE kept AS SELECT lsn FROM records; SELECT count(*) = (SELECT count(*) FROM records) FROM kept;"
    assert json.loads(run("sql", store, "--json", text=text).stdout)["rows"] == [[True]]
    done = run("sql", store, text=" -- nothing\n")
    assert (done.returncode, done.stdout) == (2, "")
    assert "the query has no statement" in done.stderr


def test_a_store_that_is_in_use_is_read_and_its_hold_is_given_back(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with logstore.open(path, segment_size=SEGMENT) as made:
        queue = made.declare_queue("q")
        ids = made.publish_many(queue, [bytes(20)] * 60)
        assert rows(path, "SELECT count(*) FROM open") == [[60]]
        assert run("sql", path, "SELEC").returncode == 2
        assert list_holds(path) == []
        made.dequeue_many(list(ids), queue)
        assert rows(path, "SELECT (SELECT count(*) FROM open), (SELECT count(*) FROM messages)") == [[0, 60]]


def test_the_queries_of_the_operators_page_run(store: Path) -> None:
    (queries,) = re.findall(r"```sql\n(.*?)```", (ROOT / "docs/operations.md").read_text(), re.DOTALL)
    oldest, rejected, undecided = re.sub(r"^--.*\n", "", queries, flags=re.MULTILINE).split(";")[:3]
    assert len(rows(store, oldest)) == 10
    assert rows(store, rejected) == [[None, 1]]
    assert rows(store, undecided) == []


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("SELEC 1", 'syntax error at or near "SELEC"'),
        ("SELECT nothing FROM records", 'Referenced column "nothing" not found'),
        ("SELECT * FROM message", "Table with name message does not exist"),
        ("INSERT INTO records VALUES (1)", "records"),
        ("SELECT lsn / 0, CAST('x' AS INTEGER) FROM records", "Could not convert string"),
    ],
)
def test_what_sql_refuses_is_said_in_one_line_and_is_misuse(store: Path, query: str, said: str) -> None:
    done = run("sql", store, query)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_options_that_contradict_each_other_are_misuse(store: Path) -> None:
    done = run("sql", store, "SELECT 1", "--csv", "--json")
    assert done.returncode == 2
    assert "--csv and --json are two forms" in done.stderr


def test_damage_is_told_as_the_store_tells_it(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with logstore.open(path, segment_size=SEGMENT) as made:
        made.publish_many(made.declare_queue("q"), [bytes(20_000)] * 60)
    segments = sorted(file for file in path.iterdir() if file.suffix == ".seg")
    damage(segments[0])
    done = run("sql", path, "SELECT count(*) FROM records", "--csv")
    assert done.returncode == 3
    assert "damaged" in done.stderr
    assert "logstore verify" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_directory_that_is_neither_a_store_nor_an_export_is_refused(tmp_path: Path) -> None:
    done = run("sql", tmp_path, "SELECT 1")
    assert done.returncode == 3
    assert "it is not a store" in done.stderr


@pytest.mark.parametrize("missing", ["duckdb", "numpy", "pyarrow"])
def test_without_a_library_the_command_says_which_extra_has_it(
    store: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    def late(name: str) -> object:
        if name.partition(".")[0] == missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=missing)
        return importlib.import_module(name)

    monkeypatch.setattr(extras, "late", late)
    done = run("sql", store, "SELECT 1")
    assert done.returncode == 3
    assert f"this needs the Python package {missing}: install it" in done.stderr
    assert done.stderr.count("\n") == 1
