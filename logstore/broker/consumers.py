"""Consuming on one channel: consumers, prefetch, delivery tags, acknowledgements, requeue.

Invariant: every delivered message that needs an acknowledgement is in `_unacked` until it is
acknowledged, rejected or released; closing the channel releases all of them.
"""

from __future__ import annotations

import collections
import itertools
import logging
import operator
import secrets
from typing import TYPE_CHECKING, Any, Final

from pamqp import commands

from logstore.broker import frames
from logstore.broker.acquired import Acquired, release_in_turns
from logstore.broker.consumer import Consumer, fits, too_large
from logstore.broker.errors import (
    ACCESS_REFUSED,
    NOT_ALLOWED,
    RESOURCE_ERROR,
    ChannelException,
    ConnectionException,
    not_found,
    precondition_failed,
)
from logstore.broker.memory import CONSUMER_BYTES, DELIVERY_BYTES
from logstore.broker.memory_queue import MemoryQueue
from logstore.broker.streams import BodyStream, FrontWait
from logstore.broker.transactions import Verdict
from logstore.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Coroutine, Iterable, Iterator

    from logstore.broker.channel import Channel
    from logstore.broker.queues import BrokerQueue

logger = logging.getLogger(__name__)

SLICE_MAX: Final = 512  # deliveries that are settled in one turn of the loop


_tag_of: Final[Callable[[Acquired], int]] = operator.attrgetter("tag")
_queue_of: Final = operator.attrgetter("queue")
_consumer_of: Final[Callable[[Acquired], Consumer | None]] = operator.attrgetter("consumer")

_SETTLE: Final = {
    Verdict.ACCEPT: Acquired.accept,
    Verdict.REJECT: Acquired.reject,
    Verdict.RELEASE: Acquired.release,
}


def _each(taken: list[Acquired], settle: Callable[[Acquired], None]) -> None:
    """Settle all of them in order. If the store refuses one, release it and the later ones, and raise its error."""
    for index, acquired in enumerate(taken):
        try:
            settle(acquired)
        except StoreError:
            for remaining in taken[index:]:
                remaining.release()
            raise


