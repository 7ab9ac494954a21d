"""The systems of rabbitmq_cluster.py: three nodes with quorum queues, three members with brokers, and one broker.

Each says for a load which ports its clients take, and which processes do the work: the one that leads first, then the
one of the clients if they are relayed, then the others.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from broker_servers import LogstoreServer, ticks_s
from builds import Build
from cluster_trio import BROKER, Trio, Worker, wait_for
from rabbitmq_server import RabbitCluster

from logstore.cluster import config, running
from logstore.store.control import call

if TYPE_CHECKING:
    from contextlib import ExitStack

QUORUM, TRIO, SINGLE = "RabbitMQ, 3 nodes", "logstore, 3 members", "logstore, single"
ONE_HOST = "logstore, 3 members, one host"
NODES = 3
HOSTS = 10


@dataclass(frozen=True)
class Work:
    """One kind of load: connections, each with a queue, and the unconfirmed messages of each."""

    name: str
    connections: int
    window: int
    relayed: bool = False
    consumes: bool = True
    rate: bool = False  # messages are due at a fixed rate, and only the latency is measured


class Process:
    """One that does the work of a system."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def usage(self) -> dict[str, float]:
        """Processor time, and bytes that the kernel was to write, so far."""
        lines = Path(f"/proc/{self.pid}/io").read_text().splitlines()
        found = dict(line.split(": ") for line in lines)
        return {"cpu_s": ticks_s([self.pid]), "write_bytes": int(found["write_bytes"])}


class Member(Process):
    """A member of ours, which also says what its logs have forced and written."""

    def __init__(self, worker: Worker) -> None:
        super().__init__(worker.process.pid)
        self.worker = worker

    def usage(self) -> dict[str, float]:
        found = self.worker.do("usage")
        return super().usage() | {"forces": found["forces"], "log_bytes": found["bytes"]}


class Single(Process):
    """The single broker."""

    def __init__(self, server: LogstoreServer) -> None:
        super().__init__(server.pids[0])
        self._store = server.store

    def usage(self) -> dict[str, float]:
        found = call(self._store, "stats", {})["forces"]
        return super().usage() | {"forces": found["count"], "log_bytes": found["bytes"]}


@dataclass
class Route:
    """Where the clients of a load go. The names are those of the load client's order."""

    ports: list[int]
    processes: list[Process]
    owners: list[int] = field(default_factory=list)
    vhosts: list[str] = field(default_factory=lambda: ["/"])
    arguments: dict[str, Any] = field(default_factory=dict)
    all_lead: bool = False


class System(Protocol):
    """What is measured."""

    name: str

    def route(self, work: Work) -> Route: ...

    def pids(self) -> list[int]: ...


class QuorumSystem:
    """RabbitMQ's nodes. A quorum queue is led by the node where it is declared."""

    name = QUORUM

    def __init__(self, cluster: RabbitCluster) -> None:
        self._nodes = cluster.nodes

    def route(self, work: Work) -> Route:
        ports = [node.port for node in self._nodes]
        owners = ports if work.connections > 1 else ports[:1]
        arguments = {"x-queue-type": "quorum", "x-queue-leader-locator": "client-local"}
        processes = [Process(pid) for node in self._nodes for pid in node.pids]
        reached = ports[1:2] if work.relayed else owners
        return Route(reached, processes, owners, arguments=arguments, all_lead=work.connections > 1)

    def pids(self) -> list[int]:
        return [pid for node in self._nodes for pid in node.pids]


class TrioSystem:
    """Our members. `spreads`: several connections take a host each, else all take the first one."""

    def __init__(self, trio: Trio, name: str = TRIO, *, spreads: bool = True) -> None:
        self.name = name
        self._trio = trio
        self._spreads = spreads
        self._hosts: list[str] = []

    def add_hosts(self) -> None:
        """Further hosts, whose leaders are spread, and which the clients may open."""
        for number, worker in zip(range(HOSTS), itertools.cycle(self._trio.workers)):
            host = f"h{number}"
            wait_for(lambda worker=worker, host=host: _has_all_voters(worker, host), f"{host} has all its voters")
            for each in self._trio.workers:
                wait_for(lambda each=each, host=host: _is_permitted(each, host), f"a copy of {host} is there")
            self._hosts.append(host)

    def route(self, work: Work) -> Route:
        if work.connections > 1 and self._spreads:
            at = {host: _port(worker) for worker in self._trio.workers for host in worker.do("leads")}
            members: list[Process] = [Member(worker) for worker in self._trio.workers]
            return Route([at[host] for host in self._hosts], members, vhosts=self._hosts, all_lead=True)
        leader, *others = self._trio.leader(), *self._trio.followers()
        reached = others[0] if work.relayed else leader
        return Route([_port(reached)], [Member(worker) for worker in (leader, *others)])

    def pids(self) -> list[int]:
        return [worker.process.pid for worker in self._trio.workers]


def _has_all_voters(worker: Worker, host: str) -> bool:
    if host not in worker.do("leads"):
        worker.do("add_host", host)
    return bool(worker.do("voters", host) == NODES)


def _is_permitted(worker: Worker, host: str) -> bool:
    return "refused" not in running.change_user(worker.directory, "permit", {"user": "guest", "host": host})


def _port(worker: Worker) -> int:
    return int(config.read(worker.directory).amqp.rpartition(":")[2])


class SingleSystem:
    """Our broker without members."""

    name = SINGLE

    def __init__(self, server: LogstoreServer) -> None:
        self._server = server

    def route(self, work: Work) -> Route:  # noqa: ARG002 - as of the others
        return Route([self._server.port], [Single(self._server)])

    def pids(self) -> list[int]:
        return list(self._server.pids)


def started(place: Path, ends: ExitStack) -> tuple[list[System], TrioSystem]:
    """All systems, which run until the end, and ours whose hosts may be added."""
    (place / "members").mkdir()
    quorum = QuorumSystem(ends.enter_context(RabbitCluster(place / "rabbitmq", NODES)))
    trio = ends.enter_context(Trio(place / "members", program=BROKER))
    single = SingleSystem(ends.enter_context(LogstoreServer(place / "single", Build())))
    spread = TrioSystem(trio)
    return [quorum, spread, single, TrioSystem(trio, ONE_HOST, spreads=False)], spread
