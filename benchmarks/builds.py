"""The builds of the store that are measured: this one, and with ``--before`` that of another checkout.

Two packages named logstore cannot be in one process. With ``--before`` every store therefore runs in a process of its
own, all under the same conditions: such a process makes one object, and then executes its methods as it is asked to.
Requests and answers are pickled and go through pipes; clocks are read in that process.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from peers.base import Wrong

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).resolve().parent
OWN, BEFORE = "logstore", "before"
SERVE = f"import sys; sys.path.insert(0, {str(HERE)!r}); import builds; builds.serve()"


@dataclass(frozen=True)
class Build:
    """A name for the results, and the interpreter that imports this build's package."""

    name: str = OWN
    python: str = sys.executable
    apart: bool = False  # in processes of its own

    @classmethod
    def before(cls, checkout: Path) -> Self:
        """The build of another checkout, in that checkout's environment. Raises ValueError with the reason."""
        made = cls(BEFORE, str(checkout / ".venv" / "bin" / "python"), apart=True)
        if not Path(made.python).exists():
            raise ValueError(f"{checkout} has no environment: run `make setup` there ({made.python} is missing)")
        found = made.run("-P", "-c", "import logstore; print(logstore.__file__)")
        if found.returncode != 0 or not Path(found.stdout.strip()).resolve().is_relative_to(checkout.resolve()):
            raise ValueError(f"{made.python} does not import the package of {checkout}: {found.stdout}{found.stderr}")
        return made

    def environment(self) -> dict[str, str]:
        """PYTHONPATH leads to this checkout, so that another build must not see it."""
        return {name: value for name, value in os.environ.items() if self.name == OWN or name != "PYTHONPATH"}

    def run(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        """A program of this build: its status and its output."""
        command = [self.python, *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, check=False, env=self.environment())

    def make(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """The object that a function of a module here makes. Its method ``close`` is called last."""
        return Apart(self, function, arguments) if self.apart else function(*arguments)


class Apart:
    """An object in a process of its own; has the same methods."""

    def __init__(self, build: Build, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self._process = subprocess.Popen(
            [build.python, "-P", "-c", SERVE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=build.environment()
        )
        self._ask(function, *arguments)

    def _ask(self, asked: Any, *arguments: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            pickle.dump((asked, arguments), self._process.stdin)
            self._process.stdin.flush()
        try:
            worked, answer = pickle.load(self._process.stdout)
        except EOFError:
            raise Wrong(f"the process of a build ended with status {self._process.wait()}") from None
        if not worked:
            raise Wrong(answer)
        return answer

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *arguments: self._ask(name, *arguments)

    def close(self) -> None:
        """Close the object and end its process."""
        self._ask("close")
        self._process.communicate()


def serve() -> None:
    """The process: the first request is a function that makes the object, every other one names a method of it."""
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing that is printed may get between the answers
    subject: Any = None
    while True:
        told: tuple[bool, Any] = (True, None)
        try:
            asked, arguments = pickle.load(requests)
            if subject is None:
                subject = asked(*arguments)
            else:
                told = (True, getattr(subject, asked)(*arguments))
        except EOFError:
            return
        except Wrong as problem:
            told = (False, str(problem))
        except Exception:  # noqa: BLE001 - told by the process that asked
            told = (False, traceback.format_exc())
        pickle.dump(told, answers)
        answers.flush()
