"""A queue as the broker sees it: delivery to consumers in turn, counts, expiry. Subclasses keep the messages.

`DurableQueue` keeps them in the store, `MemoryQueue` in memory. Both offer places through the same few
methods, so delivery, acknowledgement, requeue and expiry are implemented once.

Invariant: a taken place is either settled (accepted or rejected) or returned to its old position; unseen, if nothing
of it was sent to a client, so that `redelivered` is true only for what a client may have had.
"""

from __future__ import annotations

import abc
import collections
import contextlib
import logging
import time
from typing import TYPE_CHECKING, Final

from logstore.broker.acquired import GONE, Acquired
from logstore.broker.errors import STORE_ENDED
from logstore.broker.exchanges import NOWHERE, Binding, Route
from logstore.broker.frames import short_string
from logstore.broker.headers import PLAIN_BYTES, PLAIN_START, Envelope, MessageHeader, decode_header
from logstore.broker.wakeups import SERVE_PERCENT
from logstore.core.directory import with_directory
from logstore.errors import StoreError

if TYPE_CHECKING:
    import asyncio

    from logstore.broker.arguments import QueueArguments
    from logstore.broker.consumer import Consumer
    from logstore.broker.consumers import Consuming
    from logstore.broker.durable_queue import DurableQueue
    from logstore.broker.memory_queue import MemoryQueue
    from logstore.broker.outbox import Outbox
    from logstore.broker.places import Place
    from logstore.broker.wakeups import WakeUps

logger = logging.getLogger(__name__)

BATCH_MAX: Final = 128  # places taken at once
TURN_MAX: Final = 512  # deliveries before other queues and sockets get their turn
BATCH_BYTES_AIM: Final = 256 * 1024  # for the bodies of one batch, estimated from earlier bodies
LOCKED_HEAD_RETRY_S: Final = 1.0
EXPIRY_CHECK_S: Final = 0.01  # a queue in use has a new first message all the time: it is looked up once in this time


