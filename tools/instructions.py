"""Compares the instruction counts of the core's hot paths with a stored baseline.

Times differ from run to run and from machine to machine; instruction counts of one program do not. The program is
``csrc/tests/guard``, built like the C tests (``VARIANT=plain``) and run under valgrind's callgrind. A path fails if it
costs over 2 % more than in ``tools/instructions.json``. A path that costs less is reported: without a new baseline the
gain could be lost again unnoticed.

Counts depend on the compiler and the C library, so the file has a section for each pair. Calls into the C library are
counted, too, in the variant that every processor of the architecture can run; otherwise the variant would depend on the
machine. ``--write WHY`` replaces the section of this compiler and C library, and stores WHY in it.

    make instructions                          compare
    make instructions-baseline WHY="..."       write

Exit status: 0 no path costs more; 1 some path does; 2 misuse, or the program cannot be built or run; 3 no comparison,
because valgrind or a section for this compiler is missing.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BASELINE = ROOT / "tools" / "instructions.json"
PROGRAM = ROOT / "build" / "c" / "plain" / "instructions"
ALLOWANCE = 0.02
# Disables variants that only some processors have: names of glibc 2.33 and newer; older ones append _Usable to some.
PLAIN_PROCESSOR = "glibc.cpu.hwcaps=" + ",".join(
    f"-{name}"
    for name in (
        *("AVX2", "AVX512F", "AVX512VL", "AVX512BW", "AVX_Fast_Unaligned_Load", "ERMS", "FSRM", "RTM"),
        *("AVX2_Usable", "AVX512F_Usable", "SSE4_2", "SSSE3", "SSE4_1", "Fast_Unaligned_Copy"),
    )
)
MEASURED, OUTSIDE = "measured_", "outside_"


class CannotCompareError(Exception):
    """A tool or a section of the baseline is missing; the text says which one and what to do."""


class CannotRunError(Exception):
    """The program cannot be built, or failed."""


@dataclass(frozen=True)
class Counts:
    """The result of a run: instructions for one operation of each path, compiler and C library."""

    built_with: str
    paths: dict[str, float]


# ---- measuring ----


def build(planted: int = 0) -> Path:
    """Builds the program; with ``planted``, every message added to the table costs that many instructions more."""
    target = PROGRAM.with_name("instructions-planted") if planted > 0 else PROGRAM
    made = ["make", "--no-print-directory", f"-j{os.cpu_count() or 1}", "VARIANT=plain", f"PLANTED={planted}"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    PROGRAM.parent.mkdir(parents=True, exist_ok=True)
    with PROGRAM.with_name("instructions.lock").open(
        "w"
    ) as lock:  # two builds at the same time would disturb each other
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = subprocess.run(
            [*made, str(target.relative_to(ROOT))],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode != 0:
        raise CannotRunError(f"{target.relative_to(ROOT)} cannot be built:\n{done.stdout}{done.stderr}")
    return target


def inclusive(lines: list[str]) -> dict[str, int]:
    """From callgrind's file: for each measured function the instructions between its entry and its end."""
    names: dict[str, str] = {}
    counts: dict[str, int] = {}
    callee, called = "", False
    for line in lines:
        if line.startswith(("fn=", "cfn=")):
            number, _, name = line.partition("=")[2].partition(" ")
            if name:
                names[number] = name
            callee = names[number]
        elif line.startswith("calls="):
            called = True
        elif called:
            called = False
            if callee.startswith(MEASURED):
                counts[callee] = counts.get(callee, 0) + int(line.split()[1])
    return counts


def measure(program: Path, *, changes_only: bool = False) -> Counts:
    """One run under callgrind."""
    if shutil.which("valgrind") is None:
        raise CannotCompareError("valgrind is missing, so instructions are NOT counted: install the package valgrind")
    with tempfile.TemporaryDirectory(prefix="instructions-") as made:
        out = Path(made) / "callgrind"
        command = [
            *("valgrind", "--tool=callgrind", "--quiet", "--collect-atstart=no", f"--callgrind-out-file={out}"),
            *(f"--toggle-collect={prefix}*" for prefix in (MEASURED, OUTSIDE)),
            *(str(program), *(["changes"] if changes_only else [])),
        ]
        environment = os.environ | {"GLIBC_TUNABLES": PLAIN_PROCESSOR}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise CannotRunError(f"{program.name} failed under valgrind:\n{done.stdout}{done.stderr}")
        found = inclusive(out.read_text(encoding="utf-8").splitlines())
    built_with, *lines = done.stdout.splitlines()
    paths = {}
    for line in lines:
        name, operations = line.split()
        paths[name] = round(found[MEASURED + name] / int(operations), 1)
    return Counts(f"{built_with}, {platform.machine()}", paths)


