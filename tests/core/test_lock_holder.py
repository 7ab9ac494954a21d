"""The error for a store that is open names the process, wherever it is found out."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

import logstore
from kit.command import fails, run
from kit.serve_process import serving
from logstore.core import lock_holder
from logstore.inspect import Inspection
from logstore.salvage.catalog_repair import repair_catalog

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PROGRAM = """
import sys, logstore
with logstore.open(sys.argv[1]):
    print("open", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with logstore.open(tmp_path / "store") as store:
        store.declare_queue("orders")
    return tmp_path / "store"


@contextmanager
def program(path: Path) -> Iterator[subprocess.Popen[str]]:
    """A program that has the store open, without a control socket."""
    script = path.with_name("writer.py")
    script.write_text(PROGRAM)
    with subprocess.Popen(
        [sys.executable, script, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        yield process
        assert process.stdin is not None
        process.stdin.close()


@pytest.mark.parametrize(
    "command",
    [
        ("recover",),
        ("recover", "--dry-run"),
        ("repair-catalog",),
        ("repair-catalog", "--dry-run"),
        ("salvage", "--dry-run"),
        ("compact",),
        ("compact", "--dry-run"),
        ("checkpoint",),
        ("checkpoint", "--dry-run"),
        ("purge", "orders"),
        ("purge", "orders", "--dry-run"),
    ],
    ids=" ".join,
)
def test_every_command_that_needs_the_closed_store_names_the_program_that_has_it_open(
    path: Path, command: tuple[str, ...]
) -> None:
    with program(path) as process:
        said = fails(run(command[0], path, *command[1:]), 3)
        assert f"{path} is open in process {process.pid} (writer.py): " in said


def test_an_open_names_the_broker_with_its_command(path: Path) -> None:
    with serving(path) as broker, pytest.raises(logstore.StoreLocked) as refused:
        logstore.open(path)
    assert f"is open in process {broker.pid} (logstore serve): close it there first" in str(refused.value)


def test_a_second_handle_is_told_that_this_very_process_has_the_store_open(path: Path) -> None:
    with logstore.open(path):
        with pytest.raises(logstore.StoreLocked, match="is open in this process already: close it there first"):
            logstore.open(path)
        with pytest.raises(logstore.StoreLocked, match="is open in this process already"):
            repair_catalog(path)


@pytest.mark.parametrize("locks", [None, "", "1: FLOCK  ADVISORY  WRITE 1 00:00:0 0 EOF\nnonsense\n"])
def test_a_holder_that_cannot_be_found_is_another_process_or_handle(
    path: Path, locks: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if locks is not None:
        path.with_name("locks").write_text(locks)
    monkeypatch.setattr(lock_holder, "_LOCKS", path.with_name("locks"))
    with logstore.open(path), pytest.raises(logstore.StoreLocked, match="is open in another process or handle: close"):
        logstore.open(path)


def test_a_reader_is_no_holder_of_a_store_without_a_writer(path: Path) -> None:
    with Inspection(path) as found:
        found.read()
        assert lock_holder.holder(path) is None
