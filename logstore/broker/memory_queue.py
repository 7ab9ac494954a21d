"""Queues in memory: those declared non-durable or exclusive. They end with the process.

All of them share one part of the memory budget. A queue may have as much of it as is still free, so one that nobody
reads leaves about half of it to the others. What does not fit is in the log (`overflow`), and ends with the process,
too.
"""

from __future__ import annotations

import collections
import heapq
import itertools
import logging
from typing import TYPE_CHECKING, Final, cast

from logstore.broker.errors import STORE_ENDED
from logstore.broker.exchanges import Route
from logstore.broker.memory_places import PLACE_BYTES, BlockPlace, LargePlace, MemoryPlace, WholePlace
from logstore.broker.overflow import BLOCK_RECORD_BYTES, Back, body_start
from logstore.broker.queues import BrokerQueue
from logstore.broker.turns import TURN_UNITS
from logstore.errors import StoreError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Generator

    from logstore.broker.arguments import QueueArguments
    from logstore.broker.channel import Channel
    from logstore.broker.durable_queue import DurableQueue
    from logstore.broker.memory import Share
    from logstore.broker.overflow import Block, LargeBody, OverflowLog
    from logstore.broker.places import Place
    from logstore.broker.turns import Turns
    from logstore.broker.wakeups import WakeUps

logger = logging.getLogger(__name__)

FREED_MAX: Final = 4096  # in a turn


