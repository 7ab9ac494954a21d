"""The commands of a member: run as a process, asked through its socket, shown, handed over, ended."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pika
import pika.exceptions
import pytest

import logstore
from kit.command import fails, fine, run, spawn, told
from kit.copy_group import CLUSTER, Group
from kit.member_process import leads, made, running, sockets
from kit.patience import wait_until
from kit.ports import free_ports
from kit.stores import ROOT, contents
from kit.trio import HOST, Trio
from logstore.cluster import config
from logstore.cluster.directory import SOCKET_NAME
from logstore.cluster.engine import bootstrap
from logstore.cluster.reports import HOST_KEYS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ADDRESS_BYTES_MAX = 107


@pytest.fixture
def m1(tmp_path: Path) -> Path:
    return made(tmp_path / "m1", "m1", "--member", 7)


@pytest.fixture
def trio(tmp_path: Path) -> Iterator[Trio]:
    made = Trio(tmp_path)
    made.start()
    try:
        yield made
    finally:
        made.stop()


def asked(directory: Path, line: bytes) -> dict[str, Any]:
    """What the member's socket answers to these bytes."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(30)
        client.connect(str(directory / SOCKET_NAME))
        client.sendall(line)
        with client.makefile("rb") as answer:
            found: dict[str, Any] = json.loads(answer.readline())
            return found


# ---- run


def test_a_member_says_when_it_is_ready_and_ends_in_order_by_either_signal(m1: Path) -> None:
    listen = config.read(m1).listen
    for number in (signal.SIGTERM, signal.SIGINT):
        with running(m1) as process:
            assert process.first_line == f"ready: m1 listens on {listen}, hosts: main"
            leads(m1)
            process.signal(number)
            assert process.ended(30) == 0
            assert "stopped: every copy is closed" in process.errors.read_text()
            assert not (m1 / SOCKET_NAME).exists()


def test_a_second_run_in_the_same_directory_is_refused_and_names_the_process(m1: Path) -> None:
    with running(m1) as process:
        said = fails(spawn("cluster", "run", "--dir", m1), 3)
        assert f"is open in process {process.pid} (logstore cluster): a member runs there" in said
        assert leads(m1)["pid"] == process.pid


def test_a_member_that_was_killed_starts_again_and_replaces_its_socket(m1: Path) -> None:
    with running(m1) as process:
        before = leads(m1)["hosts"][0]
        process.kill()
    assert (m1 / SOCKET_NAME).exists()
    assert told("cluster", "status", "--dir", m1)["running"] is False
    with running(m1) as process:
        after = leads(m1)
        assert after["pid"] == process.pid
        assert after["hosts"][0]["term"] > before["term"]
        assert after["hosts"][0]["durable_index"] > before["durable_index"]


def test_only_the_members_user_may_use_its_socket(m1: Path) -> None:
    with running(m1):
        status = (m1 / SOCKET_NAME).stat()
        assert stat.S_ISSOCK(status.st_mode)
        assert stat.S_IMODE(status.st_mode) == 0o600


def test_a_directory_whose_path_is_longer_than_a_sockets_address_works(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100) / "m1"
    assert len(os.fsencode(deep / SOCKET_NAME)) > ADDRESS_BYTES_MAX
    made(deep)
    with running(deep):
        assert leads(deep)["name"] == "m1"


def test_a_directory_without_a_configuration_or_with_a_wrong_one_does_not_run(tmp_path: Path, m1: Path) -> None:
    assert "is no member's directory" in fails(run("cluster", "run", "--dir", tmp_path), 3)
    file = m1 / config.FILE_NAME
    file.write_text(file.read_text().replace("listen =", "lisen ="))
    assert f"{file}: lisen: this key is unknown" in fails(run("cluster", "run", "--dir", m1), 2)


def test_a_port_that_is_in_use_is_named(m1: Path) -> None:
    address = config.read(m1).listen
    with socket.create_server(("127.0.0.1", int(address.rpartition(":")[2]))):
        assert f"the cluster's address {address} cannot be used" in fails(spawn("cluster", "run", "--dir", m1), 3)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"what?\n", "not a line of the control protocol"),
        (b'{"logstore-control": 1}\n', "names no command"),
        (
            b'{"logstore-control": 1, "command": "explode"}\n',
            "no command 'explode'; it has add, ping, publish, rebuild, remove, reopen, status, transfer",
        ),
        (b'{"logstore-control": 1, "command": "transfer"}\n', "the request has no text 'host'"),
        (b'{"logstore-control": 1, "command": "transfer", "arguments": {"host": 1}}\n', "has no text 'host'"),
        (
            b'{"logstore-control": 1, "command": "transfer", "arguments": {"host": "x", "member": "m2"}}\n',
            "it has main",
        ),
    ],
)
def test_a_request_that_cannot_be_meant_gets_a_reason(m1: Path, line: bytes, reason: str) -> None:
    with running(m1):
        assert reason in asked(m1, line)["error"]["message"]
        assert leads(m1)["running"] is True


