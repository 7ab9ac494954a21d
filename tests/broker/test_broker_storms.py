"""Disturbances of the broker as a process under load: killed, stopped, disk full, no descriptors.

Every client's journal is compared with the store, which the test opens while no broker runs. LOGSTORE_SEED repeats the
choices, LOGSTORE_TORTURE_S makes the tests longer.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pika
import pytest
from pika.exceptions import NackError

from kit.killed import quick_directory, remove
from kit.patience import wait_until
from kit.serve_process import ServeProcess, serving
from kit.storm_clients import Crowd, Journal, connect, encode, make_queues
from kit.torture import seconds_to_spend

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

KILLS = 3

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(0 if "LOGSTORE_TORTURE_S" in os.environ else 300)]


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A directory in memory: SIGKILL loses nothing that the kernel has, and there is no disk to wait for."""
    made = quick_directory("logstore-storm-")
    yield made
    remove(made)


@pytest.fixture
def dice() -> random.Random:
    seed = int(os.environ.get("LOGSTORE_SEED") or random.randrange(1 << 32))
    print(f"LOGSTORE_SEED={seed}")
    return random.Random(seed)


def test_after_every_kill_the_store_agrees_with_the_clients_journal(tmp_path: Path, dice: random.Random) -> None:
    """Outcome: every confirmed message exists once, in its publisher's order; acknowledged ones do not."""
    store = tmp_path / "store"
    process = ServeProcess(store, options=["--segment-size", "1MiB"])
    make_queues(process.port)
    crowd = Crowd(process.port, dice)
    until = time.monotonic() + seconds_to_spend(0)
    kills = there = 0
    try:
        while kills < KILLS or time.monotonic() < until:
            crowd.work_on(dice.randrange(5, 60), dice.randrange(1, 20))
            time.sleep(dice.uniform(0, 0.05))  # so that it dies at any moment of a group commit
            crowd.hold()
            process.kill()
            kills += 1
            crowd.wait_idle()
            there += crowd.journal.check(store)
            process = ServeProcess(store, process.port)
            crowd.let_go()
        crowd.work_on(20, 1)
        crowd.end()
        assert process.stop() == 0
    finally:
        process.kill()
    crowd.journal.check(store)
    assert there > 0, "the store was always empty: nothing was tested"


def test_a_broker_that_is_killed_while_it_starts_starts_the_next_time(tmp_path: Path, dice: random.Random) -> None:
    """Outcome: after any number of interrupted starts every confirmed message exists, and files do not accumulate."""
    store = tmp_path / "store"
    with serving(store) as process:
        make_queues(process.port)
        crowd = Crowd(process.port, dice)
        crowd.work_on(100, 5)
        crowd.hold()
        process.kill()
    crowd.wait_idle()
    crowd.end()
    files = len(list(store.glob("*.seg")))
    for _ in range(3):
        started = subprocess.Popen(
            [sys.executable, "-m", "logstore", "serve", str(store), "--port", "0"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        time.sleep(dice.uniform(0.1, 1.2))
        started.kill()
        started.wait()
    crowd.journal.check(store)
    assert len(list(store.glob("*.seg"))) <= files + 4


def test_clients_leave_a_stopped_broker_by_heartbeats_and_nothing_is_lost_when_it_continues(
    tmp_path: Path, dice: random.Random
) -> None:
    """Outcome: clients with heartbeats disconnect and reconnect; one without continues; nothing is lost."""
    store = tmp_path / "store"
    with serving(store) as process:
        make_queues(process.port)
        crowd = Crowd(process.port, dice, heartbeats=(1, 0, 1, 1, 0))
        crowd.work_on(30, 5)
        patient = [client for client in crowd.clients if client.heartbeat == 0]
        others = [client for client in crowd.clients if client.heartbeat != 0]
        before = {client: client.breaks for client in crowd.clients}
        process.signal(signal.SIGSTOP)
        wait_until(lambda: all(client.breaks > before[client] for client in others), "giving up")
        process.signal(signal.SIGCONT)
        crowd.work_on(60, 10)
        for _ in range(int(20 + seconds_to_spend(0) * 5)):  # too short for anybody to notice
            process.signal(signal.SIGSTOP)
            time.sleep(dice.uniform(0, 0.05))
            process.signal(signal.SIGCONT)
            time.sleep(dice.uniform(0, 0.02))
        crowd.work_on(60, 10)
        assert [client.breaks - before[client] for client in patient] == [0, 0]
        crowd.end()
        assert process.stop() == 0
    crowd.journal.check(store)


# ---- a disk that is full ----


def take_the_rest(disk: Path) -> Path:
    ballast = disk / "ballast"
    with ballast.open("ab", buffering=0) as file:
        for size in (1 << 20, 4096):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size))
    return ballast


