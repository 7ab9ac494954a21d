"""Binary Arrow arrays as the core takes them: the bytes of all items one after another, and where each is.

Offsets may be wrong, because Arrow checks only the first and the last, and another thread may change memory that an
array was made of. So offsets are copied first, and only the checked copy is used.
"""

from __future__ import annotations

import array
from dataclasses import dataclass
from typing import Any

from logstore import errors
from logstore._core import ffi, lib
from logstore.core.native import check


@dataclass(frozen=True, slots=True)
class Parts:
    """The items of one chunk. The sizes are above or equal to 0, and their sum is at most the data's length."""

    data: memoryview
    """From the first byte of the first item on."""
    sizes: array.array[int]
    """Of each item in bytes."""


def parts_of(chunk: Any, *, wide: bool) -> Parts:
    """The items of a pyarrow array of binaries or strings, ``wide`` if its offsets have 64 bits. Visits no item.

    Raises ``OptionError`` for offsets that do not ascend or point outside the data.
    """
    count, width = len(chunk), 8 if wide else 4
    sizes = array.array("Q", bytes(8 * count))
    _, offsets, data = chunk.buffers()
    if count == 0 or data is None:
        return Parts(memoryview(b""), sizes)
    first, end = chunk.offset * width, (chunk.offset + count + 1) * width
    private = b"" if offsets is None else bytes(memoryview(offsets).cast("B")[first:end])
    if len(private) != end - first:
        raise errors.OptionError("the array has fewer offsets than items; validate() it first")
    view = memoryview(data).cast("B")
    check(lib.ls_sizes_of_offsets(private, width, count, view.nbytes, ffi.from_buffer("uint64_t[]", sizes)))
    return Parts(view[int.from_bytes(private[:width], "little") :], sizes)
