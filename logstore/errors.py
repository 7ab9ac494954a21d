"""Every exception that logstore raises on purpose, as one tree under :class:`StoreError`.

A message says what happened, where, and what to do next, in that order, so that it can be shown to an
operator as it is. No exception here is ever raised for a defect of logstore itself: that is an
``AssertionError``, or whatever Python makes of it.

All of these survive pickling with their attributes, so that they can cross a process boundary.
"""

from __future__ import annotations

__all__ = [
    "StoreError",
    "NotAStore",
    "StoreLocked",
    "StoreFull",
    "StorePoisoned",
    "StoreClosed",
    "StoreForked",
    "ReentrantCall",
    "OptionError",
    "CorruptLog",
    "VersionError",
    "CatalogError",
    "CatalogMismatch",
    "CatalogOvertaken",
    "CatalogUnavailable",
    "UnknownMessage",
    "UnknownQueue",
    "UnknownExchange",
    "QueueExists",
    "MessageLocked",
    "MessageInUse",
    "AlreadyEnqueued",
    "NotEnqueued",
    "TransactionError",
    "UnknownXid",
    "DuplicateXid",
    "TransactionEnded",
    "WrongState",
    "OutcomeUnknown",
]


class StoreError(Exception):
    """The root of the tree: something about the store, its files or its use went wrong.

    Raised as itself where no narrower name fits, above all when the operating system refuses something
    that is not part of the log (no permission, no such directory); the ``OSError`` is then its cause.
    ``except StoreError`` catches everything that logstore raises on purpose.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message
        """What happened, where, and what to do next, in plain words."""


# ---- Opening a store, and the store as a whole -----------------------------------------------------------


class NotAStore(StoreError):
    """The directory holds something, but no store.

    Raised on opening or inspecting a directory without a ``META`` file that is not an unfinished creation
    either. Nothing was written. Check the path; a new store wants an empty or absent directory.
    """


class StoreLocked(StoreError):
    """Another process, or another handle in this one, has the store open for writing.

    A store has one writer. Close the other one, or use the read-only commands, which work beside it.
    """


class StoreFull(StoreError):
    """There is no room for new messages, and nothing that is stored was lost.

    Raised by what adds to the log (publishing, staging, beginning a transaction) when no further segment
    can be had, from the disk or within ``max_log_bytes``. Dequeues and outcomes still work: consume, make
    room on the disk or raise the limit, then try again.
    """


class StorePoisoned(StoreError):
    """An earlier write or sync failed, so the store refuses every further write.

    After such a failure nobody can say what the disk holds until the log is read again, so nothing is
    retried. See to the disk, close the store, and open it again: recovery settles what survived.
    """


class StoreClosed(StoreError):
    """The store, or the handle, was closed before this call. Open the store again."""


class StoreForked(StoreError):
    """The store was opened by the parent of this process.

    A fork does not inherit a store. Open it in the child, after the parent closed it.
    """


class ReentrantCall(StoreError):
    """The library was called by a signal handler or a finalizer while the same thread was at work in it.

    Nothing was changed, and the interrupted call goes on unharmed. Make the call later, or from another
    thread: a handler best sets a flag, or puts what is to be done on a queue.
    """


class OptionError(StoreError, ValueError):
    """An option or a name has a value that can never work.

    Raised before anything is touched. The message names the option, the value and what is allowed.
    """


class CorruptLog(StoreError):
    """Bytes that the log needs are damaged or gone: not a torn tail, which is cut silently and safely.

    Raised by opening, and by a read that meets the damage first. Nothing was repaired or dropped. See
    the extent with ``logstore verify``, then restore a backup or copy what is readable elsewhere.
    """

    def __init__(self, reason: str, *, segment: str, offset: int, lsn: int) -> None:
        where = (
            f"the log is damaged in segment {segment} at offset {offset} (LSN {lsn})" if segment else "no log to open"
        )
        super().__init__(
            f"{where}: {reason}; nothing was changed: run 'logstore verify' to see the extent, then restore a backup"
        )
        self.reason = reason
        """What is wrong with the bytes, and what is affected."""
        self.segment = segment
        """The file's name within the store directory; empty where it is not one segment that is damaged."""
        self.offset = offset
        """Bytes from the start of the file to the damage."""
        self.lsn = lsn
        """The log position of the damage."""

    def __reduce__(self) -> tuple[object, ...]:
        return _corrupt_log, (self.reason, self.segment, self.offset, self.lsn)


