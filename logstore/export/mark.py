"""By what an export knows its log again: a batch near the end of what was exported, and the hash of its bytes.

A backup that was put in the place of its store has the same UUID and gives LSNs once more that the store had given
before. Going on with it would put two histories into one export.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from xxhash import xxh64_hexdigest

from logstore.codec.files import SEGMENT_HEADER_BYTES
from logstore.core.extras import require
from logstore.export.manifest import ExportMismatch, Mark, Span
from logstore.inspect import Reader
from logstore.rows.records import read

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from logstore.holds import Hold
    from logstore.inspect import SegmentInfo

__all__ = ["check_mark", "find_mark"]

_TAIL_BYTES: Final = 2 << 20


def find_mark(source: Path, held: Hold | None, segments: Sequence[SegmentInfo], span: Span) -> Mark | None:
    """The last batch in this range that no open will leave out of the log; None if there is none.

    An open may leave out the last segment if it holds nothing but copies.
    """
    written = [one for one in segments if one.end_lsn > one.first_lsn + SEGMENT_HEADER_BYTES]
    for part in reversed(written):
        first, stop = max(part.first_lsn, span.start_lsn), min(part.end_lsn, span.stop_lsn)
        for start in (max(first, stop - _TAIL_BYTES), first):  # most often the end of the segment is enough
            lsn = _last_batch(source, held, start, stop, originals=part is written[-1]) if start < stop else None
            if lsn is not None:
                with Reader(source, from_lsn=lsn, hold=held) as reader:
                    batch = next(reader.batches(), None)
                return None if batch is None or batch.lsn != lsn else Mark(lsn, xxh64_hexdigest(batch.raw))
    return None


def _last_batch(source: Path, held: Hold | None, start_lsn: int, stop_lsn: int, *, originals: bool) -> int | None:
    """The last batch that begins in this range; with ``originals`` the last with a record that is no copy."""
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


def check_mark(source: Path, held: Hold | None, segments: Sequence[SegmentInfo], mark: Mark | None) -> None:
    """Raise :class:`~logstore.export.manifest.ExportMismatch` if the log has something else where the mark was."""
    if mark is None or not segments or segments[0].first_lsn > mark.lsn:
        return  # recycled: then it cannot be told
    with Reader(source, from_lsn=mark.lsn, hold=held) as reader:
        if reader.segments()[0].first_lsn > mark.lsn:
            return  # a writer came meanwhile
        batch = next(reader.batches(), None)
    if batch is None or batch.lsn != mark.lsn or xxh64_hexdigest(batch.raw) != mark.xxh64:
        raise ExportMismatch(
            f"the log of {source} is not the one that was exported: at LSN {mark.lsn} it says something else, as a "
            "backup does that was put in its place and went on; choose another target"
        )
