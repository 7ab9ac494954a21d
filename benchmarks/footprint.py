"""Measures the resident memory of a broker for a connection, a channel, a consumer and an unacknowledged delivery.

    python benchmarks/footprint.py [--dir DIR] [--before CHECKOUT]

`logstore.broker.memory` counts these figures, rounded up. With ``--before`` the same is done with another checkout.
"""

from __future__ import annotations

import argparse
import select
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parent))

from broker_servers import LogstoreServer
from broker_wire import CHANNEL, Link, Messages
from builds import Build
from pamqp import commands
from pamqp import frame as pamqp_frame

CONNECTIONS: Final = 400
CHANNELS: Final = 2000
DELIVERIES: Final = 100_000
CONSUMERS: Final = 5  # that share the deliveries
IDLE_S: Final = 0.5  # until the broker has nothing to do
OPEN_OK_BYTES: Final = 16  # a whole channel.open-ok
ACTIVE_MESSAGES: Final = 20


def resident_bytes(pid: int) -> int:
    time.sleep(IDLE_S)
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("the kernel does not say the resident memory")


def link(server: LogstoreServer) -> Link:
    return Link("127.0.0.1", server.port, "guest", "guest", timeout_s=60)


def of_clients(server: LogstoreServer) -> dict[str, float]:
    [pid] = server.pids
    links = [link(server) for _ in range(20)]  # what is made once is not counted
    links[0].declare("q", {})  # for consumers
    links[0].declare("p", {})  # for publishers
    before = resident_bytes(pid)
    links += [link(server) for _ in range(CONNECTIONS)]
    connected = resident_bytes(pid)
    for own in links[-CONNECTIONS:]:
        own.call(CHANNEL, commands.Basic.Consume(queue="q"), commands.Basic.ConsumeOk)
    consuming = resident_bytes(pid)
    messages = Messages("p", 100, 1)
    for own in links[-CONNECTIONS:]:
        own.socket.sendall(messages.encoded(0, ACTIVE_MESSAGES))
        own.ready("p")
    active = resident_bytes(pid)
    for number in range(2, CHANNELS + 2):
        links[0].socket.sendall(pamqp_frame.marshal(commands.Channel.Open(), number))
    missing = CHANNELS * OPEN_OK_BYTES
    while missing > 0:
        missing -= len(links[0].receive())
    opened = resident_bytes(pid)
    return {
        "connection with a channel": (connected - before) / CONNECTIONS,
        "consumer": (consuming - connected) / CONNECTIONS,
        "the same after some messages": (active - before) / CONNECTIONS,
        "idle channel": (opened - active) / CHANNELS,
    }


def of_deliveries(server: LogstoreServer) -> dict[str, float]:
    [pid] = server.pids
    own, messages, at = link(server), Messages("u", 20, 1), 0
    own.declare("u", {})
    while at < DELIVERIES:
        count = min(messages.block_messages, DELIVERIES - at)
        own.socket.sendall(messages.encoded(at, count))
        at += count
    while own.ready("u") < DELIVERIES:
        pass
    consumers = [link(server) for _ in range(CONSUMERS)]
    before = resident_bytes(pid)
    for consumer in consumers:
        consumer.call(CHANNEL, commands.Basic.Consume(queue="u"), commands.Basic.ConsumeOk)
    while own.ready("u"):
        for consumer in select.select(consumers, [], [], 0)[0]:
            consumer.receive()
    return {"unacknowledged delivery": (resident_bytes(pid) - before) / DELIVERIES}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", type=Path, default=None, help="where the stores are made")
    parser.add_argument("--before", type=Path, default=None, help="another checkout, with its environment")
    given = parser.parse_args()
    builds = [Build()] if given.before is None else [Build.before(given.before), Build()]
    with tempfile.TemporaryDirectory(dir=given.dir) as made:
        for build in builds:
            for measure in (of_clients, of_deliveries):
                with LogstoreServer(Path(made) / build.name / measure.__name__, build) as server:
                    for what, size in measure(server).items():
                        print(f"{build.name}, {what}: {size:.0f} bytes")


if __name__ == "__main__":
    main()
