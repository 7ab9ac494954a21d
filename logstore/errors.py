"""Every exception that logstore raises on purpose, as one tree under :class:`StoreError`.

A message says what happened, where, and what to do next, in that order, so that it can be shown to an
operator unchanged. No exception here is raised for a defect of logstore itself: that is an
``AssertionError``, or another built-in exception.

All of these survive pickling with their attributes, so they can cross a process boundary.
"""

from __future__ import annotations

__all__ = [
    "StoreError",
    "NotAStore",
    "StoreLocked",
    "ReplicatedStore",
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
    "BatchRefused",
    "EngineRefused",
    "ClusterUnavailable",
    "NotLeader",
    "NoMajority",
    "NotEnqueued",
    "TransactionError",
    "UnknownXid",
    "DuplicateXid",
    "TransactionEnded",
    "TransactionLimit",
    "WrongState",
    "OutcomeUnknown",
]


class StoreError(Exception):
    """The root of the tree: something about the store, its files or its use went wrong.

    Raised itself where no narrower class fits, mostly when the operating system refuses an operation
    outside the log (no permission, no such directory); the ``OSError`` is then its cause.
    ``except StoreError`` catches everything that logstore raises on purpose.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message
        """What happened, where, and what to do next, in plain words."""


# ---- Opening a store, and the store as a whole -----------------------------------------------------------


class NotAStore(StoreError):
    """The directory holds something, but no store.

    Raised when a directory without a ``META`` file is opened or inspected, unless it is an unfinished
    creation. Nothing was written. Check the path; a new store needs an empty or absent directory.
    """


class StoreLocked(StoreError):
    """Another process, or another handle in this one, has the store open for writing.

    A store has one writer. Close the other one, or use the read-only commands, which work while it runs.
    """


class BatchRefused(StoreError):
    """A batch, a cut, a vote or a lead does not follow from what a member of a replicated store has.

    Nothing was written. The text names what was given and what the member has. Give it what follows from that.
    """


class EngineRefused(StoreError):
    """The consensus engine does not take this event now: it does not lead, or a change or a transfer is under way.

    Nothing was changed. Look at the engine's answer, and repeat the event when the state allows it.
    """


class ClusterUnavailable(StoreError):
    """The cluster was not built, because the source of libraft could not be had.

    Everything else of logstore works. Name the source with ``LOGSTORE_RAFT_SOURCE`` and install logstore again.
    """


class NotLeader(StoreError):
    """Another member leads the host: the text names it. Ask that one."""

    def __init__(self, message: str, member: int = 0) -> None:
        super().__init__(message)
        self.member = member
        """The id of the member that leads."""

    def __reduce__(self) -> tuple[object, ...]:
        return NotLeader, (self.message, self.member)


class NoMajority(StoreError):
    """The host has no leader: too few of its members reach each other. The text says for how long.

    Nothing is lost. Publishing goes on when a majority is back; ask again.
    """


class ReplicatedStore(StoreError):
    """The log is a copy of a replicated store, which only its member opens.

    The other copies count on it, so nothing was changed. Start the member; the read-only commands work on the copy.
    ``logstore cluster detach`` makes it a single store.
    """


class StoreFull(StoreError):
    """There is no room for new messages. Nothing that is stored was lost.

    Raised by operations that add to the log (publishing, staging, beginning a transaction) when the disk
    or ``max_log_bytes`` allows no further segment. Dequeues and outcomes still work: consume messages,
    free disk space or raise the limit, then try again.
    """


class StorePoisoned(StoreError):
    """An earlier write or sync failed, so the store refuses every further write.

    After such a failure the contents of the disk are unknown until the log is read again, so nothing is
    retried. Check the disk, close the store, and open it again: recovery finds out what survived.
    """


class StoreClosed(StoreError):
    """The store, or the handle, was closed before this call. Open the store again."""


class StoreForked(StoreError):
    """The store was opened by the parent of this process.

    A child process cannot use its parent's store. Open the store in the child, after the parent closed it.
    """


class ReentrantCall(StoreError):
    """A signal handler or a finalizer called the library while the same thread was inside it.

    Nothing was changed, and the interrupted call continues normally. Make the call later, or from another
    thread: a handler should set a flag, or put the work on a queue.
    """


class OptionError(StoreError, ValueError):
    """An option or a name has an invalid value.

    Raised before anything is changed. The message names the option, the value and the allowed values.
    """


class CorruptLog(StoreError):
    """Bytes that the log needs are damaged or missing. A torn tail is not damage; recovery cuts it off.

    Raised when the store is opened, and by a read that finds the damage. Nothing was repaired or dropped.
    ``logstore verify DIR`` shows the extent. Then restore a backup, or copy what is readable into a new
    store with ``logstore salvage DIR NEW``.
    """

    def __init__(self, reason: str, *, segment: str, offset: int, lsn: int) -> None:
        where = (
            f"the log is damaged in segment {segment} at offset {offset} (LSN {lsn})" if segment else "no log to open"
        )
        super().__init__(
            f"{where}: {reason}; nothing was changed: 'logstore verify DIR' shows the extent; then restore a backup, "
            "or copy what is readable with 'logstore salvage DIR NEW'"
        )
        self.reason = reason
        """The damage, in words, and the messages and transactions that it affects."""
        self.segment = segment
        """The file's name within the store directory; empty if the damage is not in one segment."""
        self.offset = offset
        """Bytes from the start of the file to the damage."""
        self.lsn = lsn
        """The log position of the damage."""

    def __reduce__(self) -> tuple[object, ...]:
        return _corrupt_log, (self.reason, self.segment, self.offset, self.lsn)


