"""Every kind of work in a transaction, through every outcome, with a killed process at every point.

A cell is a piece of work, a kind of transaction, a way to end it and the restarts in between. The expected result is
written by hand for each piece of work (transaction_works.py). A restart kills the process: nothing is closed or
flushed. Outcomes that a kind does not have (a local transaction cannot be prepared) must be refused with WrongState and
change nothing; the transaction then ends as if they had not been requested.

The cells of one piece of work and the same restarts share a store, each with its own queues, messages and transaction,
all open at once. This is fast, and also tests that they do not affect each other.
"""

from __future__ import annotations

import gc
import itertools
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import logstore
from kit.killed import and_then_killed, quick_directory, remove
from kit.stores import ROOT, SMALL_SEGMENT
from kit.torture import part_of
from kit.transaction_works import PLACES, QUEUES, START, WORKS, Bench, Work
from logstore import Xid, errors
from logstore.codec.bodies import BATCH_RECORD_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from logstore import MessageStore, Transaction


@dataclass(frozen=True)
class Ending:
    """Steps before the outcome, those in ``refused`` with WrongState; then the outcome, or None if it is abandoned."""

    steps: tuple[str, ...]
    outcome: str | None
    refused: tuple[str, ...] = ()

    @property
    def prepared(self) -> bool:
        return "prepare" in self.steps


ENDINGS = {
    ("local", "commit"): Ending((), "commit"),
    ("local", "rollback"): Ending((), "rollback"),
    ("local", "one-phase"): Ending((), "commit", refused=("end",)),
    ("local", "prepare+commit"): Ending((), "commit", refused=("end", "prepare")),
    ("local", "prepare+rollback"): Ending((), "rollback", refused=("prepare", "end", "prepare")),
    ("local", "abandon"): Ending((), None),
    ("distributed", "commit"): Ending((), "rollback", refused=("commit", "prepare")),
    ("distributed", "rollback"): Ending((), "rollback"),
    ("distributed", "one-phase"): Ending(("end",), "commit", refused=("end",)),
    ("distributed", "prepare+commit"): Ending(("end", "prepare"), "commit", refused=("prepare", "end")),
    ("distributed", "prepare+rollback"): Ending(("end", "prepare"), "rollback", refused=("prepare", "end")),
    ("distributed", "abandon"): Ending(("end",), None),
}

ENDING_LIST = list(ENDINGS.items())  # a cell's number in its store is the index here

NEVER, BEFORE, AFTER, TWICE = "no restart", "restart before", "restart after", "restart twice"
RESTARTS = (NEVER, BEFORE, AFTER, TWICE)

NOTHING = dict.fromkeys(QUEUES, "")

# Processes are killed for each work and its restarts, so a part is taken; it has each work, and each kind of restart.
GROUPS = part_of(list(itertools.product(WORKS, RESTARTS)), 3)
CELLS = [(work, cell, restarts) for work, restarts in GROUPS for cell in range(len(ENDING_LIST))]
IDS = [
    "-".join((work.name, *ENDING_LIST[cell][0], restarts)).replace(",", "").replace(" ", "_")
    for work, cell, restarts in CELLS
]


def xid_of(cell: int) -> Xid:
    """Bytes of every value; the parts of two cells differ by one byte."""
    return Xid(-(2**63), b"\x00g\xff:\n" + bytes([cell]) + bytes(range(58)), b"\xffb\x00")


# ---- the observed state ----


def seen(store: MessageStore, cell: int, ids: dict[str, int]) -> dict[str, Any]:
    """Everything that a store shows of a cell, as JSON for another process. ``ids`` are all ids that it ever had."""
    bench = Bench(store, cell)
    browsed = {name: list(store.messages(bench.queue(name))) for name in QUEUES}
    counts = store.stats()["queues"]
    return {
        "queues": {
            name: " ".join(message.content.decode() + "!" * message.locked for message in browsed[name])
            for name in QUEUES
        },
        "redelivered": {name: "".join(str(int(m.redelivered)) for m in browsed[name]) for name in QUEUES},
        "depth": {name: store.queue(bench.queue(name)).depth for name in QUEUES},
        "locked": {name: counts[bench.queue(name)]["locked"] for name in QUEUES},
        "gone": "".join(sorted(name for name in ids if not is_whole(store, name, ids[name]))),
        "in doubt": [
            [tx.xid.format_id, tx.xid.gtrid.hex(), tx.xid.bqual.hex(), tx.state]
            for tx in store.in_doubt()
            if tx.xid == xid_of(cell)
        ],
    }


def is_whole(store: MessageStore, name: str, key: int) -> bool:
    try:
        content = store.load_content(key)
    except errors.UnknownMessage:
        return False
    assert (content, store.header(key)) == (name.encode(), b"of " + name.encode())
    return True


