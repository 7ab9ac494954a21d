"""Records of the log as text and as JSON, for ``logstore dump`` and ``logstore chain``."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import fields, is_dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, TypeVar

import click

from logstore.codec.records import Batch, CatalogRow, Record, RecordFlag, RecordType
from logstore.core.moments import TIME_US_LIMIT, moment
from logstore.inspect import LogRecycled, Reader
from logstore.terminal.state import TRIES, kept
from logstore.terminal.tables import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

T = TypeVar("T")

PLAIN_NAME = re.compile(r"[^\W\d][\w.:/@+-]*")  # a queue's name that is one word, and no number
CONTENTS = frozenset({"header", "content", "raw", "config"})  # the only fields that can be long

PLACE_TIMES = frozenset({"not_before_us", "expires_us"})
REPLICATION = frozenset({"index", "known_durable_lsn"})  # fields of a batch, not shown if it is not replicated

bodies_option = click.option(
    "--bodies", is_flag=True, help="Print headers and contents (in JSON as base64), not only their sizes."
)


def log_records(store_dir: Path, from_lsn: int, read: Callable[[Reader], Iterator[T]]) -> Iterator[T]:
    """What ``read`` yields. Starts again if a writer reuses a segment before the first record."""
    for tried in range(1, TRIES + 1):
        given = False
        try:
            with kept(store_dir, tried), Reader(store_dir, from_lsn=from_lsn) as reader:
                for record in read(reader):
                    given = True
                    yield record
                return
        except LogRecycled:
            if given or tried == TRIES:
                raise


def record_document(record: Record, bodies: bool) -> dict[str, Any]:
    """The record as a JSON object."""
    return {
        "lsn": record.lsn,
        "type": _type_name(record),
        "flags": [flag.name for flag in RecordFlag if flag in record.flags],
        "id": record.id,
        "prev": record.prev,
        "length": record.length,
        "body": _plain(record.body, bodies),
    }


def _type_name(record: Record) -> str:
    return record.type.name if isinstance(record.type, RecordType) else f"{record.type:#06x}"


def _plain(body: Any, bodies: bool) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for field in fields(body):
        name, value = field.name, getattr(body, field.name)
        if name in CONTENTS:
            plain[f"{name}_bytes"] = len(value)
            if bodies:
                plain[name] = base64.b64encode(value).decode("ascii")
        elif isinstance(body, CatalogRow) and isinstance(value, bytes):
            plain[name] = value.decode("utf-8", "backslashreplace")
        elif isinstance(value, bytes):
            plain[name] = value.hex()
        elif isinstance(value, IntEnum):
            plain[name] = value.name
        elif isinstance(value, tuple):
            plain[name] = [_plain(one, bodies) if is_dataclass(one) else one for one in value]
        else:
            plain[name] = value
    return plain


def record_line(record: Record, bodies: bool, names: Mapping[int, str]) -> str:
    """The record as one line of text, with times in UTC, and with ``names`` in place of queues' ids."""
    words = [f"{record.lsn:<12} {_type_name(record):<17}"]
    if record.id != 0:
        words.append(f"id={record.id} prev={record.prev}")
    words.append(f"length={record.length}")
    words += [str(flag.name) for flag in RecordFlag if flag in record.flags]
    for name, value in _plain(record.body, bodies=False).items():
        if isinstance(record.body, Batch) and record.body.index == 0 and name in REPLICATION:
            continue
        words.append(_word(name, value, names))
        content = getattr(record.body, name.removesuffix("_bytes"), None)
        if bodies and isinstance(content, bytes):
            words.append(f"{name.removesuffix('_bytes')}={content!r}")
    return printable(" ".join(words))


def _word(name: str, value: Any, names: Mapping[int, str]) -> str:
    """A field as ``name=value``."""
    if name.endswith("time_us"):
        return f"{name.removesuffix('_us')}={'unknown' if value == 0 else time_word(value)}"
    if name in PLACE_TIMES:
        return f"{name.removesuffix('_us')}={'none' if value == 0 else time_word(value)}"
    if name == "queue_id":
        return f"queue={_queue(value, names)}"
    if name == "from_queue_id":
        return f"from_queue={'none' if value == 0 else _queue(value, names)}"
    if name == "queues":
        return f"queues={','.join(_queue(one, names) for one in value)}"
    return f"{name}={_value(value, names)}"


def time_word(time_us: int) -> str:
    """A time in µs since 1970 as one word, ISO 8601 in UTC; a number that is no time stays one."""
    if not 0 < time_us < TIME_US_LIMIT:
        return str(time_us)
    return moment(time_us).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _queue(queue_id: int, names: Mapping[int, str]) -> str:
    """A queue as one word: its name, quoted if it is not plain; #ID without a name; - for a place that was left."""
    if queue_id == 0:
        return "-"
    name = names.get(queue_id)
    if name is None:
        return f"#{queue_id}"
    return name if PLAIN_NAME.fullmatch(name) else json.dumps(name, ensure_ascii=False)


def catalog_row_text(action: str, of: str, queue_id: int, row: str) -> str:
    """A row of a CATALOG_CHANGE: ``put queue 7 {"name":"orders"}``."""
    return f"{action.lower()} {of.lower()}{f' {queue_id}' if queue_id else ''} {row}"


def _value(value: Any, names: Mapping[int, str]) -> str:
    if isinstance(value, list):
        return f"[{','.join(_value(one, names) for one in value)}]"
    if isinstance(value, dict) and "row" in value:
        return catalog_row_text(value["action"], value["object"], value["queue_id"], value["row"])
    if isinstance(value, dict):
        return f"({' '.join(_word(name, one, names) for name, one in value.items())})"
    return str(value)
