"""``logstore vhost``: hosts are added and removed beside a broker and in a closed store, also by one that dies."""

from __future__ import annotations

import itertools
import re
import shlex
from typing import TYPE_CHECKING, Any

import pika
import pytest

import logstore
from kit.command import fine, refused, run, told
from kit.killed_steps import KILLED, killed_at
from kit.serve_process import ServeProcess
from kit.stores import SMALL_SEGMENT
from kit.torture import stride
from logstore.core.host_directory import host_directory

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

STRANGE = ["a/b", "..", "Größe 注文", "x" * 255, "two\nlines", "\u202egnp.exe"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    logstore.open(tmp_path / "DIR", segment_size=SMALL_SEGMENT).close()
    return tmp_path / "DIR"


@pytest.fixture(params=["closed", "served"])
def either(path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A store that no process has open, and one that a broker serves."""
    if request.param == "closed":
        yield path
        return
    broker = ServeProcess(path)
    yield path
    status = broker.stop()
    assert (status, broker.complaints()) == (0, [])


def add(path: Path, name: str, *options: object) -> Path:
    fine("vhost", path, "add", "--segment-size", "512K", *options, "--", name)
    return path / "hosts" / host_directory(name)


def hosts_of(path: Path) -> dict[str | None, str]:
    return {one["name"]: one["state"] for one in told("vhost", path, "list")["hosts"]}


def opened(broker: ServeProcess, host: str) -> Any:
    parameters = pika.ConnectionParameters("127.0.0.1", broker.port, virtual_host=host)
    return pika.BlockingConnection(parameters).channel()


def fill(store_dir: Path) -> None:
    with logstore.open(store_dir, create=False) as store:
        store.publish(store.declare_queue("orders"), b"an order")


def test_a_host_that_was_added_is_listed_until_it_is_removed(either: Path) -> None:
    assert hosts_of(either) == {"/": "present"}
    for name in ("shop", *STRANGE):
        assert (add(either, name) / "META").is_file()
    assert hosts_of(either) == dict.fromkeys(("/", "shop", *STRANGE), "present")
    for name in ("shop", *STRANGE):
        fine("vhost", either, "remove", "--", name)
    assert hosts_of(either) == {"/": "present"}
    assert not list((either / "hosts").iterdir())


@pytest.mark.parametrize("name", ["", "/", "x" * 256, "ä" * 128, "raw\udcff"])
def test_a_name_that_no_client_can_send_is_misuse(path: Path, name: str) -> None:
    for verb in ("add", "remove"):
        assert run("vhost", path, verb, name).returncode == 2
    assert hosts_of(path) == {"/": "present"}


def test_a_host_cannot_be_added_twice_or_removed_twice(either: Path) -> None:
    add(either, "shop")
    assert "the virtual host 'shop' exists already" in refused(1, "vhost", either, "add", "shop")
    fine("vhost", either, "remove", "shop")
    assert "there is no virtual host 'shop'" in refused(1, "vhost", either, "remove", "shop")


def test_a_host_with_messages_is_removed_only_with_yes(either: Path) -> None:
    fill_by = add(either, "shop")
    other = either.with_name("other")
    logstore.open(other, segment_size=SMALL_SEGMENT).close()
    fill(other)
    fine("vhost", either, "remove", "shop")
    other.rename(fill_by)
    assert told("vhost", either, "add", "shop")["messages"] == 1  # the store that is there is taken over
    assert "the virtual host 'shop' has 1 message: repeat with --yes" in refused(1, "vhost", either, "remove", "shop")
    assert hosts_of(either)["shop"] == "present"
    assert told("vhost", either, "remove", "shop", "--yes")["messages"] == 1
    assert not fill_by.exists()


def test_removing_a_host_that_is_a_link_leaves_what_it_points_to(either: Path) -> None:
    disk = either.with_name("disk")
    own = add(either, "shop")
    fine("vhost", either, "remove", "shop")
    logstore.open(disk, segment_size=SMALL_SEGMENT).close()
    (disk / "another thing").write_bytes(b"stays")
    own.symlink_to(disk)
    add(either, "shop")
    fine("vhost", either, "remove", "shop", "--yes")
    assert not own.is_symlink()
    assert (disk / "another thing").read_bytes() == b"stays"
    assert (disk / "META").is_file()
    assert told("vhost", either, "add", "shop")["messages"] == 0
    assert not own.is_symlink()


def test_every_command_works_on_the_store_of_a_host(either: Path) -> None:
    own = add(either, "shop")
    assert told("info", own)["uuid"] != told("info", either)["uuid"]
    assert told("verify", own)["problems"] == []
    fine("backup", own, either.with_name("copy"))
    for command in ("queues", "stats", "tail", "checkpoint", "compact"):
        fine(command, own)


def test_a_host_has_its_own_limit_of_the_log(either: Path) -> None:
    own = add(either, "shop", "--max-log-bytes", "64M")
    assert (told("info", own)["max_log_bytes"], told("info", either)["max_log_bytes"]) == (64 << 20, None)


@pytest.mark.parametrize("name", ["/", "shop"])
def test_the_limit_of_a_host_is_changed_and_taken_away(either: Path, name: str) -> None:
    own = add(either, "shop") if name == "shop" else either
    other = either if name == "shop" else add(either, "shop")
    answer = told("vhost", either, "set", name, "--max-log-bytes", "64M")
    assert (answer["max_log_bytes"], answer["directory"]) == (64 << 20, str(own))
    assert (told("info", own)["max_log_bytes"], told("info", other)["max_log_bytes"]) == (64 << 20, None)
    said = fine("vhost", either, "set", name, "--max-log-bytes", "none")
    assert said == f"set: virtual host {name} has no limit of the log\n"
    assert told("info", own)["max_log_bytes"] is None


def test_a_limit_below_the_log_is_refused_and_nothing_is_changed(either: Path) -> None:
    own = add(either, "shop")
    fine("vhost", either, "remove", "shop")
    other = either.with_name("other")
    with logstore.open(other, segment_size=SMALL_SEGMENT, max_log_bytes="1G") as store:
        store.publish_many(store.declare_queue("orders"), [bytes(100_000)] * 100)
    other.rename(own)
    add(either, "shop")
    said = refused(1, "vhost", either, "set", "shop", "--max-log-bytes", "6M")
    found = re.search(r"has (\d+) bytes on disk, 100\d+ of them live, so its limit cannot be 6291456: ", said)
    assert found is not None
    assert int(found[1]) > 10_000_000
    assert f"'logstore compact {own}'" in said
    assert "at least 6 segments" in refused(2, "vhost", either, "set", "/", "--max-log-bytes", "1M")
    assert [told("info", path)["max_log_bytes"] for path in (own, either)] == [1 << 30, None]


def test_the_limit_of_a_host_that_is_not_there_cannot_be_changed(either: Path) -> None:
    said = refused(1, "vhost", either, "set", "shop", "--max-log-bytes", "none")
    assert "there is no virtual host 'shop'" in said


def test_a_backup_names_the_hosts_that_it_leaves_out_and_how_to_copy_them(either: Path) -> None:
    own = add(either, "Größe 'x'")
    said = fine("backup", either, either.with_name("copy"))
    (line,) = [line for line in said.splitlines() if line.startswith("  logstore backup ")]
    assert shlex.split(line) == ["logstore", "backup", str(own), "TARGET"]
    assert told("backup", either, either.with_name("more"), "--dry-run")["hosts_left_out"] == [str(own)]
    assert not (either.with_name("copy") / "hosts").exists()


# ---- A running broker


def test_a_broker_serves_hosts_from_its_start_and_those_that_are_added_meanwhile(path: Path) -> None:
    add(path, "before")
    with_both = ["before", "meanwhile"]
    broker = ServeProcess(path)
    try:
        add(path, "meanwhile")
        for host in with_both:
            fine("user", path, "permit", "guest", host)
            channel = opened(broker, host)
            channel.queue_declare("orders", durable=True)
            channel.confirm_delivery()
            channel.basic_publish("", "orders", host.encode())
        broker.kill()
        broker = ServeProcess(path)
        for host in with_both:
            assert opened(broker, host).basic_get("orders", auto_ack=True)[2] == host.encode()
        assert broker.stop() == 0
        for host in with_both:
            assert told("info", path / "hosts" / host)["state"] == "closed"
    finally:
        broker.kill()


def test_removing_a_host_closes_its_connections_and_no_others(path: Path) -> None:
    add(path, "shop")
    broker = ServeProcess(path)
    try:
        fine("user", path, "permit", "guest", "shop")
        shop, root = opened(broker, "shop"), opened(broker, "/")
        shop.queue_declare("in memory")
        shop.basic_publish("", "in memory", b"x")
        shop.queue_declare("in memory", passive=True)  # after the publish
        assert "has 1 message" in refused(1, "vhost", path, "remove", "shop")
        fine("vhost", path, "remove", "shop", "--yes")
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="vhost 'shop' is deleted"):
            shop.queue_declare("another")
        root.queue_declare("another")
    finally:
        broker.kill()


def test_a_host_at_its_limit_refuses_publishes_and_the_others_take_them(path: Path) -> None:
    add(path, "shop", "--max-log-bytes", "3M")
    broker = ServeProcess(path)
    try:
        fine("user", path, "permit", "guest", "shop")
        shop, root = opened(broker, "shop"), opened(broker, "/")
        for channel in (shop, root):
            channel.queue_declare("orders", durable=True)
            channel.confirm_delivery()
        with pytest.raises(pika.exceptions.NackError):
            for _ in range(100):
                shop.basic_publish("", "orders", bytes(100_000))
        root.basic_publish("", "orders", bytes(100_000))
        (line,) = [line for line in broker.complaints() if "is full" in line]
        assert "the store of vhost 'shop' is full" in line
        assert str(path / "hosts" / "shop") in line
        assert (told("info", path)["full"], told("info", path / "hosts" / "shop")["full"] is None) == (None, False)
        shop.queue_purge("orders")
        shop.basic_publish("", "orders", b"x")
    finally:
        broker.kill()


def test_a_full_host_takes_publishes_again_when_its_limit_is_raised_and_keeps_the_limit(path: Path) -> None:
    own = add(path, "shop", "--max-log-bytes", "3M")
    fine("user", path, "permit", "guest", "shop")
    broker = ServeProcess(path)
    try:
        shop = opened(broker, "shop")
        shop.queue_declare("orders", durable=True)
        shop.confirm_delivery()
        with pytest.raises(pika.exceptions.NackError):
            for _ in range(100):
                shop.basic_publish("", "orders", bytes(100_000))
        fine("vhost", path, "set", "shop", "--max-log-bytes", "6M")
        for _ in range(10):
            shop.basic_publish("", "orders", bytes(100_000))
        assert told("info", own)["full"] is None
        said = broker.errors.read_text()
        assert "vhost.set 'shop': a limit of 6291456 bytes for the log" in said
        assert said.count("has room again") == 1
        broker.kill()
        broker = ServeProcess(path)
        assert told("stats", own)["log"]["max_bytes"] == 6 << 20
    finally:
        broker.kill()


def test_a_host_whose_store_cannot_be_opened_is_down_and_the_others_are_served(path: Path) -> None:
    own = add(path, "shop")
    fine("user", path, "add", "anna", "--permit", "shop", "--permit", "/", text="secret\n")
    (own / "META").write_bytes(b"damage")
    broker = ServeProcess(path)
    try:
        assert "vhost 'shop' is not served" in broker.errors.read_text()
        credentials = pika.PlainCredentials("anna", "secret")
        with pytest.raises(pika.exceptions.AMQPConnectionError) as caught:
            pika.BlockingConnection(
                pika.ConnectionParameters("127.0.0.1", broker.port, virtual_host="shop", credentials=credentials)
            )
        assert "541" in repr(caught.value)
        assert "vhost 'shop' is down" in repr(caught.value).replace("\\", "")
        opened(broker, "/").queue_declare("q")
        said = refused(1, "vhost", path, "set", "shop", "--max-log-bytes", "none")
        assert "the virtual host 'shop' is down: 'logstore vhost" in said
        assert "are unknown, because it is not served" in refused(1, "vhost", path, "remove", "shop")
        fine("vhost", path, "remove", "shop", "--yes")
        assert not own.exists()
        add(path, "shop")
    finally:
        broker.kill()


def test_a_host_without_its_directory_is_never_made_anew_by_a_start(path: Path) -> None:
    own = add(path, "shop")
    away = own.with_name("away")
    own.rename(away)
    assert hosts_of(path) == {"/": "present", "shop": "no store is there", None: "no host"}
    broker = ServeProcess(path)
    try:
        assert "vhost 'shop' is not served" in broker.errors.read_text()
    finally:
        broker.kill()
    assert not own.exists()


# ---- A command that dies


def test_an_add_that_is_killed_at_any_step_is_finished_by_the_next_one(tmp_path: Path) -> None:
    for step in itertools.count(1):
        path = tmp_path / f"DIR{step}"
        logstore.open(path, segment_size=SMALL_SEGMENT).close()
        status = killed_at(step, "vhost", path, "add", "shop", "--segment-size", "512K")
        if status == 0:
            assert step > 6
            break
        assert status == KILLED
        if hosts_of(path).get("shop") == "present":
            refused(1, "vhost", path, "add", "shop")
        else:
            add(path, "shop")
        fill(path / "hosts" / "shop")
        assert told("verify", path / "hosts" / "shop")["problems"] == []
        assert hosts_of(path) == {"/": "present", "shop": "present"}


def test_a_removal_that_is_killed_at_any_step_happens_or_not_and_no_later_host_gets_its_messages(
    tmp_path: Path,
) -> None:
    removed = []
    for step in itertools.count(1, stride(5)):
        path = tmp_path / f"DIR{step}"
        logstore.open(path, segment_size=SMALL_SEGMENT).close()
        fine("user", path, "add", "anna", text="secret\n")
        fill(add(path, "shop"))
        fine("user", path, "permit", "anna", "shop")
        status = killed_at(step, "vhost", path, "remove", "shop", "--yes")
        if status == 0:
            break
        assert status == KILLED
        removed.append(hosts_of(path).get("shop") != "present")
        if removed[-1]:
            assert told("vhost", path, "add", "shop")["messages"] == 0
            users = {one["name"]: one["hosts"] for one in told("user", path, "list")["users"]}
            assert users["anna"] == ["/"]
        else:
            assert told("queues", path / "hosts" / "shop")["queues"][0]["depth"] == 1
    assert removed == sorted(removed)  # once it has begun, it is never undone
    assert removed.count(True) > 6 // stride(5)
    assert False in removed


def test_a_broker_finishes_a_removal_that_was_killed(path: Path) -> None:
    add(path, "shop")
    for step in itertools.count(1):
        assert killed_at(step, "vhost", path, "remove", "shop") == KILLED
        if hosts_of(path)["shop"] == "removing":
            break
    assert (path / "hosts" / "shop").exists()
    ServeProcess(path).kill()
    assert hosts_of(path) == {"/": "present"}
    assert not (path / "hosts" / "shop").exists()
