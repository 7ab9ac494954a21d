"""Our three members with brokers, RabbitMQ's quorum queues on three nodes, and our single broker, in turns: one client,
one machine, one disk.

All systems run the whole time with their defaults. A confirm says: on the disks of a majority (of the single broker: on
its disk). Every client is a process of its own; a relayed one is connected to a node or member that does not lead its
queue. Messages of 1 KiB are persistent; each is acknowledged alone, with a prefetch of 100. In each round each load is
measured on each system in turn, in a changing order, after the others have become idle. Bytes and forces are counted by
our logs, bytes of RabbitMQ by /proc/PID/io, and bytes and flushes of all processes by the block device.

Run it on an idle machine, about ten minutes; RabbitMQ must be installed (apt-get install rabbitmq-server):

    python benchmarks/rabbitmq_cluster.py --out build/rabbitmq_cluster
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(1, str(Path(__file__).resolve().parent.parent))

import rabbitmq_cluster_report as report
from broker_servers import wait_until_idle
from broker_systems import HOSTS, ONE_HOST, Member, Work, started
from figures import conditions, disk_writes
from loop_stalls import LoopProbe, Stalls
from rabbitmq_report import percentile
from rabbitmq_server import Missing, RabbitServer, need
from rich.console import Console

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker_systems import Route, System

CLIENT: Final = Path(__file__).resolve().parent / "broker_client.py"
CLIENT_S: Final = 300.0
BODY_BYTES: Final = 1024
BYTES_MAX: Final = 128 << 20
WIDTH: Final = 190  # of the tables in a file
RATE_WITHOUT_CAPACITY: Final = 2000.0
ONE_QUEUE: Final = tuple(
    Work(name, 1, window, relayed=relayed, consumes=window > 1, rate=not window)
    for name, window in (("window 100", 100), ("window 1", 1), ("at a rate", 0))
    for relayed in (False, True)
)
TEN_QUEUES: Final = (Work("ten queues", HOSTS, 100),)


class Measurement:
    """One load on one system: what the client found, and what the processes used."""

    def __init__(self, route: Route, device: str, idle: LoopProbe) -> None:
        """`idle`: of a loop that does nothing, in this process."""
        self._route = route
        self._idle = idle
        self._device = device
        self._members = [each for each in route.processes if isinstance(each, Member)]
        self._before: list[dict[str, float]] = []
        self.used: dict[str, list[dict[str, float]]] = {}
        """What each process used in a work, and last the disk."""
        self.stalls: dict[tuple[str, str, str], Stalls] = {}

    def step(self, what: str) -> None:
        """A work begins, or has ended."""
        work, _, begins = what.partition(" ")
        if begins == "begins":
            if self._members:
                self._idle.begin()
            for member in self._members:
                member.worker.do("watch")
            self._before = self._usage()
            return
        after = self._usage()
        if self._members:
            self.stalls["idle", "idle process", work] = self._idle.end()
        self.used[work] = [
            {name: new[name] - old[name] for name in new} for old, new in zip(self._before, after, strict=True)
        ]
        for number, member in enumerate(self._members):
            role = "leader" if number == 0 or self._route.all_lead else "follower"
            for loop, found in member.worker.do("stalls").items():
                self.stalls.setdefault((role, loop, work), Stalls()).merge(Stalls(**found))

    def _usage(self) -> list[dict[str, float]]:
        return [*(each.usage() for each in self._route.processes), {**disk_writes(self._device)}]

    def run(self, work: Work, seconds: float, rate: float) -> dict[str, Any]:
        """Runs the client. Raises `RuntimeError` with what it found wrong."""
        route = self._route
        order = {
            "what": "latency" if work.rate else "rates",
            "ports": route.ports,
            "owners": route.owners,
            "vhosts": route.vhosts,
            "arguments": route.arguments,
            "connections": work.connections,
            "window": work.window,
            "body_bytes": BODY_BYTES,
            "seconds": seconds,
            "bytes_max": BYTES_MAX,
            "rate": rate,
            "keep": not work.consumes,
            "timed": not work.rate,
            "steps": not work.rate,
        }
        with subprocess.Popen(
            [sys.executable, str(CLIENT), json.dumps(order)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as client:
            assert client.stdin is not None
            assert client.stdout is not None
            assert client.stderr is not None
            killer = threading.Timer(CLIENT_S, client.kill)
            killer.start()
            try:
                for line in client.stdout:
                    told = json.loads(line)
                    if isinstance(told, dict):
                        break
                    self.step(told)
                    client.stdin.write("\n")
                    client.stdin.flush()
                else:
                    told = {"error": client.stderr.read()[-2000:] or f"no answer within {CLIENT_S:g} s"}
            finally:
                killer.cancel()
        if "error" in told:
            raise RuntimeError(told["error"])
        return self._shortened({"publish": told} if work.rate else told)

    def _shortened(self, told: dict[str, Any]) -> dict[str, Any]:
        """Rates, percentiles, and what a message cost each process."""
        sample: dict[str, Any] = {}
        for work in ("publish", "consume"):
            one = told.get(work)
            if one is None:
                continue
            sample[work] = {name: one[name] for name in ("messages", "seconds", "rate")}
            if "latencies_us" in one:
                found = one["latencies_us"]
                sample[work] |= {f"p{each}_us": percentile(found, each) for each in (50, 99)} | {"max_us": max(found)}
            if work in self.used:
                *processes, disk = [
                    {name: value / one["messages"] for name, value in used.items()} for used in self.used[work]
                ]
                sample[work] |= {"processes": processes, "disk": disk}
        return sample


class Turns:
    """All loads on all systems, round by round."""

    def __init__(self, options: argparse.Namespace, systems: Sequence[System], device: str, console: Console) -> None:
        self._options = options
        self._device = device
        self._console = console
        loop = asyncio.new_event_loop()
        threading.Thread(target=loop.run_forever, daemon=True).start()
        self._idle = LoopProbe(loop)
        self._pids = sorted({pid for system in systems for pid in system.pids()})
        self.rows: dict[tuple[str, str, bool], dict[str, Any]] = {}
        self.stalls: dict[tuple[str, ...], Stalls] = {}

    def measure(self, works: Sequence[Work], systems: Sequence[System]) -> None:
        """Each of these loads on each of these systems, as many rounds as wanted."""
        for number in range(self._options.rounds):
            for at, work in enumerate(works):
                taken = [system for system in systems if not work.relayed or len(system.pids()) > 1]
                turned = (number + at) % len(taken)
                for system in taken[turned:] + taken[:turned]:
                    self._one(work, system)
                way = ", relayed" if work.relayed else ""
                self._console.print(
                    f"[dim]round {number + 1} of {self._options.rounds}: {work.name}{way}[/dim]", highlight=False
                )

    def _one(self, work: Work, system: System) -> None:
        key = (work.name, system.name, work.relayed)
        row = self.rows.setdefault(
            key, {"work": work.name, "system": system.name, "relayed": work.relayed, "samples": [], "errors": []}
        )
        wait_until_idle(self._pids)
        measuring = Measurement(system.route(work), self._device, self._idle)
        seconds = self._options.latency_seconds if work.rate else self._options.seconds
        try:
            row["samples"].append(measuring.run(work, seconds, self._rate() if work.rate else 0.0))
        except RuntimeError as error:
            row["errors"].append(str(error))
            self._console.print(f"[red]{system.name}, {work.name}: {error}[/red]", highlight=False)
        for (role, loop, what), found in measuring.stalls.items():
            self.stalls.setdefault((work.name, system.name, role, loop, what), Stalls()).merge(found)

    def _rate(self) -> float:
        """A rate that every system can sustain: half of the lowest median reached with a window of 100."""
        reached = [
            statistics.median(sample["publish"]["rate"] for sample in row["samples"])
            for row in self.rows.values()
            if row["work"] == ONE_QUEUE[0].name and row["samples"]
        ]
        wanted = min(reached) / 2 if reached else RATE_WITHOUT_CAPACITY
        return float(self._options.rate or max(100.0, round(wanted, -2)))


def parsed() -> argparse.Namespace:
    """The command line, checked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dir", type=Path, help="directory of the systems' data, on the disk to be measured")
    parser.add_argument("--out", type=Path, default=Path("build/rabbitmq_cluster"), help="for results.json and tables")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.5, help="of publishing in each slice")
    parser.add_argument("--latency-seconds", type=float, default=3.0, help="of each slice at a fixed rate; 0: none")
    parser.add_argument("--rate", type=float, help="that fixed rate, messages/s (half of what the slowest can)")
    parser.add_argument("--quick", action="store_true", help="one short round; the figures must not be quoted")
    options = parser.parse_args()
    if options.rounds < 1 or options.seconds <= 0:
        parser.error("--rounds is at least 1, --seconds above 0")
    if options.quick:
        options.rounds, options.seconds, options.latency_seconds = 1, 0.5, 1.0
    return options


