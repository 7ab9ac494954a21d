"""Reports the lines and branches that the C tests ran, file by file; exit status 1 below a floor.

``make coverage`` builds the core with gcov's counters, runs the tests, and then this program. The failure branches of
``assert`` are left out, because a failed assertion ends the test. Files for tests only (the simulated disk, the test's
codec, the deliberate faults) are counted apart. So is the consensus engine, without libraft; its floor does not
count where libraft is not here. ``build/coverage.txt`` names every line with a branch that was not
taken.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OBJECTS = Path("build/c/coverage/objects")
DETAILS = Path("build/coverage.txt")

ASSERTIONS = r"\s*assert\(.*"
SOURCES = r"csrc/(?!tests/(?!sim/))[a-z0-9_/]+\.[ch]$"
FOR_TESTS = "csrc/tests/"
ENGINE = "csrc/consensus/"


def measure() -> list[dict[str, object]]:
    """gcovr's figures, one dictionary for each file."""
    command = [
        str(Path(sys.executable).parent / "gcovr"),
        *("--root", str(ROOT), "--filter", SOURCES, "--exclude-branches-by-pattern", ASSERTIONS),
        *("--txt-metric", "branch", "--txt", str(DETAILS), "--json-summary", "-", str(OBJECTS)),
    ]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if found.returncode != 0:
        raise SystemExit(f"gcovr failed:\n{found.stdout}{found.stderr}")
    files: list[dict[str, object]] = json.loads(found.stdout)["files"]
    return files


def row(name: str, files: list[dict[str, object]]) -> tuple[str, float]:
    """One line of the table, and the percentage of branches taken."""

    def total(what: str) -> int:
        return sum(int(str(file[what])) for file in files)

    def percent(part: str, whole: str) -> float:
        return 100 * total(part) / total(whole) if total(whole) else 100.0

    lines, branches = percent("line_covered", "line_total"), percent("branch_covered", "branch_total")
    text = (
        f"{name:<32}{total('line_covered'):>6} of{total('line_total'):>6}{lines:>7.1f} %"
        f"{total('branch_covered'):>8} of{total('branch_total'):>6}{branches:>7.1f} %"
    )
    return text, branches


def main() -> int:
    """Print the table and judge the core's branches."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--floor", type=float, default=0.0, help="percent of the core's branches that must be taken")
    parser.add_argument("--engine-floor", type=float, default=0.0, help="the same of the consensus engine's")
    options = parser.parse_args()
    files = measure()
    tests = [file for file in files if str(file["filename"]).startswith(FOR_TESTS)]
    engine = [file for file in files if str(file["filename"]).startswith(ENGINE)]
    core = [file for file in files if file not in tests and file not in engine]
    groups = (
        ("the core", core, options.floor),
        ("the consensus engine", engine, options.engine_floor),
        ("for tests only", tests, 0.0),
    )
    print(f"{'':<32}{'lines taken':^24}{'branches taken':^26}")
    for title, group, _ in groups:
        for file in group:
            print(row(str(file["filename"]), [file])[0])
        print(row(title.upper(), group)[0])
    print(f"Branches of assert() are left out. {DETAILS} names the lines whose branches were not all taken.")
    below = False
    for title, group, floor in groups[:2]:
        taken = row("", group)[1]
        print(f"coverage: {taken:.2f} % of the branches of {title}, at least {floor:g} % wanted")
        below = below or taken < floor
    return below


if __name__ == "__main__":
    sys.exit(main())
