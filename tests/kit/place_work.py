"""Replays a hand-made log with states of places, and works on one at random beside a simple model of it.

The model is plain data and knows nothing of the interpreter: tests compare the two.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from kit.moving_log import BASE, DELETES, OLD, PART, PUBLISHED, STAGED, MovingLog
from logstore.codec.records import (
    Empty,
    MessageMove,
    MessagePlace,
    MessageRelocated,
    MessageRelocatedPlaced,
    MessageStartPlaced,
    PendingKind,
    PendingWork,
    PlacedPlace,
    PlacedWork,
    PlaceStates,
    QueuePlace,
    RecordFlag,
    RecordType,
    StateRow,
    TxState,
    XidBody,
)
from logstore.salvage.lenient import LenientReplay

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable

    from logstore.codec.records import Record
    from logstore.codec.scan import Damaged, Gap
    from logstore.codec.state import Message, PlaceState
    from logstore.salvage.state import State

HAS_HEADER, KEEPS_HEADER, KEEPS_NOTE = 1, 2, 4
HELLO = b"hello"


class PlacedLog(MovingLog):
    """A log with relocations and with states of places."""

    def start_placed(self, *queues: int, tx: int = 0, before: int = 0, expires: int = 0, note: bytes = b"") -> int:
        body = MessageStartPlaced(tx, queues, b"h", HELLO, self.number(tx, queues), before, expires, note)
        return self.add(RecordType.MESSAGE_START_PLACED, body, -1, PUBLISHED)

    def note(self, message: int, queue: int, note: bytes, tx: int = 0) -> int:
        return self.add(RecordType.MESSAGE_PLACE, MessagePlace(tx, queue, note), message)

    def move(self, message: int, left: int, queue: int, tx: int = 0, **state: Any) -> int:
        """``state`` has fields of a move; a header given here is the place's own."""
        bits = state.pop("bits", 0) | (HAS_HEADER if "header" in state else 0)
        body = MessageMove(tx, left, queue, self.number(tx, (queue,)), state_bits=bits, **state)
        return self.add(RecordType.MESSAGE_MOVE, body, message)

    def states(self, *rows: tuple[int, int, int, int, int]) -> int:
        """Rows of message, queue, count and the two times."""
        body = tuple(StateRow(one, before, until, queue, count) for one, queue, count, before, until in rows)
        return self.add(RecordType.PLACE_STATES, PlaceStates(body), prev=0)

    def placed_state(
        self,
        message: int,
        start: int,
        *places: PlacedPlace,
        pending: tuple[PlacedWork, ...] = (),
        part: int = 0,
        flags: int = 0,
        size: int = len(HELLO),
    ) -> int:
        body = MessageRelocatedPlaced(size, start, part, (), places, pending)
        return self.add(RecordType.MESSAGE_RELOCATED_PLACED, body, message, flags)

    def depths(self) -> dict[int, tuple[int, int]]:
        """Depth and locked places of every queue with places."""
        return self.finish()[0]

    def prepare(self, tx: int, xid: bytes) -> int:
        return self.add(RecordType.TX_PREPARE, XidBody(1, xid, b""), tx)

    def state_of(self, message: int, queue: int) -> PlaceState | None:
        """The state of a place that is there."""
        place = self.replay.messages[message].place(queue)
        assert place is not None
        return place.state


def placed(queue: int, count: int = 0, note: bytes = b"", header: bytes | None = None, expires: int = 0) -> PlacedPlace:
    """A row of a relocated state."""
    bits = 0 if header is None else HAS_HEADER
    return PlacedPlace(OLD, 0, queue, 0, count, 0, expires, bits, note, header or b"")


# ---- The model


class Told(NamedTuple):
    """What a place remembers."""

    count: int = 0
    before: int = 0
    expires: int = 0
    note: bytes = b""
    header: bytes | None = None


NONE = Told()


