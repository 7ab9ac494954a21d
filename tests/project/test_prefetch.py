"""The built extension still fetches memory ahead.

Optimization across files has removed such instructions before. No result shows that, only the time.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess

import pytest

from logstore import _core

FUNCTION = re.compile(r"^[0-9a-f]+ <([\w.]+)>:$")
PREFETCH = re.compile(r"\tprefetch\w+\b")

# What fetches, and its callers, because the compiler decides which of them become part of others.
FETCHING = {
    "batches of dequeues": {
        "fetch_ahead", "table_prefetch", "table_prefetch_at", "dequeue_all", "ls_purge",
        "ls_dequeue_many", "ls_settle_all",
    },
    "replay": {"fetch_chain", "replay_batch", "replay_log", "replay_and_settle", "recover_replay"},
}  # fmt: skip


def prefetches(path: str) -> dict[str, int]:
    """The number of prefetch instructions of each function, by its name in C."""
    tool = shutil.which("objdump")
    if tool is None:
        pytest.skip("there is no objdump: whether the extension fetches ahead is NOT checked")
    command = [tool, "--disassemble", "--no-show-raw-insn", path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "LC_ALL": "C"}) as run:
        assert run.stdout is not None
        found: dict[str, int] = {}
        name = ""
        for line in run.stdout:
            if PREFETCH.search(line):
                found[name] += 1
            elif begins := FUNCTION.match(line):
                name = begins[1].partition(".")[0]  # the optimizer appends .lto_priv.0, .part.0 and others
                found.setdefault(name, 0)
    assert run.returncode == 0
    return found


@pytest.mark.skipif(
    platform.machine() not in {"x86_64", "AMD64"}, reason="other processors name the instruction otherwise"
)
def test_the_extension_fetches_memory_ahead_of_batches_and_of_replay() -> None:
    found = prefetches(_core.__file__)
    for what, functions in FETCHING.items():
        assert functions & found.keys(), f"the functions that prefetch for {what} have other names now: mend the list"
        count = sum(found.get(function, 0) for function in functions)
        assert count > 0, f"the compiler has removed all prefetches of {what}: see csrc/os/prefetch.h"
