"""AMQP transactions: the publishes and acknowledgements of one channel since the last outcome, and their commit.

Nothing reaches the store before `tx.commit`: contents wait in memory, within the broker's memory budget, and
acknowledged messages stay taken. So a client that waits for an hour keeps no segment and locks no message, and a
rollback, or a lost connection, has nothing to undo in the store. The commit writes everything as one transaction of the
store: all or nothing, with one force.

Invariants: `commit-ok` is sent after the commit is durable. Memory queues get their messages at that time, not earlier,
even if the channel is closed by then. If an acknowledgement does not take effect, its message is unacknowledged again,
or back on its queue if the channel is closed.
"""

from __future__ import annotations

import contextlib
import enum
import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from pamqp import commands

from logstore.broker.durable_queue import DurableQueue
from logstore.broker.errors import RESOURCE_ERROR, ChannelException
from logstore.broker.memory_places import place_bytes
from logstore.broker.queues import release_in_turns
from logstore.broker.turns import TURN_UNITS, all_of, in_turns
from logstore.errors import NotEnqueued, StoreError, StoreFull, UnknownMessage, UnknownQueue

if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator
    from typing import Any

    from logstore import MessageStore, Transaction
    from logstore.broker.channel import Channel
    from logstore.broker.exchanges import Route
    from logstore.broker.publishing import Content
    from logstore.broker.queues import Acquired

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


class _Publish(NamedTuple):
    route: Route
    content: Content
    expiration_ms: int | None


class _Message(NamedTuple):
    """A publish with its encoded header, without queues that were deleted meanwhile."""

    route: Route
    header: bytes
    content: Content
    expires: bool


