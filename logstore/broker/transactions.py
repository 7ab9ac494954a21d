"""AMQP transactions: the publishes and acknowledgements of one channel since the last outcome, and their commit.

Nothing reaches a queue of the store before `tx.commit`: contents wait in memory, within the transaction's part of the
broker's memory budget, and beyond that as staged messages in the log (`spool`, `uploads`); acknowledged messages stay
taken. So a client that waits for an hour locks no message, and a rollback, or a lost connection, has only staged
messages to remove. The commit writes everything as one transaction of the store: all or nothing, with one force.

Invariants: `commit-ok` is sent after the commit is durable. Memory queues get their messages at that time, not earlier,
even if the channel is closed by then. If an acknowledgement does not take effect, its message is unacknowledged again,
or back on its queue if the channel is closed.
"""

from __future__ import annotations

import contextlib
import enum
import logging
from typing import TYPE_CHECKING, Final, cast

from pamqp import commands

from logstore.broker.acquired import release_in_turns
from logstore.broker.durable_queue import DurableQueue
from logstore.broker.memory_places import place_bytes
from logstore.broker.overflow import LogIsBusy
from logstore.broker.spool import BLOCK_BYTES, SPOOL_BYTES, Block, Publish, Total, destroy, read, write
from logstore.broker.turns import TURN_UNITS, Parts, all_of, in_turns
from logstore.errors import NotEnqueued, StoreError, StoreFull, UnknownMessage, UnknownQueue

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator, Sequence
    from typing import Any

    from logstore import MessageStore, Transaction
    from logstore.broker.acquired import Acquired
    from logstore.broker.channel import Channel
    from logstore.broker.contents import Content
    from logstore.broker.exchanges import Route

logger = logging.getLogger(__name__)

INLINE_OPERATIONS_MAX: Final = 500  # a larger transaction is written in another thread
PUBLISH_BYTES: Final = 384  # memory of an uncommitted publish in addition to its bytes; measured, rounded up
# The message is already off the queue: by a purge, a deletion or another program.
_GONE: Final = (NotEnqueued, UnknownMessage, UnknownQueue)


class Verdict(enum.Enum):
    """How a client settles a delivery."""

    ACCEPT = enum.auto()
    REJECT = enum.auto()
    RELEASE = enum.auto()


def _totals(item: Publish | Block) -> Sequence[Total]:
    """Its counts, one for each route."""
    if isinstance(item, Block):
        return item.totals
    total = Total(item.route)
    total.add(item)
    return (total,)


