"""Random logs with relocations: replay gives the same state from every base that the relocations allow."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from kit.moving_log import DELETES, FIVE, PART, PUBLISHED, STAGED, MovingLog
from logstore.codec.records import ChunkPlace, Empty, PendingKind, PendingWork, RecordFlag, RecordType, TxState
from logstore.codec.strict import StrictReplay

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass
class Known:
    """The knowledge of a random log's writer about one message."""

    size: int
    places: set[int] = field(default_factory=set)
    work: list[PendingWork] = field(default_factory=list)
    staged: bool = True
    published: bool = False


class Writer:
    """Works at random, keeps its own account, and relocates from that."""

    QUEUES = 1, 2, 3, 4

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.log = MovingLog(4096)
        self.messages: dict[int, Known] = {}
        self.transactions: dict[int, bool] = {}  # True: prepared

    def step(self) -> None:
        work = self.random.choice(
            (
                *(self.publish, self.publish, self.stage, self.enqueue, self.enqueue, self.dequeue, self.dequeue),
                *(self.begin, self.settle, self.move, self.move, self.copy),
            )
        )
        work()

    def any_tx(self) -> int:
        open_ones = [tx for tx, prepared in self.transactions.items() if not prepared]
        return self.random.choice(open_ones) if open_ones and self.random.random() < 0.5 else 0

    def any_message(self) -> int | None:
        return self.random.choice(list(self.messages)) if self.messages else None

    def effect(self, message: int, kind: PendingKind, queues: Iterable[int], tx: int, lsn: int, first: int) -> None:
        known = self.messages[message]
        for order_index, queue in enumerate(queues, first):
            if tx:
                known.work.append(PendingWork(tx, lsn, queue, kind, order_index if kind is PendingKind.ENQUEUE else 0))
            elif kind is PendingKind.ENQUEUE:
                known.staged = False
                known.places.add(queue)
            else:
                known.places.discard(queue)
        self.bury(message)

    def bury(self, message: int) -> None:
        known = self.messages[message]
        if not known.places and not known.work and not known.staged:
            del self.messages[message]
            if self.random.random() < 0.5:
                self.log.add(RecordType.MESSAGE_DELETE, Empty(), message)

    def publish(self) -> None:
        queues, tx = self.random.sample(self.QUEUES, self.random.randint(1, 3)), self.any_tx()
        first = self.log.enqueues[tx]
        message = self.log.publish(*queues, tx=tx)
        self.messages[message] = Known(len(FIVE), published=True)
        self.effect(message, PendingKind.ENQUEUE, queues, tx, message, first)

    def stage(self) -> None:
        message = self.log.stage()
        self.messages[message] = Known(0)
        for _ in range(self.random.randint(0, 3)):
            content = bytes(self.random.randint(0, 9))
            self.log.chunk(message, self.messages[message].size, content)
            self.messages[message].size += len(content)

    def enqueue(self) -> None:
        message = self.any_message()
        if message is not None:
            known, tx = self.messages[message], self.any_tx()
            busy = known.places | {work.queue_id for work in known.work}
            queues = [queue for queue in self.QUEUES if queue not in busy][: self.random.randint(1, 2)]
            if queues:
                first = self.log.enqueues[tx]
                lsn = self.log.enqueue(message, *queues, tx=tx)
                self.effect(message, PendingKind.ENQUEUE, queues, tx, lsn, first)

    def dequeue(self) -> None:
        message = self.any_message()
        if message is not None:
            known, tx = self.messages[message], self.any_tx()
            free = sorted(known.places - {work.queue_id for work in known.work})
            if free:
                queue = self.random.choice(free)
                alone = len(known.places) == 1 and not known.work and not tx
                lsn = self.log.dequeue(message, queue, tx=tx, flags=DELETES if alone else 0)
                if alone:
                    del self.messages[message]
                else:
                    self.effect(message, PendingKind.DEQUEUE, [queue], tx, lsn, 0)

    def begin(self) -> None:
        if len(self.transactions) < 4:
            self.transactions[self.log.begin(b"x")] = False

    def settle(self) -> None:
        if not self.transactions:
            return
        tx = self.random.choice(list(self.transactions))
        if not self.transactions[tx] and self.random.random() < 0.4:
            self.log.step(tx, RecordType.TX_END)
            self.log.step(tx, RecordType.TX_PREPARE)
            self.transactions[tx] = True
            return
        commits = self.random.random() < 0.6
        self.log.step(tx, RecordType.TX_COMMIT if commits else RecordType.TX_ROLLBACK)
        del self.transactions[tx]
        for message, known in list(self.messages.items()):
            mine = [work for work in known.work if work.tx_id == tx]
            known.work = [work for work in known.work if work.tx_id != tx]
            for work in mine if commits else ():
                known.staged = known.staged and work.kind is not PendingKind.ENQUEUE
                (known.places.add if work.kind is PendingKind.ENQUEUE else known.places.discard)(work.queue_id)
            if mine:
                known.staged = known.staged and not (known.published and not known.work and not known.places)
                self.bury(message)

    def copy(self) -> None:
        """Writes copies of an abandoned attempt."""
        message = self.any_message()
        if message is not None:
            self.log.copy(message, b"given up")
            self.log.copy_chunk(message, 8, b"too")

    def move(self) -> None:
        if self.transactions and self.random.random() < 0.3:
            self.move_transaction(self.random.choice(list(self.transactions)))
        message = self.any_message()
        if message is not None:
            self.move_message(message)

    def move_transaction(self, tx: int) -> None:
        self.log.move_tx(tx, TxState.PREPARED if self.transactions[tx] else TxState.ACTIVE)

    def move_message(self, message: int) -> None:
        known, log = self.messages[message], self.log
        places, content = sorted(known.places), bytes(known.size)
        published = PUBLISHED if known.published else RecordFlag(0)
        if places and not known.work and self.random.random() < 0.5:
            log.inline(message, *places, content=content, flags=published)
            return
        first = content[: self.random.randint(0, known.size)]
        start = log.copy(message, first, flags=published)
        chunks: tuple[ChunkPlace, ...] = ()
        if len(first) < known.size:
            rest = content[len(first) :]
            chunks = (ChunkPlace(log.copy_chunk(message, len(first), rest), len(first), len(rest)),)
        staged = STAGED if known.staged else RecordFlag(0)
        if self.random.random() < 0.5:
            log.state(message, start, *places, size=known.size, chunks=chunks, pending=(*known.work,), flags=staged)
            return
        log.state(message, start, size=known.size, chunks=chunks, flags=PART)
        log.state(message, start, *places[:1], size=known.size, part=1, flags=PART)
        log.state(message, start, *places[1:], size=known.size, pending=(*known.work,), part=2, flags=staged)

    def move_everything(self) -> None:
        moves = [lambda message=message: self.move_message(message) for message in self.messages]
        moves += [lambda tx=tx: self.move_transaction(tx) for tx in self.transactions]
        self.random.shuffle(moves)
        for move in moves:
            move()


def summary(replay: StrictReplay, writer_epoch: int | None) -> Any:
    found = replay.finish(writer_epoch=writer_epoch)
    transactions = sorted((one.id, one.state, one.xid, sorted(one.work)) for one in found.transactions)
    return found.messages, found.staged, found.places, found.queues, transactions


@pytest.mark.parametrize("writer_epoch", [1, None], ids=["live", "recovered"])
@pytest.mark.parametrize("seed", range(25))
def test_replay_gives_the_same_state_from_every_base_above_which_all_live_messages_are_relocated(
    seed: int, writer_epoch: int | None
) -> None:
    writer = Writer(seed)
    for _ in range(120):
        writer.step()
    base_lsn = writer.log.next_lsn
    for _ in range(10):
        writer.move()
    writer.move_everything()
    for _ in range(120):
        writer.step()
    late = StrictReplay(base_lsn)
    for record in writer.log.records:
        if record.lsn >= base_lsn or record.type is RecordType.BATCH:
            late.apply(record)
    assert writer.log.finish()[1] == len(writer.messages) > 10
    assert summary(late, writer_epoch) == summary(writer.log.replay, writer_epoch)
    assert [*late.problems, *writer.log.replay.problems] == []
