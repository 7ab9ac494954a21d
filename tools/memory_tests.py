"""Runs the Python tests in ways that detect a use of freed memory.

    python tools/memory_tests.py asan [FILE ...]         with the extension built with ASan
    python tools/memory_tests.py overwritten [FILE ...]  with an allocator that overwrites freed memory
    ... --all [--seconds S]                              every test file, in random order, for S seconds

Without files a fixed selection runs, in one process, which imports once what takes long under ASan; named files and
``--all`` have a process for each. In both modes Python takes all its memory from malloc, because cffi allocates as
Python does. The extension with ASan is built in a copy of the checkout, build/memory-tests, because both extensions
have the same name. Before the tests a probe reads freed memory and must be detected. Without libasan the tests are
skipped and the run says so. The last line is a JSON object. Exit status: 0 if nothing failed, else 1, or 2 for misuse.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TREE = ROOT / "build" / "memory-tests"
COPIED = ("benchmarks", "csrc", "docs", "logstore", "tests", "tools")

PART = (
    "tests/core/test_dropped_deliveries.py",
    "tests/core/test_hot.py",
    "tests/core/test_last_calls.py",
    "tests/core/test_native.py",
    "tests/inspect/test_inspect_core.py",
    "tests/store/test_queue_batches.py",
    "tests/store/test_content.py",
    "tests/store/test_messages_loaded.py",
    "tests/store/test_publish_many.py",
    "tests/store/test_tail.py",
    "tests/store/test_waiters.py",
    "tests/store/test_waiting.py",
)
#: Left out of the fixed selection without ASan, which finds more: they take long.
ONLY_UNDER_ASAN = frozenset({"tests/core/test_last_calls.py"})
SELECTED = "not slow and not spark"
FILES_S = 1800  # test files that take longer hang
GRACE_S = 30  # after the time is over, for the file that is running then
NO_TESTS = 5  # pytest's status if none of a file's tests is selected
#: Left out: tests that preload a library, trace system calls, count instructions, bound the stack, or build extensions.
NOT_UNDER_ASAN = frozenset(
    {
        "tests/core/test_hot_stack.py",
        "tests/broker/test_broker_storms_calls.py",
        "tests/broker/test_broker_storms_clock.py",
        "tests/store/test_commit_cost.py",
        "tests/store/test_core_calls.py",
        "tests/tools/test_instructions.py",
        "tests/faults/test_processes_clocks.py",
        "tests/faults/test_real_disks.py",
        "tests/faults/test_real_disks_eio.py",
    }
)

PROBES = {
    "asan": (
        "print(lib.ls_sizes_of_offsets(ffi.cast('uint8_t *', view), 8, 9, 9, ffi.new('uint64_t[9]')))",
        "heap-use-after-free",
    ),
    "overwritten": ("print(hex(view[2048]))", "0x5555555555555555"),
}
PROBE = 'from logstore._core import ffi, lib; rows = ffi.new("uint64_t[]", 4096); view = rows[0:4096]; del rows; '


@dataclass(frozen=True)
class Setting:
    """The directory and the environment of the tests."""

    directory: Path
    environment: dict[str, str]

    def python(self, *arguments: str, timeout: float) -> tuple[int | None, str]:
        """Exit status and output of a Python process; status None: it took too long and was ended with its children."""
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=self.directory,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            said = process.communicate(timeout=timeout)[0]
            return process.returncode, said
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return None, process.communicate()[0]


def overwritten() -> Setting:
    return Setting(ROOT, os.environ | {"PYTHONMALLOC": "malloc", "MALLOC_PERTURB_": "85"})


def libraries_to_preload() -> list[str]:
    """libasan, and libstdc++, where libasan looks up C++'s throw when it is loaded; empty if gcc lacks one."""
    compiler = shutil.which("gcc")
    found = [library_of(compiler, name) for name in ("libasan.so", "libstdc++.so")] if compiler else [None]
    return [] if None in found else [str(path) for path in found]


