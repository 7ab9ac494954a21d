"""A message that is damaged on the disk while a broker runs: what the commands say of it, and the broker's log."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pika
import pytest

import logstore
from kit.command import fails, fine, run, told
from kit.serve_process import ServeProcess
from kit.stores import SMALL_SEGMENT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

COUNT = 10
DAMAGED = 3
LEFT = [DAMAGED, 8, 9]  # what the consumer does not take


def body(number: int) -> bytes:
    return b"order number %03d " % number


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def ids(path: Path) -> list[int]:
    with logstore.open(path, segment_size=SMALL_SEGMENT) as store:
        return list(store.publish_many(store.declare_queue("orders"), map(body, range(COUNT))))


@pytest.fixture
def broker(path: Path, ids: list[int]) -> Iterator[ServeProcess]:
    """It has met a damaged message, and has delivered those around it."""
    assert len(ids) == COUNT
    process = ServeProcess(path)
    try:
        segment = min(path.glob("*.seg"))
        at = segment.read_bytes().index(body(DAMAGED))
        with segment.open("r+b") as file:
            file.seek(at)
            file.write(b"rot!!")
        connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", process.port))
        channel = connection.channel()
        channel.basic_qos(prefetch_count=2)
        taken = []
        for method, _, content in channel.consume("orders"):
            taken.append(content)
            channel.basic_ack(method.delivery_tag)
            if len(taken) == COUNT - len(LEFT):
                break
        assert taken == [body(number) for number in range(COUNT) if number not in LEFT]
        connection.close()
        yield process
    finally:
        process.kill()


def test_the_log_has_one_line_with_queue_message_reason_and_what_helps(
    broker: ServeProcess, path: Path, ids: list[int]
) -> None:
    (line,) = broker.complaints()
    assert re.search(
        rf"ERROR logstore.broker.queues: queue 'orders': message {ids[DAMAGED]} cannot be read and is set aside until "
        r"a restart; the queue goes on without it: the log is damaged in segment \w+\.seg at offset \d+ .*"
        rf"'logstore verify {path}' .* 'logstore salvage {path} NEW'$",
        line,
    )


@pytest.mark.usefixtures("broker")
def test_tail_says_that_the_message_cannot_be_read_and_what_helps(path: Path, ids: list[int]) -> None:
    remedies = {holder["id"]: holder["remedy"] for holder in told("tail", path)["holders"]}
    assert remedies == {
        ids[DAMAGED]: "it cannot be read: stop the broker, then logstore salvage keeps what can be read",
        ids[8]: "consume or purge queue 'orders'",
        ids[9]: "consume or purge queue 'orders'",
    }


@pytest.mark.usefixtures("broker")
def test_stats_and_queues_count_the_message_as_unreadable_and_not_as_unacknowledged(path: Path) -> None:
    sample = told("stats", path)
    (row,) = sample["queues"]
    for found in (row, sample["totals"]):
        assert (found["depth"], found["unacknowledged"], found["unreadable"], found["consumers"]) == (3, 0, 1, 0)
    text = fine("stats", path)
    assert "3 on queues, 2 of them ready, 0 unacknowledged, 1 unreadable and set aside" in text
    assert re.search(r"^orders +3 +2 +0 +1 +0 ", text, re.MULTILINE)
    listed = told("queues", path)
    (row,) = listed["queues"]
    assert (row["depth"], row["ready"], row["acquired"], row["unacknowledged"], row["unreadable"]) == (3, 2, 1, 0, 1)
    assert listed["problem"].startswith("queues without a name are not listed: the log is damaged in segment")
    assert re.search(r"^ *\d+ +orders +3 +2 +0 +0 +1 +0 +\d+$", fine("queues", path), re.MULTILINE)


@pytest.mark.usefixtures("broker")
def test_peek_shows_the_message_as_unreadable_and_goes_on_with_the_next(path: Path, ids: list[int]) -> None:
    found = told("peek", path, "orders", "-n", 5)
    assert found["depth"] == len(LEFT)
    assert [one["id"] for one in found["messages"]] == [ids[number] for number in LEFT]
    assert [one["body_text"] for one in found["messages"]] == ["", body(8).decode(), body(9).decode()]
    assert [one["unreadable"] is None for one in found["messages"]] == [False, True, True]
    text = fine("peek", path, "orders", "-n", 2)
    assert f"\n  cannot be read: a record of message {ids[DAMAGED]} is damaged on disk\n" in text
    assert text.endswith(f"  body: {body(8).decode()}\n1 more message follows (-n)\n")
    assert "the broker has no queue 'nope'" in fails(run("peek", path, "nope"), 1)


@pytest.mark.usefixtures("broker")
def test_a_compaction_that_the_damage_stops_names_the_directory_in_its_advice(path: Path) -> None:
    said = fails(run("compact", path), 3)
    assert "has a record that cannot be read" in said
    assert f"'logstore salvage {path} NEW'" in said
    assert "DIR" not in said


def test_without_a_broker_peek_and_queues_have_the_error_of_the_damage(broker: ServeProcess, path: Path) -> None:
    broker.kill()
    for command in (("queues", path), ("peek", path, "orders")):
        assert "the log is damaged in segment" in fails(run(*command), 3)
