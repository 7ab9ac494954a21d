"""tools/cdata_lint.py: no view of C memory here outlives its owner, and code that would allow it is rejected."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from kit.stores import ROOT
from tools.cdata_lint import check


def rejected(*codes: str) -> list[tuple[int, int]]:
    """The lines that are rejected, by file."""
    found = check({Path(f"{number}.py"): f"import ffi\n{textwrap.dedent(code)}" for number, code in enumerate(codes)})
    return [(int(name.removesuffix(".py")), int(line)) for name, line, _ in (each.split(":", 2) for each in found)]


def test_no_view_in_this_project_outlives_its_owner() -> None:
    done = subprocess.run(
        [sys.executable, "tools/cdata_lint.py"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


PLANTED = """
def f():
    made = ffi.new("ls_store **")
    return ffi.gc(made[0], lib.ls_free)
---
def f():
    rows = ffi.new("ls_queue_info[]", 3)
    return rows[0:2]
---
def f():
    rows = ffi.new("ls_queue_info[]", 3)
    return rows[1]
---
def f():
    rows = ffi.new("ls_queue_info[]", 3)
    return (row for row in rows[0:2])
---
def f():
    rows = ffi.new("ls_queue_info[]", 3)
    return [row for row in rows[0:2]]
---
def f():
    rows = ffi.new("ls_queue_info[]", 3)
    return list(rows[0:2])
---
def f():
    rows = ffi.new("ls_queue_info[]", 3)
    yield from rows[0:2]
---
def f():
    rows, kept = ffi.new("ls_open_tx[]", 3), []
    for row in rows:
        kept.append(row)
    return kept
---
def f():
    rows, kept = ffi.new("ls_open_tx[]", 3), {}
    kept["first"] = rows[0]
    return kept
---
def f(self):
    info = ffi.new("ls_tx_info *")
    self.xid = info.xid
---
def f():
    info = ffi.new("ls_tx_info *")
    return 1, info.xid
---
def f():
    info = ffi.new("ls_tx_info *")
    return Row(id=info.id, xid=info.xid)
---
def f():
    info = ffi.new("ls_tx_info *")
    xid = info.xid
    return lambda: xid.format_id
---
def f():
    data = ffi.new("uint8_t[]", 8)
    return ffi.cast("uint64_t *", data)
---
def f():
    data = ffi.new("uint8_t[]", 8)
    return ffi.buffer(data + 4)
---
def f():
    data = ffi.new("uint8_t[]", 8)
    return ffi.addressof(data, 4)
---
def described():
    info = ffi.new("ls_inspection *")
    lib.ls_inspect_describe(None, info)
    return info
def f():
    return print(described().log)
---
class C:
    def __init__(self):
        self.rows = ffi.new("ls_place[]", 9)
    def f(self):
        return self.rows[0:3]
---
def f(data):
    first = ffi.from_buffer("uint8_t[]", data) + 8
    return int(first[0])
---
def f():
    address = ffi.cast("uintptr_t", ffi.new("int *"))
    return int(address)
---
fresh = ffi.new_allocator(should_clear_after_alloc=False)
def f():
    print(fresh("uint8_t[]", 8)[0:4])
---
def f():
    options = ffi.new("ls_rows_options *")
    options.ids = ffi.new("uint64_t[]", [1])
    return lib.ls_rows_open(None, options, None)
---
def f(options):
    setattr(options, "ids", ffi.new("uint64_t[]", [1]))
---
def f():
    options, ids = ffi.new("ls_rows_options *"), ffi.new("uint64_t[]", [1])
    options.ids = ids
    return options
"""

ALLOWED = """
def f():
    rows, count = ffi.new("ls_place[]", 3), ffi.new("size_t *")
    lib.ls_cursor_next(None, rows, 3, count)
    return [(row.id, bool(row.locked)) for row in rows[0 : count[0]]]
---
def f():
    handle = ffi.new("ls_store **")
    return handle[0]
---
def f():
    ids = ffi.new("uint64_t[]", 3)
    return sorted(ids[0:2]), ids[2], tuple(ids[0:1])
---
def f():
    info = ffi.new("ls_tx_info *")
    return info.id, info.state, bytes(ffi.buffer(info.xid.data, 3))
---
def f(xid):
    made = ffi.new("ls_xid *")
    made.format_id = xid.format_id
    ffi.memmove(made.data, xid.gtrid, len(xid.gtrid))
    return made
---
def f(data):
    return ffi.from_buffer("uint8_t[]", data), len(data)
---
def f(deliveries):
    into = ffi.new("uint8_t[]", 100)
    data = ffi.buffer(into)
    for each in deliveries:
        each.loaded = data[0:4]
---
def f(ids):
    options, kept = ffi.new("ls_rows_options *"), ffi.new("uint64_t[]", ids)
    options.ids = kept
    return lib.ls_rows_open(None, options, None)
---
def f(owner):
    columns, rows = ffi.new("ls_column[]", 9), ffi.new("uint64_t *")
    at = {number: columns[number] for number in range(9)}
    return [int(ffi.cast("uintptr_t", at[number].values)) for number in range(rows[0])]
"""


@pytest.mark.parametrize("code", PLANTED.split("---\n"), ids=lambda code: code.strip().splitlines()[-1].strip())
def test_a_view_that_outlives_its_owner_is_rejected(code: str) -> None:
    assert len(rejected(code)) == 1


def test_copies_and_reads_during_the_owners_lifetime_are_not_rejected() -> None:
    assert rejected(*ALLOWED.split("---\n")) == []


def test_a_function_of_another_file_that_returns_an_owner_is_known() -> None:
    maker = """
        def described():
            return ffi.new("ls_inspection *")
        """
    assert rejected(maker, "print(lambda: described().log)") == [(1, 2)]
