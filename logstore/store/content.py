"""Converts message contents from the caller's form (buffers, iterables of buffers, Arrow arrays) to the core's.

No buffer is copied if the core can take it unchanged, and the items of an Arrow array are not visited one by one.
"""

from __future__ import annotations

import array
import bisect
import itertools
from collections.abc import Sized
from typing import TYPE_CHECKING, Any, Final

from logstore import errors
from logstore._core import ffi, lib
from logstore.core import arguments
from logstore.core.native import as_buffer, check

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

# Limits of one call of the core. The device writes one piece while Python builds the next, so a piece is much smaller
# than a write buffer of the log. A copy that exceeds the processor's cache would take longer than the write itself.
_MANY_AT_ONCE: Final = 1024
_MANY_BYTES: Final = 256 << 10
_LARGE_BYTES: Final = 8 << 10


def is_parts(content: object) -> bool:
    """Whether it is an iterable of buffers and not a buffer itself."""
    if isinstance(content, str):
        return False
    try:
        memoryview(content)  # type: ignore[arg-type]
    except TypeError:
        return hasattr(content, "__iter__")
    except ValueError:
        return False  # a released buffer, for which as_buffer raises
    return False


def split(content: object, name: str = "content") -> tuple[object, Iterator[object]]:
    """The first buffer and an iterator over the rest. The first is empty if there is no buffer."""
    if not is_parts(content):
        return content, iter(())
    parts = arguments.items(name, content, "buffers")
    return next(parts, b""), parts


def _check_binary(name: str, items: Any) -> str:
    kind = str(items.type)
    if kind not in ("binary", "large_binary", "string", "large_string"):
        raise errors.OptionError(f"{name} is a binary array, not an array of {kind}")
    return kind


def _sizes_of_offsets(chunk: Any) -> tuple[Any, array.array[int]]:
    """The data and sizes of a pyarrow binary array, read from its offsets without visiting its items."""
    if chunk.null_count:
        raise errors.OptionError("an array of contents cannot have nulls; fill or drop them first")
    kind = _check_binary("contents", chunk)
    width = 8 if kind.startswith("large") else 4
    sizes = array.array("Q", bytes(8 * len(chunk)))
    _, offsets, data = chunk.buffers()
    if len(chunk) == 0 or data is None:
        return b"", sizes
    if offsets.size < (chunk.offset + len(chunk) + 1) * width:
        raise errors.OptionError("the array has fewer offsets than items; validate() it first")
    owner = ffi.from_buffer("uint8_t[]", offsets)
    c_offsets = owner + chunk.offset * width
    c_sizes = ffi.from_buffer("uint64_t[]", sizes)
    check(lib.ls_sizes_of_offsets(c_offsets, width, len(chunk), c_sizes))
    numbers = ffi.cast("int64_t *" if width == 8 else "int32_t *", c_offsets)
    first, last = int(numbers[0]), int(numbers[len(chunk)])
    if first < 0 or last > data.size:
        raise errors.OptionError("the array's offsets point outside its data; validate() it first")
    return ffi.from_buffer("uint8_t[]", memoryview(data)[first:]), sizes


def _lengths(name: str, items: Iterable[Any]) -> list[int]:
    try:
        return list(map(len, items))
    except (TypeError, ValueError, NotImplementedError) as problem:
        raise _no_buffers(name, problem) from None


def _length(name: str, item: Any) -> int:
    try:
        return len(item)
    except (TypeError, ValueError, NotImplementedError) as problem:
        raise _no_buffers(name, problem) from None


def _no_buffers(name: str, problem: Exception) -> TypeError:
    return TypeError(f"{name} is an iterable of bytes or other buffers, but an item is not a buffer: {problem}")


def _changed() -> errors.OptionError:
    return errors.OptionError("the list of contents changed while it was read; do not change it during the call")


def _joined(name: str, items: Sequence[Any], lengths: list[int]) -> tuple[Any, Sequence[int]]:
    """One buffer with all items, and their sizes in bytes. ``lengths`` are their ``len()``.

    A single item is returned without a copy.
    """
    if len(items) == 1:
        buffer, size = as_buffer(items[0], name)
        return buffer, [size]
    try:
        joined = b"".join(items)
    except (TypeError, ValueError, BufferError) as problem:
        raise _no_buffers(name, problem) from None
    if len(joined) != sum(lengths):  # len() of a buffer with wider items counts items, not bytes
        lengths = [memoryview(item).nbytes for item in items]
        if len(joined) != sum(lengths):
            raise _changed()
    return joined, array.array("Q", lengths)


