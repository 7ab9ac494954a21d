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
from logstore.broker.errors import (
    ACCESS_REFUSED,
    CONTENT_TOO_LARGE,
    NOT_ALLOWED,
    STORE_ENDED,
    ChannelException,
    ConnectionException,
    not_found,
    precondition_failed,
)
from logstore.broker.limits import FRAME_OVERHEAD_BYTES
from logstore.broker.memory_queue import MemoryQueue
from logstore.broker.queues import Acquired, release_in_turns
from logstore.broker.streams import BodyStream, FrontWait
from logstore.broker.transactions import Verdict
from logstore.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Coroutine, Iterable, Iterator

    from logstore.broker.channel import Channel
    from logstore.broker.headers import Envelope
    from logstore.broker.queues import BrokerQueue

logger = logging.getLogger(__name__)

UNLIMITED: Final = 1 << 30
SLICE_MAX: Final = 512  # deliveries that are settled in one turn of the loop


class Consumer:
    """One subscription."""

    __slots__ = (
        "_after",
        "_before",
        "_body_bytes",
        "_envelope",
        "_prefix",
        "channel",
        "exclusive",
        "no_ack",
        "prefetch",
        "queue",
        "tag",
        "unacked",
    )

    def __init__(
        self, channel: Channel, tag: str, queue: BrokerQueue, *, no_ack: bool, exclusive: bool, prefetch: int
    ) -> None:
        self.channel = channel
        self.tag = tag
        self.queue = queue
        self.no_ack = no_ack
        self.exclusive = exclusive
        self.prefetch = prefetch  # 0: no limit
        self.unacked = 0
        self._prefix = frames.deliver_prefix(tag)
        # The encoded parts of the last delivery, reused if the next one has the same envelope and length.
        self._envelope: Envelope | None = None
        self._body_bytes = 0
        self._before = self._after = b""

    def credit(self) -> int:
        """The number of messages that may be delivered now."""
        channel = self.channel
        if not channel.can_deliver():
            return 0
        if self.no_ack:
            return UNLIMITED
        credit = channel.consuming.credit()
        return min(credit, self.prefetch - self.unacked) if self.prefetch else credit

    def deliver(self, acquired: Acquired) -> int:
        """Send a message. Returns the size of its body. Raises `StoreError` if it cannot be read."""
        channel = self.channel
        if channel.consuming.is_streamed(acquired):
            return self._stream(acquired)
        body = acquired.place.content
        parts = self._encode(acquired, channel.consuming.last_tag + 1, body)
        if parts is None:
            self._refuse([acquired])
            return len(body)
        channel.consuming.delivered(acquired, self, self.no_ack)
        self.queue.delivered += 1
        channel.connection.send_all(parts)
        acquired.place.unload()
        if self.no_ack:
            acquired.accept()
            self.queue.acknowledged += 1
            channel.changed()
        return len(body)

    def _stream(self, acquired: Acquired) -> int:
        """Begin to send a large message."""
        channel = self.channel
        envelope, place = acquired.envelope, acquired.place
        if not _fits(envelope.properties, channel.connection.frame_bytes_max):
            self._refuse([acquired])
            return place.size

        def start_of(tag: int) -> bytes:
            method = frames.basic_deliver(channel.number, self._prefix, tag, place.redelivered, envelope.routing)
            return frames.content_start(channel.number, method, envelope.properties, place.size)

        channel.stream(BodyStream(channel, acquired, self, start_of, no_ack=self.no_ack))
        return place.size

    def deliver_all(self, batch: list[Acquired]) -> tuple[int, int]:
        """Send as many messages as there is room for. Returns how many were handled, and the bytes of their bodies.

        For the only consumer of a queue. The others stay taken. A message that cannot be read is reported to the
        queue. Raises `STORE_ENDED`.
        """
        channel = self.channel
        outbox = channel.connection.outbox
        room_bytes = outbox.room_bytes()
        sent: list[Acquired] = []
        parts: list[bytes | memoryview] = []
        tag = channel.consuming.last_tag
        handled = size_bytes = body_bytes = 0
        too_large = False
        streamed: Acquired | None = None
        is_durable, inline_bytes_max = self.queue.durable, channel.limits.inline_body_bytes_max
        try:
            for acquired in batch:
                place: Any = acquired.place  # as in `is_streamed`
                if place.size > inline_bytes_max if is_durable else place.is_streamed:
                    streamed = acquired
                    break
                if size_bytes >= room_bytes:
                    outbox.starve()
                    break
                try:
                    body = place.content
                except STORE_ENDED:
                    raise
                except StoreError as error:
                    self.queue.unreadable(place, error)
                    handled += 1
                    continue
                if acquired.envelope is self._envelope and len(body) == self._body_bytes:
                    part = _join((self._before, _pack_tag(tag + 1, place.redelivered), self._after, body, _END_OCTET))
                    parts.append(part)
                    size_bytes += len(part)
                else:
                    encoded = self._encode(acquired, tag + 1, body)
                    if encoded is None:
                        too_large = True
                        break
                    parts += encoded
                    size_bytes += sum(map(len, encoded))
                tag += 1
                acquired.tag = tag
                place.unload()
                sent.append(acquired)
                body_bytes += len(body)
                handled += 1
        finally:
            outbox.add_sized(parts, size_bytes)
            channel.consuming.delivered_all(sent, None if self.no_ack else self)
            self.queue.delivered += len(sent)
        if sent and self.no_ack:
            channel.changed()
            self.queue.accept_all(sent)
            self.queue.acknowledged += len(sent)
        if streamed is not None:  # behind the others
            body_bytes += self._stream(streamed)
            handled += 1
        if too_large:
            self._refuse(batch[handled:])
            handled = len(batch)
        return handled, body_bytes

    def _refuse(self, batch: list[Acquired]) -> None:
        """The properties of the first one do not fit into a frame of this client."""
        for remaining in reversed(batch):
            remaining.release(unseen=True)
        self.channel.fail(_too_large(batch[0].envelope.properties), commands.Basic.Deliver.index)

    def _encode(self, acquired: Acquired, tag: int, body: bytes | memoryview) -> list[bytes | memoryview] | None:
        """The frames of a delivery; None if its properties do not fit into one frame."""
        channel = self.channel
        envelope = acquired.envelope
        body_bytes = len(body)
        if envelope is not self._envelope or body_bytes != self._body_bytes:
            frame_bytes_max = channel.connection.frame_bytes_max
            if not _fits(envelope.properties, frame_bytes_max):
                return None
            if not 0 < body_bytes <= frame_bytes_max - FRAME_OVERHEAD_BYTES:
                method = frames.basic_deliver(
                    channel.number, self._prefix, tag, acquired.place.redelivered, envelope.routing
                )
                return frames.with_content(channel.number, method, envelope.properties, body, frame_bytes_max)
            self._before, self._after = frames.delivery_template(channel.number, self._prefix, *envelope, body_bytes)
            self._envelope, self._body_bytes = envelope, body_bytes
        tag_and_flag = frames.pack_tag(tag, acquired.place.redelivered)
        return [b"".join((self._before, tag_and_flag, self._after, body, frames.END_OCTET))]

    def queue_is_gone(self) -> None:
        """The queue was deleted: remove the consumer, and notify the client if it supports that."""
        consuming = self.channel.consuming
        consuming.consumers.pop(self.tag, None)
        self.queue.consumers.remove(self)
        if self.channel.is_open and self.channel.connection.wants_cancel_notice:
            self.channel.reply(commands.Basic.Cancel(self.tag, nowait=True))


