"""Fuzzing: the record decoder, a segment, a whole store directory, its checkpoint, and the AMQP frame reader.

With clang and libFuzzer, each C target is built with the address and undefined-behaviour sanitizers and run for
--seconds; inputs that fail go to csrc/tests/fuzz/found/TARGET, where plain C tests replay them. Without libFuzzer the
program says so and replays seeds and found inputs with the sanitizers that the compiler has. tools/fuzz_frames.py
fuzzes the frame reader. The last line is one JSON object; the exit status is 0 if nothing was found.

    python tools/fuzz.py [--seconds S] [--jobs N] [--target NAME] [--seed N] [--halve NAME] [--make-seeds]
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FUZZ = ROOT / "csrc" / "tests" / "fuzz"
BUILD = ROOT / "build" / "fuzz"

#: The longest input of each target, in bytes.
C_TARGETS = {"record": 8192, "segment": 12000, "store": 24576, "checkpoint": 12000}
FRAMES = "frames"

#: Of one allocation, and in all. Segments have at most 128 KiB here, and the largest allocation of an open is 1 MiB.
MALLOC_LIMIT_MB, RSS_LIMIT_MB = 8, 1024
#: For one input: far more than the slowest takes on a loaded machine.
INPUT_SECONDS_MAX = 60

FLAGS = ["-std=c11", "-g", "-O2", "-D_GNU_SOURCE", "-pthread", "-fno-omit-frame-pointer", "-fno-sanitize-recover=all"]
INCLUDES = ["-Icsrc/include", "-Icsrc"]


@dataclass
class Outcome:
    """The result of one target."""

    executions: int
    crashes: int
    note: str = ""


# ---- building ----


def run(command: list[str], env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command of the checkout, its output as text."""
    return subprocess.run(command, cwd=ROOT, env=env, text=True, capture_output=True, check=False)


def has_libfuzzer() -> bool:
    """Whether clang builds and runs the smallest fuzz target."""
    if shutil.which("clang") is None:
        return False
    with tempfile.TemporaryDirectory() as scratch:
        source, program = Path(scratch) / "probe.c", Path(scratch) / "probe"
        source.write_text(
            "#include <stddef.h>\n#include <stdint.h>\n"
            "int LLVMFuzzerTestOneInput(const uint8_t *d, size_t n);\n"
            "int LLVMFuzzerTestOneInput(const uint8_t *d, size_t n) { (void)d; (void)n; return 0; }\n"
        )
        built = run(["clang", "-fsanitize=fuzzer,address,undefined", "-o", str(program), str(source)])
        return built.returncode == 0 and run([str(program), "-runs=1"]).returncode == 0


@functools.cache
def newest_header() -> float:
    """When any header last changed: every object depends on all of them."""
    return max(path.stat().st_mtime for path in (ROOT / "csrc").rglob("*") if path.suffix in (".h", ".def"))


def coverage_of(source: Path, compiler: list[str]) -> list[str]:
    """The compiler command for one file. The simulated disk is built without the fuzzer's instrumentation."""
    if source.name.startswith("vfs_sim"):
        return [flag.replace("fuzzer-no-link,", "") for flag in compiler]
    if source.parent.name == "format" and source.name == "decode.c" and any("fuzzer" in flag for flag in compiler):
        return [*compiler, "-fno-sanitize-coverage=trace-cmp"]
    return compiler


def object_of(source: Path, into: Path) -> Path:
    """The path of its object; files of two folders may have the same name."""
    return into / f"{source.parent.name}-{source.stem}.o"


def compile_one(source: Path, into: Path, compiler: list[str]) -> None:
    """Compile a C file if its object is older than it or than any header."""
    target = object_of(source, into)
    if target.exists() and target.stat().st_mtime > max(source.stat().st_mtime, newest_header()):
        return
    done = run(
        [*coverage_of(source, compiler), *FLAGS, *INCLUDES, "-c", "-o", str(target), str(source.relative_to(ROOT))]
    )
    if done.returncode != 0:
        raise SystemExit(f"logstore: {source.name} does not compile:\n{done.stderr}")