# ---- comparing ----


def section_of(baseline: dict[str, dict[str, object]], built_with: str) -> dict[str, float]:
    """The baseline's counts for this compiler and C library."""
    if built_with not in baseline:
        raise CannotCompareError(
            f"tools/instructions.json has nothing for {built_with} (but for {'; '.join(baseline) or 'none'}), so "
            'instructions are NOT compared: make it with `make instructions-baseline WHY="..."` on a state that is good'
        )
    paths = baseline[built_with]["paths"]
    assert isinstance(paths, dict)
    return paths


def judge(before: dict[str, float], now: dict[str, float]) -> tuple[list[str], list[str]]:
    """Failures, and paths that cost less than before; one sentence each."""
    wrong, gained = [], []
    for name, count in now.items():
        if name not in before:
            wrong.append(f"{name} is measured, but not in the baseline")
        elif count > before[name] * (1 + ALLOWANCE):
            wrong.append(
                f"{name} costs {count:,.0f} instructions, {count / before[name] - 1:+.1%} of {before[name]:,.0f}"
            )
        elif count < before[name] * (1 - ALLOWANCE):
            gained.append(f"{name} costs {count / before[name] - 1:+.1%}: make a new baseline to keep the gain")
    wrong += [f"{name} is in the baseline, but no longer measured" for name in before if name not in now]
    return wrong, gained


def read_baseline() -> dict[str, dict[str, object]]:
    """By compiler and C library; empty if there is none yet."""
    return json.loads(BASELINE.read_text(encoding="utf-8")) if BASELINE.exists() else {}


def write(counts: Counts, why: str) -> None:
    """Replace the section of this compiler and C library; the others stay."""
    baseline = read_baseline()
    baseline[counts.built_with] = {"why": why, "paths": counts.paths}
    BASELINE.write_text(json.dumps(baseline, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def compare(counts: Counts, before: dict[str, float]) -> int:
    """Print the comparison; the exit status."""
    wrong, gained = judge(before, counts.paths)
    print(f"instructions for one operation, {counts.built_with}")
    for name, count in counts.paths.items():
        change = f"{count / before[name] - 1:+.1%}" if name in before else "new"
        print(f"  {name:<22} {count:>12,.1f}  {change:>7}")
    for line in gained:
        print(f"gained: {line}")
    for line in wrong:
        print(f"instructions: {line}", file=sys.stderr)
    if wrong:
        print(
            f"instructions: the allowance is {ALLOWANCE:.0%}. If this is meant, write the baseline in a commit that "
            'says why: make instructions-baseline WHY="..."',
            file=sys.stderr,
        )
    return 1 if wrong else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--write", metavar="WHY", help="replace the baseline of this compiler and C library, for this reason"
    )
    parser.add_argument(
        "--planted",
        type=int,
        default=0,
        metavar="N",
        help="add N instructions to each message: the comparison must fail",
    )
    options = parser.parse_args()
    if options.write is not None and (not re.search(r"\w", options.write) or options.planted):
        parser.error('--write wants to know why: WHY="publish encodes two more fields", and nothing planted')
    if options.planted < 0:
        parser.error("--planted is a number of instructions")
    try:
        counts = measure(build(options.planted), changes_only=options.planted > 0)
        if options.write is not None:
            write(counts, options.write)
            return 0
        before = section_of(read_baseline(), counts.built_with)
        if options.planted:
            before = {name: count for name, count in before.items() if name in counts.paths}
        return compare(counts, before)
    except CannotCompareError as error:
        print(f"instructions: {'' if os.environ.get('CI') else 'SKIPPED: '}{error}", file=sys.stderr)
        return 3
    except CannotRunError as error:
        print(f"instructions: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
