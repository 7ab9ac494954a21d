"""``logstore stats``, and the broker's part of ``logstore queues``: a real broker, a closed store, what goes wrong."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import signal
import socket
import subprocess
import threading
import time
from typing import TYPE_CHECKING, Any

import pika
import pytest

import logstore
from kit.command import COMMAND, fails, fine, on_terminal, run, told
from kit.crashed import snapshot
from kit.patience import PATIENCE_S
from kit.serve_process import ServeProcess
from kit.stores import ROOT
from logstore.store import control
from logstore.store.statistics import COUNTERS, PLACE_COUNTS, QUEUE_KEYS, with_rates

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

KEYS = {
    *("store", "through", "problem", "state", "time", "seconds", "full", "log", "forces", "relocation", "scrub"),
    *("threads_failed", "broker", "totals", "queues"),
}
QUEUE = {*QUEUE_KEYS, *(f"{name}_per_s" for name in COUNTERS)}
PERSISTENT = pika.BasicProperties(delivery_mode=2)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Three messages on "orders", none on "done"."""
    made = tmp_path / "store"
    with logstore.open(made, segment_size=1 << 20, max_log_bytes=32 << 20) as store:
        orders = store.declare_queue("orders")
        store.declare_queue("done")
        store.publish_many(orders, [b"12345"] * 3)
    return made


@pytest.fixture
def served(path: Path) -> Iterator[ServeProcess]:
    process = ServeProcess(path)
    try:
        yield process
    finally:
        process.kill()


@contextlib.contextmanager
def connected(broker: ServeProcess) -> Iterator[Any]:
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port))
    try:
        yield connection.channel()
    finally:
        connection.close()


