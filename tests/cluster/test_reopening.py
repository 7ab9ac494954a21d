"""A host whose copy has failed is opened again while its member runs, and never with less than the member has said."""

from __future__ import annotations

import asyncio
import shutil
import threading
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("msgspec", reason="the extra cluster is not installed")
pytest.importorskip("logstore._consensus", reason="the cluster is not built")

from kit.copy_group import fill
from kit.member_disks import SIZE, Processes
from kit.patience import PATIENCE_S, wait_until
from kit.trio import HOST, Trio, group_of, judge, wait_for_all
from logstore import errors
from logstore.cluster.directory import read_vote
from logstore.cluster.jobs import Cut, Found
from logstore.cluster.member_loop import MemberLoop
from logstore.cluster.replica import Copy
from logstore.cluster.said import Said

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

OTHER = "bills-host"


@pytest.fixture
def trio(tmp_path: Path) -> Iterator[Trio]:
    made = Trio(tmp_path, hosts=(HOST, OTHER))
    yield made
    made.stop()


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    made = Processes(tmp_path)
    yield made
    made.kill_all()


def led_by_one(trio: Trio) -> list[int]:
    """All run, and member 1 leads; the messages that stay."""
    trio.start()
    trio.store()
    trio.transfer_to(1)
    stay = fill(trio.store(), 20)
    wait_for_all(trio)
    return stay


# ---- disks that fail -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["follower", "leader"])
def test_a_copy_whose_sync_failed_is_opened_again_twice_and_nothing_confirmed_is_lost(
    processes: Processes, where: str
) -> None:
    for member in (1, 2, 3):
        processes.start(member)
    confirmed = processes.workers[processes.leader()].ask("ids")
    for _ in range(2):
        leader = processes.leader()
        bad = leader if where == "leader" else next(member for member in processes.workers if member != leader)
        worker = processes.workers[bad]
        processes.disks[bad].fail()
        confirmed += processes.workers[leader].ask("publish", count=20, size=SIZE)["ids"]
        wait_until(lambda bad=bad: processes.standing(bad)["state"] == "failed", "its copy has failed")
        while_it_fails = worker.ask("reopen")
        assert "Input/output error" in while_it_fails["error"]
        assert processes.standing(bad)["state"] == "failed"
        new = processes.leader(*(member for member in processes.workers if member != bad))
        confirmed += processes.workers[new].ask("publish", count=20, size=SIZE)["ids"]
        processes.disks[bad].work()
        assert worker.ask("reopen") == {"was_open": False, "error": ""}
        newest = processes.standing(new)["durable_index"]
        wait_until(lambda bad=bad, newest=newest: processes.follows(bad, newest), "it has caught up")
        assert worker.ask("reopen") == {"was_open": True, "error": ""}
    found = processes.workers[processes.leader()].ask("ids")
    assert [each for each in found if each in set(confirmed)] == confirmed
    processes.kill(next(member for member in processes.workers if member != bad))
    assert processes.workers[processes.leader()].ask("ids") == found


def test_a_member_that_is_killed_while_it_opens_a_copy_again_starts_as_ever(processes: Processes) -> None:
    for member in (1, 2, 3):
        processes.start(member)
    leader = processes.leader()
    bad = next(member for member in processes.workers if member != leader)
    processes.disks[bad].fail()
    confirmed = (
        processes.workers[leader].ask("ids") + processes.workers[leader].ask("publish", count=20, size=SIZE)["ids"]
    )
    wait_until(lambda: processes.standing(bad)["state"] == "failed", "its copy has failed")
    processes.disks[bad].hang()
    processes.workers[bad].tell("reopen")
    confirmed += processes.workers[leader].ask("publish", count=20, size=SIZE)["ids"]
    processes.kill(bad)
    processes.disks[bad].work()
    processes.start(bad)
    newest = processes.standing(leader)["durable_index"]
    wait_until(lambda: processes.follows(bad, newest), "it has caught up")
    processes.kill(leader)
    assert processes.workers[processes.leader()].ask("ids") == confirmed


# ---- what is opened --------------------------------------------------------------------------------------------------


def test_a_copy_that_failed_is_opened_again_and_the_other_hosts_never_left(trio: Trio) -> None:
    stay = led_by_one(trio)
    for member in (3, 1):
        trio.fails(member)
        assert trio.members[member].standings()[OTHER].problem == ""
        assert trio.members[member].reopen(HOST).was_open is False
        stay.append(trio.store().publish("orders", b"after"))
        wait_for_all(trio)
    trio.store(OTHER).publish("orders", b"the other one")
    judge(trio, stay)


