"""Runs the ``logstore`` command as a process and checks its status and output."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import patch

from kit.patience import PATIENCE_S
from logstore import cli

if TYPE_CHECKING:
    from collections.abc import Sequence

COMMAND = (sys.executable, "-m", "logstore")


class Result(NamedTuple):
    """The result of a command."""

    returncode: int
    stdout: str
    stderr: str


def run(*arguments: object, text: str | None = None) -> Result:
    """The command with these arguments, in this process, and with this text as its standard input."""
    with (
        contextlib.redirect_stdout(io.StringIO()) as out,
        contextlib.redirect_stderr(io.StringIO()) as err,
        patch("sys.stdin", sys.stdin if text is None else io.StringIO(text)),
    ):
        status = cli.run([str(one) for one in arguments])
    return Result(status, out.getvalue(), err.getvalue())


def spawn(*arguments: object, program: Sequence[str] = COMMAND, **options: Any) -> Result:
    """The command with these arguments as a process of its own."""
    done = subprocess.run(
        [*program, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=options.pop("stdout", subprocess.PIPE),
        stderr=subprocess.PIPE,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        **options,
    )
    return Result(done.returncode, done.stdout, done.stderr)


def on_terminal(columns: int, *arguments: object) -> list[str]:
    """The lines that a fine command writes to a terminal of this width, without styles."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    with subprocess.Popen([*COMMAND, *map(str, arguments)], stdin=its, stdout=its, stderr=its, env=environment) as run:
        os.close(its)
        written = b""
        with contextlib.suppress(OSError):  # EIO: the command has closed the terminal
            while data := os.read(ours, 1 << 16):
                written += data
    os.close(ours)
    assert run.returncode == 0, written
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", written.decode()).replace("\r\n", "\n").splitlines()


def fails(result: Result, status: int) -> str:
    """Check that it exited with this status and one line of error output, which is returned."""
    assert result.returncode == status, (result.returncode, result.stderr)
    assert re.fullmatch(r"logstore: [^\n]+\n", result.stderr), result.stderr
    return result.stderr


def refused(status: int, *arguments: object, text: str | None = None) -> str:
    """The line of error output of a command that exits with this status."""
    return fails(run(*arguments, text=text), status)


def fine(*arguments: object, text: str | None = None) -> str:
    result = run(*arguments, text=text)
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout


def told(*arguments: object) -> Any:
    """Its output as JSON: one document on one line."""
    said = fine(*arguments, "--json")
    assert said.count("\n") == 1
    return json.loads(said)
