"""A message and a database row commit together even if the process is killed at any point: both or neither.

The processes are real: forked with everything imported and nothing open, and killed by SIGKILL. The partner is SQLite
through SQLAlchemy and zope.sqlalchemy. Another process inspects the result after recovery.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import transaction
import zope.sqlalchemy.datamanager

import logstore
from kit.killed import and_then_killed, killed, quick_directory, remove
from kit.sql_partner import Shop, Step
from kit.stores import SMALL_SEGMENT, contents
from kit.torture import stride
from logstore import tpc
from logstore.store import transactions
from logstore.tpc import join as tpc_join
from logstore.tpc import markers as tpc_markers

if TYPE_CHECKING:
    from collections.abc import Iterator

NEITHER = {"orders": [], "queues": ["old", "old"], "in doubt": 0, "markers": 0}
BOTH = {"orders": ["tea"], "queues": ["tea", "tea"], "in doubt": 0, "markers": 0}

# The process is killed at every line of these.
TRACED = {module.__file__ for module in (tpc_join, tpc_markers, transactions, zope.sqlalchemy.datamanager)}


@pytest.fixture
def place() -> Iterator[Path]:
    made = quick_directory("tpc-")
    yield made
    remove(made)


# ---- children ----


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_at_line(number: int) -> None:
    """Kills this process after this many lines of the traced modules."""
    left = number

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal left
        if frame.f_code.co_filename not in TRACED:
            return None
        if event == "line":
            left -= 1
            if left == 0:
                die()
        return trace

    sys.settrace(trace)


class Sides:
    """The two sides of the transaction, opened in a child: one or two stores, and the shop."""

    def __init__(self, place: Path) -> None:
        self.manager = transaction.TransactionManager()
        self.shop = Shop.in_file(place / "shop.sqlite", self.manager)
        self.stores = [logstore.open(place / name, segment_size=SMALL_SEGMENT) for name in ("one", "two")]
        self.participants = [
            tpc.Participant(store, ledger=self.shop.markers, transaction_manager=self.manager) for store in self.stores
        ]

    def work(self) -> None:
        """A row, and in each store a new message in exchange for the old one."""
        self.shop.order("tea")
        for store, participant in zip(self.stores, self.participants, strict=True):
            queue = store.queue("q")
            participant.dequeue(next(store.messages(queue)).id, queue)
            participant.publish(queue, b"tea")

    def recover(self) -> list[tpc.Recovered]:
        return [participant.recover() for participant in self.participants]


def make(place: Path) -> None:
    sides = Sides(place)
    for store in sides.stores:
        store.publish(store.declare_queue("q"), b"old")
        store.close()


def commit_and_die_at_step(place: Path, step: str, key: str) -> None:
    sides = Sides(place)
    sides.work()
    if key == "between the stores":
        key = min(resource.sortKey() for resource in sides.manager.get()._resources) + "+"
    sides.manager.get().join(Step(sides.manager, step, key, die))
    sides.manager.commit()


def commit_and_die_at_line(place: Path, number: int) -> None:
    sides = Sides(place)
    sides.work()
    die_at_line(number)
    sides.manager.commit()
    sys.settrace(None)


def recover_and_die_at_line(place: Path, number: int) -> None:
    sides = Sides(place)
    die_at_line(number)
    sides.recover()
    sys.settrace(None)


def look(place: Path, _: list[Any]) -> dict[str, Any]:
    """The contents after recovery."""
    sides = Sides(place)
    sides.recover()
    return {
        "orders": sides.shop.orders(),
        "queues": [b",".join(contents(store.queue("q"))).decode() for store in sides.stores],
        "in doubt": sum(len(store.in_doubt()) for store in sides.stores),
        "markers": len(sides.shop.marked()),
    }


def recovered_into(place: Path, _: list[Any]) -> list[list[int]]:
    sides = Sides(place)
    return [[len(found.committed), len(found.rolled_back), len(found.in_doubt)] for found in sides.recover()]


def copy_of(template: Path, number: int) -> Path:
    return Path(shutil.copytree(template, template.with_name(f"{template.name}-{number}")))


def look_at(place: Path) -> Any:
    return and_then_killed(look, place)


@pytest.fixture
def fresh(place: Path) -> Path:
    """Two stores and a shop, before the transaction."""
    made = place / "fresh"
    made.mkdir()
    assert not killed(make, made)
    return made


# ---- at each step, by name ----

# The step, the participants' order, the remaining state, and what recovery does in each store: branches committed,
# rolled back, left in doubt.
STEPS = {
    "before anybody begins": ("tpc_begin", "a", NEITHER, [0, 0, 0], [0, 0, 0]),
    "before anybody votes": ("tpc_vote", "a", NEITHER, [0, 0, 0], [0, 0, 0]),
    "after the first prepare": ("tpc_vote", "between the stores", NEITHER, [0, 1, 0], [0, 0, 0]),
    "after both prepares": ("tpc_vote", "m", NEITHER, [0, 1, 0], [0, 1, 0]),
    "after the database's commit": ("tpc_vote", "~z", BOTH, [1, 0, 0], [1, 0, 0]),
    "before anybody finishes": ("tpc_finish", "a", BOTH, [1, 0, 0], [1, 0, 0]),
    "after the first commit": ("tpc_finish", "between the stores", BOTH, [0, 0, 0], [1, 0, 0]),
    "after both commits": ("tpc_finish", "m", BOTH, [0, 0, 0], [0, 0, 0]),
    "at the very end": ("tpc_finish", "~z", BOTH, [0, 0, 0], [0, 0, 0]),
}


@pytest.mark.parametrize("when", STEPS)
def test_a_kill_at_any_step_of_the_commit_leaves_both_or_neither(fresh: Path, when: str) -> None:
    step, key, left, *recovered = STEPS[when]
    assert killed(commit_and_die_at_step, fresh, step, key)
    again = copy_of(fresh, 1)
    assert sorted(and_then_killed(recovered_into, again)) == sorted(recovered)
    for place in (again, fresh, fresh):  # a second recovery changes nothing
        assert look_at(place) == left


# ---- at each line ----

# Each line takes two or three processes, so all lines take minutes.
most_of_them = pytest.param(stride(7), marks=[pytest.mark.slow, pytest.mark.timeout(1800)])
every = pytest.mark.parametrize("stride", [most_of_them, 31], ids=["many lines", "every 31st"])


@every
def test_a_kill_at_any_line_of_the_commit_leaves_both_or_neither(fresh: Path, stride: int) -> None:
    found = []
    survived = False
    while not survived:
        here = copy_of(fresh, len(found))
        survived = not killed(commit_and_die_at_line, here, 1 + stride * len(found))
        found.append(look_at(here))
        remove(here)
    turn = found.index(BOTH)
    assert found == [NEITHER] * turn + [BOTH] * (len(found) - turn)
    assert turn * stride > 20
    assert (len(found) - turn) * stride > 10


@every
@pytest.mark.parametrize("when", ["after both prepares", "after the database's commit", "after the first commit"])
def test_a_kill_at_any_line_of_the_recovery_leaves_both_or_neither(fresh: Path, when: str, stride: int) -> None:
    step, key, left, *_ = STEPS[when]
    assert killed(commit_and_die_at_step, fresh, step, key)
    tries = 0
    survived = False
    while not survived:
        here = copy_of(fresh, tries)
        line = 1 + stride * tries
        survived = not killed(recover_and_die_at_line, here, line)
        assert look_at(here) == left, f"killed at line {line} of the recovery"
        remove(here)
        tries += 1
    assert tries * stride > 20
