"""The options of the Spark data source, read once and checked before anything is opened.

Spark passes every option as text. The case of option names does not matter, nor their underscores, nor the case of
keyword values. LSNs are
decimal or, with 0x, hexadecimal; sizes are bytes.

For a table in a catalog, Spark passes the options among the table's properties, and only when it is created. So they
are stored with its columns, see :func:`kept_with`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from logstore.codec.records import LSN_LIMIT, RecordType
from logstore.errors import OptionError
from logstore.spark.filters import Conditions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql.types import StructType

__all__ = [
    "BATCH_OPTIONS",
    "BODY_BYTES",
    "STREAM_OPTIONS",
    "Options",
    "StreamOptions",
    "given_for",
    "kept_with",
    "paths_of",
]

PARTITION_BYTES: Final = 64 << 20
BATCH_ROWS: Final = 1 << 16
BATCH_ROWS_MAX: Final = 1 << 20
BODY_BYTES: Final = 64 << 10
NEAR: Final = 0.75  # how similar the name must be that a refused option was meant to be
MODES: Final = ("strict", "permissive")
HOLD_LIMIT_BYTES: Final = 8 << 30
HOLD_LASTS_S: Final = 3600

READ_OPTIONS: Final = {
    "path": "the store directory",
    "paths": "several, as JSON; load() of a list sets it",
    "body": "message bodies, cut to so many bytes; adds the column body",
    "connect": "how to reach the catalog, where it is not in the store directory",
    "catalog": "the schema of the catalog's tables there",
    "partition_bytes": "of log, that one task reads",
    "batch_rows": "rows in one Arrow batch",
}
SELECT_OPTIONS: Final = {
    "stop_lsn": "the LSN at which to stop, itself not read",
    "startingTimestamp": "begin where the log reached this time: in ISO 8601 with its zone, or ms since 1970",
    "endingTimestamp": "stop where the log reached this time",
    "types": "record types; the scanner passes over all others. A list: with commas, or in JSON",
    "queues": "names of queues, of which a record's first is one",
    "queue_ids": "the same by id",
    "ids": "chains: ids of messages and transactions",
    "start_time": "only rows of this time or later, in ISO 8601 with its zone",
    "stop_time": "only rows before this time",
}
BATCH_OPTIONS: Final = (
    READ_OPTIONS
    | SELECT_OPTIONS
    | {
        "start_lsn": "the first LSN",
        "as_of_lsn": "outcomes of transactions as they were known at this LSN",
        "mode": "strict: damage fails the query; permissive: what is readable, and the rest is logged",
        "snapshot": "what logstore.spark.read() sets: from where and up to where each store is read",
    }
)
STREAM_OPTIONS: Final = (
    READ_OPTIONS
    | SELECT_OPTIONS
    | {
        "start": "earliest, latest or an LSN: where a new query begins",
        "maxRecordsPerTrigger": "the most records in one batch",
        "maxBytesPerTrigger": "about the most log bytes in one batch",
        "failOnDataLoss": "false: go on where the log was recycled before it was read, and log what is missing",
        "hold_limit_bytes": "the most that the stream may keep from being recycled",
        "hold_expires_s": "how long its hold outlives a stream that does nothing",
    }
)


def _plain(name: str) -> str:
    return name.replace("_", "").lower()


_NAMES: Final = {_plain(name): name for name in BATCH_OPTIONS | STREAM_OPTIONS} | {"startingoffsets": "start"}
"""Every option by its name in lower case without underscores, and Kafka's name for ``start``."""


def _named(given: Mapping[str, str]) -> dict[str, str]:
    """The options under their own names; a name may be written in any case, with underscores or without."""
    return {_NAMES.get(_plain(key), key.lower()): value for key, value in given.items()}


@dataclass(frozen=True, slots=True)
class _Common:
    paths: tuple[str, ...]
    starting: datetime | None
    """Begin where the log reached this time."""
    ending: datetime | None
    """Stop where the log reached this time."""
    conditions: Conditions
    """Conditions on every row, in addition to the query's."""
    body: int | None
    connect: str | None
    catalog: str | None
    partition_bytes: int
    batch_rows: int


@dataclass(frozen=True, slots=True)
class Options(_Common):
    """The options of a batch read."""

    as_of_lsn: int | None
    permissive: bool
    snapshot: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """The base and the end of each log when it was inspected, by absolute path."""

    @classmethod
    def read(cls, given: Mapping[str, str]) -> Options:
        """Raises ``OptionError``."""
        text = _Text(given, BATCH_OPTIONS)
        mode = text.word("mode", "strict").lower()
        if mode not in MODES:
            raise OptionError(f"the option mode is {mode!r}; it is strict or permissive")
        return cls(
            **_common(text),
            as_of_lsn=text.lsn("as_of_lsn"),
            permissive=mode == "permissive",
            snapshot=_snapshot(text.get("snapshot")),
        )


