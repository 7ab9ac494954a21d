"""A replicated store on three members of this machine, each a process, in figures.

    python benchmarks/cluster.py [--dir DIR] [pacing] [update] [publish] [failover]

* ``publish``: the members beside a single store, in turns: messages a second, processor time, forces and bytes of each copy.
* ``pacing``: one voter is slow; what it lacks over time, and what publishers notice, with pacing and without.
* ``update``: a member that lost its copy gets one while publishing goes on.
* ``failover``: the leader is killed, frozen, or hands over under load; the time until the next one confirms a publish.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from cluster_trio import Trio, Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

WINDOW = (100, 1, True)
BATCHES = (1, 1000, True)
UNPAUSED = (200, 1, True)


def say(*cells: object) -> None:
    """A row of a table."""
    print("|", " | ".join(str(cell) for cell in cells), "|", flush=True)


def ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f}"


# ---- publish ---------------------------------------------------------------------------------------------------------


def publish(place: Path, arguments: argparse.Namespace) -> None:
    """Each work on the single store and on the members, in turns."""
    single = Worker(place / "single", "single")
    single.do("declare")
    say(
        "publish of 1 KiB",
        "store",
        "messages/s",
        "p50 ms",
        "p99 ms",
        "µs CPU a message",
        "messages a force",
        "bytes a KiB",
    )
    say(*["---"] * 8)
    with Trio(place) as trio:
        for name, work in (("window 100", WINDOW), ("batches of 1000", BATCHES), ("window 1", (1, 1, True))):
            found: dict[str, list[list[float]]] = {}
            for _ in range(arguments.rounds):
                found.setdefault("single store", []).extend(_publish([single], work, arguments.seconds))
                leader = trio.leader()
                measured = _publish([leader, *trio.followers()], work, arguments.seconds, trio.settle)
                found.setdefault("leader", []).append(measured[0])
                found.setdefault("follower", []).extend(measured[1:])
            for store, samples in found.items():
                middle = [statistics.median(column) for column in zip(*samples, strict=True)]
                say(
                    name, store, f"{middle[0]:.0f}", ms(middle[1]), ms(middle[2]), *(f"{one:.2f}" for one in middle[3:])
                )
    single.kill()


def _publish(
    workers: Sequence[Worker], work: tuple[int, int, bool], seconds: float, settle: Callable[[], None] | None = None
) -> list[list[float]]:
    """The first publishes: its rate and times, and for each what a message took."""
    workers[0].do("load", *work)
    time.sleep(seconds / 4)
    before = [each.do("usage") for each in workers]
    begin = time.monotonic()
    time.sleep(seconds)
    end = time.monotonic()
    after = [each.do("usage") for each in workers]
    workers[0].do("unload")
    figures = workers[0].do("figures", begin, end)
    if settle is not None:
        settle()
    messages = after[0]["messages"] - before[0]["messages"]
    rows = []
    for old, new in zip(before, after, strict=True):
        forces = max(1, new["forces"] - old["forces"])
        rows.append(
            [
                figures["rate"] * work[1],
                figures["p50"],
                figures["p99"],
                (new["cpu_s"] - old["cpu_s"]) / messages * 1e6,
                messages / forces,
                (new["bytes"] - old["bytes"]) / messages / 1024,
            ]
        )
    return rows


# ---- pacing ----------------------------------------------------------------------------------------------------------


def pacing(place: Path, arguments: argparse.Namespace) -> None:
    """One voter takes longer for each batch than the leader does."""
    say("", "s", "batches that the voter lacks", "messages/s", "p50 ms", "p99 ms", "max ms")
    say(*["---"] * 7)
    for name in ("without pacing", "with pacing"):
        made = place / name.replace(" ", "-")
        made.mkdir()
        with Trio(made) as trio:
            leader, slow = trio.leader(), trio.followers()[0]
            if name == "without pacing":
                for each in trio.workers:
                    each.do("unpaced")
            slow.do("slow", arguments.slow_ms / 1000)
            leader.do("load", *UNPAUSED)
            begin = started = time.monotonic()
            for _ in range(arguments.samples):
                time.sleep(arguments.seconds)
                end = time.monotonic()
                standing = leader.do("standing")
                lacks = standing["index"] - standing["acknowledged"][str(slow.do("standing")["member"])]
                figures = leader.do("figures", begin, end)
                times = [ms(figures[one]) for one in ("p50", "p99", "max")]
                say(name, f"{end - started:.0f}", lacks, f"{figures['rate']:.0f}", *times)
                begin = end
            leader.do("unload")
        shutil.rmtree(made)


PARTS = {"publish": publish, "pacing": pacing}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], default=list(PARTS))
    parser.add_argument("--dir", type=Path, help="where the members' directories are made")
    parser.add_argument("--seconds", type=float, default=4.0, help="of a measurement (4)")
    parser.add_argument("--rounds", type=int, default=3, help="of publish (3)")
    parser.add_argument("--samples", type=int, default=8, help="of pacing (8)")
    parser.add_argument("--slow-ms", type=float, default=4.0, help="that the slow voter takes for each batch (4)")
    arguments = parser.parse_args()
    for part in arguments.parts or PARTS:
        with tempfile.TemporaryDirectory(prefix=f"cluster-{part}-", dir=arguments.dir) as made:
            PARTS[part](Path(made), arguments)


if __name__ == "__main__":
    main()
