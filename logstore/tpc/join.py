"""A store as a participant in the transactions of the ``transaction`` package.

The order of a commit with a database that commits in one phase (``zope.sqlalchemy``, whose sort key begins with ``~``):

    our tpc_vote      the branch is prepared, on disk        from here on it is in doubt
    its tpc_vote      the database commits                   the marker row in it is the decision
    our tpc_finish    the branch is committed, on disk

A crash before the second line leaves a branch without a marker, one after it a branch with its marker. A ledger tells
the two apart, and :meth:`Participant.recover` does what it says. Without a ledger, whoever calls ``recover`` must know.

What always holds: nothing here gives a prepared branch an outcome that the ledger contradicts, and ``recover`` never
touches a branch whose transaction is still on its way in this process.
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
    """Where the decision is written: something that commits together with the other side. See :class:`Markers`."""

    def write(self, xid: Xid) -> None:
        """Called before the commit: records ``xid`` such that it is there if and only if the other side commits."""

    def committed(self, xid: Xid) -> bool | None:
        """Whether the other side has committed; ``None`` if that cannot be known yet.

        After ``False`` it must be impossible that it commits later, as by an answer still on its way.
        """

    def written(self, bqual: str) -> Iterable[Xid]:
        """The names recorded by this participant, in any order."""

    def forget(self, xids: Iterable[Xid]) -> None:
        """These are settled for good: their records may go."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """What :meth:`Participant.recover` did, by the names of the branches."""

    committed: tuple[Xid, ...]
    """The other side had committed."""
    rolled_back: tuple[Xid, ...]
    """The other side never will."""
    in_doubt: tuple[Xid, ...]
    """The ledger could not say. Call again later."""


class Participant(Operations):
    """A store that takes part in the transactions of a transaction manager.

    Made once and used by all threads. Its operations belong to the current transaction of the calling thread; the first
    one joins it. Nothing waits before the commit, which costs two forces of the log. A savepoint of a transaction with
    work in a store is refused (``TypeError``, by the package): what was done can only be aborted as a whole. One taken
    before the first operation may be rolled back; the store's part then never happened.

    ``name`` (at most 31 bytes) tells several participants on one store apart that have different ledgers; it must be
    the same after a restart. ``transaction_manager`` is the package's own thread-local one if none is given. Raises
    ``OptionError`` for a name that is too long, ``ImportError`` without the package (the extra ``tpc``).
    """

    def __init__(
        self, store: MessageStore, *, ledger: Ledger | None = None, name: str = "", transaction_manager: Any = None
    ) -> None:
        super().__init__(store)
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
        """The name that this store's branch of the current transaction has, or will have when it joins."""
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
        """Gives every branch of this participant that is in doubt its outcome; durable on return.

        For each, ``resolver(xid)``, or the ledger's ``committed``, is asked whether the other side has committed:
        ``True`` commits the branch, ``False`` rolls it back, ``None`` leaves it in doubt. Call it after opening the
        store, before others consume from it; it may be called again at any time, and by any number of threads, for
        branches on their way are left alone. At the end the ledger forgets what is settled.

        Raises whatever the resolver raises, and then what it did stays done and the rest in doubt; ``TypeError`` if it
        answers anything else; ``OptionError`` if there is neither resolver nor ledger.
        """
        arguments.optional(arguments.function, "resolver", resolver)
        if resolver is None:
            if self._ledger is None:
                raise errors.OptionError("there is no ledger to ask: pass a resolver, or make the participant with one")
            resolver = self._ledger.committed
        settled: dict[bool | None, list[Xid]] = {True: [], False: [], None: []}
        for transaction in self._in_doubt():
            xid = Xid.of_prepared(transaction)
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
        """Those of this participant that no transaction of this process will settle, and nobody has meanwhile."""
        for transaction in self._store.in_doubt():
            xid = transaction.xid
            ours = xid is not None and xid.format_id == FORMAT_ID and xid.bqual == self._bqual.encode()
            if ours and not _is_on_its_way(transaction) and transaction.state == "prepared":
                yield transaction

    def _forget(self, ledger: Ledger) -> None:
        """In this order: what the ledger shows was prepared before, so if it is in doubt no more, it is settled."""
        written = list(ledger.written(self._bqual))
        in_doubt = {transaction.xid for transaction in self._store.in_doubt()}
        self._store.force()
        ledger.forget(xid for xid in written if xid.name not in in_doubt)