def asan(libraries: list[str]) -> Setting:
    """A copy of the checkout with the extension built with ASan."""
    copy_checkout()
    built = subprocess.run(
        [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"],
        cwd=TREE,
        env=os.environ | {"CC": "gcc", "LOGSTORE_SANITIZE": "address"},
        check=False,
    )
    if built.returncode != 0:
        raise SystemExit(1)
    options = "detect_leaks=0:allocator_may_return_null=1:max_free_fill_size=1048576:free_fill_byte=85"
    options += ":quarantine_size_mb=64"  # of 256: some tests bound the memory that is used
    return Setting(
        TREE,
        os.environ
        | {
            "ASAN_OPTIONS": options,
            "LD_PRELOAD": " ".join(libraries),
            "PYTHONMALLOC": "malloc",
            "PYTHONPATH": str(TREE),
        },
    )


def library_of(compiler: str, name: str) -> Path | None:
    said = subprocess.run([compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=False)
    path = Path(said.stdout.strip())
    return path.resolve() if path.is_absolute() and path.exists() else None


def copy_checkout() -> None:
    """Copies the files that the tests need, with their times, so that only a changed core is compiled again."""
    TREE.mkdir(parents=True, exist_ok=True)
    for old in TREE.rglob("*.py"):
        old.unlink()  # the file may have been removed from the checkout
    skipped = shutil.ignore_patterns("_core*.so", "_hot*.so", "_consensus*.so", "__pycache__")
    for folder in COPIED:
        shutil.copytree(ROOT / folder, TREE / folder, ignore=skipped, dirs_exist_ok=True)
    if (ROOT / "build/libraft").is_dir():
        shutil.copytree(ROOT / "build/libraft", TREE / "build/libraft", dirs_exist_ok=True)
    for path in ROOT.iterdir():
        if path.is_file() and path.name != ".git":
            shutil.copy2(path, TREE)


def probe(net: str, setting: Setting) -> None:
    """Reads freed memory, and ends the run if that is not detected."""
    code, noticed = PROBES[net]
    said = setting.python("-c", PROBE + code, timeout=120)[1]
    if noticed not in said:
        print(f"logstore: a read of freed memory goes unnoticed under {net}:\n{said}", file=sys.stderr)
        raise SystemExit(1)


def run_files(setting: Setting, names: list[str], until: float) -> int | None:
    """0 if no test of these files failed, None if there was no time for them. One process runs them."""
    left = until - time.monotonic()
    if left <= 0:
        return None
    command = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", SELECTED, *names)
    status, said = setting.python(*command, timeout=min(FILES_S, left + GRACE_S))
    if status is None and left + GRACE_S < FILES_S:
        return None
    if status not in (0, NO_TESTS):
        print(said, flush=True)
    return 0 if status in (0, NO_TESTS) else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("net", choices=sorted(PROBES))
    parser.add_argument("files", nargs="*", metavar="FILE", help="test files (the fixed part)")
    parser.add_argument("--all", action="store_true", help="every test file, in random order")
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), metavar="S", help="begin no file after this many seconds"
    )
    parser.add_argument("--build-only", action="store_true", help="only build what the tests need")
    options = parser.parse_intermixed_args()
    names = options.files or [name for name in PART if options.net == "asan" or name not in ONLY_UNDER_ASAN]
    if options.all:
        names = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "tests").rglob("test_*.py"))]
        random.shuffle(names)
    if options.net == "asan":
        names = [name for name in names if name not in NOT_UNDER_ASAN]
    libraries = libraries_to_preload()
    if options.net == "asan" and not libraries:
        print("logstore: SKIPPED: gcc or libasan is missing: the Python tests did NOT run under it", file=sys.stderr)
        print(json.dumps({"skipped": 1}))
        return 0
    TREE.parent.mkdir(exist_ok=True)
    with TREE.with_suffix(".lock").open("w") as lock:
        if options.net == "asan":
            fcntl.flock(lock, fcntl.LOCK_EX)  # no other process replaces the copy meanwhile
        setting = asan(libraries) if options.net == "asan" else overwritten()
        probe(options.net, setting)
        until = time.monotonic() + options.seconds
        together = [[name] for name in names] if options.files or options.all else [names]
        ended = [] if options.build_only else [(one, run_files(setting, one, until)) for one in together]
    failed = [one for one, status in ended if status]
    left = sum(len(one) for one, status in ended if status is None)
    count = sum(len(one) for one, _ in ended)
    if left:
        print(f"{left} of {count} test files did not run for want of time", flush=True)
    for one in failed:
        print(f"{options.net}: {' '.join(one)} FAILED", flush=True)
    print(json.dumps({"files": count - left, "of": count, "failed": len(failed)}))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