def expected(cell: int, queues: dict[str, str], opened_with: dict[str, str], gone: str, state: str) -> dict[str, Any]:
    """The expected state, with queues in the notation of a Work.

    ``opened_with`` is the state of the last open, if a kill came before it: then each place may have been delivered.
    """
    words = {name: queues.get(name, START[name]).split() for name in QUEUES}
    old = {name: opened_with.get(name, START[name]).replace("!", "").split() for name in QUEUES}
    shown = {name: " ".join(words[name]).replace("+", "") for name in QUEUES}
    xid = xid_of(cell)
    return {
        "queues": shown,
        "redelivered": {name: "".join(str(int(w.strip("!") in old[name])) for w in words[name]) for name in QUEUES},
        "depth": {name: len(words[name]) for name in QUEUES},
        "locked": {name: shown[name].count("!") for name in QUEUES},
        "gone": "".join(sorted(gone)),
        "in doubt": [[xid.format_id, xid.gtrid.hex(), xid.bqual.hex(), state]] if state == "prepared" else [],
    }


# ---- the processes ----

Cells = dict[str, Any]  # observed states, by the cell's number as text


def act(path: Path, work: Work, outcomes: bool, drained: bool, kept: list[Any]) -> dict[str, Any]:
    """Opens the store, does the work in every cell and takes every step; the outcome only on request."""
    store = logstore.open(path)
    kept.append(store)
    told: dict[str, Any] = {"at first": {}, "pending": {}, "before": {}, "after": {}, "ids": {}}
    benches = []
    for cell, ((kind, _), ending) in enumerate(ENDING_LIST):
        tx = store.begin(xid_of(cell) if kind == "distributed" else None)
        bench = Bench(store, cell, tx)
        told["at first"][cell] = seen(store, cell, bench.ids)
        work.do(bench)
        told["pending"][cell] = seen(store, cell, bench.ids)
        take_steps(store, tx, ending, xid_of(cell))
        told["ids"][cell] = bench.ids
        benches.append(bench)
        del tx
    kept.append(benches)
    store.force()
    assert store.stats()["transactions"] == len(benches)
    for bench in benches:
        told["before"][bench.cell] = seen(store, bench.cell, bench.ids)
    if outcomes:
        for bench in benches:
            end(bench, ENDING_LIST[bench.cell][1].outcome)
        for bench in benches:
            told["after"][bench.cell] = seen(store, bench.cell, bench.ids)
    if drained:
        drain(store, told["ids"])
    return told


def take_steps(store: MessageStore, tx: Transaction, ending: Ending, xid: Xid) -> None:
    for step in ending.steps:
        getattr(tx, step)()
        assert step == "end" or store.durable_lsn == store.next_lsn
    for step in ending.refused:
        state, operations, at = tx.state, tx.operations, store.next_lsn
        with pytest.raises(errors.WrongState):
            getattr(tx, step)()
        assert (tx.state, tx.operations, store.next_lsn) == (state, operations, at)
    if tx.xid is not None:
        with pytest.raises(errors.DuplicateXid):
            store.begin(xid)


def end(bench: Bench, outcome: str | None) -> None:
    tx, bench.tx = bench.tx, None
    assert tx is not None
    if outcome is None:
        before = bench.store.stats()["transactions"]
        del tx
        gc.collect()
        assert bench.store.stats()["transactions"] == before - 1
        return
    getattr(tx, outcome)()
    # Only this makes it durable, as the kill will show. An empty batch that names the base may still be pending.
    durable_lsn = bench.store.durable_lsn  # read first: that batch may begin and end between two reads
    assert bench.store.next_lsn - durable_lsn in (0, BATCH_RECORD_BYTES)
    for again in ("commit", "rollback", "prepare", "end"):
        with pytest.raises(errors.TransactionEnded):
            getattr(tx, again)()


def look(path: Path, ids: dict[str, dict[str, int]], resolving: bool, drained: bool, kept: list[Any]) -> list[Cells]:
    """The state after the open, and after the outcomes of transactions in doubt, if requested."""
    store = logstore.open(path)
    kept.append(store)
    found = [{cell: seen(store, int(cell), ids[cell]) for cell in ids}]
    in_doubt = store.in_doubt()
    assert store.stats()["transactions"] == len(in_doubt) == store.recovery.transactions_in_doubt
    kept.append(in_doubt)
    if resolving:
        by_xid = {tx.xid: tx for tx in in_doubt}
        for cell, (_, ending) in enumerate(ENDING_LIST):
            if xid_of(cell) in by_xid:
                with pytest.raises(errors.DuplicateXid):
                    store.begin(xid_of(cell))
                end(Bench(store, cell, by_xid[xid_of(cell)]), ending.outcome)
        found.append({cell: seen(store, int(cell), ids[cell]) for cell in ids})
    if drained:
        drain(store, ids)
    return found


def drain(store: MessageStore, ids: dict[Any, dict[str, int]]) -> None:
    """Checks that names are free again, consumes everything in order, and checks that nothing keeps the log."""
    assert store.in_doubt() == []
    for cell, known in ids.items():
        bench = Bench(store, int(cell))
        again = store.begin(xid_of(int(cell)))
        again.end()
        again.prepare(wait=False)
        again.rollback(wait=False)
        for queue in map(store.queue, bench.queues(QUEUES)):
            order = [message.id for message in queue.browse()]
            got = queue.acquire(10)
            assert [delivery.id for delivery in got] == order
            for delivery in got:
                delivery.accept(wait=False)
        for name in known:
            if is_whole(store, name, known[name]):
                store.destroy(known[name], wait=False)  # staged again by a rollback
    store.force()
    store.compact()
    stats, tail = store.stats(), store.tail()
    assert not any(any(counts.values()) for counts in stats["queues"].values())
    assert (stats["messages"], stats["transactions"]) == (0, 0)
    assert sum(segment.live_records for segment in tail.segments) == 0
    assert sum(segment.live_bytes for segment in tail.segments) == 0
    assert tail.base_lsn == tail.segments[-1].first_lsn


