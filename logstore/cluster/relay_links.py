"""The two ends of a relay between brokers: links to leaders, on the broker's loop, and clients that are taken over.

``relaying.py`` has what passes between the members; this is what the brokers make of it.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, cast

from logstore.broker.errors import ConnectionException
from logstore.broker.relay import Handover, NotLed
from logstore.cluster import relaying
from logstore.cluster.relaying import Answered, Asked
from logstore.cluster.transport import Nobody, Transport
from logstore.errors import StoreError

if TYPE_CHECKING:
    import asyncio
    import socket
    from collections.abc import Callable

    from logstore.broker.server import Server
    from logstore.cluster.addresses import Tls
    from logstore.cluster.transport import Handler, Me


class RelayLinks:
    """Opens links to members that lead. It belongs to the loop that runs when it is made."""

    def __init__(self, me: Me, tls: Tls | None) -> None:
        """``me``: as the member's other connections say it, because two processes of one member are not accepted."""
        self._transport = Transport(me, cast("Handler", Nobody()), tls=tls)
        self._known: dict[int, tuple[str, str]] = {}

    def know(self, member: int, name: str, address: str) -> None:
        """A member may be dialled at this address from now on."""
        self._known[member] = (name, address)
        self._transport.set_peers(self._known)

    async def open(self, member: int, handover: Handover) -> tuple[asyncio.Transport, Callable[[], object]]:
        """See ``Elsewhere.open_relay`` of the broker."""
        asked = Asked(
            handover.vhost,
            handover.user,
            *handover.peer,
            handover.channels_max,
            handover.frame_bytes_max,
            handover.heartbeat_s,
            handover.wants_cancel_notice,
            handover.prefetch_is_shared,
            handover.wants_blocked_notice,
        )
        try:
            link = await self._transport.open_relay(member)
        except StoreError as error:
            raise NotLed(str(error)) from error
        try:
            answered = await relaying.ask(link, asked)
        except StoreError as error:
            link.transport.abort()
            raise NotLed(str(error)) from error
        if answered.code == 0:
            return link.transport, functools.partial(self._transport.gone, link)
        link.transport.close()
        if answered.code == relaying.NOT_LED:
            raise NotLed(answered.text)
        raise ConnectionException(answered.code, answered.text)

    async def close(self) -> None:
        """Ends all links."""
        await self._transport.close()


async def take_over(server: Server, asked: Asked, name: str, sock: socket.socket) -> Answered:
    """The leader's broker takes a client over, which the member of this name relays through the socket."""
    handover = Handover(
        asked.vhost,
        asked.user,
        (asked.host, asked.port),
        asked.channels_max,
        asked.frame_bytes_max,
        asked.heartbeat_s,
        asked.wants_cancel_notice,
        asked.wants_blocked_notice,
        asked.prefetch_is_shared,
        name,
    )
    try:
        await server.accept_relayed(handover, sock)
    except NotLed as error:
        return Answered(relaying.NOT_LED, str(error))
    except ConnectionException as error:
        return Answered(error.code, error.text)
    return Answered()
