"""``logstore vhost DIR reopen``: a host whose store has failed is opened again beside the others of its broker."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pika
import pytest

import logstore
from kit.command import fine, refused, run, told
from kit.faulty_disks import FaultyDisk
from kit.serve_process import ServeProcess, serving
from kit.stores import SMALL_SEGMENT

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with the host `shop`, which guest may open."""
    logstore.open(tmp_path / "DIR", segment_size=SMALL_SEGMENT).close()
    fine("vhost", tmp_path / "DIR", "add", "shop", "--segment-size", "512K")
    fine("user", tmp_path / "DIR", "permit", "guest", "shop")
    return tmp_path / "DIR"


@pytest.fixture
def disk(tmp_path: Path) -> FaultyDisk:
    """The disk of a broker; that of `shop` can fail."""
    return FaultyDisk(tmp_path, fails="/hosts/shop/")


@pytest.fixture
def broker(path: Path, disk: FaultyDisk) -> Iterator[ServeProcess]:
    made = ServeProcess(path, environment=disk.environment)
    yield made
    made.kill()


def opened(broker: ServeProcess, host: str) -> Any:
    """A channel with confirms."""
    parameters = pika.ConnectionParameters("127.0.0.1", broker.port, virtual_host=host)
    channel = pika.BlockingConnection(parameters).channel()
    channel.queue_declare("orders", durable=True)
    channel.confirm_delivery()
    return channel


def is_down(broker: ServeProcess) -> bool:
    try:
        opened(broker, "shop").connection.close()
    except pika.exceptions.AMQPConnectionError as error:
        assert "541" in repr(error)
        assert "is down" in repr(error)
        return True
    return False


def fail(disk: FaultyDisk, channel: Any) -> None:
    """Publish until the store has failed, then let the disk work again."""
    disk.fail()
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="can no longer write"):
        channel.basic_publish("", "orders", b"unknown")
    disk.work()


def bodies(channel: Any) -> list[bytes]:
    """All messages of the queue, which stay on it."""
    found = []
    while (got := channel.basic_get("orders"))[0] is not None:
        found.append(got[2])
    channel.basic_nack(0, multiple=True)
    return found


def files_of_shop(broker: ServeProcess) -> list[str]:
    """The names of the files of its log that the broker has open, once for each time."""
    directory = Path(f"/proc/{broker.pid}/fd")
    targets = [Path(os.readlink(directory / number)) for number in os.listdir(directory)]
    return [target.name for target in targets if target.parent.name == "shop" and "sqlite" not in target.name]


def test_a_host_whose_disk_has_failed_is_reopened_and_the_others_notice_nothing(
    path: Path, broker: ServeProcess, disk: FaultyDisk
) -> None:
    root, shop = opened(broker, "/"), opened(broker, "shop")
    confirmed = [bytes([number]) * 5000 for number in range(50)]
    for body in confirmed:
        shop.basic_publish("", "orders", body)
    fail(disk, shop)
    root.basic_publish("", "orders", b"1")
    assert is_down(broker)
    said = fine("vhost", path, "reopen", "shop")
    assert said.startswith(f"reopened: virtual host shop in {path}/hosts/shop, with 5")
    shop = opened(broker, "shop")
    before = bodies(shop)
    assert before[:50] == confirmed
    assert before[50:] in ([], [b"unknown"])
    shop.basic_publish("", "orders", b"after")
    root.basic_publish("", "orders", b"2")  # on the connection of the beginning
    own = path / "hosts" / "shop"
    assert told("stats", own)["through"] == "broker"
    assert told("verify", own)["problems"] == []
    broker.kill()
    with serving(path) as again:
        assert bodies(opened(again, "shop")) == [*before, b"after"]


def test_a_host_stays_down_while_its_disk_fails_and_the_command_says_why(
    path: Path, broker: ServeProcess, disk: FaultyDisk
) -> None:
    fail(disk, opened(broker, "shop"))
    disk.fail()
    for _ in range(2):
        said = refused(1, "vhost", path, "reopen", "shop")
        assert "the virtual host 'shop' cannot be opened and stays down: " in said
        assert re.search("disk I/O error|Input/output error", said)
        assert is_down(broker)
        opened(broker, "/").basic_publish("", "orders", b"x")
    disk.work()
    assert told("vhost", path, "reopen", "shop")["reopened"]
    opened(broker, "shop").basic_publish("", "orders", b"x")
    assert broker.stop() == 0
    assert told("info", path / "hosts" / "shop")["state"] == "closed"


def test_reopening_leaves_nothing_of_the_failed_store_behind(
    path: Path, broker: ServeProcess, disk: FaultyDisk
) -> None:
    for _ in range(4):
        shop = opened(broker, "shop")
        shop.basic_publish("", "orders", b"x")
        fail(disk, shop)
        fine("vhost", path, "reopen", "shop")
        files = files_of_shop(broker)
        assert "LOCK" in files
        assert len(set(files)) == len(files)


def test_a_host_that_is_well_is_left_alone(path: Path, broker: ServeProcess) -> None:
    shop = opened(broker, "shop")
    shop.basic_publish("", "orders", b"x")
    assert fine("vhost", path, "reopen", "shop") == "virtual host shop is open and can write: nothing was done\n"
    answer = told("vhost", path, "reopen", "shop")
    assert (answer["reopened"], answer["messages"]) == (False, 1)
    shop.basic_publish("", "orders", b"y")
    assert not any("vhost.reopen" in line for line in broker.errors.read_text().splitlines())


def test_a_host_that_could_not_be_opened_at_the_start_is_opened_once_it_is_repaired(path: Path) -> None:
    meta = path / "hosts" / "shop" / "META"
    right = meta.read_bytes()
    meta.write_bytes(b"damage")
    with serving(path) as broker:
        assert is_down(broker)
        assert "stays down: " in refused(1, "vhost", path, "reopen", "shop")
        assert is_down(broker)
        meta.write_bytes(right)
        assert told("vhost", path, "reopen", "shop")["reopened"]
        opened(broker, "shop").basic_publish("", "orders", b"x")
        assert "vhost.reopen 'shop'" in broker.errors.read_text()


def test_a_host_that_cannot_be_reopened_can_be_removed(path: Path, broker: ServeProcess, disk: FaultyDisk) -> None:
    fail(disk, opened(broker, "shop"))
    own = path / "hosts" / "shop"
    (own / "META").write_bytes(b"damage")
    refused(1, "vhost", path, "reopen", "shop")
    fine("vhost", path, "remove", "shop", "--yes")
    assert not own.exists()
    assert "there is no virtual host 'shop'" in refused(1, "vhost", path, "reopen", "shop")


def test_without_a_broker_there_is_nothing_to_reopen(path: Path) -> None:
    assert "no broker serves the virtual host 'shop'" in refused(1, "vhost", path, "reopen", "shop")
    assert "there is no virtual host 'more'" in refused(1, "vhost", path, "reopen", "more")


def test_the_root_is_never_reopened(path: Path) -> None:
    assert run("vhost", path, "reopen", "/").returncode == 2
