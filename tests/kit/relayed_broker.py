"""A broker whose clients come through another one, which relays them: two servers, joined by two real transports."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

from kit.copy_group import CLUSTER
from kit.live_broker import Broker
from kit.members import Told
from kit.patience import PATIENCE_S
from logstore.broker import Limits, Server
from logstore.broker.elsewhere import Leader
from logstore.cluster import relaying
from logstore.cluster.member import MemberConfig
from logstore.cluster.relay_links import RelayLinks, take_over
from logstore.cluster.transport import Me, Transport, _Peer, new_event_loop

if TYPE_CHECKING:
    from collections.abc import Callable

    from logstore.broker.relay import Handover
    from logstore.cluster.link import Link

BACK = Leader(2, "back")


class Acceptor(Told):
    """The member of the back: its loop has a thread of its own, as a member's has."""

    def __init__(self, back: Broker) -> None:
        super().__init__()
        self._back = back
        self.loop = new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self._relays: set[asyncio.Task[None]] = set()
        self.address = self.run(self._start())

    def run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(PATIENCE_S)

    async def _start(self) -> str:
        self.transport = Transport(Me(cluster=CLUSTER, member=2, name="back"), self)
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

    def stop(self) -> None:
        self.run(self.transport.close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


class RelayedBroker(Broker):
    """``server`` has the store, ``front`` the clients; both are on one loop. ``Elsewhere`` of the front."""

    def __init__(self, store: Any, limits: Limits | None = None) -> None:
        super().__init__(store, limits)
        self.acceptor = Acceptor(self)
        self.front = Server(None, "127.0.0.1", 0, limits=limits, users=store.config, elsewhere=self)
        config = MemberConfig(cluster=CLUSTER, member=1, name="front", listen="127.0.0.1:0")

        async def start() -> None:
            self.links = RelayLinks(config)
            self.links.know(BACK.member, BACK.name, self.acceptor.address)
            await self.front.start()

        self.call_async(start)
        self.port = self.front.port

    def stop(self) -> None:
        if self.loop.is_closed():
            return
        self.call_async(lambda: self.front.stop(3))
        self.call_async(self.links.close)
        self.acceptor.stop()
        super().stop()

    # Elsewhere.

    def has_host(self, name: str) -> bool:
        return name in self.server.hosts

    def leader(self, name: str) -> Leader | None:
        return BACK if name in self.server.hosts else None

    async def open_relay(self, leader: Leader, handover: Handover) -> tuple[asyncio.Transport, Callable[[], object]]:
        return await self.links.open(leader.member, handover)

    async def why_not(self, name: str) -> str:
        return "the test says so"

    def has_ended(self, name: str) -> None:
        raise AssertionError("the front has no store")
