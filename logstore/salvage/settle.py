"""The end of a salvaging replay: sorts every message and transaction into kept, lost and doubtful.

Invariant: every message that the replay knows and that has not ended is in exactly one of ``messages``, ``found`` and
``lost``, or was no longer needed. A found message is also listed as lost, because its places are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from logstore.codec.records import PendingKind
from logstore.codec.state import START_UNKNOWN, Message, Transaction, Work
from logstore.salvage.state import CONTENT_IN_DOUBT, CONTENT_LOST, Doubtful, LostMessage, LostTransaction, State

if TYPE_CHECKING:
    from collections.abc import Callable

    from logstore.codec.records import XidBody
    from logstore.salvage.lenient import LenientReplay


def settle(replay: LenientReplay, is_gone: Callable[[int], bool]) -> State:
    """The state after a replay; ``is_gone`` returns whether the queue with this id was deleted."""
    state = State(
        messages={},
        found={},
        transactions={},
        lost=[],
        doubtful=[],
        lost_transactions=[],
        queue_id_max=replay.queue_id_max,
        staged_dropped=replay.staged_dropped,
        rolled_back=0,
        doubt_lsn=replay.last_gap_lsn,
        maybe_consumed=0,
        deletions=any(is_gone(queue_id) for queue_id in range(1, replay.queue_id_max + 1)),
    )
    open_xids: set[XidBody | None] = set()
    for transaction in sorted(replay.transactions.values(), key=lambda one: one.id, reverse=True):
        transaction.outcome_lost |= transaction.xid in open_xids  # an xid is reused only after the outcome
        open_xids |= {transaction.xid} - {None}
        _settle_transaction(replay, state, transaction)
    for message_id in sorted(replay.messages):
        _settle_message(replay, state, message_id, is_gone)
    for transaction in state.transactions.values():
        transaction.work = [
            work
            for work in transaction.work
            if work.message_id in state.messages and work in (state.messages[work.message_id].pending or ())
        ]
    return state


# ---- Transactions


def _settle_transaction(replay: LenientReplay, state: State, transaction: Transaction) -> None:
    lossy = replay.lossy_since(transaction.last_lsn) or transaction.outcome_lost
    if transaction.state != "prepared" and (transaction.doomed or not lossy) and _began(replay, transaction):
        state.rolled_back += 1
        replay.undo(transaction)
        return
    if transaction.state == "prepared" and transaction.xid is not None and not transaction.outcome_lost:
        state.transactions[transaction.id] = transaction
        if lossy:
            why = "it may have had an outcome, which is lost: it is in doubt again"
            state.lost_transactions.append(LostTransaction(transaction.id, transaction.xid, why, in_doubt=True))
        return
    why = "its outcome is lost" if lossy else "its beginning is lost, and with it what it was"
    if transaction.state == "prepared" and transaction.xid is None:
        why = "it is prepared, and its xid is lost"
    if transaction.work or transaction.state == "prepared":
        state.lost_transactions.append(LostTransaction(transaction.id, transaction.xid, why, in_doubt=False))
    for work in list(transaction.work):
        _keep(replay, transaction, work, why)


def _began(replay: LenientReplay, transaction: Transaction) -> bool:
    """Whether its start is known and nothing was lost before it."""
    return transaction.started or replay.first_loss_lsn is None


def _keep(replay: LenientReplay, transaction: Transaction, work: Work, why: str) -> None:
    """Applies the outcome that keeps the message: an enqueue is committed, a dequeue is rolled back."""
    message = replay.messages.get(work.message_id)
    if message is None:
        return
    if work.kind is PendingKind.ENQUEUE:
        message.doubt(work.lsn, f"transaction {transaction.id} enqueued it, and {why}: it may have been rolled back")
        replay.commit(work._replace(order_index=0) if work.lsn == work.message_id else work, work.lsn)
        if message.pending and work in message.pending:
            message.pending.remove(work)
            message.pending = message.pending or None
    else:
        did, then = "dequeued it", "it may have been consumed"
        if work.kind is PendingKind.NOTE:
            did, then = f"put a note on it on queue {work.queue_id}", "the note there may be an older one"
        message.doubt(work.lsn, f"transaction {transaction.id} {did}, and {why}: {then}")
        message.pending = [one for one in message.pending or () if one != work] or None


# ---- Messages


def _settle_message(replay: LenientReplay, state: State, message_id: int, is_gone: Callable[[int], bool]) -> None:
    message = replay.messages[message_id]
    had_places = bool(message.places)
    state.queues_gone |= {place.queue_id for place in message.places if is_gone(place.queue_id)}
    message.places = tuple(place for place in message.places if not is_gone(place.queue_id))
    message.pending = [work for work in message.pending or () if not is_gone(work.queue_id)] or None
    lost = message.lost or []
    if message.content_bytes is None or CONTENT_IN_DOUBT in lost or CONTENT_LOST in lost:
        if _was_an_orphan(replay, message_id):
            return
        if had_places and not message.places and not message.pending and message_id >= replay.base_lsn:
            state.dropped_in_doubt += 1  # every known queue of it was deleted
        else:
            _lose(replay, state, message_id, message, is_gone)
        return
    if message.places or message.pending:
        _keep_message(state, message_id, message, replay)
        return
    if lost or (message.doubts and not had_places):
        state.found[message_id] = message
        _lose(replay, state, message_id, message, is_gone)
    elif message.doubts:
        state.dropped_in_doubt += 1


def _keep_message(state: State, message_id: int, message: Message, replay: LenientReplay) -> None:
    state.messages[message_id] = message
    state.maybe_consumed += message.last_lsn < replay.last_gap_lsn
    for why in message.lost or ():
        state.doubtful.append(Doubtful(message_id, None, message.last_lsn, f"{why}: it may have had other places, too"))
    for doubt in message.doubts or ():
        state.doubtful.append(Doubtful(message_id, None, doubt.lsn, doubt.why))


def _was_an_orphan(replay: LenientReplay, message_id: int) -> bool:
    """Whether an unreadable message is an orphan, which every log has, and no loss."""
    first_loss, stray_lsn = replay.first_loss_lsn, replay.strays.get(message_id)
    return stray_lsn is not None and (first_loss is None or stray_lsn < first_loss)


def _was_live(
    replay: LenientReplay, state: State, message_id: int, message: Message, is_gone: Callable[[int], bool]
) -> bool:
    """Whether readable records prove that the message was live at the end of the log."""
    if replay.lossy_since(message.last_lsn) or replay.queue_doubt_lsn > message.last_lsn or message.doubts:
        return False
    return bool(message.places) or _was_published(replay, state, message_id, message, is_gone)


def _was_published(
    replay: LenientReplay, state: State, message_id: int, message: Message, is_gone: Callable[[int], bool]
) -> bool:
    """Whether a start record with only a valid header put the message on queues that exist.

    A start that a publish wrote, and that no record of the chain follows, has its enqueues inside. The exception is an
    unfinished publish of a message that does not fit one record: its start is about as long as a record can be.
    """
    length = replay.published_bytes.get(message_id)
    if length is None or length > replay.start_bytes_max or message.last_lsn != message_id or message.pending:
        return False
    if replay.transactional or replay.last_gap_lsn:
        return False
    return not (state.deletions or any(map(is_gone, replay.probable.get(message_id, ()))))


def _lose(
    replay: LenientReplay, state: State, message_id: int, message: Message, is_gone: Callable[[int], bool]
) -> None:
    why = list(message.lost or ())
    if message.content_bytes is None and not why:
        why.append(CONTENT_LOST)
    why += [doubt.why for doubt in message.doubts or ()]
    known = message.start_lsn != START_UNKNOWN and message.lost in (None, [CONTENT_LOST]) and not message.doubts
    lost_lsn = message_id if message_id in replay.probable and message_id >= replay.base_lsn else None
    state.lost.append(
        LostMessage(
            message_id,
            why,
            lsn=lost_lsn if lost_lsn is not None else min((one.lsn for one in message.doubts or ()), default=None),
            queues=[place.queue_id for place in message.places]
            or sorted({work.queue_id for work in message.pending or ()}),
            queues_probable=replay.probable.get(message_id, []) if not message.places else [],
            readable_bytes=message.readable_bytes,
            certain=_was_live(replay, state, message_id, message, is_gone),
            placed=bool(message.places),
            elsewhere=not known,
            kept=message_id in state.found,
        )
    )
