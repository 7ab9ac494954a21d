"""``logstore export --verify``: checks the files of an export against its manifest. Nothing is changed.

Every file is read and hashed, and its metadata is compared with the manifest. A foreign file among them is a problem,
too, because a file pattern over the dataset would read it.
"""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from logstore.core import arguments
from logstore.core.counts import counted
from logstore.core.extras import require
from logstore.core.regular_files import lock_regular
from logstore.export.manifest import LOCK, ExportError, ExportLocked, FileInfo, Manifest
from logstore.export.places import LocalPlace, Place, place_of
from logstore.export.target import intents, read_manifest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["VerifyReport", "verify"]

_KEYS: Final = {"records": "lsn", "messages": "end_lsn"}


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The result of a verification."""

    manifest: Manifest
    files: int
    bytes: int
    records: int
    messages: int
    problems: tuple[str, ...]


def verify(
    target: str | os.PathLike[str],
    *,
    filesystem: Any = None,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> VerifyReport:
    """Reads and checks all files of an export; calls ``progress`` with the bytes done and the total bytes.

    ``target`` and ``filesystem`` are those of ``export``.

    Raises ``ExportError`` for a target without an export, or with an interrupted run that must be finished first;
    ``ExportLocked`` while an export runs; ``ExportDamaged``, ``VersionError``, ``MissingExtra``.
    """
    place = place_of(target, filesystem)
    arguments.function("progress", progress)
    with place.explained():
        if isinstance(place, LocalPlace):
            lock = _lock(place.path)
            try:
                return _checked(place, progress)
            finally:
                os.close(lock)
        report = _checked(place, progress)
        if report.problems and read_manifest(place) != report.manifest:
            raise ExportLocked(f"an export has written to {place} meanwhile: verify it again")
        return report


def _lock(path: Path) -> int:
    try:
        return lock_regular(path / LOCK, fcntl.LOCK_SH)
    except FileNotFoundError:
        raise ExportError(f"{path} contains no export: it has no {LOCK} file; check the path") from None
    except BlockingIOError:
        raise ExportLocked(f"an export writes to {path}: wait until it has ended") from None


def _checked(place: Place, progress: Callable[[int, int], None]) -> VerifyReport:
    if any(place.size(name) is not None for name in intents(place)):
        raise ExportError(f"a run of the export to {place} was interrupted: run the export again, then verify it")
    manifest = read_manifest(place)
    if manifest is None:
        place.files()  # raises if there is not even a bucket
        raise ExportError(f"{place} contains no export: it has no manifest; check the path")
    return _verified(place, manifest, progress)


def _verified(place: Place, manifest: Manifest, progress: Callable[[int, int], None]) -> VerifyReport:
    problems: list[str] = []
    files = [*manifest.files, *manifest.of("open")]
    total, done = sum(file.bytes for file in files), 0
    for file in files:
        problem = _problem(place, file, manifest)
        if problem is not None:
            problems.append(f"{file.path}: {problem}")
        done += file.bytes
        progress(done, total)
    problems += _missing_ranges(manifest)
    known = {file.path for file in files}
    for name in sorted(place.files()):
        if name not in known:
            problems.append(f"{name}: is not a file of the export, but would be read as one")
    rows = {name: sum(file.rows for file in manifest.of(name)) for name in _KEYS}
    return VerifyReport(manifest, len(files), total, rows["records"], rows["messages"], tuple(problems))


def _problem(place: Place, file: FileInfo, manifest: Manifest) -> str | None:
    try:
        size, digest = place.hash(file.path)
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if size != file.bytes:
        return f"has {counted(size, 'byte')} and not {file.bytes}"
    if digest != file.xxh64:
        return "is damaged: its hash is wrong"
    return _contradiction(place, file, manifest)


def _contradiction(place: Place, file: FileInfo, manifest: Manifest) -> str | None:
    """How a file with the right hash contradicts the manifest; None if it does not."""
    arrow, parquet = require("arrow", "pyarrow"), require("arrow", "pyarrow.parquet")
    try:
        with place.opened(file.path) as opened:
            metadata = parquet.read_metadata(opened)
    except (OSError, arrow.ArrowException) as error:
        return f"is not a Parquet file ({error})"
    if metadata.num_rows != file.rows:
        return f"has {counted(metadata.num_rows, 'row')} and not {file.rows}"
    own = {key.decode(): value.decode() for key, value in (metadata.metadata or {}).items() if key[:9] == b"logstore."}
    wanted = {
        "logstore.store": str(manifest.store),
        "logstore.dataset": file.dataset,
        "logstore.start_lsn": str(file.start_lsn),
        "logstore.stop_lsn": str(file.stop_lsn),
    }
    for name, value in wanted.items():
        if own.get(name) != value:
            return f"has {name} {own.get(name)} and not {value}"
    key = _KEYS.get(file.dataset)
    bounds = None if key is None else _bounds(metadata, key)
    if bounds is not None and not file.start_lsn <= bounds[0] <= bounds[1] < file.stop_lsn:
        return f"has LSN {bounds[0]} to {bounds[1]}, which is outside its range"
    return None


def _bounds(metadata: Any, key: str) -> tuple[int, int] | None:
    """The smallest and the largest LSN in a column."""
    found = []
    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        columns = [row_group.column(at) for at in range(row_group.num_columns)]
        found += [one.statistics for one in columns if one.path_in_schema == key and one.statistics is not None]
    if not found:
        return None
    return min(one.min for one in found), max(one.max for one in found)


def _missing_ranges(manifest: Manifest) -> list[str]:
    """Parts of the log for which there is neither a file of records nor a gap, and which were not dropped."""
    at, problems = manifest.first_lsn, []
    spans = [(one.start_lsn, one.stop_lsn) for one in manifest.of("records")]
    spans += [(one.start_lsn, one.stop_lsn) for one in manifest.gaps]
    spans += [(one.start_lsn, one.stop_lsn) for one in manifest.dropped if one.dataset == "records"]
    for start, stop in [*sorted(spans), (manifest.last_lsn, manifest.last_lsn)]:
        if start > at:
            problems.append(f"records: LSN {at} to {start} are missing")
        at = max(at, stop)
    return problems
