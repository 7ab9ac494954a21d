"""Progress of a command with several steps: a bar for each step on stderr, if that is a terminal."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SHOWN_AFTER_S = 1.0  # shorter work shows no bar


@contextmanager
def working() -> Iterator[Callable[[str, int, int], None]]:
    """Yields a function that takes the step's name, the amount done and the total amount."""
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
