"""What a relay costs: processor time a message of the relaying member, and memory of each idle connection.

    python benchmarks/relay.py [--seconds 5] [--rounds 2] [--idle 500] [--body 1024]

Three members on this machine, each a process. The same client talks to the leader, and then to another member, which
relays it. The difference of the two is what the relay adds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import broker_wire as wire

from logstore.cluster import config
from logstore.cluster.demo import started

CLIENT = Path(__file__).resolve().parent / "broker_client.py"
WINDOW = 100


def us_a_message(port: int, pid: int, arguments: argparse.Namespace) -> dict[str, float]:
    """Processor time of a process while the client publishes with confirms, and while it consumes what it published."""
    order = {"what": "rates", "port": port, "connections": 1, "window": WINDOW, "body_bytes": arguments.body}
    order |= {"seconds": arguments.seconds, "server_pids": [pid]}
    done = subprocess.run(
        [sys.executable, str(CLIENT), json.dumps(order)], stdout=subprocess.PIPE, text=True, check=True
    )
    found = json.loads(done.stdout)
    return {each: found[each]["server_cpu_s"] / found[each]["messages"] * 1e6 for each in ("publish", "consume")}


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    """Measures, and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--idle", type=int, default=500)
    parser.add_argument("--body", type=int, default=1024)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as place, started(Path(place), 3, lambda _: None) as demo:
        leader = demo._leads()
        assert leader is not None
        relaying = next(each for each in demo._running if each is not leader)
        members = [
            (name, int(config.read(each.directory).amqp.rpartition(":")[2]), each.process.pid)
            for name, each in (("the leader", leader), ("the relaying member", relaying))
        ]
        print("| client of | processor time of | publish, µs a message | consume, µs a message |")
        print("| --- | --- | ---: | ---: |")
        for _ in range(arguments.rounds):
            for client_of, port, _ in members:
                for name, _, pid in members:
                    found = us_a_message(port, pid, arguments)
                    cells = (client_of, name, *(f"{each:.1f}" for each in found.values()))
                    print("|", " | ".join(cells), "|", flush=True)
        pids = [pid for _, _, pid in reversed(members)]
        before = [resident_bytes(pid) for pid in pids]
        held = [wire.Link("127.0.0.1", members[1][1], "guest", "guest") for _ in range(arguments.idle)]
        kib = [(resident_bytes(pid) - old) / len(held) / 1024 for pid, old in zip(pids, before, strict=True)]
        print(f"{len(held)} idle clients: {kib[0]:.1f} KiB each at the relaying member, {kib[1]:.1f} at the leader")


if __name__ == "__main__":
    main()
