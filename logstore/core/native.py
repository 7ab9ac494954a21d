"""Turns the core's return codes into exceptions, and converts values between Python and C for every caller of the core.

Nothing here knows what an operation means. Three things always hold: no code other than 0 goes unnoticed, no buffer is
copied needlessly on its way into the core, and every value that is returned owns its memory.

In cffi only what ``ffi.new`` and ``ffi.from_buffer`` return owns memory. Slices and items of it, its fields that are
structs or arrays, and pointers made from it are views: reading one after its owner is freed reads freed memory. A
function that makes an owner therefore returns copies: of structs by :func:`filled` and :func:`listed`, and
``tools/cdata_lint.py`` rejects a view that leaves the function of its owner.
"""

from __future__ import annotations

import errno
import struct
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from logstore import errors
from logstore._core import ffi, lib
from logstore._hot import Owner, bind
from logstore.core import arguments

if TYPE_CHECKING:
    from collections.abc import Callable

_BY_CODE: dict[int, Callable[[str], errors.StoreError]] = {
    lib.LS_OPTION: errors.OptionError,
    lib.LS_NOT_A_STORE: errors.NotAStore,
    lib.LS_LOCKED: errors.StoreLocked,
    lib.LS_REFUSED: errors.BatchRefused,
    lib.LS_REPLICATED: errors.ReplicatedStore,
    lib.LS_FULL: errors.StoreFull,
    lib.LS_POISONED: errors.StorePoisoned,
    lib.LS_OUTCOME_UNKNOWN: errors.OutcomeUnknown,
    lib.LS_CLOSED: errors.StoreClosed,
    lib.LS_FORKED: errors.StoreForked,
    lib.LS_VERSION: errors.VersionError,
    lib.LS_CATALOG_MISMATCH: errors.CatalogMismatch,
    lib.LS_UNKNOWN_MESSAGE: errors.UnknownMessage,
    lib.LS_UNKNOWN_QUEUE: errors.UnknownQueue,
    lib.LS_MESSAGE_LOCKED: errors.MessageLocked,
    lib.LS_MESSAGE_IN_USE: errors.MessageInUse,
    lib.LS_ALREADY_ENQUEUED: errors.AlreadyEnqueued,
    lib.LS_NOT_ENQUEUED: errors.NotEnqueued,
    lib.LS_UNKNOWN_XID: errors.UnknownXid,
    lib.LS_DUPLICATE_XID: errors.DuplicateXid,
    lib.LS_TRANSACTION_ENDED: errors.TransactionEnded,
    lib.LS_WRONG_STATE: errors.WrongState,
    lib.LS_TRANSACTION_LIMIT: errors.TransactionLimit,
}

_PLACE: Final = struct.Struct("@QQQIBx2x")  # ls_place
_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def failure(code: int) -> errors.StoreError:
    """The exception for a code that the core has just returned to this thread."""
    last = lib.ls_last_error()
    text = ffi.string(last.text).decode("utf-8", "replace")
    made: errors.StoreError
    if code == lib.LS_CORRUPT:
        segment = ffi.string(last.segment).decode("ascii")
        what = text.removeprefix("the log is damaged: ").split(". Nothing was changed")[0]
        made = errors.CorruptLog(what, segment=segment, offset=last.offset, lsn=last.lsn)
    elif code == lib.LS_IO and last.sys_errno in _NO_SPACE:
        made = errors.StoreFull(text)
    else:
        made = _BY_CODE.get(code, errors.StoreError)(text)
    if last.sys_errno != 0:
        made.__cause__ = OSError(last.sys_errno, text)
    return made


bind(int(ffi.cast("uintptr_t", lib.ls_calls_table())), failure)


def core_version() -> str:
    """The core's version and the compiler that built it, such as ``0.1.0 (gcc 12.2.0)``."""
    text: bytes = ffi.string(lib.ls_version_text())
    return text.decode("ascii", "replace")


_SLOTS: Final = {
    kind: ffi.typeof(f"ls_{kind} **")
    for kind in ("store", "cursor", "tx", "hold", "reader", "rows", "message_rows", "columns", "inbox")
}


