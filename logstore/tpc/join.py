"""A store as a participant in the transactions of the ``transaction`` package.

The order of a commit with a database that commits in one phase (``zope.sqlalchemy``, whose sort key begins with ``~``):

    our tpc_vote      the branch is prepared, on disk        from here on it is in doubt
    its tpc_vote      the database commits                   the marker row in it is the decision
    our tpc_finish    the branch is committed, on disk

A crash before the second line leaves a branch without a marker; a crash after it leaves a branch with its marker. A
ledger distinguishes the two, and :meth:`Participant.recover` follows it. Without a ledger the caller of ``recover`` has
to decide.

Invariants: no prepared branch gets an outcome that contradicts the ledger, and ``recover`` never touches a branch whose
transaction is still in progress in this process.
"""

from __future__ import annotations

import contextlib
import logging
import uuid
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from logstore import errors
from logstore._core import ffi, lib
from logstore.core import arguments
from logstore.core.imports import late
from logstore.tpc.operations import Operations
from logstore.tpc.xid import Xid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from logstore.store.message_store import MessageStore
    from logstore.store.transactions import Transaction

FORMAT_ID: Final = 0x4C4F4753
"""The format id of the branches that a :class:`Participant` makes: "LOGS"."""

_NAME_BYTES_MAX: Final = 31  # with the store's UUID in hex and a colon before it: 64
_logger: Final = logging.getLogger("logstore.tpc")
_ON_ITS_WAY: Final[weakref.WeakKeyDictionary[Transaction, weakref.ref[_Branch]]] = weakref.WeakKeyDictionary()


class Ledger(Protocol):
    """The record of the decision, which commits together with the other side. See :class:`Markers`."""

    def write(self, xid: Xid) -> None:
        """Called before the commit: records ``xid`` so that the record exists if and only if the other side commits."""

    def committed(self, xid: Xid) -> bool | None:
        """Whether the other side has committed; ``None`` if that cannot be known yet.

        After ``False`` it must be impossible that it commits later, for example by a statement still in progress.
        """

    def written(self, bqual: str) -> Iterable[Xid]:
        """The names recorded by this participant, in any order."""

    def forget(self, xids: Iterable[Xid]) -> None:
        """Called with branches that are settled for good: their records may be deleted."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """The result of :meth:`Participant.recover`: the names of the branches by outcome."""

    committed: tuple[Xid, ...]
    """Branches whose other side had committed."""
    rolled_back: tuple[Xid, ...]
    """Branches whose other side will never commit."""
    in_doubt: tuple[Xid, ...]
    """Branches for which the ledger had no answer. Call again later."""


class Participant(Operations):
    """A store that takes part in the transactions of a transaction manager.

    Made once and used by all threads. Its operations belong to the current transaction of the calling thread; the first
    operation joins the transaction. Nothing waits before the commit, which costs two forces of the log. The package
    refuses a savepoint in a transaction with work in a store (``TypeError``), because that work can only be aborted as
    a whole. A savepoint taken before the first operation may be rolled back, which undoes the store's part.

    ``name`` (at most 31 bytes) distinguishes several participants with different ledgers on one store; it must be the
    same after a restart. ``transaction_manager`` is by default the package's thread-local one. Raises ``OptionError``
    for a name that is too long, ``ImportError`` without the package (the extra ``tpc``).
    """

    def __init__(
        self, store: MessageStore, *, ledger: Ledger | None = None, name: str = "", transaction_manager: Any = None
    ) -> None:
        super().__init__(store)
        late("transaction")
        late("transaction.interfaces")
        late("zope.interface")
        import transaction
        from transaction.interfaces import IDataManager
        from zope.interface import classImplements

        classImplements(_Branch, IDataManager)
        if len(arguments.text("name", name).encode()) > _NAME_BYTES_MAX:
            raise errors.OptionError(
                f"a participant's name has at most {_NAME_BYTES_MAX} bytes, not {arguments.shown(name)}"
            )
        if ledger is not None:
            arguments.having("ledger", ledger, ("write", "committed", "written", "forget"), "a ledger, such as Markers")
        if transaction_manager is not None:
            arguments.having("transaction_manager", transaction_manager, ("get", "begin"), "a transaction manager")
        self._ledger = ledger
        self._manager = transaction.manager if transaction_manager is None else transaction_manager
        into = ffi.new("uint8_t[16]")
        lib.ls_uuid(store._c, into)
        self._bqual = bytes(ffi.buffer(into)).hex() + (f":{name}" if name else "")

    @property
    def xid(self) -> Xid:
        """The name of this store's branch of the current transaction, even before it joins."""
        return self._xid_in(_Joint.of(self._manager.get()))

    def _xid_in(self, joint: _Joint) -> Xid:
        return Xid(FORMAT_ID, joint.gtrid, self._bqual)

    @contextlib.contextmanager
    def _transaction_to_use(self) -> Iterator[Transaction]:
        current = self._manager.get()
        joint = _Joint.of(current)
        place = (id(self._store), self._bqual)
        branch = joint.branches.get(place)
        if branch is None:
            branch = _Branch(self._store, self._xid_in(joint), self._ledger, joint, self._manager)
            current.join(branch)
            joint.branches[place] = branch
        yield branch.work_in(current)

    # ---- after a crash ----

    def recover(self, resolver: Callable[[Xid], bool | None] | None = None) -> Recovered:
        """Gives every branch of this participant in doubt its outcome; durable on return.

        ``resolver(xid)``, by default the ledger's ``committed``, says whether the other side has committed: ``True``
        commits the branch, ``False`` rolls it back, ``None`` leaves it in doubt. Call it after opening the store,
        before others consume from it. It may be called again at any time, from any number of threads, because branches
        in progress are not touched. At the end the ledger forgets the settled branches.

        Raises any exception of the resolver; then the outcomes given so far stay, and the other branches stay in doubt.
        Raises ``TypeError`` for another answer, ``OptionError`` if there is neither resolver nor ledger.
        """
        arguments.optional(arguments.function, "resolver", resolver)
        if resolver is None:
            if self._ledger is None:
                raise errors.OptionError("there is no ledger: pass a resolver, or make the participant with a ledger")
            resolver = self._ledger.committed
        settled: dict[bool | None, list[Xid]] = {True: [], False: [], None: []}
        for transaction in self._in_doubt():
            xid = Xid._of_prepared(transaction)
            answer = resolver(xid)
            if answer is not None and not isinstance(answer, bool):
                raise TypeError(f"a resolver answers True, False or None, not {answer!r}")
            if answer is None or _settle(transaction, commit=answer):
                settled[answer].append(xid)
        self._store.force()
        if self._ledger is not None:
            self._forget(self._ledger)
        return Recovered(tuple(settled[True]), tuple(settled[False]), tuple(settled[None]))

    def _in_doubt(self) -> Iterator[Transaction]:
        """Prepared branches of this participant that no transaction of this process will settle."""
        for transaction in self._store.in_doubt():
            xid = transaction.xid
            ours = xid is not None and xid.format_id == FORMAT_ID and xid.bqual == self._bqual.encode()
            if ours and not _is_on_its_way(transaction) and transaction.state == "prepared":
                yield transaction

    def _forget(self, ledger: Ledger) -> None:
        """Forgets settled branches. Reads the ledger first: all its branches are then in doubt or settled."""
        written = list(ledger.written(self._bqual))
        in_doubt = {transaction.xid for transaction in self._store.in_doubt()}
        self._store.force()
        ledger.forget(xid for xid in written if xid.name not in in_doubt)


