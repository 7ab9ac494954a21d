"""Members as processes whose disks are full or hang, and whose clocks differ."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("msgspec", reason="the extra cluster is not installed")
pytest.importorskip("logstore._consensus", reason="the cluster is not built")

from kit.clock_jumps import HOUR_S, JumpingClock
from kit.member_disks import SIZE, Processes
from kit.patience import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    made = Processes(tmp_path)
    yield made
    made.kill_all()


@pytest.mark.parametrize("where", ["follower", "leader"])
def test_a_host_with_one_voter_dead_and_one_full_is_drained_and_grows_again(processes: Processes, where: str) -> None:
    for member in (1, 2, 3):
        processes.start(member)
    leader = processes.leader()
    full, dead = [member for member in processes.workers if member != leader]
    processes.kill(dead)
    full = full if where == "follower" else leader
    before = processes.workers[leader].ask("ids")
    processes.disks[full].fill()
    published = processes.workers[leader].ask("publish", count=3000, size=SIZE)
    assert published["error"] == "StoreFull", published["text"]
    assert f"member {full} " in published["text"] or where == "leader"
    assert processes.workers[full].ask("standing")["problem"].startswith("the disk has no room") or where == "leader"
    assert processes.workers[leader].ask("ids") == before + published["ids"]
    assert processes.workers[leader].ask("drain")["ids"] == before + published["ids"]
    kept: list[int] = []

    def takes(count: int) -> bool:
        more = processes.workers[leader].ask("publish", count=count, size=SIZE)
        kept.extend(more["ids"])
        return more["error"] == ""

    wait_until(lambda: takes(1), "what was drained leaves room")
    processes.disks[full].work()
    wait_until(lambda: takes(200), "the log grows again")
    processes.start(dead)
    wait_until(lambda: processes.workers[dead].ask("standing")["durable_index"] > 0, "the third one is back")
    processes.kill(leader)
    assert processes.workers[processes.leader()].ask("ids") == kept


def test_a_follower_whose_disk_is_full_goes_on_with_its_catalog_in_the_blocks_that_it_has(processes: Processes) -> None:
    for member in (1, 2, 3):
        processes.start(member)
    leader = processes.leader()
    full = next(member for member in processes.workers if member != leader)
    processes.disks[full].fill()
    for _ in range(4):
        noted = processes.workers[full].ask("catalog_lsn")
        processes.workers[leader].ask("publish", count=60, size=SIZE)
        processes.workers[leader].ask("drain")
        wait_until(lambda before=noted: processes.workers[full].ask("catalog_lsn") > before, "the catalog has more")
        assert processes.workers[full].ask("standing")["state"] == "follows"


def test_a_member_that_is_started_on_a_full_disk_says_so_and_comes_back_when_there_is_room(
    processes: Processes,
) -> None:
    for member in (1, 2, 3):
        processes.start(member)
    leader = processes.leader()
    full = next(member for member in processes.workers if member != leader)
    confirmed = (
        processes.workers[leader].ask("ids") + processes.workers[leader].ask("publish", count=50, size=SIZE)["ids"]
    )
    processes.kill(full)
    processes.disks[full].fill()
    processes.start(full)
    standing = processes.standing(full)
    assert standing["state"] in ("follows", "failed")
    assert standing["state"] == "follows" or "its disk is full: make room" in standing["problem"]
    confirmed += processes.workers[leader].ask("publish", count=50, size=SIZE)["ids"]  # the other two go on
    processes.disks[full].work()
    newest = processes.standing(leader)["durable_index"]
    wait_until(lambda: processes.follows(full, newest), "it is open and has caught up, without a command")
    processes.kill(leader)
    assert processes.workers[processes.leader()].ask("ids") == confirmed


def test_members_that_all_start_on_full_disks_come_back_with_everything_when_there_is_room(
    processes: Processes,
) -> None:
    for member in (1, 2, 3):
        processes.start(member)
    leader = processes.leader()
    confirmed = (
        processes.workers[leader].ask("ids") + processes.workers[leader].ask("publish", count=50, size=SIZE)["ids"]
    )
    processes.kill_all()
    for member, disk in processes.disks.items():
        disk.fill()
        processes.start(member)
    for member in processes.disks:
        standing = processes.standing(member)
        assert standing["state"] != "failed" or "its disk is full: make room" in standing["problem"]
    for disk in processes.disks.values():
        disk.work()
    worker = processes.workers[processes.leader()]
    assert worker.ask("ids") == confirmed
    assert worker.ask("publish", count=50, size=SIZE)["error"] == ""


def test_a_leader_whose_catalog_gets_no_block_refuses_a_declaration_and_its_host_lives(processes: Processes) -> None:
    for member in (1, 2, 3):
        processes.start(member)
    leader = processes.leader()
    worker = processes.workers[leader]
    confirmed = worker.ask("ids")
    processes.disks[leader].fill()
    declared = worker.ask("declare", first=0, count=3000)
    assert declared["error"] in ("CatalogError", "CatalogUnavailable", "StoreFull"), declared["text"]
    assert "full" in declared["text"]
    assert processes.standing(leader)["state"] == "leads"
    confirmed += worker.ask("publish", count=5, size=100)["ids"]
    assert worker.ask("ids") == confirmed
    assert worker.ask("drain")["ids"] == confirmed
    assert processes.standing(leader)["state"] == "leads"
    processes.disks[leader].work()
    more = worker.ask("declare", first=900_000, count=5)
    assert more["error"] == "", more["text"]
    assert set(more["names"]) > set(declared["names"])
    newest = processes.standing(leader)["durable_index"]
    others = [member for member in processes.workers if member != leader]
    wait_until(lambda: all(processes.follows(member, newest) for member in others), "the others have it")
    processes.kill(leader)
    assert processes.workers[processes.leader()].ask("names") == more["names"]


def test_a_leader_whose_disk_hangs_is_replaced_and_follows_when_it_works_again(processes: Processes) -> None:
    for member in (1, 2, 3):
        processes.start(member)
    leader = processes.together()
    before = processes.workers[leader].ask("ids")
    while (published := processes.workers[leader].ask("publish", count=20, size=SIZE))["error"]:
        before += published["ids"]  # on a busy machine a leader may be replaced at any time
        leader = processes.together()
    before += published["ids"]
    others = [member for member in processes.workers if member != leader]
    processes.disks[leader].hang()
    processes.workers[leader].tell("publish", count=1000, size=SIZE)
    new = processes.leader(*others)
    after = processes.workers[new].ask("publish", count=20, size=SIZE)["ids"]
    processes.disks[leader].work()
    outcome = processes.workers[leader].answer()
    assert outcome["error"] in ("OutcomeUnknown", "StoreClosed", "NotLeader")
    found = processes.workers[new].ask("ids")
    confirmed = before + outcome["ids"] + after
    assert [each for each in found if each in set(confirmed)] == confirmed
    newest = processes.standing(new)["durable_index"]
    wait_until(lambda: processes.follows(leader, newest), "it follows")


@pytest.mark.parametrize("waits", ["a broker", "a publisher"])
def test_a_leader_whose_disk_hangs_while_only_a_new_segment_is_awaited_is_replaced(
    processes: Processes, waits: str
) -> None:
    for member in (1, 2, 3):
        processes.start(member)
    while True:
        leader = processes.together()
        others = [member for member in processes.workers if member != leader]
        processes.disks[leader].hang_at_new_files()
        processes.workers[leader].ask("publish_while_there_is_room", size=SIZE)  # nothing is unforced now
        wait_until(
            lambda left=leader, rest=others: processes.in_step(left, *rest) or not processes.leads(left),
            "two can be a majority",
        )
        if processes.leads(leader):
            break
        processes.disks[leader].work()
    processes.disks[leader].hang()
    if waits == "a publisher":
        processes.workers[leader].tell("publish", count=1000, size=SIZE)
    assert processes.workers[processes.leader(*others)].ask("publish", count=20, size=SIZE)["error"] == ""
    processes.disks[leader].work()
    newest = processes.standing(processes.leader(*others))["durable_index"]
    if waits == "a publisher":
        assert processes.workers[leader].answer()["error"] in ("OutcomeUnknown", "StoreClosed", "NotLeader")
    wait_until(lambda: processes.follows(leader, newest), "it follows")


def test_what_is_published_during_a_transfer_that_fails_is_replicated_once_the_transfer_has_ended(
    processes: Processes,
) -> None:
    for member in (1, 2, 3):
        processes.start(member)
    leader = processes.together()
    target, behind = [member for member in processes.workers if member != leader]
    processes.disks[behind].hang()  # it answers heartbeats, and lacks what comes now
    while processes.workers[leader].ask("publish", count=1, size=SIZE)["error"]:
        leader = processes.leader(leader, target)
        target = next(member for member in processes.workers if member not in (leader, behind))
    before = processes.standing(leader)["index"]
    wait_until(lambda: processes.standing(behind)["index"] >= before, "it knows the batch")
    processes.workers[target].freeze()
    processes.workers[leader].ask("transfer", to=target)
    processes.workers[leader].tell("publish", count=1, size=SIZE)
    wait_until(lambda: processes.standing(behind)["index"] > before, "the batch is sent")
    processes.disks[behind].work()
    # With one of three frozen, a leader on a busy machine may cease before the majority has the batch.
    assert processes.workers[leader].answer()["error"] in ("", "OutcomeUnknown")


def test_clocks_that_differ_by_two_days_change_nothing(processes: Processes, tmp_path: Path) -> None:
    for member, hours in ((1, 24), (2, -24), (3, 0)):
        place = tmp_path / f"clock-{member}"
        place.mkdir()
        clock = JumpingClock(place)
        clock.jump(hours * HOUR_S)
        preloaded = f"{clock.environment['LD_PRELOAD']}:{processes.disks[member].environment['LD_PRELOAD']}"
        processes.start(member, LD_PRELOAD=preloaded, CLOCK_JUMPS=clock.environment["CLOCK_JUMPS"])
    kept = processes.workers[processes.leader()].ask("ids")
    for target in (1, 2, 3):
        while (leader := processes.leader()) != target:
            processes.workers[leader].ask("transfer", to=target)
            wait_until(lambda left=leader: processes.workers[left].ask("standing")["leader"] not in (0, left), "it has")
        kept += processes.workers[target].ask("publish", count=30, size=SIZE)["ids"]
        assert processes.workers[target].ask("ids") == kept