def owned(kind: str) -> tuple[Owner, Any]:
    """An empty owner, and the ``ls_KIND **`` that a call of the core fills; the owner frees what the core puts there.

    Every object that keeps the pointer keeps the owner, too. Then the pointer is valid as long as anything can use it,
    also in finalizers while the garbage collector takes a cycle apart, where ``ffi.gc`` would have freed it already.
    """
    owner = Owner(kind)
    return owner, ffi.cast(_SLOTS[kind], owner.slot)


def check(code: int) -> None:
    """Raises the exception for ``code`` unless it is 0."""
    if code != 0:
        raise failure(code)


def tell(problem: BaseException, name: str, value: object) -> None:
    """Sets an attribute of an exception of any class. One that has no room for it, or refuses, is raised without."""
    try:  # noqa: SIM105 - `suppress` needs memory, which may be missing
        BaseException.__setattr__(problem, name, value)  # the class's own may refuse
    except Exception:  # noqa: BLE001 - as above
        pass


def copied(value: Any) -> Any:
    """Copies a C value to Python objects: a struct to its fields by name, an array to a list or to ``bytes``.

    A ``char`` array ends at its first zero. Raises ``TypeError`` for a pointer, because its length is unknown.
    """
    if not isinstance(value, ffi.CData):
        return value
    kind = ffi.typeof(value)
    if kind.kind == "struct":
        return SimpleNamespace(**{name: copied(getattr(value, name)) for name, _ in kind.fields})
    if kind.kind != "array":
        raise TypeError(f"a {kind.cname} cannot be copied: read what it points to")
    if kind.item.cname == "char":
        return ffi.string(value)
    if kind.item.cname == "uint8_t":
        return bytes(ffi.buffer(value))
    return [copied(item) for item in value]


def filled(kind: str, fill: Callable[[Any], int | None]) -> Any:
    """A copy of the struct that ``fill`` writes. Raises the exception for the code that ``fill`` returns."""
    made = ffi.new(f"{kind} *")
    check(fill(made) or 0)
    return copied(made[0])


def number(kind: str, fill: Callable[[Any], int | None], name: str) -> int:
    """The field ``name`` of the struct that ``fill`` writes, an integer; the other fields are not copied."""
    made = ffi.new(f"{kind} *")
    check(fill(made) or 0)
    return int(getattr(made, name))


def listed(kind: str, read: Callable[[Any, int, Any], int | None], room: int = 64) -> list[Any]:
    """Copies of all rows. ``read(rows, room, count)`` fills at most ``room`` rows and sets the total number of rows."""
    count = ffi.new("size_t *")
    while True:
        rows = ffi.new(f"{kind}[]", room)
        check(read(rows, room, count) or 0)
        if count[0] <= room:
            return [copied(row) for row in rows[0 : count[0]]]
        room = int(count[0])


def places_of(rows: Any, count: int) -> list[tuple[int, int, int, int, int]]:
    """The first ``count`` items of an ``ls_place`` array: position, id, content size in bytes, locked, recovered."""
    return list(_PLACE.iter_unpack(ffi.buffer(rows, count * _PLACE.size)))


def as_buffer(data: object, name: str = "content") -> tuple[Any, int]:
    """An object that cffi can pass to the core without a copy, and its size in bytes.

    ``data`` is any contiguous buffer. Raises ``TypeError`` for anything else (also ``str``), and ``OptionError`` for a
    buffer that is not contiguous or was released. Both errors contain ``name``.
    """
    if isinstance(data, bytes):
        return data, len(data)
    if isinstance(data, str):
        raise TypeError(f"{name} is bytes, not str: encode it first")
    try:
        view = memoryview(data)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{name} is bytes or another buffer, not {arguments.shown(data)}: encode it first") from None
    except ValueError as problem:
        raise errors.OptionError(f"{name} is a buffer that can no longer be read: {problem}") from None
    if not view.c_contiguous:
        raise errors.OptionError(f"{name} is a buffer that is not contiguous; copy it with bytes() first")
    return ffi.from_buffer("uint8_t[]", view), view.nbytes  # of one export: a second one may have another size
