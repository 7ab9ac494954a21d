"""The back of a queue in memory that has more messages than its share of the memory holds: it is in the log.

    front, in memory  |  blocks, in the log  |  tail, in memory

Messages that arrive are collected in the tail. A full tail is written as one block: a staged message, which is on no
queue, so that the next open drops it, and the queue's messages end with the process as always. When the front runs low,
the next block is read in another thread, one block ahead of the consumers. A block is destroyed with its last message;
until then a delivered message need not be in memory, because it can be read again.

Invariants: a message is in one of the three, and their order is the order of the queue. No message of a block was ever
taken. A large body is a staged message of its own (`LargeBody`), to which the places on queues in memory refer.
A block is written on the event loop, so only while the log has room for it (`LogIsBusy`).
"""

from __future__ import annotations

import array
import asyncio
import collections
import logging
import struct
from typing import TYPE_CHECKING, Final

from logstore.broker.wakeups import ANY_PERCENT, PUBLISH_PERCENT
from logstore.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from logstore.broker.memory_places import MemoryPlace
    from logstore.broker.wakeups import WakeUps

logger = logging.getLogger(__name__)

BLOCK_BYTES: Final = 128 * 1024  # memory of the messages that make a block
BLOCK_RECORD_BYTES: Final = 512  # memory of a block that is in the log; measured, rounded up
_COUNT: Final = struct.Struct("=I")
_SIZE: Final = "I"  # of a header or a body, in an array


class LogIsBusy(StoreError):
    """A block is to be written and the append would wait for the disk: wait for so much room, and try again."""

    def __init__(self, percent: int) -> None:
        super().__init__("the log has no room for a block of messages until what is in its buffers is on disk")
        self.percent = percent


class OverflowLog:
    """The staged messages of the queues in memory of one host. Belongs to its event loop."""

    def __init__(self, wakeups: WakeUps) -> None:
        self._wakeups = wakeups
        self.store = wakeups.store
        self.loop = wakeups.loop
        self.held_bytes = 0  # of the contents
        self._sizes: dict[int, int] = {}  # of the staged messages, by id
        self._leaving: list[int] = []
        self._task: asyncio.Task[None] | None = None  # destroys them; kept, as the loop does not

    @property
    def staged_count(self) -> int:
        """The number of staged messages: blocks and large bodies, also those that are being destroyed."""
        return len(self._sizes)

    def check_room(self, size_bytes: int) -> None:
        """Raises `LogIsBusy` if a block of so many bytes at most would wait for the disk."""
        percent = ANY_PERCENT if size_bytes <= BLOCK_BYTES else PUBLISH_PERCENT
        if self.store.room_percent < percent and not self._wakeups.stopped:
            _ = self.store.next_lsn  # asks the flusher, as nobody may wait for what the log has
            raise LogIsBusy(percent)

    def write(self, content: bytes) -> int:
        """Stage a block. Returns its id. Raises `StoreError`."""
        message_id = self.store.stage(b"", content)
        self.adopt(message_id, len(content))
        return message_id

    def adopt(self, message_id: int, size: int) -> None:
        """Take over a staged message with `size` bytes of content."""
        self._sizes[message_id] = size
        self.held_bytes += size

    def destroy(self, message_ids: Iterable[int]) -> None:
        """Destroy staged messages, in another thread."""
        self._leaving += message_ids
        if self._leaving and self._task is None:
            self._task = self.loop.create_task(self._destroy())

    async def _destroy(self) -> None:
        while self._leaving:
            leaving, self._leaving = self._leaving, []
            await self.loop.run_in_executor(None, self._destroy_now, leaving)
            self.held_bytes -= sum(self._sizes.pop(each) for each in leaving)
        self._task = None

    def _destroy_now(self, message_ids: Iterable[int]) -> None:
        for message_id in message_ids:
            try:
                self.store.destroy(message_id, wait=False)
            except StoreError as error:
                logger.debug("message %d stays until the next open: %s", message_id, error)

    async def finish(self, timeout_s: float) -> None:
        """The host ends, and with it its queues in memory: destroy all that is left."""
        leaving = set(self._leaving)
        self.destroy([each for each in self._sizes if each not in leaving])
        if self._task is not None:
            await asyncio.wait([self._task], timeout=timeout_s)


class LargeBody:
    """A large body of places on queues in memory: a staged message, destroyed with the last of its holders."""

    __slots__ = ("_holders", "_log", "id", "size")

    def __init__(self, log: OverflowLog, message_id: int, size: int) -> None:
        """The caller is its first holder."""
        log.adopt(message_id, size)
        self._log = log
        self._holders = 1
        self.id = message_id
        self.size = size

    def hold(self) -> None:
        """There is one more holder."""
        self._holders += 1

    def let_go(self) -> None:
        """A holder needs it no longer."""
        self._holders -= 1
        if not self._holders:
            self._log.destroy([self.id])


