"""Large bodies on their way to a client: read from the log in pieces, in another thread, as the client takes them.

Later replies and deliveries on its channel wait until the last piece is sent, because AMQP allows no other frame of the
channel in between; other channels go on. At most one piece is in memory, and the unsent bytes of the connection. It is
read only when the connection has room for it (`outbox`), which counts it.

A body that has begun cannot be taken back. So it is read once before its delivery begins, and a message that is damaged
is set aside as a short one is. If the message is gone before the last piece (its queue was deleted, or the channel has
ended and another consumer has accepted it), or is damaged meanwhile, the connection ends.

A basic.get that waits for the first message of a queue in memory holds up its channel in the same way (`FrontWait`).
"""

from __future__ import annotations

import abc
import logging
from typing import TYPE_CHECKING, Final, Protocol

from logstore.broker import frames
from logstore.broker.errors import STORE_ENDED
from logstore.broker.limits import FRAME_OVERHEAD_BYTES
from logstore.errors import StoreError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from logstore.broker.acquired import Acquired
    from logstore.broker.channel import Channel
    from logstore.broker.consumer import Consumer
    from logstore.broker.memory_queue import MemoryQueue
    from logstore.broker.uploads import Upload

logger = logging.getLogger(__name__)

PIECE_BYTES: Final = 256 * 1024


class Stream(Protocol):
    """A channel's gate sends it, or waits for it, before everything else."""

    def send_next(self) -> bool:
        """Send what there is and room is for, and begin to read on. True if it is over."""

    def leave(self) -> None:
        """The channel has ended."""

    def forget(self) -> None:
        """The connection ends, and nothing more is sent."""


class FrontWait:
    """A basic.get waits while the first message of a queue in memory is read from the log."""

    def __init__(self, queue: MemoryQueue, channel: Channel) -> None:
        self._queue = queue
        self._channel = channel

    def send_next(self) -> bool:
        """True if the first message is in memory, or there is none."""
        return self._channel.connection.has_given_up or not self._queue.awaits_front(self._channel)

    def leave(self) -> None:
        """Nothing was taken."""

    def forget(self) -> None:
        """Nothing was taken."""


class PieceStream(abc.ABC):
    """The content frames of a large body."""

    def __init__(self, channel: Channel, message_id: int, size: int) -> None:
        """The message is in the store of the channel's host until `_end` or `leave`."""
        self._channel = channel
        self._id = message_id
        self._size = size
        self._at = 0  # of the body: up to here it is sent
        self._piece: bytes | None = None
        self._is_reading = False
        self._task: asyncio.Task[None] | None = None  # kept, as the loop does not
        self._has_begun = False
        self._is_lost = False  # the rest of the body cannot be read, and the connection ends
        self._is_left = False  # nobody has the message any more: the channel has ended

    def send_next(self) -> bool:
        """Send the piece that was read, and begin to read the next one. True if there is nothing more to send."""
        connection = self._channel.connection
        if connection.has_given_up or (self._is_left and not self._has_begun):
            self._drop_piece()
            self.leave()
            return True
        if self._piece is not None:
            if not connection.takes_piece(self._channel):
                return False
            piece = self._piece
            self._drop_piece()
            self._send(piece)
            if self._at == self._size:
                self._end()
                return True
        if not self._is_reading and not self._is_lost and connection.has_room(self._channel):
            self._is_reading = True
            connection.outbox.reads(PIECE_BYTES)
            self._task = self._channel.wakeups.loop.create_task(self._read())
        return False

    def _drop_piece(self) -> None:
        if self._piece is not None:
            self._piece = None
            self._channel.connection.outbox.has_read(PIECE_BYTES)

    def _send(self, piece: bytes) -> None:
        parts: list[bytes | memoryview] = []
        if not self._has_begun:
            self._has_begun = True
            parts.append(self._begin())
        most = self._channel.connection.frame_bytes_max - FRAME_OVERHEAD_BYTES
        view = memoryview(piece)
        for at in range(0, len(piece), most):
            parts += frames.body_frame(self._channel.number, view[at : at + most])
        self._at += len(piece)
        self._channel.connection.send_all(parts)

    async def _read(self) -> None:
        read = self._read_piece if self._has_begun else self._read_all
        try:
            piece = await self._channel.wakeups.loop.run_in_executor(None, read)
        except StoreError as error:
            self._channel.connection.outbox.has_read(PIECE_BYTES)
            self._is_lost = self._has_begun or isinstance(error, STORE_ENDED)
            if not isinstance(error, STORE_ENDED):  # else the connection is about to be closed with the reason
                self._failed(error)
        else:
            self._piece = piece
        self._is_reading = False
        self._channel.connection.touch(self._channel)

    def _read_piece(self) -> bytes:
        return self._channel.store.load_content(self._id, self._at, PIECE_BYTES)

    def _read_all(self) -> bytes:
        """The first piece, if all of them can be read."""
        for at in range(PIECE_BYTES, self._size, PIECE_BYTES):
            self._channel.store.load_content(self._id, at, PIECE_BYTES)
        return self._read_piece()

    @abc.abstractmethod
    def leave(self) -> None:
        """The channel has ended. A body that has begun is sent to its end."""

    @abc.abstractmethod
    def forget(self) -> None:
        """The connection ends, and nothing more is sent."""

    @abc.abstractmethod
    def _begin(self) -> bytes:
        """The method and the content header, which are sent now."""

    @abc.abstractmethod
    def _failed(self, error: StoreError) -> None:
        """It cannot be read, or the rest of it cannot; then the connection ends."""

    @abc.abstractmethod
    def _end(self) -> None:
        """All of it is sent."""


