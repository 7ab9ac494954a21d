"""An append whose batches are too long for one message is sent as several, in order.

The engine counts entries, not bytes: it gives a member that lags up to 64 batches in a frame, and a batch may have a
MiB. Each part is an append as well, which follows the last batch of the part before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from logstore.cluster.engine import Frame
    from logstore.cluster.frames import Carried

PART_BYTES: Final = 4 << 20
"""A part ends with the batch that reaches this; a message has room for four of these."""


def parts(frame: Frame, carried: list[Carried]) -> Iterator[tuple[Frame, list[Carried]]]:
    """The frame and its batches, or several with a few of them each."""
    begin = size = 0
    for at, one in enumerate(carried, start=1):
        size += len(one.batch.data)
        if size >= PART_BYTES and at < len(carried):
            yield _part(frame, carried, begin, at), carried[begin:at]
            begin, size = at, 0
    yield _part(frame, carried, begin, len(carried)), carried[begin:]


def _part(frame: Frame, carried: list[Carried], begin: int, end: int) -> Frame:
    if begin == 0:
        return frame._replace(entry_count=end)
    before = carried[begin - 1].batch
    return frame._replace(log_index=before.index, index_term=before.term, entry_count=end - begin)