class ChannelTransaction:
    """The present transaction of a channel after `tx.select`. After each outcome the next one begins."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._items: list[Publish | Block] = []
        self._settled: list[tuple[Acquired, Verdict]] = []
        self._reserved_bytes = 0  # counted in the budget
        self._tail_count = 0  # of the last publishes, which are to be written as a block
        self._tail_bytes = 0
        self._last: _Commit | None = None

    @property
    def publish_count(self) -> int:
        """The number of messages that wait for the commit."""
        return len(self._items)

    @property
    def settled_count(self) -> int:
        """The number of deliveries whose acknowledgement waits for the outcome."""
        return len(self._settled)

    def publish(self, route: Route, content: Content, expiration_ms: int | None) -> None:
        """Keep a complete message for the commit: beyond the transaction's part of memory in the log.

        Raises `StoreError`, or a 506 channel exception if the log has too much of such.
        """
        size = PUBLISH_BYTES + len(content.properties or b"") + len(content.routing)
        if content.upload is None:
            size += content.body_size
        else:
            self._spool()
            self._channel.connection.host.uploads.keep(content.upload)
        fits = self._channel.vhost.budget.transactions.fits(self._reserved_bytes, size)
        self._items.append(Publish(route, content, expiration_ms))
        self._count(size)
        if content.upload is None and (self._tail_count or not fits):
            self._tail_count += 1
            self._tail_bytes += size
            if self._tail_bytes >= SPOOL_BYTES:
                self._spool()

    def _spool(self) -> None:
        """Write the last publishes as a block."""
        if self._tail_count:
            tail = cast("list[Publish]", self._items[-self._tail_count :])
            self._items[-self._tail_count :] = [write(self._channel, tail)]
            self._count(BLOCK_BYTES - self._tail_bytes)
            self._tail_count = self._tail_bytes = 0

    def _count(self, size: int) -> None:
        self._reserved_bytes += size
        self._channel.vhost.budget.transactions.add(size)

    def settle(self, taken: list[Acquired], verdict: Verdict) -> None:
        """Keep the settlement of deliveries for the commit."""
        self._settled += [(acquired, verdict) for acquired in taken]

    def rollback(self) -> None:
        """Drop the publishes; acknowledged messages are unacknowledged again, on this channel."""
        _drop_stored(self._channel, self._items)
        self._items = []
        self._channel.vhost.budget.transactions.give_back(self._reserved_bytes)
        self._reserved_bytes = self._tail_count = self._tail_bytes = 0
        settled, self._settled = self._settled, []
        self._channel.consuming.unsettle(acquired for acquired, _ in settled)

    def commit(self) -> Coroutine[Any, Any, None] | None:
        """Commit everything atomically; returns a coroutine if the transaction is large, or waits for room in the log.

        Raises `StoreError` or a channel exception if nothing was committed; that closes the channel.
        """
        commit = _Commit(self._channel, self._items, self._settled, self._reserved_bytes, self._last)
        self._last = commit
        self._items, self._settled = [], []
        self._reserved_bytes = self._tail_count = self._tail_bytes = 0
        if commit.is_large:
            return commit.run_in_background()
        return commit.run()


class _Commit:
    """One commit in progress. It is separate from its channel, which may be closed meanwhile."""

    def __init__(
        self,
        channel: Channel,
        items: list[Publish | Block],
        settled: list[tuple[Acquired, Verdict]],
        reserved_bytes: int,
        before: _Commit | None,
    ) -> None:
        """`before`: the one before it on the channel."""
        self._channel = channel
        self._items = items
        self._settled = settled
        self._reserved_bytes = reserved_bytes
        self._left: dict[Route, Route] = {}  # each route without queues that were deleted meanwhile
        self._totals: list[Sequence[Total]] = []  # of each item
        self._wrote = False
        self._lsn = 0
        self._finishing: Parts[None] | None = None  # once the commit is durable
        self._waiting: asyncio.Task[None] | None = None  # for its next part; kept, as the loop does not
        self._finished = False
        self._before = before  # finishes first, as the order of the queues is that of the commits
        self._next: _Commit | None = None  # waits for the end of this one

    @property
    def is_large(self) -> bool:
        """Whether writing it would block the event loop for too long."""
        if any(isinstance(item, Block) for item in self._items):
            return True
        size = sum(item.content.body_size for item in self._items if isinstance(item, Publish))
        operations = len(self._items) + len(self._settled)
        return operations > INLINE_OPERATIONS_MAX or size > self._channel.limits.inline_body_bytes_max

    def run(self) -> Coroutine[Any, Any, None] | None:
        """Write and apply the commit in the event loop's thread; returns a coroutine if it waits for room."""
        try:
            all_of(self._plan())
            while True:
                try:
                    self._write()
                except UnknownQueue:
                    before = list(self._left.values())
                    all_of(self._plan(leaving=True))
                    if not self._has_other_routes(before):
                        raise
                    continue
                break
        except BaseException as error:
            if isinstance(error, LogIsBusy) or (
                isinstance(error, StoreFull) and self._channel.connection.may_wait_for_space()
            ):
                return self.run_in_background()
            self._undo()
            raise
        all_of(self._apply())
        return None

    async def run_in_background(self) -> None:
        """Write the commit in another thread, then apply it; the connection reads nothing meanwhile.

        While the store is full it waits for room.
        """
        loop, connection = self._channel.wakeups.loop, self._channel.connection
        try:
            await connection.host.space.taken(connection, self._planned)
            while True:
                try:
                    await connection.host.space.taken(connection, lambda: loop.run_in_executor(None, self._write))
                except UnknownQueue:
                    before = list(self._left.values())
                    await self._planned(leaving=True)
                    if not self._has_other_routes(before):
                        raise
                    continue
                break
        except BaseException:
            self._undo()
            raise
        await in_turns(self._apply())

    # Before the store.

    def _has_other_routes(self, before: list[Route]) -> bool:
        """Whether queues were deleted during a write, so that another one may succeed."""
        return before != list(self._left.values())

    def _publishes(self) -> Iterator[Publish]:
        """All in order; those of a block are read from the log. Raises `StoreError`."""
        for item in self._items:
            if isinstance(item, Publish):
                yield item
            else:
                yield from read(self._channel.store, item)

    def _plan(self, *, leaving: bool = False) -> Generator[None]:
        """Determine the routes. Raises `StoreError` if a queue in memory cannot take any more."""
        self._left = {}
        for at, item in enumerate(self._items, 1):
            if len(self._totals) < at:
                self._totals.append(_totals(item))
            for total in self._totals[at - 1]:
                left = self._left[total.route] = total.route.without_deleted(leaving=leaving)
                is_large = isinstance(item, Publish) and item.content.upload is not None
                self._make_room(left, place_bytes(b"", 0 if is_large else total.size // total.count))
            if at % TURN_UNITS == 0:
                yield

    async def _planned(self, *, leaving: bool = False) -> None:
        """Determine the routes in turns; waits while the log has no room for blocks of queues in memory."""
        while True:
            try:
                await in_turns(self._plan(leaving=leaving))
                return
            except LogIsBusy as busy:
                await self._channel.wakeups.room(busy.percent)

    def _make_room(self, left: Route, size: int) -> None:
        """Prepare the queues in memory for a message of `size` bytes there. Raises `StoreError`; see `make_room`."""
        for queue in left.memory:
            if queue.make_room(size):
                self._channel.connection.published = True

    # In the store.

    def _write(self) -> None:
        """Write one transaction of the store; nothing if no durable queue is involved. Raises `StoreError`."""
        store = self._channel.store
        for item in self._items:
            if isinstance(item, Publish) and item.content.upload is not None:
                left = self._left[item.route]
                if left.durable and left.memory:
                    item.content.upload.copy()
        places = [(one, verdict) for one, verdict in self._settled if _is_in_store(one, verdict)]
        has_durable = any(left.durable for left in self._left.values())
        if not has_durable:
            self._check_blocks()
            if not places:
                return
        transaction = store.begin()
        try:
            if has_durable:
                for (
                    publish
                ) in self._publishes():  # also of queues in memory, so that each block is known to be readable
                    left = self._left[publish.route]
                    if left.durable:
                        _publish_within(store, transaction, publish, left)
            for acquired, verdict in places:
                _settle_within(transaction, acquired, verdict)
            transaction.commit(wait=False)
        except BaseException:
            with contextlib.suppress(StoreError):  # report the first failure
                transaction.rollback(wait=False)
            raise
        self._wrote = True
        self._lsn = store.next_lsn

    def _check_blocks(self) -> None:
        """Raises `StoreError` if a block cannot be read. After the commit its messages could only be lost."""
        for item in self._items:
            if isinstance(item, Block):
                self._channel.store.load_content(item.id)

    # After the store, in the event loop's thread.

    def _undo(self) -> None:
        """Release everything after a failed commit. The channel is closed, so acknowledged messages are released."""
        self._finished = True
        _drop_stored(self._channel, self._items)
        self._give_back()
        release_in_turns(self._channel.connection.turns, (acquired for acquired, _ in self._settled))

    def _give_back(self) -> None:
        self._channel.vhost.budget.transactions.give_back(self._reserved_bytes)
        self._reserved_bytes = 0

    def _apply(self) -> Parts[None]:
        """The transaction is in the log: notify the queues, and reply when it is durable."""
        channel = self._channel
        self._give_back()
        if self._wrote:
            channel.connection.published |= bool(self._items)
            channel.changed_until(self._lsn)
        filled = yield from self._filled()
        for queue, (count, expires) in filled.items():
            queue.enqueued(self._lsn, expires=expires, count=count)
        for at, (acquired, verdict) in enumerate(self._settled, 1):
            if at % TURN_UNITS == 0:
                yield None
            if verdict is Verdict.ACCEPT:
                acquired.queue.acknowledged += 1
            if _is_in_store(acquired, verdict):
                acquired.queue.settled(acquired.place)
                if verdict is Verdict.REJECT:
                    acquired.queue.rejected()
        yield from self._return_unroutable()
        if self._lsn <= channel.wakeups.settled_lsn:
            self._finish()
        else:  # waits itself, because the channel may be closed by then
            channel.wakeups.await_commit(self)
        if channel.is_open:
            if not self._finished:
                channel.defer(self._unfinished_lsn)
            channel.reply(commands.Tx.CommitOk())

    def _return_unroutable(self) -> Parts[None]:
        for at, item in enumerate(self._items, 1):
            for publish in (yield from self._of(at - 1, lambda left: not left.durable and not left.memory)):
                self._channel.publishing.return_unroutable(publish.content)
            if at % TURN_UNITS == 0 or isinstance(item, Block):
                yield None

    def _of(self, at: int, wanted: Callable[[Route], bool]) -> Parts[list[Publish]]:
        """The publishes of an item with such routes; a block is read in another thread."""
        if not any(wanted(self._left[total.route]) for total in self._totals[at]):
            return []
        item = self._items[at]
        if isinstance(item, Publish):
            return [item]
        reading = self._channel.wakeups.loop.run_in_executor(None, self._read, item)
        yield reading
        return [publish for publish in reading.result() if wanted(self._left[publish.route])]

    def _read(self, block: Block) -> list[Publish]:
        """The publishes of a block. One that cannot be read any more has none: it is logged."""
        try:
            return list(read(self._channel.store, block))
        except StoreError as error:
            logger.error("messages of a committed transaction cannot be read, and go to no queue in memory: %s", error)
            return []

    def _filled(self) -> Generator[None, None, dict[DurableQueue, tuple[int, bool]]]:
        """The durable queues that got messages: how many, and whether any of those expires."""
        filled: dict[DurableQueue, tuple[int, bool]] = {}
        for at, item in enumerate(self._items, 1):
            upload = item.content.upload if isinstance(item, Publish) else None
            for total in self._totals[at - 1]:
                left = self._left[total.route]
                if upload is not None and (left.durable or left.memory):
                    upload.enqueued(is_durable=bool(left.durable), is_in_memory=bool(left.memory))
                for queue in left.durable:
                    if not queue.deleted:
                        count, expires = filled.get(queue, (0, False))
                        filled[queue] = count + total.count, expires or total.expires
            if at % TURN_UNITS == 0:
                yield
        return filled

    def settle(self, durable_lsn: int) -> bool:
        """Called after a group commit. True while this commit is not durable."""
        if durable_lsn >= self._lsn:
            self._finish()
        return self._finishing is None

    def _unfinished_lsn(self) -> int | None:
        """Called at the channel's gate: the LSN of the commit, until it is finished."""
        self._finish()
        return None if self._finished else self._lsn

    def _finish(self) -> None:
        """The commit is durable: begin to finish it, or wait for the one before it."""
        if self._finishing is not None:
            return
        self._finishing = self._finish_parts()
        if self._before is None or self._before._finished:
            self.take_turn()
        else:
            self._before._next = self

    def take_turn(self) -> int:
        """Finish a part of the commit."""
        assert self._finishing is not None
        for waits in self._finishing:
            if waits is None:
                self._channel.connection.turns.add(self)
            else:
                self._waiting = self._channel.wakeups.loop.create_task(self._go_on_after(waits))
            return TURN_UNITS
        self._finished = True
        self._before = None
        if self._next is not None:
            self._channel.connection.turns.add(self._next)
        if self._channel.waits:
            self._channel.connection.touch(self._channel)
        return TURN_UNITS

    async def _go_on_after(self, waits: Awaitable[object]) -> None:
        await waits
        self._channel.connection.turns.add(self)

    def _finish_parts(self) -> Parts[None]:
        """Apply the commit to the memory queues, and return the consumers' credit."""
        for at, item in enumerate(self._items, 1):
            for publish in (yield from self._of(at - 1, lambda left: bool(left.memory))):
                yield from self._enqueue_in_memory(publish)
            if at % TURN_UNITS == 0 or isinstance(item, Block):
                yield None
        destroy(self._channel, [item for item in self._items if isinstance(item, Block)])
        for at, (acquired, verdict) in enumerate(self._settled, 1):
            if verdict is Verdict.RELEASE:
                acquired.release()
            elif not isinstance(acquired.queue, DurableQueue):
                (acquired.reject if verdict is Verdict.REJECT else acquired.accept)()
            if at % TURN_UNITS == 0:
                yield None
        if self._channel.is_open:
            self._channel.consuming.return_credit(acquired for acquired, _ in self._settled)
        self._items, self._settled, self._totals, self._left = [], [], [], {}

    def _enqueue_in_memory(self, publish: Publish) -> Parts[None]:
        """The commit is durable, so no message may be refused any more.

        If the log has become full, the queues get memory beyond their share for it: at most what the transaction had,
        because the next transaction is refused before its commit.
        """
        left, content = self._left[publish.route], publish.content
        header, body, upload = content.header(publish.expiration_ms), bytes(content.body), content.upload
        large = None if upload is None else upload.large
        while True:
            try:
                self._make_room(left, place_bytes(header, len(body)))
            except LogIsBusy as busy:
                yield self._channel.wakeups.room(busy.percent)
                continue
            except StoreError as error:
                logger.debug("queues in memory have more than their part of memory: %s", error)
            break
        for queue in left.memory:
            if not queue.deleted:
                queue.enqueue(header, body, expires=publish.expiration_ms is not None, large=large)
        if large is not None:
            large.let_go()


def _drop_stored(channel: Channel, items: list[Publish | Block]) -> None:
    """Remove from the log what waits there."""
    destroy(channel, [item for item in items if isinstance(item, Block)])
    for item in items:
        if isinstance(item, Publish) and item.content.upload is not None:
            item.content.upload.drop()


def _publish_within(store: MessageStore, transaction: Transaction, publish: Publish, left: Route) -> None:
    content, header = publish.content, publish.content.header(publish.expiration_ms)
    if content.upload is not None:
        expires = publish.expiration_ms is not None
        content.upload.enqueue(left.durable, header, expires=expires, transaction=transaction)
        return
    handles = [queue.handle for queue in left.durable]
    store.publish(handles, content.body, header=header, transaction=transaction, wait=False)


def _is_in_store(acquired: Acquired, verdict: Verdict) -> bool:
    return verdict is not Verdict.RELEASE and isinstance(acquired.queue, DurableQueue)


def _settle_within(transaction: Transaction, acquired: Acquired, verdict: Verdict) -> None:
    queue = acquired.queue
    assert isinstance(queue, DurableQueue)
    if not queue.deleted:
        with contextlib.suppress(*_GONE):
            queue.settle_within(transaction, acquired.place, rejects=verdict is Verdict.REJECT)