class Block:
    """Successive messages of one queue, in the log."""

    __slots__ = ("_log", "count", "expires", "first", "id", "is_over", "large", "left", "size_bytes")

    def __init__(self, log: OverflowLog, places: Sequence[MemoryPlace], size_bytes: int, *, expires: bool) -> None:
        """Writes the messages. `size_bytes`: of the memory that they need. Raises `StoreError`."""
        self._log = log
        self.id = log.write(encode_block([each.header for each in places], [each.content for each in places]))
        self.first = places[0].id  # the others follow without a gap
        self.count = len(places)
        self.size_bytes = size_bytes
        self.expires = expires  # whether one of them may
        self.large = {each.id: each.large for each in places if each.large is not None}
        self.left = self.count - len(self.large)  # whose bodies are still needed
        self.is_over = False  # it is destroyed

    def load(self) -> tuple[list[bytes], list[bytes]]:
        """The headers and bodies, in another thread. Raises `StoreError`."""
        return decode_block(self._log.store.load_content(self.id))

    def load_body(self, at: int, size: int) -> bytes:
        """`size` bytes of the block, beginning at `at`. Raises `StoreError`."""
        return self._log.store.load_content(self.id, at, size)

    def drop_one(self) -> bool:
        """A body is no longer needed. True if it was the last one; then the block is destroyed."""
        self.left -= 1
        if not self.left:
            self.destroy()
        return self.is_over

    def destroy(self) -> None:
        """Destroy it: its bodies are no longer needed."""
        if not self.is_over:
            self.is_over = True
            self._log.destroy([self.id])

    def let_go(self) -> None:
        """Destroy it with the large bodies of its messages, none of which was read."""
        self.destroy()
        for large in self.large.values():
            large.let_go()


def body_start(headers: Sequence[bytes]) -> int:
    """The offset of the first body in a block with these headers."""
    return _COUNT.size + 2 * len(headers) * array.array(_SIZE).itemsize + sum(map(len, headers))


def encode_block(headers: Sequence[bytes], bodies: Sequence[bytes]) -> bytes:
    """The content of a block: the number of messages, the sizes of all headers and of all bodies, then these.

    In the byte order of the machine, as no other process reads it.
    """
    sizes = array.array(_SIZE, map(len, headers))
    sizes.extend(map(len, bodies))
    return b"".join((_COUNT.pack(len(headers)), sizes.tobytes(), *headers, *bodies))


def decode_block(content: bytes) -> tuple[list[bytes], list[bytes]]:
    """The headers and bodies of a block. Equal successive headers are one object. Raises `StoreError`."""
    count = _COUNT.unpack_from(content)[0] if len(content) >= _COUNT.size else 0
    sizes = array.array(_SIZE)
    at = _COUNT.size + 2 * count * sizes.itemsize
    if not count or len(content) < at:
        raise StoreError("a block of messages is cut off")
    sizes.frombytes(content[_COUNT.size : at])
    if at + sum(sizes) != len(content):
        raise StoreError("a block of messages does not have the size that its messages need")
    parts: list[bytes] = []
    last = b""
    for size in sizes:
        part = content[at : at + size]
        at += size
        if part == last:
            part = last
        parts.append(part)
        last = part
    return parts[:count], parts[count:]


class Back:
    """The blocks and the tail of one queue."""

    __slots__ = ("_log", "blocks", "expires", "in_log_count", "tail", "tail_bytes")

    def __init__(self, log: OverflowLog) -> None:
        self._log = log
        self.blocks: collections.deque[Block] = collections.deque()
        self.in_log_count = 0  # messages in the blocks
        self.tail: list[MemoryPlace] = []
        self.tail_bytes = 0  # of memory
        self.expires = False  # whether a message of the tail may

    def __len__(self) -> int:
        return self.in_log_count + len(self.tail)

    def add(self, place: MemoryPlace, size_bytes: int, *, expires: bool) -> None:
        """Append a message to the tail."""
        self.tail.append(place)
        self.tail_bytes += size_bytes
        self.expires = self.expires or expires

    def is_full(self, size_bytes: int, free_bytes: int) -> bool:
        """Whether the tail is to be written before a message of `size_bytes` is added; so much memory is free."""
        return bool(self.tail) and (size_bytes > free_bytes or self.tail_bytes + size_bytes > BLOCK_BYTES)

    def write_tail(self) -> int:
        """Write the tail as a block. Returns the bytes of memory that are free now.

        Raises `StoreError`; `LogIsBusy` if it can be written later.
        """
        self._log.check_room(self.tail_bytes)
        self.blocks.append(Block(self._log, self.tail, self.tail_bytes, expires=self.expires))
        self.in_log_count += len(self.tail)
        freed = self.tail_bytes - BLOCK_RECORD_BYTES
        self.tail, self.tail_bytes, self.expires = [], 0, False
        return freed

    def take_block(self) -> Block:
        """Remove the first block: its messages are in the front, or cannot be read."""
        block = self.blocks.popleft()
        self.in_log_count -= block.count
        return block
