"""The log as a Spark data source: ``spark.read.format("logstore").load(path)``.

A task gets a range of whole segments and passes Arrow batches from the core's scanner to Spark; no record ever becomes
a Python object. A DataFrame sees its stores as of its first planning, or, from :func:`logstore.spark.read`, as of its
creation. If a running writer recycles the log before a query has read it, the query fails with
:class:`~logstore.inspect.LogRecycled` and never skips a part; :func:`logstore.spark.held` prevents this.

Files are open only while a range is read, because the objects here are pickled and sent to executors.
"""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from logstore.errors import OptionError, StoreError
from logstore.rows.properties import DECODED
from logstore.spark.filters import listed
from logstore.spark.options import BODY_BYTES, Options, StreamOptions, given_for, kept_with, paths_of
from logstore.spark.plan import Range, cut, look, place_of, used_names
from logstore.spark.schema import STORE, checked_columns, spark_schema, target_schema
from logstore.spark.shipping import Shipped, plainly

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceStreamReader, DataSourceStreamWriter, DataSourceWriter, Filter
    from pyspark.sql.types import StructType

    from logstore.spark.plan import View

__all__ = ["LogSource", "OncePushedLogSource", "PushingLogSource", "RangePartition", "read_range", "shaped"]

TOLD_BY_EARLIER = frozenset({"enqueue_lsn", "enqueue_time", "outcome"})
"""Columns for which the scanner also reads the log before a range."""

READ_ONLY = (
    "Spark reads a log and does not write it: publish the rows to a broker, or with logstore.open(DIR).publish_many; "
    "to keep rows as files, write them as Parquet"
)


class RangePartition(InputPartition):
    """The range of one task."""

    def __init__(self, wanted: Range) -> None:
        super().__init__(wanted)


class LogSource(Shipped, DataSource):
    """The format ``logstore``. Spark applies all conditions itself."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "logstore"

    @plainly()
    def schema(self) -> StructType:
        """All columns; ``body`` with the option, ``store`` if there is more than one store."""
        given = {key.lower(): value for key, value in self.options.items()}
        made = spark_schema(body="body" in given, store=len(paths_of(given)) > 1)
        return kept_with(made, given)

    @plainly()
    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of one query."""
        return LogReader(schema, Options.read(given_for(schema, self.options)))

    @plainly()
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: ARG002 - as Spark has it
        """Raises ``OptionError``: the log is only read."""
        raise OptionError(READ_ONLY)

    @plainly()
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: ARG002, N802 - same
        """Raises ``OptionError``: the log is only read."""
        raise OptionError(READ_ONLY)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's own name
        """The reader of one streaming query."""
        from logstore.spark.stream import LogStream, RefusedStream
        from logstore.spark.streams import ManyStreams

        try:
            options = StreamOptions.read(given_for(schema, self.options))
            return (LogStream if len(options.paths) == 1 else ManyStreams)(schema, options)
        except StoreError as refused:
            return RefusedStream(refused)


class PushingLogSource(LogSource):
    """The same format for ``spark.sql.python.filterPushdown.enabled`` = true: the scanner applies what it can.

    Spark refuses a reader with pushdown while that setting is false, so there are two classes. Also, Spark 4 reuses the
    plan of a query with conditions for all queries of the same DataFrame: a query without conditions, or one that joins
    the frame with itself, then gets wrong rows. See :func:`logstore.spark.pushdown_is_sound`.
    """

    @plainly()
    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of one query."""
        return PushingLogReader(schema, Options.read(given_for(schema, self.options)))


class OncePushedLogSource(PushingLogSource):
    """The same under the name ``logstore_pushed``, for single frames in a session that pushes no other conditions."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "logstore_pushed"


