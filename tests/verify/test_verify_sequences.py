"""After every short sequence of operations, closes and kills, ``logstore verify`` finds nothing and nothing is lost.

The sequences consist of two to four of {open, publish, checkpoint, compact, close, kill}. Those that would open an open
store or use a closed one are impossible. A store that a sequence leaves open is killed, so a longer one that only adds
the kill is not tried again.
"""

from __future__ import annotations

import itertools
import shutil
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

import logstore
from kit.killed import and_then_killed, quick_directory, remove
from kit.stores import SMALL_SEGMENT
from kit.torture import part_of
from logstore.commands.verify import describe
from logstore.verify import Verification

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

OPERATIONS = ("open", "publish", "checkpoint", "compact", "close", "kill")
OPEN = ("publish", "checkpoint", "compact")  # leave an open store open
PASSED = "the base of the log has passed it"


def sequences(length: int) -> Iterator[tuple[str, ...]]:
    for one in itertools.product(OPERATIONS, repeat=length):
        is_open = False
        for operation in one:
            if (operation == "open") == is_open:
                break
            is_open = operation == "open" or operation in OPEN
        else:
            if length == 2 or one[-1] != "kill":
                yield one


SEQUENCES = [one for length in (2, 3, 4) for one in sequences(length)]
SHORT = [one for one in SEQUENCES if len(one) < 4]


def lives(sequence: tuple[str, ...]) -> list[tuple[str, ...]]:
    """The sequence in parts: each from an open to a close, a kill or the end."""
    parts: list[list[str]] = []
    for operation in sequence:
        if operation == "open":
            parts.append([])
        parts[-1].append(operation)
    return [tuple(one) for one in parts]


def live(store_dir: str, life: tuple[str, ...], kept: list[Any]) -> list[int]:
    """One life of the store. Returns the ids of the messages that were published."""
    ids = []
    for operation in life:
        if operation == "open":
            kept.append(logstore.open(store_dir, segment_size=SMALL_SEGMENT, initial_segments=1))
        elif operation == "publish":
            ids.append(kept[0].publish(kept[0].declare_queue("queue"), b"content"))
        elif operation == "checkpoint":
            kept[0].checkpoint()
        elif operation == "compact":
            kept[0].compact()
        elif operation == "close":
            kept[0].close()
    return ids


def several_segments(store_dir: str, end: str, kept: list[Any]) -> list[int]:
    """A log of several segments with a few live messages in the first one: compaction has something to relocate."""
    kept.append(logstore.open(store_dir, segment_size=SMALL_SEGMENT, initial_segments=1))
    store = kept[0]
    queue = store.declare_queue("queue")
    ids = [store.publish(queue, bytes(100)) for _ in range(3)]
    gone = [store.publish(queue, bytes(60_000)) for _ in range(25)]
    for one in gone:
        store.dequeue(one, queue)
    store.checkpoint() if end == "checkpoint" else store.close()
    return ids


STORES = {
    "no store": (None, None, SEQUENCES),
    "a closed one": (live, ("open", "publish", "close"), SEQUENCES),
    "several segments, closed": (several_segments, "close", SHORT),
    "several segments with a checkpoint, killed": (several_segments, "checkpoint", SHORT),
}


@pytest.fixture
def memory() -> Iterator[Path]:
    """A directory in memory, if there is one: these tests need no power loss."""
    directory = quick_directory("verify-")
    yield directory
    remove(directory)


def verify(path: Path) -> dict[str, Any]:
    with closing(Verification(path)) as found:
        found.run(lambda _: None, connect=None, schema=None)
    return describe(path, found)


def judge(path: Path, ids: list[int], *, checkpoint: bool) -> list[str]:
    """Everything wrong with the store. ``checkpoint``: its last part took one and relocated nothing after that."""
    wrong = []
    said = verify(path)
    wrong += [one["text"] for one in said["problems"]]
    wrong += [one for one in said["notes"] if PASSED not in one]
    if not said["ok"]:
        wrong.append("verify does not call it whole")
    with logstore.open(path) as store:
        there = [one.id for one in store.declare_queue("queue").browse()]
        if there != ids:
            wrong.append(f"it has the messages {there}, and {ids} were published")
        if store.recovery.checkpoint_ignored not in ("", "there is none", PASSED):
            wrong.append(f"its checkpoint is ignored: {store.recovery.checkpoint_ignored}")
        if checkpoint and not store.recovery.checkpoint_used:
            wrong.append("the checkpoint that was taken is not used")
    return wrong


@pytest.mark.parametrize("begin", STORES)
def test_after_every_short_sequence_verify_finds_nothing_and_the_checkpoint_is_used(begin: str, memory: Path) -> None:
    work, how, tried = STORES[begin]
    before = [] if work is None else and_then_killed(work, str(memory / "before"), how)
    wrong = {}
    for number, sequence in enumerate(part_of(tried, 6)):
        path, ids, found = memory / str(number), list(before), []
        if before:
            shutil.copytree(memory / "before", path)
        for life in lives(sequence):
            ids += and_then_killed(live, str(path), life)
            found += verify(path)["problems"]
        last = lives(sequence)[-1]
        checkpoint = "checkpoint" in last and "compact" not in last[last.index("checkpoint") :]
        found += judge(path, ids, checkpoint=checkpoint)
        if found:
            wrong[" ".join(sequence)] = found
        shutil.rmtree(path)
    assert wrong == {}
