"""Relays: the connections of clients whose host another member leads. Their bytes are passed on as they are.

```
 client ◀──── transport ────▶ Relay ◀──── link between members ────▶ a Connection of the leader's broker
```

A member that does not lead a host finishes the handshake with the client, hands over what was agreed (`Handover`), and
passes bytes in both directions from then on. The leader sends connection.open-ok and all heartbeats; back-pressure goes
from end to end, because either side is read only while the other one takes bytes.

Invariant: the client gets whole frames only. The start of a frame waits here for its end. So if the leader's side dies,
in the middle of a delivery too, the relay can close the connection with 320 itself.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pamqp import commands

from logstore.broker import frames
from logstore.broker.errors import CONNECTION_FORCED, FRAME_ERROR, NOT_ALLOWED, ConnectionException
from logstore.broker.limits import FRAME_BYTES_MIN, FRAME_OVERHEAD_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from logstore.broker.connection import Connection
    from logstore.broker.elsewhere import Leader
    from logstore.broker.limits import Limits

logger = logging.getLogger(__name__)

_HEAD_BYTES: Final = 7  # type, channel and size of a frame
_SIZE_AT: Final = 3
_payload_bytes: Final = struct.Struct(">I").unpack_from
_METHOD_HEAD_BYTES: Final = _HEAD_BYTES + 4  # the same, and class and method
_CONNECTION_ENDS: Final = (commands.Connection.Close.index, commands.Connection.CloseOk.index)
_ON_CHANNEL_0: Final = bytes((frames.METHOD, 0, 0))  # how a method frame on channel 0 begins


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
    wants_blocked_notice: bool
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


class WholeFrames:
    """Cuts a stream behind its last complete frame. It looks at the head of each frame only, and copies none."""

    __slots__ = ("_frame_bytes_max", "_held", "_last", "_missing")

    def __init__(self, frame_bytes_max: int) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._held: list[bytes] = []  # the start of a frame
        self._missing = 0  # bytes of that frame; 0: not even its head is complete
        self._last = b""  # the head of the last complete frame

    def feed(self, data: bytes) -> list[bytes | memoryview]:
        """The bytes that can be sent on, in order. Raises 501 for a frame that is too long."""
        held = self._held
        if held and not self._missing:  # a head in two pieces
            data = b"".join((*held, data))
            held.clear()
        at, size, last = self._missing, len(data), -1
        if at > size:
            held.append(data)
            self._missing -= size
            return []
        end = at
        while size - at >= _HEAD_BYTES:
            end = at + _payload_bytes(data, at + _SIZE_AT)[0] + FRAME_OVERHEAD_BYTES
            if end > size:
                break
            last, at = at, end
        whole: list[bytes | memoryview] = []
        if at:
            self._last = data[last : last + _METHOD_HEAD_BYTES] if last >= 0 else self._held_head(data)
            whole += held
            held.clear()
            whole.append(data if at == size else memoryview(data)[:at])
        self._missing = 0
        if at < size:
            held.append(data[at:])
            if size - at >= _HEAD_BYTES:
                self._missing = end - size
                if end - at > self._frame_bytes_max:
                    raise ConnectionException(FRAME_ERROR, f"the leader sent a frame of {end - at} bytes")
        return whole

    def _held_head(self, data: bytes) -> bytes:
        head = self._held[0]
        return (head if len(head) >= _METHOD_HEAD_BYTES else b"".join((*self._held, data)))[:_METHOD_HEAD_BYTES]

    @property
    def has_ended(self) -> bool:
        """Whether the last frame ends the connection: a connection.close or connection.close-ok."""
        return (
            self._last.startswith(_ON_CHANNEL_0)
            and len(self._last) == _METHOD_HEAD_BYTES
            and int.from_bytes(self._last[_HEAD_BYTES:]) in _CONNECTION_ENDS
        )


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
        if relay.has_ended:
            return
        try:
            whole = relay.frames.feed(data)
        except ConnectionException as error:
            relay.end(error)
            return
        if whole:
            self.other.writelines(whole)
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
        self.frames = WholeFrames(connection.frame_bytes_max)
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
        self.client.set_write_buffer_limits(high=high)
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
        if not self.has_ended:
            self.has_ended = True
            self._upstream.resume_reading()  # who does not read never sees an end
            self._upstream.close()
            self._stall = self._connection.loop.call_later(self._connection.limits.stall_s, self._upstream.abort)
        self._connection.connection_lost(exc)

    def leader_is_gone(self) -> None:
        """The client is told, unless the leader has done so."""
        self._upstream_gone()
        if self._stall is not None and self.client.is_closing():
            self._stall.cancel()
        if not self.has_ended:
            text = f"the connection to member {self.leader.name}, which led vhost '{self.name}', is gone"
            self.end(ConnectionException(CONNECTION_FORCED, text))

    def end(self, error: ConnectionException) -> None:
        """Closes the client's connection with this error, unless the leader has closed it."""
        if self.has_ended:
            return
        self.has_ended = True
        logger.debug("%s: %s", self._connection, error)
        self._upstream.abort()
        if self.client.is_closing():
            return
        self._connection.loop.call_later(self._connection.limits.close_s, self.client.abort)
        if self.frames.has_ended:
            self.client.close()
            return
        self.client.write(frames.method(0, commands.Connection.Close(error.code, error.reply_text, 0, 0)))
        self.client.resume_reading()
