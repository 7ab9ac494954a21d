"""A client's connection that a member relays to the leader of its host, over a connection of the purpose ``relay``.

```
 relaying member                                   the leader
 HELLO, WELCOME                 ◀─────────────▶    (link.py)
 Asked: who the client is       ──────────────▶
                                ◀──────────────    Answered: taken, or why not
 one byte: raw bytes may come   ──────────────▶
 AMQP                           ◀─────────────▶    AMQP
```

``Asked`` and ``Answered`` are control frames as ``frames`` has them, with a checksum.

The relaying side opens the connection on the loop of its broker. The leader's is accepted on the member's loop, with
TLS perhaps, and a transport cannot change its loop; so there bytes pass through a pair of sockets to the loop of the
broker, which sees an ordinary client.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import TYPE_CHECKING, Any, Final, TypeVar

from logstore.cluster.control_streams import read_control
from logstore.cluster.frames import BadFrame, Message, Messages
from logstore.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from logstore.cluster.link import Link

    Acceptor = Callable[["Asked", str, socket.socket], Awaitable["Answered"]]
    """Takes the client over, with the relaying member's name, through the socket, which it closes if it does not."""

logger = logging.getLogger(__name__)

ANSWER_WITHIN_S: Final = 3.0
HIGH_BYTES: Final = 256 << 10
NOT_LED: Final = 320
"""The code of an answer after which the relaying member looks again who leads."""


class Asked(Message, frozen=True, tag=16):
    """The client and what was agreed with it; see ``Handover`` of the broker."""

    vhost: str
    user: str
    host: str
    port: int
    channels_max: int
    frame_bytes_max: int
    heartbeat_s: int
    wants_cancel_notice: bool
    prefetch_is_shared: bool
    wants_blocked_notice: bool = False
    """Members of earlier versions do not say it."""


class Answered(Message, frozen=True, tag=17):
    """Whether the leader takes the client."""

    code: int = 0
    """Of AMQP; 0: it does."""
    text: str = ""


MESSAGES: Final = Messages((Asked, Answered))

_M = TypeVar("_M", bound=Message)


async def _receive(reader: asyncio.StreamReader, kind: type[_M]) -> _M:
    """One message. Raises ``StoreError`` if it cannot be used."""
    try:
        message = await read_control(reader, MESSAGES, "a relay")
    except BadFrame as error:
        raise StoreError(str(error)) from error
    except asyncio.IncompleteReadError as error:
        raise StoreError(f"the connection ended in the middle of {kind.__name__}") from error
    if not isinstance(message, kind):
        raise StoreError(f"{type(message).__name__} came in place of {kind.__name__}")
    return message


async def ask(link: Link, asked: Asked) -> Answered:
    """What the leader says. Raises ``StoreError`` if it does not answer."""
    reader, writer = link.streams_opened()
    try:
        async with asyncio.timeout(ANSWER_WITHIN_S):
            writer.write(MESSAGES.frame(asked))
            return await _receive(reader, Answered)
    except (OSError, TimeoutError) as error:
        raise StoreError(f"it has not answered: {str(error) or 'in time'}") from error


async def answer(acceptor: Acceptor | None, name: str, link: Link) -> None:
    """The leader's side of a connection for a relay, on the member's loop. ``name``: of the relaying member."""
    reader, writer = link.streams_opened()
    ours: socket.socket | None = None
    try:
        async with asyncio.timeout(2 * ANSWER_WITHIN_S):
            asked = await _receive(reader, Asked)
            if acceptor is None:
                answered = Answered(NOT_LED, "the member that leads it has no broker")
            else:
                ours, theirs = socket.socketpair()
                answered = await acceptor(asked, name, theirs)
            writer.write(MESSAGES.frame(answered))
            if answered.code == 0 and ours is not None:
                await reader.readexactly(1)
                taken, ours = ours, None
                await _splice(link, writer.transport, taken)
                return
    except (StoreError, OSError, TimeoutError, asyncio.IncompleteReadError) as error:
        logger.info("a relay of member %s has ended before it began: %s", name, error)
    if ours is not None:
        ours.close()
    writer.close()


async def _splice(link: Link, peer: Any, sock: socket.socket) -> None:
    """Passes bytes both ways from now on."""
    far, near = _Half(link), _Half(None)
    near.other = peer
    far.other, _ = await link.owner.loop.create_unix_connection(lambda: near, sock=sock)
    for transport in (peer, far.other):
        transport.set_write_buffer_limits(high=HIGH_BYTES)
    if peer.is_closing():  # one of the two ends was gone at once
        far.other.close()
    else:
        link.pass_to(far)


class _Half(asyncio.Protocol):
    """One side: what comes goes to the other one, which is read only while this one takes bytes."""

    other: asyncio.Transport

    def __init__(self, link: Link | None) -> None:
        self._link = link

    def data_received(self, data: bytes) -> None:
        """Bytes to be passed on."""
        self.other.write(data)

    def pause_writing(self) -> None:
        """While this side takes no more, the other one is not read."""
        if not self.other.is_closing():
            self.other.pause_reading()

    def resume_writing(self) -> None:
        """It does again."""
        if not self.other.is_closing():
            self.other.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """The other side ends as well, with what it still has to send."""
        if self._link is not None:
            self._link.owner.gone(self._link)
        if exc is None:
            self.other.close()
        else:
            self.other.abort()
