"""A copy that is bad, old or gone is replaced by a fresh one from the others, while they serve."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import threading
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("msgspec", reason="the extra cluster is not installed")
pytest.importorskip("logstore._consensus", reason="the cluster is not built")

from kit.copy_group import fill
from kit.patience import PATIENCE_S, wait_until
from kit.ports import free_ports
from kit.trio import HOST, Publisher, Trio, group_of, judge, number_of, wait_for_all
from logstore import errors
from logstore.cluster import rebuilding
from logstore.cluster.directory import read_vote
from logstore.cluster.group import Group
from logstore.cluster.member import Member

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from logstore.cluster.jobs import Found
    from logstore.cluster.member_loop import MemberLoop

KEPT = 128 << 10


@pytest.fixture
def trio(tmp_path: Path) -> Iterator[Trio]:
    made = Trio(tmp_path, kept_bytes=KEPT)
    yield made
    made.stop()


def rest_of(trio: Trio, member: int) -> list[int]:
    return [each for each in trio.addresses if each != member]


def rebuilds(trio: Trio, member: int, **options: Any) -> rebuilding.Rebuilt:
    """The copy of this member is rebuilt, and it takes part on return."""
    done = trio.members[member].rebuild(HOST, **options)
    assert done.is_complete
    vote = read_vote(trio.host_dir(member))
    assert vote is not None
    assert vote.rebuild >= 1
    assert not (trio.host_dir(member) / rebuilding.FILE_NAME).exists()
    return done


def damaged(trio: Trio, member: int) -> None:
    """Spoils a segment of the log in the middle, where no crash could have torn it."""
    segments = sorted((trio.host_dir(member) / f"copy-{number_on_disk(trio, member)}").glob("*.seg"))
    raw = bytearray(segments[-1].read_bytes())
    raw[4096 + 40] ^= 1
    segments[-1].write_bytes(raw)


def number_on_disk(trio: Trio, member: int) -> int:
    vote = read_vote(trio.host_dir(member))
    assert vote is not None
    return vote.copy


def led_by_one(trio: Trio) -> list[int]:
    """All run, member 1 leads, and the log has some content; the messages that stay."""
    trio.start()
    trio.store()
    trio.transfer_to(1)
    stay = fill(trio.store(), 150)
    wait_for_all(trio)
    return stay


# ---- while all run ---------------------------------------------------------------------------------------------------


def test_a_copy_is_rebuilt_while_others_publish_and_has_all(trio: Trio) -> None:
    stay = led_by_one(trio)
    publisher = Publisher(trio)
    try:
        done = rebuilds(trio, 3)
    finally:
        stay += publisher.stop()
    assert done.kept is None
    assert number_of(trio, 3) >= 2
    assert not (trio.host_dir(3) / "copy-1").exists()
    wait_until(lambda: group_of(trio, 1).counted_rebuild(3) == 1, "the others count the copy by its number")
    judge(trio, stay)


def test_the_leader_hands_over_before_its_copy_is_rebuilt(trio: Trio) -> None:
    stay = led_by_one(trio)
    rebuilds(trio, 1)
    assert trio.leader() != 1
    stay.append(trio.store().publish("orders", b"after"))
    judge(trio, stay)


def test_a_copy_that_is_kept_is_put_aside_and_stays_a_store(trio: Trio) -> None:
    from logstore.inspect import Reader

    led_by_one(trio)
    done = rebuilds(trio, 3, keep=True)
    assert done.kept == trio.host_dir(3) / "kept-1"
    with Reader(done.kept, undurable=True) as reader:
        assert reader.info.index > 0
    trio.stop(3)
    trio.start(3)
    assert done.kept.exists()


def test_a_second_rebuild_counts_on(trio: Trio) -> None:
    stay = led_by_one(trio)
    rebuilds(trio, 3)
    rebuilds(trio, 3)
    vote = read_vote(trio.host_dir(3))
    assert vote is not None
    assert vote.rebuild == 2
    judge(trio, stay)


# ---- groups of more than three ---------------------------------------------------------------------------------------


def voters(trio: Trio) -> list[int]:
    return sorted(seat.member for seat in trio.members[trio.leader()].members(HOST) if seat.voter)


@pytest.mark.parametrize("count", [4, 5])
def test_a_voter_of_four_or_five_is_a_voter_again_after_its_rebuild(tmp_path: Path, count: int) -> None:
    many = Trio(tmp_path, count=count, kept_bytes=KEPT)
    try:
        stay = led_by_one(many)
        for _ in range(2):
            rebuilds(many, count)
            assert voters(many) == list(many.addresses)
        damaged_and_stopped(many, 2)
        rebuilds(many, 2)
        assert voters(many) == list(many.addresses)
        judge(many, stay)
    finally:
        many.stop()


def damaged_and_stopped(trio: Trio, member: int) -> None:
    """Its copy does not open, so only the others know that it was a voter."""
    trio.stop(member)
    damaged(trio, member)
    trio.start(member)
    assert trio.members[member].standings()[HOST].state == "failed"


def test_a_standby_that_took_the_place_of_a_voter_keeps_it_and_the_voters_are_as_many_as_before(
    trio: Trio, tmp_path: Path
) -> None:
    stay = led_by_one(trio)
    trio.addresses[4] = f"127.0.0.1:{free_ports(1)[0]}"
    trio.directories[4] = tmp_path / "m4"
    trio.directories[4].mkdir()
    trio.start(4)
    wait_until(lambda: HOST in trio.members[4].standings() and number_of(trio, 4) > 0, "the fourth has a copy")
    wait_for_all(trio)
    assert voters(trio) == [1, 2, 3]
    rebuilds(trio, 3)
    assert len(voters(trio)) == 3
    judge(trio, stay)


@pytest.mark.parametrize("step", ["_leave", "discard", "reopen"])
def test_a_voter_of_four_that_is_killed_in_its_rebuild_is_a_voter_again(
    tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    four = Trio(tmp_path, count=4, kept_bytes=KEPT)
    try:
        stay = led_by_one(four)
        killed_after(four, step, tmp_path, monkeypatch)
        four.start(3)
        wait_until(lambda: not (four.host_dir(3) / rebuilding.FILE_NAME).exists(), "the rebuild has ended")
        assert voters(four) == [1, 2, 3, 4]
        judge(four, stay)
    finally:
        four.stop()


# ---- copies that cannot take part ------------------------------------------------------------------------------------


def test_a_copy_with_a_corrupt_segment_is_rebuilt_by_the_member_that_left_it_out(trio: Trio) -> None:
    stay = led_by_one(trio)
    trio.stop(3)
    damaged(trio, 3)
    trio.start(3)
    standing = trio.members[3].standings()[HOST]
    assert standing.state == "failed"
    rebuilds(trio, 3)
    judge(trio, stay)


def test_a_directory_from_an_earlier_time_is_refused_by_the_others_and_rebuilt(trio: Trio, tmp_path: Path) -> None:
    stay = led_by_one(trio)
    trio.stop(3)
    shutil.copytree(trio.directories[3], tmp_path / "older")
    trio.start(3)
    stay += fill(trio.store(), 40)
    wait_for_all(trio)
    trio.stop(3)
    shutil.rmtree(trio.directories[3])
    shutil.copytree(tmp_path / "older", trio.directories[3])
    trio.start(3)
    wait_until(
        lambda: "member m1 refuses the copy of this member" in (trio.members[3].report()["hosts"][0]["problem"] or ""),
        "the leader refuses it",
    )
    assert "logstore cluster rebuild" in trio.members[3].report()["hosts"][0]["problem"]
    rebuilds(trio, 3)
    judge(trio, stay)


def test_a_directory_from_before_a_rebuild_is_rebuilt_with_a_number_above_the_one_that_counts(
    trio: Trio, tmp_path: Path
) -> None:
    stay = led_by_one(trio)
    trio.stop(3)
    shutil.copytree(trio.directories[3], tmp_path / "older")
    trio.start(3)
    for _ in range(2):
        rebuilds(trio, 3)
    wait_for_all(trio)
    trio.stop(3)
    shutil.rmtree(trio.directories[3])
    shutil.copytree(tmp_path / "older", trio.directories[3])
    trio.start(3)
    rebuilds(trio, 3)
    vote = read_vote(trio.host_dir(3))
    assert vote is not None
    assert vote.rebuild == 3
    judge(trio, stay)


@pytest.mark.parametrize("wiped", ["copy-1", "."])
def test_a_voter_whose_directory_was_wiped_says_what_to_type_and_is_rebuilt(
    trio: Trio, wiped: str, caplog: pytest.LogCaptureFixture
) -> None:
    stay = led_by_one(trio)
    trio.stop(3)
    shutil.rmtree(trio.host_dir(3) / wiped)
    with caplog.at_level(logging.WARNING):
        trio.start(3)
        wait_until(lambda: "logstore cluster rebuild" in trio.members[3].standings().get(HOST, Empty).problem, "why")
    assert "logstore cluster rebuild" in caplog.text
    rebuilds(trio, 3)
    judge(trio, stay)


class Empty:
    problem = ""


# ---- refusals --------------------------------------------------------------------------------------------------------


def test_no_copy_is_rebuilt_while_the_others_are_no_majority_without_it(trio: Trio) -> None:
    stay = led_by_one(trio)
    trio.stop(2)
    for member in (3, 1):
        with pytest.raises(errors.NoMajority, match="2 voters, of which a majority is needed, and 1 can be reached"):
            trio.members[member].rebuild(HOST, within_s=1)
        assert trio.leader() == 1
    assert number_on_disk(trio, 3) == 1
    assert not (trio.host_dir(3) / rebuilding.FILE_NAME).exists()
    stay.append(trio.store().publish("orders", b"the two that are left go on"))
    trio.start(2)
    judge(trio, stay)


def test_the_only_voter_is_never_rebuilt(trio: Trio) -> None:
    trio.start()
    trio.store()
    for number in (3, 2):
        leader = trio.leader()
        leaves = next(member for member in (number, 1, 2, 3) if member in trio.members and member != leader)
        trio.members[leader].remove(HOST, leaves)
        trio.stop(leaves)
    (last,) = trio.members
    with pytest.raises(errors.NoMajority, match="this member's copy stays as it is"):
        trio.members[last].rebuild(HOST, within_s=1)
    assert trio.store().publish("orders", b"alone")
    trio.start(*rest_of(trio, last))


def test_a_host_that_is_not_there_and_a_vote_that_is_damaged_are_named(trio: Trio) -> None:
    trio.start()
    with pytest.raises(errors.OptionError, match="no host called 'x': it has orders-host"):
        trio.members[3].rebuild("x")
    trio.stop(3)
    vote = trio.host_dir(3) / "VOTE"
    whole = vote.read_bytes()
    vote.write_bytes(bytes(len(whole)))
    trio.start(3)
    with pytest.raises(errors.StoreError, match="join with another name and id"):
        trio.members[3].rebuild(HOST)
    vote.write_bytes(whole)


# ---- killed between two steps ----------------------------------------------------------------------------------------

STEPS = ("begin", "_leave", "put_aside", "discard", "end", "reopen")


class Stopped:
    """Stops a rebuild after one of its steps, with the directory as it is then: as a kill leaves it.

    The member's connections are gone by then, because a killed one acknowledges nothing more.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, step: str, dying: Member) -> None:
        self.is_there, self.goes_on = threading.Event(), threading.Event()
        running = dying._running
        target: Any = rebuilding
        if step == "_leave":
            target = rebuilding.Rebuilding
        elif step == "reopen":
            from logstore.cluster.member_loop import MemberLoop as target  # noqa: N813
        real: Callable[..., Any] = getattr(target, step)

        def returning(*given: Any) -> Any:
            made = real(*given)
            cut = asyncio.run_coroutine_threadsafe(cut_off(running), running.loop)
            if threading.get_ident() != running.thread_id:  # else it is the first thing that the loop does later
                cut.result(PATIENCE_S)
            self.stop()
            return made

        async def on_loop(*given: Any) -> Any:
            made = await real(*given)
            await cut_off(running)
            self.stop()
            return made

        monkeypatch.setattr(target, step, on_loop if step in ("_leave", "reopen") else returning)

    def stop(self) -> None:
        self.is_there.set()
        assert self.goes_on.wait(PATIENCE_S)


