"""Runs the members of a cluster under faults, and judges that nothing is lost, reordered or returned.

Three to five members run as processes of their own on loopback, with a proxy between each two, or each in a network
namespace of its own. Four senders publish
numbers, and four receivers acquire them and accept, release, reject or drop them; they work in the member that leads.
In each round members are killed, stopped, cut off, delayed or asked to hand over, at moments drawn from the seed, and
the journals (chaos_journal.py) are judged (chaos_judge.py) when all is healed. At the end the closed copies are
verified and compared.

    python tools/chaos.py --rounds 10
    python tools/chaos.py --rounds 1 --seed 7 --members 5
    python tools/chaos.py --amqp

With --amqp the members run brokers, and the senders and receivers are clients of any of them (chaos_amqp.py).

The seed draws the faults; who leads, and what is under way then, depends on the machine.

Exit status: 0 nothing is wrong, 1 something is (the directory is kept then), 2 wrong arguments.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(Path(__file__).resolve().parent)]

from chaos_amqp_judge import AmqpJudge  # noqa: E402 - found by the line above
from chaos_cluster import LOOK_S, PATIENCE_S, Cluster, Failure, Gone, Refused  # noqa: E402
from chaos_copies import differences, queues  # noqa: E402
from chaos_disks import missing_for  # noqa: E402
from chaos_faults import NAMES, Faults, plan_of_round  # noqa: E402
from chaos_journal import Journal, Journals  # noqa: E402
from chaos_judge import Judge, RoundsJudge  # noqa: E402
from chaos_member import HOST  # noqa: E402
from chaos_network import Namespaces  # noqa: E402
from chaos_network import missing as missing_for_namespaces  # noqa: E402

from logstore.cluster.directory import copy_number  # noqa: E402

QUICK = Path("/dev/shm")
QUICK_BYTES = 200 << 20
AFTER_HEALING = 400  # numbers confirmed after a round was healed


class Chaos:
    """Rounds on one cluster, and the end."""

    def __init__(self, cluster: Cluster, seed: int, confirms: int) -> None:
        self.cluster = cluster
        self.seed = seed
        self.confirms = confirms
        self.journals = Journals(self.cluster.journals)
        self.journal = Journal(self.cluster.journals / "driver.jsonl")
        self.judge: RoundsJudge = AmqpJudge() if cluster.amqp else Judge()
        self.counts = dict.fromkeys(("rounds", *NAMES, "updates"), 0)
        self.problems: list[str] = []
        self._waiting: list[dict[str, object]] = []  # lines that are read and not judged yet
        self._copies = 0  # the sum of their numbers when all began
        self._confirmed = 0  # that the journals have

    def form(self) -> None:
        """Makes the members."""
        self.cluster.form()
        self._copies = self._copy_numbers()

    def round(self) -> None:
        """One round. Raises ``Failure``."""
        cluster = self.cluster
        chance = random.Random(f"{self.seed} {self.counts['rounds']}")
        faults = plan_of_round(
            chance,
            self.counts["rounds"],
            disks=cluster.disks is not None,
            namespaces=isinstance(cluster.network, Namespaces),
        )
        begins = self._confirmed + chance.randrange(self.confirms)
        quota = self._confirmed + self.confirms
        making = Faults(cluster, chance, self.counts, self.journal, self._read)
        self.journal.write("round", number=self.counts["rounds"], planned=len(faults), confirms=self.confirms)
        cluster.ask_all("resume")
        cluster.wait(lambda: self._read() >= begins, "numbers are confirmed before the fault")
        making.begin(faults)
        end = time.monotonic() + PATIENCE_S
        while making.turn():
            if time.monotonic() > end:
                raise Failure(f"round {self.counts['rounds']}: its faults {faults} were not all made")
            time.sleep(LOOK_S)
        healed = self._read()
        cluster.wait(lambda: self._read() >= max(quota, healed + AFTER_HEALING), "numbers are confirmed after healing")
        self.journal.write("ended", number=self.counts["rounds"])
        self.counts["rounds"] += 1
        self._settle()

    def _read(self) -> int:
        """Reads the journals; how many numbers are confirmed."""
        lines = self.journals.new_lines()
        self._waiting += lines
        key = "numbers" if self.cluster.amqp else "ids"
        self._confirmed += sum(len(line[key]) for line in lines if line["event"] == "confirmed")
        return self._confirmed

    def _settle(self) -> None:
        """Judges what was done, with the queue as it is while nobody works."""
        self.cluster.ask_all("pause")
        found = self.cluster.stock()
        self._judge([tuple(place) for place in found["queue"]], found["term"])

    def _judge(self, queue: list[tuple[int, int, int]], term: int) -> None:
        self._read()
        self._waiting.sort(key=lambda line: line["at_ns"])
        self.judge.take(self._waiting)
        self._waiting = []
        self.judge.stock(queue, term, time.monotonic_ns())

    def _copy_numbers(self) -> int:
        return sum(copy_number(self.cluster.directory(member) / HOST) for member in self.cluster.members)

    def finish(self) -> None:
        """Closes all members, and judges their copies."""
        cluster = self.cluster
        cluster.wait_until_equal()
        member = cluster.leader() or cluster.members[0]
        standing = cluster.processes[member].ask("standing")
        directories = [cluster.directory(each) for each in cluster.members]
        cluster.close()
        self.counts["updates"] = self._copy_numbers() - self._copies
        self.problems += differences(directories, standing["durable_index"])
        contents = queues(directories)
        if any(queue != contents[0] for queue in contents):
            self.problems.append("the queue is not the same on all copies")
        self._judge(contents[0], standing["term"])


def arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    amount = parser.add_mutually_exclusive_group()
    amount.add_argument("--rounds", type=int, default=10, metavar="N", help="rounds of faults (10)")
    amount.add_argument("--confirmed", type=int, metavar="N", help="rounds until N messages are confirmed")
    amount.add_argument("--seconds", type=int, metavar="S", help="rounds for this long")
    parser.add_argument("--json", action="store_true", help="end with a line in JSON")
    parser.add_argument("--seed", type=int, help="seed of the faults")
    parser.add_argument("--members", type=int, default=3, help="from 3 to 5 (3)")
    parser.add_argument("--confirms", type=int, default=5000, metavar="N", help="least confirmed in a round (5000)")
    parser.add_argument(
        "--file-system", choices=("none", "ext4", "xfs"), default="none", help="of disks that lose power (none)"
    )
    parser.add_argument(
        "--network",
        choices=("proxies", "namespaces"),
        default="proxies",
        help="between the members; namespaces: of their own, with TLS (proxies)",
    )
    parser.add_argument(
        "--amqp", action="store_true", help="through brokers on the members, with clients of any of them"
    )
    parser.add_argument("--package", type=Path, default=ROOT, help="import path of the members' logstore")
    parser.add_argument("--dir", type=Path, metavar="DIR", help="an absent directory, which is kept")
    chosen = parser.parse_args(argv)
    for name in ("rounds", "confirmed", "seconds", "confirms"):
        if (value := getattr(chosen, name)) is not None and value < 1:
            parser.error(f"--{name} is above 0")
    if not 3 <= chosen.members <= 5:
        parser.error("--members is 3 to 5")
    if chosen.amqp and chosen.network == "namespaces":
        parser.error("--amqp needs --network proxies: its clients are not in the members' namespaces")
    if chosen.dir is not None and chosen.dir.exists():
        parser.error(f"{chosen.dir} is there already")
    if chosen.seed is None:
        chosen.seed = random.SystemRandom().randrange(1 << 32)
    return chosen


def place_of(chosen: Path | None) -> Path:
    """A directory in memory if there is room: the kernel keeps the data of a killed process."""
    if chosen is not None:
        chosen.mkdir(parents=True)
        return chosen.absolute()
    quick = QUICK.is_dir() and shutil.disk_usage(QUICK).free >= QUICK_BYTES
    return Path(tempfile.mkdtemp(prefix="logstore-chaos-", dir=QUICK if quick else None))


def file_system_of(chosen: str) -> str:
    """The chosen one; none, loudly, where its disks cannot be had."""
    if chosen == "none":
        return ""
    missing = missing_for(chosen)
    if missing:
        print(f"SKIPPED LOUDLY: no real disks here, without {', '.join(missing)}: the power was NOT cut", flush=True)
    return "" if missing else chosen


def has_namespaces(chosen: str) -> bool:
    """Whether each member gets a network namespace; not, loudly, where there can be none."""
    lacking = missing_for_namespaces() if chosen == "namespaces" else ""
    if lacking:
        print(f"SKIPPED LOUDLY: no network namespaces here, without {lacking}: proxies cut instead", flush=True)
    return chosen == "namespaces" and not lacking


def goes_on(chosen: argparse.Namespace, chaos: Chaos, started: float) -> bool:
    """Whether there is another round."""
    if chosen.seconds is not None:
        return time.monotonic() - started < chosen.seconds
    if chosen.confirmed is not None:
        return chaos.judge.counts["confirmed"] < int(chosen.confirmed)
    return chaos.counts["rounds"] < int(chosen.rounds)


def main(argv: list[str] | None = None) -> int:
    chosen = arguments(argv)
    print(f"seed {chosen.seed}", flush=True)
    place = place_of(chosen.dir)
    file_system = file_system_of(chosen.file_system)
    cluster = Cluster(
        place,
        chosen.members,
        chosen.seed,
        chosen.package.absolute(),
        file_system=file_system,
        namespaces=has_namespaces(chosen.network),
        amqp=chosen.amqp,
    )
    chaos = Chaos(cluster, chosen.seed, chosen.confirms)
    problems = chaos.problems
    started = time.monotonic()
    try:
        chaos.form()
        while goes_on(chosen, chaos, started) and not chaos.judge.violations:
            chaos.round()
        if not chaos.judge.violations:
            chaos.finish()
    except (Failure, Gone, Refused) as failure:
        problems.append(f"{type(failure).__name__}: {failure}")
    finally:
        chaos.cluster.end()
        problems += chaos.judge.findings
        chaos.cluster.end_disks(keep=bool(problems))
    shown = chaos.counts | {name: chaos.judge.counts[name] for name in ("confirmed", "left", *chaos.judge.rules)}
    if cluster.disks is not None:
        shown["unflushed writes"] = cluster.disks.unflushed
    print("chaos: " + ", ".join(f"{name}: {count}" for name, count in shown.items()))
    if chosen.json:
        found = {name.replace(" ", "_").replace("-", "_"): count for name, count in shown.items()}
        print(json.dumps({"tool": "chaos", **found, "violations": len(problems)}), flush=True)
    for problem in problems:
        print(f"VIOLATION: {problem}", file=sys.stderr)
    if problems:
        print(f"the copies and the journals are kept in {place}", file=sys.stderr)
    elif chosen.dir is None:
        shutil.rmtree(place, ignore_errors=True)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
