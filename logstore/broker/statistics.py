"""The figures of a running broker and its queues, in the form of the control socket's ``stats``.

Invariant: it only reads plain numbers, so it may run in any thread. 20,000 queues take some 0.2 s of that thread; the
event loop then encodes the reply at once, which clients notice only with that many queues.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from logstore import __version__
from logstore.broker.durable_queue import DurableQueue
from logstore.broker.memory_queue import MemoryQueue
from logstore.errors import UnknownQueue
from logstore.store.statistics import PLACE_COUNTS, QUEUE_KEYS, statistics_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from logstore.broker.connection import Connection
    from logstore.broker.host import Host
    from logstore.broker.queues import BrokerQueue
    from logstore.broker.server import Server


def broker_statistics(server: Server, host: Host) -> dict[str, Any]:
    """A sample of one host of the broker and of its store, without rates; see :mod:`logstore.store.statistics`.

    The queues are ``queue_rows``, whose values have the names in ``queue_columns``.
    """
    connections = list(host.connections)
    budget = server.budget
    return statistics_of(host.store) | {
        "broker": {
            "pid": os.getpid(),
            "version": __version__,
            "vhost": host.name,
            "started": server.started.isoformat(timespec="milliseconds"),
            "connections": len(connections),
            "channels": sum(len(connection.channels) for connection in connections),
            "memory_bytes": budget.used_bytes,
            "memory_bytes_max": budget.bytes_max,
            "memory_shares": {
                name: {"bytes": share.used_bytes, "bytes_max": share.bytes_max, "waiting": share.waiting_count}
                for name, share in budget.shares.items()
            },
            "overflow_bytes": host.vhost.overflow.held_bytes,
        },
        "queue_columns": list(QUEUE_KEYS),
        "queue_rows": list(_rows(list(host.vhost.queues.values()))),
    }


def connection_statistics(connection: Connection) -> dict[str, Any]:
    """The broker's data about one client, for ``logstore connections``. Belongs to the event loop's thread."""
    now = connection.loop.time()
    channels = connection.channels.values()
    consumers = [consumer for channel in channels for consumer in channel.consuming.consumers.values()]
    since = connection.waits_since if connection.blocked_at is None else connection.blocked_at
    return {
        "peer": connection.peer_text,
        "user": connection.user,
        "vhost": connection.vhost_name if connection.relay is None else connection.relay.name,
        "via": None if connection.handover is None else connection.handover.via,
        "state": connection.state.name.lower(),
        "channels": len(connection.channels),
        "consumers": len(consumers),
        "queues": sorted({consumer.queue.name for consumer in consumers}),
        "unacknowledged": sum(channel.consuming.unacknowledged_count for channel in channels),
        "unsent_bytes": connection.outbox.size_bytes + connection.transport.get_write_buffer_size(),
        "waits_for": connection.waits_for,
        "blocked_s": None if since is None else round(now - since, 3),
        "blocked": connection.host.blocked_reason if connection.waits_since is not None else None,
        "connected_s": round(now - connection.connected_at, 3),
        "silent_s": round(now - connection.heartbeats.received_at, 3),
    }


def _rows(queues: list[BrokerQueue]) -> Iterator[list[Any]]:
    """The values of ``QUEUE_KEYS`` for each queue."""
    for queue in queues:
        unacknowledged = queue.unacknowledged_count
        queue_id = None
        if isinstance(queue, DurableQueue):
            queue_id = queue.handle.id
            try:
                found = queue.handle.counts()
            except UnknownQueue:
                continue  # deleted meanwhile
            places = [getattr(found, name) for name in PLACE_COUNTS]
        else:
            assert isinstance(queue, MemoryQueue)
            ready = queue.ready_count
            places = [ready + unacknowledged, ready, unacknowledged, 0, 0, 0, queue.held_bytes, None]
        counts = (queue.published, queue.delivered, queue.acknowledged)
        here = (unacknowledged, queue.unreadable_count, len(queue.consumers))
        yield [queue_id, queue.name, queue.durable, *places, *here, *counts]
