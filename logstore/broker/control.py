"""The commands that a running broker accepts on its control socket; see `logstore.store.control`.

Each function handles one command. Work that waits for the disk runs in another thread, so that the
broker's clients are not delayed.
"""

from __future__ import annotations

import base64
import itertools
import time
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from logstore.broker.durable_queue import DurableQueue
from logstore.broker.memory_queue import MemoryQueue
from logstore.broker.statistics import broker_statistics, connection_statistics
from logstore.broker.turns import in_turns
from logstore.core.host_directory import ROOT
from logstore.core.xid import Xid
from logstore.errors import CorruptLog, NotEnqueued, OptionError, UnknownMessage, UnknownQueue
from logstore.store.base_holders import HOLDERS
from logstore.store.control import ControlServer
from logstore.store.fullness import full_document
from logstore.store.outcomes import decide

if TYPE_CHECKING:
    from logstore import MessageStore, Queue
    from logstore.broker.host import Host
    from logstore.broker.queues import BrokerQueue
    from logstore.broker.server import Server
    from logstore.store.base_holders import Tail

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
PEEKED_BYTES_MAX: Final = 8 << 20  # of headers and bodies, which become a third longer in JSON


class BrokerControl:
    """The control socket of one host of a broker, in the directory of its store, and its commands."""

    def __init__(self, server: Server, host: Host) -> None:
        self._server = server
        self._host = host
        self._socket = ControlServer(
            host.store.path,
            {
                "in-doubt.commit": lambda arguments: self._decide(arguments, "commit"),
                "in-doubt.rollback": lambda arguments: self._decide(arguments, "rollback"),
                "peek": self._peek,
                "purge": self._purge,
                "tail": self._tail,
                "fullness": self._fullness,
                "compact": self._compact,
                "checkpoint": self._checkpoint,
                "stats": self._stats,
                "connections": self._connections,
                **(server.commands if host.name == ROOT else {}),
            },
        )

    async def start(self) -> None:
        """Start to listen. Raises `StoreError` if the socket cannot be made."""
        await self._socket.start()

    async def stop(self, timeout_s: float) -> None:
        """Remove the socket, and wait at most `timeout_s` seconds for commands in progress."""
        await self._socket.stop(timeout_s)

    async def _decide(self, arguments: dict[str, Any], outcome: str) -> dict[str, Any]:
        try:
            xid = Xid.parse(_text(arguments, "xid"))
        except ValueError as error:
            raise OptionError(str(error)) from error
        # No wake-up is needed: the outcome ends in a group commit, after which queues with consumers are served.
        return await self._socket.in_thread(lambda: decide(self._host.store, xid, outcome))

    def _queue(self, arguments: dict[str, Any]) -> BrokerQueue:
        name = _text(arguments, "queue")
        queue = self._host.vhost.queues.get(name)
        if queue is None:
            raise UnknownQueue(f"the broker has no queue {name!r}; 'logstore queues DIR' lists the stored queues")
        return queue

    async def _peek(self, arguments: dict[str, Any]) -> dict[str, Any]:
        queue = self._queue(arguments)
        if not isinstance(queue, DurableQueue):
            raise UnknownQueue(f"the broker keeps queue {queue.name!r} in its memory: its messages are not in the log")
        limit, body_bytes = _number(arguments, "limit"), _number(arguments, "body_bytes")
        handle = queue.handle
        return await self._socket.in_thread(
            lambda: {"depth": handle.depth, "messages": first_messages(self._host.store, handle, limit, body_bytes)}
        )

    async def _purge(self, arguments: dict[str, Any]) -> dict[str, Any]:
        queue = self._queue(arguments)
        is_dry_run = arguments.get("dry_run") is True
        locked = 0
        if isinstance(queue, MemoryQueue):
            messages = queue.ready_count if is_dry_run else await in_turns(queue.purge())
        else:
            assert isinstance(queue, DurableQueue)
            messages = await self._socket.in_thread(queue.unlocked_count if is_dry_run else queue.handle.purge)
            if not is_dry_run:
                queue.was_purged()
            locked = queue.handle.locked
        left = {"unacknowledged": queue.unacknowledged_count, "locked": locked, "unreadable": queue.unreadable_count}
        return {"messages": messages, **left}

    async def _tail(self, arguments: dict[str, Any]) -> dict[str, Any]:
        limit = _number({"limit": HOLDERS} | arguments, "limit")
        tail = await self._socket.in_thread(lambda: self._host.store.tail(limit))
        unreadable = {queue.name: set(queue.unreadable_ids()) for queue in self._host.vhost.queues.values()}
        known = tail._with_deliveries(self._unacknowledged(tail), unreadable)
        return known.as_dict() | await self._fullness({})

    async def _fullness(self, _arguments: dict[str, Any]) -> dict[str, Any]:
        store = self._host.store
        return {"full": await self._socket.in_thread(lambda: full_document(store))}

    async def _stats(self, _arguments: dict[str, Any]) -> dict[str, Any]:
        return await self._socket.in_thread(lambda: broker_statistics(self._server, self._host))

    async def _connections(self, _arguments: dict[str, Any]) -> dict[str, Any]:
        of_all = self._host.name == ROOT  # also those that have not opened a host yet
        connections = self._server.connections if of_all else self._host.connections
        return {"connections": [connection_statistics(one) for one in connections]}

    def _unacknowledged(self, tail: Tail) -> dict[tuple[str, int], str]:
        """The consumers that have unacknowledged messages which hold the base, by queue and message id."""
        wanted = {holder.id for holder in tail.holders}
        found = {}
        for connection in self._host.connections:
            place = connection.peer_text
            for number, channel in connection.channels.items():
                for queue, message, tag in channel.consuming.unacknowledged(wanted):
                    found[queue, message] = f"consumer {tag!r} of {place} (channel {number})"
        return found

    async def _compact(self, arguments: dict[str, Any]) -> dict[str, Any]:
        is_dry_run = arguments.get("dry_run") is True
        done = await self._socket.in_thread(lambda: self._host.store.compact(dry_run=is_dry_run))
        return done.as_dict()

    async def _checkpoint(self, arguments: dict[str, Any]) -> dict[str, Any]:
        store = self._host.store
        work = store.checkpoint_size if arguments.get("dry_run") is True else store.checkpoint
        return asdict(await self._socket.in_thread(work))


