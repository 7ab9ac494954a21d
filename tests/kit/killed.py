"""Processes that are killed: a child forked from the test does some work, reports, and kills itself.

The child inherits all imports and has nothing open, so it starts in milliseconds; SIGKILL gives it no chance to close,
flush or roll back. It reports through a pipe as JSON before. An error of the child is raised in the test.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import tempfile
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy

import logstore.catalog  # noqa: F401 - loaded once, here, and not by every child
from kit.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable

sqlalchemy.create_engine("sqlite://").dispose()  # loads the driver and the dialect too


def quick_directory(prefix: str) -> Path:
    """A new directory, in memory if possible: the kernel keeps the data of a killed process."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    return Path(tempfile.mkdtemp(prefix=prefix, dir=memory))


def remove(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)


def and_then_killed(work: Callable[..., Any], *arguments: Any) -> Any:
    """The result of `work` in a child that was killed right after, with everything it had open still open."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        _live_and_die(reader, writer, work, arguments)
    os.close(writer)
    try:
        said = _read_all(reader)
    finally:
        os.close(reader)
        os.kill(pid, signal.SIGKILL)  # it is dead or about to be, unless it hangs
        _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status), f"the child ended with status {status} before it could be killed"
    assert os.WTERMSIG(status) == signal.SIGKILL
    report = json.loads(said)
    assert "failed" not in report, f"in the child:\n{report['failed']}"
    return report["returned"]


def killed(work: Callable[..., object], *arguments: object) -> bool:
    """Whether the child was killed on its way, rather than coming to the end of its work."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            signal.alarm(PATIENCE_S)
            work(*arguments)
            code = 0
        except BaseException:  # noqa: BLE001 - shown by the test that fails
            traceback.print_exc()
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL, f"the child died of signal {os.WTERMSIG(status)}"
        return True
    assert os.waitstatus_to_exitcode(status) == 0, "the child failed; its traceback is above"
    return False


def _live_and_die(reader: int, writer: int, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    try:
        os.close(reader)
        kept: list[Any] = []  # whatever the work leaves open is open when the signal comes
        try:
            report = {"returned": work(*arguments, kept)}
        except BaseException:  # noqa: BLE001 - told to the test, which raises
            report = {"failed": traceback.format_exc()}
        data = memoryview(json.dumps(report).encode())
        while data:
            data = data[os.write(writer, data) :]
    finally:
        os.kill(os.getpid(), signal.SIGKILL)


def _read_all(reader: int) -> bytes:
    parts: list[bytes] = []
    until = time.monotonic() + PATIENCE_S
    while True:
        ready, _, _ = select.select([reader], [], [], max(0.0, until - time.monotonic()))
        assert ready, f"the child has said nothing for {PATIENCE_S} s"
        part = os.read(reader, 1 << 20)
        if not part:
            return b"".join(parts)
        parts.append(part)