def _is_arrow(items: object) -> bool:
    return type(items).__module__.partition(".")[0] == "pyarrow" and hasattr(items, "null_count")


def _arrow_items(name: str, items: Any) -> Iterator[Any]:
    _check_binary(name, items)
    for item in items:
        if not item.is_valid:
            raise errors.OptionError("an array of contents or headers cannot have nulls; fill or drop them first")
        yield memoryview(item.as_buffer())


def count_of(name: str, items: object) -> int:
    """The number of items; -1 if it is not known before they are read."""
    try:
        return len(items) if isinstance(items, Sized) else -1
    except (TypeError, ValueError, OverflowError) as problem:
        raise _no_buffers(name, problem) from None


def _same_number(contents: int, headers: int) -> None:
    if headers != contents:
        raise errors.OptionError(f"there are {headers} headers for {contents} contents; give one for each")


def batches(contents: Iterable[Any], headers: Iterable[Any] | None) -> Iterator[tuple[Any, Any, Any, Any]]:
    """What one call of the core takes at a time: contents and their sizes, headers and theirs."""
    counts = count_of("contents", contents), -1 if headers is None else count_of("headers", headers)
    if min(counts) >= 0:
        _same_number(*counts)
    if headers is not None and _is_arrow(headers):
        headers = _arrow_items("headers", headers)
    if _is_arrow(contents):
        if headers is not None:
            contents = _arrow_items("contents", contents)
        else:
            for chunk in getattr(contents, "chunks", [contents]):
                yield *_sizes_of_offsets(chunk), ffi.NULL, None
            return
    if not is_parts(contents):
        raise TypeError(
            f"contents is an iterable of buffers, not {arguments.shown(contents)}: use publish for one message"
        )
    sizes: Sequence[int]
    heads = arguments.items("headers", headers, "buffers") if headers is not None else None
    for items, lengths in _pieces(contents):
        content, sizes = _joined("contents", items, lengths)
        if heads is None:
            yield content, sizes, ffi.NULL, None
            continue
        some = list(itertools.islice(heads, len(items)))
        _same_number(len(items), len(some))
        header, header_sizes = _joined("headers", some, _lengths("headers", some))
        yield content, sizes, header, header_sizes


def _pieces(contents: Iterable[Any]) -> Iterator[tuple[Sequence[Any], list[int]]]:
    """Pieces of the items with their lengths, each piece within the limits of one call (items and bytes).

    A large item is a piece by itself, because copying it costs more than a call. A list or tuple is sliced, which costs
    the least per item. Of any other iterable only one piece is held in memory.
    """
    if not isinstance(contents, list | tuple):
        rows = arguments.items("contents", contents, "buffers")
        while items := _some(rows):
            yield items, _lengths("contents", items)
        return
    if contents and not contents[len(contents) - 1 :]:
        raise _changed()  # or its __len__ returns more than it holds
    start = 0
    while start < len(contents):
        if _length("contents", contents[start]) >= _LARGE_BYTES:
            yield contents[start : start + 1], []
            start += 1
            continue
        whole = start == 0 and len(contents) <= _MANY_AT_ONCE
        piece = contents if whole else contents[start : start + _MANY_AT_ONCE]
        lengths = _lengths("contents", piece)
        if sum(lengths) > _MANY_BYTES:
            some = max(1, bisect.bisect_right(list(itertools.accumulate(lengths)), _MANY_BYTES))
            piece, lengths = piece[:some], lengths[:some]
        start += len(piece)
        yield piece, lengths


def _some(rows: Iterator[Any]) -> list[Any]:
    items: list[Any] = []
    size = 0
    for item in rows:
        items.append(item)
        try:
            size += len(item)
        except (TypeError, ValueError, NotImplementedError) as problem:
            raise _no_buffers("contents", problem) from None
        if size >= _MANY_BYTES or len(items) >= _MANY_AT_ONCE:
            break
    return items
