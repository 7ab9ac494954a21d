"""A broker in a thread of its own, on a port chosen by the system, with access for tests."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from typing import TYPE_CHECKING, Any, TypeVar

import pika
import uvloop

import logstore
from kit.amqp_client import RawClient
from kit.patience import PATIENCE_S, wait_until
from logstore.broker import Limits, Server, users

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

T = TypeVar("T")

LEFT_OUT = "left out of the trio: "
"""Why a test is skipped that cannot run against a trio."""

# Each test has users of its own. Processes of `logstore` have the real cost, which test_broker_users.py asserts.
users._SCRYPT_N = 1 << 4


def unsent(server: Server) -> int:
    return max((each.transport.get_write_buffer_size() for each in server.connections), default=0)


def message_bytes(server: Server) -> int:
    """What the broker counts of its memory, without what clients take that do nothing."""
    return server.budget.used_bytes - server.budget.clients.used_bytes


def open_store(directory: Path) -> Any:
    return logstore.open(directory, segment_size=1 << 20)  # small, so that tests open quickly and cross many


class MishapHandler(logging.Handler):
    """Collects log entries with a traceback, each of which is a defect."""

    def __init__(self, mishaps: list[dict[str, Any]]) -> None:
        super().__init__()
        self.mishaps = mishaps

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.mishaps.append({"log": record.getMessage(), "exception": record.exc_info})


class Clients:
    """Of the broker at ``port``."""

    port: int

    def __init__(self) -> None:
        self._clients: list[Any] = []

    def pika(self, **options: Any) -> pika.BlockingConnection:
        connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", self.port, **options))
        self._clients.append(connection)
        return connection

    def raw(self, **options: Any) -> RawClient:
        client = RawClient(self.port, **options)
        self._clients.append(client.socket)
        return client

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/"

    def close_clients(self) -> None:
        """A broker that stops does not wait for them then: most of them answer nothing."""
        for client in self._clients:
            with contextlib.suppress(Exception):
                client.close()


class Broker(Clients):
    """A server in a thread of its own, with access for tests."""

    socket_bytes_max = 5_000_000
    """What the kernel and both sides may hold of one client that does not read."""

    def __init__(self, store: Any, limits: Limits | None = None) -> None:
        super().__init__()
        self.store = store
        self.server = Server(store, "127.0.0.1", 0, limits=limits)
        self.loop = uvloop.new_event_loop()
        self.mishaps: list[dict[str, Any]] = []  # uncaught errors; any of them fails the test
        self.loop.set_exception_handler(lambda _, context: self.mishaps.append(context))
        self._handler = MishapHandler(self.mishaps)
        logging.getLogger("logstore").addHandler(self._handler)
        self._thread = threading.Thread(target=self._run, name="broker", daemon=True)
        self._thread.start()
        self.call_async(self.server.start)
        self.port = self.server.port

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def call_async(self, function: Callable[[], Awaitable[T]]) -> T:
        async def call() -> T:
            return await function()

        return asyncio.run_coroutine_threadsafe(call(), self.loop).result(PATIENCE_S)

    def call(self, function: Callable[[], T]) -> T:
        """Run something on the broker's own thread."""

        async def call() -> T:
            return function()

        return asyncio.run_coroutine_threadsafe(call(), self.loop).result(PATIENCE_S)

    def wait_for_connections(self, count: int) -> None:
        """Until there are no more."""
        wait_until(lambda: self.call(lambda: len(self.server.connections)) == count, "the end of the connections")

    def unsent(self) -> int:
        """Bytes that wait for the slowest reader."""
        return self.call(lambda: unsent(self.server))

    def wait_until_unsent(self, size: int) -> None:
        """Until so many bytes wait for a client that reads nothing, and no more go on their way to it."""
        wait_until(lambda: self.unsent() >= size, "a reader that is behind")

    def stop(self) -> None:
        if self.loop.is_closed():
            return
        self.close_clients()
        self.call_async(lambda: self.server.stop(3))
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(PATIENCE_S)
        self.loop.close()
        logging.getLogger("logstore").removeHandler(self._handler)
        assert self.mishaps == []
