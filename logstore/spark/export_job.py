"""The export as a Spark job, for logs of any size: ``python -m logstore.spark_export DIR TARGET``.

It is the same export as :func:`logstore.arrow.export`: the same plan, the same writing functions, the same commit, and
so the same bytes in the same files. Only the place of the work differs: each unit is written in its own task, on
any executor, into the staging directory of the target; all executors must reach the target and the store. The messages
are one scan of the log, in a separate task. Only the driver commits a run.

:func:`stream_export` repeats the export behind a stream of the log. A batch that is delivered again after a restart was
committed before and writes nothing.
"""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from logstore.arrow import queue_names
from logstore.core.threads import start
from logstore.errors import OptionError, StoreError
from logstore.export import ExportReport, Run, held_for, hold_for
from logstore.export.addresses import has_secrets, shown
from logstore.export.manifest import ExportError, FileInfo
from logstore.export.places import LocalPlace, Place, RemotePlace, place_of
from logstore.export.plan import CHUNK_BYTES, FILE_BYTES, plan_run
from logstore.export.remote_target import RemoteTarget, open_target
from logstore.export.run import catalogs_of, refuse_incomplete, upkept
from logstore.export.target import checked_manifest, read_manifest
from logstore.export.upkeep import checked_keep
from logstore.inspect import Reader
from logstore.spark.java import need_pyspark

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator
    from datetime import timedelta

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from logstore.export.files import Job
    from logstore.export.manifest import Span
    from logstore.holds import Hold

__all__ = ["export", "stream_export"]

RENEWED_EVERY_S: Final = 60


def export(
    spark: SparkSession,
    store_dir: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    start_lsn: int | None = None,
    stop_lsn: int | None = None,
    body: int | None = None,
    compression: str | None = None,
    file_bytes: int = FILE_BYTES,
    chunk_bytes: int = CHUNK_BYTES,
    keep: timedelta | None = None,
    iceberg: str | os.PathLike[str] | None = None,
    delta: bool = False,
    allow_gap: bool = False,
    require_complete: bool = False,
    hold: Hold | None = None,
    hold_limit_bytes: int | None = None,
    connect: str | None = None,
    catalog: str | None = None,
) -> ExportReport:
    """Exports the part of the log after the last run as :func:`logstore.arrow.export` does, in Spark tasks.

    ``chunk_bytes`` of the log are written together, in units of ``file_bytes``, and then committed; use more for a
    cluster with many cores. ``stop_lsn``: the LSN at which to stop. Everything else is the same as there, errors
    included. The failure of a task is an ``ExportError`` with the task's message.
    """
    need_pyspark()
    place = _checked_place(target)
    for name, size in (("file_bytes", file_bytes), ("chunk_bytes", chunk_bytes)):
        if not 1 <= size <= 1 << 50:
            raise OptionError(f"{name} is a number from 1 to {1 << 50}, not {size!r}")
    checked_keep(keep)
    source = Path(store_dir).absolute()
    with Reader(source) as reader:
        info = reader.info
    if require_complete and not allow_gap:
        refuse_incomplete(source, place)
    with (
        open_target(place, source, partial(catalogs_of, place, iceberg, delta=delta)) as opened,
        upkept(opened, source, keep, hold) as done,
        held_for(source, opened, info, hold, hold_limit_bytes) as held,
        Reader(source, hold=held) as reader,
    ):
        planned = plan_run(
            reader,
            opened.manifest,
            start_lsn=start_lsn,
            stop_lsn=stop_lsn,
            body=body,
            compression=compression,
            file_bytes=file_bytes,
            allow_gap=allow_gap,
            require_complete=require_complete,
        )
        names = queue_names(source, connect=connect, catalog=catalog)
        run = _SparkRun(opened, reader, held, planned, names, lambda *_: None)
        run.spark, run.chunk_bytes = spark, chunk_bytes
        run.address = None if isinstance(place, LocalPlace) else str(target)
        report = run.make()
    return replace(report, upkeep=done[0])


def _checked_place(target: str | os.PathLike[str]) -> Place:
    """The target, which all executors must reach under this name. Raises ``OptionError`` if they cannot."""
    if has_secrets(target):
        raise OptionError(
            f"the address of the target {shown(target)} has a key or a password, which Spark would show in its plans: "
            "put it into the environment of the driver and of the executors"
        )
    place = place_of(target).absolute()
    if isinstance(place, RemotePlace) and not place.shared:
        raise OptionError(
            f"the target is {place}, which only this process reaches: choose one that all executors reach"
        )
    return place