class LogReader(Shipped, DataSourceReader):
    """Plans one query in the driver, and reads its ranges in executors."""

    def __init__(self, schema: StructType, options: Options) -> None:
        self._schema = schema
        self._options = options
        self._columns = checked_columns(schema)
        self._conditions = deepcopy(options.conditions)

    @plainly()
    def partitions(self) -> Sequence[InputPartition]:
        """Ranges of whole segments, for each store as it is now."""
        if self._conditions.impossible:
            return []
        views = [self._look(path) for path in self._options.paths]
        return [RangePartition(one) for view in views for one in self._ranges(view, len(views))]

    def _look(self, path: str) -> View:
        options = self._options
        held = options.snapshot.get(path)
        named = "queue" in self._columns or "queue" in self._conditions.wanted
        return look(
            path,
            names=named,
            keep_lsn=None if held is None else held[0],
            end_lsn=None if held is None else held[1],
            connect=options.connect,
            catalog=options.catalog,
            permissive=options.permissive,
        )

    def _ranges(self, view: View, stores: int) -> Iterator[Range]:
        options, conditions = self._options, self._conditions
        held = options.snapshot.get(view.path)
        end_lsn = view.stop_lsn if held is None else held[1]
        stop_lsn = min(end_lsn, conditions.stop_lsn)
        start_lsn = max(conditions.start_lsn, 0 if held is None else held[0])
        queue_ids = conditions.queue_ids(view.names)
        if queue_ids == ():
            return
        base_lsn = view.base_lsn if held is None else held[0]
        keep_lsn = None if held is None else max(1, base_lsn)
        if options.starting is not None:
            start_lsn = max(start_lsn, place_of(view, options.starting, keep_lsn, permissive=options.permissive))
        if options.ending is not None:
            stop_lsn = min(stop_lsn, place_of(view, options.ending, keep_lsn, permissive=options.permissive))
        for parts in cut(view.clipped(start_lsn, stop_lsn), options.partition_bytes, stores):
            first = parts[0][0]
            yield Range(
                path=view.path,
                uuid=str(view.uuid),
                start_lsn=first,
                stop_lsn=parts[-1][1],
                keep_lsn=max(1, base_lsn if TOLD_BY_EARLIER.intersection(self._columns) else first),
                end_lsn=view.end_lsn,
                as_of_lsn=end_lsn if options.as_of_lsn is None else options.as_of_lsn,
                names=used_names(view.names, self._columns),
                types=listed(conditions.wanted.get("type")),
                queue_ids=queue_ids,
                ids=listed(conditions.wanted.get("id")),
                start_time=conditions.start_time,
                stop_time=conditions.stop_time,
            )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one range, in LSN order; runs in an executor."""
        if partition.value is not None:  # Spark makes an empty partition if there are no ranges
            with plainly():
                yield from read_range(partition.value, self._schema, self._options)


class PushingLogReader(LogReader):
    """Also applies the conditions that the scanner supports."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's own name
        """Returns the conditions that Spark must apply."""
        return self._conditions.take(filters)


# ---- In executors


def read_range(wanted: Range, schema: StructType, options: Options | StreamOptions) -> Iterator[pa.RecordBatch]:
    """The rows of one range, with exactly this schema.

    Raises ``CorruptLog`` at damage, unless the options are permissive: then unreadable parts are skipped and logged.
    Raises ``LogRecycled`` if a writer recycled a part.
    """
    import logstore.arrow

    columns = checked_columns(schema)
    target = target_schema(schema)
    # The scanner needs at least one column to count the rows.
    ours = [name for name in columns if name != STORE] or ["lsn"]
    body = (BODY_BYTES if options.body is None else options.body) if "body" in ours else None
    with logstore.arrow.read(
        wanted.path,
        start_lsn=wanted.start_lsn,
        stop_lsn=wanted.stop_lsn,
        columns=ours,
        body=body,
        where=wanted.where(),
        keep_lsn=wanted.keep_lsn,
        end_lsn=wanted.end_lsn,
        as_of_lsn=wanted.as_of_lsn,
        queue_names=dict(wanted.names),
        batch_rows=options.batch_rows,
        strings="plain",
        permissive=isinstance(options, Options) and options.permissive,
    ) as reader:
        for batch in reader:
            yield shaped(batch, columns, target, wanted.uuid)


def shaped(batch: pa.RecordBatch, columns: Sequence[str], target: pa.Schema, uuid: str) -> pa.RecordBatch:
    """The batch with these columns in this order, in Spark's types; ``uuid`` is the store's."""
    import pyarrow as pa

    arrays = [pa.repeat(pa.scalar(uuid), batch.num_rows) if name == STORE else batch.column(name) for name in columns]
    # Spark's own types of structs and maps name their fields, or declare them null, in other ways.
    arrays = [
        array.cast(field.type) if field.name.lower() in DECODED else array
        for array, field in zip(arrays, target, strict=True)
    ]
    if not arrays:
        return batch.select([])
    return pa.RecordBatch.from_arrays(arrays, schema=target)