@pytest.mark.parametrize("step", STEPS)
def test_a_member_that_is_killed_after_any_step_goes_on_when_it_runs_again(
    trio: Trio, step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stay = led_by_one(trio)
    killed_after(trio, step, tmp_path, monkeypatch)
    trio.start(3)
    wait_until(lambda: is_rebuilt(trio), "it is a voter with a fresh copy")
    wait_until(lambda: not (trio.host_dir(3) / rebuilding.FILE_NAME).exists(), "the rebuild has ended")
    judge(trio, stay)


def killed_after(trio: Trio, step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Member 3 is rebuilt, and its directory is as a kill after this step leaves it."""
    with monkeypatch.context() as patched:
        dying = trio.members.pop(3)
        stopped = Stopped(patched, step, dying)
        rebuilder = threading.Thread(target=rebuild_and_ignore, args=(dying,))
        rebuilder.start()
        assert stopped.is_there.wait(PATIENCE_S)
        shutil.copytree(trio.directories[3], tmp_path / "killed")
        ends = threading.Thread(target=dying.close)
        ends.start()
        stopped.goes_on.set()
        ends.join()
        rebuilder.join()
    shutil.rmtree(trio.directories[3])
    shutil.copytree(tmp_path / "killed", trio.directories[3])


def test_a_member_that_is_closed_while_its_fresh_copy_is_opened_leaves_it_closed(
    trio: Trio, monkeypatch: pytest.MonkeyPatch
) -> None:
    stay = led_by_one(trio)
    opens, may_open = threading.Event(), threading.Event()
    real = Group._open_copy

    def held(group: Group) -> Found:
        opens.set()
        assert may_open.wait(PATIENCE_S)
        return real(group)

    closing = trio.members.pop(3)
    with monkeypatch.context() as patched:
        patched.setattr(Group, "_open_copy", held)
        rebuilder = threading.Thread(target=rebuild_and_ignore, args=(closing,))
        rebuilder.start()
        assert opens.wait(PATIENCE_S)
        closer = threading.Thread(target=closing.close)
        closer.start()
        wait_until(lambda: not closing._running.rebuilding._tasks, "the rebuild waits no more")
        may_open.set()
        closer.join()
        rebuilder.join()
    trio.start(3)
    assert trio.members[3].standings()[HOST].problem == ""
    wait_until(lambda: is_rebuilt(trio), "the rebuild has gone on")
    judge(trio, stay)


async def cut_off(running: MemberLoop) -> None:
    assert running._transport is not None
    await running._transport.close()


def rebuild_and_ignore(member: Member) -> None:
    with contextlib.suppress(errors.StoreError):  # it dies
        member.rebuild(HOST, keep=True)


def is_rebuilt(trio: Trio) -> bool:
    seats = trio.members[3].members(HOST)
    return number_of(trio, 3) > 1 and any(seat.member == 3 and seat.voter for seat in seats)
