"""The soak: nothing is lost under SIGKILL, and its checker detects losses."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

import logstore
from kit.killed import quick_directory, remove
from kit.stores import ROOT
from kit.torture import seconds_to_spend

sys.path.insert(0, str(ROOT / "tools"))

from soak_journal import Journal  # found by the line above

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from logstore import MessageStore

SECONDS = max(15, round(seconds_to_spend(15)))  # enough for half a dozen kills

pytestmark = pytest.mark.timeout(600 + 2 * SECONDS)


@pytest.fixture
def directory() -> Iterator[Path]:
    made = quick_directory("logstore-soak-test-")
    yield made
    remove(made)


def soak(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools" / "soak.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=500 + SECONDS, check=False)


def result_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    known: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return known


def test_every_message_is_accounted_for_while_the_store_is_killed_again_and_again(directory: Path) -> None:
    """In two runs; the second continues the first."""
    for arguments in (("--seconds", SECONDS), ("--rounds", 3)):
        done = soak("--dir", directory, "--json", *arguments)
        assert done.returncode == 0, done.stderr
        result = result_of(done)
        assert result["violation"] is None
        assert f"seed {result['seed']}" in done.stderr
        assert result["rounds"] == result["kills"] + result["kills_opening"] >= 2
    with logstore.open(directory / "store") as store:
        assert store.in_doubt() == []


def test_timeouts_signals_full_buffers_and_concurrent_commands_lose_nothing(directory: Path) -> None:
    """Resident memory and descriptors of the longest process also stay constant, which the soak checks itself."""
    done = soak("--dir", directory, "--json", "--everything", "--life", 8, "--seconds", SECONDS)
    assert done.returncode == 0, done.stderr
    result = result_of(done)
    assert result["violation"] is None
    assert result["interrupted"] > 0
    assert sum(result["beside"].values()) > 0
    assert result["resident_bytes"][0] > 0


def test_the_choices_are_those_of_the_seed_and_a_directory_of_ones_own_is_removed(directory: Path) -> None:
    done = soak("--rounds", 1, "--seed", 7)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("seed 7\n")
    assert "rounds 1, " in done.stdout
    assert not list(directory.iterdir())


@pytest.mark.parametrize("arguments", [("--rounds", 0), ("--seconds", -1), ("--rounds", "x"), ("--nothing",)])
def test_wrong_arguments_are_misuse(arguments: tuple[object, ...]) -> None:
    done = soak(*arguments)
    assert done.returncode == 2
    assert "error" in done.stderr


# ---- faults that it must detect ----


def some_place(store: MessageStore) -> tuple[str, int]:
    """The first message of the longest queue, which has at least two."""
    queue = max(store.queues(), key=lambda known: known.depth)
    return queue.name, next(store.messages(queue)).id


def a_message_is_lost(store: MessageStore) -> str:
    queue, key = some_place(store)
    token = store.header(key).decode().split()[0]
    store.dequeue(key, queue)
    return f"message {token} .* is lost from queue {queue}"


def a_message_comes_back(store: MessageStore) -> str:
    queue, key = some_place(store)
    store.publish(queue, store.load_content(key), header=store.header(key))
    return "2 times on queue"


def a_message_moves_by_itself(store: MessageStore) -> str:
    queue, key = some_place(store)
    other = next(known.name for known in store.queues() if known.name != queue)
    store.enqueue(key, other)
    store.dequeue(key, queue)
    return f"is lost from queue {queue}: it is on {other}"


def two_messages_swap_places(store: MessageStore) -> str:
    queue = store.queue(some_place(store)[0])
    first = next(store.messages(queue)).id
    with store.transaction() as tx:
        store.dequeue(first, queue, tx)
        store.enqueue(first, queue, tx)
    return "is in the order"


def a_byte_is_changed(store: MessageStore) -> str:
    queue = store.queue(some_place(store)[0])
    for message in list(store.messages(queue)):  # all of them again, in order, so that only the byte is wrong
        content = bytearray(message.content)
        content[-1] ^= 1
        header = message.header
        store.dequeue(message.id, queue)
        store.publish(queue, bytes(content), header=header)
    return "has other bytes"


def a_transaction_is_left_in_doubt(store: MessageStore) -> str:
    tx = store.begin(logstore.Xid(1, b"nobody", b"soak"))
    tx.end()
    tx.prepare()
    return "in doubt are"


FAULTS: list[Callable[[MessageStore], str]] = [
    a_message_is_lost,
    a_message_comes_back,
    a_message_moves_by_itself,
    two_messages_swap_places,
    a_byte_is_changed,
    a_transaction_is_left_in_doubt,
]


@pytest.fixture(scope="module")
def soaked() -> Iterator[Path]:
    """A store with at least two messages on one queue, and its journal, after as many rounds as necessary."""
    made = quick_directory("logstore-soaked-")
    longest = 0
    for _ in range(20):
        done = soak("--dir", made / "kept", "--rounds", 2)
        assert done.returncode == 0, done.stderr
        (state,) = json.loads((made / "kept" / "journal.json").read_text())["candidates"]
        longest = max(map(len, state["queues"].values()))
        if longest > 1:
            break
    assert longest > 1
    yield made / "kept"
    remove(made)


@pytest.mark.parametrize("fault", FAULTS)
def test_the_checker_names_changes_that_the_journal_does_not_have(
    soaked: Path, directory: Path, fault: Callable[[MessageStore], str]
) -> None:
    kept = directory / "kept"
    shutil.copytree(soaked, kept)
    with logstore.open(kept / "store") as store:
        expected = fault(store)
    done = soak("--dir", kept, "--rounds", 1)
    assert done.returncode == 1, done.stdout
    assert re.search(f"VIOLATION: in {kept}/store, .*{expected}", done.stderr)
    assert "kept in" in done.stderr


def test_an_untouched_store_is_no_violation(soaked: Path, directory: Path) -> None:
    """Without this, detection would prove nothing."""
    kept = directory / "kept"
    shutil.copytree(soaked, kept)
    logstore.open(kept / "store").close()
    done = soak("--dir", kept, "--rounds", 1)
    assert done.returncode == 0, done.stderr


def test_a_kill_right_after_a_command_that_was_cut_short_takes_the_open_transactions_along(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.json", tmp_path / "store")
    journal.state.queues["q"] = []
    for command in ({"do": "begin", "tx": "t1", "distributed": False}, {"do": "publish", "tx": "", "token": "m1"}):
        journal.begin_command(command | {"at_s": 0.0, "queue": "q", "size": 1})
        if command["tx"]:
            journal.answered(command, None)
    journal.interrupted("")
    assert not journal.worker_died()
    assert [(len(one.txs), len(one.queues["q"])) for one in journal.candidates] == [(0, 0), (0, 1)]
