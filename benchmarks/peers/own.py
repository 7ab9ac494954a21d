"""logstore: the store under test."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, ClassVar

import logstore
from peers.base import ReadablePeer, Wrong

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

SEGMENT_BYTES = 16 << 20
RECORD_EXTRA = 1.2  # log bytes for each byte of content, and what a group commit adds, generously
QUEUE = "measured"


def parameters(call: Callable[..., object]) -> Iterable[str]:
    """The names of its parameters: an older build lacks some."""
    return inspect.signature(call).parameters


def contents_of(store: logstore.MessageStore, queue: logstore.Queue) -> Iterator[bytes]:
    """All contents of the queue in order, without acquiring."""
    loaded = {"load": True} if "load" in parameters(store.messages) else {}
    return (message.content for message in store.messages(queue, **loaded))


class Logstore(ReadablePeer):
    """Before the measurement segments for all of the content are made and filled with zeros; with ``room_bytes`` 0 only
    the two of any new store."""

    name: ClassVar[str] = "logstore"
    sync: ClassVar[str] = "strict: fdatasync a group"
    reuses: ClassVar[bool] = False

    def __init__(self, path: Path, room_bytes: int) -> None:
        super().__init__(path, room_bytes)
        segments = int(room_bytes * RECORD_EXTRA) // SEGMENT_BYTES + 4 if room_bytes else 2
        self.store = logstore.open(path, segment_size=SEGMENT_BYTES, initial_segments=segments)
        self.queue = self.store.declare_queue(QUEUE)

        if self.store.stats()["durability"] != "strict":
            raise Wrong("the store is not strict")

    @classmethod
    def version(cls) -> str:
        return f"{logstore.__version__}, segments of {SEGMENT_BYTES >> 20} MiB"

    @classmethod
    def lacks(cls, threads: int, batch: int, in_flight: int, *, puts: bool, takes: bool) -> str | None:  # noqa: ARG003
        return None

    @property
    def segments_created(self) -> int:
        """Segments made since the open; those made during a measurement are not the steady state."""
        return int(self.store.stats()["segments_created"])

    def publisher(self) -> Callable[[Sequence[bytes]], None]:
        store, queue = self.store, self.queue

        def publish(bodies: Sequence[bytes]) -> None:
            if len(bodies) == 1:
                store.publish(queue, bodies[0])
            else:
                store.publish_many(queue, bodies)

        return publish

    def consumer(self) -> Callable[[int], list[bytes]]:
        queue = self.queue

        def consume(count: int) -> list[bytes]:
            deliveries = queue.acquire(count, load=True)
            contents = [delivery.content for delivery in deliveries]
            if len(deliveries) == 1:
                deliveries[0].accept()
            else:
                queue.accept_many(deliveries)
            return contents

        return consume

    async def publish_in_flight(self, body: bytes) -> None:
        """Publish one message; one of many tasks on one event loop."""
        self.store.publish(self.queue, body, wait=False)
        await self.store.durable(self.store.next_lsn)

    async def consume_in_flight(self) -> bytes | None:
        """The same for the oldest message; None if there is none."""
        deliveries = self.queue.acquire(1, load=True)
        if not deliveries:
            return None
        content = deliveries[0].content
        deliveries[0].accept(wait=False)
        await self.store.durable(self.store.next_lsn)
        return content

    def keys(self) -> Iterator[int]:
        return (message.id for message in self.store.messages(self.queue))

    def reader(self) -> Callable[[int], bytes]:
        return self.store.load_content

    def scan(self) -> Iterator[bytes]:
        return contents_of(self.store, self.queue)

    def has_views(self) -> bool:
        return "views" in parameters(self.store.messages)

    def views(self) -> Iterator[memoryview]:
        return (message.content for message in self.store.messages(self.queue, views=True))

    def close(self) -> None:
        self.store.close()

    def remaining(self) -> Iterator[bytes]:
        with logstore.open(self.path, create=False) as store:
            yield from contents_of(store, store.queue(QUEUE))
