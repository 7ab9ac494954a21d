"""How far a command is that does several things in turn: a bar for each on stderr, if that is a terminal."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SHOWN_AFTER_S = 1.0  # of work; what is over sooner needs no bar


@contextmanager
def working() -> Iterator[Callable[[str, int, int], None]]:
    """Takes what is being done, and how much of how much of it has been."""
    if not sys.stderr.isatty():
        yield lambda *_: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    began_s = time.monotonic()
    columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    tasks: dict[str, int] = {}

    def show(what: str, done: int, total: int) -> None:
        if not tasks and time.monotonic() - began_s < SHOWN_AFTER_S:
            return
        if not tasks:
            bar.start()
        if what not in tasks:
            tasks[what] = bar.add_task(what, total=total)
        bar.update(tasks[what], completed=done)  # type: ignore[arg-type]

    try:
        yield show
    finally:
        if tasks:
            bar.stop()
