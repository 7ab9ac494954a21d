"""CPU time of the connections between members: two transports in one process and one loop, on the loopback.

    benchmarks/transport.py [--rounds 4000]

Prints microseconds a side: half of the process's CPU time. "one by one": a frame is sent when the one before has come,
so each wakes the loop; "in a row": as many as there is room for.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import tempfile
import time
from typing import TYPE_CHECKING, Any

from logstore.cluster import frames
from logstore.cluster.addresses import Tls
from logstore.cluster.certificates import make_authority, make_certificate
from logstore.cluster.replica import Batch
from logstore.cluster.transport import Carried, Hello, Identity, Me, Received, Transport, new_event_loop

if TYPE_CHECKING:
    from collections.abc import Callable

HOSTS = 100
SIZES = (104, 4096, 65_536, 262_144)
NAMES = {1: "one", 2: "two"}


class Counting:
    """A handler that consumes what comes, and counts it."""

    def __init__(self) -> None:
        self.count = 0
        self._changed = asyncio.Event()

    async def until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            self._changed.clear()
            await self._changed.wait()

    def identity(self, _peer: int) -> dict[bytes, Identity]:
        return {}

    def greeted(self, _peer: int, _hello: Hello) -> str | None:
        return None

    def frames(self, _peer: int, received: list[Received]) -> None:
        for each in received:
            each.consumed()
        self.count += len(received)
        self._changed.set()

    def connected(self, _peer: int) -> None:
        self._changed.set()

    room = connected

    def _nothing(self, *_told: Any) -> None:
        pass

    lost = control = refused = update = _nothing


async def measure(rounds: int, tls: dict[int, Tls]) -> None:
    """Measures one kind of connection."""
    told = {member: Counting() for member in NAMES}
    members = {
        member: Transport(Me(cluster=bytes(16), member=member, name=name), told[member], tls=tls.get(member))
        for member, name in NAMES.items()
    }
    one, two = members.values()
    hosts = [one.host(number.to_bytes(16, "big")) for number in range(HOSTS)]
    for number in range(HOSTS):
        two.host(number.to_bytes(16, "big"))
    addresses = {member: await each.start("127.0.0.1:0") for member, each in members.items()}
    for member, each in members.items():
        each.set_peers({other: (NAMES[other], addresses[other]) for other in NAMES if other != member})
    await told[1].until(lambda: one.room(2) > 0)
    gc.collect()
    gc.freeze()
    kind = "TLS 1.3" if tls else "plain"
    heartbeat: Any = (5, 0, 7, 12, 7, 12, frames.TYPE_APPEND, 0, 0, ())
    for many in (1, 10, HOSTS):
        started = time.process_time()
        for _ in range(rounds):
            wanted = told[2].count + many
            for host in hosts[:many]:
                one.send(2, host, heartbeat)
            await told[2].until(lambda wanted=wanted: told[2].count >= wanted)  # type: ignore[misc]
        say(kind, f"heartbeats of {many} hosts", started, rounds)
    for size in SIZES:
        for in_a_row in (False, True):
            started = time.process_time()
            await send(one, hosts[0], told, size, rounds, in_a_row=in_a_row)
            say(kind, f"a batch of {size} bytes, {'in a row' if in_a_row else 'one by one'}", started, rounds)
    await asyncio.gather(one.close(), two.close())


async def send(one: Transport, host: int, told: dict[int, Counting], size: int, rounds: int, *, in_a_row: bool) -> None:
    """Sends batches of this size until all have come."""
    batch = Batch(7, 13, 1 << 43, (1 << 43) + size, 1 << 43, 1 << 42, None, bytes(size))
    carried = (Carried(batch, 1),)
    needed = frames.message_bytes(carried)
    frame: Any = (5, 0, 7, 12, 7, 12, frames.TYPE_APPEND, 0, 1, ())
    first = told[2].count
    for at in range(rounds):
        while not one.send(2, host, frame, carried):
            await told[1].until(lambda: one.room(2, needed) >= needed)
        if in_a_row:
            await asyncio.sleep(0)
        else:
            await told[2].until(lambda at=at: told[2].count > first + at)  # type: ignore[misc]
    await told[2].until(lambda: told[2].count >= first + rounds)


def say(kind: str, what: str, started: float, rounds: int) -> None:
    """One line."""
    print(f"{kind:8} {what:36} {(time.process_time() - started) / rounds / 2 * 1e6:7.1f} us a side", flush=True)


def main() -> None:
    """Runs it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4000)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as name:
        authority = make_authority(name)
        made = {member: make_certificate(name, authority, each) for member, each in NAMES.items()}
        for tls in ({}, {member: Tls(authority.cert, *each) for member, each in made.items()}):
            with asyncio.Runner(loop_factory=new_event_loop) as runner:
                runner.run(measure(rounds, tls))


if __name__ == "__main__":
    main()
