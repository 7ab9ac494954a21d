"""A store whose catalog is on a PostgreSQL server: messages do not depend on the server, and changes are atomic."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pika
import pytest
import sqlalchemy as sa

import logstore
import logstore.inspect
from kit.patience import PATIENCE_S
from kit.postgres import PASSWORD, Server, Wire, fresh_schema
from kit.serve_process import serving
from kit.stores import ROOT, contents
from logstore import cli
from logstore.catalog.catalog import Catalog
from logstore.errors import CatalogMismatch, CatalogUnavailable, OptionError, QueueExists, UnknownQueue

pytestmark = pytest.mark.postgres

Open = Callable[..., logstore.MessageStore]


@pytest.fixture
def place(server: Server) -> dict[str, str]:
    """The options for an unused schema."""
    return {"connect": server.url(), "catalog": fresh_schema()}


def rows(path: Path, place: dict[str, str]) -> list[str]:
    """The queues that the server has committed."""
    uuid = logstore.inspect.Reader(path).info.uuid.bytes
    opened = Catalog.open(path, connect=place["connect"], schema=place["catalog"], store_uuid=uuid, read_only=True)
    with closing(opened):
        return [row.name for row in opened.queues()]


# ---- Stores on one server


def test_a_store_with_its_catalog_on_a_server_works_like_any_other(
    open_store: Open, store_dir: Path, place: dict[str, str]
) -> None:
    with open_store(**place) as store:
        orders = store.declare_queue("orders", arguments={"x": 1}, dead_letter=store.declare_queue("dead"))
        store.declare_exchange("market", type="topic", alternate=store.declare_exchange("rest").name)
        store.bind("market", orders, "eu.#")
        store.bind("market", orders, "eu.#", arguments={"match": "all"})
        store.config["colour"] = "blue"
        store.publish(orders, b"one")
    assert not (store_dir / "catalog.sqlite").exists()
    with open_store(**place) as store:
        assert contents(store.queue("orders")) == [b"one"]
        assert store.queue("orders").dead_letter == "dead"
        assert store.exchange("market").alternate == "rest"
        assert [binding.arguments for binding in store.bindings()] == [{}, {"match": "all"}]
        assert dict(store.config) == {"colour": "blue"}


def test_stores_on_one_server_are_independent(tmp_path: Path, open_store: Open, server: Server) -> None:
    stores = [open_store(tmp_path / str(n), connect=server.url(), catalog=f"apart_{n}") for n in range(4)]

    def use(number: int) -> None:
        store = stores[number]
        store.declare_exchange("market")
        for n in range(number + 3):
            queue = store.declare_queue(f"queue {n}")
            store.bind("market", queue, str(number))
            store.publish(queue, f"{number} {n}".encode())

    threads = [threading.Thread(target=use, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, store in enumerate(stores):
        assert [queue.id for queue in store.queues()] == list(range(1, number + 4))
        assert {binding.key for binding in store.bindings()} == {str(number)}
        assert [contents(queue) for queue in store.queues()] == [[f"{number} {n}".encode()] for n in range(number + 3)]


def test_a_second_store_on_the_schema_is_refused_and_can_be_made_elsewhere(
    tmp_path: Path, open_store: Open, place: dict[str, str], server: Server
) -> None:
    first = open_store(tmp_path / "first", **place)
    first.declare_queue("orders")
    for _ in range(2):
        with pytest.raises(CatalogMismatch, match="belongs to the store"):
            open_store(tmp_path / "second", **place)
    with open_store(tmp_path / "second", connect=server.url(), catalog=place["catalog"] + "_b") as second:
        assert second.queues() == []
    assert [queue.name for queue in first.queues()] == ["orders"]


def test_a_store_is_not_opened_without_the_catalog_that_it_was_made_with(
    open_store: Open, store_dir: Path, place: dict[str, str]
) -> None:
    with open_store(**place) as store:
        store.publish(store.declare_queue("orders"), b"one")
    before = {path.name: path.stat().st_mtime_ns for path in store_dir.glob("*.seg")}
    with pytest.raises(CatalogMismatch, match=r"is missing.*name the server"):
        open_store()
    with pytest.raises(CatalogMismatch, match=r"is empty.*name the right catalog"):
        open_store(connect=place["connect"], catalog="another")
    assert {path.name: path.stat().st_mtime_ns for path in store_dir.glob("*.seg")} == before
    with open_store(**place) as store:
        assert contents(store.queue("orders")) == [b"one"]


# ---- The server goes and comes back


def test_messages_work_while_the_server_is_away_and_changes_as_soon_as_it_is_back(
    open_store: Open, server: Server, place: dict[str, str]
) -> None:
    store = open_store(**place)
    orders = store.declare_queue("orders")
    store.publish(orders, b"before")
    server.kill()
    changes: list[Callable[[], object]] = [
        lambda: store.declare_queue("new"),
        lambda: store.delete_queue("orders"),
        lambda: store.declare_exchange("market"),
        lambda: store.config.update(a="b"),
    ]
    for change in changes:
        with pytest.raises(CatalogUnavailable, match="cannot be reached"):
            change()
    with store.transaction() as transaction:
        store.publish(orders, b"meanwhile", transaction=transaction)
    [delivery] = store.queue("orders").acquire(1)
    delivery.accept()
    assert contents(orders) == [b"meanwhile"]
    assert store.queues() == [orders]
    server.start()
    store.declare_exchange("market")
    store.bind("market", store.declare_queue("new"), "k")
    server.drop_sessions()
    store.delete_queue("orders")
    assert [queue.name for queue in store.queues()] == ["new"]
    store.close()
    with open_store(**place) as store:
        assert [queue.name for queue in store.queues()] == ["new"]
        assert store.recovery.messages == 0


@pytest.mark.parametrize("moment", ["before_cursor_execute", "commit"])
def test_existing_queues_are_found_in_memory_while_another_threads_change_hangs(
    moment: str, open_store: Open, place: dict[str, str]
) -> None:
    store = open_store(**place)
    dead = store.declare_queue("dead")
    orders = store.declare_queue("orders", arguments={"a": 1}, dead_letter=dead)
    market = store.declare_exchange("market", type="topic")
    store.bind("market", orders, "k")
    hangs, goes_on = threading.Event(), threading.Event()

    def hang(*_: object) -> None:
        hangs.set()
        assert goes_on.wait(60)

    assert store._catalog is not None
    sa.event.listen(store._catalog._engine, moment, hang, once=True)
    changing = threading.Thread(target=store.declare_queue, args=["new"])
    changing.start()
    try:
        assert hangs.wait(60)
        assert store.declare_queue("orders", arguments={"a": 1}, dead_letter="dead") is orders
        with pytest.raises(QueueExists):
            store.declare_queue("orders")
        assert store.declare_exchange("market", type="topic") == market
        store.bind(market, "orders", "k")
    finally:
        goes_on.set()
        changing.join(60)
    assert store.queue("new").id == 3


@pytest.mark.parametrize("committed", [False, True])
def test_a_queue_whose_deletion_got_no_answer_refuses_messages_until_the_outcome_is_known(
    committed: bool, open_store: Open, server: Server, wire: Wire, place: dict[str, str]
) -> None:
    store = open_store(**{**place, "connect": wire.url()})
    orders, other = store.declare_queue("orders"), store.declare_queue("other")
    store.publish([orders, other], b"on both")
    store.publish(orders, b"one")
    wire.cut_at(b"COMMIT", "behind" if committed else "before", then=server.kill)
    with pytest.raises(CatalogUnavailable):
        store.delete_queue(orders)
    for queue in (orders, "orders"):
        with pytest.raises(CatalogUnavailable, match="it is unknown whether queue 'orders' was deleted"):
            store.publish(queue, b"lost by the next open")
    store.publish(other, b"others are not in question")
    assert orders.depth == 2
    assert store.queues() == [orders, other]
    server.start()
    if committed:
        with pytest.raises(UnknownQueue):
            store.publish(orders, b"too late")
        assert store.queues() == [other]
        assert store.declare_queue("orders").id == 3
    else:
        store.publish(orders, b"two")
        assert contents(orders) == [b"on both", b"one", b"two"]
    store.close()
    with open_store(**place) as again:
        assert contents(again.queue("orders")) == ([] if committed else [b"on both", b"one", b"two"])
        assert contents(again.queue("other")) == [b"on both", b"others are not in question"]
        assert again.recovery.queues_dropped == 0


@pytest.mark.parametrize("committed", [False, True])
@pytest.mark.parametrize("looked_for", ["queue", "queues", "declare_queue"])
def test_a_queue_whose_declaration_got_no_answer_exists_if_the_server_has_it(
    looked_for: str, committed: bool, open_store: Open, store_dir: Path, wire: Wire, place: dict[str, str]
) -> None:
    store = open_store(**{**place, "connect": wire.url()})
    store.declare_queue("old")
    wire.cut_at(b"COMMIT", "behind" if committed else "before")
    with pytest.raises(CatalogUnavailable):
        store.declare_queue("new", arguments={"a": 1})
    if looked_for == "queue" and not committed:
        with pytest.raises(UnknownQueue):
            store.queue("new")
    elif looked_for == "queue":
        assert store.queue("new").arguments == {"a": 1}
    elif looked_for == "declare_queue":
        assert store.declare_queue("new", arguments={"a": 1}).id == 2
    else:
        store.config["a"] = "b"  # any change finds out
        assert [queue.name for queue in store.queues()] == ["old", *(["new"] if committed else [])]
    queue = store.declare_queue("new", arguments={"a": 1})
    store.publish(queue, b"one")
    store.close()
    with open_store(**place) as again:
        assert contents(again.queue("new")) == [b"one"]
    assert rows(store_dir, place) == ["old", "new"]


def test_a_store_whose_creation_lost_the_server_is_finished_under_the_same_uuid(
    open_store: Open, store_dir: Path, wire: Wire, place: dict[str, str]
) -> None:
    wire.cut_at(b"COMMIT", "behind")
    with pytest.raises(CatalogUnavailable):
        open_store(**{**place, "connect": wire.url()})
    assert not (store_dir / "META").exists()
    with open_store(**place) as store:
        assert store.recovery.created
        store.publish(store.declare_queue("orders"), b"one")
    assert rows(store_dir, place) == ["orders"]


def test_a_deletion_without_an_answer_is_finished_by_the_next_open_if_the_process_dies_before_asking(
    open_store: Open, store_dir: Path, wire: Wire, place: dict[str, str]
) -> None:
    code = (
        "import logstore, os, signal, sys\n"
        "store = logstore.open(sys.argv[1], connect=sys.argv[2], catalog=sys.argv[3])\n"
        "queues = [store.declare_queue(name) for name in ('gone', 'kept')]\n"
        "store.publish(queues, b'on both'); store.publish('gone', b'there alone')\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "try: store.delete_queue('gone')\n"
        "except logstore.CatalogUnavailable: os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, store_dir, wire.url(), place["catalog"]],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        wire.cut_at(b"COMMIT", "behind")
        process.communicate("go\n", timeout=PATIENCE_S)
    assert process.returncode == -signal.SIGKILL
    for dropped in (1, 0):
        with open_store(**place) as store:
            assert (store.recovery.queues_dropped, store.recovery.places_dropped) == (dropped, 2 * dropped)
            assert [queue.name for queue in store.queues()] == ["kept"]
            assert contents(store.queue("kept")) == [b"on both"]


def test_declarations_and_messages_of_a_killed_process_survive(
    open_store: Open, store_dir: Path, place: dict[str, str]
) -> None:
    code = (
        "import logstore, os, signal, sys\n"
        "store = logstore.open(sys.argv[1], connect=sys.argv[2], catalog=sys.argv[3])\n"
        "store.publish(store.declare_queue('orders'), b'one'); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, store_dir, place["connect"], place["catalog"]],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    with open_store(**place) as store:
        assert contents(store.queue("orders")) == [b"one"]


# ---- Commands

READERS = (["info"], ["queues"], ["verify"], ["recover", "--dry-run"], ["recover"])


def told(capfd: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    status = cli.run([str(one) for one in arguments])
    return (status, *capfd.readouterr())


@pytest.mark.parametrize("command", READERS, ids=" ".join)
@pytest.mark.parametrize("how", ["flags", "environment"])
def test_every_command_takes_the_catalogs_place_from_flags_or_the_environment(
    how: str,
    command: list[str],
    open_store: Open,
    store_dir: Path,
    place: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    with open_store(**place) as store:
        store.publish(store.declare_queue("orders"), b"one")
    capfd.readouterr()
    status, _, complaint = told(capfd, *command, store_dir, "--json")
    assert status == (1 if command == ["verify"] else 3)
    assert "name the server" in complaint
    flags = []
    for name in ("connect", "catalog"):
        if how == "flags":
            flags += [f"--{name}", place[name]]
        else:
            monkeypatch.setenv(f"LOGSTORE_{name.upper()}", place[name])
    status, said, complaint = told(capfd, *command, store_dir, *flags, "--json")
    assert (status, complaint) == (0, "")
    assert json.loads(said)["store"] == str(store_dir)
    if command == ["queues"]:
        assert [(row["name"], row["depth"]) for row in json.loads(said)["queues"]] == [("orders", 1)]


def test_commands_that_change_something_find_the_catalog_too(
    open_store: Open,
    store_dir: Path,
    place: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    with open_store(**place) as store:
        queue = store.declare_queue("orders")
        store.publish(queue, b"one")
        transaction = store.begin(logstore.Xid(1, b"g"))
        store.publish(queue, b"two", transaction=transaction)
        transaction.end()
        transaction.prepare()
    monkeypatch.setenv("LOGSTORE_CONNECT", place["connect"])
    monkeypatch.setenv("LOGSTORE_CATALOG", place["catalog"])
    for command, depth in (
        (("purge", store_dir, "orders"), 0),
        (("in-doubt", store_dir, "list"), 0),
        (("in-doubt", store_dir, "commit", "1:67:"), 1),
    ):
        status, _, complaint = told(capfd, *command)
        assert (status, complaint) == (0, ""), command
        [row] = json.loads(told(capfd, "queues", store_dir, "--json")[1])["queues"]
        assert row["depth"] == depth
    with open_store(**place) as store:
        assert contents(store.queue("orders")) == [b"two"]


def test_a_catalog_on_a_server_is_repaired_there_and_a_dry_run_rolls_back(
    open_store: Open,
    store_dir: Path,
    place: dict[str, str],
    capfd: pytest.CaptureFixture[str],
) -> None:
    options = ("--connect", place["connect"], "--catalog", place["catalog"], "--json")
    with open_store(**place) as store:
        store.publish(store.declare_queue("orders"), b"kept")
    engine = sa.create_engine(place["connect"])
    with engine.begin() as connection:
        connection.execute(sa.text(f'UPDATE "{place["catalog"]}".store SET next_queue_id = 1'))
    engine.dispose()
    for more in (("--dry-run",), ("--dry-run",), ()):
        status, said, complaint = told(capfd, "repair-catalog", store_dir, *options, *more)
        assert (status, complaint) == (0, "")
        assert json.loads(said)["changes"] == ["the next queue id is set to 2: it was 1, and queue id 1 is in use"]
    assert json.loads(told(capfd, "repair-catalog", store_dir, *options)[1])["changes"] == []
    with open_store(**place) as store:
        assert contents(store.queue("orders")) == [b"kept"]


@pytest.mark.parametrize("command", READERS, ids=" ".join)
def test_a_command_that_cannot_reach_the_server_says_so_in_one_line_without_the_password(
    command: list[str],
    open_store: Open,
    store_dir: Path,
    server: Server,
    place: dict[str, str],
    capfd: pytest.CaptureFixture[str],
) -> None:
    with open_store(**place) as store:
        store.declare_queue("orders")
    capfd.readouterr()
    for url in (server.url(port="1"), server.url(password="s3cret too"), f"nonsense:{PASSWORD}"):
        status, said, complaint = told(capfd, *command, store_dir, "--connect", url, "--catalog", place["catalog"])
        assert status in (1, 2, 3)
        assert complaint.startswith("logstore: ")
        assert complaint.count("\n") == 1
        assert "s3cret" not in said + complaint


def test_the_broker_serves_a_store_whose_catalog_is_on_a_server_through_kills_of_both(
    store_dir: Path, server: Server, place: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGSTORE_CONNECT", place["connect"])
    monkeypatch.setenv("LOGSTORE_CATALOG", place["catalog"])
    with serving(store_dir) as broker:
        connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port))
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("orders", durable=True)
        server.kill()
        channel.basic_publish("", "orders", b"the server is away")
        server.start()
        channel.queue_declare("more", durable=True)
        channel.basic_publish("", "more", b"it is back")
        broker.kill()
    with serving(store_dir) as broker:
        connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port))
        channel = connection.channel()
        assert channel.basic_get("orders", auto_ack=True)[2] == b"the server is away"
        assert channel.basic_get("more", auto_ack=True)[2] == b"it is back"
        connection.close()
        errors = broker.errors.read_text()
    assert rows(store_dir, place) == ["orders", "more"]
    assert "Traceback" not in errors
    assert "s3cret" not in errors


@pytest.mark.parametrize("wrong", [0, -1, 3601, "10", True, None, float("nan")])
def test_an_impossible_catalog_timeout_is_refused(wrong: object, open_store: Open, store_dir: Path) -> None:
    with pytest.raises(OptionError, match="catalog_timeout is seconds, above 0"):
        open_store(catalog_timeout=wrong)
    assert not store_dir.exists()