def build(name: str, source: Path, compiler: list[str], link: list[str], jobs: int) -> Path:
    """Build a program of the core and one more file."""
    into = BUILD / name
    into.mkdir(parents=True, exist_ok=True)
    core = sorted(
        path for path in (ROOT / "csrc").rglob("*.c") if path.relative_to(ROOT).parts[1] not in ("consensus", "tests")
    )
    simulated = (ROOT / "csrc/tests/sim").glob("*.c")
    core += sorted(path for path in simulated if not path.name.startswith("consensus"))  # those are a program
    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(lambda path: compile_one(path, into, compiler), [*core, source]))
    program = into / source.stem
    objects = [str(object_of(path, into)) for path in [*core, source]]
    done = run([*compiler, *FLAGS, *link, "-o", str(program) + ".out", *objects])
    if done.returncode != 0:
        raise SystemExit(f"logstore: {source.name} does not link:\n{done.stderr}")
    return program.with_name(program.name + ".out")


# ---- running ----


def sanitizer_environment() -> dict[str, str]:
    """The sanitizers' options: leaks and failed assertions are failures."""
    return os.environ | {
        "ASAN_OPTIONS": "detect_leaks=1:allocator_may_return_null=0",
        "UBSAN_OPTIONS": "halt_on_error=1",
    }


def fuzz(target: str, program: Path, seconds: int, seed: int) -> Outcome:
    """One libFuzzer run; new inputs go to a corpus under build/, failing ones to csrc/tests/fuzz/found."""
    corpus, found, seeds = BUILD / "corpus" / target, FUZZ / "found" / target, FUZZ / "seeds" / target
    for directory in (corpus, found):
        directory.mkdir(parents=True, exist_ok=True)
    before = set(found.iterdir())
    command = [
        str(program),
        f"-max_total_time={seconds}",
        f"-max_len={C_TARGETS[target]}",
        f"-malloc_limit_mb={MALLOC_LIMIT_MB}",
        f"-rss_limit_mb={RSS_LIMIT_MB}",
        f"-timeout={INPUT_SECONDS_MAX}",
        f"-seed={seed}",
        "-len_control=20",
        "-entropic=0",  # its bookkeeping takes a third of the time here
        "-print_final_stats=1",
        f"-artifact_prefix={found}/",
        str(corpus),
        str(seeds),
        str(found),
    ]
    done = run(command, env=sanitizer_environment())
    units = re.search(r"stat::number_of_executed_units:\s*(\d+)", done.stderr)
    new = sorted(set(found.iterdir()) - before)
    crashes = len(new) if new else int(done.returncode != 0)
    note = ""
    if crashes:
        note = "\n".join([*(f"kept: {path.relative_to(ROOT)}" for path in new), done.stderr[-6000:]])
    return Outcome(int(units.group(1)) if units else 0, crashes, note)


def replay(program: Path) -> Outcome:
    """Every stored input once; the program names the one that fails."""
    done = run([str(program)], env=sanitizer_environment())
    counted = re.search(r"^(\d+) passed, (\d+) failed$", done.stdout, re.MULTILINE)
    executions = int(counted.group(1)) if counted else 0
    failed = done.returncode != 0
    return Outcome(executions, int(failed), (done.stdout[-500:] + done.stderr[-6000:]) if failed else "")


def fuzz_frames(seconds: int, seed: int) -> Outcome:
    """The AMQP frame reader, in a process of its own."""
    done = run([sys.executable, "tools/fuzz_frames.py", "--seconds", str(seconds), "--seed", str(seed)])
    try:
        told = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        return Outcome(0, 1, done.stdout[-3000:] + done.stderr[-3000:])
    failed = done.returncode != 0 or told["crashes"] > 0
    note = told.get("with", "") if not failed else done.stdout[-3000:] + done.stderr[-3000:]
    return Outcome(told["executions"], told["crashes"] or int(done.returncode != 0), note)


