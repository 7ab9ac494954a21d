"""``logstore in-doubt`` and ``logstore purge`` on a store that a broker serves: through its control socket."""

from __future__ import annotations

import re
import shutil
import signal
import socket
import stat
import threading
from typing import TYPE_CHECKING, Any

import pytest
from pamqp import commands

import logstore
from kit.command import fails, fine, run, told
from kit.in_doubt_cases import FILL, MOVE, on_queues, prepare, rows
from kit.live_broker import Broker, open_store
from kit.patience import PATIENCE_S
from kit.serve_process import serving
from kit.store_proxies import BrokenStore
from logstore.store.control import SOCKET_NAME, call

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "store"
    with open_store(made) as store:
        prepare(store)
    return made


@pytest.fixture
def broker(path: Path) -> Iterator[Broker]:
    made = Broker(open_store(path))
    yield made
    made.stop()
    made.store.close()


def consume(broker: Broker, queue: str, prefetch: int = 0) -> Any:
    client = broker.raw().open()
    client.send(1, commands.Basic.Qos(0, prefetch), commands.Basic.Consume(queue=queue))
    client.expect(commands.Basic.QosOk)
    client.expect(commands.Basic.ConsumeOk)
    return client


def test_a_commit_through_the_broker_reaches_its_waiting_consumers(broker: Broker, path: Path) -> None:
    client = consume(broker, "out")
    said = told("in-doubt", path, "commit", MOVE)
    assert (said["through"], said["operations"]) == ("broker", 2)
    assert client.delivery()[1] == b"1"
    assert [row["xid"] for row in rows(path)] == [str(FILL)]


def test_a_rollback_through_the_broker_brings_the_messages_back_in_order(broker: Broker, path: Path) -> None:
    told("in-doubt", path, "rollback", MOVE)
    client = consume(broker, "in")
    assert [client.delivery()[1] for _ in range(2)] == [b"1", b"2"]


def test_an_outcome_through_the_broker_is_on_the_disk_when_the_command_says_so(path: Path) -> None:
    with serving(path) as process:
        fine("in-doubt", path, "commit", MOVE)
        fine("in-doubt", path, "rollback", FILL)
        process.kill()
    assert on_queues(path) == ([b"2"], [b"1"], 0)


def test_a_dry_run_while_a_broker_runs_says_that_the_broker_would_act_and_changes_nothing(
    broker: Broker, path: Path
) -> None:
    lsn = broker.store.next_lsn
    assert told("in-doubt", path, "commit", MOVE, "--dry-run")["through"] == "broker"
    assert len(broker.store.in_doubt()) == 2
    assert broker.store.next_lsn == lsn


@pytest.mark.parametrize("outcome", ["commit", "rollback"])
def test_an_unknown_xid_is_status_1_through_the_broker_too(broker: Broker, path: Path, outcome: str) -> None:
    assert "no transaction 1:ab: is in doubt" in fails(run("in-doubt", path, outcome, "1:ab:"), 1)


def test_of_many_threads_that_decide_a_transaction_one_succeeds_and_the_others_get_an_error(
    broker: Broker, path: Path
) -> None:
    answers: list[object] = []

    def decide(outcome: str) -> None:
        try:
            answers.append(call(path, f"in-doubt.{outcome}", {"xid": str(FILL)}))
        except logstore.UnknownXid as error:
            answers.append(error)

    threads = [threading.Thread(target=decide, args=(outcome,)) for outcome in ("commit", "rollback") * 4]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert len(answers) == 8
    assert sum(isinstance(answer, dict) for answer in answers) == 1


@pytest.mark.parametrize("arguments", [{}, {"xid": 5}, {"xid": "abc"}])
def test_a_request_without_a_proper_xid_is_an_option_error(
    broker: Broker, path: Path, arguments: dict[str, object]
) -> None:
    with pytest.raises(logstore.OptionError):
        call(path, "in-doubt.commit", arguments)
    with pytest.raises(logstore.OptionError):
        call(path, "purge", {"queue": ["in"]})


def test_purge_through_the_broker_keeps_delivered_messages(broker: Broker, path: Path) -> None:
    broker.store.publish_many("in", [b"3", b"4", b"5"])
    client = consume(broker, "in", prefetch=1)
    assert client.delivery()[1] == b"2"  # the first one is locked by a transaction
    assert told("purge", path, "in", "--dry-run") == {
        "store": str(path),
        "queue": "in",
        "dry_run": True,
        "through": "broker",
        "messages": 3,
        "unacknowledged": 1,
        "locked": 1,
        "unreadable": 0,
    }
    assert broker.store.queue("in").depth == 5
    assert fine("purge", path, "in") == "purged: 3 messages of in; left: 1 unacknowledged, 1 locked by a transaction\n"
    assert broker.store.queue("in").depth == 2


def test_the_brokers_log_says_what_each_command_did_or_why_it_did_nothing(path: Path) -> None:
    with serving(path) as process:
        fine("purge", path, "in", "--dry-run")
        fine("purge", path, "in")
        fails(run("purge", path, "nope"), 1)
        fine("in-doubt", path, "rollback", MOVE)
        fine("checkpoint", path)
        fine("compact", path)
        lines = [line.partition(" INFO logstore.control: ")[2] for line in process.errors.read_text().splitlines()]
        wanted = (
            r"purge 'in': 1 message removed, 1 locked by a transaction left",
            r"control command purge {'queue': 'nope'} has failed: the broker has no queue 'nope'; .*",
            rf"in-doubt\.rollback {MOVE}: 2 operations of transaction \d+",
            r"checkpoint: \d+ bytes at LSN \d+",
            r"compact: .+ bytes.*",
        )
        for line, pattern in zip(filter(None, lines), wanted, strict=True):
            assert re.fullmatch(pattern, line), line


