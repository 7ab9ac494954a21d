"""Large bodies on queues in memory: they are in the log, shared by their queues, and never in memory as a whole."""

from __future__ import annotations

import random
import re
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pamqp import body, commands, header

import logstore
from kit.amqp_client import RawClient
from kit.live_broker import message_bytes
from kit.patience import PATIENCE_S, wait_until
from kit.serve_process import serving
from kit.store_proxies import FullStore
from logstore.broker import streams
from logstore.broker.limits import FRAME_OVERHEAD_BYTES
from logstore.broker.streams import PIECE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from kit.live_broker import Broker

FRAME = 131072 - FRAME_OVERHEAD_BYTES
SIZE = 5 * PIECE_BYTES + 3
WHOLE = random.Random(1).randbytes(SIZE)


def staged(broker: Broker) -> int:
    return broker.call(lambda: broker.server.hosts["/"].vhost.overflow.staged_count)


def wait_for_nothing(broker: Broker) -> None:
    wait_until(lambda: broker.store.stats()["messages"] == 0, "the end of the messages")
    wait_until(lambda: staged(broker) == 0, "the end of the staged ones for the broker, too")
    assert broker.call(lambda: broker.server.hosts["/"].vhost.overflow.held_bytes) == 0
    assert broker.call(lambda: broker.server.hosts["/"].uploads.held_bytes) == 0
    assert broker.call(lambda: message_bytes(broker.server)) == 0


def declare(client: RawClient, **queues: bool) -> None:
    """Queues that are bound to a fanout, by whether they are durable."""
    for queue, durable in queues.items():
        client.declare(queue, durable=durable)
        client.send(1, commands.Queue.Bind(queue=queue, exchange="amq.fanout"))
        client.expect(commands.Queue.BindOk)


def confirming(broker: Broker, *, channels: int = 1) -> RawClient:
    client = broker.raw().open(channels=channels)
    client.send(1, commands.Confirm.Select())
    client.expect(commands.Confirm.SelectOk)
    return client


def publish(client: RawClient, whole: bytes = WHOLE) -> None:
    client.publish("", whole, exchange="amq.fanout")
    client.expect(commands.Basic.Ack)


def get(client: RawClient, queue: str, *, no_ack: bool = True) -> tuple[int, bytes]:
    client.send(1, commands.Basic.Get(queue=queue, no_ack=no_ack))
    return client.expect(commands.Basic.GetOk).delivery_tag, client.content()[1]


def test_queues_in_memory_share_one_body_that_ends_with_the_last_of_them(broker: Broker) -> None:
    client = confirming(broker)
    declare(client, a=False, b=False, c=False)
    publish(client)
    assert broker.call(lambda: message_bytes(broker.server)) < 2000
    assert (staged(broker), broker.store.stats()["messages"]) == (1, 1)
    assert get(client, "a")[1] == WHOLE
    client.send(1, commands.Queue.Delete(queue="b"))
    client.expect(commands.Queue.DeleteOk)
    assert staged(broker) == 1
    tag, whole = get(client, "c", no_ack=False)
    assert whole == WHOLE
    assert staged(broker) == 1
    client.send(1, commands.Basic.Ack(tag))
    wait_for_nothing(broker)


@pytest.mark.parametrize("first", ["d", "m"])
def test_durable_queues_and_queues_in_memory_do_not_need_each_other(broker: Broker, first: str) -> None:
    client = confirming(broker)
    declare(client, d=True, m=False)
    publish(client)
    assert get(client, first)[1] == WHOLE
    wait_until(lambda: broker.store.stats()["messages"] == 1, "the end of one of the copies")
    assert get(client, "d" if first == "m" else "m")[1] == WHOLE
    wait_for_nothing(broker)


