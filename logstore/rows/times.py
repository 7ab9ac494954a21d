"""Finds the place in a log by a time.

A segment's header has the time at which the segment began. So the search reads the headers, and the batches of one
segment.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from logstore.core import arguments
from logstore.errors import CorruptLog
from logstore.inspect import Reader
from logstore.rows.records import Where, read

if TYPE_CHECKING:
    import os

    from logstore.inspect import SegmentInfo

__all__ = ["lsn_at"]


def lsn_at(
    store_dir: str | os.PathLike[str],
    time: datetime,
    *,
    start_lsn: int = 0,
    keep_lsn: int | None = None,
    end_lsn: int | None = None,
    permissive: bool = False,
) -> int:
    """The LSN where the log reached this time: of the first batch at or after ``time``; the log's end if there is none.

    ``time`` has a zone. The log is searched from ``start_lsn``. ``keep_lsn``, ``end_lsn`` and ``permissive`` are those
    of :func:`logstore.arrow.read`. Only the headers of the segments and the batches of one segment are read: the last
    segment that no segment follows which began before ``time``. So after a clock was set back, it is the first place
    that has the time, and batches behind it may have earlier times.

    Raises ``OptionError`` and the errors of reading: ``LogRecycled``, ``CorruptLog``.
    """
    moment = arguments.moment("time", time)
    start_lsn = arguments.integer("start_lsn", start_lsn, 0, arguments.LSN_MAX)
    with Reader(store_dir, keep_lsn=keep_lsn, end_lsn=end_lsn, permissive=permissive) as reader:
        segments = [one for one in reader.segments() if one.end_lsn > start_lsn]
        last_lsn = reader.last_lsn()
        at, following = 0, len(segments)
        for number, segment in enumerate(segments[1:], 1):
            began = _began(reader, segment, permissive=permissive)
            if began is not None and began >= moment:
                following = number
                break
            at = number
    if not segments:
        return max(start_lsn, last_lsn)
    with read(
        store_dir,
        start_lsn=max(start_lsn, segments[at].first_lsn),
        stop_lsn=segments[at].end_lsn,
        columns=["lsn"],
        where=Where(start_time=moment),
        keep_lsn=keep_lsn,
        end_lsn=end_lsn,
        queue_names={},
        batch_rows=1,
        permissive=permissive,
    ) as found:
        for batch in found:
            if batch.num_rows:
                return int(batch.column(0)[0].as_py())
    return max(start_lsn, segments[following].first_lsn if following < len(segments) else last_lsn)


def _began(reader: Reader, segment: SegmentInfo, *, permissive: bool) -> datetime | None:
    """When a segment began; None if its header is damaged and the reader is permissive."""
    try:
        created_us = reader.header(segment).created_us
    except CorruptLog:
        if permissive:
            return None
        raise
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=created_us)