class _SparkRun(Run):
    """A run whose files are written by tasks."""

    spark: SparkSession
    address: str | None

    def write(self, job: Job, units: list[Span], span: Span, staging: Path) -> tuple[list[FileInfo], list[FileInfo]]:
        """One task for each unit, and one for the messages, which starts first because it takes longest."""
        from pyspark.errors import PySparkException

        from logstore.spark.shipping import shipped
        from logstore.spark.work import Work, WorkSource

        # A hold belongs to the process that took it, so the tasks get the LSN where it begins.
        job = job if self._held is None else replace(job, keep_lsn=self._held.lsn)
        target = self._place if isinstance(self._place, RemoteTarget) else None
        if target is None:
            work = Work(job, span, tuple(units), str(staging))
        else:
            names = {} if target.manifest is None else {part.staged: part.path for part in target.manifest.open}
            job = replace(job, open_parts=tuple(names[Path(part).name] for part in job.open_parts))
            work = Work(job, span, tuple(units), target.begin_tasks(), self.address)
        self.spark.dataSource.register(shipped(WorkSource))
        tasks = self.spark.read.format(WorkSource.name()).option("work", work.encode()).load()
        with _kept_alive(self._held):
            try:
                rows = tasks.collect()  # one row for each task
            except PySparkException as failed:
                raise ExportError(
                    f"a task of the export to {self._place.place} failed: {_last_line(failed)}. What was exported "
                    "before is whole; running this again goes on from there"
                ) from failed
        made = {row["task"]: [FileInfo(**each) for each in json.loads(row["made"])] for row in rows}
        if sorted(made) != list(range(1 + len(units))):
            raise ExportError(f"of {1 + len(units)} tasks of the export only {sorted(made)} told what they wrote")
        if target is not None:
            uploaded = {file: work.uploaded(file, row["attempt"]) for row in rows for file in made[row["task"]]}
            target.add_uploaded(uploaded)
            for file in made[0]:
                if file.dataset == "open":  # which the run looks into
                    target.place.fetch(uploaded[file], staging / file.staged)
        messages, opened = ([one for one in made[0] if (one.dataset == "open") is wanted] for wanted in (False, True))
        return [file for task in range(1, 1 + len(units)) for file in made[task]] + messages, opened


@contextmanager
def _kept_alive(held: Hold | None) -> Iterator[None]:
    """Renews the hold in the driver while tasks read."""
    done = threading.Event()

    def renew() -> None:
        while held is not None and not done.wait(RENEWED_EVERY_S):
            try:
                held.renew()
            except StoreError:
                return  # a task that misses a part of the log reports it

    thread = start("logstore-export-hold", renew)
    try:
        yield
    finally:
        done.set()
        thread.join()


def _last_line(failed: Exception) -> str:
    """The last line of the task's error, without its stack."""
    lines = [line.strip() for line in str(failed).splitlines() if line.strip().startswith("logstore.")]
    return lines[-1].partition(": ")[2] if lines else str(failed).strip().splitlines()[0]


# ---- Repeatedly, behind a stream


def stream_export(
    spark: SparkSession,
    store_dir: str | os.PathLike[str],
    target: str | os.PathLike[str],
    checkpoint: str | os.PathLike[str],
    *,
    trigger: dict[str, Any] | None = None,
    stream: dict[str, object] | None = None,
    **options: Any,
) -> StreamingQuery:
    """A streaming query that exports new records of a running writer, batch by batch, as long as it runs.

    ``trigger`` is passed to ``DataStreamWriter.trigger`` (``{"processingTime": "1 minute"}``), ``stream`` has options
    of the source such as ``maxBytesPerTrigger``, and ``options`` are those of :func:`export`. This process holds the
    log until it is exported, as long as the query runs. Files are named by their LSNs, and the manifest lists the valid
    ones: a batch that is delivered again after a restart writes nothing.
    """
    need_pyspark()
    from logstore.spark.options import StreamOptions
    from logstore.spark.ranges import RangeSource
    from logstore.spark.shipping import shipped

    source, place = Path(store_dir).absolute(), _checked_place(target)
    where = place.path if isinstance(place, LocalPlace) else str(target)
    given = {key: str(value) for key, value in (stream or {}).items()}
    asked = StreamOptions.read(given | {"path": str(source)})
    selected = asked.conditions.wanted or asked.conditions.start_time or asked.conditions.stop_time
    if selected or asked.starting is not None:
        raise OptionError("an export has every record from where it ends: leave out what selects rows or a beginning")
    kept = hold_for(source, where, limit_bytes=options.pop("hold_limit_bytes", None))
    try:
        manifest = checked_manifest(place)
        if manifest is not None:
            given.setdefault("start", str(manifest.last_lsn))
        spark.dataSource.register(shipped(RangeSource))
        frame = spark.readStream.format(RangeSource.name()).options(**given).load(str(source))
        writer = frame.writeStream.option("checkpointLocation", str(checkpoint)).foreachBatch(
            _exporting(source, where, options | {"hold": kept})
        )
        query = writer.trigger(**(trigger or {"processingTime": "1 minute"})).start()
    except BaseException:
        kept.release()
        raise
    start("logstore-export-hold", _keep_while, query, kept)
    return query


def _keep_while(query: StreamingQuery, kept: Hold) -> None:
    """Renews the hold as long as the query runs."""
    from pyspark.errors import PySparkException

    try:
        while not query.awaitTermination(RENEWED_EVERY_S):
            kept.renew()
    except (PySparkException, StoreError):
        return  # the query reports its failure itself; its next batch reports missing parts
    finally:
        kept.release()


def _exporting(source: Path, target: Path | str, options: dict[str, Any]) -> Callable[[DataFrame, int], None]:
    def make(batch: DataFrame, _: int) -> None:
        ends = [row["stop_lsn"] for row in batch.collect()]  # one row for each task of the batch, not for each record
        manifest = read_manifest(target)
        if ends and (manifest is None or manifest.last_lsn < max(ends)):
            export(batch.sparkSession, source, target, stop_lsn=max(ends), **options)

    return make
