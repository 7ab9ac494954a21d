"""The mark that ties an export to its log: the LSN and hash of a batch near the end of the exported part.

A restored backup has the same UUID as its store, and a writer reuses LSNs in it that the store had used before. If an
export continued with such a log, it would contain two histories. The mark detects that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from xxhash import xxh64_hexdigest

from logstore.codec.files import SEGMENT_HEADER_BYTES
from logstore.core.extras import require
from logstore.export.manifest import ExportMismatch, Mark, Span
from logstore.inspect import LogRecycled, Reader
from logstore.rows.records import read

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from logstore.holds import Hold
    from logstore.inspect import SegmentInfo

__all__ = ["check_mark", "find_mark"]

_TAIL_BYTES: Final = 2 << 20


def find_mark(source: Path, held: Hold | None, segments: Sequence[SegmentInfo], span: Span) -> Mark | None:
    """The last batch in this range that every later open keeps; None if there is none.

    An open may drop the last segment if it contains only copies.
    """
    written = [one for one in segments if one.end_lsn > one.first_lsn + SEGMENT_HEADER_BYTES]
    for part in reversed(written):
        first, stop = max(part.first_lsn, span.start_lsn), min(part.end_lsn, span.stop_lsn)
        for start in (max(first, stop - _TAIL_BYTES), first):  # usually the end of the segment is enough
            lsn = _last_batch(source, held, start, stop, originals=part is written[-1]) if start < stop else None
            if lsn is not None:
                with Reader(source, from_lsn=lsn, hold=held) as reader:
                    batch = next(reader.batches(), None)
                return None if batch is None or batch.lsn != lsn else Mark(lsn, xxh64_hexdigest(batch.raw))
    return None


def _last_batch(source: Path, held: Hold | None, start_lsn: int, stop_lsn: int, *, originals: bool) -> int | None:
    """The last batch that begins in this range; with ``originals`` the last one with a record that is not a copy."""
    compute = require("arrow", "pyarrow.compute")
    columns = ["batch_lsn", "stream", "relocated"]
    found: int | None = None
    with read(
        source, start_lsn=start_lsn, stop_lsn=stop_lsn, columns=columns, hold=held, queue_names={}, strings="plain"
    ) as rows:
        for batch in rows:
            wanted = compute.greater_equal(batch["batch_lsn"], start_lsn)
            if originals:
                copied = compute.or_(compute.equal(batch["stream"], "log"), batch["relocated"])
                wanted = compute.and_not(wanted, copied)
            places = compute.indices_nonzero(wanted)
            found = batch["batch_lsn"][places[-1].as_py()].as_py() if len(places) else found
    return found


def check_mark(
    source: Path, held: Hold | None, segments: Sequence[SegmentInfo], mark: Mark | None, *, end_lsn: int | None = None
) -> None:
    """Raises :class:`~logstore.export.manifest.ExportMismatch` if the log has another batch at the mark.

    ``end_lsn``: where a reader has found the end of the log, if there is no hold.
    """
    if mark is None or not segments or segments[0].first_lsn > mark.lsn:
        return  # the batch was recycled and cannot be compared
    keep_lsn = None if end_lsn is None else mark.lsn
    try:
        with Reader(source, from_lsn=mark.lsn, hold=held, keep_lsn=keep_lsn, end_lsn=end_lsn) as reader:
            if reader.segments()[0].first_lsn > mark.lsn:
                return  # a writer recycled it meanwhile
            batch = next(reader.batches(), None)
    except LogRecycled:
        return
    if batch is None or batch.lsn != mark.lsn or xxh64_hexdigest(batch.raw) != mark.xxh64:
        raise ExportMismatch(
            f"the log of {source} is not the one that was exported: it has another batch at LSN {mark.lsn}, for "
            "example because a backup was restored and used; choose another target"
        )
