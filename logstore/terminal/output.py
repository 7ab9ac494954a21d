"""The output of the commands: tables for people, JSON for programs, one line for an error.

Texts from a store may contain anything, so control characters are escaped before a text is printed.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import click

from logstore.core.counts import counted
from logstore.core.moments import TIME_US_LIMIT, moment
from logstore.terminal.tables import FOLDED_MIN, cells_of, folded_lines, printable, table_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

INTERRUPTED = 128 + signal.SIGINT  # the exit status after Ctrl-C, as shells count
LONG_BYTES = 8 << 20  # work of at least this size (about a second) shows a progress bar
_STYLES = re.compile(r"\x1b\[[0-9;]*m")
JSON_STRINGS: Final = "logstore.json_strings"  # in the command's context: --json-strings was given
WIDE = 10_000  # columns if the output is not a terminal, so that nothing is folded or cut


class Failure(Exception):
    """Ends the command with this line and this exit status."""

    def __init__(self, message: str, status: int = 1) -> None:
        super().__init__(message)
        self.status = status


def one_line(text: str) -> str:
    """The text as one line of printable characters."""
    return printable(" ".join(text.split()))


def print_json(document: Any) -> None:
    """Prints a JSON document on one line; with ``--json-strings`` its integers are strings."""
    context = click.get_current_context(silent=True)
    if context is not None and context.meta.get(JSON_STRINGS):
        document = _with_strings(document)
    sys.stdout.write(json.dumps(document) + "\n")


def _with_strings(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_strings(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_with_strings(one) for one in value]
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    right: Sequence[str] = (),
    whole: Sequence[str] = (),
) -> None:
    """Prints a table; ``right`` names the right-aligned columns, ``whole`` those that are never folded."""
    print_lines(shown_table(columns, rows, right=right, whole=whole))


def shown_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    right: Sequence[str] = (),
    whole: Sequence[str] = (),
) -> list[str]:
    """The lines of a table as wide as the output; on a terminal its header is bold."""
    lines = table_lines(columns, rows, width=output_width(), right=right, whole=whole)
    header = next((at for at, line in enumerate(lines) if line.startswith("─")), 0) if sys.stdout.isatty() else 0
    lines[:header] = [f"\x1b[1m{line}\x1b[0m" for line in lines[:header]]
    return lines


def print_lines(lines: Iterable[str]) -> None:
    """Prints each line."""
    sys.stdout.write("".join(f"{line}\n" for line in lines))


def lines_that_fit(lines: Sequence[str], width: int, height: int) -> list[str]:
    """The first lines that fit on a terminal; the last one says how many are left out."""
    taken = [max(-(-cells_of(_STYLES.sub("", line)) // width), 1) for line in lines]
    if sum(taken) <= height:
        return list(lines)
    shown = 0
    while sum(taken[: shown + 1]) < height:
        shown += 1
    return [*lines[:shown], f"… and {len(lines) - shown} more lines"]


def output_width() -> int:
    """The columns of the terminal, or ``WIDE`` if the output is not one."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDE


def print_facts(facts: Iterable[tuple[str, object]]) -> None:
    """Prints names and values, one pair per line."""
    print_lines(facts_lines(facts, output_width()))


def facts_lines(facts: Iterable[tuple[str, object]], width: int) -> list[str]:
    """The lines of names and values; a value that is too long for the width continues below itself.

    A name that takes more than half of the width stands on a line of its own.
    """
    texts = [(name, printable(str(value))) for name, value in facts]
    at = max((size for name, _ in texts if (size := cells_of(name)) <= width // 2), default=0) + 2
    lines = []
    for name, text in texts:
        pieces = folded_lines(text, max(width - at, FOLDED_MIN))
        room = at - cells_of(name)
        if room > 0:
            lines.append((name + " " * room + pieces.pop(0)).rstrip())
        else:
            lines.append(name)
        lines += [" " * at + piece for piece in pieces]
    return lines


_FACT_NAMES = {"clean": "closed cleanly", "direct": "direct I/O", "compared": "records compared"}


def fact_name(key: str) -> str:
    """The name of a fact for people, from its key in JSON."""
    if key in _FACT_NAMES:
        return _FACT_NAMES[key]
    return " ".join(word.upper() if word in ("lsn", "uuid") else word for word in key.split("_"))


def fact_value(value: object) -> object:
    """The value of a fact for people: yes or no for a truth value."""
    return ("yes" if value else "no") if isinstance(value, bool) else value


def note_lines(text: str | None, width: int) -> list[str]:
    """The lines of a note; none if there is nothing to say."""
    return [] if text is None else folded_lines(f"note: {printable(text)}", width)


def size_text(size: int) -> str:
    """A size for people: exact in bytes, and rounded in a larger unit."""
    return counted(size, "byte") if size < 1024 else f"{size} bytes ({rounded_size(size)})"


def rounded_size(size: int) -> str:
    """A size for people, rounded in the largest unit that fits."""
    amount, unit = float(size), ""
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB"):
        if amount < 1024 or unit == "TiB":
            break
        amount /= 1024
    return f"{amount:.4g} {unit}"


def range_text(extent: dict[str, int | None], unknown: str = "unknown") -> str:
    """A number that may not be known exactly, for people: ``4``, ``from 1 to 7``, ``at least 2``, or ``unknown``."""
    least, most = extent["least"], extent["most"]
    if most is None:
        return f"at least {least}" if least else unknown
    return str(most) if least == most else f"from {least} to {most}"


def iso_time(time_us: int) -> str | None:
    """A time in µs since 1970 as ISO 8601 in UTC with milliseconds; None for a number that is no time."""
    if not 0 < time_us < TIME_US_LIMIT:
        return None
    return moment(time_us).isoformat(timespec="milliseconds")


def age_text(seconds: float) -> str:
    """A time span for people, in its two largest units."""
    left = int(max(seconds, 0))
    parts: list[str] = []
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1)):
        amount, left = divmod(left, size)
        if amount or parts or unit == "s":
            parts.append(f"{amount} {unit}")
    return " ".join(parts[:2])


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar on stderr, if that is a terminal and there is much work. Yields a function of the bytes done."""
    if total < LONG_BYTES or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.update(task, completed=done)