class Spot(NamedTuple):
    """A place in the model."""

    order_lsn: int
    order_index: int
    state: Told


class Step(NamedTuple):
    """Pending work in the model."""

    tx: int
    lsn: int
    kind: PendingKind
    queue: int
    order_index: int
    state: Told


@dataclass
class Known:
    """A message in the model."""

    places: dict[int, Spot] = field(default_factory=dict)
    work: list[Step] = field(default_factory=list)
    staged: bool = True
    published: bool = False
    size: int = len(HELLO)

    def seen_by(self, tx: int) -> dict[int, Told]:
        """The states of the places as the transaction has them; 0: as they are."""
        found = {queue: spot.state for queue, spot in self.places.items()}
        for step in self.work:
            if step.tx == tx:
                apply(found, step)
        return found

    def locked_for(self, tx: int) -> set[int]:
        return {step.queue for step in self.work if step.tx != tx}


def apply(found: dict[int, Told], step: Step) -> None:
    if step.kind is PendingKind.DEQUEUE:
        found.pop(step.queue, None)
    elif step.kind is PendingKind.ENQUEUE:
        found[step.queue] = step.state
    elif step.queue in found:
        found[step.queue] = found[step.queue]._replace(note=step.state.note)


class Worker:
    """Works at random, and keeps the model."""

    QUEUES = 1, 2, 3, 4, 5

    def __init__(self, chance: random.Random, base_lsn: int = BASE) -> None:
        self.chance = chance
        self.log = PlacedLog(base_lsn)
        self.messages: dict[int, Known] = {}
        self.transactions: dict[int, bytes] = {}  # open ones, with their xids
        self.prepared: set[int] = set()
        self.deleted: set[int] = set()
        self.done: defaultdict[str, int] = defaultdict(int)  # by operation

    def step(self) -> None:
        tx = self.chance.choice([0, 0, *self.transactions.keys() - self.prepared])
        todo = self.chance.choice(
            (
                *(self.publish, self.publish_placed, self.stage, self.enqueue, self.dequeue),
                *(self.note, self.note, self.move, self.move, self.move, self.states, self.begin, self.settle),
            )
        )
        if self.chance.random() < 0.01 and len(self.deleted) < 2:
            todo = self.delete_queue
        if todo(tx):
            self.done[f"{todo.__name__}{' in a transaction' if tx else ''}"] += 1

    # ---- Choices

    def queues(self) -> list[int]:
        return [queue for queue in self.QUEUES if queue not in self.deleted]

    def time(self) -> int:
        return self.chance.choice((0, 0, 1, 1 << 50, (1 << 63) - 1))

    def bytes_of_note(self) -> bytes:
        return self.chance.choice((b"", b"n", b"a note", bytes(range(255))))

    def place(self, tx: int) -> tuple[int, Known, int] | None:
        """A message, and a queue on which it is for the transaction, and no other one works on it."""
        found = [
            (one, known, queue)
            for one, known in self.messages.items()
            for queue in known.seen_by(tx).keys() - known.locked_for(tx) - self.deleted
        ]
        return self.chance.choice(sorted(found, key=lambda row: (row[0], row[2]))) if found else None

    def free(self, known: Known, tx: int, left: int = 0) -> list[int]:
        """The queues on which the message can get a place."""
        there = known.seen_by(tx).keys() | (known.places.keys() if tx == 0 else set()) - {left}
        there |= known.locked_for(tx)
        return [queue for queue in self.queues() if queue == left or queue not in there - {left}]

    # ---- Operations

    def put(self, message: int, tx: int, lsn: int, first: int, queues: list[int], state: Told) -> None:
        known = self.messages[message]
        for order_index, queue in enumerate(queues, first):
            if tx:
                known.work.append(Step(tx, lsn, PendingKind.ENQUEUE, queue, order_index, state))
            else:
                known.places[queue] = Spot(lsn, 0, state)
                known.staged = False

    def publish(self, tx: int) -> bool:
        queues, first = self.chance.sample(self.queues(), self.chance.randint(1, 2)), self.log.enqueues[tx]
        message = self.log.publish(*queues, tx=tx)
        self.messages[message] = Known(published=True)
        self.put(message, tx, message, first, queues, NONE)
        return True

    def publish_placed(self, tx: int) -> bool:
        queues, first = self.chance.sample(self.queues(), self.chance.randint(1, 2)), self.log.enqueues[tx]
        state = Told(0, self.time(), self.time(), self.bytes_of_note())
        if state == NONE:
            return False
        message = self.log.start_placed(*queues, tx=tx, before=state.before, expires=state.expires, note=state.note)
        self.messages[message] = Known(published=True)
        self.put(message, tx, message, first, queues, state)
        return True

    def stage(self, _tx: int) -> bool:
        self.messages[self.log.stage()] = Known(size=0)
        return True

    def enqueue(self, tx: int) -> bool:
        if not self.messages:
            return False
        message = self.chance.choice(list(self.messages))
        queues, first = self.free(self.messages[message], tx)[:2], self.log.enqueues[tx]
        if queues:
            self.put(message, tx, self.log.enqueue(message, *queues, tx=tx), first, queues, NONE)
        return bool(queues)

    def dequeue(self, tx: int) -> bool:
        found = self.place(tx)
        if found is None:
            return False
        message, known, queue = found
        if tx:
            known.work.append(Step(tx, self.log.dequeue(message, queue, tx=tx), PendingKind.DEQUEUE, queue, 0, NONE))
            return True
        del known.places[queue]
        alone = not known.places and not known.work
        self.log.dequeue(message, queue, flags=DELETES if alone else 0)
        if alone:
            del self.messages[message]
        return True

    def note(self, tx: int) -> bool:
        found = self.place(tx)
        if found is None:
            return False
        message, known, queue = found
        note = self.bytes_of_note()
        lsn = self.log.note(message, queue, note, tx)
        if tx:
            known.work.append(Step(tx, lsn, PendingKind.NOTE, queue, 0, Told(note=note)))
        else:
            spot = known.places[queue]
            known.places[queue] = spot._replace(state=spot.state._replace(note=note))
        return True

    def move(self, tx: int) -> bool:
        if self.messages and self.chance.random() < 0.2:
            message = self.chance.choice(list(self.messages))
            known, left = self.messages[message], 0
        else:
            found = self.place(tx)
            if found is None:
                return False
            message, known, left = found
        targets = self.free(known, tx, left)
        if not targets:
            return False
        queue, ended = self.chance.choice(targets), known.seen_by(tx).get(left, NONE)
        state = Told(self.chance.choice((0, 1, 2**32 - 1)), self.time(), self.time())
        told: dict[str, Any] = {}
        bits = self.chance.choice((0, KEEPS_HEADER, KEEPS_NOTE, KEEPS_HEADER | KEEPS_NOTE)) if left else 0
        if bits & KEEPS_HEADER:
            state = state._replace(header=ended.header)
        elif self.chance.random() < 0.5:
            told["header"] = self.chance.choice((b"", b"its own"))
            state = state._replace(header=told["header"])
        if bits & KEEPS_NOTE:
            state = state._replace(note=ended.note)
        else:
            told["note"] = self.bytes_of_note()
            state = state._replace(note=told["note"])
        first = self.log.enqueues[tx]
        lsn = self.log.move(
            message, left, queue, tx, bits=bits, delivery_count=state.count,
            not_before_us=state.before, expires_us=state.expires, **told,
        )  # fmt: skip
        if tx and left:
            known.work.append(Step(tx, lsn, PendingKind.DEQUEUE, left, 0, NONE))
        elif left:
            del known.places[left]
        self.put(message, tx, lsn, first, [queue], state)
        return True

    def states(self, _tx: int) -> bool:
        rows = []
        for _ in range(self.chance.randint(1, 3)):
            there = [
                (one, queue)
                for one, known in self.messages.items()
                for queue in known.places
                if queue not in self.deleted
            ]
            if not there:
                break
            message, queue = self.chance.choice(there)
            count, before, until = self.chance.choice((0, 3)), self.time(), self.time()
            rows.append((message, queue, count, before, until))
            spot = self.messages[message].places[queue]
            kept = spot.state._replace(count=count, before=before, expires=until)
            self.messages[message].places[queue] = spot._replace(state=kept)
        if rows:
            self.log.states(*rows)
        return bool(rows)

    # ---- Transactions and queues

    def begin(self, _tx: int) -> bool:
        if len(self.transactions) >= 3:
            return False
        xid = b"%d" % self.log.next_lsn
        self.transactions[self.log.begin(xid)] = xid
        return True

    def settle(self, _tx: int) -> bool:
        if not self.transactions:
            return False
        tx = self.chance.choice(list(self.transactions))
        if tx not in self.prepared and self.chance.random() < 0.4:
            self.log.step(tx, RecordType.TX_END)
            self.log.prepare(tx, self.transactions[tx])
            self.prepared.add(tx)
            return True
        commits = self.chance.random() < 0.7
        lsn = self.log.step(tx, RecordType.TX_COMMIT if commits else RecordType.TX_ROLLBACK)
        self.finish(tx, lsn if commits else 0)
        return True

    def finish(self, tx: int, commit_lsn: int) -> None:
        """The outcome of a transaction; a rollback has no LSN here."""
        del self.transactions[tx]
        self.prepared.discard(tx)
        for message, known in list(self.messages.items()):
            mine = [step for step in known.work if step.tx == tx]
            known.work = [step for step in known.work if step.tx != tx]
            if not mine:
                continue
            for step in mine if commit_lsn else ():
                states = {queue: spot.state for queue, spot in known.places.items()}
                apply(states, step)
                keys = {queue: spot[:2] for queue, spot in known.places.items()}
                if step.kind is PendingKind.ENQUEUE:
                    keys[step.queue] = commit_lsn, step.order_index
                    known.staged = False
                known.places = {
                    queue: Spot(*keys[queue], state) for queue, state in states.items() if queue not in self.deleted
                }
            known.staged = known.staged and not (known.published and not known.work and not known.places)
            self.bury(message)

    def bury(self, message: int) -> None:
        known = self.messages[message]
        if not known.places and not known.work and not known.staged:
            del self.messages[message]
            if self.chance.random() < 0.5:
                self.log.add(RecordType.MESSAGE_DELETE, Empty(), message)

    def delete_queue(self, _tx: int) -> bool:
        queue = self.chance.choice(self.queues())
        self.log.delete_queue(queue)
        self.deleted.add(queue)
        for message, known in list(self.messages.items()):
            if known.places.pop(queue, None) is not None:
                self.bury(message)
        return True

    def recover(self) -> None:
        """What an open does: no work without an outcome stays, unless it is prepared, and nothing staged."""
        for tx in self.transactions.keys() - self.prepared:
            self.finish(tx, 0)
        for message, known in list(self.messages.items()):
            known.work = [step for step in known.work if step.queue not in self.deleted]
            published = known.published and not known.work and not known.places
            known.staged = known.staged and not published
            if not known.places and not known.work:
                del self.messages[message]

    # ---- Relocations

    def relocate(self, message: int, *, last: bool = False) -> None:
        """``last``: the deletions of queues will lie below the base, so work on those queues is left out."""
        known, log = self.messages[message], self.log
        content, flags = HELLO[: known.size], PUBLISHED if known.published else RecordFlag(0)
        keys = {spot[:2] for spot in known.places.values()}
        has_states = any(spot.state != NONE for spot in known.places.values())
        if not has_states and not known.work and keys == {(message, 0)} and self.chance.random() < 0.7:
            log.inline(message, *known.places, content=content, flags=flags)
            return
        listed = 0 if last else self.chance.choice((0, 1))
        work = [step for step in known.work if listed or step.queue not in self.deleted]
        has_states = has_states or any(step.state != NONE or step.kind is PendingKind.NOTE for step in work)
        start = log.copy(message, content, flags=flags)
        staged = STAGED if known.staged else RecordFlag(0)
        if not has_states:
            places = tuple(QueuePlace(at.order_lsn, 0, queue, at.order_index, 0) for queue, at in known.places.items())
            body = MessageRelocated(len(content), start, 0, (), places, tuple(map(pending_work, work)))
            log.add(RecordType.MESSAGE_RELOCATED, body, message, staged)
            return
        rows = [placed_place(queue, spot) for queue, spot in known.places.items()]
        pending = tuple(map(placed_work, work))
        if self.chance.random() < 0.5:
            log.placed_state(message, start, *rows, pending=pending, flags=staged, size=len(content))
            return
        log.placed_state(message, start, *rows[:1], flags=PART, size=len(content))
        log.placed_state(message, start, *rows[1:], pending=pending[:1], part=1, flags=PART, size=len(content))
        log.placed_state(message, start, pending=pending[1:], part=2, flags=staged, size=len(content))

    def relocate_everything(self) -> None:
        for tx, xid in self.transactions.items():
            self.log.move_tx(tx, TxState.PREPARED if tx in self.prepared else TxState.ACTIVE, xid)
        for message in self.messages:
            self.relocate(message, last=True)

    # ---- Comparisons

    def told(self, *, keys: bool) -> dict[int, Any]:
        """The model as :func:`found` gives a replay."""
        return {
            message: (
                {queue: (spot if keys else spot.state) for queue, spot in known.places.items()},
                [step for step in known.work if step.queue not in self.deleted],
            )
            for message, known in self.messages.items()
        }