def queue_of(sample: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(queue for queue in sample["queues"] if queue["name"] == name)
    return found


# ---- A broker


def test_stats_of_a_broker_count_messages_consumers_and_memory_queues(path: Path, served: ServeProcess) -> None:
    with connected(served) as channel:
        channel.confirm_delivery()
        channel.queue_declare("scratch")  # in memory
        for _ in range(5):
            channel.basic_publish("", "orders", b"new", PERSISTENT)
        for _ in range(4):
            channel.basic_publish("", "scratch", b"x" * 100)
        channel.basic_qos(prefetch_count=6)
        taken = channel.consume("orders")
        tags = [next(taken)[0].delivery_tag for _ in range(6)]
        channel.basic_ack(tags[1], multiple=True)
        channel.basic_nack(tags[2], requeue=False)
        assert channel.basic_get("scratch", auto_ack=True)[0] is not None
        assert channel.basic_get("scratch")[0] is not None
        channel.queue_declare("orders", passive=True)  # everything before it was handled
        sample = told("stats", path)
        queues = told("queues", path)
        table = fine("queues", path)
        text = fine("stats", path)
    assert set(sample) == KEYS
    assert (sample["through"], sample["problem"], sample["state"]) == ("broker", None, "live")
    orders, scratch = queue_of(sample, "orders"), queue_of(sample, "scratch")
    assert set(orders) == QUEUE
    # Three settled, so three more deliveries could follow; 8 messages were there, 5 are left and all are delivered.
    assert {key: orders[key] for key in ("durable", *PLACE_COUNTS, "unacknowledged", "consumers")} == {
        "durable": True,
        "depth": 5,
        "ready": 0,
        "acquired": 5,
        "locked": 0,
        "hidden": 0,
        "expired": 0,
        "bytes": 15,
        "ready_bytes": 0,
        "unacknowledged": 5,
        "consumers": 1,
    }
    assert [orders[name] for name in COUNTERS] == [5, 8, 2]
    assert (scratch["id"], scratch["durable"], scratch["consumers"]) == (None, False, 0)
    assert (scratch["depth"], scratch["ready"], scratch["acquired"], scratch["unacknowledged"]) == (3, 2, 1, 1)
    assert (scratch["bytes"] > 300, scratch["ready_bytes"]) == (True, None)
    assert [scratch[name] for name in COUNTERS] == [4, 2, 1]
    assert [sample["totals"][name] for name in ("depth", "ready", "acquired", "locked")] == [8, 2, 6, 0]
    assert sample["totals"]["published"] == 9
    assert (sample["broker"]["pid"], sample["broker"]["connections"]) == (served.pid, 1)
    assert sample["log"]["max_bytes"] == 32 << 20
    forces = sample["forces"]
    assert 0 < forces["mean_us"] <= forces["took_us_max"] <= forces["took_us"]
    rounded_us = 0.05 * forces["count"]  # the mean has one digit after the point
    assert forces["count"] * forces["mean_us"] == pytest.approx(forces["took_us"], abs=rounded_us + 1)
    assert sample["relocation"] == {"segments": 0, "bytes": 0, "failures": 0}
    assert (sample["scrub"], sample["full"], sample["threads_failed"]) == (None, None, [])
    assert sample["seconds"] is orders["published_per_s"] is None
    assert f"served by the broker of process {served.pid} (logstore {logstore.__version__})" in text
    assert re.search(r"^orders +5 +0 +5 +1 +5 +8 +2$", text, re.MULTILINE)
    assert re.search(r"^scratch \(in memory\) +3 +2 +1 +0 +4 +2 +1$", text, re.MULTILINE)
    by_name = {row["name"]: row for row in queues["queues"]}
    assert (by_name["orders"]["unacknowledged"], by_name["orders"]["consumers"]) == (5, 1)
    assert {key: by_name["orders"][key] for key in PLACE_COUNTS} == {key: orders[key] for key in PLACE_COUNTS}
    assert (by_name["scratch"]["id"], by_name["scratch"]["depth"], by_name["scratch"]["durable"]) == (None, 3, False)
    assert queues["problem"] is None
    assert re.search(r"^ +1 +orders +5 +0 +0 +5 +1 +15$", table, re.MULTILINE)
    assert re.search(r"^ +scratch \(in memory\) +3 +2 +0 +1 +0 +\d+$", table, re.MULTILINE)


def test_unacknowledged_messages_are_counted_until_they_are_settled_or_given_back(
    path: Path, served: ServeProcess
) -> None:
    with connected(served) as channel:
        channel.queue_declare("scratch")
        for name in ("scratch", "orders"):
            for _ in range(4):
                channel.basic_publish("", name, b"x", PERSISTENT)
        for name, there in (("scratch", 4), ("orders", 7)):
            tags = [channel.basic_get(name)[0].delivery_tag for _ in range(4)]

            def shown(name: str = name) -> tuple[int, int]:
                channel.queue_declare("orders", passive=True)
                queue = queue_of(told("stats", path), name)
                return queue["depth"], queue["unacknowledged"]

            assert shown() == (there, 4)
            channel.basic_ack(tags[0])
            assert shown() == (there - 1, 3)
            channel.basic_nack(tags[1], requeue=True)
            assert shown() == (there - 1, 2)
            channel.basic_reject(tags[2], requeue=False)
            assert shown() == (there - 2, 1)
    gone = told("stats", path)
    assert [queue_of(gone, name)["unacknowledged"] for name in ("scratch", "orders")] == [0, 0]


def test_a_transaction_counts_when_it_is_committed(path: Path, served: ServeProcess) -> None:
    with connected(served) as channel:
        channel.tx_select()
        for _ in range(3):
            channel.basic_publish("", "done", b"x", PERSISTENT)
        tag = channel.basic_get("orders")[0].delivery_tag
        channel.basic_ack(tag)
        assert queue_of(told("stats", path), "done")["published"] == 0
        channel.tx_commit()
        sample = told("stats", path)
    assert queue_of(sample, "done")["published"] == 3
    assert queue_of(sample, "orders")["acknowledged"] == 1


def test_watching_gives_rates_between_samples_and_ends_with_an_interrupt(path: Path, served: ServeProcess) -> None:
    with subprocess.Popen(
        [*COMMAND, "stats", path, "--watch", "--every", "0.2", "--json"], stdout=subprocess.PIPE, text=True
    ) as watch:
        assert watch.stdout is not None
        first = json.loads(watch.stdout.readline())
        with connected(served) as channel:
            channel.confirm_delivery()
            for _ in range(50):
                channel.basic_publish("", "orders", b"new", PERSISTENT)
        published = seconds = 0.0
        forces = []
        while published < 50:
            sample = json.loads(watch.stdout.readline())
            published += round(queue_of(sample, "orders")["published_per_s"] * sample["seconds"])
            seconds += sample["seconds"]
            forces.append(sample["forces"])
        watch.send_signal(signal.SIGINT)
        assert watch.wait(PATIENCE_S) in (0, 130)
    assert first["seconds"] is None
    assert published == 50
    assert sum(one["per_s"] for one in forces) > 0
    assert all(one["mean_us"] is None or 0 < one["mean_us"] <= one["took_us_max"] for one in forces)


def test_watching_without_a_terminal_prints_one_block_each_time(path: Path, served: ServeProcess) -> None:
    with subprocess.Popen(
        [*COMMAND, "stats", path, "--watch", "--every", "0.2"], stdout=subprocess.PIPE, text=True
    ) as watch:
        assert watch.stdout is not None
        blocks, times = [], 0
        while times < 3:
            line = watch.stdout.readline()
            times += line.startswith("time ")
            blocks.append(line)
        watch.send_signal(signal.SIGINT)
        assert watch.wait(PATIENCE_S) in (0, 130)
    text = "".join(blocks)
    assert text.count("\n\ntime ") == 2
    assert "published/s" in text
    assert str(served.pid) in text


def test_watching_on_a_terminal_draws_in_place(path: Path, served: ServeProcess) -> None:
    ours, its = pty.openpty()
    with subprocess.Popen([*COMMAND, "stats", path, "--watch", "--every", "0.2"], stdout=its, stderr=its) as watch:
        os.close(its)
        written = b""
        while b"published/s" not in written:
            written += os.read(ours, 1 << 16)
        watch.send_signal(signal.SIGINT)
        assert watch.wait(PATIENCE_S) in (0, 130)
    os.close(ours)
    assert str(served.pid).encode() in written


def test_rates_are_unknown_after_a_restart_and_for_a_new_queue(path: Path) -> None:
    process = ServeProcess(path)
    try:
        before = raw_sample(path)
        with connected(process) as channel:
            channel.queue_declare("late", durable=True)
        same = with_rates(raw_sample(path), before)
    finally:
        process.kill()
    assert queue_of(same, "orders")["published_per_s"] == 0
    assert queue_of(same, "late")["published_per_s"] is None
    process = ServeProcess(path)
    try:
        after = with_rates(raw_sample(path), before)
    finally:
        process.kill()
    assert after["seconds"] is queue_of(after, "orders")["published_per_s"] is None
    assert after["totals"]["published_per_s"] is None


def raw_sample(path: Path) -> dict[str, Any]:
    from logstore.terminal.sampling import sample

    return sample(path)


def test_a_running_scrub_shows_its_progress(path: Path) -> None:
    process = ServeProcess(path, options=("--scrub", "10M"))
    try:
        deadline = time.monotonic() + 30
        while (scrub := told("stats", path)["scrub"])["rounds"] == 0:
            assert time.monotonic() < deadline
        assert (scrub["errors"], scrub["last_error"]) == (0, None)
        assert scrub["bytes"] > 0
        assert re.search(r" rounds?, ", fine("stats", path))
    finally:
        process.kill()


def test_the_page_names_every_key_of_a_sample(path: Path, served: ServeProcess) -> None:
    page = (ROOT / "docs" / "api.md").read_text("utf-8")
    chapter = page[page.index("### A sample of a store") : page.index("### Holds")]
    sample = told("stats", path)
    assert sample["broker"]["pid"] == served.pid
    named = set(re.findall(r"`(\w+)`", chapter)) | {f"{name}_per_s" for name in COUNTERS}
    parts = ("log", "forces", "relocation", "broker", "totals")
    wanted = {*sample, *QUEUE, *(key for part in parts for key in sample[part])}
    assert not wanted - named
    assert "`_per_s`" in chapter


# ---- No broker


@contextlib.contextmanager
def perhaps_served(path: Path, is_served: bool) -> Iterator[None]:
    process = ServeProcess(path) if is_served else None
    try:
        yield
    finally:
        if process is not None:
            process.kill()


@pytest.mark.parametrize("is_served", [False, True], ids=["the log", "a broker"])
def test_queues_and_stats_show_what_is_hidden_and_what_has_expired(path: Path, is_served: bool) -> None:
    told_of = threading.Event()
    with logstore.open(path) as store:
        orders = store.queue("orders")
        store.publish_many(orders, [b"later"] * 2, not_before=time.time() + 86_400)
        with orders.on_expired(lambda _: told_of.set()):
            store.publish(orders, b"gone", expires=time.time() + 0.05)
            assert told_of.wait(PATIENCE_S)
    with perhaps_served(path, is_served):
        sample, listed = told("stats", path), told("queues", path)["queues"]
        table, text = fine("queues", path), fine("stats", path)
    counted = {"depth": 6, "ready": 3, "hidden": 2, "expired": 1}
    for found in (queue_of(sample, "orders"), next(one for one in listed if one["name"] == "orders"), sample["totals"]):
        assert {name: found[name] for name in counted} == counted
    assert re.search(r"depth +ready +locked +hidden +expired", table)
    assert re.search(r"orders +6 +3 +0 +2 +1 ", table)
    assert "6 on queues, 3 of them ready, 2 hidden, 1 expired" in text
    assert re.search(r"depth +ready +(locked +)?hidden +expired", text)


def test_a_closed_store_shows_what_its_log_knows_and_says_what_it_cannot(path: Path) -> None:
    before = snapshot(path)
    sample = told("stats", path)
    text = fine("stats", path)
    assert set(sample) == KEYS
    assert (sample["through"], sample["state"]) == ("log", "closed")
    orders = queue_of(sample, "orders")
    assert set(orders) == QUEUE
    assert [orders[key] for key in PLACE_COUNTS] == [3, 3, None, 0, 0, 0, 15, 15]
    assert orders["unacknowledged"] is orders["consumers"] is orders["published"] is None
    assert sample["forces"] is sample["relocation"] is sample["broker"] is sample["seconds"] is None
    assert sample["log"]["max_bytes"] == 32 << 20
    assert sample["totals"] == {
        "depth": 3,
        "ready": 3,
        "acquired": None,
        "locked": 0,
        "hidden": 0,
        "expired": 0,
        **dict.fromkeys(
            ("unacknowledged", "unreadable", "consumers", *COUNTERS, *(f"{name}_per_s" for name in COUNTERS))
        ),
    }
    for said in (text, fine("queues", path)):
        assert "note: no broker serves this store, and only a broker knows consumers" in said
    assert told("queues", path)["queues"][0]["unacknowledged"] is None
    assert snapshot(path) == before


def test_a_store_that_another_program_has_open_shows_its_log(path: Path) -> None:
    with logstore.open(path) as store:
        store.publish("done", b"x")
        sample = told("stats", path)
        assert (sample["through"], sample["state"], queue_of(sample, "done")["depth"]) == ("log", "live", 1)


def test_a_full_store_begins_with_full(tmp_path: Path) -> None:
    store_dir = tmp_path / "full"
    with logstore.open(store_dir, segment_size=512 << 10, max_log_bytes=3 << 20) as store:
        queue = store.declare_queue("orders")
        with pytest.raises(logstore.errors.StoreFull):
            for _ in range(1000):
                store.publish(queue, bytes(40_000))
    process = ServeProcess(store_dir)
    try:
        with connected(process) as channel:
            channel.confirm_delivery()
            with pytest.raises(pika.exceptions.NackError):
                for _ in range(100):
                    channel.basic_publish("", "orders", bytes(40_000), PERSISTENT)
        assert told("stats", store_dir)["full"]["cause"] == "limit"
        assert fine("stats", store_dir).startswith("FULL since ")
    finally:
        process.kill()


@pytest.mark.parametrize("columns", [80, 140])
def test_the_lines_fit_a_terminal(path: Path, columns: int) -> None:
    lines = on_terminal(columns, "stats", path)
    assert all(len(line) <= columns for line in lines)
    assert any(line.startswith("orders ") for line in lines)


# ---- What goes wrong


@pytest.mark.parametrize("command", ["stats", "queues"])
def test_a_directory_without_a_store_is_one_line_and_status_3(tmp_path: Path, command: str) -> None:
    fails(run(command, tmp_path), 3)
    fails(run(command, tmp_path / "none"), 3)
    (tmp_path / "file").touch()
    fails(run(command, tmp_path / "file"), 3)


@pytest.mark.parametrize("options", [["--every", "0"], ["--every", "nan"], ["--watch", "--every"], ["extra"]])
def test_misuse_is_one_line_and_status_2(path: Path, options: list[str]) -> None:
    fails(run("stats", path, *options), 2)


def test_a_fifo_a_file_or_a_stale_socket_in_place_of_the_control_socket_is_no_broker(path: Path) -> None:
    place = path / control.SOCKET_NAME

    def fifo() -> None:
        os.mkfifo(place)

    def stale() -> None:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(place))

    for put in (fifo, place.touch, place.mkdir, stale):
        put()
        sample = told("stats", path)
        assert (sample["through"], queue_of(sample, "orders")["depth"]) == ("log", 3)
        assert sample["problem"].startswith("no broker serves this store")
        place.rmdir() if place.is_dir() else place.unlink()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that does not answer is given up soon."""
    monkeypatch.setattr(control, "PATIENCE_S", 0.5)
    monkeypatch.setattr(control, "SIGN_OF_LIFE_S", 0.5)


@pytest.mark.usefixtures("quick")
def test_a_broker_that_hangs_is_given_up_and_the_log_is_shown(path: Path, served: ServeProcess) -> None:
    served.signal(signal.SIGSTOP)
    try:
        began_s = time.monotonic()
        sample = told("stats", path)
        took_s = time.monotonic() - began_s
        table = fine("queues", path)
    finally:
        served.signal(signal.SIGCONT)
    assert (sample["through"], sample["state"], queue_of(sample, "orders")["depth"]) == ("log", "live", 3)
    assert "does not answer" in sample["problem"]
    assert took_s < 30
    assert "does not answer" in table.splitlines()[-1]
    assert told("stats", path)["through"] == "broker"


@contextlib.contextmanager
def answering(path: Path, answer: Callable[[socket.socket], None]) -> Iterator[None]:
    """A process that is no broker of this version listens on the control socket."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path / control.SOCKET_NAME))
        listener.listen(4)

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    with listener.accept()[0] as caller:
                        answer(caller)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(PATIENCE_S)


