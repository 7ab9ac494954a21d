"""Wakes queues that may have something to deliver, and channels that wait for the disk.

Nothing in the broker polls. Every event that may let a queue deliver (an enqueue, an acknowledgement,
room in a socket, a group commit) calls `wake`; queues woken in one turn of the event loop are served
together in the next turn, as many as a turn allows (`turns`). The store reports group commits to the loop; several
commits before the loop runs count as one.

The broker is not the store's only user: a tool may settle a transaction, a program may publish. So the
broker listens to each queue with consumers: the store reports messages that arrived or came back. While
a queue waits for a commit of the broker's own messages, that commit wakes it, and arrivals do not.

Invariant: after a commit, everything that waited for an LSN at or below `durable_lsn` is served in the
same turn of the loop.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import logging
from typing import TYPE_CHECKING, Final, Protocol

from logstore.broker.turns import TURN_UNITS
from logstore.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable

    from logstore import Listener, MessageStore, Queue
    from logstore.broker.channel import Channel
    from logstore.broker.queues import BrokerQueue
    from logstore.broker.turns import Turns

logger = logging.getLogger(__name__)

# Of the log's room (`room_percent`). An append that waits would stop the whole broker, so below these its event loop
# appends nothing; acknowledgements are for longer than publishes. In a batch of 2 MiB, the default, the room takes the
# largest inline body and what one read of a socket gives: publishes, and acknowledgements of single messages.
PUBLISH_PERCENT: Final = 75
SERVE_PERCENT: Final = 60  # below it consumers get nothing, as outcomes need room
ANY_PERCENT: Final = 40
# Confirms that take the usual way after the store had to give one back, as something else waited.
USUAL_AFTER: Final = 64


class Waiter(Protocol):
    """An object that waits for a group commit."""

    def settle(self, durable_lsn: int) -> bool:
        """Continue with everything that is durable now. True while something still waits."""


class WakeUps:
    """The wake-ups of one broker; belongs to one event loop."""

    def __init__(
        self,
        store: MessageStore,
        loop: asyncio.AbstractEventLoop,
        turns: Turns,
        on_poison: Callable[[Exception], None],
    ) -> None:
        self.store = store
        self.loop = loop
        self.turns = turns
        self._on_poison = on_poison
        self._queues: collections.OrderedDict[BrokerQueue, None] = collections.OrderedDict()  # to be served
        self._waiters: dict[Waiter, None] = {}
        self._undurable: dict[BrokerQueue, int] = {}
        self.stopped = False
        self._room = asyncio.Event()  # set for a moment
        self._room_waiters = 0
        self._watched: dict[BrokerQueue, list[Listener]] = {}
        # With relaxed durability the store does not wait for the disk, and so the broker does not either.
        self._relaxed = store.stats()["durability"] == "relaxed"
        self._answers = store._answers_of(loop)
        self._answerer: Channel | None = None  # whose confirm the store sends
        self._usual = 0  # so many confirms take the usual way
        self._listeners = [store.on_durable(self._committed, loop=loop), store._on_room(self._has_room, loop=loop)]

    def stop(self) -> None:
        """Ignore every later report."""
        self.stopped = True
        for listener in self._listeners:
            listener.close()
        self._room.set()
        for queue in list(self._watched):
            self.unwatch(queue)
        self._queues.clear()
        self.turns.discard(self)
        self._waiters.clear()
        self._undurable.clear()

    @property
    def settled_lsn(self) -> int:
        """Everything below this LSN may be confirmed: it is durable, or the store's durability is relaxed."""
        return self.store.next_lsn if self._relaxed else self.store.durable_lsn

    def watch(self, queue: BrokerQueue, handle: Queue) -> None:
        """Wake a queue also when other programs publish to it, or give messages back, until `unwatch`."""
        if queue in self._watched or self.stopped:
            return

        def told(_: Queue) -> None:
            if queue not in self._undurable:
                self.wake(queue)

        with contextlib.suppress(StoreError):  # deleted from the store, or the store has ended: nothing will come
            arrivals = handle.on_arrived(told, loop=self.loop)
            self._watched[queue] = [arrivals, handle.on_released(told, loop=self.loop)]

    def unwatch(self, queue: BrokerQueue) -> None:
        """End `watch`: the queue has no consumer."""
        for listener in self._watched.pop(queue, []):
            listener.close()

    def wake(self, queue: BrokerQueue) -> None:
        """Serve a queue in the next turn of the loop."""
        self._queues[queue] = None
        self.turns.add(self)

    def await_commit(self, waiter: Waiter) -> None:
        """Call `waiter.settle` after each group commit until it returns False."""
        if self._answerer is not None:
            self._hear()
        self._waiters[waiter] = None

    # The confirm of a client that waits for each one, alone: the store sends it, and the loop sleeps on.

    def answer(self, channel: Channel, lsn: int, socket: int, data: bytes) -> bool:
        """Leave a confirm with the store if nothing but this channel waits for a group commit."""
        if self._usual:
            self._usual -= 1
            return False
        if len(self._waiters) != 1 or channel not in self._waiters:
            return False
        if self._undurable or self._queues or self._room_waiters:
            return False
        if not self._answers.answer(lsn, socket, data, self.recall):
            return False
        del self._waiters[channel]
        self._answerer = channel
        return True

    def publish(
        self,
        channel: Channel,
        handle: Queue,
        header: bytes,
        data: bytes,
        start: int,
        end: int,
        socket: int,
        answer: bytes,
    ) -> int:
        """Publish a part of the data, and leave its confirm in place of the last one, which the channel has left.

        Returns the LSN to wait for, negative if the store does not take the confirm; 0, and nothing is done, if
        something else waits, or the publish has to wait.
        """
        fd = self._answers.answering_fd if channel is self._answerer else -1
        store = self.store
        if fd < 0 or store.room_percent < PUBLISH_PERCENT or store.nearly_full:
            return 0
        return store._publish_answered(handle, header, data, start, end, fd, socket, answer)

    def recall(self) -> None:
        """Take the confirm back from the store, before anything else goes to its client."""
        channel, self._answerer = self._answerer, None
        if channel is not None:
            sent_bytes = self._answers.answered()
            if sent_bytes < 0:
                self._usual = USUAL_AFTER
            channel.answered(sent_bytes)

    def _hear(self) -> None:
        """Something waits for a group commit: the last one may have been without a signal."""
        if self._answerer is not None:
            self.recall()
            self.loop.call_soon(self._committed, 0)

    async def room(self, percent: int = ANY_PERCENT) -> None:
        """Returns in another turn of the loop, once the log has so much room, or has ended."""
        await asyncio.sleep(0)
        self._hear()
        self._room_waiters += 1
        try:
            while not self.stopped and self.store.room_percent < percent:
                await self._room.wait()
        finally:
            self._room_waiters -= 1

    def wake_after_commit(self, queue: BrokerQueue, lsn: int) -> None:
        """Wake a queue when everything below `lsn` is durable: only then can its places be acquired."""
        if self._answerer is not None:
            self._hear()
        self._undurable[queue] = lsn

    def forget(self, queue: BrokerQueue) -> None:
        """Forget a deleted queue."""
        self.unwatch(queue)
        self._queues.pop(queue, None)
        self._undurable.pop(queue, None)

    def _committed(self, report: int | Exception) -> None:
        if self.stopped:
            return
        if isinstance(report, Exception):
            self._on_poison(report)
            return
        if self._answerer is not None:
            self.recall()
        if self._undurable:
            durable_lsn = self.store.durable_lsn
            for queue in list(self._undurable):
                # Woken even if its newest LSN is not durable yet: a busy queue has new durable places at every commit.
                if self._undurable[queue] <= durable_lsn:
                    del self._undurable[queue]
                self.wake(queue)
        self._has_room()

    def _has_room(self, _report: None = None) -> None:
        """After a group commit, or when the log has its next segment: continue with what waited for room in it."""
        if self.stopped:
            return
        if self._room_waiters:
            self._room.set()
            self._room.clear()
        if self._queues:
            self.turns.add(self)
        if self._waiters:
            self.turns.together(self._settle)

    def _settle(self) -> None:
        for waiter in list(self._waiters):
            if not waiter.settle(self.settled_lsn):
                self._waiters.pop(waiter, None)

    def take_turn(self) -> int:
        """Serve the queues that were woken, as many as a turn allows."""
        units = 0
        for _ in range(len(self._queues)):
            if units >= TURN_UNITS:
                self.turns.add(self)
                break
            if not self._queues or self.store.room_percent < SERVE_PERCENT:
                self._hear()
                break  # those that are left are served when there is room
            queue, _ = self._queues.popitem(last=False)
            try:
                units += 1 + queue.serve()
            except Exception:  # a defect; it must not keep the other queues from being served
                logger.exception("queue %r cannot be served", queue.name)
        return units
