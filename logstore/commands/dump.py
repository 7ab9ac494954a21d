"""``logstore dump``: prints the log's records, one per line.

It prints every field of a record, under the names in docs/format.md. Contents are printed only with --bodies, because
they are most of a log.
"""

from __future__ import annotations

import base64
import json
import os
import re
import sys
import time
from contextlib import ExitStack, suppress
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from enum import IntEnum
from typing import TYPE_CHECKING, Any, TypeVar

import click

from logstore.codec.files import Hint
from logstore.codec.records import LSN_LIMIT, InvalidRecord, Record, RecordFlag, RecordType
from logstore.commands.options import LSN, catalog_options, json_option, store_argument
from logstore.commands.output import TIME_US_LIMIT
from logstore.commands.queue_names import queue_id_of, queue_names
from logstore.commands.state import TRIES
from logstore.commands.tables import printable
from logstore.core.regular_files import read_start
from logstore.errors import StoreError
from logstore.holds import Hold, hold
from logstore.inspect import LogRecycled, Reader, read_catalog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

T = TypeVar("T")

LOOK_S = 0.2
PLAIN_NAME = re.compile(r"[^\W\d][\w.:/@+-]*")  # a queue's name that is one word, and no number
RENEWED_S = 600.0
CONTENTS = frozenset({"header", "content", "raw"})  # the only fields that can be long


def _type(_context: click.Context, _parameter: click.Parameter, names: tuple[str, ...]) -> frozenset[RecordType]:
    return frozenset(RecordType[name.upper()] for name in names)


bodies_option = click.option(
    "--bodies", is_flag=True, help="Print headers and contents (in JSON as base64), not only their sizes."
)


@click.command()
@store_argument
@click.option("--from", "from_lsn", type=LSN, default=0, help="Start at this LSN.")
@click.option("--to", "to_lsn", type=LSN, default=LSN_LIMIT - 1, help="Stop before this LSN.")
@click.option(
    "--type",
    "types",
    multiple=True,
    type=click.Choice([one.name for one in RecordType], case_sensitive=False),
    metavar="TYPE",
    callback=_type,
    help="Only records of this type, such as MESSAGE_START; may be repeated.",
)
@click.option("--id", "ids", multiple=True, type=LSN, help="Only records of this chain; may be repeated.")
@click.option("--queue", "queue_name", metavar="QUEUE", help="Only records that name this queue, by its name or id.")
@click.option("--limit", type=click.IntRange(min=0), help="Stop after this many records.")
@click.option("--follow", "-f", is_flag=True, help="Wait for new records until interrupted; a hold keeps them.")
@bodies_option
@json_option
@catalog_options
def dump(
    store_dir: Path,
    from_lsn: int,
    to_lsn: int,
    types: frozenset[RecordType],
    ids: tuple[int, ...],
    queue_name: str | None,
    limit: int | None,
    follow: bool,
    bodies: bool,
    as_json: bool,
    connect: str | None,
    schema: str | None,
) -> None:
    """Print the log's records in order, one per line.

    Queues are shown by name, or as #ID if the catalog has no name for it; - is a queue that the message has left. With
    --json each line is a JSON object, with the ids and the times in µs that the log has. A record must match every kind
    of filter that is given.
    """
    names = _Names(store_dir, connect, schema)
    left = limit
    queue_id = None if queue_name is None else _queue_id(store_dir, queue_name, connect, schema)
    read = _followed(store_dir, from_lsn, names) if follow else log_records(store_dir, from_lsn, Reader.records)
    for record in read:
        if left == 0 or record.lsn >= to_lsn:
            break
        if types and record.type not in types:
            continue
        if (ids and record.id not in ids) or (queue_id is not None and queue_id not in _named(record)):
            continue
        left = None if left is None else left - 1
        shown = json.dumps(document(record, bodies)) if as_json else line(record, bodies, names.by_id)
        sys.stdout.write(shown + "\n")
        if follow:
            sys.stdout.flush()
        if left == 0:
            break


def _queue_id(store_dir: Path, name: str, connect: str | None, schema: str | None) -> int:
    with Reader(store_dir) as reader:
        return queue_id_of(read_catalog(store_dir, reader.info, connect=connect, schema=schema), name)


def _named(record: Record) -> Iterator[int]:
    """The ids of the queues that a record names."""
    body = record.body
    yield from getattr(body, "queues", ())
    if hasattr(body, "queue_id"):
        yield body.queue_id
    for row in (*getattr(body, "places", ()), *getattr(body, "pending", ())):
        yield row.queue_id


