"""The Parquet files of an export: rows of the core's scanners, divided into files and encoded.

:func:`write_records` and :func:`write_messages` take plain picklable arguments and write their files into a staging
directory. So another process, or another machine with access to the store, can also write a unit of an export. The
result depends on the log alone: the same unit always gives the same bytes.

A file ends where the UTC day changes, where it has :data:`FILE_ROWS` rows, and where its unit ends.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import date, timedelta
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from logstore.codec.files import FORMAT_VERSION
from logstore.core.extras import require
from logstore.export.manifest import FileInfo, Span, schema_version_of, staged_name
from logstore.export.open_set import read_bodies, read_seed, split_rows
from logstore.export.target import StagedFile
from logstore.inspect import Reader
from logstore.rows.messages import MessageScan
from logstore.rows.records import open_places
from logstore.rows.scan import RowScan
from logstore.rows.schema import schema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from uuid import UUID

    import pyarrow as pa

    from logstore.holds import Hold

__all__ = ["BOUNDED", "FILE_ROWS", "FileRows", "Job", "write_messages", "write_records"]

FILE_ROWS: Final = 4 << 20
GROUP_ROWS: Final = 1 << 18  # while they wait, the scan fills the same memory again
GROUP_BYTES: Final = 256 << 20  # of rows in memory; with long headers or bodies a row group has fewer rows
_DAY_US: Final = 86_400_000_000
_LAST_DAY: Final = (date.max - date(1970, 1, 1)).days  # later times, of a wrong clock, count as this day

# Columns with few different values, or with frequent repetitions.
_DICTIONARIES: Final = frozenset(
    {"type", "stream", "queue", "outcome", "reason", "xid", "epoch", "segment", "queue_id", "queue_ids"}
    | {"content_bytes", "content_offset"}
)
# Columns that queries filter by; bounds of the others would cost more than they save.
BOUNDED: Final = frozenset(  # of all datasets
    {"lsn", "type", "id", "time", "batch_lsn", "queue_id", "queue", "tx_id", "outcome", "effect_lsn", "effect_time"}
    | {"enqueue_lsn", "enqueue_time", "reason", "end_lsn", "end_time", "start_time", "dequeue_lsn", "dequeue_time"}
    | {"pending", "staged"}
)


@dataclass(frozen=True, slots=True)
class Job:
    """The parameters for writing any part of an export; plain and picklable."""

    store_dir: str
    store: UUID
    as_of_lsn: int
    """Outcomes of transactions are those known below this LSN."""
    queue_names: dict[int, str]
    body: int | None
    compression: str
    keep_lsn: int | None = None
    """The LSN of a hold that another process has taken."""
    open_parts: Sequence[str] = ()
    """The files of the open set that the run replaces: the messages open at its start that it may change."""
    open_starts: Sequence[int] = (0,)
    """The first ids of the sequences of these parts; see :func:`logstore.export.open_set.group_starts`."""
    file_rows: int = FILE_ROWS


# ---- How a file is written


class FileRows:
    """Divides rows in log order into files."""

    def __init__(
        self, job: Job, dataset: str, span: Span, staging: Path, key: str, time: str, attempt: str = ""
    ) -> None:
        self._job = job
        self._dataset = dataset
        self._staging = staging
        self._key = key
        self._time = time
        self._attempt = attempt
        self._start, self._stop = span.start_lsn, span.stop_lsn
        self._day = -1
        self._rows = 0
        self._last_key = -1
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = 0
        self._waiting_bytes = 0
        self._writer: _Writer | None = None
        self._made: list[FileInfo] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and self._writer is not None:
            self._writer.abandon()

    def add(self, batch: pa.RecordBatch) -> None:
        """Adds rows."""
        at = 0
        for day, rows in _days(batch.column(self._time)):
            self._add_of_day(day, batch.slice(at, rows))
            at += rows

    def _add_of_day(self, day: int, batch: pa.RecordBatch) -> None:
        while batch.num_rows:
            if self._rows and day != self._day:
                self._finish(batch.column(self._key)[0].as_py())
            room = self._job.file_rows - self._rows
            if room <= 0:
                room = self._same_key(batch)
                if room == 0:
                    self._finish(batch.column(self._key)[0].as_py())
                    continue
            self._day = day
            self._take(batch.slice(0, room))
            batch = batch.slice(room)

    def _same_key(self, batch: pa.RecordBatch) -> int:
        """The number of first rows with the LSN that ends the file: all rows of one LSN go into the same file."""
        compute = require("arrow", "pyarrow.compute")
        others = compute.indices_nonzero(compute.not_equal(batch.column(self._key), self._last_key))
        return int(others[0].as_py()) if len(others) else int(batch.num_rows)

    def _take(self, batch: pa.RecordBatch) -> None:
        self._rows += batch.num_rows
        self._last_key = batch.column(self._key)[-1].as_py()
        self._waiting.append(batch)
        self._waiting_rows += batch.num_rows
        self._waiting_bytes += batch.nbytes
        while self._waiting_rows >= GROUP_ROWS:
            self._flush(GROUP_ROWS)
        if self._waiting_bytes >= GROUP_BYTES:
            self._flush(self._waiting_rows)

    def _flush(self, rows: int) -> None:
        """Writes the first ``rows`` waiting rows as one row group."""
        group: list[pa.RecordBatch] = []
        while rows:
            batch = self._waiting.pop(0)
            if batch.num_rows > rows:
                self._waiting.insert(0, batch.slice(rows))
                batch = batch.slice(0, rows)
            group.append(batch)
            rows -= batch.num_rows
            self._waiting_rows -= batch.num_rows
        self._waiting_bytes = sum(batch.nbytes for batch in self._waiting)
        if not group:
            return
        if self._writer is None:
            name = f".{self._dataset}-{self._start:016x}{self._attempt}.part"
            self._writer = _Writer(self._job, self._staging / name, group[0].schema)
        self._writer.write(group)

    def _finish(self, stop_lsn: int) -> None:
        if self._waiting_rows:
            self._flush(self._waiting_rows)
        if self._writer is not None:
            name = f"{self._dataset}-{self._start:016x}-{stop_lsn:016x}.parquet"
            path = f"{self._dataset}/day={_day_text(self._day)}/{name}"
            span = Span(self._start, stop_lsn)
            self._made.append(self._writer.finish(self._dataset, path, span, self._rows))
            self._start = stop_lsn
        self._writer, self._rows = None, 0

    def end(self) -> list[FileInfo]:
        """Finishes the last file. Returns all files."""
        self._finish(self._stop)
        return self._made


class _Writer:
    """One Parquet file, which has a temporary name until it is complete."""

    def __init__(self, job: Job, path: Path, made: pa.Schema) -> None:
        parquet = require("arrow", "pyarrow.parquet")
        self._job = job
        self._file = StagedFile(path)
        codec, _, level = job.compression.partition(":")
        self._writer = parquet.ParquetWriter(
            self._file,
            made,
            compression=codec,
            compression_level=int(level) if level else None,
            store_schema=False,
            write_page_index=True,
            **_encodings(made),
        )

    def write(self, batches: list[pa.RecordBatch]) -> None:
        """Writes one row group."""
        arrow = require("arrow", "pyarrow")
        table = arrow.Table.from_batches(batches).unify_dictionaries()
        try:
            self._writer.write_table(table, row_group_size=GROUP_ROWS)
        except BaseException:
            self.abandon()
            raise

    def finish(self, dataset: str, path: str, span: Span, rows: int) -> FileInfo:
        """Completes the file, forces it to disk and gives it its staged name."""
        try:
            said = {
                "logstore.store": str(self._job.store),
                "logstore.dataset": dataset,
                "logstore.start_lsn": str(span.start_lsn),
                "logstore.stop_lsn": str(span.stop_lsn),
                "logstore.format_version": str(FORMAT_VERSION),
                "logstore.schema_version": str(schema_version_of(self._job.body)),
            }
            self._writer.add_key_value_metadata(said)
            self._writer.close()
            digest = self._file.finish()
            os.rename(self._file.path, self._file.path.parent / staged_name(path))
        except BaseException:
            self.abandon()
            raise
        return FileInfo(dataset, path, span.start_lsn, span.stop_lsn, rows, self._file.bytes, digest)

    def abandon(self) -> None:
        """Deletes the file."""
        self._file.abandon()
        self._writer.is_open = False


def _encodings(made: pa.Schema) -> dict[str, Any]:
    """The encodings: differences for LSNs, ids and times, which grow slowly; dictionaries for repeated names."""
    arrow = require("arrow", "pyarrow")
    dictionaries: list[str] = []
    bounded = [name for name in made.names if name in BOUNDED]
    deltas: list[str] = []

    def sort(path: str, kind: pa.DataType) -> None:
        if arrow.types.is_list(kind):
            sort(f"{path}.list.element", kind.value_type)
        elif arrow.types.is_struct(kind):
            for each in kind:
                sort(f"{path}.{each.name}", each.type)
        elif any(name in _DICTIONARIES for name in path.split(".")) or arrow.types.is_int32(kind):
            dictionaries.append(path)
        elif arrow.types.is_timestamp(kind) or kind == arrow.int64():
            deltas.append(path)

    for each in made:
        sort(each.name, each.type)
    return {
        "use_dictionary": dictionaries,
        "column_encoding": dict.fromkeys(deltas, "DELTA_BINARY_PACKED"),
        "write_statistics": bounded,
    }


def _days(times: pa.Array) -> Iterator[tuple[int, int]]:
    """Runs of equal UTC days with their numbers of rows, in order. A day can occur again if a clock was set back."""
    arrow, compute = require("arrow", "pyarrow"), require("arrow", "pyarrow.compute")
    days = compute.divide(times.cast(arrow.int64()), _DAY_US)
    days = compute.min_element_wise(compute.max_element_wise(days, 0), _LAST_DAY)
    if not len(days):
        return
    low_high = compute.min_max(days)
    if low_high["min"] == low_high["max"]:
        yield low_high["min"].as_py(), len(days)
        return
    borders = [1 + at for at in compute.indices_nonzero(compute.not_equal(days[1:], days[:-1])).to_pylist()]
    for start, stop in zip([0, *borders], [*borders, len(days)], strict=True):
        yield days[start].as_py(), stop - start


def _day_text(day: int) -> str:
    return (date(1970, 1, 1) + timedelta(days=day)).isoformat()


# ---- Records


def write_records(
    job: Job,
    unit: Span,
    staging: str | os.PathLike[str],
    *,
    hold: Hold | None = None,
    attempt: str = "",
    watch: Callable[[int], None] = lambda _: None,
) -> list[FileInfo]:
    """Writes the records of this range of the log into the staging directory. Returns the files in order.

    ``hold`` is a hold of this process; without it, the job says where another process's hold begins. ``attempt`` is
    part of the temporary file names, so that two processes can write the same unit. ``watch`` is called from time to
    time with the number of log bytes read since its last call; its exceptions end the writing. Raises the errors of
    reading the log, and ``OSError``.
    """
    made = schema(body=job.body is not None, strings="dictionary")
    known = _known_places(job)
    keep_lsn = None if hold is not None else job.keep_lsn
    reader = Reader(job.store_dir, from_lsn=unit.start_lsn, hold=hold, keep_lsn=keep_lsn)
    with RowScan(
        reader,
        made,
        start_lsn=unit.start_lsn,
        stop_lsn=unit.stop_lsn,
        as_of_lsn=job.as_of_lsn,
        body_bytes=job.body or 0,
        batch_rows=1 << 15,
        queue_names=job.queue_names,
        known=known,
    ) as scan:
        rows = _watched(scan, "lsn", unit.start_lsn, watch)
        return _write(job, "records", unit, Path(staging), "lsn", "time", rows, attempt)


def _watched(
    batches: Iterable[pa.RecordBatch], key: str, start_lsn: int, watch: Callable[[int], None]
) -> Iterator[pa.RecordBatch]:
    at = start_lsn
    for batch in batches:
        yield batch
        last = batch.column(key)[-1].as_py() if batch.num_rows else at
        watch(last - at)
        at = last


def _write(
    job: Job,
    dataset: str,
    span: Span,
    staging: Path,
    key: str,
    time: str,
    batches: Iterable[pa.RecordBatch],
    attempt: str,
) -> list[FileInfo]:
    with FileRows(job, dataset, span, staging, key, time, attempt) as files:
        for batch in batches:
            files.add(batch)
        return files.end()


def _known_places(job: Job) -> pa.Table | None:
    """The places of the messages that were open at the last export, whose records may have been recycled since then.

    With them, the row of a dequeue does not depend on what a writer has recycled between two runs.
    """
    if not job.open_parts:
        return None
    found = [os.stat(path) for path in job.open_parts]
    return _places_in(tuple(job.open_parts), tuple((one.st_ino, one.st_mtime_ns) for one in found))


@lru_cache(maxsize=1)  # for all units of a chunk
def _places_in(open_parts: tuple[str, ...], _state: tuple[tuple[int, int], ...]) -> pa.Table:
    arrow, parquet = require("arrow", "pyarrow"), require("arrow", "pyarrow.parquet")
    tables = []
    for path in open_parts:
        with open(path, "rb") as file:  # as pyarrow does not take every path
            tables.append(open_places(parquet.read_table(file, columns=["id", "places"])))
    return arrow.concat_tables(tables)


# ---- Messages


def write_messages(
    job: Job,
    run: Span,
    staging: str | os.PathLike[str],
    *,
    hold: Hold | None = None,
    attempt: str = "",
    watch: Callable[[int], None] = lambda _: None,
) -> tuple[list[FileInfo], list[FileInfo]]:
    """Writes the messages that ended in this range of the log, and those open at its end.

    Returns the files of both; of the open set, the parts that take the place of the job's. The range begins where the
    job's open set ends. Arguments and errors are those of :func:`write_records`.
    """
    with MessageScan(
        job.store_dir,
        start_lsn=run.start_lsn,
        stop_lsn=run.stop_lsn,
        seed=read_seed(job.open_parts),
        hold=hold,
        keep_lsn=None if hold is not None else job.keep_lsn,
        queue_names=job.queue_names,
        body=job.body,
        seed_bodies=read_bodies(job.open_parts),
        spill_dir=staging,
    ) as scan:
        rows = _watched(scan, "end_lsn", run.start_lsn, watch)
        files = _write(job, "messages", run, Path(staging), "end_lsn", "end_time", rows, attempt)
        parts = split_rows(scan.open_batches(), scan.open_schema(), job.open_starts)
        return files, [_write_part(job, first, rows, run, Path(staging), attempt) for first, rows in parts]


def _write_part(job: Job, first_id: int, rows: pa.Table, run: Span, staging: Path, attempt: str) -> FileInfo:
    writer = _Writer(job, staging / f".open-{first_id:016x}{attempt}.part", rows.schema)
    if rows.num_rows:
        writer.write(rows.to_batches())
    return writer.finish("open", f"open/open-{first_id:016x}.parquet", Span(first_id, run.stop_lsn), rows.num_rows)
