"""A member's directory that was copied: two processes never take part as one member, which could vote twice."""

from __future__ import annotations

import dataclasses
import shutil
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("msgspec", reason="the extra cluster is not installed")
pytest.importorskip("logstore._consensus", reason="the cluster is not built")

from kit.copy_group import fill
from kit.patience import wait_until
from kit.ports import free_ports
from kit.trio import HOST, Trio, judge, wait_for_all
from logstore import errors
from logstore.cluster.member import Member

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WHY = "another process is connected as member 3"


@pytest.fixture
def trio(tmp_path: Path) -> Iterator[Trio]:
    made = Trio(tmp_path)
    yield made
    made.stop()


def copied(of: Path, to: Path) -> None:
    """Its member may run: it makes and renames files meanwhile."""
    while True:
        try:
            shutil.copytree(of, to)
        except shutil.Error:
            shutil.rmtree(to)
        else:
            return


def is_connected(trio: Trio, member: int) -> bool:
    peers = trio.members[member].report()["peers"]
    return len(peers) == 2 and all(peer["connected"] for peer in peers)


@pytest.mark.parametrize("which", ["follower", "leader"])
@pytest.mark.parametrize("while_it", ["runs", "is stopped"])
def test_a_copied_directory_under_another_address_is_refused_and_the_first_process_goes_on(
    trio: Trio, tmp_path: Path, which: str, while_it: str
) -> None:
    trio.start()
    trio.store()
    stay = fill(trio.store(), 20)
    wait_for_all(trio)
    if while_it == "is stopped":
        trio.stop(3)
    copied(trio.directories[3], tmp_path / "copied")
    if while_it == "is stopped":
        trio.start(3)
    wait_until(lambda: all(is_connected(trio, member) for member in trio.members), "all are connected")
    trio.transfer_to(3 if which == "leader" else 1)
    wait_until(lambda: all(is_connected(trio, member) for member in trio.members), "all are connected")
    config = dataclasses.replace(trio.config(3), listen=f"127.0.0.1:{free_ports(1)[0]}")
    with Member(tmp_path / "copied", config) as second:

        def is_refused() -> bool:
            return [peer["member"] for peer in second.report()["peers"] if WHY in (peer["reason"] or "")] == [1, 2]

        wait_until(is_refused, "both others refuse it, and it says why")
        with pytest.raises(errors.NoMajority, match=WHY):
            second.store(HOST, within_s=0.5)
        stay += [trio.store().publish("orders", b"meanwhile") for _ in range(20)]
        wait_for_all(trio)
        assert second.standings()[HOST].leader == 0
        assert is_refused()
        assert all(is_connected(trio, member) for member in trio.members)
    judge(trio, stay)


def test_a_copied_directory_with_the_address_that_it_had_does_not_start_beside_the_first_process(
    trio: Trio, tmp_path: Path
) -> None:
    trio.start()
    stay = fill(trio.store(), 20)
    copied(trio.directories[3], tmp_path / "copied")
    with pytest.raises(errors.StoreError, match=f"address {trio.addresses[3]} cannot be used"):
        Member(tmp_path / "copied", trio.config(3))
    judge(trio, stay)


def test_a_copied_directory_that_takes_the_place_of_the_first_is_judged_by_what_it_lacks(
    trio: Trio, tmp_path: Path
) -> None:
    trio.start()
    trio.store()
    trio.transfer_to(1)
    copied(trio.directories[3], tmp_path / "copied")
    stay = fill(trio.store(), 20)
    wait_for_all(trio)
    trio.stop(3)
    with Member(tmp_path / "copied", trio.config(3)) as second:
        wait_until(
            lambda: "logstore cluster rebuild" in (second.report()["hosts"][0]["problem"] or ""), "it lacks batches"
        )
    trio.start(3)
    judge(trio, stay)
