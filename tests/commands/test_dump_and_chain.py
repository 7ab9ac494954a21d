"""``dump`` and ``chain`` for people: times as times, queues by name."""

from __future__ import annotations

import datetime as dt
import json
import re
import shutil
import sqlite3
import subprocess
from pathlib import Path

import pytest

import logstore
from kit.command import COMMAND, fine, told
from kit.stores import SMALL_SEGMENT
from logstore.terminal.records import _word

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "v1"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The message is on "orders" and "it's 2"; "gone" was deleted, so the catalog has no name for queue 3."""
    made = tmp_path / "store"
    with logstore.open(made, segment_size=SMALL_SEGMENT) as store:
        queues = [store.declare_queue(name) for name in ("orders", "it's 2", "gone")]
        message = store.publish(queues, b"x")
        store.dequeue(message, queues[1])
        store.delete_queue("gone")
    return made


def test_dump_shows_queues_by_name_and_times_as_times(path: Path) -> None:
    lines = fine("dump", path).splitlines()
    start = next(line for line in lines if "MESSAGE_START" in line)
    assert """ queues=orders,"it's 2",#3 """ in start
    assert any("""queue="it's 2\"""" in line for line in lines if "MESSAGE_DEQUEUE" in line)
    times = re.findall(r" BATCH .* time=(\S+)", "\n".join(lines))
    assert len(times) > 2
    now = dt.datetime.now(dt.UTC)
    assert all(dt.timedelta(0) <= now - dt.datetime.fromisoformat(time) < dt.timedelta(hours=1) for time in times)
    assert not re.search(r"_us=\d", "\n".join(lines))


def test_a_dump_shows_queues_as_plain_words_and_one_that_was_left_as_a_dash() -> None:
    names = {1: "one", 2: "two", 3: "12", 4: "ä b,c", 5: "-x"}
    assert _word("queues", [1, 0, 2], names) == "queues=one,-,two"
    assert _word("queues", [3, 4, 5, 6], names) == 'queues="12","ä b,c","-x",#6'
    assert _word("queue_id", 0, names) == "queue=-"


def test_the_json_of_a_dump_keeps_the_ids_and_times_of_the_log(path: Path) -> None:
    records = [json.loads(line) for line in fine("dump", path, "--json").splitlines()]
    start = next(one for one in records if one["type"] == "MESSAGE_START")
    assert start["body"]["queues"] == [1, 2, 3]
    assert all(isinstance(one["body"]["time_us"], int) for one in records if one["type"] == "BATCH")


def test_chain_shows_the_time_of_each_record_and_queues_by_name(path: Path) -> None:
    with logstore.open(path) as store:
        message = next(iter(store.messages("orders"))).id
    records = told("chain", path, message)["records"]
    meanings = [one["meaning"] for one in records]
    assert meanings[:2] == ["published to queues 'orders', \"it's 2\", 3", 'dequeued from queue "it\'s 2"']
    now = dt.datetime.now(dt.UTC)
    assert all(now - dt.datetime.fromisoformat(one["time"]) < dt.timedelta(hours=1) for one in records)
    lines = fine("chain", path, message).splitlines()
    assert re.fullmatch(r" +\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} UTC: published to queues 'orders', .*", lines[1])


def test_a_catalog_that_cannot_be_read_leaves_the_ids(path: Path) -> None:
    with sqlite3.connect(path / "catalog.sqlite") as catalog:
        catalog.execute("UPDATE store SET uuid = '00000000-0000-0000-0000-000000000000'")
    catalog.close()
    assert "queues=#1,#2,#3" in fine("dump", path)


def test_following_names_a_queue_that_is_declared_meanwhile(path: Path) -> None:
    with (
        logstore.open(path) as store,
        subprocess.Popen([*COMMAND, "dump", path, "--follow"], stdout=subprocess.PIPE, text=True) as follow,
    ):
        assert follow.stdout is not None
        while "MESSAGE_START" not in follow.stdout.readline():
            pass
        store.publish(store.declare_queue("late"), b"x")
        while "MESSAGE_START" not in (line := follow.stdout.readline()):
            pass
        follow.terminate()
    assert "queues=late" in line


def test_dump_and_chain_tell_of_the_golden_states_of_places(tmp_path: Path) -> None:
    place = tmp_path / "store"
    shutil.copytree(GOLDEN / "places", place, ignore=shutil.ignore_patterns("*.json"))
    shutil.copyfile(GOLDEN / "store" / "META", place / "META")
    lines = [line for line in fine("dump", place).splitlines() if " queue=#4 " in line]
    assert {line.split()[1] for line in lines} == {"MESSAGE_MOVE"}
    meanings = [one["meaning"] for one in told("chain", place, 331880)["records"]]
    assert meanings[0] == "published to queue 1, hidden until 2023-11-14 23:13:20.000 UTC"
    assert meanings[-2].startswith("moved to the end of queue 4, delivered 8 times, with the header of its own")