# ---- status


def test_status_of_a_running_member_has_exact_numbers_and_each_key(m1: Path) -> None:
    with running(m1):
        leads(m1)
        found = told("cluster", "status", "--dir", m1)
    assert {key: found[key] for key in ("member", "name", "running", "peers")} == {
        "member": 7,
        "name": "m1",
        "running": True,
        "peers": [],
    }
    (host,) = found["hosts"]
    assert tuple(host) == HOST_KEYS
    assert (host["host"], host["state"], host["leader"], host["leader_name"]) == ("main", "leads", 7, "m1")
    assert host["index"] == host["durable_index"] > 0
    assert host["undurable_bytes"] == 0
    assert host["members"] == [{"member": 7, "name": "m1", "voter": True, "acknowledged": host["index"]}]


def test_status_of_a_member_that_does_not_run_says_so_and_what_its_directory_has(m1: Path) -> None:
    found = told("cluster", "status", "--dir", m1)
    (host,) = found["hosts"]
    assert (found["running"], found["pid"], tuple(host)) == (False, None, HOST_KEYS)
    assert (host["state"], host["leader"], host["durable_index"]) == ("stopped", None, None)
    copy = host["stored"]["copy"]
    disk = told("info", copy)
    assert copy == str(m1 / "main" / "copy-1")
    assert (host["term"], host["index"]) == (disk["term"], disk["index"])
    assert host["stored"]["end_lsn"] == disk["forced_lsn"]
    assert host["stored"]["known_durable_lsn"] == disk["known_durable_lsn"]
    text = fine("cluster", "status", "--dir", m1)
    assert "the member does not run" in text
    assert "host main    does not run" in text


def test_status_names_a_vote_and_a_copy_that_cannot_be_read(m1: Path) -> None:
    (m1 / "main" / "copy-1" / "META").write_bytes(b"")
    assert "META" in told("cluster", "status", "--dir", m1)["hosts"][0]["problem"]
    (m1 / "main" / "VOTE").write_bytes(b"")
    assert told("cluster", "status", "--dir", m1)["hosts"][0]["problem"] == f"{m1}/main/VOTE cannot be read"
    assert "problem" in fine("cluster", "status", "--dir", m1)


def test_status_changes_nothing_in_a_directory_whose_member_does_not_run(m1: Path) -> None:
    before = {path: path.read_bytes() for path in sorted(m1.rglob("*")) if path.is_file()}
    fine("cluster", "status", "--dir", m1)
    assert {path: path.read_bytes() for path in sorted(m1.rglob("*")) if path.is_file()} == before


