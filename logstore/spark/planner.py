"""Plans the queries of the JVM connector with the code of the Python source.

The connector's driver starts this module as a child process and talks with it through pipes: a request and a reply are
each one line of JSON. So every option, condition, plan, offset and text of an error exists once, for both sources.
Executors get ranges and need no Python.

A request has ``id``, ``call`` and the arguments of the method of :class:`Planner` that has this name. The reply has the
same ``id``, and ``result``, or ``kind`` and ``text`` of the exception. Requests may overlap; those of one stream come
one after another. The process ends when its input ends, which releases the holds of its streams.
"""

from __future__ import annotations

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import count
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from logstore.errors import OptionError, StoreError
from logstore.rows.properties import DECODED
from logstore.rows.scan import COLUMNS, DICTIONARIES, OUTCOMES, REASONS, STREAMS, known_types, type_bits
from logstore.spark.options import Options, StreamOptions, given_for
from logstore.spark.schema import STORE, checked_columns

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
    from pyspark.sql.types import StructType

    from logstore.spark.plan import Range

__all__ = ["PROTOCOL", "Planner", "main"]

PROTOCOL: Final = 2
"""Changes with the requests; the connector refuses a planner of another one."""

BATCH_ROWS: Final = 4096
"""Rows of a batch that fit into a core's cache, unless the option says otherwise."""

MADE: Final = (STORE, *DECODED)
"""The columns that the scanner does not have and Java makes; their numbers count down from -1."""

THREADS: Final = 16
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Planner:
    """The calls that the connector makes. Results are values of JSON."""

    def __init__(self) -> None:
        self._streams: dict[int, DataSourceStreamReader] = {}
        self._numbers = count(1)

    def schema(self, options: dict[str, str]) -> str:
        """The schema of the source with these options, in Spark's JSON."""
        from logstore.spark.source import LogSource

        return str(LogSource(options).schema().json())

    def take(self, options: dict[str, str], schema: str, filters: list[dict[str, Any]]) -> list[int]:
        """The indices of the conditions that Spark must apply; checks the options as well."""
        from logstore.spark.filters import Conditions

        _options(options, schema)
        given = [_filter(each) for each in filters]
        numbers = {id(one): number for number, one in enumerate(given) if one is not None}
        left = Conditions().take([one for one in given if one is not None])
        return sorted([numbers[id(one)] for one in left] + [n for n, one in enumerate(given) if one is None])

    def plan(self, options: dict[str, str], schema: str, columns: str, filters: list[dict[str, Any]]) -> dict[str, Any]:
        """The tasks of a query that reads ``columns`` of a table with this schema, both in Spark's JSON."""
        from logstore.spark.source import PushingLogReader

        checked = _options(options, schema)
        wanted = _whole(columns, schema)
        reader = PushingLogReader(wanted, checked)
        reader.pushFilters([one for one in map(_filter, filters) if one is not None])
        return _tasks(wanted, checked, reader.partitions())

    def write(self) -> None:
        """Raises ``OptionError``: the log is only read."""
        from logstore.spark.source import READ_ONLY

        raise OptionError(READ_ONLY)

    # ---- Streams

    def stream(self, options: dict[str, str], schema: str, columns: str) -> int:
        """The number of a new stream that reads ``columns``."""
        from logstore.spark.stream import LogStream
        from logstore.spark.streams import ManyStreams

        given = StreamOptions.read(given_for(_struct(schema), _quick(options)))
        made = (LogStream if len(given.paths) == 1 else ManyStreams)(_whole(columns, schema), given)
        number = next(self._numbers)
        self._streams[number] = made
        return number

    def initial(self, stream: int) -> str:
        """The offset at which a query without a checkpoint begins."""
        return json.dumps(self._streams[stream].initialOffset())

    def latest(self, stream: int, start: str, rows: int | None, size: int | None) -> str:
        """The end of the next batch, within so many rows or bytes."""
        from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

        limit = (
            ReadMaxRows(rows) if rows is not None else ReadMaxBytes(size) if size is not None else ReadAllAvailable()
        )
        return json.dumps(self._streams[stream].latestOffset(json.loads(start), limit))

    def limit(self, stream: int) -> dict[str, int]:
        """The limit from the options: ``rows`` or ``size``, or neither."""
        from pyspark.sql.streaming.datasource import ReadMaxBytes, ReadMaxRows

        found = self._streams[stream].getDefaultReadLimit()
        if isinstance(found, ReadMaxRows):
            return {"rows": found.max_rows}
        return {"size": found.max_bytes} if isinstance(found, ReadMaxBytes) else {}

    def report(self, stream: int) -> str | None:
        """The durable end now; None where it is not known."""
        found = self._streams[stream].reportLatestOffset()
        return None if found is None else json.dumps(found)

    def available(self, stream: int) -> None:
        """The stream ends with what is durable now."""
        self._streams[stream].prepareForTriggerAvailableNow()  # type: ignore[attr-defined]  # of both kinds of streams

    def batch(self, stream: int, options: dict[str, str], schema: str, columns: str, start: str, end: str) -> Any:
        """The tasks of one batch."""
        found = self._streams[stream].partitions(json.loads(start), json.loads(end))
        given = StreamOptions.read(given_for(_struct(schema), _quick(options)))
        return _tasks(_whole(columns, schema), given, found)

    def commit(self, stream: int, end: str) -> None:
        """Everything below ``end`` was processed."""
        self._streams[stream].commit(json.loads(end))

    def stop(self, stream: int) -> None:
        """Releases the holds of the stream. A second call does nothing."""
        found = self._streams.pop(stream, None)
        if found is not None:
            found.stop()