def test_a_host_that_is_well_stays_as_it_is_and_an_unknown_one_is_named(trio: Trio) -> None:
    led_by_one(trio)
    group = group_of(trio, 3)
    done = trio.members[3].reopen(HOST)
    assert (done.was_open, done.problem) == (True, "")
    assert group_of(trio, 3) is group
    with pytest.raises(errors.OptionError, match="no host called 'x': it has bills-host, orders-host"):
        trio.members[3].reopen("x")


def test_a_copy_that_cannot_be_opened_stays_out_with_the_same_reason_until_it_can(trio: Trio) -> None:
    stay = led_by_one(trio)
    trio.fails(3)
    vote = trio.host_dir(3) / "VOTE"
    whole = vote.read_bytes()
    vote.write_bytes(bytes(len(whole)))
    for _ in range(2):
        with pytest.raises(errors.StoreError, match="VOTE") as raised:
            trio.members[3].reopen(HOST)
        assert trio.members[3].standings()[HOST].problem == str(raised.value)
    vote.write_bytes(whole)
    assert trio.members[3].reopen(HOST).was_open is False
    judge(trio, stay)


def older(trio: Trio, place: Path) -> list[int]:
    """Member 3 has failed, and ``place`` has its directory from before what it acknowledged last."""
    stay = led_by_one(trio)
    trio.stop(3)
    shutil.copytree(trio.host_dir(3), place)
    trio.start(3)
    trio.transfer_to(2)  # in a later term, in which member 3 has voted or followed
    stay += fill(trio.store(), 20)
    wait_for_all(trio)
    trio.fails(3)
    return stay


@pytest.mark.parametrize("what", ["VOTE", "copy-1", "."])
def test_a_directory_that_was_replaced_by_an_older_one_is_refused_again_and_again(
    trio: Trio, tmp_path: Path, what: str
) -> None:
    stay = older(trio, tmp_path / "older")
    newest = tmp_path / "newest"
    shutil.copytree(trio.host_dir(3), newest)

    def put(from_dir: Path) -> None:
        source, target = from_dir / what, trio.host_dir(3) / what
        if source.is_dir():
            shutil.rmtree(target)
            shutil.copytree(source, target)
        else:
            shutil.copyfile(source, target)

    put(tmp_path / "older")
    for _ in range(2):
        with pytest.raises(errors.StoreError, match="logstore cluster rebuild"):
            trio.members[3].reopen(HOST)
        assert trio.members[3].standings()[HOST].state == "failed"
    put(newest)
    assert trio.members[3].reopen(HOST).was_open is False
    judge(trio, stay)


def test_a_copy_that_is_refused_as_too_old_is_rebuilt_by_the_same_process(trio: Trio, tmp_path: Path) -> None:
    stay = older(trio, tmp_path / "older")
    shutil.rmtree(trio.host_dir(3))
    shutil.copytree(tmp_path / "older", trio.host_dir(3))
    with pytest.raises(errors.StoreError, match="is older than what this member has said since it started"):
        trio.members[3].reopen(HOST)
    assert trio.members[3].rebuild(HOST).is_complete
    trio.fails(3)
    shutil.rmtree(trio.host_dir(3))
    shutil.copytree(tmp_path / "older", trio.host_dir(3))
    with pytest.raises(errors.StoreError, match="its copy is from before rebuild 1"):
        trio.members[3].reopen(HOST)
    assert trio.members[3].rebuild(HOST).is_complete
    vote = read_vote(trio.host_dir(3))
    assert vote is not None
    assert vote.rebuild == 2
    judge(trio, stay)


def test_a_directory_of_another_member_is_refused(trio: Trio) -> None:
    led_by_one(trio)
    trio.fails(3)
    kept = trio.host_dir(3).rename(trio.directories[3] / "kept")
    trio.stop(2)
    shutil.copytree(trio.host_dir(2), trio.host_dir(3))
    with pytest.raises(errors.StoreError, match="belongs to member 2, and this is member 3"):
        trio.members[3].reopen(HOST)
    shutil.rmtree(trio.host_dir(3))
    kept.rename(trio.host_dir(3))
    trio.start(2)
    assert trio.members[3].reopen(HOST).was_open is False


# ---- one at a time ---------------------------------------------------------------------------------------------------


