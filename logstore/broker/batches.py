"""What one connection collects while it works through what it has received: publishes and acknowledgements.

Most of what a busy connection sends is the same few frames over and over. Those that came whole are collected here and
handed to the store many at a time: consecutive publishes to one durable queue by one `publish_many`, acknowledgements
by one `accept_many` for each queue. Everything else goes frame by frame, after what was collected before it.

What must always hold: nothing stays here when the connection has worked through what it received, and nothing that was
collected is overtaken by a later frame of the connection, except that acknowledgements may follow publishes: whoever
loses the broker between the two gets a message again, and none is lost. Confirms are given to the channel's gate after
both, so a confirm still says that every acknowledgement before it on the channel is durable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from logstore.broker import frames
from logstore.broker.errors import ChannelException
from logstore.errors import StoreError, UnknownQueue

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from logstore import MessageStore
    from logstore.broker.channel import Channel
    from logstore.broker.connection import Connection
    from logstore.broker.consumers import Consuming
    from logstore.broker.durable_queue import DurableQueue
    from logstore.broker.publishing import Publishing

MESSAGES_MAX: Final = 512
BYTES_MAX: Final = 1 << 20
_PUBLISH: Final = 0x003C0028
_ACK: Final = 0x003C0050


class _Run:
    """Consecutive publishes of one channel."""

    __slots__ = ("count", "last_tag", "publishing")

    def __init__(self, publishing: Publishing, tag: int) -> None:
        self.publishing = publishing
        self.count = 1
        self.last_tag = tag  # 0 if nothing is confirmed there


class Batches:
    """One connection's collection."""

    __slots__ = ("_bodies", "_body_bytes", "_confirms", "_connection", "_consuming", "_headers", "_queue", "_runs")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._queue: DurableQueue | None = None  # that all collected publishes go to
        self._headers: list[bytes] = []
        self._bodies: list[bytes] = []
        self._body_bytes = 0
        self._runs: list[_Run] = []
        self._confirms: list[tuple[_Run, int]] = []  # of what the store has, with what to wait for
        self._consuming: dict[Consuming, None] = {}  # who has acknowledgements to settle

    def collect(self, received: Sequence[frames.RawFrame], at: int) -> int:
        """Collect a publish or an acknowledgement of the plain sort; how many frames it took, 0 if this is none.

        The connection is open.
        """
        kind, number, payload = received[at]
        if kind != frames.METHOD:
            return 0
        index = payload[:4]
        if index == frames.PUBLISH_START:
            return self._collect_publish(received, at, number, payload)
        if index != frames.ACK_START or len(payload) != frames.ACK_BYTES:
            return 0
        channel = self._connection.channels.get(number)
        if channel is None or not channel.is_open or channel.held is not None or channel.publishing.expects_content:
            return 0
        return self._collect_acks(received, at, channel)

    def _collect_acks(self, received: Sequence[frames.RawFrame], at: int, channel: Channel) -> int:
        """All that follow one another; how many there are."""
        start, count, number, ack = at, len(received), channel.number, channel.consuming.ack
        while at < count:
            kind, frame_number, payload = received[at]
            if kind != frames.METHOD or frame_number != number or payload[:4] != frames.ACK_START:
                break
            if len(payload) != frames.ACK_BYTES:
                break
            tag, bits = frames.unpack_ack(payload, 4)
            at += 1
            try:
                ack(tag, multiple=bool(bits & 1))
            except ChannelException as error:
                self._connection.on_error(channel, _ACK, error)
                break
        return at - start

    def _collect_publish(self, received: Sequence[frames.RawFrame], at: int, number: int, method: bytes) -> int:
        if at + 2 >= len(received):
            return 0
        head_kind, head_number, head = received[at + 1]
        body_kind, body_number, body = received[at + 2]
        if head_kind != frames.HEADER or body_kind != frames.BODY or not number == head_number == body_number:
            return 0
        connection = self._connection
        channel = connection.channels.get(number)
        if channel is None or not channel.is_open or channel.held is not None:
            return 0
        if not channel.publishing.take(method, head, body):
            return 0
        connection.published = True
        return 3

    def publish(self, publishing: Publishing, queue: DurableQueue, header: bytes, body: bytes, tag: int) -> None:
        """Collect a publish to one durable queue; `tag` is 0 where nothing is confirmed."""
        if queue is not self._queue:
            self._store()
            self._queue = queue
        self._headers.append(header)
        self._bodies.append(body)
        runs = self._runs
        if runs and runs[-1].publishing is publishing:
            runs[-1].count += 1
            runs[-1].last_tag = tag
        else:
            runs.append(_Run(publishing, tag))
        self._body_bytes += len(body)
        if self._body_bytes >= BYTES_MAX or len(self._bodies) >= MESSAGES_MAX:
            self._store()

    def acknowledged(self, consuming: Consuming) -> None:
        """A channel has acknowledgements that are to be settled."""
        self._consuming[consuming] = None

    def flush(self) -> None:
        """Do all that was collected. What the store refuses ends channels or the connection, as for single frames."""
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
        """Settle what was acknowledged; what the store refused, by channel."""
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
        """Everything collected for one queue goes to the store."""
        queue = self._queue
        bodies, headers, runs = self._bodies, self._headers, self._runs
        self._bodies, self._headers, self._runs, self._body_bytes = [], [], [], 0
        self._queue = None
        if not bodies:
            return
        assert queue is not None
        store = self._connection.server.store
        try:
            _publish(store, queue, headers, bodies)
        except StoreError as error:
            self._store_singly(queue, headers, bodies, runs, len(getattr(error, "published", ())))
            return
        lsn = store.next_lsn
        queue.enqueued(lsn, expires=False)
        self._confirms += [(run, lsn) for run in runs]

    def _store_singly(
        self, queue: DurableQueue, headers: list[bytes], bodies: list[bytes], runs: list[_Run], stored: int
    ) -> None:
        """The first so many are stored; each of the others is tried, and refused if it must be, by itself."""
        store = self._connection.server.store
        for at, (publishing, tag) in enumerate(_each(runs)):
            if at >= stored:
                if not publishing.channel.is_open:
                    continue  # closed by one before it: what follows is ignored
                try:
                    _publish(store, queue, headers[at : at + 1], bodies[at : at + 1])
                except StoreError as error:
                    self.flush()  # confirms of what came before go first
                    if isinstance(error, UnknownQueue) and (queue.deleted or queue.is_leaving):
                        publishing.found_no_queue(headers[at], bodies[at], tag)
                    else:
                        self._refuse(publishing, tag, error)
                    continue
            lsn = store.next_lsn
            queue.enqueued(lsn, expires=False)
            self._confirms.append((_Run(publishing, tag), lsn))

    def _refuse(self, publishing: Publishing, tag: int, error: StoreError) -> None:
        self._connection.guarded(publishing.channel, _PUBLISH, lambda: publishing.refuse(tag, error))


def _each(runs: list[_Run]) -> Iterator[tuple[Publishing, int]]:
    for run in runs:
        for behind in range(run.count - 1, -1, -1):
            yield run.publishing, run.last_tag - behind if run.last_tag else 0


def _publish(store: MessageStore, queue: DurableQueue, headers: list[bytes], bodies: list[bytes]) -> None:
    if len(bodies) == 1:
        store.publish(queue.handle, bodies[0], header=headers[0], wait=False)
    else:
        store.publish_many(queue.handle, bodies, headers=headers, wait=False)
