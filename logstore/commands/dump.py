"""``logstore dump`` and ``logstore chain``: the log's records, one a line.

What they print is what the format says, field by field, under the names of docs/format.md. Contents are left out
unless asked for: they are what a log is mostly made of.
"""

from __future__ import annotations

import base64
import json
import sys
from dataclasses import fields, is_dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import click

from logstore.commands.options import LSN, json_option, store_argument
from logstore.commands.output import Failure, print_json, printable
from logstore.commands.state import TRIES
from logstore.inspect import LogRecycled, Reader
from logstore.records import LSN_LIMIT, Record, RecordFlag, RecordType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

CONTENTS = frozenset({"header", "content", "raw"})  # the only fields that can be long


def _type(_context: click.Context, _parameter: click.Parameter, names: tuple[str, ...]) -> frozenset[RecordType]:
    return frozenset(RecordType[name.upper()] for name in names)


bodies_option = click.option(
    "--bodies", is_flag=True, help="With headers and contents (in JSON as base64); else only their sizes."
)


@click.command()
@store_argument
@click.option("--from", "from_lsn", type=LSN, default=0, help="The first LSN that is of interest.")
@click.option("--to", "to_lsn", type=LSN, default=LSN_LIMIT - 1, help="The first LSN that is of interest no more.")
@click.option(
    "--type",
    "types",
    multiple=True,
    type=click.Choice([one.name for one in RecordType], case_sensitive=False),
    metavar="TYPE",
    callback=_type,
    help="Only records of this type, such as MESSAGE_START; may be given again.",
)
@click.option("--limit", type=click.IntRange(min=0), help="Stop after so many records.")
@bodies_option
@json_option
def dump(
    store_dir: Path,
    from_lsn: int,
    to_lsn: int,
    types: frozenset[RecordType],
    limit: int | None,
    bodies: bool,
    as_json: bool,
) -> None:
    """Print the log's records in order, one a line.

    With --json a line is a JSON object.
    """
    show = _json_line if as_json else _line
    left = limit
    for record in _records(store_dir, from_lsn, lambda reader: reader.records()):
        if left == 0 or record.lsn >= to_lsn:
            break
        if types and record.type not in types:
            continue
        left = None if left is None else left - 1
        sys.stdout.write(show(record, bodies) + "\n")


@click.command()
@store_argument
@click.argument("id", type=LSN)
@bodies_option
@json_option
def chain(store_dir: Path, id: int, bodies: bool, as_json: bool) -> None:  # noqa: A002 - the design's own word
    """Print all records of one message or transaction in order.

    ID is its persistence ID, decimal, or hexadecimal with 0x.
    """
    found = []
    for record in _records(store_dir, id, lambda reader: reader.chain(id)):
        if as_json:
            found.append(document(record, bodies))
        else:
            found.append({})
            sys.stdout.write(_line(record, bodies) + "\n")
    if not found:
        raise Failure(f"{store_dir}: no record in the log belongs to {id}: no message or transaction, or one long gone")
    if as_json:
        print_json({"store": str(store_dir), "id": id, "records": found})


def _records(store_dir: Path, from_lsn: int, read: Callable[[Reader], Iterator[Record]]) -> Iterator[Record]:
    """What ``read`` gives; begun again if a writer overtakes it before anything was given out."""
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


# ---- A record for people and for machines


def document(record: Record, bodies: bool) -> dict[str, Any]:
    """The record as JSON can hold it."""
    return {
        "lsn": record.lsn,
        "type": _type_name(record),
        "flags": [flag.name for flag in RecordFlag if flag in record.flags],
        "id": record.id,
        "prev": record.prev,
        "length": record.length,
        "body": _told(record.body, bodies),
    }


def _type_name(record: Record) -> str:
    return record.type.name if isinstance(record.type, RecordType) else f"{record.type:#06x}"


def _told(body: Any, bodies: bool) -> dict[str, Any]:
    told: dict[str, Any] = {}
    for field in fields(body):
        name, value = field.name, getattr(body, field.name)
        if name in CONTENTS:
            told[f"{name}_bytes"] = len(value)
            if bodies:
                told[name] = base64.b64encode(value).decode("ascii")
        elif isinstance(value, bytes):
            told[name] = value.hex()
        elif isinstance(value, IntEnum):
            told[name] = value.name
        elif isinstance(value, tuple):
            told[name] = [_told(one, bodies) if is_dataclass(one) else one for one in value]
        else:
            told[name] = value
    return told


def _json_line(record: Record, bodies: bool) -> str:
    return json.dumps(document(record, bodies))


def _line(record: Record, bodies: bool) -> str:
    words = [f"{record.lsn:<12} {_type_name(record):<17}"]
    if record.id != 0:
        words.append(f"id={record.id} prev={record.prev}")
    words.append(f"length={record.length}")
    words += [str(flag.name) for flag in RecordFlag if flag in record.flags]
    for name, value in _told(record.body, bodies=False).items():
        words.append(f"{name}={_word(value)}")
        content = getattr(record.body, name.removesuffix("_bytes"), None)
        if bodies and isinstance(content, bytes):
            words.append(f"{name.removesuffix('_bytes')}={content!r}")
    return printable(" ".join(words))


def _word(value: Any) -> str:
    if isinstance(value, list):
        inner = (_word(one) for one in value)
        return f"[{','.join(inner)}]"
    if isinstance(value, dict):
        return f"({' '.join(f'{name}={_word(one)}' for name, one in value.items())})"
    return str(value)