class Held:
    """What opens a copy again waits until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_there, self._goes_on = threading.Event(), asyncio.Event()
        real: Callable[..., Any] = MemberLoop.reopen

        async def waits(member: MemberLoop, group: Any) -> None:
            self._loop = member.loop
            self.is_there.set()
            await self._goes_on.wait()
            await real(member, group)

        monkeypatch.setattr(MemberLoop, "reopen", waits)

    def let_go(self) -> None:
        self._loop.call_soon_threadsafe(self._goes_on.set)


def test_a_rebuild_and_a_reopening_of_one_host_exclude_each_other_and_themselves(
    trio: Trio, monkeypatch: pytest.MonkeyPatch
) -> None:
    stay = led_by_one(trio)
    three = trio.members[3]
    trio.fails(3)
    held = Held(monkeypatch)
    first = threading.Thread(target=three.reopen, args=(HOST,))
    first.start()
    assert held.is_there.wait(PATIENCE_S)
    with pytest.raises(errors.StoreError, match="is being opened again already"):
        three.reopen(HOST)
    with pytest.raises(errors.StoreError, match="is being opened again: rebuild it when that has failed"):
        three.rebuild(HOST)
    assert three.reopen(OTHER).was_open is True
    held.let_go()
    first.join()
    monkeypatch.undo()
    held = Held(monkeypatch)
    rebuilds = threading.Thread(target=three.rebuild, args=(HOST,))
    rebuilds.start()
    assert held.is_there.wait(PATIENCE_S)
    with pytest.raises(errors.StoreError, match="is being rebuilt"):
        three.reopen(HOST)
    held.let_go()
    rebuilds.join()
    judge(trio, stay)


def test_a_member_that_stops_while_it_opens_a_copy_again_closes_that_copy(
    trio: Trio, monkeypatch: pytest.MonkeyPatch
) -> None:
    stay = led_by_one(trio)
    three = trio.members.pop(3)
    group = three._running.group(HOST)
    group.loop.call_soon_threadsafe(group.fail, errors.StoreError("the disk is gone"))
    wait_until(lambda: three.standings()[HOST].state == "failed", "it has failed")
    held = Held(monkeypatch)
    first = threading.Thread(target=three.reopen, args=(HOST,))
    first.start()
    assert held.is_there.wait(PATIENCE_S)
    closes = threading.Thread(target=three.close)
    closes.start()
    held.let_go()
    first.join()
    closes.join()
    Copy.open(trio.host_dir(3), catalog=True).close()  # nobody has it locked
    trio.start(3)
    judge(trio, stay)


# ---- what was said ---------------------------------------------------------------------------------------------------


def found(
    rebuild: int = 1, start_term: int = 5, vote: tuple[int, int] = (5, 2), tail: tuple[int, int] = (5, 9)
) -> Found:
    from logstore.cluster.engine import Log

    log = Log(vote_term=vote[0], voted_for=vote[1])
    return Found(b"u" * 16, b"c" * 16, rebuild, start_term, 3, 1, tail, (0, 0), log)


@pytest.mark.parametrize(
    ("less", "why"),
    [
        ({"rebuild": 0}, "from before rebuild 1"),
        ({"start_term": 4}, "VOTE has term 4, and had 5"),
        ({"start_term": 4, "vote": (4, 0)}, "VOTE has term 4, and had 5"),
        ({"vote": (5, 3)}, "a vote for member 3 in term 5, and had one for 2"),
        ({"vote": (5, 0)}, "a vote for member 0 in term 5, and had one for 2"),
        ({"tail": (5, 8)}, "ends at index 8 of term 5, and index 9 of term 5 was acknowledged"),
        ({"tail": (4, 12)}, "ends at index 12 of term 4, and index 9 of term 5 was acknowledged"),
    ],
)
def test_less_than_what_was_said_is_refused(tmp_path: Path, less: dict[str, Any], why: str) -> None:
    said = Said()
    said.check(tmp_path, found())  # nothing was said yet
    said.began(found())
    said.check(tmp_path, found())
    with pytest.raises(errors.StoreError, match=why):
        said.check(tmp_path, found(**less))
    said.check(tmp_path, found(start_term=6, vote=(6, 0), tail=(6, 10)))
    said.check(tmp_path, found(rebuild=2, start_term=1, vote=(1, 0), tail=(0, 0)))


def test_a_cut_lowers_what_was_said_before_it_is_made(trio: Trio, monkeypatch: pytest.MonkeyPatch) -> None:
    led_by_one(trio)
    group = group_of(trio, 3)
    (term, index), before = group.said.tail, group.tail
    assert group.copy is not None

    def fail(_: int) -> None:
        raise errors.StoreError("the disk is gone")

    monkeypatch.setattr(group.copy, "cut", fail)
    group.loop.call_soon_threadsafe(group.give, Cut(index - 1, group.said))
    wait_until(lambda: trio.members[3].standings()[HOST].state == "failed", "the cut has failed")
    assert group.said.tail == (term, index - 1)
    assert group.tail == before
    assert trio.members[3].reopen(HOST).was_open is False
