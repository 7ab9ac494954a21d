"""Tables of text: each row on one line if the width allows it, otherwise with narrower gaps, then with cells folded
between words, and then within words, those of columns of numbers last.

A column of ``whole`` is never folded or cut, since its values are copied into other commands. If such a table does not
fit into the width, each row becomes a block of lines ``name: value``.

Invariant: no line is longer than the width, but for a line with a whole value that is longer by itself.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

GAPS = ("   ", "  ", " ")  # between columns; the widest with which the table fits
FOLDED_MIN = 8  # the least width that a column is folded to
WORD_MAX = 24  # a column is not folded to less than its longest word, unless that is longer


def printable(text: str) -> str:
    """The text with every unprintable character as an escape sequence."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def cells_of(text: str) -> int:
    """The number of columns that a printable text occupies on a terminal."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def table_lines(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    width: int,
    right: Sequence[str] = (),
    whole: Sequence[str] = (),
) -> list[str]:
    """The lines of a table, the header and a rule first; the columns named in ``right`` are right-aligned."""
    texts = [[printable(str(value)) for value in row] for row in rows]
    by_column = [[name, *(row[at] for row in texts)] for at, name in enumerate(columns)]
    widths = [max(map(cells_of, column)) for column in by_column]
    is_whole = [name in whole for name in columns]
    words = list(map(_longest_word, by_column))
    by_word = [size if kept else min(word, size) for word, size, kept in zip(words, widths, is_whole, strict=True)]
    least = [size if kept else min(FOLDED_MIN, size) for size, kept in zip(widths, is_whole, strict=True)]
    numbers = [size if name in right else low for name, size, low in zip(columns, widths, least, strict=True)]
    for floors, gap in (*product((widths, by_word), GAPS), (numbers, GAPS[-1]), (least, GAPS[-1])):
        fitted = _fitted(widths, floors, width - len(gap) * (len(columns) - 1))
        if fitted is not None:
            break
    else:
        return [line for row in texts for line in _block(columns, row, width, whole)]
    to_right = [name in right for name in columns]
    rule = "─" * (sum(fitted) + len(gap) * (len(columns) - 1))
    lines = [*_row(columns, fitted, to_right, gap), rule]
    for row in texts:
        lines += _row(row, fitted, to_right, gap)
    return lines


def _longest_word(column: Sequence[str]) -> int:
    """The width of a column's longest word, without those that are folded anyhow."""
    sizes = (cells_of(word) for cell in column for word in cell.split(" "))
    return max((size for size in sizes if size <= WORD_MAX), default=FOLDED_MIN)


def _fitted(widths: list[int], floors: list[int], room: int) -> list[int] | None:
    """The widths with the widest columns folded until all fit, none below its floor; None if they cannot be."""
    fitted = list(widths)
    while (excess := sum(fitted) - room) > 0:
        wide = [at for at, floor in enumerate(floors) if fitted[at] > floor]
        if not wide:
            return None
        most = max(fitted[at] for at in wide)
        widest = [at for at in wide if fitted[at] == most]
        following = max([fitted[at] for at in wide if fitted[at] < most], default=0)
        target = max(following, most - -(-excess // len(widest)))
        for at in widest:
            fitted[at] = max(target, floors[at])
    return fitted


def _row(cells: Sequence[str], widths: Sequence[int], to_right: Sequence[bool], gap: str) -> list[str]:
    folded = [folded_lines(cell, width) for cell, width in zip(cells, widths, strict=True)]
    lines = []
    for at in range(max(map(len, folded))):
        parts = []
        for lines_of_cell, width, right in zip(folded, widths, to_right, strict=True):
            text = lines_of_cell[at] if at < len(lines_of_cell) else ""
            space = " " * (width - cells_of(text))
            parts.append(space + text if right else text + space)
        lines.append(gap.join(parts).rstrip())
    return lines


def _block(columns: Sequence[str], row: Sequence[str], width: int, whole: Sequence[str]) -> list[str]:
    lines = []
    for name, text in zip(columns, row, strict=True):
        head = f"{name}: "
        pieces = [text] if name in whole else folded_lines(text, max(width - len(head), FOLDED_MIN))
        lines += [f"{head if at == 0 else ' ' * len(head)}{piece}" for at, piece in enumerate(pieces)]
    return [*lines, ""]


def folded_lines(text: str, width: int) -> list[str]:
    """The text in lines of at most ``width`` columns, broken between words, or within a word that is longer."""
    if cells_of(text) <= width:
        return [text]
    lines, line, used = [], "", 0
    for word in text.split(" "):
        size = cells_of(word)
        if line and used + 1 + size <= width:
            line, used = f"{line} {word}", used + 1 + size
            continue
        if line:
            lines.append(line)
        line, used = "", 0
        for char in word if size > width else ():
            cell = cells_of(char)
            if used + cell > width and line:
                lines.append(line)
                line, used = "", 0
            line, used = line + char, used + cell
        if size <= width:
            line, used = word, size
    return [*lines, line] if line or not lines else lines
