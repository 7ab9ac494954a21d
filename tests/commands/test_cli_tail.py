"""``logstore tail``, ``compact`` and ``checkpoint``: with a running broker, another writer, and on a closed store."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

import logstore
from kit.command import fails, fine, run, told
from kit.serve_process import serving
from kit.stores import SMALL_SEGMENT, segment_files
from logstore.commands.tail import CELLS_MAX, ROW_CELLS, picture

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A closed store: one message stays, and many after it are gone."""
    made = tmp_path / "store"
    with logstore.open(made, segment_size=SMALL_SEGMENT) as store:
        orders = store.declare_queue("orders")
        store.publish(orders, b"stays")
        ids = store.publish_many(orders, [bytes(20_000)] * 300)
        store.dequeue_many(ids, orders)
    return made


def test_the_tail_of_a_closed_store_names_its_holders_in_plain_ascii(path: Path) -> None:
    said = fine("tail", path)
    assert "consume or purge queue 'orders'" in said
    assert "^ base" in said
    assert "> current" in said
    drawn = said[: said.index("\nqueue ")]
    assert drawn.isascii()
    assert all(len(line) <= 80 for line in drawn.splitlines() if "LSN" not in line and "segment is" not in line)


def test_the_tail_has_a_row_for_each_queue_before_those_of_single_messages(path: Path) -> None:
    with logstore.open(path) as store:
        queues = [store.queue("orders"), store.declare_queue("other")]
        for _ in range(20):
            store.publish(queues, bytes(1000), wait=False)
    said = fine("tail", path, "--limit", 1)
    assert re.search(r"^orders +\d+ +\d+ +\d+ \w+( \d+ \w+)?( or more)?$", said, re.MULTILINE)
    assert said.index("\nqueue ") < said.index("\nholder ")
    document = told("tail", path, "--limit", 1)
    assert document["holding_queues"][0]["queue"] == "orders"
    assert sum(queue["messages"] for queue in document["holding_queues"]) >= document["holding_messages"] > 0
    assert len(document["holders"]) == 1


def test_with_a_running_writer_that_is_no_broker_the_log_is_read(path: Path) -> None:
    with logstore.open(path) as store:
        document = told("tail", path)
        assert document["through"] == "log"
        assert document["holders"][0]["places"][0]["queue"] == "orders"
        assert store.stats()["messages"] == 1


def test_reading_the_tail_changes_no_file(path: Path) -> None:
    before = files_of(path)
    fine("tail", path)
    fine("compact", "--dry-run", path)
    fine("checkpoint", "--dry-run", path)
    assert files_of(path) == before


def test_a_compaction_comes_within_a_segment_of_its_dry_run(path: Path) -> None:
    would = told("compact", "--dry-run", path)
    done = told("compact", path)
    assert (would["dry_run"], done["dry_run"]) == (True, False)
    assert abs(would["bytes_after"] - done["bytes_after"]) <= SMALL_SEGMENT
    assert len(segment_files(path)) <= 6


@pytest.fixture
def full(tmp_path: Path) -> Path:
    """A closed store without room for another message within eight segments."""
    made = tmp_path / "full"
    limit = 8 * SMALL_SEGMENT
    with (
        logstore.open(made, segment_size=SMALL_SEGMENT, max_log_bytes=limit) as store,
        pytest.raises(logstore.StoreFull),
    ):
        store.publish_many(store.declare_queue("orders"), [bytes(20_000)] * 1000)
    return made


def files_of(path: Path) -> dict[str, tuple[int, int]]:
    return {one.name: (one.stat().st_mtime_ns, one.stat().st_size) for one in path.iterdir() if one.is_file()}


def test_compacting_a_closed_full_store_does_not_open_it_and_says_that_nothing_was_done(full: Path) -> None:
    before = files_of(full)
    said, would = fine("compact", full), fine("compact", "--dry-run", full)
    assert said.startswith("nothing was done: compacting would not make the log smaller\n")
    assert would == said.replace("was done", "would be done")
    assert len(said.splitlines()) == 2
    document = told("compact", full)
    assert (document["through"], document["shrinks"], document["segments_moved"]) == ("store", False, 0)
    assert document["bytes_after"] == document["bytes_before"] <= document["planned_bytes"]
    assert "compacting would not make the log smaller" in fine("tail", full)
    assert files_of(full) == before


