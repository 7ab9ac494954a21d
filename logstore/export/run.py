"""``logstore.arrow.export`` and ``logstore export``: exports the log to Parquet files.

A target has the datasets ``records`` (every record) and ``messages`` (a row for each message that has been consumed or
destroyed), both by UTC day, and ``open`` (the messages that are live at the last exported LSN, which the next run
continues). A run starts where the last one ended and stops at the durable LSN; target.py describes its commit.

Invariants: the same log in the same state gives the same bytes; no record is in two files, and none is missing except
in a gap that the manifest names. A run works while a writer runs; a hold makes the writer keep the unread part. LSNs
are positions in the log, sizes are bytes.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from xxhash import xxh32_hexdigest

from logstore.codec.files import FORMAT_VERSION
from logstore.core import arguments
from logstore.core.extras import require
from logstore.core.regular_files import open_regular
from logstore.errors import StoreError
from logstore.export import delta as export_delta
from logstore.export import iceberg as export_iceberg
from logstore.export.files import Job, write_messages, write_records
from logstore.export.manifest import MANIFEST, FileInfo, Manifest, Missing, Span
from logstore.export.mark import check_mark, find_mark
from logstore.export.open_set import changed_parts, check_parts, group_starts, has_undecided
from logstore.export.places import LocalPlace, Place, place_of
from logstore.export.plan import CHUNK_BYTES, FILE_BYTES, ExportPlan, checked_options, chunks, log_bytes, plan_run
from logstore.export.remote_target import open_target
from logstore.export.target import Target, checked_manifest, intents
from logstore.export.upkeep import NOTHING_DONE, Upkeep, checked_keep, drop_expired, expired, keep_up
from logstore.holds import LIMIT_BYTES, LIMIT_BYTES_MAX, Hold, hold
from logstore.inspect import LogRecycled, Reader
from logstore.rows.records import queue_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from datetime import timedelta
    from uuid import UUID

    from logstore.export.target import Catalog
    from logstore.inspect import ReaderInfo

__all__ = ["ExportReport", "Run", "catalogs_of", "export", "held_for", "hold_for", "plan_export", "upkept"]

HOLD_S: Final = 3600.0
RENEWED_AFTER_S: Final = 60.0
THREADS: Final = 2
_logger: Final = logging.getLogger("logstore.export")
_TRIES: Final = 3  # in case a writer starts while no hold keeps the log


@dataclass(frozen=True, slots=True)
class ExportReport:
    """The result of one run."""

    target: Path | str
    """Its path, or its address without what is secret in it."""
    store: UUID
    start_lsn: int
    """The first LSN of this run."""
    last_lsn: int
    """Everything below this LSN is exported."""
    records: int
    messages: int
    """Messages that ended in this range of the log."""
    open: int
    """Messages that are live at its end."""
    files: int
    bytes: int
    """Bytes of the new files."""
    log_bytes: int
    """Bytes of the log that were read."""
    gap: Span | None
    """The range that the store had recycled before it was exported; None if there is none."""
    missing_before: Missing | None
    """What the store had recycled before the first run to this target; None if its log was whole then."""
    seconds: float
    upkeep: Upkeep = NOTHING_DONE
    """The files of earlier runs that were dropped or merged."""


def export(
    store_dir: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    start_lsn: int | None = None,
    body: int | None = None,
    compression: str | None = None,
    file_bytes: int = FILE_BYTES,
    keep: timedelta | None = None,
    iceberg: str | os.PathLike[str] | None = None,
    delta: bool = False,
    allow_gap: bool = False,
    require_complete: bool = False,
    hold: Hold | None = None,
    hold_limit_bytes: int | None = None,
    connect: str | None = None,
    catalog: str | None = None,
    filesystem: Any = None,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> ExportReport:
    """Exports the part of the log after the last run to ``target``, up to the LSN that is durable now.

    * ``target``: a directory, which may be absent, or an address such as ``s3://bucket/path`` that pyarrow or fsspec
      takes; they read credentials and endpoints from where they always do. See remote_target.py for its commits.
    * ``filesystem``: a ``pyarrow.fs.FileSystem`` in which ``target`` is a path.
    * ``start_lsn``: the first LSN of a new target (default: the base).
    * ``body``: bytes of each record's content, and of each message's, to export (default: none).
    * ``compression``: default ``zstd:1``, or as in the runs before.
    * ``file_bytes``: bytes of the log for one file.
    * ``keep``: drop the files of UTC days that ended longer ago; the manifest names what was dropped.
    * ``iceberg``: a directory with an Apache Iceberg catalog, in which the files are registered.
    * ``delta``: make ``records`` and ``messages`` of the target Delta Lake tables, which every later run keeps up. Both
      kinds of tables need a local directory, or S3.
    * ``allow_gap``: continue even if records were recycled before they were exported.
    * ``require_complete``: refuse to begin a target unless the log still has everything that was ever logged.
    * ``hold``: the caller's hold (:func:`hold_for`), which the export advances. Without it, a run while a writer runs
      takes its own hold, of at most ``hold_limit_bytes`` (default 1 GiB, or the log's size if that is more).
    * ``connect`` and ``catalog``: the catalog, as in ``logstore.open``.
    * ``progress``: called with the bytes of the log that are done, and the total.

    A run also merges small files of a day into larger ones; see :mod:`logstore.export.upkeep`.

    A first run to a target logs a warning if the store has recycled something before; see ``missing_before``.

    Raises ``OptionError``; ``ExportGap``, ``ExportIncomplete``, ``ExportLocked``, ``ExportMismatch``, ``ExportDamaged``
    and ``ExportError`` of :mod:`logstore.export.manifest`; ``MissingExtra``; and the errors of reading the log. After
    an error, the target has its earlier contents and perhaps complete chunks of this run; the next run continues from
    there.
    """
    source, where = arguments.path("store_dir", store_dir), place_of(target, filesystem)
    _check_options(start_lsn, body, compression, hold_limit_bytes)
    arguments.integer("file_bytes", file_bytes, 1, 1 << 40)
    arguments.optional(arguments.path, "iceberg", iceberg)
    checked_keep(keep)
    arguments.catalog(connect, catalog, called="catalog")
    arguments.function("progress", progress)
    if hold is not None:
        arguments.instance("hold", hold, Hold)
    require("arrow", "pyarrow.parquet")
    started = time.monotonic()
    with Reader(source) as reader:
        info = reader.info  # raises if this is not a store
    if require_complete and not allow_gap:
        refuse_incomplete(source, where)
    catalogs = partial(catalogs_of, where, iceberg, delta=delta)
    with open_target(where, source, catalogs) as place, upkept(place, source, keep, hold) as done:
        for attempt in range(1, 1 + _TRIES):
            try:
                with held_for(source, place, info, hold, hold_limit_bytes) as held, _reader(source, held) as reader:
                    planned = plan_run(
                        reader,
                        place.manifest,
                        start_lsn=start_lsn,
                        body=body,
                        compression=compression,
                        file_bytes=file_bytes,
                        allow_gap=allow_gap,
                        require_complete=require_complete,
                    )
                    names = queue_names(source, connect=connect, catalog=catalog)
                    run = Run(place, reader, held, planned, names, progress)
                    report = run.make()
                    break
            except LogRecycled:
                with Reader(source) as again:
                    info = again.info
                if attempt == _TRIES or hold is not None:
                    raise
    return replace(report, seconds=time.monotonic() - started, upkeep=done[0])


def catalogs_of(place: Place, iceberg: str | os.PathLike[str] | None, *, delta: bool) -> list[Catalog]:
    """The catalogs that a run keeps up: those asked for, and Delta tables that the target has."""
    catalogs: list[Catalog] = []
    if iceberg is not None:
        export_iceberg.check(place)
        catalogs.append(partial(export_iceberg.register, place, directory=Path(iceberg)))
    with place.explained():
        delta = delta or export_delta.is_registered(place)
    if delta:
        export_delta.check(place)
        catalogs.append(partial(export_delta.register, place))
    return catalogs


@contextmanager
def upkept(place: Target, source: Path, keep: timedelta | None, held: Hold | None) -> Iterator[list[Upkeep]]:
    """Does what belongs to a run besides its new files: retention before and after it, compaction, registration.

    Retention comes first, too, because a full disk may need the room. The list has one item at the end.
    """
    first = drop_expired(place, keep)
    done: list[Upkeep] = []
    yield done
    rest = keep_up(place, keep, source, (lambda: None) if held is None else held.renew)
    done.append(first + rest)
    if place.manifest is not None:
        place.register(place.manifest)


def _check_options(
    start_lsn: object, body: int | None, compression: str | None, hold_limit_bytes: object = None
) -> None:
    arguments.optional(arguments.integer, "start_lsn", start_lsn, 0, arguments.LSN_MAX)
    arguments.optional(arguments.integer, "hold_limit_bytes", hold_limit_bytes, 1, LIMIT_BYTES_MAX)
    checked_options(None, body, compression)


def refuse_incomplete(source: Path, place: Place) -> None:
    """Raises ``ExportIncomplete`` if a first run to this target would not be complete, before anything is made."""
    with place.explained():
        begun = any(place.size(name) is not None for name in (MANIFEST, *intents(place)))
    if not begun:
        _plan_of(source, place, None, require_complete=True)


def plan_export(
    store_dir: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    start_lsn: int | None = None,
    body: int | None = None,
    compression: str | None = None,
    keep: timedelta | None = None,
    allow_gap: bool = False,
    require_complete: bool = False,
    filesystem: Any = None,
) -> ExportPlan:
    """The plan of an :func:`export` made now; nothing is made or changed. Raises the same errors."""
    _check_options(start_lsn, body, compression)
    checked_keep(keep)
    return _plan_of(
        arguments.path("store_dir", store_dir),
        place_of(target, filesystem),
        keep,
        start_lsn=start_lsn,
        body=body,
        compression=compression,
        allow_gap=allow_gap,
        require_complete=require_complete,
    )


def _plan_of(source: Path, place: Place, keep: timedelta | None, **options: Any) -> ExportPlan:
    with place.explained():
        manifest = checked_manifest(place)
    attempt = 1
    while True:
        try:
            with Reader(source) as reader:
                return replace(plan_run(reader, manifest, **options), expired=expired(manifest, keep))
        except LogRecycled:
            if attempt == _TRIES:
                raise
            attempt += 1


# ---- The hold


def hold_for(
    store_dir: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    limit_bytes: int | None = None,
    filesystem: Any = None,
) -> Hold:
    """A hold on the part of the log that ``target`` does not have yet, for repeated exports.

    If some of that part is already recycled, the hold is on the rest. Raises the errors of :func:`logstore.holds.hold`.
    """
    source, place = arguments.path("store_dir", store_dir), place_of(target, filesystem)
    arguments.optional(arguments.integer, "limit_bytes", limit_bytes, 1, LIMIT_BYTES_MAX)
    with place.explained():
        manifest = checked_manifest(place)
    return _take_hold(source, place, manifest, limit_bytes)


def _take_hold(source: Path, place: Place, manifest: Manifest | None, limit_bytes: int | None) -> Hold:
    if limit_bytes is None:
        with Reader(source, from_lsn=(1 << 63) - 1) as reader:
            limit_bytes = max(LIMIT_BYTES, reader.info.log_bytes)
    name = f"export-{xxh32_hexdigest(place.key)}"
    if manifest is not None:
        try:
            return hold(source, name, lsn=manifest.last_lsn, limit_bytes=limit_bytes, expires_s=HOLD_S)
        except LogRecycled:
            pass  # the plan finds out whether records are lost
    return hold(source, name, limit_bytes=limit_bytes, expires_s=HOLD_S)


def held_for(
    source: Path, place: Target, info: ReaderInfo, given: Hold | None, limit_bytes: int | None
) -> AbstractContextManager[Hold | None]:
    """The hold of the run. A store without a writer needs none, and its directory is not changed."""
    if given is not None:
        return nullcontext(given)
    return _take_hold(source, place.place, place.manifest, limit_bytes) if info.live else nullcontext()


@contextmanager
def _reader(source: Path, held: Hold | None) -> Iterator[Reader]:
    with Reader(source, hold=held) as reader:
        yield reader


# ---- One run


class Run:
    """One run of an export, chunk by chunk."""

    chunk_bytes = CHUNK_BYTES

    def __init__(
        self,
        place: Target,
        reader: Reader,
        held: Hold | None,
        planned: ExportPlan,
        names: dict[int, str],
        progress: Callable[[int, int], None],
    ) -> None:
        self._place = place
        self._source = reader.path
        self._info = reader.info
        self._segments = reader.segments()
        self._held = held
        self._plan = planned
        self._first = place.manifest is None
        self._names = names
        self._progress = progress
        self._made: list[FileInfo] = []
        self._lock = threading.Lock()
        self._stopped = False
        self._done = self._seen = 0
        self._renewed = time.monotonic()

    def make(self) -> ExportReport:
        """Makes the whole run."""
        started = time.monotonic()
        self._place.renew = partial(self._look, 0)
        if self._first and self._plan.missing_before is not None:
            _logger.warning(
                "%s has recycled %s: this export begins there (how many messages are missing is not recorded). To keep "
                "the rest from now on, export often enough, or all the time with --every",
                self._source,
                self._plan.missing_before,
            )
        if self._place.manifest is not None:
            check_mark(self._source, self._held, self._segments, self._place.manifest.mark)
        if self._plan.units:
            self._force_tail()
        gap = self._plan.gap
        for chunk in chunks(self._plan.units, self._segments, self.chunk_bytes):
            self._make_chunk(chunk, gap)
            gap = None
            if self._held is not None:
                self._held.advance(chunk[-1].stop_lsn)
        rows = {name: sum(one.rows for one in self._made if one.dataset == name) for name in ("records", "messages")}
        manifest = self._place.manifest
        return ExportReport(
            target=where.path if isinstance(where := self._place.place, LocalPlace) else where.shown,
            store=self._info.uuid,
            start_lsn=self._plan.start_lsn,
            last_lsn=self._plan.stop_lsn if manifest is None else manifest.last_lsn,
            records=rows["records"],
            messages=rows["messages"],
            open=0 if manifest is None else sum(part.rows for part in manifest.open),
            files=len(self._made),
            bytes=sum(one.bytes for one in self._made),
            log_bytes=self._plan.log_bytes,
            gap=self._plan.gap,
            missing_before=self._plan.missing_before,
            seconds=time.monotonic() - started,
        )

    def _force_tail(self) -> None:
        """Forces the end of a crashed log to disk, because it may be in memory only. So no exported record is lost."""
        if self._info.state != "crashed":
            return
        for segment in self._segments:
            if segment.end_lsn > self._info.watermark_lsn:
                try:
                    fd = open_regular(self._source / segment.name)
                    try:
                        os.fdatasync(fd)
                    finally:
                        os.close(fd)
                except FileNotFoundError:
                    reused = f"a writer has opened {self._source} meanwhile and reused {segment.name}: run this again"
                    raise LogRecycled(reused) from None
                except OSError as error:
                    said = f"{self._source / segment.name} cannot be forced to disk: {error.strerror}; check the disk"
                    raise StoreError(said) from error

    def _make_chunk(self, units: list[Span], gap: Span | None) -> None:
        before = self._place.manifest
        span = Span(units[0].start_lsn, units[-1].stop_lsn)
        begin_lsn = self._segments[0].first_lsn
        # Without a hold, a writer may start at any moment; reading fails then if it recycles the part to be read.
        # As with a hold, no row depends on the log below the first record that was not exported.
        keep_lsn = None if self._held is not None else max(1, begin_lsn, 0 if before is None else span.start_lsn)
        # A message that was open before a gap may have ended in it, so only the log after the gap counts.
        parts = () if before is None or gap is not None else before.open
        with self._place.place.explained():
            changed = (
                [] if before is None or not parts else changed_parts(self._source, before, span, self._held, keep_lsn)
            )
            seeds = check_parts(self._place, parts, changed)
        staging = self._place.begin()
        job = Job(
            store_dir=str(self._source),
            store=self._info.uuid,
            as_of_lsn=self._plan.stop_lsn,
            queue_names=self._names,
            body=self._plan.options.body,
            compression=self._plan.options.compression,
            keep_lsn=keep_lsn,
            open_parts=tuple(str(seed) for seed in seeds),
            open_starts=group_starts(parts, changed) if parts else (0,),
        )
        with self._place.place.explained():
            files, opened = self.write(job, units, span, staging)
            undecided = [part.first_id for part in opened if has_undecided(staging / part.staged)]
        if before is None:
            before = Manifest(
                self._info.uuid,
                FORMAT_VERSION,
                span.start_lsn,
                span.start_lsn,
                self._plan.options,
                missing_before=self._plan.missing_before,
            )
        mark = find_mark(self._source, self._held, self._segments, span)
        kept = [part for number, part in enumerate(parts) if number not in changed]  # none of them is undecided
        manifest = replace(before, options=self._plan.options, undecided=tuple(undecided)).with_run(
            span.stop_lsn, files, [*kept, *opened], gap, mark
        )
        self._place.commit(manifest, [*files, *opened])
        self._made += files
        self._done += log_bytes(self._segments, span.start_lsn, span.stop_lsn)
        self._seen = self._done  # the watched bytes include gaps between epochs

    def write(self, job: Job, units: list[Span], span: Span, staging: Path) -> tuple[list[FileInfo], list[FileInfo]]:
        """Writes the messages (one scan) and the records (unit by unit) at the same time, in two threads."""
        self._stopped = False
        with ThreadPoolExecutor(THREADS, "logstore-export") as pool:
            messages: Future[tuple[list[FileInfo], list[FileInfo]]] = pool.submit(
                write_messages, job, span, staging, hold=self._held, watch=self._look
            )
            records = [
                pool.submit(write_records, job, unit, staging, hold=self._held, watch=self._watch) for unit in units
            ]
            try:
                waiting: list[Future[Any]] = [messages, *records]
                for done in as_completed(waiting):
                    done.result()
            except BaseException:
                self._stopped = True
                pool.shutdown(cancel_futures=True)
                raise
            files, opened = messages.result()
            return [file for each in records for file in each.result()] + files, opened

    def _watch(self, read_bytes: int) -> None:
        """Counts log bytes that the records' threads have read, and reports progress."""
        self._look(0)
        with self._lock:
            self._seen = min(self._seen + read_bytes, self._plan.log_bytes)
            self._progress(self._seen, self._plan.log_bytes)

    def _look(self, _: int) -> None:
        """Called by the writing threads from time to time: renews the hold, and ends a stopped export."""
        if self._stopped:
            raise StoreError("the export was stopped")
        if self._held is not None and time.monotonic() - self._renewed > RENEWED_AFTER_S:
            with self._lock:
                if time.monotonic() - self._renewed > RENEWED_AFTER_S:
                    self._held.renew()
                    self._renewed = time.monotonic()
