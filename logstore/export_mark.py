"""By what an export knows its log again: a batch near the end of what was exported, and the hash of its bytes.

A backup that was put in the place of its store has the same UUID and gives LSNs once more that the store had given
before. Going on with it would put two histories into one export.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from xxhash import xxh64_hexdigest

from logstore.export_manifest import ExportMismatch, Mark, Span
from logstore.inspect import Reader
from logstore.records import RecordFlag, RecordType, Stream

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from logstore.holds import Hold
    from logstore.inspect import BatchBytes, SegmentInfo
    from logstore.records import Record

__all__ = ["check_mark", "find_mark"]

_BATCH_BYTES_MAX: Final = 2 << 20
_RELOCATIONS: Final = frozenset({RecordType.MESSAGE_RELOCATED, RecordType.TX_RELOCATED})


def find_mark(source: Path, held: Hold | None, segments: Sequence[SegmentInfo], span: Span) -> Mark | None:
    """The last batch in this range that no open will leave out of the log; None if there is none near its end.

    An open may leave out a last segment that holds nothing but copies.
    """
    parts = [one for one in segments if one.first_lsn < span.stop_lsn and one.end_lsn > span.start_lsn]
    if not parts:
        return None
    stop = min(parts[-1].end_lsn, span.stop_lsn)
    found: list[BatchBytes] = []
    with Reader(source, from_lsn=max(parts[-1].first_lsn, stop - _BATCH_BYTES_MAX), hold=held) as reader:
        for batch in reader.batches():
            if batch.end_lsn > stop:
                break
            found.append(batch)
        for batch in reversed(found):
            if any(map(_is_original, reader.decode(batch))):
                return Mark(batch.lsn, xxh64_hexdigest(batch.raw))
    return None


def _is_original(record: Record) -> bool:
    code = int(record.type)
    return (
        code >> 8 in (Stream.MESSAGE, Stream.TRANSACTION)
        and code not in _RELOCATIONS
        and RecordFlag.COPY not in record.flags
    )


def check_mark(source: Path, held: Hold | None, segments: Sequence[SegmentInfo], mark: Mark | None) -> None:
    """Raise :class:`~logstore.export_manifest.ExportMismatch` if the log has something else where the mark was."""
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