def first_messages(store: MessageStore, queue: Queue, limit: int, body_bytes: int) -> list[dict[str, Any]]:
    """The first messages of a queue as JSON, each with the first bytes of its body; ``unreadable`` says why one cannot
    be read. Once ``PEEKED_BYTES_MAX`` are taken, bodies are left out.
    """
    found = []
    now_us = time.time() * 1e6
    left = PEEKED_BYTES_MAX
    for message in itertools.islice(store.messages(queue), limit):
        header = body = note = b""
        not_before_us = expires_us = count = 0
        why = None
        try:
            note = message.note
            not_before_us, expires_us = (_time_us(one) for one in (message.not_before, message.expires))
            count = message.delivery_count
            header = message.header
            body = store.load_content(message.id, 0, min(body_bytes, max(left, 0)))
        except (NotEnqueued, UnknownMessage, UnknownQueue):
            continue  # it was removed meanwhile
        except CorruptLog as error:
            why = error.reason
        left -= len(header) + len(body)
        found.append(
            {
                "id": message.id,
                "locked": message.locked,
                "delivery_count": count,
                "not_before_us": not_before_us,
                "hidden": not_before_us > now_us and not 0 < expires_us <= now_us,
                "expires_us": expires_us,
                "expired": 0 < expires_us <= now_us,
                "own_header": message._has_header,
                "note_base64": base64.b64encode(note).decode("ascii"),
                "unreadable": why,
                "header_base64": base64.b64encode(header).decode("ascii"),
                "body_bytes": message.size,
                "body_base64": base64.b64encode(body).decode("ascii"),
            }
        )
    return found


def _time_us(moment: datetime | None) -> int:
    """In µs since 1970; 0: none."""
    return 0 if moment is None else (moment - EPOCH) // timedelta(microseconds=1)


def _number(arguments: dict[str, Any], name: str) -> int:
    value = arguments.get(name)
    if not isinstance(value, int) or value < 0:
        raise OptionError(f"{name} is a number of at least 0, not {value!r}")
    return value


def _text(arguments: dict[str, Any], name: str) -> str:
    value = arguments.get(name)
    if not isinstance(value, str):
        raise OptionError(f"{name} is a text, not {value!r}")
    return value
