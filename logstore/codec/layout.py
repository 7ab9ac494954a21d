"""The layout of a log record's body: the parts from which bodies.py builds section 6 of docs/format.md.

A part encodes itself from the whole body and decodes itself from the rest of the record. Decoding never reads past the
record's end; a broken rule raises ValueError with the reason.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    from logstore.codec.records import Record

LSN_LIMIT = 1 << 63  # LSNs lie below it, so that they fit the signed 64 bits of SQL, Arrow and Spark
CONTENT_BYTES_MAX = 2**63 - 1
QUEUE_ID_MAX = 2**32 - 2
XID_PART_BYTES_MAX = 64


class Cursor:
    """Reads a body from its front, never past its end. Raises ValueError for bytes that break a rule."""

    __slots__ = ("_at", "_body", "_end")

    def __init__(self, body: memoryview) -> None:
        self._body, self._at, self._end = body, 0, len(body)

    @property
    def left(self) -> int:
        """The number of bytes that were not taken yet."""
        return self._end - self._at

    def take(self, bytes_wanted: int) -> bytes:
        """Takes the next ``bytes_wanted`` bytes."""
        at = self._at
        self._at = end = at + bytes_wanted
        if end > self._end:
            self._at = at
            raise ValueError("does not fit the record")
        return bytes(self._body[at:end])

    def take_zeros(self, bytes_wanted: int) -> int:
        """Takes ``bytes_wanted`` bytes, which must be zero; returns their number."""
        if any(self.take(bytes_wanted)):
            raise ValueError("is not zero")
        return bytes_wanted


@dataclass(frozen=True, slots=True)
class Part:
    """One field of a body, or a count of a later one, or reserved space."""

    name: str
    width: int  # bytes; 0: variable
    encode: Callable[[Any], bytes]  # from the whole body
    decode: Callable[[Cursor, int], Any]  # the value at the cursor; the int is the count for this name, if there is one
    is_field: bool = True  # False: a count or reserved space, not a field of the body class


Parts: TypeAlias = tuple[Part, ...]


def encode_parts(body: Body) -> bytes:
    """The body's bytes, without padding."""
    return b"".join(part.encode(body) for part in body.parts)


def decode_parts(body_class: type[Body], cursor: Cursor) -> Body:
    """Decodes the body of this class at the cursor."""
    fields: dict[str, Any] = {}
    counts: dict[str, int] = {}
    for part in body_class.parts:
        try:
            value = part.decode(cursor, counts.get(part.name, 0))
        except ValueError as error:
            raise ValueError(f"{part.name} {error}") from None
        (fields if part.is_field else counts)[part.name] = value
    return body_class(**fields)


def number(name: str, width: int, check: Callable[[int], int] = int, signed: bool = False) -> Part:
    """One integer of ``width`` bytes; ``check`` returns its value or raises."""
    return Part(
        name,
        width,
        lambda body: getattr(body, name).to_bytes(width, "little", signed=signed),
        lambda cursor, _: check(int.from_bytes(cursor.take(width), "little", signed=signed)),
    )


def count_of(name: str, width: int = 4, check: Callable[[int], int] = int) -> Part:
    """The number of bytes or rows of the later part with that name."""
    return Part(
        name,
        width,
        lambda body: len(getattr(body, name)).to_bytes(width, "little"),
        lambda cursor, _: check(int.from_bytes(cursor.take(width), "little")),
        is_field=False,
    )


def reserved(width: int) -> Part:
    """Reserved bytes, which must be zero."""
    return Part(
        "reserved space", width, lambda _: bytes(width), lambda cursor, _: cursor.take_zeros(width), is_field=False
    )


def data(name: str) -> Part:
    """Bytes, as many as the count for ``name`` gives."""
    return Part(name, 0, lambda body: bytes(getattr(body, name)), lambda cursor, count: cursor.take(count))


def rest(name: str) -> Part:
    """All bytes up to the record's end."""
    return Part(name, 0, lambda body: bytes(getattr(body, name)), lambda cursor, _: cursor.take(cursor.left))


def zeros(name: str) -> Part:
    """Zero bytes up to the record's end; the field is their number."""
    return Part(name, 0, lambda body: bytes(getattr(body, name)), lambda cursor, _: cursor.take_zeros(cursor.left))


def rows(name: str, row_class: type[Body], row_bytes: int) -> Part:
    """Rows of ``row_bytes`` bytes each, as many as the count for ``name`` gives."""

    def decode(cursor: Cursor, count: int) -> tuple[Body, ...]:
        rows = Cursor(memoryview(cursor.take(row_bytes * count)))
        return tuple(decode_parts(row_class, rows) for _ in range(count))

    return Part(name, 0, lambda body: b"".join(encode_parts(row) for row in getattr(body, name)), decode)


def padded_rows(name: str, row_class: type[Body]) -> Part:
    """Rows of varying length, each padded to a multiple of 8; as many as the count for ``name`` gives."""

    def encode(body: Any) -> bytes:
        encoded = (encode_parts(row) for row in getattr(body, name))
        return b"".join(row + bytes(-len(row) % 8) for row in encoded)

    def decode(cursor: Cursor, count: int) -> tuple[Body, ...]:
        rows = []
        for _ in range(count):
            before = cursor.left
            rows.append(decode_parts(row_class, cursor))
            cursor.take_zeros((cursor.left - before) % 8)
        return tuple(rows)

    return Part(name, 0, encode, decode)


def queue_list(name: str, padded: bool, gaps: bool = False) -> Part:
    """Queue ids, as many as the count for ``name`` gives, padded to a multiple of 8 if more parts follow.

    With ``gaps``, 0 stands for a place that has ended; the first and the last id are never 0.
    """

    def encode(body: Any) -> bytes:
        ids = getattr(body, name)
        return struct.pack(f"<{len(ids)}I", *ids) + bytes(4 * (padded and len(ids) % 2))

    def decode(cursor: Cursor, count: int) -> tuple[int, ...]:
        ids = struct.unpack(f"<{count}I", cursor.take(4 * count))
        cursor.take_zeros(4 * (padded and count % 2))
        for i, queue_id in enumerate(ids):
            if queue_id or not gaps or i in (0, count - 1):
                a_queue_id(queue_id)
        return ids

    return Part(name, 0, encode, decode)


def within(low: int, high: int, what: str) -> Callable[[int], int]:
    """Returns a check that a number lies from ``low`` to ``high``."""

    def check(value: int) -> int:
        if not low <= value <= high:
            raise ValueError(f"{value:#x} is no {what}")
        return value

    return check


an_lsn = within(1, LSN_LIMIT - 1, "LSN")
lsn_or_none = within(0, LSN_LIMIT - 1, "LSN")
a_queue_id = within(1, QUEUE_ID_MAX, "queue id")
above_zero = within(1, 2**64 - 1, "number above zero")
content_size = within(0, CONTENT_BYTES_MAX, "size of a content")
xid_part_size = within(0, XID_PART_BYTES_MAX, f"length up to {XID_PART_BYTES_MAX}")


def earlier(lsn: int, **named_lsns: int) -> None:
    """Checks that the LSNs that a body names lie below ``lsn``."""
    for name, named_lsn in named_lsns.items():
        if named_lsn >= lsn:
            raise ValueError(f"{name} {named_lsn:#x} does not lie below the record")


class Body:
    """A record's body, or a row of one."""

    __slots__ = ()
    parts: ClassVar[Parts] = ()

    def check(self, record: Record) -> None:
        """Raises ValueError if no writer can have written this body in this record."""
