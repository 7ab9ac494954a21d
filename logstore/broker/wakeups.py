"""Who has to be woken, and when: queues with something to deliver, channels that wait for the disk.

Nothing in the broker polls. Whatever may let a queue deliver (an enqueue, an acknowledgement, room in
a socket, a group commit) calls `wake`; all queues woken in one turn of the event loop are served
together in its next one. The store reports group commits to the loop itself; those that pile up before
it looks count as one.

The broker is not the store's only user: a tool may settle a transaction, a program may publish. Their
work ends in a group commit too, so some time after a commit every queue with consumers is looked at.

What must always hold: after a commit, what waited for an LSN at or below `durable_lsn` is served in
the same turn of the loop.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from logstore import MessageStore
    from logstore.broker.queues import BrokerQueue

logger = logging.getLogger(__name__)

SWEEP_S: Final = 0.25  # after a commit: how long others' messages may wait unnoticed


class Waiter(Protocol):
    """What waits for a group commit."""

    def settle(self, durable_lsn: int) -> bool:
        """Go on with what is durable now; True while something still waits."""


class WakeUps:
    """The broker's only clockwork; it belongs to one event loop."""

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
        self._watched: set[BrokerQueue] = set()
        self._sweep_timer: asyncio.TimerHandle | None = None
        # Opened relaxed, the store promises nothing about the disk, and neither does the broker.
        self._relaxed = store.stats()["durability"] == "relaxed"
        store.on_durable(self._committed, loop=loop)

    def stop(self) -> None:
        """Ignore every later report; the store keeps the callback for its whole life."""
        self.stopped = True
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        self._watched.clear()
        self._queues.clear()
        self._waiters.clear()
        self._undurable.clear()

    @property
    def settled_lsn(self) -> int:
        """Everything below it may be confirmed: it is on the disk, unless the store was opened relaxed."""
        return self.store.next_lsn if self._relaxed else self.store.durable_lsn

    def watch(self, queue: BrokerQueue, wanted: bool) -> None:
        """Whether a queue of the store has consumers, for messages that come past the broker."""
        if wanted:
            self._watched.add(queue)
        else:
            self._watched.discard(queue)

    def wake(self, queue: BrokerQueue) -> None:
        """Let a queue deliver in the next turn of the loop."""
        self._queues[queue] = None
        if not self._serving:
            self._serving = True
            self.loop.call_soon(self._serve)

    def await_commit(self, waiter: Waiter) -> None:
        """Call `waiter.settle` after each group commit, until it waits for nothing more."""
        self._waiters[waiter] = None

    def wake_after_commit(self, queue: BrokerQueue, lsn: int) -> None:
        """Wake a queue when everything below `lsn` is durable; only then are its places offered."""
        self._undurable[queue] = lsn

    def forget(self, queue: BrokerQueue) -> None:
        """A queue is gone."""
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
                # A queue that is written all the time is woken by every commit, as it always has news.
                if self._undurable[queue] <= durable_lsn:
                    del self._undurable[queue]
                self.wake(queue)
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
            try:
                queue.serve()
            except Exception:  # a defect, of this queue only: the others have been taken off the list
                logger.exception("queue %r cannot be served", queue.name)
