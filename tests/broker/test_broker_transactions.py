"""AMQP transactions: tx.select, tx.commit, tx.rollback."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pika
import pytest
from pamqp import commands
from pika.exceptions import ChannelClosedByBroker

from kit.broker_transactions import drain, fill, ready, select, take
from kit.broker_waits import nothing_comes
from kit.live_broker import Broker, message_bytes, open_store
from kit.patience import wait_until
from kit.store_proxies import BrokenStore, FullStore, HeldDisk, Proxy
from logstore.broker import Limits
from logstore.broker.headers import decode_header
from logstore.broker.queues import now_ms

if TYPE_CHECKING:
    from pathlib import Path

    from pika.adapters.blocking_connection import BlockingChannel


def transactional(broker: Broker, *queues: str, durable: bool = True) -> BlockingChannel:
    """A channel in tx mode, with queues."""
    channel = broker.pika().channel()
    for queue in queues:
        channel.queue_declare(queue, durable=durable)
    channel.tx_select()
    return channel


# ---- Publishing


@pytest.mark.parametrize("durable", [True, False])
def test_publishes_become_visible_at_the_commit_and_in_order(broker: Broker, durable: bool) -> None:
    channel = transactional(broker, "q", durable=durable)
    for number in range(10):
        channel.basic_publish("", "q", b"%d" % number)
    channel.queue_declare("q", passive=True)  # all of them have arrived
    assert ready(broker, "q") == 0
    assert drain(broker, "q") == []
    channel.tx_commit()
    assert drain(broker, "q") == [b"%d" % number for number in range(10)]


@pytest.mark.parametrize("durable", [True, False])
def test_a_rollback_forgets_the_publishes_and_the_channel_goes_on(broker: Broker, durable: bool) -> None:
    channel = transactional(broker, "q", durable=durable)
    channel.basic_publish("", "q", b"never")
    channel.tx_rollback()
    channel.basic_publish("", "q", b"after")
    channel.tx_commit()
    channel.tx_commit()  # an empty one is fine
    assert drain(broker, "q") == [b"after"]


def test_memory_and_durable_queues_get_their_messages_together(held: tuple[Broker, HeldDisk]) -> None:
    broker, disk = held
    channel = transactional(broker, "lasting")
    channel.queue_declare("passing", durable=False)
    channel.exchange_declare("both", "fanout")
    for queue in ("lasting", "passing"):
        channel.queue_bind(queue, "both")
    client = broker.raw().open()
    select(client)
    client.publish("", b"x", exchange="both")
    client.publish("passing", b"y", properties=commands.Basic.Properties(delivery_mode=1))
    disk.hold()
    client.send(1, commands.Tx.Commit())
    nothing_comes(client)
    assert ready(broker, "passing") == 0
    disk.let_go()
    client.expect(commands.Tx.CommitOk)
    assert drain(broker, "lasting") == [b"x"]
    assert drain(broker, "passing") == [b"x", b"y"]


def test_commit_ok_is_sent_only_when_the_commit_is_durable(held: tuple[Broker, HeldDisk]) -> None:
    broker, disk = held
    client = broker.raw().open()
    client.declare("q", durable=True)
    select(client)
    client.publish("q", b"x")
    disk.hold()
    client.send(1, commands.Tx.Commit())
    nothing_comes(client)
    disk.let_go()
    client.expect(commands.Tx.CommitOk)


def test_a_commit_of_any_size_is_one_force(broker: Broker) -> None:
    fill(broker, "in", 50)
    channel = transactional(broker, "out", "audit")
    tags = [channel.basic_get("in")[0].delivery_tag for _ in range(50)]
    broker.store.force()
    syncs = broker.store.stats()["syncs"]
    for tag in tags:
        channel.basic_ack(tag)
        channel.basic_publish("", "out", b"done")
        channel.basic_publish("", "audit", b"done")
    channel.tx_commit()
    assert broker.store.stats()["syncs"] == syncs + 1
    assert (ready(broker, "in"), ready(broker, "out"), ready(broker, "audit")) == (0, 50, 50)


@pytest.mark.parametrize(("count", "size"), [(2000, 10), (3, 2 << 20)])
def test_a_large_transaction_is_atomic(broker: Broker, count: int, size: int) -> None:
    fill(broker, "in", 3)
    channel = transactional(broker, "q")
    bodies = [b"%d." % number + bytes(size) for number in range(count)]
    for body in bodies:
        channel.basic_publish("", "q", body)
    for _ in range(3):
        channel.basic_ack(channel.basic_get("in")[0].delivery_tag)
    channel.queue_declare("q", passive=True)
    assert ready(broker, "q") == 0
    channel.tx_commit()
    assert drain(broker, "q") == bodies
    assert broker.store.queue("in").depth == 0
    assert broker.call(lambda: message_bytes(broker.server)) == 0


def test_an_unroutable_mandatory_message_is_returned_at_the_commit_and_after_a_rollback_never(broker: Broker) -> None:
    client = broker.raw().open()
    select(client)
    client.publish("nowhere", b"first", mandatory=True)
    client.send(1, commands.Tx.Rollback())
    client.expect(commands.Tx.RollbackOk)
    client.publish("nowhere", b"second", mandatory=True)
    nothing_comes(client)
    client.send(1, commands.Tx.Commit())
    assert client.expect(commands.Basic.Return).reply_code == 312
    assert client.content()[1] == b"second"
    client.expect(commands.Tx.CommitOk)


def test_a_queue_that_is_deleted_before_the_commit_is_left_out(broker: Broker) -> None:
    channel = transactional(broker, "gone", "kept")
    channel.queue_declare("passing", durable=False)
    channel.exchange_declare("all", "fanout")
    for queue in ("gone", "kept", "passing"):
        channel.queue_bind(queue, "all")
    channel.basic_publish("all", "", b"x")
    for queue in ("gone", "passing"):
        broker.pika().channel().queue_delete(queue)
    channel.tx_commit()
    assert drain(broker, "kept") == [b"x"]
    assert broker.call(lambda: message_bytes(broker.server)) == 0


def test_a_queue_that_is_deleted_while_a_large_commit_is_written_is_left_out(
    tmp_path: Path, broker_class: type[Broker]
) -> None:
    class Deleting(Proxy):
        def publish(self, *args: Any, **options: Any) -> Any:
            if options.get("transaction") is not None and "gone" in broker.server.hosts["/"].vhost.queues:
                vhost = broker.server.hosts["/"].vhost
                broker.call_async(lambda: vhost.delete_queue(vhost.queues["gone"]))
            return self._store.publish(*args, **options)

    broker = broker_class(Deleting(open_store(tmp_path / "store")))
    try:
        fill(broker, "in", 1)
        channel = transactional(broker, "gone", "kept")
        channel.exchange_declare("both", "fanout")
        for queue in ("gone", "kept"):
            channel.queue_bind(queue, "both")
        bodies = [b"%d" % number for number in range(1000)]
        for body in bodies:
            channel.basic_publish("both", "", body)
        channel.basic_ack(channel.basic_get("in")[0].delivery_tag)
        channel.tx_commit()
        assert "gone" not in broker.server.hosts["/"].vhost.queues
        assert drain(broker, "kept") == bodies
        assert (broker.store.queue("in").depth, broker.store.stats()["transactions"]) == (0, 0)
    finally:
        broker.stop()
        broker.store.close()


@pytest.mark.parametrize("durable", [True, False])
def test_acknowledgements_on_a_queue_that_is_deleted_do_not_stop_the_commit(broker: Broker, durable: bool) -> None:
    fill(broker, "gone", 3, durable=durable)
    channel = transactional(broker, "out")
    tags = [channel.basic_get("gone")[0].delivery_tag for _ in range(3)]
    channel.basic_ack(tags[0])
    channel.basic_reject(tags[1], requeue=False)
    channel.basic_nack(tags[2], requeue=True)
    channel.basic_publish("", "out", b"x")
    broker.pika().channel().queue_delete("gone")
    channel.tx_commit()
    assert drain(broker, "out") == [b"x"]
    assert broker.call(lambda: message_bytes(broker.server)) == 0


def test_the_time_to_live_counts_from_the_commit(broker: Broker) -> None:
    channel = transactional(broker, "q")
    before = now_ms()
    channel.basic_publish("", "q", b"x", pika.BasicProperties(expiration="600000"))
    channel.queue_declare("q", passive=True)
    wait_until(lambda: now_ms() > before + 50)
    committed = now_ms()
    channel.tx_commit()
    (message,) = broker.store.messages("q")
    published = decode_header(message.header, b"").published_ms
    assert published is not None
    assert published >= committed


# ---- Acknowledging


@pytest.mark.parametrize("durable", [True, False])
def test_acknowledgements_take_effect_at_the_commit(broker: Broker, durable: bool) -> None:
    fill(broker, "q", 3, durable=durable)
    channel = transactional(broker, "q", durable=durable)
    first = channel.basic_get("q")[0].delivery_tag
    second = channel.basic_get("q")[0].delivery_tag
    channel.basic_ack(first)
    channel.tx_commit()
    channel.basic_ack(second)
    channel.close()  # and with it the transaction
    wait_until(lambda: ready(broker, "q") == 2)
    assert drain(broker, "q") == [b"1", b"2"]


def test_after_a_rollback_messages_are_unacknowledged_on_the_channel_and_not_delivered_again(broker: Broker) -> None:
    fill(broker, "q", 3)
    client = broker.raw().open()
    select(client)
    tags = [take(client) for _ in range(3)]
    client.send(1, commands.Basic.Ack(tags[1]), commands.Basic.Nack(tags[2]), commands.Tx.Rollback())
    client.expect(commands.Tx.RollbackOk)
    client.send(1, commands.Basic.Get(queue="q"))
    client.expect(commands.Basic.GetEmpty)
    # They can be acknowledged again, also all at once, in the order of their tags.
    client.send(1, commands.Basic.Ack(tags[1], multiple=True), commands.Tx.Commit())
    client.expect(commands.Tx.CommitOk)
    assert broker.store.queue("q").depth == 1
    client.send(1, commands.Basic.Recover(requeue=True))
    client.expect(commands.Basic.RecoverOk)
    assert take(client) == tags[2] + 1


def test_a_message_cannot_be_acknowledged_twice_in_a_transaction(broker: Broker) -> None:
    fill(broker, "q", 2)
    channel = transactional(broker, "q")
    tag = channel.basic_get("q")[0].delivery_tag
    channel.basic_ack(tag)
    with pytest.raises(ChannelClosedByBroker, match=f"unknown delivery tag {tag}"):
        channel.basic_ack(tag)
        channel.tx_commit()
    wait_until(lambda: ready(broker, "q") == 2)
    assert drain(broker, "q") == [b"0", b"1"]


@pytest.mark.parametrize("durable", [True, False])
def test_rejects_and_requeues_take_part(broker: Broker, durable: bool) -> None:
    fill(broker, "q", 3, durable=durable)
    channel = transactional(broker, "q", durable=durable)
    tags = [channel.basic_get("q")[0].delivery_tag for _ in range(3)]
    channel.basic_reject(tags[0], requeue=False)
    channel.basic_nack(tags[1], requeue=True)
    channel.queue_declare("q", passive=True)
    assert ready(broker, "q") == 0
    channel.tx_commit()
    assert ready(broker, "q") == 1
    method, _, body = channel.basic_get("q")
    assert (body, method.redelivered) == (b"1", True)
    if durable:
        assert broker.store.queue("q").depth == 2


def test_rejected_messages_are_dead_lettered_by_the_commit(tmp_path: Path, broker_class: type[Broker]) -> None:
    store = open_store(tmp_path / "store")
    store.declare_queue("dead")
    store.declare_queue("q", dead_letter="dead")
    broker = broker_class(store)
    try:
        fill_channel = broker.pika().channel()
        fill_channel.confirm_delivery()
        fill_channel.basic_publish("", "q", b"bad")
        channel = transactional(broker)
        channel.basic_reject(channel.basic_get("q")[0].delivery_tag, requeue=False)
        channel.queue_declare("q", passive=True)
        assert (store.queue("q").depth, store.queue("dead").depth) == (1, 0)
        channel.tx_commit()
        assert (store.queue("q").depth, store.queue("dead").depth) == (0, 1)
        assert drain(broker, "dead") == [b"bad"]
    finally:
        broker.stop()
        store.close()


def test_prefetch_is_given_back_by_the_commit(broker: Broker) -> None:
    fill(broker, "q", 4)
    client = broker.raw().open()
    select(client)
    client.send(1, commands.Basic.Qos(0, 2))
    client.expect(commands.Basic.QosOk)
    client.send(1, commands.Basic.Consume(queue="q"))
    client.expect(commands.Basic.ConsumeOk)
    tags = [client.delivery()[0].delivery_tag for _ in range(2)]
    client.send(1, commands.Basic.Ack(tags[1], multiple=True))
    nothing_comes(client)
    client.send(1, commands.Tx.Commit())
    client.expect(commands.Tx.CommitOk)
    assert [client.delivery()[1] for _ in range(2)] == [b"2", b"3"]


def test_a_message_purged_meanwhile_does_not_stop_the_commit(broker: Broker) -> None:
    fill(broker, "q", 1)
    channel = transactional(broker, "q", "out")
    tag = channel.basic_get("q")[0].delivery_tag
    (message,) = broker.store.messages("q")
    broker.store.dequeue(message.id, "q")  # by somebody who goes past the broker
    channel.basic_ack(tag)
    channel.basic_publish("", "out", b"x")
    channel.tx_commit()
    assert drain(broker, "out") == [b"x"]
    assert not any(broker.store.stats()["queues"]["q"].values())


def test_committed_messages_are_no_longer_acquired(broker: Broker) -> None:
    fill(broker, "q", 5)
    channel = transactional(broker, "q")
    for _ in range(5):
        channel.basic_ack(channel.basic_get("q")[0].delivery_tag)
    assert broker.store.stats()["queues"]["q"]["acquired"] == 5
    channel.tx_commit()
    assert not any(broker.store.stats()["queues"]["q"].values())


# ---- Refusals


def test_confirms_and_transactions_exclude_each_other(broker: Broker) -> None:
    client = broker.raw().open(channels=2)
    client.send(1, commands.Confirm.Select())
    client.expect(commands.Confirm.SelectOk)
    client.send(1, commands.Tx.Select())
    assert "cannot switch from confirm to tx mode" in client.expect_channel_close(406)
    select(client, 2)
    select(client, 2)  # a second time is harmless
    client.send(2, commands.Confirm.Select())
    assert "cannot switch from tx to confirm mode" in client.expect_channel_close(406)


@pytest.mark.parametrize("method", [commands.Tx.Commit(), commands.Tx.Rollback()])
def test_an_outcome_without_a_transaction_is_406(broker: Broker, method: Any) -> None:
    client = broker.raw().open()
    client.send(1, method)
    assert "channel is not transactional" in client.expect_channel_close(406)


def test_a_full_store_refuses_the_commit_as_a_whole_and_says_so(tmp_path: Path, broker_class: type[Broker]) -> None:
    store = FullStore(open_store(tmp_path / "store"))
    broker = broker_class(store, Limits(blocked_timeout_s=0.05))
    try:
        fill(broker, "q", 2)
        channel = transactional(broker, "q", "out")
        channel.basic_ack(channel.basic_get("q")[0].delivery_tag)
        channel.basic_publish("", "out", b"x")
        store.full = True
        with pytest.raises(ChannelClosedByBroker, match="full") as closed:
            channel.tx_commit()
        assert closed.value.reply_code == 506
        store.full = False
        assert drain(broker, "q") == [b"0", b"1"]
        assert drain(broker, "out") == []
        assert store.stats()["transactions"] == 0
    finally:
        broker.stop()
        store.close()


def test_a_store_that_fails_during_the_commit_never_gives_commit_ok(tmp_path: Path, broker_class: type[Broker]) -> None:
    store = BrokenStore(open_store(tmp_path / "store"))
    broker = broker_class(store)
    try:
        client = broker.raw().open()
        client.declare("q", durable=True)
        client.declare("passing")
        select(client)
        client.publish("q", b"x")
        client.publish("passing", b"x")
        store.hold()
        client.send(1, commands.Tx.Commit())
        nothing_comes(client)
        store.break_down()
        client.expect_connection_close(541)
        assert ready(broker, "passing") == 0
    finally:
        broker.stop()
        store.close()
