"""The plan of an export: the range of the log and its pieces. Nothing is written here.

A unit is a range that is written into its own files; a chunk is a group of units that is committed together. Both end
at the end of a segment. They depend only on the end of the last export and the following segments, so a run after an
interruption makes the same pieces.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from logstore.codec.files import SEGMENT_HEADER_BYTES
from logstore.core import arguments
from logstore.core.counts import counted
from logstore.errors import OptionError
from logstore.export.manifest import (
    ExportGap,
    ExportIncomplete,
    ExportMismatch,
    ExportOptions,
    FileInfo,
    Manifest,
    Missing,
    Span,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from logstore.inspect import Reader, ReaderInfo, SegmentInfo

__all__ = ["CHUNK_BYTES", "FILE_BYTES", "ExportPlan", "checked_options", "chunks", "plan", "plan_run"]

FILE_BYTES: Final = 128 << 20
"""Bytes of the log for one file, unless the day or the number of rows ends the file before."""

CHUNK_BYTES: Final = 1 << 30
"""Bytes of the log after which the work so far is committed."""


@dataclass(frozen=True, slots=True)
class ExportPlan:
    """The plan of one run of an export."""

    start_lsn: int
    stop_lsn: int
    units: tuple[Span, ...]
    log_bytes: int
    """Bytes of the log between the two LSNs."""
    gap: Span | None
    """The range that the store has recycled since the last run without an export; None if there is none."""
    options: ExportOptions
    missing_before: Missing | None
    """What the log no longer held at the first run to this target; None if it was whole then."""
    expired: tuple[FileInfo, ...] = ()
    """The files of earlier runs that retention would drop."""


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
    """The units in groups that are committed together."""
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
    """The bytes of the log between two LSNs, without the gaps between epochs."""
    return sum(_overlap(one, start_lsn, stop_lsn) for one in segments)


def _overlap(segment: SegmentInfo, start_lsn: int, stop_lsn: int) -> int:
    """The bytes of records: a segment that has only its header contains nothing to export."""
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
    require_complete: bool = False,
) -> ExportPlan:
    """The plan of a run that reads the log with this reader and continues this manifest, up to ``stop_lsn``.

    Raises ``OptionError``, :class:`~logstore.export.manifest.ExportMismatch` for another store's export,
    ``ExportGap`` unless gaps are allowed, and ``ExportIncomplete`` if a complete export is required and cannot be had.
    """
    if allow_gap and require_complete:
        raise OptionError("allow_gap and require_complete contradict each other: give one of the two")
    info, segments = reader.info, reader.segments()
    options = checked_options(manifest, body, compression)
    # The next open may drop a segment that a writer has begun but not written to; then the log ends before it.
    end = reader.last_lsn()
    stop = end if stop_lsn is None else min(stop_lsn, end)
    first = segments[0].first_lsn if segments else info.base_lsn
    gap = None
    missing = missing_before(reader) if manifest is None else manifest.missing_before
    if manifest is None:
        if missing is not None and require_complete:
            raise ExportIncomplete(
                f"{reader.path} has recycled {missing}, so this export would not be complete. To export the rest, run "
                "it once without --require-complete"
            )
        start = first if start_lsn is None else start_lsn
        if not first <= start <= max(stop, first):
            raise OptionError(f"start_lsn is {start}, but the log of {reader.path} reaches from {first} to {stop}")
    else:
        _check_same(reader.path, info, end, manifest, start_lsn)
        start = manifest.last_lsn
        gap = _gap(reader, segments, manifest)
        if gap is not None and not allow_gap:
            raise ExportGap(
                f"{reader.path} has recycled records that were not exported yet: LSN {gap.start_lsn} to "
                f"{gap.stop_lsn} are lost. To continue after them, use --allow-gap, which notes the gap in "
                "the manifest; export more often, or with --every, which holds the log meanwhile",
                gap.start_lsn,
                gap.stop_lsn,
            )
        start = start if gap is None else gap.stop_lsn
    units = plan(segments, start, stop, file_bytes)
    return ExportPlan(start, max(start, stop), tuple(units), log_bytes(segments, start, stop), gap, options, missing)


def checked_options(manifest: Manifest | None, body: int | None, compression: str | None) -> ExportOptions:
    """The options common to all files. Raises ``OptionError`` for invalid ones, or if they differ from before."""
    arguments.optional(arguments.integer, "body", body, 1, 1 << 30)
    arguments.optional(arguments.text, "compression", compression)
    given = ExportOptions() if manifest is None else manifest.options
    if manifest is not None and body is not None and body != given.body:
        how = "without bodies" if given.body is None else f"with bodies of {counted(given.body, 'byte')}"
        raise OptionError(f"this target was made {how}, but body is {body}: use the same value, or a new target")
    try:
        return ExportOptions(given.body if body is None else body, (compression or given.compression).lower())
    except ValueError as error:
        raise OptionError(str(error)) from None


def _check_same(store_dir: Path, info: ReaderInfo, end_lsn: int, manifest: Manifest, start_lsn: int | None) -> None:
    if info.uuid != manifest.store:
        raise ExportMismatch(
            f"the target holds the export of store {manifest.store}, but {store_dir} is store {info.uuid}: "
            "choose another target"
        )
    if start_lsn is not None and start_lsn != manifest.first_lsn:
        raise OptionError(
            f"start_lsn is {start_lsn}, but the target begins at {manifest.first_lsn}: an export continues where it "
            "ended, so leave start_lsn out, or choose another target"
        )
    # After the mark there are only copies, which an open may have dropped from the log.
    if manifest.mark is not None and end_lsn <= manifest.mark.lsn:
        raise ExportMismatch(
            f"the log of {store_dir} ends at LSN {end_lsn}, but a record after LSN {manifest.mark.lsn} was exported: "
            "this is an older copy of the store; choose another target"
        )


def _gap(reader: Reader, segments: Sequence[SegmentInfo], manifest: Manifest) -> Span | None:
    """The recycled range between the last export and the first remaining segment; None if there is none."""
    if not segments or segments[0].first_lsn <= manifest.last_lsn:
        return None
    before = reader.header(segments[0]).prev_end_lsn
    return Span(manifest.last_lsn, segments[0].first_lsn) if before > manifest.last_lsn else None


def missing_before(reader: Reader) -> Missing | None:
    """What the writer has recycled before the beginning of this log; None if nothing was logged before it."""
    oldest = reader.oldest()
    return None if oldest is None or oldest.from_beginning else Missing(oldest.lsn, oldest.time_us)