def test_a_watched_status_is_repeated_until_ctrl_c(m1: Path) -> None:
    command = [sys.executable, "-m", "logstore", "cluster", "status", "--dir", str(m1), "--watch", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        found = [json.loads(process.stdout.readline()) for _ in range(2)]
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    assert found[0] == found[1]


def test_the_leader_shows_what_each_member_acknowledged_and_the_others_who_leads(trio: Trio) -> None:
    leader = trio.leader()
    store = trio.store()
    store.publish("orders", content=b"x")
    with sockets(trio):

        def all_have_it() -> bool:
            (host,) = told("cluster", "status", "--dir", trio.directories[leader])["hosts"]
            return [one["acknowledged"] for one in host["members"]] == [host["index"]] * 3

        wait_until(all_have_it, "all have acknowledged everything")
        found = told("cluster", "status", "--dir", trio.directories[leader])
        assert [(one["member"], one["name"], one["voter"]) for one in found["hosts"][0]["members"]] == [
            (1, "m1", True),
            (2, "m2", True),
            (3, "m3", True),
        ]
        assert [(peer["connected"], peer["reason"]) for peer in found["peers"]] == [(True, None)] * 2
        other = next(member for member in trio.members if member != leader)
        found = told("cluster", "status", "--dir", trio.directories[other])
        (host,) = found["hosts"]
        assert (host["state"], host["leader_name"], host["undurable_bytes"]) == ("follows", f"m{leader}", None)
        assert [one["acknowledged"] for one in host["members"]] == [None] * 3
        trio.stop(other)
        wait_until(
            lambda: "none: " in fine("cluster", "status", "--dir", trio.directories[leader]),
            "the leader shows why a connection is missing",
        )


# ---- transfer


def test_a_host_is_handed_over_at_its_leader_and_elsewhere_the_error_says_where(trio: Trio) -> None:
    leader = trio.leader()
    other, third = (member for member in trio.members if member != leader)
    with sockets(trio):

        def transfer(member: int, to: object) -> Any:
            return run("cluster", "transfer", HOST, to, "--dir", trio.directories[member])

        said = fails(transfer(other, third), 1)
        assert f"member m{leader} leads host {HOST}" in said
        assert f"is the directory of member m{other}" in said
        assert "leads host orders-host already" in fails(transfer(leader, leader), 2)
        assert "has no member 'm9': it has m1, m2, m3" in fails(transfer(leader, "m9"), 2)
        assert "no host called 'x'" in fails(
            run("cluster", "transfer", "x", "m1", "--dir", trio.directories[leader]), 2
        )
        done = transfer(leader, f"m{other}")
        assert (done.returncode, done.stdout) == (0, f"member m{other} leads host {HOST}\n")
        wait_until(lambda: trio.members[other].standings()[HOST].state == "leads", "it serves")
        done = transfer(other, third)  # by its id
        assert (done.returncode, done.stdout) == (0, f"member m{third} leads host {HOST}\n")


def test_nothing_is_handed_over_by_a_member_that_does_not_run(m1: Path) -> None:
    said = fails(run("cluster", "transfer", "main", "m2", "--dir", m1), 3)
    assert said == f"logstore: member m1 does not run: start it with 'logstore cluster run --dir {m1}'\n"


# ---- join and remove


def test_a_member_that_joins_gets_the_clusters_identity_from_a_running_member(tmp_path: Path, m1: Path) -> None:
    m2 = tmp_path / "m2"
    address = config.read(m1).listen
    join = ("cluster", "join", address, "--dir", m2, "--name", "m2", "--listen", f"127.0.0.1:{free_ports(1)[0]}")
    assert f"no join from a member at {address}" in fails(run(*join), 3)
    assert not m2.exists()
    with running(m1):
        leads(m1)
        assert "already: choose another name or id" in fails(run(*join, "--member", 7), 2)
        said = fine(*join, "--member", 8)
        assert said.startswith(f"member m2 (id 8) in {m2}; hosts: main\n")
        assert fine(*join) == said  # once more: the id stays
    assert (config.read(m2).cluster, config.read(m2).join) == (config.read(m1).cluster, (address,))


def test_a_host_is_added_beside_others_by_a_command(m1: Path) -> None:
    add = ("cluster", "add", "invoices", "--segment-size", "512K", "--dir", m1)
    assert "does not run: start it" in fails(run(*add), 3)
    with running(m1):
        leads(m1)
        assert fine(*add) == "host invoices is there, with 1 voter\n"
        assert "has a host or a file 'invoices' already" in fails(run(*add), 2)
        fine("cluster", "publish", "invoices", "due", "first", "--dir", m1)
    with running(m1):
        assert [host["host"] for host in told("cluster", "status", "--dir", m1)["hosts"]] == ["invoices", "main"]


# ---- the broker


def amqp_member(tmp_path: Path) -> tuple[Path, int]:
    port = free_ports(1)[0]
    return made(tmp_path / "m1", "m1", "--amqp", f"127.0.0.1:{port}"), port


def channel_of(port: int, user: str = "guest", password: str = "guest", vhost: str = "/") -> Any:
    login = pika.PlainCredentials(user, password)
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port, vhost, login)).channel()


def test_a_member_with_an_address_for_amqp_serves_clients_and_keeps_what_it_confirmed(tmp_path: Path) -> None:
    m1, port = amqp_member(tmp_path)
    with running(m1) as process:
        assert f", AMQP on 127.0.0.1:{port}, hosts: main" in process.first_line
        channel = channel_of(port)
        channel.queue_declare("work", durable=True)
        channel.confirm_delivery()
        channel.basic_publish("", "work", b"kept", pika.BasicProperties(delivery_mode=2))
    with running(m1) as process:  # it was killed
        channel = channel_of(port)
        method, _, body = channel.basic_get("work")
        assert (method.redelivered, body) == (True, b"kept")
        assert process.stop() == 0
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="320"):
        channel.queue_declare("work", passive=True)


