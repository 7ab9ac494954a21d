"""Gives a transaction in doubt the outcome that its coordinator did not give: by xid, in an open store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logstore.errors import OptionError, TransactionEnded, UnknownXid

if TYPE_CHECKING:
    from logstore.core.xid import Xid
    from logstore.store.message_store import MessageStore


def decide(store: MessageStore, xid: Xid, outcome: str) -> dict[str, Any]:
    """Commits or rolls back the prepared transaction of this xid, durably. Returns its ``id`` and ``operations``.

    Raises ``UnknownXid`` if no transaction with this xid is in doubt, or if another thread gave it an outcome first.
    """
    if outcome not in ("commit", "rollback"):
        raise OptionError(f'an outcome is "commit" or "rollback", not {outcome!r}')
    waiting = store.in_doubt()
    for transaction in waiting:
        if transaction.xid == xid:
            break
    else:
        raise unknown(xid, none_waits=not waiting)
    done = {"id": transaction.id, "operations": transaction.operations}
    try:
        (transaction.commit if outcome == "commit" else transaction.rollback)()
    except TransactionEnded as error:
        raise unknown(xid) from error
    return done


def unknown(xid: Xid | str, *, none_waits: bool = False) -> UnknownXid:
    """The error for an xid that no transaction in doubt has; ``none_waits``: there is no such transaction at all."""
    if none_waits:
        return UnknownXid(
            f"no transaction is in doubt in this store, so {xid} is not: it has its outcome, or never existed"
        )
    return UnknownXid(
        f"no transaction {xid} is in doubt: it has its outcome, or never existed in this store; 'logstore in-doubt DIR "
        "list' shows the transactions that wait for an outcome"
    )
