"""An export and the log above it as one DataFrame; see :mod:`logstore.export.joined` for what a join is.

Spark's own Parquet reader reads the exported rows, so they cost what Parquet costs. A short log's side is decoded when
the frame is made, and the frame then does not depend on the log; a long one is the source ``logstore``, read by tasks.

The exported rows are as their files have them, except that a transaction that was undecided when a file was written has
the outcome that is known now.
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from logstore.codec.records import LSN_LIMIT
from logstore.core.extras import require
from logstore.errors import OptionError
from logstore.export.joined import DECIDING, UNDECIDED, Join, decision_table, decisions, known_places, tail_messages
from logstore.rows.properties import DECODED, decoded_columns
from logstore.rows.records import Where, queue_names, read
from logstore.rows.schema import message_schema, open_schema, schema
from logstore.rows.times import lsn_at
from logstore.spark.exported_files import parquet_files
from logstore.spark.filters import listed
from logstore.spark.options import BODY_BYTES
from logstore.spark.schema import STORE, spark_schema, target_schema
from logstore.spark.source import shaped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from logstore.export.manifest import FileInfo
    from logstore.spark.options import Options

__all__ = ["TABLES", "joined_table"]

TABLES: Final = ("records", "messages", "open")
EAGER_BYTES: Final = 8 << 20
"""A log's side of at most so many bytes is decoded when the frame is made, and then no writer can recycle it.

