"""Measures how long a client of the broker waits while another one loads it, and the memory that the broker takes.

    python benchmarks/neighbours.py [--dir DIR] [--before CHECKOUT] [--only NAME] [--rounds 1]

Each load has a broker of its own, a process, on a new store. Beside the load a neighbour, another process, asks for the
number of messages of a queue every 20 ms; if an answer takes longer, the next question follows at once, and the times
at which questions were due count as waits, too. Printed are the median, the 99th percentile and the maximum of the
neighbour's waits in milliseconds while the load ran, how long that took, and the broker's resident memory: the peak,
and how much that is above what it had before the load. With
``--before`` the same is done with the build of another checkout, in turn.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

sys.path.insert(0, str(Path(__file__).resolve().parent))

from broker_servers import LogstoreServer
from broker_wire import BODY, CHANNEL, HEADER, PREFIX, Link, WireError, ack_up_to
from builds import Build
from pamqp import commands
from pamqp import frame as pamqp_frame

if TYPE_CHECKING:
    from collections.abc import Callable

EVERY_S: Final = 0.02
ASKED: Final = "asked"
MIB: Final = 1 << 20
SILENT_S: Final = 3.0  # how long clients stay that read nothing
BACKLOG: Final = [1_000_000]  # messages; set by --backlog
OTHER: Final = "other"  # a user who is not the neighbour's, and the password


def link(port: int) -> Link:
    return Link("127.0.0.1", port, "guest", "guest", timeout_s=300)


def ask(port: int) -> None:
    """The neighbour: prints ``ready``, asks until its standard input ends, and prints its waits in milliseconds."""
    with contextlib.closing(link(port)) as own:
        own.declare(ASKED, {})
        ended = threading.Event()
        threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
        print("ready", flush=True)
        waits: list[float] = []
        due = time.perf_counter()
        while not ended.is_set():
            own.ready(ASKED)
            now = time.perf_counter()
            while due <= now:
                waits.append((now - due) * 1000)
                due += EVERY_S
            time.sleep(max(0.0, due - time.perf_counter()))
            due = max(due, time.perf_counter() - EVERY_S)
    print(json.dumps(waits), flush=True)


# ---- loads -----------------------------------------------------------------------------------------------------------


def raw(kind: int, payload: bytes) -> bytes:
    return PREFIX.pack(kind, CHANNEL, len(payload)) + payload + b"\xce"


def start_of(queue: str, body_bytes: int) -> bytes:
    """A publish without its body."""
    method = pamqp_frame.marshal(commands.Basic.Publish(exchange="", routing_key=queue), CHANNEL)
    return method + raw(HEADER, struct.pack(">HHQ", 60, 0, body_bytes) + b"\x00\x00")


def publish(own: Link, queue: str, body: bytes) -> None:
    most = own.frame_bytes_max - 8
    pieces = [raw(BODY, body[at : at + most]) for at in range(0, len(body), most)]
    own.socket.sendall(start_of(queue, len(body)) + b"".join(pieces))


def declare(own: Link, queue: str, *, durable: bool = True) -> int:
    method = commands.Queue.Declare(queue=queue, durable=durable)
    return int(own.call(CHANNEL, method, commands.Queue.DeclareOk).message_count)


def read(own: Link, size: int) -> None:
    while size > 0:
        size -= len(own.receive())


def gets(port: int) -> Callable[[], object]:
    """40 basic.get of 32 MiB in one packet."""
    own, body_bytes, count = link(port), 32 * MIB, 40
    declare(own, "q")
    for _ in range(count):
        publish(own, "q", bytes(body_bytes))
    declare(own, "q")

    def run() -> None:
        own.socket.sendall(pamqp_frame.marshal(commands.Basic.Get(queue="q", no_ack=True), CHANNEL) * count)
        read(own, count * body_bytes)

    return run


def fan_out(port: int) -> Callable[[], object]:
    """A message of 64 MiB on 24 queues, each with a consumer that does not read."""
    own, consumers = link(port), [link(port) for _ in range(24)]
    own.call(
        CHANNEL,
        commands.Exchange.Declare(exchange="all", exchange_type="fanout", durable=True),
        commands.Exchange.DeclareOk,
    )
    for number, consumer in enumerate(consumers):
        declare(own, f"q{number}")
        own.call(CHANNEL, commands.Queue.Bind(queue=f"q{number}", exchange="all"), commands.Queue.BindOk)
        consumer.call(CHANNEL, commands.Basic.Consume(queue=f"q{number}"), commands.Basic.ConsumeOk)

    def run() -> None:
        method = pamqp_frame.marshal(commands.Basic.Publish(exchange="all", routing_key=""), CHANNEL)
        body = bytes(64 * MIB)
        most = own.frame_bytes_max - 8
        own.socket.sendall(method + raw(HEADER, struct.pack(">HHQ", 60, 0, len(body)) + b"\x00\x00"))
        for at in range(0, len(body), most):
            own.socket.sendall(raw(BODY, body[at : at + most]))
        declare(own, "q0")
        time.sleep(SILENT_S)

    return run


def tiny_frames(port: int) -> Callable[[], object]:
    """A body of 16 MiB in frames of 2 bytes."""
    own, size = link(port), 16 * MIB
    declare(own, "q")
    block = raw(BODY, b"xy") * 4096

    def run() -> None:
        own.socket.sendall(start_of("q", size))
        for _ in range(size // (2 * 4096)):
            own.socket.sendall(block)
        declare(own, "q")

    return run


def large_bodies(port: int, size: int) -> Callable[[], object]:
    """256 MiB in bodies of this size, and an answer when they are on the disk."""
    own = link(port)
    declare(own, "q")
    body = os.urandom(size)

    def run() -> None:
        for _ in range(256 * MIB // size):
            publish(own, "q", body)
        declare(own, "q")

    return run


def small_messages(port: int, *, durable: bool) -> Callable[[], object]:
    own, count = link(port), 1_000_000
    declare(own, "q", durable=durable)
    block = (start_of("q", 20) + raw(BODY, b"x" * 20)) * 1000

    def run() -> None:
        for _ in range(count // 1000):
            own.socket.sendall(block)
        assert declare(own, "q", durable=durable) == count

    return run


def unread_in_memory(port: int, count: int) -> Callable[[], object]:
    """Publishes of 20 bytes to a queue in memory that nobody reads."""
    own = link(port)
    declare(own, "unread", durable=False)
    block = (start_of("unread", 20) + raw(BODY, b"x" * 20)) * 1000

    def run() -> None:
        for _ in range(count // 1000):
            own.socket.sendall(block)
        assert declare(own, "unread", durable=False) == count

    return run


def replies_beside(port: int) -> Callable[[], object]:
    """10,000 requests and replies by exclusive queues, while a queue in memory has more than the memory holds."""
    unread_in_memory(port, 3_000_000)()
    asking, answering, count = link(port), link(port), 10_000
    declare(answering, "requests", durable=False)
    asking.call(CHANNEL, commands.Queue.Declare(queue="replies", exclusive=True), commands.Queue.DeclareOk)
    for own, queue in ((answering, "requests"), (asking, "replies")):
        own.call(CHANNEL, commands.Basic.Consume(queue=queue, consumer_tag="c", no_ack=True), commands.Basic.ConsumeOk)
    delivered = len(pamqp_frame.marshal(commands.Basic.Deliver("c", 1, False, "", "requests"), CHANNEL)) + 22 + 28
    replied = delivered - len("requests") + len("replies")

    def run() -> None:
        for _ in range(count):
            publish(asking, "requests", bytes(20))
            read(answering, delivered)
            publish(answering, "replies", bytes(20))
            read(asking, replied)

    return run


def end_with_unacked(port: int) -> Callable[[], object]:
    """Connections end that have 200,000 unacknowledged deliveries together."""
    own, other, count = link(port), link(port), 200_000
    declare(own, "q")
    own.socket.sendall((start_of("q", 20) + raw(BODY, b"x" * 20)) * count)
    assert declare(own, "q") == count
    consumers = [link(port) for _ in range(4)]  # one has at most `unacked_per_consumer_max`
    for consumer in consumers:
        consumer.call(CHANNEL, commands.Basic.Consume(queue="q"), commands.Basic.ConsumeOk)
    while other.ready("q") > 0:
        for consumer in select.select(consumers, [], [], 0)[0]:
            consumer.receive()

    def run() -> None:
        for consumer in consumers:
            consumer.socket.close()
        while other.ready("q") < count:
            pass

    return run


def many_connections(port: int) -> Callable[[], object]:
    """1,000 connections, each with a consumer on a queue of its own; each gets a message and acknowledges it."""
    clients: list[Link] = []

    def run() -> None:
        for number in range(1000):
            own = link(port)
            clients.append(own)
            declare(own, f"q{number}")
            own.call(CHANNEL, commands.Basic.Consume(queue=f"q{number}"), commands.Basic.ConsumeOk)
        for number, own in enumerate(clients):
            publish(own, f"q{number}", b"x" * 20)
        for own in clients:
            own.receive()
            own.socket.sendall(ack_up_to(1))
        time.sleep(SILENT_S)

    return run


def unread(port: int) -> Callable[[], object]:
    """100 consumers that do not read, each with a message of 128 MiB, which is one message on all of their queues."""
    own, body_bytes = link(port), 128 * MIB
    exchange = commands.Exchange.Declare(exchange="all", exchange_type="fanout", durable=True)
    own.call(CHANNEL, exchange, commands.Exchange.DeclareOk)
    for number in range(100):
        declare(own, f"q{number}")
        own.call(CHANNEL, commands.Queue.Bind(queue=f"q{number}", exchange="all"), commands.Queue.BindOk)
    method = pamqp_frame.marshal(commands.Basic.Publish(exchange="all", routing_key=""), CHANNEL)
    own.socket.sendall(method + raw(HEADER, struct.pack(">HHQ", 60, 0, body_bytes) + b"\x00\x00"))
    piece = raw(BODY, bytes(own.frame_bytes_max - 8))
    for _ in range(body_bytes // (own.frame_bytes_max - 8)):
        own.socket.sendall(piece)
    own.socket.sendall(raw(BODY, bytes(body_bytes % (own.frame_bytes_max - 8))))
    declare(own, "q0")
    consumers = [link(port) for _ in range(100)]

    def run() -> None:
        for number, consumer in enumerate(consumers):
            consumer.call(CHANNEL, commands.Basic.Consume(queue=f"q{number}"), commands.Basic.ConsumeOk)
        time.sleep(3 * SILENT_S)

    return run


def backlog(port: int) -> Callable[[], object]:
    """A durable queue with very many messages (`--backlog`) that nobody reads."""
    own, count = link(port), BACKLOG[0]
    declare(own, "q")
    block = (start_of("q", 20) + raw(BODY, b"x" * 20)) * 1000

    def run() -> None:
        for _ in range(count // 1000):
            own.socket.sendall(block)
        assert declare(own, "q") == count

    return run


def unacknowledged(port: int) -> Callable[[], object]:
    """Consumers without prefetch take 1,000,000 messages, as far as they get any, and acknowledge none."""
    own, count = link(port), 1_000_000
    declare(own, "q")
    block = (start_of("q", 20) + raw(BODY, b"x" * 20)) * 1000
    for _ in range(count // 1000):
        own.socket.sendall(block)
    assert declare(own, "q") == count
    consumers = [link(port) for _ in range(20)]

    def run() -> None:
        for consumer in consumers:
            consumer.call(CHANNEL, commands.Basic.Consume(queue="q"), commands.Basic.ConsumeOk)
        while select.select(consumers, [], [], SILENT_S / 3)[0]:  # until nothing comes any more
            for consumer in select.select(consumers, [], [], 0)[0]:
                consumer.receive()
        print(f"  {count - own.ready('q')} delivered and not acknowledged")

    return run


def declarations(port: int) -> Callable[[], object]:
    """3,000 declarations of durable queues in one packet."""
    own, count = link(port), 3000
    names = [f"queue {number}" for number in range(count)]

    def run() -> None:
        own.socket.sendall(
            b"".join(
                pamqp_frame.marshal(commands.Queue.Declare(queue=name, durable=True, nowait=True), CHANNEL)
                for name in names
            )
        )
        own.ready(names[-1])

    return run


def logins(port: int) -> Callable[[], object]:
    """300 clients of a user who has not logged in yet do so at once; prints how many could not."""
    start = threading.Barrier(300)
    failed: list[str] = []

    def login() -> None:
        start.wait()
        try:
            Link("127.0.0.1", port, OTHER, OTHER, timeout_s=300).close()
        except Exception as error:  # noqa: BLE001 - counted
            failed.append(str(error))

    def run() -> None:
        threads = [threading.Thread(target=login) for _ in range(300)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failed:
            print(f"  {len(failed)} of 300 logins failed: {failed[0]}")

    return run


def silent(port: int) -> Callable[[], object]:
    """A client logs in while 2,200 others are silent before their handshake; prints how long it takes."""
    others: list[socket.socket] = []

    def run() -> None:
        for _ in range(2200):
            with contextlib.suppress(OSError):
                others.append(socket.create_connection(("127.0.0.1", port)))
        began, refused = time.perf_counter(), 0
        while True:
            try:
                link(port).close()
                break
            except (OSError, WireError):
                refused += 1
                time.sleep(EVERY_S)
        print(f"  the newcomer: {(time.perf_counter() - began) * 1000:.0f} ms, refused {refused} times")

    return run


LOADS: Final[dict[str, Callable[[int], Callable[[], object]]]] = {
    "gets": gets,
    "fan-out": fan_out,
    "tiny frames": tiny_frames,
    "bodies of 1 MiB": lambda port: large_bodies(port, MIB),
    "bodies of 2 MiB": lambda port: large_bodies(port, 2 * MIB),
    "bodies of 64 MiB": lambda port: large_bodies(port, 64 * MIB),
    "small messages, durable": lambda port: small_messages(port, durable=True),
    "small messages, in memory": lambda port: small_messages(port, durable=False),
    "10^7 small messages, in memory, unread": lambda port: unread_in_memory(port, 10_000_000),
    "replies beside an unread queue in memory": replies_beside,
    "end with 200,000 unacknowledged": end_with_unacked,
    "3,000 declarations": declarations,
    "300 logins": logins,
    "2,200 silent": silent,
    "1,000 connections with a consumer": many_connections,
    "100 unread bodies of 128 MiB": unread,
    "backlog": backlog,
    "unacknowledged without limit": unacknowledged,
}


# ---- measuring -------------------------------------------------------------------------------------------------------


def peak_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("the kernel does not say the peak of memory")


def forget_peak(pid: int) -> None:
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/clear_refs").write_text("5")


def add_user(build: Build, store: Path) -> None:
    subprocess.run(
        [build.python, "-P", "-m", "logstore", "user", store, "add", OTHER],
        input=f"{OTHER}\n{OTHER}\n",
        capture_output=True,
        text=True,
        check=True,
        env=build.environment(),
    )


def measure(build: Build, load: str, place: Path) -> dict[str, float]:
    with LogstoreServer(place / build.name / load.replace(" ", "-"), build) as server:
        asking = None
        add_user(build, server.store)
        run = LOADS[load](server.port)
        try:
            asking = subprocess.Popen(
                [sys.executable, __file__, "--ask", str(server.port)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            assert asking.stdin is not None
            assert asking.stdout is not None
            asking.stdout.readline()
            time.sleep(0.3)  # some waits of an idle broker
            forget_peak(server.pids[0])
            before = peak_mib(server.pids[0])
            began = time.perf_counter()
            run()
            seconds = time.perf_counter() - began
            peak = peak_mib(server.pids[0])
            asking.stdin.close()
            waits = json.loads(asking.stdout.readline())
        finally:
            if asking is not None:
                asking.kill()
                asking.wait()
    waits = sorted(waits)
    return {
        "median_ms": round(statistics.median(waits), 1),
        "p99_ms": round(waits[int(len(waits) * 0.99)], 1),
        "max_ms": round(waits[-1], 1),
        "seconds": round(seconds, 2),
        "peak_mib": round(peak),
        "more_mib": round(peak - before),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", type=Path, default=None, help="where the stores are made")
    parser.add_argument("--before", type=Path, default=None, help="another checkout, with its environment")
    parser.add_argument("--only", action="append", choices=list(LOADS), help="this load; may be given several times")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--backlog", type=int, default=BACKLOG[0], help="messages of the load of that name")
    parser.add_argument("--ask", type=int, default=0, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.ask:
        ask(given.ask)
        return
    BACKLOG[0] = given.backlog
    builds = [Build()] if given.before is None else [Build.before(given.before), Build()]
    print(f"load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory(dir=given.dir) as made:
        for number in range(given.rounds):
            for load in given.only or LOADS:
                for build in builds:
                    found = measure(build, load, Path(made) / str(number))
                    print(f"{load}, {build.name}: " + ", ".join(f"{name} {value}" for name, value in found.items()))


if __name__ == "__main__":
    main()
