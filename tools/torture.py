"""Runs every proof and test that nothing is lost, for a chosen time, and prints a one-line summary.

    python tools/torture.py --fast          for every commit: fixed amounts, with minima that must be reached
    python tools/torture.py --seconds 600   all stages for that long

`make proof` and `make torture BUDGET_S=600` build the programs and run this. Each stage is a program (docs/testing.md
describes them) whose last line is a JSON object; its output goes to build/proof/STAGE.log. The last line is the
summary. Exit status: 0 if nothing was violated, no mutant survived and the minima were reached; else 1, or 2 for
misuse.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tools.thirds import THIRDS, span, third_of_this_commit

ROOT = Path(__file__).resolve().parent.parent
LOGS = ROOT / "build" / "proof"
PROGRAMS = ROOT / "build" / "c"
PYTHON = sys.executable
PYTEST = (PYTHON, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "2", "--dist", "worksteal")

#: With fewer than these the fast tier proves less than it promises.
STATES_MIN, FLIPS_MIN, FUZZ_SECONDS = 500_000, 65_536, 60
#: About as many workloads have STATES_MIN different crash states; each third of them has every kind of workload.
WORKLOADS = 162
#: Runs of the explorer of copies in the fast tier, and what they must reach of each kind.
REPLICA_RUNS, REPLICA_MIN, REPLICA_STATES_MIN = 290, 1000, 500_000
#: Seeds of the simulator of consensus in the fast tier, and what they must reach of each kind.
SEEDS, SEEDS_MIN = 200, {"member_crashes": 4000, "elections": 1000, "cuts": 100, "updates": 1000}
#: The same of the simulator over the real log.
REAL_SEEDS = 300
REAL_MIN = {"member_crashes": 8000, "elections": 2500, "cuts": 400, "updates": 1000, "tables": 5000}
#: Schedules of threads for each second of the budget: about a sixtieth of it.
SCHEDULES_A_SECOND = 8
#: More seeds than any budget has time for.
ALL_SEEDS = 1_000_000_000
#: Fuzz targets with half the time: one is very fast, the other has short inputs.
HALVED = ("--halve", "record", "--halve", "checkpoint")

#: Tests with real disks and real processes that run for a given time.
LONG_TESTS = (
    "tests/faults/test_real_disks.py",
    "tests/faults/test_processes.py",
    "tests/broker/test_broker_storms.py",
    "tests/broker/test_broker_storms_calls.py",
    "tests/cluster/test_celery_on_members.py",
    "tests/tools/test_soak.py",
)

#: The Python tests take every case only here; below this budget they would leave the others nothing.
SLOW_TESTS_MIN_S = 1800

ANALYSIS = "analysis"  # has no JSON object


@dataclass(frozen=True)
class Job:
    """A program to run, and additional environment variables."""

    name: str
    command: Sequence[str]
    environment: dict[str, str] = field(default_factory=dict)


@dataclass
class Outcome:
    """How a job ended, and its last line."""

    name: str
    status: int
    seconds: float
    said: dict[str, object]

    def count(self, name: str) -> int:
        value = self.said.get(name, 0)
        return value if isinstance(value, int) else 0


def last_object(log: Path) -> dict[str, object]:
    """The JSON object in the last line that has one; empty if there is none."""
    for line in reversed(log.read_text(errors="replace").splitlines()):
        if line.startswith("{"):
            try:
                said = json.loads(line)
            except ValueError:
                return {}
            return said if isinstance(said, dict) else {}
    return {}


def run_together(jobs: Sequence[Job]) -> list[Outcome]:
    """Runs jobs in parallel, prints how each ended, and the output of those that failed."""
    started, running = time.monotonic(), []
    for job in jobs:
        with (LOGS / f"{job.name}.log").open("wb") as log:
            running.append(
                subprocess.Popen(
                    job.command,
                    cwd=ROOT,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=os.environ | job.environment,
                )
            )
    ended = []
    for job, process in zip(jobs, running, strict=True):
        status = process.wait()
        log_path = LOGS / f"{job.name}.log"
        outcome = Outcome(job.name, status, time.monotonic() - started, last_object(log_path))
        ended.append(outcome)
        figures = ", ".join(f"{k} {v}" for k, v in outcome.said.items() if isinstance(v, int) and k != "seed")
        print(f"{job.name}: {'passed' if status == 0 else 'FAILED'} in {outcome.seconds:.0f} s; {figures}", flush=True)
        if status != 0:
            print("\n".join(log_path.read_text(errors="replace").splitlines()[-60:]), flush=True)
    return ended


def proof(name: str, *arguments: object, build: str = "proof") -> list[str]:
    return [str(PROGRAMS / build / name), *map(str, arguments)]


def tool(name: str, *arguments: object) -> list[str]:
    return [PYTHON, str(ROOT / "tools" / name), *map(str, arguments)]


def simulated(seeds: tuple[int, int], real_seeds: tuple[int, int], *limits: object) -> list[list[Job]]:
    """The simulator of consensus over a model, and over the real log, for so many seeds from one on; a SKIPPED line
    without libraft.
    """
    if not (PROGRAMS / "proof" / "consensus").exists():
        print("SKIPPED: consensus is not simulated, there is no libraft", file=sys.stderr, flush=True)
        return []
    return [
        [Job("simulate", proof("consensus", "--json", "--seeds", *seeds, *limits))],
        [Job("simulate-real", proof("consensus_real", "--json", "--seeds", *real_seeds, *limits))],
    ]


def members_under_faults(seconds: int) -> list[list[Job]]:
    """Members as processes: on disks that lose power, in namespaces, and with brokers; SKIPPED without libraft."""
    if not (PROGRAMS / "proof" / "consensus").exists():
        print("SKIPPED: no members run under faults, there is no libraft", file=sys.stderr, flush=True)
        return []
    run = ("--json", "--seconds", seconds)
    return [
        [Job("chaos", tool("chaos.py", *run, "--file-system", "ext4"))],
        [Job("chaos-namespaces", tool("chaos.py", *run, "--network", "namespaces"))],
        [Job("chaos-amqp", tool("chaos.py", *run, "--amqp"))],
    ]


# With two buffers threads often wait for one within an operation, while other threads run.
CROWDED = ("--buffers", "2", "--segment-size", str(512 << 10))


def under_thread_sanitizer(seconds: int) -> list[Job]:
    """The concurrent history under the thread sanitizer; a SKIPPED line if the compiler has none."""
    program = PROGRAMS / "tsan" / "history"
    if not program.exists():
        print("SKIPPED: there is no history built with the thread sanitizer", file=sys.stderr, flush=True)
        return []
    wrap = ["setarch", "-R"] if shutil.which("setarch") else []
    return [Job("history-tsan", [*wrap, str(program), "--seconds", str(seconds), *CROWDED])]


def python_memory(seconds: int) -> list[Job]:
    """All Python tests with detection of freed memory, in random order until the time is over."""
    return [
        Job(f"pytest-{net}", tool("memory_tests.py", net, "--all", "--seconds", seconds))
        for net in ("asan", "overwritten")
    ]


def sweeps() -> Job:
    """One thread: the stages of the fast tier, which use all cores, run beside it."""
    return Job("sweeps", proof("sweeps", "--tier", "fast"))


def fast_stages(third: int | None) -> list[list[Job]]:
    """With ``third`` only a third of the states, copies, seeds, mutants and fuzzing. The fuzzing, for a fixed time, is
    last, when the sweeps have ended.
    """
    some, fuzz_s = ([], FUZZ_SECONDS) if third is None else (["--third"], FUZZ_SECONDS // THIRDS)
    workload, _ = span(WORKLOADS, third)
    run, runs = span(REPLICA_RUNS, third)
    return [
        [Job("explorer", proof("explorer", "--states", states_of(third), "--seed", workload))],
        [Job("replicas", proof("replicas", "--seed", run, "--runs", runs, "--every", 10, "--deep-of", 16))],
        *simulated(span(SEEDS, third), span(REAL_SEEDS, third)),
        [
            Job("mutants", tool("mutants.py", "--tier", "fast", "--jobs", 2, *some)),
            Job("bytes", proof("bytes", "--tier", "fast")),
        ],
        [Job("fuzz", tool("fuzz.py", "--seconds", fuzz_s, "--jobs", 2, *HALVED))],
    ]


def states_of(third: int | None) -> int:
    return STATES_MIN if third is None else STATES_MIN // THIRDS


def torture_stages(seconds: int) -> list[list[Job]]:
    """All stages but the explorer, which gets the remaining time; five fuzz targets run two at a time."""
    pair = max(4, seconds // 24)
    return [
        [Job("long-tests", [*PYTEST, *LONG_TESTS], {"LOGSTORE_TORTURE_S": str(max(1, seconds // 120))})],
        [Job("mutants", tool("mutants.py", "--tier", "full", "--seconds", max(4, seconds // 24)))],
        [
            Job("sweeps", proof("sweeps", "--tier", "full", "--seconds", pair)),
            Job("bytes", proof("bytes", "--tier", "full", "--seconds", pair)),
        ],
        [
            Job("history", proof("history", "--seconds", max(2, seconds // 60), *CROWDED)),
            *under_thread_sanitizer(max(2, seconds // 60)),
        ],
        [
            Job("history-trail", proof("history", "--seconds", max(2, seconds // 60), *CROWDED, build="trail")),
            Job("explorer-trail", proof("explorer", "--seconds", max(4, seconds // 60), "--jobs", 1, build="trail")),
        ],
        [Job("schedules-tests", proof("test_schedules", 1, 1 + seconds * SCHEDULES_A_SECOND))],
        [Job("replicas", proof("replicas", "--seconds", max(4, seconds // 12)))],
        *simulated((0, ALL_SEEDS), (0, ALL_SEEDS), "--seconds", max(4, seconds // 24)),
        *members_under_faults(max(4, seconds // 24)),
        [Job("fuzz", tool("fuzz.py", "--seconds", max(2, seconds // 10), "--jobs", 2))],
        python_memory(max(2, seconds // 10)),
        every_case(seconds),
        tests_of_members(seconds),
        every_program_under_tsan(seconds),
        deep_analysis(seconds),
    ]


def every_case(seconds: int) -> list[Job]:
    """The Python tests with every case; `make test` and `make check` run a fixed part of some."""
    if seconds < SLOW_TESTS_MIN_S:
        print(
            f"SKIPPED: every case of the Python tests: BUDGET_S is below {SLOW_TESTS_MIN_S}",
            file=sys.stderr,
            flush=True,
        )
        return []
    return [Job("python-tests", [*PYTEST, "--timeout", "3600", "tests"], {"LOGSTORE_TORTURE_S": "1"})]


def tests_of_members(seconds: int) -> list[Job]:
    """The broker's own tests through a relay, and at the members of a trio; `make test` runs a fixed part of them."""
    if seconds < SLOW_TESTS_MIN_S:
        print(
            f"SKIPPED: the broker's tests at members: BUDGET_S is below {SLOW_TESTS_MIN_S}", file=sys.stderr, flush=True
        )
        return []
    command = [*PYTEST, "-m", "not slow", "tests/broker"]
    return [Job(f"{way}-tests", command, {f"LOGSTORE_TEST_{way.upper()}": "1"}) for way in ("relayed", "trio")]