def _settle(transaction: Transaction, *, commit: bool) -> bool:
    """Gives the outcome, not forced yet; False if another thread was faster."""
    try:
        if commit:
            transaction.commit(wait=False)
        else:
            transaction.rollback(wait=False)
    except errors.TransactionEnded:
        return False
    return True


def _is_on_its_way(transaction: Transaction) -> bool:
    """Whether a transaction of this process will settle it. One that was given up without an end no longer will."""
    known = _ON_ITS_WAY.get(transaction)
    branch = None if known is None else known()
    return branch is not None and not branch.is_settled


class _Joint:
    """What the branches of one transaction share: the global name, and who they are."""

    def __init__(self) -> None:
        self.gtrid = uuid.uuid4().hex
        self.branches: dict[tuple[int, str], _Branch] = {}

    @classmethod
    def of(cls, current: Any) -> _Joint:
        """The one of this transaction of the package's, made if there is none."""
        try:
            found: _Joint = current.data(_Joint)
        except KeyError:
            found = cls()
            current.set_data(_Joint, found)
        return found

    def leave(self, branch: _Branch) -> None:
        """It has come to its end. Should the transaction go on, a branch that joins anew gets another name."""
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
        self._is_decided = False  # nothing more is asked of this object
        self.is_settled = False  # and what was asked has been done, or has failed for good

    def work_in(self, current: Any) -> Transaction:
        """The store's transaction, begun with the first operation."""
        if self._transaction is None:
            self._transaction = self._store.begin(self._xid.name)
            _ON_ITS_WAY[self._transaction] = weakref.ref(self)
            current.addBeforeCommitHook(self._write_marker)
        return self._transaction

    def _write_marker(self) -> None:
        """As late as others can still join, so that no savepoint of the database's takes the row back."""
        if self._ledger is not None and not self._is_decided:
            self._ledger.write(self._xid)
            self._is_written = True

    # ---- what the transaction package calls ----

    def sortKey(self) -> str:  # noqa: N802 - the interface's name
        """Before ``~``, with which those begin that commit in one phase and must vote last."""
        return f"logstore:{self._xid.bqual}"

    def should_retry(self, error: BaseException) -> bool:
        """What another transaction holds now, it will let go."""
        return isinstance(error, errors.MessageLocked)

    def abort(self, current: Any) -> None:  # noqa: ARG002 - the interface's
        """The transaction, or what was done since a savepoint before the first operation, never happened."""
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
        """No more work."""
        if self._is_pending() and self._transaction is not None:
            self._transaction.end()

    def tpc_vote(self, current: Any) -> None:  # noqa: ARG002 - the interface's
        """Promises that the commit will succeed, through every crash: prepared, and on disk in any mode."""
        if self._is_pending() and self._transaction is not None:
            self._transaction.prepare(wait=False)
            self._store.force()
            self._is_voted = True

    def tpc_finish(self, current: Any) -> None:  # noqa: ARG002 - the interface's
        """Commits; never raises. If the store fails here, the branch is in doubt until it is opened and recovered."""
        if self._is_pending():
            self._is_decided = True
            self._outcome(commit=True)

    def tpc_abort(self, current: Any) -> None:  # noqa: ARG002 - the interface's
        """Somebody's vote failed, or somebody's finish. A branch that is prepared has the ledger decide: the database
        may have committed and its answer got lost.
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
            _logger.error("branch %s stays in doubt: call recover() when the ledger can be asked", self._xid)
            return
        if committed:
            _logger.warning("branch %s commits though an abort was asked for: the other side has committed", self._xid)
        self._outcome(commit=committed)

    # ---- how it ends ----

    def _is_pending(self) -> bool:
        return self._transaction is not None and not self._is_decided

    def _roll_back(self) -> None:
        """Without asking, for the other side cannot have committed."""
        assert self._transaction is not None
        try:
            _settle(self._transaction, commit=False)
        except errors.StoreError as problem:
            _logger.warning("branch %s is rolled back when the store is opened and recovered: %s", self._xid, problem)
        finally:
            self.is_settled = True

    def _outcome(self, *, commit: bool) -> None:
        """Of a prepared branch, on disk; a failure is told to the log and left to recovery."""
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
                    "branch %s in store %s was %s by somebody else, but the transaction was %s: see to it by hand",
                    self._xid,
                    self._store.path,
                    self._transaction.state.replace("_", " "),
                    wanted.replace("_", " "),
                )
        finally:
            self.is_settled = True

    def __repr__(self) -> str:
        return f"<branch {self._xid} of {str(self._store.path)!r}: {self._transaction!r}>"
