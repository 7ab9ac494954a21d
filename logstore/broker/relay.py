"""Relays: the connections of clients whose host another member leads. Their bytes are passed on as they are.

```
 client ◀──── transport ────▶ Relay ◀──── link between members ────▶ a Connection of the leader's broker
```

A member that does not lead a host finishes the handshake with the client, hands over what was agreed (`Handover`), and
passes bytes in both directions from then on. The leader sends connection.open-ok and all heartbeats; back-pressure goes
from end to end, because either side is read only while the other one takes bytes. Of the bytes to the client the relay
follows where frames end, and nothing more: so it can close the connection with 320 itself when the leader is gone.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pamqp import commands

from logstore.broker import frames
from logstore.broker.errors import CONNECTION_FORCED, NOT_ALLOWED, ConnectionException
from logstore.broker.limits import FRAME_BYTES_MIN, FRAME_OVERHEAD_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from logstore.broker.connection import Connection
    from logstore.broker.elsewhere import Leader
    from logstore.broker.limits import Limits

logger = logging.getLogger(__name__)

_PREFIX_BYTES: Final = 7  # type, channel and size of a frame
_ON_CHANNEL_0: Final = frames.METHOD << 16  # a method frame's type and channel
_CLOSES: Final = tuple(
    method.index.to_bytes(4, "big") for method in (commands.Connection.Close, commands.Connection.CloseOk)
)


@dataclass(frozen=True, slots=True)
class Handover:
    """What a client and the relaying member have agreed."""

    vhost: str
    user: str
    peer: tuple[str, int]
    """The client's address and port."""
    channels_max: int
    frame_bytes_max: int
    heartbeat_s: int
    wants_cancel_notice: bool
    prefetch_is_shared: bool
    via: str = ""
    """The name of the relaying member, as the leader knows it."""

    def check(self, limits: Limits) -> None:
        """Raises ``ConnectionException`` for what this broker would not have agreed to."""
        is_known = 0 < self.channels_max <= 65535 and 0 <= self.heartbeat_s <= 65535
        if not is_known or not FRAME_BYTES_MIN <= self.frame_bytes_max <= limits.frame_bytes_max:
            raise ConnectionException(NOT_ALLOWED, "the relaying member has agreed to other limits than this one has")


class NotLed(Exception):
    """The member that was asked does not lead the host, or cannot be reached: ask again."""


class FrameEnds:
    """Where frames end in a stream of them."""

    def __init__(self) -> None:
        self._left = 0  # bytes of the present frame that have not come yet
        self._head = b""  # the first bytes of a frame, too few to tell its size
        self.has_closed = False
        """A connection.close or its answer was in it: nothing may follow."""

    def take(self, data: bytes) -> None:
        """Further bytes."""
        if self._head:
            data = self._head + data
            self._head = b""
        at, size = self._left, len(data)
        while at + _PREFIX_BYTES <= size:
            prefix = int.from_bytes(data[at : at + _PREFIX_BYTES], "big")
            if prefix >> 32 == _ON_CHANNEL_0:
                if at + _PREFIX_BYTES + 4 > size:
                    break
                if data[at + _PREFIX_BYTES : at + _PREFIX_BYTES + 4] in _CLOSES:
                    self.has_closed = True
            at += FRAME_OVERHEAD_BYTES + (prefix & 0xFFFFFFFF)
        if at >= size:
            self._left = at - size
        else:
            self._left = 0
            self._head = bytes(data[at:])

    @property
    def is_between(self) -> bool:
        """Whether the last frame was complete."""
        return not self._left and not self._head


