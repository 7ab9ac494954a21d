"""Blocks of queues in memory and of transactions when the leader changes: the next one drops them, in every copy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("msgspec", reason="the extra cluster is not installed")
pytest.importorskip("logstore._consensus", reason="the cluster is not built")

from pamqp import commands

import logstore
from kit.amqp_client import RawClient
from kit.amqp_trio import AmqpTrio
from kit.trio import HOST, wait_for_all
from logstore.broker import Limits
from logstore.cluster.replica import detach

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

COUNT = 12_000
BODY = 1000  # bytes of a message


@pytest.fixture
def amqp(tmp_path: Path) -> Iterator[AmqpTrio]:
    made = AmqpTrio(tmp_path, limits=Limits(memory_bytes_max=16 << 20))
    made.start()
    yield made
    made.close()


def at(amqp: AmqpTrio, member: int) -> RawClient:
    return RawClient(amqp.ports[member]).open(channels=2, virtual_host=HOST)


def fill(client: RawClient) -> None:
    """Durable messages, a queue in memory beyond its memory, and a transaction beyond its own."""
    client.declare("d", durable=True)
    client.declare("m")
    client.send(1, commands.Confirm.Select())
    client.expect(commands.Confirm.SelectOk)
    client.send(2, commands.Tx.Select())
    client.expect(commands.Tx.SelectOk)
    for number in range(COUNT):
        client.publish("m", b"%d" % number + bytes(BODY))
        if number < COUNT // 4:
            client.publish("d", b"of a transaction" + bytes(BODY), channel=2)
    client.publish("d", b"durable")
    tag = 0
    while tag <= COUNT:
        tag = client.expect(commands.Basic.Ack).delivery_tag
    client.send(2, commands.Basic.Qos())
    client.expect(commands.Basic.QosOk)


def go_beyond(amqp: AmqpTrio, lsn: int) -> None:
    """Traffic until the tail is beyond this LSN."""
    store = amqp.trio.store()
    queue = store.declare_queue("traffic")
    while store.base_lsn <= lsn:
        for message in store.publish_many(queue, [bytes(100_000)] * 10):
            store.dequeue(message, queue)
    wait_for_all(amqp.trio)


@pytest.mark.parametrize("how", ["transfer", "stop", "failure"])
def test_the_next_leader_drops_what_the_last_one_had_staged_and_the_tail_moves_on_in_every_copy(
    amqp: AmqpTrio, how: str
) -> None:
    leader = amqp.serving()
    client = at(amqp, leader)
    fill(client)
    broker = amqp.brokers[leader]
    assert broker.call(lambda: broker.server.hosts[HOST].vhost.overflow.staged_count) > 10
    assert broker.call(lambda: broker.server.hosts[HOST].uploads._kept_bytes) > 1 << 20
    if how == "transfer":
        amqp.trio.members[leader].transfer(HOST)
    elif how == "stop":
        amqp.stop(leader)
    else:
        amqp.trio.fails(leader)
    new = amqp.serving(but=leader)
    assert client.expect(commands.Connection.Close).reply_code == 320
    store = amqp.trio.members[new].store(HOST)
    staged_until = store.next_lsn
    assert store.stats()["messages"] == sum(queue.depth for queue in store.queues()) == 2
    other = at(amqp, new)
    with pytest.raises(AssertionError, match="404"):
        other.declare("m", passive=True)
    again = at(amqp, new)
    again.send(1, commands.Basic.Get(queue="d", no_ack=True))
    again.expect(commands.Basic.GetOk)
    assert again.content()[1] == b"durable"
    again.send(1, commands.Basic.Get(queue="d"))
    again.expect(commands.Basic.GetEmpty)
    if how != "transfer":
        if how == "failure":
            amqp.stop(leader)
        amqp.start(leader)
    go_beyond(amqp, staged_until)
    amqp.stop()
    for member in amqp.trio.addresses:
        with logstore.open(detach(amqp.trio.host_dir(member))) as alone:
            assert alone.base_lsn > staged_until
            assert alone.recovery.staged_dropped == 0
            assert alone.stats()["messages"] == alone.queue("orders").depth == 1  # the trio's own
