"""Runs a command in a child process that is killed at its Nth step: a call that changes a directory or a catalog.

The program ``python -m kit.killed_steps N ARGUMENTS…`` ends with SIGKILL just before step N, or with the command's
status if the command has fewer steps.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

KILLED = -signal.SIGKILL


def killed_at(step: int, *arguments: object) -> int:
    """The exit status of the command, or ``KILLED``."""
    child = [sys.executable, "-m", "kit.killed_steps", str(step), *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    return subprocess.run(
        child, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=False
    ).returncode


def main() -> None:
    left, arguments = int(sys.argv[1]), sys.argv[2:]

    import logstore
    from logstore import cli
    from logstore.broker import host_list
    from logstore.catalog.config import Config

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*values: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*values, **options)

        return call

    for owner, name in (
        (Config, "update"),
        (Config, "__delitem__"),
        (host_list, "force_directory"),
        (logstore, "open"),
        (logstore.MessageStore, "close"),
        (shutil, "rmtree"),
        (os, "mkdir"),
        (os, "unlink"),
        (os, "rmdir"),
    ):
        setattr(owner, name, counted(getattr(owner, name)))
    sys.exit(cli.run(arguments))


if __name__ == "__main__":
    main()
