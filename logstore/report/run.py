"""A report of a log: queue depth, throughput, latency, bytes and the holders of the tail, as figures and as one page.

It reads a store, even while a writer runs, or an export, and changes neither. This process counts with Arrow, or Spark
counts, with the same result. Needs ``pip install '/path/to/checkout[report]'``.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from contextlib import ExitStack, suppress
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from logstore.core import arguments
from logstore.core.extras import require
from logstore.core.moments import moment
from logstore.core.regular_files import as_store_error
from logstore.errors import OptionError, StoreError, UnknownQueue
from logstore.export.addresses import is_address, shown
from logstore.report.answers import Known, answers, not_known
from logstore.report.counts import Grid, Scope, micros
from logstore.report.figures import figures
from logstore.report.names import labels
from logstore.report.sources import ExportSource, StoreSource, open_source
from logstore.report.waiting import content_bytes_of, waiting_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from datetime import datetime

    from pyspark.sql import DataFrame, SparkSession

    from logstore.report.counts import Counts
    from logstore.report.sources import Source

    Show = Callable[[str, int, int], None]

__all__ = ["need_page", "report", "write_page"]

TOP: Final = 10
TOP_MAX: Final = 50
NAMES_TOLD: Final = 10
BROKER_KEYS: Final = ("queues", "connections", "full", "problem")
"""As ``logstore stats --json`` and ``logstore connections --json`` have them; null for what is not known, and why."""


def report(
    path: str | os.PathLike[str],
    *,
    queues: Sequence[str] = (),
    start: datetime | None = None,
    stop: datetime | None = None,
    top: int = TOP,
    title: str | None = None,
    spark: SparkSession | None = None,
    connect: str | None = None,
    catalog: str | None = None,
    broker: Mapping[str, Any] | None = None,
    show: Show = lambda *_: None,
) -> dict[str, Any]:
    """The figures of the store in ``path``, or of the export with this target, as a plain document, ready for JSON.

    ``queues``: only these queues. ``start``, ``stop``: only events from ``start`` on and before ``stop`` (with a time
    zone). ``top``: the number of queues shown one by one in series; the others are one series. ``spark``: a session
    that counts instead of this process. ``connect`` and ``catalog``: the catalog, as in ``logstore.open``. ``broker``:
    what a running broker says of its clients, with the keys of ``BROKER_KEYS``; the command asks it. ``show`` is called
    with the present step, the amount done and the total.

    Raises ``MissingExtra``, ``OptionError``, ``UnknownQueue``, and the errors of reading a store or an export.
    """
    named = shown(path)
    path = path if is_address(path) else arguments.path("path", path)
    queues = arguments.texts("queues", queues)
    arguments.optional(arguments.moment, "start", start)
    arguments.optional(arguments.moment, "stop", stop)
    top = arguments.integer("top", top, 1, TOP_MAX)
    arguments.optional(arguments.text, "title", title)
    arguments.catalog(connect, catalog, called="catalog")
    arguments.optional(_broker, "broker", broker)
    arguments.function("show", show)
    if spark is not None:
        arguments.having("spark", spark, ("createDataFrame", "sql"), "a SparkSession")
    require("report", "numpy")
    require("report", "pyarrow")
    with as_store_error(f"{named} cannot be read"), open_source(path, connect=connect, catalog=catalog) as source:
        ids = _ids(source, queues)
        scope = Scope(ids, None if start is None else micros(start), None if stop is None else micros(stop))
        count = _by_arrow if spark is None else _by_spark
        counts, span, live = count(source, scope, spark, show)
        counts.names = source.names()
        doubts = source.doubts()
        if doubts is not None:
            counts.doubts = doubts
        told = _facts(source, span, scope, queues, title)
        limits = {"not_known": not_known(told, broker, catalog_secret=source.catalog_options()[1])}
        found = answers(_known(source, counts, span, live, broker))
        return told | {"answers": found} | limits | figures(counts, told, top, source.tail())


def _broker(name: str, value: object) -> dict[str, Any]:
    found: dict[str, Any] = arguments.instance(name, value, dict, what="a dict")
    missing = [key for key in BROKER_KEYS if key not in found]
    if missing:
        raise OptionError(f"{name} has no {missing[0]!r}; it needs {', '.join(BROKER_KEYS)}")
    return found


def _ids(source: Source, queues: Sequence[str]) -> frozenset[int] | None:
    if not queues:
        return None
    known = source.names()
    found = frozenset(queue_id for queue_id, name in known.items() if name in queues)
    missing = sorted(set(queues) - {known[queue_id] for queue_id in found})
    if missing:
        names = sorted(known.values())
        more = f" and {len(names) - NAMES_TOLD} more" if len(names) > NAMES_TOLD else ""
        listed = ", ".join(map(repr, names[:NAMES_TOLD])) + more if names else "none"
        raise UnknownQueue(f"{source.shown} knows no queue {missing[0]!r}; there are: {listed}")
    return found


def _grid(span: tuple[int, int] | None, scope: Scope) -> Grid:
    """The intervals that cover the requested part of the log; None if it is empty."""
    if span is None:
        return Grid(scope.start_us or 0, 1_000_000, 0)
    first = span[0] if scope.start_us is None else max(span[0], scope.start_us)
    last = span[1] if scope.stop_us is None else min(span[1], scope.stop_us - 1)
    return Grid.over(first, last) if first <= last else Grid(first, 1_000_000, 0)


def _by_arrow(source: Source, scope: Scope, _: object, show: Show) -> tuple[Counts, tuple[int, int] | None, Any]:
    from logstore.report import arrow as report_arrow

    facts = source.facts
    length = max(facts.end_lsn - facts.base_lsn, 1)

    def watched(what: str, batches: Iterator[Any], column: str) -> Iterator[Any]:
        for batch in batches:
            if batch.num_rows:
                show(what, min(max(batch.column(column)[-1].as_py() - facts.base_lsn, 0), length), length)
            yield batch

    times = watched("looking at times", source.records(report_arrow.FIRST_COLUMNS), "lsn")
    gap_stop = _gap_stop(source)
    span, deletions, resumed = report_arrow.time_range(times, gap_stop)
    records = watched("reading records", source.records(report_arrow.RECORD_COLUMNS), "lsn")
    messages, read_open = source.messages()
    open_rows = cache(read_open)
    counted = watched("following messages", messages, "end_lsn")
    counts = report_arrow.count(records, counted, open_rows, _grid(span, scope), scope, deletions, gap_stop)
    counts.known_from_us = _known_from(span, gap_stop, resumed)
    return counts, span, open_rows()


def _gap_stop(source: Source) -> int | None:
    """The LSN at which the last gap of an export, or its last dropped range, ends; None if it has every record."""
    dropped = [one.stop_lsn for one in source.facts.dropped if one.dataset == "records"]
    return max([gap.stop_lsn for gap in source.facts.gaps] + dropped, default=None)


def _known_from(span: tuple[int, int] | None, gap_stop: int | None, resumed_us: int | None) -> int | None:
    """The time from which depths are known; None if always. With no record behind the gap, only the end is known."""
    if gap_stop is None or span is None:
        return None
    return span[1] if resumed_us is None else resumed_us


def _by_spark(source: Source, scope: Scope, spark: Any, _: Show) -> tuple[Counts, tuple[int, int] | None, Any]:
    from logstore.report import spark as report_spark

    with ExitStack() as stack:
        records, messages, opened, live = _tables(source, spark, stack)
        gap_stop = _gap_stop(source)
        span, resumed = report_spark.time_range(records, gap_stop)
        # A store is read as of one moment, and the core reports the transactions in doubt.
        parts = source.doubts() is None
        grid = _grid(span, scope)
        counts = report_spark.count(records, messages, opened, grid, scope, parts=parts, gap_stop_lsn=gap_stop)
        counts.known_from_us = _known_from(span, gap_stop, resumed)
        return counts, span, live


def _tables(source: Source, spark: SparkSession, stack: ExitStack) -> tuple[DataFrame, DataFrame, DataFrame, Any]:
    """Records, messages and open messages for Spark, and the open messages as an Arrow table.

    For a store, the rows of messages need one sequential pass. It is made here, into temporary files.
    """
    from logstore.report.arrow import RECORD_COLUMNS

    place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="logstore-report-")))
    if isinstance(source, ExportSource):
        records = _exported(spark, source, RECORD_COLUMNS, "records")
        messages = _exported(spark, source, None, "messages")
        live = source.open_rows()
        opened = _written(live.to_batches(), place / "open.parquet", "open")
        return records, messages, _parquet(spark, [opened], None, "open"), live
    import json

    from logstore import spark as facade

    if not isinstance(source, StoreSource):
        raise TypeError(f"Spark reads stores and exports, not {source!r}")
    bounds = json.dumps({str(source.path.absolute()): (source.start_lsn, source.stop_lsn)})
    records = facade.read(spark, source.path, columns=RECORD_COLUMNS, snapshot=bounds)
    batches, open_rows = source.messages()
    closed = _written(batches, place / "messages.parquet", "messages")
    live = open_rows()
    opened = _written(live.to_batches(), place / "open.parquet", "open")
    return records, _parquet(spark, [closed], None, "messages"), _parquet(spark, [opened], None, "open"), live


def _written(batches: Any, path: Path, kind: str) -> str:
    parquet = require("report", "pyarrow.parquet")
    with parquet.ParquetWriter(path, _schema(kind)) as writer:
        for batch in batches:
            writer.write_batch(batch.cast(_schema(kind)))
    return str(path)


def _schema(kind: str) -> Any:
    """The schema for Parquet and Spark: texts without dictionaries."""
    from logstore import arrow

    return {"records": arrow.RECORDS, "messages": arrow.MESSAGES, "open": arrow.OPEN}[kind]


def _parquet(spark: SparkSession, paths: list[str], columns: Sequence[str] | None, kind: str) -> DataFrame:
    from pyspark.sql.pandas.types import from_arrow_schema

    made = from_arrow_schema(_schema(kind))
    table = spark.read.schema(made).parquet(*paths) if paths else spark.createDataFrame([], made)
    return table if columns is None else table.select(*columns)


def _exported(spark: SparkSession, source: ExportSource, columns: Sequence[str] | None, kind: str) -> DataFrame:
    from pyspark.sql.pandas.types import from_arrow_schema

    from logstore.spark.exported_files import parquet_files

    names = source.files(kind)
    if not names:
        return _parquet(spark, [], columns, kind)
    table = parquet_files(spark.read.schema(from_arrow_schema(_schema(kind))), source.place, names)
    return table if columns is None else table.select(*columns)


def _known(
    source: Source, counts: Counts, span: tuple[int, int] | None, live: Any, broker: Mapping[str, Any] | None
) -> Known:
    """What the answers need. A queue of a store that nobody has open stood still only up to the last record."""
    facts = source.facts
    now_us = (facts.read_us if facts.state == "live" else None) or (0 if span is None else span[1])
    work, tail = source.work(), source.tail()
    content = content_bytes_of(live, {message_id for one in work or () for message_id in one.message_ids})
    return Known(
        place="DIR" if facts.kind == "export" else source.shown,
        labels=labels(counts.names),
        names=counts.names,
        waiting=waiting_of(live, now_us),
        left_us=None
        if counts.scope.stop_us is not None
        else {queue_id: counts.last_left_us(queue_id) for queue_id in counts.queue_ids()},
        step_us=counts.grid.step_us,
        first_us=None if span is None else span[0],
        now_us=now_us,
        doubts=counts.doubts,
        work=work,
        work_bytes={one.tx_id: sum(content.get(message_id, 0) for message_id in one.message_ids) for one in work or ()},
        tail=tail,
        dead_bytes=0 if tail is None else sum(one["dead_bytes"] for one in tail["segments"]),
        holding=source.holding(),
        dead_letter_ids=source.dead_letter_ids(),
        broker=broker,
        queues_asked=counts.scope.queues,
        catalog_options=source.catalog_options()[0],
    )


def _facts(
    source: Source, span: tuple[int, int] | None, scope: Scope, queues: Sequence[str], title: str | None
) -> dict[str, Any]:
    def iso(us: int | None) -> str | None:
        return None if us is None else moment(us).isoformat()

    facts = source.facts
    return {
        "title": title or f"{source.last_name}: a report",
        "store": source.shown,
        "kind": facts.kind,
        "uuid": facts.uuid,
        "state": facts.state,
        "base_lsn": facts.base_lsn,
        "end_lsn": facts.end_lsn,
        "log_bytes": facts.log_bytes,
        "first_time": None if span is None else iso(span[0]),
        "last_time": None if span is None else iso(span[1]),
        "read_time": iso(facts.read_us or (None if span is None else span[1])),
        "missing_before": None
        if facts.missing is None
        else {"lsn": facts.missing.lsn, "time": iso(facts.missing.time_us)},
        "dropped": [asdict(one) for one in facts.dropped],
        "gaps": [[gap.start_lsn, gap.stop_lsn] for gap in facts.gaps],
        "from": iso(scope.start_us),
        "to": iso(scope.stop_us),
        "queues_asked": list(queues),
    }


def need_page() -> None:
    """Raises ``MissingExtra`` if a library for :func:`write_page` is missing: checked before a long reading."""
    from logstore.report.plots import only_errors

    with only_errors():
        require("report", "matplotlib")
    require("report", "jinja2")


def write_page(found: dict[str, Any], target: str | os.PathLike[str]) -> None:
    """Writes the page of a report's figures to a file, atomically: an existing file is replaced at the end.

    Raises ``MissingExtra``, ``OptionError`` for a target that is not a file, ``StoreError`` if it cannot be written.
    """
    from logstore.report.page import page

    goal = arguments.path("target", target)
    with as_store_error(f"{goal} cannot be written"):
        if goal.is_dir():
            raise OptionError(f"the target {goal} is a directory: name a file")
    try:
        text = page(arguments.instance("found", found, dict, what="the document that report() gives"))
    except KeyError as problem:
        raise OptionError(f"found is not the document that report() gives: it has no {problem}") from problem
    staged = goal.parent / f".{goal.name}.{secrets.token_hex(4)}"
    try:
        with staged.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        staged.replace(goal)
    except OSError as error:
        raise StoreError(f"{goal} cannot be written: {error.strerror}; choose another place with -o") from error
    finally:
        with suppress(OSError):
            staged.unlink(missing_ok=True)