class Consuming:
    """The consuming half of a channel."""

    __slots__ = (
        "_accepted",
        "_counted",
        "_prefetch_shared",
        "_share",
        "_unacked",
        "_unacked_of_consumers",
        "channel",
        "consumers",
        "last_tag",
        "prefetch",
    )

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.consumers: dict[str, Consumer] = {}
        self.prefetch = 0  # for future consumers
        self._prefetch_shared = 0  # for all consumers of the channel together
        self._unacked: dict[int, Acquired] = {}  # by delivery tag, ascending
        self._unacked_of_consumers = 0
        self._accepted: list[Acquired] = []  # acknowledged in this turn of the loop
        self._share = channel.vhost.budget.unacknowledged
        self._counted = 0  # deliveries in the share
        self.last_tag = 0

    @property
    def unacknowledged_count(self) -> int:
        """The number of messages that the client has and has not settled."""
        return len(self._unacked)

    # Credit.

    def credit(self) -> int:
        """The number of further messages that the channel may have unacknowledged."""
        credit = self.channel.limits.unacked_max - len(self._unacked)
        if self.channel.tx is not None:
            credit -= self.channel.tx.settled_count
        if self._prefetch_shared:
            credit = min(credit, self._prefetch_shared - self._unacked_of_consumers)
        return max(0, self._that_fit(credit))

    def _that_fit(self, count: int) -> int:
        """As many deliveries as memory has room for, at most `count`. If none, its consumers are woken later."""
        share = self._share
        room = (share.bytes_max - share.used_bytes) // DELIVERY_BYTES - self._counted
        if room >= count:
            return count
        if room <= 0 and share.used_bytes:
            share.await_bytes(self)
            return 0
        return max(1, room)

    def has_bytes(self) -> None:
        """Memory for unacknowledged deliveries was given back."""
        if self.channel.is_open:
            self.wake()
            if self.channel.waits:  # maybe a basic.get
                self.channel.connection.touch(self.channel)

    def _count(self, deliveries: int) -> None:
        self._counted += deliveries
        self._share.add(deliveries * DELIVERY_BYTES)

    def _count_out(self, deliveries: int) -> None:
        """So many are settled; those of a closed channel were counted out then."""
        if self._counted:
            self._counted -= deliveries
            self._share.give_back(deliveries * DELIVERY_BYTES)

    def set_prefetch(self, count: int, *, shared: bool) -> None:
        """basic.qos: for each future consumer, or shared by all consumers of the channel from now on."""
        if shared:
            self._prefetch_shared = count
            self.wake()
        else:
            self.prefetch = count

    def wake(self) -> None:
        """Wake the queues of this channel's consumers, which may now get more messages."""
        for consumer in self.consumers.values():
            consumer.queue.wakeups.wake(consumer.queue)

    # Consumers.

    def consume(self, queue: BrokerQueue, tag: str, *, no_ack: bool, exclusive: bool) -> str:
        """Add a consumer. Returns its tag.

        Raises 403 if the queue is in exclusive use, and 530 if the tag is in use.
        """
        tag = tag or "amq.ctag-" + secrets.token_urlsafe(16)
        if tag in self.consumers:
            raise ConnectionException(NOT_ALLOWED, f"attempt to reuse consumer tag '{tag}'")
        if queue.consumers and (exclusive or queue.consumers[0].exclusive):
            raise ChannelException(
                ACCESS_REFUSED, f"queue '{queue.name}' in vhost '{self.channel.vhost.name}' in exclusive use"
            )
        self.channel.connection.holdings.count(CONSUMER_BYTES)
        consumer = Consumer(self.channel, tag, queue, no_ack=no_ack, exclusive=exclusive, prefetch=self.prefetch)
        self.consumers[tag] = consumer
        queue.add_consumer(consumer)
        return tag

    def removed(self, tag: str) -> Consumer | None:
        """A consumer ends; returns it."""
        consumer = self.consumers.pop(tag, None)
        if consumer is not None:
            self.channel.connection.holdings.count_out(CONSUMER_BYTES)
        return consumer

    def cancel(self, tag: str) -> Coroutine[Any, Any, object] | None:
        """Remove a consumer. Its unacknowledged messages stay with the channel.

        Returns the deletion of the queue if the queue is auto-delete and has no consumer left.
        """
        consumer = self.removed(tag)
        if consumer is None or consumer.queue.deleted:
            return None
        consumer.queue.remove_consumer(consumer)
        return self.channel.vhost.consumer_left(consumer.queue)

    # Delivery.

    def is_streamed(self, acquired: Acquired) -> bool:
        """Whether the body is sent in pieces (`streams`)."""
        if acquired.queue.durable:
            return acquired.place.size > self.channel.limits.inline_body_bytes_max
        place: Any = acquired.place  # a MemoryPlace; a cast would be a call for each delivery
        is_large: bool = place.is_streamed
        return is_large

    def delivered(self, acquired: Acquired, consumer: Consumer | None, no_ack: bool) -> int:
        """Record a delivery, or without a consumer the answer to a basic.get. Returns its tag."""
        self.last_tag += 1
        acquired.tag = self.last_tag
        if no_ack:
            return self.last_tag
        self._unacked[self.last_tag] = acquired
        self._count(1)
        if consumer is not None:
            acquired.consumer = consumer
            consumer.unacked += 1
            self._unacked_of_consumers += 1
        return self.last_tag

    def delivered_all(self, sent: list[Acquired], consumer: Consumer | None) -> None:
        """Record several deliveries, whose consecutive tags are already set."""
        self.last_tag += len(sent)
        if consumer is not None:
            for acquired in sent:
                acquired.consumer = consumer
            consumer.unacked += len(sent)
            self._unacked_of_consumers += len(sent)
            self._unacked.update(zip(map(_tag_of, sent), sent, strict=True))
            self._count(len(sent))

    def forget(self, acquired: Acquired) -> bool:
        """The client will not have a message. False if it has settled it already."""
        if self._unacked.pop(acquired.tag, None) is None:
            return False
        self.return_credit([acquired])
        return True

    def get(self, queue: BrokerQueue, *, no_ack: bool) -> int | None:
        """basic.get, called at the channel's gate. Returns an LSN to wait for if the messages are not durable yet.

        Returns 0 if memory has no room for one more unacknowledged message; then it is called again when it has.
        """
        channel = self.channel
        connection = channel.connection
        if queue.deleted:
            raise not_found("queue", queue.name, channel.vhost.name)
        if not no_ack and not self._that_fit(1):
            if connection.replies.are_too_many:  # then the acknowledgements that it waits for are not read
                raise ChannelException(
                    RESOURCE_ERROR,
                    "too many messages are unacknowledged and too many replies wait: acknowledge some first",
                )
            return 0
        queue.touch()
        body: bytes | memoryview | None = None
        while body is None:
            taken = queue.acquire(1)
            if not taken:
                if isinstance(queue, MemoryQueue) and queue.awaits_front(channel):
                    channel.stream(FrontWait(queue, channel))
                    channel.repeat(lambda: self.get(queue, no_ack=no_ack))
                    return None
                undurable_lsn = queue.undurable_lsn()
                if undurable_lsn is None or queue.deleted:
                    connection.send(frames.method(channel.number, commands.Basic.GetEmpty()))
                return undurable_lsn
            acquired = taken[0]
            header = acquired.envelope
            if not fits(header.properties, connection.frame_bytes_max):
                acquired.release(unseen=True)
                raise too_large(header.properties)
            if self.is_streamed(acquired):
                self._stream_get(queue, acquired, no_ack=no_ack)
                return None
            body = queue.content_of(acquired.place)
        tag = self.delivered(acquired, None, no_ack)
        method = frames.basic_get_ok(channel.number, tag, acquired.place.redelivered, header.routing, queue.ready_count)
        connection.send_all(
            frames.with_content(channel.number, method, header.properties, body, connection.frame_bytes_max)
        )
        queue.delivered += 1
        if no_ack:
            acquired.accept()
            queue.acknowledged += 1
            if queue.durable:
                channel.changed()
        else:
            acquired.place.unload()
        return None

    def _stream_get(self, queue: BrokerQueue, acquired: Acquired, *, no_ack: bool) -> None:
        channel = self.channel
        envelope, place = acquired.envelope, acquired.place

        def start_of(tag: int) -> bytes:
            method = frames.basic_get_ok(channel.number, tag, place.redelivered, envelope.routing, queue.ready_count)
            return frames.content_start(channel.number, method, envelope.properties, place.size)

        def again() -> None:
            channel.repeat(lambda: self.get(queue, no_ack=no_ack))

        channel.stream(BodyStream(channel, acquired, None, start_of, no_ack=no_ack, or_else=again))

    def unacknowledged(self, message_ids: Container[int]) -> Iterator[tuple[str, int, str]]:
        """The given messages that this channel has unacknowledged: queue, id, consumer's tag ('' for a get)."""
        for acquired in self._unacked.values():
            if acquired.queue.durable and acquired.place.id in message_ids:
                consumer = acquired.consumer
                yield acquired.queue.name, acquired.place.id, "" if consumer is None else consumer.tag

    # Acknowledgement.

    def ack(self, tag: int, *, multiple: bool) -> Coroutine[Any, Any, None] | None:
        """basic.ack; settled together with the connection's other acknowledgements of this turn.

        Returns a coroutine that settles very many.
        """
        if self.channel.tx is not None:
            return self._settle(tag, multiple, Verdict.ACCEPT)
        taken = self._taken_back(tag, multiple=multiple)
        if len(taken) > SLICE_MAX:
            return self._in_slices(taken, self._accept_now)
        self._accepted += taken
        self.channel.connection.batches.acknowledged(self)
        return None

    def _accept_now(self, taken: list[Acquired]) -> None:
        self._accepted += taken
        self.settle_accepted()

    async def _in_slices(self, taken: list[Acquired], settle: Callable[[list[Acquired]], None]) -> None:
        """Settle very many deliveries, each slice in a turn of the loop, when the log has room for it.

        If the store refuses one, release it and the later ones, and raise its error.
        """
        for end in range(SLICE_MAX, len(taken) + SLICE_MAX, SLICE_MAX):
            await self.channel.wakeups.room()
            try:
                settle(taken[end - SLICE_MAX : end])
            except StoreError:
                for remaining in taken[end:]:
                    remaining.release()
                raise

    def ack_each(self, tags: list[int]) -> None:
        """Several basic.ack of one message each. After an unknown tag, the later ones are ignored."""
        if self.channel.tx is not None:
            for tag in tags:
                self._settle(tag, False, Verdict.ACCEPT)
            return
        self.channel.connection.batches.acknowledged(self)
        accepted = self._accepted
        before = len(accepted)
        try:
            accepted.extend(map(self._unacked.pop, tags))
        except KeyError:
            raise precondition_failed(f"unknown delivery tag {tags[len(accepted) - before]}") from None

    def settle_accepted(self) -> None:
        """Accept everything that was acknowledged. Raises `StoreError`; then the remaining messages are released."""
        taken, self._accepted = self._accepted, []
        if not taken:
            return
        self.return_credit(taken)
        self.channel.changed()
        problem: StoreError | None = None
        for queue, run in itertools.groupby(taken, _queue_of):
            if problem is not None:
                for remaining in run:
                    remaining.release()
                continue
            acknowledged = list(run)
            try:
                queue.accept_all(acknowledged)
                queue.acknowledged += len(acknowledged)
            except StoreError as error:
                problem = error
        if problem is not None:
            raise problem

    def reject(self, tag: int, *, multiple: bool, requeue: bool) -> Coroutine[Any, Any, None] | None:
        """basic.nack and basic.reject. Returns a coroutine that settles very many."""
        return self._settle(tag, multiple, Verdict.RELEASE if requeue else Verdict.REJECT)

    def _settle(self, tag: int, multiple: bool, verdict: Verdict) -> Coroutine[Any, Any, None] | None:
        taken = self._taken_back(tag, multiple=multiple)
        if self.channel.tx is not None:
            self.channel.tx.settle(taken, verdict)
            return None

        def settle_now(taken: list[Acquired]) -> None:
            self.return_credit(taken)
            _each(taken, _SETTLE[verdict])
            self.channel.changed()

        if len(taken) > SLICE_MAX:
            return self._in_slices(taken, settle_now)
        settle_now(taken)
        return None

    def recover(self) -> Coroutine[Any, Any, None] | None:
        """basic.recover: release all unacknowledged messages to their places. Returns a coroutine for very many."""
        taken = self._taken_back(0, multiple=True)

        def release(taken: list[Acquired]) -> None:
            self.return_credit(taken)
            _each(taken, Acquired.release)

        if len(taken) > SLICE_MAX:
            return self._in_slices(taken, release)
        release(taken)
        return None

    def unsettle(self, taken: Iterable[Acquired]) -> None:
        """Undo a transaction's acknowledgements: the messages are unacknowledged again."""
        self._unacked.update((acquired.tag, acquired) for acquired in taken)
        self._unacked = dict(sorted(self._unacked.items()))

    def _taken_back(self, tag: int, *, multiple: bool) -> list[Acquired]:
        unacked = self._unacked
        if multiple and not tag:
            taken = list(unacked.values())
            unacked.clear()
        elif tag not in unacked:
            raise precondition_failed(f"unknown delivery tag {tag}")
        elif multiple:
            tags = []
            for each in unacked:
                if each > tag:
                    break
                tags.append(each)
            taken = [unacked.pop(each) for each in tags]
        else:
            taken = [unacked.pop(tag)]
        return taken

    def return_credit(self, taken: Iterable[Acquired]) -> None:
        """Return the credit of settled messages to their consumers."""
        queues = set()
        settled = 0
        for consumer, count in collections.Counter(map(_consumer_of, taken)).items():
            settled += count
            if consumer is not None:
                consumer.unacked -= count
                self._unacked_of_consumers -= count
                queues.add(consumer.queue)
        self._count_out(settled)
        if self._prefetch_shared:
            self.wake()
            return
        for queue in queues:
            queue.wakeups.wake(queue)

    def close(self) -> None:
        """End the channel: remove its consumers, and release the unacknowledged messages in order."""
        try:
            self.settle_accepted()
        except StoreError as error:
            logger.warning("acknowledged messages cannot be settled: %s", error)
        consumers = list(self.consumers.values())
        self.channel.connection.holdings.count_out(len(consumers) * CONSUMER_BYTES)
        self.consumers.clear()
        for consumer in consumers:
            if not consumer.queue.deleted:
                consumer.queue.remove_consumer(consumer)
        unacked, self._unacked = self._unacked, {}
        self._share.forget(self)
        self._share.give_back((self._counted - len(unacked)) * DELIVERY_BYTES)
        self._counted = 0
        if unacked:
            release_in_turns(self.channel.connection.turns, unacked.values(), self._share)
        for queue in {consumer.queue: None for consumer in consumers}:
            deletion = self.channel.vhost.consumer_left(queue)
            if deletion is not None:
                self.channel.vhost.changes.in_background(f"deleting the unused queue {queue.name!r}", deletion)
