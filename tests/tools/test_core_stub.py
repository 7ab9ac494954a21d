"""The stubs of the extension modules equal those made from their headers, and mypy reports wrong calls."""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from kit.stores import ROOT
from logstore._core import lib
from tools import core_stub

if TYPE_CHECKING:
    from pathlib import Path

HEADER = (ROOT / "csrc" / "include" / "logstore.h").read_text("utf-8")


# A wrong line, and mypy's message about it.
WRONG = {
    "lib.ls_clos(store)": "has no attribute",
    "lib.ls_close()": "Too few arguments",
    "lib.ls_close('store')": 'incompatible type "str"',
    "lib.ls_close(ffi.new('ls_cursor **')[0])": 'incompatible type "ls_cursor_ptr"',
    "lib.ls_stats_get(store, ffi.new('ls_tail *'))": 'incompatible type "ls_tail_ptr"',
    "lib.ls_load_header(store, 1, b'not to be written to', 1, ffi.NULL)": 'incompatible type "bytes"',
    "lib.ls_append_content(store, 1, b'', 0, ffi.new('uint64_t *'))": 'expected "int"',
    "lib.ls_reader_skim(ffi.NULL, 1, ffi.new('uint32_t *'))": 'expected "Numbers[uint64_t]',
    "ffi.new('ls_stats *').batchs": "has no attribute",
    "lib.LS_OK = 1": "Cannot assign to final",
}


def mypy(code: str, place: Path) -> list[str]:
    """The messages of mypy about these lines, with the stub under the name core."""
    shutil.copy(core_stub.STUB, place / "core.pyi")
    (place / "caller.py").write_text(f"from core import ffi, lib\n\nstore = ffi.new('ls_store **')[0]\n{code}\n")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-incremental", "--config-file=", "caller.py"],
        cwd=place,
        capture_output=True,
        text=True,
        check=False,
    )
    return [line for line in done.stdout.splitlines() if "error:" in line]


@pytest.mark.parametrize("header", core_stub.STUBS, ids=lambda path: path.name)
def test_the_stub_equals_the_one_generated_from_the_header(header: Path) -> None:
    made = core_stub.Header((core_stub.ROOT / header).read_text("utf-8"), header).stub()
    assert core_stub.STUBS[header].read_text("utf-8") == made, "run 'make format'"


def test_a_function_that_the_header_gains_makes_the_stub_stale() -> None:
    changed = HEADER.replace("/* cffi:end */", "int ls_gained(ls_store *store);\n/* cffi:end */")
    assert "def ls_gained(self, store: ls_store_ptr | Null, /) -> int: ..." in core_stub.Header(changed).stub()


def test_the_stub_has_every_name_of_the_extension() -> None:
    stub = core_stub.Header(HEADER)
    assert {*stub.constants, *(name for name, _ in stub.functions)} == set(dir(lib))


def test_right_calls_pass(tmp_path: Path) -> None:
    code = """
lsn = ffi.new("uint64_t *")
code: int = lib.ls_publish(store, [1], 1, b"", 0, b"content", 7, ffi.NULL, lib.LS_WAIT, lsn)
stats = ffi.new("ls_stats *")
lib.ls_stats_get(store, stats)
total: int = lsn[0] + stats.batches
"""
    assert mypy(code, tmp_path) == []


def test_every_wrong_call_is_seen(tmp_path: Path) -> None:
    said = mypy("\n".join(WRONG), tmp_path)
    assert [found for found, expected in zip(said, WRONG.values(), strict=True) if expected not in found] == []