@dataclass(frozen=True, slots=True)
class StreamOptions(_Common):
    """The options of a stream."""

    start: str | int
    max_records: int | None
    max_bytes: int | None
    fail_on_data_loss: bool
    hold_limit_bytes: int
    hold_expires_s: int

    @classmethod
    def read(cls, given: Mapping[str, str]) -> StreamOptions:
        """Raises ``OptionError``."""
        text = _Text(given, STREAM_OPTIONS)
        common = _common(text)
        start = text.word("start", "earliest").lower()
        if text.get("start") is not None and common["starting"] is not None:
            raise OptionError("start and startingTimestamp are both given; a stream begins at one place")
        max_records, max_bytes = text.number("maxRecordsPerTrigger"), text.number("maxBytesPerTrigger")
        if max_records is not None and max_bytes is not None:
            raise OptionError("maxRecordsPerTrigger and maxBytesPerTrigger are both given; Spark applies one limit")
        stores = len(common["paths"])
        if stores > 1 and (start not in ("earliest", "latest") or text.get("stop_lsn") is not None):
            raise OptionError("an LSN is of one store: with several use startingTimestamp and endingTimestamp")
        if max_records is not None and max_records < stores:
            raise OptionError(f"maxRecordsPerTrigger is {max_records} for {stores} stores: each has an equal share")
        loss = text.word("failOnDataLoss", "true").lower()
        if loss not in ("true", "false"):
            raise OptionError(f"the option failOnDataLoss is {loss!r}; it is true or false")
        return cls(
            **common,
            start=start if start in ("earliest", "latest") else text.lsn("start") or 0,
            max_records=max_records,
            max_bytes=max_bytes,
            fail_on_data_loss=loss == "true",
            hold_limit_bytes=text.number("hold_limit_bytes") or HOLD_LIMIT_BYTES,
            hold_expires_s=text.number("hold_expires_s") or HOLD_LASTS_S,
        )


class _Text:
    """Options as text, all of them known."""

    def __init__(self, given: Mapping[str, str], known: Mapping[str, str]) -> None:
        self._given = _named(given)
        unknown = sorted(set(self._given) - set(known))
        if unknown:
            near = [name for one in unknown for name in get_close_matches(one, known, 1, NEAR)]
            meant = f": is {' or '.join(near)} meant?" if near else ";"
            raise OptionError(
                f"the source logstore has no option {', '.join(unknown)}{meant} it has: {', '.join(known)}"
            )

    def get(self, key: str) -> str | None:
        return self._given.get(key)

    def word(self, key: str, default: str) -> str:
        return self._given.get(key, default)

    def lsn(self, key: str) -> int | None:
        text = self.get(key)
        if text is None:
            return None
        try:
            number = int(text, 16 if text[:2] in ("0x", "0X") else 10)
        except ValueError:
            number = -1
        if not 0 <= number < LSN_LIMIT:
            raise OptionError(f"the option {key} is {text!r}, which is no LSN; write it in decimal, or with 0x")
        return number

    def values(self, key: str, *, number: bool) -> list[Any] | None:
        """A list: in JSON, or separated by commas."""
        text = self.get(key)
        if text is None:
            return None
        try:
            found = json.loads(text) if text.startswith("[") else [part.strip() for part in text.split(",")]
            if number:
                return [int(each) for each in found]
        except (TypeError, ValueError):
            found = [None]
        if not found or not all(isinstance(each, str) and each for each in found):
            raise OptionError(f"the option {key} is {text!r}; it is a list, with commas or in JSON")
        return found

    def moment(self, key: str) -> datetime | None:
        text = self.get(key)
        if text is None:
            return None
        try:
            found = datetime.fromisoformat(text)
        except ValueError:
            found = None
        if found is None or found.tzinfo is None:
            raise OptionError(f"the option {key} is {text!r}; write it as 2026-01-31T12:00:00Z, with its zone")
        return found.astimezone(UTC)

    def moment_or_ms(self, key: str) -> datetime | None:
        """A time, or milliseconds since 1970 as Kafka has them."""
        text = self.get(key)
        if text is None or not (text.isascii() and text.isdecimal()):
            return self.moment(key)
        try:
            return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=int(text))
        except OverflowError:
            raise OptionError(f"the option {key} is {text} ms, and that is after the year 9999") from None

    def number(self, key: str, *, least: int = 1) -> int | None:
        text = self.get(key)
        if text is None:
            return None
        if not (text.isascii() and text.isdecimal()) or not least <= int(text) < LSN_LIMIT:
            raise OptionError(f"the option {key} is {text!r}; it is a whole number, {least} or more")
        return int(text)