@pytest.mark.parametrize("deleted", ["d", "m"])
def test_a_queue_that_is_deleted_while_the_body_arrives_is_left_out(broker: Broker, deleted: str) -> None:
    client, other = confirming(broker), broker.raw().open()
    declare(client, d=True, m=False)
    client.send(1, commands.Basic.Publish(exchange="amq.fanout"), header.ContentHeader(0, SIZE))
    for at in range(0, SIZE, FRAME):
        if at == 3 * FRAME:
            other.send(1, commands.Queue.Delete(queue=deleted))
            other.expect(commands.Queue.DeleteOk)
        client.send(1, body.ContentBody(WHOLE[at : at + FRAME]))
    client.expect(commands.Basic.Ack)
    assert get(client, "d" if deleted == "m" else "m")[1] == WHOLE
    wait_for_nothing(broker)


def test_a_delivery_that_has_begun_is_sent_to_its_end_though_the_queue_is_deleted(broker: Broker) -> None:
    client, reader = confirming(broker), broker.raw(receive_buffer=1 << 16).open()
    declare(client, m=False)
    whole = random.Random(2).randbytes(20 << 20)
    publish(client, whole)
    reader.send(1, commands.Basic.Consume(queue="m", consumer_tag="c", no_ack=True))
    reader.expect(commands.Basic.ConsumeOk)
    reader.expect(commands.Basic.Deliver)
    client.send(1, commands.Queue.Delete(queue="m"))
    client.expect(commands.Queue.DeleteOk)
    assert reader.content()[1] == whole
    wait_for_nothing(broker)


def test_large_and_small_messages_keep_their_order_in_the_log(start_broker: Callable[..., Broker]) -> None:
    broker = start_broker(inline_body_bytes_max=1000)
    broker.server.budget.queues.bytes_max = 20_000
    client = broker.raw().open()
    client.declare("q")
    bodies = [b"%d" % at + bytes(PIECE_BYTES + 1 if at % 9 == 8 else 200) for at in range(200)]
    for each in bodies:
        client.publish("q", each)
    assert client.declare("q", passive=True).message_count == 200
    taken = [get(client, "q", no_ack=False) for _ in range(100)]
    assert [each[1] for each in taken] == bodies[:100]
    client.send(1, commands.Basic.Recover(requeue=True))
    client.expect(commands.Basic.RecoverOk)
    assert [get(client, "q")[1] for _ in range(150)] == bodies[:150]
    client.send(1, commands.Queue.Purge(queue="q"))
    assert client.expect(commands.Queue.PurgeOk).message_count == 50
    wait_for_nothing(broker)


@pytest.mark.parametrize("outcome", ["commit", "rollback", "its connection ends"])
def test_a_transaction_puts_a_large_body_on_queues_of_both_kinds_or_on_none(broker: Broker, outcome: str) -> None:
    client, other = broker.raw().open(), broker.raw().open()
    declare(other, d=True, m=False, n=False)
    client.send(1, commands.Tx.Select())
    client.expect(commands.Tx.SelectOk)
    client.publish("", WHOLE, exchange="amq.fanout")
    client.publish("m", WHOLE)
    wait_until(lambda: broker.store.stats()["messages"] == 2, "the staged messages")
    if outcome == "commit":
        client.send(1, commands.Tx.Commit())
        client.expect(commands.Tx.CommitOk)
        assert [get(other, queue)[1] for queue in "dmmn"] == [WHOLE] * 4
    elif outcome == "rollback":
        client.send(1, commands.Tx.Rollback())
        client.expect(commands.Tx.RollbackOk)
    else:
        client.socket.close()
    wait_for_nothing(broker)


def test_a_full_store_refuses_the_copy_for_queues_in_memory_and_with_it_the_message(
    on_store: Callable[..., tuple[Broker, Any]],
) -> None:
    class NoCopies(FullStore):
        """It becomes full with the first byte that is read."""

        def load_content(self, *args: Any) -> bytes:
            self.full = True
            return bytes(self._store.load_content(*args))

    broker, store = on_store(NoCopies, blocked_timeout_s=0.05)
    client = confirming(broker)
    declare(client, d=True, m=False)
    client.publish("", WHOLE, exchange="amq.fanout")
    client.expect(commands.Basic.Nack)
    assert (store.queue("d").depth, client.declare("m").message_count) == (0, 0)
    wait_for_nothing(broker)


def mandatory(client: RawClient, whole: bytes = WHOLE, channel: int = 1) -> None:
    client.publish("nowhere", whole, channel=channel, mandatory=True)


