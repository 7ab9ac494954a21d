#!/usr/bin/env python3
"""Shows that the proof detects faults: every deliberate fault of tools/mutants.toml must make a proof program fail.

    tools/mutants.py [--tier fast|full] [--seconds S] [--only NAME,...] [--jobs N] [--limit S] [--find] [--list]
                     [--build-only]

Each mutant has a killer in tools/mutant_killers.json: a program and the arguments with which it detects the fault
quickly. If a killer no longer detects its mutant, because a workload was changed, all suitable programs are searched
for another one. A killer must pass without the mutant, or it would prove nothing.

fast: every mutant is killed. full: also switches off the check that detected it, then the next one, until the program
passes on the same workload, cut everywhere; this shows which checks detect the fault. If a unit test detected it, the
explorer is run without that test. Equivalent mutants (the table has the proofs) must survive.

--find searches a killer for every mutant (or those of --only) whose killer no longer detects it, and stores it. The
last line is one JSON object; the exit status is 0 only if no mutant survives.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import re
import resource
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tools.mutant_table import Mutant, make_copy, mutants, table
from tools.thirds import THIRDS, third_of_this_commit

ROOT = Path(__file__).resolve().parent.parent
KILLERS = ROOT / "tools/mutant_killers.json"
COPY = ROOT / "build/mutants"
BUILT = COPY / "build/c/mutants"

# In the order of the search; unit tests come last, for faults that neither crashes nor damaged bytes show.
PROOFS = ("explorer", "replicas", "sweeps", "bytes")
TESTS = (
    "test_byte_rules",
    "test_id_rules",
    "test_durability_rules",
    "test_relocate",
    "test_recycle_rules",
    "test_reader",
    "test_holds",
    "test_known_end",
    "test_beside",
    "test_moves",
    "test_between",
    "test_scarcity",
    "test_publish_many",
    "test_room",
    "test_try",
    "test_checkpoint",
    "test_clients",
    "test_checkpoint_rules",
    "test_checkpoint_faults",
    "test_load",
    "test_enqueued",
    "test_wakes",
    "test_ahead",
    "test_acquire",
    "test_table",
    "test_takers",
    "test_times",
    "test_schedules",
    "test_watches",
    "test_notices",
    "test_trail",
    "test_vote",
    "test_host",
    "test_replica",
    "test_replica_mark",
    "test_replica_catalog",
    "test_replica_sweep",
    "test_replica_checkpoint",
    "test_replica_room",
    "test_update",
    "test_fullness",
    "test_full_work",
    "test_counts",
    "test_remembered",
    "test_forged_states",
    "test_stated_logs",
    "test_place_moves",
    "test_engine_guards",
    "test_engine_group",
    "test_engine_frames",
    "test_engine_threads",
    "test_engine_refusals",
)

LIBRAFT = ROOT / "build/libraft"
CONSENSUS = "csrc/consensus/"  # not built without the source of libraft

STARTED = time.monotonic()

COUNTED = ("crash_states", "failures", "cases")  # in a program's last line: the number of cases
DIED = "survives"  # the name of the check that the process does not die or hang

_AGAIN = re.compile(r"again: (?:crash_)?(explorer|replicas|sweeps) (.+)")
_VIOLATED = re.compile(r"^VIOLATED (\w+):", re.MULTILINE)
_FAILED_TEST = re.compile(r"^\S+:\d+: (\w+): ", re.MULTILINE)
_COUNTS = re.compile(r"^(\d+) passed, (\d+) failed$", re.MULTILINE)


@dataclass(frozen=True)
class Outcome:
    """The result of one run of one program."""

    checks: tuple[str, ...]  # violated checks; none: it passed
    looked_at: int
    text: str
    over_time: bool = False


@dataclass
class Verdict:
    """The verdict on a mutant."""

    mutant: Mutant
    killer: list[str] = field(default_factory=list)
    checks: list[str] = field(default_factory=list)  # in the order in which they were switched off
    looked_at: int = 0
    lives_without: bool | None = None  # None: not examined
    note: str = ""


def can_be_built(file: str) -> bool:
    """Whether this machine has what the file is built with."""
    needs_libraft = file.startswith((CONSENSUS, "csrc/tests/unit/test_engine_"))
    return not needs_libraft or (LIBRAFT / "origin").is_file()


def tests() -> list[str]:
    """The unit tests that this machine can build."""
    return [name for name in TESTS if can_be_built(f"csrc/tests/unit/{name}.c")]


def left_out() -> set[str]:
    """The mutants of files that this machine cannot build."""
    changes = [change for change in table()[1] if not can_be_built(change.file)]
    return {name for change in changes for name in re.findall(r"MUTANT\((\w+)\)", change.faulty)}


def build(*programs: str) -> None:
    """Builds these programs, or all that kill, from the copy with the faults."""
    make_copy(COPY, ("Makefile", "csrc"))
    there = [name for name in PROOFS if (ROOT / f"csrc/tests/proof/{name}.c").exists()]
    targets = [f"build/c/mutants/{name}" for name in programs or (*there, *tests())]
    jobs = os.cpu_count() or 1
    command = ["make", "--no-print-directory", f"-j{jobs}", "VARIANT=mutants", f"LIBRAFT={LIBRAFT}", *targets]
    if subprocess.run(command, cwd=COPY, check=False, stdout=sys.stderr).returncode != 0:
        raise SystemExit("mutants: the programs cannot be built")


# ---- one run ---------------------------------------------------------------------------------------------------------


def violated(program: str, status: int, text: str) -> tuple[str, ...]:
    """The names of the violated checks, from a program's exit status and output."""
    if status == 0:
        return ()
    if status < 0:
        return (DIED,)
    if program.startswith("test_"):
        failed = tuple(dict.fromkeys(_FAILED_TEST.findall(text)))
        counted = _COUNTS.search(text)
        return (failed or (program,)) if counted and int(counted[2]) > 0 else (DIED,)
    named = tuple(dict.fromkeys(_VIOLATED.findall(text)))
    return named or (str(last_line(text).get("killed_by") or DIED),)


