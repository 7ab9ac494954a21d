"""Three members of one cluster, or more, in this process, each with its own directory, loop and port."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

import logstore
from kit.copy_group import CLUSTER, Group
from kit.patience import PATIENCE_S, wait_until
from kit.ports import free_ports
from logstore.cluster.addresses import Tls, named
from logstore.cluster.engine import bootstrap
from logstore.cluster.group import KEPT_BYTES
from logstore.cluster.member import Member, MemberConfig
from logstore.cluster.replica import Copy, detach
from logstore.errors import EngineRefused, NoMajority, NotLeader, StoreError
from logstore.verify.verification import Verification

if TYPE_CHECKING:
    from pathlib import Path

    from logstore.cluster.group import Group as RunningGroup

HOST = "orders-host"


class Trio:
    """Members 1, 2, 3 and so on; each host has the queue "orders" and one message in it."""

    def __init__(
        self, place: Path, *, count: int = 3, kept_bytes: int = KEPT_BYTES, hosts: tuple[str, ...] = (HOST,)
    ) -> None:
        self.kept_bytes = kept_bytes
        self.tls: dict[int, Tls] = {}
        self.addresses = {number + 1: f"127.0.0.1:{port}" for number, port in enumerate(free_ports(count))}
        self.directories = {member: place / f"m{member}" for member in self.addresses}
        for directory in self.directories.values():
            directory.mkdir()
        config = bootstrap([(member, named(f"m{member}", at)) for member, at in sorted(self.addresses.items())])
        for host in hosts:
            paths = [self.host_dir(member, host) for member in self.addresses]
            group = Group(place, count, catalog=True, config=config, paths=paths)
            group.lead(0)
            group.cease()
            last = group.sent[-1]
            for copy in group.copies:
                copy.durable(last.end_lsn)
            group.close()
        self.members: dict[int, Member] = {}

    def host_dir(self, member: int, host: str = HOST) -> Path:
        return self.directories[member] / host

    def start(self, *members: int) -> None:
        for member in members or self.addresses:
            self.members[member] = Member(self.directories[member], self.config(member))

    def config(self, member: int) -> MemberConfig:
        return MemberConfig(
            cluster=CLUSTER,
            member=member,
            name=f"m{member}",
            listen=self.addresses[member],
            join=[address for other, address in self.addresses.items() if other != member],
            tls=self.tls.get(member),
            kept_bytes=self.kept_bytes,
        )

    def stop(self, *members: int) -> None:
        for member in members or list(self.members):
            self.members.pop(member).close()

    def leader(self) -> int:
        """The member that serves, once there is one."""
        found: list[int] = []

        def serves() -> bool:
            for member, running in self.members.items():
                if running.standings()[HOST].state == "leads":
                    found.append(member)
                    return True
            return False

        wait_until(serves, "a member serves")
        return found[0]

    def transfer_to(self, member: int) -> None:
        """This member serves on return."""
        while (leader := self.leader()) != member:
            with contextlib.suppress(EngineRefused):
                self.members[leader].transfer(HOST, member)

    def fails(self, member: int) -> None:
        """The copy of this member fails, and is closed."""
        group = group_of(self, member)
        group.loop.call_soon_threadsafe(group.fail, StoreError("the disk is gone"))
        wait_until(lambda: self.members[member].standings()[HOST].state == "failed", "it has failed")
        group.thread.executor.submit(lambda: None).result(PATIENCE_S)  # behind the end of its copy

    def store(self, host: str = HOST) -> logstore.MessageStore:
        """The leader's store; asked at any member, as a program would."""
        while True:
            for running in list(self.members.values()):
                try:
                    return running.store(host, within_s=30)
                except NotLeader:
                    continue
                except NoMajority:
                    raise


def group_of(trio: Trio, member: int) -> RunningGroup:
    return trio.members[member]._running.group(HOST)


def number_of(trio: Trio, member: int) -> int:
    return group_of(trio, member).copy_number


def wait_for_all(trio: Trio) -> None:
    """All members have what the leader has."""

    def equal() -> bool:
        standings = [member.standings()[HOST] for member in trio.members.values()]
        return len({(one.index, one.durable_index) for one in standings}) == 1 and all(
            one.index == one.durable_index for one in standings
        )

    wait_until(equal, "all have all")


def judge(trio: Trio, stay: list[int]) -> None:
    """Each copy is clean, and as a single store it has what the others have, and these messages."""
    wait_for_all(trio)
    trio.stop()
    found = []
    for member in trio.addresses:
        with Copy.open(trio.host_dir(member), catalog=True) as copy:
            number = copy.member().copy
        verification = Verification(trio.host_dir(member) / f"copy-{number}")
        verification.run(lambda _: None, connect=None, schema=None)
        verification.close()
        assert not verification.findings.problems, verification.findings.problems
        with logstore.open(detach(trio.host_dir(member))) as store:
            queues = [(queue.name, queue.id, queue.depth) for queue in store.queues()]
            messages = {
                name: [(one.id, bytes(one.content)) for one in store.messages(name, load=True)] for name, *_ in queues
            }
            bindings = [(one.exchange, one.queue, one.key) for one in store.bindings()]
            found.append((queues, messages, bindings))
    assert all(one == found[0] for one in found)
    assert set(stay) <= {one for one, _ in found[0][1]["orders"]}


class Publisher:
    """A thread that publishes until it is told to stop."""

    def __init__(self, trio: Trio) -> None:
        self.ids: list[int] = []
        self._stops = threading.Event()
        self._store = trio.store()
        self._thread = threading.Thread(target=self._publish)
        self._thread.start()

    def _publish(self) -> None:
        while not self._stops.is_set():
            self.ids.append(self._store.publish("orders", b"meanwhile"))

    def stop(self) -> list[int]:
        self._stops.set()
        self._thread.join()
        return self.ids