def _common(text: _Text) -> dict[str, Any]:
    """The values of :class:`_Common`."""
    batch_rows = text.number("batch_rows") or BATCH_ROWS
    if batch_rows > BATCH_ROWS_MAX:
        raise OptionError(f"the option batch_rows is {batch_rows}; at most {BATCH_ROWS_MAX} rows are one batch")
    starting, ending = text.moment_or_ms("startingTimestamp"), text.moment_or_ms("endingTimestamp")
    if starting is not None and ending is not None and starting > ending:
        raise OptionError(f"startingTimestamp is {starting}, and that is after endingTimestamp, {ending}")
    return {
        "paths": _paths(text),
        "starting": starting,
        "ending": ending,
        "conditions": _conditions(text),
        "body": text.number("body", least=0),
        "connect": text.get("connect"),
        "catalog": text.get("catalog"),
        "partition_bytes": text.number("partition_bytes") or PARTITION_BYTES,
        "batch_rows": batch_rows,
    }


KEPT: Final = "logstore"
_OPTION_OF_TABLE: Final = "option."


def _of_table(given: Mapping[str, str]) -> dict[str, str] | None:
    """The options of a table that is being created, without the properties that Spark adds; None for other uses."""
    lower = {key.lower(): value for key, value in given.items()}
    if not {"provider", "owner"} <= lower.keys():
        return None
    size = len(_OPTION_OF_TABLE)
    made = _named({key[size:]: value for key, value in lower.items() if key.startswith(_OPTION_OF_TABLE)})
    place = lower.get("path", lower.get("location"))
    return made | ({"path": place} if place is not None and "paths" not in made else {})


def kept_with(schema: StructType, given: Mapping[str, str]) -> StructType:
    """The schema of a source with these options; for a table in a catalog it stores the options."""
    options = _of_table(given)
    if options is not None:
        schema.fields[0].metadata = {KEPT: json.dumps(options, sort_keys=True)}
    return schema


def given_for(schema: StructType, given: Mapping[str, str]) -> dict[str, str]:
    """The options of a read: those stored with a table's columns, and those given now."""
    kept = next((field.metadata[KEPT] for field in schema.fields if KEPT in (field.metadata or {})), None)
    made = _of_table(given)
    options = _named(given) if made is None else made
    if kept is None and not {"path", "paths"} & options.keys():
        raise OptionError(
            "the source logstore needs a path: load(DIR), or the option path. A table is made without a list of "
            "columns, as in CREATE TABLE name USING logstore OPTIONS (path 'DIR'): its options are kept with them"
        )
    found: dict[str, str] = json.loads(kept or "{}")
    return found | options


def paths_of(given: Mapping[str, str]) -> tuple[str, ...]:
    """The given store directories, as absolute paths. Raises ``OptionError`` for none, and for unknown options."""
    options = _of_table(given)
    return _paths(_Text(given if options is None else options, BATCH_OPTIONS | STREAM_OPTIONS))


def _paths(text: _Text) -> tuple[str, ...]:
    one, several = text.get("path"), text.get("paths")
    try:
        paths = json.loads(several) if several is not None else []
    except ValueError:
        paths = None
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        raise OptionError(f"the option paths is {several!r}; it is a list of store directories, in JSON")
    if one is not None:
        paths.append(one)
    if not paths:
        raise OptionError("the source logstore needs a path: load(DIR), or the option path")
    found = []
    for path in paths:
        local = path.removeprefix("file://") if path.startswith("file:///") else path.removeprefix("file:")
        if "://" in local:
            raise OptionError(f"{path} is no directory of this machine's: a log is read through the file system")
        found.append(str(Path(local).absolute()))
    if len(set(found)) < len(found):
        raise OptionError(f"a store is named twice in {', '.join(found)}: each row would come twice")
    return tuple(found)


def _conditions(text: _Text) -> Conditions:
    start_lsn, stop_lsn = text.lsn("start_lsn"), text.lsn("stop_lsn")
    if start_lsn is not None and stop_lsn is not None and start_lsn > stop_lsn:
        raise OptionError(f"start_lsn is {start_lsn}, and that is beyond stop_lsn, {stop_lsn}")
    made = Conditions()
    made.limit(start_lsn or 0, LSN_LIMIT if stop_lsn is None else stop_lsn)
    for option, column in (("types", "type"), ("queues", "queue"), ("queue_ids", "queue_id"), ("ids", "id")):
        values = text.values(option, number=column in ("queue_id", "id"))
        if values is not None and column == "type":
            values = [value.upper() for value in values]
        if values is not None and not made.want(column, values):
            raise OptionError(
                f"the option types is {text.get(option)!r}; there are {', '.join(RecordType.__members__)}"
            )
    made.start_time, made.stop_time = text.moment("start_time"), text.moment("stop_time")
    return made


def _snapshot(text: str | None) -> dict[str, tuple[int, int]]:
    try:
        return {path: (int(start), int(stop)) for path, (start, stop) in json.loads(text or "{}").items()}
    except (AttributeError, TypeError, ValueError):
        raise OptionError(f"the option snapshot is {text!r}; logstore.spark.held() sets it") from None
