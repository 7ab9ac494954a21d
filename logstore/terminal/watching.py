"""Draws something repeatedly in place, or prints it repeatedly where the output is no terminal."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, NoReturn

from logstore.terminal.stopping import rest

if TYPE_CHECKING:
    from collections.abc import Callable


def watch(
    show: Callable[[], None], lines: Callable[[int, int], list[str]], every_s: float, *, as_json: bool = False
) -> None:
    """Repeats until Ctrl-C: draws the ``lines`` for a width and a height on a terminal, or else calls ``show``."""
    with contextlib.suppress(KeyboardInterrupt):
        if as_json or not sys.stdout.isatty():
            while True:
                show()
                sys.stdout.flush()
                rest(every_s)
        _redraw(lines, every_s)


def _redraw(lines: Callable[[int, int], list[str]], every_s: float) -> NoReturn:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(highlight=False, emoji=False)
    with Live(console=console, auto_refresh=False, screen=False) as live:
        while True:
            live.update(Text.from_ansi("\n".join(lines(console.width, console.height - 1))), refresh=True)
            rest(every_s)