def _settle(transaction: Transaction, *, commit: bool) -> bool:
    """Gives the outcome without a force. False if another thread gave one first."""
    try:
        if commit:
            transaction.commit(wait=False)
        else:
            transaction.rollback(wait=False)
    except errors.TransactionEnded:
        return False
    return True


def _is_on_its_way(transaction: Transaction) -> bool:
    """Whether a transaction of this process will settle it; an abandoned one no longer will."""
    known = _ON_ITS_WAY.get(transaction)
    branch = None if known is None else known()
    return branch is not None and not branch.is_settled


class _Joint:
    """The state that the branches of one transaction share: the global name, and the branches."""

    def __init__(self) -> None:
        self.gtrid = uuid.uuid4().hex
        self.branches: dict[tuple[int, str], _Branch] = {}

    @classmethod
    def of(cls, current: Any) -> _Joint:
        """The shared state of this transaction of the package, made if there is none."""
        try:
            found: _Joint = current.data(_Joint)
        except KeyError:
            found = cls()
            current.set_data(_Joint, found)
        return found

    def leave(self, branch: _Branch) -> None:
        """Removes an ended branch. If the transaction continues, a new branch gets another name."""
        for place, known in list(self.branches.items()):
            if known is branch:
                del self.branches[place]
        if not self.branches:
            self.gtrid = uuid.uuid4().hex


