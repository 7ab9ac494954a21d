"""Transfers between queues under SIGKILL, with every message accounted for byte by byte.

A parent keeps a journal of what every queue must hold and tells a worker process, command by command, what to do with
a real store: publish, move and consume, in local and distributed transactions of 1 to 20 messages, several of them
open at once. At a random moment the worker is killed with SIGKILL, in the middle of whatever it does, an open
included. The next worker opens the store and tells what it finds. All of it must be what the journal says: messages,
bytes, order, locks and names in doubt. Only the command that was on its way when the kill came may have happened or
not. Prepared transactions are resolved at random after the restart, or later.

    python tools/soak.py --seconds 60            # a directory of its own, removed at the end
    python tools/soak.py --dir DIR --rounds 20   # goes on from the journal in DIR, and keeps both

Exit status: 0 all accounted for, 1 a violation (what and where is told), 2 wrong arguments.
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
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(Path(__file__).resolve().parent)]

from soak_journal import Journal, Violation  # noqa: E402 - found by the line above, from any directory
from soak_worker import Died, Refused, Worker  # noqa: E402

QUEUES_MAX = 15
OPEN_MAX = 4  # transactions at once
MESSAGES_MAX = 20  # in one transaction
SIZE_MAX = 1_000_000
LIVE_MAX = 150  # messages; beyond, more is consumed than published
LIVE_BYTES_MAX = 6_000_000
COUNTS = (
    "rounds",
    "kills",  # of a worker at work
    "kills_opening",  # of one that had not yet opened the store
    "unknown",  # kills that left two possible outcomes
    "commands",
    "transactions",
    "prepared",
    "messages_checked",
    "bytes_checked",
)


class Soak:
    """Rounds of work and death on one store; the journal lies beside it and is kept up to date between rounds."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.directory = directory
        self.chance = random.Random(seed)
        self.journal = Journal.load(directory / "journal.json", store=directory / "store")
        if not self.journal.queues:
            for number in range(self.chance.randrange(2, QUEUES_MAX + 1)):
                self.journal.queues[f"q{number}"] = []
        self.counts = dict.fromkeys(COUNTS, 0)
        self.worker: Worker | None = None

    def round(self, seconds: float) -> None:
        """Opens the store, accounts for all of it, works, and kills the worker after about so many seconds.

        Raises ``Violation``.
        """
        self.worker = Worker(self.directory / "store", sorted(self.journal.queues))
        opened = False
        try:
            if self.chance.random() < 0.25:  # in the midst of opening, before anything is said
                self.worker.kill_after(self.chance.random() * 0.05)
            self.take_stock()
            opened = True
            self.worker.kill_after(self.chance.random() * seconds)
            while True:
                self.step()
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

    def finish(self) -> None:
        """Opens once more, accounts, resolves what is in doubt, accounts again, and closes in an orderly way."""
        self.worker = Worker(self.directory / "store", sorted(self.journal.queues))
        try:
            self.take_stock()
            for name in self.journal.prepared():
                self.do("outcome", name, how=self.chance.choice(["commit", "rollback"]))
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

    # ---- what is done ----

    def do(self, kind: str, name: str, **details: Any) -> None:
        """One command: in flight until it is answered, then done."""
        assert self.worker is not None
        command = {"do": kind, "tx": name, **details}
        self.journal.begin_command(command)
        self.worker.ask(command)
        self.journal.answered(command)
        self.counts["commands"] += 1

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
            # Mostly the oldest of a few, so that the log can move on behind them.
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
        self.do("outcome", name, how="commit")


def arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, metavar="N", help="kills; without --seconds 20")
    parser.add_argument("--seconds", type=float, metavar="S", help="begin no round after so long")
    parser.add_argument("--seed", type=int, help="of the choices; the moments of the kills are the machine's")
    parser.add_argument("--dir", type=Path, metavar="DIR", help="where store and journal are kept, to go on with later")
    parser.add_argument("--json", action="store_true", help="the result as one JSON object")
    chosen = parser.parse_args(argv)
    if (chosen.rounds is not None and chosen.rounds < 1) or (chosen.seconds is not None and chosen.seconds <= 0):
        parser.error("--rounds and --seconds are above 0")
    if chosen.rounds is None and chosen.seconds is None:
        chosen.rounds = 20
    if chosen.seed is None:
        chosen.seed = random.SystemRandom().randrange(1 << 32)
    return chosen


def run(soak: Soak, rounds: int | None, seconds: float | None) -> None:
    until = None if seconds is None else time.monotonic() + seconds
    while (rounds is None or soak.counts["rounds"] < rounds) and (until is None or time.monotonic() < until):
        soak.round(1.5)
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
        soak = Soak(directory, chosen.seed)
        result |= soak.counts
        run(soak, chosen.rounds, chosen.seconds)
    except Violation as violation:
        result["violation"] = str(violation)
        kept = True
    except OSError as problem:
        print(f"soak: {directory} cannot be used: {problem}; choose another --dir", file=sys.stderr)
        return 2
    finally:
        if not kept:
            shutil.rmtree(directory, ignore_errors=True)
    result |= soak.counts | {"elapsed_s": round(time.monotonic() - started, 1)}
    if chosen.json:
        print(json.dumps(result))
    else:
        print(", ".join(f"{name.replace('_', ' ')} {result[name]}" for name in [*soak.counts, "elapsed_s"]))
    if result["violation"] is not None:
        print(f"VIOLATION: {result['violation']}\nThe store and the journal are kept in {directory}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
