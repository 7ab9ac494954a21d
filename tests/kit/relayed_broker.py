"""A broker whose clients come through another one, which relays them: two servers, joined by two real transports."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

from kit.copy_group import CLUSTER
from kit.live_broker import Broker, unsent
from kit.members import Told
from kit.patience import PATIENCE_S, wait_until
from logstore.broker import Limits, Server
from logstore.broker.elsewhere import Leader
from logstore.cluster import relaying
from logstore.cluster.relay_links import RelayLinks, take_over
from logstore.cluster.transport import Me, Transport, _Peer, new_event_loop

if TYPE_CHECKING:
    from collections.abc import Callable

    from logstore.broker.relay import Handover
    from logstore.cluster.addresses import Tls
    from logstore.cluster.link import Link

BACK = Leader(2, "back")


class Acceptor(Told):
    """The member of the back: its loop has a thread of its own, as a member's has."""

    def __init__(self, back: Broker, tls: Tls | None) -> None:
        super().__init__()
        self._back = back
        self._tls = tls
        self.loop = new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self._relays: set[asyncio.Task[None]] = set()
        self.address = self.run(self._start())

    def run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(PATIENCE_S)

    async def _start(self) -> str:
        self.transport = Transport(Me(cluster=CLUSTER, member=2, name="back"), self, tls=self._tls)
        address = await self.transport.start("127.0.0.1:0")
        self.transport._peers[1] = _Peer(1, "front", "")
        return address

    def relay(self, name: str, link: Link) -> None:
        back = self._back

        async def accept(*given: Any) -> Any:
            work = take_over(back.server, *given)
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, back.loop))

        task = self.loop.create_task(relaying.answer(accept, name, link))
        self._relays.add(task)
        task.add_done_callback(self._relays.discard)

    def unsent(self) -> int:
        async def work() -> int:
            return max((link.transport.get_write_buffer_size() for link in self.transport._links), default=0)

        return self.run(work())

    def stop(self) -> None:
        self.run(self.transport.close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


class RelayedBroker(Broker):
    """``server`` has the store, ``front`` the clients; both are on one loop. ``Elsewhere`` of the front.

    ``tls``: of the front and of the back.
    """

    socket_bytes_max = 12_000_000  # and the sockets of the link, as large as the kernel makes them

    def __init__(self, store: Any, limits: Limits | None = None, tls: tuple[Tls, Tls] | None = None) -> None:
        super().__init__(store, limits)
        ours, theirs = tls or (None, None)
        self.acceptor = Acceptor(self, theirs)
        self.front = Server(None, "127.0.0.1", 0, limits=limits, users=store.config, elsewhere=self)
        me = Me(cluster=CLUSTER, member=1, name="front")

        async def start() -> None:
            self.links = RelayLinks(me, ours)
            self.links.know(BACK.member, BACK.name, self.acceptor.address)
            await self.front.start()

        self.call_async(start)
        self.port = self.front.port

    def wait_until_unsent(self, size: int) -> None:
        """Each hop is full only for good if the next one is."""
        wait_until(lambda: self.call(lambda: unsent(self.front)) >= size, "the relay waits for the client")
        wait_until(lambda: self.acceptor.unsent() > relaying.HIGH_BYTES, "the link waits for the relay")
        super().wait_until_unsent(size)

    def stop(self) -> None:
        if self.loop.is_closed():
            return
        self.close_clients()
        self.call_async(lambda: self.front.stop(3))
        self.call_async(self.links.close)
        self.acceptor.stop()
        super().stop()

    # Elsewhere.

    def has_host(self, name: str) -> bool:
        return name in self.server.hosts or name in self.server.down

    def leader(self, name: str) -> Leader | None:
        return BACK if name in self.server.hosts else None

    async def open_relay(self, leader: Leader, handover: Handover) -> tuple[asyncio.Transport, Callable[[], object]]:
        return await self.links.open(leader.member, handover)

    async def why_not(self, name: str) -> str:
        return "the test says so"

    async def lagging(self, name: str) -> list[str]:
        raise AssertionError("the front leads no host")

    def has_ended(self, name: str) -> None:
        raise AssertionError("the front has no store")