def replay_compiler() -> tuple[list[str], list[str]]:
    """The first compiler that builds with sanitizers; else one without."""
    flags = ["-fsanitize=address,undefined"]
    for compiler in ("gcc", "clang"):
        if shutil.which(compiler) is None:
            continue
        with tempfile.TemporaryDirectory() as scratch:
            source = Path(scratch) / "probe.c"
            source.write_text("int main(void) { return 0; }\n")
            if run([compiler, *flags, "-o", str(source.with_suffix("")), str(source)]).returncode == 0:
                return [compiler, *flags], flags
    print("logstore: SKIPPED: no compiler builds with sanitizers: stored inputs are replayed without", file=sys.stderr)
    return [os.environ.get("CC", "cc")], []


def make_seeds() -> None:
    """Write csrc/tests/fuzz/seeds again, from real stores."""
    for target in C_TARGETS:
        shutil.rmtree(FUZZ / "seeds" / target, ignore_errors=True)
    for maker in ("make_seeds", "make_checkpoint_seeds"):
        program = build("seeds", FUZZ / f"{maker}.c", [os.environ.get("CC", "cc")], [], 2)
        done = run([str(program), str(FUZZ / "seeds")])
        if done.returncode != 0:
            raise SystemExit(f"logstore: no seeds could be made:\n{done.stdout}{done.stderr}")


def work_of(target: str, options: argparse.Namespace, libfuzzer: bool) -> Outcome:
    """Run one target: fuzz it, or replay its stored inputs."""
    seconds = max(1, options.seconds // 2) if target in options.halve else options.seconds
    if target == FRAMES:
        return fuzz_frames(seconds, options.seed)
    if libfuzzer:
        return fuzz(target, BUILD / "targets" / f"fuzz_{target}.out", seconds, options.seed)
    return replay(BUILD / "replay" / f"test_fuzz_{target}.out")


def main() -> int:
    """Build what is needed, run every target, print one line of JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=int, default=60, help="seconds for each target, without building")
    parser.add_argument("--jobs", type=int, default=2, help="targets at a time")
    parser.add_argument(
        "--target", action="append", choices=[*C_TARGETS, FRAMES], help="only this target (default: all)"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--halve", action="append", default=[], choices=[*C_TARGETS, FRAMES], help="half the time for this target"
    )
    parser.add_argument("--build-only", action="store_true")
    parser.add_argument("--make-seeds", action="store_true", help="only write csrc/tests/fuzz/seeds again")
    options = parser.parse_args()
    if options.make_seeds:
        make_seeds()
        return 0
    targets = options.target or [*C_TARGETS, FRAMES]
    libfuzzer = has_libfuzzer()
    if not libfuzzer:
        print(
            "logstore: SKIPPED: clang with libFuzzer (libclang-rt-14-dev) is missing: the C code is NOT fuzzed, "
            "stored inputs are replayed",
            file=sys.stderr,
        )
    compiler, link = (["clang", "-fsanitize=fuzzer-no-link,address,undefined"], ["-fsanitize=fuzzer,address,undefined"])
    if not libfuzzer:
        compiler, link = replay_compiler()
    for target in targets:
        if target in C_TARGETS and libfuzzer:
            build("targets", FUZZ / f"fuzz_{target}.c", compiler, link, options.jobs)
        elif target in C_TARGETS:
            build("replay", ROOT / "csrc" / "tests" / "unit" / f"test_fuzz_{target}.c", compiler, link, options.jobs)
    if options.build_only:
        return 0
    with ThreadPoolExecutor(options.jobs) as pool:
        outcomes = dict(zip(targets, pool.map(lambda t: work_of(t, options, libfuzzer), targets), strict=True))
    for target, outcome in outcomes.items():
        print(f"{target}: {outcome.executions} executions, {outcome.crashes} crashes {outcome.note}".rstrip())
    crashes = sum(outcome.crashes for outcome in outcomes.values())
    told = {
        "tool": "fuzz",
        "executions": sum(outcome.executions for outcome in outcomes.values()),
        "targets": {target: outcome.executions for target, outcome in outcomes.items()},
        "crashes": crashes,
        "fuzzed": libfuzzer,
    }
    print(json.dumps(told))
    return int(crashes > 0)


if __name__ == "__main__":
    sys.exit(main())
