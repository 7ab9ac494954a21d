"""Transactions and their names: :class:`Transaction` over the core's handle, :class:`Xid` as XA has it.

A transaction is used by one thread at a time. Its operations do not wait; ``prepare``, ``commit`` and ``rollback`` do,
and a commit costs one force however many operations it holds. What is neither committed nor prepared is rolled back
when it is abandoned, when the store is closed, and by recovery.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from logstore import arguments, errors
from logstore._core import ffi, lib
from logstore._native import check, number

if TYPE_CHECKING:
    from collections.abc import Callable

    from logstore.store import MessageStore

XID_PART_BYTES_MAX: Final = 64
_FORMAT_ID_MIN: Final = -(2**63)
_FORMAT_ID_MAX: Final = 2**63 - 1

_STATES: Final = {1: "active", 2: "ended", 3: "prepared", 4: "committed", 5: "rolled_back"}


@dataclass(frozen=True, slots=True, order=True)
class Xid:
    """The name of a branch of a distributed transaction (X/Open XA; PEP 249's two-phase extension).

    ``gtrid`` and ``bqual`` are at most 64 bytes each and are compared byte for byte. As text an xid is
    ``format:gtrid-hex:bqual-hex``. Raises ``ValueError`` for a part that is too long or a format id beyond 64 bits.
    """

    format_id: int
    gtrid: bytes
    bqual: bytes = b""

    def __post_init__(self) -> None:
        if isinstance(self.format_id, bool) or not isinstance(self.format_id, int):
            raise TypeError(f"format_id is an int, not {arguments.shown(self.format_id)}")
        if not _FORMAT_ID_MIN <= self.format_id <= _FORMAT_ID_MAX:
            raise ValueError(f"format_id {arguments.shown(self.format_id)} does not fit into 64 bits")
        for name in ("gtrid", "bqual"):
            part = getattr(self, name)
            if not isinstance(part, bytes):
                raise TypeError(f"{name} is bytes, not {type(part).__name__}")
            if len(part) > XID_PART_BYTES_MAX:
                raise ValueError(f"{name} has {len(part)} bytes; at most {XID_PART_BYTES_MAX} are allowed")

    def __str__(self) -> str:
        return f"{self.format_id}:{self.gtrid.hex()}:{self.bqual.hex()}"

    @classmethod
    def parse(cls, text: str) -> Xid:
        """The xid that ``str()`` made this text of. Raises ``ValueError`` for any other text."""
        arguments.instance("text", text, str)
        try:
            format_id, gtrid, bqual = text.split(":")
            return cls(int(format_id), bytes.fromhex(gtrid), bytes.fromhex(bqual))
        except ValueError as problem:
            raise ValueError(
                f"an xid is format:gtrid-hex:bqual-hex, not {arguments.shown(text)} ({problem})"
            ) from problem

    def _to_c(self) -> Any:
        made = ffi.new("ls_xid *")
        made.format_id = self.format_id
        made.gtrid_bytes = len(self.gtrid)
        made.bqual_bytes = len(self.bqual)
        ffi.memmove(made.data, self.gtrid + self.bqual, len(self.gtrid) + len(self.bqual))
        return made


def _xid_from_c(x: Any) -> Xid:
    data = bytes(x.data[0 : x.gtrid_bytes + x.bqual_bytes])
    return Xid(x.format_id, data[: x.gtrid_bytes], data[x.gtrid_bytes :])


def new_handle() -> Any:
    """Where the core puts a transaction's handle: it is freed with this, from the moment at which the core sets it.

    So a signal handler's exception right after the core's call leaves no transaction that nobody can end; and none
    comes while it is freed, since no Python runs for that.
    """
    return ffi.gc(ffi.new("ls_tx **"), lib.ls_tx_free_at)


class Transaction:
    """Operations that take effect together, at ``commit``, or not at all.

    Made by ``store.begin()`` or ``store.transaction()``; passed to the store's operations as ``transaction=``.
    """

    def __init__(self, store: MessageStore, made: Any) -> None:
        self._store = store
        self._made = made  # of new_handle()
        self._handle = made[0]
        self._has_outcome = False
        self._on_commit: list[Callable[[], object]] = []
        info = ffi.new("ls_tx_info *")
        self._describe(info)
        self._id: int = info.id
        self._xid = _xid_from_c(info.xid) if info.distributed else None

    def __del__(self) -> None:
        if getattr(self, "_has_outcome", True):
            return
        ffi.release(self._made)  # which rolls back, and queues are to look for what that has unlocked
        self._store._releases.abandoned()

    def _describe(self, info: Any) -> None:
        lib.ls_tx_describe(self._handle, info)

    @property
    def id(self) -> int:
        """The LSN of the transaction's start record: its persistence ID."""
        return self._id

    @property
    def xid(self) -> Xid | None:
        """The branch's name; ``None`` for a local transaction."""
        return self._xid

    @property
    def state(self) -> str:
        """One of ``active``, ``ended``, ``prepared``, ``committed``, ``rolled_back``."""
        return _STATES[number("ls_tx_info", self._describe, "state")]

    @property
    def operations(self) -> int:
        """How many operations wait for the outcome."""
        return number("ls_tx_info", self._describe, "operations")

    @property
    def prepared_us(self) -> int:
        """When it was prepared, wall clock in µs since 1970; 0 if it is not. For reports only."""
        return number("ls_tx_info", self._describe, "prepared_us")

    def end(self) -> None:
        """No more work: the step before ``prepare`` or a one-phase ``commit`` of a distributed transaction.

        Raises :class:`~logstore.errors.WrongState` if it is local or not active.
        """
        check(lib.ls_tx_end(self._handle))

    def prepare(self, *, wait: bool = True) -> None:
        """Promises that ``commit`` will succeed, through every restart; durable on return.

        Raises :class:`~logstore.errors.WrongState` unless the transaction is distributed and ended.
        """
        try:
            self._store._keep_prepared(
                self
            )  # before it is prepared: in_doubt() in another thread must find this handle
            check(lib.ls_prepare(self._handle, lib.LS_WAIT if wait else 0))
        except BaseException:
            if self.state != "prepared":
                self._store._forget_transaction(self, rolled_back=False)
            raise

    def commit(self, *, wait: bool = True) -> None:
        """All operations take effect at once; durable on return.

        Raises :class:`~logstore.errors.TransactionEnded` after an outcome, :class:`~logstore.errors.WrongState` for
        a distributed transaction that is still active, and :class:`~logstore.errors.OutcomeUnknown` if the log
        failed while waiting.
        """
        check(lib.ls_commit(self._handle, lib.LS_WAIT if wait else 0))
        self._has_outcome = True
        self._store._forget_transaction(self, rolled_back=False)
        calls, self._on_commit = self._on_commit, []
        for call in calls:
            call()

    def rollback(self, *, wait: bool = True) -> None:
        """None of the operations ever happened; what they had locked is back in its old place.

        Raises :class:`~logstore.errors.TransactionEnded` after an outcome.
        """
        try:
            check(lib.ls_rollback(self._handle, lib.LS_WAIT if wait else 0))
            self._has_outcome = True
        finally:
            self._store._forget_transaction(self, rolled_back=True)

    def __repr__(self) -> str:
        name = f" {self._xid}" if self._xid is not None else ""
        return f"<Transaction {self._id}{name} {self.state}>"


def handle_of(store: MessageStore, transaction: Transaction | None) -> Any:
    """What the core takes for this transaction; checks that it is one, and of this store."""
    if transaction is None:
        return ffi.NULL
    if not isinstance(transaction, Transaction):
        raise TypeError(f"transaction is a Transaction, not {arguments.shown(transaction)}")
    if transaction._store is not store:
        raise errors.TransactionError(
            f"transaction {transaction.id} belongs to another store; begin one with the store whose messages it is "
            "to change"
        )
    return transaction._handle
