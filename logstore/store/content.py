"""Converts message contents from the caller's form (buffers, iterables of buffers, Arrow arrays) to the core's.

No buffer is copied if the core can take it unchanged, and the items of an Arrow array are not visited one by one.
"""

from __future__ import annotations

import itertools
from collections.abc import Sized
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from logstore import errors
from logstore.core import arguments
from logstore.core.binary_arrays import Parts, parts_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

# The most items and bytes of an iterable of unknown length that are held in memory and handed over by one call.
_MANY_AT_ONCE: Final = 1024
_MANY_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Buffers:
    """Contents in buffers of their own, and as many headers if there are any."""

    contents: tuple[object, ...]
    headers: tuple[object, ...] | None
    is_last: bool

    def __len__(self) -> int:
        return len(self.contents)


@dataclass(frozen=True, slots=True)
class ArrowPiece:
    """Contents one after another."""

    parts: Parts
    is_last: bool

    def __len__(self) -> int:
        return len(self.parts.sizes)


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


def _arrow_parts(name: str, chunk: Any) -> Parts:
    """The data and sizes of a pyarrow binary array."""
    if chunk.null_count:
        raise errors.OptionError(f"an array of {name} cannot have nulls; fill or drop them first")
    return parts_of(chunk, wide=_check_binary(name, chunk).startswith("large"))


def _no_buffers(name: str, problem: Exception) -> TypeError:
    return TypeError(f"{name} is an iterable of bytes or other contiguous buffers; reading it failed: {problem}")


def _is_arrow(items: object) -> bool:
    return type(items).__module__.partition(".")[0] == "pyarrow" and hasattr(items, "null_count")


def _arrow_items(name: str, items: Any) -> Iterator[memoryview]:
    _check_binary(name, items)
    for chunk in _chunks(items):
        parts, at = _arrow_parts(name, chunk), 0
        for size in parts.sizes:
            yield parts.data[at : at + size]
            at += size


def _chunks(items: Any) -> list[Any]:
    return getattr(items, "chunks", [items])


def count_of(name: str, items: object) -> int:
    """The number of items; -1 if it is not known before they are read."""
    try:
        return len(items) if isinstance(items, Sized) else -1
    except (TypeError, ValueError, OverflowError) as problem:
        raise _no_buffers(name, problem) from None


def _same_number(contents: int, headers: int) -> None:
    if headers != contents:
        raise errors.OptionError(f"there are {headers} headers for {contents} contents; give one for each")


def pieces(contents: Iterable[Any], headers: Iterable[Any] | None) -> Iterator[Buffers | ArrowPiece]:
    """The contents in their order: a list at once, of any other iterable only as much as one call of the core takes.

    A piece is known to be the last only if nothing that the caller can change decides about that: an iterable may give
    more items than its length said.
    """
    counts = count_of("contents", contents), -1 if headers is None else count_of("headers", headers)
    if min(counts) >= 0:
        _same_number(*counts)
    if headers is not None and _is_arrow(headers):
        headers = _arrow_items("headers", headers)
    if _is_arrow(contents):
        if headers is None:
            chunks = _chunks(contents)
            for number, chunk in enumerate(chunks, 1):
                yield ArrowPiece(_arrow_parts("contents", chunk), is_last=number == len(chunks))
            return
        contents = _arrow_items("contents", contents)
    if not is_parts(contents):
        raise TypeError(
            f"contents is an iterable of buffers, not {arguments.shown(contents)}: use publish for one message"
        )
    if isinstance(contents, list | tuple) and (headers is None or isinstance(headers, list | tuple)):
        yield _whole(contents, headers, counts[0])
        return
    heads = arguments.items("headers", headers, "buffers") if headers is not None else None
    rows = arguments.items("contents", contents, "buffers")
    while items := _some(rows):
        some = None if heads is None else tuple(itertools.islice(heads, len(items)))
        if some is not None:
            _same_number(len(items), len(some))
        yield Buffers(tuple(items), some, is_last=False)


def _whole(contents: Sequence[Any], headers: Sequence[Any] | None, count: int) -> Buffers:
    """The items as they are now: another thread may change a list during the call."""
    made = Buffers(tuple(contents), None if headers is None else tuple(headers), is_last=True)
    if len(made) != count or (made.headers is not None and len(made.headers) != count):
        raise errors.OptionError("the list of contents changed while it was read; do not change it during the call")
    return made


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
