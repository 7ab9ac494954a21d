"""The listening sockets. A client is accepted when there is a descriptor for it; until then it waits in the kernel.

An event loop's own server accepts as many clients as wait, and only then tells who they are. So a burst of them could
take every descriptor of the process.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import socket
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from logstore.broker.admission import Admission

logger = logging.getLogger(__name__)

BACKLOG: Final = 1024
ACCEPTED_AT_ONCE: Final = 64  # in one turn of the loop
ACCEPT_AGAIN_S: Final = 1.0  # after the system had no descriptor or memory
_NEXT_TIME: Final = (errno.EAGAIN, errno.ECONNABORTED, errno.EINTR, errno.EPROTO)


class Listener:
    """Accepts clients on all addresses of a host, as long as the admission has room."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        admission: Admission,
        connect: Callable[[], asyncio.Protocol],
        sockets: list[socket.socket],
    ) -> None:
        """Takes over listening sockets; `connect` makes the protocol of a client."""
        self._loop = loop
        self._admission = admission
        self._connect = connect
        self._sockets = sockets
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_reading = False
        self.look_again()

    @property
    def port(self) -> int:
        """The port of the first address."""
        return int(self._sockets[0].getsockname()[1])

    def look_again(self) -> None:
        """There may be room again."""
        if not self._is_reading:
            self._is_reading = bool(self._sockets)
            for each in self._sockets:
                self._loop.add_reader(each.fileno(), self._accept_some, each)

    def close(self) -> None:
        """Accept nothing more. Who waits in the kernel is refused."""
        self._stop_reading()
        for each in self._sockets:
            each.close()
        self._sockets = []

    def _stop_reading(self) -> None:
        if self._is_reading:
            self._is_reading = False
            for each in self._sockets:
                self._loop.remove_reader(each.fileno())

    def _accept_some(self, listening: socket.socket) -> None:
        """At least one client waits, unless it has gone meanwhile."""
        if not self._admission.has_room():
            self._admission.make_room()
            self._stop_reading()  # until a connection has ended
            return
        for _ in range(ACCEPTED_AT_ONCE):
            if not self._admission.has_room():
                return  # the next call makes room, if there is a next client
            try:
                accepted, _ = listening.accept()
            except OSError as error:
                if error.errno not in _NEXT_TIME:
                    self._stop_reading()
                    self._loop.call_later(ACCEPT_AGAIN_S, self.look_again)
                    logger.warning("no client can be accepted for %g s: %s", ACCEPT_AGAIN_S, error.strerror)
                return
            accepted.setblocking(False)
            self._admission.arriving += 1
            task = self._loop.create_task(self._connected(accepted))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _connected(self, accepted: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._connect, accepted)
        except OSError as error:  # the client has gone
            accepted.close()
            logger.debug("an accepted client is gone: %s", error)
        finally:
            self._admission.arriving -= 1
            self.look_again()


def addresses(host: str, port: int) -> list[tuple[socket.AddressFamily, socket.SocketKind, int, Any]]:
    """Family, type, protocol and address of each socket that has to listen. Raises `OSError` or `UnicodeError`."""
    name = host.encode() if host.isascii() else host.encode("idna")
    found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return list(dict.fromkeys((family, kind, protocol, address) for family, kind, protocol, _, address in found))


def listening_sockets(host: str, port: int) -> list[socket.socket]:
    """Sockets that listen on all addresses of a host. Raises `OSError` if one of them cannot."""
    made: list[socket.socket] = []
    with contextlib.ExitStack() as on_error:
        for family, kind, protocol, address in addresses(host, port):
            one = on_error.enter_context(socket.socket(family, kind, protocol))
            one.setblocking(False)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            one.bind(address)
            one.listen(BACKLOG)
            made.append(one)
        on_error.pop_all()
    return made