def every_program_under_tsan(seconds: int) -> list[Job]:
    """Also the C tests that start no thread, whose locks TSan watches; `make check` leaves these out."""
    return [] if seconds < SLOW_TESTS_MIN_S else [Job("tsan-tests", ["make", "-s", "sanitize-tsan", "EVERY=1"])]


def deep_analysis(seconds: int) -> list[Job]:
    """clang-tidy as deep as clang's analyzer goes by itself; `make lint` has a smaller bound."""
    return [] if seconds < SLOW_TESTS_MIN_S else [Job(ANALYSIS, ["make", "-s", "tidy", "TIDY=tidy-deep"])]


def explore(seconds: float) -> Job:
    return Job("explorer", proof("explorer", "--seconds", max(4, round(seconds)), "--tier", "full"))


def summary(outcomes: Sequence[Outcome]) -> tuple[str, list[str]]:
    """The last line, and the failures."""
    by_name = {outcome.name: outcome for outcome in outcomes}
    wrong = [f"{outcome.name} failed" for outcome in outcomes if outcome.status != 0]
    silent = [o.name for o in outcomes if not o.said and not o.name.endswith("-tests")]
    wrong += [f"{name} said nothing" for name in silent if name != ANALYSIS]
    explorer, mutants = by_name["explorer"], by_name["mutants"]
    sweeps, flips, fuzz = by_name["sweeps"], by_name["bytes"], by_name["fuzz"]
    counted = ("violations", "crashes", "assertions")
    violations = sum(outcome.count(name) for outcome in outcomes for name in counted)
    line = (
        f"crash states: {explorer.count('crash_states')}, unique: {explorer.count('unique')}, "
        f"violations: {violations}, mutants killed: {mutants.count('killed')} of {mutants.count('of')}, "
        f"sweeps: {sweeps.count('sweeps')}, "
        f"bit flips: {flips.count('undetected')} undetected of {flips.count('flips')}, "
        f"fuzz executions: {fuzz.count('executions')}"
    )
    if violations:
        wrong.append("something was violated")
    if mutants.count("killed") != mutants.count("of"):
        wrong.append("a mutant lives")
    if flips.count("undetected"):
        wrong.append("a flip went undetected")
    return line, wrong


