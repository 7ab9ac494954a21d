"""From the core's return codes to exceptions, and the few conversions that every caller of the core needs.

Nothing here knows what an operation means; it only makes sure that no code other than 0 goes unnoticed and that no
buffer is copied needlessly on its way down.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any

from logstore import errors
from logstore._core import ffi, lib

if TYPE_CHECKING:
    from collections.abc import Callable

_BY_CODE: dict[int, Callable[[str], errors.StoreError]] = {
    lib.LS_OPTION: errors.OptionError,
    lib.LS_NOT_A_STORE: errors.NotAStore,
    lib.LS_LOCKED: errors.StoreLocked,
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
    lib.LS_TRANSACTION_LIMIT: errors.TransactionError,
}

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


def check(code: int) -> None:
    """Raises what ``code`` stands for, unless it is 0."""
    if code != 0:
        raise failure(code)


def as_buffer(data: object) -> tuple[Any, int]:
    """What cffi can pass on of any contiguous buffer without a copy, and its size in bytes.

    Raises ``TypeError`` for what is no buffer (``str`` above all) and ``BufferError`` for one with gaps.
    """
    if isinstance(data, bytes):
        return data, len(data)
    if isinstance(data, str):
        raise TypeError("content and headers are bytes, not str: encode it first")
    view = memoryview(data)  # type: ignore[arg-type]
    if not view.c_contiguous:
        raise BufferError("the buffer is not contiguous; copy it with bytes() first")
    return ffi.from_buffer("uint8_t[]", data), view.nbytes
