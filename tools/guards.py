#!/usr/bin/env python3
"""Tells which guards of the consensus engine the simulator finds missing, and which directed test does.

    tools/guards.py [--seeds N] [--scenario NAME] [--only NAME,...] [--build-only]

A guard is named by the fault that removes it, ENGINE_* in tools/mutants.toml. For each one the simulator runs the seeds
without it; a seed that ends with a violation or an assertion has found it. Then the unit tests of its killer run
without it. The output is a table in Markdown; the exit status is 0 only if a directed test finds each guard.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tools.mutant_table import mutants
from tools.mutants import BUILT, DIED, KILLERS, ROOT, build, run

TESTS = ("test_engine_guards", "test_engine_group", "test_engine_frames", "test_engine_threads")
LIMIT_S = 600.0

_RULE = re.compile(
    r"^seed \d+(?: at [\d.]+ s)?: (?:the process ended with .*(an assertion)|([A-Z][A-Z0-9 ]*):|(.{0,40}))",
    re.MULTILINE,
)


def simulated(name: str, seeds: int, scenario: str) -> str:
    """How many seeds find the missing guard, and the rules that they break."""
    more = ["--scenario", scenario] if scenario else []
    command = [str(BUILT / "consensus"), "--json", "--seeds", "0", str(seeds), "--without", name, *more]
    try:
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return "does not end"
    if ended.returncode == 2:
        raise SystemExit(f"guards: {ended.stderr.strip()}")
    last = json.loads(ended.stdout.splitlines()[-1])
    rules = Counter(next(part for part in found if part).strip() for found in _RULE.findall(ended.stdout))
    found = last["violations"] + last["assertions"]
    return f"{found}" if not found else f"{found}: {', '.join(rule for rule, _ in rules.most_common(2))}"


def described(program: str, checks: tuple[str, ...]) -> str:
    """The tests that failed; the program, if a shared check failed or it ended in an assertion."""
    source = (ROOT / f"csrc/tests/unit/{program}.c").read_text(encoding="utf-8")
    its = re.findall(r"^        (\w+),$", source, re.MULTILINE)
    named = [f"`{check}`" for check in checks if check in its]
    other = f"an assertion in {program}" if DIED in checks else f"{program}, in {checks[0]}" if checks else "none"
    return ", ".join(named[:2]) or other


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=300, help="seeds for each guard")
    parser.add_argument("--scenario", default="", help="of the simulator")
    parser.add_argument("--only", default="", help="names, with commas")
    parser.add_argument("--build-only", action="store_true", help="build the programs, and run nothing")
    asked = parser.parse_args()
    build("consensus", "consensus_real", *TESTS)
    if asked.build_only:
        return 0
    killers = json.loads(KILLERS.read_text(encoding="utf-8"))
    unfound = 0
    print(f"| without | seeds of {asked.seeds} | directed test |\n| --- | --- | --- |")
    for name in [mutant.name for mutant in mutants() if mutant.name.startswith("ENGINE_") and not mutant.equivalent]:
        if asked.only and name not in asked.only.split(","):
            continue
        checks = run(killers[name], name, LIMIT_S).checks
        unfound += not checks
        directed = described(killers[name][0], checks)
        print(f"| `{name}` | {simulated(name, asked.seeds, asked.scenario)} | {directed} |", flush=True)
    return 1 if unfound else 0


if __name__ == "__main__":
    sys.exit(main())