class MemoryQueue(BrokerQueue):
    """A queue in memory, first in, first out. Released messages come before those that were never taken."""

    durable = False

    def __init__(
        self,
        name: str,
        wakeups: WakeUps,
        share: Share,
        log: OverflowLog,
        *,
        declared_durable: bool,
        exclusive: bool,
        auto_delete: bool,
        owner: object | None,
        arguments: QueueArguments,
    ) -> None:
        super().__init__(
            name,
            wakeups,
            exclusive=exclusive,
            auto_delete=auto_delete,
            owner=owner,
            arguments=arguments,
        )
        self.declared_durable = declared_durable
        self.route = Route((), (self,))
        self._share = share
        self._log = log
        self._fresh: collections.deque[MemoryPlace] = collections.deque()  # the front
        # Places are taken in order, so a returned one precedes everything in `_fresh`.
        self._returned: list[MemoryPlace] = []
        self._next_sequence = 0
        self._taken_count = 0
        self._held_bytes = 0  # of the budget, by this queue
        self._back: Back | None = None  # None: all messages are in the front
        self._read_blocks: dict[Block, None] = {}  # with messages in the front or with consumers
        self._reading: asyncio.Task[None] | None = None  # of the next block; kept, as the loop does not
        self._waiting: dict[Channel, None] = {}  # for it, with a basic.get
        self._lost_count = 0  # messages that could not be read

    @property
    def ready_count(self) -> int:
        """Messages that wait."""
        back = self._back
        return len(self._fresh) + len(self._returned) + (0 if back is None else len(back))

    @property
    def unreadable_count(self) -> int:
        """The number of messages that are lost because they could not be read."""
        return self._lost_count

    @property
    def published(self) -> int:
        """The number of messages enqueued since the queue was made."""
        return self._next_sequence

    @property
    def unacknowledged_count(self) -> int:
        """The number of taken places."""
        return self._taken_count

    @property
    def held_bytes(self) -> int:
        """The bytes of the broker's memory budget that its messages occupy."""
        return self._held_bytes

    def sort_into(self, durable: list[DurableQueue], memory: list[MemoryQueue]) -> None:  # noqa: ARG002
        """Append this queue to the memory queues."""
        memory.append(self)

    def stored_id(self, place: Place) -> int:
        """The id of the staged message that is its large body."""
        large = cast("MemoryPlace", place).large
        assert large is not None
        return large.id

    def rejected(self) -> None:
        """Do nothing: memory queues have no dead letters."""

    # The back.

    def make_room(self, size: int) -> bool:
        """Prepare for a message that takes `size` bytes (`place_bytes`). True if a block was written.

        Raises `StoreError` if neither the memory nor the log has room for it, `LogIsBusy` if the log has room later.
        """
        back = self._back
        if back is None or not back.blocks:
            share = self._share
            if self._held_bytes + size <= share.bytes_max - share.used_bytes:
                if back is not None:
                    self._end_back()
                return False
            if back is None:
                back = self._back = Back(self._log)
        if not back.is_full(size, self._share.free_bytes):
            return False
        self._held(-back.write_tail())
        return True

    def enqueue(self, header: bytes, body: bytes, *, expires: bool, large: LargeBody | None = None) -> None:
        """Append a message. Never refuses it; the caller has called `make_room`."""
        place: MemoryPlace
        if large is None:
            place = WholePlace(self, self._next_sequence, header, body)
        else:
            large.hold()
            place = LargePlace(self, self._next_sequence, header, large)
        self._next_sequence += 1
        size = PLACE_BYTES + len(header) + len(body)
        self._held_bytes += size
        self._share.used_bytes += size
        if self._back is None:
            self._fresh.append(place)
        else:
            self._back.add(place, size, expires=expires)
        if self.consumers:
            self.wakeups.wake(self)
        if expires or self.ttl_ms is not None:
            self.may_expire()

    def _held(self, size: int) -> None:
        """So many more bytes of memory are in use, or fewer."""
        self._held_bytes += size
        self._share.used_bytes += size

    def _end_back(self) -> None:
        """If nothing of the queue is in the log, all of it is the front."""
        back = self._back
        if back is not None and not back.blocks:
            self._fresh.extend(back.tail)
            self._back = None

    def read_on(self) -> None:
        """Read the next block if the front runs low.

        One block is read ahead if there is memory for it. If the front is empty there always is: the bodies of what the
        consumers have from blocks are not in memory.
        """
        self._end_back()
        back = self._back
        if back is None or self._reading is not None or self.deleted or self.wakeups.stopped:
            return
        block, front_count = back.blocks[0], len(self._fresh)
        if front_count > block.count:
            return
        if front_count and self._held_bytes + block.size_bytes > self._share.free_bytes:
            return
        self._reading = self.wakeups.loop.create_task(self._read(block))

    async def _read(self, block: Block) -> None:
        """Read the first block into the front."""
        error: StoreError | None = None
        places: list[MemoryPlace] = []
        try:
            places = await self.wakeups.loop.run_in_executor(None, self._places_of, block)
        except StoreError as problem:
            error = problem
        self._reading = None
        if isinstance(error, STORE_ENDED):
            return  # the connections are about to be closed with the reason
        if block.is_over:  # it was purged meanwhile
            self.read_on()
            self._front_has_changed()
            return
        assert self._back is not None
        self._back.take_block()
        if error is None:
            self._held(block.size_bytes - BLOCK_RECORD_BYTES)
            self._fresh.extend(places)
            if block.left:
                self._read_blocks[block] = None
            else:
                block.destroy()
        else:
            self._lose(block, error)
        self._head_is_lasting = False
        if block.expires or self.ttl_ms is not None:
            self.may_expire()
        self._front_has_changed()

    def _places_of(self, block: Block) -> list[MemoryPlace]:
        headers, bodies = block.load()
        places: list[MemoryPlace] = []
        at = body_start(headers)
        for sequence, header, body in zip(itertools.count(block.first), headers, bodies, strict=False):
            large = block.large.get(sequence)
            if large is None:
                places.append(BlockPlace(self, sequence, header, body, block, at))
                at += len(body)
            else:
                places.append(LargePlace(self, sequence, header, large))
        return places

    def _front_has_changed(self) -> None:
        self.wakeups.wake(self)
        self._touch_waiting()

    def _touch_waiting(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for channel in waiting:
            channel.connection.touch(channel)

    def _lose(self, block: Block, error: StoreError) -> None:
        self._held(-BLOCK_RECORD_BYTES)
        block.let_go()
        self._lost_count += block.count
        logger.error(
            "queue %r: %d messages in the log cannot be read and are lost; the queue goes on without them: %s",
            self.name,
            block.count,
            self._text_of(error),
        )

    def unreadable(self, place: Place, error: StoreError) -> None:
        """Handle a taken message that cannot be read: it is lost, as nothing would offer it again."""
        if not self.deleted:
            place.accept()
        self.settled(place)
        self._lost_count += 1
        logger.error(
            "queue %r: message %d cannot be read and is lost; the queue goes on without it: %s",
            self.name,
            place.id,
            self._text_of(error),
        )

    def awaits_front(self, channel: Channel) -> bool:
        """Whether the first message is still in the log. Then it is read, and the channel is touched after that."""
        if self._fresh or self._returned or self.deleted:
            return False
        self.read_on()
        if self._reading is not None:
            self._waiting[channel] = None
        return self._reading is not None

    # Taking.

    def _take(self, n: int) -> list[Place]:
        if self._back is not None:
            self._end_back()
        taken: list[Place] = []
        while self._returned and len(taken) < n:
            taken.append(heapq.heappop(self._returned))
        fresh = self._fresh
        while fresh and len(taken) < n:
            taken.append(fresh.popleft())
        self._taken_count += len(taken)
        if self._back is not None:
            self.read_on()
        return taken

    def _head_header(self) -> bytes | None:
        if self._returned:
            return self._returned[0].header
        if not self._fresh and self._back is not None:
            self.read_on()
        return self._fresh[0].header if self._fresh else None

    def undurable_lsn(self) -> int | None:
        """None: a memory queue never waits for the disk."""
        return None

    def settled(self, place: Place) -> None:
        """Called once for each taken place."""
        self._taken_count -= 1
        if self.deleted:
            cast("MemoryPlace", place).let_go()

    def put_back(self, place: MemoryPlace) -> None:
        """Return a place to its old position."""
        heapq.heappush(self._returned, place)

    def drop(self, place: MemoryPlace) -> None:
        """Release the budget of a removed place."""
        size = place.held_bytes
        self._held_bytes -= size
        self._share.used_bytes -= size

    def has_unloaded(self, size: int) -> None:
        """A body of `size` bytes is in memory no longer."""
        if not self.deleted:
            self._held(-size)

    def block_is_over(self, block: Block) -> None:
        """No body of a block that was read is needed any more."""
        self._read_blocks.pop(block, None)

    def purge(self) -> Generator[None, None, int]:
        """Remove all messages that wait now; free them in parts. Returns their number."""
        waiting, self._fresh = self._fresh, collections.deque()
        waiting.extendleft(self._returned)
        self._returned = []
        count = len(waiting)
        back, self._back = self._back, None
        if back is not None:
            count += len(back)
            waiting.extend(back.tail)
            for block in back.blocks:
                self._held(-BLOCK_RECORD_BYTES)
                block.let_go()
        while waiting and not self.deleted:
            for _ in range(min(len(waiting), TURN_UNITS)):
                waiting.pop().accept()
            yield
        _Remains(self.wakeups.turns, waiting).take_turn()
        return count

    def close(self) -> None:
        """Remove the queue with all its messages."""
        super().close()
        self._share.give_back(self._held_bytes)
        self._held_bytes = 0
        back, self._back = self._back, None
        if back is not None:
            self._fresh.extend(back.tail)
            for block in back.blocks:
                block.let_go()
        for block in self._read_blocks:
            block.destroy()
        self._fresh.extend(self._returned)
        _Remains(self.wakeups.turns, self._fresh).take_turn()
        self._fresh = collections.deque()
        self._returned = []
        self._touch_waiting()


class _Remains:
    """The messages of a queue that was deleted: to free very many takes long."""

    def __init__(self, turns: Turns, places: collections.deque[MemoryPlace]) -> None:
        self._turns = turns
        self._places = places

    def take_turn(self) -> int:
        for _ in range(min(len(self._places), FREED_MAX)):
            self._places.pop().let_go()
        if self._places:
            self._turns.add(self)
        return TURN_UNITS
