"""Transactions beyond their part of memory: their publishes wait in the log, and all or none of them take effect."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from pamqp import commands

from kit.live_broker import message_bytes
from kit.patience import PATIENCE_S, wait_until
from kit.store_proxies import Proxy
from logstore.broker.spool import SPOOL_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from kit.amqp_client import RawClient
    from kit.live_broker import Broker

MIB = 1 << 20
MEMORY = 16 * MIB  # of which 1 MiB is for transactions, and a channel has at most a half of it
COUNT = 3000
BODY = 1000


def body_of(number: int) -> bytes:
    return b"%06d" % number + bytes(BODY - 6)


def transactional(broker: Broker) -> RawClient:
    client = broker.raw().open()
    client.declare("q", durable=True)
    client.declare("m")
    client.send(1, commands.Tx.Select())
    client.expect(commands.Tx.SelectOk)
    return client


def publish_many(client: RawClient, *queues: str, **options: Any) -> None:
    for number in range(COUNT):
        client.publish(queues[number % len(queues)], body_of(number), **options)


def staged(broker: Broker) -> int:
    """Messages in the log that are on no queue."""
    return int(broker.store.stats()["messages"]) - broker.store.queue("q").depth


def wait_for_blocks(broker: Broker) -> None:
    wait_until(lambda: staged(broker) >= (COUNT * BODY - MIB) // SPOOL_BYTES, "blocks in the log")


def settled(client: RawClient) -> None:
    """All publishes were handled: the answer comes behind them."""
    client.declare("q", durable=True)


def wait_for_nothing(broker: Broker) -> None:
    wait_until(lambda: staged(broker) == 0, "no block is left")
    assert broker.call(lambda: broker.server.hosts["/"].uploads._kept_bytes) == 0


def bodies(client: RawClient, queue: str) -> list[bytes]:
    found = []
    while True:
        client.send(1, commands.Basic.Get(queue=queue, no_ack=True))
        _, answer = client.receive()
        if isinstance(answer, commands.Basic.GetEmpty):
            return found
        found.append(client.content()[1])


def test_a_transaction_beyond_its_memory_is_committed_wholly_and_in_order(start_broker: Callable[..., Broker]) -> None:
    broker = start_broker(memory_bytes_max=MEMORY)
    client = transactional(broker)
    publish_many(client, "q", "m")
    settled(client)
    wait_for_blocks(broker)
    share = broker.server.budget.transactions
    assert broker.call(lambda: share.used_bytes) < share.bytes_max // 2 + SPOOL_BYTES + 64 * 1024
    assert broker.store.queue("q").depth == 0
    client.send(1, commands.Tx.Commit())
    client.expect(commands.Tx.CommitOk)
    wait_for_nothing(broker)
    assert bodies(client, "q") == [body_of(number) for number in range(0, COUNT, 2)]
    assert bodies(client, "m") == [body_of(number) for number in range(1, COUNT, 2)]
    client.send(1, commands.Tx.Commit())
    client.expect(commands.Tx.CommitOk)
    client.socket.close()
    wait_until(lambda: broker.call(lambda: message_bytes(broker.server)) == 0, "all is given back")


@pytest.mark.parametrize("goodbye", ["rollback", "channel", "cut"])
def test_a_transaction_that_is_not_committed_leaves_nothing_in_the_log(
    start_broker: Callable[..., Broker], goodbye: str
) -> None:
    broker = start_broker(memory_bytes_max=MEMORY)
    client = transactional(broker)
    publish_many(client, "q")
    settled(client)
    wait_for_blocks(broker)
    if goodbye == "rollback":
        client.send(1, commands.Tx.Rollback())
        client.expect(commands.Tx.RollbackOk)
    elif goodbye == "channel":
        client.send(1, commands.Channel.Close(200, "", 0, 0))
        client.expect(commands.Channel.CloseOk)
    else:
        client.socket.close()
    wait_for_nothing(broker)
    assert broker.store.queue("q").depth == 0
    assert broker.call(lambda: broker.server.budget.transactions.used_bytes) == 0


def test_large_bodies_between_the_blocks_keep_their_place(start_broker: Callable[..., Broker]) -> None:
    broker = start_broker(memory_bytes_max=MEMORY)
    client = transactional(broker)
    large = bytes(2 * MIB)
    publish_many(client, "q")
    client.publish("q", large)
    client.publish("q", b"between")
    client.publish("q", large)
    publish_many(client, "q")
    client.send(1, commands.Tx.Commit())
    client.expect(commands.Tx.CommitOk)
    wait_for_nothing(broker)
    small = [body_of(number) for number in range(COUNT)]
    assert bodies(client, "q") == [*small, large, b"between", large, *small]


def test_properties_and_expirations_survive_the_log_and_messages_without_a_queue_are_returned(
    start_broker: Callable[..., Broker],
) -> None:
    broker = start_broker(memory_bytes_max=MEMORY)
    client = transactional(broker)
    publish_many(client, "q")
    properties = commands.Basic.Properties(expiration="3600000", message_id="mine", headers={"a": 1})
    client.publish("q", b"with properties", properties=properties)
    client.publish("nowhere", b"returned", mandatory=True, properties=properties)
    client.publish("nowhere", b"dropped")
    publish_many(client, "q")
    client.send(1, commands.Tx.Commit())
    client.expect(commands.Basic.Return)
    head, body = client.content()
    assert (head.properties.message_id, body) == ("mine", b"returned")
    client.expect(commands.Tx.CommitOk)
    wait_for_nothing(broker)
    assert broker.store.queue("q").depth == 2 * COUNT + 1
    client.send(1, commands.Basic.Consume(queue="q", no_ack=True))
    client.expect(commands.Basic.ConsumeOk)
    for number in range(COUNT + 1):
        _, head, body = client.expect(commands.Basic.Deliver), *client.content()
        assert body == (body_of(number) if number < COUNT else b"with properties")
    assert (head.properties.expiration, head.properties.headers) == ("3600000", {"a": 1})


def test_a_queue_that_was_deleted_before_the_commit_is_left_out(start_broker: Callable[..., Broker]) -> None:
    broker = start_broker(memory_bytes_max=MEMORY)
    client, other = transactional(broker), broker.raw().open()
    other.declare("gone", durable=True)
    publish_many(client, "q", "gone")
    settled(client)
    wait_for_blocks(broker)
    other.send(1, commands.Queue.Delete(queue="gone"))
    other.expect(commands.Queue.DeleteOk)
    client.send(1, commands.Tx.Commit())
    client.expect(commands.Tx.CommitOk)
    wait_for_nothing(broker)
    assert bodies(client, "q") == [body_of(number) for number in range(0, COUNT, 2)]


def test_a_transaction_that_the_log_may_not_hold_is_refused_and_has_no_effect(
    start_broker: Callable[..., Broker],
) -> None:
    broker = start_broker(memory_bytes_max=MEMORY, unfinished_bytes_max=SPOOL_BYTES)
    client = transactional(broker)
    client.publish("q", b"first")
    publish_many(client, "q")
    assert "the log has too much of unfinished messages" in client.expect_channel_close(506)
    wait_for_nothing(broker)
    assert broker.store.queue("q").depth == 0
    assert broker.call(lambda: broker.server.budget.transactions.used_bytes) == 0


@pytest.mark.parametrize("count", [600, COUNT])
def test_transactions_of_one_channel_reach_queues_in_memory_in_the_order_of_their_commits(
    start_broker: Callable[..., Broker], count: int
) -> None:
    broker = start_broker(memory_bytes_max=MEMORY)
    client = transactional(broker)
    for number in range(count):
        client.publish("m", body_of(number))
    client.publish("q", b"durable")
    client.send(1, commands.Tx.Commit())
    for number in range(count, count + 10):
        client.publish("m", body_of(number))
        client.send(1, commands.Tx.Commit())
    for _ in range(11):
        client.expect(commands.Tx.CommitOk)
    assert bodies(client, "m") == [body_of(number) for number in range(count + 10)]


class GatedReads(Proxy):
    """After `free` reads the next one waits until `may_read`."""

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        self.free = COUNT
        self.asked = threading.Event()
        self.may_read = threading.Event()

    def load_content(self, *args: Any) -> bytes:
        self.free -= 1
        if self.free < 0:
            self.asked.set()
            assert self.may_read.wait(PATIENCE_S)
        return bytes(self._store.load_content(*args))


def test_others_are_answered_while_a_block_of_a_committed_transaction_is_read(
    on_store: Callable[..., tuple[Broker, Any]],
) -> None:
    broker, store = on_store(GatedReads, memory_bytes_max=MEMORY)
    client, neighbour = transactional(broker), broker.raw().open()
    publish_many(client, "m")
    settled(client)
    wait_for_blocks(broker)
    store.free = staged(broker)  # each block is read before the commit
    client.send(1, commands.Tx.Commit())
    wait_until(store.asked.is_set, "a block is read after the commit")
    neighbour.declare("n")
    neighbour.publish("n", b"meanwhile")
    assert bodies(neighbour, "n") == [b"meanwhile"]
    store.may_read.set()
    client.expect(commands.Tx.CommitOk)
    assert bodies(client, "m") == [body_of(number) for number in range(COUNT)]
    wait_for_nothing(broker)
