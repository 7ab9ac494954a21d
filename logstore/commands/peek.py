"""``logstore peek``: the first messages of a queue, with header and body; it changes nothing."""

from __future__ import annotations

import base64
import struct
import sys
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from logstore.codec.state import PlaceState
from logstore.core.counts import counted
from logstore.errors import CorruptLog, StoreError, UnknownQueue
from logstore.inspect import Inspection, read_catalog
from logstore.inspect.peek import Peeked
from logstore.inspect.peek import peek as peek_queue
from logstore.store import control
from logstore.terminal.changing import ask
from logstore.terminal.options import SIZE, catalog_options, json_option, store_argument
from logstore.terminal.output import iso_time, print_json, progress
from logstore.terminal.place_states import standing_text, state_document
from logstore.terminal.previews import preview, text_of
from logstore.terminal.queue_names import queue_argument, queue_id_of
from logstore.terminal.sampling import asked
from logstore.terminal.state import retried
from logstore.terminal.tables import printable

if TYPE_CHECKING:
    from pathlib import Path

LIMIT_MAX = 1000
BODY_BYTES = 256
BODY_BYTES_MAX = 1 << 20
_CONTENT_HEADER = struct.Struct(">HHQ")
_BASIC = 60


@click.command()
@store_argument
@queue_argument
@click.option(
    "-n", "limit", type=click.IntRange(1, LIMIT_MAX), default=1, show_default=True, help="The number of messages."
)
@click.option(
    "--body",
    "body_bytes",
    type=SIZE,
    default=BODY_BYTES,
    show_default=True,
    help="Show at most this many bytes of each body.",
)
@json_option
@catalog_options
def peek(
    store_dir: Path,
    queue: str,
    limit: int,
    body_bytes: int,
    as_json: bool,
    connect: str | None,
    schema: str | None,
) -> None:
    """Show the first messages of a queue, and leave them there.

    It reads the log, also while a broker runs, and knows nothing of what is delivered and not yet acknowledged. If the
    log is damaged, a running broker is asked, which lists what it can read. A body that is no printable text is shown
    in hexadecimal.
    """
    if not 0 <= body_bytes <= BODY_BYTES_MAX:
        raise click.BadParameter(f"{body_bytes} is not in the range 0 to {BODY_BYTES_MAX}", param_hint="'--body'")

    def look() -> tuple[int, list[Peeked]]:
        with Inspection(store_dir) as found:
            with progress("reading", max(found.info.end_lsn - found.info.base_lsn, 0)) as show:
                found.read(show)
            view = read_catalog(store_dir, found.info, connect=connect, schema=schema)
            queue_id = queue_id_of(view, queue)
            depth = {one.id: one.depth for one in found.queues()}.get(queue_id, 0)
            return depth, peek_queue(found, queue_id, limit, body_bytes) if depth else []

    try:
        depth, messages = retried(store_dir, look)
    except CorruptLog as error:
        depth, messages = _from_broker(store_dir, queue, limit, body_bytes, error)
    except UnknownQueue:
        if _is_in_memory(store_dir, queue):
            raise UnknownQueue(
                f"the broker keeps queue {queue!r} in its memory, so its messages are not in the log: "
                "'logstore queues DIR' counts them"
            ) from None
        raise
    documents = [document(one) for one in messages]
    if as_json:
        print_json({"store": str(store_dir), "queue": queue, "depth": depth, "messages": documents})
        return
    lines = [] if messages else [f"queue '{printable(queue)}' has no messages"]
    for one, message in zip(documents, messages, strict=True):
        lines += lines_of(one, message)
    if len(messages) < depth:
        lines.append(f"{counted(depth - len(messages), 'more message follows', 'more messages follow')} (-n)")
    sys.stdout.write("".join(f"{line}\n" for line in lines))


def _from_broker(
    store_dir: Path, queue: str, limit: int, body_bytes: int, damage: CorruptLog
) -> tuple[int, list[Peeked]]:
    """The depth and the first messages as a running broker lists them. Raises ``damage`` if none does."""
    try:
        if not control.is_served(store_dir):
            raise damage
        found = ask(
            store_dir,
            "peek",
            {"queue": queue, "limit": limit, "body_bytes": body_bytes},
            sign_of_life_s=control.SIGN_OF_LIFE_S,
        )
    except UnknownQueue:
        raise
    except StoreError:
        raise damage from None
    messages = []
    for one in found["messages"]:
        made = Peeked(one["id"], 0, one["locked"], one["body_bytes"], unreadable=one["unreadable"])
        note = base64.b64decode(one["note_base64"])
        made.hidden, made.expired = one["hidden"], one["expired"]
        made.header, made.content = base64.b64decode(one["header_base64"]), base64.b64decode(one["body_base64"])
        own = made.header if one["own_header"] else None
        made.state = PlaceState(one["delivery_count"], one["not_before_us"], one["expires_us"], note, own)
        messages.append(made)
    return found["depth"], messages


