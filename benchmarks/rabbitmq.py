"""`logstore serve` against RabbitMQ, or against the broker of another checkout (``--before``): the same load client,
the same machine and disk, one after the other.

RabbitMQ comes from the distribution (apt-get install rabbitmq-server) and runs as a separate node with default
settings, except for paths and ports. Every system gets persistent messages with publisher confirms into durable queues,
one for each connection, and consumers that acknowledge every message alone. All systems run the whole time. In every
round each cell is measured on each system in turn, in a changing order, after the others have become idle. A tracer
counts the syncs behind a confirm, with one unconfirmed message at a time.

`make` does not use it. Run it by hand on an idle machine:

    python benchmarks/rabbitmq.py --out build/rabbitmq
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parent))

import rabbitmq_report
from broker_servers import LogstoreServer, count_syncs, wait_until_idle
from builds import OWN, Build
from figures import conditions, size_name
from rabbitmq_server import Missing, RabbitServer, need
from rich.console import Console

CLIENT: Final = Path(__file__).resolve().parent / "broker_client.py"
CLASSIC = "RabbitMQ classic"
SIZES: Final = (100, 1024, 16384)
CONNECTIONS: Final = (1, 8)
WINDOWS: Final = (1, 100, 0)
MESSAGES_MAX: Final = 60_000  # of one slice, all connections together
MESSAGES_MAX_WITHOUT_WINDOW: Final = 20_000  # a slow server would need long for an unlimited backlog
BYTES_MAX: Final = 128 << 20
CLIENT_S: Final = 300.0
LATENCY_BYTES: Final = 1024
RATE_WITHOUT_CAPACITY: Final = 2000.0


@dataclass(frozen=True)
class Cell:
    """One kind of load."""

    body_bytes: int
    connections: int
    window: int

    def __str__(self) -> str:
        window = f"window {self.window}" if self.window else "no window"
        return f"{size_name(self.body_bytes)}, {self.connections} connection{'s' * (self.connections > 1)}, {window}"


@dataclass
class Target:
    """A system under test: a server, and how its queues are declared."""

    name: str
    server: Any
    arguments: dict[str, Any] = field(default_factory=dict)


class Client:
    """Runs the load client, a process of its own for each slice."""

    def __init__(self, all_pids: list[int]) -> None:
        self._all_pids = all_pids

    def run(self, target: Target, cell: Cell, what: str, seconds: float, **more: Any) -> dict[str, Any]:
        """The client's result. Raises `RuntimeError` if the client found an error."""
        wait_until_idle(self._all_pids)
        messages_max = MESSAGES_MAX if cell.window else MESSAGES_MAX_WITHOUT_WINDOW
        order = {
            "what": what,
            "ports": [target.server.port],
            "connections": cell.connections,
            "window": cell.window,
            "body_bytes": cell.body_bytes,
            "seconds": seconds,
            "bytes_max": min(BYTES_MAX, messages_max * cell.body_bytes),
            "arguments": target.arguments,
            "server_pids": target.server.pids,
            **more,
        }
        done = subprocess.run(
            [sys.executable, str(CLIENT), json.dumps(order)],
            check=False,
            capture_output=True,
            text=True,
            timeout=CLIENT_S,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{target.name}, {cell}: {done.stderr[-2000:]}")
        told: dict[str, Any] = json.loads(done.stdout)
        if "error" in told:
            raise RuntimeError(f"{target.name}, {cell}: {told['error']}")
        return told


def parsed() -> argparse.Namespace:
    """The command line, checked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dir", type=Path, help="directory of the servers' data, on the disk to be measured")
    parser.add_argument("--out", type=Path, default=Path("build/rabbitmq"), help="for results.json, tables and picture")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.7, help="of publishing in each slice")
    parser.add_argument("--latency-seconds", type=float, default=5.0, help="of each slice at a fixed rate; 0: none")
    parser.add_argument("--rate", type=float, help="that fixed rate, messages/s (half of what the slowest can)")
    parser.add_argument("--only", help="only cells whose name has this text; several texts are separated by semicolons")
    parser.add_argument("--quick", action="store_true", help="1 KiB, one round; the figures must not be quoted")
    parser.add_argument("--before", type=Path, help="compare with the broker of this other checkout, not with RabbitMQ")
    parser.add_argument("--json", action="store_true", help="the results on the terminal instead of tables")
    options = parser.parse_args()
    if options.rounds < 1 or options.seconds <= 0:
        parser.error("--rounds is at least 1, --seconds above 0")
    options.builds = [Build()]
    if options.before is not None:
        try:
            options.builds.append(Build.before(options.before))
        except ValueError as problem:
            parser.error(f"--before: {problem}")
    options.cells = [Cell(*each) for each in itertools.product(SIZES, CONNECTIONS, WINDOWS)]
    if options.quick:
        options.rounds, options.latency_seconds = 1, min(options.latency_seconds, 2.0)
        options.cells = [cell for cell in options.cells if cell.body_bytes == LATENCY_BYTES]
    if options.only:
        wanted = [text.strip() for text in options.only.split(";")]
        options.cells = [cell for cell in options.cells if any(text in str(cell) for text in wanted)]
        if not options.cells:
            parser.error(f"--only: no cell has {options.only!r} in its name; one is '{Cell(1024, 8, 100)}'")
    return options


def measure_rates(
    options: argparse.Namespace, targets: list[Target], client: Client, console: Console
) -> list[dict[str, Any]]:
    """A row for each cell and target, with a sample of each kind for each round."""
    rows: dict[tuple[Cell, str], dict[str, Any]] = {}
    for cell, target in itertools.product(options.cells, targets):
        shape = {"body_bytes": cell.body_bytes, "connections": cell.connections, "window": cell.window}
        rows[cell, target.name] = {
            "system": target.name,
            **shape,
            "publish": [],
            "consume": [],
            "came_back": 0,
            "errors": [],
        }
    for number in range(options.rounds):
        for at, cell in enumerate(options.cells):
            turned = (number + at) % len(targets)
            for target in targets[turned:] + targets[:turned]:
                row = rows[cell, target.name]
                try:
                    told = client.run(target, cell, "rates", options.seconds)
                except (RuntimeError, subprocess.TimeoutExpired) as error:
                    row["errors"].append(str(error))
                    console.print(f"[red]{error}[/red]", highlight=False)
                    continue
                row["publish"].append(told["publish"])
                row["consume"].append(told["consume"])
                row["came_back"] += told["came_back"]
            console.print(f"[dim]round {number + 1} of {options.rounds}: {cell}[/dim]", highlight=False)
    return list(rows.values())


def half_of_the_slowest(rows: list[dict[str, Any]]) -> float:
    """A rate that every system can sustain: half of the lowest rate reached with a window of 100."""
    reached = [
        statistics.median(each["rate"] for each in row["publish"])
        for row in rows
        if (row["body_bytes"], row["connections"], row["window"]) == (LATENCY_BYTES, 1, 100) and row["publish"]
    ]
    return float(round(min(reached) / 2, -2)) if reached else RATE_WITHOUT_CAPACITY


def measure_latency(
    options: argparse.Namespace, targets: list[Target], client: Client, rate: float, console: Console
) -> list[dict[str, Any]]:
    """From when a message was due until its confirm, at the same rate for all."""
    cell = Cell(LATENCY_BYTES, 1, 0)
    rows = [{"system": target.name, "rate": rate, "slices": [], "errors": []} for target in targets]
    for number in range(options.rounds):
        for at in range(len(targets)):
            which = (number + at) % len(targets)
            try:
                told = client.run(targets[which], cell, "latency", options.latency_seconds, rate=max(1.0, rate))
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                rows[which]["errors"].append(str(error))
                console.print(f"[red]{error}[/red]", highlight=False)
                continue
            rows[which]["slices"].append(told)
        console.print(f"[dim]round {number + 1} of {options.rounds}: {rate:g} messages/s[/dim]", highlight=False)
    return rows


def measure(options: argparse.Namespace, directory: Path, console: Console) -> dict[str, Any]:
    """All results, as stored."""
    with contextlib.ExitStack() as running:
        targets = [
            Target(build.name, running.enter_context(LogstoreServer(directory / build.name, build)))
            for build in options.builds
        ]
        versions = {OWN: targets[0].server.version()}
        if options.before is None:
            rabbit = running.enter_context(RabbitServer(directory / "rabbitmq"))
            versions["rabbitmq"] = rabbit.version()
            targets.append(Target(rabbitmq_report.QUORUM, rabbit, {"x-queue-type": "quorum"}))
            targets.append(Target(CLASSIC, rabbit, {"x-queue-type": "classic"}))
        client = Client(list({pid for target in targets for pid in target.server.pids}))
        told: dict[str, Any] = {
            "conditions": conditions(directory)
            | versions
            | {"rounds": options.rounds}
            | {"seconds": options.seconds, "acknowledgements": "one by one", "queues": "one for each connection"},
            "syncs": {},
        }
        for target in targets:  # warm-up: code is loaded and compiled, first segments are made
            client.run(target, Cell(1024, 8, 100), "rates", options.seconds)
        for target in targets:
            told["syncs"][target.name] = count_syncs(
                target.server.pids,
                lambda target=target: client.run(target, Cell(1024, 1, 1), "rates", 0.5)["publish"],
                directory,
            )
        told["rates"] = measure_rates(options, targets, client, console)
        if options.latency_seconds > 0:
            rate = options.rate or half_of_the_slowest(told["rates"])
            told["latency"] = measure_latency(options, targets, client, rate, console)
    return told


def main() -> None:
    """Measure, print and store. Exit status 1 if something failed, 2 if a program is missing."""
    options = parsed()
    console = Console(stderr=options.json)
    try:
        if options.before is None:
            need()
    except Missing as missing:
        console.print(f"[red]{missing}[/red]", highlight=False)
        sys.exit(2)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="logstore-rabbitmq-", dir=options.dir) as name:
        directory = Path(name).resolve()
        directory.chmod(0o711)  # RabbitMQ's user may pass through; the directories inside belong to each server's user
        told = measure(options, directory, console)
    told["conditions"]["took_s"] = round(time.monotonic() - began)
    options.out.mkdir(parents=True, exist_ok=True)
    told["targets"] = rabbitmq_report.judge(told)
    (options.out / "rabbitmq.md").write_text(rabbitmq_report.markdown(told))
    try:
        rabbitmq_report.draw(told, options.out / "bench_rabbitmq.svg")
    except ImportError:
        console.print("no picture: pip install '/path/to/checkout[bench]' for matplotlib", highlight=False)
    if not options.json:
        rabbitmq_report.tell(told, console)
    written = json.dumps(rabbitmq_report.shortened(told), indent=1)
    (options.out / "results.json").write_text(written + "\n")
    if options.json:
        print(written)
    console.print(f"written to {options.out}", highlight=False)
    if any(row["errors"] for row in told["rates"] + told.get("latency", [])):
        sys.exit(1)


if __name__ == "__main__":
    main()
