"""A member with its broker, as `logstore cluster run` runs it, that takes commands as cluster_worker.py does.

    python benchmarks/broker_member.py DIR PARENT_PID

Where a command names no host, it concerns all of them.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from cluster_worker import MemberWorker, end_with_parent, serve
from loop_stalls import LoopProbe

from logstore.cluster import running
from logstore.cluster.member import Member

if TYPE_CHECKING:
    from logstore.cluster.member import MemberConfig


class BrokerMember(MemberWorker):
    """The member of this process, and probes of its two loops."""

    def __init__(self, member: Member, broker_loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(member)
        self._probes = {"broker": LoopProbe(broker_loop), "member": LoopProbe(member._running.loop)}

    def leads(self) -> list[str]:
        """The hosts that are led here."""
        return [host for host, found in self.member.standings().items() if found.state == "leads"]

    def add_host(self, host: str) -> None:
        """Makes a host that is led here."""
        self.member.add_host(host)

    def voters(self, host: str) -> int:
        """How many the host has."""
        return sum(seat.voter for seat in self.member.members(host))

    def copy_stats(self) -> dict[str, int]:
        """See ``Worker``."""
        found = [self.host_stats(host) for host in self.member.standings()]
        return {name: sum(each[name] for each in found) for name in ("forces", "bytes")}

    def watch(self) -> None:
        """From now on the turns of the loops are measured."""
        for probe in self._probes.values():
            probe.begin()

    def stalls(self) -> dict[str, Any]:
        """Of both loops since ``watch``; nothing is measured any more."""
        return {name: asdict(probe.end()) for name, probe in self._probes.items()}


def main() -> None:
    directory, parent = sys.argv[1:]
    end_with_parent(int(parent))
    made: list[Member] = []

    class Found(Member):
        """Is known here, although `run` makes it."""

        def __init__(self, directory: str | Path, config: MemberConfig) -> None:
            super().__init__(directory, config)
            made.append(self)

    running.Member = Found  # type: ignore[attr-defined]

    def ready(_: str) -> None:
        worker = BrokerMember(made[0], asyncio.get_running_loop())
        threading.Thread(target=serve, args=(worker,), daemon=True).start()

    running.run(Path(directory), opened=lambda: None, ready=ready)


if __name__ == "__main__":
    main()