class _Names:
    """The names of the queues by id, read when they are first wanted; none if the catalog cannot be read."""

    def __init__(self, store_dir: Path, connect: str | None, schema: str | None) -> None:
        self._place = store_dir, connect, schema
        self._by_id: dict[int, str] | None = None

    @property
    def by_id(self) -> dict[int, str]:
        if self._by_id is None:
            self._by_id = queue_names(*self._place)
        return self._by_id

    def forget(self) -> None:
        """Queues may have been declared since."""
        self._by_id = None


def _followed(store_dir: Path, from_lsn: int, names: _Names) -> Iterator[Record]:
    """All records and future ones. A hold keeps the unprinted ones, if the store directory is writable."""
    with ExitStack() as held:
        kept: Hold | None = None
        with suppress(StoreError):
            kept = held.enter_context(hold(store_dir, f"dump-{os.getpid()}"))
        while True:
            with Reader(store_dir, from_lsn=from_lsn) as reader:
                yield from reader.records()
                from_lsn = max(from_lsn, reader.info.end_lsn)
            _wait_for_more(store_dir, from_lsn, kept)
            names.forget()


def _wait_for_more(store_dir: Path, from_lsn: int, kept: Hold | None) -> None:
    """Waits until the writer's HINT file says that more is durable."""
    renewed = time.monotonic()
    if kept is not None and from_lsn > kept.lsn:
        kept.advance(from_lsn)
    while True:
        time.sleep(LOOK_S)
        with suppress(OSError, InvalidRecord):
            if Hint.decode(read_start(store_dir / "HINT", Hint.BYTES)[0]).durable_lsn > from_lsn:
                return
        if kept is not None and time.monotonic() > renewed + RENEWED_S:
            kept.renew()
            renewed = time.monotonic()


def log_records(store_dir: Path, from_lsn: int, read: Callable[[Reader], Iterator[T]]) -> Iterator[T]:
    """What ``read`` yields. Starts again if a writer reuses a segment before the first record."""
    for tried in range(1, TRIES + 1):
        given = False
        try:
            with Reader(store_dir, from_lsn=from_lsn) as reader:
                for record in read(reader):
                    given = True
                    yield record
                return
        except LogRecycled:
            if given or tried == TRIES:
                raise


# ---- A record as text and as JSON


def document(record: Record, bodies: bool) -> dict[str, Any]:
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
        elif isinstance(value, bytes):
            plain[name] = value.hex()
        elif isinstance(value, IntEnum):
            plain[name] = value.name
        elif isinstance(value, tuple):
            plain[name] = [_plain(one, bodies) if is_dataclass(one) else one for one in value]
        else:
            plain[name] = value
    return plain


def line(record: Record, bodies: bool, names: Mapping[int, str]) -> str:
    """The record as one line of text, with times in UTC, and with ``names`` in place of queues' ids."""
    words = [f"{record.lsn:<12} {_type_name(record):<17}"]
    if record.id != 0:
        words.append(f"id={record.id} prev={record.prev}")
    words.append(f"length={record.length}")
    words += [str(flag.name) for flag in RecordFlag if flag in record.flags]
    for name, value in _plain(record.body, bodies=False).items():
        words.append(_word(name, value, names))
        content = getattr(record.body, name.removesuffix("_bytes"), None)
        if bodies and isinstance(content, bytes):
            words.append(f"{name.removesuffix('_bytes')}={content!r}")
    return printable(" ".join(words))


def _word(name: str, value: Any, names: Mapping[int, str]) -> str:
    """A field as ``name=value``."""
    if name.endswith("time_us"):
        return f"{name.removesuffix('_us')}={'unknown' if value == 0 else time_word(value)}"
    if name == "queue_id":
        return f"queue={_queue(value, names)}"
    if name == "queues":
        return f"queues={','.join(_queue(one, names) for one in value)}"
    return f"{name}={_value(value, names)}"


def time_word(time_us: int) -> str:
    """A time in µs since 1970 as one word, ISO 8601 in UTC; a number that is no time stays one."""
    if not 0 < time_us < TIME_US_LIMIT:
        return str(time_us)
    return datetime.fromtimestamp(time_us / 1e6, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _queue(queue_id: int, names: Mapping[int, str]) -> str:
    """A queue as one word: its name, quoted if it is not plain; #ID without a name; - for a place that was left."""
    if queue_id == 0:
        return "-"
    name = names.get(queue_id)
    if name is None:
        return f"#{queue_id}"
    return name if PLAIN_NAME.fullmatch(name) else json.dumps(name, ensure_ascii=False)


def _value(value: Any, names: Mapping[int, str]) -> str:
    if isinstance(value, list):
        return f"[{','.join(_value(one, names) for one in value)}]"
    if isinstance(value, dict):
        return f"({' '.join(_word(name, one, names) for name, one in value.items())})"
    return str(value)
