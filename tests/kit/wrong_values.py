"""Wrong values for any argument: wrong types, numbers at and beyond every width, text that no file or database accepts,
buffers of unusual shapes, and objects that are closed, settled, finished or of another store.

Each call gets a new value.
"""

from __future__ import annotations

import array
import datetime as dt
import mmap
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LONG = "long" * (1 << 18)  # 1 MB


class LyingText(str):
    """Equals everything."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return True


class LyingNumber(int):
    """Claims to be another number."""

    def __index__(self) -> int:
        return 1 << 70

    def __int__(self) -> int:
        return -1


class LyingIndex:
    """Looks like a number and refuses to be one."""

    def __index__(self) -> int:
        raise ValueError("this number is none")


class LyingLength(list[Any]):
    """Claims to be longer than it is."""

    def __len__(self) -> int:
        return 1 << 40


def wrong_items() -> Iterator[object]:
    """An endless iterator of wrong items."""
    while True:
        yield object()


class Anything:
    """Accepts any arguments."""

    def __init__(self, *_: object) -> None:
        pass


def released() -> memoryview:
    """A view whose buffer was freed."""
    view = memoryview(bytearray(8))
    view.release()
    return view


def closed_map() -> mmap.mmap:
    """A map whose memory was freed."""
    made = mmap.mmap(-1, 4096)
    made.close()
    return made


def arrow_numbers() -> Any:
    """An Arrow array of another type than binary."""
    import pyarrow as pa

    return pa.array([1, None, 3])


def arrow_table() -> Any:
    """An Arrow table of other columns."""
    import pyarrow as pa

    return pa.table({"id": ["a", None], "state": [1, 2]})


PLAIN: dict[str, Callable[[], object]] = {
    "None": lambda: None,
    "False": lambda: False,
    "True": lambda: True,
    "-1": lambda: -1,
    "0": lambda: 0,
    "2**31": lambda: 1 << 31,
    "2**32": lambda: 1 << 32,
    "2**62": lambda: 1 << 62,
    "2**63": lambda: 1 << 63,
    "-2**63 - 1": lambda: -(1 << 63) - 1,
    "2**64": lambda: 1 << 64,
    "10**5000": lambda: 10**5000,  # more digits than Python prints
    "-10**400": lambda: -(10**400),
    "1000000.5": lambda: 1000000.5,
    "-0.0": lambda: -0.0,
    "nan": lambda: float("nan"),
    "inf": lambda: float("inf"),
    "-inf": lambda: float("-inf"),
    "1j": lambda: 1j,
    "a lying int": lambda: LyingNumber(1 << 20),
    "a lying index": LyingIndex,
    "an empty str": lambda: "",
    "a short str": lambda: "nowhere",
    "a str with a colon": lambda: "a:b:c",
    "a str of 300": lambda: "x" * 300,
    "a str of 1 MB": lambda: LONG,
    "a path of 1 MB": lambda: "/" + "d/" * (1 << 19),
    "a str with NUL": lambda: "nul\0byte",
    "a lone surrogate": lambda: "half\ud800",
    "an escaped byte": lambda: "raw\udcff",
    "a lying str": lambda: LyingText("lie"),
    "empty bytes": lambda: b"",
    "bytes": lambda: b"bytes",
    "bytes with NUL": lambda: b"nul\0byte",
    "a bytearray": lambda: bytearray(b"array"),
    "a view of two dimensions": lambda: memoryview(bytes(8)).cast("B", (2, 4)),
    "a view with gaps": lambda: memoryview(bytes(8))[::2],
    "a view of nothing in two dimensions": lambda: memoryview(array.array("d", [1.0, 2.0])).cast("B").cast("d", (1, 2)),
    "a released view": released,
    "a closed map": closed_map,
    "Arrow numbers": arrow_numbers,
    "an Arrow table": arrow_table,
    "an array of doubles": lambda: array.array("d", [1.5]),
    "an empty list": list,
    "a list of None": lambda: [None],
    "a list of numbers": lambda: [1, -1, 1 << 64],
    "a list of str": lambda: ["a", "b"],
    "a list of lists": lambda: [[], [[]]],
    "a list of odd views": lambda: [b"good", memoryview(bytes(8)).cast("B", (2, 4))],
    "a list of gaps": lambda: [memoryview(bytes(8))[::2], b"good"],
    "a list with a lying length": lambda: LyingLength([b"a"]),
    "a tuple": lambda: (1, 2, 3),
    "a dict": lambda: {"a": object()},
    "a dict of numbers": lambda: {-1: 1 << 64},
    "a set": lambda: {1, "a"},
    "a range": lambda: range(1 << 40),
    "an object": object,
    "a generator": lambda: (each for each in (b"good", object())),
    "wrong items for ever": wrong_items,
    "a class": lambda: Anything,
    "a function": lambda: lambda *_: None,
    "a path": lambda: Path("nowhere/at/all"),
    "a directory": lambda: Path("/"),
    "a time without zone": lambda: dt.datetime(2024, 1, 1),  # noqa: DTZ001 - which is what is wrong with it
    "the first time": lambda: dt.datetime.min,  # noqa: DTZ901 - no zone either
    "a span of time": lambda: dt.timedelta(-1),
}
