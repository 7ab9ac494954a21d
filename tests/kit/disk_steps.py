"""Kills and failures at each call that changes the disk."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CHANGING = ("open", "write", "fsync", "rename", "mkdir", "unlink", "rmdir")


class Steps:
    """Counts the calls that change the disk, and replaces one of them."""

    def __init__(self, target: Path, number: int, instead: Callable[[str, tuple[Any, ...]], object]) -> None:
        self.target, self.number, self.instead = str(target), number, instead
        self.count = 0
        self.real = {name: getattr(os, name) for name in CHANGING}

    def __enter__(self) -> Self:
        for name in CHANGING:
            setattr(os, name, self.wrapped(name))
        return self

    def __exit__(self, *_: object) -> None:
        for name, function in self.real.items():
            setattr(os, name, function)

    def wrapped(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if self.changes(name, arguments):
                self.count += 1
                if self.count == self.number:
                    self.instead(name, arguments)
            return self.real[name](*arguments, **options)

        return call

    def changes(self, name: str, arguments: tuple[Any, ...]) -> bool:
        """Only calls on the target, and an open only if it makes a file."""
        if name == "open":
            return str(arguments[0]).startswith(self.target) and bool(arguments[1] & os.O_CREAT)
        if name in ("write", "fsync"):
            return os.readlink(f"/proc/self/fd/{arguments[0]}").startswith(self.target)
        return str(arguments[0]).startswith(self.target)


def die(name: str, arguments: tuple[Any, ...]) -> None:
    """Only half of a write reaches the file."""
    if name == "write":
        os.pwrite(arguments[0], arguments[1][: len(arguments[1]) // 2], os.lseek(arguments[0], 0, os.SEEK_CUR))
    os.kill(os.getpid(), signal.SIGKILL)
