"""The expected contents of a store, as plain dicts, and the states that a power cut may leave.

The log is a sequence of operations, so a crash leaves a prefix of it: at least all durable operations, at most all that
were appended. The reopened store must have one of these states, and keeps it. The catalog is durable at once, so the
existence of queues does not depend on the log.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

Times = tuple[int, int]  # not before, and expires: µs since 1970, 0: none
NO_TIMES: Final = (0, 0)
ENQUEUE: Final = "enqueue"
DEQUEUE: Final = "dequeue"


@dataclass
class Message:
    content: bytes
    header: bytes
    staged: bool  # never visible on a queue yet
    published: bool  # by a publish: it goes with a rollback


@dataclass
class Place:
    key: int
    order_lsn: int  # offered to consumers once durable beyond it
    recovered: bool = False  # a crash came since it was made: a consumer may have had it
    note: bytes = b""
    header: bytes | None = None  # of its own
    times: Times = NO_TIMES


@dataclass
class Tx:
    xid: Any
    state: str = "active"
    work: list[tuple[str, int, int]] = field(default_factory=list)  # kind, message, queue
    times: dict[tuple[int, int], Times] = field(default_factory=dict)  # by message and queue, of its last enqueue there


class State:
    """Queues, messages and open transactions; `apply` is the semantics of every operation that succeeds."""

    def __init__(self) -> None:
        self.queues: dict[int, list[Place]] = {}
        self.messages: dict[int, Message] = {}
        self.txs: dict[int, Tx] = {}

    def copy(self) -> State:
        return copy.deepcopy(self)

    # ---- questions ----

    def work_on(self, key: int, queue: int | None = None) -> tuple[int, str] | None:
        """The last pending operation and its transaction."""
        found = None
        for tx_id, tx in self.txs.items():
            for kind, message, at in tx.work:
                if message == key and queue in (None, at):
                    found = (tx_id, kind)
        return found

    def places(self, key: int) -> list[int]:
        return [queue for queue, places in self.queues.items() if any(place.key == key for place in places)]

    def place(self, key: int, queue: int) -> Place:
        return next(place for place in self.queues[queue] if place.key == key)

    def locked(self, key: int, queue: int) -> bool:
        return queue in self.places(key) and self.work_on(key, queue) is not None

    def refusal(self, kind: str, key: int, queue: int, tx: int | None) -> str | None:
        """The error that this enqueue or dequeue must get."""
        if key not in self.messages:
            return "UnknownMessage"
        work, placed = self.work_on(key, queue), queue in self.places(key)
        mine = work is not None and work[0] == tx
        if kind == ENQUEUE:
            if work is not None and not mine:
                return "MessageLocked"
            there = work[1] == ENQUEUE if work is not None else placed
            return "AlreadyEnqueued" if there else None
        if work is not None and not mine and (placed or work[1] == DEQUEUE):
            return "MessageLocked"
        there = work[1] == ENQUEUE if work is not None and mine else placed
        return None if there else "NotEnqueued"

    # ---- operations ----

    def apply(self, name: str, *arguments: Any) -> None:
        getattr(self, f"_{name}")(*arguments)

    def _publish(
        self, key: int, content: bytes, header: bytes, queues: list[int], tx: int | None, times: Times = NO_TIMES
    ) -> None:
        self.messages[key] = Message(content, header, staged=True, published=True)
        self._enqueue(key, queues, tx, key, times)

    def _stage(self, key: int, content: bytes, header: bytes) -> None:
        self.messages[key] = Message(content, header, staged=True, published=False)

    def _append(self, key: int, data: bytes) -> None:
        self.messages[key].content += data

    def _enqueue(self, key: int, queues: list[int], tx: int | None, lsn: int, times: Times = NO_TIMES) -> None:
        if tx is not None:
            self.txs[tx].work += [(ENQUEUE, key, queue) for queue in queues]
            self.txs[tx].times |= {(key, queue): times for queue in queues}
            return
        self.messages[key].staged = False
        for queue in queues:
            self.queues[queue].append(Place(key, lsn, times=times))

    def _dequeue(self, key: int, queue: int, tx: int | None) -> None:
        if tx is not None:
            self.txs[tx].work.append((DEQUEUE, key, queue))
            return
        self._drop(key, queue)
        self._reap(key)

    def _annotate(self, key: int, queue: int, note: bytes) -> None:
        self.place(key, queue).note = note

    def _delay(self, key: int, queue: int, not_before: int) -> None:
        place = self.place(key, queue)
        place.times = (not_before, place.times[1])

    def _move(
        self,
        key: int,
        queue: int,
        to: int,
        lsn: int,
        note: bytes | None,
        header: bytes | None,
        times: Times = NO_TIMES,
    ) -> None:
        """None: what the place has is kept."""
        before = self.place(key, queue)
        self._drop(key, queue)
        made = Place(key, lsn, times=times)
        made.note = before.note if note is None else note
        made.header = before.header if header is None else header
        self.queues[to].append(made)

    def _destroy(self, key: int) -> None:
        del self.messages[key]

    def _begin(self, tx: int, xid: Any) -> None:
        self.txs[tx] = Tx(xid)

    def _state(self, tx: int, state: str) -> None:
        self.txs[tx].state = state

    def _commit(self, tx: int, lsn: int) -> None:
        for kind, key, queue in self.txs[tx].work:
            if kind == DEQUEUE:
                self._drop(key, queue)
                continue
            self.messages[key].staged = False
            if queue in self.queues:
                self.queues[queue].append(Place(key, lsn, times=self.txs[tx].times[key, queue]))
        self._end_of(tx)

    def _rollback(self, tx: int) -> None:
        self._end_of(tx)

    def _delete_queue(self, queue: int) -> None:
        for place in self.queues.pop(queue, []):
            self._reap(place.key)

    def _declare_queue(self, queue: int) -> None:
        self.queues.setdefault(queue, [])

    def _drop(self, key: int, queue: int) -> None:
        if queue in self.queues:
            self.queues[queue] = [place for place in self.queues[queue] if place.key != key]

    def _end_of(self, tx: int) -> None:
        for _, key, _ in self.txs.pop(tx).work:
            message = self.messages.get(key)
            if message is not None and self.work_on(key) is None and not self.places(key):
                message.staged = message.staged and not message.published
                self._reap(key)

    def _reap(self, key: int) -> None:
        message = self.messages.get(key)
        if message is not None and not message.staged and not self.places(key) and self.work_on(key) is None:
            del self.messages[key]

    # ---- opening again ----

    def recovered(self, queues: set[int], *, orderly: bool = False) -> State:
        """The state after an open, with the catalog's queues; ``orderly``: no crash came before it."""
        after = self.copy()
        for queue in [queue for queue in after.queues if queue not in queues]:
            after._delete_queue(queue)
        for queue in queues:
            after._declare_queue(queue)
        for tx_id in [tx_id for tx_id, known in after.txs.items() if known.state != "prepared"]:
            after._rollback(tx_id)
        for tx in after.txs.values():  # work on a deleted queue has no effect at any outcome
            tx.work = [work for work in tx.work if work[2] in after.queues]
        for key in list(after.messages):
            after._reap(key)
        for key in [key for key, m in after.messages.items() if m.staged and after.work_on(key) is None]:
            del after.messages[key]
        for places in after.queues.values():
            for place in places:
                place.order_lsn, place.recovered = 0, place.recovered or not orderly
        return after

    def shown(self, counts: dict[tuple[int, int], int]) -> dict[str, Any]:
        """The state as the public interface shows it, with the delivery counts by queue and message."""
        return {
            "queues": {
                queue: [
                    (
                        place.key,
                        self.messages[place.key].content,
                        self.messages[place.key].header if place.header is None else place.header,
                        place.note,
                        place.times,
                        self.locked(place.key, queue),
                        place.recovered or counts.get((queue, place.key), 0) > 0,
                    )
                    for place in places
                ]
                for queue, places in self.queues.items()
            },
            "in doubt": sorted((tx, known.xid) for tx, known in self.txs.items() if known.state == "prepared"),
            "messages": len(self.messages),
            "transactions": len(self.txs),
        }


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def as_us(moment: datetime | None) -> int:
    """µs since 1970; 0 for None."""
    return 0 if moment is None else (moment - _EPOCH) // timedelta(microseconds=1)


def as_time(us: int) -> datetime:
    """The reverse."""
    return _EPOCH + timedelta(microseconds=us)


def shown_by(store: Any) -> dict[str, Any]:
    """The same of a store."""
    stats = store.stats()
    return {
        "queues": {
            queue.id: [
                (
                    message.id,
                    message.content,
                    message.header,
                    message.note,
                    (as_us(message.not_before), as_us(message.expires)),
                    message.locked,
                    message.redelivered,
                )
                for message in store.messages(queue)
            ]
            for queue in store.queues()
        },
        "in doubt": sorted((transaction.id, transaction.xid) for transaction in store.in_doubt()),
        "messages": stats["messages"],
        "transactions": stats["transactions"],
    }
