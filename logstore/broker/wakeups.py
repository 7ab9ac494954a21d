"""Wakes queues that may have something to deliver, and channels that wait for the disk.

Nothing in the broker polls. Every event that may let a queue deliver (an enqueue, an acknowledgement,
room in a socket, a group commit) calls `wake`; all queues woken in one turn of the event loop are served
together in the next turn. The store reports group commits to the loop; several commits before the loop
runs count as one.

The broker is not the store's only user: a tool may settle a transaction, a program may publish. That
also ends in a group commit, so every queue with consumers is served a short time after each commit.

Invariant: after a commit, everything that waited for an LSN at or below `durable_lsn` is served in the
same turn of the loop.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from logstore import MessageStore
    from logstore.broker.queues import BrokerQueue

logger = logging.getLogger(__name__)

# Of the log's room (`room_percent`). An append that waits would stop the whole broker, so below these its event loop
# appends nothing; acknowledgements are for longer than publishes. In a batch of 2 MiB, the default, the room takes the
# largest inline body and what one read of a socket gives: publishes, and acknowledgements of single messages.
PUBLISH_PERCENT: Final = 75
SERVE_PERCENT: Final = 60  # below it consumers get nothing, as outcomes need room
ANY_PERCENT: Final = 40
SWEEP_S: Final = 0.25  # after a commit: the longest time until messages of other programs are noticed


class Waiter(Protocol):
    """An object that waits for a group commit."""

    def settle(self, durable_lsn: int) -> bool:
        """Continue with everything that is durable now. True while something still waits."""


class WakeUps:
    """The wake-ups of one broker; belongs to one event loop."""

    def __init__(
        self, store: MessageStore, loop: asyncio.AbstractEventLoop, on_poison: Callable[[Exception], None]
    ) -> None:
        self.store = store
        self.loop = loop
        self._on_poison = on_poison
        self._queues: dict[BrokerQueue, None] = {}
        self._serving = False
        self._waiters: dict[Waiter, None] = {}
        self._undurable: dict[BrokerQueue, int] = {}
        self.stopped = False
        self._room = asyncio.Event()  # set for a moment
        self._watched: set[BrokerQueue] = set()
        self._sweep_timer: asyncio.TimerHandle | None = None
        # With relaxed durability the store does not wait for the disk, and so the broker does not either.
        self._relaxed = store.stats()["durability"] == "relaxed"
        self._listeners = [store.on_durable(self._committed, loop=loop), store._on_room(self._has_room, loop=loop)]

    def stop(self) -> None:
        """Ignore every later report."""
        self.stopped = True
        for listener in self._listeners:
            listener.close()
        self._room.set()
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        self._watched.clear()
        self._queues.clear()
        self._waiters.clear()
        self._undurable.clear()

    @property
    def settled_lsn(self) -> int:
        """Everything below this LSN may be confirmed: it is durable, or the store's durability is relaxed."""
        return self.store.next_lsn if self._relaxed else self.store.durable_lsn

    def watch(self, queue: BrokerQueue, wanted: bool) -> None:
        """Whether to watch a queue for messages that other programs publish; wanted while it has consumers."""
        if wanted:
            self._watched.add(queue)
        else:
            self._watched.discard(queue)

    def wake(self, queue: BrokerQueue) -> None:
        """Serve a queue in the next turn of the loop."""
        self._queues[queue] = None
        if not self._serving:
            self._serving = True
            self.loop.call_soon(self._serve)

    def await_commit(self, waiter: Waiter) -> None:
        """Call `waiter.settle` after each group commit until it returns False."""
        self._waiters[waiter] = None

    async def room(self) -> None:
        """Returns in another turn of the loop, once the log has room for more acknowledgements, or has ended."""
        await asyncio.sleep(0)
        while not self.stopped and self.store.room_percent < ANY_PERCENT:
            await self._room.wait()

    def wake_after_commit(self, queue: BrokerQueue, lsn: int) -> None:
        """Wake a queue when everything below `lsn` is durable: only then can its places be acquired."""
        self._undurable[queue] = lsn

    def forget(self, queue: BrokerQueue) -> None:
        """Forget a deleted queue."""
        self._watched.discard(queue)
        self._queues.pop(queue, None)
        self._undurable.pop(queue, None)

    def _committed(self, report: int | Exception) -> None:
        if self.stopped:
            return
        if isinstance(report, Exception):
            self._on_poison(report)
            return
        durable_lsn = self.store.durable_lsn
        if self._watched and self._sweep_timer is None:
            self._sweep_timer = self.loop.call_later(SWEEP_S, self._sweep)
        if self._undurable:
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
        self._room.set()
        self._room.clear()
        if self._queues and not self._serving:
            self._serving = True
            self.loop.call_soon(self._serve)
        for waiter in list(self._waiters):
            if not waiter.settle(self.settled_lsn):
                self._waiters.pop(waiter, None)

    def _sweep(self) -> None:
        self._sweep_timer = None
        for queue in self._watched:
            self.wake(queue)

    def _serve(self) -> None:
        queues, self._queues = self._queues, {}
        self._serving = False
        for queue in queues:
            if self.store.room_percent < SERVE_PERCENT:
                self._queues[queue] = None  # until there is room
                continue
            try:
                queue.serve()
            except Exception:  # a defect; it must not keep the other queues from being served
                logger.exception("queue %r cannot be served", queue.name)
