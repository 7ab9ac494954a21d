"""SQLite: a table with one row for each message."""

from __future__ import annotations

import sqlite3
import threading
from typing import TYPE_CHECKING, ClassVar

from peers.base import ReadablePeer, Wrong

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path


class Sqlite(ReadablePeer):
    """A connection for each thread. There is one writer at a time, so the threads wait for each other at a lock, which
    is faster than SQLite's busy handler, which sleeps.
    """

    name: ClassVar[str] = "SQLite"
    sync: ClassVar[str] = "WAL, synchronous=FULL"

    def __init__(self, path: Path, room_bytes: int) -> None:
        super().__init__(path, room_bytes)
        path.mkdir()
        self.turn = threading.Lock()
        self.connections: list[sqlite3.Connection] = []
        self._connect().execute("CREATE TABLE messages (id INTEGER PRIMARY KEY, body BLOB NOT NULL)")

    @classmethod
    def version(cls) -> str:
        return sqlite3.sqlite_version

    def _file(self) -> str:
        return str(self.path / "messages")

    def _connect(self) -> sqlite3.Connection:
        made = sqlite3.connect(self._file(), isolation_level=None, check_same_thread=False, timeout=60)
        mode = made.execute("PRAGMA journal_mode=WAL").fetchone()
        made.execute("PRAGMA synchronous=FULL")
        made.execute("PRAGMA cache_size=-65536")
        if mode != ("wal",) or made.execute("PRAGMA synchronous").fetchone() != (2,):
            raise Wrong("SQLite does not do what it was told")
        self.connections.append(made)
        return made

    def publisher(self) -> Callable[[Sequence[bytes]], None]:
        connection, turn = self._connect(), self.turn
        insert = "INSERT INTO messages (body) VALUES (?)"

        def publish(bodies: Sequence[bytes]) -> None:
            with turn:
                if len(bodies) == 1:
                    connection.execute(insert, (bodies[0],))
                    return
                connection.execute("BEGIN IMMEDIATE")
                connection.executemany(insert, ((body,) for body in bodies))
                connection.execute("COMMIT")

        return publish

    def consumer(self) -> Callable[[int], list[bytes]]:
        connection, turn = self._connect(), self.turn

        def consume(count: int) -> list[bytes]:
            with turn:
                connection.execute("BEGIN IMMEDIATE")
                rows = connection.execute("SELECT id, body FROM messages ORDER BY id LIMIT ?", (count,)).fetchall()
                if rows:
                    connection.execute("DELETE FROM messages WHERE id <= ?", (rows[-1][0],))
                connection.execute("COMMIT")
            return [body for _, body in rows]

        return consume

    def keys(self) -> Iterator[int]:
        return (key for (key,) in self._connect().execute("SELECT id FROM messages ORDER BY id"))

    def reader(self) -> Callable[[int], bytes]:
        connection = self._connect()

        def read(key: int) -> bytes:
            body: bytes = connection.execute("SELECT body FROM messages WHERE id = ?", (key,)).fetchone()[0]
            return body

        return read

    def scan(self) -> Iterator[bytes]:
        return (body for (body,) in self._connect().execute("SELECT body FROM messages ORDER BY id"))

    def close(self) -> None:
        for connection in self.connections:
            connection.close()
        self.connections = []

    def remaining(self) -> Iterator[bytes]:
        for (body,) in self._connect().execute("SELECT body FROM messages ORDER BY id"):
            yield body
        self.close()
