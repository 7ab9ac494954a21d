"""Contents of every size: empty, at each limit of a record, and far larger than memory should have to hold."""

from __future__ import annotations

import hashlib
import random
import resource
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pytest

import logstore
from kit.stores import SMALL_SEGMENT
from logstore import errors
from logstore.commands.verify import describe
from logstore.salvage import salvage
from logstore.verify import Verification

if TYPE_CHECKING:
    from collections.abc import Iterator

    from logstore import MessageStore

Open = Any

RECORD = SMALL_SEGMENT // 16  # the largest size of a record, in bytes
GIB = 1 << 30


def content_of(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def borders() -> list[int]:
    """Every size within a few bytes of filling one, two or three records, a batch or a segment."""
    around = [RECORD, 2 * RECORD, 3 * RECORD, SMALL_SEGMENT // 8, SMALL_SEGMENT // 4]
    sizes = {0, 1, 2, 7, 8, 9, 63, 64, 65, 4095, 4096, 4097}
    for whole in around:
        sizes |= {whole + extra for extra in (-1, 0, 1)}
    return sorted(sizes)


def test_every_size_at_a_border_comes_back_whole(store: MessageStore, open_store: Open) -> None:
    queue = store.declare_queue("q")
    keys = {}
    for size in borders():
        data = content_of(size)
        for header in (b"", b"h" * 9):
            keys[store.publish(queue, data, header=header, wait=False)] = (data, header)
            keys[store.publish(queue, [data[: size // 2], data[size // 2 :]], header=header, wait=False)] = (
                data,
                header,
            )
    store.force()
    for again in range(2):
        for key, (data, header) in keys.items():
            assert store.load_content(key) == data, len(data)
            assert store.header(key) == header
        assert [message.size for message in store.messages("q")] == [len(data) for data, _ in keys.values()]
        if again == 0:
            store.close()
            store = open_store()


@pytest.mark.parametrize("header_bytes", [0, 5, 8, 1000])
@pytest.mark.parametrize("queues", [1, 2, 3])
def test_each_size_around_the_largest_single_record_comes_back_whole(
    store: MessageStore, header_bytes: int, queues: int
) -> None:
    """The limit of one record depends on header and queues, so every size around it is tried."""
    targets = [store.declare_queue(f"q{i}") for i in range(queues)]
    data, header = content_of(RECORD), b"h" * header_bytes
    records: set[int] = set()
    for size in range(RECORD - header_bytes - 160, RECORD - header_bytes + 1):
        before = store.stats()["records"]
        key = store.publish(targets, data[:size], header=header, wait=False)
        records.add(store.stats()["records"] - before)
        assert store.load_content(key) == data[:size], size
        for queue in targets:
            store.dequeue(key, queue, wait=False)
    assert 1 in records  # the sizes include the limit
    assert max(records) > 1


def test_chunks_of_every_size_join_without_a_seam(store: MessageStore) -> None:
    chance = random.Random(3)
    for _ in range(20):
        parts = [
            content_of(chance.choice([0, 1, 100, RECORD - 64, RECORD, 3 * RECORD])) for _ in range(chance.randint(1, 9))
        ]
        whole = b"".join(parts)
        key = store.stage(b"", parts[:1])
        for part in parts[1:]:
            store.append_content(key, part)
        for _ in range(20):
            at, length = chance.randrange(len(whole) + 1), chance.choice([0, 1, 10, RECORD, len(whole)])
            assert store.load_content(key, at, length) == whole[at : at + length]
        assert store.load_content(key) == whole
        store.destroy(key, wait=False)


class Memory:
    """The growth of this process's memory since the start, at its peak."""

    def __enter__(self) -> Self:
        self._start = self._now()
        self.peak = self._start
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    @staticmethod
    def _now() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    def _watch(self) -> None:
        while not self._stop.wait(0.005):
            self.peak = max(self.peak, self._now())

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self.peak = max(self.peak, self._now())

    @property
    def growth(self) -> int:
        return self.peak - self._start


def test_a_gibibyte_goes_through_in_constant_memory_and_comes_back_in_pieces(tmp_path: Path, open_store: Open) -> None:
    store = open_store(tmp_path / "big", segment_size=16 << 20)
    queue = store.declare_queue("q")
    piece = random.Random(1).randbytes(1 << 20)
    given, found = hashlib.blake2b(digest_size=16), hashlib.blake2b(digest_size=16)

    def pieces() -> Iterator[bytes]:
        for number in range(GIB >> 20):
            part = number.to_bytes(4, "little") + piece[4:]
            given.update(part)
            yield part

    started = time.monotonic()
    with Memory() as memory:
        key = store.publish(queue, pieces(), header=b"big")
        (delivery,) = queue.acquire()
        assert delivery.id == key
        assert next(store.messages(queue)).size == GIB
        for at in range(0, GIB, 3 << 20):
            found.update(store.load_content(key, at, 3 << 20))
        assert store.load_content(key, GIB - 5) == piece[-5:]
        assert store.load_content(key, GIB) == b""
    print(f"a gibibyte in and out: {time.monotonic() - started:.1f} s, {memory.growth >> 20} MiB more memory")
    assert found.digest() == given.digest()
    assert memory.growth < 200 << 20
    store.close()
    store = open_store(tmp_path / "big")
    assert store.load_content(key, 777 << 20, 4) == (777).to_bytes(4, "little")
    store.dequeue(key, "q")
    store.compact()
    assert store.stats()["log_bytes"] <= 6 * (16 << 20)
    with pytest.raises(errors.UnknownMessage):
        store.load_content(key)


def test_a_refused_append_changes_the_content_for_no_reader(tmp_path: Path) -> None:
    """The core, the second decoder and salvage read it; between them the message is relocated and grows."""
    path, target = tmp_path / "store", tmp_path / "salvaged"
    with logstore.open(path, segment_size=1 << 19, max_log_bytes=6 << 19) as store:
        queue = store.declare_queue("q")
        key = store.stage(b"h", b"begin")
        store.append_content(key, b"kept" * 1000)
        with pytest.raises(logstore.StoreFull):
            store.append_content(key, bytes(4 << 20))
        store.append_content(key, b"end")
        store.enqueue(key, queue)
        whole = b"begin" + b"kept" * 1000 + b"end"
        assert store.load_content(key) == whole
    with closing(Verification(path, thorough=True)) as found:
        found.run(lambda _: None, connect=None, schema=None)
        assert describe(path, found)["ok"]
    salvage(path, target)
    for directory in (path, target):
        with logstore.open(directory) as store:
            assert [message.content for message in store.messages("q")] == [whole]
