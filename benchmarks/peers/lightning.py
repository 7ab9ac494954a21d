"""LMDB: one ascending key for each message."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, ClassVar

import lmdb

from peers.base import ReadablePeer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path


class Lmdb(ReadablePeer):
    """One environment; it makes writers wait for each other."""

    name: ClassVar[str] = "LMDB"
    sync: ClassVar[str] = "sync, metasync"

    def __init__(self, path: Path, room_bytes: int) -> None:
        super().__init__(path, room_bytes)
        self.env = self._open()
        self.numbers = itertools.count(1)

    def _open(self) -> lmdb.Environment:
        return lmdb.open(str(self.path), map_size=16 * self.room_bytes + (16 << 30), sync=True, metasync=True)

    @classmethod
    def version(cls) -> str:
        return f"{'.'.join(map(str, lmdb.version()))}, lmdb {lmdb.__version__}"

    def publisher(self) -> Callable[[Sequence[bytes]], None]:
        env, numbers = self.env, self.numbers

        def publish(bodies: Sequence[bytes]) -> None:
            with env.begin(write=True) as transaction:  # numbers are assigned within the transaction, so keys ascend
                for body in bodies:
                    transaction.put(next(numbers).to_bytes(8, "big"), body, append=True)

        return publish

    def consumer(self) -> Callable[[int], list[bytes]]:
        env = self.env

        def consume(count: int) -> list[bytes]:
            bodies: list[bytes] = []
            with env.begin(write=True) as transaction, transaction.cursor() as cursor:
                there = cursor.first()
                while there and len(bodies) < count:
                    bodies.append(cursor.value())
                    there = cursor.delete() and cursor.key() != b""  # behind the last one, too, it says True
            return bodies

        return consume

    def keys(self) -> list[bytes]:
        with self.env.begin() as transaction, transaction.cursor() as cursor:
            return list(cursor.iternext(keys=True, values=False))

    def reader(self) -> Callable[[bytes], bytes]:
        read: Callable[[bytes], bytes] = self.env.begin().get  # one reading transaction, as long as nothing is written
        return read

    def scan(self) -> Iterator[bytes]:
        with self.env.begin() as transaction, transaction.cursor() as cursor:
            yield from cursor.iternext(keys=False, values=True)

    def close(self) -> None:
        self.env.close()

    def remaining(self) -> Iterator[bytes]:
        with self._open() as env, env.begin() as transaction, transaction.cursor() as cursor:
            yield from cursor.iternext(keys=False, values=True)
