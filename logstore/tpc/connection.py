"""PEP 249's connection to a store: transactions, and two-phase commit by ``tpc_begin`` … ``tpc_recover``."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final, Self

from logstore import errors
from logstore.tpc.errors import (
    DatabaseError,
    DataError,
    Error,
    IntegrityError,
    InterfaceError,
    InternalError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
    Warning,  # noqa: A004 - PEP 249's name
    in_pep_249_terms,
)
from logstore.tpc.operations import Operations
from logstore.tpc.xid import Xid

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from logstore.store.deliveries import Message
    from logstore.store.message_store import MessageStore
    from logstore.store.queues import Queue
    from logstore.store.transactions import Transaction

__all__ = ["Connection", "connect"]

_FINISHED: Final = ("committed", "rolled_back")


def connect(store: MessageStore) -> Connection:
    """A connection to an open store. There may be many; each has one transaction at a time."""
    return Connection(store)


class Connection(Operations):
    """A session with a store as PEP 249 defines it: the first operation begins a transaction, if there is none.

    A plain transaction ends with :meth:`commit` or :meth:`rollback`; one begun with :meth:`tpc_begin` ends with
    :meth:`tpc_commit` or :meth:`tpc_rollback`. Used by one thread at a time. As a context manager it commits at the
    end of the block, rolls back if the block raises, and closes; a prepared branch stays unchanged.

    All methods raise PEP 249's exceptions, which are also attributes of the connection.
    """

    Warning = Warning
    Error = Error
    InterfaceError = InterfaceError
    DatabaseError = DatabaseError
    DataError = DataError
    OperationalError = OperationalError
    IntegrityError = IntegrityError
    InternalError = InternalError
    ProgrammingError = ProgrammingError
    NotSupportedError = NotSupportedError

    def __init__(self, store: MessageStore) -> None:
        super().__init__(store)
        self._transaction: Transaction | None = None
        self._closed = False

    def _check_open(self) -> None:
        if self._closed:
            raise InterfaceError("the connection is closed; make another with logstore.tpc.connect(store)")

    @contextlib.contextmanager
    def _transaction_to_use(self) -> Iterator[Transaction]:
        self._check_open()
        with in_pep_249_terms():
            if self._transaction is None:
                self._transaction = self._store.begin()
            elif self._transaction.state == "prepared":
                raise ProgrammingError(
                    f"branch {self._transaction.xid} is prepared and accepts no more work: finish it with tpc_commit() "
                    "or tpc_rollback() first"
                )
            yield self._transaction

    # ---- outside the transaction ----

    def stage(self, header: object = b"", content: object = b"") -> int:
        """See :meth:`MessageStore.stage`. Not part of the transaction; the message's enqueue is."""
        self._check_open()
        with in_pep_249_terms():
            return self._store.stage(header, content)

    def append_content(self, message_id: int, data: object) -> None:
        """See :meth:`MessageStore.append_content`. Not part of the transaction."""
        self._check_open()
        with in_pep_249_terms():
            self._store.append_content(message_id, data)

    def load_content(self, message_id: int, offset: int = 0, length: int | None = None) -> bytes:
        """See :meth:`MessageStore.load_content`. Begins no transaction."""
        self._check_open()
        with in_pep_249_terms():
            return self._store.load_content(message_id, offset, length)

    def header(self, message_id: int) -> bytes:
        """See :meth:`MessageStore.header`. Begins no transaction."""
        self._check_open()
        with in_pep_249_terms():
            return self._store.header(message_id)

    def messages(self, queue: Queue | str) -> Iterator[Message]:
        """See :meth:`MessageStore.messages`: the committed messages. Begins no transaction."""
        self._check_open()
        return self._listed(queue)

    def _listed(self, queue: Queue | str) -> Iterator[Message]:
        with in_pep_249_terms():
            yield from self._store.messages(queue)

    # ---- plain transactions ----

    def commit(self) -> None:
        """Commits the plain transaction, if there is one; durable on return.

        Raises :class:`ProgrammingError` during a two-phase transaction.
        """
        self._finish_plain("commit")

    def rollback(self) -> None:
        """Rolls the plain transaction back, if there is one.

        Raises :class:`ProgrammingError` during a two-phase transaction.
        """
        self._finish_plain("rollback")

    def _finish_plain(self, how: str) -> None:
        self._check_open()
        transaction = self._transaction
        if transaction is None:
            return
        if transaction.xid is not None:
            raise ProgrammingError(f"{how}() cannot end the two-phase transaction {transaction.xid}: use tpc_{how}()")
        self._finish(transaction, how)

    # ---- two-phase transactions ----

    def xid(self, format_id: int, gtrid: str | bytes, bqual: str | bytes = "") -> Xid:
        """A name for a branch; see :class:`Xid`. Raises :class:`DataError`, :class:`ProgrammingError`."""
        self._check_open()
        return Xid(format_id, gtrid, bqual)

    def tpc_begin(self, xid: Any) -> None:
        """Begins a two-phase transaction: the operations from here on belong to the branch ``xid``.

        Raises :class:`ProgrammingError` inside a transaction, and if a branch of that name is open or prepared.
        """
        self._check_open()
        if self._transaction is not None:
            raise ProgrammingError(f"tpc_begin() inside a transaction: {self._way_out(self._transaction)} first")
        name = Xid.of(xid).name
        with in_pep_249_terms():
            self._transaction = self._store.begin(name)

    def tpc_prepare(self) -> None:
        """The first phase: promises that the branch can be committed, even after a crash; on disk on return.

        Afterwards only :meth:`tpc_commit` and :meth:`tpc_rollback` are possible; after a failure only
        :meth:`tpc_rollback`. Raises :class:`ProgrammingError` outside a two-phase transaction, and if it is called
        again.
        """
        self._check_open()
        transaction = self._transaction
        if transaction is None or transaction.xid is None:
            raise ProgrammingError("tpc_prepare() is for a two-phase transaction: begin one with tpc_begin(xid)")
        if transaction.state == "prepared":
            raise ProgrammingError(f"branch {transaction.xid} is prepared already: {self._way_out(transaction)}")
        with in_pep_249_terms():
            if transaction.state == "active":
                transaction.end()
            transaction.prepare(wait=False)
            self._store.force()

    def tpc_commit(self, xid: Any = None) -> None:
        """Commits the current two-phase transaction, in one phase if it is not prepared; durable on return.

        With ``xid`` it commits any prepared branch. Raises :class:`ProgrammingError` without ``xid`` if there is no
        current two-phase transaction, and with it inside a transaction or for a branch that is not in doubt.
        """
        self._finish_branch(xid, "commit")

    def tpc_rollback(self, xid: Any = None) -> None:
        """Rolls the current two-phase transaction back, prepared or not; with ``xid``, any prepared branch.

        Raises as :meth:`tpc_commit`.
        """
        self._finish_branch(xid, "rollback")

    def tpc_recover(self) -> list[Xid]:
        """The names of all prepared branches without an outcome, from before or after a restart.

        Each has ``prepared`` and ``database`` set. The call neither begins nor ends a transaction.
        """
        self._check_open()
        with in_pep_249_terms():
            return [Xid._of_prepared(transaction) for transaction in self._store.in_doubt()]

    def _finish_branch(self, xid: Any, how: str) -> None:
        self._check_open()
        transaction = self._transaction
        if xid is not None:
            if transaction is not None:
                raise ProgrammingError(f"tpc_{how}(xid) inside a transaction: {self._way_out(transaction)} first")
            transaction = self._in_doubt(Xid.of(xid))
        elif transaction is None or transaction.xid is None:
            raise ProgrammingError(
                f"tpc_{how}() without an xid is for the connection's own two-phase transaction, and there is none: "
                "begin one with tpc_begin(xid), or name a branch of tpc_recover()"
            )
        self._finish(transaction, how)

    def _in_doubt(self, xid: Xid) -> Transaction:
        name = xid.name
        with in_pep_249_terms():
            for transaction in self._store.in_doubt():
                if transaction.xid == name:
                    return transaction
            raise errors.UnknownXid(f"no branch {xid!r} is in doubt here: tpc_recover() lists the branches in doubt")

    def _finish(self, transaction: Transaction, how: str) -> None:
        try:
            with in_pep_249_terms():
                prepared = transaction.state == "prepared"
                if how == "commit":
                    if transaction.xid is not None and transaction.state == "active":
                        transaction.end()
                    transaction.commit(wait=not prepared)
                else:
                    transaction.rollback(wait=not prepared)
                if prepared:  # the coordinator forgets the branch now, so its outcome is forced in any mode
                    self._store.force()
        finally:
            if transaction is self._transaction and transaction.state in _FINISHED:
                self._transaction = None

    @staticmethod
    def _way_out(transaction: Transaction) -> str:
        prefix = "" if transaction.xid is None else "tpc_"
        return f"finish it with {prefix}commit() or {prefix}rollback()"

    # ---- closing ----

    def close(self) -> None:
        """Rolls back an unprepared transaction. The store stays open; a second call does nothing.

        A prepared branch stays in doubt, for any connection to finish by its xid.
        """
        self._closed = True
        transaction, self._transaction = self._transaction, None
        if transaction is not None and transaction.state != "prepared":
            with contextlib.suppress(errors.StoreError):  # a failed or closed store rolls it back itself
                transaction.rollback(wait=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None and self._transaction is not None and self._transaction.state != "prepared":
                self.commit()
        finally:
            self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else repr(self._transaction) if self._transaction is not None else "idle"
        return f"<Connection to {str(self._store.path)!r} {state}>"