def publish_until_refused(channel: Any, journal: Journal, publisher: int) -> int:
    """How many were confirmed before the first nack."""
    for number in range(100_000):
        name = (publisher, number)
        journal.queues[name] = "one"
        try:
            channel.basic_publish("", "one", encode(name, 20_000), pika.BasicProperties(delivery_mode=2))
        except NackError:
            journal.refused.add(name)
            return number
        journal.confirmed.add(name)
    raise AssertionError("the disk was never full")


def take_all(channel: Any, journal: Journal) -> None:
    while (got := channel.basic_get("one"))[0] is not None:
        journal.taken.add((got[2][1], int.from_bytes(got[2][2:10], "big")))
        channel.basic_ack(got[0].delivery_tag)
    channel.queue_declare("one", passive=True)
    journal.settled |= journal.taken


def test_a_disk_that_fills_up_is_refused_drained_and_used_again(
    mounted_disk: Callable[[int], Path], dice: random.Random
) -> None:
    """Outcome: a nack for each publish that does not fit; consuming works; with room again, publishing works."""
    disk = mounted_disk(24)
    journal = Journal()
    with serving_with(disk / "store", options=["--segment-size", "1MiB"]) as process:
        make_queues(process.port)
        channel = connect(process.port).channel()
        channel.confirm_delivery()
        for turn in range(2):
            if turn == 1:
                ballast = take_the_rest(disk)
            publish_until_refused(channel, journal, turn)
            for _ in range(5):  # a nack again, and the channel lives
                with pytest.raises(NackError):
                    channel.basic_publish("", "one", bytes(20_000), pika.BasicProperties(delivery_mode=2))
            if turn == 1:
                ballast.unlink()
            take_all(channel, journal)
        channel.basic_publish("", "one", b"goes on", pika.BasicProperties(delivery_mode=2))
        assert channel.basic_get("one")[2] == b"goes on"
        process.kill()
        assert b"Traceback" not in process.errors.read_bytes()
    # "goes on" was taken and not acknowledged.
    with serving_with(disk / "store") as process:
        channel = connect(process.port).channel()
        assert channel.basic_get("one")[2] == b"goes on"
        channel.basic_ack(1)
        assert process.stop() == 0
    assert journal.check(disk / "store") == 0
    assert len(journal.confirmed) > 500


@contextlib.contextmanager
def serving_with(store: Path, **how: Any) -> Any:
    process = ServeProcess(store, **how)
    try:
        yield process
    finally:
        process.kill()


# ---- no descriptors left ----


def is_served(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 30) as client:
        client.sendall(b"AMQP\x00\x00\x09\x01")
        return client.recv(1) != b""
    return False


def test_with_few_descriptors_silent_clients_make_room_for_newcomers_and_others_are_served(
    tmp_path: Path, dice: random.Random
) -> None:
    """Outcome: silent connections are closed for newcomers; connected clients and the store work."""
    store = tmp_path / "store"
    under = ["sh", "-c", 'ulimit -n 60; exec "$@"', "sh"]
    with serving_with(store, under=under, options=["--segment-size", "1MiB"]) as process:
        make_queues(process.port)
        crowd = Crowd(process.port, dice)
        crowd.work_on(20, 1)
        sockets = []
        for _ in range(120):
            with contextlib.suppress(OSError):
                sockets.append(socket.create_connection(("127.0.0.1", process.port), 5))
        assert is_served(process.port)
        assert sockets[0].recv(1) == b""  # it was silent longest
        assert len(os.listdir(f"/proc/{process.pid}/fd")) < 59  # what the log needs is set aside
        crowd.work_on(150, 20)  # over several segments, for each of which a file has to be opened
        assert [client.breaks for client in crowd.clients] == [0] * 5
        assert not crowd.journal.refused or len(crowd.journal.confirmed) > 0
        for each in sockets:
            each.close()
        assert is_served(process.port)
        crowd.work_on(20, 1)
        crowd.end()
        assert process.stop() == 0
        assert b"Traceback" not in process.errors.read_bytes()
    crowd.journal.check(store)
