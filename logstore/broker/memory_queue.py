"""Queues in memory: those declared non-durable or exclusive. They end with the process.

All of them share one part of the memory budget, so that no client can use up the machine's memory by publishing
messages that are not consumed.
"""

from __future__ import annotations

import collections
import heapq
from typing import TYPE_CHECKING, Final

from logstore.broker.exchanges import Route
from logstore.broker.queues import BrokerQueue
from logstore.broker.turns import TURN_UNITS

if TYPE_CHECKING:
    from collections.abc import Generator

    from logstore.broker.arguments import QueueArguments
    from logstore.broker.durable_queue import DurableQueue
    from logstore.broker.memory import Share
    from logstore.broker.places import Place
    from logstore.broker.turns import Turns
    from logstore.broker.wakeups import WakeUps

FREED_MAX: Final = 4096  # in a turn
PLACE_BYTES: Final = 256  # memory of a message in addition to its header and body; measured, rounded up


def place_bytes(header: bytes, body: bytes | memoryview) -> int:
    """The bytes that one message on one memory queue takes from the budget."""
    return PLACE_BYTES + len(header) + len(body)


class MemoryPlace:
    """One message on one memory queue."""

    __slots__ = ("_queue", "content", "header", "id", "redelivered")

    def __init__(self, queue: MemoryQueue, sequence: int, header: bytes, content: bytes | memoryview) -> None:
        self._queue = queue
        self.id = sequence
        self.header = header
        self.content = content
        self.redelivered = False

    @property
    def size(self) -> int:
        """Bytes of the body."""
        return len(self.content)

    def __lt__(self, other: MemoryPlace) -> bool:
        return self.id < other.id

    def accept(self, *, wait: bool = True) -> None:  # noqa: ARG002
        """Remove the message: it was processed."""
        self._queue.drop(self)

    def reject(self, *, wait: bool = True) -> None:  # noqa: ARG002
        """Remove the message: memory queues have no dead-letter queue."""
        self._queue.drop(self)

    def unload(self) -> None:
        """Do nothing: the message exists in memory only."""

    def release(self, *, unseen: bool = False) -> None:
        """Return to the old position. `unseen`: nothing of it was sent to a client."""
        self.redelivered = self.redelivered or not unseen
        self._queue.put_back(self)


class MemoryQueue(BrokerQueue):
    """A queue in memory, first in, first out. Released messages come before those that were never taken."""

    durable = False

    def __init__(
        self,
        name: str,
        wakeups: WakeUps,
        share: Share,
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
        self._fresh: collections.deque[MemoryPlace] = collections.deque()
        # Places are taken in order, so a returned one precedes everything in `_fresh`.
        self._returned: list[MemoryPlace] = []
        self._next_sequence = 0
        self._taken_count = 0
        self._held_bytes = 0  # of the budget, by this queue

    @property
    def ready_count(self) -> int:
        """Messages that wait."""
        return len(self._fresh) + len(self._returned)

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

    def rejected(self) -> None:
        """Do nothing: memory queues have no dead letters."""

    def enqueue(self, header: bytes, body: bytes | memoryview, *, expires: bool) -> None:
        """Append a message. The caller has reserved its bytes in the budget (`place_bytes`)."""
        self._held_bytes += place_bytes(header, body)
        self._fresh.append(MemoryPlace(self, self._next_sequence, header, body))
        self._next_sequence += 1
        if self.consumers:
            self.wakeups.wake(self)
        if expires or self.ttl_ms is not None:
            self.may_expire()

    def _take(self, n: int) -> list[Place]:
        taken: list[Place] = []
        while self._returned and len(taken) < n:
            taken.append(heapq.heappop(self._returned))
        fresh = self._fresh
        while fresh and len(taken) < n:
            taken.append(fresh.popleft())
        self._taken_count += len(taken)
        return taken

    def _head_header(self) -> bytes | None:
        if self._returned:
            return self._returned[0].header
        return self._fresh[0].header if self._fresh else None

    def undurable_lsn(self) -> int | None:
        """None: a memory queue never waits for the disk."""
        return None

    def settled(self, place: Place) -> None:  # noqa: ARG002
        """Called once for each taken place."""
        self._taken_count -= 1

    def put_back(self, place: MemoryPlace) -> None:
        """Return a place to its old position."""
        heapq.heappush(self._returned, place)

    def drop(self, place: MemoryPlace) -> None:
        """Release the budget of a removed place."""
        size = place_bytes(place.header, place.content)
        self._held_bytes -= size
        self._share.give_back(size)

    def purge(self) -> Generator[None, None, int]:
        """Remove all messages that wait now; free them in parts. Returns their number."""
        waiting, self._fresh = self._fresh, collections.deque()
        waiting.extendleft(self._returned)
        self._returned = []
        count = len(waiting)
        while waiting and not self.deleted:
            for _ in range(min(len(waiting), TURN_UNITS)):
                self.drop(waiting.pop())
            yield
        _Remains(self.wakeups.turns, waiting).take_turn()
        return count

    def close(self) -> None:
        """Remove the queue with all its messages."""
        super().close()
        self._share.give_back(self._held_bytes)
        self._held_bytes = 0
        _Remains(self.wakeups.turns, self._fresh).take_turn()
        self._fresh = collections.deque()
        self._returned = []


class _Remains:
    """The messages of a queue that was deleted: to free very many takes long."""

    def __init__(self, turns: Turns, places: collections.deque[MemoryPlace]) -> None:
        self._turns = turns
        self._places = places

    def take_turn(self) -> int:
        for _ in range(min(len(self._places), FREED_MAX)):
            self._places.pop()
        if self._places:
            self._turns.add(self)
        return TURN_UNITS
