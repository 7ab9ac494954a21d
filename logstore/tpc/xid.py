"""PEP 249's xid: a tuple of a number and two strings, over :class:`logstore.Xid`, which has bytes.

The log compares names byte for byte and does not know whether they were text. So here a part is always ``str``: bytes
are read as UTF-8, and those that are not UTF-8 are escaped as Python does with file names (PEP 383). Every name comes
back whole, and one given as text is equal to the same one given as bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Self

from logstore.core import arguments
from logstore.core.xid import Xid as StoreXid
from logstore.tpc.errors import DataError, ProgrammingError

if TYPE_CHECKING:
    from logstore.store.transactions import Transaction

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_PARTS: Final = 3
_ONE_VALUE: Final = (str, bytes, bytearray, memoryview)


class Xid(tuple[int, str, str]):  # noqa: SLOT001 - a tuple has no room for slots
    """``(format_id, gtrid, bqual)``: compares, hashes and unpacks as that tuple.

    ``gtrid`` and ``bqual`` may be given as text or as bytes, of at most 64 bytes each (text as UTF-8). Raises
    :class:`~logstore.tpc.DataError` for a value out of range, :class:`~logstore.tpc.ProgrammingError` for one of
    another type.
    """

    prepared: datetime | None
    """When the branch was prepared, in UTC, if the xid is from ``tpc_recover``. For reports only."""
    owner: str | None
    """Always ``None``: a store knows no users."""
    database: str | None
    """The path of the store that holds the branch, if the xid is from ``tpc_recover``."""

    def __new__(cls, format_id: int, gtrid: str | bytes, bqual: str | bytes = "") -> Self:
        """Checks the parts. Raises as the class says."""
        if isinstance(format_id, bool) or not isinstance(format_id, int):
            raise ProgrammingError(f"an xid's format_id is a whole number, not {arguments.shown(format_id)}")
        parts = _part("gtrid", gtrid), _part("bqual", bqual)
        try:
            StoreXid(format_id, *parts)
        except ValueError as problem:
            raise DataError(f"no such xid can be: {problem}") from problem
        made = super().__new__(cls, (format_id, *(_text(part) for part in parts)))
        made.prepared = made.owner = made.database = None
        return made

    @classmethod
    def of(cls, name: object) -> Self:
        """The xid that was meant: an xid of either kind, or any sequence of its three parts.

        Raises :class:`~logstore.tpc.ProgrammingError` for anything else.
        """
        if isinstance(name, cls):
            return name
        if isinstance(name, StoreXid):
            return cls(name.format_id, name.gtrid, name.bqual)
        if isinstance(name, Sequence) and not isinstance(name, _ONE_VALUE) and len(name) == _PARTS:
            return cls(*name)
        raise ProgrammingError(f"an xid is made by xid(format_id, gtrid, bqual); {arguments.shown(name)} is none")

    @classmethod
    def _of_prepared(cls, transaction: Transaction) -> Self:
        """The name of a branch that is in doubt, with what is known of it."""
        made = cls.of(transaction.xid)
        made.prepared = _EPOCH + timedelta(microseconds=transaction.prepared_us)
        made.database = str(transaction._store.path)
        return made

    @property
    def format_id(self) -> int:
        """Which scheme of names it follows; 64 bits with a sign."""
        return self[0]

    @property
    def gtrid(self) -> str:
        """The global transaction's name, the same for all of its branches."""
        return self[1]

    @property
    def bqual(self) -> str:
        """Which branch of it."""
        return self[2]

    @property
    def name(self) -> StoreXid:
        """The same as the log has it, with bytes."""
        return StoreXid(self.format_id, _part("gtrid", self.gtrid), _part("bqual", self.bqual))

    def __getnewargs__(self) -> tuple[Any, ...]:  # for pickle and copy
        return tuple(self)

    def __str__(self) -> str:
        return str(self.name)

    def __repr__(self) -> str:
        return f"Xid({self.format_id}, {self.gtrid!r}, {self.bqual!r})"


def _part(what: str, value: object) -> bytes:
    if isinstance(value, (bytes, bytearray, memoryview)):
        try:
            return bytes(value)
        except ValueError as problem:
            raise DataError(f"an xid's {what} is a buffer that cannot be read any more: {problem}") from problem
    if not isinstance(value, str):
        raise ProgrammingError(f"an xid's {what} is text or bytes, not {arguments.shown(value)}")
    try:
        return value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as problem:
        raise DataError(f"an xid's {what} is no text that UTF-8 can hold: {problem}; give it as bytes") from problem


def _text(part: bytes) -> str:
    return part.decode("utf-8", "surrogateescape")
