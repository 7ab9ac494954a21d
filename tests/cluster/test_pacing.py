"""A leader holds confirms back for a voter that lags and makes progress, and for no other."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("msgspec", reason="the extra cluster is not installed")
pytest.importorskip("logstore._consensus", reason="the cluster is not built")

from kit.patience import wait_until
from kit.trio import HOST, Trio
from logstore.cluster.pacing import NEAR_BATCHES, PROGRESS_MS, ROUND_PACE_MS, Pacing

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from logstore.cluster.group import Group
    from logstore.cluster.replica import Batch

BEHIND = 1000
"""What R3 and a change of members allow a voter to lack."""


# ---- the rule --------------------------------------------------------------------------------------------------------


def paced(*members: int, kept_bytes: int = 1 << 30) -> Pacing:
    made = Pacing(kept_bytes)
    made.members = frozenset(members)
    return made


def write(pacing: Pacing, indexes: range, size: int = 100) -> None:
    for index in indexes:
        pacing.written(index, size)


def confirmed_now(pacing: Pacing, index: int, now_ms: int) -> int:
    """Confirms from this index on until one is held back; the last that was not."""
    while pacing.confirms(index, now_ms):
        index += 1
    return index - 1


def test_a_voter_may_lack_as_many_batches_as_a_change_of_members_allows() -> None:
    pacing = paced(2, 3)
    write(pacing, range(1, 5000))
    pacing.acknowledged(2, 4000, 0)
    pacing.acknowledged(3, 10, 0)
    assert confirmed_now(pacing, 11, 0) == 10 + NEAR_BATCHES < 10 + BEHIND
    assert pacing.held_by(0) == 3
    pacing.acknowledged(3, 11, 0)
    assert confirmed_now(pacing, 11 + NEAR_BATCHES, 0) == 11 + NEAR_BATCHES


def test_what_a_voter_beyond_that_lacks_shrinks_by_half_of_what_it_acknowledges() -> None:
    pacing = paced(2)
    write(pacing, range(1, 9000))
    pacing.acknowledged(2, 1000, 0)
    pacing.acknowledged(2, 1100, PROGRESS_MS)
    assert not pacing.confirms(5000, PROGRESS_MS)
    pacing._confirmed = 4999
    pacing.lost(2)
    pacing.acknowledged(2, 1100, PROGRESS_MS)
    assert not pacing.confirms(5000, PROGRESS_MS)
    pacing.acknowledged(2, 1120, PROGRESS_MS + 1)
    assert confirmed_now(pacing, 5000, PROGRESS_MS + 1) == 5009


def test_bytes_count_as_batches_do() -> None:
    pacing = paced(2, kept_bytes=10_000)
    write(pacing, range(1, 50), 1000)
    pacing.acknowledged(2, 1, 0)
    assert confirmed_now(pacing, 2, 0) == 6
    pacing.acknowledged(2, 3, 0)
    assert confirmed_now(pacing, 7, 0) == 8


def test_a_voter_that_makes_no_progress_paces_nobody() -> None:
    pacing = paced(2)
    write(pacing, range(1, 5000))
    pacing.acknowledged(2, 1, 0)
    assert confirmed_now(pacing, 2, 0) == 1 + NEAR_BATCHES
    pacing.acknowledged(2, 1, PROGRESS_MS - 1)  # an answer to a heartbeat
    assert not pacing.confirms(2 + NEAR_BATCHES, PROGRESS_MS - 1)
    assert pacing.confirms(2 + NEAR_BATCHES, PROGRESS_MS)


def test_neither_a_removed_member_nor_one_whose_connection_broke_paces_anybody() -> None:
    pacing = paced(2)
    write(pacing, range(1, 5000))
    pacing.acknowledged(2, 1, 0)
    pacing.acknowledged(3, 1, 0)
    assert not pacing.confirms(4000, 0)
    pacing.lost(2)
    assert pacing.confirms(4000, 0)
    assert pacing.held_by(0) == 2
    assert pacing.held_by(5000) == 0


def test_an_update_that_has_no_less_to_bring_than_the_one_before_slows_until_it_took() -> None:
    pacing = paced(2)
    write(pacing, range(1, 9000))
    pacing.offered(2, 1000)
    for index in (2000, 3100):
        pacing.updated(2, took=True)
        pacing.offered(2, index)
        pacing.offered(2, index + 1)  # the same update, offered again
    pacing._confirmed = 3999
    assert confirmed_now(pacing, 4000, 0) == 3999
    assert confirmed_now(pacing, 4000, 3 * ROUND_PACE_MS) == 4002
    pacing.acknowledged(2, 3900, 100)
    assert pacing.confirms(4003, 100)


@pytest.mark.parametrize("ends", ["shorter", "failed", "near"])
def test_an_update_that_gains_slows_nobody(ends: str) -> None:
    pacing = paced(2)
    write(pacing, range(1, 9000))
    for index in (1000, 2000, 2999 if ends == "shorter" else 3100):
        pacing.offered(2, index)
        pacing.updated(2, took=ends != "failed")
        if ends == "near" and index == 2000:
            pacing.acknowledged(2, 2000, 0)
            assert pacing.confirms(2001, 0)
            pacing.lost(3)
    assert pacing.confirms(3200, 0) or ends == "near"
    assert pacing._all[2].waits is False


# ---- members ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def trio(tmp_path: Path) -> Iterator[Trio]:
    made = Trio(tmp_path)
    yield made
    made.stop()


def group_of(trio: Trio, member: int) -> Group:
    return trio.members[member]._running.group(HOST)


class HalfTheSpeed:
    """Lets a voter force one batch for each two that the leader has written, or one while the leader waits for it."""

    def __init__(self, leader: Group, voter: Group, monkeypatch: pytest.MonkeyPatch) -> None:
        copy = voter._copy
        assert copy is not None
        self.leader = leader
        self.began = self.written()
        self.taken = 0
        self.ends = threading.Event()
        take_many = copy.take_many

        def take(batches: Sequence[Batch]) -> int:
            wait_until(self.may_take, "the leader writes, or waits")
            self.taken += 1
            return take_many(batches[:1])

        monkeypatch.setattr(copy, "take_many", take)

    def written(self) -> int:
        return 0 if self.leader.answer is None else self.leader.answer.last_index

    def waits(self) -> bool:
        return bool(self.leader._unconfirmed)

    def may_take(self) -> bool:
        return self.ends.is_set() or self.waits() or self.written() - self.began >= 2 * (self.taken + 1)


def acknowledged(trio: Trio, leader: int, voter: int) -> int:
    return next(seat.acknowledged for seat in trio.members[leader].members(HOST) if seat.member == voter)


def publish_until(trio: Trio, leader: int, index: int) -> None:
    store = trio.members[leader].store(HOST)
    while trio.members[leader].standings()[HOST].index < index:
        store.publish("orders", b"a batch of its own")


def test_a_third_voter_at_half_the_speed_is_never_left_behind_for_ever(
    trio: Trio, monkeypatch: pytest.MonkeyPatch
) -> None:
    trio.start()
    trio.store()
    leader = trio.leader()
    voter = next(member for member in trio.members if member != leader)
    group = group_of(trio, leader)
    wait_until(lambda: voter in group.pacing.members, "the leader knows the members")
    half = HalfTheSpeed(group, group_of(trio, voter), monkeypatch)
    try:
        for index in range(half.began, half.began + 3 * BEHIND, 100):
            publish_until(trio, leader, index)
            last = trio.members[leader].standings()[HOST].index
            assert last - acknowledged(trio, leader, voter) <= BEHIND
        report: Any = trio.members[leader].report()
        assert report["hosts"][0]["paced_by"] == voter
        assert report["hosts"][0]["paced_by_name"] == f"m{voter}"
        assert half.taken > BEHIND
    finally:
        half.ends.set()
    assert trio.leader() == leader


def test_a_dead_voter_paces_nobody(trio: Trio, monkeypatch: pytest.MonkeyPatch) -> None:
    trio.start()
    trio.store()
    leader = trio.leader()
    voter = next(member for member in trio.members if member != leader)
    group = group_of(trio, leader)
    wait_until(lambda: voter in group.pacing.members, "the leader knows the members")
    half = HalfTheSpeed(group, group_of(trio, voter), monkeypatch)
    try:
        publish_until(trio, leader, half.began + 2 * BEHIND + 100)
        assert trio.members[leader].standings()[HOST].paced_by == voter
    finally:
        half.ends.set()
    trio.stop(voter)
    wait_until(lambda: trio.members[leader].standings()[HOST].paced_by == 0, "nobody paces")
    last = trio.members[leader].standings()[HOST].index
    publish_until(trio, leader, last + BEHIND + 100)
    assert trio.members[leader].standings()[HOST].paced_by == 0
    assert not group._unconfirmed


def test_one_voter_dead_and_one_slow_do_not_stop_the_host(trio: Trio, monkeypatch: pytest.MonkeyPatch) -> None:
    trio.start()
    trio.store()
    leader = trio.leader()
    slow, dead = (member for member in trio.members if member != leader)
    group = group_of(trio, leader)
    wait_until(lambda: slow in group.pacing.members, "the leader knows the members")
    half = HalfTheSpeed(group, group_of(trio, slow), monkeypatch)
    try:
        publish_until(trio, leader, half.began + 2 * BEHIND + 100)
        assert trio.members[leader].standings()[HOST].paced_by == slow
        half.ends.set()  # from here on the host needs it, and goes at its speed
        trio.stop(dead)
        last = trio.members[leader].standings()[HOST].index
        publish_until(trio, leader, last + 200)
        wait_until(lambda: acknowledged(trio, leader, slow) > last, "the slow voter is near")
        trio.store().publish("orders", b"and the host goes on")
    finally:
        half.ends.set()