class _Side(asyncio.Protocol):
    """One of the two transports of a relay."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self.other: asyncio.Transport  # the transport to which bytes go

    def pause_writing(self) -> None:
        """While this side takes no more, the other one is not read."""
        if not self.other.is_closing():
            self.other.pause_reading()

    def resume_writing(self) -> None:
        """It does again."""
        if not self.other.is_closing():
            self.other.resume_reading()


class _Client(_Side):
    def data_received(self, data: bytes) -> None:
        """Bytes of the client."""
        relay = self._relay
        if not relay.has_ended:
            self.other.write(data)
        elif data.endswith(frames.CLOSE_OK_FRAME):
            relay.client.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._relay.client_is_full(True)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._relay.client_is_full(False)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        self._relay.client_is_gone(exc)


class _Leader(_Side):
    def data_received(self, data: bytes) -> None:
        """Bytes of the leader."""
        relay = self._relay
        if not relay.has_ended:
            relay.ends.take(data)
            self.other.write(data)
            relay.leader_has_spoken()

    def connection_lost(self, _exc: Exception | None) -> None:
        """The leader's side is gone."""
        self._relay.leader_is_gone()


class Relay:
    """One relayed connection. Belongs to the broker's loop."""

    def __init__(
        self,
        connection: Connection,
        name: str,
        leader: Leader,
        upstream: asyncio.Transport,
        upstream_gone: Callable[[], object],
    ) -> None:
        """``upstream`` is the link to the leader, which has accepted the handover and waits for one byte.

        ``upstream_gone`` is called when it has ended.
        """
        self._upstream_gone = upstream_gone
        self.name = name
        self.leader = leader
        self.client = connection.transport
        self.ends = FrameEnds()
        self.has_ended = False
        self._connection = connection
        self._upstream = upstream
        self._has_spoken = False
        self._pending = b""
        self._stall: asyncio.TimerHandle | None = None

    def start(self, pending: bytes) -> None:
        """Passes bytes on from now on; ``pending`` came from the client behind connection.open."""
        client, leader = _Client(self), _Leader(self)
        client.other, leader.other = self._upstream, self.client
        high = self._connection.limits.unsent_bytes_high
        self._upstream.set_write_buffer_limits(high=high)
        self.client.pause_reading()  # until the leader has spoken, whose side reads raw bytes from then on
        self._upstream.pause_reading()  # uvloop learns of another protocol when reading starts
        self.client.set_protocol(client)
        self._upstream.set_protocol(leader)
        self._upstream.resume_reading()
        self._pending = pending
        self._upstream.write(b"\x01")  # the leader's side may send now

    def leader_has_spoken(self) -> None:
        """Its first bytes have come: the client's may follow."""
        if not self._has_spoken:
            self._has_spoken = True
            if self._pending:
                self._upstream.write(self._pending)
            self.client.resume_reading()

    def client_is_full(self, is_full: bool) -> None:
        """A client that reads nothing for long is disconnected, as by a direct connection."""
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None
        if is_full:
            self._stall = self._connection.loop.call_later(self._connection.limits.stall_s, self.client.abort)

    def client_is_gone(self, exc: Exception | None) -> None:
        """The leader's side ends as well, once it has what the client had sent."""
        self.client_is_full(False)
        self.has_ended = True
        self._upstream.close()
        self._connection.loop.call_later(self._connection.limits.close_s, self._upstream.abort)
        self._connection.connection_lost(exc)

    def leader_is_gone(self) -> None:
        """The client is told, unless the leader has done so."""
        self._upstream_gone()
        if not self.has_ended:
            text = f"the connection to member {self.leader.name}, which led vhost '{self.name}', is gone"
            self.end(ConnectionException(CONNECTION_FORCED, text))

    def end(self, error: ConnectionException) -> None:
        """Closes the client's connection with this error, if a frame of the leader is not in the way."""
        if self.has_ended:
            return
        self.has_ended = True
        logger.debug("%s: %s", self._connection, error)
        self._upstream.abort()
        if self.client.is_closing():
            return
        self._connection.loop.call_later(self._connection.limits.close_s, self.client.abort)
        if self.ends.has_closed or not self.ends.is_between:
            self.client.close()
            return
        self.client.write(frames.method(0, commands.Connection.Close(error.code, error.reply_text, 0, 0)))
        self.client.resume_reading()
