"""Publishes like the last one: they are checked once, collected with others, and confirmed by the store if possible.

A client mostly sends messages that differ only in their bodies, through one exchange and with one key. What was derived
from the first of them is kept: routing, properties, the form of its bytes, and the header for the store. Where they go
is looked up again for each.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from pamqp import commands

from logstore.broker import frames
from logstore.broker.fields import MalformedFields, Properties, check_properties
from logstore.broker.headers import encode_header
from logstore.broker.limits import FRAME_OVERHEAD_BYTES
from logstore.broker.queues import now_ms
from logstore.broker.runs import PublishForm

if TYPE_CHECKING:
    from logstore.broker.channel import Channel
    from logstore.broker.contents import Content
    from logstore.broker.durable_queue import DurableQueue
    from logstore.broker.runs import PublishRun

CONTENT: Final = struct.Struct(">HHQ")  # class, weight, body size
BASIC: Final = commands.Basic.frame_id
NOTHING_WANTED: Final = Properties(None, None)


class Alike:
    """What a channel knows of its last publish, and how it takes those that are like it."""

    __slots__ = (
        "_content",
        "_form",
        "_head",
        "_head_body_size",
        "_header",
        "_method",
        "_next_tag",
        "_properties",
        "_routing",
        "channel",
        "confirming",
    )

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.confirming = False
        self._next_tag = 1
        self._content: Content | None = None  # of a publish whose frames are not complete
        # The last routing and properties are not checked again.
        self._routing: tuple[bytes, str, str] = (b"", "", "")
        self._properties: tuple[bytes, Properties] = (b"\x00\x00", NOTHING_WANTED)
        # Of the last publish that could be collected: method, content header, and the values derived from them.
        self._method = b""
        self._head = b""
        self._head_body_size = 0
        self._form: PublishForm | None = None
        self._header: tuple[int, bytes] = (0, b"")  # the encoded header, and the time it contains in ms

    def take(self, method: bytes, head: bytes, body: bytes) -> bool:
        """Collect a publish whose frames arrived together, if it is like the last one and simple.

        False, and nothing is done, if it must be handled frame by frame: it is the first of its kind, has several
        queues or none, expires, is large, or is invalid.
        """
        if method != self._method or (head != self._head and not self._accept_head(head)):
            return False
        return len(body) == self._head_body_size and self._collect([body])

    def take_run(self, run: PublishRun) -> bool:
        """Collect publishes of the form of the last collected one, under the same conditions."""
        return run.form is self._form and self._collect(run.bodies)

    def _collect(self, bodies: list[bytes]) -> bool:
        queue = self._collects_for()
        if queue is None:
            return False
        last_tag = 0
        if self.confirming:
            self._next_tag += len(bodies)
            last_tag = self._next_tag - 1
        channel = self.channel
        connection = channel.connection
        connection.batches.publish(channel.publishing, queue, self._collected_header(), bodies, last_tag)
        connection.runs.form = self._form
        return True

    def _collects_for(self) -> DurableQueue | None:
        """The only queue of publishes like the last collected one; None if they cannot be collected now."""
        channel = self.channel
        if self._form is None or self._content is not None or channel.tx is not None:
            return None
        _, exchange_name, key = self._routing
        exchange = channel.vhost.exchanges.get(exchange_name)
        if exchange is None or exchange.internal:
            return None
        durable, memory = exchange.route(key)
        return None if memory or len(durable) != 1 else durable[0]

    def _collected_header(self) -> bytes:
        """The header of such a publish, with the present time."""
        made_ms, header = self._header
        at_ms = now_ms()
        if at_ms != made_ms:
            assert self._form is not None
            header = encode_header(self._routing[0], self._form.properties, at_ms, None)
            self._header = (at_ms, header)
        return header

    def take_lone(self, data: bytes) -> bool:
        """Publish what is one complete publish like the last collected one, and leave its confirm with the store.

        Only for the channel whose last confirm was left there, too. False, and nothing is done, if it must be handled
        in the usual way.
        """
        form = self._form
        start, end = (0, 0) if form is None else form.only_body(data)
        queue = self._collects_for() if end else None
        if queue is None:
            return False
        channel, tag = self.channel, self._next_tag
        answer = frames.basic_ack(channel.number, tag, multiple=False)
        socket = channel.connection.socket
        lsn = channel.wakeups.publish(channel, queue.handle, self._collected_header(), data, start, end, socket, answer)
        if not lsn:
            return False
        self._next_tag = tag + 1
        channel.published_lone(lsn, tag)
        queue.enqueued(abs(lsn), expires=False)
        return True

    def _accept_head(self, head: bytes) -> bool:
        """Whether messages with this content header can be collected."""
        if len(head) < CONTENT.size:
            return False
        class_id, weight, body_size = CONTENT.unpack_from(head)
        limits = self.channel.limits
        if class_id != BASIC or weight or not 0 < body_size <= min(limits.inline_body_bytes_max, limits.body_bytes_max):
            return False
        properties = head[CONTENT.size :]
        if properties != self._properties[0]:
            try:
                self._properties = (properties, check_properties(properties, 0))
            except MalformedFields:
                return False
        if self._properties[1] != NOTHING_WANTED:
            return False
        self._head, self._head_body_size = head, body_size
        if self._form is None or self._form.properties != properties:
            body_bytes_max = min(
                limits.inline_body_bytes_max,
                limits.body_bytes_max,
                self.channel.connection.frame_bytes_max - FRAME_OVERHEAD_BYTES,
            )
            self._form = PublishForm(self.channel.number, self._method, properties, body_bytes_max)
            self._header = (0, b"")
        return True
