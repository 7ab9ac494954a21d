"""Moves messages between queues while the process is killed with SIGKILL, and accounts for every message byte by byte.

A parent keeps a journal of what every queue must hold, and sends commands to a worker process with a real store:
publish, move and consume, in local and distributed transactions of 1 to 20 messages, several of them open at once. At a
random moment, also during an open, the worker is killed with SIGKILL. The next worker opens the store and reports its
contents. Messages, bytes, order, locks and transactions in doubt must be those of the journal. Only the command in
flight at the kill may have happened or not. Prepared transactions are resolved at random after the restart, or later.

    python tools/soak.py --seconds 60            # in a temporary directory
    python tools/soak.py --dir DIR --rounds 20   # continues from the journal in DIR, and keeps both
    python tools/soak.py --seconds 1800 --life 300 --everything

With ``--everything`` the worker has two write buffers, a thread that keeps them full, a ``prepared_timeout`` that ends
transactions, and a signal handler that calls the library again or raises at random moments; at the same time
``verify``,
``tail --json``, ``export`` and ``backup`` run on the store. With ``--life`` of some minutes the resident memory and the
descriptors of the longest-lived worker are checked, too: neither may grow.

Exit status: 0 everything is accounted for, 1 a violation (printed with its place), 2 wrong arguments.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(Path(__file__).resolve().parent)]

from soak_beside import Beside  # noqa: E402 - found by the line above, from any directory
from soak_journal import Journal, Violation  # noqa: E402
from soak_worker import CutShort, Died, Refused, Worker  # noqa: E402

QUEUES_MAX = 15
OPEN_MAX = 4  # transactions at once
MESSAGES_MAX = 20  # in one transaction
SIZE_MAX = 1_000_000
LIVE_MAX = 150  # messages; above it, more are consumed than published
LIVE_BYTES_MAX = 6_000_000
TIMEOUTS_S = (0.05, 0.5, 5.0)  # of prepared transactions, one chosen for each worker
STOCK_COMMANDS = 400  # between two complete checks by one worker
GROWTH_BYTES_MAX = 64 << 20  # growth of a worker's resident memory, from its first third to its last
GROWTH_DESCRIPTORS_MAX = 4  # without those of segments, which depend on the log's size
COUNTS = (
    "rounds",
    "kills",  # of a working worker
    "kills_opening",  # of a worker that had not opened the store yet
    "unknown",  # kills that left two possible outcomes
    "commands",
    "interrupted",  # commands interrupted by an exception from a signal handler
    "transactions",
    "prepared",
    "messages_checked",
    "bytes_checked",
)


class Soak:
    """Rounds of work and kill on one store; the journal is stored next to it after each round."""

    def __init__(self, directory: Path, seed: int, *, everything: bool = False) -> None:
        self.directory = directory
        self.everything = everything
        self.chance = random.Random(seed)
        self.journal = Journal.load(directory / "journal.json", store=directory / "store")
        if not self.journal.queues:
            for number in range(self.chance.randrange(2, QUEUES_MAX + 1)):
                self.journal.queues[f"q{number}"] = []
        self.counts = dict.fromkeys(COUNTS, 0)
        self.worker: Worker | None = None
        self.beside: Beside | None = None
        self.samples: list[tuple[int, int]] = []  # resident bytes and descriptors of this worker
        self.longest: list[tuple[int, int]] = []

    def round(self, seconds: float) -> None:
        """Opens the store, accounts for its contents, works, and kills the worker after about ``seconds``.

        Raises ``Violation``.
        """
        self.start()
        assert self.worker is not None
        opened = False
        try:
            if self.chance.random() < 0.25:  # while opening, before its first answer
                self.worker.kill_after(self.chance.random() * 0.05)
            self.take_stock()
            opened = True
            self.worker.kill_after(self.chance.random() * seconds)
            if self.everything and self.beside is None:
                self.beside = Beside(self.directory)
            while True:
                self.step()
                if self.counts["commands"] % STOCK_COMMANDS == 0:
                    self.take_stock()
                if self.beside is not None and self.beside.problem is not None:
                    raise Violation(f"beside {self.directory / 'store'}: {self.beside.problem}")
        except Died:
            self.counts["kills" if opened else "kills_opening"] += 1
        except Refused as refused:
            raise Violation(f"in {self.directory / 'store'}: {refused}") from refused
        finally:
            self.worker.kill()
            self.worker = None
            self.counts["rounds"] += 1
            self.counts["unknown"] += self.journal.worker_died()
            self.journal.save()
            self.longest = max(self.longest, self.samples, key=len)

    def start(self) -> None:
        """A worker that has not yet opened the store."""
        self.samples = []
        timeout_s = self.chance.choice(TIMEOUTS_S) if self.everything else None
        self.journal.timeouts_s += [] if timeout_s is None else [timeout_s]
        self.worker = Worker(
            self.directory / "store",
            sorted(self.journal.queues),
            {
                "disturbed": self.chance.randrange(1, 1 << 32) if self.everything else 0,
                "prepared_timeout": timeout_s,
            },
        )

    def finish(self) -> None:
        """Opens again, accounts, resolves transactions in doubt, accounts again, and closes in order."""
        self.start()
        assert self.worker is not None
        try:
            self.take_stock()
            while prepared := self.journal.prepared():
                self.do("outcome", prepared[0], how=self.chance.choice(["commit", "rollback"]))
            self.take_stock()
            self.worker.close()
        except (Died, Refused) as problem:
            raise Violation(f"in {self.directory / 'store'}: {problem}") from problem
        finally:
            self.worker.kill()
            self.worker = None
            self.journal.worker_died()
            self.journal.save()

    def take_stock(self) -> None:
        assert self.worker is not None
        found = self.worker.ask({"do": "stock"})
        messages, size = self.journal.check(found)
        self.counts["messages_checked"] += messages
        self.counts["bytes_checked"] += size
        self.samples.append((found["resident_bytes"], found["descriptors"]))

    def growth(self) -> dict[str, list[int]]:
        """Medians in the first and in the last third of the longest-lived worker."""
        third = max(1, len(self.longest) // 3)
        parts = [self.longest[:third], self.longest[-third:]] if self.longest else []
        return {
            name: [int(statistics.median(sample[column] for sample in part)) for part in parts]
            for column, name in enumerate(("resident_bytes", "descriptors"))
        }

    def check_growth(self) -> None:
        """Raises ``Violation`` if the longest-lived worker ended with much more than it began with."""
        limits = {"resident_bytes": GROWTH_BYTES_MAX, "descriptors": GROWTH_DESCRIPTORS_MAX}
        for name, medians in self.growth().items():
            if medians and medians[-1] - medians[0] > limits[name]:
                raise Violation(
                    f"the longest-lived worker went from {medians[0]} to {medians[-1]} {name.replace('_', ' ')}"
                )

    # ---- commands ----

    def do(self, kind: str, name: str, **details: Any) -> None:
        """One command: in flight until it is answered, then done."""
        assert self.worker is not None
        command = {"do": kind, "tx": name, "at_s": time.time(), **details}
        self.journal.begin_command(command)
        self.counts["commands"] += 1
        try:
            answer = self.worker.ask(command)
        except CutShort as cut:
            self.journal.interrupted(cut.state)
            self.counts["interrupted"] += 1
            self.take_stock()
            return
        self.journal.answered(command, answer)

    def step(self) -> None:
        chance, journal = self.chance, self.journal
        active, prepared = journal.active(), journal.prepared()
        kind = chance.random()
        if kind < 0.2 and len(active) + len(prepared) < OPEN_MAX:
            self.begin()
        elif kind < 0.65 and active:
            self.work(chance.choice(active))
        elif kind < 0.75:
            self.work("")  # outside any transaction
        elif kind < 0.95 and active:
            self.settle(chance.choice(active))
        elif prepared:
            self.do("outcome", chance.choice(prepared), how=chance.choice(["commit", "rollback"]))

    def begin(self) -> None:
        name = f"t{self.journal.next_number()}"
        self.journal.limits[name] = self.chance.randrange(1, MESSAGES_MAX + 1)
        self.do("begin", name, distributed=self.chance.random() < 0.5)
        self.counts["transactions"] += 1

    def work(self, name: str) -> None:
        journal, chance = self.journal, self.chance
        if name and journal.size_of(name) >= journal.limits.get(name, 0):
            self.settle(name)
            return
        queues = sorted(journal.queues)
        full = journal.live() > LIVE_MAX or journal.live_bytes() > LIVE_BYTES_MAX
        kind = chance.choices(["publish", "move", "consume"], [1, 4, 4] if full else [5, 4, 2])[0]
        if kind == "publish":
            size = min(SIZE_MAX, int(10 ** chance.uniform(1, 6)))
            token = f"m{journal.next_number()}"
            self.do("publish", name, token=token, size=size, queue=chance.choice(queues))
            return
        free = [(queue, token) for queue in queues for token in journal.free(queue)]
        if free:
            # Mostly the oldest of a few, so that the base can advance.
            picked = sorted(chance.sample(free, min(6, len(free))), key=lambda one: int(one[1][1:]))
            queue, token = picked[0] if kind == "consume" else chance.choice(picked)
            target = {"target": chance.choice(queues)} if kind == "move" else {}
            self.do(kind, name, token=token, queue=queue, **target)

    def settle(self, name: str) -> None:
        """Rarely rolled back; a distributed one is prepared or ends in one phase."""
        chance = self.chance
        if chance.random() < 0.15:
            self.do("outcome", name, how="rollback")
            return
        if self.journal.is_distributed(name):
            if chance.random() < 0.7:
                self.do("prepare", name)
                self.counts["prepared"] += 1
                if chance.random() < 0.4:
                    return  # stays in doubt for a while
            else:
                self.do("end", name)
        if name in self.journal.state.txs:  # otherwise its preparation was interrupted, and it was rolled back
            self.do("outcome", name, how="commit")


def arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, metavar="N", help="kills; without --seconds 20")
    parser.add_argument("--seconds", type=float, metavar="S", help="begin no round after this many seconds")
    parser.add_argument("--seed", type=int, help="seed of the choices; the moments of the kills depend on the machine")
    parser.add_argument(
        "--dir", type=Path, metavar="DIR", help="directory that keeps store and journal, to continue later"
    )
    parser.add_argument("--life", type=float, default=1.5, metavar="S", help="longest run of a worker in seconds (1.5)")
    parser.add_argument(
        "--everything", action="store_true", help="add timeouts, signals, and commands beside the worker"
    )
    parser.add_argument("--json", action="store_true", help="the result as one JSON object")
    chosen = parser.parse_args(argv)
    if (chosen.rounds is not None and chosen.rounds < 1) or (chosen.seconds is not None and chosen.seconds <= 0):
        parser.error("--rounds and --seconds are above 0")
    if chosen.life <= 0:
        parser.error("--life is above 0")
    if chosen.rounds is None and chosen.seconds is None:
        chosen.rounds = 20
    if chosen.seed is None:
        chosen.seed = random.SystemRandom().randrange(1 << 32)
    return chosen


def run(soak: Soak, rounds: int | None, seconds: float | None, life: float) -> None:
    until = None if seconds is None else time.monotonic() + seconds
    try:
        while (rounds is None or soak.counts["rounds"] < rounds) and (until is None or time.monotonic() < until):
            soak.round(life)
    finally:
        if soak.beside is not None:
            soak.beside.stop()
    soak.finish()


def main(argv: list[str] | None = None) -> int:
    chosen = arguments(argv)
    told = sys.stderr if chosen.json else sys.stdout
    print(f"seed {chosen.seed}", file=told, flush=True)
    kept = chosen.dir is not None
    directory = chosen.dir if kept else Path(tempfile.mkdtemp(prefix="logstore-soak-"))
    result: dict[str, Any] = {"seed": chosen.seed, "dir": str(directory), "violation": None}
    started = time.monotonic()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        soak = Soak(directory, chosen.seed, everything=chosen.everything)
        result |= soak.counts
        run(soak, chosen.rounds, chosen.seconds, chosen.life)
        soak.check_growth()
    except Violation as violation:
        result["violation"] = str(violation)
        kept = True
    except OSError as problem:
        print(f"soak: {directory} cannot be used: {problem}; choose another --dir", file=sys.stderr)
        return 2
    finally:
        if not kept:
            shutil.rmtree(directory, ignore_errors=True)
    result |= soak.counts | soak.growth() | {"elapsed_s": round(time.monotonic() - started, 1)}
    if soak.beside is not None:
        result["beside"] = soak.beside.runs
    if chosen.json:
        print(json.dumps(result))
    else:
        shown = (*soak.counts, "resident_bytes", "descriptors", "beside", "elapsed_s")
        print(", ".join(f"{name.replace('_', ' ')} {result[name]}" for name in result if name in shown))
    if result["violation"] is not None:
        print(f"VIOLATION: {result['violation']}\nThe store and the journal are kept in {directory}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
