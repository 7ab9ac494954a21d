"""persist-queue: its queue over SQLite."""

from __future__ import annotations

import importlib.metadata
import threading
from typing import TYPE_CHECKING, ClassVar

import persistqueue

from peers.base import Peer, Wrong

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path


class PersistQueue(Peer):
    """``get`` any number, then ``task_done``, which makes it durable. A put is always a commit of its own."""

    name: ClassVar[str] = "persist-queue"
    sync: ClassVar[str] = "WAL, synchronous=FULL (set for it)"
    reuses: ClassVar[bool] = False
    prefill_max: ClassVar[int] = 1000

    def __init__(self, path: Path, room_bytes: int) -> None:
        super().__init__(path, room_bytes)
        self.turn = threading.Lock()
        self.queue = self._open()

    def _open(self) -> persistqueue.SQLiteQueue:
        queue = persistqueue.SQLiteQueue(str(self.path), multithreading=True, auto_commit=False)
        for connection in (queue._putter, queue._getter):  # it has no option for this
            connection.execute("PRAGMA synchronous=FULL")
            found = [connection.execute(f"PRAGMA {what}").fetchone() for what in ("journal_mode", "synchronous")]
            if found != [("wal",), (2,)]:
                raise Wrong(f"persist-queue does not do what it was told: {found}")
        return queue

    @classmethod
    def version(cls) -> str:
        return f"{importlib.metadata.version('persist-queue')}, SQLiteQueue, auto_commit=False and task_done"

    @classmethod
    def lacks(cls, threads: int, batch: int, in_flight: int, *, puts: bool, takes: bool) -> str | None:
        if threads > 8:
            return "one writer at a time: see 8 threads"
        if batch > 1 and puts:
            return "no batches: every put is a commit"
        return super().lacks(threads, batch, in_flight, puts=puts, takes=takes)

    def publisher(self) -> Callable[[Sequence[bytes]], None]:
        queue = self.queue

        def publish(bodies: Sequence[bytes]) -> None:
            for body in bodies:
                queue.put(body)

        return publish

    def consumer(self) -> Callable[[int], list[bytes]]:
        queue, turn = self.queue, self.turn

        def consume(count: int) -> list[bytes]:
            bodies: list[bytes] = []
            with turn:  # task_done acknowledges whatever was got, by whom ever
                while len(bodies) < count and queue.size:
                    bodies.append(queue.get(block=False))
                if bodies:
                    queue.task_done()
            return bodies

        return consume

    def close(self) -> None:
        self.queue.close()

    def remaining(self) -> Iterator[bytes]:
        queue = self._open()
        for row in queue.queue():
            yield row["data"]
        queue.close()