# ---- the cells ----


@dataclass
class Group:
    """The results of the processes of one piece of work and its restarts, or their failures."""

    acted: dict[str, Any]
    looks: list[list[Cells]]


def run_group(template: Path, path: Path, work: Work, restarts: str) -> Group:
    shutil.copytree(template, path)
    try:
        acted = and_then_killed(act, path, work, restarts in (NEVER, AFTER), restarts == NEVER)
        looks = {NEVER: "", AFTER: "d", BEFORE: "rd", TWICE: ["", "r", "", "d"]}[restarts]
        steps = looks if isinstance(looks, list) else [looks] if looks else []
        return Group(acted, [and_then_killed(look, path, acted["ids"], "r" in step, "d" in step) for step in steps])
    finally:
        remove(path)


class Groups:
    """Runs each group once, when the first of its cells needs it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.known: dict[tuple[str, str], Group | BaseException] = {}
        and_then_killed(make_template, directory / "template")

    def of(self, work: Work, restarts: str) -> Group:
        key = (work.name, restarts)
        if key not in self.known:
            try:
                self.known[key] = run_group(self.directory / "template", self.directory / "store", work, restarts)
            except AssertionError as failed:
                self.known[key] = failed
        group = self.known[key]
        if isinstance(group, BaseException):
            raise group
        return group


def make_template(path: Path, kept: list[Any]) -> None:
    """A store with the messages that every cell starts with, copied for each group."""
    store = logstore.open(path, segment_size=SMALL_SEGMENT)
    for cell in range(len(ENDING_LIST)):
        for name in QUEUES:
            store.declare_queue(f"{cell} {name}")
        bench = Bench(store, cell)
        for name, queues in PLACES.items():
            bench.publish(name, *queues)
    store.close()


@pytest.fixture(scope="module")
def groups() -> Iterator[Groups]:
    directory = quick_directory("logstore-matrix-")
    yield Groups(directory)
    remove(directory)


@pytest.mark.parametrize(("work", "cell", "restarts"), CELLS, ids=IDS)
def test_work_counts_at_its_commit_and_only_then_through_every_restart(
    work: Work, cell: int, restarts: str, groups: Groups
) -> None:
    group, number = groups.of(work, restarts), str(cell)
    ending = ENDING_LIST[cell][1]
    acted = {step: seen_then.get(number) for step, seen_then in group.acted.items()}
    looks = [[found[number] for found in one] for one in group.looks]
    state = "prepared" if ending.prepared else "active"
    assert acted["at first"] == expected(cell, START, NOTHING, "", "active")
    assert acted["pending"] == expected(cell, work.pending, NOTHING, work.gone[0], "active")
    assert acted["before"] == expected(cell, work.pending, NOTHING, work.gone[0], state)
    given = restarts in (NEVER, AFTER) or ending.prepared  # otherwise the first restart is the outcome: a rollback
    commits = given and ending.outcome == "commit"
    queues = work.committed if commits else work.rolled_back
    gone_now = work.gone[1] if commits else work.gone[2]
    gone = gone_now if commits else gone_now + work.staged
    old = {name: words.replace("+", "") for name, words in queues.items()}
    after = expected(cell, old, old, gone, "settled")
    if restarts in (NEVER, AFTER):
        assert acted["after"] == expected(cell, queues, NOTHING, gone_now, "settled")
    if restarts == NEVER:
        assert looks == []
    elif restarts == AFTER:
        assert looks == [[after]]
    elif ending.prepared:
        opened = expected(cell, work.pending, work.pending, work.gone[0], "prepared")
        resolved = expected(cell, queues, work.pending, gone_now, "settled")
        assert looks == (
            [[opened, resolved]] if restarts == BEFORE else [[opened], [opened, resolved], [after], [after]]
        )
    else:
        assert looks == ([[after, after]] if restarts == BEFORE else [[after], [after, after], [after], [after]])


def test_the_matrix_collects_every_cell() -> None:
    """Cells disappear silently if two share a name or a list is cut, so the collected ones are counted."""
    code = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", __file__]
    done = subprocess.run(code, capture_output=True, text=True, timeout=300, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    cells = [line for line in done.stdout.splitlines() if "through_every_restart[" in line]
    assert len(cells) == len(set(cells)) == len(CELLS) >= 22 * 2 * 6 * 4 // 3
    assert len({work.name for work, _, _ in CELLS}) == 22
    assert {restarts for _, _, restarts in CELLS} == set(RESTARTS)
    assert Counter(kind for kind, _ in ENDINGS) == {"local": 6, "distributed": 6}
