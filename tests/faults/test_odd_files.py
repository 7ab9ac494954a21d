"""Unusual objects instead of a store's files: no command hangs, fills memory or ends in a traceback, and all agree.

A reading command may continue if the file is not needed, or refuse; if an open refuses, ``verify`` and ``recover
--dry-run`` report that, too.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import shutil
from typing import TYPE_CHECKING

import pytest

from kit import odd_files
from kit.odd_files import COMMANDS, ODD, TARGETS, WRITING, Said
from kit.torture import part_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FILES = (
    "META",
    "META.new",
    "LOCK",
    "HINT",
    "CLOSED",
    "CHECKPOINT",
    "CHECKPOINT.new",
    "middle segment",
    "last segment",
    "spare",
    "catalog",
    "catalog -wal",
    "catalog -shm",
    "catalog -journal",
    "holds",
    "a hold",
    "control socket",
)

_forked = multiprocessing.get_context("forkserver")
_forked.set_forkserver_preload(["kit.odd_files"])


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store after an orderly close."""
    made = tmp_path_factory.mktemp("odd") / "template"
    odd_files.make_store(made)
    return made


def ended(case: Path, commands: dict[str, tuple[str, ...]]) -> dict[str, Said]:
    """The results of all commands and of an open on the store of this case."""
    ours, theirs = _forked.Pipe()
    process = _forked.Process(target=odd_files.look, args=(case, theirs, commands))
    process.start()
    theirs.close()
    found: dict[str, Said] = {}
    try:
        while True:
            name = ours.recv()
            try:
                found[name] = ours.recv()
            except EOFError:
                process.join()
                found[name] = Said(-1, f"ended by signal {-(process.exitcode or 0)}: it hung, or took all memory")
                return found
    except EOFError:
        return found
    finally:
        ours.close()
        process.kill()  # where something else went wrong it may still be at work
        process.join()
        process.close()


def wrong(found: dict[str, Said]) -> Iterator[str]:
    """The broken promises."""
    for name, said in found.items():
        if said.status not in (0, 1, 2, 3):
            yield f"{name} exits {said.status}: {said.line}"
        elif said.status != 0 and not re.fullmatch(r"logstore: [^\n]+\n", said.line.splitlines(True)[-1]):
            yield f"{name} exits {said.status} and says {said.line!r}"
        elif "Invalid argument" in said.line:
            yield f"{name} does not say what is odd: {said.line!r}"
    if found.keys() != {*COMMANDS, "open"}:
        return
    opened, verified, dry = found["open"].status, found["verify"].status, found["recover --dry-run"].status
    if opened == 3 and verified == 0:
        yield f"verify exits 0, and an open is refused: {found['open'].line}"
    if opened != dry:
        yield f"recover --dry-run exits {dry} ({found['recover --dry-run'].line!r}), an open {found['open']}"


def problems_of(tmp_path: Path, template: Path, file: str, odd: str) -> list[str]:
    """The broken promises if this file is replaced in this way."""
    if odd == "a device" and os.getuid() != 0:
        print(f"SKIPPED LOUDLY: only root may make a device; {file} as one was NOT tried")
        return []
    case = tmp_path / odd.replace(" ", "-")
    case.mkdir()
    odd_files.make_case(template, case, odd_files.names_of(template)[file], odd)
    found = [f"{file} is {odd}: {one}" for one in wrong(ended(case, COMMANDS))]
    shutil.rmtree(case)
    return found


@pytest.mark.parametrize(
    ("file", "odd"),
    [
        *((file, "a FIFO") for file in FILES),
        ("META", "huge"),
        ("LOCK", "read-only"),
        ("HINT", "a device"),
        ("last segment", "read-only"),
        ("catalog", "huge"),
        ("catalog -wal", "huge"),
        ("holds", "a symlink to itself"),
    ],
)
def test_with_an_odd_file_every_command_ends_soon_with_a_plain_message_and_all_agree(
    tmp_path: Path, template: Path, file: str, odd: str
) -> None:
    assert problems_of(tmp_path, template, file, odd) == []


@pytest.mark.slow
@pytest.mark.parametrize("file", FILES)
def test_with_any_odd_object_as_any_file_every_command_ends_soon_with_a_plain_message(
    tmp_path: Path, template: Path, file: str
) -> None:
    odds = part_of(list(ODD), 8, first=FILES.index(file))
    problems = [one for odd in odds for one in problems_of(tmp_path, template, file, odd)]
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("odd", part_of(list(TARGETS), 2))
def test_a_target_that_cannot_be_written_ends_every_command_with_a_plain_message(
    tmp_path: Path, template: Path, odd: str
) -> None:
    if odd == "a device" and os.getuid() != 0:
        pytest.skip("SKIPPED LOUDLY: only root may make a device; a target that is one was NOT tried")
    odd_files.make_target(template, tmp_path, odd)
    commands = {
        name: tuple(one.replace("{target}", TARGETS[odd]) for one in arguments) for name, arguments in WRITING.items()
    }
    if odd == "a FIFO":
        del commands["salvage --report"]  # it waits for a reader, as a shell's redirection does
    assert list(wrong(ended(tmp_path, commands))) == []
