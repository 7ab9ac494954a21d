"""`logstore serve` against what a user may choose as a durable queue instead: Redis, beanstalkd, PostgreSQL and NATS
JetStream; and with ``--before`` also against the broker of another checkout.

Every system syncs before it answers (`queue_servers`), and gets the same load from the same kind of client, one
connection over the loopback interface: publishes of which at most `window` are not confirmed, with a window of one and
of 100; then 100 are consumed at a time, and each is acknowledged alone. Consuming ends when the last acknowledgement is
durable. All systems run the whole time. In every round each load is measured on each system in turn, in a changing
order, after the others have become idle. A tracer counts the syncs behind a confirm. Systems that are not installed are
left out.

`make` does not use it. Run it by hand on an idle machine:

    python benchmarks/alternatives.py --out build/alternatives
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import itertools
import json
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parent))

import alternatives_report
from broker_servers import LogstoreServer, count_syncs, ticks_s, wait_until_idle
from broker_wire import READ_BYTES, WireError
from builds import Build
from figures import conditions
from queue_servers import SERVERS
from queue_wires import WIRES, Wire
from rabbitmq_server import Missing
from rich.console import Console

if TYPE_CHECKING:
    from collections.abc import Iterator

WINDOW: Final = 100
SIZES: Final = (100, 1024)
MESSAGES_MAX: Final = 100_000  # of one slice
CONSUMED_MAX: Final = 10_000  # of one slice
SYNC_S: Final = 0.5


@dataclass
class Sample:
    """The figures of one slice."""

    messages: int
    seconds: float
    server_cpu_s: float
    latency_us: float | None = None  # the median from a publish until its confirm

    @property
    def rate(self) -> float:
        return self.messages / self.seconds


@dataclass
class Row:
    """The samples of one system under one load, one for each round."""

    system: str
    load: str
    body_bytes: int
    samples: list[Sample] = field(default_factory=list)


class Clock:
    """Wall time, and the processor time of a server's processes."""

    def __init__(self, server: Any) -> None:
        self._pids = server.pids
        self._cpu_s = ticks_s(self._pids)
        self._start = time.perf_counter()

    def stop(self, messages: int) -> Sample:
        seconds = time.perf_counter() - self._start
        return Sample(messages, seconds, ticks_s(self._pids) - self._cpu_s)


def publish(wire: Wire, server: Any, window: int, seconds: float) -> Sample:
    """Publishes for so long, and waits for the last confirm."""
    sent_at: collections.deque[float] = collections.deque()
    latencies: list[float] = []
    clock = Clock(server)
    now = time.perf_counter()
    end = now + seconds
    wire.socket.sendall(wire.publish(window))
    sent_at.extend([now] * window)
    while sent_at:
        data = wire.socket.recv(READ_BYTES)
        if not data:
            raise WireError("the server hung up")
        count = wire.confirmed(data)
        now = time.perf_counter()
        latencies += [now - sent_at.popleft() for _ in range(count)]
        if count and now < end and len(latencies) + len(sent_at) < MESSAGES_MAX:
            wire.socket.sendall(wire.publish(count))
            sent_at.extend([now] * count)
    told = clock.stop(len(latencies))
    told.latency_us = statistics.median(latencies) * 1e6
    return told


def consume(wire: Wire, server: Any, count: int) -> Sample:
    """Publishes so many, then consumes and acknowledges them."""
    left = count
    while left:
        wire.socket.sendall(wire.publish(min(WINDOW, left)))
        wanted = max(0, left - WINDOW)
        while left > wanted:
            left -= wire.confirmed(wire.socket.recv(READ_BYTES))
    clock = Clock(server)
    wire.take_all(count, WINDOW)
    return clock.stop(count)


@contextlib.contextmanager
def connected(name: str, server: Any, body_bytes: int) -> Iterator[Wire]:
    """A connection to a system whose queue is empty."""
    wire: Wire = WIRES[name](server.port, body_bytes)
    try:
        wire.empty()
        yield wire
    finally:
        wire.close()


def measure_slice(name: str, server: Any, load: str, body_bytes: int, seconds: float, count: int) -> Sample:
    """One load on one system."""
    with connected(name, server, body_bytes) as wire:
        if load == alternatives_report.CONSUME:
            return consume(wire, server, count)
        return publish(wire, server, 1 if load == alternatives_report.ONE else WINDOW, seconds)


def syncs_of(name: str, server: Any, body_bytes: int, directory: Path) -> dict[str, Any]:
    """The syncs of a publish that waits for its confirm."""
    with connected(name, server, body_bytes) as wire:
        return count_syncs(server.pids, lambda: asdict(publish(wire, server, 1, SYNC_S)), directory)


