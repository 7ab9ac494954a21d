"""Random logs with states of places, written record by record: for tests of code that turns logs into rows.

A log is determined by its seed, and every record keeps the rules of docs/format.md, section 7. A message is touched by
one transaction at a time. Nothing here opens a store.
"""

from __future__ import annotations

import random
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kit.written_log import SEGMENT, TIME_US, WrittenLog
from logstore.codec.placed import (
    MessageMove,
    MessagePlace,
    MessageRelocatedPlaced,
    MessageStartPlaced,
    PlacedPlace,
    PlacedWork,
    PlaceStates,
    StateBit,
    StateRow,
)
from logstore.codec.records import (
    Body,
    ChunkPlace,
    DequeueReason,
    Empty,
    InlineCopy,
    MessageChunk,
    MessageDequeue,
    MessageEnqueue,
    MessageRelocated,
    MessageStart,
    PendingKind,
    PendingWork,
    QueueDelete,
    QueuePlace,
    RecordFlag,
    RecordType,
    TxKind,
    TxRelocated,
    TxState,
    XidBody,
)

if TYPE_CHECKING:
    from pathlib import Path

COPY, PART, DELETES, PUBLISHED, STAGED, INLINE = (
    RecordFlag[name] for name in ("COPY", "PART", "DELETES", "PUBLISHED", "STAGED", "INLINE")
)


@dataclass
class Held:
    """A place; its header is None if it has none of its own."""

    order_lsn: int
    order_index: int
    time_us: int
    count: int = 0
    not_before: int = 0
    expires: int = 0
    note: bytes = b""
    header: bytes | None = None

    @property
    def stated(self) -> bool:
        return bool(self.count or self.not_before or self.expires or self.note or self.header is not None)

    def fields(self) -> dict[str, Any]:
        return {
            "delivery_count": self.count,
            "not_before_us": self.not_before,
            "expires_us": self.expires,
            "state_bits": 0 if self.header is None else StateBit.HAS_HEADER,
            "note": self.note,
            "header": self.header or b"",
        }


@dataclass
class Live:
    """A message that has not ended."""

    id: int
    header: bytes
    content: bytes
    published: bool
    start_lsn: int
    staged: bool = True
    places: dict[int, Held] = field(default_factory=dict)
    tx: int = 0
    seen: dict[int, Held] = field(default_factory=dict)  # the places as that transaction sees them
    work: list[PlacedWork] = field(default_factory=list)


