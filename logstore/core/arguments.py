"""Checks of arguments: each returns the value in the form that the package uses, or raises an error.

The error names the argument and shows at most a short part of the value. A wrong type raises ``TypeError`` where an
object is expected, and ``OptionError`` (a ``ValueError``) where a number or a path is expected. A value out of range
raises ``OptionError``.
"""

from __future__ import annotations

import math
import mmap
import operator
import os
import reprlib
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final, TypeVar

from logstore.errors import OptionError

T = TypeVar("T")

LSN_MAX: Final = (1 << 63) - 1
_PATH_BYTES_MAX: Final = 4095  # Linux's PATH_MAX, without the zero at the end
_PART_BYTES_MAX: Final = 255  # NAME_MAX of every file system that a store lies on
_NO_ITEMS: Final = (str, bytes, bytearray, memoryview, mmap.mmap)  # iterable, but one value and not a list of values

_short: Final = reprlib.Repr()
_short.maxstring = _short.maxother = _short.maxlong = 80


def shown(value: object) -> str:
    """A short text for any value, for use in an error message."""
    try:
        return _short.repr(value)
    except Exception:  # noqa: BLE001 - a repr may raise anything, a number of many digits ValueError
        return f"a value of type {type(value).__name__}"


def integer(name: str, value: object, low: int, high: int) -> int:
    """A whole number from ``low`` to ``high``, both included. A bool is refused."""
    plain = None if isinstance(value, bool) or not isinstance(value, int) else operator.index(value)
    if plain is None or not low <= plain <= high:
        raise OptionError(f"{name} is a number from {low} to {high}, not {shown(value)}")
    return plain  # a plain int, even if the value is of a subclass


def number(name: str, value: object, low: float, high: float, unit: str) -> float:
    """A positive number from ``low`` to ``high``, both included; ``unit`` names its unit in the error."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not (value > 0 and low <= value <= high):
        least = f"at least {low:g}" if low else "above 0"
        raise OptionError(f"{name} is {unit}, {least} and at most {high:g}, not {shown(value)}")
    return float(value)


def duration(name: str, value: object) -> float:
    """Seconds to wait: 0, more, or ``math.inf``."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise OptionError(f"{name} is a number of seconds, 0 or more, or math.inf; not {shown(value)}")
    try:
        return float(value)
    except OverflowError:  # an int that no float holds
        return math.inf


def instance(name: str, value: object, kind: type[T], *, what: str | None = None) -> T:
    """An object of this class."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} is {what or 'a ' + kind.__name__}, not {shown(value)}")
    return value


def one_of(name: str, value: object, kinds: tuple[type, ...], what: str) -> None:
    """An object of one of these classes."""
    if not isinstance(value, kinds):
        raise TypeError(f"{name} is {what}, not {shown(value)}")


def having(name: str, value: object, methods: tuple[str, ...], what: str) -> None:
    """An object of any class that has these methods."""
    if isinstance(value, type) or not all(callable(getattr(value, method, None)) for method in methods):
        raise TypeError(f"{name} is {what}, with {', '.join(methods)}; not {shown(value)}")


def text(name: str, value: object) -> str:
    """A str that can be encoded as UTF-8."""
    checked = instance(name, value, str)
    try:
        checked.encode("utf-8")
    except UnicodeEncodeError:
        raise OptionError(f"{name} is not valid Unicode: {shown(checked)}") from None
    return checked


def choice(name: str, value: object, *choices: str) -> str:
    """One of these words."""
    if not isinstance(value, str) or str(value) not in choices:
        raise OptionError(f"{name} is {' or '.join(map(repr, choices))}, not {shown(value)}")
    return str(value)


def path(name: str, value: object) -> Path:
    """A path that the system accepts. Whether it exists is not checked."""
    try:
        given = os.fspath(value)  # type: ignore[call-overload]
        raw = os.fsencode(given)
    except (TypeError, ValueError) as problem:
        raise OptionError(f"{name} is a path as str or os.PathLike, not {shown(value)}: {problem}") from None
    if not isinstance(given, str):
        raise OptionError(f"{name} is a path as str or os.PathLike, not {shown(value)}: decode it with os.fsdecode")
    if not given:
        raise OptionError(f"{name} is empty; name a directory")
    if b"\0" in raw:
        raise OptionError(f"{name} contains a NUL character, which a path cannot: {shown(given)}")
    if len(raw) > _PATH_BYTES_MAX or any(len(part) > _PART_BYTES_MAX for part in raw.split(b"/")):
        raise OptionError(
            f"{name} has {len(raw)} bytes; a path has at most {_PATH_BYTES_MAX}, and each name in it at most "
            f"{_PART_BYTES_MAX}: {shown(given)}"
        )
    return Path(given)


def catalog(connect: object, schema: object, *, called: str = "schema") -> None:
    """Checks the address of a catalog on a server: a URL and a schema, each of them optional."""
    optional(text, "connect", connect)
    optional(text, called, schema)


def optional(check: Callable[..., T], name: str, value: object, *rest: Any, **named: Any) -> T | None:
    """None for None; otherwise the result of ``check`` for the value."""
    return None if value is None else check(name, value, *rest, **named)


def items(name: str, values: object, what: str) -> Iterator[Any]:
    """An iterator over the values. A text or a buffer is refused: it is one value."""
    if not isinstance(values, _NO_ITEMS):
        try:
            return iter(values)  # type: ignore[call-overload, no-any-return]
        except TypeError:
            pass
    raise TypeError(f"{name} is an iterable of {what}, not {shown(values)}")


def texts(name: str, values: object) -> list[str]:
    """A list of str."""
    return [text(name, each) for each in items(name, values, "str")]


def function(name: str, value: object) -> Callable[..., Any]:
    """Something that can be called."""
    if not callable(value):
        raise TypeError(f"{name} is a function or another callable, not {shown(value)}")
    return value


def moment(name: str, value: object) -> datetime:
    """A datetime with a time zone."""
    if not isinstance(value, datetime) or value.utcoffset() is None:
        raise OptionError(f"{name} is a datetime with a time zone, not {shown(value)}")
    return value


def names_by_id(name: str, value: object) -> dict[int, str]:
    """A mapping of queue ids to names."""
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} is a mapping of queue ids to names, not {shown(value)}")
    return {integer(f"an id in {name}", key, 0, (1 << 32) - 1): text(name, given) for key, given in value.items()}
