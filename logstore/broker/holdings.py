"""The memory of one connection besides its output: received bytes, channels and consumers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from logstore.broker.errors import RESOURCE_ERROR, ChannelException
from logstore.broker.memory import CONNECTION_BYTES

if TYPE_CHECKING:
    from logstore.broker.connection import Connection

CLIENT_BYTES_FREE: Final = 64 * 1024  # the channels and consumers that a connection may always have


class Holdings:
    """The counts of one connection in the shares for contents and clients."""

    __slots__ = ("_clients", "_connection", "_contents", "arriving_bytes", "client_bytes", "waiting_bytes")

    def __init__(self, connection: Connection) -> None:
        budget = connection.server.budget
        self._connection = connection
        self._contents = budget.contents
        self._clients = budget.clients
        self.arriving_bytes = 0  # of contents that are not complete; kept by `arriving`
        self.waiting_bytes = 0  # that were received and are not handled, counted while the connection is paused
        self.client_bytes = 0  # of itself, its channels and its consumers

    def begin(self) -> None:
        """The connection has a socket now."""
        self.client_bytes = CONNECTION_BYTES
        self._clients.add(CONNECTION_BYTES)

    def end(self) -> None:
        """The connection has ended; its contents are dropped by their channels."""
        self.count_waiting(0)
        self.count_out(self.client_bytes)
        self._contents.forget(self)

    def count_waiting(self, size: int) -> None:
        """So many bytes that were received wait for the end of a pause."""
        if self.waiting_bytes or size:
            before, self.waiting_bytes = self.waiting_bytes, size
            self._contents.add(size)
            self._contents.give_back(before)

    def count_held(self, size: int) -> None:
        """So many more bytes of frames wait behind a slow method, or fewer."""
        if size > 0:
            self._contents.add(size)
        else:
            self._contents.give_back(-size)

    def await_bytes(self) -> None:
        """Let the connection look for memory when bytes of the share for contents are given back."""
        self._contents.await_bytes(self)

    def has_bytes(self) -> None:
        """Bytes were given back."""
        self._connection.receiving.look_for_memory()

    def count(self, size: int) -> None:
        """Count a channel or a consumer. Raises 506 if memory has no room for it."""
        share = self._clients
        if self.client_bytes + size > CLIENT_BYTES_FREE and not share.fits(self.client_bytes, size):
            raise ChannelException(
                RESOURCE_ERROR,
                f"the broker's memory for connections, channels and consumers is full ({share.bytes_max} bytes): "
                "close some, or start the broker with more memory",
            )
        self.client_bytes += size
        share.add(size)

    def count_out(self, size: int) -> None:
        """A channel or a consumer has ended."""
        size = min(size, self.client_bytes)  # 0 once the connection has ended
        self.client_bytes -= size
        self._clients.give_back(size)