def test_a_taken_address_for_amqp_is_named_before_the_copies_are_opened(tmp_path: Path) -> None:
    m1, port = amqp_member(tmp_path)
    with socket.create_server(("127.0.0.1", port)):
        said = fails(run("cluster", "run", "--dir", m1), 3)
    assert f"127.0.0.1:{port} is already in use: choose another with amqp in cluster.toml" in said


def test_users_of_a_member_are_changed_while_it_runs_and_while_it_does_not(tmp_path: Path) -> None:
    m1, port = amqp_member(tmp_path)
    assert told("user", m1, "list")["users"] == []
    assert run("user", m1, "add", "ann", "--stdin", text="secret\n").returncode == 0
    assert [one["name"] for one in told("user", m1, "list")["users"]] == ["ann", "guest"]
    with running(m1):
        channel_of(port, "ann", "secret").connection.close()
        assert "there is no virtual host 'shop'" in fails(run("user", m1, "permit", "ann", "shop"), 1)
        leads(m1)
        fine("cluster", "add", "shop", "--segment-size", "512K", "--dir", m1)
        fine("user", m1, "permit", "ann", "shop")
        assert told("user", m1, "list")["users"][0]["hosts"] == ["/", "shop"]
        channel_of(port, "ann", "secret", "shop").connection.close()
        with pytest.raises(
            pika.exceptions.AMQPConnectionError, match="access to vhost 'shop' refused for user 'guest'"
        ):
            channel_of(port, vhost="shop")
    fine("user", m1, "remove", "ann")
    assert [one["name"] for one in told("user", m1, "list")["users"]] == ["guest"]
    assert "leave --connect and --catalog out" in fails(run("user", m1, "list", "--catalog", "x"), 2)
    assert "its virtual hosts are those of the cluster" in fails(run("vhost", m1, "list"), 1)
    assert "its virtual hosts are those of the cluster" in fails(run("vhost", m1, "add", "shop"), 1)
    assert "its virtual hosts are those of the cluster" in fails(run("vhost", m1, "reopen", "shop"), 1)
    limit = ("--max-log-bytes", "none")
    assert "its virtual hosts are those of the cluster" in fails(run("vhost", m1, "set", "shop", *limit), 1)


def test_a_member_without_a_broker_has_no_users(m1: Path) -> None:
    with running(m1):
        assert "runs no broker" in fails(run("user", m1, "remove", "guest"), 2)


# ---- members leave


def test_a_member_is_removed_by_its_name_through_any_other(trio: Trio) -> None:
    leader = trio.leader()
    other, leaves = (member for member in trio.members if member != leader)
    with sockets(trio):
        place = trio.directories[other]
        assert "has no member 'm9'" in fails(run("cluster", "remove", HOST, "m9", "--dir", place), 2)
        said = fine("cluster", "remove", HOST, f"m{leaves}", "--dir", place)
        assert said == f"member m{leaves} has left host {HOST}\n"

        def members() -> list[int]:
            return [one["member"] for one in told("cluster", "status", "--dir", place)["hosts"][0]["members"]]

        wait_until(lambda: members() == sorted((leader, other)), "it is out")


# ---- detach


def test_a_host_of_one_voter_is_detached_without_a_loss_once_its_member_is_stopped(m1: Path) -> None:
    with running(m1) as process:
        leads(m1)
        assert "a member runs there" in fails(run("cluster", "detach", "main", "--dir", m1), 3)
        assert process.stop() == 0
    copy = m1 / "main" / "copy-1"
    said = fine("cluster", "detach", "main", "--dir", m1)
    assert said == f"host main is a single store now: {copy}\nopen it with: logstore serve {copy}\n"
    assert fine("cluster", "detach", "main", "--dir", m1) == said
    with logstore.open(copy) as store:
        store.publish(store.declare_queue("orders"), content=b"alone")
    assert told("cluster", "status", "--dir", m1)["hosts"][0]["state"] == "detached"
    assert "no host called 'other': it has main" in fails(run("cluster", "detach", "other", "--dir", m1), 2)


def test_a_member_runs_without_a_host_that_was_detached(m1: Path) -> None:
    fine("cluster", "detach", "main", "--dir", m1)
    with running(m1) as process:
        assert process.first_line.endswith("hosts: none")


