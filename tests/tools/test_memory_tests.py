"""tools/memory_tests.py: it fails if freed memory is read, keeps its time limit, and reports skipped checks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kit.stores import ROOT
from tools import memory_tests

READS_FREED_MEMORY = """
from logstore._core import ffi

def test_planted():
    rows = ffi.new("uint64_t[]", 4096)
    view = rows[0:4096]
    del rows
    assert view[2048] == 0
"""


def run(*arguments: object, **environment: str) -> tuple[int, str, dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "tools/memory_tests.py", *map(str, arguments)],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr, json.loads(done.stdout.splitlines()[-1])


def test_a_test_that_reads_freed_memory_fails(tmp_path: Path) -> None:
    (tmp_path / "test_planted.py").write_text(READS_FREED_MEMORY)
    status, said, counted = run("overwritten", tmp_path / "test_planted.py")
    assert status == 1
    assert "6148914691236517205 == 0" in said  # 0x55 in every byte
    assert counted == {"files": 1, "of": 1, "failed": 1}


def test_a_check_that_does_not_notice_freed_memory_ends_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    plain = {name: value for name, value in os.environ.items() if name not in ("MALLOC_PERTURB_", "LD_PRELOAD")}
    with pytest.raises(SystemExit):
        memory_tests.probe("overwritten", memory_tests.Setting(ROOT, plain))
    assert "goes unnoticed" in capsys.readouterr().err


def test_no_file_begins_when_the_time_is_over(tmp_path: Path) -> None:
    status, said, counted = run("overwritten", "--seconds", 0, tmp_path / "test_never.py")
    assert (status, counted) == (0, {"files": 0, "of": 1, "failed": 0})
    assert "1 of 1 test files did not run" in said


def test_without_a_compiler_the_run_says_that_it_was_skipped() -> None:
    status, said, counted = run("asan", PATH="/nowhere")
    assert (status, counted) == (0, {"skipped": 1})
    assert "SKIPPED" in said


def test_the_fixed_part_and_what_asan_leaves_out_are_test_files() -> None:
    assert [name for name in (*memory_tests.PART, *memory_tests.NOT_UNDER_ASAN) if not (ROOT / name).is_file()] == []
    assert not memory_tests.NOT_UNDER_ASAN.intersection(memory_tests.PART)