# Looked up once, because every delivery needs them.
_join: Final = b"".join
_pack_tag: Final = frames.pack_tag
_END_OCTET: Final = frames.END_OCTET

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


def _fits(properties: bytes, frame_bytes_max: int) -> bool:
    return frames.CONTENT_HEADER_BYTES + len(properties) + FRAME_OVERHEAD_BYTES <= frame_bytes_max


def _too_large(properties: bytes) -> ChannelException:
    return ChannelException(
        CONTENT_TOO_LARGE,
        f"a message's properties ({len(properties)} bytes) do not fit the negotiated frame_max; "
        "connect with a larger one",
    )


class Consuming:
    """The consuming half of a channel."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.consumers: dict[str, Consumer] = {}
        self.prefetch = 0  # for future consumers
        self._prefetch_shared = 0  # for all consumers of the channel together
        self._unacked: dict[int, Acquired] = {}  # by delivery tag, ascending
        self._unacked_of_consumers = 0
        self._accepted: list[Acquired] = []  # acknowledged in this turn of the loop
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
        return max(0, credit)

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
        consumer = Consumer(self.channel, tag, queue, no_ack=no_ack, exclusive=exclusive, prefetch=self.prefetch)
        self.consumers[tag] = consumer
        queue.add_consumer(consumer)
        return tag

    def cancel(self, tag: str) -> Coroutine[Any, Any, object] | None:
        """Remove a consumer. Its unacknowledged messages stay with the channel.

        Returns the deletion of the queue if the queue is auto-delete and has no consumer left.
        """
        consumer = self.consumers.pop(tag, None)
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

    def forget(self, acquired: Acquired) -> bool:
        """The client will not have a message. False if it has settled it already."""
        if self._unacked.pop(acquired.tag, None) is None:
            return False
        self.return_credit([acquired])
        return True

    def get(self, queue: BrokerQueue, *, no_ack: bool) -> int | None:
        """basic.get, called at the channel's gate. Returns an LSN to wait for if the messages are not durable yet."""
        channel = self.channel
        connection = channel.connection
        if queue.deleted:
            raise not_found("queue", queue.name, channel.vhost.name)
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
            if not _fits(header.properties, connection.frame_bytes_max):
                acquired.release(unseen=True)
                raise _too_large(header.properties)
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
        for consumer, count in collections.Counter(map(_consumer_of, taken)).items():
            if consumer is not None:
                consumer.unacked -= count
                self._unacked_of_consumers -= count
                queues.add(consumer.queue)
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
        self.consumers.clear()
        for consumer in consumers:
            if not consumer.queue.deleted:
                consumer.queue.remove_consumer(consumer)
        unacked, self._unacked = self._unacked, {}
        if unacked:
            release_in_turns(self.channel.connection.turns, unacked.values())
        for queue in {consumer.queue: None for consumer in consumers}:
            deletion = self.channel.vhost.consumer_left(queue)
            if deletion is not None:
                self.channel.vhost.changes.in_background(f"deleting the unused queue {queue.name!r}", deletion)