def placed_place(queue: int, spot: Spot) -> PlacedPlace:
    state = spot.state
    bits, header = (0, b"") if state.header is None else (HAS_HEADER, state.header)
    key = spot.order_lsn, 0, queue, spot.order_index
    return PlacedPlace(*key, state.count, state.before, state.expires, bits, state.note, header)


def pending_work(step: Step) -> PendingWork:
    return PendingWork(step.tx, step.lsn, step.queue, step.kind, step.order_index)


def placed_work(step: Step) -> PlacedWork:
    state = step.state
    bits, header = (0, b"") if state.header is None else (HAS_HEADER, state.header)
    times = state.count, state.before, state.expires
    return PlacedWork(step.tx, step.lsn, step.queue, step.kind, *times, bits, step.order_index, state.note, header)


def state_told(state: PlaceState | None) -> Told:
    if state is None:
        return NONE
    return Told(state.delivery_count, state.not_before_us, state.expires_us, state.note, state.header)


def lenient(items: Iterable[Record | Damaged | Gap], base_lsn: int) -> State:
    """What a salvage makes of these records, without a catalog."""
    replay = LenientReplay(base_lsn, 1 << 20)
    for item in items:
        replay.apply(item)
    return replay.finish(lambda _: False)


def found(messages: dict[int, Message], deleted: set[int], *, keys: bool) -> dict[int, Any]:
    """The messages of a replay that have not ended, without what is on deleted queues."""
    told: dict[int, Any] = {}
    for message_id, message in messages.items():
        places = {
            place.queue_id: Spot(place.order_lsn, place.order_index, state_told(place.state))
            if keys
            else state_told(place.state)
            for place in message.places
            if place.queue_id not in deleted
        }
        work = [
            Step(one.tx_id, one.lsn, one.kind, one.queue_id, one.order_index, state_told(one.state))
            for one in message.pending or ()
        ]
        if places or work or message.staged:
            told[message_id] = places, [step for step in work if step.queue not in deleted]
    return told
