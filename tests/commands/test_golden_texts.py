"""The output of every command in a terminal of 80 and of 140 columns, compared with the texts under golden/.

``LOGSTORE_WRITE_GOLDEN=1 pytest tests/commands/test_golden_texts.py`` writes the texts anew, and with
``LOGSTORE_WRITE_GOLDEN=stores`` first the stores that the commands run on, which changes ids and LSNs.

A text is what the terminal receives, with ESC as ␛, CR as ␍ and line ends as LF. The rules in ``RULES`` and
``MEASURED`` replace what differs between runs; a wall clock that stands makes times and ages equal.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pytest

from kit import golden_stores
from kit.clock_jumps import JumpingClock
from kit.golden_cases import BETWEEN_PROCESSES, CASES, KINDS, WITHOUT_STORE, Case
from kit.stores import ROOT
from kit.torture import part_of
from logstore.cli import command

if TYPE_CHECKING:
    from collections.abc import Iterator

GOLDEN = Path(__file__).with_name("golden")
ARCHIVE = GOLDEN / "stores.tar.xz"
WRITING = os.environ.get("LOGSTORE_WRITE_GOLDEN", "")
WIDTHS = (80, 140)
#: All at the first width, and some at the other.
SHOWN = [
    *((name, WIDTHS[0]) for name in CASES),
    *((name, WIDTHS[1]) for name in (CASES if WRITING else part_of(list(CASES), 6))),
]
PROCESSES = ("logstore.help", "in-doubt.usual", "tail.usual", "tail.watched", "verify.damaged")
CASE_S = 60  # of a busy machine
DIRECTORY_NAME = "golden-DIRECTRY"  # as long as the name that it replaces

RULES: dict[str, tuple[str, str]] = {
    "identity of a new store": (
        r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b",
        "NNNNNNNN-NNNN-NNNN-NNNN-NNNNNNNNNNNN",
    ),
    "identity of a new cluster": (r"\b[0-9a-f]{32}\b", "N" * 32),
    "end of a log that has just begun to be replicated": (
        r"(?m)^(log +term \d+, index |on the disk +forced to LSN )\d+(, known durable to LSN \d+)?$",
        r"\1N",
    ),
    "port": (r"(?<=127\.0\.0\.1:)\d+", "PORT"),
    "duration": (r"\b\d+\.\d+(?= (s|ms)\b)", "N.NN"),
    "milliseconds of a log line": (r"(?<=\d\d:\d\d:\d\d),\d{3}", ",000"),
    "whether the file system has direct I/O": (r"(?m)^(direct I/O +)(yes|no)$", r"\1yes/no"),
    "compiler": (r"\((gcc|clang)[^)]*\)", "(COMPILER)"),
    "size of Parquet files": (r"(?<= files \()\d+ bytes( \([^)]*\))?(?=\))", "N bytes"),
    "all frames of a display that is drawn repeatedly but the last": (
        r"(?s)(?<=␛\[\?25l).*␍␛\[2K(␛\[1A␛\[2K)*(?=.+\n␛\[\?25h)",
        "…",
    ),
}
MEASURED: dict[str, tuple[str, str]] = {
    "table, which is folded as its numbers need it": (r"(?s)␛\[1m +messages.*(?=\ndurability)", "TABLE"),
    "number": (r"N\.NN|\d+([.,]\d+)*(e[+-]\d+)?", "N"),
    "rounded size": (r"N bytes \(N [KMG]iB\)", "N bytes"),
    "fold of a line": (r"\n {8,}", " "),
    "width of a column": (r"(?m) +$|(?<= ) +", ""),
}


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> JumpingClock:
    made = JumpingClock(tmp_path_factory.mktemp("clock"))
    made.stand(golden_stores.NOW_S)
    return made


@pytest.fixture(scope="module")
def environment(clock: JumpingClock) -> dict[str, str]:
    """That of a person at a terminal, and nothing of the machine's settings."""
    kept = {name: value for name, value in clock.environment.items() if name in ("PATH", "HOME", "LD_PRELOAD")}
    return kept | {
        "CLOCK_JUMPS": clock.environment["CLOCK_JUMPS"],
        "LANG": "C.UTF-8",
        "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "tests"))),
        "TERM": "xterm-256color",
        "TZ": "UTC",
    }


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str], clock: JumpingClock) -> Path:
    if WRITING == "stores":
        made = tmp_path_factory.mktemp("made") / "stores"
        golden_stores.write_archive(ARCHIVE, made, Path(environment["CLOCK_JUMPS"]), environment)
        clock.stand(golden_stores.NOW_S)
    directory = tmp_path_factory.mktemp("stores")
    golden_stores.unpack(ARCHIVE, directory)
    return directory