A task of the Python source costs more than these rows, one of the connector less.
"""

_HEADER_FUNCTIONS: Final = "logstore.spark.HeaderFunctions$"
_DECIDED_LATER: Final = frozenset({"outcome", "effect_lsn", "effect_time", "enqueue_lsn", "enqueue_time"})
_OF_PLACES: Final = frozenset({"enqueue_lsn", "enqueue_time"})
_KEYS: Final = {"records": ("lsn", "time"), "messages": ("end_lsn", "end_time"), "open": ("id", "start_time")}


def joined_table(
    spark: SparkSession,
    join: Join,
    table: str,
    columns: Sequence[str] | None,
    options: Options,
    tail: Callable[[list[str], int, int], DataFrame],
    *,
    engine: str,
    store: bool,
) -> DataFrame:
    """The frame of one store's join. ``tail`` makes the frame of the log's records from one LSN to another;
    ``engine`` decodes what is made from the exported headers; ``store`` adds the column of that name to the default
    ones.
    """
    if options.as_of_lsn is not None:
        raise OptionError("as_of_lsn is for the log alone: with an export, outcomes are those known now")
    if table == "records":
        return _Records(spark, join, columns, options, tail, engine=engine, store=store).frame()
    return _messages(spark, join, table, columns, options, store=store)


def _body_bytes(join: Join, options: Options) -> int:
    """The length to which bodies are cut. Raises ``OptionError`` if the export has none, or shorter ones."""
    kept, asked = join.manifest.options.body, options.body
    if kept is None or (asked or 0) > kept:
        has = "no bodies" if kept is None else f"bodies of at most {kept} bytes"
        raise OptionError(
            f"the export in {join.target} has {has}: leave the column body out, ask for fewer bytes, or "
            f"export to a new target with --body {asked or BODY_BYTES}"
        )
    return kept if asked is None else asked


# ---- Records


class _Records:
    def __init__(
        self,
        spark: SparkSession,
        join: Join,
        columns: Sequence[str] | None,
        options: Options,
        tail: Callable[[list[str], int, int], DataFrame],
        *,
        engine: str,
        store: bool,
    ) -> None:
        self._spark, self._join, self._options, self._tail = spark, join, options, tail
        self._engine = engine
        self._schema = spark_schema(columns, body=options.body is not None, store=store)
        self._names = self._schema.fieldNames()
        self._body = _body_bytes(join, options) if "body" in self._names else None
        places = _places(spark, join, options)
        self._start = max(options.conditions.start_lsn, places[0])
        self._stop = min(options.conditions.stop_lsn, places[1])

    def frame(self) -> DataFrame:
        """The exported rows, then those of the log."""
        made = self._exported().select(*self._names)
        above = self._above()
        return made if above is None else made.unionByName(above.select(*self._names))

    # ---- Below the export's last LSN

    def _exported(self) -> DataFrame:
        needed = {name for name in self._names if name not in DECODED and name not in (STORE, "body")}
        needed |= {"header"} if set(DECODED) & set(self._names) else set()
        needed |= {"tx_id", "outcome", "id", "type", *_OF_PLACES} if _DECIDED_LATER & needed else set()
        needed |= {"lsn", "time", *self._options.conditions.wanted}
        schema = spark_schema([name for name in spark_schema().fieldNames() if name in needed])
        if self._body is not None:
            schema = schema.add(spark_schema(["body"])["body"])
        frame = self._settled(schema) if _DECIDED_LATER.intersection(self._names) else self._files(schema)
        frame = _selected(frame, self._options, self._start, self._stop, *_KEYS["records"])
        if self._body is not None:
            frame = frame.withColumn("body", _functions().substring("body", 1, self._body))
        if set(DECODED).intersection(self._names):
            decode = _decoded_in_java if self._engine == "jvm" else _decoded
            frame = decode(frame, [name for name in DECODED if name in self._names])
        return frame.withColumn(STORE, _functions().lit(self._join.store)) if STORE in self._names else frame

    def _files(self, schema: StructType, only: Callable[[FileInfo], bool] = lambda _: True) -> DataFrame:
        return _parquet(self._spark, self._join, "records", schema, self._options, self._start, self._stop, only)

    def _settled(self, schema: StructType) -> DataFrame:
        """The exported rows, with the outcomes that later files or the log have.

        One query of the column ``outcome`` finds the files with undecided rows; only their rows are joined.
        """
        f = _functions()
        whole = self._files(schema)
        undecided = whole.where(f.col("outcome").isin(*UNDECIDED))
        found = undecided.groupBy("tx_id").agg(f.collect_set("_metadata.file_path").alias("paths")).collect()
        if not found:
            return whole
        known = self._decisions([row["tx_id"] for row in found])
        if known is None:
            return whole
        decided = set(known.column("id").to_pylist())
        names = {path.rsplit("/", 1)[1] for row in found if row["tx_id"] in decided for path in row["paths"]}
        stale = self._files(schema, lambda file: file.path.rsplit("/", 1)[1] in names)
        rest = self._files(schema, lambda file: file.path.rsplit("/", 1)[1] not in names)
        return rest.unionByName(self._decided(stale, known).select(*rest.columns))

    def _decisions(self, transactions: list[int]) -> pa.RecordBatch | None:
        """The outcomes of these transactions; see :func:`logstore.export.joined.decision_table`."""
        f, arrow = _functions(), _arrow()
        columns = ["id", "type", "lsn", "time"]
        ids = arrow.array(transactions, arrow.int64())
        wanted = self._spark.createDataFrame(arrow.table({"id": ids}))
        deciding = _parquet(self._spark, self._join, "records", spark_schema(columns))
        exported = deciding.where(f.col("type").isin(*DECIDING)).join(f.broadcast(wanted), "id", "left_semi")
        above = decisions(self._join).select(columns) if self._join.tail_bytes else None
        tables = [exported.select(*columns).toArrow(), *([] if above is None else [above])]
        rows = arrow.concat_tables([table.cast(schema(columns)) for table in tables])
        return decision_table(rows.filter(require("spark", "pyarrow.compute").is_in(rows["id"], ids)))

    def _decided(self, frame: DataFrame, known: pa.RecordBatch) -> DataFrame:
        f = _functions()
        made = _arrow().Table.from_batches([known])
        later = self._spark.createDataFrame(made).toDF("decided", "decision", "decided_lsn", "decided_time")
        undecided = f.col("outcome").isin(*UNDECIDED)
        joined = frame.join(f.broadcast(later), (f.col("tx_id") == f.col("decided")) & undecided, "left")
        committed = f.col("decision") == "committed"
        # The place that a dequeue ends became visible with the same commit if its own transaction made it.
        manifest = self._join.manifest
        whole = f.col("id") >= manifest.first_lsn if not manifest.gaps else f.lit(False)
        ends = f.col("type").isin("MESSAGE_DEQUEUE", "MESSAGE_MOVE") & f.col("enqueue_lsn").isNull() & whole
        values: dict[str, Column] = {
            "outcome": f.coalesce("decision", "outcome"),
            "effect_lsn": f.when(committed, f.coalesce("effect_lsn", "decided_lsn")).otherwise(f.col("effect_lsn")),
            "effect_time": f.when(committed, f.coalesce("effect_time", "decided_time")).otherwise(f.col("effect_time")),
            "enqueue_lsn": f.when(committed & ends, f.col("decided_lsn")).otherwise(f.col("enqueue_lsn")),
            "enqueue_time": f.when(committed & ends, f.col("decided_time")).otherwise(f.col("enqueue_time")),
        }
        return joined.withColumns({name: value for name, value in values.items() if name in frame.columns})

    # ---- From there on

    def _above(self) -> DataFrame | None:
        """The rows of the log; None if there are none."""
        join = self._join
        start, stop = max(self._start, join.keep_lsn), min(self._stop, join.end_lsn)
        if not join.tail_bytes or start >= stop or self._options.conditions.impossible:
            return None
        known = known_places(join) if _OF_PLACES.intersection(self._names) else None
        if join.tail_bytes <= EAGER_BYTES and not self._options.permissive:
            return self._read_now(start, stop, known)
        needed = list(self._names)
        if known is not None:
            needed += [name for name in ("id", "type", "queue_id", "from_queue_id", *_OF_PLACES) if name not in needed]
        frame = self._tail(needed, start, stop)
        if self._body is not None:  # without an option the source gives more than the export has
            frame = frame.withColumn("body", _functions().substring("body", 1, self._body))
        return frame if known is None else _with_places(frame, self._spark.createDataFrame(known))

    def _read_now(self, start: int, stop: int, known: pa.Table | None) -> DataFrame:
        join, options = self._join, self._options
        conditions, schema = options.conditions, target_schema(self._schema)
        names = _names(join, options) if "queue" in [*self._names, *conditions.wanted] else {}
        with read(
            join.source,
            start_lsn=start,
            stop_lsn=stop,
            columns=[name for name in self._names if name != STORE] or ["lsn"],
            body=self._body,
            where=Where(
                types=listed(conditions.wanted.get("type")),
                queue_ids=conditions.queue_ids(names),
                ids=listed(conditions.wanted.get("id")),
                start_time=conditions.start_time,
                stop_time=conditions.stop_time,
            ),
            keep_lsn=join.keep_lsn,
            end_lsn=join.info.end_lsn,
            as_of_lsn=join.end_lsn,
            queue_names=names,
            strings="plain",
            known=known,
        ) as rows:
            batches = [shaped(batch, self._names, schema, join.store) for batch in rows]
        return _local(self._spark, _arrow().Table.from_batches(batches, schema=schema))


def _local(spark: SparkSession, rows: pa.Table) -> DataFrame:
    """Rows of the log as a frame that does not depend on it, in one task: each task costs more than these rows."""
    return spark.createDataFrame(rows).coalesce(1)


def _with_places(frame: DataFrame, known: DataFrame) -> DataFrame:
    """The rows with the places that they end, for those whose records the scanner could not look up."""
    f = _functions()
    known = known.toDF("place_id", "place_queue_id", "place_lsn", "place_time")
    left = f.when(f.col("type") == "MESSAGE_MOVE", f.col("from_queue_id")).otherwise(f.col("queue_id"))
    # Of a message that was moved the scanner knows the LSN, but not the time.
    missing = f.col("type").isin("MESSAGE_DEQUEUE", "MESSAGE_MOVE") & f.col("enqueue_time").isNull()
    same = missing & (f.col("id") == f.col("place_id")) & (left == f.col("place_queue_id"))
    return frame.join(f.broadcast(known), same, "left").withColumns(
        {
            "enqueue_lsn": f.coalesce("enqueue_lsn", "place_lsn"),
            "enqueue_time": f.coalesce("enqueue_time", "place_time"),
        }
    )


def _decoded(frame: DataFrame, names: list[str]) -> DataFrame:
    """The frame with columns that are made from ``header``, by the Python of Spark's workers."""
    from pyspark.sql.types import StructType

    whole = StructType([*frame.schema.fields, *spark_schema(names).fields])
    target = target_schema(whole)

    def decode(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        arrow = _arrow()
        for batch in batches:
            made = decoded_columns(names, batch.column("header"))
            arrays = [*batch.columns, *(made[name].cast(target.field(name).type) for name in names)]
            yield arrow.RecordBatch.from_arrays(arrays, schema=target)

    return frame.mapInArrow(decode, whole)


def _decoded_in_java(frame: DataFrame, names: list[str]) -> DataFrame:
    """The same, by functions of the connector's jar."""
    f, spark = _functions(), frame.sparkSession
    for name in names:
        function = f"logstore_{name}"
        if not spark.catalog.functionExists(function):  # Spark warns of a second registration
            kind = spark_schema([name])[name].dataType
            spark.udf.registerJavaFunction(function, _HEADER_FUNCTIONS + name.title(), kind)
        frame = frame.withColumn(name, f.call_function(function, f.col("header")))
    return frame


# ---- Messages


def _messages(
    spark: SparkSession, join: Join, table: str, columns: Sequence[str] | None, options: Options, *, store: bool
) -> DataFrame:
    """The messages that ended, or are open; the log's side is one pass, made now, because the open set moves on."""
    conditions = options.conditions
    if options.permissive or "type" in conditions.wanted:
        raise OptionError(f"mode and types are options of records, and the table is {table}")
    if table == "open" and _has_bounds(options):
        raise OptionError("the open messages are those at the end of the log: leave out what begins or stops the table")
    kind = message_schema if table == "messages" else open_schema
    names = _wanted(kind(body=True).names, columns, table, body=options.body is not None, store=store)
    body = _body_bytes(join, options) if "body" in names else None
    made = kind(body=body is not None)
    # A body has at least one byte in a pass; Spark cuts it further.
    above = tail_messages(join, _names(join, options), table, body=None if body is None else max(1, body))
    tail = _arrow().Table.from_batches(above, schema=made)
    frames = []
    if table == "messages":
        first, last = _places(spark, join, options)
        start, stop = max(conditions.start_lsn, first), min(conditions.stop_lsn, last)
        frames.append(_parquet(spark, join, "messages", _spark_fields(made), options, start, stop).drop("day"))
    else:
        start, stop = 0, conditions.stop_lsn
    if tail.num_rows or table == "open":
        frames.append(_local(spark, tail))
    whole = reduce(lambda one, other: one.unionByName(other), frames)
    whole = _selected(whole, options, start, stop, *_KEYS[table])
    if body is not None:
        whole = whole.withColumn("body", _functions().substring("body", 1, body))
    whole = whole.withColumn(STORE, _functions().lit(join.store)) if STORE in names else whole
    return whole.select(*names)


def _wanted(known: list[str], columns: Sequence[str] | None, table: str, *, body: bool, store: bool) -> list[str]:
    if columns is None:
        return [*([STORE] if store else []), *(name for name in known if body or name != "body")]
    wanted = [name.lower() for name in columns]
    unknown = sorted(set(wanted) - {*known, STORE})
    if unknown:
        raise OptionError(f"the table {table} has no column {unknown[0]}; it has {', '.join([STORE, *known])}")
    return wanted


def _has_bounds(options: Options) -> bool:
    """Whether the options begin or end the table at a place in the log."""
    conditions = options.conditions
    least = min(conditions.wanted.get("id", ()), default=0)  # ids set this beginning themselves
    places = (options.starting, options.ending)
    return places != (None, None) or conditions.start_lsn > least or conditions.stop_lsn < LSN_LIMIT


def _names(join: Join, options: Options) -> dict[int, str]:
    return queue_names(join.source, connect=options.connect, catalog=options.catalog, info=join.info)


# ---- Rows of files


def _parquet(
    spark: SparkSession,
    join: Join,
    dataset: str,
    schema: StructType,
    options: Options | None = None,
    start: int = 0,
    stop: int = LSN_LIMIT,
    only: Callable[[FileInfo], bool] = lambda _: True,
) -> DataFrame:
    """The rows of the manifest's files, of those that can have rows in these LSNs and in the times of the options.

    A column that an older file lacks is null. Files that later runs add are not read.
    """
    times = (None, None) if options is None else (options.conditions.start_time, options.conditions.stop_time)
    files = [
        file.path
        for file in join.manifest.of(dataset)
        if file.start_lsn < stop and start < file.stop_lsn and _day_in(file, times) and only(file)
    ]
    if not files:
        return spark.createDataFrame(target_schema(schema).empty_table())
    reader = spark.read.schema(schema).options(
        basePath=f"{join.target.hadoop}/{dataset}",
        ignoreMissingFiles="false",  # a session may say otherwise, and would then lose rows silently
        ignoreCorruptFiles="false",
        __globPaths__="false",  # a path may have brackets in it
    )
    return parquet_files(reader, join.target, files)


def _day_in(file: FileInfo, times: tuple[datetime | None, datetime | None]) -> bool:
    """Whether the UTC day of a file has times in this range. A time that no day has counts as the first or last one."""
    day = date.fromisoformat(file.path.split("/")[1].removeprefix("day="))
    start, stop = (None if each is None else max(each.astimezone(UTC).date(), date(1970, 1, 1)) for each in times)
    return (start is None or start <= day) and (stop is None or day <= stop)


def _selected(frame: DataFrame, options: Options, start: int, stop: int, lsn: str, moment: str) -> DataFrame:
    """The rows in these LSNs that meet the conditions of the options."""
    f, conditions = _functions(), options.conditions
    if start > 0:
        frame = frame.where(f.col(lsn) >= start)
    if stop < LSN_LIMIT:
        frame = frame.where(f.col(lsn) < stop)
    for column, values in conditions.wanted.items():
        frame = frame.where(f.col(column).isin(*sorted(values)))
    if conditions.start_time is not None:
        frame = frame.where(f.col(moment) >= f.lit(conditions.start_time))
    if conditions.stop_time is not None:
        frame = frame.where(f.col(moment) < f.lit(conditions.stop_time))
    return frame


def _places(spark: SparkSession, join: Join, options: Options) -> tuple[int, int]:
    """The LSNs where the log reached the times at which the options begin and end the table."""
    starting, ending = options.starting, options.ending
    return (
        0 if starting is None else _place(spark, join, starting),
        LSN_LIMIT if ending is None else _place(spark, join, ending),
    )


def _place(spark: SparkSession, join: Join, time: datetime) -> int:
    f = _functions()
    exported = _parquet(spark, join, "records", spark_schema(["lsn", "time"]))
    (found,) = exported.where(f.col("time") >= f.lit(time)).agg(f.min("lsn")).collect()
    if found[0] is not None:
        return int(found[0])
    return min(
        lsn_at(join.source, time, start_lsn=join.keep_lsn, keep_lsn=join.keep_lsn, end_lsn=join.info.end_lsn),
        max(1, join.end_lsn),
    )


def _spark_fields(schema: pa.Schema) -> StructType:
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema, prefer_timestamp_ntz=False)


def _functions() -> Any:
    from pyspark.sql import functions

    return functions


def _arrow() -> Any:
    return require("spark", "pyarrow")
