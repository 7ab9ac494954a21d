"""A host process with one build of the package, which forks the children that work on real disks."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kit.stores import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

TESTS = Path(__file__).resolve().parents[1]


class ChildFailedError(Exception):
    """The work itself failed; the text has its traceback."""


class Host:
    """Requests one piece of work after another."""

    def __init__(self, package: Path = ROOT, mutant: str = "") -> None:
        environment = {**os.environ, "PYTHONPATH": f"{package}{os.pathsep}{TESTS}", "PYTHONWARNINGS": "ignore"}
        environment.pop("LOGSTORE_MUTANT", None)
        if mutant:
            environment["LOGSTORE_MUTANT"] = mutant
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "kit.real_disk_work"],  # -P: import the package only from PYTHONPATH
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def ask(self, do: str, *arguments: Any) -> Any:
        """The result of the piece of work in a child that was killed right after; ChildFailedError if it failed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        arguments = tuple(str(a) if isinstance(a, Path) else a for a in arguments)
        self._process.stdin.write(json.dumps({"do": do, "with": arguments}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the host of the children has died in {do}"
        answer = json.loads(line)
        if "failed" in answer:
            raise ChildFailedError(answer["failed"])
        return answer["returned"]

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(60)
        finally:
            self._process.kill()


@contextlib.contextmanager
def host(package: Path = ROOT, mutant: str = "") -> Iterator[Host]:
    """A host for as long as the block."""
    made = Host(package, mutant)
    try:
        yield made
    finally:
        made.end()
