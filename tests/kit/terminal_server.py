"""Runs ``logstore`` commands in pseudo-terminals, each in a forked child of one process that has imported everything.

The program ``python -m kit.terminal_server`` reads one case per line of JSON from stdin: ``columns``, ``directory``
(where the commands run), ``beside`` (a key of ``BESIDE`` or null), ``anew`` (whether each command is a new process
instead) and ``commands``, each with ``arguments`` and ``until``: Ctrl-C is typed when the output contains this text. It
answers with one line: for each command its exit status and output, and the ids of the processes that took part.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import io
import json
import math
import os
import pty
import signal
import struct
import sys
import termios
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any, NoReturn

import logstore
from logstore import cli, commands, terminal
from logstore.holds import hold
from logstore.terminal import working

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Ready = Callable[[int], object]

ROWS = 24
ALARM_S = 40  # a command that takes longer is killed, which its exit status shows
CTRL_C = b"\x03"
STORE = "store"
IMPORTED = (
    *(each.name for package in (commands, terminal) for each in iter_modules(package.__path__, f"{package.__name__}.")),
    "click._textwrap",
    "difflib",
    "jinja2",
    "logstore.backup",
    "logstore.bench",
    "logstore.broker.server",
    "logstore.export.verification",
    "logstore.inspect.peek",
    "logstore.inspect.refusals",
    "logstore.report.arrow",
    "logstore.report.figures",
    "logstore.report.page",
    "logstore.report.plots",
    "logstore.salvage",
    "logstore.verify",
    "matplotlib.backends.backend_svg",
    "matplotlib.pyplot",
    "pandas",  # pyarrow imports it for the first array that it makes of Python's objects
    "pyarrow.compute",
    "pyarrow.parquet",
    "rich.live",
    "rich.progress",
    "rich.table",
    "sqlalchemy.dialects.sqlite",
)


# ---- Processes beside the command. Each ends with the signal that its parent sends.


def _open(ready: Ready) -> None:
    store = logstore.open(STORE)
    ready(os.getpid())
    signal.pause()
    store.close()


def _hold(ready: Ready) -> None:
    with hold(STORE, "nightly-export"):
        ready(os.getpid())
        signal.pause()


def _serve(ready: Ready) -> None:
    ours, its = os.pipe()
    os.dup2(its, 1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    served = os.fork()
    if served == 0:
        _standard_streams()
        cli.main(["serve", STORE, "--port", "0"])
    os.close(its)
    os.close(1)
    os.read(ours, 200)
    ready(served)
    with contextlib.suppress(_Ended):
        signal.pause()
    os.kill(served, signal.SIGTERM)
    os.waitpid(served, 0)


BESIDE: dict[str, Callable[[Ready], None]] = {"open": _open, "hold": _hold, "serve": _serve}


class _Ended(BaseException):
    """A process beside the command is asked to end."""


def _end(_number: int, _frame: object) -> NoReturn:
    raise _Ended


def _started(kind: str) -> tuple[int, int]:
    """Its process, and the process that uses the store."""
    ours, its = os.pipe()
    beside = os.fork()
    if beside == 0:
        signal.signal(signal.SIGTERM, _end)
        signal.alarm(ALARM_S)
        try:
            BESIDE[kind](lambda pid: os.write(its, b"%d" % pid))
        except _Ended:
            os._exit(0)
        except BaseException:  # noqa: BLE001 - this process must not go on as its parent
            sys.excepthook(*sys.exc_info())  # type: ignore[arg-type] # there is an exception here
        os._exit(1)
    os.close(its)
    user = int(os.read(ours, 20))
    os.close(ours)
    return beside, user


# ---- The command


def _standard_streams() -> None:
    """The streams that Python makes at the start of a process whose descriptors 0 to 2 these are."""
    sys.stdin = sys.__stdin__ = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)))  # type: ignore[misc] # typed as final
    sys.stdout = sys.__stdout__ = _output(1, is_line_buffered=os.isatty(1))  # type: ignore[misc] # typed as final
    sys.stderr = sys.__stderr__ = _output(2, is_line_buffered=True)  # type: ignore[misc] # typed as final


def _output(descriptor: int, *, is_line_buffered: bool) -> io.TextIOWrapper:
    raw = io.BufferedWriter(io.FileIO(descriptor, "w", closefd=False))
    return io.TextIOWrapper(raw, encoding="utf-8", line_buffering=is_line_buffered)


def _command(arguments: list[str]) -> NoReturn:
    """Runs the command, and ends the process as the command does."""
    status: object = 70
    try:
        cli.main(arguments)
    except SystemExit as end:
        status = end.code
    except BaseException:  # noqa: BLE001 - as Python shows a defect
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type] # there is an exception here
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status if isinstance(status, int) else 0)


def _terminal(columns: int) -> tuple[int, int]:
    """A pseudo-terminal of this width, which does not echo what is typed."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, columns, 0, 0))
    modes = termios.tcgetattr(its)
    modes[3] &= ~termios.ECHO
    termios.tcsetattr(its, termios.TCSANOW, modes)
    return ours, its


def _wait_until_it_waits(pid: int) -> None:
    """Python sees a signal that comes just before a call that waits only after that call.

    So Ctrl-C is typed when the process waits, or has ended.
    """
    while Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(") ")[2][0] not in "SZ":
        os.sched_yield()


def run(arguments: list[str], columns: int, until: str | None, *, is_anew: bool) -> dict[str, Any]:
    """Status, output and process id of a command in a terminal of its own."""
    ours, its = _terminal(columns)
    child = os.fork()
    if child == 0:
        os.close(ours)
        os.setsid()
        fcntl.ioctl(its, termios.TIOCSCTTY, 0)
        for standard in (0, 1, 2):
            os.dup2(its, standard)
        os.close(its)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.alarm(ALARM_S)
        if is_anew:
            os.execv(sys.executable, (sys.executable, "-m", "logstore", *arguments))
        _standard_streams()
        _command(arguments)
    os.close(its)
    written = b""
    with contextlib.suppress(OSError):  # EIO: the command has closed the terminal
        while data := os.read(ours, 1 << 16):
            written += data
            if until is not None and until.encode() in written:
                _wait_until_it_waits(child)
                os.write(ours, CTRL_C)
                until = None
    os.close(ours)
    _, status = os.waitpid(child, 0)
    return {"status": os.waitstatus_to_exitcode(status), "output": written.decode(), "pid": child}


def run_case(case: dict[str, Any]) -> dict[str, Any]:
    """Runs the commands of a case one after the other."""
    os.chdir(case["directory"])
    beside = None if case["beside"] is None else _started(case["beside"])
    try:
        said = [run(one["arguments"], case["columns"], one["until"], is_anew=case["anew"]) for one in case["commands"]]
    finally:
        if beside is not None:
            os.kill(beside[0], signal.SIGTERM)
            os.waitpid(beside[0], 0)
    return {"said": said, "pids": [*(beside or ()), *(one["pid"] for one in said)]}


def serve(cases: Iterator[str]) -> None:
    """Answers each case with one line."""
    for name in IMPORTED:
        importlib.import_module(name)
    gc.freeze()  # a child that collects garbage writes to no page of its parent
    working.SHOWN_AFTER_S = math.inf  # whether a bar appears must not depend on the machine's speed
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    for line in cases:
        answers.write(json.dumps(run_case(json.loads(line))) + "\n")


if __name__ == "__main__":
    serve(iter(sys.stdin))