def _corrupt_log(reason: str, segment: str, offset: int, lsn: int) -> CorruptLog:
    return CorruptLog(reason, segment=segment, offset=offset, lsn=lsn)


class VersionError(StoreError):
    """The store or its catalog was written by a newer logstore, in a format that this one does not know.

    Nothing was changed. Use that version, or a later one.
    """


# ---- The catalog -----------------------------------------------------------------------------------------


class CatalogError(StoreError):
    """The catalog refused a change, or could not make it.

    Raised when a name or a reference stands against it (the message says which), and when the database
    failed in a way that waiting does not mend: a damaged file, a full disk, a missing privilege. The
    catalog is as before.
    """


class CatalogMismatch(CatalogError):
    """The catalog does not belong to this log: it is missing, empty, another store's, or older than the log.

    Raised on opening, before anything is changed. Put the right catalog back (log and catalog are backed up
    together), or name the right one with ``connect`` and ``catalog``.
    """


class CatalogOvertaken(CatalogError):
    """Another process has changed the catalog since this store was opened, and a catalog has one writer.

    No further change is made through this store. End the other process (a copy of the store directory,
    or a second store on the same schema), then close this store and open it again.
    """


class CatalogUnavailable(CatalogError):
    """The catalog cannot be reached at present: no server, no permission, a lock that stays.

    The same call can succeed later. If the connection broke during a change, whether it was made is
    decided the next time the catalog is reached; every change may safely be repeated.
    """


# ---- Queues, exchanges and messages ----------------------------------------------------------------------


class UnknownMessage(StoreError):
    """No message has this id: it was consumed or destroyed, or the id is of another store.

    Ids are never reused, so it will not come back. Go on with the next message.
    """


class UnknownQueue(StoreError):
    """No queue has this name or id. Declare it first."""


class UnknownExchange(StoreError):
    """No exchange has this name. Declare it first."""


class QueueExists(StoreError):
    """A queue of this name exists with other arguments or another dead-letter queue.

    Declare it as it is, take another name, or delete it first.
    """


class MessageLocked(StoreError):
    """A transaction that is not finished has taken this message from this queue.

    Wait for its outcome, or take another message.
    """


class MessageInUse(StoreError):
    """The message cannot be destroyed: it has a place on a queue, or a transaction still works on it.

    Dequeue it everywhere; with its last place the message goes by itself.
    """


class AlreadyEnqueued(StoreError):
    """The message is on this queue already, and a message is on a queue at most once.

    Dequeue it first, or publish the content as a message of its own.
    """


class NotEnqueued(StoreError):
    """The message exists, but is not on this queue, or no longer.

    Raised by a second dequeue of the same place, among others. What was asked for holds already: go on.
    """


# ---- Transactions ----------------------------------------------------------------------------------------


class TransactionError(StoreError):
    """A transaction was used in a way that cannot work, such as in a store that it does not belong to.

    Begin one with the store whose messages it is to change.
    """


class UnknownXid(TransactionError):
    """No transaction with this xid is open or in doubt: it is finished, or was never here.

    ``in_doubt()`` lists those that wait for an outcome.
    """


class DuplicateXid(TransactionError):
    """A transaction with this xid is open or prepared. Finish that one, or take another xid."""


class TransactionEnded(TransactionError):
    """The transaction has its outcome already; nothing can be added to it or asked of it. Begin a new one."""


class WrongState(TransactionError):
    """The transaction is alive, but not in the state that this step needs.

    Such as work after ``end``, or ``prepare`` on a local transaction. The message names both states.
    """


# ---- Durability ------------------------------------------------------------------------------------------


class OutcomeUnknown(StoreError):
    """A write or sync failed, and whether this operation survives is not known until the store is opened
    again.

    Raised to whoever was waiting when the store was poisoned, and ever after by ``force`` and ``durable``
    above ``durable_lsn``. Treat it as neither done nor undone: open the store again and look.
    """