def measure(options: argparse.Namespace, place: Path, console: Console) -> dict[str, Any]:
    """All results, as stored."""
    with contextlib.ExitStack() as ends:
        systems, spread = started(place, ends)
        told: dict[str, Any] = {"conditions": conditions(place) | {"rabbitmq": RabbitServer.version()}}
        device = told["conditions"]["device"]
        turns = Turns(options, systems, device, console)
        alone = [system for system in systems if system.name != ONE_HOST]
        warming = argparse.Namespace(**vars(options) | {"rounds": 1, "seconds": 0.5})
        Turns(warming, systems, device, Console(quiet=True)).measure(ONE_QUEUE[:2], alone)
        turns.measure([work for work in ONE_QUEUE if not work.rate or options.latency_seconds > 0], alone)
        spread.add_hosts()
        turns.measure(TEN_QUEUES, systems)
    told["conditions"] |= {"load_at_end": os.getloadavg()[0], "rounds": options.rounds, "seconds": options.seconds}
    stalls = [
        dict(zip(("work", "system", "role", "loop", "what"), key, strict=True)) | asdict(found)
        for key, found in turns.stalls.items()
    ]
    return told | {"rows": list(turns.rows.values()), "stalls": stalls}


def main() -> None:
    """Measure, print and store. Exit status 1 if something failed, 2 if a program is missing."""
    options = parsed()
    console = Console() if sys.stdout.isatty() else Console(width=WIDTH)
    try:
        need()
    except Missing as missing:
        console.print(f"[red]{missing}[/red]", highlight=False)
        sys.exit(2)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="logstore-rabbitmq-cluster-", dir=options.dir) as name:
        place = Path(name).resolve()
        place.chmod(0o711)  # RabbitMQ's user may pass through
        told = measure(options, place, console)
    told["conditions"]["took_s"] = round(time.monotonic() - began)
    told["ratios"] = report.ratios(told["rows"])
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "results.json").write_text(json.dumps(told, indent=1) + "\n")
    tables = report.tables(told)
    (options.out / "tables.md").write_text("\n".join(line for table in tables for line in table.markdown()))
    for key, value in told["conditions"].items():
        console.print(f"[dim]{key.replace('_', ' ')}:[/dim] {value}", highlight=False)
    for table in tables:
        table.show(console)
    console.print(f"written to {options.out}", highlight=False)
    if any(row["errors"] for row in told["rows"]):
        sys.exit(1)


if __name__ == "__main__":
    main()
