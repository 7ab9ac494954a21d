"""Odd things in the places of a store's files: nothing hangs, fills memory or ends in a traceback, and all agree.

A command that reads may go on where the file is not needed, or refuse; where an open refuses, ``verify`` and
``recover --dry-run`` say so before.
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
    """A store as it is left by an orderly close."""
    made = tmp_path_factory.mktemp("odd") / "template"
    odd_files.make_store(made)
    return made


def ended(case: Path, commands: dict[str, tuple[str, ...]]) -> dict[str, Said]:
    """How each command ended on the store of this case, and an open."""
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
    """What breaks a promise."""
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
    """What breaks a promise where this file is odd in this way."""
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
def test_an_odd_file_ends_every_command_soon_in_plain_words_and_all_agree(
    tmp_path: Path, template: Path, file: str, odd: str
) -> None:
    assert problems_of(tmp_path, template, file, odd) == []


@pytest.mark.slow
@pytest.mark.parametrize("file", FILES)
def test_any_odd_thing_in_place_of_any_file_ends_every_command_soon_in_plain_words(
    tmp_path: Path, template: Path, file: str
) -> None:
    odds = part_of(list(ODD), 4, first=FILES.index(file))
    problems = [one for odd in odds for one in problems_of(tmp_path, template, file, odd)]
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("odd", TARGETS)
def test_a_target_that_cannot_be_written_ends_every_command_in_plain_words(
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
