"""Commands that run again and again on a soak's store, while the worker works, dies and opens the store.

Each runs as its own process: ``verify``, ``tail --json``, ``export`` into one growing target, and ``backup`` into a new
directory, which is verified and removed. A status other than 0, or output other than the command promises, is a
violation.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMMAND_S_MAX = 300
PAUSE_S = 0.2


class Beside:
    """A thread that runs the commands until it is stopped."""

    def __init__(self, directory: Path) -> None:
        self.store = directory / "store"
        self.exported = directory / "export"
        self.backup = directory / "backup"
        self.runs = dict.fromkeys(("verify", "tail", "export", "backup"), 0)
        self.problem: str | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="beside", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop after the present command."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while self.problem is None:
                for step in (self._verify, self._tail, self._export, self._backup):
                    if self._stop.wait(PAUSE_S) or self.problem is not None:
                        return
                    step()
        except Exception as problem:  # noqa: BLE001 - the parent reports it; a silent end would look like success
            self.problem = f"a command beside the store: {type(problem).__name__}: {problem}"

    def _verify(self) -> None:
        self._command("verify", str(self.store), "--json")

    def _tail(self) -> None:
        said = self._command("tail", str(self.store), "--json")
        if said is not None and "base_lsn" not in json.loads(said):
            self.problem = f"tail --json does not say base_lsn: {said}"

    def _export(self) -> None:
        self._command("export", "--allow-gap", str(self.store), str(self.exported))

    def _backup(self) -> None:
        shutil.rmtree(self.backup, ignore_errors=True)
        if self._command("backup", str(self.store), str(self.backup)) is not None:
            self._command("verify", str(self.backup))
        if self.problem is None:
            shutil.rmtree(self.backup, ignore_errors=True)

    def _command(self, name: str, *arguments: str) -> str | None:
        """Its standard output; None after a failure, which is stored in ``problem``."""
        done = subprocess.run(
            [sys.executable, "-m", "logstore", name, *arguments],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_S_MAX,
            check=False,
        )
        if done.returncode != 0 or "Traceback" in done.stderr:
            said = (done.stdout + done.stderr).strip()
            self.problem = f"{name} {' '.join(arguments)} exited with {done.returncode}: {said[-2000:]}"
            return None
        self.runs[name] += 1
        return done.stdout
