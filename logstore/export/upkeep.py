"""What a run does with the files of earlier runs: retention by age, and compaction of small files.

Retention drops a file of records or messages when its UTC day ended longer ago than ``keep``. The manifest then names
the range that it had, so a reader does not take the missing rows for damage. The open set and the place where the next
run continues do not change.

Compaction takes the files of a day together in log order as long as they have at most :data:`MERGE_BYTES` and
:data:`FILE_ROWS` rows, and merges a group of :data:`MERGE_FILES` or more into one file. So a day has fewer than
:data:`MERGE_FILES` files for each :data:`MERGE_BYTES` that are begun, however often a run is made. A group has no gap
and nothing dropped inside. The rows keep their order; the same files give the same bytes.

Invariant: each step is one commit of target.py. A row is in one file of each manifest.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from xxhash import xxh64_hexdigest

from logstore.core import arguments
from logstore.core.extras import require
from logstore.errors import OptionError
from logstore.export.files import FILE_ROWS, FileRows, Job
from logstore.export.manifest import ExportDamaged, FileInfo, Manifest, Span
from logstore.export.older_files import batches_of, of_this_version
from logstore.rows.schema import message_schema, schema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    import pyarrow as pa

    from logstore.export.places import Place
    from logstore.export.target import Target

__all__ = [
    "NOTHING_DONE",
    "MERGE_BYTES",
    "MERGE_FILES",
    "Upkeep",
    "checked_keep",
    "drop_expired",
    "expired",
    "keep_up",
    "merges",
]

MERGE_BYTES: Final = 128 << 20
"""The most bytes of files that become one file."""

MERGE_FILES: Final = 16
"""The least number of files that are merged: a row is rewritten at most once for each 15 new files."""

GROUPS: Final = 8
"""Groups merged in one commit. A commit needs room for 1 GiB at most until the merged files are removed."""

_KEYS: Final = {"records": ("lsn", "time"), "messages": ("end_lsn", "end_time")}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Upkeep:
    """Counts of the files of earlier runs that were dropped or merged."""

    dropped_files: int = 0
    dropped_rows: int = 0
    merged_files: int = 0
    """Files whose rows were put into larger ones."""

    def __add__(self, other: Upkeep) -> Upkeep:
        return Upkeep(
            self.dropped_files + other.dropped_files,
            self.dropped_rows + other.dropped_rows,
            self.merged_files + other.merged_files,
        )


NOTHING_DONE: Final = Upkeep()


def checked_keep(keep: timedelta | None) -> timedelta | None:
    """The age after which files are dropped. Raises ``OptionError`` unless it is above 0, or None."""
    if keep is not None and arguments.instance("keep", keep, timedelta) <= timedelta(0):
        raise OptionError(f"keep is {keep}, but rows are kept for a time above 0; leave keep out to keep all")
    return keep


# ---- Retention


def expired(manifest: Manifest | None, keep: timedelta | None) -> tuple[FileInfo, ...]:
    """The files of days that ended longer ago than this, in log order; none if ``keep`` is None."""
    now = _now()
    if manifest is None or keep is None or keep > now - _EPOCH:
        return ()
    first_day = (now - keep).date().isoformat()
    return tuple(file for file in manifest.files if file.day < first_day)


def drop_expired(place: Target, keep: timedelta | None) -> Upkeep:
    """Drops the files that :func:`expired` gives, in one commit. Raises ``ExportError``."""
    gone = expired(place.manifest, keep)
    if place.manifest is None or not gone:
        return NOTHING_DONE
    place.begin()
    place.commit(place.manifest.without(gone), [])
    return Upkeep(len(gone), sum(file.rows for file in gone))


def _now() -> datetime:
    return datetime.fromtimestamp(time.time(), UTC)


# ---- Compaction


def merges(manifest: Manifest) -> list[list[FileInfo]]:
    """The groups of files that are to be merged, in log order within a dataset."""
    return [
        group
        for dataset in _KEYS
        for group in _groups(manifest.of(dataset), _holes(manifest, dataset))
        if len(group) >= MERGE_FILES
    ]


def _groups(files: Sequence[FileInfo], holes: Sequence[int]) -> Iterator[list[FileInfo]]:
    group: list[FileInfo] = []
    for file in files:
        if group and not (
            group[-1].day == file.day
            and sum(each.bytes for each in group) + file.bytes <= MERGE_BYTES
            and sum(each.rows for each in group) + file.rows <= FILE_ROWS
            and not any(group[-1].stop_lsn <= hole <= file.start_lsn for hole in holes)
        ):
            yield group
            group = []
        group.append(file)
    yield group


def _holes(manifest: Manifest, dataset: str) -> list[int]:
    """Where ranges begin that have no rows because they were lost or dropped."""
    dropped = [one.start_lsn for one in manifest.dropped if one.dataset == dataset]
    return sorted(dropped + [gap.start_lsn for gap in manifest.gaps])


def keep_up(place: Target, keep: timedelta | None, store_dir: Path, renew: Callable[[], None] = lambda: None) -> Upkeep:
    """Drops what is too old, then merges small files. ``renew`` is called between commits, and during long ones.

    Raises ``ExportDamaged`` if a file to be merged is not the manifest's, and ``ExportError``.
    """
    place.renew = renew
    done = drop_expired(place, keep)
    merged = 0
    while place.manifest is not None and (groups := merges(place.manifest)[:GROUPS]):
        renew()
        with place.place.explained():
            staging = place.begin()
            made = {_merged(place.place, place.manifest, group, staging, store_dir): group for group in groups}
        place.commit(place.manifest.with_merged(made), list(made))
        merged += sum(len(group) for group in groups)
    return Upkeep(done.dropped_files, done.dropped_rows, merged)


def _merged(target: Place, manifest: Manifest, group: Sequence[FileInfo], staging: Path, store_dir: Path) -> FileInfo:
    """Writes the rows of these files into one file in the staging directory."""
    dataset, options = group[0].dataset, manifest.options
    wanted = (schema if dataset == "records" else message_schema)(body=options.body is not None)
    job = Job(str(store_dir), manifest.store, manifest.last_lsn, {}, options.body, options.compression)
    span = Span(group[0].start_lsn, group[-1].stop_lsn)
    with FileRows(job, dataset, span, staging, *_KEYS[dataset]) as rows:
        for file in group:
            for batch in _rows(target, file, wanted):
                rows.add(batch)
        (made,) = rows.end()
    return made


def _rows(target: Place, file: FileInfo, wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of a file, from bytes that are the manifest's."""
    arrow, parquet = require("arrow", "pyarrow"), require("arrow", "pyarrow.parquet")
    raw, _ = target.read(file.path, file.bytes + 1)
    if xxh64_hexdigest(raw) != file.xxh64:
        raise ExportDamaged(
            f"{target}/{file.path} is damaged, so it cannot be merged: restore it, or export to a new target"
        )
    with parquet.ParquetFile(arrow.BufferReader(raw)) as opened:
        for batch in batches_of(opened):
            yield of_this_version(batch, wanted)
