"""The AMQP properties of messages as columns: ``properties``, a struct, and ``headers``, a map.

The broker keeps them in the message's header as the publisher sent them (the layout is in broker/headers.py). The
header of another program, or one that is no property list, gives null. Within a batch of rows equal properties are
decoded once, and successive batches share what was decoded.
"""

from __future__ import annotations

import json
import struct
from base64 import b64encode
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from logstore.core.extras import require

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

__all__ = ["DECODED", "decoded_columns", "decoded_fields"]

DECODED: Final = ("properties", "headers")
"""The columns that are made from ``header``, and only on request."""

# AMQP 0-9-1, class basic: the properties in wire order, the first one at the highest flag.
_PROPERTIES: Final = (
    ("content_type", "s"), ("content_encoding", "s"), ("headers", "F"), ("delivery_mode", "B"), ("priority", "B"),
    ("correlation_id", "s"), ("reply_to", "s"), ("expiration", "s"), ("message_id", "s"), ("timestamp", "T"),
    ("type", "s"), ("user_id", "s"), ("app_id", "s"), ("cluster_id", "s"),
)  # fmt: skip
_FIRST_FLAG: Final = 15
_KNOWN_FLAGS: Final = sum(1 << (_FIRST_FLAG - number) for number in range(len(_PROPERTIES)))
_SHOWN: Final = ("exchange", "routing_key", *(name for name, _ in _PROPERTIES if name not in ("headers", "cluster_id")))

# Field types of a table with a fixed size, as in broker/fields.py.
_FIXED: Final = {
    "b": ">b", "B": ">B", "s": ">h", "u": ">H", "I": ">i", "i": ">I", "l": ">q", "L": ">q", "f": ">f", "d": ">d",
}  # fmt: skip
_VERSION: Final = 1
_TIME_BYTES: Final = slice(2, 10)  # of publishing, which differs for each message
_EXPIRATION_BYTES: Final = 4
_DEPTH_MAX: Final = 32
_KEPT: Final = 4096
_KEPT_BYTES: Final = 1024  # a longer header is decoded again in each batch, so those kept have at most 4 MiB
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_Columns = tuple[dict[str, Any] | None, list[tuple[str, str | None]] | None]


def decoded_fields() -> dict[str, pa.Field]:
    """The fields of both columns."""
    arrow = require("arrow", "pyarrow")
    kinds = {"delivery_mode": arrow.int32(), "priority": arrow.int32(), "timestamp": arrow.timestamp("us", tz="UTC")}
    properties = arrow.struct([arrow.field(name, kinds.get(name, arrow.string())) for name in _SHOWN])
    return {
        "properties": arrow.field("properties", properties),
        "headers": arrow.field("headers", arrow.map_(arrow.string(), arrow.string())),
    }


def decoded_columns(names: Sequence[str], header: pa.Array) -> dict[str, pa.Array]:
    """Those of these columns that are made from ``header``, an array of message headers."""
    arrow = require("arrow", "pyarrow")
    compute = require("arrow", "pyarrow.compute")
    found = compute.binary_replace_slice(header, _TIME_BYTES.start, _TIME_BYTES.stop, b"").dictionary_encode()
    values = [_decoded(each) for each in found.dictionary.to_pylist()]
    return {
        name: arrow.array([each[number] for each in values], decoded_fields()[name].type).take(found.indices)
        for number, name in enumerate(DECODED)
        if name in names
    }


def _decoded(header: bytes) -> _Columns:
    """The properties and the headers of a message header without its time; (None, None) for other bytes."""
    return _decoded_once(header) if len(header) <= _KEPT_BYTES else _read(header)


@lru_cache(_KEPT)
def _decoded_once(header: bytes) -> _Columns:
    return _read(header)


def _read(header: bytes) -> _Columns:
    try:
        version, flags = header[0], header[1]
        if version != _VERSION or flags > 1:
            return None, None
        at = 2 + (_EXPIRATION_BYTES if flags else 0)
        exchange, at = _short(header, at)
        key, at = _short(header, at)
        found: dict[str, Any] = {"exchange": exchange, "routing_key": key}
        headers: dict[str, Any] = {}
        (told,) = struct.unpack_from(">H", header, at)
        at += 2
        if told & ~_KNOWN_FLAGS:
            return None, None
        for number, (name, kind) in enumerate(_PROPERTIES):
            if not told & 1 << (_FIRST_FLAG - number):
                continue
            if kind == "s":
                found[name], at = _short(header, at)
            elif kind == "F":
                headers, at = _table(header, at, 0)
            elif kind == "B":
                found[name], at = header[at], at + 1
            else:
                found[name], at = _value(header, at, kind, 0)
        if at != len(header):
            return None, None
    except (IndexError, ValueError, struct.error):
        return None, None
    return found, [(name, _text(value)) for name, value in headers.items()]


def _short(data: bytes, at: int) -> tuple[str, int]:
    end = at + 1 + data[at]
    return _cut(data, at + 1, end).decode(), end


def _cut(data: bytes, at: int, end: int) -> bytes:
    if end > len(data):
        raise ValueError("cut off")
    return data[at:end]


def _long(data: bytes, at: int) -> tuple[int, int]:
    """Where the bytes of a field with a length begin and end."""
    (size,) = struct.unpack_from(">I", data, at)
    if at + 4 + size > len(data):
        raise ValueError("cut off")
    return at + 4, at + 4 + size


def _table(data: bytes, at: int, depth: int) -> tuple[dict[str, Any], int]:
    at, end = _long(data, at)
    made: dict[str, Any] = {}
    while at < end:
        name, at = _short(data, at)
        made[name], at = _value(data, at + 1, chr(data[at]), depth + 1)
    if at != end:
        raise ValueError("longer than its table")
    return made, end


def _array(data: bytes, at: int, depth: int) -> tuple[list[Any], int]:
    at, end = _long(data, at)
    made = []
    while at < end:
        value, at = _value(data, at + 1, chr(data[at]), depth + 1)
        made.append(value)
    if at != end:
        raise ValueError("longer than its array")
    return made, end


def _value(data: bytes, at: int, kind: str, depth: int) -> tuple[Any, int]:
    if depth > _DEPTH_MAX:
        raise ValueError("nested too deep")
    if kind == "F":
        return _table(data, at, depth)
    if kind == "A":
        return _array(data, at, depth)
    if kind in "Sx":
        at, end = _long(data, at)
        return data[at:end], end
    if kind == "V":
        return None, at
    if kind == "t":
        return data[at] != 0, at + 1
    if kind == "D":
        places, number = struct.unpack_from(">Bi", data, at)
        return Decimal(number).scaleb(-places), at + 5
    if kind == "T":
        (seconds,) = struct.unpack_from(">Q", data, at)
        try:
            return _EPOCH + timedelta(seconds=seconds), at + 8
        except OverflowError:
            return None, at + 8  # after the year 9999
    form = _FIXED.get(kind)
    if form is None:
        raise ValueError("an unknown type")
    return struct.unpack_from(form, data, at)[0], at + struct.calcsize(form)


def _text(value: object) -> str | None:
    """A header's value as text: a string as it is, anything else in JSON."""
    if value is None:
        return None
    plain = _plain(value)
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)


def _plain(value: object) -> object:
    """The value in types of JSON; bytes that are no UTF-8 in base64."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return b64encode(value).decode()
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list) else value
