"""PEP 249's exceptions, and which of them stands for which of logstore's own.

They hang below :class:`~logstore.errors.StoreError`, so that ``except StoreError`` catches these too. A translated
exception has the text and the attributes of the one that it stands for, and that one as its ``__cause__``.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from logstore import errors

if TYPE_CHECKING:
    from collections.abc import Iterator


class Warning(Exception):  # noqa: A001 - PEP 249's name
    """A call succeeded, but the caller should know something. logstore does not raise it at present."""


class Error(errors.StoreError):
    """The root of what a connection raises. See ``__cause__`` for logstore's own, narrower exception."""


class InterfaceError(Error):
    """The connection or the store behind it cannot be used: closed, or inherited by a fork. Open it again."""


class DatabaseError(Error):
    """The store or its catalog refused. Raised as itself where no narrower name fits."""


class DataError(DatabaseError):
    """A value is out of its range, such as an xid's part that is too long. The message says what is allowed."""


class OperationalError(DatabaseError):
    """A problem outside the program: a full or failing disk, a lock, an unreachable server.

    Its ``__cause__`` tells whether the same call can succeed later.
    """


class IntegrityError(DatabaseError):
    """The state of a message forbids the call: it already has a place, has none, or is still needed."""


class InternalError(DatabaseError):
    """The log is damaged. Use ``logstore verify``, then restore a backup or use ``logstore salvage``."""


class ProgrammingError(DatabaseError):
    """A wrong call: in the wrong state, or with an unknown object. The message says what to do."""


class NotSupportedError(DatabaseError):
    """Something that this version does not do, such as reading a store of a later one."""


# A class that is not listed has the name of its nearest listed base class.
_NAMES: Final[dict[type[errors.StoreError], type[Error]]] = {
    errors.StoreError: OperationalError,
    errors.StoreClosed: InterfaceError,
    errors.StoreForked: InterfaceError,
    errors.ReentrantCall: OperationalError,
    errors.OptionError: DataError,
    errors.CorruptLog: InternalError,
    errors.VersionError: NotSupportedError,
    errors.CatalogError: DatabaseError,
    errors.CatalogMismatch: OperationalError,
    errors.CatalogOvertaken: OperationalError,
    errors.CatalogUnavailable: OperationalError,
    errors.UnknownMessage: ProgrammingError,
    errors.UnknownQueue: ProgrammingError,
    errors.UnknownExchange: ProgrammingError,
    errors.QueueExists: ProgrammingError,
    errors.MessageInUse: IntegrityError,
    errors.AlreadyEnqueued: IntegrityError,
    errors.NotEnqueued: IntegrityError,
    errors.TransactionError: ProgrammingError,
    errors.TransactionLimit: OperationalError,
}


def translated(problem: errors.StoreError) -> Error:
    """The same, under PEP 249's name; to be raised from the original."""
    if isinstance(problem, Error):
        return problem
    name = next(_NAMES[kind] for kind in type(problem).__mro__ if kind in _NAMES)
    made = name(str(problem))
    vars(made).update(vars(problem))
    return made


@contextlib.contextmanager
def in_pep_249_terms() -> Iterator[None]:
    """Whatever the block raises of logstore's leaves it under PEP 249's name."""
    try:
        yield
    except Error:
        raise
    except errors.StoreError as problem:
        raise translated(problem) from problem
