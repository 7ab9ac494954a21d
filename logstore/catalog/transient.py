"""Ids of transient queues. These have no row in the catalog, and end with the open that declared them.

One commit of the catalog gives a store a block of ids, and the configuration notes the block. So a queue of a block
needs no commit of its own, and a reader of the log can tell a transient queue from a deleted one, although the catalog
lacks both. Ids are never reused, so a note stays true for ever.
"""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

__all__ = ["BLOCKS_MAX", "BLOCKS_KEY", "TransientIds"]

BLOCKS_KEY: Final = "logstore.transient_queue_ids"
BLOCKS_MAX: Final = 1000
"""Of the note. The oldest are left out beyond that: such a queue reads as a deleted one."""


class TransientIds:
    """Ranges of queue ids, ascending, not adjacent; immutable."""

    def __init__(self, ranges: Iterable[range] = ()) -> None:
        self._ranges = tuple(ranges)

    @classmethod
    def of(cls, config: Mapping[str, str]) -> Self:
        """The note in a catalog's configuration. A note that cannot be read names no id."""
        return cls.parsed(config.get(BLOCKS_KEY, ""))

    @classmethod
    def parsed(cls, text: str) -> Self:
        """The inverse of ``str``. A text that is not one of these gives no range."""
        made: list[range] = []
        for word in text.split():
            first, dash, last = word.partition("-")
            if not (dash and first.isascii() and first.isdigit() and last.isascii() and last.isdigit()):
                return cls()
            one = range(int(first), int(last) + 1)
            if not one or one.start < 1 or (made and one.start <= made[-1].stop):
                return cls()
            made.append(one)
        return cls(made)

    def __str__(self) -> str:
        return " ".join(f"{one.start}-{one.stop - 1}" for one in self._ranges)

    def __contains__(self, queue_id: object) -> bool:
        if not isinstance(queue_id, int):
            return False
        at = bisect.bisect_right(self._ranges, queue_id, key=lambda one: one.start)
        return at > 0 and queue_id in self._ranges[at - 1]

    def __iter__(self) -> Iterator[range]:
        return iter(self._ranges)

    @property
    def end(self) -> int:
        """The first id above all ranges; 0 without any."""
        return self._ranges[-1].stop if self._ranges else 0

    def with_block(self, block: range) -> Self:
        """Also these ids, which are above all others. Keeps the newest ``BLOCKS_MAX`` ranges."""
        last = self._ranges[-1] if self._ranges else range(0)
        if last and last.stop == block.start:
            return type(self)((*self._ranges[:-1], range(last.start, block.stop)))
        return type(self)((*self._ranges, block)[-BLOCKS_MAX:])
