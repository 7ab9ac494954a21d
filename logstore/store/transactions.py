"""Transactions: :class:`Transaction`, a wrapper of the core's handle.

A transaction is used by one thread at a time. Its operations do not wait for the disk; ``prepare``, ``commit`` and
``rollback`` do. A commit costs one force, however many operations it holds. A transaction that is neither committed nor
prepared is rolled back when its object is dropped, when the store is closed, or by recovery.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from logstore import errors
from logstore._core import ffi, lib
from logstore._hot import TransactionCalls, mark_settled
from logstore.core import arguments
from logstore.core.native import check, number
from logstore.core.xid import Xid, xid_from_c

if TYPE_CHECKING:
    from logstore._core import ls_tx_info_ptr, ls_tx_ptr
    from logstore._hot import Delivery, Owner, StoreCalls
    from logstore.store.message_store import MessageStore

_STATES: Final = {1: "active", 2: "ended", 3: "prepared", 4: "committed", 5: "rolled_back"}


class Transaction(TransactionCalls):
    """Operations that take effect together, at ``commit``, or not at all.

    Made by ``store.begin()`` or ``store.transaction()``; passed to the store's operations as ``transaction=``.
    """

    def __init__(self, store: MessageStore, owner: Owner, handle: ls_tx_ptr) -> None:
        self._store = store
        self._attach(store, owner)  # keeps the owner, as long as this object lives
        self._handle = handle
        self._has_outcome = False
        self._settling: list[tuple[Delivery | tuple[int, int, int], ...]] = []
        info = ffi.new("ls_tx_info *")
        self._describe(info)
        self._id: int = info.id
        self._xid = xid_from_c(info.xid) if info.distributed else None

    def __del__(self) -> None:
        if getattr(self, "_has_outcome", True):
            return
        self._has_outcome = True
        lib.ls_tx_abandon(self._handle)  # frees nothing: another finalizer may use this object later
        self._store._releases.abandoned()

    def _describe(self, info: ls_tx_info_ptr) -> None:
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
        """When it was prepared: wall clock, µs since 1970; 0 if it is not prepared. For reports only."""
        return number("ls_tx_info", self._describe, "prepared_us")

    def end(self) -> None:
        """Ends the work of a distributed transaction: the step before ``prepare`` or a one-phase ``commit``.

        Raises :class:`~logstore.errors.WrongState` if it is local or not active.
        """
        check(lib.ls_tx_end(self._handle))

    def prepare(self, *, wait: bool = True) -> None:
        """Promises that ``commit`` will succeed, through every restart; durable on return.

        Raises :class:`~logstore.errors.WrongState` unless the transaction is distributed and ended.
        """
        try:
            self._store._keep_prepared(self)  # first, so that in_doubt() in another thread finds this handle
            check(lib.ls_prepare(self._handle, lib.LS_WAIT if wait else 0))
        except BaseException:
            if self.state != "prepared":
                self._store._forget_transaction(self, rolled_back=False)
            raise

    def commit(self, *, wait: bool = True) -> None:
        """Makes all operations take effect at once; durable on return.

        Raises :class:`~logstore.errors.TransactionEnded` after an outcome, :class:`~logstore.errors.WrongState` for
        a distributed transaction that is still active, and :class:`~logstore.errors.OutcomeUnknown` if the log
        failed while waiting.
        """
        check(lib.ls_commit(self._handle, lib.LS_WAIT if wait else 0))
        self._has_outcome = True
        self._store._forget_transaction(self, rolled_back=False)
        batches, self._settling = self._settling, []
        for batch in batches:
            mark_settled(batch)

    def rollback(self, *, wait: bool = True) -> None:
        """Undoes all operations; the places that they locked are available again, in their old order.

        Raises :class:`~logstore.errors.TransactionEnded` after an outcome.
        """
        try:
            check(lib.ls_rollback(self._handle, lib.LS_WAIT if wait else 0))
            self._has_outcome = True
            self._settling = []  # releases deliveries to which nothing else refers
        finally:
            self._store._forget_transaction(self, rolled_back=True)

    def _settles(self, batch: tuple[Delivery | tuple[int, int, int], ...]) -> None:
        """Keeps these deliveries until the outcome, so that they are not released before; a commit settles them."""
        self._settling.append(batch)

    def __repr__(self) -> str:
        name = f" {self._xid}" if self._xid is not None else ""
        return f"<Transaction {self._id}{name} {self.state}>"


def handle_of(store: StoreCalls, transaction: Transaction | None) -> Any:
    """The core's handle of this transaction; NULL for None. Checks that the transaction belongs to this store."""
    if transaction is None:
        return ffi.NULL
    if not isinstance(transaction, Transaction):
        raise TypeError(f"transaction is a Transaction, not {arguments.shown(transaction)}")
    if transaction._store is not store:
        raise errors.TransactionError(
            f"transaction {transaction.id} belongs to another store; begin one with the store whose messages it changes"
        )
    return transaction._handle