def last_line(text: str) -> dict[str, object]:
    """The JSON object at the end of a proof program's output; empty if it did not get that far."""
    lines = text.strip().splitlines()
    if not lines or not lines[-1].startswith("{"):
        return {}
    parsed = json.loads(lines[-1])
    return parsed if isinstance(parsed, dict) else {}


def run(killer: list[str], mutant: str, limit: float) -> Outcome:
    """Runs a program as that mutant; an empty name means the correct core."""
    program, *arguments = killer
    environment = {name: value for name, value in os.environ.items() if name != "LOGSTORE_MUTANT"}
    if mutant:
        environment["LOGSTORE_MUTANT"] = mutant
    try:
        done = subprocess.run(
            [str(BUILT / program), *arguments],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            errors="replace",
            timeout=limit,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Outcome((), 0, "", over_time=True)  # slow, not dead: the programs detect hanging themselves
    if done.returncode == 2:
        raise SystemExit(f"mutants: {' '.join(killer)} is misuse: {done.stdout.strip()[-300:]}")
    last = last_line(done.stdout)
    looked_at = next((int(str(last[name])) for name in COUNTED if name in last), 0)
    checks = violated(program, done.returncode, done.stdout)
    return Outcome(checks, looked_at, done.stdout)


# ---- killing one -----------------------------------------------------------------------------------------------------


@functools.cache
def is_sound(killer: tuple[str, ...], limit: float) -> bool:
    """Whether the killer passes without a fault. Many mutants have the same killer, so it runs once for all of them."""
    seen = run(list(killer), "", limit)
    return not seen.checks and not seen.over_time


def search(mutant: Mutant, limit: float) -> list[str] | None:
    """A killer for the mutant among all programs, with the fewest cases."""
    wide = ["--jobs", "1", "--seconds", str(int(limit)), "--first-violation"]
    ways = [["explorer", "--per-family", "1", *wide], ["explorer", *wide]]
    ways += [
        ["replicas", *wide],
        ["sweeps", "--first-violation"],
        ["bytes", "--first-violation"],
        *([name] for name in tests()),
    ]
    for killer in ways:
        seen = run(killer, mutant.name, 4 * limit)
        if seen.checks:
            return narrow(mutant, killer, seen, limit)
    return None


def narrow(mutant: Mutant, killer: list[str], seen: Outcome, limit: float) -> list[str]:
    """The killer reduced to the single cut or failure that detected the fault, or at least to the workload, if that is
    enough.
    """
    again = _AGAIN.search(seen.text)
    if again is None:
        return killer
    words = again[2].split()
    few = killer[1:3] if "--per-family" in killer else []
    for part in (words, words[:2]):
        less = [killer[0], *few, *part, "--first-violation"]
        if run(less, mutant.name, 4 * limit).checks:
            return less
    return killer


def widened(killer: list[str]) -> list[str]:
    """All cuts of the explorer's workload instead of one; the explorer alone instead of a unit test."""
    if killer[0].startswith("test_"):
        return ["explorer", "--per-family", "1", "--jobs", "1", "--seconds", "5", "--first-violation"]
    for one in ("--cut", "--life"):  # a single cut of a workload, or of a run of copies
        if one in killer:
            return [*killer[: killer.index(one)], "--first-violation"]
    return killer


def switch_off(killer: list[str], mutant: Mutant, first: Outcome, limit: float) -> tuple[list[str], bool | None]:
    """The checks that detect it, switched off one by one, and whether it then survives; None: not known in time."""
    known = [] if killer[0].startswith("test_") else list(first.checks)
    seen_by = list(first.checks)
    while True:
        off = ["--without", ",".join(known)] if known else []
        seen = run([*widened(killer), *off], mutant.name, limit)
        fresh = [check for check in seen.checks if check not in known]
        if not fresh:
            return seen_by, None if seen.over_time else True
        known += fresh
        seen_by += fresh


def judge(mutant: Mutant, killers: dict[str, list[str]], asked: argparse.Namespace) -> Verdict:
    """Kills one mutant, if some program can."""
    if mutant.equivalent:
        return judge_equivalent(mutant, asked)
    verdict = Verdict(mutant, list(killers.get(mutant.name, [])))
    known = bool(verdict.killer)
    seen = run(verdict.killer, mutant.name, 4 * asked.limit) if known else None
    if (
        seen is not None and not seen.checks and not verdict.killer[0].startswith("test_")
    ):  # another cut of the workload may detect it
        verdict.killer = widened(verdict.killer)
        seen = run(verdict.killer, mutant.name, 4 * asked.limit)
    if seen is None or not seen.checks:
        verdict.note = "its killer no longer detects it: tools/mutants.py --find" if known else "it has no killer yet"
        verdict.killer = search(mutant, asked.limit) or []
        seen = run(verdict.killer, mutant.name, 4 * asked.limit) if verdict.killer else None
    if seen is None or not seen.checks:
        return verdict
    sound = asked.tier == "fast" and verdict.killer[0] not in (
        "explorer",
        "replicas",
    )  # the proof runs these without a mutant anyway
    if not sound and not is_sound(tuple(verdict.killer), 4 * asked.limit):
        verdict.note = "its killer also fails without it"
        return verdict
    verdict.checks, verdict.looked_at = list(seen.checks), seen.looked_at
    if asked.tier == "full" and not (asked.seconds and time.monotonic() - STARTED > asked.seconds):
        verdict.checks, verdict.lives_without = switch_off(verdict.killer, mutant, seen, 4 * asked.limit)
    return verdict


def judge_equivalent(mutant: Mutant, asked: argparse.Namespace) -> Verdict:
    """An equivalent mutant must survive; a program that kills it refutes its proof."""
    verdict = Verdict(mutant)
    runs = [["explorer", "--per-family", "1", "--jobs", "1", "--seconds", "2", "--first-violation"]]
    if asked.tier == "full":
        runs = [[*runs[0][:-2], "20", "--first-violation"], ["bytes", "--first-violation"]]
        runs += [[name] for name in tests()]
    for killer in runs:
        seen = run(killer, mutant.name, 4 * asked.limit)
        if seen.checks:
            verdict.killer, verdict.checks = killer, list(seen.checks)
            break
    return verdict


# ---- all of them -----------------------------------------------------------------------------------------------------


def describe(verdict: Verdict) -> str:
    """One line of the table."""
    mutant = verdict.mutant
    if mutant.equivalent:
        said = f"NOT EQUIVALENT: {', '.join(verdict.checks)}" if verdict.checks else "equivalent, lives"
        return f"{mutant.name:32} {said}"
    if not verdict.checks:
        return f"{mutant.name:32} LIVES: {mutant.fault} ({mutant.breaks}){'; ' + verdict.note if verdict.note else ''}"
    after = f" after {verdict.looked_at}" if verdict.looked_at else ""
    without = {None: "", True: "; lives without", False: "; DIES WITHOUT THEM TOO"}[verdict.lives_without]
    note = f" ({verdict.note})" if verdict.note else ""
    arguments = " ".join(word for word in verdict.killer if word != "--first-violation")
    return f"{mutant.name:32} {', '.join(verdict.checks)} | {arguments}{after}{without}{note}"


def refreshed(mutant: Mutant, killers: dict[str, list[str]], limit: float) -> list[str] | None:
    """Its killer, if that still detects it; else another one, searched first in the same workload."""
    known = list(killers.get(mutant.name, []))
    for killer in [known, widened(known)] if known else []:
        seen = run(killer, mutant.name, 4 * limit)
        if seen.checks and is_sound(tuple(killer), 4 * limit):
            return killer if killer == known else narrow(mutant, killer, seen, limit)
    return search(mutant, limit)


def find(chosen: list[Mutant], killers: dict[str, list[str]], asked: argparse.Namespace) -> int:
    """Searches killers for mutants whose killer no longer detects them, and stores them."""
    missing = 0
    wanted = [mutant for mutant in chosen if not mutant.equivalent]
    with ThreadPoolExecutor(max_workers=max(1, asked.jobs)) as pool:
        for mutant, found in zip(
            wanted, pool.map(lambda one: refreshed(one, killers, asked.limit), wanted), strict=True
        ):
            if found is not None:
                killers[mutant.name] = found
            missing += found is None
            print(f"{mutant.name:32} {' '.join(found) if found else 'nothing found'}", flush=True)
            ordered = [m.name for m in mutants() if m.name in killers]
            lines = [f"  {json.dumps(name)}: {json.dumps(killers[name])}" for name in ordered]
            KILLERS.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    return 1 if missing else 0


def report(verdicts: list[Verdict]) -> int:
    """The last line, and the exit status."""
    counted = [verdict for verdict in verdicts if not verdict.mutant.equivalent]
    wrong = [verdict for verdict in verdicts if verdict.mutant.equivalent and verdict.checks]
    survivors = [verdict.mutant.name for verdict in counted if not verdict.checks or verdict.lives_without is False]
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    last = {
        "tool": "mutants",
        "killed": len(counted) - len(survivors),
        "of": len(counted),
        "equivalent": [verdict.mutant.name for verdict in verdicts if verdict.mutant.equivalent],
        "not_equivalent": [verdict.mutant.name for verdict in wrong],
        "survivors": survivors,
        "cpu_seconds": round(used.ru_utime + used.ru_stime, 1),
    }
    print(json.dumps(last), flush=True)
    return 1 if survivors or wrong else 0


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--tier", choices=("fast", "full"), default="fast")
    parser.add_argument("--only", default="", help="comma-separated names of mutants")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--third", action="store_true", help="only a third of them, which the commit's hash chooses")
    parser.add_argument("--limit", type=float, default=30, help="seconds to search for a killer with one program")
    parser.add_argument("--seconds", type=float, default=0, help="after this many seconds the full tier only kills")
    parser.add_argument("--find", action="store_true", help="search for killers and store them")
    parser.add_argument("--list", action="store_true", help="list the mutants")
    parser.add_argument("--build-only", action="store_true", help="only build the programs")
    return parser.parse_args()


def main() -> int:
    """Run the command line."""
    asked = arguments()
    only = {name for name in asked.only.split(",") if name}
    everyone = mutants()
    unknown = sorted(only - {mutant.name for mutant in everyone})
    if unknown:
        print(f"mutants: {unknown[0]} is none of tools/mutants.toml", file=sys.stderr)
        return 2
    chosen = [mutant for mutant in everyone if not only or mutant.name in only]
    if absent := {mutant.name for mutant in chosen} & left_out():
        print(f"logstore: SKIPPED: {len(absent)} mutants of the consensus engine, without libraft", file=sys.stderr)
        chosen = [mutant for mutant in chosen if mutant.name not in absent]
    if asked.third:
        chosen = chosen[third_of_this_commit() :: THIRDS]
    if asked.list:
        for mutant in chosen:
            print(f"{mutant.name:32} {'equivalent: ' if mutant.equivalent else ''}{mutant.fault} ({mutant.breaks})")
        return 0
    build()
    if asked.build_only:
        return 0
    killers: dict[str, list[str]] = json.loads(KILLERS.read_text(encoding="utf-8")) if KILLERS.exists() else {}
    if asked.find:
        return find(chosen, killers, asked)
    verdicts = []
    with ThreadPoolExecutor(max_workers=max(1, asked.jobs)) as pool:
        for verdict in pool.map(lambda mutant: judge(mutant, killers, asked), chosen):
            verdicts.append(verdict)
            print(describe(verdict), flush=True)
    return report(verdicts)


if __name__ == "__main__":
    sys.exit(main())