def test_a_large_message_without_a_queue_is_returned_before_its_confirm(broker: Broker) -> None:
    client = confirming(broker)
    for whole in (WHOLE, WHOLE[:-1]):
        mandatory(client, whole)
    client.publish("nowhere", b"small", mandatory=True)
    client.publish("nowhere", WHOLE)
    for at, whole in enumerate((WHOLE, WHOLE[:-1], b"small"), 1):
        answer = client.receive()[1]
        while isinstance(answer, commands.Basic.Ack):
            assert answer.delivery_tag < at
            answer = client.receive()[1]
        assert isinstance(answer, commands.Basic.Return)
        assert client.content()[1] == whole
    last = 0
    while last < 4:
        last = client.expect(commands.Basic.Ack).delivery_tag
    wait_for_nothing(broker)


@pytest.mark.parametrize("end", ["channel", "socket", "connection"])
def test_a_return_that_is_interrupted_leaves_nothing(broker: Broker, end: str) -> None:
    client = broker.raw(receive_buffer=1 << 16).open(channels=2)
    whole = bytes(16 << 20)
    mandatory(client, whole)
    mandatory(client, whole)
    client.expect(commands.Basic.Return)
    if end == "channel":
        client.send(1, commands.Channel.Close(200, "", 0, 0))
        client.content()
        client.expect(commands.Channel.CloseOk)
        client.send(2, commands.Basic.Qos())
        client.expect(commands.Basic.QosOk)
    elif end == "socket":
        client.socket.close()
    else:
        client.send(0, commands.Connection.Close(200, "", 0, 0))
        client.socket.close()
    wait_for_nothing(broker)


def test_a_channel_that_ends_while_a_return_is_read_leaves_its_connection(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, goes_on, has_read = threading.Event(), threading.Event(), threading.Event()
    read_all = streams.PieceStream._read_all

    def slow(stream: streams.PieceStream) -> bytes:
        reads.set()
        assert goes_on.wait(PATIENCE_S)
        try:
            return read_all(stream)
        finally:
            has_read.set()

    monkeypatch.setattr(streams.PieceStream, "_read_all", slow)
    client = broker.raw().open(channels=2)
    mandatory(client, bytes(16 << 20))
    assert reads.wait(PATIENCE_S)
    client.send(1, commands.Channel.Close(200, "", 0, 0))
    client.expect(commands.Channel.CloseOk)
    wait_until(lambda: broker.store.stats()["messages"] == 0, "it is dropped")
    goes_on.set()
    assert has_read.wait(PATIENCE_S)
    for _ in range(2):
        client.send(2, commands.Basic.Qos())
        client.expect(commands.Basic.QosOk)
    wait_for_nothing(broker)


def test_nothing_survives_a_kill(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        client = RawClient(served.port).open()
        client.declare("m")
        client.send(1, commands.Confirm.Select())
        client.expect(commands.Confirm.SelectOk)
        client.publish("m", WHOLE)
        client.expect(commands.Basic.Ack)
        served.kill()
    with logstore.open(tmp_path) as store:
        assert store.stats()["messages"] == 0


def peak_bytes(pid: int) -> int:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) << 10


def test_a_body_of_100_mib_never_takes_100_mib(tmp_path: Path) -> None:
    size = 100 << 20
    with serving(tmp_path) as served:
        client = RawClient(served.port).open()
        client.declare("m")
        client.declare("d", durable=True)
        for queue in ("m", "d"):
            client.send(1, commands.Queue.Bind(queue=queue, exchange="amq.fanout"))
            client.expect(commands.Queue.BindOk)
        before = peak_bytes(served.pid)
        client.send(1, commands.Basic.Publish(exchange="amq.fanout"), header.ContentHeader(0, size))
        for at in range(0, size, FRAME):
            client.send(1, body.ContentBody(bytes(min(FRAME, size - at))))
        client.send(1, commands.Basic.Get(queue="m"))
        client.expect(commands.Basic.GetOk)
        missing = client.expect(header.ContentHeader).body_size
        while missing:
            missing -= len(client.expect(body.ContentBody).value)
        assert peak_bytes(served.pid) - before < size // 2
