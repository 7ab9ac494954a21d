"""The brokers under load, each in its own process, and their syncs, counted by a tracer."""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from builds import Build

START_S: Final = 60.0
STOP_S: Final = 30.0
_TICKS_S: Final = os.sysconf("SC_CLK_TCK")
_SYNCS: Final = ("fsync", "fdatasync", "msync")


class LogstoreServer:
    """`logstore serve` with its defaults on a store in a directory of its own."""

    def __init__(self, directory: Path, build: Build) -> None:
        """Starts it and waits until it listens. Raises `RuntimeError` with its output."""
        directory.mkdir(parents=True)
        self.store = directory / "store"
        self._errors = directory / "errors"
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [build.python, "-P", "-m", "logstore", "serve", str(self.store), "--port", "0"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=build.environment() | {"PYTHONUNBUFFERED": "1"},
            )
        self.pids = (self._process.pid,)
        try:
            self.port = self._listening_port()
        except BaseException:
            self.stop()
            raise

    def _listening_port(self) -> int:
        assert self._process.stdout is not None
        deadline = time.monotonic() + START_S
        line = b""
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([self._process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            data = os.read(self._process.stdout.fileno(), 200) if ready else b""
            if not data:
                raise RuntimeError(f"logstore serve did not start: {self._errors.read_text()[-2000:]}")
            line += data
        return int(line.decode().rpartition(":")[2])

    def version(self) -> str:
        """The version of the broker's package."""
        import logstore

        return logstore.__version__

    def stop(self) -> None:
        """Stops it in order, or by force."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def wait_until_idle(pids: Iterable[int], timeout_s: float = 2.0) -> None:
    """Waits until these processes are almost idle, so that remaining work of one is not charged to the next."""
    deadline = time.monotonic() + timeout_s
    before = ticks_s(pids)
    while time.monotonic() < deadline:
        time.sleep(0.1)
        now = ticks_s(pids)
        if now - before < 0.02:
            return
        before = now


def ticks_s(pids: Iterable[int]) -> float:
    """The processor time of these processes so far, without those that have ended."""
    ticks = 0
    for pid in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / _TICKS_S


def count_syncs(pids: Iterable[int], work: Callable[[], dict[str, Any]], directory: Path) -> dict[str, Any]:
    """Does the work under a tracer: its messages, the syncs meanwhile, and files opened so that every write is one.

    A dict with `missing` instead if there is no tracer, or it may not trace.
    """
    tracer = shutil.which("strace")
    if tracer is None:
        return {"missing": "syncs were not counted: apt-get install strace"}
    told = directory / "syncs"
    attached = [argument for pid in pids for argument in ("-p", str(pid))]
    strace = subprocess.Popen(
        [tracer, "-f", "-c", "-e", f"trace={','.join(_SYNCS)}", "-o", str(told), *attached],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert strace.stderr is not None
    try:
        ready, _, _ = select.select([strace.stderr], [], [], 10)
        line = strace.stderr.readline() if ready else ""
        if "attached" not in line:
            return {"missing": f"syncs were not counted: {line.strip() or 'strace does not answer'}"}
        time.sleep(0.3)  # until it traces every thread
        done = work()
    finally:
        strace.send_signal(signal.SIGINT)
        strace.communicate(timeout=30)
    counts = dict.fromkeys(_SYNCS, 0)
    for line in told.read_text().splitlines():
        fields = line.split()
        if len(fields) >= 5 and fields[-1] in counts:
            counts[fields[-1]] = int(fields[3])
    synchronous = sorted({path for pid in pids for path in _synchronous_files(pid)})
    return {"messages": done["messages"], "syncs": counts, "files_opened_synchronous": synchronous}


def _synchronous_files(pid: int) -> Iterable[str]:
    directory = Path(f"/proc/{pid}/fdinfo")
    for info in directory.iterdir() if directory.exists() else ():  # the process may have ended
        with contextlib.suppress(OSError):
            flags = re.search(r"^flags:\s*(\d+)", info.read_text(), re.MULTILINE)
            path = os.readlink(f"/proc/{pid}/fd/{info.name}")
            if flags and path.startswith("/") and int(flags[1], 8) & os.O_DSYNC:
                yield Path(path).name
