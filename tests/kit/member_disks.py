"""Three members as processes, each with a disk of its own that may be full, hang or fail."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kit.faulty_disks import FaultyDisk
from kit.member_worker import Worker
from kit.patience import wait_until
from kit.trio import Trio

if TYPE_CHECKING:
    from pathlib import Path

SIZE = 20_000


class Processes:
    """The members of a trio, each with a disk of its own."""

    def __init__(self, place: Path) -> None:
        self._trio = Trio(place, kept_bytes=1 << 20)
        self.disks = {member: FaultyDisk(place) for member in self._trio.addresses}
        self.workers: dict[int, Worker] = {}

    def start(self, member: int, **environment: str) -> None:
        given = self.disks[member].environment | environment
        self.workers[member] = Worker(self._trio.directories[member], self._trio.config(member), given)

    def kill(self, member: int) -> None:
        self.workers.pop(member).kill()

    def kill_all(self) -> None:
        for member in list(self.workers):
            self.kill(member)

    def standing(self, member: int) -> dict[str, Any]:
        found: dict[str, Any] = self.workers[member].ask("standing")
        return found

    def follows(self, member: int, index: int) -> bool:
        """Whether it follows and has everything up to there."""
        standing = self.standing(member)
        return bool(standing["state"] == "follows" and standing["durable_index"] >= index)

    def together(self) -> int:
        """The member that serves, once all follow it and have what it has: none needs a whole copy then."""

        def look() -> int:
            leader = self.leader()
            others = [member for member in self.workers if member != leader]
            return leader if self.in_step(leader, *others) and self.leads(leader) else 0

        return wait_until(look, "all are in step")

    def leads(self, member: int) -> bool:
        """Whether it still serves: on a busy machine a leader may be replaced at any time."""
        return bool(self.standing(member)["state"] == "leads")

    def in_step(self, leader: int, *others: int) -> bool:
        """Whether these follow, and have what the leader has."""
        durable = self.standing(leader)["durable_index"]
        return all(self.follows(member, durable) for member in others)

    def leader(self, *among: int) -> int:
        """The member that serves, once there is one."""

        def look() -> int:
            for member in among or list(self.workers):
                if self.standing(member)["state"] == "leads":
                    return member
            return 0

        try:
            found = wait_until(look, "a member serves")
        except AssertionError as error:
            error.add_note(str({member: self.standing(member) for member in among or self.workers}))
            raise
        assert found
        return found
