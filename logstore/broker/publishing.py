"""Publishing on one channel: assembling contents, routing, storing, returning, confirming.

A message goes to all its durable queues by one `publish` of the store, so it is on all of them or on
none. A transient message is stored in the same way, which keeps one order for all; so it may survive a
restart, which AMQP allows. Memory queues get the message in addition; what is
beyond their share of the memory goes to the log (`overflow`).

Invariant: no confirm before the group commit that holds the message. The channel's gate ensures that;
here only the LSN is read, right after the publish.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, TypeVar

from pamqp import commands

from logstore.broker import frames
from logstore.broker.alike import BASIC, CONTENT, Alike
from logstore.broker.contents import Content
from logstore.broker.errors import (
    ACCESS_REFUSED,
    CONTENT_TOO_LARGE,
    FRAME_ERROR,
    NO_ROUTE,
    RESOURCE_ERROR,
    STORE_ENDED,
    SYNTAX_ERROR,
    UNEXPECTED_FRAME,
    ChannelException,
    ConnectionException,
    not_implemented,
    precondition_failed,
)
from logstore.broker.fields import MalformedFields, Properties, check_properties
from logstore.broker.headers import EXPIRATION_MS_MAX, decode_header
from logstore.broker.memory_places import place_bytes
from logstore.broker.overflow import LogIsBusy
from logstore.broker.streams import PIECE_BYTES, ReturnStream
from logstore.broker.uploads import Upload
from logstore.errors import StoreError, StoreFull, StorePoisoned, UnknownQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from typing import Any

    from logstore.broker.channel import Channel
    from logstore.broker.durable_queue import DurableQueue
    from logstore.broker.exchanges import Route

logger = logging.getLogger(__name__)

T = TypeVar("T")

_IMMEDIATE: Final = 2
_ROUTING_AT: Final = 6  # after the method id and a reserved short


class Publishing(Alike):
    """The publishing half of a channel."""

    __slots__ = ("_returning",)

    def __init__(self, channel: Channel) -> None:
        super().__init__(channel)
        self._returning: dict[Upload, None] = {}  # large messages that wait for their return at the gate

    @property
    def expects_content(self) -> bool:
        """True while content frames of a publish are missing."""
        return self._content is not None

    def on_publish(self, payload: bytes) -> None:
        """basic.publish. Its arguments are parsed here and not by pamqp, because every message needs that."""
        try:
            key_at = _ROUTING_AT + 1 + payload[_ROUTING_AT]
            flags_at = key_at + 1 + payload[key_at]
            flags = payload[flags_at]
        except IndexError:
            raise ConnectionException(SYNTAX_ERROR, "Basic.Publish is cut off") from None
        if len(payload) != flags_at + 1:
            raise ConnectionException(SYNTAX_ERROR, "bytes follow the arguments of Basic.Publish")
        routing = payload[_ROUTING_AT:flags_at]
        if routing != self._routing[0]:
            try:
                exchange = payload[_ROUTING_AT + 1 : key_at].decode()
                key = payload[key_at + 1 : flags_at].decode()
            except UnicodeDecodeError:
                raise ConnectionException(SYNTAX_ERROR, "Basic.Publish has a name not in UTF-8") from None
            self._routing = (routing, exchange, key)
        self._content = Content(routing, flags)
        if not flags & _IMMEDIATE and payload != self._method:
            self._method = payload
            self._head, self._form, self._header = b"", None, (0, b"")

    def on_header(self, payload: bytes) -> Coroutine[Any, Any, None] | None:
        """A content header."""
        content = self._content
        if content is None or content.properties is not None:
            raise ConnectionException(UNEXPECTED_FRAME, "a content header came without a method before it")
        if len(payload) < CONTENT.size:
            raise ConnectionException(SYNTAX_ERROR, "a content header is cut off")
        class_id, weight, body_size = CONTENT.unpack_from(payload)
        if class_id != BASIC or weight:
            raise ConnectionException(
                UNEXPECTED_FRAME, f"expected a content header for class {BASIC}, got one for {class_id}"
            )
        properties = payload[CONTENT.size :]
        if properties != self._properties[0]:
            try:
                self._properties = (properties, check_properties(properties, 0))
            except MalformedFields as error:
                raise ConnectionException(SYNTAX_ERROR, f"message properties: {error}") from None
        body_bytes_max = self.channel.limits.body_bytes_max
        if body_size > body_bytes_max:
            self._content = None
            raise ChannelException(
                CONTENT_TOO_LARGE,
                f"message size {body_size} is larger than configured max size {body_bytes_max}",
            )
        content.properties, content.wanted = self._properties
        content.body_size = content.missing = body_size
        if body_size > max(self.channel.limits.inline_body_bytes_max, PIECE_BYTES):
            content.upload = Upload(self.channel, content)
        return None if body_size else self._complete(content)

    def on_body(self, payload: bytes) -> Coroutine[Any, Any, None] | None:
        """A part of a body."""
        content = self._content
        if content is None or content.properties is None:
            raise ConnectionException(UNEXPECTED_FRAME, "a content body came without a header before it")
        content.missing -= len(payload)
        if content.missing < 0:
            raise ConnectionException(FRAME_ERROR, "a content body is longer than its header said")
        upload = content.upload
        if payload and (upload is None or upload.refusal is None):
            content.add(payload)
        if not content.missing:
            return self._complete(content)
        if upload is not None and upload.refusal is not None:
            return None
        connection = self.channel.connection
        fits = connection.server.arriving.grow(content, self.channel, len(payload))
        if upload is not None and (content.reserved >= PIECE_BYTES or not fits):
            return self._append(upload, content)
        if not fits:
            connection.receiving.pause_for_memory()
        return None

    async def _append(self, upload: Upload, content: Content) -> None:
        """Write what has arrived of a large body; its channel waits meanwhile."""
        pieces, content.pieces = content.pieces, []
        reserved, content.reserved = content.reserved, 0
        try:
            await upload.append(pieces)
        finally:
            self.channel.connection.server.arriving.shrink(self.channel, reserved)

    def abandon(self) -> None:
        """Drop an incomplete content, and large messages that wait for their return."""
        content = self._content
        if content is not None:
            self._is_over(content)
            if content.upload is not None:
                content.upload.drop()
        returning, self._returning = self._returning, {}
        for upload in returning:
            upload.drop()

    def _is_over(self, content: Content) -> None:
        """Nothing more of it arrives."""
        self._content = None
        self.channel.connection.server.arriving.over(content, self.channel)

    def _complete(self, content: Content) -> Coroutine[Any, Any, None] | None:
        self._is_over(content)
        try:
            return self._publish(content)
        except BaseException:
            if content.upload is not None:
                content.upload.drop()
            raise

    def _publish(self, content: Content) -> Coroutine[Any, Any, None] | None:
        tag = 0
        if self.confirming:
            tag = self._next_tag
            self._next_tag += 1
        if content.flags & _IMMEDIATE:
            raise not_implemented("immediate=true")
        _, exchange_name, key = self._routing
        exchange = self.channel.vhost.exchange(exchange_name)
        if exchange.internal:
            raise ChannelException(
                ACCESS_REFUSED,
                f"cannot publish to internal exchange '{exchange_name}' in vhost '{self.channel.vhost.name}'",
            )
        expiration_ms = self._check(content.wanted)
        route = exchange.route(key)
        if content.upload is not None and content.upload.refusal is not None:
            self.refuse(tag, content.upload.refusal)
            return None
        if self.channel.tx is not None:
            if content.upload is not None:
                return self._keep_large(content.upload, route, content, expiration_ms)
            self.channel.tx.publish(route, content, expiration_ms)
            return None
        if not route.durable and not route.memory and content.upload is None:
            self.return_unroutable(content)
            self._confirm(tag)
            return None
        header = content.header(expiration_ms)
        expires = expiration_ms is not None
        if content.upload is not None:
            return self._finish_large(content.upload, tag, route, header, content, expires)
        if content.body_size > self.channel.limits.inline_body_bytes_max:
            return self._store_large(tag, route, header, content, expires)
        try:
            if route.memory:
                self._make_memory_room(route, header, content.body_size)
            left = self._store(route, header, content.body) if route.durable else route
        except StoreError as error:
            if isinstance(error, LogIsBusy) or (
                isinstance(error, StoreFull) and self.channel.connection.may_wait_for_space()
            ):
                return self._store_large(tag, route, header, content, expires)  # it waits for room
            self.refuse(tag, error)
            return None
        lsn = self.channel.store.next_lsn if left.durable else 0
        self._enqueued(tag, left, header, content, lsn, expires)
        return None

    def _check(self, properties: Properties) -> int | None:
        if properties.user_id is not None and properties.user_id != self.channel.connection.user:
            raise precondition_failed(
                f"user_id property set to '{properties.user_id}' but authenticated user was "
                f"'{self.channel.connection.user}'"
            )
        text = properties.expiration
        if not text:
            return None
        if not (text.isascii() and text.isdigit() and len(text) <= 20):
            raise precondition_failed(f"invalid expiration '{text}': not a number of milliseconds")
        return min(int(text), EXPIRATION_MS_MAX)

    def return_unroutable(self, content: Content) -> None:
        """Return a message without a queue to the publisher, if it was published as mandatory."""
        channel, upload = self.channel, content.upload
        if not content.is_mandatory or not channel.is_open:
            if upload is not None:
                upload.drop()
            return
        assert content.properties is not None
        method = frames.basic_return(channel.number, NO_ROUTE, "NO_ROUTE", content.routing)
        if upload is not None:
            start = frames.content_start(channel.number, method, content.properties, content.body_size)
            self._return_large(upload, start)
            return
        parts = frames.with_content(
            channel.number,
            method,
            content.properties,
            bytes(content.body),
            channel.connection.frame_bytes_max,
        )
        channel.send(b"".join(parts))

    def _return_large(self, upload: Upload, start: bytes) -> None:
        """Return a large message from the log, in order with the replies."""
        channel = self.channel
        channel.connection.host.uploads.is_complete(upload)
        self._returning[upload] = None

        def begin() -> None:
            del self._returning[upload]
            channel.stream(ReturnStream(channel, upload, start))

        channel.defer(begin)

    def _make_memory_room(self, route: Route, header: bytes, body_size: int) -> None:
        """Prepare the queues in memory for a message: blocks of them may go to the log.

        Raises `StoreError`; `LogIsBusy` if the log has room for further blocks later.
        """
        size = place_bytes(header, body_size)
        for queue in route.memory:
            if queue.make_room(size):
                self.channel.connection.published = True  # it is slowed down by the disk as others

    def _store(self, route: Route, header: bytes, body: bytes | bytearray) -> Route:
        """Publish to the durable queues. Returns the route without queues deleted meanwhile. Raises `StoreError`."""

        def publish(queues: Sequence[DurableQueue]) -> None:
            self.channel.store.publish([queue.handle for queue in queues], body, header=header, wait=False)

        return self._to_queues_left(route, publish)

    def _to_queues_left(self, route: Route, put: Callable[[Sequence[DurableQueue]], None]) -> Route:
        """Make a call with the durable queues, again if some were deleted meanwhile. Returns the route without them."""
        while route.durable:
            try:
                put(route.durable)
                break
            except UnknownQueue:
                left = route.without_deleted(leaving=True)
                if left.durable == route.durable:
                    raise
                route = route._replace(durable=left.durable)
        return route

    def _enqueued(self, tag: int, route: Route, header: bytes, content: Content, lsn: int, expires: bool) -> None:
        body, upload, large = bytes(content.body), content.upload, None
        memory = [queue for queue in route.memory if not queue.deleted]
        if upload is not None and (route.durable or memory):
            large = upload.enqueued(is_durable=bool(route.durable), is_in_memory=bool(memory))
        if route.durable:
            self.channel.connection.published = True
            self.channel.changed_until(lsn)
            for queue in route.durable:
                if not queue.deleted:
                    queue.enqueued(lsn, expires=expires)
        for memory_queue in memory:
            memory_queue.enqueue(header, body, expires=expires, large=large)
        if large is not None:
            large.let_go()
        if not route.durable and not memory:
            self.return_unroutable(content)
        self._confirm(tag)

    def found_no_queue(self, header: bytes, body: bytes, tag: int) -> None:
        """Handle a collected message whose only queue was deleted meanwhile as a message without a route."""
        made = decode_header(header, b"")
        content = Content(made.routing, self._method[-1])
        content.properties = made.properties
        content.pieces.append(body)
        self.return_unroutable(content)
        self._confirm(tag)

    async def _store_large(self, tag: int, route: Route, header: bytes, content: Content, expires: bool) -> None:
        """Store a large message, or one that waits for room, in another thread; meanwhile nothing is read."""

        def store() -> tuple[Route, int]:
            content.pieces = [content.body]
            return self._store(route, header, content.body), self.channel.store.next_lsn

        try:
            left, lsn = await self._put(route, header, content.body_size, store)
        except StoreError as error:
            self.refuse(tag, error)
        else:
            self._enqueued(tag, left, header, content, lsn, expires)

    async def _put(self, route: Route, header: bytes, body_size: int, put: Callable[[], T]) -> T:
        """Put a message into the store in another thread; while the store is full it waits for room.

        `body_size` is what a queue in memory has of the body. Raises `StoreError`.
        """
        connection, loop = self.channel.connection, self.channel.wakeups.loop

        async def attempt() -> T:
            while True:
                try:
                    self._make_memory_room(route, header, body_size)
                    break
                except LogIsBusy as busy:
                    await self.channel.wakeups.room(busy.percent)
            return await loop.run_in_executor(None, put)

        return await connection.host.space.taken(connection, attempt)

    async def _finish_large(
        self, upload: Upload, tag: int, route: Route, header: bytes, content: Content, expires: bool
    ) -> None:
        """Write the rest of a large body, and put it on its queues; the connection reads nothing meanwhile."""

        def enqueue() -> tuple[Route, int]:
            if route.durable and route.memory:
                upload.copy()
            left = self._to_queues_left(route, lambda queues: upload.enqueue(queues, header, expires=expires))
            return left, self.channel.store.next_lsn

        try:
            await self._append_last(upload, content)
            left, lsn = await self._put(route, header, 0, enqueue)
        except StoreError as error:
            upload.drop()
            self.refuse(tag, error)
        else:
            self._enqueued(tag, left, header, content, lsn, expires)

    async def _keep_large(self, upload: Upload, route: Route, content: Content, expiration_ms: int | None) -> None:
        """Write the rest of a large body, and keep it for the commit."""
        channel = self.channel
        try:
            await self._append_last(upload, content)
        except StoreError as error:
            self.refuse(0, error)
        await channel.wakeups.room()  # for a block of what was published before it
        if channel.tx is None or not channel.is_open:
            upload.drop()
            return
        try:
            channel.tx.publish(route, content, expiration_ms)
        except (ChannelException, StoreError):
            upload.drop()
            raise

    async def _append_last(self, upload: Upload, content: Content) -> None:
        """Raises `StoreError` if the store does not take the body."""
        pieces, content.pieces = content.pieces, []
        await upload.append(pieces, is_last=True)

    def _confirm(self, tag: int) -> None:
        if tag:
            self.channel.confirm(tag)

    def refuse(self, tag: int, error: StoreError) -> None:
        """The store refused a message: send a nack, or raise the exception that closes the channel.

        Raises the error itself if the store has ended. A poisoned one has not taken the message, so that gets its nack.
        """
        if not isinstance(error, StoreFull):  # the server logs once that the store is full
            logger.debug("publish on %s refused: %s", self.channel.connection, error)
        if tag and (isinstance(error, StorePoisoned) or not isinstance(error, STORE_ENDED)):
            self.channel.reply(commands.Basic.Nack(tag, requeue=False))
        if isinstance(error, STORE_ENDED):
            raise error
        if not tag:
            raise ChannelException(RESOURCE_ERROR, str(error)) from None
