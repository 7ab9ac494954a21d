"""The judge of the real disks' tests detects each kind of error, and allows every correct state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kit.real_disk_journal import Journal, JournalWriter, work
from kit.real_disk_judge import judge, same
from kit.real_disk_server import Control

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

XID = "1:aa:"


def message(tag: str, *, locked: bool = False, whole: bool = True, key: int = 0) -> dict[str, Any]:
    return {"tag": tag, "id": key or int(tag.split("-")[1]), "locked": locked, "whole": whole}


def shows(*, in_doubt: tuple[str, ...] = (), **queues: list[dict[str, Any]]) -> dict[str, Any]:
    return {"queues": queues, "in doubt": list(in_doubt)}


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    """A journal at entries 1, 2, 3 ... of a disk: everything is acknowledged but the last two operations."""
    control = Control()
    writer = JournalWriter(tmp_path / "journal", control)

    def done(*atoms: dict[str, Any], back: bool = True, **ids: int) -> None:
        control.entries += 1
        number = writer.begin(*atoms)
        control.entries += 1
        if back:
            writer.back(number, ids=ids)

    done(work(queue="a"))  # 2
    done(work(queue="b"))  # 4
    done(work([("m-1-0", "a"), ("m-1-0", "b")]))  # 6
    done(work([("m-2-0", "a")]), work([("m-3-0", "a")]), **{"m-2-0": 2})  # 8
    done(work(minus=[("m-1-0", "a")]))  # 10
    done(work([("m-4-0", "a")], [("m-2-0", "a")], prepares=XID))  # 12
    done(work([("m-5-0", "b")], [("m-1-0", "b")]))  # 14
    done(work(settles=XID), back=False)  # begun at 15
    done(work([("m-6-0", "a"), ("m-6-0", "b")]), back=False)  # begun at 17
    return Journal.read(tmp_path / "journal")


AT_THE_END = 99
LOCKED = message("m-2-0", locked=True)
M3, M4, M5, M6 = (message(f"m-{n}-0") for n in (3, 4, 5, 6))


@pytest.mark.parametrize(
    "shown",
    [
        shows(a=[LOCKED, M3], b=[M5], in_doubt=(XID,)),
        shows(a=[M3, M4], b=[M5]),
        shows(a=[M3, M4, M6], b=[M5, M6]),
        shows(a=[LOCKED, M3, M6], b=[M5, M6], in_doubt=(XID,)),
    ],
)
def test_every_correct_state_is_allowed(journal: Journal, shown: dict[str, Any]) -> None:
    assert judge(journal, AT_THE_END, shown) == []


@pytest.mark.parametrize(
    ("wrong", "shown"),
    [
        ("m-5-0', 'b') is missing", shows(a=[M3, M4], b=[])),
        ("never made", shows(a=[M3, M4], b=[M5, message("m-7-0")])),
        ("m-1-0', 'a') is there", shows(a=[message("m-1-0"), M3, M4], b=[M5])),
        ("m-6-0', 'b') is missing", shows(a=[M3, M4, M6], b=[M5])),
        ("is after", shows(a=[M6, M3, M4], b=[M5, M6])),
        ("is after", shows(a=[M4, M3], b=[M5])),
        ("twice", shows(a=[M3, M4, M4], b=[M5])),
        ("not what was published", shows(a=[M3, M4], b=[message("m-5-0", whole=False)])),
        ("another id", shows(a=[message("m-2-0", locked=True, key=9), M3], b=[M5], in_doubt=(XID,))),
        ("not locked", shows(a=[message("m-2-0"), M3], b=[M5], in_doubt=(XID,))),
        ("is missing", shows(a=[M3], b=[M5], in_doubt=(XID,))),
        ("m-4-0', 'a') is there", shows(a=[LOCKED, M3, M4], b=[M5], in_doubt=(XID,))),
        ("never prepared", shows(a=[M3, M4], b=[M5], in_doubt=("1:bb:",))),
        ("queue b is missing", shows(a=[M3, M4])),
        ("locked without a transaction", shows(a=[M3, M4], b=[message("m-5-0", locked=True)])),
    ],
)
def test_every_wrong_state_is_detected(journal: Journal, wrong: str, shown: dict[str, Any]) -> None:
    assert any(wrong in text for text in judge(journal, AT_THE_END, shown)), judge(journal, AT_THE_END, shown)


@pytest.mark.parametrize(
    ("position", "shown", "fine"),
    [
        (0, shows(), True),
        (1, shows(a=[]), True),
        (0, shows(a=[]), False),  # declared before it was asked for
        (2, shows(), False),
        (7, shows(a=[message("m-1-0"), message("m-2-0")], b=[message("m-1-0")]), True),
        (7, shows(a=[message("m-1-0"), M3], b=[message("m-1-0")]), False),  # of one call, the later alone
        (8, shows(a=[message("m-1-0"), message("m-2-0")], b=[message("m-1-0")]), False),
        (11, shows(a=[message("m-2-0"), M3], b=[message("m-1-0")]), True),
        (12, shows(a=[message("m-2-0"), M3], b=[message("m-1-0")]), False),  # prepared, and not in doubt
        (12, shows(a=[LOCKED, M3], b=[message("m-1-0")], in_doubt=(XID,)), True),
        (13, shows(a=[LOCKED, M3], b=[], in_doubt=(XID,)), False),  # half a transaction
    ],
)
def test_the_allowed_states_depend_on_the_moment(
    journal: Journal, position: int, shown: dict[str, Any], fine: bool
) -> None:
    assert (judge(journal, position, shown) == []) is fine


def test_an_operation_survives_only_with_all_that_returned_before_it_began(tmp_path: Path) -> None:
    """An operation without a wait may be missing, but then so are all later ones."""
    control = Control()
    writer = JournalWriter(tmp_path / "journal", control)
    for atom in (work(queue="a"), work([("m-1-0", "a")]), work([("m-2-0", "a")])):
        writer.back(writer.begin(atom), durable=bool(atom.get("queue")))
    journal = Journal.read(tmp_path / "journal")
    assert judge(journal, 0, shows(a=[message("m-1-0")])) == []
    assert judge(journal, 0, shows(a=[message("m-2-0")])) != []


def test_a_refused_operation_must_have_no_effect(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path / "journal", Control())
    writer.back(writer.begin(work(queue="a")))
    writer.refused(writer.begin(work([("m-1-0", "a")])))
    journal = Journal.read(tmp_path / "journal")
    assert judge(journal, 0, shows(a=[])) == []
    assert judge(journal, 0, shows(a=[message("m-1-0")])) != []


@pytest.mark.parametrize(
    "change",
    [
        lambda shown: shown["queues"]["a"].pop(),
        lambda shown: shown["queues"].pop("b"),
        lambda shown: shown["in doubt"].append(XID),
        lambda shown: shown["queues"].update(c=[]),
    ],
)
def test_any_change_of_an_unused_store_is_detected(change: Callable[[dict[str, Any]], None]) -> None:
    before, after = shows(a=[M3], b=[M5]), shows(a=[M3], b=[M5])
    assert same(before, after) == []
    change(after)
    assert same(before, after) != []