@pytest.fixture(scope="module")
def server(environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """The process that runs the commands of all cases."""
    with subprocess.Popen(
        [sys.executable, "-m", "kit.terminal_server"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
        encoding="utf-8",
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


def ask(
    server: subprocess.Popen[str], case: Case, columns: int, directory: Path, *, is_anew: bool = False
) -> dict[str, Any]:
    assert server.stdin is not None
    assert server.stdout is not None
    commands = [{"arguments": shlex.split(line), "until": case.until} for line in case.commands]
    asked = {"columns": columns, "directory": str(directory), "beside": case.beside, "anew": is_anew}
    asked["commands"] = commands
    server.stdin.write(json.dumps(asked) + "\n")
    server.stdin.flush()
    answer: dict[str, Any] = json.loads(server.stdout.readline())
    return answer


def normalised(text: str, case: Case, directory: Path, pids: list[int]) -> str:
    text = text.replace("\r\n", "\n").replace("\r", "␍").replace("\x1b", "␛").replace(directory.name, DIRECTORY_NAME)
    for pid in pids:
        # nowhere else: a process can have the number of some bytes
        text = re.sub(rf"(?m)(?<=process ){pid}\b|(?<=  ){pid}$", "PID", text)
    for pattern, to in (*RULES.values(), *(MEASURED.values() if case.measured else ())):
        text = re.sub(pattern, to, text)
    return text


def text_of(case: Case, said: dict[str, Any], directory: Path) -> str:
    """The golden text: each command line, its output, and its exit status if that is not 0."""
    parts = []
    for line, one in zip(case.commands, said["said"], strict=True):
        status = f"[exit status {one['status']}]\n" if one["status"] else ""
        parts.append(f"$ logstore {line}".rstrip() + "\n" + normalised(one["output"], case, directory, said["pids"]))
        parts.append(status + "\n")
    return "".join(parts)


@pytest.fixture
def directory() -> Iterator[Path]:
    """Its path has the same length on every machine, so that texts with it are folded equally."""
    with tempfile.TemporaryDirectory(prefix="golden-", dir="/tmp") as made:
        yield Path(made)


@pytest.mark.parametrize(("name", "columns"), SHOWN)
@pytest.mark.timeout(CASE_S)
def test_a_command_in_a_terminal_shows_its_golden_text(
    name: str, columns: int, directory: Path, stores: Path, server: subprocess.Popen[str]
) -> None:
    case = CASES[name]
    if case.store is not None:
        shutil.copytree(stores / case.store, directory / "store")
    text = text_of(case, ask(server, case, columns, directory), directory)
    golden = GOLDEN / str(columns) / f"{name}.txt"
    if WRITING:
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")


@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize("name", PROCESSES)
@pytest.mark.timeout(CASE_S)
def test_a_process_of_its_own_shows_the_same_text(
    name: str, columns: int, directory: Path, stores: Path, server: subprocess.Popen[str]
) -> None:
    case = CASES[name]
    if case.store is not None:
        shutil.copytree(stores / case.store, directory / "store")
    text = text_of(case, ask(server, case, columns, directory, is_anew=True), directory)
    assert text == (GOLDEN / str(columns) / f"{name}.txt").read_text(encoding="utf-8")


def test_every_golden_text_has_a_case() -> None:
    for columns in WIDTHS:
        files = {path.stem: path for path in (GOLDEN / str(columns)).iterdir()}
        if WRITING:
            for name in files.keys() - CASES.keys():
                files.pop(name).unlink()
        assert set(files) == set(CASES)


def commands_of(group: click.Group, prefix: str = "") -> Iterator[str]:
    for name, one in group.commands.items():
        yield f"{prefix}{name}"
        if isinstance(one, click.Group):
            yield from commands_of(one, f"{name}-")


@pytest.mark.parametrize("name", ["logstore", *commands_of(command)])
def test_every_command_has_a_case_for_help_usual_output_empty_store_and_mistakes(name: str) -> None:
    kinds = [kind for kind in KINDS if kind != "empty" or name not in WITHOUT_STORE]
    kinds = [kind for kind in kinds if kind != "usual" or name not in BETWEEN_PROCESSES]
    assert {f"{name}.{kind}" for kind in kinds} <= set(CASES)
