"""One message on one queue in memory: with its body, with its body in a block of the log, or with a large body there.

A place knows how much memory it takes (`held_bytes`). Its queue counts that from the enqueue to the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from logstore.broker.memory_queue import MemoryQueue
    from logstore.broker.overflow import Block, LargeBody

PLACE_BYTES: Final = 256  # memory of a message in addition to its header and body; measured, rounded up


def place_bytes(header: bytes, body_size: int) -> int:
    """The bytes that one message on one queue in memory takes from the budget."""
    return PLACE_BYTES + len(header) + body_size


class MemoryPlace:
    """One message on one queue in memory."""

    __slots__ = ("_queue", "header", "id", "redelivered")

    is_streamed = False  # whether the body is sent in pieces, from the log

    def __init__(self, queue: MemoryQueue, sequence: int, header: bytes) -> None:
        self._queue = queue
        self.id = sequence
        self.header = header
        self.redelivered = False

    content: bytes
    """The body. Raises `StoreError` if it cannot be read."""

    @property
    def large(self) -> LargeBody | None:
        """Its large body."""
        return None

    @property
    def size(self) -> int:
        """Bytes of the body."""
        return len(self.content)

    @property
    def held_bytes(self) -> int:
        """The bytes of memory that it takes now."""
        return PLACE_BYTES + len(self.header) + len(self.content)

    def __lt__(self, other: MemoryPlace) -> bool:
        return self.id < other.id

    def accept(self, *, wait: bool = True) -> None:  # noqa: ARG002 - there is nothing to wait for
        """Remove the message: it was processed."""
        self._queue.drop(self)

    def reject(self, *, wait: bool = True) -> None:
        """Remove the message: queues in memory have no dead-letter queue."""
        self.accept(wait=wait)

    def let_go(self) -> None:
        """The queue was deleted: free what the message has in the log."""

    def unload(self) -> None:
        """Do nothing: the message exists in memory only."""

    def release(self, *, unseen: bool = False) -> None:
        """Return to the old position. `unseen`: nothing of it was sent to a client."""
        self.redelivered = self.redelivered or not unseen
        self._queue.put_back(self)


class WholePlace(MemoryPlace):
    """A message whose body is in memory only."""

    __slots__ = ("content",)

    def __init__(self, queue: MemoryQueue, sequence: int, header: bytes, body: bytes) -> None:
        self._queue = queue  # not by the base class, because every publish needs it
        self.id = sequence
        self.header = header
        self.content = body
        self.redelivered = False


class BlockPlace(MemoryPlace):
    """A message that was read from a block. Its body need not stay in memory."""

    __slots__ = ("_at", "_block", "_body", "_size")

    def __init__(self, queue: MemoryQueue, sequence: int, header: bytes, body: bytes, block: Block, at: int) -> None:
        """`at`: the offset of the body in the block."""
        super().__init__(queue, sequence, header)
        self._body: bytes | None = body
        self._size = len(body)
        self._block = block
        self._at = at

    @property
    def content(self) -> bytes:  # type: ignore[override]  # read-only, as it is for the callers of the others
        """The body. Raises `StoreError` if it cannot be read again."""
        return self._block.load_body(self._at, self._size) if self._body is None else self._body

    @property
    def size(self) -> int:
        """Bytes of the body."""
        return self._size

    @property
    def held_bytes(self) -> int:
        """The bytes of memory that it takes now."""
        return PLACE_BYTES + len(self.header) + (0 if self._body is None else self._size)

    def accept(self, *, wait: bool = True) -> None:  # noqa: ARG002 - there is nothing to wait for
        """Remove the message: it was processed."""
        self._queue.drop(self)
        if self._block.drop_one():
            self._queue.block_is_over(self._block)

    def unload(self) -> None:
        """Free the body in memory: it is in the log."""
        if self._body is not None:
            self._body = None
            self._queue.has_unloaded(self._size)


class LargePlace(MemoryPlace):
    """A message with a large body in the log, which is never in memory as a whole."""

    __slots__ = ("_large",)

    is_streamed = True
    content = b""

    def __init__(self, queue: MemoryQueue, sequence: int, header: bytes, large: LargeBody) -> None:
        super().__init__(queue, sequence, header)
        self._large = large

    @property
    def large(self) -> LargeBody:
        """Its large body."""
        return self._large

    @property
    def size(self) -> int:
        """Bytes of the body."""
        return self._large.size

    def accept(self, *, wait: bool = True) -> None:  # noqa: ARG002 - there is nothing to wait for
        """Remove the message: it was processed."""
        self._queue.drop(self)
        self._large.let_go()

    def let_go(self) -> None:
        """The queue was deleted: free the body, unless another queue has it."""
        self._large.let_go()
