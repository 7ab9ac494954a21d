"""One subscription: its credit, and its deliveries as frames."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pamqp import commands

from logstore.broker import frames
from logstore.broker.errors import CONTENT_TOO_LARGE, STORE_ENDED, ChannelException
from logstore.broker.limits import FRAME_OVERHEAD_BYTES
from logstore.broker.streams import BodyStream
from logstore.errors import StoreError

if TYPE_CHECKING:
    from logstore.broker.acquired import Acquired
    from logstore.broker.channel import Channel
    from logstore.broker.headers import Envelope
    from logstore.broker.queues import BrokerQueue

UNLIMITED: Final = 1 << 30


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
        most = channel.limits.unacked_per_consumer_max
        self.prefetch = min(prefetch, most) if prefetch else most
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
        return min(channel.consuming.credit(), self.prefetch - self.unacked)

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
        if not fits(envelope.properties, channel.connection.frame_bytes_max):
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
        self.channel.fail(too_large(batch[0].envelope.properties), commands.Basic.Deliver.index)

    def _encode(self, acquired: Acquired, tag: int, body: bytes | memoryview) -> list[bytes | memoryview] | None:
        """The frames of a delivery; None if its properties do not fit into one frame."""
        channel = self.channel
        envelope = acquired.envelope
        body_bytes = len(body)
        if envelope is not self._envelope or body_bytes != self._body_bytes:
            frame_bytes_max = channel.connection.frame_bytes_max
            if not fits(envelope.properties, frame_bytes_max):
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
        consuming.removed(self.tag)
        self.queue.consumers.remove(self)
        if self.channel.is_open and self.channel.connection.wants_cancel_notice:
            self.channel.reply(commands.Basic.Cancel(self.tag, nowait=True))


# Looked up once, because every delivery needs them.
_join: Final = b"".join
_pack_tag: Final = frames.pack_tag
_END_OCTET: Final = frames.END_OCTET


def fits(properties: bytes, frame_bytes_max: int) -> bool:
    """Whether the properties of a message fit into one frame."""
    return frames.CONTENT_HEADER_BYTES + len(properties) + FRAME_OVERHEAD_BYTES <= frame_bytes_max


def too_large(properties: bytes) -> ChannelException:
    """The refusal of a message whose properties do not fit."""
    return ChannelException(
        CONTENT_TOO_LARGE,
        f"a message's properties ({len(properties)} bytes) do not fit the negotiated frame_max; "
        "connect with a larger one",
    )
