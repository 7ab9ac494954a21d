"""What an export would do: from where to where, in which pieces. Nothing is made here.

A unit is what is written into files of its own, a chunk what is made to count at once. Both end where a segment does,
and depend on nothing but where the export stands and the segments that follow, so that a run that was interrupted goes
on in the same pieces.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from logstore.codec.files import SEGMENT_HEADER_BYTES, SegmentHeader
from logstore.codec.records import InvalidRecord
from logstore.core import arguments
from logstore.core.regular_files import read_start
from logstore.errors import CorruptLog, OptionError
from logstore.export.manifest import ExportError, ExportGap, ExportMismatch, ExportOptions, Manifest, Span
from logstore.inspect import LogRecycled, ReaderInfo, SegmentInfo

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from logstore.inspect import Reader

__all__ = ["CHUNK_BYTES", "FILE_BYTES", "ExportPlan", "checked_options", "chunks", "plan", "plan_run"]

FILE_BYTES: Final = 128 << 20
"""Of the log, that go into one file if a day and the number of rows allow."""

CHUNK_BYTES: Final = 1 << 30
"""Of the log, after which what was done so far is made to count."""


@dataclass(frozen=True, slots=True)
class ExportPlan:
    """What one run of an export would do."""

    start_lsn: int
    stop_lsn: int
    units: tuple[Span, ...]
    log_bytes: int
    """That lie between them."""
    gap: Span | None
    """What the store has let go of since the last run."""
    options: ExportOptions


def plan(segments: Sequence[SegmentInfo], start_lsn: int, stop_lsn: int, file_bytes: int = FILE_BYTES) -> list[Span]:
    """The units of this range of the log: whole segments, together about ``file_bytes`` each."""
    units: list[Span] = []
    begun, size = start_lsn, 0
    parts = [one for one in segments if _overlap(one, start_lsn, stop_lsn)]
    for i, segment in enumerate(parts):
        size += _overlap(segment, start_lsn, stop_lsn)
        last = i + 1 == len(parts)
        if last or size >= file_bytes:
            stop = stop_lsn if last else parts[i + 1].first_lsn
            units.append(Span(begun, stop))
            begun, size = stop, 0
    return units


def chunks(units: Sequence[Span], segments: Sequence[SegmentInfo], chunk_bytes: int = CHUNK_BYTES) -> list[list[Span]]:
    """The units in groups that are made to count at once."""
    made: list[list[Span]] = [[]]
    size = 0
    for unit in units:
        if size >= chunk_bytes:
            made.append([])
            size = 0
        made[-1].append(unit)
        size += log_bytes(segments, unit.start_lsn, unit.stop_lsn)
    return [group for group in made if group]


def log_bytes(segments: Sequence[SegmentInfo], start_lsn: int, stop_lsn: int) -> int:
    """How much of the log lies between two LSNs, without the gaps between epochs."""
    return sum(_overlap(one, start_lsn, stop_lsn) for one in segments)


def _overlap(segment: SegmentInfo, start_lsn: int, stop_lsn: int) -> int:
    """Of records: a segment that has no more than its header yet holds nothing to export."""
    first = segment.first_lsn + SEGMENT_HEADER_BYTES
    return max(0, min(segment.end_lsn, stop_lsn) - max(first, start_lsn))


def plan_run(
    reader: Reader,
    manifest: Manifest | None,
    *,
    start_lsn: int | None = None,
    stop_lsn: int | None = None,
    body: int | None = None,
    compression: str | None = None,
    file_bytes: int = FILE_BYTES,
    allow_gap: bool = False,
) -> ExportPlan:
    """What a run would do that reads the log through this reader, and goes on from this manifest; up to ``stop_lsn``.

    Raises ``OptionError``, :class:`~logstore.export.manifest.ExportMismatch` for another store's export,
    ``ExportGap`` unless it is allowed.
    """
    info, segments = reader.info, reader.segments()
    options = checked_options(manifest, body, compression)
    # What a writer has begun and not written to may be left out by the next open, and the log then ends before it.
    end = reader.last_lsn()
    stop = end if stop_lsn is None else min(stop_lsn, end)
    first = segments[0].first_lsn if segments else info.base_lsn
    gap = None
    if manifest is None:
        start = first if start_lsn is None else start_lsn
        if not first <= start <= max(stop, first):
            raise OptionError(f"start_lsn is {start}, and the log of {reader.path} reaches from {first} to {stop}")
    else:
        _check_same(reader.path, info, end, manifest, start_lsn)
        start = manifest.last_lsn
        gap = _gap(reader.path, segments, manifest)
        if gap is not None and not allow_gap:
            raise ExportGap(
                f"{reader.path} has let go of records that were not exported yet: LSN {gap.start_lsn} to "
                f"{gap.stop_lsn} are lost. Go on behind them with --allow-gap (allow_gap=True), which notes it in the "
                "manifest; export more often, or with --every, which holds the log meanwhile",
                gap.start_lsn,
                gap.stop_lsn,
            )
        start = start if gap is None else gap.stop_lsn
    units = plan(segments, start, stop, file_bytes)
    return ExportPlan(start, max(start, stop), tuple(units), log_bytes(segments, start, stop), gap, options)


def checked_options(manifest: Manifest | None, body: int | None, compression: str | None) -> ExportOptions:
    """What all files have in common. Raises ``OptionError`` for what cannot be, or differs from before."""
    arguments.optional(arguments.integer, "body", body, 1, 1 << 30)
    arguments.optional(arguments.text, "compression", compression)
    given = ExportOptions() if manifest is None else manifest.options
    if manifest is not None and body is not None and body != given.body:
        told = "without bodies" if given.body is None else f"with bodies of {given.body} bytes"
        raise OptionError(f"this target was made {told}, and body is {body}: leave it as it was, or take a new target")
    try:
        return ExportOptions(given.body if body is None else body, (compression or given.compression).lower())
    except ValueError as error:
        raise OptionError(str(error)) from None


def _check_same(store_dir: Path, info: ReaderInfo, end_lsn: int, manifest: Manifest, start_lsn: int | None) -> None:
    if info.uuid != manifest.store:
        raise ExportMismatch(
            f"the target holds the export of store {manifest.store}, and {store_dir} is store {info.uuid}: "
            "choose another target"
        )
    if start_lsn is not None and start_lsn != manifest.first_lsn:
        raise OptionError(
            f"start_lsn is {start_lsn}, and the target was begun at {manifest.first_lsn}: an export goes on where it "
            "ended, so leave start_lsn away, or choose another target"
        )
    # Beyond the mark there are only copies: an open may have left these out of the log.
    if manifest.mark is not None and end_lsn <= manifest.mark.lsn:
        raise ExportMismatch(
            f"the log of {store_dir} ends at LSN {end_lsn}, and a record beyond LSN {manifest.mark.lsn} was exported: "
            "this is an older copy of the store; choose another target"
        )


def _gap(store_dir: Path, segments: Sequence[SegmentInfo], manifest: Manifest) -> Span | None:
    """What lay between the last export and the first segment that is still there; nothing may have."""
    if not segments or segments[0].first_lsn <= manifest.last_lsn:
        return None
    first = segments[0]
    before = _previous_end(store_dir / first.name, first)
    return Span(manifest.last_lsn, first.first_lsn) if before > manifest.last_lsn else None


def _previous_end(path: Path, segment: SegmentInfo) -> int:
    """Where the log before this segment ends, as its header says."""
    try:
        header = SegmentHeader.decode(read_start(path, SEGMENT_HEADER_BYTES)[0])
    except FileNotFoundError:
        raise LogRecycled(f"the writer of {path.parent} reused {path.name} meanwhile: run this again") from None
    except InvalidRecord as error:
        raise CorruptLog(error.reason, segment=path.name, offset=0, lsn=segment.first_lsn) from None
    except OSError as error:
        raise ExportError(f"{path} cannot be read: {error.strerror}") from error
    if header.first_lsn != segment.first_lsn:
        raise LogRecycled(f"the writer of {path.parent} reused {path.name} meanwhile: run this again")
    return header.prev_end_lsn