class _Branch:
    """One store's part in one transaction: a data manager, as the ``transaction`` package calls it.

    The package may call ``abort`` and ``tpc_abort`` at any time, more than once, and after ``tpc_finish`` too.
    """

    def __init__(
        self, store: MessageStore, xid: Xid, ledger: Ledger | None, joint: _Joint, transaction_manager: Any
    ) -> None:
        self.transaction_manager = transaction_manager
        self._store = store
        self._xid = xid
        self._ledger = ledger
        self._joint = joint
        self._transaction: Transaction | None = None
        self._is_written = False  # the marker, if there is a ledger
        self._is_voted = False
        self._is_decided = False  # the package's last call was made
        self.is_settled = False  # the outcome was given, or has failed for good

    def work_in(self, current: Any) -> Transaction:
        """The store's transaction, begun with the first operation."""
        if self._transaction is None:
            self._transaction = self._store.begin(self._xid.name)
            _ON_ITS_WAY[self._transaction] = weakref.ref(self)
            current.addBeforeCommitHook(self._write_marker)
        return self._transaction

    def _write_marker(self) -> None:
        """Writes the marker as late as possible, so that no savepoint of the database removes the row."""
        if self._ledger is not None and not self._is_decided:
            self._ledger.write(self._xid)
            self._is_written = True

    # ---- called by the transaction package ----

    def sortKey(self) -> str:  # noqa: N802 - the interface's name
        """Sorts before ``~``, the first character of participants that commit in one phase and must vote last."""
        return f"logstore:{self._xid.bqual}"

    def should_retry(self, error: BaseException) -> bool:
        """Whether to retry: yes if another transaction has locked the message, because it will end."""
        return isinstance(error, errors.MessageLocked)

    def abort(self, current: Any) -> None:  # noqa: ARG002 - the interface's
        """Undoes the branch: the transaction is aborted, or rolled back to a savepoint before the first operation."""
        self._joint.leave(self)
        if self._is_pending():
            self._is_decided = True
            self._roll_back()

    def tpc_begin(self, current: Any) -> None:  # noqa: ARG002 - the interface's
        """Raises ``TransactionError`` if the marker cannot be in the database because the work came too late."""
        if self._is_pending() and self._ledger is not None and not self._is_written:
            raise errors.TransactionError(
                f"the first operation in store {str(self._store.path)!r} came after the before-commit hooks, so its "
                "marker is not in the database; work in a before-commit hook at the latest"
            )

    def commit(self, current: Any) -> None:  # noqa: ARG002 - the interface's
        """Ends the work of the branch."""
        if self._is_pending() and self._transaction is not None:
            self._transaction.end()

    def tpc_vote(self, current: Any) -> None:  # noqa: ARG002 - the interface's
        """Prepares the branch, on disk in any mode: promises that the commit will succeed, even after a crash."""
        if self._is_pending() and self._transaction is not None:
            self._transaction.prepare(wait=False)
            self._store.force()
            self._is_voted = True

    def tpc_finish(self, current: Any) -> None:  # noqa: ARG002 - the interface's
        """Commits; never raises. If the store fails here, the branch is in doubt until the store is recovered."""
        if self._is_pending():
            self._is_decided = True
            self._outcome(commit=True)

    def tpc_abort(self, current: Any) -> None:  # noqa: ARG002 - the interface's
        """Ends the branch after a failed vote or finish of any participant. For a prepared branch the ledger decides,
        because the database may have committed although its answer was lost.
        """
        self._joint.leave(self)
        if not self._is_pending():
            return
        self._is_decided = True
        if not self._is_voted or self._ledger is None:
            self._roll_back()
            return
        try:
            committed = self._ledger.committed(self._xid)
        except Exception:
            committed = None
            _logger.exception("the ledger cannot be asked about branch %s", self._xid)
        if committed is None:
            self.is_settled = True
            _logger.error("branch %s stays in doubt: call recover() when the ledger is available", self._xid)
            return
        if committed:
            _logger.warning("branch %s commits despite the abort: the other side has committed", self._xid)
        self._outcome(commit=committed)

    # ---- the outcome ----

    def _is_pending(self) -> bool:
        return self._transaction is not None and not self._is_decided

    def _roll_back(self) -> None:
        """Rolls back without asking the ledger, because the other side cannot have committed."""
        assert self._transaction is not None
        try:
            _settle(self._transaction, commit=False)
        except errors.StoreError as problem:
            _logger.warning("branch %s is rolled back when the store is opened and recovered: %s", self._xid, problem)
        finally:
            self.is_settled = True

    def _outcome(self, *, commit: bool) -> None:
        """Gives a prepared branch its outcome, on disk. A failure is logged and left to recovery."""
        assert self._transaction is not None
        wanted = "committed" if commit else "rolled_back"
        try:
            _settle(self._transaction, commit=commit)
            self._store.force()
        except errors.StoreError:
            _logger.critical(
                "branch %s in store %s could not be %s and may be in doubt: open the store again and call recover()",
                self._xid,
                self._store.path,
                wanted.replace("_", " "),
                exc_info=True,
            )
        else:
            if self._transaction.state != wanted:
                _logger.critical(
                    "branch %s in store %s was %s by another program, but the transaction was %s: repair this by hand",
                    self._xid,
                    self._store.path,
                    self._transaction.state.replace("_", " "),
                    wanted.replace("_", " "),
                )
        finally:
            self.is_settled = True

    def __repr__(self) -> str:
        return f"<branch {self._xid} of {str(self._store.path)!r}: {self._transaction!r}>"
