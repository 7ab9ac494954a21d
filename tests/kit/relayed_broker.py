"""A broker whose clients come through another one, which relays them: two servers, joined by two real transports."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from kit.copy_group import CLUSTER
from kit.live_broker import Broker
from kit.members import Told
from kit.patience import PATIENCE_S
from kit.trio import free_ports
from logstore.cluster import relaying
from logstore.cluster.brokering import Brokering, _on
from logstore.cluster.config import MemberFile
from logstore.cluster.group import HostNews
from logstore.cluster.member import MemberConfig
from logstore.cluster.transport import Me, Transport, _Peer, new_event_loop

if TYPE_CHECKING:
    from collections.abc import Callable

    from logstore.broker import Limits
    from logstore.cluster.link import Link

ANYWHERE = "127.0.0.1:0"


class Acceptor(Told):
    """The member of the server that has the store: its loop has a thread of its own."""

    def __init__(self, broker: Broker) -> None:
        super().__init__()
        self._broker = broker
        self._brokering = SimpleNamespace(server=broker.server)
        self.loop = new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self.address = self.run(self._start())

    def run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(PATIENCE_S)

    async def _start(self) -> str:
        self.transport = Transport(Me(cluster=CLUSTER, member=2, name="m2"), self)
        address = await self.transport.start(ANYWHERE)
        self.transport._peers[1] = _Peer(1, "m1", "")
        return address

    def relay(self, name: str, link: Link) -> None:
        def accept(*given: Any) -> Any:
            return _on(self._broker.loop, Brokering._accept(self._brokering, *given))  # type: ignore[arg-type]

        self._task = self.loop.create_task(relaying.answer(accept, name, link))

    def stop(self) -> None:
        self.run(self.transport.close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


class Follower:
    """What the relaying broker asks of its member: who leads."""

    def __init__(self, address: str) -> None:
        self.config = MemberConfig(cluster=CLUSTER, member=1, name="m1", listen=ANYWHERE)
        self._address = address

    def listen_to_hosts(self, listener: Callable[[HostNews], object] | None) -> None:
        if listener is not None:
            listener(HostNews("main", None, 2, "m2", self._address))

    def accept_relays(self, acceptor: object) -> None:
        """Nobody relays to it."""

    def why_not_led(self, host: str) -> str:
        return f"the test says nobody leads {host}"


class RelayedBroker(Broker):
    """``server`` has the store, and clients connect to ``front``; both are on one loop."""

    def __init__(self, store: Any, limits: Limits | None = None) -> None:
        super().__init__(store, limits)
        self.server._sockets_max = self.server._sockets_wanted = 4 * self.server.limits.connections_max
        self.acceptor = Acceptor(self)
        file = MemberFile(
            name="m1", member=1, cluster=CLUSTER, listen=self.acceptor.address, amqp=f"127.0.0.1:{free_ports(1)[0]}"
        )
        users = SimpleNamespace(config=store.config)

        async def start() -> Brokering:
            made = Brokering(Follower(self.acceptor.address), file, users, limits)  # type: ignore[arg-type]
            await made.start()
            return made

        self.brokering = self.call_async(start)
        self.front = self.brokering.server
        self.port = self.front.port

    def stop(self) -> None:
        if self.loop.is_closed():
            return
        for client in self._clients:
            with contextlib.suppress(Exception):
                client.close()
        self.call_async(self.brokering.stop)
        self.acceptor.stop()
        super().stop()