class ChannelTransaction:
    """The present transaction of a channel after `tx.select`. After each outcome the next one begins."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._publishes: list[_Publish] = []
        self._settled: list[tuple[Acquired, Verdict]] = []
        self._reserved_bytes = 0  # reserved in the budget for contents

    @property
    def publish_count(self) -> int:
        """The number of messages that wait for the commit."""
        return len(self._publishes)

    @property
    def settled_count(self) -> int:
        """The number of deliveries whose acknowledgement waits for the outcome."""
        return len(self._settled)

    def publish(self, route: Route, content: Content, expiration_ms: int | None) -> None:
        """Keep a complete message for the commit. Raises a 506 channel exception if memory is full."""
        size = PUBLISH_BYTES + len(content.properties or b"") + len(content.routing)
        if content.upload is None:
            size += content.body_size
        else:
            self._channel.connection.host.uploads.keep(content.upload)
        budget = self._channel.vhost.budget.contents
        if not budget.take(size):
            raise _memory_full(budget.bytes_max)
        self._reserved_bytes += size
        self._publishes.append(_Publish(route, content, expiration_ms))

    def settle(self, taken: list[Acquired], verdict: Verdict) -> None:
        """Keep the settlement of deliveries for the commit."""
        self._settled += [(acquired, verdict) for acquired in taken]

    def rollback(self) -> None:
        """Drop the publishes; acknowledged messages are unacknowledged again, on this channel."""
        _drop_large(self._publishes)
        self._publishes = []
        self._channel.vhost.budget.contents.give_back(self._reserved_bytes)
        self._reserved_bytes = 0
        settled, self._settled = self._settled, []
        self._channel.consuming.unsettle(acquired for acquired, _ in settled)

    def commit(self) -> Coroutine[Any, Any, None] | None:
        """Commit everything atomically; returns a coroutine if the transaction is large, or waits for room in the log.

        Raises `StoreError` or a channel exception if nothing was committed; that closes the channel.
        """
        commit = _Commit(self._channel, self._publishes, self._settled, self._reserved_bytes)
        self._publishes, self._settled, self._reserved_bytes = [], [], 0
        if commit.is_large:
            return commit.run_in_background()
        return commit.run()


class _Commit:
    """One commit in progress. It is separate from its channel, which may be closed meanwhile."""

    def __init__(
        self, channel: Channel, publishes: list[_Publish], settled: list[tuple[Acquired, Verdict]], reserved_bytes: int
    ) -> None:
        self._channel = channel
        self._publishes = publishes
        self._settled = settled
        self._reserved_bytes = reserved_bytes
        self._messages: list[_Message] = []
        self._wrote = False
        self._lsn = 0
        self._finishing: Generator[None] | None = None  # once the commit is durable
        self._finished = False

    @property
    def is_large(self) -> bool:
        """Whether writing it would block the event loop for too long."""
        size = sum(publish.content.body_size for publish in self._publishes)
        operations = len(self._publishes) + len(self._settled)
        return operations > INLINE_OPERATIONS_MAX or size > self._channel.limits.inline_body_bytes_max

    def run(self) -> Coroutine[Any, Any, None] | None:
        """Write and apply the commit in the event loop's thread; returns a coroutine if it waits for room."""
        try:
            all_of(self._plan())
            while True:
                try:
                    self._write()
                except UnknownQueue:
                    before = [message.route for message in self._messages]
                    all_of(self._plan(leaving=True))
                    if not self._has_other_routes(before):
                        raise
                    continue
                break
        except BaseException as error:
            if isinstance(error, StoreFull) and self._channel.connection.may_wait_for_space():
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
            await in_turns(self._plan())
            while True:
                try:
                    await connection.host.space.taken(connection, lambda: loop.run_in_executor(None, self._write))
                except UnknownQueue:
                    before = [message.route for message in self._messages]
                    await in_turns(self._plan(leaving=True))
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
        return before != [message.route for message in self._messages]

    def _plan(self, *, leaving: bool = False) -> Generator[None]:
        """Determine the route of each message. Raises `StoreError` if a queue in memory cannot take any more."""
        self._messages = []
        for at, publish in enumerate(self._publishes, 1):
            message = _Message(
                publish.route.without_deleted(leaving=leaving),
                publish.content.header(publish.expiration_ms),
                publish.content,
                publish.expiration_ms is not None,
            )
            self._make_room(message)
            self._messages.append(message)
            if at % TURN_UNITS == 0:
                yield

    def _make_room(self, message: _Message) -> None:
        """Prepare the queues in memory for a message. Raises `StoreError`."""
        size = place_bytes(message.header, 0 if message.content.upload is not None else message.content.body_size)
        for queue in message.route.memory:
            if queue.make_room(size):
                self._channel.connection.published = True

    # In the store.

    def _write(self) -> None:
        """Write one transaction of the store; nothing if no durable queue is involved. Raises `StoreError`."""
        store = self._channel.store
        for message in self._messages:
            if message.content.upload is not None and message.route.durable and message.route.memory:
                message.content.upload.copy()
        durable = [message for message in self._messages if message.route.durable]
        places = [(one, verdict) for one, verdict in self._settled if _is_in_store(one, verdict)]
        if not durable and not places:
            return
        transaction = store.begin()
        try:
            for message in durable:
                _publish_within(store, transaction, message)
            for acquired, verdict in places:
                _settle_within(transaction, acquired, verdict)
            transaction.commit(wait=False)
        except BaseException:
            with contextlib.suppress(StoreError):  # report the first failure
                transaction.rollback(wait=False)
            raise
        self._wrote = True
        self._lsn = store.next_lsn

    # After the store, in the event loop's thread.

    def _undo(self) -> None:
        """Release everything after a failed commit. The channel is closed, so acknowledged messages are released."""
        _drop_large(self._publishes)
        self._give_back_contents()
        release_in_turns(self._channel.connection.turns, (acquired for acquired, _ in self._settled))

    def _give_back_contents(self) -> None:
        self._channel.vhost.budget.contents.give_back(self._reserved_bytes)
        self._reserved_bytes = 0

    def _apply(self) -> Generator[None]:
        """The transaction is in the log: notify the queues, and reply when it is durable."""
        channel = self._channel
        self._give_back_contents()
        if self._wrote:
            channel.connection.published |= bool(self._messages)
            channel.changed_until(self._lsn)
        filled = yield from self._filled()
        for queue, (count, expires) in filled.items():
            queue.enqueued(self._lsn, expires=expires, count=count)
        for at, (acquired, verdict) in enumerate(self._settled, 1):
            if at % TURN_UNITS == 0:
                yield
            if verdict is Verdict.ACCEPT:
                acquired.queue.acknowledged += 1
            if _is_in_store(acquired, verdict):
                acquired.queue.settled(acquired.place)
                if verdict is Verdict.REJECT:
                    acquired.queue.rejected()
        is_durable = self._lsn <= channel.wakeups.settled_lsn
        yield from self._return_unroutable()
        if is_durable:
            self._finish()
        else:  # waits itself, because the channel may be closed by then
            channel.wakeups.await_commit(self)
        if channel.is_open:
            if not self._finished:
                channel.defer(self._unfinished_lsn)
            channel.reply(commands.Tx.CommitOk())

    def _return_unroutable(self) -> Generator[None]:
        for at, (publish, message) in enumerate(zip(self._publishes, self._messages, strict=True), 1):
            if not message.route.durable and not message.route.memory:
                self._channel.publishing.return_unroutable(publish.content)
            if at % TURN_UNITS == 0:
                yield

    def _filled(self) -> Generator[None, None, dict[DurableQueue, tuple[int, bool]]]:
        """The durable queues that got messages: how many, and whether any of those expires."""
        filled: dict[DurableQueue, tuple[int, bool]] = {}
        for at, message in enumerate(self._messages, 1):
            upload = message.content.upload
            is_durable, is_in_memory = bool(message.route.durable), bool(message.route.memory)
            if upload is not None and (is_durable or is_in_memory):
                upload.enqueued(is_durable=is_durable, is_in_memory=is_in_memory)
            for queue in message.route.durable:
                if not queue.deleted:
                    count, expires = filled.get(queue, (0, False))
                    filled[queue] = count + 1, expires or message.expires
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
        """The commit is durable: begin to finish it."""
        if self._finishing is None:
            self._finishing = self._finish_parts()
            self.take_turn()

    def take_turn(self) -> int:
        """Finish a part of the commit."""
        assert self._finishing is not None
        for _ in self._finishing:
            self._channel.connection.turns.add(self)
            return TURN_UNITS
        self._finished = True
        if self._channel.waits:
            self._channel.connection.touch(self._channel)
        return TURN_UNITS

    def _finish_parts(self) -> Generator[None]:
        """Apply the commit to the memory queues, and return the consumers' credit."""
        for at, message in enumerate(self._messages, 1):
            self._enqueue_in_memory(message)
            if at % TURN_UNITS == 0:
                yield
        for at, (acquired, verdict) in enumerate(self._settled, 1):
            if verdict is Verdict.RELEASE:
                acquired.release()
            elif not isinstance(acquired.queue, DurableQueue):
                (acquired.reject if verdict is Verdict.REJECT else acquired.accept)()
            if at % TURN_UNITS == 0:
                yield
        if self._channel.is_open:
            self._channel.consuming.return_credit(acquired for acquired, _ in self._settled)
        self._publishes, self._messages, self._settled = [], [], []

    def _enqueue_in_memory(self, message: _Message) -> None:
        """The commit is durable, so no message may be refused any more.

        If the log has become full, the queues get memory beyond their share for it: at most what the transaction had,
        because the next transaction is refused before its commit.
        """
        if not message.route.memory:
            return
        body, upload = bytes(message.content.body), message.content.upload
        large = None if upload is None else upload.large
        with contextlib.suppress(StoreError):
            self._make_room(message)
        for queue in message.route.memory:
            if not queue.deleted:
                queue.enqueue(message.header, body, expires=message.expires, large=large)
        if large is not None:
            large.let_go()


def _memory_full(bytes_max: int) -> ChannelException:
    return ChannelException(
        RESOURCE_ERROR, f"the broker's memory for messages is full ({bytes_max} bytes): the transaction is rolled back"
    )


def _drop_large(publishes: list[_Publish]) -> None:
    for publish in publishes:
        if publish.content.upload is not None:
            publish.content.upload.drop()


def _publish_within(store: MessageStore, transaction: Transaction, message: _Message) -> None:
    upload = message.content.upload
    if upload is not None:
        upload.enqueue(message.route.durable, message.header, expires=message.expires, transaction=transaction)
        return
    handles = [queue.handle for queue in message.route.durable]
    store.publish(handles, message.content.body, header=message.header, transaction=transaction, wait=False)


def _is_in_store(acquired: Acquired, verdict: Verdict) -> bool:
    return verdict is not Verdict.RELEASE and isinstance(acquired.queue, DurableQueue)


def _settle_within(transaction: Transaction, acquired: Acquired, verdict: Verdict) -> None:
    queue = acquired.queue
    assert isinstance(queue, DurableQueue)
    if not queue.deleted:
        with contextlib.suppress(*_GONE):
            queue.settle_within(transaction, acquired.place, rejects=verdict is Verdict.REJECT)
