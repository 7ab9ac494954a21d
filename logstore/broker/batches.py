"""Collects the publishes and acknowledgements in the frames that one connection has received.

A busy connection mostly sends the same few frames. Publishes and acknowledgements that arrived completely are collected
here and passed to the store together: consecutive publishes to one durable queue by one `publish_many`,
acknowledgements by one `accept_many` per queue. All other frames are handled one by one, after the frames collected
before them.

Invariants: nothing stays collected when all received frames are handled. No later frame of the connection overtakes a
collected one, with one exception: an acknowledgement may take effect after a later publish. If the broker dies between
the two, the message is delivered again; none is lost. Confirms go to the channel's gate after both, so a confirm still
means that every earlier acknowledgement on the channel is durable.

Publishes that a full store refuses are kept until there is room (`space`); those collected later follow them, and
nothing more is read meanwhile.
"""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Final

from logstore.broker import frames
from logstore.broker.consumers import SLICE_MAX
from logstore.broker.errors import ChannelException
from logstore.broker.runs import RUN_MAX, AckRun, PublishRun
from logstore.errors import StoreError, StoreFull, UnknownQueue

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logstore import MessageStore
    from logstore.broker.channel import Channel
    from logstore.broker.connection import Connection
    from logstore.broker.consumers import Consuming
    from logstore.broker.durable_queue import DurableQueue
    from logstore.broker.publishing import Publishing

    # Publishes to one queue: the headers, the bodies, and whose they are with their tags.
    Collected = tuple[DurableQueue, list[bytes], list[bytes], list[tuple[Publishing, int]]]

MESSAGES_MAX: Final = RUN_MAX
BYTES_MAX: Final = 1 << 20
_PUBLISH: Final = 0x003C0028
_ACK: Final = 0x003C0050


class _Run:
    """Consecutive publishes of one channel."""

    __slots__ = ("count", "last_tag", "publishing")

    def __init__(self, publishing: Publishing, last_tag: int, count: int) -> None:
        self.publishing = publishing
        self.count = count
        self.last_tag = last_tag  # 0 if the channel does not use confirms