def summary_of_copies(outcomes: Sequence[Outcome]) -> str:
    """The line about copies of a replicated log."""
    copies = next(outcome for outcome in outcomes if outcome.name == "replicas")
    return (
        f"replica states: {copies.count('crash_states')}, unique: {copies.count('unique')}, "
        f"cuts: {copies.count('cuts')}, leads: {copies.count('leads')}, updates: {copies.count('updates')}, "
        f"in headers: {copies.count('in_headers')}, violations: {copies.count('violations')}"
    )


def below_minimum(outcomes: Sequence[Outcome], third: int | None) -> list[str]:
    by_name = {outcome.name: outcome for outcome in outcomes}
    of_copies_and_seeds = [
        ("replicas", "unique", REPLICA_STATES_MIN, "different disks of copies"),
        *(("replicas", what, REPLICA_MIN, f"{what} of copies") for what in ("cuts", "leads", "updates", "in_headers")),
        *(
            (stage, what, least, f"{what.replace('_', ' ')} in {stage}")
            for stage, minima in (("simulate", SEEDS_MIN), ("simulate-real", REAL_MIN))
            for what, least in minima.items()
        ),
    ]
    parts = 1 if third is None else THIRDS + 1  # one third reaches less than another
    minima = [
        ("explorer", "unique", states_of(third), "different crash states"),
        ("bytes", "flips", FLIPS_MIN, "bit flips"),
        *((stage, what, least // parts, words) for stage, what, least, words in of_copies_and_seeds),
    ]
    return [
        f"fewer than {least} {words}"
        for stage, what, least, words in minima
        if stage in by_name and by_name[stage].count(what) < least
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    amount = parser.add_mutually_exclusive_group(required=True)
    amount.add_argument("--fast", action="store_true", help="fixed amounts, with minima")
    amount.add_argument("--seconds", type=int, metavar="S", help="all stages for this many seconds, at least 20")
    parser.add_argument("--part", action="store_true", help="with --fast: a third of all but sweeps and bytes")
    options = parser.parse_args()
    if options.seconds is not None and options.seconds < 20:
        parser.error("--seconds is at least 20")
    LOGS.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    outcomes: list[Outcome] = []
    third = third_of_this_commit() if options.part else None
    with ThreadPoolExecutor(1) as pool:
        beside = [pool.submit(run_together, [sweeps()])] if options.fast else []
        for stage in fast_stages(third) if options.fast else torture_stages(options.seconds):
            outcomes += run_together(stage)
        outcomes += [outcome for each in beside for outcome in each.result()]
    if not options.fast:
        outcomes += run_together([explore(options.seconds - (time.monotonic() - started))])
    line, wrong = summary(outcomes)
    if options.fast:
        wrong += below_minimum(outcomes, third)
    print(f"{time.monotonic() - started:.0f} s" + "".join(f"; {what}" for what in wrong))
    print(line)
    print(summary_of_copies(outcomes), flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