def _struct(text: str) -> StructType:
    from pyspark.sql.types import StructType

    return StructType.fromJson(json.loads(text))


def _whole(columns: str, schema: str) -> StructType:
    """These columns as the table's schema has them: of a struct, Spark names only the fields that a query uses."""
    from pyspark.sql.types import StructType

    table = _struct(schema)
    return StructType([table[name] for name in _struct(columns).fieldNames()])


def _quick(options: Mapping[str, str]) -> dict[str, str]:
    """The options, with this connector's own size of a batch."""
    given = any(name.replace("_", "").lower() == "batchrows" for name in options)
    return dict(options) if given else {**options, "batch_rows": str(BATCH_ROWS)}


def _options(options: Mapping[str, str], schema: str) -> Options:
    return Options.read(given_for(_struct(schema), _quick(options)))


def _filter(told: Mapping[str, Any]) -> Any:
    """A condition in the form that the Python source gets; None for one that only Spark knows."""
    from pyspark.sql import datasource as spark

    name, path = told["name"], tuple(told.get("column", ()))
    if name == "IsNotNull":
        return spark.IsNotNull(path)
    if name == "In":
        return spark.In(path, tuple(_value(each) for each in told["values"]))
    kind = {
        "EqualTo": spark.EqualTo,
        "GreaterThan": spark.GreaterThan,
        "GreaterThanOrEqual": spark.GreaterThanOrEqual,
        "LessThan": spark.LessThan,
        "LessThanOrEqual": spark.LessThanOrEqual,
    }.get(name)
    return None if kind is None else kind(path, _value(told["value"]))


def _value(told: Any) -> Any:
    """A time is an object with its microseconds; everything else is itself."""
    if not isinstance(told, dict):
        return told
    try:
        return _EPOCH + timedelta(microseconds=told["us"])
    except OverflowError:
        return None  # a time that Python does not have: Spark decides


def _tasks(
    schema: StructType, options: Options | StreamOptions, partitions: Sequence[InputPartition]
) -> dict[str, Any]:
    """What executors need to read these ranges."""
    columns = checked_columns(schema)
    ranges: list[Range] = [one.value for one in partitions if one.value is not None]
    return {
        "columns": [-1 - MADE.index(name) if name in MADE else COLUMNS.index(name) for name in columns],
        "dictionaries": [{"column": COLUMNS.index(name), "texts": texts} for name, texts in _dictionaries().items()],
        "batch_rows": options.batch_rows,
        "body": _body(options),
        "permissive": isinstance(options, Options) and options.permissive,
        "lossy": isinstance(options, StreamOptions) and not options.fail_on_data_loss,
        "tasks": [_task(one) for one in ranges],
    }


def _body(options: Options | StreamOptions) -> int:
    from logstore.spark.options import BODY_BYTES

    return BODY_BYTES if options.body is None else options.body


def _dictionaries() -> dict[str, Sequence[str]]:
    """The texts of each column whose rows have an index of one; the queue's come with each range."""
    found = {"type": known_types(), "stream": STREAMS, "outcome": OUTCOMES, "reason": REASONS, "queue": ()}
    assert found.keys() == DICTIONARIES
    return found


def _task(one: Range) -> dict[str, Any]:
    named = sorted(one.names)
    times = {"start_us": one.start_time, "stop_us": one.stop_time}
    return {
        "path": one.path,
        "uuid": one.uuid,
        "start_lsn": one.start_lsn,
        "stop_lsn": one.stop_lsn,
        "keep_lsn": one.keep_lsn,
        "end_lsn": one.end_lsn or 0,
        "as_of_lsn": max(1, one.as_of_lsn),
        "named": named,
        "names": [one.names[number] for number in named],
        "types": _signed(0 if one.types is None else type_bits(one.types)),
        "queue_ids": one.queue_ids,
        "ids": one.ids,
        **{name: None if time is None else max(0, _us(time)) for name, time in times.items()},
    }


def _us(time: datetime) -> int:
    return (time - _EPOCH) // timedelta(microseconds=1)


def _signed(bits: int) -> int:
    """64 bits as Java has them."""
    return bits - (1 << 64) if bits >> 63 else bits


# ---- The process


def main() -> None:
    """Answers the requests on stdin until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's business
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever is printed stays out of the replies
    lock, planner = Lock(), Planner()

    def send(reply: dict[str, Any]) -> None:
        with lock, suppress(BrokenPipeError):
            replies.write(json.dumps(reply) + "\n")
            replies.flush()

    def answer(line: str) -> None:
        request: dict[str, Any] = json.loads(line)
        number, call = request.pop("id"), request.pop("call")
        try:
            send({"id": number, "result": getattr(planner, call)(**request)})
        except StoreError as error:
            send({"id": number, "kind": type(error).__name__, "text": error.message})
        except Exception as error:  # noqa: BLE001 - a defect is told to the driver, which waits for an answer
            send({"id": number, "kind": type(error).__name__, "text": str(error)})

    send({"id": 0, "result": PROTOCOL})
    with open(0, encoding="utf-8", closefd=False) as requests, ThreadPoolExecutor(THREADS) as threads:
        for line in requests:
            threads.submit(answer, line)


if __name__ == "__main__":
    main()
