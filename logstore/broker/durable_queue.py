"""Durable queues: a view of a queue of the store.

The store keeps order, redelivery and positions. The broker only adds which places are out with
consumers, and up to which LSN it has enqueued.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, cast

from logstore.broker.errors import STORE_ENDED
from logstore.broker.exchanges import Route
from logstore.broker.queues import BrokerQueue
from logstore.errors import StoreError, UnknownMessage, UnknownQueue

if TYPE_CHECKING:
    from collections.abc import Mapping

    from logstore import Delivery, MessageStore, Queue, Transaction
    from logstore.broker.acquired import Acquired
    from logstore.broker.arguments import QueueArguments
    from logstore.broker.consumer import Consumer
    from logstore.broker.memory_queue import MemoryQueue
    from logstore.broker.places import Place
    from logstore.broker.wakeups import WakeUps


class DurableQueue(BrokerQueue):
    """A queue whose messages survive the process."""

    durable = True

    def __init__(
        self,
        handle: Queue,
        wakeups: WakeUps,
        *,
        auto_delete: bool,
        arguments: QueueArguments,
        neighbours: Mapping[str, BrokerQueue],
    ) -> None:
        super().__init__(
            handle.name,
            wakeups,
            exclusive=False,
            auto_delete=auto_delete,
            owner=None,
            arguments=arguments,
        )
        self.handle = handle
        self.route = Route((self,), ())
        self._store: MessageStore = wakeups.store
        self._neighbours = neighbours  # all queues by name, among them the dead-letter queue
        self._out_count = 0  # taken places
        self._out: set[int] | None = None  # their ids, kept only on a queue with messages that expire
        self._front: int | None = None  # no message that waits is at this position or before it; None: not known
        self._enqueued_lsn = 0
        self._published = 0

    @property
    def ready_count(self) -> int:
        """The number of waiting messages; 0 once the store has deleted the queue."""
        try:
            return max(0, self.handle.depth - self._out_count)
        except UnknownQueue:
            return 0

    @property
    def published(self) -> int:
        """The number of messages enqueued since the queue was made or loaded."""
        return self._published

    @property
    def unacknowledged_count(self) -> int:
        """The number of taken places, without those that are set aside."""
        return self._out_count - len(self._set_aside)

    def unlocked_count(self) -> int:
        """The number of messages that a purge would remove: neither taken nor locked by a transaction."""
        counts = self._store.stats()["queues"][self.name]
        return int(max(0, counts["depth"] - counts["locked"] - counts["acquired"]))

    def sort_into(self, durable: list[DurableQueue], memory: list[MemoryQueue]) -> None:  # noqa: ARG002
        """Append this queue to the durable queues."""
        durable.append(self)

    def enqueued(self, lsn: int, *, expires: bool, count: int = 1) -> None:
        """Messages were published to the store's queue. They can be acquired once `lsn` is durable."""
        self._enqueued_lsn = lsn
        self._published += count
        if expires or self.ttl_ms is not None:
            self.may_expire()
        if self.consumers:
            self.wakeups.wake_after_commit(self, lsn)

    def add_consumer(self, consumer: Consumer) -> None:
        """Add a consumer."""
        super().add_consumer(consumer)
        self.wakeups.watch(self, self.handle)

    def remove_consumer(self, consumer: Consumer) -> None:
        """Remove a consumer."""
        super().remove_consumer(consumer)
        if not self.consumers:
            self.wakeups.unwatch(self)

    def rejected(self) -> None:
        """A place was rejected: wake its dead-letter queue."""
        dead_letters = self._neighbours.get(self.handle.dead_letter or "")
        if isinstance(dead_letters, DurableQueue):
            dead_letters.enqueued(self._store.next_lsn, expires=False)

    def accept_all(self, taken: list[Acquired]) -> None:
        """Accept all of them in one call of the store."""
        if len(taken) < 2 or self.deleted:
            super().accept_all(taken)
            return
        places = [acquired.place for acquired in taken]
        try:
            self.handle.accept_many(cast("list[Delivery]", places), wait=False)
        except StoreError as error:
            done: int = getattr(error, "dequeued", 0)
            self._all_settled(places[:done])
            if isinstance(error, STORE_ENDED):
                for remaining in taken[done:]:
                    remaining.release()
                raise
            super().accept_all(taken[done:])  # one by one, to find the place that the store refuses
        else:
            self._all_settled(places)

    def settle_within(self, transaction: Transaction, place: Place, *, rejects: bool) -> None:
        """Accept or reject a taken place when the transaction commits; it stays taken until then.

        Raises `StoreError`. The caller calls `settled` after the commit.
        """
        delivery = cast("Delivery", place)
        (delivery.reject if rejects else delivery.accept)(transaction=transaction)

    def was_purged(self) -> None:
        """The store has purged the queue."""
        self._head_is_lasting = False

    def came_back(self) -> None:
        """Called after a message was released to its place."""
        self._front = None
        super().came_back()

    def _take(self, n: int) -> list[Place]:
        try:
            deliveries = self.handle.acquire(n, load=True)
        except UnknownQueue:  # deleted from the store, and soon also here
            return []
        self._out_count += len(deliveries)
        if self._out is not None:
            self._out.update([delivery.id for delivery in deliveries])
        if deliveries and self._may_expire:
            counts = self.handle.counts()
            others_have_none = counts.depth - counts.ready == self._out_count  # and nothing is hidden or locked
            self._front = deliveries[-1].position if others_have_none else None
        return cast("list[Place]", deliveries)

    def _head_header(self) -> bytes | None:
        if not self.ready_count:
            return None
        with contextlib.suppress(UnknownQueue):
            out = self._ids_out()
            for message in self.handle.browse(after=self._front):
                if message.id not in out and not message.locked:
                    with contextlib.suppress(UnknownMessage):
                        return message.header
        return None

    def _ids_out(self) -> set[int]:
        """The ids of the taken places, from now on kept."""
        if self._out is None:
            self._out = {taken.id for taken in self.handle.acquisitions()} if self._out_count else set()
        return self._out

    def undurable_lsn(self) -> int | None:
        """The LSN whose durability makes everything enqueued available; None if everything is."""
        return self._enqueued_lsn if self._enqueued_lsn > self._store.durable_lsn else None

    def stored_id(self, place: Place) -> int:
        """The id of its message."""
        return place.id

    def settled(self, place: Place) -> None:
        """Called once for each taken place."""
        self._out_count -= 1
        if self._out is not None:
            self._out.discard(place.id)

    def _all_settled(self, places: list[Place]) -> None:
        self._out_count -= len(places)
        if self._out is not None:
            self._out.difference_update([place.id for place in places])