class BrokerQueue(abc.ABC):
    """Name, owner, arguments, consumers and expiry of one queue."""

    durable: bool

    def __init__(
        self,
        name: str,
        wakeups: WakeUps,
        *,
        exclusive: bool,
        auto_delete: bool,
        owner: object | None,
        arguments: QueueArguments,
    ) -> None:
        self.name = name
        self.exclusive = exclusive
        self.auto_delete = auto_delete
        self.owner = owner  # the connection an exclusive queue belongs to
        self.arguments = arguments
        self.ttl_ms = arguments.ttl_ms
        self.expires_ms = arguments.expires_ms
        self.wakeups = wakeups
        self._set_aside: list[Place] = []  # taken places that cannot be read
        self.bindings: set[Binding] = set()
        # Counts since the queue was made or loaded, for statistics; a batch counts at once.
        self.delivered = 0
        self.acknowledged = 0  # by consumers, or delivered without acknowledgement
        self.deleted = False
        self.is_leaving = False  # its deletion is in progress, so the store may no longer have it
        self.consumers: collections.deque[Consumer] = collections.deque()
        self.used_at = wakeups.loop.time()
        self.route: Route = NOWHERE
        self._default_routing = b"\x00" + short_string(name)
        # Successive messages mostly have the same routing and properties: the last header, and the part of it behind
        # the time.
        self._last_header: bytes | None = None
        self._last_tail: bytes | None = None
        self._last_envelope = Envelope(b"", b"")
        self._body_bytes_mean = 4096.0
        self._may_expire = self.ttl_ms is not None
        self._head_is_lasting = False  # the first message never expires; forgotten when it goes
        self._expiry_timer: asyncio.TimerHandle | None = None
        self.unused_timer: asyncio.TimerHandle | None = None  # for `x-expires`

    # Implemented by the subclasses.

    @property
    @abc.abstractmethod
    def ready_count(self) -> int:
        """The number of waiting messages, without those out with consumers."""

    @property
    @abc.abstractmethod
    def published(self) -> int:
        """The number of messages enqueued since the queue was made or loaded, dead letters included."""

    @property
    @abc.abstractmethod
    def unacknowledged_count(self) -> int:
        """The number of messages that are delivered and neither acknowledged, rejected nor released."""

    @abc.abstractmethod
    def sort_into(self, durable: list[DurableQueue], memory: list[MemoryQueue]) -> None:
        """Append this queue to the list of its kind."""

    @abc.abstractmethod
    def _take(self, n: int) -> list[Place]:
        """Take up to `n` places from the front, in order."""

    def accept_all(self, taken: list[Acquired]) -> None:
        """Accept all of them in order. If the store refuses one, release it and the later ones, and raise its error."""
        for index, acquired in enumerate(taken):
            try:
                acquired.accept()
            except StoreError:
                for remaining in taken[index:]:
                    remaining.release()
                raise

    @abc.abstractmethod
    def _head_header(self) -> bytes | None:
        """The header of the first waiting message, which is not taken; None if no message waits."""

    @abc.abstractmethod
    def settled(self, place: Place) -> None:
        """Called once for each taken place: it is settled, released or gone."""

    @abc.abstractmethod
    def undurable_lsn(self) -> int | None:
        """The LSN whose durability makes all enqueued messages available; None if all are."""

    @abc.abstractmethod
    def stored_id(self, place: Place) -> int:
        """The id in the store of a message whose body is sent in pieces."""

    @abc.abstractmethod
    def rejected(self) -> None:
        """Called after a place of this queue was rejected."""

    # Consumers.

    def add_consumer(self, consumer: Consumer) -> None:
        """Add a consumer as the last one of the round."""
        self.consumers.append(consumer)
        self.wakeups.wake(self)
        self.wake_when_durable()

    def remove_consumer(self, consumer: Consumer) -> None:
        """Remove a consumer."""
        self.consumers.remove(consumer)
        self.touch()

    def touch(self) -> None:
        """Note a use of the queue; the time of `x-expires` restarts."""
        self.used_at = self.wakeups.loop.time()

    def wake_when_durable(self) -> None:
        """If enqueued messages are not durable yet, wake the queue when they are."""
        lsn = self.undurable_lsn()
        if lsn is not None:
            self.wakeups.wake_after_commit(self, lsn)

    def _first_header(self) -> bytes | None:
        """The header of the first waiting message; None if no message waits. Sets aside those that cannot be read."""
        while True:
            try:
                return self._head_header()
            except STORE_ENDED:
                raise
            except StoreError:
                taken = self._take(1)
                if not taken or self._header_of(taken[0]) is not None:
                    for place in taken:  # another message is first, or this one can be read again
                        self.give_back(place, unseen=True)
                    raise

    def _header_of(self, place: Place) -> bytes | None:
        """The header of a taken message; None if it cannot be read, which is then handled."""
        try:
            return place.header
        except STORE_ENDED:
            raise
        except StoreError as error:
            self.unreadable(place, error)
            return None

    def content_of(self, place: Place) -> bytes | memoryview | None:
        """The body of a taken message; None if it cannot be read, which is then handled. Raises `STORE_ENDED`."""
        try:
            return place.content
        except STORE_ENDED:
            raise
        except StoreError as error:
            self.unreadable(place, error)
            return None

    def serve(self) -> int:
        """Deliver waiting messages to consumers in turn, while they have credit; then handle expiry.

        Returns the units (`turns`).
        """
        before = self.delivered
        if self.deleted:
            return 0
        try:
            if self.consumers:
                self._deliver()
            if self._may_expire and self._expiry_timer is None and not self._head_is_lasting:
                self._check_expiry_soon()
        except StoreError as error:
            # A poisoned store is reported elsewhere; any other error concerns this queue only.
            level = logging.DEBUG if isinstance(error, STORE_ENDED) else logging.ERROR
            logger.log(level, "queue %r cannot deliver: %s", self.name, self._text_of(error))
        return (self.delivered - before) // 2

    def _deliver(self) -> None:
        left = TURN_MAX
        while left > 0:
            credit, room_bytes = self._demand()
            if not credit:
                return
            wanted = min(credit, max(1, int(room_bytes / self._body_bytes_mean)))
            batch = self.acquire(wanted, for_consumer=True)
            if not batch:
                return
            left -= len(batch)
            if len(self.consumers) == 1:
                handled, size_bytes = self.consumers[0].deliver_all(batch)
                if handled:
                    self._body_bytes_mean += (size_bytes / handled - self._body_bytes_mean) / 2
            else:
                handled = self._deliver_in_turn(batch)
            if handled < len(batch):
                # The bodies were longer than the estimate, so the sockets are full.
                for remaining in reversed(batch[handled:]):
                    remaining.release(unseen=True)
                return
        self.wakeups.wake(self)

    def _demand(self) -> tuple[int, int]:
        """The messages that the consumers may get now, and the bytes that their sockets have room for, up to a batch.

        Consumers share the limits of their channel and the room of their connection: each of these counts once.
        """
        credit = room_bytes = 0
        by_channel: dict[Consuming, int] = {}
        outboxes: set[Outbox] = set()
        for consumer in self.consumers:
            own = consumer.credit()
            if not own:
                continue
            if not consumer.no_ack:
                consuming = consumer.channel.consuming
                counted = by_channel.get(consuming, 0)
                own = min(own, consuming.credit() - counted)
                by_channel[consuming] = counted + own
            credit += own
            outbox = consumer.channel.connection.outbox
            if outbox not in outboxes:
                outboxes.add(outbox)
                room_bytes += outbox.room_bytes()
            if credit >= BATCH_MAX and room_bytes >= BATCH_BYTES_AIM:
                break
        return min(credit, BATCH_MAX), min(room_bytes, BATCH_BYTES_AIM)

    def _deliver_in_turn(self, batch: list[Acquired]) -> int:
        """Deliver to several consumers. Returns how many messages were handled."""
        for index, acquired in enumerate(batch):
            consumer = self._next_consumer()
            if consumer is None:
                return index
            try:
                size_bytes = consumer.deliver(acquired)
            except STORE_ENDED:
                raise
            except StoreError as error:
                self.unreadable(acquired.place, error)
                continue
            self._body_bytes_mean += (size_bytes - self._body_bytes_mean) / 8
        return len(batch)

    def _next_consumer(self) -> Consumer | None:
        consumers = self.consumers
        for _ in range(len(consumers)):
            consumer = consumers[0]
            consumers.rotate(-1)
            if consumer.credit():
                return consumer
        return None

    def unreadable(self, place: Place, error: StoreError) -> None:
        """Handle a taken message that cannot be read: it is gone, or the log is damaged there."""
        if isinstance(error, GONE):
            self.settled(place)
            return
        # It stays taken, so that it is not lost and does not block the queue. A restart offers it again. The place is
        # kept, because the store releases a delivery that is dropped.
        self._set_aside.append(place)
        logger.error(
            "queue %r: message %d cannot be read and is set aside until a restart; the queue goes on without it: %s",
            self.name,
            place.id,
            self._text_of(error),
        )

    @property
    def unreadable_count(self) -> int:
        """The number of messages that are set aside because they cannot be read."""
        return len(self._set_aside)

    def unreadable_ids(self) -> list[int]:
        """The ids of the messages that are set aside because they cannot be read."""
        return [place.id for place in self._set_aside]

    def _text_of(self, error: StoreError) -> str:
        return with_directory(error.message, self.wakeups.store.path)

    # Taking.

    def acquire(self, n: int, *, for_consumer: bool = False) -> list[Acquired]:
        """Take up to `n` messages from the front. Expired messages found there are removed."""
        acquired: list[Acquired] = []
        overdue = 0
        while not acquired and not (for_consumer and overdue >= TURN_MAX):  # the rest in another turn
            places = self._take(n)
            if not places:
                break
            self._head_is_lasting = False
            if self._may_expire:
                self._check_expiry_soon()
            for place in places:
                try:
                    data = place.header
                except STORE_ENDED:
                    raise
                except StoreError as error:
                    self.unreadable(place, error)
                    continue
                if data == self._last_header:  # of the same millisecond
                    acquired.append(Acquired(self, place, self._last_envelope))
                    continue
                plain = self.ttl_ms is None and data.startswith(PLAIN_START)  # then it does not expire
                if plain and data[PLAIN_BYTES:] == self._last_tail:
                    self._last_header = data
                    acquired.append(Acquired(self, place, self._last_envelope))
                    continue
                header = decode_header(data, self._default_routing)
                if self._is_overdue(header, for_consumer):
                    self.settled(place)
                    place.accept(wait=False)
                    overdue += 1
                    continue
                envelope = Envelope(header.routing, header.properties)
                if plain and header.published_ms is not None:
                    self._last_header, self._last_tail, self._last_envelope = data, data[PLAIN_BYTES:], envelope
                acquired.append(Acquired(self, place, envelope))
        return acquired

    def give_back(self, place: Place, *, unseen: bool = False) -> None:
        """Return a taken message to its old position. `unseen`: nothing of it was sent to a client."""
        self.settled(place)
        if not self.deleted:  # else the store has removed its places
            with contextlib.suppress(*GONE):
                place.release(unseen=unseen)
            self.came_back()

    def came_back(self) -> None:
        """Called after a message was released to its place."""
        self._head_is_lasting = False
        self.wakeups.wake(self)

    # Expiry of messages. Only the first message is checked; the next one is checked when it becomes the first.

    def _due_ms(self, header: MessageHeader) -> int | None:
        if header.published_ms is None:
            return None
        ttl_ms = self.ttl_ms
        if header.expiration_ms is not None and (ttl_ms is None or header.expiration_ms < ttl_ms):
            ttl_ms = header.expiration_ms
        return None if ttl_ms is None else header.published_ms + ttl_ms

    def _is_overdue(self, header: MessageHeader, for_consumer: bool) -> bool:
        due_ms = self._due_ms(header)
        if due_ms is None:
            return False
        self._may_expire = True
        if for_consumer and due_ms == header.published_ms:
            return False  # a time to live of 0 means "deliver at once or never", and this is at once
        return due_ms <= now_ms()

    def may_expire(self) -> None:
        """Called when the queue has, or may have, a message that expires."""
        self._may_expire = True
        self._arm_expiry()

    def _check_expiry_soon(self) -> None:
        """Look up the new first message, which may be overdue, or its time."""
        timer, loop = self._expiry_timer, self.wakeups.loop
        if timer is not None:
            if timer.when() <= loop.time() + EXPIRY_CHECK_S:
                return
            timer.cancel()  # it is the time of another message
        self._expiry_timer = loop.call_later(EXPIRY_CHECK_S, self._drop_overdue)

    def _arm_expiry(self) -> None:
        if self._expiry_timer is not None or self._head_is_lasting or self.deleted:
            return
        data = self._first_header()
        if data is None:
            self._may_expire = self.ttl_ms is not None
            return
        due_ms = self._due_ms(decode_header(data, self._default_routing))
        if due_ms is None:
            self._head_is_lasting = True
            return
        delay_s = max(0, due_ms - now_ms()) / 1000
        self._expiry_timer = self.wakeups.loop.call_later(delay_s, self._drop_overdue)

    def _drop_overdue(self) -> None:
        self._expiry_timer = None
        if self.deleted or self.wakeups.stopped:
            return
        if self.wakeups.store.room_percent < SERVE_PERCENT:
            self.wakeups.wake(self)  # which sets the timer again once there is room
            return
        try:
            if self.consumers:
                self._deliver()
            blocked = not self._drop_from_front()
            if not blocked:
                self._arm_expiry()
        except StoreError as error:
            logger.log(
                logging.DEBUG if isinstance(error, STORE_ENDED) else logging.ERROR,
                "messages of queue %r cannot expire: %s",
                self.name,
                self._text_of(error),
            )
            return
        if not blocked:
            return
        # The first message is not durable yet, or locked by a transaction.
        lsn = self.undurable_lsn()
        if lsn is not None:
            self.wakeups.wake_after_commit(self, lsn)
        elif self._expiry_timer is None:
            self._expiry_timer = self.wakeups.loop.call_later(LOCKED_HEAD_RETRY_S, self._drop_overdue)

    def _drop_from_front(self) -> bool:
        """Remove expired messages at the front.

        False if the first one has expired but cannot be taken, or is about to be delivered. Of very many some are left
        for another turn.
        """
        for _ in range(TURN_MAX):
            data = self._first_header()
            if data is None:
                return True
            header = decode_header(data, self._default_routing)
            if not self._is_overdue(header, False):
                return True
            if not self._is_overdue(header, True) and any(consumer.credit() for consumer in self.consumers):
                return False  # it may have become durable after the last delivery, so a consumer gets it
            places = self._take(1)
            if not places:
                return False
            place = places[0]
            self._head_is_lasting = False
            data = self._header_of(place)
            if data is None:
                continue
            if not self._is_overdue(decode_header(data, self._default_routing), False):
                self.give_back(place, unseen=True)  # another message than the one checked above
                return True
            self.settled(place)
            place.accept(wait=False)
        return True

    def close(self) -> None:
        """Mark the queue as deleted and cancel its timers."""
        self.deleted = True
        self.wakeups.forget(self)
        for timer in (self._expiry_timer, self.unused_timer):
            if timer is not None:
                timer.cancel()
        self._expiry_timer = self.unused_timer = None


def now_ms() -> int:
    """Wall-clock milliseconds since the epoch. Not the monotonic clock, because expiry must survive a restart."""
    return time.time_ns() // 1_000_000
