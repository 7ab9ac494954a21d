"""``logstore dump``: prints the log's records, one per line.

It prints every field of a record, under the names in docs/format.md. Contents are printed only with --bodies, because
they are most of a log.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

import click

from logstore.codec.files import Hint
from logstore.codec.records import LSN_LIMIT, InvalidRecord, Record, RecordType
from logstore.core.regular_files import read_start
from logstore.errors import StoreError
from logstore.holds import Hold, hold
from logstore.inspect import Reader, read_catalog
from logstore.terminal.options import LSN, catalog_options, json_option, store_argument
from logstore.terminal.output import print_json
from logstore.terminal.queue_names import queue_id_of, queue_names
from logstore.terminal.records import bodies_option, log_records, record_document, record_line

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LOOK_S = 0.2
RENEWED_S = 600.0


def _type(_context: click.Context, _parameter: click.Parameter, names: tuple[str, ...]) -> frozenset[RecordType]:
    return frozenset(RecordType[name.upper()] for name in names)


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
        if as_json:
            print_json(record_document(record, bodies))
        else:
            sys.stdout.write(record_line(record, bodies, names.by_id) + "\n")
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
    yield from filter(None, (getattr(body, "from_queue_id", 0),))
    for row in (*getattr(body, "places", ()), *getattr(body, "pending", ()), *getattr(body, "rows", ())):
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
