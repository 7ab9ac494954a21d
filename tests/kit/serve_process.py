"""A command that serves as a process of its own, for tests that kill it, stop it, or connect programs to it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from kit.ports import free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

START_S = 30.0


class CommandProcess:
    """One run of a command, which says in one line that it is ready. Its error output goes to a file."""

    def __init__(
        self,
        errors: Path,
        *arguments: object,
        under: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`under` is a command that runs it, such as a tracer; `environment` adds to its environment."""
        self.errors = errors
        with self.errors.open("ab") as to:
            self._process = subprocess.Popen(
                [*under, sys.executable, "-m", "logstore", *map(str, arguments)],
                stdout=subprocess.PIPE,
                stderr=to,
                env=os.environ | {"PYTHONUNBUFFERED": "1"} | dict(environment or {}),
            )
        self.first_line = self._first_line()

    @property
    def pid(self) -> int:
        return self._process.pid

    def _first_line(self) -> str:
        assert self._process.stdout is not None
        deadline = time.monotonic() + START_S
        line = b""
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([self._process.stdout], [], [], max(0, deadline - time.monotonic()))
            data = os.read(self._process.stdout.fileno(), 200) if ready else b""
            if not data:
                self.kill()
                raise AssertionError(f"it did not start: {line!r} {self.errors.read_text()}")
            line += data
        return line.decode().strip()

    def complaints(self) -> list[str]:
        """What it wrote to standard error but what it tells as a matter of course."""
        return [line for line in self.errors.read_text().splitlines() if " INFO logstore" not in line]

    def kill(self) -> None:
        """Send SIGKILL."""
        self._process.kill()
        self._process.wait()

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def ended(self, seconds: float) -> int:
        """Wait until it ends by itself; the exit status."""
        return self._process.wait(seconds)

    def stop(self, seconds: float = 15.0) -> int:
        """SIGTERM; the exit status."""
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(seconds)


class ServeProcess(CommandProcess):
    """One run of `logstore serve`. Its error output goes to a file beside the store.

    Without a port it gets one that no other process takes before a later run has it again.
    """

    def __init__(
        self,
        store: Path,
        port: int | None = None,
        *,
        under: Sequence[str] = (),
        options: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`options` adds to its arguments."""
        errors = store.with_name(store.name + ".stderr")
        port = free_ports(1)[0] if port is None else port
        super().__init__(errors, "serve", store, "--port", port, *options, under=under, environment=environment)
        assert self.first_line.startswith("listening on 127.0.0.1:"), self.first_line
        self.port = int(self.first_line.rpartition(":")[2])

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}//"


@contextlib.contextmanager
def serving(store: Path, port: int | None = None) -> Iterator[ServeProcess]:
    process = ServeProcess(store, port)
    try:
        yield process
    finally:
        process.kill()