class BodyStream(PieceStream):
    """One delivery, or the answer to a basic.get."""

    def __init__(
        self,
        channel: Channel,
        acquired: Acquired,
        consumer: Consumer | None,
        start_of: Callable[[int], bytes],
        *,
        no_ack: bool,
        or_else: Callable[[], None] = lambda: None,
    ) -> None:
        """`start_of` makes the method and the content header of a delivery tag. `consumer`: None for a basic.get.

        `or_else` is called if the message turns out to be unreadable before anything is sent.
        """
        super().__init__(channel, acquired.queue.stored_id(acquired.place), acquired.place.size)
        self._acquired = acquired
        self._consumer = consumer
        self._start_of = start_of
        self._no_ack = no_ack
        self._or_else = or_else

    def leave(self) -> None:
        """The channel has ended. A body that has begun is sent to its end."""
        if not self._is_left:
            self._is_left = True
            if self._no_ack or not self._has_begun:  # else it is among the unacknowledged ones of the channel
                self._acquired.release(unseen=not self._has_begun)

    def forget(self) -> None:
        """Do nothing: the message is back on its queue."""

    def _begin(self) -> bytes:
        start = self._start_of(self._channel.consuming.delivered(self._acquired, self._consumer, self._no_ack))
        self._acquired.queue.delivered += 1
        self._acquired.place.unload()
        return start

    def _failed(self, error: StoreError) -> None:
        """A body that has begun cannot be taken back, so the connection ends; else the queue goes on without it."""
        connection, queue = self._channel.connection, self._acquired.queue
        if self._has_begun:
            logger.warning(
                "%s is closed: the rest of a message of queue %r cannot be read: %s", connection, queue.name, error
            )
            if not self._is_left and (self._no_ack or self._channel.consuming.forget(self._acquired)):
                queue.unreadable(self._acquired.place, error)
            self._is_left = True
            connection.transport.abort()
        elif not self._is_left:
            self._is_left = True
            queue.unreadable(self._acquired.place, error)
            self._or_else()

    def _end(self) -> None:
        if self._no_ack and not self._is_left:
            self._acquired.accept()
            self._acquired.queue.acknowledged += 1
            self._channel.changed()


class ReturnStream(PieceStream):
    """A mandatory message without a queue, on its way back to its publisher. It is destroyed after that."""

    def __init__(self, channel: Channel, upload: Upload, start: bytes) -> None:
        """`start` is the method and the content header."""
        super().__init__(channel, upload.id, upload.size)
        self._upload = upload
        self._start = start

    def leave(self) -> None:
        """The channel has ended. A body that has begun is sent to its end."""
        self._is_left = True
        if not self._has_begun or self._channel.connection.has_given_up:
            self._upload.drop()

    def forget(self) -> None:
        """The connection ends, and nothing more is sent."""
        self._upload.drop()

    def _begin(self) -> bytes:
        return self._start

    def _failed(self, error: StoreError) -> None:
        connection = self._channel.connection
        if connection.has_given_up or (self._is_left and not self._has_begun):  # it was dropped while it was read
            return
        logger.warning("%s is closed: a message that returns to it cannot be read: %s", connection, error)
        self._upload.drop()
        connection.transport.abort()

    def _end(self) -> None:
        self._upload.drop()
