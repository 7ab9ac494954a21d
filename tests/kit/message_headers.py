"""Headers of messages as bytes: those that the broker keeps, in every way that AMQP allows, and damaged ones."""

from __future__ import annotations

import itertools
import math
import random
import struct
from typing import TYPE_CHECKING, Final

from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["HEADERS_FLAG", "ODD", "array", "header", "headers", "long", "short", "table"]

#: The properties in wire order: the flag of the first is the highest bit.
KINDS: Final = "ssFBBssssTssss"
HEADERS_FLAG: Final = 1 << 13
DEPTH_MAX: Final = 32


def short(text: str | bytes) -> bytes:
    """A short string."""
    raw = text.encode() if isinstance(text, str) else text
    return bytes([len(raw)]) + raw


def long(raw: bytes) -> bytes:
    """A field that begins with its size."""
    return len(raw).to_bytes(4, "big") + raw


def table(entries: Iterable[tuple[str | bytes, bytes]]) -> bytes:
    """A table, of names and of values with their types."""
    return long(b"".join(short(name) + value for name, value in entries))


def array(values: Iterable[bytes]) -> bytes:
    """A value that is an array of values."""
    return b"A" + long(b"".join(values))


def header(told: int = 0, properties: bytes = b"", *, routing: bytes = b"\0\0", published_ms: int = 1) -> bytes:
    """A message header with these property flags and properties."""
    return struct.pack(">BBQ", 1, 0, published_ms) + routing + struct.pack(">H", told) + properties


def nested(depth: int, kind: bytes) -> bytes:
    """A header with a value inside of so many arrays or tables; what is deeper than 32 is no property list."""
    made = b"I" + bytes(4)
    for _ in range(depth):
        made = array([made]) if kind == b"A" else b"F" + table([("n", made)])
    return header(HEADERS_FLAG, table([("deep", made)]))


def doubles() -> bytes:
    """A header with all powers of two and of ten, their neighbours, and doubles of random bits."""
    chosen = random.Random(5)
    exact = [2.0**n for n in range(-1074, 1024)] + [float(f"1e{n}") for n in range(-323, 309)]
    near = [math.nextafter(one, math.inf) for one in exact] + [math.nextafter(one, 0) for one in exact]
    made = [math.inf, -math.inf, math.nan, 0.0, -0.0, 0.1, 123456789012345680.0, 1e16 - 2, *exact, *near]
    whole = b"".join(b"d" + struct.pack(">d", one) for one in made)
    whole += b"".join(b"d" + chosen.randbytes(8) + b"f" + chosen.randbytes(4) for _ in range(1000))
    return header(HEADERS_FLAG, table([("doubles", b"A" + long(whole))]))


def texts() -> bytes:
    """A header with bytes at every border of what is UTF-8."""
    leads = b"\x7f\x80\xc1\xc2\xdf\xe0\xe1\xec\xed\xee\xef\xf0\xf1\xf3\xf4\xf5\xff"
    rest = b"\x7f\x80\x8f\x90\x9f\xa0\xbf\xc0"
    made = [bytes(one) for n in range(4) for one in itertools.product(leads, *[rest] * n)]
    return header(HEADERS_FLAG, table([("texts", array(b"S" + long(one) for one in made))]))


_TIMES = st.sampled_from([0, 1, 253_402_300_799, 253_402_300_800, (1 << 63) - 1, 1 << 63]) | st.integers(
    0, (1 << 64) - 1
)
_NAMES = st.text(max_size=6) | st.sampled_from(["x", "ä", "", "x-death", "\x00"])
_WIDTHS: Final = {1: "bBt", 2: "su", 4: "Iif", 8: "lLdT"}


def _sized(width: int) -> st.SearchStrategy[bytes]:
    kinds = st.sampled_from(_WIDTHS[width]).map(str.encode)
    return st.tuples(kinds, st.binary(min_size=width, max_size=width)).map(b"".join)


