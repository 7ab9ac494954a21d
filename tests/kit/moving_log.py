"""Replays a hand-made log with relocations record by record."""

from __future__ import annotations

from typing import Any

from kit.crashed import Log
from logstore.codec.chains import RELOCATED
from logstore.codec.records import (
    ChunkPlace,
    InlineCopy,
    MessageChunk,
    MessageRelocated,
    MessageStart,
    OrderedCopy,
    PendingWork,
    QueueDelete,
    QueuePlace,
    Record,
    RecordFlag,
    RecordType,
    TxKind,
    TxRelocated,
    TxState,
)

BASE = 1 << 20
OLD = 512  # a chain that began below BASE; its newest record there is OLD_NEWEST
OLD_NEWEST = 768
OLD_TX = 1024
COPY, INLINE, ORDERED, PART, STAGED, DELETES, PUBLISHED = (
    RecordFlag[name] for name in ("COPY", "INLINE", "ORDERED", "PART", "STAGED", "DELETES", "PUBLISHED")
)
FIVE = b"12345"  # what Log.publish gives a message


class MovingLog(Log):
    """A log with relocations, whose writer ignores copies until their state is complete."""

    def __init__(self, base_lsn: int = BASE) -> None:
        self.copied: dict[int, int] = {}
        self.records: list[Record] = []
        super().__init__(base_lsn)
        self.last |= {OLD: OLD_NEWEST, OLD_TX: OLD_TX}

    def add(self, kind: RecordType, body: Any, chain: int = 0, flags: int = 0, prev: int | None = None) -> int:
        lsn = self.next_lsn
        self.next_lsn += 256
        chain = lsn if chain == -1 else chain
        moved = bool(flags & COPY) or kind in RELOCATED
        if prev is None:
            prev = self.copied.get(chain, self.last.get(chain, 0)) if moved else self.last.get(chain, 0)
        record = Record(lsn, kind, RecordFlag(flags), chain, prev, 256, body)
        if (moved and flags & PART) or flags & (COPY | INLINE) == COPY:
            self.copied[chain] = lsn
        else:
            self.copied.pop(chain, None)
            self.last[chain] = lsn
        self.records.append(record)
        self.replay.apply(record)
        return lsn

    def copy(self, message: int, content: bytes = FIVE, flags: int = 0, prev: int | None = None) -> int:
        return self.add(RecordType.MESSAGE_START, MessageStart(0, (), b"h", content), message, COPY | flags, prev)

    def copy_chunk(self, message: int, offset: int, content: bytes, prev: int | None = None) -> int:
        return self.add(RecordType.MESSAGE_CHUNK, MessageChunk(offset, content), message, COPY, prev)

    def state(
        self,
        message: int,
        start: int,
        *queues: int,
        size: int = len(FIVE),
        chunks: tuple[ChunkPlace, ...] = (),
        pending: tuple[PendingWork, ...] = (),
        part: int = 0,
        flags: int = 0,
        prev: int | None = None,
    ) -> int:
        places = tuple(QueuePlace(message, 0, queue_id, 0, 0) for queue_id in queues)
        body = MessageRelocated(size, start, part, chunks, places, pending)
        return self.add(RecordType.MESSAGE_RELOCATED, body, message, flags, prev)

    def inline(self, message: int, *queues: int, content: bytes = FIVE, flags: int = 0, prev: int | None = None) -> int:
        body = InlineCopy(0, queues, b"h", content)
        return self.add(RecordType.MESSAGE_START, body, message, COPY | INLINE | flags, prev)

    def ordered(self, message: int, *queues: int, content: bytes = FIVE) -> int:
        body = OrderedCopy(message + 8, queues, b"h", content, 7)
        return self.add(RecordType.MESSAGE_START, body, message, COPY | INLINE | ORDERED)

    def chunk(self, message: int, offset: int, content: bytes) -> int:
        return self.add(RecordType.MESSAGE_CHUNK, MessageChunk(offset, content), message)

    def delete_queue(self, queue: int) -> int:
        return self.add(RecordType.QUEUE_DELETE, QueueDelete(queue), prev=0)

    def move_tx(self, tx: int, state: TxState, xid: bytes | None = b"x", prepare_us: int = 0) -> int:
        kind, format_id = (TxKind.LOCAL, 0) if xid is None else (TxKind.DISTRIBUTED, 1)
        body = TxRelocated(format_id, xid or b"", b"", kind, state, 5, prepare_us)
        return self.add(RecordType.TX_RELOCATED, body, tx)

    @property
    def reasons(self) -> list[str]:
        return [problem.reason for problem in self.replay.problems]
