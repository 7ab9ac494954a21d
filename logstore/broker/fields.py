"""Strict checks of encoded arguments and properties, before they are decoded.

pamqp expects a well-behaved peer: it accepts truncated strings and tables of any depth. So the
arguments of every method and the properties of every message are checked here first: each length must
fit, each table must end where its length says, and nesting and field counts are bounded. The check uses
offsets in the received bytes and copies nothing.

Invariant: bytes that pass the check follow the grammar completely, so no client receives malformed
bytes that another client sent.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from pamqp import commands

DEPTH_MAX: Final = 32  # nested tables; real ones have two or three levels
FIELDS_MAX: Final = 4096  # in one table with all nested ones, because decoding each field takes time

_FIXED_SIZES: Final = {
    ord("t"): 1, ord("b"): 1, ord("B"): 1, ord("s"): 2, ord("u"): 2, ord("I"): 4, ord("i"): 4,
    ord("l"): 8, ord("L"): 8, ord("f"): 4, ord("d"): 8, ord("D"): 5, ord("T"): 8, ord("V"): 0,
}  # fmt: skip
_LONG_STRINGS: Final = frozenset(b"Sx")
_ARGUMENT_SIZES: Final = {"octet": 1, "short": 2, "long": 4, "longlong": 8, "timestamp": 8}

_u32 = struct.Struct(">I").unpack_from
_u16 = struct.Struct(">H").unpack_from

# (flag, type, name) in wire order, from pamqp's table of the specification.
_PROPERTIES: Final = tuple(
    (commands.Basic.Properties.flags[name], commands.Basic.Properties.amqp_type(name), name)
    for name in commands.Basic.Properties.attributes()
)
_KNOWN_FLAGS: Final = sum(flag for flag, _, _ in _PROPERTIES)
_WANTED: Final = frozenset({"expiration", "user_id"})


class MalformedFields(ValueError):
    """Encoded arguments or properties that violate the protocol's grammar; the text says how."""


class Properties(NamedTuple):
    """The properties of a message that the broker itself uses."""

    expiration: str | None
    user_id: str | None


class _Walk:
    """The check of one table; counts the fields of all its levels."""

    __slots__ = ("data", "fields")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.fields = 0

    def table(self, at: int, end: int, depth: int) -> int:
        at, table_end = self._extent(at, end, depth)
        while at < table_end:
            at = _short_string(self.data, at, table_end)
            at = self._value(at, table_end, depth)
        return table_end

    def array(self, at: int, end: int, depth: int) -> int:
        at, array_end = self._extent(at, end, depth)
        while at < array_end:
            at = self._value(at, array_end, depth)
        return array_end

    def _extent(self, at: int, end: int, depth: int) -> tuple[int, int]:
        if depth > DEPTH_MAX:
            raise MalformedFields(f"a table is nested deeper than {DEPTH_MAX}")
        inside = at + 4
        if inside > end:
            raise MalformedFields("a table's length is cut off")
        inside_end = inside + _u32(self.data, at)[0]
        if inside_end > end:
            raise MalformedFields("a table is longer than its container")
        return inside, int(inside_end)

    def _value(self, at: int, end: int, depth: int) -> int:
        self.fields += 1
        if self.fields > FIELDS_MAX:
            raise MalformedFields(f"a table holds more than {FIELDS_MAX} fields")
        if at >= end:
            raise MalformedFields("a field's value is missing")
        kind = self.data[at]
        at += 1
        size = _FIXED_SIZES.get(kind)
        if size is not None:
            at += size
        elif kind in _LONG_STRINGS:
            if at + 4 > end:
                raise MalformedFields("a long string's length is cut off")
            at += 4 + _u32(self.data, at)[0]
        elif kind == 0x46:  # 'F'
            return self.table(at, end, depth + 1)
        elif kind == 0x41:  # 'A'
            return self.array(at, end, depth + 1)
        else:
            raise MalformedFields(f"field type {kind:#04x} is unknown")
        if at > end:
            raise MalformedFields("a field is longer than its table")
        return at


def _short_string(data: bytes, at: int, end: int) -> int:
    if at >= end:
        raise MalformedFields("a short string is missing")
    after = at + 1 + data[at]
    if after > end:
        raise MalformedFields("a short string is cut off")
    try:
        data[at + 1 : after].decode()
    except UnicodeDecodeError:
        raise MalformedFields("a short string is not UTF-8") from None
    return after


def _argument(data: bytes, at: int, end: int, kind: str) -> int:
    if kind == "shortstr":
        return _short_string(data, at, end)
    if kind == "table":
        return _Walk(data).table(at, end, 0)
    if kind == "longstr":
        if at + 4 > end:
            raise MalformedFields("a long string's length is cut off")
        at += 4 + _u32(data, at)[0]
    else:
        at += _ARGUMENT_SIZES[kind]
    if at > end:
        raise MalformedFields(f"an argument of type {kind} is cut off")
    return at


def check_arguments(kinds: tuple[str, ...], data: bytes, at: int) -> None:
    """Check that `data` from `at` to its end holds exactly arguments of these types.

    Raises `MalformedFields` otherwise.
    """
    end = len(data)
    bits = 0
    for kind in kinds:
        if kind == "bit":  # adjacent bits share octets
            at += bits % 8 == 0
            bits += 1
            if at > end:
                raise MalformedFields("the flags are missing")
            continue
        bits = 0
        at = _argument(data, at, end, kind)
    if at != end:
        raise MalformedFields(f"{end - at} bytes follow the last argument")


def check_properties(data: bytes, at: int) -> Properties:
    """Check that `data` from `at` to its end is one property list. Returns the properties that the broker uses.

    Raises `MalformedFields` otherwise.
    """
    end = len(data)
    if at + 2 > end:
        raise MalformedFields("the property flags are cut off")
    flags = _u16(data, at)[0]
    at += 2
    if flags & ~_KNOWN_FLAGS:
        raise MalformedFields(f"property flags {flags:#06x} are unknown")
    wanted: dict[str, str] = {}
    for flag, kind, name in _PROPERTIES:
        if flags & flag:
            start = at
            at = _argument(data, at, end, kind)
            if name in _WANTED:
                wanted[name] = data[start + 1 : at].decode()
    if at != end:
        raise MalformedFields(f"{end - at} bytes follow the last property")
    return Properties(wanted.get("expiration"), wanted.get("user_id"))