def test_info_shows_the_limit_and_when_it_was_set_and_a_closed_full_store_as_full(full: Path, path: Path) -> None:
    document, said = told("info", full), fine("info", full)
    assert document["max_log_bytes"] == 8 * SMALL_SEGMENT
    assert document["max_log_bytes_set"].endswith("+00:00")
    assert f"{8 * SMALL_SEGMENT} bytes (4 MiB), set at the open of 20" in said
    assert said.startswith(f"FULL: the log has {document['log_bytes']} bytes, ")
    assert said.splitlines()[1].startswith("to free it: consume or purge queue 'orders' (")
    assert (document["full"]["cause"], document["full"]["since"]) == ("limit", None)
    assert told("tail", full)["full"]["remedies"] == document["full"]["remedies"]
    assert fine("tail", full).startswith("FULL: the log has ")
    assert (told("info", path)["max_log_bytes"], told("info", path)["full"]) == (None, None)
    assert re.search("^max log bytes +none$", fine("info", path), re.MULTILINE)


def test_compacting_a_full_store_through_its_broker_makes_it_no_larger(full: Path) -> None:
    with serving(full):
        before = len(segment_files(full))
        document = told("compact", full)
        assert document["through"] == "broker"
        assert document["bytes_after"] <= document["bytes_before"]
        assert len(segment_files(full)) <= before


def test_a_checkpoint_is_of_the_size_that_its_dry_run_says(path: Path) -> None:
    would = told("checkpoint", "--dry-run", path)
    done = told("checkpoint", path)
    assert done["messages"] == would["messages"] == 1
    assert abs(done["bytes"] - would["bytes"]) <= 4096


def test_a_directory_that_is_no_store_gives_status_3_and_an_invalid_limit_is_misuse(tmp_path: Path, path: Path) -> None:
    for command in ("tail", "compact", "checkpoint"):
        fails(run(command, tmp_path / "nothing"), 3)
    fails(run("tail", "--limit", "-1", path), 2)
    fails(run("tail", "--watch", "0", path), 2)


def test_a_changing_command_on_a_store_locked_without_a_broker_is_status_three(path: Path) -> None:
    with logstore.open(path):
        for command in ("compact", "checkpoint"):
            fails(run(command, path), 3)
            fails(run(command, "--dry-run", path), 3)


def test_watching_prints_an_object_a_line_and_ends_quietly_with_an_interrupt(path: Path) -> None:
    words = [sys.executable, "-m", "logstore", "tail", "--json", "--watch", "0.1", os.fspath(path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        first, second = (json.loads(watching.stdout.readline()) for _ in range(2))
        watching.send_signal(signal.SIGINT)
        _, complaint = watching.communicate(timeout=60)
    assert first["base_lsn"] == second["base_lsn"]
    assert complaint == ""


def test_a_log_of_thousands_of_segments_is_folded_and_fits_eighty_columns() -> None:
    def segment(number: int) -> dict[str, Any]:
        used = {"first_lsn": number, "end_lsn": number, "live_bytes": number % 3 * 300, "relocated_bytes": 0}
        return used | {"state": "current" if number == 5000 else "needed"}

    document = {"segments": [segment(n) for n in range(1, 5001)], "spares": 3, "segment_size": 1000, "holds": []}
    for fancy in (False, True):
        rows = [line for line, kinds in picture(document, fancy=fancy) if kinds]
        assert sum(map(len, rows)) <= CELLS_MAX
        assert max(map(len, rows)) <= ROW_CELLS
        assert sum(">" in row or "▶" in row for row in rows) == 1


def test_with_a_running_broker_the_tail_names_the_consumer_that_has_the_message(path: Path) -> None:
    pika = pytest.importorskip("pika")
    with serving(path) as broker:
        connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port))
        channel = connection.channel()
        got = []
        channel.basic_consume("orders", lambda *delivery: got.append(delivery), consumer_tag="slow-one")
        while not got:
            connection.process_data_events(time_limit=1)
        document = told("tail", path)
        assert document["through"] == "broker"
        assert "slow-one" in document["holders"][0]["places"][0]["consumer"]
        assert "slow-one" in document["holders"][0]["remedy"]
        assert told("compact", "--dry-run", path)["through"] == "broker"
        assert told("compact", path)["through"] == "broker"
        assert told("checkpoint", "--dry-run", path)["messages"] == 1
        assert told("checkpoint", path)["through"] == "broker"
        channel.basic_ack(got[0][1].delivery_tag)
        connection.close()
        assert told("tail", path)["holding_messages"] == 0