def test_a_detached_store_becomes_the_first_copy_of_a_new_cluster(m1: Path, tmp_path: Path) -> None:
    with running(m1):
        last = leads(m1)["hosts"][0]["index"]
    fine("cluster", "detach", "main", "--dir", m1)
    made(tmp_path / "m2", "m2", "--store", m1 / "main" / "copy-1")
    with running(tmp_path / "m2"):
        assert leads(tmp_path / "m2")["hosts"][0]["index"] > last


def test_what_no_majority_is_known_to_have_is_lost_only_if_that_is_accepted(tmp_path: Path) -> None:
    voters = bootstrap([(number, f"m{number}@127.0.0.1:{number}") for number in (1, 2, 3)])
    group = Group(tmp_path, catalog=True, config=voters)
    store = group.lead(0)
    store.publish("orders", content=b"known")
    behind = group.copies[1]
    behind.durable = lambda lsn: None  # type: ignore[method-assign] # it hears no more of what a majority has
    known = behind.info().applied_index
    store.publish(store.declare_queue("late"), content=b"unknown")
    group.cease()
    last = behind.info().index
    assert last > known
    group.close()
    config.write(tmp_path, config.MemberFile(name="m2", member=2, cluster=CLUSTER, listen="127.0.0.1:1"))
    host = group.paths[1].name
    known = known_at_open(group.paths[1])
    said = fails(run("cluster", "detach", host, "--dir", tmp_path), 1)
    assert f"a log up to index {last}, and from index {known + 1} on it is not known" in said
    with pytest.raises(logstore.ReplicatedStore):
        logstore.open(group.stores[1])
    assert f"from index {known + 1} on" in fine("cluster", "detach", host, "--dir", tmp_path, "--accept-loss")
    with logstore.open(group.stores[1]) as single:
        assert contents(single.queue("orders")) == [b"before", b"known"]
        assert contents(single.queue("late")) == [b"unknown"]


def known_at_open(host_dir: Path) -> int:
    from logstore.cluster.replica import Copy

    with Copy.open(host_dir, catalog=True) as copy:
        return copy.info().applied_index


# ---- certificates


def test_certificates_of_one_authority_let_a_member_run_with_tls(tmp_path: Path) -> None:
    certs = tmp_path / "certs"
    said = fine("cluster", "cert", certs, "m1", "127.0.0.1")
    assert said.splitlines() == [
        f"the authority: certificate {certs}/ca.pem, key {certs}/ca.key",
        f"member m1: certificate {certs}/m1.pem, key {certs}/m1.key",
    ]
    assert fine("cluster", "cert", tmp_path / "other", "m2", "--ca-dir", certs).count("\n") == 1
    assert "exists and stays as it is" in fails(run("cluster", "cert", certs, "m1"), 2)
    assert "small letters" in fails(run("cluster", "cert", tmp_path / "new", "M1"), 2)
    assert not (tmp_path / "new").exists()
    names = ("--ca", certs / "ca.pem", "--cert", certs / "m1.pem", "--key", certs / "m1.key")
    made(tmp_path / "m1", "m1", *names)
    with running(tmp_path / "m1"):
        leads(tmp_path / "m1")


def test_a_certificate_in_the_members_directory_is_named_relative_to_it(tmp_path: Path) -> None:
    certs = tmp_path / "m1"
    fine("cluster", "cert", certs, "m1")
    names = ("--ca", certs / "ca.pem", "--cert", certs / "m1.pem", "--key", certs / "m1.key")
    made(certs, "m1", *names)
    assert config.read(certs).cert == "m1.pem"


# ---- what is missing


@pytest.mark.parametrize("command", [("run",), ("status",), ("transfer", "main", "m2"), ("detach", "main")])
def test_without_the_engine_or_the_extra_one_line_says_so(m1: Path, command: tuple[str, ...]) -> None:
    for missing, text in (
        ("logstore._consensus", "the cluster is not built"),
        ("msgspec", "a cluster needs msgspec, which is not installed: pip install '/path/to/checkout[cluster]'"),
    ):
        code = f"import sys; sys.modules[{missing!r}] = None; from logstore.cli import main; main(sys.argv[1:])"
        arguments = [sys.executable, "-c", code, "cluster", *command, "--dir", str(m1)]
        done = subprocess.run(arguments, capture_output=True, text=True, check=False, cwd=ROOT)
        assert (done.returncode, done.stderr.count("\n")) == (3, 1)
        assert text in done.stderr


