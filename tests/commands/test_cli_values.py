"""Every argument and option of every command gets wrong text: the result is a plain line and a status, never a
traceback.

They are read from the commands themselves, so that a new one is tested without being listed.
"""

from __future__ import annotations

import shutil
import signal
import sys
from typing import TYPE_CHECKING, Any

import click
import pytest

import logstore
from kit.stores import SMALL_SEGMENT
from logstore import cli

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HANG_S = 60
# These run until they are stopped, or draw for long, so they get no store.
LASTING = {("serve",), ("bench",), ("report",), ("cluster", "demo")}
LONG_PATH = "/" + "d/" * (1 << 19)  # 1 MB
WRONG = {
    "empty": "",
    "a word": "nowhere",
    "minus one": "-1",
    "zero": "0",
    "a huge number": "9" * 30,
    "more digits than Python reads": "9" * 5000,
    "a huge size": "9" * 30 + "T",
    "infinite": "inf",
    "no number": "nan",
    "beyond a float": "1e999",
    "half a hexadecimal": "0x",
    "another script's digits": "\u0663\u00b2",
    "a byte that is no text": "raw\udcff",
    "a name of 300": "x" * 300,
    "an xid with too much": "1:" + "61" * 65 + ":",
    "a time that never was": "0000-00-00T99:99:99Z",
    "1 MB": "long" * (1 << 18),
    "a path of 1 MB": LONG_PATH,
}


def commands(group: click.Group, *path: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """The commands below this group, each with its words on the command line."""
    for name, command in sorted(group.commands.items()):
        if isinstance(command, click.Group):
            yield from commands(command, *path, name)
        else:
            yield (*path, name), command


ALL = dict(commands(cli.command))


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small store to copy."""
    path = tmp_path_factory.mktemp("values") / "store"
    with logstore.open(path, segment_size=SMALL_SEGMENT, durability="relaxed") as store:
        queue = store.declare_queue("q")
        for number in range(3):
            store.publish(queue, b"%d" % number)
    return path


def valid(parameter: click.Parameter, place: Path) -> str:
    """A valid value for this argument."""
    name = parameter.name or ""
    if name in {"store_dir", "path"}:
        return str(place / "store")
    if name == "target":
        return str(place / "target")
    return {"xid": "1:61:62", "id": "524288", "lsn": "524288"}.get(name, "q")


def words(command: click.Command, wrong: click.Parameter, text: str, place: Path) -> list[str]:
    """The command line with this text as the value of one parameter."""
    made = []
    if isinstance(wrong, click.Option):
        made.append(f"{max(wrong.opts, key=len)}={text}")
    made.append("--")
    given = [each for each in command.params if isinstance(each, click.Argument) and (each.required or each is wrong)]
    return made + [text if each is wrong else valid(each, place) for each in given]


def hung(*_: Any) -> None:
    raise AssertionError("the command hangs")


@pytest.mark.parametrize("name", ALL, ids=" ".join)
def test_a_wrong_argument_is_one_plain_line_and_a_status(
    name: tuple[str, ...], closed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    command, lasting = ALL[name], name in LASTING
    tried = 0
    for parameter in command.params:
        if isinstance(parameter, click.Option) and (parameter.is_flag or parameter.count):
            continue
        for what, text in WRONG.items():
            if lasting and isinstance(parameter.type, click.Path) and text != LONG_PATH:
                continue  # it may be a directory to work in
            shutil.rmtree(tmp_path / "target", ignore_errors=True)
            if lasting:
                (tmp_path / "store").write_text("no store")
            elif not (tmp_path / "store").exists():
                shutil.copytree(closed, tmp_path / "store")
            line = [*name, *words(command, parameter, text, tmp_path)]
            told = f"{' '.join(name)}: {parameter.name} is {what}"
            status = run(line, told)
            said = [each[:300] for each in capsys.readouterr().err.splitlines()]
            tried += 1
            assert status in {0, 1, 2, 3}, told
            if status == 2:
                assert [each for each in said if each.startswith("logstore: ")], (told, said)
            assert not any("Traceback" in each for each in said), (told, said)
            if text == LONG_PATH and isinstance(parameter.type, click.Path):
                assert status == 2, (told, said)
    assert tried or not any(isinstance(each, click.Argument) for each in command.params)


def run(line: list[str], told: str) -> int:
    """The status; an exception that leaves the command would be a traceback."""
    for stream in (sys.stdout, sys.stderr):  # like the command's main
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    before = signal.signal(signal.SIGALRM, hung)
    signal.alarm(HANG_S)
    try:
        return cli.run(line)
    except BaseException as problem:
        raise AssertionError(f"{told}: {type(problem).__name__}: {str(problem)[:200]}") from problem
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        sys.stdout.flush()
