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
    for transaction in store.in_doubt():
        if transaction.xid == xid:
            break
    else:
        raise unknown(xid)
    done = {"id": transaction.id, "operations": transaction.operations}
    try:
        (transaction.commit if outcome == "commit" else transaction.rollback)()
    except TransactionEnded as error:
        raise unknown(xid) from error
    return done


def unknown(xid: Xid) -> UnknownXid:
    """The error for an xid that no transaction in doubt has."""
    return UnknownXid(
        f"no transaction {xid} is in doubt: it has its outcome, or never existed in this store; 'logstore in-doubt DIR "
        "list' shows the transactions that wait for an outcome"
    )