def _is_in_memory(store_dir: Path, queue: str) -> bool:
    sample, _ = asked(store_dir)
    return sample is not None and any(one["name"] == queue and not one["durable"] for one in sample["queues"])


# ---- A message as JSON


def document(message: Peeked) -> dict[str, Any]:
    """A message for ``peek --json``."""
    text = text_of(message.content, is_cut=len(message.content) < message.content_bytes)
    state = state_document(message.state, hidden=message.hidden, expired=message.expired)
    return {
        "id": message.id,
        "lsn": message.lsn or None,
        "time": iso_time(message.time_us),
        "locked": message.locked,
        **state,
        "unreadable": message.unreadable,
        "header_bytes": len(message.header),
        "header": header_of(message.header),
        "header_base64": base64.b64encode(message.header).decode("ascii"),
        "body_bytes": message.content_bytes,
        "body_shown_bytes": len(message.content),
        "body_text": text,
        "body_base64": base64.b64encode(message.content).decode("ascii"),
    }


def header_of(header: bytes) -> dict[str, Any] | None:
    """What the broker put into a header: exchange, routing key, times, properties. None if it is not the broker's."""
    try:
        from logstore.broker.headers import decode_header
    except ImportError:
        return None  # without the packages of the broker a header is shown as it is
    found = decode_header(header, b"")
    if found.published_ms is None:
        return None
    exchange_end = 1 + found.routing[0]
    return {
        "exchange": found.routing[1:exchange_end].decode("utf-8", "backslashreplace"),
        "routing_key": found.routing[exchange_end + 1 :].decode("utf-8", "backslashreplace"),
        "published": iso_time(found.published_ms * 1000),
        "expiration_ms": found.expiration_ms,
        "properties": properties_of(found.properties),
    }


def properties_of(data: bytes) -> dict[str, Any] | None:
    """The AMQP properties that are set; None if the bytes are none."""
    from pamqp.header import ContentHeader

    from logstore.broker.fields import MalformedFields, check_properties

    made = ContentHeader()
    try:
        check_properties(data, 0)
        made.unmarshal(_CONTENT_HEADER.pack(_BASIC, 0, 0) + data)
    except (MalformedFields, ValueError, KeyError, IndexError, OverflowError, OSError, struct.error):
        return None
    flags = int.from_bytes(data[:2], "big")
    return {name: _plain(value) for name, value in made.properties if flags & made.properties.flags[name]}


def _plain(value: Any) -> Any:
    """A value of a property table as JSON has it: times as ISO 8601, bytes and odd numbers as text."""
    if isinstance(value, dict):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bytes | bytearray):
        return value.decode("utf-8", "backslashreplace")
    return value if isinstance(value, bool | int | str) or value is None else str(value)


# ---- A message for people


def lines_of(one: dict[str, Any], message: Peeked) -> list[str]:
    """The lines of one message, which is ``one`` as JSON."""
    at = one["time"] or (one["header"] or {}).get("published")
    time = "an unknown time" if at is None else f"{at[:23].replace('T', ' ')} UTC"
    locked = ", locked by a transaction" if one["locked"] else ""
    standing = standing_text(message.state, hidden=message.hidden, expired=message.expired)
    lines = [f"message {one['id']}, {time}, {counted(one['body_bytes'], 'byte')}{locked}{standing}"]
    if one["unreadable"] is not None:
        lines.append(f"  cannot be read: {printable(one['unreadable'])}")
        return lines
    if message.state.note:
        lines.append(f"  note: {preview(message.state.note, len(message.state.note))}")
    if message.state.header is not None:
        lines.append(f"  a header of its place, {counted(one['header_bytes'], 'byte')}, stands for the message's:")
    header = one["header"]
    if header is not None:
        lines.append(f"  exchange '{printable(header['exchange'])}', key '{printable(header['routing_key'])}'")
        if header["properties"] is None:
            lines.append("  properties that cannot be decoded")
        else:
            lines += [f"  {name}: {printable(str(value))}" for name, value in header["properties"].items()]
    elif one["header_bytes"]:
        lines.append(f"  header: {preview(base64.b64decode(one['header_base64']), one['header_bytes'])}")
    lines.append(f"  body: {preview(base64.b64decode(one['body_base64']), one['body_bytes'])}")
    return lines