class Batches:
    """The collected publishes and acknowledgements of one connection."""

    __slots__ = (
        "_bodies",
        "_body_bytes",
        "_confirms",
        "_connection",
        "_consuming",
        "_headers",
        "_kept",
        "_queue",
        "_runs",
    )

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._queue: DurableQueue | None = None  # the queue of all collected publishes
        self._headers: list[bytes] = []
        self._bodies: list[bytes] = []
        self._body_bytes = 0
        self._runs: list[_Run] = []
        self._confirms: list[tuple[_Run, int]] = []  # of stored publishes, with the LSNs to wait for
        self._consuming: dict[Consuming, None] = {}  # channels with acknowledgements to settle
        self._kept: collections.deque[Collected] = collections.deque()  # waits for room in the store

    @property
    def keeps(self) -> bool:
        """Whether publishes wait for room in the store, so that nothing behind them may be handled."""
        return bool(self._kept)

    def collect(self, received: Sequence[frames.Received], at: int) -> int:
        """Collect the publishes or acknowledgements that begin at `at`.

        Returns the number of items used; 0 if they must be handled frame by frame. The connection must be open.
        """
        first = received[at]
        if isinstance(first, tuple):
            kind, number, payload = first
            if kind != frames.METHOD:
                return 0
            index = payload[:4]
            is_publish = index == frames.PUBLISH_START
            if not is_publish and (index != frames.ACK_START or len(payload) != frames.ACK_BYTES):
                return 0
        else:
            number = first.channel
        channel = self._connection.channels.get(number)
        if channel is None or not channel.is_open or channel.held is not None:
            return 0
        if isinstance(first, PublishRun):
            return self._collect_run(channel, first)
        if isinstance(first, tuple) and is_publish:
            return self._collect_publish(channel, payload, received[at + 1 : at + 3])
        if channel.publishing.expects_content:
            return 0
        try:
            if isinstance(first, AckRun):
                channel.consuming.ack_each(first.tags)
            elif isinstance(first, tuple):
                tag, bits = frames.unpack_ack(payload, 4)
                multiple = bool(bits & 1)
                if multiple and channel.consuming.unacknowledged_count > SLICE_MAX:
                    return 0  # it may take long
                channel.consuming.ack(tag, multiple=multiple)
        except ChannelException as error:
            self._connection.on_error(channel, _ACK, error)
        return 1

    def _collect_run(self, channel: Channel, run: PublishRun) -> int:
        if not channel.publishing.take_run(run):
            return 0
        self._connection.published = True
        return 1

    def _collect_publish(self, channel: Channel, method: bytes, content: Sequence[frames.Received]) -> int:
        if len(content) < 2:
            return 0
        head, body = content
        if not isinstance(head, tuple) or head[0] != frames.HEADER or head[1] != channel.number:
            return 0
        if not isinstance(body, tuple) or body[0] != frames.BODY or body[1] != channel.number:
            return 0
        if not channel.publishing.take(method, head[2], body[2]):
            return 0
        self._connection.published = True
        return 3

    def publish(
        self, publishing: Publishing, queue: DurableQueue, header: bytes, bodies: list[bytes], last_tag: int
    ) -> None:
        """Collect publishes to one durable queue; `last_tag` is 0 if the channel does not use confirms."""
        if queue is not self._queue:
            if self._bodies:
                self._store()
            self._queue = queue
        count = len(bodies)
        self._bodies += bodies
        runs = self._runs
        if runs and runs[-1].publishing is publishing:
            runs[-1].count += count
            runs[-1].last_tag = last_tag
        else:
            runs.append(_Run(publishing, last_tag, count))
        if count == 1:
            self._headers.append(header)
            self._body_bytes += len(bodies[0])
        else:
            self._headers += [header] * count
            self._body_bytes += sum(map(len, bodies))
        if self._body_bytes >= BYTES_MAX or len(self._bodies) >= MESSAGES_MAX:
            self._store()

    def acknowledged(self, consuming: Consuming) -> None:
        """Note that a channel has acknowledgements to settle."""
        self._consuming[consuming] = None

    def flush(self) -> None:
        """Execute everything collected. Errors of the store close channels or the connection, as for single frames."""
        if self._bodies:
            self._store()
        if self._consuming:
            problems = self._settle()
            self._confirm()
            for channel, error in problems:
                self._connection.on_error(channel, _ACK, error)
        elif self._confirms:
            self._confirm()

    def _settle(self) -> list[tuple[Channel, StoreError]]:
        """Settle the acknowledgements. Returns the errors of the store with their channels."""
        consuming, self._consuming = self._consuming, {}
        problems = []
        for each in consuming:
            try:
                each.settle_accepted()
            except StoreError as error:
                problems.append((each.channel, error))
        return problems

    def _confirm(self) -> None:
        confirms, self._confirms = self._confirms, []
        for run, lsn in confirms:
            channel = run.publishing.channel
            channel.changed_until(lsn)
            if run.last_tag:
                channel.confirm(run.last_tag, run.count)

    def _store(self) -> None:
        """Pass everything collected for one queue to the store."""
        queue = self._queue
        bodies, headers, runs = self._bodies, self._headers, self._runs
        self._bodies, self._headers, self._runs, self._body_bytes = [], [], [], 0
        self._queue = None
        assert queue is not None
        if self._kept:
            self._kept.append((queue, headers, bodies, _each(runs)))
            return
        store = self._connection.host.store
        try:
            _publish(store, queue, headers, bodies)
        except StoreError as error:
            stored = len(getattr(error, "published", ()))
            refusal = self._store_singly((queue, headers, bodies, _each(runs)), stored)
            if refusal is not None:
                self._connection.suspend(None, _PUBLISH, self._store_kept(refusal))
            return
        lsn = store.next_lsn
        queue.enqueued(lsn, expires=False, count=len(bodies))
        for run in runs:
            self._confirms.append((run, lsn))

    def _store_singly(self, collected: Collected, stored: int = 0) -> StoreFull | None:
        """Publish the messages after the first `stored` ones one by one, so that each can be refused by itself.

        If the store is full, and the connection may wait for room, returns the error, and keeps what is left.
        """
        connection = self._connection
        store = connection.host.store
        queue, headers, bodies, each = collected
        for index, (publishing, tag) in enumerate(each):
            if index >= stored:
                if not publishing.channel.is_open:
                    continue  # closed by an earlier message, so later ones are ignored
                try:
                    _publish(store, queue, headers[index : index + 1], bodies[index : index + 1])
                except StoreError as error:
                    if isinstance(error, StoreFull) and connection.may_wait_for_space():
                        self._kept.appendleft((queue, headers[index:], bodies[index:], each[index:]))
                        return error
                    self.flush()  # send the confirms of earlier messages first
                    if isinstance(error, UnknownQueue) and (queue.deleted or queue.is_leaving):
                        publishing.found_no_queue(headers[index], bodies[index], tag)
                    else:
                        self._refuse(publishing, tag, error)
                    continue
            lsn = store.next_lsn
            queue.enqueued(lsn, expires=False)
            self._confirms.append((_Run(publishing, tag, 1), lsn))
        return None

    async def _store_kept(self, refusal: StoreFull | None) -> None:
        """Store what waits for room, in order, when there is some; what has waited long enough is refused."""
        space = self._connection.host.space
        try:
            while self._kept:
                if refusal is not None:
                    self._confirm()
                    await space.room(self._connection, refusal)
                refusal = self._store_singly(self._kept.popleft())
        finally:
            self._kept.clear()
        space.published(self._connection)
        self._connection.published = True
        self.flush()

    def _refuse(self, publishing: Publishing, tag: int, error: StoreError) -> None:
        self._connection.guarded(publishing.channel, _PUBLISH, lambda: publishing.refuse(tag, error))


def _each(runs: list[_Run]) -> list[tuple[Publishing, int]]:
    return [
        (run.publishing, run.last_tag - behind if run.last_tag else 0)
        for run in runs
        for behind in range(run.count - 1, -1, -1)
    ]


def _publish(store: MessageStore, queue: DurableQueue, headers: list[bytes], bodies: list[bytes]) -> None:
    if len(bodies) == 1:
        store.publish(queue.handle, bodies[0], header=headers[0], wait=False)
    else:
        store.publish_many(queue.handle, bodies, headers=headers, wait=False)
