"""Converts message contents from the caller's form (buffers, iterables of buffers, Arrow arrays) to the core's.

No buffer is copied if the core can take it unchanged, and the items of an Arrow array are not visited one by one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sized
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from logstore import errors
from logstore.core import arguments
from logstore.core.binary_arrays import Parts, parts_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_MANY_AT_ONCE: Final = 1024  # items of an Arrow array that get objects of their own


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


@dataclass(frozen=True, slots=True)
class Stream:
    """Iterators whose items are taken one by one, because each may be long in coming."""

    contents: Iterator[object]
    headers: Iterator[object] | None
    is_last: bool = False  # never known before its end


def is_parts(content: object) -> bool:
    """Whether it is an iterable of buffers and not a buffer itself; a mapping or a set is no content."""
    if isinstance(content, str | Mapping | AbstractSet):
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
        yield from _parts_items(_arrow_parts(name, chunk))


def _parts_items(parts: Parts) -> Iterator[memoryview]:
    at = 0
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


def same_number(contents: int, headers: int, *, least: str = "") -> None:
    """Raises ``OptionError`` unless there are as many headers as contents.

    ``least`` (``contents`` or ``headers``) names the number that is only a lower bound.
    """
    if headers != contents:
        at_least = {least: "at least "}
        raise errors.OptionError(
            f"there are {at_least.get('headers', '')}{headers} headers for {at_least.get('contents', '')}{contents} "
            "contents; give one for each"
        )


def pieces(contents: Iterable[Any], headers: Iterable[Any] | None) -> Iterator[Buffers | ArrowPiece | Stream]:
    """The contents in their order: of lists and Arrow arrays as much as one call takes, of anything else a stream.

    A piece is known to be the last only if nothing that the caller can change decides about that: an iterable may give
    more items than its length said.
    """
    counts = count_of("contents", contents), -1 if headers is None else count_of("headers", headers)
    if min(counts) >= 0:
        same_number(*counts)
    if _is_arrow(contents) and headers is None:
        chunks = _chunks(contents)
        for number, chunk in enumerate(chunks, 1):
            yield ArrowPiece(_arrow_parts("contents", chunk), is_last=number == len(chunks))
        return
    if not (_is_arrow(contents) or isinstance(contents, Mapping | AbstractSet) or is_parts(contents)):
        raise TypeError(
            f"contents is an iterable of buffers, not {arguments.shown(contents)}: use publish for one message"
        )
    if isinstance(contents, list | tuple) and (headers is None or isinstance(headers, list | tuple)):
        yield _whole(contents, headers, counts[0])
    elif _is_at_hand(contents) and _is_at_hand(headers):
        yield from _groups(_items("contents", contents), _items("headers", headers))
    else:
        yield Stream(_items("contents", contents), None if headers is None else _items("headers", headers))


def _is_at_hand(items: object) -> bool:
    """Whether no item is computed, or waited for, when it is asked for."""
    return isinstance(items, list | tuple) or _is_arrow(items)


def _items(name: str, items: Any) -> Iterator[Any]:
    return _arrow_items(name, items) if _is_arrow(items) else arguments.items(name, items, "buffers")


def _whole(contents: Sequence[Any], headers: Sequence[Any] | None, count: int) -> Buffers:
    """The items as they are now: another thread may change a list during the call."""
    made = Buffers(_items_now(contents), None if headers is None else _items_now(headers), is_last=True)
    if len(made) != count or (made.headers is not None and len(made.headers) != count):
        raise errors.OptionError("the list of contents changed while it was read; do not change it during the call")
    return made


def _items_now(items: Sequence[Any]) -> tuple[Any, ...]:
    """Its items; ``tuple`` alone would allocate as many as the length of a subclass claims."""
    return tuple(items if type(items) in (list, tuple) else iter(items))


def _groups(contents: Iterator[Any], headers: Iterator[Any]) -> Iterator[Buffers]:
    while items := tuple(itertools.islice(contents, _MANY_AT_ONCE)):
        heads = tuple(itertools.islice(headers, len(items)))
        same_number(len(items), len(heads))
        yield Buffers(items, heads, is_last=False)
