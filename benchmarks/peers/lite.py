"""litequeue: a queue over SQLite that marks messages as taken and done."""

from __future__ import annotations

import importlib.metadata
import threading
from typing import TYPE_CHECKING, ClassVar

from litequeue import LiteQueue

from peers.base import Peer, Wrong

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path


class LiteQueuePeer(Peer):
    """``put`` in a transaction; ``pop`` is a transaction of its own; ``done`` in one; one connection."""

    name: ClassVar[str] = "litequeue"
    sync: ClassVar[str] = "WAL, synchronous=FULL (it sets NORMAL)"
    reuses: ClassVar[bool] = False
    prefill_max: ClassVar[int] = 1000

    def __init__(self, path: Path, room_bytes: int) -> None:
        super().__init__(path, room_bytes)
        path.mkdir()
        self.turn = threading.Lock()
        self.queue = self._open()

    def _open(self) -> LiteQueue:
        queue = LiteQueue(self.path / "messages")
        queue.conn.execute("PRAGMA synchronous=FULL")  # it sets NORMAL, which loses the last commits
        found = [queue.conn.execute(f"PRAGMA {what}").fetchone()[0] for what in ("journal_mode", "synchronous")]
        if found != ["wal", 2]:
            raise Wrong(f"litequeue does not do what it was told: {found}")
        return queue

    @classmethod
    def version(cls) -> str:
        return importlib.metadata.version("litequeue")

    @classmethod
    def lacks(cls, threads: int, batch: int, in_flight: int, *, puts: bool, takes: bool) -> str | None:
        if threads > 8:
            return "one connection: see 8 threads"
        if batch > 10 and takes:
            return "no batches: every pop is a commit, see batches of 10"
        return super().lacks(threads, batch, in_flight, puts=puts, takes=takes)

    def publisher(self) -> Callable[[Sequence[bytes]], None]:
        queue, turn = self.queue, self.turn

        def publish(bodies: Sequence[bytes]) -> None:
            with turn:
                if len(bodies) == 1:
                    queue.put(bodies[0])
                    return
                with queue.transaction():
                    for body in bodies:
                        queue.put(body)

        return publish

    def consumer(self) -> Callable[[int], list[bytes]]:
        queue, turn = self.queue, self.turn

        def consume(count: int) -> list[bytes]:
            with turn:
                messages = []
                while len(messages) < count and (message := queue.pop()) is not None:
                    messages.append(message)
                if len(messages) == 1:
                    queue.done(messages[0].message_id)
                elif messages:
                    with queue.transaction():
                        for message in messages:
                            queue.done(message.message_id)
            return [message.data for message in messages]

        return consume

    def close(self) -> None:
        self.queue.close()

    def remaining(self) -> Iterator[bytes]:
        queue = self._open()
        for row in queue.conn.execute(f"SELECT data FROM {queue.table} WHERE status = 0 ORDER BY message_id"):
            yield row[0]
        queue.close()