def test_purge_reaches_the_queues_that_a_broker_keeps_in_memory(broker: Broker, path: Path) -> None:
    client = broker.raw().open()
    client.declare("passing")
    for _ in range(3):
        client.publish("passing", b"x")
    assert client.declare("passing", passive=True).message_count == 3
    assert told("purge", path, "passing", "--dry-run")["messages"] == 3
    assert told("purge", path, "passing")["messages"] == 3
    assert client.declare("passing", passive=True).message_count == 0


def test_purging_a_queue_that_the_broker_has_not_is_status_1(broker: Broker, path: Path) -> None:
    assert "no queue 'nope'" in fails(run("purge", path, "nope"), 1)


def test_an_error_of_the_brokers_store_gives_one_line(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    prepare(store)
    broken = BrokenStore(store)

    def fail() -> list[Any]:
        raise logstore.StorePoisoned("an earlier sync failed: close the store and open it again")

    broker = Broker(broken)
    broken.in_doubt = fail
    try:
        assert "an earlier sync failed" in fails(run("in-doubt", tmp_path / "store", "commit", MOVE), 1)
    finally:
        broker.stop()
        store.close()


def test_a_broker_that_finds_transactions_in_doubt_says_where_to_look(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broker = Broker(open_store(path))
    broker.stop()
    broker.store.close()
    assert "2 prepared transactions wait" in caplog.text
    assert f"logstore in-doubt {path} list" in caplog.text


# ---- The lifetime of the socket


def test_the_socket_is_private_to_the_owner_and_removed_at_an_orderly_end(path: Path) -> None:
    with serving(path) as process:
        status = (path / SOCKET_NAME).lstat()
        assert stat.S_ISSOCK(status.st_mode)
        assert stat.S_IMODE(status.st_mode) == 0o600
        assert process.stop() == 0
    assert not (path / SOCKET_NAME).exists()


def test_files_of_a_killed_broker_hinder_neither_the_commands_nor_the_next_broker(path: Path) -> None:
    with serving(path) as process:
        process.kill()
    assert (path / SOCKET_NAME).exists()
    assert told("in-doubt", path, "commit", MOVE)["through"] == "store"
    assert len(rows(path)) == 1
    fine("info", path)
    fine("verify", path)
    with serving(path) as process:
        assert told("in-doubt", path, "commit", FILL)["through"] == "broker"
        assert process.stop() == 0
    assert not (path / SOCKET_NAME).exists()


def test_a_store_with_a_long_path_is_controlled_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / ("long" * 40) / "store"
    path.parent.mkdir()
    with open_store(path) as store:
        prepare(store)
    broker = Broker(open_store(path))
    try:
        assert told("in-doubt", path, "commit", MOVE)["through"] == "broker"
    finally:
        broker.stop()
        broker.store.close()
    assert not (path / SOCKET_NAME).exists()


def test_a_broker_that_cannot_have_its_socket_serves_clients_and_says_so(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (path / SOCKET_NAME).write_text("in the way")
    broker = Broker(open_store(path))
    try:
        assert "commands cannot reach this broker" in caplog.text
        assert broker.raw().open().declare("in", durable=True).message_count == 2
        assert "no broker listens" in fails(run("in-doubt", path, "commit", MOVE), 3)
    finally:
        broker.stop()
        broker.store.close()


def test_a_hanging_caller_delays_neither_clients_nor_the_shutdown(path: Path) -> None:
    with serving(path) as process, socket.socket(socket.AF_UNIX) as hanging:
        hanging.connect(str(path / SOCKET_NAME))
        hanging.sendall(b'{"logstore-control": 1, ')
        assert told("in-doubt", path, "commit", MOVE)["through"] == "broker"
        with socket.create_connection(("127.0.0.1", process.port)) as client:
            client.sendall(b"AMQP\x00\x00\x09\x01")
            client.settimeout(PATIENCE_S)
            assert client.recv(100)
        assert process.stop(PATIENCE_S) == 0


def test_a_stopped_broker_is_distinguished_from_one_that_answers(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logstore.store.control.PATIENCE_S", 0.5)
    with serving(path) as process:
        process._process.send_signal(signal.SIGSTOP)
        try:
            for command in (("in-doubt", path, "commit", MOVE), ("purge", path, "in")):
                assert "a broker that does not answer" in fails(run(*command, "--dry-run"), 3)
        finally:
            process._process.send_signal(signal.SIGCONT)


def test_a_copy_of_a_store_is_not_controlled_by_the_originals_broker(broker: Broker, path: Path) -> None:
    broker.store.force()
    copy = path.with_name("copy")
    shutil.copytree(path, copy, ignore=shutil.ignore_patterns(SOCKET_NAME))
    assert told("in-doubt", copy, "commit", MOVE)["through"] == "store"
    assert len(broker.store.in_doubt()) == 2
