"""A copy that is refused is so for its own host: the other hosts of the two members go on."""

from __future__ import annotations

import logging
import shutil
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("msgspec", reason="the extra cluster is not installed")
pytest.importorskip("logstore._consensus", reason="the cluster is not built")

from kit.copy_group import fill
from kit.patience import wait_until
from kit.trio import HOST, Trio, group_of, judge, wait_for_all
from logstore.cluster.directory import VOTE_NAME

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

OTHER = "bills-host"


@pytest.fixture
def trio(tmp_path: Path) -> Iterator[Trio]:
    made = Trio(tmp_path, hosts=(HOST, OTHER))
    yield made
    made.stop()


def problem_of(trio: Trio, member: int, host: str = HOST) -> str:
    """What ``cluster status`` shows of a host on this member."""
    return next(str(one["problem"] or "") for one in trio.members[member].report()["hosts"] if one["host"] == host)


def keep_an_older_copy(trio: Trio, place: Path) -> list[int]:
    """Member 1 leads the host; member 3 is stopped, and its copy of an earlier time kept; the messages that stay."""
    trio.start()
    trio.store()
    trio.transfer_to(1)
    stay = fill(trio.store(), 20)
    wait_for_all(trio)
    trio.stop(3)
    shutil.copytree(trio.host_dir(3), place / "older")
    trio.start(3)
    stay += fill(trio.store(), 20)
    wait_for_all(trio)
    trio.stop(3)
    return stay


def with_an_older_copy(trio: Trio, place: Path) -> list[int]:
    """The same, and member 3 starts with that copy."""
    stay = keep_an_older_copy(trio, place)
    shutil.rmtree(trio.host_dir(3))
    shutil.copytree(place / "older", trio.host_dir(3))
    assert trio.leader() == 1
    trio.start(3)
    return stay


def test_a_refused_copy_of_one_host_leaves_the_other_hosts_of_the_two_members_at_work(
    trio: Trio, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="logstore.cluster")
    stay = with_an_older_copy(trio, tmp_path)
    wait_until(lambda: "refuses the copy of this member" in problem_of(trio, 3), "it knows that it is refused")
    wait_until(lambda: "the copy of member m3 is refused" in problem_of(trio, 1), "the leader shows it")
    for member in (1, 3):
        assert "logstore cluster rebuild" in problem_of(trio, member)
        assert problem_of(trio, member, OTHER) == ""
    assert {peer["connected"] for peer in trio.members[3].report()["peers"]} == {True}
    trio.stop(2)
    trio.store(OTHER).publish("orders", b"members 1 and 3 are the majority")
    assert group_of(trio, 3).standing().index < group_of(trio, 1).standing().index
    trio.start(2)
    lines = [record.getMessage() for record in caplog.records if "lacks batches" in record.getMessage()]
    assert sorted(line.split(": this copy")[0] for line in lines) == [
        f"host {HOST}: member 1 refuses this copy",
        f"host {HOST}: the copy of member 3 is refused",
    ]
    assert trio.members[3].rebuild(HOST).is_complete
    wait_until(lambda: problem_of(trio, 1) == problem_of(trio, 3) == "", "the fresh copy is taken")
    judge(trio, stay)


def test_a_host_that_a_connected_member_opens_later_is_judged_at_once(trio: Trio, tmp_path: Path) -> None:
    stay = keep_an_older_copy(trio, tmp_path)
    (trio.host_dir(3) / VOTE_NAME).write_bytes(b"no vote")
    trio.start(3)
    three = trio.members[3]
    wait_until(lambda: all(peer["connected"] for peer in three.report()["peers"]), "it is connected")
    assert three.standings()[HOST].state == "failed"
    shutil.rmtree(trio.host_dir(3))
    shutil.copytree(tmp_path / "older", trio.host_dir(3))
    three.reopen(HOST)
    wait_until(lambda: "refuses the copy of this member" in problem_of(trio, 3), "it is judged")
    assert three.rebuild(HOST).is_complete
    judge(trio, stay)


def test_a_refused_copy_that_has_caught_up_from_another_member_is_taken_again(trio: Trio, tmp_path: Path) -> None:
    stay = with_an_older_copy(trio, tmp_path)
    wait_until(lambda: "the copy of member m3 is refused" in problem_of(trio, 1), "it is refused")
    trio.transfer_to(2)
    wait_until(lambda: problem_of(trio, 1) == problem_of(trio, 3) == "", "it has caught up, and is taken")
    stay.append(trio.store().publish("orders", b"after"))
    judge(trio, stay)
