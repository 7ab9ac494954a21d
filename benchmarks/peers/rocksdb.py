"""RocksDB through rocksdict: one key for each message; the keys of waiting messages are in memory."""

from __future__ import annotations

import importlib.metadata
import itertools
from collections import deque
from typing import TYPE_CHECKING, ClassVar

from rocksdict import DBCompressionType, Options, Rdict, WriteBatch, WriteOptions

from peers.base import ReadablePeer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path


def _options() -> Options:
    made = Options(raw_mode=True)
    made.create_if_missing(True)
    made.set_compression_type(DBCompressionType.none())  # the bodies are random
    made.set_recycle_log_file_num(4)  # its own way not to grow a log
    return made


class RocksDb(ReadablePeer):
    """A write batch a unit, ``sync`` on."""

    name: ClassVar[str] = "RocksDB"
    sync: ClassVar[str] = "WAL, WriteOptions.sync"

    def __init__(self, path: Path, room_bytes: int) -> None:
        super().__init__(path, room_bytes)
        self.db = Rdict(str(path), _options())
        strict = WriteOptions()
        strict.sync = True
        self.db.set_write_options(strict)
        self.numbers = itertools.count()
        self.waiting: deque[bytes] = deque()  # keys, once they are durable

    @classmethod
    def version(cls) -> str:
        return f"rocksdict {importlib.metadata.version('rocksdict')}, WAL files recycled, no compression"

    def publisher(self) -> Callable[[Sequence[bytes]], None]:
        db, numbers, waiting = self.db, self.numbers, self.waiting

        def publish(bodies: Sequence[bytes]) -> None:
            if len(bodies) == 1:
                key = next(numbers).to_bytes(8, "big")
                db[key] = bodies[0]
                waiting.append(key)
                return
            batch = WriteBatch(raw_mode=True)
            keys = [next(numbers).to_bytes(8, "big") for _ in bodies]
            for key, body in zip(keys, bodies, strict=True):
                batch[key] = body
            db.write(batch)
            waiting.extend(keys)

        return publish

    def consumer(self) -> Callable[[int], list[bytes]]:
        db, waiting = self.db, self.waiting

        def consume(count: int) -> list[bytes]:
            keys = []
            try:
                for _ in range(count):
                    keys.append(waiting.popleft())  # noqa: PERF401 - what was taken stays known when it runs empty
            except IndexError:
                pass
            if len(keys) == 1:
                body: bytes = db[keys[0]]
                del db[keys[0]]
                return [body]
            if not keys:
                return []
            bodies: list[bytes] = db[keys]
            batch = WriteBatch(raw_mode=True)
            for key in keys:
                batch.delete(key)
            db.write(batch)
            return bodies

        return consume

    def keys(self) -> Iterator[bytes]:
        return iter(self.waiting)

    def reader(self) -> Callable[[bytes], bytes]:
        read: Callable[[bytes], bytes] = self.db.__getitem__
        return read

    def scan(self) -> Iterator[bytes]:
        return iter(self.db.values())

    def close(self) -> None:
        self.db.close()

    def remaining(self) -> Iterator[bytes]:
        with Rdict(str(self.path), _options()) as db:
            yield from db.values()
