"""The log in Spark: reading it where it lies, following it, and exporting it as a distributed job.

``spark.read.format("logstore").load(DIR)`` works once :func:`register` has been called; :func:`read` does both and lets
the scanner apply what it can of a query's conditions. ``docs/spark.md`` has the columns, the options and examples.

Importing this module loads neither pyspark nor pyarrow. Without them, or without Java, what needs them raises
:class:`MissingExtra`, which names the extra to install.
"""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from logstore.errors import OptionError
from logstore.extras import MissingExtra
from logstore.spark_analyses import (
    bytes_by_queue,
    dead_lettered,
    everything,
    in_doubt,
    latency,
    latency_histogram,
    latency_sketches,
    merge_latency,
    pinning,
    pinning_by_queue,
    places,
    queue_depth,
    redeliveries,
    settled,
    throughput,
)
from logstore.spark_java import Java, find_java, need_pyspark, session

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "Java",
    "MissingExtra",
    "find_java",
    "held",
    "read",
    "read_stream",
    "register",
    "session",
    # The analyses: tables in, tables out.
    "bytes_by_queue",
    "dead_lettered",
    "everything",
    "in_doubt",
    "latency",
    "latency_histogram",
    "latency_sketches",
    "merge_latency",
    "pinning",
    "pinning_by_queue",
    "places",
    "queue_depth",
    "redeliveries",
    "settled",
    "throughput",
]

PUSHDOWN: Final = "spark.sql.python.filterPushdown.enabled"


def register(spark: SparkSession, *, pushdown: bool = False) -> None:
    """Make the format ``logstore`` known to this session, for DataFrames, streams and ``USING logstore`` in SQL.

    With ``pushdown`` the scanner applies what it can of each query's conditions; the session's setting
    ``spark.sql.python.filterPushdown.enabled`` is then set to true, and must stay so. A second call replaces the first.

    Raises :class:`MissingExtra`.
    """
    need_pyspark()
    from logstore.spark_source import LogSource, PushingLogSource

    if pushdown:
        spark.conf.set(PUSHDOWN, "true")
    spark.dataSource.register(PushingLogSource if pushdown else LogSource)


def read(
    spark: SparkSession,
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    columns: Sequence[str] | None = None,
    **options: object,
) -> DataFrame:
    """The records of one store or of several, as a DataFrame; conditions are pushed down to the scanner.

    ``columns`` are those to read, in their order: Spark cannot tell a source which ones a query uses, so naming them
    here is what saves work. ``options`` are the source's: ``start_lsn``, ``stop_lsn``, ``body``, ``mode`` ... Each
    action reads the store as it stands then; see :func:`held`.

    Raises :class:`MissingExtra`, ``OptionError`` for an unknown column or option.
    """
    register(spark, pushdown=True)
    frame: DataFrame = _loaded(spark.read, path, columns, options)
    return frame


def read_stream(
    spark: SparkSession, path: str | os.PathLike[str], *, columns: Sequence[str] | None = None, **options: object
) -> DataFrame:
    """The records of one store as a stream that follows its writer, up to what is durable.

    ``options`` are the source's: ``start``, ``maxRecordsPerTrigger``, ``maxBytesPerTrigger``, ``failOnDataLoss`` ...

    Raises :class:`MissingExtra`, ``OptionError`` for an unknown column or option.
    """
    register(spark, pushdown=spark.conf.get(PUSHDOWN, "false") == "true")
    frame: DataFrame = _loaded(spark.readStream, path, columns, options, streaming=True)
    return frame


@contextmanager
def held(
    spark: SparkSession,
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    columns: Sequence[str] | None = None,
    hold_limit_bytes: int = 1 << 40,
    hold_expires_s: float = 86_400,
    **options: object,
) -> Iterator[DataFrame]:
    """As :func:`read`, but one state of the log for all actions: a hold keeps it until the ``with`` block ends.

    No writer is faster then, unless the hold runs out, by ``hold_limit_bytes`` kept or ``hold_expires_s``.

    Raises as :func:`read`, and as :func:`logstore.holds.hold` does.
    """
    import secrets
    from contextlib import ExitStack
    from pathlib import Path

    from logstore.holds import hold
    from logstore.inspect import Reader

    with ExitStack() as stack:
        seen = {}
        for one in _listed(path):
            name = f"spark-{os.getpid()}-{secrets.token_hex(4)}"
            kept = stack.enter_context(
                hold(one, name, limit_bytes=hold_limit_bytes, expires_s=hold_expires_s)  # before the end is looked at
            )
            with Reader(one, hold=kept) as reader:
                seen[str(Path(one).absolute())] = kept.lsn, reader.info.end_lsn
        yield read(spark, path, columns=columns, **(options | {"snapshot": json.dumps(seen)}))


def _listed(path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[str]:
    return [os.fspath(one) for one in ([path] if isinstance(path, str | os.PathLike) else path)]


def _loaded(
    reader: Any,
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    columns: Sequence[str] | None,
    options: dict[str, object],
    *,
    streaming: bool = False,
) -> Any:
    from logstore.spark_options import Options, StreamOptions
    from logstore.spark_schema import spark_schema

    paths = _listed(path)
    given = {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in options.items()}
    # Checked here as well: what a worker raises comes back through two other languages.
    (StreamOptions if streaming else Options).read(given | {"paths": json.dumps(paths)})
    reader = reader.format("logstore").options(**given)
    if isinstance(columns, str):
        raise OptionError(f"columns is {columns!r}; it is a list of columns")
    if columns is not None:
        reader = reader.schema(spark_schema(columns))
    return reader.load(paths[0] if streaming or len(paths) == 1 else paths)
