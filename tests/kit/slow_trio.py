"""A trio whose leader has its broker in this process; the others are processes, and their disks may hang."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kit.amqp_trio import AmqpTrio
from kit.faulty_disks import FaultyDisk
from kit.member_worker import Worker
from kit.patience import wait_until
from kit.trio import HOST

if TYPE_CHECKING:
    from pathlib import Path

    from logstore.broker import Limits

LEADER = 1


class SlowTrio(AmqpTrio):
    """Member 1 leads and has a broker; ``hang`` is a slow majority, whose members answer and force nothing."""

    def __init__(self, place: Path, limits: Limits | None = None) -> None:
        super().__init__(place, limits=limits)
        self.disks = {member: FaultyDisk(place) for member in self.trio.addresses if member != LEADER}
        self.workers: dict[int, Worker] = {}

    def start(self, *_members: int) -> None:
        """All members; on return member 1 serves."""
        for member, disk in self.disks.items():
            self.workers[member] = Worker(self.trio.directories[member], self.trio.config(member), disk.environment)
        super().start(LEADER)
        wait_until(self._leads, "member 1 serves")

    def _leads(self) -> bool:
        standing = self.trio.members[LEADER].standings()[HOST]
        if standing.leader in self.workers and self._standing(standing.leader)["state"] == "leads":
            self.workers[standing.leader].ask("transfer", to=LEADER)
        return standing.state == "leads" and self.serving() == LEADER

    def _standing(self, member: int) -> dict[str, Any]:
        found: dict[str, Any] = self.workers[member].ask("standing")
        return found

    def hang(self) -> None:
        """No sync of the other two returns."""
        for disk in self.disks.values():
            disk.hang()

    def work(self) -> None:
        """They do again."""
        for disk in self.disks.values():
            disk.work()

    def kill_others(self) -> None:
        for member in list(self.workers):
            self.workers.pop(member).kill()

    def close(self) -> None:
        self.work()
        self.kill_others()
        super().close()