def _corrupt_log(reason: str, segment: str, offset: int, lsn: int) -> CorruptLog:
    return CorruptLog(reason, segment=segment, offset=offset, lsn=lsn)


class VersionError(StoreError):
    """The store or its catalog was written by a newer logstore, in a format that this version does not know.

    Nothing was changed. Use that version, or a later one.
    """


# ---- The catalog -----------------------------------------------------------------------------------------


class CatalogError(StoreError):
    """The catalog refused a change, or could not make it.

    Raised when a name or a reference conflicts with the change (the message says which), and when the
    database failed permanently: a damaged file, a full disk, a missing privilege. The catalog is
    unchanged.
    """

    is_full = False
    """Whether the cause is a full disk."""


class CatalogMismatch(CatalogError):
    """The catalog does not belong to this log: it is missing, empty, another store's, or older than the log.

    Raised when the store is opened, before anything is changed. Restore the matching catalog (log and
    catalog are backed up together), or name the right one with ``connect`` and ``catalog``.
    """


class CatalogOvertaken(CatalogError):
    """Another process has changed the catalog since this store was opened. A catalog has one writer.

    This store makes no further change to the catalog. Stop the other process (it uses a copy of the store
    directory, or the same schema), then close this store and open it again.
    """


class CatalogUnavailable(CatalogError):
    """The catalog cannot be reached now: no server, no permission, or a lock that is not released.

    The same call can succeed later. If the connection broke during a change, the next successful access
    finds out whether the change was made. Every change may safely be repeated.
    """


# ---- Queues, exchanges and messages ----------------------------------------------------------------------


class UnknownMessage(StoreError):
    """No message has this id: it was consumed or destroyed, or the id belongs to another store.

    Ids are never reused, so the message will not come back. Continue with the next message.
    """


class UnknownQueue(StoreError):
    """No queue has this name or id. Declare it first."""


class UnknownExchange(StoreError):
    """No exchange has this name. Declare it first."""


class QueueExists(StoreError):
    """A queue of this name exists with other arguments or another dead-letter queue.

    Declare it with the same arguments, use another name, or delete the queue first.
    """


class MessageLocked(StoreError):
    """An unfinished transaction has dequeued this message from this queue.

    Wait for the outcome of the transaction, or take another message.
    """


class MessageInUse(StoreError):
    """The message cannot be destroyed: it is on a queue, or an unfinished transaction has work on it.

    Dequeue it from every queue; the message is removed together with its last place.
    """


class AlreadyEnqueued(StoreError):
    """The message is on this queue already. A message is on a queue at most once.

    Dequeue it first, or publish the content as a new message.
    """


class NotEnqueued(StoreError):
    """The message exists, but it is not, or no longer, on this queue.

    A second dequeue of the same place raises it, for example. The message is already off the queue:
    continue.
    """


# ---- Transactions ----------------------------------------------------------------------------------------


class TransactionError(StoreError):
    """A transaction was used in a way that cannot work, for example with a store that did not begin it.

    Begin the transaction with the store whose messages it changes.
    """


class UnknownXid(TransactionError):
    """No transaction with this xid is open or in doubt: it is finished, or never existed in this store.

    ``in_doubt()`` lists the transactions that wait for an outcome.
    """


class DuplicateXid(TransactionError):
    """A transaction with this xid is open or prepared. Finish that one, or use another xid."""


class TransactionEnded(TransactionError):
    """The transaction already has its outcome and accepts no further operations. Begin a new one."""


class TransactionLimit(TransactionError):
    """A limit of transactions is reached: of those that are open or prepared, of the operations of one, or of the room.

    A full store has room of its own for transactions that take messages and put them on other queues; ``info`` prints
    it. What is beyond that is refused at the operation, never at ``prepare`` or ``commit``. Nothing was changed:
    commit what is open, take fewer messages in one transaction, or accept them without one.
    """


class WrongState(TransactionError):
    """The transaction is not finished, but it is not in the state that this step needs.

    Examples: work after ``end``, or ``prepare`` on a local transaction. The message names both states.
    """


# ---- Durability ------------------------------------------------------------------------------------------


class OutcomeUnknown(StoreError):
    """A write or sync failed. Whether this operation survives is unknown until the store is opened again.

    Raised in every call that was waiting when the write failed, and afterwards by ``force`` and
    ``durable`` for an LSN above ``durable_lsn``. Treat the operation as neither done nor undone: open the
    store again and check.
    """
