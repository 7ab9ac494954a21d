"""The three members of a trio, each with its broker, in this process; and clients of them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from typing import TYPE_CHECKING, Any, TypeVar

import pika
import uvloop

from kit.copy_group import CLUSTER
from kit.live_broker import MishapHandler
from kit.patience import PATIENCE_S, wait_until
from kit.ports import free_ports
from kit.trio import HOST, Trio
from logstore.broker import Limits
from logstore.cluster.brokering import Brokering
from logstore.cluster.config import MemberFile
from logstore.cluster.member_users import open_users, vhost_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

T = TypeVar("T")


class MemberBroker:
    """The broker of one member of a trio, on a loop of its own."""

    def __init__(
        self, trio: Trio, member: int, port: int, mishaps: list[dict[str, Any]], limits: Limits | None
    ) -> None:
        self.loop = uvloop.new_event_loop()
        self.loop.set_exception_handler(lambda _, context: mishaps.append(context))
        self._thread = threading.Thread(target=self._run, name=f"broker-{member}", daemon=True)
        self._thread.start()
        address = trio.addresses[member]
        file = MemberFile(name=f"m{member}", member=member, cluster=CLUSTER, listen=address, amqp=f"127.0.0.1:{port}")
        self.users = open_users(trio.directories[member], CLUSTER)
        self.users.config["broker.users"] = "1"
        self.brokering = Brokering(trio.members[member], file, self.users, limits)
        self.server = self.brokering.server
        self.run(self.brokering.start())
        for name in ("guest", "stranger"):
            self.call(lambda name=name: self.server.users.add(name, name))
        self.call(lambda: self.server.users.change("guest", hosts=["/", HOST, "shop"]))

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(PATIENCE_S)

    def call(self, function: Callable[[], T]) -> T:
        async def work() -> T:
            return function()

        return self.run(work())

    def stop(self) -> None:
        """In order; the member goes on."""
        self.run(self.brokering.stop())
        self.users.close()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


class AmqpTrio:
    """A trio with brokers. An entry in ``mishaps`` is a defect."""

    def __init__(self, place: Path, *, hosts: tuple[str, ...] = (HOST,), limits: Limits | None = None) -> None:
        self.trio = Trio(place, hosts=hosts)
        self.ports = dict(zip(self.trio.addresses, free_ports(3), strict=True))
        self.brokers: dict[int, MemberBroker] = {}
        self.mishaps: list[dict[str, Any]] = []
        self._limits = limits
        self._clients: list[Any] = []
        self._handler = MishapHandler(self.mishaps)
        logging.getLogger("logstore.broker").addHandler(self._handler)

    def start(self, *members: int) -> None:
        self.trio.start(*members)
        for member in members or self.trio.addresses:
            self._start_broker(member)

    def _start_broker(self, member: int) -> None:
        self.brokers[member] = MemberBroker(self.trio, member, self.ports[member], self.mishaps, self._limits)

    def restart_brokers(self, limits: Limits) -> None:
        """With these limits; the members go on."""
        self._limits = limits
        for member in list(self.brokers):
            self.brokers.pop(member).stop()
            self._start_broker(member)

    def stop(self, *members: int) -> None:
        """The broker, then the member, as a process does."""
        for member in members or list(self.brokers):
            self.brokers.pop(member).stop()
            self.trio.stop(member)

    def close(self) -> None:
        for client in self._clients:
            with contextlib.suppress(Exception):
                client.close()
        self.stop()
        logging.getLogger("logstore.broker").removeHandler(self._handler)
        assert not self.mishaps, self.mishaps

    def serving(self, host: str = HOST, *, but: int = 0) -> int:
        """The member whose broker has the host open, once there is one."""
        vhost = vhost_of(host)
        found: list[int] = []

        def serves() -> bool:
            found[:] = [
                member
                for member, broker in self.brokers.items()
                if member != but and broker.call(lambda broker=broker: has_open(broker, vhost))
            ]
            return bool(found)

        wait_until(serves, f"a broker serves {host}")
        return found[0]

    def followers(self, host: str = HOST) -> list[int]:
        """Members that relay clients of the host."""
        leader, vhost = self.serving(host), vhost_of(host)
        others = [member for member in self.brokers if member != leader]
        for member in others:
            wait_until(lambda member=member: self.brokers[member].brokering.leader(vhost), "it knows who leads")
        return others

    def client(self, member: int, vhost: str = HOST, user: str = "guest") -> pika.BlockingConnection:
        login = pika.PlainCredentials(user, user)
        given = pika.ConnectionParameters("127.0.0.1", self.ports[member], vhost, login)
        made = pika.BlockingConnection(given)
        self._clients.append(made)
        return made


def has_open(broker: MemberBroker, vhost: str) -> bool:
    host = broker.server.hosts.get(vhost)
    return host is not None and host.poison is None