def parsed() -> argparse.Namespace:
    """The command line, checked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dir", type=Path, help="directory of the servers' data, on the disk to be measured")
    parser.add_argument("--out", type=Path, default=Path("build/alternatives"), help="for results, table and picture")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of publishing in each slice")
    parser.add_argument("--messages", type=int, default=3000, help="that are consumed in each slice")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="of bodies, in bytes")
    parser.add_argument("--loads", nargs="+", default=list(alternatives_report.LOADS), help="which of them")
    parser.add_argument("--systems", nargs="*", default=list(SERVERS), help="which of them")
    parser.add_argument("--before", type=Path, help="also measure the broker of this other checkout")
    options = parser.parse_args()
    if options.rounds < 1 or options.seconds <= 0 or not 1 <= options.messages <= CONSUMED_MAX:
        parser.error(f"--rounds is at least 1, --seconds above 0, --messages between 1 and {CONSUMED_MAX}")
    if any(size < 8 for size in options.sizes):
        parser.error("--sizes: a body has at least 8 bytes")
    for name, allowed in (("loads", alternatives_report.LOADS), ("systems", tuple(SERVERS))):
        unknown = [each for each in getattr(options, name) if each not in allowed]
        if unknown:
            parser.error(f"--{name}: {unknown[0]!r} is none of {', '.join(map(repr, allowed))}")
    options.builds = [Build()]
    if options.before is not None:
        try:
            options.builds.append(Build.before(options.before))
        except ValueError as problem:
            parser.error(f"--before: {problem}")
    return options


def start(options: argparse.Namespace, directory: Path, running: contextlib.ExitStack, console: Console) -> Any:
    """The servers by name, and the versions of the others, with a line for each that is missing."""
    servers: dict[str, Any] = {}
    settings: dict[str, str] = {}
    for build in options.builds:
        servers[build.name] = running.enter_context(LogstoreServer(directory / build.name, build))
    for name in options.systems:
        try:
            servers[name] = running.enter_context(SERVERS[name](directory / name))
        except Missing as missing:
            console.print(f"[bold red]{name} is NOT measured: {missing}[/bold red]", highlight=False)
            continue
        settings[name] = f"{SERVERS[name].version()}, {SERVERS[name].sync}"
    return servers, settings


def measure(options: argparse.Namespace, directory: Path, console: Console) -> dict[str, Any]:
    """All results, as stored."""
    with contextlib.ExitStack() as running:
        servers, settings = start(options, directory, running, console)
        rows = {
            (name, load, size): Row(name, load, size)
            for size, load, name in itertools.product(options.sizes, options.loads, servers)
        }
        syncs = {}
        for name, server in servers.items():  # also a warm-up
            size = options.sizes[0]
            measure_slice(name, server, alternatives_report.MANY, size, options.seconds, options.messages)
            syncs[name] = syncs_of(name, server, size, directory)
        names = list(servers)
        for number in range(options.rounds):
            for at, (size, load) in enumerate(itertools.product(options.sizes, options.loads)):
                turned = (number + at) % len(names)
                for name in names[turned:] + names[:turned]:
                    wait_until_idle([pid for each in servers.values() for pid in each.pids])
                    sample = measure_slice(name, servers[name], load, size, options.seconds, options.messages)
                    rows[name, load, size].samples.append(sample)
                console.print(f"[dim]round {number + 1} of {options.rounds}: {load}, {size} B[/dim]", highlight=False)
    return {
        "conditions": conditions(directory) | settings | {"rounds": options.rounds, "seconds": options.seconds},
        "syncs": syncs,
        "rows": [
            asdict(row) | {"samples": [asdict(each) | {"rate": each.rate} for each in row.samples]}
            for row in rows.values()
        ],
    }


def main() -> None:
    """Measure, print and store."""
    options = parsed()
    console = Console()
    with tempfile.TemporaryDirectory(prefix="logstore-alternatives-", dir=options.dir) as name:
        directory = Path(name).resolve()
        directory.chmod(0o711)  # PostgreSQL's user may pass through
        told = measure(options, directory, console)
    told["targets"] = alternatives_report.judge(told)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "results.json").write_text(json.dumps(told, indent=1) + "\n")
    page = alternatives_report.markdown(told)
    (options.out / "alternatives.md").write_text(page)
    console.print(page, highlight=False, markup=False)
    try:
        alternatives_report.draw(told, options.out / "bench_alternatives.svg")
    except ImportError:
        console.print("no picture: pip install '/path/to/checkout[bench]' for matplotlib", highlight=False)
    console.print(f"written to {options.out}", highlight=False)


if __name__ == "__main__":
    main()