_LEAVES = st.one_of(
    st.text(max_size=9).map(lambda text: b"S" + long(text.encode())),
    st.sampled_from(['"\\/', "\b\f\n\r\t\x1f\x7f", "\u2028\U0001f600é"]).map(lambda text: b"S" + long(text.encode())),
    st.tuples(st.sampled_from([b"S", b"x"]), st.binary(max_size=5).map(long)).map(b"".join),
    st.just(b"V"),
    st.tuples(st.integers(0, 255), st.integers(-(1 << 31), (1 << 31) - 1)).map(
        lambda one: struct.pack(">cBi", b"D", *one)
    ),
    st.tuples(st.integers(0, 12), st.integers(-1000, 1000)).map(lambda one: struct.pack(">cBi", b"D", *one)),
    _TIMES.map(lambda seconds: b"T" + struct.pack(">Q", seconds)),
    (st.floats() | st.floats(-1e18, 1e18)).map(lambda one: b"d" + struct.pack(">d", one)),
    st.floats(width=32).map(lambda one: b"f" + struct.pack(">f", one)),
    *map(_sized, _WIDTHS),
)
_VALUES = st.recursive(
    _LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3).map(array)
        | st.lists(st.tuples(_NAMES, inner), max_size=3).map(lambda entries: b"F" + table(entries))
    ),
    max_leaves=6,
)
_TABLES = st.lists(st.tuples(_NAMES, _VALUES), max_size=5).map(table)
_OF_KIND: Final = {
    "s": st.text(max_size=8).map(short),
    "F": _TABLES,
    "B": st.binary(min_size=1, max_size=1),
    "T": _TIMES.map(lambda seconds: struct.pack(">Q", seconds)),
}


@st.composite
def headers(draw: st.DrawFn) -> bytes:
    """A header; one in three is damaged: cut off, continued, or with another byte."""
    every = (1 << len(KINDS)) - 1
    told = draw(st.integers(0, every) | st.sampled_from([every, 1 << 11])) << 2
    asked = (kind for number, kind in enumerate(KINDS) if told & 1 << (15 - number))
    properties = b"".join(draw(_OF_KIND[kind]) for kind in asked)
    routing = short(draw(_NAMES)) + short(draw(_NAMES))
    made = header(told, properties, routing=routing, published_ms=draw(st.integers(0, 1 << 40)))
    if draw(st.booleans()):
        made = b"\x01\x01" + made[2:10] + draw(st.binary(min_size=4, max_size=4)) + made[10:]
    damage = draw(st.sampled_from(["", "", "", "", "cut", "more", "other"]))
    if damage == "cut":
        return made[: draw(st.integers(0, len(made)))]
    if damage == "more":
        return made + draw(st.binary(min_size=1, max_size=3))
    if damage == "other":
        at = draw(st.integers(0, len(made) - 1))
        return made[:at] + draw(st.binary(min_size=1, max_size=1)) + made[at + 1 :]
    return made


#: Headers that are rare among those of :func:`headers`.
ODD: Final = (
    b"",
    b"\x01",
    b"\x01\x00" + bytes(8),
    b"\x01\x01" + bytes(8),
    b"\x01\xff" + header()[2:],
    b"\x02" + header()[1:],
    b"another program's",
    header(),
    header(1),  # a flag that no property has
    header(1 << 15, short(b"\xed\xa0\x80")),  # half of a surrogate pair
    header(1 << 15, short(b"\xc0\x80")),  # longer than it needs to be
    header(1 << 15, short(b"\xf4\x90\x80\x80")),  # beyond Unicode
    header(1 << 15, short(bytes(255))),
    header(HEADERS_FLAG, table([("a", b"V"), ("b", b"t\1"), ("a", b"t\2")])),
    header(HEADERS_FLAG, table([("t", b"F" + table([("a", b"V"), ("b", b"V"), ("a", b"t\0")]))])),
    header(HEADERS_FLAG, table([("a", b"q")])),
    header(HEADERS_FLAG, table([(b"\xff", b"V")])),
    header(HEADERS_FLAG, b"\xff\xff\xff\xff" + bytes(9)),
    header(HEADERS_FLAG, b"\x00\x00\x00\x02" + b"\x00I" + bytes(4)),  # a value that is longer than its table
    header(HEADERS_FLAG, table([("a", b"S" + long(b"x" * 70_000))])),
    *(nested(depth, kind) for depth in (DEPTH_MAX - 1, DEPTH_MAX, DEPTH_MAX + 1) for kind in (b"A", b"F")),
    doubles(),
    texts(),
)