class PlacedHistory:
    """Random work on a log. Without ``states`` it writes only records that a log without states has."""

    def __init__(self, path: Path, seed: int, *, states: bool = True) -> None:
        self.random = random.Random(seed)
        self.log = WrittenLog(path)
        self.states = states
        self.live: dict[int, Live] = {}
        self.open: dict[int, int] = {}  # transactions: the next order index
        self.distributed: dict[int, XidBody] = {}
        self.prepared: set[int] = set()
        self.queues = list(range(1, 7))
        self.deleted: set[int] = set()

    # ---- choices

    def held(self) -> dict[str, Any]:
        """A state, or none."""
        if not self.states:
            return {}
        some = self.random.random
        return {
            "count": self.random.choice([0, 1, 3, 70_000, 2**32 - 1]) if some() < 0.4 else 0,
            "not_before": self.random.choice([1, TIME_US, 2**63 - 1]) if some() < 0.4 else 0,
            "expires": TIME_US + self.random.randrange(10**9) if some() < 0.4 else 0,
            "note": self.random.randbytes(self.random.choice([1, 7, 8, 255])) if some() < 0.5 else b"",
            "header": self.random.randbytes(self.random.choice([0, 1, 40])) if some() < 0.4 else None,
        }

    def transaction(self, message: Live | None = None) -> int | None:
        """The transaction for an operation on this message: 0 for none, None if it cannot be touched now."""
        if message is not None and message.tx:
            return message.tx if message.tx in self.open and message.tx not in self.prepared else None
        free = [tx for tx in self.open if tx not in self.prepared]
        return self.random.choice(free) if free and self.random.random() < 0.35 else 0

    def pick(self) -> Live | None:
        return self.random.choice(list(self.live.values())[-40:]) if self.live else None

    def places_of(self, message: Live, tx: int) -> dict[int, Held]:
        """The places that an operation sees; those of a transaction are its own from now on."""
        if not tx:
            return message.places
        if not message.tx:
            message.tx, message.seen = tx, deepcopy(message.places)
        return message.seen

    def now(self) -> int:
        return TIME_US + 1000 * self.log.batches

    def enqueue(self, message: Live, lsn: int, tx: int, queues: list[int], held: dict[str, Any]) -> int:
        """The operations' effect on this message; returns the first order index."""
        first = self.open.get(tx, 0) if tx else 0
        places = self.places_of(message, tx)
        for number, queue in enumerate(queues):
            places[queue] = Held(lsn, first + number if tx else 0, self.now(), **held)
            if tx:
                message.work.append(
                    PlacedWork(
                        tx, lsn, queue, PendingKind.ENQUEUE, order_index=first + number, **places[queue].fields()
                    )
                )
        if tx:
            self.open[tx] += len(queues)
        else:
            message.staged = False
        return first

    def over(self, message: Live) -> bool:
        return not message.staged and not message.places and not message.work

    # ---- messages

    def publish(self) -> None:
        tx = self.transaction() or 0
        queues = self.random.sample(self.queues, self.random.choice([1, 1, 1, 2, 3]))
        header, content = self.random.randbytes(self.random.choice([0, 5])), self.random.randbytes(20)
        flags = PUBLISHED if self.random.random() < 0.8 else RecordFlag(0)
        held = self.held()
        held = {name: held[name] for name in ("not_before", "expires", "note")} if held else {}
        index = self.open.get(tx, 0) if tx else 0
        if any(held.values()):
            body: Body = MessageStartPlaced(
                tx, tuple(queues), header, content, index, held["not_before"], held["expires"], held["note"]
            )
            lsn = self.log.add(RecordType.MESSAGE_START_PLACED, body, -1, flags)
        else:
            lsn = self.log.add(
                RecordType.MESSAGE_START, MessageStart(tx, tuple(queues), header, content, index), -1, flags
            )
        message = self.live[lsn] = Live(lsn, header, content, PUBLISHED in flags, lsn)
        self.enqueue(message, lsn, tx, queues, held)

    def stage(self) -> None:
        lsn = self.log.add(RecordType.MESSAGE_START, MessageStart(0, (), b"h", b"draft", 0), -1)
        self.live[lsn] = Live(lsn, b"h", b"draft", False, lsn)

    def enqueue_more(self) -> None:
        message = self.pick()
        tx = None if message is None else self.transaction(message)
        if message is None or tx is None:
            return
        free = [queue for queue in self.queues if queue not in self.places_of(message, tx)]
        queues = self.random.sample(free, min(len(free), self.random.choice([1, 2])))
        if queues:
            index = self.open.get(tx, 0) if tx else 0
            lsn = self.log.add(RecordType.MESSAGE_ENQUEUE, MessageEnqueue(tx, tuple(queues), index), message.id)
            self.enqueue(message, lsn, tx, queues, {})

    def dequeue(self) -> None:
        message = self.pick()
        tx = None if message is None else self.transaction(message)
        if message is None or tx is None or not self.places_of(message, tx):
            return
        queue = self.random.choice(list(self.places_of(message, tx)))
        del self.places_of(message, tx)[queue]
        told, reason = self.random.choice([0, 1, 2]), self.random.choice(list(DequeueReason)[:6])
        ends = not tx and self.over(message)
        body = MessageDequeue(tx, queue, told, reason)
        lsn = self.log.add(RecordType.MESSAGE_DEQUEUE, body, message.id, DELETES if ends else 0)
        if tx:
            message.work.append(PlacedWork(tx, lsn, queue, PendingKind.DEQUEUE))
        elif ends:
            del self.live[message.id]

    def note(self) -> None:
        message = self.pick()
        tx = None if message is None else self.transaction(message)
        if message is None or tx is None or not self.places_of(message, tx):
            return
        queue = self.random.choice(list(self.places_of(message, tx)))
        note = self.random.randbytes(self.random.choice([0, 1, 16, 255]))
        self.places_of(message, tx)[queue].note = note
        lsn = self.log.add(RecordType.MESSAGE_PLACE, MessagePlace(tx, queue, note), message.id)
        if tx:
            message.work.append(PlacedWork(tx, lsn, queue, PendingKind.NOTE, note=note))

    def move(self) -> None:
        message = self.pick()
        tx = None if message is None else self.transaction(message)
        if message is None or tx is None:
            return
        places = self.places_of(message, tx)
        source = self.random.choice(list(places)) if places and self.random.random() < 0.85 else 0
        free = [queue for queue in self.queues if queue not in places or queue == source]
        if not free:
            return
        queue, held = self.random.choice(free), self.held()
        bits = 0
        if source and self.random.random() < 0.5:
            bits |= StateBit.KEEPS_HEADER
            held["header"] = None
        if source and self.random.random() < 0.5:
            bits |= StateBit.KEEPS_NOTE
            held["note"] = b""
        bits |= 0 if held["header"] is None else StateBit.HAS_HEADER
        body = MessageMove(
            tx,
            source,
            queue,
            self.open.get(tx, 0) if tx else 0,
            held["count"],
            held["not_before"],
            held["expires"],
            self.random.choice(list(DequeueReason)[:6]) if source else DequeueReason.NOT_TOLD,
            bits,
            held["note"],
            held["header"] or b"",
        )
        lsn = self.log.add(RecordType.MESSAGE_MOVE, body, message.id)
        if source:
            ended = places.pop(source)
            held["header"] = ended.header if bits & StateBit.KEEPS_HEADER else held["header"]
            held["note"] = ended.note if bits & StateBit.KEEPS_NOTE else held["note"]
            if tx:
                message.work.append(PlacedWork(tx, lsn, source, PendingKind.DEQUEUE))
        self.enqueue(message, lsn, tx, [queue], held)

    def place_states(self) -> None:
        every = [(message, queue) for message in self.live.values() for queue in message.places]
        chosen = self.random.choices(every, k=self.random.randint(1, 4)) if every else []
        rows = []
        for message, queue in chosen:
            held = self.held()
            for places in [message.places, message.seen] if message.tx else [message.places]:
                place = places.get(queue)
                if place is not None and place.order_lsn == message.places[queue].order_lsn:
                    place.count, place.not_before, place.expires = held["count"], held["not_before"], held["expires"]
            rows.append(StateRow(message.id, held["not_before"], held["expires"], queue, held["count"]))
        if self.log.base_lsn > SEGMENT and self.random.random() < 0.3:
            rows.append(StateRow(SEGMENT + 4096, 5, 6, 1, 7))  # of a message that ended below the base
        if rows:
            self.log.add(RecordType.PLACE_STATES, PlaceStates(tuple(rows)))

    # ---- transactions

    def begin(self) -> None:
        if len(self.open) >= 4:
            return
        if self.random.random() < 0.5:
            xid = XidBody(1, self.random.randbytes(4), b"b")
            lsn = self.log.add(RecordType.DTX_START, xid, -1)
            self.distributed[lsn] = xid
        else:
            lsn = self.log.add(RecordType.TX_START, Empty(), -1)
        self.open[lsn] = 0

    def settle(self) -> None:
        if not self.open:
            return
        tx = self.random.choice(list(self.open))
        if tx in self.distributed and tx not in self.prepared and self.random.random() < 0.5:
            self.log.add(RecordType.TX_END, Empty(), tx)
            self.log.add(RecordType.TX_PREPARE, self.distributed[tx], tx)
            self.prepared.add(tx)
            return
        self.decide(tx, commits=self.random.random() < 0.65)

    def decide(self, tx: int, *, commits: bool, by_open: bool = False) -> None:
        kind = RecordType.TX_COMMIT if commits else RecordType.TX_ROLLBACK
        lsn = self.log.add(kind, Empty(), tx)
        del self.open[tx]
        for message in list(self.live.values()):
            if message.tx != tx:
                continue
            if commits:
                if any(work.kind is PendingKind.ENQUEUE for work in message.work):
                    message.staged = False
                for queue, place in message.seen.items():
                    if any((work.lsn, work.queue_id) == (place.order_lsn, queue) for work in message.work):
                        place.order_lsn, place.time_us = lsn, self.now()
                message.places = {queue: one for queue, one in message.seen.items() if queue not in self.deleted}
            message.tx, message.seen, message.work = 0, {}, []
            never = message.staged and (message.published or by_open)
            if self.over(message) or never:
                del self.live[message.id]

    # ---- the log itself

    def delete_queue(self) -> None:
        if len(self.queues) < 4:
            return
        queue = self.queues.pop(self.random.randrange(len(self.queues)))
        self.deleted.add(queue)
        self.log.add(RecordType.QUEUE_DELETE, QueueDelete(queue))
        for message in list(self.live.values()):
            message.places.pop(queue, None)
            message.seen.pop(queue, None)
            if self.over(message):
                del self.live[message.id]

    def relocate(self, message: Live, *, long: bool) -> None:
        """A copy of the message's whole state; of pending work, what is on queues that are left."""
        log, flags = self.log, PUBLISHED if message.published else RecordFlag(0)
        work = [one for one in message.work if one.queue_id not in self.deleted]
        stated = any(place.stated for place in message.places.values()) or any(
            one.kind is PendingKind.NOTE or one.note or one.state_bits or one.delivery_count for one in work
        )
        stated = stated or any(one.not_before_us or one.expires_us for one in work)
        plain = all((one.order_lsn, one.order_index) == (message.id, 0) for one in message.places.values())
        if not stated and not work and message.places and plain and not message.staged:
            body: Body = InlineCopy(
                next(iter(message.places.values())).time_us, tuple(message.places), message.header, message.content
            )
            log.add(RecordType.MESSAGE_START, body, message.id, flags | COPY | INLINE)
            return
        if not message.places and not work and not message.staged:
            return
        content = message.content if not long else message.content[:1]
        start = log.add(
            RecordType.MESSAGE_START, MessageStart(0, (), message.header, content, 0), message.id, flags | COPY
        )
        chunks: tuple[ChunkPlace, ...] = ()
        if long:
            chunk = log.add(RecordType.MESSAGE_CHUNK, MessageChunk(1, message.content[1:]), message.id, COPY)
            chunks = (ChunkPlace(chunk, 1, len(message.content) - 1),)
        places = list(message.places.items())
        cut = self.random.randint(0, len(places)) if self.random.random() < 0.5 else len(places)
        mark = STAGED if message.staged else RecordFlag(0)
        parts: list[tuple[list[Any], list[Any]]] = [(places[:cut], []), (places[cut:], work)]
        parts = [(places, work)] if cut == len(places) and self.random.random() < 0.5 else parts
        for number, (some, ops) in enumerate(parts):
            last = number == len(parts) - 1
            if stated:
                rows = tuple(
                    PlacedPlace(one.order_lsn, one.time_us, queue, one.order_index, **one.fields())
                    for queue, one in some
                )
                body = MessageRelocatedPlaced(len(message.content), start, number, chunks, rows, tuple(ops))
                kind = RecordType.MESSAGE_RELOCATED_PLACED
            else:
                plain_rows = tuple(
                    QueuePlace(one.order_lsn, one.time_us, queue, one.order_index, 0) for queue, one in some
                )
                plain_work = tuple(
                    PendingWork(one.tx_id, one.lsn, one.queue_id, one.kind, one.order_index) for one in ops
                )
                body = MessageRelocated(len(message.content), start, number, chunks, plain_rows, plain_work)
                kind = RecordType.MESSAGE_RELOCATED
            chunks = ()
            log.add(kind, body, message.id, mark | (RecordFlag(0) if last else PART))

    def move_some(self) -> None:
        for message in self.random.sample(list(self.live.values()), min(3, len(self.live))):
            self.relocate(message, long=self.random.random() < 0.3)

    def recycle(self) -> None:
        """Everything that lives goes to a new segment; the ones before are gone."""
        self.log.new_segment()
        border = self.log.first_lsn
        for tx in self.open:
            xid = self.distributed.get(tx, XidBody(0, b"", b""))
            state = TxState.PREPARED if tx in self.prepared else TxState.ACTIVE
            kind = TxKind.DISTRIBUTED if tx in self.distributed else TxKind.LOCAL
            times = TIME_US, TIME_US if tx in self.prepared else 0
            body = TxRelocated(xid.format_id, xid.gtrid, xid.bqual, kind, state, *times)
            self.log.add(RecordType.TX_RELOCATED, body, tx)
        for message in self.live.values():
            self.relocate(message, long=False)
        self.log.add(RecordType.QUEUE_DELETE, QueueDelete(7))
        self.log.drop_below(border)

    def reopen(self) -> None:
        """An open rolls back what is neither decided nor prepared, and drops staged messages."""
        self.log.new_epoch()
        for message in list(self.live.values()):
            if message.staged and not message.work:
                del self.live[message.id]
        for tx in list(self.open):
            if tx not in self.prepared:
                self.decide(tx, commits=False, by_open=True)

    def run(self, steps: int, *, recycles: bool = True) -> None:
        acts = [self.publish] * 5 + [self.dequeue] * 4 + [self.stage, self.enqueue_more, self.begin, self.settle]
        acts += [self.settle, self.move_some]
        if self.states:
            acts += [self.note, self.move, self.move, self.place_states] * 2
        for step in range(steps):
            self.random.choice(acts)()
            if self.random.random() < 0.3:
                self.log.end_batch()
            if step in (steps // 3, 2 * steps // 3):
                self.delete_queue()
            if step == steps // 2:
                self.reopen()
            if recycles and step == 2 * steps // 5:
                self.recycle()
        self.log.end_batch()


def make_placed_log(path: Path, seed: int, *, steps: int = 400, states: bool = True, recycles: bool = True) -> None:
    """A log at ``path`` with a random history."""
    PlacedHistory(path, seed, states=states).run(steps, recycles=recycles)
