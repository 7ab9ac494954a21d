"""How a report names queues: the whole name, told apart from an earlier queue of the same name, and a short form of it.

:func:`short` is the only place that cuts a name. Where it is used, the whole name is in a tooltip and in a table.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["labels", "nameless", "plain", "short"]

SHORT: Final = 60  # columns, in texts


def labels(names: Mapping[int, str]) -> dict[int, str]:
    """The label of each queue by id: its name, and its id if several queues had this name, one after the other."""
    uses = Counter(names.values())
    return {one: f"{name} (#{one})" if uses[name] > 1 else name for one, name in names.items()}


def nameless(queue_id: int | None) -> str:
    """The label of a queue without a name; None stands for messages that were never on a queue."""
    return "(no queue)" if queue_id is None else f"queue {queue_id} (deleted)"


def plain(text: str) -> str:
    """The text without characters that XML forbids or that no one can see."""
    joiners = "\u200c\u200d"  # scripts and emoji need them
    return "".join(char if char.isprintable() or char in joiners else "\ufffd" for char in text)


def short(text: str, columns: int = SHORT) -> str:
    """The text in at most this many columns, cut in the middle, where names of one kind differ least.

    As on a terminal, Chinese, Japanese and Korean characters and emoji take two columns, combining characters none.
    """
    from rich.cells import cell_len

    text = plain(text)
    widths = list(map(cell_len, text))
    if sum(widths) <= columns:
        return text
    room = columns - 1
    tail, end = len(text), 0
    while tail > 0 and end + widths[tail - 1] <= room // 3:
        tail -= 1
        end += widths[tail]
    while tail < len(text) and widths[tail] == 0:  # a combining character goes with the one that it changes
        tail += 1
    head, begin = 0, 0
    while head < tail and begin + widths[head] <= room - end:
        begin += widths[head]
        head += 1
    return f"{text[:head]}…{text[tail:]}"
