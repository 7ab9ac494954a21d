"""The broker of a test that is a trio: its clients go to the leader and to the followers in turns."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from kit.amqp_trio import AmqpTrio
from kit.live_broker import LEFT_OUT, Clients
from kit.patience import wait_until
from logstore.broker import Limits
from logstore.cluster.member_users import ROOT_HOST
from logstore.core.host_directory import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from logstore.broker.server import Server


class TrioBroker(Clients):
    """For tests that speak AMQP only. A test that asks for anything else of a ``Broker`` is skipped."""

    def __init__(self, trio: SharedTrio) -> None:
        super().__init__()
        self._trio = trio

    @property
    def port(self) -> int:  # type: ignore[override] # an attribute of the other brokers
        """Of the member whose turn it is."""
        return self._trio.next_port()

    @property
    def mishaps(self) -> list[dict[str, Any]]:
        """Of all members."""
        return self._trio.amqp.mishaps

    def wait_for_connections(self, count: int) -> None:
        """Until the leader has no more, relayed or not."""
        self._trio.wait_for_connections(count)

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("hypothesis_") or name.endswith("_example"):  # hypothesis looks whether it is a test case
            raise AttributeError(name)
        pytest.skip(f"{LEFT_OUT}it uses broker.{name}")


class SharedTrio:
    """One trio for all tests of a run. Each finds the virtual host `/` empty; exchanges that are predeclared stay."""

    def __init__(self, place: Path) -> None:
        self.amqp = AmqpTrio(place, hosts=(ROOT_HOST,))
        self.amqp.start()
        self._limits: dict[str, Any] = {}
        self._turns = itertools.count()  # clients may be threads
        self._clear()

    def next_port(self) -> int:
        """Of the leader, of one follower, of the other one, and so on."""
        members = [self.amqp.serving(ROOT_HOST), *self.amqp.followers(ROOT_HOST)]
        return self.amqp.ports[members[next(self._turns) % len(members)]]

    def wait_for_connections(self, count: int) -> None:
        """See ``TrioBroker``."""
        leader = self.amqp.brokers[self.amqp.serving(ROOT_HOST)]
        wait_until(lambda: leader.call(lambda: len(leader.server.connections)) == count, "the end of the connections")

    def lend(self, **limits: Any) -> TrioBroker:
        """Give it back to ``take_back``."""
        if limits != self._limits:
            self._limits = limits
            self.amqp.restart_brokers(Limits(**limits))
        return TrioBroker(self)

    def restart(self) -> TrioBroker:
        """All three members end in order, and start again."""
        self.amqp.stop()
        self.amqp.start()
        return TrioBroker(self)

    def take_back(self, broker: TrioBroker) -> None:
        """The host has nothing of the test any more."""
        broker.close_clients()
        for each in self.amqp.brokers.values():
            wait_until(lambda each=each: each.call(lambda: not each.server.connections), "the end of the connections")
        self._clear()
        assert not self.amqp.mishaps, self.amqp.mishaps

    def _clear(self) -> None:
        leader = self.amqp.serving(ROOT_HOST)
        broker = self.amqp.brokers[leader]
        queues, exchanges = broker.call(lambda: left_in(broker.server))
        client = self.amqp.client(leader, ROOT)
        channel = client.channel()
        for queue in queues:
            channel.queue_delete(queue)
        for exchange in exchanges:
            channel.exchange_delete(exchange)
        client.close()

    def close(self) -> None:
        self.amqp.close()


def left_in(server: Server) -> tuple[list[str], list[str]]:
    """The queues and the exchanges of `/`."""
    vhost = server.hosts[ROOT].vhost
    return list(vhost.queues), [name for name in vhost.exchanges if name and not name.startswith("amq.")]