def line(**fields: object) -> bytes:
    return json.dumps({"logstore-control": 1, **fields}).encode() + b"\n"


UNKNOWN = line(error={"kind": "StoreError", "message": "this broker has no command 'stats'; it has ping, purge, tail"})


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (UNKNOWN, "this broker has no command 'stats'"),
        (line(result={}), "use the logstore that runs it"),
        (line(result={"queue_columns": 5, "queue_rows": 6}), "use the logstore that runs it"),
        (line(result={"queue_columns": ["name"], "queue_rows": [[]]}), "use the logstore that runs it"),
        (json.dumps({"logstore-control": 2, "result": {}}).encode() + b"\n", "version 2 of the control protocol"),
        (b"hello\n", "not a line of the control protocol"),
        (b"", "does not answer"),
    ],
)
def test_a_broker_of_another_version_is_said_plainly_and_the_log_is_shown(path: Path, reply: bytes, said: str) -> None:
    def answer(caller: socket.socket) -> None:
        if caller.recv(1 << 16):
            caller.sendall(reply)

    with answering(path, answer):
        sample = told("stats", path)
    assert said in sample["problem"]
    assert (sample["through"], queue_of(sample, "orders")["depth"]) == ("log", 3)


@pytest.mark.usefixtures("quick")
def test_a_peer_that_sends_its_answer_byte_by_byte_is_given_up_in_time(path: Path) -> None:
    ended = threading.Event()

    def answer(caller: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while caller.recv(1 << 16) and not ended.is_set():
                while not ended.wait(0.05):
                    caller.sendall(b" ")

    with answering(path, answer):
        began_s = time.monotonic()
        sample = told("stats", path)
        took_s = time.monotonic() - began_s
        ended.set()
    assert "does not answer" in sample["problem"]
    assert took_s < 30


def test_a_broker_that_knows_more_or_fewer_keys_is_understood() -> None:
    from logstore.store.statistics import sampled_queues

    assert sampled_queues(["name", "colour", "depth"], [["q", "red", 4]]) == [
        dict.fromkeys(QUEUE_KEYS) | {"name": "q", "depth": 4}
    ]
