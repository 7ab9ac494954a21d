"""Reading the log in Spark: :func:`register`, :func:`read`, :func:`read_stream`, :func:`held`, :func:`read_exports`."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from logstore.errors import OptionError
from logstore.spark.java import need_pyspark

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

    from logstore.holds import Hold

__all__ = ["held", "pushdown_is_sound", "read", "read_exports", "read_stream", "register"]

Exports = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

EXPORTED: Final = ("records", "messages", "open")
PUSHDOWN: Final = "spark.sql.python.filterPushdown.enabled"


def register(spark: SparkSession, *, pushdown: bool = False, engine: str | None = None) -> None:
    """Registers the format ``logstore`` in this session, for DataFrames, streams and ``USING logstore`` in SQL.

    ``engine`` is the source that gets this name, and that :func:`read` uses in this session: ``python``, or ``jvm`` for
    the JVM connector. Without it the Python source gets the name only. Each has a name of its own as well,
    ``logstore-python`` and ``logstore-jvm``.

    With ``pushdown`` the scanner applies the conditions of a query that it supports; the session's setting
    ``spark.sql.python.filterPushdown.enabled`` is then set to true, and must stay so. See the limits in
    :func:`pushdown_is_sound`. A second call replaces the first.

    Raises :class:`MissingExtra`, and ``OptionError`` for another engine, or ``jvm`` in a session without the connector.
    """
    need_pyspark()
    from logstore.spark.engines import PYTHON_FORMAT, chosen, give_name
    from logstore.spark.shipping import shipped
    from logstore.spark.source import LogSource, PushingLogSource

    if engine is not None:
        give_name(spark, chosen(spark, engine, pushdown=pushdown or None))
    if pushdown:
        spark.conf.set(PUSHDOWN, "true")
    source = PushingLogSource if pushdown else LogSource
    for name in (PYTHON_FORMAT,) if engine == "jvm" else (source.name(), PYTHON_FORMAT):
        spark.dataSource.register(shipped(source, name))


def pushdown_is_sound(spark: SparkSession) -> bool:
    """Whether this Spark keeps the conditions of one query apart from the next query on the same DataFrame.

    Spark 4.1 to 4.3 does not: after conditions were pushed into a Python source, every other scan of that DataFrame
    uses the same plan. So ``frame.where(...).count()`` changes the result of a later ``frame.count()``, and a frame
    joined with itself is read with one side's conditions on both sides. Later versions are correct.
    """
    try:
        jvm: Any = spark._jvm
        find = jvm.java.lang.Class.forName
        builder = find("org.apache.spark.sql.execution.datasources.v2.python.PythonScanBuilder")
        return any(field.getName() == "readInfo" for field in builder.getDeclaredFields())
    except Exception:  # noqa: BLE001 - a session of Spark Connect has no JVM to ask, and the answer is then no
        return False


def read(
    spark: SparkSession,
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    table: str = "records",
    *,
    export: Exports | None = None,
    columns: Sequence[str] | None = None,
    pushdown: bool | None = None,
    engine: str | None = None,
    **options: object,
) -> DataFrame:
    """The records of one or more stores as a DataFrame; all its queries see the stores as they are at this call.

    ``export``: the target of an export of the store, a list of targets, or a directory with a target for each store.
    Then the frame has the exported rows, read by Spark's Parquet reader, and above the export's last LSN those of the
    log; each row once, also while the export and the log move on. ``table`` may then be ``messages`` (those that ended)
    or ``open``, too. docs/spark.md has what it costs and where its values differ from those of the log alone.

    ``engine``: ``python`` or ``jvm``, the source that reads; by default the JVM connector, if the session has it.

    ``columns`` are the columns to read, in their order. Spark cannot tell a Python source which columns a query uses,
    so naming them here saves work. ``options`` are those of the source; ``start_lsn``, ``stop_lsn``, ``types``,
    ``queues``, ``queue_ids``, ``ids``, ``start_time`` and ``stop_time`` select the records that the scanner returns.

    ``pushdown``, of the Python source: the scanner also applies the supported conditions of each query. The default is
    the result of :func:`pushdown_is_sound`; ``True`` in spite of it is safe only for a frame that is used in one query,
    once.

    There is no hold: if a running writer has recycled a part of the frame's log, a query raises ``LogRecycled``; see
    :func:`held`. Raises :class:`MissingExtra`, ``OptionError`` for an unknown column, table or option, the errors of
    opening a :class:`~logstore.inspect.Reader`, and with an export ``ExportGap`` if the log has recycled records that
    the export does not have, ``ExportMismatch`` for the export of another store, and ``ExportDamaged``.
    """
    from logstore.inspect import Reader

    _check_table(table, export)
    if export is not None:
        return _read_joined(spark, path, table, export, columns, pushdown, engine, options)

    def look(one: str, *, permissive: bool) -> tuple[int, int]:
        with Reader(one, permissive=permissive) as reader:
            return reader.info.base_lsn, reader.info.end_lsn

    return _read(spark, path, columns, pushdown, engine, options, look)


def _check_table(table: str, export: Exports | None) -> None:
    if table not in EXPORTED:
        raise OptionError(f"there is no table {table!r}; there are {', '.join(EXPORTED)}")
    if export is None and table != "records":
        raise OptionError(f"the table {table} is made of an export and the log: name the target of an export in export")


def _read_joined(
    spark: SparkSession,
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    table: str,
    export: Exports,
    columns: Sequence[str] | None,
    pushdown: bool | None,
    engine: str | None,
    options: dict[str, object],
    hold_from: Callable[[str | os.PathLike[str], int], object] | None = None,
) -> DataFrame:
    """The frame of :func:`read` with an export; ``hold_from`` takes a hold on a store, from an LSN on."""
    need_pyspark()
    from logstore.export.joined import Join, with_join
    from logstore.spark.engines import chosen
    from logstore.spark.joined import joined_table
    from logstore.spark.options import Options

    checked = Options.read(_texts(options, path))
    wanted = None if columns is None else _columns(columns)
    decoding = chosen(spark, engine, pushdown=pushdown) if table == "records" else "python"
    rest = {name: value for name, value in options.items() if not _is_bound(name)}

    def made(join: Join) -> DataFrame:
        if hold_from is not None:
            hold_from(join.source, join.keep_lsn)

        def tail(names: list[str], start: int, stop: int) -> DataFrame:
            bounds = {"start_lsn": start, "stop_lsn": stop}
            return _read(
                *(spark, join.source, names, pushdown, engine, rest | bounds),
                lambda *_, **__: (join.keep_lsn, join.end_lsn),
            )

        several = len(checked.paths) > 1
        return joined_table(spark, join, table, wanted, checked, tail, engine=decoding, store=several)

    targets = _targets_of(checked.paths, export)
    frames = [with_join(one, target, made) for one, target in targets.items()]
    return reduce(lambda one, other: one.unionByName(other), frames)


def _is_bound(option: str) -> bool:
    return option.replace("_", "").lower() in ("startlsn", "stoplsn", "startingtimestamp", "endingtimestamp")


def _targets_of(paths: Sequence[str], export: Exports) -> dict[str, str | os.PathLike[str]]:
    """The target of each store. Raises ``OptionError`` for a store without one."""
    from logstore.export.addresses import shown
    from logstore.export.places import inside
    from logstore.export.target import read_manifest
    from logstore.inspect import Reader

    if len(paths) == 1 and isinstance(export, str | os.PathLike) and not inside(export):
        return {paths[0]: export}
    by_store: dict[str, str | os.PathLike[str]] = {}
    for target in inside(export) if isinstance(export, str | os.PathLike) else export:
        manifest = read_manifest(target)
        if manifest is None:
            raise OptionError(f"there is no export in {shown(target)}: name the target of an export")
        if str(manifest.store) in by_store:
            raise OptionError(f"{shown(target)} is a second export of the store {manifest.store}: name one of the two")
        by_store[str(manifest.store)] = target
    found = {}
    for path in paths:
        with Reader(path, from_lsn=(1 << 63) - 1) as reader:
            store = str(reader.info.uuid)
        if store not in by_store:
            raise OptionError(f"none of the exports is of {path}, the store {store}: export it, or leave it out")
        found[path] = by_store[store]
    return found


def _read(
    spark: SparkSession,
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    columns: Sequence[str] | None,
    pushdown: bool | None,
    engine: str | None,
    options: dict[str, object],
    look: Callable[..., tuple[int, int]],
) -> DataFrame:
    need_pyspark()
    from logstore.spark.engines import JVM_FORMAT, PYTHON_FORMAT, chosen, prepared
    from logstore.spark.options import Options
    from logstore.spark.schema import spark_schema
    from logstore.spark.shipping import explained, shipped
    from logstore.spark.source import LogSource, OncePushedLogSource

    checked = Options.read(_texts(options, path))  # checked here, where this package's exceptions can be raised
    paths = list(checked.paths)
    schema = None if columns is None else spark_schema(_columns(columns))
    if chosen(spark, engine, pushdown=pushdown) == "jvm":
        name = JVM_FORMAT
        prepared(spark)
    else:
        source = OncePushedLogSource if (pushdown_is_sound(spark) if pushdown is None else pushdown) else LogSource
        if source is OncePushedLogSource:
            spark.conf.set(PUSHDOWN, "true")
        name = PYTHON_FORMAT if source is LogSource else source.name()
        spark.dataSource.register(shipped(source, name))
    snapshot = json.dumps({one: look(one, permissive=checked.permissive) for one in paths})
    reader = spark.read.format(name).options(**_texts(options | {"snapshot": snapshot}))
    reader = reader if schema is None else reader.schema(schema)
    with explained():
        return reader.load(paths[0] if len(paths) == 1 else paths)


def read_stream(
    spark: SparkSession,
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    columns: Sequence[str] | None = None,
    engine: str | None = None,
    **options: object,
) -> DataFrame:
    """The records of one or more stores as a stream that follows their writers, up to the durable LSNs.

    ``engine`` as in :func:`read`. A checkpoint may be continued with either engine.

    ``options`` are the source's: ``start``, ``startingTimestamp``, ``types``, ``maxRecordsPerTrigger`` ...

    Raises :class:`MissingExtra`, ``OptionError`` for an unknown column or option.
    """
    need_pyspark()
    from logstore.spark.engines import JVM_FORMAT, PYTHON_FORMAT, chosen, prepared
    from logstore.spark.options import StreamOptions
    from logstore.spark.schema import spark_schema
    from logstore.spark.shipping import explained, shipped
    from logstore.spark.source import LogSource

    paths = StreamOptions.read(_texts(options, path)).paths
    schema = None if columns is None else spark_schema(_columns(columns))
    if chosen(spark, engine) == "jvm":
        name = JVM_FORMAT
        prepared(spark)
    else:
        name = PYTHON_FORMAT
        spark.dataSource.register(shipped(LogSource, name))
    reader = spark.readStream.format(name).options(**_texts(options, paths))
    with explained():
        return (reader if schema is None else reader.schema(schema)).load()


def read_exports(
    spark: SparkSession,
    targets: Exports,
    table: str = "messages",
) -> DataFrame:
    """One table of the exports of several stores, with the column ``store``, each store's UUID.

    ``targets`` are the directories of the exports, or one directory that has them. ``table`` is ``records``,
    ``messages`` or ``open``. A condition on
    ``store`` or ``day`` reads only these exports and days. A column that an older export lacks is null there.

    Raises :class:`MissingExtra`, ``OptionError`` for another table, for no target, for a target without an export and
    for two exports of one store.
    """
    need_pyspark()
    from pyspark.sql import functions as f

    from logstore.export.places import inside, place_of
    from logstore.export.target import read_manifest
    from logstore.rows.schema import message_schema, open_schema, schema
    from logstore.spark.exported_files import parquet_files

    if table not in EXPORTED:
        raise OptionError(f"an export has no table {table!r}; it has {', '.join(EXPORTED)}")
    if isinstance(targets, str | os.PathLike):
        targets = inside(targets)
        if not targets:
            raise OptionError("targets is one directory without exports in it; it is that, or a list of exports")
    elif not targets:
        raise OptionError("targets is empty; it is a list of directories with an export each")
    frames: dict[str, DataFrame] = {}
    for target in targets:
        place = place_of(target).absolute()
        with place.explained():
            manifest = read_manifest(place)
        if manifest is None:
            raise OptionError(f"there is no export in {place}: name the target of an export")
        store = str(manifest.store)
        if store in frames:
            raise OptionError(f"{place} is a second export of the store {store}: each row would come twice")
        if files := manifest.of(table):
            # Not the directory: while a run merges files, it has their rows twice for a moment.
            reader = spark.read.options(mergeSchema="true", basePath=f"{place.hadoop}/{table}", __globPaths__="false")
            found = parquet_files(reader, place, (file.path for file in files))
        else:  # nothing ended yet
            kinds = {"records": schema, "messages": message_schema, "open": open_schema}
            made = kinds[table](body=manifest.options.body is not None)
            found = spark.createDataFrame(made.empty_table())
        frames[store] = found.withColumn("store", f.lit(store))
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames.values())


@contextmanager
def held(
    spark: SparkSession,
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    table: str = "records",
    *,
    export: Exports | None = None,
    columns: Sequence[str] | None = None,
    pushdown: bool | None = None,
    engine: str | None = None,
    hold: Hold | None = None,
    hold_limit_bytes: int = 1 << 40,
    hold_expires_s: float = 86_400,
    **options: object,
) -> Iterator[DataFrame]:
    """Like :func:`read`, but a hold keeps the log of the frame until the ``with`` block ends.

    No writer recycles it, unless the hold ends early, by ``hold_limit_bytes`` or ``hold_expires_s``. ``hold`` is the
    caller's own hold on the only store; the log is then read from the hold's LSN on, even if the base has passed it.
    With ``export`` the hold begins at the export's last LSN.

    Raises the errors of :func:`read` and :func:`logstore.holds.hold`.
    """
    import secrets
    from contextlib import ExitStack

    from logstore.holds import hold as take
    from logstore.inspect import Reader

    if hold is not None and not isinstance(path, str | os.PathLike):
        raise OptionError("a hold is on one store: without it, one is taken on each of several")
    with ExitStack() as stack:

        def taken(one: str | os.PathLike[str], lsn: int | None = None) -> Hold:
            if hold is not None:
                if lsn is not None and hold.lsn > lsn:
                    raise OptionError(
                        f"the hold {hold.name} begins at LSN {hold.lsn}, and the export ends at LSN {lsn}"
                    )
                return hold
            name = f"spark-{os.getpid()}-{secrets.token_hex(4)}"
            limits: dict[str, Any] = {"limit_bytes": hold_limit_bytes, "expires_s": hold_expires_s}
            return stack.enter_context(take(one, name, lsn=lsn, **limits))

        def look(one: str, *, permissive: bool) -> tuple[int, int]:
            kept = taken(one)
            with Reader(one, hold=kept, permissive=permissive) as reader:
                return kept.lsn, reader.info.end_lsn

        _check_table(table, export)
        if export is None:
            yield _read(spark, path, columns, pushdown, engine, options, look)
        else:
            yield _read_joined(spark, path, table, export, columns, pushdown, engine, options, taken)


def _columns(columns: Sequence[str]) -> Sequence[str]:
    if isinstance(columns, str):
        raise OptionError(f"columns is {columns!r}; it is a list of columns")
    return columns


def _texts(
    options: dict[str, object], path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None
) -> dict[str, str]:
    """The options as texts, as Spark requires."""
    made = {key: _text(value) for key, value in options.items() if value is not None}
    if path is not None:
        made["paths"] = json.dumps(
            [os.fspath(one) for one in ([path] if isinstance(path, str | os.PathLike) else path)]
        )
    return made


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime):
        return value.isoformat()
    return json.dumps(list(value)) if isinstance(value, list | tuple | set | frozenset) else str(value)
