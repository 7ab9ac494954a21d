"""Contents as callers give them (buffers, iterables of buffers, Arrow arrays), and as the core takes them.

Nothing here copies a buffer that can be passed on as it is, and nothing looks at the items of an Arrow array.
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

# Of one call of the core. The device works on one piece while the next is being put together, so pieces are small
# beside a batch of the log; and a copy that outgrows the processor's cache is slower to make than the log is to write
# it.
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
        return False  # a buffer that was released, as as_buffer says
    return False


def split(content: object, name: str = "content") -> tuple[object, Iterator[object]]:
    """The first buffer and an iterator over the rest; of nothing, an empty buffer."""
    if not is_parts(content):
        return content, iter(())
    parts = arguments.items(name, content, "buffers")
    return next(parts, b""), parts


def _check_binary(name: str, items: Any) -> str:
    kind = str(items.type)
    if kind not in ("binary", "large_binary", "string", "large_string"):
        raise errors.OptionError(f"{name} are a binary array, not one of {kind}")
    return kind


def _sizes_of_offsets(chunk: Any) -> tuple[Any, array.array[int]]:
    """The data and sizes of a pyarrow binary array, without a look at its items."""
    if chunk.null_count:
        raise errors.OptionError("an array of contents has no nulls; fill or drop them first")
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
    return TypeError(f"{name} is an iterable of bytes or other buffers, and not all of its items are: {problem}")


def _changed() -> errors.OptionError:
    return errors.OptionError("the list of contents changed while it was read; let nobody change it meanwhile")


def _joined(name: str, items: Sequence[Any], lengths: list[int]) -> tuple[Any, Sequence[int]]:
    """One buffer with all items, and their sizes; of one item, itself. ``lengths`` are what ``len`` says of them."""
    if len(items) == 1:
        buffer, size = as_buffer(items[0], name)
        return buffer, [size]
    try:
        joined = b"".join(items)
    except (TypeError, ValueError, BufferError) as problem:
        raise _no_buffers(name, problem) from None
    if len(joined) != sum(lengths):  # of some, an item is more than a byte
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
            raise errors.OptionError("an array of contents or headers has no nulls; fill or drop them first")
        yield memoryview(item.as_buffer())


def count_of(name: str, items: object) -> int:
    """How many items there are; -1 if that shows only when they are read."""
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
    """As many items at a time as are worth one call, by number and by bytes, with their lengths; a large one by itself,
    since a copy of it costs more than a call.

    What is a list or a tuple already is cut with the least work for each item. Of anything else no more than that is
    held at a time.
    """
    if not isinstance(contents, list | tuple):
        rows = arguments.items("contents", contents, "buffers")
        while items := _some(rows):
            yield items, _lengths("contents", items)
        return
    if contents and not contents[len(contents) - 1 :]:
        raise _changed()  # or says that it is longer than it is
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
