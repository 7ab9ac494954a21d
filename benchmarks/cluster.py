"""A replicated store on three members of this machine, each a process, in figures.

    python benchmarks/cluster.py [--dir DIR] [pacing] [update] [publish] [failover]

* ``publish``: the members beside a single store, in turns: messages a second, processor time, forces and bytes.
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

from cluster_trio import Trio, Worker, wait_for

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


# ---- update ----------------------------------------------------------------------------------------------------------


def update(place: Path, arguments: argparse.Namespace) -> None:
    """A member whose copy is gone gets one; what publishers notice before and meanwhile."""
    with Trio(place) as trio:
        leader, receiver = trio.leader(), trio.followers()[0]
        leader.do("fill", arguments.live)
        trio.settle()
        receiver.kill()
        # An empty member joins in the place of the one that is removed: a copy is not made anew in place.
        leader.do("remove", trio.members[receiver.directory.name])
        trio.workers.remove(receiver)
        leader.do("load", arguments.window, 1, True)
        say("", "s", "messages/s", "p50 ms", "p99 ms", "max ms", "leader MiB", "receiver MiB")
        say(*["---"] * 8)
        before = _sample(leader, 4 * arguments.seconds)
        say("before", *before, *_memory(leader), "")
        leader.do("forget_peak")
        trio.join("m4")
        newcomer = trio.workers[-1]
        begin = time.monotonic()
        wait_for(lambda: newcomer.do("standing")["durable_index"] > 0, "the copy has come")
        end = time.monotonic()
        say("until the copy counts", *_row(leader, begin, end), *_memory(leader, newcomer))
        begin = end
        wait_for(lambda: leader.do("standing")["voters"] == 3, "it is a voter")
        say("until it is a voter", *_row(leader, begin, time.monotonic()), *_memory(leader, newcomer))
        say("after", *_sample(leader, 4 * arguments.seconds), *_memory(leader, newcomer))
        leader.do("unload")


def _row(leader: Worker, begin: float, end: float) -> list[str]:
    figures = leader.do("figures", begin, end)
    return [f"{end - begin:.1f}", f"{figures['rate']:.0f}", *(ms(figures[one]) for one in ("p50", "p99", "max"))]


def _sample(leader: Worker, seconds: float) -> list[str]:
    begin = time.monotonic()
    time.sleep(seconds)
    return _row(leader, begin, time.monotonic())


def _memory(*workers: Worker) -> list[str]:
    """The most that each had."""
    return [f"{each.do('usage')['rss_max'] / 2**20:.0f}" for each in workers]


# ---- fail-over -------------------------------------------------------------------------------------------------------


def failover(place: Path, arguments: argparse.Namespace) -> None:
    """Under load, from the fault until the next leader has confirmed a publish."""
    say("the leader", "times", "p50 ms", "p99 ms", "max ms")
    say(*["---"] * 5)
    with Trio(place) as trio:
        for each in trio.workers:
            each.do("load", *WINDOW)
        for name, fault in (("is killed", _kill), ("freezes", _freeze), ("hands over", _hand_over)):
            took = sorted(_failover(trio, fault) for _ in range(arguments.times))
            at = [took[len(took) // 2], took[(len(took) - 1) * 99 // 100], took[-1]]
            say(name, len(took), *map(ms, at))


def _failover(trio: Trio, fault: Callable[[Worker], Callable[[], None]]) -> float:
    leader = trio.leader()
    wait_for(lambda: leader.do("standing")["first_confirm"] > 0, "it confirms")
    trio.near()
    others = [each for each in trio.workers if each is not leader]
    begin = time.monotonic()
    mend = fault(leader)
    found: list[float] = []

    def confirms() -> bool:
        for each in others:
            standing = each.do("standing")
            if standing["state"] == "leads" and standing["first_confirm"] > begin:
                found.append(standing["first_confirm"] - begin)
        return bool(found)

    wait_for(confirms, "the next leader confirms")
    mend()
    return found[0]


def _kill(leader: Worker) -> Callable[[], None]:
    leader.kill()

    def mend() -> None:
        leader.start()
        leader.do("load", *WINDOW)

    return mend


def _freeze(leader: Worker) -> Callable[[], None]:
    leader.freeze()
    return leader.thaw


def _hand_over(leader: Worker) -> Callable[[], None]:
    leader.do("transfer", 0)
    return lambda: None


PARTS = {"publish": publish, "pacing": pacing, "update": update, "failover": failover}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], default=list(PARTS))
    parser.add_argument("--dir", type=Path, help="where the members' directories are made")
    parser.add_argument("--seconds", type=float, default=4.0, help="of a measurement (4)")
    parser.add_argument("--rounds", type=int, default=3, help="of publish (3)")
    parser.add_argument("--samples", type=int, default=8, help="of pacing (8)")
    parser.add_argument("--slow-ms", type=float, default=4.0, help="that the slow voter takes for each batch (4)")
    parser.add_argument("--live", type=int, default=1_000_000, help="messages of update (1000000)")
    parser.add_argument("--window", type=int, default=100, help="messages in flight during update (100)")
    parser.add_argument("--times", type=int, default=100, help="of each kind of failover (100)")
    arguments = parser.parse_args()
    for part in arguments.parts or PARTS:
        with tempfile.TemporaryDirectory(prefix=f"cluster-{part}-", dir=arguments.dir) as made:
            PARTS[part](Path(made), arguments)


if __name__ == "__main__":
    main()