def test_init_without_the_engine_says_so_and_makes_nothing(tmp_path: Path) -> None:
    code = "import sys; sys.modules['logstore._consensus'] = None; from logstore.cli import main; main(sys.argv[1:])"
    more = ["cluster", "init", str(tmp_path / "m1"), "--name", "m1", "--listen", "127.0.0.1:1"]
    done = subprocess.run([sys.executable, "-c", code, *more], capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stderr.count("\n")) == (3, 1)
    assert list(tmp_path.iterdir()) == []


# ---- rebuild


def test_a_copy_is_rebuilt_beside_its_running_member_and_without_it(tmp_path: Path, m1: Path) -> None:
    """The two others are a majority without it."""
    m2, m3 = tmp_path / "m2", tmp_path / "m3"

    def are_voters() -> bool:
        hosts = [host for one in (m1, m3) for host in told("cluster", "status", "--dir", one)["hosts"]]
        led = [host for host in hosts if host["state"] == "leads"]
        return any(all(seat["voter"] for seat in host["members"]) and len(host["members"]) == 3 for host in led)

    with running(m1):
        leads(m1)
        for place in (m2, m3):
            named = ("--name", place.name, "--listen", f"127.0.0.1:{free_ports(1)[0]}")
            fine("cluster", "join", config.read(m1).listen, "--dir", place, *named)
        with running(m3):
            with running(m2) as process:
                wait_until(are_voters, "both have joined")
                fine("cluster", "publish", "main", "orders", "kept", "--dir", m1)
                assert "no host called 'x': it has main" in fails(run("cluster", "rebuild", "x", "--dir", m2), 2)
                said = fine("cluster", "rebuild", "main", "--keep", "--dir", m2)
                assert said == (
                    f"the old copy is kept: {m2}/main/kept-2\n"
                    "host main has a fresh copy here, and this member takes part with it\n"
                )
                fine("salvage", m2 / "main" / "kept-2", tmp_path / "salvaged")
                assert process.stop() == 0
            shutil.rmtree(m2 / "main" / told("cluster", "status", "--dir", m2)["hosts"][0]["stored"]["copy"])
            said = fine("cluster", "rebuild", "main", "--dir", m2)
            assert said == "host main has a fresh copy here, and this member takes part with it\n"
            assert "no host called 'x'" in fails(run("cluster", "rebuild", "x", "--dir", m2), 2)
            assert told("cluster", "status", "--dir", m2)["hosts"][0]["stored"]["rebuild"] == 2
            with running(m2):
                wait_until(are_voters, "it takes part")
    assert "Traceback" not in (tmp_path / "m2.stderr").read_text()


def test_the_only_member_of_a_host_is_not_rebuilt(m1: Path) -> None:
    with running(m1):
        leads(m1)
        said = fails(run("cluster", "rebuild", "main", "--dir", m1), 1)
        assert "this member's copy stays as it is" in said
        assert "no other member is known" in said
    assert "this member's copy stays as it is" in fails(run("cluster", "rebuild", "main", "--dir", m1), 1)


# ---- reopen


def test_a_host_that_failed_is_opened_again_by_a_command(trio: Trio) -> None:
    trio.store()
    place = trio.directories[3]
    with sockets(trio):
        assert "no host called 'x': it has orders-host" in fails(run("cluster", "reopen", "x", "--dir", place), 2)
        assert fine("cluster", "reopen", HOST, "--dir", place) == f"host {HOST} has not failed here: nothing was done\n"
        trio.fails(3)
        vote = trio.host_dir(3) / "VOTE"
        whole = vote.read_bytes()
        vote.write_bytes(bytes(len(whole)))
        assert f"{trio.host_dir(3)}/VOTE" in fails(run("cluster", "reopen", HOST, "--dir", place), 3)
        vote.write_bytes(whole)
        assert fine("cluster", "reopen", HOST, "--dir", place) == f"host {HOST} is open again here, and catches up\n"
        wait_until(lambda: trio.members[3].standings()[HOST].leader, "it takes part")


def test_no_host_is_opened_again_by_a_member_that_does_not_run(m1: Path) -> None:
    said = fails(run("cluster", "reopen", "main", "--dir", m1), 3)
    assert said == f"logstore: member m1 does not run: start it with 'logstore cluster run --dir {m1}'\n"
