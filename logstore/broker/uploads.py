"""Large bodies on their way into the store: written in pieces by another thread, as they arrive.

Such a body is a staged message, which is on no queue and which the next open drops. Its last piece is followed by its
enqueue; a body that is interrupted is destroyed. While a piece is written, later frames of its channel wait, and other
channels go on. So at most one piece of a body is in memory.

For queues in memory the body stays staged, and their places refer to it (`overflow.LargeBody`). If it goes to durable
queues, too, it is copied, because the message of those ends with its last dequeue. A mandatory message without a queue
stays staged until it is returned.

What such bodies take in the log is limited. Above the limit only the oldest one goes on, and the others wait for it, so
one body always arrives to its end. A body never waits while an older one arrives on its connection, because that one
could not be read then: it is refused, as by a full store.
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Final

from logstore.broker.errors import RESOURCE_ERROR, STORE_ENDED, ChannelException
from logstore.broker.overflow import LargeBody
from logstore.broker.streams import PIECE_BYTES
from logstore.errors import StoreError, WrongState

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from logstore import MessageStore, Transaction
    from logstore.broker.channel import Channel
    from logstore.broker.connection import Connection
    from logstore.broker.contents import Content
    from logstore.broker.durable_queue import DurableQueue
    from logstore.broker.limits import Limits
    from logstore.broker.wakeups import WakeUps

logger = logging.getLogger(__name__)

_LOG_SHARE: Final = 4  # a limited log gives unfinished bodies one part of so many


class UnfinishedFull(StoreError):
    """The log has as much of unfinished bodies as it may; handled like a full store."""


class Uploads:
    """The unfinished large bodies of one host. Belongs to its event loop."""

    def __init__(self, store: MessageStore, wakeups: WakeUps, limits: Limits) -> None:
        self.store = store
        self.loop = wakeups.loop
        self.held_bytes = 0  # in the log
        self._kept_bytes = 0  # of these, in transactions: complete and not committed
        self._limits = limits
        self._arriving: dict[Upload, None] = {}  # the oldest first
        self._waiting: list[asyncio.Future[None]] = []

    @property
    def bytes_max(self) -> int:
        """The bytes of the log that unfinished bodies may have."""
        log_bytes_max = self.store.fullness().max_log_bytes
        own = self._limits.unfinished_bytes_max
        return own if log_bytes_max is None else min(own, log_bytes_max // _LOG_SHARE)

    @property
    def waiting_count(self) -> int:
        """The number of bodies that wait for an older one."""
        return len(self._waiting)

    def stop(self) -> None:
        """The host ends."""
        self._wake()

    async def room(self, upload: Upload, size: int) -> None:
        """Returns when a body may grow by `size` bytes. Raises `UnfinishedFull` if it must not wait for that."""
        self._arriving.setdefault(upload)
        while not upload.is_left and self.held_bytes + size > self.bytes_max:
            older = list(self._arriving)
            older = older[: older.index(upload)]
            if not older:
                break
            if any(each.channel.connection is upload.channel.connection for each in older):
                raise self._full()
            wake = self.loop.create_future()
            self._waiting.append(wake)
            upload.waits = True
            await wake
            upload.waits = False

    def keep(self, upload: Upload) -> None:
        """A body is complete, and its transaction is not. Raises a 506 channel exception if those have too much."""
        self._arriving.pop(upload, None)
        upload.is_kept = True
        self._kept_bytes += upload.size
        self._wake()
        if self._kept_bytes > self.bytes_max:
            raise ChannelException(RESOURCE_ERROR, f"{self._full()}: the transaction is rolled back")

    def keep_block(self, size: int) -> None:
        """Publishes of a transaction are about to wait in the log. Raises 506 if such have too much there."""
        if self._kept_bytes + size > self.bytes_max:
            raise ChannelException(RESOURCE_ERROR, f"{self._full()}: the transaction is rolled back")
        self._kept_bytes += size

    def forget_block(self, size: int) -> None:
        """They wait no longer."""
        self._kept_bytes -= size

    def is_complete(self, upload: Upload) -> None:
        """A body is complete, and on its way back to the client."""
        self._arriving.pop(upload, None)
        self._wake()
        upload.channel.connection.server.arriving.share.wake()  # another one is the oldest

    def forget(self, upload: Upload) -> None:
        """A body is on its queues, or will never be on any."""
        self._arriving.pop(upload, None)
        self.held_bytes -= upload.size
        if upload.is_kept:
            self._kept_bytes -= upload.size
        upload.size = 0
        self._wake()
        upload.channel.connection.server.arriving.share.wake()  # another one is the oldest

    def has_oldest(self, connection: Connection) -> bool:
        """Whether the oldest one arrives on this connection."""
        oldest = next(iter(self._arriving), None)
        return oldest is not None and oldest.channel.connection is connection

    def _full(self) -> UnfinishedFull:
        return UnfinishedFull(f"the log has too much of unfinished messages (more than {self.bytes_max} bytes)")

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if not each.done():
                each.set_result(None)


class Upload:
    """One large body that arrives."""

    def __init__(self, channel: Channel, content: Content) -> None:
        self.channel = channel
        self.size = 0  # bytes in the log
        self.refusal: StoreError | None = None  # why the store does not take it; the rest is dropped
        self.is_kept = False  # it is complete, and waits for the end of its transaction
        self.waits = False  # for an older one
        self.is_left = False  # nobody wants it any more
        self._uploads = channel.connection.host.uploads
        self._content = content
        self._id: int | None = None  # of the staged message
        self._copy_id: int | None = None  # of another one, for queues in memory
        self.large: LargeBody | None = None  # held for places on queues in memory that are to come
        self._is_busy = False

    @property
    def is_staged(self) -> bool:
        """Whether a part of it is in the store."""
        return self._id is not None

    async def append(self, pieces: Sequence[bytes | bytearray], *, is_last: bool = False) -> None:
        """Write the next pieces. The last ones do not wait.

        If the store refuses a piece it sets `refusal`, and raises it for the last ones. It always raises what ends the
        store.
        """
        size = sum(map(len, pieces))
        self._is_busy = True
        try:
            if not is_last:
                await self._uploads.room(self, size)
            if not self.is_left:
                self.size += size
                self._uploads.held_bytes += size
                connection, loop = self.channel.connection, self._uploads.loop
                await connection.host.space.taken(connection, lambda: loop.run_in_executor(None, self.write, pieces))
                self.channel.connection.published = True
        except STORE_ENDED:
            self.is_left = True
            raise
        except StoreError as error:
            self.refusal = error
            if is_last:
                raise
        finally:
            self._is_busy = False
            if self.is_left or self.refusal is not None:
                self.drop()

    def drop(self) -> None:
        """Destroy it: it goes to no queue."""
        self.is_left = True
        if self.waits:
            self._uploads.forget(self)  # wakes it
        if not self._is_busy:
            self._uploads.forget(self)
            for message_id in (self._id, self._copy_id):
                if message_id is not None:
                    self.channel.vhost.changes.keep(self._uploads.loop.create_task(self._destroy(message_id)))
            self._id = self._copy_id = None

    def enqueued(self, *, is_durable: bool, is_in_memory: bool) -> LargeBody | None:
        """It is on its durable queues, or on none. Returns the body for its queues in memory, held by the caller."""
        if is_in_memory:
            message_id = self._id if self._copy_id is None else self._copy_id
            assert message_id is not None
            self.large = LargeBody(self.channel.vhost.overflow, message_id, self.size)
            if self._copy_id is None:
                self._id = None
            self._copy_id = None
        if is_durable:
            self._id = None
        self.drop()
        return self.large

    @property
    def id(self) -> int:
        """Of the staged message."""
        assert self._id is not None
        return self._id

    async def _destroy(self, message_id: int) -> None:
        def destroy() -> None:
            try:
                self._uploads.store.destroy(message_id, wait=False)
            except StoreError as error:
                logger.debug("message %d stays until the next open: %s", message_id, error)

        await self._uploads.loop.run_in_executor(None, destroy)

    # In another thread. They raise `StoreError`.

    def write(self, pieces: Sequence[bytes | bytearray]) -> None:
        """Write pieces to the store."""
        piece = b"".join(pieces)
        if self._id is None:
            self._id = self._uploads.store.stage(self._content.header(None), piece)
        else:
            self._uploads.store.append_content(self._id, piece)

    def copy(self) -> None:
        """Copy it for queues in memory."""
        if self._copy_id is None:
            self._copy_id = self._copied(self._content.header(None))

    def _copied(self, header: bytes) -> int:
        """Stage it once more, piece by piece. Returns the id."""
        store = self._uploads.store
        copy_id = store.stage(header)
        try:
            for at in range(0, self.size, PIECE_BYTES):
                store.append_content(copy_id, store.load_content(self.id, at, PIECE_BYTES))
        except BaseException:
            with contextlib.suppress(StoreError):  # report the first failure
                store.destroy(copy_id, wait=False)
            raise
        return copy_id

    def enqueue(
        self, queues: Sequence[DurableQueue], header: bytes, *, expires: bool, transaction: Transaction | None = None
    ) -> None:
        """Put it on all of these queues, or on none.

        The staged header has the time at which the body began. If a time to live counts, the places have `header`, or,
        while a member of the cluster runs a program that does not know headers of places, a copy of the message has.
        """
        store = self._uploads.store
        handles = [queue.handle for queue in queues]
        if not expires and all(queue.ttl_ms is None for queue in queues):
            store.enqueue(self.id, handles, transaction, wait=False)
            return
        try:
            self._enqueue_with_header(queues, header, transaction)
        except WrongState:
            copy_id = self._copied(header)
            before, self._id = self.id, copy_id
            store.destroy(before, wait=False)
            store.enqueue(copy_id, handles, transaction, wait=False)

    def _enqueue_with_header(
        self, queues: Sequence[DurableQueue], header: bytes, transaction: Transaction | None
    ) -> None:
        store = self._uploads.store
        if transaction is not None or len(queues) == 1:
            for queue in queues:
                store.enqueue(self.id, queue.handle, transaction, header=header, wait=False)
            return
        own = store.begin()
        try:
            self._enqueue_with_header(queues, header, own)
            own.commit(wait=False)
        except BaseException:
            with contextlib.suppress(StoreError):  # report the first failure
                own.rollback(wait=False)
            raise
